# SPDX-License-Identifier: Apache-2.0
"""vLLM's /derender: turns the result of render and generate into the answer that the request itself would have had."""
import json
import re

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
    assert isinstance(first["logprob"], float) and isinstance(second["logprob"], float)  # never written as integers


def ids_of(server, text):
    return good(server.post("/tokenize", {"prompt": text, "add_special_tokens": False}))["tokens"]


def derender_text(server, ids, finish="stop", of=None, **choice):
    body = {"generate_responses": [{"choices": [{"token_ids": ids, "finish_reason": finish, **choice}]}], **({"completion_request": {"prompt": "x", **of}} if of else {})}
    return good(server.post(TEXT + "/derender", body))["choices"][0]


def test_the_schema_says_which_stop_reasons_fit(server):
    text = json.dumps(server.get("/openapi.json").json())
    stop = json.loads(re.search(r'"stop_reason": (\{"type": \["string", "integer", "null"\][^}]*\})', text)[1])
    for path in ("/v1/chat/completions/derender", "/v1/completions/derender"):
        for most, step in ((stop["maximum"], 2), (stop["minimum"], -2)):
            for n, status in ((most, 200), (most + step, 400)):
                r = server.post(path, {"stream": True, "generate_chunk": {"choices": [{"token_ids": [5], "stop_reason": n}]}})
                assert r.status == status, r.body


def test_the_text_ends_where_the_engine_ends_it(server):
    ids = ids_of(server, "one two three four")
    last = ids[-1]
    assert derender_text(server, ids)["text"] == "one two three four"
    assert derender_text(server, ids, stop_reason="two")["text"] == "one " and derender_text(server, ids, stop_reason="two")["stop_reason"] == "two"
    assert derender_text(server, ids, stop_reason="two", of={"include_stop_str_in_output": True})["text"] == "one two"
    cut = derender_text(server, ids, of={"stop": ["three", "four"]})
    assert (cut["text"], cut["stop_reason"]) == ("one two ", "three")
    assert derender_text(server, ids, finish="length", of={"stop": ["three"]})["text"] == "one two three four"
    assert derender_text(server, ids, of={"stop": ["one"], "min_tokens": 2})["text"] == "one two three four"
    for more in ({"stop_reason": last}, {"of": {"stop_token_ids": [last]}}):
        c = derender_text(server, ids, **more)
        assert c["text"] + server.post("/detokenize", {"tokens": [last]}).json()["prompt"] == "one two three four" and c["stop_reason"] == last
    assert derender_text(server, ids, finish="length", of={"stop_token_ids": [last]})["text"] == "one two three four"


def test_numbers_of_tokens_become_texts(server):
    entry = lambda *ids: {"token_id": ids[0], "logprob": -0.5, "rank": 2, "top_logprobs": [{"token_id": t, "logprob": -0.5 - i, "rank": (2, 1, 3)[i]} for i, t in enumerate(ids)]}
    choice = {"index": 0, "token_ids": [300], "finish_reason": "stop", "logprobs": {"content": [entry(300, 301, 302)]}}
    text = lambda t: good(server.post("/detokenize", {"tokens": [t]}))["prompt"]
    chat = lambda **more: good(server.post(CHAT + "/derender", {"generate_response": {"choices": [choice]}, **more}))["choices"][0]["logprobs"]["content"][0]
    all_ = chat()
    assert all_["token"] == text(300) and all_["bytes"] == list(text(300).encode()) and [t["token"] for t in all_["top_logprobs"]] == [text(t) for t in (300, 301, 302)]
    two = chat(chat_request={"messages": USER("a"), "logprobs": True, "top_logprobs": 2})["top_logprobs"]
    assert [t["token"] for t in two] == [text(301), text(300)]  # a chat lists the likeliest
    for n, want in ((0, [300]), (1, [300, 301]), (2, [300, 301, 302])):
        j = derender_text(server, [300], of={"logprobs": n}, logprobs=choice["logprobs"])
        assert list(j["logprobs"]["top_logprobs"][0]) == [text(t) for t in want] and j["logprobs"]["text_offset"] == [0]


def test_ids_are_returned_if_the_request_asks_for_them(server):
    for of in ({}, {"return_token_ids": True}):
        asked = bool(of)
        j = good(server.post(CHAT + "/derender", {"generate_response": response(prompt_token_ids=[7, 8], metrics={"a": 1}), "prompt_token_ids": [7, 8], "chat_request": {"messages": USER("a"), **of}}))
        assert j["prompt_token_ids"] == ([7, 8] if asked else None) and j["choices"][0]["token_ids"] == (IDS if asked else None) and j["metrics"] == {"a": 1}
        j = good(server.post(TEXT + "/derender", {"generate_responses": [response(prompt_token_ids=[7, 8])], "prompt_token_ids": [[7, 8]], "completion_request": {"prompt": "a", **of}}))
        assert j["choices"][0]["prompt_token_ids"] == ([7, 8] if asked else None)


def stream(server, path, chunks, **more):
    """Derenders a stream, with its state, and returns its chunks."""
    state, out = None, []
    for chunk in chunks:
        j = good(server.post(path + "/derender", {"stream": True, "generate_chunk": chunk, "stream_state": state, **more}))
        state = j["stream_state"]
        out.append(j["chunk"])
    return out


def pieces(ids, size, finish="stop"):
    parts = [ids[i:i + size] for i in range(0, len(ids), size)]
    return [{"request_id": "g", "choices": [{"index": 0, "token_ids": p, "finish_reason": finish if i == len(parts) - 1 else None}]} for i, p in enumerate(parts)]


@pytest.mark.parametrize("size", [1, 3, 50])
def test_streams_of_chats(server, size):
    ids = ids_of(server, '日本 text <tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>')
    of = {"messages": USER("a"), "tools": TOOLS, "return_token_ids": True}
    chunks = stream(server, CHAT, pieces(ids, size) + [{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(ids)}}], chat_request=of, prompt_token_ids=[1, 2, 3])
    usage = chunks.pop()
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 3 + len(ids)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert [d.get("role") for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    whole = good(server.post(CHAT + "/derender", {"generate_response": response(ids), "chat_request": of}))["choices"][0]
    assert "".join(d.get("content", "") for d in deltas) == whole["message"]["content"]
    calls = {}
    for d in deltas:
        for part in d.get("tool_calls", []):
            call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += part.get("id", "")
            call["name"] += part["function"].get("name", "")
            call["arguments"] += part["function"]["arguments"]
    assert [c["name"] for c in calls.values()] == ["get_weather"] * 2 and [json.loads(c["arguments"])["city"] for c in calls.values()] == ["Paris", "Rome"]
    assert len({c["id"] for c in calls.values()}) == 2 and sum((c["choices"][0]["token_ids"] for c in chunks), []) == ids
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"] and chunks[0]["id"] == "g"


def test_streams_of_reasoning_end_with_a_chunk_without_tokens():
    with Server(real=True, threads=2, chat_template=OPENED, reasoning_parser="qwen3") as s:
        ids, of = ids_of(s, " so it is</think> yes"), {"messages": USER("The cat sat")}
        chunks = stream(s, CHAT, pieces(ids, 1, None) + [{"choices": [{"index": 0, "finish_reason": "stop"}]}], chat_request=of)
        deltas = [c["choices"][0]["delta"] for c in chunks]
        assert "".join(d.get("reasoning", "") for d in deltas).strip() == "so it is" and "".join(d.get("content", "") for d in deltas).strip() == "yes"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop" and chunks[-2]["choices"][0]["finish_reason"] is None
        r = s.post(CHAT + "/derender", {"generate_response": response()})  # the parser was named, so text alone would be wrong
        assert r.status == 400 and r.error["param"] == "chat_request"
        hidden = good(s.post(CHAT + "/derender", {"generate_response": {"choices": [{"token_ids": ids, "logprobs": {"content": [{"token_id": 5, "logprob": -1}]}}]},
                                                  "chat_request": {**of, "include_reasoning": False, "return_token_ids": True, "logprobs": True}}))["choices"][0]
        assert hidden["logprobs"] is None and hidden["token_ids"] is None and hidden["message"]["content"].strip() == "yes"


def test_streams_of_completions(server):
    ids = ids_of(server, "日本 one two three")
    logprobs = lambda part: {"content": [{"token_id": t, "logprob": -1.0, "top_logprobs": []} for t in part]}
    chunks = pieces(ids, 2)
    for c in chunks:
        c["choices"][0]["logprobs"] = logprobs(c["choices"][0]["token_ids"])
    got = [c["choices"][0] for c in stream(server, TEXT, chunks)]
    whole = derender_text(server, ids, logprobs=logprobs(ids))
    assert "".join(c["text"] for c in got) == whole["text"] == "日本 one two three"
    assert all(sum((c["logprobs"][k] for c in got), []) == whole["logprobs"][k] for k in ("tokens", "text_offset", "token_logprobs"))
    stopped = [c["choices"][0] for c in stream(server, TEXT, pieces(ids, 2), completion_request={"prompt": "x", "stop_token_ids": [ids[-1]]})]
    assert "".join(c["text"] for c in stopped) == "日本 one two th" and stopped[-1]["stop_reason"] == ids[-1]


WRONG = [({}, "generate_response"), ({"generate_response": 5}, "generate_response"), ({"generate_response": {}}, "generate_response.choices"),
         ({"generate_response": {"choices": []}}, "generate_response.choices"), ({"generate_response": {"choices": [5]}}, "generate_response.choices[0]"),
         ({"generate_response": response([])}, "generate_response.choices[0].token_ids"), ({"generate_response": response(None)}, "generate_response.choices[0].token_ids"),
         ({"generate_response": response(["a"])}, "generate_response.choices[0].token_ids"), ({"generate_response": response([-1])}, "generate_response.choices[0].token_ids"),
         ({"generate_response": response([4096])}, "generate_response.choices[0].token_ids"), ({"generate_response": response([5] * 5000)}, "generate_response.choices[0].token_ids"),
         ({"generate_response": response(), "stream": True}, "generate_chunk"), ({"generate_response": response(), "generate_chunk": {"choices": []}}, "generate_chunk"),
         ({"stream": True, "generate_chunk": {"choices": [{}, {}]}}, "generate_chunk.choices"), ({"generate_chunk": {"choices": [{"token_ids": [-1]}]}}, "generate_chunk.choices[0].token_ids"),
         ({"generate_chunk": {"choices": []}, "stream_state": {"output_token_ids": [5, "a"]}}, "stream_state.output_token_ids"),
         ({"generate_chunk": {"choices": []}, "stream_state": {}}, "stream_state.output_token_ids"), ({"generate_chunk": {"choices": [], "usage": {"prompt_tokens": -1}}}, "generate_chunk.usage"),
         ({"generate_chunk": {"choices": [{"token_ids": [5] * 3000}]}, "stream_state": {"output_token_ids": [5] * 3000}}, "generate_chunk.choices[0].token_ids"),
         ({"generate_chunk": {"choices": []}, "chat_request": {"messages": USER("a"), "stop": "b"}}, "chat_request.stop"),
         ({"generate_response": response(), "prompt_token_ids": [5] * 5000}, "prompt_token_ids"), ({"generate_response": response(), "prompt_token_ids": [[5], [6]]}, "prompt_token_ids"),
         ({"generate_response": {"choices": [{"token_ids": [5], "finish_reason": "a\"b"}]}}, "generate_response.choices[0].finish_reason"), ({"generate_response": response(), "prompt_token_ids": [10 ** 6]}, "prompt_token_ids"),
         ({"generate_response": {"choices": [{"token_ids": [5], "stop_reason": {}}]}}, "generate_response.choices[0].stop_reason"),
         ({"generate_response": {"choices": [{"token_ids": [5], "logprobs": {"content": [{"token_id": 5, "logprob": -1, "top_logprobs": [{"token_id": 5}] * 30}]}}]}}, "generate_response.choices[0].logprobs.content"),
         ({"generate_response": response(), "prompt_tokens": -1}, "prompt_tokens"),
         ({"generate_response": response(), "chat_request": 5}, "chat_request"), ({"generate_response": response(), "chat_request": {"messages": 5}}, "messages"),
         ({"generate_response": response(), "chat_request": {"messages": []}}, "messages"), ({"generate_response": response(), "chat_request": {}}, "messages")]
WRONG_TEXTS = [({}, "generate_responses"), ({"generate_responses": []}, "generate_responses"), ({"generate_responses": [5]}, "generate_responses[0]"),
               ({"generate_responses": [response()], "prompt_tokens": [5, 10]}, "prompt_tokens"), ({"generate_responses": [response()], "prompt_tokens": "a"}, "prompt_tokens"),
               ({"generate_responses": [response()], "prompt_token_ids": [[5], [6]]}, "prompt_token_ids"), ({"generate_responses": [response()], "prompt_token_ids": [["a"]]}, "prompt_token_ids"),
               ({"generate_responses": [response()], "completion_request": {}}, "prompt"), ({"generate_chunk": {"choices": []}, "completion_request": {"prompt": "a", "stop": ["b"]}}, "completion_request.stop"),
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
