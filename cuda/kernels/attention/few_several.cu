// SPDX-License-Identifier: Apache-2.0
/* few.cu for few sequences of up to eight new rows each, such as drafts to verify, chains or trees:
 * rope, the store of the new keys and values, and attention in one launch.
 *
 * Rows that belong to a sequence read its keys once for all of them: the columns of the products
 * are pairs of a row and a query head of the KV head's group, the heads of a row side by side. A
 * unit is one or two tiles of eight columns, and a cluster processes it as in few.cu.
 *
 * Each warp of a block makes one tile of the new rows (queries, keys or values: normalised and
 * rotated), from which all warps read. The new keys are put into the chunks that contain them, and
 * a row's mask says which of these it sees. One more warp fills the rings of all others, since
 * starting the copies would take a warp as long as a third of its arithmetic.
 *
 * Bound by latencies: of the launch, of memory, and of starting the copies. */
#include "cuda/kernels/attention/few_several.cuh"

template <typename T, int DIM, bool NORM, few_turn TURN>
__global__ void __launch_bounds__(several_shape<DIM>::THREADS, 1)
    attention_several_kernel(const __grid_constant__ struct several_params p,
                             const __grid_constant__ CUtensorMap map)
{
#if HAVE_SM90A
    using S = several_shape<DIM>;
    extern __shared__ __align__(1024) char smem[]; // aligned as the swizzle requires
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_blocks = 1 << p.few.log_cluster;
    const bool loads = warp == S::WARPS;
    const int of = loads ? min(lane / 2, S::WARPS - 1) : warp; // whose ring
    uint64_t *bar = (uint64_t *)(smem + S::SLOTS * S::SLOT);
    float *room = (float *)((char *)bar + S::BARRIERS);
    several<T, DIM, NORM, TURN> f(p, &map);
    f.full = bar + 2 + of * S::MOST_SLOTS;
    f.empty = f.full + S::WARPS * S::MOST_SLOTS;
    f.slots = smem + of * S::MOST_SLOTS * S::SLOT;
    f.broken = (uint32_t *)(bar + 1);
    f.tiles = (uint4 *)((char *)room + S::room_bytes(p.few.log_cluster));
    f.n_slots = min((int)S::MOST_SLOTS, S::SLOTS - of * S::MOST_SLOTS);
    f.rank = (int)cluster_rank();
    f.warp = warp;
    f.lane = lane;
    f.worker = of * n_blocks + f.rank;
    f.n_workers = n_blocks * S::WARPS;
    if (!f.find()) { // all blocks of the cluster return
        pdl_wait();
        return;
    }
    if (loads) {
        f.begin_loading();
    } else {
        f.begin();
    }
    if (threadIdx.x == 0) {
        barrier_init(bar, 1);
        barrier_init_done();
        barrier_expect(bar, f.bytes_sent());
    }
    __syncthreads();
    cluster_begun();
    pdl_wait();
    pdl_trigger();
    if (warp <= f.VALUES && !loads) {
        f.make_tile();
    }
    __syncthreads();
    if (loads) {
        f.load_rest();
    } else {
        f.get_queries();
        f.add_chunks();
    }
    __syncwarp();
    cluster_wait();
    if (!loads) {
        f.send(room, bar);
    }
    barrier_wait(bar, 0);
    f.join_all(room, min(f.n_workers, f.n_chunks), (float *)f.tiles);
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

/* The grid of units: parts of a KV head's columns, KV heads, sequences. */
static dim3 units_of(const struct few_pass *few, int32_t n_heads, int32_t n_kv_heads,
                     int32_t head_dim)
{
    const int columns =
        head_dim == 256 ? (int)several_shape<256>::COLUMNS : (int)several_shape<128>::COLUMNS;
    const int n_parts = (few->seq_rows * (n_heads / n_kv_heads) + columns - 1) / columns;
    return dim3((unsigned)n_parts, (unsigned)n_kv_heads, (unsigned)few->n_seqs);
}

static int log_cluster_of(const dim3 &units, int32_t head_dim, int32_t n_sms)
{
    return few_log_cluster((int)(units.x * units.y * units.z), head_dim, n_sms);
}

bool attention_several_takes(const struct rope_store_args *a, const struct few_pass *few,
                             int32_t n_sms)
{
    const dim3 units = units_of(few, a->n_heads, a->n_kv_heads, a->head_dim);
    return log_cluster_of(units, a->head_dim, n_sms) > 0;
}

template <typename T, int DIM, bool NORM, few_turn TURN>
static cudaError_t launch_several(cudaStream_t stream, const struct several_params &p,
                                  const dim3 &units)
{
    using S = several_shape<DIM>;
    const auto kernel = attention_several_kernel<T, DIM, NORM, TURN>;
    const int smem = S::bytes(p.few.log_cluster);
    const unsigned cluster = 1u << p.few.log_cluster;
    const dim3 grid(units.x * cluster, units.y, units.z);
    CUtensorMap map;
    cudaError_t e = // the attribute is per device, and each rank has one device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (e == cudaSuccess) {
        e = few_map(&map, p.few);
    }
    return e != cudaSuccess ? e
                            : launch_clusters(cluster, kernel, grid, dim3(S::THREADS), (size_t)smem,
                                              stream, p, map);
}

template <typename T, bool NORM, few_turn TURN>
static cudaError_t by_dim(cudaStream_t stream, const struct several_params &p, const dim3 &units)
{
    const int dim = p.few.kv.head_dim_k;
    if constexpr (TURN != TURN_NEIGHBOURS) {
        if (dim == 256) {
            return launch_several<T, 256, NORM, TURN>(stream, p, units);
        }
    }
    if constexpr (TURN != TURN_FIRST) {
        return dim == 64 ? launch_several<T, 64, NORM, TURN>(stream, p, units)
                         : launch_several<T, 128, NORM, TURN>(stream, p, units);
    }
    return cudaErrorInvalidValue;
}

template <typename T>
static cudaError_t by_turn(cudaStream_t stream, const struct several_params &p, const dim3 &units,
                           bool norm, few_turn turn)
{
    if (turn == TURN_NEIGHBOURS) {
        return by_dim<T, false, TURN_NEIGHBOURS>(stream, p, units);
    }
    if (turn == TURN_FIRST) {
        return by_dim<T, true, TURN_FIRST>(stream, p, units);
    }
    return norm ? by_dim<T, true, TURN_HALVES>(stream, p, units)
                : by_dim<T, false, TURN_HALVES>(stream, p, units);
}

cudaError_t attention_several(cudaStream_t stream, const struct few_params &of,
                              const struct attention_launch *a, const struct few_pass *few,
                              bool norm, few_turn turn)
{
    const dim3 units = units_of(few, a->n_heads, a->kv.n_kv_heads, a->kv.head_dim_k);
    struct several_params p = {};
    p.few = of;
    p.few.group = a->n_heads / a->kv.n_kv_heads;
    p.few.log_cluster = log_cluster_of(units, a->kv.head_dim_k, a->limits->n_sms);
    p.bounds = {a->window, a->sinks};
    p.seqs = a->pass.seqs;
    p.tree_mask = a->pass.tree_mask;
    p.per_group = 1.0f / (float)p.few.group;
    return a->dtype == DT_BF16 ? by_turn<bf16_t>(stream, p, units, norm, turn)
                               : by_turn<f16_t>(stream, p, units, norm, turn);
}
