# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the API: the answers of a scripted engine, and servers with it."""

import http.client
import json
import os
import time

import pytest
from api import scripted


WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris \\"x\\" \u00e9\U0001F600"}}\n</tool_call>'
TEXTS = [
    "Hello there, this is an answer.\nWith two lines \U0001F600\U0001F680 and more.",
    "Let me see.\n" + CALL,
    CALL + "\n" + CALL.replace("Paris", "Rome"),
    "<think>\nI wonder.\n</think>\n\nThe answer is 42.",
    "one STOP two",
    '<tool_call>\n{"name": "get_weather"}\n</tool_call>',
    "<tool_call>\nnot JSON\n</tool_call>",
    "a" * 30,
]


@pytest.fixture(scope="module")
def server():
    with scripted(TEXTS, reasoning_parser="think", max_num_queued_reqs=64) as s:
        yield s
    os.unlink(s.script_path)


@pytest.fixture(scope="module")
def grouped():
    """The same with seven tokens per step."""
    with scripted(TEXTS, reasoning_parser="think", env={"FAKE_GROUP": "7"}) as s:
        yield s
    os.unlink(s.script_path)


def open_stream(server, **body):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": True, **body}),
              {"content-type": "application/json"})
    return c


def running(server):
    return server.get("/load").json()["running"] + server.get("/load").json()["waiting"]


def eventually(check, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        if check():
            return True
        time.sleep(0.01)
    return False


def cached_of(reply):
    assert reply.status == 200, reply.body
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def kv_hints(*directives):
    retain = {"action_id": "1", "action_type": "kv.retain", "action_version": "1.0", "payload": {"scope": None, "directives": list(directives)}}
    return {"protocol_version": "0.1", "message_id": "m", "actions": [retain]}


def prompt_of(i):
    return [7 + i] + [7 + (i + k) % 200 for k in range(299)]
