# SPDX-License-Identifier: Apache-2.0
"""Judges whether an answer is right. Shared by the training script and scripts/eval_demo."""

import json

MAX_STORY_CHARS = 1500


def same_json(text, answer):
    try:
        return json.loads(text) == json.loads(answer)
    except ValueError:
        return False


def same_calls(calls, answer):
    """calls: [(name, arguments as JSON text)] in the order in which the model made them."""
    if len(calls) != len(answer):
        return False
    return all(
        name == want["name"] and same_json(text, json.dumps(want["arguments"]))
        for (name, text), want in zip(calls, answer)
    )


def is_story(text, wanted):
    """A story must mention the requested things and have an end."""
    return (
        all(word in text for word in wanted)
        and text.endswith("The end.")
        and len(text) < MAX_STORY_CHARS
    )


def calls_in(text):
    """The calls of a raw answer in the hermes form; None where one is malformed."""
    calls = []
    for part in text.split("<tool_call>")[1:]:
        try:
            call = json.loads(part.split("</tool_call>")[0])
            calls.append((call["name"], json.dumps(call["arguments"])))
        except (ValueError, KeyError, TypeError):
            return None
    return calls


def is_right(case, text, calls=None):
    """text: the answer's content; calls: its tool calls, as [(name, arguments text)], if a server separated them."""
    text = (text or "").strip()
    if case["check"] == "calls":
        found = calls if calls is not None else calls_in(text)
        return found is not None and same_calls(found, case["answer"])
    if calls:
        return False
    if case["check"] == "json":
        return same_json(text, case["answer"])
    if case["check"] == "story":
        return is_story(text, case["answer"])
    return text == case["answer"].strip()
