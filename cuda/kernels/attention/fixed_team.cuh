// SPDX-License-Identifier: Apache-2.0
/* How a block of few_fixed.cu processes one unit, if there are few units: each warp computes the
 * scores of one chunk of a tile, then adds all keys' values, in their order, for 16 elements of the
 * value.
 * Thread: device code, all threads of a block. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FIXED_TEAM_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FIXED_TEAM_CUH

#include "cuda/kernels/attention/fixed_row.cuh"

template <int DIM> struct fixed_team_shape : fixed_row_shape<DIM> {
    static constexpr int WARPS = 8;
    static_assert(fixed_row_shape<DIM>::TILE == WARPS && fixed_row_shape<DIM>::TILES <= WARPS,
                  "a warp for each chunk of a tile, and for each part of a value");
};

/* What the warps of a block exchange. */
struct fixed_team_room {
    float2 high[8][4];     // maxima in each warp, for heads 2 t and 2 t + 1
    float4 numbers[8][32]; // probabilities of each lane in fp32
    uint2 probs[8][32];    // the same, as operands
    float2 sum[4];
};

#if HAVE_SM90A

template <typename T, int DIM, bool NORM> struct fixed_team : fixed_row<T, DIM, NORM> {
    using S = fixed_team_shape<DIM>;
    using R = fixed_row<T, DIM, NORM>;
    using R::fixed_row; // the constructor
    using R::p, R::lane, R::past, R::n_chunks;
    static constexpr int J = S::J, TILES = S::TILES, TILE = S::TILE;
    const CUtensorMap *map; // boxes of pages
    uint64_t *full;         // one barrier per slot
    char *slots;
    struct fixed_team_room *room;
    int n_slots, warp;
    const int32_t *table; // the sequence's blocks
    float top[2], sum[2], values[4], decay[2];

    /* ---- chunks: the keys of a tile, then its values, in one ring ---- */

    /* The position of a chunk in the order of loads. */
    __device__ __forceinline__ int place_in_order(int chunk, bool is_value) const
    {
        const int start = chunk / TILE * TILE, n = min(TILE, n_chunks - start);
        return 2 * start + (is_value ? n : 0) + chunk - start;
    }

    /* Called by one thread. Fetches the i-th chunk in the order of loads. */
    __device__ __forceinline__ void fetch(int i) const
    {
        const int start = i / (2 * TILE) * TILE, n = min(TILE, n_chunks - start);
        const int k = i % (2 * TILE), chunk = start + (k < n ? k : k - n), slot = i % n_slots;
        const int page = table[chunk * CHUNK >> p.log_bt];
        const int row = page * p.page_rows + R::kv_head * p.head_rows +
                        (chunk * CHUNK & (p.kv.block_tokens - 1)) + (k < n ? 0 : p.v_rows);
        barrier_expect(&full[slot], S::SLOT);
        tensor_load_3d(slots + slot * S::SLOT, map, &full[slot], 0, row, 0, policy_evict_first());
    }

    /* Refills the slots of the keys (or of the values) of the tile at `start`, which all warps have
     * read. */
    __device__ __forceinline__ void refill(int start, bool is_value) const
    {
        const int chunk = start + (int)threadIdx.x;
        if ((int)threadIdx.x < TILE && chunk < n_chunks) {
            const int i = place_in_order(chunk, is_value) + n_slots;
            if (i < 2 * n_chunks) {
                fetch(i);
            }
        }
    }

    __device__ __forceinline__ char *wait_for(int chunk, bool is_value) const
    {
        const int i = place_in_order(chunk, is_value), round = i / n_slots;
        barrier_wait(&full[i - round * n_slots], round & 1);
        return slots + (i - round * n_slots) * S::SLOT;
    }

    /* ---- sums ---- */

    /* Turns the scores of this warp's chunk into probabilities, with the arithmetic of wide.cuh,
     * and shares them. */
    __device__ __forceinline__ void share(float (&s)[4])
    {
        const int t = lane & 3;
        float2 high = make_float2(R::highest(fmaxf(s[0], s[2])), R::highest(fmaxf(s[1], s[3])));
        if (lane < 4) {
            room->high[warp][t] = high;
        }
        __syncthreads();
        high = make_float2(-INFINITY, -INFINITY);
#pragma unroll
        for (int w = 0; w < S::WARPS; w++) {
            const float2 other = room->high[w][t];
            high = make_float2(fmaxf(high.x, other.x), fmaxf(high.y, other.y));
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float x = next_reference(top[h], h == 0 ? high.x : high.y, p.scale_log2);
            const float safe = x == -INFINITY ? 0.0f : __fmul_rn(x, p.scale_log2);
            decay[h] = exp2_fast(__fsub_rn(__fmul_rn(top[h], p.scale_log2), safe));
            top[h] = x;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[h + 2 * e] = exp2_fast(__fmaf_rn(s[h + 2 * e], p.scale_log2, -safe));
            }
        }
        room->numbers[warp][lane] = make_float4(s[0], s[1], s[2], s[3]);
        room->probs[warp][lane] =
            make_uint2(transposed(pack<T>(s[0], s[1])), transposed(pack<T>(s[2], s[3])));
        __syncthreads();
    }

    /* The last warp adds up the probabilities. */
    __device__ __forceinline__ void add_sums()
    {
        float add[2] = {0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < TILE; c++) {
            const float4 x = room->numbers[c][lane];
            add[0] = __fadd_rn(__fadd_rn(add[0], x.x), x.z);
            add[1] = __fadd_rn(__fadd_rn(add[1], x.y), x.w);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            add[h] = __fadd_rn(add[h], __shfl_xor_sync(0xffffffffu, add[h], 4));
            sum[h] = __fmaf_rn(sum[h], decay[h], add[h]);
        }
    }

    /* Adds the values of the tile's n chunks, for this warp's elements. Several chunks are loaded
     * at a time. */
    __device__ __forceinline__ void add_values(int start, int n)
    {
        enum { AHEAD = 4 };
#pragma unroll
        for (int e = 0; e < 4; e++) {
            values[e] *= decay[e & 1];
        }
#pragma unroll 1
        for (int first = 0; first < n; first += AHEAD) {
            uint32_t a[AHEAD][4];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int chunk = start + first + k;
                if (first + k < n) {
                    char *v = wait_for(chunk, true);
                    if (chunk == n_chunks - 1) {
                        R::add_value(v);
                    }
                    R::load_values(v, warp, a[k]);
                }
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                if (first + k < n) {
                    const uint2 b = room->probs[first + k][lane];
                    mma_16x8x16(values, a[k], b.x, b.y, T());
                }
            }
        }
    }

    __device__ __forceinline__ void add_tile(int start)
    {
        const int n = min(TILE, n_chunks - start);
        float s[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (warp < n) {
            R::score(wait_for(start + warp, false), start + warp, start + warp == n_chunks - 1, s);
        }
        share(s);
        refill(start, false);
        if (warp == S::WARPS - 1) {
            add_sums();
        }
        if (warp < TILES) {
            add_values(start, n);
        }
    }

    /* ---- the unit ---- */

    __device__ __forceinline__ void begin() const
    {
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (int i = 0; i < n_slots; i++) {
                barrier_init(&full[i], 1);
            }
            barrier_init_done();
            tensor_map_prefetch(map);
        }
        __syncthreads();
        if ((int)threadIdx.x < min(n_slots, 2 * n_chunks)) {
            fetch((int)threadIdx.x);
        }
    }

    __device__ __forceinline__ void begin_run()
    {
        top[0] = top[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
        values[0] = values[1] = values[2] = values[3] = 0.0f;
    }

    /* Gives all warps the run's sum; if there are several runs, joins it to the earlier ones. */
    __device__ __forceinline__ void end_run(bool is_first, float (&all_top)[2], float (&all_sum)[2],
                                            float (&kept)[4])
    {
        R::finish_run(top, sum);
        if (warp == S::WARPS - 1 && lane < 4) {
            room->sum[lane] = make_float2(sum[0], sum[1]);
        }
        __syncthreads();
        sum[0] = room->sum[lane & 3].x;
        sum[1] = room->sum[lane & 3].y;
        if (n_chunks <= S::RUN) {
            return;
        }
        struct join_weights w[2];
        R::join_run(is_first, top, sum, all_top, all_sum, w);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            values[e] = kept[e] = join_value(w[e & 1], is_first ? 0.0f : kept[e], values[e]);
        }
    }

    __device__ __forceinline__ void unit(const float4 (&cos_sin)[J * 2], float growth)
    {
        float all_top[2], all_sum[2], kept[4]; // of the earlier runs
        R::load_rows();
        R::rotate(cos_sin, growth, warp == 0);
#pragma unroll 1
        for (int start = 0; start < n_chunks; start += TILE) {
            if (start % S::RUN == 0) {
                begin_run();
            }
            add_tile(start);
            if (start + TILE >= n_chunks || (start + TILE) % S::RUN == 0) {
                end_run(start < S::RUN, all_top, all_sum, kept);
            }
            if (start + TILE < n_chunks && 2 * n_chunks > n_slots) {
                __syncthreads();
                refill(start, true);
            }
        }
        const float w[2] = {final_weight(top[0], sum[0], nullptr, 0),
                            final_weight(top[1], sum[1], nullptr, 0)};
        if (warp < TILES) {
            R::store(warp, values, w);
        }
    }
};

#endif // HAVE_SM90A

#endif
