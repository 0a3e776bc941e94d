# SPDX-License-Identifier: Apache-2.0
"""vLLM's own routes: several chats in one request, labels, classes, pooling, and Cohere's embeddings, which vLLM
serves, too."""
import base64
import json
import math
import struct
import time

import pytest
from api import Server, scripted

USER = lambda text: [{"role": "user", "content": text}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}}}]
ROUTES = ["/v1/chat/completions/batch", "/generative_scoring", "/classify", "/pooling", "/v2/embed"]


@pytest.fixture(scope="module")
def server():
    with Server(real=True, threads=2) as s:
        yield s


@pytest.fixture(scope="module")
def judge():
    with Server(real=True, threads=2, hf_overrides=json.dumps({"classifier_from_token": ["0", "1"]})) as s:
        yield s


def test_the_routes_need_a_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k inference n\na admin m\n")
    with Server(api_key_file=keys) as s:
        for path in ROUTES:
            assert s.post(path, {}).status == 401 and s.post(path, {}, headers={"authorization": "Bearer a"}).status == 403
            assert s.post(path, {}, headers={"authorization": "Bearer k"}).status == 400 and s.get(path).status in (401, 405)
            for body in ("", "[", "5", "[]", "null", "{\"a\"", "\xff", "[" * 100000):
                assert s.post(path, body, headers={"authorization": "Bearer k"}).status == 400, (path, body[:9])


# ---- several chats ----

def test_several_chats_get_the_answers_of_each_alone(server):
    chats = [USER("What is 12 + 30?"), USER("What is 2 + 3?"), [{"role": "system", "content": "x\0y"}, *USER("Copy: a b c")]]
    r = server.post("/v1/chat/completions/batch", {"messages": chats, "temperature": 0, "max_tokens": 12, "logprobs": True, "return_token_ids": True})
    assert r.status == 200, r.body
    j = r.json()
    assert [c["index"] for c in j["choices"]] == [0, 1, 2] and j["object"] == "chat.completion"
    alone = [server.post("/v1/chat/completions", {"messages": m, "temperature": 0, "max_tokens": 12, "logprobs": True, "return_token_ids": True}).json() for m in chats]
    for c, a in zip(j["choices"], alone):
        assert {**c, "index": 0} == a["choices"][0]
    assert all(j["usage"][k] == sum(a["usage"][k] for a in alone) for k in ("prompt_tokens", "completion_tokens", "total_tokens"))
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"], "additionalProperties": False}}}
    j = server.post("/v1/chat/completions/batch", {"messages": chats[:2], "response_format": schema}).json()
    assert all(json.loads(c["message"]["content"])["a"] in ("yes", "no") for c in j["choices"])


WRONG_CHATS = [({}, "missing_required_parameter", "messages"), ({"messages": []}, "empty_array", "messages"), ({"messages": [[]]}, "empty_array", "messages"),
               ({"messages": USER("a")}, "invalid_type", "messages"), ({"messages": [USER("a"), "b"]}, "invalid_type", "messages"),
               ({"messages": [USER("a"), [{"role": "user"}]]}, "missing_required_parameter", "messages[0].content"), ({"messages": [[5]]}, "invalid_type", "messages[0]"),
               ({"messages": [USER("a")] * 1025}, "array_above_max_length", "messages"), ({"messages": [USER("a")], "stream": True}, "unsupported_parameter", "stream"),
               ({"messages": [USER("a")], "n": 2}, "integer_above_max_value", "n"), ({"messages": [USER("a")], "tools": TOOLS}, "unsupported_parameter", "tools"),
               ({"messages": [USER("a")], "use_beam_search": True}, "unsupported_parameter", "use_beam_search"), ({"messages": [USER("b " * 9000)]}, "context_length_exceeded", "messages"),
               ({"messages": [USER("a"), [{"role": "wizard", "content": "b"}]]}, "invalid_value", "messages[0].role")]


@pytest.mark.parametrize("body, code, param", WRONG_CHATS, ids=range(len(WRONG_CHATS)))
def test_wrong_chats_are_refused(server, body, code, param):
    r = server.post("/v1/chat/completions/batch", body)
    assert r.status == 400 and (r.error["code"], r.error["param"]) == (code, param), r.body


# ---- labels ----

def test_labels_have_the_model_s_probabilities(server):
    query, items, labels = "The sum of 1 and 1 is", [" 2", " 3\0"], [100, 200, 300]
    ids = server.post("/tokenize", {"prompt": query}).json()["tokens"]
    prompts = [ids + server.post("/tokenize", {"prompt": i, "add_special_tokens": False}).json()["tokens"] for i in items]

    def logprob(prompt, token):
        r = server.complete(prompt, max_tokens=1, allowed_token_ids=[token], logprobs=0, temperature=0)
        return r.json()["choices"][0]["logprobs"]["token_logprobs"][0]

    want = [[math.exp(logprob(p, t)) for t in labels] for p in prompts]
    j = server.post("/generative_scoring", {"query": query, "items": items, "label_token_ids": labels}).json()
    assert [d["score"] for d in j["data"]] == pytest.approx([w[0] / sum(w) for w in want], rel=1e-4)
    assert j["id"].startswith("generative-scoring-") and j["object"] == "list" and [(d["index"], d["object"]) for d in j["data"]] == [(0, "score"), (1, "score")]
    assert j["usage"] == {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": 2, "total_tokens": sum(map(len, prompts)) + 2}
    one = lambda **body: [d["score"] for d in server.post("/generative_scoring", {"label_token_ids": labels, **body}).json()["data"]]
    assert one(query=query, items=items, apply_softmax=False) == pytest.approx([w[0] for w in want], rel=1e-4)
    whole = one(query=ids[:-1], items=[ids[-1:] + p[len(ids):] for p in prompts])
    assert whole == pytest.approx([w[0] / sum(w) for w in want], rel=1e-4)
    rest = [p[len(ids):] for p in prompts]
    assert one(query=rest[0], items=[ids], item_first=True) == pytest.approx(whole[:1], rel=1e-4)


WRONG_LABELS = [({}, "query"), ({"query": "a"}, "items"), ({"query": "a", "items": ["b"]}, "label_token_ids"), ({"query": "a", "items": [], "label_token_ids": [1]}, "items"),
                ({"query": "a", "items": ["b"], "label_token_ids": []}, "label_token_ids"), ({"query": "a", "items": ["b"], "label_token_ids": [9999999999]}, "label_token_ids"),
                ({"query": "a", "items": ["b"], "label_token_ids": [-1]}, "label_token_ids"), ({"query": "a", "items": ["b"], "label_token_ids": "x"}, "label_token_ids"),
                ({"query": "a", "items": ["b"], "label_token_ids": [1] * 129}, "label_token_ids"), ({"query": {}, "items": ["b"], "label_token_ids": [1]}, "query"),
                ({"query": "a", "items": [{}], "label_token_ids": [1]}, "items"), ({"query": "", "items": ["b"], "label_token_ids": [1]}, "query"), ({"query": "a", "items": ["b"], "label_token_ids": [1.5]}, "label_token_ids"), ({"query": "b " * 9000, "items": ["b"], "label_token_ids": [1]}, "query"),
                ({"query": [99999999], "items": ["b"], "label_token_ids": [1]}, "query"), ({"query": "a", "items": ["b"], "label_token_ids": [[1], [2]]}, "label_token_ids")]


@pytest.mark.parametrize("body, param", WRONG_LABELS, ids=range(len(WRONG_LABELS)))
def test_wrong_labels_are_refused(server, body, param):
    r = server.post("/generative_scoring", body)
    assert r.status == 400 and r.error["param"] == param, r.body


# ---- classes and pooling ----

def test_a_yes_no_model_has_one_class(server, judge):
    texts = ["What is 1 + 0?", "x"]
    j = judge.post("/classify", {"input": texts}).json()
    assert [d["index"] for d in j["data"]] == [0, 1] and all(d["label"] == "LABEL_0" and d["num_classes"] == len(d["probs"]) == 1 for d in j["data"])
    plain = judge.post("/classify", {"input": texts, "use_activation": False}).json()
    probs = [d["probs"][0] for d in j["data"]]
    assert [1 / (1 + math.exp(-d["probs"][0])) for d in plain["data"]] == pytest.approx(probs, rel=1e-4)
    ids = [judge.post("/tokenize", {"prompt": t}).json()["tokens"] for t in texts]
    assert [d["probs"][0] for d in judge.post("/classify", {"input": ids}).json()["data"]] == pytest.approx(probs, rel=1e-4)
    assert [d["probs"][0] for d in judge.post("/invocations", {"input": ids}).json()["data"]] == pytest.approx(probs, rel=1e-4)
    assert [d["data"][0] for d in judge.post("/pooling", {"input": texts, "task": "classify"}).json()["data"]] == pytest.approx(probs, rel=1e-4)
    labels = [judge.post("/tokenize", {"prompt": t, "add_special_tokens": False}).json()["tokens"][0] for t in ("1", "0")]
    same = judge.post("/generative_scoring", {"query": ids[0][:2], "items": [ids[0][2:]], "label_token_ids": labels}).json()["data"][0]["score"]
    assert same == pytest.approx(probs[0], rel=1e-4)
    for add in (False, True):
        chat = judge.post("/classify", {"messages": USER("x"), "add_generation_prompt": add}).json()
        tokens = judge.post("/tokenize", {"messages": USER("x"), "add_generation_prompt": add}).json()["tokens"]
        assert chat["usage"]["prompt_tokens"] == len(tokens)
    r = server.post("/classify", {"input": "a"})
    assert r.status == 400 and r.error["code"] == "unsupported_model"
    for body in ({}, {"input": ""}, {"input": []}, {"input": [99999999]}, {"messages": []}, {"messages": 5}):
        assert judge.post("/classify", body).status == 400, body


def test_vectors_are_returned_in_every_format(server):
    want = server.post("/v1/embeddings", {"input": ["a b", "c"]}).json()["data"]
    got = server.post("/pooling", {"input": ["a b", "c"], "task": "embed"}).json()
    assert [d["data"] for d in got["data"]] == [d["embedding"] for d in want] and all(d["object"] == "pooling" for d in got["data"])
    assert got["usage"]["total_tokens"] == got["usage"]["prompt_tokens"] > 0
    for task, words in (("classify", "Unsupported task: 'classify'"), ("token_classify", "Unsupported task: 'token_classify'"), ("plugin", "No IOProcessor plugin installed.")):
        r = server.post("/pooling", {"input": "a", "task": task})
        assert r.status == 400 and r.error["message"].startswith(words)
    tokens = server.post("/tokenize", {"messages": USER("x"), "add_generation_prompt": False}).json()["tokens"]
    (same,) = server.post("/v1/embeddings", {"input": [tokens]}).json()["data"]
    for path, name in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
        (chat,) = server.post(path, {"messages": USER("x")}).json()["data"]
        assert chat[name] == same["embedding"]


def test_vectors_have_vllm_s_members(server):
    a, b = (server.post("/v1/embeddings", {"input": "a", "embed_dtype": "float32", "endianness": "little"}).json() for _ in range(2))
    assert a["id"].startswith("embd-") and a["id"] != b["id"] and abs(a["created"] - time.time()) < 60
    for key, value in (("embed_dtype", "float8"), ("endianness", "middle")):
        for path in ("/v1/embeddings", "/pooling"):
            r = server.post(path, {"input": "a", "encoding_format": "base64", key: value})
            assert r.status == 400 and (r.error["code"], r.error["param"]) == ("invalid_value", key), r.body


def small_float(code, mantissa, bias, n_bits):
    sign, code = -1 if code >> (n_bits - 1) else 1, code & ((1 << (n_bits - 1)) - 1)
    exponent, rest = code >> mantissa, code & ((1 << mantissa) - 1)
    return sign * (math.ldexp(rest, 1 - bias - mantissa) if exponent == 0 else math.ldexp(rest + (1 << mantissa), exponent - bias - mantissa))


@pytest.mark.parametrize("dtype, n_bytes, mantissa, bias", [("float32", 4, 23, 127), ("float16", 2, 10, 15), ("bfloat16", 2, 7, 127), ("fp8_e4m3", 1, 3, 7), ("fp8_e5m2", 1, 2, 15)])
def test_vectors_are_packed_in_each_type_and_order(server, dtype, n_bytes, mantissa, bias):
    for path, name in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
        for normalize in (True, False):
            body = {"input": "a b c", "normalize": normalize, "embed_dtype": dtype}
            want = server.post(path, {**body, "encoding_format": "float"}).json()["data"][0][name]  # floats stay floats, whatever the type
            packed = {order: base64.b64decode(server.post(path, {**body, "encoding_format": "base64", "endianness": order}).json()["data"][0][name]) for order in ("native", "little", "big")}
            split = lambda b: [b[i:i + n_bytes] for i in range(0, len(b), n_bytes)]
            assert packed["native"] == packed["little"] and [x[::-1] for x in split(packed["big"])] == split(packed["little"])
            assert len(packed["big"]) == n_bytes * len(want)
            for x, code in zip(want, split(packed["little"])):
                near = [small_float(c, mantissa, bias, 8 * n_bytes) for c in range(max(int.from_bytes(code, "little") - 1, 0), int.from_bytes(code, "little") + 2)]
                got = small_float(int.from_bytes(code, "little"), mantissa, bias, 8 * n_bytes)
                assert abs(got - x) <= min(abs(n - x) for n in near) + 1e-9 * abs(x), (x, got)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_includes_its_messages_on_request(server, stream):
    body = {"input": "What is 1 + 1?", "max_output_tokens": 12, "temperature": 0, "enable_response_messages": True, "stream": stream}
    r = server.post("/v1/responses", body)
    assert r.status == 200, r.body
    j = json.loads(r.events()[-1])["response"] if stream else r.json()
    (asked,), (said,) = j["input_messages"], j["output_messages"]
    prompt = server.post("/tokenize", {"messages": USER("What is 1 + 1?")}).json()["tokens"]
    assert asked["type"] == said["type"] == "raw_message_tokens" and asked["tokens"] == prompt and len(prompt) == j["usage"]["input_tokens"]
    assert "What is 1 + 1?" in asked["message"] and server.post("/tokenize", {"prompt": asked["message"], "add_special_tokens": False}).json()["tokens"] == prompt
    assert len(said["tokens"]) == j["usage"]["output_tokens"] and said["message"] == server.post("/detokenize", {"tokens": said["tokens"]}).json()["prompt"]
    assert j["output"][-1]["content"][0]["text"] in said["message"]
    plain = server.post("/v1/responses", {**body, "enable_response_messages": False, "stream": False}).json()
    assert "input_messages" not in plain and "output_messages" not in plain
    r = server.chat("a", enable_response_messages=True)
    assert r.status == 400 and r.error["param"] == "enable_response_messages"
    assert server.post("/v1/responses", {**body, "enable_response_messages": 5}).error["param"] == "enable_response_messages"


def test_answers_contain_metrics_if_the_option_is_set(server):
    with Server(real=True, threads=2, enable_per_request_metrics=True) as s:
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        for beams in (False, True):
            body = {"max_tokens": 8, "ignore_eos": True, "use_beam_search": beams}
            streams = [s.complete("a", **body, **usage).chunks(), s.chat("a", **body, **usage).chunks()]
            assert all("metrics" not in c for chunks in streams for c in chunks[:-1])
            for j in (s.complete("a", **body).json(), s.chat("a", **body).json(), *(chunks[-1] for chunks in streams)):
                m = j["metrics"]
                assert set(m) == {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"} and all(v >= 0 for v in m.values()), m
                assert m["mean_itl_ms"] == pytest.approx(m["generation_time_ms"] / 7, abs=0.002) and m["tokens_per_second"] > 0
                assert m["tokens_per_second"] == pytest.approx(8000 / (m["time_to_first_token_ms"] + m["generation_time_ms"]), rel=0.05)
        assert s.complete("a", max_tokens=1).json()["metrics"]["mean_itl_ms"] is None
        assert "mean_itl_ms" not in s.complete("a", max_tokens=1, **usage).chunks()[-1]["metrics"]
        assert "metrics" not in s.complete("a", max_tokens=1, n=2).json() and "metrics" not in s.complete(["a", "b"], max_tokens=1).json()
    assert "metrics" not in server.complete("a", max_tokens=1).json()


def test_biases_of_unknown_tokens_are_refused_with_vllms_message(server):
    vocab = 1 << 20
    r = server.complete("a", logit_bias={"bad1": 1, "5": 1, "bad2": 1})
    assert r.status == 400 and r.error["message"] == "Invalid 'logit_bias': 'bad1', 'bad2' are not token ids."
    r = server.complete("a", logit_bias={str(vocab): 1})
    assert r.status == 400 and r.error["param"] == "logit_bias" and "[%d] in logit_bias contain out-of-vocab token ids. Vocabulary size: " % vocab in r.error["message"]
    r = server.complete("a", logit_bias={"x": 1})
    assert r.status == 400 and r.error["param"] == "logit_bias" and "'x' is not a token id" in r.error["message"]


def test_truncation_beyond_the_context_is_refused(server):
    context = server.get("/v1/models").json()["data"][0]["max_model_len"]
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/completions", {"prompt": "a", "max_tokens": 1}), ("/score", {"text_1": "a", "text_2": "b"})):
        assert server.post(path, {**body, "truncate_prompt_tokens": context}).status == 200
        r = server.post(path, {**body, "truncate_prompt_tokens": context + 1})
        assert r.status == 400 and r.error["param"] == "truncate_prompt_tokens" and "Please request a smaller truncation size." in r.error["message"]


def test_errors_of_its_own_routes_have_vllm_s_types(server):
    for path, body in (("/pooling", {"input": "a", "task": "plugin"}), ("/classify", {}), ("/generative_scoring", {}), ("/inference/v1/generate", {})):
        r = server.post(path, body)
        assert r.status == 400 and r.error["type"] == "BadRequestError" and isinstance(r.error["code"], str), r.body
    r = server.post("/pooling", {"input": "a", "model": "other"})
    assert r.status == 404 and (r.error["type"], r.error["code"]) == ("NotFoundError", "model_not_found")
    assert server.post("/v1/embeddings", {}).error["type"] == "invalid_request_error"  # OpenAI's own


REFUSED = [("/v1/completions", {"use_beam_search": True, "logit_bias": {"5": 1}}, "logit_bias"), ("/v1/chat/completions", {"use_beam_search": True, "min_tokens": 2}, "min_tokens"),
           ("/v1/completions", {"use_beam_search": True, "n": 11}, "n"), ("/v1/completions", {"use_beam_search": True, "bad_words": ["a"]}, "bad_words"),
           ("/v1/completions", {"use_beam_search": True, "frequency_penalty": 1}, "frequency_penalty"), ("/v1/completions", {"use_beam_search": True, "allowed_token_ids": [5]}, "allowed_token_ids"),
           ("/v1/completions", {"use_beam_search": True, "guided_regex": "a"}, "guided_regex"), ("/v1/completions", {"length_penalty": 51}, "length_penalty"),
           ("/v1/completions", {"use_beam_search": 5}, "use_beam_search"), ("/v1/responses", {"use_beam_search": True, "input": "a"}, "use_beam_search"),
           ("/v1/completions", {"best_of": 3}, "best_of"), ("/v1/completions", {"n": 1, "best_of": 2}, "best_of"),
           ("/v1/completions", {"suffix": "b"}, "suffix"), ("/v1/completions", {"prompt_logprobs": -1}, "prompt_logprobs"), ("/v1/chat/completions", {"prompt_logprobs": -1}, "prompt_logprobs"),
           ("/v1/completions", {"logprobs": -1}, "logprobs"), ("/v1/completions", {"prompt_logprobs": 21}, "prompt_logprobs")]


@pytest.mark.parametrize("path, body, param", REFUSED, ids=range(len(REFUSED)))
def test_unsupported_members_are_refused_by_name(server, path, body, param):
    r = server.post(path, {**{"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": {"messages": USER("x")}}.get(path, {}), **body})
    assert r.status == 400 and r.error["param"] == param and param in r.error["message"], r.body


def test_cohere_s_embeddings(server):
    texts = ["a b", "c\0d"]
    want = [d["embedding"] for d in server.post("/v1/embeddings", {"input": texts}).json()["data"]]
    j = server.post("/v2/embed", {"texts": texts, "embedding_types": ["float", "base64", "binary", "ubinary"]}).json()
    e = j["embeddings"]
    assert e["float"] == want and j["texts"] == texts and j["id"] and j["response_type"] == "embeddings_by_type"
    assert [pytest.approx(struct.unpack("<%df" % len(v), base64.b64decode(b)), rel=1e-6) for v, b in zip(want, e["base64"])] == want
    bits = lambda v: [sum((x >= 0) << (7 - k) for k, x in enumerate(v[i:i + 8])) for i in range(0, len(v), 8)]
    assert e["ubinary"] == [bits(v) for v in want] and e["binary"] == [[x - 128 for x in bits(v)] for v in want]
    assert j["meta"]["api_version"]["version"] == "2" and j["meta"]["billed_units"]["input_tokens"] > 0 and j["meta"]["billed_units"]["image_tokens"] == 0
    assert list(server.post("/v2/embed", {"texts": ["a"]}).json()["embeddings"]) == ["float"]
    ids = server.post("/tokenize", {"prompt": "one two three four"}).json()["tokens"]
    vector = lambda **body: server.post("/v2/embed", {"texts": ["one two three four"], **body}).json()["embeddings"]["float"][0]
    of_ids = lambda some: server.post("/v1/embeddings", {"input": [some]}).json()["data"][0]["embedding"]
    assert vector(max_tokens=3) == of_ids(ids[:3]) and vector(max_tokens=3, truncate="START") == of_ids(ids[-3:]) != vector(max_tokens=3)
    long = "word " * 9000
    assert server.post("/v2/embed", {"texts": [long]}).status == server.post("/v2/embed", {"texts": [long], "truncate": "START"}).status == 200
    assert server.post("/v2/embed", {"texts": [long], "truncate": "NONE"}).error["code"] == "context_length_exceeded"


WRONG_EMBEDS = [({}, "texts"), ({"texts": []}, "texts"), ({"texts": [""]}, "texts"), ({"texts": [5]}, "texts"), ({"texts": "a"}, "texts"), ({"texts": ["a"], "input_type": "search_query"}, "input_type"),
                ({"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types"), ({"texts": ["a"], "embedding_types": "float"}, "embedding_types"),
                ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"), ({"texts": ["a"], "output_dimension": 3}, "output_dimension"), ({"texts": ["a"], "images": ["x"]}, "images"),
                ({"texts": ["a"], "max_tokens": 0}, "max_tokens"), ({"inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "inputs")]


@pytest.mark.parametrize("body, param", WRONG_EMBEDS, ids=range(len(WRONG_EMBEDS)))
def test_wrong_embeds_are_refused(server, body, param):
    r = server.post("/v2/embed", body)
    assert r.status == 400 and r.error["param"] == param, r.body


# ---- answers of chats ----

def test_tool_calls_are_a_list_if_the_request_has_tools(server):
    message = lambda **body: server.post("/v1/chat/completions", {"messages": USER("x"), "temperature": 0, **body}).json()["choices"][0]["message"]
    assert "tool_calls" not in message(tools=TOOLS, tool_choice="required", max_tokens=1)
    assert "tool_calls" not in message(max_tokens=1)
    named = message(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}}, max_tokens=60)
    assert named["content"] == "" and len(named["tool_calls"]) == 1


def test_forced_usage_counts_up_with_each_chunk():
    with Server(real=True, threads=2, enable_force_include_usage=True) as s:
        chunks = s.chat("What is 12 + 30?", stream=True, max_completion_tokens=10, min_tokens=10, temperature=0).chunks()
        last = 0
        for c in chunks:
            n = c["usage"]["completion_tokens"]
            assert last == 0 or n > last or (not c["choices"] and n == last)
            last = n
        assert last == 10 and [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]].count("length") == 1


def test_kimi_counts_the_calls_of_a_conversation():
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    with scripted([call, call + call], env={"FAKE_MODEL_TYPE": "kimi_k2"}) as s:
        ids = lambda seed, before=(): [c["id"] for c in s.post("/v1/chat/completions", {"messages": [*before, *USER("x")], "tools": TOOLS, "seed": seed}).json()["choices"][0]["message"]["tool_calls"]]
        assert ids(0) == ["functions.f:0"] and ids(1) == ["functions.f:0", "functions.f:1"]
        past = [{"role": "assistant", "content": "", "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"}]
        assert ids(0, past) == ["functions.f:1"]


def test_a_command_line_may_allow_more_logprobs():
    with Server(max_logprobs=30) as s:
        assert s.complete(logprobs=30, max_tokens=1).status == 200 and s.complete(logprobs=31, max_tokens=1).status == 400
        assert s.complete(logprobs=-1, max_tokens=1).status == 400
