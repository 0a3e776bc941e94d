# SPDX-License-Identifier: Apache-2.0
# test/run: long
"""Speculation through the engine: distributions, bonus tokens, stops inside accepted drafts, and refused options."""

import functools
import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest

import golden
from nightly import NIGHTLY, at_night, share

TARGET, STRANGER = "llama-3", os.path.join(golden.GOLDEN, "llama-tied")
OWN = os.path.join(golden.GOLDEN, TARGET)


def config(**keys):
    return "--speculative-config", json.dumps({"num_speculative_tokens": 3, "fixed": True, "disable_by_batch_size": 256,
                                               **keys})


def draft(model, **keys):
    return config(method="draft_model", model=model, **golden.AS_SHARDED, **keys)


PROPOSERS = {"ngram": config(method="ngram", prompt_lookup_min=1), "stranger": draft(STRANGER), "own": draft(OWN)}


@functools.cache  # several tests compare with the runs without drafts, and with those of a single request
def joint_counts(n, *flags, **more):
    """Counts of each sequence of tokens in n samples, with four allowed tokens at each position."""
    requests = [{"prompt_token_ids": [5, 9, 13, 5, 9], "max_tokens": 3, "temperature": 1.3, "top_p": 0.95, "n": 100,
                 "allowed_token_ids": [20, 30, 40, 50],
                 "seed": 1000 * i, "ignore_eos": True, **more} for i in range(n // 100)]
    counts = {}
    accepted = 0
    for answer in golden.generate(TARGET, requests, *flags):
        accepted += answer["usage"]["accepted_draft_tokens"]
        for o in answer["outputs"]:
            key = tuple(o["token_ids"])
            counts[key] = counts.get(key, 0) + 1
    return counts, accepted


def chi_square(a, b):
    """Chi-square of two samples of equal size: the statistic and its degrees of freedom, over cells with at least 8 in both."""
    cells = [(a.get(k, 0), b.get(k, 0)) for k in set(a) | set(b)]
    large = [(x, y) for x, y in cells if x + y >= 16]
    rest = [sum(x for x, y in cells if x + y < 16), sum(y for x, y in cells if x + y < 16)]
    large += [tuple(rest)] if sum(rest) >= 16 else []
    return sum((x - y) ** 2 / (x + y) for x, y in large), len(large) - 1


@pytest.mark.parametrize("model", [STRANGER, OWN], ids=["stranger", "own"])
def test_probabilistic_rejection_keeps_the_joint_law(model):
    n = 6000
    plain, _ = joint_counts(n)
    judged, accepted = joint_counts(n, *draft(model, rejection_sample_method="probabilistic", num_speculative_tokens=2))
    value, freedom = chi_square(plain, judged)
    assert freedom > 20 and accepted > n / 20
    # The target as its own draft model draws the plain run's tokens, so all are accepted.
    assert (plain == judged) == (model == OWN)
    assert value < freedom + 4 * (2 * freedom) ** 0.5, (value, freedom)  # four standard deviations


TREES = {"comb": {"num_speculative_tokens": 2, "tree_width": 4, "tree_nodes": 4096},
         "pairs": {"expansion": [2, 2]}, "wide": {"expansion": [4, 1]}}


MODELS = {"stranger": STRANGER, "own": OWN}


@pytest.mark.parametrize("whose, shape", [*itertools.product(["stranger"], TREES), ("own", "comb"), *at_night(("own", "pairs"), ("own", "wide"))])
def test_probabilistic_rejection_of_trees_keeps_the_joint_law(whose, shape):
    model = MODELS[whose]
    n, flat = 6000 if NIGHTLY else 3000, {"max_tokens": 4, "temperature": 3.0, "top_p": 1.0}
    plain, _ = joint_counts(n, **flat)
    judge = {"model": model, "rejection_sample_method": "probabilistic"}
    _, one = joint_counts(n, *config(method="draft_model", num_speculative_tokens=2, **judge), **flat)
    few = ("--max-num-seqs", "8")  # so that each sequence has its whole tree
    judged, accepted = joint_counts(n, *config(method="tree", **judge, **TREES[shape]), *few, **flat)
    value, freedom = chi_square(plain, judged)
    assert freedom > 20 and value < freedom + 4 * (2 * freedom) ** 0.5, (value, freedom)  # four standard deviations
    # With siblings more is accepted than with a chain; the target as its own draft model is never wrong.
    assert accepted == one if model == OWN else accepted > 1.2 * one, (accepted, one)


def test_a_draft_that_is_the_target_gives_k_plus_one_tokens_a_step():
    request = {"prompt_token_ids": [3, 4, 5], "max_tokens": 1 + 4 * 20, "temperature": 0, "ignore_eos": True}
    for flags in (draft(OWN), draft(OWN, rejection_sample_method="probabilistic")):
        for temperature in (0, 1):
            usage = golden.generate(TARGET, [{**request, "temperature": temperature}], *flags)[0]["usage"]
            assert usage["draft_tokens"] == usage["accepted_draft_tokens"] == 3 * 20


@pytest.mark.parametrize("how", PROPOSERS)
def test_a_stop_inside_an_accepted_run_cuts_there(how):
    """A stop at each position of accepted drafts: nothing after it is returned or counted, and nothing before it is lost."""
    request = {"prompt_token_ids": [7, 8, 9, 7, 8, 9, 7, 8], "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    whole = golden.generate(TARGET, [request])[0]["outputs"][0]["token_ids"]
    asks = [{**request, "stop_token_ids": [t]} for t in whole[:16]]
    asks += [{**request, "max_tokens": n} for n in range(1, 12)]
    asks += [{**request, "stop_token_ids": [whole[0]], "min_tokens": n} for n in range(2, 9)]
    want, have = golden.generate(TARGET, asks), golden.generate(TARGET, asks, *PROPOSERS[how])
    for ask, a, b in zip(asks, want, have):
        assert b["outputs"] == a["outputs"], ask
        assert b["usage"]["completion_tokens"] == a["usage"]["completion_tokens"]


@pytest.mark.parametrize("how", PROPOSERS)
def test_a_seed_gives_the_same_text_alone_and_among_64(how):
    one = {"prompt_token_ids": [11, 12, 13], "temperature": 0.9, "seed": 77, "max_tokens": 20, "ignore_eos": True}
    crowd = [{**one, "prompt_token_ids": [11 + i, 12, 13, 14][: 1 + i % 4], "seed": i} for i in range(63)]
    alone = golden.generate(TARGET, [one])[0]["outputs"]
    answers = golden.generate(TARGET, crowd[:40] + [one] + crowd[40:], *PROPOSERS[how])
    assert answers[40]["outputs"] == alone


@pytest.mark.parametrize("length, lanes", [(1, 64), (2, 32), (9, 8), (15, 8)])
@pytest.mark.parametrize("method", ["ngram", "draft_model", "tree"])
def test_passes_are_measured_within_the_shortest_context(method, length, lanes):
    """Many rows in few lanes would exceed the context."""
    keys = {"method": method, **({} if method == "ngram" else {"model": OWN})}
    done = subprocess.run([*golden.RUN, OWN, "--json", "--max-model-len", str(length), "--max-num-seqs", str(lanes),
                           "--speculative-config", json.dumps(keys)], input='{"prompt_token_ids": [5], "max_tokens": 0}\n', capture_output=True, text=True)
    assert done.returncode == 0 and "outputs" in json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("method", ["draft_model", "tree"])
def test_a_draft_with_a_shorter_context_stops_drafting_there(tmp_path, method):
    shutil.copytree(OWN, tmp_path / "short")
    path = tmp_path / "short" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 40}))
    ask = {"prompt_token_ids": list(range(20, 40)), "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    late = {**ask, "prompt_token_ids": [20 + k % 50 for k in range(70)]}
    flags = config(method=method, model=str(tmp_path / "short"))
    have, want = golden.generate(TARGET, [ask, late], *flags), golden.generate(TARGET, [ask, late])
    assert [a["outputs"] for a in have] == [a["outputs"] for a in want]
    assert 10 <= have[0]["usage"]["accepted_draft_tokens"] < 20 and have[1]["usage"]["draft_tokens"] == 0


DEMO = os.path.join(golden.ROOT, "models/demo")
DEMO_DRAFT = os.path.join(golden.ROOT, "models/demo-draft")
TASKS = ("copy", "json", "steps", "word problem", "reverse", "list", "sluice", "story", "unknown", "copy unicode")


def questions(n):
    """Held-out cases of the demo model, rendered by its template."""
    sys.path.insert(0, os.path.join(golden.ROOT, "scripts/train_demo"))
    import corpus

    found = []
    for i in range(n):
        messages = corpus.case(TASKS[i % len(TASKS)], i)["messages"]
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        found.append({"prompt": text + "<|im_start|>assistant\n", "max_tokens": 20, "temperature": i % 2 * 0.8, "seed": i})
    return found


N_ANSWERS = 100 if NIGHTLY else 25


@pytest.fixture(scope="module")
def answers_without():
    return [a["outputs"] for a in golden.generate(DEMO, questions(N_ANSWERS), "--dtype", "float32")]


@pytest.mark.parametrize("how, k", share(itertools.product(["ngram", "draft", "tree"], range(1, 9)), 0, of=4))
def test_every_depth_gives_the_answers_without_drafts(how, k, answers_without):
    keys = {"ngram": {"method": "ngram", "prompt_lookup_min": 1}, "draft": {"method": "draft_model", "model": DEMO_DRAFT},
            "tree": {"method": "tree", "model": DEMO_DRAFT, "tree_nodes": 64}}[how]
    odd = ["--max-num-batched-tokens", "97"] if k % 2 else ["--no-enable-prefix-caching"]
    tight = ["--num-gpu-blocks-override", "60"] if k % 3 == 0 else []
    threads = golden.TWO_THREADS if k % 4 == 2 else []
    answers = golden.generate(DEMO, questions(N_ANSWERS), "--dtype", "float32", "--max-num-seqs", "24",
                              *config(**{**keys, "num_speculative_tokens": k}), *odd, *tight, *threads)
    assert [a["outputs"] for a in answers] == answers_without
    assert sum(a["usage"]["accepted_draft_tokens"] for a in answers) > N_ANSWERS / 2


def costs(text, what):
    """Microseconds of passes of 1, 2, 4, 8 and 16 rows, as measured by the engine at startup."""
    line = next(line for line in text.splitlines() if f"speculation: a pass of the {what}," in line)
    return [float(n) for n in line.rpartition("rows: ")[2].removesuffix(" us").split(" / ")]


def gain(text):
    """The gain of two sequences from one draft token that is always right."""
    model, draft = costs(text, "model"), costs(text, "draft model")
    return 2 * model[1] / (model[2] + draft[1])


@pytest.mark.parametrize("method", ["draft_model", "tree"])
def test_measuring_passes_does_not_affect_the_draft_model(method):
    """Without `fixed`, passes of up to 128 rows have run before, whatever the number of sequences. If even a draft that is
    always right hardly pays (a model this small on a GPU, or other programs running during the measurement), the engine may
    draft nothing."""
    keys = {"method": method, "model": DEMO_DRAFT, "num_speculative_tokens": 4}
    asks = "".join(json.dumps({**q, "temperature": 0}) + "\n" for q in questions(40))
    done = subprocess.run([*golden.RUN, DEMO, "--json", "--log-level", "debug", "--max-num-seqs", "2",
                           "--speculative-config", json.dumps(keys)], input=asks, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [a for a in answers if "error" in a]
    drafted, right = (sum(a["usage"][k] for a in answers) for k in ("draft_tokens", "accepted_draft_tokens"))
    assert len(answers) == 40 and right >= 0.6 * drafted, (right, drafted)
    assert drafted > 100 or gain(done.stderr) < 1.3, (drafted, gain(done.stderr), done.stderr)


def refused(*flags, model=OWN):
    command = [golden.SLUICE, "generate", model, "hello", "--device", "cpu", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    return done.stderr


def test_a_draft_with_another_vocabulary_is_refused():
    text = refused(*draft(os.path.join(golden.ROOT, "models/demo-draft")))
    assert "vocabulary" in text and "4096" in text
    assert "rejection_sample_method" in refused(*config(method="ngram", rejection_sample_method="typical"))
    assert "num_speculative_tokens" in refused(*config(method="ngram", num_speculative_tokens=0))
    assert "fp8 or int4; 'awq' is neither" in refused(*draft(OWN, quantization="awq"))
    for more in ({"model": [OWN, STRANGER]}, {"model": OWN, "prompt_lookup_max": 3}):
        assert "one draft model" in refused(*config(method="tree", rejection_sample_method="probabilistic", **more))


def test_synthetic_acceptance_is_only_for_measurements(tmp_path):
    half = config(method="draft_model", model=OWN, rejection_sample_method="synthetic", synthetic_acceptance_rate=0.5,
                  num_speculative_tokens=1)
    for command in (["serve", OWN, "--port", "0"], ["generate", OWN, "hello"]):
        done = subprocess.run([golden.SLUICE, *command, "--device", "cpu", *half], capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and "makes up text" in done.stderr
    bench = ["bench-engine", OWN, "--device", "cpu", "--batch", "1", "--context", "32", "--steps", "8", *half]
    done = subprocess.run([golden.SLUICE, *bench], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "tok/s" in done.stdout, done.stderr
    answer = golden.generate(TARGET, [{"prompt_token_ids": [5, 6, 7], "max_tokens": 200, "ignore_eos": True}], *half,
                             "--load-format", "dummy")[0]["usage"]
    assert 0.3 < answer["accepted_draft_tokens"] / answer["draft_tokens"] < 0.7, answer
    with pytest.raises(AssertionError, match="the draft model: .*No such file"):
        golden.generate(TARGET, [], *draft("/nowhere"))
