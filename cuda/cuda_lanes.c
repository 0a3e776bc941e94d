// SPDX-License-Identifier: Apache-2.0
/* Updates of the lanes' state. They are staged in the step's pinned memory, and one small kernel
 * per flush applies them. A step that admits no request sends a few words, or nothing. */
#include "cuda/cuda_lanes.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening --------------------------------------------------------------------------------- */

/* Until it gets parameters, a lane draws with sampling_params_default(). */
static enum status open_params(struct lanes *l)
{
    const struct sampling_params d = sampling_params_default();
    const size_t n = (size_t)l->max_lanes + 1;
    struct lane_params *all = mem_try_calloc(n, sizeof *all);
    if (!all) {
        return ERR_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        all[i].temperature = d.temperature;
        all[i].top_p = d.top_p;
        all[i].repetition_penalty = d.repetition_penalty;
    }
    const cudaError_t e = cudaMemcpy(l->params, all, n * sizeof *all, cudaMemcpyHostToDevice);
    free(all);
    return cuda_check(l->device, e, "lane parameters");
}

/* Every entry of every block table names the trash page until it is set. That is the page after the
 * last one. */
static enum status open_tables(struct lanes *l, size_t n_tables, int32_t n_pages, int32_t **table)
{
    struct cuda *be = l->device;
    const size_t n = n_tables * (size_t)l->blocks_stride;
    TRY(cuda_alloc(be, n * 4, (void **)table));
    int32_t *trash = mem_try_calloc(n, sizeof *trash);
    if (!trash) {
        return ERR_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        trash[i] = n_pages;
    }
    cudaError_t e = cudaStreamSynchronize(be->stream); // the zeroing must be done first
    if (e == cudaSuccess) {
        e = cudaMemcpy(*table, trash, n * 4, cudaMemcpyHostToDevice);
    }
    free(trash);
    return cuda_check(be, e, "block tables");
}

/* There is one lane more than the engine has: padding rows belong to it. */
enum status lanes_open(struct lanes *l, struct cuda *device, const struct backend_limits *limits,
                       int32_t n_more)
{
    const size_t n_lanes = (size_t)limits->max_lanes + 1, n_tables = n_lanes + (size_t)n_more;
    const int32_t slots = limits->max_blocks_per_lane * limits->block_tokens;
    l->device = device;
    l->max_lanes = limits->max_lanes;
    l->n_blocks = limits->n_blocks;
    l->n_pages = limits->n_window_pages;
    l->vocab = limits->vocab;
    l->history_stride = greater(slots, limits->max_len) + 1 + MAX_TREE_NODES;
    l->blocks_stride = limits->max_blocks_per_lane;
    l->allowed_stride = (limits->vocab + 31) / 32;
    l->patches = xcalloc(CUDA_MAX_PATCHES, sizeof *l->patches);
    l->pending_end = xcalloc((size_t)limits->max_lanes, sizeof *l->pending_end);
    TRY(cuda_alloc(device, n_lanes * (size_t)l->history_stride * 4, (void **)&l->history));
    TRY(cuda_alloc(device, n_lanes * sizeof(struct lane_params), (void **)&l->params));
    TRY(cuda_alloc(device, n_lanes * (size_t)l->allowed_stride * 4, (void **)&l->allowed));
    TRY(open_tables(l, n_tables, l->n_blocks, &l->blocks));
    if (l->n_pages > 0) {
        TRY(open_tables(l, n_tables, l->n_pages, &l->pages));
    }
    return open_params(l);
}

enum status lanes_open_staging(struct lanes *l, size_t n_bytes)
{
    l->staged_bytes = n_bytes;
    return cuda_alloc(l->device, n_bytes, (void **)&l->staged);
}

void lanes_close(struct lanes *l)
{
    free(l->patches);
    free(l->pending_end);
}

/* ---- staging --------------------------------------------------------------------------------- */

void lanes_begin(struct lanes *l, struct staging *staging)
{
    staging->used_bytes = staging->flushed_bytes = 0;
    l->n_patches = 0;
    l->staging = staging;
}

/* The staging memory belongs to the step, so it must not be used after its end. */
enum status lanes_end(struct lanes *l)
{
    const enum status st = lanes_flush(l);
    if (st == OK) {
        l->staging = NULL;
    }
    return st;
}

static size_t aligned(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* Reserves n bytes of the step's staging memory. If it is full, waits for the stream and reuses the
 * memory, which happens only if a single step brings megabytes of new prompts. */
static enum status stage(struct lanes *l, size_t n_bytes, size_t *at)
{
    struct staging *s = l->staging;
    if (n_bytes > l->staged_bytes) {
        return ERR_LIMIT;
    }
    if (s->used_bytes + aligned(n_bytes) > l->staged_bytes) {
        TRY(lanes_flush(l));
        CUDA_TRY(l->device, cudaStreamSynchronize(l->device->stream));
        s->used_bytes = s->flushed_bytes = 0;
    }
    *at = s->used_bytes;
    s->used_bytes += aligned(n_bytes);
    return OK;
}

/* Sends the data that has been staged since the previous copy. */
static enum status send_staged(struct lanes *l)
{
    struct staging *s = l->staging;
    if (s->used_bytes > s->flushed_bytes) {
        CUDA_TRY(l->device,
                 cudaMemcpyAsync(l->staged + s->flushed_bytes, s->pinned + s->flushed_bytes,
                                 s->used_bytes - s->flushed_bytes, cudaMemcpyHostToDevice,
                                 l->device->stream));
        s->flushed_bytes = s->used_bytes;
    }
    return OK;
}

/* Patches are staged in pinned memory, and one kernel writes all of them to their places. */
enum status lanes_flush(struct lanes *l)
{
    TRY(l->device->lost);
    struct staging *s = l->staging;
    if (l->n_patches == 0) {
        return OK;
    }
    /* The list of patches always fits, because reserve() left room for it. */
    const size_t n_bytes = (size_t)l->n_patches * sizeof *l->patches;
    const size_t at = s->used_bytes;
    memcpy(s->pinned + at, l->patches, n_bytes);
    s->used_bytes += aligned(n_bytes);
    TRY(send_staged(l));
    const int32_t n = l->n_patches;
    l->n_patches = 0;
    memset(l->pending_end, 0, (size_t)l->max_lanes * sizeof *l->pending_end);
    CUDA_TRY(l->device, k_patch(l->device->stream, (const struct patch *)(l->staged + at),
                                (const uint32_t *)l->staged, n));
    return OK;
}

/* For lists that a kernel reads, such as moves. Earlier updates are applied first. */
enum status lanes_send(struct lanes *l, const void *from, size_t n_bytes, void **device)
{
    if (!l->staging) {
        return ERR_INVALID;
    }
    size_t at = 0;
    TRY(lanes_flush(l));
    TRY(stage(l, n_bytes, &at));
    memcpy(l->staging->pinned + at, from, n_bytes);
    TRY(send_staged(l));
    *device = l->staged + at;
    return OK;
}

/* Room for a large block, such as masks. If there is not enough, waits for the stream, after which
 * all of the memory is free. */
char *lanes_room(struct lanes *l, size_t n_bytes)
{
    struct staging *s = l->staging;
    if (s->used_bytes + n_bytes > l->staged_bytes) {
        const cudaError_t e = cudaStreamSynchronize(l->device->stream);
        if (cuda_check(l->device, e, "staging memory") != OK) {
            return NULL;
        }
        s->used_bytes = s->flushed_bytes = 0;
    }
    return s->pinned + s->used_bytes;
}

void lanes_use_room(struct lanes *l, size_t n_bytes)
{
    struct staging *s = l->staging;
    s->used_bytes += aligned(n_bytes);
    s->flushed_bytes = s->used_bytes;
}

/* Reserves room for n words to be written, and for the list of writes that follows them. */
static enum status reserve(struct lanes *l, int32_t n, size_t *at)
{
    const size_t list_bytes = (CUDA_MAX_PATCHES + 1) * sizeof(struct patch);
    if (l->n_patches == CUDA_MAX_PATCHES ||
        l->staging->used_bytes + aligned((size_t)n * 4 + list_bytes) > l->staged_bytes) {
        TRY(lanes_flush(l));
    }
    TRY(stage(l, (size_t)n * 4 + list_bytes, at));
    l->staging->used_bytes = *at + aligned((size_t)n * 4);
    return OK;
}

/* Stages a write of n words to `to`. */
static enum status patch(struct lanes *l, void *to, const void *from, int32_t n)
{
    enum { PIECE = 1 << 16 }; // words per patch
    while (n > 0) {
        const int32_t piece = lesser(n, PIECE);
        size_t at = 0;
        TRY(reserve(l, piece, &at));
        memcpy(l->staging->pinned + at, from, (size_t)piece * 4);
        l->patches[l->n_patches++] = (struct patch){to, (int32_t)(at / 4), piece};
        to = (uint32_t *)to + piece;
        from = (const uint32_t *)from + piece;
        n -= piece;
    }
    return OK;
}

static bool lane_ok(const struct lanes *l, int32_t lane)
{
    return l->staging && lane >= 0 && lane < l->max_lanes;
}

/* The tokens may replace those of the lane's previous request. */
enum status lanes_tokens(struct lanes *l, int32_t lane, int32_t first_pos, int32_t n,
                         const int32_t *tokens)
{
    TRY(l->device->lost);
    if (!lane_ok(l, lane) || first_pos < 0 || n < 0 || n > l->history_stride - first_pos) {
        return ERR_INVALID;
    }
    /* Writes of one flush have no order. If the lane's previous request still has writes, they are
     * flushed before the next request writes to the same places. */
    if (first_pos < l->pending_end[lane]) {
        TRY(lanes_flush(l));
    }
    TRY(patch(l, l->history + (int64_t)lane * l->history_stride + first_pos, tokens, n));
    // Set after patch(), because a flush in it would clear this.
    l->pending_end[lane] = first_pos + n;
    return OK;
}

/* Ids are checked here, because kernels use them as addresses. */
static enum status put_ids(struct lanes *l, int32_t *table, int32_t n_pages, int32_t lane,
                           int32_t first, int32_t n, const int32_t *ids)
{
    TRY(l->device->lost);
    if (!lane_ok(l, lane) || first < 0 || n < 0 || n > l->blocks_stride - first) {
        return ERR_INVALID;
    }
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= n_pages) {
            return ERR_INVALID;
        }
    }
    return patch(l, table + (int64_t)lane * l->blocks_stride + first, ids, n);
}

enum status lanes_blocks(struct lanes *l, int32_t lane, int32_t first, int32_t n,
                         const int32_t *blocks)
{
    return put_ids(l, l->blocks, l->n_blocks, lane, first, n, blocks);
}

enum status lanes_pages(struct lanes *l, int32_t lane, int32_t first, int32_t n,
                        const int32_t *pages)
{
    return l->pages ? put_ids(l, l->pages, l->n_pages, lane, first, n, pages) : ERR_INVALID;
}

/* Stages the ids that may be drawn, as a bit set. */
static enum status patch_allowed(struct lanes *l, int32_t lane, const struct sampling_params *p)
{
    const int32_t n_words = l->allowed_stride;
    size_t at = 0;
    TRY(reserve(l, n_words, &at));
    uint32_t *words = (uint32_t *)(l->staging->pinned + at);
    memset(words, 0, (size_t)n_words * 4);
    for (int32_t i = 0; i < p->n_allowed; i++) {
        const int32_t id = p->allowed[i];
        if (id >= 0 && id < l->vocab) {
            words[id >> 5] |= 1u << (id & 31);
        }
    }
    l->patches[l->n_patches++] =
        (struct patch){l->allowed + (int64_t)lane * n_words, (int32_t)(at / 4), n_words};
    return OK;
}

/* The lists of a request go to the lane's part of device memory. */
enum status lanes_params(struct lanes *l, int32_t lane, const struct sampling_params *params)
{
    TRY(l->device->lost);
    if (!lane_ok(l, lane) || params->n_stop_ids < 0 || params->n_stop_ids > MAX_STOP_IDS ||
        params->n_bias < 0 || params->n_bias > MAX_BIAS || params->n_bad_words < 0 ||
        params->n_bad_words > MAX_BAD_WORDS || params->n_allowed < 0) {
        return ERR_INVALID;
    }
    int32_t n_bad_tokens = 0;
    for (int32_t i = 0; i < params->n_bad_words; i++) {
        const int32_t length = params->bad_word_lengths[i];
        if (length < 1 || length > MAX_BAD_TOKENS - n_bad_tokens) {
            return ERR_INVALID;
        }
        n_bad_tokens += length;
    }
    const struct lane_params fixed = {
        .temperature = params->temperature,
        .top_p = params->top_p,
        .min_p = params->min_p,
        .repetition_penalty = params->repetition_penalty,
        .frequency_penalty = params->frequency_penalty,
        .presence_penalty = params->presence_penalty,
        .top_k = params->top_k,
        .min_tokens = params->min_tokens,
        .seed_low = (uint32_t)params->seed,
        .seed_high = (uint32_t)(params->seed >> 32),
        .n_stop_ids = params->n_stop_ids,
        .n_bias = params->n_bias,
        .n_bad_words = params->n_bad_words,
        .n_allowed = params->n_allowed,
    };
    struct lane_params *to = l->params + lane; // in device memory: only addresses are computed
    TRY(patch(l, to, &fixed, (int32_t)(offsetof(struct lane_params, stop_ids) / 4)));
    TRY(patch(l, to->stop_ids, params->stop_ids, params->n_stop_ids));
    TRY(patch(l, to->bias, params->bias, params->n_bias * 2));
    TRY(patch(l, to->bad_word_lengths, params->bad_word_lengths, params->n_bad_words));
    TRY(patch(l, to->bad_word_tokens, params->bad_word_tokens, n_bad_tokens));
    if (params->n_allowed > 0) {
        return patch_allowed(l, lane, params);
    }
    return OK;
}
