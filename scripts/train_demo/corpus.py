# SPDX-License-Identifier: Apache-2.0
"""Assembles tasks into training documents and the held-out cases of the evaluation.

A document is either {"messages": ..., "tools": ...} or {"text": ...} (plain text without a
template). Training draws document k of shard s from the seed "train s"; held-out case i of a task
comes from the seed "held task i".
"""

import random

import contexts
import stories
import toolbox
import turns
import words

# Relative frequency of each kind of turn where any kind is allowed.
TURNS = (
    (turns.arithmetic, 30),
    (turns.steps, 4),
    (turns.word_problem, 5),
    (turns.larger, 2),
    (turns.copy, 12),
    (turns.copy_unicode, 7),
    (turns.repeat_word, 2),
    (turns.count, 2),
    (turns.unknown, 4),
    (turns.reverse, 8),
    (turns.nth, 4),
    (turns.sort, 3),
    (turns.extract, 10),
    (turns.sluice, 7),
    (turns.small_talk, 3),
    (turns.capital, 3),
    (turns.open_story, 1),
)
TURN_KINDS, TURN_WEIGHTS = zip(*TURNS)


def any_turn(rng, held=False):
    return rng.choices(TURN_KINDS, TURN_WEIGHTS)[0](rng, held)


def pair(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def with_system(rng, messages):
    if rng.random() < 0.3:
        return [{"role": "system", "content": rng.choice(toolbox.SYSTEMS)}] + messages
    return messages


# ---- training documents ----


def drill(rng, max_tokens):
    """Several questions of one kind, or of all kinds, one after the other."""
    n = rng.randint(1, max(1, min(16, max_tokens // 60)))
    kind = rng.choices(TURN_KINDS, TURN_WEIGHTS)[0] if rng.random() < 0.4 else any_turn
    messages = []
    for _ in range(n):
        messages += pair(*kind(rng, False))
    return {"messages": with_system(rng, messages), "tools": None}


def sums(rng, max_tokens):
    """Only arithmetic, many times: it needs the most practice of all tasks."""
    kinds = rng.choices(
        (turns.arithmetic, turns.steps, turns.word_problem),
        (8, 1, 1),
        k=rng.randint(4, max(4, min(24, max_tokens // 50))),
    )
    return {"messages": [m for kind in kinds for m in pair(*kind(rng, False))], "tools": None}


def single(rng, _max_tokens):
    return {"messages": with_system(rng, pair(*any_turn(rng))), "tools": None}


def lookup(rng, max_tokens):
    low, high = 40, max_tokens - 300
    n_tokens = int(low * (high / low) ** rng.random())
    messages = contexts.lookup(rng, n_tokens, rng.randint(1, 6 + n_tokens // 100))
    if rng.random() < 0.2:
        messages += pair(*any_turn(rng))
    return {"messages": messages, "tools": None}


def memory(rng, _max_tokens):
    between = [any_turn(rng) for _ in range(rng.choice((0, 0, 1, 2)))]
    return {"messages": with_system(rng, contexts.memory(rng, between)), "tools": None}


def tools(rng, max_tokens):
    messages, offered = toolbox.tool_talk(
        rng, rng.randint(1, 4 if max_tokens > 600 else 1), any_turn
    )
    return {"messages": messages, "tools": offered}


def story(rng, _max_tokens):
    return {"messages": with_system(rng, pair(*turns.story(rng, False))), "tools": None}


def long_copy(rng, max_tokens):
    kind = turns.copy_long if max_tokens > 600 else turns.copy
    return {"messages": pair(*kind(rng, False)), "tools": None}


def plain(rng, max_tokens):
    """Text without a template: what /v1/completions continues."""
    kind = rng.randrange(6)
    n = rng.randint(2, max(3, min(30, max_tokens // 30)))
    if kind == 0:
        text = stories.story(rng)
    elif kind == 1:
        lines = []
        for _ in range(n):
            op, a, b = turns.draw(rng, False, turns.sum_or_difference, lambda v: v)
            lines.append(f"{a} {op} {b} = {turns.compute(op, a, b)}")
        text = "\n".join(lines)
    elif kind == 2:
        start, step = rng.randint(0, 500), rng.choice((1, 1, 1, 2, 3, 5, 10))
        text = ", ".join(str(start + step * i) for i in range(n))
    elif kind == 3:
        text = "\n".join(
            f"Question: {q}\nAnswer: {a}\n"
            for q, a in (any_turn(rng) for _ in range(max(1, n // 3)))
        )
    elif kind == 4:
        # The same words repeated: after the first round everything is predictable.
        text = ", ".join((words.distinct(rng, n, words.code)) * rng.randint(2, 3))
    else:
        told, found = contexts.context(rng, min(max_tokens // 2, 20 * n))
        asked = [rng.choice(found) for _ in range(3)]
        text = (
            told + "\n\n" + "\n".join(f"Q: {question}\nA: {value}" for _, question, value in asked)
        )
    return {"text": text}


KINDS = (
    (drill, 30),
    (sums, 18),
    (single, 20),
    (lookup, 24),
    (memory, 4),
    (tools, 12),
    (story, 4),
    (long_copy, 4),
    (plain, 10),
)


def document(rng, max_tokens):
    makers, weights = zip(*KINDS)
    return rng.choices(makers, weights)[0](rng, max_tokens)


# ---- held-out cases ----

LONG_LOOKUP = (2000, 3400)


def one_turn(make):
    def case(rng):
        question, answer = make(rng, True)
        return {
            "messages": with_system(rng, [{"role": "user", "content": question}]),
            "answer": answer,
        }

    return case


def lookup_case(low, high):
    def case(rng):
        messages = contexts.lookup(rng, rng.randint(low, high), rng.randint(1, 3))
        return {"messages": messages[:-1], "answer": messages[-1]["content"]}

    return case


def memory_case(rng):
    messages = contexts.memory(rng, [any_turn(rng, True) for _ in range(rng.choice((0, 1)))])
    return {"messages": messages[:-1], "answer": messages[-1]["content"]}


def tool_case(stop_at):
    """stop_at: which assistant message of the last turn is asked for: the call (-1 from its result) or the answer."""

    def case(rng):
        messages, offered = toolbox.tool_talk(rng, rng.randint(1, 2))
        at = max(
            i
            for i, m in enumerate(messages)
            if m["role"] == "assistant" and bool(m.get("tool_calls")) == stop_at
        )
        last = messages[at]
        answer = [c["function"] for c in last["tool_calls"]] if stop_at else last["content"]
        return {"messages": messages[:at], "tools": offered, "answer": answer}

    return case


def story_case(rng):
    question, _ = turns.story(rng, True)
    hero, thing = (
        question.split("about ")[-1]
        .split("with ")[-1]
        .rstrip(".")
        .replace(", please", "")
        .split(" and ")
    )
    return {
        "messages": [{"role": "user", "content": question}],
        "answer": [hero.split()[-1], thing.split()[-1]],
    }


# task: (how a case is made, how an answer is judged, the most tokens an answer may take)
TASKS = {
    "arithmetic": (one_turn(turns.arithmetic), "exact", 16),
    "steps": (one_turn(turns.steps), "exact", 96),
    "word problem": (one_turn(turns.word_problem), "exact", 64),
    "copy": (one_turn(turns.copy), "exact", 512),
    "copy unicode": (one_turn(turns.copy_unicode), "exact", 256),
    "copy long": (one_turn(turns.copy_long), "exact", 1024),
    "reverse": (one_turn(turns.reverse), "exact", 128),
    "list": (
        one_turn(
            lambda r, h: r.choice((turns.nth, turns.sort, turns.count, turns.repeat_word))(r, h)
        ),
        "exact",
        128,
    ),
    "lookup": (lookup_case(60, 800), "exact", 48),
    "lookup long": (lookup_case(*LONG_LOOKUP), "exact", 48),
    "memory": (memory_case, "exact", 48),
    "json": (one_turn(turns.extract), "json", 192),
    "tool call": (tool_case(True), "calls", 256),
    "tool answer": (tool_case(False), "exact", 128),
    "sluice": (one_turn(turns.sluice), "exact", 160),
    "unknown": (one_turn(turns.unknown), "exact", 96),
    "story": (story_case, "story", 320),
}


def case(task, i):
    make, check, max_tokens = TASKS[task]
    made = make(random.Random(f"held {task} {i}"))
    return {"task": task, "check": check, "max_tokens": max_tokens, "tools": None, **made}


def cases(task, n):
    return [case(task, i) for i in range(n)]


def shard_rng(shard):
    return random.Random(f"train {shard}")
