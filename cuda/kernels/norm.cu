// SPDX-License-Identifier: Apache-2.0
/* RMS and layer norm, fused with the residual addition before it. A block has a row and reads it
 * once; many rows are left to norm_many.cuh. The sum of squares uses the row as rounded for
 * storage, so that a fused norm gives the same bits as a norm of the stored residual. If only a
 * product of FP8 codes reads the result, it is written as codes. Bound by memory bandwidth, or by
 * latency for few rows. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/norm_many.cuh"

/* Each thread keeps NV vectors of the row in registers. CODES: writes p.codes. It leaves enough
 * registers for the product whose blocks start beside it. */
template <typename T, int NV, bool CODES>
__global__ void __launch_bounds__(1024)
    norm_vec_kernel(T *x, const T *delta, T *out, const float *weight, const float *bias,
                    struct norm_params p)
{
    constexpr int N = vec<T>::N;
    __shared__ float shared[32];
    /* No kernel writes the weights, so they can be loaded before the row arrives. */
    float w[NV][N];
    load_weight(w, weight, p);
    pdl_trigger(); // before the wait: see device/launch.cuh
    /* A product that leaves partial sums triggers this kernel only after all kernels before it have
     * ended. The residual is not the output of that product, so it can be read before the wait. */
    const bool has_sums = NV <= 2 && p.sums.n > 0;
    vec<T> v[NV], d[NV];
    if (has_sums) {
        load_row(v, x + (int64_t)blockIdx.x * p.x_stride, p.width);
    }
    pdl_wait();
    if (!has_sums) {
        load_row(v, x + (int64_t)blockIdx.x * p.x_stride, p.width);
    }
    const int row = blockIdx.x;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < NV; j++) {
        const int i = (j * blockDim.x + threadIdx.x) * N;
        if (i < p.width) {
            if (delta) {
                if (has_sums) {
                    load_sum(&d[j], p.sums, row, i);
                } else {
                    d[j].load(delta + (int64_t)row * p.delta_stride + i);
                }
                add_delta(v[j], d[j], p);
                v[j].store(x + (int64_t)row * p.x_stride + i);
            }
            sum = add_moments(sum, v[j], p.layer);
        }
    }
    if (out) {
        const struct row_moments m = row_moments_of<T, NV>(v, sum, p.layer, p.width, p.eps, shared);
        norm_row<!CODES>(v, w, bias, m, p.width, out + (int64_t)row * p.out_stride);
        if constexpr (CODES) {
            round_row<T, NV>(p.codes, row, 0, v, shared);
        }
    }
}

/* For any width, alignment and dtype of x. */
template <typename X, typename T>
__global__ void norm_plain_kernel(X *x, const T *delta, T *out, const float *weight,
                                  const float *bias, struct norm_params p)
{
    __shared__ float shared[32];
    pdl_wait();
    X *row = x + (int64_t)blockIdx.x * p.x_stride;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        float f = to_float(row[i]);
        if (delta) {
            f += p.delta_scale * to_float(delta[(int64_t)blockIdx.x * p.delta_stride + i]);
            row[i] = from_float<X>(f * p.x_scale);
            f = to_float(row[i]);
        }
        sum = moment_add(sum, f, p.layer);
    }
    if (!out) {
        return;
    }
    float mean = 0.0f, square = block_sum(sum, shared) / (float)p.width;
    if (p.layer) {
        mean = square;
        sum = 0.0f;
        for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
            const float f = to_float(row[i]) - mean;
            sum = fmaf(f, f, sum);
        }
        square = block_sum(sum, shared) / (float)p.width;
    }
    const float scale = 1.0f / sqrtf(square + p.eps);
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        out[(int64_t)blockIdx.x * p.out_stride + i] =
            from_float<T>(normed(to_float(row[i]), weight ? weight[i] + p.weight_offset : 1.0f,
                                 bias ? bias[i] : 0.0f, mean, scale));
    }
}

template <typename T, int NV, bool CODES>
static cudaError_t norm_vecs(cudaStream_t stream, int threads, T *x, const T *delta, T *out,
                             const float *weight, const float *bias, const struct norm_params &p)
{
    return launch(norm_vec_kernel<T, NV, CODES>, dim3(p.n_rows), dim3(threads), 0, stream, x, delta,
                  out, weight, bias, p);
}

/* Chooses the fewest vectors per thread that cover the row. */
template <typename T, bool CODES>
static cudaError_t norm_vec(cudaStream_t stream, const struct norm_args *a, const float *weight,
                            const float *bias, const struct norm_params &p)
{
    T *x = (T *)a->x.mem.p, *out = (T *)a->out.mem.p;
    const T *delta = (const T *)a->delta.mem.p;
    if (norm_many_takes<T>(p)) {
        return norm_many<T, CODES>(stream, x, delta, out, weight, bias, p);
    }
    const int n_vecs = a->width / vec<T>::N;
    const int threads = n_vecs >= 1024 ? 1024 : (n_vecs + 31) / 32 * 32;
    switch ((n_vecs + threads - 1) / threads) {
    case 1: return norm_vecs<T, 1, CODES>(stream, threads, x, delta, out, weight, bias, p);
    case 2: return norm_vecs<T, 2, CODES>(stream, threads, x, delta, out, weight, bias, p);
    case 3:
    case 4: return norm_vecs<T, 4, CODES>(stream, threads, x, delta, out, weight, bias, p);
    default: return cudaErrorInvalidValue;
    }
}

/* True if rows can be read in vectors and fit into a block's registers. */
static bool has_vectors(const struct norm_args *a, enum dtype act)
{
    const size_t size = dtype_bytes(act);
    return a->x.dtype == act && vec_ok(a->x.mem.p, a->x.stride, a->width, size) &&
           (!a->delta.mem.p || vec_ok(a->delta.mem.p, a->delta.stride, a->width, size)) &&
           (!a->out.mem.p || vec_ok(a->out.mem.p, a->out.stride, a->width, size)) &&
           (size_t)a->width * size <= 4 * 1024 * 16;
}

static enum dtype act_dtype(const struct norm_args *a)
{
    if (a->out.mem.p) {
        return a->out.dtype;
    }
    return a->delta.mem.p ? a->delta.dtype : a->x.dtype;
}

/* ---- a list of norms -------------------------------------------------------------------------
 * A block executes all of them for its row, one after the other. Thread i reads and writes the same
 * elements of every operand, so that it needs no barrier to read what an earlier norm has stored,
 * and keeps in registers what the last norm stored. Bound by latency, and by the fetch of code: so
 * what a norm reads from memory is loaded while the norm before it is computed, and all norms share
 * the code of one loop. */

/* Where a norm finds an operand. */
enum norm_place { IN_MEMORY, IN_X, IN_OUT }; // the last two: those of the norm before it

struct norm_step {
    void *x, *out;
    const void *delta;
    const float *weight;
    int32_t x_stride, out_stride, delta_stride;
    float eps, weight_offset, delta_scale, x_scale;
    enum norm_place x_in, delta_in;
    bool same_sum; // the norm before it had the same row and eps
};

struct norm_list {
    struct norm_step step[NORM_LIST];
    int32_t n, width;
    float per_element; // 1 / width
};

/* A thread's elements of what a norm reads. */
struct norm_inputs {
    uint4 x, delta;
    float4 weight[2];
};

/* The thread's elements of a row. */
template <typename T>
__device__ __forceinline__ uint4 *row_part(const void *rows, int32_t stride, int32_t i)
{
    return (uint4 *)((T *)rows + (int32_t)blockIdx.x * stride + i);
}

__device__ __forceinline__ void load_weights(const struct norm_step &s, int32_t i,
                                             struct norm_inputs *in)
{
    const float4 one = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    in->weight[0] = s.weight ? *(const float4 *)(s.weight + i) : one;
    in->weight[1] = s.weight ? *(const float4 *)(s.weight + i + 4) : one;
}

/* Loads what the norm before does not store. */
template <typename T>
__device__ __forceinline__ void load_rows(const struct norm_step &s, int32_t i,
                                          struct norm_inputs *in)
{
    if (s.x_in == IN_MEMORY) {
        in->x = *row_part<T>(s.x, s.x_stride, i);
    }
    if (s.delta && s.delta_in == IN_MEMORY) {
        in->delta = *row_part<T>(s.delta, s.delta_stride, i);
    }
}

template <typename T>
__device__ __forceinline__ uint32_t plus_delta(const struct norm_step &s, uint32_t x,
                                               uint32_t delta)
{
    const float2 a = unpack_pair<T>(x), b = unpack_pair<T>(delta);
    return pack_pair<T>((a.x + s.delta_scale * b.x) * s.x_scale,
                        (a.y + s.delta_scale * b.y) * s.x_scale);
}

template <typename T> __device__ __forceinline__ float plus_squares(float sum, uint32_t x)
{
    const float2 a = unpack_pair<T>(x);
    return moment_add(moment_add(sum, a.x, false), a.y, false);
}

template <typename T>
__device__ __forceinline__ uint32_t normed_pair(uint32_t x, float scale, float low, float high)
{
    const float2 a = unpack_pair<T>(x);
    return pack_pair<T>(a.x * scale * low, a.y * scale * high);
}

/* The result of a norm, for the thread's elements. */
template <typename T>
__device__ __forceinline__ uint4 normed_part(const struct norm_inputs &in, float scale,
                                             float offset)
{
    const float4 u = in.weight[0], v = in.weight[1];
    return make_uint4(normed_pair<T>(in.x.x, scale, u.x + offset, u.y + offset),
                      normed_pair<T>(in.x.y, scale, u.z + offset, u.w + offset),
                      normed_pair<T>(in.x.z, scale, v.x + offset, v.y + offset),
                      normed_pair<T>(in.x.w, scale, v.z + offset, v.w + offset));
}

__device__ __forceinline__ void prefetch_weights(const struct norm_list &p, int32_t i)
{
#pragma unroll 1
    for (int k = 1; k < p.n && i < p.width; k++) {
        if (p.step[k].weight) {
            asm volatile("prefetch.global.L1 [%0];" ::"l"(p.step[k].weight + i));
        }
    }
}

/* Computes a norm of the thread's elements, `scale` being that of the norm before it. Returns the
 * result. stores: writes it, and the sum with the delta. */
template <typename T>
__device__ __forceinline__ uint4 one_norm(const struct norm_list &p, const struct norm_step &s,
                                          int32_t i, bool stores, struct norm_inputs *in,
                                          float *scale, float *shared)
{
    uint4 out = {};
    if (s.delta) {
        in->x = make_uint4(
            plus_delta<T>(s, in->x.x, in->delta.x), plus_delta<T>(s, in->x.y, in->delta.y),
            plus_delta<T>(s, in->x.z, in->delta.z), plus_delta<T>(s, in->x.w, in->delta.w));
        if (stores) {
            *row_part<T>(s.x, s.x_stride, i) = in->x;
        }
    }
    if (s.out && !s.same_sum) {
        float sum = plus_squares<T>(plus_squares<T>(0.0f, in->x.x), in->x.y);
        sum = plus_squares<T>(plus_squares<T>(sum, in->x.z), in->x.w);
        *scale = rsqrtf(block_sum(sum, shared) * p.per_element + s.eps);
    }
    if (s.out) {
        out = normed_part<T>(*in, *scale, s.weight ? s.weight_offset : 0.0f);
        if (stores) {
            *row_part<T>(s.out, s.out_stride, i) = out;
        }
    }
    return out;
}

/* The first turn of the loop computes a norm of nothing before the wait, so that its code is
 * fetched; the second only loads. */
template <typename T>
__global__ void __launch_bounds__(1024) norm_list_kernel(const __grid_constant__ struct norm_list p)
{
    enum { WARM_UP = -2, FIRST_LOAD = -1 };
    __shared__ float shared[32];
    const int32_t i = (int32_t)threadIdx.x * vec<T>::N;
    const bool has = i < p.width;
    struct norm_inputs in = {}, next = {};
    float scale = 0.0f;
    prefetch_weights(p, i);
#pragma unroll 1
    for (int k = WARM_UP; k < p.n; k++) {
        const int after = max(k + 1, 0);
        uint4 out = {};
        if (has && after < p.n) {
            load_weights(p.step[after], i, &next);
            if (k >= FIRST_LOAD) {
                load_rows<T>(p.step[after], i, &next);
            }
        }
        if (k != FIRST_LOAD) {
            out = one_norm<T>(p, p.step[max(k, 0)], i, has && k >= 0, &in, &scale, shared);
        }
        if (k == WARM_UP) {
            pdl_trigger(); // before the wait: see device/launch.cuh
            pdl_wait();
        } else if (k >= 0 && after < p.n) {
            const struct norm_step &s = p.step[after];
            if (s.x_in != IN_MEMORY) {
                next.x = s.x_in == IN_X ? in.x : out;
            }
            if (s.delta_in != IN_MEMORY) {
                next.delta = s.delta_in == IN_X ? in.x : out;
            }
        }
        in = next;
    }
}

extern "C" bool k_norms_take(const struct norm_args *a, int32_t n)
{
    bool takes = n <= NORM_LIST;
    for (int32_t i = 0; takes && i < n; i++) {
        const enum dtype act = act_dtype(&a[i]);
        takes = a[i].n_rows == a->n_rows && a[i].width == a->width && a[i].kind != NORM_LAYER &&
                !a[i].bias && a[i].delta_sums.n == 0 && act == act_dtype(a) && act != DT_F32 &&
                has_vectors(&a[i], act) && a->width <= 1024 * 8;
    }
    return takes;
}

/* Where a norm finds the operand at `at`, given the norm before it. */
static enum norm_place place_after(const struct norm_step &before, const void *at, int64_t stride)
{
    if (before.out == at && before.out_stride == stride) {
        return IN_OUT;
    }
    return before.x == at && before.x_stride == stride ? IN_X : IN_MEMORY;
}

static struct norm_step norm_step_of(const struct norm_args *a, const float *weight)
{
    struct norm_step s = {};
    s.x = a->x.mem.p;
    s.out = a->out.mem.p;
    s.delta = a->delta.mem.p;
    s.weight = weight;
    s.x_stride = a->x.stride;
    s.out_stride = a->out.stride;
    s.delta_stride = a->delta.stride;
    s.eps = a->eps;
    s.weight_offset = a->weight_offset;
    s.delta_scale = a->delta_scale;
    s.x_scale = a->x_scale != 0.0f ? a->x_scale : 1.0f;
    return s;
}

extern "C" cudaError_t k_norms(cudaStream_t stream, const struct norm_args *a,
                               const float *const *weights, int32_t n)
{
    struct norm_list p = {};
    p.n = n;
    p.width = a->width;
    p.per_element = 1.0f / (float)a->width;
    for (int32_t i = 0; i < n; i++) {
        struct norm_step *s = &p.step[i];
        *s = norm_step_of(&a[i], weights[i]);
        if (i > 0) {
            const struct norm_step &before = p.step[i - 1];
            s->x_in = place_after(before, s->x, s->x_stride);
            s->delta_in = s->delta ? place_after(before, s->delta, s->delta_stride) : IN_MEMORY;
            s->same_sum = s->x_in == IN_X && !s->delta && before.out && s->eps == before.eps;
        }
    }
    const dim3 grid(a->n_rows), block((a->width / 8 + 31) / 32 * 32);
    return act_dtype(a) == DT_BF16 ? launch(norm_list_kernel<bf16_t>, grid, block, 0, stream, p)
                                   : launch(norm_list_kernel<f16_t>, grid, block, 0, stream, p);
}

extern "C" bool k_norm_takes_sums(const struct norm_args *a)
{
    return has_vectors(a, act_dtype(a)) &&
           (size_t)a->width * dtype_bytes(act_dtype(a)) <= 2 * 1024 * 16;
}

extern "C" bool k_norm_makes_codes(const struct norm_args *a)
{
    return dtype_bytes(act_dtype(a)) == 2 && has_vectors(a, act_dtype(a));
}

extern "C" cudaError_t k_norm(cudaStream_t stream, const struct norm_args *a, const float *weight,
                              const float *bias, const struct sum_parts *sums,
                              const struct round_args *codes)
{
    struct norm_params p = {};
    p.x_stride = a->x.stride;
    p.delta_stride = a->delta.stride;
    p.out_stride = a->out.stride;
    p.n_rows = a->n_rows;
    p.width = a->width;
    p.eps = a->eps;
    p.weight_offset = a->weight_offset;
    p.delta_scale = a->delta_scale;
    p.x_scale = a->x_scale != 0.0f ? a->x_scale : 1.0f;
    p.layer = a->kind == NORM_LAYER;
    const enum dtype act = act_dtype(a);
    if (sums) {
        p.sums = *sums;
    }
    if (codes) {
        p.codes = *codes;
    }
    if (has_vectors(a, act)) {
        if (p.codes.codes) { // k_norm_makes_codes
            return act == DT_BF16 ? norm_vec<bf16_t, true>(stream, a, weight, bias, p)
                                  : norm_vec<f16_t, true>(stream, a, weight, bias, p);
        }
        BY_DTYPE(act, T, return norm_vec<T, false>(stream, a, weight, bias, p));
    }
    const dim3 grid(a->n_rows), block(256);
    BY_DTYPE(
        a->x.dtype, X,
        BY_DTYPE(act, T,
                 return launch(norm_plain_kernel<X, T>, grid, block, 0, stream, (X *)a->x.mem.p,
                               (const T *)a->delta.mem.p, (T *)a->out.mem.p, weight, bias, p)));
    return cudaErrorInvalidValue;
}
