// SPDX-License-Identifier: Apache-2.0
/* For token trees in deterministic mode: copies the keys and values of paths that are not in place
 * (attention_plan.h), for one layer. PATH_SPLITS blocks share the slots of each path. Bound by the
 * latency of the copies, which are short. */
#include "cuda/kernels/attention/common.cuh"
#include "cuda/kernels/device/kv_codes.cuh"

enum { PATH_THREADS = 256, PATH_SPLITS = 8 };

/* Copies the keys and values of one slot to another. The threads divide the elements of the token's
 * heads, or the parts of its codes. */
template <typename W>
__device__ __forceinline__ void copy_token(const struct kv_view &kv, int64_t from_page, int from,
                                           int64_t to_page, int to)
{
    if (kv.codes.format != KV_PLAIN) {
        const int n_parts = kv_parts_of_head(kv) * kv.n_kv_heads;
        for (int e = threadIdx.x; e < n_parts; e += PATH_THREADS) {
            kv_copy_part(kv_part_at(kv, to_page, to, e), kv_part_at(kv, from_page, from, e));
        }
        return;
    }
    W *base = (W *)kv.base;
    const int n_k = kv.n_kv_heads * kv.head_dim_k;
    const int n_v = kv.v_offset == 0 ? 0 : kv.n_kv_heads * kv.head_dim_v;
    for (int e = threadIdx.x; e < n_k + n_v; e += PATH_THREADS) {
        const bool is_k = e < n_k;
        const int dim = is_k ? kv.head_dim_k : kv.head_dim_v, i = is_k ? e : e - n_k;
        const int64_t at = (int64_t)(i / dim) * kv.head_stride + (is_k ? 0 : kv.v_offset) + i % dim;
        const int stride = is_k ? kv.head_dim_k : kv.v_token_stride;
        base[to_page * kv.page_stride + at + (int64_t)to * stride] =
            base[from_page * kv.page_stride + at + (int64_t)from * stride];
    }
}

/* Grid: (maximum number of paths, PATH_SPLITS). The blocks of a path share its slots; the first
 * block also writes its block table. */
template <typename W>
__global__ void __launch_bounds__(PATH_THREADS)
    attention_paths_kernel(struct kv_view kv, struct pass_view pass, int n_pages)
{
    __shared__ int nodes[MAX_TREE_NODES];
    pdl_wait();
    pdl_trigger();
    const struct attention_plan_head head = *plan_head(pass.attention_plan);
    const int index = blockIdx.x, bt = kv.block_tokens;
    if (index >= head.n_paths) {
        return;
    }
    const struct attention_path path =
        ((const struct attention_path *)((const char *)pass.attention_plan +
                                         head.paths_offset))[index];
    const uint64_t *words = pass.tree_mask + (int64_t)path.row * TREE_MASK_WORDS;
    const uint64_t w[2] = {words[0], words[1]};
    const int i = threadIdx.x, n_nodes = __popcll(w[0]) + __popcll(w[1]);
    if (i < MAX_TREE_NODES && (w[i >> 6] >> (i & 63) & 1)) {
        const uint64_t below = w[i >> 6] & ((1ull << (i & 63)) - 1);
        nodes[__popcll(below) + (i >> 6 ? __popcll(w[0]) : 0)] = i;
    }
    __syncthreads();
    const int first_block = path.n_past / bt;
    const int first_page = pass.n_blocks + 1 + index * n_pages;
    const int32_t *table = pass.blocks + (int64_t)path.lane * pass.blocks_stride;
    int32_t *own = pass.blocks + (int64_t)(pass.max_lanes + 1 + index) * pass.blocks_stride;
    if (blockIdx.y == 0) {
        const int end = min(first_block + n_pages, pass.blocks_stride);
        for (int b = threadIdx.x; b < end; b += PATH_THREADS) {
            own[b] = b < first_block ? table[b] : first_page + b - first_block;
        }
    }
    for (int at = first_block * bt + blockIdx.y; at < path.n_past + n_nodes; at += PATH_SPLITS) {
        const int from = at < path.n_past ? at : path.n_past + nodes[at - path.n_past];
        copy_token<W>(kv, table[from / bt], from % bt, first_page + at / bt - first_block, at % bt);
    }
}

cudaError_t attention_paths(cudaStream_t stream, const struct attention_launch *a)
{
    const dim3 grid((unsigned)a->limits->max_paths, PATH_SPLITS), block(PATH_THREADS);
    const int n_pages = tree_path_blocks(a->kv.block_tokens);
    return launch(a->kv.dtype == DT_F32 ? attention_paths_kernel<uint32_t>
                                        : attention_paths_kernel<uint16_t>,
                  grid, block, 0, stream, a->kv, a->pass, n_pages);
}
