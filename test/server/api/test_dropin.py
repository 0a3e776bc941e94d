# SPDX-License-Identifier: Apache-2.0
"""What programs written for vLLM, llama.cpp or OpenAI ask for beyond the plain API: members, routes, headers, browsers."""
import json

import pytest
from api import Server


@pytest.fixture(scope="module")
def server():
    with Server(max_num_queued_reqs=64) as s:  # without a script a sample repeats its prompt
        yield s


# ---- members ----

ITEMS = [[{"role": "user", "content": "a\0b"}],
         [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a\0b"}]}],
         [{"role": "user", "content": "x"}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "c", "output": "a\0b"}],
         "a\0b"]


@pytest.mark.parametrize("items", ITEMS, ids=range(len(ITEMS)))
def test_a_nul_in_an_item_is_a_character_like_others(server, items):
    r = server.post("/v1/responses", {"input": items, "instructions": "i\0j", "max_output_tokens": 300})
    assert r.status == 200, r.body
    text = r.json()["output"][-1]["content"][0]["text"]
    assert "a\0b" in text and "i\0j" in text and r.json()["instructions"] == "i\0j"
    again = server.post("/v1/responses", {"input": "and\ufffe?", "previous_response_id": r.json()["id"], "max_output_tokens": 600})
    assert again.status == 200, again.body
    text = again.json()["output"][-1]["content"][0]["text"]
    assert "a\0b" in text and "and\ufffe?" in text


def test_a_nul_in_a_block_is_a_character_like_others(server):
    body = {"max_tokens": 300, "system": "s\0t", "messages": [
        {"role": "user", "content": "a\0b\ufffe\uffff"}, {"role": "assistant", "content": [{"type": "text", "text": "c\0d"}]},
        {"role": "user", "content": [{"type": "text", "text": "e\0f"}]}]}
    r = server.post("/v1/messages", body)
    assert r.status == 200, r.body
    text = r.json()["content"][0]["text"]
    assert all(t in text for t in ("s\0t", "a\0b\ufffe\uffff", "c\0d", "e\0f"))
    plain = json.loads(json.dumps(body).replace("\\u0000", "-"))
    n = server.post("/v1/messages/count_tokens", plain).json()["input_tokens"]
    assert server.post("/v1/messages/count_tokens", body).json()["input_tokens"] >= n


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_with_echo_begins_with_what_was_begun(server, stream):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": "one\0"}, {"type": "text", "text": "two"}]}]
    r = server.post("/v1/chat/completions", {"messages": messages, "echo": True, "continue_final_message": True, "max_tokens": 3, "n": 2, "stream": stream})
    plain = server.post("/v1/chat/completions", {"messages": messages, "continue_final_message": True, "max_tokens": 3}).json()
    said = "one\0\ntwo" + plain["choices"][0]["message"]["content"]
    if stream:
        deltas = [[c["choices"][0]["delta"].get("content", "") for c in r.chunks() if c["choices"][0]["index"] == i] for i in (0, 1)]
        assert ["".join(d) for d in deltas] == [said] * 2
    else:
        assert [c["message"]["content"] for c in r.json()["choices"]] == [said] * 2
    last = server.chat("x", echo=True, max_tokens=3).json()
    assert last["choices"][0]["message"]["content"] == server.chat("x", max_tokens=3).json()["choices"][0]["message"]["content"]


def test_top_logprobs_begin_with_the_token_itself(server):
    r = server.complete("a b c d", echo=True, logprobs=3, max_tokens=2).json()["choices"][0]["logprobs"]
    assert r["top_logprobs"][0] is None and len(r["tokens"]) == len(r["top_logprobs"]) > 4
    for token, logprob, tops in zip(r["tokens"][1:], r["token_logprobs"][1:], r["top_logprobs"][1:]):
        assert next(iter(tops.items())) == (token, logprob) and 3 <= len(tops) <= 4


def test_usage_may_be_forced_into_every_chunk():
    with Server(enable_force_include_usage=True) as s:
        chunks = s.chat("x", stream=True, max_tokens=3).chunks()
        assert len(chunks) > 3 and all(c["usage"]["prompt_tokens"] > 0 for c in chunks) and chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_operators_words_for_tokens_tools_and_efforts():
    tools = [{"type": "function", "function": {"name": "zebra", "parameters": {"type": "object", "properties": {}}}}]
    with Server(return_tokens_as_token_ids=True, exclude_tools_when_tool_choice_none=True, disable_fastapi_docs=True,
                reasoning_effort_map='{"medium": "low"}') as s:
        r = s.complete("a b", logprobs=1, max_tokens=2).json()["choices"][0]["logprobs"]
        assert all(t.startswith("token_id:") for t in r["tokens"])
        r = s.complete("a b", logprobs=1, max_tokens=2, return_tokens_as_token_ids=False).json()["choices"][0]["logprobs"]
        assert not any(t.startswith("token_id:") for t in r["tokens"])
        n = [s.chat("x", tools=tools, tool_choice=c, max_tokens=1).json()["usage"]["prompt_tokens"] for c in ("none", "auto")]
        assert n[0] < n[1] and n[0] == s.chat("x", max_tokens=1).json()["usage"]["prompt_tokens"]
        assert s.get("/docs").status == 404 and s.get("/openapi.json").status == 404
        assert s.chat("x", reasoning_effort="medium", max_tokens=1).status == 200


# ---- routes ----

CHAT = {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 3, "seed": 1}


def strip(j):
    return {k: v for k, v in j.items() if k not in ("id", "created", "usage")}


@pytest.mark.parametrize("path, body", [("/chat/completions", CHAT), ("/completions", {"prompt": "a b", "max_tokens": 3, "logprobs": 1}),
                                        ("/embeddings", {"input": ["a b", "c"]})])
def test_routes_without_their_prefix(server, path, body):
    plain, short, any_kind = (server.post(p, body) for p in ("/v1" + path, path, "/invocations"))
    assert plain.status == short.status == any_kind.status == 200
    for r in (short, any_kind):
        assert strip(r.json()) == strip(plain.json())
    if "input" not in body:
        assert server.post("/invocations", {**body, "stream": True}).events()[-1] == "[DONE]"


def test_models_without_their_prefix(server):
    assert server.get("/models").json() == server.get("/v1/models").json()


@pytest.mark.parametrize("body, status, code, param", [({}, 400, "missing_required_parameter", "messages"), ("[]", 400, "json_parse_error", None),
                                                       ("{", 400, "json_parse_error", None), ({"prompt": None}, 400, "missing_required_parameter", "messages"),
                                                       ({"prompt": ""}, 400, "invalid_value", "prompt"), ({"messages": []}, 400, "empty_array", "messages")])
def test_invocations_of_no_kind(server, body, status, code, param):
    r = server.post("/invocations", body)
    assert (r.status, r.error["code"], r.error["param"]) == (status, code, param)


NEW_ROUTES = [("POST", p) for p in ("/chat/completions", "/completions", "/embeddings", "/invocations")] + [("GET", "/models")]


def test_new_routes_are_behind_the_keys():
    with Server(api_key="s3cret") as s:
        for method, path in NEW_ROUTES:
            body = {} if method == "POST" else None
            r = s.request(method, path, body)
            assert r.status == 401 and r.error["code"] == "missing_api_key", path
            assert s.request(method, path, body, {"authorization": "Bearer wrong"}).status == 401
            assert s.request(method, path, body, {"authorization": "Bearer s3cret"}).status in (200, 400)


# ---- browsers ----

PAGES = ["http://localhost", "http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:3000", "https://a.localhost"]
STRANGERS = ["http://evil.example", "http://notlocalhost", "http://localhost.evil.example", "null", "http://127.0.0.1.evil.example",
             "http://localhost@evil.example", "http://localhost/", ""]


def preflight(s, origin, path="/v1/completions", method="POST"):
    return s.request("OPTIONS", path, headers={"origin": origin, "access-control-request-method": method,
                                               "access-control-request-headers": "authorization, x-a"})


def test_pages_of_this_machine_may_ask_the_model(server):
    for origin in PAGES:
        r = preflight(server, origin)
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin
        assert "POST" in r.headers["access-control-allow-methods"] and r.headers["access-control-allow-headers"] == "authorization, x-a"
        r = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"origin": origin, "sec-fetch-site": "cross-site"})
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin and r.headers["vary"] == "Origin"
        r = server.post("/v1/chat/completions", {**CHAT, "stream": True}, headers={"origin": origin})
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin
        for path in ("/drain", "/reset_prefix_cache"):  # but they are no operators
            r = server.post(path, "", headers={"origin": origin})
            assert r.status == 403 and "access-control-allow-origin" not in r.headers
        for path in ("/metrics", "/requests", "/server_info"):
            assert "access-control-allow-origin" not in server.get(path, headers={"origin": origin}).headers
            assert "access-control-allow-origin" not in preflight(server, origin, path, "GET").headers


def test_pages_of_other_machines_may_not(server):
    for origin in STRANGERS:
        r = preflight(server, origin)
        assert r.status == 200 and "access-control-allow-origin" not in r.headers
        r = server.post("/v1/completions", {"prompt": "a"}, headers={"origin": origin, "sec-fetch-site": "cross-site"})
        assert r.status == 403 and "access-control-allow-origin" not in r.headers


@pytest.mark.parametrize("origins", ["*", '["*"]'])
def test_any_page_on_request(origins):
    with Server(allowed_origins=origins) as s:
        r = preflight(s, "http://ui.example")
        assert r.status == 200 and r.headers["access-control-allow-origin"] == "*"
        assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"origin": "http://ui.example"}).headers["access-control-allow-origin"] == "*"
        r = s.post("/drain", "", headers={"origin": "http://ui.example"})
        assert r.status == 403 and "access-control-allow-origin" not in r.headers


def test_named_pages_on_request():
    with Server(allowed_origins='["https://a.example", "https://b.example"]') as s:
        assert preflight(s, "https://b.example").headers["access-control-allow-origin"] == "https://b.example"
        for origin in ["http://localhost:3000", "https://c.example"]:  # the list is all there is
            r = preflight(s, origin)
            assert r.status == 200 and "access-control-allow-origin" not in r.headers
        assert preflight(s, "https://a.example", "/drain").headers["access-control-allow-origin"] == "https://a.example"
        assert preflight(s, "https://a.example", "/nothing").status == 404


def test_a_server_with_keys_lets_pages_of_this_machine_ask():
    with Server(api_key="s3cret") as s:
        assert preflight(s, "http://localhost:3000").headers["access-control-allow-origin"] == "http://localhost:3000"
        headers = {"origin": "http://localhost:3000", "authorization": "Bearer s3cret"}
        assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=headers).headers["access-control-allow-origin"] == "http://localhost:3000"
        r = s.post("/v1/completions", {"prompt": "a"}, headers={"origin": "http://localhost:3000"})
        assert r.status == 401 and r.headers["access-control-allow-origin"] == "http://localhost:3000"  # the page sees why
