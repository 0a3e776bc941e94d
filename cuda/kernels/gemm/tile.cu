// SPDX-License-Identifier: Apache-2.0
/* Tiled products: any shape and dtype, with the same bits for a row whatever the number of rows.
 * 16-bit operands use the tensor cores; everything else uses fp32 fused multiply-adds, each element
 * summed over K in ascending order. A block computes one tile of the output over all of K. Bound by
 * arithmetic, or by reading the weight when few tiles leave multiprocessors idle. */
#include "cuda/gemm.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"

template <typename Y>
__device__ __forceinline__ void put(const struct gemm_args &a, Y *y, int m, int n, float v)
{
    if (m < a.n_rows && n < a.n_out) {
        Y *to = y + (int64_t)m * a.y_stride + n;
        v += a.bias ? a.bias[n] : 0.0f;
        v += a.accumulate ? to_float(*to) : 0.0f;
        *to = from_float<Y>(v);
    }
}

template <typename T, typename Y, int BM, int BN, int BK, int WM, int WN, int STAGES, bool ALIGNED>
__global__ void __launch_bounds__(WM *WN * 32) gemm_mma_kernel(struct gemm_args a)
{
    extern __shared__ __align__(16) unsigned char smem[];
    mma_tile<T, BM, BN, BK, WM, WN, STAGES, ALIGNED> tile;
    pdl_wait();
    pdl_trigger();
    const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    const T *x = (const T *)a.x + blockIdx.z * a.x_batch;
    const T *w = (const T *)a.weight + blockIdx.z * a.w_batch;
    tile.run((T *)smem, a.n_in,
             [&](int i) { return m0 + i < a.n_rows ? x + (int64_t)(m0 + i) * a.x_stride : NULL; },
             [&](int j) { return n0 + j < a.n_out ? w + (int64_t)(n0 + j) * a.n_in : NULL; });
    Y *y = (Y *)a.y + blockIdx.z * a.y_batch;
#pragma unroll
    for (int mf = 0; mf < tile.MF; mf++) {
#pragma unroll
        for (int nf = 0; nf < tile.NF; nf++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                put(a, y, m0 + tile.row(mf, e >> 1), n0 + tile.col(nf) + (e & 1),
                    tile.acc[mf][nf][e]);
            }
        }
    }
}

template <typename T, typename Y, int BM, int BN, int BK, int WM, int WN, int STAGES, bool ALIGNED>
static cudaError_t gemm_mma(cudaStream_t stream, const struct gemm_args *a)
{
    typedef mma_tile<T, BM, BN, BK, WM, WN, STAGES, ALIGNED> tile;
    auto kernel = gemm_mma_kernel<T, Y, BM, BN, BK, WM, WN, STAGES, ALIGNED>;
    // Set at every launch, because each rank has its own device.
    const cudaError_t allowed =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, tile::SMEM);
    if (allowed != cudaSuccess) {
        return allowed;
    }
    const dim3 grid((a->n_rows + BM - 1) / BM, (a->n_out + BN - 1) / BN, a->n_batch);
    return launch(kernel, grid, dim3(tile::THREADS), tile::SMEM, stream, *a);
}

template <typename T, typename Y>
static cudaError_t gemm_16bit(cudaStream_t stream, const struct gemm_args *a)
{
    const bool aligned = vec_ok(a->x, a->x_stride, a->n_in, sizeof(T)) &&
                         vec_ok(a->weight, a->n_in, a->n_in, sizeof(T)) && a->x_batch % 8 == 0 &&
                         a->w_batch % 8 == 0;
    if (!aligned) {
        return gemm_mma<T, Y, 64, 64, 32, 2, 2, 3, false>(stream, a);
    }
    if (a->n_rows <= 16) {
        return gemm_mma<T, Y, 16, 32, 64, 1, 4, 8, true>(stream, a);
    }
    if (a->n_rows <= 256) {
        return gemm_mma<T, Y, 64, 64, 64, 2, 2, 4, true>(stream, a);
    }
    return gemm_mma<T, Y, 128, 128, 32, 2, 4, 4, true>(stream, a);
}

enum { F32_TILE = 64, F32_K = 16 };

/* 64 x 64 outputs by 256 threads, 4 x 4 per thread. */
template <typename X, typename W, typename Y> __global__ void gemm_f32_kernel(struct gemm_args a)
{
    __shared__ float xs[F32_K][F32_TILE + 4], ws[F32_K][F32_TILE + 4];
    pdl_wait();
    const int m0 = blockIdx.x * F32_TILE, n0 = blockIdx.y * F32_TILE;
    const X *x = (const X *)a.x + blockIdx.z * a.x_batch;
    const W *w = (const W *)a.weight + blockIdx.z * a.w_batch;
    const int tm = threadIdx.x / 16 * 4, tn = threadIdx.x % 16 * 4;
    float acc[4][4] = {};
    for (int k0 = 0; k0 < a.n_in; k0 += F32_K) {
        for (int i = threadIdx.x; i < F32_TILE * F32_K; i += 256) {
            const int r = i / F32_K, k = i % F32_K;
            const bool in_k = k0 + k < a.n_in;
            xs[k][r] = in_k && m0 + r < a.n_rows
                           ? to_float(x[(int64_t)(m0 + r) * a.x_stride + k0 + k])
                           : 0.0f;
            ws[k][r] =
                in_k && n0 + r < a.n_out ? to_float(w[(int64_t)(n0 + r) * a.n_in + k0 + k]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < F32_K; k++) {
            float xr[4], wr[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                xr[i] = xs[k][tm + i];
                wr[i] = ws[k][tn + i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    acc[i][j] = fmaf(xr[i], wr[j], acc[i][j]);
                }
            }
        }
        __syncthreads();
    }
    Y *y = (Y *)a.y + blockIdx.z * a.y_batch;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            put(a, y, m0 + tm + i, n0 + tn + j, acc[i][j]);
        }
    }
}

template <typename X, typename W, typename Y>
static cudaError_t gemm_f32(cudaStream_t stream, const struct gemm_args *a)
{
    const dim3 grid((a->n_rows + F32_TILE - 1) / F32_TILE, (a->n_out + F32_TILE - 1) / F32_TILE,
                    a->n_batch);
    return launch(gemm_f32_kernel<X, W, Y>, grid, dim3(256), 0, stream, *a);
}

template <typename X, typename Y>
static cudaError_t gemm_any(cudaStream_t stream, const struct gemm_args *a)
{
    if constexpr (sizeof(X) == 2) {
        if (a->x_dtype == a->w_dtype) {
            return gemm_16bit<X, Y>(stream, a);
        }
    }
    BY_DTYPE(a->w_dtype, W, return gemm_f32<X, W, Y>(stream, a));
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t gemm_tile(cudaStream_t stream, const struct gemm_args *a)
{
    if (a->y_dtype == DT_F32) {
        BY_DTYPE(a->x_dtype, X, return gemm_any<X, float>(stream, a));
    } else if (a->y_dtype == a->x_dtype) {
        BY_DTYPE(a->x_dtype, X, return gemm_any<X, X>(stream, a));
    }
    return cudaErrorInvalidValue;
}
