// SPDX-License-Identifier: Apache-2.0
/* The device half of few.cu: how a warp processes one row and KV head.
 * Thread: device code, one warp at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FEW_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FEW_CUH

#include "cuda/kernels/attention/few_codes.cuh"
#include "cuda/kernels/attention/few_rope.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/sums.cuh"

#if HAVE_SM90A

__device__ __forceinline__ uint32_t transposed(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* The byte offset in a slot of element `dim` of a chunk's row. */
__device__ __forceinline__ int slot_place(int row, int dim)
{
    return (dim >> 6) * FEW_PART_BYTES + (int)swizzled(row, dim >> 3 & 7);
}

/* If any lane's part of the new value has NaN or infinity, replaces that part by zeros and makes
 * the new key NaN. `key`: a word of that key. */
template <typename T> __device__ __forceinline__ void few_drop_broken(uint4 &value, uint32_t &key)
{
    const bool ok = are_storable<T, false>(value);
    if (!__all_sync(0xffffffffu, ok)) {
        value = ok ? value : make_uint4(0, 0, 0, 0);
        key = pack<T>(NAN, NAN); // the lanes with queries of this row get NaN, too
    }
}

/* The largest value of a column of scores, of which each lane has two. */
__device__ __forceinline__ float column_max(float a, float b)
{
    float high = fmaxf(a, b);
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 4));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 8));
    return fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 16));
}

/* A warp's part of the units of its block, which are a single unit or every step-th one from
 * `first` on. It fetches ahead across the borders of units. */
template <typename T, int DIM, bool NORM, few_way WAY, bool BOUNDED, few_turn TURN = TURN_HALVES>
struct few {
    using S = few_shape<DIM, WAY>;
    static constexpr bool ALONE = WAY != BY_CLUSTER && WAY != BY_CLUSTER_OF_CODES;
    const struct few_params &p;
    const CUtensorMap *map;          // boxes of pages
    const struct few_bounds &bounds; // read only if BOUNDED
    uint64_t *full;                  // this warp's barriers, one per slot
    char *slots;                     // this warp's ring
    int rank, warp, lane, worker, n_workers;
    int first, step, n_units; // units of this block, at most MAX_UNITS

    struct pass_row info; // lane l has the row of unit l; slot_pos -1: padding

    /* The next chunk to fetch. */
    struct {
        int unit, i, first_chunk, n_chunks, kv_head;
        uint32_t pages, next_pages; // lane l has the page of this warp's chunk i, where i % 32 == l
    } ahead;
    int slot = 0; // the slot to process next
    uint32_t parity = 0;

    int row, kv_head, part;
    // past: number of older keys; n_chunks: number of chunks from first_chunk on, including the new
    // key
    int past, first_chunk, n_chunks;
    uint32_t new_page;
    uint32_t q[S::J][4];
    uint4 value;
    float top[2], values[S::TILES][4], sums[4]; // for heads 2 t and 2 t + 1

    few_rope<T, DIM, NORM, TURN> rope;

    /* Loads the rows of the block's units and starts the first fetches. */
    __device__ __forceinline__ void begin()
    {
        if (lane == 0) {
            for (int i = 0; i < S::SLOTS; i++) {
                barrier_init(&full[i], 1);
            }
            barrier_init_done();
            tensor_map_prefetch(map);
        }
        const int r = (first + min(lane, n_units - 1) * step) / p.heads_y();
        info = p.rows[r];
        if (p.row_seq[r] < 0) {
            info.slot_pos = -1;
        }
        ahead.next_pages = look_up(0, 0);
        enter(0);
#pragma unroll 1
        for (int i = 0; i < S::SLOTS; i++) {
            fetch(i);
        }
        if (!S::MANY) {
            rope.load_weights(p, lane, is_query());
        }
    }

    /* The chunk of the first key that a row sees. */
    __device__ __forceinline__ int first_seen(int past) const
    {
        return !BOUNDED || bounds.window <= 0 ? 0 : max(past + 1 - bounds.window, 0) / CHUNK;
    }

    /* The pages of 32 chunks of unit k, from chunk i on. */
    __device__ __forceinline__ uint32_t look_up(int k, int i) const
    {
        const int past = __shfl_sync(0xffffffffu, info.slot_pos, k), end = past / CHUNK;
        const int32_t *blocks =
            p.blocks + (int64_t)__shfl_sync(0xffffffffu, info.lane, k) * p.blocks_stride;
        const int chunk = first_seen(past) + worker + (i + lane) * n_workers;
        return blocks[min(chunk, end) * CHUNK >> p.log_bt];
    }

    __device__ __forceinline__ void enter(int k)
    {
        const int past = __shfl_sync(0xffffffffu, info.slot_pos, k);
        ahead.unit = k;
        ahead.i = 0;
        ahead.first_chunk = first_seen(past);
        ahead.n_chunks = past < 0 ? 0 : past / CHUNK + 1 - ahead.first_chunk;
        ahead.kv_head = (first + k * step) % p.heads_y() >> p.log_parts;
        ahead.pages = ahead.next_pages;
        if (S::MANY && k + 1 < n_units) {
            ahead.next_pages = look_up(k + 1, 0);
        }
    }

    /* Fetches this warp's next chunk into slot `to`. */
    __device__ __forceinline__ void fetch(int to)
    {
        while (S::MANY && worker + ahead.i * n_workers >= ahead.n_chunks &&
               ahead.unit + 1 < n_units) {
            enter(ahead.unit + 1);
        }
        const int chunk = worker + ahead.i * n_workers;
        if (chunk >= ahead.n_chunks) {
            return;
        }
        if (ahead.i > 0 && (ahead.i & 31) == 0) {
            ahead.pages = look_up(ahead.unit, ahead.i);
        }
        const int page = (int)__shfl_sync(0xffffffffu, ahead.pages, ahead.i & 31);
        const int first_row = page * p.page_rows + ahead.kv_head * p.head_rows +
                              ((ahead.first_chunk + chunk) * CHUNK & (p.kv.block_tokens - 1));
        if (lane == 0) {
            barrier_expect(&full[to], S::SLOT);
        }
        __syncwarp();
        if (lane < 2) {
            tensor_load_3d(slots + to * S::SLOT + lane * S::BOX, map, &full[to], 0,
                           first_row + lane * p.v_rows, 0, policy_evict_first());
        }
        ahead.i++;
    }

    /* Loads the inputs of unit k that do not depend on the preceding product. */
    __device__ __forceinline__ void enter_unit(int k)
    {
        const int unit = first + k * step;
        row = unit / p.heads_y();
        kv_head = unit % p.heads_y() >> p.log_parts;
        part = unit & ((1 << p.log_parts) - 1);
        past = __shfl_sync(0xffffffffu, info.slot_pos, k);
        first_chunk = first_seen(past);
        n_chunks = past < 0 ? 0 : past / CHUNK + 1 - first_chunk;
        if (past < 0) {
            return;
        }
        const int pos = __shfl_sync(0xffffffffu, info.pos, k);
        new_page = p.blocks[(int64_t)__shfl_sync(0xffffffffu, info.lane, k) * p.blocks_stride +
                            (past >> p.log_bt)];
        rope.load_angles(p, lane, pos, is_query());
    }

    /* True if this lane's row is a query head; otherwise it is the new key. */
    __device__ __forceinline__ bool is_query() const
    {
        return lane >> 2 < p.group;
    }

    __device__ __forceinline__ int first_head() const
    {
        return ((kv_head << p.log_parts) + part) * p.group;
    }

    /* Where vector j of the qkv rows starts for this lane. Row g is head g of the group; the row
     * after the last head is the key. Vector J is the value, of which a lane has eight elements. */
    __device__ __forceinline__ int column_of(int j) const
    {
        const int g = lane >> 2, head = g < p.group ? first_head() + g : p.n_heads + kv_head;
        return j < S::J ? head * DIM + few_dim<DIM>(lane, j)
                        : (p.n_heads + p.kv.n_kv_heads + kv_head) * DIM + lane % (DIM / 8) * 8;
    }

    __device__ __forceinline__ void load_rows()
    {
        const T *qkv = (const T *)p.qkv + (int64_t)row * p.stride;
#pragma unroll
        for (int j = 0; j < S::J; j++) {
            const uint4 v = *reinterpret_cast<const uint4 *>(qkv + column_of(j));
            q[j][0] = v.x, q[j][1] = v.y, q[j][2] = v.z, q[j][3] = v.w;
        }
        value = *reinterpret_cast<const uint4 *>(qkv + column_of(S::J));
    }

    /* Partial sums: the warps of the block share the additions, each for some of the vectors, and
     * all warps read the totals from shared memory. */
    static constexpr int SHARE = (S::J + S::WARPS) / S::WARPS;
    uint4 share[SHARE];

    __device__ __forceinline__ void load_share()
    {
#pragma unroll
        for (int i = 0; i < SHARE; i++) {
            if (warp + i * S::WARPS <= S::J) {
                vec<T> v;
                load_sum(&v, p.sums, row, column_of(warp + i * S::WARPS));
                share[i] = *reinterpret_cast<const uint4 *>(&v);
            }
        }
    }

    /* The same in one loop, which is less code, for blocks with a single unit. */
    __device__ __forceinline__ void share_rows(char *rows) const
    {
#pragma unroll 1
        for (int j = warp; j <= S::J; j += S::WARPS) {
            vec<T> v;
            load_sum(&v, p.sums, row, column_of(j));
            v.store((T *)shared_at(rows, j));
        }
    }

    __device__ __forceinline__ char *shared_at(char *rows, int j) const
    {
        const int r = j < S::J ? min(lane >> 2, p.group) : p.group + 1;
        return rows + (r * DIM + (j < S::J ? few_dim<DIM>(lane, j) : lane % (DIM / 8) * 8)) * 2;
    }

    __device__ __forceinline__ void put_share(char *rows) const
    {
#pragma unroll
        for (int i = 0; i < SHARE; i++) {
            if (warp + i * S::WARPS <= S::J) {
                *reinterpret_cast<uint4 *>(shared_at(rows, warp + i * S::WARPS)) = share[i];
            }
        }
    }

    __device__ __forceinline__ void get_rows(char *rows)
    {
#pragma unroll
        for (int j = 0; j < S::J; j++) {
            const uint4 v = *reinterpret_cast<const uint4 *>(shared_at(rows, j));
            q[j][0] = v.x, q[j][1] = v.y, q[j][2] = v.z, q[j][3] = v.w;
        }
        value = *reinterpret_cast<const uint4 *>(shared_at(rows, S::J));
    }

    /* Normalises (if NORM) and rotates the rows. */
    __device__ __forceinline__ void rotate()
    {
        if (S::MANY) {
            // there are too few registers to keep them loaded
            rope.load_weights(p, lane, is_query());
        }
        rope.apply(p, lane, q);
    }

    /* Stores the new key and value into the last chunk's slot and into their page. */
    __device__ __forceinline__ void add_new(char *chunk)
    {
        few_drop_broken<T>(value, q[0][0]);
        if (DIM == 256 && p.v_norm) {
            few_norm_value<T>(value, p.eps);
        }
        const int at = past & (CHUNK - 1);
        T *to = (T *)p.kv.base + (int64_t)new_page * p.kv.page_stride +
                (int64_t)kv_head * p.kv.head_stride + (past & (p.kv.block_tokens - 1)) * DIM;
        if (lane >> 2 == p.group) {
#pragma unroll
            for (int j = 0; j < S::J; j++) {
                const uint4 v = make_uint4(q[j][0], q[j][1], q[j][2], q[j][3]);
                *reinterpret_cast<uint4 *>(chunk + slot_place(at, few_dim<DIM>(lane, j))) = v;
                if (part == 0) {
                    *reinterpret_cast<uint4 *>(to + few_dim<DIM>(lane, j)) = v;
                }
            }
        }
        if (lane < DIM / 8) {
            char *v = chunk + S::BOX;
            *reinterpret_cast<uint4 *>(v + slot_place(at, lane * 8)) = value;
            for (int r = at + 1; r < CHUNK; r++) { // the rows after the new key contain garbage
                *reinterpret_cast<uint4 *>(v + slot_place(r, lane * 8)) = make_uint4(0, 0, 0, 0);
            }
            if (part == 0) {
                *reinterpret_cast<uint4 *>(to + p.kv.v_offset + lane * 8) = value;
            }
        }
        fence_async(); // before the copy engine refills the slot
        __syncwarp();
    }

    /* Adds the chunk in the slot, whose first key is key `first` of the sequence. */
    __device__ __forceinline__ void add_chunk(const char *slot, int first)
    {
        float s[2][4] = {};
#pragma unroll
        for (int j = 0; j < S::J; j++) {
            const char *k = slot + slot_place(lane >> 2, few_dim<DIM>(lane, j));
            const uint4 x = *reinterpret_cast<const uint4 *>(k);
            const uint4 y = *reinterpret_cast<const uint4 *>(k + 8 * 128);
            const uint32_t a[4] = {x.x, y.x, x.y, y.y}, b[4] = {x.z, y.z, x.w, y.w};
            mma_16x8x16(s[0], a, q[j][0], q[j][1], T());
            mma_16x8x16(s[1], b, q[j][2], q[j][3], T());
        }
        const int key = first + (lane >> 2);
        float decay[2], x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = key + e / 2 * 8;
            const bool seen =
                at <= past && (!BOUNDED || bounds.window <= 0 || at > past - bounds.window);
            x[e] = seen ? s[0][e] + s[1][e] : -INFINITY;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float high = fmaxf(column_max(x[h], x[h + 2]), top[h]);
            decay[h] = exp2_fast((top[h] - high) * p.scale_log2);
            top[h] = high;
            x[h] = exp2_fast((x[h] - high) * p.scale_log2);
            x[h + 2] = exp2_fast((x[h + 2] - high) * p.scale_log2);
        }
        const uint32_t b0 = transposed(pack<T>(x[0], x[1]));
        const uint32_t b1 = transposed(pack<T>(x[2], x[3]));
        const uint32_t one = pack<T>(1.0f, 1.0f), ones[4] = {one, one, one, one};
        const char *v = slot + S::BOX;
        const int r = (lane & 7) + (lane >> 4) * 8, half = (lane >> 3 & 1) * 8;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sums[e] *= decay[e & 1];
        }
        mma_16x8x16(sums, ones, b0, b1, T());
#pragma unroll
        for (int f = 0; f < S::TILES; f++) {
            uint32_t a[4];
            ldmatrix_x4_transposed(a, v + slot_place(r, f * 16 + half));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                values[f][e] *= decay[e & 1];
            }
            mma_16x8x16(values[f], a, b0, b1, T());
        }
    }

    /* Processes this warp's chunks, the first of which are in flight. */
    __device__ __forceinline__ void add_chunks()
    {
        top[0] = top[1] = -INFINITY;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sums[e] = 0.0f;
#pragma unroll
            for (int f = 0; f < S::TILES; f++) {
                values[f][e] = 0.0f;
            }
        }
#pragma unroll 1
        for (int c = worker; c < n_chunks; c += n_workers) {
            barrier_wait(&full[slot], parity);
            char *at = slots + slot * S::SLOT;
            if (c == n_chunks - 1) {
                add_new(at);
            }
            add_chunk(at, (first_chunk + c) * CHUNK);
            __syncwarp();
            fetch(slot);
            if (++slot == S::SLOTS) {
                slot = 0;
                parity ^= 1;
            }
        }
    }

    __device__ __forceinline__ int log_blocks() const
    {
        return ALONE ? 0 : p.log_cluster;
    }

    /* The number of a head's elements that this block joins. */
    __device__ __forceinline__ int dims_mine() const
    {
        return DIM >> log_blocks();
    }

    __device__ __forceinline__ int heads_sent() const
    {
        return (p.group + 1) & ~1;
    }

    __device__ __forceinline__ void put(float *to, uint64_t *bar, int block, float a, float b) const
    {
        if (ALONE) {
            *reinterpret_cast<float2 *>(to) = make_float2(a, b);
        } else {
            store_in(address_in(to, block), address_in(bar, block), a, b);
        }
    }

    /* Sends this warp's results to the blocks that join them. Layout of `room`: for each worker the
     * block's elements of each head, then for each worker and head the maximum and the sum. */
    __device__ __forceinline__ void send(float *room, uint64_t *bar, int n) const
    {
        const int g = lane >> 2, h = (lane & 3) * 2, heads = 1 << p.log_heads;
        const int dims = dims_mine();
        if (worker >= n || h >= p.group) {
            return;
        }
        float *mine = room + ((worker * dims + g) << p.log_heads) + h;
        const int log_tiles = S::LOG_TILES - log_blocks(); // tiles per block
#pragma unroll
        for (int f = 0; f < S::TILES; f++) {
            const int block = f >> log_tiles;
            float *to = mine + ((f - (block << log_tiles)) * 16 << p.log_heads);
            put(to, bar, block, values[f][0], values[f][1]);
            put(to + 8 * heads, bar, block, values[f][2], values[f][3]);
        }
        if (g < 1 << log_blocks()) {
            float *rest = room + ((n_workers * dims + worker * 2) << p.log_heads) + h * 2;
            put(rest, bar, g, top[0], sums[0]);
            put(rest + 2, bar, g, top[1], sums[1]);
        }
    }

    /* The bytes that all warps of the cluster send to this block. */
    __device__ __forceinline__ uint32_t bytes_sent() const
    {
        return (uint32_t)(min(n_workers, n_chunks) * heads_sent() * (dims_mine() * 4 + 8));
    }

    /* Starts the unit of a cluster. Returns false, in all blocks of the cluster, if its row is
     * padding. */
    __device__ __forceinline__ bool begin_cluster(uint64_t *bar)
    {
        if (past < 0) {
            pdl_wait();
            return false;
        }
        if (threadIdx.x == 0) {
            barrier_init(bar, 1);
            barrier_init_done();
            barrier_expect(bar, bytes_sent());
        }
        __syncthreads();
        cluster_begun();
        return true;
    }

    /* Where this block's elements of the unit are written. */
    struct few_place {
        int row, head; // the unit's first head
        T *out;        // the block's elements of that head
    };
    __device__ __forceinline__ struct few_place place() const
    {
        return {row, first_head(),
                (T *)p.out + (int64_t)row * p.out_stride + first_head() * DIM + rank * dims_mine()};
    }

    /* Joins the results of n workers for this block's elements. */
    __device__ __forceinline__ void join_all(float *room, int n, const struct few_place &to) const
    {
        const int n_mine = dims_mine() << p.log_heads;
#pragma unroll 1
        for (int i = threadIdx.x; i < n_mine; i += S::WARPS * 32) {
            const int d = i >> p.log_heads, h = i & ((1 << p.log_heads) - 1);
            if (h >= p.group) {
                continue;
            }
            const float2 *rest = (const float2 *)(room + n_workers * n_mine) + h;
            // a sink counts as a key without a value
            const float sink = BOUNDED && bounds.sinks
                                   ? bounds.sinks[to.head + h] * LOG2E / p.scale_log2
                                   : -INFINITY;
            float high = sink, sum = 0.0f, value = 0.0f;
#pragma unroll 1
            for (int first = 0; first < n; first += 4) {
#pragma unroll
                for (int k = 0; k < 4; k++) { // past the end, repeat the last one
                    high = fmaxf(high, rest[min(first + k, n - 1) << p.log_heads].x);
                }
            }
            if (BOUNDED) {
                sum = exp2_fast((sink - high) * p.scale_log2);
            }
#pragma unroll 1
            for (int first = 0; first < n; first += 4) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const int w = min(first + k, n - 1);
                    const float2 other = rest[w << p.log_heads];
                    const float weight =
                        first + k < n ? exp2_fast((other.x - high) * p.scale_log2) : 0.0f;
                    sum += other.y * weight;
                    value += room[w * n_mine + i] * weight;
                }
            }
            const T result = from_float<T>(__fdividef(value, sum));
            if (ALONE && DIM == ROUND_GROUP && p.codes.codes) {
                room[i] = to_float(result); // only this thread has read it
            } else {
                to.out[h * DIM + d] = result;
            }
        }
        if (ALONE && DIM == ROUND_GROUP && p.codes.codes) {
            __syncthreads();
            round_heads<T>(p.codes, room, p.log_heads, p.group, to.row, to.head);
        }
    }
};

#endif // HAVE_SM90A

#endif
