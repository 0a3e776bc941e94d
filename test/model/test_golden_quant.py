# SPDX-License-Identifier: Apache-2.0
"""Quantised checkpoints compared with answers computed from their dequantised weights. The folders of
test/golden-quant are part of the project; more of them are in $SLUICE_SHARED/golden-quant."""
import os

import pytest

import golden
from nightly import NIGHTLY

SHARED = os.environ.get("SLUICE_SHARED", os.path.join(golden.ROOT, "..", "shared"))
RANKS_THREADS = golden.TWO_THREADS if NIGHTLY else []  # four threads for two processors
OWN, OTHERS = os.path.join(golden.ROOT, "test", "golden-quant"), os.path.join(SHARED, "golden-quant")


def weights_alone(folder):
    """Only weights are quantised; the cache is not, even if the checkpoint asks for it."""
    config = golden.config(folder)
    dtype = config.get("dtype") or config["torch_dtype"]
    return ["--activation-quantization", "none", "--kv-cache-dtype", dtype]


def folders():
    found = {}
    for root in (OTHERS, OWN):
        for name in os.listdir(root) if os.path.isdir(root) else []:
            if os.path.exists(os.path.join(root, name, "expected.json")):
                found[name] = os.path.join(root, name)
    return [pytest.param(found[name], id=name) for name in sorted(found)]


def prompts(folder):
    return [i for i, case in enumerate(golden.expected(folder)["cases"]) if len(case["prompt"]) > 1]


def scores(folder, *flags):
    cases = golden.expected(folder)["cases"]
    requests = [{"prompt_token_ids": cases[i]["prompt"], "max_tokens": 0, "prompt_logprobs": True}
                for i in prompts(folder)]
    return [answer["prompt_logprobs"] for answer in golden.generate(folder, requests, *flags)]


def distance(want, have):
    errors = [abs(w - h) for a, b in zip(want, have) for w, h in zip(a, b) if w is not None]
    return sum(errors) / len(errors)


def test_other_folders_are_there():
    if not os.path.isdir(OTHERS):
        pytest.skip(f"no {OTHERS}")


@pytest.mark.parametrize("folder", folders())
def test_float32_equals_the_dequantised_model(folder):
    golden.check_exact(folder)


@pytest.mark.skipif(not golden.EXACT_RANKS, reason="several ranks add in another order")
@pytest.mark.parametrize("folder", folders())
def test_two_ranks_split_inside_blocks(folder):
    """The ranks' rows and columns begin and end inside blocks and groups."""
    golden.check_exact_unscored(folder, 1e-3, "--tensor-parallel-size", "2", *RANKS_THREADS)


@pytest.mark.parametrize("folder", folders())
def test_rounded_is_as_good_as_the_dequantised_model_rounded(folder):
    assert golden.check_rounded(folder, *weights_alone(folder)) <= 1.5


@pytest.mark.skipif(golden.DEVICE == "cpu", reason="a CPU rounds all of them")
@pytest.mark.parametrize("folder", folders())
def test_rounded_inputs_stay_near_the_stored_answers(folder):
    """A GPU rounds only E4M3 inputs: the answers of other formats are near the stored ones with or without rounding."""
    stored = golden.expected(folder)
    act, have = stored.get("variants", {}).get("act"), scores(folder, *weights_alone(folder)[2:])
    if act is None:
        pytest.skip("its inputs stay as they are")
    rounded = [act["cases"][i]["prompt_logprobs"] if "cases" in act else act["prompt_logprobs"][i] for i in prompts(folder)]
    exact = [stored["cases"][i]["prompt_logprobs"] for i in prompts(folder)]
    near_rounded = distance(rounded, have) <= 1.5 * act["bf16_mean_error"]
    all_rounded = "fp8" in folder and golden.N_RANKS == 1
    assert near_rounded or (not all_rounded and distance(exact, have) <= 1.5 * act["mean_distance"])


@pytest.mark.skipif(golden.DEVICE != "cpu", reason="only a CPU rounds all of them")
@pytest.mark.parametrize("folder", folders())
def test_inputs_are_rounded_as_the_format_says(folder):
    """As near to the answers with rounded inputs as the reference's own bf16 run, and nearer than without rounding."""
    act = golden.expected(folder).get("variants", {}).get("act")
    have = scores(folder, *weights_alone(folder)[2:])
    if act is None:
        assert have == scores(folder, *weights_alone(folder))
        return
    want = [act["cases"][i]["prompt_logprobs"] if "cases" in act else act["prompt_logprobs"][i] for i in prompts(folder)]
    assert distance(want, have) <= 1.5 * act["bf16_mean_error"]
    alone = scores(folder, *weights_alone(folder))
    assert have != alone
    if "deepseek" not in folder:  # MLA's absorbed products have other inputs than the reference's products
        assert distance(want, have) < distance(want, alone)


@pytest.mark.skipif(not golden.EXACT_RANKS, reason="several ranks add in another order")
@pytest.mark.parametrize("folder", folders())
def test_a_row_is_the_same_in_any_chunk_and_on_any_ranks(folder):
    once = scores(folder, *golden.TWO_THREADS)
    assert scores(folder, *golden.CHUNKS) == once
    assert scores(folder, "--tensor-parallel-size", "2", *RANKS_THREADS) == once
