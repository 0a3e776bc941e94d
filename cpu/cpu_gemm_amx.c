// SPDX-License-Identifier: Apache-2.0
/* Products with bf16 weights on AMX. A packed tile has the layout of a B register, 16 pairs of
 * inputs by 16 outputs. One row uses the same instruction as many rows, so its bits are the
 * same. */
#if defined(__AMX_BF16__)

#include "cpu/cpu_gemm_amx.h"
#include "engine/base/minmax.h"

#include "cpu/cpu_amx.h"

/* Registers 0 to 3 hold sums, 4 and 5 activations (with few rows, 5 holds a weight), 6 and 7
 * weights. */
static void configure(int32_t rows_a, int32_t rows_b, bool few)
{
    const uint8_t a = (uint8_t)rows_a, b = (uint8_t)rows_b;
    const uint8_t sums = few ? a : b, more = few ? TILE_ROWS : b;
    tiles_configure((uint8_t[]){a, a, sums, sums, a, more, TILE_ROWS, TILE_ROWS});
}

/* Up to 16 rows against four panels: each weight is read once. */
static void four_panels(const uint16_t *a, int64_t a_bytes, const char *w, int64_t w_step,
                        int64_t k, float *c, bool first)
{
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, TILE * sizeof *c);
        _tile_loadd(1, c + PANEL, TILE * sizeof *c);
        _tile_loadd(2, c + 2 * PANEL, TILE * sizeof *c);
        _tile_loadd(3, c + 3 * PANEL, TILE * sizeof *c);
    }
    for (int64_t x = 0; x < k; x += K_UNIT, w += w_step) {
        for (int64_t line = 0; line < w_step; line += 64) {
            __builtin_prefetch(w + 8192 + line);
        }
        _tile_loadd(4, a + x, a_bytes);
        _tile_loadd(5, w, PAIR_BYTES);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, w + PANEL_BYTES, PAIR_BYTES);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, w + 2 * PANEL_BYTES, PAIR_BYTES);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(6, w + 3 * PANEL_BYTES, PAIR_BYTES);
        _tile_dpbf16ps(3, 4, 6);
    }
    _tile_stored(0, c, TILE * sizeof *c);
    _tile_stored(1, c + PANEL, TILE * sizeof *c);
    _tile_stored(2, c + 2 * PANEL, TILE * sizeof *c);
    _tile_stored(3, c + 3 * PANEL, TILE * sizeof *c);
}

/* Up to 16 rows against one panel. */
static void one_panel(const uint16_t *a, int64_t a_bytes, const char *w, int64_t w_step, int64_t k,
                      float *c, bool first)
{
    if (first) {
        _tile_zero(0);
    } else {
        _tile_loadd(0, c, TILE * sizeof *c);
    }
    for (int64_t x = 0; x < k; x += K_UNIT, w += w_step) {
        _tile_loadd(4, a + x, a_bytes);
        _tile_loadd(6, w, PAIR_BYTES);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, c, TILE * sizeof *c);
}

/* 17 to 32 rows (the second 16 begin at a2 and c2) against two panels. */
static void two_by_two(const uint16_t *a, const uint16_t *a2, int64_t a_bytes, const char *w,
                       int64_t w_step, int64_t k, float *c, float *c2, bool first)
{
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, TILE * sizeof *c);
        _tile_loadd(1, c + PANEL, TILE * sizeof *c);
        _tile_loadd(2, c2, TILE * sizeof *c);
        _tile_loadd(3, c2 + PANEL, TILE * sizeof *c);
    }
    for (int64_t x = 0; x < k; x += K_UNIT, w += w_step) {
        _tile_loadd(4, a + x, a_bytes);
        _tile_loadd(6, w, PAIR_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w + PANEL_BYTES, PAIR_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a2 + x, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, TILE * sizeof *c);
    _tile_stored(1, c + PANEL, TILE * sizeof *c);
    _tile_stored(2, c2, TILE * sizeof *c);
    _tile_stored(3, c2 + PANEL, TILE * sizeof *c);
}

/* Up to 32 rows at a time, in two tiles of sums per panel. The tile configuration depends on the
 * number of rows and is loaded only when that changes. */
void cpu_gemm_bf16_amx(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                       int64_t k, float *c, bool first)
{
    const uint16_t *row = a;
    const char *weights = w;
    int64_t a_bytes = a_stride * 2, w_step = (int64_t)panels * PANEL_BYTES;
    int32_t configured = 0; // number of rows of the current configuration
    while (m > 0) {
        int32_t n = lesser(m, 2 * TILE_ROWS);
        bool few = n <= TILE_ROWS || panels == 1;
        if (few) {
            n = lesser(n, TILE_ROWS);
        }
        if (configured != n) {
            configure(lesser(n, TILE_ROWS), n - TILE_ROWS, few);
            configured = n;
        }
        if (few && panels == MAX_PANELS) {
            four_panels(row, a_bytes, weights, w_step, k, c, first);
        } else if (few) {
            for (int32_t p = 0; p < panels; p++) {
                one_panel(row, a_bytes, weights + p * PANEL_BYTES, w_step, k, c + p * PANEL, first);
            }
        } else {
            for (int32_t p = 0; p < panels; p += 2) {
                two_by_two(row, row + TILE_ROWS * a_stride, a_bytes, weights + p * PANEL_BYTES,
                           w_step, k, c + p * PANEL, c + TILE_ROWS * TILE + p * PANEL, first);
            }
        }
        row += n * a_stride;
        c += (int64_t)n * TILE;
        m -= n;
    }
    _tile_release();
}

/* ---- blocks ------------------------------------------------------------------------------- */

#define INLINE static inline __attribute__((always_inline))

/* One step of a block of 3 tiles. Registers 0 to 2 hold the sums of the first panel, 3 to 5 those
 * of the second; 6 holds rows and 7 weights. (A block of two tiles uses 2 and 5 for rows as well; a
 * block of one tile 1, 2, 4 and 5.) */
INLINE void step_3(const char *a, int64_t tile, const char *w)
{
    _tile_loadd(7, w, PAIR_BYTES);
    _tile_loadd(6, a, TILE_BYTES);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, a + tile, TILE_BYTES);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(6, a + 2 * tile, TILE_BYTES);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(7, w + PANEL_BYTES, PAIR_BYTES);
    _tile_dpbf16ps(5, 6, 7);
    _tile_loadd(6, a + tile, TILE_BYTES);
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(6, a, TILE_BYTES);
    _tile_dpbf16ps(3, 6, 7);
}

/* Two tiles of rows by two panels of weights. Each is loaded only once. */
INLINE void step_2(const char *a, int64_t tile, const char *w)
{
    _tile_loadd(2, a, TILE_BYTES);
    _tile_loadd(6, w, PAIR_BYTES);
    _tile_dpbf16ps(0, 2, 6);
    _tile_loadd(7, w + PANEL_BYTES, PAIR_BYTES);
    _tile_dpbf16ps(3, 2, 7);
    _tile_loadd(5, a + tile, TILE_BYTES);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(4, 5, 7);
}

INLINE void step_1(const char *a, const char *w)
{
    _tile_loadd(2, a, TILE_BYTES);
    _tile_loadd(6, w, PAIR_BYTES);
    _tile_dpbf16ps(0, 2, 6);
    _tile_loadd(7, w + PANEL_BYTES, PAIR_BYTES);
    _tile_dpbf16ps(3, 2, 7);
}

/* The sums of earlier parts of K are continued; for the first part they begin at zero. */
INLINE void begin_sums(const float *c, bool first, const int tiles)
{
    enum { FLOATS = TILE_ROWS * PANEL };
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        _tile_zero(4);
        _tile_zero(5);
        return;
    }
    _tile_loadd(0, c, TILE_BYTES);
    _tile_loadd(3, c + tiles * FLOATS, TILE_BYTES);
    if (tiles > 1) {
        _tile_loadd(1, c + FLOATS, TILE_BYTES);
        _tile_loadd(4, c + (tiles + 1) * FLOATS, TILE_BYTES);
    }
    if (tiles > 2) {
        _tile_loadd(2, c + 2 * FLOATS, TILE_BYTES);
        _tile_loadd(5, c + (tiles + 2) * FLOATS, TILE_BYTES);
    }
}

INLINE void end_sums(float *c, const int tiles)
{
    enum { FLOATS = TILE_ROWS * PANEL };
    _tile_stored(0, c, TILE_BYTES);
    _tile_stored(3, c + tiles * FLOATS, TILE_BYTES);
    if (tiles > 1) {
        _tile_stored(1, c + FLOATS, TILE_BYTES);
        _tile_stored(4, c + (tiles + 1) * FLOATS, TILE_BYTES);
    }
    if (tiles > 2) {
        _tile_stored(2, c + 2 * FLOATS, TILE_BYTES);
        _tile_stored(5, c + (tiles + 2) * FLOATS, TILE_BYTES);
    }
}

/* Side work is spread evenly over the steps, so that its slow loads and stores delay the tile loads
 * as little as possible. */
INLINE void block(const struct block_product *p, const int tiles)
{
    const int64_t steps = p->k / K_UNIT;
    const int64_t lines = (p->next_bytes + 64 * steps - 1) / (64 * steps) * 64;
    const int32_t calls = (int32_t)((p->n_aside + steps - 1) / steps);
    const char *a = p->a, *w = p->w, *next = p->next, *next_end = p->next + p->next_bytes;
    /* In memory, the next block's sums so far follow those of this block. */
    const char *sums = (const char *)(p->c + tiles * TILE_ROWS * BLOCK_N), *sums_end = sums;
    const int64_t sum_lines = (tiles * TILE_ROWS * BLOCK_N / 16 + steps - 1) / steps * 64;
    if (!p->first) {
        sums_end += tiles * TILE_ROWS * BLOCK_N * sizeof *p->c;
    }
    int32_t called = 0;
    begin_sums(p->c, p->first, tiles);
    for (int64_t s = 0; s < steps; s++, a += TILE_ROWS * TILE_BYTES, w += p->w_step) {
        if (tiles == 3) {
            step_3(a, p->a_tile, w);
        } else if (tiles == 2) {
            step_2(a, p->a_tile, w);
        } else {
            step_1(a, w);
        }
        for (const char *end = next + lines; next < end && next < next_end; next += 64) {
            _mm_prefetch(next, _MM_HINT_T1);
        }
        for (const char *end = sums + sum_lines; sums < end && sums < sums_end; sums += 64) {
            _mm_prefetch(sums, _MM_HINT_T0);
        }
        for (int32_t i = 0; i < calls && called < p->n_aside; i++) {
            p->aside(p->arg, called++);
        }
    }
    end_sums(p->c, tiles);
}

static void blocks_begin(void)
{
    configure(TILE_ROWS, TILE_ROWS, false);
}

/* In each branch the number of tiles is a constant, so that the sums stay in registers. */
static void blocks_product(const struct block_product *p)
{
    switch (p->n_tiles) {
    case 1: block(p, 1); break;
    case 2: block(p, 2); break;
    default: block(p, 3); break;
    }
}

static void blocks_end(void)
{
    _tile_release();
    _mm_sfence();
}

/* Bypasses the cache, because the result is not read again soon. This requires aligned lines. */
static void blocks_put(const float *a, const float *b, float *y)
{
    __m512 low = _mm512_loadu_ps(a), high = _mm512_loadu_ps(b);
    if ((uintptr_t)y % 64 == 0) {
        _mm512_stream_ps(y, low);
        _mm512_stream_ps(y + PANEL, high);
        return;
    }
    _mm512_storeu_ps(y, low);
    _mm512_storeu_ps(y + PANEL, high);
}

static void blocks_put_rounded(const float *a, const float *b, char *to)
{
    __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(b), _mm512_loadu_ps(a));
    _mm512_stream_si512((void *)to, (__m512i)both);
}

const struct block_unit cpu_amx_blocks = {blocks_begin, blocks_product, blocks_end, blocks_put,
                                          blocks_put_rounded};

/* Four independent products in turn keep the unit busy. */
float cpu_spin_amx(int64_t n)
{
    float c[TILE_ROWS * PANEL];
    configure(TILE_ROWS, TILE_ROWS, false);
    for (int64_t i = 0; i < n; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, PANEL * sizeof *c);
    _tile_release();
    return c[0];
}

#else
typedef int cpu_gemm_amx_unused; // not for this machine
#endif
