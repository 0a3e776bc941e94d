// SPDX-License-Identifier: Apache-2.0
/* The parameters of moe/eight_sm90.cu's products, the walk through their pairs of a tile and a
 * band, and the warpgroup that fills the ring of stages. Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_EIGHT_SM90_CUH
#define SLUICE_CUDA_KERNELS_MOE_EIGHT_SM90_CUH

#include "cuda/kernels/device/hand_over.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/rounding.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/x_ring.cuh"
#include "cuda/kernels/moe/sm90.cuh"

enum {
    BOX = 128,  // inputs of a stage, a byte each
    HALF = 128, // features
    BAND = 2 * HALF,
    HALF_BYTES = HALF * BOX,
    QUARTER = HALF / 2,
    QUARTER_BYTES = QUARTER * BOX,
    W_BYTES = BAND * BOX,
    STAGES = 4,
    COMPUTERS = 256, // computing threads
    THREADS = COMPUTERS + 128,
    X_BYTES = TILE_ROWS * BOX,
    STAGE_BYTES = W_BYTES + X_BYTES,
    SMEM_BYTES = STAGES * STAGE_BYTES + 1024, // 1024: alignment
    SCALES_APART = 16, // floats from a weight row's scale to its next one: a tile has 16 rows
};

/* One of the two products. A band has four quarters of QUARTER weight rows. Those of the up product
 * are gates, their factors, the other gates, and their factors. */
struct eight_params {
    const struct moe_tile *tiles;
    const int32_t *n_tiles;
    const int32_t *sorted, *rows; // rows: the up product's row of x by place
    const uint8_t *x;             // codes, [rows, n_in]
    const float *x_scales;        // [n_in / 128, x_rows]
    const float *w_scales;        // records of coded.h
    int32_t x_rows, n_in, n_out;  // n_out: ffn or hidden
    int32_t w_rows;               // weight rows per expert
    int32_t band_rows, n_bands;
    int32_t second, third;   // distances of the band's second and third quarter from its first
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
    float largest[2][2][HALF_ROWS]; // [pieces in turn][warpgroup]: of rows that both compute
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

using eight_ring = x_place<STAGES>;

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
    const int32_t i = pair / p.n_bands;
    const struct moe_tile any = tile_at(p, i); // any tile of the group
    const int32_t in_group = pair - any.group_first * p.n_bands, n = any.group_n;
    const int32_t which = in_group % n;
    *is_alone = n == 1;
    return {any.expert, any.first + (any.group_first + which - i) * TILE_ROWS, in_group / n,
            which + 1 == n ? (int32_t)any.last_rows : (int32_t)TILE_ROWS};
}

/* Copies one scale. */
__device__ __forceinline__ void copy_scale(float *to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_address(to)), "l"(from)
                 : "memory");
}

/* The loading warpgroup. The rows of the up product are gathered: a thread copies vectors of eight
 * rows with ordinary cp.async. Those of the down product are loaded like weights. Scales are
 * copied, too. A thread signals a box after it has issued the copies of the next LAG boxes. */
template <bool UP> struct eight_loader {
    enum { EACH = TILE_ROWS * (BOX / 16) / 128, NO_ROW = -1, LAG = UP ? 1 : 2 };
    const struct eight_params &p;
    const CUtensorMap *w_map, *x_map;
    char *stages;
    struct eight_shared *s;
    eight_ring at;
    int32_t tid;
    struct eight_piece u; // the piece at hand, later the next one
    bool is_alone;
    int32_t vector_row, scale_row;  // rows of x for `u`; lane i of eight has that of their vector i
    uint32_t from[EACH];            // offsets of the thread's vectors in x, which is in the scratch
                                    // memory (less than 4 GiB)
    const float *x_scale, *w_scale; // NULL: none
    uint64_t *copying[2] = {NULL, NULL}; // barriers of the last two boxes, the older one first

    __device__ __forceinline__ int32_t row_of(int32_t i) const
    {
        if (i >= u.n_rows) {
            return NO_ROW;
        }
        return UP ? p.rows[u.first + i] : u.first + i;
    }

    /* Reads what the copies of pair number `pair` need to know. This takes longer than a box, so
     * it is done for the next piece when the first box of a piece has been issued. */
    __device__ __forceinline__ void find(int32_t pair)
    {
        u = piece_at(p, pair, &is_alone);
        vector_row = UP ? row_of((tid >> 3) + 16 * (tid & 7)) : 0;
        scale_row = row_of(tid);
    }

    __device__ __forceinline__ void begin_piece()
    {
#pragma unroll
        for (int j = 0; UP && j < EACH; j++) {
            const int32_t row = __shfl_sync(0xffffffffu, vector_row, j, 8);
            from[j] =
                row < 0 ? (uint32_t)NO_ROW : (uint32_t)row * (uint32_t)p.n_in + (tid & 7) * 16;
        }
        x_scale = scale_row < 0 ? NULL : p.x_scales + scale_row;
        w_scale = NULL;
        if (tid < 2) { // the second half of the last band may not exist
            const int32_t row = u.band * p.band_rows + tid * (UP ? p.second : p.third);
            const int64_t tile = ((int64_t)u.expert * p.w_rows + min(row, p.w_rows - HALF)) / 16;
            w_scale = p.w_scales + tile * (p.n_in / BOX) * SCALES_APART;
        }
    }

    __device__ __forceinline__ void load_quarter(const struct eight_piece &of, int32_t box, int i,
                                                 uint64_t policy)
    {
        const int32_t row = of.expert * p.w_rows + of.band * p.band_rows;
        tensor_load(stages + at.slot * STAGE_BYTES + i * QUARTER_BYTES, w_map, &s->full[at.slot],
                    box * BOX, row + (i & 1) * p.second + (i >> 1) * p.third, policy);
    }

    /* Each warp loads a quarter of the band, beside the rows that it copies. */
    __device__ __forceinline__ void load_weights(const struct eight_piece &of, int32_t box,
                                                 uint64_t policy)
    {
        if (tid == 0) {
            barrier_expect(&s->full[at.slot], W_BYTES);
        }
        if ((tid & 31) == 0) {
            load_quarter(of, box, tid >> 5, policy);
        }
    }

    /* Thread 0 loads the weights and the rows of the down product. */
    __device__ __forceinline__ void load_all(const struct eight_piece &of, int32_t box,
                                             uint64_t policy)
    {
        char *to = stages + at.slot * STAGE_BYTES + W_BYTES;
        uint64_t *const bar = &s->full[at.slot];
        const int x_halves = 1 + (of.n_rows > HALF_ROWS);
        if (tid != 0) {
            return;
        }
        barrier_expect(bar, W_BYTES + x_halves * (X_BYTES / 2));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_quarter(of, box, i, policy);
        }
        for (int i = 0; i < x_halves; i++) {
            tensor_load(to + i * (X_BYTES / 2), x_map, bar, box * BOX, of.first + i * HALF_ROWS,
                        policy_normal());
        }
    }

    __device__ __forceinline__ void copy_rows(int32_t box)
    {
        char *to = stages + at.slot * STAGE_BYTES + W_BYTES;
#pragma unroll
        for (int j = 0; UP && j < EACH; j++) {
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
        uint64_t *const oldest = copying[2 - LAG];
        if (oldest) {
            copies_wait<IN_FLIGHT>();
            fence_async();
            barrier_arrive(oldest);
        }
        copying[0] = copying[1];
        copying[1] = bar;
    }

    __device__ __forceinline__ void run()
    {
        const int32_t n_pairs = *p.n_tiles * p.n_bands, n_boxes = p.n_in / BOX;
        struct eight_walk walk;
        if (walk.pair() < n_pairs) {
            find(walk.pair());
        }
#pragma unroll 1
        while (walk.pair() < n_pairs) {
            const struct eight_piece now = u;
            const uint64_t policy = is_alone ? policy_evict_first() : policy_normal();
            begin_piece();
            walk.next();
#pragma unroll 1
            for (int32_t box = 0; box < n_boxes; box++, at.next()) {
                barrier_wait(&s->empty[at.slot], at.parity ^ 1);
                if (tid == 0 && box == 0) {
                    hand_over(s->piece[at.slot], now);
                }
                if (UP) {
                    load_weights(now, box, policy);
                } else {
                    load_all(now, box, policy);
                }
                copy_rows(box);
                if (box == 0 && walk.pair() < n_pairs) {
                    find(walk.pair());
                }
                signal<LAG>(&s->full[at.slot]);
            }
        }
        if (LAG == 2) {
            signal<1>(NULL);
        }
        signal<0>(NULL);
    }
};

#endif // HAVE_SM90A

#endif
