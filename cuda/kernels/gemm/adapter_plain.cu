// SPDX-License-Identifier: Apache-2.0
/* Low-rank adapters (adapter.cuh): the launcher, and kernels for fp32 and for rows that are not
 * aligned. These compute one row at a time with plain multiply-adds, in the same parts. Bound by
 * reading the matrices for each row. */
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/gemm/adapter.cuh"

/* A block has a row and a part, a warp every fourth rank. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    down_plain_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    const int i = blockIdx.x % a.list.tile, part = blockIdx.y, lane = threadIdx.x & 31;
    const int length = run_inputs(a, n_parts) * RUNS, end = min((part + 1) * length, a.n_in);
    const struct adapter_item item = a.list.items[blockIdx.x / a.list.tile];
    pdl_wait();
    pdl_trigger();
    if (i >= item.n_rows) {
        return;
    }
    const T *x = (const T *)a.x + row_at(a, item, i) * a.x_stride;
    const T *down = (const T *)a.down + (int64_t)(item.adapter - 1) * a.ranks * a.n_in;
    for (int rank = threadIdx.x >> 5; rank < a.ranks; rank += THREADS / 32) {
        float sum = 0.0f;
        for (int k = part * length + lane; k < end; k += 32) {
            sum = fmaf(to_float(down[(int64_t)rank * a.n_in + k]), to_float(x[k]), sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            sums_at(a, n_parts, item, i, part)[rank] = sum;
        }
    }
}

/* A block has a row and PLAIN_FEATURES features; four lanes have a feature. */
enum { PLAIN_FEATURES = 256 };

template <typename T, typename Y>
__global__ void __launch_bounds__(THREADS)
    up_plain_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    __shared__ float sums[ADAPTER_MAX_RANKS];
    const int i = blockIdx.x % a.list.tile, lane = threadIdx.x & 3;
    const int first = blockIdx.y * PLAIN_FEATURES;
    const struct adapter_item item = a.list.items[blockIdx.x / a.list.tile];
    pdl_wait();
    pdl_trigger();
    if (i >= item.n_rows) {
        return;
    }
    for (int rank = threadIdx.x; rank < a.ranks; rank += THREADS) {
        float sum = 0.0f;
        for (int p = 0; p < n_parts; p++) {
            sum += sums_at(a, n_parts, item, i, p)[rank];
        }
        sums[rank] = to_float(from_float<T>(sum));
    }
    __syncthreads();
    Y *row = (Y *)a.y + row_at(a, item, i) * a.y_stride;
    for (int f = threadIdx.x >> 2; f < PLAIN_FEATURES; f += THREADS / 4) {
        const int feature = min(first + f, a.n_out - 1);
        const T *up = (const T *)a.up + ((int64_t)(item.adapter - 1) * a.n_out + feature) * a.rank;
        const float *own = sums + a.first_rank[run_of(a, feature)];
        float sum = 0.0f;
        for (int rank = lane; rank < a.rank; rank += 4) {
            sum = fmaf(to_float(up[rank]), own[rank], sum);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane == 0 && first + f < a.n_out) {
            row[feature] = from_float<Y>(to_float(row[feature]) + sum);
        }
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

template <typename T, typename Y>
static cudaError_t adapter_plain(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    const unsigned rows = (unsigned)(a->list.n_items * a->list.tile);
    const cudaError_t e =
        launch(down_plain_kernel<T>, dim3(rows, n_parts), dim3(THREADS), 0, stream, *a, n_parts);
    return e != cudaSuccess
               ? e
               : launch(up_plain_kernel<T, Y>, dim3(rows, ceil_div(a->n_out, PLAIN_FEATURES)),
                        dim3(THREADS), 0, stream, *a, n_parts);
}

extern "C" cudaError_t k_adapter(cudaStream_t stream, const struct adapter_args *a)
{
    const int n_parts = adapter_parts(a->n_in, a->ranks);
    const size_t element = dtype_bytes(a->dtype), y_element = dtype_bytes(a->y_dtype);
    if (a->list.n_items == 0) {
        return cudaSuccess;
    }
    if (element == 2 && a->n_out % 8 == 0 && vec_ok(a->x, a->x_stride, a->n_in, element) &&
        vec_ok(a->y, a->y_stride, a->n_out, y_element)) {
        const cudaError_t e = adapter_down(stream, a, n_parts);
        return e != cudaSuccess ? e : adapter_up(stream, a, n_parts);
    }
    if (a->y_dtype == a->dtype) {
        BY_DTYPE(a->dtype, T, return adapter_plain<T, T>(stream, a, n_parts));
    }
    BY_DTYPE(a->dtype, T, return adapter_plain<T, float>(stream, a, n_parts));
    return cudaErrorInvalidValue;
}
