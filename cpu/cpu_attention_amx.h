/* What attention needs of a matrix unit, as a table: products of bf16 with sums of fp32 by AMX, the
 * packing that they read, and the softmax between them. One row's bits are the same whatever
 * rows stand beside it: a sum takes 32 numbers of k at a time, each time first the pairs' even
 * members in rising order, then the odd ones, then both together to what was there.
 * An fp32 operand (queries, probabilities) becomes UNIT_TERMS numbers of bf16 whose sum, of two,
 * keeps its first 16 bits.
 *
 * Thread: any; products use the tile registers of their thread. */
#ifndef SLUICE_CPU_ATTENTION_AMX_H
#define SLUICE_CPU_ATTENTION_AMX_H

#include <stdbool.h>
#include <stdint.h>

/* Rows of one product at most, and up to which it takes one tile of them; k of one step; bytes of
 * one packed step of 16 columns. */
enum { UNIT_ROWS = 32, UNIT_FEW = 16, UNIT_K = 32, UNIT_BLOCK = 1024 };

/* A row of operands is [k / 32][UNIT_TERMS][32] bf16: as many bytes as floats with two terms. */
#ifndef UNIT_TERMS
#define UNIT_TERMS 2
#endif
enum { UNIT_STEP = UNIT_TERMS * UNIT_K * 2 };

/* A product of m rows: rows at a, a_bytes apart, of n_steps of 32; columns at b in panels of 16,
 * whose blocks [16 pairs of k][16 columns][2] lie b_step and b_panel apart. c += (first: =) a b. */
struct unit_product {
    const char *a, *b;
    int64_t a_bytes, b_step, b_panel;
    int32_t m, n_steps, n_panels;
    float *c;
    int64_t c_stride;
    bool first;
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
    /* n scores (a multiple of 32) become probabilities exp(s - max), a row of operands in their
     * place. All -infinity: zeros, and a sum of 0. */
    void (*soften)(float *s, int32_t n, float *max, float *sum);
    /* Both sides are sums relative to their own maximum; a sum of 0 is nothing at all. */
    void (*join)(const struct unit_join *j);
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
