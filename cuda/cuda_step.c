// SPDX-License-Identifier: Apache-2.0
/* Staging slots: the host memory of steps in progress, and a step's start, end and results. */
#include "cuda/cuda_step.h"
#include "cuda/cuda_comm.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"

#include <math.h>
#include <string.h>

/* Each slot has pinned memory, so that copies do not wait for the host. */
enum status steps_open(struct steps *s, struct cuda *device, const struct backend_limits *limits,
                       int32_t max_draws, size_t staged_bytes)
{
    s->device = device;
    s->n_steps = limits->n_steps;
    s->max_passes = limits->max_passes;
    s->max_pooled = limits->max_out_rows + limits->max_lanes;
    s->max_draws = max_draws;
    s->hidden = limits->hidden;
    s->vocab = limits->vocab;
    const size_t n_draws = (size_t)limits->max_passes * (size_t)max_draws;
    const size_t n_pooled = (size_t)s->max_pooled * (size_t)limits->hidden;
    for (int32_t i = 0; i < s->n_steps; i++) {
        struct slot *slot = &s->slots[i];
        CUDA_TRY(device, cudaMallocHost((void **)&slot->staging.pinned, staged_bytes));
        CUDA_TRY(device, cudaMallocHost((void **)&slot->draws, n_draws * sizeof *slot->draws));
        memset(slot->draws, 0, n_draws * sizeof *slot->draws);
        CUDA_TRY(device, cudaMallocHost((void **)&slot->pooled, n_pooled * sizeof *slot->pooled));
        CUDA_TRY(device, cudaEventCreateWithFlags(&slot->done, cudaEventDisableTiming));
    }
    return OK;
}

void steps_close(struct steps *s)
{
    for (int32_t i = 0; i < CUDA_MAX_STEPS; i++) {
        struct slot *slot = &s->slots[i];
        cudaFreeHost(slot->staging.pinned);
        cudaFreeHost(slot->draws);
        cudaFreeHost(slot->pooled);
        cudaFreeHost(slot->logits);
        if (slot->done) {
            cudaEventDestroy(slot->done);
        }
    }
}

/* With several ranks: if a rank is gone, the others must not wait for ever, and results after an
 * abort are invalid. */
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

/* With several ranks, a wait must also notice that another rank was lost. */
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

/* A slot is reused only after its previous step has ended. */
enum status steps_begin(struct steps *s, int32_t index, struct lanes *lanes)
{
    if (s->slot || index < 0 || index >= s->n_steps) {
        return ERR_INVALID;
    }
    struct slot *slot = &s->slots[index];
    TRY(wait_slot(s->device, slot)); // the engine has already waited for the first rank's step
    slot->n_passes = slot->n_pooled = 0;
    lanes_begin(lanes, &slot->staging);
    s->slot = slot;
    return OK;
}

/* The results are valid once this event has happened. */
enum status steps_end(struct steps *s, struct lanes *lanes)
{
    if (!s->slot) {
        return ERR_INVALID;
    }
    TRY(lanes_end(lanes));
    CUDA_TRY(s->device, cudaEventRecord(s->slot->done, s->device->stream));
    s->slot->pending = true;
    s->slot = NULL;
    return OK;
}

/* The results point into the slot's memory and are valid until the slot's next step begins. */
enum status steps_wait(struct steps *s, int32_t index, struct pass_results *results,
                       int32_t max_passes)
{
    if (index < 0 || index >= s->n_steps) {
        return ERR_INVALID;
    }
    struct slot *slot = &s->slots[index];
    TRY(wait_slot(s->device, slot));
    for (int32_t i = 0; i < slot->n_passes && i < max_passes; i++) {
        results[i].n_draws = slot->passes[i].n_draws;
        results[i].draws = slot->draws + (size_t)i * (size_t)s->max_draws;
        results[i].pooled = slot->pooled + (size_t)slot->passes[i].first_pooled * (size_t)s->hidden;
        results[i].logits = slot->logits;
    }
    return OK;
}

/* Never waits. An error counts as done, so that the caller calls steps_wait, which reports the
 * error. */
bool steps_done(struct steps *s, int32_t index)
{
    if (s->device->lost != OK || index < 0 || index >= s->n_steps) {
        return true; // steps_wait reports the error
    }
    const struct slot *slot = &s->slots[index];
    return !slot->pending || cudaEventQuery(slot->done) != cudaErrorNotReady;
}

bool steps_has_room(const struct steps *s, int32_t n_pool)
{
    return s->slot && s->slot->n_passes < s->max_passes &&
           s->slot->n_pooled + n_pool <= s->max_pooled;
}

struct draw_result *steps_draws(const struct steps *s)
{
    return s->slot->draws + (size_t)s->slot->n_passes * (size_t)s->max_draws;
}

float *steps_pooled(const struct steps *s)
{
    return s->slot->pooled + (size_t)s->slot->n_pooled * (size_t)s->hidden;
}

/* Only the first n_vocab_used logits of a row are copied, so the other ids keep -infinity. */
enum status steps_need_logits(struct steps *s, int32_t n)
{
    struct slot *slot = s->slot;
    if (n <= slot->n_logits) {
        return OK;
    }
    const size_t n_floats = (size_t)n * (size_t)s->vocab;
    CUDA_TRY(s->device, cudaFreeHost(slot->logits));
    slot->logits = NULL;
    slot->n_logits = 0;
    CUDA_TRY(s->device, cudaMallocHost((void **)&slot->logits, n_floats * sizeof *slot->logits));
    slot->n_logits = n;
    for (size_t i = 0; i < n_floats; i++) {
        slot->logits[i] = -INFINITY;
    }
    return OK;
}

float *steps_logits(const struct steps *s, int32_t row)
{
    return s->slot->logits + (size_t)row * (size_t)s->vocab;
}

/* Counts a pass, so that the next pass gets other memory for its results. */
void steps_add(struct steps *s, int32_t n_draws, int32_t n_pool)
{
    struct slot *slot = s->slot;
    slot->passes[slot->n_passes].n_draws = n_draws;
    slot->passes[slot->n_passes].first_pooled = slot->n_pooled;
    slot->n_pooled += n_pool;
    slot->n_passes++;
}
