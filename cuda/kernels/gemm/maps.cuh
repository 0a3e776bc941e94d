// SPDX-License-Identifier: Apache-2.0
/* The tensor maps through which products of 16 bits, and of many rows of codes, load operands.
 * Thread: host code. */
#ifndef SLUICE_CUDA_GEMM_MAPS_CUH
#define SLUICE_CUDA_GEMM_MAPS_CUH

#include "cuda/gemm.h"
#include "cuda/kernels/device/hopper.cuh"

/* The boxes have 64 columns, and w_rows or x_rows rows. A column is two codes of an FP8 product. */
static inline cudaError_t product_maps(const struct gemm_args *a, uint32_t w_rows, uint32_t x_rows,
                                       CUtensorMap *w, CUtensorMap *x)
{
    const bool bf16 = a->w_dtype == DT_BF16;
    const uint64_t size = a->w_dtype == DT_E4M3 ? 1 : 2, n_in = (uint64_t)a->n_in * size / 2;
    const uint64_t w_stride = (uint64_t)(a->w_stride ? a->w_stride : a->n_in) * size;
    const cudaError_t e =
        tensor_map_2d(w, a->weight, bf16, n_in, (uint64_t)a->n_out, w_stride, w_rows);
    if (e != cudaSuccess) {
        return e;
    }
    return tensor_map_2d(x, a->x, bf16, n_in, (uint64_t)a->n_rows, (uint64_t)a->x_stride * size,
                         x_rows);
}

#endif
