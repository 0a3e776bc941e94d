// SPDX-License-Identifier: Apache-2.0
/* Small kernels before and after a pass, outside its layers: updates of the lanes' state, and
 * copies and moves of KV pages. A block handles one update, copy or move. Bound by launch
 * latency. */
#include "cuda/kernels/device/kv_codes.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/pass_head.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* One block per patch: copies words from the step's staging memory to their places. */
__global__ void patch_kernel(const struct patch *patches, const uint32_t *data)
{
    pdl_wait();
    const struct patch p = patches[blockIdx.x];
    for (int i = threadIdx.x; i < p.n_words; i += blockDim.x) {
        ((uint32_t *)p.to)[i] = data[p.from + i];
    }
}

extern "C" cudaError_t k_patch(cudaStream_t stream, const struct patch *patches,
                               const uint32_t *data, int32_t n)
{
    return launch(patch_kernel, dim3(n), dim3(128), 0, stream, patches, data);
}

/* Copies the row's token, from the pass or from the lane's history, to where the embedding reads
 * it. */
__device__ __forceinline__ void begin_row(const struct pass_view &pass, int r)
{
    const struct pass_row row = pass.rows[r];
    int32_t *history = pass.history + (int64_t)row.lane * pass.history_stride;
    int32_t token = row.token;
    if (token < 0) {
        token = row.slot_pos < pass.history_stride ? history[row.slot_pos] : 0;
    } else if (row.slot_pos < pass.history_stride && row.lane < pass.max_lanes) {
        history[row.slot_pos] = token;
    }
    pass.tokens[r] = token;
}

/* One thread per row. */
__global__ void pass_begin_kernel(struct pass_view pass)
{
    pdl_wait();
    const int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < pass.n_rows) {
        begin_row(pass, r);
    }
}

extern "C" cudaError_t k_pass_begin(cudaStream_t stream, const struct pass_view *pass)
{
    return launch(pass_begin_kernel, dim3((pass->n_rows + 127) / 128), dim3(128), 0, stream, *pass);
}

/* One block. The host may have written to the same place before, so no cache may answer the loads.
 * The fence is for kernels that read metadata before they wait. */
__global__ void pass_begin_small_kernel(struct pass_view pass, const uint4 *image, uint4 *meta,
                                        int n)
{
    pdl_wait();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        meta[i] = __ldcv(image + i);
    }
    __syncthreads();
    for (int r = threadIdx.x; r < pass.n_rows; r += blockDim.x) {
        begin_row(pass, r);
    }
    __threadfence();
}

extern "C" cudaError_t k_pass_begin_small(cudaStream_t stream, const struct pass_view *pass,
                                          const void *image, void *meta, size_t n_bytes)
{
    return launch(pass_begin_small_kernel, dim3(1), dim3(1024), 0, stream, *pass,
                  (const uint4 *)image, (uint4 *)meta, (int)(n_bytes / sizeof(uint4)));
}

/* One block per (copy, region). Pages are multiples of 16 bytes (checked at open), or are copied
 * word by word. */
__global__ void copy_blocks_kernel(const struct kv_region *regions, const struct block_copy *copies)
{
    pdl_wait();
    const struct kv_region region = regions[blockIdx.y];
    const struct block_copy copy = copies[blockIdx.x];
    const char *from = (const char *)region.base + copy.from * region.page_bytes;
    char *to = (char *)region.base + copy.to * region.page_bytes;
    if (region.page_bytes % 16 == 0) {
        for (int64_t i = threadIdx.x; i < region.page_bytes / 16; i += blockDim.x) {
            ((uint4 *)to)[i] = ((const uint4 *)from)[i];
        }
    } else {
        for (int64_t i = threadIdx.x; i < region.page_bytes / 2; i += blockDim.x) {
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
        }
    }
}

extern "C" cudaError_t k_copy_blocks(cudaStream_t stream, const struct kv_region *regions,
                                     int32_t n_regions, const struct block_copy *copies, int32_t n)
{
    return launch(copy_blocks_kernel, dim3(n, n_regions), dim3(512), 0, stream, regions, copies);
}

/* The elements of a token can be moved independently of each other, but the moves of one lane must
 * stay in order. So one thread makes all moves of a lane for its elements. The block of a run's
 * first move does the whole run. */
template <typename W>
__device__ void move_run(const struct kv_view &kv, const struct slot_move *moves, int32_t first,
                         int32_t n, const struct pass_view &pass)
{
    W *base = (W *)kv.base;
    const int32_t lane = moves[first].lane;
    const int32_t *table = pass.blocks + (int64_t)lane * pass.blocks_stride;
    const int32_t n_k = kv.n_kv_heads * kv.head_dim_k;
    const int32_t n_v = kv.v_offset == 0 ? 0 : kv.n_kv_heads * kv.head_dim_v;
    const int32_t limit = pass.blocks_stride * kv.block_tokens;
    for (int32_t e = threadIdx.x; e < n_k + n_v; e += blockDim.x) {
        const bool is_k = e < n_k;
        const int32_t dim = is_k ? kv.head_dim_k : kv.head_dim_v, i = is_k ? e : e - n_k;
        const int64_t offset =
            (int64_t)(i / dim) * kv.head_stride + (is_k ? 0 : kv.v_offset) + i % dim;
        const int32_t token_stride = is_k ? kv.head_dim_k : kv.v_token_stride;
        for (int32_t m = first; m < n && moves[m].lane == lane; m++) {
            const int32_t from = moves[m].from, to = moves[m].to;
            if (from < 0 || to < 0 || from >= limit || to >= limit) {
                continue;
            }
            base[table[to / kv.block_tokens] * kv.page_stride + offset +
                 to % kv.block_tokens * token_stride] =
                base[table[from / kv.block_tokens] * kv.page_stride + offset +
                     from % kv.block_tokens * token_stride];
        }
    }
}

/* The same for codes, part by part. */
__device__ void move_codes(const struct kv_view &kv, const struct slot_move *moves, int32_t first,
                           int32_t n, const struct pass_view &pass)
{
    const int32_t lane = moves[first].lane, bt = kv.block_tokens;
    const int32_t *table = pass.blocks + (int64_t)lane * pass.blocks_stride;
    const int32_t limit = pass.blocks_stride * bt, n_parts = kv_parts_of_head(kv) * kv.n_kv_heads;
    for (int32_t e = threadIdx.x; e < n_parts; e += blockDim.x) {
        for (int32_t m = first; m < n && moves[m].lane == lane; m++) {
            const int32_t from = moves[m].from, to = moves[m].to;
            if (from >= 0 && to >= 0 && from < limit && to < limit) {
                kv_copy_part(kv_part_at(kv, table[to / bt], to % bt, e),
                             kv_part_at(kv, table[from / bt], from % bt, e));
            }
        }
    }
}

/* One block per layer and move. The block of the first move in a run (the moves of one lane) makes
 * all moves of the run in order; the other blocks return. */
__global__ void move_slots_kernel(const struct kv_region *regions, const struct slot_move *moves,
                                  int32_t n, struct pass_view pass)
{
    pdl_wait();
    const int32_t first = blockIdx.x;
    if (first > 0 && moves[first - 1].lane == moves[first].lane) {
        return;
    }
    const struct kv_view kv = regions[blockIdx.y].view;
    if (kv.codes.format != KV_PLAIN) {
        move_codes(kv, moves, first, n, pass);
    } else if (kv.dtype == DT_F32) {
        move_run<uint32_t>(kv, moves, first, n, pass);
    } else {
        move_run<uint16_t>(kv, moves, first, n, pass);
    }
}

extern "C" cudaError_t k_move_slots(cudaStream_t stream, const struct kv_region *regions,
                                    int32_t n_regions, const struct slot_move *moves, int32_t n,
                                    const struct pass_view *pass)
{
    return launch(move_slots_kernel, dim3(n, n_regions), dim3(256), 0, stream, regions, moves, n,
                  *pass);
}

/* One block of threads per KV block and layer. */
__global__ void poison_kernel(const struct kv_region *regions, const int32_t *blocks)
{
    pdl_wait();
    const struct kv_region region = regions[blockIdx.y];
    char *page = (char *)region.base + blocks[blockIdx.x] * region.page_bytes;
    if (region.view.codes.format != KV_PLAIN) { // scale words, and E4M3 codes, are then read as NaN
        for (int64_t i = threadIdx.x; i < region.page_bytes; i += blockDim.x) {
            page[i] = (char)0xff;
        }
    } else if (region.view.dtype == DT_F32) {
        for (int64_t i = threadIdx.x; i < region.page_bytes / 4; i += blockDim.x) {
            ((uint32_t *)page)[i] = 0x7fc00000u;
        }
    } else {
        const uint16_t nan = region.view.dtype == DT_BF16 ? 0x7fc0 : 0x7e00;
        for (int64_t i = threadIdx.x; i < region.page_bytes / 2; i += blockDim.x) {
            ((uint16_t *)page)[i] = nan;
        }
    }
}

extern "C" cudaError_t k_poison_blocks(cudaStream_t stream, const struct kv_region *regions,
                                       int32_t n_regions, const int32_t *blocks, int32_t n)
{
    return launch(poison_kernel, dim3(n, n_regions), dim3(256), 0, stream, regions, blocks);
}
