# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's context shift: answers that are longer than the context."""
import os

import pytest
from api import ROOT, Server

LONG = [300 + i % 97 for i in range(301)]
HYBRID = os.path.join(ROOT, "test/engine/hybrid")


@pytest.fixture(scope="module")
def server():
    with Server(real=True, threads=2, max_model_len=128, context_shift=True) as s:
        yield s


def native(s, prompt, **body):
    r = s.post("/completion", {"prompt": prompt, "temperature": 0, "ignore_eos": True, "return_tokens": True, **body})
    assert r.status == 200, r.body
    return r.json()


def pieces(s, prompt, n, keep=0, context=128):
    """The same by hand: each prompt is what remains of the previous context."""
    known, answer = list(prompt), []
    while len(answer) < n:
        more = native(s, known, n_predict=min(n - len(answer), context - len(known)))["tokens"]
        known, answer = known + more, answer + more
        if len(known) == context:
            known = known[:keep] + known[keep + (context - keep) // 2:]
    return answer


@pytest.mark.parametrize("keep", [0, 5, -1])
def test_an_answer_continues_beyond_the_context(server, keep):
    prompt = LONG[:40]
    j = native(server, prompt, n_predict=300, n_keep=keep)
    assert j["tokens_predicted"] == 300 and j["truncated"] is True and j["stop_type"] == "limit" and j["generation_settings"]["n_keep"] == keep
    assert j["tokens"] == pieces(server, prompt, 300, 40 if keep < 0 else keep) and j["timings"]["prompt_n"] + j["timings"]["cache_n"] == 40
    assert native(server, prompt, n_predict=20)["truncated"] is False


def test_a_prompt_that_is_too_long_loses_tokens(server):
    j = native(server, LONG, n_predict=64)
    assert (j["timings"]["prompt_n"] + j["timings"]["cache_n"], j["timings"]["predicted_n"], j["truncated"]) == (109, 64, True)
    assert j["tokens"] == pieces(server, LONG[192:], 64)
    j = native(server, LONG, n_predict=10, n_keep=8)
    assert j["tokens"] == pieces(server, LONG[:8] + LONG[8 + 180:], 10, 8)


def test_other_routes_streams_and_samples(server):
    body = {"prompt": LONG[:100], "max_tokens": 200, "temperature": 0.8, "seed": 3, "n": 2, "ignore_eos": True, "logprobs": 1}
    r = server.post("/v1/completions", body)
    assert r.status == 200, r.body
    j = r.json()
    assert j["usage"] == {**j["usage"], "prompt_tokens": 100, "completion_tokens": 400} and all(len(c["logprobs"]["tokens"]) == 200 and c["finish_reason"] == "length" for c in j["choices"])
    chunks = server.post("/v1/completions", {**body, "stream": True}).chunks()
    for i in (0, 1):
        assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"] and c["choices"][0]["index"] == i) == j["choices"][i]["text"]
    both = server.post("/v1/completions", {**body, "n": 1, "prompt": [LONG[:100], LONG[:3]], "temperature": 0}).json()
    assert both["usage"]["completion_tokens"] == 400
    r = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 300, "ignore_eos": True, "temperature": 0})
    assert r.status == 200 and r.json()["usage"]["completion_tokens"] == 300


def test_stop_strings_and_limits_end_a_shifted_answer(server):
    text = server.post("/v1/completions", {"prompt": LONG[:100], "max_tokens": 200, "temperature": 0, "ignore_eos": True}).json()["choices"][0]["text"]
    stop = text[300:306]
    c = server.post("/v1/completions", {"prompt": LONG[:100], "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stop": stop}).json()["choices"][0]
    assert c["text"] == text[:text.index(stop)] and c["finish_reason"] == "stop"
    # without a number of tokens an answer ends with the context
    assert native(server, LONG[:100], n_predict=-1)["tokens_predicted"] == 28
    assert server.metric("vllm:num_requests_running") == 0


def test_answers_that_cannot_shift_end_with_the_context(server):
    for more in ({"grammar": 'root ::= [a-z ]+'}, {"response_format": {"type": "json_object"}}):
        assert native(server, LONG[:100], n_predict=200, **more)["tokens_predicted"] <= 28
    r = server.post("/v1/completions", {"prompt": LONG[:100], "max_tokens": 200, "prompt_logprobs": 1})
    assert r.status == 400 and r.error["code"] == "context_length_exceeded"
    assert server.post("/completion", {"prompt": LONG[:10], "n_predict": 300000000}).status == 400  # it would not fit in memory
    for wrong in ({"n_keep": -2}, {"n_discard": -1}, {"n_keep": "a"}):
        assert server.post("/completion", {"prompt": "a", **wrong}).error["param"] in wrong


def test_clients_that_leave_free_everything(server):
    with pytest.raises(Exception):
        server.request("POST", "/completion", {"prompt": LONG[:100], "n_predict": 200000, "ignore_eos": True}, timeout=0.5)
    for _ in range(200):
        if server.metric("vllm:num_requests_running") == 0:
            break
        __import__("time").sleep(0.02)
    assert server.metric("vllm:num_requests_running") == 0


def test_recurrent_models_shift_too():
    with Server(real=True, model=HYBRID, max_model_len=128, context_shift=True, load_format="dummy", skip_tokenizer_init=True) as s:
        prompt = list(range(5, 45))
        assert native(s, prompt, n_predict=150)["tokens"] == pieces(s, prompt, 150)


def test_without_the_option():
    with Server(real=True, threads=2, max_model_len=128) as s:
        assert native(s, LONG[:40], n_predict=300)["tokens_predicted"] == 88
        r = s.post("/completion", {"prompt": LONG, "n_predict": 64})
        assert r.status == 400 and "context" in r.error["message"]
