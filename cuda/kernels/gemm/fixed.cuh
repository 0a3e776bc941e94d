// SPDX-License-Identifier: Apache-2.0
/* Shared by the kernels of many rows (batch.cu, fixed.cu, fixed_many.cuh): how a product is divided
 * into items, the side that loads, and the roles of a block's threads.
 * Thread: device code; the host half the rank's owner. */
#ifndef SLUICE_CUDA_GEMM_FIXED_CUH
#define SLUICE_CUDA_GEMM_FIXED_CUH

#include "cuda/gemm.h"
#include "cuda/kernels/device/bands.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/maps.cuh"

enum {
    DEPTH = 64, // inputs of K per stage, or 128 codes
    CLUSTER = 2,
    TILE_ROWS = 128, // per block
    GROUP_ROWS = 64, // per warpgroup
    GROUPS = TILE_ROWS / GROUP_ROWS,
    CLUSTER_ROWS = CLUSTER * TILE_ROWS,
    THREADS = (GROUPS + 1) * 128,
    X_BYTES = TILE_ROWS * DEPTH * 2,
    TOGETHER = 8, // tiles per group: repeated reads of their weights hit the L2 cache
};

struct fixed_params {
    void *y;
    const float *bias;
    const float *x_scales, *w_scales; // of codes
    int64_t part_stride;              // elements between the parts that are left as sums
    int32_t n_rows, n_out, y_stride;  // size of y
    int32_t part_boxes, last_boxes;   // boxes of DEPTH in a part, and in the last one
    int32_t n_parts;                  // per item
    int32_t band_rows, half_rows;     // rows of W from one band to the next, and between the halves
                                      // of a band, which two blocks load
    int32_t n_bands, n_tiles, n_items;
    bool in_16_bytes; // y may be stored in 16 bytes
};

struct fixed_item {
    int32_t row, band, part; // row: the tile's first row
};

#if HAVE_SM90A

/* S is a kernel's shape: BAND, STAGES, bytes of W per stage (W_BYTES) and of both operands (BYTES).
 * The "bands" of band_walk are items here. */
template <typename S> using fixed_ring = band_ring<S::STAGES>;
template <typename S> using fixed_walk = band_walk<CLUSTER, S::STAGES>;

__device__ __forceinline__ struct fixed_item item_at(const struct fixed_params &p, int32_t i)
{
    const int32_t per_part = p.n_bands * p.n_tiles, part = i / per_part;
    i -= part * per_part;
    const int32_t per_group = p.n_bands * TOGETHER, first = i / per_group * TOGETHER;
    const int32_t n = min(TOGETHER, p.n_tiles - first);
    i %= per_group;
    return {(first + i % n) * CLUSTER_ROWS, i / n, part};
}

__device__ __forceinline__ int32_t boxes_of(const struct fixed_params &p)
{
    return (p.n_parts - 1) * p.part_boxes + p.last_boxes;
}

template <typename S> struct fixed_loader {
    const struct fixed_params &p;
    const CUtensorMap *map;
    char *smem;
    fixed_ring<S> *ring;
    int32_t rank;       // rank of the block in its cluster
    int32_t row, first; // row of x or of W, and the item's first box

    template <bool IS_X>
    __device__ __forceinline__ void load(const fixed_walk<S> &at, uint64_t policy)
    {
        if (at.box == 0) {
            const struct fixed_item item = item_at(p, at.band);
            row = IS_X ? item.row + rank * TILE_ROWS : item.band * p.band_rows + rank * p.half_rows;
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
        load_bands<CLUSTER>(ring, p.n_items, boxes_of(p),
                            [&](const fixed_walk<S> &at) { load<IS_X>(at, policy); });
    }
};

/* Tells the loaders of both blocks that a stage is free, unless nobody will refill it: an arrival
 * must not reach a block that has exited. to_release: boxes whose stage will be refilled. */
template <typename S>
__device__ __forceinline__ void release_stage(fixed_ring<S> *ring, int stage, int32_t *to_release)
{
    if ((*to_release)-- > 0 && (threadIdx.x & 31) < CLUSTER) {
        barrier_arrive_at(&ring->empty[stage], threadIdx.x & 31);
    }
}

/* Issues a warpgroup's products of a box. is_first: they begin a part. */
template <typename T, typename S>
__device__ __forceinline__ void issue_box(char *smem, fixed_ring<S> *ring, const fixed_walk<S> &at,
                                          bool is_first, float (&d)[S::BAND / 2])
{
    barrier_wait(&ring->full_x[at.slot], at.parity);
    barrier_wait(&ring->full_w[at.slot], at.parity);
    const uint32_t w = smem_address(smem + at.slot * S::BYTES);
    const uint32_t x = w + S::W_BYTES + threadIdx.x / 128 * (GROUP_ROWS * DEPTH * 2);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++) {
        wgmma<T, S::BAND>::ss(d, wgmma_operand(x + i * 32, 0), wgmma_operand(w + i * 32, 0),
                              !is_first || i > 0);
    }
    wgmma_commit();
}

/* What a computing warpgroup of every kernel has. Its results are in the layout of
 * device/wgmma.cuh. */
template <typename S> struct fixed_group {
    const struct fixed_params &p;
    char *smem;
    fixed_ring<S> *ring;
    int row0; // the first of this thread's two rows in the tile
    fixed_walk<S> at;
    int last;             // ring slot of the previous box, which the tensor cores may still read
    int32_t to_release;   // boxes whose stage will be refilled
    float d[S::BAND / 2]; // the current part's sums

    __device__ __forceinline__ void next_box()
    {
        last = at.slot;
        at.next_box();
    }

    /* Waits for the wgmmas of the previous box; those of one box are in flight. */
    __device__ __forceinline__ void wait_for_last()
    {
        wgmma_wait<1>();
        release_stage<S>(ring, last, &to_release);
    }

    /* Waits for the wgmmas of the last box of a part; d is complete. */
    __device__ __forceinline__ void wait_for_all()
    {
        wgmma_wait<0>();
        release_stage<S>(ring, last, &to_release);
        wgmma_settle(d);
    }
};

/* The body of a kernel: two threads load, and two warpgroups of C, a fixed_group, compute. */
template <typename S, typename C>
__device__ __forceinline__ void fixed_block(const struct fixed_params &p, const CUtensorMap &w_map,
                                            const CUtensorMap &x_map)
{
    extern __shared__ char smem_raw[];
    __shared__ fixed_ring<S> ring;
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    const int tid = threadIdx.x, rank = (int)cluster_rank();
    if (tid == 0) {
#pragma unroll 1
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&ring.full_w[i], 1);
            barrier_init(&ring.full_x[i], 1);
            barrier_init(&ring.empty[i], CLUSTER * GROUPS * 4);
        }
        barrier_init_done();
    }
    cluster_sync();
    if (tid >= GROUPS * 128) {
        registers_fewer<24>();
        if (tid == GROUPS * 128) {
            fixed_loader<S> l = {p, &w_map, smem, &ring, rank};
            l.template run<false>();
        } else if (tid == GROUPS * 128 + 32) {
            tensor_map_prefetch(&x_map);
            pdl_wait();
            fixed_loader<S> l = {p, &x_map, smem, &ring, rank};
            l.template run<true>();
        }
        pdl_wait();
    } else {
        registers_more<240>();
        pdl_wait(); // preceding kernels may use y until then
        pdl_trigger();
        C c = {{p, smem, &ring, rank * TILE_ROWS + (tid >> 5) * 16 + (tid >> 2 & 7)}};
        c.run();
    }
}

#endif // HAVE_SM90A

/* ---- host ---------------------------------------------------------------------------------- */

static inline int32_t up(int64_t a, int64_t b)
{
    return (int32_t)((a + b - 1) / b);
}

/* Launches a kernel of shape S. p.n_items: items per tile and band. A gated product's bands have
 * half of their rows in the gate and half in the up matrix. */
template <typename S, typename K>
static cudaError_t launch_fixed(K kernel, cudaStream_t stream, const struct gemm_args *a,
                                struct fixed_params p, int32_t n_sms)
{
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         S::SMEM_BYTES); // set at every launch, because each
                                                         // rank has its own device
    CUtensorMap w_map, x_map;
    if (e == cudaSuccess) {
        e = product_maps(a, S::BAND / 2, TILE_ROWS, &w_map, &x_map);
    }
    if (e != cudaSuccess) {
        return e;
    }
    p.band_rows = a->gated ? S::BAND / 2 : S::BAND;
    p.half_rows = a->gated ? a->n_out / 2 : S::BAND / 2;
    p.n_bands = up(a->n_out, S::BAND);
    p.n_tiles = up(a->n_rows, CLUSTER_ROWS);
    p.n_items *= p.n_bands * p.n_tiles;
    const int32_t n_clusters = up(p.n_items, up(p.n_items, n_sms / CLUSTER));
    return launch_clusters(CLUSTER, kernel, dim3((unsigned)(n_clusters * CLUSTER)), dim3(THREADS),
                           S::SMEM_BYTES, stream, p, w_map, x_map);
}

/* False if many multiprocessors would be idle in the last round or would multiply padding rows;
 * cuBLASLt has finer tiles. */
static inline bool rounds_are_full(const struct gemm_args *a, int32_t band, int32_t n_sms)
{
    const int32_t at_once = n_sms / CLUSTER, n_tiles = up(a->n_rows, CLUSTER_ROWS);
    const int64_t rounds = up((int64_t)n_tiles * up(a->n_out, band), at_once);
    return rounds * at_once * band * CLUSTER_ROWS * 23 <= (int64_t)a->n_rows * a->n_out * 25;
}

/* fixed_many.cu: complete products in the dtype of x. band: 256, or, if K has several parts, also
 * 96, 128, 160 or 192. */
cudaError_t fixed_many(cudaStream_t stream, const struct gemm_args *a, const struct fixed_params &p,
                       int32_t band, int32_t n_sms);

#endif
