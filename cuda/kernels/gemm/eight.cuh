// SPDX-License-Identifier: Apache-2.0
/* Helpers of gemm/eight.cu: its items and ring of stages, the loads that fill the ring, and
 * the scales and rounded inputs in shared memory. Thread: device code. */
#ifndef SLUICE_CUDA_GEMM_EIGHT_CUH
#define SLUICE_CUDA_GEMM_EIGHT_CUH

#include "cuda/gemm.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/rounding.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/items.cuh"

enum {
    BOX = 128,  // inputs of a stage, a byte each
    CHUNK = 4,  // boxes; ranges of K are multiples of it
    TILE = 64,  // features
    STEP = 16,  // bands and tiles are multiples of this many features
    GROUPS = 4, // computing warpgroups
    COMPUTERS = GROUPS * 128,
    MAX_STAGES = 40,
    WINDOW = 32,    // boxes whose scales are in shared memory
    MAX_BLOCKS = 3, // blocks of 128 features that a band touches
    MAX_BAND = 256,
    MAX_RUNS = 4,
    MAX_ROWS = 64,
};

struct eight_params {
    void *y;
    const float *bias;
    struct product_scales scales;
    struct round_args raw; // how x is rounded, if the kernel does that
    bool is_gated;         // raw.x holds gates and, n_in elements further on, the matching factors
    enum dtype y_dtype;
    struct item_plan plan; // its tile rows have STEP features, its chunks CHUNK boxes
    int32_t n_blocks;      // blocks of the grid
    int32_t n_rows, n_out, n_in, n_boxes;
    int64_t y_stride, part_stride;
    int32_t band, n_tiles; // features and tiles of the widest band
    int32_t n_ways;        // warpgroups that take a tile's boxes in turn
    int32_t most_boxes;    // boxes of the longest item
    bool is_whole;         // all x of an item is in shared memory, not in the stages
    int32_t n_stages, stage_bytes, stage_x;
    int32_t whole_x, rest; // where an item's x, and the scales, begin in shared memory
    bool accumulate;
    bool is_plain; // sums are stored in fp32 as they are
    bool is_full;  // the grid fills most of the machine
};

/* The first feature of a tile in its band. Tiles are as equal as multiples of STEP can be. */
__host__ __device__ static inline int tile_start(int band, int n_tiles, int tile)
{
    return tile * (band / STEP) / n_tiles * STEP;
}

#if HAVE_SM90A

struct eight_ring {
    uint64_t full_w[MAX_STAGES], full_x[MAX_STAGES], empty[MAX_STAGES];
    float largest[COMPUTERS / 32]; // maximum of each warp's part of a row of x
};

/* A position in the ring. */
struct eight_place {
    int32_t stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void add(const struct eight_params &p, int32_t n)
    {
        stage += n;
        if (stage >= p.n_stages) {
            stage -= p.n_stages;
            parity ^= 1;
        }
    }
};

/* An item in features, boxes and rows of x. A band narrower than the widest one is padded with
 * the features that follow it, whose results are not stored. */
struct eight_item {
    int32_t feature, end_feature, run, row, box, end;

    __device__ __forceinline__ eight_item(const struct eight_params &p, int32_t which, int32_t n)
    {
        const struct item i = item_at(p.plan, which);
        feature = i.first_tile * STEP;
        end_feature = i.end_tile * STEP;
        run = i.run;
        row = i.row_tile * n;
        box = i.first_chunk * CHUNK;
        end = i.end_chunk * CHUNK;
    }
};

/* The position of a loading thread: box after box of item after item. */
struct eight_walk {
    const struct eight_params &p;
    int32_t n;     // rows of an item
    int32_t which; // number of the item
    struct eight_item item;
    int32_t box;
    struct eight_place at;

    __device__ __forceinline__ eight_walk(const struct eight_params &p, int32_t n)
        : p(p), n(n), which(blockIdx.x), item(p, which, n), box(item.box)
    {
    }
    __device__ __forceinline__ bool is_done() const
    {
        return which >= p.plan.n_items;
    }
    __device__ __forceinline__ void next()
    {
        at.add(p, 1);
        if (++box == item.end) {
            which += gridDim.x;
            item = eight_item(p, which, n);
            box = item.box;
        }
    }
};

/* The loading thread. Boxes past the end of K read as zeros. */
template <int N, bool RAW> struct eight_loader {
    const struct eight_params &p;
    const CUtensorMap *w_map, *x_map;
    char *stages;
    struct eight_ring *ring;

    __device__ __forceinline__ void load_w(const struct eight_walk &w, uint64_t policy) const
    {
        barrier_expect(&ring->full_w[w.at.stage], (uint32_t)p.band * BOX);
        tensor_load(stages + w.at.stage * p.stage_bytes + p.stage_x, w_map,
                    &ring->full_w[w.at.stage], w.box * BOX, w.item.feature, policy);
    }
    __device__ __forceinline__ void load_x(const struct eight_walk &w, uint64_t policy) const
    {
        if (!p.is_whole) {
            barrier_expect(&ring->full_x[w.at.stage], N * BOX);
            tensor_load(stages + w.at.stage * p.stage_bytes, x_map, &ring->full_x[w.at.stage],
                        w.box * BOX, w.item.row, policy);
        }
    }

    /* Weights fill the ring before the wait for the preceding kernel; then x follows. */
    __device__ __forceinline__ void run() const
    {
        const uint64_t once = policy_evict_first(), often = policy_evict_last();
        struct eight_walk w(p, N);
        int n_ahead = 0;
#pragma unroll 1
        for (; n_ahead < p.n_stages && !w.is_done(); n_ahead++, w.next()) {
            load_w(w, once);
        }
        pdl_wait();
        struct eight_walk x(p, N);
        if (!RAW && p.is_whole) { // all x of the block's only item
            barrier_expect(&ring->full_x[0], (uint32_t)p.most_boxes * N * BOX);
            tensor_load_3d(stages + p.whole_x, x_map, &ring->full_x[0], 0, x.item.row, x.item.box,
                           often);
        }
#pragma unroll 1
        for (int i = 0; !RAW && i < n_ahead; i++, x.next()) {
            load_x(x, often);
        }
#pragma unroll 1
        for (; !w.is_done(); w.next()) {
            barrier_wait(&ring->empty[w.at.stage], w.at.parity ^ 1);
            load_w(w, once);
            if (!RAW) {
                load_x(w, often);
            }
        }
    }
};

/* ---- computing ------------------------------------------------------------------------------- */

__device__ __forceinline__ void computers_meet()
{
    named_barrier(1, COMPUTERS);
}

/* D = a tile of W times x, for one box. */
template <int N>
__device__ __forceinline__ void multiply_box(float (&d)[N / 2], uint32_t w, uint32_t x)
{
#pragma unroll
    for (int i = 0; i < BOX / 32; i++) {
        wgmma<e4m3_t, N>::ss(d, wgmma_operand(w + i * 32, 0), wgmma_operand(x + i * 32, 0), i > 0);
    }
}

/* Copies of scales in shared memory. */
struct eight_scales {
    float *x, *w; // [WINDOW, N] and [MAX_BLOCKS, WINDOW]
};

/* Scales of the weight's blocks, for up to WINDOW boxes from `box` on. */
__device__ __forceinline__ void copy_w_scales(const struct eight_params &p,
                                              const struct eight_item &item, int32_t box, float *to)
{
    const int32_t first = item.feature / BOX, last = (p.n_out - 1) / BOX;
    for (int i = threadIdx.x; i < WINDOW * MAX_BLOCKS; i += COMPUTERS) {
        const int32_t block = min(first + i / WINDOW, last);
        to[i] =
            p.scales.w[(int64_t)block * p.scales.n_blocks + min(box + i % WINDOW, p.n_boxes - 1)];
    }
}

/* Scales of x: of its groups of 128, or of whole rows. */
template <int N, bool BLOCKS>
__device__ __forceinline__ void copy_x_scales(const struct eight_params &p,
                                              const struct eight_item &item, int32_t box, float *to)
{
    enum { AT_ONCE = BLOCKS && N > 16 ? 4 : 1 }; // loads in flight
    const int32_t n = (BLOCKS ? min(item.end - box, (int32_t)WINDOW) : 1) * N;
    const int32_t row = min(item.row + (int32_t)threadIdx.x % N, p.n_rows - 1);
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += AT_ONCE * COMPUTERS) {
        float v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int32_t b = BLOCKS ? min(box + (i + k * COMPUTERS) / N, p.n_boxes - 1) : 0;
            v[k] = p.scales.x[(int64_t)b * p.n_rows + row];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (i + k * COMPUTERS < n) {
                to[i + k * COMPUTERS] = v[k];
            }
        }
    }
}

/* ---- x that the kernel rounds ---------------------------------------------------------------- */

/* Where a piece of eight codes of a row lies in an item's x: boxes of eight rows, with the swizzle
 * that a load through a tensor map would apply. */
__device__ __forceinline__ char *raw_place(char *x, int row, int piece)
{
    return x + piece / 16 * (8 * BOX) + swizzled(row, piece % 16 / 2) + piece % 2 * 8;
}

/* Eight values of a row from element k on, rounded as if another op had stored them; zeros past the
 * end of K. */
template <typename T> struct raw_piece {
    vec<T> a, b;

    __device__ __forceinline__ void load(const struct eight_params &p, int row, int k)
    {
        const T *from = (const T *)p.raw.x + row * p.raw.x_stride + k;
        *(uint4 *)a.v = *(uint4 *)b.v = make_uint4(0, 0, 0, 0);
        if (k < p.raw.n_in) {
            a.load(from);
            if (p.is_gated) {
                b.load(from + p.raw.n_in);
            }
        }
    }
    __device__ __forceinline__ void finish(const struct eight_params &p)
    {
        if (p.is_gated) {
#pragma unroll
            for (int e = 0; e < ROUND_PIECE; e++) {
                a.v[e] = from_float<T>(silu_gated(to_float(a.v[e]), to_float(b.v[e])));
            }
        }
    }
};

template <typename T>
__device__ __forceinline__ void put_codes(char *to, const vec<T> &v, float scale)
{
    alignas(8) __nv_fp8x2_storage_t codes[ROUND_PIECE / 2];
    round_codes(v, scale, codes);
    *(uint2 *)to = *(const uint2 *)codes;
}

/* Rounds an item's x with one scale per group of 128 inputs. Half a warp processes a group, and a
 * thread has several pieces in flight. */
template <typename T>
__device__ __forceinline__ void round_groups(const struct eight_params &p,
                                             const struct eight_item &item, char *x, float *scales)
{
    enum { AT_ONCE = 2 };
    const int n_pieces = (item.end - item.box) * 16, n = n_pieces * p.n_rows;
#pragma unroll 1
    for (int first = threadIdx.x; first < n; first += AT_ONCE * COMPUTERS) {
        raw_piece<T> v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int i = first + j * COMPUTERS;
            if (i < n) {
                v[j].load(p, i / n_pieces, item.box * BOX + i % n_pieces * ROUND_PIECE);
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int i = first + j * COMPUTERS, row = i / n_pieces, piece = i % n_pieces;
            if (i < n) { // all threads of a half warp agree
                v[j].finish(p);
                const float scale = round_scale(p.raw, round_group_largest(round_largest(v[j].a)));
                put_codes(raw_place(x, row, piece), v[j].a, scale);
                if ((threadIdx.x & 15) == 0) {
                    scales[piece / 16 * 8 + row] = scale;
                }
            }
        }
    }
}

/* Rounds an item's x with one scale per row, which the block computes from the whole row (all of
 * K). */
template <typename T>
__device__ __forceinline__ void round_rows(const struct eight_params &p,
                                           const struct eight_item &item, char *x, float *scales,
                                           float *shared)
{
    const int n_pieces = (item.end - item.box) * 16;
    int log_rows = 0;
    while (1 << log_rows < p.n_rows) {
        log_rows++;
    }
    const int threads = COMPUTERS >> log_rows; // threads per row
    const int row = threadIdx.x / threads, mine = threadIdx.x % threads;
    const bool valid = row < p.n_rows;
    float largest = 0.0f;
#pragma unroll 4
    for (int k = mine * ROUND_PIECE; valid && k < p.raw.n_in; k += threads * ROUND_PIECE) {
        raw_piece<T> v;
        v.load(p, row, k);
        largest = fmaxf(largest, round_largest(v.a));
    }
    largest = warp_max(largest);
    if ((threadIdx.x & 31) == 0) {
        shared[threadIdx.x >> 5] = largest;
    }
    computers_meet();
#pragma unroll 1
    for (int i = 0; i < threads / 32; i++) {
        largest = fmaxf(largest, shared[row * (threads / 32) + i]);
    }
    const float scale = p.raw.scale == 0.0f ? round_scale(p.raw, largest) : p.raw.scale;
#pragma unroll 1
    for (int piece = mine; valid && piece < n_pieces; piece += threads) {
        raw_piece<T> v;
        v.load(p, row, item.box * BOX + piece * ROUND_PIECE);
        put_codes(raw_place(x, row, piece), v.a, scale);
    }
    if (valid && mine == 0) {
        scales[row] = scale;
    }
}

template <bool BLOCKS, typename T>
__device__ __forceinline__ void round_x(const struct eight_params &p, const struct eight_item &item,
                                        char *x, float *scales, float *shared)
{
    if (BLOCKS) {
        round_groups<T>(p, item, x, scales);
    } else {
        round_rows<T>(p, item, x, scales, shared);
    }
    fence_async();
}

#endif // HAVE_SM90A

#endif
