# SPDX-License-Identifier: Apache-2.0
"""Cohere's chat (v2), as vLLM serves it under /cohere."""
import json

import pytest
from api import DEMO, Server

CHAT = "/cohere/v2/chat"
ASK = [{"role": "user", "content": "What is 12 + 30?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


@pytest.fixture(scope="module")
def server():
    with Server(real=True, model=DEMO, served_model_name="demo", threads=2) as s:
        yield s


def chat(s, path=CHAT, **body):
    r = s.post(path, {"model": "demo", "messages": ASK, "temperature": 0, **body})
    assert r.status == 200, r.body
    return r


def test_an_answer_is_a_message_of_blocks(server):
    j = chat(server, logprobs=True).json()
    assert j["message"] == {"role": "assistant", "content": [{"type": "text", "text": "42"}]} and j["finish_reason"] == "COMPLETE" and j["id"].startswith("chat_")
    assert j["usage"]["tokens"] == j["usage"]["billed_units"] == {"input_tokens": j["usage"]["tokens"]["input_tokens"], "output_tokens": len(j["logprobs"])}
    assert "".join(t["text"] for t in j["logprobs"]).startswith("42") and all(len(t["token_ids"]) == len(t["logprobs"]) == 1 for t in j["logprobs"])
    assert "logprobs" not in chat(server).json()
    assert chat(server, max_tokens=1).json()["finish_reason"] == "MAX_TOKENS"
    j = chat(server, stop_sequences=["2"], k=5, p=0.5, seed=3).json()
    assert j["finish_reason"] == "STOP_SEQUENCE" and j["message"]["content"][0]["text"] == "4"


def test_a_stream_adds_up_to_the_answer(server):
    events = [json.loads(e) if e != "[DONE]" else {"type": e} for e in chat(server, stream=True).events()]
    assert [e["type"] for e in events[:2]] == ["message-start", "content-start"] and [e["type"] for e in events[-3:]] == ["content-end", "message-end", "[DONE]"]
    assert events[0]["id"] == events[-2]["id"] and events[-2]["delta"]["finish_reason"] == "COMPLETE" and events[-2]["delta"]["usage"]["tokens"]["output_tokens"] > 1
    assert "".join(e["delta"]["message"]["content"]["text"] for e in events[2:-3]) == "42" and {e["index"] for e in events[1:-2]} == {0}


def test_calls_go_back_and_forth(server):
    j = chat(server, messages=WEATHER, tools=TOOLS, tool_choice="REQUIRED").json()
    (call,) = j["message"]["tool_calls"]
    assert j["finish_reason"] == "TOOL_CALL" and j["message"]["content"] == [] and json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    events = [json.loads(e) for e in chat(server, messages=WEATHER, tools=TOOLS, tool_choice="REQUIRED", stream=True).events()[:-1]]
    assert [e["type"] for e in events[:2]] == ["message-start", "tool-call-start"] and [e["type"] for e in events[-2:]] == ["tool-call-end", "message-end"]
    assert "".join(e["delta"]["message"]["tool_calls"]["function"]["arguments"] for e in events[2:-2]) == call["function"]["arguments"]
    assert "tool_calls" not in chat(server, messages=WEATHER, tools=TOOLS, tool_choice="NONE").json()["message"]
    seen = lambda **turn: server.post("/detokenize", {"tokens": chat(server, CHAT + "/render", messages=[*WEATHER, *turn["turns"]], tools=TOOLS).json()["token_ids"]}).json()["prompt"]
    prompt = seen(turns=[{"role": "assistant", "tool_plan": "I look.", "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "document", "document": {"data": {"w": "rain"}}}, {"type": "text", "text": "cold"}]}])
    assert "rain" in prompt and "cold" in prompt and "get_weather" in prompt
    prompt = seen(turns=[{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "It rains."}]}, {"role": "user", "content": [{"type": "text", "text": "And now?"}]}])
    assert "It rains." in prompt and "And now?" in prompt


def test_a_format_is_a_schema(server):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    j = chat(server, response_format={"type": "json_object", "json_schema": schema}).json()
    assert json.loads(j["message"]["content"][0]["text"])["a"] in (1, 2)
    assert chat(server, response_format={"type": "text"}).json()["message"]["content"][0]["text"] == "42"


def test_the_prompt_is_that_of_a_chat(server):
    j = chat(server, CHAT + "/render", temperature=0.125, stop_sequences=["END"], max_tokens=16, documents=["d"], citation_options={"mode": "FAST"}, safety_mode="CONTEXTUAL").json()
    want = server.post("/v1/chat/completions/render", {"messages": ASK}).json()
    assert j["token_ids"] == want["token_ids"] and "message" not in j
    assert (j["sampling_params"]["temperature"], j["sampling_params"]["stop"], j["sampling_params"]["max_tokens"]) == (0.125, ["END"], 16)


WRONG = [({"messages": []}, 400), ({"messages": "x"}, 400), ({}, 400), ({"messages": ASK, "model": "nope"}, 404), ({"messages": ASK, "safety_mode": "STRICT"}, 400), ({"messages": ASK, "strict_tools": True}, 400),
         ({"messages": ASK, "n": 2}, 400), ({"messages": ASK, "p": 5}, 400), ({"messages": ASK, "tool_choice": "REQUIRED"}, 400), ({"messages": ASK, "thinking": {"type": "some"}}, 400),
         ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400), ({"messages": [{"role": "assistant", "content": [{"type": "sound"}]}]}, 400)]


@pytest.mark.parametrize("body, status", WRONG, ids=range(len(WRONG)))
def test_errors_are_coheres(server, body, status):
    for path in (CHAT, CHAT + "/render"):
        r = server.post(path, body)
        assert r.status == status and set(r.json()) == {"message", "id"} and r.json()["message"] and r.json()["id"] == r.headers["x-request-id"], r.body


def test_the_routes_need_a_key():
    with Server(api_key="secret") as s:
        for path in (CHAT, CHAT + "/render"):
            r = s.post(path, {"messages": ASK})
            assert r.status == 401 and r.json()["message"]
