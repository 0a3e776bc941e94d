// SPDX-License-Identifier: Apache-2.0
/* A mixture of experts for few rows in one launch: the norm before it, the router, the picked
 * experts, and the shared expert beside them.
 *
 * There is one block to a multiprocessor, and all of them run at once, because they wait for each
 * other twice:
 *
 *   scores  each block norms all rows itself, and computes the scores of its share of the experts.
 *           They travel through memory; a word that is not there yet is 0, which no score is.
 *   up      each block makes all picks itself, which takes less time than another exchange, and
 *           computes its share of the features of gate and up of every expert that a row picked. A
 *           barrier of all blocks follows.
 *   down    each block computes its share of the output features: the sum over the picked experts
 *           in order of their ids, then the shared one. So nothing is left to join.
 *
 * A feature belongs to a warp, and all weights that a warp reads form one stream of rows. Each lane
 * copies its part of a row to a ring in shared memory, up to DEPTH steps before it reads it there,
 * and across the barrier. So memory is read without a pause from the picks to the end, and the
 * weights of the shared expert even before the preceding kernel has ended. Bound by reading the
 * weights: those of an expert once for all rows that picked it. A row's bits do not depend on the
 * other rows, but differ from those of moe.cu. */
#include "cuda/kernels/device/activation.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/moe/few.cuh"

/* ---- rows --------------------------------------------------------------------------------------
 */

/* Copies the rows to shared memory. */
template <typename T>
__device__ __forceinline__ void load_rows(const struct few_params &p, int32_t n, T *x)
{
    enum { AHEAD = 4 };
    const int32_t per_row = p.hidden / RUN, all = n * per_row;
    for (int32_t first = threadIdx.x; first < all; first += AHEAD * THREADS) {
        vec<T> v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int32_t at = first + i * THREADS, row = at / per_row;
            if (at < all) {
                v[i].load((const T *)p.x + row * p.x_stride + (at - row * per_row) * RUN);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (first + i * THREADS < all) {
                v[i].store(x + (first + i * THREADS) * RUN);
            }
        }
    }
}

/* Elements [at, at + RUN) of rows [first, first + EACH): with the delta added, rounded, to shared
 * memory, and their squares. One block keeps each sum for store_residual. */
template <typename T, int EACH>
__device__ __forceinline__ void add_delta(const struct few_params &p, int32_t first, int32_t n,
                                          int32_t at, T *x, float (&square)[EACH])
{
    const struct few_norm &m = p.norm;
    vec<T> v[EACH], d[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (first + i < n) {
            v[i].load((const T *)p.x + (first + i) * p.x_stride + at);
        }
        if (first + i < n && m.delta) {
            d[i].load((const T *)m.delta + (first + i) * m.delta_stride + at);
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int32_t row = first + i;
        if (row < n) {
#pragma unroll
            for (int e = 0; e < RUN && m.delta; e++) {
                const float f = to_float(v[i].v[e]) + m.delta_scale * to_float(d[i].v[e]);
                v[i].v[e] = from_float<T>(f * m.x_scale);
            }
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                square[i] = fmaf(to_float(v[i].v[e]), to_float(v[i].v[e]), square[i]);
            }
            v[i].store(x + row * p.hidden + at);
            if (m.delta && row == (int32_t)blockIdx.x) {
                v[i].store((T *)m.kept + row * p.hidden + at);
            }
        }
    }
}

/* The rows of the RMS norm, in shared memory. `weight`: the first RUN that the thread needs. */
template <typename T, int R>
__device__ __forceinline__ void norm_rows(const struct few_params &p, int32_t n, T *x,
                                          float (&weight)[RUN], float (*moments)[MOMENT_ROWS])
{
    enum { EACH = R < MOMENT_ROWS ? R : MOMENT_ROWS };
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int32_t first = 0; first < n; first += EACH) {
        float square[EACH] = {};
        for (int32_t at = threadIdx.x * RUN; at < p.hidden; at += THREADS * RUN) {
            add_delta<T, EACH>(p, first, n, at, x, square);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            square[i] = warp_sum(square[i]);
            if (lane == 0) {
                moments[warp][i] = square[i];
            }
        }
        __syncthreads();
        for (int32_t i = 0; i < EACH && first + i < n; i++) {
            const float sum = warp_sum(lane < WARPS ? moments[lane][i] : 0.0f);
            const float scale = 1.0f / sqrtf(sum / (float)p.hidden + p.norm.eps);
            T *row = x + (first + i) * p.hidden;
            for (int32_t at = threadIdx.x * RUN; at < p.hidden; at += THREADS * RUN) {
                vec<T> v;
                v.load(row + at);
                const bool is_first = at == (int32_t)threadIdx.x * RUN;
#pragma unroll
                for (int e = 0; e < RUN; e++) {
                    const float w = is_first ? weight[e] : norm_weight(p.norm, at + e);
                    v.v[e] = from_float<T>(to_float(v.v[e]) * scale * w);
                }
                v.store(row + at);
            }
        }
        __syncthreads();
    }
}

/* The rows with the delta added, once no block reads the old ones any more. */
template <typename T>
__device__ __forceinline__ void store_residual(const struct few_params &p, int32_t n)
{
    const int32_t row = blockIdx.x;
    for (int32_t at = threadIdx.x * RUN; p.norm.delta && row < n && at < p.hidden;
         at += THREADS * RUN) {
        vec<T> v; // as this thread has stored it
        v.load((const T *)p.norm.kept + row * p.hidden + at);
        v.store((T *)p.x + row * p.x_stride + at);
    }
}

/* ---- scores and picks --------------------------------------------------------------------------
 */

/* The router's weights for the thread's part of the block's first scores. */
struct router_ahead {
    float4 a, b, c, d;
};

/* Four weights of the block's score number i / n_runs. */
__device__ __forceinline__ float4 router_run(const struct few_params &p, int32_t first, int32_t n,
                                             int32_t n_runs, int32_t i)
{
    const int32_t score = first + i / n_runs, at = (i % n_runs * THREADS + threadIdx.x) * 4;
    if (i >= n * n_runs || at >= p.hidden) {
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    const float *w =
        score < p.route.n_experts ? p.router + (int64_t)score * p.hidden : p.shared_gate;
    return *(const float4 *)(w + at);
}

/* Scores [first, first + n) of all rows, to memory. */
template <typename T, int R>
__device__ __forceinline__ void make_scores(const struct few_params &p, int32_t first, int32_t n,
                                            int32_t n_rows, const T *x,
                                            const struct router_ahead &ahead,
                                            float (*partial)[MOST_OWN][R])
{
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int32_t n_runs = (p.hidden + 4 * THREADS - 1) / (4 * THREADS);
    for (int32_t score = 0, i = 0; score < n; score++) {
        float sum[R] = {};
        for (int32_t run = 0; run < n_runs; run++, i++) {
            const float4 w = i == 0   ? ahead.a
                             : i == 1 ? ahead.b
                             : i == 2 ? ahead.c
                             : i == 3 ? ahead.d
                                      : router_run(p, first, n, n_runs, i);
            const int32_t at = (run * THREADS + threadIdx.x) * 4;
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r < n_rows && at < p.hidden) {
                    float v[4];
                    load_4<true>(x + r * p.hidden, at, p.hidden, v);
                    sum[r] = fmaf(v[0], w.x, sum[r]);
                    sum[r] = fmaf(v[1], w.y, sum[r]);
                    sum[r] = fmaf(v[2], w.z, sum[r]);
                    sum[r] = fmaf(v[3], w.w, sum[r]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            sum[r] = warp_sum(sum[r]);
            if (lane == 0) {
                partial[warp][score][r] = sum[r];
            }
        }
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n * n_rows; i += THREADS) {
        const int32_t score = i / n_rows, row = i - score * n_rows, e = first + score;
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            sum += partial[w][score][row];
        }
        sum += p.router_bias && e < p.route.n_experts ? p.router_bias[e] : 0.0f;
        store_word(&p.logits[row * p.n_scores + e], sum == 0.0f ? -0.0f : sum);
    }
}

/* Waits for the scores of all blocks. +0: not there yet. */
template <int R>
__device__ __forceinline__ void take_scores(const struct few_params &p, int32_t n_rows,
                                            struct few_room<R> &room, float *scores)
{
    enum { AHEAD = R < 4 ? R : 4 };
    const int32_t all = n_rows * p.n_scores;
    for (int32_t first = threadIdx.x; first < all; first += AHEAD * THREADS) {
        float word[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            word[i] = load_word(&p.logits[min(first + i * THREADS, all - 1)]);
        }
#pragma unroll
        for (int i = 0; i < AHEAD && first + i * THREADS < all; i++) {
            const int32_t at = first + i * THREADS, row = at / p.n_scores;
            while (__float_as_uint(word[i]) == 0) {
                word[i] = load_word(&p.logits[at]);
            }
            if (at - row * p.n_scores < p.route.n_experts) {
                scores[row * pick_floats(p.route) + at - row * p.n_scores] = word[i];
            } else {
                room.open[row] = 1.0f / (1.0f + expf(-word[i]));
            }
        }
    }
}

/* One row: its picks in order of expert, by one warp. */
__device__ __forceinline__ void list_picks(const struct few_params &p, const struct pick &mine,
                                           struct few_room<1> &room)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    int32_t place = 0;
    for (int32_t j = 0; j < k; j++) {
        const int32_t id = __shfl_sync(0xffffffffu, mine.id, j);
        place += id < mine.id || (id == mine.id && j < lane);
    }
    if (lane < k) {
        room.expert[place] = (uint16_t)mine.id;
        room.start[place] = (uint16_t)place;
        room.rows[place] = 1;
        room.weight[place] = mine.weight;
    }
    if (lane == 0) {
        room.n_experts = room.n_slots = k;
    }
}

/* Several rows: the experts that any of them picked, in order, by the first warp. */
template <int R> __device__ __forceinline__ void list_experts(int32_t n, struct few_room<R> &room)
{
    const int32_t lane = threadIdx.x & 31;
    int32_t n_experts = 0, n_slots = 0;
    for (int32_t first = 0; first < n; first += 32) {
        const uint32_t rows = first + lane < n ? room.rows_of[first + lane] : 0;
        const unsigned any = __ballot_sync(0xffffffffu, rows != 0);
        int32_t sum = __popc(rows);
        for (int d = 1; d < 32; d *= 2) {
            const int32_t before = __shfl_up_sync(0xffffffffu, sum, d);
            sum += lane >= d ? before : 0;
        }
        if (rows != 0) {
            const int32_t place = n_experts + __popc(any & (1u << lane) - 1);
            room.expert[place] = (uint16_t)(first + lane);
            room.start[place] = (uint16_t)(n_slots + sum - __popc(rows));
            room.rows[place] = (uint16_t)rows;
            room.place_of[first + lane] = (uint16_t)place;
        }
        n_experts += __popc(any);
        n_slots += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) {
        room.n_experts = n_experts;
        room.n_slots = n_slots;
    }
}

/* A warp for each row makes its picks; the first block stores them. */
template <int R>
__device__ __forceinline__ void make_picks(const struct few_params &p, int32_t n_rows,
                                           struct few_room<R> &room, float *scores)
{
    const int32_t lane = threadIdx.x & 31, row = threadIdx.x >> 5, k = p.route.k;
    struct pick mine = {0, 0.0f};
    if (row < n_rows) {
        float *of_row = scores + row * pick_floats(p.route);
        mine = p.route.n_experts <= 256
                   ? pick_row<8>(of_row, p.correction, p.expert_scale, p.route, of_row)
                   : pick_row<16>(of_row, p.correction, p.expert_scale, p.route, of_row);
        if (lane < k) {
            room.ids[row][lane] = (uint16_t)mine.id;
            room.picked[row][lane] = mine.weight;
        }
        if (lane < k && blockIdx.x == 0) {
            p.ids[row * k + lane] = mine.id;
            p.weights[row * k + lane] = mine.weight;
        }
    }
    if constexpr (R == 1) {
        if (row < n_rows) {
            list_picks(p, mine, room);
        }
        __syncthreads();
    } else {
        if (row < n_rows && lane < k) {
            atomicOr(&room.rows_of[mine.id], 1u << row);
        }
        __syncthreads();
        if (row == 0) {
            list_experts(p.route.n_experts, room);
        }
        __syncthreads();
        if (row < n_rows && lane < k) {
            const int32_t place = room.place_of[mine.id];
            const uint32_t before = room.rows[place] & (1u << row) - 1;
            room.weight[room.start[place] + __popc(before)] = mine.weight;
        }
        __syncthreads();
    }
}

/* ---- products ---------------------------------------------------------------------------------
 */

/* sum[r] += the products of a step of a weight's row with the same elements of the vectors of the
 * rows in `rows`. of(r, i): the vector of row r, which is number i of them. */
template <typename T, int R, typename F>
__device__ __forceinline__ void add_step(const vec<T> (&w)[2], int32_t at, int32_t n, uint32_t rows,
                                         float (&sum)[R], F of)
{
    int32_t i = 0;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (R == 1 || (rows >> r & 1)) {
            const T *v = of(r, i++);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (at + half * HALF < n) {
                    vec<T> x;
                    x.load(v + at + half * HALF);
#pragma unroll
                    for (int e = 0; e < RUN; e++) {
                        sum[r] = fmaf(to_float(x.v[e]), to_float(w[half].v[e]), sum[r]);
                    }
                }
            }
        }
    }
}

/* The sums of one row of a weight. */
template <typename T, int R, int DEPTH, typename F>
__device__ __forceinline__ void add_row(const struct few_params &p, const struct few_room<R> &room,
                                        const struct few_work &w, struct stream<T, DEPTH> &s,
                                        int32_t n, uint32_t rows, float (&sum)[R], F of)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        sum[r] = 0.0f;
    }
#pragma unroll 1
    for (int32_t at = (threadIdx.x & 31) * RUN, first = 0; first < n; first += STEP, at += STEP) {
        vec<T> step[2];
        s.take(step);
        s.fetch(p, room, w);
        add_step(step, at, n, rows, sum, of);
    }
}

/* The block's features of the activations, to memory. */
template <typename T, int R, int DEPTH>
__device__ __forceinline__ void make_up(const struct few_params &p, const struct few_room<R> &room,
                                        const struct few_work &w, struct stream<T, DEPTH> &s,
                                        int32_t n_rows, const T *x)
{
    const int32_t lane = threadIdx.x & 31;
#pragma unroll 1
    for (int32_t i = threadIdx.x >> 5; i < w.n_shared + w.n_up; i += WARPS) {
        const bool routed = i >= w.n_shared;
        const int32_t flat = w.up + i - w.n_shared, place = routed ? flat / p.ffn : 0;
        const int32_t feature = routed ? flat - place * p.ffn : w.shared + i;
        const uint32_t rows = routed ? room.rows[place] : (1u << n_rows) - 1;
        float gate[R], sum[R] = {};
#pragma unroll 1
        for (int part = 0; part < 2; part++) {
#pragma unroll
            for (int r = 0; r < R; r++) {
                gate[r] = sum[r];
            }
            add_row(p, room, w, s, p.hidden, rows, sum,
                    [&](int r, int32_t) { return x + r * p.hidden; });
        }
        const int64_t bias = routed ? ((int64_t)room.expert[place] * 2) * p.ffn + feature : 0;
        T *to = (T *)p.act + (routed ? room.start[place] * p.ffn : room.n_slots * p.ffn) + feature;
        int32_t slot = 0;
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (rows >> r & 1) {
                float g = warp_sum(gate[r]), u = warp_sum(sum[r]);
                if (routed && p.up_bias) {
                    g += p.up_bias[bias];
                    u += p.up_bias[bias + p.ffn];
                }
                if (lane == 0) {
                    to[slot * (routed ? p.ffn : p.shared_ffn)] =
                        from_float<T>(activated(p.kind, g, u, p.shape));
                }
                slot++;
            }
        }
    }
}

/* Copies all activations to shared memory. */
template <typename T, int R>
__device__ __forceinline__ void load_acts(const struct few_params &p,
                                          const struct few_room<R> &room, int32_t n_rows, T *act)
{
    const int32_t n = room.n_slots * p.ffn + n_rows * p.shared_ffn;
#pragma unroll 2
    for (int32_t at = threadIdx.x * RUN; at < n; at += THREADS * RUN) {
        *(uint4 *)(act + at) = __ldcg((const uint4 *)((const T *)p.act + at));
    }
}

/* The block's features of y. */
template <typename T, int R, int DEPTH>
__device__ __forceinline__ void make_down(const struct few_params &p,
                                          const struct few_room<R> &room, const struct few_work &w,
                                          struct stream<T, DEPTH> &s, int32_t n_rows, const T *act)
{
    const int32_t lane = threadIdx.x & 31, n_parts = room.n_experts + (p.shared_ffn > 0);
#pragma unroll 1
    for (int32_t i = threadIdx.x >> 5; i < w.n_out; i += WARPS) {
        const int32_t feature = w.out + i;
        float y[R] = {};
#pragma unroll 1
        for (int32_t part = 0; part < n_parts; part++) {
            const bool routed = part < room.n_experts;
            const int32_t first = routed ? room.start[part] : room.n_slots;
            const int32_t n = routed ? p.ffn : p.shared_ffn;
            const uint32_t rows = routed ? room.rows[part] : (1u << n_rows) - 1;
            const T *vectors = act + first * p.ffn;
            float sum[R];
            add_row(p, room, w, s, n, rows, sum,
                    [&](int, int32_t slot) { return vectors + slot * n; });
            int32_t slot = 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (rows >> r & 1) {
                    y[r] = fmaf(routed ? room.weight[first + slot] : room.open[r], sum[r], y[r]);
                    slot++;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r < n_rows) {
                float sum = warp_sum(y[r]);
                for (int32_t j = 0; p.down_bias && j < p.route.k; j++) {
                    sum = fmaf(room.picked[r][j],
                               p.down_bias[(int64_t)room.ids[r][j] * p.hidden + feature], sum);
                }
                if (lane == 0) {
                    ((T *)p.y)[r * p.y_stride + feature] = from_float<T>(sum);
                }
            }
        }
    }
}

/* ---- the kernel -------------------------------------------------------------------------------
 */

template <typename T, int R, int DEPTH>
__global__ void __maxnreg__(MOST_REGISTERS) moe_few_kernel(struct few_params p)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ struct few_room<R> room;
    T *x = (T *)(memory + ring_bytes(DEPTH)); // later the activations
    float *scores = (float *)(memory + ring_bytes(DEPTH) + rows_bytes(p));
    const int32_t n_rows = n_real(p);
    struct few_work w = work_of(p);
    struct stream<T, DEPTH> s((T *)memory);
    for (int32_t i = threadIdx.x; R > 1 && i < p.route.n_experts; i += THREADS) {
        room.rows_of[i] = 0;
    }
    if (threadIdx.x < R) {
        room.open[threadIdx.x] = 1.0f;
    }
    int32_t n_ahead = 0; // the shared expert's weights need no picks
    for (; n_ahead < DEPTH && s.is_shared(w); n_ahead++) {
        s.fetch(p, room, w);
    }
    const int32_t first = share(p.n_scores, blockIdx.x), own = share(p.n_scores, blockIdx.x + 1);
    const int32_t n_runs = (p.hidden + 4 * THREADS - 1) / (4 * THREADS);
    const struct router_ahead ahead = {router_run(p, first, own - first, n_runs, 0),
                                       router_run(p, first, own - first, n_runs, 1),
                                       router_run(p, first, own - first, n_runs, 2),
                                       router_run(p, first, own - first, n_runs, 3)};
    float norm_weights[RUN];
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        const int32_t at = threadIdx.x * RUN + e;
        norm_weights[e] = p.norm.is && at < p.hidden ? norm_weight(p.norm, at) : 0.0f;
    }
    pdl_wait();
    pdl_trigger();
    if (p.norm.is) {
        norm_rows<T, R>(p, n_rows, x, norm_weights, room.moments);
    } else {
        load_rows(p, n_rows, x);
        __syncthreads();
    }
    make_scores<T, R>(p, first, own - first, n_rows, x, ahead, room.partial);
    take_scores(p, n_rows, room, scores);
    __syncthreads();
    make_picks(p, n_rows, room, scores);
    w.is_picked = true;
    w.up = share(room.n_experts * p.ffn, blockIdx.x);
    w.n_up = share(room.n_experts * p.ffn, blockIdx.x + 1) - w.up;
    for (; n_ahead < DEPTH; n_ahead++) {
        s.fetch(p, room, w);
    }
    make_up(p, room, w, s, n_rows, x);
    await_all(p.arrived);
    for (int32_t i = threadIdx.x; i < (own - first) * n_rows; i += THREADS) {
        p.logits[i % n_rows * p.n_scores + first + i / n_rows] = 0.0f; // for the next launch
    }
    store_residual<T>(p, n_rows);
    load_acts(p, room, n_rows, x);
    __syncthreads();
    make_down(p, room, w, s, n_rows, x);
}

/* ---- launches ---------------------------------------------------------------------------------
 */

/* Shared memory of a block on this device. */
static int32_t most_shared()
{
    static const int32_t most = [] {
        int device = 0, n = 0;
        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&n, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
                cudaSuccess) {
            return 0;
        }
        return n;
    }();
    return most;
}

size_t k_moe_few_lasting(void)
{
    return sizeof(uint32_t) * (4 + MOST_ROWS * (MOST_EXPERTS + 1));
}

static size_t acts_bytes(const struct moe_few *m)
{
    const size_t n = (size_t)m->ffn->n_rows;
    return n * ((size_t)m->ffn->k * (size_t)m->ffn->ffn + (size_t)m->shared_ffn) * sizeof(uint16_t);
}

/* The activations, then the rows that store_residual stores. */
size_t k_moe_few_scratch(const struct moe_few *m)
{
    return acts_bytes(m) +
           (size_t)m->ffn->n_rows * (size_t)m->weights.hidden * sizeof(uint16_t);
}

static struct few_params params_of(const struct moe_few *m, void *scratch, void *lasting)
{
    const struct moe_ffn_args *a = m->ffn;
    const struct norm_args *norm = m->norm;
    struct few_params p = {};
    p.route = route_params_of(m->route);
    p.router = m->router;
    p.router_bias = m->router_bias;
    p.correction = m->correction;
    p.expert_scale = m->expert_scale;
    p.up_bias = m->weights.gate_up_bias;
    p.down_bias = a->partial ? NULL : m->weights.down_bias;
    p.real = m->real;
    p.shared_gate = m->shared_gate;
    p.n_scores = a->n_experts + (m->shared_gate != NULL);
    p.arrived = (uint32_t *)lasting;
    p.logits = (float *)lasting + 4;
    p.act = scratch;
    p.ids = (int32_t *)a->ids.p;
    p.weights = (float *)a->weights.p;
    p.x = norm ? norm->x.mem.p : a->x.mem.p;
    p.x_stride = norm ? norm->x.stride : a->x.stride;
    p.y = a->y.mem.p;
    p.y_stride = a->y.stride;
    p.gate_up = m->weights.gate_up;
    p.down = m->weights.down;
    p.shared_gate_up = m->shared_gate_up;
    p.shared_down = m->shared_down;
    p.hidden = m->weights.hidden;
    p.ffn = a->ffn;
    p.shared_ffn = m->shared_ffn;
    p.kind = a->kind;
    p.shape = a->shape;
    if (norm) {
        p.norm = {true,
                  norm->eps,
                  norm->weight_offset,
                  norm->delta_scale,
                  norm->x_scale != 0.0f ? norm->x_scale : 1.0f,
                  m->norm_weight,
                  norm->delta.mem.p,
                  (char *)scratch + acts_bytes(m),
                  norm->delta.stride};
    }
    return p;
}

template <typename T, int R, int DEPTH>
static bool fits(const struct moe_few *m, int32_t *n_bytes)
{
    const struct few_params p = params_of(m, NULL, NULL);
    const size_t picks = (size_t)m->route->n_rows * (size_t)pick_floats(p.route) * sizeof(float);
    const size_t before = (size_t)rows_bytes(p) + picks, after = acts_bytes(m);
    const size_t all = (size_t)ring_bytes(DEPTH) + (before > after ? before : after);
    *n_bytes = (int32_t)all;
    return m->route->n_rows <= R && all + sizeof(struct few_room<R>) + 1024 <= (size_t)most_shared();
}

/* A kernel for the number of rows, if what it keeps fits shared memory; otherwise the last one,
 * whose ring is short. */
template <typename T>
static bool choose(const struct moe_few *m, void (**kernel)(struct few_params), int32_t *n_bytes)
{
    if (fits<T, 1, 10>(m, n_bytes)) {
        *kernel = moe_few_kernel<T, 1, 10>;
    } else if (fits<T, 4, 10>(m, n_bytes)) {
        *kernel = moe_few_kernel<T, 4, 10>;
    } else {
        *kernel = moe_few_kernel<T, MOST_ROWS, 4>;
        return fits<T, MOST_ROWS, 4>(m, n_bytes);
    }
    return true;
}

static bool chosen(const struct moe_few *m, void (**kernel)(struct few_params), int32_t *n_bytes)
{
    return m->ffn->x.dtype == DT_BF16 ? choose<bf16_t>(m, kernel, n_bytes)
                                      : choose<f16_t>(m, kernel, n_bytes);
}

/* The norm is RMS, of vectors, and its out is what the router and the experts read. */
static bool takes_norm(const struct moe_few *m)
{
    const struct norm_args *n = m->norm;
    const struct moe_ffn_args *a = m->ffn;
    const int32_t hidden = m->weights.hidden;
    return n->kind == NORM_RMS && !n->bias && n->delta_sums.n == 0 && n->width == hidden &&
           n->n_rows == a->n_rows && n->out.mem.p == a->x.mem.p && n->x.mem.p != a->x.mem.p &&
           n->x.dtype == a->x.dtype && (!n->delta.mem.p || n->delta.dtype == a->x.dtype) &&
           vec_ok(n->x.mem.p, n->x.stride, hidden, 2) &&
           (!n->delta.mem.p || vec_ok(n->delta.mem.p, n->delta.stride, hidden, 2));
}

bool k_moe_few_takes(const struct moe_few *m, int32_t n_sms)
{
    const struct moe_route_args *r = m->route;
    const struct moe_ffn_args *a = m->ffn;
    const struct moe_weights *w = &m->weights;
    const bool same = r->n_rows == a->n_rows && r->n_experts == a->n_experts && r->k == a->k &&
                      r->ids.p == a->ids.p && r->weights.p == a->weights.p &&
                      r->x.mem.p == a->x.mem.p && r->x.stride == a->x.stride;
    const bool plain = w->dtype == a->x.dtype && !w->gate_up_coded && !w->down_coded && !a->plain &&
                       !a->weigh_inputs && a->accumulate == (m->shared_ffn > 0);
    const bool runs = w->hidden % RUN == 0 && a->ffn % RUN == 0 && m->shared_ffn % RUN == 0 &&
                      vec_ok(a->x.mem.p, a->x.stride, w->hidden, 2);
    void (*kernel)(struct few_params);
    int32_t n_bytes = 0;
    return a->x.dtype != DT_F32 && a->n_rows <= MOST_ROWS && a->n_experts <= MOST_EXPERTS &&
           a->n_experts < MOST_OWN * n_sms && a->k <= a->n_experts && a->k <= MOE_MAX_K &&
           r->n_group <= 64 && same && plain && runs && (!m->norm || takes_norm(m)) &&
           n_sms >= MOST_ROWS && chosen(m, &kernel, &n_bytes);
}

cudaError_t k_moe_few(cudaStream_t stream, const struct moe_few *m, int32_t n_sms, void *scratch,
                      void *lasting)
{
    void (*kernel)(struct few_params) = NULL;
    int32_t n_bytes = 0;
    if (!chosen(m, &kernel, &n_bytes)) {
        return cudaErrorInvalidValue;
    }
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)n_sms), dim3(THREADS), (size_t)n_bytes,
                                     stream, params_of(m, scratch, lasting));
}
