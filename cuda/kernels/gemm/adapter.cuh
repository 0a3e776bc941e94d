// SPDX-License-Identifier: Apache-2.0
/* What the kernels of low-rank adapters share, y[row] += up_a (down_a x[row]), where a is the
 * adapter of the row's sequence. Rows without an adapter are left as they are.
 *
 * The work is divided by the pass's list of rows, which is sorted by adapter: an item has up to 16
 * rows of one adapter, or up to 64 in passes of many rows. A matrix is read once for each item.
 *
 * down_a x (adapter_down.cu): K is cut into parts (adapter_parts), and a part into four runs. A run
 * is summed in one accumulator of mma.sync, the runs of a part are added in order, and so are the
 * parts. adapter_up.cu rounds the result once to the dtype of x, as PEFT and vLLM do, since y
 * itself is rounded to it, multiplies it with up_a, and adds it to y in fp32. None of this depends
 * on the number of rows or on the other rows. Thread: device code; the launchers are for the rank's
 * owner. */
#ifndef SLUICE_CUDA_GEMM_ADAPTER_CUH
#define SLUICE_CUDA_GEMM_ADAPTER_CUH

#include "cuda/adapter.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"

/* RUNS: of a part, and warps of a block. CHUNK: inputs of two steps of mma.sync. TILE: rows of an
 * operand. */
enum { RUNS = 4, THREADS = RUNS * 32, CHUNK = 32, TILE = 16 };

/* Row i of an item, as the pass numbers it. */
__device__ __forceinline__ int row_at(const struct adapter_args &a, const struct adapter_item &item,
                                      int i)
{
    return a.list.rows[item.first + i];
}

/* The inputs of a run, which are whole chunks; the last runs of a row may have fewer. */
__host__ __device__ __forceinline__ int run_inputs(const struct adapter_args &a, int n_parts)
{
    const int n_runs = n_parts * RUNS;
    return ((a.n_in + n_runs - 1) / n_runs + CHUNK - 1) / CHUNK * CHUNK;
}

/* Where a part's sums are for row i of an item: in the order of the list. */
__device__ __forceinline__ float *sums_at(const struct adapter_args &a, int n_parts,
                                          const struct adapter_item &item, int i, int part)
{
    return a.sums + ((int64_t)(item.first + i) * n_parts + part) * a.ranks;
}

/* The run of a feature, and where it ends. */
__device__ __forceinline__ int run_of(const struct adapter_args &a, int feature)
{
    int run = 0;
    while (run + 1 < a.n_runs && feature >= a.first_out[run + 1]) {
        run++;
    }
    return run;
}

__device__ __forceinline__ int run_end(const struct adapter_args &a, int run)
{
    return run + 1 < a.n_runs ? a.first_out[run + 1] : a.n_out;
}

/* Adds four ranks of another part. */
__device__ __forceinline__ void add_part(float4 &sum, const float4 &v)
{
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
}

static inline int ceil_div(int n, int by)
{
    return (n + by - 1) / by;
}

/* For 16 bits and aligned rows. down leaves the sums of each row's parts, or, with many rows, the
 * sum of these as the first part, which is where up expects them. */
cudaError_t adapter_down(cudaStream_t stream, const struct adapter_args *a, int n_parts);
cudaError_t adapter_up(cudaStream_t stream, const struct adapter_args *a, int n_parts);

#endif
