// SPDX-License-Identifier: Apache-2.0
/* The steps in progress: their staging slots, and where their results are stored.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_STEP_H
#define SLUICE_CUDA_CUDA_STEP_H

#include "cuda/cuda_device.h"
#include "cuda/cuda_lanes.h"

enum {
    CUDA_MAX_STEPS = 4,     // maximum number of staging slots
    CUDA_MAX_PASSES = 64,   // maximum per step
    CUDA_STEP_WAIT_S = 300, // with several ranks, a step that takes longer is treated as hung
};

struct slot {
    struct staging staging;
    cudaEvent_t done;
    bool pending;              // the event is recorded, and nobody has waited for it yet
    struct draw_result *draws; // pinned, [max_passes, max_draws]
    float *pooled;             // pinned, [max_pooled, hidden]: shared by all passes of the step
    float *logits;             // pinned, [n_logits, vocab]: of the step's last pass
    int32_t n_logits;          // rows that there is room for
    int32_t n_passes, n_pooled;
    struct {
        int32_t n_draws, first_pooled;
    } passes[CUDA_MAX_PASSES];
};

struct steps {
    struct cuda *device;
    int32_t n_steps, max_passes, max_pooled, max_draws, hidden, vocab;
    struct slot slots[CUDA_MAX_STEPS];
    struct slot *slot; // slot of the current step; NULL between steps
};

/* staged_bytes: bytes per slot. */
enum status steps_open(struct steps *s, struct cuda *device, const struct backend_limits *limits,
                       int32_t max_draws, size_t staged_bytes);
void steps_close(struct steps *s);

enum status steps_begin(struct steps *s, int32_t index, struct lanes *lanes);
enum status steps_end(struct steps *s, struct lanes *lanes);
enum status steps_wait(struct steps *s, int32_t index, struct pass_results *results,
                       int32_t max_passes);
bool steps_done(struct steps *s, int32_t index);

/* Where the next pass of the step puts its results. Call steps_add, which counts the pass, once the
 * pass's copies are queued. */
bool steps_has_room(const struct steps *s, int32_t n_pool);
struct draw_result *steps_draws(const struct steps *s);
float *steps_pooled(const struct steps *s);
/* Makes room for n rows of whole logits in the current step. Such rows are rare, so no memory is
 * allocated before the first call. */
enum status steps_need_logits(struct steps *s, int32_t n);
float *steps_logits(const struct steps *s, int32_t row);
void steps_add(struct steps *s, int32_t n_draws, int32_t n_pool);

#endif
