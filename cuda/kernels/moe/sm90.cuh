// SPDX-License-Identifier: Apache-2.0
/* Shared by moe/sm90.cu, coded_many.cu, eight_sm90.cu, the sort of their picks and the sum over
 * them: the tiles, and a call's scratch memory. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_KERNELS_MOE_SM90_CUH
#define SLUICE_CUDA_KERNELS_MOE_SM90_CUH

#include "cuda/kernels/kernels.h"

enum {
    TILE_ROWS = 128,
    HALF_ROWS = TILE_ROWS / 2,
    GROUP = 16, // tiles of an expert that share bands of weights
};

/* Rows [first, first + n_rows) of the sorted picks, all of one expert. The tile shares bands with
 * the group_n tiles from group_first on, whose rows follow one another; the first n_paired of those
 * are processed in pairs, and all but the last, which has last_rows, have TILE_ROWS. */
struct moe_tile {
    int32_t expert, first, group_first;
    uint8_t n_rows, group_n, n_paired, last_rows;
};

/* A call's scratch memory. */
struct moe_work {
    int32_t *sorted, *rows; // [picks] by place: the pick, and its row
    struct moe_tile *tiles;
    int32_t *n_tiles;
    void *act, *out; // [picks, ffn] by place; [picks, hidden] by pick
    bool keeps_out;  // in the L2 cache until the sum has read it, which then discards it
};

/* Lays out the scratch memory of a call of sm90.cu or coded_many.cu from `base` on; returns its
 * size. */
size_t moe_lay_out(char *base, int64_t picks, const struct moe_ffn_args *a, int64_t hidden,
                   struct moe_work *w);

/* True if moe/sm90.cu can compute these experts once each has many rows. If so, fewer rows are also
 * rounded as it rounds (gated.cuh), on every device. */
bool moe_rounds(const struct moe_ffn_args *a, const struct moe_weights *w);

/* moe/sort.cu: writes all of `w` except act and out. */
cudaError_t moe_sort(cudaStream_t stream, const struct moe_ffn_args *a, const struct moe_work &w,
                     const int32_t *real, int32_t row_offset);

/* moe/sum.cu: y from w.out. gate: as for k_moe_ffn_sm90. */
cudaError_t moe_sum(cudaStream_t stream, const struct moe_ffn_args *a, const float *gate,
                    const struct moe_work &w, int32_t hidden, const int32_t *real,
                    int32_t row_offset);

#endif
