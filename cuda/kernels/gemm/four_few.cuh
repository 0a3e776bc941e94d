// SPDX-License-Identifier: Apache-2.0
/* How the blocks of four.cu divide a product, and what they copy to shared memory.
 * Thread: device code. */
#ifndef SLUICE_CUDA_GEMM_FOUR_FEW_CUH
#define SLUICE_CUDA_GEMM_FOUR_FEW_CUH

#include "cuda/coded.h"
#include "cuda/kernels/device/codes.cuh"
#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/device/kept.cuh"
#include "cuda/kernels/device/mma_tile.cuh"

enum {
    CHUNK = 128, // inputs
    BOX = 64,    // inputs in a box of x
    MAX_SLOTS = 3,
    BLOCK_BYTES = 221 * 1024, // of shared memory; the rest lets small kernels run beside it
    BESIDE_ATTENTION = 116 * 1024,
    X_LOAD = 16 * 1024, // bytes of x that are loaded at once
    MAX_LOADS = 16,
    BARRIERS = MAX_LOADS * 8, // bytes
    MAX_RUNS = 8,
    MOST_NT = 2, // groups of eight rows
    WARPS = 16,
    SUMS = 36, // floats from a row's sums to the next; avoids bank conflicts
};

struct few_params {
    struct coded_matrix m;
    void *y;
    const float *bias;
    int32_t n_rows, n_out; // size of y
    int64_t y_stride, part_stride;
    int32_t n_pairs;                 // of a band
    int32_t band_tiles, end_tile;    // first tile rows of a band's pairs; and of the weight's
    int32_t pair_tiles, to_other;    // first tile rows per pair; from one to the second of its pair
    int32_t n_slices, inverse;       // warps per pair, and 2^16 / n_pairs
    int32_t run_chunks, part_chunks; // of a range of K, and of a part of x
    int32_t n_slots, ring_bytes;     // of a warp's ring
    int32_t x_at;                    // where x begins in shared memory
    bool accumulate, gated;
    bool is_float; // y points to fp32
    bool is_full;  // the grid fills most of the machine
};

/* PER_GROUP: words of a lane that share a scale: 4, or 1 for groups of 32 and 64. NT: groups of
 * eight rows. */
template <enum coded_code CODE, int PER_GROUP, int NT> struct few_shape {
    static constexpr int ROWS = NT * 8, CHUNK_X = ROWS * CHUNK * 2;
    static constexpr int X_CHUNKS = X_LOAD / CHUNK_X; // in a load
    static constexpr int GROUPS = CODED_WORDS / PER_GROUP;
    static constexpr int SCALE_BYTES = CODED_ROWS * GROUPS * code_of<CODE>::SCALE_BYTES;
    static constexpr int ZERO_BYTES = code_of<CODE>::HAS_ZEROS ? CODED_ROWS * GROUPS : 0;
    static constexpr int SCALES = 2 * CODED_TILE_BYTES, ZEROS = SCALES + 2 * SCALE_BYTES;
    static constexpr int SLOT = ZEROS + 2 * ZERO_BYTES;
    static constexpr bool IS_SMALL = SCALE_BYTES == 64; // a record's scales and zeros
    static_assert(SLOT % 16 == 0 && 2 * SLOT >= ROWS * SUMS * 4, "");
};

#if HAVE_SM90A

/* A pair of tile rows: that of a warp or, while sums are stored, another one of the block. */
struct few_pair {
    int32_t tile, other; // the first, and how far the second is from it; 0: there is none
    bool exists;

    __device__ __forceinline__ few_pair(const struct few_params &p, int32_t which)
    {
        const int32_t start = blockIdx.x * p.band_tiles;
        const int32_t end = min(start + p.band_tiles, p.end_tile);
        tile = start + which * p.pair_tiles;
        other = p.gated || tile + 1 < end ? p.to_other : 0;
        exists = tile < end;
    }
};

/* The copies of a warp's chunks into its ring, one after another. */
template <typename S> struct few_copies {
    const uint8_t *codes, *small, *zeros; // what this lane copies next
    int32_t other; // bytes from the codes of the first tile row to those of the second one
    int32_t step, small_step;    // bytes to the chunk after it
    int32_t to_small, has_small; // where scales, or scales and zeros, go in a slot

    __device__ __forceinline__ few_copies(const struct few_params &p, const struct few_pair &pair,
                                          int32_t chunk)
    {
        const int lane = threadIdx.x & 31;
        const uint32_t to_other = (uint32_t)(pair.other * p.m.n_chunks);
        const uint32_t at = (uint32_t)(pair.tile * p.m.n_chunks + chunk);
        codes = kept(p.m.tiles + lane * 16 + (uint64_t)at * CODED_TILE_BYTES);
        other = kept((int32_t)(to_other * CODED_TILE_BYTES));
        step = p.n_slices * CODED_TILE_BYTES;
        if constexpr (S::IS_SMALL) { // four lanes copy the scales of a tile row, and one its zeros
            const bool is_scale = lane < 8, is_second = is_scale ? lane >= 4 : lane == 9;
            const uint32_t record = at + (is_second ? to_other : 0);
            const uint32_t bytes = is_scale ? S::SCALE_BYTES : (int)CODED_ROWS;
            small = (is_scale ? p.m.scales + lane % 4 * 16 : p.m.zeros) + (uint64_t)record * bytes;
            small_step = kept((int32_t)(p.n_slices * bytes));
            has_small = is_scale || (S::ZERO_BYTES > 0 && p.m.zeros && lane < 10);
            to_small = S::SCALES;
        } else {
            const int half = lane >> 4, piece = lane & 15;
            const uint32_t record = at + (half ? to_other : 0);
            small = p.m.scales + piece * 16 + (uint64_t)record * (uint32_t)p.m.record_bytes;
            zeros = p.m.zeros + piece * 16 +
                    (uint64_t)record * (uint32_t)(CODED_ROWS * p.m.record_groups);
            small_step = p.n_slices * p.m.record_bytes;
            has_small = piece * 16 < p.m.record_bytes;
            to_small = kept(S::SCALES + half * (S::SCALE_BYTES - 256));
        }
        has_small = kept(has_small);
    }

    /* to: this lane's address in a slot. */
    __device__ __forceinline__ void fetch(const struct few_params &p, bool valid, uint32_t to)
    {
        if (valid) {
            const uint8_t *second = codes + other;
            cp_async_16(to, codes);
            cp_async_16(to + 512, codes + 512);
            if (other > 0) { // otherwise any codes are multiplied, and the sums are not stored
                cp_async_16(to + CODED_TILE_BYTES, second);
                cp_async_16(to + CODED_TILE_BYTES + 512, second + 512);
            }
            codes += step;
            if (has_small) {
                cp_async_16(to + to_small, small);
            }
            small += small_step;
            if constexpr (!S::IS_SMALL) {
                const int half = (threadIdx.x & 31) >> 4, piece = threadIdx.x & 15;
                const int32_t n_zeros = CODED_ROWS * p.m.record_groups; // bytes of a record
                if (p.m.zeros && piece * 16 < n_zeros) {
                    cp_async_16(to + S::ZEROS + half * (S::ZERO_BYTES - 256), zeros);
                }
                zeros += p.n_slices * n_zeros;
            }
        }
        cp_async_commit();
    }
};

/* Announces the loads of a part of x. */
template <typename S>
__device__ __forceinline__ void expect_x(uint64_t *full, int32_t first, int32_t end)
{
#pragma unroll 1
    for (; first < end; first += S::X_CHUNKS, full++) {
        barrier_expect(full, X_LOAD); // loads past the end of K give zero
    }
}

/* Prepares the barriers of x, and announces the loads of its first part. */
template <typename S>
__device__ __forceinline__ void begin_x(const CUtensorMap *map, uint64_t *full, int32_t first,
                                        int32_t end)
{
    tensor_map_prefetch(map);
#pragma unroll 1
    for (int i = 0; i < MAX_LOADS; i++) {
        barrier_init(&full[i], 1);
    }
    barrier_init_done();
    expect_x<S>(full, first, end);
}

/* Loads a part of x, whose loads have been announced. */
template <typename S>
__device__ __forceinline__ void load_x(const CUtensorMap *map, char *xs, uint64_t *full,
                                       int32_t first, int32_t end)
{
    const uint64_t policy = policy_evict_last();
#pragma unroll 1
    for (; first < end; first += S::X_CHUNKS, xs += X_LOAD, full++) {
        tensor_load_3d(xs, map, full, 0, 0, first * (CHUNK / BOX), policy);
    }
}

#endif // HAVE_SM90A
#endif
