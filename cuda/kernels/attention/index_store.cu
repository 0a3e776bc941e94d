// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: the norm and the rotation of each row's index key, its store into the pages of
 * the index layer, and the norm, if there is one, the rotation and the scaling of the index queries
 * in place. A block stores a row's key, or does the row's next four query heads, one per warp.
 * Bound by memory bandwidth or, with few rows, by latency. */
#include "cuda/index.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/rope.cuh"

struct store_params {
    int32_t q_stride, k_stride, n_heads, head_dim, rope_at;
    float eps, offset;
    bool centered; // LayerNorm
    const float *norm, *bias, *q_norm;
    struct head_factors growth;
};

/* Element i of a head that is rotated from rope_at on. */
__device__ __forceinline__ float rotated_at(const float *head, int i, const struct store_params &p,
                                            const struct rope_view &rope, const float *cos_sin)
{
    return i < p.rope_at ? head[i] : rotated(head + p.rope_at, i - p.rope_at, rope, cos_sin);
}

/* Stores the key of a block's row. A key with NaN or infinity is stored as NaN throughout, so that
 * it scores 0 for the rows that see it. */
template <typename T, typename C>
__device__ __forceinline__ void store_key(const T *k, const struct store_params &p,
                                          const struct rope_view &rope, const float *cos_sin,
                                          const struct kv_view &kv, const struct pass_view &pass,
                                          const struct pass_row &row)
{
    __shared__ float normed[MAX_INDEX_DIM], key[MAX_INDEX_DIM], shared[32];
    const int n = p.head_dim;
    const T *x = k + (int64_t)blockIdx.x * p.k_stride;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        sum += to_float(x[i]);
    }
    const float mean = p.centered ? block_sum(sum, shared) / (float)n : 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float f = to_float(x[i]) - mean;
        squares += f * f;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares, shared) / (float)n + p.eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float f = (to_float(x[i]) - mean) * scale * (p.norm ? p.norm[i] + p.offset : 1.0f);
        normed[i] = f + (p.bias ? p.bias[i] : 0.0f);
    }
    __syncthreads();
    const bool codes = kv.codes.format != KV_PLAIN;
    bool broken = false;
    for (int i = threadIdx.x; i < (n + 31) / 32 * 32; i += blockDim.x) {
        key[i] = i < n ? rotated_at(normed, i, p, rope, cos_sin) : 0.0f;
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

/* Takes the RMS norm of a query head; one warp. */
__device__ __forceinline__ void norm_query(float *head, const struct store_params &p)
{
    const int lane = threadIdx.x & 31;
    float squares = 0.0f;
    for (int i = lane; i < p.head_dim; i += 32) {
        squares += head[i] * head[i];
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)p.head_dim + p.eps);
    for (int i = lane; i < p.head_dim; i += 32) {
        head[i] = head[i] * scale * (p.q_norm[i] + p.offset);
    }
}

/* Block (row, y): with y == 0 it stores the row's key; otherwise it does four query heads. */
template <typename T, typename C>
__global__ void __launch_bounds__(32 * ROPE_WARPS)
    index_store_kernel(T *q, const T *k, struct store_params p, struct rope_view rope,
                       struct kv_view kv, struct pass_view pass)
{
    __shared__ float heads[ROPE_WARPS][MAX_INDEX_DIM];
    pdl_wait();
    pdl_trigger();
    const struct pass_row row = pass.rows[blockIdx.x];
    const int32_t pos = row.pos < rope.max_pos ? row.pos : rope.max_pos - 1;
    const float *cos_sin = rope.cos_sin + (int64_t)pos * rope.n_pairs * 2;
    if (blockIdx.y == 0) {
        store_key<T, C>(k, p, rope, cos_sin, kv, pass, row);
        return;
    }
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int h = (blockIdx.y - 1) * ROPE_WARPS + warp;
    if (h >= p.n_heads) {
        return;
    }
    T *mine = q + (int64_t)blockIdx.x * p.q_stride + (int64_t)h * p.head_dim;
    float *head = heads[warp];
    const float growth = growth_at(p.growth, h, row.pos);
    const bool all_change = p.q_norm || growth != 1.0f; // if not, only the rotated elements
    const int begin = all_change ? 0 : p.rope_at;
    const int end = all_change ? p.head_dim : p.rope_at + 2 * rope.n_pairs;
    for (int i = begin + lane; i < end; i += 32) {
        head[i] = to_float(mine[i]);
    }
    if (p.q_norm) {
        norm_query(head, p);
    }
    __syncwarp();
    for (int i = begin + lane; i < end; i += 32) {
        mine[i] = from_float<T>(rotated_at(head, i, p, rope, cos_sin) * growth);
    }
}

extern "C" cudaError_t k_index_store(cudaStream_t stream, const struct index_store_args *a,
                                     const struct rope_view *rope, const struct index_norms *norms,
                                     const struct head_factors *growth, const struct kv_view *kv,
                                     const struct pass_view *pass)
{
    const struct store_params p = {
        a->q.stride, a->k.stride,   a->n_heads,     a->head_dim,
        a->rope_at,  a->eps,        a->norm_offset, a->norm_kind == NORM_LAYER,
        norms->k,    norms->k_bias, norms->q,       *growth};
    const bool changes_q = rope->n_pairs > 0 || norms->q || growth->scale;
    const int by_heads = changes_q ? (a->n_heads + ROPE_WARPS - 1) / ROPE_WARPS : 0;
    const dim3 grid(a->n_rows, 1 + by_heads), block(32 * ROPE_WARPS);
    BY_DTYPE(a->q.dtype, T,
             BY_DTYPE(kv->dtype, C,
                      return launch(index_store_kernel<T, C>, grid, block, 0, stream,
                                    (T *)a->q.mem.p, (const T *)a->k.mem.p, p, *rope, *kv, *pass)));
    return cudaErrorInvalidValue;
}
