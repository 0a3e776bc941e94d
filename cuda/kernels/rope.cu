// SPDX-License-Identifier: Apache-2.0
/* Rotary position embedding, the norms of queries and keys before or after it, the norm of values,
 * and the store into KV pages. A group of threads, at most a warp, holds one head in registers.
 * Bound by memory bandwidth or, with few rows, by latency. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/sums.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/rope.cuh"

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

enum norm_when { NO_NORM, NORM_FIRST, NORM_LAST }; // no norm; before the rope; after the rope

/* Stores a head as codes. `group` consecutive threads take part: each has N elements of the head's
 * first half, from d on, and the corresponding N elements of its second half. */
template <int N>
__device__ __forceinline__ void store_codes(const struct kv_view &kv, const struct kv_place &at,
                                            bool is_v, int group, int half, int d, const float *a,
                                            const float *b)
{
    const int lane = threadIdx.x & 31;
    const unsigned lanes = group == 32 ? 0xffffffffu : ((1u << group) - 1) << (lane & -group);
    struct kv_range r = KV_NO_RANGE;
#pragma unroll
    for (int e = 0; e < N; e++) {
        kv_range_add(r, a[e]);
        kv_range_add(r, b[e]);
    }
    const struct kv_codes &c = kv.codes;
    const struct kv_scale s = kv_scale_of(c, is_v, kv_range_of_lanes(r, lanes, group));
    if (d == 0) {
        kv_scale_put(c, at, is_v, s);
    }
    if (c.format == KV_INT4) {
        *(uint32_t *)kv_byte(c, at, is_v, d / 2) = kv_codes_of(KV_INT4, s, a);
        *(uint32_t *)kv_byte(c, at, is_v, (half + d) / 2) = kv_codes_of(KV_INT4, s, b);
        return;
    }
    *(uint2 *)kv_byte(c, at, is_v, d) =
        make_uint2(kv_codes_of(c.format, s, a), kv_codes_of(c.format, s, a + 4));
    *(uint2 *)kv_byte(c, at, is_v, half + d) =
        make_uint2(kv_codes_of(c.format, s, b), kv_codes_of(c.format, s, b + 4));
}

/* The cosines and sines of N pairs of a position, from pair d on. */
template <int N>
__device__ __forceinline__ void load_angles(float4 *cos_sin, const struct rope_view &rope,
                                            int32_t position, int32_t d)
{
    const int32_t pos = position < rope.max_pos ? position : rope.max_pos - 1;
    const float4 *table = (const float4 *)(rope.cos_sin + ((int64_t)pos * rope.n_pairs + d) * 2);
#pragma unroll
    for (int e = 0; e < N; e += 2) {
        cos_sin[e / 2] = table[e / 2];
    }
}

/* A thread's part of a head: N elements from `first` on, and N from `second` on. */
template <typename T> struct head_part {
    static constexpr int N = vec<T>::N;
    int32_t first, second;
    vec<T> low, high;

    __device__ __forceinline__ void load(const T *head)
    {
        low.load(head + first);
        high.load(head + second);
    }

    /* Adds the partial sums of row r, in which the head begins at element `at`. */
    __device__ __forceinline__ void load_sums(const struct sum_parts &sums, int32_t r, int32_t at)
    {
        load_sum(&low, sums, r, at + first);
        load_sum(&high, sums, r, at + second);
    }

    __device__ __forceinline__ void store(T *head) const
    {
        low.store(head + first);
        high.store(head + second);
    }
};

/* Where a head of K or V is stored: at `to`, or if pages have codes, at `at`. */
template <bool CODES, typename T>
__device__ __forceinline__ void locate(const struct kv_view &kv, const struct pass_view &pass,
                                       const struct pass_row &row, int32_t kv_head, bool is_v,
                                       T **to, struct kv_place *at)
{
    int64_t page;
    int32_t token;
    slot_of(pass, row, kv.block_tokens, &page, &token);
    if (CODES) {
        *at = kv_place_of(kv, page, kv_head, token);
    } else {
        *to = plain_head<T>(kv, page, token, kv_head, is_v);
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

/* Rotates N pairs by the angles of `cos_sin`. */
template <int N> __device__ __forceinline__ void turn_all(float *a, float *b, const float4 *cos_sin)
{
#pragma unroll
    for (int e = 0; e < N; e += 2) {
        const float4 cs = cos_sin[e / 2];
        turn(a[e], b[e], cs.x, cs.y);
        turn(a[e + 1], b[e + 1], cs.z, cs.w);
    }
}

/* Loads a thread's part of a head and, for a key, of its value. Waits for the preceding kernel if
 * that left partial sums. at: the head's first element in the row; to_value: from a key. */
template <typename T>
__device__ __forceinline__ void load_parts(head_part<T> &mine, head_part<T> &value, bool is_k,
                                           const struct sum_parts &sums, const T *head, int32_t r,
                                           int32_t at, int32_t to_value)
{
    if (sums.n > 0) {
        pdl_wait();
        pdl_trigger();
        mine.load_sums(sums, r, at);
        if (is_k) {
            value.load_sums(sums, r, at + to_value);
        }
    } else {
        pdl_trigger();
        mine.load(head);
        if (is_k) {
            value.load(head + to_value);
        }
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

/* Clears a value that cannot be stored. Returns false for its key. */
template <typename T, bool CODES>
__device__ __forceinline__ bool check_value(head_part<T> &mine, const head_part<T> &value,
                                            bool is_k, bool is_v)
{
    if (is_k) {
        return are_storable<T, CODES>(value.low, value.high);
    }
    if (is_v && !are_storable<T, CODES>(mine.low, mine.high)) {
        *(uint4 *)mine.low.v = *(uint4 *)mine.high.v = make_uint4(0, 0, 0, 0);
    }
    return true;
}

/* The common case: 16-bit heads that are rotated in halves, either whole or only their first
 * elements, with an RMS norm per head or none. A thread has two vectors of 16 bytes: one in the
 * first half of the rotated elements and its partner in the second half, or two of the elements
 * that are not rotated. A thread with vectors of a key also checks the same vectors of its value
 * (see are_storable).
 */
template <typename T, norm_when NORM, bool CODES>
__global__ void rope_store_vec_kernel(T *qkv, struct rope_params p, struct rope_view rope,
                                      const float *q_norm, const float *k_norm, struct kv_view kv,
                                      struct pass_view pass, int32_t n_rows, int32_t group_shift,
                                      struct sum_parts sums)
{
    constexpr int N = vec<T>::N;
    const int32_t group = 1 << group_shift; // number of threads per head
    const int32_t n_all = p.n_heads + 2 * p.n_kv_heads, per_row = n_all << group_shift;
    const int32_t item = blockIdx.x * blockDim.x + threadIdx.x;
    const int32_t r = item / per_row, h = (item - r * per_row) >> group_shift;
    /* A product that leaves partial sums triggers this kernel only after all kernels before it have
     * ended. What that product does not write can be read before the wait. */
    if (sums.n == 0 || r >= n_rows) {
        pdl_wait();
    }
    if (r >= n_rows) {
        // All threads of a group return together, because the number of threads in a row is a
        // multiple of the group.
        return;
    }
    const int32_t half = p.head_dim / 2, d = (item & (group - 1)) * N;
    const bool turns = d < rope.n_pairs;
    head_part<T> mine, value;
    mine.first = turns ? d : d + rope.n_pairs;
    mine.second = d + (turns ? rope.n_pairs : half);
    const struct pass_row row = pass.rows[r];
    T *head = qkv + (int64_t)r * p.stride + (int64_t)h * p.head_dim;
    const bool is_q = h < p.n_heads, is_v = h >= p.n_heads + p.n_kv_heads;
    float4 cos_sin[N / 2];
    if (turns && !is_v) {
        load_angles<N>(cos_sin, rope, row.pos, d);
    }
    T *to = head;
    struct kv_place at = {};
    if (!is_q) {
        const int32_t kv_head = h - p.n_heads - (is_v ? p.n_kv_heads : 0);
        locate<CODES>(kv, pass, row, kv_head, is_v, &to, &at);
    }
    const bool is_k = !is_q && !is_v;
    value.first = mine.first;
    value.second = mine.second;
    load_parts(mine, value, is_k, sums, head, r, h * p.head_dim, p.n_kv_heads * p.head_dim);
    const bool ok = check_value<T, CODES>(mine, value, is_k, is_v);
    float a[N], b[N];
#pragma unroll
    for (int e = 0; e < N; e++) {
        a[e] = to_float(mine.low.v[e]);
        b[e] = to_float(mine.high.v[e]);
    }
    if (!is_v || p.v_norm) {
        const float *weight = is_v ? NULL : k_norm;
        if (is_q) {
            weight = q_norm;
        }
        norm_and_turn<T, NORM>(mine, p, weight, group, is_v, turns, cos_sin, a, b);
        a[0] = ok ? a[0] : NAN;
        const float growth = is_q ? growth_at(p.growth, row.pos) : 1.0f;
#pragma unroll
        for (int e = 0; e < N; e++) {
            mine.low.v[e] = from_float<T>(a[e] * growth);
            mine.high.v[e] = from_float<T>(b[e] * growth);
        }
    }
    if (CODES && !is_q) {
        store_codes<N>(kv, at, is_v, group, half, d, a, b);
        return;
    }
    mine.store(to);
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

/* A thread has one vector of a head; 2^shift threads share the head. */
template <typename T>
static cudaError_t rope_store_vec(cudaStream_t stream, const struct rope_store_args *a,
                                  const struct rope_params &p, const struct rope_view *rope,
                                  const float *q_norm, const float *k_norm,
                                  const struct kv_view *kv, const struct pass_view *pass,
                                  int32_t shift, const struct sum_parts &sums)
{
    const int64_t items = (int64_t)a->n_rows * ((a->n_heads + 2 * a->n_kv_heads) << shift);
    const dim3 block(128), grid((unsigned)((items + 127) / 128));
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
