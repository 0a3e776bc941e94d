// SPDX-License-Identifier: Apache-2.0
/* The device half of codes.cu: what a warp does with the records of its chunks, and a block with
 * the results of its warps. Thread: device code, a warp at once unless it says otherwise. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_CODES_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_CODES_CUH

#include "cuda/kernels/attention/common.cuh"
#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/device/kv_codes.cuh"
#include "cuda/kernels/device/mma_tile.cuh"

enum { CODE_WARPS = 4, CODE_THREADS = CODE_WARPS * 32, CODE_KEYS = 16, CODE_MAX_SLOTS = 12 };

/* A query's numbers are rounded to fp16 after this factor, so that large ones fit. */
static constexpr float QUERY_FACTOR = 0.03125f;

struct codes_params {
    struct attention_params a;
    bool is_bf16;                // queries and outputs; else fp16
    int32_t n_slots, slot_bytes; // of a warp's ring
    int32_t n_k, n_v;            // 16-byte chunks of a row of K and V
};

/* What the layers of one format have in common: codes as operands of fp16, and what those have to
 * be multiplied with. An integer code is the mantissa of a subnormal number, which the tensor cores
 * take as any other: no instruction but a mask makes an operand of it. */
template <enum kv_format F> struct code_kind {
    static constexpr int STEPS = F == KV_INT4 ? 2 : 1; // of 16 numbers, in a chunk
    static constexpr int NUMBERS = 16 * STEPS;
    static constexpr float UNIT = F == KV_FP8 ? 1.0f : 16777216.0f;
    static constexpr float ODD = F == KV_INT4 ? 0.0625f : 1.0f; // of every second operand besides
};

template <int D> struct codes_shape {
    static constexpr int TILES = D / 16;                // of a value
    static constexpr int MANY = D <= 128 ? 4 : 2;       // columns of 8 query vectors, at most
    static constexpr int PITCH = D + 4;                 // of a row that waits to be joined
    static constexpr int ROOM = CODE_WARPS * 8 * PITCH; // floats
    static constexpr int QUERIES = MANY * TILES * 32 * 8 + MANY * 8 * 4; // bytes
    static constexpr int FOLD = MANY * 8 * PITCH; // floats, of deterministic runs

    static __host__ __device__ int fixed_bytes(bool folds)
    {
        return ROOM * 4 + QUERIES + (folds ? FOLD * 4 : 0) + CODE_WARPS * CODE_MAX_SLOTS * 8;
    }
};

#if HAVE_SM90A

/* An 8 x 8 matrix of 16-bit elements, of which each lane has two of a row. */
__device__ __forceinline__ uint32_t matrix_transposed(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

__device__ __forceinline__ float log2_fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ uint32_t half_pair(float low, float high)
{
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}

__device__ __forceinline__ float2 half_values(uint32_t v)
{
    return __half22float2(*reinterpret_cast<const __half2 *>(&v));
}

/* Two E4M3 codes, the first in the low byte. */
__device__ __forceinline__ uint32_t half_pair_of_e4m3(uint16_t codes)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
    return pair;
}

/* The operands in a word of a row of K: four codes that follow each other, or eight of four bits.
 * Which of them make a pair is q_dim's affair. */
template <enum kv_format F>
__device__ __forceinline__ void key_operands(uint32_t word,
                                             uint32_t (&out)[2 * code_kind<F>::STEPS])
{
    if constexpr (F == KV_FP8) {
        out[0] = half_pair_of_e4m3((uint16_t)word);
        out[1] = half_pair_of_e4m3((uint16_t)(word >> 16));
    } else if constexpr (F == KV_INT8) {
        out[0] = word & 0x00ff00ffu;
        out[1] = word >> 8 & 0x00ff00ffu;
    } else {
        const uint32_t rest = word >> 8;
        out[0] = word & 0x000f000fu;
        out[1] = word & 0x00f000f0u; // 16 times the code
        out[2] = rest & 0x000f000fu;
        out[3] = rest & 0x00f000f0u;
    }
}

/* The same of a word that ldmatrix transposed: two codes (four of four bits) of a key in the low
 * half, those of the next key in the upper. Pairs are of keys. */
template <enum kv_format F>
__device__ __forceinline__ void value_operands(uint32_t word,
                                               uint32_t (&out)[2 * code_kind<F>::STEPS])
{
    key_operands<F>(F == KV_FP8 ? __byte_perm(word, 0, 0x3120) : word, out);
}

/* Which of its word's numbers (4, or 8) a lane's operand `reg` of step `step` begins with, and how
 * far off the pair's second is. */
template <enum kv_format F> __device__ __forceinline__ constexpr int q_dim(int step, int reg)
{
    return F == KV_FP8 ? 2 * reg : F == KV_INT8 ? reg : 2 * step + reg;
}
template <enum kv_format F> __device__ __forceinline__ constexpr int q_pair()
{
    return F == KV_FP8 ? 1 : F == KV_INT8 ? 2 : 4;
}

/* The units of one block, in order. */
struct unit_walk {
    const struct attention_params &p;
    int items_offset, n_sub, n_units, tile_rows, k = 0;

    __device__ __forceinline__ bool next(struct attention_unit &u)
    {
        for (; k * (int)gridDim.x < n_units; k++) {
            const int index = unit_index(k, (int)gridDim.x, (int)blockIdx.x);
            if (index < n_units) {
                u = unit_at(p, items_offset, index, n_sub, tile_rows, CODE_KEYS);
                if (u.n_packed > 0) {
                    k++;
                    return true;
                }
            }
        }
        return false;
    }
};

/* Brings a warp's chunks: of each unit's those whose number, counted from the sequence's first key,
 * leaves the warp's own when divided by CODE_WARPS. It runs ahead over units' borders. */
struct codes_loader {
    const struct codes_params &p;
    char *slots;
    uint64_t *full;
    int warp, lane;
    struct unit_walk walk;
    uint64_t once, again; // cache policies
    struct attention_unit u = {};
    int chunk = 0, end = 0, i = 0;   // the next chunk and its number among the unit's
    int32_t page = 0, next_page = 0; // lane l: that of the chunk with i % 32 = l
    bool has_unit = false, has_waited = false;

    __device__ __forceinline__ int32_t look_up(int from) const
    {
        const int key = min(chunk + (from - i + lane) * CODE_WARPS, end - 1) * CODE_KEYS;
        const int32_t *table = p.a.blocks + (int64_t)u.item.lane * p.a.blocks_stride;
        return table[key / p.a.kv.block_tokens];
    }

    __device__ __forceinline__ bool enter()
    {
        while (!has_unit || chunk >= end) {
            has_unit = walk.next(u);
            if (!has_unit) {
                return false;
            }
            chunk = u.lo / CODE_KEYS + ((warp - u.lo / CODE_KEYS) & (CODE_WARPS - 1));
            end = u.lo < u.hi ? (u.hi + CODE_KEYS - 1) / CODE_KEYS : 0;
            i = 0;
            if (chunk < end) {
                page = look_up(0);
                next_page = look_up(32);
            }
        }
        return true;
    }

    __device__ __forceinline__ void fetch(int slot)
    {
        if (!enter()) {
            return;
        }
        if (i == 32) {
            i = 0;
            page = next_page;
            next_page = look_up(32);
        }
        /* The kernel ahead stores the pass's own keys; older ones are there. */
        if (!has_waited && u.item.mask != ATTENTION_ALL &&
            (chunk + 1) * CODE_KEYS > u.item.n_past) {
            pdl_wait();
            has_waited = true;
        }
        const struct kv_view &kv = p.a.kv;
        const int32_t of = __shfl_sync(0xffffffffu, page, i);
        const int record = chunk * CODE_KEYS % kv.block_tokens / CODE_KEYS;
        if (lane == 0) {
            const char *from = (const char *)kv.base + of * kv.page_stride +
                               (int64_t)u.kv_head * kv.head_stride +
                               (int64_t)record * kv.codes.record_bytes;
            barrier_expect(&full[slot], (uint32_t)kv.codes.record_bytes);
            bulk_load(slots + slot * p.slot_bytes, from, (uint32_t)kv.codes.record_bytes,
                      &full[slot], u.item.n_rows > 1 ? again : once);
        }
        __syncwarp();
        chunk += CODE_WARPS;
        i++;
    }
};

/* NT: columns of 8 query vectors each. */
template <enum kv_format F, int D, int NT> struct codes_computer {
    using S = codes_shape<D>;
    using K = code_kind<F>;
    static constexpr int TILES = S::TILES;
    const struct codes_params &p;
    struct codes_loader &loader;
    float *room, *folded;
    uint2 *queries;    // NT > 1: [NT][TILES][32]
    float *query_sums; // [NT * 8]
    int warp, lane, slot = 0;
    uint32_t parity = 0;

    uint2 own[NT == 1 ? TILES : 1]; // NT == 1: this lane's queries
    float q_sum[NT][2];             // of columns 2 t and 2 t + 1
    float values[NT][TILES][4];
    float top[NT][2], sum[NT][2], zeros[NT][2]; // the last two of this lane's keys alone

    __device__ __forceinline__ int g() const
    {
        return lane >> 2;
    }
    __device__ __forceinline__ int t() const
    {
        return lane & 3;
    }

    /* ---- queries */

    __device__ __forceinline__ float element(const void *from, int i) const
    {
        return p.is_bf16 ? to_float(((const bf16_t *)from)[i]) : to_float(((const f16_t *)from)[i]);
    }

    /* The operands of column j's vector g, and what this lane's numbers of it add up to, as they
     * are rounded. */
    template <typename Put>
    __device__ __forceinline__ float load_column(const struct attention_unit &u, int j, Put put)
    {
        const struct attention_params &a = p.a;
        const int packed = j * 8 + g(), k = u.first_packed + min(packed, u.n_packed - 1);
        const int row = u.item.first_row + k / a.group, head = u.kv_head * a.group + k % a.group;
        const char *from =
            (const char *)a.q + ((int64_t)row * a.q_stride + (int64_t)head * a.kv.head_dim_k) * 2;
        float total = 0.0f;
#pragma unroll
        for (int s = 0; s < TILES; s++) {
            const int step = s % K::STEPS, base = s / K::STEPS * K::NUMBERS + t() * 4 * K::STEPS;
            const bool real = packed < u.n_packed && base < a.kv.head_dim_k;
            uint32_t regs[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int d = base + q_dim<F>(step, r);
                const float by = (r == 1 ? K::ODD : 1.0f) * QUERY_FACTOR;
                const float x = real ? element(from, d) * by : 0.0f;
                const float y = real ? element(from, d + q_pair<F>()) * by : 0.0f;
                regs[r] = half_pair(x, y);
                const float2 rounded = half_values(regs[r]);
                total += (rounded.x + rounded.y) * (r == 1 ? 1.0f / K::ODD : 1.0f);
            }
            put(s, make_uint2(regs[0], regs[1]));
        }
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        return total;
    }

    /* All warps; they have done with the unit before. */
    __device__ __forceinline__ void load_queries(const struct attention_unit &u)
    {
        if constexpr (NT == 1) {
            const float total = load_column(u, 0, [&](int s, uint2 q) { own[s] = q; });
#pragma unroll
            for (int e = 0; e < 2; e++) {
                q_sum[0][e] = __shfl_sync(0xffffffffu, total, (2 * t() + e) * 4);
            }
        } else {
            for (int j = warp; j < NT; j += CODE_WARPS) {
                const float total = load_column(
                    u, j, [&](int s, uint2 q) { queries[(j * TILES + s) * 32 + lane] = q; });
                if (t() == 0) {
                    query_sums[j * 8 + g()] = total;
                }
            }
            __syncthreads();
#pragma unroll
            for (int j = 0; j < NT; j++) {
                q_sum[j][0] = query_sums[j * 8 + 2 * t()];
                q_sum[j][1] = query_sums[j * 8 + 2 * t() + 1];
            }
        }
    }

    __device__ __forceinline__ uint2 query(int j, int s) const
    {
        if constexpr (NT == 1) {
            return own[s];
        } else {
            return queries[(j * TILES + s) * 32 + lane];
        }
    }

    /* ---- a chunk */

    __device__ __forceinline__ const char *plane(bool is_v) const
    {
        return loader.slots + slot * p.slot_bytes + (is_v ? p.a.kv.codes.v_offset : 0);
    }

    /* Where this lane's row of four matrices begins: of keys 0 to 7 and 8 to 15, of chunks c and
     * c + 1. */
    __device__ __forceinline__ const char *matrices_at(bool is_v, int c) const
    {
        const int key = lane & 15, row = is_v ? p.a.kv.codes.v_row : p.a.kv.codes.k_row;
        const int byte = key * row + (c + (lane >> 4)) * 16;
        return plane(is_v) + (byte ^ (byte >> 3 & 0x70));
    }

    /* Scores of keys g and g + 8: [0], [1] and [2], [3], of columns 2 t and 2 t + 1. Sums of even
     * and odd steps go side by side. */
    __device__ __forceinline__ void score(float (&scores)[NT][4], int n_columns)
    {
        float odd[NT][4];
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[j][i] = odd[j][i] = 0.0f;
            }
        }
#pragma unroll
        for (int c = 0; c < TILES / K::STEPS; c += 2) {
            if (c >= p.n_k) {
                break;
            }
            uint32_t words[4];
            ldmatrix_x4(words, matrices_at(false, c));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (c + h >= p.n_k || c + h >= TILES / K::STEPS) {
                    break;
                }
                uint32_t low[2 * K::STEPS], high[2 * K::STEPS];
                key_operands<F>(words[2 * h], low);
                key_operands<F>(words[2 * h + 1], high);
#pragma unroll
                for (int s = 0; s < K::STEPS; s++) {
                    const uint32_t a[4] = {low[2 * s], high[2 * s], low[2 * s + 1],
                                           high[2 * s + 1]};
                    const int step = (c + h) * K::STEPS + s;
#pragma unroll
                    for (int j = 0; j < NT; j++) {
                        if (j < n_columns) {
                            const uint2 q = query(j, step);
                            mma_16x8x16(step % 2 ? odd[j] : scores[j], a, q.x, q.y, f16_t());
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[j][i] += odd[j][i];
            }
        }
    }

    /* Whether column `column` of the unit sees the key. */
    __device__ __forceinline__ bool sees(const struct attention_unit &u, int column, int key) const
    {
        const struct attention_row_view v = row_view(p.a, u, column);
        if (key < v.lo || key >= v.hi) {
            return false;
        }
        if (u.item.mask != ATTENTION_TREE || key < u.item.n_past) {
            return true;
        }
        const uint64_t *words = p.a.tree_mask + (int64_t)v.row * TREE_MASK_WORDS;
        const uint64_t w[2] = {words[0], words[1]};
        return tree_sees(p.a, u, v, w, key - u.item.n_past);
    }

    __device__ __forceinline__ uint32_t seen_of(const struct attention_unit &u, int first) const
    {
        uint32_t seen = 0;
#pragma unroll 1
        for (int i = 0; i < NT * 4; i++) {
            const int column = (i >> 2) * 8 + 2 * t() + (i & 1);
            seen |= (uint32_t)sees(u, column, first + g() + (i & 2) * 4) << i;
        }
        return seen;
    }

    /* The scales of a key and its value: what the former is multiplied with, and of the latter the
     * logarithm and the inverse. */
    struct key_scales {
        float k, k_zero, v_log, v_inverse, v_zero;
    };

    __device__ __forceinline__ struct key_scales scales_of(int key) const
    {
        const struct kv_codes &c = p.a.kv.codes;
        struct key_scales s = {c.k_scale, 0.0f, 0.0f, 1.0f, 0.0f};
        if (c.word_bytes == 0) {
            return s;
        }
        const uint32_t *words = (const uint32_t *)(plane(false) + c.words_offset);
        const struct kv_scale k = kv_scale_of_word(c.format, words[key]);
        const struct kv_scale v = kv_scale_of_word(c.format, words[CODE_KEYS + key]);
        s = {k.scale, k.zero, log2_fast(v.scale), reciprocal(v.scale), v.zero};
        return s;
    }

    /* Scores become the weights of codes, of which the largest so far is 1: a probability times its
     * value's scale. The probabilities' sum is kept relative to the same. */
    __device__ __forceinline__ void softmax(const struct attention_unit &u, int first,
                                            float (&scores)[NT][4], uint32_t (&weights)[NT][2],
                                            int n_columns)
    {
        const bool all = first >= u.all_lo && first + CODE_KEYS <= u.all_hi;
        const uint32_t seen = all ? ~0u : seen_of(u, first);
        const struct key_scales keys[2] = {scales_of(g()), scales_of(g() + 8)};
#pragma unroll
        for (int j = 0; j < NT; j++) {
            if (j >= n_columns) {
                break;
            }
            float decay[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *x[2] = {&scores[j][e], &scores[j][2 + e]};
                float high = top[j][e];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    float s = (*x[k] * K::UNIT - keys[k].k_zero * q_sum[j][e]) *
                              (keys[k].k / QUERY_FACTOR);
                    s = p.a.softcap > 0.0f ? soft_cap(p.a, s) : s;
                    const bool is_seen = seen >> (4 * j + 2 * k + e) & 1;
                    *x[k] = is_seen ? __fmaf_rn(s, p.a.scale_log2, keys[k].v_log) : -INFINITY;
                    high = fmaxf(high, *x[k]);
                }
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 4));
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 8));
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 16));
                const float safe = high == -INFINITY ? 0.0f : high;
                decay[e] = exp2_fast(__fsub_rn(top[j][e], safe));
                top[j][e] = high;
                *x[0] = exp2_fast(__fsub_rn(*x[0], safe));
                *x[1] = exp2_fast(__fsub_rn(*x[1], safe));
            }
            const uint32_t low = half_pair(scores[j][0], scores[j][1]);
            const uint32_t up = half_pair(scores[j][2], scores[j][3]);
            const float2 rounded[2] = {half_values(low), half_values(up)};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float add = 0.0f, zero = 0.0f;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const bool is_seen = seen >> (4 * j + 2 * k + e) & 1;
                    const float w = scores[j][2 * k + e];
                    add += is_seen ? w * keys[k].v_inverse : 0.0f;
                    zero += (e == 0 ? rounded[k].x : rounded[k].y) * keys[k].v_zero;
                }
                sum[j][e] = __fmaf_rn(sum[j][e], decay[e], add);
                zeros[j][e] = __fmaf_rn(zeros[j][e], decay[e], zero);
            }
            if (__any_sync(0xffffffffu, decay[0] != 1.0f || decay[1] != 1.0f)) {
#pragma unroll
                for (int f = 0; f < TILES; f++) {
                    values[j][f][0] *= decay[0];
                    values[j][f][1] *= decay[1];
                    values[j][f][2] *= decay[0];
                    values[j][f][3] *= decay[1];
                }
            }
            weights[j][0] = matrix_transposed(low);
            weights[j][1] = matrix_transposed(up);
        }
    }

    /* Which of a lane's keys there are, as masks of its words: the others may hold anything, and
     * E4M3 has NaN. */
    __device__ __forceinline__ uint32_t word_mask(const struct attention_unit &u, int key) const
    {
        return (key >= u.first && key < u.hi ? 0xffffu : 0u) |
               (key + 1 >= u.first && key + 1 < u.hi ? 0xffff0000u : 0u);
    }

    __device__ __forceinline__ void add_values(const struct attention_unit &u, int first,
                                               const uint32_t (&weights)[NT][2], int n_columns)
    {
        uint32_t keep[2] = {~0u, ~0u};
        if (F == KV_FP8 && (first < u.first || first + CODE_KEYS > u.hi)) {
            keep[0] = word_mask(u, first + 2 * t());
            keep[1] = word_mask(u, first + 8 + 2 * t());
        }
#pragma unroll
        for (int c = 0; c < TILES / K::STEPS; c += 2) {
            if (c >= p.n_v) {
                break;
            }
            uint32_t words[4];
            ldmatrix_x4_transposed(words, matrices_at(true, c));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (c + h >= p.n_v || c + h >= TILES / K::STEPS) {
                    break;
                }
                uint32_t low[2 * K::STEPS], up[2 * K::STEPS];
                value_operands<F>(F == KV_FP8 ? words[2 * h] & keep[0] : words[2 * h], low);
                value_operands<F>(F == KV_FP8 ? words[2 * h + 1] & keep[1] : words[2 * h + 1], up);
#pragma unroll
                for (int s = 0; s < K::STEPS; s++) {
                    const uint32_t a[4] = {low[2 * s], low[2 * s + 1], up[2 * s], up[2 * s + 1]};
#pragma unroll
                    for (int j = 0; j < NT; j++) {
                        if (j < n_columns) {
                            mma_16x8x16(values[j][(c + h) * K::STEPS + s], a, weights[j][0],
                                        weights[j][1], f16_t());
                        }
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void chunk(const struct attention_unit &u, int first, int n_columns)
    {
        float scores[NT][4];
        uint32_t weights[NT][2];
        barrier_wait(&loader.full[slot], parity);
        score(scores, n_columns);
        softmax(u, first, scores, weights, n_columns);
        add_values(u, first, weights, n_columns);
        __syncwarp();
        loader.fetch(slot);
        if (++slot == p.n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }

    /* ---- results */

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int j = 0; j < NT; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                top[j][e] = -INFINITY;
                sum[j][e] = zeros[j][e] = 0.0f;
            }
#pragma unroll
            for (int f = 0; f < TILES; f++) {
                values[j][f][0] = values[j][f][1] = values[j][f][2] = values[j][f][3] = 0.0f;
            }
        }
    }

    __device__ __forceinline__ static float of_all_keys(float x)
    {
        x += __shfl_xor_sync(0xffffffffu, x, 4);
        x += __shfl_xor_sync(0xffffffffu, x, 8);
        return x + __shfl_xor_sync(0xffffffffu, x, 16);
    }

    /* This warp's results of column j: each vector's values, its maximum and its sum. */
    __device__ __forceinline__ void put_column(int j)
    {
        const float stored = p.a.kv.codes.word_bytes == 0 ? p.a.kv.codes.v_scale : 1.0f;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float zero = of_all_keys(zeros[j][e]), total = of_all_keys(sum[j][e]);
            float *to = room + (warp * 8 + 2 * t() + e) * S::PITCH;
#pragma unroll
            for (int f = 0; f < TILES; f++) {
                const int d = f / K::STEPS * K::NUMBERS + g() * 2 * K::STEPS + f % K::STEPS * 2;
                to[d] = (values[j][f][e] * K::UNIT - zero) * stored;
                to[d + 1] = (values[j][f][2 + e] * (K::UNIT * K::ODD) - zero) * stored;
            }
            if (g() == 0) {
                to[D] = top[j][e];
                to[D + 1] = total;
            }
        }
    }

    struct result {
        float value, top, sum;
    };

    /* Element d of the warps' results of a vector, joined in their order. */
    __device__ __forceinline__ struct result joined(int vector, int d) const
    {
        struct result r = {0.0f, -INFINITY, 0.0f};
#pragma unroll
        for (int w = 0; w < CODE_WARPS; w++) {
            const float *from = room + (w * 8 + vector) * S::PITCH;
            const struct join_weights weights = join(r.top, r.sum, from[D], from[D + 1]);
            r.value = join_value(weights, r.value, from[d]);
        }
        return r;
    }

    __device__ __forceinline__ void store(const struct attention_unit &u, int packed, int d,
                                          const struct result &r) const
    {
        const struct attention_params &a = p.a;
        const int k = u.first_packed + packed, row = u.item.first_row + k / a.group;
        const int head = u.kv_head * a.group + k % a.group;
        if (u.item.split < 0) {
            const float x = __fmul_rn(r.value, final_weight(r.top, r.sum, a.sinks, head));
            const int64_t at = (int64_t)row * a.out_stride + (int64_t)head * a.kv.head_dim_v + d;
            if (p.is_bf16) {
                ((bf16_t *)a.out)[at] = from_float<bf16_t>(x);
            } else {
                ((f16_t *)a.out)[at] = from_float<f16_t>(x);
            }
            return;
        }
        const struct attention_row *rows = (const struct attention_row *)(plan_head(a.plan) + 1);
        float *to = slot_at(a, rows[row].first_slot + u.item.split, head);
        to[d] = r.value;
        if (d == 0) {
            to[a.kv.head_dim_v] = r.top;
            to[a.kv.head_dim_v + 1] = r.sum;
        }
    }

    /* Element d of a run's result joins those of the runs before it, in `folded`; of a vector's
     * maximum and sum the new ones stand behind the old, which others still read. */
    __device__ __forceinline__ struct result fold_run(int packed, int d, const struct result &r,
                                                      bool is_first) const
    {
        float *kept = folded + packed * S::PITCH;
        struct result all = {0.0f, -INFINITY, 0.0f};
        if (!is_first) {
            all = {kept[d], kept[D], kept[D + 1]};
        }
        const struct join_weights w = join(all.top, all.sum, r.top, r.sum);
        all.value = join_value(w, all.value, r.value);
        kept[d] = all.value;
        if (d == 0) {
            kept[D + 2] = all.top;
            kept[D + 3] = all.sum;
        }
        return all;
    }

    /* All warps' results of a run of the unit's keys. */
    __device__ __forceinline__ void finish(const struct attention_unit &u, bool is_first,
                                           bool is_last)
    {
        const int dims = p.a.kv.head_dim_v;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            if (j * 8 >= u.n_packed) {
                break;
            }
            put_column(j);
            __syncthreads();
            const int n_vectors = min(8, u.n_packed - j * 8);
#pragma unroll 1
            for (int i = threadIdx.x; i < n_vectors * dims; i += CODE_THREADS) {
                const int vector = i / dims, d = i - vector * dims;
                struct result r = joined(vector, d);
                if (u.item.fold) {
                    r = fold_run(j * 8 + vector, d, r, is_first);
                }
                if (is_last) {
                    store(u, j * 8 + vector, d, r);
                }
            }
            __syncthreads();
            if (u.item.fold && (int)threadIdx.x < n_vectors) {
                float *kept = folded + (j * 8 + threadIdx.x) * S::PITCH;
                kept[D] = kept[D + 2];
                kept[D + 1] = kept[D + 3];
            }
        }
    }

    __device__ __forceinline__ void unit(const struct attention_unit &u)
    {
        const int n_columns = (u.n_packed + 7) / 8;
        load_queries(u);
        bool is_first = true;
        for (int lo = u.lo; is_first || lo < u.hi; is_first = false) {
            const int run = u.lo < u.hi ? run_end(u, lo) : u.hi;
            clear();
            int c = lo / CODE_KEYS + ((warp - lo / CODE_KEYS) & (CODE_WARPS - 1));
#pragma unroll 1
            for (; c * CODE_KEYS < run; c += CODE_WARPS) {
                chunk(u, c * CODE_KEYS, n_columns);
            }
            finish(u, is_first, run >= u.hi);
            lo = run;
        }
    }
};

#endif // HAVE_SM90A

#endif
