// SPDX-License-Identifier: Apache-2.0
/* Reads the models' folders, and the options that concern them, before anything is loaded. */
#include "engine/base/optional.h"
#include "engine/engine_state.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/model/adapter.h"
#include "engine/model/check.h"
#include "engine/model/head.h"
#include "engine/model/quant.h"
#include "engine/model/requantise.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status read_config(struct engine *e, struct err *err)
{
    TRY(model_config_load_over(e->model_dir, e->options.hf_overrides, &e->config, err));
    const struct model_config *c = &e->config;
    struct engine_info *info = &e->info;
    memcpy(info->model_type, c->model_type, sizeof info->model_type);
    info->vocab = c->vocab;
    info->hidden = c->hidden;
    info->n_eos = c->n_eos;
    memcpy(info->eos, c->eos, sizeof info->eos);
    info->defaults = c->defaults;
    info->max_model_len = engine_option(e->options.max_model_len, c->max_pos);
    if (c->n_positions > 0 && info->max_model_len > c->n_positions) {
        return err_set(err, ERR_UNSUPPORTED,
                       "max-model-len %d is more than the %d positions that this model has learned",
                       info->max_model_len, c->n_positions);
    }
    if (info->max_model_len > c->max_pos) {
        log_warn("max-model-len %d is more than the %d positions that this model was made for: "
                 "longer texts may turn into nonsense",
                 info->max_model_len, c->max_pos);
    }
    model_config_fit(&e->config, info->max_model_len);
    return OK;
}

/* Limits a draft model's positions to the length that is served and to its own limit. */
bool engine_fit_draft(struct engine *e, int32_t draft)
{
    struct model_config *c = e->draft_config[draft];
    int32_t served = e->info.max_model_len;
    return model_config_fit(c, lesser(c->max_pos, served));
}

/* With random weights, config.json is the only file that is read. */
static bool is_dummy(const struct engine_options *o)
{
    return o->load_format && strcmp(o->load_format, "dummy") == 0;
}

/* The operator's choice, otherwise config.json's, otherwise the dtype of the weights. */
static enum status choose_dtype(const struct engine *e, enum dtype *out, struct err *err)
{
    const struct model_config *c = &e->config;
    const char *asked = or_text(e->options.dtype, "auto");
    if (strcmp(asked, "auto") != 0) {
        if (!dtype_find(asked, out)) {
            return err_set(err, ERR_UNSUPPORTED, "dtype: '%.60s' is not supported", asked);
        }
        return OK;
    }
    bool says = c->dtype_is_set || !e->checkpoint;
    *out = says ? c->dtype : model_stored_dtype(c, e->checkpoint);
    return OK;
}

/* Ids must mean the same in both models: equal vocabulary sizes, and equal spellings if both
 * folders have a tokenizer. */
static enum status same_vocabulary(const struct engine *e, int32_t draft, struct err *err)
{
    if (e->draft_config[draft]->vocab != e->config.vocab) {
        return err_set(err, ERR_INVALID, "the draft model's vocabulary has %d ids, the model's %d",
                       e->draft_config[draft]->vocab, e->config.vocab);
    }
    struct tokenizer *a = NULL, *b = NULL;
    enum status st = OK;
    if (tokenizer_load(e->model_dir, &a, NULL) == OK &&
        tokenizer_load(e->spec.options.models[draft], &b, NULL) == OK) {
        for (int32_t id = 0; id < e->config.vocab && st == OK; id++) {
            size_t n, m;
            const char *x = tokenizer_token_text(a, id, &n), *y = tokenizer_token_text(b, id, &m);
            if ((x == NULL) != (y == NULL) || (x && (n != m || memcmp(x, y, n) != 0))) {
                st = err_set(err, ERR_INVALID, "the draft model's tokenizer differs at id %d", id);
            }
        }
    }
    tokenizer_free(a);
    tokenizer_free(b);
    return st;
}

/* A draft model's config comes from its folder; a draft head's is derived from the model. */
static enum status read_draft_config(struct engine *e, int32_t i, struct model_config *c,
                                     struct err *err)
{
    const char *folder = e->spec.options.models[i];
    enum status st = OK;
    switch (e->spec.options.head) {
    case HEAD_MTP: return head_config_mtp(&e->config, i, c, err);
    case HEAD_NONE: st = model_config_load(folder, c, err); break;
    case HEAD_EAGLE3: st = head_config_eagle3(folder, &e->config, c, err); break;
    }
    if (st != OK) {
        st = err_prefix(err, st, "the draft model");
    }
    return st;
}

/* The number of modules that draft, at most one per draft. Trees use only the first module. */
static int32_t count_modules(const struct engine *e)
{
    const struct spec_options *o = &e->spec.options;
    int32_t most = lesser(o->k, MAX_DRAFT_MODELS), n = e->config.n_draft_layers;
    if (spec_has_trees(&e->spec) || n < 1) {
        n = 1;
    }
    return lesser(n, most);
}

static enum status read_drafts(struct engine *e, struct err *err)
{
    if (e->spec.options.head == HEAD_MTP) {
        e->spec.options.n_models = count_modules(e);
    }
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        const char *folder = e->spec.options.models[i];
        struct model_config *c = e->draft_config[i] = xcalloc(1, sizeof *c);
        TRY(read_draft_config(e, i, c, err));
        engine_fit_draft(e, i);
        if (c->max_pos < e->spec.options.draft_max_len) {
            e->spec.options.draft_max_len = c->max_pos;
        }
        if (c->head.in_target) {
            continue;
        }
        TRY(same_vocabulary(e, i, err));
        if (!is_dummy(&e->options)) {
            TRY(checkpoint_open(folder, &e->draft_checkpoint[i], err));
            TRY(checkpoint_check_weights(e->draft_checkpoint[i], folder,
                                         check_depth_of(e->options.check_weights), err));
        }
    }
    return OK;
}

/* The number of ranks and nodes, which must divide the models. */
static enum status read_ranks(struct engine *e, struct err *err)
{
    int32_t n_ranks = engine_option(e->options.tensor_parallel_size, 1);
    if (n_ranks > MAX_RANKS) {
        return err_set(err, ERR_INVALID, "tensor-parallel-size: at most %d", MAX_RANKS);
    }
    int32_t n_nodes = e->options.nodes ? nodes_count(e->options.nodes) : 1;
    if (n_ranks % n_nodes != 0) {
        return err_set(err, ERR_INVALID,
                       "tensor-parallel-size: %d ranks cannot be divided evenly among %d "
                       "nodes",
                       n_ranks, n_nodes);
    }
    e->info.n_ranks = n_ranks;
    e->info.n_nodes = n_nodes;
    struct model_shard shard;
    TRY(model_shard_of(&e->config, 0, n_ranks, &shard, err));
    struct spec_options *o = &e->spec.options;
    if (o->draft_ranks <= 0) {
        o->draft_ranks = n_ranks;
    }
    if (o->n_models > 0 && o->draft_ranks != 1 && o->draft_ranks != n_ranks) {
        return err_set(err, ERR_INVALID,
                       "speculative-config: draft_tensor_parallel_size must be 1 "
                       "or the tensor-parallel-size, which is %d",
                       n_ranks);
    }
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        TRY(model_shard_of(e->draft_config[i], 0, e->spec.options.draft_ranks, &shard, err));
    }
    return OK;
}

/* --quantization may name the checkpoint's own format, as vLLM's command lines often do. */
static enum status check_quantization(const struct engine_options *o, struct err *err)
{
    char method[64];
    TRY(quant_method_of(o->model, method, sizeof method, err));
    const bool made = !method[0] && requantise_named(o->quantization) != REQUANTISE_NOT;
    if (made || quant_method_is(method, o->quantization)) {
        return OK;
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "quantization: '%.60s' is not the format of this checkpoint (%.60s); only "
                   "unquantised checkpoints can be quantised while loading, to fp8 or int4",
                   o->quantization, method[0] ? method : "none");
}

static enum status open_adapters(const struct engine_options *o, struct adapters **out,
                                 struct err *err)
{
    return adapters_open(o->model, o->adapter_names, o->adapter_dirs, o->n_adapters, out, err);
}

enum status engine_check(const struct engine_options *options, struct err *err)
{
    if (options->quantization) {
        TRY(check_quantization(options, err));
    }
    struct model_config *c = xcalloc(1, sizeof *c);
    log_mute(true); // engine_open will log these lines
    enum status st = model_config_load_over(options->model, options->hf_overrides, c, err);
    log_mute(false);
    free(c);
    if (st == OK && !is_dummy(options)) {
        st = checkpoint_check(options->model, err);
    }
    struct adapters *adapters = NULL;
    log_mute(true);
    st = st == OK ? open_adapters(options, &adapters, err) : st;
    log_mute(false);
    adapters_close(adapters);
    return st;
}

static enum status count_adapters(struct engine *e, struct err *err)
{
    const struct engine_options *o = &e->options;
    e->info.n_adapters = o->n_adapters + o->spare_adapters;
    if (e->info.n_adapters > MAX_ADAPTERS) {
        return err_set(err, ERR_INVALID, "%d adapters, but at most %d are possible",
                       e->info.n_adapters, MAX_ADAPTERS);
    }
    if (o->spare_adapters > 0 && e->info.n_nodes > 1) {
        return err_set(err, ERR_UNSUPPORTED,
                       "adapters can be loaded later only if all ranks are in one process");
    }
    return OK;
}

enum status engine_read_models(struct engine *e, struct err *err)
{
    snprintf(e->model_dir, sizeof e->model_dir, "%s", e->options.model);
    TRY(read_config(e, err));
    TRY(spec_init(&e->spec, e->options.speculative_config, err));
    e->info.n_spec_tokens = e->spec.options.k;
    if (e->spec.options.rejection == REJECT_SYNTHETIC && !e->options.synthetic) {
        return err_set(err, ERR_INVALID,
                       "speculative-config: synthetic acceptance makes up text; it "
                       "is for measuring speed, with --load-format dummy or `sluice bench-engine`");
    }
    TRY(read_drafts(e, err));
    TRY(read_ranks(e, err));
    if (!is_dummy(&e->options)) {
        TRY(checkpoint_open(e->model_dir, &e->checkpoint, err));
        TRY(checkpoint_check_weights(e->checkpoint, e->model_dir,
                                     check_depth_of(e->options.check_weights), err));
    }
    TRY(open_adapters(&e->options, &e->adapters, err));
    TRY(count_adapters(e, err));
    return choose_dtype(e, &e->info.dtype, err);
}
