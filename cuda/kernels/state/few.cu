// SPDX-License-Identifier: Apache-2.0
/* The recurrence of gated delta nets for a few rows of a few sequences, as in decoding and in
 * verifying drafts: heads of 128 x 128 in 16 bits, from the convolution to the output gate.
 *
 * A block is one head of one sequence. There is little to compute, so it is bound by latency: of
 * the launch, of the loads, and of fetching the code. S and the rows of its block are therefore
 * loaded into registers before the wait. Meanwhile the code for a row runs once without inputs,
 * which fetches it. For this the blocks must start beside those of the preceding product, which
 * leave 7 KiB of a multiprocessor's shared memory, and whose 160 threads take 80 registers each.
 *
 * A warp owns COLUMNS columns of S and of the values. Lane l has 4 of these columns, from l % 4 * 4
 * on, in rows l / 4, l / 4 + 8, ... The warp also owns every eighth key of the block, with 4
 * elements per lane. So the products with S and the values stay within a warp, and a row takes
 * three barriers. The order of its sums differs from that of rows.cu. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/state/rows.cuh"

enum { KEY = 128, VALUE = 128, BLOCK = 64, TAPS = 4 }; // the shape that this kernel supports
enum { THREADS = 256, WARPS = THREADS / 32, COLUMNS = VALUE / WARPS, EACH = 4, STRIDE = 8 };
// The limit on registers per thread, so that blocks fit beside those of gemm/small.cu.
enum { MOST_REGISTERS = 176 };
enum { S_ROWS = KEY / STRIDE, ROWS = BLOCK / WARPS, CHANNELS = 2 };
static_assert(COLUMNS / EACH * STRIDE == 32 && STRIDE == WARPS, "lanes of a warp");

template <typename T> struct alignas(EACH * sizeof(T)) four {
    T v[EACH];
};

/* The values of the past and of the layer that a thread holds. A thread has two channels: one of
 * the head's queries or keys, and one of its values. */
template <typename T> struct past {
    float s[S_ROWS][EACH];      // rows STRIDE * i + lane / 4 of S
    struct four<T> key[ROWS];   // elements 4 * lane of rows WARPS * i + warp
    struct four<T> value[ROWS]; // rows STRIDE * i + lane / 4
    int32_t channel[CHANNELS];
    T x[CHANNELS][TAPS - 1]; // the last inputs of its channels
    float weight[CHANNELS][TAPS], bias[CHANNELS];
    float norm, rate, dt_bias;
};

/* A thread's inputs of one row, from the preceding product, as loaded: converting them would wait
 * for them while the row before is computed. */
template <typename T> struct fresh {
    T x[CHANNELS], beta, decay, gate;
};

template <typename T> struct few_room {
    union {
        struct {
            float raw[2 * KEY + VALUE]; // queries, keys, values after the convolution
            float score[2][BLOCK];      // key and query times the block's keys; 0 from the row on
            float squares[WARPS], own;  // own: the row's query times its key
        };
        struct {
            struct four<T> keys[WARPS][KEY / EACH], values[WARPS][VALUE / EACH];
        };
    };
    float g[BLOCK];
};

struct few_work {
    struct pass_seq seq;
    int32_t head, key_head;
    bool owner; // writes the key head's rows
};

/* The column whose sums and results this lane ends up with. */
__device__ __forceinline__ int32_t my_column()
{
    const int32_t lane = threadIdx.x & 31;
    return (threadIdx.x >> 5) * COLUMNS + (lane & 3) * EACH + (lane >> 2 & 3);
}

__device__ __forceinline__ int32_t first_column()
{
    return (threadIdx.x >> 5) * COLUMNS + (threadIdx.x & 3) * EACH;
}

/* Channel c of the thread; both halves of the block have the channels of the values. */
__device__ __forceinline__ int32_t my_channel(const struct rows_params &p, const struct few_work &w,
                                              int32_t c)
{
    const int32_t i = threadIdx.x, key = w.key_head * KEY + i % KEY;
    const int32_t of_keys = i < KEY ? p.q_at + key : p.k_at + key;
    return c == 0 ? of_keys : p.v_at + w.head * VALUE + i % VALUE;
}

/* Adds each of N values over a group of N lanes. The lanes of a group differ only in log2(N) bits
 * of their number, of which `mask` is the highest; lane i of the group gets the sum of value i. */
template <int N> __device__ __forceinline__ float fold(const float (&v)[N], int mask)
{
    if constexpr (N == 1) {
        return v[0];
    } else {
        const bool upper = threadIdx.x & mask;
        float half[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float sent = upper ? v[i] : v[i + N / 2], kept = upper ? v[i + N / 2] : v[i];
            half[i] = kept + __shfl_xor_sync(0xffffffffu, sent, mask);
        }
        return fold(half, mask / 2);
    }
}

/* ---- before the wait --------------------------------------------------------------------------
 */

template <typename T>
__device__ __forceinline__ void load_layer(const struct rows_params &p, const struct few_work &w,
                                           struct past<T> &m)
{
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        const int32_t channel = m.channel[c] = my_channel(p, w, c);
        m.bias[c] = p.vectors.bias ? p.vectors.bias[channel] : 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            m.weight[c][j] = p.vectors.kernel[(int64_t)j * p.state.geometry.conv_width + channel];
        }
    }
    m.norm = p.vectors.norm[(p.vectors.norm_is_wide ? w.head * VALUE : 0) + my_column()];
    m.rate = __expf(p.vectors.a_log[w.head]);
    m.dt_bias = p.vectors.dt_bias[w.head];
}

template <typename T>
__device__ __forceinline__ void load_past(const struct rows_params &p, const struct few_work &w,
                                          struct past<T> &m, float *g)
{
    const struct state_view &s = p.state;
    const int32_t n_past = w.seq.n_past, known = n_past % BLOCK, begin = n_past - known;
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, of = w.seq.lane;
    const float *from =
        (const float *)record_of(s, of, begin) + (int64_t)w.head * KEY * VALUE + first_column();
#pragma unroll
    for (int i = 0; i < S_ROWS; i++) {
        const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
        const int32_t row = STRIDE * i + (lane >> 2);
        *(float4 *)m.s[i] = begin > 0 ? *(const float4 *)(from + row * VALUE) : zero;
    }
    /* The slots of a block are contiguous. */
    const T *key = keys_at<T>(s, of, begin, w.key_head) + lane * EACH;
    const T *value = values_at<T>(s, of, begin, w.head) + first_column();
    const int32_t key_stride = s.geometry.n_key_heads * KEY, stride = s.geometry.n_heads * VALUE;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int32_t k = WARPS * i + warp, v = STRIDE * i + (lane >> 2);
        const uint2 zero = {0, 0};
        *(uint2 *)m.key[i].v = k < known ? *(const uint2 *)(key + k * key_stride) : zero;
        *(uint2 *)m.value[i].v = v < known ? *(const uint2 *)(value + v * stride) : zero;
    }
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) {
        const int32_t pos = n_past - (TAPS - 1) + j;
        const T *inputs = inputs_at<T>(s, of, max(pos, 0));
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
            m.x[c][j] = pos >= 0 ? inputs[m.channel[c]] : from_float<T>(0.0f);
        }
    }
    if ((int32_t)threadIdx.x < known) {
        g[threadIdx.x] = decays_at(s, of, begin, w.head)[threadIdx.x * s.geometry.n_heads];
    }
}

/* ---- one row ----------------------------------------------------------------------------------
 */

template <typename T>
__device__ __forceinline__ struct fresh<T> load_fresh(const struct rows_params &p,
                                                      const struct few_work &w,
                                                      const struct past<T> &m, int32_t row)
{
    struct fresh<T> in;
    const T *x = (const T *)p.x + row * p.x_stride;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        in.x[c] = x[m.channel[c]];
    }
    in.beta = ((const T *)p.beta + row * p.beta_stride)[w.head];
    in.decay = ((const T *)p.decay + row * p.decay_stride)[w.head];
    in.gate = ((const T *)p.gate + row * p.gate_stride)[w.head * VALUE + my_column()];
    return in;
}

template <typename T>
__device__ __forceinline__ void convolve(const struct past<T> &m, const struct fresh<T> &in,
                                         float *raw)
{
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        float sum = m.bias[c];
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++) {
            sum = fmaf(to_float(m.x[c][j]), m.weight[c][j], sum);
        }
        sum = fmaf(to_float(in.x[c]), m.weight[c][TAPS - 1], sum);
        raw[c * THREADS + threadIdx.x % (c == 0 ? THREADS : VALUE)] =
            __fdividef(sum, 1.0f + __expf(-sum));
    }
}

/* The row's inputs become part of the past. */
template <typename T>
__device__ __forceinline__ void keep_inputs(const struct rows_params &p, const struct few_work &w,
                                            struct past<T> &m, const struct fresh<T> &in,
                                            int32_t pos)
{
    T *to = inputs_at<T>(p.state, w.seq.lane, pos);
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
#pragma unroll
        for (int j = 0; j + 1 < TAPS - 1; j++) {
            m.x[c][j] = m.x[c][j + 1];
        }
        m.x[c][TAPS - 2] = in.x[c];
        if (c > 0 || w.owner) {
            to[m.channel[c]] = m.x[c][TAPS - 2];
        }
    }
}

/* Products of the row's query and key with the block's keys and its own. A lane has elements
 * [4 * lane, + 4) of both. */
template <typename T>
__device__ __forceinline__ void make_scores(const struct past<T> &m, const float *q, const float *k,
                                            int32_t at, float g, struct few_room<T> &room)
{
    float sum[2 * ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        sum[i] = sum[ROWS + i] = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const float x = to_float(m.key[i].v[e]);
            sum[i] = fmaf(k[e], x, sum[i]);
            sum[ROWS + i] = fmaf(q[e], x, sum[ROWS + i]);
        }
    }
    const float half = fold(sum, 16), whole = half + __shfl_xor_sync(0xffffffffu, half, 1);
    const int32_t lane = threadIdx.x & 31;
    const int32_t t = WARPS * (lane >> 1 & 7) + (int32_t)(threadIdx.x >> 5);
    if ((lane & 1) == 0) {
        const float e = __expf(t < at ? g - room.g[t] : 0.0f);
        room.score[lane >> 4][t] = t < at ? whole * e : 0.0f;
        if (t == at && lane >= 16) {
            room.own = whole;
        }
    }
}

/* The products of the key (the first EACH sums) and of the query (the rest) with the thread's part
 * of S, times the decay since S. k_scale and q_scale are applied to key and query first. */
template <typename T>
__device__ __forceinline__ void add_state(const struct past<T> &m, const struct few_room<T> &room,
                                          float q_scale, float k_scale, float g,
                                          float (&sum)[2 * EACH])
{
    const int32_t first = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int i = 0; i < 2 * EACH; i++) {
        sum[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < S_ROWS; i++) {
        const int32_t d = STRIDE * i + first;
        const float q = room.raw[d] * q_scale;
        const float k = to_float(from_float<T>(room.raw[KEY + d] * k_scale));
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            sum[e] = fmaf(k, m.s[i][e], sum[e]);
            sum[EACH + e] = fmaf(q, m.s[i][e], sum[EACH + e]);
        }
    }
    const float decayed = __expf(g);
#pragma unroll
    for (int i = 0; i < 2 * EACH; i++) {
        sum[i] *= decayed;
    }
}

template <typename T>
__device__ __forceinline__ void add_values(const struct past<T> &m, const struct few_room<T> &room,
                                           float (&sum)[2 * EACH])
{
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int32_t t = STRIDE * i + ((threadIdx.x & 31) >> 2);
        const float k = room.score[0][t], q = room.score[1][t];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const float u = to_float(m.value[i].v[e]);
            sum[e] = fmaf(k, u, sum[e]);
            sum[EACH + e] = fmaf(q, u, sum[EACH + e]);
        }
    }
}

/* Stores the row's key, or value, at place `at` among those of the block's earlier rows. */
template <typename T>
__device__ __forceinline__ void put(struct four<T> (&rows)[ROWS], const struct four<T> &row,
                                    int32_t at, bool is_mine)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const bool is = is_mine && at / WARPS == i;
        const uint2 now = *(const uint2 *)rows[i].v, next = *(const uint2 *)row.v;
        *(uint2 *)rows[i].v = is ? next : now;
    }
}

/* Collects the row's value, of which each lane has one column, in the lanes that keep four columns
 * of it. */
template <typename T> __device__ __forceinline__ struct four<T> gather_value(float u)
{
    struct four<T> value;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        value.v[e] = from_float<T>(__shfl_sync(0xffffffffu, u, (int)(threadIdx.x & 3) + EACH * e));
    }
    return value;
}

/* dt_of of state.cuh in few instructions */
__device__ __forceinline__ float softplus(const struct decay_law &law, float x)
{
    const float dt = fmaxf(x > 20.0f ? x : __logf(1.0f + __expf(x)), law.dt_min);
    return law.dt_max > 0.0f ? fminf(dt, law.dt_max) : dt;
}

/* opened_by of rows.cuh in few instructions */
__device__ __forceinline__ float opened(const struct rows_params &p, float gate)
{
    const float x = p.gate_scale * gate;
    return gate_factor(p.gate_act, x, __fdividef(1.0f, 1.0f + __expf(-x)));
}

/* Normalises the lane's part of the row's query and key. The key is rounded as it is stored; the
 * scale of the query, q_scale, is left to be applied to sums as well. */
template <typename T>
__device__ __forceinline__ void normalise(const struct few_room<T> &room, float (&q)[EACH],
                                          float (&k)[EACH], struct four<T> &key, float &q_scale,
                                          float &k_scale)
{
    const int32_t lane = threadIdx.x & 31;
    const float4 q4 = *(const float4 *)&room.raw[lane * EACH];
    const float4 k4 = *(const float4 *)&room.raw[KEY + lane * EACH];
    q[0] = q4.x, q[1] = q4.y, q[2] = q4.z, q[3] = q4.w;
    k[0] = k4.x, k[1] = k4.y, k[2] = k4.z, k[3] = k4.w;
    float q_square = 0.0f, k_square = 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        q_square = fmaf(q[e], q[e], q_square);
        k_square = fmaf(k[e], k[e], k_square);
    }
    q_scale = rsqrtf(warp_sum(q_square) + 1e-6f) * rsqrtf((float)KEY);
    k_scale = rsqrtf(warp_sum(k_square) + 1e-6f);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        q[e] *= q_scale;
        key.v[e] = from_float<T>(k[e] * k_scale);
        k[e] = to_float(key.v[e]);
    }
}

/* Processes one row at position pos. If not `real`, it has no effect. */
template <typename T>
__device__ __forceinline__ void run_row(const struct rows_params &p, const struct few_work &w,
                                        struct past<T> &m, struct few_room<T> &room,
                                        const struct fresh<T> &in, int32_t row, bool real)
{
    const struct state_view &s = p.state;
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, of = w.seq.lane;
    const int32_t pos = w.seq.n_past + row, at = pos % BLOCK, column = my_column();
    convolve(m, in, room.raw);
    if (real) {
        keep_inputs(p, w, m, in, pos);
    }
    const float log = -m.rate * softplus(p.law, decay_input(p.law, in.decay, m.dt_bias));
    __syncthreads();
    float q[EACH], k[EACH], q_scale, k_scale;
    struct four<T> key;
    normalise(room, q, k, key, q_scale, k_scale);
    const float g = at > 0 ? room.g[at - 1] + log : log;
    if (real) {
        put(m.key, key, at, at % WARPS == warp);
        if (w.owner && warp == 0) {
            *(uint2 *)(keys_at<T>(s, of, pos, w.key_head) + lane * EACH) = *(uint2 *)key.v;
        }
        if (threadIdx.x == 0) {
            room.g[at] = *decays_at(s, of, pos, w.head) = g;
        }
    }
    make_scores(m, q, k, at, g, room);
    float sum[2 * EACH];
    add_state(m, room, q_scale, k_scale, g, sum);
    __syncthreads();
    add_values(m, room, sum);
    const float mine = fold(sum, 16), other = __shfl_xor_sync(0xffffffffu, mine, 16);
    const float by_k = lane < 16 ? mine : other, by_q = lane < 16 ? other : mine;
    const T kept = from_float<T>(
        __fdividef(room.raw[2 * KEY + column] - by_k, 1.0f + __expf(-to_float(in.beta))));
    const float u = to_float(kept), y = fmaf(room.own, u, by_q);
    const struct four<T> value = gather_value<T>(u);
    float square = lane < 16 ? y * y : 0.0f;
    square = warp_sum(square);
    if (lane == 0) {
        room.squares[warp] = square;
    }
    if (real) {
        put(m.value, value, at, at % STRIDE == lane >> 2);
        if (lane < 16) {
            values_at<T>(s, of, pos, w.head)[column] = kept;
        }
    }
    __syncthreads();
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        squares += room.squares[i];
    }
    const float normed = y * m.norm * rsqrtf(squares / (float)VALUE + p.eps);
    if (real && lane < 16) {
        T *out = (T *)p.out + (w.seq.first_row + row) * p.out_stride + w.head * VALUE;
        out[column] = from_float<T>(normed * opened(p, to_float(in.gate)));
    }
}

/* ---- the end of a block -----------------------------------------------------------------------
 */

/* S += the products of the keys and decayed values of the block's rows [WARPS * i, + WARPS). */
template <typename T>
__device__ __forceinline__ void add_rows(struct past<T> &m, const struct few_room<T> &room,
                                         int32_t i, float last)
{
    const int32_t lane = threadIdx.x & 31;
#pragma unroll 1
    for (int32_t t = 0; t < WARPS; t++) {
        const float decayed = __expf(last - room.g[WARPS * i + t]);
        const struct four<T> u = room.values[t][first_column() / EACH];
        const T *keys = room.keys[t][0].v;
#pragma unroll
        for (int r = 0; r < S_ROWS; r++) {
            const float k = to_float(keys[STRIDE * r + (lane >> 2)]) * decayed;
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                m.s[r][e] = fmaf(k, to_float(u.v[e]), m.s[r][e]);
            }
        }
    }
}

/* The block is full: S moves to the next boundary, and is stored to its record, and to a snapshot
 * if one is due. */
template <typename T>
__device__ static void move_on(const struct rows_params &p, const struct few_work &w,
                               struct past<T> &m, struct few_room<T> &room, int32_t boundary)
{
    const struct state_view &s = p.state;
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float last = room.g[BLOCK - 1], decayed = __expf(last);
#pragma unroll
    for (int r = 0; r < S_ROWS; r++) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            m.s[r][e] *= decayed;
        }
    }
#pragma unroll 1
    for (int32_t i = 0; i < ROWS; i++) {
        struct four<T> key = m.key[0], value = m.value[0];
#pragma unroll
        for (int j = 1; j < ROWS; j++) {
            key = i == j ? m.key[j] : key;
            value = i == j ? m.value[j] : value;
        }
        __syncthreads(); // the room's contents have been read by all threads
        room.keys[warp][lane] = key;
        room.values[lane >> 2][first_column() / EACH] = value;
        __syncthreads();
        add_rows(m, room, i, last);
    }
    char *record = record_of(s, w.seq.lane, boundary);
#pragma unroll 1
    for (int j = 0; j < 2 && record; j++) {
        float *to = (float *)record + (int64_t)w.head * KEY * VALUE + first_column();
        T *tail = (T *)(record + s.s_bytes);
#pragma unroll
        for (int r = 0; r < S_ROWS; r++) {
            *(float4 *)(to + (STRIDE * r + (lane >> 2)) * VALUE) = *(float4 *)m.s[r];
        }
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
#pragma unroll
            for (int t = 0; t < TAPS - 1 && (c > 0 || w.owner); t++) {
                tail[(int64_t)t * s.geometry.conv_width + m.channel[c]] = m.x[c][t];
            }
        }
        record = kept_of(s, p.pass, w.seq.lane, boundary);
    }
    __syncthreads();
}

/* ---- all rows ---------------------------------------------------------------------------------
 */

/* `rehearsed`: the code runs once without inputs, before the wait for the kernel that computes
 * them.
 */
template <typename T>
__device__ __forceinline__ void run_rows(const struct rows_params &p, const struct few_work &w,
                                         struct past<T> &m, struct few_room<T> &room,
                                         bool rehearsed)
{
    struct fresh<T> next = {
    };
#pragma unroll 1
    for (int32_t i = rehearsed ? -1 : 0; i < w.seq.n_rows; i++) {
        if (i == 0) {
            pdl_wait();
            pdl_trigger();
            next = load_fresh(p, w, m, w.seq.first_row);
        }
        const struct fresh<T> in = next;
        if (i >= 0 && i + 1 < w.seq.n_rows) {
            next = load_fresh(p, w, m, w.seq.first_row + i + 1);
        }
        run_row(p, w, m, room, in, max(i, 0), i >= 0);
        if (i >= 0 && (w.seq.n_past + i + 1) % BLOCK == 0) {
            move_on(p, w, m, room, w.seq.n_past + i + 1);
        }
    }
}

template <typename T>
__global__ void __maxnreg__(MOST_REGISTERS) state_few_kernel(struct rows_params p)
{
    enum { MOST_REHEARSED = 160 }; // with more blocks, some start too late for it
    __shared__ struct few_room<T> room;
    const int32_t per_key = p.state.geometry.n_heads / p.state.geometry.n_key_heads;
    const int32_t n_seqs = p.pass.counts->n_seqs, head = blockIdx.x;
    const bool rehearsed = n_seqs * (int32_t)gridDim.x <= MOST_REHEARSED;
    struct past<T> m;
    for (int32_t i = blockIdx.y; i < n_seqs; i += gridDim.y) {
        const struct few_work w = {p.pass.seqs[i], head, head / per_key, head % per_key == 0};
        if (w.seq.n_rows > 0) {
            load_layer(p, w, m);
            load_past(p, w, m, room.g);
            __syncthreads();
            run_rows(p, w, m, room, rehearsed && i == (int32_t)blockIdx.y);
            __syncthreads();
        }
    }
    pdl_wait();
    pdl_trigger();
}

template <typename T>
static cudaError_t launch_few(cudaStream_t stream, const struct state_rows_launch *l)
{
    return launch(state_few_kernel<T>, dim3(l->state.geometry.n_heads, l->n_seqs), dim3(THREADS), 0,
                  stream, rows_params_of(l));
}

extern "C" bool k_state_few_takes(const struct state_rows_launch *l)
{
    enum { MOST_BLOCKS = 264 }; // with more, rows.cu runs two on a multiprocessor
    const struct state_layer *g = &l->state.geometry;
    const struct gate_args *gate = l->gate;
    const bool shape = g->kind == STATE_DELTA && !g->per_channel && g->key_dim == KEY &&
                       g->value_dim == VALUE && g->conv_kernel == TAPS && l->state.block == BLOCK;
    const bool ops = l->conv && l->conv->silu && gate && l->vectors.norm && !gate->gate_first &&
                     !gate->per_group && !l->vectors.skip && l->a->decay_bound == 0.0f;
    return shape && ops && l->state.dtype != DT_F32 && launch_sm() >= 90 &&
           l->n_seqs * g->n_heads <= MOST_BLOCKS;
}

extern "C" cudaError_t k_state_few(cudaStream_t stream, const struct state_rows_launch *l)
{
    return l->state.dtype == DT_BF16 ? launch_few<bf16_t>(stream, l) : launch_few<f16_t>(stream, l);
}
