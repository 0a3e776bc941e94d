// SPDX-License-Identifier: Apache-2.0
/* The sum over a row's picks after the products of moe/sm90.cu, coded_many.cu or eight_sm90.cu, in
 * order of expert id, a block per row. It adds to the shared expert's result, and also applies that
 * expert's gate. This takes a pass over x; a separate kernel would take one over y, too. Bound by
 * memory bandwidth. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/moe/sm90.cuh"

enum { MOST_THREADS = 256, AT_ONCE = 4 };

struct sum_params {
    const void *x;     // the layer's input
    const float *gate; // [hidden]: y is multiplied by sigmoid(x . gate) first; NULL: it is not
    const int32_t *ids;
    const float *weights; // by pick; NULL: all are 1
    const int32_t *real;
    int32_t row_offset, k, hidden;
    int64_t x_stride, y_stride;
    bool accumulate;
};

/* The gate of the shared expert, whose result is in y. Called by all threads. */
template <typename T>
__device__ __forceinline__ float gate_of(const struct sum_params &p, int64_t row, float *shared)
{
    float dot = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x * 8; i < p.hidden; i += blockDim.x * 8) {
        vec<T> x;
        x.load((const T *)p.x + row * p.x_stride + i);
        const float4 low = *(const float4 *)(p.gate + i), high = *(const float4 *)(p.gate + i + 4);
        const float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int e = 0; e < 8; e++) {
            dot = fmaf(to_float(x.v[e]), w[e], dot);
        }
    }
    return 1.0f / (1.0f + expf(-block_sum(dot, shared)));
}

/* Where a pick's output begins after that of the row's first pick, and its weight. */
struct term {
    int32_t at;
    float weight;
};

/* The row's picks in order of expert. Called by the first warp. */
__device__ __forceinline__ void order_picks(const struct sum_params &p, int64_t row,
                                            struct term *terms)
{
    const int lane = threadIdx.x;
    const int32_t id = lane < p.k ? p.ids[row * p.k + lane] : INT32_MAX;
    const float weight = p.weights && lane < p.k ? p.weights[row * p.k + lane] : 1.0f;
    int place = 0;
#pragma unroll 1
    for (int j = 0; j < p.k; j++) {
        const int32_t other = __shfl_sync(0xffffffffu, id, j);
        place += other < id || (other == id && j < lane);
    }
    if (lane < p.k) {
        terms[place] = {lane * p.hidden, weight};
    }
}

/* Adds the picks' outputs to eight elements, AT_ONCE loads at a time. */
template <typename T>
__device__ __forceinline__ void add_picks(float (&sum)[8], const T *out, const struct term *terms,
                                          int k)
{
#pragma unroll 1
    for (int j = 0; j < k; j += AT_ONCE) {
        vec<T> v[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (j + u < k) {
                v[u].load(out + terms[j + u].at);
            }
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (j + u < k) {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    sum[e] = fmaf(terms[j + u].weight, to_float(v[u].v[e]), sum[e]);
                }
            }
        }
    }
}

/* Discards what eight threads have read, a line of the L2 cache for each pick, so that it is not
 * written to memory. */
template <typename T> __device__ __forceinline__ void discard(const T *line, int k, int32_t stride)
{
    const int lane = threadIdx.x & 31;
    __syncwarp(0xffu << (lane & 24));
#pragma unroll 1
    for (int j = lane & 7; j < k; j += 8) {
        asm volatile("discard.global.L2 [%0], 128;" ::"l"(
                         __cvta_generic_to_global(line - (lane & 7) * 8 + (int64_t)j * stride))
                     : "memory");
    }
}

/* The order of the picks and the gate need nothing of the products, of which the last one triggers
 * after its own wait, so they are computed before the wait. */
template <typename T, bool DISCARDS>
__global__ void __launch_bounds__(MOST_THREADS, 5)
    moe_sum_kernel(T *y, const T *out, struct sum_params p)
{
    __shared__ struct term terms[MOE_MAX_K];
    __shared__ float shared[32];
    const int64_t row = blockIdx.x;
    const bool is = !p.real || row + p.row_offset < *p.real;
    float gate = 1.0f;
    if (is) {
        if (threadIdx.x < 32) {
            order_picks(p, row, terms);
        }
        gate = p.gate ? gate_of<T>(p, row, shared) : 1.0f;
    }
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    if (!is) {
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x * 8; i < p.hidden; i += blockDim.x * 8) {
        vec<T> to;
        if (p.accumulate) {
            to.load(y + row * p.y_stride + i);
        }
        float sum[8] = {};
        add_picks(sum, out + row * p.k * p.hidden + i, terms, p.k);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float y = to_float(from_float<T>(to_float(to.v[e]) * gate)); // as k_row_gate
            to.v[e] = from_float<T>(p.accumulate ? y + sum[e] : sum[e]);
        }
        to.store(y + row * p.y_stride + i);
        if (DISCARDS) {
            discard(out + row * p.k * p.hidden + i, p.k, p.hidden);
        }
    }
}

template <typename T>
static cudaError_t launch_sum(cudaStream_t stream, const struct moe_ffn_args *a,
                              const struct moe_work &w, const struct sum_params &p)
{
    const int vecs = (p.hidden + 7) / 8, turns = (vecs + MOST_THREADS - 1) / MOST_THREADS;
    const int threads = ((vecs + turns - 1) / turns + 31) / 32 * 32;
    return launch(w.keeps_out ? moe_sum_kernel<T, true> : moe_sum_kernel<T, false>, dim3(a->n_rows),
                  dim3(threads), 0, stream, (T *)a->y.mem.p, (const T *)w.out, p);
}

cudaError_t moe_sum(cudaStream_t stream, const struct moe_ffn_args *a, const float *gate,
                    const struct moe_work &w, int32_t hidden, const int32_t *real,
                    int32_t row_offset)
{
    struct sum_params p = {};
    p.x = a->x.mem.p;
    p.gate = gate;
    p.ids = (const int32_t *)a->ids.p;
    p.weights = a->weigh_inputs ? NULL : (const float *)a->weights.p;
    p.real = real;
    p.row_offset = row_offset;
    p.k = a->k;
    p.hidden = hidden;
    p.x_stride = a->x.stride;
    p.y_stride = a->y.stride;
    p.accumulate = a->accumulate;
    return a->x.dtype == DT_BF16 ? launch_sum<bf16_t>(stream, a, w, p)
                                 : launch_sum<f16_t>(stream, a, w, p);
}
