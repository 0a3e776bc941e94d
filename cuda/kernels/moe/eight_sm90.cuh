// SPDX-License-Identifier: Apache-2.0
/* The parameters of moe/eight_sm90.cu's products, the walk through their pairs of a tile and a
 * band, and the warpgroup that fills the ring of stages. Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_EIGHT_SM90_CUH
#define SLUICE_CUDA_KERNELS_MOE_EIGHT_SM90_CUH

#include "cuda/kernels/device/hand_over.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/rounding.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/moe/sm90.cuh"

enum {
    BOX = 128,  // inputs of a stage, a byte each
    HALF = 128, // features
    BAND = 2 * HALF,
    HALF_BYTES = HALF * BOX,
    W_BYTES = BAND * BOX,
    STAGES = 4,
    COMPUTERS = 256, // computing threads
    THREADS = COMPUTERS + 128,
    X_BYTES = TILE_ROWS * BOX,
    STAGE_BYTES = W_BYTES + X_BYTES,
    SMEM_BYTES = STAGES * STAGE_BYTES + 1024, // 1024: alignment
    LAG = 2,           // boxes whose copies may be in flight while the next box's are issued
    SCALES_APART = 16, // floats from a weight row's scale to its next one: a tile has 16 rows
};

/* One of the two products. A band is two runs of HALF weight rows, `second` apart. */
struct eight_params {
    const struct moe_tile *tiles;
    const int32_t *n_tiles;
    const int32_t *sorted, *rows; // rows: row of x by place; NULL: x is sorted
    const uint8_t *x;             // codes, [rows, n_in]
    const float *x_scales;        // [n_in / 128, x_rows]
    const float *w_scales;        // records of coded.h
    int32_t x_rows, n_in, n_out;  // n_out: ffn or hidden
    int32_t w_rows;               // weight rows per expert
    int32_t band_rows, second, n_bands;
    struct round_args codes; // of the up product's results
    void *out;               // the down product's results, by pick
};

#if HAVE_SM90A

/* What the computing warps need to know about the pair of a tile and a band. */
struct eight_piece {
    int32_t expert, first, band, n_rows;
};

struct eight_shared {
    uint64_t full[STAGES], empty[STAGES];
    uint32_t piece[STAGES][sizeof(struct eight_piece) / 4]; // whose first box is in the stage
    float x_scales[STAGES][TILE_ROWS], w_scales[STAGES][2];
};

/* A block's pairs. In each round its place among the blocks moves on by one. With a plain stride of
 * an even number of blocks, a block would only get pairs of one parity, and where experts have two
 * tiles these may all be the tiles with few rows. */
struct eight_walk {
    int32_t base = 0, place = (int32_t)blockIdx.x;
    __device__ __forceinline__ int32_t pair() const
    {
        return base + place;
    }
    __device__ __forceinline__ void next()
    {
        base += (int32_t)gridDim.x;
        place = place + 1 == (int32_t)gridDim.x ? 0 : place + 1;
    }
};

struct eight_ring {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next()
    {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ struct moe_tile tile_at(const struct eight_params &p, int32_t i)
{
    const int4 v = *(const int4 *)(p.tiles + i);
    struct moe_tile t;
    memcpy(&t, &v, sizeof t);
    return t;
}

/* is_alone: no other tile reads the band. */
__device__ __forceinline__ struct eight_piece piece_at(const struct eight_params &p, int32_t pair,
                                                       bool *is_alone)
{
    const struct moe_tile any = tile_at(p, pair / p.n_bands); // any tile of the group
    const int32_t in_group = pair - any.group_first * p.n_bands;
    const struct moe_tile t = tile_at(p, any.group_first + in_group % any.group_n);
    *is_alone = any.group_n == 1;
    return {t.expert, t.first, in_group / any.group_n, t.n_rows};
}

/* Copies one scale. */
__device__ __forceinline__ void copy_scale(float *to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_address(to)), "l"(from)
                 : "memory");
}

/* The loading warpgroup. A thread copies vectors of eight rows and the scale of one row with
 * ordinary cp.async, and signals a box after it has issued the copies of the next LAG boxes. */
struct eight_loader {
    enum { EACH = TILE_ROWS * (BOX / 16) / 128, NO_ROW = -1 };
    const struct eight_params &p;
    const CUtensorMap *w_map;
    char *stages;
    struct eight_shared *s;
    struct eight_ring at;
    int32_t tid;
    uint32_t from[EACH];                   // offsets of the thread's vectors in x, which is in the
                                           // scratch memory (less than 4 GiB)
    const float *x_scale, *w_scale;        // NULL: none
    uint64_t *copying[LAG] = {NULL, NULL}; // barriers of the boxes in flight, oldest first

    __device__ __forceinline__ void find_rows(const struct eight_piece &u)
    {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int32_t r = (tid >> 3) + 16 * j;
            from[j] = (uint32_t)NO_ROW;
            if (r < u.n_rows) {
                const int32_t row = p.rows ? p.rows[u.first + r] : u.first + r;
                from[j] = (uint32_t)row * (uint32_t)p.n_in + (tid & 7) * 16;
            }
        }
        x_scale = w_scale = NULL;
        if (tid < u.n_rows) {
            x_scale = p.x_scales + (p.rows ? p.rows[u.first + tid] : u.first + tid);
        }
        if (tid < 2) { // the second half of the last band may not exist
            const int32_t row = u.band * p.band_rows + tid * p.second;
            const int64_t tile = ((int64_t)u.expert * p.w_rows + min(row, p.w_rows - HALF)) / 16;
            w_scale = p.w_scales + tile * (p.n_in / BOX) * SCALES_APART;
        }
    }

    __device__ __forceinline__ void load_weights(const struct eight_piece &u, int32_t box,
                                                 uint64_t policy)
    {
        char *to = stages + at.slot * STAGE_BYTES;
        uint64_t *bar = &s->full[at.slot];
        const int32_t row = u.expert * p.w_rows + u.band * p.band_rows;
        barrier_expect(bar, W_BYTES);
        tensor_load(to, w_map, bar, box * BOX, row, policy);
        tensor_load(to + HALF_BYTES, w_map, bar, box * BOX, row + p.second, policy);
    }

    __device__ __forceinline__ void copy_rows(int32_t box)
    {
        char *to = stages + at.slot * STAGE_BYTES + W_BYTES;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (from[j] != (uint32_t)NO_ROW) {
                copy_async(to + swizzled((tid >> 3) + 16 * j, tid & 7), p.x + from[j] + box * BOX,
                           16);
            }
        }
        if (x_scale) {
            copy_scale(&s->x_scales[at.slot][tid], x_scale + (int64_t)box * p.x_rows);
        }
        if (w_scale) {
            copy_scale(&s->w_scales[at.slot][tid], w_scale + box * SCALES_APART);
        }
        copies_commit();
    }

    /* Signals the oldest box in flight; the newest is `bar`. */
    template <int IN_FLIGHT> __device__ __forceinline__ void signal(uint64_t *bar)
    {
        if (copying[0]) {
            copies_wait<IN_FLIGHT>();
            fence_async();
            barrier_arrive(copying[0]);
        }
        copying[0] = copying[1];
        copying[1] = bar;
    }

    __device__ __forceinline__ void run()
    {
        const int32_t n_pairs = *p.n_tiles * p.n_bands, n_boxes = p.n_in / BOX;
#pragma unroll 1
        for (struct eight_walk walk; walk.pair() < n_pairs; walk.next()) {
            bool is_alone;
            const struct eight_piece u = piece_at(p, walk.pair(), &is_alone);
            const uint64_t policy = is_alone ? policy_evict_first() : policy_normal();
            find_rows(u);
#pragma unroll 1
            for (int32_t box = 0; box < n_boxes; box++, at.next()) {
                barrier_wait(&s->empty[at.slot], at.parity ^ 1);
                if (tid == 0) {
                    if (box == 0) {
                        hand_over(s->piece[at.slot], u);
                    }
                    load_weights(u, box, policy);
                }
                copy_rows(box);
                signal<LAG>(&s->full[at.slot]);
            }
        }
        signal<1>(NULL);
        signal<0>(NULL);
    }
};

#endif // HAVE_SM90A

#endif
