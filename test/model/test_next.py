# SPDX-License-Identifier: Apache-2.0
"""GLM-5-Next: the keys of config.json that describe its pooled index keys, delta attention and streams; the names that its tensors
have in transformers. test_golden_families.py compares with transformers, and test_hybrid.py the bits of all settings."""
import json
import os

import pytest

import golden
from golden import FAMILIES
from test_checkpoint import Checkpoint, run, scores
from test_family_keys import GONE, changed

NEXT = "glm-5-next"
SOURCE = os.path.join(FAMILIES, NEXT)
TYPES = ["full", "full", "shared", "full", "full"]  # as in the golden folder
NESTED = {"head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4}
UNUSED = {"linear_head_dim": 8, "linear_num_heads": 2, "linear_conv_kernel_dim": 2}


@pytest.mark.parametrize("values", [
    {"index_kpool_always_select_tail": GONE, "linear_lower_bound": GONE, "rms_norm_eps": GONE, "hc_eps": GONE,
     "hc_sinkhorn_iters": GONE, "norm_topk_prob": GONE, "head_dim": GONE},
    {"hc_mult": GONE, "n_shared_experts": GONE, "qk_rope_head_dim": GONE, "num_key_value_heads": GONE},
    {"linear_attn_config": NESTED, **UNUSED},  # the object takes precedence
    {"linear_attn_config": {**NESTED, "gate_lower_bound": -5.0}, "linear_lower_bound": -2.0},
    {"linear_attn_config": {"safe_gate": True}, "linear_lower_bound": None},
    {"layer_types": ["linear_attention", "full_attention", "indexed_attention", "linear_attention", "full_attention"]},
    {"indexer_types": GONE, "index_topk_pattern": "FFSFF"},
    {"indexer_types": ["shared", "full", "shared", "shared", "full"]},  # of layers without attention, nothing
    {"num_local_experts": 8, "n_routed_experts": GONE},
])
def test_other_spellings_give_the_same_answer(values, tmp_path):
    assert scores(changed(tmp_path / "model", NEXT, values)) == scores(SOURCE)


@pytest.mark.parametrize("values", [
    {"index_topk": 20},
    {"linear_lower_bound": None},
    {"linear_lower_bound": -2.0},
    {"linear_attn_config": {"safe_gate": False}, "linear_lower_bound": None},
    {"hc_eps": 0.01},
    {"hc_sinkhorn_iters": 1},
    {"swiglu_limit": 10.0},
    {"rms_norm_eps": 1e-2},
    {"routed_scaling_factor": 1.0},
])
def test_the_key_changes_the_answer(values, tmp_path):
    assert scores(changed(tmp_path / "model", NEXT, values)) != scores(SOURCE)


@pytest.mark.parametrize("values, named", [
    ({"index_kpool": 5}, ["index_topk", "a multiple of index_kpool"]),
    ({"index_kpool": 0}, ["index_kpool", "from 1"]),
    ({"index_kpool": 65, "index_topk": 130}, ["index_kpool", "from 1 to 64"]),
    ({"index_kpool": 8}, ["index_kpool_compress_ape", "[4, 16]", "[8, 16]"]),
    ({"index_kpool_always_select_tail": False}, ["index_kpool_always_select_tail"]),
    ({"index_head_dim": 136}, ["index_head_dim", "128"]),
    ({"indexer_types": ["full", "shared", "full", "full", "full"]}, ["layer 1 shares picks"]),
    ({"indexer_types": TYPES[:4] + ["shared"]}, ["layer 4 shares picks"]),
    ({"qk_rope_head_dim": 8}, ["qk_rope_head_dim"]),
    ({"q_lora_rank": None}, ["q_lora_rank"]),
    ({"hidden_act": "gelu"}, ["hidden_act must be silu"]),
    ({"linear_lower_bound": 1.0}, ["linear_lower_bound"]),
    ({"linear_attn_config": {"gate_lower_bound": 1.0}}, ["lower bound"]),
    ({"hc_mult": 5}, ["hc_mult", "from 1 to 4"]),
    ({"hc_eps": 0.25}, ["hc_eps", "1 / hc_mult"]),
    ({"hc_sinkhorn_iters": 0}, ["hc_sinkhorn_iters", "from 1"]),
    ({"swiglu_limit": 0}, ["swiglu_limit", "above 0"]),
    ({"layer_types": ["linear_attention"] * 5}, ["no layer has attention"]),
    ({"layer_types": ["sliding_attention"] * 5, "sliding_window": 8}, ["sliding_attention"]),
])
def test_what_is_not_supported_is_refused_by_name(values, named, tmp_path):
    done = run(changed(tmp_path / "model", NEXT, values))
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in named), done.stderr


@pytest.mark.parametrize("name", ["indexer.index_kpool_compress_gate", "indexer.index_kpool_compress_ape", "indexer.k_norm.bias"])
def test_a_missing_tensor_is_named(name, tmp_path):
    c = Checkpoint(tmp_path / "model", SOURCE)
    gone = [full for full in c.header if full.endswith(name)]
    assert gone
    for full in gone:
        del c.header[full]
    c.write()
    assert f"there is no tensor {gone[0]}" in run(c.folder).stderr


def test_modules_that_draft_are_refused():
    config = json.dumps({"method": "mtp", "num_speculative_tokens": 2})
    done = run(SOURCE, "--speculative-config", config)
    assert done.returncode == 1 and "modules of glm5_next_text are not supported" in done.stderr


def test_groups_lie_on_paths_of_trees():
    """Greedy drafts of the model itself, in trees whose branches complete groups."""
    request = {"prompt_token_ids": list(range(5, 90)), "max_tokens": 40, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    plain = golden.generate(SOURCE, [request])[0]
    stranger = os.path.join(golden.GOLDEN, "llama-tied")
    tree = {"method": "tree", "model": [stranger], "fixed": True, "num_speculative_tokens": 6, "tree_width": 4, "tree_nodes": 30}
    drafted = golden.generate(SOURCE, [request], "--speculative-config", json.dumps(tree))[0]
    assert drafted["outputs"] == plain["outputs"] and drafted["usage"]["draft_tokens"] > 30
