# SPDX-License-Identifier: Apache-2.0
"""A model whose results become NaN somewhere: the log names the layer, and no other request's bits change."""
import json
import os
import random
import re
import subprocess

import pytest

import golden
from test_checkpoint import HEAD, Checkpoint, broken
from test_cube import DRAFT, NGRAM, essence

EMBEDDING = "model.embed_tokens.weight"
TREE = {"method": "tree", "model": [os.path.join(golden.GOLDEN, "llama-3")], "num_speculative_tokens": 3, "fixed": True}
BAD = 6  # the only token whose embedding is broken


def run(folder, requests, *flags):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    done = subprocess.run([*golden.RUN, str(folder), "--json", "--log-level", "error", "--check-weights", "off", *flags],
                          input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), golden.ended(done)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def places(log):
    """The places where, according to the log, NaN began."""
    assert log.count("the model's results hold NaN") <= 1, log
    return re.findall(r"-infinity: (.*?)\. Usually", log)


def prompt(n, seed=1):
    draw = random.Random(seed)
    return [draw.randrange(7, 300) for _ in range(n)]


def request(length=9, **more):
    return {"prompt_token_ids": prompt(length), "max_tokens": 4, "temperature": 0, "ignore_eos": True, **more}


def layer_of(n, layer):
    return f"this begins in layer {layer} (of 0 to {n - 1})" + (", or in the embedding before it" if layer == 0 else "")


@pytest.mark.parametrize("family, layer", [("llama-3", 0), ("llama-3", 1), ("llama-3", 3), ("qwen3-moe", 2), ("deepseek-v2", 1),
                                           ("deepseek-v2", 2), ("gemma-3", 5), ("gpt-oss", 2)])
def test_the_log_names_the_layer(tmp_path, family, layer):
    source = os.path.join(golden.GOLDEN, family)
    n = golden.config(family)["num_hidden_layers"]
    folder = broken(tmp_path / "m", source, f"model.layers.{layer}.input_layernorm.weight")
    answers, log = run(folder, [request()])
    assert "not numbers" in answers[0]["error"], answers
    assert places(log) == [layer_of(n, layer)], log


def test_the_log_names_the_layer_after_several_streams(tmp_path):
    folder = broken(tmp_path / "m", os.path.join(golden.FAMILIES, "hy-4"), "model.layers.2.input_layernorm.weight")
    answers, log = run(folder, [request()])
    assert "not numbers" in answers[0]["error"], answers
    assert places(log) == [layer_of(4, 2)], log


@pytest.mark.parametrize("tensor, place", [("model.norm.weight", "in the final norm"), (HEAD, "in the output head")])
def test_the_log_names_what_follows_the_layers(tmp_path, tensor, place):
    folder = broken(tmp_path / "m", os.path.join(golden.GOLDEN, "llama-3"), tensor)
    assert places(run(folder, [request()])[1]) == ["this begins after the last layer, " + place]


SETTINGS = {"plain": [], "chunks": ["--max-num-batched-tokens", "16", "--max-num-seqs", "4"],
            "two ranks": ["--tensor-parallel-size", "2"], "ngram": ["--speculative-config", NGRAM],
            "draft": ["--speculative-config", DRAFT % os.path.join(golden.GOLDEN, "llama-tied")],
            "tree": ["--speculative-config", json.dumps(TREE)], "small pool": ["--num-gpu-blocks-override", "17"],
            "eager": ["--enforce-eager"]}


@pytest.mark.parametrize("setting", SETTINGS)
def test_other_requests_keep_their_bits(tmp_path, setting):
    """One token's embedding is NaN. The requests with that token fail, and a diagnosis runs among the steps of the others."""
    source = os.path.join(golden.GOLDEN, "llama-3")
    good = [request(prompt_token_ids=prompt(n, seed=n), max_tokens=24, temperature=n % 2, seed=n, logprobs=3)
            for n in (3, 40, 17, 5, 90, 33)]
    bad = [request(prompt_token_ids=[*prompt(n), BAD], max_tokens=24) for n in (4, 21, 60)]
    mixed = [good[0], bad[0], good[1], good[2], bad[1], good[3], good[4], bad[2], good[5]]
    flags = SETTINGS[setting]
    clean, _ = run(source, good, *flags)
    assert all(BAD not in o["token_ids"] for a in clean for o in a["outputs"])
    answers, log = run(broken(tmp_path / "m", source, EMBEDDING, BAD * 64), mixed, *flags)
    assert [essence(a) for a in answers if "error" not in a] == [essence(a) for a in clean]
    assert ["not numbers" in a.get("error", "") for a in answers] == [r in bad for r in mixed]
    assert places(log) == [layer_of(4, 0)], log


@pytest.mark.parametrize("family", ["llama-3", "deepseek-v2", "gpt-oss"])
@pytest.mark.parametrize("kv", ["auto", "fp8", "fp8_per_token_head", "int4"])
def test_a_broken_request_leaves_nothing_behind(tmp_path, family, kv):
    """The rows before the broken row are right, but nobody has looked at them: their blocks leave the prefix cache, and the next
    request with the same prefix computes them again, in the same slots."""
    source = os.path.join(golden.GOLDEN, family)
    folder = broken(tmp_path / "m", source, EMBEDDING, BAD * golden.config(family)["hidden_size"])
    flags = ["--max-num-seqs", "1", "--kv-cache-dtype", kv]
    for n in (17, 70):
        requests = [request(prompt_token_ids=[*prompt(n), last], max_tokens=1, logprobs=3) for last in (BAD, 9, 9)]
        clean, _ = run(source, requests, *flags)
        answers, _ = run(folder, requests, *flags)
        assert "not numbers" in answers[0]["error"]
        assert answers[1]["usage"]["cached_tokens"] == 0
        assert answers[2]["usage"]["cached_tokens"] >= 16
        assert essence(answers[1]) == essence(clean[1]) == essence(answers[2])


@pytest.mark.parametrize("which", ["constrained", "scored", "sampled"])
def test_all_kinds_of_draws_lead_to_a_layer(tmp_path, which):
    folder = broken(tmp_path / "m", os.path.join(golden.GOLDEN, "llama-3"), "model.layers.2.input_layernorm.weight")
    more = {"constrained": {"guided_regex": "[ab]{3,9}"}, "scored": {"prompt_logprobs": 2, "max_tokens": 1},
            "sampled": {"n": 3, "temperature": 1}}[which]
    answers, log = run(folder, [request(70, **more)])
    assert "not numbers" in answers[0]["error"]
    assert places(log) == [layer_of(4, 2)], log


@pytest.mark.parametrize("family", ["qwen3.5", "nemotron-nano-2"])
def test_layers_with_state(tmp_path, family):
    """The state that the row read is gone, since the next step has run by then, and the log says that the
    layer is not known. The next request shows it, unless its row ends a block of state."""
    source = os.path.join(golden.FAMILIES, family)
    names = [k for k in Checkpoint(tmp_path / "look", source).header if re.search(r"layers\.1\..*norm.*weight$", k)]
    folder = broken(tmp_path / "m", source, names[0])
    for second, named in ((9, True), (64, False)):
        answers, log = run(folder, [request(9), request(second)], "--max-num-seqs", "1")
        assert all("not numbers" in a["error"] for a in answers)
        found = re.findall(r"-infinity: (.*?)\. Usually", log)
        assert found[0] == "the layer at which this begins could not be determined"
        assert len(found) == 1 + named and all(f.startswith("this begins in layer 1 (of 0 to ") for f in found[1:]), log
