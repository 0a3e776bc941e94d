// SPDX-License-Identifier: Apache-2.0
/* A router's scores of some hundred rows, split as in scores.cu, except in deterministic mode. A
 * block computes ROWS rows by EXPERTS experts, and each of its warps a part of K, without waiting
 * for other warps. A lane loads 16 bytes of a row or of an expert at a time, straight into operands
 * of mma: the order of columns within a step is the same for both, and it does not matter which
 * one. At the end the warps' sums are added in order. Bound by reading the L2 cache, and by
 * latency.
 */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/moe/scores.cuh"

enum { ROWS = 64, EXPERTS = 32, STEP = 32, WARPS = 8, THREADS = WARPS * 32 };
enum { MF = ROWS / 16, NF = EXPERTS / 8, LD = EXPERTS + 8, SUMS = ROWS * LD };

/* Where a lane's rows and experts begin. Rows and experts that do not exist are others, whose
 * results are not stored. */
struct lane_addresses {
    const bf16_t *x[MF][2];
    const float *w[NF];
};

__device__ __forceinline__ static struct lane_addresses addresses_of(const struct scores_params &p)
{
    const int32_t nth = threadIdx.x >> 2 & 7, column = (threadIdx.x & 3) * 8;
    struct lane_addresses a;
#pragma unroll
    for (int i = 0; i < 2 * MF; i++) {
        const int32_t row = min((int32_t)blockIdx.x * ROWS + i * 8 + nth, p.n_rows - 1);
        a.x[i / 2][i % 2] = p.x + row * p.x_stride + column;
    }
#pragma unroll
    for (int n = 0; n < NF; n++) {
        const int32_t expert = min((int32_t)blockIdx.y * EXPERTS + n * 8 + nth, p.n_experts - 1);
        a.w[n] = p.router + (int64_t)expert * p.hidden + column;
    }
    return a;
}

/* A lane's elements of STEP columns. */
struct step {
    uint4 x[MF][2];
    float4 w[NF][2];
};

/* is: the lane's columns exist */
__device__ __forceinline__ static void load_router(struct step &s, const struct lane_addresses &a,
                                                   int32_t k, bool is)
{
#pragma unroll
    for (int i = 0; i < 2 * NF; i++) {
        s.w[i / 2][i % 2] = is ? *(const float4 *)(a.w[i / 2] + k + i % 2 * 4)
                               : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

__device__ __forceinline__ static void load_x(struct step &s, const struct lane_addresses &a,
                                              int32_t k, bool is)
{
#pragma unroll
    for (int i = 0; i < 2 * MF; i++) {
        s.x[i / 2][i % 2] = is ? *(const uint4 *)(a.x[i / 2][i % 2] + k) : make_uint4(0, 0, 0, 0);
    }
}

/* Adds the products of 16 of a step's columns, of small terms first. */
__device__ __forceinline__ static void
multiply(float (&sum)[MF][NF][4], const uint32_t (&rows)[MF][4], const float4 (&w)[NF])
{
    uint32_t first[NF][2];
    float2 left[NF][2];
    bool has_more = false;
#pragma unroll
    for (int i = 0; i < 2 * NF; i++) {
        const int n = i / 2, half = i % 2;
        left[n][half] = half ? make_float2(w[n].z, w[n].w) : make_float2(w[n].x, w[n].y);
        first[n][half] = next_term(left[n][half]);
        has_more |= left[n][half].x != 0.0f || left[n][half].y != 0.0f;
    }
    if (__any_sync(0xffffffffu, has_more)) {
#pragma unroll
        for (int n = 0; n < NF; n++) {
            const uint32_t second[2] = {next_term(left[n][0]), next_term(left[n][1])};
            const uint32_t third[2] = {next_term(left[n][0]), next_term(left[n][1])};
#pragma unroll
            for (int m = 0; m < MF; m++) {
                mma_16x8x16(sum[m][n], rows[m], third[0], third[1], bf16_t());
                mma_16x8x16(sum[m][n], rows[m], second[0], second[1], bf16_t());
            }
        }
    }
#pragma unroll
    for (int n = 0; n < NF; n++) {
#pragma unroll
        for (int m = 0; m < MF; m++) {
            mma_16x8x16(sum[m][n], rows[m], first[n][0], first[n][1], bf16_t());
        }
    }
}

__device__ __forceinline__ static void multiply_step(float (&sum)[MF][NF][4], const struct step &s)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t rows[MF][4];
        float4 w[NF];
#pragma unroll
        for (int m = 0; m < MF; m++) {
            const uint4 a = s.x[m][0], b = s.x[m][1];
            rows[m][0] = half ? a.z : a.x;
            rows[m][1] = half ? b.z : b.x;
            rows[m][2] = half ? a.w : a.y;
            rows[m][3] = half ? b.w : b.y;
        }
#pragma unroll
        for (int n = 0; n < NF; n++) {
            w[n] = s.w[n][half];
        }
        multiply(sum, rows, w);
    }
}

/* Adds the warps' sums, and stores the scores. */
__device__ __forceinline__ static void store_scores(const struct scores_params &p,
                                                    const float (&sum)[MF][NF][4], float *sums)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int i = 0; i < MF * NF * 2; i++) { // pairs of experts
        const int m = i / (2 * NF), n = i / 2 % NF, half = i % 2;
        *(float2 *)&sums[warp * SUMS + (m * 16 + half * 8 + (lane >> 2)) * LD + n * 8 +
                         (lane & 3) * 2] =
            make_float2(sum[m][n][half * 2], sum[m][n][half * 2 + 1]);
    }
    __syncthreads();
    const int32_t e = (int32_t)blockIdx.y * EXPERTS + lane;
    const float bias = p.bias && e < p.n_experts ? p.bias[e] : 0.0f;
#pragma unroll 2
    for (int r = warp; r < ROWS; r += WARPS) {
        const int32_t row = (int32_t)blockIdx.x * ROWS + r;
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            total += sums[i * SUMS + r * LD + lane];
        }
        if (row < p.n_rows && e < p.n_experts) {
            p.logits[(int64_t)row * p.n_experts + e] = total + bias;
        }
    }
}

__global__ void __launch_bounds__(THREADS, 1) route_some_kernel(struct scores_params p)
{
    extern __shared__ __align__(16) float sums[]; // [WARPS][ROWS][LD]
    const int32_t n_steps = (p.hidden + STEP - 1) / STEP, each = (n_steps + WARPS - 1) / WARPS;
    const int32_t first = (int32_t)(threadIdx.x >> 5) * each * STEP;
    const int32_t last = min(first + each * STEP, p.hidden), column = (threadIdx.x & 3) * 8;
    const struct lane_addresses a = addresses_of(p);
    float sum[MF][NF][4] = {};
    struct step now, next;
    load_router(now, a, first, first + column < last);
    pdl_wait();
    pdl_trigger();
    load_x(now, a, first, first + column < last);
#pragma unroll 1
    for (int32_t k = first; k < last; k += STEP) {
        const bool is = k + STEP + column < last;
        load_router(next, a, k + STEP, is);
        load_x(next, a, k + STEP, is);
        multiply_step(sum, now);
        now = next;
    }
    store_scores(p, sum, sums);
}

cudaError_t k_moe_scores_some(cudaStream_t stream, const struct scores_params &p)
{
    const size_t n_bytes = (size_t)WARPS * SUMS * sizeof(float);
    const cudaError_t e = cudaFuncSetAttribute(
        route_some_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    const dim3 grid((p.n_rows + ROWS - 1) / ROWS, (p.n_experts + EXPERTS - 1) / EXPERTS);
    return e != cudaSuccess ? e
                            : launch(route_some_kernel, grid, dim3(THREADS), n_bytes, stream, p);
}
