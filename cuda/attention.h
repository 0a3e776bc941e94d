// SPDX-License-Identifier: Apache-2.0
/* Attention in two halves: a plan of work items that the host makes once per pass, and a launch per
 * layer that works the plan off. The plan travels with the pass's other metadata; what is in it is
 * the attention's own affair. A plan must be valid for every layer of the pass's KV set (layers may
 * differ in heads, window and head size), and launches must not depend on anything of the host's
 * that changes between passes of one bucket: a captured graph replays them.
 * Compiles as C11 and C++17. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_ATTENTION_H
#define SLUICE_CUDA_ATTENTION_H

#include "cuda/layout.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ATTENTION_CAPTURED_ROWS = 512 }; // launches of up to so many rows may be captured

/* Passes of rows that are sequences of their own, for attention_few.cu: the keys a row may have,
 * the new one with them, in one of so many rows; 0 where the general way is as fast. */
static inline int32_t attention_few_keys(int32_t n_rows)
{
    return n_rows < 1 || n_rows > 256 ? 0
           : n_rows <= 4              ? 8192 / n_rows
           : n_rows <= 16             ? 2048
           : n_rows <= 32             ? 512
                                      : 2304;
}

/* The largest of a KV set's layers. */
struct attention_shape {
    int32_t n_heads, n_kv_heads, head_dim_v;
    int32_t blocks_per_sm; // that work off items side by side
    int32_t run_pages;     // there is room for, expanded; 0: nothing is
};

struct attention_limits {
    int32_t max_rows, max_lanes, max_len, block_tokens;
    int32_t n_sms;
    int32_t sm;         // compute capability, 80, 90...
    bool deterministic; // KV is cut at fixed places counted from 0, whatever else is in the batch
    int32_t max_paths;  // of trees of KV set 0, laid out anew (attention_plan.h); 0: never
    int32_t max_runs;   // of prompts' codes, expanded (attention_plan.h); 0: never
    size_t run_bytes;   // of the memory they are expanded into
    /* What attention_learn was told of each KV set's layers. A plan for a set of which nothing is
     * known neither splits nor shares: right, and slow. */
    struct attention_shape shapes[MAX_KV_SETS];
};

struct attention_launch {
    const void *q;
    void *out;
    int32_t q_stride, out_stride; // in elements
    enum dtype dtype;             // of q and out
    struct kv_view kv;
    struct pass_view pass;
    int32_t n_rows, n_heads; // rows of the bucket
    /* Of this pass, and so unused with up to ATTENTION_CAPTURED_ROWS. */
    int32_t n_seqs;    // 0: not known
    bool has_no_slots; // attention_plan_facts said 0
    int32_t n_runs;    // what that said, too
    bool has_others;
    void *run_memory; // limits->run_bytes
    float scale;
    int32_t window, chunk;
    float softcap;
    const float *sinks; // [n_heads] or NULL
    void *workspace;    // for partial results; attention_workspace_bytes
    size_t workspace_bytes;
    const struct attention_limits *limits; // host memory
};

/* Bytes that a plan of up to n_rows rows may take; 0 if there is none. A multiple of 16. */
size_t attention_plan_bytes(const struct attention_limits *limits, int32_t n_rows);

/* Writes the plan of `pass` to host memory of that size and sets *used, at most that size. */
enum status attention_plan(const struct attention_limits *limits, const struct pass *pass,
                           int32_t n_rows, void *out, size_t *used);

/* Of a plan just made, in host memory: the partial results that a launch will have to join, the
 * runs that it expands, and whether any item reads anything else. */
struct attention_plan_facts {
    int32_t n_slots, n_runs;
    bool has_others;
};
struct attention_plan_facts attention_plan_facts(const void *plan);

size_t attention_workspace_bytes(const struct attention_limits *limits);

/* To be called for each layer of a KV set before the first plan for it: plans suit its layers.
 * run_bytes is known by then. */
void attention_learn(struct attention_limits *limits, int32_t kv_set, int32_t n_heads,
                     const struct kv_view *kv);

/* Lays the plan's paths out; before the launch of each layer, where limits->max_paths is not 0. */
cudaError_t attention_paths(cudaStream_t stream, const struct attention_launch *a);

/* Rows that belong to no sequence may be left as they are. */
cudaError_t attention_launch(cudaStream_t stream, const struct attention_launch *a);

#ifdef __cplusplus
}
#endif
#endif
