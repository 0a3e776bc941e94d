// SPDX-License-Identifier: Apache-2.0
/* What single.cu computes of a row besides the sums over its past: the convolution, the products
 * with the block's keys, and the row's value and output. Thread: device code, one block at a
 * time. */
#ifndef SLUICE_CUDA_STATE_SINGLE_CUH
#define SLUICE_CUDA_STATE_SINGLE_CUH

#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/state/rows.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, BLOCK = 64, TAPS = 4, EACH = 4 };

template <typename T> struct alignas(EACH * sizeof(T)) four {
    T v[EACH];
};

/* How a warp reads a matrix whose rows have DV numbers: 32 runs of four adjacent numbers at a time.
 * After PERIOD rows, read in GROUPS loads, a lane is at the same column again. */
template <int DV> struct walk {
    static constexpr int RUNS = DV / EACH;
    static constexpr int GROUPS = 32 % RUNS == 0 || RUNS % 32 == 0 ? 1 : RUNS / 4;
    static constexpr int PERIOD = GROUPS * 32 / RUNS;
    static constexpr int LOADS = GROUPS == 1 ? 8 : 2 * GROUPS; // in flight together
    static constexpr int ROWS = LOADS * 32 / RUNS;
    static constexpr int U_ROWS = 8; // of values
    static constexpr int U_LOADS = U_ROWS * RUNS / 32;
    static_assert(GROUPS * 32 % RUNS == 0 && U_LOADS % GROUPS == 0, "whole periods");

    __device__ static __forceinline__ int row(int load)
    {
        return (load * 32 + (int)(threadIdx.x & 31)) / RUNS;
    }
    __device__ static __forceinline__ int column(int load)
    {
        return (load * 32 + (int)(threadIdx.x & 31)) % RUNS * EACH;
    }
};

template <typename T, int DK, int DV> struct single_room {
    T keys[BLOCK][DK + 8]; // those of the block up to the row's own
    float q[DK], v[WARPS][DV];
    float score[BLOCK];
    float weight[WARPS][BLOCK];
    float sum[WARPS][walk<DV>::PERIOD * DV];
};

/* The work of a block and of its warp. A block has 8 / parts heads of one key head. */
struct single_work {
    struct pass_seq seq;
    int32_t key_head, head, nth; // nth: of the block's heads
    int32_t part, parts;         // of the head's rows
    int32_t n_heads;             // of the block
    bool owner;                  // writes the key head's rows
    int32_t pos, at, begin;
};

/* A thread's channel of the convolution: queries and keys, then the values of the block's heads. */
template <int DK, int DV> struct channels {
    static constexpr int N = (2 * DK + WARPS * DV + THREADS - 1) / THREADS;
    int32_t at[N];           // -1: none
    float sum[N], weight[N]; // of the earlier inputs; the weight of the row's own
};

template <int DK, int DV>
__device__ __forceinline__ int32_t channel_at(const struct rows_params &p,
                                              const struct single_work &w, int32_t i)
{
    if (i >= 2 * DK + w.n_heads * DV) {
        return -1;
    }
    return channel_of(p, w.key_head, w.head - w.nth, i);
}

/* Convolves the inputs of earlier passes. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void
convolve_past(const struct rows_params &p, const struct single_work &w, struct channels<DK, DV> &c)
{
    const struct state_view &s = p.state;
    const int32_t width = s.geometry.conv_width;
#pragma unroll
    for (int n = 0; n < c.N; n++) {
        const int32_t at = c.at[n] = channel_at<DK, DV>(p, w, (int32_t)threadIdx.x + n * THREADS);
        c.sum[n] = c.weight[n] = 0.0f;
        if (at < 0) {
            continue;
        }
        c.sum[n] = p.vectors.bias ? p.vectors.bias[at] : 0.0f;
        c.weight[n] = p.vectors.kernel[(int64_t)(TAPS - 1) * width + at];
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++) {
            const int32_t pos = w.pos - (TAPS - 1) + j;
            const T x = inputs_at<T>(s, w.seq.lane, max(pos, 0))[at];
            const float weight = p.vectors.kernel[(int64_t)j * width + at];
            c.sum[n] = fmaf(pos >= 0 ? to_float(x) : 0.0f, weight, c.sum[n]);
        }
    }
}

/* Adds the row's own input, which is kept, and distributes the results. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void
convolve_row(const struct rows_params &p, const struct single_work &w,
             const struct channels<DK, DV> &c, struct single_room<T, DK, DV> &m)
{
    const struct state_view &s = p.state;
    const T *x = (const T *)p.x + w.seq.first_row * p.x_stride;
    T *kept = inputs_at<T>(s, w.seq.lane, w.pos);
    T *key = keys_at<T>(s, w.seq.lane, w.pos, w.key_head);
    T in[c.N];
#pragma unroll
    for (int n = 0; n < c.N; n++) {
        in[n] = x[max(c.at[n], 0)];
    }
#pragma unroll
    for (int n = 0; n < c.N; n++) {
        const int32_t i = (int32_t)threadIdx.x + n * THREADS;
        if (c.at[n] < 0) {
            continue;
        }
        if (i >= 2 * DK || w.owner) {
            kept[c.at[n]] = in[n];
        }
        const float sum = fmaf(to_float(in[n]), c.weight[n], c.sum[n]);
        const float y = p.silu ? __fdividef(sum, 1.0f + __expf(-sum)) : sum;
        if (i < DK) {
            m.q[i] = y;
        } else if (i < 2 * DK) {
            const T k = from_float<T>(y);
            m.keys[w.at][i - DK] = k;
            if (w.owner) {
                key[i - DK] = k;
            }
        } else {
            (&m.v[0][0])[i - 2 * DK] = y;
        }
    }
}

/* Starts to load the block's keys from earlier passes. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void load_keys(const struct rows_params &p, const struct single_work &w,
                                          struct single_room<T, DK, DV> &m)
{
    constexpr int RUN = 16 / (int)sizeof(T), RUNS = DK / RUN;
    const T *from = keys_at<T>(p.state, w.seq.lane, w.begin, w.key_head);
    const int64_t stride = (int64_t)p.state.geometry.n_key_heads * DK;
    for (int32_t i = threadIdx.x; i < w.at * RUNS; i += THREADS) {
        const int32_t t = i / RUNS, d = i % RUNS * RUN;
        cp_async_16(&m.keys[t][d], from + t * stride + d, true);
    }
    cp_async_commit();
}

/* The products of the row's query with the block's keys up to its own. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void make_scores(const struct single_work &w,
                                            struct single_room<T, DK, DV> &m)
{
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float q[DK / 32];
#pragma unroll
    for (int i = 0; i < DK / 32; i += EACH) {
        *(float4 *)&q[i] = *(const float4 *)&m.q[i * 32 + lane * EACH];
    }
#pragma unroll 2
    for (int32_t t = warp; t <= w.at; t += WARPS) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < DK / 32; i += EACH) {
            const struct four<T> k = *(const struct four<T> *)&m.keys[t][i * 32 + lane * EACH];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                sum = fmaf(q[i + e], to_float(k.v[e]), sum);
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            m.score[t] = sum;
        }
    }
}

/* What a warp holds of its head. */
template <typename T, int DK, int DV> struct mine {
    const float *s;   // its rows of S, from `first` on; NULL: S is 0
    const T *values;  // of the block
    int32_t first, n; // its rows of S
    int64_t stride;   // of values
    float g_past[2];  // G of the block's rows lane and lane + 32
    float g_before, rate, dt_bias, skip;
};

template <typename T, int DK, int DV>
__device__ __forceinline__ struct mine<T, DK, DV> find_mine(const struct rows_params &p,
                                                            const struct single_work &w)
{
    const struct state_view &s = p.state;
    const int32_t lane = threadIdx.x & 31, of = w.seq.lane, heads = s.geometry.n_heads;
    struct mine<T, DK, DV> h;
    h.n = DK / w.parts;
    h.first = w.part * h.n;
    const float *record = (const float *)record_of(s, of, w.begin) + (int64_t)w.head * DK * DV;
    h.s = w.begin > 0 ? record + h.first * DV : NULL;
    h.values = values_at<T>(s, of, w.begin, w.head);
    h.stride = (int64_t)heads * DV;
    const float *g = decays_at(s, of, w.begin, w.head);
    h.g_past[0] = lane < w.at ? g[lane * heads] : 0.0f;
    h.g_past[1] = lane + 32 < w.at ? g[(lane + 32) * heads] : 0.0f;
    h.g_before = w.at > 0 ? g[(w.at - 1) * heads] : 0.0f;
    h.rate = expf(p.vectors.a_log[w.head]);
    h.dt_bias = p.vectors.dt_bias[w.head];
    h.skip = p.vectors.skip ? p.vectors.skip[w.head] : 0.0f;
    return h;
}

/* Adds up n rows of partial sums, for the lane's four columns. */
template <int DV>
__device__ __forceinline__ void add_sums(const float *sums, int32_t n, float (&y)[EACH])
{
#pragma unroll
    for (int i = 0; i < n; i++) {
        const float4 x = *(const float4 *)&sums[i * DV + (threadIdx.x & 31) * EACH];
        y[0] += x.x;
        y[1] += x.y;
        y[2] += x.z;
        y[3] += x.w;
    }
}

/* The row's value and output; the lane has four columns, the sums of which are in y. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void finish_row(const struct rows_params &p, const struct single_work &w,
                                           const struct mine<T, DK, DV> &h,
                                           const struct single_room<T, DK, DV> &m, float dt,
                                           uint2 gates, float (&y)[EACH])
{
    const int32_t column = (int32_t)(threadIdx.x & 31) * EACH;
    const float own = m.score[w.at];
    const struct four<T> gate = *(const struct four<T> *)&gates;
    struct four<T> u, out;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const float v = m.v[w.nth][column + e];
        u.v[e] = from_float<T>(v * dt);
        y[e] = fmaf(own, to_float(u.v[e]), y[e]);
        y[e] = fmaf(h.skip, v, y[e]);
        if (p.gate) {
            const float x = p.gate_scale * to_float(gate.v[e]);
            y[e] *= gate_factor(p.gate_act, x, __fdividef(1.0f, 1.0f + __expf(-x)));
        }
        out.v[e] = from_float<T>(y[e]);
    }
    *(struct four<T> *)(values_at<T>(p.state, w.seq.lane, w.pos, w.head) + column) = u;
    T *to = (T *)p.out + w.seq.first_row * p.out_stride + (int64_t)w.head * DV + column;
    *(struct four<T> *)to = out;
}

#endif
