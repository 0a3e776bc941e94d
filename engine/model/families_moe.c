// SPDX-License-Identifier: Apache-2.0
/* Families with plain attention and experts, most of which are picked by a softmax. */
#include "engine/base/json.h"
#include "engine/base/optional.h"
#include "engine/model/family_parts.h"

#include <math.h>
#include <string.h>

static const struct tensor_names mixtral_names = {BASE_NAMES,
                                                  QKV_NAMES,
                                                  .router = "block_sparse_moe.gate",
                                                  .expert_gate = "block_sparse_moe.experts.%d.w1",
                                                  .expert_up = "block_sparse_moe.experts.%d.w3",
                                                  .expert_down = "block_sparse_moe.experts.%d.w2"};

static const struct tensor_names qwen2_moe_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES, EXPERT_NAMES,
                                                    SHARED_EXPERT_NAMES};

static const struct tensor_names qwen3_moe_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES, QK_NORM_NAMES,
                                                    EXPERT_NAMES};

static const struct tensor_names qwen3_vl_moe_names = {
    BASE_NAMES, QKV_NAMES, FFN_NAMES, QK_NORM_NAMES, EXPERT_NAMES, .experts_form = EXPERTS_COLUMNS};

static const struct tensor_names granite_moe_names = {BASE_NAMES, QKV_NAMES, GRANITE_MOE_NAMES};

static const struct tensor_names granite_moe_swa_names = {
    BASE_NAMES, QKV_NAMES, .sinks = "self_attn.sinks", .router = "block_sparse_moe.router",
    .experts_gate_up = "block_sparse_moe.experts.gate_up_proj",
    .experts_down = "block_sparse_moe.experts.down_proj",
    .shared_gate_up = "shared_mlp.input_linear", .shared_down = "shared_mlp.output_linear",
    // only GGUF files use these names
    .expert_gate = "block_sparse_moe.experts.%d.gate_proj",
    .expert_up = "block_sparse_moe.experts.%d.up_proj",
    .expert_down = "block_sparse_moe.experts.%d.down_proj"};

static const struct tensor_names flex_olmo_names = {OLMO2_NAMES, EXPERT_NAMES};

static const struct tensor_names cohere2_moe_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES,
                                                      EXPERT_NAMES, SHARED_NAMES};

static const struct tensor_names gpt_oss_names = {
    BASE_NAMES, QKV_NAMES, .sinks = "self_attn.sinks", .router = "mlp.router",
    .experts_gate_up = "mlp.experts.gate_up_proj", .experts_down = "mlp.experts.down_proj",
    .experts_form = EXPERTS_ALTERNATE,
    /* Only GGUF files use these names. */
    .expert_gate = "mlp.experts.%d.gate_proj", .expert_up = "mlp.experts.%d.up_proj",
    .expert_down = "mlp.experts.%d.down_proj"};

static const struct tensor_names ernie_names = {
    BASE_NAMES,   QKV_NAMES,    FFN_NAMES,
    EXPERT_NAMES, SHARED_NAMES, .correction = "mlp.moe_statics.e_score_correction_bias"};

static const struct tensor_names hunyuan_moe_names = {BASE_NAMES,
                                                      QKV_NAMES,
                                                      EACH_EXPERT_NAMES,
                                                      SHARED_MLP_NAMES,
                                                      .router = "mlp.gate.wg",
                                                      .q_norm = "self_attn.query_layernorm",
                                                      .k_norm = "self_attn.key_layernorm"};

static const struct tensor_names llama4_names = {
    BASE_NAMES,
    QKV_NAMES,
    .gate = "feed_forward.gate_proj",
    .up = "feed_forward.up_proj",
    .down = "feed_forward.down_proj",
    .router = "feed_forward.router",
    .shared_gate = "feed_forward.shared_expert.gate_proj",
    .shared_up = "feed_forward.shared_expert.up_proj",
    .shared_down = "feed_forward.shared_expert.down_proj",
    .expert_gate = "feed_forward.experts.%d.gate_proj",
    .expert_up = "feed_forward.experts.%d.up_proj",
    .expert_down = "feed_forward.experts.%d.down_proj",
    .experts_gate_up = "feed_forward.experts.gate_up_proj",
    .experts_down = "feed_forward.experts.down_proj",
    .experts_form = EXPERTS_COLUMNS};

/* Experts in tensors of their inputs, and shared ones. */
static const struct tensor_names aria_names = {BASE_NAMES,
                                               QKV_NAMES,
                                               SHARED_NAMES,
                                               .router = "mlp.router",
                                               .experts_gate_up = "mlp.experts.fc1.weight",
                                               .experts_down = "mlp.experts.fc2.weight",
                                               .experts_form = EXPERTS_COLUMNS};

static enum status read_aria(const struct json *j, struct model_config *c, struct err *err)
{
    const struct experts_numbers s = {.count_key = "moe_num_experts",
                                      .pick_key = "moe_topk",
                                      .ffn_key = "intermediate_size",
                                      .n = json_get_int(j, "moe_num_experts", 0),
                                      .k = json_get_int(j, "moe_topk", 0),
                                      .ffn = c->ffn};
    TRY(family_set_experts(&s, c, err));
    TRY(family_shared_experts(j, "moe_num_shared_experts", c, err));
    if (c->act != ACT_SILU) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: hidden_act other than silu is not supported in this family");
    }
    c->scoring = MOE_TOPK_SOFTMAX;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    return OK;
}

static enum status read_mixtral(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    family_window_on_all(j, c);
    c->scoring = MOE_SOFTMAX_TOPK;
    c->renormalise = true;
    return OK;
}

/* A scaled rope has a temperature of its own, for texts below and above the trained length. */
static enum status read_phimoe_rope(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *params = rope_params(j);
    const double below = json_get_number(params, "short_mscale", 0.0);
    const double above = json_get_number(params, "long_mscale", 0.0);
    if (strcmp(rope_type(params), "default") == 0) {
        return OK;
    }
    if (!(below > 0.0) || !(above > 0.0)) {
        return err_set(err, ERR_FORMAT,
                       "config.json: rope_scaling needs short_mscale and long_mscale above 0");
    }
    if (fabs(below - above) > 0.0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: short_mscale and long_mscale that differ are not supported");
    }
    c->rope_attention = (float)below;
    return OK;
}

/* Mixtral's layers with LayerNorm, biases and another router. */
static enum status read_phimoe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    TRY(read_phimoe_rope(j, c, err));
    if (c->experts_per_token != 2) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: num_experts_per_tok must be 2 in this family");
    }
    family_window_on_all(j, c);
    c->scoring = MOE_MIXER;
    c->routed_spread = (float)(2.0 * json_get_number(j, "router_jitter_noise", 0.01));
    c->norm_kind = NORM_LAYER;
    c->norm_bias = true;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->head_bias = json_get_bool(j, "lm_head_bias", false);
    if (c->head_bias && json_get_bool(j, "tie_word_embeddings", false)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: lm_head_bias with tie_word_embeddings is not supported");
    }
    return OK;
}

/* As in transformers: if sliding windows are on, every second layer below max_window_layers has
 * one. */
static enum status read_qwen2_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    int64_t shared = json_get_int(j, "shared_expert_intermediate_size", 0);
    TRY(family_positive("shared_expert_intermediate_size", shared, 1 << 22, err));
    c->shared_ffn = (int32_t)shared;
    c->shared_gate = true;
    c->q_bias = json_get_bool(j, "qkv_bias", true);
    c->renormalise = json_get_bool(j, "norm_topk_prob", false);
    family_sparse_steps(j, c);
    family_window_on_all(j, c);
    family_windows_if_used(j, c);
    // In this family, every second layer below max_window_layers has a window.
    int64_t windows = json_get_int(j, "max_window_layers", 28);
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (!(i % 2 == 0 && i < windows)) {
            c->layers[i].window = 0;
        }
    }
    return OK;
}

static enum status read_qwen3_moe(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    family_window_on_all(j, c);
    family_windows_if_used(j, c);
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    c->renormalise = json_get_bool(j, "norm_topk_prob", false);
    family_sparse_steps(j, c);
    return OK;
}

/* The language part, which always normalises the weights of experts. */
static enum status read_qwen3_vl_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_qwen3_moe(j, c, err));
    c->renormalise = true;
    return OK;
}

/* GPT-OSS: softmax over the picked experts, a clamped SwiGLU, biases everywhere, and attention
 * sinks. */
static enum status read_gpt_oss(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    c->scoring = MOE_TOPK_SOFTMAX;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", true);
    c->router_bias = c->experts_biased = c->sinks = true;
    c->act = ACT_GPT_OSS;
    c->act_shape = (struct act_shape){
        .limit = (float)json_get_number(j, "swiglu_limit", (double)ACT_SHAPE_PUBLISHED.limit),
        .alpha = (float)json_get_number(j, "swiglu_alpha", (double)ACT_SHAPE_PUBLISHED.alpha)};
    family_window_on_even(j, c);
    return OK;
}

/* Every n-th layer of a range has experts. The correction affects only which experts are picked. */
static enum status read_ernie_moe(const struct json *j, struct model_config *c, struct err *err)
{
    struct experts_numbers s = {.count_key = "moe_num_experts",
                                .pick_key = "moe_k",
                                .ffn_key = "moe_intermediate_size",
                                .n = json_get_int(j, "moe_num_experts", 0),
                                .k = json_get_int(j, "moe_k", 0),
                                .ffn = json_get_int(j, "moe_intermediate_size", 0)};
    TRY(family_set_experts(&s, c, err));
    TRY(family_shared_experts(j, "moe_num_shared_experts", c, err));
    int64_t every = json_get_int(j, "moe_layer_interval", 1);
    int64_t first = json_get_int(j, "moe_layer_start_index", 1);
    int64_t last = json_get_int(j, "moe_layer_end_index", -1);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = (i + 1) % every == 0 && i >= first && (last == -1 || i <= last);
    }
    if (json_get_number(j, "moe_norm_min", 0.0) > 1e-6) { // any real sum of weights is far larger
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: moe_norm_min above 1e-6 is not supported");
    }
    // If it were set, the head would have a bias, too.
    TRY(family_must_be(j, "use_bias", false, err));
    c->rope[0].desc.interleaved = true;
    c->tied = true;
    c->scoring = MOE_SOFTMAX_TOPK;
    c->renormalise = c->correction = true;
    return OK;
}

/* The keys may be lists with one number per layer. */
static enum status read_hunyuan_moe(const struct json *j, struct model_config *c, struct err *err)
{
    struct experts_numbers s = {.count_key = "num_experts",
                                .pick_key = "moe_topk",
                                .ffn_key = "intermediate_size",
                                .n = json_get_int(j, "num_experts", 0),
                                .ffn = c->ffn};
    int64_t ffn, shared;
    TRY(family_same_of_layers(j, "moe_topk", c->n_layers, &s.k, err));
    TRY(family_same_of_layers(j, "moe_intermediate_size", c->n_layers, &ffn, err));
    TRY(family_same_of_layers(j, "num_shared_expert", c->n_layers, &shared, err));
    if ((ffn != 0 && ffn != c->ffn) || shared > 1) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: experts of another width than "
                       "intermediate_size, or several shared ones, are not supported");
    }
    if (json_get_int(j, "moe_layer_num_skipped", 0) > 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: moe_layer_num_skipped above 0 is not supported");
    }
    TRY(family_must_be(j, "use_mixed_mlp_moe", true, err));
    TRY(family_set_experts(&s, c, err));
    c->shared_ffn = c->ffn;
    c->scoring = MOE_SOFTMAX_TOPK;
    c->renormalise = true;
    return family_hunyuan_attention(j, c, err);
}

static enum status read_granite_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_granite(j, c, err));
    return family_granite_experts(j, c, err);
}

enum status family_granite_experts(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t shared = json_get_int(j, "shared_intermediate_size", 0);
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    if (shared != 0) {
        TRY(family_positive("shared_intermediate_size", shared, 1 << 22, err));
    }
    c->shared_ffn = (int32_t)shared;
    c->scoring = MOE_TOPK_SOFTMAX;
    return OK;
}

static enum status read_granite_moe_swa(const struct json *j, struct model_config *c,
                                        struct err *err)
{
    TRY(family_granite_swa(j, c, err));
    return family_granite_experts(j, c, err);
}

/* Experts as in Qwen 3. */
static enum status olmo_experts(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "intermediate_size", c, err));
    c->renormalise = json_get_bool(j, "norm_topk_prob", false);
    return OK;
}

/* Norms over the whole width of q and k. */
static enum status read_olmoe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_no_clips(j, err));
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_WIDTH;
    return olmo_experts(j, c, err);
}

static enum status read_flex_olmo(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_olmo2(j, c, err));
    return olmo_experts(j, c, err);
}

/* Qwen 3's layers, of which those with a window have a rope of their own. */
static enum status read_mellum(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    TRY(family_experts(j, "num_local_experts", "moe_intermediate_size", c, err));
    c->renormalise = json_get_bool(j, "norm_topk_prob", true);
    return family_dense_layers(j, 0, c, err);
}

/* Layers with a window have positions. If the prefix's pattern is 1, its dense layers have them,
 * too. */
static enum status cohere2_ropes(const struct json *j, struct model_config *c, struct err *err)
{
    const bool prefix = json_get_int(j, "prefix_dense_sliding_window_pattern", 1) == 1;
    (void)err;
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        l->rope = l->window > 0 || (prefix && !l->moe) ? 0 : -1;
    }
    return OK;
}

/* Every n-th layer of the prefix, and every m-th layer after it, counted from its end, has no
 * window. */
static void cohere2_windows(const struct json *j, struct model_config *c)
{
    const int64_t dense = json_get_int(j, "first_k_dense_replace", 0);
    const int64_t n = json_get_int(j, "prefix_dense_sliding_window_pattern", 1);
    const int64_t m = json_get_int(j, "sliding_window_pattern", 4);
    family_window_on_all(j, c);
    for (int32_t i = 0; i < c->n_layers; i++) {
        const int64_t at = i < dense ? i : i - dense, every = i < dense ? n : m;
        if (every > 0 && (at + 1) % every == 0) {
            c->layers[i].window = 0;
        }
    }
}

/* The shared expert's output is added, or averaged with that of the others. */
static enum status cohere2_experts(const struct json *j, struct model_config *c, struct err *err)
{
    const char *scores = json_get_string(j, "expert_selection_fn");
    const char *join = json_get_string(j, "shared_expert_combination_strategy");
    TRY(family_experts(j, "num_experts", "intermediate_size", c, err));
    TRY(family_shared_experts(j, "num_shared_experts", c, err));
    TRY(family_dense_layers(j, json_get_int(j, "first_k_dense_replace", 0), c, err));
    if (strcmp(or_text(scores, "softmax"), "softmax") == 0) {
        c->scoring = MOE_TOPK_SOFTMAX;
    } else if (strcmp(scores, "sigmoid") == 0) {
        c->scoring = MOE_SIGMOID;
        c->renormalise = json_get_bool(j, "norm_topk_prob", true);
    } else {
        return err_set(err, ERR_UNSUPPORTED, "config.json: unknown expert_selection_fn '%s'",
                       scores);
    }
    if (strcmp(or_text(join, "average"), "average") == 0) {
        for (int32_t i = 0; i < c->n_layers && c->shared_ffn > 0; i++) {
            c->layers[i].ffn_out_scale = c->layers[i].moe ? 0.5f : 0.0f;
        }
    } else if (strcmp(join, "sum") != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: unknown shared_expert_combination_strategy '%s'", join);
    }
    return OK;
}

static enum status read_cohere2_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_cohere(j, c, err));
    if (json_is(json_get(j, "rms_norm_eps"), JSON_NUMBER)) {
        c->norm_kind = NORM_RMS;
        c->norm_eps = (float)json_get_number(j, "rms_norm_eps", 1e-6);
    }
    TRY(cohere2_experts(j, c, err));
    const int64_t dense = json_get_int(j, "prefix_dense_intermediate_size", c->ffn);
    TRY(family_positive("prefix_dense_intermediate_size", dense, 1 << 22, err));
    c->ffn = (int32_t)dense;
    cohere2_windows(j, c);
    c->read_layers = cohere2_ropes;
    return OK;
}

/* Layers with positions see only a chunk, and norm q and k after the rotation. Layers without
 * positions see everything, and scale their queries by position. */
static enum status llama4_layers(const struct json *j, struct model_config *c, struct err *err)
{
    // it may be a number, where any value but 0 means true
    const struct json *tuning = json_get(j, "attn_temperature_tuning");
    const bool grows = json_get_bool(j, "attn_temperature_tuning", json_number(tuning, 1.0) > 0.0);
    const int64_t every = json_get_int(j, "floor_scale", 8192);
    TRY(family_positive("floor_scale", every, MAX_POSITIONS, err));
    TRY(family_no_rope_layers(j, c, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        l->plain_qk = l->rope < 0;
        if (l->rope < 0) {
            l->chunk = 0;
        } else {
            l->chunk = (int32_t)json_get_int(j, "attention_chunk_size", 0);
        }
        if (grows && l->rope < 0) {
            l->growth.beta = (float)json_get_number(j, "attn_scale", 0.1);
            l->growth.every = (int32_t)every;
            l->growth.offset = 1;
        }
    }
    return OK;
}

/* Experts on every interleave_moe_layer_step-th layer, or on the listed ones. */
static enum status llama4_experts(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *list = json_get(j, "moe_layers");
    const int64_t step = json_get_int(j, "interleave_moe_layer_step", 1);
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    TRY(family_positive("interleave_moe_layer_step", step, MAX_LAYERS, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = !json_is(list, JSON_ARRAY) && (i + 1) % step == 0;
    }
    for (const struct json *item = json_first(list); item; item = json_next(item)) {
        int64_t i = -1;
        if (json_int64(item, &i) && i >= 0 && i < c->n_layers) {
            c->layers[i].moe = true;
        }
    }
    c->shared_ffn = c->moe_ffn;
    c->scoring = MOE_SIGMOID;
    c->weigh_inputs = true;
    return OK;
}

/* Dense layers and experts differ in width, and q and k are normed after their rotation. */
static enum status read_llama4(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->rope[0].desc.interleaved = true;
    if (json_get_bool(j, "use_qk_norm", true)) {
        c->qk_norm = QK_NORM_HEAD;
        c->qk_norm_after_rope = true;
    }
    int64_t dense = json_get_int(j, "intermediate_size_mlp", 16384);
    TRY(family_positive("intermediate_size_mlp", dense, 1 << 22, err));
    TRY(llama4_experts(j, c, err));
    c->ffn = (int32_t)dense;
    return llama4_layers(j, c, err);
}

#define LLAMA4_DEFAULTS                                                                            \
    "{\"eos_token_id\":2,\"num_key_value_heads\":8,\"head_dim\":128,\"rms_norm_eps\":1e-5,"        \
    "\"max_position_embeddings\":131072,\"rope_theta\":500000,\"num_local_experts\":16,"           \
    "\"num_experts_per_tok\":1,\"attention_chunk_size\":8192}"

#define GRANITE_MOE                                                                                \
    "{\"eos_token_id\":2,\"attention_multiplier\":1,\"num_local_experts\":8,"                      \
    "\"num_experts_per_tok\":2}"

/* The thinker's text part. */
#define QWEN3_OMNI_MOE                                                                             \
    "{\"num_key_value_heads\":4,\"max_position_embeddings\":32768,\"num_experts\":128,"            \
    "\"num_experts_per_tok\":8,\"moe_intermediate_size\":768,\"norm_topk_prob\":true,"             \
    "\"other_keys\":{\"num_local_experts\":\"num_experts\"}}"

#define QWEN3_VL_MOE                                                                               \
    "{\"head_dim\":128,\"max_position_embeddings\":128000,\"rope_theta\":500000,"                  \
    "\"num_experts_per_tok\":4,\"moe_intermediate_size\":1408}"

static const struct family rows[] = {
    {"mixtral", &mixtral_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,"
     "\"rope_theta\":1000000,\"num_local_experts\":8,\"num_experts_per_tok\":2}",
     read_mixtral},
    {"aria_text", &aria_names,
     "{\"eos_token_id\":2,\"moe_num_experts\":8,\"moe_topk\":2,\"moe_num_shared_experts\":2}",
     read_aria},
    {"phimoe", &mixtral_names,
     "{\"eos_token_id\":2,\"num_key_value_heads\":8,\"max_position_embeddings\":131072,"
     "\"rms_norm_eps\":1e-5,\"rope_theta\":1000000,\"num_local_experts\":16,"
     "\"num_experts_per_tok\":2}",
     read_phimoe},
    {"qwen2_moe", &qwen2_moe_names,
     "{\"max_position_embeddings\":32768,\"sliding_window\":4096,\"num_experts_per_tok\":4}",
     read_qwen2_moe},
    {"qwen3_moe", &qwen3_moe_names,
     "{\"num_key_value_heads\":4,\"max_position_embeddings\":32768,\"sliding_window\":4096,"
     "\"num_experts_per_tok\":8}",
     read_qwen3_moe},
    {"qwen3_vl_moe_text", &qwen3_vl_moe_names, QWEN3_VL_MOE, read_qwen3_vl_moe},
    {"qwen3_vl_moe", &qwen3_vl_moe_names, QWEN3_VL_MOE, read_qwen3_vl_moe},
    {"granitemoe", &granite_moe_names, GRANITE_MOE, read_granite_moe},
    {"granitemoeshared", &granite_moe_names, GRANITE_MOE, read_granite_moe},
    {"granitemoe_swa", &granite_moe_swa_names,
     "{\"eos_token_id\":2,\"attention_multiplier\":1,\"num_local_experts\":8,"
     "\"num_experts_per_tok\":2,\"sliding_window\":128}",
     read_granite_moe_swa},
    {"olmoe", &qwen3_moe_names,
     "{\"eos_token_id\":50279,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"
     "\"num_experts\":64,\"num_experts_per_tok\":8,"
     "\"other_keys\":{\"num_local_experts\":\"num_experts\"}}",
     read_olmoe},
    {"flex_olmo", &flex_olmo_names,
     "{\"eos_token_id\":100257,\"max_position_embeddings\":4096,\"rope_theta\":500000,"
     "\"num_experts\":7,\"num_experts_per_tok\":5,"
     "\"other_keys\":{\"num_local_experts\":\"num_experts\"}}",
     read_flex_olmo},
    {"cohere2_moe", &cohere2_moe_names,
     "{\"eos_token_id\":255001,\"head_dim\":128,\"max_position_embeddings\":8192,"
     "\"sliding_window\":4096,\"num_experts\":8,\"num_experts_per_tok\":2}",
     read_cohere2_moe},
    {"mellum", &qwen3_moe_names,
     "{\"num_key_value_heads\":4,\"head_dim\":128,\"max_position_embeddings\":131072,"
     "\"sliding_window\":1024,\"num_local_experts\":64,\"num_experts_per_tok\":8,"
     "\"other_keys\":{\"num_experts\":\"num_local_experts\"},"
     "\"moe_intermediate_size\":896,\"rope_of_class\":{"
     "\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":500000},"
     "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000}}}",
     read_mellum},
    {"qwen3_omni_moe_text", &qwen3_moe_names, QWEN3_OMNI_MOE, read_qwen3_moe},
    {"qwen3_omni_moe", &qwen3_moe_names, QWEN3_OMNI_MOE, read_qwen3_moe},
    {"llama4_text", &llama4_names, LLAMA4_DEFAULTS, read_llama4},
    {"llama4", &llama4_names, LLAMA4_DEFAULTS, read_llama4},
    {"gpt_oss", &gpt_oss_names,
     "{\"num_key_value_heads\":8,\"head_dim\":64,\"max_position_embeddings\":131072,"
     "\"rms_norm_eps\":1e-5,\"rope_theta\":150000,\"sliding_window\":128,\"num_experts_per_tok\":4,"
     "\"rope_of_class\":{\"rope_type\":\"yarn\",\"factor\":32,\"truncate\":false,"
     "\"original_max_position_embeddings\":4096}}",
     read_gpt_oss},
    {"ernie4_5_moe", &ernie_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":4,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,"
     "\"rope_theta\":500000,\"moe_intermediate_size\":1536,\"moe_k\":6,\"moe_num_experts\":64,"
     "\"moe_num_shared_experts\":2}",
     read_ernie_moe},
    {"hunyuan_v1_moe", &hunyuan_moe_names,
     "{\"eos_token_id\":2,\"rms_norm_eps\":1e-5,\"rope_alpha_of_class\":true,"
     "\"num_experts\":1,\"moe_topk\":1}",
     read_hunyuan_moe},
};
const struct family_table families_moe = {rows, sizeof rows / sizeof rows[0]};
