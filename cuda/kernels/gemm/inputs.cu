// SPDX-License-Identifier: Apache-2.0
/* Rows of activations rounded to E4M3 before a product, as a quantised weight asks for it (struct
 * input_rule): to codes with their scales, which tensor cores multiply, or to the numbers that
 * these stand for, for kernels that multiply numbers.
 *
 * A block owns a row. Where the scale is the row's it reads it twice, for the largest input and for
 * the codes, of which the second time finds it in the L1 cache; where groups of 128 have one, half
 * a warp owns a group and reads it once. Bound by reading x. */
#include "cuda/gemm.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"

#include <cuda_fp8.h>

enum { THREADS = 256, PIECE = 8, GROUP = 128 };
#define E4M3_MOST 448.0f
#define LEAST_GROUP_SCALE 1e-10f

__device__ __forceinline__ float scale_from(const struct round_args &a, float largest)
{
    float scale = __fdiv_rn(largest, E4M3_MOST);
    scale = a.group > 0 ? fmaxf(scale, LEAST_GROUP_SCALE) : scale;
    if (a.power_of_two && scale > 0.0f) { // the next one that is not below
        const uint32_t bits = __float_as_uint(scale);
        scale = __uint_as_float((bits + 0x7fffffu) & 0x7f800000u);
    }
    return scale;
}

template <typename T> __device__ __forceinline__ float largest_of(const vec<T> &v)
{
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        largest = fmaxf(largest, fabsf(to_float(v.v[i])));
    }
    return largest;
}

/* A scale of 0: all of the row's inputs are. */
template <typename T>
__device__ __forceinline__ void put(const struct round_args &a, int row, int k, const vec<T> &v,
                                    float scale)
{
    __nv_fp8_storage_t codes[PIECE];
    vec<T> numbers;
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        const float x = scale > 0.0f ? __fdiv_rn(to_float(v.v[i]), scale) : 0.0f;
        codes[i] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
        const __half code = __nv_cvt_fp8_to_halfraw(codes[i], __NV_E4M3);
        numbers.v[i] = from_float<T>(__half2float(code) * scale);
    }
    if (a.codes) {
        *(uint2 *)(a.codes + row * a.code_stride + k) = *(const uint2 *)codes;
    } else {
        numbers.store((T *)a.numbers + (int64_t)row * a.n_in + k);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) round_kernel(const __grid_constant__ struct round_args a)
{
    __shared__ float shared[32];
    pdl_wait();
    pdl_trigger();
    const int row = blockIdx.x;
    const T *x = (const T *)a.x + row * a.x_stride;
    vec<T> v;
    if (a.group > 0) { // n_in is a multiple of the half warps' pieces, or its last group is short
        for (int k = threadIdx.x * PIECE; k - (threadIdx.x & 15) * PIECE < a.n_in;
             k += THREADS * PIECE) {
            const bool valid = k < a.n_in;
            float largest = 0.0f;
            if (valid) {
                v.load(x + k);
                largest = largest_of(v);
            }
            const unsigned half = 0xffffu << (threadIdx.x & 16);
#pragma unroll
            for (int mask = 8; mask > 0; mask >>= 1) {
                largest = fmaxf(largest, __shfl_xor_sync(half, largest, mask));
            }
            const float scale = scale_from(a, largest);
            if (valid) {
                put(a, row, k, v, scale);
            }
            if (a.codes && (threadIdx.x & 15) == 0) {
                a.scales[(int64_t)(k / GROUP) * a.n_rows + row] = scale;
            }
        }
        return;
    }
    float scale = a.scale;
    if (scale == 0.0f) {
        float largest = 0.0f;
        for (int k = threadIdx.x * PIECE; k < a.n_in; k += THREADS * PIECE) {
            v.load(x + k);
            largest = fmaxf(largest, largest_of(v));
        }
        scale = scale_from(a, block_max(largest, shared));
    }
    for (int k = threadIdx.x * PIECE; k < a.n_in; k += THREADS * PIECE) {
        v.load(x + k);
        put(a, row, k, v, scale);
    }
    if (a.codes && threadIdx.x == 0) {
        a.scales[row] = scale;
    }
}

extern "C" cudaError_t round_inputs(cudaStream_t stream, const struct round_args *a)
{
    const dim3 grid((unsigned)a->n_rows);
    return a->x_dtype == DT_BF16 ? launch(round_kernel<bf16_t>, grid, dim3(THREADS), 0, stream, *a)
                                 : launch(round_kernel<f16_t>, grid, dim3(THREADS), 0, stream, *a);
}
