// SPDX-License-Identifier: Apache-2.0
/* Memory for recurrent state: running sequences come first; snapshots then share the remaining
 * memory with the KV blocks. */
#include "engine/engine_state.h"

#include "engine/base/log.h"
#include "engine/base/minmax.h"

#include <string.h>

/* Chosen: the maximum number of tokens recomputed after a hit, if memory suffices. */
enum { TOKENS_A_SNAPSHOT = 512 };

/* The number of slots after a sequence's last known token. */
static int32_t most_ahead(const struct spec *sp)
{
    const struct spec_options *o = &sp->options;
    if (spec_has_trees(sp) && o->budget > o->k) {
        return o->budget;
    }
    return o->k;
}

static void describe(const struct engine *e, const struct model *m,
                     struct state_layer layers[MAX_LAYERS], struct state_set_desc *out)
{
    model_state_layers(m, layers);
    *out = (struct state_set_desc){m->config->n_state_layers, layers, e->info.dtype,
                                   e->states.block, most_ahead(&e->spec)};
}

/* Checks that the requested block size, or the backend's, divides the state's block. */
static enum status fit_blocks(struct engine *e, struct err *err)
{
    struct engine_info *info = &e->info;
    int32_t block = e->states.block;
    if (block % info->block_tokens == 0) {
        return OK;
    }
    if (e->options.block_size > 0) {
        return err_set(err, ERR_INVALID,
                       "block-size is %d: with this model's recurrent state it must "
                       "divide %d",
                       info->block_tokens, block);
    }
    info->block_tokens = block;
    return OK;
}

enum status engine_states_begin(struct engine *e, struct err *err)
{
    const struct model *m = &e->ranks.rank[0].target;
    struct engine_states *s = &e->states;
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        if (e->draft_config[i]->n_state_layers > 0) {
            return err_set(err, ERR_UNSUPPORTED,
                           "speculative-config: a draft model with recurrent "
                           "state (%s) is not supported",
                           e->draft_config[i]->model_type);
        }
    }
    if (m->config->n_state_layers == 0) {
        return OK;
    }
    if (!m->be->ops->state_bytes) {
        return err_set(err, ERR_UNSUPPORTED,
                       "this backend does not support models with recurrent state (%s)",
                       e->config.model_type);
    }
    if (e->options.state_block > 0) {
        s->block = e->options.state_block;
    } else {
        s->block = STATE_BLOCK;
    }
    TRY(fit_blocks(e, err));
    int32_t asked = e->options.mamba_block_size;
    s->interval = ((asked > 0 ? asked : TOKENS_A_SNAPSHOT) + s->block - 1) / s->block * s->block;
    if (spec_has_trees(&e->spec) && e->spec.options.budget >= s->block) {
        // Rows that may be rejected must not fill a block.
        e->spec.options.budget = s->block - 1;
    }
    struct state_layer layers[MAX_LAYERS];
    struct state_set_desc d;
    describe(e, m, layers, &d);
    enum status st = m->be->ops->state_bytes(m->be, &d, &s->sizes);
    if (st != OK) {
        return err_set(err, st, "the recurrent state's geometry is not usable");
    }
    return OK;
}

/* By default, running sequences take at most a quarter of the memory. */
void engine_states_fit_lanes(struct engine *e, size_t memory)
{
    enum { PART = 4 };
    struct engine_info *info = &e->info;
    size_t lane = e->states.sizes.lane;
    if (e->options.max_num_seqs > 0 || lane == 0) {
        return;
    }
    size_t n = memory / PART / lane;
    if (n < (size_t)info->max_num_seqs) {
        info->max_num_seqs = n > 0 ? (int32_t)n : 1;
        log_info("max-num-seqs is %d: the recurrent state of one takes %zu MB", info->max_num_seqs,
                 lane >> 20);
    }
}

size_t engine_states_of_lanes(const struct engine *e)
{
    return (size_t)e->info.max_num_seqs * e->states.sizes.lane;
}

/* One snapshot per TOKENS_A_SNAPSHOT tokens that fit into the remaining memory; at most half of
 * that memory. */
static int64_t affordable(const struct engine *e, size_t budget, size_t per_block)
{
    const struct engine_states *s = &e->states;
    double snapshot = (double)s->sizes.snapshot, all = (double)budget;
    double token = (double)per_block / e->info.block_tokens;
    double n = all / (token * s->interval + snapshot), half = all / 2 / snapshot;
    return (int64_t)lesser(n, half);
}

/* The maximum number of snapshots that all sequences together could use: one each where a text
 * starts, ends and branches, and OTHERS more. */
static int64_t useful(const struct engine *e)
{
    enum { OTHERS = 4 }; // chosen
    int64_t each = e->info.max_model_len / e->states.interval + OTHERS;
    return each * e->info.max_num_seqs;
}

static bool wants_none(const struct engine *e)
{
    const char *mode = e->options.mamba_cache_mode;
    return !e->options.enable_prefix_caching || e->options.state_snapshots < 0 ||
           (mode && strcmp(mode, "none") == 0);
}

enum status engine_states_choose(struct engine *e, size_t *budget, size_t per_block,
                                 struct err *err)
{
    struct engine_states *s = &e->states;
    int64_t asked = wants_none(e) ? 0 : e->options.state_snapshots;
    int64_t blocks = e->options.num_gpu_blocks_override;
    s->n_snapshots = 0;
    if (s->block == 0) {
        return OK;
    }
    int64_t n = affordable(e, *budget, per_block), most = useful(e);
    if (blocks > 0) { // snapshots for the running sequences come first
        size_t taken = (size_t)blocks * per_block;
        if (taken < *budget) {
            n = (int64_t)((*budget - taken) / s->sizes.snapshot);
        } else {
            n = 0;
        }
    }
    n = lesser(n, most);
    if (asked > 0 || wants_none(e)) {
        n = asked;
    }
    if ((double)n * (double)s->sizes.snapshot > (double)*budget) {
        return err_set(err, ERR_NOMEM,
                       "state-snapshots: %lld of %zu kB do not fit the %zu MB for the "
                       "cache",
                       (long long)n, s->sizes.snapshot >> 10, *budget >> 20);
    }
    TRY(engine_agree(e, &n, err));
    s->n_snapshots = (int32_t)n;
    size_t bytes = (size_t)n * s->sizes.snapshot;
    *budget -= bytes;
    e->info.n_snapshots = s->n_snapshots;
    e->info.state_bytes = engine_states_of_lanes(e) + bytes;
    log_info(
        "recurrent state: %zu kB for each of %d sequences; %d snapshots of %zu kB, one every %d "
        "tokens",
        s->sizes.lane >> 10, e->info.max_num_seqs, s->n_snapshots, s->sizes.snapshot >> 10,
        s->interval);
    if (n == 0 && e->options.enable_prefix_caching) {
        log_warn("there are no snapshots of recurrent state: the prefix cache saves nothing");
    }
    return OK;
}

void engine_states_limits(const struct engine *e, struct scheduler_limits *out)
{
    const struct engine_states *s = &e->states;
    if (s->block > 0) {
        out->state_block = s->block;
        out->state_ahead = most_ahead(&e->spec);
        out->state_interval = s->interval;
        out->n_snapshots = s->n_snapshots;
    }
}

enum status engine_states_open(const struct engine *e, const struct model *m, struct err *err)
{
    struct state_layer layers[MAX_LAYERS];
    struct state_set_desc d;
    if (m->config->n_state_layers == 0) {
        return OK;
    }
    describe(e, m, layers, &d);
    return m->be->ops->state_open(m->be, m->kv_set, &d, e->states.n_snapshots, err);
}
