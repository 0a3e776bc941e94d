// SPDX-License-Identifier: Apache-2.0
/* What a thread block of scan.cu holds, including S, and what it stores for later passes.
 * Thread: device code. */
#ifndef SLUICE_CUDA_STATE_SCAN_CUH
#define SLUICE_CUDA_STATE_SCAN_CUH

#include "cuda/kernels/state/blocks.cuh"

enum { COLUMNS = 32, SCAN_WARPS = 8, SCAN_THREADS = SCAN_WARPS * 32, LEFT = 2 };

template <typename T, int KEY, bool DELTA> struct stage {
    T k[BLOCK][KEY + 8], q[BLOCK][KEY + 8];
    T scores[BLOCK][BLOCK + 8], inverse[DELTA ? BLOCK : 1][BLOCK + 8];
    T v[BLOCK][COLUMNS + 8]; // u for rows of earlier passes
    float g[BLOCK], strength[BLOCK];
};

template <typename T, int KEY, bool DELTA> struct scan_room {
    struct stage<T, KEY, DELTA> stages[2];
    T s[KEY][COLUMNS + 8];
    T r[DELTA ? BLOCK : 1][COLUMNS + 8];
    T u[BLOCK][COLUMNS + 8], u_decayed[BLOCK][COLUMNS + 8];
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

/* A warp's part of S: KEY / 4 rows by COLUMNS / 2 columns, in fragments of 16 x 8. */
template <int KEY> struct state_part {
    static constexpr int MF = KEY / 64, NF = COLUMNS / 16;
    float x[MF][NF][4];

    /* The position of x[m][n][2 * half] and the next element. */
    __device__ __forceinline__ static int row(int m, int half)
    {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        return (warp & 3) * (KEY / 4) + m * 16 + half * 8 + (lane >> 2);
    }
    __device__ __forceinline__ static int col(int n)
    {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        return (warp >> 2) * (COLUMNS / 2) + n * 8 + (lane & 3) * 2;
    }
};

/* Calls f for every pair of elements of S with its position. */
template <int KEY, typename F>
__device__ __forceinline__ static void each_pair(struct state_part<KEY> &s, F f)
{
#pragma unroll
    for (int m = 0; m < s.MF; m++) {
#pragma unroll
        for (int n = 0; n < s.NF; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                f(s.row(m, half), s.col(n), s.x[m][n][half * 2], s.x[m][n][half * 2 + 1]);
            }
        }
    }
}

template <int KEY>
__device__ static void load_state(const struct blocks_params &p, const struct scan &w,
                                  int32_t begin, struct state_part<KEY> &s)
{
    const int32_t dv = p.state.geometry.value_dim;
    const float *from = (const float *)record_of(p.state, w.seq.lane, begin) +
                        (int64_t)w.head * KEY * dv + w.column;
    each_pair(s, [&](int row, int col, float &a, float &b) {
        const float2 x =
            begin > 0 ? *(const float2 *)(from + (int64_t)row * dv + col) : make_float2(0.0f, 0.0f);
        a = x.x;
        b = x.y;
    });
}

template <int KEY>
__device__ static void store_state(const struct blocks_params &p, const struct scan &w,
                                   char *record, struct state_part<KEY> &s)
{
    const int32_t dv = p.state.geometry.value_dim;
    float *to = (float *)record + (int64_t)w.head * KEY * dv + w.column;
    each_pair(s, [&](int row, int col, float &a, float &b) {
        *(float2 *)(to + (int64_t)row * dv + col) = make_float2(a, b);
    });
}

/* ---- values kept for later passes -------------------------------------------------------------
 */

/* Number of channels whose inputs this thread block stores, and channel i of them. */
template <int KEY> __device__ __forceinline__ static int32_t channels_of(const struct scan &w)
{
    return COLUMNS + (w.owns_key ? 2 * KEY : 0);
}

template <int KEY>
__device__ __forceinline__ static int32_t channel_of(const struct blocks_params &p,
                                                     const struct scan &w, int32_t i)
{
    if (i < COLUMNS) {
        return p.v_at + w.head * p.state.geometry.value_dim + w.column + i;
    }
    i -= COLUMNS;
    return (i < KEY ? p.q_at : p.k_at - KEY) + w.key_head * KEY + i;
}

/* The input at a position up to the sequence's last; 0 before the first. */
template <typename T>
__device__ __forceinline__ static T input_of(const struct blocks_params &p, const struct scan &w,
                                             int32_t pos, int32_t channel)
{
    if (pos < 0) {
        return from_float<T>(0.0f);
    }
    const int64_t row = w.seq.first_row + pos - w.seq.n_past;
    return pos >= w.seq.n_past ? ((const T *)p.x)[row * p.x_stride + channel]
                               : inputs_at<T>(p.state, w.seq.lane, pos)[channel];
}

/* Stores the last inputs before the boundary that ends the block to its record. */
template <typename T, int KEY>
__device__ static void store_tail(const struct blocks_params &p, const struct scan &w,
                                  int32_t boundary, char *record)
{
    T *to = (T *)(record + p.state.s_bytes);
    const int32_t n = channels_of<KEY>(w);
    for (int32_t i = threadIdx.x; i < n * (TAPS - 1); i += SCAN_THREADS) {
        const int32_t tap = i / n, channel = channel_of<KEY>(p, w, i % n);
        to[(int64_t)tap * p.state.geometry.conv_width + channel] =
            input_of<T>(p, w, boundary - (TAPS - 1) + tap, channel);
    }
}

/* Stores the sequence's last inputs to the ring. */
template <typename T, int KEY>
__device__ static void store_inputs(const struct blocks_params &p, const struct scan &w)
{
    const int32_t end = w.seq.n_past + w.seq.n_rows, n = channels_of<KEY>(w);
    const int32_t first = max(w.seq.n_past, end - p.state.conv_ring);
    for (int32_t i = threadIdx.x; i < n * (end - first); i += SCAN_THREADS) {
        const int32_t pos = first + i / n, channel = channel_of<KEY>(p, w, i % n);
        inputs_at<T>(p.state, w.seq.lane, pos)[channel] = input_of<T>(p, w, pos, channel);
    }
}

/* Stores the keys, decays and values of a block's new rows. */
template <typename T, int KEY, bool DELTA>
__device__ static void
store_rows(const struct blocks_params &p, const struct scan &w, const struct block_item &b,
           const struct scan_room<T, KEY, DELTA> &m, const struct stage<T, KEY, DELTA> &in)
{
    const int32_t lane = w.seq.lane, n = b.end - b.at;
    for (int32_t i = threadIdx.x; w.owns_key && i < n * KEY / 8; i += SCAN_THREADS) {
        const int32_t t = b.at + i / (KEY / 8), d = i % (KEY / 8) * 8;
        *(uint4 *)(keys_at<T>(p.state, lane, b.begin + t, w.key_head) + d) =
            *(const uint4 *)&in.k[t][d];
    }
    for (int32_t i = threadIdx.x; i < n * COLUMNS / 8; i += SCAN_THREADS) {
        const int32_t t = b.at + i / (COLUMNS / 8), c = i % (COLUMNS / 8) * 8;
        *(uint4 *)(values_at<T>(p.state, lane, b.begin + t, w.head) + w.column + c) =
            *(const uint4 *)&m.u[t][c];
    }
    for (int32_t t = b.at + (int32_t)threadIdx.x; w.owns_head && t < b.end; t += SCAN_THREADS) {
        *decays_at(p.state, lane, b.begin + t, w.head) = in.g[t];
    }
}

#endif
