// SPDX-License-Identifier: Apache-2.0
/* Scores, softmax and weighted values over pages of K and V. Included by cpu_kernels_vec.h.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_ATTENTION_H
#define SLUICE_CPU_VEC_ATTENTION_H

#include "cpu/cpu_vec_coded.h"
#include "cpu/cpu_vec_kv.h"
#include "cpu/cpu_vec_words.h"
#include "engine/base/minmax.h"

#include <math.h>

enum { WEIGH_TOKENS = 32 }; // tokens whose values are added together

/* Converts to fp32; int8 codes are converted without their scale. */
static void widen(enum dtype dtype, const void *from, float *to, int64_t n)
{
    const uint16_t *half = from;
    int64_t i = 0;
    if (dtype == DT_F32) {
        memcpy(to, from, (size_t)n * sizeof *to);
        return;
    }
    if (dtype == DT_I8) {
        widen_bytes(from, to, n);
        return;
    }
    for (; i + VEC <= n; i += VEC) {
        vec_store(to + i, dtype == DT_BF16 ? vec_from_bf16(half + i) : vec_from_f16(half + i));
    }
    for (; i < n; i++) {
        to[i] = dtype == DT_BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
    }
}

/* Runs that are not a multiple of a vector are left to the scalar kernel. */
static void unpack(const struct kv_plane *p, const char *head, int32_t token, int32_t n,
                   int32_t width, bool bf16, void *out)
{
    if (p->by_dim ? n % VEC != 0 : width % PANEL != 0) {
        cpu_kernels_scalar.unpack(p, head, token, n, width, bf16, out);
        return;
    }
    WITH_STORED(stored_of(p), unpack_kind, p, head, token, n, width, bf16, out);
}

static void encode(const struct kv_plane *p, const float *x, int32_t n, uint8_t *codes,
                   struct kv_scale *scale)
{
    kv_encode(p, x, n, codes, scale);
}

/* The operands of scores: q, pages of K and, for codes, the sum of each q. The sum is needed
 * because the zeros are subtracted from the score of the codes as a whole. */
struct score_job {
    const float *q;
    int64_t q_stride;
    const struct page_run *k;
    int32_t per_page, dim; // number of vectors of tokens per page
    float *s;
    int64_t s_stride;
    const float *q_sums;
};

/* Computes rows x vecs scores. The vectors are consecutive runs of tokens. */
VEC_INLINE void score_block(const struct score_job *j, int32_t row, int32_t first_vec,
                            const int rows, const int vecs, const enum stored kind)
{
    vf acc[BLOCK_ROWS][BLOCK_VECS], even[BLOCK_VECS], odd[BLOCK_VECS];
    const char *from[BLOCK_VECS];
    const int64_t step = j->k->plane->tokens * key_bytes(kind);
    const float *q = j->q + row * j->q_stride;
    int32_t d = 0;
    for (int v = 0; v < vecs; v++) {
        from[v] = keys_of(j->k, first_vec + v, kind);
        for (int i = 0; i < rows; i++) {
            acc[i][v] = vec_set(0.0f);
        }
    }
    struct lines_ahead lines = page_lines(j->k->ahead, from[0]);
    for (int64_t at = 0; d < j->dim; d += in_pairs(kind) ? 2 : 1, at += step) {
        for (int v = 0; v < vecs; v++) {
            load_keys(from[v] + at, &even[v], &odd[v], kind);
        }
        prefetch_lines(j->k->ahead, &lines, 2);
        for (int i = 0; i < rows; i++) {
            vf one = vec_set(q[i * j->q_stride + d]);
            for (int v = 0; v < vecs; v++) {
                acc[i][v] = vec_fma(one, even[v], acc[i][v]);
            }
        }
        for (int i = 0; i < rows && in_pairs(kind) && d + 1 < j->dim; i++) {
            vf one = vec_set(q[i * j->q_stride + d + 1]);
            for (int v = 0; v < vecs; v++) {
                acc[i][v] = vec_fma(one, odd[v], acc[i][v]);
            }
        }
    }
    leave_lines(j->k->ahead, &lines);
    for (int v = 0; v < vecs; v++) {
        vf scale, zero;
        if (kind >= STORED_E4M3) {
            load_scales(j->k->plane, j->k->pages[(first_vec + v) / j->per_page],
                        (first_vec + v) % j->per_page * VEC, &scale, &zero, kind);
            scale *= vec_set(code_unit(kind));
        }
        for (int i = 0; i < rows; i++) {
            vf x = acc[i][v];
            x = has_zeros(kind) ? x - zero * vec_set(j->q_sums[row + i]) : x;
            x = kind >= STORED_E4M3 ? x * scale : x;
            vec_store(j->s + (row + i) * j->s_stride + (first_vec + v) * VEC, x);
        }
    }
}

/* Computes as many rows at once as registers allow, and the remaining rows in smaller groups. */
VEC_INLINE void score_rows(const struct score_job *j, int32_t m, int32_t vec, const int vecs,
                           const enum stored kind)
{
    int32_t i = 0;
    for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS) {
        score_block(j, i, vec, BLOCK_ROWS, vecs, kind);
    }
    for (; i + 4 <= m; i += 4) {
        score_block(j, i, vec, 4, vecs, kind);
    }
    for (; i < m; i++) {
        score_block(j, i, vec, 1, vecs, kind);
    }
}

/* Prefetches later pages, because their addresses are not sequential. */
VEC_INLINE void score_pages(const struct score_job *j, int32_t m, const enum stored kind)
{
    int32_t n = j->k->n_pages * j->per_page, vec = 0;
    for (; vec + BLOCK_VECS <= n; vec += BLOCK_VECS) {
        prefetch_tokens(j->k, vec * VEC + PREFETCH_KEYS, (vec + BLOCK_VECS) * VEC + PREFETCH_KEYS);
        score_rows(j, m, vec, BLOCK_VECS, kind);
    }
    for (; vec < n; vec++) {
        score_rows(j, m, vec, 1, kind);
    }
}

static float sum_of_row(const float *x, int32_t n)
{
    vf sum = vec_set(0.0f);
    int32_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        sum += vec_load(x + i);
    }
    float total = vec_sum(sum);
    for (; i < n; i++) {
        total += x[i];
    }
    return total;
}

#if WORD_SCORES
/* Rounds a few queries at a time, and multiplies them by all pages. */
VEC_INLINE void score_word_pages(const float *q, int64_t q_stride, int32_t m,
                                 struct word_score_job *j, const enum stored kind)
{
    const int32_t n_vecs = j->k->n_pages * j->per_page;
    for (int32_t row = 0, n; row < m; row += n, j->s += n * j->s_stride) {
        n = m - row < WORD_ROWS ? m - row : WORD_ROWS;
        for (int32_t i = 0; i < n; i++) {
            round_query(q + (row + i) * q_stride, j->dim, &j->q, i);
        }
        int32_t vec = 0;
        for (; vec + BLOCK_VECS <= n_vecs; vec += BLOCK_VECS) {
            if (row == 0 && !j->k->is_near) {
                prefetch_tokens(j->k, vec * VEC + PREFETCH_KEYS,
                                (vec + BLOCK_VECS) * VEC + PREFETCH_KEYS);
            }
            score_word_rows(j, n, vec, BLOCK_VECS, kind);
        }
        for (; vec < n_vecs; vec++) {
            score_word_rows(j, n, vec, 1, kind);
        }
    }
}

static void word_scores(const float *q, int64_t q_stride, int32_t m, const struct page_run *k,
                        int32_t dim, float *s, int64_t s_stride)
{
    struct word_score_job j;
    j.k = k;
    j.per_page = k->plane->tokens / VEC;
    j.dim = dim;
    j.s = s;
    j.s_stride = s_stride;
    WITH_PAIRS(stored_of(k->plane), score_word_pages, q, q_stride, m, &j);
}
#endif

/* Pages that are not a whole number of vectors use the scalar code. */
static void scores(const float *q, int64_t q_stride, int32_t m, const struct page_run *k,
                   int32_t dim, float *s, int64_t s_stride)
{
    float q_sums[ATTN_TILE];
    struct score_job j = {.q = q,
                          .q_stride = q_stride,
                          .k = k,
                          .per_page = k->plane->tokens / VEC,
                          .dim = dim,
                          .s = s,
                          .s_stride = s_stride,
                          .q_sums = q_sums};
    if (k->plane->tokens % VEC != 0) {
        cpu_kernels_scalar.scores(q, q_stride, m, k, dim, s, s_stride);
        return;
    }
#if WORD_SCORES
    if (scores_in_words(k->plane, dim)) {
        word_scores(q, q_stride, m, k, dim, s, s_stride);
        return;
    }
#endif
    for (int32_t i = 0; i < m && kv_format_has_zero(k->plane->format); i++) {
        q_sums[i] = sum_of_row(q + i * q_stride, dim);
    }
    WITH_STORED(stored_of(k->plane), score_pages, &j, m);
}

/* The weights of the values, and where the sums go. zeros: the zeros of the tokens from
 * `zeros_from` on. */
struct weigh_job {
    const float *p;
    int64_t p_stride;
    const struct page_run *v;
    float *acc;
    float zeros[WEIGH_TOKENS];
    int32_t zeros_from;
};

/* The sums of rows x vecs values. p and the tokens' zeros advance with the tokens. */
struct weigh_sums {
    vf sum[BLOCK_ROWS][BLOCK_VECS];
    const float *p, *zeros;
    int64_t p_stride;
    struct page_ahead *ahead;
    struct lines_ahead lines;
};

/* Adds one token's values for several rows, so that V is read only once. */
VEC_INLINE void weigh_token(struct weigh_sums *s, const vf *values, int32_t t, const int rows,
                            const int vecs, const enum stored kind)
{
    vf x[BLOCK_VECS];
    for (int v = 0; v < vecs; v++) {
        x[v] = has_zeros(kind) ? values[v] - vec_set(s->zeros[t]) : values[v];
    }
    for (int i = 0; i < rows; i++) {
        vf one = vec_set(s->p[i * s->p_stride + t]);
        for (int v = 0; v < vecs; v++) {
            s->sum[i][v] = vec_fma(one, x[v], s->sum[i][v]);
        }
    }
}

/* Adds n tokens of a page, from token `first` on. */
VEC_INLINE void weigh_page(struct weigh_sums *s, const struct kv_plane *plane, const char *head,
                           int32_t first, int32_t n, int32_t column, const int rows, const int vecs,
                           const enum stored kind)
{
    vf even[BLOCK_VECS], odd[BLOCK_VECS];
    const int64_t row_bytes = value_row(plane, kind);
    const char *row = row_of(plane, head, first, kind);
    // Whether the first token is the second of a pair.
    const int32_t skip = in_pairs(kind) ? first % 2 : 0;
    for (int32_t t = -skip; t < n; t += in_pairs(kind) ? 2 : 1, row += row_bytes) {
        for (int v = 0; v < vecs; v++) {
            load_values(row, column + v * VEC, &even[v], &odd[v], kind);
        }
        prefetch_lines(s->ahead, &s->lines, 2);
        if (!in_pairs(kind) || t >= 0) {
            weigh_token(s, even, t, rows, vecs, kind);
        }
        if (in_pairs(kind) && t + 1 < n) {
            weigh_token(s, odd, t + 1, rows, vecs, kind);
        }
    }
}

/* Adds the tokens [from, to). */
VEC_INLINE void weigh_block(const struct weigh_job *j, int32_t row, int32_t column, int32_t from,
                            int32_t to, const int rows, const int vecs, const enum stored kind)
{
    struct weigh_sums s;
    const struct kv_plane *plane = j->v->plane;
    float *acc = j->acc + (int64_t)row * plane->width + column;
    s.p_stride = j->p_stride;
    s.ahead = j->v->ahead;
    s.lines = page_lines(s.ahead, (const char *)acc);
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vecs; v++) {
            s.sum[i][v] = vec_load(acc + (int64_t)i * plane->width + v * VEC);
        }
    }
    for (int32_t t = from, n; t < to; t += n) {
        int32_t first = t % plane->tokens, rest = plane->tokens - first;
        n = rest < to - t ? rest : to - t;
        s.p = j->p + row * j->p_stride + t;
        s.zeros = j->zeros + (t - j->zeros_from);
        weigh_page(&s, plane, j->v->pages[t / plane->tokens], first, n, column, rows, vecs, kind);
    }
    leave_lines(s.ahead, &s.lines);
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vecs; v++) {
            vec_store(acc + (int64_t)i * plane->width + v * VEC, s.sum[i][v]);
        }
    }
}

/* Like score_rows, for the second product. */
VEC_INLINE void weigh_rows(const struct weigh_job *j, int32_t m, int32_t column, int32_t from,
                           int32_t to, const int vecs, const enum stored kind)
{
    int32_t i = 0;
    for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS) {
        weigh_block(j, i, column, from, to, BLOCK_ROWS, vecs, kind);
    }
    for (; BLOCK_ROWS > 4 && i + 4 <= m; i += 4) {
        weigh_block(j, i, column, from, to, 4, vecs, kind);
    }
    for (; i < m; i++) {
        weigh_block(j, i, column, from, to, 1, vecs, kind);
    }
}

/* Reads the zeros of tokens [from, to). */
VEC_INLINE void load_zeros(struct weigh_job *j, int32_t from, int32_t to, const enum stored kind)
{
    const struct kv_plane *plane = j->v->plane;
    const int32_t step = plane->tokens % VEC == 0 ? VEC : 1;
    j->zeros_from = from / VEC * VEC;
    for (int32_t t = from / step * step; t < to; t += step) {
        const char *head = j->v->pages[t / plane->tokens];
        float *out = j->zeros + (t - j->zeros_from);
        if (step == 1) {
            *out = kv_scale_get(plane, head, t % plane->tokens).zero;
        } else {
            vf scale, zero;
            load_scales(plane, head, t % plane->tokens, &scale, &zero, kind);
            vec_store(out, zero);
        }
    }
}

/* Processes a few tokens at a time, which stay in the L1 cache for all columns. */
VEC_INLINE void weigh_pages(struct weigh_job *j, int32_t m, const enum stored kind)
{
    int32_t dim = j->v->plane->width;
    for (int32_t from = j->v->first, to; from < j->v->end; from = to) {
        int32_t d = 0;
        to = from / WEIGH_TOKENS * WEIGH_TOKENS + WEIGH_TOKENS;
        prefetch_tokens(j->v, from + PREFETCH_VALUES, to + PREFETCH_VALUES);
        to = lesser(to, j->v->end);
        if (has_zeros(kind)) {
            load_zeros(j, from, to, kind);
        }
        for (; d + BLOCK_VECS * VEC <= dim; d += BLOCK_VECS * VEC) {
            weigh_rows(j, m, d, from, to, BLOCK_VECS, kind);
        }
        for (; d < dim; d += VEC) {
            weigh_rows(j, m, d, from, to, 1, kind);
        }
    }
}

static void weigh(const float *p, int64_t p_stride, int32_t m, const struct page_run *v, float *acc)
{
    struct weigh_job j = {.p = p, .p_stride = p_stride, .v = v, .acc = acc};
    WITH_STORED(stored_of(v->plane), weigh_pages, &j, m);
}

/* Keys that no row sees have weight 0. Their scale may be NaN, which must not spread. */
VEC_INLINE void fold_page(float *p, int64_t p_stride, int32_t m, const struct kv_plane *plane,
                          const char *head, const enum stored kind)
{
    const int32_t n = plane->tokens;
    int32_t t = 0;
    for (; t + VEC <= n; t += VEC) {
        vf scale, zero;
        load_scales(plane, head, t, &scale, &zero, kind);
        scale *= vec_set(code_unit(kind));
        for (int32_t i = 0; i < m; i++) {
            vf x = vec_load(p + i * p_stride + t);
            vec_store(p + i * p_stride + t, vec_select(x != vec_set(0.0f), x * scale, x));
        }
    }
    for (; t < n; t++) {
        const float scale = kv_scale_get(plane, head, t).scale * code_unit(kind);
        for (int32_t i = 0; i < m; i++) {
            float *at = p + i * p_stride + t;
            *at = *at != 0.0f ? *at * scale : *at;
        }
    }
}

VEC_INLINE void fold_pages(float *p, int64_t p_stride, int32_t m, const struct page_run *v,
                           const enum stored kind)
{
    struct lines_ahead lines = page_lines(v->ahead, (const char *)p);
    for (int32_t page = 0; page < v->n_pages; page++) {
        prefetch_lines(v->ahead, &lines, 2);
        fold_page(p + page * v->plane->tokens, p_stride, m, v->plane, v->pages[page], kind);
    }
    leave_lines(v->ahead, &lines);
}

static void fold(float *p, int64_t p_stride, int32_t m, const struct page_run *v)
{
    WITH_STORED(stored_of(v->plane), fold_pages, p, p_stride, m, v);
}

static float exp_sum(float *x, int64_t n, float max)
{
    vf s = vec_set(0.0f), m = vec_set(max);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf e = vec_exp(vec_load(x + i) - m);
        vec_store(x + i, e);
        s += e;
    }
    float sum = vec_sum(s);
    for (; i < n; i++) {
        x[i] = expf(x[i] - max);
        sum += x[i];
    }
    return sum;
}

static vf softcap_of(vf x, float cap)
{
    vf one = vec_set(1.0f), two = vec_set(2.0f);
    vf e = vec_exp(x / vec_set(cap) * two); // tanh(z) = 1 - 2 / (e^2z + 1)
    return vec_set(cap) * (one - two / (e + one));
}

/* The tail uses the same vector code. Which elements are in the tail depends on how many rows are
 * computed together, and their bits must not depend on that. */
static void softcap(float *x, float cap, int64_t n)
{
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec_store(x + i, softcap_of(vec_load(x + i), cap));
    }
    if (i < n) {
        float tail[VEC] = {0.0f};
        memcpy(tail, x + i, (size_t)(n - i) * sizeof *tail);
        vec_store(tail, softcap_of(vec_load(tail), cap));
        memcpy(x + i, tail, (size_t)(n - i) * sizeof *tail);
    }
}

#endif
