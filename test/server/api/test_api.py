# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""The API over HTTP: the shapes of answers, streams against whole answers."""

import http.client
import json
import os
import re
import socket
import time

import pytest
from api import DEMO, Reply, Server, fold, scripted
from api_script import TEXTS, WEATHER, eventually, grouped, running, server


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
    assert j["system_fingerprint"].startswith("b") and j["service_tier"] == "default"


@pytest.mark.parametrize("seed", range(len(TEXTS)))
@pytest.mark.parametrize("which", ["server", "grouped"])
def test_a_stream_adds_up_to_the_whole_answer(seed, which, request):
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
    assert re.fullmatch(r"call_[0-9a-f]{16}", call["id"]) and call["type"] == "function"
    assert json.loads(call["function"]["arguments"]) == {"city": 'Paris "x" \u00e9\U0001F600'}
    m = server.chat(seed=2, tools=[WEATHER]).json()["choices"][0]["message"]
    assert m["content"] is None and len(m["tool_calls"]) == 2 and len({c["id"] for c in m["tool_calls"]}) == 2
    m = server.chat(seed=2, tools=[WEATHER], parallel_tool_calls=False).json()["choices"][0]["message"]
    assert len(m["tool_calls"]) == 1
    m = server.chat(seed=2).json()["choices"][0]
    assert m["finish_reason"] == "stop" and m["message"]["content"].count("<tool_call>") == 2
    m = server.chat(seed=6, tools=[WEATHER]).json()["choices"][0]
    assert m["finish_reason"] == "stop" and m["message"]["content"] == TEXTS[6]
    m = server.chat(seed=3).json()["choices"][0]["message"]
    assert (m["reasoning"], m["reasoning_content"], m["content"]) == ("I wonder.", "I wonder.", "The answer is 42.")
    items = [server.post("/v1/responses", {"input": "x", "seed": 3, "include_reasoning": b}).json()["output"] for b in (True, False)]
    assert [[i["type"] for i in o] for o in items] == [["reasoning", "message"], ["message"]] and items[0][1]["content"] == items[1][0]["content"]
    m = server.chat(seed=3, include_reasoning=False).json()["choices"][0]["message"]
    assert m["reasoning"] is None and "reasoning_content" not in m and m["content"] == "The answer is 42."


def test_reasoning_between_answers_is_an_item_of_its_own():
    say = "<|content_{}|>{}<|end_message|>".format
    call = 'get_weather<|content_invoke_tool_json|>{"name":"get_weather","args":{}}<|end_message|>'
    text = "<|message_model|>".join([say("thinking", "hm"), say("text", "Yes."), say("thinking", "so"), call, say("thinking", "or"), say("text", "No."), call])
    with scripted([text], reasoning_parser="inkling", tool_call_parser="inkling") as s:
        items = s.post("/v1/responses", {"seed": 0, "input": "x", "tools": [{"type": "function", **WEATHER["function"]}]}).json()["output"]
        tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
        blocks = s.post("/v1/messages", {"seed": 0, "messages": [{"role": "user", "content": "x"}], "max_tokens": 500, "tools": [tool]}).json()["content"]
        message = s.chat(seed=0, tools=[WEATHER]).json()["choices"][0]["message"]
    texts = ["hm", "Yes.", "so", "get_weather", "or", "No.", "get_weather"]
    assert [i.get("name") or i["content"][0]["text"] for i in items] == texts
    assert [b.get("thinking") or b.get("text") or b["name"] for b in blocks] == texts
    assert (message["reasoning"], message["content"], len(message["tool_calls"])) == ("hmsoor", "Yes.No.", 2)


def test_calls_are_left_out_if_tool_choice_is_none(server):
    for seed, text in ((1, "Let me see."), (2, None)):
        body = {"seed": seed, "tools": [WEATHER], "tool_choice": "none"}
        (c,) = server.chat(**body).json()["choices"]
        assert (c["message"]["content"] or None) == text and "tool_calls" not in c["message"] and c["finish_reason"] == "stop"
        (c,) = fold(server.chat(stream=True, **body).chunks())
        assert (c["message"]["content"] or None) == text and "tool_calls" not in c["message"] and c["finish"] == "stop"
        old = {"seed": seed, "functions": [WEATHER["function"]], "function_call": "none"}
        assert (server.chat(**old).json()["choices"][0]["message"]["content"] or None) == text
        body = {"seed": seed, "tools": [{"type": "function", **WEATHER["function"]}], "tool_choice": "none", "input": "x"}
        j = server.post("/v1/responses", body).json()
        assert [i["content"][0]["text"] for i in j["output"]] == [text or ""] and j["status"] == "completed"


def test_a_stop_string_that_cuts_a_call_is_the_reason(server):
    """With "tool_calls" clients would execute the call without the arguments that are missing."""
    for stop, finish, of_message in (("Paris", "stop", "stop_sequence"), ("}", "stop", "stop_sequence"), ("</tool_call>", "tool_calls", "tool_use")):
        body = {"seed": 1, "tools": [WEATHER], "stop": stop}
        (c,) = server.chat(**body).json()["choices"]
        assert (c["finish_reason"], c["stop_reason"]) == (finish, stop) and len(c["message"]["tool_calls"]) == 1
        j = server.post("/v1/responses", {"seed": 1, "input": "x", "stop": stop, "tools": [{"type": "function", **WEATHER["function"]}]}).json()
        assert (j["status"], j["output"][1]["status"]) == ("completed", "incomplete" if finish == "stop" else "completed")
        assert fold(server.chat(stream=True, **body).chunks())[0]["finish"] == finish
        tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
        body = {"seed": 1, "tools": [tool], "stop_sequences": [stop], "max_tokens": 99, "messages": [{"role": "user", "content": "x"}]}
        j = server.post("/v1/messages", body).json()
        assert j["stop_reason"] == of_message and (j["content"][1]["input"] == {}) == (finish == "stop")
    with scripted(["<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"], tool_call_parser="qwen3_coder") as s:
        reasons = [s.chat(seed=0, tools=[WEATHER], stop=stop).json()["choices"][0]["finish_reason"] for stop in ("</", "</parameter>\n</function>", "\n</function>")]
        assert reasons == ["stop", "stop", "tool_calls"]
        (paris,) = s.post("/tokenize", {"prompt": "Paris", "add_special_tokens": False}).json()["tokens"]
        (c,) = s.chat(seed=0, tools=[WEATHER], stop_token_ids=[paris]).json()["choices"]
        assert (c["finish_reason"], c["stop_reason"]) == ("stop", paris) and c["message"]["tool_calls"][0]["function"]["arguments"] == ""


def test_a_call_without_the_arguments_that_were_cut_off(server):
    """They are no empty object, with which a client could execute the call; Messages requires one."""
    for n in (16, 18):
        body = {"seed": 1, "tools": [WEATHER], "max_tokens": n}
        for c in server.chat(**body).json()["choices"] + fold(server.chat(stream=True, **body).chunks()):
            assert c["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": ""}
            assert c.get("finish_reason", c.get("finish")) == "length"
        body = {"seed": 1, "input": "x", "tools": [{"type": "function", **WEATHER["function"]}], "max_output_tokens": n}
        item = server.post("/v1/responses", body).json()["output"][1]
        assert (item["type"], item["status"], item["arguments"]) == ("function_call", "incomplete", "")
        chat = {"messages": [{"role": "user", "content": "x"}], "tools": [WEATHER], "stream": False, "options": {"num_predict": n, "seed": 1}}
        assert server.post("/api/chat", chat).json()["message"]["tool_calls"][0]["function"]["arguments"] == {}
    (call,) = server.chat(seed=5, tools=[WEATHER]).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == "{}"  # complete


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
    assert ends(stop="a", min_tokens=5) == ("aaaaa", 6, "a")  # a stop string cannot end within the first min_tokens,
    assert ends(stop="a" * 6, min_tokens=5) == ("", 6, "a" * 6)  # but it may begin there
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
    # The echo is the prompt that was computed, and offsets count its characters: no special tokens, nothing that was
    # truncated.
    for prompt, more, text in (([4083, 5, 6], {}, "&'"), ("a b c d", {"truncate_prompt_tokens": 2}, " c d")):
        c = server.complete(prompt, max_tokens=1, echo=True, logprobs=0, **more).json()["choices"][0]
        shown = [(o, t) for o, t in zip(c["logprobs"]["text_offset"], c["logprobs"]["tokens"]) if t != "<|begin_of_text|>"]
        assert c["text"].startswith(text) and [c["text"][o:o + len(t)] for o, t in shown] == [t for _, t in shown]
    # Special tokens in the text are echoed; the one that is added before it is not.
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


def test_a_model_without_a_tokenizer_accepts_and_returns_ids(tmp_path):
    for name in ("config.json", "generation_config.json"):
        os.symlink(os.path.join(DEMO, name), tmp_path / name)
    with Server(model=str(tmp_path), served_model_name="bare", skip_tokenizer_init=True, env={"FAKE_STEP_US": "20000"}) as s:
        body = {"prompt": [5, 6, 7], "max_tokens": 6, "return_token_ids": True}
        c = s.post("/v1/completions", {**body, "logprobs": 1}).json()["choices"][0]
        assert (c["token_ids"], c["text"], c["finish_reason"]) == ([5, 6, 7, 5, 6, 7], "", "length")
        assert c["logprobs"]["tokens"][0] == "token_id:5"
        chunks = s.post("/v1/completions", {**body, "stream": True}).chunks()
        assert sum((x["choices"][0]["token_ids"] for x in chunks), []) == c["token_ids"]
        assert len(chunks) > 3  # chunks are sent while tokens are generated, not at the end
        for wrong, param in (({"prompt": "text"}, "prompt"), ({"prompt": [5], "stop": "x"}, "stop")):
            r = s.post("/v1/completions", wrong)
            assert (r.status, r.error["code"], r.error["param"]) == (400, "unsupported_value", param)
        assert s.chat().error["code"] == "unsupported_model"


def test_parts_of_characters_are_distinct_in_logprobs():
    """Each token has its own key in top_logprobs, even if it is a part of a character; chats have U+FFFD and the bytes."""
    def pairs(list):
        assert len({k for k, _ in list}) == len(list), list
        return dict(list)

    with Server(real=True, model=DEMO) as s:
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


def test_ids_are_streamed_with_text(server):
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
    e = server.post("/v1/embeddings", {"input": [5] * 3000}).error
    assert e["code"] == "context_length_exceeded" and e["message"].startswith("This model's maximum context") and "too large" in e["message"]
    assert server.post("/v1/embeddings", {"input": [5] * 3000, "truncate_prompt_tokens": -1}).json()["usage"]["prompt_tokens"] == 2048
    r = server.post("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 2049})
    assert r.status == 400 and r.error["type"] == "BadRequestError" and r.error["code"] == "integer_above_max_value"  # vLLM's member, so vLLM's type of error


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


def test_a_text_beyond_the_context_is_counted_exactly(server):
    long = {"prompt": "word " * 500000}
    t = server.post("/tokenize", long).json()
    assert t["count"] == len(t["tokens"]) >= 500000
    e = server.post("/v1/completions", long).error
    assert e["code"] == "context_length_exceeded" and e["n_ctx"] == 2048 and "n_prompt_tokens" not in e
    assert re.search(r"you requested at least \d+ tokens \(at least \d+ in the prompt", e["message"])


def test_another_tokenizers_folder_has_the_special_tokens(tmp_path):
    """This also applies to a template in a request. A single tokenizer.json has no such files beside it."""
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
def test_the_default_name_is_the_folders(model):
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


def test_events_written_after_a_stall_are_sent(server):
    r = server.complete([[5] * 400] * 8, max_tokens=1, echo=True, logprobs=20, stream=True)  # 80 kB each
    assert sum(len(c["choices"][0]["logprobs"]["tokens"]) for c in r.chunks() if c["choices"][0]["logprobs"]) == 8 * 401


def test_bursts_larger_than_any_socket_reach_a_reader():
    """The prompt's log-probabilities are one event, and the last event of a response repeats those of the whole text."""
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


@pytest.mark.parametrize("version", ["1.1", "1.0"])  # each version has its own writer of streams
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
        assert eventually(lambda: running(s) == 0)  # everything is plotted
        assert 0 < s.metric_plain("sluice_http_held_stream_bytes") < 300 << 10
        r = Reply(r, r.read())
        chunks = r.chunks()
        assert len(r.body) > 1 << 20
        logprobs = [x["choices"][0]["logprobs"] for x in chunks if x["choices"][0]["logprobs"]]
        assert sum(len(l.get("content", l.get("tokens"))) for l in logprobs) == 2 * 2500
        assert [x["choices"][0]["finish_reason"] for x in chunks].count("length") == 2
