// SPDX-License-Identifier: Apache-2.0
/* The operations that attention needs from a matrix unit, as a table: bf16 products with fp32 sums
 * (AMX), packing of their operands, and the softmax between them. A row's bits do not depend on the
 * other rows: a sum processes k in steps of 32. Each step adds first the even members of the pairs,
 * in ascending order, then the odd ones, and then both to the total. Queries and probabilities are
 * rounded to bf16 once, like the K and V in pages.
 *
 * Thread: any; products use the tile registers of their thread. */
#ifndef SLUICE_CPU_ATTENTION_AMX_H
#define SLUICE_CPU_ATTENTION_AMX_H

#include <stdbool.h>
#include <stdint.h>

/* UNIT_ROWS: maximum rows of a product. UNIT_FEW: maximum rows that need only one tile. UNIT_K: k
 * per step. UNIT_BLOCK: bytes of one packed step of 16 columns. */
enum { UNIT_ROWS = 32, UNIT_FEW = 16, UNIT_K = 32, UNIT_BLOCK = 1024 };

/* Operands of up to UNIT_ROWS rows are stored as [k / 32][UNIT_ROWS][32] bf16. UNIT_LINE: bytes of
 * one row in a step; UNIT_STEP: bytes of one step. */
enum { UNIT_LINE = UNIT_K * 2, UNIT_STEP = UNIT_ROWS * UNIT_LINE };

/* A product of m rows: c += (first: =) a b. `a` has n_steps steps of 32 as operands. `b` has its
 * columns in panels of 16; blocks [16 pairs of k][16 columns][2] are b_step and b_panel apart. */
struct unit_product {
    const char *a, *b;
    int64_t b_step, b_panel;
    int32_t m, n_steps, n_panels;
    float *c;
    int64_t c_stride;
    bool first;
};

/* Turns the scores of m rows and n positions (a multiple of 32) into probabilities 2^(s log2 e -
 * max log2 e), stored as operands at p. If max[i] is -infinity, it is replaced by the row's highest
 * score; if there is no score, the probabilities are 0. The rounded probabilities are added to
 * sums[i]. sum: where the totals go at the end, or NULL. */
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
    /* Each of the two is a sum relative to its own maximum. A sum of 0 means that it is empty. */
    void (*join)(const struct unit_join *j);
    /* out = n values of x, times factor */
    void (*put)(const float *x, float factor, int32_t n, float *out);
    /* Stores dim values times scale as a row of operands, padded with zeros to a multiple of 32. */
    void (*split)(const float *x, float scale, int32_t dim, char *out);
    /* Packs 16 keys of a K page [dim][tokens] into a panel of contiguous blocks. */
    void (*pack_keys)(const uint16_t *page, int32_t tokens, int32_t dim, char *out);
    /* Packs 16 keys of a V page [token][n_panels * 16], which is half a block of each panel. Keys
     * outside [first, end) become zeros. */
    void (*pack_values)(const uint16_t *page, int32_t first, int32_t end, int32_t n_panels,
                        char *out);
    /* The same for V that is stored as a part of K, [dim][tokens]; tokens is even. Columns from dim
     * on become zeros, too. */
    void (*turn_values)(const uint16_t *page, int32_t tokens, int32_t first, int32_t end,
                        int32_t dim, int32_t n_panels, char *out);
};

/* May be called if the processor has AMX, which cpu_dispatch.c checks. */
extern const struct matrix_unit cpu_amx_unit;

#endif
