// SPDX-License-Identifier: Apache-2.0
/* The pass in hand: its metadata on the device, and whether it is issued, captured or replayed.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_PASS_H
#define SLUICE_CUDA_CUDA_PASS_H

#include "cuda/attention.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_graph.h"
#include "cuda/cuda_kv.h"
#include "cuda/cuda_lanes.h"
#include "cuda/cuda_step.h"
#include "cuda/state.h"

struct passes {
    struct cuda *device;
    struct graphs *graphs;
    struct backend_limits limits;
    int32_t max_draws;
    const struct attention_limits *attention;

    /* device memory */
    char *meta;
    int32_t *tokens;
    float *pooled, *pooled_results;
    float *laws;                    // [max_laws, vocab]
    uint32_t *masks;                // [max_masks, allowed_stride of the lanes]
    unsigned long long *law_totals; // [max_laws]
    struct draw_result *results;

    const struct pass *pass; // NULL between passes; its arrays are the engine's until pass_end
    int32_t set, n_draws, n_pool;
    struct pass_view view; // of the pass in hand; the lanes' tables always
    struct pass_shape shape;
    struct attention_plan_facts plan;
    bool is_few;                          // attention_few.cu may take its rows
    struct state_work state_work;         // at least that of the pass
    int32_t n_state_slots[CUDA_MAX_SETS]; // of state sets, with the lanes'; 0: there is no such set
    int32_t state_block[CUDA_MAX_SETS];
};

/* attention is read from then on. */
enum status passes_open(struct passes *p, struct cuda *device, struct graphs *graphs,
                        const struct lanes *lanes, const struct backend_limits *limits,
                        int32_t max_draws, const struct attention_limits *attention);
/* Of the largest pass's metadata. */
size_t passes_meta_bytes(const struct attention_limits *attention,
                         const struct backend_limits *limits, int32_t max_draws);
enum status passes_begin(struct passes *p, struct steps *steps, struct lanes *lanes,
                         const struct pass *pass, struct pass_shape *shape);
/* Of a pass whose draws wait, after its forward pass. */
enum status passes_draws(struct passes *p, struct lanes *lanes, struct pass_shape *shape);
enum status passes_end(struct passes *p, struct steps *steps);

#endif
