// SPDX-License-Identifier: Apache-2.0
/* The slots that a row of the pass sees, for the kernels of sparse attention.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_INDEX_SEEN_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_INDEX_SEEN_CUH

#include "cuda/index.h"

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
};

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
