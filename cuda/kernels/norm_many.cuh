// SPDX-License-Identifier: Apache-2.0
/* Norms of many rows, each with the bits that norm_vec_kernel of norm.cu gives it. A block takes
 * one row after another, and each thread copies its own vectors of the next MANY_AHEAD rows into
 * shared memory meanwhile (cp.async), which needs no barrier. So the rows in flight cost no
 * registers, and the copies go on while the block waits for its sums. Rows are taken from the last
 * to the first: the L2 cache still holds the last ones that the product before has written, and
 * will hold the first ones when the product after begins with them. Bound by memory bandwidth. */
#ifndef SLUICE_CUDA_KERNELS_NORM_MANY_CUH
#define SLUICE_CUDA_KERNELS_NORM_MANY_CUH

#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/norm_row.cuh"

/* A thread has MANY_VECS vectors of a row. MANY_THREADS: of all blocks of a multiprocessor, which
 * is as many as registers allow. */
enum { MANY_VECS = 4, MANY_AHEAD = 2, MANY_THREADS = 640 };

/* A thread's vectors of a row of x, and of its delta, on their way into shared memory. */
template <typename T> struct rows_ahead {
    uint4 *slots; // the thread's first one; slots are blockDim.x apart
    const T *x, *delta;

    __device__ __forceinline__ uint4 *slot(int stage, int operand, int j) const
    {
        return slots + ((stage * 2 + operand) * MANY_VECS + j) * blockDim.x;
    }

    /* Nothing if there is no such row. */
    __device__ __forceinline__ void fetch(int row, int stage, const struct norm_params &p) const
    {
#pragma unroll
        for (int j = 0; j < MANY_VECS; j++) {
            const int i = (j * blockDim.x + threadIdx.x) * vec<T>::N;
            if (row >= 0 && i < p.width) {
                copy(slot(stage, 0, j), x + (int64_t)row * p.x_stride + i);
                if (delta) {
                    copy(slot(stage, 1, j), delta + (int64_t)row * p.delta_stride + i);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    /* Waits for the oldest row. */
    __device__ __forceinline__ void get(int stage, vec<T> (&v)[MANY_VECS],
                                        vec<T> (&d)[MANY_VECS]) const
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(MANY_AHEAD - 1) : "memory");
#pragma unroll
        for (int j = 0; j < MANY_VECS; j++) {
            *(uint4 *)v[j].v = *slot(stage, 0, j);
            *(uint4 *)d[j].v = *slot(stage, 1, j);
        }
    }

    static __device__ __forceinline__ void copy(uint4 *to, const T *from)
    {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(to)),
                     "l"(from)
                     : "memory");
    }
};

/* block_sum of the threads' sums of vectors j, as if each vector had a thread of its own. The
 * caller alternates between areas of 32 floats, so one barrier is enough. */
__device__ __forceinline__ float sum_of_vectors(const float (&sum)[MANY_VECS], float *shared)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
#pragma unroll
    for (int j = 0; j < MANY_VECS; j++) {
        const float all = warp_sum(sum[j]);
        if (lane == 0) {
            shared[j * n_warps + warp] = all;
        }
    }
    __syncthreads();
    return warp_sum(lane < MANY_VECS * n_warps ? shared[lane] : 0.0f);
}

/* row_moments_of for a row of which sum[j] is the first moment of vectors j. shared: two areas. */
template <typename T>
__device__ __forceinline__ struct row_moments
moments_of_vectors(const vec<T> (&v)[MANY_VECS], float (&sum)[MANY_VECS],
                   const struct norm_params &p, float *shared)
{
    float mean = 0.0f, square = sum_of_vectors(sum, shared) / (float)p.width;
    if (p.layer) {
        mean = square;
#pragma unroll
        for (int j = 0; j < MANY_VECS; j++) {
            sum[j] = 0.0f;
            if ((j * blockDim.x + threadIdx.x) * vec<T>::N < p.width) {
#pragma unroll
                for (int e = 0; e < vec<T>::N; e++) {
                    const float f = to_float(v[j].v[e]) - mean;
                    sum[j] = fmaf(f, f, sum[j]);
                }
            }
        }
        square = sum_of_vectors(sum, shared + 32) / (float)p.width;
    }
    return {mean, 1.0f / sqrtf(square + p.eps)};
}

template <typename T, bool CODES>
__global__ void __launch_bounds__(MANY_THREADS / 2, 2)
    norm_many_kernel(T *x, const T *delta, T *out, const float *weight, const float *bias,
                     struct norm_params p)
{
    constexpr int N = vec<T>::N;
    extern __shared__ uint4 slots[];
    __shared__ float shared[MANY_AHEAD][2][32], largest[32];
    float w[MANY_VECS][N];
    load_weight(w, weight, p);
    pdl_trigger(); // before the wait: see device/launch.cuh
    pdl_wait();
    const struct rows_ahead<T> ahead = {
        slots + threadIdx.x, x, delta
    };
    const int first = p.n_rows - 1 - (int)blockIdx.x, step = gridDim.x;
    for (int k = 0; k < MANY_AHEAD; k++) {
        ahead.fetch(first - k * step, k, p);
    }
    int stage = 0;
#pragma unroll 1
    for (int row = first; row >= 0; row -= step) {
        vec<T> v[MANY_VECS], d[MANY_VECS];
        ahead.get(stage, v, d);
        float sum[MANY_VECS];
#pragma unroll
        for (int j = 0; j < MANY_VECS; j++) {
            const int i = (j * blockDim.x + threadIdx.x) * N;
            sum[j] = 0.0f;
            if (i < p.width) {
                if (delta) {
                    add_delta(v[j], d[j], p);
                    v[j].store(x + (int64_t)row * p.x_stride + i);
                }
                sum[j] = add_moments(0.0f, v[j], p.layer);
            }
        }
        ahead.fetch(row - MANY_AHEAD * step, stage, p);
        if (out) {
            const struct row_moments m = moments_of_vectors(v, sum, p, shared[stage][0]);
            norm_row<!CODES>(v, w, bias, m, p.width, out + (int64_t)row * p.out_stride);
            if constexpr (CODES) {
                round_row<T, MANY_VECS>(p.codes, row, 0, v, largest);
            }
        }
        stage ^= 1;
    }
}

/* From several rows per block on, if norm_vec_kernel would have one vector per thread. */
template <typename T> static bool norm_many_takes(const struct norm_params &p)
{
    enum { ROWS = 4 };
    return p.sums.n == 0 && p.width / vec<T>::N <= 1024 && p.n_rows > ROWS * n_multiprocessors();
}

template <typename T, bool CODES>
static cudaError_t norm_many(cudaStream_t stream, T *x, const T *delta, T *out, const float *weight,
                             const float *bias, const struct norm_params &p)
{
    const int n_vecs = p.width / vec<T>::N;
    const int threads = ((n_vecs + MANY_VECS - 1) / MANY_VECS + 31) / 32 * 32;
    const int n_blocks = MANY_THREADS / threads * n_multiprocessors();
    const size_t bytes = (size_t)MANY_AHEAD * 2 * MANY_VECS * threads * sizeof(uint4);
    const auto kernel = norm_many_kernel<T, CODES>;
    const cudaError_t ready = // set at every launch, because each rank has its own device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return ready != cudaSuccess ? ready
                                : launch(kernel, dim3(min(n_blocks, p.n_rows)), dim3(threads),
                                         bytes, stream, x, delta, out, weight, bias, p);
}

#endif
