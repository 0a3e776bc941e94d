// SPDX-License-Identifier: Apache-2.0
/* Attention for Hopper: wgmma on tiles that the bulk copy engine loads.
 *
 * Grid: one block per multiprocessor, fixed. Units (item x KV head) are dealt out longest first in
 * alternating direction, so every block can compute its own list. Block: three warpgroups. In the
 * first, one warp loads; the other two warpgroups compute, each for 64 of a unit's up to 128 packed
 * rows. A pass of short units with at most 64 packed rows (decoding) runs *narrow*: each computing
 * warpgroup has its own units, its own loading warp and half of the ring, so that the arithmetic of
 * one hides the waits of the other. The order of a row's sums, and hence its bits, is the same in
 * both modes. With at most 8 packed rows, and if equal bits are not required, a narrow pass is
 * *thin*: see thin.cuh.
 *
 * Shared memory: Q (two warpgroups x 64 rows), then a ring of slots, each with one tile of K or V
 * (KEYS rows), as blocks of 64 columns in rows of 128 bytes with the 128-byte swizzle. The loader
 * runs ahead across unit borders, so that memory never waits for arithmetic. The order in the ring
 * is K0 K1 V0 K2 V1 ...: the tensor cores compute the scores of tile t + 1 while the values of tile
 * t are summed.
 *
 * Scores of keys that a row does not see are replaced. Keys after the last visible one may contain
 * anything, including NaN; their rows of V are zeroed in shared memory before use.
 *
 * Bound by reading K and V for decode rows, and by the tensor cores for prompts. */
#include "cuda/kernels/attention/load.cuh"
#include "cuda/kernels/attention/thin.cuh"
#include "cuda/kernels/attention/wide.cuh"

/* The units that one of n_workers computes. */
template <int KEYS> struct worker_units {
    const struct attention_params &p;
    int items_offset, n_sub;
    struct unit_rounds rounds;

    template <typename W> __device__ __forceinline__ void each(W &work) const
    {
        for (int k = 0; k < rounds.n_rounds; k++) {
            const int index = rounds.index(k);
            if (index < rounds.n_units) {
                const struct attention_unit u =
                    unit_at(p, items_offset, index, n_sub, ATTENTION_TILE_ROWS, KEYS);
                if (u.n_packed > 0) {
                    work.unit(u);
                }
            }
        }
    }
};

#if HAVE_SM90A

/* Makes a block's barriers, by one thread, and fetches the tensor maps. */
template <typename S>
__device__ __forceinline__ void init_block(const struct attention_maps &map, uint64_t *full,
                                           uint64_t *empty, uint64_t *q_full)
{
    ring_init<S>(full, empty);
    barrier_init(&q_full[0], 1);
    barrier_init(&q_full[1], 1);
    barrier_init_done();
    maps_prefetch(map);
}

/* The half of the ring that a thread of warpgroup `group` works on in a narrow pass. */
__device__ __forceinline__ int half_of(int group)
{
    return group > 0 ? group - 1 : (int)threadIdx.x / 32;
}

/* What a loading thread does. It waits for the preceding kernel if that writes tables or pages. */
template <int NB, typename U>
__device__ __forceinline__ void load_units(const U &units, kv_loader<NB> l, bool waits)
{
    if (waits) {
        pdl_wait();
    }
    units.each(l);
}

#endif // HAVE_SM90A

template <typename T, int NB>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    attention_sm90_kernel(const __grid_constant__ struct attention_params p,
                          const __grid_constant__ struct attention_maps map)
{
#if HAVE_SM90A
    using S = shape<NB>;
    extern __shared__ char smem_raw[];
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    char *slots = smem + 2 * S::Q_BYTES;
    uint64_t *full = (uint64_t *)(slots + S::SLOTS * S::SLOT_BYTES), *empty = full + S::SLOTS;
    uint64_t *q_full = empty + S::SLOTS;
    if (threadIdx.x == 0) {
        init_block<S>(map, full, empty, q_full);
    }
    __syncthreads();
    /* The plan, the tables and older keys were written before the preceding kernel started, so they
     * are read before the wait for it. That kernel writes the queries and the new keys of the pass;
     * if there are tree paths to copy (paths.cu), it also writes the tables of the paths. */
    const struct attention_plan_head head = *plan_head(p.plan);
    int n_sub;
    const int n_units = units_of(p, head, ATTENTION_TILE_ROWS, &n_sub);
    /* If the units do not fill the device, each is computed faster by a whole block. */
    const int packed = head.tile_rows * p.group, grid = (int)gridDim.x;
    const bool busy = n_units > grid, is_short = head.mean_keys <= NARROW_KEYS;
    const bool thin = S::SLOTS >= 6 && p.may_be_thin && packed <= THIN_ROWS && busy;
    const bool narrow = thin || (S::SLOTS >= 6 && packed <= GROUP_ROWS && busy && is_short);
    /* The units of the worker that this thread belongs to, and the worker's part of the ring. */
    const int group = (int)threadIdx.x / WARPGROUP;
    const int half = narrow ? half_of(group) : 0;
    const struct worker_units<S::KEYS> units = {
        p, head.items_offset, n_sub,
            unit_rounds(head, n_units, grid *(narrow ? 2 : 1), half *grid + (int)blockIdx.x)
    };
    const struct ring ring = {narrow ? S::SLOTS / 2 : S::SLOTS};
    slots += half * (S::SLOTS / 2) * S::SLOT_BYTES;
    full += half * (S::SLOTS / 2);
    empty += half * (S::SLOTS / 2);
    if (group == 0) {
        registers_fewer<40>();
        if (threadIdx.x < (narrow ? 64 : 32)) {
            load_units<NB>(
                units, {p, &map, slots, full, empty, ring, policy_evict_first(), policy_normal()},
                head.n_paths > 0 || p.is_expanded);
        }
        pdl_wait();
        pdl_trigger();
    } else {
        pdl_wait();
        pdl_trigger();
        registers_more<232>();
        if (thin) {
            thin_computer<T, NB> c = {p,    slots,     smem + (group - 1) * S::Q_BYTES, full, empty,
                                      ring, group - 1, (int)threadIdx.x % WARPGROUP};
            units.each(c);
            return;
        }
        wide_computer<T, NB> c = {p,
                                  slots,
                                  smem + (group - 1) * S::Q_BYTES,
                                  full,
                                  empty,
                                  &map,
                                  q_full + group - 1,
                                  ring,
                                  group - 1,
                                  narrow ? 0 : (group - 1) * GROUP_ROWS,
                                  narrow ? 2 : 1,
                                  (int)threadIdx.x % WARPGROUP};
        units.each(c);
    }
#endif
}

bool attention_sm90_takes(const struct attention_launch *a)
{
    const struct kv_view *kv = &a->kv;
    const int d = kv->head_dim_k, bt = kv->block_tokens;
    return kv->codes.format == KV_PLAIN && a->limits->sm == 90 && a->dtype == kv->dtype &&
           (a->dtype == DT_BF16 || a->dtype == DT_F16) && d == kv->head_dim_v && d % 8 == 0 &&
           d <= 256 && (bt == 16 || bt == 32 || bt == 64) && kv->v_token_stride == d &&
           kv->v_offset % d == 0 && kv->v_offset > 0 && kv->head_stride % d == 0 &&
           kv->page_stride % d == 0 &&
           ((uintptr_t)kv->base | (uintptr_t)a->q | (uintptr_t)a->out) % 16 == 0 &&
           a->q_stride % 8 == 0 && a->out_stride % 2 == 0 && a->scale > 0.0f;
}

template <typename T>
static cudaError_t launch_by_dim(cudaStream_t stream, const struct attention_params &p,
                                 const struct attention_maps &map, int n_sms)
{
    switch ((p.kv.head_dim_k + 63) / 64) {
    case 1: return launch_block<1>(stream, attention_sm90_kernel<T, 1>, p, map, n_sms);
    case 2: return launch_block<2>(stream, attention_sm90_kernel<T, 2>, p, map, n_sms);
    case 3: return launch_block<3>(stream, attention_sm90_kernel<T, 3>, p, map, n_sms);
    case 4: return launch_block<4>(stream, attention_sm90_kernel<T, 4>, p, map, n_sms);
    default: return cudaErrorInvalidValue;
    }
}

/* True if the pass is for prompt.cu: some tile has more than GROUP_ROWS packed rows. False if a
 * captured launch may serve other passes. */
static bool is_for_prompts(const struct attention_launch *a, const struct attention_params &p)
{
    const int longest = a->limits->deterministic ? 128 : 256;
    return p.kv.head_dim_k > 64 && p.kv.head_dim_k <= longest && a->out_stride % 8 == 0 &&
           a->n_rows > ATTENTION_CAPTURED_ROWS && a->n_seqs > 0 &&
           (int64_t)a->n_rows * p.group > (int64_t)GROUP_ROWS * a->n_seqs;
}

static cudaError_t map_queries(CUtensorMap *map, const struct attention_launch *a,
                               const struct attention_params &p)
{
    const cuuint64_t d = (cuuint64_t)a->kv.head_dim_k;
    const cuuint64_t dims[3] = {d, (cuuint64_t)a->n_heads, (cuuint64_t)a->n_rows};
    const cuuint64_t strides[2] = {d * 2, (cuuint64_t)a->q_stride * 2};
    const cuuint32_t box[3] = {64, (cuuint32_t)p.group, (cuuint32_t)p.q_rows};
    return tensor_map(map, a->q, a->dtype == DT_BF16, 3, dims, strides, box);
}

static cudaError_t map_kv(CUtensorMap *map, const struct kv_view *kv, int32_t page_rows,
                          int32_t box_rows)
{
    return tensor_map_2d(map, kv->base, kv->dtype == DT_BF16, (uint64_t)kv->head_dim_k,
                         (uint64_t)kv->n_pages * (uint64_t)page_rows, (uint64_t)kv->head_dim_k * 2,
                         (uint32_t)box_rows);
}

cudaError_t attention_sm90(cudaStream_t stream, const struct attention_launch *a,
                           const struct attention_params *params, int n_sms)
{
    const struct kv_view *kv = &a->kv;
    struct attention_params p = *params;
    p.page_rows = (int32_t)(kv->page_stride / kv->head_dim_k);
    p.head_rows = kv->head_stride / kv->head_dim_k;
    p.v_rows = kv->v_offset / kv->head_dim_k;
    p.may_be_thin = !a->limits->deterministic;
    p.q_rows = GROUP_ROWS % p.group == 0 ? GROUP_ROWS / p.group : 0;
    struct attention_maps map = {}; // zeroed, because an unused descriptor must not contain garbage
    cudaError_t e = map_kv(&map.page, kv, p.page_rows, kv->block_tokens);
    e = e == cudaSuccess ? map_kv(&map.part, kv, p.page_rows, PART_ROWS) : e;
    e = e == cudaSuccess && p.q_rows > 0 ? map_queries(&map.queries, a, p) : e;
    if (e != cudaSuccess) {
        return e;
    }
    if (is_for_prompts(a, p)) {
        return attention_prompt(stream, a->dtype, p, map, n_sms);
    }
    return a->dtype == DT_BF16 ? launch_by_dim<bf16_t>(stream, p, map, n_sms)
                               : launch_by_dim<f16_t>(stream, p, map, n_sms);
}
