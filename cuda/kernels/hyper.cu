// SPDX-License-Identifier: Apache-2.0
/* Hyper-connections (struct hyper_args), in two kernels.
 *
 * hyper_add: a block adds the result to all streams in a slice of the columns of R rows, and stores
 * them. It keeps the slice in shared memory in fp32, where each warp multiplies it by some rows of
 * fn, so fn is read once per R rows. The sums of slices are left for the second kernel.
 *
 * hyper_mix: a block adds a row's sums in the order of slices, mixes the streams and norms the
 * mixture. Other blocks, a warp per row, compute the gates for the next op meanwhile, because
 * Sinkhorn's iterations take longer than the mixture.
 *
 * Slices and threads depend on the width alone, so a row's bits do not depend on the other rows.
 * Few rows are bound by the latency of both launches, many by reading the streams twice and writing
 * them once. */
#include "cuda/hyper.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/norm.cuh"

enum {
    SLICE = HYPER_SLICE,
    ADD_WARPS = 8,
    MIX_THREADS = 512,
    MANY = 4,      // rows of a block, if there are many
    FEW_ROWS = 64, // up to this number a block has one row
    // rows of fn per warp, and one for the streams' squares
    OWN = (2 * MAX_HYPER + MAX_HYPER * MAX_HYPER + ADD_WARPS) / ADD_WARPS,
};

/* V elements from p on, in one access. */
template <int V, typename T> __device__ __forceinline__ void load(float (&to)[V], const T *p)
{
    struct alignas(V * sizeof(T)) pack {
        T v[V];
    } x = *(const pack *)p;
#pragma unroll
    for (int i = 0; i < V; i++) {
        to[i] = to_float(x.v[i]);
    }
}

/* Stores them, and leaves them as they were rounded. */
template <int V, typename T> __device__ __forceinline__ void store(T *p, float (&from)[V])
{
    struct alignas(V * sizeof(T)) pack {
        T v[V];
    } x;
#pragma unroll
    for (int i = 0; i < V; i++) {
        x.v[i] = from_float<T>(from[i]);
        from[i] = to_float(x.v[i]);
    }
    *(pack *)p = x;
}

/* ---- the streams --------------------------------------------------------------------------- */

/* What stream k becomes. gates: of the row. */
template <int V>
__device__ __forceinline__ void added(const struct hyper_launch &a, const float *gates, int k,
                                      const float (&old)[MAX_HYPER][V], const float (&delta)[V],
                                      float (&out)[V])
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < MAX_HYPER; j++) {
            if (j < a.n && (a.n_sinkhorn > 0 || j == k)) {
                const float kept = a.n_sinkhorn > 0 ? gates[a.n + j * a.n + k] : 1.0f;
                sum = fmaf(kept, old[j][i], sum);
            }
        }
        out[i] = a.begins ? delta[i] : fmaf(gates[k], delta[i], sum);
    }
}

/* V columns of all streams of a row, from c on: loads them, adds the result, and stores both in
 * memory and in the slice. */
template <typename T, int V>
__device__ __forceinline__ void add_columns(const struct hyper_launch &a, const float *gates,
                                            int row, int c, float (*slice)[SLICE], int at)
{
    T *streams = (T *)a.streams + (int64_t)row * a.streams_stride + c;
    float old[MAX_HYPER][V], delta[V];
#pragma unroll
    for (int k = 0; k < MAX_HYPER; k++) {
        if (k < a.n && !a.begins) {
            load<V>(old[k], streams + (int64_t)k * a.width);
        }
    }
    if (a.delta) {
        load<V>(delta, (const T *)a.delta + (int64_t)row * a.delta_stride + c);
    }
#pragma unroll
    for (int k = 0; k < MAX_HYPER; k++) {
        if (k >= a.n) {
            continue;
        }
        float x[V];
        if (a.delta) {
            added<V>(a, gates, k, old, delta, x);
            store<V>(streams + (int64_t)k * a.width, x);
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            slice[k][at + i] = a.delta ? x[i] : old[k][i];
        }
    }
}

/* The slice times rows warp, warp + ADD_WARPS and so on of fn; after the last row of fn comes the
 * slice itself, for the squares. */
template <int V, int R>
__device__ __forceinline__ void multiply(const struct hyper_launch &a,
                                         const float (*slice)[MAX_HYPER][SLICE], int first, int n,
                                         float (&sums)[OWN][R])
{
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll 1
    for (int k = 0; k < a.n; k++) {
#pragma unroll 1
        for (int c = lane * V; c < n; c += 32 * V) {
            float x[R][V];
#pragma unroll
            for (int r = 0; r < R; r++) {
                load<V>(x[r], &slice[r][k][c]);
            }
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const int g = warp + ADD_WARPS * i;
                float w[V];
                if (g > a.n_fn) {
                    continue;
                }
                if (g < a.n_fn) {
                    load<V>(w, a.fn + ((int64_t)g * a.n + k) * a.width + first + c);
                }
#pragma unroll
                for (int r = 0; r < R; r++) {
#pragma unroll
                    for (int e = 0; e < V; e++) {
                        sums[i][r] = fmaf(g < a.n_fn ? w[e] : x[r][e], x[r][e], sums[i][r]);
                    }
                }
            }
        }
    }
}

/* Grid: (slices, groups of R rows). */
template <typename T, int R, int V>
__global__ void __launch_bounds__(ADD_WARPS * 32)
    hyper_add_kernel(const __grid_constant__ struct hyper_launch a)
{
    __shared__ __align__(16) float slice[R][MAX_HYPER][SLICE];
    __shared__ float gates[R][HYPER_GATES(MAX_HYPER)];
    const int n_gates = HYPER_GATES(a.n), first = (int)blockIdx.x * SLICE;
    const int n = min(SLICE, a.width - first), row0 = (int)blockIdx.y * R;
    pdl_wait();
    pdl_trigger();
    for (int i = threadIdx.x; i < R * n_gates && a.delta && !a.begins; i += ADD_WARPS * 32) {
        const int row = row0 + i / n_gates;
        if (row < a.n_rows) {
            gates[i / n_gates][i % n_gates] = a.gates[(int64_t)row * a.gates_stride + i % n_gates];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < R * (SLICE / V); i += ADD_WARPS * 32) {
        const int r = i / (SLICE / V), at = i % (SLICE / V) * V;
        if (row0 + r < a.n_rows && at < n) {
            add_columns<T, V>(a, gates[r], row0 + r, first + at, slice[r], at);
        }
    }
    if (!a.fn) {
        return;
    }
    __syncthreads();
    float sums[OWN][R] = {};
    multiply<V, R>(a, slice, first, n, sums);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int g = (int)(threadIdx.x >> 5) + ADD_WARPS * i;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float sum = g <= a.n_fn ? warp_sum(sums[i][r]) : 0.0f;
            if (g <= a.n_fn && (threadIdx.x & 31) == 0 && row0 + r < a.n_rows) {
                a.sums[((int64_t)(row0 + r) * gridDim.x + blockIdx.x) * (a.n_fn + 1) + g] = sum;
            }
        }
    }
}

/* ---- the mixture --------------------------------------------------------------------------- */

/* z of the row, lane g has that of row g of fn. Called by a whole warp. */
__device__ __forceinline__ float gate_of(const struct hyper_launch &a, int row)
{
    const int g = threadIdx.x & 31, all = a.n * a.width;
    const float *sums = a.sums + (int64_t)row * a.n_slices * (a.n_fn + 1) + min(g, a.n_fn);
    float sum = 0.0f;
#pragma unroll 4
    for (int i = 0; i < a.n_slices; i++) {
        sum += sums[i * (a.n_fn + 1)];
    }
    const float squares = __shfl_sync(0xffffffffu, sum, a.n_fn);
    const float factor = 1.0f / sqrtf(squares / (float)all + a.norm_eps);
    return g < a.n_fn ? fmaf(sum * factor, a.scale[min(g / a.n, 2)], a.base[g]) : 0.0f;
}

__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The sum over the four lanes that lie `step` apart, in their order. */
__device__ __forceinline__ float sum_of_four(float x, int step)
{
    const int lane = threadIdx.x & 31, first = lane & ~(3 * step);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_HYPER; i++) {
        sum += __shfl_sync(0xffffffffu, x, first + i * step);
    }
    return sum;
}

/* Lane 4 j + k has cross[j][k]; others have 0. */
__device__ __forceinline__ float sinkhorn(const struct hyper_launch &a, float z)
{
    static_assert(MAX_HYPER == 4, "lanes have two bits for each index");
    const int lane = threadIdx.x & 31, j = lane >> 2, k = lane & 3;
    const bool is = j < a.n && k < a.n;
    float x = __shfl_sync(0xffffffffu, z, is ? a.n * (2 + j) + k : 0);
    float most = is ? x : -INFINITY;
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    x = is ? expf(x - most) : 0.0f;
    const float total = sum_of_four(x, 1);
    x = is ? x / total + a.eps : 0.0f;
#pragma unroll 1
    for (int i = 0; i < a.n_sinkhorn; i++) {
        if (i > 0) {
            const float by_row = sum_of_four(x, 1) + a.eps;
            x = is ? __fdividef(x, by_row) : 0.0f;
        }
        const float by_column = sum_of_four(x, 4) + a.eps;
        x = is ? __fdividef(x, by_column) : 0.0f;
    }
    return x;
}

/* The gates for the next op; a warp has a row. */
__device__ __forceinline__ void leave_gates(const struct hyper_launch &a, int row)
{
    const int lane = threadIdx.x & 31, n = a.n;
    float *gates = a.gates + (int64_t)row * a.gates_stride;
    const float z = gate_of(a, row);
    if (lane >= n && lane < 2 * n) {
        gates[lane - n] = fmaf(a.magnitude, sigmoid(z), a.after_eps);
    }
    if (a.n_sinkhorn > 0) {
        const float x = sinkhorn(a, z);
        if (lane / 4 < n && lane % 4 < n) {
            gates[n + lane / 4 * n + lane % 4] = x;
        }
    }
}

/* Columns [c, c + V) of the mixture. */
template <typename T, int V>
__device__ __forceinline__ void mix_columns(const struct hyper_launch &a, const T *streams,
                                            const float *before, int c, float (&x)[V])
{
    float s[MAX_HYPER][V];
#pragma unroll
    for (int k = 0; k < MAX_HYPER; k++) {
        if (k < a.n) {
            load<V>(s[k], streams + (int64_t)k * a.width + c);
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        x[i] = 0.0f;
#pragma unroll
        for (int k = 0; k < MAX_HYPER; k++) {
            x[i] = k < a.n ? fmaf(before[k], s[k][i], x[i]) : x[i];
        }
    }
}

/* Grid: (rows, 2), or (rows, 1) at the end. Each thread keeps its columns of the mixture in shared
 * memory until the norm is known. */
template <typename T, int V>
__global__ void __launch_bounds__(MIX_THREADS)
    hyper_mix_kernel(const __grid_constant__ struct hyper_launch a)
{
    extern __shared__ __align__(16) float mixed[];
    __shared__ float before[32], shared[32];
    const int warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    pdl_wait();
    pdl_trigger();
    if (blockIdx.y > 0) {
        const int row = (int)blockIdx.x * n_warps + warp;
        if (row < a.n_rows) {
            leave_gates(a, row);
        }
        return;
    }
    const int row = (int)blockIdx.x;
    if (warp == 0) {
        before[threadIdx.x] = sigmoid(gate_of(a, row)) + a.eps;
    }
    __syncthreads();
    const T *streams = (const T *)a.streams + (int64_t)row * a.streams_stride;
    float square = 0.0f;
    for (int c = threadIdx.x * V; c < a.width; c += blockDim.x * V) {
        float x[V];
        mix_columns<T, V>(a, streams, before, c, x);
#pragma unroll
        for (int i = 0; i < V; i++) {
            square = moment_add(square, x[i], false);
            mixed[c + i] = x[i];
        }
        if (a.x) {
            store<V>((T *)a.x + (int64_t)row * a.x_stride + c, x);
        }
    }
    if (!a.out) {
        return;
    }
    const float scale = 1.0f / sqrtf(block_sum(square, shared) / (float)a.width + a.norm_eps);
    for (int c = threadIdx.x * V; c < a.width; c += blockDim.x * V) {
        float y[V];
#pragma unroll
        for (int i = 0; i < V; i++) {
            y[i] = normed(mixed[c + i], a.norm ? a.norm[c + i] : 1.0f, 0.0f, 0.0f, scale);
        }
        store<V>((T *)a.out + (int64_t)row * a.out_stride + c, y);
    }
}

/* ---- launches ------------------------------------------------------------------------------ */

template <typename T, int V>
static cudaError_t launch_add(cudaStream_t stream, const struct hyper_launch &a)
{
    const dim3 block(ADD_WARPS * 32);
    const unsigned n_slices = (unsigned)a.n_slices, n = (unsigned)a.n_rows;
    if (a.n_rows <= FEW_ROWS) {
        return launch(hyper_add_kernel<T, 1, V>, dim3(n_slices, n), block, 0, stream, a);
    }
    const dim3 grid(n_slices, (n + MANY - 1) / MANY);
    return launch(hyper_add_kernel<T, MANY, V>, grid, block, 0, stream, a);
}

template <typename T, int V>
static cudaError_t launch_mix(cudaStream_t stream, const struct hyper_launch &a)
{
    const auto kernel = hyper_mix_kernel<T, V>;
    const size_t bytes = (size_t)a.width * sizeof(float);
    const int vectors = (a.width + V - 1) / V;
    const int threads = vectors < MIX_THREADS ? (vectors + 31) / 32 * 32 : (int)MIX_THREADS;
    cudaError_t e = cudaSuccess;
    if (bytes > 40 << 10) {
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    }
    const dim3 grid((unsigned)a.n_rows, a.ends ? 1 : 2);
    return e != cudaSuccess ? e : launch(kernel, grid, dim3((unsigned)threads), bytes, stream, a);
}

/* True if rows of `width` elements can be read V at a time. */
template <int V> static bool is_aligned(const void *p, int32_t stride, int32_t width, size_t size)
{
    return (uintptr_t)p % (V * size) == 0 && stride % V == 0 && width % V == 0;
}

template <int V> static bool are_aligned(const struct hyper_launch &a, size_t size)
{
    return is_aligned<V>(a.streams, a.streams_stride, a.width, size) &&
           (!a.delta || is_aligned<V>(a.delta, a.delta_stride, a.width, size)) &&
           (!a.x || is_aligned<V>(a.x, a.x_stride, a.width, size)) &&
           (!a.out || is_aligned<V>(a.out, a.out_stride, a.width, size)) &&
           (uintptr_t)a.fn % 16 == 0;
}

template <typename T>
static cudaError_t launch_hyper(cudaStream_t stream, const struct hyper_launch &a)
{
    enum { V = 4 };
    const bool wide = are_aligned<V>(a, sizeof(T));
    cudaError_t e = wide ? launch_add<T, V>(stream, a) : launch_add<T, 1>(stream, a);
    if (e == cudaSuccess && a.fn) {
        e = wide ? launch_mix<T, V>(stream, a) : launch_mix<T, 1>(stream, a);
    }
    return e;
}

extern "C" cudaError_t k_hyper(cudaStream_t stream, const struct hyper_launch *a)
{
    BY_DTYPE(a->dtype, T, return launch_hyper<T>(stream, *a));
    return cudaErrorInvalidValue;
}
