// SPDX-License-Identifier: Apache-2.0
/* The allowed values of each key in config.json and generation_config.json. The readers treat a
 * value of the wrong type as absent, so without this check a mistyped key would silently change the
 * model. */
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/model/config.h"

#include <stdio.h>
#include <string.h>

enum kind {
    INTEGER,
    NUMBER,
    FLAG,
    TEXT,
    FLAG_OR_TEXT,
    LIST,
    INTEGERS,
    NUMBERS,
    INTEGER_OR_LIST,
    INTEGER_OR_TEXT,
    NUMBER_OR_LIST,
    LIST_OR_TEXT,
    OBJECT
};

/* Null counts as absent. min and max apply to numbers, including those inside lists. */
struct key {
    const char *name;
    enum kind kind;
    double min, max;
};

/* Chosen: far above any real model's values, and far from overflow. */
#define MOST 1e9
#define LEAST 1e-9

#define SWITCH(name) {name, FLAG, 0, 0}
#define COUNT(name, min) {name, INTEGER, min, INT32_MAX}
#define FACTOR(name, min) {name, NUMBER, min, MOST}
#define ROPE_BASE(name) {name, NUMBER, 1, 1e15}
#define ROPE_SHARE {"partial_rotary_factor", NUMBER, LEAST, 1}
#define ROPE_LENGTH {"original_max_position_embeddings", NUMBER, 1, INT32_MAX}

static const struct key config_keys[] = {
    {"model_type", TEXT, 0, 0},
    {"speculators_model_type", TEXT, 0, 0},
    {"transformer_layer_config", OBJECT, 0, 0},
    {"dtype", TEXT, 0, 0},
    {"torch_dtype", TEXT, 0, 0},
    {"hidden_act", TEXT, 0, 0},
    {"hidden_activation", TEXT, 0, 0},
    {"topk_method", TEXT, 0, 0},
    {"eos_token_id", INTEGER_OR_LIST, INT32_MIN, INT32_MAX},
    {"rms_norm_eps", NUMBER, 0, 1},
    {"layer_norm_eps", NUMBER, 0, 1},
    {"norm_epsilon", NUMBER, 0, 1},
    {"rope_theta", NUMBER_OR_LIST, 1, 1e15},
    {"partial_rotary_factors", NUMBERS, LEAST, 1},
    ROPE_BASE("rope_local_base_freq"),
    ROPE_SHARE,
    ROPE_LENGTH,
    {"rope_scaling", OBJECT, 0, 0},
    {"rope_parameters", OBJECT, 0, 0},
    {"layer_types", LIST, 0, 0},
    {"layer_rope_theta", NUMBERS, 0, 1e15},
    {"mlp_only_layers", INTEGERS, 0, INT32_MAX},
    {"no_rope_layers", INTEGERS, 0, 1},
    COUNT("no_rope_layer_interval", 0),
    COUNT("sliding_window", -1),                               // 0 and -1: no window
    {"sliding_window_pattern", INTEGER_OR_TEXT, 0, INT32_MAX}, // 0: no window
    COUNT("_sliding_window_pattern", 1),
    COUNT("max_window_layers", 0),
    COUNT("decoder_sparse_step", 0),
    {"num_nextn_predict_layers", INTEGER, 0, 64},
    {"mtp_num_hidden_layers", INTEGER, 0, 64},
    COUNT("num_experts", 0),
    COUNT("num_local_experts", 0),
    COUNT("n_routed_experts", 0),
    COUNT("n_shared_experts", 0),
    COUNT("num_experts_per_tok", 0),
    {"moe_intermediate_size", INTEGER_OR_LIST, 0, INT32_MAX},
    {"moe_topk", INTEGER_OR_LIST, 0, INT32_MAX},
    {"num_shared_expert", INTEGER_OR_LIST, 0, INT32_MAX},
    {"mlp_layer_types", LIST, 0, 0},
    COUNT("moe_layer_num_skipped", 0),
    {"num_layers", INTEGER, 1, MAX_LAYERS},
    COUNT("zero_expert_num", 0),
    {"zero_expert_type", TEXT, 0, 0},
    COUNT("expert_ffn_hidden_size", 1),
    SWITCH("mla_scale_q_lora"),
    SWITCH("mla_scale_kv_lora"),
    SWITCH("router_bias"),
    COUNT("num_shared_experts", 0),
    {"moe_num_experts", INTEGER_OR_LIST, 0, INT32_MAX},
    COUNT("moe_num_shared_experts", 0),
    COUNT("moe_k", 0),
    COUNT("moe_layer_interval", 1),
    COUNT("moe_layer_start_index", 0),
    COUNT("moe_layer_end_index", -1),
    FACTOR("moe_norm_min", 0),
    FACTOR("router_scaling_factor", 0),
    COUNT("shared_expert_intermediate_size", 0),
    COUNT("top_k_experts", 0),
    COUNT("intermediate_size_mlp", 1),
    COUNT("interleave_moe_layer_step", 1),
    {"moe_layers", INTEGERS, 0, INT32_MAX},
    COUNT("attention_chunk_size", 1),
    FACTOR("floor_scale", 1),
    FACTOR("attn_scale", -MOST),
    COUNT("global_head_dim", 1),
    COUNT("num_global_key_value_heads", 1),
    COUNT("num_kv_shared_layers", 0),
    {"hidden_size_per_layer_input", INTEGER, 0, 1 << 16},
    COUNT("vocab_size_per_layer_input", 1),
    COUNT("altup_num_inputs", 1),
    COUNT("altup_active_idx", 0),
    SWITCH("altup_correct_scale"),
    COUNT("laurel_rank", 1),
    {"activation_sparsity_pattern", NUMBERS, 0, 0.9999},
    COUNT("first_k_dense_replace", 0),
    {"moe_layer_freq", INTEGER_OR_LIST, 0, INT32_MAX},
    {"hybrid_layer_pattern", INTEGERS, 0, 1},
    COUNT("sliding_window_size", 0),
    ROPE_BASE("swa_rope_theta"),
    COUNT("swa_num_attention_heads", 1),
    COUNT("swa_num_key_value_heads", 1),
    COUNT("swa_head_dim", 1),
    COUNT("swa_v_head_dim", 1),
    FACTOR("attention_value_scale", LEAST),
    {"layernorm_epsilon", NUMBER, 0, 1},
    SWITCH("add_swa_attention_sink_bias"),
    SWITCH("add_full_attention_sink_bias"),
    COUNT("n_group", 0),
    COUNT("topk_group", 0),
    COUNT("full_attention_interval", 0),
    COUNT("linear_num_key_heads", 0),
    COUNT("linear_num_value_heads", 0),
    COUNT("linear_key_head_dim", 0),
    COUNT("linear_head_dim", 1),
    COUNT("linear_num_heads", 1),
    COUNT("linear_value_head_dim", 0),
    COUNT("linear_conv_kernel_dim", 0),
    {"hybrid_override_pattern", TEXT, 0, 0},
    {"position_embedding_type", TEXT, 0, 0},
    {"mlp_hidden_act", TEXT, 0, 0},
    {"layers_block_type", LIST, 0, 0},
    {"time_step_limit", LIST, 0, 0},
    FACTOR("time_step_min", 0),
    {"attn_layer_indices", INTEGERS, 0, INT32_MAX},
    {"full_attn_idxs", INTEGERS, 0, INT32_MAX},
    {"ssm_multipliers", NUMBERS, -MOST, MOST},
    {"mlp_multipliers", NUMBERS, -MOST, MOST},
    COUNT("mamba_n_heads", 0),
    COUNT("mamba_num_heads", 0),
    COUNT("mamba_head_dim", 0),
    COUNT("mamba_d_state", 0),
    COUNT("mamba_n_groups", 0),
    COUNT("mamba_d_conv", 0),
    COUNT("mamba_d_ssm", 0),
    COUNT("ssm_state_size", 0),
    COUNT("n_groups", 0),
    COUNT("conv_kernel", 0),
    COUNT("conv_L_cache", 0),
    COUNT("num_dense_layers", 0),
    COUNT("block_ff_dim", 1),
    COUNT("block_multiple_of", 1),
    COUNT("shared_intermediate_size", 0),
    COUNT("moe_shared_expert_intermediate_size", 0),
    {"moe_latent_size", INTEGER, 0, 1 << 20},
    FACTOR("mamba_expand", LEAST),
    FACTOR("block_ffn_dim_multiplier", LEAST),
    FACTOR("ssm_in_multiplier", -MOST),
    FACTOR("ssm_out_multiplier", -MOST),
    FACTOR("attention_in_multiplier", -MOST),
    FACTOR("attention_out_multiplier", -MOST),
    FACTOR("key_multiplier", -MOST),
    FACTOR("lm_head_multiplier", -MOST),
    {"layer_norm_epsilon", NUMBER, 0, 1},
    {"norm_eps", NUMBER, 0, 1},
    SWITCH("mamba_conv_bias"),
    SWITCH("mamba_proj_bias"),
    SWITCH("mamba_rms_norm"),
    SWITCH("mamba_norm_before_gate"),
    SWITCH("use_conv_bias"),
    SWITCH("projectors_bias"),
    SWITCH("conv_bias"),
    SWITCH("block_auto_adjust_ff_dim"),
    SWITCH("tie_embedding"),
    SWITCH("use_expert_bias"),
    {"linear_attn_config", OBJECT, 0, 0},
    COUNT("model_max_length", 1),
    COUNT("num_experts_per_token", 0),
    COUNT("num_expert_group", 0),
    COUNT("layer_group_size", 1),
    COUNT("short_conv_kernel_size", 1),
    {"kda_lower_bound", NUMBER, -MOST, -LEAST},
    {"linear_lower_bound", NUMBER, -MOST, -LEAST},
    SWITCH("kda_safe_gate"),
    SWITCH("mla_use_nope"),
    SWITCH("moe_renormalize"),
    COUNT("q_lora_rank", 0),
    COUNT("kv_lora_rank", 0),
    COUNT("qk_nope_head_dim", 0),
    COUNT("qk_rope_head_dim", 0),
    COUNT("v_head_dim", 0),
    COUNT("index_topk", 1),
    COUNT("gated_norm_rank", 1),
    FACTOR("router_jitter_noise", 0),
    SWITCH("lm_head_bias"),
    {"kv_source_layers", INTEGERS, 0, INT32_MAX},
    COUNT("index_n_heads", 1),
    COUNT("index_head_dim", 1),
    COUNT("index_block_size", 1),
    COUNT("index_topk_blocks", 1),
    COUNT("index_local_blocks", 0),
    COUNT("dense_intermediate_size", 1),
    FACTOR("full_attn_alpha_factor", LEAST),
    FACTOR("full_attn_beta_factor", LEAST),
    FACTOR("linear_attn_alpha_factor", LEAST),
    FACTOR("linear_attn_beta_factor", LEAST),
    FACTOR("mlp_alpha_factor", LEAST),
    FACTOR("mlp_beta_factor", LEAST),
    {"sparse_attention_config", OBJECT, 0, 0},
    {"indexer_types", LIST, 0, 0},
    {"index_topk_pattern", LIST_OR_TEXT, 0, 0},
    COUNT("index_topk_freq", 0),
    COUNT("index_kpool", 1),
    SWITCH("index_kpool_always_select_tail"),
    COUNT("index_skip_topk_offset", 0),
    SWITCH("indexer_rope_interleave"),
    COUNT("hc_mult", 1),
    COUNT("hc_sinkhorn_iters", 1),
    FACTOR("hc_magnitude", -MOST),
    {"hc_eps", NUMBER, 0, 1},
    FACTOR("query_pre_attn_scalar", LEAST),
    FACTOR("attn_logit_softcapping", 0), // 0: none
    FACTOR("final_logit_softcapping", 0),
    FACTOR("embedding_multiplier", -MOST),
    FACTOR("residual_multiplier", -MOST),
    FACTOR("attention_multiplier", -MOST),
    FACTOR("logits_scaling", LEAST),
    FACTOR("logit_scale", -MOST),
    FACTOR("scale_emb", -MOST),
    FACTOR("qk_scale_factor", -MOST),
    FACTOR("output_multiplier", -MOST),
    {"post_norm_eps", NUMBER, 0, 1},
    FACTOR("scale_depth", -MOST),
    FACTOR("dim_model_base", LEAST),
    COUNT("rotary_dim", 1),
    FACTOR("routed_scaling_factor", 0),
    FACTOR("swiglu_alpha", 0),
    FACTOR("swiglu_limit", 0),
    COUNT("global_attn_every_n_layers", 1),
    COUNT("local_attention", 1),
    ROPE_BASE("global_rope_theta"),
    ROPE_BASE("local_rope_theta"),
    COUNT("type_vocab_size", 0),
    COUNT("pad_token_id", -1),
    COUNT("embedding_size", 1),
    SWITCH("norm_bias"),
    COUNT("max_trained_positions", 1),
    FACTOR("rotary_emb_fraction", 0),
    COUNT("moe_every_n_layers", -1),
    SWITCH("prenorm"),
    SWITCH("parallel_block"),
    SWITCH("qkv_proj_bias"),
    SWITCH("mlp_fc1_bias"),
    SWITCH("mlp_fc2_bias"),
    SWITCH("use_rms_norm"),
    SWITCH("rotary_emb_interleaved"),
    SWITCH("causal"),
    {"num_labels", INTEGER, 1, 1 << 20},
    {"id2label", OBJECT, 0, 0},
    {"classifier_pooling", TEXT, 0, 0},
    {"classifier_activation", TEXT, 0, 0},
    FACTOR("route_scale", 0),
    SWITCH("mup_enabled"),
    COUNT("prefix_dense_sliding_window_pattern", 0),
    COUNT("prefix_dense_intermediate_size", 1),
    {"expert_selection_fn", TEXT, 0, 0},
    {"shared_expert_combination_strategy", TEXT, 0, 0},
    {"gating", FLAG_OR_TEXT, 0, 0},
    {"num_attention_heads_per_layer", INTEGERS, 1, INT32_MAX},
    FACTOR("moe_routed_scaling_factor", 0),
    FACTOR("moe_router_logit_softcapping", 0),
    SWITCH("moe_apply_router_weight_on_input"),
    {"moe_layers_enum", LIST_OR_TEXT, 0, 0},
    {"swiglu_limits", LIST, 0, 0},
    {"swiglu_limits_shared", LIST, 0, 0},
    COUNT("share_expert_dim", 0),
    COUNT("num_sliding_attention_heads", 1),
    {"attention_other_setting", OBJECT, 0, 0},
    FACTOR("moe_router_scaling_factor", 0),
    {"moe_router_activation", TEXT, 0, 0},
    {"use_rope_layers", LIST, 0, 0},
    SWITCH("zero_centered"),
    SWITCH("use_head_wise_attn_gate"),
    SWITCH("norm_expert_weight"),
    SWITCH("use_moe_router_bias"),
    SWITCH("tie_word_embeddings"),
    SWITCH("attention_bias"),
    SWITCH("mlp_bias"),
    SWITCH("attention_out_bias"),
    SWITCH("qkv_bias"),
    SWITCH("use_qkv_bias"),
    SWITCH("bias"),
    SWITCH("use_bias"),
    SWITCH("use_sliding_window"),
    SWITCH("use_parallel_residual"),
    SWITCH("add_cross_attention"),
    SWITCH("scale_attn_weights"),
    SWITCH("scale_attn_by_inverse_layer_idx"),
    SWITCH("multi_query"),
    SWITCH("do_layer_norm_before"),
    SWITCH("_remove_final_layer_norm"),
    SWITCH("enable_bias"),
    SWITCH("layer_norm_elementwise_affine"),
    COUNT("word_embed_proj_dim", 1),
    COUNT("window_size", 1),
    {"attention_types", LIST, 0, 0},
    COUNT("output_vocab_size", 1),
    {"cross_attention_layers", INTEGERS, 0, INT32_MAX},
    SWITCH("scale_embedding"),
    SWITCH("alibi"),
    SWITCH("new_decoder_architecture"),
    SWITCH("parallel_attn"),
    COUNT("num_kv_heads", 1),
    COUNT("num_ln_in_parallel_attn", 1),
    {"activation_function", TEXT, 0, 0},
    {"activation", TEXT, 0, 0},
    ROPE_BASE("rotary_emb_base"),
    {"rotary_pct", NUMBER, LEAST, 1},
    {"use_bidirectional_attention", FLAG_OR_TEXT, 0, 0},
    SWITCH("attention_k_eq_v"),
    SWITCH("enable_moe_block"),
    SWITCH("use_double_wide_mlp"),
    {"per_layer_config", OBJECT, 0, 0},
    SWITCH("is_causal"),
    SWITCH("linear_allow_neg_eigval"),
    SWITCH("qk_norm"),
    SWITCH("use_post_norm"),
    SWITCH("use_sandwich_norm"),
    SWITCH("use_attention_gate"),
    SWITCH("post_norm"),
    SWITCH("qk_layernorm"),
    SWITCH("use_qk_norm"),
    SWITCH("use_rotary_pos_emb"),
    SWITCH("use_cla"),
    SWITCH("use_mixed_mlp_moe"),
    SWITCH("norm_topk_prob"),
    SWITCH("rope_interleave"),
    SWITCH("rope_pairs_together"), // written only by the GGUF conversion, like the next ones
    SWITCH("norms_plus_one"),
    {"xielu_alpha_p", NUMBERS, -1e6, 1e6},
    {"xielu_alpha_n", NUMBERS, -1e6, 1e6},
    {"xielu_beta", NUMBERS, -1e6, 1e6},
    SWITCH("qk_norm_weights"),
    SWITCH("matrices_by_output"),
    SWITCH("qkv_by_kind"),
    SWITCH("decays_are_negative"),
    SWITCH("decays_are_positive"),
    SWITCH("state_heads_are_tiled"),
};

/* MiniMax M3's older form of sparse attention's keys. */
static const struct key sparse_keys[] = {
    {"sparse_attention_freq", INTEGERS, 0, INT32_MAX},
    COUNT("sparse_num_index_heads", 1),
    COUNT("sparse_index_dim", 1),
    COUNT("sparse_block_size", 1),
    COUNT("sparse_topk_blocks", 1),
    COUNT("sparse_local_block", 0),
    COUNT("sparse_init_block", 0),
    {"sparse_score_type", TEXT, 0, 0},
    SWITCH("use_sparse_attention"),
};

static const struct key rope_keys[] = {
    {"rope_type", TEXT, 0, 0},
    {"type", TEXT, 0, 0},
    ROPE_BASE("rope_theta"),
    ROPE_SHARE,
    ROPE_LENGTH,
    FACTOR("factor", LEAST),
    FACTOR("attention_factor", 0),
    FACTOR("low_freq_factor", LEAST),
    FACTOR("high_freq_factor", LEAST),
    FACTOR("beta_fast", LEAST),
    FACTOR("beta_slow", LEAST),
    FACTOR("mscale", 0),
    FACTOR("short_mscale", 0),
    FACTOR("long_mscale", 0),
    FACTOR("mscale_all_dim", 0),
    FACTOR("alpha", 0),
    FACTOR("llama_4_scaling_beta", 0),
    {"max_position_embeddings", NUMBER, 1, INT32_MAX}, // repeats the model's own value; ignored
    SWITCH("truncate"),
    // Irrelevant for text, where all three positions are equal.
    {"mrope_section", INTEGERS, 0, INT32_MAX},
    SWITCH("mrope_interleaved"),
    {"short_factor", NUMBERS, LEAST, MOST},
    {"long_factor", NUMBERS, LEAST, MOST},
    {"full_attention", OBJECT, 0, 0},
    {"sliding_attention", OBJECT, 0, 0},
};

/* The ranges are those of requests. Values outside them are logged and ignored (config.c). */
static const struct key generation_keys[] = {
    {"eos_token_id", INTEGER_OR_LIST, INT32_MIN, INT32_MAX},
    SWITCH("do_sample"),
    FACTOR("temperature", -MOST),
    {"top_k", INTEGER, -MOST *MOST, MOST *MOST},
    FACTOR("top_p", -MOST),
    FACTOR("min_p", -MOST),
    FACTOR("repetition_penalty", -MOST),
};

static bool is_integer(const struct key *k, const struct json *v)
{
    int64_t i;
    return json_int64(v, &i) && (double)i >= k->min && (double)i <= k->max;
}

static bool is_number(const struct key *k, const struct json *v)
{
    double d = json_number(v, 0.0);
    return json_is(v, JSON_NUMBER) && d >= k->min && d <= k->max;
}

static bool is_list(const struct key *k, const struct json *list,
                    bool (*of)(const struct key *k, const struct json *v))
{
    for (const struct json *v = json_first(list); v; v = json_next(v)) {
        if (!of(k, v)) {
            return false;
        }
    }
    return json_is(list, JSON_ARRAY);
}

static bool holds(const struct key *k, const struct json *v)
{
    switch (k->kind) {
    case INTEGER: return is_integer(k, v);
    case NUMBER: return is_number(k, v);
    case FLAG: return json_is(v, JSON_BOOL);
    case TEXT: return json_is(v, JSON_STRING);
    case FLAG_OR_TEXT: return json_is(v, JSON_BOOL) || json_is(v, JSON_STRING);
    case LIST: return json_is(v, JSON_ARRAY);
    case INTEGERS: return is_list(k, v, is_integer);
    case NUMBERS: return is_list(k, v, is_number);
    case INTEGER_OR_LIST: return is_integer(k, v) || is_list(k, v, is_integer);
    case INTEGER_OR_TEXT: return is_integer(k, v) || json_is(v, JSON_STRING);
    case NUMBER_OR_LIST: return is_number(k, v) || is_list(k, v, is_number);
    case LIST_OR_TEXT: return json_is(v, JSON_ARRAY) || json_is(v, JSON_STRING);
    case OBJECT: return json_is(v, JSON_OBJECT);
    }
    return false;
}

/* Names the key, the expected kind of value, and its range. */
static enum status refuse(const char *where, const struct key *k, struct err *err)
{
    static const char *const kinds[] = {"an integer",
                                        "a number",
                                        "true or false",
                                        "a string",
                                        "true, false or a string",
                                        "a list",
                                        "a list of integers",
                                        "a list of numbers",
                                        "an integer or a list of integers",
                                        "an integer or a string",
                                        "a number or a list of numbers",
                                        "a list or a string",
                                        "an object"};
    bool ranged = k->kind == NUMBER || k->kind == INTEGER || k->kind == INTEGERS ||
                  k->kind == NUMBERS || k->kind == NUMBER_OR_LIST;
    char range[64] = "";
    if (ranged) {
        snprintf(range, sizeof range, " from %.10g to %.10g", k->min, k->max);
    }
    return err_set(err, ERR_FORMAT, "%s%s must be %s%s", where, k->name, kinds[k->kind], range);
}

/* Accepts absent and null values, for which the readers have defaults. */
static enum status check(const struct json *object, const char *where, const struct key *keys,
                         size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct json *v = json_get(object, keys[i].name);
        if (json_type(v) != JSON_NULL && !holds(&keys[i], v)) {
            return refuse(where, &keys[i], err);
        }
    }
    return OK;
}

#define CHECK(object, where, keys, err)                                                            \
    check(object, where, keys, sizeof keys / sizeof keys[0], err)

/* Some configs contain scaling keys that transformers never reads, such as attn_factor. They are
 * ignored here as well, but with a warning. */
static void warn_of_others(const struct json *rope, const char *where)
{
    for (const struct json *v = json_first(rope); v; v = json_next(v)) {
        size_t i = 0, n = sizeof rope_keys / sizeof rope_keys[0];
        while (i < n && strcmp(rope_keys[i].name, json_key(v)) != 0) {
            i++;
        }
        if (i == n) {
            log_warn("%s%s is ignored: no scaling of positions has such a key", where, json_key(v));
        }
    }
}

static enum status check_scaling(const struct json *rope, const char *where, struct err *err)
{
    if (json_is(rope, JSON_OBJECT)) {
        TRY(CHECK(rope, where, rope_keys, err));
        warn_of_others(rope, where);
    }
    return OK;
}

/* In some configs each kind of layer has its own rope. */
static enum status check_rope(const struct json *rope, const char *name, struct err *err)
{
    char where[64];
    snprintf(where, sizeof where, "config.json: %s.", name);
    TRY(check_scaling(rope, where, err));
    snprintf(where, sizeof where, "config.json: %s.full_attention.", name);
    TRY(check_scaling(json_get(rope, "full_attention"), where, err));
    snprintf(where, sizeof where, "config.json: %s.sliding_attention.", name);
    return check_scaling(json_get(rope, "sliding_attention"), where, err);
}

/* The rope's parameters are checked under both of their names, although only one is read. */
enum status model_keys_check(const struct json *config, struct err *err)
{
    TRY(CHECK(config, "config.json: ", config_keys, err));
    TRY(CHECK(json_get(config, "sparse_attention_config"), "config.json: sparse_attention_config.",
              sparse_keys, err));
    const struct json *newer = json_get(config, "rope_parameters");
    TRY(check_rope(newer, "rope_parameters", err));
    TRY(check_rope(json_get(config, "rope_scaling"), "rope_scaling", err));
    if (json_is(newer, JSON_OBJECT) && rope_params(config) != newer) {
        log_warn("config.json: rope_parameters is ignored: there is rope_scaling, too");
    }
    return OK;
}

enum status model_keys_check_generation(const struct json *generation, struct err *err)
{
    if (!json_is(generation, JSON_OBJECT)) {
        return err_set(err, ERR_FORMAT, "not a JSON object");
    }
    return CHECK(generation, "", generation_keys, err);
}
