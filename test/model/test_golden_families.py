# SPDX-License-Identifier: Apache-2.0
"""Families in their released formats, compared with transformers' stored answers: the folders of test/golden-families, and
others of $SLUICE_SHARED/golden-families, if there are any."""
import functools
import os
import subprocess

import pytest

import golden
from nightly import NIGHTLY, at_night

OTHERS = os.path.join(golden.SHARED, "golden-families")
# A different pick of experts in bf16 outweighs all rounding: these are compared only in fp32.
ROUTES_FLIP = {"others/gemma-4-moe", "others/kimi-k2.5"}

# Prompts in which two experts are closer than fp32's rounding: transformers' fp64 run picks the other one, and so do we.
TIES = {"others/hunyuan-moe": [150]}


def folders(place, prefix=""):
    """By name."""
    names = sorted(os.listdir(place)) if os.path.isdir(place) else []
    paths = {prefix + name: os.path.join(place, name) for name in names}
    return {name: path for name, path in paths.items() if os.path.exists(os.path.join(path, "expected.json"))}


FOLDERS = {**folders(golden.FAMILIES), **folders(OTHERS, "others/")}
MOST = [*folders(golden.FAMILIES), *at_night(*folders(OTHERS, "others/"))]


@functools.cache
def is_refused(name):
    """True if the device is not a CPU and reports that it does not support the family."""
    if golden.DEVICE == "cpu":
        return False
    command = [*golden.RUN, FOLDERS[name], "--json", "--log-level", "error"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=120)
    return "are not supported on this device" in done.stderr


def folder_of(name):
    if is_refused(name):
        pytest.skip(f"{name} runs only on CPUs so far")
    return FOLDERS[name]


def scores(folder, *flags):
    requests = [{"prompt_token_ids": case["prompt"], "max_tokens": 0, "prompt_logprobs": True}
                for case in golden.expected(folder)["cases"]]
    return [answer["prompt_logprobs"] for answer in golden.generate(folder, requests, *flags)]


@pytest.mark.parametrize("name", FOLDERS)
def test_float32_equals_transformers(name):
    folder = folder_of(name)
    ties = TIES.get(name, [])
    golden.check_exact(folder, but=ties)
    golden.check_exact_unscored(folder, 1e-3, *golden.CHUNKS, *golden.TWO_THREADS, but=ties)


@pytest.mark.parametrize("name", MOST)
def test_rounded_is_as_good_as_transformers_own(name):
    folder = folder_of(name)
    if name in ROUTES_FLIP:
        pytest.skip("routes flip in bf16")
    assert golden.check_rounded(folder) <= 2.0
    assert golden.check_rounded_unscored(folder, *golden.CHUNKS) <= 2.0


@pytest.mark.skipif(not golden.EXACT_RANKS, reason="several ranks add in another order")
@pytest.mark.parametrize("name", MOST)
def test_a_row_is_the_same_in_any_chunk_and_on_any_ranks(name):
    folder = folder_of(name)
    once = scores(folder, *golden.TWO_THREADS)
    assert scores(folder, *golden.CHUNKS) == once
    assert scores(folder, "--max-num-batched-tokens", "3", "--max-num-seqs", "1") == once
    assert scores(folder, "--tensor-parallel-size", "2", *(golden.TWO_THREADS if NIGHTLY else [])) == once
