// SPDX-License-Identifier: Apache-2.0
/* The launcher of kernels/adapter.cu: low-rank adapters. Compiles as C11 and C++17.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_ADAPTER_H
#define SLUICE_CUDA_ADAPTER_H

#include "cuda/layout.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ADAPTER_RANK_STEP = 16, ADAPTER_MAX_RANK = 1024 }; // ranks are multiples of the former

/* y[row] += up_a (down_a x[row]) for each row whose sequence has adapter a. */
struct adapter_args {
    const void *x, *down, *up; // [n_rows, n_in], [adapters, rank, n_in], [adapters, n_out, rank]
    void *y;                   // [n_rows, n_out]
    float *sums;               // room for n_rows * adapter_sums(n_in, rank)
    const int32_t *rows;       // the pass's row of each row; NULL: the same
    const int32_t *row_seq;    // as in struct pass_view
    const struct pass_seq *seqs;
    int64_t x_stride, y_stride; // in elements
    int32_t n_rows, n_in, n_out, rank;
    int32_t max_seqs; // no more sequences than this have rows
    enum dtype dtype, y_dtype;
};

/* down_a x is computed in parts, each of a range of inputs. Their number depends only on the
 * weight, so a row's bits do not depend on the number of rows. With more parts a single row keeps
 * more multiprocessors busy; with fewer there is less to add up. */
static inline int32_t adapter_parts(int32_t n_in, int32_t rank)
{
    enum { MOST = 16, LEAST_INPUTS = 512, MOST_SUMS = 768 };
    int32_t n = 1;
    while (2 * n <= MOST && 2 * n * LEAST_INPUTS <= n_in && 2 * n * rank <= MOST_SUMS) {
        n *= 2;
    }
    return n;
}

/* The sums that are stored for each row. */
static inline int32_t adapter_sums(int32_t n_in, int32_t rank)
{
    return adapter_parts(n_in, rank) * rank;
}

cudaError_t k_adapter(cudaStream_t stream, const struct adapter_args *a);

#ifdef __cplusplus
}
#endif

#endif
