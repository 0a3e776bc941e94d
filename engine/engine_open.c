// SPDX-License-Identifier: Apache-2.0
/* Opens, in the right order, devices and weights on every rank, and the memory for a step. */
#include "engine/engine_state.h"
#include "engine/model/adapter.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/model/head.h"

#include <stdlib.h>
#include <string.h>

static void abort_ranks(void *arg)
{
    struct engine *e = arg;
    if (e->options.abort_ranks && e->options.backend.comm) {
        e->options.abort_ranks(e->options.backend.comm);
    }
}

/* Every rank opens its own device, in its own thread. */
static enum status open_rank(struct rank *r, void *arg)
{
    struct engine *e = arg;
    struct backend_options options = e->options.backend;
    options.rank = r->index;
    options.n_ranks = e->info.n_ranks;
    options.device += r->local;
    options.dtype = e->info.dtype;
    TRY(e->options.open_backend(&options, &r->be, &r->err, e->options.open_arg));
    return backend_check(r->be, &r->err);
}

static void report(double share, void *arg)
{
    struct engine *e = arg;
    if (e->options.on_progress) {
        e->options.on_progress(share, "loading weights", e->options.callback_arg);
    }
}

static bool inputs_as_they_are(const struct engine *e)
{
    const char *asked = e->options.activation_quantization;
    return asked && strcmp(asked, "none") == 0;
}

/* If the checkpoint is already quantised, the option does not apply. */
static enum requantise_kind requantise_of(const struct engine *e)
{
    const char *asked = e->options.quantization;
    return asked ? requantise_named(asked) : REQUANTISE_NOT;
}

/* Ranks read their shards at the same time; the first rank of a process reports the progress. */
static enum status load_rank(struct rank *r, void *arg)
{
    struct engine *e = arg;
    struct model_load_options options = {.config = &e->config,
                                         .checkpoint = e->checkpoint,
                                         .adapters = e->adapters,
                                         .n_adapters = e->info.n_adapters,
                                         .adapter_rank = e->options.max_lora_rank,
                                         .dummy_dir = e->model_dir,
                                         .dtype = e->info.dtype,
                                         .requantise = requantise_of(e),
                                         .inputs_as_they_are = inputs_as_they_are(e),
                                         .rank = r->index,
                                         .n_ranks = e->info.n_ranks,
                                         .index = 0,
                                         .on_progress = r->local == 0 ? report : NULL,
                                         .progress_arg = e};
    TRY(model_load(&options, r->be, &r->target, &r->err));
    r->target.max_hidden = 1; // engine_broken.c
    return OK;
}

/* Unless the options shard it, every rank holds the whole draft model: it is small, and without
 * shards it needs no collectives. */
static enum status load_drafts(struct rank *r, void *arg)
{
    struct engine *e = arg;
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        const bool module = e->draft_config[i]->head.in_target;
        struct model_load_options options = {
            .config = e->draft_config[i],
            .target = &r->target,
            .checkpoint = module ? e->checkpoint : e->draft_checkpoint[i],
            .dummy_dir = module ? e->model_dir : e->spec.options.models[i],
            .dtype = e->info.dtype,
            .requantise = e->spec.options.quantization,
            .inputs_as_they_are = inputs_as_they_are(e),
            .rank = e->spec.options.draft_ranks > 1 ? r->index : 0,
            .n_ranks = e->spec.options.draft_ranks,
            .index = 1 + i};
        TRY(model_load(&options, r->be, &r->draft[i], &r->err));
        if (e->draft_config[i]->head.kind != HEAD_NONE) {
            (i > 0 ? &r->draft[i - 1] : &r->target)->drafter = &r->draft[i];
        }
    }
    if (r->local == 0 && e->spec.options.head == HEAD_MTP && e->config.n_draft_layers > 1) {
        log_info("%d multi-token prediction modules; %d of them draft, one after the other",
                 e->config.n_draft_layers, e->spec.options.n_models);
    }
    return OK;
}

static enum status measure_costs(struct engine *e)
{
    struct spec *sp = &e->spec;
    if (!sp->proposer || sp->options.fixed) {
        return OK;
    }
    TRY(spec_measure(&e->ranks, &e->scheduler.limits, &sp->options, e->n_vocab_used, &sp->costs));
    spec_learnt_expect(&sp->learnt, &sp->costs, sp->options.k);
    return OK;
}

static enum status open_set(const struct engine *e, const struct model *m, struct err *err)
{
    struct kv_layer layers[MAX_KV_LAYERS];
    struct kv_set_desc kv;
    engine_kv_set(e, m, layers, &kv);
    engine_windows_mark(e, m, layers);
    TRY(m->be->ops->kv_open(m->be, m->kv_set, &kv, err));
    return engine_states_open(e, m, err);
}

/* Runs on the rank's thread: first the backend's own memory, then KV sets and hidden states, and
 * activations last. Draft models use the same memory for logits as the target. */
static enum status setup_rank(struct rank *r, void *arg)
{
    struct engine *e = arg;
    const struct scheduler_limits *l = &e->scheduler.limits;
    const struct backend_ops *ops = r->be->ops;
    const int32_t max_rows = engine_buffer_rows(e);
    struct backend_limits limits = {.max_rows = max_rows,
                                    .max_out_rows = l->max_out,
                                    .max_lanes = l->max_lanes,
                                    .max_len = l->max_len + MAX_TREE_NODES,
                                    .max_blocks_per_lane = l->max_blocks_per_lane,
                                    .n_blocks = l->n_blocks,
                                    .block_tokens = l->block_tokens,
                                    .n_window_pages = l->n_pages,
                                    .vocab = e->config.vocab,
                                    .headless = e->config.bidirectional,
                                    .hidden = e->config.hidden,
                                    .n_steps = N_STEPS,
                                    .max_passes = 1 + e->spec.options.k * e->spec.options.n_models,
                                    .max_laws = e->spec.max_laws,
                                    .max_masks = e->sizes.max_masks,
                                    .max_tree_nodes =
                                        spec_has_trees(&e->spec) ? e->spec.options.budget : 0};
    TRY(ops->setup(r->be, &limits, &r->err));
    TRY(open_set(e, &r->target, &r->err));
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        TRY(open_set(e, &r->draft[i], &r->err));
    }
    if (r->target.drafter) {
        TRY(ops->hidden_open(r->be, head_row_width(&r->target), e->info.dtype, &r->err));
    }
    struct tensor logits = {.dtype = DT_F32, .stride = engine_head_rows(e)}, local = logits;
    local.stride = lesser(r->target.shard.vocab, logits.stride);
    TRY(ops->alloc(r->be, (size_t)l->max_out * (size_t)logits.stride * 4, &logits.mem));
    if (r->target.shard.head_sharded) {
        TRY(ops->alloc(r->be, (size_t)l->max_out * (size_t)local.stride * 4, &local.mem));
    }
    enum status st = model_setup(&r->target, max_rows, l->max_out, logits, local);
    for (int32_t i = 0; i < e->spec.options.n_models && st == OK; i++) {
        st = model_setup(&r->draft[i], max_rows, l->max_out, logits, local);
    }
    if (st != OK) {
        return err_set(&r->err, st, "no memory for activations");
    }
    return OK;
}

static void size_live_table(struct engine *e)
{
    uint32_t n = 64;
    while (n < (uint32_t)e->scheduler.limits.max_sequences * 2) {
        n *= 2;
    }
    e->live = xcalloc(n, sizeof *e->live);
    e->live_mask = n - 1;
}

/* Embedding models are published without an output head, but drafts need one. */
static enum status check_heads(struct engine *e, struct err *err)
{
    const struct rank *r = &e->ranks.rank[0];
    e->info.headless = !r->target.head;
    bool complete = r->target.head != NULL;
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        complete = complete && r->draft[i].head;
    }
    if (e->spec.proposer && !complete) {
        return err_set(err, ERR_INVALID, "speculative-config: %s has no lm_head.weight",
                       e->info.headless ? "the model" : "a draft model");
    }
    if (e->info.headless && !e->config.bidirectional) {
        log_warn("there is no lm_head.weight: embeddings are served, but requests for tokens are "
                 "refused");
    }
    return OK;
}

/* A classifier's head is its pooling. Node 0, whose engine applies it, reads the modules of others.
 */
static enum status open_pooling(struct engine *e, struct err *err)
{
    struct pooling *p = &e->ranks.rank[0].target.pooling;
    if (p->n_labels == 0 && e->checkpoint) {
        TRY(pooling_read_modules(e->model_dir, e->config.hidden, e->config.bidirectional, p, err));
    }
    e->info.pooled_width = pooling_width(p, e->config.hidden);
    e->info.n_labels = p->n_labels;
    e->info.pooling = p->kind;
    e->info.encoder = e->config.bidirectional;
    e->info.pair_types = e->config.n_token_types > 1;
    return OK;
}

enum status engine_load(struct engine *e, struct err *err)
{
    TRY(engine_read_models(e, err));
    int32_t n_local = e->info.n_ranks / e->info.n_nodes;
    int32_t node = e->options.nodes ? nodes_rank(e->options.nodes) : 0;
    TRY(ranks_start(&e->ranks, node * n_local, n_local, err));
    ranks_on_abort(&e->ranks, abort_ranks, e);
    engine_watch_nodes(e);
    TRY(engine_on_ranks(e, open_rank, err));
    TRY(engine_on_ranks(e, load_rank, err));
    TRY(engine_on_ranks(e, load_drafts, err));
    TRY(check_heads(e, err));
    TRY(open_pooling(e, err));
    e->info.n_parameters = e->ranks.rank[0].target.n_parameters;
    e->info.weight_bytes = e->ranks.rank[0].target.weight_bytes * (size_t)e->info.n_ranks;
    TRY(engine_kv_choose(e, err));
    TRY(engine_choose_sizes(e, err));
    struct scheduler_limits limits;
    engine_limits(e, &limits);
    scheduler_init(&e->scheduler, &limits);
    int64_t overtake = e->options.prefix_overtake_tokens;
    /* Until a full step has been measured, it is assumed to take a second. */
    if (overtake >= 0) {
        e->scheduler.overtake_tokens = overtake;
    } else {
        e->scheduler.overtake_tokens = 10 * (int64_t)limits.max_rows;
    }
    e->sizes = engine_step_sizes(e);
    spec_open(&e->spec, limits.max_len);
    e->constraints = xcalloc((size_t)limits.max_sequences, sizeof *e->constraints);
    e->candidates = xcalloc((size_t)limits.max_lanes, sizeof *e->candidates);
    e->scratch.scores = xcalloc((size_t)e->sizes.vocab, sizeof *e->scratch.scores);
    e->scratch.count = xcalloc((size_t)e->sizes.vocab, sizeof *e->scratch.count);
    e->scratch.allowed = xcalloc((size_t)mask_words(e->sizes.vocab), sizeof *e->scratch.allowed);
    TRY(engine_on_ranks(e, setup_rank, err));
    for (int32_t i = 0; i < N_STEPS; i++) {
        planned_step_init(&e->steps[i], i, &e->sizes);
        e->steps[i].constraints = e->constraints;
        e->steps[i].ungrouped = e->options.disable_cascade_attn;
        e->steps[i].bidirectional = e->config.bidirectional;
        e->steps[i].step.moves = &e->moves;
    }
    tree_moves_init(&e->moves, &limits);
    size_live_table(e);
    e->n_vocab_used = e->config.vocab;
    enum status st = measure_costs(e);
    if (st != OK) {
        return err_set(err, st, "the device failed in its first steps");
    }
    return OK;
}

static enum status close_rank(struct rank *r, void *arg)
{
    (void)arg;
    model_deinit(&r->target);
    for (int32_t i = 0; i < MAX_DRAFT_MODELS; i++) {
        model_deinit(&r->draft[i]);
    }
    if (r->be) {
        r->be->ops->close(r->be);
        r->be = NULL;
    }
    return OK;
}

void engine_unload(struct engine *e)
{
    if (e->ranks.n > 0) {
        ranks_run(&e->ranks, close_rank, e);
    }
    ranks_stop(&e->ranks);
    for (int32_t i = 0; i < N_STEPS; i++) {
        planned_step_deinit(&e->steps[i]);
    }
    if (e->scheduler.sequences) {
        scheduler_deinit(&e->scheduler);
    }
    spec_close(&e->spec);
    free(e->live);
    free(e->constraints);
    free(e->candidates);
    free(e->scratch.scores);
    free(e->scratch.count);
    free(e->scratch.allowed);
    checkpoint_close(e->checkpoint);
    adapters_close(e->adapters);
    tree_moves_deinit(&e->moves);
    for (int32_t i = 0; i < MAX_DRAFT_MODELS; i++) {
        checkpoint_close(e->draft_checkpoint[i]);
        free(e->draft_config[i]);
    }
}
