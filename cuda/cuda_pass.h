// SPDX-License-Identifier: Apache-2.0
/* The current pass: its metadata on the device, and whether it is launched, captured or replayed.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_PASS_H
#define SLUICE_CUDA_CUDA_PASS_H

#include "cuda/adapter.h"
#include "cuda/attention.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_graph.h"
#include "cuda/cuda_kv.h"
#include "cuda/cuda_lanes.h"
#include "cuda/cuda_masks.h"
#include "cuda/cuda_step.h"
#include "cuda/state.h"

struct passes {
    struct cuda *device;
    struct graphs *graphs;
    struct backend_limits limits;
    int32_t max_draws;
    const struct attention_limits *attention;

    /* In device memory, like the following. */
    char *meta;
    int32_t *tokens;
    float *pooled, *pooled_results;
    float *laws;                    // [max_laws, vocab]
    unsigned long long *law_totals; // [max_laws]
    struct draw_result *results;

    struct draw_masks masks;
    const struct pass *pass; // NULL between passes; the engine owns its arrays until pass_end
    int32_t set, n_draws, n_pool;
    struct pass_view view;        // view of the current pass; the lanes' tables are always valid
    struct pass_view window_view; // the same with the tables of windowed layers
    struct pass_shape shape;
    struct attention_plan_facts plan;
    struct few_pass few;
    struct adapter_list adapted, adapted_out; // of the rows and of the out rows
    struct state_work state_work;             // an upper bound for the pass's work
    int32_t n_state_slots[CUDA_MAX_SETS]; // number of slots of each state set, including the lanes;
                                          // 0: there is no such set
    int32_t state_block[CUDA_MAX_SETS];
    int32_t *adapter_of_row, *adapter_counts; // scratch of pass_begin in host memory
};

/* `attention` is also read later, so it must stay valid. */
enum status passes_open(struct passes *p, struct cuda *device, struct graphs *graphs,
                        const struct lanes *lanes, const struct backend_limits *limits,
                        int32_t max_draws, const struct attention_limits *attention);
void passes_close(struct passes *p); // frees host memory
/* The bytes of the metadata of the largest pass. */
size_t passes_meta_bytes(const struct attention_limits *attention,
                         const struct backend_limits *limits, int32_t max_draws,
                         int32_t n_adapters);
enum status passes_begin(struct passes *p, struct steps *steps, struct lanes *lanes,
                         const struct pass *pass, struct pass_shape *shape);
/* For a pass whose draws wait: called after the forward pass and before the draws. */
enum status passes_pause(struct passes *p);
enum status passes_draws(struct passes *p, struct lanes *lanes, struct pass_shape *shape);
enum status passes_end(struct passes *p, struct steps *steps);

#endif
