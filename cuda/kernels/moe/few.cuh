// SPDX-License-Identifier: Apache-2.0
/* What the kernels of few.cu share.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_CUH

#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/moe/pick.cuh"

enum { RUN = 8, STEP = RUN * 32 }; // elements that a lane, and a warp, load at once

/* A norm before the router; x NULL: none. */
struct few_norm {
    void *x;
    const void *delta;
    const float *weight;
    int64_t x_stride, delta_stride;
    float eps, offset, delta_scale, x_scale;
};

struct few_params {
    struct few_norm norm;
    struct route_params route;
    const float *correction, *expert_scale, *up_bias, *down_bias;
    const int32_t *real; // NULL: all rows are real
    float *logits;       // [n_rows][n_scores]
    int32_t *ids;        // [n_rows][k]
    float *weights;
    const void *route_x, *x; // what the router and the experts read
    const void *gate_up, *down, *shared_gate_up, *shared_down;
    void *act, *y; // act: [n_rows][n_acts]
    int64_t route_stride, x_stride, y_stride;
    int32_t hidden, ffn, shared_ffn, n_scores, n_acts;
    bool gate; // the last score is that of the shared expert's gate
    struct act_shape shape;
};

/* The row of the residual stream with its delta added. */
template <typename T>
__device__ __forceinline__ vec<T> added(const struct few_norm &n, int32_t row, int32_t at)
{
    vec<T> v, d;
    v.load((const T *)n.x + row * n.x_stride + at);
    if (n.delta) {
        d.load((const T *)n.delta + row * n.delta_stride + at);
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            const float f = to_float(v.v[e]) + n.delta_scale * to_float(d.v[e]);
            v.v[e] = from_float<T>(f * n.x_scale);
        }
    }
    return v;
}

__device__ __forceinline__ int32_t n_real(const struct few_params &p)
{
    return p.real ? min(p.route.n_rows, *p.real) : p.route.n_rows;
}

template <typename T>
__device__ __forceinline__ float dot_run(const vec<T> &a, const vec<T> &b, float sum)
{
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        sum = fmaf(to_float(a.v[i]), to_float(b.v[i]), sum);
    }
    return sum;
}

#endif
