// SPDX-License-Identifier: Apache-2.0
/* Shared by moe/few.cu and moe/some.cu, which compute all of a mixture for few rows: the parameters
 * of their kernels, and the dot products of 16-bit rows.
 * Thread: device code; k_moe_some the rank's owner. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_CUH

#include "cuda/kernels/device/activation.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/moe/pick.cuh"

enum { RUN = 8, STEP = RUN * 32 }; // elements per load of a lane, and of a warp

/* A norm before the router; x NULL: none. */
struct few_norm {
    void *x;
    const void *delta;
    const float *weight;
    int64_t x_stride, delta_stride;
    float eps, offset, delta_scale, x_scale;
};

static inline struct few_norm few_norm_of(const struct norm_args *n, const float *weight)
{
    return n ? few_norm{n->x.mem.p,       n->delta.mem.p,  weight,
                        n->x.stride,      n->delta.stride, n->eps,
                        n->weight_offset, n->delta_scale,  n->x_scale != 0.0f ? n->x_scale : 1.0f}
             : few_norm{};
}

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
    void *act, *y;     // act: [n_rows][n_acts]
    const void *own_x; // the input and output of an MLP in the shared expert's place, or NULL
    void *own_y;
    int64_t route_stride, x_stride, y_stride;
    int32_t hidden, ffn, shared_ffn, n_scores, n_acts;
    int32_t own_piece; // the first of `down` that is added to own_y; 0: none
    bool gate;         // the last score is that of the shared expert's gate
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

/* Stores that row. The first n_threads of one block call this, in the kernel after `scores`, when
 * no block reads the old values any more. */
template <typename T>
__device__ __forceinline__ void store_added(const struct few_params &p, int32_t row,
                                            int32_t n_threads = (int32_t)blockDim.x)
{
    const struct few_norm &n = p.norm;
    for (int32_t at = (int32_t)threadIdx.x * RUN; n.delta && at < p.hidden; at += n_threads * RUN) {
        added<T>(n, row, at).store((T *)n.x + row * n.x_stride + at);
    }
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

/* Waits until at most the last N groups of this thread's copies are in flight. */
template <int N> __device__ __forceinline__ void wait_copies()
{
    cp_async_wait<N>();
    asm volatile("" ::: "memory");
}

/* Lets a kernel use that much shared memory, and asks for the largest shared-memory carve-out: with
 * a smaller one, no block of the next kernel would fit beside its blocks. The attributes are per
 * device, and each rank has one device. */
template <typename K> static cudaError_t allow_shared(K kernel, int32_t bytes)
{
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e != cudaSuccess
               ? e
               : cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared);
}

/* moe/some.cu: the products of 2 to 8 rows after the scores, for experts with gates. */
bool k_moe_some_takes(const struct few_params &p);
cudaError_t k_moe_some(cudaStream_t stream, const struct few_params &p, enum dtype dtype,
                       enum activation kind);

/* moe/few_coded.cu: the products of up to 8 rows after the scores, with experts that stay
 * quantised. */
bool k_moe_few_coded_takes(const struct moe_few *m);
cudaError_t k_moe_few_coded(cudaStream_t stream, const struct few_params &p,
                            const struct moe_few *m);

#endif
