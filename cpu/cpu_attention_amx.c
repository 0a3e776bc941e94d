// SPDX-License-Identifier: Apache-2.0
/* Attention's inner loops with AMX and AVX-512: see cpu_attention_amx.h. */
#if defined(__AMX_BF16__)

#include "cpu/cpu_attention_amx.h"

#include "cpu/cpu_amx.h"

#include <math.h>

#define INLINE static inline __attribute__((always_inline))

/* ---- products ----------------------------------------------------------------------------- */

/* Configuring the registers takes as long as 20 products, so it is done only when m has changed. */
static _Thread_local int32_t configured; // the m of the current configuration; 0: none

/* Registers 0 to 3 hold sums, 4 and 5 row operands, 6 and 7 column operands. With more than 16
 * rows, registers 2, 3 and 5 belong to the rows after the 16th. */
static void configure(int32_t m)
{
    if (m == configured) {
        return;
    }
    configured = m;
    const bool high = m > TILE_ROWS;
    const uint8_t low_rows = (uint8_t)(high ? TILE_ROWS : m);
    const uint8_t high_rows = (uint8_t)(high ? m - TILE_ROWS : m);
    tiles_configure((uint8_t[]){low_rows, low_rows, high_rows, high_rows, low_rows, high_rows,
                                TILE_ROWS, TILE_ROWS});
}

/* Denormals are flushed to zero, as in the tile products; they would also be slow. */
static _Thread_local unsigned mode;

static void begin(void)
{
    configured = 0;
    mode = _mm_getcsr();
    _mm_setcsr(mode | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
}

static void end(void)
{
    _tile_release();
    _mm_setcsr(mode);
}

INLINE void high_loads(const struct unit_product *p, const char *a, const char *b, const int panels)
{
    _tile_loadd(6, b, TILE_BYTES);
    if (panels > 1) {
        _tile_loadd(7, b + p->b_panel, TILE_BYTES);
    }
    _tile_loadd(4, a, UNIT_LINE);
    _tile_loadd(5, a + TILE_ROWS * UNIT_LINE, UNIT_LINE);
}

/* Stores sum t to `last`, unless that is NULL; loads it for the block at `c`; and adds its first
 * product. */
#define NEXT_SUM(t, rows, columns, last, c)                                                        \
    do {                                                                                           \
        if (last) {                                                                                \
            _tile_stored(t, last, c_bytes);                                                        \
        }                                                                                          \
        if (p->first) {                                                                            \
            _tile_zero(t);                                                                         \
        } else {                                                                                   \
            _tile_loadd(t, c, c_bytes);                                                            \
        }                                                                                          \
        _tile_dpbf16ps(t, rows, columns);                                                          \
    } while (0)

/* 17 to 32 rows against one or two panels. The sums stay in registers. Those of the previous block
 * are stored to `last` after the first loads of this block. */
INLINE void high_block(const struct unit_product *p, const char *b, const float *c, float *last,
                       const int panels)
{
    const int64_t c_bytes = p->c_stride * (int64_t)sizeof *c, below = TILE_ROWS * p->c_stride;
    const char *a = p->a;
    high_loads(p, a, b, panels);
    NEXT_SUM(0, 4, 6, last, c);
    NEXT_SUM(2, 5, 6, last ? last + below : NULL, c + below);
    if (panels > 1) {
        NEXT_SUM(1, 4, 7, last ? last + 16 : NULL, c + 16);
        NEXT_SUM(3, 5, 7, last ? last + below + 16 : NULL, c + below + 16);
    }
    for (int32_t step = 1; step < p->n_steps; step++) {
        a += UNIT_STEP;
        b += p->b_step;
        high_loads(p, a, b, panels);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        if (panels > 1) {
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

INLINE void high_store(const struct unit_product *p, float *c, const int panels)
{
    const int64_t c_bytes = p->c_stride * (int64_t)sizeof *c, below = TILE_ROWS * p->c_stride;
    _tile_stored(0, c, c_bytes);
    _tile_stored(2, c + below, c_bytes);
    if (panels > 1) {
        _tile_stored(1, c + 16, c_bytes);
        _tile_stored(3, c + below + 16, c_bytes);
    }
}

/* Two panels at a time. The last result is stored while the next block is loaded. */
static void high_product(const struct unit_product *p)
{
    const char *b = p->b;
    float *c = p->c, *last = NULL;
    int32_t i = 0;
    for (; i + 2 <= p->n_panels; i += 2, b += 2 * p->b_panel, c += 32) {
        high_block(p, b, c, last, 2);
        last = c;
    }
    if (last) {
        high_store(p, last, 2);
    }
    if (i < p->n_panels) {
        high_block(p, b, c, NULL, 1);
        high_store(p, c, 1);
    }
}

/* Up to 16 rows against one or four panels. */
INLINE void low_block(const struct unit_product *p, const char *b, float *c, const int panels)
{
    const char *a = p->a;
    int64_t c_bytes = p->c_stride * (int64_t)sizeof *c;
    if (p->first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, c_bytes);
        if (panels > 1) {
            _tile_loadd(1, c + 16, c_bytes);
            _tile_loadd(2, c + 32, c_bytes);
            _tile_loadd(3, c + 48, c_bytes);
        }
    }
    for (int32_t step = 0; step < p->n_steps; step++, a += UNIT_STEP, b += p->b_step) {
        _tile_loadd(4, a, UNIT_LINE);
        _tile_loadd(6, b, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        if (panels > 1) {
            _tile_loadd(7, b + p->b_panel, TILE_BYTES);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(6, b + 2 * p->b_panel, TILE_BYTES);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(7, b + 3 * p->b_panel, TILE_BYTES);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    _tile_stored(0, c, c_bytes);
    if (panels > 1) {
        _tile_stored(1, c + 16, c_bytes);
        _tile_stored(2, c + 32, c_bytes);
        _tile_stored(3, c + 48, c_bytes);
    }
}

/* Up to 16 rows, or 17 to 32. */
static void product(const struct unit_product *p)
{
    const char *b = p->b;
    float *c = p->c;
    int32_t i = 0;
    configure(p->m);
    if (p->m > TILE_ROWS) {
        high_product(p);
        return;
    }
    for (; i + 4 <= p->n_panels; i += 4, b += 4 * p->b_panel, c += 64) {
        low_block(p, b, c, 4);
    }
    for (; i < p->n_panels; i++, b += p->b_panel, c += 16) {
        low_block(p, b, c, 1);
    }
}

/* ---- operands ----------------------------------------------------------------------------- */

static __mmask16 first_lanes(int32_t n)
{
    if (n <= 0) {
        return 0;
    }
    return (__mmask16)(n >= 16 ? 0xFFFF : (1 << n) - 1);
}

static void split(const float *x, float scale, int32_t dim, char *out)
{
    const __m512 factor = _mm512_set1_ps(scale);
    for (int32_t d = 0; d < dim; d += UNIT_K, out += UNIT_STEP) {
        __m512 low = _mm512_maskz_loadu_ps(first_lanes(dim - d), x + d);
        __m512 high = _mm512_maskz_loadu_ps(first_lanes(dim - d - 16), x + d + 16);
        __m512bh both =
            _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, factor), _mm512_mul_ps(low, factor));
        _mm512_storeu_si512(out, (__m512i)both);
    }
}

/* ---- packing ------------------------------------------------------------------------------ */

static void pack_keys(const uint16_t *page, int32_t tokens, int32_t dim, char *out)
{
    const __m512i turns = by_turns();
    static const uint16_t zeros[16];
    int32_t d = 0;
    for (; d + 2 <= dim && tokens == 16; d += 2, page += 32, out += TILE_BYTES) {
        __m512i both = _mm512_loadu_si512(page);
        _mm512_storeu_si512(out, _mm512_permutexvar_epi16(turns, both));
    }
    for (; d < dim; d += 2, page += 2 * tokens, out += TILE_BYTES) {
        __m512i both = load_two(page, d + 1 < dim ? page + tokens : zeros);
        _mm512_storeu_si512(out, _mm512_permutexvar_epi16(turns, both));
    }
    for (; d % UNIT_K != 0; d += 2, out += TILE_BYTES) {
        _mm512_storeu_si512(out, _mm512_setzero_si512());
    }
}

/* Mask of the words of those keys of a pair that lie in [first, end). */
INLINE __m512i kept(int32_t key, int32_t first, int32_t end)
{
    uint32_t words = (key >= first && key < end ? 0xFFFFu : 0u) |
                     (key + 1 >= first && key + 1 < end ? 0xFFFF0000u : 0u);
    return _mm512_set1_epi32((int32_t)words);
}

static void pack_values(const uint16_t *page, int32_t first, int32_t end, int32_t n_panels,
                        char *out)
{
    const __m512i turns = by_turns();
    const int64_t stride = n_panels * 16;
    for (int32_t key = 0; key < 16; key += 2, out += TILE_BYTES) {
        const uint16_t *a = page + key * stride;
        const __m512i keep = kept(key, first, end);
        for (int32_t i = 0; i < n_panels; i++, a += 16) {
            __m512i x = _mm512_permutexvar_epi16(turns, load_two(a, a + stride));
            _mm512_storeu_si512(out + (int64_t)i * UNIT_BLOCK, _mm512_and_si512(x, keep));
        }
    }
}

static void turn_values(const uint16_t *page, int32_t tokens, int32_t first, int32_t end,
                        int32_t dim, int32_t n_panels, char *out)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i rows = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(tokens * 2));
    for (int32_t key = 0; key < 16; key += 2, out += TILE_BYTES) {
        const __m512i keep = kept(key, first, end);
        for (int32_t i = 0; i < n_panels; i++) {
            const uint16_t *from = page + (int64_t)i * 16 * tokens + key;
            __m512i x = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(),
                                                    first_lanes(dim - i * 16), rows, from, 1);
            _mm512_storeu_si512(out + (int64_t)i * UNIT_BLOCK, _mm512_and_si512(x, keep));
        }
    }
}

/* ---- softmax ------------------------------------------------------------------------------ */

/* 2^y for y <= 0, within 2 units in the last place; 0 below -125; NaN stays NaN. The polynomial
 * approximates 2^f on [0, 1) with the smallest relative error, and is exact at 0. */
INLINE __m512 exp2_of(__m512 y)
{
    __mmask16 large = _mm512_cmp_ps_mask(y, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
    __m512 f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); // y - floor(y)
    __m512 p = _mm512_set1_ps(0.0018671300495043397f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.009017030708491802f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05579991266131401f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24016444385051727f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931512951850891f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(large, p, y); // p * 2^floor(y)
}

static float highest(const float *s, int32_t n)
{
    __m512 a = _mm512_loadu_ps(s), b = _mm512_loadu_ps(s + 16), c = a, d = b;
    int32_t i = 32;
    for (; i + 64 <= n; i += 64) {
        a = _mm512_max_ps(_mm512_loadu_ps(s + i), a);
        b = _mm512_max_ps(_mm512_loadu_ps(s + i + 16), b);
        c = _mm512_max_ps(_mm512_loadu_ps(s + i + 32), c);
        d = _mm512_max_ps(_mm512_loadu_ps(s + i + 48), d);
    }
    if (i < n) {
        a = _mm512_max_ps(_mm512_loadu_ps(s + i), a);
        b = _mm512_max_ps(_mm512_loadu_ps(s + i + 16), b);
    }
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)));
}

static bool has_nan(const float *s, int32_t n)
{
    __mmask16 found = 0;
    for (int32_t i = 0; i < n; i += 16) {
        const __m512 x = _mm512_loadu_ps(s + i);
        found |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    }
    return found != 0;
}

/* 2^y, precise enough to be rounded to bf16: the relative error is at most 1e-4, and 0 at 0. */
INLINE __m512 rough_exp2(__m512 y)
{
    __m512 f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); // y - floor(y)
    __m512 p = _mm512_set1_ps(0.0770672f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.22764482f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69511682f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, y); // p * 2^floor(y)
}

INLINE __m512 soften_row(const float *s, int32_t n, char *p, float max, __m512 total)
{
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3F803F80);
    const __m512 log2_e = _mm512_set1_ps(1.44269504f);
    const __m512 offset = _mm512_mul_ps(_mm512_set1_ps(max), log2_e);
    for (int32_t i = 0; i < n; i += UNIT_K, p += UNIT_STEP) {
        __m512 low = rough_exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + i), log2_e, offset));
        __m512 high = rough_exp2(_mm512_fmsub_ps(_mm512_loadu_ps(s + i + 16), log2_e, offset));
        __m512bh both = _mm512_cvtne2ps_pbh(high, low);
        total = _mm512_dpbf16_ps(total, both, ones);
        _mm512_storeu_si512(p, (__m512i)both);
    }
    return total;
}

/* The maximum of a row that has seen no key yet is -infinity; the first scores set it. A row
 * that sees nothing but NaN gets NaN as its sum. */
static void soften(const struct unit_scores *a)
{
    const float *s = a->s;
    char *p = a->p;
    for (int32_t i = 0; i < a->m; i++, s += a->s_stride, p += UNIT_LINE) {
        __m512 total = _mm512_loadu_ps(a->sums[i]);
        if (a->max[i] == -INFINITY && a->n > 0) {
            a->max[i] = highest(s, a->n);
        }
        if (a->max[i] == -INFINITY && has_nan(s, a->n)) { // the join skips a sum of 0
            total = soften_row(s, a->n, p, 0.0f, total);
            _mm512_storeu_ps(a->sums[i], total);
        } else if (a->max[i] == -INFINITY) {
            for (int32_t k = 0; k < a->n / UNIT_K; k++) {
                _mm512_storeu_si512(p + k * UNIT_STEP, _mm512_setzero_si512());
            }
        } else {
            total = soften_row(s, a->n, p, a->max[i], total);
            _mm512_storeu_ps(a->sums[i], total);
        }
        if (a->sum) {
            a->sum[i] = _mm512_reduce_add_ps(total);
        }
    }
}

/* ---- joining ------------------------------------------------------------------------------ */

/* Products that flush small values leave zeros whose sign depends on the number of steps. Adding +0
 * makes them positive. */
INLINE __m512 settled(const float *x)
{
    return _mm512_add_ps(_mm512_loadu_ps(x), _mm512_setzero_ps());
}

/* total = total * old + chunk * new */
INLINE void join_row(float *total, const float *chunk, float old, float new, int32_t n)
{
    const __m512 o = _mm512_set1_ps(old), w = _mm512_set1_ps(new);
    for (int32_t d = 0; d < n; d += 16) {
        __m512 t = _mm512_mul_ps(_mm512_loadu_ps(total + d), o);
        _mm512_storeu_ps(total + d, _mm512_fmadd_ps(settled(chunk + d), w, t));
    }
}

/* Joins a chunk to the totals of n vectors. A vector that sees nothing in the chunk keeps its
 * total; the first chunk that it sees replaces it. */
static void join(const struct unit_join *j)
{
    const __m512 log2_e = _mm512_set1_ps(1.44269504f), none = _mm512_setzero_ps();
    for (int32_t i = 0; i < j->n; i += 16) {
        const __mmask16 lanes = first_lanes(j->n - i);
        __m512 max = _mm512_maskz_loadu_ps(lanes, j->max + i);
        __m512 sum = _mm512_maskz_loadu_ps(lanes, j->sum + i);
        __m512 chunk_max = _mm512_maskz_loadu_ps(lanes, j->chunk_max + i);
        __m512 chunk_sum = _mm512_maskz_loadu_ps(lanes, j->chunk_sum + i);
        __mmask16 is_first = _mm512_cmp_ps_mask(sum, none, _CMP_EQ_OQ);
        __mmask16 adds = _mm512_cmp_ps_mask(chunk_sum, none, _CMP_NEQ_UQ) & lanes;
        __m512 m = _mm512_max_ps(max, chunk_max);
        __m512 old = exp2_of(_mm512_mul_ps(_mm512_sub_ps(max, m), log2_e));
        __m512 new = exp2_of(_mm512_mul_ps(_mm512_sub_ps(chunk_max, m), log2_e));
        float olds[16], news[16];
        old = _mm512_mask_mov_ps(old, is_first, none);
        new = _mm512_mask_mov_ps(new, is_first, _mm512_set1_ps(1.0f));
        sum = _mm512_fmadd_ps(sum, old, _mm512_mul_ps(chunk_sum, new));
        _mm512_storeu_ps(olds, old);
        _mm512_storeu_ps(news, new);
        _mm512_mask_storeu_ps(j->max + i, adds, _mm512_mask_mov_ps(m, is_first, chunk_max));
        _mm512_mask_storeu_ps(j->sum + i, adds, sum);
        for (int32_t v = 0; v < 16; v++) {
            if (adds >> v & 1) {
                int64_t at = (int64_t)(i + v) * j->stride;
                join_row(j->total + at, j->chunk + at, olds[v], news[v], j->stride);
            }
        }
    }
}

static void put(const float *x, float factor, int32_t n, float *out)
{
    const __m512 f = _mm512_set1_ps(factor);
    for (int32_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = first_lanes(n - i);
        __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), f);
        _mm512_mask_storeu_ps(out + i, lanes, y);
    }
}

const struct matrix_unit cpu_amx_unit = {
    .begin = begin,
    .end = end,
    .product = product,
    .split = split,
    .pack_keys = pack_keys,
    .pack_values = pack_values,
    .turn_values = turn_values,
    .soften = soften,
    .join = join,
    .put = put,
};

#else
typedef int cpu_attention_amx_unused; // not for this machine
#endif
