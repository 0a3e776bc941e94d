// SPDX-License-Identifier: Apache-2.0
/* Experts that return their input: a block per row. Every thread adds up the weights of the row's
 * picks in their order, and multiplies its elements; the first one then changes the picks. Bound by
 * memory bandwidth or, with few rows, by latency. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"

enum { IDENTITY_THREADS = 256 };

struct identity_params {
    int64_t x_stride, y_stride;
    int32_t width, n_experts, k;
};

template <typename T>
__global__ void __launch_bounds__(IDENTITY_THREADS)
    moe_identity_kernel(const T *x, T *y, int32_t *ids, float *weights,
                        const struct identity_params p)
{
    pdl_wait();
    pdl_trigger();
    int32_t *id = ids + (int64_t)blockIdx.x * p.k;
    float *weight = weights + (int64_t)blockIdx.x * p.k, sum = 0.0f;
    int32_t other = -1;
    for (int i = 0; i < p.k; i++) {
        const bool is = id[i] >= p.n_experts;
        sum += is ? weight[i] : 0.0f;
        other = !is && other < 0 ? id[i] : other;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p.k; i += IDENTITY_THREADS) {
        if (id[i] >= p.n_experts) {
            id[i] = max(other, 0);
            weight[i] = 0.0f;
        }
    }
    const T *from = x + blockIdx.x * p.x_stride;
    T *to = y + blockIdx.x * p.y_stride;
    for (int i = threadIdx.x; i < p.width; i += IDENTITY_THREADS) {
        to[i] = from_float<T>(sum * to_float(from[i]));
    }
}

extern "C" cudaError_t k_moe_identity(cudaStream_t stream, const struct moe_identity_args *a)
{
    const struct identity_params p = {a->x.stride, a->y.stride, a->width, a->n_experts, a->k};
    BY_DTYPE(a->x.dtype, T,
             return launch(moe_identity_kernel<T>, dim3(a->n_rows), dim3(IDENTITY_THREADS), 0,
                           stream, (const T *)a->x.mem.p, (T *)a->y.mem.p, (int32_t *)a->ids.p,
                           (float *)a->weights.p, p));
    return cudaErrorInvalidValue;
}
