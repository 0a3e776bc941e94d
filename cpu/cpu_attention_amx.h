// SPDX-License-Identifier: Apache-2.0
/* What attention needs of a matrix unit, as a table: products of bf16 with sums of fp32 by AMX, the
 * packing that they read, and the softmax between them. One row's bits are the same whatever
 * rows stand beside it: a sum takes 32 numbers of k at a time, each time first the pairs' even
 * members in rising order, then the odd ones, then both together to what was there.
 * Queries and probabilities are rounded to bf16 once, as K and V are in their pages.
 *
 * Thread: any; products use the tile registers of their thread. */
#ifndef SLUICE_CPU_ATTENTION_AMX_H
#define SLUICE_CPU_ATTENTION_AMX_H

#include <stdbool.h>
#include <stdint.h>

/* Rows of one product at most, and up to which it takes one tile of them; k of one step; bytes of
 * one packed step of 16 columns. */
enum { UNIT_ROWS = 32, UNIT_FEW = 16, UNIT_K = 32, UNIT_BLOCK = 1024 };

/* Operands of up to UNIT_ROWS rows lie as [k / 32][UNIT_ROWS][32] bf16: bytes of a row and of one
 * step. */
enum { UNIT_LINE = UNIT_K * 2, UNIT_STEP = UNIT_ROWS * UNIT_LINE };

/* A product of m rows: operands at a, of n_steps of 32; columns at b in panels of 16, whose blocks
 * [16 pairs of k][16 columns][2] lie b_step and b_panel apart. c += (first: =) a b. */
struct unit_product {
    const char *a, *b;
    int64_t b_step, b_panel;
    int32_t m, n_steps, n_panels;
    float *c;
    int64_t c_stride;
    bool first;
};

/* Scores of m rows and n positions (a multiple of 32), which become probabilities 2^(s log2 e - max
 * log2 e): operands at p. max[i] of -infinity becomes the highest of the row's; if that is none,
 * they are zeros. sums[i] += the probabilities as rounded; sum: NULL, or where those go in the end.
 */
struct unit_scores {
    const float *s;
    int64_t s_stride;
    int32_t m, n;
    char *p;
    float *max, (*sums)[16];
    float *sum;
};

/* Running results of n vectors, `stride` (a multiple of 16) floats apart, that a chunk's join. */
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
    /* Between begin and end. */
    void (*soften)(const struct unit_scores *a);
    /* Both sides are sums relative to their own maximum; a sum of 0 is nothing at all. */
    void (*join)(const struct unit_join *j);
    /* out = n numbers times factor */
    void (*put)(const float *x, float factor, int32_t n, float *out);
    /* dim numbers times scale, as a row of operands; zeros up to a multiple of 32. */
    void (*split)(const float *x, float scale, int32_t dim, char *out);
    /* 16 keys of a page of K, [dim][tokens], as a panel: blocks that follow each other. */
    void (*pack_keys)(const uint16_t *page, int32_t tokens, int32_t dim, char *out);
    /* 16 keys of a page of V, [token][n_panels * 16]: half a block of each panel. Zeros for keys
     * outside [first, end). */
    void (*pack_values)(const uint16_t *page, int32_t first, int32_t end, int32_t n_panels,
                        char *out);
    /* The same where V lies in K, [dim][tokens]; zeros also beyond dim. tokens is even. */
    void (*turn_values)(const uint16_t *page, int32_t tokens, int32_t first, int32_t end,
                        int32_t dim, int32_t n_panels, char *out);
};

/* Callable where the processor has AMX (cpu_dispatch.c asks). */
extern const struct matrix_unit cpu_amx_unit;

#endif
