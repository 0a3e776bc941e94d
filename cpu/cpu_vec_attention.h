/* Scores, softmax and weighted values over pages of K and V.
 * One of the rooms of cpu_kernels_vec.h, which includes it. Thread: any. */
#ifndef SLUICE_CPU_VEC_ATTENTION_H
#define SLUICE_CPU_VEC_ATTENTION_H

#include "cpu/cpu_internal.h"
#include "cpu/cpu_vec.h"
#include "cpu/cpu_vec_coded.h"

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

VEC_INLINE vf load_stored(const enum dtype dtype, const char *p, int64_t at)
{
    return dtype == DT_F32    ? vec_load((const float *)p + at)
           : dtype == DT_BF16 ? vec_from_bf16((const uint16_t *)p + at)
                              : vec_from_f16((const uint16_t *)p + at);
}

/* rows x vecs scores: the vectors are consecutive runs of tokens, `per_page` of them in a page. */
VEC_INLINE void score_block(const float *q, int64_t q_stride, const struct page_run *k,
                            int32_t first_vec, int32_t per_page, int32_t dim, float *s,
                            int64_t s_stride, const int rows, const int vecs,
                            const enum dtype dtype)
{
    vf acc[BLOCK_ROWS][BLOCK_VECS];
    const char *from[BLOCK_VECS];
    const int64_t size = dtype == DT_F32 ? 4 : 2;
    for (int j = 0; j < vecs; j++) {
        from[j] = k->pages[(first_vec + j) / per_page] + (first_vec + j) % per_page * VEC * size;
        for (int i = 0; i < rows; i++) {
            acc[i][j] = vec_set(0.0f);
        }
    }
    for (int32_t d = 0; d < dim; d++) {
        vf x[BLOCK_VECS];
        for (int j = 0; j < vecs; j++) {
            x[j] = load_stored(dtype, from[j], (int64_t)d * k->tokens);
        }
        for (int i = 0; i < rows; i++) {
            vf one = vec_set(q[i * q_stride + d]);
            for (int j = 0; j < vecs; j++) {
                acc[i][j] = vec_fma(one, x[j], acc[i][j]);
            }
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            vec_store(s + i * s_stride + (first_vec + j) * VEC, acc[i][j]);
        }
    }
}

VEC_INLINE void score_rows(const float *q, int64_t q_stride, int32_t m, const struct page_run *k,
                           int32_t vec, int32_t per_page, int32_t dim, float *s, int64_t s_stride,
                           const int vecs, const enum dtype dtype)
{
    int32_t i = 0;
    for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS) {
        score_block(q + i * q_stride, q_stride, k, vec, per_page, dim, s + i * s_stride, s_stride,
                    BLOCK_ROWS, vecs, dtype);
    }
    for (; i + 4 <= m; i += 4) {
        score_block(q + i * q_stride, q_stride, k, vec, per_page, dim, s + i * s_stride, s_stride,
                    4, vecs, dtype);
    }
    for (; i < m; i++) {
        score_block(q + i * q_stride, q_stride, k, vec, per_page, dim, s + i * s_stride, s_stride,
                    1, vecs, dtype);
    }
}

VEC_INLINE void score_pages(const float *q, int64_t q_stride, int32_t m, const struct page_run *k,
                            int32_t dim, float *s, int64_t s_stride, const enum dtype dtype)
{
    int32_t per_page = k->tokens / VEC, n = k->n_pages * per_page, vec = 0;
    for (; vec + BLOCK_VECS <= n; vec += BLOCK_VECS) {
        score_rows(q, q_stride, m, k, vec, per_page, dim, s, s_stride, BLOCK_VECS, dtype);
    }
    for (; vec < n; vec++) {
        score_rows(q, q_stride, m, k, vec, per_page, dim, s, s_stride, 1, dtype);
    }
}

/* Pages that are no whole number of vectors go the scalar way, whoever reads them. */
static void scores(const float *q, int64_t q_stride, int32_t m, const struct page_run *k,
                   int32_t dim, float *s, int64_t s_stride)
{
    if (k->tokens % VEC != 0) {
        cpu_kernels_scalar.scores(q, q_stride, m, k, dim, s, s_stride);
    } else if (k->dtype == DT_F32) {
        score_pages(q, q_stride, m, k, dim, s, s_stride, DT_F32);
    } else if (k->dtype == DT_BF16) {
        score_pages(q, q_stride, m, k, dim, s, s_stride, DT_BF16);
    } else {
        score_pages(q, q_stride, m, k, dim, s, s_stride, DT_F16);
    }
}

VEC_INLINE void weigh_block(const float *p, int64_t p_stride, const struct page_run *v,
                            int32_t column, int32_t dim, float *acc, const int rows,
                            const int vecs, const enum dtype dtype)
{
    vf sum[BLOCK_ROWS][BLOCK_VECS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            sum[i][j] = vec_load(acc + (int64_t)i * dim + column + j * VEC);
        }
    }
    for (int32_t t = v->first; t < v->end;) {
        int32_t page = t / v->tokens, in_page = t % v->tokens;
        int32_t n = v->tokens - in_page < v->end - t ? v->tokens - in_page : v->end - t;
        for (int32_t last = t + n; t < last; t++, in_page++) {
            vf x[BLOCK_VECS];
            for (int j = 0; j < vecs; j++) {
                x[j] = load_stored(dtype, v->pages[page], (int64_t)in_page * dim + column + j * VEC);
            }
            for (int i = 0; i < rows; i++) {
                vf one = vec_set(p[i * p_stride + t]);
                for (int j = 0; j < vecs; j++) {
                    sum[i][j] = vec_fma(one, x[j], sum[i][j]);
                }
            }
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            vec_store(acc + (int64_t)i * dim + column + j * VEC, sum[i][j]);
        }
    }
}

VEC_INLINE void weigh_rows(const float *p, int64_t p_stride, int32_t m, const struct page_run *v,
                           int32_t column, int32_t dim, float *acc, const int vecs,
                           const enum dtype dtype)
{
    int32_t i = 0;
    for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS) {
        weigh_block(p + i * p_stride, p_stride, v, column, dim, acc + (int64_t)i * dim, BLOCK_ROWS,
                    vecs, dtype);
    }
    for (; BLOCK_ROWS > 4 && i + 4 <= m; i += 4) {
        weigh_block(p + i * p_stride, p_stride, v, column, dim, acc + (int64_t)i * dim, 4, vecs,
                    dtype);
    }
    for (; i < m; i++) {
        weigh_block(p + i * p_stride, p_stride, v, column, dim, acc + (int64_t)i * dim, 1, vecs,
                    dtype);
    }
}

VEC_INLINE void weigh_pages(const float *p, int64_t p_stride, int32_t m, const struct page_run *v,
                            int32_t dim, float *acc, const enum dtype dtype)
{
    int32_t d = 0;
    for (; d + BLOCK_VECS * VEC <= dim; d += BLOCK_VECS * VEC) {
        weigh_rows(p, p_stride, m, v, d, dim, acc, BLOCK_VECS, dtype);
    }
    for (; d < dim; d += VEC) {
        weigh_rows(p, p_stride, m, v, d, dim, acc, 1, dtype);
    }
}

static void weigh(const float *p, int64_t p_stride, int32_t m, const struct page_run *v,
                  int32_t dim, float *acc)
{
    if (v->dtype == DT_F32) {
        weigh_pages(p, p_stride, m, v, dim, acc, DT_F32);
    } else if (v->dtype == DT_BF16) {
        weigh_pages(p, p_stride, m, v, dim, acc, DT_BF16);
    } else {
        weigh_pages(p, p_stride, m, v, dim, acc, DT_F16);
    }
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

/* The tail goes through the same vector code: which element falls into it depends on how many rows
 * are computed together, and the bits may not. */
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
