// SPDX-License-Identifier: Apache-2.0
/* The first kernel of few.cu: the router's scores, and the norm before it.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_SCORES_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_SCORES_CUH

#include "cuda/kernels/device/norm.cuh"
#include "cuda/kernels/moe/few.cuh"

enum { SCORE_WARPS = 2, NORM_WARPS = 8 }; // of a block, without and with a norm

/* Adds a row's delta to x and norms the sum, by all threads of the block, into shared memory. The
 * first block stores the result as well. x itself is still read by other blocks: `up` stores it. */
template <typename T>
__device__ __forceinline__ void norm_input(const struct few_params &p, int32_t row, T *h,
                                           float *shared)
{
    const struct few_norm &n = p.norm;
    float sum = 0.0f;
#pragma unroll 2
    for (int32_t at = (int32_t)threadIdx.x * RUN; at < p.hidden; at += (int32_t)blockDim.x * RUN) {
        const vec<T> v = added<T>(n, row, at);
        v.store(h + at);
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            sum = moment_add(sum, to_float(v.v[e]), false);
        }
    }
    const float scale = 1.0f / sqrtf(block_sum(sum, shared) / (float)p.hidden + n.eps);
#pragma unroll 2
    for (int32_t at = (int32_t)threadIdx.x * RUN; at < p.hidden; at += (int32_t)blockDim.x * RUN) {
        vec<T> v; // this thread has stored it
        v.load(h + at);
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            const float w = n.weight ? n.weight[at + e] + n.offset : 1.0f;
            v.v[e] = from_float<T>(normed(to_float(v.v[e]), w, 0.0f, 0.0f, scale));
        }
        v.store(h + at);
        if (blockIdx.x == 0) {
            v.store((T *)p.x + row * p.x_stride + at);
        }
    }
    __syncthreads();
}

/* A warp sums a row's products with SPAN elements of an expert's row, or with half of a wider one:
 * those weights are in registers before the wait. */
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

/* HALVES: warps that share an expert. Without a norm a row's sums are those of
 * route_scores_kernel, unless they are shared. */
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
    pdl_wait();
    const int32_t n_rows = n_real(p);
    for (int32_t row = blockIdx.y; row < n_rows; row += gridDim.y) {
        const T *x = (const T *)p.route_x + row * p.route_stride;
        if (NORM) {
            norm_input(p, row, (T *)memory, shared);
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
