// SPDX-License-Identifier: Apache-2.0
/* Sparse attention by blocks: the list of blocks that each row attends to, one for each index head.
 * These are all blocks that it sees if there are no more than top_k of them, and otherwise the last
 * n_local ones and those with the highest scores, of equal scores the lowest. A block's score is
 * the highest of its keys (block_scores.cu). Exact: the score of the last block that fits is found
 * bit by bit, from the highest, until no more and no fewer than top_k blocks reach it; a last turn
 * writes the blocks in ascending order.
 *
 * A block of threads has one row and head. It keeps the blocks' scores in shared memory or, if
 * there are too many, where the scores of grains were. Bound by latency for few rows, and by
 * reading scores from the L2 cache. */
#include "cuda/kernels/attention/index_seen.cuh"
#include "cuda/kernels/device/launch.cuh"

enum { SELECT_WARPS = 4, SELECT_THREADS = SELECT_WARPS * 32, HELD_BLOCKS = 4096 };

struct select_params {
    float *scores;
    int64_t scores_stride;
    int32_t *lists;
    int32_t first_row, n_heads, top_k, block, n_local, grain;
    struct pass_view pass;
};

struct select_memory {
    uint32_t held[HELD_BLOCKS];
    uint32_t sums[2][SELECT_WARPS]; // of warps, for alternate turns
};

/* The highest score of block b. */
__device__ __forceinline__ float score_of(const struct select_params &p, const float *scores,
                                          const struct seen_slots &seen, int b)
{
    const int begin = b * p.block, end = min(begin + p.block, seen.n_seen);
    const int plain = min(end, seen.n_plain());
    float high = -INFINITY;
    for (int i = begin / p.grain; i * p.grain < plain; i++) {
        high = max_or_nan(high, scores[i]);
    }
    const float *nodes = scores + p.scores_stride - MAX_TREE_NODES;
    for (int pos = max(begin, seen.n_plain()); pos < end; pos++) {
        high = max_or_nan(high, nodes[seen.slot_of(pos) - seen.n_past]);
    }
    return high;
}

/* Stores the orders of n blocks. They may replace scores that have been read: a block has at least
 * one grain. */
__device__ __forceinline__ void make_orders(const struct select_params &p, const float *scores,
                                            const struct seen_slots &seen, int n, uint32_t *orders)
{
    for (int base = 0; base < n; base += SELECT_THREADS) {
        const int b = base + (int)threadIdx.x;
        uint32_t order = UINT32_MAX; // of the last blocks
        if (b < n - p.n_local) {
            order = order_of(score_of(p, scores, seen, b));
        }
        __syncthreads();
        if (b < n) {
            orders[b] = order;
        }
    }
    __syncthreads();
}

/* The number of orders that are at least `least`. */
__device__ __forceinline__ uint32_t count_from(const uint32_t *orders, int n, uint32_t least,
                                               uint32_t (&sums)[SELECT_WARPS])
{
    uint32_t own = 0;
    for (int b = (int)threadIdx.x; b < n; b += SELECT_THREADS) {
        own += orders[b] >= least ? 1u : 0u;
    }
    own = __reduce_add_sync(0xffffffffu, own);
    if ((threadIdx.x & 31) == 0) {
        sums[threadIdx.x >> 5] = own;
    }
    __syncthreads();
    uint32_t all = 0;
#pragma unroll
    for (int w = 0; w < SELECT_WARPS; w++) {
        all += sums[w];
    }
    return all;
}

/* The highest number that at least top_k orders reach, or one below it that is reached by the same
 * orders. */
__device__ __forceinline__ uint32_t threshold_of(struct select_memory &m, const uint32_t *orders,
                                                 int n, uint32_t top_k)
{
    uint32_t found = 0;
    for (int bit = 31; bit >= 0; bit--) {
        const uint32_t next = found | 1u << bit,
                       count = count_from(orders, n, next, m.sums[bit & 1]);
        found = count >= top_k ? next : found;
        if (count == top_k) {
            break;
        }
    }
    return found;
}

/* Writes the blocks above the threshold, and the first n_equal that are equal to it. */
__device__ __forceinline__ void write_picks(struct select_memory &m, const uint32_t *orders,
                                            const struct select_params &p, int n, int n_seen,
                                            uint32_t threshold, uint32_t n_equal, int32_t *list)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t below = (1u << lane) - 1;
    uint32_t above = 0, equal = 0; // the numbers of both before this turn's blocks
    int turn = 0;
    for (int base = 0; base < n; base += SELECT_THREADS, turn ^= 1) {
        const int b = base + (int)threadIdx.x;
        const uint32_t order = b < n ? orders[b] : 0u;
        const bool is_above = b < n && order > threshold, is_equal = b < n && order == threshold;
        const uint32_t all_above = __ballot_sync(0xffffffffu, is_above);
        const uint32_t all_equal = __ballot_sync(0xffffffffu, is_equal);
        if (lane == 0) {
            m.sums[turn][warp] = __popc(all_above) | __popc(all_equal) << 16;
        }
        __syncthreads();
        uint32_t before = 0, all = 0;
#pragma unroll
        for (int w = 0; w < SELECT_WARPS; w++) {
            before += w < warp ? m.sums[turn][w] : 0u;
            all += m.sums[turn][w];
        }
        const uint32_t n_above = above + (before & 0xffffu) + __popc(all_above & below);
        const uint32_t at_equal = equal + (before >> 16) + __popc(all_equal & below);
        const bool picked = is_above || (is_equal && at_equal < n_equal);
        if (picked) {
            list[1 + n_above + min(at_equal, n_equal)] = b;
        }
        if (b == n - 1) {
            list[0] = p.top_k * p.block - (picked ? n * p.block - n_seen : 0);
        }
        above += all & 0xffffu;
        equal += all >> 16;
    }
}

__global__ void __launch_bounds__(SELECT_THREADS)
    block_select_kernel(const __grid_constant__ struct select_params p)
{
    __shared__ struct select_memory m;
    pdl_wait();
    pdl_trigger();
    const int row = p.first_row + (int)blockIdx.x, head = (int)blockIdx.y;
    int32_t *list = p.lists + ((int64_t)row * p.n_heads + head) * PICK_STRIDE(p.top_k);
    float *scores = p.scores + ((int64_t)blockIdx.x * p.n_heads + head) * p.scores_stride;
    const struct seen_slots seen = seen_slots_of(p.pass, row);
    const int n = (seen.n_seen + p.block - 1) / p.block;
    if (n <= p.top_k) {
        for (int b = (int)threadIdx.x; b < n; b += SELECT_THREADS) {
            list[1 + b] = b;
        }
        if (threadIdx.x == 0) {
            list[0] = seen.n_seen;
        }
        return;
    }
    uint32_t *orders = n <= HELD_BLOCKS ? m.held : reinterpret_cast<uint32_t *>(scores);
    make_orders(p, scores, seen, n, orders);
    const uint32_t threshold = threshold_of(m, orders, n, (uint32_t)p.top_k);
    __syncthreads(); // the sums have been read
    const uint32_t n_above =
        threshold == UINT32_MAX ? 0u : count_from(orders, n, threshold + 1, m.sums[0]);
    __syncthreads();
    write_picks(m, orders, p, n, seen.n_seen, threshold, (uint32_t)p.top_k - n_above, list);
}

extern "C" cudaError_t k_block_select(cudaStream_t stream, const struct index_launch *a)
{
    const struct select_params p = {a->scores,  a->scores_stride, a->lists, a->first_row,
                                    a->n_heads, a->top_k,         a->block, a->n_local,
                                    a->grain,   a->pass};
    const dim3 grid((unsigned)(a->end_row - a->first_row), (unsigned)a->n_heads);
    return launch(block_select_kernel, grid, dim3(SELECT_THREADS), 0, stream, p);
}
