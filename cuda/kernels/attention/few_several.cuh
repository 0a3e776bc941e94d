// SPDX-License-Identifier: Apache-2.0
/* The device half of few_several.cu: how a warp processes some rows of a sequence and a KV head,
 * and how the loading warp fills the rings. few.cuh has what does not depend on the number of rows.
 * Thread: device code, one warp at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FEW_SEVERAL_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FEW_SEVERAL_CUH

#include "cuda/kernels/attention/few.cuh"

struct several_params {
    struct few_params few; // group: all heads of a KV head; row_seq, log_parts: unused
    struct few_bounds bounds;
    const struct pass_seq *seqs;
    const uint64_t *tree_mask;
    float per_group; // 1 / group
};

#if HAVE_SM90A

__device__ __forceinline__ bool barrier_passed(uint64_t *bar, uint32_t parity)
{
    uint32_t passed;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(passed)
                 : "r"(smem_address(bar)), "r"(parity)
                 : "memory");
    return passed != 0;
}

template <typename T, int DIM, bool NORM, few_turn TURN> struct several {
    using S = several_shape<DIM>;
    static constexpr int J = S::J, TILES = S::TILES, KEYS = TILES, VALUES = TILES + 1;
    static constexpr int COLUMNS = S::COLUMNS;
    const struct several_params &all;
    const struct few_params &p;
    const CUtensorMap *map; // boxes of pages
    uint64_t *full, *empty; // this warp's barriers, one per slot
    char *slots;            // this warp's ring (of the loading warp: this lane's)
    uint4 *tiles;           // the block's tiles: vector j of a lane of tile t is [t][j][lane]
    uint32_t *broken;       // lanes of the tile of values whose part of a value cannot be stored
    int n_slots, rank, warp, lane, worker, n_workers;

    struct pass_seq seq;
    int kv_head, part, n_columns; // of the unit's columns, n_columns are in use
    int first_chunk, n_chunks;    // the chunks with keys that the rows see, or new ones
    uint32_t new_page;            // of new row lane / 4
    int slot = 0;                 // the slot to process or fill next
    uint32_t parity = 0;
    int n_fetched = 0; // by this lane of the loading warp
    uint32_t page;     // of the chunk to fetch next

    few_rope<T, DIM, NORM, TURN> rope;
    uint32_t q[TILES][J][4];
    // For columns 2 t and 2 t + 1 of each tile, where t is lane % 4: the first key that the
    // column's row sees, and which of the new ones it sees; the results.
    int low[TILES][2];
    uint32_t seen[TILES][2];
    float top[TILES][2], sums[TILES][4], values[TILES][DIM / 16][4];

    __device__ __forceinline__ several(const struct several_params &of, const CUtensorMap *boxes)
        : all(of), p(of.few), map(boxes)
    {
    }

    /* The row of the sequence, and the head, of a column of the unit. Columns that are not in use
     * repeat the last one. */
    struct few_column {
        int row, head;
    };
    __device__ __forceinline__ struct few_column column_of(int column) const
    {
        const int c = part * COLUMNS + min(column, n_columns - 1);
        const int row =
            (int)(((float)c + 0.5f) * all.per_group); // c / group, in fewer instructions
        return {row, kv_head * p.group + c - row * p.group};
    }

    /* Finds the unit of this cluster. False if the sequence has fewer rows. */
    __device__ __forceinline__ bool find()
    {
        seq = all.seqs[blockIdx.z];
        kv_head = (int)blockIdx.y;
        part = (int)blockIdx.x >> p.log_cluster;
        n_columns = min(seq.n_rows * p.group - part * COLUMNS, COLUMNS);
        // all units of a KV head have the same chunks, so that the first one stores all new keys
        first_chunk = first_seen(0) / CHUNK;
        n_chunks = (seq.n_past + seq.n_rows - 1) / CHUNK + 1 - first_chunk;
        return n_columns > 0;
    }

    __device__ __forceinline__ int first_seen(int row) const
    {
        return all.bounds.window > 0 ? max(seq.n_past + row + 1 - all.bounds.window, 0) : 0;
    }

    /* Loads what does not depend on the preceding product. */
    __device__ __forceinline__ void begin()
    {
        const int row = min(lane >> 2, seq.n_rows - 1);
        new_page = table()[(seq.n_past + row) >> p.log_bt];
        if (warp <= KEYS) {
            const int of = warp < KEYS ? column_of(warp * 8 + (lane >> 2)).row : row;
            rope.load_weights(p, lane, warp < KEYS);
            rope.load_angles(p, lane, p.rows[seq.first_row + of].pos, warp < KEYS);
        }
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) {
            const int of = column_of(i / 2 * 8 + (lane & 3) * 2 + i % 2).row;
            low[i / 2][i % 2] = first_seen(of);
            seen[i / 2][i % 2] =
                seq.tree ? (uint32_t)all.tree_mask[(seq.first_row + of) * TREE_MASK_WORDS]
                         : (2u << of) - 1;
        }
    }

    __device__ __forceinline__ const int32_t *table() const
    {
        return p.blocks + (int64_t)seq.lane * p.blocks_stride;
    }

    /* ---- the loading warp, each lane of which loads a box of some warp's chunks */

    __device__ __forceinline__ uint32_t look_up() const
    {
        const int chunk = min(worker + n_fetched * n_workers, n_chunks - 1);
        return table()[(first_chunk + chunk) * CHUNK >> p.log_bt];
    }

    __device__ __forceinline__ bool has_more() const
    {
        return lane < S::LANES && worker + n_fetched * n_workers < n_chunks;
    }

    __device__ __forceinline__ void fetch()
    {
        const int box = lane % 2, chunk = first_chunk + worker + n_fetched * n_workers;
        const int first_row = (int)page * p.page_rows + kv_head * p.head_rows +
                              (chunk * CHUNK & (p.kv.block_tokens - 1));
        if (box == 0) {
            barrier_expect(&full[slot], S::SLOT);
        }
        tensor_load_3d(slots + slot * S::SLOT + box * S::BOX, map, &full[slot], 0,
                       first_row + box * p.v_rows, 0, policy_evict_first());
        n_fetched++;
        slot = slot + 1 < n_slots ? slot + 1 : 0;
        page = look_up();
    }

    /* Makes the barriers and fills the rings. */
    __device__ __forceinline__ void begin_loading()
    {
        if (lane % 2 == 0 && lane < S::LANES) {
#pragma unroll 1
            for (int i = 0; i < n_slots; i++) {
                barrier_init(&full[i], 1);
                barrier_init(&empty[i], 1);
            }
            barrier_init_done();
        }
        __syncwarp();
        page = look_up();
#pragma unroll 1
        for (int i = 0; i < S::MOST_SLOTS; i++) {
            if (i < n_slots && has_more()) {
                fetch();
            }
        }
    }

    /* Refills slots as they are left. Lanes poll, because they wait for different warps. */
    __device__ __forceinline__ void load_rest()
    {
        enum { PAUSE = 50 }; // ns; arbitrary
        bool more = has_more();
#pragma unroll 1
        while (__any_sync(0xffffffffu, more)) {
            const bool ready = more && barrier_passed(&empty[slot], parity);
            if (ready) {
                fetch();
                parity ^= slot == 0;
                more = has_more();
            } else {
                __nanosleep(PAUSE);
            }
        }
    }

    /* ---- the new rows */

    /* Makes tile `warp`: normalised and rotated queries or keys, or values. Lane l has a quarter of
     * column, or new row, l / 4. */
    __device__ __forceinline__ void make_tile()
    {
        struct few_column from = {min(lane >> 2, seq.n_rows - 1), p.n_heads + kv_head};
        if (warp < KEYS) {
            from = column_of(warp * 8 + (lane >> 2));
        } else if (warp == VALUES) {
            from.head += p.kv.n_kv_heads;
        }
        const T *qkv =
            (const T *)p.qkv + (int64_t)(seq.first_row + from.row) * p.stride + from.head * DIM;
        uint32_t x[J][4];
#pragma unroll
        for (int j = 0; j < J; j++) {
            const uint4 v = *reinterpret_cast<const uint4 *>(qkv + few_dim<DIM>(lane, j));
            x[j][0] = v.x, x[j][1] = v.y, x[j][2] = v.z, x[j][3] = v.w;
        }
        if (warp == VALUES) {
            prepare_values(x);
        } else {
            rope.apply(p, lane, x);
        }
#pragma unroll
        for (int j = 0; j < J; j++) {
            tiles[(warp * J + j) * 32 + lane] = make_uint4(x[j][0], x[j][1], x[j][2], x[j][3]);
        }
    }

    __device__ __forceinline__ void prepare_values(uint32_t (&x)[J][4])
    {
        bool ok = true;
#pragma unroll
        for (int j = 0; j < J; j++) {
            if (!are_storable<T, false>(make_uint4(x[j][0], x[j][1], x[j][2], x[j][3]))) {
                x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0;
                ok = false;
            }
        }
        const uint32_t lanes = __ballot_sync(0xffffffffu, !ok);
        if (lane == 0) {
            *broken = lanes;
        }
        if (DIM == 256 && p.v_norm) {
            const float scale = rope.norm_scale(x, p.eps);
#pragma unroll
            for (int i = 0; i < J * 4; i++) {
                const float2 v = unpack<T>(x[i / 4][i % 4]);
                x[i / 4][i % 4] = pack<T>(v.x * scale, v.y * scale);
            }
        }
    }

    __device__ __forceinline__ void get_queries()
    {
#pragma unroll
        for (int i = 0; i < TILES * J; i++) {
            const uint4 v = tiles[i * 32 + lane];
            q[i / J][i % J][0] = v.x, q[i / J][i % J][1] = v.y;
            q[i / J][i % J][2] = v.z, q[i / J][i % J][3] = v.w;
        }
    }

    /* Stores the new keys and values that belong to the chunk, whose first key is key `first` of
     * the sequence, into its slot; the first unit of a KV head also stores them into their pages.
     */
    __device__ __forceinline__ void add_new(char *chunk, int first)
    {
        const int r = lane >> 2, at = seq.n_past + r - first;
        char *v_chunk = chunk + S::BOX;
        if (r < seq.n_rows && at >= 0 && at < CHUNK) {
            const bool ok = (*broken >> (lane & ~3) & 15) == 0;
            T *to = (T *)p.kv.base + (int64_t)new_page * p.kv.page_stride +
                    (int64_t)kv_head * p.kv.head_stride +
                    ((seq.n_past + r) & (p.kv.block_tokens - 1)) * DIM;
#pragma unroll 1
            for (int j = 0; j < J; j++) {
                uint4 key = tiles[(KEYS * J + j) * 32 + lane];
                const uint4 value = tiles[(VALUES * J + j) * 32 + lane];
                const int dim = few_dim<DIM>(lane, j);
                key.x = ok ? key.x : pack<T>(NAN, NAN);
                *reinterpret_cast<uint4 *>(chunk + slot_place(at, dim)) = key;
                *reinterpret_cast<uint4 *>(v_chunk + slot_place(at, dim)) = value;
                if (part == 0) {
                    *reinterpret_cast<uint4 *>(to + dim) = key;
                    *reinterpret_cast<uint4 *>(to + p.kv.v_offset + dim) = value;
                }
            }
        }
        if (lane < DIM / 8) { // the rows after the last new key contain garbage
            for (int i = seq.n_past + seq.n_rows - first; i < CHUNK; i++) {
                *reinterpret_cast<uint4 *>(v_chunk + slot_place(i, lane * 8)) =
                    make_uint4(0, 0, 0, 0);
            }
        }
        fence_async(); // before the copy engine refills the slot
        __syncwarp();
    }

    /* ---- chunks */

    /* The products of keys g ([0], [1]) and g + 8 with the columns. */
    __device__ __forceinline__ void score(const char *chunk, float (&x)[TILES][4]) const
    {
        float s[TILES][2][4] = {};
#pragma unroll
        for (int j = 0; j < J; j++) {
            const char *k = chunk + slot_place(lane >> 2, few_dim<DIM>(lane, j));
            const uint4 u = *reinterpret_cast<const uint4 *>(k);
            const uint4 v = *reinterpret_cast<const uint4 *>(k + 8 * 128);
            const uint32_t a[4] = {u.x, v.x, u.y, v.y}, b[4] = {u.z, v.z, u.w, v.w};
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                mma_16x8x16(s[n][0], a, q[n][j][0], q[n][j][1], T());
                mma_16x8x16(s[n][1], b, q[n][j][2], q[n][j][3], T());
            }
        }
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) {
            x[i / 4][i % 4] = s[i / 4][0][i % 4] + s[i / 4][1][i % 4];
        }
    }

    /* Hides the scores of keys that a column's row does not see. */
    __device__ __forceinline__ void hide(int first, float (&x)[TILES][4]) const
    {
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) {
            const int n = i / 4, h = i % 2, at = first + (lane >> 2) + i % 4 / 2 * 8;
            const int node = at - seq.n_past; // below 32, since there are at most 8 new rows
            const bool is_new = node >= 0, is_named = (seen[n][h] >> (node & 31) & 1) != 0;
            const bool is_seen = (at >= low[n][h]) & (is_named | !is_new);
            x[n][i % 4] = is_seen ? x[n][i % 4] : -INFINITY;
        }
    }

    /* Adds the chunk, whose first key is key `first` of the sequence. */
    __device__ __forceinline__ void add_chunk(const char *chunk, int first)
    {
        float x[TILES][4], decay[TILES][2];
        uint32_t b[TILES][2];
        score(chunk, x);
        if (first + CHUNK > seq.n_past || all.bounds.window > 0) {
            hide(first, x);
        }
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float high = fmaxf(column_max(x[n][h], x[n][h + 2]), top[n][h]);
                const float safe = high == -INFINITY ? 0.0f : high; // the row may see no key yet
                decay[n][h] = exp2_fast((top[n][h] - safe) * p.scale_log2);
                top[n][h] = high;
                x[n][h] = exp2_fast((x[n][h] - safe) * p.scale_log2);
                x[n][h + 2] = exp2_fast((x[n][h + 2] - safe) * p.scale_log2);
            }
            b[n][0] = transposed(pack<T>(x[n][0], x[n][1]));
            b[n][1] = transposed(pack<T>(x[n][2], x[n][3]));
        }
        const uint32_t one = pack<T>(1.0f, 1.0f), ones[4] = {one, one, one, one};
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            add_product(sums[n], ones, decay[n], b[n]);
        }
        const char *v = chunk + S::BOX;
        const int r = (lane & 7) + (lane >> 4) * 8, half = (lane >> 3 & 1) * 8;
#pragma unroll
        for (int f = 0; f < DIM / 16; f++) {
            uint32_t a[4];
            ldmatrix_x4_transposed(a, v + slot_place(r, f * 16 + half));
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                add_product(values[n][f], a, decay[n], b[n]);
            }
        }
    }

    __device__ __forceinline__ static void add_product(float (&to)[4], const uint32_t (&a)[4],
                                                       const float (&decay)[2],
                                                       const uint32_t (&b)[2])
    {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            to[e] *= decay[e & 1];
        }
        mma_16x8x16(to, a, b[0], b[1], T());
    }

    /* Processes this warp's chunks, the first of which are in flight. */
    __device__ __forceinline__ void add_chunks()
    {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            top[n][0] = top[n][1] = -INFINITY;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sums[n][e] = 0.0f;
#pragma unroll
                for (int f = 0; f < DIM / 16; f++) {
                    values[n][f][e] = 0.0f;
                }
            }
        }
#pragma unroll 1
        for (int c = worker; c < n_chunks; c += n_workers) {
            const int first = (first_chunk + c) * CHUNK;
            barrier_wait(&full[slot], parity);
            char *at = slots + slot * S::SLOT;
            if (first + CHUNK > seq.n_past) {
                add_new(at, first);
            }
            add_chunk(at, first);
            __syncwarp();
            if (lane == 0) {
                barrier_arrive(&empty[slot]);
            }
            if (++slot == n_slots) {
                slot = 0;
                parity ^= 1;
            }
        }
    }

    /* ---- joining */

    /* The number of a head's elements that this block joins. */
    __device__ __forceinline__ int dims_mine() const
    {
        return DIM >> p.log_cluster;
    }

    /* The bytes that all warps of the cluster send to this block. */
    __device__ __forceinline__ uint32_t bytes_sent() const
    {
        return (uint32_t)(min(n_workers, n_chunks) * ((n_columns + 1) & ~1) *
                          (dims_mine() * 4 + 8));
    }

    /* Sends this warp's results to the blocks that join them. Layout of `room`: for each worker the
     * block's elements of each column, then for each worker and column the maximum and the sum. */
    __device__ __forceinline__ void send(float *room, uint64_t *bar) const
    {
        const int g = lane >> 2, dims = dims_mine();
        const int log_tiles = S::LOG_TILES - p.log_cluster; // tiles of elements per block
        if (worker >= n_chunks) {
            return;
        }
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const int column = n * 8 + (lane & 3) * 2;
            if (column >= n_columns) {
                continue;
            }
            float *mine = room + (worker * dims + g) * COLUMNS + column;
#pragma unroll
            for (int f = 0; f < DIM / 16; f++) {
                const int block = f >> log_tiles;
                float *to = mine + (f - (block << log_tiles)) * 16 * COLUMNS;
                const uint32_t there = address_in(bar, block);
                store_in(address_in(to, block), there, values[n][f][0], values[n][f][1]);
                store_in(address_in(to + 8 * COLUMNS, block), there, values[n][f][2],
                         values[n][f][3]);
            }
            if (g < 1 << p.log_cluster) {
                float *rest = room + (n_workers * dims + worker * 2) * COLUMNS + column * 2;
                const uint32_t there = address_in(bar, g);
                store_in(address_in(rest, g), there, top[n][0], sums[n][0]);
                store_in(address_in(rest + 2, g), there, top[n][1], sums[n][1]);
            }
        }
    }

    /* Makes the weights of the n workers' results from their maxima and sums, a warp for each pair
     * of columns. The tiles are no longer needed and leave their place to the weights. */
    __device__ __forceinline__ void make_weights(const float *room, int n, float *weights) const
    {
        constexpr int EACH = S::WARPS * MAX_CLUSTER / 32;
#pragma unroll 1
        for (int i = warp; i * 2 < n_columns; i += S::WARPS) {
            // of both columns the maximum and the sum
            const float4 *rest = (const float4 *)(room + n_workers * dims_mine() * COLUMNS) + i;
            float4 of[EACH];
            float high[2] = {-INFINITY, -INFINITY}, sum[2] = {};
            if (all.bounds.sinks) { // a sink counts as a key without a value
                high[0] = all.bounds.sinks[column_of(2 * i).head] * LOG2E / p.scale_log2;
                high[1] = all.bounds.sinks[column_of(2 * i + 1).head] * LOG2E / p.scale_log2;
            }
            const float sink[2] = {high[0], high[1]};
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int w = lane + e * 32;
                of[e] =
                    w < n ? rest[w * (COLUMNS / 2)] : make_float4(-INFINITY, 0.0f, -INFINITY, 0.0f);
                high[0] = fmaxf(high[0], of[e].x);
                high[1] = fmaxf(high[1], of[e].z);
            }
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                high[0] = fmaxf(high[0], __shfl_xor_sync(0xffffffffu, high[0], step));
                high[1] = fmaxf(high[1], __shfl_xor_sync(0xffffffffu, high[1], step));
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                of[e].x = exp2_fast((of[e].x - high[0]) * p.scale_log2);
                of[e].z = exp2_fast((of[e].z - high[1]) * p.scale_log2);
                sum[0] += of[e].y * of[e].x;
                sum[1] += of[e].w * of[e].z;
            }
            const float all_sums[2] = {
                warp_sum(sum[0]) + exp2_fast((sink[0] - high[0]) * p.scale_log2),
                warp_sum(sum[1]) + exp2_fast((sink[1] - high[1]) * p.scale_log2)};
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int w = lane + e * 32;
                if (w < n) {
                    *reinterpret_cast<float2 *>(weights + w * COLUMNS + 2 * i) = make_float2(
                        __fdividef(of[e].x, all_sums[0]), __fdividef(of[e].z, all_sums[1]));
                }
            }
        }
    }

    /* Joins the results of n workers for this block's elements. A lane joins every second worker's
     * results for one element of some columns. */
    __device__ __forceinline__ void join_all(const float *room, int n, float *weights) const
    {
        constexpr int EACH = 16 / S::WARPS; // columns
        const int n_mine = dims_mine() * COLUMNS, half = lane >> 4;
        make_weights(room, n, weights);
        __syncthreads();
        if (warp == S::WARPS) {
            return;
        }
#pragma unroll 1
        for (int i = (warp * 16 + (lane & 15)) * EACH; i < n_mine; i += S::WARPS * 16 * EACH) {
            const int column = i % COLUMNS;
            float sum[EACH] = {};
#pragma unroll 4
            for (int w = half; w < n; w += 2) {
                float value[EACH], weight[EACH];
                load(value, room + w * n_mine + i);
                load(weight, weights + w * COLUMNS + column);
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    sum[e] += value[e] * weight[e];
                }
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 16);
            }
#pragma unroll
            for (int e = 0; e < EACH / 2; e++) {
                const int c = column + half * (EACH / 2) + e;
                const struct few_column to = column_of(c);
                if (c < n_columns) {
                    T *out = (T *)p.out + (int64_t)(seq.first_row + to.row) * p.out_stride;
                    out[to.head * DIM + rank * dims_mine() + i / COLUMNS] =
                        from_float<T>(half ? sum[EACH / 2 + e] : sum[e]);
                }
            }
        }
    }

    template <int N> __device__ __forceinline__ static void load(float (&to)[N], const float *from)
    {
        if constexpr (N == 4) {
            *reinterpret_cast<float4 *>(to) = *reinterpret_cast<const float4 *>(from);
        } else {
            *reinterpret_cast<float2 *>(to) = *reinterpret_cast<const float2 *>(from);
        }
    }
};

#endif // HAVE_SM90A

#endif
