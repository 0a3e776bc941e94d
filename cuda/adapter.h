// SPDX-License-Identifier: Apache-2.0
/* Low-rank adapters: which rows of a pass have which (adapter_items.c), and the launcher of
 * kernels/gemm/adapter*.cu. Compiles as C11 and C++17.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_ADAPTER_H
#define SLUICE_CUDA_ADAPTER_H

#include "engine/device/ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks are multiples of ADAPTER_RANK_STEP. Up to ADAPTER_FEW rows, items have up to
 * ADAPTER_FEW_TILE rows. */
enum {
    ADAPTER_RANK_STEP = 16,
    ADAPTER_MAX_RANKS = 2048, // of all modules of a weight
    ADAPTER_FEW = 256,
    ADAPTER_FEW_TILE = 16,
    ADAPTER_MANY_TILE = 64
};

/* Rows with one adapter: `rows` first .. + n_rows of the list. 16 bytes, so that one load reads
 * it. */
struct adapter_item {
    int32_t adapter, first, n_rows, unused;
};

/* The rows that have adapters, by adapter. Both arrays are in device memory. */
struct adapter_list {
    const int32_t *rows;
    const struct adapter_item *items; // the last ones may have no rows
    int32_t n_items, tile;            // tile: the most rows of an item
};

/* The most items of n_rows rows. */
static inline int32_t adapter_most_items(int32_t n_rows, int32_t n_adapters)
{
    const int32_t most = n_adapters > 0 ? n_adapters + n_rows / ADAPTER_FEW_TILE : 0;
    return most < n_rows ? most : n_rows;
}

/* Makes the list of n rows, of which row i has the adapter of row picks[i] of the pass (picks NULL:
 * of row i). of_row: the adapter of each row of the pass; counts: room for n_adapters + 1. Returns
 * the number of items. */
int32_t adapter_items_make(const int32_t *of_row, const int32_t *picks, int32_t n, int32_t tile,
                           int32_t n_adapters, int32_t *counts, int32_t *rows,
                           struct adapter_item *items);

/* What struct adapter_pair says, for each row of the list. */
struct adapter_args {
    // [n_rows, n_in], [adapters, ranks, n_in], [adapters, n_out, rank]
    const void *x, *down, *up;
    void *y;     // [n_rows, n_out]
    float *sums; // room for n_rows * adapter_sums(n_in, ranks)
    struct adapter_list list;
    int64_t x_stride, y_stride; // in elements
    int32_t n_in, n_out;
    int32_t ranks, rank; // of all modules; of one
    int32_t n_runs;
    int32_t first_out[MAX_ADAPTER_RUNS], first_rank[MAX_ADAPTER_RUNS]; // of each run
    enum dtype dtype, y_dtype;
};

/* down_a x is computed in parts, each of a range of inputs. Their number depends only on the
 * weight, so a row's bits do not depend on the number of rows. With more parts a single row keeps
 * more multiprocessors busy; with fewer there is less to add up. */
static inline int32_t adapter_parts(int32_t n_in, int32_t ranks)
{
    enum { MOST = 32, LEAST_INPUTS = 512, MOST_SUMS = 768 };
    const int32_t most = ranks * MOST < MOST_SUMS ? MOST : MOST_SUMS / ranks;
    const int32_t n = n_in / LEAST_INPUTS < most ? n_in / LEAST_INPUTS : most;
    return n > 1 ? n : 1;
}

/* The sums that are stored for each row. */
static inline int32_t adapter_sums(int32_t n_in, int32_t ranks)
{
    return adapter_parts(n_in, ranks) * ranks;
}

cudaError_t k_adapter(cudaStream_t stream, const struct adapter_args *a);

#ifdef __cplusplus
}
#endif

#endif
