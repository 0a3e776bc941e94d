/* The kernels over vectors, compiled once per instruction set: a file defines KERNELS_NAME and
 * KERNELS_TABLE and includes this. Every sum runs in the order that cpu_kernels.h promises; the
 * blocks of rows and columns only say which sums advance together.
 * Thread: any. */
#include "cpu/cpu_internal.h"
#include "cpu/cpu_vec.h"
#include "engine/base/exact.h"

#include <math.h>

/* Accumulators of a block: rows x vectors. What the registers hold: 32, 16 or 32 of them. */
#if defined(__AVX512F__)
enum { GEMM_ROWS = 6, GEMM_VECS = 4, SCORE_ROWS = 6, SCORE_VECS = 4 };
#elif defined(__AVX2__)
enum { GEMM_ROWS = 6, GEMM_VECS = 2, SCORE_ROWS = 6, SCORE_VECS = 2 };
#else
enum { GEMM_ROWS = 4, GEMM_VECS = 4, SCORE_ROWS = 4, SCORE_VECS = 4 };
#endif

enum { PANEL_VECS = PANEL / VEC };

/* Bytes ahead of the reading of a weight by one row: about what is in flight from memory. */
enum { PREFETCH_BYTES = 2048 };

/* Rows from which a product computes longer than its weights take to arrive. */
enum { MANY_ROWS = 64 };

enum gemm_kind { GEMM_F32, GEMM_F16, GEMM_BF16, GEMM_BF16_DOT };

/* ---- products ----------------------------------------------------------------------------- */

VEC_INLINE void step_single(const float *a, int64_t a_stride, const char *w, vf acc[][MAX_PANELS * PANEL_VECS],
                            const int rows, const int vecs, const enum gemm_kind kind)
{
    for (int j = 0; j < vecs; j++) {
        vf x = kind == GEMM_F32 ? vec_load((const float *)w + j * VEC)
                                : vec_from_f16((const uint16_t *)w + j * VEC);
        for (int i = 0; i < rows; i++) {
            acc[i][j] = vec_fma(vec_set(a[i * a_stride]), x, acc[i][j]);
        }
    }
}

VEC_INLINE void step_pair(const float *a, int64_t a_stride, const char *w, vf acc[][MAX_PANELS * PANEL_VECS],
                          const int rows, const int vecs)
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
VEC_INLINE void step_dot(const uint16_t *a, int64_t a_stride, const char *w, vf acc[][MAX_PANELS * PANEL_VECS],
                         const int rows, const int vecs)
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

/* rows x vecs sums over all of k. w_step: bytes from one k (or pair) to the next. `ahead`: how far
 * ahead of its use a weight is asked for; 0: it is in the cache. */
VEC_INLINE void gemm_block(const void *a, int64_t a_stride, const char *w, int64_t w_step,
                           int64_t k, float *c, bool first, int64_t ahead, const int rows,
                           const int vecs, const enum gemm_kind kind)
{
    vf acc[GEMM_ROWS][MAX_PANELS * PANEL_VECS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            acc[i][j] = first ? vec_set(0.0f) : vec_load(c + i * TILE + j * VEC);
        }
    }
    const int pair = kind == GEMM_BF16 || kind == GEMM_BF16_DOT ? 2 : 1;
    for (int64_t x = 0; x < k; x += pair, w += w_step) {
        if (ahead > 0) {
            for (int j = 0; j < vecs * VEC_BYTES * (kind == GEMM_F16 ? 1 : 2) / 2; j += 64) {
                __builtin_prefetch(w + ahead + j);
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

/* All rows against `vecs` vectors of outputs. */
VEC_INLINE void gemm_rows(const void *a, int64_t a_stride, int32_t m, const char *w,
                          int64_t w_step, int64_t k, float *c, bool first, const int vecs,
                          const enum gemm_kind kind)
{
    const int64_t size = kind == GEMM_BF16_DOT ? 2 : 4;
    const char *row = a;
    /* The first rows to read a stretch of weights ask for the stretch after it. */
    const int64_t pair = kind == GEMM_BF16 || kind == GEMM_BF16_DOT ? 2 : 1;
    int64_t ahead = m == 1 ? PREFETCH_BYTES : m <= MANY_ROWS ? w_step * (k / pair) : 0;
    for (; m >= GEMM_ROWS; m -= GEMM_ROWS, ahead = 0) {
        gemm_block(row, a_stride, w, w_step, k, c, first, ahead, GEMM_ROWS, vecs, kind);
        row += GEMM_ROWS * a_stride * size;
        c += GEMM_ROWS * TILE;
    }
    switch (m) {
#if defined(__AVX2__)
    case 5: gemm_block(row, a_stride, w, w_step, k, c, first, ahead, 5, vecs, kind); break;
    case 4: gemm_block(row, a_stride, w, w_step, k, c, first, ahead, 4, vecs, kind); break;
#endif
    case 3: gemm_block(row, a_stride, w, w_step, k, c, first, ahead, 3, vecs, kind); break;
    case 2: gemm_block(row, a_stride, w, w_step, k, c, first, ahead, 2, vecs, kind); break;
    case 1: gemm_block(row, a_stride, w, w_step, k, c, first, ahead, 1, vecs, kind); break;
    default: break;
    }
}

VEC_INLINE void gemm_panels(const void *a, int64_t a_stride, int32_t m, const void *w,
                            int32_t panels, int64_t k, float *c, bool first,
                            const enum gemm_kind kind)
{
    const int64_t size = kind == GEMM_F32 ? 4 : kind == GEMM_F16 ? 2 : 4; // of one output's step
    const int64_t w_step = panels * PANEL * size;
    if (m == 1 && panels == MAX_PANELS) {
        gemm_block(a, a_stride, w, w_step, k, c, first, PREFETCH_BYTES, 1,
                   MAX_PANELS * PANEL_VECS, kind);
    } else if (m == 1 && panels == 2) {
        gemm_block(a, a_stride, w, w_step, k, c, first, PREFETCH_BYTES, 1, 2 * PANEL_VECS, kind);
    } else if (GEMM_VECS == MAX_PANELS * PANEL_VECS && panels == MAX_PANELS) {
        gemm_rows(a, a_stride, m, w, w_step, k, c, first, MAX_PANELS * PANEL_VECS, kind);
    } else {
        for (int32_t p = 0; p < panels; p++) {
            gemm_rows(a, a_stride, m, (const char *)w + p * PANEL * size, w_step, k, c + p * PANEL,
                      first, PANEL_VECS, kind);
        }
    }
}

static void gemm_f32(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                     int64_t k, float *c, bool first)
{
    gemm_panels(a, a_stride, m, w, panels, k, c, first, GEMM_F32);
}

static void gemm_f16(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                     int64_t k, float *c, bool first)
{
    gemm_panels(a, a_stride, m, w, panels, k, c, first, GEMM_F16);
}

static void gemm_bf16(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                      int64_t k, float *c, bool first)
{
#if defined(__AVX512BF16__)
    gemm_panels(a, a_stride, m, w, panels, k, c, first, GEMM_BF16_DOT);
#else
    gemm_panels(a, a_stride, m, w, panels, k, c, first, GEMM_BF16);
#endif
}

static void round_bf16(const float *x, void *out, int64_t n)
{
    int64_t i = 0;
#if defined(__AVX512BF16__)
    for (; i + VEC <= n; i += VEC) {
        vf rounded = vec_round_bf16(vec_load(x + i));
        _mm256_storeu_si256((void *)((uint16_t *)out + i),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)rounded, 16)));
    }
    for (; i < n; i++) {
        ((uint16_t *)out)[i] = bf16_of(x[i]);
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

/* ---- rows --------------------------------------------------------------------------------- */

static void add_scaled(float *x, const float *d, float scale, int64_t n)
{
    vf s = vec_set(scale);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec_store(x + i, vec_fma(s, vec_load(d + i), vec_load(x + i)));
    }
    for (; i < n; i++) {
        x[i] = fmaf(scale, d[i], x[i]);
    }
}

/* The sum of a[i] b[i]: four chains of vectors, then the tail. */
static float dot(const float *a, const float *b, int64_t n)
{
    vf s0 = vec_set(0.0f), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 4 * VEC <= n; i += 4 * VEC) {
        s0 = vec_fma(vec_load(a + i), vec_load(b + i), s0);
        s1 = vec_fma(vec_load(a + i + VEC), vec_load(b + i + VEC), s1);
        s2 = vec_fma(vec_load(a + i + 2 * VEC), vec_load(b + i + 2 * VEC), s2);
        s3 = vec_fma(vec_load(a + i + 3 * VEC), vec_load(b + i + 3 * VEC), s3);
    }
    for (; i + VEC <= n; i += VEC) {
        s0 = vec_fma(vec_load(a + i), vec_load(b + i), s0);
    }
    float sum = vec_sum((s0 + s1) + (s2 + s3));
    for (; i < n; i++) {
        sum = fmaf(a[i], b[i], sum);
    }
    return sum;
}

static float mean_of(const float *x, int64_t n)
{
    vf s = vec_set(0.0f);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        s += vec_load(x + i);
    }
    float sum = vec_sum(s);
    for (; i < n; i++) {
        sum += x[i];
    }
    return sum / (float)n;
}

static float square_about(const float *x, float mean, int64_t n)
{
    vf s = vec_set(0.0f), m = vec_set(mean);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf d = vec_load(x + i) - m;
        s = vec_fma(d, d, s);
    }
    float sum = vec_sum(s);
    for (; i < n; i++) {
        sum = fmaf(x[i] - mean, x[i] - mean, sum);
    }
    return sum;
}

static void norm(enum norm_kind kind, const float *x, const float *weight, float offset,
                 const float *bias, float eps, int64_t n, float *out)
{
    float mean = kind == NORM_LAYER ? mean_of(x, n) : 0.0f;
    float square = kind == NORM_LAYER ? square_about(x, mean, n) : dot(x, x, n);
    float r = 1.0f / sqrtf(square / (float)n + eps);
    vf one = vec_set(1.0f), zero = vec_set(0.0f), o = vec_set(offset);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf w = (weight ? vec_load(weight + i) : one) + o;
        vf y = (vec_load(x + i) - vec_set(mean)) * vec_set(r);
        vec_store(out + i, vec_fma(y, w, bias ? vec_load(bias + i) : zero));
    }
    for (; i < n; i++) {
        float w = (weight ? weight[i] : 1.0f) + offset;
        out[i] = fmaf((x[i] - mean) * r, w, bias ? bias[i] : 0.0f);
    }
}

/* x * sigmoid(z) */
VEC_INLINE vf swish(vf x, vf z)
{
    return x / (vec_set(1.0f) + vec_exp(vec_set(0.0f) - z));
}

VEC_INLINE vf activated(enum activation kind, vf g, vf u)
{
    switch (kind) {
    case ACT_SILU: return swish(g, g) * u;
    case ACT_GELU_TANH: { // 1 + tanh(z) = 2 sigmoid(2 z)
        vf z = vec_fma(g * g, vec_set(0.044715f), vec_set(1.0f)) * g * vec_set(1.59576912f);
        return swish(g, z) * u;
    }
    case ACT_RELU: return vec_max(g, vec_set(0.0f)) * u;
    case ACT_GPT_OSS:
        g = vec_min(g, vec_set(7.0f));
        u = vec_max(vec_min(u, vec_set(7.0f)), vec_set(-7.0f));
        return swish(g, g * vec_set(1.702f)) * (u + vec_set(1.0f));
    case ACT_GELU: break;
    }
    return g;
}

static void activate(enum activation kind, const float *gate, const float *up, float *out,
                     int64_t n)
{
    int64_t i = 0;
    if (kind == ACT_GELU) {
        cpu_kernels_scalar.activate(kind, gate, up, out, n);
        return;
    }
    for (; i + VEC <= n; i += VEC) {
        vec_store(out + i, activated(kind, vec_load(gate + i),
                                     up ? vec_load(up + i) : vec_set(1.0f)));
    }
    if (i < n) { // by the same arithmetic: where a row is cut must not show
        size_t bytes = (size_t)(n - i) * sizeof *out;
        float g[VEC] = {0.0f}, u[VEC] = {0.0f}, tail[VEC];
        memcpy(g, gate + i, bytes);
        if (up) {
            memcpy(u, up + i, bytes);
        }
        vec_store(tail, activated(kind, vec_load(g), up ? vec_load(u) : vec_set(1.0f)));
        memcpy(out + i, tail, bytes);
    }
}

static void rotate(float *x, const float *cos, const float *sin, int32_t n, bool interleaved)
{
    int32_t i = 0;
    for (; !interleaved && i + VEC <= n; i += VEC) {
        vf a = vec_load(x + i), b = vec_load(x + n + i);
        vf c = vec_load(cos + i), s = vec_load(sin + i);
        vec_store(x + i, a * c - b * s);
        vec_store(x + n + i, b * c + a * s);
    }
    int32_t step = interleaved ? 2 : 1, other = interleaved ? 1 : n;
    for (; i < n; i++) {
        float a = x[i * step], b = x[i * step + other];
        x[i * step] = a * cos[i] - b * sin[i];
        x[i * step + other] = b * cos[i] + a * sin[i];
    }
}

static void scale_by(float *x, float scale, int64_t n)
{
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec_store(x + i, vec_load(x + i) * vec_set(scale));
    }
    for (; i < n; i++) {
        x[i] *= scale;
    }
}

/* ---- attention ---------------------------------------------------------------------------- */

static void widen(enum dtype dtype, const void *from, float *to, int64_t n)
{
    const uint16_t *half = from;
    int64_t i = 0;
    if (dtype == DT_F32) {
        memcpy(to, from, (size_t)n * sizeof *to);
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
    vf acc[SCORE_ROWS][SCORE_VECS];
    const char *from[SCORE_VECS];
    const int64_t size = dtype == DT_F32 ? 4 : 2;
    for (int j = 0; j < vecs; j++) {
        from[j] = k->pages[(first_vec + j) / per_page] + (first_vec + j) % per_page * VEC * size;
        for (int i = 0; i < rows; i++) {
            acc[i][j] = vec_set(0.0f);
        }
    }
    for (int32_t d = 0; d < dim; d++) {
        vf x[SCORE_VECS];
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
    for (; i + SCORE_ROWS <= m; i += SCORE_ROWS) {
        score_block(q + i * q_stride, q_stride, k, vec, per_page, dim, s + i * s_stride, s_stride,
                    SCORE_ROWS, vecs, dtype);
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
    for (; vec + SCORE_VECS <= n; vec += SCORE_VECS) {
        score_rows(q, q_stride, m, k, vec, per_page, dim, s, s_stride, SCORE_VECS, dtype);
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
    vf sum[GEMM_ROWS][GEMM_VECS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            sum[i][j] = vec_load(acc + (int64_t)i * dim + column + j * VEC);
        }
    }
    for (int32_t t = v->first; t < v->end;) {
        int32_t page = t / v->tokens, in_page = t % v->tokens;
        int32_t n = v->tokens - in_page < v->end - t ? v->tokens - in_page : v->end - t;
        for (int32_t last = t + n; t < last; t++, in_page++) {
            vf x[GEMM_VECS];
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
    for (; i + GEMM_ROWS <= m; i += GEMM_ROWS) {
        weigh_block(p + i * p_stride, p_stride, v, column, dim, acc + (int64_t)i * dim, GEMM_ROWS,
                    vecs, dtype);
    }
    for (; GEMM_ROWS > 4 && i + 4 <= m; i += 4) {
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
    for (; d + GEMM_VECS * VEC <= dim; d += GEMM_VECS * VEC) {
        weigh_rows(p, p_stride, m, v, d, dim, acc, GEMM_VECS, dtype);
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

static float max_of(const float *x, int64_t n)
{
    vf m = vec_set(-INFINITY);
    int64_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf v = vec_load(x + i);
        m = vec_select(v > m, v, m);
    }
    float best = vec_highest(m);
    for (; i < n; i++) {
        best = x[i] > best ? x[i] : best;
    }
    return best;
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

/* ---- sampling ----------------------------------------------------------------------------- */

static struct argmax argmax(const float *x, int32_t n)
{
    float best = max_of(x, n);
    for (int32_t i = 0; i < n; i++) {
        if (x[i] == best) {
            return (struct argmax){best, i};
        }
    }
    return (struct argmax){-INFINITY, n > 0 ? 0 : -1}; // all NaN
}

enum { NOISE_RUN = 4 * VEC }; // ids of VEC blocks of the generator

/* rng_philox of VEC consecutive blocks. */
VEC_INLINE void philox(uint64_t seed, int32_t position, uint32_t block, vu out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    vu x0 = (vu){0} + (uint32_t)position, x1 = (vu){0} + (uint32_t)RNG_SAMPLE, x2, x3 = {0};
    for (int i = 0; i < VEC; i++) {
        x2[i] = block + (uint32_t)i;
    }
    for (int round = 0; round < 10; round++) {
        vu high0, low0, high1, low1;
        vec_mul_wide(x0, 0xD2511F53u, &high0, &low0);
        vec_mul_wide(x2, 0xCD9E8D57u, &high1, &low1);
        x0 = high1 ^ x1 ^ k0;
        x2 = high0 ^ x3 ^ k1;
        x1 = low1;
        x3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

/* (float)x, rounded once: both halves are exact. */
VEC_INLINE vf float_of(vu x)
{
    vf high = __builtin_convertvector((vi)(x >> 16), vf);
    vf low = __builtin_convertvector((vi)(x & 0xFFFFu), vf);
    return vec_fma(high, vec_set(65536.0f), low);
}

/* exact_log_parts, exact_log and gumbel_noise of engine/base/exact.h, to the bit. */
VEC_INLINE vf log_parts(vf f, vf e)
{
    vf p = vec_set(-0.07634496688842773f);
    p = vec_fma(p, f, vec_set(0.1276157647371292f));
    p = vec_fma(p, f, vec_set(-0.13160182535648346f));
    p = vec_fma(p, f, vec_set(0.14201757311820984f));
    p = vec_fma(p, f, vec_set(-0.16623356938362122f));
    p = vec_fma(p, f, vec_set(0.20001226663589478f));
    p = vec_fma(p, f, vec_set(-0.2500081956386566f));
    p = vec_fma(p, f, vec_set(0.3333333134651184f));
    vf square = f * f;
    vf tail = vec_fma(p, f, vec_set(-0.5f));
    vf y = vec_fma(e, vec_set(-2.12194440e-4f), vec_set(0.0f));
    y = vec_fma(tail, square, y);
    y = y + f;
    return vec_fma(e, vec_set(0.693359375f), y);
}

VEC_INLINE void split(vf x, vf *f, vf *e)
{
    vi exponent = ((vi)x - 0x3F3504F3) >> 23;
    *f = (vf)((vi)x - (vi)((vu)exponent << 23)) - vec_set(1.0f);
    *e = __builtin_convertvector(exponent, vf);
}

VEC_INLINE vf noise_of(vu bits)
{
    vu rest = ~bits;
    vf unit = vec_set(2.3283064365386963e-10f), half = vec_set(0.5f), f, e;
    vf u = (float_of(bits) + half) * unit, t = (float_of(rest) + half) * unit;
    split(u, &f, &e);
    vi near_one = (vi)(rest < 0x4AFB0CCCu);
    f = vec_select(near_one, -t, f);
    e = vec_select(near_one, vec_set(0.0f), e);
    vf w = -log_parts(f, e);
    split(w, &f, &e);
    return -log_parts(f, e);
}

/* The noise of NOISE_RUN ids from `first`, a multiple of 4. */
static void noise_run(uint64_t seed, int32_t position, int32_t first, float *noise)
{
    vu bits[4];
    float by_block[4][VEC];
    philox(seed, position, (uint32_t)first >> 2, bits);
    for (int i = 0; i < 4; i++) {
        vec_store(by_block[i], noise_of(bits[i]));
    }
    for (int i = 0; i < VEC; i++) {
        for (int j = 0; j < 4; j++) {
            noise[4 * i + j] = by_block[j][i];
        }
    }
}

static struct argmax argmax_gumbel(const float *x, int32_t n, uint64_t seed, int32_t position)
{
    struct argmax best = {-INFINITY, -1};
    float noise[NOISE_RUN];
    for (int32_t first = 0; first < n; first += NOISE_RUN) {
        int32_t end = n - first < NOISE_RUN ? n - first : NOISE_RUN;
        if (!(max_of(x + first, end) > -INFINITY)) {
            continue;
        }
        noise_run(seed, position, first, noise);
        for (int32_t i = 0; i < end; i++) {
            noise[i] = x[first + i] + noise[i];
        }
        if (best.id >= 0 && !(max_of(noise, end) > best.value)) {
            continue;
        }
        for (int32_t i = 0; i < end; i++) {
            if (x[first + i] > -INFINITY && (noise[i] > best.value || best.id < 0)) {
                best = (struct argmax){noise[i], first + i};
            }
        }
    }
    return best;
}

/* exact_exp to the bit: the products that it leaves to the compiler cannot round. */
static void exp_exact(const float *x, int32_t n, float max, float *out)
{
    int32_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        vf y = vec_load(x + i) - vec_set(max);
        vf e = vec_exp(y);
        vec_store(out + i, vec_select(y > vec_set(-87.0f), e, vec_set(0.0f)));
    }
    for (; i < n; i++) {
        out[i] = exact_exp(x[i] - max);
    }
}

static double exp_total(const float *x, int32_t n, float max)
{
    double total = 0.0;
    vf m = vec_set(max);
    int32_t i = 0;
    while (i + VEC <= n) {
        vf s = vec_set(0.0f);
        for (int32_t end = i + 16 * VEC; i + VEC <= n && i < end; i += VEC) {
            vf v = vec_load(x + i);
            s += vec_select(v > vec_set(-INFINITY), vec_exp(v - m), vec_set(0.0f));
        }
        total += (double)vec_sum(s);
    }
    for (; i < n; i++) {
        total += x[i] > -INFINITY ? (double)expf(x[i] - max) : 0.0;
    }
    return total;
}

/* ---- peaks -------------------------------------------------------------------------------- */

static float read_all(const void *p, size_t n_bytes)
{
    const float *x = p;
    vi s[4];
    memset(s, 0, sizeof s);
    for (size_t i = 0; i < n_bytes / sizeof *x; i += 4 * VEC) {
        for (int j = 0; j < 4; j++) {
            __builtin_prefetch((const char *)(x + i + j * VEC) + 2 * PREFETCH_BYTES);
            s[j] += (vi)vec_load(x + i + j * VEC);
        }
    }
    return vec_sum((vf)(s[0] ^ s[1] ^ s[2] ^ s[3]));
}

enum { SPIN_CHAINS = VEC_BYTES == 64 ? 24 : 12 }; // covers latency times issue

static float spin_fma(int64_t n)
{
    vf x[SPIN_CHAINS], a = vec_set(0.999f), b = vec_set(0.001f);
    for (int j = 0; j < SPIN_CHAINS; j++) {
        x[j] = vec_set((float)j);
    }
    for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 24
        for (int j = 0; j < SPIN_CHAINS; j++) {
            x[j] = vec_fma(x[j], a, b);
        }
    }
    for (int j = 1; j < SPIN_CHAINS; j++) {
        x[0] += x[j];
    }
    return vec_sum(x[0]);
}

#if defined(__AVX512BF16__)
static float spin_product(int64_t n)
{
    vf x[SPIN_CHAINS];
    __m512bh a = (__m512bh)_mm512_set1_epi32(0x3F803F80), b = (__m512bh)_mm512_set1_epi32(0);
    for (int j = 0; j < SPIN_CHAINS; j++) {
        x[j] = vec_set((float)j);
    }
    for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 24
        for (int j = 0; j < SPIN_CHAINS; j++) {
            x[j] = (vf)_mm512_dpbf16_ps((__m512)x[j], a, b);
        }
    }
    for (int j = 1; j < SPIN_CHAINS; j++) {
        x[0] += x[j];
    }
    return vec_sum(x[0]);
}
#endif

const struct cpu_kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .gemm_bf16 = gemm_bf16,
    .gemm_f16 = gemm_f16,
    .gemm_f32 = gemm_f32,
#if defined(__AVX512BF16__)
    .bf16_rows = true,
#endif
    .round_bf16 = round_bf16,
    .round_f16 = round_f16,
    .add_scaled = add_scaled,
    .norm = norm,
    .dot = dot,
    .activate = activate,
    .rotate = rotate,
    .widen = widen,
    .scores = scores,
    .weigh = weigh,
    .max = max_of,
    .exp_sum = exp_sum,
    .softcap = softcap,
    .scale = scale_by,
    .argmax = argmax,
    .argmax_gumbel = argmax_gumbel,
    .exp_exact = exp_exact,
    .exp_total = exp_total,
    .read_all = read_all,
    .spin_fma = spin_fma,
    .fma_flops = 2.0 * SPIN_CHAINS * VEC,
#if defined(__AVX512BF16__)
    .spin_product = spin_product,
    .product_flops = 4.0 * SPIN_CHAINS * VEC,
#else
    .spin_product = spin_fma,
    .product_flops = 2.0 * SPIN_CHAINS * VEC,
#endif
};
