// SPDX-License-Identifier: Apache-2.0
/* A row of a norm as the threads of a block hold it, in vectors: thread i has vectors i,
 * i + blockDim.x and so on. Included by norm.cu and norm_many.cuh.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_NORM_ROW_CUH
#define SLUICE_CUDA_KERNELS_NORM_ROW_CUH

#include "cuda/kernels/device/norm.cuh"
#include "cuda/kernels/device/rounding.cuh"
#include "cuda/kernels/device/sums.cuh"

/* Strides are in elements. A row of x is written back if a delta is added. */
struct norm_params {
    int32_t x_stride, delta_stride, out_stride, n_rows, width;
    float eps, weight_offset, delta_scale, x_scale;
    bool layer;              // subtract the mean
    struct sum_parts sums;   // partial sums of delta; n 0: delta itself is read
    struct round_args codes; // if codes.codes is not NULL, codes replace `out`
};

/* A thread's vectors of a row. */
template <typename T, int NV>
__device__ __forceinline__ void load_row(vec<T> (&v)[NV], const T *row, int32_t width)
{
#pragma unroll
    for (int j = 0; j < NV; j++) {
        const int i = (j * blockDim.x + threadIdx.x) * vec<T>::N;
        if (i < width) {
            v[j].load(row + i);
        }
    }
}

/* The elements of the norm's weight that the thread's vectors need. */
template <int NV, int N>
__device__ __forceinline__ void load_weight(float (&w)[NV][N], const float *weight,
                                            const struct norm_params &p)
{
#pragma unroll
    for (int j = 0; j < NV; j++) {
        const int i = (j * blockDim.x + threadIdx.x) * N;
#pragma unroll
        for (int e = 0; e < N; e++) {
            w[j][e] = weight && i < p.width ? weight[i + e] + p.weight_offset : 1.0f;
        }
    }
}

/* Normalises the thread's vectors of a row. STORES: writes them to out. */
template <bool STORES, typename T, int NV, int N>
__device__ __forceinline__ void norm_row(vec<T> (&v)[NV], const float (&w)[NV][N],
                                         const float *bias, const struct row_moments &m, int width,
                                         T *out)
{
#pragma unroll
    for (int j = 0; j < NV; j++) {
        const int i = (j * blockDim.x + threadIdx.x) * N;
        if (i < width) {
#pragma unroll
            for (int e = 0; e < N; e++) {
                v[j].v[e] = from_float<T>(normed(to_float(v[j].v[e]), w[j][e],
                                                 bias ? bias[i + e] : 0.0f, m.mean, m.scale));
            }
            if (STORES) {
                v[j].store(out + i);
            }
        }
    }
}

/* The residual of a vector, with the delta added to it and rounded as it is stored. */
template <typename T>
__device__ __forceinline__ void add_delta(vec<T> &v, const vec<T> &d, const struct norm_params &p)
{
#pragma unroll
    for (int e = 0; e < vec<T>::N; e++) {
        const float f = to_float(v.v[e]) + p.delta_scale * to_float(d.v[e]);
        v.v[e] = from_float<T>(f * p.x_scale);
    }
}

/* sum plus what a vector adds to the row's first moment. */
template <typename T>
__device__ __forceinline__ float add_moments(float sum, const vec<T> &v, bool layer)
{
#pragma unroll
    for (int e = 0; e < vec<T>::N; e++) {
        sum = moment_add(sum, to_float(v.v[e]), layer);
    }
    return sum;
}

#endif
