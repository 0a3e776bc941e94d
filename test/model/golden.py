# SPDX-License-Identifier: Apache-2.0
"""Compares `sluice generate` with the stored answers of transformers, for every folder of test/golden. Folders without stored
weights get theirs in build/ (seeded.py), where there are links to the others."""
import json
import math
import os
import signal
import subprocess

import seeded
from nightly import NIGHTLY

ROOT = seeded.ROOT
GOLDEN, FAMILIES = seeded.complete_all()
SLUICE = os.environ.get("SLUICE", os.path.join(ROOT, "build", "sluice"))
DEVICE = os.environ.get("SLUICE_TEST_DEVICE", "cpu")
SHARED = os.path.abspath(os.environ.get("SLUICE_SHARED", os.path.join(ROOT, "..", "shared")))
EXACT_RANKS = DEVICE == "cpu"  # True if several ranks give the same bits as one
TWO_THREADS = ["--threads", "2"]  # test/run may limit a program to one thread
FLAGS = os.environ.get("SLUICE_TEST_FLAGS", "").split()
N_RANKS = int(FLAGS[FLAGS.index("--tensor-parallel-size") + 1]) if "--tensor-parallel-size" in FLAGS else 1
# A draft model that is the target itself. A whole copy on each rank rounds differently from the
# target, which is sharded.
AS_SHARDED = {"draft_tensor_parallel_size": N_RANKS} if N_RANKS > 1 else {}
RUN = [SLUICE, "generate", "--device", DEVICE, *FLAGS]


def families():
    return sorted(d for d in os.listdir(GOLDEN) if os.path.exists(os.path.join(GOLDEN, d, "expected.json")))


def expected(family):
    with open(os.path.join(GOLDEN, family, "expected.json")) as f:
        return json.load(f)


def config(family):
    with open(os.path.join(GOLDEN, family, "config.json")) as f:
        return json.load(f)


def ended(done):
    """Describes how a program ended; a program that was killed has written no message itself."""
    if done.returncode < 0:
        how = f"was killed by {signal.Signals(-done.returncode).name}"
    else:
        how = f"ended with {done.returncode}"
    return f"{' '.join(done.args)} {how}, after {len(done.stdout.splitlines())} answers\n{done.stderr}"


def generate(family, requests, *flags):
    """One answer per request; all requests run in the engine at the same time."""
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    command = [*RUN, os.path.join(GOLDEN, family), "--json", "--log-level", "error", *flags]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, ended(done)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(requests), ended(done)
    for a in answers:
        assert "error" not in a, a
    return answers


def log_softmax(logits):
    top = max(logits)
    total = math.log(sum(math.exp(x - top) for x in logits)) + top
    return [x - total for x in logits]


def check_exact(family, tolerance=1e-3, *flags, but=()):
    """--dtype float32: all log-probabilities within the tolerance, all greedy tokens equal, except for prompts of the
    given lengths."""
    cases = [c for c in expected(family)["cases"] if len(c["prompt"]) not in but]
    requests = [{"prompt_token_ids": c["prompt"], "max_tokens": len(c["greedy"]), "temperature": 0, "logprobs": 20,
                 "prompt_logprobs": True, "ignore_eos": True} for c in cases]
    worst = 0.0
    for case, answer in zip(cases, generate(family, requests, "--dtype", "float32", *flags)):
        for want, have in zip(case["prompt_logprobs"], answer["prompt_logprobs"]):
            if want is not None:
                worst = max(worst, abs(want - have))
        out = answer["outputs"][0]
        last = log_softmax(case["last_logits"])
        for token, logprob in out["top_logprobs"][0]:
            worst = max(worst, abs(last[token] - logprob))
        assert out["token_ids"] == [g["id"] for g in case["greedy"]], family
        for want, have, own in zip(case["greedy"], out["top_logprobs"], out["logprobs"]):
            have = dict(map(tuple, have))
            for token, logprob in want["top"]:
                worst = max(worst, abs(have[token] - logprob))
            worst = max(worst, abs(have[want["id"]] - own))
    assert worst <= tolerance, f"{family}: off by {worst}"
    return worst


def check_rounded(family, *flags):
    """The checkpoint's own dtype, teacher-forced over the prompts: our mean error against transformers' fp32, over
    that of transformers' own run in the checkpoint's dtype."""
    cases = [c for c in expected(family)["cases"] if len(c["prompt"]) > 1]
    requests = [{"prompt_token_ids": c["prompt"], "max_tokens": 0, "prompt_logprobs": True} for c in cases]
    ours = theirs = 0.0
    for case, answer in zip(cases, generate(family, requests, *flags)):
        errors = [abs(w - h) for w, h in zip(case["prompt_logprobs"], answer["prompt_logprobs"]) if w is not None]
        ours += sum(errors)
        theirs += case["bf16_mean_error"] * len(errors)
    return ours / theirs


CHUNKS = ["--max-num-batched-tokens", "23", "--max-num-seqs", "9"]  # prompts are computed in chunks, together with other requests' tokens


def check_exact_unscored(family, tolerance=1e-3, *flags, but=()):
    """Like check_exact, for prompts without scores: only the last row is computed to the end, the others stop in the
    last layer."""
    cases = [c for c in expected(family)["cases"] if len(c["prompt"]) not in but]
    requests = [{"prompt_token_ids": c["prompt"], "max_tokens": len(c["greedy"]), "temperature": 0, "logprobs": 20,
                 "ignore_eos": True} for c in cases]
    worst = 0.0
    for case, answer in zip(cases, generate(family, requests, "--dtype", "float32", *flags)):
        out = answer["outputs"][0]
        last = log_softmax(case["last_logits"])
        worst = max([worst] + [abs(last[token] - logprob) for token, logprob in out["top_logprobs"][0]])
        assert len(out["top_logprobs"][0]) == 20
        assert out["token_ids"] == [g["id"] for g in case["greedy"]], family
    assert worst <= tolerance, f"{family}: off by {worst}"


def check_rounded_unscored(family, *flags):
    """Like check_rounded, but each prompt token is sampled after the ones before it, as the only allowed token; its
    log-probability is the model's own. In `make test` that is a third of the tokens."""
    ours = theirs = 0.0
    asked = [(case, i) for case in expected(family)["cases"] for i in range(1, len(case["prompt"]))]
    asked = asked if NIGHTLY else asked[::3]
    requests = [{"prompt_token_ids": case["prompt"][:i], "max_tokens": 1, "logprobs": 0, "ignore_eos": True,
                 "allowed_token_ids": [case["prompt"][i]]} for case, i in asked]
    for (case, i), answer in zip(asked, generate(family, requests, *flags)):
        ours += abs(case["prompt_logprobs"][i] - answer["outputs"][0]["logprobs"][0])
        theirs += case["bf16_mean_error"]
    return ours / theirs
