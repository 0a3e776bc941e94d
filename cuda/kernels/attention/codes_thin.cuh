// SPDX-License-Identifier: Apache-2.0
/* Attention over codes in units of up to 8 query vectors.
 *
 * Integer codes: queries are rounded to 15 bits and multiplied as two digits of 8 bits on the
 * integer tensor cores, which take codes of 8 bits as they are stored and codes of 4 bits after a
 * mask. The products are exact. A vector's digits are neighbouring columns, so one lane has both of
 * them.
 *
 * FP8: the products are those of codes_computer. Four vectors or fewer are in the even columns; the
 * odd ones are zeros.
 *
 * With up to four vectors, a lane thus has half as many scores as a lane of codes_computer. Values
 * are multiplied as in codes_computer. References (next_reference in common.cuh) move less often,
 * and queries of integer codes are rounded differently, so a row's bits differ from
 * codes_computer's; deterministic mode does not use this.
 * Thread: device code, one warp at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_CODES_THIN_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_CODES_THIN_CUH

#include "cuda/kernels/attention/codes.cuh"

#if HAVE_SM90A

/* SETS: number of sets of four query vectors. A lane has vector t and, if there are two sets, t +
 * 4, as elements [0][0] and [0][1] of top, sum, zeros, q_sum and of a tile's values. */
template <enum kv_format F, int D, int SETS, bool FULL>
struct codes_thin : codes_computer<F, D, 1, FULL> {
    using B = codes_computer<F, D, 1, FULL>;
    using S = typename B::S;
    using K = typename B::K;
    using key_scales = typename B::key_scales;
    static constexpr int RECORDS = B::RECORDS, PAIRS = B::PIECES / 2; // pairs of pieces
    static constexpr int EACH = 4 * K::STEPS; // consecutive elements of a piece that a lane has
    static constexpr int HALF_DIGIT = 128, DIGIT = 256, LARGEST_POWER = 13;
    static constexpr int PRODUCT = F == KV_INT4 ? 16 : 1; // factor of the sums of products
    static constexpr float KEEP = 8.0f;                   // as in next_reference

    /* The operands of the lane's column (one digit of a vector), in the last index: 0 for codes in
     * the low bits of bytes; 1, only with 4-bit codes, for those in the high bits. */
    uint2 digits[SETS][PAIRS][K::STEPS];
    float q_unit[SETS]; // the value of a vector's lowest bit
    // The ring's address in shared memory, kept in a register: it is not computed per chunk.
    uint32_t ring = kept(smem_address(B::loader.slots));
    uint32_t at; // address of the current chunk

    __device__ __forceinline__ static uint32_t kept(uint32_t x)
    {
        asm volatile("" : "+r"(x));
        return x;
    }

    /* ---- the layout of a record, constant if rows have exactly D elements */

    static constexpr int ROW = D * K::BITS / 8;

    __device__ __forceinline__ int row_bytes(bool is_v) const
    {
        const struct kv_codes &c = B::p.a.kv.codes;
        const int row = is_v ? c.v_row : c.k_row;
        return FULL ? ROW : row;
    }

    __device__ __forceinline__ int v_offset() const
    {
        return FULL ? RECORD_KEYS * ROW : B::p.a.kv.codes.v_offset;
    }

    __device__ __forceinline__ int words_offset() const
    {
        return FULL ? 2 * RECORD_KEYS * ROW : B::p.a.kv.codes.words_offset;
    }

    __device__ __forceinline__ int room() const
    {
        return FULL ? (2 * RECORD_KEYS * (ROW + 4) + 127) / 128 * 128 : B::p.record_room;
    }

    /* Like codes_computer::matrices_at. */
    __device__ __forceinline__ uint32_t matrices_at(int r, bool is_v, int c) const
    {
        const int byte = (B::lane & 15) * row_bytes(is_v) + (c + (B::lane >> 4)) * 16;
        return at + (uint32_t)((byte ^ (byte >> 3 & 0x70)) + r * room() + (is_v ? v_offset() : 0));
    }

    /* The scale word of this lane's key: K's (i is 0) or V's (i is 1). */
    __device__ __forceinline__ uint32_t own_word(int i) const
    {
        const int r = RECORDS == 1 ? 0 : B::lane >> 4;
        const int word = i * RECORD_KEYS + (B::lane & 15);
        return shared_word(at + (uint32_t)(r * room() + words_offset() + word * 4));
    }

    /* ---- queries */

    __device__ __forceinline__ float2 query_pair(uint32_t pair) const
    {
        return B::p.is_bf16
                   ? make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u))
                   : half_values(pair);
    }

    /* Loads the lane's elements of a vector; zeros if the unit has no such vector. */
    __device__ __forceinline__ void load_vector(const struct attention_unit &u, int vector,
                                                uint32_t (&raw)[B::PIECES][EACH / 2]) const
    {
        const struct attention_params &a = B::p.a;
        const int k = u.first_packed + min(vector, u.n_packed - 1);
        const int row = u.item.first_row + k / a.group, head = u.kv_head * a.group + k % a.group;
        const uint32_t *from =
            (const uint32_t *)((const char *)a.q +
                               ((int64_t)row * a.q_stride + (int64_t)head * a.kv.head_dim_k) * 2);
#pragma unroll
        for (int c = 0; c < B::PIECES; c++) {
            const int first = c * K::NUMBERS + B::t() * EACH;
            const bool is_real = vector < u.n_packed && first < a.kv.head_dim_k;
#pragma unroll
            for (int i = 0; i < EACH / 2; i += 2) {
                const uint2 v = is_real ? *(const uint2 *)(from + first / 2 + i) : uint2{0, 0};
                raw[c][i] = v.x;
                raw[c][i + 1] = v.y;
            }
        }
    }

    /* The largest magnitude in a vector, as the bits of a float. */
    __device__ __forceinline__ uint32_t largest_of(const uint32_t (&raw)[B::PIECES][EACH / 2]) const
    {
        uint32_t largest = 0;
#pragma unroll
        for (int i = 0; i < B::PIECES * EACH / 2; i++) {
            const float2 v = query_pair((&raw[0][0])[i]);
            largest = max(largest, max(__float_as_uint(v.x) & 0x7fffffffu,
                                       __float_as_uint(v.y) & 0x7fffffffu));
        }
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        return max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    }

    /* The low or the high digit of x. */
    __device__ __forceinline__ static uint32_t digit_of(int x, bool is_low)
    {
        const int high = (x + HALF_DIGIT) >> 8;
        return (uint32_t)(is_low ? x - high * DIGIT : high) & 0xffu;
    }

    /* FP8: the operands of the lane's column, which are fp16 numbers. */
    __device__ __forceinline__ void load_numbers(const struct attention_unit &u)
    {
        const int odd = B::g() & 1, vector = (B::g() >> 1) + 4 * odd;
        uint32_t raw[B::PIECES][EACH / 2];
        load_vector(u, odd < SETS ? vector : u.n_packed, raw);
        const auto operand = [&](uint32_t pair) {
            const float2 v = query_pair(pair);
            return half_pair(v.x * QUERY_FACTOR, v.y * QUERY_FACTOR);
        };
#pragma unroll
        for (int c = 0; c < B::PIECES; c++) {
            B::own[c] = make_uint2(operand(raw[c][0]), operand(raw[c][1]));
        }
    }

    /* Integer codes: the digits of set e. */
    __device__ __forceinline__ void load_digits(const struct attention_unit &u, int e)
    {
        const bool is_low = B::g() & 1;
        uint32_t raw[B::PIECES][EACH / 2];
        load_vector(u, (B::g() >> 1) + 4 * e, raw);
        const uint32_t largest = largest_of(raw);
        /* Scales the vector: its largest element gets 14 bits; tiny elements become 0. */
        const uint32_t exponent = max(largest >> 23, LARGEST_POWER + 1u);
        const float factor = __uint_as_float((LARGEST_POWER + 254u - exponent) << 23);
        float unit = __uint_as_float((exponent - LARGEST_POWER) << 23);
        unit = largest >= 0x7f800000u ? __uint_as_float(0x7fc00000u) : unit; // infinity or NaN
        int total = 0;
#pragma unroll
        for (int c = 0; c < B::PIECES; c++) {
            uint32_t words[K::STEPS] = {};
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const float2 v = query_pair(raw[c][i / 2]);
                const int x = __float2int_rn((i % 2 ? v.y : v.x) * factor);
                total += x;
                words[i % K::STEPS] |= digit_of(x, is_low) << (i / K::STEPS * 8);
            }
#pragma unroll
            for (int s = 0; s < K::STEPS; s++) {
                (c % 2 ? digits[e][c / 2][s].y : digits[e][c / 2][s].x) = words[s];
            }
        }
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        // Vector t is in columns 2 t and 2 t + 1; four lanes hold each column.
        B::q_sum[0][e] = (float)(__shfl_sync(0xffffffffu, total, B::t() * 8) * PRODUCT);
        q_unit[e] = __shfl_sync(0xffffffffu, unit, B::t() * 8) * (1.0f / PRODUCT);
    }

    __device__ __forceinline__ void load_queries(const struct attention_unit &u)
    {
        if constexpr (F == KV_FP8) {
            load_numbers(u);
        } else {
#pragma unroll
            for (int e = 0; e < SETS; e++) {
                load_digits(u, e);
            }
        }
    }

    /* ---- a chunk */

    /* Computes the products of queries and codes for keys g ([0]) and g + 8 ([1]) of each record,
     * times QUERY_FACTOR for FP8 and PRODUCT for integer codes. */
    __device__ __forceinline__ void score(float (&scores)[RECORDS][2][SETS])
    {
        if constexpr (F == KV_FP8) {
            score_numbers(scores);
        } else {
            score_digits(scores);
        }
    }

    __device__ __forceinline__ void score_numbers(float (&scores)[RECORDS][2][SETS])
    {
        float dots[2][RECORDS][1][4] = {};
#pragma unroll
        for (int c = 0; c < B::PIECES; c += 2) {
            if (B::is_past(c, B::p.n_k)) {
                break;
            }
#pragma unroll
            for (int r = 0; r < RECORDS; r++) {
                uint32_t words[4];
                matrices_from(words, matrices_at(r, false, c));
                B::score_pieces(dots[0][r], dots[1][r], words, c, 1);
            }
        }
#pragma unroll
        for (int i = 0; i < RECORDS * 2 * SETS; i++) {
            const int r = i / (2 * SETS), k = i / SETS % 2, e = i % SETS;
            scores[r][k][e] = dots[0][r][0][2 * k + e] + dots[1][r][0][2 * k + e];
        }
    }

    /* 4-bit codes in the high bits of bytes have 16 times their value. */
    __device__ __forceinline__ void score_digits(float (&scores)[RECORDS][2][SETS])
    {
        int32_t dots[RECORDS][SETS][2][4] = {};
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            if (!FULL && 2 * i >= B::p.n_k) {
                break; // digits of a piece that does not exist are 0
            }
#pragma unroll
            for (int r = 0; r < RECORDS; r++) {
                uint32_t words[4];
                matrices_from(words, matrices_at(r, false, 2 * i));
                multiply(dots[r], words, i);
            }
        }
#pragma unroll
        for (int i = 0; i < RECORDS * SETS * 2; i++) {
            const int r = i / (SETS * 2), e = i / 2 % SETS, k = i % 2;
            const int32_t (&d)[2][4] = dots[r][e];
            const int high = d[0][2 * k] * PRODUCT + d[1][2 * k];
            const int low = d[0][2 * k + 1] * PRODUCT + d[1][2 * k + 1];
            scores[r][k][e] = (float)(high * DIGIT + low);
        }
    }

    /* Adds the products with pair i of pieces of a record's keys. */
    __device__ __forceinline__ void multiply(int32_t (&dots)[SETS][2][4],
                                             const uint32_t (&words)[4], int i)
    {
        if constexpr (F == KV_INT4) {
            uint32_t low[4], high[4];
#pragma unroll
            for (int w = 0; w < 4; w++) {
                low[w] = words[w] & 0x0f0f0f0fu;
                high[w] = words[w] & 0xf0f0f0f0u;
            }
#pragma unroll
            for (int e = 0; e < SETS; e++) {
                mma_16x8x32(dots[e][0], low, digits[e][i][0]);
                mma_16x8x32(dots[e][1], high, digits[e][i][1]);
            }
        } else {
#pragma unroll
            for (int e = 0; e < SETS; e++) {
                mma_16x8x32(dots[e][i & 1], words, digits[e][i][0]);
            }
        }
    }

    /* Which keys of the record that starts with key `first` are visible: bit 2 e + k is for key
     * g + 8 k and vector t + 4 e. */
    __device__ __forceinline__ uint32_t seen_of(const struct attention_unit &u, int first) const
    {
        uint32_t seen = 0;
#pragma unroll 1
        for (int i = 0; i < 2 * SETS; i++) {
            const int vector = B::t() + (i >> 1) * 4;
            seen |= (uint32_t)B::sees(u, vector, first + B::g() + (i & 1) * 8) << i;
        }
        return seen;
    }

    /* Applies the keys' scales to the scores, which become exponents that include the values'
     * scales. */
    template <bool CAPPED>
    __device__ __forceinline__ void apply_scales(const key_scales (&keys)[RECORDS * 2],
                                                 float (&scores)[RECORDS][2][SETS]) const
    {
#pragma unroll
        for (int i = 0; i < RECORDS * 2; i++) {
            const key_scales &key = keys[i];
#pragma unroll
            for (int e = 0; e < SETS; e++) {
                float &x = scores[i / 2][i % 2][e];
                if (B::HAS_ZERO) {
                    x = __fmaf_rn(-key.k_zero, B::q_sum[0][e], x) * q_unit[e];
                }
                if (CAPPED) {
                    x = __fmaf_rn(soft_cap(B::p.a, x * key.k), B::p.a.scale_log2, key.v_log);
                } else {
                    x = __fmaf_rn(x, key.k, key.v_log);
                }
            }
        }
    }

    __device__ __forceinline__ void hide_unseen(const struct attention_unit &u, int first,
                                                float (&scores)[RECORDS][2][SETS]) const
    {
        if (first >= u.all_lo && first + S::KEYS <= u.all_hi) {
            return;
        }
#pragma unroll
        for (int r = 0; r < RECORDS; r++) {
            const uint32_t seen = seen_of(u, first + r * RECORD_KEYS);
#pragma unroll
            for (int i = 0; i < 2 * SETS; i++) {
                float &x = scores[r][i & 1][i >> 1];
                x = seen >> i & 1 ? x : -INFINITY;
            }
        }
    }

    /* Moves the reference of each of the lane's vectors that a score exceeds by more than KEEP. */
    __device__ __forceinline__ void move_references(const float (&high)[SETS])
    {
        bool moves = false;
#pragma unroll
        for (int e = 0; e < SETS; e++) {
            moves |= high[e] > B::top[0][e] + KEEP;
        }
        if (!__any_sync(0xffffffffu, moves)) {
            return;
        }
#pragma unroll
        for (int e = 0; e < SETS; e++) {
            const float old = B::top[0][e], next = high[e] > old + KEEP ? high[e] : old;
            const float decay = exp2_fast(__fsub_rn(old, next == -INFINITY ? 0.0f : next));
            B::top[0][e] = next;
            B::sum[0][e] *= decay;
            B::zeros[0][e] *= decay;
#pragma unroll
            for (int f = 0; f < S::TILES; f++) {
                B::values[0][f][e] *= decay;
                B::values[0][f][2 + e] *= decay;
            }
        }
    }

    /* The factors of keys g and g + 8 of each record of the chunk `first`. */
    __device__ __forceinline__ void load_scales(const struct attention_unit &u, int first,
                                                key_scales (&keys)[RECORDS * 2]) const
    {
        const float unit = (F == KV_FP8 ? 1.0f / QUERY_FACTOR : 1.0f) *
                           (B::p.a.softcap > 0.0f ? 1.0f : B::p.a.scale_log2);
        const struct kv_codes &codes = B::p.a.kv.codes;
        if (F == KV_FP8 && codes.word_bytes == 0) {
#pragma unroll
            for (int i = 0; i < RECORDS * 2; i++) {
                keys[i] = {codes.k_scale * unit, 0.0f, 0.0f, 1.0f, 0.0f};
            }
            return;
        }
        const int own = first + (B::lane & (S::KEYS - 1));
        const key_scales lanes =
            B::scales_of_words(F == KV_INT8 ? codes.format : F, own_word(0), own_word(1),
                               own >= u.first && own < u.hi, unit, 1.0f);
        const auto of = [&](float x, int i) { return __shfl_sync(0xffffffffu, x, i * 8 + B::g()); };
#pragma unroll
        for (int i = 0; i < RECORDS * 2; i++) {
            keys[i] = {of(lanes.k, i), B::HAS_ZERO ? of(lanes.k_zero, i) : 0.0f, of(lanes.v_log, i),
                       of(lanes.v_inverse, i), B::HAS_ZERO ? of(lanes.v_zero, i) : 0.0f};
        }
    }

    /* Turns scores into weights for the value codes: probabilities times the values' scales,
     * relative to the reference. */
    __device__ __forceinline__ void softmax(const struct attention_unit &u, int first,
                                            float (&scores)[RECORDS][2][SETS],
                                            uint32_t (&weights)[RECORDS][1][2])
    {
        key_scales keys[RECORDS * 2];
        load_scales(u, first, keys);
        if (B::p.a.softcap > 0.0f) {
            apply_scales<true>(keys, scores);
        } else {
            apply_scales<false>(keys, scores);
        }
        hide_unseen(u, first, scores);
        float high[SETS];
#pragma unroll
        for (int e = 0; e < SETS; e++) {
            high[e] = scores[0][0][e];
#pragma unroll
            for (int i = 1; i < RECORDS * 2; i++) {
                high[e] = fmaxf(high[e], scores[i / 2][i % 2][e]);
            }
#pragma unroll
            for (int mask = 4; mask <= 16; mask *= 2) {
                high[e] = fmaxf(high[e], __shfl_xor_sync(0xffffffffu, high[e], mask));
            }
        }
        move_references(high);
#pragma unroll
        for (int i = 0; i < RECORDS * 2; i++) {
            const key_scales &key = keys[i];
            float x[2] = {};
#pragma unroll
            for (int e = 0; e < SETS; e++) {
                const float top = B::top[0][e];
                x[e] = exp2_fast(__fsub_rn(scores[i / 2][i % 2][e], top == -INFINITY ? 0.0f : top));
                B::sum[0][e] = __fmaf_rn(x[e], key.v_inverse, B::sum[0][e]);
            }
            const uint32_t pair = half_pair(x[0], x[1]);
            if (B::HAS_ZERO) {
                const float2 rounded = half_values(pair);
                B::zeros[0][0] = __fmaf_rn(rounded.x, key.v_zero, B::zeros[0][0]);
                if (SETS == 2) {
                    B::zeros[0][1] = __fmaf_rn(rounded.y, key.v_zero, B::zeros[0][1]);
                }
            }
            weights[i / 2][0][i % 2] = matrix_transposed(pair);
        }
    }

    __device__ __forceinline__ void add_values(const struct attention_unit &u, int first,
                                               const uint32_t (&weights)[RECORDS][1][2])
    {
        if (F == KV_FP8) {
            B::clear_missing(u, first);
        }
#pragma unroll
        for (int c = 0; c < B::PIECES; c += 2) {
            if (B::is_past(c, B::p.n_v)) {
                break;
            }
#pragma unroll
            for (int r = 0; r < RECORDS; r++) {
                uint32_t words[4];
                transposed_matrices_from(words, matrices_at(r, true, c));
                B::add_pieces(words, weights[r], c, 1);
            }
        }
    }

    __device__ __forceinline__ void chunk(const struct attention_unit &u, int first, int)
    {
        float scores[RECORDS][2][SETS];
        uint32_t weights[RECORDS][1][2];
        at = ring + (uint32_t)(B::slot * RECORDS * room());
        barrier_wait(&B::loader.full[B::slot], B::parity);
        score(scores);
        softmax(u, first, scores, weights);
        add_values(u, first, weights);
        __syncwarp();
        B::loader.fetch(B::slot);
        if (++B::slot == B::p.n_slots) {
            B::slot = 0;
            B::parity ^= 1;
        }
    }

    __device__ __forceinline__ void finish_run(const struct attention_unit &u, bool is_first,
                                               bool is_last)
    {
        B::finish(u, is_first, is_last, B::t(), 4);
    }
};

/* Processes a unit; C is a codes_computer or a codes_thin. */
template <int KEYS, typename C>
__device__ __forceinline__ void codes_unit(C &c, const struct attention_unit &u)
{
    const int n_columns = (u.n_packed + 7) / 8;
    c.load_queries(u);
    bool is_first = true;
    for (int lo = u.lo; is_first || lo < u.hi; is_first = false) {
        const int run = u.lo < u.hi ? run_end(u, lo) : u.hi;
        c.clear();
        const int begin = u.item.kv_begin, first = (lo - begin) / KEYS;
        int i = first + ((c.warp - first) & (CODE_WARPS - 1));
#pragma unroll 1
        for (; begin + i * KEYS < run; i += CODE_WARPS) {
            c.chunk(u, begin + i * KEYS, n_columns);
        }
        c.finish_run(u, is_first, run >= u.hi);
        lo = run;
    }
}

#endif // HAVE_SM90A

#endif
