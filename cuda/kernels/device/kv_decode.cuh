// SPDX-License-Identifier: Apache-2.0
/* Decoding of quantised keys and values on their way to shared memory.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_KV_DECODE_CUH
#define SLUICE_CUDA_DEVICE_KV_DECODE_CUH

#include "cuda/kernels/device/kv_codes.cuh"

/* Writes eight elements of a token's row, from d on, rounded to T; or zeros if there is no such
 * token. */
template <typename T>
__device__ __forceinline__ void put_decoded(T *to, const struct kv_codes &c,
                                            const struct kv_place &at, bool is_v, struct kv_scale s,
                                            int d, bool real)
{
    vec<T> out;
    uint8_t bytes[8] = {};
    if (real && c.format == KV_INT4) {
        *(uint32_t *)bytes = *(const uint32_t *)kv_byte(c, at, is_v, d / 2);
    } else if (real) {
        *(uint2 *)bytes = *(const uint2 *)kv_byte(c, at, is_v, d);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float x = kv_number(c.format, s, bytes[c.format == KV_INT4 ? e / 2 : e], e);
        out.v[e] = from_float<T>(real ? x : 0.0f);
    }
    out.store(to);
}

#endif
