// SPDX-License-Identifier: Apache-2.0
/* Step 3.5 and the language part of Step 3.7. Released files have keys of their own, many of them
 * with a value for each layer. */
#include "engine/base/json.h"
#include "engine/base/optional.h"
#include "engine/model/family_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tensor_names step_names = {
    BASE_NAMES, QKV_NAMES, QK_NORM_NAMES, FFN_NAMES, .attn_gate = "self_attn.g_proj",
    .router = "moe.gate", .correction = "moe.router_bias", .experts_gate = "moe.gate_proj.weight",
    .experts_up = "moe.up_proj.weight", .experts_down = "moe.down_proj.weight",
    // only GGUF files use these names
    .expert_gate = "moe.experts.%d.gate_proj", .expert_up = "moe.experts.%d.up_proj",
    .expert_down = "moe.experts.%d.down_proj", .shared_gate = "share_expert.gate_proj",
    .shared_up = "share_expert.up_proj", .shared_down = "share_expert.down_proj"};

/* The layers with experts, in a list or in a text such as "3,4,5". */
static enum status listed_experts(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *list = json_get(j, "moe_layers_enum");
    const char *text = json_string(list);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = json_type(list) == JSON_NULL && i >= 3;
    }
    for (const struct json *item = json_first(list); item; item = json_next(item)) {
        int64_t i = -1;
        if (json_int64(item, &i) && i >= 0 && i < c->n_layers) {
            c->layers[i].moe = true;
        }
    }
    while (text && *text) {
        char *end;
        const long i = strtol(text, &end, 10);
        if (end == text || (*end && *end != ',')) {
            return err_set(err, ERR_FORMAT,
                           "config.json: moe_layers_enum must be a list of layers, but has '%.40s'",
                           text);
        }
        if (i >= 0 && i < c->n_layers) {
            c->layers[i].moe = true;
        }
        text = *end ? end + 1 : end;
    }
    return OK;
}

/* A limit for each layer; 0 and null: it has none. */
static enum status limits_of(const struct json *j, const char *key, bool of_experts,
                             struct model_config *c, struct err *err)
{
    const struct json *list = json_get(j, key), *item = json_first(list);
    if (!item) {
        return OK;
    }
    if (json_count(list) < (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT, "config.json: %s has fewer entries than layers", key);
    }
    for (int32_t i = 0; i < c->n_layers; i++, item = json_next(item)) {
        const float limit = (float)json_number(item, 0.0);
        if (!(limit >= 0.0f) || !isfinite(limit)) {
            return err_set(err, ERR_FORMAT, "config.json: %s must have numbers of at least 0", key);
        }
        if (of_experts) {
            c->layers[i].experts_limit = limit;
        } else {
            c->layers[i].mlp_limit = limit;
        }
    }
    return OK;
}

/* The number of query heads of layers with a window. */
static enum status sliding_heads(const struct json *j, int64_t *out, struct model_config *c,
                                 struct err *err)
{
    const struct json *other = json_get(j, "attention_other_setting");
    *out = json_get_int(other, "num_attention_heads", c->n_heads);
    *out = json_get_int(j, "num_sliding_attention_heads", *out);
    if (json_get_int(other, "num_attention_groups", c->n_kv_heads) != c->n_kv_heads ||
        json_get_int(other, "head_dim", c->head_dim) != c->head_dim) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: attention_other_setting with another num_attention_groups or "
                       "head_dim than other layers is not supported");
    }
    TRY(family_positive("num_sliding_attention_heads", *out, 4096, err));
    if (*out % c->n_kv_heads) {
        return err_set(err, ERR_FORMAT, "config.json: %lld heads cannot share %d key/value heads",
                       (long long)*out, c->n_kv_heads);
    }
    return OK;
}

/* The same where transformers saves it, which takes precedence. */
static enum status own_heads(const struct json *own, int32_t layer, int64_t *n, struct err *err)
{
    char key[16];
    snprintf(key, sizeof key, "%d", layer);
    for (const struct json *v = json_first(json_get(own, key)); v; v = json_next(v)) {
        if (strcmp(json_key(v), "num_attention_heads") != 0) {
            return err_set(err, ERR_UNSUPPORTED,
                           "config.json: per_layer_config: %.80s cannot differ by layer",
                           json_key(v));
        }
        json_int64(v, n);
    }
    return OK;
}

/* Reads a layer's number from a list, or the one of all layers; 0: there is none. *of_kind: that of
 * layers of the same kind, which share a rope; 0: not known yet. */
static enum status rope_of_layer(const struct json *j, const char *key, int32_t layer,
                                 double *of_kind, struct err *err)
{
    const struct json *list = json_get(j, key), *item = list;
    if (json_is(list, JSON_ARRAY)) {
        item = json_first(list);
        for (int32_t i = 0; item && i < layer; i++) {
            item = json_next(item);
        }
        if (!item) {
            return err_set(err, ERR_FORMAT, "config.json: %s has fewer entries than layers", key);
        }
    }
    const double v = json_number(item, 0.0);
    if (*of_kind > 0.0 && fabs(v - *of_kind) > 0.0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: %s differs between layers of one type, which is not supported",
                       key);
    }
    *of_kind = v;
    return OK;
}

static enum status step_layers(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *own = json_get(j, "per_layer_config");
    int64_t sliding = 0;
    TRY(sliding_heads(j, &sliding, c, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        const int32_t rope = l->window > 0;
        int64_t n = json_is(own, JSON_OBJECT) || !rope ? c->n_heads : sliding;
        TRY(own_heads(own, i, &n, err));
        TRY(family_positive("num_attention_heads", n, 4096, err));
        if (n % c->n_kv_heads) {
            return err_set(err, ERR_FORMAT,
                           "config.json: %lld heads cannot share %d key/value heads", (long long)n,
                           c->n_kv_heads);
        }
        l->n_heads = (int32_t)n;
        TRY(rope_of_layer(j, "rope_theta", i, &c->rope_theta[rope], err));
        TRY(rope_of_layer(j, "partial_rotary_factors", i, &c->rope_share[rope], err));
    }
    return OK;
}

/* Switches of released files, which have these values. */
static enum status step_switches(const struct json *j, struct err *err)
{
    static const char *const on[] = {"zero_centered", "use_head_wise_attn_gate",
                                     "norm_expert_weight", "use_moe_router_bias", "use_qk_norm"};
    const char *scores = json_get_string(j, "moe_router_activation");
    for (size_t i = 0; i < sizeof on / sizeof on[0]; i++) {
        TRY(family_must_be(j, on[i], true, err));
    }
    if (strcmp(or_text(scores, "sigmoid"), "sigmoid") != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: the moe_router_activation '%.40s' is not supported", scores);
    }
    if (json_count(json_get(j, "use_rope_layers")) > 0) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: use_rope_layers is not supported");
    }
    return OK;
}

static enum status read_step(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(step_switches(j, err));
    TRY(family_experts(j, "n_routed_experts", "moe_intermediate_size", c, err));
    TRY(family_size(j, "share_expert_dim", 1 << 22, &c->shared_ffn, err));
    if (json_is(json_get(j, "mlp_layer_types"), JSON_ARRAY)) {
        TRY(family_dense_layers(j, 0, c, err));
    } else {
        TRY(listed_experts(j, c, err));
    }
    TRY(limits_of(j, "swiglu_limits", true, c, err));
    TRY(limits_of(j, "swiglu_limits_shared", false, c, err));
    c->scoring = MOE_SIGMOID;
    c->renormalise = c->correction = true;
    c->routed_scale = (float)json_get_number(j, "moe_router_scaling_factor", 1.0);
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    c->act = ACT_SILU; // whatever hidden_act says
    c->attn_gate = ATTN_GATE_HEADS;
    c->qk_norm = QK_NORM_HEAD;
    c->norm_offset = 1.0f;
    c->attn_scale =
        (float)(1.0 / sqrt(json_get_number(j, "query_pre_attn_scalar", (double)c->head_dim)));
    c->n_ropes = 2;
    c->read_layers = step_layers;
    return OK;
}

#define STEP                                                                                       \
    "{\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":128000,"              \
    "\"rms_norm_eps\":1e-5,\"n_routed_experts\":288,\"num_experts_per_tok\":8,"                    \
    "\"moe_intermediate_size\":1280,\"share_expert_dim\":1280,\"other_keys\":{"                    \
    "\"num_attention_groups\":\"num_key_value_heads\",\"moe_num_experts\":\"n_routed_experts\","   \
    "\"num_local_experts\":\"n_routed_experts\",\"moe_top_k\":\"num_experts_per_tok\","            \
    "\"share_expert_dims\":\"share_expert_dim\"}}"

static const struct family rows[] = {
    {"step3p5", &step_names, STEP, read_step},
    {"step3p7", &step_names, STEP, read_step},
};
const struct family_table families_step = {rows, sizeof rows / sizeof rows[0]};
