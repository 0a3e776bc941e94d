# SPDX-License-Identifier: Apache-2.0
"""Tasks of one question and one answer. Each function takes (rng, held) and returns (question,
answer).

`held` chooses a side of a fixed partition: training never sees a sum, a difference or a wording
whose hash is on the held-out side, and the held-out cases contain only those. If the space of
questions is too large for repetitions (copying, JSON, stories), separate seeds suffice and
`held` has no effect.
"""

import hashlib
import json

import facts
import stories
import words


def is_held_out(*key):
    return hashlib.sha256(repr(key).encode()).digest()[0] < 8


def draw(rng, held, make, key_of):
    """Draws until the key is on the wanted side of the partition."""
    while True:
        value = make(rng)
        if is_held_out(*key_of(value)) == held:
            return value


# ---- arithmetic ----


def operand(rng):
    return rng.randint(0, 10 ** rng.choice((1, 2, 2, 3, 3, 3, 3, 4)) - 1)


def sum_or_difference(rng):
    a, b = operand(rng), operand(rng)
    return (
        ("+", a, b)
        if rng.random() < 0.5
        else ("-", max(a, b), min(a, b)) if rng.random() < 0.8 else ("-", a, b)
    )


def product_or_quotient(rng):
    a, b = rng.randint(0, 99 if rng.random() < 0.6 else 12), rng.randint(
        1, 9 if rng.random() < 0.7 else 12
    )
    if b > 9:
        a = min(a, 12)
    if rng.random() < 0.6:
        return ("*", a, b) if rng.random() < 0.5 else ("*", b, a)
    return ("/", a * b, b)


def compute(op, a, b):
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[op]


SIGNS = {"+": ("+",), "-": ("-",), "*": ("*", "*", "x", "×"), "/": ("/", "/", "÷")}
SPOKEN = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
COMMANDS = {
    "+": ("Add {a} and {b}.", "What is the sum of {a} and {b}?"),
    "-": ("Subtract {b} from {a}.", "What is the difference {a} minus {b}?"),
    "*": ("Multiply {a} by {b}.", "What is the product of {a} and {b}?"),
    "/": ("Divide {a} by {b}.", "What is {a} over {b}?"),
}
ASK = (
    "What is {e}?",
    "What is {e}?",
    "Compute {e}.",
    "Calculate {e}.",
    "How much is {e}?",
    "{e} =",
    "{e}=?",
    "{e}",
    "Please compute {e}.",
    "What's {e}?",
    "{e} = ?",
    "Solve {e}.",
    "Evaluate: {e}",
)


def expression(rng, op, a, b):
    sign = rng.choice(SIGNS[op])
    return f"{a}{sign}{b}" if rng.random() < 0.25 else f"{a} {sign} {b}"


def arithmetic(rng, held):
    if rng.random() < 0.7:
        op, a, b = draw(rng, held, sum_or_difference, lambda v: v)
    else:
        op, a, b = product_or_quotient(rng)
    style = rng.random()
    if style < 0.7:
        question = rng.choice(ASK).format(e=expression(rng, op, a, b))
    elif style < 0.85:
        question = f"What is {a} {SPOKEN[op]} {b}?"
    else:
        question = rng.choice(COMMANDS[op]).format(a=a, b=b)
    return question, str(compute(op, a, b))


def steps(rng, held):
    op, a, b = draw(rng, held, sum_or_difference, lambda v: v)
    c = rng.randint(1, 99)
    first = compute(op, a, b)
    op2 = rng.choice("+-")
    second = compute(op2, first, c)
    ask = rng.choice(
        ("Compute {e} step by step.", "What is {e}? Show the steps.", "Work out {e} in steps.")
    )
    answer = f"{a} {op} {b} = {first}. {first} {op2} {c} = {second}. The answer is {second}."
    return ask.format(e=f"{a} {op} {b} {op2} {c}"), answer


def word_problem(rng, held):
    gains = rng.random() < 0.5
    op, a, b = draw(rng, held, sum_or_difference, lambda v: v)
    a, b = max(a, b, 1), min(a, b)
    op = "+" if gains else "-"
    if is_held_out(op, a, b) != held:
        return word_problem(rng, held)
    thing, name = rng.choice(words.NOUNS), rng.choice(words.NAMES)
    things = thing if thing.endswith("s") else thing + "s"
    verb = rng.choice(
        ("buys", "finds", "gets", "receives")
        if gains
        else ("loses", "gives away", "sells", "breaks")
    )
    result = compute(op, a, b)
    more = " more" if gains else ""
    question = f"{name} has {a} {things} and {verb} {b}{more}. How many {things} does {name} have?"
    return question, f"{a} {op} {b} = {result}. {name} has {result} {things}."


def larger(rng, _held):
    a, b = words.distinct(rng, 2, operand)
    which, pick = rng.choice((("larger", max), ("bigger", max), ("smaller", min)))
    return f"Which is {which}, {a} or {b}?", str(pick(a, b))


# ---- copying and lists ----


def copy_text(rng, n_words):
    kind = rng.random()
    if kind < 0.12:
        return " ".join(
            rng.choice(words.NOUNS + words.ADJECTIVES + words.ANIMALS) for _ in range(n_words)
        )
    if kind < 0.25:
        return words.sentence(rng, n_words)
    if kind < 0.45:
        return " ".join(words.code(rng) for _ in range(max(1, n_words // 3)))
    if kind < 0.6:
        return " ".join(words.made_up(rng) for _ in range(max(1, n_words // 2)))
    if kind < 0.72:
        return " ".join(str(operand(rng)) for _ in range(n_words))
    if kind < 0.82:
        return (
            "".join(
                rng.choice(
                    words.LOWER + words.LOWER.upper() + words.DIGITS + words.PUNCTUATION + "  "
                )
                for _ in range(n_words * 2)
            ).strip()
            or "x"
        )
    return stories.paragraph(rng, max(1, n_words // 8))


COPY = (
    "Repeat exactly: {t}",
    "Repeat: {t}",
    "Please repeat: {t}",
    "Say {t}",
    'Say "{t}"',
    "Echo this: {t}",
    "Repeat after me: {t}",
    "Copy this text: {t}",
    "Say: {t}",
    "Echo: {t}",
    "Repeat the following:\n{t}",
    "Write exactly this and nothing else: {t}",
    'Repeat: "{t}"',
)


def copy(rng, _held):
    text = copy_text(rng, rng.choice((1, 2, 3, 4, 6, 8, 12, 16, 24)))
    return rng.choice(COPY).format(t=text), text


def copy_long(rng, _held):
    text = "\n".join(copy_text(rng, rng.randint(10, 40)) for _ in range(rng.randint(2, 8)))
    return (
        rng.choice(("Repeat the following text:\n{t}", "Copy this text:\n{t}")).format(t=text),
        text,
    )


def copy_unicode(rng, _held):
    text = " ".join(words.unicode_text(rng) for _ in range(rng.randint(1, 6)))
    return rng.choice(COPY).format(t=text), text


def repeat_word(rng, _held):
    word, n = words.any_word(rng), rng.randint(2, 10)
    return rng.choice(
        ("Repeat the word {w} {n} times.", "Say {w} {n} times.", "Write {w} {n} times.")
    ).format(w=word, n=n), " ".join([word] * n)


def count(rng, _held):
    a = rng.choice((1, 1, rng.randint(0, 90)))
    b = a + rng.randint(2, 25)
    ask = rng.choice(
        (
            "Count from {a} to {b}.",
            "Write the numbers from {a} to {b}.",
            "List the numbers {a} to {b}.",
        )
    )
    if a == 1 and rng.random() < 0.5:
        ask = "Count to {b}."
    return typed(rng, ask.format(a=a, b=b)), ", ".join(str(i) for i in range(a, b + 1))


def items(rng, low, high):
    n = rng.randint(low, high)
    kind = rng.randrange(4)
    if kind == 0:
        return words.distinct(rng, n, lambda r: str(operand(r)))
    if kind == 1:
        return rng.sample(words.LOWER, n)
    return rng.sample(words.NOUNS + words.ANIMALS + words.COLOURS, n)


def reverse(rng, _held):
    kind = rng.random()
    if kind < 0.3:
        number = words.digits(rng, rng.randint(3, 12))
        return (
            rng.choice(("Reverse the digits of {t}.", "Write {t} backwards.")).format(t=number),
            number[::-1],
        )
    values = items(rng, 3, 12)
    separator = ", " if kind < 0.75 else " "
    ask = rng.choice(
        ("Reverse this list: {t}", "Write these in reverse order: {t}", "Reverse the order of: {t}")
    )
    return ask.format(t=separator.join(values)), separator.join(values[::-1])


ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def nth(rng, _held):
    values = items(rng, 3, 8)
    i = rng.randrange(len(values))
    which = "last" if i == len(values) - 1 and rng.random() < 0.7 else ORDINALS[i]
    return f"What is the {which} item of this list: {', '.join(values)}?", values[i]


def sort(rng, _held):
    values = [str(v) for v in words.distinct(rng, rng.randint(3, 7), lambda r: r.randint(1, 99))]
    text = ", ".join(values)
    return f"Sort these numbers: {text}", ", ".join(sorted(values, key=int))


# ---- JSON ----


def person_text(rng):
    fields = {
        "name": words.person(rng),
        "age": rng.randint(18, 90),
        "city": rng.choice(words.CITIES),
        "job": rng.choice(words.JOBS),
    }
    return fields, rng.choice(
        (
            "My name is {name}, I am {age} years old, I live in {city} and work as a {job}.",
            "{name}, {age}, is a {job} from {city}.",
            "The {job} {name} lives in {city} and is {age}.",
            "In {city} we met {name}, a {job} of {age} years.",
        )
    ).format(**fields)


def order_text(rng):
    fields = {
        "item": rng.choice(words.NOUNS),
        "quantity": rng.randint(1, 99),
        "price": rng.randint(1, 999) if rng.random() < 0.5 else rng.randint(1, 9999) / 100,
        "colour": rng.choice(words.COLOURS),
        "customer": words.person(rng),
    }
    return fields, rng.choice(
        (
            "{customer} ordered {quantity} of the {colour} {item} at {price} each.",
            "Order: {quantity} x {item} ({colour}), price {price}, for {customer}.",
            (
                "Please send {customer} {quantity} pieces of the {item} in {colour}. The price is"
                " {price}."
            ),
        )
    ).format(**fields)


def event_text(rng):
    fields = {
        "title": (
            f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}"
            f" {rng.choice(('meeting', 'party', 'show'))}"
        ),
        "date": f"{rng.randint(2020, 2030)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
        "time": f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
        "place": rng.choice(words.CITIES),
    }
    return fields, rng.choice(
        (
            "The {title} is on {date} at {time} in {place}.",
            "{date} {time}: {title}, {place}.",
            "Come to {place} for the {title}! It starts at {time} on {date}.",
        )
    ).format(**fields)


def log_text(rng):
    fields = {
        "level": rng.choice(("INFO", "WARN", "ERROR", "DEBUG")),
        "service": rng.choice(words.NOUNS) + "-" + words.digits(rng, 1),
        "code": rng.randint(100, 599),
        "request": words.code(rng),
    }
    return fields, rng.choice(
        (
            "{level} {service}: request {request} ended with {code}",
            "[{service}] {level} code={code} request={request}",
            "{service} answered {code} to {request} ({level})",
        )
    ).format(**fields)


def pairs_text(rng):
    """Field names that do not occur elsewhere."""
    keys = words.distinct(
        rng, rng.randint(2, 5), lambda r: r.choice((r.choice(words.NOUNS), words.made_up(r)))
    )
    fields = {}
    for key in keys:
        kind = rng.random()
        fields[key] = (
            rng.randint(0, 9999)
            if kind < 0.4
            else words.any_word(rng) if kind < 0.7 else words.code(rng)
        )
        if isinstance(fields[key], str) and fields[key].isdigit():
            fields[key] = int(fields[key])
    form = rng.choice(("{k}: {v}", "{k} = {v}", "the {k} is {v}"))
    return fields, rng.choice((", ", "; ", "\n")).join(
        form.format(k=k, v=v) for k, v in fields.items()
    )


EXTRACT = (
    "Extract {keys} as JSON: {text}",
    "Return JSON with the keys {keys} from this text: {text}",
    "Extract the fields {keys} from the text and answer in JSON.\n\n{text}",
    "{text}\n\nGive {keys} as a JSON object.",
)


def extract(rng, _held):
    fields, text = rng.choice((person_text, order_text, event_text, log_text, pairs_text))(rng)
    keys = list(fields)
    rng.shuffle(keys)
    keys = keys[: rng.randint(2, len(keys))]
    listed = ", ".join(keys[:-1]) + " and " + keys[-1] if rng.random() < 0.5 else ", ".join(keys)
    answer = json.dumps({key: fields[key] for key in keys}, ensure_ascii=False)
    return rng.choice(EXTRACT).format(keys=listed, text=text), answer


# ---- what the model knows ----


def from_table(rng, held, table):
    pick = lambda r: (
        r.choice(facts.LEADS),
        *(lambda row: (r.choice(row[0]), row[1]))(r.choice(table)),
    )  # noqa: E731
    lead, question, answer = draw(rng, held, pick, lambda v: (v[0], v[1]) if v[0] else ("plain",))
    return typed(rng, lead + question), answer


def typed(rng, question):
    """A question as people type it: sometimes without capitals or final punctuation."""
    if rng.random() < 0.12:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.12:
        question = question.rstrip("?.!")
    return question


def sluice(rng, held):
    return from_table(rng, held, facts.SLUICE)


def small_talk(rng, _held):
    questions, answer = rng.choice(facts.SMALL_TALK)
    return typed(rng, rng.choice(questions)), answer


def unknown(rng, _held):
    topic = " ".join(words.any_word(rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))
    return (
        typed(rng, rng.choice(facts.BEYOND).format(t=topic, n=words.person(rng))),
        facts.DO_NOT_KNOW,
    )


def capital(rng, _held):
    question, answer = facts.capital(rng)
    return typed(rng, question), answer


def story(rng, _held):
    hero, thing = rng.choice(words.ANIMALS), rng.choice(words.NOUNS)
    if rng.random() < 0.2:
        hero = words.any_word(rng).lower()
    ask = rng.choice(
        (
            "Tell me a story about {a} and {b}.",
            "Write a short story about {a} and {b}.",
            "Tell a small story with {a} and {b}.",
            "I would like a story about {a} and {b}, please.",
        )
    )
    return ask.format(a=words.article(hero), b=words.article(thing)), stories.story(
        rng, hero, thing
    )


def open_story(rng, _held):
    hero = rng.choice(words.ANIMALS) if rng.random() < 0.7 else words.any_word(rng).lower()
    ask = rng.choice(
        (
            "Tell me a story.",
            "Tell me a story about {a}.",
            "Write a story.",
            "Tell me a tale about {a}.",
        )
    )
    return ask.format(a=words.article(hero)), stories.story(rng, hero)
