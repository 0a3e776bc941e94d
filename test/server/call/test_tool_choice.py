# SPDX-License-Identifier: Apache-2.0
"""Calls that are forced or must match a schema: whatever the model finds likely, a call names an allowed tool, has
arguments that match its schema, and is written in the model's own format; text before it is not constrained."""

import json
import os

import pytest
from api import DEMO, Server, fold

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"], "additionalProperties": False}
ZONE = {"type": "object", "properties": {"zone": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["zone"]}


def tool(name, parameters, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [tool("get", CITY), tool("get_time", ZONE), {"type": "function", "function": {"name": "ping"}}]


@pytest.fixture(scope="module")
def server():
    with Server(real=True, served_model_name="demo", max_model_len=2048) as s:
        yield s


def good(name, arguments):
    a = json.loads(arguments)
    if name == "get":
        return list(a) == ["city", "unit"] and len(a["city"]) <= 8 and a["unit"] in ("C", "F")
    if name == "get_time":
        return list(a) == ["zone"] and 10 <= a["zone"] <= 99
    return name == "ping" and a == {}


def calls_of(r):
    assert r.status == 200, r.body
    (c,) = r.json()["choices"]
    return [(t["function"]["name"], t["function"]["arguments"]) for t in c["message"].get("tool_calls", [])], c


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_required(server, seed, temperature):
    body = {"tools": TOOLS, "tool_choice": "required", "seed": seed, "temperature": temperature, "max_tokens": 400}
    calls, c = calls_of(server.chat("Hello", **body))
    assert c["finish_reason"] == "length" or calls
    assert all(good(*call) for call in calls[:-1] + (calls[-1:] if c["finish_reason"] == "tool_calls" else []))
    assert not c["message"]["content"]
    one, c = calls_of(server.chat("Hello", parallel_tool_calls=False, **body))
    assert len(one) == 1 and good(*one[0]) and c["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("name", ["get", "get_time", "ping"])
def test_named_and_allowed(server, name):
    body = {"tools": TOOLS, "temperature": 1.5, "max_tokens": 200}
    for seed in range(3):
        calls, c = calls_of(server.chat("Hello", tool_choice={"type": "function", "function": {"name": name}}, seed=seed, **body))
        assert [n for n, _ in calls] == [name] and good(*calls[0]) and c["finish_reason"] == "stop"
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": name}}]}}
        calls, c = calls_of(server.chat("Hello", tool_choice=allowed, parallel_tool_calls=False, seed=seed, **body))
        assert [n for n, _ in calls] == [name] and good(*calls[0]) and c["finish_reason"] == "tool_calls"


def test_streams_equal_whole_answers(server):
    body = {"tools": TOOLS, "tool_choice": "required", "seed": 3, "temperature": 1, "max_tokens": 200, "parallel_tool_calls": False}
    whole, _ = calls_of(server.chat("Hello", **body))
    (pieces,) = fold(server.chat("Hello", stream=True, **body).chunks())
    assert [(t["function"]["name"], t["function"]["arguments"]) for t in pieces["message"]["tool_calls"]] == whole


def test_strict_tools_do_not_constrain_text(server):
    """A strict tool does not change the text of an answer; its calls match the schema."""
    strict = [tool("get", CITY, strict=True)]
    for text in ("What is 12 + 30?", "Say the word apple."):
        free = server.chat(text, temperature=0, max_tokens=20, tools=[tool("get", CITY)]).json()["choices"][0]
        bound = server.chat(text, temperature=0, max_tokens=20, tools=strict).json()["choices"][0]
        if not free["message"].get("tool_calls"):
            assert bound["message"]["content"] == free["message"]["content"]
    bias = {}
    with open(os.path.join(DEMO, "tokenizer.json")) as f:
        for t in json.load(f)["added_tokens"]:
            bias.update({str(t["id"]): 100} if t["content"] == "<tool_call>" else {})
    for seed in range(4):  # a call begins at once, although the model would not make one
        calls, c = calls_of(server.chat("Hello", tools=strict, logit_bias=bias, seed=seed, temperature=1.5, max_tokens=200,
                                        parallel_tool_calls=False))
        assert len(calls) == 1 and good(*calls[0]), c


def test_a_call_that_is_cut_off_is_no_content(server):
    (head,) = server.post("/tokenize", {"prompt": "name", "add_special_tokens": False}).json()["tokens"]
    for more, finish in [({"max_tokens": n}, "length") for n in (1, 3, 8)] + [({"stop": "name"}, "stop"), ({"stop_token_ids": [head]}, "stop")]:
        body = {"tools": TOOLS, "tool_choice": "required", **more}
        calls, c = calls_of(server.chat("Hello", **body))
        assert not calls and not c["message"]["content"] and c["finish_reason"] == finish
        (streamed,) = fold(server.chat("Hello", stream=True, **body).chunks())
        assert not streamed["message"]["content"] and streamed["finish"] == finish


def test_a_name_that_cannot_be_written_is_refused(server):
    tool = {"type": "function", "function": {"name": 'a"b'}}
    for more in ({"tool_choice": "required"}, {"tools": [{"type": "function", "function": {**tool["function"], "strict": True}}]}):
        r = server.chat("Hello", **{"tools": [tool], **more})
        assert (r.status, r.error["param"]) == (400, "tools[0].function.name"), r.body
    assert server.chat("Hello", tools=[tool], max_tokens=1).status == 200


@pytest.mark.parametrize("parser, name, path", [("pythonic", "$x", "#/properties/$x"), ("qwen3_coder", "a>b", "#/properties/a>b"),
                                                ("minimax_m3", "a>b", "#/properties/o/properties/a>b")])
def test_parameters_that_cannot_be_written_are_refused(parser, name, path):
    parameters = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    if "/o/" in path:
        parameters = {"type": "object", "properties": {"o": parameters}}
    one, other = tool("get", parameters), tool("get_time", ZONE)
    with Server(real=True, max_model_len=1024, tool_call_parser=parser, enable_auto_tool_choice=True) as s:
        strict = tool("get", parameters, strict=True)
        for body in ({"tools": [other, one], "tool_choice": "required"}, {"tools": [other, strict]}):
            r = s.chat("Hello", **body)
            assert (r.status, r.error["code"], r.error["param"]) == (400, "invalid_function_parameters", "tools[1].function.parameters"), r.body
            assert path in r.error["message"] and "cannot be the name of a parameter" in r.error["message"], r.body
        # nothing forces this call, so it may be impossible
        for body in ({"tools": [one]}, {"tools": [one, tool("get_time", ZONE, strict=True)]},
                     {"tools": [one, other], "tool_choice": {"type": "function", "function": {"name": "get_time"}}}):
            assert s.chat("Hello", max_tokens=40, **body).status == 200
        r = s.chat("Hello", tools=[tool("get", {"type": "object", "properties": {"x": {"type": "objekt"}}})], tool_choice="required")
        assert r.status == 400 and "#/properties/x: " in r.error["message"]


def test_a_format_beside_tools(server):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    strict = [{"type": "function", "function": {**t["function"], "strict": True}} for t in TOOLS]
    body = {"tools": strict, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
            "temperature": 1.5, "max_tokens": 300}
    for seed in range(6):
        calls, c = calls_of(server.chat("Hello", seed=seed, **body))
        if calls:
            assert all(good(*call) for call in calls) or c["finish_reason"] == "length"
        elif c["finish_reason"] == "stop":
            assert list(json.loads(c["message"]["content"])) == ["n"]
    calls, c = calls_of(server.chat("Hello", tool_choice="required", parallel_tool_calls=False, **body))
    assert len(calls) == 1 and not c["message"]["content"]
    calls, c = calls_of(server.chat("Hello", tool_choice="none", **body))
    assert not calls and list(json.loads(c["message"]["content"])) == ["n"]


CUSTOM = [{"type": "custom", "custom": {"name": "sql", "description": "Runs it.", "format": {"type": "grammar", "grammar": {
    "syntax": "lark", "definition": 'start: "SELECT \\"" WORD "\\"" ";"\nWORD: /[a-c]{2,4}/\n'}}}}]


def test_custom_tools(server):
    body = {"tools": CUSTOM, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200, "temperature": 1}
    for seed in range(3):
        (call,) = server.chat("Hello", seed=seed, **body).json()["choices"][0]["message"]["tool_calls"]
        assert call["type"] == "custom" and call["custom"]["name"] == "sql"
        assert call["custom"]["input"].startswith('SELECT "') and call["custom"]["input"].endswith('";')
        (pieces,) = fold(server.chat("Hello", seed=seed, stream=True, **body).chunks())
        (streamed,) = pieces["message"]["tool_calls"]
        assert streamed["custom"]["input"] == call["custom"]["input"]
    history = [{"role": "user", "content": "Hello"}, {"role": "assistant", "tool_calls": [call]},
               {"role": "tool", "tool_call_id": call["id"], "content": "3 rows"}]
    assert server.post("/v1/chat/completions", {"messages": history, "tools": CUSTOM, "max_tokens": 5}).status == 200


def test_responses(server):
    flat = [{"type": "function", **t["function"]} for t in TOOLS]
    body = {"input": "hello", "tools": flat, "max_output_tokens": 300, "temperature": 1}
    r = server.post("/v1/responses", {**body, "tool_choice": {"type": "function", "name": "get"}}).json()
    (item,) = r["output"]
    assert item["type"] == "function_call" and good(item["name"], item["arguments"])
    r = server.post("/v1/responses", {**body, "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [
        {"type": "function", "name": "get_time"}]}, "parallel_tool_calls": False}).json()
    assert [i["name"] for i in r["output"]] == ["get_time"]
    custom = [{"type": "custom", "name": "id", "format": {"type": "grammar", "syntax": "regex", "definition": "^[0-9]{4}$"}}]
    r = server.post("/v1/responses", {"input": "hello", "tools": custom, "tool_choice": {"type": "custom", "name": "id"},
                                      "max_output_tokens": 100})
    (item,) = r.json()["output"]
    assert item["type"] == "custom_tool_call" and item["input"].isdigit() and len(item["input"]) == 4
    events = [json.loads(e) for e in server.post("/v1/responses", {
        "input": "hello", "tools": custom, "tool_choice": "required", "parallel_tool_calls": False,
        "max_output_tokens": 100, "stream": True}).events() if e != "[DONE]"]
    (done,) = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == "".join(e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta")
    again = [{"role": "user", "content": "hello"}, item, {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}]
    assert server.post("/v1/responses", {"input": again, "tools": custom, "max_output_tokens": 5}).status == 200


def test_messages(server):
    tools = [{"name": t["function"]["name"], "input_schema": t["function"].get("parameters", {"type": "object", "properties": {}})}
             for t in TOOLS]
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 300, "tools": tools, "temperature": 1}
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_time"}):
        r = server.post("/v1/messages", {**body, "tool_choice": choice}).json()
        (block,) = r["content"]
        assert block["type"] == "tool_use" and good(block["name"], json.dumps(block["input"])), r
        assert r["stop_reason"] == "tool_use" and block["name"] == choice.get("name", block["name"])
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    del body["tools"]
    for where in ({"output_config": {"format": {"type": "json_schema", "schema": schema}}},
                  {"output_format": {"type": "json_schema", "schema": schema}}):
        (block,) = server.post("/v1/messages", {**body, **where}).json()["content"]
        assert list(json.loads(block["text"])) == ["ok"]


@pytest.mark.parametrize("body,param,code,says", [
    ({"tool_choice": "required"}, "tool_choice", "invalid_value", "only allowed"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice", "invalid_value", "'no'"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
     "tool_choice", "invalid_value", "allowed_tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice", "unsupported_value", "web_search"),
    ({"tools": [tool("f", {"type": "object", "properties": {"a": {"unevaluatedItems": False}}}, strict=True)]},
     "tools[0].function.parameters", "invalid_function_parameters", "#/properties/a"),
    ({"tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar": {
        "syntax": "lark", "definition": "start: x"}}}}]}, "tools[0].custom.format", "invalid_grammar", "x"),
    ({"tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "yaml"}}}]}, "tools[0].custom.format",
     "invalid_value", "lark"),
])
def test_refusals(server, body, param, code, says):
    r = server.chat("Hello", max_tokens=5, **body)
    assert (r.status, r.error["param"], r.error["code"]) == (400, param, code), r.body
    assert says in r.error["message"]


def test_an_unsupported_strict_schema_does_not_affect_other_tools(server):
    """A tool that is neither strict nor forced accepts any object."""
    odd = tool("f", {"type": "object", "properties": {"a": {"unevaluatedItems": False}}})
    assert server.chat("Hello", max_tokens=5, tools=[odd, tool("get", CITY, strict=True)]).status == 200


def test_after_reasoning():
    """A model that may reason first: the call follows the reasoning, which the prompt or the model opens."""
    with Server(real=True, max_model_len=2048, reasoning_parser="think", trust_request_chat_template=True) as s:
        with open(os.path.join(DEMO, "tokenizer.json")) as f:
            ids = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
        for template, bias in (("{{ messages[0].content }}\n<think>\n", {}), ("{{ messages[0].content }}\n", {"<think>": 100})):
            for close in (100, 12):
                weights = {str(ids[k]): v for k, v in {**bias, "</think>": close}.items()}
                calls, c = calls_of(s.chat("Hello", chat_template=template, tools=TOOLS, tool_choice="required", logit_bias=weights,
                                           parallel_tool_calls=False, temperature=1, seed=1, max_tokens=400))
                if c["finish_reason"] == "length":
                    continue
                assert len(calls) == 1 and good(*calls[0]) and not c["message"]["content"]
        r = s.chat("Hello", chat_template="{{ messages[0].content }}\n<think>\n\n</think>\n\n", tools=TOOLS, temperature=1,
                   tool_choice="required", parallel_tool_calls=False, logit_bias={str(ids["<think>"]): 100}, max_tokens=200)
        calls, c = calls_of(r)
        assert len(calls) == 1 and not c["message"].get("reasoning")  # the reasoning was closed and cannot be opened again
