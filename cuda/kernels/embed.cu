// SPDX-License-Identifier: Apache-2.0
/* Gathers rows into and out of the residual stream: the embedding, and the rows that go to the
 * output head. A thread copies one vector. Bound by latency with few rows, otherwise by memory
 * bandwidth. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"

/* The table's row; row 0 instead of memory outside the table. */
template <typename W>
__device__ static const W *row_of(const struct lookup_view &t, int64_t row, int32_t hidden)
{
    return (const W *)t.data + (row < 0 || row >= t.n_rows ? 0 : row) * hidden;
}

/* The type of a row's token. A table without a row for it has row 0 instead. */
__device__ static int32_t type_of(const struct pass_view &pass, int row, int32_t pos)
{
    const int32_t seq = pass.row_seq[row], second = seq < 0 ? 0 : pass.seqs[seq].second;
    return second > 0 && pos >= second;
}

/* One block per row. */
template <typename W, typename T>
__global__ void embed_kernel(const struct embed_tables t, T *x, int32_t stride, int32_t hidden,
                             float scale, const struct pass_view pass)
{
    pdl_wait();
    pdl_trigger();
    const int32_t pos = pass.rows[blockIdx.x].pos;
    const W *from = row_of<W>(t.tokens, pass.tokens[blockIdx.x], hidden), *at = NULL, *type = NULL;
    if (t.positions.data) {
        at = row_of<W>(t.positions, (int64_t)t.positions.first + pos, hidden);
    }
    if (t.types.data) {
        type = row_of<W>(t.types, type_of(pass, blockIdx.x, pos), hidden);
    }
    T *to = x + (int64_t)blockIdx.x * stride;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float sum = to_float(from[i]) * scale;
        sum += type ? to_float(type[i]) : 0.0f;
        sum += at ? to_float(at[i]) : 0.0f;
        to[i] = from_float<T>(sum);
    }
}

extern "C" cudaError_t k_embed(cudaStream_t stream, const struct embed_args *a,
                               const struct embed_tables *tables, enum dtype dtype, int32_t hidden,
                               const struct pass_view *pass)
{
    const dim3 grid(a->n_rows), block(hidden >= 1024 ? 512 : 128);
    BY_DTYPE(dtype, W,
             BY_DTYPE(a->x.dtype, T,
                      return launch(embed_kernel<W, T>, grid, block, 0, stream, *tables,
                                    (T *)a->x.mem.p, a->x.stride, hidden, a->scale, *pass)));
    return cudaErrorInvalidValue;
}

/* One block per row. Words are as wide as the alignment allows. */
template <typename W>
__global__ void gather_kernel(const W *x, int64_t x_stride, W *out, int64_t out_stride, int32_t n,
                              const int32_t *out_rows)
{
    pdl_wait();
    pdl_trigger();
    const W *from = x + out_rows[blockIdx.x] * x_stride;
    W *to = out + blockIdx.x * out_stride;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        to[i] = from[i];
    }
}

extern "C" cudaError_t k_gather(cudaStream_t stream, const struct gather_args *a,
                                const struct pass_view *pass)
{
    const size_t size = dtype_bytes(a->x.dtype);
    const dim3 grid(a->n_out), block(256);
    if (vec_ok(a->x.mem.p, a->x.stride, a->width, size) &&
        vec_ok(a->out.mem.p, a->out.stride, a->width, size)) {
        const int32_t n = (int32_t)(16 / size);
        return launch(gather_kernel<uint4>, grid, block, 0, stream, (const uint4 *)a->x.mem.p,
                      (int64_t)a->x.stride / n, (uint4 *)a->out.mem.p, (int64_t)a->out.stride / n,
                      a->width / n, pass->out_rows);
    }
    if (size == 4) {
        return launch(gather_kernel<uint32_t>, grid, block, 0, stream, (const uint32_t *)a->x.mem.p,
                      (int64_t)a->x.stride, (uint32_t *)a->out.mem.p, (int64_t)a->out.stride,
                      a->width, pass->out_rows);
    }
    return launch(gather_kernel<uint16_t>, grid, block, 0, stream, (const uint16_t *)a->x.mem.p,
                  (int64_t)a->x.stride, (uint16_t *)a->out.mem.p, (int64_t)a->out.stride, a->width,
                  pass->out_rows);
}
