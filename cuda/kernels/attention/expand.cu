// SPDX-License-Identifier: Apache-2.0
/* Expands pages of codes to floating-point pages for prompts. The tensor cores then work on them as
 * on any other pages, whereas the kernel that reads codes would decode each code again for every 32
 * query vectors. The plan names the lanes and keys (attention_plan.h). Each layer expands its own
 * codes right before its attention.
 *
 * A warp processes one record at a time: 16 tokens of a head, 16 bytes per lane. Bound by the
 * bandwidth of writing the expanded pages. */
#include "cuda/kernels/attention/common.cuh"
#include "cuda/kernels/device/kv_codes.cuh"

enum { EXPAND_WARPS = 8, EXPAND_BLOCKS = 4 }; // EXPAND_BLOCKS: resident blocks per multiprocessor

/* Expands 16 bytes of one token's K or V: 16 elements or, with 4-bit codes, 32. */
template <typename T>
__device__ __forceinline__ void expand_piece(T *to, const struct kv_codes &c,
                                             const struct kv_place &at, bool is_v, int piece,
                                             int n_dims)
{
    const struct kv_scale s = kv_scale_get(c, at, is_v);
    const uint4 codes = *(const uint4 *)kv_byte(c, at, is_v, piece * 16);
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
    const bool is_half = c.format == KV_INT4;
    const int first = piece * (is_half ? 32 : 16);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        vec<T> out;
        if (is_half) {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                out.v[e] = from_float<T>(kv_number(KV_INT4, s, words[i] >> e / 2 * 8, e));
            }
            if (first + i * 8 < n_dims) {
                out.store(to + first + i * 8);
            }
        } else if (i < 2) {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const uint32_t byte = words[2 * i + e / 4] >> e % 4 * 8 & 0xff;
                out.v[e] = from_float<T>(kv_number(c.format, s, byte, e));
            }
            if (first + i * 8 < n_dims) {
                out.store(to + first + i * 8);
            }
        }
    }
}

/* Grid: (blocks that share the records of a run, runs). */
template <typename T>
__global__ void __launch_bounds__(EXPAND_WARPS * 32)
    attention_expand_kernel(struct kv_view kv, struct kv_view to, struct pass_view pass, int window,
                            int chunk)
{
    pdl_wait();
    pdl_trigger();
    const struct attention_plan_head head = *plan_head(pass.attention_plan);
    const struct attention_run run =
        ((const struct attention_run *)((const char *)pass.attention_plan +
                                        head.runs_offset))[blockIdx.y];
    const int bt = kv.block_tokens, first = run.begin / bt, end = (run.end + bt - 1) / bt;
    const int32_t *table = pass.blocks + (int64_t)run.lane * pass.blocks_stride;
    int32_t *own = pass.blocks + (int64_t)(pass.max_lanes + 1 + blockIdx.y) * pass.blocks_stride;
    for (int b = first + blockIdx.x * blockDim.x + threadIdx.x; b < end;
         b += gridDim.x * blockDim.x) {
        own[b] = run.first_page + b - first;
    }
    const struct kv_codes &c = kv.codes;
    const int per_head = bt / c.tokens, per_page = per_head * kv.n_kv_heads;
    const int lane = threadIdx.x & 31, warp = blockIdx.x * EXPAND_WARPS + (threadIdx.x >> 5);
    const int n_k = c.k_row / 16, n_pieces = n_k + c.v_row / 16;
    /* A page is skipped if no row sees any key of the tiles that the page belongs to. */
    const int low = first_seen(window, chunk, run.low_pos) - ATTENTION_KV_TILE;
    const int from = max(low, run.begin) / bt;
    for (int r = (from - first) * per_page + warp; r < (end - first) * per_page;
         r += gridDim.x * EXPAND_WARPS) {
        const int page = r / per_page, in_page = r - page * per_page;
        const int kv_head = in_page / per_head, token0 = (in_page - kv_head * per_head) * c.tokens;
        const int64_t stored = table[first + page];
        T *base = (T *)to.base + (run.first_page + page) * to.page_stride +
                  (int64_t)kv_head * to.head_stride;
        for (int i = lane; i < c.tokens * n_pieces; i += 32) {
            const int token = token0 + i / n_pieces, piece = i % n_pieces;
            const bool is_v = piece >= n_k;
            T *row =
                base + (is_v ? to.v_offset + token * to.v_token_stride : token * to.head_dim_k);
            expand_piece(row, c, kv_place_of(kv, stored, kv_head, token), is_v,
                         is_v ? piece - n_k : piece, is_v ? to.head_dim_v : to.head_dim_k);
        }
    }
}

/* The layer's expanded pages, in `memory`. */
struct kv_view attention_expanded(const struct kv_view *kv, void *memory, int32_t n_pages)
{
    struct kv_view v = *kv;
    v.base = memory;
    v.codes = {};
    v.n_pages = n_pages;
    v.v_offset = kv->head_dim_k * kv->block_tokens;
    v.v_token_stride = kv->head_dim_v;
    v.head_stride = (kv->head_dim_k + kv->head_dim_v) * kv->block_tokens;
    v.page_stride = (int64_t)v.head_stride * kv->n_kv_heads;
    return v;
}

cudaError_t attention_expand(cudaStream_t stream, const struct attention_launch *a,
                             const struct kv_view *to)
{
    const int n = EXPAND_BLOCKS * a->limits->n_sms / a->n_runs;
    const dim3 grid((unsigned)(n < 1 ? 1 : n), (unsigned)a->n_runs), block(EXPAND_WARPS * 32);
    return launch(a->kv.dtype == DT_BF16 ? attention_expand_kernel<bf16_t>
                                         : attention_expand_kernel<f16_t>,
                  grid, block, 0, stream, a->kv, *to, a->pass, a->window, a->chunk);
}
