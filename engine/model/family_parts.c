// SPDX-License-Identifier: Apache-2.0
/* Parts that several families share: reading sizes, windows, experts and their routing. */
#include "engine/model/family_parts.h"
#include "engine/base/optional.h"

#include "engine/base/json.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

const struct tensor_names llama_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES};

void family_window_on_all(const struct json *j, struct model_config *c)
{
    int32_t window = (int32_t)json_get_int(j, "sliding_window", 0);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].window = greater(window, 0);
    }
}

void family_window_on_even(const struct json *j, struct model_config *c)
{
    family_window_on_all(j, c);
    for (int32_t i = 1; i < c->n_layers; i += 2) {
        c->layers[i].window = 0;
    }
}

void family_windows_if_used(const struct json *j, struct model_config *c)
{
    for (int32_t i = 0; i < c->n_layers && !json_get_bool(j, "use_sliding_window", false); i++) {
        c->layers[i].window = 0;
    }
}

void family_window_but_every(const struct json *j, int64_t n, struct model_config *c)
{
    family_window_on_all(j, c);
    for (int32_t i = 0; i < c->n_layers && n > 0; i++) {
        if ((i + 1) % n == 0) {
            c->layers[i].window = 0;
        }
    }
}

enum status family_hunyuan_attention(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "use_qk_norm", true, err));
    TRY(family_must_be(j, "use_rotary_pos_emb", true, err));
    TRY(family_must_be(j, "use_cla", false, err));
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    c->qk_norm_after_rope = true;
    return OK;
}

/* A text such as "LLLG" gives the kinds of the layers, local or global, and repeats. The last layer
 * is global whatever its letter. */
static enum status windows_by_letters(const char *letters, struct model_config *c, struct err *err)
{
    size_t n = strlen(letters);
    if (n == 0 || strspn(letters, "LG") != n) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: the sliding_window_pattern '%.40s' is not one of L and G",
                       letters);
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        bool global = letters[(size_t)i % n] == 'G' || i == c->n_layers - 1;
        if (global) {
            c->layers[i].window = 0;
        }
    }
    return OK;
}

enum status family_exaone_attention(const struct json *j, struct model_config *c, struct err *err)
{
    const char *letters = json_get_string(j, "sliding_window_pattern");
    c->qk_norm = QK_NORM_HEAD;
    c->full_without_rope = json_get_int(j, "sliding_window", 0) > 0;
    if (letters) {
        family_window_on_all(j, c);
        return windows_by_letters(letters, c, err);
    }
    family_window_but_every(j, json_get_int(j, "sliding_window_pattern", 4), c);
    return OK;
}

/* In the list, 1 marks a layer with rope. If there is no list, every n-th layer has no rope. */
enum status family_no_rope_layers(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *list = json_get(j, "no_rope_layers"), *item = json_first(list);
    if (item && json_count(list) < (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT,
                       "config.json: no_rope_layers has fewer entries than layers");
    }
    int64_t every = json_get_int(j, "no_rope_layer_interval", 4);
    for (int32_t i = 0; i < c->n_layers; i++) {
        int64_t has_rope = every < 1 || (i + 1) % every != 0;
        if (item) {
            json_int64(item, &has_rope);
            item = json_next(item);
        }
        c->layers[i].rope = has_rope ? 0 : -1;
    }
    return OK;
}

enum status family_layer_bases(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *list = json_get(j, "layer_rope_theta"), *item = json_first(list);
    if (item && json_count(list) < (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT,
                       "config.json: layer_rope_theta has fewer entries than layers");
    }
    for (int32_t i = 0; item && i < c->n_layers; i++, item = json_next(item)) {
        const double base = json_number(item, 0.0);
        if (!(base > 0.0)) {
            c->layers[i].rope = -1;
        } else if (c->rope_theta[0] > 0.0 && fabs(c->rope_theta[0] - base) > 0.0) {
            return err_set(err, ERR_UNSUPPORTED,
                           "config.json: layer_rope_theta with several bases is not supported");
        } else {
            c->rope_theta[0] = base;
        }
    }
    return OK;
}

enum status family_no_clips(const struct json *j, struct err *err)
{
    if (json_type(json_get(j, "clip_qkv")) != JSON_NULL) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: clip_qkv is not supported");
    }
    return OK;
}

/* Sizes from a config are checked against a limit before anything is computed from them. */
enum status family_positive(const char *key, int64_t v, int64_t max, struct err *err)
{
    if (v < 1 || v > max) {
        return err_set(err, ERR_FORMAT, "config.json: %s must be from 1 to %lld", key,
                       (long long)max);
    }
    return OK;
}

enum status family_set_experts(const struct experts_numbers *s, struct model_config *c,
                               struct err *err)
{
    TRY(family_positive(s->count_key, s->n, MAX_EXPERTS, err));
    TRY(family_positive(s->pick_key, s->k, lesser(s->n, MAX_PICKS), err));
    TRY(family_positive(s->ffn_key, s->ffn, 1 << 22, err));
    c->n_experts = (int32_t)s->n;
    c->experts_per_token = (int32_t)s->k;
    c->moe_ffn = (int32_t)s->ffn;
    c->n_group = c->topk_group = 1;
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = true;
    }
    return OK;
}

enum status family_size(const struct json *j, const char *key, int64_t max, int32_t *out,
                        struct err *err)
{
    int64_t v = json_get_int(j, key, 0);
    TRY(family_positive(key, v, max, err));
    *out = (int32_t)v;
    return OK;
}

void family_ffn(struct model_config *c, int32_t ffn)
{
    c->ffn = ffn;
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].ffn = ffn;
    }
}

enum status family_experts(const struct json *j, const char *count_key, const char *ffn_key,
                           struct model_config *c, struct err *err)
{
    struct experts_numbers s = {.count_key = count_key,
                                .pick_key = "num_experts_per_tok",
                                .ffn_key = ffn_key,
                                .n = json_get_int(j, count_key, 0),
                                .k = json_get_int(j, "num_experts_per_tok", 0),
                                .ffn = json_get_int(j, ffn_key, 0)};
    if (s.n == 0) { // transformers 5 uses one name for all families
        s.n = json_get_int(j, "num_local_experts", 0);
    }
    return family_set_experts(&s, c, err);
}

enum status family_shared_experts(const struct json *j, const char *key, struct model_config *c,
                                  struct err *err)
{
    int64_t shared = json_get_int(j, key, 0);
    if (shared < 0 || shared > 64) {
        return err_set(err, ERR_FORMAT, "config.json: %s must be from 0 to 64", key);
    }
    c->shared_ffn = (int32_t)shared * c->moe_ffn;
    return OK;
}

/* Groups must divide the experts evenly. */
enum status family_routing(const struct json *j, struct model_config *c, struct err *err)
{
    c->routed_scale = (float)json_get_number(j, "routed_scaling_factor", 1.0);
    c->n_group = (int32_t)json_get_int(j, "n_group", 1);
    c->topk_group = (int32_t)json_get_int(j, "topk_group", 1);
    if (c->n_group < 1 || c->n_experts % c->n_group || c->topk_group < 1 ||
        c->topk_group > c->n_group) {
        return err_set(err, ERR_FORMAT, "config.json: n_group and topk_group do not fit %d experts",
                       c->n_experts);
    }
    return OK;
}

/* DeepSeek V3's routing: sigmoid scores, a correction that affects only the picks, and normalised
 * weights. */
enum status family_routing_v3(const struct json *j, struct model_config *c, struct err *err)
{
    c->scoring = MOE_SIGMOID;
    c->renormalise = json_get_bool(j, "norm_topk_prob", true);
    c->correction = true;
    TRY(family_routing(j, c, err));
    if (c->experts_per_token > c->topk_group * (c->n_experts / c->n_group)) {
        return err_set(err, ERR_FORMAT,
                       "config.json: %d of %d groups of experts (topk_group, n_group) have fewer "
                       "than num_experts_per_tok, %d",
                       c->topk_group, c->n_group, c->experts_per_token);
    }
    return OK;
}

/* The first layers are dense; after them every freq-th layer has experts. */
enum status family_every_freq(const struct json *j, struct model_config *c, struct err *err)
{
    int64_t dense = json_get_int(j, "first_k_dense_replace", 0);
    int64_t freq = json_get_int(j, "moe_layer_freq", 1);
    if (json_is(json_get(j, "moe_layer_freq"), JSON_ARRAY)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: moe_layer_freq must be an integer in this family");
    }
    TRY(family_positive("moe_layer_freq", freq, MAX_LAYERS, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = i >= dense && i % freq == 0;
    }
    return OK;
}

/* mlp_layer_types takes precedence over the number of dense layers. */
enum status family_dense_layers(const struct json *j, int64_t n_dense, struct model_config *c,
                                struct err *err)
{
    const struct json *types = json_get(j, "mlp_layer_types");
    if (json_is(types, JSON_ARRAY) && json_count(types) < (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT,
                       "config.json: mlp_layer_types has fewer entries than layers");
    }
    const struct json *type = json_first(types);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = i >= n_dense;
        if (type) {
            const char *name = json_string(type);
            c->layers[i].moe = name && strcmp(name, "sparse") == 0;
            if (!c->layers[i].moe && (!name || strcmp(name, "dense") != 0)) {
                return err_set(err, ERR_UNSUPPORTED, "config.json: unknown mlp_layer_type '%s'",
                               or_text(name, "(not a string)"));
            }
            type = json_next(type);
        }
    }
    return OK;
}

enum status family_same_of_layers(const struct json *j, const char *key, int32_t n_layers,
                                  int64_t *out, struct err *err)
{
    const struct json *node = json_get(j, key);
    *out = json_get_int(j, key, 0);
    if (!json_is(node, JSON_ARRAY)) {
        return OK;
    }
    int32_t i = 0;
    for (const struct json *v = json_first(node); v && i < n_layers; v = json_next(v), i++) {
        int64_t one = 0;
        json_int64(v, &one);
        if (i > 0 && one != *out) {
            return err_set(err, ERR_UNSUPPORTED,
                           "config.json: %s differs between layers, which is not supported", key);
        }
        *out = one;
    }
    if (i < n_layers) {
        return err_set(err, ERR_FORMAT, "config.json: %s has fewer entries than layers", key);
    }
    return OK;
}

enum status family_heads_of_layers(const struct json *j, const char *key, struct model_config *c,
                                   struct err *err)
{
    const struct json *list = json_get(j, key), *item = json_first(list);
    if (!json_is(list, JSON_ARRAY)) {
        return OK;
    }
    if (json_count(list) < (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT, "config.json: %s has fewer entries than layers", key);
    }
    for (int32_t i = 0; i < c->n_layers; i++, item = json_next(item)) {
        int64_t n = 0;
        json_int64(item, &n);
        TRY(family_positive(key, n, 4096, err));
        if (n % c->n_kv_heads) {
            return err_set(err, ERR_FORMAT,
                           "config.json: %lld heads (%s) cannot share %d key/value heads",
                           (long long)n, key, c->n_kv_heads);
        }
        c->layers[i].n_heads = (int32_t)n;
    }
    return OK;
}

enum status family_must_be(const struct json *j, const char *key, bool value, struct err *err)
{
    if (json_get_bool(j, key, value) != value) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: %s %s is not supported", key,
                       value ? "false" : "true");
    }
    return OK;
}

enum status family_query_growth(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *rope = rope_params(j);
    double beta = json_get_number(rope, "llama_4_scaling_beta", 0.0);
    int64_t every = json_get_int(rope, "original_max_position_embeddings", 0);
    if (fabs(beta) > 0.0) {
        TRY(family_positive("original_max_position_embeddings", every, MAX_POSITIONS, err));
    }
    for (int32_t i = 0; i < c->n_layers && fabs(beta) > 0.0; i++) {
        c->layers[i].growth = (struct query_growth){.beta = (float)beta, .every = (int32_t)every};
    }
    return OK;
}

void family_decay_sign(const struct json *j, struct model_config *c)
{
    if (json_get_bool(j, "decays_are_negative", false)) {
        c->state.decay_sign = -1;
    } else if (json_get_bool(j, "decays_are_positive", false)) {
        c->state.decay_sign = 1;
    }
}

void family_sparse_steps(const struct json *j, struct model_config *c)
{
    int64_t step = json_get_int(j, "decoder_sparse_step", 1);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = step > 0 && (i + 1) % step == 0;
    }
    const struct json *dense = json_get(j, "mlp_only_layers");
    for (const struct json *d = json_first(dense); d; d = json_next(d)) {
        int64_t i;
        if (json_int64(d, &i) && i >= 0 && i < c->n_layers) {
            c->layers[i].moe = false;
        }
    }
}
