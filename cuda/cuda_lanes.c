/* Deltas to the lanes' state. They are staged in the step's pinned memory and applied by one small
 * kernel per flush: a step that admits nobody sends a few words, or nothing. */
#include "cuda/cuda_backend.h"

#include <stddef.h>
#include <string.h>

static size_t aligned(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* Room for n bytes in the step's staging memory. When it is full, the stream is waited for and the
 * memory used again: that happens only when one step brings megabytes of new prompts. */
static enum status stage(struct cuda *be, size_t n_bytes, size_t *at)
{
    struct slot *s = be->slot;
    if (n_bytes > be->staged_bytes) {
        return ERR_LIMIT;
    }
    if (s->used_bytes + aligned(n_bytes) > be->staged_bytes) {
        TRY(cuda_flush(be));
        CUDA_TRY(be, cudaStreamSynchronize(be->stream));
        s->used_bytes = s->flushed_bytes = 0;
    }
    *at = s->used_bytes;
    s->used_bytes += aligned(n_bytes);
    return OK;
}

static enum status send_staged(struct cuda *be)
{
    struct slot *s = be->slot;
    if (s->used_bytes > s->flushed_bytes) {
        CUDA_TRY(be, cudaMemcpyAsync(be->staged + s->flushed_bytes, s->pinned + s->flushed_bytes,
                                     s->used_bytes - s->flushed_bytes, cudaMemcpyHostToDevice,
                                     be->stream));
        s->flushed_bytes = s->used_bytes;
    }
    return OK;
}

enum status cuda_flush(struct cuda *be)
{
    TRY(be->lost);
    struct slot *s = be->slot;
    if (be->n_patches == 0) {
        return OK;
    }
    /* The list itself has room: reserve() leaves it. */
    const size_t n_bytes = (size_t)be->n_patches * sizeof *be->patches;
    const size_t at = s->used_bytes;
    memcpy(s->pinned + at, be->patches, n_bytes);
    s->used_bytes += aligned(n_bytes);
    TRY(send_staged(be));
    const int32_t n = be->n_patches;
    be->n_patches = 0;
    memset(be->told, 0, (size_t)be->limits.max_lanes * sizeof *be->told);
    CUDA_TRY(be, k_patch(be->stream, (const struct patch *)(be->staged + at),
                         (const uint32_t *)be->staged, n));
    return OK;
}

enum status cuda_send(struct cuda *be, const void *from, size_t n_bytes, void **device)
{
    if (!be->slot) {
        return ERR_INVALID;
    }
    size_t at = 0;
    TRY(cuda_flush(be));
    TRY(stage(be, n_bytes, &at));
    memcpy(be->slot->pinned + at, from, n_bytes);
    TRY(send_staged(be));
    *device = be->staged + at;
    return OK;
}

/* Room for n words to be written, and behind them for the list of writes. */
static enum status reserve(struct cuda *be, int32_t n, size_t *at)
{
    const size_t list_bytes = (CUDA_MAX_PATCHES + 1) * sizeof(struct patch);
    if (be->n_patches == CUDA_MAX_PATCHES ||
        be->slot->used_bytes + aligned((size_t)n * 4 + list_bytes) > be->staged_bytes) {
        TRY(cuda_flush(be));
    }
    TRY(stage(be, (size_t)n * 4 + list_bytes, at));
    be->slot->used_bytes = *at + aligned((size_t)n * 4);
    return OK;
}

/* Stages a write of n words to `to`. */
static enum status patch(struct cuda *be, void *to, const void *from, int32_t n)
{
    enum { PIECE = 1 << 16 }; // words
    while (n > 0) {
        const int32_t piece = n < PIECE ? n : PIECE;
        size_t at = 0;
        TRY(reserve(be, piece, &at));
        memcpy(be->slot->pinned + at, from, (size_t)piece * 4);
        be->patches[be->n_patches++] = (struct patch){to, (int32_t)(at / 4), piece};
        to = (uint32_t *)to + piece;
        from = (const uint32_t *)from + piece;
        n -= piece;
    }
    return OK;
}

static bool lane_ok(const struct cuda *be, int32_t lane)
{
    return be->slot && lane >= 0 && lane < be->limits.max_lanes;
}

enum status cuda_lane_tokens(struct backend *base, int32_t lane, int32_t first_pos, int32_t n,
                             const int32_t *tokens)
{
    struct cuda *be = cuda_of(base);
    TRY(be->lost);
    if (!lane_ok(be, lane) || first_pos < 0 || n < 0 ||
        n > be->view.history_stride - first_pos) {
        return ERR_INVALID;
    }
    /* The writes of a flush are in no order: what a lane's last request still brought comes before
     * what its next one has. */
    if (first_pos < be->told[lane]) {
        TRY(cuda_flush(be));
    }
    TRY(patch(be, be->history + (int64_t)lane * be->view.history_stride + first_pos, tokens, n));
    be->told[lane] = first_pos + n; // behind a flush that patch() needed, which forgets it
    return OK;
}

enum status cuda_lane_blocks(struct backend *base, int32_t lane, int32_t first, int32_t n,
                             const int32_t *blocks)
{
    struct cuda *be = cuda_of(base);
    TRY(be->lost);
    if (!lane_ok(be, lane) || first < 0 || n < 0 || n > be->view.blocks_stride - first) {
        return ERR_INVALID;
    }
    for (int32_t i = 0; i < n; i++) {
        if (blocks[i] < 0 || blocks[i] >= be->limits.n_blocks) {
            return ERR_INVALID;
        }
    }
    return patch(be, be->blocks + (int64_t)lane * be->view.blocks_stride + first, blocks, n);
}

/* The ids that may be drawn, as bits. */
static enum status patch_allowed(struct cuda *be, int32_t lane, const struct sampling_params *p)
{
    const int32_t n_words = be->view.allowed_stride;
    size_t at = 0;
    TRY(reserve(be, n_words, &at));
    uint32_t *words = (uint32_t *)(be->slot->pinned + at);
    memset(words, 0, (size_t)n_words * 4);
    for (int32_t i = 0; i < p->n_allowed; i++) {
        const int32_t id = p->allowed[i];
        if (id >= 0 && id < be->limits.vocab) {
            words[id >> 5] |= 1u << (id & 31);
        }
    }
    be->patches[be->n_patches++] = (struct patch){be->allowed + (int64_t)lane * n_words,
                                                  (int32_t)(at / 4), n_words};
    return OK;
}

enum status cuda_lane_params(struct backend *base, int32_t lane,
                             const struct sampling_params *params)
{
    struct cuda *be = cuda_of(base);
    TRY(be->lost);
    if (!lane_ok(be, lane) || params->n_stop_ids < 0 || params->n_stop_ids > MAX_STOP_IDS ||
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
    struct lane_params *to = be->params + lane; // device memory: only addresses are taken
    TRY(patch(be, to, &fixed, (int32_t)(offsetof(struct lane_params, stop_ids) / 4)));
    TRY(patch(be, to->stop_ids, params->stop_ids, params->n_stop_ids));
    TRY(patch(be, to->bias, params->bias, params->n_bias * 2));
    TRY(patch(be, to->bad_word_lengths, params->bad_word_lengths, params->n_bad_words));
    TRY(patch(be, to->bad_word_tokens, params->bad_word_tokens, n_bad_tokens));
    return params->n_allowed > 0 ? patch_allowed(be, lane, params) : OK;
}
