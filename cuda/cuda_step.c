/* Staging slots: host memory of the steps under way, and a step's beginning, end and results. */
#include "cuda/cuda_backend.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

static enum status check_limits(const struct backend_limits *l, struct err *err)
{
    if (l->max_rows <= 0 || l->max_out_rows <= 0 || l->max_lanes <= 0 || l->max_len <= 0 ||
        l->max_blocks_per_lane <= 0 || l->n_blocks <= 0 || l->block_tokens <= 0 || l->vocab <= 0 ||
        l->hidden <= 0 || l->max_len > 1 << 28 ||
        l->max_blocks_per_lane > (1 << 28) / l->block_tokens || l->n_steps <= 0 ||
        l->n_steps > CUDA_MAX_STEPS || l->max_passes <= 0 || l->max_passes > CUDA_MAX_PASSES ||
        l->max_rows > 1 << 20 || l->max_lanes > 1 << 16 ||
        l->max_out_rows > l->max_rows + l->max_lanes || l->max_laws < 0 || l->max_tree_nodes < 0) {
        return err_set(err, ERR_INVALID, "the CUDA backend cannot work with these limits");
    }
    return OK;
}

/* Until a lane is told otherwise, it draws as sampling_params_default() says. */
static enum status open_params(struct cuda *be)
{
    const struct sampling_params d = sampling_params_default();
    const size_t n = (size_t)be->limits.max_lanes + 1;
    struct lane_params *all = mem_try_calloc(n, sizeof *all);
    if (!all) {
        return ERR_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        all[i].temperature = d.temperature;
        all[i].top_p = d.top_p;
        all[i].repetition_penalty = d.repetition_penalty;
    }
    const cudaError_t e = cudaMemcpy(be->params, all, n * sizeof *all, cudaMemcpyHostToDevice);
    free(all);
    return cuda_check(be, e, "lane parameters");
}

/* The lanes' state: one lane more than there are, for padding. */
static enum status open_lanes(struct cuda *be)
{
    const struct backend_limits *l = &be->limits;
    const size_t n_lanes = (size_t)l->max_lanes + 1;
    const size_t n_tables = n_lanes + (size_t)be->attention.max_paths;
    struct pass_view *v = &be->view;
    const int32_t slots = l->max_blocks_per_lane * l->block_tokens;
    v->history_stride = (slots > l->max_len ? slots : l->max_len) + 1 + MAX_TREE_NODES;
    v->blocks_stride = l->max_blocks_per_lane;
    v->allowed_stride = (l->vocab + 31) / 32;
    v->max_lanes = l->max_lanes;
    v->n_blocks = l->n_blocks;
    TRY(cuda_alloc(be, n_lanes * (size_t)v->history_stride * 4, (void **)&be->history));
    TRY(cuda_alloc(be, n_tables * (size_t)v->blocks_stride * 4, (void **)&be->blocks));
    TRY(cuda_alloc(be, n_lanes * sizeof(struct lane_params), (void **)&be->params));
    TRY(cuda_alloc(be, n_lanes * (size_t)v->allowed_stride * 4, (void **)&be->allowed));
    TRY(cuda_alloc(be, n_lanes * (size_t)l->hidden * 4, (void **)&be->pooled));
    TRY(cuda_alloc(be, n_lanes * (size_t)l->hidden * 4, (void **)&be->pooled_results));
    TRY(cuda_alloc(be, (size_t)l->max_rows * 4, (void **)&be->tokens));
    if (l->max_laws > 0) {
        const size_t n_laws = (size_t)l->max_laws;
        TRY(cuda_alloc(be, n_laws * (size_t)l->vocab * 4, (void **)&be->laws));
        TRY(cuda_alloc(be, n_laws * sizeof *be->law_totals, (void **)&be->law_totals));
    }
    /* Every entry of every table is the trash page until it is set. */
    const size_t n_blocks = n_tables * (size_t)v->blocks_stride;
    int32_t *trash = mem_try_calloc(n_blocks, sizeof *trash);
    if (!trash) {
        return ERR_NOMEM;
    }
    for (size_t i = 0; i < n_blocks; i++) {
        trash[i] = l->n_blocks;
    }
    CUDA_TRY(be, cudaStreamSynchronize(be->stream)); // the zeroes come first
    const cudaError_t e = cudaMemcpy(be->blocks, trash, n_blocks * 4, cudaMemcpyHostToDevice);
    free(trash);
    TRY(open_params(be));
    v->history = be->history;
    v->blocks = be->blocks;
    v->params = be->params;
    v->allowed = be->allowed;
    v->pooled = be->pooled;
    v->laws = be->laws;
    v->law_totals = be->law_totals;
    v->vocab = l->vocab;
    v->tokens = be->tokens;
    return cuda_check(be, e, "block tables");
}

/* Memory that ops share: what the experts, the router, the sampler and attention write between
 * their own kernels. */
static enum status open_scratch(struct cuda *be)
{
    const struct backend_limits *l = &be->limits;
    be->scratch_bytes = 64u << 20;
    if (be->max_expert_width > 0) {
        be->scratch_bytes = (size_t)512 << 20;
    }
    TRY(cuda_alloc(be, be->scratch_bytes, &be->scratch));
    const size_t attention_bytes = attention_workspace_bytes(&be->attention);
    if (attention_bytes > 0) {
        TRY(cuda_alloc(be, attention_bytes, &be->attention_workspace));
    }
    TRY(cuda_alloc(be, sample_scratch_bytes(be->max_draws, l->vocab), &be->sample.memory));
    be->bests.stride = (l->vocab + MIN_BEST_BAND - 1) / MIN_BEST_BAND;
    TRY(cuda_alloc(be, (size_t)MAX_BEST_ROWS * (size_t)be->bests.stride *
                           sizeof *be->bests.pairs, (void **)&be->bests.pairs));
    be->sample.max_draws = be->max_draws;
    be->sample.vocab = l->vocab;
    if (be->options.n_ranks > 1) {
        TRY(cuda_alloc(be, (size_t)l->max_out_rows * (size_t)l->vocab * 4, (void **)&be->shards));
    }
    return OK;
}

static enum status open_slots(struct cuda *be)
{
    const struct backend_limits *l = &be->limits;
    be->meta_bytes =
        cuda_meta_layout(be, l->max_rows, l->max_out_rows, be->max_draws, l->max_lanes).end;
    be->staged_bytes = 2 * be->meta_bytes + ((size_t)8 << 20);
    be->told = xcalloc((size_t)l->max_lanes, sizeof *be->told);
    TRY(cuda_alloc(be, be->meta_bytes, (void **)&be->meta));
    TRY(cuda_alloc(be, be->staged_bytes, (void **)&be->staged));
    TRY(cuda_alloc(be, (size_t)be->max_draws * sizeof *be->results, (void **)&be->results));
    for (int32_t i = 0; i < l->n_steps; i++) {
        struct slot *s = &be->slots[i];
        CUDA_TRY(be, cudaMallocHost((void **)&s->pinned, be->staged_bytes));
        CUDA_TRY(be, cudaMallocHost((void **)&s->draws, (size_t)l->max_passes *
                                                            (size_t)be->max_draws *
                                                            sizeof *s->draws));
        CUDA_TRY(be, cudaMallocHost((void **)&s->pooled,
                                    (size_t)l->max_lanes * (size_t)l->hidden * sizeof(float)));
        CUDA_TRY(be, cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming));
    }
    return OK;
}

enum status cuda_setup(struct backend *base, const struct backend_limits *limits, struct err *err)
{
    struct cuda *be = cuda_of(base);
    TRY(cuda_enter(be));
    TRY(check_limits(limits, err));
    if (be->is_set_up) {
        return err_set(err, ERR_INVALID, "the backend is set up already");
    }
    be->limits = *limits;
    be->max_draws = limits->max_out_rows + limits->max_lanes;
    be->attention = (struct attention_limits){
        .max_rows = limits->max_rows,
        .max_lanes = limits->max_lanes,
        .max_len = limits->max_len,
        .block_tokens = limits->block_tokens,
        .n_sms = be->n_sms,
        .sm = be->sm,
        .deterministic = be->options.deterministic,
        .max_paths = be->options.deterministic ? limits->max_tree_nodes : 0,
    };
    enum status st = open_lanes(be);
    st = st == OK ? open_scratch(be) : st;
    st = st == OK ? open_slots(be) : st;
    if (be->options.n_ranks > 1) {
        st = st == OK ? cuda_peer_open(be) : st;
        st = st == OK ? cuda_peer_measure(be) : st;
    }
    if (st != OK) {
        return err_set(err, st, "the GPU's working memory could not be had (%s)",
                       status_name(st));
    }
    be->is_set_up = true;
    return OK;
}

/* Several ranks: a rank that is gone must not make the others wait for ever, and what comes after
 * an abort is no result. */
static enum status wait_among_ranks(struct cuda *be, struct slot *s)
{
    const int64_t end = clock_now_ns() + CUDA_STEP_WAIT_S * 1000000000LL;
    cudaError_t e;
    while ((e = cudaEventQuery(s->done)) == cudaErrorNotReady && !cuda_comm_is_aborted(be) &&
           clock_now_ns() < end) {
    }
    if (e == cudaErrorNotReady || cuda_comm_is_aborted(be)) {
        log_error("rank %d: its step %s", be->options.rank,
                  cuda_comm_is_aborted(be) ? "was aborted" : "does not end");
        be->lost = ERR_DEVICE;
        return be->lost;
    }
    return cuda_check(be, e, "a step");
}

static enum status wait_slot(struct cuda *be, struct slot *s)
{
    if (!s->pending) {
        return OK;
    }
    if (be->options.n_ranks > 1) {
        TRY(wait_among_ranks(be, s));
    } else {
        CUDA_TRY(be, cudaEventSynchronize(s->done));
    }
    s->pending = false;
    return OK;
}

enum status cuda_step_begin(struct backend *base, int32_t index)
{
    struct cuda *be = cuda_of(base);
    TRY(cuda_enter(be));
    if (!be->is_set_up || be->slot || index < 0 || index >= be->limits.n_steps) {
        return ERR_INVALID;
    }
    struct slot *s = &be->slots[index];
    TRY(wait_slot(be, s)); // of the first rank the engine has waited already
    s->used_bytes = s->flushed_bytes = 0;
    s->n_passes = s->n_pooled = 0;
    be->n_patches = 0;
    be->slot = s;
    return OK;
}

enum status cuda_step_end(struct backend *base)
{
    struct cuda *be = cuda_of(base);
    TRY(be->lost);
    if (!be->slot || be->pass) {
        return ERR_INVALID;
    }
    TRY(cuda_flush(be));
    CUDA_TRY(be, cudaEventRecord(be->slot->done, be->stream));
    be->slot->pending = true;
    be->slot = NULL;
    return OK;
}

enum status cuda_step_wait(struct backend *base, int32_t index, struct pass_results *results,
                           int32_t max_passes)
{
    struct cuda *be = cuda_of(base);
    TRY(cuda_enter(be));
    if (index < 0 || index >= be->limits.n_steps) {
        return ERR_INVALID;
    }
    struct slot *s = &be->slots[index];
    TRY(wait_slot(be, s));
    for (int32_t i = 0; i < s->n_passes && i < max_passes; i++) {
        results[i].n_draws = s->passes[i].n_draws;
        results[i].draws = s->draws + (size_t)i * (size_t)be->max_draws;
        results[i].pooled = s->pooled + (size_t)s->passes[i].first_pooled *
                                            (size_t)be->limits.hidden;
    }
    return OK;
}

bool cuda_step_done(struct backend *base, int32_t index)
{
    struct cuda *be = cuda_of(base);
    if (be->lost != OK || index < 0 || index >= be->limits.n_steps) {
        return true; // step_wait says what is wrong
    }
    struct slot *s = &be->slots[index];
    return !s->pending || cudaEventQuery(s->done) != cudaErrorNotReady;
}
