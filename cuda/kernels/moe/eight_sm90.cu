// SPDX-License-Identifier: Apache-2.0
/* FP8 experts on Hopper: two grouped products of E4M3 codes with E4M3 codes, with a scale per 128 x
 * 128 block of the weights and per row and 128 inputs.
 *
 * gemm/inputs.cu rounds each row of x once, and moe/sort.cu sorts the picks by expert and lists
 * tiles of up to TILE_ROWS rows of one expert. Persistent blocks, one per multiprocessor, iterate
 * over all pairs of a tile and a band of 256 weight rows; the tiles of an expert take a band at the
 * same time, so that its weights are read from memory once. The up product's band is 128 gates and
 * the 128 matching factors: a group of four lanes has all results of a row that share a scale and
 * rounds them to the codes that the down product reads. sum.cu adds a row's picks at the end.
 *
 * A block has one warpgroup that fills a ring of stages (128 inputs of the tile's rows and of the
 * band; their scales), and two that compute 64 rows each. As in gemm/eight_many.cu the tensor cores
 * sum over 128 inputs at most, a warpgroup sums the halves of the band one after the other, and
 * while one warpgroup scales and adds up its sums, the other one multiplies. Of a tile of up to 64
 * rows each warpgroup computes half of the band; so that each half has gates and their factors, the
 * up product's bands are loaded in quarters. No sum crosses a tile, so a row's bits do not depend
 * on the other rows.
 *
 * Few rows are bound by reading the weights, prompts by the power limit. */
#include "cuda/experts.h"
#include "cuda/kernels/device/code_stores.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/quads.cuh"
#include "cuda/kernels/moe/eight_sm90.cuh"
#include "cuda/kernels/moe/room.cuh"

#if HAVE_SM90A

/* A computing warpgroup. BOTH: the piece has up to 64 rows, of which each warpgroup computes half
 * of the band; otherwise it computes all of the band for 64 rows. */
template <typename T, bool UP> struct eight_computer {
    const struct eight_params &p;
    char *stages;
    struct eight_shared *s;
    eight_ring at;
    int32_t group, row0;  // row0: the first of the thread's two rows in the tile
    int32_t n_pieces = 0; // so far
    struct eight_piece u; // the piece at hand
    float sums[BAND / 2];

    /* The warpgroups take turns at issuing products, as in gemm/eight_many.cu: each waits at a
     * barrier of its own, at which the other one arrives. */
    __device__ __forceinline__ void take_turn() const
    {
        named_barrier(1 + group, COMPUTERS);
    }
    __device__ __forceinline__ void pass_turn() const
    {
        named_barrier_arrive(2 - group, COMPUTERS);
    }

    __device__ __forceinline__ void release()
    {
        if ((threadIdx.x & 31) == 0) {
            barrier_arrive(&s->empty[at.slot]);
        }
    }

    template <bool BOTH> __device__ __forceinline__ void sum_box()
    {
        barrier_wait(&s->full[at.slot], at.parity);
        const float of_x[2] = {s->x_scales[at.slot][row0], s->x_scales[at.slot][row0 + 8]};
        const float of_w[2] = {s->w_scales[at.slot][0], s->w_scales[at.slot][1]};
        const uint32_t w = smem_address(stages + at.slot * STAGE_BYTES);
        const uint32_t x = w + W_BYTES + (BOTH ? 0 : group * (HALF_ROWS * BOX));
#pragma unroll
        for (int i = 0; i < (BOTH ? 1 : 2); i++) {
            const int half = BOTH ? group : i;
            float d[HALF / 2];
            take_turn();
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < BOX / 32; k++) {
                const uint64_t weights = wgmma_operand(w + half * HALF_BYTES + k * 32, 0);
                wgmma<e4m3_t, HALF>::ss(d, wgmma_operand(x + k * 32, 0), weights, k > 0);
            }
            wgmma_commit();
            pass_turn();
            wgmma_wait<0>();
            wgmma_settle(d);
            if (BOTH || i == 1) {
                release();
            }
            const float first = UP || half == 0 ? of_w[0] : of_w[1]; // of the half's first quarter
            const float second = UP || half == 1 ? of_w[1] : of_w[0];
            const float f[2][2] = {{of_x[0] * first, of_x[1] * first},
                                   {of_x[0] * second, of_x[1] * second}};
#pragma unroll
            for (int j = 0; j < HALF / 2; j++) {
                float *to = &sums[i * (HALF / 2) + j];
                *to = fmaf(d[j], f[j / (HALF / 4)][j >> 1 & 1], *to);
            }
        }
    }

    /* Stores the codes of the thread's row 8 R further on. pair[j]: results of features 8 j + 2 t,
     * + 1; if BOTH, of the warpgroup's half. largest: of the row. */
    template <int R, bool BOTH>
    __device__ __forceinline__ void store_codes_of(const uint32_t (&pair)[HALF / 8], float largest)
    {
        const int32_t t = threadIdx.x & 3, row = row0 + 8 * R;
        const int64_t place = u.first + row;
        const float scale = round_scale(p.codes, largest), by = round_factor(scale);
        uint32_t words[8];
#pragma unroll
        for (int i = 0; i < (BOTH ? 4 : 8); i++) {
            const float2 low = unpack_pair<T>(pair[2 * i]), high = unpack_pair<T>(pair[2 * i + 1]);
            words[i] = round_pair(low.x, low.y, by) | (uint32_t)round_pair(high.x, high.y, by)
                                                          << 16;
            if (BOTH) {
                words[i + 4] = words[i];
            }
        }
        const bool valid = row < u.n_rows;
        store_codes(p.codes.codes + place * p.codes.code_stride + u.band * HALF + 32 * t, words,
                    valid && (!BOTH || t >> 1 == group));
        if (valid && t == 0 && (!BOTH || group == 0)) {
            p.codes.scales[(int64_t)u.band * p.codes.n_rows + place] = scale;
        }
    }

    /* Rounds act(gate) * factor to T; returns the largest of the row. */
    template <int R, bool BOTH>
    __device__ __forceinline__ float activate(uint32_t (&pair)[HALF / 8])
    {
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < (BOTH ? HALF / 16 : HALF / 8); j++) {
            const float *gate = &sums[j / 8 * (HALF / 2) + j % 8 * 4 + 2 * R];
            const float *factor = gate + HALF / 4;
            pair[j] = pack_pair<T>(silu_gated(gate[0], factor[0]), silu_gated(gate[1], factor[1]));
            const float2 v = unpack_pair<T>(pair[j]);
            largest = fmaxf(largest, fmaxf(fabsf(v.x), fabsf(v.y)));
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        return fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    }

    /* Rounds the results to codes, as gemm/inputs.cu would. */
    template <bool BOTH> __device__ __forceinline__ void store_all_codes()
    {
        uint32_t pair[2][HALF / 8];
        if constexpr (BOTH) {
            float largest[2] = {activate<0, BOTH>(pair[0]), activate<1, BOTH>(pair[1])};
            float (&all)[2][HALF_ROWS] = s->largest[n_pieces & 1];
            if ((threadIdx.x & 3) == 0) {
                all[group][row0] = largest[0];
                all[group][row0 + 8] = largest[1];
            }
            named_barrier(3, COMPUTERS);
            largest[0] = fmaxf(largest[0], all[1 - group][row0]);
            largest[1] = fmaxf(largest[1], all[1 - group][row0 + 8]);
            store_codes_of<0, BOTH>(pair[0], largest[0]);
            store_codes_of<1, BOTH>(pair[1], largest[1]);
        } else {
            store_codes_of<0, BOTH>(pair[0], activate<0, BOTH>(pair[0]));
            store_codes_of<1, BOTH>(pair[1], activate<1, BOTH>(pair[1]));
        }
    }

    template <int R, bool BOTH> __device__ __forceinline__ void store_outputs(int32_t pick)
    {
        const int32_t t = threadIdx.x & 3,
                      first = u.band * BAND + (BOTH ? group * HALF : 0) + 8 * t;
#pragma unroll
        for (int i = 0; i < (BOTH ? 1 : 2) * HALF / 32; i++) { // 32 features
            uint32_t words[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *from = &sums[16 * i + 4 * j + 2 * R];
                words[j] = pack_pair<T>(from[0], from[1]);
            }
            transpose_quad(words);
            const int32_t feature = first + 32 * i;
            if (pick >= 0 && feature < p.n_out) {
                *(uint4 *)((T *)p.out + (int64_t)pick * p.n_out + feature) =
                    make_uint4(words[0], words[1], words[2], words[3]);
            }
        }
    }

    __device__ __forceinline__ int32_t pick_of(int32_t row) const
    {
        return row < u.n_rows ? p.sorted[u.first + row] : -1;
    }

    template <bool BOTH> __device__ __forceinline__ void compute(int32_t n_boxes)
    {
        row0 = (threadIdx.x >> 5 & (BOTH ? 3 : 7)) * 16 + (threadIdx.x >> 2 & 7);
        const int32_t picks[2] = {UP ? 0 : pick_of(row0), UP ? 0 : pick_of(row0 + 8)};
#pragma unroll
        for (int i = 0; i < BAND / (BOTH ? 4 : 2); i++) {
            sums[i] = 0.0f;
        }
#pragma unroll 1
        for (int32_t box = 0; box < n_boxes; box++, at.next()) {
            sum_box<BOTH>();
        }
        if constexpr (UP) {
            store_all_codes<BOTH>();
        } else {
            store_outputs<0, BOTH>(picks[0]);
            store_outputs<1, BOTH>(picks[1]);
        }
    }

    __device__ __forceinline__ void run()
    {
        const int32_t n_pairs = *p.n_tiles * p.n_bands, n_boxes = p.n_in / BOX;
        if (group == 1) {
            named_barrier_arrive(1, COMPUTERS); // the first turn is the other warpgroup's
        }
#pragma unroll 1
        for (struct eight_walk walk; walk.pair() < n_pairs; walk.next(), n_pieces++) {
            barrier_wait(&s->full[at.slot], at.parity);
            u = take_over<struct eight_piece>(s->piece[at.slot], threadIdx.x & 31);
            if (u.n_rows > HALF_ROWS) {
                compute<false>(n_boxes);
            } else {
                compute<true>(n_boxes);
            }
        }
        if (group == 0) {
            named_barrier(1, COMPUTERS); // no arrival may be left over
        }
    }
};

#endif // HAVE_SM90A

template <typename T, bool UP>
__global__ void __launch_bounds__(THREADS, 1)
    moe_eight_kernel(const __grid_constant__ struct eight_params p,
                     const __grid_constant__ CUtensorMap w_map,
                     const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    extern __shared__ char smem_raw[];
    __shared__ struct eight_shared s;
    char *stages = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s.full[i], 1 + 128); // the weights' bytes, and the loading threads
            barrier_init(&s.empty[i], COMPUTERS / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    if (threadIdx.x >= COMPUTERS) {
        registers_fewer<40>();
        struct eight_loader<UP> l = {
            p, &w_map, &x_map, stages, &s
        };
        l.tid = threadIdx.x - COMPUTERS;
        l.run();
    } else {
        registers_more<232>();
        struct eight_computer<T, UP> c = {
            p, stages, &s
        };
        c.group = threadIdx.x / 128;
        c.run();
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

/* The scratch memory of a call. `sorted.act` has the codes of activations, and `sorted.out` the
 * outputs. */
struct eight_work {
    struct moe_work sorted;
    uint8_t *x;
    float *x_scales, *act_scales; // [hidden / 128, rows], [ffn / 128, picks]
};

/* Lays out the scratch memory from `base` on; returns its size. */
static size_t lay_out(char *base, int64_t n_rows, const struct moe_ffn_args *a, int64_t hidden,
                      struct eight_work *w)
{
    const int64_t picks = n_rows * a->k;
    struct moe_room room = {base, 0};
    take_sorted(&room, picks, a->n_experts, &w->sorted);
    w->x = (uint8_t *)room.take(n_rows * hidden);
    w->x_scales = (float *)room.take(n_rows * (hidden / BOX) * 4);
    w->act_scales = (float *)room.take(picks * (a->ffn / BOX) * 4);
    w->sorted.act = room.take(picks * a->ffn);
    w->sorted.out = room.take(picks * hidden * 2);
    return room.size;
}

extern "C" size_t k_moe_eight_scratch(const struct moe_ffn_args *a, int32_t hidden, int32_t n_rows)
{
    struct eight_work w;
    return lay_out(NULL, n_rows, a, hidden, &w);
}

static bool rounds_groups(const struct expert_rounding *r)
{
    return r->rule && r->rule->from_row && r->rule->group == ROUND_GROUP;
}

extern "C" bool k_moe_eight_takes(const struct moe_ffn_args *a, const struct moe_weights *w,
                                  const struct moe_rounding *r, int32_t sm)
{
    return sm == 90 && r->has_blocks && rounds_groups(&r->up) && rounds_groups(&r->down) &&
           w->gate_up_coded && w->down_coded && !w->gate_up_bias && !w->down_bias &&
           a->kind == ACT_SILU && !a->plain && !a->weigh_inputs &&
           (a->x.dtype == DT_BF16 || a->x.dtype == DT_F16) && w->hidden % BOX == 0 &&
           a->ffn % BOX == 0 && a->k <= MOE_MAX_K && a->n_experts <= MOE_MAX_EXPERTS &&
           (int64_t)a->n_experts * (w->hidden > 2 * a->ffn ? w->hidden : 2 * a->ffn) < 1 << 30 &&
           vec_ok(a->x.mem.p, a->x.stride, w->hidden, 2) &&
           vec_ok(a->y.mem.p, a->y.stride, w->hidden, 2);
}

template <typename T, bool UP>
static cudaError_t product(cudaStream_t stream, const struct eight_params &p,
                           const struct coded_matrix *w, int64_t tiles, int32_t n_sms)
{
    auto kernel = moe_eight_kernel<T, UP>;
    CUtensorMap w_map, x_map;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         SMEM_BYTES); // the attribute is per device, and ranks have
                                                      // one device each
    if (e == cudaSuccess) {
        e = tensor_map_bytes(&w_map, w->tiles, (uint64_t)p.n_in,
                             (uint64_t)w->n_experts * (uint64_t)p.w_rows,
                             (uint64_t)coded_row_bytes(w), QUARTER);
    }
    if (e == cudaSuccess) { // of the down product; the up product gathers its rows
        e = tensor_map_bytes(&x_map, p.x, (uint64_t)p.n_in, (uint64_t)p.x_rows, (uint64_t)p.n_in,
                             HALF_ROWS);
    }
    const int64_t pairs = tiles * p.n_bands;
    return e == cudaSuccess ? launch(kernel, dim3((unsigned)(pairs < n_sms ? pairs : n_sms)),
                                     dim3(THREADS), SMEM_BYTES, stream, p, w_map, x_map)
                            : e;
}

static struct eight_params params_of(const struct moe_work &s, const struct coded_matrix *w)
{
    struct eight_params p = {};
    p.tiles = s.tiles;
    p.n_tiles = s.n_tiles;
    p.sorted = s.sorted;
    p.w_scales = (const float *)(const void *)w->scales;
    p.n_in = w->n_in;
    p.w_rows = w->n_out;
    return p;
}

template <typename T>
static cudaError_t products(cudaStream_t stream, const struct moe_ffn_args *a,
                            const struct moe_weights *w, const struct moe_rounding *r,
                            const struct eight_work &s, int32_t n_sms)
{
    const int64_t picks = (int64_t)a->n_rows * a->k, tiles = moe_most_tiles(picks, a->n_experts);
    struct eight_params up = params_of(s.sorted, w->gate_up_coded);
    up.rows = s.sorted.rows;
    up.x = s.x;
    up.x_scales = s.x_scales;
    up.x_rows = a->n_rows;
    up.n_out = up.second = a->ffn;
    up.third = QUARTER;
    up.band_rows = HALF;
    up.n_bands = a->ffn / HALF;
    up.codes.group = r->down.rule->group;
    up.codes.power_of_two = r->down.rule->power_of_two;
    up.codes.limit = r->down.rule->limit;
    up.codes.codes = (uint8_t *)s.sorted.act;
    up.codes.code_stride = a->ffn;
    up.codes.scales = s.act_scales;
    up.codes.n_rows = (int32_t)picks;
    struct eight_params down = params_of(s.sorted, w->down_coded);
    down.x = up.codes.codes;
    down.x_scales = s.act_scales;
    down.x_rows = (int32_t)picks;
    down.n_out = w->hidden;
    down.band_rows = BAND;
    down.second = QUARTER;
    down.third = HALF;
    down.n_bands = (w->hidden + BAND - 1) / BAND;
    down.out = s.sorted.out;
    const cudaError_t e = product<T, true>(stream, up, w->gate_up_coded, tiles, n_sms);
    return e != cudaSuccess ? e : product<T, false>(stream, down, w->down_coded, tiles, n_sms);
}

/* Rounds the rows of x to codes. */
static cudaError_t round_rows(cudaStream_t stream, const struct moe_ffn_args *a, int32_t hidden,
                              const struct input_rule *rule, const struct eight_work &s)
{
    struct round_args round = {};
    round.x = a->x.mem.p;
    round.x_dtype = a->x.dtype;
    round.x_stride = a->x.stride;
    round.n_rows = a->n_rows;
    round.n_in = hidden;
    round.group = rule->group;
    round.power_of_two = rule->power_of_two;
    round.limit = rule->limit;
    round.codes = s.x;
    round.code_stride = hidden;
    round.scales = s.x_scales;
    return round_inputs(stream, &round);
}

extern "C" cudaError_t k_moe_ffn_eight(cudaStream_t stream, const struct moe_ffn_args *a,
                                       const struct moe_weights *w, const struct moe_rounding *r,
                                       const float *gate, void *scratch, const int32_t *real,
                                       int32_t row_offset, int32_t n_sms)
{
    struct eight_work s;
    lay_out((char *)scratch, a->n_rows, a, w->hidden, &s);
    cudaError_t e = round_rows(stream, a, w->hidden, r->up.rule, s);
    if (e == cudaSuccess) {
        e = moe_sort(stream, a, s.sorted, real, row_offset);
    }
    if (e == cudaSuccess) {
        e = a->x.dtype == DT_BF16 ? products<bf16_t>(stream, a, w, r, s, n_sms)
                                  : products<f16_t>(stream, a, w, r, s, n_sms);
    }
    return e == cudaSuccess ? moe_sum(stream, a, gate, s.sorted, w->hidden, real, row_offset) : e;
}
