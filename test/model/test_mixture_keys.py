# SPDX-License-Identifier: Apache-2.0
"""Keys of config.json in mixtures of experts with attention of their own (AFMoE, Laguna, MiMo-V2-Flash, GLM-4.5V, Command A+,
Sarvam, A.X K1 and others): which may be missing or written differently without changing the answer, and which values are
refused by name."""
import json
import os

import numpy
import pytest

import golden
import heads
from golden import FAMILIES, GOLDEN
from test_checkpoint import Checkpoint, dummy_scores, run, scores
from test_family_keys import GONE, changed

FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize("source, values", [
    ("afmoe", {"layer_types": GONE, "global_attn_every_n_layers": GONE, "num_dense_layers": GONE, "rms_norm_eps": GONE}),
    ("afmoe", {"layer_types": [SLIDING] * 3 + [FULL, SLIDING], "global_attn_every_n_layers": 3}),
    ("laguna", {"gating": GONE, "mlp_layer_types": GONE, "moe_router_logit_softcapping": 0.0, "rms_norm_eps": GONE}),
    ("laguna", {"gating": "per-head"}),
    ("mimo-v2-flash", {"hybrid_layer_pattern": GONE, "moe_layer_freq": GONE, "layernorm_epsilon": GONE, "swa_rope_theta": GONE,
                       "swa_num_key_value_heads": GONE, "attention_value_scale": GONE, "sliding_window": 9}),
    ("mimo-v2-flash", {"sliding_window_size": GONE, "sliding_window": 24}),
    ("mimo-v2-flash", {"rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
        for kind, theta in ((FULL, 5e6), (SLIDING, 1e4))}}),
    ("glm-4.5v", {"first_k_dense_replace": GONE, "n_shared_experts": GONE, "attention_bias": GONE, "rms_norm_eps": GONE}),
    ("command-a-plus", {"layer_types": GONE, "mlp_layer_types": GONE, "first_k_dense_replace": 1, "norm_topk_prob": GONE,
                        "prefix_dense_sliding_window_pattern": GONE, "sliding_window_pattern": GONE, "rms_norm_eps": GONE,
                        "shared_expert_combination_strategy": GONE, "tie_word_embeddings": GONE}),
    ("sarvam-moe", {"num_experts": GONE, "n_routed_experts": 8, "use_qk_norm": GONE, "use_qkv_bias": GONE, "rope_theta": GONE,
                    "routed_scaling_factor": GONE}),
    ("step-3.7", {"moe_layers_enum": [1, 2, 3, 4], "zero_centered": GONE, "use_head_wise_attn_gate": GONE, "rms_norm_eps": GONE}),
    ("step-3.7", {"moe_layers_enum": GONE, "mlp_layer_types": ["dense"] + ["sparse"] * 4}),
    ("step-3.7", {"attention_other_setting": GONE, "num_sliding_attention_heads": 8}),
    ("step-3.7", {"attention_other_setting": GONE, "per_layer_config": {str(i): {"num_attention_heads": 8} for i in (1, 2, 4)}}),
    ("step-3.7", {"rope_theta": GONE, "partial_rotary_factors": GONE, "rope_scaling": GONE, "rope_parameters": {
        FULL: {"rope_type": "llama3", "rope_theta": 5e5, "partial_rotary_factor": 0.5, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}}),
    ("a.x-k1", {"first_k_dense_replace": GONE, "mlp_layer_types": ["dense"] + ["sparse"] * 3, "rope_interleave": GONE}),
    ("a.x-k1", {"first_k_dense_replace": GONE, "moe_layer_freq": GONE, "routed_scaling_factor": GONE}),
])
def test_other_spellings_give_the_same_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) == scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values", [
    ("afmoe", {"mup_enabled": False}),
    ("afmoe", {"route_scale": 1.0}),
    ("afmoe", {"layer_types": [SLIDING] * 5}),
    ("laguna", {"moe_routed_scaling_factor": 1.0}),
    ("laguna", {"sliding_window": 25}),
    ("mimo-v2-flash", {"attention_value_scale": None}),
    ("mimo-v2-flash", {"sliding_window_size": 24}),
    ("mimo-v2-flash", {"layernorm_epsilon": 1e-2}),
    ("command-a-plus", {"shared_expert_combination_strategy": "sum"}),
    ("command-a-plus", {"expert_selection_fn": "softmax"}),
    ("command-a-plus", {"norm_topk_prob": False}),
    ("command-a-plus", {"prefix_dense_sliding_window_pattern": 2}),
    ("command-a-plus", {"rms_norm_eps": 1e-5}),
    ("sarvam-moe", {"routed_scaling_factor": 1.0}),
    ("step-3.7", {"swiglu_limits": GONE}),
    ("step-3.7", {"swiglu_limits_shared": GONE}),
    ("step-3.7", {"moe_router_scaling_factor": 1.0}),
    ("step-3.7", {"query_pre_attn_scalar": 24}),
    ("step-3.7", {"rope_theta": 10000.0}),
    ("a.x-k1", {"topk_group": 1}),
])
def test_the_key_changes_the_answer(source, values, tmp_path):
    assert scores(changed(tmp_path / "model", source, values)) != scores(os.path.join(FAMILIES, source))


@pytest.mark.parametrize("source, values, named", [
    ("afmoe", {"global_attn_every_n_layers": 0}, ["global_attn_every_n_layers", "from 1"]),
    ("laguna", {"gating": False}, ["gating", "false"]),
    ("laguna", {"gating": "per-layer"}, ["gating", "per-layer"]),
    ("laguna", {"moe_router_logit_softcapping": 30.0}, ["moe_router_logit_softcapping"]),
    ("laguna", {"moe_apply_router_weight_on_input": True}, ["moe_apply_router_weight_on_input true"]),
    ("laguna", {"num_attention_heads_per_layer": [4, 8]}, ["num_attention_heads_per_layer", "fewer"]),
    ("laguna", {"num_attention_heads_per_layer": [4, 8, 8, 3]}, ["num_attention_heads_per_layer", "3 heads"]),
    ("mimo-v2-flash", {"swa_rope_theta": 20000}, ["swa_rope_theta"]),
    ("mimo-v2-flash", {"swa_head_dim": 64}, ["swa_head_dim"]),
    ("mimo-v2-flash", {"swa_v_head_dim": 64}, ["swa_v_head_dim"]),
    ("mimo-v2-flash", {"swa_num_key_value_heads": 3}, ["4 heads", "3 key/value heads"]),
    ("mimo-v2-flash", {"sliding_window_size": (1 << 31) - 1}, ["sliding_window_size", "from 1 to 1073741824"]),
    ("mimo-v2-flash", {"v_head_dim": 80, "swa_v_head_dim": GONE}, ["v_head_dim", "from 1 to 72"]),
    ("mimo-v2-flash", {"add_full_attention_sink_bias": True}, ["add_full_attention_sink_bias true"]),
    ("mimo-v2-flash", {"hybrid_layer_pattern": [0, 1]}, ["hybrid_layer_pattern", "fewer"]),
    ("mimo-v2-flash", {"attention_value_scale": 0.0}, ["attention_value_scale"]),
    ("command-a-plus", {"expert_selection_fn": "relu"}, ["expert_selection_fn", "relu"]),
    ("command-a-plus", {"shared_expert_combination_strategy": "max"}, ["shared_expert_combination_strategy", "max"]),
    ("a.x-k1", {"moe_layer_freq": [1, 1, 1, 1]}, ["moe_layer_freq"]),
    ("a.x-k1", {"rope_theta": [1e4] * 4}, ["rope_theta", "a number"]),
    ("step-3.7", {"moe_layers_enum": "1,2,x"}, ["moe_layers_enum", "x"]),
    ("step-3.7", {"swiglu_limits": [0.5]}, ["swiglu_limits", "fewer"]),
    ("step-3.7", {"swiglu_limits": [-1.0] * 5}, ["swiglu_limits", "at least 0"]),
    ("step-3.7", {"rope_theta": [5e5, 1e4]}, ["rope_theta", "fewer"]),
    ("step-3.7", {"rope_theta": [5e5, 1e4, 1e4, 1e5, 1e4]}, ["rope_theta", "of one type"]),
    ("step-3.7", {"partial_rotary_factors": [0.5, 1.0, 0.5, 0.5, 1.0]}, ["partial_rotary_factors", "of one type"]),
    ("step-3.7", {"zero_centered": False}, ["zero_centered false"]),
    ("step-3.7", {"use_rope_layers": [1]}, ["use_rope_layers"]),
    ("step-3.7", {"moe_router_activation": "softmax"}, ["moe_router_activation", "softmax"]),
    ("step-3.7", {"attention_other_setting": {"num_attention_heads": 7}}, ["7 heads"]),
    ("step-3.7", {"attention_other_setting": {"head_dim": 32}}, ["attention_other_setting"]),
    ("step-3.7", {"per_layer_config": {"1": {"head_dim": 8}}}, ["per_layer_config", "head_dim"]),
])
def test_what_is_not_supported_is_refused_by_name(source, values, named, tmp_path):
    done = run(changed(tmp_path / "model", source, values))
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in named), done.stderr


@pytest.mark.parametrize("source, values, named", [
    ("laguna", {"num_attention_heads_per_layer": [4, 6, 8, 8]}, ["6 heads", "in layer 1"]),
    ("mimo-v2-flash", {"swa_num_key_value_heads": 2, "num_attention_heads": 6, "swa_num_attention_heads": 6},
     ["6 heads", "in layer 0"]),
    ("afmoe", {"moe_intermediate_size": 26}, ["experts", "ffn 26"]),
])
def test_ranks_that_do_not_divide_a_layer_are_refused(source, values, named, tmp_path):
    done = run(changed(tmp_path / "model", source, values), "--tensor-parallel-size", "4")
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in ["4 ranks", *named]), done.stderr


ROPES = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in ((FULL, 5e5), (SLIDING, 1e4))}
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_shared_experts": 1,
       "first_k_dense_replace": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5}
USUAL = {  # transformers' defaults
    "afmoe": {"head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": 1024, "moe_intermediate_size": 1408, "num_experts": 64,
              "num_experts_per_tok": 6, "num_shared_experts": 2, "num_dense_layers": 1, "global_attn_every_n_layers": 4,
              "route_scale": 1.0, "mup_enabled": False},
    "sarvam_moe": {"num_key_value_heads": 4, "head_dim": 64, "rope_theta": 8e6, "use_qk_norm": True, "n_shared_experts": 1,
                   "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1024,
                   "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "norm_topk_prob": True},
    "granitemoe": {"attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": {"rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False},
    "flex_olmo": {"rope_theta": 5e5, "num_experts": 7, "num_experts_per_tok": 5, "norm_topk_prob": False},
    "mellum": {"num_key_value_heads": 4, "head_dim": 128, "num_experts": 64, "num_experts_per_tok": 8,
               "moe_intermediate_size": 896, "norm_topk_prob": True, "rope_parameters": ROPES},
    "cohere2_moe": {"head_dim": 128, "layer_norm_eps": 1e-5, "sliding_window": 4096, "num_experts": 8, "num_experts_per_tok": 2,
                    "logit_scale": 0.0625, "tie_word_embeddings": True, "expert_selection_fn": "softmax",
                    "sliding_window_pattern": 4},
    "laguna": {"num_key_value_heads": 8, "head_dim": 128, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
               "num_experts": 256, "num_experts_per_tok": 8, "gating": True, "layer_types": [FULL] * 4, "rope_parameters": {
                   FULL: {**ROPES[FULL], "partial_rotary_factor": 0.5}, SLIDING: ROPES[SLIDING]}},
    "mimo_v2_flash": {"num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": 129,
                      "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
                      "attention_value_scale": 0.707, "layer_types": [FULL] + [SLIDING] * 3},
    "sarvam_mla": {**MLA, "n_routed_experts": 128, "n_group": 1, "topk_group": 1},
    "axk1": {**MLA, "n_routed_experts": 192, "q_lora_rank": 1536, "n_group": 8, "topk_group": 4},
}


@pytest.mark.parametrize("family", USUAL)
def test_missing_keys_have_the_classs_defaults(family, tmp_path):
    bare = {"model_type": family, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 384,
            "intermediate_size": 32, "eos_token_id": 2}
    assert dummy_scores(tmp_path / "bare", bare) == dummy_scores(tmp_path / "full", {**bare, **USUAL[family]})


def test_clipped_products_are_refused(tmp_path):
    config = {"model_type": "olmoe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 384,
              "clip_qkv": 8.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run(str(tmp_path), "--load-format", "dummy")
    assert done.returncode == 1 and "clip_qkv" in done.stderr


def test_qwen3_omni_is_its_thinker(tmp_path):
    """The config is nested twice; the parts that speak are passed over."""
    source = os.path.join(GOLDEN, "qwen3-moe")
    c = Checkpoint(tmp_path / "model", source)
    text = {**c.config, "model_type": "qwen3_omni_moe_text"}
    c.config = {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": text, "model_type": "qwen3_omni_moe_thinker"},
                "talker_config": {"text_config": {"hidden_size": 4}}}
    c.write_config()
    c.header = {name if name == "__metadata__" else f"thinker.{name}": of for name, of in c.header.items()}
    c.write()
    assert scores(c.folder) == scores(source)


def e4m3(codes):
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = numpy.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0 ** -9)
    return numpy.where(codes & 0x80, -size, size)


def test_fp8_experts_in_three_tensors_equal_their_values(tmp_path):
    """Step's released files have the gates, ups and downs of all experts apart. The scales are powers of two, so that bf16
    holds the values exactly."""
    source, block, rng = os.path.join(FAMILIES, "step-3.7"), 16, numpy.random.default_rng(3)
    exact, coded = Checkpoint(tmp_path / "exact", source), Checkpoint(tmp_path / "coded", source)

    def put(c, name, dtype, a):
        c.header[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [len(c.data), len(c.data) + a.nbytes]}
        c.data += numpy.ascontiguousarray(a).tobytes()

    for name in [name for name in coded.header if ".moe." in name and "_proj" in name]:
        n, rows, cols = coded.header[name]["shape"]
        codes = rng.integers(0, 0x7f, (n, rows, cols), numpy.uint8) | rng.choice(numpy.array([0, 0x80], numpy.uint8), (n, rows, cols))
        scales = 2.0 ** rng.integers(-12, -9, (n, -(-rows // block), -(-cols // block)))
        each = scales.repeat(block, 1).repeat(block, 2)[:, :rows, :cols]
        put(exact, name, "BF16", heads.as_bf16(e4m3(codes.astype(numpy.int64)) * each))
        put(coded, name, "F8_E4M3", codes)
        put(coded, f"{name}_scale_inv", "F32", scales.astype(numpy.float32))
    coded.config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [block] * 2,
                                           "modules_to_not_convert": ["self_attn", "share_expert", "mlp", "lm_head"]}
    for c in (exact, coded):
        c.write()
        c.write_config()
    want = scores(exact.folder)
    assert want != scores(source) and scores(coded.folder) == want
    assert not golden.EXACT_RANKS or scores(coded.folder, "--tensor-parallel-size", "2", *golden.TWO_THREADS) == want
