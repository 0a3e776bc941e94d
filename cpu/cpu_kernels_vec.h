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
enum { GEMM_ROWS = 6, GEMM_VECS = 4, SCORE_ROWS = 12, SCORE_VECS = 1 };
#elif defined(__AVX2__)
enum { GEMM_ROWS = 6, GEMM_VECS = 2, SCORE_ROWS = 6, SCORE_VECS = 2 };
#else
enum { GEMM_ROWS = 4, GEMM_VECS = 4, SCORE_ROWS = 4, SCORE_VECS = 4 };
#endif

enum { PANEL_VECS = PANEL / VEC };

/* Bytes ahead of the reading of a weight by one row: about what is in flight from memory. */
enum { PREFETCH_BYTES = 2048 };

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

/* rows x vecs sums over all of k. w_step: bytes from one k (or pair) to the next. */
VEC_INLINE void gemm_block(const void *a, int64_t a_stride, const char *w, int64_t w_step,
                           int64_t k, float *c, bool first, const int rows, const int vecs,
                           const enum gemm_kind kind)
{
    vf acc[GEMM_ROWS][MAX_PANELS * PANEL_VECS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            acc[i][j] = first ? vec_set(0.0f) : vec_load(c + i * TILE + j * VEC);
        }
    }
    const int pair = kind == GEMM_BF16 || kind == GEMM_BF16_DOT ? 2 : 1;
    for (int64_t x = 0; x < k; x += pair, w += w_step) {
        if (rows == 1) {
            for (int64_t line = 0; line < w_step; line += 64) {
                __builtin_prefetch(w + PREFETCH_BYTES + line);
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
    for (; m >= GEMM_ROWS; m -= GEMM_ROWS) {
        gemm_block(row, a_stride, w, w_step, k, c, first, GEMM_ROWS, vecs, kind);
        row += GEMM_ROWS * a_stride * size;
        c += GEMM_ROWS * TILE;
    }
    switch (m) {
#if defined(__AVX2__)
    case 5: gemm_block(row, a_stride, w, w_step, k, c, first, 5, vecs, kind); break;
    case 4: gemm_block(row, a_stride, w, w_step, k, c, first, 4, vecs, kind); break;
#endif
    case 3: gemm_block(row, a_stride, w, w_step, k, c, first, 3, vecs, kind); break;
    case 2: gemm_block(row, a_stride, w, w_step, k, c, first, 2, vecs, kind); break;
    case 1: gemm_block(row, a_stride, w, w_step, k, c, first, 1, vecs, kind); break;
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
        gemm_block(a, a_stride, w, w_step, k, c, first, 1, MAX_PANELS * PANEL_VECS, kind);
    } else if (m == 1 && panels == 2) {
        gemm_block(a, a_stride, w, w_step, k, c, first, 1, 2 * PANEL_VECS, kind);
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
    if (i < n) {
        cpu_kernels_scalar.activate(kind, gate + i, up ? up + i : NULL, out + i, n - i);
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

VEC_INLINE void score_block(const float *q, int64_t q_stride, const float *k, int32_t dim,
                            int32_t n_tokens, float *s, int64_t s_stride, const int rows,
                            const int vecs)
{
    vf acc[SCORE_ROWS][SCORE_VECS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            acc[i][j] = vec_set(0.0f);
        }
    }
    for (int32_t d = 0; d < dim; d++, k += n_tokens) {
        for (int j = 0; j < vecs; j++) {
            vf x = vec_load(k + j * VEC);
            for (int i = 0; i < rows; i++) {
                acc[i][j] = vec_fma(vec_set(q[i * q_stride + d]), x, acc[i][j]);
            }
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            vec_store(s + i * s_stride + j * VEC, acc[i][j]);
        }
    }
}

VEC_INLINE void score_rows(const float *q, int64_t q_stride, int32_t m, const float *k, int32_t dim,
                           int32_t n_tokens, float *s, int64_t s_stride, const int vecs)
{
    int32_t i = 0;
    for (; i + SCORE_ROWS <= m; i += SCORE_ROWS) {
        score_block(q + i * q_stride, q_stride, k, dim, n_tokens, s + i * s_stride, s_stride,
                    SCORE_ROWS, vecs);
    }
    for (; i + 4 <= m; i += 4) {
        score_block(q + i * q_stride, q_stride, k, dim, n_tokens, s + i * s_stride, s_stride, 4,
                    vecs);
    }
    for (; i < m; i++) {
        score_block(q + i * q_stride, q_stride, k, dim, n_tokens, s + i * s_stride, s_stride, 1,
                    vecs);
    }
}

static void scores(const float *q, int64_t q_stride, int32_t m, const float *k, int32_t dim,
                   int32_t n_tokens, float *s, int64_t s_stride)
{
    int32_t t = 0;
    for (; t + SCORE_VECS * VEC <= n_tokens; t += SCORE_VECS * VEC) {
        score_rows(q, q_stride, m, k + t, dim, n_tokens, s + t, s_stride, SCORE_VECS);
    }
    for (; t + VEC <= n_tokens; t += VEC) {
        score_rows(q, q_stride, m, k + t, dim, n_tokens, s + t, s_stride, 1);
    }
    for (int32_t i = 0; i < m && t < n_tokens; i++) {
        for (int32_t u = t; u < n_tokens; u++) {
            float sum = 0.0f;
            for (int32_t d = 0; d < dim; d++) {
                sum = fmaf(q[i * q_stride + d], k[(int64_t)d * n_tokens + u], sum);
            }
            s[i * s_stride + u] = sum;
        }
    }
}

VEC_INLINE void weigh_block(const float *p, int64_t p_stride, const float *v, int32_t dim,
                            int32_t n_tokens, float *acc, const int rows, const int vecs)
{
    vf sum[GEMM_ROWS][GEMM_VECS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            sum[i][j] = vec_load(acc + (int64_t)i * dim + j * VEC);
        }
    }
    for (int32_t t = 0; t < n_tokens; t++, v += dim) {
        for (int j = 0; j < vecs; j++) {
            vf x = vec_load(v + j * VEC);
            for (int i = 0; i < rows; i++) {
                sum[i][j] = vec_fma(vec_set(p[i * p_stride + t]), x, sum[i][j]);
            }
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vecs; j++) {
            vec_store(acc + (int64_t)i * dim + j * VEC, sum[i][j]);
        }
    }
}

VEC_INLINE void weigh_rows(const float *p, int64_t p_stride, int32_t m, const float *v, int32_t dim,
                           int32_t n_tokens, float *acc, const int vecs)
{
    int32_t i = 0;
    for (; i + GEMM_ROWS <= m; i += GEMM_ROWS) {
        weigh_block(p + i * p_stride, p_stride, v, dim, n_tokens, acc + (int64_t)i * dim,
                    GEMM_ROWS, vecs);
    }
    for (; i + 4 <= m; i += 4) {
        weigh_block(p + i * p_stride, p_stride, v, dim, n_tokens, acc + (int64_t)i * dim, 4, vecs);
    }
    for (; i < m; i++) {
        weigh_block(p + i * p_stride, p_stride, v, dim, n_tokens, acc + (int64_t)i * dim, 1, vecs);
    }
}

static void weigh(const float *p, int64_t p_stride, int32_t m, const float *v, int32_t dim,
                  int32_t n_tokens, float *acc)
{
    int32_t d = 0;
    for (; d + GEMM_VECS * VEC <= dim; d += GEMM_VECS * VEC) {
        weigh_rows(p, p_stride, m, v + d, dim, n_tokens, acc + d, GEMM_VECS);
    }
    for (; d < dim; d += VEC) {
        weigh_rows(p, p_stride, m, v + d, dim, n_tokens, acc + d, 1);
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

enum { NOISE_RUN = 64 };

/* The noise of NOISE_RUN ids from `first`, a multiple of 4: the loops are plain so that the
 * compiler makes vectors of them. */
static void noise_run(uint64_t seed, int32_t position, int32_t first, float *noise)
{
    uint32_t bits[4][NOISE_RUN / 4];
    for (int i = 0; i < NOISE_RUN / 4; i++) {
        struct rng_block b = rng_philox(seed, (uint32_t)position, RNG_SAMPLE,
                                        ((uint32_t)first >> 2) + (uint32_t)i, 0);
        bits[0][i] = b.v[0];
        bits[1][i] = b.v[1];
        bits[2][i] = b.v[2];
        bits[3][i] = b.v[3];
    }
    uint32_t in_order[NOISE_RUN];
    for (int i = 0; i < NOISE_RUN; i++) {
        in_order[i] = bits[i & 3][i >> 2];
    }
    for (int i = 0; i < NOISE_RUN; i++) {
        noise[i] = gumbel_noise(in_order[i]);
    }
}

static struct argmax argmax_gumbel(const float *x, int32_t n, uint64_t seed, int32_t position)
{
    struct argmax best = {-INFINITY, -1};
    float noise[NOISE_RUN];
    for (int32_t first = 0; first < n; first += NOISE_RUN) {
        int32_t end = n - first < NOISE_RUN ? n - first : NOISE_RUN;
        bool any = false;
        for (int32_t i = 0; i < end; i++) {
            any |= x[first + i] > -INFINITY;
        }
        if (!any) {
            continue;
        }
        noise_run(seed, position, first, noise);
        for (int32_t i = 0; i < end; i++) {
            float v = x[first + i] + noise[i];
            if (x[first + i] > -INFINITY && (v > best.value || best.id < 0)) {
                best = (struct argmax){v, first + i};
            }
        }
    }
    return best;
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

enum { SPIN_CHAINS = 12 };

static float spin_fma(int64_t n)
{
    vf x[SPIN_CHAINS], a = vec_set(0.999f), b = vec_set(0.001f);
    for (int j = 0; j < SPIN_CHAINS; j++) {
        x[j] = vec_set((float)j);
    }
    for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 12
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
#pragma GCC unroll 12
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
