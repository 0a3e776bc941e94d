// SPDX-License-Identifier: Apache-2.0
/* Several residual streams, and MLPs of which few gates are open. One block per row, whose sums
 * have a fixed order; a row is read again from the cache after its sums are known. Bound by memory
 * bandwidth or, with few rows, by latency. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"

enum { STREAM_THREADS = 512 };

struct streams_params {
    const float *router, *coefs, *scale;
    int64_t streams_stride, x_stride, in_stride;
    int32_t width, n, active;
    float router_scale;
};

/* The row's n_out coefficients, in shared memory. The loops over streams have a fixed length, so
 * that their arrays stay in registers. */
template <typename T>
__device__ __forceinline__ void stream_coefs(const T *in, const struct streams_params &p, int n_out,
                                             float *coefs, float *shared)
{
    float dot[MAX_STREAMS] = {};
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float x = to_float(in[i]);
#pragma unroll
        for (int k = 0; k < MAX_STREAMS; k++) {
            if (k < p.n) {
                dot[k] = fmaf(x, p.router[(int64_t)k * p.width + i], dot[k]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < MAX_STREAMS; k++) {
        dot[k] = k < p.n ? tanhf(p.router_scale * block_sum(dot[k], shared)) : 0.0f;
    }
    for (int i = threadIdx.x; i < n_out; i += blockDim.x) {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < MAX_STREAMS; k++) {
            sum = k < p.n ? fmaf(p.coefs[i * p.n + k], dot[k], sum) : sum;
        }
        coefs[i] = sum;
    }
    __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(STREAM_THREADS)
    streams_before_kernel(T *streams, T *x, const T *in, const struct streams_params p)
{
    __shared__ float coefs[MAX_STREAMS * MAX_STREAMS], shared[32];
    pdl_wait();
    pdl_trigger();
    T *row = streams + blockIdx.x * p.streams_stride;
    stream_coefs(in + blockIdx.x * p.in_stride, p, p.n * p.n, coefs, shared);
    for (int at = threadIdx.x; at < p.width; at += blockDim.x) {
        float old[MAX_STREAMS];
#pragma unroll
        for (int j = 0; j < MAX_STREAMS; j++) {
            old[j] = j < p.n ? to_float(row[(int64_t)j * p.width + at]) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < MAX_STREAMS; i++) {
            float sum = old[i];
#pragma unroll
            for (int j = 0; j < MAX_STREAMS; j++) {
                sum = i < p.n && j < p.n ? fmaf(coefs[i * p.n + j], old[j], sum) : sum;
            }
            const T now = from_float<T>(sum);
            if (i < p.n) {
                row[(int64_t)i * p.width + at] = now;
            }
            if (i == p.active) {
                x[blockIdx.x * p.x_stride + at] = now;
            }
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(STREAM_THREADS)
    streams_after_kernel(T *streams, T *x, const T *in, const struct streams_params p)
{
    __shared__ float coefs[MAX_STREAMS], shared[32];
    pdl_wait();
    pdl_trigger();
    T *row = streams + blockIdx.x * p.streams_stride, *to = x + blockIdx.x * p.x_stride;
    stream_coefs(in + blockIdx.x * p.in_stride, p, p.n, coefs, shared);
    for (int at = threadIdx.x; at < p.width; at += blockDim.x) {
        const float news = to_float(to[at]) - to_float(row[(int64_t)p.active * p.width + at]);
        for (int i = 0; i < p.n; i++) {
            T *one = row + (int64_t)i * p.width + at;
            *one = from_float<T>(fmaf(1.0f + coefs[i], news, to_float(*one)));
        }
        const float active = to_float(row[(int64_t)p.active * p.width + at]);
        to[at] = from_float<T>(p.scale ? active * p.scale[at] : active);
    }
}

extern "C" cudaError_t k_streams(cudaStream_t stream, const struct streams_args *a,
                                 const float *router, const float *coefs, const float *scale)
{
    struct streams_params p = {};
    p.router = router;
    p.coefs = coefs;
    p.scale = scale;
    p.streams_stride = a->streams.stride;
    p.x_stride = a->x.stride;
    p.in_stride = a->in.stride;
    p.width = a->width;
    p.n = a->n;
    p.active = a->active;
    p.router_scale = a->router_scale;
    BY_DTYPE(a->x.dtype, T,
             return launch(a->after ? streams_after_kernel<T> : streams_before_kernel<T>,
                           dim3(a->n_rows), dim3(STREAM_THREADS), 0, stream, (T *)a->streams.mem.p,
                           (T *)a->x.mem.p, (const T *)a->in.mem.p, p));
    return cudaErrorInvalidValue;
}

template <typename T>
__device__ __forceinline__ float square_around(const T *x, int32_t width, float from, float *shared)
{
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float d = to_float(x[i]) - from;
        sum = fmaf(d, d, sum);
    }
    return block_sum(sum, shared) / (float)width;
}

template <typename T>
__global__ void __launch_bounds__(STREAM_THREADS)
    rms_match_kernel(const T *x, int64_t x_stride, const T *like, int64_t like_stride, T *out,
                     int64_t out_stride, int32_t width, float floor)
{
    __shared__ float shared[32];
    pdl_wait();
    pdl_trigger();
    const T *row = x + blockIdx.x * x_stride;
    const float own = square_around(row, width, 0.0f, shared);
    const float wanted = square_around(like + blockIdx.x * like_stride, width, 0.0f, shared);
    const float factor = sqrtf(wanted) / sqrtf(own < floor ? floor : own);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        out[blockIdx.x * out_stride + i] = from_float<T>(to_float(row[i]) * factor);
    }
}

extern "C" cudaError_t k_rms_match(cudaStream_t stream, const struct rms_match_args *a)
{
    BY_DTYPE(a->x.dtype, T,
             return launch(rms_match_kernel<T>, dim3(a->n_rows), dim3(STREAM_THREADS), 0, stream,
                           (const T *)a->x.mem.p, (int64_t)a->x.stride, (const T *)a->like.mem.p,
                           (int64_t)a->like.stride, (T *)a->out.mem.p, (int64_t)a->out.stride,
                           a->width, a->floor));
    return cudaErrorInvalidValue;
}

/* What is not a number stays so. */
template <typename T>
__global__ void __launch_bounds__(STREAM_THREADS)
    cutoff_kernel(T *x, int64_t stride, int32_t width, float deviations)
{
    __shared__ float shared[32];
    pdl_wait();
    pdl_trigger();
    T *row = x + blockIdx.x * stride;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        sum += to_float(row[i]);
    }
    const float mean = block_sum(sum, shared) / (float)width;
    const float cut = mean + deviations * sqrtf(square_around(row, width, mean, shared));
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float over = to_float(row[i]) - cut;
        row[i] = from_float<T>(over < 0.0f ? 0.0f : over);
    }
}

extern "C" cudaError_t k_cutoff(cudaStream_t stream, const struct cutoff_args *a)
{
    BY_DTYPE(a->x.dtype, T,
             return launch(cutoff_kernel<T>, dim3(a->n_rows), dim3(STREAM_THREADS), 0, stream,
                           (T *)a->x.mem.p, (int64_t)a->x.stride, a->width, a->deviations));
    return cudaErrorInvalidValue;
}
