// SPDX-License-Identifier: Apache-2.0
/* Rows of prompts, one block of the state at a time: shared by blocks.cu, which prepares every
 * block independently, and scan.cu, which processes them in order. An item is a block in which a
 * sequence has rows. Its rows have offsets [0, BLOCK); those before `at` are from earlier passes,
 * and those from `end` on do not exist (they are zeros). Items are numbered consecutively over all
 * sequences that have more than STATE_WINDOW rows.
 * Thread: device code. */
#ifndef SLUICE_CUDA_STATE_BLOCKS_CUH
#define SLUICE_CUDA_STATE_BLOCKS_CUH

#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/state/state.cuh"

enum {
    BLOCK = 64,
    TAPS = 4
}; // the block size and the convolution width that these kernels
   // support

/* E adjacent elements. */
template <typename T, int E> struct alignas(E * sizeof(T)) pack {
    T v[E];
};

struct blocks_params {
    struct state_view state;
    struct pass_view pass;
    struct state_vectors vectors;
    struct decay_law law;
    const void *x, *decay, *beta;
    void *out;
    int64_t x_stride, decay_stride, beta_stride, out_stride;
    int32_t q_at, k_at, v_at;
    int32_t first_item, n_items; // items of this launch
    bool silu;

    /* Indexed by item of the launch. */
    void *q, *k; // [key head][BLOCK][key_dim], after convolution and norm
    void *v;     // [head][BLOCK][value_dim]
    /* Of the next two, only the squares of 16 rows up to the diagonal are there. */
    void *scores;        // [head][BLOCK][BLOCK]: q with k, decayed; 0 where masked
    void *inverse;       // [head][BLOCK][BLOCK], STATE_DELTA only: (1 + L)^-1 of blocks.cu
    float *g, *strength; // [head][BLOCK]: sums of log decays; strengths of values
};

struct block_item {
    struct pass_seq seq;
    int32_t begin, at, end; // the block's position; the rows of this pass in it
    bool is_first, is_last; // first or last block of the sequence's rows
};

/* Items of a sequence; 0: k_state_rows handles it. */
__device__ __forceinline__ int32_t items_of(const struct pass_seq &s)
{
    const bool few = s.tree || s.n_rows <= STATE_WINDOW;
    return few ? 0 : (s.n_past + s.n_rows - 1) / BLOCK - s.n_past / BLOCK + 1;
}

/* Returns the sequence in which the running sum of of_seq exceeds *i, and subtracts the sum of the
 * sequences before it from *i. -1: there is none. Called by whole warps. */
template <typename F>
__device__ __forceinline__ int32_t find_seq(const struct pass_view &pass, int32_t *i, F of_seq)
{
    const int32_t lane = threadIdx.x & 31, n_seqs = pass.counts->n_seqs;
    for (int32_t base = 0; base < n_seqs; base += 32) {
        const int32_t n = base + lane < n_seqs ? of_seq(pass.seqs[base + lane]) : 0;
        int32_t sum = n;
        for (int32_t d = 1; d < 32; d *= 2) {
            const int32_t before = __shfl_up_sync(0xffffffffu, sum, d);
            sum += lane >= d ? before : 0;
        }
        const unsigned past = __ballot_sync(0xffffffffu, sum > *i);
        if (past) {
            const int32_t at = __ffs((int)past) - 1;
            *i -= __shfl_sync(0xffffffffu, sum - n, at);
            return base + at;
        }
        *i -= __shfl_sync(0xffffffffu, sum, 31);
    }
    return -1;
}

/* The n-th block of a sequence. */
__device__ __forceinline__ struct block_item item_of(const struct pass_seq &s, int32_t nth)
{
    struct block_item b;
    b.seq = s;
    b.begin = (s.n_past / BLOCK + nth) * BLOCK;
    b.at = nth == 0 ? s.n_past - b.begin : 0;
    b.end = min(s.n_past + s.n_rows - b.begin, (int32_t)BLOCK);
    b.is_first = nth == 0;
    b.is_last = nth == items_of(s) - 1;
    return b;
}

/* Finds item `first_item + i` of the pass. False: there is none. */
__device__ __forceinline__ bool find_item(const struct blocks_params &p, int32_t i,
                                          struct block_item *out)
{
    int32_t nth = p.first_item + i;
    const int32_t seq = find_seq(p.pass, &nth, items_of);
    if (seq >= 0) {
        *out = item_of(p.pass.seqs[seq], nth);
    }
    return seq >= 0;
}

cudaError_t k_state_scan(cudaStream_t stream, enum dtype dtype, int32_t n_chains,
                         const struct blocks_params &p);

#endif
