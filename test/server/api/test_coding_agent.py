# SPDX-License-Identifier: Apache-2.0
"""A coding agent's traffic over Messages, as the public documentation of such agents and of the API describes it: a system
prompt of blocks after a line that changes with each request, marks for the cache, tools with whole JSON schemas, thinking,
fine-grained streams of tool input, counts of tokens, and small requests beside the conversation. No package is needed."""

import json

import pytest
from agents_loop import ANSWER, CALLS, forget_script, scripted_agent
from api import Server

HEADERS = {"anthropic-version": "2023-06-01", "x-app": "cli", "user-agent": "agent-cli/2.1.160 (external, cli)", "authorization": "Bearer none",
           "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14,context-management-2025-06-27",
           "anthropic-dangerous-direct-browser-access": "true", "x-stainless-lang": "js", "x-stainless-retry-count": "0", "x-stainless-timeout": "600"}
CACHED = {"type": "ephemeral"}


def tool(name, required, **properties):
    return {"name": name, "description": "Use it to %s.\n\nUsage:\n- be careful" % name.replace("_", " "), "eager_input_streaming": True, "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False, "required": required,
        "properties": {k: {"type": v, "description": "The %s" % k} for k, v in properties.items()}}}


TOOLS = [tool("list_files", ["folder"], folder="string"), tool("read_file", ["path"], path="string", offset="number"),
         tool("count", ["text", "times"], text="string", times="integer")]


def request(turn, messages, **more):
    return {"model": "demo", "max_tokens": 32000, "stream": True, "seed": turn, "temperature": 1, "metadata": {"user_id": "user_1_session_2"},
            "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.160.%03d; cc_entrypoint=cli; cch=%05x;" % (turn, 7919 * turn)},
                       {"type": "text", "text": "You are an agent that writes programs.", "cache_control": CACHED},
                       {"type": "text", "text": "Follow the rules.\n" * 40, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "tools": TOOLS, "thinking": {"type": "enabled", "budget_tokens": 31999}, "context_management": {"edits": [
                {"type": "clear_thinking_20251015", "keep": "all"}]}, "messages": messages, **more}


def ask(server, body, path="/v1/messages?beta=true"):
    r = server.post(path, body, headers=HEADERS)
    assert r.status == 200, r.body
    return r


def fold(reply):
    """The message that a stream makes, with each rule of the order of its events."""
    message, block, parts = None, None, ""
    for line in reply.body.decode().split("\n\n"):
        if not line.startswith("event: "):
            continue
        name, data = line.split("\n", 1)
        e = json.loads(data[6:])
        assert name == "event: " + e["type"]
        if e["type"] == "message_start":
            assert message is None and e["message"]["role"] == "assistant" and e["message"]["content"] == []
            message = e["message"]
        elif e["type"] == "content_block_start":
            assert block is None and e["index"] == len(message["content"])
            block, parts = e["content_block"], ""
        elif e["type"] == "content_block_delta":
            assert e["index"] == len(message["content"])
            d = e["delta"]
            if d["type"] == "input_json_delta":
                parts += d["partial_json"]
            else:
                key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[d["type"]]
                block[key] = block.get(key, "") + d[key]
        elif e["type"] == "content_block_stop":
            if block["type"] == "tool_use":
                block["input"] = json.loads(parts)
            message["content"].append(block)
            block = None
        elif e["type"] == "message_delta":
            message.update(e["delta"], usage={**message["usage"], **e["usage"]})
    assert block is None and message["stop_reason"]
    return message


def mark(messages):
    """Only the newest block has the cache mark."""
    for m in messages:
        for b in m["content"] if isinstance(m["content"], list) else []:
            b.pop("cache_control", None)
    messages[-1]["content"][-1]["cache_control"] = CACHED
    return messages


@pytest.fixture(scope="module")
def model():
    with scripted_agent() as s:
        yield s
    forget_script(s)


def begin():
    return [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nThe date is 2026-11-24.\n</system-reminder>\n"},
                                         {"type": "text", "text": "What does the program print?"}]}]


def test_a_session_of_a_coding_agent(model):
    calls, messages = [], begin()
    for turn in range(4):
        message = fold(ask(model, request(turn, mark(messages))))
        uses = [b for b in message["content"] if b["type"] == "tool_use"]
        assert message["stop_reason"] == ("tool_use" if uses else "end_turn")
        calls += [(b["name"], b["input"]) for b in uses]
        assert all(b["id"].startswith("toolu_") for b in uses) and len({b["id"] for b in uses}) == len(uses)
        messages.append({"role": "assistant", "content": message["content"]})
        if not uses:
            break
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": b["id"], "content": [{"type": "text", "text": "it says x"}]} for b in uses]})
    assert calls == CALLS and turn == 3 and message["content"][-1]["text"] == ANSWER
    kinds = [[b["type"] for b in m["content"]] for m in messages if m["role"] == "assistant"]
    assert kinds == [["thinking", "tool_use", "tool_use"], ["thinking", "text", "tool_use"], ["tool_use"], ["thinking", "text"]]


def test_whole_answers_equal_streams(model):
    for turn in range(4):
        whole = ask(model, request(turn, begin(), stream=False)).json()
        streamed = fold(ask(model, request(turn, begin())))
        strip = lambda m: [{k: v for k, v in b.items() if k != "id"} for b in m["content"]]
        assert strip(whole) == strip(streamed) and whole["stop_reason"] == streamed["stop_reason"]


def test_the_changing_line_is_logged_once_and_prompts_are_still_cached():
    with Server(real=True, served_model_name="demo", max_model_len=4096) as s:
        seen = []
        for turn in range(3):
            usage = ask(s, request(turn, begin(), stream=False, max_tokens=4, temperature=0)).json()["usage"]
            count = ask(s, {k: v for k, v in request(turn, begin()).items() if k in ("model", "system", "tools", "messages", "thinking")},
                        "/v1/messages/count_tokens?beta=true").json()["input_tokens"]
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count
            seen.append(usage["cache_read_input_tokens"] / count)
        assert seen[0] == 0 and min(seen[1:]) > 0.9
        assert s.stderr().count("--strip-prompt-lines") == 1


def test_small_requests_beside_the_conversation(model):
    """Such requests check the quota, ask for a title that fits a schema, or ask whether the topic is new."""
    plain = {k: v for k, v in request(3, [{"role": "user", "content": "quota"}]).items() if k not in ("tools", "thinking", "context_management", "stream")}
    assert ask(model, {**plain, "max_tokens": 1}).json()["stop_reason"] == "max_tokens"
    title = {"type": "json_schema", "schema": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"], "additionalProperties": False}}
    assert ask(model, {**plain, "max_tokens": 100, "output_config": {"format": title}}).json()["type"] == "message"
    begun = [{"role": "user", "content": "Is it new?"}, {"role": "assistant", "content": [{"type": "text", "text": "{"}]}]
    assert ask(model, {**plain, "messages": begun, "max_tokens": 50, "stop_sequences": ["}"]}).json()["content"]
    r = model.request("HEAD", "/", headers=HEADERS)
    assert r.status < 500
    models = model.get("/v1/models?limit=1000", headers=HEADERS)
    assert models.status == 200 and any(m["id"] == "demo" for m in models.json()["data"])


def test_errors_have_the_texts_that_agents_recognise(model):
    """The agent shortens its prompt if it reads this text, and continues without threads if it reads this code."""
    r = model.post("/v1/messages?beta=true", request(0, [{"role": "user", "content": "a b c d " * 4000}]), headers=HEADERS)
    assert r.status == 400 and "prompt is too long: " in r.json()["error"]["message"] and r.headers["request-id"]
    r = model.post("/v1/messages?beta=true", request(0, begin(), thread={"type": "create"}), headers=HEADERS)
    e = r.json()
    assert r.status == 400 and e["error"]["details"] == {"error_code": "thread_unsupported_request"} and e["type"] == "error"
    assert ask(model, request(0, begin(), thread=None)).status == 200
