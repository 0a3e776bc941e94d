# SPDX-License-Identifier: Apache-2.0
"""Beam search: the server finds the same answers as a search in the client that requests one token at a time."""
import math

import pytest
from api import Server
from api_script import eventually

USER = [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture(scope="module")
def server():
    with Server(real=True, threads=2) as s:
        yield s


def next_tokens(server, ids, n):
    r = server.complete(ids, max_tokens=1, temperature=0, logprobs=n, return_tokens_as_token_ids=True, ignore_eos=True)
    return {int(k.split(":")[1]): v for k, v in r.json()["choices"][0]["logprobs"]["top_logprobs"][0].items()}


def search(server, ids, width, max_tokens, ends, penalty=1.0):
    live, ended = [(0.0, [], False)], []
    score = lambda beam: beam[0] / (len(ids) + len(beam[1])) ** penalty
    for _ in range(max_tokens):
        found = []
        for total, tokens, _ in live:
            for token, logprob in next_tokens(server, ids + tokens, 2 * width).items():
                (ended if token in ends else found).append((total + logprob, tokens + [token] * (token not in ends), token in ends))
        live = sorted(found, key=lambda b: -b[0])[:width]
    return [b[1:] for b in sorted(ended + live, key=score, reverse=True)[:width]]


@pytest.mark.parametrize("penalty", [1.0, 0.0, 3.0, -2.0])
@pytest.mark.parametrize("width", [1, 2, 5, 10])
def test_the_likeliest_answers_are_found(server, width, penalty):
    ids = server.post("/tokenize", {"prompt": "What is 3 + 4?"}).json()["tokens"]
    likely = list(next_tokens(server, ids, 4))
    ends = [likely[2]]  # an end token that many beams reach
    want = search(server, ids, width, 5, ends, penalty)
    r = server.complete(ids, max_tokens=5, n=width, use_beam_search=True, length_penalty=penalty, ignore_eos=True, stop_token_ids=ends, return_token_ids=True)
    assert r.status == 200, r.body
    got = [(c["token_ids"], c["finish_reason"] == "stop") for c in r.json()["choices"]]
    assert got == [(t, e) for t, e in want]
    assert [c["index"] for c in r.json()["choices"]] == list(range(width)) and len({str(c["token_ids"]) for c in r.json()["choices"]}) == width


def test_one_beam_is_the_likeliest_text(server):
    same = dict(max_tokens=20, temperature=0, logprobs=3, return_token_ids=True)
    a, b = (server.complete("What is 3 + 4?", use_beam_search=beams, **same).json() for beams in (False, True))
    assert a["choices"][0]["text"] == b["choices"][0]["text"] and a["choices"][0]["finish_reason"] == b["choices"][0]["finish_reason"]
    n = len(b["choices"][0]["token_ids"])
    assert a["choices"][0]["token_ids"][:n] == b["choices"][0]["token_ids"]
    for k, v in b["choices"][0]["logprobs"].items():
        assert a["choices"][0]["logprobs"][k][:n] == v
    assert b["usage"]["completion_tokens"] == n and b["usage"]["prompt_tokens"] == a["usage"]["prompt_tokens"]


def test_the_token_that_ends_a_beam_is_kept_on_request(server):
    ids = server.post("/tokenize", {"prompt": "What is 3 + 4?"}).json()["tokens"]
    end = next(iter(next_tokens(server, ids, 4)))
    same = dict(max_tokens=4, n=2, use_beam_search=True, stop_token_ids=[end], ignore_eos=True, return_token_ids=True, logprobs=1, length_penalty=0)
    without = server.complete(ids, **same).json()["choices"][0]
    kept = server.complete(ids, include_stop_str_in_output=True, **same).json()["choices"][0]
    assert without["finish_reason"] == kept["finish_reason"] == "stop" and without["token_ids"] == [] and without["text"] == ""
    assert kept["token_ids"] == [end] and len(kept["logprobs"]["tokens"]) == 1


def test_chats_and_streams_have_the_same_beams(server):
    body = dict(messages=USER, max_tokens=8, n=3, use_beam_search=True, logprobs=True, top_logprobs=2)
    j = server.post("/v1/chat/completions", body).json()
    texts = [c["message"]["content"] for c in j["choices"]]
    assert len(set(texts)) == 3 and all(len(c["logprobs"]["content"]) <= 8 for c in j["choices"])
    sums = [sum(t["logprob"] for t in c["logprobs"]["content"]) for c in j["choices"] if c["finish_reason"] == "length"]
    assert sums == sorted(sums, reverse=True) and all(math.isfinite(x) for x in sums)
    streamed = ["", "", ""]
    for chunk in server.post("/v1/chat/completions", {**body, "stream": True}).chunks():
        for c in chunk["choices"]:
            streamed[c["index"]] += c["delta"].get("content") or ""
    assert streamed == texts


def test_several_prompts_are_searched_at_once(server):
    same = dict(max_tokens=6, n=2, use_beam_search=True, echo=True, logprobs=1)
    both = server.complete(["What is 3 + 4?", "Copy: a b"], **same).json()["choices"]
    alone = [c for p in ("What is 3 + 4?", "Copy: a b") for c in server.complete(p, **same).json()["choices"]]
    assert [{**c, "index": 0} for c in both] == [{**c, "index": 0} for c in alone]


def test_a_client_that_leaves_ends_the_search():
    with Server(real=True, threads=2) as s:
        with pytest.raises(OSError):
            s.post("/v1/completions", {"prompt": "a b c", "max_tokens": 1500, "n": 10, "use_beam_search": True, "ignore_eos": True}, timeout=1)
        assert eventually(lambda: s.metric("vllm:num_requests_running") == s.metric("vllm:num_requests_waiting") == 0)
        assert s.metric("sluice_aborted_total", cause="disconnect") == 1
        assert s.complete("a", max_tokens=0, n=2, use_beam_search=True, echo=True).status == 200
        r = s.complete("a b c", max_tokens=1500, n=10, use_beam_search=True, ignore_eos=True, timeout=0.5)
        assert r.status in (503, 504) and s.complete("a", max_tokens=2).status == 200
