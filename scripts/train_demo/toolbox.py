# SPDX-License-Identifier: Apache-2.0
"""Conversations with tools: their schemas, questions that need them, calls, results and answers."""

import json

import stories
import words


def parameter(rng, kind, text):
    schema = {"type": kind, "description": text} if rng.random() < 0.7 else {"type": kind}
    return dict(reversed(schema.items())) if rng.random() < 0.2 else schema


def function(rng, name, text, parameters, optional=None):
    schema = {
        "type": "object",
        "properties": {**parameters, **(optional or {})},
        "required": list(parameters),
    }
    if rng.random() < 0.15:
        schema["additionalProperties"] = False
    body = {"name": name, "description": text, "parameters": schema}
    if rng.random() < 0.1:
        del body["description"]
    return {"type": "function", "function": body}


def weather(rng):
    name = rng.choice(("get_weather", "get_weather", "get_current_weather", "weather"))
    key = rng.choice(("city", "city", "location", "place"))
    unit = (
        {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}
        if rng.random() < 0.3
        else None
    )
    tool = function(
        rng,
        name,
        "Get the current weather in a city.",
        {key: parameter(rng, "string", "Name of the city")},
        unit,
    )

    def ask(r):
        city = words.place_name(r)
        degrees, sky = r.randint(-20, 40), r.choice(
            ("sunny", "rainy", "cloudy", "windy", "snowy", "foggy", "clear")
        )
        question = r.choice(
            (
                "What is the weather in {c}?",
                "How is the weather in {c}?",
                "What's the weather like in {c}?",
                "Tell me the weather in {c}.",
                "Is it warm in {c}?",
                "Weather in {c}?",
                "What is the weather in {c} today?",
                "What's the weather in {c}?",
            )
        )
        result = r.choice(
            (
                {"city": city, "temperature": degrees, "sky": sky},
                {"temperature": degrees, "condition": sky},
                {"temperature": degrees, "unit": "celsius", "conditions": sky},
            )
        )
        return (
            question.format(c=city),
            name,
            {key: city},
            result,
            f"It is {degrees} degrees and {sky} in {city}.",
        )

    return tool, ask


def clock(rng):
    name, key = rng.choice(("get_time", "current_time")), rng.choice(("city", "place"))
    tool = function(
        rng,
        name,
        "Get the local time in a city.",
        {key: parameter(rng, "string", "Name of the city")},
    )

    def ask(r):
        city, time = words.place_name(r), f"{r.randint(0, 23):02}:{r.randint(0, 59):02}"
        question = r.choice(
            ("What time is it in {c}?", "Tell me the time in {c}.", "How late is it in {c}?")
        )
        return (
            question.format(c=city),
            name,
            {key: city},
            {"time": time},
            f"It is {time} in {city}.",
        )

    return tool, ask


def calculator(rng):
    name = rng.choice(("calculate", "calculator"))
    tool = function(
        rng,
        name,
        "Compute an arithmetic expression.",
        {"expression": parameter(rng, "string", "What to compute")},
    )

    def ask(r):
        text = f"{r.randint(1000, 99999)} {r.choice('+-*')} {r.randint(100, 9999)}"
        a, op, b = text.split()
        value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[op]
        question = r.choice(
            (
                "What is {t}? Use the calculator.",
                "Use the calculator for {t}.",
                "Calculate {t} with the tool.",
            )
        )
        return (
            question.format(t=text),
            name,
            {"expression": text},
            {"result": value},
            f"The result is {value}.",
        )

    return tool, ask


def orders(rng):
    name, key = rng.choice(("get_order", "order_status", "lookup_order")), rng.choice(
        ("order_id", "id", "number")
    )
    tool = function(
        rng,
        name,
        "Look up the status of an order.",
        {key: parameter(rng, "string", "The order's number")},
    )

    def ask(r):
        number = "".join(r.choice("ABCDEFGHJK") for _ in range(2)) + "-" + words.digits(r, 4)
        status = r.choice(("shipped", "open", "paid", "cancelled", "delivered", "delayed"))
        question = r.choice(
            ("Where is order {n}?", "What is the status of order {n}?", "Look up order {n}.")
        )
        return (
            question.format(n=number),
            name,
            {key: number},
            {"status": status},
            f"Order {number} is {status}.",
        )

    return tool, ask


def prices(rng):
    name, key = rng.choice(("get_price", "price_of")), rng.choice(("item", "product"))
    tool = function(
        rng, name, "Get the price of an item.", {key: parameter(rng, "string", "The item")}
    )

    def ask(r):
        item, price = r.choice(words.NOUNS), r.randint(1, 999)
        question = r.choice(
            ("How much is the {i}?", "What does the {i} cost?", "What is the price of the {i}?")
        )
        return (
            question.format(i=item),
            name,
            {key: item},
            {"price": price},
            f"The {item} costs {price}.",
        )

    return tool, ask


def timer(rng):
    name, key = rng.choice(("set_timer", "start_timer")), "minutes"
    tool = function(
        rng,
        name,
        "Start a timer.",
        {key: parameter(rng, rng.choice(("integer", "number")), "How long")},
    )

    def ask(r):
        n = r.randint(2, 90)
        question = r.choice(
            (
                "Set a timer for {n} minutes.",
                "Start a timer of {n} minutes.",
                "Wake me in {n} minutes.",
            )
        )
        return (
            question.format(n=n),
            name,
            {key: n},
            {"ok": True},
            f"The timer is set for {n} minutes.",
        )

    return tool, ask


def messages_to(rng):
    name = rng.choice(("send_message", "send_text"))
    tool = function(
        rng,
        name,
        "Send a message to a person.",
        {
            "to": parameter(rng, "string", "Who gets it"),
            "text": parameter(rng, "string", "What to say"),
        },
    )

    def ask(r):
        who, text = r.choice(words.NAMES), r.choice(stories.FILLER[:1]).format(
            adj=r.choice(words.ADJECTIVES),
            job=r.choice(words.JOBS),
            verb=r.choice(words.VERBS),
            noun=r.choice(words.NOUNS),
            place=r.choice(stories.PLACES),
        )
        question = r.choice(
            ('Send {w} the message "{t}"', 'Tell {w}: "{t}"', 'Write to {w}: "{t}"')
        )
        return (
            question.format(w=who, t=text),
            name,
            {"to": who, "text": text},
            {"sent": True},
            f"I sent the message to {who}.",
        )

    return tool, ask


def made_up_tool(rng):
    """An unseen tool: its name and parameters are only in its description."""
    name = "_".join((rng.choice(("get", "run", "find", "make", "check", "do")), words.made_up(rng)))
    keys = words.distinct(
        rng, rng.randint(1, 3), lambda r: r.choice((r.choice(words.NOUNS), words.made_up(r)))
    )
    kinds = {key: rng.choice(("string", "integer")) for key in keys}
    tool = function(
        rng,
        name,
        f"Work with {rng.choice(words.NOUNS)} data.",
        {key: parameter(rng, kinds[key], f"The {key}") for key in keys},
    )

    def ask(r):
        arguments = {
            k: (
                r.randint(0, 999)
                if kinds[k] == "integer"
                else r.choice((words.any_word(r), words.code(r)))
            )
            for k in keys
        }
        told = " and ".join(f"{k} {v}" for k, v in arguments.items())
        value = r.choice((words.code(r), str(r.randint(1, 9999))))
        question = r.choice(
            ("Call {n} with {t}.", "Use {n} with {t}.", "Run {n} with {t}, please.")
        )
        return (
            question.format(n=name, t=told),
            name,
            arguments,
            {"value": value},
            f"{name} returned {value}.",
        )

    return tool, ask


# At most one tool of each kind; otherwise a question could match two of them.
TOOLS = (weather, clock, calculator, orders, prices, timer, messages_to, made_up_tool, made_up_tool)


def call_message(calls):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ],
    }


def result_message(rng, result):
    text = json.dumps(result, separators=(",", ":") if rng.random() < 0.3 else None)
    return {"role": "tool", "content": text}


def both(rng, first, second):
    """One question that needs two calls; a single sentence if both ask for a single value."""
    values = [list(a[2].values()) for a in (first, second)]
    if (
        all(len(v) == 1 for v in values)
        and first[0].count(str(values[0][0])) == 1
        and rng.random() < 0.6
    ):
        joined = str(values[0][0]) + " and " + str(values[1][0])
        return first[0].replace(str(values[0][0]), joined)
    return first[0] + " " + second[0]


def tool_talk(rng, n_turns, other=None):
    """Returns (messages, tools): turns that call a tool, sometimes two at once, and turns that need
    none."""
    makers, names = [], set()
    for maker in rng.sample(TOOLS, rng.randint(1, 4)):
        tool, ask = maker(rng)
        if tool["function"]["name"] not in names:
            names.add(tool["function"]["name"])
            makers.append((tool, ask))
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for _ in range(n_turns):
        if other and rng.random() < 0.2:
            question, answer = other(rng)
            messages += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
            continue
        ask = rng.choice(makers)[1]
        asked = [ask(rng)]
        question = asked[0][0]
        if rng.random() < 0.15:
            asked.append(ask(rng))
            question = both(rng, *asked)
        messages.append({"role": "user", "content": question})
        messages.append(call_message([(a[1], a[2]) for a in asked]))
        messages += [result_message(rng, a[3]) for a in asked]
        messages.append({"role": "assistant", "content": " ".join(a[4] for a in asked)})
    return messages, [tool for tool, _ in makers]


SYSTEMS = (
    "You are a helpful assistant.",
    "You are the sluice demo model.",
    "Answer briefly.",
    "Be polite and short.",
    "You are a careful assistant. Answer only what is asked.",
    "Help the user.",
    "You are a test assistant.",
    "You are a concise assistant.",
)
