// SPDX-License-Identifier: Apache-2.0
/* Rounds rows of activations to E4M3 before a product, if a quantised weight requires it (struct
 * input_rule): to codes with their scales, which the FP8 tensor cores multiply, or to the
 * dequantised values for kernels that multiply floating point.
 *
 * If groups of 128 have scales, half a warp owns a group and reads it once. If the whole row has
 * one scale, one block reads it twice, for the maximum and for the codes; the second read hits the
 * L1 cache. Bound by reading x. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/rounding.cuh"

enum { THREADS = 256 };

template <typename T>
__device__ __forceinline__ void put(const struct round_args &a, int row, int k, const vec<T> &v,
                                    float scale)
{
    if (a.codes) {
        round_put(a, row, k, v, scale);
        return;
    }
    vec<T> numbers;
    const float factor = round_factor(scale);
#pragma unroll
    for (int i = 0; i < ROUND_PIECE; i += 2) {
        const __half2 two = __nv_cvt_fp8x2_to_halfraw2(
            round_pair(to_float(v.v[i]), to_float(v.v[i + 1]), factor), __NV_E4M3);
        numbers.v[i] = from_float<T>(__low2float(two) * scale);
        numbers.v[i + 1] = from_float<T>(__high2float(two) * scale);
    }
    numbers.store((T *)a.numbers + (int64_t)row * a.n_in + k);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) round_kernel(const __grid_constant__ struct round_args a)
{
    __shared__ float shared[32];
    pdl_trigger(); // before the wait: see device/launch.cuh
    pdl_wait();
    const int row = blockIdx.x;
    const T *x = (const T *)a.x + row * a.x_stride;
    vec<T> v;
    if (a.group > 0) { // the last group may be shorter than 128
        const int k = (blockIdx.y * THREADS + threadIdx.x) * ROUND_PIECE;
        const bool valid = k < a.n_in;
        float largest = 0.0f;
        if (valid) {
            v.load(x + k);
            largest = round_largest(v);
        }
        const float scale = round_scale(a, round_group_largest(largest));
        if (valid) {
            put(a, row, k, v, scale);
            if (a.codes && (threadIdx.x & 15) == 0) {
                a.scales[(int64_t)(k / ROUND_GROUP) * a.n_rows + row] = scale;
            }
        }
        return;
    }
    float scale = a.scale;
    if (scale == 0.0f) {
        float largest = 0.0f;
        for (int k = threadIdx.x * ROUND_PIECE; k < a.n_in; k += THREADS * ROUND_PIECE) {
            v.load(x + k);
            largest = fmaxf(largest, round_largest(v));
        }
        scale = round_scale(a, block_max(largest, shared));
    }
    for (int k = threadIdx.x * ROUND_PIECE; k < a.n_in; k += THREADS * ROUND_PIECE) {
        v.load(x + k);
        put(a, row, k, v, scale);
    }
    if (a.codes && threadIdx.x == 0) {
        a.scales[row] = scale;
    }
}

extern "C" cudaError_t round_inputs(cudaStream_t stream, const struct round_args *a)
{
    const unsigned n_parts =
        a->group > 0 ? (a->n_in + THREADS * ROUND_PIECE - 1) / (THREADS * ROUND_PIECE) : 1;
    const dim3 grid((unsigned)a->n_rows, n_parts);
    return a->x_dtype == DT_BF16 ? launch(round_kernel<bf16_t>, grid, dim3(THREADS), 0, stream, *a)
                                 : launch(round_kernel<f16_t>, grid, dim3(THREADS), 0, stream, *a);
}
