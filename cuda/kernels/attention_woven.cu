/* Attention for Hopper, for passes of prompts: attention_sm90.cu with two differences. Q comes
 * through a warp for each computing warpgroup, while the unit before is still being finished; and
 * the arithmetic is attention_woven.cuh's. It works off every kind of pass, but has been measured
 * with prompts only, so others keep to attention_sm90.cu; a row's sums have the same order in both.
 *
 * Grid, block, shared memory and the ring are those of attention_sm90.cu. */
#include "cuda/kernels/attention_load.cuh"
#include "cuda/kernels/attention_thin.cuh"
#include "cuda/kernels/attention_woven.cuh"

#if HAVE_SM90A

/* Calls work(unit) for each unit of one of n workers. */
template <int KEYS, typename F>
__device__ __forceinline__ void for_units(const struct attention_params &p,
                                          const struct attention_plan_head &head, int n_workers,
                                          int worker, F work)
{
    int n_sub;
    const int n_units = units_of(p, head, ATTENTION_TILE_ROWS, &n_sub);
#pragma unroll 1
    for (int k = 0; k * n_workers < n_units; k++) {
        const int index = unit_index(k, n_workers, worker);
        if (index < n_units) {
            const struct attention_unit u =
                unit_at(p, head.items_offset, index, n_sub, ATTENTION_TILE_ROWS, KEYS);
            if (u.n_packed > 0) {
                work(u);
            }
        }
    }
}

#endif // HAVE_SM90A

template <typename T, int NB>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    attention_woven_kernel(const __grid_constant__ struct attention_params p,
                           const __grid_constant__ CUtensorMap map)
{
#if HAVE_SM90A
    using S = shape<NB>;
    extern __shared__ char smem_raw[];
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    char *slots = smem + 2 * S::Q_BYTES;
    uint64_t *full = (uint64_t *)(slots + S::SLOTS * S::SLOT_BYTES), *empty = full + S::SLOTS;
    uint64_t *q_full = empty + S::SLOTS, *q_empty = q_full + 2;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::SLOTS; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], 8); // the computers' warps
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(&q_full[i], 1);
            barrier_init(&q_empty[i], 4); // a computer's warps
        }
        barrier_init_done();
        tensor_map_prefetch(&map);
    }
    __syncthreads();
    /* The plan, the tables and older keys were there before the kernel ahead began, so they are
     * read before the wait for it: its own are the queries and the pass's new keys. */
    const struct attention_plan_head head = *plan_head(p.plan);
    int n_sub;
    const int n_units = units_of(p, head, ATTENTION_TILE_ROWS, &n_sub);
    /* Units that do not fill the machine come sooner with the whole of a block. */
    const int packed = head.tile_rows * p.group;
    const bool busy = n_units > (int)gridDim.x, is_short = head.mean_keys <= NARROW_KEYS;
    const bool thin = S::SLOTS >= 6 && p.may_be_thin && packed <= THIN_ROWS && busy;
    const bool narrow = thin || (S::SLOTS >= 6 && packed <= GROUP_ROWS && busy && is_short);
    /* Warps 0 and 1 load K and V (wide: only the first), 2 and 3 a computing warpgroup's Q each. */
    const int group = (int)threadIdx.x / WARPGROUP - 1, warp = (int)threadIdx.x / 32;
    const int side = group >= 0 ? group : warp & 1; // which computing warpgroup this is, or serves
    /* Which worker this thread belongs to, of how many, and its part of the ring. */
    const int half = narrow ? side : 0;
    const int n_workers = (int)gridDim.x * (narrow ? 2 : 1);
    const int worker = half * (int)gridDim.x + (int)blockIdx.x;
    const struct ring ring = {narrow ? S::SLOTS / 2 : S::SLOTS};
    char *q_tile = smem + side * S::Q_BYTES;
    const int first = narrow ? 0 : side * GROUP_ROWS;
    slots += half * (S::SLOTS / 2) * S::SLOT_BYTES;
    full += half * (S::SLOTS / 2);
    empty += half * (S::SLOTS / 2);
    if (group < 0) {
        registers_fewer<40>();
        if (warp >= 2) {
            pdl_wait();
            if (!thin) {
                q_loader<T, NB> l = {p, q_tile, q_full + side, q_empty + side, first};
                for_units<S::KEYS>(p, head, n_workers, worker,
                                   [&](const struct attention_unit &u) { l.unit(u); });
            }
        } else if (warp == 0 || narrow) {
            kv_loader<NB> l = {
                p, &map, slots, full, empty, ring, policy_evict_first(), policy_normal()};
            for_units<S::KEYS>(p, head, n_workers, worker,
                               [&](const struct attention_unit &u) { l.unit(u); });
        }
        pdl_wait();
        pdl_trigger();
    } else {
        registers_more<232>();
        pdl_wait();
        pdl_trigger();
        const int tid = (int)threadIdx.x % WARPGROUP;
        if (thin) {
            thin_computer<T, NB> c = {p, slots, q_tile, full, empty, ring, group, tid};
            for_units<S::KEYS>(p, head, n_workers, worker,
                               [&](const struct attention_unit &u) { c.unit(u); });
        } else {
            woven_computer<T, NB> c = {p,     slots,         q_tile,         full,
                                       empty, q_full + side, q_empty + side, ring,
                                       group, first,         narrow ? 2 : 1, tid};
            for_units<S::KEYS>(p, head, n_workers, worker,
                               [&](const struct attention_unit &u) { c.unit(u); });
        }
    }
#endif
}

template <typename T>
static cudaError_t launch_woven(cudaStream_t stream, const struct attention_params &p,
                                const CUtensorMap &map, int n_sms)
{
    return launch_block<2>(stream, attention_woven_kernel<T, 2>, p, map, n_sms);
}

cudaError_t attention_woven(cudaStream_t stream, enum dtype dtype, const struct attention_params &p,
                            const CUtensorMap &map, int n_sms)
{
    return dtype == DT_BF16 ? launch_woven<bf16_t>(stream, p, map, n_sms)
                            : launch_woven<f16_t>(stream, p, map, n_sms);
}
