# SPDX-License-Identifier: Apache-2.0
"""The format that a held-out case's answer must have: as members of a request that enforce it, and as a check that
shares no code with the server's."""

import json
import re

NUMBER, WORD = r"[0-9]{1,8}", r"[A-Za-z]{1,30}(-[0-9]{1,8})?"
KINDS = {str: "string", int: "integer", float: "number"}
OF_TYPE = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
}


def schema_of(answer):
    fields = json.loads(answer)
    return {
        "type": "object",
        "properties": {key: {"type": KINDS[type(value)]} for key, value in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def pattern_of(answer):
    return NUMBER if answer.isdigit() else WORD


def has_form(case):
    return case["check"] in ("json", "calls") or case["task"].startswith("lookup")


def members_of(case):
    """{} if any answer is allowed."""
    if case["check"] == "json":
        form = {"name": "answer", "strict": True, "schema": schema_of(case["answer"])}
        return {"response_format": {"type": "json_schema", "json_schema": form}}
    if case["check"] == "calls":
        tools = [dict(t, function=dict(t["function"], strict=True)) for t in case["tools"]]
        return {"tools": tools, "tool_choice": "required"}
    if has_form(case):
        return {"structured_outputs": {"regex": pattern_of(case["answer"])}}
    return {}


def fits_schema(text, schema):
    """Checks the kind of schema that cases have: an object of scalars."""
    try:
        fields = json.loads(text)
    except ValueError:
        return False
    known = schema["properties"]
    if not isinstance(fields, dict) or set(fields) - set(known) or set(schema["required"]) - set(fields):
        return False
    return all(OF_TYPE[known[k]["type"]](v) and v in known[k].get("enum", [v]) for k, v in fields.items())


def fits(case, text, calls):
    """calls: [(name, arguments as JSON text)]."""
    if case["check"] == "calls":
        offered = {t["function"]["name"]: t["function"]["parameters"] for t in case["tools"]}
        return bool(calls) and all(name in offered and fits_schema(text, offered[name]) for name, text in calls)
    if case["check"] == "json":
        return not calls and fits_schema(text, schema_of(case["answer"]))
    return not calls and (not has_form(case) or re.fullmatch(pattern_of(case["answer"]), text) is not None)
