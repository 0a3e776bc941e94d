// SPDX-License-Identifier: Apache-2.0
/* The cost of block-quantised weights (GGUF's formats) on the CPU backend: rows times a matrix that
 * is larger than any cache, for each format and for bf16. Other programs may use the machine, so
 * formats alternate many times, and the best run of each counts. GB/s count the format's own bytes,
 * so a format that is as efficient as bf16 reaches bf16's figure.
 *
 *     blocks_bench [THREADS (1) [ROWS (1)]] */
#include "cpu/cpu.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/device/ops.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_OUT = 8192, N_IN = 4096, TURNS = 20, MAX_ROWS = 512 };

static const char *const names[] = {"bf16", "Q8_0",  "Q6_K",   "Q5_0",   "Q5_1",  "Q5_K",
                                    "Q4_0", "Q4_1",  "Q4_K",   "IQ4_NL", "MXFP4", "Q3_K",
                                    "Q2_K", "IQ3_S", "IQ2_XS", "IQ1_S",  "TQ2_0"};
enum { N_NAMES = sizeof names / sizeof names[0] };

/* A weight of each format with the same shape. */
struct scene {
    struct backend *be;
    struct weight *weights[N_NAMES];
    double bytes[N_NAMES], best[N_NAMES];
    struct tensor x, y;
};

/* Any values will do if the scales are small, but not all zeros: the system need not allocate
 * memory for pages of zeros. */
static struct weight_part make_part(const char *name, unsigned char **data, double *bytes)
{
    const struct block_format *f = block_format_find(name);
    size_t n =
        f ? (size_t)N_OUT * N_IN / (size_t)f->n * (size_t)f->n_bytes : (size_t)N_OUT * N_IN * 2;
    *data = xmalloc(n);
    for (size_t i = 0; i < n; i++) {
        (*data)[i] = (unsigned char)(i * 2654435761u >> 24 & 0x2F);
    }
    *bytes = (double)n;
    if (f) {
        return weight_part_blocks(*data, f, N_OUT, N_IN);
    }
    return weight_part_plain(*data, DT_BF16, N_OUT, N_IN, N_IN);
}

/* Opens a weight whose blocks are made-up bytes, since the values do not affect the time. */
static enum status open_weight(struct scene *s, int32_t i, struct err *err)
{
    unsigned char *data;
    struct weight_part p = make_part(names[i], &data, &s->bytes[i]);
    struct weight_desc d = {.name = names[i],
                            .kind = WEIGHT_LINEAR,
                            .dtype = DT_BF16,
                            .n_out = N_OUT,
                            .n_in = N_IN,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = &p,
                            .k_segments = 1};
    enum status st = s->be->ops->weight_open(s->be, &d, &s->weights[i], err);
    free(data);
    s->best[i] = 1e30;
    return st;
}

static enum status open_all(struct scene *s, int32_t threads, struct err *err)
{
    struct backend_options options = {.n_ranks = 1, .dtype = DT_BF16, .threads = threads};
    struct backend_limits limits = {.max_rows = MAX_ROWS,
                                    .max_out_rows = MAX_ROWS,
                                    .max_lanes = 1,
                                    .max_len = 16,
                                    .max_blocks_per_lane = 1,
                                    .n_blocks = 1,
                                    .block_tokens = 16,
                                    .vocab = 16,
                                    .hidden = N_IN,
                                    .n_steps = 1,
                                    .max_passes = 1};
    TRY(cpu_open(&options, &s->be, err));
    for (int32_t i = 0; i < N_NAMES; i++) {
        TRY(open_weight(s, i, err));
    }
    TRY(s->be->ops->setup(s->be, &limits, err));
    s->x = (struct tensor){.dtype = DT_F32, .stride = N_IN};
    s->y = (struct tensor){.dtype = DT_F32, .stride = N_OUT};
    TRY(s->be->ops->alloc(s->be, (size_t)MAX_ROWS * N_IN * sizeof(float), &s->x.mem));
    return s->be->ops->alloc(s->be, (size_t)MAX_ROWS * N_OUT * sizeof(float), &s->y.mem);
}

/* Formats alternate from run to run. */
static enum status run(struct scene *s, int32_t n_rows)
{
    for (int32_t i = 0; i < TURNS * N_NAMES; i++) {
        int32_t f = i % N_NAMES;
        struct linear_args a = {.weight = s->weights[f], .x = s->x, .y = s->y, .n_rows = n_rows};
        int64_t before = clock_now_ns();
        TRY(s->be->ops->linear(s->be, &a));
        double t = (double)(clock_now_ns() - before) * 1e-9;
        s->best[f] = lesser(t, s->best[f]);
    }
    return OK;
}

int main(int argc, char **argv)
{
    struct scene s = {0};
    struct err err = {""};
    int32_t threads = argc > 1 ? atoi(argv[1]) : 1, n_rows = argc > 2 ? atoi(argv[2]) : 1;
    if (n_rows < 1 || n_rows > MAX_ROWS) {
        n_rows = 1;
    }
    if (open_all(&s, threads, &err) != OK || run(&s, n_rows) != OK) {
        fprintf(stderr, "blocks_bench: %s\n", err.text);
        return 1;
    }
    printf("%d x %d, %d threads, %d rows: us, GB/s of the format's bytes, speed relative to bf16\n",
           N_OUT, N_IN, threads, n_rows);
    for (int32_t i = 0; i < N_NAMES; i++) {
        printf("  %-8s %10.0f %8.2f %8.2f\n", names[i], s.best[i] * 1e6,
               s.bytes[i] / s.best[i] * 1e-9, s.best[0] / s.best[i]);
    }
    s.be->ops->close(s.be);
    return 0;
}
