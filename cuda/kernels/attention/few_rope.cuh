// SPDX-License-Identifier: Apache-2.0
/* The norms and the rotation of a new row's heads, four lanes to a head, and the norm of its value.
 * Thread: device code, all lanes of a warp. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FEW_ROPE_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FEW_ROPE_CUH

#include "cuda/kernels/attention/few_params.cuh"
#include "cuda/kernels/attention/sm90.cuh"
#include "cuda/kernels/device/growth.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/rope.cuh"

#if HAVE_SM90A

/* The first of the eight consecutive elements of a head that a lane holds in vector j. Vectors j
 * and j + DIM / 64 are rotated together. */
template <int DIM> __device__ __forceinline__ int few_dim(int lane, int j)
{
    return DIM == 64 ? (lane & 3) * 8 + j * 32 : (lane & 3) * 16 + (j >> 1) * 64 + (j & 1) * 8;
}

template <typename T> __device__ __forceinline__ float2 unpack(uint32_t v);
template <> __device__ __forceinline__ float2 unpack<bf16_t>(uint32_t v)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 unpack<f16_t>(uint32_t v)
{
    return __half22float2(*reinterpret_cast<const __half2 *>(&v));
}

/* The scale of the norm of this lane's head, with the bits of rope.cu, where a thread has one
 * vector and the vector with which it is rotated. */
template <typename T, int DIM>
__device__ __forceinline__ float few_norm_scale(const uint32_t (&q)[DIM / 32][4], float eps)
{
    constexpr int J = DIM / 32;
    static_assert(J <= 4, "the last sum adds two parts");
    float part[J / 2];
#pragma unroll
    for (int j = 0; j < J / 2; j++) {
        part[j] = 0.0f;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 a = unpack<T>(q[j][e]), b = unpack<T>(q[j + J / 2][e]);
            part[j] = add_squares(part[j], a.x, b.x);
            part[j] = add_squares(part[j], a.y, b.y);
        }
        part[j] = __fadd_rn(part[j], __shfl_xor_sync(0xffffffffu, part[j], 2));
        part[j] = __fadd_rn(part[j], __shfl_xor_sync(0xffffffffu, part[j], 1));
    }
    const float all = J == 4 ? __fadd_rn(part[0], part[J / 2 - 1]) : part[0];
    return 1.0f / sqrtf(all / (float)DIM + eps);
}

/* The RMS norm, without weights, of a value of 256 elements, of which each lane has eight. */
template <typename T> __device__ __forceinline__ void few_norm_value(uint4 &value, float eps)
{
    uint32_t *words = (uint32_t *)&value;
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float2 x = unpack<T>(words[e]);
        sum += x.x * x.x + x.y * x.y;
    }
    const float scale = 1.0f / sqrtf(warp_sum(sum) / 256.0f + eps);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float2 x = unpack<T>(words[e]);
        words[e] = pack<T>(x.x * scale, x.y * scale);
    }
}

/* What a lane needs for its elements of a head. It can be loaded before the head is known. */
template <typename T, int DIM, bool NORM, few_turn TURN> struct few_rope {
    static constexpr int J = DIM / 32; // vectors per lane
    static constexpr int ROTATED = TURN == TURN_FIRST ? FIRST_ELEMENTS : DIM;
    static constexpr int ANGLES = TURN == TURN_FIRST ? FIRST_ELEMENTS / 8 : DIM / 16;

    float4 cos_sin[ANGLES]; // each of two pairs
    float4 weight[NORM ? J * 2 : 1];

    /* is_query: this lane's head is a query, not a key. */
    __device__ __forceinline__ void load_weights(const struct few_params &p, int lane,
                                                 bool is_query)
    {
        if (NORM) {
            const float *from = is_query ? p.q_norm : p.k_norm;
#pragma unroll
            for (int j = 0; j < J * 2; j++) {
                weight[j] =
                    *reinterpret_cast<const float4 *>(from + few_dim<DIM>(lane, j / 2) + j % 2 * 4);
            }
        }
    }

    __device__ __forceinline__ void load_angles(const struct few_params &p, int lane, int pos,
                                                bool is_query)
    {
        const float *table = p.cos_sin + (int64_t)min(pos, p.max_pos - 1) * ROTATED;
#pragma unroll
        for (int j = 0; j < ANGLES; j++) {
            int at = few_dim<DIM>(lane, j / 4) * 2 + j % 4 * 4;
            if (TURN == TURN_NEIGHBOURS) {
                at = few_dim<DIM>(lane, j / 2) + j % 2 * 4;
            } else if (TURN == TURN_FIRST) { // the two halves have the same angles
                at &= ROTATED - 1;
            }
            cos_sin[j] = *reinterpret_cast<const float4 *>(table + at);
        }
        // some models scale a query by its position when they rotate it
        if (TURN != TURN_FIRST && p.growth.beta != 0.0f && is_query) {
            const float by = growth_at(p.growth, pos);
#pragma unroll
            for (int j = 0; j < ANGLES; j++) {
                cos_sin[j].x *= by, cos_sin[j].y *= by, cos_sin[j].z *= by, cos_sin[j].w *= by;
            }
        }
    }

    /* The scale of the norm of this lane's head. */
    __device__ __forceinline__ float norm_scale(const uint32_t (&q)[J][4], float eps) const
    {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < J; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float2 x = unpack<T>(q[j][e]);
                sum += x.x * x.x + x.y * x.y;
            }
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        return 1.0f / sqrtf(sum / (float)DIM + eps);
    }

    /* Elements 2 e and 2 e + 1 of vector j, with the norm if there is one. */
    __device__ __forceinline__ float2 normed(const uint32_t (&q)[J][4], int j, int e, float scale,
                                             float offset) const
    {
        float2 x = unpack<T>(q[j][e]);
        if (NORM) {
            const float *w = (const float *)&weight[j * 2 + e / 2] + e % 2 * 2;
            x.x *= scale * (w[0] + offset);
            x.y *= scale * (w[1] + offset);
        }
        return x;
    }

    /* Rotates neighbours together (without norms). */
    __device__ __forceinline__ void turn_neighbours(uint32_t (&q)[J][4]) const
    {
#pragma unroll
        for (int i = 0; i < J * 4; i++) {
            const float4 cs = cos_sin[i / 2];
            const float c = i % 2 ? cs.z : cs.x, s = i % 2 ? cs.w : cs.y;
            const float2 x = unpack<T>(q[i / 4][i % 4]);
            q[i / 4][i % 4] = pack<T>(x.x * c - x.y * s, x.y * c + x.x * s);
        }
    }

    /* Rotates element e of vector j together with element e of vector j + J / 2. */
    __device__ __forceinline__ void turn_halves(uint32_t (&q)[J][4], float scale,
                                                float offset) const
    {
#pragma unroll
        for (int j = 0; j < J / 2; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float4 cs = cos_sin[j * 4 + e];
                const float2 a = normed(q, j, e, scale, offset);
                const float2 b = normed(q, j + J / 2, e, scale, offset);
                q[j][e] = pack<T>(a.x * cs.x - b.x * cs.y, a.y * cs.z - b.y * cs.w);
                q[j + J / 2][e] = pack<T>(b.x * cs.x + a.x * cs.y, b.y * cs.z + a.y * cs.w);
            }
        }
    }

    /* Rotates the first FIRST_ELEMENTS elements, which are vectors 0 and 1 of the four lanes. The
     * lane after the next has the elements that are rotated with those of this lane. */
    __device__ __forceinline__ void turn_first(uint32_t (&q)[J][4], int lane, float scale,
                                               float offset) const
    {
        const float sign = lane & 2 ? 1.0f : -1.0f; // of the sine: 1 in the second half
#pragma unroll
        for (int i = 0; i < J * 4; i++) {
            float2 x = normed(q, i / 4, i % 4, scale, offset);
            if (i < ANGLES) {
                const float4 cs = cos_sin[i];
                const float2 other = make_float2(__shfl_xor_sync(0xffffffffu, x.x, 2),
                                                 __shfl_xor_sync(0xffffffffu, x.y, 2));
                x.x = x.x * cs.x + sign * (other.x * cs.y);
                x.y = x.y * cs.z + sign * (other.y * cs.w);
            }
            q[i / 4][i % 4] = pack<T>(x.x, x.y);
        }
    }

    /* Normalises (if NORM) and rotates the heads q. */
    __device__ __forceinline__ void apply(const struct few_params &p, int lane,
                                          uint32_t (&q)[J][4]) const
    {
        const float scale = NORM ? norm_scale(q, p.eps) : 1.0f;
        if constexpr (TURN == TURN_NEIGHBOURS) {
            turn_neighbours(q);
        } else if constexpr (TURN == TURN_FIRST) {
            turn_first(q, lane, scale, p.norm_offset);
        } else {
            turn_halves(q, scale, p.norm_offset);
        }
    }
};

#endif // HAVE_SM90A

#endif
