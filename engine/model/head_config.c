// SPDX-License-Identifier: Apache-2.0
/* The config of a draft head: derived from the target's for a module of its checkpoint, or read
 * from EAGLE-3's config.json. */
#include "engine/base/json.h"
#include "engine/model/head.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* True for the only kind of layer that a head can be: x += attention(norm x), x += ffn(norm x). */
static bool is_plain_block(const struct model_config *c)
{
    return c->norm_place == NORM_PRE && !c->norms_replace && !c->parallel_residual &&
           !c->norm_bias && !c->scaled_layers && c->layer_input == 0 && !c->experts_beside &&
           c->index.block == 0 && c->norm_gate_rank == 0 && !c->heads_grow &&
           !c->names->attn_post_norm && !c->names->ffn_post_norm && c->hyper.n == 0;
}

/* The target's last layer with attention and no state. A module's layer has the same shape. */
static const struct layer_config *pattern(const struct model_config *target)
{
    for (int32_t i = target->n_layers - 1; i >= 0; i--) {
        const struct layer_config *l = &target->layers[i];
        if (l->kv >= 0 && l->kv_of == i && l->state < 0 && !l->no_ffn) {
            return l;
        }
    }
    return NULL;
}

/* The layer of a module has the shape of one of the target's layers. */
enum status head_config_mtp(const struct model_config *target, int32_t index,
                            struct model_config *out, struct err *err)
{
    const struct layer_config *layer = pattern(target);
    if (!layer || !is_plain_block(target)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "speculative-config: multi-token prediction modules of %s are not supported",
                       target->model_type);
    }
    *out = *target;
    out->head = (struct head_config){.kind = HEAD_MTP,
                                     .index = index,
                                     .module = target->n_layers + index,
                                     .target_hidden = target->hidden,
                                     .input_width = target->hidden,
                                     .state_is_normed = true,
                                     .in_target = true};
    out->layers[0] = *layer;
    out->layers[0].kv = out->layers[0].kv_of = 0;
    out->layers[0].window = out->layers[0].chunk = 0;
    out->layers[0].moe = target->n_experts > 0;
    out->layers[0].index = target->index.top_k > 0 ? 1 : -1; // never another layer's picks
    out->n_layers = 1;
    out->n_kv_layers = target->index.top_k > 0 ? 2 : 1;
    out->n_state_layers = out->last_store = 0;
    out->state = (struct state_config){0};
    return OK;
}

/* ---- EAGLE-3 ------------------------------------------------------------------------------ */

/* Variants of EAGLE-3 that compute something else are refused. */
static enum status refuse_variant(const struct json *j, struct err *err)
{
    static const char *const keys[] = {"norm_before_fc", "fc_norm", "norm_output"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (json_get_bool(j, keys[i], false)) {
            return err_set(err, ERR_UNSUPPORTED,
                           "config.json: %s of an EAGLE-3 head is not supported", keys[i]);
        }
    }
    if (!json_get_bool(json_get(j, "eagle_config"), "use_aux_hidden_state", true)) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "config.json: an EAGLE-3 head without use_aux_hidden_state is not supported");
    }
    return OK;
}

/* A published id is the number of the layer that reads the state, which is one more than that of
 * the layer that computes it. */
static enum status add_fed(struct hidden_layers *fed, int64_t id, const struct model_config *target,
                           struct err *err)
{
    int64_t least = fed->n > 0 ? fed->ids[fed->n - 1] + 2 : 1;
    if (fed->n == MAX_HIDDEN_LAYERS || id < least || id > target->n_layers) {
        return err_set(
            err, ERR_UNSUPPORTED,
            "config.json: eagle_aux_hidden_state_layer_ids must be up to %d ascending numbers "
            "from 1 to %d, the model's layers",
            MAX_HIDDEN_LAYERS, target->n_layers);
    }
    fed->ids[fed->n++] = (int32_t)id - 1;
    return OK;
}

/* The layers whose hidden states the head reads. The default is the choice of EAGLE-3's authors:
 * one near the start, one in the middle, and one near the end. */
static enum status read_fed(const struct json *j, const struct model_config *target,
                            struct hidden_layers *fed, struct err *err)
{
    static const char key[] = "eagle_aux_hidden_state_layer_ids";
    const struct json *list = json_get(json_get(j, "eagle_config"), key);
    if (!json_is(list, JSON_ARRAY)) {
        list = json_get(j, key);
    }
    if (!json_is(list, JSON_ARRAY)) {
        const int32_t n = target->n_layers, usual[] = {2, n / 2, n - 3};
        for (int32_t i = 0; i < 3; i++) {
            TRY(add_fed(fed, usual[i], target, err));
        }
        return OK;
    }
    for (const struct json *v = json_first(list); v; v = json_next(v)) {
        int64_t id;
        TRY(add_fed(fed, json_int64(v, &id) ? id : -1, target, err));
    }
    if (fed->n > 0) {
        return OK;
    }
    return add_fed(fed, -1, target, err);
}

/* Accepts only the published form, which is one plain layer. Other forms would be computed wrongly
 * without any error. */
static enum status read_eagle3(const struct json *j, const struct model_config *target,
                               struct model_config *c, struct err *err)
{
    TRY(refuse_variant(j, err));
    const char *form = json_get_string(j, "speculators_model_type");
    if (form && strcmp(form, "eagle3") != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: the speculators_model_type '%.40s' is not eagle3", form);
    }
    if (target->hyper.n > 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: EAGLE-3 heads for models with hyper-connections (%s) are not "
                       "supported",
                       target->model_type);
    }
    int64_t made_for = json_get_int(j, "target_hidden_size", target->hidden);
    int64_t n_ids = json_get_int(j, "draft_vocab_size", c->vocab);
    if (c->n_layers != 1 || c->n_experts > 0 || c->n_state_layers > 0 || c->kv_lora > 0 ||
        c->attn_gate != ATTN_GATE_NONE || !is_plain_block(c)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: an EAGLE-3 head of %d layers of %s is not supported, only one "
                       "plain layer of attention and MLP",
                       c->n_layers, c->model_type);
    }
    if (made_for != target->hidden) {
        return err_set(err, ERR_INVALID,
                       "config.json: target_hidden_size is %lld, but the model's hidden_size is %d",
                       (long long)made_for, target->hidden);
    }
    if (n_ids < 1 || n_ids > c->vocab) {
        return err_set(err, ERR_FORMAT,
                       "config.json: draft_vocab_size must be an integer from 1 to %d", c->vocab);
    }
    c->head = (struct head_config){.kind = HEAD_EAGLE3,
                                   .target_hidden = target->hidden,
                                   .n_ids = (int32_t)n_ids,
                                   .input_width = 2 * c->hidden,
                                   .may_lack_embed = true,
                                   .norm_before_residual =
                                       json_get_bool(j, "norm_before_residual", form != NULL)};
    return read_fed(j, target, &c->head.fed, err);
}

enum status head_config_eagle3(const char *dir, const struct model_config *target,
                               struct model_config *c, struct err *err)
{
    char path[PATH_MAX];
    struct json *j;
    TRY(model_config_load(dir, c, err));
    snprintf(path, sizeof path, "%s/config.json", dir);
    TRY(model_config_parse(path, &j, err));
    enum status st = read_eagle3(j, target, c, err);
    json_free(j);
    if (st != OK) {
        return err_prefix(err, st, "%s", dir);
    }
    return OK;
}
