// SPDX-License-Identifier: Apache-2.0
/* The device half of codes.cu: how a warp processes the records of its chunks, and how a block
 * joins its warps' results.
 * Thread: device code, one warp at a time unless stated otherwise. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_CODES_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_CODES_CUH

#include "cuda/kernels/attention/codes_load.cuh"

#if HAVE_SM90A

/* NT: number of groups of 8 query vectors; a group is the 8 columns of a product. FULL: rows of K
 * and V have exactly D elements; otherwise they may have fewer. */
template <enum kv_format F, int D, int NT, bool FULL> struct codes_computer {
    using S = codes_shape<D>;
    using K = code_kind<F>;
    static constexpr int TILES = S::TILES, RECORDS = S::RECORDS, PIECES = TILES / K::STEPS;
    static constexpr bool HAS_ZERO = F != KV_FP8;
    const struct codes_params &p;
    struct codes_loader<D> &loader;
    float *room, *folded;
    uint2 *queries;    // NT > 1: [NT][TILES][32]
    float *query_sums; // [NT * 8]
    int warp, lane, slot = 0;
    uint32_t parity = 0;

    uint2 own[NT == 1 ? TILES : 1]; // NT == 1: this lane's queries
    float q_sum[NT][2];             // for columns 2 t and 2 t + 1
    float values[NT][TILES][4];
    float top[NT][2], sum[NT][2], zeros[NT][2]; // sum and zeros include only the keys of this lane

    __device__ __forceinline__ int g() const
    {
        return lane >> 2;
    }
    __device__ __forceinline__ int t() const
    {
        return lane & 3;
    }

    /* ---- queries */

    /* Writes the operands of vector g of group j, and returns the sum of its rounded elements. All
     * loads come before the first conversion; otherwise they would wait for each other. */
    template <typename Put>
    __device__ __forceinline__ float load_column(const struct attention_unit &u, int j, Put put)
    {
        const struct attention_params &a = p.a;
        const int packed = j * 8 + g(), k = u.first_packed + min(packed, u.n_packed - 1);
        const int row = u.item.first_row + k / a.group, head = u.kv_head * a.group + k % a.group;
        const uint16_t *from =
            (const uint16_t *)a.q + (int64_t)row * a.q_stride + (int64_t)head * a.kv.head_dim_k;
        uint16_t raw[TILES][2][2];
#pragma unroll
        for (int i = 0; i < TILES * 4; i++) {
            const int s = i / 4, r = i / 2 % 2, step = s % K::STEPS;
            const int base = s / K::STEPS * K::NUMBERS + t() * 4 * K::STEPS;
            const int d = base + q_dim<F>(step, r) + i % 2 * q_pair<F>();
            raw[s][r][i % 2] = packed < u.n_packed && base < a.kv.head_dim_k ? from[d] : 0;
        }
        float total = 0.0f;
#pragma unroll
        for (int s = 0; s < TILES; s++) {
            uint32_t regs[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float by = (r == 1 ? K::ODD : 1.0f) * QUERY_FACTOR;
                regs[r] = half_pair(query_element(p.is_bf16, raw[s][r][0]) * by,
                                    query_element(p.is_bf16, raw[s][r][1]) * by);
                const float2 rounded = half_values(regs[r]);
                total += (rounded.x + rounded.y) * (r == 1 ? 1.0f / K::ODD : 1.0f);
            }
            put(s, make_uint2(regs[0], regs[1]));
        }
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        return total;
    }

    /* Called by all warps, after they have finished the previous unit. */
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

    __device__ __forceinline__ char *record_at(int r) const
    {
        return loader.slots + (slot * RECORDS + r) * p.record_room;
    }

    /* The address that this lane passes to ldmatrix for four matrices: keys 0 to 7 and 8 to 15 of
     * record r, pieces c and c + 1. */
    __device__ __forceinline__ const char *matrices_at(int r, bool is_v, int c) const
    {
        const struct kv_codes &codes = p.a.kv.codes;
        const int byte = (lane & 15) * (is_v ? codes.v_row : codes.k_row) + (c + (lane >> 4)) * 16;
        return record_at(r) + (is_v ? codes.v_offset : 0) + (byte ^ (byte >> 3 & 0x70));
    }

    __device__ __forceinline__ static bool is_past(int c, int n)
    {
        return FULL ? c >= PIECES : c >= n || c >= PIECES;
    }

    /* Computes the scores of keys g ([0] and [1]) and g + 8 ([2] and [3]) of each record, for
     * columns 2 t and 2 t + 1. Even and odd steps have separate accumulators, so that they
     * overlap. */
    __device__ __forceinline__ void score(float (&scores)[RECORDS][NT][4], int n_columns)
    {
        constexpr int ABREAST = NT == 1 ? RECORDS : 1; // number of records processed side by side
        float odd[ABREAST][NT][4];
#pragma unroll
        for (int r0 = 0; r0 < RECORDS; r0 += ABREAST) {
#pragma unroll
            for (int i = 0; i < ABREAST * NT * 4; i++) {
                (&odd[0][0][0])[i] = (&scores[r0][0][0])[i] = 0.0f;
            }
#pragma unroll
            for (int c = 0; c < PIECES; c += 2) {
                if (is_past(c, p.n_k)) {
                    break;
                }
#pragma unroll
                for (int r = 0; r < ABREAST; r++) {
                    uint32_t words[4];
                    ldmatrix_x4(words, matrices_at(r0 + r, false, c));
                    score_pieces(scores[r0 + r], odd[r], words, c, n_columns);
                }
            }
#pragma unroll
            for (int i = 0; i < ABREAST * NT * 4; i++) {
                (&scores[r0][0][0])[i] += (&odd[0][0][0])[i];
            }
        }
    }

    /* Adds the products with pieces c and c + 1 of a record's keys. */
    __device__ __forceinline__ void score_pieces(float (&even)[NT][4], float (&odd)[NT][4],
                                                 const uint32_t (&words)[4], int c, int n_columns)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (is_past(c + h, p.n_k)) {
                break;
            }
            uint32_t low[2 * K::STEPS], high[2 * K::STEPS];
            key_operands<F>(words[2 * h], low);
            key_operands<F>(words[2 * h + 1], high);
#pragma unroll
            for (int s = 0; s < K::STEPS; s++) {
                const uint32_t a[4] = {low[2 * s], high[2 * s], low[2 * s + 1], high[2 * s + 1]};
                const int step = (c + h) * K::STEPS + s;
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    if (j < n_columns) {
                        const uint2 q = query(j, step);
                        mma_16x8x16(step % 2 ? odd[j] : even[j], a, q.x, q.y, f16_t());
                    }
                }
            }
        }
    }

    /* True if column `column` of the unit sees the key. */
    __device__ __forceinline__ bool sees(const struct attention_unit &u, int column, int key) const
    {
        return row_sees(p.a, u, row_view(p.a, u, column), key);
    }

    /* Which keys of the record that starts with key `first` are visible: bit 4 j + i is for score i
     * of group j. */
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

    /* The factors of one key. Its score is k * (dot - k_zero * q_sum), where dot is the product of
     * query and codes. v_log, v_inverse: logarithm and inverse of the scale of its value. */
    struct key_scales {
        float k, k_zero, v_log, v_inverse, v_zero;
    };

    /* The factors of a key with these scale words; zeros unless is_there (there is such a key).
     * k_unit, zero_unit: factors of the scale and of the zero point of K. */
    __device__ __forceinline__ static struct key_scales
    scales_of_words(enum kv_format format, uint32_t k_word, uint32_t v_word, bool is_there,
                    float k_unit, float zero_unit)
    {
        const struct kv_scale k = kv_scale_of_word(format, k_word);
        const struct kv_scale v = kv_scale_of_word(format, v_word);
        return is_there ? key_scales{k.scale * k_unit, k.zero * zero_unit, log2_fast(v.scale),
                                     reciprocal(v.scale), v.zero}
                        : key_scales{};
    }

    /* Loads the factors of key `lane` of the chunk (of key `lane` % 16 if it has only 16). */
    __device__ __forceinline__ struct key_scales own_scales(bool is_there) const
    {
        const struct kv_codes &c = p.a.kv.codes;
        const uint32_t *words =
            (const uint32_t *)(record_at(RECORDS == 1 ? 0 : lane >> 4) + c.words_offset);
        return scales_of_words(c.format, words[lane & 15], words[RECORD_KEYS + (lane & 15)],
                               is_there, score_unit(), 1.0f / K::UNIT);
    }

    __device__ __forceinline__ float score_unit() const
    {
        return K::UNIT / QUERY_FACTOR * (p.a.softcap > 0.0f ? 1.0f : p.a.scale_log2);
    }

    __device__ __forceinline__ struct key_scales scales_of(const struct key_scales &lanes,
                                                           int key) const
    {
        if (p.a.kv.codes.word_bytes == 0) {
            return {p.a.kv.codes.k_scale * score_unit(), 0.0f, 0.0f, 1.0f, 0.0f};
        }
        const auto of = [&](float x) { return __shfl_sync(0xffffffffu, x, key); };
        return {of(lanes.k), HAS_ZERO ? of(lanes.k_zero) : 0.0f, of(lanes.v_log),
                of(lanes.v_inverse), HAS_ZERO ? of(lanes.v_zero) : 0.0f};
    }

    /* Applies the keys' scales, the cap and the mask to the scores of pair j of columns, and finds
     * their maximum, or that of the keys before. */
    __device__ __forceinline__ void scale_scores(int j, bool all, const uint32_t (&seen)[RECORDS],
                                                 const struct key_scales (&keys)[RECORDS][2],
                                                 float (&scores)[RECORDS][NT][4],
                                                 float (&high)[2]) const
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            high[e] = top[j][e];
#pragma unroll
            for (int r = 0; r < RECORDS; r++) {
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const struct key_scales &key = keys[r][k];
                    float &x = scores[r][j][2 * k + e];
                    x = HAS_ZERO ? __fmaf_rn(-key.k_zero, q_sum[j][e], x) : x;
                    if (p.a.softcap > 0.0f) {
                        x = __fmaf_rn(soft_cap(p.a, x * key.k), p.a.scale_log2, key.v_log);
                    } else {
                        x = __fmaf_rn(x, key.k, key.v_log);
                    }
                    x = all || seen[r] >> (4 * j + 2 * k + e) & 1 ? x : -INFINITY;
                    high[e] = fmaxf(high[e], x);
                }
            }
        }
#pragma unroll
        for (int mask = 4; mask <= 16; mask *= 2) {
            high[0] = fmaxf(high[0], __shfl_xor_sync(0xffffffffu, high[0], mask));
            high[1] = fmaxf(high[1], __shfl_xor_sync(0xffffffffu, high[1], mask));
        }
    }

    /* Turns scores into weights for the value codes, scaled so that the largest weight so far is 1.
     * A weight is the probability times the value's scale. The sum of probabilities is kept
     * relative to the same maximum. */
    __device__ __forceinline__ void softmax(const struct attention_unit &u, int first,
                                            float (&scores)[RECORDS][NT][4],
                                            uint32_t (&weights)[RECORDS][NT][2], int n_columns)
    {
        const bool all = first >= u.all_lo && first + S::KEYS <= u.all_hi;
        const int lanes_key = first + (lane & (S::KEYS - 1));
        struct key_scales lanes = {};
        if (p.a.kv.codes.word_bytes != 0) {
            lanes = own_scales(lanes_key >= u.first && lanes_key < u.hi);
        }
        struct key_scales keys[RECORDS][2];
        uint32_t seen[RECORDS];
#pragma unroll
        for (int r = 0; r < RECORDS; r++) {
            keys[r][0] = scales_of(lanes, r * RECORD_KEYS + g());
            keys[r][1] = scales_of(lanes, r * RECORD_KEYS + g() + 8);
            seen[r] = all ? ~0u : seen_of(u, first + r * RECORD_KEYS);
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
            if (j >= n_columns) {
                break;
            }
            float decay[2], high[2];
            scale_scores(j, all, seen, keys, scores, high);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float safe = high[e] == -INFINITY ? 0.0f : high[e];
                decay[e] = exp2_fast(__fsub_rn(top[j][e], safe));
                top[j][e] = high[e];
                sum[j][e] *= decay[e];
                zeros[j][e] *= decay[e];
#pragma unroll
                for (int r = 0; r < RECORDS; r++) {
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        float &x = scores[r][j][2 * k + e];
                        x = exp2_fast(__fsub_rn(x, safe));
                        sum[j][e] = __fmaf_rn(x, keys[r][k].v_inverse, sum[j][e]);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < RECORDS; r++) {
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const uint32_t pair = half_pair(scores[r][j][2 * k], scores[r][j][2 * k + 1]);
                    if (HAS_ZERO) {
                        const float2 rounded = half_values(pair);
                        zeros[j][0] = __fmaf_rn(rounded.x, keys[r][k].v_zero, zeros[j][0]);
                        zeros[j][1] = __fmaf_rn(rounded.y, keys[r][k].v_zero, zeros[j][1]);
                    }
                    weights[r][j][k] = matrix_transposed(pair);
                }
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
        }
    }

    /* Clears the values of keys that do not exist, since their memory may contain anything,
     * including E4M3's NaN. Masks of registers would split the loop over the values into many short
     * blocks, in each of which instructions wait for each other. */
    __device__ __forceinline__ void clear_missing(const struct attention_unit &u, int first) const
    {
        if (first >= u.first && first + S::KEYS <= u.hi) {
            return;
        }
        const int key = first + (lane & (S::KEYS - 1)), row = p.a.kv.codes.v_row;
        char *values = record_at(RECORDS == 1 ? 0 : lane >> 4) + p.a.kv.codes.v_offset;
        if (key < u.first || key >= u.hi) {
#pragma unroll 1
            for (int at = 0; at < row; at += 16) {
                const int byte = (lane & 15) * row + at;
                *(uint4 *)(values + (byte ^ (byte >> 3 & 0x70))) = uint4{};
            }
            fence_async(); // the next copy to the slot must come after these writes
        }
        __syncwarp();
    }

    __device__ __forceinline__ void add_values(const struct attention_unit &u, int first,
                                               const uint32_t (&weights)[RECORDS][NT][2],
                                               int n_columns)
    {
        if (F == KV_FP8) {
            clear_missing(u, first);
        }
#pragma unroll
        for (int c = 0; c < PIECES; c += 2) {
            if (is_past(c, p.n_v)) {
                break;
            }
#pragma unroll
            for (int r = 0; r < RECORDS; r++) {
                uint32_t words[4];
                ldmatrix_x4_transposed(words, matrices_at(r, true, c));
                add_pieces(words, weights[r], c, n_columns);
            }
        }
    }

    /* Adds the products with pieces c and c + 1 of a record's values. */
    __device__ __forceinline__ void
    add_pieces(const uint32_t (&words)[4], const uint32_t (&weights)[NT][2], int c, int n_columns)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (is_past(c + h, p.n_v)) {
                break;
            }
            uint32_t low[2 * K::STEPS], up[2 * K::STEPS];
            value_operands<F>(words[2 * h], low);
            value_operands<F>(words[2 * h + 1], up);
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

    __device__ __forceinline__ void chunk(const struct attention_unit &u, int first, int n_columns)
    {
        float scores[RECORDS][NT][4];
        uint32_t weights[RECORDS][NT][2];
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

    /* Stores this warp's results for group j: the values of each vector, its maximum and its sum.
     * The lane has vectors first_vector and first_vector + vector_step. */
    __device__ __forceinline__ void put_column(int j, int first_vector, int vector_step)
    {
        const float stored = p.a.kv.codes.word_bytes == 0 ? p.a.kv.codes.v_scale : 1.0f;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float zero = of_all_keys(zeros[j][e]), total = of_all_keys(sum[j][e]);
            float *to = room + (warp * 8 + first_vector + e * vector_step) * S::PITCH;
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

    /* Joins element d of the warps' results for a vector, in the order of warps. */
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

    /* Joins element d of a run's result to the earlier runs in `folded`. A vector's new maximum and
     * sum are written next to the old ones, because other threads may still read those. */
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

    /* Joins all warps' results for one run of the unit's keys; after the last run, stores them. */
    __device__ __forceinline__ void finish(const struct attention_unit &u, bool is_first,
                                           bool is_last, int first_vector, int vector_step)
    {
        const int dims = p.a.kv.head_dim_v;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            if (j * 8 >= u.n_packed) {
                break;
            }
            put_column(j, first_vector, vector_step);
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

    __device__ __forceinline__ void finish_run(const struct attention_unit &u, bool is_first,
                                               bool is_last)
    {
        finish(u, is_first, is_last, 2 * t(), 1);
    }
};

#endif // HAVE_SM90A

#endif
