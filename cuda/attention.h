// SPDX-License-Identifier: Apache-2.0
/* Attention in two halves: the host plans the work items once per pass, and one launch per layer
 * executes the plan. The plan travels with the rest of the pass's metadata, and only the attention
 * code interprets it. A plan is valid for every layer of the pass's KV set (layers may differ in
 * heads, window and head size). Launches must not depend on host state that changes between passes
 * of one bucket, because a captured graph replays them. Compiles as C11 and C++17.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_ATTENTION_H
#define SLUICE_CUDA_ATTENTION_H

#include "cuda/layout.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ATTENTION_CAPTURED_ROWS = 512, // launches of up to this many rows may be captured
    /* With up to this many rows attention/few.cu divides a row's keys among blocks. Then it does
     * not add up partial sums of the product before it, which saves more than splitting K would. */
    ATTENTION_COMPLETE_ROWS = 16,
};

/* attention/few.cu computes passes in which every row is a separate sequence. Returns the maximum
 * number of keys (including the new one) that a row may have in such a pass of n_rows rows. 0: the
 * general path is as fast. */
static inline int32_t attention_few_keys(int32_t n_rows)
{
    if (n_rows < 1 || n_rows > 256) {
        return 0;
    }
    if (n_rows <= 4) {
        return 8192 / n_rows;
    }
    if (n_rows <= 16) {
        return 2048;
    }
    return n_rows <= 32 ? 512 : 2304;
}

/* The largest dimensions among a KV set's layers. */
struct attention_shape {
    int32_t n_heads, n_kv_heads, head_dim_v;
    int32_t blocks_per_sm; // blocks that are resident at once and process items
    int32_t run_pages;     // number of pages available for expanded runs; 0: nothing is expanded
};

struct attention_limits {
    int32_t max_rows, max_lanes, max_len, block_tokens;
    int32_t n_sms;
    int32_t sm;         // compute capability: 80, 90...
    bool deterministic; // KV is split at fixed positions counted from 0, whatever else is in the
                        // batch
    // Maximum number of tree paths that a pass copies in KV set 0 (attention_plan.h); 0: none.
    int32_t max_paths;
    // Maximum number of runs of quantised keys that a pass expands (attention_plan.h); 0: none.
    int32_t max_runs;
    size_t run_bytes; // memory for the expanded runs
    /* What attention_learn has recorded about the layers of each KV set. Without it a plan neither
     * splits nor shares, which is correct but slow. */
    struct attention_shape shapes[MAX_KV_SETS];
};

struct attention_launch {
    const void *q;
    void *out;
    int32_t q_stride, out_stride; // in elements
    enum dtype dtype;             // of q and out
    struct kv_view kv;
    struct pass_view pass;
    int32_t n_rows, n_heads; // n_rows: rows of the bucket
    /* The following describe one pass only. A launch of up to ATTENTION_CAPTURED_ROWS rows may be
     * replayed for another pass, so it must not use them. */
    int32_t n_seqs;    // 0: unknown
    bool has_no_slots; // attention_plan_facts reported that there are no slots
    int32_t n_runs;    // as reported by attention_plan_facts
    bool has_others;
    void *run_memory; // limits->run_bytes of device memory
    float scale;
    int32_t window, chunk;
    float softcap;
    const float *sinks;   // [n_heads] or NULL
    const int32_t *picks; // the rows' lists of keys or blocks (index.h); NULL: none
    int32_t top_k;        // of these lists
    int32_t pick_block;   // keys of a block; 0: lists of keys, only for MLA
    void *workspace;      // for partial results; see attention_workspace_bytes
    size_t workspace_bytes;
    const struct attention_limits *limits; // in host memory
};

/* The maximum number of bytes of a plan of up to n_rows rows (a multiple of 16). 0: such a plan is
 * impossible. */
size_t attention_plan_bytes(const struct attention_limits *limits, int32_t n_rows);

/* Writes the plan of `pass` to host memory of attention_plan_bytes and sets *used to the bytes
 * written. */
enum status attention_plan(const struct attention_limits *limits, const struct pass *pass,
                           int32_t n_rows, void *out, size_t *used);

/* Facts about a plan in host memory that was just made: the number of partial results that a launch
 * must join, the number of runs that it expands, and whether any item reads keys outside these
 * runs. */
struct attention_plan_facts {
    int32_t n_slots, n_runs;
    bool has_others;
};
struct attention_plan_facts attention_plan_facts(const void *plan);

size_t attention_workspace_bytes(const struct attention_limits *limits);

/* Call this for each layer of a KV set before the first plan for the set, because plans are sized
 * for its layers. run_bytes must be set by then. */
void attention_learn(struct attention_limits *limits, int32_t kv_set, int32_t n_heads,
                     const struct kv_view *kv);

/* Lays out the plan's tree paths. Call it before each layer's launch if limits->max_paths is not
 * 0. */
cudaError_t attention_paths(cudaStream_t stream, const struct attention_launch *a);

/* Rows that belong to no sequence may be left unwritten. */
cudaError_t attention_launch(cudaStream_t stream, const struct attention_launch *a);

#ifdef __cplusplus
}
#endif
#endif
