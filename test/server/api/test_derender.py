# SPDX-License-Identifier: Apache-2.0
"""vLLM's /derender: turns the result of render and generate into the answer that the request itself would have had."""
import json

import pytest
from api import Server

USER = lambda text: [{"role": "user", "content": text}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
OPENED = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"


@pytest.fixture(scope="module")
def server():
    with Server(real=True, threads=2) as s:
        yield s


def good(r):
    assert r.status == 200, r.body
    return r.json()


def round_trip(s, path, body):
    rendered = good(s.post(path + "/render", body))
    asked = rendered if isinstance(rendered, list) else [rendered]
    answers = [good(s.post("/inference/v1/generate", a)) for a in asked]
    prompts = [len(a["token_ids"]) for a in asked]
    if path == CHAT:
        return good(s.post(path + "/derender", {"generate_response": answers[0], "prompt_tokens": prompts[0], "prompt_token_ids": asked[0]["token_ids"], "chat_request": body})), answers
    return good(s.post(path + "/derender", {"generate_responses": answers, "prompt_tokens": prompts, "completion_request": body})), answers


def same(got, want, answers):
    for g, w in zip(got["choices"], want["choices"], strict=True):
        ids = lambda c: {**c, "stop_reason": None, "token_ids": None, "message": {**c.get("message", {}), "tool_calls": [{**t, "id": ""} for t in c.get("message", {}).get("tool_calls") or []]}}
        assert ids(g) == ids(w)
    assert got["object"] == want["object"] and got["model"] == want["model"] and got["id"] == answers[0]["request_id"]
    assert all(got["usage"][k] == want["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens"))


@pytest.mark.parametrize("more", [{}, {"n": 2, "temperature": 0.8, "seed": 5}, {"logprobs": True, "top_logprobs": 3}, {"max_tokens": 3}, {"stream": True}, {"skip_special_tokens": False}], ids=str)
def test_a_chat_is_derendered_to_its_answer(server, more):
    body = {"model": "demo", "messages": USER("Copy: a b c d"), "temperature": 0, "max_tokens": 20, **more}
    plain = {**body, "stream": False}
    got, answers = round_trip(server, CHAT, {**plain, "stream": False})
    if more.get("stream"):
        answers = [good(server.post("/inference/v1/generate", {**good(server.post(CHAT + "/render", plain)), "stream": False}))]
        got = good(server.post(CHAT + "/derender", {"generate_response": answers[0], "prompt_tokens": got["usage"]["prompt_tokens"], "chat_request": body}))
    same(got, good(server.post(CHAT, plain)), answers)


def test_calls_are_found(server):
    body = {"messages": USER("What is the weather in Paris?"), "tools": TOOLS, "temperature": 0, "max_tokens": 60}
    want = good(server.post(CHAT, body))
    assert want["choices"][0]["finish_reason"] == "tool_calls"
    got, answers = round_trip(server, CHAT, body)
    same(got, want, answers)
    assert got["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    bare = good(server.post(CHAT + "/derender", {"generate_response": answers[0]}))["choices"][0]
    assert "tool_call" in bare["message"]["content"] and not bare["message"].get("tool_calls") and bare["finish_reason"] == "stop"


def test_reasoning_is_found():
    with Server(real=True, threads=2, chat_template=OPENED, reasoning_parser="qwen3") as s:
        body = {"messages": USER("The cat sat"), "temperature": 0, "max_tokens": 12}
        ids = good(s.post("/tokenize", {"prompt": " so it is</think> yes", "add_special_tokens": False}))["tokens"]
        m = good(s.post(CHAT + "/derender", {"generate_response": {"choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop"}]}, "chat_request": body}))["choices"][0]["message"]
        assert m["reasoning"].strip() == "so it is" and m["content"].strip() == "yes"
        m = good(s.post(CHAT + "/derender", {"generate_response": {"choices": [{"token_ids": ids}]}, "chat_request": {**body, "include_reasoning": False}}))["choices"][0]["message"]
        assert m["reasoning"] is None and m["content"].strip() == "yes"


@pytest.mark.parametrize("more", [{}, {"logprobs": 2}, {"max_tokens": 2, "prompt": "Once"}], ids=str)
def test_completions_are_derendered_to_their_answers(server, more):
    body = {"model": "demo", "prompt": ["Once upon", "The sum"], "temperature": 0, "max_tokens": 9, **more}
    got, answers = round_trip(server, TEXT, body)
    want = good(server.post(TEXT, body))
    for c in want["choices"]:
        if c["logprobs"] and c["index"] == 0:  # offsets begin with the answer
            assert got["choices"][0]["logprobs"]["text_offset"] == c["logprobs"]["text_offset"]
    same(got, want, answers)


IDS = [300, 301, 302]


def response(ids=IDS, **more):
    return {"request_id": "x-1", "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": None}], "prompt_logprobs": None, "kv_transfer_params": None, **more}


def test_ids_counts_and_transfer_params_are_passed_on(server):
    j = good(server.post(CHAT + "/derender", {"generate_response": response(prompt_logprobs=[None, None], kv_transfer_params={"k": "v"})}))
    assert j["prompt_logprobs"] == [None, None] and j["kv_transfer_params"] == {"k": "v"} and j["id"] == "x-1" and j["usage"]["prompt_tokens"] == 0
    j = good(server.post(TEXT + "/derender", {"generate_responses": [response(), response(kv_transfer_params={"n": 1})], "prompt_tokens": [5, 10]}))
    assert j["kv_transfer_params"] == {"n": 1} and j["usage"] == {**j["usage"], "prompt_tokens": 15, "completion_tokens": 6, "total_tokens": 21} and [c["index"] for c in j["choices"]] == [0, 1]
    odd = response()
    odd["choices"][0].update(finish_reason="abort", logprobs={"content": [{"token": "token_id:300", "logprob": -1.0, "bytes": None, "top_logprobs": [{"token": "é", "logprob": -2}]}, {"token": "token_id:99999", "logprob": -3.0}]})
    c = good(server.post(CHAT + "/derender", {"generate_response": odd}))["choices"][0]
    first, second = c["logprobs"]["content"]
    assert c["finish_reason"] == "abort" and first["token"][:5] != "token" and first["bytes"] and first["top_logprobs"] == [{"token": "é", "logprob": -2, "bytes": [195, 169]}]
    assert second["token"] == "token_id:99999" and second["top_logprobs"] == []


WRONG = [({}, "generate_response"), ({"generate_response": 5}, "generate_response"), ({"generate_response": {}}, "generate_response.choices"),
         ({"generate_response": {"choices": []}}, "generate_response.choices"), ({"generate_response": {"choices": [5]}}, "generate_response.choices[0]"),
         ({"generate_response": response([])}, "generate_response.choices[0].token_ids"), ({"generate_response": response(None)}, "generate_response.choices[0].token_ids"),
         ({"generate_response": response(["a"])}, "generate_response.choices[0].token_ids"), ({"generate_response": response([-1])}, "generate_response.choices[0].token_ids"),
         ({"generate_response": response([4096])}, "generate_response.choices[0].token_ids"), ({"generate_response": response([5] * 5000)}, "generate_response.choices[0].token_ids"),
         ({"generate_response": response(), "stream": True}, "stream"), ({"generate_response": response(), "prompt_tokens": -1}, "prompt_tokens"),
         ({"generate_response": response(), "chat_request": 5}, "chat_request"), ({"generate_response": response(), "chat_request": {"messages": 5}}, "messages"),
         ({"generate_response": response(), "chat_request": {"messages": []}}, "messages"), ({"generate_response": response(), "chat_request": {}}, "messages")]
WRONG_TEXTS = [({}, "generate_responses"), ({"generate_responses": []}, "generate_responses"), ({"generate_responses": [5]}, "generate_responses[0]"),
               ({"generate_responses": [response()], "prompt_tokens": [5, 10]}, "prompt_tokens"), ({"generate_responses": [response()], "prompt_tokens": "a"}, "prompt_tokens"),
               ({"generate_responses": [response(), response([])]}, "generate_responses[1].choices[0].token_ids"), ({"generate_responses": [response()], "completion_request": 1}, "completion_request")]


@pytest.mark.parametrize("path, body, param", [(CHAT, *w) for w in WRONG] + [(TEXT, *w) for w in WRONG_TEXTS], ids=range(len(WRONG) + len(WRONG_TEXTS)))
def test_wrong_ones_are_refused(server, path, body, param):
    r = server.post(path + "/derender", body)
    assert r.status == 400 and r.error["param"] == param, r.body


def test_unknown_models_and_bodies(server):
    assert server.post(CHAT + "/derender", {"model": "none", "generate_response": response()}).status == 404
    for path in (CHAT, TEXT):
        for body in ("", "[", "5", "[]", "null", "{\"a\"", "\xff", "[" * 100000):
            assert server.post(path + "/derender", body).status == 400


def test_the_routes_need_a_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k inference n\na admin m\n")
    with Server(api_key_file=keys) as s:
        for path in (CHAT + "/derender", TEXT + "/derender"):
            assert s.post(path, {}).status == 401 and s.post(path, {}, headers={"authorization": "Bearer a"}).status == 403
            assert s.post(path, {}, headers={"authorization": "Bearer k"}).status == 400
