# SPDX-License-Identifier: Apache-2.0
"""Speculation as clients and operators see it: usage, metrics under vLLM's names, the status page's data, and text that
is the same with and without speculation, including where it stops."""

import json
import os

import pytest
from api import DEMO, ROOT, Server
from nightly import NIGHTLY

DRAFT = {"method": "draft_model", "model": os.path.join(ROOT, "models/demo-draft"), "num_speculative_tokens": 4,
         "fixed": True}
NGRAM = {"method": "ngram", "num_speculative_tokens": 6, "fixed": True}
COPY = "Copy exactly: the cat sat on the mat and the cat sat on the mat again."


def serve(config=None):
    more = {"speculative_config": json.dumps(config)} if config else {}
    return Server(real=True, model=DEMO, max_model_len=512, **more)


@pytest.fixture(scope="module")
def plain():
    with serve() as s:
        yield s


@pytest.fixture(scope="module", params=[DRAFT, NGRAM], ids=["draft", "ngram"])
def speculating(request):
    with serve(request.param) as s:
        s.n_drafts = request.param["num_speculative_tokens"]
        yield s


def counters(s):
    """Counters from /metrics, once they include the answer's last step: the answer may arrive earlier."""
    names = ("drafts", "draft_tokens", "accepted_tokens")
    while True:
        page = dict(line.rsplit(" ", 1) for line in s.get("/metrics").body.decode().splitlines() if line[:1] != "#")
        page = {name.split("{")[0]: float(value) for name, value in page.items()}
        if page["vllm:num_requests_running"] == 0:
            return [page[f"vllm:spec_decode_num_{n}_total"] for n in names]


def details(reply):
    usage = reply.json()["usage"]
    d = usage["completion_tokens_details"]
    return usage["completion_tokens"], d["accepted_prediction_tokens"], d["rejected_prediction_tokens"]


def test_counters_add_up(speculating):
    s = speculating
    before, steps = counters(s), s.metric("sluice_engine_steps_total")
    tokens, accepted, rejected = details(s.chat(COPY, temperature=0, max_tokens=64))
    drafts, drafted, right = (b - a for a, b in zip(before, counters(s)))
    assert accepted > 0 and right == accepted and drafted == accepted + rejected
    # Each step yields one token more than it accepts, or ends within the accepted ones; some steps have no drafts.
    assert right + drafts - 1 <= tokens <= right + s.metric("sluice_engine_steps_total") - steps
    at = [s.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=i) for i in range(8)]
    at = [a for a in at if a is not None]
    assert len(at) == s.n_drafts  # every position is listed, even if no draft was accepted there
    assert sum(at) == counters(s)[2] and at == sorted(at, reverse=True)  # a draft is accepted only if the one before it was
    data = s.get("/status.json").json()
    assert [data["draft_tokens"], data["accepted_tokens"]] == counters(s)[1:]


def test_a_request_may_lower_the_number_but_not_raise_it(speculating):
    s = speculating
    asked = {}
    for n in (0, 1, None, 99):
        more = {} if n is None else {"num_speculative_tokens": n}
        before = counters(s)
        text = s.chat(COPY, temperature=0, max_tokens=48, **more).json()["choices"][0]["message"]["content"]
        drafts, drafted, _ = (b - a for a, b in zip(before, counters(s)))
        asked[n] = (text, drafts, drafted)
    assert asked[0][1:] == (0, 0)
    assert 0 < asked[1][2] == asked[1][1] and asked[1][2] < asked[None][2]
    assert asked[99] == asked[None]
    assert len({a[0] for a in asked.values()}) == 1


def test_a_stop_string_inside_an_accepted_run_cuts_there(plain, speculating):
    """Stop strings of one and of several characters, from every seventh position of the text (`make nightly`: from every one):
    nothing after them is returned or counted."""
    whole = plain.chat(COPY, temperature=0, max_tokens=64).json()["choices"][0]["message"]["content"]
    assert len(whole) > 40
    for i in range(0, len(whole) - 6, 1 if NIGHTLY else 7):  # runs of up to four or six tokens begin anywhere
        for stop in ([whole[i : i + 1]], [whole[i : i + 6]], [whole[i + 2 : i + 6], whole[i : i + 3]]):
            answers = [s.chat(COPY, temperature=0, max_tokens=64, stop=stop).json() for s in (plain, speculating)]
            a, b = ([x["choices"][0]["message"]["content"], x["choices"][0]["finish_reason"], x["usage"]["completion_tokens"]]
                    for x in answers)
            assert a == b, stop


def test_sampled_text_and_log_probabilities_equal_those_without_drafts(plain, speculating):
    for seed in range(6 if NIGHTLY else 3):
        ask = {"temperature": 0.8, "top_p": 0.95, "seed": seed, "max_tokens": 40, "logprobs": True, "top_logprobs": 3,
               "frequency_penalty": 0.3}
        a, b = (s.chat("Write a story about a fox and a lamp.", **ask).json()["choices"][0] for s in (plain, speculating))
        assert a["message"] == b["message"] and a["logprobs"] == b["logprobs"]
