// SPDX-License-Identifier: Apache-2.0
/* Scores, softmax and weighted values over pages of K and V. Included by cpu_kernels_vec.h.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_ATTENTION_H
#define SLUICE_CPU_VEC_ATTENTION_H

#include "cpu/cpu_vec_coded.h"
#include "cpu/cpu_vec_kv.h"

#include <math.h>

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

/* The operands of scores: q, pages of K and, for codes, the sum of each q, because their zeros are
 * subtracted from the score of the codes alone. */
struct score_job {
    const float *q;
    int64_t q_stride;
    const struct page_run *k;
    int32_t per_page, dim; // vectors of tokens per page
    float *s;
    int64_t s_stride;
    const float *q_sums;
};

/* The next two dims of q are adjacent. */
VEC_INLINE void score_dim(const struct score_job *j, const float *q, int32_t first_vec, int32_t d,
                          vf acc[BLOCK_ROWS][BLOCK_VECS], const int rows, const int vecs,
                          const bool pair, const enum stored kind)
{
    vf even[BLOCK_VECS], odd[BLOCK_VECS];
    for (int v = 0; v < vecs; v++) {
        const char *head = j->k->pages[(first_vec + v) / j->per_page];
        load_keys(j->k->plane, head, (first_vec + v) % j->per_page * VEC, d, &even[v], &odd[v],
                  kind);
    }
    for (int i = 0; i < rows; i++) {
        vf one = vec_set(q[i * j->q_stride + d]);
        for (int v = 0; v < vecs; v++) {
            acc[i][v] = vec_fma(one, even[v], acc[i][v]);
        }
    }
    for (int i = 0; i < rows && pair; i++) {
        vf one = vec_set(q[i * j->q_stride + d + 1]);
        for (int v = 0; v < vecs; v++) {
            acc[i][v] = vec_fma(one, odd[v], acc[i][v]);
        }
    }
}

/* rows x vecs scores: the vectors are consecutive runs of tokens. */
VEC_INLINE void score_block(const struct score_job *j, int32_t row, int32_t first_vec,
                            const int rows, const int vecs, const enum stored kind)
{
    vf acc[BLOCK_ROWS][BLOCK_VECS];
    const float *q = j->q + row * j->q_stride;
    int32_t d = 0;
    for (int v = 0; v < vecs; v++) {
        for (int i = 0; i < rows; i++) {
            acc[i][v] = vec_set(0.0f);
        }
    }
    for (; in_pairs(kind) && d + 2 <= j->dim; d += 2) {
        score_dim(j, q, first_vec, d, acc, rows, vecs, true, kind);
    }
    for (; d < j->dim; d++) {
        score_dim(j, q, first_vec, d, acc, rows, vecs, false, kind);
    }
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

VEC_INLINE void score_pages(const struct score_job *j, int32_t m, const enum stored kind)
{
    int32_t n = j->k->n_pages * j->per_page, vec = 0;
    for (; vec + BLOCK_VECS <= n; vec += BLOCK_VECS) {
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
    for (int32_t i = 0; i < m && kv_format_has_zero(k->plane->format); i++) {
        q_sums[i] = sum_of_row(q + i * q_stride, dim);
    }
    WITH_STORED(stored_of(k->plane), score_pages, &j, m);
}

/* The weights of the values, and where the sums go. */
struct weigh_job {
    const float *p;
    int64_t p_stride;
    const struct page_run *v;
    float *acc;
};

VEC_INLINE void weigh_block(const struct weigh_job *j, int32_t row, int32_t column, const int rows,
                            const int vecs, const enum stored kind)
{
    vf sum[BLOCK_ROWS][BLOCK_VECS];
    const struct kv_plane *plane = j->v->plane;
    const float *p = j->p + row * j->p_stride;
    float *acc = j->acc + (int64_t)row * plane->width + column;
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vecs; v++) {
            sum[i][v] = vec_load(acc + (int64_t)i * plane->width + v * VEC);
        }
    }
    for (int32_t t = j->v->first; t < j->v->end;) {
        int32_t in_page = t % plane->tokens;
        const char *head = j->v->pages[t / plane->tokens];
        int32_t n =
            plane->tokens - in_page < j->v->end - t ? plane->tokens - in_page : j->v->end - t;
        for (int32_t last = t + n; t < last; t++, in_page++) {
            vf x[BLOCK_VECS], zero = vec_set(0.0f);
            if (has_zeros(kind)) {
                zero = vec_set(zero_of(plane, head, in_page));
            }
            for (int v = 0; v < vecs; v++) {
                x[v] = load_values(plane, head, in_page, column + v * VEC, kind);
                x[v] = has_zeros(kind) ? x[v] - zero : x[v];
            }
            for (int i = 0; i < rows; i++) {
                vf one = vec_set(p[i * j->p_stride + t]);
                for (int v = 0; v < vecs; v++) {
                    sum[i][v] = vec_fma(one, x[v], sum[i][v]);
                }
            }
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vecs; v++) {
            vec_store(acc + (int64_t)i * plane->width + v * VEC, sum[i][v]);
        }
    }
}

VEC_INLINE void weigh_rows(const struct weigh_job *j, int32_t m, int32_t column, const int vecs,
                           const enum stored kind)
{
    int32_t i = 0;
    for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS) {
        weigh_block(j, i, column, BLOCK_ROWS, vecs, kind);
    }
    for (; BLOCK_ROWS > 4 && i + 4 <= m; i += 4) {
        weigh_block(j, i, column, 4, vecs, kind);
    }
    for (; i < m; i++) {
        weigh_block(j, i, column, 1, vecs, kind);
    }
}

VEC_INLINE void weigh_pages(const struct weigh_job *j, int32_t m, const enum stored kind)
{
    int32_t d = 0, dim = j->v->plane->width;
    for (; d + BLOCK_VECS * VEC <= dim; d += BLOCK_VECS * VEC) {
        weigh_rows(j, m, d, BLOCK_VECS, kind);
    }
    for (; d < dim; d += VEC) {
        weigh_rows(j, m, d, 1, kind);
    }
}

static void weigh(const float *p, int64_t p_stride, int32_t m, const struct page_run *v, float *acc)
{
    struct weigh_job j = {.p = p, .p_stride = p_stride, .v = v, .acc = acc};
    WITH_STORED(stored_of(v->plane), weigh_pages, &j, m);
}

/* Keys that nobody sees have weight 0; their scale may be NaN. */
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
    for (int32_t page = 0; page < v->n_pages; page++) {
        fold_page(p + page * v->plane->tokens, p_stride, m, v->plane, v->pages[page], kind);
    }
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

/* The tail goes through the same vector code: which elements fall into it depends on how many rows
 * are computed together, and their bits must not. */
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
