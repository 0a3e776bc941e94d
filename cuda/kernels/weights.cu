// SPDX-License-Identifier: Apache-2.0
/* Fills or converts weights on the device; a thread computes a few elements. Bound by the bandwidth
 * of writing them. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"
#include "engine/base/rng.h"

/* At most 4096 blocks, each of which may process several elements. */
static unsigned grid_of(int64_t blocks)
{
    if (blocks < 1) {
        return 1;
    }
    return blocks > 4096 ? 4096 : (unsigned)blocks;
}

/* Weights that are kept in fp32 get values that a 16-bit checkpoint could hold: some kernels are
 * faster with them. */
template <typename T> __device__ __forceinline__ static T dummy_of(float x)
{
    return from_float<T>(to_float(from_float<bf16_t>(x)));
}

template <> __device__ __forceinline__ f16_t dummy_of<f16_t>(float x)
{
    return from_float<f16_t>(x);
}

/* Box-Muller on a block of four random words, which gives four normally distributed values. */
template <typename T>
__global__ void fill_normal_kernel(T *to, int64_t n, uint64_t seed, float scale)
{
    pdl_wait();
    const int64_t step = (int64_t)gridDim.x * blockDim.x * 4;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += step) {
        const struct rng_block b =
            rng_philox(seed, (uint32_t)(i >> 2), (uint32_t)(i >> 34), RNG_TEST, 0x57);
        for (int h = 0; h < 4; h += 2) {
            const float u = ((float)b.v[h] + 0.5f) * (1.0f / 4294967296.0f);
            const float radius = sqrtf(-2.0f * logf(fminf(u, 0.99999994f)));
            float s, c;
            sincospif((float)b.v[h + 1] * (2.0f / 4294967296.0f), &s, &c);
            if (i + h < n) {
                to[i + h] = dummy_of<T>(radius * c * scale);
            }
            if (i + h + 1 < n) {
                to[i + h + 1] = dummy_of<T>(radius * s * scale);
            }
        }
    }
}

extern "C" cudaError_t k_fill_normal(cudaStream_t stream, void *to, enum dtype dtype, int64_t n,
                                     uint64_t seed, float scale)
{
    const int64_t blocks = (n / 4 + 255) / 256;
    const dim3 grid(grid_of(blocks));
    BY_DTYPE(
        dtype, T,
        return launch(fill_normal_kernel<T>, grid, dim3(256), 0, stream, (T *)to, n, seed, scale));
    return cudaErrorInvalidValue;
}

/* A grid-stride loop, so that any number of elements needs one launch. */
template <typename F, typename T> __global__ void convert_kernel(T *to, const F *from, int64_t n)
{
    pdl_wait();
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        to[i] = from_float<T>(to_float(from[i]));
    }
}

extern "C" cudaError_t k_convert(cudaStream_t stream, void *to, enum dtype to_dtype,
                                 const void *from, enum dtype from_dtype, int64_t n)
{
    const int64_t blocks = (n + 255) / 256;
    const dim3 grid(grid_of(blocks));
    BY_DTYPE(from_dtype, F,
             BY_DTYPE(to_dtype, T,
                      return launch(convert_kernel<F, T>, grid, dim3(256), 0, stream, (T *)to,
                                    (const F *)from, n)));
    return cudaErrorInvalidValue;
}
