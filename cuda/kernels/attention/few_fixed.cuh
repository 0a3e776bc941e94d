// SPDX-License-Identifier: Apache-2.0
/* How a warp of few_fixed.cu processes units alone.
 * Thread: device code, one warp at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FEW_FIXED_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FEW_FIXED_CUH

#include "cuda/kernels/attention/fixed_row.cuh"

template <int DIM> struct fixed_few_shape : fixed_row_shape<DIM> {
    static constexpr int WARPS = 4, BLOCKS = 4; // warps per block; resident blocks per SM
    static_assert(fixed_row_shape<DIM>::RUN == 32, "a lane for each page of a run");
};

#if HAVE_SM90A

/* A warp and its units: every step-th one from `first` on. It fetches ahead across the borders of
 * units: the keys of a tile, then its values. */
template <typename T, int DIM, bool NORM> struct fixed_few : fixed_row<T, DIM, NORM> {
    using S = fixed_few_shape<DIM>;
    using R = fixed_row<T, DIM, NORM>;
    using R::fixed_row; // the constructor
    using R::p, R::lane, R::past, R::n_chunks;
    static constexpr int J = S::J, TILES = S::TILES;
    const CUtensorMap *map; // boxes of pages
    uint64_t *full;         // this warp's barriers, one per slot
    char *slots;            // this warp's ring
    int n_slots;
    int first, step, n_units; // at most MAX_UNITS

    // Lane l has the row of unit l, and its number. slot_pos -1: padding.
    struct pass_row info;
    int row_number;

    /* The next chunk to fetch: number i of the unit's chunks of keys and of values. */
    struct {
        int unit, i, n_chunks, kv_head;
        uint32_t pages; // lane l has the page of the run's chunk l
    } ahead;
    int slot = 0; // the slot to process next
    uint32_t parity = 0;

    // In lanes with lane % 4 == t: for heads 2 t and 2 t + 1.
    float top[2], sum[2], values[TILES][4];

    /* ---- fetching ---- */

    __device__ __forceinline__ void begin()
    {
        if (lane == 0) {
#pragma unroll 1
            for (int i = 0; i < n_slots; i++) {
                barrier_init(&full[i], 1);
            }
            barrier_init_done();
            tensor_map_prefetch(map);
        }
        __syncwarp();
        row_number = (first + min(lane, n_units - 1) * step) / R::p.heads_y();
        info = p.rows[row_number];
        if (p.row_seq[row_number] < 0) {
            info.slot_pos = -1;
        }
        enter(0);
#pragma unroll 1
        for (int i = 0; i < n_slots; i++) {
            fetch(i);
        }
    }

    /* The index of unit k among its row's units: the KV head and the part of its group. */
    __device__ __forceinline__ int head_of(int k) const
    {
        return first + k * step - __shfl_sync(0xffffffffu, row_number, k) * R::p.heads_y();
    }

    /* The pages of a run of unit k, from chunk `chunk` on. */
    __device__ __forceinline__ uint32_t look_up(int k, int chunk) const
    {
        const int end = max(__shfl_sync(0xffffffffu, info.slot_pos, k), 0) / CHUNK;
        const int32_t *blocks =
            p.blocks + (int64_t)__shfl_sync(0xffffffffu, info.lane, k) * p.blocks_stride;
        return blocks[min(chunk + lane, end) * CHUNK >> p.log_bt];
    }

    __device__ __forceinline__ void enter(int k)
    {
        const int past = __shfl_sync(0xffffffffu, info.slot_pos, k);
        ahead.unit = k;
        ahead.i = 0;
        ahead.n_chunks = past < 0 ? 0 : past / CHUNK + 1;
        ahead.kv_head = head_of(k) >> p.log_parts;
        ahead.pages = look_up(k, 0);
    }

    /* Fetches the next chunk into slot `to`. */
    __device__ __forceinline__ void fetch(int to)
    {
        while (ahead.i >= 2 * ahead.n_chunks) {
            if (ahead.unit + 1 >= n_units) {
                return;
            }
            enter(ahead.unit + 1);
        }
        const int start = ahead.i / (2 * S::TILE) * S::TILE; // the tile's first chunk
        const int n = min(S::TILE, ahead.n_chunks - start), k = ahead.i % (2 * S::TILE);
        const int chunk = start + (k < n ? k : k - n);
        if (k == 0 && start > 0 && start % S::RUN == 0) {
            ahead.pages = look_up(ahead.unit, start);
        }
        const int page = (int)__shfl_sync(0xffffffffu, ahead.pages, chunk % S::RUN);
        const int first_row = page * p.page_rows + ahead.kv_head * p.head_rows +
                              (chunk * CHUNK & (p.kv.block_tokens - 1)) + (k < n ? 0 : p.v_rows);
        if (lane == 0) {
            barrier_expect(&full[to], S::SLOT);
            tensor_load_3d(slots + to * S::SLOT, map, &full[to], 0, first_row, 0,
                           policy_evict_first());
        }
        ahead.i++;
    }

    /* The next chunk, once it has arrived. */
    __device__ __forceinline__ char *take()
    {
        barrier_wait(&full[slot], parity);
        return slots + slot * S::SLOT;
    }

    __device__ __forceinline__ void release()
    {
        __syncwarp();
        fetch(slot);
        if (++slot == n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }

    /* ---- sums ---- */

    /* Turns a tile's scores into probabilities, with the arithmetic of wide.cuh. */
    __device__ __forceinline__ void softmax(float (&s)[S::TILE][4])
    {
        float decay[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float high = -INFINITY;
#pragma unroll
            for (int c = 0; c < S::TILE; c++) {
                high = fmaxf(high, fmaxf(s[c][h], s[c][h + 2]));
            }
            high = next_reference(top[h], R::highest(high), p.scale_log2);
            const float safe = high == -INFINITY ? 0.0f : __fmul_rn(high, p.scale_log2);
            decay[h] = exp2_fast(__fsub_rn(__fmul_rn(top[h], p.scale_log2), safe));
            top[h] = high;
            float add = 0.0f;
#pragma unroll
            for (int c = 0; c < S::TILE; c++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[c][h + 2 * e];
                    x = exp2_fast(__fmaf_rn(x, p.scale_log2, -safe));
                    add = __fadd_rn(add, x);
                }
            }
            add = __fadd_rn(add, __shfl_xor_sync(0xffffffffu, add, 4));
            sum[h] = __fmaf_rn(sum[h], decay[h], add);
        }
        if (__any_sync(0xffffffffu, decay[0] != 1.0f || decay[1] != 1.0f)) {
#pragma unroll
            for (int f = 0; f < TILES; f++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    values[f][e] *= decay[e & 1];
                }
            }
        }
    }

    /* Adds a chunk's values; b0 and b1: its probabilities, as operands. */
    __device__ __forceinline__ void add_values(int chunk, uint32_t b0, uint32_t b1)
    {
        char *v = take();
        if (chunk == n_chunks - 1) {
            R::add_value(v);
        }
#pragma unroll
        for (int f = 0; f < TILES; f++) {
            uint32_t a[4];
            R::load_values(v, f, a);
            mma_16x8x16(values[f], a, b0, b1, T());
        }
        release();
    }

    /* Adds a tile, whose first chunk is `start`. Loops are not unrolled but shift the array by a
     * chunk, because code that runs once per launch takes longer to fetch than to run. */
    __device__ __forceinline__ void add_tile(int start)
    {
        const int n = min(S::TILE, n_chunks - start);
        float s[S::TILE][4];
#pragma unroll 1
        for (int c = 0; c < S::TILE; c++) {
#pragma unroll
            for (int i = 0; i + 1 < S::TILE; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[i][e] = s[i + 1][e];
                }
            }
            float (&last)[4] = s[S::TILE - 1];
            if (c < n) {
                R::score(take(), start + c, start + c == n_chunks - 1, last);
                release();
            } else {
                last[0] = last[1] = last[2] = last[3] = -INFINITY;
            }
        }
        softmax(s);
        uint32_t probs[S::TILE][2];
#pragma unroll
        for (int c = 0; c < S::TILE; c++) {
            probs[c][0] = transposed(pack<T>(s[c][0], s[c][1]));
            probs[c][1] = transposed(pack<T>(s[c][2], s[c][3]));
        }
#pragma unroll 1
        for (int c = 0; c < n; c++) {
            add_values(start + c, probs[0][0], probs[0][1]);
#pragma unroll
            for (int i = 0; i + 1 < S::TILE; i++) {
                probs[i][0] = probs[i + 1][0];
                probs[i][1] = probs[i + 1][1];
            }
        }
    }

    __device__ __forceinline__ void begin_run()
    {
        top[0] = top[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int f = 0; f < TILES; f++) {
            values[f][0] = values[f][1] = values[f][2] = values[f][3] = 0.0f;
        }
    }

    /* Joins the run to the earlier ones, if the row has several. */
    __device__ __forceinline__ void end_run(bool is_first, float (&all_top)[2], float (&all_sum)[2],
                                            float (&kept)[TILES][4])
    {
        R::finish_run(top, sum);
        if (n_chunks <= S::RUN) {
            return;
        }
        struct join_weights w[2];
        R::join_run(is_first, top, sum, all_top, all_sum, w);
#pragma unroll
        for (int f = 0; f < TILES; f++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float old = is_first ? 0.0f : kept[f][e];
                values[f][e] = kept[f][e] = join_value(w[e & 1], old, values[f][e]);
            }
        }
    }

    /* Loads the inputs of unit k that do not depend on the preceding product. */
    __device__ __forceinline__ void enter_unit(int k, float4 (&cos_sin)[J * 2], float *growth)
    {
        struct pass_row own;
        own.lane = __shfl_sync(0xffffffffu, info.lane, k);
        own.pos = __shfl_sync(0xffffffffu, info.pos, k);
        own.slot_pos = __shfl_sync(0xffffffffu, info.slot_pos, k);
        R::enter(__shfl_sync(0xffffffffu, row_number, k), head_of(k), own, cos_sin, growth);
    }

    /* Processes the unit that has been entered. */
    __device__ __forceinline__ void unit(const float4 (&cos_sin)[J * 2], float growth)
    {
        float all_top[2], all_sum[2], kept[TILES][4]; // of the earlier runs
        R::load_rows();
        R::rotate(cos_sin, growth);
#pragma unroll 1
        for (int start = 0; start < n_chunks; start += S::TILE) {
            if (start % S::RUN == 0) {
                begin_run();
            }
            add_tile(start);
            if (start + S::TILE >= n_chunks || (start + S::TILE) % S::RUN == 0) {
                end_run(start < S::RUN, all_top, all_sum, kept);
            }
        }
        const float w[2] = {final_weight(top[0], sum[0], nullptr, 0),
                            final_weight(top[1], sum[1], nullptr, 0)};
#pragma unroll
        for (int f = 0; f < TILES; f++) {
            R::store(f, values[f], w);
        }
    }
};

#endif // HAVE_SM90A

#endif
