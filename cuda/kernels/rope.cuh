// SPDX-License-Identifier: Apache-2.0
/* Shared by the kernels that rotate heads and store them: rope.cu and rope_mla.cu.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_ROPE_CUH
#define SLUICE_CUDA_KERNELS_ROPE_CUH

#include "cuda/kernels/device/growth.cuh"
#include "cuda/kernels/device/kv_codes.cuh"
#include "cuda/kernels/device/types.cuh"

enum { ROPE_WARPS = 4, ROPE_MAX_HEAD = 576 };

/* Where the row's K and V are stored: the page, and the token in it. */
__device__ __forceinline__ void slot_of(const struct pass_view &pass, const struct pass_row &row,
                                        int32_t block_tokens, int64_t *page, int32_t *token)
{
    const int32_t block = row.slot_pos / block_tokens;
    *page = block < pass.blocks_stride ? pass.blocks[(int64_t)row.lane * pass.blocks_stride + block]
                                       : pass.n_blocks;
    *token = row.slot_pos % block_tokens;
}

/* Rotates a pair of elements, and adds the squares of a pair to a sum. The operations are spelled
 * out, so that every kernel that uses them gives the same bits. */
__device__ __forceinline__ void turn(float &a, float &b, float cos, float sin)
{
    const float x = a;
    a = __fmaf_rn(x, cos, -__fmul_rn(b, sin));
    b = __fmaf_rn(b, cos, __fmul_rn(x, sin));
}

__device__ __forceinline__ float add_squares(float sum, float a, float b)
{
    return __fadd_rn(sum, __fmaf_rn(a, a, __fmul_rn(b, b)));
}

/* Rotates element i of a head whose elements are in `head`, shared by the warp. */
__device__ __forceinline__ float rotated(const float *head, int i, const struct rope_view &rope,
                                         const float *cos_sin)
{
    if (i >= 2 * rope.n_pairs) {
        return head[i];
    }
    int pair = i >> 1;
    if (!rope.interleaved) {
        pair = i < rope.n_pairs ? i : i - rope.n_pairs;
    }
    const bool second = rope.interleaved ? i & 1 : i >= rope.n_pairs;
    const float c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1];
    float a = head[rope.interleaved ? 2 * pair : pair];
    float b = head[rope.interleaved ? 2 * pair + 1 : pair + rope.n_pairs];
    turn(a, b, c, s);
    return second ? b : a;
}

#endif
