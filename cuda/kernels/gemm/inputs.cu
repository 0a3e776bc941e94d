// SPDX-License-Identifier: Apache-2.0
/* Rounds rows of activations to E4M3 before a product, if a quantised weight requires it (struct
 * input_rule): to codes with their scales, which the FP8 tensor cores multiply, or to the
 * dequantised values for kernels that multiply floating point.
 *
 * If groups of 128 have scales, half a warp owns a group. If the whole row has one scale, a block
 * keeps the row in registers, so that x is read once; only rows that do not fit are read again.
 * Bound by memory bandwidth. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/rounding.cuh"

/* The threads of a block of groups; and for whole rows the vectors of a thread, and the most
 * threads of a block, of which three fit a multiprocessor. */
enum { GROUPS_THREADS = 256, VECS = 4, MOST_THREADS = 512 };

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

/* Where the thread's vector j of the part of a row from `begin` on is. */
__device__ __forceinline__ int piece(int begin, int j)
{
    return begin + (j * blockDim.x + threadIdx.x) * ROUND_PIECE;
}

template <typename T>
__device__ __forceinline__ void load_pieces(vec<T> (&v)[VECS], const T *row, int begin, int n)
{
#pragma unroll
    for (int j = 0; j < VECS; j++) {
        if (piece(begin, j) < n) {
            v[j].load(row + piece(begin, j));
        }
    }
}

/* The last group of a row may be shorter than 128. */
template <typename T>
__global__ void __launch_bounds__(GROUPS_THREADS)
    round_groups_kernel(const __grid_constant__ struct round_args a)
{
    pdl_trigger(); // before the wait: see device/launch.cuh
    pdl_wait();
    const int row = blockIdx.x, k = (blockIdx.y * GROUPS_THREADS + threadIdx.x) * ROUND_PIECE;
    const bool valid = k < a.n_in;
    float largest = 0.0f;
    vec<T> v;
    if (valid) {
        v.load((const T *)a.x + row * a.x_stride + k);
        largest = round_largest(v);
    }
    const float scale = round_scale(a, round_group_largest(largest));
    if (valid) {
        put(a, row, k, v, scale);
        if (a.codes && (threadIdx.x & 15) == 0) {
            a.scales[(int64_t)(k / ROUND_GROUP) * a.n_rows + row] = scale;
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(MOST_THREADS, 3)
    round_kernel(const __grid_constant__ struct round_args a)
{
    __shared__ float shared[32];
    pdl_trigger(); // before the wait: see device/launch.cuh
    pdl_wait();
    const int row = blockIdx.x, part = blockDim.x * VECS * ROUND_PIECE;
    const T *x = (const T *)a.x + row * a.x_stride;
    vec<T> v[VECS];
    float largest = 0.0f;
    for (int begin = 0; begin < a.n_in; begin += part) {
        load_pieces(v, x, begin, a.n_in);
#pragma unroll
        for (int j = 0; j < VECS; j++) {
            if (piece(begin, j) < a.n_in) {
                largest = fmaxf(largest, round_largest(v[j]));
            }
        }
    }
    const float scale = a.scale > 0.0f ? a.scale : round_scale(a, block_max(largest, shared));
    for (int begin = 0; begin < a.n_in; begin += part) {
        if (part < a.n_in) {
            load_pieces(v, x, begin, a.n_in);
        }
#pragma unroll
        for (int j = 0; j < VECS; j++) {
            if (piece(begin, j) < a.n_in) {
                put(a, row, piece(begin, j), v[j], scale);
            }
        }
    }
    if (a.codes && threadIdx.x == 0) {
        a.scales[row] = scale;
    }
}

template <typename T> static cudaError_t round_as(cudaStream_t stream, const struct round_args *a)
{
    const int n_vecs = (a->n_in + ROUND_PIECE - 1) / ROUND_PIECE;
    if (a->group > 0) {
        const dim3 grid(a->n_rows, (n_vecs + GROUPS_THREADS - 1) / GROUPS_THREADS);
        return launch(round_groups_kernel<T>, grid, dim3(GROUPS_THREADS), 0, stream, *a);
    }
    const int threads = min(((n_vecs + VECS - 1) / VECS + 31) / 32 * 32, (int)MOST_THREADS);
    return launch(round_kernel<T>, dim3(a->n_rows), dim3(threads), 0, stream, *a);
}

extern "C" cudaError_t round_inputs(cudaStream_t stream, const struct round_args *a)
{
    return a->x_dtype == DT_BF16 ? round_as<bf16_t>(stream, a) : round_as<f16_t>(stream, a);
}
