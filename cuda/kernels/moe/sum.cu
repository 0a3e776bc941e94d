// SPDX-License-Identifier: Apache-2.0
/* The sum over a row's picks after the products of moe/sm90.cu, coded_many.cu or eight_sm90.cu, in
 * order of expert id, a block per row. It adds to the shared expert's result, and also applies that
 * expert's gate. This takes a pass over x; a separate kernel would take one over y, too. Bound by
 * memory bandwidth. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/moe/sm90.cuh"

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
    for (int i = threadIdx.x * 8; i < p.hidden; i += blockDim.x * 8) {
        vec<T> x;
        x.load((const T *)p.x + row * p.x_stride + i);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            dot = fmaf(to_float(x.v[e]), p.gate[i + e], dot);
        }
    }
    return 1.0f / (1.0f + expf(-block_sum(dot, shared)));
}

template <typename T> __global__ void moe_sum_kernel(T *y, const T *out, struct sum_params p)
{
    __shared__ int32_t order[MOE_MAX_K];
    __shared__ float weight[MOE_MAX_K], shared[32];
    pdl_wait();
    pdl_trigger();
    const int64_t row = blockIdx.x;
    if (p.real && row + p.row_offset >= *p.real) {
        return;
    }
    if ((int)threadIdx.x < p.k) {
        const int32_t id = p.ids[row * p.k + threadIdx.x];
        int place = 0;
        for (int j = 0; j < p.k; j++) {
            const int32_t other = p.ids[row * p.k + j];
            place += other < id || (other == id && j < (int)threadIdx.x);
        }
        order[place] = (int32_t)threadIdx.x;
        weight[place] = p.weights ? p.weights[row * p.k + threadIdx.x] : 1.0f;
    }
    __syncthreads();
    const float gate = p.gate ? gate_of<T>(p, row, shared) : 1.0f;
    for (int i = threadIdx.x * 8; i < p.hidden; i += blockDim.x * 8) {
        float sum[8] = {};
#pragma unroll 8
        for (int j = 0; j < p.k; j++) {
            vec<T> v;
            v.load(out + (row * p.k + order[j]) * p.hidden + i);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum[e] = fmaf(weight[j], to_float(v.v[e]), sum[e]);
            }
        }
        vec<T> to;
        if (p.accumulate) {
            to.load(y + row * p.y_stride + i);
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float y = to_float(from_float<T>(to_float(to.v[e]) * gate)); // as k_row_gate
            to.v[e] = from_float<T>(p.accumulate ? y + sum[e] : sum[e]);
        }
        to.store(y + row * p.y_stride + i);
    }
}

template <typename T>
static cudaError_t launch_sum(cudaStream_t stream, const struct moe_ffn_args *a,
                              const struct moe_work &w, const struct sum_params &p)
{
    return launch(moe_sum_kernel<T>, dim3(a->n_rows), dim3(256), 0, stream, (T *)a->y.mem.p,
                  (const T *)w.out, p);
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
