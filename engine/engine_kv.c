// SPDX-License-Identifier: Apache-2.0
/* Chooses how each model's keys and values are stored: by --kv-cache-dtype, then by the speculative
 * config, then by the checkpoints. Also describes the KV sets to the backend. */
#include "engine/base/optional.h"
#include "engine/engine_state.h"

#include "engine/base/log.h"

#include <string.h>

/* The format for "auto". With float32 the checkpoint's format is ignored, because in that mode only
 * weights are quantised. */
static const struct kv_choice *automatic(const struct engine *e, const struct model *m)
{
    const struct kv_choice *plain = kv_choice_plain(e->info.dtype);
    if (!m->kv_cache[0]) {
        return plain;
    }
    const struct kv_choice *asked = kv_choice_find(m->kv_cache);
    if (!asked || e->info.dtype == DT_F32) {
        log_warn("the checkpoint requests a KV cache of %s; keys and values are stored as %s%s",
                 m->kv_cache, plain->name, text_if(asked, ", since everything is"));
        return plain;
    }
    return asked;
}

static enum status choose(const struct engine *e, const char *where, const char *word,
                          const struct model *m, const struct kv_choice **out, struct err *err)
{
    enum dtype dtype;
    if (!word || strcmp(word, "auto") == 0) {
        *out = automatic(e, m);
        return OK;
    }
    *out = kv_choice_find(word);
    if (*out) {
        return OK;
    }
    *out = kv_choice_plain(e->info.dtype);
    if (!dtype_find(word, &dtype)) {
        return err_set(err, ERR_UNSUPPORTED, "%s: '%.60s' is not supported", where, word);
    }
    if (dtype != e->info.dtype) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: keys and values of %s with a model of %s are not supported", where,
                       word, (*out)->name);
    }
    return OK;
}

void engine_kv_set(const struct engine *e, const struct model *m, struct kv_layer *layers,
                   struct kv_set_desc *out)
{
    const struct kv_choice *choice = e->kv[m->kv_set];
    model_kv_layers(m, layers);
    for (int32_t i = 0; i < m->config->n_kv_layers && !choice->stored_scales; i++) {
        layers[i].k_scale = layers[i].v_scale = 0.0f;
    }
    *out = (struct kv_set_desc){.n_layers = m->config->n_kv_layers,
                                .layers = layers,
                                .dtype = e->info.dtype,
                                .format = choice->format};
}

/* Asks the backend about the set, so that an error names the unsupported format. */
static enum status try_set(const struct engine *e, const struct model *m, const char *where,
                           struct err *err)
{
    struct kv_layer layers[MAX_KV_LAYERS];
    struct kv_set_desc d;
    size_t n_bytes;
    engine_kv_set(e, m, layers, &d);
    enum status st = m->be->ops->kv_bytes(m->be, &d, 16, &n_bytes);
    if (st != OK) {
        return err_set(err, st, "%s: %s is not supported for this model on this device", where,
                       e->kv[m->kv_set]->name);
    }
    return OK;
}

enum status engine_kv_choose(struct engine *e, struct err *err)
{
    const struct rank *r = &e->ranks.rank[0];
    const char *word = e->options.kv_cache_dtype, *drafts = e->spec.options.kv_cache_dtype;
    TRY(choose(e, "kv-cache-dtype", word, &r->target, &e->kv[0], err));
    TRY(try_set(e, &r->target, "kv-cache-dtype", err));
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        const struct model *m = &r->draft[i];
        e->kv[m->kv_set] = e->kv[0];
        if (drafts[0]) {
            TRY(choose(e, "speculative-config: kv_cache_dtype", drafts, m, &e->kv[m->kv_set], err));
        }
        TRY(try_set(e, m, "the draft model's kv_cache_dtype", err));
    }
    e->info.kv_cache_dtype = e->kv[0]->name;
    return OK;
}
