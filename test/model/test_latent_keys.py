# SPDX-License-Identifier: Apache-2.0
"""Keys of Mistral Large 4 and A.X K2: which may be missing or written differently without changing the answer, which change it,
and which values are refused by name."""
import os

import pytest

from golden import FAMILIES
from test_checkpoint import run, scores
from test_family_keys import GONE, changed

LARGE, K2 = "mistral-large-4", "a.x-k2"
KINDS = ["full", "shared", "full", "full", "shared", "full"]


@pytest.mark.parametrize("source, values", [
    (LARGE, {"model_type": GONE}),
    (LARGE, {"n_group": GONE, "topk_group": GONE, "q_lora_rank": None, "norm_topk_prob": True, "rms_norm_eps": GONE}),
    (LARGE, {"mlp_layer_types": GONE, "first_k_dense_replace": GONE, "moe_layer_freq": 1, "layer_types": GONE}),
    (LARGE, {"indexer_types": GONE, "index_topk_pattern": "FSFFSF"}),
    (LARGE, {"indexer_types": KINDS + ["full"], "no_rope_layers": [1, 1, 0, 1, 0, 1, 0]}),
    (LARGE, {"indexer_rope_interleave": True}),
    (K2, {"n_group": 1, "topk_group": 1, "norm_topk_prob": GONE, "attention_bias": GONE}),
    (K2, {"mlp_layer_types": GONE, "first_k_dense_replace": GONE, "layer_types": GONE}),
    (K2, {"mlp_layer_types": GONE, "first_k_dense_replace": 1, "moe_layer_freq": 1}),
])
def test_other_spellings_give_the_same_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) == scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values", [
    (LARGE, {"final_logit_softcapping": GONE}),
    (LARGE, {"rms_norm_eps": 1e-2}),
    (LARGE, {"routed_scaling_factor": GONE}),
    (LARGE, {"num_experts_per_tok": GONE}),
    (LARGE, {"rope_parameters": GONE}),
    (LARGE, {"index_topk": 24}),
    (LARGE, {"kv_source_layers": [0, 1, 2, 0, 2, 5]}),
    (LARGE, {"indexer_types": ["full", "shared", "full", "shared", "shared", "full"]}),
    (K2, {"rms_norm_eps": 1e-2}),
    (K2, {"routed_scaling_factor": GONE}),
    (K2, {"norm_topk_prob": False}),
    (K2, {"n_group": 4, "topk_group": 2}),
    (K2, {"rope_parameters": GONE}),
    (K2, {"index_topk": 24}),
])
def test_the_key_changes_the_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) != scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values, named", [
    (LARGE, {"q_lora_rank": 8}, ["q_lora_rank"]),
    (LARGE, {"n_group": 2}, ["n_group"]),
    (LARGE, {"norm_topk_prob": False}, ["norm_topk_prob false"]),
    (LARGE, {"moe_layer_freq": 2}, ["moe_layer_freq"]),
    (LARGE, {"kv_source_layers": [0, 1, 2]}, ["kv_source_layers", "each layer"]),
    (LARGE, {"kv_source_layers": [0, 1, 2, 4, 4, 5]}, ["kv_source_layers", "layer 3", "earlier"]),
    (LARGE, {"kv_source_layers": [0, 0, 2, 1, 2, 5]}, ["kv_source_layers", "layer 3", "earlier"]),
    (LARGE, {"kv_source_layers": [0, 1, 2, 2, 2, 5]}, ["kv_source_layers", "layer 3", "positions"]),
    (LARGE, {"kv_source_layers": [0, 1, 2, 1, 2, 0]}, ["kv_source_layers", "layer 5", "last layer"]),
    (LARGE, {"kv_source_layers": [0, 1, 2, 1, 2, -1]}, ["kv_source_layers"]),
    (LARGE, {"kv_source_layers": GONE}, ["layers.3.attention.wkv_a_with_mqa"]),
    (LARGE, {"no_rope_layers": [1, 1]}, ["no_rope_layers", "fewer"]),
    (LARGE, {"no_rope_layers": [1, 1, 1, 1, 0, 1]}, ["kv_source_layers", "layer 3"]),
    (LARGE, {"indexer_types": ["shared"] + KINDS[1:]}, ["first layer"]),
    (K2, {"q_lora_rank": None}, ["q_lora_rank"]),
    (K2, {"gated_norm_rank": 0}, ["gated_norm_rank"]),
    (K2, {"gated_norm_rank": GONE}, ["W_down", "[8, 64]", "[16, 64]"]),
    (K2, {"index_head_dim": 4}, ["index_head_dim"]),
])
def test_what_is_not_supported_is_refused_by_name(source, values, named, tmp_path):
    done = run(changed(tmp_path / "model", source, values))
    assert done.returncode == 1, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert all(word in lines[0] for word in named), lines[0]
