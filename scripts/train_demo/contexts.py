# SPDX-License-Identifier: Apache-2.0
"""Tasks that need something said earlier: facts in a context, and things that the user said.

Each function returns a conversation as a list of chat messages; every assistant message in it is a
right answer.
"""

import stories
import words


def rough_tokens(text):
    """Estimates the tokens of a line, slightly too high: digits and punctuation are single tokens,
    invented words take many."""
    letters = sum(c.isalpha() for c in text)
    spaces = text.count(" ")
    marks = len(text) - letters - spaces
    return marks + max(letters / 2.6, spaces + 1) + 1


# attribute: (how a fact is told, how it is asked, how a value is drawn)
ATTRIBUTES = {
    "code": (
        ("The code of {n} is {v}.", "{n} has the code {v}."),
        ("What is the code of {n}?",),
        lambda r: words.digits(r, 4),
    ),
    "colour": (
        ("The favourite colour of {n} is {v}.", "{n} likes the colour {v}."),
        ("What is the favourite colour of {n}?", "Which colour does {n} like?"),
        lambda r: r.choice(words.COLOURS),
    ),
    "city": (
        ("{n} lives in {v}.", "The home of {n} is {v}."),
        ("Where does {n} live?", "In which city does {n} live?"),
        lambda r: r.choice(words.CITIES),
    ),
    "age": (
        ("{n} is {v} years old.", "The age of {n} is {v}."),
        ("How old is {n}?", "What is the age of {n}?"),
        lambda r: str(r.randint(1, 99)),
    ),
    "job": (
        ("{n} works as a {v}.", "The job of {n} is {v}."),
        ("What is the job of {n}?", "What does {n} work as?"),
        lambda r: r.choice(words.JOBS),
    ),
    "pet": (
        ("{n} has a pet {v}.", "The pet of {n} is a {v}."),
        ("Which pet does {n} have?", "What is the pet of {n}?"),
        lambda r: r.choice(words.PETS),
    ),
}


def people_facts(rng, n_tokens):
    """Facts about people: [(told, question, answer)], no (person, attribute) twice."""
    kinds = rng.sample(sorted(ATTRIBUTES), rng.randint(1, len(ATTRIBUTES)))
    told, found = {}, 0
    while found < n_tokens:
        name, kind = words.person(rng), rng.choice(kinds)
        if (name, kind) in told:
            # A long context may use up the common names.
            name = words.made_up(rng, 3).capitalize()
        tell, ask, draw = ATTRIBUTES[kind]
        value = draw(rng)
        line = rng.choice(tell).format(n=name, v=value)
        told[name, kind] = (line, rng.choice(ask).format(n=name), value)
        found += rough_tokens(line)
    return list(told.values())


def pair_facts(rng, n_tokens):
    """Lines of keys and values."""
    form = rng.choice(("{k}: {v}", "{k} = {v}", "{k} -> {v}", "{k} is {v}"))
    ask = rng.choice(
        ("What is the value of {k}?", "Look up {k}.", "What is {k}?", "Which value belongs to {k}?")
    )
    make_key = rng.choice(
        (words.code, words.made_up, lambda r: r.choice(words.NOUNS) + "-" + words.digits(r, 3))
    )
    make_value = rng.choice((lambda r: words.digits(r, 4), words.code, words.any_word))
    told, found = {}, 0
    while found < n_tokens:
        key, value = make_key(rng), make_value(rng)
        line = form.format(k=key, v=value)
        if key not in told:
            told[key] = (line, ask.format(k=key), value)
            found += rough_tokens(line)
    return list(told.values())


def needles(rng, n_tokens):
    """A few facts hidden in running text: (text, [(told, question, answer)])."""
    places = rng.sample(words.NOUNS, rng.randint(1, 6))
    kind = rng.choice(("password", "secret number", "magic word"))
    hidden = []
    for place in places:
        value = (
            rng.choice(words.ANIMALS)
            if kind == "magic word"
            else words.digits(rng, rng.randint(3, 6))
        )
        told = f"The {kind} of the {place} is {value}."
        hidden.append((told, f"What is the {kind} of the {place}?", value))
    lines, found = [told for told, _, _ in hidden], 0
    while found < n_tokens:
        lines.append(stories.filler(rng))
        found += rough_tokens(lines[-1])
    rng.shuffle(lines)
    return " ".join(lines), hidden


def context(rng, n_tokens):
    """Returns (context text, [(told, question, answer)])."""
    kind = rng.random()
    if kind < 0.25:
        return needles(rng, n_tokens)
    found = people_facts(rng, n_tokens) if kind < 0.65 else pair_facts(rng, n_tokens)
    separator = "\n" if kind >= 0.65 or rng.random() < 0.5 else " "
    return separator.join(told for told, _, _ in found), found


HEADS = ("Here are some facts.", "Read this:", "Remember the following.", "Facts:", "Notes:", "")


def lookup(rng, n_tokens, n_questions):
    text, found = context(rng, n_tokens)
    asked = [rng.choice(found) for _ in range(n_questions)]
    head = rng.choice(HEADS)
    text = f"{head}\n{text}" if head else text
    place = rng.random()
    if place < 0.35:
        messages = [{"role": "system", "content": text}]
    elif place < 0.5:
        messages = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "I have read it."},
        ]
    else:
        messages = [
            {"role": "user", "content": f"{text}\n\n{asked[0][1]}"},
            {"role": "assistant", "content": asked.pop(0)[2]},
        ]
    for _, question, answer in asked:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    return messages


# ---- what the user told ----

MEMORIES = {
    "name": (
        "My name is {v}.",
        "Nice to meet you, {v}.",
        "What is my name?",
        "Your name is {v}.",
        words.person,
    ),
    "colour": (
        "My favourite colour is {v}.",
        "I will remember that you like {v}.",
        "What is my favourite colour?",
        "Your favourite colour is {v}.",
        lambda r: r.choice(words.COLOURS),
    ),
    "city": (
        "I live in {v}.",
        "{v} is a nice place.",
        "Where do I live?",
        "You live in {v}.",
        lambda r: r.choice(words.CITIES),
    ),
    "number": (
        "My lucky number is {v}.",
        "{v} is a good number.",
        "What is my lucky number?",
        "Your lucky number is {v}.",
        lambda r: str(r.randint(1, 999)),
    ),
    "pet": (
        "My pet is a {v}.",
        "Say hello to your {v}.",
        "What is my pet?",
        "Your pet is a {v}.",
        lambda r: r.choice(words.PETS),
    ),
    "job": (
        "I work as a {v}.",
        "Being a {v} must be interesting.",
        "What is my job?",
        "You work as a {v}.",
        lambda r: r.choice(words.JOBS),
    ),
}


def memory(rng, between=None):
    """The user mentions two or three facts, perhaps changes the subject, and asks for one or all
    of them."""
    kinds = rng.sample(sorted(MEMORIES), rng.randint(1, 3))
    messages, questions = [], []
    for kind in kinds:
        tell, reply, ask, answer, draw = MEMORIES[kind]
        value = draw(rng)
        messages += [
            {"role": "user", "content": tell.format(v=value)},
            {"role": "assistant", "content": reply.format(v=value)},
        ]
        questions.append((ask, answer.format(v=value)))
    for question, answer in between or []:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    rng.shuffle(questions)
    for question, answer in questions:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    return messages
