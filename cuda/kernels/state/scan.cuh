// SPDX-License-Identifier: Apache-2.0
/* What a thread block of scan.cu holds, including S, and what it stores for later passes.
 * Thread: device code. */
#ifndef SLUICE_CUDA_STATE_SCAN_CUH
#define SLUICE_CUDA_STATE_SCAN_CUH

#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/round_pair.cuh"
#include "cuda/kernels/state/blocks.cuh"

/* A group of columns has one warp of each of the first two kinds. */
enum { COLUMNS = 32, GROUP = 16, GROUPS = COLUMNS / GROUP };
enum { FIRST_OUT = GROUPS, FIRST_LOAD = 2 * GROUPS, LOAD_WARPS = 4, LOADERS = LOAD_WARPS * 32 };
enum { SCAN_THREADS = FIRST_LOAD * 32 + LOADERS, LEFT = 2, RUN = 8 }; // RUN: elements of 16 bytes

/* A block's rows of N elements. The runs of 16 bytes of a row are permuted so that ldmatrix has no
 * bank conflicts. */
template <typename T, int N> struct alignas(16) tile {
    T x[BLOCK][N];

    __device__ __forceinline__ T *at(int row, int col)
    {
        const int by = N * sizeof(T) >= 128 ? row & 7 : row >> 1 & 3;
        return &x[row][((col >> 3) ^ by) * 8 + (col & 7)];
    }
};

/* What the chain reads of a block. */
template <typename T, int KEY, bool DELTA> struct chain_stage {
    struct tile<T, KEY> k;
    struct tile<T, BLOCK> inverse[DELTA ? 1 : 0];
    struct tile<T, COLUMNS> v; // u for rows of earlier passes
};

/* What the rows' outputs need, besides S and u. */
template <typename T, int KEY> struct out_stage {
    struct tile<T, KEY> q;
    struct tile<T, BLOCK> scores;
};

/* The factors of a block's rows. */
struct alignas(16) row_factors {
    float2 by_row[BLOCK]; // strength (1 for rows of earlier passes), and decay since the block's
                          // beginning (0 for them)
    float to_end[BLOCK];  // decay to the block's end
    float last;           // decay of S
};

/* Operands of mma by lane: of S with 16 keys, and of u with 16 rows. As a whole, an operand is the
 * transposed first one of a product; its words 0 and 2, and 1 and 3, are second ones. */
template <int KEY> struct operands {
    uint4 s[KEY / 16][32], u[BLOCK / 16][32];
};

/* AHEAD: how many blocks ahead of the chain they are loaded. The outputs are one block behind. */
template <typename T, int KEY, bool DELTA, int AHEAD> struct scan_room {
    static constexpr int STAGES = AHEAD + 1, FACTORS = 4;
    struct chain_stage<T, KEY, DELTA> chain[STAGES];
    struct out_stage<T, KEY> out[STAGES];
    struct row_factors factors[FACTORS]; // of block i: i % FACTORS
    struct operands<KEY> made[2][GROUPS];
    static_assert(AHEAD + 2 <= FACTORS, "factors of blocks in use");
};

/* A thread block's work. */
struct scan {
    struct pass_seq seq;
    int32_t head, key_head, column; // column: the first of its columns
    bool owns_key, owns_head;       // this block stores the key head's rows; the head's decays
    int32_t first, n;               // the sequence's items in this launch; `first` is its nth item
    int32_t nth;
};

/* ---- S ----------------------------------------------------------------------------------------
 */

/* A warp's part of S, transposed: GROUP columns by KEY keys, in fragments of 16 x 8. */
template <int KEY> struct state_part {
    float x[KEY / 8][4];
};

/* Calls f for every element of the warp's part of S with its place in the head's S. */
template <int KEY, typename F>
__device__ __forceinline__ static void
each_element(const struct blocks_params &p, const struct scan &w, struct state_part<KEY> &s, F f)
{
    const int lane = threadIdx.x & 31, group = threadIdx.x >> 5;
    const int32_t dv = p.state.geometry.value_dim;
    const int32_t first =
        (w.head * KEY + (lane & 3) * 2) * dv + w.column + group * GROUP + (lane >> 2);
#pragma unroll
    for (int n = 0; n < KEY / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f(first + (n * 8 + (i & 1)) * dv + (i >> 1) * 8, s.x[n][i]);
        }
    }
}

template <int KEY>
__device__ static void load_state(const struct blocks_params &p, const struct scan &w,
                                  int32_t begin, struct state_part<KEY> &s)
{
    const float *from = (const float *)record_of(p.state, w.seq.lane, begin);
    each_element(p, w, s, [&](int32_t at, float &x) { x = begin > 0 ? from[at] : 0.0f; });
}

template <int KEY>
__device__ static void store_state(const struct blocks_params &p, const struct scan &w,
                                   char *record, struct state_part<KEY> &s)
{
    each_element(p, w, s, [&](int32_t at, float &x) { ((float *)record)[at] = x; });
}

/* ---- boundaries -------------------------------------------------------------------------------
 */

/* The sequence's next snapshot. Searching the pass's list at every boundary would take longer than
 * the block's products. */
struct next_keep {
    int32_t pos;
    char *record;
};

/* The first snapshot at a boundary from `from` on; the warp searches the list together. */
__device__ static struct next_keep find_keep(const struct blocks_params &p, const struct scan &w,
                                             int32_t from)
{
    const struct pass_view &pass = p.pass;
    const int32_t n = pass.counts->n_keeps;
    int32_t pos = INT32_MAX, slot = p.state.max_lanes;
    for (int32_t i = threadIdx.x & 31; i < n; i += 32) {
        const struct state_keep keep = pass.keeps[i];
        if (keep.lane == w.seq.lane && keep.pos >= from && keep.pos % BLOCK == 0 &&
            keep.pos < pos) {
            pos = keep.pos;
            slot = keep.slot;
        }
    }
    const int32_t first = __reduce_min_sync(0xffffffffu, pos);
    const unsigned found = __ballot_sync(0xffffffffu, pos == first);
    slot = __shfl_sync(0xffffffffu, slot, __ffs((int)found) - 1);
    return {first, p.state.snapshots + (int64_t)(slot - p.state.max_lanes) * p.state.record_bytes};
}

/* Calls f with each record that gets the boundary at the block's end: the lane's, unless later
 * boundaries of this launch replace it (`left` blocks follow; the last one may have no boundary),
 * and a snapshot. */
template <typename F>
__device__ __forceinline__ static void each_record(const struct blocks_params &p,
                                                   const struct scan &w, const struct block_item &b,
                                                   int32_t left, struct next_keep &keep, F f)
{
    const int32_t boundary = b.begin + BLOCK;
    const bool is_kept = keep.pos == boundary, is_left = left <= p.state.n_records;
    if (b.end < BLOCK || !(is_kept || is_left)) { // early, because the chain waits for this
        return;
    }
    char *const records[2] = {is_left ? record_of(p.state, w.seq.lane, boundary) : NULL,
                              is_kept ? keep.record : NULL};
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        if (records[i]) {
            f(boundary, records[i]);
        }
    }
    if (is_kept && left > 0) {
        keep = find_keep(p, w, boundary + 1);
    }
}

/* ---- values kept for later passes -------------------------------------------------------------
 */

/* The number of this thread among those of the loading warps, which store the values. */
__device__ __forceinline__ static int32_t loader()
{
    return (int32_t)threadIdx.x - FIRST_LOAD * 32;
}

/* Number of runs of RUN channels whose inputs this thread block stores, and the first channel of
 * run i. */
template <int KEY> __device__ __forceinline__ static int32_t runs_of(const struct scan &w)
{
    return (COLUMNS + (w.owns_key ? 2 * KEY : 0)) / RUN;
}

template <int KEY>
__device__ __forceinline__ static int32_t channel_of(const struct blocks_params &p,
                                                     const struct scan &w, int32_t i)
{
    i *= RUN;
    if (i < COLUMNS) {
        return p.v_at + w.head * p.state.geometry.value_dim + w.column + i;
    }
    i -= COLUMNS;
    return (i < KEY ? p.q_at : p.k_at - KEY) + w.key_head * KEY + i;
}

/* Copies the sequence's last inputs to the ring. A step stores the run that the last step loaded,
 * so that no loader waits for it. */
template <typename T, int KEY> struct inputs_copy {
    int32_t i;    // the next run to load, counted over all rows
    T *to = NULL; // where the loaded run belongs; NULL: there is none
    uint4 x;

    __device__ __forceinline__ void step(const struct blocks_params &p, const struct scan &w)
    {
        const int32_t end = w.seq.n_past + w.seq.n_rows, n = runs_of<KEY>(w);
        const int32_t pos = max(w.seq.n_past, end - p.state.conv_ring) + i / n;
        if (to) {
            *(uint4 *)to = x;
            to = NULL;
        }
        if (pos < end) {
            const int32_t channel = channel_of<KEY>(p, w, i % n);
            const int64_t row = w.seq.first_row + pos - w.seq.n_past;
            x = *(const uint4 *)((const T *)p.x + row * p.x_stride + channel);
            to = inputs_at<T>(p.state, w.seq.lane, pos) + channel;
            i += LOADERS;
        }
    }
};

/* Stores the keys of a block's new rows. */
template <typename T, int KEY>
__device__ static void store_keys(const struct blocks_params &p, const struct scan &w,
                                  const struct block_item &b, struct tile<T, KEY> &k)
{
    constexpr int RUNS = KEY / RUN;
#pragma unroll 1
    for (int32_t j = b.at * RUNS + loader(); j < b.end * RUNS; j += LOADERS) {
        const int32_t t = j / RUNS, d = j % RUNS * RUN;
        *(uint4 *)(keys_at<T>(p.state, w.seq.lane, b.begin + t, w.key_head) + d) =
            *(const uint4 *)k.at(t, d);
    }
}

/* Stores the values of a block's new rows. */
template <typename T, int KEY>
__device__ static void store_values(const struct blocks_params &p, const struct scan &w,
                                    const struct block_item &b, const struct operands<KEY> *made)
{
    constexpr int STEPS = BLOCK / 16;
#pragma unroll 1
    for (int32_t j = loader(); j < GROUPS * STEPS * 32; j += LOADERS) {
        const int32_t lane = j & 31, step = j / 32 % STEPS, group = j / (32 * STEPS);
        const uint4 words = made[group].u[step][lane];
        const int32_t c = w.column + group * GROUP + (lane >> 2);
#pragma unroll
        for (int e = 0; e < 4; e++) { // the lane's rows
            const int32_t t = step * 16 + (e >> 1) * 8 + (lane & 3) * 2 + (e & 1);
            if (t >= b.at && t < b.end) {
                T *to = values_at<T>(p.state, w.seq.lane, b.begin + t, w.head) + c;
                to[0] = ((const T *)&words)[(e & 2) * 2 + (e & 1)];
                to[8] = ((const T *)&words)[(e & 2) * 2 + (e & 1) + 2];
            }
        }
    }
}

#endif
