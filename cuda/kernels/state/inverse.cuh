// SPDX-License-Identifier: Apache-2.0
/* The inverse of a unit lower triangle of BLOCK rows in shared memory, with THREADS threads, for
 * blocks.cu. Thread: device code. */
#ifndef SLUICE_CUDA_STATE_INVERSE_CUH
#define SLUICE_CUDA_STATE_INVERSE_CUH

#include "cuda/kernels/device/round_pair.cuh"
#include "cuda/kernels/state/blocks.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

/* (1 + L)^-1 is built from squares of 16, 32 and 64 rows. If A and B are the inverses of a square's
 * upper left and lower right quarters, the lower left quarter of the square's inverse is -B L A,
 * with L from that quarter. The strict upper half of `lower` is zero, and the results replace L. */
enum { SQUARE = 16 };

/* A warp inverts one square on the diagonal; lane l < 16 has column l. */
__device__ __forceinline__ static void invert_square(float (*lower)[BLOCK + 4], int32_t first)
{
    const int32_t column = threadIdx.x & (SQUARE - 1);
    float x[SQUARE];
#pragma unroll
    for (int i = 0; i < SQUARE; i++) {
        float sum[2] = {i == column ? 1.0f : 0.0f, 0.0f};
#pragma unroll
        for (int m = 0; m < i; m++) {
            sum[m & 1] = fmaf(-lower[first + i][first + m], x[m], sum[m & 1]);
        }
        x[i] = sum[0] + sum[1];
    }
    __syncwarp();
    if ((threadIdx.x & 31) < SQUARE) {
#pragma unroll
        for (int i = 0; i < SQUARE; i++) {
            lower[first + i][first + column] = x[i];
        }
    }
}

/* d += a b with numbers of 11 bits; the tensor cores ignore the other bits of each float. */
__device__ __forceinline__ static void mma_16x8x8(float (&d)[4], const float (&a)[4],
                                                  const float (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
                   "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

/* Splits each x into its first 11 bits and the rest. */
template <int M>
__device__ __forceinline__ static void split(const float (&x)[M], float (&high)[M], float (&low)[M])
{
#pragma unroll
    for (int i = 0; i < M; i++) {
        high[i] = __uint_as_float(__float_as_uint(x[i]) & 0xffffe000u);
        low[i] = x[i] - high[i];
    }
}

/* Computes c = sign * a * b for N x N matrices, almost as exactly as in fp32: numbers are split in
 * two, and only products of two low parts are left out. N / 8 warps share the work, of which this
 * is number `warp`. */
template <int N>
__device__ __forceinline__ static void
multiply_square(const float (*a)[BLOCK + 4], const float (*b)[BLOCK + 4], float (*c)[BLOCK + 4],
                int32_t warp, float sign)
{
    constexpr int NF = N / 16;
    const int32_t lane = threadIdx.x & 31, i = lane >> 2, j = lane & 3;
    const int32_t row = warp / 2 * 16 + i, first = warp % 2 * NF * 8;
    float sum[NF][4] = {}, small[NF][4] = {};
#pragma unroll 2
    for (int k = 0; k < N; k += 8) {
        const float x[4] = {a[row][k + j], a[row + 8][k + j], a[row][k + j + 4],
                            a[row + 8][k + j + 4]};
        float x_high[4], x_low[4];
        split(x, x_high, x_low);
#pragma unroll
        for (int n = 0; n < NF; n++) {
            const float y[2] = {b[k + j][first + n * 8 + i], b[k + j + 4][first + n * 8 + i]};
            float y_high[2], y_low[2];
            split(y, y_high, y_low);
            mma_16x8x8(small[n], x_low, y_high);
            mma_16x8x8(sum[n], x_high, y_high);
            mma_16x8x8(small[n], x_high, y_low);
        }
    }
#pragma unroll
    for (int n = 0; n < NF; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            *(float2 *)&c[row + half * 8][first + n * 8 + j * 2] =
                make_float2(sign * (sum[n][half * 2] + small[n][half * 2]),
                            sign * (sum[n][half * 2 + 1] + small[n][half * 2 + 1]));
        }
    }
}

/* Computes -B L A for two neighbouring squares of N rows, the first of which starts at row `first`.
 * `half` receives L A. */
template <int N>
__device__ __forceinline__ static void
join_squares(float (*lower)[BLOCK + 4], float (*half)[BLOCK + 4], int32_t first, int32_t warp)
{
    const auto at = [&](int32_t r, int32_t c) {
        return (float (*)[BLOCK + 4]) & lower[first + r][first + c];
    };
#pragma unroll 1
    for (int i = 0; i < 2; i++) { // the same code for both products
        multiply_square<N>(i == 0 ? at(N, 0) : at(N, N), i == 0 ? at(0, 0) : half,
                           i == 0 ? half : at(N, 0), warp, i == 0 ? 1.0f : -1.0f);
        __syncthreads();
    }
}

/* Called by all threads of the block. */
__device__ static void invert(float (*lower)[BLOCK + 4], float (*half)[BLOCK + 4])
{
    const int32_t warp = threadIdx.x >> 5;
    invert_square(lower, warp * SQUARE);
    __syncthreads();
    join_squares<SQUARE>(lower, half + (warp / 2) * SQUARE, warp / 2 * 2 * SQUARE, warp % 2);
    join_squares<2 * SQUARE>(lower, half, 0, warp);
}

/* Stores the inverse, rounded, up to the squares on the diagonal. */
template <typename T>
__device__ __forceinline__ void store_inverse(T *inverse, const float (*lower)[BLOCK + 4])
{
#pragma unroll 1
    for (int32_t i = threadIdx.x * 8; i < BLOCK * BLOCK; i += THREADS * 8) {
        const float *from = &lower[i / BLOCK][i % BLOCK];
        const float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
        if (i % BLOCK / SQUARE <= i / BLOCK / SQUARE) {
            *(uint4 *)(inverse + i) =
                make_uint4(round_pair(a.x, a.y, T()), round_pair(a.z, a.w, T()),
                           round_pair(b.x, b.y, T()), round_pair(b.z, b.w, T()));
        }
    }
}

#endif
