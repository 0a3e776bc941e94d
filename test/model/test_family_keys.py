# SPDX-License-Identifier: Apache-2.0
"""Keys of config.json that only some families of test/golden-families have: which may be missing or written differently
without changing the answer, and which values are refused by name."""
import os

import pytest

from golden import FAMILIES, GOLDEN
from test_checkpoint import Checkpoint, run, scores

ALTERNATE = ["sliding_attention"] * 3 + ["full_attention"]
GONE = object()


def changed(folder, source, values):
    """The config, or a wrapper's text config."""
    c = Checkpoint(folder, os.path.join(FAMILIES, source))
    text = c.config.get("text_config", c.config)
    for key, value in values.items():
        text.pop(key, None)
        if value is not GONE:
            text[key] = value
    c.write_config()
    return c.folder


@pytest.mark.parametrize("source, values", [
    ("exaone-4", {"layer_types": GONE}),
    ("exaone-4", {"layer_types": GONE, "sliding_window_pattern": 4}),
    ("exaone-4", {"layer_types": GONE, "sliding_window_pattern": GONE}),
    ("exaone-4", {"layer_types": ALTERNATE * 2, "sliding_window_pattern": "LG"}),
    ("exaone-moe", {"layer_types": GONE, "sliding_window_pattern": "LLLGLLLL"}),  # the last layer has no window
    ("exaone-moe", {"mlp_layer_types": GONE}),
    ("exaone-moe", {"mlp_layer_types": GONE, "first_k_dense_replace": GONE, "routed_scaling_factor": GONE,
                    "n_group": GONE, "topk_group": GONE, "norm_topk_prob": GONE, "num_shared_experts": GONE}),
    ("hy-3", {"mlp_layer_types": GONE, "router_scaling_factor": GONE, "num_shared_experts": GONE}),
    ("ernie-4.5-moe", {"moe_layer_end_index": -1}),
    ("ernie-4.5-moe", {"moe_layer_end_index": GONE, "moe_layer_interval": GONE, "moe_layer_start_index": GONE,
                       "moe_num_shared_experts": GONE, "moe_norm_min": GONE, "rms_norm_eps": GONE, "rope_theta": GONE}),
    ("ernie-4.5", {"rms_norm_eps": GONE, "rope_theta": GONE, "tie_word_embeddings": GONE, "use_bias": GONE}),
    ("hunyuan-moe", {"moe_topk": 3, "moe_intermediate_size": 32, "num_shared_expert": GONE}),
    ("hunyuan-dense", {"rope_scaling": {"type": "dynamic", "alpha": 1000.0}, "rms_norm_eps": GONE}),
    ("hunyuan-dense", {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 4.0}}),  # alpha takes precedence over factor
    ("seed-oss", {"attention_bias": GONE, "attention_out_bias": GONE, "mlp_bias": GONE, "rms_norm_eps": GONE}),
    ("mistral-small-4", {"n_group": GONE, "norm_topk_prob": GONE, "routed_scaling_factor": GONE, "n_shared_experts": GONE,
                         "first_k_dense_replace": GONE, "rope_interleave": GONE}),
    ("kimi-k2", {"model_type": "deepseek_v3"}),
    ("olmo-hybrid", {"rope_parameters": GONE, "rope_theta": None}),
    ("olmo-hybrid", {"layer_types": GONE}),
    ("muse-glimmer", {"layer_types": GONE}),
    ("muse-glimmer", {"layer_rope_theta": GONE}),
    ("muse-glimmer", {"layer_rope_theta": [500000.0, 500000.0, 500000.0, 0]}),
    ("kolibri-1", {"layer_types": GONE, "rms_norm_eps": GONE, "num_local_experts": GONE, "num_experts": 12}),
    ("longcat-flash", {"ffn_hidden_size": GONE, "intermediate_size": 96, "zero_expert_type": GONE, "mla_scale_q_lora": GONE}),
    ("longcat-flash", {"num_hidden_layers": 4}),
    ("ernie-4.5-vl", {"moe_num_experts": [6, 6], "mlp_layer_types": GONE}),
    ("exaone-3", {"num_layers": GONE, "num_hidden_layers": 4, "layer_norm_epsilon": GONE}),
    ("biogpt", {"layer_norm_eps": 1e-3}),  # ignored
    ("bitnet", {"hidden_act": GONE, "rms_norm_eps": GONE, "rope_theta": GONE}),
    ("kimi-k2.5", {"model_type": GONE}),
    ("mistral-3", {"model_type": GONE}),
])
def test_other_spellings_give_the_same_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) == scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values", [
    ("exaone-4", {"layer_types": GONE, "sliding_window_pattern": "LG"}),
    ("exaone-4", {"sliding_window": 25}),
    ("exaone-4", {"sliding_window": None, "layer_types": ["full_attention"] * 8}),
    ("exaone-moe", {"n_group": 2}),
    ("exaone-moe", {"norm_topk_prob": False}),
    ("exaone-moe", {"routed_scaling_factor": 1.0}),
    ("hy-3", {"router_scaling_factor": 1.0}),
    ("ernie-4.5-moe", {"moe_k": 2}),
    ("ernie-4.5-moe", {"rope_theta": 10000.0}),
    ("hunyuan-moe", {"moe_topk": 2}),
    ("hunyuan-dense", {"rope_scaling": {"type": "dynamic", "alpha": 999.0, "factor": 1.0}}),
    ("hunyuan-dense", {"rope_scaling": None}),
    ("nemotron", {"partial_rotary_factor": 1.0}),
    ("muse-glimmer", {"post_norm_eps": 1e-4}),
    ("muse-glimmer", {"qk_scale_factor": 1.0}),
    ("muse-glimmer", {"output_multiplier": 1.0}),
    ("muse-glimmer", {"layer_rope_theta": [10000.0] * 4}),
    ("longcat-flash", {"moe_topk": 2}),
    ("gpt-neo", {"window_size": 25}),
    ("aria", {"moe_topk": 2}),
    ("ernie-4.5-vl", {"moe_k": 3}),
    ("gpt-neo", {"attention_types": [[["local", "global"], 2]]}),
    ("biogpt", {"scale_embedding": False}),
    ("xglm", {"scale_embedding": False}),
    ("longcat-flash", {"routed_scaling_factor": 1.0}),
    ("kolibri-1", {"norm_topk_prob": GONE}),
    ("kolibri-1", {"sliding_window": 25}),
    ("kolibri-1", {"layer_types": ["sliding_attention"] * 5}),
    ("olmo-hybrid", {"linear_allow_neg_eigval": False}),
    ("olmo-hybrid", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}),
    ("lfm3", {"use_attention_gate": False}),
    ("lfm3", {"use_sandwich_norm": False}),
    ("lfm3", {"sliding_window": 25}),
    ("command-r", {"use_qk_norm": False}),
    ("granite-swa", {"layer_rope_theta": [50000.0] * 4}),
    ("granite-swa", {"layer_rope_theta": GONE}),
    ("minicpm-3", {"scale_emb": 11}),
    ("minicpm-3", {"scale_depth": 1.3}),
    ("minicpm-3", {"dim_model_base": 32}),
    ("mistral-small-4", {"norm_topk_prob": False}),
    ("mistral-small-4", {"rope_interleave": False}),
])
def test_the_key_changes_the_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) != scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source", ["gemma", "gemma-2", "gemma-3", "granite", "minimax-m2", "mistral-3", "mistral-small-4"])
def test_the_epsilon_of_norms_is_that_of_the_config(source, tmp_path):
    """The stored answers of these families would not tell 1e-6 from 1e-4."""
    source = os.path.join(FAMILIES if os.path.isdir(os.path.join(FAMILIES, source)) else GOLDEN, source)
    want = scores(source)
    assert scores(changed(tmp_path / "same", source, {"rms_norm_eps": 1e-6})) == want
    for k, other in enumerate((1e-8, 1e-4)):
        assert scores(changed(tmp_path / str(k), source, {"rms_norm_eps": other})) != want


@pytest.mark.parametrize("source", ["ministral-3", "mistral-small-4"])
@pytest.mark.parametrize("key, value", [("llama_4_scaling_beta", 0.2), ("original_max_position_embeddings", 31)])
def test_scaling_of_queries_changes_the_answer(source, key, value, tmp_path):
    folder = os.path.join(FAMILIES, source)
    config = Checkpoint(tmp_path / "as it is", folder).config["text_config"]
    values = {"rope_parameters": {**config["rope_parameters"], key: value}}
    assert scores(changed(tmp_path / "model", source, values)) != scores(folder)


@pytest.mark.parametrize("source, values, named", [
    ("exaone-4", {"layer_types": GONE, "sliding_window_pattern": "LLXG"}, ["sliding_window_pattern", "LLXG"]),
    ("exaone-4", {"sliding_window_pattern": 1.5}, ["sliding_window_pattern", "an integer or a string"]),
    ("exaone-moe", {"mlp_layer_types": ["dense"]}, ["mlp_layer_types", "fewer"]),
    ("exaone-moe", {"mlp_layer_types": ["dense"] * 7 + ["moe"]}, ["mlp_layer_type", "'moe'"]),
    ("exaone-moe", {"n_group": 3}, ["n_group", "8 experts"]),
    ("ernie-4.5-moe", {"use_bias": True}, ["use_bias"]),
    ("ernie-4.5-moe", {"moe_norm_min": 0.1}, ["moe_norm_min"]),
    ("ernie-4.5-moe", {"moe_k": 9}, ["moe_k", "from 1 to 8"]),
    ("ernie-4.5-moe", {"moe_layer_interval": 0}, ["moe_layer_interval"]),
    ("hunyuan-moe", {"moe_topk": [3, 3, 2, 3]}, ["moe_topk", "differs"]),
    ("hunyuan-moe", {"moe_topk": [3]}, ["moe_topk", "fewer"]),
    ("hunyuan-moe", {"moe_intermediate_size": [16] * 4}, ["intermediate_size"]),
    ("hunyuan-moe", {"num_shared_expert": 2}, ["shared"]),
    ("hunyuan-moe", {"moe_layer_num_skipped": 1}, ["moe_layer_num_skipped"]),
    ("hunyuan-moe", {"use_mixed_mlp_moe": False}, ["use_mixed_mlp_moe false"]),
    ("hunyuan-dense", {"use_cla": True}, ["use_cla true"]),
    ("apertus", {"qk_norm": False}, ["qk_norm false"]),
    ("apertus", {"post_norm": True}, ["post_norm true"]),
    ("seed-oss", {"hidden_act": "xielu"}, ["xielu"]),
    ("lfm3", {"attention_bias": True}, ["attention_bias true"]),
    ("kolibri-1", {"model_type": "phimoe", "num_experts_per_tok": 4}, ["num_experts_per_tok must be 2"]),
    ("kolibri-1", {"model_type": "phimoe", "num_experts_per_tok": 2, "lm_head_bias": True, "tie_word_embeddings": True},
     ["lm_head_bias", "tie_word_embeddings"]),
    ("kolibri-1", {"model_type": "phimoe", "num_experts_per_tok": 2, "rope_scaling": {"type": "longrope", "short_mscale": 1.2}},
     ["long_mscale"]),
    ("kolibri-1", {"model_type": "phimoe", "num_experts_per_tok": 2,
                   "rope_scaling": {"type": "longrope", "short_mscale": 1.2, "long_mscale": 1.3}}, ["long_mscale", "differ"]),
    ("kolibri-1", {"model_type": "phimoe", "router_jitter_noise": -0.1}, ["router_jitter_noise"]),
    ("kolibri-1", {"shared_expert_intermediate_size": 0}, ["shared_expert_intermediate_size"]),
    ("llama-3.2-vision", {"cross_attention_layers": [0, 1, 2, 3, 4]}, ["cross_attention_layers"]),
    ("llama-3.2-vision", {"cross_attention_layers": [1]}, ["layers.3"]),
    ("hunyuan-ocr", {"rope_parameters": {"rope_type": "xdrope", "rope_theta": 10000.0}}, ["xdrope", "alpha"]),
    ("apertus-1.5", {"output_vocab_size": 449}, ["output_vocab_size", "448"]),
    ("aria", {"hidden_act": "gelu"}, ["hidden_act"]),
    ("gpt-neo", {"attention_types": [[["global"], 3]]}, ["attention_types", "4 layers"]),
    ("bitnet", {"head_dim": 32}, ["head_dim", "32"]),
    ("longcat-flash", {"zero_expert_type": "copy"}, ["zero_expert_type"]),
    ("longcat-flash", {"zero_expert_num": 5}, ["mlp.router", "13"]),
    ("longcat-flash", {"mla_scale_kv_lora": False}, ["mla_scale_kv_lora false"]),
    ("longcat-flash", {"router_bias": True}, ["router_bias true"]),
    ("longcat-flash", {"num_layers": 300}, ["num_layers", "256"]),
    ("kolibri-1", {"attention_bias": True}, ["attention_bias true"]),
    ("kolibri-1", {"num_experts_per_tok": 13}, ["num_experts_per_tok", "12"]),
    ("muse-glimmer", {"attention_bias": True}, ["attention_bias true"]),
    ("seed-oss", {"model_type": "phi", "qk_layernorm": True}, ["qk_layernorm true"]),
    ("seed-oss", {"model_type": "phi", "tie_word_embeddings": True}, ["tie_word_embeddings true"]),
    ("seed-oss", {"model_type": "nanochat", "rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["RoPE", "dynamic"]),
    ("olmo-hybrid", {"hidden_act": "gelu"}, ["hidden_act"]),
    ("olmo-3", {"model_type": "olmo", "clip_qkv": 8.0}, ["clip_qkv"]),
    ("granite-swa", {"layer_rope_theta": [0, 50000.0, 10000.0, 50000.0]}, ["layer_rope_theta", "several"]),
    ("granite-swa", {"layer_rope_theta": [0, 50000.0]}, ["layer_rope_theta", "fewer"]),
    ("granite-swa", {"layer_rope_theta": [0, "a", 0, 0]}, ["layer_rope_theta", "numbers"]),
    ("hunyuan-dense", {"use_qk_norm": False}, ["use_qk_norm false"]),
    ("mistral-small-4", {"n_group": 2}, ["n_group"]),
    ("ministral-3", {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
     ["original_max_position_embeddings"]),
])
def test_what_is_not_supported_is_refused_by_name(source, values, named, tmp_path):
    done = run(changed(tmp_path / "model", source, values))
    assert done.returncode == 1, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert all(word in lines[0] for word in named), lines[0]


def test_a_head_with_fewer_ids_than_the_embedding_must_be_stored(tmp_path):
    c = Checkpoint(tmp_path / "model", os.path.join(FAMILIES, "apertus-1.5"))
    del c.header["lm_head.weight"]
    c.write()
    c.config["tie_word_embeddings"] = True
    c.write_config()
    done = run(c.folder)
    assert done.returncode == 1 and "64 more rows" in done.stderr, done.stderr
