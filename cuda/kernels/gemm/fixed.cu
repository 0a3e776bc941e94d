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
 * part of the cluster's next item. Bound by arithmetic. */
#include "cuda/gemm.h"
#include "cuda/kernels/device/bands.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/maps.cuh"

enum {
    DEPTH = 64, // inputs of K per stage
    CLUSTER = 2,
    TILE_ROWS = 128, // per block
    GROUP_ROWS = 64, // per warpgroup
    GROUPS = TILE_ROWS / GROUP_ROWS,
    CLUSTER_ROWS = CLUSTER * TILE_ROWS,
    THREADS = (GROUPS + 1) * 128,
    RING_BYTES = 220 * 1024, // the rest lets small kernels run beside it
    X_BYTES = TILE_ROWS * DEPTH * 2,
    TOGETHER = 8, // tiles per group: repeated reads of their weights hit the L2 cache
    STEPS = 4,    // an item's results are stored in this many steps, one in each of the next item's
                  // first boxes
};

template <int BAND> struct fixed_shape {
    static constexpr int W_BYTES = BAND * DEPTH * 2, BYTES = W_BYTES + X_BYTES; // per stage
    static constexpr int STAGES = RING_BYTES / BYTES, SMEM_BYTES = STAGES * BYTES + 1024;
    static constexpr int BLOCKS = BAND / 8, CHUNK = BLOCKS / STEPS; // groups of 8 features
    static_assert(BLOCKS % STEPS == 0, "whole chunks");
};

struct fixed_params {
    void *y;
    const float *bias;
    int64_t part_stride;             // elements between the parts that are left as sums
    int32_t n_rows, n_out, y_stride; // size of y
    int32_t part_boxes;              // boxes of DEPTH in a part
    int32_t n_parts;                 // per item
    int32_t n_bands, n_tiles, n_items;
};

struct fixed_item {
    int32_t row, band, part; // row: the tile's first row
};

#if HAVE_SM90A

template <int BAND> using fixed_ring = band_ring<fixed_shape<BAND>::STAGES>;
/* The "bands" of band_walk are items here. */
template <int BAND> using fixed_walk = band_walk<CLUSTER, fixed_shape<BAND>::STAGES>;

__device__ __forceinline__ struct fixed_item item_at(const struct fixed_params &p, int32_t i)
{
    const int32_t per_part = p.n_bands * p.n_tiles, part = i / per_part;
    i -= part * per_part;
    const int32_t per_group = p.n_bands * TOGETHER, first = i / per_group * TOGETHER;
    const int32_t n = min(TOGETHER, p.n_tiles - first);
    i %= per_group;
    return {(first + i % n) * CLUSTER_ROWS, i / n, part};
}

template <int BAND> struct fixed_loader {
    using S = fixed_shape<BAND>;
    const struct fixed_params &p;
    const CUtensorMap *map;
    char *smem;
    fixed_ring<BAND> *ring;
    int32_t rank;       // rank of the block in its cluster
    int32_t row, first; // row of x or of W, and the item's first box

    template <bool IS_X>
    __device__ __forceinline__ void load(const fixed_walk<BAND> &at, uint64_t policy)
    {
        if (at.box == 0) {
            const struct fixed_item item = item_at(p, at.band);
            row = IS_X ? item.row + rank * TILE_ROWS : item.band * BAND + rank * (BAND / 2);
            first = item.part * p.part_boxes;
        }
        char *to = smem + at.slot * S::BYTES;
        const int32_t column = (first + at.box) * DEPTH;
        if (IS_X) {
            barrier_expect(&ring->full_x[at.slot], X_BYTES);
            tensor_load(to + S::W_BYTES, map, &ring->full_x[at.slot], column, row, policy);
        } else {
            barrier_expect(&ring->full_w[at.slot], S::W_BYTES);
            tensor_load_multicast(to + rank * (S::W_BYTES / 2), map, &ring->full_w[at.slot], column,
                                  row, (1 << CLUSTER) - 1, policy);
        }
    }

    template <bool IS_X> __device__ __forceinline__ void run()
    {
        const uint64_t w_policy = p.n_tiles > 1 ? policy_normal() : policy_evict_first();
        const uint64_t policy = IS_X ? policy_evict_last() : w_policy;
        load_bands<CLUSTER>(ring, p.n_items, p.n_parts * p.part_boxes,
                            [&](const fixed_walk<BAND> &at) { load<IS_X>(at, policy); });
    }
};

/* A computing warpgroup. */
template <typename T, typename Y, int BAND> struct fixed_computer {
    using S = fixed_shape<BAND>;
    const struct fixed_params &p;
    char *smem;
    fixed_ring<BAND> *ring;
    int row0; // the first of this thread's two rows in the tile
    fixed_walk<BAND> at;
    int last;           // ring slot of the previous box, which the tensor cores may still read
    int32_t to_release; // boxes whose stage will be refilled
    float d[BAND / 2];
    float total[BAND / 2];  // an item's sums; until its first part is done, the previous item's
    struct fixed_item kept; // whose results `total` holds
    bool has_kept;

    /* Tells the loaders of both blocks that a stage is free, unless nobody will refill it: an
     * arrival must not reach a block that has exited. */
    __device__ __forceinline__ void release()
    {
        if (to_release-- > 0 && (threadIdx.x & 31) < CLUSTER) {
            barrier_arrive_at(&ring->empty[last], threadIdx.x & 31);
        }
    }

    /* box: its index in the part. */
    __device__ __forceinline__ void issue(int32_t box)
    {
        barrier_wait(&ring->full_x[at.slot], at.parity);
        barrier_wait(&ring->full_w[at.slot], at.parity);
        const uint32_t w = smem_address(smem + at.slot * S::BYTES);
        const uint32_t x = w + S::W_BYTES + threadIdx.x / 128 * (GROUP_ROWS * DEPTH * 2);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) {
            wgmma<T, BAND>::ss(d, wgmma_operand(x + i * 32, 0), wgmma_operand(w + i * 32, 0),
                               box > 0 || i > 0);
        }
        wgmma_commit();
    }

    /* Called after issuing the wgmmas of a box; waits for the previous box of its part. */
    __device__ __forceinline__ void finish(int32_t box)
    {
        if (box > 0) {
            wgmma_wait<1>();
            release();
        }
        last = at.slot;
        at.next_box();
    }

    template <int STEP> __device__ __forceinline__ void store_some()
    {
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
        issue(STEP);
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
        wgmma_wait<0>();
        release();
#pragma unroll
        for (int i = 0; i < BAND / 2; i++) {
            asm volatile("" : "+f"(d[i])::"memory");
        }
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
        to_release = (p.n_items - at.band + step - 1) / step * p.n_parts * p.part_boxes - S::STAGES;
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
                    issue(box);
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
    extern __shared__ char smem_raw[];
    __shared__ fixed_ring<BAND> ring;
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    const int tid = threadIdx.x, rank = (int)cluster_rank();
    if (tid == 0) {
#pragma unroll 1
        for (int i = 0; i < fixed_shape<BAND>::STAGES; i++) {
            barrier_init(&ring.full_w[i], 1);
            barrier_init(&ring.full_x[i], 1);
            barrier_init(&ring.empty[i], CLUSTER * GROUPS * 4);
        }
        barrier_init_done();
    }
    cluster_sync();
    if (tid >= GROUPS * 128) {
        registers_fewer<40>();
        if (tid == GROUPS * 128) {
            fixed_loader<BAND> l = {p, &w_map, smem, &ring, rank};
            l.template run<false>();
        } else if (tid == GROUPS * 128 + 32) {
            tensor_map_prefetch(&x_map);
            pdl_wait();
            fixed_loader<BAND> l = {p, &x_map, smem, &ring, rank};
            l.template run<true>();
        }
        pdl_wait();
    } else {
        registers_more<232>();
        pdl_wait(); // preceding kernels may use y until then
        pdl_trigger();
        const int row0 = rank * TILE_ROWS + (tid >> 5) * 16 + (tid >> 2 & 7);
        fixed_computer<T, Y, BAND> c = {p, smem, &ring, row0};
        c.run();
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

static int32_t up(int64_t a, int64_t b)
{
    return (int32_t)((a + b - 1) / b);
}

enum { NARROW = 128, BROAD = 192 };

/* How a product is divided into bands, and whether an item has all parts of K or one. */
struct fixed_plan {
    int32_t band;
    bool is_left; // each part is left as sums
};

/* Cycles of the busiest multiprocessor, roughly. */
static int64_t cost_of(const struct gemm_args *a, const struct fixed_plan *p, int32_t n_parts,
                       int32_t n_sms)
{
    enum { ITEM = 1500, BYTES_PER_CYCLE = 3000 };
    const int64_t boxes = up(a->n_in, DEPTH) / (p->is_left ? n_parts : 1);
    const int64_t n_items =
        (int64_t)up(a->n_rows, CLUSTER_ROWS) * up(a->n_out, p->band) * (p->is_left ? n_parts : 1);
    const int64_t sums =
        p->is_left ? (int64_t)n_parts * a->n_rows * a->n_out * 8 / BYTES_PER_CYCLE : 0;
    // a narrow band reads 1.1 times the shared memory per product
    const int64_t box = p->band == NARROW ? p->band * 4 * 11 / 10 : p->band * 4;
    return up(n_items, n_sms / CLUSTER) * (boxes * box + ITEM) + sums;
}

static struct fixed_plan plan_of(const struct gemm_args *a, int32_t n_parts, int32_t n_sms,
                                 size_t sums_bytes)
{
    struct fixed_plan best = {NARROW, false};
    int64_t least = INT64_MAX;
    const size_t bytes = (size_t)n_parts * (size_t)a->n_rows * (size_t)a->n_out * sizeof(float);
    const bool may_leave = n_parts > 1 && a->may_split && bytes <= sums_bytes;
    for (int left = 0; left <= (may_leave ? 1 : 0); left++) {
        for (int32_t band : {(int32_t)NARROW, (int32_t)BROAD}) {
            const struct fixed_plan p = {band, left != 0};
            const int64_t cost = cost_of(a, &p, n_parts, n_sms);
            if (cost < least) {
                least = cost;
                best = p;
            }
        }
    }
    return best;
}

template <typename T, typename Y, int BAND>
static cudaError_t launch_fixed(cudaStream_t stream, const struct gemm_args *a,
                                struct fixed_params p, int32_t n_sms)
{
    using S = fixed_shape<BAND>;
    const auto kernel = gemm_fixed_kernel<T, Y, BAND>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         S::SMEM_BYTES); // set at every launch, because each
                                                         // rank has its own device
    CUtensorMap w_map, x_map;
    if (e == cudaSuccess) {
        e = product_maps(a, BAND / 2, TILE_ROWS, &w_map, &x_map);
    }
    if (e != cudaSuccess) {
        return e;
    }
    p.n_bands = up(a->n_out, BAND);
    p.n_tiles = up(a->n_rows, CLUSTER_ROWS);
    p.n_items *= p.n_bands * p.n_tiles;
    const int32_t n_clusters = up(p.n_items, up(p.n_items, n_sms / CLUSTER));
    return launch_clusters(CLUSTER, kernel, dim3((unsigned)(n_clusters * CLUSTER)), dim3(THREADS),
                           S::SMEM_BYTES, stream, p, w_map, x_map);
}

template <typename T, typename Y>
static cudaError_t by_band(cudaStream_t stream, const struct gemm_args *a,
                           const struct fixed_params &p, int32_t band, int32_t n_sms)
{
    return band == NARROW ? launch_fixed<T, Y, NARROW>(stream, a, p, n_sms)
                          : launch_fixed<T, Y, BROAD>(stream, a, p, n_sms);
}

extern "C" cudaError_t gemm_fixed(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                                  size_t sums_bytes, struct sum_parts *sums)
{
    const int32_t n_parts = a->n_parts > 1 ? a->n_parts : 1;
    const struct fixed_plan plan = plan_of(a, n_parts, n_sms, sums_bytes);
    const bool left = plan.is_left;
    struct fixed_params p = {};
    p.y = left ? (void *)sums->first : a->y;
    p.bias = left ? nullptr : a->bias;
    p.part_stride = left ? sums->stride : 0;
    p.n_rows = a->n_rows;
    p.n_out = a->n_out;
    p.y_stride = left ? a->n_out : a->y_stride;
    p.part_boxes = up(a->n_in, DEPTH) / n_parts;
    p.n_parts = left ? 1 : n_parts;
    p.n_items = left ? n_parts : 1; // to be multiplied by the numbers of bands and tiles
    if (sums) {
        sums->n = left ? n_parts : 0;
    }
    const bool bf16 = a->w_dtype == DT_BF16;
    if (left || a->y_dtype == DT_F32) {
        return bf16 ? by_band<bf16_t, float>(stream, a, p, plan.band, n_sms)
                    : by_band<f16_t, float>(stream, a, p, plan.band, n_sms);
    }
    return bf16 ? by_band<bf16_t, bf16_t>(stream, a, p, plan.band, n_sms)
                : by_band<f16_t, f16_t>(stream, a, p, plan.band, n_sms);
}
