// SPDX-License-Identifier: Apache-2.0
/* y = x W^T in parts of K for more than 256 rows; fixed.cu describes the division into items. Here
 * an item always has all parts of K, and its results are rounded. Numbers have the same bits as in
 * fixed.cu. Codes have scales of rows, which are applied to the complete sums.
 *
 * - The sums of the parts so far need as many registers as those of the current part. In a band of
 *   256 features a quarter of them waits in shared memory.
 * - In bands of 192 and in those of a single part, the second warpgroup is a box behind the first:
 *   the tensor cores work for one while the other adds up a part. Narrower bands have a longer ring
 *   instead, which is slightly faster; with parked sums, the ring is too short for either.
 * - Results are kept rounded, and stored in 16 bytes per thread while the tensor cores compute the
 *   first boxes of the cluster's next item.
 * - What an item executes once lies in one piece, without the code for a bias or for rows of y that
 *   are not aligned, because fetching instructions takes long.
 *
 * Bound by arithmetic and power; with short parts, by the pauses in which sums are added.
 * Thread: device code; the host half the rank's owner. */
#ifndef SLUICE_CUDA_GEMM_FIXED_MANY_CUH
#define SLUICE_CUDA_GEMM_FIXED_MANY_CUH

#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/quads.cuh"
#include "cuda/kernels/gemm/fixed.cuh"

enum {
    CHUNK = 8,               // blocks of 8 features that are stored in one box of the next item
    MOST_IN_TURN = 5,        // stages, see IN_TURN
    MOST_BYTES = 224 * 1024, // of shared memory
};

/* PARTED: an item has several parts. */
template <int WIDTH, bool PARTED> struct many_shape {
    static constexpr int BAND = WIDTH, BLOCKS = BAND / 8; // blocks of 8 features
    static constexpr int STEPS = (BLOCKS + CHUNK - 1) / CHUNK;
    // Blocks whose earlier sums are in shared memory, and in registers.
    static constexpr int PARKED = PARTED && BAND == 256 ? 8 : 0;
    static constexpr int HELD = PARTED ? BLOCKS - PARKED : 0;
    static constexpr int PARKED_BYTES = PARKED * GROUPS * 128 * 16;
    static constexpr int W_BYTES = BAND * DEPTH * 2, BYTES = W_BYTES + X_BYTES; // per stage
    /* The second warpgroup begins a part when the first one has done a box of it. A part has at
     * least four boxes, so the ring is too short for the first warpgroup to do this twice
     * meanwhile. */
    static constexpr bool IN_TURN = BAND > 160 && PARKED == 0;
    static constexpr int FIT = (MOST_BYTES - PARKED_BYTES) / BYTES;
    static constexpr int STAGES = IN_TURN && FIT > MOST_IN_TURN ? MOST_IN_TURN : FIT;
    static constexpr int RING_BYTES = STAGES * BYTES, SMEM_BYTES = RING_BYTES + PARKED_BYTES + 1024;
    static_assert(STEPS >= 2 && STEPS <= 4, "stored during a part of four boxes");
    static_assert(!IN_TURN || STAGES < 4 + 2, "see IN_TURN");
};

#if HAVE_SM90A

/* The first part's sums are added to the bias, and the last part's complete the results. */
enum many_turn { ONLY_PART, FIRST_PART, NEXT_PART, LAST_PART };

/* A computing warpgroup. E: operands, T: results. A "block" is 8 features, of which a thread has
 * the sums of two features in each of two rows. */
template <typename E, typename T, int BAND, bool PARTED>
struct many_computer : fixed_group<many_shape<BAND, PARTED>> {
    using S = many_shape<BAND, PARTED>;
    using G = fixed_group<S>;
    using G::p, G::smem, G::ring, G::row0, G::at, G::d;
    static constexpr enum many_turn LAST = PARTED ? LAST_PART : ONLY_PART;
    static constexpr bool CODES = sizeof(E) == 1;
    float held[S::HELD > 0 ? S::HELD : 1][4]; // the sums of the parts before the current one
    uint32_t kept[S::BLOCKS * 2];             // an item's results, until they are stored
    struct fixed_item of_kept;                // the item

    __device__ __forceinline__ void first_box()
    {
        if (S::IN_TURN && threadIdx.x >= 128) {
            named_barrier(1, GROUPS * 128);
        }
        issue_box<E, S>(smem, ring, at, true, d);
        G::next_box();
    }

    __device__ __forceinline__ void later_box()
    {
        issue_box<E, S>(smem, ring, at, false, d);
        G::wait_for_last();
        G::next_box();
    }

    __device__ __forceinline__ void second_box()
    {
        later_box();
        if (S::IN_TURN && threadIdx.x < 128) {
            named_barrier_arrive(1, GROUPS * 128);
        }
    }

    /* Where the earlier sums of a block are in shared memory. */
    __device__ __forceinline__ float4 *parked(int block)
    {
        const int slot = block - S::HELD;
        return (float4 *)(smem + S::RING_BYTES) + slot * (GROUPS * 128) + threadIdx.x;
    }

    __device__ __forceinline__ float4 earlier(int block)
    {
        if (S::PARKED > 0 && block >= S::HELD) {
            return *parked(block);
        }
        const float *h = held[block];
        return make_float4(h[0], h[1], h[2], h[3]);
    }

    /* What the first part is added to. */
    template <bool BIASED> __device__ __forceinline__ float4 bias_of(int32_t feature)
    {
        float2 b = make_float2(0.0f, 0.0f);
        if (BIASED && feature < p.n_out) {
            b = make_float2(p.bias[feature], p.bias[feature + 1]);
        }
        return make_float4(b.x, b.y, b.x, b.y);
    }

    /* The scales of a band's features, for the block. */
    static __device__ __forceinline__ float *band_scales()
    {
        __shared__ alignas(8) float scales[BAND];
        return scales;
    }

    /* Both warpgroups store the same values. Neither still reads those of the item before: it is at
     * most a ring of stages behind. */
    __device__ __forceinline__ void store_scales(int32_t band)
    {
        for (int i = threadIdx.x & 127; i < BAND; i += 128) {
            if (band * BAND + i < p.n_out) {
                band_scales()[i] = __ldg(p.w_scales + band * BAND + i);
            }
        }
    }

    __device__ __forceinline__ float4 scaled(float4 v, int block, const float (&of_x)[2])
    {
        const float2 of_w = *(const float2 *)(band_scales() + 8 * block + (threadIdx.x & 3) * 2);
        return make_float4(v.x * of_x[0] * of_w.x, v.y * of_x[0] * of_w.y, v.z * of_x[1] * of_w.x,
                           v.w * of_x[1] * of_w.y);
    }

    template <enum many_turn TURN, bool BIASED>
    __device__ __forceinline__ void add_up(int32_t band, const float (&of_x)[2])
    {
#pragma unroll
        for (int i = 0; i < S::BLOCKS; i++) {
            const int j = S::BLOCKS - 1 - i; // those in shared memory first
            float4 v;
            if constexpr (TURN == ONLY_PART || TURN == FIRST_PART) {
                v = bias_of<BIASED>(band * BAND + 8 * j + (threadIdx.x & 3) * 2);
            } else {
                v = earlier(j);
            }
            v.x += d[4 * j];
            v.y += d[4 * j + 1];
            v.z += d[4 * j + 2];
            v.w += d[4 * j + 3];
            if constexpr (TURN == ONLY_PART || TURN == LAST_PART) {
                if constexpr (CODES) {
                    v = scaled(v, j, of_x);
                }
                kept[2 * j] = pack_pair<T>(v.x, v.y);
                kept[2 * j + 1] = pack_pair<T>(v.z, v.w);
                if constexpr (CODES) { // or ptxas would read all scales first
                    asm volatile("" : "+r"(kept[2 * j]), "+r"(kept[2 * j + 1])::"memory");
                }
            } else if (S::PARKED > 0 && j >= S::HELD) {
                *parked(j) = v;
            } else {
                float *h = held[j];
                h[0] = v.x, h[1] = v.y, h[2] = v.z, h[3] = v.w;
            }
        }
    }

    /* Adds up the sums of a part. */
    template <enum many_turn TURN> __device__ __forceinline__ void add(int32_t band)
    {
        float of_x[2] = {};
        if constexpr (CODES && TURN == LAST_PART) {
            const int32_t row = of_kept.row + row0;
            store_scales(band);
            of_x[0] = p.x_scales[min(row, p.n_rows - 1)];
            of_x[1] = p.x_scales[min(row + 8, p.n_rows - 1)];
            named_barrier(2 + threadIdx.x / 128, 128);
        }
        G::wait_for_all();
        if (!CODES && (TURN == ONLY_PART || TURN == FIRST_PART) && p.bias) {
            add_up<TURN, true>(band, of_x);
        } else {
            add_up<TURN, false>(band, of_x);
        }
    }

    /* Stores four blocks of one of this thread's rows: 16 bytes per thread. */
    __device__ __forceinline__ void store_four(int block, int r)
    {
        uint32_t w[4] = {kept[2 * block + r], kept[2 * block + 2 + r], kept[2 * block + 4 + r],
                         kept[2 * block + 6 + r]};
        transpose_quad(w);
        const int32_t row = of_kept.row + row0 + 8 * r;
        const int32_t feature = of_kept.band * BAND + 8 * (block + (int)(threadIdx.x & 3));
        if (row < p.n_rows && feature < p.n_out) {
            T *to = (T *)p.y + (int64_t)row * p.y_stride + feature;
            *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }

    /* Stores a block of one of this thread's rows, for rows of y that are not aligned. */
    __device__ __forceinline__ void store_pair(int block, int r)
    {
        const int32_t row = of_kept.row + row0 + 8 * r;
        const int32_t feature = of_kept.band * BAND + 8 * block + (int)(threadIdx.x & 3) * 2;
        if (row < p.n_rows && feature < p.n_out) {
            T *to = (T *)p.y + (int64_t)row * p.y_stride + feature;
            *(uint32_t *)to = kept[2 * block + r];
        }
    }

    template <int STEP, bool ALIGNED> __device__ __forceinline__ void store_step()
    {
        constexpr int FIRST = STEP * CHUNK;
        constexpr int END = FIRST + CHUNK < S::BLOCKS ? FIRST + CHUNK : S::BLOCKS;
#pragma unroll
        for (int j = FIRST; j < END; j += ALIGNED ? 4 : 1) {
            if constexpr (ALIGNED) {
                store_four(j, 0);
                store_four(j, 1);
            } else {
                store_pair(j, 0);
                store_pair(j, 1);
            }
        }
    }

    /* The first boxes of an item, in which the results of the one before it are stored. */
    template <int STEP = 0> __device__ __forceinline__ void first_boxes()
    {
        if constexpr (STEP < S::STEPS) {
            if constexpr (STEP == 0) {
                first_box();
            } else if constexpr (STEP == 1) {
                second_box();
            } else {
                later_box();
            }
            if (CODES || p.in_16_bytes) {
                store_step<STEP, true>();
            } else {
                store_step<STEP, false>();
            }
            first_boxes<STEP + 1>();
        }
    }

    template <bool ALIGNED, int STEP = 0> __device__ __forceinline__ void store_all()
    {
        if constexpr (STEP < S::STEPS) {
            store_step<STEP, ALIGNED>();
            store_all<ALIGNED, STEP + 1>();
        }
    }

    __device__ __forceinline__ void all_boxes(int32_t n)
    {
        first_box();
        second_box();
#pragma unroll 1
        for (int32_t box = 2; box < n; box++) {
            later_box();
        }
    }

    __device__ __forceinline__ void run()
    {
        const int32_t step = (int32_t)gridDim.x / CLUSTER;
        G::to_release = (p.n_items - at.band + step - 1) / step * boxes_of(p) - S::STAGES;
        bool has_kept = false;
#pragma unroll 1
        for (; at.band < p.n_items; at.next_band()) {
            if (has_kept) {
                first_boxes();
#pragma unroll 1
                for (int32_t box = S::STEPS; box < p.part_boxes; box++) {
                    later_box();
                }
            } else {
                all_boxes(p.part_boxes);
            }
            of_kept = item_at(p, at.band);
            has_kept = true;
            if constexpr (PARTED) {
                add<FIRST_PART>(of_kept.band);
#pragma unroll 1
                for (int32_t part = 2; part < p.n_parts; part++) {
                    all_boxes(p.part_boxes);
                    add<NEXT_PART>(of_kept.band);
                }
                all_boxes(p.last_boxes);
            }
            add<LAST>(of_kept.band);
        }
        if (has_kept && (CODES || p.in_16_bytes)) {
            store_all<true>();
        } else if (has_kept) {
            store_all<false>();
        }
    }
};

#endif // HAVE_SM90A

template <typename E, typename T, int BAND, bool PARTED>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_fixed_many_kernel(const __grid_constant__ struct fixed_params p,
                           const __grid_constant__ CUtensorMap w_map,
                           const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    fixed_block<many_shape<BAND, PARTED>, many_computer<E, T, BAND, PARTED>>(p, w_map, x_map);
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

template <typename E, typename T, int BAND, bool PARTED>
static cudaError_t launch_many(cudaStream_t stream, const struct gemm_args *a,
                               const struct fixed_params &p, int32_t n_sms)
{
    return launch_fixed<many_shape<BAND, PARTED>>(gemm_fixed_many_kernel<E, T, BAND, PARTED>,
                                                  stream, a, p, n_sms);
}

#endif
