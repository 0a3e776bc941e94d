# SPDX-License-Identifier: Apache-2.0
"""vLLM's output modes of /inference/v1/generate: ids, text, and the message that the chat itself would have had."""
import base64
import math
import struct

import pytest
from api import Server

CHAT, GENERATE = "/v1/chat/completions", "/inference/v1/generate"
USER = lambda text: [{"role": "user", "content": text}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
OPENED = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>{% endif %}"


@pytest.fixture(scope="module")
def server():
    with Server(real=True, threads=2) as s:
        yield s


def good(r):
    assert r.status == 200, r.body
    return r.json()


def generate(s, mode, ids, stream=False, **sampling):
    r = s.post(GENERATE, {"token_ids": ids, "output_mode": mode, "stream": stream, "sampling_params": {"temperature": 0, "max_tokens": 12, **sampling}})
    return r.chunks() if stream else good(r)


def prompt_ids(s, text="Copy: a b c d"):
    return good(s.post(CHAT + "/render", {"messages": USER(text)}))["token_ids"]


def test_text_is_that_of_completions(server):
    ids = prompt_ids(server)
    for more in ({}, {"stop": [" c"]}, {"stop": [" c"], "include_stop_str_in_output": True}, {"n": 2, "temperature": 0.9, "seed": 4}, {"max_tokens": 3}):
        want = good(server.post("/v1/completions", {"prompt": ids, "temperature": 0, "max_tokens": 12, "return_token_ids": True, **more}))["choices"]
        got = generate(server, "text", ids, **more)
        assert got["output_mode"] == "text" and got["model"] == "demo" and got["created"] > 0
        for g, w in zip(got["choices"], want, strict=True):
            assert all(g[k] == w[k] for k in ("text", "token_ids", "finish_reason", "stop_reason"))
        if more.get("n", 1) == 1:
            chunks = generate(server, "text", ids, stream=True, **more)
            assert all(c["output_mode"] == "text" for c in chunks)
            parts = [c["choices"][0] for c in chunks]
            assert "".join(p["text"] for p in parts) == want[0]["text"] and sum((p["token_ids"] for p in parts), []) == want[0]["token_ids"]
            assert parts[-1]["finish_reason"] == want[0]["finish_reason"] and parts[-1]["stop_reason"] == want[0]["stop_reason"]


def test_log_probabilities_have_ids_or_texts(server):
    ids = prompt_ids(server)
    text = lambda t: good(server.post("/detokenize", {"tokens": [t]}))["prompt"]
    tokens = generate(server, "tokens", ids, logprobs=2, temperature=1.5, seed=3)["choices"][0]
    texts = generate(server, "text", ids, logprobs=2, temperature=1.5, seed=3)["choices"][0]
    assert "text" not in tokens and tokens["token_ids"] == texts["token_ids"]
    outside = 0
    for t, x, i in zip(tokens["logprobs"]["content"], texts["logprobs"]["content"], tokens["token_ids"], strict=True):
        assert t["token_id"] == i == t["top_logprobs"][0]["token_id"] and t["logprob"] == t["top_logprobs"][0]["logprob"]
        assert x["token"] == text(i) and x["bytes"] and [c["token"] for c in x["top_logprobs"]] == [text(c["token_id"]) for c in t["top_logprobs"]]
        assert len(t["top_logprobs"]) == (3 if t["rank"] is None else 2)  # the token itself, and the likeliest
        assert sorted(c["rank"] for c in t["top_logprobs"] if c["rank"]) == [1, 2]
        outside += t["rank"] is None
    assert outside > 0


def test_the_prompt_is_returned_once_if_asked_for(server):
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 3, "ignore_eos": True}}
    assert good(server.post(GENERATE, body))["prompt_token_ids"] is None
    assert good(server.post(GENERATE, {**body, "return_token_ids": True}))["prompt_token_ids"] == [5, 6, 7]
    chunks = server.post(GENERATE, {**body, "return_token_ids": True, "stream": True}).chunks()
    assert [c.get("prompt_token_ids") for c in chunks] == [[5, 6, 7]] + [None] * (len(chunks) - 1)


CHATS = [{}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "required"}, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
         {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, {"tools": TOOLS, "tool_choice": "none"}, {"n": 2, "temperature": 0.8, "seed": 42},
         {"logprobs": True, "top_logprobs": 2}, {"stop": ["\n"]}, {"response_format": {"type": "json_object"}}]


@pytest.mark.parametrize("more", CHATS, ids=str)
def test_messages_are_those_of_chats(server, more):
    body = {"messages": USER("What is the weather in Paris?"), "temperature": 0, "max_tokens": 60, "return_token_ids": True, **more}
    want = good(server.post(CHAT, body))
    got = good(server.post(GENERATE, {**good(server.post(CHAT + "/render", body)), "output_mode": "derender"}))
    assert got["output_mode"] == "derender" and got["prompt_token_ids"] == want["prompt_token_ids"]
    for g, w in zip(got["choices"], want["choices"], strict=True):
        bare = lambda c: {**c["message"], "tool_calls": [t["function"] for t in c["message"].get("tool_calls") or []]}
        assert bare(g) == bare(w) and all(g[k] == w[k] for k in ("token_ids", "finish_reason", "stop_reason"))
        assert (g["logprobs"] or {}).get("content") == (w["logprobs"] or {}).get("content")
    if more.get("tool_choice") not in (None, "none"):
        assert want["choices"][0]["message"]["tool_calls"]


def test_the_context_of_a_chat(server):
    messages = USER("a") + [{"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "x", "content": "rain"}]
    j = good(server.post(CHAT + "/render", {"messages": messages, "tools": TOOLS, "chat_template_kwargs": {"a": [1]}, "include_reasoning": False, "return_token_ids": True}))
    assert j["parse_context"] == {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True, "include_reasoning": False, "chat_template_kwargs": {"a": [1]}, "history_tool_call_cnt": 1}
    assert j["return_token_ids"] is True and good(server.post(CHAT + "/render", {"messages": USER("a")}))["parse_context"]["tool_choice"] == "none"
    custom = [{"type": "custom", "custom": {"name": "run", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}}}}]
    body = {"messages": USER("a"), "tools": custom, "tool_choice": "required", "max_tokens": 60}
    j = good(server.post(CHAT + "/render", body))
    assert j["parse_context"]["tools"] == custom
    (c,) = good(server.post(GENERATE, {**j, "output_mode": "derender"}))["choices"]
    assert c["message"]["tool_calls"][0]["custom"]["input"].isdigit()
    for choice, want in (("none", "none"), ({"name": "get_weather"}, {"type": "function", "function": {"name": "get_weather"}})):
        j = good(server.post(CHAT + "/render", {"messages": USER("a"), "functions": [TOOLS[0]["function"]], "function_call": choice}))
        assert j["parse_context"]["tools"] == TOOLS and j["parse_context"]["tool_choice"] == want
    (c,) = good(server.post("/v1/completions/render", {"prompt": "a"}))
    assert c["parse_context"] is None and c["return_token_ids"] is False


def test_messages_and_responses_are_rendered(server):
    ids = prompt_ids(server)
    j = good(server.post("/v1/messages/render", {"messages": USER("Copy: a b c d"), "max_tokens": 7, "stop_sequences": ["zz"], "temperature": 0, "tool_choice": {"type": "tool", "name": "get_weather"},
                                                 "tools": [{"name": "get_weather", "input_schema": TOOLS[0]["function"]["parameters"]}]}))
    p = j["sampling_params"]
    assert (p["max_tokens"], p["stop"], p["temperature"]) == (7, ["zz"], 0) and j["token_offsets"] is None
    assert j["parse_context"]["tools"] == TOOLS and j["parse_context"]["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    (c,) = good(server.post(GENERATE, {**j, "output_mode": "derender", "sampling_params": {**p, "max_tokens": 60}}))["choices"]
    assert c["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    plain = good(server.post("/v1/messages/render", {"messages": USER("Copy: a b c d"), "max_tokens": 7}))
    assert plain["token_ids"] == ids and plain["parse_context"]["tools"] is None and plain["parse_context"]["tool_choice"] == "none"
    j = good(server.post("/v1/responses/render", {"input": "Copy: a b c d", "max_output_tokens": 16}))
    assert j["token_ids"] == ids and j["request_id"].startswith("resp_") and j["sampling_params"]["max_tokens"] == 16 and j["parse_context"] is None
    for key in ("previous_response_id", "conversation"):
        r = server.post("/v1/responses/render", {"input": "a", key: "resp_1"})
        assert r.status == 400 and r.error["param"] == key
    r = server.post("/v1/messages/render", {"messages": []})
    assert r.status == 400 and r.json()["type"] == "error"
    assert len({c["request_id"] for c in good(server.post("/v1/completions/render", {"prompt": ["a", "b"]}))}) == 2


def test_offsets_are_characters_of_the_prompt(server):
    """This also holds for characters that several tokens share, and for tokens that a template adds."""
    text = "Grüße, \U0001f600 world. 日本"
    pieces = lambda ids: [server.post("/detokenize", {"tokens": [i]}).json()["prompt"] for i in ids]
    render = lambda path, **body: good(server.post(path + "/render", {"return_token_offsets": True, **body}))
    for add in (True, False):
        (j,) = render("/v1/completions", prompt=text, add_special_tokens=add)
        whole = [(s, e) for (s, e), p in zip(j["token_offsets"], pieces(j["token_ids"]), strict=True) if "\ufffd" not in p and not p.startswith("<|")]
        assert len(whole) > 5 and all(text[s:e] in pieces(j["token_ids"]) for s, e in whole)
        spans = j["token_offsets"][1 if add else 0:]
        assert spans[0][0] == 0 and spans[-1][1] == len(text) and all(a[1] - 1 <= b[0] <= a[1] for a, b in zip(spans, spans[1:]))
        assert not add or j["token_offsets"][0] == [0, 0]
    (j,) = render("/v1/completions", prompt=text, truncate_prompt_tokens=4)
    assert len(j["token_offsets"]) == len(j["token_ids"]) == 4 and j["token_offsets"][-1][1] == len(text) and j["token_offsets"][0][0] > 0
    assert len(render("/v1/completions", prompt=["a b", "c"])[1]["token_offsets"]) > 0
    (j,) = render("/v1/completions", prompt=[5, 6])
    assert j["token_offsets"] is None  # a prompt of ids has no text
    chat = render(CHAT, messages=USER(text))
    assert len(chat["token_offsets"]) == len(chat["token_ids"]) and chat["token_offsets"][0][0] == 0
    prompt = "".join(pieces(chat["token_ids"]))
    assert chat["token_offsets"][-1][1] <= len(prompt) and all(s <= e for s, e in chat["token_offsets"])
    assert good(server.post(CHAT + "/render", {"messages": USER(text)}))["token_offsets"] is None


def test_the_routes_need_a_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k inference n\na admin m\n")
    with Server(api_key_file=keys) as s:
        for path in ("/v1/messages/render", "/v1/responses/render"):
            assert s.post(path, {}).status == 401 and s.post(path, {}, headers={"authorization": "Bearer a"}).status == 403
            assert s.post(path, {}, headers={"authorization": "Bearer k"}).status == 400


def test_reasoning_is_parsed_or_hidden():
    with Server(real=True, threads=2, chat_template=OPENED, reasoning_parser="qwen3") as s:
        for more in ({}, {"include_reasoning": False}):
            body = {"messages": USER("The cat sat"), "temperature": 0, "max_tokens": 30, "thinking_token_budget": 5, "logprobs": True, "return_token_ids": True, **more}
            want = good(s.post(CHAT, body))["choices"][0]
            got = good(s.post(GENERATE, {**good(s.post(CHAT + "/render", body)), "output_mode": "derender"}))["choices"][0]
            assert got["message"]["reasoning"] == want["message"]["reasoning"] and got["message"]["content"] == want["message"]["content"]
            assert bool(got["message"]["reasoning"]) == (not more)
            for c in (got, want):  # the tokens would show what is hidden
                assert (c["logprobs"] is None) == bool(more) and (c["token_ids"] is None) == bool(more)
            chunks = s.post(CHAT, {**body, "stream": True}).chunks()
            assert more == {} or all(c["choices"][0]["logprobs"] is None and "token_ids" not in c["choices"][0] for c in chunks)
        r = s.post(GENERATE, {"token_ids": [5], "output_mode": "derender"})  # the parser was named, so plain text would be wrong
        assert r.status == 400 and r.error["param"] == "parse_context"


def test_a_continued_message_begins_without_reasoning():
    with Server(real=True, threads=2, reasoning_parser="qwen3") as s:
        (opens,) = good(s.post("/tokenize", {"prompt": "<think>", "add_special_tokens": False}))["tokens"]
        body = {"messages": USER("Red?") + [{"role": "assistant", "content": "It is "}], "add_generation_prompt": False, "continue_final_message": True,
                "temperature": 0, "max_tokens": 20, "logit_bias": {str(opens): 100}, "structured_outputs": {"choice": ["red", "blue"]}}
        want = good(s.post(CHAT, body))["choices"][0]["message"]
        got = good(s.post(GENERATE, {**good(s.post(CHAT + "/render", body)), "output_mode": "derender"}))["choices"][0]["message"]
        assert got["content"] == want["content"] in ("red", "blue") and got["reasoning"] == want["reasoning"] is None


def test_the_ids_of_another_stage_are_the_prompt(server):
    first = good(server.post(CHAT, {"messages": USER("Copy: a b c d"), "temperature": 0, "max_tokens": 12, "return_token_ids": True}))
    ids = first["prompt_token_ids"]
    for more in ({}, {"do_remote_prefill": False, "remote_host": None}):
        body = {"messages": USER("unrelated"), "temperature": 0, "max_tokens": 12, "return_token_ids": True, "kv_transfer_params": {"prompt_token_ids": ids, **more}}
        j = good(server.post(CHAT, body))
        assert j["prompt_token_ids"] == ids and j["choices"][0]["message"]["content"] == first["choices"][0]["message"]["content"] and j["usage"]["prompt_tokens"] == len(ids)
        chunks = server.post(CHAT, {**body, "stream": True}).chunks()
        assert chunks[0]["prompt_token_ids"] == ids and "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == j["choices"][0]["message"]["content"]
    for wrong in (5, [], ["a"], [-1], [10 ** 6], {}):
        r = server.post(CHAT, {"messages": USER("a"), "kv_transfer_params": {"prompt_token_ids": wrong}})
        assert r.status == 400 and r.error["param"] == "kv_transfer_params.prompt_token_ids", r.body
    for path, body in ((CHAT, {"messages": USER("a"), "kv_transfer_params": {"do_remote_decode": True}}), ("/v1/completions", {"prompt": "a", "kv_transfer_params": {"prompt_token_ids": [5]}}),
                       (CHAT + "/batch", {"messages": [USER("a")], "kv_transfer_params": {"prompt_token_ids": [5]}})):
        r = server.post(path, body)
        assert r.status == 400 and r.error["param"] == "kv_transfer_params"
    assert good(server.post(CHAT, {"messages": USER("a"), "max_tokens": 1, "kv_transfer_params": {"prompt_token_ids": None}}))


def test_listed_ids_of_the_prompt_are_scored(server):
    ids, rows = [11, 22, 33, 44, 55], [[33], [44, 100], [55, -1]]
    ask = lambda **p: server.post(GENERATE, {"token_ids": ids, "sampling_params": {"max_tokens": 1, "prompt_logprob_token_ids": rows, "prompt_logprob_start": 1, **p}})
    j = good(ask(prompt_logprobs=0))
    file = base64.b64decode(j["prompt_token_id_logprobs"])
    assert file[:10] == b"\x93NUMPY\x01\x00\x76\x00" and len(file) == 128 + 6 * 4 and file[127:128] == b"\n" and b"'shape': (3, 2)" in file[:128]
    scores = struct.unpack("<6f", file[128:])
    for i, target in enumerate(ids[2:]):
        assert abs(scores[2 * i] - j["prompt_logprobs"][i + 2][str(target)]["logprob"]) < 1e-5
    assert scores[1] == scores[5] == -math.inf and -50 < scores[3] < 0
    whole = good(server.post(GENERATE, {"token_ids": ids, "sampling_params": {"max_tokens": 1, "prompt_logprob_token_ids": [[100]] * 4}}))
    assert struct.unpack("<4f", base64.b64decode(whole["prompt_token_id_logprobs"])[128:])[2] == scores[3] and whole["prompt_logprobs"] is None
    assert good(server.post(GENERATE, {"token_ids": ids, "sampling_params": {"max_tokens": 1}}))["prompt_token_id_logprobs"] is None
    for wrong in ({"prompt_logprob_token_ids": rows[:2]}, {"prompt_logprob_token_ids": [[]] * 3}, {"prompt_logprob_token_ids": [5]}, {"prompt_logprob_token_ids": [[-2]] * 3},
                  {"prompt_logprob_token_ids": [[10 ** 6]] * 3}, {"prompt_logprob_token_ids": [["a"]] * 3}, {"prompt_logprob_token_ids": "a"}, {"prompt_logprobs": 2},
                  {"prompt_logprob_token_ids": [[5] * 21] * 3}, {"prompt_logprob_start": 0}):
        r = ask(**wrong)
        assert r.status == 400 and r.error["param"] == "prompt_logprob_token_ids", (wrong, r.body)
    assert server.post(GENERATE, {"token_ids": ids, "stream": True, "sampling_params": {"prompt_logprob_token_ids": [[5]] * 4}}).status == 400
    assert server.post("/v1/completions", {"prompt": ids, "prompt_logprob_token_ids": [[5]] * 4}).error["param"] == "prompt_logprob_token_ids"


CONTEXT = lambda c: {"token_ids": [5], "output_mode": "derender", "parse_context": c}
WRONG = [({"token_ids": [5], "output_mode": "words"}, "output_mode"), ({"token_ids": [5], "output_mode": "derender", "stream": True}, "output_mode"),
         ({"token_ids": [5], "output_mode": "text", "sampling_params": {"detokenize": False}}, "detokenize"), (CONTEXT(5), "parse_context"), (CONTEXT({"new": 1}), "parse_context"),
         (CONTEXT({"tools": 5}), "tools"), (CONTEXT({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}), "tool_choice"), (CONTEXT({"tool_choice": "required"}), "tool_choice"),
         (CONTEXT({"history_tool_call_cnt": -1}), "history_tool_call_cnt"), ({"token_ids": [5], "content_parts": [{"type": "image_url"}]}, "content_parts")]


@pytest.mark.parametrize("body, param", WRONG, ids=range(len(WRONG)))
def test_wrong_ones_are_refused(server, body, param):
    r = server.post(GENERATE, body)
    assert r.status == 400 and r.error["param"] == param, r.body


def test_other_modes_ignore_the_context(server):
    for mode in ("tokens", "text"):
        assert good(server.post(GENERATE, {**CONTEXT({"new": 1}), "output_mode": mode, "sampling_params": {"max_tokens": 1}}))["output_mode"] == mode
    assert "message" in good(server.post(GENERATE, {"token_ids": [5], "output_mode": "derender", "sampling_params": {"max_tokens": 1}}))["choices"][0]
