// SPDX-License-Identifier: Apache-2.0
/* The recurrence of ops.h for few rows of a sequence: decoding rows, drafts, trees, and windows of
 * prompts where a row's bits must not depend on the number of rows.
 *
 * A block is one head of one sequence and processes its rows in order. From the convolution of the
 * head's channels to the output gate nothing leaves the multiprocessor: S and the rows of its block
 * stay in shared memory. A decoding row reads S once, which bounds it (64 KiB for a head of 128 x
 * 128, and up to 32 KiB of rows). Each product of the row with one of the block's keys is computed
 * by a warp; the products with S and with the block's values are divided by columns, and the
 * threads of a column each take an equal part of K. The order of all sums depends only on the row's
 * place in its block.
 *
 * Keys have one writer, the first of the heads that share them. The other heads compute this pass's
 * keys with their own convolution, and windows are too short to overwrite rows that they read. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/state/rows_past.cuh"

#include <math.h>

/* ---- the row itself -------------------------------------------------------------------------- */

/* Stores inputs [channel] of the convolution to the ring and, after the row that ends a block, the
 * last ones to the boundary's records. */
template <typename T>
__device__ static void keep_inputs(const struct rows_params &p, const struct room<T> &m,
                                   const struct work &w, const struct row &r, char *const *records,
                                   int32_t channel)
{
    const struct state_view &s = p.state;
    const int32_t kernel = s.geometry.conv_kernel;
    inputs_at<T>(s, w.seq.lane, r.slot)[channel] = m.input[kernel - 1][channel];
    for (int32_t j = 0; j < 2; j++) {
        T *tail = (T *)(records[j] + s.s_bytes);
        for (int32_t i = 1; records[j] && i < kernel; i++) {
            tail[(int64_t)(i - 1) * s.geometry.conv_width + channel] =
                m.input[i] ? m.input[i][channel] : from_float<T>(0.0f);
        }
    }
}

/* Where channel c of the head's queries, keys and values is kept. */
template <typename T>
__device__ __forceinline__ float *vector_at(const struct room<T> &m, int32_t dk, int32_t c)
{
    if (c < dk) {
        return m.q + c;
    }
    return c < 2 * dk ? m.k + c - dk : m.v + c - 2 * dk;
}

/* The convolution of up to CHANNELS channels from `first` on, all of whose loads are in flight
 * together. */
enum { CHANNELS = 2, TAPS = 4 };

template <typename T>
__device__ __forceinline__ void convolve(const struct rows_params &p, const struct room<T> &m,
                                         const int32_t (&channel)[CHANNELS], float (&sum)[CHANNELS])
{
    const struct state_layer &g = p.state.geometry;
#pragma unroll
    for (int32_t c = 0; c < CHANNELS; c++) {
        sum[c] = p.vectors.bias ? p.vectors.bias[channel[c]] : 0.0f;
    }
    for (int32_t first = 0; first < g.conv_kernel; first += TAPS) {
        float x[CHANNELS][TAPS], weight[CHANNELS][TAPS];
#pragma unroll
        for (int32_t j = 0; j < TAPS; j++) {
            const T *from = first + j < g.conv_kernel ? m.input[first + j] : NULL;
#pragma unroll
            for (int32_t c = 0; c < CHANNELS; c++) {
                const int64_t at = (int64_t)(first + j) * g.conv_width + channel[c];
                x[c][j] = from ? to_float(from[channel[c]]) : 0.0f;
                weight[c][j] = from ? p.vectors.kernel[at] : 0.0f;
            }
        }
#pragma unroll
        for (int32_t j = 0; j < TAPS; j++) {
#pragma unroll
            for (int32_t c = 0; c < CHANNELS; c++) {
                sum[c] = fmaf(x[c][j], weight[c][j], sum[c]);
            }
        }
    }
}

/* Computes the head's queries, keys and values after the convolution. */
template <typename T>
__device__ static void make_inputs(const struct rows_params &p, const struct room<T> &m,
                                   const struct work &w, const struct row &r, char *const *records)
{
    const int32_t dk = p.state.geometry.key_dim, dv = p.state.geometry.value_dim;
    const int32_t n = 2 * dk + dv;
    for (int32_t first = threadIdx.x; first < n; first += CHANNELS * THREADS) {
        int32_t channel[CHANNELS];
        float sum[CHANNELS];
#pragma unroll
        for (int32_t j = 0; j < CHANNELS; j++) {
            channel[j] = channel_of(p, w.key_head, w.head, min(first + j * THREADS, n - 1));
        }
        if (p.vectors.kernel) {
            convolve(p, m, channel, sum);
        }
#pragma unroll
        for (int32_t j = 0; j < CHANNELS; j++) {
            const int32_t c = first + j * THREADS;
            if (c >= n) {
                break;
            }
            float *to = vector_at(m, dk, c);
            if (!p.vectors.kernel) {
                *to = to_float(((const T *)p.x + r.index * p.x_stride)[channel[j]]);
                continue;
            }
            *to = p.silu ? sum[j] / (1.0f + expf(-sum[j])) : sum[j];
            if (c >= 2 * dk || w.owner) {
                keep_inputs(p, m, w, r, records, channel[j]);
            }
        }
    }
}

/* With the delta rule, q and k are scaled to length one. k is rounded and kept, and G advances. */
template <typename T, bool EACH>
__device__ static void make_keys(const struct rows_params &p, const struct room<T> &m,
                                 const struct work &w, const struct row &r)
{
    const struct state_view &s = p.state;
    const int32_t dk = s.geometry.key_dim, lane = w.seq.lane;
    const bool delta = s.geometry.kind == STATE_DELTA;
    const int32_t warp = threadIdx.x >> 5;
    const float rate = expf(p.vectors.a_log[w.head]); // loads are started before the sums
    float step = 0.0f;
    if ((int32_t)threadIdx.x < s.decays) {
        step = step_of<T>(p, r, w.head * s.decays + threadIdx.x);
    }
    if (delta && warp < 2) {
        const float *x = warp == 0 ? m.q : m.k;
        float square = 0.0f;
        for (int32_t d = threadIdx.x & 31; d < dk; d += 32) {
            square = fmaf(x[d], x[d], square);
        }
        square = warp_sum(square);
        if ((threadIdx.x & 31) == 0) {
            m.sum[warp] = rsqrtf(square + 1e-6f) * (warp == 0 ? rsqrtf((float)dk) : 1.0f);
        }
    }
    __syncthreads();
    T *kept = keys_at<T>(s, lane, r.slot, w.key_head);
    for (int32_t d = threadIdx.x; d < dk; d += THREADS) {
        const T k = from_float<T>(delta ? m.k[d] * m.sum[1] : m.k[d]);
        m.q[d] = delta ? m.q[d] * m.sum[0] : m.q[d];
        m.k[d] = to_float(k);
        m.keys[r.mine * dk + d] = k;
        if (w.owner) {
            kept[d] = k;
        }
    }
    const int32_t before = r.at > 0 ? place_of(m.place, w, r, r.at - 1) : 0;
    float *g_kept = decays_at(s, lane, r.slot, w.head);
    for (int32_t d = threadIdx.x; d < s.decays; d += THREADS) {
        const bool is_first = d == (int32_t)threadIdx.x;
        const float x = is_first ? step : step_of<T>(p, r, w.head * s.decays + d);
        const float g = log_decay(p.law, rate, x);
        const float sum = r.at > 0 ? m.g[before * s.decays + d] + g : g;
        m.g[r.mine * s.decays + d] = sum;
        g_kept[d] = sum;
    }
    __syncthreads();
    for (int32_t d = threadIdx.x; d < dk; d += THREADS) {
        const float e = decay_exp(m.g[r.mine * s.decays + (EACH ? d : 0)]);
        m.q_decayed[d] = m.q[d] * e;
        m.k_decayed[d] = m.k[d] * e;
    }
}

/* Products with the block's keys up to the row's own; a warp takes one at a time. */
template <typename T, bool EACH>
__device__ static void make_scores(const struct rows_params &p, const struct room<T> &m,
                                   const struct work &w, const struct row &r)
{
    const int32_t dk = p.state.geometry.key_dim, decays = p.state.decays;
    const float *g = m.g + r.mine * decays;
#pragma unroll 2
    for (int32_t t = threadIdx.x >> 5; t <= r.at; t += WARPS) {
        const int32_t from = place_of(m.place, w, r, t);
        const T *key = m.keys + from * dk;
        const float *past = m.g + from * decays;
        float by_k = 0.0f, by_q = 0.0f;
        for (int32_t d = threadIdx.x & 31; d < dk; d += 32) {
            float x = to_float(key[d]);
            if (EACH) {
                x *= decay_exp(g[d] - past[d]);
            }
            by_k = fmaf(m.k[d], x, by_k);
            by_q = fmaf(m.q[d], x, by_q);
        }
        by_k = warp_sum(by_k);
        by_q = warp_sum(by_q);
        if ((threadIdx.x & 31) == 0) {
            const float e = EACH ? 1.0f : decay_exp(g[0] - past[0]);
            m.k_score[t] = by_k * e;
            m.q_score[t] = by_q * e;
        }
    }
}

/* The number of threads that share a column of S. */
__device__ __forceinline__ int32_t parts_of(int32_t dv)
{
    return THREADS / ((dv + 31) / 32 * 32);
}

/* The contributions of S and of the block's earlier rows, by column and part. */
template <typename T>
__device__ static void add_past(const struct rows_params &p, const struct room<T> &m,
                                const struct work &w, const struct row &r)
{
    const int32_t dk = p.state.geometry.key_dim, dv = p.state.geometry.value_dim;
    const int32_t width = (dv + 31) / 32 * 32, parts = parts_of(dv);
    const int32_t part = threadIdx.x / width, v = threadIdx.x % width;
    float by_k = 0.0f, by_q = 0.0f;
    if (part < parts && v < dv) {
        for (int32_t d = part * dk / parts; r.begin > 0 && d < (part + 1) * dk / parts; d++) {
            const float s = m.s[d * dv + v];
            by_k = fmaf(m.k_decayed[d], s, by_k);
            by_q = fmaf(m.q_decayed[d], s, by_q);
        }
        for (int32_t t = part * r.at / parts; t < (part + 1) * r.at / parts; t++) {
            const float u = to_float(m.values[place_of(m.place, w, r, t) * dv + v]);
            by_k = fmaf(m.k_score[t], u, by_k);
            by_q = fmaf(m.q_score[t], u, by_q);
        }
    }
    m.part[threadIdx.x] = by_k;
    m.part[THREADS + threadIdx.x] = by_q;
}

/* The values from global memory that are needed at the end of a row, such as the inputs of gate and
 * beta; loaded while the row's sums are computed. */
struct late {
    float beta, gate, norm, skip, step;
};

template <typename T>
__device__ static struct late load_late(const struct rows_params &p, const struct work &w,
                                        const struct row &r)
{
    const struct state_layer &g = p.state.geometry;
    const int32_t dv = g.value_dim, v = threadIdx.x;
    struct late l = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if (v >= dv) {
        return l;
    }
    if (g.kind == STATE_DELTA) {
        l.beta = to_float(((const T *)p.beta + r.index * p.beta_stride)[w.head]);
    } else {
        l.step = step_of<T>(p, r, w.head);
    }
    if (p.gate) {
        const T *gate = (const T *)p.gate + r.index * p.gate_stride;
        l.gate = to_float(gate[p.per_group ? w.head : w.head * dv + v]);
    }
    if (p.vectors.norm) {
        l.norm = p.vectors.norm[p.vectors.norm_is_wide ? w.head * dv + v : v];
    }
    l.skip = p.vectors.skip ? p.vectors.skip[w.head] : 0.0f;
    return l;
}

/* The row's value and output, and the output's gate. */
template <typename T>
__device__ static void finish_row(const struct rows_params &p, const struct room<T> &m,
                                  const struct work &w, const struct row &r, const struct late &l)
{
    const struct state_view &s = p.state;
    const int32_t dv = s.geometry.value_dim, width = (dv + 31) / 32 * 32, v = threadIdx.x;
    float y = 0.0f, opened = 1.0f;
    if (v < dv) {
        float known = 0.0f;
        for (int32_t part = 0; part < parts_of(dv); part++) {
            known += m.part[part * width + v];
            y += m.part[THREADS + part * width + v];
        }
        const bool delta = s.geometry.kind == STATE_DELTA;
        const float u = delta ? p.law.beta_scale * (m.v[v] - known) / (1.0f + expf(-l.beta))
                              : m.v[v] * dt_of(p.law, l.step);
        const T kept = from_float<T>(u);
        m.values[r.mine * dv + v] = kept;
        values_at<T>(s, w.seq.lane, r.slot, w.head)[v] = kept;
        y = fmaf(m.q_score[r.at], to_float(kept), y);
        y = p.vectors.skip ? fmaf(l.skip, m.v[v], y) : y;
        opened = p.gate ? opened_by(p, l.gate) : 1.0f;
        y = p.gate_first ? y * opened : y;
    }
    if (p.vectors.norm) {
        const float square = block_sum(v < dv ? y * y : 0.0f, m.sum) / (float)dv;
        y *= v < dv ? l.norm / sqrtf(square + p.eps) : 0.0f;
    }
    if (v < dv) {
        T *out = (T *)p.out + r.index * p.out_stride + (int64_t)w.head * dv;
        out[v] = from_float<T>(p.gate_first ? y : y * opened);
    }
}

/* The block is full: stores S at the next boundary to its record, and to a snapshot if one is
 * due. */
template <typename T, bool EACH>
__device__ static void move_on(const struct rows_params &p, const struct room<T> &m,
                               const struct work &w, const struct row &r, char *const *records)
{
    enum { RUN = 8 };
    const struct state_view &s = p.state;
    const int32_t dk = s.geometry.key_dim, dv = s.geometry.value_dim, decays = s.decays;
    const int32_t last = r.mine;
    for (int32_t t = threadIdx.x; !EACH && t < s.block; t += THREADS) {
        m.weight[t] = decay_exp(m.g[last] - m.g[place_of(m.place, w, r, t)]);
    }
    for (int32_t i = threadIdx.x; EACH && i < (s.block - 1) * dk; i += THREADS) {
        const int32_t d = i % dk, t = place_of(m.place, w, r, i / dk); // G becomes decayed keys
        float *g = m.g + t * decays + d;
        *g = to_float(m.keys[t * dk + d]) * decay_exp(m.g[last * decays + d] - *g);
    }
    __syncthreads();
    const int32_t width = (dv + 31) / 32 * 32, parts = parts_of(dv);
    const int32_t part = threadIdx.x / width, v = threadIdx.x % width;
    const int32_t end = part < parts && v < dv ? (part + 1) * dk / parts : 0;
    for (int32_t d = part * dk / parts; d < end; d += RUN) {
        float sum[RUN];
#pragma unroll
        for (int32_t i = 0; i < RUN; i++) {
            const bool is = d + i < end && r.begin > 0;
            const float e = is ? decay_exp(m.g[last * decays + (EACH ? d + i : 0)]) : 0.0f;
            sum[i] = is ? e * m.s[(d + i) * dv + v] : 0.0f;
        }
        for (int32_t t = 0; t < s.block; t++) {
            const int32_t from = place_of(m.place, w, r, t);
            const float u = to_float(m.values[from * dv + v]);
#pragma unroll
            for (int32_t i = 0; i < RUN; i++) {
                if (d + i < end) {
                    const float k = !EACH || from == last ? to_float(m.keys[from * dk + d + i])
                                                          : m.g[from * decays + d + i];
                    sum[i] = fmaf(EACH ? k : k * m.weight[t], u, sum[i]);
                }
            }
        }
#pragma unroll
        for (int32_t i = 0; i < RUN; i++) {
            if (d + i < end) {
                const int64_t at = (int64_t)(d + i) * dv + v;
                m.s[at] = sum[i];
                for (int32_t j = 0; j < 2; j++) {
                    if (records[j]) {
                        ((float *)records[j])[(int64_t)w.head * dk * dv + at] = sum[i];
                    }
                }
            }
        }
    }
}

__device__ __forceinline__ struct row row_of(const struct rows_params &p, const struct work &w,
                                             int32_t i)
{
    const struct pass_row of = p.pass.rows[w.first + i];
    const int32_t at = of.pos % p.state.block;
    return {w.first + i, of.pos, of.slot_pos, at, of.pos - at, w.seq.tree ? p.state.block + i : at};
}

/* `have`: the first position of the block whose S and rows are in shared memory or on their way
 * there; -1: none. */
template <typename T, bool EACH>
__device__ static void run_sequence(const struct rows_params &p, const struct room<T> &m,
                                    const struct work &w, int32_t have)
{
    const struct state_view &s = p.state;
    for (int32_t i = 0; i < w.n; i++) {
        const struct row r = row_of(p, w, i);
        const bool ends = r.at == s.block - 1;
        char *const records[2] = {ends ? record_of(s, w.seq.lane, r.pos + 1) : NULL,
                                  ends ? kept_of(s, p.pass, w.seq.lane, r.pos + 1) : NULL};
        if (r.begin != have) {
            load_block(p, m, w, r);
            have = r.begin;
        }
        find_path(p, m, w, r);
        const struct late late = load_late<T>(p, w, r);
        loads_arrive();
        __syncthreads();
        make_inputs(p, m, w, r, records);
        __syncthreads();
        make_keys<T, EACH>(p, m, w, r);
        __syncthreads();
        make_scores<T, EACH>(p, m, w, r);
        __syncthreads();
        add_past(p, m, w, r);
        __syncthreads();
        finish_row(p, m, w, r, late);
        __syncthreads();
        if (ends) {
            move_on<T, EACH>(p, m, w, r, records);
            have = r.begin + s.block;
            __syncthreads();
        }
    }
}

/* The block's work on sequence number i of the pass; n is 0 if k_state_blocks or k_state_single
 * computes the sequence, or if it has no rows in this window. */
__device__ __forceinline__ struct work work_of(const struct rows_params &p, int32_t i)
{
    const struct state_layer &g = p.state.geometry;
    const int32_t per_key = g.n_heads / g.n_key_heads, head = blockIdx.x;
    struct work w = {p.pass.seqs[i], head, head / per_key, head % per_key == 0, 0, 0};
    const int32_t first = p.window * STATE_WINDOW;
    const bool few = w.seq.tree || w.seq.n_rows <= STATE_WINDOW;
    const bool single = w.seq.n_rows == 1 && !w.seq.tree;
    if (first < w.seq.n_rows && (few || !p.few_alone) && !(single && p.several)) {
        w.n = min(w.seq.n_rows - first, (int32_t)STATE_WINDOW);
        w.first = w.seq.first_row + first;
    }
    return w;
}

/* In the first window the past is loaded before the wait, because no kernel of this pass writes it
 * or the pass's lists. Later windows read what earlier ones have written. */
template <typename T, bool EACH>
__global__ void __launch_bounds__(THREADS, 2) state_rows_kernel(struct rows_params p)
{
    extern __shared__ __align__(16) char memory[];
    struct room<T> m;
    carve(p.state, memory, &m);
    int32_t have = -1;
    if (p.window == 0 && (int32_t)blockIdx.y < p.pass.counts->n_seqs) {
        const struct work w = work_of(p, blockIdx.y);
        if (w.n > 0) {
            const struct row r = row_of(p, w, 0);
            load_block(p, m, w, r);
            have = r.begin;
        }
    }
    pdl_wait();
    pdl_trigger();
    for (int32_t i = blockIdx.y; i < p.pass.counts->n_seqs; i += gridDim.y) {
        const struct work w = work_of(p, i);
        run_sequence<T, EACH>(p, m, w, have);
        have = -1;
    }
}

template <typename T> static int64_t shared_bytes(const struct state_view *state)
{
    struct room<T> m;
    return carve(*state, (char *)0, &m);
}

template <typename T, bool EACH>
static cudaError_t launch_rows(cudaStream_t stream, const struct state_rows_launch *l)
{
    enum { BLOCKS = 2048 }; // with more sequences the blocks loop
    const int64_t n_bytes = shared_bytes<T>(&l->state);
    const int32_t heads = l->state.geometry.n_heads;
    const int32_t most = heads < BLOCKS ? BLOCKS / heads : 1;
    const cudaError_t e = cudaFuncSetAttribute(
        state_rows_kernel<T, EACH>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    if (e != cudaSuccess) {
        return e;
    }
    return launch(state_rows_kernel<T, EACH>, dim3(heads, l->n_seqs < most ? l->n_seqs : most),
                  dim3(THREADS), (size_t)n_bytes, stream, rows_params_of(l));
}

extern "C" bool k_state_rows_takes(const struct state_view *state)
{
    enum { MOST_BYTES = 227 << 10 };
    const struct state_layer *g = &state->geometry;
    const int64_t n_bytes =
        state->dtype == DT_F32 ? shared_bytes<float>(state) : shared_bytes<bf16_t>(state);
    return g->value_dim <= THREADS && g->conv_kernel <= MAX_KERNEL && n_bytes <= MOST_BYTES;
}

extern "C" cudaError_t k_state_rows(cudaStream_t stream, const struct state_rows_launch *l)
{
    BY_DTYPE(l->state.dtype, T,
             return l->state.geometry.per_channel ? launch_rows<T, true>(stream, l)
                                                  : launch_rows<T, false>(stream, l));
    return cudaErrorInvalidValue;
}
