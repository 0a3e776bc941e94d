// SPDX-License-Identifier: Apache-2.0
/* The slots that a row of the pass sees, for the kernels of sparse attention.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_INDEX_SEEN_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_INDEX_SEEN_CUH

#include "cuda/index.h"
#include "cuda/kernels/device/reduce.cuh"

#include <stdint.h>

/* The row sees slots [0, n_past) and those new ones in [n_past, n_slots) that `nodes` selects; if
 * the sequence is no tree, all of them. Padding rows see none. */
struct seen_slots {
    int32_t n_past, n_slots, n_seen;
    bool tree;
    uint64_t nodes[TREE_MASK_WORDS];

    __device__ __forceinline__ bool sees(int32_t slot) const
    {
        const int32_t node = slot - n_past;
        return !tree || node < 0 || ((node < 64 ? nodes[0] : nodes[1]) >> (node & 63) & 1) != 0;
    }

    /* The number of leading slots that are equal to the positions of their keys. */
    __device__ __forceinline__ int32_t n_plain() const
    {
        return tree ? n_past : n_slots;
    }

    /* The slot of the key at a position below n_seen. */
    __device__ __forceinline__ int32_t slot_of(int32_t pos) const
    {
        if (pos < n_plain()) {
            return pos;
        }
        int n = pos - n_past;
        const int low = __popcll(nodes[0]);
        uint64_t word = n < low ? nodes[0] : nodes[1];
        for (n -= n < low ? 0 : low; n > 0; n--) {
            word &= word - 1;
        }
        return n_past + (pos - n_past < low ? 0 : 64) + __ffsll((long long)word) - 1;
    }
};

/* A number that orders like the score, and is never 0. Zeros of both signs are equal. */
__device__ __forceinline__ uint32_t order_of(float score)
{
    const uint32_t u = __float_as_uint(__fadd_rn(score, 0.0f));
    const uint32_t key = u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
    return key > 1u ? key : 1u;
}

__device__ __forceinline__ struct seen_slots seen_slots_of(const struct pass_view &pass, int32_t r)
{
    static_assert(TREE_MASK_WORDS == 2, "two words per mask");
    struct seen_slots s = {};
    const int32_t index = pass.row_seq[r];
    if (index < 0) {
        return s;
    }
    const struct pass_seq seq = pass.seqs[index];
    s.n_past = seq.n_past;
    s.tree = seq.tree;
    if (!seq.tree) {
        s.n_slots = s.n_seen = seq.n_past + r - seq.first_row + 1;
        return s;
    }
    s.nodes[0] = pass.tree_mask[(int64_t)r * TREE_MASK_WORDS];
    s.nodes[1] = pass.tree_mask[(int64_t)r * TREE_MASK_WORDS + 1];
    s.n_slots = seq.n_past + seq.n_rows;
    s.n_seen = seq.n_past + __popcll(s.nodes[0]) + __popcll(s.nodes[1]);
    return s;
}

#endif
