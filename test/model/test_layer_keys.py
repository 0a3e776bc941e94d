# SPDX-License-Identifier: Apache-2.0
"""Keys of config.json in families whose layers differ (Gemma 3n and 4, GLM-4.5 and on, MiniMax-M2, Llama 4, OLMo 3, Cohere 2): which
may be missing or written differently without changing the answer, and which values are refused by name."""
import os

import pytest

from golden import FAMILIES
from test_checkpoint import run, scores
from test_family_keys import GONE, changed

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
GEMMA = [SLIDING, SLIDING, FULL]
OWN = {"head_dim": 32, "num_key_value_heads": 1}


@pytest.mark.parametrize("source, values", [
    ("gemma-4", {"rope_parameters": GONE}),
    ("gemma-4", {"layer_types": GEMMA + [SLIDING] * 3}),  # the last layer still has no window
    ("gemma-4", {"global_head_dim": GONE, "num_global_key_value_heads": GONE, "per_layer_config": {"2": OWN, "5": OWN}}),
    ("gemma-4", {"num_kv_shared_layers": GONE, "use_double_wide_mlp": True}),
    ("gemma-4", {"use_bidirectional_attention": "vision", "tie_word_embeddings": False}),
    ("gemma-4-unified", {"use_bidirectional_attention": GONE, "rms_norm_eps": GONE}),
    ("gemma-4-moe", {"hidden_size_per_layer_input": None}),
    ("gemma-4-e", {"enable_moe_block": GONE, "num_experts": 8}),
    ("gemma-3n", {key: GONE for key in ("altup_num_inputs", "altup_active_idx", "altup_correct_scale", "attention_bias", "rms_norm_eps",
                                        "final_logit_softcapping", "hidden_activation", "rope_local_base_freq", "rope_theta")}),
    ("gemma-3n", {"intermediate_size": 96, "rope_theta": GONE, "rope_local_base_freq": GONE, "rope_parameters": {
        FULL: {"rope_type": "default", "rope_theta": 1e6}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}}),
    ("gemma-3n", {"query_pre_attn_scalar": 7, "altup_coef_clip": 0.1}),  # not read by the class, or only in training
    ("glm-4.5", {"partial_rotary_factor": GONE, "n_group": GONE, "topk_group": GONE, "norm_topk_prob": GONE,
                 "n_shared_experts": GONE, "rms_norm_eps": GONE, "num_nextn_predict_layers": GONE}),
    ("glm-4.5", {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"], "first_k_dense_replace": GONE}),
    ("glm-4.7-flash", {"mlp_layer_types": ["dense"] + ["sparse"] * 3, "first_k_dense_replace": 2, "rope_interleave": GONE,
                       "rms_norm_eps": GONE, "routed_scaling_factor": GONE}),
    ("minimax-m2", {"rotary_dim": GONE, "partial_rotary_factor": 0.5, "rope_theta": GONE, "rms_norm_eps": GONE}),
    ("minimax-m2", {"use_qk_norm": False, "scoring_func": "softmax"}),  # both keys are ignored
    ("llama-4", {"no_rope_layers": GONE}),
    ("llama-4", {"no_rope_layers": [1, 1, 1, 0] * 2, "no_rope_layer_interval": 3}),
    ("llama-4", {"layer_types": ([CHUNKED] * 3 + [FULL]) * 2}),
    ("llama-4", {"moe_layers": list(range(8)), "interleave_moe_layer_step": 2}),
    ("llama-4", {"attn_temperature_tuning": 4, "attn_scale": GONE, "use_qk_norm": GONE}),
    ("olmo-3", {"layer_types": GONE, "rms_norm_eps": GONE, "rope_theta": GONE}),
    ("olmo-3", {"rope_local_base_freq": GONE, "rope_scaling": GONE, "rope_theta": GONE, "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 5e5},
        FULL: {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 64,
               "attention_factor": 1.2079441541679836}}}),
    ("cohere-2", {"sliding_window_pattern": GONE, "layer_norm_eps": GONE, "tie_word_embeddings": GONE}),
    ("cohere-2", {"sliding_window_pattern": 3, "layer_types": ([SLIDING] * 3 + [FULL]) * 2}),
])
def test_other_spellings_give_the_same_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) == scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values", [
    ("gemma-4", {"final_logit_softcapping": None}),
    ("gemma-4", {"sliding_window": 25}),
    ("gemma-4-moe", {"top_k_experts": 2}),
    ("gemma-4-e", {"num_kv_shared_layers": 0, "use_double_wide_mlp": False}),
    ("gemma-3n", {"activation_sparsity_pattern": [0.95, 0.95] + [0] * 5}),
    ("gemma-3n", {"activation_sparsity_pattern": GONE}),  # none are sparse in models of up to ten layers
    ("gemma-3n", {"altup_active_idx": 1}),
    ("gemma-3n", {"altup_correct_scale": False}),
    ("gemma-3n", {"final_logit_softcapping": None}),
    ("gemma-3n", {"rope_local_base_freq": 2e4}),
    ("gemma-3n", {"layer_types": GONE, "num_kv_shared_layers": 2}),  # every fifth layer has no window
    ("glm-4.5", {"use_qk_norm": False}),
    ("glm-4.5", {"partial_rotary_factor": 1.0}),
    ("glm-4.5", {"routed_scaling_factor": 1.0}),
    ("glm-4.7-flash", {"rope_interleave": False}),
    ("minimax-m2", {"rotary_dim": 32}),
    ("llama-4", {"attention_chunk_size": 33}),
    ("llama-4", {"floor_scale": 17}),
    ("llama-4", {"attn_temperature_tuning": False}),
    ("llama-4", {"use_qk_norm": False}),
    ("llama-4", {"no_rope_layers": [1] * 8}),
    ("olmo-3", {"sliding_window": 25}),
    ("olmo-3", {"rope_theta": 10000.0}),  # rope_theta of the full layers
    ("olmo-3", {"rope_scaling": None}),
    ("cohere-2", {"logit_scale": 1.0}),
    ("cohere-2", {"layer_types": [SLIDING] * 8}),
])
def test_the_key_changes_the_answer(source, values, tmp_path):
    folder = changed(tmp_path / "model", source, values)
    if source == "gemma-4-e":  # the shapes in its file no longer match
        assert "shape" in run(folder).stderr
    else:
        assert scores(folder) != scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values, named", [
    ("gemma-4", {"use_bidirectional_attention": "all"}, ["use_bidirectional_attention"]),
    ("gemma-4", {"use_bidirectional_attention": 3}, ["use_bidirectional_attention", "true, false or a string"]),
    ("gemma-4", {"per_layer_config": {"9": OWN}}, ["per_layer_config", "'9'"]),
    ("gemma-4", {"per_layer_config": {"2": {"head_dim": 0}}}, ["per_layer_config", "head_dim"]),
    ("gemma-4", {"per_layer_config": {"2": {"hidden_size": 32}}}, ["per_layer_config", "hidden_size"]),
    ("gemma-4", {"num_global_key_value_heads": 3}, ["4 heads", "3 key/value heads"]),
    ("gemma-4", {"num_kv_shared_layers": 5}, ["num_kv_shared_layers"]),
    ("gemma-4", {"intermediate_size": [96] * 6}, ["intermediate_size"]),
    ("gemma-4", {"num_kv_shared_layers": 99}, ["num_kv_shared_layers"]),
    ("gemma-4-e", {"vocab_size_per_layer_input": 300}, ["vocab_size_per_layer_input"]),
    ("gemma-4-moe", {"top_k_experts": 9}, ["top_k_experts", "from 1 to 8"]),
    ("gemma-3n", {"altup_num_inputs": 1}, ["altup_num_inputs must be from 2 to 8"]),
    ("gemma-3n", {"altup_num_inputs": 9}, ["altup_num_inputs must be from 2 to 8"]),
    ("gemma-3n", {"altup_active_idx": 4}, ["altup_active_idx"]),
    ("gemma-3n", {"altup_correct_scale": 1}, ["altup_correct_scale"]),
    ("gemma-3n", {"laurel_rank": 0}, ["laurel_rank"]),
    ("gemma-3n", {"hidden_size_per_layer_input": 0}, ["hidden_size_per_layer_input"]),
    ("gemma-3n", {"activation_sparsity_pattern": [0.95] * 6}, ["activation_sparsity_pattern", "each of the 7 layers"]),
    ("gemma-3n", {"activation_sparsity_pattern": [1.0] + [0.0] * 6}, ["activation_sparsity_pattern"]),
    ("gemma-3n", {"activation_sparsity_pattern": 0.95}, ["activation_sparsity_pattern"]),
    ("gemma-3n", {"intermediate_size": [96] * 6}, ["intermediate_size", "one for each layer"]),
    ("gemma-3n", {"intermediate_size": [96] * 8}, ["intermediate_size", "one for each layer"]),
    ("gemma-3n", {"intermediate_size": [96] * 6 + [0]}, ["intermediate_size", "one for each layer"]),
    ("gemma-3n", {"num_kv_shared_layers": 6}, ["num_kv_shared_layers"]),
    ("gemma-3n", {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
    ("glm-4.5", {"n_group": 3}, ["n_group", "8 experts"]),
    ("minimax-m2", {"rotary_dim": 33}, ["rotary_dim", "from 1 to 32"]),
    ("llama-4", {"no_rope_layers": [1, 0]}, ["no_rope_layers", "fewer"]),
    ("llama-4", {"floor_scale": 0}, ["floor_scale"]),
    ("llama-4", {"interleave_moe_layer_step": 0}, ["interleave_moe_layer_step"]),
    ("llama-4", {"moe_layers": ["a"]}, ["moe_layers", "a list of integers"]),
    ("olmo-3", {"layer_types": ["linear_attention"] * 8}, ["linear_attention"]),
])
def test_what_is_not_supported_is_refused_by_name(source, values, named, tmp_path):
    done = run(changed(tmp_path / "model", source, values))
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in named), done.stderr
