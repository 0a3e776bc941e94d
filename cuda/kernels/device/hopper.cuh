// SPDX-License-Identifier: Apache-2.0
/* Thin wrappers for Hopper's asynchronous features: mbarriers, bulk tensor copies, wgmma fences and
 * descriptors, register reallocation; and tensor maps on the host. The device half is empty below
 * sm_90.
 * Thread: device code; the host half any. */
#ifndef SLUICE_CUDA_DEVICE_HOPPER_CUH
#define SLUICE_CUDA_DEVICE_HOPPER_CUH

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAVE_SM90A 1
#else
#define HAVE_SM90A 0
#endif

/* ---- host: tensor maps --------------------------------------------------------------------- */

/* An array of up to 3 dimensions, of which the first is contiguous, to be read in boxes. A box is
 * stored in shared memory as rows of 128 bytes with the 128-byte swizzle, so box[0] is 64 16-bit or
 * 128 8-bit elements. Elements outside the array are read as zeros. row_bytes: the distance between
 * indices of dimension 1 (and 2). */
static inline cudaError_t tensor_map_of(CUtensorMap *map, const void *base,
                                        CUtensorMapDataType type, uint32_t n_dims,
                                        const cuuint64_t *dims, const cuuint64_t *row_bytes,
                                        const cuuint32_t *box)
{
    typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                  const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                  const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static const encode_fn encode = [] {
        void *entry = nullptr;
        cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                             cudaEnableDefault, &found) != cudaSuccess) {
            return (encode_fn) nullptr;
        }
        return (encode_fn)entry;
    }();
    if (encode == nullptr) {
        return cudaErrorNotSupported;
    }
    const cuuint32_t steps[3] = {1, 1, 1};
    const CUresult r = encode(map, type, n_dims, const_cast<void *>(base), dims, row_bytes, box,
                              steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_64B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* The same for bf16 or fp16. */
static inline cudaError_t tensor_map(CUtensorMap *map, const void *base, bool is_bf16,
                                     uint32_t n_dims, const cuuint64_t *dims,
                                     const cuuint64_t *row_bytes, const cuuint32_t *box)
{
    return tensor_map_of(
        map, base, is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        n_dims, dims, row_bytes, box);
}

/* A row-major matrix, read in boxes of 64 columns by box_rows. */
static inline cudaError_t tensor_map_2d(CUtensorMap *map, const void *base, bool is_bf16,
                                        uint64_t n_cols, uint64_t n_rows, uint64_t row_bytes,
                                        uint32_t box_rows)
{
    const cuuint64_t dims[2] = {n_cols, n_rows}, strides[1] = {row_bytes};
    const cuuint32_t box[2] = {64, box_rows};
    return tensor_map(map, base, is_bf16, 2, dims, strides, box);
}

/* The same for bytes, read in boxes of 128 columns. */
static inline cudaError_t tensor_map_bytes(CUtensorMap *map, const void *base, uint64_t n_cols,
                                           uint64_t n_rows, uint64_t row_bytes, uint32_t box_rows)
{
    const cuuint64_t dims[2] = {n_cols, n_rows}, strides[1] = {row_bytes};
    const cuuint32_t box[2] = {128, box_rows};
    return tensor_map_of(map, base, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, dims, strides, box);
}

/* ---- device -------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

#if HAVE_SM90A

__device__ __forceinline__ void barrier_init(uint64_t *bar, int n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(bar)),
                 "r"(n_arrivals));
}

/* Makes initialised barriers visible to asynchronous copies (TMA). */
__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t *bar, uint32_t n_bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(bar)),
                 "r"(n_bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t *bar, int n_arrivals = 1)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(bar)),
                 "r"(n_arrivals)
                 : "memory");
}

/* Arrives at the same barrier in block `rank` of the cluster. */
__device__ __forceinline__ void barrier_arrive_at(uint64_t *bar, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(smem_address(bar)),
                 "r"(rank)
                 : "memory");
}

/* A barrier of all threads of the cluster. Warps whose threads have diverged may call it. */
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::
                     : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The address of the same variable in block `block` of the cluster. */
__device__ __forceinline__ uint32_t address_in(const void *shared, uint32_t block)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(smem_address(shared)), "r"(block));
    return there;
}

/* Stores two values in another block of the cluster, whose barrier counts the bytes. Both addresses
 * come from address_in. */
__device__ __forceinline__ void store_in(uint32_t to, uint32_t bar, float a, float b)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
                 "[%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(a), "f"(b), "r"(bar)
                 : "memory");
}

/* Called by all threads: announces that this block has started and its barriers exist. cluster_wait
 * returns once all blocks of the cluster have announced this. It does not order data. */
__device__ __forceinline__ void cluster_begun()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t *bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni finished;\n"
                 "bra.uni again;\n"
                 "finished:\n"
                 "}\n" ::"r"(smem_address(bar)),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void tensor_map_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"((uint64_t)map) : "memory");
}

/* This thread copies 16 bytes, or writes zeros if n_bytes is 0. wgmma sees them after
 * fence_async(). */
__device__ __forceinline__ void copy_async(void *to, const void *from, int n_bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(to)), "l"(from),
                 "r"(n_bytes)
                 : "memory");
}

/* Groups of this thread's copies: commit closes a group; wait<N> waits until at most the last N
 * groups are in flight. */
__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Loads one box at (column, row) into shared memory; `bar` counts its bytes. */
__device__ __forceinline__ void tensor_load(void *to, const CUtensorMap *map, uint64_t *bar,
                                            int column, int row, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(smem_address(to)),
                 "l"((uint64_t)map), "r"(smem_address(bar)), "r"(column), "r"(row), "l"(policy)
                 : "memory");
}

/* Loads n_bytes contiguous bytes (a multiple of 16); `bar` counts them. */
__device__ __forceinline__ void bulk_load(void *to, const void *from, uint32_t n_bytes,
                                          uint64_t *bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(smem_address(to)),
                 "l"(from), "r"(n_bytes), "r"(smem_address(bar)), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void tensor_load_3d(void *to, const CUtensorMap *map, uint64_t *bar,
                                               int column, int row, int plane, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem_address(to)),
                 "l"((uint64_t)map), "r"(smem_address(bar)), "r"(column), "r"(row), "r"(plane),
                 "l"(policy)
                 : "memory");
}

/* Loads one box into all blocks of the cluster that are in `mask`, at the same address in each. In
 * each of them the barrier at the same address counts the bytes. */
__device__ __forceinline__ void tensor_load_multicast(void *to, const CUtensorMap *map,
                                                      uint64_t *bar, int column, int row,
                                                      uint16_t mask, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(
                     smem_address(to)),
                 "l"((uint64_t)map), "r"(smem_address(bar)), "r"(column), "r"(row), "h"(mask),
                 "l"(policy)
                 : "memory");
}

/* Prefetches the box into the L2 cache. */
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap *map, int column, int row)
{
    asm volatile(
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"((uint64_t)map),
        "r"(column), "r"(row)
        : "memory");
}

__device__ __forceinline__ uint64_t policy_evict_first()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ uint64_t policy_evict_last()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ uint64_t policy_normal()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Makes this thread's ordinary writes to shared memory visible to later reads by wgmma and by
 * asynchronous copies (TMA), once a barrier has synchronised the threads. */
__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A barrier among n_threads threads of the block. Ids are 1 to 15. */
template <int ID_BASE = 0> __device__ __forceinline__ void named_barrier(int id, int n_threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id + ID_BASE), "r"(n_threads) : "memory");
}

/* Arrives at the barrier without waiting for the others. */
__device__ __forceinline__ void named_barrier_arrive(int id, int n_threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

template <int N> __device__ __forceinline__ void registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void registers_fewer()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* The descriptor of an operand with the 128-byte swizzle. K-major (rows along K, 64 elements wide):
 * `next` is unused. MN-major (one row per k, with 64 columns of N): `next` is the distance to the
 * next 64 columns. Rows are 128 bytes apart; `groups` is the distance between groups of 8 rows. */
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t address, uint32_t next,
                                                  uint32_t groups = 1024)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)((next & 0x3ffff) >> 4) << 16 |
           (uint64_t)(groups >> 4) << 32 | (uint64_t)1 << 62;
}

/* Advances the operand by n_bytes. Shared memory is so small that no carry leaves the address
 * field. */
__device__ __forceinline__ uint64_t wgmma_advance(uint64_t operand, uint32_t n_bytes)
{
    return (operand & 0xffffffff00000000ull) | (uint32_t)((uint32_t)operand + n_bytes / 16);
}

/* Copies 16 bytes to shared memory, or writes zeros; complete when copies_wait returns. */
__device__ __forceinline__ void copy_16(void *to, const void *from, bool is_real)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(to)), "l"(from),
                 "r"(is_real ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* The offset of 16-byte chunk `chunk` of row `row` in a block of 64 columns with the 128-byte
 * swizzle. */
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t chunk)
{
    return row * 128 + ((chunk ^ (row & 7)) << 4);
}

#endif // HAVE_SM90A
#endif
