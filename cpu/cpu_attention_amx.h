// SPDX-License-Identifier: Apache-2.0
/* The operations that attention needs from a matrix unit, as a table: bf16 products with fp32 sums
 * (AMX), packing of their operands, and the softmax between them. A row's bits do not depend on the
 * other rows: a sum processes k in steps of 32, each step adding first the even members of the
 * pairs in ascending order, then the odd ones, then both to the total. Queries and probabilities
 * are rounded to bf16 once, like the K and V in pages.
 *
 * Thread: any; products use the tile registers of their thread. */
#ifndef SLUICE_CPU_ATTENTION_AMX_H
#define SLUICE_CPU_ATTENTION_AMX_H

#include <stdbool.h>
#include <stdint.h>

/* The most rows of a product, and the most that use one tile of rows; k per step; bytes of one
 * packed step of 16 columns. */
enum { UNIT_ROWS = 32, UNIT_FEW = 16, UNIT_K = 32, UNIT_BLOCK = 1024 };

/* Operands of up to UNIT_ROWS rows are stored as [k / 32][UNIT_ROWS][32] bf16: bytes of a row, and
 * of one step. */
enum { UNIT_LINE = UNIT_K * 2, UNIT_STEP = UNIT_ROWS * UNIT_LINE };

/* A product of m rows. Operands at `a`, n_steps steps of 32. Columns at b in panels of 16, whose
 * blocks [16 pairs of k][16 columns][2] are b_step and b_panel apart. c += (first: =) a b. */
struct unit_product {
    const char *a, *b;
    int64_t b_step, b_panel;
    int32_t m, n_steps, n_panels;
    float *c;
    int64_t c_stride;
    bool first;
};

/* Turns scores of m rows and n positions (a multiple of 32) into probabilities 2^(s log2 e - max
 * log2 e), stored as operands at p. A max[i] of -infinity is replaced by the row's highest score;
 * if there is none, the probabilities are 0. sums[i] += the rounded probabilities; sum: where the
 * totals go at the end, or NULL. */
struct unit_scores {
    const float *s;
    int64_t s_stride;
    int32_t m, n;
    char *p;
    float *max, (*sums)[16];
    float *sum;
};

/* Running results of n vectors, `stride` floats apart (a multiple of 16), to which the results of a
 * chunk are joined. */
struct unit_join {
    float *total, *max, *sum;
    const float *chunk, *chunk_max, *chunk_sum;
    int32_t n, stride;
};

struct matrix_unit {
    /* begin and end enclose a thread's products. */
    void (*begin)(void);
    void (*end)(void);
    void (*product)(const struct unit_product *p);
    /* Call this between begin and end. */
    void (*soften)(const struct unit_scores *a);
    /* Both sides are sums relative to their own maximum; a sum of 0 means empty. */
    void (*join)(const struct unit_join *j);
    /* out = n values times factor */
    void (*put)(const float *x, float factor, int32_t n, float *out);
    /* dim values times scale as a row of operands, zero-padded to a multiple of 32. */
    void (*split)(const float *x, float scale, int32_t dim, char *out);
    /* Packs 16 keys of a K page [dim][tokens] into a panel of contiguous blocks. */
    void (*pack_keys)(const uint16_t *page, int32_t tokens, int32_t dim, char *out);
    /* Packs 16 keys of a V page [token][n_panels * 16]: half a block of each panel. Keys outside
     * [first, end) become zeros. */
    void (*pack_values)(const uint16_t *page, int32_t first, int32_t end, int32_t n_panels,
                        char *out);
    /* The same for V that is stored as a part of K, [dim][tokens]; tokens is even. Columns from dim
     * on also become zeros. */
    void (*turn_values)(const uint16_t *page, int32_t tokens, int32_t first, int32_t end,
                        int32_t dim, int32_t n_panels, char *out);
};

/* Callable if the processor has AMX, which cpu_dispatch.c checks. */
extern const struct matrix_unit cpu_amx_unit;

#endif
