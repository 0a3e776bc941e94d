// SPDX-License-Identifier: Apache-2.0
/* few.cu for pages of codes (a quantised KV cache), for so few rows that each unit gets a cluster:
 * rope, the encoding and the store of the new key and value, and attention in one launch.
 *
 * The work is divided as in few.cu, but with twice as many warps per block, because processing a
 * chunk takes longer than loading it. A chunk is a record of 16 keys, which one bulk copy brings
 * into the ring of a warp; the arithmetic on codes is that of codes.cu. The warp with a unit's last
 * chunk encodes the new key and value into their page, and also into the record in its ring, so
 * that attention reads them exactly as they are stored.
 *
 * Bound by launch and memory latency. */
#include "cuda/kernels/attention/few_kv.cuh"

template <enum kv_format F, typename T, int DIM>
__global__ void __launch_bounds__(few_shape<DIM, BY_CLUSTER_OF_CODES>::WARPS * 32, 1)
    attention_few_kv_kernel(const __grid_constant__ struct few_kv_params p)
{
#if HAVE_SM90A
    using S = few_shape<DIM, BY_CLUSTER_OF_CODES>;
    extern __shared__ __align__(1024) char smem[];
    const int warp = threadIdx.x >> 5, n_blocks = 1 << p.few.log_cluster;
    uint64_t *bar = (uint64_t *)(smem + S::WARPS * p.n_slots * p.record_room);
    float *room = (float *)((char *)bar + FEW_KV_BARRIER_BYTES);
    few_kv<F, T, DIM> f = {{p.few, nullptr, p.bounds, bar + 2 + warp * p.n_slots,
                            smem + warp * p.n_slots * p.record_room},
                           p};
    f.fresh = (float *)((char *)room + S::room_bytes(p.few));
    f.rank = (int)cluster_rank();
    f.warp = warp;
    f.lane = threadIdx.x & 31;
    f.worker = warp * n_blocks + f.rank;
    f.n_workers = n_blocks * S::WARPS;
    f.first = (int)blockIdx.x / n_blocks;
    f.step = (int)gridDim.x;
    f.n_units = 1;
    f.start();
    f.enter_unit(0);
    if (!f.begin_cluster(bar)) {
        return;
    }
    pdl_wait();
    pdl_trigger();
    f.load_rows();
    const int n = min(f.n_workers, f.n_chunks);
    f.rotate((f.n_chunks - 1) % f.n_workers == f.worker);
    f.add_chunks();
    __syncwarp();
    cluster_wait();
    f.send(room, bar, n);
    barrier_wait(bar, 0);
    f.join_all(room, n, f.place());
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

template <enum kv_format F, typename T, int DIM>
static cudaError_t launch_few_kv(cudaStream_t stream, const struct few_params &few)
{
    if (few.sums.n > 0) {
        return cudaErrorInvalidValue;
    }
    using S = few_shape<DIM, BY_CLUSTER_OF_CODES>;
    using PLAIN = few_shape<DIM, BY_CLUSTER>;
    struct few_kv_params p = {};
    p.few = few;
    p.record_room = (few.kv.codes.record_bytes + 127) / 128 * 128;
    const int most = PLAIN::WARPS * PLAIN::SLOTS * PLAIN::SLOT / S::WARPS / p.record_room;
    p.n_slots = most < FEW_KV_MAX_SLOTS ? most : (int)FEW_KV_MAX_SLOTS;
    // At least as much as in few.cu, so that no more blocks of the next product fit beside a block
    // of this kernel than beside one of few.cu.
    const int least = PLAIN::bytes(few);
    const int needed = S::WARPS * p.n_slots * p.record_room + FEW_KV_BARRIER_BYTES +
                       S::room_bytes(few) + 2 * DIM * (int)sizeof(float);
    const int smem = needed > least ? needed : least, cluster = 1 << few.log_cluster;
    const auto kernel = attention_few_kv_kernel<F, T, DIM>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return e != cudaSuccess
               ? e
               : launch_clusters((unsigned)cluster, kernel, dim3((unsigned)(few.n_units * cluster)),
                                 dim3(S::WARPS * 32), (size_t)smem, stream, p);
}

template <enum kv_format F>
static cudaError_t by_shape(cudaStream_t stream, const struct few_params &p)
{
    const bool is_bf16 = p.kv.dtype == DT_BF16;
    if (p.kv.head_dim_k == 64) {
        return is_bf16 ? launch_few_kv<F, bf16_t, 64>(stream, p)
                       : launch_few_kv<F, f16_t, 64>(stream, p);
    }
    return is_bf16 ? launch_few_kv<F, bf16_t, 128>(stream, p)
                   : launch_few_kv<F, f16_t, 128>(stream, p);
}

cudaError_t attention_few_kv(cudaStream_t stream, const struct few_params &p)
{
    switch (p.kv.codes.format) {
    case KV_FP8: return by_shape<KV_FP8>(stream, p);
    case KV_INT4: return by_shape<KV_INT4>(stream, p);
    default: return by_shape<KV_INT8>(stream, p);
    }
}
