// SPDX-License-Identifier: Apache-2.0
/* Opening: the model's config and weights on every rank, then memory: what is left after weights
 * and activations is cut into KV blocks. */
#include "engine/engine_state.h"

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/words.h"
#include "engine/model/check.h"
#include "engine/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_EXACT_NODES = 64, // chosen: with pages of 32 tokens 512 MiB of an 8B's KV
    LEAST_BLOCKS = 2,
};

static bool on_cpu(const struct backend_facts *f)
{
    return strcmp(f->name, "cpu") == 0;
}

static void abort_ranks(void *arg)
{
    struct engine *e = arg;
    if (e->options.abort_ranks && e->options.backend.comm) {
        e->options.abort_ranks(e->options.backend.comm);
    }
}

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

/* A checkpoint that is quantised is what its config says, whatever this option does. */
static enum requantise_kind requantise_of(const struct engine *e)
{
    const char *asked = e->options.quantization;
    return asked ? (enum requantise_kind)(words_find(ENGINE_QUANTIZATIONS, asked) + 1)
                 : REQUANTISE_NOT;
}

static enum status load_rank(struct rank *r, void *arg)
{
    struct engine *e = arg;
    struct model_load_options options = {.config = &e->config,
                                         .checkpoint = e->checkpoint,
                                         .dummy_dir = e->model_dir,
                                         .dtype = e->info.dtype,
                                         .requantise = requantise_of(e),
                                         .inputs_as_they_are = inputs_as_they_are(e),
                                         .rank = r->index,
                                         .n_ranks = e->info.n_ranks,
                                         .index = 0,
                                         .on_progress = r->local == 0 ? report : NULL,
                                         .progress_arg = e};
    return model_load(&options, r->be, &r->target, &r->err);
}

/* A draft model is whole on every rank, unless the ranks are to share it: it is small, and then
 * needs no collectives. */
static enum status load_drafts(struct rank *r, void *arg)
{
    struct engine *e = arg;
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        struct model_load_options options = {.config = e->draft_config[i],
                                             .checkpoint = e->draft_checkpoint[i],
                                             .dummy_dir = e->spec.options.models[i],
                                             .dtype = e->info.dtype,
                                             .inputs_as_they_are = inputs_as_they_are(e),
                                             .rank = e->spec.options.draft_ranks > 1 ? r->index : 0,
                                             .n_ranks = e->spec.options.draft_ranks,
                                             .index = 1 + i};
        TRY(model_load(&options, r->be, &r->draft[i], &r->err));
    }
    return OK;
}

/* The first rank that failed speaks for all, and a lost node for the ranks. */
static enum status on_ranks(struct engine *e, enum status (*work)(struct rank *r, void *arg),
                            struct err *err)
{
    enum status st = ranks_run(&e->ranks, work, e);
    struct err why;
    if (st != OK && engine_set_lost(e, &why)) {
        return err_set(err, st, "%s", why.text);
    }
    for (int32_t i = 0; i < e->ranks.n && st != OK; i++) {
        if (e->ranks.rank[i].st != OK) {
            const char *text = e->ranks.rank[i].err.text;
            return err_set(err, st, "%s", text[0] ? text : status_name(st));
        }
    }
    return st;
}

/* ---- sizes -------------------------------------------------------------------------------- */

static int32_t pick(int32_t asked, int32_t otherwise)
{
    return asked > 0 ? asked : otherwise;
}

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
    info->max_model_len = pick(e->options.max_model_len, c->max_pos);
    if (info->max_model_len > c->max_pos) {
        log_warn("max-model-len %d is more than the %d positions that this model was made for: "
                 "longer texts may turn into nonsense",
                 info->max_model_len, c->max_pos);
    }
    model_config_fit(&e->config, info->max_model_len);
    return OK;
}

/* Drafts are never longer than the text, nor than what their model was made for. */
static bool fit_draft(struct engine *e, int32_t draft)
{
    struct model_config *c = e->draft_config[draft];
    int32_t served = e->info.max_model_len;
    return model_config_fit(c, c->max_pos < served ? c->max_pos : served);
}

/* Random weights: there are no files but config.json. */
static bool is_dummy(const struct engine_options *o)
{
    return o->load_format && strcmp(o->load_format, "dummy") == 0;
}

/* The operator's word, else config.json's, else that of the weights themselves. */
static enum status choose_dtype(const struct engine *e, enum dtype *out, struct err *err)
{
    const struct model_config *c = &e->config;
    const char *asked = e->options.dtype ? e->options.dtype : "auto";
    if (strcmp(asked, "auto") != 0) {
        return dtype_find(asked, out)
                   ? OK
                   : err_set(err, ERR_UNSUPPORTED, "dtype: '%.60s' is not supported", asked);
    }
    bool says = c->dtype_is_set || !e->checkpoint;
    *out = says ? c->dtype : model_stored_dtype(c, e->checkpoint);
    return OK;
}

/* Both must mean the same by every id: the same number of them, and the same spelling where both
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

static enum status read_drafts(struct engine *e, struct err *err)
{
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        const char *folder = e->spec.options.models[i];
        struct model_config *c = e->draft_config[i] = xcalloc(1, sizeof *c);
        enum status st = model_config_load(folder, c, err);
        if (st != OK) {
            return err_prefix(err, st, "the draft model");
        }
        fit_draft(e, i);
        TRY(same_vocabulary(e, i, err));
        if (c->max_pos < e->spec.options.draft_max_len) {
            e->spec.options.draft_max_len = c->max_pos;
        }
        if (!is_dummy(&e->options)) {
            TRY(checkpoint_open(folder, &e->draft_checkpoint[i], err));
            TRY(checkpoint_check_weights(e->draft_checkpoint[i], folder,
                                         check_depth_of(e->options.check_weights), err));
        }
    }
    return OK;
}

static enum status set_bytes(const struct engine *e, const struct model *m, size_t *out)
{
    struct kv_layer layers[MAX_LAYERS];
    struct kv_set_desc d;
    engine_kv_set(e, m, layers, &d);
    return m->be->ops->kv_bytes(m->be, &d, e->info.block_tokens, out);
}

/* Of one block, in all KV sets. */
static enum status block_bytes(struct engine *e, size_t *out)
{
    struct rank *r = &e->ranks.rank[0];
    size_t drafts = 0;
    TRY(set_bytes(e, &r->target, out));
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        TRY(set_bytes(e, &r->draft[i], &drafts));
        *out += drafts;
    }
    return OK;
}

/* Backends that lay the paths of trees out anew to get equal bits take blocks for them, so there
 * may not be any number of nodes. */
static int32_t path_blocks(struct engine *e, const struct backend_facts *facts)
{
    if (!spec_has_trees(&e->spec) || !e->options.backend.deterministic || on_cpu(facts)) {
        return 0;
    }
    int32_t *budget = &e->spec.options.budget;
    *budget = *budget < MAX_EXACT_NODES ? *budget : MAX_EXACT_NODES;
    return *budget * tree_path_blocks(e->info.block_tokens);
}

static double share_of_memory(const struct engine *e, const struct backend_facts *facts)
{
    if (e->options.gpu_memory_utilization > 0.0) {
        return e->options.gpu_memory_utilization;
    }
    return on_cpu(facts) ? 0.4 : 0.9;
}

/* How much of the device's memory the KV blocks may take. */
static size_t kv_budget(const struct engine *e, const struct backend_facts *facts,
                        size_t activations)
{
    if (e->options.kv_cache_memory_bytes > 0) {
        return (size_t)e->options.kv_cache_memory_bytes;
    }
    double bytes = (double)facts->free_bytes * share_of_memory(e, facts) - (double)activations;
    return bytes > 0.0 ? (size_t)bytes : 0;
}

static enum status ask_free(struct rank *r, void *arg)
{
    struct backend_facts facts;
    (void)arg;
    TRY(r->be->ops->facts(r->be, &facts));
    r->free_bytes = facts.free_bytes;
    return OK;
}

/* Rows with logits of a pass, at most: of every sequence one, and one behind each draft. */
static int32_t max_out_of(const struct engine *e)
{
    const struct engine_info *info = &e->info;
    int32_t n = info->max_num_seqs > 64 ? info->max_num_seqs : 64;
    n += spec_max_drafts(&e->spec, info->max_num_seqs);
    return n < info->max_rows ? n : info->max_rows;
}

/* Rank 0's facts, with the free memory of the rank that has the least. */
static enum status common_facts(struct engine *e, struct backend_facts *out, struct err *err)
{
    struct rank *r = &e->ranks.rank[0];
    enum status st = r->be->ops->facts(r->be, out);
    if (st != OK) {
        return err_set(err, st, "the device does not tell how much memory is free (%s)",
                       status_name(st));
    }
    TRY(on_ranks(e, ask_free, err));
    for (int32_t i = 0; i < e->ranks.n; i++) {
        size_t its = e->ranks.rank[i].free_bytes;
        out->free_bytes = its < out->free_bytes ? its : out->free_bytes;
    }
    return OK;
}

/* Of a step: one for each sequence's draw, and one for each draft. */
static int32_t max_masks_of(const struct engine *e)
{
    int32_t n = e->info.max_num_seqs;
    return n + spec_max_drafts(&e->spec, n);
}

/* What a rank allocates beside weights and the pool of blocks. */
static enum status activation_bytes(struct engine *e, const struct backend_facts *facts,
                                    size_t *out)
{
    struct rank *r = &e->ranks.rank[0];
    const struct engine_info *info = &e->info;
    int32_t max_out = max_out_of(e);
    size_t logits = (size_t)e->config.vocab * 4, target_block;
    TRY(set_bytes(e, &r->target, &target_block));
    *out = model_setup_bytes(&r->target, info->max_rows, max_out) + logits * (size_t)max_out;
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        *out += model_setup_bytes(&r->draft[i], info->max_rows, max_out);
    }
    *out += (size_t)path_blocks(e, facts) * target_block;
    e->spec.max_laws = spec_max_laws(&e->spec, info->max_num_seqs);
    *out += (size_t)e->spec.max_laws * logits;
    *out += (size_t)max_masks_of(e) * (size_t)mask_words(e->config.vocab) * sizeof(uint32_t);
    *out += engine_states_of_lanes(e);
    return OK;
}

/* All ranks have the same blocks, so the least room decides, on this node and on all. */
static enum status count_blocks(struct engine *e, const struct backend_facts *facts,
                                struct err *err)
{
    struct engine_info *info = &e->info;
    size_t per_block, activations;
    TRY(block_bytes(e, &per_block));
    TRY(activation_bytes(e, facts, &activations));
    size_t budget = kv_budget(e, facts, activations);
    TRY(engine_states_choose(e, &budget, per_block, err));
    int64_t n = (int64_t)(budget / (per_block ? per_block : 1));
    int64_t most = (int64_t)info->max_num_seqs *
                   ((info->max_model_len + info->block_tokens - 1) / info->block_tokens);
    most = most > LEAST_BLOCKS ? most : LEAST_BLOCKS;
    n = n < most ? n : most;
    const int32_t asked = e->options.num_gpu_blocks_override;
    n = asked > 0 ? asked : n;
    if ((size_t)n > facts->free_bytes / (per_block ? per_block : 1) && asked > 0) {
        return err_set(err, ERR_NOMEM,
                       "num-gpu-blocks-override: %d KV blocks of %zu kB do not fit "
                       "the %zu MB that are free: %zu would",
                       asked, per_block >> 10, facts->free_bytes >> 20,
                       facts->free_bytes / (per_block ? per_block : 1));
    }
    n = n < INT32_MAX / info->block_tokens ? n : INT32_MAX / info->block_tokens;
    TRY(engine_agree(e, &n, err));
    info->n_blocks = (int32_t)n;
    info->kv_bytes = (size_t)n * per_block;
    if (n >= LEAST_BLOCKS) {
        return OK;
    }
    if (asked > 0) {
        return err_set(err, ERR_INVALID,
                       "num-gpu-blocks-override is %d: two KV blocks are the "
                       "least",
                       asked);
    }
    if (e->options.kv_cache_memory_bytes > 0) {
        return err_set(err, ERR_NOMEM,
                       "kv-cache-memory-bytes is %" PRId64 ": give %zu or more, "
                       "which is two KV blocks, the least",
                       e->options.kv_cache_memory_bytes, 2 * per_block);
    }
    return err_set(
        err, ERR_NOMEM,
        "no memory for the KV cache: %zu MB are free after the weights, "
        "gpu-memory-utilization allows %g of it, activations take %zu MB, and a KV block "
        "%zu kB; raise --gpu-memory-utilization, or make activations smaller with a lower "
        "--max-num-batched-tokens (now %d) or --max-num-seqs (now %d)",
        facts->free_bytes >> 20, share_of_memory(e, facts), activations >> 20, per_block >> 10,
        info->max_rows, info->max_num_seqs);
}

static enum status reopen_ropes(struct rank *r, void *arg)
{
    struct engine *e = arg;
    TRY(model_open_ropes(&r->target, &r->err));
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        TRY(model_open_ropes(&r->draft[i], &r->err));
    }
    return OK;
}

/* The ropes are those of the length that is served in the end. */
static enum status shorten(struct engine *e, int32_t max_model_len, struct err *err)
{
    log_info("max-model-len is %d: that is what the KV blocks hold", max_model_len);
    e->info.max_model_len = max_model_len;
    bool changed = model_config_fit(&e->config, max_model_len);
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        changed = fit_draft(e, i) || changed;
    }
    return changed ? on_ranks(e, reopen_ropes, err) : OK;
}

/* A length was asked for that the KV blocks do not hold. */
static enum status say_too_long(const struct engine *e, const struct backend_facts *facts,
                                int32_t fits, struct err *err)
{
    char memory[96];
    if (e->options.kv_cache_memory_bytes > 0) {
        snprintf(memory, sizeof memory, "--kv-cache-memory-bytes (now %" PRId64 ")",
                 e->options.kv_cache_memory_bytes);
    } else {
        snprintf(memory, sizeof memory, "--gpu-memory-utilization (now %g)",
                 share_of_memory(e, facts));
    }
    return err_set(err, ERR_NOMEM,
                   "max-model-len %d does not fit: the KV cache has room for %d tokens; "
                   "give --max-model-len %d, or more memory with %s",
                   e->info.max_model_len, fits, fits, memory);
}

static enum status size_blocks(struct engine *e, struct err *err)
{
    struct engine_info *info = &e->info;
    struct backend_facts facts;
    TRY(common_facts(e, &facts, err));
    memcpy(info->device, facts.device, sizeof info->device);
    info->block_tokens = pick(e->options.block_size, facts.preferred_block_tokens);
    if (info->block_tokens > MAX_BLOCK_TOKENS) {
        return err_set(err, ERR_INVALID, "block-size: at most %d tokens", MAX_BLOCK_TOKENS);
    }
    TRY(engine_states_begin(e, err));
    bool cpu = on_cpu(&facts);
    info->max_num_seqs = pick(e->options.max_num_seqs, cpu ? 64 : 256);
    engine_states_fit_lanes(e, (size_t)((double)facts.free_bytes * share_of_memory(e, &facts)));
    info->max_sequences = pick(e->options.max_waiting, 4096) + info->max_num_seqs;
    info->max_rows = pick(e->options.max_num_batched_tokens, cpu ? 2048 : 8192);
    if (info->max_rows <= info->max_num_seqs) {
        info->max_rows = info->max_num_seqs + 1; // the first in order always gets a row
    }
    TRY(count_blocks(e, &facts, err));
    int32_t fits = info->n_blocks * info->block_tokens;
    if (info->max_model_len > fits) {
        if (e->options.max_model_len > 0 && e->options.num_gpu_blocks_override <= 0) {
            return say_too_long(e, &facts, fits, err);
        }
        return shorten(e, fits, err);
    }
    return OK;
}

static void limits_of(const struct engine *e, struct scheduler_limits *out)
{
    const struct engine_info *info = &e->info;
    int32_t nodes = spec_has_trees(&e->spec) ? MAX_TREE_NODES : 0; // slots behind the last token
    int32_t max_out = max_out_of(e);
    *out = (struct scheduler_limits){
        .max_rows = info->max_rows,
        .max_out = max_out,
        .max_draws = max_out + info->max_num_seqs,
        .max_lanes = info->max_num_seqs,
        .max_sequences = info->max_sequences,
        .max_len = info->max_model_len,
        .n_blocks = info->n_blocks,
        .block_tokens = info->block_tokens,
        .max_blocks_per_lane =
            (info->max_model_len + nodes + info->block_tokens - 1) / info->block_tokens + 1,
        .prefix_cache = e->options.enable_prefix_caching,
        .chunked = e->options.enable_chunked_prefill,
        .hash_key = hash_process_key() | 1,
    };
    engine_states_limits(e, out);
}

static struct step_sizes sizes_of(const struct engine *e)
{
    return (struct step_sizes){.limits = &e->scheduler.limits,
                               .vocab = e->config.vocab,
                               .n_draft_models = e->spec.options.n_models,
                               .n_draft_passes = spec_max_passes(&e->spec),
                               .max_masks = max_masks_of(e),
                               .trees = spec_has_trees(&e->spec)};
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
    struct kv_layer layers[MAX_LAYERS];
    struct kv_set_desc kv;
    engine_kv_set(e, m, layers, &kv);
    TRY(m->be->ops->kv_open(m->be, m->kv_set, &kv, err));
    return engine_states_open(e, m, err);
}

static enum status setup_rank(struct rank *r, void *arg)
{
    struct engine *e = arg;
    const struct scheduler_limits *l = &e->scheduler.limits;
    const struct backend_ops *ops = r->be->ops;
    struct backend_limits limits = {.max_rows = l->max_rows,
                                    .max_out_rows = l->max_out,
                                    .max_lanes = l->max_lanes,
                                    .max_len = l->max_len + MAX_TREE_NODES,
                                    .max_blocks_per_lane = l->max_blocks_per_lane,
                                    .n_blocks = l->n_blocks,
                                    .block_tokens = l->block_tokens,
                                    .vocab = e->config.vocab,
                                    .hidden = e->config.hidden,
                                    .n_steps = N_STEPS,
                                    .max_passes = 1 + e->spec.options.k * e->spec.options.n_models,
                                    .max_laws = e->spec.max_laws,
                                    .max_masks = max_masks_of(e),
                                    .max_tree_nodes =
                                        spec_has_trees(&e->spec) ? e->spec.options.budget : 0};
    TRY(ops->setup(r->be, &limits, &r->err));
    TRY(open_set(e, &r->target, &r->err));
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        TRY(open_set(e, &r->draft[i], &r->err));
    }
    struct tensor logits = {.dtype = DT_F32, .stride = e->config.vocab}, local = logits;
    local.stride = r->target.shard.vocab;
    TRY(ops->alloc(r->be, (size_t)l->max_out * (size_t)logits.stride * 4, &logits.mem));
    if (r->target.shard.head_sharded) {
        TRY(ops->alloc(r->be, (size_t)l->max_out * (size_t)local.stride * 4, &local.mem));
    }
    enum status st = model_setup(&r->target, l->max_rows, l->max_out, logits, local);
    for (int32_t i = 0; i < e->spec.options.n_models && st == OK; i++) {
        st = model_setup(&r->draft[i], l->max_rows, l->max_out, logits, local);
    }
    return st == OK ? OK : err_set(&r->err, st, "no memory for activations");
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

/* Embedding models are published without a head; drafts are for tokens. */
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
    if (e->info.headless) {
        log_warn("there is no lm_head.weight: embeddings are served, requests for tokens refused");
    }
    return OK;
}

/* The number of ranks and nodes, which must divide the models. */
static enum status read_ranks(struct engine *e, struct err *err)
{
    int32_t n_ranks = pick(e->options.tensor_parallel_size, 1);
    if (n_ranks > MAX_RANKS) {
        return err_set(err, ERR_INVALID, "tensor-parallel-size: at most %d", MAX_RANKS);
    }
    int32_t n_nodes = e->options.nodes ? nodes_count(e->options.nodes) : 1;
    if (n_ranks % n_nodes != 0) {
        return err_set(err, ERR_INVALID,
                       "tensor-parallel-size: %d ranks do not divide among %d "
                       "nodes",
                       n_ranks, n_nodes);
    }
    e->info.n_ranks = n_ranks;
    e->info.n_nodes = n_nodes;
    struct model_shard shard;
    TRY(model_shard_of(&e->config, 0, n_ranks, &shard, err));
    const struct spec_options *o = &e->spec.options;
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

enum status engine_check(const struct engine_options *options, struct err *err)
{
    struct model_config *c = xcalloc(1, sizeof *c);
    log_mute(true); // engine_open says what there is to say
    enum status st = model_config_load_over(options->model, options->hf_overrides, c, err);
    log_mute(false);
    free(c);
    if (st == OK && !is_dummy(options)) {
        st = checkpoint_check(options->model, err);
    }
    return st;
}

enum status engine_load(struct engine *e, struct err *err)
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
    TRY(choose_dtype(e, &e->info.dtype, err));
    int32_t n_local = e->info.n_ranks / e->info.n_nodes;
    int32_t node = e->options.nodes ? nodes_rank(e->options.nodes) : 0;
    TRY(ranks_start(&e->ranks, node * n_local, n_local, err));
    ranks_on_abort(&e->ranks, abort_ranks, e);
    engine_watch_nodes(e);
    TRY(on_ranks(e, open_rank, err));
    TRY(on_ranks(e, load_rank, err));
    TRY(on_ranks(e, load_drafts, err));
    TRY(check_heads(e, err));
    e->info.n_parameters = e->ranks.rank[0].target.n_parameters;
    e->info.weight_bytes = e->ranks.rank[0].target.weight_bytes * (size_t)e->info.n_ranks;
    TRY(engine_kv_choose(e, err));
    TRY(size_blocks(e, err));
    struct scheduler_limits limits;
    limits_of(e, &limits);
    scheduler_init(&e->scheduler, &limits);
    int64_t overtake = e->options.prefix_overtake_tokens;
    /* Until a full step is measured, as if it took a second. */
    e->scheduler.overtake_tokens = overtake >= 0 ? overtake : 10 * (int64_t)limits.max_rows;
    e->sizes = sizes_of(e);
    spec_open(&e->spec, limits.max_len);
    e->constraints = xcalloc((size_t)limits.max_sequences, sizeof *e->constraints);
    e->candidates = xcalloc((size_t)limits.max_lanes, sizeof *e->candidates);
    TRY(on_ranks(e, setup_rank, err));
    for (int32_t i = 0; i < N_STEPS; i++) {
        planned_step_init(&e->steps[i], i, &e->sizes);
        e->steps[i].constraints = e->constraints;
        e->steps[i].ungrouped = e->options.disable_cascade_attn;
        e->steps[i].step.moves = &e->moves;
    }
    tree_moves_init(&e->moves, &limits);
    size_live_table(e);
    e->n_vocab_used = e->config.vocab;
    enum status st = measure_costs(e);
    return st == OK ? OK : err_set(err, st, "the device failed in its first steps");
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
    checkpoint_close(e->checkpoint);
    tree_moves_deinit(&e->moves);
    for (int32_t i = 0; i < MAX_DRAFT_MODELS; i++) {
        checkpoint_close(e->draft_checkpoint[i]);
        free(e->draft_config[i]);
    }
}
