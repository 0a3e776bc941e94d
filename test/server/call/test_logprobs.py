# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of more tokens than the twenty likeliest: of the whole vocabulary, or of listed tokens."""
import json
import math
import threading

import openai
import pytest
from api import Server

VOCAB = 4096
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "fixed": True})
COPY = "Copy exactly: the cat sat on the mat and the cat sat on the mat again."
USER = lambda text: [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def server():
    with Server(real=True, threads=2, max_logprobs=-1, max_num_batched_tokens=64, max_num_seqs=16) as s:
        yield s


@pytest.fixture(scope="module")
def usual():
    with Server(real=True, threads=2) as s:
        yield s


def choice(s, path="/v1/completions", **body):
    r = s.post(path, {"max_tokens": 3, "temperature": 0, **({"prompt": "The sum of 1 and"} if path == "/v1/completions" else {"messages": USER("What is 12 + 30?")}), **body})
    assert r.status == 200, r.body
    return r.json()["choices"][0]


def of_ids(tops):
    return {t["token"]: t["logprob"] for t in tops}


@pytest.mark.parametrize("n", [21, 100, -1])
def test_more_than_twenty_begin_with_the_same_twenty(server, n):
    ask = lambda n: choice(server, logprobs=n, return_tokens_as_token_ids=True)["logprobs"]
    few, many = ask(20), ask(n)
    assert many["tokens"] == few["tokens"] and many["token_logprobs"] == few["token_logprobs"]
    for a, b in zip(few["top_logprobs"], many["top_logprobs"], strict=True):
        assert list(b.items())[:20] == list(a.items()) and len(b) == (n if n > 0 else VOCAB)
        assert list(b.values()) == sorted(b.values(), reverse=True)
        if n < 0:
            assert sum(map(math.exp, b.values())) == pytest.approx(1, abs=1e-5)


def test_the_sdk_gets_logprobs_of_the_whole_vocabulary(server):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x")
    ask = lambda **more: client.chat.completions.create(model="demo", messages=USER("What is 12 + 30?"), max_tokens=2, temperature=0, logprobs=True, **more)
    all_, few = (ask(top_logprobs=n).choices[0].logprobs.content for n in (-1, 20))
    for a, f in zip(all_, few, strict=True):
        assert len(a.top_logprobs) == VOCAB and a.top_logprobs[:20] == f.top_logprobs
    events = list(ask(top_logprobs=-1, stream=True))
    assert [t for e in events if e.choices and e.choices[0].logprobs for t in e.choices[0].logprobs.content] == all_
    r = client.responses.create(model="demo", input="What is 12 + 30?", max_output_tokens=2, temperature=0, top_logprobs=30, include=["message.output_text.logprobs"])
    assert all(len(t.top_logprobs) == 30 for t in r.output[-1].content[0].logprobs)


def test_prompts_have_them_too(server):
    few, all_ = (choice(server, prompt_logprobs=n, max_tokens=1)["prompt_logprobs"] for n in (20, -1))
    assert few[0] is all_[0] is None and len(all_) == len(few) > 3
    for f, a in zip(few[1:], all_[1:]):
        assert len(a) == VOCAB and sorted(v["rank"] for v in a.values()) == list(range(1, VOCAB + 1))
        assert all({**a[k], "rank": 0} == {**v, "rank": 0} for k, v in f.items())
    # a prompt of several chunks, and its echo
    long = choice(server, prompt=[7 + i % 90 for i in range(150)], prompt_logprobs=-1, max_tokens=1)["prompt_logprobs"]
    assert all(len(p) == VOCAB and sum(math.exp(v["logprob"]) for v in p.values()) == pytest.approx(1, abs=1e-5) for p in long[1::5])
    echo = choice(server, logprobs=-1, echo=True, max_tokens=1, return_tokens_as_token_ids=True)["logprobs"]["top_logprobs"]
    assert echo[0] is None and all(len(t) == VOCAB for t in echo[1:])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_listed_tokens(server, usual, path):
    ids = [5, 4000, 6, 100]
    on = {"logprobs": -1} if path == "/v1/completions" else {"logprobs": True, "top_logprobs": -1}
    all_ = choice(server, path, **on, return_tokens_as_token_ids=True)["logprobs"]
    listed = choice(usual, path, logprob_token_ids=ids, return_tokens_as_token_ids=True)["logprobs"]
    if path == "/v1/completions":
        for a, l, token in zip(all_["top_logprobs"], listed["top_logprobs"], listed["tokens"], strict=True):
            assert list(l) == [token] + [f"token_id:{i}" for i in ids] and all(l[k] == a[k] for k in l)
    else:
        for a, l in zip(all_["content"], listed["content"], strict=True):
            assert [t["token"] for t in l["top_logprobs"]] == [f"token_id:{i}" for i in ids] and l["logprob"] == a["logprob"]
            assert all(of_ids(a["top_logprobs"])[k] == v for k, v in of_ids(l["top_logprobs"]).items())


def test_ids_in_ids_out(usual):
    ids = [5, 9]
    r = usual.post("/inference/v1/generate", {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 2, "temperature": 0, "logprob_token_ids": ids}})
    assert r.status == 200, r.body
    tops = [t["top_logprobs"] for t in r.json()["choices"][0]["logprobs"]["content"]]
    assert [[x["token_id"] for x in t] for t in tops] == [ids] * 2


def test_they_do_not_depend_on_drafts_or_on_other_requests(server):
    ask = lambda s, n: choice(s, "/v1/chat/completions", messages=USER(COPY), seed=n, temperature=n * 0.4, max_tokens=24, logprobs=True, top_logprobs=25)["logprobs"]
    want = {n: ask(server, n) for n in range(4)}
    with Server(real=True, threads=2, max_logprobs=25, speculative_config=NGRAM, max_num_batched_tokens=64) as s:
        got = {}
        threads = [threading.Thread(target=lambda n=n: got.update({n: ask(s, n)})) for n in want]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert got == want
        assert s.metric("vllm:spec_decode_num_accepted_tokens_total") > 0


WRONG = [({"logprobs": -2}, "logprobs"), ({"prompt_logprobs": -2}, "prompt_logprobs"), ({"logprob_token_ids": [VOCAB]}, "logprob_token_ids"),
         ({"logprob_token_ids": "a"}, "logprob_token_ids"), ({"logprob_token_ids": ["a"]}, "logprob_token_ids"),
         ({"use_beam_search": True, "logprobs": 21}, "logprobs"), ({"use_beam_search": True, "logprob_token_ids": [5]}, "logprob_token_ids"),
         ({"prompt": [5] * 4000, "prompt_logprobs": -1, "n": 1, "max_tokens": 90000}, "prompt")]


@pytest.mark.parametrize("body, param", WRONG, ids=range(len(WRONG)))
def test_wrong_ones_are_refused(server, body, param):
    r = server.complete(**{"max_tokens": 1, **body})
    assert r.status == 400 and param in r.error["param"], r.body


def test_max_logprobs_sets_the_limit(usual):
    for body in ({"logprobs": -1}, {"prompt_logprobs": -1}):
        r = usual.complete(max_tokens=1, **body)
        assert r.status == 400 and "--max-logprobs -1" in r.error["message"] and r.error["param"] in body
    assert usual.complete(max_tokens=1, logprob_token_ids=list(range(20))).status == 200
    assert usual.complete(max_tokens=1, logprob_token_ids=list(range(21))).error["code"] == "array_above_max_length"
    assert usual.post("/v1/messages", {"messages": USER("a"), "max_tokens": 1, "logprob_token_ids": [5]}).status == 400


def test_what_does_not_fit_in_memory_is_an_error(server):
    r = server.complete(prompt=[5] * 30, max_tokens=4000, n=64, logprobs=-1)
    assert r.status == 400 and "memory" in r.error["message"], r.body
