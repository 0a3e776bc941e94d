// SPDX-License-Identifier: Apache-2.0
/* Converts codes of quantised weights (cuda/coded.h) to pairs of bf16 or fp16, which represent them
 * exactly. This is done with bit operations, so that every device gives the same result.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_CODES_CUH
#define SLUICE_CUDA_DEVICE_CODES_CUH

#include "cuda/coded.h"
#include "cuda/kernels/device/types.cuh"

/* Properties of a code. Using a code without a specialisation does not compile. */
template <enum coded_code CODE> struct code_of;
template <> struct code_of<CODED_E4M3> {
    static constexpr int BITS = 8, CHUNK = 64; // CHUNK: inputs in a chunk
    static constexpr int SCALE_BYTES = 4;
    static constexpr bool HAS_ZEROS = false;
};
template <> struct code_of<CODED_U4> {
    static constexpr int BITS = 4, CHUNK = 128;
    static constexpr int SCALE_BYTES = 4;
    static constexpr bool HAS_ZEROS = true;
};
template <> struct code_of<CODED_E2M1> {
    static constexpr int BITS = 4, CHUNK = 128;
    static constexpr int SCALE_BYTES = 1; // E8M0
    static constexpr bool HAS_ZEROS = false;
};

template <typename T> struct code_constants;
template <> struct code_constants<bf16_t> {
    using pair = __nv_bfloat162;
    static constexpr uint32_t E4M3 = 0x7b807b80, E2M1 = 0x7e807e80; // 2^120, 2^126
    static constexpr int E4M3_DOWN = 4, E2M1_UP = 6;
    static constexpr uint32_t INT = 0x43004300; // 128, where the last mantissa bit is worth 1
    // 2^127; INT_UP - INT_STEP is 2^123
    static constexpr uint32_t INT_UP = 0x7f007f00, INT_STEP = 0x02000200;
    static constexpr float INT_FACTOR = 1.0f / 64; // 2^127 * 2^-133 (the smallest number)
};
template <> struct code_constants<f16_t> {
    using pair = __half2;
    static constexpr uint32_t E4M3 = 0x5c005c00, E2M1 = 0x74007400; // 2^8, 2^14
    static constexpr int E4M3_DOWN = 1, E2M1_UP = 9;
    static constexpr uint32_t INT = 0x64006400;                           // 1024
    static constexpr uint32_t INT_UP = 0x78007800, INT_STEP = 0x10001000; // 2^15
    static constexpr float INT_FACTOR = 1.0f / 512;
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

/* (a & mask) | other, in one instruction. Otherwise the compiler spends two more instructions on
 * loading the constants. */
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t other)
{
    uint32_t to;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(to) : "r"(a), "r"(mask), "r"(other));
    return to;
}

/* The bits of a that are set in mask, and the other bits of b, in one instruction. */
__device__ __forceinline__ uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t to;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(to) : "r"(mask), "r"(a), "r"(b));
    return to;
}

/* The `zero` argument of pair_of for a zero point from 0 to 127. */
template <typename T> __device__ __forceinline__ uint32_t zero_pair(int32_t zero)
{
    return code_constants<T>::INT +
           (uint32_t)zero * 0x00010001u; // a mantissa's last bit is worth 1
}

/* Shifts to the left by n, or to the right by -n. */
__device__ __forceinline__ uint32_t shifted(uint32_t word, int n)
{
    return n >= 0 ? word << n : word >> -n;
}

/* Converts two of the word's codes and subtracts the zero point: nibbles i and i + 4 of 4-bit
 * codes, bytes i and i + 2 of 8-bit codes. The exponent bits are moved unchanged to the exponent
 * field of T. The difference of the biases is then corrected by multiplying by a power of two,
 * which is exact for subnormal codes, too. */
template <typename T, enum coded_code CODE>
__device__ __forceinline__ uint32_t pair_of(uint32_t word, int i, uint32_t zero)
{
    using C = code_constants<T>;
    if constexpr (CODE == CODED_E4M3) {
        // Both bytes are shifted at once, which saves a shift.
        constexpr uint32_t MASK = 0x7f007f00u >> C::E4M3_DOWN;
        const uint32_t size = i == 0 ? word << (8 - C::E4M3_DOWN) : word >> C::E4M3_DOWN;
        const uint32_t sign = i == 0 ? word << 8 : word;
        return pair_times<T>((size & MASK) | (sign & 0x80008000u), C::E4M3);
    } else if constexpr (CODE == CODED_E2M1) {
        const uint32_t size = shifted(word, C::E2M1_UP - 4 * i) & (0x00070007u << C::E2M1_UP);
        return pair_times<T>(and_or(shifted(word, 12 - 4 * i), 0x80008000u, size), C::E2M1);
    } else {
        static_assert(CODE == CODED_U4, "this code needs a conversion");
        return pair_minus<T>(and_or(word >> (4 * i), 0x000f000fu, C::INT), zero);
    }
}

template <typename T>
__device__ __forceinline__ uint32_t pair_fma(uint32_t a, uint32_t b, uint32_t c)
{
    using pair = typename code_constants<T>::pair;
    const pair p = __hfma2(*(const pair *)&a, *(const pair *)&b, *(const pair *)&c);
    return *(const uint32_t *)&p;
}

/* Converts a word of 4-bit codes to four pairs at once; pair i has nibbles i and i + 4, times
 * FACTOR. An integer code needs almost no shifts: a nibble in the lower eight bits of a 16-bit
 * half, read as a number of T, is subnormal or among the smallest normal numbers, which are equally
 * spaced. One fused multiply-add scales it to the normal range and subtracts the zero point, so a
 * word needs only one shift. */
template <typename T, enum coded_code CODE> struct word_codes {
    using C = code_constants<T>;
    static constexpr float FACTOR = CODE == CODED_U4 ? C::INT_FACTOR : 1.0f;

    /* The argument of make for a zero point from 0 to 127. */
    static __device__ __forceinline__ uint32_t zero(int32_t zero)
    {
        return pair_times<T>((uint32_t)zero * 0x00010001u, C::INT_UP | 0x80008000u);
    }

    static __device__ __forceinline__ void make(uint32_t word, uint32_t zero, uint32_t (&pairs)[4])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (CODE == CODED_U4) {
                const uint32_t half = i < 2 ? word : word >> 8;
                pairs[i] = pair_fma<T>(half & (i % 2 == 0 ? 0x000f000fu : 0x00f000f0u),
                                       C::INT_UP - i % 2 * C::INT_STEP, zero);
            } else {
                pairs[i] = pair_of<T, CODE>(word, i, 0);
            }
        }
    }
};

/* Scale i of a record. */
template <enum coded_code CODE> __device__ __forceinline__ float scale_at(const void *scales, int i)
{
    if constexpr (code_of<CODE>::SCALE_BYTES == 1) {
        const uint32_t e = ((const uint8_t *)scales)[i];
        return __uint_as_float(e ? e << 23 : 0x00400000u);
    } else {
        return ((const float *)scales)[i];
    }
}

#endif
