# SPDX-License-Identifier: Apache-2.0
"""POST /v1/messages and its count: shapes, streams against whole answers, turns of blocks as a chat, errors, abuse; and
the real `anthropic` package against `sluice serve` with the demo model on the CPU."""

import json
import os
import random
import re
import socket

import pytest
from api import Server, scripted

try:
    import anthropic
except ImportError:
    anthropic = None

WEATHER = {"name": "get_weather", "description": "Get the current weather in a city.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}}, "required": ["city"]}}
CHAT_WEATHER = {"type": "function", "function": {"name": "get_weather", "description": WEATHER["description"],
                                                 "parameters": WEATHER["input_schema"]}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris \\"x\\" \u00e9\U0001F600"}}\n</tool_call>'
TEXTS = [
    "Hello there, this is an answer.\nWith two lines \U0001F600\U0001F680 and more.",
    "Let me see.\n" + CALL,
    CALL + "\n" + CALL.replace("Paris", "Rome"),
    "<think>\nI wonder.\n</think>\n\nThe answer is 42.",
    "one STOP two",
    "<think>\nA tool.\n</think>\n\n" + CALL,
    "a" * 30,
]
HI = [{"role": "user", "content": "hi"}]
# Prints the template's input; the switch opens the answer's reasoning.
SHOW = ("{% for m in messages %}[{{ m.role }}{% if m.reasoning_content %} thought={{ m.reasoning_content }}{% endif %}"
        "{% if m.tool_call_id %} of={{ m.tool_call_id }}{% endif %}] "
        "{% if m.content is string %}{{ m.content }}{% elif m.content %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}"
        "{% for c in m.tool_calls or [] %} {{ c.id }}:{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{{ '\\n' }}{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{{ '\\n' }}{% endif %}"
        "{% if enable_thinking is defined %}thinking={{ enable_thinking }} effort={{ reasoning_effort }}{{ '\\n' }}{% endif %}"
        "{% if add_generation_prompt %}[answer] {% endif %}")


@pytest.fixture(scope="module")
def server():
    with scripted(TEXTS, reasoning_parser="think", max_num_queued_reqs=64) as s:
        yield s
    os.unlink(s.script_path)


@pytest.fixture(scope="module")
def shown():
    with Server(chat_template=SHOW) as s:
        yield s


def ask(server, messages=HI, headers=None, **body):
    body = {"model": "demo", "max_tokens": 200, "messages": messages, **body}
    return server.post("/v1/messages", body, headers=headers)


def events(reply):
    """(name, data) of each event."""
    out = []
    for e in reply.body.decode().split("\n\n"):
        lines = dict(l.split(": ", 1) for l in e.split("\n") if ": " in l and not l.startswith(":"))
        if lines:
            out.append((lines["event"], json.loads(lines["data"])))
    assert all(name == data["type"] for name, data in out)
    return out


def fold(reply):
    """Folds a stream into the whole message, and checks the order of its events."""
    message, inputs, open_index = None, {}, None
    kinds = [name for name, _ in events(reply)]
    assert kinds[:2] == ["message_start", "ping"] and kinds[-2:] == ["message_delta", "message_stop"]
    for name, e in events(reply):
        if name == "message_start":
            assert message is None and e["message"]["content"] == [] and e["message"]["stop_reason"] is None
            message = e["message"]
        elif name == "content_block_start":
            assert open_index is None and e["index"] == len(message["content"])
            open_index = e["index"]
            message["content"].append(e["content_block"])
        elif name == "content_block_delta":
            assert e["index"] == open_index
            block, d = message["content"][open_index], e["delta"]
            if d["type"] == "input_json_delta":
                inputs[open_index] = inputs.get(open_index, "") + d["partial_json"]
            elif d["type"] == "signature_delta":
                block["signature"] = d["signature"]
            else:
                key = {"text_delta": "text", "thinking_delta": "thinking"}[d["type"]]
                block[key] += d[key]
        elif name == "content_block_stop":
            assert e["index"] == open_index
            if message["content"][open_index]["type"] == "tool_use":
                message["content"][open_index]["input"] = json.loads(inputs[open_index])
            open_index = None
        elif name == "message_delta":
            assert open_index is None
            message.update(e["delta"])
            message["usage"].update(e["usage"])
    return message


# ---- shapes ----

def test_message_has_every_key(server):
    r = ask(server, seed=0, headers={"anthropic-version": "2023-06-01", "anthropic-beta": "x-1,y-2"})
    j = r.json()
    assert r.status == 200 and r.headers["request-id"] == r.headers["x-request-id"]
    assert re.fullmatch(r"msg_[0-9a-f]{32}", j["id"]) and j["id"].endswith(r.headers["request-id"])
    assert (j["type"], j["role"], j["model"], j["stop_reason"], j["stop_sequence"]) == ("message", "assistant", "demo", "end_turn", None)
    assert j["content"] == [{"type": "text", "text": TEXTS[0]}]
    u = j["usage"]
    count = server.post("/v1/messages/count_tokens", {"model": "demo", "messages": HI}).json()
    assert u["input_tokens"] + u["cache_read_input_tokens"] == count["input_tokens"] and set(count) == {"input_tokens"}
    assert u["cache_creation_input_tokens"] == 0 and u["cache_read_input_tokens"] > 0 and u["output_tokens"] > 5


def strip(message):
    return {**message, "id": None, "content": [{**b, "id": None} for b in message["content"]]}


@pytest.mark.parametrize("group", ["1", "7"])
def test_a_stream_adds_up_to_the_whole_answer(group):
    with scripted(TEXTS, reasoning_parser="think", env={"FAKE_GROUP": group}) as s:
        for seed in range(len(TEXTS)):
            for more in ({}, {"stop_sequences": ["STOP", "zz"]}, {"max_tokens": 5}):
                whole = ask(s, seed=seed, tools=[WEATHER], **more)
                if more.get("max_tokens") and any(b["type"] == "tool_use" for b in whole.json()["content"]):
                    continue  # truncated within the arguments, so they are not valid JSON
                stream = ask(s, seed=seed, tools=[WEATHER], stream=True, **more)
                assert strip(fold(stream)) == strip(whole.json()), (seed, more)
    os.unlink(s.script_path)


def test_calls_and_thoughts_are_blocks(server):
    j = ask(server, seed=1, tools=[WEATHER]).json()
    text, call = j["content"]
    assert text == {"type": "text", "text": "Let me see."} and j["stop_reason"] == "tool_use"
    assert call["name"] == "get_weather" and call["input"] == {"city": 'Paris "x" \u00e9\U0001F600'}
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", call["id"])
    j = ask(server, seed=2, tools=[WEATHER]).json()
    assert len(j["content"]) == 2 and len({b["id"] for b in j["content"]}) == 2
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(ask(server, seed=2, tools=[WEATHER], tool_choice=choice).json()["content"]) == 1
    for seed, content in ((1, [text]), (2, [])):
        j = ask(server, seed=seed, tools=[WEATHER], tool_choice={"type": "none"}).json()
        assert j["stop_reason"] == "end_turn" and j["content"] == content
    j = ask(server, seed=5, tools=[WEATHER]).json()
    assert [b["type"] for b in j["content"]] == ["thinking", "tool_use"] and j["content"][0]["thinking"] == "A tool."
    j = ask(server, seed=3).json()
    thought, text = j["content"]
    assert thought["thinking"] == "I wonder." and thought["signature"] and text["text"] == "The answer is 42."
    assert j["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    j = ask(server, seed=3, thinking={"type": "adaptive", "display": "omitted"}).json()
    assert [b["type"] for b in j["content"]] == ["text"]


def test_stop_reasons(server):
    j = ask(server, seed=4, stop_sequences=["zzz", " STOP"]).json()
    assert (j["stop_reason"], j["stop_sequence"], j["content"][0]["text"]) == ("stop_sequence", " STOP", "one")
    assert ask(server, seed=4, stop_sequences=[]).json()["stop_reason"] == "end_turn"
    j = ask(server, seed=6, max_tokens=3).json()
    assert j["stop_reason"] == "max_tokens" and j["usage"]["output_tokens"] == 3
    j = ask(server, seed=1, tools=[WEATHER], max_tokens=16).json()  # truncated within a call: its input is still an object
    assert j["stop_reason"] == "max_tokens" and all(b.get("input", {}) == {} for b in j["content"])


def test_the_answer_ends_when_the_context_is_full(server):
    j = ask(server, max_tokens=32000, ignore_eos=True).json()  # the context has 2048 tokens
    u = j["usage"]
    assert j["stop_reason"] == "model_context_window_exceeded"
    assert u["input_tokens"] + u["cache_read_input_tokens"] + u["output_tokens"] == 2048
    long = [{"role": "user", "content": "word " * 4000}]
    r = ask(server, long)
    (n, most) = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", r.json()["error"]["message"]).groups()
    assert r.status == 400 and int(n) > 2048 and int(most) == 2047
    r = ask(server, [{"role": "user", "content": "word " * 100000}])  # too long to be counted
    assert r.status == 400 and r.json()["error"]["message"].startswith("prompt is too long: ")
    assert server.post("/v1/messages/count_tokens", {"messages": long}).json()["input_tokens"] == int(n)


# ---- conversion of turns to a chat ----

def rendered(server, messages=HI, **body):
    """The prompt that the template makes from a request: the fake engine repeats it."""
    n = server.post("/v1/messages/count_tokens", {"model": "demo", "messages": messages, **body})
    assert n.status == 200, n.body
    r = ask(server, messages, ignore_eos=True, max_tokens=n.json()["input_tokens"], **body).json()
    return "".join(b.get("text", "") for b in r["content"])


def test_turns_become_messages(shown):
    seen = rendered(shown, [
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1, 2.5, None]}},
            {"type": "tool_use", "id": "t2", "name": "g", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "r1"},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": True,
             "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"type": "tool_result", "tool_use_id": "t3"},
            {"type": "text", "text": "go on"}]},
    ], system=[{"type": "text", "text": "S1", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "S2"}])
    assert seen == ('[system] S1\nS2\n[user] <one><two>\n[assistant thought=hm] I look. t1:f({"a": [1, 2.5, null]}) t2:g({})\n'
                    "[tool of=t1] r1\n[tool of=t2] a\nb\n[tool of=t3] \n[user] go on\n[answer] ")


def test_tools_and_thinking_reach_the_template(shown):
    assert json.loads(rendered(shown, tools=[{**WEATHER, "type": "custom"}]).split("\n")[1]) == [CHAT_WEATHER]
    assert "thinking" not in rendered(shown)
    for thinking, word in (({"type": "enabled", "budget_tokens": 2048}, "True"), ({"type": "adaptive"}, "True"), ({"type": "disabled"}, "False")):
        assert "thinking=%s " % word in rendered(shown, thinking=thinking)
    assert "thinking=True effort=high" in rendered(shown, output_config={"effort": "high"})


def test_a_begun_answer_is_continued(shown):
    seen = rendered(shown, [*HI, {"role": "assistant", "content": "The answer is ("}])
    assert seen == "[user] hi\n[assistant] The answer is ("
    assert rendered(shown, [*HI, {"role": "assistant", "content": []}]).endswith("[assistant] \n[answer] ")


def test_changing_lines_are_removed_from_the_system_prompt(shown):
    line = "x-anthropic-billing-header: cc_version=%d"
    assert rendered(shown, system=line % 1 + "\nYou help.").startswith("[system] You help.\n")
    blocks = [{"type": "text", "text": line % 2}, {"type": "text", "text": "A\n" + line % 3 + "\nB"}]
    assert rendered(shown, system=blocks).startswith("[system] A\nB\n")
    assert rendered(shown, system=line % 4) == "[user] hi\n[answer] "
    assert rendered(shown, [{"role": "user", "content": line % 5}]).startswith("[user] x-anthropic")  # the user's text is not changed
    inline = lambda content: rendered(shown, [*HI, {"role": "system", "content": content}, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}, *HI])
    assert inline(line % 7) == "[user] hi\n[assistant] x\n[user] hi\n[answer] "
    assert inline([{"type": "text", "text": line % 8}, {"type": "text", "text": "R\n" + line % 9}]) == "[user] hi\n[system] R\n\n[assistant] x\n[user] hi\n[answer] "
    assert shown.stderr().count("--strip-prompt-lines") == 1
    with Server(chat_template=SHOW, strip_prompt_lines="drop:,# ") as s:
        assert rendered(s, system="drop: 1\n# 2\n#3\nx-anthropic-billing-header: 4") .startswith("[system] #3\nx-anthropic-billing-header: 4\n")
    with Server(chat_template=SHOW, strip_prompt_lines="") as s:
        assert rendered(s, system=line % 6).startswith("[system] x-anthropic")
        assert "taken out" not in s.stderr()


@pytest.mark.parametrize("refusal", ["not loop.first and m.role == 'system'", "loop.index0 and m.role == loop.previtem.role or m.role == 'system' and loop.index0"])
def test_system_turns_go_to_the_front_if_the_template_wants_them_there(refusal):
    guard = "{%% for m in messages %%}{%% if %s %%}{{ raise_exception('order') }}{%% endif %%}{%% endfor %%}" % refusal
    turns = [*HI, {"role": "system", "content": [{"type": "text", "text": "B"}, {"type": "text", "text": "C"}]}, {"role": "assistant", "content": "x"},
             {"role": "system", "content": []}, {"role": "system", "content": "D\0"}, {"role": "user", "content": "y"}]
    with Server(chat_template=guard + SHOW) as s:
        assert rendered(s, turns, system="A") == "[system] A\nB\nC\nD\0\n[user] hi\n[assistant] x\n[user] y\n[answer] "
        assert rendered(s, turns) == "[system] B\nC\nD\0\n[user] hi\n[assistant] x\n[user] y\n[answer] "
        assert rendered(s, [*HI, {"role": "system", "content": "x-anthropic-billing-header: 1"}, {"role": "user", "content": "y"}]) == "[user] <hi><y>\n[answer] "


# ---- errors ----

BAD = [
    ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": "9"}, "max_tokens"),
    ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "'tool'"), ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"), ({"messages": [{"role": "user", "content": 5}]}, "content"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image' are not supported: for this model the server accepts only text"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "'document' are not supported"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]}, "do not belong to role 'user'"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]}, "role 'assistant'"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "{}"}]}]}, "content[0].input"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]}]}, "content[0].name"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}]}, "'image'"),
    ({"messages": [*HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "", "name": "b", "input": {}}]}]}, "content[0].id"),
    ({"messages": [*HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "", "input": {}}]}]}, "content[0].name"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": ""}]}]}, "content[0].tool_use_id"),
    ({"messages": [*HI, {"role": "assistant", "content": [{"type": "redacted_thinking"}]}]}, "content[0].data"),
    ({"system": 5}, "system"), ({"system": [{"type": "image"}]}, "system[0]"), ({"system": ["x"]}, "system[0]"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema"), ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [WEATHER] * 129}, "tools"), ({"tool_choice": {"type": "auto"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "'other'"),
    ({"tools": [WEATHER], "tool_choice": {"type": "often"}}, "often"), ({"thinking": {"type": "much"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "budget_tokens"), ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences"), ({"stop": ["x"]}, "Use 'stop_sequences'"), ({"n": 2}, "'n'"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"), ({"output_config": {"effort": "none"}}, "'none'"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"), ({"container": "c"}, "container"), ({"temperature": "1"}, "temperature"),
    ({"metadata": 5}, "metadata"), ({"logprobs": True}, "logprobs"),
]


@pytest.mark.parametrize("body,says", BAD, ids=[str(i) for i in range(len(BAD))])
def test_errors_say_what_is_wrong(server, body, says):
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        if path.endswith("count_tokens") and "max_tokens" in body:
            continue
        r = server.post(path, {"model": "demo", "max_tokens": 9, "messages": HI, **body})
        j = r.json()
        assert r.status == 400 and j["type"] == "error" and j["error"]["type"] == "invalid_request_error"
        assert set(j) == {"type", "error", "request_id"} and set(j["error"]) == {"type", "message", "details"}
        assert set(j["error"]["details"]) == {"error_code"} and j["error"]["details"]["error_code"]
        assert j["request_id"] == r.headers["request-id"] and says in j["error"]["message"], j


def test_errors_have_their_types(server):
    r = ask(server, model="other")
    assert r.status == 404 and r.json()["error"]["type"] == "not_found_error"
    r = ask(server, seed=1003)
    assert r.status == 500 and r.json()["error"]["type"] == "api_error"
    r = server.post("/v1/messages", "{")
    assert r.status == 400 and r.json()["error"]["type"] == "invalid_request_error"
    with Server(api_key="secret") as s:
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
            r = ask(s, headers=headers)
            assert r.status == 401 and r.json()["error"]["type"] == "authentication_error" and r.json()["request_id"]
        assert ask(s, headers={"x-api-key": "secret"}).status == 200
        assert ask(s, headers={"authorization": "Bearer secret"}).status == 200
    with Server(max_num_queued_reqs=0, env={"FAKE_QUEUE": "0"}) as s:
        r = ask(s)
        assert r.status == 503 and r.json()["error"]["type"] == "overloaded_error" and "retry-after" in r.headers


def test_an_error_in_a_stream_is_an_event():
    with scripted(["a" * 400], env={"FAKE_STEP_US": "20000"}) as s:
        c = socket.create_connection(("127.0.0.1", s.port), 20)
        body = json.dumps({"model": "demo", "max_tokens": 2000, "messages": HI, "seed": 0, "stream": True, "timeout": 1})
        c.sendall(("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)).encode())
        data = b""
        while part := c.recv(65536):
            data += part
    os.unlink(s.script_path)
    (last,) = re.findall(rb'event: error\ndata: (.*)\n', data)
    j = json.loads(last)
    assert j["type"] == "error" and j["error"]["type"] == "timeout_error" and j["request_id"].encode() in data.split(b"\r\n\r\n")[0]
    assert b"message_stop" not in data and data.endswith(b"0\r\n\r\n")


def test_members_of_each_api_are_refused_or_ignored_in_the_other(server):
    assert server.chat(system="Be brief.").error["param"] == "system"
    assert server.chat(system="").status == 200
    assert ask(server, seed=0, metadata={"user_id": "u" * 1000}, service_tier="auto", cache_control={"type": "ephemeral"},
               context_management={"edits": []}, container=None).status == 200


# ---- abuse ----

def test_damaged_bodies_never_cause_a_server_error(server):
    rng = random.Random(3)
    body = json.dumps({"model": "demo", "max_tokens": 3, "system": [{"type": "text", "text": "S"}], "tools": [WEATHER], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "tool_use", "id": "a", "name": "b", "input": {"c": {}}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}]}]}]})
    parts = ["null", "5", "[]", "{}", '"x"', "true", "[[]]", '{"type":"text"}', '{"type":"tool_use"}']
    assert server.post("/v1/messages", body).status == 200
    for _ in range(400):
        value = json.loads(body)
        where = value
        while isinstance(where, (dict, list)) and len(where):
            key = rng.choice(list(where) if isinstance(where, dict) else range(len(where)))
            if rng.random() < 0.35 or not isinstance(where[key], (dict, list)) or not where[key]:
                where[key] = json.loads(rng.choice(parts))
                break
            where = where[key]
        r = server.post("/v1/messages", value)
        assert r.status in (200, 400, 404), (value, r.body)
    for depth in (50, 300, 100000):
        deep = '{"max_tokens":3,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":%s}]}]}'
        assert server.post("/v1/messages", deep % ('{"a":' * depth + "1" + "}" * depth)).status in (200, 400)
    many = [{"role": "user" if i % 2 else "assistant", "content": [{"type": "text", "text": ""}] * 20} for i in range(5000)]
    assert ask(server, many).status in (200, 400)
    assert ask(server, [*HI] * 100001).status == 400
    assert server.get("/health").status == 200


def test_an_abandoned_stream_frees_the_engine():
    with Server(env={"FAKE_STEP_US": "20000"}) as s:
        for _ in range(5):
            c = socket.create_connection(("127.0.0.1", s.port), 5)
            body = json.dumps({"max_tokens": 3000, "messages": HI, "stream": True, "ignore_eos": True})
            c.sendall(("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)).encode())
            assert c.recv(10)
            c.close()
        for _ in range(200):
            if s.get("/load").json()["server_load"] == 0:
                break
        assert s.get("/load").json()["server_load"] == 0


# ---- the real client ----

sdk = pytest.mark.skipif(anthropic is None, reason="the package anthropic is not installed")
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
COUNT = [{"role": "user", "content": "Count from 1 to 10."}]


@pytest.fixture(scope="module")
def demo():
    with Server(real=True, served_model_name="demo", max_model_len=1024, override_generation_config='{"temperature": 0}') as s:
        yield s


@pytest.fixture(scope="module")
def client(demo):
    return anthropic.Anthropic(base_url="http://127.0.0.1:%d" % demo.port, api_key="none", max_retries=0, timeout=60)


@sdk
def test_sdk_create_and_stream_agree(client):
    whole = client.messages.create(model="demo", messages=COUNT, max_tokens=60)
    assert whole.stop_reason == "end_turn" and "5" in whole.content[0].text and whole._request_id in whole.id
    with client.messages.stream(model="demo", messages=COUNT, max_tokens=60) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text and final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens > 10
    assert [e.type for e in client.messages.create(model="demo", messages=COUNT, max_tokens=3, stream=True)][-1] == "message_stop"


@sdk
def test_sdk_counts_tokens_and_cached_tokens(client):
    system = "You are a helpful assistant who answers in one line. " * 8
    n = client.messages.count_tokens(model="demo", messages=COUNT, system=system).input_tokens
    for cached in (False, True):
        u = client.messages.create(model="demo", messages=COUNT, system=system, max_tokens=4).usage
        assert u.input_tokens + u.cache_read_input_tokens == n and (u.cache_read_input_tokens > n // 2) == cached


@sdk
def test_sdk_streams_tools(client):
    with client.messages.stream(model="demo", messages=ASK, tools=[WEATHER], max_tokens=80) as stream:
        kinds = [e.type for e in stream]
        message = stream.get_final_message()
    (call,) = message.content
    assert "input_json" in kinds and call.input == {"city": "Paris"} and message.stop_reason == "tool_use"
    answer = client.messages.create(model="demo", max_tokens=60, tools=[WEATHER], messages=[
        *ASK, {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21}'}]}])
    assert answer.stop_reason == "end_turn" and answer.content[0].text


@sdk
@pytest.mark.parametrize("stream", [False, True])
def test_sdk_tool_runner_runs_the_tool(client, stream):
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city.

        Args:
            city: Name of the city
        """
        asked.append(city)
        return '{"temperature": 21}'

    runner = client.beta.messages.tool_runner(model="demo", max_tokens=80, tools=[get_weather], messages=ASK,
                                              max_iterations=3, stream=stream)
    last = None
    for turn in runner:
        last = turn.get_final_message() if stream else turn
    assert asked == ["Paris"] and last.stop_reason == "end_turn" and last.content[0].text


@sdk
def test_sdk_raises_its_own_errors(client, demo):
    with pytest.raises(anthropic.NotFoundError) as e:
        client.messages.create(model="other", messages=COUNT, max_tokens=5)
    assert e.value.body["error"]["type"] == "not_found_error" and e.value.request_id
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(model="demo", messages=[{"role": "user", "content": "word " * 2000}], max_tokens=5)
    assert "prompt is too long: " in str(e.value)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="demo", messages=COUNT, max_tokens=5, tools=[WEATHER], tool_choice={"type": "often"})


@sdk
def test_every_field_has_its_type(demo):
    from anthropic.types import Message, RawMessageStreamEvent
    from pydantic import TypeAdapter
    for body in ({"messages": COUNT}, {"messages": ASK, "tools": [WEATHER]}):
        body = {"model": "demo", "max_tokens": 80, "temperature": 0, **body}
        Message.model_validate(demo.post("/v1/messages", body).json(), strict=True)
        for _, e in events(demo.post("/v1/messages", {**body, "stream": True})):
            if e["type"] != "ping":
                TypeAdapter(RawMessageStreamEvent).validate_python(e, strict=True)


def test_models_are_listed_in_pages():
    """All models in order, forwards and backwards; without the header the form is OpenAI's."""
    as_anthropic = {"anthropic-version": "2023-06-01"}
    with Server(served_model_name="a,b,c") as s:
        page = lambda query: s.get("/v1/models" + query, headers=as_anthropic).json()
        ids = lambda query: ([m["id"] for m in page(query)["data"]], page(query)["has_more"])
        assert ids("") == (["a", "b", "c"], False) and ids("?limit=2") == (["a", "b"], True)
        assert ids("?limit=2&after_id=b") == (["c"], False) and ids("?limit=1&before_id=c") == (["b"], True)
        assert ids("?after_id=c") == ([], False) and page("?after_id=c")["first_id"] is None
        assert (page("?limit=2")["first_id"], page("?limit=2")["last_id"]) == ("a", "b")
        one = s.get("/v1/models/b", headers=as_anthropic).json()
        assert one["type"] == "model" and one["display_name"] == "b" and one["created_at"].endswith("Z")
        for query in ("?limit=0", "?limit=x", "?after_id=none", "?after_id=a&before_id=b"):
            assert s.get("/v1/models" + query, headers=as_anthropic).status == 400
        assert s.get("/v1/models").json()["object"] == "list"
