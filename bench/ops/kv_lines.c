// SPDX-License-Identifier: Apache-2.0
/* `sluice bench-ops --only kv`: the cost of decoding long contexts with each KV format. Each format
 * has its own set of pages, and all sets hold the same values. Attention and whole passes of one
 * dummy model alternate over the sets. */
#include "bench/ops/bench_ops.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdio.h>
#include <stdlib.h>

enum { SETS = BENCH_KV_SETS };

/* Writes block 0 of each set and copies it to all others. Untouched memory would be read from a
 * cache, since the system maps it to one page of zeros. */
static enum status fill(struct bench *b, int32_t n_blocks)
{
    struct block_copy *copies = xcalloc((size_t)n_blocks, sizeof *copies);
    for (int32_t i = 0; i < n_blocks; i++) {
        copies[i].to = i;
    }
    enum status st = OK;
    for (b->kv_set = 0; b->kv_set < SETS && st == OK; b->kv_set++) {
        st = bench_begin(b, 1, 16, 0);
        if (st == OK) {
            st = bench_forward(b);
        }
        for (int32_t i = 0; i < b->shape.n_layers && st == OK; i++) {
            st = bench_store(b, i, 16);
        }
        if (st == OK) {
            st = bench_end(b);
        }
    }
    if (st == OK) {
        st = b->ops->step_begin(b->be, 0);
    }
    if (st == OK) {
        st = b->ops->copy_blocks(b->be, n_blocks - 1, copies + 1);
    }
    if (st == OK) {
        st = b->ops->step_end(b->be);
    }
    free(copies);
    return st;
}

struct set_times {
    double attention, whole; // seconds: of attention in one layer, and of a whole pass
};

/* Measures one set: attention of all layers, then whole passes. */
static enum status time_set(struct bench *b, int32_t n_seqs, struct set_times *best)
{
    TRY(bench_begin(b, n_seqs, 1, b->context - 1));
    int64_t start = clock_now_ns();
    for (int32_t i = 0; i < b->shape.n_layers; i++) {
        TRY(bench_attention(b, i, n_seqs));
    }
    double t = (double)(clock_now_ns() - start) * 1e-9 / b->shape.n_layers;
    best->attention = lesser(t, best->attention);
    start = clock_now_ns();
    TRY(bench_forward(b));
    t = (double)(clock_now_ns() - start) * 1e-9;
    best->whole = lesser(t, best->whole);
    return bench_end(b);
}

/* Bytes per token over all layers. */
static double token_bytes(struct bench *b, enum kv_format format)
{
    const struct shape *s = &b->shape;
    const struct kv_layer layer = {.n_heads = s->n_heads,
                                   .n_kv_heads = s->n_kv_heads,
                                   .head_dim_k = s->head_dim,
                                   .head_dim_v = s->head_dim};
    const struct kv_set_desc d = {
        .n_layers = 1, .layers = &layer, .dtype = b->dtype, .format = format};
    size_t n_bytes = 0;
    b->ops->kv_bytes(b->be, &d, 16, &n_bytes);
    return (double)n_bytes / 16.0 * s->n_layers;
}

/* The sets alternate until the time is over; the best time of each counts. */
static enum status measure(struct bench *b, int32_t n_seqs)
{
    struct set_times best[SETS];
    for (int32_t i = 0; i < SETS; i++) {
        best[i] = (struct set_times){1e30, 1e30};
    }
    int64_t start = clock_now_ns();
    for (int32_t i = 0; i < 3 || clock_now_ns() - start < (int64_t)(8e9 * b->seconds); i++) {
        for (b->kv_set = 0; b->kv_set < SETS; b->kv_set++) {
            TRY(time_set(b, n_seqs, &best[b->kv_set]));
        }
    }
    for (int32_t i = 0; i < SETS; i++) {
        const struct set_times *t = &best[i];
        double bytes = token_bytes(b, bench_kv_format(i)->format);
        printf("%-6s %2d sequences of %6d: attention %9.1f us, %6.2f GB/s, %5.2f times; decode "
               "%7.2f tokens/s, %5.2f times\n",
               i > 0 ? bench_kv_format(i)->name : kv_choice_plain(b->dtype)->name, n_seqs,
               b->context, t->attention * 1e6,
               bytes * n_seqs * b->context / b->shape.n_layers / t->attention * 1e-9,
               best[0].attention / t->attention, n_seqs / t->whole, best[0].whole / t->whole);
        fflush(stdout);
    }
    return OK;
}

enum status bench_kv(struct bench *b)
{
    TRY(fill(b, b->n_blocks));
    for (int32_t n = 1; n <= b->n_lanes; n *= 4) {
        TRY(measure(b, n));
    }
    return OK;
}
