// SPDX-License-Identifier: Apache-2.0
/* Products of int8 and int4 codes of keys and values in integers. If only the few heads of a group
 * share a code, converting it to fp32 costs more than the products that use it. So the query, or a
 * row's probabilities, are rounded to integers once, and codes are only widened to 16 bits:
 *
 *     score   = (sum of q code - zero * sum of q) * unit of q * scale
 *     value  += sum of p code - sum of p zero
 *
 * A query has 16 bits with its sign, relative to its largest element. p are probabilities times the
 * scales of their values, in 15 bits: the softmax of a chunk is computed relative to a reference
 * that gives the largest of them all bits.
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
/* Pays only where one instruction multiplies and adds. */
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
#if defined(__AVX512F__)
    bits = _mm512_reduce_max_epi32((__m512i)most);
#else
    for (int i = 0; i < VEC; i++) {
        bits = greater(most[i], bits);
    }
#endif
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

/* WORD_MOST: the largest word of a probability. Sums of its products with codes over the ATTN_CHUNK
 * tokens of a chunk fit into 32 bits, without a sign if codes have none. A tree's chunk has more
 * slots, but no more than ATTN_CHUNK of them are weighed. */
enum {
    WORD_MOST = INT16_MAX,
    WORD_TOKENS = ATTN_CHUNK + MAX_TREE_NODES,
    WORD_BLOCK = 6, // number of rows at a time
    WORD_VECS = 2,
    ZERO_TOKENS = 128, // number of tokens whose products with zeros fit into 32 bits in each lane
};
_Static_assert((int64_t)ATTN_CHUNK *WORD_MOST *MAX_CODE <= UINT32_MAX, "sums of values overflow");
_Static_assert((int64_t)ATTN_CHUNK *WORD_MOST * 128 <= INT_MAX, "sums of values overflow");
_Static_assert((int64_t)ZERO_TOKENS / VEC * WORD_MOST * KV_ZERO_MOST <= INT_MAX,
               "sums of zeros overflow");

/* The logarithm of what the largest product of a probability and a scale becomes: 32,740, because
 * logarithms of scales may be too small by 5e-4. */
#define LOG_MOST 10.396352f
#define LOG2_E 1.44269504f

/* log(x) within 5e-4, but at least -40. */
VEC_INLINE vf rough_log(vf x)
{
    __m512 m = _mm512_getmant_ps((__m512)x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
    vf p = vec_set(0.15824870f);
    p = vec_fma(p, (vf)m, vec_set(-1.05187495f));
    p = vec_fma(p, (vf)m, vec_set(3.04788415f));
    p = vec_fma(p, (vf)m, vec_set(-2.15362071f));
    p = (p + (vf)_mm512_getexp_ps((__m512)x)) * vec_set(1.0f / LOG2_E);
    return vec_max(p, vec_set(-40.0f));
}

VEC_INLINE void load_value_scales(const struct page_run *v, float *scales, const enum stored kind)
{
    const struct kv_plane *plane = v->plane;
    for (int32_t page = 0; page < v->n_pages; page++, scales += plane->tokens) {
        int32_t t = 0;
        for (; t + VEC <= plane->tokens; t += VEC) {
            vf scale, zero;
            load_scales(plane, v->pages[page], t, &scale, &zero, kind);
            vec_store(scales + t, scale);
        }
        for (; t < plane->tokens; t++) {
            scales[t] = kv_scale_get(plane, v->pages[page], t).scale;
        }
    }
}

static void value_scales(const struct page_run *v, float *scales, float *logs)
{
    const int32_t n = v->n_pages * v->plane->tokens;
    WITH_PAIRS(stored_of(v->plane), load_value_scales, v, scales);
    for (int32_t t = 0; t < n; t += VEC) {
        vec_store(logs + t, rough_log(vec_load(scales + t)));
    }
}

/* 2^y within 3e-6 times; NaN stays NaN. */
VEC_INLINE vf word_exp2(vf y)
{
    vf f = (vf)_mm512_reduce_ps((__m512)y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vec_set(0.0134266843f);
    p = vec_fma(p, f, vec_set(0.0522424742f));
    p = vec_fma(p, f, vec_set(0.241280205f));
    p = vec_fma(p, f, vec_set(0.693044845f));
    p = vec_fma(p, f, vec_set(1.0f));
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)y); // p * 2^floor(y)
}

/* The largest s + log, but 0 if there is none. NaN is never the maximum. */
VEC_INLINE float word_reference(const float *s, int32_t n, const float *logs)
{
    vf a = vec_set(-INFINITY), b = a;
    for (int32_t t = 0; t < n; t += 2 * VEC) {
        a = vec_max(vec_load(s + t) + vec_load(logs + t), a);
        b = vec_max(vec_load(s + t + VEC) + vec_load(logs + t + VEC), b);
    }
    const float most = _mm512_reduce_max_ps((__m512)vec_max(a, b));
    return most > -INFINITY ? most - LOG_MOST : 0.0f;
}

/* Stores the low 16 bits of 2 VEC integers. */
VEC_INLINE void put_low_words(float *to, vi a, vi b)
{
    static const int16_t low[2 * VEC] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                         22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                         44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    __m512i order = _mm512_loadu_si512(low);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16((__m512i)a, order, (__m512i)b));
}

/* Writes words behind the scores that have been read. A product of 0 and a scale that is not finite
 * is NaN, whose word is 0. */
static void soften_words(float *s, int32_t n, const float *scales, const float *logs,
                         float *reference, float *sum)
{
    const vf log2_e = vec_set(LOG2_E);
    vf a = vec_set(0.0f), b = a;
    *reference = word_reference(s, n, logs);
    const vf offset = vec_set(*reference) * -log2_e;
    for (int32_t t = 0; t < n; t += 2 * VEC) {
        vf x = word_exp2(vec_fma(vec_load(s + t), log2_e, offset));
        vf y = word_exp2(vec_fma(vec_load(s + t + VEC), log2_e, offset));
        a += x;
        b += y;
        x *= vec_load(scales + t);
        y *= vec_load(scales + t + VEC);
        put_low_words(s + t / 2, vec_round_int(x), vec_round_int(y));
    }
    *sum = vec_sum(a + b);
}

static float sum_words(const float *s, int32_t n, float reference)
{
    const vf log2_e = vec_set(LOG2_E), offset = vec_set(reference) * -log2_e;
    vf a = vec_set(0.0f), b = a;
    for (int32_t t = 0; t < n; t += 2 * VEC) {
        a += word_exp2(vec_fma(vec_load(s + t), log2_e, offset));
        b += word_exp2(vec_fma(vec_load(s + t + VEC), log2_e, offset));
    }
    return vec_sum(a + b);
}

/* The run's zeros in steps, as words from the token `base` on. If pages consist of whole vectors of
 * tokens, `base` is a multiple of VEC, and vectors are loaded. */
static void load_zero_words(const struct page_run *v, int32_t base, int16_t *zeros)
{
    const struct kv_plane *plane = v->plane;
    const int32_t step = plane->tokens % VEC == 0 ? VEC : 1, shift = 32 - KV_ZERO_BITS;
    for (int32_t t = base; t < v->end; t += step, zeros += step) {
        const char *head = v->pages[t / plane->tokens] + plane->scales_at;
        const float *words = (const float *)(const void *)head + t % plane->tokens;
        vi x = (vi)vec_load_some(words, step) << shift >> shift;
        put_words(zeros, x);
    }
}

/* The sum of p times zero over n tokens of a row. */
static float weigh_zeros(const int16_t *p, const int16_t *zeros, int32_t n, enum kv_format format)
{
    __m512i sum = _mm512_setzero_si512();
    for (int32_t t = 0; t < n; t += ZERO_TOKENS) {
        vi some = {0};
        const int32_t end = lesser(n, t + ZERO_TOKENS);
        int32_t k = t;
        for (; k + 2 * VEC <= end; k += 2 * VEC) {
            some = vec_dot_words(some, vec_load_ints(zeros + k), vec_load_ints(p + k));
        }
        const __mmask32 rest = (__mmask32)((1u << (end - k)) - 1u);
        some = vec_dot_words(some, vec_load_ints(zeros + k),
                             (vi)_mm512_maskz_loadu_epi16(rest, p + k));
        sum = _mm512_add_epi64(sum, _mm512_srai_epi64((__m512i)some, 32));
        sum = _mm512_add_epi64(sum, _mm512_srai_epi64(_mm512_slli_epi64((__m512i)some, 32), 32));
    }
    return (float)_mm512_reduce_add_epi64(sum) * kv_zero_step(format);
}

/* Adds values to VEC elements of acc, given the sums of p code, and of p zero. */
VEC_INLINE void settle_values(vi sum, float zero, float *acc, const enum stored kind)
{
    vf x = kind == STORED_I8 ? vec_of_ints(sum) : (vf)_mm512_cvtepu32_ps((__m512i)sum);
    x = has_zeros(kind) ? x - vec_set(zero) : x;
    vec_store(acc, vec_load(acc) + x);
}

/* words: of the first row and the token `base`. */
struct word_value_job {
    const struct page_run *v;
    const int16_t *words;
    int64_t stride;
    int32_t base;
    float *acc;
    int16_t zeros[WORD_TOKENS + 4 * VEC]; // in steps, from the token `base` on
    float zero[WORD_BLOCK];
};

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

/* Computes rows x vecs sums over all tokens of the run. */
VEC_INLINE void weigh_words(const struct word_value_job *j, int32_t column, const int rows,
                            const int vecs, const enum stored kind)
{
    vi sum[WORD_BLOCK][WORD_VECS] = {{{0}}};
    const struct kv_plane *plane = j->v->plane;
    const int64_t row_bytes = value_row(plane, kind);
    const int16_t *w = j->words;
    struct lines_ahead lines = page_lines(j->v->ahead, (const char *)w);
    const char *const *page = j->v->pages + j->base / plane->tokens;
    int32_t first = j->base % plane->tokens;
    for (int32_t t = j->base, n; t < j->v->end; t += n, first = 0) {
        n = lesser(plane->tokens - first, j->v->end - t);
        if (column == 0 && !j->v->is_near) { // whole pages, for the other columns, too
            prefetch_tokens(j->v, t + PREFETCH_VALUES, t + n + PREFETCH_VALUES);
        }
        const char *from = row_of(plane, *page++, first, kind) + value_at(column, kind);
        for (const int16_t *end = w + n; w < end; w += 2, from += row_bytes) {
            vi words[WORD_VECS];
            value_words(from, column, words, vecs, kind);
            prefetch_lines(j->v->ahead, &lines, 1);
            for (int i = 0; i < rows; i++) {
                vi both = both_words(w + i * j->stride);
                for (int v = 0; v < vecs; v++) {
                    sum[i][v] = vec_dot_words(sum[i][v], words[v], both);
                }
            }
        }
    }
    leave_lines(j->v->ahead, &lines);
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vecs; v++) {
            settle_values(sum[i][v], j->zero[i], j->acc + i * plane->width + column + v * VEC,
                          kind);
        }
    }
}

VEC_INLINE void weigh_word_columns(struct word_value_job *j, const int rows, const enum stored kind)
{
    const int32_t width = j->v->plane->width;
    int32_t d = 0;
    for (int i = 0; i < rows; i++) {
        const int16_t *row = j->words + i * j->stride;
        j->zero[i] = has_zeros(kind)
                         ? weigh_zeros(row, j->zeros, j->v->end - j->base, j->v->plane->format)
                         : 0.0f;
    }
    for (; d + WORD_VECS * VEC <= width; d += WORD_VECS * VEC) {
        weigh_words(j, d, rows, WORD_VECS, kind);
    }
    for (; d < width; d += VEC) {
        weigh_words(j, d, rows, 1, kind);
    }
    j->words += rows * j->stride;
    j->acc += rows * width;
}

VEC_INLINE void weigh_word_rows(struct word_value_job *j, int32_t m, const enum stored kind)
{
    int32_t i = 0;
    if (has_zeros(kind)) {
        load_zero_words(j->v, j->base, j->zeros);
    }
    for (; i + WORD_BLOCK <= m; i += WORD_BLOCK) {
        weigh_word_columns(j, WORD_BLOCK, kind);
    }
    for (; i + 4 <= m; i += 4) {
        weigh_word_columns(j, 4, kind);
    }
    for (; i < m; i++) {
        weigh_word_columns(j, 1, kind);
    }
}

/* A run is not longer than a chunk. */
static void weigh_word_values(const int16_t *p, int64_t stride, int32_t m, const struct page_run *v,
                              float *acc)
{
    struct word_value_job j;
    j.v = v;
    j.base = v->plane->tokens % VEC == 0 ? v->first / PANEL * PANEL : v->first / 2 * 2;
    j.words = p + j.base;
    j.stride = stride;
    j.acc = acc;
    WITH_PAIRS(stored_of(v->plane), weigh_word_rows, &j, m);
}

static bool values_in_words(const struct kv_plane *p)
{
    return in_pairs(stored_of(p)) && p->dtype != DT_F32 && p->tokens % 2 == 0;
}

static const struct word_kernels word_kernels = {
    .fit = values_in_words,
    .scales = value_scales,
    .soften = soften_words,
    .sum = sum_words,
    .weigh = weigh_word_values,
};

#endif

#endif
