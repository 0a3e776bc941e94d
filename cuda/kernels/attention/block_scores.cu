// SPDX-License-Identifier: Apache-2.0
/* Sparse attention by blocks: for each row and index head, the highest score, query . key, of every
 * `grain` slots that the row may attend to; block_select.cu makes blocks of them. A tree's nodes
 * lie at slots that differ from their positions, so their scores are stored one by one. Only rows
 * that see more keys than they may pick have scores.
 *
 * Tensor cores (16-bit types, blocks of whole grains): a block of 8 warps takes tiles of 256 keys
 * of a sequence, and for each tile the queries of all of its rows of that sequence, row after row
 * and head after head, 64 at a time. A warp keeps its 32 keys, which are a grain, in registers as
 * the second operand; the queries are the first one and pass through two stages of shared memory
 * (the second one is where the keys came in). Four threads have the scores of a query, of which
 * they take the highest. Bound by reading the keys for decoding rows, and by the tensor cores for
 * prompts.
 *
 * Plain (all else; a grain is one slot): a thread scores one key, head after head.
 *
 * Grid: (blocks that share the tiles, rows or runs of rows). It depends only on the number of rows,
 * so it can be replayed; blocks without tiles end at once. */
#include "cuda/kernels/attention/index_tile.cuh"

enum { QUERY_GROUP = 64, PLAIN_KEYS = 64 };
static_assert((int)WARP_KEYS == (int)INDEX_GRAIN, "a warp's keys are a grain");

struct block_params {
    const void *q;
    int32_t q_stride, n_heads, head_dim;
    int64_t most_keys;                     // rows that see no more have no scores
    int32_t first_row, end_row, per_block; // per_block: rows of a block
    float *scores;
    int64_t scores_stride;
    struct kv_view kv;
    struct pass_view pass;
};

/* The scores of a row and head. */
__device__ __forceinline__ float *scores_of(const struct block_params &p, int row, int head)
{
    return p.scores + ((int64_t)(row - p.first_row) * p.n_heads + head) * p.scores_stride;
}

/* ---- tensor cores -------------------------------------------------------------------------- */

/* KS: steps of 16 elements per head. */
template <typename T, int KS, bool CODES> struct block_scorer {
    static constexpr int PITCH = key_tile<T, KS, CODES>::PITCH;
    static constexpr int CHUNKS = key_tile<T, KS, CODES>::CHUNKS;
    static constexpr int QUERIES = QUERY_GROUP * PITCH;
    static constexpr int BYTES = (INDEX_TILE * PITCH + QUERIES) * (int)sizeof(T);

    const struct block_params &p;
    T *keys;
    int tid, warp, lane;
    key_tile<T, KS, CODES> held;

    /* The rows [row, end) of one sequence, of which each sees the slots below n_past, and in a
     * prompt one more than the row before it. Query number i is head i % n_heads of row
     * row + i / n_heads. */
    int row, end, n_queries, n_past, n_slots, seq_row;
    bool tree;

    __device__ block_scorer(const struct block_params &params, char *memory)
        : p(params), keys((T *)memory)
    {
        tid = threadIdx.x;
        warp = tid >> 5;
        lane = tid & 31;
    }

    __device__ __forceinline__ T *queries(int stage) const
    {
        return keys + (stage == 0 ? INDEX_TILE * PITCH : 0);
    }

    /* Starts to load the queries from number `first` on, and zeros up to a whole tile. */
    __device__ __forceinline__ void load_queries(int first, int stage)
    {
        const int n = min(QUERY_GROUP, n_queries - first);
        for (int i = tid; i < (n + 15) / 16 * 16 * CHUNKS; i += SCORE_WARPS * 32) {
            const int query = first + i / CHUNKS, column = i % CHUNKS * 8;
            const bool real = query < n_queries && column < p.head_dim;
            const T *from = (const T *)p.q;
            if (real) {
                from += (int64_t)(row + query / p.n_heads) * p.q_stride +
                        query % p.n_heads * p.head_dim + column;
            }
            cp_async_16(queries(stage) + i / CHUNKS * PITCH + column, from, real);
        }
    }

    /* Stores what four threads have of a query: its highest score among the warp's keys, and the
     * scores of a tree's nodes. */
    __device__ __forceinline__ void store(int query, int start,
                                          const float (&dots)[WARP_KEYS / 8][2]) const
    {
        const bool real = query < n_queries;
        const int its_row = row + query / p.n_heads;
        const int seen = tree ? n_past : n_past + its_row - seq_row + 1;
        const int slot = start + warp * WARP_KEYS;
        float *to = scores_of(p, real ? its_row : row, query % p.n_heads);
        float high = -INFINITY;
#pragma unroll
        for (int i = 0; i < WARP_KEYS / 8; i++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int own = slot + i * 8 + (lane & 3) * 2 + c;
                if (own < seen) {
                    high = max_or_nan(high, dots[i][c]);
                } else if (real && tree && own < n_slots) {
                    to[p.scores_stride - MAX_TREE_NODES + own - n_past] = dots[i][c];
                }
            }
        }
        high = max_or_nan(high, __shfl_xor_sync(0xffffffffu, high, 1));
        high = max_or_nan(high, __shfl_xor_sync(0xffffffffu, high, 2));
        if (real && (lane & 3) == 0 && slot < seen) {
            to[slot / INDEX_GRAIN] = high;
        }
    }

    /* Scores the queries of a stage. */
    __device__ __forceinline__ void score(int first, int stage, int start) const
    {
        const T *q = queries(stage) + (lane & 15) * PITCH + (lane >> 4) * 8;
        const int n = min(QUERY_GROUP, n_queries - first);
#pragma unroll 1
        for (int i = 0; i < n; i += 16) {
            float dots[WARP_KEYS / 8][4] = {};
#pragma unroll
            for (int s = 0; s < KS; s++) {
                uint32_t a[4];
                ldmatrix_x4(a, q + i * PITCH + s * 16);
#pragma unroll
                for (int k = 0; k < WARP_KEYS / 8; k++) {
                    mma_16x8x16(dots[k], a, held.b[s][k][0], held.b[s][k][1], T());
                }
            }
            float low[WARP_KEYS / 8][2], high[WARP_KEYS / 8][2];
#pragma unroll
            for (int k = 0; k < WARP_KEYS / 8; k++) {
                low[k][0] = dots[k][0];
                low[k][1] = dots[k][1];
                high[k][0] = dots[k][2];
                high[k][1] = dots[k][3];
            }
            store(first + i + (lane >> 2), start, low);
            store(first + i + (lane >> 2) + 8, start, high);
        }
    }

    /* One tile of keys, for all queries. */
    __device__ __forceinline__ void tile(int start)
    {
        __syncthreads(); // the previous tile's queries have been read
        held.load(keys, p.kv, table_of(p.pass, row), start, n_slots);
        load_queries(0, 0);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        held.to_registers(keys);
        __syncthreads(); // the keys' memory is free for queries
        for (int first = 0, stage = 0; first < n_queries; first += QUERY_GROUP, stage ^= 1) {
            if (first + QUERY_GROUP < n_queries) {
                load_queries(first + QUERY_GROUP, stage ^ 1);
            }
            cp_async_commit();
            score(first, stage, start);
            cp_async_wait<0>();
            __syncthreads();
        }
    }

    /* Rows [first, last) of one sequence. */
    __device__ __forceinline__ void rows(int first, int last, const struct pass_seq &seq)
    {
        while (first < last && seen_slots_of(p.pass, first).n_seen <= p.most_keys) {
            first++;
        }
        n_past = seq.n_past;
        seq_row = seq.first_row;
        tree = seq.tree;
        end = last;
        n_slots = tree ? n_past + seq.n_rows : n_past + last - seq_row;
        for (int start = blockIdx.x * INDEX_TILE; first < last && start < n_slots;
             start += gridDim.x * INDEX_TILE) {
            // in a prompt, rows that see none of these keys are left out
            row = tree ? first : max(first, start - n_past + seq_row);
            n_queries = (end - row) * p.n_heads;
            tile(start);
        }
    }
};

template <typename T, int KS, bool CODES>
__global__ void __launch_bounds__(SCORE_WARPS * 32, 2)
    block_scores_kernel(const __grid_constant__ struct block_params p)
{
    extern __shared__ __align__(128) char block_smem[];
    pdl_wait();
    pdl_trigger();
    block_scorer<T, KS, CODES> block(p, block_smem);
    const int first = p.first_row + (int)blockIdx.y * p.per_block;
    const int end = min(first + p.per_block, p.end_row);
    for (int row = first; row < end;) {
        const int seq = p.pass.row_seq[row];
        int last = row + 1;
        while (last < end && p.pass.row_seq[last] == seq) {
            last++;
        }
        if (seq >= 0) {
            block.rows(row, last, p.pass.seqs[seq]);
        }
        row = last;
    }
}

template <typename T, int KS, bool CODES>
static cudaError_t launch_fast(cudaStream_t stream, dim3 grid, const struct block_params &p)
{
    const auto kernel = block_scores_kernel<T, KS, CODES>;
    constexpr int bytes = block_scorer<T, KS, CODES>::BYTES;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e != cudaSuccess ? e : launch(kernel, grid, dim3(SCORE_WARPS * 32), bytes, stream, p);
}

template <typename T, bool CODES>
static cudaError_t launch_by_dim(cudaStream_t stream, dim3 grid, const struct block_params &p)
{
    if (p.head_dim <= 32) {
        return launch_fast<T, 2, CODES>(stream, grid, p);
    }
    return p.head_dim <= 64 ? launch_fast<T, 4, CODES>(stream, grid, p)
                            : launch_fast<T, 8, CODES>(stream, grid, p);
}

template <typename T>
static cudaError_t launch_by_pages(cudaStream_t stream, dim3 grid, const struct block_params &p)
{
    return p.kv.codes.format == KV_PLAIN ? launch_by_dim<T, false>(stream, grid, p)
                                         : launch_by_dim<T, true>(stream, grid, p);
}

/* ---- plain --------------------------------------------------------------------------------- */

/* A block scores tiles of PLAIN_KEYS keys for one row; each thread reads its key. */
template <typename T>
__global__ void __launch_bounds__(PLAIN_KEYS)
    block_scores_plain_kernel(const __grid_constant__ struct block_params p)
{
    pdl_wait();
    pdl_trigger();
    const struct kv_view &kv = p.kv;
    const int row = p.first_row + (int)blockIdx.y;
    const struct seen_slots seen = seen_slots_of(p.pass, row);
    if (seen.n_seen <= p.most_keys) {
        return;
    }
    const int32_t *table = table_of(p.pass, row);
    const T *q = (const T *)p.q + (int64_t)row * p.q_stride;
    const int stride = gridDim.x * PLAIN_KEYS;
    for (int slot = blockIdx.x * PLAIN_KEYS + threadIdx.x; slot < seen.n_slots; slot += stride) {
        const int64_t page = table[slot / kv.block_tokens];
        const int token = slot % kv.block_tokens;
        const bool codes = kv.codes.format != KV_PLAIN;
        const T *key = (const T *)kv.base + page * kv.page_stride + (int64_t)token * p.head_dim;
        const struct kv_place at = kv_place_of(kv, codes ? page : 0, 0, codes ? token : 0);
        const struct kv_scale scale =
            codes ? kv_scale_get(kv.codes, at, false) : kv_scale{0.0f, 0.0f};
        const int64_t to = slot < seen.n_plain()
                               ? (int64_t)slot
                               : p.scores_stride - MAX_TREE_NODES + slot - seen.n_past;
        for (int h = 0; h < p.n_heads; h++) {
            float dot = 0.0f;
            for (int e = 0; e < p.head_dim; e++) {
                const float x = codes ? kv_get(kv.codes, at, false, scale, e) : to_float(key[e]);
                dot += to_float(q[h * p.head_dim + e]) * x;
            }
            scores_of(p, row, h)[to] = dot;
        }
    }
}

/* ---- the choice ---------------------------------------------------------------------------- */

extern "C" int32_t k_block_grain(const struct index_launch *a)
{
    return tile_is_fast(a) && a->block % INDEX_GRAIN == 0 ? INDEX_GRAIN : 1;
}

/* The rows of a block: more of them share the keys that it loads, but a small pass must be spread
 * over the device. */
static int rows_of_block(int n_rows)
{
    enum { RUNS = 64, MOST = 64 };
    const int n = (n_rows + RUNS - 1) / RUNS;
    return n < MOST ? n : MOST;
}

extern "C" cudaError_t k_block_scores(cudaStream_t stream, const struct index_launch *a)
{
    enum { BLOCKS_PER_SM = 4 };
    const bool fast = a->grain > 1;
    const int n_rows = a->end_row - a->first_row, per_block = fast ? rows_of_block(n_rows) : 1;
    const struct block_params p = {
        a->q,         a->q_stride, a->n_heads, a->head_dim, index_most_keys(a->top_k, a->block),
        a->first_row, a->end_row,  per_block,  a->scores,   a->scores_stride,
        a->kv,        a->pass};
    const int runs = (n_rows + per_block - 1) / per_block;
    const int64_t slots = (a->scores_stride - MAX_TREE_NODES) * a->grain;
    const int64_t tile = fast ? (int)INDEX_TILE : (int)PLAIN_KEYS, most = (slots + tile - 1) / tile;
    int64_t tiles = (a->n_sms * BLOCKS_PER_SM + runs - 1) / runs;
    tiles = tiles < most ? tiles : most;
    const dim3 grid((unsigned)tiles, (unsigned)runs);
    if (fast) {
        return a->dtype == DT_BF16 ? launch_by_pages<bf16_t>(stream, grid, p)
                                   : launch_by_pages<f16_t>(stream, grid, p);
    }
    BY_DTYPE(a->dtype, T,
             return launch(block_scores_plain_kernel<T>, grid, dim3(PLAIN_KEYS), 0, stream, p));
    return cudaErrorInvalidValue;
}
