// SPDX-License-Identifier: Apache-2.0
/* Hidden states by slot: stores a pass's rows in their slots, and gives each row the hidden state
 * of the row before it. One block copies one row; bound by the launch. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/state/state.cuh"

/* Rows of `n` words of type W, which are `stride` words apart, from `base` on. */
template <typename W> struct hidden_words {
    W *base;
    int32_t n, stride, block_tokens;
};

template <typename W>
__device__ __forceinline__ W *row_of(const struct hidden_words<W> &h, const struct pass_view &pass,
                                     int32_t lane, int32_t slot)
{
    const int32_t page = pass.blocks[(int64_t)lane * pass.blocks_stride + slot / h.block_tokens];
    return h.base + ((int64_t)page * h.block_tokens + slot % h.block_tokens) * h.stride;
}

/* One block per row; padding rows are skipped. */
template <typename W>
__global__ void hidden_store_kernel(const W *x, int64_t stride, struct hidden_words<W> h,
                                    struct pass_view pass, bool out_rows)
{
    pdl_wait();
    pdl_trigger();
    const int i = blockIdx.x;
    if (i >= (out_rows ? pass.counts->n_out : pass.counts->n_rows)) {
        return;
    }
    const struct pass_row row = pass.rows[out_rows ? pass.out_rows[i] : i];
    W *to = row_of(h, pass, row.lane, row.slot_pos);
    for (int k = threadIdx.x; k < h.n; k += blockDim.x) {
        to[k] = x[i * stride + k];
    }
}

/* The slot of the row before r on its path; -1: there is none. */
__device__ int32_t slot_before(const struct pass_view &pass, int32_t r)
{
    const int32_t s = pass.row_seq[r];
    const struct pass_row row = pass.rows[r];
    if (s < 0 || row.pos == 0) {
        return -1;
    }
    const struct pass_seq seq = pass.seqs[s];
    if (!seq.tree) {
        return row.slot_pos - 1;
    }
    const int32_t before = path_row(pass, seq, r, row.pos - 1);
    return before >= 0 ? pass.rows[before].slot_pos : seq.n_past - 1;
}

/* One block per row. Thread 0 finds the slot, because a tree's row has to search for its
 * parent. */
template <typename W>
__global__ void hidden_load_kernel(W *x, int64_t stride, struct hidden_words<W> h,
                                   struct pass_view pass)
{
    __shared__ int32_t slot;
    pdl_wait();
    pdl_trigger();
    const int r = blockIdx.x;
    if (threadIdx.x == 0) {
        slot = slot_before(pass, r);
    }
    __syncthreads();
    const W *from = slot < 0 ? NULL : row_of(h, pass, pass.rows[r].lane, slot);
    for (int k = threadIdx.x; k < h.n; k += blockDim.x) {
        x[r * stride + k] = from ? from[k] : W{};
    }
}

template <typename W>
static hidden_words<W> words_of(const struct hidden_args *a, const struct kv_view *rows,
                                int32_t per)
{
    return {(W *)rows->base + a->first / per, a->width / per, rows->head_dim_k / per,
            rows->block_tokens};
}

/* One word of type W holds `per` elements. */
template <typename W>
static cudaError_t store(cudaStream_t stream, const struct hidden_args *a,
                         const struct kv_view *rows, const struct pass_view *pass, int32_t per)
{
    const hidden_words<W> h = words_of<W>(a, rows, per);
    return launch(hidden_store_kernel<W>, dim3(a->n_rows), dim3(128), 0, stream,
                  (const W *)a->x.mem.p, (int64_t)(a->x.stride / per), h, *pass, a->out_rows);
}

template <typename W>
static cudaError_t load(cudaStream_t stream, const struct hidden_args *a,
                        const struct kv_view *rows, const struct pass_view *pass, int32_t per)
{
    const hidden_words<W> h = words_of<W>(a, rows, per);
    return launch(hidden_load_kernel<W>, dim3(a->n_rows), dim3(128), 0, stream, (W *)a->x.mem.p,
                  (int64_t)(a->x.stride / per), h, *pass);
}

extern "C" cudaError_t k_hidden_store(cudaStream_t stream, const struct hidden_args *a,
                                      const struct kv_view *rows, const struct pass_view *pass)
{
    const size_t size = dtype_bytes(a->x.dtype);
    if (vec_ok(a->x.mem.p, a->x.stride, a->width, size)) {
        return store<uint4>(stream, a, rows, pass, (int32_t)(16 / size));
    }
    return size == 4 ? store<uint32_t>(stream, a, rows, pass, 1)
                     : store<uint16_t>(stream, a, rows, pass, 1);
}

extern "C" cudaError_t k_hidden_load(cudaStream_t stream, const struct hidden_args *a,
                                     const struct kv_view *rows, const struct pass_view *pass)
{
    const size_t size = dtype_bytes(a->x.dtype);
    if (vec_ok(a->x.mem.p, a->x.stride, a->width, size)) {
        return load<uint4>(stream, a, rows, pass, (int32_t)(16 / size));
    }
    return size == 4 ? load<uint32_t>(stream, a, rows, pass, 1)
                     : load<uint16_t>(stream, a, rows, pass, 1);
}
