# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own routes: /completion, /infill, /embedding, /apply-template, its form of /tokenize, /props and /slots."""
import json
import math
import os
import threading
import time

import pytest
from api import DEMO, SMALL, Server, scripted

ROOM = 512  # tokens of a sequence of the real model
TEXTS = ["One\ntwo STOP three", "a" * 30]
SETTINGS = {"n_predict", "seed", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "stop", "adaptive_target"}
TIMINGS = {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_token_ms",
           "predicted_per_second"}


@pytest.fixture(scope="module")
def server():
    with scripted(TEXTS) as s:
        yield s


@pytest.fixture(scope="module")
def real():
    with Server(real=True, threads=2, max_model_len=ROOM) as s:
        yield s


def eventually(check, seconds=5):
    end = time.time() + seconds
    while time.time() < end and not check():
        time.sleep(0.01)
    return check()


def native(s, prompt="hello", **body):
    r = s.post("/completion", {"prompt": prompt, **body})
    assert r.status == 200, r.body
    return r.json()


def events(r):
    assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream")
    return [json.loads(e) for e in r.events()]


def test_a_completion_has_every_member(server):
    j = native(server, seed=0, n_predict=64, temperature=0.5)
    assert j["content"] == TEXTS[0] and j["tokens"] == [] and j["stop"] is True and (j["stop_type"], j["stopping_word"], j["truncated"]) == ("eos", "", False)
    assert j["has_new_line"] is True and j["model"] == "demo" and j["index"] == 0 and j["prompt"].endswith("hello")
    assert SETTINGS <= set(j["generation_settings"]) and j["generation_settings"]["n_predict"] == 64 and j["generation_settings"]["temperature"] == 0.5
    assert set(j["timings"]) == TIMINGS and all(v >= 0 for v in j["timings"].values()) and j["timings"]["predicted_n"] == j["tokens_predicted"]
    assert j["timings"]["prompt_n"] + j["timings"]["cache_n"] == j["tokens_evaluated"] > 0
    j = native(server, seed=0, stop=["STOP"], return_tokens=True)
    assert j["content"] == "One\ntwo " and (j["stop_type"], j["stopping_word"]) == ("word", "STOP") and all(isinstance(t, int) for t in j["tokens"]) and j["tokens"]
    j = native(server, seed=1, n_predict=1)
    assert j["stop_type"] == "limit" and j["tokens_predicted"] == 1 and j["has_new_line"] is False
    assert j["timings"]["predicted_per_second"] == j["timings"]["predicted_per_token_ms"] == 0  # the first token is the prompt's
    assert native(server, seed=1, n_predict=-1)["stop_type"] == "eos"


def test_a_stream_adds_up_to_the_whole_answer(server):
    whole = native(server, seed=0, return_tokens=True)
    parts = events(server.post("/completion", {"prompt": "hello", "seed": 0, "stream": True, "timings_per_token": True}))
    assert [p["stop"] for p in parts] == [False] * (len(parts) - 1) + [True] and len(parts) > 3
    assert "".join(p["content"] for p in parts) == whole["content"] and sum((p["tokens"] for p in parts), []) == whole["tokens"]
    assert all(set(p["timings"]) == TIMINGS for p in parts) and parts[-1]["has_new_line"] is True and parts[-1]["stop_type"] == "eos"
    assert set(parts[-1]) == set(whole)


def test_prompts_of_texts_and_ids(server):
    ids = server.post("/tokenize", {"content": "a b", "add_special": True}).json()["tokens"]
    count = lambda prompt: native(server, prompt, n_predict=1)["tokens_evaluated"]
    assert count("a b") == count(ids) == count({"prompt_string": "a b"}) == len(ids)
    nul = server.post("/tokenize", {"content": "a\0b\ufffe", "add_special": True}).json()["tokens"]
    for prompt in ({"prompt_string": "a\0b\ufffe"}, {"content": [{"type": "text", "text": "a\0"}, {"type": "text", "text": "b\ufffe"}]}):
        assert count(prompt) == len(nul) and count([5, prompt]) == len(nul)
    more = server.post("/tokenize", {"content": "c"}).json()["tokens"]
    assert count([5, 6, "c", 7]) == 3 + len(more)
    many = native(server, [ids, "a b", {"prompt_string": "a b"}, [5, "c"]], n_predict=1)
    assert [m["tokens_evaluated"] for m in many] == [len(ids)] * 3 + [1 + len(more)] and [m["index"] for m in many] == [0, 1, 2, 3]
    assert isinstance(native(server, ["a b"], n_predict=1), list)


WRONG = [({}, "missing_required_parameter", "prompt"), ({"prompt": []}, "empty_array", "prompt"), ({"prompt": 5}, "invalid_type", "prompt"), ({"prompt": [True]}, "invalid_type", "prompt"),
         ({"prompt": [5, -1]}, "invalid_value", "prompt"), ({"prompt": [99999999]}, "invalid_value", "prompt"), ({"prompt": {"text": "a"}}, "invalid_type", "prompt"),
         ({"prompt": {"prompt_string": "a", "multimodal_data": "x"}}, "unsupported_parameter", "multimodal_data"), ({"prompt": "a", "n_probs": -1}, "integer_below_min_value", "n_probs"),
         ({"prompt": [[[1]]]}, "invalid_type", "prompt"), ({"prompt": "a", "logit_bias": [[5]]}, "invalid_type", "logit_bias"), ({"prompt": "a", "logit_bias": [[5, True]]}, "invalid_type", "logit_bias"),
         ({"prompt": "a", "logit_bias": 5}, "invalid_type", "logit_bias"), ({"prompt": "a", "logit_bias": [["a", 1]] * 1025}, "array_above_max_length", "logit_bias"),
         ({"prompt": "a", "mirostat": 2}, "unsupported_parameter", "mirostat"),
         ({"prompt": "a", "response_fields": [5]}, "invalid_type", "response_fields"), ({"prompt": "a " * 3000}, "context_length_exceeded", "prompt"), ("[", "json_parse_error", None)]


@pytest.mark.parametrize("body, code, param", WRONG, ids=range(len(WRONG)))
def test_wrong_completions_are_refused(server, body, code, param):
    r = server.post("/completion", body)
    assert r.status == 400 and (r.error["code"], r.error["param"]) == (code, param), r.body


def narrowed(raw, temperature, top_k, top_p, min_p):
    """The distribution that the samplers make of raw log-probabilities (likeliest first)."""
    w = [math.exp((lp - raw[0]) / temperature) for lp in raw[:top_k]]
    total, n, kept = sum(w), 0, 0
    while n < len(w) and kept < top_p * total:
        kept += w[n]
        n += 1
    w = [x for x in w[:n] if x >= min_p * w[0]]
    total = sum(w)
    return [x / total for x in w]


@pytest.fixture(scope="module")
def open_handed():
    with Server(real=True, threads=2, max_logprobs=-1) as s:
        yield s


@pytest.mark.parametrize("settings", [(3.0, 8, 1.0, 0.0), (2.5, 20, 0.9, 0.0), (3.0, 12, 1.0, 0.05), (2.0, 15, 0.95, 0.02), (3.0, 40, 1.0, 0.0),
                                      (4.0, 60, 0.9, 0.01), (1.5, 4096, 0.8, 0.0), (2.5, 4096, 1.0, 0.02)])
def test_probabilities_after_the_samplers(open_handed, settings):
    """The probabilities are the distribution from which tokens are drawn: the one that the samplers make of the raw log-probabilities."""
    real, most = open_handed, max(20, settings[1])
    body = {**dict(zip(("temperature", "top_k", "top_p", "min_p"), settings)), "n_probs": most, "n_predict": 40 if most < 100 else 8}
    n = expected = variance = 0
    for seed in range(6):
        raw, post = (native(real, "The", seed=seed, post_sampling_probs=p, **body) for p in (False, True))
        assert raw["content"] == post["content"] and post["generation_settings"]["post_sampling_probs"] is True
        for r, p in zip(raw["completion_probabilities"], post["completion_probabilities"], strict=True):
            assert len(p["top_probs"]) == most
            probs = [t["prob"] for t in p["top_probs"] if t["prob"]]
            want = narrowed([t["logprob"] for t in r["top_logprobs"]], *settings)
            off = [(i, x, y) for i, (x, y) in enumerate(zip(probs, want)) if not math.isclose(x, y, rel_tol=1e-5)]
            assert len(probs) == len(want) and not off, off[:5]
            assert [t["id"] for t in p["top_probs"]] == [t["id"] for t in r["top_logprobs"]]
            assert p["prob"] == dict(zip([t["id"] for t in p["top_probs"]], probs))[p["id"]] > 0 and set(p) == {"id", "token", "prob", "bytes", "top_probs"}
            n += p["id"] == p["top_probs"][0]["id"]
            expected += probs[0]
            variance += probs[0] * (1 - probs[0])
    assert variance > (2 if most < 100 else 0.5) and abs(n - expected) < 4 * variance**0.5


BIASED = [{"frequency_penalty": 1.5}, {"presence_penalty": 1.0, "frequency_penalty": -0.5}, {"logit_bias": [[300, 4], [301, 3], [302, False]]}, {"ignore_eos": True},
          {"allowed_token_ids": list(range(300, 360))}, {"grammar": "root ::= [a-d ]+"}, {"repeat_penalty": 1.5}, {"repeat_penalty": 1.2, "presence_penalty": 0.5, "min_tokens": 5, "grammar": "root ::= [a-z ]+"}]


@pytest.mark.parametrize("changes", BIASED, ids=range(len(BIASED)))
def test_probabilities_after_penalties_biases_and_constraints(open_handed, changes):
    """They differ from the raw ones by exactly what the changes subtract. Repetition penalties depend on the size of logits, which log-probabilities do not
    tell; for these the test only knows which tokens stay the same, and in which direction the others move."""
    body = {"temperature": 2.0, "top_k": 0, "top_p": 1, "min_p": 0, "n_probs": -1, "n_predict": 12, "return_tokens": True, "ignore_eos": False, **changes}
    prompt = open_handed.post("/tokenize", {"content": "The cat", "add_special": True}).json()["tokens"]
    raw, post = (native(open_handed, "The cat", seed=3, post_sampling_probs=p, **body) for p in (False, True))
    assert raw["tokens"] == post["tokens"] and len(raw["tokens"]) > 3
    bias = {i: b for i, b in changes.get("logit_bias", [])}
    for k, (r, p) in enumerate(zip(raw["completion_probabilities"], post["completion_probabilities"], strict=True)):
        drawn, known = raw["tokens"][:k], set(prompt + raw["tokens"][:k])
        probs = {t["id"]: t["prob"] for t in p["top_probs"] if t["prob"]}
        score = {t["id"]: t["logprob"] - changes.get("frequency_penalty", 0) * drawn.count(t["id"]) - changes.get("presence_penalty", 0) * (t["id"] in drawn) + (bias.get(t["id"]) or 0) for t in r["top_logprobs"]}
        assert sum(probs.values()) == pytest.approx(1) and p["prob"] == probs[p["id"]] and p["id"] == raw["tokens"][k]
        if "grammar" in changes:
            assert 3 < len(probs) < 3800
        if "allowed_token_ids" in changes:
            assert set(probs) == set(changes["allowed_token_ids"])
        if "logit_bias" in changes:
            assert probs.get(302, 0) < 1e-9 < probs[300]
        same = [i for i in probs if "repeat_penalty" not in changes or i not in known]
        ratio = [math.log(probs[i]) - score[i] / 2 for i in same if i != 302 and probs[i] > 1e-12]
        assert len(ratio) > 3 and max(ratio) - min(ratio) < 1e-3
        for i in set(probs) - set(same):
            assert math.log(probs[i]) - score[i] / 2 < max(ratio) + 1e-3


def test_probabilities_do_not_depend_on_drafts(open_handed):
    """A draft is verified before the tokens in front of it are known to have been drawn."""
    body = {"temperature": 0.7, "n_probs": 6, "n_predict": 24, "seed": 5, "post_sampling_probs": True, "presence_penalty": 0.3, "repeat_penalty": 1.1, "grammar": "root ::= [a-z ]+", "cache_prompt": True}
    prompt = "a b c d a b c d a b c d a b"
    with Server(real=True, threads=2, speculative_config='{"method":"ngram","num_speculative_tokens":4}') as s:
        drafted = native(s, prompt, **body)
    plain = native(open_handed, prompt, **body)
    assert drafted["content"] == plain["content"] and drafted["completion_probabilities"] == plain["completion_probabilities"]


def test_probabilities_without_top_k_and_top_p(real):
    p = native(real, "The", seed=1, temperature=1, n_probs=3, n_predict=5, post_sampling_probs=True)["completion_probabilities"]
    raw = native(real, "The", seed=1, temperature=1, n_probs=3, n_predict=5)["completion_probabilities"]
    assert [t["prob"] for t in p] == pytest.approx([math.exp(t["logprob"]) for t in raw]) and all(len(t["top_probs"]) == 3 for t in p)
    p = native(real, "The", temperature=0, n_probs=3, n_predict=5, post_sampling_probs=True)["completion_probabilities"]
    assert all(t["prob"] == 1 and t["top_probs"][0]["id"] == t["id"] and [x["prob"] for x in t["top_probs"]] == [1, 0, 0] for t in p)
    assert "completion_probabilities" not in native(real, "The", temperature=0.5, n_predict=2, post_sampling_probs=True)


def test_completions_without_a_model_are_those_of_llama_cpp(server):
    assert server.post("/completions", {"prompt": "hello", "seed": 0}).json()["content"] == TEXTS[0]
    assert server.post("/completions", {"prompt": "hello", "seed": 0, "model": "demo"}).json()["choices"][0]["text"] == TEXTS[0]


def test_without_a_limit_the_answer_fills_the_context(real):
    j = native(real, [5] * (ROOM - 6), n_predict=100, temperature=0, ignore_eos=True)
    assert (j["tokens_predicted"], j["stop_type"]) == (6, "limit")
    r = real.post("/api/generate", {"model": "demo", "prompt": "hello", "stream": False, "options": {"num_predict": 100000}})
    assert r.status == 200, r.body


def test_without_tokens_to_predict_the_prompt_is_only_cached(real):
    prompt = list(range(300, 300 + 96))
    j = native(real, prompt, n_predict=0, timings_per_token=True)
    assert (j["content"], j["tokens_predicted"], j["stop_type"], j["stop"], j["tokens_evaluated"]) == ("", 0, "limit", True, 96)
    assert j["timings"]["predicted_n"] == 0 and j["timings"]["prompt_n"] == 96 and j["generation_settings"]["n_predict"] == 0
    assert native(real, prompt, n_predict=1)["timings"]["cache_n"] >= 64  # its whole blocks
    (end,) = events(real.post("/completion", {"prompt": [prompt, prompt[:50]], "n_predict": 0, "stream": True}))[-1:]
    assert end["stop"] is True and end["content"] == ""
    assert native(real, prompt + [5] * (ROOM - 96), n_predict=0)["tokens_evaluated"] == ROOM
    assert len(native(real, [prompt, "a"], n_predict=0, n_probs=2, return_tokens=True, grammar="root ::= [a]")) == 2
    r = real.post("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 0})
    assert r.status == 200 or r.error["code"] == "unsupported_value", r.body
    assert real.chat("hello", n_predict=0).error["code"] == "integer_below_min_value"


def test_lengths_under_openais_name(real):
    assert native(real, "Once", max_tokens=3, temperature=0)["tokens_predicted"] == 3
    assert native(real, "Once", max_tokens=3, n_predict=2)["tokens_predicted"] == 2
    assert native(real, "Once", max_tokens=0)["tokens_predicted"] == 0
    ask = lambda s, path, n: s.post(path, {"messages": [{"role": "user", "content": "What is 1 + 1?"}], "prompt": "a", "max_tokens": n})
    assert ask(real, "/v1/chat/completions", -1).status == ask(real, "/v1/completions", -1).status == 400
    assert ask(real, "/chat/completions", -1).status == 200
    with Server(real=True, conventions="llama.cpp", max_model_len=ROOM) as s:
        for path in ("/v1/chat/completions", "/v1/completions"):
            assert ask(s, path, -1).status == 200 and ask(s, path, -2).status == 400
            r = ask(s, path, 0)
            assert r.status == 200 and r.json()["usage"]["completion_tokens"] == 0 and r.json()["choices"][0]["finish_reason"] == "length", r.body


def test_a_window_of_penalties_must_contain_the_whole_text(real):
    body = {"temperature": 0, "repeat_penalty": 1.3, "n_predict": 8}
    want = native(real, [5] * 20, **body)["content"]
    assert native(real, [5] * 20, repeat_last_n=28, **body)["content"] == want
    r = real.post("/completion", {"prompt": [5] * 20, "repeat_last_n": 27, **body})
    assert (r.status, r.error["param"]) == (400, "repeat_last_n") and "28 tokens" in r.error["message"], r.body
    only_answer = {"temperature": 0, "presence_penalty": 1.5, "n_predict": 8}  # this penalty does not count the prompt
    want = native(real, [5] * 20, **only_answer)["content"]
    assert native(real, [5] * 20, repeat_last_n=8, **only_answer)["content"] == want
    assert real.post("/completion", {"prompt": [5] * 20, "repeat_last_n": 7, **only_answer}).status == 400
    assert real.post("/completion", {"prompt": "a", "repeat_last_n": 64, "repeat_penalty": 1.3}).status == 400  # as long as the context
    assert native(real, "a", repeat_last_n=ROOM, repeat_penalty=1.3, n_predict=4)


def test_n_predict_is_reduced_to_what_fits_on_openais_routes_too(server):
    for path, prompt in (("/v1/completions", {"prompt": [5] * 2040}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        r = server.post(path, {**prompt, "n_predict": 2048, "ignore_eos": True})
        assert r.status == 200 and r.json()["usage"]["total_tokens"] == 2048, r.body
        assert server.post(path, {**prompt, "max_tokens": 2048}).error["code"] == "context_length_exceeded"


def test_requests_without_a_seed_use_the_servers_seed():
    with Server(real=True, seed=42) as s:
        texts = {native(s, "Once upon", n_predict=12, temperature=1.5, **more)["content"] for more in ({}, {}, {"seed": 42})}
        assert len(texts) == 1 and s.get("/props").json()["default_generation_settings"]["params"]["seed"] == 42
        assert len({native(s, "Once upon", n_predict=12, temperature=1.5, seed=-1)["content"] for _ in range(4)}) > 1  # -1: none
        ask = lambda: s.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 12, "temperature": 1.5, "seed": -1}).json()["choices"][0]["text"]
        assert len({ask() for _ in range(4)}) > 1


def test_a_rendered_template_is_not_truncated(server):
    body = {"messages": [{"role": "user", "content": "a b c d e f g h"}]}
    assert server.post("/apply-template", {**body, "truncate_prompt_tokens": 3}).json() == server.post("/apply-template", body).json()


def test_errors_have_llamas_types(server):
    r = server.post("/completion", {"prompt": "a " * 3000})
    assert r.status == 400 and r.error["type"] == "exceed_context_size_error" and r.error["n_prompt_tokens"] >= 3000 and r.error["n_ctx"] == 2048, r.body
    assert server.post("/completion", {"prompt": 5}).error["type"] == "invalid_request_error"
    assert server.post("/v1/completions", {"prompt": "a " * 3000}).error["type"] == "invalid_request_error"  # OpenAI's own
    r = server.post("/chat/completions", {"messages": [{"role": "user", "content": "a " * 3000}]})
    assert r.status == 400 and r.error["type"] == "exceed_context_size_error" and r.error["n_ctx"] == 2048, r.body
    for n in (3000, 300000):  # the first is counted; for the second, which has too many bytes, there is a lower bound
        r = server.post("/chat/completions", {"messages": [{"role": "user", "content": "a " * n}]})
        assert r.error["type"] == "exceed_context_size_error" and 2048 < r.error["n_prompt_tokens"] <= 2 * n + 100, r.body
    with Server(api_key="secret") as s:
        for path, kind in (("/completion", "authentication_error"), ("/slots", "authentication_error"), ("/v1/completions", "invalid_request_error")):
            r = s.request("GET" if path == "/slots" else "POST", path, {"prompt": "a"}, {"authorization": "Bearer wrong"})
            assert r.status == 401 and (r.error["type"], r.error["code"]) == (kind, "invalid_api_key"), r.body


def test_response_fields_select_members(server):
    j = native(server, seed=1, n_predict=9, response_fields=["content", "generation_settings/n_predict", "prompt", "nothing"])
    assert set(j) == {"content", "generation_settings/n_predict", "prompt"} and j["generation_settings/n_predict"] == 9
    assert "timings" in native(server, seed=1, response_fields=[])
    assert "a\0b" in native(server, "a\0b", n_predict=9, seed=900, response_fields=["content"])["content"]


def test_probabilities_have_ids(real):
    j = native(real, "Once upon", n_predict=3, n_probs=4, temperature=0)
    assert len(j["completion_probabilities"]) == 3
    for t in j["completion_probabilities"]:
        assert t["id"] == t["top_logprobs"][0]["id"] and t["logprob"] <= 0 and len(t["top_logprobs"]) == 4 and bytes(t["bytes"]).decode() == t["token"]
    parts = events(real.post("/completion", {"prompt": "Once upon", "n_predict": 3, "n_probs": 4, "temperature": 0, "stream": True}))
    assert [t["id"] for p in parts for t in p.get("completion_probabilities", [])] == [t["id"] for t in j["completion_probabilities"]]


def test_biases_by_text_and_by_pairs(real):
    first = lambda **body: native(real, "Once upon a", n_predict=1, temperature=0, return_tokens=True, **body)["tokens"][0]
    best = first()
    text = real.post("/detokenize", {"tokens": [best]}).json()["content"]
    for bias in ([[best, False]], [[best, -100]], {str(best): -100}, [[text, -100]], {text: -100}, [[text, False]]):
        assert first(logit_bias=bias) != best, bias
    assert real.complete("a", logit_bias=[[5, 1]]).status == real.complete("a", logit_bias={"a": 1}).status == 400  # OpenAI's keys are ids


def test_other_members_of_llama_cpp_are_read(server):
    (v,) = [d["embedding"] for d in server.post("/v1/embeddings", {"input": "a b"}).json()["data"]]
    for body in ({"content": "a b"}, {"input": "a b"}, {"input": {"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}}):
        assert server.post("/embedding", body).json() == [{"index": 0, "embedding": [v]}]
    assert len(server.post("/embedding", {"input": ["a", [5, 6], "c"]}).json()) == 3
    assert server.post("/embedding", {"input": {"content": "a"}}).status == server.post("/embedding", {"input": {"content": [{"type": "image_url"}]}}).status == 400
    messages = [{"role": "user", "content": "x"}]
    prompt = server.post("/apply-template", {"messages": messages}).json()["prompt"]
    assert "x" in prompt and prompt != server.post("/apply-template", {"messages": messages, "add_generation_prompt": False}).json()["prompt"]
    assert server.post("/tokenize", {"messages": messages}).json()["tokens"] == server.post("/tokenize", {"content": prompt, "add_special": True}).json()["tokens"]
    plain = server.post("/tokenize", {"content": "h\u00e9llo \U0001F600"}).json()["tokens"]
    pieces = server.post("/tokenize", {"content": "h\u00e9llo \U0001F600", "with_pieces": True}).json()["tokens"]
    assert [p["id"] for p in pieces] == plain
    raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert raw.decode() == "h\u00e9llo \U0001F600"
    assert server.post("/detokenize", {"tokens": plain}).json()["content"] == "h\u00e9llo \U0001F600"


def test_timings_on_request(server):
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}), ("/v1/completions", {"prompt": "x"})):
        assert set(server.post(path, {**body, "timings_per_token": True, "seed": 1}).json()["timings"]) == TIMINGS
        assert "timings" not in server.post(path, {**body, "seed": 1}).json()
        assert all(set(c["timings"]) == TIMINGS for c in server.post(path, {**body, "timings_per_token": True, "seed": 1, "stream": True}).chunks())


def test_only_operators_see_settings_and_slots_which_have_no_texts():
    with Server(api_key="s3cret", env={"FAKE_STEP_US": "50000", "FAKE_LANES": "2"}) as s:
        key = {"authorization": "Bearer s3cret"}
        for path in ("/props", "/slots"):
            assert s.get(path).status == 401
        props = s.get("/props", headers=key).json()
        assert props["total_slots"] >= 2 and props["default_generation_settings"]["n_ctx"] == 2048 and "messages" in props["chat_template"]
        assert props["bos_token"] and props["eos_token"] and DEMO not in json.dumps(props) and props["model_alias"] == props["model_path"] == "demo"
        idle = s.get("/slots", headers=key).json()
        assert len(idle) == props["total_slots"] and not any(x["is_processing"] for x in idle)
        t = threading.Thread(target=lambda: s.post("/completion", {"prompt": "sesame", "n_predict": 40}, headers=key))
        t.start()
        busy = []
        while not any(x["is_processing"] for x in busy):
            busy = s.get("/slots", headers=key).json()
        assert sum(x["is_processing"] for x in busy) == 1 and busy[0]["next_token"][0]["n_remain"] <= 40 and "sesame" not in json.dumps(busy)
        t.join()


def test_the_routes_need_a_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k inference n\na admin m\n")
    with Server(api_key_file=keys) as s:
        for path in ("/completion", "/infill", "/embedding", "/apply-template"):
            assert s.post(path, {}).status == 401 and s.post(path, {}, headers={"authorization": "Bearer a"}).status == 403
            assert s.post(path, {}, headers={"authorization": "Bearer k"}).status == 400
        for path in ("/props", "/slots"):
            assert s.get(path, headers={"authorization": "Bearer k"}).status == 403 and s.get(path, headers={"authorization": "Bearer a"}).status == 200


# ---- texts with a gap ----

@pytest.fixture(scope="module")
def holed(tmp_path_factory):
    """A tokenizer in which tokens for infilling replace other tokens."""
    folder = tmp_path_factory.mktemp("fim")
    for name in os.listdir(DEMO):
        if name != "tokenizer.json":
            os.symlink(os.path.join(DEMO, name), folder / name)
    with open(os.path.join(DEMO, "tokenizer.json")) as f:
        j = json.load(f)
    spare = [a["content"] for a in j["added_tokens"] if a["special"]][-6:]
    new = dict(zip(spare, ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|repo_name|>", "<|fim_pad|>"]))
    text = json.dumps(j)
    for old, name in new.items():
        text = text.replace(json.dumps(old), json.dumps(name))
    (folder / "tokenizer.json").write_text(text)
    with Server(model=str(folder)) as s:
        ids = lambda t: s.post("/tokenize", {"prompt": t, "add_special_tokens": False, "parse_special": False}).json()["tokens"]
        mark = {n: s.post("/tokenize", {"prompt": n, "add_special_tokens": False}).json()["tokens"][0] for n in new.values()}
        bos = s.post("/tokenize", {"prompt": "x"}).json()["tokens"][:-len(ids("x"))]
        yield s, ids, mark, bos


def test_a_suffix_follows_the_answer(holed):
    s, ids, mark, bos = holed
    want = bos + [mark["<|fim_prefix|>"]] + ids("def f(") + [mark["<|fim_suffix|>"]] + ids("return <|fim_middle|>\0") + [mark["<|fim_middle|>"]]
    r = s.complete("def f(", suffix="return <|fim_middle|>\0", max_tokens=1, return_token_ids=True)
    assert r.status == 200 and r.json()["choices"][0]["prompt_token_ids"] == want
    r = s.complete(ids("def f("), suffix="return <|fim_middle|>\0", max_tokens=1, return_token_ids=True)
    assert r.json()["choices"][0]["prompt_token_ids"] == want
    assert s.post("/api/generate", {"prompt": "def f(", "suffix": "return <|fim_middle|>\0", "stream": False, "options": {"num_predict": 1}}).json()["prompt_eval_count"] == len(want)
    r = s.post("/infill", {"input_prefix": "def f(", "input_suffix": "return <|fim_middle|>\0", "n_predict": 1}).json()
    assert r["tokens_evaluated"] == len(want)
    r = s.post("/infill", {"input_prefix": "def f(", "input_suffix": "x", "prompt": "a", "n_predict": 1, "input_extra": [{"filename": "b.py", "text": "import b\n"}]}).json()
    more = [mark["<|repo_name|>"]] + ids("myproject\n") + [mark["<|file_sep|>"]] + ids("b.py") + ids("\n") + ids("import b\n") + [mark["<|file_sep|>"]] + ids("filename\n")
    assert r["tokens_evaluated"] == len(bos + more + [mark["<|fim_prefix|>"]] + ids("def f(") + [mark["<|fim_suffix|>"]] + ids("x") + [mark["<|fim_middle|>"]] + ids("a"))
    assert s.complete("a", suffix="", max_tokens=1).status == 200


@pytest.mark.parametrize("body, param", [({}, "input_prefix"), ({"input_prefix": "a"}, "input_suffix"), ({"input_prefix": 5, "input_suffix": "b"}, "input_prefix"),
                                         ({"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]}, "input_extra"),
                                         ({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": 5, "text": "x"}]}, "input_extra"),
                                         ({"input_prefix": "a", "input_suffix": "b", "input_extra": [5]}, "input_extra")])
def test_invalid_infill_requests_are_refused(holed, body, param):
    r = holed[0].post("/infill", body)
    assert r.status == 400 and r.error["param"] == param


def test_a_suffix_needs_fill_in_the_middle_tokens(server):
    for path, body in (("/v1/completions", {"prompt": "a", "suffix": "b"}), ("/infill", {"input_prefix": "a", "input_suffix": "b"})):
        r = server.post(path, body)
        assert r.status == 400 and (r.error["code"], r.error["param"]) == ("unsupported_value", "suffix")


# ---- progress of a prompt, and other details ----

PROGRESS = [("/completion", {"prompt": [5] * 900}), ("/v1/completions", {"prompt": [5] * 900}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b c " * 400}]})]


@pytest.mark.parametrize("path, body", PROGRESS, ids=[p for p, _ in PROGRESS])
def test_progress_of_a_prompt_is_reported(path, body):
    with Server(real=True, threads=2, max_num_batched_tokens=32, max_num_seqs=2) as s:
        for again in (False, True):
            r = s.post(path, {**body, "stream": True, "max_tokens": 4, "n_predict": 4, "return_progress": True, "timings_per_token": True, "temperature": 0})
            assert r.status == 200, r.body
            parts = [json.loads(e) for e in r.events() if e != "[DONE]"]
            news = [p["prompt_progress"] for p in parts if "prompt_progress" in p]
            assert all("prompt_progress" in p for p in parts[:len(news)]) and len(news) >= (2 if again else 3)  # and then the answer
            first, last = news[0], news[-1]
            assert first["processed"] == first["cache"] and last["processed"] == last["total"] > 80 and (first["cache"] > 0) == again
            assert all(a["processed"] < b["processed"] and a["total"] == b["total"] and a["cache"] == b["cache"] and a["time_ms"] <= b["time_ms"] for a, b in zip(news, news[1:]))
            times = [p["timings"] for p in parts]
            assert times[0]["prompt_n"] == times[0]["prompt_ms"] == times[0]["predicted_n"] == times[0]["predicted_ms"] == 0
            assert all(t["prompt_n"] == n["processed"] - n["cache"] for t, n in zip(times, news)) and times[len(news) - 1]["prompt_ms"] > 0
        r = s.post(path, {**body, "max_tokens": 1, "n_predict": 1, "return_progress": True})  # only streams report progress
        assert r.status == 200 and "prompt_progress" not in r.json()


def test_verbose_adds_llama_cpps_own_answer(server):
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "Book"}]}), ("/v1/completions", {"prompt": "Book"})):
        j = server.post(path, {**body, "verbose": True, "seed": 1, "max_tokens": 64}).json()
        own = j["__verbose"]
        assert "Book" in own["prompt"] and own["content"] == TEXTS[1] and SETTINGS <= set(own["generation_settings"]) and own["stop_type"] == "eos"
        assert "__verbose" not in server.post(path, {**body, "verbose": False, "seed": 1}).json()
        chunks = server.post(path, {**body, "verbose": True, "seed": 1, "max_tokens": 64, "stream": True}).chunks()
        assert ["__verbose" in c for c in chunks] == [False] * (len(chunks) - 1) + [True]


def test_the_end_tokens_are_never_drawn_with_ignore_eos(real):
    body = {"n_predict": 40, "temperature": 0}
    assert native(real, "What is 1 + 1?", **body)["generation_settings"]["logit_bias"] == []
    j = native(real, "What is 1 + 1?", ignore_eos=True, return_tokens=True, logit_bias=[[7, 1.5]], **body)
    biases = j["generation_settings"]["logit_bias"]
    assert biases[0] == {"token": 7, "bias": 1.5} and len(biases) > 1 and all(b["bias"] is None for b in biases[1:])
    assert j["tokens_predicted"] == 40 and not {b["token"] for b in biases[1:]} & set(j["tokens"])


def test_each_token_with_probabilities_has_an_event(real):
    parts = events(real.post("/completion", {"prompt": "Once upon a", "n_predict": 12, "n_probs": 2, "temperature": 0, "stream": True}))
    assert all(len(p["completion_probabilities"]) == len(p["tokens"]) == 1 for p in parts[:-1]) and len(parts) == 13


def test_metrics_have_llama_cpps_names():
    with Server(real=True, threads=2) as s:
        timings = [native(s, [5] * 40, n_predict=n, temperature=0)["timings"] for n in (3, 5)]
        assert eventually(lambda: s.metric_plain("llamacpp:requests_processing") == 0)
        r = s.get("/metrics")
        assert 0 < int(r.headers["process-start-time-unix"]) <= time.time()
        text = r.body.decode()
        values = {l.split()[0]: float(l.split()[1]) for l in text.splitlines() if l.startswith("llamacpp:")}
        assert all("# HELP %s " % n in text and "# TYPE %s " % n in text for n in values) and len(values) == 15
        get = lambda name: values["llamacpp:" + name]
        assert get("prompt_tokens_total") == sum(t["prompt_n"] for t in timings) and get("prompt_tokens_cached_total") == sum(t["cache_n"] for t in timings) > 0
        assert get("tokens_predicted_total") == sum(t["predicted_n"] for t in timings) == 8 and get("n_decode_total") >= 8 and get("n_tokens_max") == 45
        assert get("prompt_seconds_total") > 0 and get("tokens_predicted_seconds_total") > 0 and get("prompt_tokens_seconds") > 0 and get("n_busy_slots_per_decode") == 1


def test_a_final_turn_of_the_assistant_is_continued(server):
    """Only on llama.cpp's own route; under /v1 it is as with OpenAI and vLLM."""
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Wh"}]
    r = server.post("/chat/completions", {"messages": said, "max_tokens": 1, "verbose": True}).json()
    assert r["__verbose"]["prompt"].endswith("assistant\nWh")
    r = server.post("/v1/chat/completions", {"messages": said, "max_tokens": 1, "verbose": True}).json()
    assert r["__verbose"]["prompt"].endswith("assistant\n")
    r = server.post("/chat/completions", {"messages": said, "max_tokens": 1, "verbose": True, "add_generation_prompt": True}).json()
    assert r["__verbose"]["prompt"].endswith("assistant\n")
    parts = [said[0], {"role": "assistant", "content": [{"type": "text", "text": t} for t in ("Wh", "ill\U0001f600")]}]
    r = server.post("/chat/completions", {"messages": parts, "max_tokens": 1, "verbose": True}).json()
    assert r["__verbose"]["prompt"].endswith("assistant\nWh\n\nill\U0001f600")  # blank lines separate parts
    twice = {"messages": said + said[1:], "max_tokens": 1}
    assert server.post("/chat/completions", twice).status == 400
    assert server.post("/v1/chat/completions", twice).status == 200


def test_the_first_chunk_has_no_content(server):
    for path, content in [("/chat/completions", None), ("/v1/chat/completions", "")]:
        r = server.post(path, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True})
        assert r.chunks()[0]["choices"][0]["delta"] == {"role": "assistant", "content": content}
        r = server.post(path, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True, "timings_per_token": True})
        assert ["timings" in c for c in r.chunks()[:2]] == [content is not None, True]


def test_with_its_conventions_chats_are_those_of_llama_cpp():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for conventions, content, calls in (("llama.cpp", None, False), ("vllm", "", True)):
        with scripted(TEXTS, conventions=conventions) as s:
            assert s.post("/v1/chat/completions", {**body, "stream": True}).chunks()[0]["choices"][0]["delta"] == {"role": "assistant", "content": content}
            message = s.post("/v1/chat/completions", {**body, "tools": [tool]}).json()["choices"][0]["message"]
            assert ("tool_calls" in message) == calls


def test_with_its_conventions_templates_are_told_the_date():
    template = "{{ date_string | default('none') }}, {{ datetime | default('none') }}"
    for more, told in ((["--conventions", "llama.cpp"], True), (["--temp", "0"], True), (["--temp", "0", "--conventions", "vllm"], False), ([], False)):
        with Server(chat_template=template, more=more) as s:
            body = {"messages": [{"role": "user", "content": "x"}]}
            days = [time.strftime("%d %b %Y, %b %d %Y")]
            prompt = s.post("/apply-template", body).json()["prompt"]
            days.append(time.strftime("%d %b %Y, %b %d %Y"))  # midnight may pass in between
            assert prompt in (days if told else ["none, none"])
            assert s.post("/apply-template", {**body, "chat_template_kwargs": {"date_string": "D"}}).json()["prompt"].startswith("D, ")


def test_with_its_conventions_templates_have_the_tools_as_text():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with Server(chat_template="<{{ functions }}>", conventions="llama.cpp") as s:
        prompt = lambda **body: s.post("/apply-template", {"messages": [{"role": "user", "content": "x"}], **body}).json()["prompt"]
        assert prompt() == "<>" and json.loads(prompt(tools=[tool])[1:-1]) == [tool]


def test_with_its_conventions_a_template_may_be_any_text():
    with Server(chat_template="This is no template, but a text", conventions="llama.cpp") as s:
        assert s.post("/apply-template", {"messages": [{"role": "user", "content": "x"}]}).json()["prompt"] == "This is no template, but a text"


def test_an_answer_that_the_context_ends_is_truncated():
    with Server(max_model_len=64) as s:
        r = s.post("/completion", {"prompt": "a story", "n_predict": -1, "ignore_eos": True}).json()
        assert (r["truncated"], r["stop_type"]) == (True, "limit")
        n = r["tokens_predicted"]
        for asked in (4, n):
            r = s.post("/completion", {"prompt": "a story", "n_predict": asked, "ignore_eos": True}).json()
            assert (r["truncated"], r["tokens_predicted"]) == (False, asked)


def test_models_is_one_entry_with_all_names():
    with Server(served_model_name="a,b", tags="chat,small", verbose=True) as s:
        entry, = s.get("/models").json()["data"]
        assert (entry["id"], entry["aliases"], entry["tags"]) == ("a", ["a", "b"], ["chat", "small"])
        assert [m["id"] for m in s.get("/v1/models").json()["data"]] == ["a", "b"]
        body = {"model": "a", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert "prompt" in s.post("/v1/chat/completions", body).json()["__verbose"]
        assert "__verbose" not in s.post("/v1/chat/completions", {**body, "verbose": False}).json()
        path = s.get("/props").json()["model_path"]
        assert path and "/" not in path and path not in ("a", "b")


def test_disabled_routes_are_not_served():
    with Server(disable_routes="/slots,/metrics,/") as s:
        assert [s.get(path).status for path in ("/slots", "/metrics", "/")] == [501, 501, 404]
        assert [s.get(path).status for path in ("/props", "/v1/models", "/health")] == [200] * 3


def test_an_embedding_has_one_input():
    with Server(real=True) as s:
        assert s.post("/embedding", {"content": "a"}).json() == s.post("/embedding", {"input": "a"}).json()
        r = s.post("/embedding", {"content": "a", "input": "b"})
        assert r.status == 400 and r.error["param"] == "content"


def test_reasoning_is_on_unless_it_is_off():
    for word, want in (("on", "True"), ("auto", "True"), ("off", "False")):
        with Server(real=True, reasoning=word, chat_template="{{ enable_thinking }}") as s:
            assert s.post("/apply-template", {"messages": [{"role": "user", "content": "a"}]}).json()["prompt"] == want


def test_flags_of_llama_cpp_disable_routes():
    with Server(real=True, more=["--no-slots", "--no-webui", "--no-metrics"]) as s:
        assert [s.get(path).status for path in ("/slots", "/metrics", "/", "/props")] == [501, 501, 404, 200]
    with Server(real=True, more=["--slots", "--ui", "--metrics"]) as s:
        assert [s.get(path).status for path in ("/slots", "/metrics", "/")] == [200, 200, 200]


def test_metrics_need_their_flag_with_llama_cpps_conventions():
    with Server(real=True, more=["--temp", "0"]) as s:
        assert [s.get(path).status for path in ("/slots", "/metrics", "/")] == [200, 501, 200]


def test_a_conversation_without_messages_is_answered_with_llama_cpps_conventions():
    body = {"model": "demo", "max_tokens": 4, "messages": []}
    with Server(real=True, conventions="llama.cpp") as s:
        r = s.post("/v1/messages", body)
        assert r.status == 200 and r.json()["type"] == "message", r.body
    with Server(real=True) as s:
        assert s.post("/v1/messages", body).json()["error"]["details"]["error_code"] == "empty_array"


@pytest.mark.parametrize("more, any_name", [(["--temp", "0"], True), (["-c", "512"], True), (["--alias", "b,a"], True), (["--no-warmup"], True),
                                            (["--max-model-len", "512"], False), (["--temp", "0", "--served-model-name", "b"], False)], ids=str)
def test_with_a_command_line_of_llama_cpp_requests_may_name_any_model(more, any_name):
    with Server(real=True, model=SMALL, more=more) as s:
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}), ("/v1/embeddings", {"input": "x"})):
            r = s.post(path, {**body, "model": "gpt-3.5-turbo-instruct", "max_tokens": 1})
            assert r.status == (200 if any_name else 404), r.body
        assert "*" not in [m["id"] for m in s.get("/v1/models").json()["data"]]


@pytest.mark.parametrize("name, prompt", [
    ("chatml", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"),
    ("command-r", "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>U<|END_OF_TURN_TOKEN|>"
                  "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"),
    ("gemma", "<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n"),
    ("llama2", "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST]"),
    ("llama3", "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
               "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    ("phi3", "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\n"),
    ("phi4", "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>U<|im_end|><|im_start|>assistant<|im_sep|>"),
    ("zephyr", "<|system|>\nS<|im_end|>\n<|user|>\nU<|im_end|>\n<|assistant|>\n"),
])
def test_templates_by_name(name, prompt):
    """The prompt lacks the token that /completion adds in front of a text."""
    with Server(chat_template=name) as s:
        r = s.post("/apply-template", {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]})
        assert r.json()["prompt"] == prompt


def test_with_credentials_the_answer_names_the_pages_origin():
    with Server(allowed_origins="*", allow_credentials=True) as s:
        r = s.get("/v1/models", headers={"origin": "http://a.example"})
        assert r.headers.get("access-control-allow-origin") == "http://a.example" and r.headers.get("access-control-allow-credentials") == "true"
    with Server(allowed_origins="*") as s:
        r = s.get("/v1/models", headers={"origin": "http://a.example"})
        assert r.headers.get("access-control-allow-origin") == "*" and r.headers.get("access-control-allow-credentials") is None
    with Server(allowed_origins="localhost,https://b.example") as s:
        assert [s.get("/v1/models", headers={"origin": page}).headers.get("access-control-allow-origin") for page in
                ("http://localhost:3000", "http://127.0.0.1", "http://a.example", "https://b.example")] == ["http://localhost:3000", "http://127.0.0.1", None, "https://b.example"]


def test_an_empty_text_has_a_vector_if_the_tokenizer_adds_a_token(real):
    r = real.post("/v1/embeddings", {"input": ["", "a"]})
    assert r.status == 200 and r.json()["usage"]["prompt_tokens"] == 3
