# SPDX-License-Identifier: Apache-2.0
"""Every sampling parameter through the whole program, compared with a reference of a few lines: the frequencies of first and
second tokens by chi-square, and their log-probabilities."""
import json
import math
import os
import random
import subprocess
from collections import Counter

import pytest

import golden

MODEL = os.path.join(golden.GOLDEN, "llama-3")
VOCAB = 384
PROMPT = [5, 6, 7, 6, 300, 6]
DRAWS, SAMPLES = 24, 128  # requests, samples of each; sample i has seed + i, so the requests' seeds are far apart


def run(requests, *flags):
    text = "".join(json.dumps(r) + "\n" for r in requests)
    done = subprocess.run([*golden.RUN, MODEL, "--json", "--dtype", "float32", "--max-model-len", "64", *flags], input=text, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def raw_logprobs(prefix):
    """The log-probability of each id after the prefix, scored as the last token of a prompt."""
    requests = [{"prompt_token_ids": prefix + [i], "max_tokens": 0, "prompt_logprobs": True} for i in range(VOCAB)]
    return [answer["prompt_logprobs"][-1] for answer in run(requests)]


def banned(params, output):
    ids = set()
    if params.get("allowed_token_ids"):
        ids |= set(range(VOCAB)) - set(params["allowed_token_ids"])
    for word in params.get("bad_words", []):
        known = PROMPT + output
        if len(word) == 1 or known[len(known) - len(word) + 1:] == word[:-1]:
            ids.add(word[-1])
    if len(output) < params.get("min_tokens", 0):
        ids |= set(params.get("stop_token_ids", []))
    return ids


def law(params, logprobs, output):
    """The expected probabilities of the next token under the parameters."""
    score = list(logprobs)
    for i, bias in params.get("logit_bias", {}).items():
        score[int(i)] += bias
    for i, n in Counter(output).items():
        score[i] -= n * params.get("frequency_penalty", 0.0) + params.get("presence_penalty", 0.0)
    for i in banned(params, output):
        score[i] = -math.inf
    score = [s / params["temperature"] for s in score]
    top = max(score)
    p = [math.exp(s - top) for s in score]
    order = sorted(range(VOCAB), key=lambda i: (-p[i], i))
    kept = order[:params.get("top_k") or VOCAB]
    total, reached, nucleus = sum(p[i] for i in kept), 0.0, []
    for i in kept:
        nucleus.append(i)
        reached += p[i] / total
        if reached >= params.get("top_p", 1.0):
            break
    kept = [i for i in nucleus if p[i] >= params.get("min_p", 0.0) * p[nucleus[0]]]
    total = sum(p[i] for i in kept)
    return {i: p[i] / total for i in kept if p[i] > 0}


def check_law(want, seen, what):
    n = sum(seen.values())
    assert set(seen) <= set(want), (what, set(seen) - set(want))
    rare = [i for i in want if want[i] * n < 8]
    bins = [(seen[i], want[i] * n) for i in want if want[i] * n >= 8]
    bins.append((sum(seen[i] for i in rare), sum(want[i] * n for i in rare)))
    chi = sum((a - b) ** 2 / b for a, b in bins if b > 0)
    free = len(bins) - 1
    assert chi < free + 5 * math.sqrt(2 * free) + 12, (what, chi, free)


def draw(params):
    requests = [{"prompt_token_ids": PROMPT, "max_tokens": 2, "ignore_eos": True, "n": SAMPLES, "seed": 1000 * i, "logprobs": 3,
                 **params} for i in range(DRAWS)]
    return [o for answer in run(requests) for o in answer["outputs"]]


RAW = {}


def raw(output):
    key = tuple(output)
    if key not in RAW:
        RAW[key] = raw_logprobs(PROMPT + output)
    return RAW[key]


def random_params(seed):
    rng = random.Random(seed)
    p = {"temperature": rng.choice([0.3, 0.7, 1.0, 1.5])}
    some = [i for i in range(VOCAB) if i % 5 < 2]
    likely = sorted(range(VOCAB), key=lambda i: -raw([])[i])[:12]
    choices = {
        "top_k": rng.choice([1, 2, 7, 40]), "top_p": rng.choice([0.3, 0.8, 0.95]), "min_p": rng.choice([0.02, 0.2, 0.7]),
        "frequency_penalty": rng.choice([-2.0, 1.5]), "presence_penalty": rng.choice([-1.0, 2.0]),
        "logit_bias": {str(i): rng.choice([-100, -2.5, 1.0, 4.0]) for i in rng.sample(likely, 5)},
        "allowed_token_ids": some + likely[:2], "stop_token_ids": likely[2:4], "min_tokens": rng.choice([1, 2]),
        "bad_words": [[likely[1]], [6, likely[0]], [300, likely[2]], [likely[3], likely[4]], [likely[0], likely[0]]],
    }
    for key in rng.sample(sorted(choices), rng.randint(1, 6)):
        p[key] = choices[key]
    return p


@pytest.mark.parametrize("seed", range(12))
def test_draws_follow_the_parameters(seed):
    params = random_params(seed)
    outputs = draw(params)
    first = Counter(o["token_ids"][0] for o in outputs)
    check_law(law(params, raw([]), []), first, params)
    stops = set(params.get("stop_token_ids", []))
    goes_on = [(t, n) for t, n in first.most_common() if t not in stops or params.get("min_tokens", 0) > 1]
    token, n = goes_on[0] if goes_on else (None, 0)
    second = Counter(o["token_ids"][1] for o in outputs if o["token_ids"][0] == token and len(o["token_ids"]) > 1)
    assert sum(second.values()) == n
    if goes_on:
        check_law(law(params, raw([token]), [token]), second, (params, token))
    for o in outputs:
        stopped = o["token_ids"][-1] in stops and len(o["token_ids"]) >= params.get("min_tokens", 0)
        assert (o["finish_reason"] == "stop") == stopped, (params, o)
        assert len(o["token_ids"]) == 2 or stopped


def test_logprobs_are_the_models_own():
    """They do not depend on the sampling parameters."""
    params = {"temperature": 1.5, "top_k": 40, "logit_bias": {"5": 4.0}, "presence_penalty": 1.0, "min_p": 0.01}
    best = sorted(range(VOCAB), key=lambda i: -raw([])[i])[:3]
    for o in draw(params)[:200]:
        assert abs(o["logprobs"][0] - raw([])[o["token_ids"][0]]) < 1e-4
        assert [i for i, _ in o["top_logprobs"][0]] == best
        assert all(abs(v - raw([])[i]) < 1e-4 for i, v in o["top_logprobs"][0])


@pytest.mark.parametrize("penalty", [0.6, 1.3])
def test_repetition_penalty_divides_positive_logits(penalty):
    """The penalty depends on the logits themselves, which the golden folder stores: checks the greedy token and the
    odds of others."""
    case = next(c for c in golden.expected("llama-3")["cases"] if len(c["prompt"]) == 33)
    score = list(case["last_logits"])
    for i in set(case["prompt"]):
        score[i] = score[i] / penalty if score[i] > 0 else score[i] * penalty
    top = max(score)
    p = [math.exp(s - top) for s in score]
    want = {i: v / sum(p) for i, v in enumerate(p)}
    requests = [{"prompt_token_ids": case["prompt"], "max_tokens": 1, "n": SAMPLES, "seed": 1000 * i, "temperature": 1.0,
                 "repetition_penalty": penalty, "ignore_eos": True} for i in range(DRAWS)]
    seen = Counter(o["token_ids"][0] for answer in run(requests) for o in answer["outputs"])
    check_law(want, seen, penalty)
    greedy = run([{**requests[0], "temperature": 0, "n": 1}])[0]["outputs"][0]["token_ids"][0]
    assert greedy == score.index(top)


def test_min_tokens_yields_to_allowed_ids():
    """If only stop ids are allowed, they are drawn before min_tokens, and end the text once min_tokens is reached."""
    eos = json.load(open(os.path.join(MODEL, "config.json")))["eos_token_id"]
    for temperature in (0, 1):
        asked = {"prompt_token_ids": PROMPT, "max_tokens": 4, "min_tokens": 2, "temperature": temperature, "n": 8}
        for more, ids in (({"allowed_token_ids": [eos]}, {eos}), ({"allowed_token_ids": [9, 11], "stop_token_ids": [9, 11]}, {9, 11})):
            for out in run([{**asked, **more}])[0]["outputs"]:
                assert len(out["token_ids"]) == 2 and set(out["token_ids"]) <= ids and out["finish_reason"] == "stop", out


NGRAM = '{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_min":1,"fixed":true,"disable_by_batch_size":64}'
DRAFT = json.dumps({"method": "draft_model", "model": MODEL, "num_speculative_tokens": 3, "fixed": True,
                    "disable_by_batch_size": 64})
COUNTED = ("preemptions", "draft_tokens", "accepted_draft_tokens")


@pytest.mark.parametrize("way, happens", [(["--max-num-batched-tokens", "65", "--max-num-seqs", "3"], ()),
                                          (["--num-gpu-blocks-override", "24"], COUNTED[:1]),
                                          (["--speculative-config", NGRAM], COUNTED[1:]),
                                          (["--speculative-config", DRAFT], COUNTED[1:])],
                         ids=["few lanes", "few blocks", "n-grams", "draft model"])
def test_a_seed_gives_the_same_text_in_any_company(way, happens):
    few = {"allowed_token_ids": list(range(8))}  # repetitive, so that n-gram lookup finds drafts
    requests = [{"prompt_token_ids": PROMPT + [i], "max_tokens": 20, "seed": i, "n": 4, "logprobs": 2, "ignore_eos": True,
                 "repetition_penalty": 1.2, **(few if i % 4 == 0 else {}), **random_params(i)} for i in range(12)]
    base = ["--deterministic", "--block-size", "16"]  # few blocks, so that sequences are preempted
    got = [run(requests, *base, *flags) for flags in ([], way)]
    assert [a["outputs"] for a in got[0]] == [a["outputs"] for a in got[1]]
    for what in COUNTED:
        assert [sum(a["usage"][what] for a in answers) > 0 for answers in got] == [False, what in happens], what


def test_a_tiny_temperature_is_greedy():
    """Scores divided by it must not overflow a float; otherwise all tokens would be equally likely."""
    asked = {"prompt_token_ids": PROMPT, "max_tokens": 12, "seed": 3}
    ways = [{}, {"top_p": 0.9}, {"min_p": 0.1, "top_k": 7}, {"repetition_penalty": 1.2}]
    for way in ways:
        greedy, *others = run([{**asked, **way, "temperature": t} for t in (0, 1e-6, 1e-20, 1e-37, 1e-38, 1e-40, 1e-45)])
        assert all(o["outputs"][0]["token_ids"] == greedy["outputs"][0]["token_ids"] for o in others), way
