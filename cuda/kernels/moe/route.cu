// SPDX-License-Identifier: Apache-2.0
/* The router of a mixture of experts: each row's scores, and its picks. A warp computes the scores
 * of a few rows and experts; another kernel makes the picks, one warp per row. With few rows, the
 * scores are bound by reading the router's weight, and the picks by latency.
 * Thread: the rank's owner. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/moe/pick.cuh"

/* A warp computes the scores of R rows for E experts. Lane l sums elements 4 l .. 4 l + 3 of every
 * 128, then a butterfly adds the lanes' sums, so the bits are the same for every R and E. With few
 * rows the first weights are loaded before the wait. */
template <typename T, typename W, int R, int E, bool VECTORS>
__global__ void route_scores_kernel(const T *x, int64_t x_stride, const W *router,
                                    const float *bias, float *logits, int32_t n_rows,
                                    int32_t n_experts, int32_t hidden)
{
    constexpr int AHEAD = R * E == 1 ? 16 : 0;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int r0 = blockIdx.x * R, e0 = (blockIdx.y * (blockDim.x >> 5) + warp) * E;
    float ahead[AHEAD + 1][4];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int i = k * 128 + lane * 4;
        if (i < hidden && e0 < n_experts) {
            load_4<VECTORS>(router + (int64_t)e0 * hidden, i, hidden, ahead[k]);
        }
    }
    pdl_wait();
    pdl_trigger();
    if (e0 >= n_experts) {
        return;
    }
    float sum[R][E] = {};
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int i = k * 128 + lane * 4;
        float xs[4];
        if (i < hidden) {
            load_4<VECTORS>(x + (int64_t)r0 * x_stride, i, hidden, xs);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum[0][0] = fmaf(xs[j], ahead[k][j], sum[0][0]);
            }
        }
    }
#pragma unroll(R *E == 1 ? 8 : 1)
    for (int i = AHEAD * 128 + lane * 4; i < hidden; i += 128) {
        float xs[R][4], ws[4];
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int row = r0 + r < n_rows ? r0 + r : n_rows - 1;
            load_4<VECTORS>(x + row * x_stride, i, hidden, xs[r]);
        }
#pragma unroll
        for (int e = 0; e < E; e++) {
            const int expert = e0 + e < n_experts ? e0 + e : n_experts - 1;
            load_4<VECTORS>(router + (int64_t)expert * hidden, i, hidden, ws);
#pragma unroll
            for (int r = 0; r < R; r++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    sum[r][e] = fmaf(xs[r][j], ws[j], sum[r][e]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float s = warp_sum(sum[r][e]);
            if (lane == 0 && r0 + r < n_rows && e0 + e < n_experts) {
                logits[(int64_t)(r0 + r) * n_experts + e0 + e] = s + (bias ? bias[e0 + e] : 0.0f);
            }
        }
    }
}

enum {
    PICK_WARPS = 4,    // per block
    ROWS_AT_ONCE = 16, // on a multiprocessor, if there are no more rows
};

/* One warp per row. It triggers first, so that the sort fetches its code meanwhile. */
template <int EACH>
__global__ void route_pick_kernel(const float *logits, const float *correction,
                                  const float *expert_scale, int32_t *ids, float *weights,
                                  struct route_params p)
{
    extern __shared__ float scores[]; // [warps][pick_floats]
    pdl_trigger();
    pdl_wait();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t row = (int64_t)blockIdx.x * PICK_WARPS + warp;
    if (row >= p.n_rows) {
        return;
    }
    const struct pick mine = pick_row<EACH>(logits + row * p.n_experts, correction, expert_scale, p,
                                            scores + warp * pick_floats(p));
    if (lane < p.k) {
        ids[row * p.k + lane] = mine.id;
        weights[row * p.k + lane] = mine.weight;
    }
}

template <typename T, typename W, int R, int E, bool VECTORS>
static cudaError_t route_scores_as(cudaStream_t stream, const struct moe_route_args *a,
                                   const void *router, const float *bias, int32_t hidden,
                                   float *logits)
{
    const int warps = 8;
    return launch(route_scores_kernel<T, W, R, E, VECTORS>,
                  dim3((a->n_rows + R - 1) / R, (a->n_experts + warps * E - 1) / (warps * E)),
                  dim3(32 * warps), 0, stream, (const T *)a->x.mem.p, (int64_t)a->x.stride,
                  (const W *)router, bias, logits, a->n_rows, a->n_experts, hidden);
}

template <typename T, typename W>
static cudaError_t route_scores(cudaStream_t stream, const struct moe_route_args *a,
                                const void *router, const float *bias, int32_t hidden,
                                float *logits)
{
    const bool vectors = hidden % 4 == 0 && a->x.stride % 4 == 0 && (uintptr_t)a->x.mem.p % 16 == 0;
    if (!vectors) {
        return route_scores_as<T, W, 1, 1, false>(stream, a, router, bias, hidden, logits);
    }
    return a->n_rows <= 32
               ? route_scores_as<T, W, 1, 1, true>(stream, a, router, bias, hidden, logits)
               : route_scores_as<T, W, 8, 4, true>(stream, a, router, bias, hidden, logits);
}

extern "C" cudaError_t k_moe_route_scores(cudaStream_t stream, const struct moe_route_args *a,
                                          const void *router, enum dtype router_dtype,
                                          const float *bias, int32_t hidden, float *logits)
{
    BY_DTYPE(a->x.dtype, T,
             BY_DTYPE(router_dtype, W,
                      return route_scores<T, W>(stream, a, router, bias, hidden, logits)));
    return cudaErrorInvalidValue;
}

/* Blocks start as those of the scores end, and the first multiprocessors that are free would take
 * most of the rows. So if there are few, a block asks for more shared memory than it needs. */
template <int EACH>
static cudaError_t route_picks(cudaStream_t stream, const struct moe_route_args *a,
                               const float *correction, const float *expert_scale,
                               const float *logits)
{
    enum { SHARED = 228 * 1024 / (ROWS_AT_ONCE / PICK_WARPS) - 1024 }; // 1024: for the system
    const struct route_params p = route_params_of(a);
    const auto kernel = route_pick_kernel<EACH>;
    size_t n_bytes = PICK_WARPS * pick_floats(p) * sizeof(float);
    if (launch_sm() == 90 && a->n_rows <= ROWS_AT_ONCE * n_multiprocessors() && n_bytes < SHARED) {
        n_bytes = SHARED;
    }
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((a->n_rows + PICK_WARPS - 1) / PICK_WARPS),
                                     dim3(32 * PICK_WARPS), n_bytes, stream, logits, correction,
                                     expert_scale, (int32_t *)a->ids.p, (float *)a->weights.p, p);
}

extern "C" cudaError_t k_moe_route(cudaStream_t stream, const struct moe_route_args *a,
                                   const void *router, enum dtype router_dtype, const float *bias,
                                   const float *correction, const float *expert_scale,
                                   int32_t hidden, float *logits, bool has_scores)
{
    cudaError_t e = cudaSuccess;
    if (!has_scores) {
        e = k_moe_route_scores(stream, a, router, router_dtype, bias, hidden, logits);
    }
    if (e != cudaSuccess) {
        return e;
    }
    return a->n_experts <= 256   ? route_picks<8>(stream, a, correction, expert_scale, logits)
           : a->n_experts <= 512 ? route_picks<16>(stream, a, correction, expert_scale, logits)
                                 : route_picks<32>(stream, a, correction, expert_scale, logits);
}
