// SPDX-License-Identifier: Apache-2.0
/* Turns the accumulators of moe/sm90.cu's products into stored results, and defines the parameters
 * of a product.
 * Thread: device code, one warpgroup at a time. */
#ifndef SLUICE_CUDA_KERNELS_MOE_SM90_RESULTS_CUH
#define SLUICE_CUDA_KERNELS_MOE_SM90_RESULTS_CUH

#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/moe/gated.cuh"
#include "cuda/kernels/moe/sm90.cuh"

enum { COLUMNS = 256, HALF_COLUMNS = COLUMNS / 2, WARPGROUP = 128 };

/* One of the two products. A band is two runs of HALF_COLUMNS weight rows, `second` apart: gate and
 * up rows, or in the down product adjacent runs. */
struct product_params {
    const struct moe_tile *tiles;
    const int32_t *n_tiles;
    const int32_t *sorted, *rows;
    const void *x; // input of the up product
    int64_t x_stride;
    const float *bias; // [n_experts, w_rows] or NULL
    void *out;
    int32_t n_in, n_out;       // n_out: ffn or hidden
    int32_t w_rows;            // weight rows per expert
    int32_t band_rows, second; // distance of bands, and of a band's second half
    int32_t n_bands;
    bool keeps_out; // of the down product, in the L2 cache
    struct act_shape shape;
};

/* The work that a block processes at a time; n_rows is 0 if only the other block of its cluster has
 * work. */
struct piece {
    int32_t expert, first, band;
    int16_t n_rows;
    bool is_paired; // the other block has the same band of the same expert
    bool is_alone;  // no other tile reads the band
};

#if HAVE_SM90A

/* Transposes 4 x 4 among four lanes: before, lane t has pair t of blocks 0 to 3; afterwards, all
 * pairs of block t. */
__device__ __forceinline__ void transpose_4(uint32_t (&v)[4])
{
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int m = 1; m < 4; m *= 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if ((i & m) == 0) {
                const uint32_t got = __shfl_xor_sync(0xffffffffu, t & m ? v[i] : v[i | m], m);
                v[i] = t & m ? got : v[i];
                v[i | m] = t & m ? v[i | m] : got;
            }
        }
    }
}

/* Stores 16 bytes. */
__device__ __forceinline__ void store_with_policy(void *to, const uint32_t (&v)[4], uint64_t policy)
{
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "l"(policy)
                 : "memory");
}

/* A warpgroup's results on their way to memory. They are rounded, so that the accumulators are free
 * for the next piece, and stored 32 columns at a time while the tensor cores work on that piece. */
template <typename T, int KIND> struct results { // KIND < 0: the down product
    static constexpr bool UP = KIND >= 0;
    static constexpr int CHUNKS = UP ? 4 : 8;
    uint32_t pair[HALF_COLUMNS / 2] = {}; // [2 j + r]: columns 8 j + 2 t and the next one, row g +
                                          // 8 r
    T *to[2] = {NULL, NULL};              // of rows g and g + 8; NULL: no such row
    const float *bias = NULL;             // bias of the piece's first column
    int columns = 0;                      // columns of the band that exist

    __device__ __forceinline__ void take(const struct product_params &p, const struct piece &u,
                                         const float (&d)[HALF_COLUMNS], const int (&out_row)[2])
    {
        const int column = u.band * p.band_rows;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            to[r] = out_row[r] >= 0 ? (T *)p.out + (int64_t)out_row[r] * p.n_out + column : NULL;
        }
        bias = p.bias ? p.bias + (int64_t)u.expert * p.w_rows + column : NULL;
        columns = p.n_out - column;
#pragma unroll
        for (int i = 0; i < HALF_COLUMNS / 2; i++) {
            pair[i] = pack_pair<T>(d[2 * i], d[2 * i + 1]);
        }
    }

    template <int CHUNK> __device__ __forceinline__ void store(const struct product_params &p)
    {
        const int t = threadIdx.x & 3, mine = (CHUNK * 4 + t) * 8;
        float2 b[4] = {}, b_up[4] = {};
        if (bias) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int c = (CHUNK * 4 + j) * 8 + 2 * t;
                if (c < columns) {
                    b[j] = *(const float2 *)(bias + c);
                    b_up[j] = UP ? *(const float2 *)(bias + p.n_out + c) : b[j];
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t v[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int i = 2 * (CHUNK * 4 + j) + r;
                v[j] = pair[i];
                if constexpr (UP) {
                    const float2 g = unpack_pair<T>(v[j]), up = unpack_pair<T>(pair[i + 32]);
                    v[j] = pack_pair<T>(gated<KIND>(g.x + b[j].x, up.x + b_up[j].x, p.shape),
                                        gated<KIND>(g.y + b[j].y, up.y + b_up[j].y, p.shape));
                } else if (bias) {
                    const float2 y = unpack_pair<T>(v[j]);
                    v[j] = pack_pair<T>(y.x + b[j].x, y.y + b[j].y);
                }
            }
            transpose_4(v);
            if (to[r] == NULL || mine >= columns) {
                continue;
            }
            if constexpr (UP) {
                *(uint4 *)(to[r] + mine) = make_uint4(v[0], v[1], v[2], v[3]);
            } else {
                store_with_policy(to[r] + mine, v,
                                  p.keeps_out ? policy_evict_last() : policy_normal());
            }
        }
    }
};

#endif // HAVE_SM90A
#endif
