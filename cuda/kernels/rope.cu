// SPDX-License-Identifier: Apache-2.0
/* Rotary position embedding, the norms of queries and keys before or after it, the norm of values,
 * and the store into KV pages. A group of threads, at most a warp, holds one head in registers.
 * Bound by memory bandwidth or, with few rows, by latency. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/rope_head.cuh"

/* The parameters that are the same for all rows and heads. */
struct rope_params {
    int32_t stride, n_heads, n_kv_heads, head_dim;
    enum qk_norm qk_norm;
    bool layer, norm_after, v_norm;
    float eps, norm_offset;
    int32_t q_norm_n, k_norm_n;
    struct query_growth growth;
};

/* The mean and the scale of a norm over `n` elements; x(i) returns element i. */
template <typename X>
__device__ void warp_stats(const X &x, int n, bool layer, float eps, float *mean, float *scale)
{
    const int lane = threadIdx.x & 31;
    float sum = 0.0f;
    *mean = 0.0f;
    if (layer) {
        for (int i = lane; i < n; i += 32) {
            sum += x(i);
        }
        *mean = warp_sum(sum) / (float)n;
        sum = 0.0f;
    }
    for (int i = lane; i < n; i += 32) {
        const float f = x(i) - *mean;
        sum += f * f;
    }
    *scale = 1.0f / sqrtf(warp_sum(sum) / (float)n + eps);
}

/* Where a K or V head of a token starts in pages that are not quantised. */
template <typename C>
__device__ __forceinline__ C *plain_head(const struct kv_view &kv, int64_t page, int32_t token,
                                         int32_t kv_head, bool is_v)
{
    return (C *)kv.base + page * kv.page_stride + (int64_t)kv_head * kv.head_stride +
           (is_v ? kv.v_offset + token * kv.v_token_stride : token * kv.head_dim_k);
}

/* A head's weights of the norm of q or k; NULL if the norm has none. */
__device__ __forceinline__ const float *head_weight(const float *weight, int32_t n_weight,
                                                    int32_t head_dim, int head)
{
    if (weight && n_weight > head_dim) { // there is one row of weights per head
        weight += head * head_dim;
    }
    return weight;
}

/* True if a page can hold this lane's elements of a value, which has not been normed yet. */
template <typename C, typename T>
__device__ __forceinline__ bool is_storable_head(const T *value, int n, bool codes, bool normed)
{
    bool ok = true;
    for (int i = threadIdx.x & 31; i < n; i += 32) {
        const float x = to_float(value[i]);
        ok &= normed ? fabsf(x) < INFINITY : is_storable<C>(x, codes);
    }
    return ok;
}

/* A warp stores a key or a value, whose element i is x(i). `head`, in shared memory, is what x
 * reads and is overwritten with the elements to quantise. */
template <typename C, typename X>
__device__ __forceinline__ void store_head(const struct kv_view &kv, int64_t page, int32_t token,
                                           int32_t kv_head, bool is_v, const X &x, float *head,
                                           int32_t head_dim)
{
    const int lane = threadIdx.x & 31;
    if (kv.codes.format == KV_PLAIN) {
        C *to = plain_head<C>(kv, page, token, kv_head, is_v);
        for (int i = lane; i < head_dim; i += 32) {
            to[i] = from_float<C>(x(i));
        }
        return;
    }
    float all[ROPE_MAX_HEAD / 32];
#pragma unroll
    for (int k = 0; k < ROPE_MAX_HEAD / 32; k++) {
        all[k] = k * 32 + lane < head_dim ? x(k * 32 + lane) : 0.0f;
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < ROPE_MAX_HEAD / 32; k++) {
        head[k * 32 + lane] = all[k];
    }
    __syncwarp();
    kv_store_head(kv.codes, kv_place_of(kv, page, kv_head, token), is_v, head, head_dim);
}

/* The general kernel: one warp per head and row, for any width. The head is in shared memory
 * between norm and rotation. */
template <typename T, typename C>
__global__ void rope_store_kernel(T *qkv, struct rope_params p, struct rope_view rope,
                                  const float *q_norm, const float *k_norm, struct kv_view kv,
                                  struct pass_view pass)
{
    __shared__ float heads[ROPE_WARPS][ROPE_MAX_HEAD];
    pdl_wait();
    pdl_trigger();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int h = blockIdx.y * ROPE_WARPS + warp;
    const int n_all = p.n_heads + 2 * p.n_kv_heads;
    if (h >= n_all) {
        return;
    }
    const struct pass_row row = pass.rows[blockIdx.x];
    T *x = qkv + (int64_t)blockIdx.x * p.stride;
    T *mine = x + h * p.head_dim;
    const bool is_q = h < p.n_heads, is_v = h >= p.n_heads + p.n_kv_heads;
    float *head = heads[warp];
    const bool normed = is_v ? p.v_norm : p.qk_norm != QK_NORM_NONE;
    const bool after = p.norm_after && !is_v, layer = p.layer && !is_v;
    float mean = 0.0f, scale = 1.0f;
    const float *weight = NULL;
    if (normed && !is_v) {
        weight = head_weight(is_q ? q_norm : k_norm, is_q ? p.q_norm_n : p.k_norm_n, p.head_dim,
                             is_q ? h : h - p.n_heads);
    }
    const auto norm = [&](float f, int i) {
        return (f - mean) * scale * (weight ? weight[i] + p.norm_offset : 1.0f);
    };
    if (normed && !after) {
        warp_stats([&](int i) { return to_float(mine[i]); }, p.head_dim, layer, p.eps, &mean,
                   &scale);
    }
    for (int i = lane; i < p.head_dim; i += 32) {
        const float f = to_float(mine[i]);
        head[i] = normed && !after ? norm(f, i) : f;
    }
    __syncwarp();

    const int32_t pos = row.pos < rope.max_pos ? row.pos : rope.max_pos - 1;
    const float *cos_sin = rope.cos_sin + (int64_t)pos * rope.n_pairs * 2;
    const bool rotate = rope.n_pairs > 0 && !is_v;
    const auto turned = [&](int i) { return rotate ? rotated(head, i, rope, cos_sin) : head[i]; };
    if (normed && after) {
        warp_stats(turned, p.head_dim, layer, p.eps, &mean, &scale);
    }
    const auto made = [&](int i) { return normed && after ? norm(turned(i), i) : turned(i); };
    if (is_q) {
        const float growth = growth_at(p.growth, row.pos);
        for (int i = lane; i < p.head_dim; i += 32) {
            mine[i] = from_float<T>(made(i) * growth);
        }
        return;
    }
    int64_t page;
    int32_t token;
    slot_of(pass, row, kv.block_tokens, &page, &token);
    const int kv_head = h - p.n_heads - (is_v ? p.n_kv_heads : 0);
    const bool codes = kv.codes.format != KV_PLAIN;
    const bool spoilt =
        !is_v && __any_sync(0xffffffffu, !is_storable_head<C>(mine + p.n_kv_heads * p.head_dim,
                                                              p.head_dim, codes, p.v_norm));
    const auto stored = [&](int i) {
        const float x = made(i);
        if (is_v) {
            return is_storable<C>(x, codes) ? x : 0.0f;
        }
        return spoilt ? NAN : x;
    };
    store_head<C>(kv, page, token, kv_head, is_v, stored, head, p.head_dim);
}

enum { ROPE_VEC_THREADS = 64 };
enum norm_when { NO_NORM, NORM_FIRST, NORM_LAST }; // no norm; before the rope; after the rope

/* Where a key and its value are stored: at `to`, or if pages have codes, at `at`. */
template <bool CODES, typename T>
__device__ __forceinline__ void locate(const struct kv_view &kv, const struct pass_view &pass,
                                       const struct pass_row &row, int32_t kv_head, T *to[2],
                                       struct kv_place *at)
{
    int64_t page;
    int32_t token;
    slot_of(pass, row, kv.block_tokens, &page, &token);
    if (CODES) {
        *at = kv_place_of(kv, page, kv_head, token);
    } else {
        to[0] = plain_head<T>(kv, page, token, kv_head, false);
        to[1] = plain_head<T>(kv, page, token, kv_head, true);
    }
}

/* The RMS norm of a head, of which each of `group` threads has a and b. */
template <typename T>
__device__ __forceinline__ void norm_head(const head_part<T> &part, const struct rope_params &p,
                                          const float *weight, int32_t group, float *a, float *b)
{
    constexpr int N = vec<T>::N;
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < N; e++) {
        sum = add_squares(sum, a[e], b[e]);
    }
    const unsigned lanes = __activemask();
    for (int mask = group >> 1; mask > 0; mask >>= 1) {
        sum += __shfl_xor_sync(lanes, sum, mask);
    }
    const float scale = 1.0f / sqrtf(sum / (float)p.head_dim + p.eps);
#pragma unroll
    for (int e = 0; e < N; e++) {
        a[e] *= scale * (weight ? weight[part.first + e] + p.norm_offset : 1.0f);
        b[e] *= scale * (weight ? weight[part.second + e] + p.norm_offset : 1.0f);
    }
}

/* The norm and the rotation of a thread's elements. `turns`: they are rotated. */
template <typename T, norm_when NORM>
__device__ __forceinline__ void norm_and_turn(const head_part<T> &part, const struct rope_params &p,
                                              const float *weight, int32_t group, bool is_v,
                                              bool turns, const float4 *cos_sin, float *a, float *b)
{
    if (NORM == NORM_FIRST || is_v) {
        norm_head(part, p, weight, group, a, b);
    }
    if (turns && !is_v) {
        turn_all<vec<T>::N>(a, b, cos_sin);
    }
    if (NORM == NORM_LAST && !is_v) {
        norm_head(part, p, weight, group, a, b);
    }
}

/* The two heads of a group of threads: queries, of which the second may not exist, or a key and its
 * value. Rows are taken from the last to the first: the L2 cache still holds the last ones that the
 * product has written. */
struct head_pair {
    int32_t row;          // negative: none
    int32_t kv_head;      // negative for queries
    int32_t first, apart; // where the first head begins in the row, and the second after it
    bool has_second;
};

__device__ __forceinline__ struct head_pair head_pair_of(const struct rope_params &p,
                                                         int32_t n_rows, int32_t group)
{
    const int32_t n_queries = (p.n_heads + 1) / 2, per_row = n_queries + p.n_kv_heads;
    const int32_t from_end = group / per_row, i = group - from_end * per_row;
    struct head_pair h = {n_rows - 1 - from_end, i - n_queries, 2 * i * p.head_dim, p.head_dim,
                          2 * i + 1 < p.n_heads};
    if (h.kv_head >= 0) {
        h.first = (p.n_heads + h.kv_head) * p.head_dim;
        h.apart = p.n_kv_heads * p.head_dim;
        h.has_second = true;
    }
    return h;
}

template <typename T>
__device__ __forceinline__ void load_both(head_part<T> (&part)[2], T *const (&head)[2],
                                          bool has_second)
{
    part[0].load(head[0]);
    if (has_second) {
        part[1].load(head[1]);
    }
}

template <typename T>
__device__ __forceinline__ void
load_both_sums(head_part<T> (&part)[2], const struct sum_parts &sums, const struct head_pair &h)
{
    part[0].load_sums(sums, h.row, h.first);
    if (h.has_second) {
        part[1].load_sums(sums, h.row, h.first + h.apart);
    }
}

/* The common case: 16-bit heads that are rotated in halves, either whole or only their first
 * elements, with an RMS norm per head or none. A thread has two vectors of 16 bytes of each of two
 * heads: one in the first half of the rotated elements and its partner in the second half, or two
 * of the elements that are not rotated. The heads are two queries, or a key and its value, which is
 * checked with it (see are_storable): so more bytes are in flight, and angles are read once for
 * both. */
template <typename T, norm_when NORM, bool CODES>
__global__ void __launch_bounds__(ROPE_VEC_THREADS)
    rope_store_vec_kernel(T *qkv, struct rope_params p, struct rope_view rope, const float *q_norm,
                          const float *k_norm, struct kv_view kv, struct pass_view pass,
                          int32_t n_rows, int32_t group_shift, struct sum_parts sums)
{
    constexpr int N = vec<T>::N;
    const int32_t group = 1 << group_shift; // number of threads per pair of heads
    const int32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    const struct head_pair h = head_pair_of(p, n_rows, thread >> group_shift);
    /* A product that leaves partial sums triggers this kernel only after all kernels before it have
     * ended. What that product does not write can be read before the wait. */
    if (sums.n == 0 || h.row < 0) {
        pdl_wait();
    }
    if (h.row < 0) {
        return; // all threads of a group
    }
    const int32_t half = p.head_dim / 2, d = (thread & (group - 1)) * N;
    const bool turns = d < rope.n_pairs, is_q = h.kv_head < 0;
    head_part<T> part[2];
    part[0].first = part[1].first = turns ? d : d + rope.n_pairs;
    part[0].second = part[1].second = d + (turns ? rope.n_pairs : half);
    T *to[2] = {qkv + (int64_t)h.row * p.stride + h.first, NULL};
    to[1] = to[0] + h.apart;
    if (sums.n > 0) {
        if (turns) {
            asm volatile(
                "prefetch.global.L1 [%0];" ::"l"(angles_at(rope, pass.rows[h.row].pos, d)));
        }
        pdl_wait();
        pdl_trigger();
        load_both_sums(part, sums, h);
    } else {
        pdl_trigger();
        load_both(part, to, h.has_second); // first, because the loads below wait for one another
    }
    const struct pass_row row = pass.rows[h.row];
    float4 cos_sin[N / 2];
    if (turns) {
        const float4 *angles = angles_at(rope, row.pos, d);
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            cos_sin[e] = angles[e];
        }
    }
    struct kv_place at = {};
    if (!is_q) {
        locate<CODES>(kv, pass, row, h.kv_head, to, &at);
    }
    const bool ok = is_q || check_value<T, CODES>(part[1]);
    const float growth = is_q ? growth_at(p.growth, row.pos) : 1.0f;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const bool is_v = k == 1 && !is_q;
        float a[N], b[N];
        part[k].get(a, b);
        if (!is_v || p.v_norm) {
            const float *weight = is_v ? NULL : k_norm;
            if (is_q) {
                weight = q_norm;
            }
            norm_and_turn<T, NORM>(part[k], p, weight, group, is_v, turns, cos_sin, a, b);
            a[0] = ok || is_v ? a[0] : NAN;
            part[k].set(a, b, growth);
        }
        if (CODES && !is_q) {
            store_codes<N>(kv, at, is_v, group, half, d, a, b);
        } else if (k == 0 || h.has_second) {
            part[k].store(to[k]);
        }
    }
}

/* A norm over the whole width must read the row before other warps rotate their heads, so a
 * separate first kernel normalises the row in place. */
template <typename T>
__global__ void qk_width_norm_kernel(T *qkv, struct rope_params p, const float *q_norm,
                                     const float *k_norm)
{
    __shared__ float shared[32];
    pdl_wait();
    const bool is_q = blockIdx.y == 0;
    const int n = (is_q ? p.n_heads : p.n_kv_heads) * p.head_dim;
    T *x = qkv + (int64_t)blockIdx.x * p.stride + (is_q ? 0 : p.n_heads * p.head_dim);
    const float *weight = is_q ? q_norm : k_norm;
    float sum = 0.0f, mean = 0.0f;
    if (p.layer) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            sum += to_float(x[i]);
        }
        mean = block_sum(sum, shared) / (float)n;
        sum = 0.0f;
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float f = to_float(x[i]) - mean;
        sum += f * f;
    }
    const float scale = 1.0f / sqrtf(block_sum(sum, shared) / (float)n + p.eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float y = (to_float(x[i]) - mean) * scale;
        x[i] = from_float<T>(weight ? y * (weight[i] + p.norm_offset) : y);
    }
}

/* log2 of the number of threads per head in the vector kernel; -1: that kernel cannot be used. */
template <typename T>
static int32_t vec_group_shift(const struct rope_params &p, const struct rope_view *rope,
                               const struct kv_view *kv, const T *qkv)
{
    const int32_t group = p.head_dim / (2 * vec<T>::N);
    const bool in_part = rope->n_pairs > 0 && 2 * rope->n_pairs != p.head_dim;
    const bool serves =
        sizeof(T) == 2 && p.head_dim % (2 * vec<T>::N) == 0 && (group & (group - 1)) == 0 &&
        group <= 32 && !rope->interleaved &&
        (!in_part || (rope->n_pairs % vec<T>::N == 0 && 2 * rope->n_pairs < p.head_dim &&
                      kv->codes.format == KV_PLAIN)) &&
        !p.layer &&
        (p.qk_norm == QK_NORM_NONE ||
         (p.qk_norm == QK_NORM_HEAD && p.q_norm_n <= p.head_dim && p.k_norm_n <= p.head_dim)) &&
        vec_ok(qkv, p.stride, p.head_dim, sizeof(T)) && kv->page_stride % 8 == 0 &&
        kv->head_stride % 8 == 0 && kv->v_offset % 8 == 0;
    int32_t shift = 0;
    while (serves && 1 << shift < group) {
        shift++;
    }
    return serves ? shift : -1;
}

/* NORM_FIRST, NORM_LAST and NO_NORM are separate instances. */
template <typename T, bool CODES> static auto vec_kernel(norm_when norm)
{
    switch (norm) {
    case NORM_FIRST: return rope_store_vec_kernel<T, NORM_FIRST, CODES>;
    case NORM_LAST: return rope_store_vec_kernel<T, NORM_LAST, CODES>;
    default: return rope_store_vec_kernel<T, NO_NORM, CODES>;
    }
}

/* 2^shift threads share a pair of heads. */
template <typename T>
static cudaError_t rope_store_vec(cudaStream_t stream, const struct rope_store_args *a,
                                  const struct rope_params &p, const struct rope_view *rope,
                                  const float *q_norm, const float *k_norm,
                                  const struct kv_view *kv, const struct pass_view *pass,
                                  int32_t shift, const struct sum_parts &sums)
{
    const int64_t n_pairs = (a->n_heads + 1) / 2 + a->n_kv_heads, n = a->n_rows * n_pairs << shift;
    const dim3 block(ROPE_VEC_THREADS);
    const dim3 grid((unsigned)((n + ROPE_VEC_THREADS - 1) / ROPE_VEC_THREADS));
    T *qkv = (T *)a->qkv.mem.p;
    norm_when norm = p.norm_after ? NORM_LAST : NORM_FIRST;
    if (p.qk_norm != QK_NORM_HEAD) {
        norm = NO_NORM;
    }
    const auto kernel =
        kv->codes.format == KV_PLAIN ? vec_kernel<T, false>(norm) : vec_kernel<T, true>(norm);
    return launch(kernel, grid, block, 0, stream, qkv, p, *rope, q_norm, k_norm, *kv, *pass,
                  a->n_rows, shift, sums);
}

/* Uses the fast kernel if widths and layout allow it. A norm over the whole width is a separate
 * launch before it. */
template <typename T>
static cudaError_t rope_store(cudaStream_t stream, const struct rope_store_args *a,
                              struct rope_params p, const struct rope_view *rope,
                              const float *q_norm, const float *k_norm, const struct kv_view *kv,
                              const struct pass_view *pass, const struct sum_parts &sums)
{
    T *qkv = (T *)a->qkv.mem.p;
    if (p.qk_norm == QK_NORM_WIDTH) {
        const cudaError_t e = launch(qk_width_norm_kernel<T>, dim3(a->n_rows, 2), dim3(256), 0,
                                     stream, qkv, p, q_norm, k_norm);
        if (e != cudaSuccess) {
            return e;
        }
        p.qk_norm = QK_NORM_NONE;
    }
    const int32_t shift = kv->dtype == a->qkv.dtype ? vec_group_shift<T>(p, rope, kv, qkv) : -1;
    if (shift >= 0) {
        return rope_store_vec<T>(stream, a, p, rope, q_norm, k_norm, kv, pass, shift, sums);
    }
    const int n_all = a->n_heads + 2 * a->n_kv_heads;
    const dim3 grid(a->n_rows, (n_all + ROPE_WARPS - 1) / ROPE_WARPS), block(32 * ROPE_WARPS);
    BY_DTYPE(kv->dtype, C,
             return launch(rope_store_kernel<T, C>, grid, block, 0, stream, qkv, p, *rope, q_norm,
                           k_norm, *kv, *pass));
    return cudaErrorInvalidValue;
}

static struct rope_params params_of(const struct rope_store_args *a, int32_t q_norm_n,
                                    int32_t k_norm_n)
{
    return {a->qkv.stride,      a->n_heads, a->n_kv_heads,
            a->head_dim,        a->qk_norm, a->qk_norm_kind == NORM_LAYER,
            a->norm_after_rope, a->v_norm,  a->eps,
            a->norm_offset,     q_norm_n,   k_norm_n,
            a->growth};
}

template <typename T>
static bool takes_sums(const struct rope_store_args *a, const struct rope_params &p,
                       const struct rope_view *rope, const struct kv_view *kv)
{
    return kv->dtype == a->qkv.dtype && a->qk_norm != QK_NORM_WIDTH &&
           vec_group_shift<T>(p, rope, kv, (const T *)a->qkv.mem.p) >= 0;
}

/* Whether the fast kernel will run; it is the only one that adds partial sums. */
extern "C" bool k_rope_takes_sums(const struct rope_store_args *a, const struct rope_view *rope,
                                  int32_t q_norm_n, int32_t k_norm_n, const struct kv_view *kv)
{
    const struct rope_params p = params_of(a, q_norm_n, k_norm_n);
    if (a->qkv.dtype == DT_BF16) {
        return takes_sums<bf16_t>(a, p, rope, kv);
    }
    return a->qkv.dtype == DT_F16 && takes_sums<f16_t>(a, p, rope, kv);
}

extern "C" cudaError_t k_rope_store(cudaStream_t stream, const struct rope_store_args *a,
                                    const struct rope_view *rope, const float *q_norm,
                                    int32_t q_norm_n, const float *k_norm, int32_t k_norm_n,
                                    const struct kv_view *kv, const struct pass_view *pass,
                                    const struct sum_parts *given)
{
    if (a->head_dim > ROPE_MAX_HEAD) {
        return cudaErrorInvalidValue;
    }
    const struct rope_params p = params_of(a, q_norm_n, k_norm_n);
    const struct sum_parts sums = given ? *given : sum_parts{};
    BY_DTYPE(a->qkv.dtype, T,
             return rope_store<T>(stream, a, p, rope, q_norm, k_norm, kv, pass, sums));
    return cudaErrorInvalidValue;
}
