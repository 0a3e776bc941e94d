// SPDX-License-Identifier: Apache-2.0
/* y = silu(x W_gate^T) * (x W_up^T) for 209 or more rows on Hopper. Bound by arithmetic, not by
 * reading the weights; it draws so much power that the clock is lowered.
 *
 * An item is a tile of 256 rows and a band: BAND / 2 features of the gate and the BAND / 2 matching
 * features of the up matrix. A cluster of two neighbouring blocks takes an item, 128 rows per block
 * and 64 per warpgroup. One block loads the weights of the gate and the other those of the up
 * matrix, each for both blocks, because the L2 cache cannot feed this many tiles of this size and
 * reading it costs power. One thread loads W and another x through a ring of stages that fills
 * shared memory; loads of W start before the preceding kernel ends. Items are ordered in groups of
 * a few tiles, band after band, so that repeated reads hit the L2 cache.
 *
 * The results of an item are rounded and kept in registers. The activation is applied and they are
 * stored while the tensor cores work on the cluster's next item. */
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/gemm/fixed.cuh"

enum {
    BLOCKS = 14, // groups of 8 gate features
    CHUNK = 7,   // groups stored at a time
    STEPS = BLOCKS / CHUNK,
    MIN_ROWS = 209, // cuBLASLt is as fast with fewer
};
static_assert(BLOCKS % CHUNK == 0, "whole chunks");

struct batch_shape {
    static constexpr int BAND = 16 * BLOCKS; // features of gate and up together
    static constexpr int W_BYTES = BAND * DEPTH * 2, BYTES = W_BYTES + X_BYTES; // per stage
    static constexpr int STAGES = 5; // 220 KiB: the rest lets small kernels run beside it
    static constexpr int SMEM_BYTES = STAGES * BYTES + 1024;
};

#if HAVE_SM90A

/* An item's results, rounded as if the product were stored without activation; device/wgmma.cuh
 * describes the layout of the accumulators. They are converted and stored CHUNK groups of 8
 * features at a time: a step always stores the first groups of the array and then moves the others
 * to the front. This keeps the code short, which matters because every launch fetches it again. */
template <typename T> struct batch_kept {
    uint32_t gate[BLOCKS * 2], up[BLOCKS * 2]; // [2 j + r]: features 8 j + 2 t, + 1; row g + 8 r
    int left = 0;                              // steps left
    int32_t row, feature;                      // position of the first pair

    __device__ __forceinline__ void take(const float (&d)[8 * BLOCKS], int32_t first_row,
                                         int32_t first)
    {
#pragma unroll
        for (int i = 0; i < BLOCKS * 2; i++) {
            gate[i] = pack_pair<T>(d[2 * i], d[2 * i + 1]);
            up[i] = pack_pair<T>(d[4 * BLOCKS + 2 * i], d[4 * BLOCKS + 2 * i + 1]);
        }
        left = STEPS;
        row = first_row;
        feature = first;
    }

    __device__ __forceinline__ void store_some(const struct fixed_params &p)
    {
        T *to = (T *)p.y + (int64_t)row * p.y_stride + feature;
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                const float2 g = unpack_pair<T>(gate[2 * j + r]), u = unpack_pair<T>(up[2 * j + r]);
                const uint32_t v = pack_pair<T>(silu_gated(g.x, u.x), silu_gated(g.y, u.y));
                if (row + 8 * r < p.n_rows && feature + 8 * j < p.n_out) {
                    *(uint32_t *)(to + 8 * r * (int64_t)p.y_stride + 8 * j) = v;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < (BLOCKS - CHUNK) * 2; i++) {
            gate[i] = gate[i + 2 * CHUNK];
            up[i] = up[i + 2 * CHUNK];
        }
        feature += 8 * CHUNK;
        left--;
    }
};

/* A computing warpgroup. */
template <typename T> struct batch_computer : fixed_group<batch_shape> {
    using S = batch_shape;
    struct batch_kept<T> kept;

    /* Called after issuing the wgmmas of a box; waits for those of the previous box. */
    __device__ __forceinline__ void finish()
    {
        if (at.box > 0) {
            wait_for_last();
        }
        next_box();
    }

    __device__ __forceinline__ void run()
    {
        const int32_t step = (int32_t)gridDim.x / CLUSTER;
        to_release = (p.n_items - at.band + step - 1) / step * p.part_boxes - S::STAGES;
#pragma unroll 1
        for (; at.band < p.n_items; at.next_band()) {
#pragma unroll 1
            while (kept.left > 0) { // at most STEPS, and an item has as many boxes
                issue_box<T, S>(smem, ring, at, at.box == 0, d);
                kept.store_some(p);
                finish();
            }
#pragma unroll 1
            while (at.box < p.part_boxes) {
                issue_box<T, S>(smem, ring, at, at.box == 0, d);
                finish();
            }
            wait_for_all();
            const struct fixed_item item = item_at(p, at.band);
            kept.take(d, item.row + row0, item.band * 8 * BLOCKS + (threadIdx.x & 3) * 2);
        }
#pragma unroll 1
        while (kept.left > 0) {
            kept.store_some(p);
        }
    }
};

#endif // HAVE_SM90A

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_batch_kernel(const __grid_constant__ struct fixed_params p,
                      const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    fixed_block<batch_shape, batch_computer<T>>(p, w_map, x_map);
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

/* A single tile spends most of its time reading weights, so its rounds need not be as full. */
static bool is_full(const struct gemm_args *a, int32_t n_sms)
{
    const int32_t at_once = n_sms / CLUSTER;
    const int64_t made = (int64_t)up(up(a->n_out, batch_shape::BAND), at_once) * at_once;
    return a->n_rows > CLUSTER_ROWS
               ? rounds_are_full(a, batch_shape::BAND, n_sms)
               : a->n_rows >= MIN_ROWS && made * batch_shape::BAND * 4 <= (int64_t)a->n_out * 5;
}

extern "C" bool gemm_batch_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    return sm == 90 && n_sms >= CLUSTER && a->gated && !a->accumulate && !a->bias &&
           a->n_batch <= 1 && a->n_rows > 0 && a->n_in >= STEPS * DEPTH && a->n_in % 8 == 0 &&
           (a->w_dtype == DT_BF16 || a->w_dtype == DT_F16) && a->x_dtype == a->w_dtype &&
           a->y_dtype == a->x_dtype && a->n_out % 16 == 0 && a->x_stride % 8 == 0 &&
           a->y_stride % 2 == 0 &&
           ((uintptr_t)a->x | (uintptr_t)a->weight | (uintptr_t)a->y) % 16 == 0 &&
           is_full(a, n_sms);
}

extern "C" cudaError_t gemm_batch(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    struct fixed_params p = {};
    p.y = a->y;
    p.n_rows = a->n_rows;
    p.n_out = a->n_out / 2;
    p.y_stride = a->y_stride;
    p.part_boxes = p.last_boxes = up(a->n_in, DEPTH);
    p.n_parts = p.n_items = 1;
    return a->w_dtype == DT_BF16
               ? launch_fixed<batch_shape>(gemm_batch_kernel<bf16_t>, stream, a, p, n_sms)
               : launch_fixed<batch_shape>(gemm_batch_kernel<f16_t>, stream, a, p, n_sms);
}
