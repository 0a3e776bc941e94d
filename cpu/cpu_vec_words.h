// SPDX-License-Identifier: Apache-2.0
/* Products of int8 and int4 codes of keys and values in integers. If only the few heads of a group
 * share a code, converting it to fp32 costs more than the products that use it. So the query, or a
 * row's probabilities, are rounded to integers once, and codes are only widened to 16 bits:
 *
 *     score   = (sum of q code - zero * sum of q) * unit of q * scale
 *     value  += (sum of p code - sum of p zero) * unit of p
 *
 * A query has 16 bits with its sign, relative to its largest element. Probabilities have 28 bits,
 * in two words, because the high word alone would lose the many small probabilities of a chunk.
 * Integer sums are exact, so their bits depend neither on their order nor on what else is computed.
 * With a model in fp32 the products stay in fp32 (cpu_vec_attention.h). Included by
 * cpu_vec_attention.h.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_WORDS_H
#define SLUICE_CPU_VEC_WORDS_H

#include "cpu/cpu_vec_kv.h"
#include "engine/base/minmax.h"
#include "engine/device/backend.h"

#include <limits.h>
#include <math.h>

#if defined(__AVX2__) || defined(__AVX512F__)
#define WORD_SCORES 1
#else
#define WORD_SCORES 0
#endif
/* Each element needs two products, which pays only where one instruction multiplies and adds. */
#if defined(__AVX512VNNI__)
#define WORD_VALUES 1
#else
#define WORD_VALUES 0
#endif

#if WORD_SCORES

enum { WORD_ROWS = 12, WORD_DIMS = 640, MAX_CODE = 255, MAX_WORD = 32639 };

typedef int16_t vw __attribute__((vector_size(VEC_BYTES / 2)));

/* sum += a.low * b.low + a.high * b.high, where low and high are 16-bit words. */
VEC_INLINE vi vec_dot_words(vi sum, vi a, vi b)
{
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512F__)
    return sum + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return sum + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

/* Rounds to nearest. NaN, and values out of range, become INT32_MIN. */
VEC_INLINE vi vec_round_int(vf x)
{
#if defined(__AVX512F__)
    return (vi)_mm512_cvtps_epi32((__m512)x);
#else
    return (vi)_mm256_cvtps_epi32((__m256)x);
#endif
}

VEC_INLINE vi vec_set_int(int32_t x)
{
    return x - (vi){0};
}

VEC_INLINE vi vec_load_ints(const void *p)
{
    vi x;
    memcpy(&x, p, sizeof x);
    return x;
}

VEC_INLINE void put_words(int16_t *to, vi x)
{
    vw words = __builtin_convertvector(x, vw);
    memcpy(to, &words, sizeof words);
}

/* The same two adjacent words in all lanes. */
VEC_INLINE vi both_words(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return vec_set_int(pair);
}

VEC_INLINE vi vec_max_int(vi a, vi b)
{
#if defined(__AVX512F__)
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#endif
}

VEC_INLINE int64_t vec_sum_int(vi x)
{
#if defined(__AVX512F__)
    __m512i low = _mm512_cvtepi32_epi64(_mm512_castsi512_si256((__m512i)x));
    __m512i high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64((__m512i)x, 1));
    return _mm512_reduce_add_epi64(_mm512_add_epi64(low, high));
#else
    int64_t sum = 0;
    for (int i = 0; i < VEC; i++) {
        sum += x[i];
    }
    return sum;
#endif
}

/* Loads up to VEC elements; the other lanes are 0. */
VEC_INLINE vf vec_load_some(const float *p, int32_t n)
{
    float some[VEC] = {0.0f};
    if (n >= VEC) {
        return vec_load(p);
    }
    memcpy(some, p, (size_t)n * sizeof *some);
    return vec_load(some);
}

/* The largest magnitude; NaN if an element is NaN or infinite. The bits of magnitudes are ordered
 * like their values, and those of infinity and NaN follow. */
VEC_INLINE float largest_of(const float *x, int32_t n)
{
    enum { INFINITE = 0x7F800000 };
    vi most = {0};
    for (int32_t i = 0; i < n; i += VEC) {
        most = vec_max_int(most, (vi)vec_load_some(x + i, n - i) & INT32_MAX);
    }
    int32_t bits = 0;
    for (int i = 0; i < VEC; i++) {
        bits = greater(most[i], bits);
    }
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    return bits < INFINITE ? largest : NAN;
}

/* Key codes of a pair of dims, or value codes of a pair of tokens, as 16-bit words. */
VEC_INLINE vi key_words(const char *p, const enum stored kind)
{
    const uint8_t *codes = (const uint8_t *)p;
    if (kind == STORED_U4) {
        vi both = vec_from_bytes(codes);
        return (both | both << 12) & 0x000F000F;
    }
    return vec_words(codes, kind == STORED_I8);
}

/* The choice depends only on the layer, so that all rows are computed in the same way. */
VEC_INLINE bool scores_in_words(const struct kv_plane *p, int32_t dim)
{
    return in_pairs(stored_of(p)) && p->dtype != DT_F32 && dim <= WORD_DIMS;
}

/* ---- scores -------------------------------------------------------------------------------- */

struct word_queries {
    int16_t words[WORD_ROWS][WORD_DIMS];
    float unit[WORD_ROWS], sum[WORD_ROWS];
};

/* The score of VEC keys, given the sums of q code. */
VEC_INLINE vf settle_score(vi sum, vf scale, vf zero, float unit, float q_sum,
                           const enum stored kind)
{
    vf x = vec_of_ints(sum);
    x = has_zeros(kind) ? x - zero * vec_set(q_sum) : x;
    return x * (scale * vec_set(unit));
}

struct word_score_job {
    struct word_queries q;
    const struct page_run *k;
    int32_t per_page, dim; // number of vectors of tokens per page
    float *s;
    int64_t s_stride;
};

static void round_query(const float *q, int32_t dim, struct word_queries *to, int32_t row)
{
    const int32_t fits = INT_MAX / MAX_CODE / dim;
    const float most = (float)lesser(fits, MAX_WORD);
    const float largest = largest_of(q, dim);
    const vf factor = vec_set(largest > 0.0f ? most / largest : 0.0f);
    vi sum = {0};
    for (int32_t d = 0; d < dim; d += VEC) {
        vi x = vec_round_int(vec_load_some(q + d, dim - d) * factor);
        put_words(to->words[row] + d, x);
        sum += x;
    }
    to->unit[row] = largest / most;
    to->sum[row] = (float)vec_sum_int(sum);
}

/* Computes rows x vecs scores, like score_block. */
VEC_INLINE void score_words(const struct word_score_job *j, int32_t row, int32_t first_vec,
                            const int rows, const int vecs, const enum stored kind)
{
    vi acc[BLOCK_ROWS][BLOCK_VECS], words[BLOCK_VECS];
    const char *from[BLOCK_VECS];
    const struct kv_plane *plane = j->k->plane;
    const int64_t step = plane->tokens * key_bytes(kind);
    const int16_t *q = j->q.words[row], *const end = q + j->dim;
    for (int v = 0; v < vecs; v++) {
        from[v] = keys_of(j->k, first_vec + v, kind);
        for (int i = 0; i < rows; i++) {
            acc[i][v] = (vi){0};
        }
    }
    struct lines_ahead lines = page_lines(j->k->ahead, from[0]);
    for (int64_t at = 0; q < end; q += 2, at += step) {
        for (int v = 0; v < vecs; v++) {
            words[v] = key_words(from[v] + at, kind);
        }
        prefetch_lines(j->k->ahead, &lines, 1);
        for (int i = 0; i < rows; i++) {
            vi both = both_words(q + i * WORD_DIMS);
            for (int v = 0; v < vecs; v++) {
                acc[i][v] = vec_dot_words(acc[i][v], words[v], both);
            }
        }
    }
    leave_lines(j->k->ahead, &lines);
    for (int v = 0; v < vecs; v++) {
        vf scale, zero;
        int32_t vec = first_vec + v;
        load_scales(plane, j->k->pages[vec / j->per_page], vec % j->per_page * VEC, &scale, &zero,
                    kind);
        for (int i = 0; i < rows; i++) {
            vec_store(
                j->s + (row + i) * j->s_stride + vec * VEC,
                settle_score(acc[i][v], scale, zero, j->q.unit[row + i], j->q.sum[row + i], kind));
        }
    }
}

VEC_INLINE void score_word_rows(const struct word_score_job *j, int32_t m, int32_t vec,
                                const int vecs, const enum stored kind)
{
    int32_t i = 0;
    for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS) {
        score_words(j, i, vec, BLOCK_ROWS, vecs, kind);
    }
    for (; i + 4 <= m; i += 4) {
        score_words(j, i, vec, 4, vecs, kind);
    }
    for (; i < m; i++) {
        score_words(j, i, vec, 1, vecs, kind);
    }
}

#endif

#if WORD_VALUES

/* ---- values -------------------------------------------------------------------------------- */

/* LOW_BITS: how many of a probability's 28 bits are in its low word. The sums of either word over
 * the ATTN_CHUNK tokens of a chunk fit into 32 bits. A tree's chunk has more slots, but no more
 * than ATTN_CHUNK of them are weighed. */
enum {
    LOW_BITS = 14,
    LOW_ONE = 1 << LOW_BITS,
    WORD_TOKENS = ATTN_CHUNK + MAX_TREE_NODES,
    WORD_BLOCK = 4, // number of rows at a time
    WORD_VECS = 2,
    ZERO_TOKENS = 256, // number of tokens whose products with zeros fit into 32 bits in each lane
};
_Static_assert((int64_t)ATTN_CHUNK *LOW_ONE *MAX_CODE <= INT_MAX, "sums of values overflow");
_Static_assert((int64_t)ZERO_TOKENS / VEC * LOW_ONE * KV_ZERO_MOST <= INT_MAX,
               "sums of zeros overflow");

/* What the largest probability becomes: less than LOW_ONE^2, even after rounding. */
#define WORD_MOST ((float)(LOW_ONE * LOW_ONE - 64))

/* The probabilities of some rows, from the even token `base` on. */
enum { HIGH, LOW, WEIGHT_TAIL = 4 * VEC, WEIGHT_ROOM = WORD_TOKENS + PANEL + WEIGHT_TAIL };
struct word_weights {
    int16_t words[LOW + 1][WORD_BLOCK][WEIGHT_ROOM];
    float unit[WORD_BLOCK], zero[WORD_BLOCK];
};

struct word_value_job {
    const struct page_run *v;
    const struct word_weights *w;
    int32_t base;
    float *acc;
    int16_t zeros[WORD_TOKENS + 4 * VEC]; // in steps; the zero of token `base` is element VEC
};

/* Stores the low 16 bits of 2 VEC integers. */
VEC_INLINE void put_low_words(int16_t *to, vi a, vi b)
{
    static const int16_t low[2 * VEC] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                         22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                         44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    __m512i order = _mm512_loadu_si512(low);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16((__m512i)a, order, (__m512i)b));
}

/* Tokens outside [first, end) get 0. */
static void round_weights(const float *p, const struct page_run *v, int32_t base,
                          struct word_weights *to, int32_t row)
{
    const int32_t n = v->end - v->first, skip = v->first - base;
    const float largest = largest_of(p + v->first, n);
    const vf factor = vec_set(largest > 0.0f ? WORD_MOST / largest : 0.0f);
    int16_t *high = to->words[HIGH][row], *low = to->words[LOW][row];
    struct lines_ahead lines = page_lines(v->ahead, (const char *)p);
    memset(high, 0, (size_t)skip * sizeof *high);
    memset(low, 0, (size_t)skip * sizeof *low);
    high += skip;
    low += skip;
    for (int32_t t = 0; t < n; t += 2 * VEC) {
        const int32_t rest = greater(n - t - VEC, 0);
        vi a = vec_round_int(vec_load_some(p + v->first + t, n - t) * factor);
        vi b = vec_round_int(vec_load_some(p + v->first + t + VEC, rest) * factor);
        put_low_words(high + t, a >> LOW_BITS, b >> LOW_BITS);
        put_low_words(low + t, a & (LOW_ONE - 1), b & (LOW_ONE - 1));
        prefetch_lines(v->ahead, &lines, 2);
    }
    leave_lines(v->ahead, &lines);
    memset(high + n, 0, WEIGHT_TAIL * sizeof *high);
    memset(low + n, 0, WEIGHT_TAIL * sizeof *low);
    to->unit[row] = largest / WORD_MOST;
}

/* Loads zeros in steps. If pages consist of whole vectors of tokens, it loads one vector at a
 * time. */
static void load_zero_words(struct word_value_job *j)
{
    const struct kv_plane *plane = j->v->plane;
    const int32_t step = plane->tokens % VEC == 0 ? VEC : 1, shift = 32 - KV_ZERO_BITS;
    int32_t t = j->base / step * step, at = t - j->base;
    for (; t < j->v->end; t += step, at += step) {
        const char *head = j->v->pages[t / plane->tokens] + plane->scales_at;
        const float *words = (const float *)(const void *)head + t % plane->tokens;
        vi x = (vi)vec_load_some(words, step) << shift >> shift;
        put_words(j->zeros + VEC + at, x);
    }
}

/* The sum of p times zero over a row's tokens, in units of p. */
static float weigh_zeros(const struct word_value_job *j, int32_t row)
{
    const int32_t n = j->v->end - j->base;
    int64_t sum = 0;
    for (int32_t t = 0; t < n; t += ZERO_TOKENS) {
        vi high = {0}, low = {0};
        for (int32_t k = t; k < n && k < t + ZERO_TOKENS; k += 2 * VEC) {
            vi zeros = vec_load_ints(j->zeros + VEC + k);
            high = vec_dot_words(high, zeros, vec_load_ints(j->w->words[HIGH][row] + k));
            low = vec_dot_words(low, zeros, vec_load_ints(j->w->words[LOW][row] + k));
        }
        sum += vec_sum_int(high) * LOW_ONE + vec_sum_int(low);
    }
    return (float)sum * kv_zero_step(j->v->plane->format);
}

/* The values of dims d to d + vecs * VEC - 1 of two tokens, as words; `from` is where d is in the
 * row. A pair of vectors starts with an even one, and its 4-bit codes are the halves of the same
 * bytes. */
VEC_INLINE void value_words(const char *from, int32_t d, vi *words, const int vecs,
                            const enum stored kind)
{
    const uint8_t *codes = (const uint8_t *)from;
    if (kind != STORED_U4) {
        for (int v = 0; v < vecs; v++) {
            words[v] = vec_words(codes + v * 2 * VEC, kind == STORED_I8);
        }
        return;
    }
    vi both = vec_words(codes, false);
    if (vecs == 1) {
        words[0] = both >> d / 16 % 2 * 4 & 0x000F000F;
        return;
    }
    words[0] = both & 0x000F000F;
    words[1] = both >> 4 & 0x000F000F;
}

/* The sums of rows x vecs values, for products with the high and the low words of the weights. */
struct word_sums {
    vi high[WORD_BLOCK][WORD_VECS], low[WORD_BLOCK][WORD_VECS];
};

/* Adds n tokens of a page. from: the first token's values, from `column` on; w: the high word of
 * the first row's weight for that token. */
VEC_INLINE void weigh_word_page(struct word_sums *s, const char *from, int64_t row_bytes,
                                int32_t column, const int16_t *w, int32_t n, const int rows,
                                const int vecs, struct page_ahead *next, struct lines_ahead *lines,
                                const enum stored kind)
{
    for (const int16_t *end = w + n; w < end; w += 2, from += row_bytes) {
        vi words[WORD_VECS];
        value_words(from, column, words, vecs, kind);
        prefetch_lines(next, lines, 1);
        for (int i = 0; i < rows; i++) {
            vi high = both_words(w + i * WEIGHT_ROOM);
            vi low = both_words(w + (WORD_BLOCK + i) * WEIGHT_ROOM);
            for (int v = 0; v < vecs; v++) {
                s->high[i][v] = vec_dot_words(s->high[i][v], words[v], high);
                s->low[i][v] = vec_dot_words(s->low[i][v], words[v], low);
            }
        }
    }
}

/* Adds values to VEC elements of acc, given the sums of the words of p, and of p zero. */
VEC_INLINE void settle_values(vi high, vi low, float zero, float unit, float *acc,
                              const enum stored kind)
{
    vf x = vec_fma(vec_of_ints(high), vec_set((float)LOW_ONE), vec_of_ints(low));
    x = has_zeros(kind) ? x - vec_set(zero) : x;
    vec_store(acc, vec_fma(x, vec_set(unit), vec_load(acc)));
}

/* Computes rows x vecs sums over all tokens of the run. */
VEC_INLINE void weigh_words(const struct word_value_job *j, int32_t row, int32_t column,
                            const int rows, const int vecs, const bool prefetches,
                            const enum stored kind)
{
    struct word_sums s;
    const struct kv_plane *plane = j->v->plane;
    const int64_t row_bytes = value_row(plane, kind), at = value_at(column, kind);
    const int16_t *w = j->w->words[HIGH][row];
    struct lines_ahead lines = page_lines(j->v->ahead, (const char *)w);
    const char *const *page = j->v->pages + j->base / plane->tokens;
    int32_t first = j->base % plane->tokens;
    memset(&s, 0, sizeof s);
    for (int32_t t = j->base, n; t < j->v->end; t += n, w += n, first = 0) {
        n = lesser(plane->tokens - first, j->v->end - t);
        if (prefetches && !j->v->is_near) {
            prefetch_tokens(j->v, t + PREFETCH_VALUES, t + n + PREFETCH_VALUES);
        }
        weigh_word_page(&s, row_of(plane, *page++, first, kind) + at, row_bytes, column, w, n, rows,
                        vecs, j->v->ahead, &lines, kind);
    }
    leave_lines(j->v->ahead, &lines);
    for (int i = 0; i < rows; i++) {
        float *acc = j->acc + (int64_t)(row + i) * plane->width + column;
        for (int v = 0; v < vecs; v++) {
            settle_values(s.high[i][v], s.low[i][v], j->w->zero[row + i], j->w->unit[row + i],
                          acc + v * VEC, kind);
        }
    }
}

/* While the first columns are computed, whole pages are prefetched for the others. */
VEC_INLINE void weigh_word_columns(const struct word_value_job *j, int32_t row, const int rows,
                                   const enum stored kind)
{
    const int32_t width = j->v->plane->width;
    int32_t d = 0;
    for (; d + WORD_VECS * VEC <= width; d += WORD_VECS * VEC) {
        weigh_words(j, row, d, rows, WORD_VECS, d == 0, kind);
    }
    for (; d < width; d += VEC) {
        weigh_words(j, row, d, rows, 1, false, kind);
    }
}

VEC_INLINE void weigh_word_rows(const float *p, int64_t p_stride, int32_t m,
                                const struct page_run *v, float *acc, const enum stored kind)
{
    struct word_weights w;
    struct word_value_job j;
    j.v = v;
    j.w = &w;
    j.base = v->first / 2 * 2;
    if (has_zeros(kind)) {
        load_zero_words(&j);
    }
    for (int32_t i = 0, n; i < m; i += n) {
        n = m - i < WORD_BLOCK ? m - i : WORD_BLOCK;
        for (int32_t k = 0; k < n; k++) {
            round_weights(p + (i + k) * p_stride, v, j.base, &w, k);
            w.zero[k] = has_zeros(kind) ? weigh_zeros(&j, k) : 0.0f;
        }
        j.acc = acc + (int64_t)i * v->plane->width;
        if (n == WORD_BLOCK) {
            weigh_word_columns(&j, 0, WORD_BLOCK, kind);
        } else {
            for (int32_t k = 0; k < n; k++) {
                weigh_word_columns(&j, k, 1, kind);
            }
        }
    }
}

#endif

#endif
