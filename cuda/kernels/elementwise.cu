// SPDX-License-Identifier: Apache-2.0
/* Element-wise ops: activations, gates, biases, the soft cap of logits, pooling. A thread computes
 * one element or one 16-byte vector. Bound by memory bandwidth or, with few rows, by launch
 * latency. */
#include "cuda/kernels/device/activation.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/rounding.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"

/* A thread computes one 16-byte vector; blockIdx.x is the row. */
template <typename T, int KIND, bool GATED>
__global__ void activation_vec_kernel(const T *x, int64_t x_stride, const T *up, int64_t up_stride,
                                      T *out, int64_t out_stride, int32_t width,
                                      struct act_shape shape)
{
    constexpr int N = vec<T>::N;
    pdl_wait();
    pdl_trigger();
    const int i = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    if (i >= width) {
        return;
    }
    vec<T> g, u, y;
    g.load(x + blockIdx.x * x_stride + i);
    if (GATED) {
        u.load(up + blockIdx.x * up_stride + i);
    }
#pragma unroll
    for (int e = 0; e < N; e++) {
        const float f = to_float(g.v[e]);
        y.v[e] = from_float<T>(GATED ? act_gated<KIND>(f, to_float(u.v[e]), shape)
                                     : act_alone<KIND>(f, shape));
    }
    y.store(out + blockIdx.x * out_stride + i);
}

/* The same, with one element per thread, for rows that are not aligned for vectors. */
template <typename T, int KIND, bool GATED>
__global__ void activation_plain_kernel(const T *x, int64_t x_stride, const T *up,
                                        int64_t up_stride, T *out, int64_t out_stride,
                                        int32_t width, struct act_shape shape)
{
    pdl_wait();
    pdl_trigger();
    const int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= width) {
        return;
    }
    const float f = to_float(x[blockIdx.x * x_stride + i]);
    out[blockIdx.x * out_stride + i] =
        from_float<T>(GATED ? act_gated<KIND>(f, to_float(up[blockIdx.x * up_stride + i]), shape)
                            : act_alone<KIND>(f, shape));
}

/* Uses vectors if all pointers and strides allow it. */
template <typename T, int KIND, bool GATED>
static cudaError_t activation(cudaStream_t stream, const struct activation_args *a)
{
    const T *x = (const T *)a->x.mem.p;
    T *out = (T *)a->out.mem.p;
    const int64_t x_stride = a->x.stride, out_stride = a->out.stride;
    const T *up = a->up.mem.p ? (const T *)a->up.mem.p : x + a->width;
    const int64_t up_stride = a->up.mem.p ? a->up.stride : x_stride;
    if (vec_ok(x, x_stride, a->width, sizeof(T)) && vec_ok(up, up_stride, a->width, sizeof(T)) &&
        vec_ok(out, out_stride, a->width, sizeof(T))) {
        const int per_block = 256 * vec<T>::N;
        return launch(activation_vec_kernel<T, KIND, GATED>,
                      dim3(a->n_rows, (a->width + per_block - 1) / per_block), dim3(256), 0, stream,
                      x, x_stride, up, up_stride, out, out_stride, a->width, a->shape);
    }
    return launch(activation_plain_kernel<T, KIND, GATED>, dim3(a->n_rows, (a->width + 255) / 256),
                  dim3(256), 0, stream, x, x_stride, up, up_stride, out, out_stride, a->width,
                  a->shape);
}

/* Each kind is a separate instance, so that the formula has no branch. */
template <typename T>
static cudaError_t activation_kind(cudaStream_t stream, const struct activation_args *a)
{
    if (a->gated || a->kind == ACT_GPT_OSS) {
        BY_ACTIVATION(a->kind, KIND, return activation<T, KIND, true>(stream, a));
    } else if (a->kind == ACT_XIELU) {
        return activation<T, ACT_XIELU, false>(stream, a);
    } else {
        BY_ACTIVATION(a->kind, KIND, return activation<T, KIND, false>(stream, a));
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t k_activation(cudaStream_t stream, const struct activation_args *a)
{
    BY_DTYPE(a->x.dtype, T, return activation_kind<T>(stream, a));
    return cudaErrorInvalidValue;
}

/* Here all kinds other than SiLU share one kernel, to keep the number of instances small. */
__device__ __forceinline__ float act_by_kind(enum activation kind, float gate, float up,
                                             const struct act_shape &shape)
{
    switch (kind) {
    case ACT_SILU: return silu_gated(gate, up);
    case ACT_GELU_TANH: return act_gated<ACT_GELU_TANH>(gate, up, shape);
    case ACT_GELU: return act_gated<ACT_GELU>(gate, up, shape);
    case ACT_GPT_OSS: return act_gated<ACT_GPT_OSS>(gate, up, shape);
    case ACT_RELU2: return act_gated<ACT_RELU2>(gate, up, shape);
    case ACT_SILU_CLAMPED: return act_gated<ACT_SILU_CLAMPED>(gate, up, shape);
    default: return act_gated<ACT_RELU>(gate, up, shape);
    }
}

/* The threads of a block, and the vectors of each thread, that together hold a whole row. */
enum { CODES_THREADS = 512, CODES_VECS = 4 };

/* A block reads gates and ups into registers, computes the activation, finds the largest values and
 * writes FP8 codes with their scales, so that nothing is read again. It has a whole row if the row
 * has one scale, and otherwise part blockIdx.y of it. */
template <typename T, int NV, bool IS_SILU>
__global__ void __launch_bounds__(CODES_THREADS)
    activation_codes_kernel(const T *x, int64_t x_stride, int32_t width, enum activation kind,
                            struct act_shape shape, const __grid_constant__ struct round_args codes)
{
    __shared__ float shared[32];
    pdl_trigger(); // before the wait: see device/launch.cuh
    pdl_wait();
    const T *row = x + blockIdx.x * x_stride;
    const int first = blockIdx.y * blockDim.x * NV * vec<T>::N;
    vec<T> g[NV], u[NV];
#pragma unroll
    for (int j = 0; j < NV; j++) {
        const int i = first + (j * blockDim.x + threadIdx.x) * vec<T>::N;
        if (i < width) {
            g[j].load(row + i);
            u[j].load(row + width + i);
        }
    }
#pragma unroll
    for (int j = 0; j < NV; j++) {
#pragma unroll
        for (int e = 0; e < vec<T>::N; e++) {
            const float gate = to_float(g[j].v[e]), up = to_float(u[j].v[e]);
            g[j].v[e] =
                from_float<T>(IS_SILU ? silu_gated(gate, up) : act_by_kind(kind, gate, up, shape));
        }
    }
    round_row<T, NV>(codes, blockIdx.x, first, g, shared);
}

extern "C" bool k_activation_makes_codes(const struct activation_args *a)
{
    const size_t size = dtype_bytes(a->x.dtype);
    return size == 2 && (a->gated || a->kind == ACT_GPT_OSS) && !a->up.mem.p &&
           vec_ok(a->x.mem.p, a->x.stride, a->width, size) &&
           a->width <= CODES_VECS * CODES_THREADS * ROUND_PIECE;
}

template <typename T, bool IS_SILU>
static cudaError_t activation_codes(cudaStream_t stream, const struct activation_args *a,
                                    const struct round_args *codes)
{
    const int n_vecs = a->width / vec<T>::N;
    int nv = 1, threads = 256; // for a block's part of the row
    auto kernel = activation_codes_kernel<T, 1, IS_SILU>;
    if (codes->group == 0) {
        nv = (n_vecs + CODES_THREADS - 1) / CODES_THREADS;
        threads = ((n_vecs + nv - 1) / nv + 31) / 32 * 32;
    }
    if (nv > 1) {
        kernel = nv == 2 ? activation_codes_kernel<T, 2, IS_SILU>
                         : activation_codes_kernel<T, CODES_VECS, IS_SILU>;
    }
    const dim3 grid(a->n_rows, codes->group > 0 ? (n_vecs + threads - 1) / threads : 1);
    return launch(kernel, grid, dim3(threads), 0, stream, (const T *)a->x.mem.p,
                  (int64_t)a->x.stride, a->width, a->kind, a->shape, *codes);
}

extern "C" cudaError_t k_activation_codes(cudaStream_t stream, const struct activation_args *a,
                                          const struct round_args *codes)
{
    const bool is_silu = a->kind == ACT_SILU;
    if (a->x.dtype == DT_BF16) {
        return is_silu ? activation_codes<bf16_t, true>(stream, a, codes)
                       : activation_codes<bf16_t, false>(stream, a, codes);
    }
    return is_silu ? activation_codes<f16_t, true>(stream, a, codes)
                   : activation_codes<f16_t, false>(stream, a, codes);
}

/* One block per row: computes the dot product of x and weight, then multiplies the row of y by its
 * sigmoid. */
template <typename T>
__global__ void row_gate_kernel(const T *x, int64_t x_stride, T *y, int64_t y_stride,
                                const float *weight, int32_t x_width, int32_t y_width)
{
    __shared__ float shared[32];
    pdl_wait();
    pdl_trigger();
    float dot = 0.0f;
    for (int i = threadIdx.x; i < x_width; i += blockDim.x) {
        dot += to_float(x[blockIdx.x * x_stride + i]) * weight[i];
    }
    const float gate = 1.0f / (1.0f + expf(-block_sum(dot, shared)));
    T *row = y + blockIdx.x * y_stride;
    for (int i = threadIdx.x; i < y_width; i += blockDim.x) {
        row[i] = from_float<T>(to_float(row[i]) * gate);
    }
}

/* The same for rows of one vector per thread, all of whose loads are in flight at once. */
template <typename T>
__global__ void row_gate_vec_kernel(const T *x, int64_t x_stride, T *y, int64_t y_stride,
                                    const float *weight, int32_t x_width, int32_t y_width)
{
    __shared__ float shared[32];
    const int32_t at = threadIdx.x * vec<T>::N;
    float w[vec<T>::N], dot = 0.0f;
#pragma unroll
    for (int e = 0; e < vec<T>::N; e++) {
        w[e] = at < x_width ? weight[at + e] : 0.0f;
    }
    pdl_wait();
    pdl_trigger();
    vec<T> in, row;
    if (at < y_width) {
        row.load(y + blockIdx.x * y_stride + at);
    }
    if (at < x_width) {
        in.load(x + blockIdx.x * x_stride + at);
#pragma unroll
        for (int e = 0; e < vec<T>::N; e++) {
            dot = fmaf(to_float(in.v[e]), w[e], dot);
        }
    }
    const float gate = 1.0f / (1.0f + expf(-block_sum(dot, shared)));
    if (at < y_width) {
#pragma unroll
        for (int e = 0; e < vec<T>::N; e++) {
            row.v[e] = from_float<T>(to_float(row.v[e]) * gate);
        }
        row.store(y + blockIdx.x * y_stride + at);
    }
}

extern "C" cudaError_t k_row_gate(cudaStream_t stream, const struct row_gate_args *a,
                                  const float *weight)
{
    const size_t size = dtype_bytes(a->x.dtype);
    const int32_t widest = a->x_width > a->y_width ? a->x_width : a->y_width;
    const int32_t threads = (int32_t)((size_t)widest * size / 16 + 31) / 32 * 32;
    if (threads <= 1024 && vec_ok(a->x.mem.p, a->x.stride, a->x_width, size) &&
        vec_ok(a->y.mem.p, a->y.stride, a->y_width, size)) {
        BY_DTYPE(a->x.dtype, T,
                 return launch(row_gate_vec_kernel<T>, dim3(a->n_rows), dim3(threads), 0, stream,
                               (const T *)a->x.mem.p, (int64_t)a->x.stride, (T *)a->y.mem.p,
                               (int64_t)a->y.stride, weight, a->x_width, a->y_width));
    }
    BY_DTYPE(a->x.dtype, T,
             return launch(row_gate_kernel<T>, dim3(a->n_rows), dim3(256), 0, stream,
                           (const T *)a->x.mem.p, (int64_t)a->x.stride, (T *)a->y.mem.p,
                           (int64_t)a->y.stride, weight, a->x_width, a->y_width));
    return cudaErrorInvalidValue;
}

/* One block per row. */
template <typename T>
__global__ void add_bias_kernel(T *y, int64_t stride, int32_t width, const float *bias)
{
    pdl_wait();
    pdl_trigger();
    T *row = y + blockIdx.x * stride;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        row[i] = from_float<T>(to_float(row[i]) + bias[i]);
    }
}

extern "C" cudaError_t k_add_bias(cudaStream_t stream, struct tensor y, int32_t n_rows,
                                  int32_t width, const float *bias)
{
    BY_DTYPE(y.dtype, T,
             return launch(add_bias_kernel<T>, dim3(n_rows), dim3(256), 0, stream, (T *)y.mem.p,
                           (int64_t)y.stride, width, bias));
    return cudaErrorInvalidValue;
}

/* One thread per logit. */
__global__ void scale_logits_kernel(float *x, int64_t stride, int32_t n, float scale, float cap)
{
    pdl_wait();
    pdl_trigger();
    const int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < n) {
        float f = x[blockIdx.x * stride + i] * scale;
        x[blockIdx.x * stride + i] = cap > 0.0f ? cap * tanhf(f / cap) : f;
    }
}

extern "C" cudaError_t k_scale_logits(cudaStream_t stream, const struct logits_args *a)
{
    return launch(scale_logits_kernel, dim3(a->n_out, (a->vocab + 255) / 256), dim3(256), 0, stream,
                  (float *)a->logits.mem.p, (int64_t)a->logits.stride, a->vocab, a->scale,
                  a->softcap);
}

/* One block per row: fills all ids with -infinity, then copies the logits of the ids that the head
 * knows. */
__global__ void spread_logits_kernel(const float *local, int64_t local_stride, float *logits,
                                     int64_t stride, int32_t vocab, const int32_t *ids,
                                     int32_t n_ids)
{
    pdl_wait();
    pdl_trigger();
    float *to = logits + blockIdx.x * stride;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
        to[i] = -INFINITY;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n_ids; i += blockDim.x) {
        to[ids[i]] = local[blockIdx.x * local_stride + i];
    }
}

extern "C" cudaError_t k_spread_logits(cudaStream_t stream, const struct logits_args *a)
{
    return launch(spread_logits_kernel, dim3(a->n_out), dim3(1024), 0, stream,
                  (const float *)a->local.mem.p, (int64_t)a->local.stride, (float *)a->logits.mem.p,
                  (int64_t)a->logits.stride, a->vocab, (const int32_t *)a->ids.p, a->n_ids);
}

/* Rearranges shards [rank][row][width] to rows [row][rank, width]; one thread per element. */
__global__ void join_shards_kernel(const float *shards, float *out, int64_t out_stride,
                                   int32_t n_out, int32_t width)
{
    pdl_wait();
    pdl_trigger();
    const int rank = blockIdx.z, row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < width) {
        out[row * out_stride + (int64_t)rank * width + i] =
            shards[((int64_t)rank * n_out + row) * width + i];
    }
}

extern "C" cudaError_t k_join_shards(cudaStream_t stream, const float *shards, float *out,
                                     int32_t out_stride, int32_t n_ranks, int32_t n_out,
                                     int32_t width)
{
    return launch(join_shards_kernel, dim3(n_out, (width + 255) / 256, n_ranks), dim3(256), 0,
                  stream, shards, out, (int64_t)out_stride, n_out, width);
}

/* A pass may list a lane several times. The block of the lane's first entry processes all of them,
 * in order. */
template <typename T>
__global__ void pool_kernel(const T *hidden, int64_t stride, int32_t width, struct pass_view pass,
                            float *results)
{
    pdl_wait();
    const int first = blockIdx.x, n = pass.counts->n_pool;
    if (first >= n) {
        return;
    }
    const int32_t lane = pass.pool[first].lane;
    for (int e = 0; e < first; e++) {
        if (pass.pool[e].lane == lane) {
            return;
        }
    }
    float *pooled = pass.pooled + (int64_t)lane * width;
    for (int e = first; e < n; e++) {
        const struct pass_pool entry = pass.pool[e];
        if (entry.lane != lane) {
            continue;
        }
        for (int i = threadIdx.x; i < width; i += blockDim.x) {
            float sum = entry.start ? 0.0f : pooled[i];
            for (int r = 0; r < entry.n_out; r++) {
                sum += to_float(hidden[(entry.first_out + r) * stride + i]);
            }
            pooled[i] = sum;
            if (entry.finish) {
                results[(int64_t)e * width + i] = sum;
            }
        }
    }
}

extern "C" cudaError_t k_pool(cudaStream_t stream, const struct pool_args *a,
                              const struct pass_view *pass, int32_t n_pool, float *results)
{
    BY_DTYPE(a->hidden.dtype, T,
             return launch(pool_kernel<T>, dim3(n_pool), dim3(256), 0, stream,
                           (const T *)a->hidden.mem.p, (int64_t)a->hidden.stride, a->width, *pass,
                           results));
    return cudaErrorInvalidValue;
}
