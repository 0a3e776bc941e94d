// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: a tile of an index layer's keys in the registers of a block, as the second
 * operand of products with queries. Each of the block's warps has WARP_KEYS keys.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_INDEX_TILE_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_INDEX_TILE_CUH

#include "cuda/kernels/attention/index_seen.cuh"
#include "cuda/kernels/device/kv_decode.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"

enum { SCORE_WARPS = 8, WARP_KEYS = 32, TILE_MAX_DIM = 128 };
static_assert(SCORE_WARPS * WARP_KEYS == INDEX_TILE, "a block has one tile of keys");

__device__ __forceinline__ const int32_t *table_of(const struct pass_view &pass, int32_t row)
{
    return pass.blocks + (int64_t)pass.rows[row].lane * pass.blocks_stride;
}

/* KS: steps of 16 elements per head. */
template <typename T, int KS, bool CODES> struct key_tile {
    static constexpr int PITCH = KS * 16 + 8; // an odd multiple of 16 bytes
    static constexpr int CHUNKS = KS * 2;     // of 8 elements, per head
    uint32_t b[KS][WARP_KEYS / 8][2];         // the warp's keys

    /* Starts to load the warp's keys to shared memory; those from `end` on become zeros. */
    __device__ __forceinline__ void load(T *keys, const struct kv_view &kv, const int32_t *table,
                                         int start, int end) const
    {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        const int own = min(start + warp * WARP_KEYS + lane, end - 1);
        const int page = table[own / kv.block_tokens], token = own % kv.block_tokens;
        constexpr int AT_ONCE = 32 / CHUNKS; // keys per step, at least two
        const int column = lane % CHUNKS * 8;
#pragma unroll
        for (int i = 0; i < WARP_KEYS / AT_ONCE; i++) {
            const int r = i * AT_ONCE + lane / CHUNKS;
            const int64_t its_page = __shfl_sync(0xffffffffu, page, r);
            const int its_token = __shfl_sync(0xffffffffu, token, r);
            const bool real = start + warp * WARP_KEYS + r < end && column < kv.head_dim_k;
            T *to = keys + (warp * WARP_KEYS + r) * PITCH + column;
            if constexpr (CODES) {
                const struct kv_place at = kv_place_of(kv, its_page, 0, its_token);
                put_decoded(to, kv.codes, at, false, kv_scale_get(kv.codes, at, false), column,
                            real);
            } else {
                const T *from = (const T *)kv.base + its_page * kv.page_stride +
                                (int64_t)its_token * kv.head_dim_k;
                cp_async_16(to, from + (real ? column : 0), real);
            }
        }
    }

    __device__ __forceinline__ void to_registers(const T *keys)
    {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        const T *from =
            keys + (warp * WARP_KEYS + (lane >> 4) * 8 + (lane & 7)) * PITCH + (lane >> 3 & 1) * 8;
#pragma unroll
        for (int s = 0; s < KS; s++) {
#pragma unroll
            for (int n = 0; n < WARP_KEYS / 8; n += 2) {
                uint32_t r[4];
                ldmatrix_x4(r, from + n * 8 * PITCH + s * 16);
                b[s][n][0] = r[0];
                b[s][n][1] = r[1];
                b[s][n + 1][0] = r[2];
                b[s][n + 1][1] = r[3];
            }
        }
    }
};

/* True if the tensor cores can score these keys. */
static inline bool tile_is_fast(const struct index_launch *a)
{
    return a->sm >= 80 && a->dtype != DT_F32 && a->head_dim % 8 == 0 &&
           a->head_dim <= TILE_MAX_DIM && a->q_stride % 8 == 0 &&
           ((uintptr_t)a->q | (uintptr_t)a->kv.base) % 16 == 0;
}

#endif
