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
#include "cuda/gemm.h"
#include "cuda/kernels/device/bands.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/maps.cuh"

enum {
    DEPTH = 64,         // inputs of K per stage
    BAND = 224,         // features of gate and up together
    BLOCKS = BAND / 16, // groups of 8 gate features
    CHUNK = 7,          // groups stored at a time
    STEPS = BLOCKS / CHUNK,
    CLUSTER = 2,     // blocks
    TILE_ROWS = 128, // per block
    GROUP_ROWS = 64, // per warpgroup
    GROUPS = TILE_ROWS / GROUP_ROWS,
    CLUSTER_ROWS = CLUSTER * TILE_ROWS,
    THREADS = (GROUPS + 1) * 128,
    W_BYTES = BAND * DEPTH * 2,
    X_BYTES = TILE_ROWS * DEPTH * 2,
    BYTES = W_BYTES + X_BYTES, // per stage
    STAGES = 5,                // 220 KiB: the rest lets small kernels run beside it
    SMEM_BYTES = STAGES * BYTES + 1024,
    TOGETHER = 8,   // tiles per group
    MIN_ROWS = 209, // cuBLASLt is as fast with fewer
};
static_assert(BLOCKS % CHUNK == 0, "whole chunks");

struct batch_params {
    void *y;
    int32_t n_rows, n_out, y_stride; // size of y
    int32_t n_boxes;                 // boxes of DEPTH along K
    int32_t n_bands, n_tiles, n_items;
};

struct batch_item {
    int32_t row, band; // row: the tile's first row
};

#if HAVE_SM90A

using batch_ring = band_ring<STAGES>;
using batch_walk = band_walk<CLUSTER, STAGES>; // the "bands" of band_walk are items here

template <bool TILED>
__device__ __forceinline__ struct batch_item item_at(const struct batch_params &p, int32_t i)
{
    if (!TILED) {
        return {0, i};
    }
    const int32_t per_group = p.n_bands * TOGETHER, first = i / per_group * TOGETHER;
    const int32_t n = min(TOGETHER, p.n_tiles - first);
    i %= per_group;
    return {(first + i % n) * CLUSTER_ROWS, i / n};
}

template <bool TILED> struct batch_loader {
    const struct batch_params &p;
    const CUtensorMap *map;
    char *smem;
    batch_ring *ring;
    int32_t rank; // rank of the block in its cluster
    int32_t row;  // row of x or of W

    template <bool IS_X> __device__ __forceinline__ void load(const batch_walk &at, uint64_t policy)
    {
        if (at.box == 0) {
            const struct batch_item item = item_at<TILED>(p, at.band);
            row = IS_X ? item.row + rank * TILE_ROWS : item.band * (BAND / 2) + rank * p.n_out;
        }
        char *to = smem + at.slot * BYTES;
        const int32_t column = at.box * DEPTH;
        if (IS_X) {
            barrier_expect(&ring->full_x[at.slot], X_BYTES);
            tensor_load(to + W_BYTES, map, &ring->full_x[at.slot], column, row, policy);
        } else {
            barrier_expect(&ring->full_w[at.slot], W_BYTES);
            tensor_load_multicast(to + rank * (W_BYTES / 2), map, &ring->full_w[at.slot], column,
                                  row, (1 << CLUSTER) - 1, policy);
        }
    }

    template <bool IS_X> __device__ __forceinline__ void run()
    {
        const uint64_t w_policy = TILED ? policy_normal() : policy_evict_first();
        const uint64_t policy = IS_X ? policy_evict_last() : w_policy;
        load_bands<CLUSTER>(ring, p.n_items, p.n_boxes,
                            [&](const batch_walk &at) { load<IS_X>(at, policy); });
    }
};

/* An item's results, rounded as if the product were stored without activation; device/wgmma.cuh
 * describes the layout of the accumulators. They are converted and stored CHUNK groups of 8
 * features at a time: a step always stores the first groups of the array and then moves the others
 * to the front. This keeps the code short, which matters because every launch fetches it again. */
template <typename T> struct batch_kept {
    uint32_t gate[BLOCKS * 2], up[BLOCKS * 2]; // [2 j + r]: features 8 j + 2 t, + 1; row g + 8 r
    int left = 0;                              // steps left
    int32_t row, feature;                      // position of the first pair

    __device__ __forceinline__ void take(const float (&d)[BAND / 2], int32_t first_row,
                                         int32_t first)
    {
#pragma unroll
        for (int i = 0; i < BLOCKS * 2; i++) {
            gate[i] = pack_pair<T>(d[2 * i], d[2 * i + 1]);
            up[i] = pack_pair<T>(d[BAND / 4 + 2 * i], d[BAND / 4 + 2 * i + 1]);
        }
        left = STEPS;
        row = first_row;
        feature = first;
    }

    __device__ __forceinline__ void store_some(const struct batch_params &p)
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
template <typename T, bool TILED> struct batch_computer {
    const struct batch_params &p;
    char *smem;
    batch_ring *ring;
    int row0; // the first of this thread's two rows in the tile
    batch_walk at;
    int last;           // ring slot of the previous box, which the tensor cores may still read
    int32_t to_release; // boxes whose stage will be refilled
    float d[BAND / 2];
    struct batch_kept<T> kept;

    /* Tells the loaders of both blocks that a stage is free, unless nobody will refill it: an
     * arrival must not reach a block that has exited. */
    __device__ __forceinline__ void release()
    {
        if (to_release-- > 0 && (threadIdx.x & 31) < CLUSTER) {
            barrier_arrive_at(&ring->empty[last], threadIdx.x & 31);
        }
    }

    __device__ __forceinline__ void issue()
    {
        barrier_wait(&ring->full_x[at.slot], at.parity);
        barrier_wait(&ring->full_w[at.slot], at.parity);
        const uint32_t w = smem_address(smem + at.slot * BYTES);
        const uint32_t x = w + W_BYTES + threadIdx.x / 128 * (GROUP_ROWS * DEPTH * 2);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) {
            wgmma<T, BAND>::ss(d, wgmma_operand(x + i * 32, 0), wgmma_operand(w + i * 32, 0),
                               at.box > 0 || i > 0);
        }
        wgmma_commit();
    }

    /* Called after issuing the wgmmas of a box; waits for those of the previous box. */
    __device__ __forceinline__ void finish()
    {
        if (at.box > 0) {
            wgmma_wait<1>();
            release();
        }
        last = at.slot;
        at.next_box();
    }

    __device__ __forceinline__ void run()
    {
        const int32_t step = (int32_t)gridDim.x / CLUSTER;
        to_release = (p.n_items - at.band + step - 1) / step * p.n_boxes - STAGES;
#pragma unroll 1
        for (; at.band < p.n_items; at.next_band()) {
#pragma unroll 1
            while (kept.left > 0) { // at most STEPS, and an item has as many boxes
                issue();
                kept.store_some(p);
                finish();
            }
#pragma unroll 1
            while (at.box < p.n_boxes) {
                issue();
                finish();
            }
            wgmma_wait<0>();
            release();
#pragma unroll
            for (int i = 0; i < BAND / 2; i++) {
                asm volatile("" : "+f"(d[i])::"memory");
            }
            const struct batch_item item = item_at<TILED>(p, at.band);
            kept.take(d, item.row + row0, item.band * (BAND / 2) + (threadIdx.x & 3) * 2);
        }
#pragma unroll 1
        while (kept.left > 0) {
            kept.store_some(p);
        }
    }
};

#endif // HAVE_SM90A

/* TILED: there is more than one tile. */
template <typename T, bool TILED>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_batch_kernel(const __grid_constant__ struct batch_params p,
                      const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    extern __shared__ char smem_raw[];
    __shared__ batch_ring ring;
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    const int tid = threadIdx.x, rank = (int)cluster_rank();
    if (tid == 0) {
#pragma unroll 1
        for (int i = 0; i < STAGES; i++) {
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
            struct batch_loader<TILED> l = {
                p, &w_map, smem, &ring, rank
            };
            l.template run<false>();
        } else if (tid == GROUPS * 128 + 32) {
            tensor_map_prefetch(&x_map);
            pdl_wait();
            struct batch_loader<TILED> l = {
                p, &x_map, smem, &ring, rank
            };
            l.template run<true>();
        }
        pdl_wait();
    } else {
        registers_more<232>();
        pdl_wait(); // preceding kernels may use y until then
        pdl_trigger();
        const int row0 = rank * TILE_ROWS + (tid >> 5) * 16 + (tid >> 2 & 7);
        struct batch_computer<T, TILED> c = {
            p, smem, &ring, row0
        };
        c.run();
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

static int32_t up(int64_t a, int64_t b)
{
    return (int32_t)((a + b - 1) / b);
}

/* False if many multiprocessors would be idle in the last round or would multiply padding rows;
 * cuBLASLt has finer tiles. A single tile spends most of its time reading weights. */
static bool is_full(const struct gemm_args *a, int32_t n_sms)
{
    const int32_t at_once = n_sms / CLUSTER, n_tiles = up(a->n_rows, CLUSTER_ROWS);
    const int32_t rounds = up((int64_t)n_tiles * up(a->n_out, BAND), at_once);
    const int64_t made = (int64_t)rounds * at_once * BAND;
    return n_tiles == 1 ? a->n_rows >= MIN_ROWS && made * 4 <= (int64_t)a->n_out * 5
                        : made * CLUSTER_ROWS * 23 <= (int64_t)a->n_rows * a->n_out * 25;
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

template <typename T, bool TILED>
static cudaError_t launch_batch(cudaStream_t stream, const struct gemm_args *a,
                                const struct batch_params &p, int32_t n_sms)
{
    const auto kernel = gemm_batch_kernel<T, TILED>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         SMEM_BYTES); // set at every launch, because each
                                                      // rank has its own device
    CUtensorMap w_map, x_map;
    if (e == cudaSuccess) {
        e = product_maps(a, BAND / 2, TILE_ROWS, &w_map, &x_map);
    }
    if (e != cudaSuccess) {
        return e;
    }
    const int32_t n_clusters = up(p.n_items, up(p.n_items, n_sms / CLUSTER));
    return launch_clusters(CLUSTER, kernel, dim3((unsigned)(n_clusters * CLUSTER)), dim3(THREADS),
                           SMEM_BYTES, stream, p, w_map, x_map);
}

extern "C" cudaError_t gemm_batch(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    struct batch_params p = {};
    p.y = a->y;
    p.n_rows = a->n_rows;
    p.n_out = a->n_out / 2;
    p.y_stride = a->y_stride;
    p.n_boxes = up(a->n_in, DEPTH);
    p.n_bands = up(p.n_out, BAND / 2);
    p.n_tiles = up(a->n_rows, CLUSTER_ROWS);
    p.n_items = p.n_bands * p.n_tiles;
    const bool bf16 = a->w_dtype == DT_BF16;
    if (p.n_tiles > 1) {
        return bf16 ? launch_batch<bf16_t, true>(stream, a, p, n_sms)
                    : launch_batch<f16_t, true>(stream, a, p, n_sms);
    }
    return bf16 ? launch_batch<bf16_t, false>(stream, a, p, n_sms)
                : launch_batch<f16_t, false>(stream, a, p, n_sms);
}
