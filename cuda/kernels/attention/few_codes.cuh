// SPDX-License-Identifier: Apache-2.0
/* Attention's output as FP8 codes, for the product that reads it: a head of 128 is the group that
 * shares a scale. Thread: device code, all threads of a block. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FEW_CODES_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FEW_CODES_CUH

#include "cuda/kernels/device/rounding.cuh"

/* Rounds n heads of a row from `head` on, half a warp each: element d of head h is room[(d <<
 * log_heads) + h]. */
template <typename T>
__device__ __forceinline__ void round_heads(const struct round_args &codes, const float *room,
                                            int log_heads, int n, int row, int head)
{
    const int l = threadIdx.x & 15;
#pragma unroll 1
    for (int h = threadIdx.x >> 4; h < n; h += blockDim.x >> 4) {
        vec<T> v;
#pragma unroll
        for (int e = 0; e < ROUND_PIECE; e++) {
            v.v[e] = from_float<T>(room[((l * ROUND_PIECE + e) << log_heads) + h]);
        }
        const float scale = round_scale(codes, round_group_largest(round_largest(v)));
        round_put(codes, row, (head + h) * ROUND_GROUP + l * ROUND_PIECE, v, scale);
        if (l == 0) {
            codes.scales[(int64_t)(head + h) * codes.n_rows + row] = scale;
        }
    }
}

#endif
