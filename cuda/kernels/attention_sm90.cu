/* Attention for Hopper: wgmma on tiles that the bulk copy engine brings.
 *
 * Grid: one block per multiprocessor, fixed; units (item x KV head) are dealt out longest first, to
 * and fro, so that every block knows its own without asking. Block: three warpgroups. A warp of the
 * first loads; the other two compute, each for 64 of a unit's up to 128 packed rows. A pass of short
 * units of at most 64 packed rows (decoding) runs *narrow*: each computing warpgroup has units of
 * its own, a loading warp of its own and half of the ring, so that one's arithmetic hides the
 * other's wait. The order of a row's sums is the same either way, and so are its bits. With at most
 * 8 packed rows, and where equal bits are not asked for, a narrow pass is *thin*: attention_thin.cuh.
 *
 * Shared memory: Q (two warpgroups x 64 rows), then a ring of slots, each a tile of K or of V
 * (KEYS rows), as blocks of 64 columns in rows of 128 bytes with the 128-byte swizzle. The loader
 * runs ahead over the borders of units, so that memory never waits for arithmetic. The ring's order
 * is K0 K1 V0 K2 V1 ... : the scores of tile t + 1 are on the tensor cores while tile t's values
 * are summed.
 *
 * A key beyond the last or before the first that any row sees may hold anything, NaN included: its
 * score is replaced, and its V row is set to zero in shared memory before use. */
#include "cuda/kernels/attention_thin.cuh"

#if HAVE_SM90A

/* Tells the compiler that the values may have changed here (the tensor cores wrote them). */
template <int N> __device__ __forceinline__ void settle(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

template <int N> __device__ __forceinline__ void settle(uint32_t (&d)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])::"memory");
    }
}

/* ---- the loader: one warp ------------------------------------------------------------------ */

template <int NB> struct loader {
    const struct attention_params &p;
    const CUtensorMap *map;
    char *slots;
    uint64_t *full, *empty;
    struct ring at;
    uint64_t once, again; // cache policies
    int first_page = 0;   // lane i holds the block of page first_page + i of the unit's table
    int32_t block = 0;
    bool has_waited = false; // for the kernel ahead

    /* A tile of K (v_rows 0) or V: a box per page and 64 columns. */
    __device__ __forceinline__ void tile(const struct attention_unit &u, const int32_t *table,
                                         int start, int end, int v_rows)
    {
        using S = shape<NB>;
        const int bt = p.kv.block_tokens, n_pages = (min(S::KEYS, end - start) + bt - 1) / bt;
        const int lane = threadIdx.x & 31, page0 = start / bt;
        if (page0 < first_page || page0 + n_pages > first_page + 32) {
            look_up(u, table, max(page0 - S::KEYS / bt, 0)); // values follow keys, a tile behind
        }
        barrier_wait(&empty[at.slot], at.parity ^ 1);
        /* The kernel ahead stores the pass's own keys; older ones are there. */
        if (!has_waited && u.item.mask != ATTENTION_ALL && start + S::KEYS > u.item.n_past) {
            pdl_wait();
            has_waited = true;
        }
        if (lane == 0) {
            barrier_expect(&full[at.slot], (uint32_t)(n_pages * bt * 128 * NB));
        }
        __syncwarp();
        char *to = slots + at.slot * S::SLOT_BYTES;
        for (int i = lane; i - lane < n_pages * NB; i += 32) {
            const int page = i / NB, part = i % NB;
            const int32_t b = __shfl_sync(0xffffffffu, block, (page0 + page - first_page) & 31);
            if (page < n_pages) {
                tensor_load(to + part * (S::KEYS * 128) + page * bt * 128, map, &full[at.slot],
                            part * 64, b * p.page_rows + u.kv_head * p.head_rows + v_rows,
                            u.n_packed > GROUP_ROWS ? again : once);
            }
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

/* ---- the computers: a warpgroup each ------------------------------------------------------- */

template <typename T, int NB> struct computer {
    using S = shape<NB>;
    static constexpr int KEYS = S::KEYS, HEAD_DIM = S::HEAD_DIM;
    const struct attention_params &p;
    char *slots, *q_tile;
    uint64_t *full, *empty;
    struct ring at;
    int group;    // 0 or 1
    int first;    // packed row of a unit that is this warpgroup's first
    int releases; // of a slot by one warp: 2 if the other warpgroup does not use it
    int tid;      // in the warpgroup

    float scores[KEYS / 2];
    float values[HEAD_DIM / 2];
    uint32_t probs[KEYS / 16][4];
    float top[2], sum[2], decay[2]; // of rows g and g + 8; top in units of scores
    struct attention_row_view view[2];

    __device__ __forceinline__ void release(int slot)
    {
        if ((tid & 31) == 0) {
            barrier_arrive(&empty[slot], releases);
        }
    }

    __device__ __forceinline__ void sync()
    {
        named_barrier(1 + group, WARPGROUP);
    }

    /* Q to shared memory, zero where there is no row or no column. */
    __device__ __forceinline__ void load_q(const struct attention_unit &u)
    {
        constexpr int CHUNKS = HEAD_DIM / 8;
        sync(); // the unit before may still be read
#pragma unroll 4
        for (int i = tid; i < GROUP_ROWS * CHUNKS; i += WARPGROUP) {
            const int r = i / CHUNKS, c = i % CHUNKS, packed = first + r;
            uint4 v = {0, 0, 0, 0};
            if (packed < u.n_packed && c * 8 < p.kv.head_dim_k) {
                const int k = u.first_packed + packed;
                const int row = u.item.first_row + k / p.group;
                const int head = u.kv_head * p.group + k % p.group;
                v = *reinterpret_cast<const uint4 *>((const T *)p.q + (int64_t)row * p.q_stride +
                                                     (int64_t)head * p.kv.head_dim_k + c * 8);
            }
            *reinterpret_cast<uint4 *>(q_tile + (c >> 3) * (GROUP_ROWS * 128) +
                                       swizzled(r, c & 7)) = v;
        }
        fence_async();
        sync();
    }

    /* Issues scores = Q K^T. */
    __device__ __forceinline__ void issue_scores(int slot)
    {
        const uint32_t a = smem_address(q_tile), b = smem_address(slots + slot * S::SLOT_BYTES);
        settle(scores);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
            const uint32_t step = (k & 3) * 32;
            wgmma<T, KEYS>::ss(scores, wgmma_operand(a + (k >> 2) * (GROUP_ROWS * 128) + step, 0),
                               wgmma_operand(b + (k >> 2) * (KEYS * 128) + step, 0), k > 0);
        }
        wgmma_commit();
    }

    /* Issues values += P V. */
    __device__ __forceinline__ void issue_values(int slot)
    {
        const uint32_t b = smem_address(slots + slot * S::SLOT_BYTES);
        settle(values);
        settle(probs);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            wgmma<T, HEAD_DIM>::rs(values, probs[k], wgmma_operand(b + k * 16 * 128, KEYS * 128),
                                   1);
        }
        wgmma_commit();
    }

    /* Hides from each row what it does not see. */
    __device__ __forceinline__ void mask(const struct attention_unit &u, int start)
    {
        const int first = start + (tid & 3) * 2;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const int key = first + (i >> 2) * 8 + (i & 1);
            const struct attention_row_view &v = view[i >> 1 & 1];
            if (key < v.lo || key >= v.hi) {
                scores[i] = -INFINITY;
            }
        }
        if (u.item.mask == ATTENTION_TREE && start + KEYS > u.item.n_past) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const unsigned __int128 seen = tree_keys(p, u, view[r], first);
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) {
                    if (!(uint32_t)(seen >> ((i >> 1) * 8 + (i & 1)) & 1)) {
                        scores[(i >> 1) * 4 + 2 * r + (i & 1)] = -INFINITY;
                    }
                }
            }
        }
    }

    /* scores -> probabilities in place (not yet divided), top, sum, decay. GENERAL: with a soft cap
     * or a mask; apart, so that neither takes registers from the plain loop. */
    template <bool GENERAL>
    __device__ __forceinline__ void softmax(const struct attention_unit &u, int start)
    {
        if (GENERAL && p.softcap > 0.0f) {
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                scores[i] = soft_cap(p, scores[i]);
            }
        }
        if (GENERAL) {
            mask(u, start);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float high = -INFINITY;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                high = fmaxf(high, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
            }
            high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
            high = fmaxf(high, top[r]);
            const float safe = high == -INFINITY ? 0.0f : __fmul_rn(high, p.scale_log2);
            /* Not fused: a tile that brings no new maximum must leave 1 exactly. */
            decay[r] = exp2_fast(__fsub_rn(__fmul_rn(top[r], p.scale_log2), safe));
            top[r] = high;
            float add = 0.0f;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &s = scores[4 * j + 2 * r + e];
                    s = exp2_fast(__fmaf_rn(s, p.scale_log2, -safe));
                    add += s;
                }
            }
            sum[r] = __fmaf_rn(sum[r], decay[r], add);
        }
    }

    __device__ __forceinline__ void to_probs()
    {
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                probs[k][i] = pack<T>(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
            }
        }
    }

    /* Sets V rows of keys that no row sees to zero: what they hold is nobody's. */
    __device__ __forceinline__ void clean_values(const struct attention_unit &u, int slot, int start,
                                                 int end)
    {
        constexpr int CHUNKS = HEAD_DIM / 8;
        if (start + KEYS <= end) {
            return;
        }
        char *v = slots + slot * S::SLOT_BYTES;
        for (int i = tid + (end - start) * CHUNKS; i < KEYS * CHUNKS; i += WARPGROUP) {
            const int r = i / CHUNKS, c = i % CHUNKS;
            *reinterpret_cast<uint4 *>(v + (c >> 3) * (KEYS * 128) + swizzled(r, c & 7)) =
                make_uint4(0, 0, 0, 0);
        }
        fence_async();
        sync();
    }

    /* The scores of the tile at `start` while the values of the one before it are summed. */
    template <bool GENERAL>
    __device__ __forceinline__ void step(const struct attention_unit &u, int start)
    {
        const int k_slot = at.slot;
        barrier_wait(&full[k_slot], at.parity);
        issue_scores(k_slot);
        at.next();
        const int v_slot = at.slot;
        barrier_wait(&full[v_slot], at.parity);
        at.next();
        issue_values(v_slot);
        wgmma_wait<1>();
        settle(scores);
        release(k_slot);
        softmax<GENERAL>(u, start);
        settle(scores);
        wgmma_wait<0>();
        settle(values);
        settle(probs);
        release(v_slot);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            values[i] *= decay[i >> 1 & 1];
        }
        to_probs();
    }

    /* Keys [lo, end) into values, top, sum. */
    __device__ __forceinline__ void run(const struct attention_unit &u, int lo, int end)
    {
        top[0] = top[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            values[i] = 0.0f;
        }
        barrier_wait(&full[at.slot], at.parity);
        issue_scores(at.slot);
        wgmma_wait<0>();
        settle(scores);
        release(at.slot);
        at.next();
        const int plain = p.softcap > 0.0f ? INT32_MAX : u.all_lo, plain_end = min(end, u.all_hi);
        if (lo >= plain && lo + KEYS <= plain_end) {
            softmax<false>(u, lo);
        } else {
            softmax<true>(u, lo);
        }
        to_probs();
        int start = lo + KEYS;
        for (; start < end && start < plain; start += KEYS) {
            step<true>(u, start);
        }
        for (; start + KEYS <= plain_end; start += KEYS) {
            step<false>(u, start);
        }
        for (; start < end; start += KEYS) {
            step<true>(u, start);
        }
        barrier_wait(&full[at.slot], at.parity);
        clean_values(u, at.slot, lo + (end - lo - 1) / KEYS * KEYS, end);
        issue_values(at.slot);
        wgmma_wait<0>();
        settle(values);
        settle(probs);
        release(at.slot);
        at.next();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
            top[r] = __fmul_rn(top[r], p.scale_log2);
        }
    }

    /* This warpgroup has no rows: lets the loader go on. */
    __device__ __forceinline__ void skip(const struct attention_unit &u)
    {
        for (int lo = u.lo; lo < u.hi;) {
            const int end = run_end(u, lo), n = 2 * ((end - lo + KEYS - 1) / KEYS);
            for (int i = 0; i < n; i++) {
                barrier_wait(&full[at.slot], at.parity);
                release(at.slot);
                at.next();
            }
            lo = end;
        }
    }

    /* Joins the runs of a folding item; what came before waits in this thread's scratch. */
    __device__ __forceinline__ void fold(float (&all_top)[2], float (&all_sum)[2], bool last)
    {
        float *keep = p.scratch + ((int64_t)(blockIdx.x * 2 + group) * (HEAD_DIM / 2)) * WARPGROUP +
                      tid;
        struct join_weights w[2];
        const bool first = all_sum[0] == -1.0f;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            all_sum[r] = first ? 0.0f : all_sum[r];
            w[r] = join(all_top[r], all_sum[r], top[r], sum[r]);
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            const float old_value = first ? 0.0f : keep[i * WARPGROUP];
            values[i] = join_value(w[i >> 1 & 1], old_value, values[i]);
            if (!last) {
                keep[i * WARPGROUP] = values[i];
            }
        }
    }

    __device__ __forceinline__ void store(const struct attention_unit &u)
    {
        const struct attention_row *slot_rows =
            (const struct attention_row *)((const char *)p.plan +
                                           sizeof(struct attention_plan_head));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int packed = first + (tid >> 5) * 16 + (tid >> 2 & 7) + 8 * r;
            if (packed >= u.n_packed) {
                continue;
            }
            const struct attention_row_view &v = view[r];
            const int d = p.kv.head_dim_v, c0 = (tid & 3) * 2;
            if (u.item.split < 0) {
                const float w = final_weight(top[r], sum[r], p.sinks, v.head);
                T *to = (T *)p.out + (int64_t)v.row * p.out_stride + (int64_t)v.head * d;
#pragma unroll
                for (int j = 0; j < HEAD_DIM / 8; j++) {
                    if (j * 8 < d) {
                        *reinterpret_cast<uint32_t *>(to + j * 8 + c0) =
                            pack<T>(__fmul_rn(values[4 * j + 2 * r], w),
                                    __fmul_rn(values[4 * j + 2 * r + 1], w));
                    }
                }
            } else {
                float *to = slot_at(p, slot_rows[v.row].first_slot + u.item.split, v.head);
#pragma unroll
                for (int j = 0; j < HEAD_DIM / 8; j++) {
                    if (j * 8 < d) {
                        *reinterpret_cast<float2 *>(to + j * 8 + c0) =
                            make_float2(values[4 * j + 2 * r], values[4 * j + 2 * r + 1]);
                    }
                }
                if ((tid & 3) == 0) {
                    *reinterpret_cast<float2 *>(to + d) = make_float2(top[r], sum[r]);
                }
            }
        }
    }

    __device__ __forceinline__ void unit(const struct attention_unit &u)
    {
        if (first >= u.n_packed) {
            skip(u);
            return;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            view[r] = row_view(p, u, first + (tid >> 5) * 16 + (tid >> 2 & 7) + 8 * r);
        }
        load_q(u);
        if (u.lo >= u.hi) {
            top[0] = top[1] = -INFINITY;
            sum[0] = sum[1] = 0.0f;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; i++) {
                values[i] = 0.0f;
            }
        }
        float all_top[2] = {-INFINITY, -INFINITY}, all_sum[2] = {-1.0f, -1.0f};
        for (int lo = u.lo; lo < u.hi;) {
            const int end = run_end(u, lo);
            run(u, lo, end);
            if (u.item.fold) {
                fold(all_top, all_sum, end == u.hi);
            }
            lo = end;
        }
        if (u.item.fold && u.lo < u.hi) {
            top[0] = all_top[0];
            top[1] = all_top[1];
            sum[0] = all_sum[0];
            sum[1] = all_sum[1];
        }
        store(u);
    }
};

#endif // HAVE_SM90A

template <typename T, int NB>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    attention_sm90_kernel(const __grid_constant__ struct attention_params p,
                          const __grid_constant__ CUtensorMap map)
{
#if HAVE_SM90A
    using S = shape<NB>;
    extern __shared__ char smem_raw[];
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    char *slots = smem + 2 * S::Q_BYTES;
    uint64_t *full = (uint64_t *)(slots + S::SLOTS * S::SLOT_BYTES), *empty = full + S::SLOTS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::SLOTS; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], 8); // the computers' warps
        }
        barrier_init_done();
        tensor_map_prefetch(&map);
    }
    __syncthreads();
    /* The plan, the tables and older keys were there before the kernel ahead began, so they are read
     * before the wait for it: its own are the queries and the pass's new keys. */
    const struct attention_plan_head head = *plan_head(p.plan);
    int n_sub;
    const int n_units = units_of(p, head, ATTENTION_TILE_ROWS, &n_sub);
    /* Units that do not fill the machine come sooner with the whole of a block. */
    const int packed = head.tile_rows * p.group;
    const bool busy = n_units > (int)gridDim.x, is_short = head.mean_keys <= NARROW_KEYS;
    const bool thin = S::SLOTS >= 6 && p.may_be_thin && packed <= THIN_ROWS && busy;
    const bool narrow = thin || (S::SLOTS >= 6 && packed <= GROUP_ROWS && busy && is_short);
    /* Which worker this thread belongs to, of how many, and its part of the ring. */
    const int group = (int)threadIdx.x / WARPGROUP;
    const int half = !narrow ? 0 : group > 0 ? group - 1 : (int)threadIdx.x / 32;
    const int n_workers = (int)gridDim.x * (narrow ? 2 : 1);
    const int worker = half * (int)gridDim.x + (int)blockIdx.x;
    const struct ring ring = {narrow ? S::SLOTS / 2 : S::SLOTS};
    slots += half * (S::SLOTS / 2) * S::SLOT_BYTES;
    full += half * (S::SLOTS / 2);
    empty += half * (S::SLOTS / 2);
    if (group == 0) {
        registers_fewer<40>();
        if (threadIdx.x < (narrow ? 64 : 32)) {
            loader<NB> l = {p, &map, slots, full, empty, ring, policy_evict_first(),
                            policy_normal()};
            for (int k = 0; k * n_workers < n_units; k++) {
                const int index = unit_index(k, n_workers, worker);
                if (index < n_units) {
                    const struct attention_unit u =
                        unit_at(p, head.items_offset, index, n_sub, ATTENTION_TILE_ROWS, S::KEYS);
                    if (u.n_packed > 0) {
                        l.unit(u);
                    }
                }
            }
        }
        pdl_wait();
        pdl_trigger();
    } else {
        pdl_wait();
        pdl_trigger();
        registers_more<232>();
        if (thin) {
            thin_computer<T, NB> c = {p, slots, smem + (group - 1) * S::Q_BYTES, full, empty, ring,
                                      group - 1, (int)threadIdx.x % WARPGROUP};
            for (int k = 0; k * n_workers < n_units; k++) {
                const int index = unit_index(k, n_workers, worker);
                if (index < n_units) {
                    const struct attention_unit u =
                        unit_at(p, head.items_offset, index, n_sub, ATTENTION_TILE_ROWS, S::KEYS);
                    if (u.n_packed > 0) {
                        c.unit(u);
                    }
                }
            }
            return;
        }
        computer<T, NB> c = {p, slots, smem + (group - 1) * S::Q_BYTES, full, empty, ring, group - 1,
                             narrow ? 0 : (group - 1) * GROUP_ROWS, narrow ? 2 : 1,
                             (int)threadIdx.x % WARPGROUP};
        for (int k = 0; k * n_workers < n_units; k++) {
            const int index = unit_index(k, n_workers, worker);
            if (index < n_units) {
                const struct attention_unit u =
                    unit_at(p, head.items_offset, index, n_sub, ATTENTION_TILE_ROWS, S::KEYS);
                if (u.n_packed > 0) {
                    c.unit(u);
                }
            }
        }
    }
#endif
}

template <typename T, int NB>
static cudaError_t launch_sm90(cudaStream_t stream, const struct attention_params &p,
                               const CUtensorMap &map, int n_sms)
{
    const cudaError_t ready = // of this device: ranks have one each
        cudaFuncSetAttribute(attention_sm90_kernel<T, NB>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shape<NB>::SMEM);
    if (ready != cudaSuccess) {
        return ready;
    }
    return launch(attention_sm90_kernel<T, NB>, dim3(n_sms), dim3(BLOCK_THREADS), shape<NB>::SMEM,
                  stream, p, map);
}

bool attention_sm90_takes(const struct attention_launch *a)
{
    const struct kv_view *kv = &a->kv;
    const int d = kv->head_dim_k, bt = kv->block_tokens;
    return a->limits->sm == 90 && a->dtype == kv->dtype && (a->dtype == DT_BF16 || a->dtype == DT_F16) &&
           d == kv->head_dim_v && d % 8 == 0 && d <= 256 && (bt == 16 || bt == 32 || bt == 64) &&
           kv->v_token_stride == d && kv->v_offset % d == 0 && kv->v_offset > 0 &&
           kv->head_stride % d == 0 && kv->page_stride % d == 0 &&
           ((uintptr_t)kv->base | (uintptr_t)a->q | (uintptr_t)a->out) % 16 == 0 &&
           a->q_stride % 8 == 0 && a->out_stride % 2 == 0 && a->scale > 0.0f;
}

template <typename T>
static cudaError_t launch_by_dim(cudaStream_t stream, const struct attention_params &p,
                                 const CUtensorMap &map, int n_sms)
{
    switch ((p.kv.head_dim_k + 63) / 64) {
    case 1: return launch_sm90<T, 1>(stream, p, map, n_sms);
    case 2: return launch_sm90<T, 2>(stream, p, map, n_sms);
    case 3: return launch_sm90<T, 3>(stream, p, map, n_sms);
    case 4: return launch_sm90<T, 4>(stream, p, map, n_sms);
    default: return cudaErrorInvalidValue;
    }
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
    CUtensorMap map;
    const cudaError_t e =
        tensor_map_2d(&map, kv->base, kv->dtype == DT_BF16, (uint64_t)kv->head_dim_k,
                      (uint64_t)kv->n_pages * (uint64_t)p.page_rows,
                      (uint64_t)kv->head_dim_k * 2, (uint32_t)kv->block_tokens);
    if (e != cudaSuccess) {
        return e;
    }
    return a->dtype == DT_BF16 ? launch_by_dim<bf16_t>(stream, p, map, n_sms)
                               : launch_by_dim<f16_t>(stream, p, map, n_sms);
}
