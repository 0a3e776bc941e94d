// SPDX-License-Identifier: Apache-2.0
/* A block's work in rows.cu, its shared memory, and the past that it loads there: S, the rows of
 * the state's block, and the path of a tree's row. Thread: device code, one block at a time. */
#ifndef SLUICE_CUDA_STATE_ROWS_PAST_CUH
#define SLUICE_CUDA_STATE_ROWS_PAST_CUH

#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/state/rows.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MAX_KERNEL = 16 };

/* A block's shared memory. g, keys and values have the rows of the state's block at their offsets
 * [0, block), then the window's rows. */
template <typename T> struct room {
    float *s; // [key_dim][value_dim]
    float *q, *k, *q_decayed, *k_decayed, *v;
    float *k_score, *q_score; // [block]
    float *weight;            // [block]
    float *part;              // [2][THREADS]
    float *sum;               // [32]
    float *g;                 // [block + window][decays]
    T *keys, *values;         // [block + window][...]
    int32_t *place;           // [block]: for a tree, which rows of g, keys and values are on the
                              // path
    const T **input;          // [MAX_KERNEL]
};

template <typename P> __host__ __device__ static P *take(char **at, int64_t n)
{
    P *p = (P *)*at;
    *at += (n * (int64_t)sizeof(P) + 15) / 16 * 16;
    return p;
}

template <typename T>
__host__ __device__ static int64_t carve(const struct state_view &v, char *base, struct room<T> *r)
{
    const int64_t dk = v.geometry.key_dim, dv = v.geometry.value_dim;
    const int64_t rows = v.block + STATE_WINDOW;
    char *at = base;
    r->s = take<float>(&at, dk * dv);
    r->q = take<float>(&at, dk);
    r->k = take<float>(&at, dk);
    r->q_decayed = take<float>(&at, dk);
    r->k_decayed = take<float>(&at, dk);
    r->v = take<float>(&at, dv);
    r->k_score = take<float>(&at, v.block);
    r->q_score = take<float>(&at, v.block);
    r->weight = take<float>(&at, v.block);
    r->part = take<float>(&at, 2 * THREADS);
    r->sum = take<float>(&at, 32);
    r->g = take<float>(&at, rows * v.decays);
    r->keys = take<T>(&at, rows * dk);
    r->values = take<T>(&at, rows * dv);
    r->place = take<int32_t>(&at, v.block);
    r->input = take<const T *>(&at, MAX_KERNEL);
    return at - base;
}

/* A block's work. */
struct work {
    struct pass_seq seq;
    int32_t head, key_head;
    bool owner;       // writes the key head's rows
    int32_t first, n; // rows of the window, as indices in the pass
};

/* The current row. */
struct row {
    int32_t index, pos, slot, at, begin;
    int32_t mine; // its row in g, keys and values
};

__device__ __forceinline__ int32_t place_of(const int32_t *place, const struct work &w,
                                            const struct row &r, int32_t t)
{
    if (t == r.at) {
        return r.mine;
    }
    return w.seq.tree ? place[t] : t;
}

__device__ __forceinline__ float decay_exp(float x)
{
    return expf(x);
}

template <typename T>
__device__ __forceinline__ float step_of(const struct rows_params &p, const struct row &r,
                                         int32_t i)
{
    const T *decay = (const T *)p.decay + r.index * p.decay_stride;
    return decay_input(p.law, decay[i], p.vectors.dt_bias[i]);
}

/* ---- loading the past ----------------------------------------------------------------------- */

/* Copies n elements of 4 or 2 bytes. */
template <typename P> __device__ static void copy_run(P *to, const P *from, int32_t n)
{
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        to[i] = from[i];
    }
}

template <typename T>
__device__ static void load_row(const struct rows_params &p, const struct room<T> &m,
                                const struct work &w, int32_t slot, int32_t to)
{
    const struct state_view &s = p.state;
    const int32_t dk = s.geometry.key_dim, dv = s.geometry.value_dim, lane = w.seq.lane;
    copy_run(m.keys + to * dk, keys_at<T>(s, lane, slot, w.key_head), dk);
    copy_run(m.values + to * dv, values_at<T>(s, lane, slot, w.head), dv);
    copy_run(m.g + to * s.decays, decays_at(s, lane, slot, w.head), s.decays);
}

/* Copies n elements to shared memory, 16 bytes at a time if their number allows it; the thread is
 * number `me` of `team` threads. `loads_arrive` waits for them. */
template <typename P>
__device__ __forceinline__ void start_copy(P *to, const P *from, int32_t n, int32_t me,
                                           int32_t team)
{
    constexpr int32_t RUN = 16 / (int32_t)sizeof(P);
    if (n % RUN == 0) {
        for (int32_t i = me * RUN; i < n; i += team * RUN) {
            cp_async_16(to + i, from + i, true);
        }
    } else {
        for (int32_t i = me; i < n; i += team) {
            to[i] = from[i];
        }
    }
}

__device__ __forceinline__ void loads_arrive()
{
    cp_async_commit();
    cp_async_wait<0>();
}

/* Starts to load S at the row's block, and the block's rows from earlier passes. */
template <typename T>
__device__ static void load_block(const struct rows_params &p, const struct room<T> &m,
                                  const struct work &w, const struct row &r)
{
    const struct state_view &s = p.state;
    const int32_t dk = s.geometry.key_dim, dv = s.geometry.value_dim, lane = w.seq.lane;
    const int32_t n_s = dk * dv;
    if (r.begin > 0) {
        const float *from = (const float *)record_of(s, lane, r.begin) + (int64_t)w.head * n_s;
        start_copy(m.s, from, n_s, threadIdx.x, THREADS);
    }
    const int32_t known = (w.seq.tree ? w.seq.n_past : r.pos) - r.begin;
    for (int32_t t = threadIdx.x >> 5; t < known; t += WARPS) { // one warp per row
        const int32_t l = threadIdx.x & 31, slot = r.begin + t;
        start_copy(m.keys + t * dk, keys_at<T>(s, lane, slot, w.key_head), dk, l, 32);
        start_copy(m.values + t * dv, values_at<T>(s, lane, slot, w.head), dv, l, 32);
    }
    for (int32_t i = threadIdx.x; i < known * s.decays; i += THREADS) {
        m.g[i] = decays_at(s, lane, r.begin + i / s.decays, w.head)[i % s.decays];
    }
}

/* Finds the inputs of the row's convolution and, for a tree, the rows on its path. Rows of earlier
 * windows are loaded to their offsets. */
template <typename T>
__device__ static void find_path(const struct rows_params &p, const struct room<T> &m,
                                 const struct work &w, const struct row &r)
{
    const int32_t kernel = p.state.geometry.conv_kernel;
    if (p.vectors.kernel && threadIdx.x < kernel) {
        const int32_t pos = r.pos - (kernel - 1 - (int32_t)threadIdx.x);
        const int32_t at = path_row(p.pass, w.seq, r.index, pos);
        const T *row = at >= 0 ? (const T *)p.x + at * p.x_stride
                               : inputs_at<T>(p.state, w.seq.lane, pos < 0 ? 0 : pos);
        m.input[threadIdx.x] = pos < 0 ? NULL : row;
    }
    if (!w.seq.tree) {
        return;
    }
    for (int32_t t = threadIdx.x; t < r.at; t += THREADS) {
        const int32_t at = path_row(p.pass, w.seq, r.index, r.begin + t);
        m.place[t] = at >= w.first ? p.state.block + at - w.first : t;
    }
    for (int32_t t = w.seq.n_past - r.begin; t < r.at; t++) {
        const int32_t at = path_row(p.pass, w.seq, r.index, r.begin + t);
        if (at >= 0 && at < w.first) {
            load_row(p, m, w, p.pass.rows[at].slot_pos, t);
        }
    }
}

#endif
