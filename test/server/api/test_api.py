# SPDX-License-Identifier: Apache-2.0
"""The API over HTTP: shapes, streams against whole answers, errors, limits, keys, health, drain."""

import concurrent.futures
import http.client
import json
import os
import re
import resource
import signal
import socket
import tempfile
import threading
import time

import pytest
from api import DEMO, SLOW, Reply, Server, fold, scripted

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
    """The same with seven tokens a step."""
    with scripted(TEXTS, reasoning_parser="think", env={"FAKE_GROUP": "7"}) as s:
        yield s
    os.unlink(s.script_path)


# ---- shapes ----

def test_chat_object_has_every_key(server):
    r = server.chat(seed=0, model="demo")
    j = r.json()
    assert r.status == 200 and r.headers["content-type"] == "application/json"
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", j["id"]) and j["id"].endswith(r.headers["x-request-id"])
    assert j["object"] == "chat.completion" and j["model"] == "demo" and abs(j["created"] - time.time()) < 60
    (c,) = j["choices"]
    assert c["message"] == {"role": "assistant", "content": TEXTS[0], "refusal": None, "annotations": [], "reasoning": None}
    assert (c["index"], c["finish_reason"], c["logprobs"]) == (0, "stop", None)
    u = j["usage"]
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] and u["prompt_tokens_details"]["cached_tokens"] > 0
    assert u["completion_tokens_details"]["reasoning_tokens"] == 0
    assert j["system_fingerprint"].startswith("fp_") and j["service_tier"] == "default"


@pytest.mark.parametrize("seed", range(len(TEXTS)))
@pytest.mark.parametrize("which", ["server", "grouped"])
def test_stream_folds_to_the_whole(seed, which, request):
    s = request.getfixturevalue(which)
    body = {"seed": seed, "tools": [WEATHER], "logprobs": True, "top_logprobs": 2, "n": 2 if seed == 0 else 1}
    if seed == 4:
        body["stop"] = ["STOP"]
    if seed == 7:
        body["max_tokens"] = 3
    whole = s.chat(**body)
    assert whole.status == 200, whole.body
    stream = s.chat(stream=True, stream_options={"include_usage": True}, **body)
    assert stream.headers["content-type"].startswith("text/event-stream")
    chunks = stream.chunks()
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    assert all(c["object"] == "chat.completion.chunk" for c in chunks)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole.json()["usage"]
    assert all(c["usage"] is None for c in chunks[:-1])
    choices = whole.json()["choices"]
    folded = fold(chunks)
    assert len(folded) == len(choices) == body["n"]
    for c, f in zip(choices, folded):
        m = c["message"]
        assert f["finish"] == c["finish_reason"]
        assert (f["message"]["content"] or None) == (m["content"] or None)
        assert f["message"].get("reasoning") == m.get("reasoning") == m.get("reasoning_content")
        assert f["logprobs"] == c["logprobs"]["content"]
        calls = [x["function"] for x in m.get("tool_calls", [])]
        assert [x["function"] for x in f["message"].get("tool_calls", [])] == calls
        for call in calls:
            json.loads(call["arguments"])


def test_tool_calls_and_reasoning_parse(server):
    m = server.chat(seed=1, tools=[WEATHER]).json()["choices"][0]
    assert m["finish_reason"] == "tool_calls" and m["message"]["content"] == "Let me see."
    (call,) = m["message"]["tool_calls"]
    assert re.fullmatch(r"call_[a-z0-9]{24}", call["id"]) and call["type"] == "function"
    assert json.loads(call["function"]["arguments"]) == {"city": 'Paris "x" \u00e9\U0001F600'}
    m = server.chat(seed=2, tools=[WEATHER]).json()["choices"][0]["message"]
    assert m["content"] is None and len(m["tool_calls"]) == 2 and len({c["id"] for c in m["tool_calls"]}) == 2
    m = server.chat(seed=2, tools=[WEATHER], parallel_tool_calls=False).json()["choices"][0]["message"]
    assert len(m["tool_calls"]) == 1
    m = server.chat(seed=2).json()["choices"][0]
    assert m["finish_reason"] == "stop" and m["message"]["content"].count("<tool_call>") == 2
    m = server.chat(seed=2, tools=[WEATHER], tool_choice="none").json()["choices"][0]["message"]
    assert "tool_calls" not in m
    m = server.chat(seed=6, tools=[WEATHER]).json()["choices"][0]
    assert m["finish_reason"] == "stop" and m["message"]["content"] == TEXTS[6]
    m = server.chat(seed=3).json()["choices"][0]["message"]
    assert (m["reasoning"], m["reasoning_content"], m["content"]) == ("I wonder.", "I wonder.", "The answer is 42.")
    m = server.chat(seed=3, include_reasoning=False).json()["choices"][0]["message"]
    assert m["reasoning"] is None and "reasoning_content" not in m and m["content"] == "The answer is 42."


def test_stop_strings(server):
    r = server.complete(seed=4, stop="STOP", max_tokens=50).json()["choices"][0]
    assert (r["text"], r["finish_reason"], r["stop_reason"]) == ("one ", "stop", "STOP")
    r = server.complete(seed=4, stop=["zzz", " two"], include_stop_str_in_output=True, max_tokens=50).json()["choices"][0]
    assert (r["text"], r["stop_reason"]) == ("one STOP two", " two")
    text = "".join(c["choices"][0]["text"] for c in server.complete(seed=4, stop="STOP", max_tokens=50, stream=True).chunks())
    assert text == "one "


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_wait_for_min_tokens(server, stream):
    def ends(**more):
        r = server.complete(seed=7, max_tokens=50, stream=stream, return_token_ids=True, **more)
        choices = [c["choices"][0] for c in r.chunks()] if stream else [r.json()["choices"][0]]
        return "".join(c["text"] for c in choices), sum(len(c["token_ids"]) for c in choices), choices[-1]["stop_reason"]

    assert ends() == ("a" * 30, 31, None) and ends(stop="a") == ("", 1, "a")
    assert ends(stop="a", min_tokens=5) == ("aaaaa", 6, "a")  # the token behind them is the first that may end one
    assert ends(stop="a" * 6, min_tokens=5) == ("", 6, "a" * 6)  # and one may begin in theirs
    assert ends(stop=["aaa", "b"], min_tokens=5) == ("aaa", 6, "aaa")
    assert ends(stop="a", min_tokens=5, include_stop_str_in_output=True) == ("aaaaaa", 6, "a")


def test_completions_forms_and_echo(server):
    r = server.complete(["alpha beta", "gamma"], n=2, max_tokens=2).json()
    assert r["object"] == "text_completion" and [c["index"] for c in r["choices"]] == [0, 1, 2, 3]
    r = server.complete([[5, 6, 7], [8, 9]], max_tokens=1, echo=True, logprobs=1).json()
    for c, n in zip(r["choices"], (3, 2)):
        l = c["logprobs"]
        assert len(l["tokens"]) == len(l["token_logprobs"]) == len(l["top_logprobs"]) == len(l["text_offset"]) == n + 1
        assert l["token_logprobs"][0] is None and l["top_logprobs"][0] is None
        assert all(t in top for t, top in list(zip(l["tokens"], l["top_logprobs"]))[1:])
        assert "".join(l["tokens"]) == c["text"]
        assert [c["text"][o:o + len(t)] for o, t in zip(l["text_offset"], l["tokens"])] == l["tokens"]
    # What is echoed is what was computed, and offsets count its characters: no special tokens, nothing that was cut.
    for prompt, more, text in (([4083, 5, 6], {}, "&'"), ("a b c d", {"truncate_prompt_tokens": 2}, " c d")):
        c = server.complete(prompt, max_tokens=1, echo=True, logprobs=0, **more).json()["choices"][0]
        shown = [(o, t) for o, t in zip(c["logprobs"]["text_offset"], c["logprobs"]["tokens"]) if t != "<|begin_of_text|>"]
        assert c["text"].startswith(text) and [c["text"][o:o + len(t)] for o, t in shown] == [t for _, t in shown]
    # Special tokens that a text has are in what is echoed; the one that is put before it is not.
    for prompt, added in (("<|im_start|>user\nhi<|im_end|>", True), ("<|begin_of_text|>h\u00e4", True), ("<|im_end|>", False)):
        for skip in (True, False):
            c = server.complete(prompt, seed=0, max_tokens=2, echo=True, logprobs=0, add_special_tokens=added,
                                skip_special_tokens=skip).json()["choices"][0]
            shown = list(zip(c["logprobs"]["text_offset"], c["logprobs"]["tokens"]))
            assert c["text"].startswith(prompt) and shown[0][0] == 0
            assert all(c["text"][o:].startswith(t) for o, t in shown[added:] if "\ufffd" not in t)
    r = server.complete("hello", max_tokens=0, echo=True).json()["choices"][0]
    assert r["text"] == "hello" and r["finish_reason"] == "length"
    r = server.complete([5, 6], max_tokens=3, return_token_ids=True).json()["choices"][0]
    assert r["prompt_token_ids"] == [5, 6] and r["token_ids"] == [5, 6, 5]
    chunks = server.complete([5, 6], max_tokens=3, return_token_ids=True, stream=True).chunks()
    assert sum((c["choices"][0]["token_ids"] for c in chunks), []) == [5, 6, 5]
    r = server.chat(return_token_ids=True, max_tokens=2).json()["choices"][0]
    assert len(r["token_ids"]) == 2 and r["prompt_token_ids"][:2] == r["token_ids"]
    r = server.complete([5, 6], max_tokens=2, logprobs=0, return_tokens_as_token_ids=True).json()["choices"][0]
    assert r["logprobs"]["tokens"] == ["token_id:5", "token_id:6"]
    r = server.complete([5, 6], max_tokens=1, prompt_logprobs=1).json()["choices"][0]
    assert r["prompt_logprobs"][0] is None and r["prompt_logprobs"][1]["6"]["rank"] == 1


def test_a_model_without_a_tokenizer_takes_and_gives_ids(tmp_path):
    for name in ("config.json", "generation_config.json"):
        os.symlink(os.path.join(DEMO, name), tmp_path / name)
    with Server(model=str(tmp_path), served_model_name="bare", skip_tokenizer_init=True, env={"FAKE_STEP_US": "20000"}) as s:
        body = {"prompt": [5, 6, 7], "max_tokens": 6, "return_token_ids": True}
        c = s.post("/v1/completions", {**body, "logprobs": 1}).json()["choices"][0]
        assert (c["token_ids"], c["text"], c["finish_reason"]) == ([5, 6, 7, 5, 6, 7], "", "length")
        assert c["logprobs"]["tokens"][0] == "token_id:5"
        chunks = s.post("/v1/completions", {**body, "stream": True}).chunks()
        assert sum((x["choices"][0]["token_ids"] for x in chunks), []) == c["token_ids"]
        assert len(chunks) > 3  # as they come, not at the end
        for wrong, param in (({"prompt": "text"}, "prompt"), ({"prompt": [5], "stop": "x"}, "stop")):
            r = s.post("/v1/completions", wrong)
            assert (r.status, r.error["code"], r.error["param"]) == (400, "unsupported_value", param)
        assert s.chat().error["code"] == "unsupported_model"


def test_parts_of_characters_are_told_apart_in_logprobs():
    """A key of top_logprobs for each token, whatever it is a part of; chat has its bytes beside U+FFFD."""
    def pairs(list):
        assert len({k for k, _ in list}) == len(list), list
        return dict(list)

    with Server(real=True) as s:
        r = s.complete("日本🙂é ok", echo=True, logprobs=20, max_tokens=1)
        l = json.loads(r.body, object_pairs_hook=pairs)["choices"][0]["logprobs"]
        assert all(len(top) >= 20 for top in l["top_logprobs"][1:])
        parts = [t for t in l["tokens"] if t.startswith("bytes:")]
        raw = b"".join(bytes.fromhex(t[6:].replace("\\x", "")) for t in parts)
        assert parts and raw.decode() and not any("\ufffd" in t for t in l["tokens"])
        assert all(re.fullmatch(r"bytes:(\\x[0-9a-f]{2})+", t) for t in parts)
        assert all(t in top for t, top in list(zip(l["tokens"], l["top_logprobs"]))[1:])
        top = s.chat("日本", max_tokens=2, logprobs=True, top_logprobs=20).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert len(top) == 20 and not any(t["token"].startswith("bytes:") for t in top)


def test_ids_stream_beside_text(server):
    chunks = server.chat(seed=0, stream=True, return_token_ids=True).chunks()
    whole = server.chat(seed=0, return_token_ids=True).json()["choices"][0]
    assert sum((c["choices"][0]["token_ids"] for c in chunks), []) == whole["token_ids"]
    assert fold(chunks)[0]["message"]["content"] == whole["message"]["content"]


def test_continuous_usage(server):
    chunks = server.chat(seed=0, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}).chunks()
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == sorted(counts) and counts[-1] > 3


def test_embeddings(server):
    import base64
    import struct

    f = server.post("/v1/embeddings", {"input": ["one", "two three"]}).json()
    b = server.post("/v1/embeddings", {"input": ["one", "two three"], "encoding_format": "base64"}).json()
    assert f["object"] == "list" and [d["index"] for d in f["data"]] == [0, 1] and f["usage"]["total_tokens"] > 2
    for x, y in zip(f["data"], b["data"]):
        v = struct.unpack("<8f", base64.b64decode(y["embedding"]))
        assert x["embedding"] == pytest.approx(v) and sum(a * a for a in v) == pytest.approx(1, rel=1e-5)
    assert server.post("/v1/embeddings", {"input": [[5, 6], [7]]}).status == 200
    assert server.post("/v1/embeddings", {"input": [5] * 3000}).error["code"] == "context_length_exceeded"
    assert server.post("/v1/embeddings", {"input": [5] * 3000, "truncate_prompt_tokens": -1}).json()["usage"]["prompt_tokens"] == 2048


def test_tokenize_and_back(server):
    t = server.post("/tokenize", {"prompt": "Hello world", "return_token_strs": True}).json()
    assert t["count"] == len(t["tokens"]) == len(t["token_strs"]) and t["max_model_len"] == 2048
    plain = server.post("/tokenize", {"prompt": "Hello world", "add_special_tokens": False}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": plain}).json()["prompt"] == "Hello world"
    assert server.post("/detokenize", {"tokens": []}).json()["prompt"] == ""
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json()
    assert chat["count"] > 4
    eos = {"prompt": server.get("/tokenizer_info").json()["eos_token"], "add_special_tokens": False}
    assert server.post("/tokenize", eos).json()["count"] == 1
    spelled = server.post("/tokenize", dict(eos, parse_special=False)).json()["tokens"]
    assert len(spelled) > 1 and server.post("/detokenize", {"tokens": spelled}).json()["prompt"] == eos["prompt"]
    counts = [server.post("/v1/completions", dict(eos, max_tokens=1, parse_special=p)).json()["usage"]["prompt_tokens"]
              for p in (True, False)]
    assert counts == [1, len(spelled)]
    info = server.get("/tokenizer_info").json()
    assert "chat_template" in info and info["eos_token"]


def test_a_text_beyond_the_context_is_counted_and_not_guessed_at(server):
    long = {"prompt": "word " * 500000}
    t = server.post("/tokenize", long).json()
    assert t["count"] == len(t["tokens"]) >= 500000
    e = server.post("/v1/completions", long).error
    assert e["code"] == "context_length_exceeded" and e["n_ctx"] == 2048 and "n_prompt_tokens" not in e
    assert re.search(r"you requested at least \d+ tokens \(at least \d+ in the prompt", e["message"])


def test_another_tokenizers_folder_has_the_special_tokens(tmp_path):
    """Of a template that a request brings as of the server's; a single file has nothing beside it."""
    with open(DEMO + "/tokenizer_config.json") as f:
        config = json.load(f)
    for name, bos in (("model", "<|im_start|>"), ("text", "<|im_end|>")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": bos}))
    (tmp_path / "text" / "tokenizer.json").symlink_to(DEMO + "/tokenizer.json")
    (tmp_path / "model" / "config.json").write_text("{}")
    body = {"messages": [{"role": "user", "content": "x"}], "return_token_strs": True}
    template = "{{ bos_token }}{{ messages[0].content }}"
    for path, bos in (("text", "<|im_end|>"), ("text/tokenizer.json", "<|im_start|>")):
        with Server(model=str(tmp_path / "model"), tokenizer=str(tmp_path / path), chat_template=template,
                    trust_request_chat_template=True) as s:
            for more in ({}, {"chat_template": template}):
                assert s.post("/tokenize", {**body, **more}).json()["token_strs"] == [bos, "x"]
            assert s.get("/tokenizer_info").json()["bos_token"] == bos


def test_models(server):
    j = server.get("/v1/models").json()
    assert j["data"][0]["max_model_len"] == 2048 and j["data"][0]["owned_by"] == "sluice"
    assert server.get("/v1/models/demo").json()["id"] == "demo"
    assert j["data"][0]["id"] == "demo"
    assert server.get("/v1/models/none").error["code"] == "model_not_found"
    assert server.get("/v1/models").headers["x-engine-state"] == "ok"


def test_any_model_may_be_named():
    with Server(served_model_name="one,*") as s:
        assert [m["id"] for m in s.get("/v1/models").json()["data"]] == ["one"]
        for name in ("one", "gpt-4", "*", "a/b"):
            assert s.chat(model=name, max_tokens=1).json()["model"] == "one" and s.complete(model=name, max_tokens=1).status == 200
        assert s.get("/v1/models/gpt-4").json()["id"] == "one" and s.post("/api/show", {"model": "x:latest"}).status == 200
    with Server(served_model_name="*") as s:
        assert s.get("/v1/models").json()["data"][0]["id"] == "demo" and s.chat(model="gpt-4", max_tokens=1).json()["model"] == "demo"


@pytest.mark.parametrize("model", [DEMO + "/", DEMO + "/.", ".", "../demo", os.path.relpath(DEMO, DEMO)])
def test_the_first_name_is_the_folders(model):
    with Server(model=model, cwd=DEMO) as s:
        names = [m["id"] for m in s.get("/v1/models").json()["data"]]
        assert names[0] == "demo"
        assert s.complete("x", max_tokens=1).json()["model"] == "demo"
        assert s.complete("x", max_tokens=1, model="demo").status == 200


def test_responses(server):
    j = server.post("/v1/responses", {"input": "hi", "seed": 3, "metadata": {"a": "b"}, "store": False}).json()
    assert j["object"] == "response" and j["status"] == "completed" and j["metadata"] == {"a": "b"} and j["store"] is False
    assert [o["type"] for o in j["output"]] == ["reasoning", "message"]
    probs = server.post("/v1/responses", {"input": "hi", "seed": 3, "include": ["message.output_text.logprobs"]}).json()["output"][1]
    assert "".join(l["token"] for l in probs["content"][0]["logprobs"]).endswith("The answer is 42.")
    assert j["output"][1]["content"][0]["text"] == "The answer is 42." and j["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    tool = {"type": "function", **WEATHER["function"]}
    body = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]}], "seed": 1, "tools": [tool]}
    j = server.post("/v1/responses", body).json()
    assert [o["type"] for o in j["output"]] == ["message", "function_call"] and json.loads(j["output"][1]["arguments"])["city"]
    r = server.post("/v1/responses", {**body, "stream": True})
    events = [json.loads(e) for e in r.events()]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    names = re.findall(r"^event: (.*)$", r.body.decode(), re.M)
    assert names == [e["type"] for e in events]
    assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed"
    def strip(items):
        return [{k: v for k, v in o.items() if k not in ("id", "call_id")} for o in items]
    assert strip(events[-1]["response"]["output"]) == strip(j["output"])
    j = server.post("/v1/responses", {"input": "hi", "seed": 0, "max_output_tokens": 2}).json()
    assert j["status"] == "incomplete" and j["incomplete_details"] == {"reason": "max_output_tokens"}
    for word in ("disabled", None):
        j = server.post("/v1/responses", {"input": "hi", "seed": 0, "truncation": word}).json()
        assert (j["status"], j["truncation"]) == ("completed", "disabled")
    assert server.post("/v1/responses/input_tokens", {"input": "hi"}).json()["input_tokens"] > 3
    assert server.get("/v1/responses/resp_1").error["code"] == "not_found"


def test_events_written_when_a_stream_has_room_again_go_out(server):
    r = server.complete([[5] * 400] * 8, max_tokens=1, echo=True, logprobs=20, stream=True)  # 80 kB each
    assert sum(len(c["choices"][0]["logprobs"]["tokens"]) for c in r.chunks() if c["choices"][0]["logprobs"]) == 8 * 401


def test_bursts_larger_than_any_socket_reach_a_reader():
    """The prompt's log probabilities are one event, and the end of a response repeats all of its text's."""
    with Server(env={"FAKE_GROUP": "500", "FAKE_CONTEXT": "16384"}) as s:
        r = s.complete([5] * 16000, max_tokens=1, echo=True, logprobs=20, stream=True)
        assert r.status == 200 and len(r.body) > 2 << 20
        assert sum(len(c["choices"][0]["logprobs"]["tokens"]) for c in r.chunks()[:1]) == 16001
        r = s.post("/v1/responses", {"input": "a b c d", "max_output_tokens": 1500, "stream": True, "top_logprobs": 20,
                                     "include": ["message.output_text.logprobs"]})
        last = json.loads(r.events()[-1])
        assert last["type"] == "response.incomplete" and len(r.body) > 4 << 20
        assert len(last["response"]["output"][0]["content"][0]["logprobs"]) > 1000
        assert not s.metric("sluice_aborted_total", cause="slow_reader")


@pytest.mark.parametrize("version", ["1.1", "1.0"])  # the two writers
@pytest.mark.parametrize("path,more", [("chat/completions", {"logprobs": True, "top_logprobs": 20}),
                                       ("completions", {"logprobs": 20})])
def test_the_tokens_of_a_reader_that_pauses_wait_in_the_engine(path, more, version):
    with Server(env={"FAKE_GROUP": "1000", "FAKE_CONTEXT": "4096"}) as s, socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        c.settimeout(10)
        c.connect(("127.0.0.1", s.port))
        body = json.dumps({"messages": [{"role": "user", "content": "x"}], "prompt": "a b c", "n": 2, "max_tokens": 2500,
                           "stream": True, **more})
        c.sendall(("POST /v1/%s HTTP/%s\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                   % (path, version, len(body), body)).encode())
        r = http.client.HTTPResponse(c)
        r.begin()
        assert eventually(lambda: running(s) == 0)  # all is drawn
        assert 0 < s.metric_plain("sluice_http_held_stream_bytes") < 300 << 10
        r = Reply(r, r.read())
        chunks = r.chunks()
        assert len(r.body) > 1 << 20
        logprobs = [x["choices"][0]["logprobs"] for x in chunks if x["choices"][0]["logprobs"]]
        assert sum(len(l.get("content", l.get("tokens"))) for l in logprobs) == 2 * 2500
        assert [x["choices"][0]["finish_reason"] for x in chunks].count("length") == 2


# ---- errors ----

@pytest.mark.parametrize("seed", [1, 2])
def test_functions_are_answered_in_the_old_form(server, seed):
    """One call, as message.function_call; TEXTS[2] has a second one, which that form has no place for."""
    body = {"seed": seed, "functions": [WEATHER["function"]]}
    (c,) = server.chat(**body).json()["choices"]
    m = c["message"]
    assert c["finish_reason"] == "function_call" and "tool_calls" not in m
    assert m["content"] == ("Let me see." if seed == 1 else None)
    assert m["function_call"]["name"] == "get_weather" and set(m["function_call"]) == {"name", "arguments"}
    assert json.loads(m["function_call"]["arguments"])["city"].startswith("Paris")
    deltas = [c["choices"][0]["delta"] for c in server.chat(stream=True, **body).chunks()]
    calls = [d["function_call"] for d in deltas if "function_call" in d]
    assert not any("tool_calls" in d for d in deltas)
    assert calls[0] == {"name": "get_weather", "arguments": ""} and not any("name" in f for f in calls[1:])
    assert "".join(f["arguments"] for f in calls) == m["function_call"]["arguments"]


def test_a_nul_is_a_character_like_others(server):
    ids = server.post("/tokenize", {"prompt": "a\0b", "add_special_tokens": False}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json()["prompt"] == "a\0b"
    r = server.complete("a\0b", echo=True, max_tokens=0).json()
    assert r["choices"][0]["text"] == "a\0b"
    assert server.chat("a\0b", seed=0).json()["choices"][0]["message"]["content"] == TEXTS[0]


@pytest.mark.parametrize("path,body,status,code,param", [
    ("/v1/chat/completions", "{", 400, "json_parse_error", None),
    ("/v1/chat/completions", {"messages": []}, 400, "empty_array", "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": -9}, 400, "decimal_below_min_value", "temperature"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "model": "gpt-4"}, 404, "model_not_found", "model"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x " * 3000}]}, 400, "context_length_exceeded", "messages"),
    ("/v1/completions", {"prompt": [5] * 2048}, 400, "context_length_exceeded", "prompt"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 5000}, 400, "context_length_exceeded", "prompt"),
    ("/v1/nothing", {}, 404, "unknown_url", None),
])
def test_errors_are_objects(server, path, body, status, code, param):
    r = server.post(path, body)
    assert r.status == status and r.headers["content-type"] == "application/json"
    more = {"n_prompt_tokens", "n_ctx"} if code == "context_length_exceeded" else set()
    assert set(r.error) == {"message", "type", "param", "code"} | more
    assert (r.error["code"], r.error["param"], r.error["type"]) == (code, param, "invalid_request_error")
    assert r.headers["x-request-id"]
    if code == "context_length_exceeded":
        assert r.error["message"].startswith("This model's maximum context length is 2048 tokens.")


ONE = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
TOOL = {"tools": [WEATHER]}


@pytest.mark.parametrize("path,more,code,param", [
    ("chat", {"stream": True, "stream_options": {"include_usage": "yes"}}, "invalid_type", "stream_options.include_usage"),
    ("chat", {"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ("chat", {"store": "x"}, "invalid_type", "store"),
    ("chat", {"metadata": 5}, "invalid_type", "metadata"),
    ("chat", {"service_tier": 5}, "invalid_type", "service_tier"),
    ("chat", {"request_id": "a b"}, "invalid_value", "request_id"),
    ("chat", {"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
    ("chat", {"audio": {"voice": "a"}}, "unsupported_parameter", "audio"),
    ("chat", {"modalities": ["audio"]}, "unsupported_value", "modalities"),
    ("chat", {"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    ("chat", {"n": 2.5}, "invalid_type", "n"),
    ("chat", {"seed": 1 << 63}, "invalid_value", "seed"),
    ("chat", {"stop": ["a"] * 17}, "array_above_max_length", "stop"),
    ("chat", {"stop": "a" * 1025}, "string_above_max_length", "stop"),
    ("chat", {"stop": ["b", "\u00e4" * 2049]}, "string_above_max_length", "stop"),
    ("chat", {"logit_bias": {"99999": 1}}, "invalid_value", "logit_bias"),
    ("chat", {"allowed_token_ids": []}, "empty_array", "allowed_token_ids"),
    ("chat", {"tools": []}, "empty_array", "tools"),
    ("chat", {"tools": [5]}, "invalid_type", "tools[0]"),
    ("chat", {"tools": [WEATHER] * 129}, "array_above_max_length", "tools"),
    ("chat", {"functions": [WEATHER["function"]] * 129}, "array_above_max_length", "functions"),
    ("chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "invalid_type", "tools[0].function.parameters"),
    ("chat", {"tools": [{"type": "custom"}]}, "missing_required_parameter", "tools[0].custom"),
    ("chat", {"tools": [{"type": "mcp"}]}, "unsupported_value", "tools[0].type"),
    ("chat", {"tool_choice": "auto"}, "invalid_value", "tool_choice"),
    ("chat", {**TOOL, "tool_choice": "foo"}, "invalid_value", "tool_choice"),
    ("chat", {**TOOL, "tool_choice": {"type": "function", "function": {"name": "b"}}}, "invalid_value", "tool_choice"),
    ("chat", {**TOOL, "tool_choice": {"type": "allowed_tools"}}, "invalid_value", "tool_choice"),
    ("chat", {"response_format": {"type": "grammar"}}, "unsupported_value", "response_format"),
    ("chat", {"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
    ("chat", {"chat_template": "x"}, "unsupported_parameter", "chat_template"),
    ("chat", {"messages": [{"role": "system|user", "content": "a"}]}, "invalid_value", "messages[0].role"),
    ("chat", {"reasoning_effort": "low|high"}, "invalid_value", "reasoning_effort"),
    ("chat", {"reasoning": {"effort": {}}}, "invalid_type", "reasoning.effort"), ("chat", {"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
    ("chat", {"messages": [{"role": "user", "name": 5, "content": "a"}]}, "invalid_type", "messages[0].name"),
    ("chat", {"messages": [{"role": "tool", "content": "a"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
    ("chat", {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}]},
     "missing_required_parameter", "messages[0].tool_calls[0].function.arguments"),
    ("completions", {"prompt": ""}, "invalid_value", "prompt"),
    ("completions", {"prompt": ["a", ""]}, "invalid_value", "prompt"),
    ("completions", {"prompt": [[]]}, "empty_array", "prompt"),
    ("completions", {"prompt": [-1]}, "invalid_value", "prompt"),
    ("completions", {"prompt": [1, "a"]}, "invalid_type", "prompt"),
    ("completions", {"prompt": [99999]}, "invalid_value", "prompt"),
    ("completions", {"suffix": "x"}, "unsupported_value", "suffix"),
    ("completions", {"best_of": 2}, "unsupported_value", "best_of"),
    ("completions", {"logprobs": 21}, "integer_above_max_value", "logprobs"),
    ("completions", {"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
    ("completions", {"prompt_logprobs": -1}, "integer_below_min_value", "prompt_logprobs"),
    ("completions", {"stream": True, "prompt_logprobs": 1}, "invalid_value", "prompt_logprobs"),
    ("embeddings", {"input": ""}, "invalid_value", "input"),
    ("embeddings", {"encoding_format": "hex"}, "invalid_value", "encoding_format"),
    ("embeddings", {"dimensions": 3}, "unsupported_value", "dimensions"),
    ("embeddings", {"input": ["a"] * 2049}, "array_above_max_length", "input"),
    ("responses", {"tool_choice": "foo"}, "invalid_value", "tool_choice"),
    ("responses", {"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    ("responses", {"tools": [5]}, "invalid_type", "tools[0]"),
    ("responses", {"tools": [{"type": "function", "name": ""}]}, "missing_required_parameter", "tools[0].name"),
    ("responses", {"tools": [{"type": "function", "name": "f", "parameters": "x"}]}, "invalid_type", "tools[0].parameters"),
    ("responses", {"tools": [{"type": "function", "name": "f"}] * 129}, "array_above_max_length", "tools"),
    ("responses", {"max_tool_calls": "x"}, "invalid_type", "max_tool_calls"),
    ("responses", {"max_tool_calls": 0}, "integer_below_min_value", "max_tool_calls"),
    ("responses", {"truncation": "foo"}, "invalid_value", "truncation"),
    ("responses", {"truncation": "auto"}, "unsupported_value", "truncation"),
    ("responses", {"text": {"format": {"type": "grammar"}}}, "unsupported_value", "text.format"),
    ("responses", {"input": [{"role": "user|assistant", "content": "a"}]}, "invalid_value", "input[0].role"),
    ("responses", {"input": []}, "empty_array", "input"),
])
def test_wrong_members_are_named(server, path, more, code, param):
    base = {"chat": ONE, "completions": {"prompt": "x"}, "embeddings": {"input": "x"}, "responses": {"input": "x"}}[path]
    r = server.post("/v1/" + {"chat": "chat/completions"}.get(path, path), {**base, **more})
    assert (r.status, r.error["code"], r.error["param"]) == (400, code, param), r.body


@pytest.mark.parametrize("path, body, param", [
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}, "messages[0].content")
    for part in ({"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "input_audio", "input_audio": {}},
                 {"type": "video_url", "video_url": {"url": "data:,"}}, {"type": "file", "file": {}})
] + [
    ("responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "input[0].content"),
])
def test_what_is_not_text_is_refused_by_its_name(server, path, body, param):
    """Also of a model that sees or hears, of which the server has the language part alone."""
    r = server.post(f"/v1/{path}", body)
    assert (r.status, r.error["code"], r.error["param"]) == (400, "unsupported_value", param), r.body
    assert "text only" in r.error["message"] and "of type '" in r.error["message"]


@pytest.mark.parametrize("more", [
    {"stream_options": None}, {"temperature": None}, {"top_p": 0}, {"n": 1.0}, {"stop": []}, {"stop": None}, {"stop": "a" * 1024}, {"seed": -1}, {"top_k": -1},
    {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": None, "verbosity": "low"}, {"foo": 1},
    {"tool_choice": "none"}, {"modalities": ["text"]}, {"guided_json": None, "use_beam_search": False}, {"response_format": {"type": "text"}},
    {"max_tokens": 5000, "max_completion_tokens": 1}, {"logprobs": False}, {"parallel_tool_calls": True}, {"reasoning_effort": "low"},
])
def test_harmless_members_are_taken(server, more):
    assert server.chat(**{**ONE, **more}).status == 200


def test_unknown_members_are_counted(server):
    before = server.metric("sluice_unknown_parameters_total")
    assert server.chat(**ONE, foo=1, bar=None).status == 200
    assert server.metric("sluice_unknown_parameters_total") == before + 2
    with Server(strict_parameters=True) as s:
        r = s.chat(**ONE, foo=1)
        assert (r.status, r.error["code"], r.error["param"]) == (400, "unknown_parameter", "foo")
        r = s.chat(**ONE, **{"model|messages": 1})
        assert (r.status, r.error["code"], r.error["param"]) == (400, "unknown_parameter", "model|messages")
        assert s.chat(**ONE).status == 200


def test_a_nul_elsewhere_is_refused_with_its_place(server):
    r = server.request("POST", "/v1/completions", r'{"user":"a\u0000b","prompt":"x"}')
    assert (r.status, r.error["code"]) == (400, "invalid_value")
    assert "contains the character U+0000, which is not supported, at byte 10" in r.error["message"]


def test_charset_must_be_utf8(server):
    for charset, status in (("utf-8", 200), ('"UTF-8"', 200), ("iso-8859-1", 415)):
        r = server.request("POST", "/v1/completions", '{"prompt":"x"}', {"content-type": "application/json; charset=" + charset})
        assert r.status == status


def test_ids_of_requests_and_traces(server):
    r = server.chat(**ONE, request_id="mine-1")
    assert r.headers["x-request-id"] == "mine-1" and r.json()["id"] == "chatcmpl-mine-1"
    assert r.headers["openai-version"] and int(r.headers["openai-processing-ms"]) >= 0
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    body = {**ONE, "request_id": "mine-2"}
    r = server.post("/v1/chat/completions", body, headers={"x-request-id": "head-1", "traceparent": "00-%s-00f067aa0ba902b7-01" % trace})
    assert r.headers["x-request-id"] == "head-1" and r.json()["id"] == "chatcmpl-head-1"
    assert eventually(lambda: any(l["id"] == "head-1" and l.get("trace") == trace for l in server.log_lines()))
    assert any(l["id"] == "mine-1" for l in server.log_lines())


def test_chat_has_prompt_ids_where_vllm_has_them(server):
    j = server.chat(return_token_ids=True, max_tokens=2).json()
    assert j["prompt_token_ids"] == j["choices"][0]["prompt_token_ids"] and len(j["choices"][0]["token_ids"]) == 2
    first = server.chat(return_token_ids=True, max_tokens=2, stream=True).chunks()[0]
    assert first["prompt_token_ids"] == first["choices"][0]["prompt_token_ids"] == j["prompt_token_ids"]


def test_stored_responses_are_not_found(server):
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        r = server.request(method, "/v1/responses/resp_1" + path)
        assert (r.status, r.error["code"]) == (404, "not_found")


def test_reset_prefix_cache_says_what_it_freed():
    with Server(env={"FAKE_STEP_US": "20000"}) as s:
        assert s.post("/reset_prefix_cache", "").json() == {"freed_blocks": 3}
        c = open_stream(s)
        assert eventually(lambda: s.get("/load").json()["running"] == 1)
        r = s.post("/reset_prefix_cache", "")
        assert (r.status, r.error["code"], r.headers["x-should-retry"]) == (409, "conflict", "false")
        assert s.post("/reset_prefix_cache?reset_running_requests=true", "").status == 200
        c.close()


def test_metrics_in_both_formats(server):
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    plain = pytest.importorskip("prometheus_client.parser")
    r = server.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0, text/plain"})
    assert r.headers["content-type"].startswith("application/openmetrics-text")
    families = {f.name: f.type for f in parser.text_string_to_metric_families(r.body.decode())}
    assert families["vllm:prompt_tokens"] == "counter" and families["vllm:iteration_tokens_total"] == "histogram"
    r = server.get("/metrics")
    assert r.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert len(list(plain.text_string_to_metric_families(r.body.decode()))) == len(families)


def test_http_errors(server):
    r = server.get("/v1/chat/completions")
    assert r.status == 405 and r.headers["allow"] and r.error["code"] == "method_not_supported"
    r = server.request("POST", "/v1/completions", "prompt=x", {"content-type": "text/plain"})
    assert r.status == 415 and r.error["code"] == "unsupported_media_type"


def test_engine_errors_before_and_after_the_first_token(server):
    assert server.chat(seed=1003).error["code"] == "internal_error"
    r = server.chat(seed=1003, stream=True)  # nothing was sent yet: the status stays
    assert r.status == 500 and r.error["type"] == "server_error"


def test_default_max_tokens_and_random_seeds(server):
    assert server.complete("hello").json()["usage"]["completion_tokens"] == 16
    n = server.complete("hello", max_tokens=None).json()["usage"]
    assert n["total_tokens"] == 2048


# ---- operation ----

def test_health_metrics_and_page(server):
    for path in ("/health", "/health/live", "/health/ready", "/ping", "/v1/health"):
        r = server.get(path)
        assert (r.status, r.json()["status"]) == (200, "ok")
    assert server.request("HEAD", "/health").status == 200
    assert server.get("/version").json()["version"]
    assert set(server.get("/load").json()) >= {"server_load", "running", "waiting", "kv_usage", "queued_tokens"}
    text = server.get("/metrics").body.decode()
    for name in ("vllm:num_requests_running", "vllm:time_to_first_token_seconds_bucket", "vllm:request_success_total",
                 "vllm:e2e_request_latency_seconds_sum", "vllm:kv_cache_usage_perc", "vllm:cache_config_info",
                 "vllm:generation_tokens_total", "vllm:iteration_tokens_total_count", "http_requests_total"):
        assert name + "{" in text, name
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r'[a-z0-9_:]+(\{.*\})? (-?[0-9.e+-]+)', line), line
    page = server.get("/")
    assert page.headers["content-type"].startswith("text/html") and b"page/plots.js" in page.body
    assert not re.search(rb'(src|href)="http', page.body)
    assert server.get("/status.json").json()["model"]
    assert server.get("/server_info").json()["model_type"] == "fake"
    assert server.post("/reset_prefix_cache", "").status == 200


def test_the_kv_format_and_the_tokens_that_fit_are_said():
    said = {}
    for kv in ("auto", "int8", "int4"):
        with Server(real=True, kv_cache_dtype=kv, max_model_len=512, max_num_seqs=1024) as s:
            text, info = s.get("/metrics").body.decode(), s.get("/server_info").json()
            name = info["kv_cache_dtype"]
            assert re.search(r'vllm:cache_config_info\{.*cache_dtype="%s"' % name, text)
            tokens = int(float(re.search(r"sluice_kv_cache_tokens\{.*\} ([0-9.e+]+)", text)[1]))
            assert tokens == info["num_blocks"] * info["block_size"]
            assert re.search(r"ready after .* blocks of %d tokens \(%d in %s\)" % (info["block_size"], tokens, name), s.stderr())
            said[name] = tokens
    assert said["float32"] * 3 < said["int8"] and said["int8"] * 1.4 < said["int4"]


def test_the_status_remembers_the_last_minutes(server):
    end = time.time() + 20
    while len(server.get("/status.json?history=1").json()["history"]["rows"]) < 2:
        assert time.time() < end
        time.sleep(0.2)
    server.chat(max_tokens=3)
    n = len(server.get("/status.json?history=1").json()["history"]["rows"])
    while len(server.get("/status.json?history=1").json()["history"]["rows"]) == n < 300:
        assert time.time() < end
        time.sleep(0.1)
    now = server.get("/status.json?history=1").json()
    history, rows = now["history"], now["history"]["rows"]
    assert "history" not in server.get("/status.json").json()
    assert all(c in now for c in history["columns"]) and all(len(r) == len(history["columns"]) for r in rows)
    uptime, finished = history["columns"].index("uptime"), history["columns"].index("finished")
    assert all(0.5 < b[uptime] - a[uptime] < 20 and a[finished] <= b[finished] for a, b in zip(rows, rows[1:]))
    assert rows[-1][finished] > 0 and rows[-1][uptime] <= now["uptime"]


def test_histograms_count_what_happened(server):
    before = server.metric("vllm:e2e_request_latency_seconds_count")
    server.chat(seed=0)
    time.sleep(0.2)
    assert server.metric("vllm:e2e_request_latency_seconds_count") == before + 1


def test_log_lines_say_it_all(server):
    server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "seed": 0},
                headers={"x-request-id": "my-id", "x-stainless-retry-count": "2"})
    time.sleep(0.2)
    line = [l for l in server.log_lines() if l["id"] == "my-id"][0]
    assert line["status"] == 200 and line["finish"] == "stop" and line["output_tokens"] > 5 and line["prompt_tokens"] > 2


PROBES = ["/health", "/health/live", "/health/ready", "/v1/health", "/ping", "/metrics"]


def test_probes_are_logged_for_who_wants_it():
    for more, wanted in (({}, []), ({"enable_log_probes": True}, PROBES)):
        with Server(env={"FAKE_LOAD_MS": "400"}, wait=False, **more) as s:
            for path in PROBES:  # the model is loading: some say 503
                s.get(path)
            s.get("/nope")
            assert eventually(lambda: any(l["path"] == "/nope" for l in s.log_lines()))
            assert [l["path"] for l in s.log_lines() if l["path"] != "/nope"] == wanted


def open_stream(server, **body):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": True, **body}),
              {"content-type": "application/json"})
    return c


def running(server):
    return server.get("/load").json()["running"] + server.get("/load").json()["waiting"]


def eventually(check, seconds=5):
    end = time.time() + seconds
    while time.time() < end:
        if check():
            return True
        time.sleep(0.01)
    return False


def test_a_client_that_leaves_frees_the_engine():
    with Server(env={"FAKE_STEP_US": "50000", "FAKE_LANES": "2"}) as s:
        clients = [open_stream(s) for _ in range(6)]  # two run, the others wait
        plain = socket.create_connection(("127.0.0.1", s.port))
        body = json.dumps({"prompt": "x", "max_tokens": 1000})
        plain.sendall(("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       "Content-Length: %d\r\n\r\n%s" % (len(body), body)).encode())
        assert eventually(lambda: running(s) == 7)
        for c in clients + [plain]:
            c.close()
        assert eventually(lambda: running(s) == 0, 2)
        assert s.metric("sluice_aborted_total", cause="disconnect") == 7


def test_deadlines():
    with Server(env={"FAKE_STEP_US": "100000", "FAKE_LANES": "1"}) as s:
        r = s.complete("x", max_tokens=1000, timeout=0.5)
        assert r.status == 504 and r.error["code"] == "request_timeout"
        assert eventually(lambda: running(s) == 0)
        c = open_stream(s)  # keeps the only lane
        assert eventually(lambda: running(s) == 1)
        with pytest.raises(TimeoutError):  # the client sees its own timeout, not a refusal
            s.post("/v1/completions", {"prompt": "x"}, headers={"x-stainless-read-timeout": "0.5"}, timeout=1)
        r = s.post("/v1/completions", {"prompt": "x"}, headers={"x-stainless-read-timeout": "0.5"})
        assert r.status == 503 and r.error["code"] == "queue_timeout" and r.headers["retry-after"]
        c.close()
        r = s.chat("x", stream=True, timeout=0.7)  # after tokens went out: an event
        assert r.status == 200 and json.loads(r.events()[-2])["error"]["code"] == "request_timeout" and r.events()[-1] == "[DONE]"


def test_log_lines_of_what_did_not_end_well_have_their_tokens():
    def line(s, id):
        assert eventually(lambda: any(l["id"] == id for l in s.log_lines()))
        return next(l for l in s.log_lines() if l["id"] == id)
    with Server(env={"FAKE_STEP_US": "50000"}) as s:
        c = open_stream(s, request_id="left")
        c.getresponse().read(200)
        c.close()
        left = line(s, "left")
        assert (left["finish"], left["gone"]) == ("cancelled", "closed") and left["output_tokens"] > 0 and left["cached_tokens"] > 0
        s.complete("a b c d", max_tokens=1000, timeout=0.5, request_id="late")
        late = line(s, "late")
        assert (late["finish"], late["error"]) == ("error", "request_timeout") and late["output_tokens"] > 0
        assert late["prompt_tokens"] > late["cached_tokens"] > 0
        s.post("/v1/completions", {"prompt": "x", "temperature": -9}, headers={"x-request-id": "wrong"})
        wrong = line(s, "wrong")
        assert (wrong["status"], wrong["output_tokens"], wrong["cached_tokens"]) == (400, 0, 0)


def test_a_responses_stream_that_fails_has_an_error_event():
    with Server(env={"FAKE_STEP_US": "100000"}) as s:
        r = s.post("/v1/responses", {"input": "x", "stream": True, "timeout": 0.6, "max_output_tokens": 1000})
        last = json.loads(r.events()[-1])
        assert r.body.decode().rstrip().split("\n")[-2] == "event: error"
        assert last["type"] == "error" and last["code"] == last["error"]["code"] == "request_timeout"


def test_overload_is_refused_with_retry_after():
    with Server(max_num_queued_reqs=4, env={"FAKE_STEP_US": "50000", "FAKE_LANES": "1"}) as s:
        clients = [open_stream(s, max_tokens=2000)]
        assert eventually(lambda: running(s) == 1)
        time.sleep(0.3)  # the first has the one lane: the queue is empty for the next four
        clients += [open_stream(s, max_tokens=2000) for _ in range(4)]
        assert eventually(lambda: running(s) == 5)
        r = s.complete("x")
        assert r.status == 503 and r.error["code"] == "server_overloaded" and int(r.headers["retry-after"]) > 0
        assert s.get("/health/ready").status == 503 and s.get("/health/live").status == 200
        assert s.metric("sluice_rejected_total", reason="queue_full") == 1
        for c in clients:
            c.close()
    with Server(max_num_queued_tokens=100, overload_status=429, env={"FAKE_STEP_US": "50000", "FAKE_LANES": "1"}) as s:
        clients = [open_stream(s) for _ in range(2)]
        assert eventually(lambda: running(s) == 2)
        assert s.complete([5] * 200).status == 429
        for c in clients:
            c.close()


def test_the_queue_limit_holds_in_a_burst():
    """What came since the engine's last step counts: a step is long against forty requests."""
    with Server(real=True, max_num_seqs=4, max_num_queued_reqs=2) as s:
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            replies = list(pool.map(lambda i: s.complete("x" * 50, max_tokens=900, ignore_eos=True), range(40)))
        codes = [r.status for r in replies]
        assert set(codes) == {200, 503} and 32 <= codes.count(503) <= 34, codes
        assert all(r.error["code"] == "server_overloaded" and r.headers["retry-after"] for r in replies if r.status == 503)
        assert s.metric("sluice_rejected_total", reason="queue_full") == codes.count(503)
        assert eventually(lambda: s.metric("vllm:num_requests_waiting") == 0)


def test_each_step_is_counted_by_its_tokens():
    with Server(real=True) as s:
        assert s.complete([5] * 40, max_tokens=30, ignore_eos=True).status == 200  # 70 tokens in 69 rows
        assert eventually(lambda: s.metric("vllm:num_requests_running") == 0)
        steps = s.metric("sluice_engine_steps_total")
        assert steps >= 30 and s.metric("vllm:iteration_tokens_total_count") == steps
        assert s.metric("vllm:iteration_tokens_total_sum") == 70 and s.metric("sluice_engine_rows_total") >= 69
        assert s.metric("vllm:iteration_tokens_total_bucket", le="1.0") >= 29
        assert s.metric("vllm:iteration_tokens_total_bucket", le="32.0") == steps - 1  # all but the prompt
        assert s.metric("vllm:iteration_tokens_total_bucket", le="64.0") == steps
        assert s.metric("vllm:request_num_preemptions_count") == s.metric("vllm:request_num_preemptions_bucket", le="0.5") == 1


def test_no_memory_for_a_request_is_a_refusal_that_may_be_retried():
    with Server(env={"FAKE_STEP_US": "50000"}) as s:
        big = {"n": 100, "max_tokens": 1900, "logprobs": 20}  # 40 MB
        assert s.complete(n=1, max_tokens=1, logprobs=20).status == 200
        with open("/proc/%d/statm" % s.process.pid) as f:
            used = int(f.read().split()[0]) * 4096
        resource.prlimit(s.process.pid, resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
        r = s.complete(**big)
        assert (r.status, r.error["code"], r.error["type"]) == (503, "out_of_memory", "server_error") and r.headers["retry-after"]
        resource.prlimit(s.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert s.complete(stop_token_ids=[5], **{**big, "max_tokens": 1900, "prompt": [5]}).status == 200


def test_more_samples_than_the_engine_ever_holds_are_no_overload():
    """Whoever is told to come back later would come for ever."""
    with Server(real=True, max_num_queued_reqs=2, max_num_seqs=2, max_n=4) as s:  # room for 2 * 2 + 4, and for 2 that run
        assert s.complete(["x"] * 10, max_tokens=2).status == 200
        for prompts, n in ((11, 1), (4, 3)):
            r = s.complete(["x"] * prompts, n=n, max_tokens=2)
            assert r.status == 400 and "at most 10" in r.error["message"] and "retry-after" not in r.headers
        r = s.post("/v1/embeddings", {"input": ["x"] * 11})
        assert r.status == 400 and "at most 10" in r.error["message"]


def test_keys_and_their_scopes():
    with tempfile.NamedTemporaryFile("w", delete=False) as f:
        f.write("# keys\nuser-key\nops-key admin,metrics ops\n")
    with Server(api_key="s3cret", api_key_file=f.name, wait=False) as s:
        eventually(lambda: s.get("/health").status == 200)
        auth = lambda key: {"authorization": "Bearer " + key}
        body = {"prompt": "x"}
        r = s.post("/v1/completions", body)
        assert r.status == 401 and r.error["code"] == "missing_api_key" and r.headers["www-authenticate"] == "Bearer"
        assert s.post("/v1/completions", body, headers=auth("nope")).error["code"] == "invalid_api_key"
        assert s.post("/v1/completions", body, headers=auth("user-key")).status == 200
        assert s.post("/v1/completions", body, headers={"x-api-key": "user-key"}).status == 200
        assert s.post("/v1/completions", body, headers={"x-api-key": "user-key", "authorization": "Basic abc"}).status == 200
        r = s.post("/v1/completions", body, headers={"x-api-key": "user-key", **auth("nope")})
        assert r.error["code"] == "invalid_api_key"
        assert s.post("/v1/completions", body, headers={"authorization": "Basic abc"}).error["code"] == "missing_api_key"
        assert s.post("/v1/completions", body, headers=auth("s3cret")).status == 200
        r = s.post("/v1/completions", body, headers=auth("ops-key"))
        assert r.status == 403 and r.error["code"] == "insufficient_permissions"
        assert s.get("/metrics", headers=auth("ops-key")).status == 200
        assert s.get("/metrics", headers=auth("user-key")).status == 403
        assert s.get("/metrics").status == s.get("/server_info").status == s.get("/status.json").status == 401
        assert "api-key: set, not shown" in s.get("/server_info", headers=auth("s3cret")).json()["config"]
        assert "s3cret" not in s.get("/server_info", headers=auth("s3cret")).json()["config"] + s.stderr()
        assert s.get("/").status == s.get("/health").status == 200
        with open(f.name, "w") as g:
            g.write("new-key all\n")
        s.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: s.post("/v1/completions", body, headers=auth("new-key")).status == 200)
        assert s.post("/v1/completions", body, headers=auth("user-key")).status == 401
        with open(f.name, "w") as g:
            g.write("x wrong-scope\n")
        s.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "the old API keys stay" in s.stderr())
        assert s.post("/v1/completions", body, headers=auth("new-key")).status == 200
        assert eventually(lambda: any(l.get("key") == "ops" for l in s.log_lines()))  # they leave in batches
        assert "new-key" not in json.dumps(s.log_lines())
    os.unlink(f.name)


def keyed(lines, **options):
    """A server with a key file of these lines, and what asks it with a key."""
    f = tempfile.NamedTemporaryFile("w", suffix=".keys")
    f.write(lines)
    f.flush()
    s = Server(api_key_file=f.name, wait=False, **options)
    assert eventually(lambda: s.get("/health").status == 200)
    s.keys = f
    s.ask = lambda key, path="/v1/completions", **body: s.post(path, {"prompt": "x", **body}, headers={"authorization": "Bearer " + key})
    return s


def test_a_key_has_so_many_requests_and_tokens_a_minute():
    lines = "a=b inference first requests-per-minute=3\nb tokens-per-minute=600\nc inference,metrics third ignored\n"
    with keyed(lines, key_requests_per_minute=1000) as s:
        replies = [s.ask("a=b") for _ in range(4)]
        assert [r.status for r in replies] == [200, 200, 200, 429]
        assert [r.headers["x-ratelimit-remaining-requests"] for r in replies] == ["2", "1", "0", "0"]
        r = replies[3]
        assert (r.error["type"], r.error["code"]) == ("requests", "rate_limit_exceeded") and "3 requests a minute" in r.error["message"]
        assert 15 <= int(r.headers["retry-after"]) <= 20 and r.headers["x-ratelimit-limit-requests"] == "3"
        assert re.fullmatch(r"5\ds|1m0s", r.headers["x-ratelimit-reset-requests"]) and "x-ratelimit-limit-tokens" not in r.headers
        assert s.ask("c").headers["x-ratelimit-limit-requests"] == "1000"  # as the option says for all
        r = s.ask("b", prompt=[5] * 400, max_tokens=100, stream=True)
        assert r.status == 200 and r.headers["x-ratelimit-remaining-tokens"] == "200"
        r = s.ask("b", prompt=[5] * 300)  # 100 are left: the answer counts as well
        assert r.status == 429 and r.error["type"] == "tokens" and 15 <= int(r.headers["retry-after"]) <= 20
        assert s.ask("b", prompt=[5] * 50, max_tokens=1).status == 200
        metrics = s.get("/metrics", headers={"authorization": "Bearer c"}).body.decode()
        assert re.search(r'sluice_rejected_total\{.*reason="rate_limit"\} 2\n', metrics)
        s.process.send_signal(signal.SIGHUP)  # what is used up stays so
        assert eventually(lambda: "read again" in s.stderr())
        assert s.ask("a=b").status == 429


def test_a_key_has_so_many_requests_at_once_and_a_share_of_the_queue():
    slow = {"FAKE_STEP_US": "25000", "FAKE_LANES": "1"}
    lines = "a concurrent=2\nb queue-share=0.25\nc all\n"
    with keyed(lines, max_num_queued_reqs=8, env=slow) as s, concurrent.futures.ThreadPoolExecutor(8) as pool:
        ask = lambda key: pool.submit(s.ask, key, max_tokens=40)
        count = lambda: s.get("/load").json()["server_load"]
        two = [ask("a"), ask("a")]
        assert eventually(lambda: count() == 2)
        r = s.ask("a", max_tokens=1)
        assert r.status == 429 and "2 requests at once" in r.error["message"] and r.headers["retry-after"] == "1"
        time.sleep(0.2)  # one of the two has the lane
        four = [ask("b") for _ in range(2)]
        assert eventually(lambda: count() == 4)
        r = s.ask("b", max_tokens=1)
        assert r.status == 429 and "2 places in the queue" in r.error["message"]
        four.append(ask("c"))
        assert all(f.result().status == 200 for f in two + four)
        assert s.ask("a", max_tokens=1).status == s.ask("b", max_tokens=1).status == 200


def test_a_key_may_say_some_priorities():
    with keyed("a min-priority=-2 max-priority=5\nb\nc min-priority=3 max-priority=9\n", no_request_priority=True) as s:
        assert s.ask("a", priority=-2).status == s.ask("a", priority=5).status == s.ask("b", priority=0).status == 200
        assert s.ask("c").status == 200  # none said: the best that it may have
        for key, priority in (("a", -3), ("a", 6), ("b", 1), ("c", 2)):
            r = s.ask(key, priority=priority)
            assert (r.status, r.error["param"]) == (400, "priority") and str(priority) in r.error["message"]
    with Server(no_request_priority=True) as s:
        assert s.complete(priority=1).status == 400 and s.complete().status == 200
    with Server(key_concurrent=1, key_requests_per_minute=2) as s:  # without keys: of all together
        assert [s.complete().status for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("line, why", [("k requests=5", "unknown setting 'requests'"), ("k concurrent=x", "not a number"),
                                       ("k queue-share=1.5", "a share from 0 to 1"), ("k cache-share=-1", "a share from 0 to 1"), ("k min-priority=4 max-priority=3", "above"),
                                       ("k max-priority=3000000000", "not a number"), ("k requests-per-minute=-1", "not a number")])
def test_settings_of_a_key_are_checked(line, why):
    with pytest.raises(RuntimeError, match=r"keys:1: .*" + re.escape(why)):
        keyed(line + "\n")


def test_web_pages_are_no_operators():
    """Without keys: a browser sends a page's POST to any address."""
    page = lambda origin: {"origin": origin, "content-type": "text/plain", "sec-fetch-site": "cross-site"}
    with Server(allowed_origins="https://ops.example") as s:
        for path in ("/drain", "/reset_prefix_cache"):
            for headers in (page("http://evil.example"), page("null"), {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
                r = s.post(path, "x", headers=headers)
                assert (r.status, r.error["code"]) == (403, "origin_not_allowed") and "API keys" in r.error["message"]
        assert s.get("/health/ready").status == 200
        assert s.post("/reset_prefix_cache", "").status == 200
        assert s.post("/reset_prefix_cache", "", headers={"sec-fetch-site": "same-origin"}).status == 200
        assert s.post("/reset_prefix_cache", "", headers=page("https://ops.example")).status == 200
        assert s.post("/v1/completions", {"prompt": "x"}, headers={"origin": "https://ops.example"}).status == 200
        assert s.post("/drain", "").status == 200
        assert s.process.wait(20) == 0  # a signal in its last moment would be its exit code
    with Server(api_key="s3cret") as s:
        headers = {"origin": "http://evil.example"}
        assert s.post("/reset_prefix_cache", "", headers=headers).status == 401
        assert s.post("/reset_prefix_cache", "", headers={**headers, "authorization": "Bearer s3cret"}).status == 200


def test_a_loopback_without_keys_is_for_no_web_page():
    body = {"prompt": "x", "max_tokens": 1}
    with Server(allowed_origins="https://ops.example", allowed_hosts="gpu.example") as s:
        post = lambda path="/v1/completions", **headers: s.post(path, body, headers={k.replace("_", "-"): v for k, v in headers.items()})
        own = "http://127.0.0.1:%d" % s.port
        for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"},
                        {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"}, {"origin": "http://localhost:3000"}):
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/embeddings"):
                r = post(path, **headers)
                assert (r.status, r.error["code"]) == (403, "origin_not_allowed"), headers
        for headers in ({}, {"origin": own}, {"origin": own, "sec_fetch_site": "same-origin"}, {"origin": "https://ops.example"}):
            assert post(**headers).status == 200, headers
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.0.1"):
            for r in (post(host=host), s.get("/v1/models", headers={"host": host}), s.get("/requests", headers={"host": host})):
                assert (r.status, r.error["code"]) == (403, "host_not_allowed") and "--allowed-hosts" in r.error["message"], host
            assert s.get("/health", headers={"host": host}).status == s.get("/health/ready", headers={"host": host}).status == 200
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:80", "[::1]:8000", "a.localhost:80", "gpu.example", "GPU.example:443"):
            assert post(host=host).status == 200, host
        assert s.request("POST", "/v1/completions", json.dumps(body), {"content-type": ""}).status == 200  # curl without a type
    with Server(host="0.0.0.0") as s:  # meant for others: their names are not known here
        assert s.post("/v1/completions", body, headers={"host": "gpu.example", "origin": "http://ui.example"}).status == 200
        assert s.post("/drain", "", headers={"origin": "http://ui.example"}).status == 403
    with Server(api_key="s3cret") as s:
        headers = {"host": "gpu.example", "origin": "http://ui.example", "authorization": "Bearer s3cret"}
        assert s.post("/v1/completions", body, headers=headers).status == 200


def test_a_key_learns_nothing_of_anothers_prompts():
    prompt = [7 + i % 200 for i in range(200)]
    cached = lambda r: r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    with keyed("a\nb\nc cache-salt-by-key=false\nd cache-salt-by-key=false\n", real=True, cache_salt_by_key=True) as s:
        ask = lambda key, **more: cached(s.ask(key, prompt=prompt, max_tokens=1, **more))
        assert ask("a") == 0 and ask("a") > 100
        assert ask("b") == 0 and ask("b") > 100
        assert ask("a", cache_salt="own") == 0 and ask("b", cache_salt="own") == 0 and ask("a", cache_salt="own") > 100
        assert ask("c") == 0 and ask("d") > 100  # these two share what is nobody's own


def cached_of(reply):
    assert reply.status == 200, reply.body
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def kv_hints(*directives):
    retain = {"action_id": "1", "action_type": "kv.retain", "action_version": "1.0", "payload": {"scope": None, "directives": list(directives)}}
    return {"protocol_version": "0.1", "message_id": "m", "actions": [retain]}


def prompt_of(i):
    return [7 + i] + [7 + (i + k) % 200 for k in range(299)]


def test_a_key_has_a_share_of_the_cache():
    """A prompt takes 19 blocks of 60, and a key's six prompts more than there are, unless it may leave but 20."""
    with keyed("a\nb cache-share=0.34\nc\n", real=True, num_gpu_blocks_override=60, block_size=16, max_model_len=320) as s:
        ask = lambda key, i: cached_of(s.ask(key, prompt=prompt_of(i), max_tokens=1))
        for other, want in (("c", 0), ("b", 288)):
            ask("a", 0)
            for i in range(1, 7):
                ask(other, 10 * i)
            assert ask("a", 0) == want, other


def test_hints_keep_a_prompt_for_its_time():
    with Server(real=True, num_gpu_blocks_override=64, block_size=16, max_model_len=320) as s:
        ask = lambda i, **more: cached_of(s.complete(prompt=prompt_of(i), max_tokens=1, **more))
        kept = lambda: int(re.search(r"sluice_kv_blocks_kept\{.*\} (\d+)", s.get("/metrics").body.decode())[1])
        for hints, want in ((None, 0), (kv_hints({"priority": 60, "duration": 60}), 288), (kv_hints({"priority": 60, "duration": 0}), 0)):
            ask(0, **({"kv_hints": hints} if hints else {}))
            assert kept() == (18 if want else 0) or not want and eventually(lambda: kept() == 0)
            for i in range(1, 7):
                ask(10 * i)
            assert ask(0) == want
        chat = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "kv_hints": kv_hints({"priority": 101})})
        assert (chat.status, chat.error["param"]) == (400, "kv_hints") and "from 0 to 100" in chat.error["message"]


def test_a_signal_asks_for_a_report():
    with Server(env={"FAKE_STEP_US": "50000"}) as s:
        c = open_stream(s)
        assert eventually(lambda: running(s) == 1)
        (row,) = s.get("/requests").json()["data"]
        assert row["id"].startswith("chatcmpl-") and row["stream"] and row["client"].startswith("127.0.0.1:")
        s.process.send_signal(signal.SIGUSR1)
        assert eventually(lambda: "report: ok, 1 requests" in s.stderr() and row["id"] in s.stderr())
        assert s.get("/health").status == 200
        c.close()


def test_loading_is_visible_and_refused():
    with Server(env={"FAKE_LOAD_MS": "800"}, wait=False) as s:
        r = s.get("/health")
        assert r.status == 503 and r.json()["status"] == "loading" and "progress" in r.json()
        assert s.get("/health/live").status == 200 and s.get("/health/ready").status == 503
        r = s.complete("x")
        assert r.status == 503 and r.error["code"] == "model_loading" and r.headers["retry-after"]
        assert s.get("/v1/models").status == 503
        assert eventually(lambda: s.get("/health/ready").status == 200)
        assert s.complete("x").status == 200


def test_a_stop_while_loading_waits_for_nobody():
    with Server(env={"FAKE_LOAD_MS": "60000"}, wait=False) as s:
        assert s.complete("x").error["code"] == "model_loading"
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20) == 0
        assert "stopped while the model was loading" in s.stderr()
        assert [l["status"] for l in s.log_lines() if l["path"] == "/v1/completions"] == [503]


def test_a_hung_engine_is_told():
    s = Server(stall_timeout=1, dead_timeout=1.5)
    c = open_stream(s, seed=1001)
    time.sleep(0.3)
    assert s.get("/health").status == 200
    assert eventually(lambda: s.get("/health").status == 503, 3)
    assert s.get("/health").json()["status"] == "stalled" and s.get("/health/live").status == 200
    assert s.get("/v1/models").headers["x-engine-state"] == "stalled"
    assert eventually(lambda: s.get("/health/live").status == 503, 4)
    assert s.complete("x").error["code"] == "engine_dead"
    c.close()
    s.process.kill()


def test_a_dead_engine_ends_requests_and_the_process():
    s = Server()
    assert s.chat(seed=1002).error["code"] in ("internal_error", "engine_dead")
    assert eventually(lambda: s.get("/health").json()["status"] == "dead", 3)
    assert s.get("/health/live").status == 503 and s.complete("x").error["code"] == "engine_dead"
    s.process.wait(20)
    assert s.process.returncode == 2


def test_sigterm_lets_streams_finish():
    with scripted([TEXTS[0]], env={"FAKE_STEP_US": "30000"}, drain_delay="0.5") as s:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            streams = [pool.submit(s.chat, seed=0, stream=True) for _ in range(20)]
            assert eventually(lambda: running(s) == 20)
            s.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: s.get("/health/ready").status == 503, 0.4)
            assert s.get("/health/live").status == 200
            late = s.complete("late", max_tokens=1)  # still accepted in the delay
            assert late.status == 200
            for f in streams:
                assert fold(f.result().chunks())[0]["message"]["content"] == TEXTS[0]
        assert s.process.wait(10) == 0
    os.unlink(s.script_path)


def test_sigterm_ends_an_idle_server_at_once():
    """Unless a delay was asked for: it is for balancers, which look at readiness."""
    for delay, waits in (("-1", False), ("1", True)):
        with Server(drain_delay=delay) as s:
            assert s.complete("x", max_tokens=1).status == 200
            kept = socket.create_connection(("127.0.0.1", s.port))
            kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert kept.recv(100)
            start = time.monotonic()
            s.process.send_signal(signal.SIGTERM)
            assert s.process.wait(20) == 0
            assert SLOW or (time.monotonic() - start >= 1) == waits
    with Server(drain_delay="-1", env={"FAKE_STEP_US": "50000"}) as s:
        c = open_stream(s, max_tokens=20)
        assert eventually(lambda: running(s) == 1)
        s.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: s.get("/health/ready").status == 503) and s.complete("late", max_tokens=1).status == 200
        s.stop(signal.SIGTERM)
        c.close()


def test_threads_have_names():
    with Server(real=True, tensor_parallel_size=2, threads=2) as s:
        assert s.complete("x", max_tokens=2).status == 200
        tasks = "/proc/%d/task" % s.process.pid
        names = {open("%s/%s/comm" % (tasks, t)).read().strip() for t in os.listdir(tasks)}
        assert {"sluice", "engine", "rank 1", "pool", "cpu", "log"} <= names, names


def test_what_comes_too_late_is_refused_and_counted():
    with Server(env={"FAKE_STEP_US": "50000"}, shutdown_timeout="1.5") as s:
        late, scrape = (socket.create_connection(("127.0.0.1", s.port)) for _ in range(2))
        body = b'{"prompt":"x"}'
        late.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        scrape.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            stream = pool.submit(s.chat, stream=True)
            assert eventually(lambda: running(s) == 1)
            s.process.send_signal(signal.SIGTERM)

            def is_closed():
                try:
                    socket.create_connection(("127.0.0.1", s.port)).close()
                except ConnectionRefusedError:
                    return True

            assert eventually(is_closed)
            late.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert b"server_draining" in late.makefile("rb").read()
            scrape.sendall(b"\r\n")
            lines = scrape.makefile("rb").read().splitlines()
            assert [v for v in lines if v.startswith(b"sluice_rejected_total") and b'"draining"' in v][0].endswith(b" 1")
            assert stream.result().events()[-1] == "[DONE]"
        s.process.wait(10)


def test_streams_over_the_drain_time_get_an_event():
    with Server(env={"FAKE_STEP_US": "50000"}, shutdown_timeout="0.3") as s:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            stream = pool.submit(s.chat, stream=True)
            assert eventually(lambda: running(s) == 1)
            time.sleep(0.3)
            s.process.send_signal(signal.SIGTERM)
            events = stream.result().events()
        assert events[-1] == "[DONE]" and json.loads(events[-2])["error"]["code"] == "server_draining"
        s.process.wait(10)


def test_many_at_once(server):
    def one(i):
        if i % 3 == 0:
            return fold(server.chat(seed=0, stream=True).chunks())[0]["message"]["content"] == TEXTS[0]
        if i % 3 == 1:
            return server.chat(seed=0).json()["choices"][0]["message"]["content"] == TEXTS[0]
        return server.chat(temperature=-7).status == 400
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(150)))


@pytest.mark.skipif(SLOW, reason="a sanitizer's memory")
def test_a_stream_costs_about_25_kilobytes():
    """All of it, from the socket to the engine's door; the kernel's buffers aside."""
    n = 1500
    body = json.dumps({"messages": [{"role": "user", "content": "a b c"}], "stream": True, "max_tokens": 64}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Server(env={"FAKE_LANES": "4000", "FAKE_STEP_US": "500000"}) as s:
        def rss():
            with open("/proc/%d/status" % s.process.pid) as f:
                return next(int(l.split()[1]) * 1024 for l in f if l.startswith("VmRSS"))
        s.chat(max_tokens=1)
        before = rss()
        sockets = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(n)]
        for c in sockets:
            c.sendall(head + body)
        for c in sockets:
            assert c.recv(12) == b"HTTP/1.1 200"
        each = (rss() - before) / n
        for c in sockets:
            c.close()
    assert each < 27000, each  # 24,700 on Debian 12; other libraries may want a little more


def test_bad_configuration_ends_with_a_sentence():
    import subprocess

    from api import BUILD
    run = lambda *a: subprocess.run([BUILD + "/sluice", "serve", *a], capture_output=True, text=True, timeout=60)
    r = run("models/demo", "--prot", "5")
    assert r.returncode == 2 and "did you mean" in r.stderr
    r = run("/nonexistent", "--port", "0")
    assert r.returncode == 1 and "/nonexistent" in r.stderr
    assert "there is no such folder; give one with config.json" in r.stderr
    r = run("--help")
    assert r.returncode == 0 and "--max-model-len" in r.stdout
    r = run(DEMO, "--print-config", "--port", "7")
    assert r.returncode == 0 and "port: 7" in r.stdout


@pytest.mark.parametrize("options,sentence", [
    (["--override-generation-config", '{"temperatur": 1}'], "override-generation-config: unknown key 'temperatur'; there are temperature,"),
    (["--override-generation-config", '{"temperature": "hot"}'], "override-generation-config: 'temperature' should be a number"),
    (["--override-generation-config", '{"temperature": -3}'], "override-generation-config: temperature: -3 is not between 0 and 1e+30"),
    (["--override-generation-config", '{"top_k": 99999999999}'], "override-generation-config: 'top_k' should be a count"),
    (["--override-generation-config", '{"do_sample": 1}'], "override-generation-config: 'do_sample' should be true or false"),
    (["--chat-template", "{% for m in messages %}"], "chat-template: line 1: "),
    (["--kv-cache-memory-bytes", "1k"], "kv-cache-memory-bytes is 1000: give "),
])
def test_what_no_request_could_use_stops_the_start(options, sentence):
    import subprocess

    from api import BUILD
    r = subprocess.run([BUILD + "/sluice", "serve", DEMO, "--port", "0", *options], capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and sentence in r.stderr, r.stderr


def test_few_descriptors_bend_the_default_but_not_an_operators_number():
    import subprocess

    from api import BUILD
    serve = "ulimit -n 512; exec '%s/sluice' serve '%s' --port 0 --drain-delay 0 --max-connections " % (BUILD, DEMO)
    r = subprocess.run(["bash", "-c", serve + "400"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and "400 connections need 676 descriptors, but the hard limit is 512" in r.stderr
    with subprocess.Popen(["bash", "-c", serve + "auto"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as p:
        lines = []
        while not any("ready after" in l for l in lines):
            lines.append(p.stderr.readline())
            assert lines[-1], lines
        p.send_signal(signal.SIGTERM)
        assert p.wait(60) == 0
    assert any("connections are limited to 243: the hard limit of descriptors is 512" in l for l in lines)


def test_a_key_of_another_certificate_is_told(tmp_path):
    import subprocess

    from api import BUILD
    for name in ("a", "b"):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-keyout",
                        tmp_path / (name + ".key"), "-out", tmp_path / (name + ".pem"), "-subj", "/CN=x"], check=True, capture_output=True)
    r = subprocess.run([BUILD + "/sluice", "serve", DEMO, "--port", "0", "--ssl-certfile", tmp_path / "a.pem", "--ssl-keyfile", tmp_path / "b.key"],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and "b.key: they are to be a PEM certificate chain and the private key" in r.stderr, r.stderr


@pytest.mark.parametrize("least, spoken", [(None, {"TLSv1_2", "TLSv1_3"}), ("1.3", {"TLSv1_3"})])
def test_old_tls_is_not_spoken(least, spoken, tmp_path):
    import ssl
    import subprocess
    import warnings
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert, "-subj", "/CN=x"],
                   check=True, capture_output=True)
    with Server(wait=False, ssl_certfile=cert, ssl_keyfile=key, **({"ssl_min_version": least} if least else {})) as s:
        found = set()
        for name in ("TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.set_ciphers("ALL:@SECLEVEL=0")
                context.minimum_version = context.maximum_version = ssl.TLSVersion[name]
            try:
                with socket.create_connection(("127.0.0.1", s.port), 10) as raw, context.wrap_socket(raw) as tls:
                    tls.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    if tls.recv(100).startswith(b"HTTP/1.1 200"):
                        found.add(name)
            except OSError:
                pass
        assert found == spoken


def test_sampling_defaults_may_be_switched_off_and_overridden():
    with Server(override_generation_config='{"top_k": -1, "temperature": 0, "top_p": null, "max_new_tokens": 2}') as s:
        assert s.chat("a b c d e").json()["usage"]["completion_tokens"] == 2


def test_a_context_beyond_the_models_own_is_warned_of():
    with Server(real=True, max_model_len=5000) as s:
        assert "max-model-len 5000 is more than the 4096 positions" in s.stderr()
