// SPDX-License-Identifier: Apache-2.0
/* Shared by the two kernels of some.cu: the list of the experts that the rows picked, the ring, and
 * the products of a stage of weights with the rows.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_SOME_CUH
#define SLUICE_CUDA_KERNELS_MOE_SOME_CUH

#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/moe/few.cuh"

/* The computing warps divide K; one warp loads, and one adds their sums and stores results. */
enum { WARPS = 8, LOADER = WARPS, STORER, THREADS = 32 * (WARPS + 2) };
enum { LEAST_ROWS = 2, MOST_ROWS = 8 };
enum { SPAN = 64, HALF_SPAN = SPAN / 2 }; // inputs that a warp multiplies at once
enum { MOST_STAGES = 8, MOST_DEPTH = 4, SUM_BYTES = 8 << 10 };

/* How a kernel divides its work and its shared memory: the ring, inputs, sums, list of experts. A
 * stage has a part of K of some features. */
struct some_plan {
    int32_t features, part, stages, stage_bytes;
    int32_t inputs, sums, list, bytes;
    enum activation kind;
};

__host__ __device__ static inline int32_t padded(int32_t n)
{
    return (n + SPAN - 1) / SPAN * SPAN;
}

/* ---- picks ----------------------------------------------------------------------------------- */

/* The experts that the rows picked, from number 1 on in ascending order; number 0 is the shared
 * expert. slots: for each row, which of its picks the expert is; -1: none. */
struct some_list {
    int8_t (*slots)[MOST_ROWS];
    float (*weights)[MOST_ROWS];
    int32_t *expert;

    __device__ __forceinline__ some_list(char *memory, int32_t most)
        : slots((int8_t (*)[MOST_ROWS])memory), weights((float (*)[MOST_ROWS])(slots + most)),
          expert((int32_t *)(weights + most))
    {
    }
};

enum { LISTED_BYTES = MOST_ROWS * 5 + 4 };

__host__ __device__ static inline int32_t most_listed(const struct few_params &p)
{
    const int32_t picks = p.route.n_rows * p.route.k;
    return 2 + (picks < p.route.n_experts ? picks : p.route.n_experts);
}

/* What is needed only until the list is complete. */
struct pick_room {
    int8_t (*slots)[MOST_ROWS]; // of all experts
    float *weights, *scores;    // [row][k], and of each row what pick_row needs

    __device__ __forceinline__ pick_room(const struct few_params &p, char *memory)
        : slots((int8_t (*)[MOST_ROWS])memory), weights((float *)(slots + p.route.n_experts)),
          scores(weights + p.route.n_rows * p.route.k)
    {
    }

    __device__ __forceinline__ void clear(const struct few_params &p) const
    {
#pragma unroll 1
        for (int32_t i = (int32_t)threadIdx.x; i < p.route.n_experts; i += THREADS) {
            *(uint64_t *)slots[i] = ~(uint64_t)0;
        }
    }

    /* Enters the picks of the warp's row. */
    __device__ __forceinline__ void enter(const struct few_params &p, const struct pick &mine) const
    {
        const int32_t lane = threadIdx.x & 31, row = (int32_t)threadIdx.x >> 5;
        if (lane < p.route.k) {
            slots[mine.id][row] = (int8_t)lane;
        }
    }
};

/* Makes the list from the picks of all rows. Returns the number of its last expert. Called by all
 * threads. */
template <bool WEIGHTS>
__device__ __forceinline__ int32_t list_experts(const struct few_params &p,
                                                const struct pick_room &room,
                                                const struct some_list &list)
{
    const int32_t lane = threadIdx.x & 31, warp = (int32_t)threadIdx.x >> 5;
    const uint64_t none = ~(uint64_t)0;
    int32_t last = 0;
#pragma unroll 4
    for (int32_t first = 0; first < p.route.n_experts; first += 32) {
        const int32_t id = first + lane;
        const uint64_t slots = id < p.route.n_experts ? *(const uint64_t *)room.slots[id] : none;
        const uint32_t picked = __ballot_sync(0xffffffffu, slots != none);
        if (first / 32 % WARPS == warp && slots != none) {
            const int32_t i = last + 1 + __popc(picked & ((1u << lane) - 1));
            list.expert[i] = id;
            *(uint64_t *)list.slots[i] = slots;
#pragma unroll 1
            for (int32_t row = 0; WEIGHTS && row < p.route.n_rows; row++) {
                const int32_t slot = room.slots[id][row];
                list.weights[i][row] = slot >= 0 ? room.weights[row * p.route.k + slot] : 0.0f;
            }
        }
        last += __popc(picked);
    }
    return last;
}

#if HAVE_SM90A

/* ---- the ring -------------------------------------------------------------------------------- */

/* Of each stage, whether it is full and whether it is empty; of sums, whether all warps have left
 * theirs, and whether they have been added; whether the inputs are there. */
struct some_barriers {
    uint64_t full[MOST_STAGES], empty[MOST_STAGES], left[MOST_DEPTH], added[MOST_DEPTH], inputs;

    __device__ __forceinline__ void make()
    {
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (int i = 0; i < MOST_STAGES; i++) {
                barrier_init(full + i, 1);
                barrier_init(empty + i, WARPS);
            }
#pragma unroll 1
            for (int i = 0; i < MOST_DEPTH; i++) {
                barrier_init(left + i, WARPS);
                barrier_init(added + i, 1);
            }
            barrier_init(&inputs, 1);
            barrier_init_done();
        }
    }
};

/* A place in a ring of n. */
struct ring_place {
    int32_t at;
    uint32_t parity;

    __device__ __forceinline__ void next(int32_t n)
    {
        if (++at == n) {
            at = 0;
            parity ^= 1;
        }
    }
};

/* Called by a warp when its lanes have done their part. */
__device__ __forceinline__ void warp_arrive(uint64_t *bar)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0) {
        barrier_arrive(bar);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

__device__ __forceinline__ uint4 load_or_zero(const void *from, bool is)
{
    return is ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
}

/* The two halves of a row's span, in order. Rows usually lie a multiple of 128 bytes apart, so odd
 * rows read the second half first, which avoids bank conflicts. n: elements of the row. */
template <typename T>
__device__ __forceinline__ void load_span(const T *row, bool is, int32_t at, int32_t n,
                                          uint4 (&half)[2])
{
    const int32_t lane = threadIdx.x & 31, mine = at + lane % 4 * RUN;
    const bool odd = lane / 4 % 2 != 0;
    const int32_t first = mine + (odd ? HALF_SPAN : 0), second = mine + (odd ? 0 : HALF_SPAN);
    const uint4 a = load_or_zero(row + first, is && first < n);
    const uint4 b = load_or_zero(row + second, is && second < n);
    half[0] = odd ? b : a;
    half[1] = odd ? a : b;
}

/* Multiplies 8 or 16 features (w, v) with the rows. The order of inputs within a span does not
 * matter, so a lane's 8 inputs are in two mma. */
template <typename T>
__device__ __forceinline__ void multiply(const uint4 &w, const uint4 &v, const uint4 &in,
                                         float (&first)[4], float (&second)[4])
{
    const uint32_t a[4] = {w.x, v.x, w.y, v.y}, b[4] = {w.z, v.z, w.w, v.w};
    mma_16x8x16(first, a, in.x, in.y, T());
    mma_16x8x16(second, b, in.z, in.w, T());
}

__device__ __forceinline__ float add_warps(const float *sums, int32_t tile)
{
    float sum = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < WARPS; i++) {
        sum += sums[i * tile];
    }
    return sum;
}

#endif

#endif
