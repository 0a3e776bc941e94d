// SPDX-License-Identifier: Apache-2.0
/* The first kernel of few.cu: the router's scores, and the norm before it.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_SCORES_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_SCORES_CUH

#include "cuda/kernels/device/norm.cuh"
#include "cuda/kernels/moe/few.cuh"

enum { SCORE_WARPS = 2, NORM_WARPS = 8 }; // warps per block, without and with a norm

enum { NORM_RUNS = 2 }; // runs of a row that a thread keeps in registers

/* Loads the norm's weights for a run of elements. */
__device__ __forceinline__ void load_norm_weights(const struct few_params &p, int32_t at,
                                                  float (&w)[RUN])
{
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        w[e] = p.norm.weight && at < p.hidden ? p.norm.weight[at + e] + p.norm.offset : 1.0f;
    }
}

template <typename T> __device__ __forceinline__ float add_squares(const vec<T> &v, float sum)
{
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        sum = moment_add(sum, to_float(v.v[e]), false);
    }
    return sum;
}

/* Normalises a run of elements into shared memory. The first block also stores it to memory. */
template <typename T>
__device__ __forceinline__ void norm_run(const struct few_params &p, int32_t row, int32_t at,
                                         vec<T> v, const float (&w)[RUN], float scale, T *h)
{
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        v.v[e] = from_float<T>(normed(to_float(v.v[e]), w[e], 0.0f, 0.0f, scale));
    }
    v.store(h + at);
    if (blockIdx.x == 0) {
        v.store((T *)p.x + row * p.x_stride + at);
    }
}

/* Normalises x plus the row's delta into shared memory. Called by all threads of the block. `up`
 * stores the sum to x, which other blocks still read. `weights` holds those of the thread's first
 * runs. */
template <typename T>
__device__ __forceinline__ void norm_input(const struct few_params &p, int32_t row,
                                           const float (&weights)[NORM_RUNS][RUN], T *h,
                                           float *shared)
{
    const int32_t first = (int32_t)threadIdx.x * RUN, step = (int32_t)blockDim.x * RUN;
    vec<T> v[NORM_RUNS];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        if (first + i * step < p.hidden) {
            v[i] = added<T>(p.norm, row, first + i * step);
        }
    }
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        sum = first + i * step < p.hidden ? add_squares(v[i], sum) : sum;
    }
#pragma unroll 1
    for (int32_t at = first + NORM_RUNS * step; at < p.hidden; at += step) {
        const vec<T> more = added<T>(p.norm, row, at);
        more.store(h + at);
        sum = add_squares(more, sum);
    }
    const float scale = 1.0f / sqrtf(block_sum(sum, shared) / (float)p.hidden + p.norm.eps);
#pragma unroll
    for (int i = 0; i < NORM_RUNS; i++) {
        if (first + i * step < p.hidden) {
            norm_run(p, row, first + i * step, v[i], weights[i], scale, h);
        }
    }
#pragma unroll 1
    for (int32_t at = first + NORM_RUNS * step; at < p.hidden; at += step) {
        vec<T> more; // stored by this thread
        float w[RUN];
        more.load(h + at);
        load_norm_weights(p, at, w);
        norm_run(p, row, at, more, w, scale, h);
    }
    __syncthreads();
}

/* A warp sums a row's products with SPAN elements of an expert's row, or with half of a wider row.
 * It loads these weights into registers before the wait. */
enum { AHEAD = 16, LANE = 4, SCORE_STEP = 32 * LANE, SPAN = AHEAD * SCORE_STEP };

template <typename T>
__device__ __forceinline__ float score_part(const T *x, const float4 (&ahead)[AHEAD],
                                            const float *w, int32_t half, int32_t halves, int32_t n)
{
    const int32_t first = half * SPAN + (threadIdx.x & 31) * LANE;
    float sum = 0.0f, xs[LANE], ws[LANE];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (first + i * SCORE_STEP < n) {
            load_4<true>(x, first + i * SCORE_STEP, n, xs);
            sum = fmaf(xs[0], ahead[i].x, sum);
            sum = fmaf(xs[1], ahead[i].y, sum);
            sum = fmaf(xs[2], ahead[i].z, sum);
            sum = fmaf(xs[3], ahead[i].w, sum);
        }
    }
    for (int32_t at = first + halves * SPAN - half * (SPAN - SCORE_STEP); at < n;
         at += halves * SCORE_STEP) {
        load_4<true>(x, at, n, xs);
        load_4<true>(w, at, n, ws);
#pragma unroll
        for (int j = 0; j < LANE; j++) {
            sum = fmaf(xs[j], ws[j], sum);
        }
    }
    return warp_sum(sum);
}

/* HALVES: the number of warps that share an expert. If it is 1, and there is no norm, the sums are
 * those of route_scores_kernel. */
template <typename T, int HALVES, bool NORM>
__global__ void __launch_bounds__(32 * (NORM ? NORM_WARPS : SCORE_WARPS))
    few_scores_kernel(struct few_params p, const float *router, const float *bias,
                      const float *gate)
{
    enum { WARPS = NORM ? NORM_WARPS : SCORE_WARPS, EXPERTS = WARPS / HALVES };
    extern __shared__ __align__(16) float memory[]; // the normed row
    __shared__ float shared[32], parts[WARPS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, half = warp % HALVES;
    const int e = blockIdx.x * EXPERTS + warp / HALVES;
    pdl_trigger(); // `up` fetches its code meanwhile, and waits for all of this kernel
    const bool is = e < p.n_scores, is_gate = e == p.route.n_experts;
    const float *w = is_gate ? gate : router + (int64_t)e * p.hidden;
    float4 ahead[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        const int at = half * SPAN + i * SCORE_STEP + lane * LANE;
        ahead[i] = is && at < p.hidden ? *(const float4 *)(w + at) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
    float weights[NORM_RUNS][RUN];
#pragma unroll
    for (int i = 0; i < NORM_RUNS && NORM; i++) {
        load_norm_weights(p, (int32_t)(threadIdx.x + i * blockDim.x) * RUN, weights[i]);
    }
    pdl_wait();
    const int32_t n_rows = n_real(p);
    for (int32_t row = blockIdx.y; row < n_rows; row += gridDim.y) {
        const T *x = (const T *)p.route_x + row * p.route_stride;
        if (NORM) {
            norm_input(p, row, weights, (T *)memory, shared);
            x = (const T *)memory;
        }
        float sum = is ? score_part(x, ahead, w, half, HALVES, p.hidden) : 0.0f;
        if (HALVES == 2) {
            parts[warp] = sum;
            __syncthreads();
            sum = parts[warp & ~1] + parts[warp | 1];
        }
        if (is && half == 0 && lane == 0) {
            p.logits[row * p.n_scores + e] = sum + (bias && !is_gate ? bias[e] : 0.0f);
        }
        if (NORM || HALVES == 2) {
            __syncthreads(); // before the next row overwrites this one's
        }
    }
}

#endif
