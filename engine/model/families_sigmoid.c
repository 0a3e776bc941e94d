// SPDX-License-Identifier: Apache-2.0
/* Families with plain attention and experts that are picked by sigmoids, mostly as in DeepSeek V3:
 * a correction affects only the picks. */
#include "engine/base/json.h"
#include "engine/base/optional.h"
#include "engine/model/family_parts.h"

#include <math.h>
#include <string.h>

static const struct tensor_names minimax_m2_names = {
    BASE_NAMES,
    QKV_NAMES,
    QK_NORM_NAMES,
    .router = "block_sparse_moe.gate",
    .correction = "block_sparse_moe.e_score_correction_bias",
    .expert_gate = "block_sparse_moe.experts.%d.w1",
    .expert_up = "block_sparse_moe.experts.%d.w3",
    .expert_down = "block_sparse_moe.experts.%d.w2"};

static const struct tensor_names hy_v3_names = {BASE_NAMES,
                                                QKV_NAMES,
                                                QK_NORM_NAMES,
                                                FFN_NAMES,
                                                EACH_EXPERT_NAMES,
                                                SHARED_MLP_NAMES,
                                                .router = "mlp.router.gate",
                                                .correction = "mlp.expert_bias"};

static const struct tensor_names exaone_moe_names = {BASE_NAMES,
                                                     QKV_NAMES,
                                                     QK_NORM_NAMES,
                                                     FFN_NAMES,
                                                     EXPERT_NAMES,
                                                     SHARED_NAMES,
                                                     .correction = "mlp.e_score_correction_bias"};

static const struct tensor_names glm4_moe_names = {BASE_NAMES,
                                                   QKV_NAMES,
                                                   QK_NORM_NAMES,
                                                   FFN_NAMES,
                                                   EXPERT_NAMES,
                                                   SHARED_NAMES,
                                                   .correction =
                                                       "mlp.gate.e_score_correction_bias"};

static const struct tensor_names afmoe_names = {QKV_NAMES,
                                                QK_NORM_NAMES,
                                                FFN_NAMES,
                                                EACH_EXPERT_NAMES,
                                                SHARED_NAMES,
                                                .embed = "model.embed_tokens",
                                                .final_norm = "model.norm",
                                                .head = "lm_head",
                                                .attn_norm = "input_layernorm",
                                                .attn_post_norm = "post_attention_layernorm",
                                                .ffn_norm = "pre_mlp_layernorm",
                                                .ffn_post_norm = "post_mlp_layernorm",
                                                .o = "self_attn.o_proj",
                                                .attn_gate = "self_attn.gate_proj",
                                                .router = "mlp.router.gate",
                                                .correction = "mlp.expert_bias"};

static const struct tensor_names sarvam_names = {LING_NAMES, .qkv = "attention.query_key_value",
                                                 .q_norm = "attention.query_layernorm",
                                                 .k_norm = "attention.key_layernorm"};

static const struct tensor_names laguna_names = {BASE_NAMES,
                                                 QKV_NAMES,
                                                 QK_NORM_NAMES,
                                                 FFN_NAMES,
                                                 EXPERT_NAMES,
                                                 SHARED_EXPERT_NAMES,
                                                 .attn_gate = "self_attn.g_proj",
                                                 .correction =
                                                     "mlp.experts.e_score_correction_bias"};

static const struct tensor_names mimo_v2_names = {BASE_NAMES,
                                                  QKV_NAMES,
                                                  FFN_NAMES,
                                                  EXPERT_NAMES,
                                                  .sinks = "self_attn.attention_sink_bias",
                                                  .correction = "mlp.gate.e_score_correction_bias"};

static const struct tensor_names flint_names = {BASE_NAMES,
                                                QKV_NAMES,
                                                QK_NORM_NAMES,
                                                FFN_NAMES,
                                                EXPERT_NAMES,
                                                SHARED_EXPERT_NAMES,
                                                .sinks = "self_attn.softmax_offset"};

static const struct tensor_names kolibri_names = {
    QKV_NAMES,
    QK_NORM_NAMES,
    EXPERT_NAMES,
    SHARED_NAMES,
    .correction = "moe.router.expert_bias",
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .o = "self_attn.o_proj",
    .attn_norm = "input_layernorm",
    .attn_post_norm = "post_attn_norm",
    .ffn_norm = "post_attention_layernorm",
    .ffn_post_norm = "post_ffn_norm",
};

/* Norms over the whole width of q and k. */
static enum status read_minimax_m2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    c->scoring = MOE_SIGMOID;
    c->renormalise = c->correction = true;
    c->qk_norm = QK_NORM_WIDTH;
    int64_t rotated = json_get_int(j, "rotary_dim", c->head_dim);
    TRY(family_positive("rotary_dim", rotated, c->head_dim, err));
    c->partial_rotary = (float)rotated / (float)c->head_dim;
    return OK;
}

static enum status read_hy_v3(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(family_shared_experts(j, "num_shared_experts", c, err));
    TRY(family_dense_layers(j, json_get_int(j, "first_k_dense_replace", 1), c, err));
    TRY(family_routing_v3(j, c, err));
    c->renormalise = true;
    c->routed_scale = (float)json_get_number(j, "router_scaling_factor", 1.0);
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    return OK;
}

static enum status read_exaone_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(family_shared_experts(j, "num_shared_experts", c, err));
    TRY(family_dense_layers(j, json_get_int(j, "first_k_dense_replace", 1), c, err));
    TRY(family_routing_v3(j, c, err));
    return family_exaone_attention(j, c, err);
}

static enum status read_glm4_moe(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = json_get_bool(j, "attention_bias", false);
    if (json_get_bool(j, "use_qk_norm", false)) {
        c->qk_norm = QK_NORM_HEAD;
    } else {
        c->qk_norm = QK_NORM_NONE;
    }
    c->partial_rotary = 0.5f;
    TRY(family_experts(j, "n_routed_experts", "moe_intermediate_size", c, err));
    TRY(family_dense_layers(j, json_get_int(j, "first_k_dense_replace", 1), c, err));
    TRY(family_shared_experts(j, "n_shared_experts", c, err));
    return family_routing_v3(j, c, err);
}

/* The same without unrotated elements. */
static enum status read_sarvam_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_glm4_moe(j, c, err));
    c->partial_rotary = 1.0f;
    return OK;
}

/* Qwen 3's attention with windows from max_window_layers on. */
static enum status read_dots1(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    family_window_on_all(j, c);
    const int64_t full = json_get_int(j, "max_window_layers", 62);
    for (int32_t i = 0; i < c->n_layers && i < full; i++) {
        c->layers[i].window = 0;
    }
    TRY(family_experts(j, "n_routed_experts", "moe_intermediate_size", c, err));
    TRY(family_dense_layers(j, json_get_int(j, "first_k_dense_replace", 0), c, err));
    TRY(family_shared_experts(j, "n_shared_experts", c, err));
    return family_routing_v3(j, c, err);
}

/* GLM's router without norms of q and k, dense layers, and unrotated elements. */
static enum status read_solar_open(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = json_get_bool(j, "attention_bias", false);
    TRY(family_experts(j, "n_routed_experts", "moe_intermediate_size", c, err));
    TRY(family_shared_experts(j, "n_shared_experts", c, err));
    return family_routing_v3(j, c, err);
}

/* Gated attention between two norms, where only layers with a window have positions. */
static enum status read_afmoe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(family_shared_experts(j, "num_shared_experts", c, err));
    TRY(family_dense_layers(j, json_get_int(j, "num_dense_layers", 1), c, err));
    c->scoring = MOE_SIGMOID;
    c->renormalise = c->correction = true;
    c->routed_scale = (float)json_get_number(j, "route_scale", 1.0);
    c->norm_place = NORM_SANDWICH;
    c->attn_gate = ATTN_GATE_WIDE;
    c->qk_norm = QK_NORM_HEAD;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->full_without_rope = true;
    family_window_but_every(j, json_get_int(j, "global_attn_every_n_layers", 4), c);
    if (json_get_bool(j, "mup_enabled", false)) {
        c->embed_scale = sqrtf((float)c->hidden);
    }
    return OK;
}

/* Softplus gates of heads or of their elements. */
static enum status laguna_gates(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *gating = json_get(j, "gating");
    const char *name = json_string(gating);
    c->attn_gate_softplus = true;
    if (json_get_bool(j, "gating", !name) || (name && strcmp(name, "per-head") == 0)) {
        c->attn_gate = ATTN_GATE_HEADS;
    } else if (name && strcmp(name, "per-element") == 0) {
        c->attn_gate = ATTN_GATE_WIDE;
    } else {
        return err_set(err, ERR_UNSUPPORTED, "config.json: gating '%s' is not supported",
                       or_text(name, "false"));
    }
    return OK;
}

static enum status read_laguna(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(family_size(j, "shared_expert_intermediate_size", 1 << 22, &c->shared_ffn, err));
    TRY(family_dense_layers(j, 1, c, err));
    TRY(family_must_be(j, "moe_apply_router_weight_on_input", false, err));
    if (json_get_number(j, "moe_router_logit_softcapping", 0.0) > 0.0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: moe_router_logit_softcapping above 0 is not supported");
    }
    c->scoring = MOE_SIGMOID;
    c->renormalise = c->correction = true;
    c->routed_scale = (float)json_get_number(j, "moe_routed_scaling_factor", 1.0);
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    TRY(family_heads_of_layers(j, "num_attention_heads_per_layer", c, err));
    return laguna_gates(j, c, err);
}

/* Lists with 1 for layers that have a window, or experts. Without them the first layer has neither,
 * and every sixth no window. */
static enum status mimo_v2_layers(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *windows = json_get(j, "hybrid_layer_pattern"), *window = json_first(windows);
    const struct json *experts = json_get(j, "moe_layer_freq"), *moe = json_first(experts);
    family_window_but_every(j, 6, c);
    c->layers[0].window = 0;
    TRY(family_dense_layers(j, 1, c, err));
    const bool listed = json_type(json_get(j, "mlp_layer_types")) != JSON_NULL;
    if ((window && json_count(windows) < (size_t)c->n_layers) ||
        (moe && json_count(experts) < (size_t)c->n_layers)) {
        return err_set(
            err, ERR_FORMAT,
            "config.json: hybrid_layer_pattern or moe_layer_freq has fewer entries than layers");
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        int64_t has = 0;
        if (window) {
            json_int64(window, &has);
            c->layers[i].window = has ? (int32_t)json_get_int(j, "sliding_window", 0) : 0;
            window = json_next(window);
        }
        if (moe && !listed) {
            has = 0;
            json_int64(moe, &has);
            c->layers[i].moe = has != 0;
            moe = json_next(moe);
        }
    }
    return OK;
}

/* Layers with a window have more heads of keys and values than the others, and sinks.
 * sliding_window_size does not count the row itself. */
static enum status mimo_v2_heads(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t others = json_get_int(j, "sliding_window_size", 0);
    const int64_t wide = json_get_int(j, "swa_num_key_value_heads", 2 * (int64_t)c->n_kv_heads);
    if (others > 0) {
        TRY(family_positive("sliding_window_size", others, MAX_POSITIONS, err));
    }
    TRY(family_positive("swa_num_key_value_heads", wide, c->n_heads, err));
    if (c->n_heads % wide) {
        return err_set(err, ERR_FORMAT, "config.json: %d heads cannot share %lld key/value heads",
                       c->n_heads, (long long)wide);
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        l->n_kv_heads = l->window > 0 ? (int32_t)wide : c->n_kv_heads;
        if (l->window > 0 && others > 0) {
            l->window = (int32_t)others + 1;
        }
    }
    return OK;
}

/* Released files have these keys with the values that the class has. It ignores them. */
static enum status mimo_v2_ropes(const struct json *j, struct err *err)
{
    const double full = json_get_number(j, "rope_theta", 5e6);
    const double sliding = json_get_number(j, "swa_rope_theta", 1e4);
    if (!json_is(json_get(j, "rope_parameters"), JSON_OBJECT) &&
        (fabs(full - 5e6) > 0.0 || fabs(sliding - 1e4) > 0.0)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: a rope_theta other than 5000000, or a swa_rope_theta other "
                       "than 10000, must be in rope_parameters");
    }
    return OK;
}

static enum status read_mimo_v2(const struct json *j, struct model_config *c, struct err *err)
{
    const struct {
        const char *key;
        int64_t value;
    } same[] = {{"swa_head_dim", c->head_dim},
                {"swa_num_attention_heads", c->n_heads},
                {"swa_v_head_dim", json_get_int(j, "v_head_dim", 0)}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (json_get_int(j, same[i].key, same[i].value) != same[i].value) {
            return err_set(err, ERR_UNSUPPORTED,
                           "config.json: %s other than that of layers without a window is not "
                           "supported",
                           same[i].key);
        }
    }
    TRY(family_must_be(j, "add_swa_attention_sink_bias", true, err));
    TRY(family_must_be(j, "add_full_attention_sink_bias", false, err));
    TRY(family_size(j, "v_head_dim", c->head_dim, &c->v_head, err));
    c->v_head = c->v_head < c->head_dim ? c->v_head : 0;
    c->q_bias = json_get_bool(j, "attention_bias", false);
    c->sinks = c->full_without_sinks = true;
    c->attn_out_scale = (float)json_get_number(j, "attention_value_scale", 1.0);
    c->read_layers = mimo_v2_heads;
    TRY(mimo_v2_ropes(j, err));
    TRY(family_experts(j, "n_routed_experts", "moe_intermediate_size", c, err));
    TRY(mimo_v2_layers(j, c, err));
    return family_routing_v3(j, c, err);
}

/* Qwen 3's attention with sinks, where only layers with a window have positions. There is no
 * correction. */
static enum status read_flint(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(family_size(j, "shared_expert_intermediate_size", 1 << 22, &c->shared_ffn, err));
    c->scoring = MOE_SIGMOID;
    c->renormalise = json_get_bool(j, "norm_topk_prob", true);
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    c->sinks = c->full_without_rope = true;
    family_sparse_steps(j, c);
    family_window_on_all(j, c);
    const bool listed = json_type(json_get(j, "mlp_only_layers")) != JSON_NULL;
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        l->moe = l->moe && (listed || i >= 2);
        if (i < 2 || i % 4 == 1 || i == c->n_layers - 1) {
            l->window = 0;
        }
    }
    return OK;
}

/* EXAONE's attention, norms before and after sub-layers, and a router whose bias is added to
 * logits.
 */
static enum status read_kolibri(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(family_size(j, "shared_expert_intermediate_size", 1 << 22, &c->shared_ffn, err));
    TRY(family_must_be(j, "attention_bias", false, err));
    c->scoring = MOE_LOGITS;
    c->correction = true;
    c->renormalise = json_get_bool(j, "norm_topk_prob", false);
    c->norm_place = NORM_SANDWICH;
    c->qk_norm = QK_NORM_HEAD;
    c->full_without_rope = json_get_int(j, "sliding_window", 0) > 0;
    family_window_but_every(j, 5, c);
    return OK;
}

/* The language part. Positions of text are the same in all sections of its rope. */
#define GLM4V_MOE                                                                                  \
    "{\"num_key_value_heads\":8,\"max_position_embeddings\":65536,\"rms_norm_eps\":1e-5,"          \
    "\"attention_bias\":true,\"n_routed_experts\":128,\"n_shared_experts\":1,"                     \
    "\"num_experts_per_tok\":8,\"moe_intermediate_size\":1408}"

static const struct family rows[] = {
    {"minimax_m2", &minimax_m2_names,
     "{\"eos_token_id\":200020,\"num_key_value_heads\":8,\"head_dim\":128,"
     "\"max_position_embeddings\":196608,\"num_local_experts\":256,\"num_experts_per_tok\":8,"
     "\"rope_theta\":5000000}",
     read_minimax_m2},
    {"glm4_moe", &glm4_moe_names,
     "{\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,"
     "\"n_shared_experts\":1,\"num_experts_per_tok\":8,"
     "\"moe_intermediate_size\":1408,\"num_nextn_predict_layers\":1}",
     read_glm4_moe},
    {"glm4v_moe_text", &glm4_moe_names, GLM4V_MOE, read_glm4_moe},
    {"glm4v_moe", &glm4_moe_names, GLM4V_MOE, read_glm4_moe},
    {"solar_open", &glm4_moe_names,
     "{\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":131072,"
     "\"rms_norm_eps\":1e-5,\"rope_theta\":1000000,\"n_shared_experts\":1,"
     "\"num_experts_per_tok\":8,\"moe_intermediate_size\":1280}",
     read_solar_open},
    {"dots1", &glm4_moe_names,
     "{\"num_key_value_heads\":32,\"sliding_window\":4096,\"norm_topk_prob\":false}", read_dots1},
    {"sarvam_moe", &sarvam_names,
     "{\"eos_token_id\":1,\"num_key_value_heads\":4,\"head_dim\":64,"
     "\"max_position_embeddings\":131072,\"rope_theta\":8000000,\"use_qk_norm\":true,"
     "\"n_shared_experts\":1,\"n_routed_experts\":128,\"num_experts_per_tok\":6,"
     "\"moe_intermediate_size\":1024,\"routed_scaling_factor\":2.5,"
     "\"other_keys\":{\"num_experts\":\"n_routed_experts\","
     "\"num_local_experts\":\"n_routed_experts\","
     "\"num_shared_experts\":\"n_shared_experts\",\"use_qkv_bias\":\"attention_bias\"}}",
     read_sarvam_moe},
    {"hy_v3", &hy_v3_names,
     "{\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":131072,"
     "\"rms_norm_eps\":1e-5,\"rope_theta\":11158840,\"moe_intermediate_size\":1536,"
     "\"num_experts\":192,\"num_experts_per_tok\":8,\"num_shared_experts\":1,"
     "\"router_scaling_factor\":2.826}",
     read_hy_v3},
    {"exaone_moe", &exaone_moe_names,
     "{\"eos_token_id\":53,"
     "\"rms_norm_eps\":1e-5,\"sliding_window\":4096,\"moe_intermediate_size\":1024,"
     "\"num_experts\":64,\"num_experts_per_tok\":8,\"num_shared_experts\":1,"
     "\"routed_scaling_factor\":2.5}",
     read_exaone_moe},
    {"afmoe", &afmoe_names,
     "{\"head_dim\":128,\"max_position_embeddings\":16384,\"rms_norm_eps\":1e-5,"
     "\"sliding_window\":1024,\"moe_intermediate_size\":1408,\"num_experts\":64,"
     "\"num_experts_per_tok\":6,\"num_shared_experts\":2}",
     read_afmoe},
    {"flint", &flint_names,
     "{\"num_key_value_heads\":4,\"head_dim\":128,\"max_position_embeddings\":262144,"
     "\"sliding_window\":513,\"moe_intermediate_size\":512,"
     "\"shared_expert_intermediate_size\":1024,\"num_experts\":256,\"num_experts_per_tok\":6}",
     read_flint},
    {"kolibri1", &kolibri_names,
     "{\"num_key_value_heads\":4,\"head_dim\":128,\"max_position_embeddings\":262144,"
     "\"sliding_window\":513,\"moe_intermediate_size\":512,"
     "\"shared_expert_intermediate_size\":512,\"num_local_experts\":384,\"num_experts_per_tok\":6}",
     read_kolibri},
    {"mimo_v2_flash", &mimo_v2_names,
     "{\"num_key_value_heads\":4,\"head_dim\":192,\"v_head_dim\":128,"
     "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"sliding_window\":129,"
     "\"n_routed_experts\":256,\"num_experts_per_tok\":8,\"moe_intermediate_size\":2048,"
     "\"attention_value_scale\":0.707,\"other_keys\":{\"layernorm_epsilon\":\"rms_norm_eps\"},"
     "\"rope_of_class\":{"
     "\"full_attention\":{\"rope_theta\":5000000,\"partial_rotary_factor\":0.334},"
     "\"sliding_attention\":{\"rope_theta\":10000,\"partial_rotary_factor\":0.334}}}",
     read_mimo_v2},
    {"laguna", &laguna_names,
     "{\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":131072,"
     "\"sliding_window\":512,\"moe_intermediate_size\":512,"
     "\"shared_expert_intermediate_size\":512,\"num_experts\":256,\"num_experts_per_tok\":8,"
     "\"rope_of_class\":{\"full_attention\":{\"rope_theta\":500000,\"partial_rotary_factor\":0.5},"
     "\"sliding_attention\":{\"rope_theta\":10000}}}",
     read_laguna},
};
const struct family_table families_sigmoid = {rows, sizeof rows / sizeof rows[0]};
