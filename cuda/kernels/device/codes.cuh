// SPDX-License-Identifier: Apache-2.0
/* Converts codes of quantised weights (cuda/coded.h) to pairs of bf16 or fp16, which represent them
 * exactly. This is done with bit operations, so that every device gives the same result.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_CODES_CUH
#define SLUICE_CUDA_DEVICE_CODES_CUH

#include "cuda/kernels/device/types.cuh"

template <typename T> struct code_constants;
template <> struct code_constants<bf16_t> {
    using pair = __nv_bfloat162;
    static constexpr uint32_t E4M3 = 0x7b807b80, E2M1 = 0x7e807e80; // 2^120, 2^126
    static constexpr int E4M3_DOWN = 4, E2M1_UP = 6;
    static constexpr uint32_t INT = 0x43004300; // 128, where the last mantissa bit is worth 1
    static constexpr float INT_BASE = 128.0f;
};
template <> struct code_constants<f16_t> {
    using pair = __half2;
    static constexpr uint32_t E4M3 = 0x5c005c00, E2M1 = 0x74007400; // 2^8, 2^14
    static constexpr int E4M3_DOWN = 1, E2M1_UP = 9;
    static constexpr uint32_t INT = 0x64006400; // 1024
    static constexpr float INT_BASE = 1024.0f;
};

template <typename T> __device__ __forceinline__ uint32_t pair_times(uint32_t a, uint32_t b)
{
    using pair = typename code_constants<T>::pair;
    const pair p = __hmul2(*(const pair *)&a, *(const pair *)&b);
    return *(const uint32_t *)&p;
}

template <typename T> __device__ __forceinline__ uint32_t pair_minus(uint32_t a, uint32_t b)
{
    using pair = typename code_constants<T>::pair;
    const pair p = __hsub2(*(const pair *)&a, *(const pair *)&b);
    return *(const uint32_t *)&p;
}

/* The value for pair_of's argument `zero`, given a zero point. */
template <typename T> __device__ __forceinline__ uint32_t zero_pair(int32_t zero)
{
    const T v = from_float<T>(code_constants<T>::INT_BASE + (float)zero);
    uint16_t half;
    memcpy(&half, &v, sizeof half);
    return (uint32_t)half << 16 | half;
}

/* Converts two of the word's codes, less the zero: nibbles i and i + 4 of 4-bit codes, bytes i and
 * i + 2 of 8-bit codes. The exponent bits are moved unchanged to the exponent field of T. The
 * difference of the biases is then corrected by multiplying by a power of two, which is exact for
 * subnormal codes, too. */
template <typename T, enum dtype CODE>
__device__ __forceinline__ uint32_t pair_of(uint32_t word, int i, uint32_t zero)
{
    using C = code_constants<T>;
    if (CODE == DT_E4M3) {
        // Takes one shift less than converting halves.
        constexpr uint32_t MASK = 0x7f007f00u >> C::E4M3_DOWN;
        const uint32_t size = i == 0 ? word << (8 - C::E4M3_DOWN) : word >> C::E4M3_DOWN;
        const uint32_t sign = i == 0 ? word << 8 : word;
        return pair_times<T>((size & MASK) | (sign & 0x80008000u), C::E4M3);
    }
    const uint32_t w = word >> (4 * i);
    if (CODE == DT_E2M1) {
        return pair_times<T>((w & 0x00070007u) << C::E2M1_UP | (w & 0x00080008u) << 12, C::E2M1);
    }
    return pair_minus<T>((w & 0x000f000fu) | C::INT, zero);
}

/* Scale i of a record. */
template <enum dtype CODE> __device__ __forceinline__ float scale_at(const void *scales, int i)
{
    if (CODE == DT_E2M1) {
        const uint32_t e = ((const uint8_t *)scales)[i];
        return __uint_as_float(e ? e << 23 : 0x00400000u);
    }
    return ((const float *)scales)[i];
}

#endif
