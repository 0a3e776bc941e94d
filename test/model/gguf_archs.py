# SPDX-License-Identifier: Apache-2.0
"""Writes golden folders as llama.cpp's converter would write them, for architectures whose files differ from their folders in little
but names: a row of FAMILIES for each."""
import json
import os
import re
import statistics

import numpy

import gguf_files
from gguf_files import BOOL, F32, I32, STRING, U32

SIGMOID = 2


def n_kinds(config, full):
    """The number of key/value heads of each layer: 0 in those with a state."""
    return [config.get("n_kv", 1) if i in full else 0 for i in range(config["num_hidden_layers"])]


def window_keys(config):
    kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
    return {"attention.sliding_window": (U32, config["sliding_window"]), "attention.sliding_window_pattern": ([BOOL], kinds)}


def expert_keys(config, count="n_routed_experts", shared="n_shared_experts"):
    """DeepSeek's names."""
    return {"expert_count": (U32, config[count]), "expert_shared_count": (U32, config[shared]),
            "expert_feed_forward_length": (U32, config["moe_intermediate_size"]), "expert_gating_func": (U32, SIGMOID),
            "expert_weights_scale": (F32, config["routed_scaling_factor"]), "expert_weights_norm": (BOOL, config["norm_topk_prob"]),
            "expert_group_count": (U32, config["n_group"]), "expert_group_used_count": (U32, config["topk_group"]),
            "leading_dense_block_count": (U32, config["first_k_dense_replace"])}


def mla_keys(config):
    """Keys are those of all heads: the compressed ones."""
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    keys = {"attention.kv_lora_rank": (U32, rank), "attention.q_lora_rank": (U32, config.get("q_lora_rank")),
            "attention.key_length": (U32, rank + rope), "attention.value_length": (U32, rank),
            "attention.key_length_mla": (U32, config["qk_nope_head_dim"] + rope), "attention.head_count_kv": (U32, 1),
            "attention.value_length_mla": (U32, config["v_head_dim"]), "rope.dimension_count": (U32, rope)}
    scale = ropes(config).get("mscale_all_dim")
    return {**keys, "rope.scaling.yarn_log_multiplier": (F32, 0.1 * scale if scale else None)}


def ropes(config):
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return rope.get("full_attention", rope)


def alpha_keys(config):
    """Hunyuan's scaling is part of the base."""
    size = config["head_dim"]
    base = config["rope_theta"] * ropes(config)["alpha"] ** (size / (size - 2))
    return {"rope.freq_base": (F32, base), "rope.scaling.type": (STRING, "none"), "rope.scaling.factor": (F32, 1.0),
            "rope.scaling.original_context_length": (U32, 1 << 18)}


def keys_kimi_linear(config):
    linear = config["linear_attn_config"]
    config.update(n_group=config["num_expert_group"], norm_topk_prob=True)
    keys = {**mla_keys(config), **expert_keys(config, "num_experts", "num_shared_experts")}
    keys["expert_used_count"] = (U32, config["num_experts_per_token"])
    return {**keys, "attention.head_count_kv": ([I32], n_kinds(config, [i - 1 for i in linear["full_attn_layers"]])),
            "attention.value_length": (U32, config["head_dim"]), "kda.head_dim": (U32, linear["head_dim"]),
            "ssm.conv_kernel": (U32, linear["short_conv_kernel_size"]), "context_length": (U32, config["model_max_length"]),
            "expert_weights_norm": (BOOL, None)}


def keys_bailing(config):
    every, layers = config["layer_group_size"], config["num_hidden_layers"]
    keys = {**mla_keys(config), **expert_keys(config, "num_experts", "num_shared_experts")}
    return {**keys, "attention.head_count_kv": ([I32], n_kinds(config, range(every - 1, layers, every))),
            "attention.value_length": (U32, config["head_dim"]), "kda.head_dim": (U32, config["head_dim"]),
            "kda.safe_gate": (BOOL, config["kda_safe_gate"]), "kda.gate_lower_bound": (F32, config["kda_lower_bound"]),
            "ssm.conv_kernel": (U32, config["short_conv_kernel_size"]),
            "expert_shared_feed_forward_length": (U32, config["moe_intermediate_size"] * config["num_shared_experts"])}


def keys_ernie_moe(config):
    return {"expert_count": (U32, config["moe_num_experts"]), "expert_used_count": (U32, config["moe_k"]),
            "interleave_moe_layer_step": (U32, config["moe_layer_interval"]),
            "leading_dense_block_count": (U32, config["moe_layer_start_index"]),
            "expert_feed_forward_length": (U32, config["moe_intermediate_size"]),
            "expert_shared_count": (U32, config["moe_num_shared_experts"]),
            "expert_shared_feed_forward_length": (U32, config["moe_intermediate_size"] * config["moe_num_shared_experts"])}


def keys_hy_v3(config):
    return {"expert_feed_forward_length": (U32, config["moe_intermediate_size"]),
            "expert_shared_feed_forward_length": (U32, config["moe_intermediate_size"] * config["num_shared_experts"]),
            "expert_weights_norm": (BOOL, True), "expert_weights_scale": (F32, config["router_scaling_factor"]),
            "expert_gating_func": (U32, SIGMOID)}


def keys_hunyuan_moe(config):
    return {"expert_used_count": (U32, config["moe_topk"][0]), "expert_shared_count": (U32, config["num_shared_expert"][0]),
            "expert_feed_forward_length": (U32, config["moe_intermediate_size"][0]),
            "expert_shared_feed_forward_length": (U32, config["intermediate_size"]), **alpha_keys(config)}


def keys_mistral4(config):
    """Converted from Mistral's own files, whose queries are scaled by position."""
    rope = ropes(config)
    return {**mla_keys(config), **expert_keys(config), "expert_gating_func": (U32, 1),
            "attention.temperature_scale": (F32, rope["llama_4_scaling_beta"]),
            "attention.temperature_length": (U32, rope["original_max_position_embeddings"])}


def keys_llama4(config):
    return {"feed_forward_length": (U32, config["intermediate_size_mlp"]),
            "expert_feed_forward_length": (U32, config["intermediate_size"]),
            "interleave_moe_layer_step": (U32, config["interleave_moe_layer_step"])}


def keys_ministral(config):
    rope = ropes(config)
    if config["model_type"] == "mistral":
        return {}
    return {"rope.scaling.yarn_log_multiplier": (F32, rope["mscale_all_dim"]),
            "attention.temperature_scale": (F32, rope["llama_4_scaling_beta"])}


def keys_cohere2(config):
    return {"attention.layer_norm_epsilon": (F32, config["layer_norm_eps"]), "attention.layer_norm_rms_epsilon": (F32, None),
            "logit_scale": (F32, config["logit_scale"]), "attention.sliding_window": (U32, config["sliding_window"]),
            "rope.scaling.type": (STRING, "none")}


def keys_exaone_moe(config):
    shared = config["moe_intermediate_size"] * config["num_shared_experts"]
    return {**expert_keys(config, "num_experts", "num_shared_experts"), **window_keys(config), "nextn_predict_layers": (U32, 0),
            "expert_shared_feed_forward_length": (U32, shared), "rope.scaling.type": (STRING, "none")}


def keys_minimax(config):
    return {"expert_feed_forward_length": (U32, config["intermediate_size"]), "expert_gating_func": (U32, SIGMOID),
            "rope.dimension_count": (U32, config["rotary_dim"])}


def draft_keys(config):
    n = config["num_nextn_predict_layers"]
    return {"block_count": (U32, config["num_hidden_layers"] + n), "nextn_predict_layers": (U32, n)}


def keys_glm4_moe(config):
    half = int(config["head_dim"] * config["partial_rotary_factor"])
    return {**expert_keys(config), "rope.dimension_count": (U32, half), **draft_keys(config)}


def keys_glm4_lite(config):
    """The converter leaves out how the router scores experts, unless the config says it."""
    return {**mla_keys(config), **expert_keys(config), "expert_gating_func": (U32, None), **draft_keys(config)}


def keys_glm(config):
    return {"rope.dimension_count": (U32, int(config["head_dim"] * config["partial_rotary_factor"]))}


def keys_deepseek(config):
    return {**mla_keys(config), **expert_keys(config)}


def keys_mimo(config):
    """The key of the window counts the row itself, which the folder's does not."""
    windows = config["hybrid_layer_pattern"]
    kv = [config["swa_num_key_value_heads" if window else "num_key_value_heads"] for window in windows]
    return {"attention.head_count_kv": ([I32], kv), "attention.value_length": (U32, config["v_head_dim"]),
            "attention.sliding_window": (U32, config["sliding_window_size"] + 1), "attention.value_scale": (F32, config["attention_value_scale"]),
            "attention.sliding_window_pattern": ([I32], windows), "attention.layer_norm_rms_epsilon": (F32, config["layernorm_epsilon"]),
            "expert_count": (U32, config["n_routed_experts"]), "expert_feed_forward_length": (U32, config["moe_intermediate_size"]),
            "expert_group_count": (U32, config["n_group"]), "expert_group_used_count": (U32, config["topk_group"]),
            "expert_gating_func": (U32, SIGMOID), "rope.freq_base_swa": (F32, config["swa_rope_theta"]),
            "rope.dimension_count": (U32, int(config["head_dim"] * config["partial_rotary_factor"]))}


def keys_step(config):
    """Lists go on for the layers that draft."""
    layers, other = config["num_hidden_layers"] + config["num_nextn_predict_layers"], config["attention_other_setting"]
    windows = [kind == "sliding_attention" for kind in config["layer_types"]]
    heads = [other["num_attention_heads"] if window else config["num_attention_heads"] for window in windows]
    limits = {"exp": config["swiglu_limits"], "shexp": config["swiglu_limits_shared"]}
    return {**{"swiglu_clamp_" + of: ([F32], [v or 0.0 for v in values]) for of, values in limits.items()}, **draft_keys(config),
            "attention.head_count": ([I32], heads), "attention.head_count_kv": ([I32], [config["num_attention_groups"]] * layers),
            "attention.sliding_window": (U32, config["sliding_window"]), "attention.sliding_window_pattern": ([BOOL], windows),
            "expert_count": (U32, config["moe_num_experts"]), "expert_used_count": (U32, config["moe_top_k"]),
            "expert_feed_forward_length": (U32, config["moe_intermediate_size"]),
            "expert_shared_feed_forward_length": (U32, config["share_expert_dims"]), "moe_every_n_layers": (U32, 1),
            "expert_weights_scale": (F32, config["moe_router_scaling_factor"]), "expert_weights_norm": (BOOL, True),
            "leading_dense_block_count": (U32, 1), "rope.freq_base": (F32, config["rope_theta"][0]),
            "rope.freq_base_swa": (F32, config["rope_theta"][1])}


def keys_laguna(config):
    ropes_of = config["rope_parameters"]
    rotated = {kind: int(config["head_dim"] * rope["partial_rotary_factor"]) for kind, rope in ropes_of.items()}
    return {"attention.head_count": ([I32], config["num_attention_heads_per_layer"]), **window_keys(config),
            "expert_feed_forward_length": (U32, config["moe_intermediate_size"]), "expert_weights_norm": (BOOL, True),
            "expert_shared_feed_forward_length": (U32, config["shared_expert_intermediate_size"]), "expert_gating_func": (U32, SIGMOID),
            "expert_weights_scale": (F32, config["moe_routed_scaling_factor"]), "leading_dense_block_count": (U32, 1),
            "rope.freq_base_swa": (F32, ropes_of["sliding_attention"]["rope_theta"]),
            "rope.dimension_count": (U32, rotated["full_attention"]), "rope.dimension_count_swa": (U32, rotated["sliding_attention"])}


def keys_minicpm3(config):
    size = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    return {"attention.q_lora_rank": (U32, config["q_lora_rank"]), "attention.kv_lora_rank": (U32, config["kv_lora_rank"]),
            "attention.key_length": (U32, size), "attention.value_length": (U32, None), "rope.freq_base": (F32, None),
            "rope.dimension_count": (U32, config["qk_rope_head_dim"])}


def keys_cohere2_moe(config):
    shared = config["intermediate_size"] * config["num_shared_experts"]
    return {**keys_layer_norm(config), **window_keys(config), "feed_forward_length": (U32, config["prefix_dense_intermediate_size"]),
            "expert_feed_forward_length": (U32, config["intermediate_size"]), "expert_gating_func": (U32, SIGMOID),
            "expert_shared_count": (U32, config["num_shared_experts"]), "expert_shared_feed_forward_length": (U32, shared),
            "expert_weights_norm": (BOOL, config["norm_topk_prob"]), "rope.scaling.type": (STRING, "none"),
            "leading_dense_block_count": (U32, config["mlp_layer_types"].count("dense"))}


def keys_granite_swa(config):
    """The base of the layers that have one; the converter leaves both out."""
    bases = config["layer_rope_theta"]
    return {**keys_granite(config), **window_keys(config), "rope.freq_base": (F32, max(bases)),
            "attention.rope_pattern": ([BOOL], [base > 0 for base in bases])}


def keys_glimmer(config):
    return {"logit_scale": (F32, config["output_multiplier"]), "final_logit_softcapping": (F32, config["final_logit_softcapping"]),
            **window_keys(config)}


def keys_gemma3n(config):
    """The number of standard deviations that leaves a share of a normal distribution below."""
    normal = statistics.NormalDist()
    scales = [normal.inv_cdf(share) if share else -numpy.inf for share in config["activation_sparsity_pattern"]]
    return {"altup.active_idx": (U32, config["altup_active_idx"]), "altup.num_inputs": (U32, config["altup_num_inputs"]),
            "embedding_length_per_layer_input": (U32, config["hidden_size_per_layer_input"]),
            "attention.shared_kv_layers": (U32, config["num_kv_shared_layers"]), **window_keys(config),
            "activation_sparsity_scale": ([F32], scales), "feed_forward_length": ([I32], config["intermediate_size"]),
            "final_logit_softcapping": (F32, config["final_logit_softcapping"])}


def keys_mellum(config):
    return {"expert_feed_forward_length": (U32, config["moe_intermediate_size"]), **window_keys(config),
            "rope.freq_base_swa": (F32, config["rope_parameters"]["sliding_attention"]["rope_theta"])}


def keys_sparse(config):
    types = [kind == "full" for kind in config.get("indexer_types", ())]
    return {**mla_keys(config), **expert_keys(config), **draft_keys(config), "attention.indexer.head_count": (U32, config["index_n_heads"]),
            "attention.indexer.key_length": (U32, config["index_head_dim"]), "attention.indexer.top_k": (U32, config["index_topk"]),
            "attention.indexer.types": ([BOOL], types or None)}


def keys_afmoe(config):
    return {"expert_shared_count": (U32, config["num_shared_experts"]), "expert_weights_norm": (BOOL, True),
            "expert_feed_forward_length": (U32, config["moe_intermediate_size"]),
            "leading_dense_block_count": (U32, config["num_dense_layers"]), "expert_gating_func": (U32, SIGMOID),
            "expert_weights_scale": (F32, config["route_scale"]), "attention.sliding_window": (U32, config["sliding_window"])}


def keys_dots1(config):
    return {**expert_keys(config), "expert_count": (U32, config["n_routed_experts"])}


def keys_layer_norm(config):
    return {"attention.layer_norm_epsilon": (F32, config["layer_norm_eps"]), "attention.layer_norm_rms_epsilon": (F32, None),
            "logit_scale": (F32, config.get("logit_scale"))}


def keys_nemotron(config):
    return {"attention.layer_norm_epsilon": (F32, config["norm_eps"]), "rope.scaling.type": (STRING, "none"),
            "rope.dimension_count": (U32, int(config["partial_rotary_factor"] * config["head_dim"]))}


def keys_olmo(config):
    return {"attention.layer_norm_epsilon": (F32, 1e-5), "attention.layer_norm_rms_epsilon": (F32, None)}


def keys_phi(config):
    """No key for the base of positions."""
    size = config["hidden_size"] // config["num_attention_heads"]
    return {**keys_layer_norm(config), "attention.key_length": (U32, None), "attention.value_length": (U32, None),
            "rope.freq_base": (F32, None), "rope.dimension_count": (U32, int(config["partial_rotary_factor"] * size))}


def keys_classic(config):
    """Which layers share keys is not read from GPT-2's files; Falcon's are all of its newer architecture."""
    size = config["hidden_size"] // config["num_attention_heads"]
    share = config.get("rope_parameters", {}).get("partial_rotary_factor")
    return {"attention.layer_norm_epsilon": (F32, config.get("layer_norm_epsilon") or config["layer_norm_eps"]),
            "attention.layer_norm_rms_epsilon": (F32, None), "attention.key_length": (U32, None),
            "attention.value_length": (U32, None), "vocab_size": (U32, None),
            "attention.head_count_kv": (U32, config.get("num_kv_heads")),
            "rope.freq_base": (F32, None), "rope.dimension_count": (U32, int(share * size) if share else None),
            "use_parallel_residual": (BOOL, config.get("use_parallel_residual"))}


def by_kind(x, config):
    """The rows of q, k and v, which a folder has by key head."""
    heads, groups = config["num_attention_heads"], config.get("num_kv_heads") or config["num_attention_heads"]
    x = x.reshape(groups, heads // groups + 2, config["hidden_size"] // heads, *x.shape[1:])
    parts = x[:, :-2], x[:, -2:-1], x[:, -1:]
    return numpy.concatenate([part.reshape(-1, *x.shape[3:]) for part in parts])


def keys_granite(config):
    return {"attention.scale": (F32, config["attention_multiplier"]), "embedding_scale": (F32, config["embedding_multiplier"]),
            "residual_scale": (F32, config["residual_multiplier"]), "logit_scale": (F32, config["logits_scaling"]),
            "expert_shared_feed_forward_length": (U32, config.get("shared_intermediate_size"))}


def nothing(config):
    return {}


# model_type: (architecture, its keys, whether the rows of q and k are permuted)
FAMILIES = {
    "glm4_moe": ("glm4moe", keys_glm4_moe, False), "llama4_text": ("llama4", keys_llama4, False),
    "ministral3": ("mistral3", keys_ministral, True), "mistral": ("mistral3", keys_ministral, True),
    "minimax_m2": ("minimax-m2", keys_minimax, False), "kimi_k2": ("deepseek2", keys_deepseek, False),
    "glm4_moe_lite": ("deepseek2", keys_glm4_lite, False), "mistral4": ("mistral4", keys_mistral4, False),
    "seed_oss": ("seed_oss", nothing, False), "ernie4_5": ("ernie4_5", nothing, False),
    "ernie4_5_moe": ("ernie4_5-moe", keys_ernie_moe, False), "hunyuan_v1_dense": ("hunyuan-dense", alpha_keys, False),
    "hunyuan_v1_moe": ("hunyuan-moe", keys_hunyuan_moe, False), "exaone4": ("exaone4", window_keys, False),
    "exaone": ("exaone", nothing, False),
    "exaone_moe": ("exaone-moe", keys_exaone_moe, False), "cohere2": ("cohere2", keys_cohere2, False),
    "olmo3": ("olmo2", window_keys, False), "kimi_linear": ("kimi-linear", keys_kimi_linear, False),
    "mimo_v2_flash": ("mimo2", keys_mimo, False), "step3p7": ("step35", keys_step, False), "laguna": ("laguna", keys_laguna, False),
    "apertus": ("apertus", nothing, False), "minicpm3": ("minicpm3", keys_minicpm3, False),
    "cohere2_moe": ("cohere2moe", keys_cohere2_moe, False), "granite_swa": ("granite_swa", keys_granite_swa, True),
    "muse_glimmer_text": ("muse-glimmer", keys_glimmer, True), "mellum": ("mellum", keys_mellum, False),
    "gemma3n_text": ("gemma3n", keys_gemma3n, False),
    "deepseek_v32": ("deepseek32", keys_sparse, False), "glm_moe_dsa": ("glm-dsa", keys_sparse, False),
    "afmoe": ("afmoe", keys_afmoe, False), "cohere": ("command-r", keys_layer_norm, False),
    "nemotron": ("nemotron", keys_nemotron, False), "arcee": ("arcee", nothing, True), "dots1": ("dots1", keys_dots1, False),
    "olmo": ("olmo", keys_olmo, True), "olmoe": ("olmoe", nothing, False), "jais2": ("jais2", keys_layer_norm, False),
    "phi": ("phi2", keys_phi, False), "granitemoe": ("granitemoe", keys_granite, True),
    "granitemoeshared": ("granitemoe", keys_granite, True), "gpt2": ("gpt2", keys_classic, False),
    "gpt_neox": ("gptneox", keys_classic, False), "falcon": ("falcon", keys_classic, False),
    "gpt_bigcode": ("starcoder", keys_classic, False),
    "bailing_hybrid": ("bailingmoe3", keys_bailing, False), "hy_v3": ("hy_v3", keys_hy_v3, False), "glm": ("chatglm", keys_glm, False)}
NORMED_AFTER = ("exaone4", "olmo3")  # their norm of that name follows attention
SANDWICH = ("afmoe", "gemma3n_text", "muse_glimmer_text")  # the same, and their MLPs have norms on both sides
LESS_ONE = ("nemotron", "step3p7")  # folders store the weights of norms minus 1
NORM_IS_POST = ("glm4_moe", "seed_oss")  # the files have another name for the norm before the MLP

# Names of tensors that are not in gguf_files.PARTS.
PARTS = {
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm", "mlp.gate.wg": "ffn_gate_inp",
    "mlp.router.gate": "ffn_gate_inp", "feed_forward.router": "ffn_gate_inp",
    "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.gate.expert_bias": "exp_probs_b.bias",
    "mlp.e_score_correction_bias": "exp_probs_b.bias", "mlp.expert_bias": "exp_probs_b", "word_embeddings": "token_embd",
    "self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias", "self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm",
    "self_attn.f_a_proj": "ssm_f_a", "self_attn.f_b_proj": "ssm_f_b", "self_attn.g_a_proj": "ssm_g_a", "self_attn.g_b_proj": "ssm_g_b",
    "self_attn.f_proj": "ssm_f_a", "self_attn.dense": "attn_output", "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm",
    "self_attn.g_proj": "attn_gate", "mlp.experts.e_score_correction_bias": "exp_probs_b.bias", "moe.router_bias": "exp_probs_b.bias",
    "self_attn.attention_sink_bias": "attn_sinks.weight", "moe.gate": "ffn_gate_inp", "moe.gate_proj": "ffn_gate_exps",
    "moe.up_proj": "ffn_up_exps", "moe.down_proj": "ffn_down_exps", "share_expert.gate_proj": "ffn_gate_shexp",
    "share_expert.up_proj": "ffn_up_shexp", "share_expert.down_proj": "ffn_down_shexp",
    "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm", "self_attn.sinks": "attn_sinks.weight",
    "self_attn.indexer.wq_b": "indexer.attn_q_b", "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm", "self_attn.indexer.weights_proj": "indexer.proj",
    "pre_mlp_layernorm": "ffn_norm", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "block_sparse_moe.router.layer": "ffn_gate_inp",
    "shared_mlp.output_linear": "ffn_down_shexp", "self_attn.gate_proj": "attn_gate",
    "hnorm": "nextn.hnorm", "embed_tokens": "token_embd", "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm"}
PARTS.update({
    "attn.self_attn.q_proj": "attn_q", "attn.self_attn.k_proj": "attn_k", "attn.self_attn.v_proj": "attn_v",
    "attn.self_attn.out_proj": "attn_output", "mlp.c_fc_0": "ffn_gate", "mlp.c_fc_1": "ffn_up",
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output", "ln_attn": "attn_norm_2", "ln_mlp": "attn_norm", "embed_in": "token_embd", "embed_out": "output",
    "final_layer_norm": "output_norm", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    "self_attn.query_key_value": "attn_qkv", "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
    "altup.modality_router": "altup_router", "altup.router_norm": "altup_router_norm",
    "altup.prediction_coefs": "altup_predict_coef", "altup.correction_coefs": "altup_correct_coef",
    "altup.correct_output_scale": "altup_correct_scale.weight", "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm"})
for each in ("q", "k", "v"):
    PARTS["self_attn.%s_conv1d" % each] = "ssm_conv1d_" + each
for half in ("gate", "up", "down"):
    for shared in ("mlp.shared_mlp", "feed_forward.shared_expert", "block_sparse_moe.shared_experts"):
        PARTS["%s.%s_proj" % (shared, half)] = "ffn_%s_shexp" % half
    for name in ("mlp", "feed_forward"):
        PARTS["%s.experts.%s_proj" % (name, half)] = "ffn_%s_exps" % half


def renamed(name, config):
    base, layer = re.sub(r"^(model|transformer|gpt_neox)\.(h\.(?=\d))?", lambda m: "layers." if m[2] else "", name), ""
    if base.startswith("layers."):
        _, number, base = base.split(".", 2)
        layer = "blk.%s." % number
    stem, _, suffix = base.rpartition(".")
    if suffix not in ("weight", "bias"):
        return layer + PARTS[base] if base in PARTS else layer + gguf_files.PARTS[base] + ".bias"
    part = PARTS.get(stem) or gguf_files.PARTS[stem]
    if layer and part == "token_embd":
        part = "nextn.embed_tokens"
    family = config["model_type"]
    if stem == "post_attention_layernorm" and family in (*NORMED_AFTER, *SANDWICH, *NORM_IS_POST):
        part = "post_attention_norm"
    return layer + part + "." + suffix


def stacked(tensors):
    """One tensor for the experts of each layer."""
    stacks = {}
    for name in list(tensors):
        expert = re.fullmatch(r"model\.layers\.(\d+)\..*\.experts\.(\d+)\.(\w+)\.weight", name)
        if expert:
            layer, number, part = expert.groups()
            stack = stacks.setdefault("blk.%s.ffn_%s_exps.weight" % (layer, gguf_files.EXPERT[part]), {})
            stack[int(number)] = tensors.pop(name)
        stream = re.fullmatch(r"model\.altup_(un)?(embed_)?projections\.(\d+)\.weight", name)
        if stream:
            stack = stacks.setdefault("altup_%sproj.weight" % ("unembd_" if stream[1] else ""), {})
            stack[int(stream[3])] = tensors.pop(name)
    return {name: numpy.stack([experts[i] for i in range(len(experts))]) for name, experts in stacks.items()}


def converted(name, x, config):
    """(name, array) of the tensors that one becomes."""
    family, heads = config["model_type"], config["num_attention_heads"]
    part = name.split(".", 3)[-1]
    if part.endswith("kv_b_proj.weight"):
        x = x.reshape(heads, -1, x.shape[-1])
        nope, layer = config["qk_nope_head_dim"], name.split(".")[2]
        yield "blk.%s.attn_k_b.weight" % layer, x[:, :nope].swapaxes(1, 2)
        yield "blk.%s.attn_v_b.weight" % layer, x[:, nope:]
    elif part.endswith("experts.gate_up_proj"):
        layer = name.split(".")[2]
        if family == "mistral4":
            yield "blk.%s.ffn_gate_up_exps.weight" % layer, x
        else:
            for half, y in zip(("gate", "up"), numpy.split(x.swapaxes(1, 2), 2, axis=1)):
                yield "blk.%s.ffn_%s_exps.weight" % (layer, half), y
    elif part.endswith("experts.down_proj"):
        yield "blk.%s.ffn_down_exps.weight" % name.split(".")[2], x if family == "mistral4" else x.swapaxes(1, 2)
    elif family == "bailing_hybrid" and part.endswith("g_proj.weight"):
        full = (int(name.split(".")[2]) + 1) % config["layer_group_size"] == 0
        yield "blk.%s.%s.weight" % (name.split(".")[2], "attn_gate" if full else "ssm_g_a"), x
    elif part.endswith("input_linear.weight"):
        of = "shexp" if "shared" in part else "exps"
        for half, y in zip(("gate", "up"), numpy.split(x, 2, axis=-2)):
            yield "blk.%s.ffn_%s_%s.weight" % (name.split(".")[2], half, of), y
    elif part == "block_sparse_moe.output_linear.weight":
        yield "blk.%s.ffn_down_exps.weight" % name.split(".")[2], x
    elif family in LESS_ONE and name.endswith("norm.weight") or family == "muse_glimmer_text" and name.endswith("layernorm.weight"):
        yield renamed(name, config), x + 1
    elif "conv1d" in part:
        yield renamed(name, config), x.reshape(1, x.shape[0], 1, x.shape[-1])
    elif "query_key_value" in part:
        yield renamed(name, config), by_kind(x, config)
    elif family == "gpt2" and re.search(r"\.c_\w+\.weight$", part):
        yield renamed(name, config), x.T
    elif part.endswith("A_log"):
        yield renamed(name, config), numpy.exp(x).reshape(-1, 1) if family == "bailing_hybrid" else -numpy.exp(x)
    else:
        yield renamed(name, config), x


def xielu(folder):
    """The parameters of Apertus's activations, in the order of layers."""
    found = {}
    for name, x in gguf_files.safetensors(folder).items():
        layer, _, part = name.partition(".mlp.act_fn.")
        if part:
            found.setdefault(part, {})[int(layer.rsplit(".", 1)[1])] = float(x.reshape(()))
    return {part: [values[i] for i in range(len(values))] for part, values in found.items()}


def tensors_of(folder, config):
    _, _, permuted = FAMILIES[config["model_type"]]
    found = {n.replace("language_model.", "").replace(".attention.", ".self_attn."): x for n, x in gguf_files.safetensors(folder).items()
             if ".act_fn." not in n and not n.startswith((*gguf_files.TOWERS, "vision_", "multi_modal", "mm_projector", "model.mm_", "model.mtp_", "vit_"))}
    if config.get("tie_word_embeddings"):
        found.pop("lm_head.weight", None)
    yield from stacked(found).items()
    for name, x in found.items():
        if permuted and ("q_proj" in name or "k_proj" in name):
            x = gguf_files.permute(x, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        yield from converted(name, x, config)


def common_keys(config):
    heads, rope = config["num_attention_heads"], ropes(config)
    size = config.get("head_dim") or config["hidden_size"] // heads
    experts = config.get("num_local_experts") or config.get("num_experts")
    keys = {"context_length": (U32, config.get("max_position_embeddings")), "embedding_length": (U32, config["hidden_size"]),
            "block_count": (U32, config["num_hidden_layers"]),
            "feed_forward_length": (U32, config["intermediate_size"]), "attention.head_count": (U32, heads),
            "attention.head_count_kv": (U32, config.get("num_key_value_heads") or heads),
            "attention.key_length": (U32, size), "attention.value_length": (U32, size), "vocab_size": (U32, config["vocab_size"]),
            "attention.layer_norm_rms_epsilon": (F32, config.get("rms_norm_eps")), "expert_count": (U32, experts),
            "expert_used_count": (U32, config.get("num_experts_per_tok")),
            "rope.freq_base": (F32, rope.get("rope_theta") or config.get("rope_theta"))}
    if (rope.get("rope_type") or rope.get("type")) == "yarn":
        keys.update({"rope.scaling.type": (STRING, "yarn"), "rope.scaling.factor": (F32, rope["factor"]),
                     "rope.scaling.original_context_length": (U32, rope["original_max_position_embeddings"]),
                     "rope.scaling.yarn_beta_fast": (F32, rope.get("beta_fast")),
                     "rope.scaling.yarn_beta_slow": (F32, rope.get("beta_slow")),
                     "rope.scaling.yarn_attn_factor": (F32, rope.get("attention_factor"))})
    return keys


def divisors(rope, size, theta):
    """Those of Llama 3's scaling; with equal factors there is nothing between its two halves."""
    if rope["low_freq_factor"] == rope["high_freq_factor"]:
        limit = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        return [rope["factor"] if 2 * numpy.pi * theta ** (i / size) > limit else 1.0 for i in range(0, size, 2)]
    return gguf_files.llama3_divisors(rope, size, theta)


def read_config(folder):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    for name, other in OTHER_KEYS.items():
        if name in config:
            config[other] = config[name]
    return {**config, **config.get("text_config", {})}


OTHER_KEYS = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
              "n_positions": "max_position_embeddings", "ffn_hidden_size": "intermediate_size", "num_layers": "num_hidden_layers",
              "layer_norm_epsilon": "rms_norm_eps"}


def convert(folder, path, type_of=lambda name, x: "F32", more=()):
    """type_of: the type in which a matrix is stored; vectors are F32. more: keys in place of the folder's."""
    config, w = read_config(folder), gguf_files.Writer()
    arch, keys, _ = FAMILIES[config["model_type"]]
    w.key("general.architecture", STRING, arch)
    for name, (kind, v) in {**common_keys(config), **keys(config), **dict(more)}.items():
        if v is not None:
            w.key(arch + "." + name, kind, v)
    gguf_files.tokenizer_keys(w, folder)
    rope = ropes(config)
    if rope.get("rope_type") == "llama3":
        size, theta = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"], config.get("rope_theta")
        if isinstance(theta, list):  # half of each head is rotated
            found = [*divisors(rope, size // 2, theta[0]), *[1.0] * (size // 4)]
        else:
            found = divisors(rope, size, rope.get("rope_theta") or theta)
        w.tensor("rope_freqs.weight", "F32", (size // 2,), numpy.array(found, "<f4").tobytes())
    elif rope.get("type", rope.get("rope_type")) == "longrope":
        for of in ("short", "long"):
            factors = numpy.array(rope[of + "_factor"], "<f4")
            w.tensor("rope_factors_%s.weight" % of, "F32", factors.shape, factors.tobytes())
    for i in range(config["num_hidden_layers"] if arch == "muse-glimmer" else 0):
        for part, scale in (("q", config["qk_scale_factor"]), ("k", 1.0)):
            x = numpy.full(config["head_dim"], scale, "<f4")
            w.tensor("blk.%d.attn_%s_norm.weight" % (i, part), "F32", x.shape, x.tobytes())
    for part, values in xielu(folder).items():
        w.key("xielu." + part, [F32], values)
    for i, (name, x) in enumerate(tensors_of(folder, config)):
        plain = x.ndim < 2 or re.search(r"ffn_gate_inp|conv1d|ssm_a|bias$|exp_probs", name)
        kind = "F32" if plain else type_of(name, x)
        w.tensor(name, kind, x.shape, gguf_files.encode(x, kind, i))
    return w.write(path)
