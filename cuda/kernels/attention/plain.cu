// SPDX-License-Identifier: Apache-2.0
/* Reference attention: one block per (row, head), which processes one key after another. It
 * supports every shape, but it is slow, bound by latency. A row of a tree reads its ancestors in
 * the order of positions, so it has the same bits as if they were an ordinary sequence. With a list
 * of picks it reads the keys of the list. */
#include "cuda/kernels/attention/common.cuh"
#include "cuda/kernels/attention/index_seen.cuh"
#include "cuda/kernels/device/kv_codes.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"

struct plain_params {
    int32_t q_stride, out_stride, n_heads, window, chunk;
    float scale, softcap;
    const int32_t *picks;
    int32_t top_k, pick_block;
};

enum { PLAIN_TILE = 128, PLAIN_MAX_DIM = 576 };

/* Writes to `path` the indices, in order, of the new rows that a row of a tree sees, and returns
 * their number. Called by all threads of the block. */
__device__ __forceinline__ int path_of(const struct pass_view &pass, int row, int n_rows, int *path)
{
    const uint64_t *words = pass.tree_mask + (int64_t)row * TREE_MASK_WORDS;
    const uint64_t w[2] = {words[0], words[1]};
    const int i = threadIdx.x; // there are at least as many threads as nodes
    if (i < n_rows && (w[i >> 6] >> (i & 63) & 1)) {
        const uint64_t below = w[i >> 6] & ((1ull << (i & 63)) - 1);
        path[__popcll(below) + (i >> 6 ? __popcll(w[0]) : 0)] = i;
    }
    return __popcll(w[0]) + __popcll(w[1]);
}

/* Template parameter C is the type of keys and values; it is CODES if they are quantised. */
struct CODES {
};

template <typename C> struct reader {
    const struct kv_view &kv;
    int kv_head;

    __device__ __forceinline__ const C *of(int64_t page, int token, bool is_v) const
    {
        return (const C *)kv.base + page * kv.page_stride + (int64_t)kv_head * kv.head_stride +
               (is_v && kv.v_offset ? kv.v_offset + (int64_t)token * kv.v_token_stride
                                    : (int64_t)token * kv.head_dim_k);
    }
    __device__ __forceinline__ float dot(const float *query, int64_t page, int token) const
    {
        const C *key = of(page, token, false);
        float sum = 0.0f;
        for (int i = 0; i < kv.head_dim_k; i++) {
            sum += query[i] * to_float(key[i]);
        }
        return sum;
    }
    __device__ __forceinline__ float value(int64_t page, int token, int i) const
    {
        return to_float(of(page, token, true)[i]);
    }
};

template <> struct reader<CODES> {
    const struct kv_view &kv;
    int kv_head;

    __device__ __forceinline__ float dot(const float *query, int64_t page, int token) const
    {
        const struct kv_place at = kv_place_of(kv, page, kv_head, token);
        const struct kv_scale s = kv_scale_get(kv.codes, at, false);
        float sum = 0.0f;
        for (int i = 0; i < kv.head_dim_k; i++) {
            sum += query[i] * kv_get(kv.codes, at, false, s, i);
        }
        return sum;
    }
    __device__ __forceinline__ float value(int64_t page, int token, int i) const
    {
        const bool is_v = kv.v_offset != 0;
        const struct kv_place at = kv_place_of(kv, page, kv_head, token);
        return kv_get(kv.codes, at, is_v, kv_scale_get(kv.codes, at, is_v), i);
    }
};

/* For each tile, one thread scores each key; then one thread sums each element of the value. */
template <typename T, typename C>
__global__ void attention_plain_kernel(const T *q, T *out, struct plain_params p, struct kv_view kv,
                                       struct pass_view pass, const float *sinks)
{
    static_assert(PLAIN_TILE >= MAX_TREE_NODES, "a thread for each node");
    __shared__ float query[PLAIN_MAX_DIM], score[PLAIN_TILE], shared[32];
    __shared__ int page[PLAIN_TILE], token[PLAIN_TILE], path[MAX_TREE_NODES];
    pdl_wait();
    const int r = blockIdx.x, h = blockIdx.y;
    const int seq_index = pass.row_seq[r];
    T *to = out + (int64_t)r * p.out_stride + (int64_t)h * kv.head_dim_v;
    if (seq_index < 0) {
        for (int i = threadIdx.x; i < kv.head_dim_v; i += blockDim.x) {
            to[i] = from_float<T>(0.0f);
        }
        return;
    }
    const struct pass_seq seq = pass.seqs[seq_index];
    const struct pass_row row = pass.rows[r];
    const int in_seq = r - seq.first_row;
    const int kv_head = h / (p.n_heads / kv.n_kv_heads);
    const int n_lists = p.pick_block > 0 ? kv.n_kv_heads : 1;
    const int32_t *list =
        p.picks ? p.picks + ((int64_t)r * n_lists + kv_head) * PICK_STRIDE(p.top_k) : nullptr;
    const struct seen_slots seen = seen_slots_of(pass, r);
    int n_new = seq.tree ? path_of(pass, r, seq.n_rows, path) : in_seq + 1;
    if (pass.bidirectional) {
        n_new = p.window > 0 ? min(seq.n_rows, in_seq + p.window) : seq.n_rows;
    }
    const int n_keys = list ? list[0] : seq.n_past + n_new;
    const int32_t *table = pass.blocks + (int64_t)row.lane * pass.blocks_stride;
    const struct reader<C> keys = {
        kv, kv_head
    };
    for (int i = threadIdx.x; i < kv.head_dim_k; i += blockDim.x) {
        query[i] = to_float(q[(int64_t)r * p.q_stride + (int64_t)h * kv.head_dim_k + i]);
    }
    float acc[(PLAIN_MAX_DIM + PLAIN_TILE - 1) / PLAIN_TILE] = {};
    float top = sinks ? sinks[h] : -INFINITY, sum = sinks ? 1.0f : 0.0f;
    __syncthreads();
    const int first = max(first_seen(p.window, p.chunk, row.pos), 0);
    for (int tile = first; tile < n_keys; tile += PLAIN_TILE) {
        const int j = tile + threadIdx.x;
        float s = -INFINITY;
        if (j < n_keys) {
            int slot = j;
            if (list && p.pick_block > 0) {
                slot = seen.slot_of(list[1 + j / p.pick_block] * p.pick_block + j % p.pick_block);
            } else if (list) {
                slot = list[1 + j];
            } else if (seq.tree && j >= seq.n_past) {
                slot = seq.n_past + path[j - seq.n_past];
            }
            page[threadIdx.x] = table[slot / kv.block_tokens];
            token[threadIdx.x] = slot % kv.block_tokens;
            s = keys.dot(query, page[threadIdx.x], token[threadIdx.x]) * p.scale;
            s = p.softcap > 0.0f ? p.softcap * tanhf(s / p.softcap) : s;
        }
        const float new_top = fmaxf(top, block_max(s, shared));
        const float safe = new_top == -INFINITY ? 0.0f : new_top; // all scores may be NaN
        const float decay = expf(top - safe);
        const float e = s == -INFINITY ? 0.0f : expf(s - safe);
        score[threadIdx.x] = e;
        sum = sum * decay + block_sum(e, shared);
        top = new_top;
        const int n = n_keys - tile < PLAIN_TILE ? n_keys - tile : PLAIN_TILE;
        for (int c = 0; c * PLAIN_TILE < kv.head_dim_v; c++) {
            const int i = c * PLAIN_TILE + threadIdx.x;
            if (i < kv.head_dim_v) {
                float a = acc[c] * decay;
                for (int k = 0; k < n; k++) {
                    a += score[k] * keys.value(page[k], token[k], i);
                }
                acc[c] = a;
            }
        }
        __syncthreads();
    }
    for (int c = 0; c * PLAIN_TILE < kv.head_dim_v; c++) {
        const int i = c * PLAIN_TILE + threadIdx.x;
        if (i < kv.head_dim_v) { // a NaN sum yields NaN
            to[i] = from_float<T>(sum == 0.0f ? 0.0f : acc[c] / sum);
        }
    }
}

cudaError_t attention_plain(cudaStream_t stream, const struct attention_launch *a)
{
    if (a->kv.head_dim_k > PLAIN_MAX_DIM || a->kv.head_dim_v > PLAIN_MAX_DIM) {
        return cudaErrorInvalidValue;
    }
    const struct plain_params p = {a->q_stride, a->out_stride, a->n_heads, a->window,
                                   a->chunk,    a->scale,      a->softcap, a->picks,
                                   a->top_k,    a->pick_block};
    const dim3 grid(a->n_rows, a->n_heads), block(PLAIN_TILE);
    if (a->kv.codes.format != KV_PLAIN) {
        BY_DTYPE(a->dtype, T,
                 return launch(attention_plain_kernel<T, CODES>, grid, block, 0, stream,
                               (const T *)a->q, (T *)a->out, p, a->kv, a->pass, a->sinks));
    }
    BY_DTYPE(a->dtype, T,
             BY_DTYPE(a->kv.dtype, C,
                      return launch(attention_plain_kernel<T, C>, grid, block, 0, stream,
                                    (const T *)a->q, (T *)a->out, p, a->kv, a->pass, a->sinks)));
    return cudaErrorInvalidValue;
}
