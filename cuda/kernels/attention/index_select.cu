// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: the list of keys that each row attends to. These are all slots that it sees if
 * there are no more than top_k of them, and otherwise those with the highest scores, of equal
 * scores the lowest slots. Exact: a radix select finds the score of the last key that fits, eight
 * bits of it per turn at most, and a last turn writes the slots in ascending order.
 *
 * A block has one row. Each lane counts in a histogram of its own, because most scores lie in few
 * bins. If there are few rows, a block keeps the first scores in shared memory. Bound by reading
 * scores from the L2 cache and by counting. */
#include "cuda/kernels/attention/index_seen.cuh"
#include "cuda/kernels/device/launch.cuh"

enum { SELECT_THREADS = 1024, DIGIT_BITS = 8, BINS = 1 << DIGIT_BITS, SELECT_WARPS = 32 };
static_assert(SELECT_THREADS == 4 * BINS && SELECT_WARPS * 32 == SELECT_THREADS,
              "four threads add up a bin; a lane has a warp's sum");

struct select_params {
    const float *scores;
    int64_t scores_stride;
    int32_t *lists;
    int32_t top_k, first_row;
    int32_t n_held; // slots whose scores are kept in shared memory
    struct pass_view pass;
};

/* The row's scores in order_of's form, four slots at a time; 0: the row does not see the slot. A
 * thread first loads all slots that it asks for later. */
struct row_orders {
    const float *scores;
    struct seen_slots seen;
    uint32_t *held;
    int32_t n_held;

    __device__ __forceinline__ uint4 at(int slot) const
    {
        return slot < n_held ? *reinterpret_cast<const uint4 *>(held + slot) : read(slot);
    }
    __device__ __forceinline__ uint4 load(int slot) const
    {
        const uint4 o = read(slot);
        if (slot < n_held) {
            *reinterpret_cast<uint4 *>(held + slot) = o;
        }
        return o;
    }
    __device__ __forceinline__ uint4 read(int slot) const
    {
        const float4 s = *reinterpret_cast<const float4 *>(scores + slot);
        return make_uint4(one(slot, s.x), one(slot + 1, s.y), one(slot + 2, s.z),
                          one(slot + 3, s.w));
    }
    __device__ __forceinline__ uint32_t one(int slot, float score) const
    {
        return slot < seen.n_slots && seen.sees(slot) ? order_of(score) : 0u;
    }
};

struct select_memory {
    uint32_t counts[BINS][32]; // [bin][lane]
    uint32_t totals[BINS];
    uint32_t digit, above;          // the digit found, and the number of orders with a higher one
    uint32_t sums[2][SELECT_WARPS]; // of warps, for the last turn
};

__device__ __forceinline__ void count(struct select_memory &m, uint32_t order, uint32_t mask,
                                      uint32_t prefix, int shift)
{
    if (order != 0u && (order & mask) == prefix) {
        atomicAdd(&m.counts[order >> shift & (BINS - 1)][threadIdx.x & 31], 1u);
    }
}

/* Finds in the totals the digit of the `wanted`-th highest order. One warp. */
__device__ __forceinline__ void find_digit(struct select_memory &m, uint32_t wanted)
{
    constexpr int EACH = BINS / 32;
    const int lane = threadIdx.x & 31, high = BINS - 1 - lane * EACH;
    uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        own += m.totals[high - i];
    }
    uint32_t up_to = own; // orders in this lane's bins and in all higher ones
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, up_to, step);
        up_to += lane >= step ? other : 0u;
    }
    uint32_t above = up_to - own;
    if (above < wanted && wanted <= up_to) { // true for one lane
        int bin = high;
        while (above + m.totals[bin] < wanted) {
            above += m.totals[bin--];
        }
        m.digit = (uint32_t)bin;
        m.above = above;
    }
}

/* An order so that all higher ones are picked, and *n_equal of those that are equal to it: that of
 * the top_k-th highest score, or the one below if that is known earlier. */
__device__ __forceinline__ uint32_t threshold_of(struct select_memory &m, const row_orders &row,
                                                 uint32_t top_k, uint32_t *n_equal)
{
    const int tid = threadIdx.x;
    uint32_t prefix = 0, mask = 0, wanted = top_k;
    for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        uint32_t *all = &m.counts[0][0];
#pragma unroll
        for (int i = 0; i < BINS * 32 / SELECT_THREADS; i++) {
            all[i * SELECT_THREADS + tid] = 0u;
        }
        __syncthreads();
#pragma unroll 4
        for (int slot = tid * 4; slot < row.seen.n_slots; slot += SELECT_THREADS * 4) {
            const uint4 o = mask == 0 ? row.load(slot) : row.at(slot);
            count(m, o.x, mask, prefix, shift);
            count(m, o.y, mask, prefix, shift);
            count(m, o.z, mask, prefix, shift);
            count(m, o.w, mask, prefix, shift);
        }
        __syncthreads();
        uint32_t sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum += m.counts[tid >> 2][(tid & 3) * 8 + i];
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if ((tid & 3) == 0) {
            m.totals[tid >> 2] = sum;
        }
        __syncthreads();
        if (tid < 32) {
            find_digit(m, wanted);
        }
        __syncthreads();
        prefix |= m.digit << shift;
        mask |= (uint32_t)(BINS - 1) << shift;
        wanted -= m.above;
        if (m.totals[m.digit] == wanted && prefix > 0u) { // all orders with this prefix are picked
            *n_equal = 0;
            return prefix - 1;
        }
    }
    *n_equal = wanted;
    return prefix;
}

/* Writes the slots whose order is above the threshold, and the first n_equal that are equal to
 * it. */
__device__ __forceinline__ void write_picks(struct select_memory &m, const row_orders &row,
                                            uint32_t threshold, uint32_t n_equal, int32_t *to)
{
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    uint32_t above = 0, equal = 0; // the numbers of both before this turn's slots
    int turn = 0;
    for (int base = 0; base < row.seen.n_slots; base += SELECT_THREADS * 4, turn ^= 1) {
        const int slot = base + tid * 4;
        uint32_t o[4] = {};
        if (slot < row.seen.n_slots) {
            *reinterpret_cast<uint4 *>(o) = row.at(slot);
        }
        uint32_t own = 0; // the upper half counts those that are equal
#pragma unroll
        for (int i = 0; i < 4; i++) {
            own += (o[i] > threshold ? 1u : 0u) + (o[i] == threshold ? 1u << 16 : 0u);
        }
        uint32_t up_to = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, up_to, step);
            up_to += lane >= step ? other : 0u;
        }
        if (lane == 31) {
            m.sums[turn][warp] = up_to;
        }
        __syncthreads();
        uint32_t warps = m.sums[turn][lane];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, warps, step);
            warps += lane >= step ? other : 0u;
        }
        const uint32_t of_warp =
            __shfl_sync(0xffffffffu, warps, warp) - __shfl_sync(0xffffffffu, up_to, 31);
        const uint32_t before = of_warp + up_to - own, all = __shfl_sync(0xffffffffu, warps, 31);
        uint32_t n_above = above + (before & 0xffffu), at_equal = equal + (before >> 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (o[i] > threshold) {
                to[n_above + min(at_equal, n_equal)] = slot + i;
                n_above++;
            } else if (o[i] == threshold) {
                if (at_equal < n_equal) {
                    to[n_above + at_equal] = slot + i;
                }
                at_equal++;
            }
        }
        above += all & 0xffffu;
        equal += all >> 16;
    }
}

/* All slots that the row sees. */
__device__ __forceinline__ void write_all(const struct seen_slots &seen, int32_t *to)
{
    const int tid = threadIdx.x;
    const int n = seen.tree ? seen.n_past : seen.n_slots;
    for (int i = tid; i < n; i += SELECT_THREADS) {
        to[i] = i;
    }
    if (seen.tree && tid < MAX_TREE_NODES && seen.sees(n + tid)) {
        const uint64_t word = tid < 64 ? seen.nodes[0] : seen.nodes[1];
        const uint64_t below = word & ((1ull << (tid & 63)) - 1);
        to[n + __popcll(below) + (tid >= 64 ? __popcll(seen.nodes[0]) : 0)] = n + tid;
    }
}

__global__ void __launch_bounds__(SELECT_THREADS)
    index_select_kernel(const __grid_constant__ struct select_params p)
{
    __shared__ struct select_memory memory;
    extern __shared__ __align__(16) uint32_t held_orders[];
    pdl_wait();
    pdl_trigger();
    const int r = p.first_row + (int)blockIdx.x;
    int32_t *list = p.lists + (int64_t)r * PICK_STRIDE(p.top_k);
    const struct seen_slots seen = seen_slots_of(p.pass, r);
    if (threadIdx.x == 0) {
        list[0] = min(seen.n_seen, p.top_k);
    }
    if (seen.n_seen <= p.top_k) {
        write_all(seen, list + 1);
        return;
    }
    const row_orders row = {p.scores + blockIdx.x * p.scores_stride, seen, held_orders, p.n_held};
    uint32_t n_equal;
    const uint32_t threshold = threshold_of(memory, row, (uint32_t)p.top_k, &n_equal);
    write_picks(memory, row, threshold, n_equal, list + 1);
}

/* The most scores of a row that a block keeps. */
static int most_held(int sm)
{
    return sm >= 90 && sm < 120 ? 40960 : 12288;
}

/* With many rows two blocks fit on a multiprocessor, but only if they keep nothing. */
static int held_by_block(const struct index_launch *a)
{
    const int most = a->end_row - a->first_row > a->n_sms ? 0 : most_held(a->sm);
    return (int)(a->scores_stride < most ? a->scores_stride : most);
}

extern "C" cudaError_t k_index_select(cudaStream_t stream, const struct index_launch *a)
{
    const int n_held = held_by_block(a), n_bytes = (int)sizeof(uint32_t);
    const struct select_params p = {a->scores,    a->scores_stride, a->lists, a->top_k,
                                    a->first_row, n_held,           a->pass};
    const cudaError_t e =
        cudaFuncSetAttribute(index_select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             most_held(a->sm) * n_bytes);
    return e != cudaSuccess
               ? e
               : launch(index_select_kernel, dim3((unsigned)(a->end_row - a->first_row)),
                        dim3(SELECT_THREADS), (size_t)(n_held * n_bytes), stream, p);
}
