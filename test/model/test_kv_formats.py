# SPDX-License-Identifier: Apache-2.0
"""KV caches in FP8, int8 and int4: compared with answers computed with each format; the loss of accuracy; the options;
and how many tokens fit. The cube tests for every format that a request's bits depend on nothing else."""
import json
import os
import re
import struct
import subprocess

import pytest

import golden
from test_checkpoint import Checkpoint
from test_golden_quant import folders, prompts, scores, distance

FORMATS = ["fp8", "fp8_per_token_head", "int8_per_token_head", "int8", "int4"]
VARIANTS = {"kv": "fp8", "kv_fp8_per_token_head": "fp8_per_token_head", "kv_int8_per_token_head": "int8_per_token_head",
            "kv_int8_asym": "int8", "kv_int4_asym": "int4", "kv_fp8_scale_1": None}
OURS = os.path.join(golden.GOLDEN, "llama-3")
SAME_BITS = [] if golden.DEVICE == "cpu" else ["--deterministic"]  # makes two runs comparable bit by bit


def bits(folder, *flags):
    return scores(folder, *SAME_BITS, *flags)


def stored():
    """(folder, variant) of all stored answers with a quantised cache."""
    for folder in folders():
        for variant in golden.expected(folder.values[0]).get("variants", {}):
            if variant in VARIANTS:
                yield pytest.param(folder.values[0], variant, id=f"{folder.id}-{variant}")


def variant_of(folder, name):
    v = golden.expected(folder)["variants"][name]
    return v, [v["cases"][i]["prompt_logprobs"] for i in prompts(folder)]


class Scaled(Checkpoint):
    """A copy with scales of keys and values for each layer."""

    def give(self, n_layers, at="model.layers.{}.self_attn.", **scales):
        for name, value in scales.items():
            for layer in range(n_layers):
                end = len(self.data)
                self.data += struct.pack("<f", value)
                self.header[at.format(layer) + name] = {
                    "dtype": "F32", "shape": [], "data_offsets": [end, end + 4]}
        self.write()
        return self.folder


@pytest.fixture(scope="module")
def scaled_by_one(tmp_path_factory):
    def make(folder):
        copy = Scaled(tmp_path_factory.mktemp("scaled") / "model", folder)
        return copy.give(copy.config["num_hidden_layers"], k_scale=1.0, v_scale=1.0)
    return make


@pytest.mark.parametrize("folder,variant", list(stored()))
def test_answers_equal_those_stored_for_the_format(folder, variant, scaled_by_one):
    """In float32 the answers differ from the stored ones only where a value lies between two codes; in 16 bits the values
    themselves differ, as they do in the reference's own 16-bit run."""
    v, want = variant_of(folder, variant)
    if variant == "kv_fp8_scale_1":
        folder = scaled_by_one(folder)
    flags = ["--activation-quantization", "none", "--kv-cache-dtype", VARIANTS[variant] or "fp8"]
    assert distance(want, scores(folder, "--dtype", "float32", *flags)) <= 0.3 * v["bf16_mean_error"]
    assert distance(want, scores(folder, *flags)) <= 1.5 * v["bf16_mean_error"]
    assert distance(want, scores(folder, *flags, "--dtype", "bfloat16")) <= 1.5 * v["bf16_mean_error"]


def asking():
    return [p for p in folders() if "kv" in golden.expected(p.values[0]).get("variants", {})]


@pytest.mark.parametrize("folder", asking())
def test_auto_selects_the_checkpoints_format(folder):
    asked = bits(folder)
    assert asked == bits(folder, "--kv-cache-dtype", "fp8")
    assert asked != bits(folder, "--kv-cache-dtype", "bfloat16")
    assert asked != bits(folder, "--kv-cache-dtype", "fp8_per_token_head")
    exact = ["--dtype", "float32"]
    assert bits(folder, *exact) == bits(folder, *exact, "--kv-cache-dtype", "float32")
    if golden.DEVICE == "cpu":  # a checkpoint whose inputs are rounded, too
        v, want = variant_of(folder, "act_kv")
        assert distance(want, scores(folder)) <= 1.5 * v["bf16_mean_error"]


MOST = {"fp8": 0.3, "fp8_per_token_head": 0.3, "int8_per_token_head": 0.1, "int8": 0.1, "int4": 0.6}


@pytest.mark.parametrize("family", golden.families())
def test_every_family_answers_with_every_format(family):
    """The error relative to the spread of log-probabilities is 0.01 to 0.02 for int8, 0.05 for E4M3 and 0.15 for int4, and
    more if other experts are picked; a wrong scale would make it about 1."""
    cases = [c for c in golden.expected(family)["cases"] if len(c["prompt"]) > 1]
    requests = [{"prompt_token_ids": c["prompt"], "max_tokens": 0, "prompt_logprobs": True} for c in cases]
    want = [c["prompt_logprobs"] for c in cases]
    means = [sum(p[1:]) / (len(p) - 1) for p in want]
    size = distance(want, [[mean] * len(p) for p, mean in zip(want, means)])
    off = {}
    for kv in FORMATS:
        answers = golden.generate(family, requests, "--dtype", "float32", "--kv-cache-dtype", kv, *SAME_BITS)
        off[kv] = distance(want, [a["prompt_logprobs"] for a in answers]) / size
        assert 0 < off[kv] < MOST[kv], f"{family}, {kv}"
    assert off["int8"] < off["fp8"] < off["int4"]
    assert off["fp8"] == off["fp8_per_token_head"]  # equal, since no folder has scales


def test_a_single_scale_serves_keys_and_values(tmp_path):
    both = Scaled(tmp_path / "both", OURS)
    alone = Scaled(tmp_path / "alone", OURS)
    n = both.config["num_hidden_layers"]
    both, alone = both.give(n, k_scale=0.02, v_scale=0.02), alone.give(n, v_scale=0.02)
    assert bits(both, "--kv-cache-dtype", "fp8") == bits(alone, "--kv-cache-dtype", "fp8")
    assert bits(both) == bits(OURS)  # without the option, scales have no effect
    per_head = ["--kv-cache-dtype", "fp8_per_token_head"]
    assert bits(both, *per_head) == bits(OURS, *per_head) == bits(OURS, "--kv-cache-dtype", "fp8")


def test_scales_are_found_beside_other_names_of_attention(tmp_path):
    """As modelopt writes them for Nemotron-H, whose attention is called mixer."""
    source = os.path.join(golden.FAMILIES, "nemotron-3-nano")
    copy = Scaled(tmp_path / "model", source)
    n = len(copy.config["hybrid_override_pattern"])
    copy.give(n, "backbone.layers.{}.mixer.k_proj.", k_scale=0.02)
    copy.give(n, "backbone.layers.{}.mixer.v_proj.", v_scale=0.02)
    fp8 = ["--kv-cache-dtype", "fp8"]
    assert bits(copy.folder, *fp8) != bits(source, *fp8)
    assert bits(copy.folder) == bits(source)


def refusal(folder, *flags):
    done = subprocess.run([*golden.RUN, str(folder), "--json", "--log-level", "error", *flags], input="{}\n",
                          capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("word", ["fp8_e5m2", "nvfp4", "fp8_ds_mla", "int2", "turboquant_4bit_nc"])
def test_other_formats_are_refused_by_name(word):
    assert word in refusal(OURS, "--kv-cache-dtype", word)
    config = {"method": "draft_model", "model": OURS, "kv_cache_dtype": word}
    said = refusal(OURS, "--speculative-config", json.dumps(config))
    assert word in said and "kv_cache_dtype" in said


def test_a_dtype_other_than_the_models_is_refused():
    said = refusal(OURS, "--dtype", "float32", "--kv-cache-dtype", "bfloat16")
    assert "bfloat16" in said and "float32" in said


def test_an_unknown_scheme_leaves_the_models_dtype(tmp_path):
    copy = Checkpoint(tmp_path / "model", os.path.join(golden.ROOT, "test", "golden-quant", "ct-w4a16-asym-qwen3"))
    before = bits(copy.folder)
    for scheme in ({"num_bits": 8, "type": "int"}, {"num_bits": 4, "type": "float"}):
        copy.config["quantization_config"]["kv_cache_scheme"] = scheme
        copy.write_config()
        assert bits(copy.folder) == before
    copy.config["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    copy.write_config()
    assert bits(copy.folder) == bits(copy.folder, "--kv-cache-dtype", "fp8") != before


def block_bytes(folder, *flags):
    """Bytes per block of all KV sets, from the error about a pool that is too small."""
    said = refusal(folder, "--kv-cache-memory-bytes", "100", "--block-size", "16", *flags)
    return int(re.search(r"give (\d+) or more", said)[1]) // 2


@pytest.fixture(scope="module")
def heads_of_128(tmp_path_factory):
    copy = Checkpoint(tmp_path_factory.mktemp("heads") / "model", OURS)
    copy.config.update(head_dim=128, hidden_size=512, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64)
    copy.write_config()
    return copy.folder


def test_smaller_formats_hold_more_tokens(heads_of_128):
    dummy = ["--load-format", "dummy", "--kv-cache-dtype"]
    plain = block_bytes(heads_of_128, *dummy, "bfloat16")
    least = {"fp8": 1.9, "fp8_per_token_head": 1.9, "int8_per_token_head": 1.9, "int8": 1.9, "int4": 3.7}
    for kv, ratio in least.items():
        assert plain / block_bytes(heads_of_128, *dummy, kv) >= ratio, kv


def test_with_scales_per_tensor_twice_as_many_tokens_fit(tmp_path):
    folder = Scaled(tmp_path / "model", OURS).give(golden.config(OURS)["num_hidden_layers"], k_scale=0.02, v_scale=0.02)
    assert block_bytes(folder, "--kv-cache-dtype", "bfloat16") == 2 * block_bytes(folder, "--kv-cache-dtype", "fp8")


def test_a_draft_models_cache_has_the_targets_format_by_default():
    def bytes_of(target, draft=None):
        config = {"method": "draft_model", "model": OURS, **({"kv_cache_dtype": draft} if draft else {})}
        return block_bytes(OURS, "--kv-cache-dtype", target, "--speculative-config", json.dumps(config))

    alone = {kv: block_bytes(OURS, "--kv-cache-dtype", kv) for kv in ("bfloat16", "fp8", "int4")}
    assert bytes_of("fp8") == 2 * alone["fp8"]
    assert bytes_of("fp8", "auto") == alone["fp8"] + alone["bfloat16"]
    assert bytes_of("bfloat16", "int4") == alone["bfloat16"] + alone["int4"]


def test_a_draft_models_cache_changes_no_text():
    """The draft model is the target itself: with the target's format all its drafts are accepted."""
    request = [{"prompt_token_ids": list(range(5, 40)), "max_tokens": 24, "temperature": 0, "ignore_eos": True}]
    want = golden.generate(OURS, request, "--kv-cache-dtype", "int4")[0]["outputs"][0]["token_ids"]
    for draft in (None, "auto", "int8"):
        config = {"method": "draft_model", "model": OURS, "num_speculative_tokens": 3, "fixed": True}
        config.update({"kv_cache_dtype": draft} if draft else {})
        have = golden.generate(OURS, request, "--kv-cache-dtype", "int4", "--speculative-config", json.dumps(config))[0]
        assert have["outputs"][0]["token_ids"] == want
        assert have["usage"]["accepted_draft_tokens"] > 0
