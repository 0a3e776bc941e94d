# SPDX-License-Identifier: Apache-2.0
"""What programs written for vLLM, llama.cpp or OpenAI need beyond the plain API: members, routes, headers, browsers."""
import json

import pytest
from api import Server


@pytest.fixture(scope="module")
def server():
    with Server(max_num_queued_reqs=64) as s:  # without a script a sample repeats its prompt
        yield s


@pytest.fixture(scope="module")
def real():
    with Server(real=True) as s:
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


def test_a_nul_in_a_stored_item_is_given_back(server):
    text = "a\0b\uffff"
    r = server.post("/v1/responses", {"input": text, "max_output_tokens": 16}).json()
    listed = server.get("/v1/responses/%s/input_items" % r["id"])
    assert listed.status == 200 and listed.json()["data"][0]["content"][0]["text"] == text
    c = server.post("/v1/conversations", {"items": [{"role": "user", "content": text, "id": "x\0"}], "metadata": {"k\0": text}}).json()
    assert c["metadata"] == {"k\0": text}
    r = server.post("/v1/responses", {"input": "c\0d", "conversation": c["id"], "max_output_tokens": 300})
    assert text in r.json()["output"][-1]["content"][0]["text"]
    items = server.get("/v1/conversations/%s/items?order=asc" % c["id"]).json()["data"]
    assert [i["content"][0]["text"] for i in items[:2]] == [text, "c\0d"] and text in items[2]["content"][0]["text"]
    assert items[0]["id"].startswith("msg_")


TOOLS = {"/v1/chat/completions": lambda f: {"tools": [{"type": "function", "function": f}]}, "/v1/responses": lambda f: {"tools": [{"type": "function", **f}]},
         "/v1/messages": lambda f: {"tools": [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}]}}


@pytest.mark.parametrize("path", TOOLS)
def test_a_nul_in_a_tool_reaches_the_template(server, path):
    function = {"name": "f", "description": "d\0e", "parameters": {"type": "object", "properties": {"p\0q": {"type": "string"}}}}
    body = {"max_tokens": 4, "max_output_tokens": 16, **({"input": "x"} if "responses" in path else {"messages": [{"role": "user", "content": "x"}]})}
    r = server.post(path + "/render", {**body, **TOOLS[path](function)})
    assert r.status == 200, r.body
    text = server.post("/detokenize", {"tokens": r.json()["token_ids"]}).json()["prompt"]
    assert r"d\u0000e" in text and r"p\u0000q" in text  # the template writes JSON
    r = server.post(path, {**body, **TOOLS[path]({**function, "name": "f\0"})})
    assert r.status == 400 and "U+0000" in r.json()["error"]["message"]


TEXTS = [("/v1/decisions", {"input": "%s", "questions": [{"type": "predicate", "instructions": "x"}]}),
         ("/v1/decisions", {"input": [{"role": "user", "content": "%s"}], "instructions": "%s", "questions": [{"type": "predicate", "instructions": "x"}]}),
         ("/v1/systemone", {"state": "%s", "questions": {"q": {"type": "noul", "instructions": "x"}}}),
         ("/v1/responses", {"input": "x", "previous_input_messages": [{"role": "user", "content": "%s"}], "max_output_tokens": 16}),
         ("/v1/rerank", {"query": "%s", "documents": ["%s", {"text": "%s"}]}), ("/generative_scoring", {"query": "%s", "items": ["%s"], "label_token_ids": [1, 2]})]


@pytest.mark.parametrize("path, body", TEXTS, ids=range(len(TEXTS)))
def test_a_nul_has_as_many_tokens_as_another_control_character(real, path, body):
    usages = []
    for character in ("\\u0000", "\\u0001"):
        r = real.request("POST", path, json.dumps(body).replace("%s", "a" + character + "b"))
        assert r.status == 200, r.body
        usages.append(next(v for k, v in r.json()["usage"].items() if k in ("prompt_tokens", "input_tokens")))
    assert usages[0] == usages[1]


HELD = '{"type":"object","properties":{"a\\u0000":{"const":"x\\u0000y"}},"required":["a\\u0000"]}'
OBJECT = '{"a\\u0000":"x\\u0000y"}'
CONSTRAINTS = [  # each allows one text
    ({"grammar": 'root ::= "a\0b"'}, "a\0b"), ({"ebnf": 'root ::= [\0] "b"'}, "\0b"), ({"regex": "a\0{2}"}, "a\0\0"), ({"guided_regex": "\0"}, "\0"),
    ({"guided_choice": ["a\0.b"]}, "a\0.b"), ({"guided_grammar": 'start: "a\0"'}, "a\0"), ({"guided_json": json.loads(HELD)}, OBJECT),
    ({"guided_json": HELD}, OBJECT), ({"json_schema": json.loads(HELD)}, OBJECT), ({"format": json.loads(HELD)}, OBJECT),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n\0", "schema": json.loads(HELD)}}}, OBJECT),
    ({"structured_outputs": {"choice": ["a\0"]}}, "a\0"), ({"structured_outputs": {"regex": "[\0]"}}, "\0"),
    ({"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "a\0b"}}}, "a\0b")]


@pytest.mark.parametrize("member, text", CONSTRAINTS, ids=range(len(CONSTRAINTS)))
def test_a_nul_in_a_constraint_is_a_character_like_others(real, member, text):
    r = real.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 200, **member}))
    assert r.status == 200, r.body
    assert "".join(r.json()["choices"][0]["message"]["content"].split()) == text


def test_a_nul_in_the_grammar_of_a_tool_is_a_character_like_others(real):
    tool = {"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "regex", "definition": "a\0b"}}
    r = real.post("/v1/responses", {"input": "x", "tools": [tool], "tool_choice": "required", "max_output_tokens": 60, "parallel_tool_calls": False})
    assert r.status == 200, r.body
    assert [i["input"] for i in r.json()["output"]] == ["a\0b"]


def test_a_nul_in_a_template_reaches_the_model():
    with Server(trust_request_chat_template=True) as s:
        body = {"messages": [{"role": "user", "content": "x"}], "chat_template": "a\0b{{ messages[0].content }}{{ '\0' }}"}
        r = s.post("/v1/chat/completions/render", body)
        assert r.status == 200, r.body
        assert s.post("/detokenize", {"tokens": r.json()["token_ids"]}).json()["prompt"] == "a\0bx\0"


def test_a_nul_in_a_salt_makes_another_salt(real):
    prompt, cached = list(range(100, 200)), []
    for salt in ("s\0t", "s\0t", "s", "s\ufffet", "s\uffff\0t"):
        r = real.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "cache_salt": salt})
        assert r.status == 200, r.body
        cached.append(r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False, True, False, False, False]
    rendered = real.post("/v1/completions/render", {"prompt": "x", "cache_salt": "s\0t"}).json()
    assert rendered[0]["cache_salt"] == "s\0t"


OTHERS = [{"logit_bias": {"a\0": 1}}, {"session_id": "a\0"}, {"prediction": {"content": "a\0"}}, {"verbosity": "a\0"}, {"kv_hints": {"protocol_version": "0.1", "message_id": "a\0", "actions": []}},
          {"logit_bias": [["a\0", 1]]}, {"guided_whitespace_pattern": " *", "json_schema": {"const": "\0"}}]


@pytest.mark.parametrize("member", OTHERS, ids=range(len(OTHERS)))
def test_a_nul_in_other_texts_is_accepted(server, member):
    r = server.post("/completion", {"prompt": "x", "n_predict": 1, **member})
    assert r.status == 200, r.body


NAMES = [("request_id", {"request_id": "a\0"}), ("model", {"model": "a\0"}), ("previous_response_id", {"previous_response_id": "a\0"}), ("truncation_side", {"truncation_side": "a\0"}),
         ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a\0"}}]}), ("format", {"format": "a\0"}),
         ("messages[0].role", {"messages": [{"role": "a\0", "content": "x"}]}),
         ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "a\0"}}})]


@pytest.mark.parametrize("param, member", NAMES, ids=[n for n, _ in NAMES])
def test_a_nul_in_a_name_is_refused_with_the_name_of_the_member(server, param, member):
    r = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **member})
    assert r.status == 400 and r.error["param"] == param, r.body
    assert not any(c in r.error["message"] for c in "\ufffe\uffff")


def test_a_nul_in_a_model_is_an_unknown_model_or_value(server):
    r = server.chat("x", model="demo\0")
    assert r.status == 400 and r.error["param"] == "model" and "\ufffe" not in r.error["message"]


OLD = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
       {"role": "function", "name": "f", "content": "21"}, {"role": "user", "content": "y"}]


def test_calls_in_the_older_form_are_rendered_like_others(server):
    call = {"id": "c", "type": "function", "function": OLD[1]["function_call"]}
    new = [OLD[0], {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "21"}, OLD[3]]
    functions = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
    bodies = [{"messages": OLD, "functions": functions}, {"messages": new, "tools": [{"type": "function", "function": f} for f in functions]}]
    ids = [server.post("/v1/chat/completions/render", b).json()["token_ids"] for b in bodies]
    assert ids[0] == ids[1]
    for call in ("f", {"name": "f"}, {"arguments": "{}"}, {"name": "f", "arguments": {}}):
        r = server.chat(messages=[OLD[0], {"role": "assistant", "function_call": call}], max_tokens=1)
        assert (r.status, r.error["param"]) == (400, "messages[1].function_call")


def test_functions_beside_tools_are_checked(server):
    function = {"name": "f", "parameters": {"type": "object"}}
    for functions, param in (([function], None), ([{**function, "parameters": [None]}], "functions[0].parameters"), ([function, {"name": ""}], "functions[1].name"),
                             ([{**function, "description": 5}], "functions[0].description"), ([{**function, "description": None}], None)):
        r = server.chat("x", tools=[{"type": "function", "function": function}], functions=functions, max_tokens=1)
        assert r.status == 200 if param is None else (r.status, r.error["param"]) == (400, param)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_with_echo_begins_with_the_last_message(server, stream):
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


def test_leading_slashes_of_a_path_count_as_one(server):
    assert server.get("//v1/models").json() == server.get("/v1/models").json() and server.complete("a", max_tokens=1).status == 200
    assert server.post("///v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200 and server.get("/v1//models").status == 404


def test_usage_may_be_forced_into_every_chunk():
    with Server(enable_force_include_usage=True) as s:
        chunks = s.chat("x", stream=True, max_tokens=3).chunks()
        assert len(chunks) >= 3 and all(c["usage"]["prompt_tokens"] > 0 for c in chunks) and chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 3


def test_options_for_token_ids_tools_and_efforts_apply():
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


@pytest.mark.parametrize("path, body", [("/chat/completions", CHAT), ("/completions", {"model": "demo", "prompt": "a b", "max_tokens": 3, "logprobs": 1}),
                                        ("/embeddings", {"input": ["a b", "c"]})])
def test_routes_are_served_without_v1(server, path, body):
    plain, short, any_kind = (server.post(p, body) for p in ("/v1" + path, path, "/invocations"))
    assert plain.status == short.status == any_kind.status == 200
    for r in (short, any_kind):
        assert strip(r.json()) == strip(plain.json())
    if "input" not in body:
        assert server.post("/invocations", {**body, "stream": True}).events()[-1] == "[DONE]"


def test_models_is_served_without_v1(server):
    entry = server.get("/models").json()["data"][0]
    assert server.get("/v1/models").json()["data"][0].items() <= entry.items() and entry["aliases"][0] == entry["id"]


@pytest.mark.parametrize("body, status, code, param", [({}, 400, "missing_required_parameter", "messages"), ("[]", 400, "json_parse_error", None),
                                                       ("{", 400, "json_parse_error", None), ({"prompt": None}, 400, "missing_required_parameter", "messages"),
                                                       ({"prompt": ""}, 400, "invalid_value", "prompt"), ({"messages": []}, 400, "empty_array", "messages")])
def test_invocations_of_unknown_kind_are_refused(server, body, status, code, param):
    r = server.post("/invocations", body)
    assert (r.status, r.error["code"], r.error["param"]) == (status, code, param)


NEW_ROUTES = [("POST", p) for p in ("/chat/completions", "/completions", "/embeddings", "/invocations")] + [("GET", "/models")]


def test_new_routes_need_a_key():
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


def test_pages_of_this_machine_may_use_the_model(server):
    for origin in PAGES:
        r = preflight(server, origin)
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin
        assert "POST" in r.headers["access-control-allow-methods"] and r.headers["access-control-allow-headers"] == "authorization, x-a"
        r = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"origin": origin, "sec-fetch-site": "cross-site"})
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin and r.headers["vary"] == "Origin"
        r = server.post("/v1/chat/completions", {**CHAT, "stream": True}, headers={"origin": origin})
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin
        for path in ("/drain", "/reset_prefix_cache"):  # but they may not use admin routes
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
def test_any_page_may_be_allowed(origins):
    with Server(allowed_origins=origins) as s:
        r = preflight(s, "http://ui.example")
        assert r.status == 200 and r.headers["access-control-allow-origin"] == "*"
        assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"origin": "http://ui.example"}).headers["access-control-allow-origin"] == "*"
        r = s.post("/drain", "", headers={"origin": "http://ui.example"})
        assert r.status == 403 and "access-control-allow-origin" not in r.headers


def test_named_pages_may_be_allowed():
    with Server(allowed_origins='["https://a.example", "https://b.example"]') as s:
        assert preflight(s, "https://b.example").headers["access-control-allow-origin"] == "https://b.example"
        for origin in ["http://localhost:3000", "https://c.example"]:  # only origins of the list are allowed
            r = preflight(s, origin)
            assert r.status == 200 and "access-control-allow-origin" not in r.headers
        assert preflight(s, "https://a.example", "/drain").headers["access-control-allow-origin"] == "https://a.example"
        assert preflight(s, "https://a.example", "/nothing").status == 404


def test_a_server_with_keys_admits_pages_of_this_machine():
    with Server(api_key="s3cret") as s:
        assert preflight(s, "http://localhost:3000").headers["access-control-allow-origin"] == "http://localhost:3000"
        headers = {"origin": "http://localhost:3000", "authorization": "Bearer s3cret"}
        assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=headers).headers["access-control-allow-origin"] == "http://localhost:3000"
        r = s.post("/v1/completions", {"prompt": "a"}, headers={"origin": "http://localhost:3000"})
        assert r.status == 401 and r.headers["access-control-allow-origin"] == "http://localhost:3000"  # the page can read the error


# ---- ids in, ids out ----

def test_generate_accepts_rendered_chats(server):
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0.125, "top_p": 0.456, "stop": ["zz"], "stop_token_ids": [7], "logprobs": True,
            "top_logprobs": 2, "max_tokens": 5, "seed": 3}
    j = server.post("/v1/chat/completions/render", body).json()
    p = j["sampling_params"]
    assert (p["temperature"], p["top_p"], p["stop"], p["logprobs"], p["max_tokens"], p["seed"]) == (0.125, 0.456, ["zz"], 2, 5, 3) and 7 in p["stop_token_ids"]
    assert j["request_id"].startswith("chatcmpl-") and j["model"] == "demo" and j["stream"] is False and j["stream_options"] is None
    assert j["token_ids"] == server.post("/tokenize", {"messages": body["messages"]}).json()["tokens"]
    whole = server.post("/v1/chat/completions", {**body, "return_token_ids": True}).json()["choices"][0]
    g = server.post("/inference/v1/generate", j).json()
    (c,) = g["choices"]
    assert c["token_ids"] == whole["token_ids"] and c["finish_reason"] == whole["finish_reason"] and g["usage"]["completion_tokens"] == 5
    assert [t["logprob"] for t in c["logprobs"]["content"]] == [t["logprob"] for t in whole["logprobs"]["content"]]
    s = server.post("/v1/chat/completions/render", {**body, "stream": True, "stream_options": {"include_usage": True}}).json()
    assert s["stream"] is True and s["stream_options"]["include_usage"] is True
    chunks = server.post("/inference/v1/generate", s).chunks()
    assert sum((c["choices"][0]["token_ids"] for c in chunks[:-1]), []) == c["token_ids"] and chunks[-1]["usage"] == g["usage"]


def test_rendered_prompts(server):
    two = server.post("/v1/completions/render", {"prompt": ["a b", "c"], "max_tokens": 3}).json()
    assert [len(t["token_ids"]) for t in two] == [len(server.post("/tokenize", {"prompt": x}).json()["tokens"]) for x in ("a b", "c")]
    assert two[0]["request_id"].startswith("cmpl-") and two[1]["sampling_params"]["max_tokens"] == 3
    assert server.post("/v1/completions/render", {"prompt": "a", "model": "none"}).status == 404


def test_each_part_of_a_generated_stream_has_ids(server):
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 6, "detokenize": False}}
    whole = server.post("/inference/v1/generate", body).json()["choices"][0]
    parts = [c["choices"][0] for c in server.post("/inference/v1/generate", {**body, "stream": True}).chunks()]
    assert all(p["token_ids"] for p in parts) and sum((p["token_ids"] for p in parts), []) == whole["token_ids"] and len(whole["token_ids"]) == 6
    assert [p["finish_reason"] for p in parts] == [None] * (len(parts) - 1) + ["length"]
    for n in (0, 1, 3):
        c = server.post("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"max_tokens": 2, "logprobs": n}}).json()["choices"][0]
        assert [len(t["top_logprobs"]) for t in c["logprobs"]["content"]] == [max(n, 1)] * 2
    assert len(server.post("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"ignore_eos": True}}).json()["choices"][0]["token_ids"]) > 16


WRONG_IDS = [({}, "missing_required_parameter", "token_ids"), ({"token_ids": []}, "empty_array", "token_ids"), ({"token_ids": "a"}, "invalid_type", "token_ids"),
             ({"token_ids": [-1]}, "invalid_value", "token_ids"), ({"token_ids": [99999999]}, "invalid_value", "token_ids"), ({"token_ids": [[5]] * 2}, None, "token_ids"),
             ({"token_ids": [5], "sampling_params": 5}, "invalid_type", "sampling_params"), ({"token_ids": [5], "features": {"a": 1}}, "unsupported_parameter", "features"),
             ({"token_ids": [5], "sampling_params": {"stop": "x", "detokenize": False}}, "invalid_value", "detokenize"),
             ({"token_ids": [5], "sampling_params": {"temperature": -1}}, None, "temperature"), ({"token_ids": [5] * 5000}, "context_length_exceeded", "token_ids")]


@pytest.mark.parametrize("body, code, param", WRONG_IDS, ids=range(len(WRONG_IDS)))
def test_wrong_ids_are_refused(server, body, code, param):
    r = server.post("/inference/v1/generate", body)
    assert r.status == 400 and r.error["param"] == param and code in (None, r.error["code"]), r.body


def test_tokens_of_a_chat_are_counted(server):
    body = {"messages": [{"role": "user", "content": "hello"}]}
    n = len(server.post("/tokenize", body).json()["tokens"])
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert server.post(path, body).json()["input_tokens"] == n
    assert server.post("/v1/chat/completions/input_tokens", {}).error["param"] == "messages"
    assert server.post("/responses", {"input": "x", "max_output_tokens": 16}).json()["object"] == "response"


@pytest.mark.parametrize("path", ["/v1/chat/completions/render", "/v1/completions/render", "/inference/v1/generate", "/v1/chat/completions/input_tokens",
                                  "/chat/completions/input_tokens", "/responses"])
def test_routes_of_ids_need_a_key(path, keyed):
    assert keyed.post(path, {}).status == 401
    assert keyed.post(path, {}, headers={"authorization": "Bearer m"}).status == 403  # a key for metrics only
    assert keyed.post(path, {}, headers={"authorization": "Bearer k"}).status == 400


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("k\nm metrics\n")
    with Server(api_key_file=str(keys)) as s:
        yield s


# ---- details that clients of vLLM and llama.cpp read ----

def test_unrequested_members_are_null_in_a_whole_answer(server):
    j = server.complete("a", max_tokens=1).json()["choices"][0]
    assert j["prompt_logprobs"] is j["prompt_token_ids"] is j["token_ids"] is None
    j = server.chat("a", max_tokens=1).json()
    assert j["prompt_logprobs"] is j["prompt_token_ids"] is j["choices"][0]["token_ids"] is j["choices"][0]["message"]["reasoning"] is None


def test_the_last_text_of_a_completion_is_sent_with_its_end(server):
    parts = [c["choices"][0] for c in server.complete("a b c d", max_tokens=4, ignore_eos=True, stream=True).chunks()]
    assert parts[-1]["finish_reason"] == "length" and all(p["text"] for p in parts)
    assert "".join(p["text"] for p in parts) == server.complete("a b c d", max_tokens=4, ignore_eos=True).json()["choices"][0]["text"]


def test_load_is_reported_to_balancers(server):
    ask = lambda form, **more: server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **more}, headers={"endpoint-load-metrics-format": form})
    text = ask("text").headers["endpoint-load-metrics"]
    assert text.startswith("TEXT named_metrics.kv_cache_usage_perc=") and "named_metrics.num_requests_waiting=0.0" in text
    said = ask("JSON", stream=True).headers["endpoint-load-metrics"]
    assert said.startswith("JSON ") and set(json.loads(said[5:])["named_metrics"]) == {"kv_cache_usage_perc", "num_requests_waiting", "num_requests_running"}
    assert "endpoint-load-metrics" not in ask("BIN").headers and "endpoint-load-metrics" not in server.complete("a", max_tokens=1).headers


def test_mixed_texts_and_ids_are_embedded():
    with Server(real=True) as s:
        embed = lambda v: s.post("/v1/embeddings", {"input": v})
        ids = s.post("/tokenize", {"prompt": "string", "add_special_tokens": False}).json()["tokens"]
        vector = lambda v: embed(v).json()["data"][0]["embedding"]
        assert vector([12, "string", 56]) == vector([12] + ids + [56])
        assert [len(embed(v).json()["data"]) for v in (["a", [12, 34]], [[12, 34], [12, "b"]], [[12], [34]])] == [2, 2, 2]
        said = {"content": [{"type": "text", "text": "str"}, {"type": "text", "text": "ing"}]}
        assert vector({"prompt_string": "string"}) == vector(said) == vector("string") == embed(["a", said]).json()["data"][1]["embedding"]
        assert [len(embed(v).json()["data"]) for v in (["a", {"prompt_string": "b"}, said], [said])] == [3, 1]
        for wrong in ({"content": "string"}, {}, {"content": [{"type": "input_audio", "input_audio": {}}]}, [{"content": []}]):
            assert embed(wrong).status == 400, wrong
        assert embed([12, True, "a"]).status == embed(["a", None]).status == embed([[], "a"]).status == 400


def test_a_template_is_applied_without_tools(server):
    plain = server.post("/apply-template", {"messages": [{"role": "user", "content": "x"}]}).json()
    assert server.post("/apply-template", {"messages": [{"role": "user", "content": "x"}], "tools": []}).json() == plain
    assert server.chat("x", tools=[]).error["code"] == "empty_array"
