// SPDX-License-Identifier: Apache-2.0
/* Products with packed weights (gemm_fn), and the rounding of their rows. Included by
 * cpu_kernels_vec.h.
 * Thread: any. */
#ifndef SLUICE_CPU_VEC_GEMM_H
#define SLUICE_CPU_VEC_GEMM_H

#include "cpu/cpu_internal.h"
#include "cpu/cpu_vec.h"

enum { PANEL_VECS = PANEL / VEC };

/* How many bytes ahead a product of one row prefetches its weights. On a Zen 5, larger distances
 * helped up to about 8 KiB; 16 KiB gained less than another 1 %. */
enum { PREFETCH_BYTES = 8192 };

/* From this number of rows on, a product's computation takes longer than its weights take to
 * arrive. */
enum { MANY_ROWS = 64 };

/* From WIDE_ROWS rows on, 16-bit weights are first converted to floats, WIDE_K inputs at a time
 * (half as many for up to WIDE_FEW rows), and stay in the L1 cache in this form. Otherwise each
 * block of rows would convert them again. */
enum { WIDE_ROWS = 2 * BLOCK_ROWS, WIDE_K = 64, WIDE_FEW = 24 };

enum gemm_kind { GEMM_F32, GEMM_F16, GEMM_BF16, GEMM_BF16_DOT };

VEC_INLINE void step_single(const float *a, int64_t a_stride, const char *w,
                            vf acc[][MAX_PANELS * PANEL_VECS], const int rows, const int vecs,
                            const enum gemm_kind kind)
{
    for (int j = 0; j < vecs; j++) {
        vf x = kind == GEMM_F32 ? vec_load((const float *)w + j * VEC)
                                : vec_from_f16((const uint16_t *)w + j * VEC);
        for (int i = 0; i < rows; i++) {
            acc[i][j] = vec_fma(vec_set(a[i * a_stride]), x, acc[i][j]);
        }
    }
}

VEC_INLINE void step_pair(const float *a, int64_t a_stride, const char *w,
                          vf acc[][MAX_PANELS * PANEL_VECS], const int rows, const int vecs)
{
    for (int j = 0; j < vecs; j++) {
        vf even = vec_even((const uint16_t *)w + j * 2 * VEC);
        for (int i = 0; i < rows; i++) {
            acc[i][j] = vec_fma(vec_set(a[i * a_stride]), even, acc[i][j]);
        }
    }
    for (int j = 0; j < vecs; j++) {
        vf odd = vec_odd((const uint16_t *)w + j * 2 * VEC);
        for (int i = 0; i < rows; i++) {
            acc[i][j] = vec_fma(vec_set(a[i * a_stride + 1]), odd, acc[i][j]);
        }
    }
}

#if defined(__AVX512BF16__)
VEC_INLINE void step_dot(const uint16_t *a, int64_t a_stride, const char *w,
                         vf acc[][MAX_PANELS * PANEL_VECS], const int rows, const int vecs)
{
    __m512bh x[MAX_PANELS];
    for (int j = 0; j < vecs; j++) {
        x[j] = (__m512bh)_mm512_loadu_si512((const char *)w + j * 64);
    }
    for (int i = 0; i < rows; i++) {
        int32_t pair;
        memcpy(&pair, a + i * a_stride, sizeof pair);
        __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
        for (int j = 0; j < vecs; j++) {
            acc[i][j] = (vf)_mm512_dpbf16_ps((__m512)acc[i][j], both, x[j]);
        }
    }
}
#endif

/* The memory that a block of rows prefetches: n bytes at each step, starting `stride` bytes after
 * those of the previous step. */
struct gemm_ahead {
    const char *p;
    int64_t stride, n;
};

/* The memory that all blocks of a product prefetch. p NULL: the memory after the product's weights,
 * if there are at most MANY_ROWS rows. */
struct gemm_follows {
    const char *p;
    int64_t n_bytes;
};

/* Computes rows x vecs sums over all of k. w_step: bytes from one k (or pair) to the next. */
VEC_INLINE void gemm_block(const void *a, int64_t a_stride, const char *w, int64_t w_step,
                           int64_t k, float *c, bool first, struct gemm_ahead next, const int rows,
                           const int vecs, const enum gemm_kind kind)
{
    vf acc[BLOCK_ROWS][MAX_PANELS * PANEL_VECS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            acc[i][j] = first ? vec_set(0.0f) : vec_load(c + i * TILE + j * VEC);
        }
    }
    const int pair = kind == GEMM_BF16 || kind == GEMM_BF16_DOT ? 2 : 1;
    /* Dot-product instructions consume weights so fast that L1 has too few line-fill buffers; L2
     * has more of them. A single row gains nothing from L2. */
    const bool to_second = kind == GEMM_BF16_DOT && rows > 1;
    for (int64_t x = 0; x < k; x += pair, w += w_step, next.p += next.stride) {
        for (int64_t j = 0; j < next.n; j += 64) {
            if (to_second) {
                __builtin_prefetch(next.p + j, 0, 2);
            } else {
                __builtin_prefetch(next.p + j);
            }
        }
#if defined(__AVX512BF16__)
        if (kind == GEMM_BF16_DOT) {
            step_dot((const uint16_t *)a + x, a_stride, w, acc, rows, vecs);
            continue;
        }
#endif
        if (kind == GEMM_BF16) {
            step_pair((const float *)a + x, a_stride, w, acc, rows, vecs);
        } else {
            step_single((const float *)a + x, a_stride, w, acc, rows, vecs, kind);
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            vec_store(c + i * TILE + j * VEC, acc[i][j]);
        }
    }
}

VEC_INLINE int64_t step_bytes(const int vecs, const enum gemm_kind kind)
{
    return vecs * VEC_BYTES * (kind == GEMM_F16 ? 1 : 2) / 2;
}

VEC_INLINE void gemm_some(const void *a, int64_t a_stride, int32_t rows, const char *w,
                          int64_t w_step, int64_t k, float *c, bool first, struct gemm_ahead next,
                          const int vecs, const enum gemm_kind kind)
{
    switch (rows) {
#if defined(__AVX2__)
    case 6: gemm_block(a, a_stride, w, w_step, k, c, first, next, 6, vecs, kind); break;
    case 5: gemm_block(a, a_stride, w, w_step, k, c, first, next, 5, vecs, kind); break;
#endif
    case 4: gemm_block(a, a_stride, w, w_step, k, c, first, next, 4, vecs, kind); break;
    case 3: gemm_block(a, a_stride, w, w_step, k, c, first, next, 3, vecs, kind); break;
    case 2: gemm_block(a, a_stride, w, w_step, k, c, first, next, 2, vecs, kind); break;
    case 1: gemm_block(a, a_stride, w, w_step, k, c, first, next, 1, vecs, kind); break;
    default: break;
    }
}

/* The part that block number i of n prefetches. All parts are equal, so that the loads are spread
 * over the whole time of the products. `lines`: number of this block's outputs in the weights of
 * each step. */
VEC_INLINE struct gemm_ahead part_of(const struct gemm_follows *f, const char *w, int64_t w_step,
                                     int64_t steps, int64_t lines, int64_t i, int64_t n, int32_t m)
{
    if (f->p) {
        int64_t share = (f->n_bytes + n - 1) / n, each = (share + steps - 1) / steps;
        return (struct gemm_ahead){f->p + i * share, each, each};
    }
    int64_t from = (lines * i + n - 1) / n * 64, to = (lines * (i + 1) + n - 1) / n * 64;
    int64_t ahead = n == 1 ? PREFETCH_BYTES : w_step * steps;
    return (struct gemm_ahead){w + ahead + from, w_step, m <= MANY_ROWS ? to - from : 0};
}

/* Multiplies all rows by `vecs` vectors of outputs. */
VEC_INLINE void gemm_rows(const void *a, int64_t a_stride, int32_t m, const char *w, int64_t w_step,
                          int64_t k, float *c, bool first, struct gemm_follows f, const int vecs,
                          const enum gemm_kind kind)
{
    const int64_t size = kind == GEMM_BF16_DOT ? 2 : 4;
    const int64_t pair = kind == GEMM_BF16 || kind == GEMM_BF16_DOT ? 2 : 1;
    const int64_t lines = (step_bytes(vecs, kind) + 63) / 64;
    const int64_t n = (m + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t i = 0; i < n; i++) {
        int32_t row = (int32_t)i * BLOCK_ROWS;
        gemm_some((const char *)a + row * a_stride * size, a_stride,
                  m - row < BLOCK_ROWS ? m - row : BLOCK_ROWS, w, w_step, k,
                  c + (int64_t)row * TILE, first, part_of(&f, w, w_step, k / pair, lines, i, n, m),
                  vecs, kind);
    }
}

VEC_INLINE void gemm_panels(const void *a, int64_t a_stride, int32_t m, const void *w,
                            int32_t panels, int64_t k, float *c, bool first, struct gemm_follows f,
                            const enum gemm_kind kind)
{
    // bytes of one output per step
    const int64_t size = kind == GEMM_F16 ? 2 : 4;
    const int64_t w_step = panels * PANEL * size;
    if (BLOCK_VECS == MAX_PANELS * PANEL_VECS && panels == MAX_PANELS) {
        gemm_rows(a, a_stride, m, w, w_step, k, c, first, f, MAX_PANELS * PANEL_VECS, kind);
        return;
    }
    f.n_bytes /= panels;
    for (int32_t p = 0; p < panels; p++, f.p = f.p ? f.p + f.n_bytes : NULL) {
        gemm_rows(a, a_stride, m, (const char *)w + p * PANEL * size, w_step, k, c + p * PANEL,
                  first, f, PANEL_VECS, kind);
    }
}

/* Multiplies one row by all outputs of a tile. */
VEC_INLINE void gemm_one(const void *a, const void *w, int64_t k, float *c, bool first,
                         const int panels, const enum gemm_kind kind)
{
    const int64_t size = kind == GEMM_F16 ? 2 : 4;
    const int64_t w_step = panels * PANEL * size;
    const struct gemm_ahead next = {(const char *)w + PREFETCH_BYTES, w_step, w_step};
    gemm_block(a, 0, w, w_step, k, c, first, next, 1, panels * PANEL_VECS, kind);
}

/* Converts the weights of n inputs to floats: [n][panels * PANEL]. */
VEC_INLINE void widen_weights(const uint16_t *w, int64_t n, int32_t panels, float *out,
                              const enum gemm_kind kind)
{
    const int64_t width = panels * PANEL;
    for (int64_t i = 0; kind == GEMM_F16 && i < n * width; i += VEC) {
        vec_store(out + i, vec_from_f16(w + i));
    }
    for (int64_t x = 0; kind == GEMM_BF16 && x < n; x += 2, w += 2 * width, out += 2 * width) {
        for (int64_t j = 0; j < width; j += VEC) {
            vec_store(out + j, vec_even(w + 2 * j));
            vec_store(out + width + j, vec_odd(w + 2 * j));
        }
    }
}

VEC_INLINE void gemm_widened(const float *a, int64_t a_stride, int32_t m, const uint16_t *w,
                             int32_t panels, int64_t k, float *c, bool first,
                             const enum gemm_kind kind)
{
    _Alignas(VEC_BYTES) float wide[WIDE_K * TILE];
    const int64_t width = panels * PANEL, most = m > WIDE_FEW ? WIDE_K : WIDE_K / 2;
    for (int64_t x = 0, n; x < k; x += n, w += n * width) {
        n = k - x < most ? k - x : most;
        const struct gemm_follows f = {(const char *)(w + WIDE_K * width), n * width * 2};
        widen_weights(w, n, panels, wide, kind);
        gemm_panels(a + x, a_stride, m, wide, panels, n, c, first && x == 0, f, GEMM_F32);
    }
}

VEC_INLINE void gemm(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                     int64_t k, float *c, bool first, const enum gemm_kind kind)
{
    const struct gemm_follows f = {NULL, 0};
    if (m == 1 && panels == MAX_PANELS) {
        gemm_one(a, w, k, c, first, MAX_PANELS, kind);
    } else if (m == 1 && panels == 2) {
        gemm_one(a, w, k, c, first, 2, kind);
    } else if (m >= WIDE_ROWS && (kind == GEMM_F16 || kind == GEMM_BF16)) {
        gemm_widened(a, a_stride, m, w, panels, k, c, first, kind);
    } else {
        gemm_panels(a, a_stride, m, w, panels, k, c, first, f, kind);
    }
}

static void gemm_f32(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                     int64_t k, float *c, bool first)
{
    gemm(a, a_stride, m, w, panels, k, c, first, GEMM_F32);
}

static void gemm_f16(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                     int64_t k, float *c, bool first)
{
    gemm(a, a_stride, m, w, panels, k, c, first, GEMM_F16);
}

static void gemm_bf16(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                      int64_t k, float *c, bool first)
{
#if defined(__AVX512BF16__)
    gemm(a, a_stride, m, w, panels, k, c, first, GEMM_BF16_DOT);
#else
    gemm(a, a_stride, m, w, panels, k, c, first, GEMM_BF16);
#endif
}

static void round_bf16(const float *x, void *out, int64_t n)
{
    int64_t i = 0;
#if defined(__AVX512BF16__)
    for (; i + VEC <= n; i += VEC) {
        __m256bh rounded = _mm512_cvtneps_pbh((__m512)vec_load(x + i));
        _mm256_storeu_si256((void *)((uint16_t *)out + i), (__m256i)rounded);
    }
    if (i < n) { // the tail uses the same instruction, because it flushes denormals
        float tail[VEC] = {0.0f};
        uint16_t half[VEC];
        memcpy(tail, x + i, (size_t)(n - i) * sizeof *tail);
        _mm256_storeu_si256((void *)half, (__m256i)_mm512_cvtneps_pbh((__m512)vec_load(tail)));
        memcpy((uint16_t *)out + i, half, (size_t)(n - i) * sizeof *half);
    }
#else
    for (; i + VEC <= n; i += VEC) {
        vec_store((float *)out + i, vec_round_bf16(vec_load(x + i)));
    }
    for (; i < n; i++) {
        ((float *)out)[i] = bf16_to_f32(bf16_of(x[i]));
    }
#endif
}

static void round_f16(const float *x, float *out, int64_t n)
{
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        uint16_t half[VEC];
        vec_to_f16(half, vec_load(x + i));
        vec_store(out + i, vec_from_f16(half));
    }
    for (; i < n; i++) {
        out[i] = f16_to_f32(f16_of(x[i]));
    }
}

#endif
