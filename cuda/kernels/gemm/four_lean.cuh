// SPDX-License-Identifier: Apache-2.0
/* What four_lean.cu and four_head.cu share: 4-bit codes as subnormal numbers, the rows of x in
 * shared memory, and the product of a chunk.
 *
 * A 16-bit half with a nibble in its lowest eight bits, read as bf16 or fp16, is subnormal or among
 * the smallest normal numbers, which have the same spacing. A float code also becomes a small
 * number, if its last exponent bit is shifted to the last exponent bit of the half. The tensor
 * cores multiply such numbers exactly, so a pair of codes takes one instruction. Products with bf16
 * would be too small for fp32, so x is scaled by 2^64 as it is copied, or by 2^60 where the codes
 * are sixteen times too large. A group's sums start from minus the zero point times the sum of x
 * over the group, which the tensor cores compute when x is copied. Thread: device code. */
#ifndef SLUICE_CUDA_GEMM_FOUR_LEAN_CUH
#define SLUICE_CUDA_GEMM_FOUR_LEAN_CUH

#include "cuda/coded.h"
#include "cuda/kernels/device/codes.cuh"
#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/device/kept.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/pairs.cuh"

#include <type_traits>

enum {
    CHUNK = 128, // inputs
    ROWS = 8,    // at most
    WARPS = 16,
    RECORD = 64,              // bytes of the scales of a tile row's chunk
    BLOCK_BYTES = 221 * 1024, // of shared memory; the rest lets small kernels run beside it
};

#if HAVE_SM90A

/* How a word of codes becomes pairs of T, nibbles i and i + 4. The integers of pairs 1 and 3 come
 * out sixteen times too large. For bf16 the inputs there are scaled down to compensate. fp16 lacks
 * the exponent range for that, so these pairs have separate sums (CHAINS). */
template <typename T, enum coded_code CODE> struct lean_codes {
    static constexpr bool IS_BF16 = std::is_same<T, bf16_t>::value, IS_INT = CODE == CODED_U4;
    static constexpr uint32_t UP = 0x5f805f80u, UP_ODD = IS_INT ? 0x5d805d80u : UP;  // 2^64, 2^60
    static constexpr uint32_t ONE = 0x00010001u, ONE_ODD = IS_BF16 ? ONE << 4 : ONE; // codes 1
    static constexpr int CHAINS = IS_INT && !IS_BF16 ? 2 : 1;

    /* The factor that the sums must be multiplied by. */
    static __device__ __forceinline__ float unit()
    {
        constexpr int BF16 = (IS_INT ? 133 : 126) - 64, F16 = IS_INT ? 24 : 14;
        return __uint_as_float((uint32_t)(127 + (IS_BF16 ? BF16 : F16)) << 23);
    }

    static __device__ __forceinline__ void make(uint32_t word, uint32_t (&pairs)[4])
    {
        constexpr int UP_BITS = code_constants<T>::E2M1_UP;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (IS_INT) {
                pairs[i] = (i < 2 ? word : word >> 8) & (i % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
            } else {
                const uint32_t size = shifted(word, UP_BITS - 4 * i) & (0x00070007u << UP_BITS);
                pairs[i] = and_or(shifted(word, 12 - 4 * i), 0x80008000u, size);
            }
        }
    }
};

/* A part of x in shared memory: rows, and their sums over each chunk. */
struct lean_x {
    char *rows;  // [n_rows, x_pitch bytes]
    float *sums; // [chunks, ROWS], in units of a code
};

/* Copies a part of x: a warp copies one row, or a share of it, eight inputs per lane.
 * Inputs past the end of K are zeros. */
template <typename T, typename L, typename P>
__device__ __forceinline__ void stage_x(const P &p, const struct lean_x &x, int32_t first,
                                        int32_t end)
{
    constexpr int PIECES = 4; // of x, in flight at the same time
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int bits = p.row_bits, row = warp & ((1 << bits) - 1), step = kept(WARPS * 32 >> bits);
    const int n = kept((end - first) * (CHUNK / 8));
    const int n_valid = kept(min(n, (p.n_in - first * CHUNK) / 8) - lane);
    const uint32_t up = lane % 2 ? L::UP_ODD : L::UP, one = lane % 2 ? L::ONE_ODD : L::ONE;
    if (row >= p.n_rows) {
        return;
    }
    const uint4 *from =
        kept((const uint4 *)((const T *)p.x + (int64_t)row * p.x_stride + first * CHUNK) + lane);
    char *to = x.rows + kept(row * p.x_pitch + lane * 16);
    float *to_sum = x.sums + kept(lane / 2 * ROWS + row);
#pragma unroll 1
    for (int i = (warp >> bits) * 32; i < n; i += PIECES * step) {
        uint4 v[PIECES];
#pragma unroll
        for (int j = 0, at = i; j < PIECES; j++, at += step) {
            v[j] = make_uint4(0, 0, 0, 0);
            if (at < n_valid) {
                v[j] = from[at];
            }
        }
#pragma unroll 1 // a single copy of the code, which works on v[0]
        for (int j = 0, at = i; j < PIECES && at < n; j++, at += step) {
            if (L::IS_BF16) {
                v[0].x = pair_times<T>(v[0].x, up);
                v[0].y = pair_times<T>(v[0].y, up);
                v[0].z = pair_times<T>(v[0].z, up);
                v[0].w = pair_times<T>(v[0].w, up);
            }
            if (at + lane < n) {
                *(uint4 *)(to + at * 16) = v[0];
            }
            if (L::IS_INT) {
                /* A product with ones adds up x. Four lanes hold a column of the operand, and
                 * lane t gets the sums of two columns: those of lanes 8 t to 8 t + 7. Half a warp
                 * holds a chunk. */
                float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                const uint32_t ones[4] = {one, one, one, one};
                mma_16x8x16(sum, ones, v[0].x, v[0].y, T());
                mma_16x8x16(sum, ones, v[0].z, v[0].w, T());
                const float eight = sum[0] + sum[1];
                const float all = eight + __shfl_xor_sync(0xffffffffu, eight, 1);
                if (lane < 4 && lane % 2 == 0 && at + lane * 8 < n) {
                    to_sum[at * ROWS / 16] = all; // `at` is a multiple of 32
                }
            }
#pragma unroll
            for (int k = 0; k + 1 < PIECES; k++) {
                v[k] = v[k + 1];
            }
        }
    }
}

/* Adds a chunk. from: its codes. scales, zeros: those of the first tile row, of which TOGETHER
 * chunks lie together, before those of the second one. x: the address of this lane's row of the
 * chunk, as ldmatrix needs it. x_sums: the chunk's sums of x. */
template <typename T, enum coded_code CODE, int HALVES, int TOGETHER, typename P>
__device__ __forceinline__ void add_chunk(const P &p, const char *from, const char *scales,
                                          const char *zeros, const char *x, const float *x_sums,
                                          float (&acc)[2][4])
{
    constexpr int SECOND = TOGETHER * RECORD, SECOND_ZEROS = TOGETHER * CODED_ROWS;
    using L = lean_codes<T, CODE>;
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float sums[L::CHAINS][2][4], scale[4]; // of tile row i / 2, feature g or g + 8
#pragma unroll
    for (int i = 0; i < L::CHAINS * 8; i++) {
        sums[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }
    if (L::IS_INT) {
        const float2 of_x = *(const float2 *)(x_sums + 2 * t);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scale[i] = scale_at<CODE>(scales + i / 2 * SECOND, i % 2 * 8 + g);
            const uint8_t *of_lane = (const uint8_t *)zeros + i / 2 * SECOND_ZEROS + i % 2 * 8 + g;
            const float zero = p.zeros ? (float)*of_lane : p.zero;
            sums[0][i / 2][i % 2 * 2] = -zero * of_x.x;
            sums[0][i / 2][i % 2 * 2 + 1] = -zero * of_x.y;
        }
    }
    /* Adds the sums over a group, scaled, and begins the next ones. A group is a chunk for
     * integers, and 32 inputs for float codes. */
    auto add_group = [&]() {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int f = i / 4, e = i % 4;
            float v = sums[0][f][e];
            if (L::CHAINS == 2) {
                v = fmaf(sums[L::CHAINS - 1][f][e], 1.0f / 16, v);
            }
            acc[f][e] = fmaf(v, scale[2 * f + e / 2], acc[f][e]);
            sums[0][f][e] = 0.0f;
        }
    };
#pragma unroll HALVES
    for (int half = 0; half < 2; half++) {
        uint2 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = *(const uint2 *)(from + i * 512 + lane * 16 + half * 8);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t b[4], pairs[4][4];
            ldmatrix_x4(b, x + half * 128 + j * 64);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                L::make(j == 0 ? words[i].x : words[i].y, pairs[i]);
            }
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    const uint32_t a[4] = {pairs[2 * f][odd], pairs[2 * f + 1][odd],
                                           pairs[2 * f][odd + 2], pairs[2 * f + 1][odd + 2]};
                    mma_16x8x16(sums[odd % L::CHAINS][f], a, b[2 * odd], b[2 * odd + 1], T());
                }
            }
            if (!L::IS_INT) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    scale[i] =
                        scale_at<CODE>(scales + i / 2 * SECOND, (i % 2 * 8 + g) * 4 + half * 2 + j);
                }
                add_group();
            }
        }
    }
    if (L::IS_INT) {
        add_group();
    }
}

#endif // HAVE_SM90A
#endif
