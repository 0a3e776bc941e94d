// SPDX-License-Identifier: Apache-2.0
/* Sizes: the memory left after weights and activations is divided into KV blocks, and their number
 * determines rows, lanes and lengths. */
#include "engine/engine_state.h"

#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/minmax.h"
#include "engine/model/head.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_EXACT_NODES = 64, // chosen: 512 MiB of an 8B model's KV with pages of 32 tokens
    LEAST_BLOCKS = 2,
    LATER_BYTES = 512 << 20, // chosen; all kernels of this program are 32 MB of code
};

static bool on_cpu(const struct backend_facts *f)
{
    return strcmp(f->name, "cpu") == 0;
}

static enum status set_bytes(const struct engine *e, const struct model *m, size_t *out)
{
    struct kv_layer layers[MAX_KV_LAYERS];
    struct kv_set_desc d;
    engine_kv_set(e, m, layers, &d);
    return m->be->ops->kv_bytes(m->be, &d, e->info.block_tokens, out);
}

/* Bytes of one block over all KV sets. */
static enum status block_bytes(struct engine *e, size_t *out)
{
    struct rank *r = &e->ranks.rank[0];
    size_t drafts = 0;
    TRY(set_bytes(e, &r->target, out));
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        TRY(set_bytes(e, &r->draft[i], &drafts));
        *out += drafts;
    }
    if (r->target.drafter) {
        *out += hidden_block_bytes(head_row_width(&r->target), e->info.dtype, e->info.block_tokens);
    }
    return OK;
}

/* To give equal bits, some backends copy the paths of trees and need blocks for the copies. This
 * limits the number of nodes. */
static int32_t path_blocks(struct engine *e, const struct backend_facts *facts)
{
    if (!spec_has_trees(&e->spec) || !e->options.backend.deterministic || on_cpu(facts)) {
        return 0;
    }
    int32_t *budget = &e->spec.options.budget;
    *budget = lesser(*budget, MAX_EXACT_NODES);
    return *budget * tree_path_blocks(e->info.block_tokens);
}

static double share_of_memory(const struct engine *e, const struct backend_facts *facts)
{
    if (e->options.gpu_memory_utilization > 0.0) {
        return e->options.gpu_memory_utilization;
    }
    return on_cpu(facts) ? 0.4 : 0.9;
}

/* How much device memory the KV blocks may use. Whatever the share is, LATER_BYTES of a GPU's
 * memory are left for what is not counted here: small buffers, captured passes, and the code of
 * kernels, which the driver loads when they are first launched. */
static size_t kv_budget(const struct engine *e, const struct backend_facts *facts,
                        size_t activations)
{
    if (e->options.kv_cache_memory_bytes > 0) {
        return (size_t)e->options.kv_cache_memory_bytes;
    }
    const double share = (double)facts->free_bytes * share_of_memory(e, facts);
    const double most = (double)facts->free_bytes - (on_cpu(facts) ? 0.0 : LATER_BYTES);
    const double bytes = lesser(share, most) - (double)activations;
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

int32_t engine_buffer_rows(const struct engine *e)
{
    enum { MULTIPLE = 16 };
    return (e->info.max_rows + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
}

int32_t engine_head_rows(const struct engine *e)
{
    return e->config.bidirectional ? 1 : e->config.vocab; // 0 is no size for a backend's buffers
}

/* The maximum number of out rows in a pass: one per sequence, and one per draft; or, where a prompt
 * must be one pass, even if all of its rows are pooled, as many as there are. */
static int32_t max_out_of(const struct engine *e)
{
    const struct engine_info *info = &e->info;
    if (e->config.bidirectional) {
        return engine_buffer_rows(e);
    }
    int32_t n = greater(info->max_num_seqs, 64);
    n += spec_max_drafts(&e->spec, info->max_num_seqs);
    return lesser(n, engine_buffer_rows(e));
}

/* Rank 0's facts, but with the free memory of the rank that has the least. */
static enum status common_facts(struct engine *e, struct backend_facts *out, struct err *err)
{
    struct rank *r = &e->ranks.rank[0];
    enum status st = r->be->ops->facts(r->be, out);
    if (st != OK) {
        return err_set(err, st, "the device does not report how much memory is free (%s)",
                       status_name(st));
    }
    TRY(engine_on_ranks(e, ask_free, err));
    for (int32_t i = 0; i < e->ranks.n; i++) {
        size_t its = e->ranks.rank[i].free_bytes;
        out->free_bytes = lesser(its, out->free_bytes);
    }
    return OK;
}

/* The maximum number of masks in a step: one per sequence's draw, and one per draft. */
static int32_t max_masks_of(const struct engine *e)
{
    int32_t n = e->info.max_num_seqs;
    return n + spec_max_drafts(&e->spec, n);
}

/* The memory that a rank allocates besides weights and KV blocks. */
static enum status activation_bytes(struct engine *e, const struct backend_facts *facts,
                                    size_t *out)
{
    struct rank *r = &e->ranks.rank[0];
    const struct engine_info *info = &e->info;
    int32_t max_out = max_out_of(e), max_rows = engine_buffer_rows(e);
    size_t logits = (size_t)engine_head_rows(e) * 4, target_block;
    TRY(set_bytes(e, &r->target, &target_block));
    *out = model_setup_bytes(&r->target, max_rows, max_out) + logits * (size_t)max_out;
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        *out += model_setup_bytes(&r->draft[i], max_rows, max_out);
    }
    *out += (size_t)path_blocks(e, facts) * target_block;
    e->spec.max_laws = spec_max_laws(&e->spec, info->max_num_seqs);
    *out += (size_t)e->spec.max_laws * logits;
    *out += (size_t)max_masks_of(e) * (size_t)mask_words(e->config.vocab) * sizeof(uint32_t);
    *out += engine_states_of_lanes(e);
    return OK;
}

/* All ranks on all nodes have the same blocks, so the rank with the least free memory decides. */
static enum status count_blocks(struct engine *e, const struct backend_facts *facts,
                                struct err *err)
{
    struct engine_info *info = &e->info;
    struct engine_split split;
    size_t per_block, activations;
    TRY(block_bytes(e, &per_block));
    TRY(activation_bytes(e, facts, &activations));
    size_t budget = kv_budget(e, facts, activations);
    TRY(engine_states_choose(e, &budget, per_block, err));
    int64_t n = (int64_t)(budget / (per_block ? per_block : 1));
    int64_t most = (int64_t)info->max_num_seqs *
                   ((info->max_model_len + info->block_tokens - 1) / info->block_tokens);
    most = greater(most, LEAST_BLOCKS);
    n = lesser(n, most);
    const int32_t asked = e->options.num_gpu_blocks_override;
    if (asked > 0) {
        n = asked;
    }
    TRY(engine_windows_choose(e, budget, per_block, most, &split, err));
    if (split.n_pages > 0) {
        n = split.n_blocks;
        info->n_window_pages = e->windows.n_pages;
        per_block -= e->windows.page_bytes;
    }
    const size_t pages = (size_t)info->n_window_pages * e->windows.page_bytes;
    if ((double)n * (double)per_block + (double)pages > (double)facts->free_bytes && asked > 0) {
        return err_set(err, ERR_NOMEM,
                       "num-gpu-blocks-override: %d KV blocks of %zu kB do not fit "
                       "the %zu MB that are free: %zu would",
                       asked, per_block >> 10, facts->free_bytes >> 20,
                       facts->free_bytes / (per_block ? per_block : 1));
    }
    n = lesser(n, INT32_MAX / info->block_tokens);
    TRY(engine_agree(e, &n, err));
    info->n_blocks = (int32_t)n;
    info->kv_bytes = (size_t)n * per_block + pages;
    if (n >= LEAST_BLOCKS) {
        return OK;
    }
    if (asked > 0) {
        return err_set(err, ERR_INVALID,
                       "num-gpu-blocks-override is %d: at least two KV blocks are needed", asked);
    }
    if (e->options.kv_cache_memory_bytes > 0) {
        return err_set(err, ERR_NOMEM,
                       "kv-cache-memory-bytes is %" PRId64 ": give %zu or more, "
                       "the minimum of two KV blocks",
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

/* The rope tables are rebuilt for the length that is actually served. */
static enum status shorten(struct engine *e, int32_t max_model_len, const char *holder,
                           struct err *err)
{
    log_info("max-model-len is reduced to %d, which is what %s can hold", max_model_len, holder);
    e->info.max_model_len = max_model_len;
    bool changed = model_config_fit(&e->config, max_model_len);
    for (int32_t i = 0; i < e->spec.options.n_models; i++) {
        changed = engine_fit_draft(e, i) || changed;
    }
    if (changed) {
        return engine_on_ranks(e, reopen_ropes, err);
    }
    return OK;
}

/* The error for a requested length that exceeds the KV blocks. */
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

/* The default of max_num_seqs. It is higher offline, where a read of the weights then serves more
 * sequences, as long as their logits take only a small part of the memory. */
static int32_t default_lanes(const struct engine *e, const struct backend_facts *facts)
{
    enum { CPU = 64, ONLINE = 256, OFFLINE = 1024, LOGITS_PART = 32 }; // chosen
    if (on_cpu(facts)) {
        return CPU;
    }
    int32_t n = e->options.offline ? OFFLINE : ONLINE;
    size_t row = (size_t)e->config.vocab * sizeof(float);
    while (n > ONLINE && row * (size_t)n > facts->free_bytes / LOGITS_PART) {
        n /= 2;
    }
    return n;
}

/* Sequences with recurrent state continue only from its boundaries, so whole blocks are matched.
 * The default is coarse enough that nobody can find out another client's prompt by guessing it
 * token by token. */
static enum status choose_match_unit(struct engine *e, struct err *err)
{
    enum { DEFAULT = 16 };
    struct engine_info *info = &e->info;
    int32_t unit = engine_option(e->options.prefix_match_unit, DEFAULT);
    bool divides = info->block_tokens % unit == 0;
    if (!divides && e->options.prefix_match_unit > 0) {
        return err_set(err, ERR_INVALID,
                       "prefix-match-unit: %d does not divide a block of %d tokens", unit,
                       info->block_tokens);
    }
    info->match_unit = divides && e->states.block == 0 ? unit : info->block_tokens;
    return OK;
}

/* The rows of a pass, if the operator does not choose. */
static int32_t default_rows(const struct engine *e, const struct backend_facts *facts)
{
    enum { CPU = 2048, GPU = 8192 }; // chosen
    const int32_t most = e->info.max_model_len;
    if (!on_cpu(facts)) {
        return GPU;
    }
    return e->config.bidirectional && most > CPU ? lesser(most, GPU) : CPU;
}

/* An encoder's prompt is one pass, so it cannot have more tokens than a pass has rows. */
static enum status fit_into_pass(struct engine *e, struct err *err)
{
    struct engine_info *info = &e->info;
    if (!e->config.bidirectional || info->max_model_len <= info->max_rows) {
        return OK;
    }
    if (e->options.max_model_len > 0) {
        return err_set(err, ERR_INVALID,
                       "max-model-len is %d, but a text of an encoder must fit into one pass: give "
                       "--max-num-batched-tokens %d, or a --max-model-len of at most %d",
                       info->max_model_len, info->max_model_len, info->max_rows);
    }
    return shorten(e, info->max_rows, "a pass (--max-num-batched-tokens)", err);
}

/* The rows of a step that also decodes, if the operator does not choose. A pass of a mixture reads
 * all experts, but each of its rows multiplies only with some, so it needs more rows than that of a
 * dense model until reading no longer matters. */
static int32_t mixed_rows(const struct engine *e, const struct backend_facts *facts)
{
    const struct model *m = &e->ranks.rank[0].target;
    const struct model_config *c = m->config;
    const int32_t width = c->moe_latent > 0 ? c->moe_latent : c->hidden;
    const double expert = (c->gated ? 3.0 : 2.0) * c->moe_ffn * width;
    double used = (double)m->n_parameters;
    for (int32_t i = 0; i < c->n_layers; i++) {
        used -= c->layers[i].moe ? (c->n_experts - c->experts_per_token) * expert : 0.0;
    }
    const double rows = facts->full_rows * (double)m->n_parameters / greater(used, 1.0);
    const bool limited = facts->full_rows > 0 && rows < e->info.max_rows;
    return limited ? (int32_t)rows : e->info.max_rows;
}

enum status engine_choose_sizes(struct engine *e, struct err *err)
{
    struct engine_info *info = &e->info;
    struct backend_facts facts;
    TRY(common_facts(e, &facts, err));
    memcpy(info->device, facts.device, sizeof info->device);
    info->block_tokens = engine_option(e->options.block_size, facts.preferred_block_tokens);
    if (info->block_tokens > MAX_BLOCK_TOKENS) {
        return err_set(err, ERR_INVALID, "block-size: at most %d tokens", MAX_BLOCK_TOKENS);
    }
    TRY(engine_states_begin(e, err));
    engine_windows_begin(e);
    TRY(choose_match_unit(e, err));
    info->max_num_seqs = engine_option(e->options.max_num_seqs, default_lanes(e, &facts));
    engine_states_fit_lanes(e, (size_t)((double)facts.free_bytes * share_of_memory(e, &facts)));
    info->max_sequences = engine_option(e->options.max_waiting, 4096) + info->max_num_seqs;
    info->max_rows = engine_option(e->options.max_num_batched_tokens, default_rows(e, &facts));
    if (info->max_rows <= info->max_num_seqs) {
        // The first sequence in the order always gets a row.
        info->max_rows = info->max_num_seqs + 1;
        if (e->options.max_num_batched_tokens > 0) {
            log_warn("max-num-batched-tokens %d is raised to %d, one more than max-num-seqs",
                     e->options.max_num_batched_tokens, info->max_rows);
        }
    }
    const int32_t mixed = engine_option(e->options.max_num_mixed_tokens, mixed_rows(e, &facts));
    info->mixed_rows = lesser(mixed, info->max_rows);
    TRY(fit_into_pass(e, err));
    TRY(count_blocks(e, &facts, err));
    int32_t fits = info->n_blocks * info->block_tokens;
    if (info->max_model_len > fits) {
        if (e->options.max_model_len > 0 && e->options.num_gpu_blocks_override <= 0) {
            return say_too_long(e, &facts, fits, err);
        }
        return shorten(e, fits, "the KV blocks", err);
    }
    return OK;
}

void engine_limits(const struct engine *e, struct scheduler_limits *out)
{
    const struct engine_info *info = &e->info;
    // Slots after a sequence's last token.
    int32_t nodes = spec_has_trees(&e->spec) ? MAX_TREE_NODES : 0;
    int32_t max_out = max_out_of(e);
    *out = (struct scheduler_limits){
        .max_rows = info->max_rows,
        .mixed_rows = info->mixed_rows,
        .max_out = max_out,
        .max_draws = max_out + info->max_num_seqs,
        .max_lanes = info->max_num_seqs,
        .max_sequences = info->max_sequences,
        .max_len = info->max_model_len,
        .n_blocks = info->n_blocks,
        .block_tokens = info->block_tokens,
        .match_unit = info->match_unit,
        .max_blocks_per_lane =
            (info->max_model_len + nodes + info->block_tokens - 1) / info->block_tokens + 1,
        .prefix_cache = e->options.enable_prefix_caching && !e->config.bidirectional,
        .chunked = e->options.enable_chunked_prefill && !e->config.bidirectional,
        .hash_key = hash_process_key() | 1,
    };
    engine_states_limits(e, out);
    engine_windows_limits(e, out);
}

struct step_sizes engine_step_sizes(const struct engine *e)
{
    return (struct step_sizes){.limits = &e->scheduler.limits,
                               .vocab = e->config.vocab,
                               .n_draft_models = spec_models_per_pass(&e->spec.options),
                               .n_feeding_passes = spec_feeding_passes(&e->spec.options),
                               .n_draft_passes = spec_max_passes(&e->spec),
                               .max_masks = max_masks_of(e),
                               .trees = spec_has_trees(&e->spec),
                               .n_adapters = e->info.n_adapters};
}
