// SPDX-License-Identifier: Apache-2.0
/* The layout of a call's scratch memory, for the kernels that sort the picks first (moe/sort.cu).
 * Thread: any. */
#ifndef SLUICE_CUDA_KERNELS_MOE_ROOM_CUH
#define SLUICE_CUDA_KERNELS_MOE_ROOM_CUH

#include "cuda/kernels/moe/sm90.cuh"

/* Hands out aligned parts of the memory from `base` on, which may be NULL to learn the size. */
struct moe_room {
    char *base;
    size_t size;
    void *take(int64_t n_bytes)
    {
        char *p = base + size;
        size += ((size_t)n_bytes + 255) / 256 * 256;
        return p;
    }
};

/* The maximum number of tiles. */
static inline int64_t moe_most_tiles(int64_t picks, int64_t n_experts)
{
    return picks / TILE_ROWS + (n_experts < picks ? n_experts : picks);
}

/* The parts that moe_sort writes. */
static inline void take_sorted(struct moe_room *room, int64_t picks, int64_t n_experts,
                               struct moe_work *w)
{
    w->sorted = (int32_t *)room->take(picks * 4);
    w->rows = (int32_t *)room->take(picks * 4);
    w->tiles =
        (struct moe_tile *)room->take(moe_most_tiles(picks, n_experts) * sizeof(struct moe_tile));
    w->n_tiles = (int32_t *)room->take(4);
    w->keeps_out = false;
}

#endif
