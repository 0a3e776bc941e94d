// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: the score of each key that a row may attend to, the sum over the index heads of
 * weight * max(query . key, 0). Only rows that see more than top_k keys have scores.
 *
 * Tensor cores (16-bit types): a block of 8 warps takes tiles of 256 keys of a sequence, and for
 * each tile all of its rows of that sequence in turn. A warp keeps its 32 keys in registers as the
 * second operand; the queries of a row, up to 64 heads at a time, are the first one and pass
 * through two stages of shared memory (the second one is where the keys came in). Each thread adds
 * up its heads in ascending order, then eight threads join their sums; a key's score is the same
 * wherever it lies. Bound by reading the keys for decoding rows, and by the tensor cores for
 * prompts.
 *
 * Plain (fp32, and heads that are no whole vectors): a thread scores one key, head after head.
 *
 * Grid: (blocks that share the tiles, rows or runs of rows). It depends only on the number of rows,
 * so it can be replayed; blocks without tiles end at once. */
#include "cuda/kernels/attention/index_tile.cuh"

enum { HEAD_GROUP = 64, PLAIN_KEYS = 64 };

struct score_params {
    const void *q, *weights;
    int32_t q_stride, weights_stride, n_heads, head_dim, top_k;
    int32_t first_row, end_row, per_block; // per_block: rows of a block
    float *scores;
    int64_t scores_stride;
    struct kv_view kv;
    struct pass_view pass;
};

/* ---- tensor cores -------------------------------------------------------------------------- */

/* KS: steps of 16 elements per head. */
template <typename T, int KS, bool CODES> struct score_block {
    static constexpr int PITCH = key_tile<T, KS, CODES>::PITCH;
    static constexpr int CHUNKS = key_tile<T, KS, CODES>::CHUNKS;
    static constexpr int QUERIES = HEAD_GROUP * PITCH;
    static constexpr int BYTES =
        (INDEX_TILE * PITCH + QUERIES) * (int)sizeof(T) + 2 * HEAD_GROUP * (int)sizeof(float);

    const struct score_params &p;
    T *keys;
    float *weights; // [2][HEAD_GROUP]
    int tid, warp, lane, n_groups;
    key_tile<T, KS, CODES> held;

    __device__ score_block(const struct score_params &params, char *memory)
        : p(params), keys((T *)memory)
    {
        weights = (float *)(queries(0) + QUERIES);
        tid = threadIdx.x;
        warp = tid >> 5;
        lane = tid & 31;
        n_groups = (p.n_heads + HEAD_GROUP - 1) / HEAD_GROUP;
    }

    __device__ __forceinline__ T *queries(int stage) const
    {
        return keys + (stage == 0 ? INDEX_TILE * PITCH : 0);
    }

    /* Starts to load a group of the row's queries, and zeros up to a whole number of tiles. */
    __device__ __forceinline__ void load_queries(int row, int group, int stage)
    {
        const int first = group * HEAD_GROUP, n = heads_of(group);
        const T *from = (const T *)p.q + (int64_t)row * p.q_stride + (int64_t)first * p.head_dim;
        for (int i = tid; i < (n + 15) / 16 * 16 * CHUNKS; i += SCORE_WARPS * 32) {
            const int h = i / CHUNKS, column = i % CHUNKS * 8;
            const bool real = h < n && column < p.head_dim;
            cp_async_16(queries(stage) + h * PITCH + column,
                        real ? from + h * p.head_dim + column : (const T *)p.q, real);
        }
    }

    __device__ __forceinline__ int heads_of(int group) const
    {
        return min(HEAD_GROUP, p.n_heads - group * HEAD_GROUP);
    }

    /* The weight of this thread's head in the group. */
    __device__ __forceinline__ float weight_of(int row, int group) const
    {
        return tid < heads_of(group)
                   ? to_float(((const T *)p.weights)[(int64_t)row * p.weights_stride +
                                                     group * HEAD_GROUP + tid])
                   : 0.0f;
    }

    /* Adds the group's heads to this thread's sums, for two keys of every eight. */
    __device__ __forceinline__ void add_heads(int group, int stage,
                                              float (&sums)[WARP_KEYS / 8][2]) const
    {
        const T *q = queries(stage) + (lane & 15) * PITCH + (lane >> 4) * 8;
        const float *w = weights + stage * HEAD_GROUP + (lane >> 2);
        const int n = heads_of(group);
#pragma unroll 1
        for (int h = 0; h < n; h += 16) {
            float dots[WARP_KEYS / 8][4] = {};
#pragma unroll
            for (int s = 0; s < KS; s++) {
                uint32_t a[4];
                ldmatrix_x4(a, q + h * PITCH + s * 16);
#pragma unroll
                for (int i = 0; i < WARP_KEYS / 8; i++) {
                    mma_16x8x16(dots[i], a, held.b[s][i][0], held.b[s][i][1], T());
                }
            }
            const float low = w[h], high = w[h + 8];
#pragma unroll
            for (int i = 0; i < WARP_KEYS / 8; i++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    sums[i][c] = __fmaf_rn(low, max_or_nan(dots[i][c], 0.0f), sums[i][c]);
                    sums[i][c] = __fmaf_rn(high, max_or_nan(dots[i][c + 2], 0.0f), sums[i][c]);
                }
            }
        }
    }

    /* Joins the sums of the eight threads that share keys, and stores the warp's scores. */
    __device__ __forceinline__ void store(int row, int start, float (&sums)[WARP_KEYS / 8][2]) const
    {
        float *to = p.scores + (row - p.first_row) * p.scores_stride + start + warp * WARP_KEYS +
                    (lane & 3) * 2;
#pragma unroll
        for (int i = 0; i < WARP_KEYS / 8; i++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                sums[i][c] += __shfl_xor_sync(0xffffffffu, sums[i][c], 4);
                sums[i][c] += __shfl_xor_sync(0xffffffffu, sums[i][c], 8);
                sums[i][c] += __shfl_xor_sync(0xffffffffu, sums[i][c], 16);
            }
            if (lane >> 2 == i) {
                *reinterpret_cast<float2 *>(to + i * 8) = make_float2(sums[i][0], sums[i][1]);
            }
        }
    }

    /* The first row from `row` on that needs scores of slots from `start` on; `end`: there is
     * none. */
    __device__ __forceinline__ int next_row(int row, int end, int start) const
    {
        for (; row < end; row++) {
            const struct seen_slots seen = seen_slots_of(p.pass, row);
            if (seen.n_seen > p.top_k && seen.n_slots > start) {
                break;
            }
        }
        return row;
    }

    /* One tile of keys, for the rows [row, end) that need it; `row` is one of them. */
    __device__ __forceinline__ void tile(int row, int end, int start, int end_key)
    {
        __syncthreads(); // the previous tile's queries have been read
        held.load(keys, p.kv, table_of(p.pass, row), start, end_key);
        load_queries(row, 0, 0);
        cp_async_commit();
        const float first_weight = tid < HEAD_GROUP ? weight_of(row, 0) : 0.0f;
        if (tid < HEAD_GROUP) {
            weights[tid] = first_weight;
        }
        cp_async_wait<0>();
        __syncthreads();
        held.to_registers(keys);
        __syncthreads(); // the keys' memory is free for queries
        int group = 0, stage = 0;
        float sums[WARP_KEYS / 8][2] = {};
        while (row < end) {
            const bool is_last = group + 1 == n_groups;
            const int next = is_last ? next_row(row + 1, end, start) : row;
            const int next_group = is_last ? 0 : group + 1;
            float next_weight = 0.0f;
            if (next < end) {
                load_queries(next, next_group, stage ^ 1);
                next_weight = tid < HEAD_GROUP ? weight_of(next, next_group) : 0.0f;
            }
            cp_async_commit();
            add_heads(group, stage, sums);
            if (is_last) {
                store(row, start, sums);
#pragma unroll
                for (int i = 0; i < WARP_KEYS / 8; i++) {
                    sums[i][0] = sums[i][1] = 0.0f;
                }
            }
            if (tid < HEAD_GROUP) {
                weights[(stage ^ 1) * HEAD_GROUP + tid] = next_weight;
            }
            cp_async_wait<0>();
            __syncthreads();
            row = next;
            group = next_group;
            stage ^= 1;
        }
    }

    /* Rows [first, end) of one sequence. */
    __device__ __forceinline__ void rows(int first, int end)
    {
        // In a prompt the last row sees the most; rows of a tree have the same number of slots.
        const int n_slots = seen_slots_of(p.pass, end - 1).n_slots;
        for (int start = blockIdx.x * INDEX_TILE; start < n_slots;
             start += gridDim.x * INDEX_TILE) {
            const int row = next_row(first, end, start);
            if (row < end) {
                tile(row, end, start, n_slots);
            }
        }
    }
};

template <typename T, int KS, bool CODES>
__global__ void __launch_bounds__(SCORE_WARPS * 32, 2)
    index_scores_kernel(const __grid_constant__ struct score_params p)
{
    extern __shared__ __align__(128) char score_smem[];
    pdl_wait();
    pdl_trigger();
    score_block<T, KS, CODES> block(p, score_smem);
    const int first = p.first_row + (int)blockIdx.y * p.per_block;
    const int end = min(first + p.per_block, p.end_row);
    for (int row = first; row < end;) {
        const int seq = p.pass.row_seq[row];
        int last = row + 1;
        while (last < end && p.pass.row_seq[last] == seq) {
            last++;
        }
        if (seq >= 0) {
            block.rows(row, last);
        }
        row = last;
    }
}

template <typename T, int KS, bool CODES>
static cudaError_t launch_fast(cudaStream_t stream, dim3 grid, const struct score_params &p)
{
    const auto kernel = index_scores_kernel<T, KS, CODES>;
    constexpr int bytes = score_block<T, KS, CODES>::BYTES;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e != cudaSuccess ? e : launch(kernel, grid, dim3(SCORE_WARPS * 32), bytes, stream, p);
}

template <typename T, bool CODES>
static cudaError_t launch_by_dim(cudaStream_t stream, dim3 grid, const struct score_params &p)
{
    if (p.head_dim <= 32) {
        return launch_fast<T, 2, CODES>(stream, grid, p);
    }
    return p.head_dim <= 64 ? launch_fast<T, 4, CODES>(stream, grid, p)
                            : launch_fast<T, 8, CODES>(stream, grid, p);
}

template <typename T>
static cudaError_t launch_by_pages(cudaStream_t stream, dim3 grid, const struct score_params &p)
{
    return p.kv.codes.format == KV_PLAIN ? launch_by_dim<T, false>(stream, grid, p)
                                         : launch_by_dim<T, true>(stream, grid, p);
}

/* ---- plain --------------------------------------------------------------------------------- */

/* A block scores tiles of PLAIN_KEYS keys for one row. Rows of keys have an odd pitch. */
template <typename T>
__global__ void __launch_bounds__(PLAIN_KEYS)
    index_scores_plain_kernel(const __grid_constant__ struct score_params p)
{
    extern __shared__ float plain_keys[];
    pdl_wait();
    pdl_trigger();
    const struct kv_view &kv = p.kv;
    const int row = p.first_row + (int)blockIdx.y, d = p.head_dim, pitch = d | 1;
    const struct seen_slots seen = seen_slots_of(p.pass, row);
    if (seen.n_seen <= p.top_k) {
        return;
    }
    const int32_t *table = table_of(p.pass, row);
    const T *q = (const T *)p.q + (int64_t)row * p.q_stride;
    const T *w = (const T *)p.weights + (int64_t)row * p.weights_stride;
    for (int start = blockIdx.x * PLAIN_KEYS; start < seen.n_slots;
         start += gridDim.x * PLAIN_KEYS) {
        for (int i = threadIdx.x; i < PLAIN_KEYS * d; i += PLAIN_KEYS) {
            const int slot = min(start + i / d, seen.n_slots - 1), e = i % d;
            const int64_t page = table[slot / kv.block_tokens];
            const int token = slot % kv.block_tokens;
            float x;
            if (kv.codes.format == KV_PLAIN) {
                x = to_float(((const T *)kv.base)[page * kv.page_stride + (int64_t)token * d + e]);
            } else {
                const struct kv_place at = kv_place_of(kv, page, 0, token);
                x = kv_get(kv.codes, at, false, kv_scale_get(kv.codes, at, false), e);
            }
            plain_keys[i / d * pitch + e] = x;
        }
        __syncthreads();
        const float *key = plain_keys + threadIdx.x * pitch;
        float score = 0.0f;
        for (int h = 0; h < p.n_heads; h++) {
            float dot = 0.0f;
            for (int e = 0; e < d; e++) {
                dot += to_float(q[h * d + e]) * key[e];
            }
            score += to_float(w[h]) * max_or_nan(dot, 0.0f);
        }
        p.scores[(row - p.first_row) * p.scores_stride + start + threadIdx.x] = score;
        __syncthreads();
    }
}

template <typename T>
static cudaError_t launch_plain(cudaStream_t stream, dim3 grid, const struct score_params &p)
{
    const auto kernel = index_scores_plain_kernel<T>;
    const int bytes = PLAIN_KEYS * (p.head_dim | 1) * (int)sizeof(float);
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e != cudaSuccess ? e : launch(kernel, grid, dim3(PLAIN_KEYS), bytes, stream, p);
}

/* ---- the choice ---------------------------------------------------------------------------- */

/* The rows of a block: more of them share the keys that it loads, but a small pass must be spread
 * over the device. */
static int rows_of_block(int n_rows)
{
    enum { RUNS = 64, MOST = 16 };
    const int n = (n_rows + RUNS - 1) / RUNS;
    return n < MOST ? n : MOST;
}

extern "C" cudaError_t k_index_scores(cudaStream_t stream, const struct index_launch *a)
{
    enum { BLOCKS_PER_SM = 4 };
    const bool fast = tile_is_fast(a);
    const int n_rows = a->end_row - a->first_row, per_block = fast ? rows_of_block(n_rows) : 1;
    const struct score_params p = {a->q,       a->weights,  a->q_stride, a->weights_stride,
                                   a->n_heads, a->head_dim, a->top_k,    a->first_row,
                                   a->end_row, per_block,   a->scores,   a->scores_stride,
                                   a->kv,      a->pass};
    const int runs = (n_rows + per_block - 1) / per_block;
    const int64_t most = a->scores_stride / (fast ? (int)INDEX_TILE : (int)PLAIN_KEYS);
    int64_t tiles = (a->n_sms * BLOCKS_PER_SM + runs - 1) / runs;
    tiles = tiles < most ? tiles : most;
    const dim3 grid((unsigned)tiles, (unsigned)runs);
    if (fast) {
        return a->dtype == DT_BF16 ? launch_by_pages<bf16_t>(stream, grid, p)
                                   : launch_by_pages<f16_t>(stream, grid, p);
    }
    BY_DTYPE(a->dtype, T, return launch_plain<T>(stream, grid, p));
    return cudaErrorInvalidValue;
}
