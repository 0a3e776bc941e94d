# SPDX-License-Identifier: Apache-2.0
"""Constrained answers of the demo model: each satisfies its constraint, however unlikely the model finds it."""

import concurrent.futures
import json
import os
import re
import time

import pytest
from api import DEMO, SLOW, Server, fold

SHARED = os.environ.get("SLUICE_SHARED", "../shared")
PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"], "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}


def is_person(text):
    p = json.loads(text)
    return (list(p) == ["name", "age", "tags"] and isinstance(p["name"], str) and len(p["name"]) <= 12 and
            isinstance(p["age"], int) and 0 <= p["age"] <= 120 and len(p["tags"]) <= 3 and
            set(p["tags"]) <= {"red", "green", "blue"})


@pytest.fixture(scope="module")
def server():
    with Server(real=True, served_model_name="demo", max_model_len=1024) as s:
        yield s


def answer(r):
    assert r.status == 200, r.body
    (c,) = r.json()["choices"]
    return c["message"]["content"], c["finish_reason"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_answers_match_their_schema(server, seed, temperature):
    text, finish = answer(server.chat("Tell me of a person.", response_format=FORMAT, seed=seed, temperature=temperature,
                                      max_tokens=200, ignore_eos=seed % 2 == 1))
    assert finish == "stop" and is_person(text)


def test_streams_equal_whole_answers(server):
    body = {"response_format": FORMAT, "seed": 3, "temperature": 1, "max_tokens": 200}
    whole, _ = answer(server.chat("Hello", **body))
    (pieces,) = fold(server.chat("Hello", stream=True, **body).chunks())
    assert pieces["message"]["content"] == whole and pieces["finish"] == "stop"


@pytest.mark.parametrize("more,good", [
    ({"response_format": {"type": "json_object"}}, r"\{[\s\S]*"),
    ({"structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}"}}, r"[a-c]{3}-[0-9]{2}"),
    ({"structured_outputs": {"choice": ["yes", "no", "a\nb \"c\" (d)"]}}, r'yes|no|a\nb "c" \(d\)'),
    ({"structured_outputs": {"grammar": 'root ::= "ab" root "c" | "x"'}}, r"(ab)*xc*|(ab)+a?"),
    ({"guided_choice": ["left", "right"]}, "left|right"),
    ({"guided_json": json.dumps({"enum": [1, 22, 333]})}, "1|22|333"),
    ({"grammar": 'root ::= [0-9] [0-9]'}, r"\d\d"),
    ({"json_schema": {"type": "boolean"}}, "true|false"),
    ({"regex": "z{5}"}, "z{5}"),
])
def test_every_form_of_a_constraint(server, more, good):
    for seed in range(3):
        text, finish = answer(server.chat("Hello", seed=seed, temperature=1.5, max_tokens=48, min_tokens=2, **more))
        assert re.fullmatch(good, text), text
        assert finish in ("stop", "length")


def test_completions_and_responses(server):
    r = server.complete(["One", "Two"], n=2, max_tokens=700, response_format=FORMAT, temperature=1).json()
    assert len(r["choices"]) == 4 and all(is_person(c["text"]) for c in r["choices"])
    r = server.post("/v1/responses", {"input": "hello", "max_output_tokens": 700, "text": {"format": {
        "type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}}).json()
    assert is_person(r["output"][-1]["content"][0]["text"])


def test_the_sdk_parses(server):
    openai, pydantic = pytest.importorskip("openai"), pytest.importorskip("pydantic")

    class Step(pydantic.BaseModel):
        title: str = pydantic.Field(max_length=16)
        done: bool

    class Plan(pydantic.BaseModel):
        steps: list[Step] = pydantic.Field(max_length=2)
        total: int = pydantic.Field(ge=0, le=99)

    client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % server.port, api_key="none", max_retries=0, timeout=60)
    r = client.chat.completions.parse(model="demo", messages=[{"role": "user", "content": "Make a plan."}],
                                      response_format=Plan, max_tokens=300, temperature=1, seed=1)
    assert isinstance(r.choices[0].message.parsed, Plan)


def test_lookup_drafts_obey_the_constraint():
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "fixed": True})
    with Server(real=True, max_model_len=1024, speculative_config=config) as s:
        text = 'Say {"name": "red", "age": 12, "tags": ["red", "green"]} again.'
        for seed in range(4):
            assert is_person(answer(s.chat(text, response_format=FORMAT, seed=seed, temperature=1, max_tokens=200))[0])


def test_the_format_applies_after_reasoning():
    with open(os.path.join(DEMO, "tokenizer.json")) as f:
        end, eos = ([t["id"] for t in added if t["content"] == name][0] for added in [json.load(f)["added_tokens"]] for name in ("</think>", "<|im_end|>"))
    template = "{{ messages[0].content }}\n<think>\n"
    with Server(real=True, model=DEMO, max_model_len=1024, reasoning_parser="think", trust_request_chat_template=True) as s:
        ask = lambda bias, biases={}, **more: s.chat("Hello", chat_template=template, response_format=FORMAT, max_tokens=300, temperature=1,
                                                     seed=1, logit_bias={str(end): bias, **biases}, **more)
        for bias in (100, 12):  # the end comes at once, or after a while
            message = ask(bias).json()["choices"][0]["message"]
            assert is_person(message["content"])
        assert message["reasoning_content" if "reasoning_content" in message else "reasoning"]
        message = ask(12, {str(eos): 12}).json()["choices"][0]["message"]  # reasoning does not end the answer
        assert is_person(message["content"]) and message["reasoning"]
        never = ask(-100, min_tokens=20).json()["choices"][0]
        assert not never["message"]["content"]


def test_refusals_name_the_position(server):
    bad = {"type": "json_schema", "json_schema": {"name": "a", "schema": {
        "type": "object", "properties": {"x": {"unevaluatedItems": False}}}}}
    r = server.chat(response_format=bad)
    assert r.status == 400 and "#/properties/x" in r.error["message"] and "unevaluatedItems" in r.error["message"]
    assert r.error["param"] == "response_format" and r.error["code"] == "invalid_schema"


HOSTILE = [
    {"regex": "(" * 50000 + ")" * 50000}, {"regex": ".*" * 500 + "x" * 5000}, {"regex": "((a{1000}){1000}){1000}"},
    {"json_schema": {"$ref": "#"}}, {"json_schema": {"pattern": "(a|aa)*b" * 400, "maxLength": 10 ** 9}},
    {"json_schema": {"allOf": [{"pattern": "(.*a){%d}" % n} for n in range(60)]}},
    {"grammar": "root ::= " + "(" * 20000}, {"grammar": "root ::= root root"},
    {"structured_outputs": {"choice": ["a" * 1000] * 400}},
]


def test_hostile_sources_do_not_delay_others(server):
    """They are refused or compiled within a second, and a stream continues meanwhile."""
    def ask(more):
        began = time.time()
        r = server.chat("Hello", max_tokens=3, timeout=60, **more)
        return r.status, time.time() - began, r.body

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        stream = pool.submit(server.chat, "Hello", stream=True, max_tokens=100, ignore_eos=True, temperature=0)
        for status, seconds, body in pool.map(ask, HOSTILE):
            assert status in (200, 400), body
            assert seconds < (30 if SLOW else 4), (seconds, body[:200])  # the cores may be shared
        assert stream.result().status == 200
    assert server.is_ready()


def cases():
    try:
        with open(os.path.join(SHARED, "structured/api.jsonl")) as f:
            return [json.loads(line) for line in f]
    except OSError:
        return []


def answers_of(case, r):
    """(text, [(name, arguments)], finish) of each choice, streamed or not."""
    stream = case["request"].get("stream")
    if case["endpoint"] == "/v1/responses":
        whole = json.loads(r.events()[-1])["response"] if stream else r.json()
        text = "".join(p["text"] for o in whole["output"] if o["type"] == "message" for p in o["content"])
        calls = [(o["name"], o["arguments"]) for o in whole["output"] if o["type"] == "function_call"]
        return [(text, calls, "length" if whole["status"] == "incomplete" else "stop")]
    choices = fold(r.chunks()) if stream else r.json()["choices"]
    found = []
    for c in choices:
        message = c.get("message") or {"content": c["text"]}
        calls = [list(t[t["type"]].values())[:2] for t in message.get("tool_calls") or []]
        found.append((message["content"] or "", calls, c["finish"] if stream else c["finish_reason"]))
    return found


def fits(schema, text):
    """Checks with a third-party validator if there is one, otherwise only that it is JSON."""
    value = json.loads(text)
    try:
        import jsonschema
    except ImportError:
        return True
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def check_answer(case, text, calls, finish):
    expect, content = case["expect"], case["expect"].get("content", {})
    assert finish in expect.get("finish", [finish])
    if "schema" in content and not calls and finish != "length":
        assert fits(content["schema"], text), text
    if content.get("json") and finish != "length":
        json.loads(text)
    if "regex" in content and finish != "length":
        assert re.fullmatch(content["regex"], text), text
    assert text in content.get("one_of", [text])
    wanted = expect.get("calls")
    if not wanted:
        return
    parameters = {(t.get("function") or t.get("custom") or t)["name"]:
                  (t.get("function") or t.get("custom") or t).get("parameters", {}) for t in case["request"]["tools"]}
    assert len(calls) <= wanted.get("max", 99) and (finish == "length" or len(calls) >= wanted.get("min", 0)), (text, calls)
    for name, arguments in calls:
        assert name in wanted.get("names", parameters)
        if wanted.get("arguments_valid") and finish != "length":
            assert fits(parameters[name], arguments), (name, arguments)


@pytest.mark.parametrize("case", cases(), ids=lambda c: c["id"])
def test_recorded_cases(server, case):
    expect = case["expect"]
    body = json.dumps({"model": "demo", **case["request"]})
    body = body.replace('"@DEPTH300@"', '{"type":"array","items":' * 300 + "{}" + "}" * 300).replace("@I@", "k7")
    r = server.request("POST", case["endpoint"], body)
    assert r.status in (expect["status"] if isinstance(expect["status"], list) else [expect["status"]]), r.body
    if r.status == 400:
        assert all(r.error[k] == expect[k] for k in ("param", "code") if k in expect), r.error
        assert expect.get("message_contains", "") in r.error["message"]
        return
    found = answers_of(case, r)
    assert len(found) == expect.get("n", len(found))
    for text, calls, finish in found:
        check_answer(case, text, calls, finish)
    if expect.get("same_as_unstreamed"):
        whole = {"model": "demo", **case["request"], "stream": False}
        again = answers_of({**case, "request": whole}, server.post(case["endpoint"], whole))
        assert [a[:2] for a in again] == [tuple(f[:2]) for f in found]
