// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: the LayerNorm and the rotation of each row's index key, its store into the
 * pages of the index layer, and the rotation of the index queries in place. A block stores a row's
 * key, or rotates four of the row's query heads, one per warp. Bound by memory bandwidth or, with
 * few rows, by latency. */
#include "cuda/index.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/rope.cuh"

struct store_params {
    int32_t q_stride, k_stride, n_heads, head_dim, rope_at;
    float eps;
    struct head_factors growth;
};

/* Stores the key of a block's row. A key with NaN or infinity is stored as NaN throughout, so that
 * it scores 0 for the rows that see it. */
template <typename T, typename C>
__device__ __forceinline__ void
store_key(const T *k, const struct store_params &p, const struct rope_view &rope,
          const float *cos_sin, const float *norm, const float *bias, const struct kv_view &kv,
          const struct pass_view &pass, const struct pass_row &row)
{
    __shared__ float normed[MAX_INDEX_DIM], key[MAX_INDEX_DIM], shared[32];
    const int n = p.head_dim;
    const T *x = k + (int64_t)blockIdx.x * p.k_stride;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        sum += to_float(x[i]);
    }
    const float mean = block_sum(sum, shared) / (float)n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float f = to_float(x[i]) - mean;
        squares += f * f;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares, shared) / (float)n + p.eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float f = (to_float(x[i]) - mean) * scale * (norm ? norm[i] : 1.0f);
        normed[i] = f + (bias ? bias[i] : 0.0f);
    }
    __syncthreads();
    const bool codes = kv.codes.format != KV_PLAIN;
    bool broken = false;
    for (int i = threadIdx.x; i < (n + 31) / 32 * 32; i += blockDim.x) {
        const int at = i - p.rope_at;
        key[i] = i < n ? normed[i] : 0.0f;
        if (at >= 0 && at < 2 * rope.n_pairs) {
            key[i] = rotated(normed + p.rope_at, at, rope, cos_sin);
        }
        broken |= !is_storable<C>(key[i], codes);
    }
    broken = __syncthreads_or(broken);
    int64_t page;
    int32_t token;
    slot_of(pass, row, kv.block_tokens, &page, &token);
    if (!codes) {
        C *to = (C *)kv.base + page * kv.page_stride + (int64_t)token * kv.head_dim_k;
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            to[i] = from_float<C>(broken ? NAN : key[i]);
        }
        return;
    }
    if (threadIdx.x < 32) {
        for (int i = threadIdx.x; broken && i < n; i += 32) {
            key[i] = NAN;
        }
        __syncwarp();
        kv_store_head(kv.codes, kv_place_of(kv, page, 0, token), false, key, n);
    }
}

/* Block (row, y): with y == 0 it stores the row's key; otherwise it rotates four query heads. */
template <typename T, typename C>
__global__ void __launch_bounds__(32 * ROPE_WARPS)
    index_store_kernel(T *q, const T *k, struct store_params p, struct rope_view rope,
                       const float *norm, const float *bias, struct kv_view kv,
                       struct pass_view pass)
{
    __shared__ float heads[ROPE_WARPS][MAX_INDEX_DIM];
    pdl_wait();
    pdl_trigger();
    const struct pass_row row = pass.rows[blockIdx.x];
    const int32_t pos = row.pos < rope.max_pos ? row.pos : rope.max_pos - 1;
    const float *cos_sin = rope.cos_sin + (int64_t)pos * rope.n_pairs * 2;
    if (blockIdx.y == 0) {
        store_key<T, C>(k, p, rope, cos_sin, norm, bias, kv, pass, row);
        return;
    }
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int h = (blockIdx.y - 1) * ROPE_WARPS + warp;
    if (h >= p.n_heads) {
        return;
    }
    T *mine = q + (int64_t)blockIdx.x * p.q_stride + (int64_t)h * p.head_dim + p.rope_at;
    float *head = heads[warp];
    for (int i = lane; i < 2 * rope.n_pairs; i += 32) {
        head[i] = to_float(mine[i]);
    }
    __syncwarp();
    const float growth = growth_at(p.growth, h, row.pos);
    for (int i = lane; i < 2 * rope.n_pairs; i += 32) {
        mine[i] = from_float<T>(rotated(head, i, rope, cos_sin) * growth);
    }
    for (int i = 2 * rope.n_pairs + lane; growth != 1.0f && i < p.head_dim; i += 32) {
        mine[i] = from_float<T>(to_float(mine[i]) * growth);
    }
}

extern "C" cudaError_t k_index_store(cudaStream_t stream, const struct index_store_args *a,
                                     const struct rope_view *rope, const float *norm,
                                     const float *norm_bias, const struct head_factors *growth,
                                     const struct kv_view *kv, const struct pass_view *pass)
{
    const struct store_params p = {a->q.stride, a->k.stride, a->n_heads, a->head_dim,
                                   a->rope_at,  a->eps,      *growth};
    const bool changes = rope->n_pairs > 0 || growth->scale;
    const int by_heads = changes ? (a->n_heads + ROPE_WARPS - 1) / ROPE_WARPS : 0;
    const dim3 grid(a->n_rows, 1 + by_heads), block(32 * ROPE_WARPS);
    BY_DTYPE(
        a->q.dtype, T,
        BY_DTYPE(kv->dtype, C,
                 return launch(index_store_kernel<T, C>, grid, block, 0, stream, (T *)a->q.mem.p,
                               (const T *)a->k.mem.p, p, *rope, norm, norm_bias, *kv, *pass)));
    return cudaErrorInvalidValue;
}
