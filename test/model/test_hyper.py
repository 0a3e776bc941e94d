# SPDX-License-Identifier: Apache-2.0
"""Hyper-connections (Hy 4): the keys of config.json that describe them and what else this family has; the names that its tensors
have in released files and in transformers. test_golden_families.py compares with transformers, and test_cube.py the bits of all
settings."""
import json
import os

import pytest

import golden
import heads
from golden import FAMILIES, GOLDEN
from test_checkpoint import Checkpoint, run, scores
from test_family_keys import GONE, changed

HY = "hy-4"
SOURCE = os.path.join(FAMILIES, HY)
TYPES = ["full", "full", "shared", "full"]  # as in the golden folder


@pytest.mark.parametrize("values", [
    {"layer_types": GONE, "mlp_layer_types": GONE, "n_group": GONE, "topk_group": GONE, "n_shared_experts": GONE},
    {"hc_mult": GONE, "hc_eps": GONE, "rms_norm_eps": GONE, "norm_topk_prob": GONE, "routed_scaling_factor": GONE},
    {"num_local_experts": 8, "n_routed_experts": GONE},
    {"rope_interleave": True, "indexer_rope_interleave": True},  # the class has one form of ropes
    {"learnable_sink_init": 3.0, "head_dim": GONE, "num_key_value_heads": GONE, "qk_head_dim": GONE},
    {"indexer_types": TYPES + ["shared"], "index_topk_freq": 3},  # a list takes precedence
])
def test_other_spellings_give_the_same_answer(values, tmp_path):
    assert scores(changed(tmp_path / "model", HY, values)) == scores(SOURCE)


@pytest.mark.parametrize("values", [
    {"hc_magnitude": 2.0},
    {"hc_magnitude": GONE},
    {"hc_eps": 0.01},
    {"swiglu_limit": 0.9},
    {"swiglu_limit": GONE},
    {"index_topk": 21},
    {"rms_norm_eps": 1e-6},
    {"routed_scaling_factor": 1.0},
    {"norm_topk_prob": False},
    {"indexer_types": GONE},  # then the last layer has the picks of another
])
def test_the_key_changes_the_answer(values, tmp_path):
    assert scores(changed(tmp_path / "model", HY, values)) != scores(SOURCE)


@pytest.mark.parametrize("values, named", [
    ({"hc_mult": 5}, ["hc_mult", "from 1 to 4"]),
    ({"hc_mult": 0}, ["hc_mult", "from 1"]),
    ({"hc_mult": "4"}, ["hc_mult", "an integer"]),
    ({"hc_mult": 3}, ["hc_head_fn", "[4, 256]", "[3, 192]"]),
    ({"hc_eps": -1.0}, ["hc_eps", "from 0 to 1"]),
    ({"hc_magnitude": None, "hc_eps": "small"}, ["hc_eps", "a number"]),
    ({"swiglu_limit": 0}, ["swiglu_limit", "above 0"]),
    ({"swiglu_limit": -1.0}, ["swiglu_limit", "from 0"]),
    ({"q_lora_rank": None}, ["q_lora_rank"]),
    ({"indexer_types": ["shared"] + TYPES[1:]}, ["the first layer"]),
    ({"indexer_types": ["full"] * 4}, ["there is no tensor model.layers.2.self_attn.indexer"]),
    ({"layer_types": ["indexed_attention"] * 3 + ["sliding_attention"], "sliding_window": 8}, ["sliding_attention", "layer 3"]),
    ({"mlp_layer_types": ["dense"] * 3}, ["mlp_layer_types", "fewer"]),
])
def test_what_is_not_supported_is_refused_by_name(values, named, tmp_path):
    done = run(changed(tmp_path / "model", HY, values))
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in named), done.stderr


def renamed(folder, pairs):
    c = Checkpoint(folder, SOURCE)
    for old, new in pairs:
        c.header = {name.replace(old, new): value for name, value in c.header.items()}
    c.write()
    return c


# Every pair of names that transformers reads: those of its modules, and of files.
INNER = [(".hc_pre.hc_attn_layer.hc_", ".attn_hc."), (".hc_pre.hc_mlp_layer.hc_", ".ffn_hc."),
         (".hc_pre.hc_head.hc_head_", ".hc_head.hc_"), ("learnable_sink_param", "sinks"), ("linear_gate", "gate_proj")]
AFTER = [(f".hc_pre.hc_{part}.hc_", f".hc_{part}.hc_pre.hc_") for part in ("attn_layer", "mlp_layer", "head")]
BARE = [(".hc_pre.", ".")]
ALL_GATES = [("mlp.gate_proj", "mlp.linear_gate"), ("shared_experts.gate_proj", "shared_experts.linear_gate")]


@pytest.mark.parametrize("pairs", [INNER, AFTER, BARE, ALL_GATES, INNER[:2], BARE + ALL_GATES])
def test_tensors_have_several_names(pairs, tmp_path):
    assert scores(renamed(tmp_path / "model", pairs).folder) == scores(SOURCE)


@pytest.mark.parametrize("name", ["model.layers.2.hc_pre.hc_mlp_layer.hc_base", "model.layers.1.self_attn.learnable_sink_param",
                                  "model.layers.3.self_attn.linear_gate.weight", "model.hc_pre.hc_head.hc_head_scale"])
def test_a_missing_tensor_is_named(name, tmp_path):
    c = Checkpoint(tmp_path / "model", SOURCE)
    del c.header[name]
    c.write()
    assert f"there is no tensor {name}" in run(c.folder).stderr


def test_draft_layers_are_passed_over(tmp_path):
    c = Checkpoint(tmp_path / "model", SOURCE)
    n, norm = len(c.data), c.header["model.norm.weight"]
    begin, end = norm["data_offsets"]
    c.header["model.mtp_layers.0.enorm.weight"] = {**norm, "data_offsets": [n, n + end - begin]}
    c.data += c.data[begin:end]
    c.write()
    done = run(c.folder)
    assert done.returncode == 0 and "do not belong" not in done.stderr, done.stderr


def refusal(method, **more):
    config = json.dumps({"method": method, "num_speculative_tokens": 2, **more})
    done = run(SOURCE, "--speculative-config", config)
    assert done.returncode == 1
    return done.stderr


def test_draft_heads_are_refused(tmp_path):
    """What they would read is not known: the state after a layer is several streams."""
    assert "modules of hy_v4 are not supported" in refusal("mtp")
    config = {**heads.EAGLE3, "hidden_size": 64, "vocab_size": 384, "draft_vocab_size": 100,
              "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    folder = heads.eagle3_folder(tmp_path / "head", config, heads.eagle3_tensors(config, 64, 3))
    assert "hyper-connections (hy_v4) are not supported" in refusal("eagle3", model=folder)


def test_it_drafts_for_itself():
    """Greedy drafts of the model itself are always right."""
    request = {"prompt_token_ids": list(range(5, 60)), "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    plain = golden.generate(SOURCE, [request])[0]
    config = json.dumps({"method": "draft_model", "model": SOURCE, "num_speculative_tokens": 3, "fixed": True})
    drafted = golden.generate(SOURCE, [request], "--speculative-config", config)[0]
    assert drafted["outputs"] == plain["outputs"]
    assert drafted["usage"]["accepted_draft_tokens"] == drafted["usage"]["draft_tokens"] > 10
    stranger = json.dumps({"method": "draft_model", "model": os.path.join(GOLDEN, "llama-tied"), "num_speculative_tokens": 3})
    assert golden.generate(SOURCE, [request], "--speculative-config", stranger)[0]["outputs"] == plain["outputs"]
