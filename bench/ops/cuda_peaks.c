// SPDX-License-Identifier: Apache-2.0
/* The reference rates: those of a large copy and of a large product. */
#include "bench/ops/cuda_timing.h"
#include "engine/base/clock.h"
#include "engine/base/minmax.h"

#include <stdio.h>

/* Copies one half of the pool to the other. Both the bytes read and the bytes written count. */
static enum status issue_copy(struct bench *b, const struct line *l, int32_t i)
{
    static struct block_copy copies[N_BLOCKS / 2];
    (void)i;
    for (int32_t c = 0; c < l->n_out; c++) {
        copies[c] = (struct block_copy){c, N_BLOCKS / 2 + c};
    }
    return b->ops->copy_blocks(b->be, l->n_out, copies);
}

/* Copies cannot be captured, so they are timed outside of passes, many blocks at a time. */
static enum status measure_copy(struct bench *b)
{
    const struct line l = {.n_out = N_BLOCKS / 2};
    double best = 0;
    const double bytes = 2.0 * l.n_out * BLOCK * QKV / 3 * LAYERS * (double)dtype_bytes(b->dtype);
    for (int32_t r = 0; r < REPEATS; r++) {
        struct pass_results results[4];
        const int64_t start = clock_now_ns();
        TRY(b->ops->step_begin(b->be, 0));
        for (int32_t i = 0; i < 4; i++) {
            TRY(issue_copy(b, &l, i));
        }
        TRY(b->ops->step_end(b->be));
        TRY(b->ops->step_wait(b->be, 0, results, 4));
        const double rate = 4 * bytes / ((double)(clock_now_ns() - start) * 1e-9);
        best = greater(rate, best);
    }
    b->copy_peak = best;
    printf("%-34s %13s %8.0f GB/s\n", "copy of KV blocks (peak)", "", best * 1e-9);
    return OK;
}

/* Times cuBLASLt's best case: a large square product in the pass's own type. */
static enum status measure_product(struct bench *b)
{
    const struct weight *w = b->w_square;
    struct tensor x = b->mid, y = b->mid;
    x.stride = y.stride = 8192;
    y.mem = dmem_at(y.mem, (size_t)ROWS * 8192 * dtype_bytes(y.dtype));
    const struct line l = {.name = "product 8192 x 8192 x",
                           .issue = bench_issue_linear,
                           .n_rows = ROWS,
                           .weight = &w,
                           .from = x,
                           .to = y,
                           .n_out = 8192,
                           .n_in = 8192,
                           .shape = PREFILL,
                           .operations = 2.0 * ROWS * 8192 * 8192};
    double us;
    TRY(bench_run_line(b, &l, &us));
    b->product_peak = l.operations / us * 1e6;
    printf("%-34s %10.2f us %13s %8.1f TFLOP/s\n", "product 8192^3 (peak)", us, "",
           b->product_peak * 1e-12);
    return OK;
}

enum status bench_peak_lines(struct bench *b)
{
    TRY(measure_copy(b));
    return measure_product(b);
}
