// SPDX-License-Identifier: Apache-2.0
/* Setup, steps and close: the entries of the backend table that are not maths. Each delegates to
 * the owner of the state concerned. */
#include "cuda/cuda_backend.h"

#include "cuda/attention_plan.h"
#include "cuda/cuda_comm.h"
#include "cuda/cuda_upload.h"
#include "cuda/cuda_weights.h"
#include "cuda/index.h"
#include "engine/base/minmax.h"

#include <stdlib.h>

/* ---- setup ----------------------------------------------------------------------------------- */

/* Checks limits that indices in the kernels rely on. */
static enum status check_limits(const struct backend_limits *l, struct err *err)
{
    if (l->max_rows <= 0 || l->max_out_rows <= 0 || l->max_lanes <= 0 || l->max_len <= 0 ||
        l->max_blocks_per_lane <= 0 || l->n_blocks <= 0 || l->block_tokens <= 0 || l->vocab <= 0 ||
        l->hidden <= 0 || l->max_len > 1 << 28 ||
        l->max_blocks_per_lane > (1 << 28) / l->block_tokens || l->n_steps <= 0 ||
        l->n_steps > CUDA_MAX_STEPS || l->max_passes <= 0 || l->max_passes > CUDA_MAX_PASSES ||
        l->max_rows > 1 << 20 || l->max_lanes > 1 << 16 ||
        l->max_out_rows > l->max_rows + l->max_lanes || l->max_laws < 0 || l->max_masks < 0 ||
        l->max_tree_nodes < 0 || l->n_window_pages < 0) {
        return err_set(err, ERR_INVALID, "the CUDA backend cannot work with these limits");
    }
    return OK;
}

/* Allocates the scratch memory that experts, router, sampler and attention use between their own
 * kernels. */
static enum status open_scratch(struct cuda_backend *be)
{
    enum { BYTES = 64 << 20, EXPERT_BYTES = 512 << 20 };
    const struct backend_limits *l = &be->limits;
    struct op_scratch *s = &be->scratch;
    const size_t attention_bytes = attention_workspace_bytes(&be->attention);
    if (be->device.max_expert_width > 0) {
        s->n_bytes = EXPERT_BYTES;
    } else {
        s->n_bytes = BYTES;
    }
    TRY(cuda_alloc(&be->device, s->n_bytes, &s->memory));
    if (attention_bytes > 0) {
        TRY(cuda_alloc(&be->device, attention_bytes, &s->attention));
    }
    TRY(cuda_alloc(&be->device, sample_scratch_bytes(be->max_draws, l->vocab), &s->sample.memory));
    s->sample.max_draws = be->max_draws;
    s->sample.vocab = l->vocab;
    const size_t n_sums = (size_t)be->device.max_adapter_sums * sizeof *s->adapter_sums;
    if (n_sums > 0) {
        const size_t n_rows = (size_t)greater(l->max_rows, l->max_out_rows);
        TRY(cuda_alloc(&be->device, n_rows * n_sums, (void **)&s->adapter_sums));
    }
    if (be->device.options.n_ranks > 1 && !l->headless) {
        return cuda_alloc(&be->device, (size_t)l->max_out_rows * (size_t)l->vocab * 4,
                          (void **)&s->shards);
    }
    return OK;
}

/* Each owner allocates for the maximum that the limits allow, so that steps never allocate. */
static enum status open_owners(struct cuda_backend *be)
{
    const struct backend_limits *l = &be->limits;
    struct cuda *device = &be->device;
    const size_t staged =
        2 * passes_meta_bytes(&be->attention, l, be->max_draws, device->n_adapters) +
        draw_masks_staged_bytes(l) + ((size_t)8 << 20);
    TRY(lanes_open(&be->lanes, device, l, be->attention.max_paths + be->attention.max_runs));
    TRY(passes_open(&be->passes, device, be->graphs, &be->lanes, l, be->max_draws, &be->attention));
    TRY(open_scratch(be));
    TRY(gemms_setup(&be->gemms, l->vocab, l->max_rows));
    TRY(lanes_open_staging(&be->lanes, staged));
    TRY(steps_open(&be->steps, device, l, be->max_draws, staged));
    be->kv.device = device;
    be->kv.n_blocks = l->n_blocks;
    be->kv.n_window_pages = l->n_window_pages;
    be->kv.block_tokens = l->block_tokens;
    be->states.device = device;
    be->states.max_lanes = l->max_lanes;
    if (device->options.n_ranks > 1) {
        TRY(peers_open(&be->peers, device, l));
        TRY(peers_measure(&be->peers));
    }
    return OK;
}

/* Called once per backend, before any set is opened. */
enum status cuda_setup(struct backend *base, const struct backend_limits *limits, struct err *err)
{
    struct cuda_backend *be = cuda_backend_of(base);
    const struct cuda *device = &be->device;
    TRY(cuda_enter(&be->device));
    TRY(check_limits(limits, err));
    if (be->is_set_up) {
        return err_set(err, ERR_INVALID, "the backend is set up already");
    }
    be->limits = *limits;
    be->max_draws = (limits->headless ? 0 : limits->max_out_rows) + limits->max_lanes;
    be->attention = (struct attention_limits){
        .max_rows = limits->max_rows,
        .max_lanes = limits->max_lanes,
        .max_len = limits->max_len,
        .block_tokens = limits->block_tokens,
        .n_sms = device->n_sms,
        .sm = device->sm,
        .deterministic = device->options.deterministic,
        .max_paths = device->options.deterministic ? limits->max_tree_nodes : 0,
        .max_runs = !device->options.deterministic && device->sm == 90 ? ATTENTION_MAX_RUNS : 0,
    };
    const enum status st = open_owners(be);
    if (st != OK) {
        return err_set(err, st, "the GPU's working memory could not be allocated (%s)",
                       status_name(st));
    }
    be->is_set_up = true;
    return OK;
}

/* Allocates the lists of picks with the first set that has an index. Until then it is unknown
 * whether the model needs them. */
static enum status open_picks(struct cuda_backend *be, const struct kv_set_desc *desc,
                              struct err *err)
{
    bool has_index = false;
    for (int32_t i = 0; i < desc->n_layers; i++) {
        has_index = has_index || desc->layers[i].index;
    }
    if (!has_index || be->scratch.picks) {
        return OK;
    }
    const size_t words = (size_t)be->limits.max_rows * PICK_STRIDE(MAX_INDEX_PICKS);
    const enum status st =
        cuda_alloc(&be->device, words * sizeof(int32_t), (void **)&be->scratch.picks);
    return st == OK ? OK
                    : err_set(err, st, "no %zu MiB of device memory are left for sparse attention",
                              words * sizeof(int32_t) >> 20);
}

enum status cuda_kv_open(struct backend *base, int32_t set, const struct kv_set_desc *desc,
                         struct err *err)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(cuda_enter(&be->device));
    if (!be->is_set_up) {
        return err_set(err, ERR_INVALID, "KV set %d cannot be opened", set);
    }
    TRY(open_picks(be, desc, err));
    return kv_open(&be->kv, set, desc, &be->attention, err);
}

enum status cuda_hidden_open(struct backend *base, int32_t width, enum dtype dtype, struct err *err)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(cuda_enter(&be->device));
    if (!be->is_set_up) {
        return err_set(err, ERR_INVALID, "hidden states cannot be opened before the setup");
    }
    return kv_open_hidden(&be->kv, width, dtype, err);
}

enum status cuda_state_open(struct backend *base, int32_t set, const struct state_set_desc *desc,
                            int32_t n_snapshots, struct err *err)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(cuda_enter(&be->device));
    if (!be->is_set_up) {
        return err_set(err, ERR_INVALID, "state set %d cannot be opened", set);
    }
    TRY(states_open(&be->states, set, desc, n_snapshots, err));
    be->passes.n_state_slots[set] = be->limits.max_lanes + n_snapshots;
    be->passes.state_block[set] = desc->block;
    return OK;
}

enum status cuda_copy_states(struct backend *base, int32_t set, int32_t n,
                             const struct state_copy *copies)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return states_copy(&be->states, &be->lanes, set, n, copies);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Waits for the previous step in the slot, because its host memory is used again. */
enum status cuda_step_begin(struct backend *base, int32_t slot)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(cuda_enter(&be->device));
    if (be->is_set_up) {
        return steps_begin(&be->steps, slot, &be->lanes);
    }
    return ERR_INVALID;
}

enum status cuda_lane_tokens(struct backend *base, int32_t lane, int32_t first_pos, int32_t n,
                             const int32_t *tokens)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return lanes_tokens(&be->lanes, lane, first_pos, n, tokens);
}

enum status cuda_lane_blocks(struct backend *base, int32_t lane, int32_t first, int32_t n,
                             const int32_t *blocks)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return lanes_blocks(&be->lanes, lane, first, n, blocks);
}

enum status cuda_lane_params(struct backend *base, int32_t lane,
                             const struct sampling_params *params)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return lanes_params(&be->lanes, lane, params);
}

enum status cuda_copy_blocks(struct backend *base, int32_t n, const struct block_copy *copies)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return kv_copy_blocks(&be->kv, &be->lanes, n, copies);
}

/* Moves keys first, then recurrent state, with the same list. */
enum status cuda_move_slots(struct backend *base, int32_t n, const struct slot_move *moves,
                            int32_t set)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    TRY(kv_move_slots(&be->kv, &be->lanes, &be->passes.view, &be->passes.window_view, set, n,
                      moves));
    return states_move(&be->states, &be->lanes, set, n, moves);
}

enum status cuda_poison_blocks(struct backend *base, int32_t n, const int32_t *blocks)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return kv_poison_blocks(&be->kv, &be->lanes, n, blocks);
}

enum status cuda_lane_pages(struct backend *base, int32_t lane, int32_t first, int32_t n,
                            const int32_t *pages)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return lanes_pages(&be->lanes, lane, first, n, pages);
}

enum status cuda_copy_pages(struct backend *base, int32_t n, const struct block_copy *copies)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return kv_copy_pages(&be->kv, &be->lanes, n, copies);
}

enum status cuda_poison_pages(struct backend *base, int32_t n, const int32_t *pages)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return kv_poison_pages(&be->kv, &be->lanes, n, pages);
}

enum status cuda_pass_begin(struct backend *base, const struct pass *pass, struct pass_shape *shape)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return passes_begin(&be->passes, &be->steps, &be->lanes, pass, shape);
}

enum status cuda_pass_pause(struct backend *base)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return passes_pause(&be->passes);
}

enum status cuda_pass_draws(struct backend *base, struct pass_shape *shape)
{
    struct cuda_backend *be = cuda_backend_of(base);
    return passes_draws(&be->passes, &be->lanes, shape);
}

enum status cuda_pass_end(struct backend *base)
{
    struct cuda_backend *be = cuda_backend_of(base);
    return passes_end(&be->passes, &be->steps);
}

/* The event that marks the end of the step is recorded after all of its work. */
enum status cuda_step_end(struct backend *base)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (be->passes.pass) {
        return ERR_INVALID;
    }
    return steps_end(&be->steps, &be->lanes);
}

enum status cuda_step_wait(struct backend *base, int32_t slot, struct pass_results *results,
                           int32_t max_passes)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(cuda_enter(&be->device));
    return steps_wait(&be->steps, slot, results, max_passes);
}

bool cuda_step_done(struct backend *base, int32_t slot)
{
    return steps_done(&cuda_backend_of(base)->steps, slot);
}

/* A query does not wait. It shows a sticky error of the device even between steps. */
enum status cuda_alive(struct backend *base)
{
    struct cuda *be = cuda_of(base);
    TRY(cuda_enter(be));
    const cudaError_t e = cudaStreamQuery(be->stream);
    TRY(cuda_check(be, e == cudaErrorNotReady ? cudaSuccess : e, "a check of the device"));
    if (be->options.n_ranks > 1 && cuda_comm_alive(be) != OK) {
        be->lost = ERR_DEVICE;
    }
    return be->lost;
}

/* ---- close ----------------------------------------------------------------------------------- */

/* Frees the lists that cuda_weights.c allocated. The device memory that they point to is freed with
 * the device. */
static void close_weights(struct cuda *be)
{
    for (struct weight *w = be->weights; w;) {
        struct weight *next = w->next;
        free(w);
        w = next;
    }
    for (struct rope_table *r = be->ropes; r;) {
        struct rope_table *next = r->next;
        free(r);
        r = next;
    }
}

/* If collectives were aborted, the device may never become idle, so nothing is waited for or
 * freed. */
void cuda_close(struct backend *base)
{
    struct cuda_backend *be = cuda_backend_of(base);
    if (!be) {
        return;
    }
    struct cuda *device = &be->device;
    if (device->options.n_ranks > 1 && cuda_comm_is_aborted(device)) {
        // Work may hang on the device, and graphs refer to aborted communicators, so only the exit
        // of the process frees them.
        return;
    }
    if (device->stream) {
        cudaSetDevice(device->options.device);
        graphs_abort(be->graphs); // a stream in capture cannot be waited for
        cudaStreamSynchronize(device->stream);
    }
    graphs_close(be->graphs);
    gemms_close(&be->gemms);
    cuda_upload_close(device);
    steps_close(&be->steps);
    passes_close(&be->passes);
    peers_close(&be->peers);
    kv_close(&be->kv);
    states_close(&be->states);
    lanes_close(&be->lanes);
    close_weights(device);
    cuda_device_close(device);
    free(be);
}
