// SPDX-License-Identifier: Apache-2.0
/* Attention on Hopper for passes with prompts. It differs from attention/sm90.cu in three ways. The
 * arithmetic is that of prompt.cuh. One warp per computing warpgroup loads Q and the unit's
 * description while the previous unit is still being finished. And there is no narrow mode: the
 * kernel is for passes in which some tile has more than GROUP_ROWS packed rows. The results have
 * the same bits as those of attention/sm90.cu.
 *
 * Grid, block, shared memory and ring are those of attention/sm90.cu; in deterministic mode the
 * ring is shorter. Bound by the tensor cores and by the exponentials of the softmax, which overlap.
 */
#include "cuda/kernels/attention/load.cuh"
#include "cuda/kernels/attention/prompt.cuh"

#if HAVE_SM90A

/* Calls work(unit) for each unit of this block. */
template <int KEYS, typename F>
__device__ __forceinline__ void for_units(const struct attention_params &p,
                                          const struct attention_plan_head &head, F work)
{
    int n_sub;
    const int n_units = units_of(p, head, ATTENTION_TILE_ROWS, &n_sub);
    const struct unit_rounds rounds(head, n_units, (int)gridDim.x, (int)blockIdx.x);
#pragma unroll 1
    for (int k = 0; k < rounds.n_rounds; k++) {
        const int index = rounds.index(k);
        if (index < n_units) {
            const struct attention_unit u =
                unit_at(p, head.items_offset, index, n_sub, ATTENTION_TILE_ROWS, KEYS);
            if (u.n_packed > 0) {
                work(u);
            }
        }
    }
}

/* The units of a computing warpgroup, which its loader of Q notes down. */
template <typename C>
__device__ __forceinline__ void compute_units(C &c, uint64_t *q_full,
                                              const struct attention_unit *note)
{
    uint32_t parity = 0;
#pragma unroll 1
    for (;;) {
        barrier_wait(q_full, parity);
        parity ^= 1;
        const struct attention_unit u = *note;
        if (u.n_packed <= 0) {
            break;
        }
        c.unit(u);
    }
}

#endif // HAVE_SM90A

template <typename T, int NB, bool FOLDS>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    attention_prompt_kernel(const __grid_constant__ struct attention_params p,
                            const __grid_constant__ struct attention_maps map)
{
#if HAVE_SM90A
    using S = shape<NB>;
    extern __shared__ char smem_raw[];
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    char *slots = smem + 2 * S::Q_BYTES;
    uint64_t *full = (uint64_t *)(slots + S::SLOTS * S::SLOT_BYTES), *empty = full + S::SLOTS;
    uint64_t *q_full = empty + S::SLOTS, *q_empty = q_full + 2;
    struct attention_unit *note = (struct attention_unit *)(q_empty + 2);
    if (threadIdx.x == 0) {
        ring_init<S>(full, empty);
        for (int i = 0; i < 2; i++) {
            barrier_init(&q_full[i], 1);
            barrier_init(&q_empty[i], 4); // the warps of one computing warpgroup
        }
        barrier_init_done();
        maps_prefetch(map);
    }
    __syncthreads();
    /* The plan, the tables and older keys were written before the preceding kernel started, so they
     * are read before the wait for it. That kernel writes the queries and the new keys of the pass;
     * if there are tree paths to copy (paths.cu), it also writes the tables of the paths. */
    const struct attention_plan_head head = *plan_head(p.plan);
    /* Warp 0 loads K and V. Warps 2 and 3 each load Q for one computing warpgroup. */
    const int group = (int)threadIdx.x / WARPGROUP - 1, warp = (int)threadIdx.x / 32;
    // The computing warpgroup that this thread belongs to or serves.
    const int side = group >= 0 ? group : warp & 1;
    const struct ring ring = {FOLDS ? S::SLOTS - FOLD_SLOTS : S::SLOTS};
    char *q_tile = smem + side * S::Q_BYTES;
    q_full += side;
    q_empty += side;
    note += side;
    if (group < 0) {
        registers_fewer<40>();
        if (warp >= 2) {
            q_loader<T, NB> l = {p, &map, q_tile, q_full, q_empty, note, side * GROUP_ROWS};
            for_units<S::KEYS>(p, head, [&](const struct attention_unit &u) { l.unit(u); });
            l.end();
        } else if (warp == 0) {
            kv_loader<NB> l = {
                p, &map, slots, full, empty, ring, policy_evict_first(), policy_normal()};
            if (head.n_paths > 0 || p.is_expanded) {
                pdl_wait();
            }
            for_units<S::KEYS>(p, head, [&](const struct attention_unit &u) { l.unit(u); });
        }
        pdl_wait();
        pdl_trigger();
    } else {
        registers_more<232>();
        pdl_wait();
        pdl_trigger();
        prompt_computer<T, NB, FOLDS> c = {
            p, slots, q_tile, full, empty, q_empty, ring, group, (int)threadIdx.x % WARPGROUP};
        if (c.TURNS && group == 1) {
            c.pass_turn_first();
        }
        compute_units(c, q_full, note);
    }
#endif
}

template <typename T>
static cudaError_t launch_prompt(cudaStream_t stream, const struct attention_params &p,
                                 const struct attention_maps &map, int n_sms)
{
    if (!p.may_be_thin) { // deterministic: items may have several runs
        return launch_block<2>(stream, attention_prompt_kernel<T, 2, true>, p, map, n_sms);
    }
    switch ((p.kv.head_dim_k + 63) / 64) {
    case 2: return launch_block<2>(stream, attention_prompt_kernel<T, 2, false>, p, map, n_sms);
    case 3: return launch_block<3>(stream, attention_prompt_kernel<T, 3, false>, p, map, n_sms);
    case 4: return launch_block<4>(stream, attention_prompt_kernel<T, 4, false>, p, map, n_sms);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t attention_prompt(cudaStream_t stream, enum dtype dtype,
                             const struct attention_params &p, const struct attention_maps &map,
                             int n_sms)
{
    return dtype == DT_BF16 ? launch_prompt<bf16_t>(stream, p, map, n_sms)
                            : launch_prompt<f16_t>(stream, p, map, n_sms);
}
