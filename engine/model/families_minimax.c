// SPDX-License-Identifier: Apache-2.0
/* MiniMax 1: lightning attention, which is linear with a fixed decay for each head, beside plain
 * attention. MiniMax M3: plain attention that is sparse in some layers, where an indexer picks
 * blocks of keys for each KV head, and experts that are picked by sigmoids, with a shared one. */
#include "engine/base/json.h"
#include "engine/base/optional.h"
#include "engine/model/family_parts.h"

#include <string.h>

/* Files of transformers' text class have the modules' own names (part_inner_name), and gate and up
 * in one tensor. */
static const struct tensor_names minimax_m3_names = {
    BASE_NAMES,
    QKV_NAMES,
    QK_NORM_NAMES,
    FFN_NAMES,
    .gate_up = "mlp.gate_up_proj",
    .router = "block_sparse_moe.gate",
    .correction = "block_sparse_moe.e_score_correction_bias",
    .expert_gate = "block_sparse_moe.experts.%d.w1",
    .expert_up = "block_sparse_moe.experts.%d.w3",
    .expert_down = "block_sparse_moe.experts.%d.w2",
    .experts_gate_up = "block_sparse_moe.experts.gate_up_proj",
    .experts_down = "block_sparse_moe.experts.down_proj",
    .shared_gate = "block_sparse_moe.shared_experts.gate_proj",
    .shared_up = "block_sparse_moe.shared_experts.up_proj",
    .shared_gate_up = "block_sparse_moe.shared_experts.gate_up_proj",
    .shared_down = "block_sparse_moe.shared_experts.down_proj",
    .index_q = "self_attn.index_q_proj",
    .index_q_norm = "self_attn.index_q_norm",
    .index_k = "self_attn.index_k_proj",
    .index_k_norm = "self_attn.index_k_norm"};

static const struct state_names lightning_names = {.heads = "self_attn.qkv_proj",
                                                   .z = "self_attn.output_gate",
                                                   .norm = "self_attn.norm",
                                                   .out = "self_attn.out_proj"};
static const struct tensor_names minimax_names = {BASE_NAMES,
                                                  QKV_NAMES,
                                                  .router = "block_sparse_moe.gate",
                                                  .expert_gate = "block_sparse_moe.experts.%d.w1",
                                                  .expert_up = "block_sparse_moe.experts.%d.w3",
                                                  .expert_down = "block_sparse_moe.experts.%d.w2",
                                                  .state = &lightning_names};

static const char sparse_config[] = "sparse_attention_config";

/* A list with a number for each layer, at `key` of `object`; *out is false for those with a 0, and
 * unchanged without such a list. */
static enum status read_flags(const struct json *object, const char *key, int32_t n_layers,
                              bool *out, struct err *err)
{
    const struct json *list = json_get(object, key), *item = json_first(list);
    if (!json_is(list, JSON_ARRAY)) {
        return OK;
    }
    if (json_count(list) < (size_t)n_layers) {
        return err_set(err, ERR_FORMAT, "config.json: %s has fewer entries than layers", key);
    }
    for (int32_t i = 0; i < n_layers; i++, item = json_next(item)) {
        int64_t has = 0;
        json_int64(item, &has);
        out[i] = has != 0;
    }
    return OK;
}

/* Dense layers have a width of their own. mlp_layer_types takes precedence over moe_layer_freq. */
static enum status read_experts(const struct json *j, struct model_config *c, struct err *err)
{
    bool has_experts[MAX_LAYERS];
    int32_t dense = 0;
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    TRY(family_size(j, "dense_intermediate_size", 1 << 22, &dense, err));
    TRY(family_size(j, "shared_intermediate_size", 1 << 22, &c->shared_ffn, err));
    family_ffn(c, dense);
    TRY(family_dense_layers(j, 0, c, err));
    if (!json_is(json_get(j, "mlp_layer_types"), JSON_ARRAY)) {
        memset(has_experts, true, sizeof has_experts);
        TRY(read_flags(j, "moe_layer_freq", c->n_layers, has_experts, err));
        for (int32_t i = 0; i < c->n_layers; i++) {
            c->layers[i].moe = has_experts[i];
        }
    }
    c->scoring = MOE_SIGMOID;
    c->renormalise = c->correction = true;
    c->routed_scale = (float)json_get_number(j, "routed_scaling_factor", 1.0);
    return OK;
}

/* The older object takes precedence, as in the class. */
static enum status read_size(const struct json *j, const char *key, const char *older, int64_t max,
                             int32_t *out, struct err *err)
{
    const struct json *sparse = json_get(j, sparse_config);
    const bool has_older = json_type(json_get(sparse, older)) != JSON_NULL;
    return family_size(has_older ? sparse : j, has_older ? older : key, max, out, err);
}

/* What other programs read from the older object must have the values that the class assumes. */
static enum status check_older(const struct json *sparse, struct err *err)
{
    const char *score = json_get_string(sparse, "sparse_score_type");
    TRY(family_must_be(sparse, "use_sparse_attention", true, err));
    if (score && strcmp(score, "max") != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: sparse_score_type '%.40s' is not "
                       "supported",
                       score);
    }
    if (json_get_int(sparse, "sparse_init_block", 0) > 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: sparse_init_block above 0 is not supported");
    }
    return OK;
}

/* Called when it is known which layers are sparse. */
static enum status check_indexers(const struct json *j, struct model_config *c, struct err *err)
{
    bool any = false;
    for (int32_t i = 0; i < c->n_layers; i++) {
        any = any || c->layers[i].index >= 0;
        if (c->layers[i].window > 0 || c->layers[i].chunk > 0) {
            return err_set(err, ERR_UNSUPPORTED,
                           "config.json: %s in layer %d is not supported in this family",
                           c->layers[i].chunk > 0 ? "chunked_attention" : "sliding_attention", i);
        }
    }
    if (!any) {
        c->index = (struct index_config){0};
        return OK;
    }
    const struct index_config *x = &c->index;
    double share = json_get_number(j, "partial_rotary_factor", (double)c->partial_rotary);
    share = json_get_number(rope_params(j), "partial_rotary_factor", share);
    if (x->n_heads != c->n_kv_heads) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: index_n_heads other than num_key_value_heads is not "
                       "supported");
    }
    if ((int32_t)(c->head_dim * share) > x->head_dim) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: index_head_dim less than the rotated part of heads is not "
                       "supported");
    }
    if (x->n_heads * ((int64_t)x->top_k + 1) > MAX_INDEX_PICKS) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: more than %d blocks of keys per row (index_n_heads times "
                       "index_topk_blocks) are not supported",
                       MAX_INDEX_PICKS);
    }
    if (x->n_local > x->top_k) {
        return err_set(err, ERR_FORMAT,
                       "config.json: index_local_blocks is more than index_topk_blocks");
    }
    return OK;
}

/* Without layer_types, sparse_attention_freq selects the layers with an indexer. */
static enum status read_indexers(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *sparse = json_get(j, sparse_config);
    struct index_config *x = &c->index;
    bool is_sparse[MAX_LAYERS] = {false};
    TRY(read_size(j, "index_n_heads", "sparse_num_index_heads", 1024, &x->n_heads, err));
    TRY(read_size(j, "index_head_dim", "sparse_index_dim", MAX_INDEX_DIM, &x->head_dim, err));
    TRY(read_size(j, "index_block_size", "sparse_block_size", 1 << 16, &x->block, err));
    TRY(read_size(j, "index_topk_blocks", "sparse_topk_blocks", MAX_INDEX_PICKS, &x->top_k, err));
    x->n_local = (int32_t)json_get_int(sparse, "sparse_local_block",
                                       json_get_int(j, "index_local_blocks", 0));
    x->norm_kind = NORM_RMS;
    x->norm_eps = c->norm_eps;
    x->norm_offset = c->norm_offset;
    c->read_layers = check_indexers;
    if (!json_is(json_get(j, "layer_types"), JSON_ARRAY)) {
        TRY(read_flags(sparse, "sparse_attention_freq", c->n_layers, is_sparse, err));
        for (int32_t i = 0; i < c->n_layers; i++) {
            c->layers[i].index = is_sparse[i] ? 0 : -1;
        }
    }
    return check_older(sparse, err);
}

/* Keys of released files that the class does not read: it has one value of each. */
static enum status check_fixed(const struct json *j, struct err *err)
{
    const char *norm = json_get_string(j, "qk_norm_type");
    const char *scores = json_get_string(j, "scoring_func");
    TRY(family_must_be(j, "use_gemma_norm", true, err));
    TRY(family_must_be(j, "use_qk_norm", true, err));
    TRY(family_must_be(j, "use_routing_bias", true, err));
    TRY(family_must_be(j, "attention_output_gate", false, err));
    if (norm && strcmp(norm, "per_head") != 0) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: qk_norm_type '%.40s' is not supported",
                       norm);
    }
    if (scores && strcmp(scores, "sigmoid") != 0) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: scoring_func '%.40s' is not supported",
                       scores);
    }
    if (json_get_int(j, "n_shared_experts", 1) != 1) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: n_shared_experts other than 1 is not supported");
    }
    return OK;
}

static enum status read_minimax_m3(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t rotated = json_get_int(j, "rotary_dim", c->head_dim);
    c->norm_offset = 1.0f;
    c->qk_norm = QK_NORM_HEAD;
    c->partial_rotary = rotated < c->head_dim ? (float)rotated / (float)c->head_dim : 1.0f;
    c->act = ACT_GPT_OSS;
    c->act_shape = (struct act_shape){
        .limit = (float)json_get_number(j, "swiglu_limit", (double)ACT_SHAPE_PUBLISHED.limit),
        .alpha = (float)json_get_number(j, "swiglu_alpha", (double)ACT_SHAPE_PUBLISHED.alpha)};
    TRY(check_fixed(j, err));
    TRY(read_experts(j, c, err));
    return read_indexers(j, c, err);
}

/* The window is that of all layers with attention, whatever their type is called. */
static enum status window_on_attention(const struct json *j, struct model_config *c,
                                       struct err *err)
{
    (void)err;
    family_window_on_all(j, c);
    return OK;
}

/* The factors of the residual and of a sub-layer's output. */
static void read_factors(const struct json *j, const char *alpha_key, const char *beta_key,
                         float *x_scale, float *out_scale)
{
    const double alpha = json_get_number(j, alpha_key, 1.0);
    *x_scale = (float)alpha;
    *out_scale = (float)(json_get_number(j, beta_key, 1.0) / alpha);
}

static enum status read_lightning(const struct json *j, struct model_config *c, struct err *err)
{
    struct state_config *s = &c->state;
    const char *act = json_get_string(j, "hidden_act");
    s->layer = (struct state_layer){.kind = STATE_DECAY,
                                    .n_heads = c->n_heads,
                                    .n_key_heads = c->n_heads,
                                    .key_dim = c->head_dim,
                                    .value_dim = c->head_dim,
                                    .conv_width = 3 * c->n_heads * c->head_dim,
                                    .conv_kernel = 1};
    s->conv_silu = s->fixed_decays = s->normed = s->norm_is_wide = true;
    s->norm_group = c->n_heads * c->head_dim;
    s->norm_eps = 1e-6f; // does not depend on rms_norm_eps
    s->gate = GATE_SIGMOID;
    if (act && c->act != ACT_SILU) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: hidden_act '%.40s' is not supported in this family", act);
    }
    return OK;
}

/* Every second layer has lightning attention unless layer_types says otherwise. */
static enum status read_minimax(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t rotated = json_get_int(j, "rotary_dim", c->head_dim);
    c->partial_rotary = rotated < c->head_dim ? (float)rotated / (float)c->head_dim : 1.0f;
    TRY(read_lightning(j, c, err));
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    c->scoring = MOE_SOFTMAX_TOPK;
    c->renormalise = c->norms_replace = true;
    c->read_layers = window_on_attention;
    float ffn = 0.0f;
    read_factors(j, "full_attn_alpha_factor", "full_attn_beta_factor", &c->attn_x_scale,
                 &c->attn_out_scale);
    read_factors(j, "linear_attn_alpha_factor", "linear_attn_beta_factor", &c->state_x_scale,
                 &c->state_out_scale);
    read_factors(j, "mlp_alpha_factor", "mlp_beta_factor", &c->ffn_x_scale, &ffn);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].ffn_out_scale = ffn;
        c->layers[i].kv = i % 2 == 0 ? 0 : -1;
        c->layers[i].state = i % 2 == 0 ? -1 : 0;
    }
    return OK;
}

#define M3_DEFAULTS                                                                                \
    "{\"intermediate_size\":3072,\"eos_token_id\":200020,\"num_key_value_heads\":4,"               \
    "\"head_dim\":128,\"max_position_embeddings\":524288,\"num_local_experts\":128,"               \
    "\"num_experts_per_tok\":4,\"routed_scaling_factor\":2,"                                       \
    "\"dense_intermediate_size\":12288,\"shared_intermediate_size\":3072,"                         \
    "\"rope_theta\":5000000,\"index_n_heads\":4,\"index_head_dim\":128,"                           \
    "\"index_block_size\":128,\"index_topk_blocks\":16,\"index_local_blocks\":1}"

static const struct family rows[] = {
    {"minimax", &minimax_names,
     "{\"eos_token_id\":2,\"rms_norm_eps\":1e-5,\"num_key_value_heads\":8,\"num_local_experts\":8,"
     "\"num_experts_per_tok\":2,\"rope_theta\":1000000,\"max_position_embeddings\":131072,"
     "\"other_keys\":{\"num_experts\":\"num_local_experts\"}}",
     read_minimax},
    {"minimax_m3_vl_text", &minimax_m3_names, M3_DEFAULTS, read_minimax_m3},
    {"minimax_m3_vl", &minimax_m3_names, M3_DEFAULTS, read_minimax_m3},
};
const struct family_table families_minimax = {rows, sizeof rows / sizeof rows[0]};
