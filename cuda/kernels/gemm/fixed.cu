// SPDX-License-Identifier: Apache-2.0
/* y = x W^T for 33 or more rows on Hopper, with the same bits as gemm_small and gemm_wide: K is
 * summed in the weight's parts (a->n_parts), each in one accumulator in steps of 16, and the parts
 * are added in order. Deterministic mode's counterpart of cuBLASLt.
 *
 * An item is a tile of 256 rows, a band of features, and either all parts of K, whose sums are
 * added in registers, or one part, which is left in fp32 for the op that reads the product. A
 * cluster of two neighbouring blocks takes an item, 128 rows per block and 64 per warpgroup, as in
 * batch.cu; each block loads half of the band's weights for both.
 *
 * The results of an item stay in registers and are stored while the tensor cores compute the first
 * part of the cluster's next item. Most complete products are left to fixed_many.cu. Bound by
 * reading W or by arithmetic. */
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/gemm/fixed.cuh"

enum {
    RING_BYTES = 220 * 1024, // the rest lets small kernels run beside it
    STEPS = 4, // an item's results are stored in this many steps, one in each of the next item's
               // first boxes
};

template <int WIDTH> struct fixed_shape {
    static constexpr int BAND = WIDTH;
    static constexpr int W_BYTES = BAND * DEPTH * 2, BYTES = W_BYTES + X_BYTES; // per stage
    static constexpr int STAGES = RING_BYTES / BYTES, SMEM_BYTES = STAGES * BYTES + 1024;
    static constexpr int BLOCKS = BAND / 8, CHUNK = BLOCKS / STEPS; // groups of 8 features
    static_assert(BLOCKS % (2 * STEPS) == 0, "whole chunks, of pairs of blocks");
    // Whether fp32 results are stored 16 bytes at a time, for which wider bands lack the registers.
    static constexpr bool IN_16_BYTES = BAND <= 128;
};

#if HAVE_SM90A

/* A computing warpgroup. */
template <typename T, typename Y, int BAND> struct fixed_computer : fixed_group<fixed_shape<BAND>> {
    using S = fixed_shape<BAND>;
    using G = fixed_group<S>;
    using G::p, G::smem, G::ring, G::row0, G::at, G::d;
    float total[BAND / 2];  // an item's sums; until its first part is done, the previous item's
    struct fixed_item kept; // whose results `total` holds
    bool has_kept;

    /* Called after issuing the wgmmas of a box; waits for the previous box of its part. */
    __device__ __forceinline__ void finish(int32_t box)
    {
        if (box > 0) {
            G::wait_for_last();
        }
        G::next_box();
    }

    /* Stores two blocks of one of this thread's rows in fp32. Neighbouring lanes exchange a pair,
     * so that each has four elements of one block. */
    __device__ __forceinline__ void store_sums(int block, int r)
    {
        const bool odd = threadIdx.x & 1;
        float2 low = make_float2(total[4 * block + 2 * r], total[4 * block + 2 * r + 1]);
        float2 high = make_float2(total[4 * block + 4 + 2 * r], total[4 * block + 5 + 2 * r]);
        const float x = __shfl_xor_sync(0xffffffffu, odd ? low.x : high.x, 1);
        const float y = __shfl_xor_sync(0xffffffffu, odd ? low.y : high.y, 1);
        low = odd ? make_float2(x, y) : low;
        high = odd ? high : make_float2(x, y);
        const int32_t row = kept.row + row0 + 8 * r;
        const int32_t feature = kept.band * BAND + 8 * (block + odd) + (int)(threadIdx.x & 2) * 2;
        float *to = (float *)p.y + kept.part * p.part_stride + (int64_t)row * p.y_stride + feature;
        if (row >= p.n_rows || feature >= p.n_out) {
            return;
        }
        if (p.in_16_bytes) {
            *(float4 *)to = make_float4(low.x, low.y, high.x, high.y);
            return;
        }
        *(float2 *)to = low;
        if (feature + 2 < p.n_out) {
            *(float2 *)(to + 2) = high;
        }
    }

    template <int STEP> __device__ __forceinline__ void store_some()
    {
        if constexpr (S::IN_16_BYTES && sizeof(Y) == sizeof(float)) {
#pragma unroll
            for (int j = STEP * S::CHUNK; j < (STEP + 1) * S::CHUNK; j += 2) {
                store_sums(j, 0);
                store_sums(j, 1);
            }
            return;
        }
        const int32_t row = kept.row + row0, feature = kept.band * BAND + (threadIdx.x & 3) * 2;
        Y *to = (Y *)p.y + kept.part * p.part_stride + (int64_t)row * p.y_stride + feature;
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int j = STEP * S::CHUNK; j < (STEP + 1) * S::CHUNK; j++) {
                if (row + 8 * r < p.n_rows && feature + 8 * j < p.n_out) {
                    Y *at_pair = to + 8 * r * (int64_t)p.y_stride + 8 * j;
                    const float a = total[4 * j + 2 * r], b = total[4 * j + 2 * r + 1];
                    if constexpr (sizeof(Y) == sizeof(float)) {
                        *(float2 *)at_pair = make_float2(a, b);
                    } else {
                        *(uint32_t *)at_pair = pack_pair<Y>(a, b);
                    }
                }
            }
        }
    }

    template <int STEP> __device__ __forceinline__ void issue_and_store()
    {
        issue_box<T, S>(smem, ring, at, STEP == 0, d);
        store_some<STEP>();
        finish(STEP);
    }

    __device__ __forceinline__ void store_kept()
    {
        store_some<0>();
        store_some<1>();
        store_some<2>();
        store_some<3>();
    }

    /* total = the bias + d, or total + d. */
    __device__ __forceinline__ void add(bool is_first, int32_t band)
    {
        G::wait_for_all();
        if (!is_first) {
#pragma unroll
            for (int i = 0; i < BAND / 2; i++) {
                total[i] += d[i];
            }
            return;
        }
        const int32_t feature = band * BAND + (threadIdx.x & 3) * 2;
#pragma unroll
        for (int j = 0; j < S::BLOCKS; j++) {
            float2 bias = make_float2(0.0f, 0.0f);
            if (p.bias && feature + 8 * j < p.n_out) {
                bias = make_float2(p.bias[feature + 8 * j], p.bias[feature + 8 * j + 1]);
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                total[4 * j + 2 * r] = bias.x + d[4 * j + 2 * r];
                total[4 * j + 2 * r + 1] = bias.y + d[4 * j + 2 * r + 1];
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        const int32_t step = (int32_t)gridDim.x / CLUSTER;
        G::to_release =
            (p.n_items - at.band + step - 1) / step * p.n_parts * p.part_boxes - S::STAGES;
        has_kept = false;
#pragma unroll 1
        for (; at.band < p.n_items; at.next_band()) {
            const struct fixed_item item = item_at(p, at.band);
#pragma unroll 1
            for (int32_t part = 0; part < p.n_parts; part++) {
                int32_t box = 0;
                if (part == 0 && has_kept) { // a part has at least STEPS boxes
                    issue_and_store<0>();
                    issue_and_store<1>();
                    issue_and_store<2>();
                    issue_and_store<3>();
                    box = STEPS;
                }
#pragma unroll 1
                for (; box < p.part_boxes; box++) {
                    issue_box<T, S>(smem, ring, at, box == 0, d);
                    finish(box);
                }
                add(part == 0, item.band);
            }
            kept = item;
            has_kept = true;
        }
        if (has_kept) {
            store_kept();
        }
    }
};

#endif // HAVE_SM90A

template <typename T, typename Y, int BAND>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_fixed_kernel(const __grid_constant__ struct fixed_params p,
                      const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    fixed_block<fixed_shape<BAND>, fixed_computer<T, Y, BAND>>(p, w_map, x_map);
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

enum fixed_kind {
    COMPLETE, // an item has all parts of K
    LEFT,     // each part is an item of its own, and left as sums
    MANY,     // as COMPLETE, by fixed_many.cu; for products whose K has several parts
    MANY_ONE, // the same if it has one
};

/* A way to compute a product, and about how many cycles it takes per box, part and item. */
struct fixed_way {
    enum fixed_kind kind;
    int32_t band, of_box, of_part, of_item;
};

static const struct fixed_way ways[] = {
    {COMPLETE, 128, 563, 0, 2500}, {COMPLETE, 192, 768, 0, 2500}, {LEFT, 128, 563, 0, 1500},
    {LEFT, 192, 768, 0, 4500},     {MANY, 96, 540, 0, 1500},      {MANY, 128, 512, 0, 1600},
    {MANY, 160, 640, 150, 1300},   {MANY, 192, 768, 100, 1300},   {MANY, 256, 1024, 625, 400},
    {MANY_ONE, 256, 1000, 0, 0},
};

/* Cycles of the busiest multiprocessor, roughly, fitted to measured times. */
static int64_t cost_of(const struct gemm_args *a, const struct fixed_way &w, int32_t n_parts,
                       int32_t n_sms)
{
    enum { BYTES_PER_CYCLE = 3000 };
    const int32_t n_left = w.kind == LEFT ? n_parts : 1;
    const int64_t boxes = up(a->n_in, DEPTH) / n_left;
    const int64_t n_items = (int64_t)up(a->n_rows, CLUSTER_ROWS) * up(a->n_out, w.band) * n_left;
    const int64_t of_item = boxes * w.of_box + n_parts / n_left * w.of_part + w.of_item;
    const int64_t sums =
        w.kind == LEFT ? (int64_t)n_parts * a->n_rows * a->n_out * 8 / BYTES_PER_CYCLE : 0;
    return up(n_items, n_sms / CLUSTER) * of_item + w.band * 5 / 2 + sums; // the last item's stores
}

/* Up to 256 rows reading W counts most. Then the longer rings of this file are better, unless
 * narrower bands let more multiprocessors share W. */
static bool is_possible(const struct gemm_args *a, const struct fixed_way &w, int32_t n_parts,
                        size_t sums_bytes)
{
    const size_t bytes = (size_t)n_parts * (size_t)a->n_rows * (size_t)a->n_out * sizeof(float);
    const bool are_many =
        a->n_rows > (w.band == 96 ? TILE_ROWS : CLUSTER_ROWS) && a->y_dtype != DT_F32;
    switch (w.kind) {
    case LEFT: return n_parts > 1 && a->may_split && bytes <= sums_bytes;
    case MANY: return are_many && n_parts > 1;
    case MANY_ONE: return are_many && n_parts == 1;
    default: return true;
    }
}

static struct fixed_way best_way(const struct gemm_args *a, int32_t n_parts, int32_t n_sms,
                                 size_t sums_bytes)
{
    struct fixed_way best = ways[0];
    int64_t least = INT64_MAX;
    for (const struct fixed_way &w : ways) {
        const int64_t cost = cost_of(a, w, n_parts, n_sms);
        if (is_possible(a, w, n_parts, sums_bytes) && cost < least) {
            least = cost;
            best = w;
        }
    }
    return best;
}

template <typename T, typename Y>
static cudaError_t by_band(cudaStream_t stream, const struct gemm_args *a,
                           const struct fixed_params &p, int32_t band, int32_t n_sms)
{
    return band == 128
               ? launch_fixed<fixed_shape<128>>(gemm_fixed_kernel<T, Y, 128>, stream, a, p, n_sms)
               : launch_fixed<fixed_shape<192>>(gemm_fixed_kernel<T, Y, 192>, stream, a, p, n_sms);
}

extern "C" cudaError_t gemm_fixed(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                                  size_t sums_bytes, struct sum_parts *sums)
{
    const int32_t n_parts = a->n_parts > 1 ? a->n_parts : 1;
    const struct fixed_way way = best_way(a, n_parts, n_sms, sums_bytes);
    const bool left = way.kind == LEFT;
    struct fixed_params p = {};
    p.y = left ? (void *)sums->first : a->y;
    p.bias = left ? nullptr : a->bias;
    p.part_stride = left ? sums->stride : 0;
    p.n_rows = a->n_rows;
    p.n_out = a->n_out;
    p.y_stride = left ? a->n_out : a->y_stride;
    p.part_boxes = p.last_boxes = up(a->n_in, DEPTH) / n_parts;
    p.n_parts = left ? 1 : n_parts;
    p.n_items = left ? n_parts : 1; // to be multiplied by the numbers of bands and tiles
    p.in_16_bytes = p.y_stride % 8 == 0 && p.n_out % 8 == 0;
    if (sums) {
        sums->n = left ? n_parts : 0;
    }
    if (way.kind == MANY || way.kind == MANY_ONE) {
        return fixed_many(stream, a, p, way.band, n_sms);
    }
    const bool bf16 = a->w_dtype == DT_BF16;
    if (left || a->y_dtype == DT_F32) {
        return bf16 ? by_band<bf16_t, float>(stream, a, p, way.band, n_sms)
                    : by_band<f16_t, float>(stream, a, p, way.band, n_sms);
    }
    return bf16 ? by_band<bf16_t, bf16_t>(stream, a, p, way.band, n_sms)
                : by_band<f16_t, f16_t>(stream, a, p, way.band, n_sms);
}
