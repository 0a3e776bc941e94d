// SPDX-License-Identifier: Apache-2.0
/* Rotary position embedding for multi-head latent attention (MLA): the norm of the latent, the
 * rotation of the key's positional part, and the store of both as one key per token; and the
 * rotation of the queries' last elements. A block stores a row's key, or rotates four of the row's
 * query heads, one per warp. Bound by memory bandwidth or, with few rows, by latency. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/rope.cuh"

/* A row of MLA has the latent, which is normed, and the positional part, which is rotated. */
struct mla_params {
    int32_t q_stride, q_head, q_rope_offset;
    int32_t out_stride, out_head, out_offset;
    int32_t kv_stride, n_heads, rope_dim, kv_lora;
    float eps;
    struct query_growth growth;
    struct head_factors head_growth;
};

/* Stores the key of a block's row. head: a warp's room for the rotated elements. */
template <typename T, typename C>
__device__ __forceinline__ void store_key(const T *kv_in, const struct mla_params &p,
                                          const struct rope_view &rope, const float *cos_sin,
                                          const float *kv_norm, const struct kv_view &kv,
                                          const struct pass_view &pass, const struct pass_row &row,
                                          float *head, float *shared, float *key)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const T *x = kv_in + (int64_t)blockIdx.x * p.kv_stride;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < p.kv_lora; i += blockDim.x) {
        const float f = to_float(x[i]);
        sum += f * f;
    }
    const float scale = 1.0f / sqrtf(block_sum(sum, shared) / (float)p.kv_lora + p.eps);
    int64_t page;
    int32_t token;
    slot_of(pass, row, kv.block_tokens, &page, &token);
    const bool codes = kv.codes.format != KV_PLAIN;
    bool spoilt = false;
    const auto latent = [&](int i) {
        const float f = to_float(x[i]) * scale * (kv_norm ? kv_norm[i] : 1.0f);
        const bool ok = is_storable<C>(f, codes);
        spoilt |= !ok;
        return ok ? f : 0.0f;
    };
    if (warp == 0) {
        for (int i = lane; i < p.rope_dim; i += 32) {
            head[i] = to_float(x[p.kv_lora + i]);
        }
    }
    if (codes) {
        const int n = p.kv_lora + p.rope_dim;
        for (int i = threadIdx.x; i < (n + 31) / 32 * 32; i += blockDim.x) {
            key[i] = i < p.kv_lora ? latent(i) : 0.0f;
        }
        spoilt = __syncthreads_or(spoilt);
        if (warp == 0) {
            for (int i = lane; i < p.rope_dim; i += 32) {
                key[p.kv_lora + i] = spoilt ? NAN : rotated(head, i, rope, cos_sin);
            }
            __syncwarp();
            kv_store_head(kv.codes, kv_place_of(kv, page, 0, token), false, key, n);
        }
        return;
    }
    C *to = (C *)kv.base + page * kv.page_stride + (int64_t)token * kv.head_dim_k;
    for (int i = threadIdx.x; i < p.kv_lora; i += blockDim.x) {
        to[i] = from_float<C>(latent(i));
    }
    spoilt = __syncthreads_or(spoilt);
    if (warp == 0) {
        for (int i = lane; i < p.rope_dim; i += 32) {
            to[p.kv_lora + i] = from_float<C>(spoilt ? NAN : rotated(head, i, rope, cos_sin));
        }
    }
}

/* Block (row, y): with y == 0 it stores the row's key, if there is one; otherwise it rotates four
 * query heads. */
template <typename T, typename C>
__global__ void mla_store_kernel(T *q, T *q_out, const T *kv_in, struct mla_params p,
                                 struct rope_view rope, const float *kv_norm, struct kv_view kv,
                                 struct pass_view pass)
{
    __shared__ float heads[ROPE_WARPS][256];
    __shared__ float shared[32], key[ROPE_MAX_HEAD];
    pdl_wait();
    pdl_trigger();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const struct pass_row row = pass.rows[blockIdx.x];
    const int32_t pos = row.pos < rope.max_pos ? row.pos : rope.max_pos - 1;
    const float *cos_sin = rope.cos_sin + (int64_t)pos * rope.n_pairs * 2;
    float *head = heads[warp];
    if (blockIdx.y > 0) {
        const int h = (blockIdx.y - 1) * ROPE_WARPS + warp;
        if (h < p.n_heads) {
            T *mine = q + (int64_t)blockIdx.x * p.q_stride + (int64_t)h * p.q_head;
            T *to =
                q_out + (int64_t)blockIdx.x * p.out_stride + (int64_t)h * p.out_head + p.out_offset;
            const float growth =
                growth_at(p.growth, row.pos) * growth_at(p.head_growth, h, row.pos);
            for (int i = lane; i < p.rope_dim; i += 32) {
                head[i] = to_float(mine[p.q_rope_offset + i]);
            }
            __syncwarp();
            for (int i = lane; i < p.rope_dim; i += 32) {
                to[i] = from_float<T>(rotated(head, i, rope, cos_sin) * growth);
            }
            for (int i = lane; growth != 1.0f && i < p.q_rope_offset; i += 32) {
                mine[i] = from_float<T>(to_float(mine[i]) * growth);
            }
        }
        return;
    }
    if (kv_in) {
        store_key<T, C>(kv_in, p, rope, cos_sin, kv_norm, kv, pass, row, head, shared, key);
    }
}

extern "C" cudaError_t k_mla_store(cudaStream_t stream, const struct mla_store_args *a,
                                   const struct rope_view *rope, const float *kv_norm,
                                   const struct head_factors *growth, const struct kv_view *kv,
                                   const struct pass_view *pass)
{
    const bool has_codes = kv->codes.format != KV_PLAIN;
    if (a->rope_dim > 256 || (has_codes && a->kv_lora + a->rope_dim > ROPE_MAX_HEAD)) {
        return cudaErrorInvalidValue;
    }
    const struct mla_params p = {a->q.stride,   a->q_head,       a->q_rope_offset, a->q_out.stride,
                                 a->q_out_head, a->q_out_offset, a->kv.stride,     a->n_heads,
                                 a->rope_dim,   a->kv_lora,      a->eps,           a->growth,
                                 *growth};
    const dim3 grid(a->n_rows, 1 + (a->n_heads + ROPE_WARPS - 1) / ROPE_WARPS);
    const dim3 block(32 * ROPE_WARPS);
    BY_DTYPE(a->q.dtype, T,
             BY_DTYPE(kv->dtype, C,
                      return launch(mla_store_kernel<T, C>, grid, block, 0, stream, (T *)a->q.mem.p,
                                    (T *)a->q_out.mem.p, (const T *)a->kv.mem.p, p, *rope, kv_norm,
                                    *kv, *pass)));
    return cudaErrorInvalidValue;
}
