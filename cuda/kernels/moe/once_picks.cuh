// SPDX-License-Identifier: Apache-2.0
/* The first parts of once.cu: the rows, and which experts they pick.
 * Thread: device code. */
#ifndef SLUICE_CUDA_MOE_ONCE_PICKS_CUH
#define SLUICE_CUDA_MOE_ONCE_PICKS_CUH

#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/moe/once.cuh"

/* ---- rows --------------------------------------------------------------------------------------
 */

/* Copies the rows to shared memory. */
template <typename T>
__device__ __forceinline__ void load_rows(const struct once_params &p, int32_t n, T *x)
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
                const int32_t at = first + i * THREADS, row = at / per_row;
                v[i].store(x + row * (p.hidden + PAD) + (at - row * per_row) * RUN);
            }
        }
    }
}

/* Elements [at, at + RUN) of rows [first, first + EACH): with the delta added, rounded, to shared
 * memory, and their squares. One block keeps each sum for store_residual. */
template <typename T, int EACH>
__device__ __forceinline__ void add_delta(const struct once_params &p, int32_t first, int32_t n,
                                          int32_t at, T *x, float (&square)[EACH])
{
    const struct once_norm &m = p.norm;
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
            v[i].store(x + row * (p.hidden + PAD) + at);
            if (m.delta && row == (int32_t)blockIdx.x) {
                v[i].store((T *)m.kept + row * p.hidden + at);
            }
        }
    }
}

/* Elements [at, at + RUN) of the norm's weight. */
__device__ __forceinline__ void load_norm_weights(const struct once_params &p, int32_t at,
                                                  float (&weight)[RUN])
{
    float4 low = make_float4(0.0f, 0.0f, 0.0f, 0.0f), high = low;
    if (at < p.hidden) {
        low = *(const float4 *)(p.norm.weight + at);
        high = *(const float4 *)(p.norm.weight + at + 4);
    }
    const float all[RUN] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        weight[e] = all[e];
    }
}

/* The rows of the RMS norm, in shared memory. `weight`: the first RUN that the thread needs. */
template <typename T, int R>
__device__ __forceinline__ void norm_rows(const struct once_params &p, int32_t n, T *x,
                                          float (&weight)[RUN], float (*moments)[MOMENT_ROWS])
{
    enum { EACH = R < MOMENT_ROWS ? R : MOMENT_ROWS };
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
    for (int32_t first = 0; first < n; first += EACH) {
        float square[EACH] = {};
#pragma unroll 1
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
#pragma unroll 1
        for (int32_t i = 0; i < EACH && first + i < n; i++) {
            const float sum = warp_sum(lane < WARPS ? moments[lane][i] : 0.0f);
            const float scale = 1.0f / sqrtf(sum / (float)p.hidden + p.norm.eps);
            T *row = x + (first + i) * (p.hidden + PAD);
#pragma unroll 1
            for (int32_t at = threadIdx.x * RUN; at < p.hidden; at += THREADS * RUN) {
                vec<T> v;
                v.load(row + at);
                if (at != (int32_t)threadIdx.x * RUN) {
                    load_norm_weights(p, at, weight);
                }
#pragma unroll
                for (int e = 0; e < RUN; e++) {
                    v.v[e] = from_float<T>(to_float(v.v[e]) * scale *
                                           (weight[e] + p.norm.weight_offset));
                }
                v.store(row + at);
            }
        }
        __syncthreads();
    }
}

/* The rows with the delta added, once no block reads the old ones any more. */
template <typename T>
__device__ __forceinline__ void store_residual(const struct once_params &p, int32_t n)
{
    const int32_t row = blockIdx.x;
#pragma unroll 1
    for (int32_t at = threadIdx.x * RUN; p.norm.delta && row < n && at < p.hidden;
         at += THREADS * RUN) {
        vec<T> v; // as this thread has stored it
        v.load((const T *)p.norm.kept + row * p.hidden + at);
        v.store((T *)p.x + row * p.x_stride + at);
    }
}

/* ---- scores and picks --------------------------------------------------------------------------
 */

/* Copies the weights of scores [first, first + n) to shared memory, as one group of copies. */
__device__ __forceinline__ void copy_router(const struct once_params &p, int32_t first, int32_t n,
                                            float *to)
{
#pragma unroll 1
    for (int32_t score = first; score < first + n; score++, to += p.hidden) {
        const float *from =
            score < p.route.n_experts ? p.router + (int64_t)score * p.hidden : p.shared_gate;
#pragma unroll 1
        for (int32_t at = threadIdx.x * 4; at < p.hidden; at += THREADS * 4) {
            copy_vector(to + at, from + at);
        }
    }
    copies_end();
}

/* The score and the row that a thread stores. */
__device__ __forceinline__ int32_t own_score()
{
    return threadIdx.x % MOST_OWN;
}

__device__ __forceinline__ int32_t own_row()
{
    return threadIdx.x / MOST_OWN;
}

/* Scores [first, first + n) of all rows, to memory. */
template <typename T, int R>
__device__ __forceinline__ void make_scores(const struct once_params &p, int32_t first, int32_t n,
                                            int32_t n_rows, const T *x, const float *router,
                                            float (*partial)[MOST_OWN][R])
{
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
    for (int32_t score = 0; score < n; score++, router += p.hidden) {
        float sum[R] = {};
#pragma unroll 1
        for (int32_t at = threadIdx.x * 4; at < p.hidden; at += THREADS * 4) {
            const float4 w = *(const float4 *)(router + at); // as this thread has copied it
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r < n_rows) {
                    float v[4];
                    load_4<true>(x + r * (p.hidden + PAD), at, p.hidden, v);
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
    const int32_t score = own_score(), row = own_row(), e = first + score;
    if (score < n && row < n_rows) {
        float sum = p.router_bias && e < p.route.n_experts ? p.router_bias[e] : 0.0f;
#pragma unroll 4
        for (int w = 0; w < WARPS; w++) {
            sum += partial[w][score][row];
        }
        store_word(&p.logits[row * p.n_scores + e], sum == 0.0f ? -0.0f : sum);
    }
}

/* Waits for the scores of all blocks. +0: not there yet. */
template <int R>
__device__ __forceinline__ void take_scores(const struct once_params &p, int32_t n_rows,
                                            struct once_room<R> &room, float *scores)
{
    enum { AHEAD = R < 4 ? R : 4 };
    const int32_t all = n_rows * p.n_scores;
#pragma unroll 1
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
__device__ __forceinline__ void list_picks(const struct once_params &p, const struct pick &mine,
                                           struct once_room<1> &room)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    int32_t place = 0;
#pragma unroll 1
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
template <int R> __device__ __forceinline__ void list_experts(int32_t n, struct once_room<R> &room)
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
__device__ __forceinline__ void make_picks(const struct once_params &p, int32_t n_rows,
                                           struct once_room<R> &room, float *scores)
{
    const int32_t lane = threadIdx.x & 31, row = threadIdx.x >> 5, k = p.route.k;
    struct pick mine = {0, 0.0f};
    if (row < n_rows) {
        float *of_row = scores + row * pick_floats(p.route);
        mine = p.route.n_experts <= 256 && p.route.n_group == 0
                   ? pick_plain(of_row, p.correction, p.expert_scale, p.route)
               : p.route.n_experts <= 256
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

#endif
