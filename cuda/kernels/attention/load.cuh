// SPDX-License-Identifier: Apache-2.0
/* Loads K, V and Q into shared memory. One warp loads K and V, running ahead across the borders of
 * units. For attention/prompt.cu, one warp per computing warpgroup loads Q, beginning with the next
 * unit's Q as soon as the current unit's last scores are done.
 * Thread: device code, one warp at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_LOAD_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_LOAD_CUH

#include "cuda/kernels/attention/sm90.cuh"

#if HAVE_SM90A

/* Called by one thread before any other thread waits. One thread fills each slot of the ring, and
 * the computing warps release it. */
template <typename S> __device__ __forceinline__ void ring_init(uint64_t *full, uint64_t *empty)
{
    for (int i = 0; i < S::SLOTS; i++) {
        barrier_init(&full[i], 1);
        barrier_init(&empty[i], 8);
    }
}

__device__ __forceinline__ void maps_prefetch(const struct attention_maps &map)
{
    tensor_map_prefetch(&map.page);
    tensor_map_prefetch(&map.part);
    tensor_map_prefetch(&map.queries);
}

template <int NB> struct kv_loader {
    const struct attention_params &p;
    const struct attention_maps *map;
    char *slots;
    uint64_t *full, *empty;
    struct ring at;
    uint64_t once, again; // cache policies: read once, read again
    int first_page = 0;   // lane i has entry first_page + i of the unit's block table
    int32_t block = 0;
    bool has_waited = false; // it has waited for the preceding kernel

    /* Loads a tile of K (v_rows 0) or V: one box per page and 64 columns. */
    __device__ __forceinline__ void tile(const struct attention_unit &u, const int32_t *table,
                                         int start, int end, int v_rows)
    {
        using S = shape<NB>;
        const int log_bt = 31 - __clz(p.kv.block_tokens), bt = 1 << log_bt;
        const int n_keys = min(S::KEYS, end - start), n_pages = (n_keys + bt - 1) >> log_bt;
        // pages that are loaded whole, because enough of their keys are needed
        const int n_whole = (n_keys + PART_ROWS - 1) >> log_bt;
        const int n_parts = (max(n_keys - (n_whole << log_bt), 0) + PART_ROWS - 1) / PART_ROWS;
        const int lane = threadIdx.x & 31, page0 = start >> log_bt;
        if (page0 < first_page || page0 + n_pages > first_page + 32) {
            look_up(u, table, max(page0 - S::KEYS / bt, 0)); // values are one tile behind the keys
        }
        barrier_wait(&empty[at.slot], at.parity ^ 1);
        /* The preceding kernel stores the keys of this pass. Older keys are already there. */
        if (!has_waited && u.item.mask != ATTENTION_ALL && start + S::KEYS > u.item.n_past) {
            pdl_wait();
            has_waited = true;
        }
        if (lane == 0) {
            barrier_expect(&full[at.slot],
                           (uint32_t)(((n_whole << log_bt) + n_parts * PART_ROWS) * 128 * NB));
        }
        __syncwarp();
        char *to = slots + at.slot * S::SLOT_BYTES;
        static_assert(S::KEYS / PART_ROWS * NB <= 32, "a lane for each copy");
        const int box = lane / NB, columns = lane % NB;
        const int row =
            box < n_whole ? box << log_bt : (n_whole << log_bt) + (box - n_whole) * PART_ROWS;
        const int32_t b =
            __shfl_sync(0xffffffffu, block, (page0 + (row >> log_bt) - first_page) & 31);
        if (box < n_whole + n_parts) {
            tensor_load(to + columns * (S::KEYS * 128) + row * 128,
                        box < n_whole ? &map->page : &map->part, &full[at.slot], columns * 64,
                        b * p.page_rows + u.kv_head * p.head_rows + v_rows + (row & (bt - 1)),
                        u.n_packed > GROUP_ROWS ? again : once);
        }
        at.next();
    }

    __device__ __forceinline__ void look_up(const struct attention_unit &u, const int32_t *table,
                                            int page)
    {
        first_page = page;
        block = table[min(page + (int)(threadIdx.x & 31), (u.hi - 1) / p.kv.block_tokens)];
    }

    __device__ __forceinline__ void unit(const struct attention_unit &u)
    {
        constexpr int KEYS = shape<NB>::KEYS;
        const int32_t *table = p.blocks + (int64_t)u.item.lane * p.blocks_stride;
        if (u.lo < u.hi) {
            look_up(u, table, u.lo / p.kv.block_tokens);
        }
        for (int lo = u.lo; lo < u.hi;) {
            const int end = run_end(u, lo);
            tile(u, table, lo, end, 0);
            for (int start = lo + KEYS; start < end; start += KEYS) {
                tile(u, table, start, end, 0);
                tile(u, table, start - KEYS, end, p.v_rows);
            }
            tile(u, table, lo + (end - lo - 1) / KEYS * KEYS, end, p.v_rows);
            lo = end;
        }
    }
};

/* Loads, for the warpgroup that computes them, a unit's description and its GROUP_ROWS packed rows
 * from `first` on. `full` signals that both are loaded; `empty` signals that the warpgroup has read
 * the description and finished with the rows. */
template <typename T, int NB> struct q_loader {
    const struct attention_params &p;
    const struct attention_maps *maps;
    char *q_tile;
    uint64_t *full, *empty;
    struct attention_unit *note;
    int first;
    uint32_t parity = 0;

    __device__ __forceinline__ void describe(const struct attention_unit &u)
    {
        barrier_wait(empty, parity ^ 1);
        parity ^= 1;
        if ((threadIdx.x & 31) == 0) {
            *note = u;
        }
    }

    __device__ __forceinline__ void is_there()
    {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) {
            barrier_arrive(full);
        }
    }

    /* Copies the unit's rows; all other rows and columns are zeroed. */
    __device__ __forceinline__ void copy_rows(const struct attention_unit &u)
    {
        const int lane = threadIdx.x & 31, d = p.kv.head_dim_k;
        int packed = first + (lane >> 3);
        int i = (u.first_packed + packed) / p.group, head = (u.first_packed + packed) % p.group;
#pragma unroll 1
        for (int r = lane >> 3; r < GROUP_ROWS; r += 4, packed += 4) {
            const bool is_row = packed < u.n_packed;
            const T *from = (const T *)p.q +
                            (int64_t)(is_row ? u.item.first_row + i : 0) * p.q_stride +
                            (int64_t)(u.kv_head * p.group + head) * d;
#pragma unroll
            for (int b = 0; b < NB; b++) {
                const int column = b * 64 + (lane & 7) * 8;
                const bool is_real = is_row && column < d;
                copy_16(q_tile + b * (GROUP_ROWS * 128) + swizzled(r, lane & 7),
                        is_real ? from + column : (const T *)p.q, is_real);
            }
            for (head += 4; head >= p.group; head -= p.group) {
                i++;
            }
        }
        copies_wait();
        fence_async();
    }

    __device__ __forceinline__ void unit(const struct attention_unit &u)
    {
        describe(u);
        if (first >= u.n_packed) {
            is_there();
            return;
        }
        pdl_wait();
        if (p.q_rows == 0) {
            copy_rows(u);
            is_there();
        } else if ((threadIdx.x & 31) == 0) {
            load_queries<NB>(p, maps, u, first, q_tile, full);
        }
    }

    /* Signals that there are no more units. */
    __device__ __forceinline__ void end()
    {
        struct attention_unit none = {};
        describe(none);
        is_there();
    }
};

#endif // HAVE_SM90A
#endif
