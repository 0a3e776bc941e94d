// SPDX-License-Identifier: Apache-2.0
/* A head that a group of threads holds in registers, each of them two vectors: its part of rope.cu.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_ROPE_HEAD_CUH
#define SLUICE_CUDA_KERNELS_ROPE_HEAD_CUH

#include "cuda/kernels/device/sums.cuh"
#include "cuda/kernels/rope.cuh"

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

/* The cosines and sines of the pairs of a position, from pair d on. */
__device__ __forceinline__ const float4 *angles_at(const struct rope_view &rope, int32_t position,
                                                   int32_t d)
{
    const int32_t pos = position < rope.max_pos ? position : rope.max_pos - 1;
    return (const float4 *)(rope.cos_sin + ((int64_t)pos * rope.n_pairs + d) * 2);
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

    __device__ __forceinline__ void get(float *a, float *b) const
    {
#pragma unroll
        for (int e = 0; e < N; e++) {
            a[e] = to_float(low.v[e]);
            b[e] = to_float(high.v[e]);
        }
    }

    __device__ __forceinline__ void set(const float *a, const float *b, float factor)
    {
#pragma unroll
        for (int e = 0; e < N; e++) {
            low.v[e] = from_float<T>(a[e] * factor);
            high.v[e] = from_float<T>(b[e] * factor);
        }
    }
};

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

/* Clears a value that cannot be stored. Returns false for its key. */
template <typename T, bool CODES> __device__ __forceinline__ bool check_value(head_part<T> &value)
{
    const bool ok = are_storable<T, CODES>(value.low, value.high);
    if (!ok) {
        *(uint4 *)value.low.v = *(uint4 *)value.high.v = make_uint4(0, 0, 0, 0);
    }
    return ok;
}

#endif
