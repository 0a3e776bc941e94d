// SPDX-License-Identifier: Apache-2.0
/* Hyper-connections: what the op hands to its kernels. Compiles as C11 and C++17.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_HYPER_H
#define SLUICE_CUDA_HYPER_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HYPER_SLICE = 256 }; // columns whose products one block computes

/* As struct hyper_args; pointers are those of the first of n_rows rows, and NULL where that has no
 * memory. streams, delta, x and out have one dtype. */
struct hyper_launch {
    void *streams, *x, *out;
    const void *delta;
    float *gates;
    const float *fn, *base, *scale, *norm;
    float *sums; // [n_rows, n_slices, n_fn + 1]: scratch memory
    enum dtype dtype;
    int32_t streams_stride, delta_stride, x_stride, out_stride, gates_stride;
    int32_t n_rows, width, n, n_fn, n_slices; // n_fn: rows of fn; 0: none
    int32_t n_sinkhorn;
    bool begins, ends;
    float norm_eps, eps, magnitude, after_eps;
};

/* kernels/hyper.cu */
cudaError_t k_hyper(cudaStream_t stream, const struct hyper_launch *a);

#ifdef __cplusplus
}
#endif
#endif
