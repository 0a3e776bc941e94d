// SPDX-License-Identifier: Apache-2.0
/* Times an op through the backend's table: a pass that runs the op many times is captured and
 * replayed. The time of an empty pass is subtracted. */
#include "bench/ops/cuda_timing.h"
#include "engine/base/clock.h"
#include "engine/base/minmax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Gives each lane blocks that are scattered over the pool, as in a server. With `shared`, groups of
 * 16 lanes have all but the last block in common. */
enum status bench_give_blocks(struct bench *b, int32_t n_lanes, int32_t n_blocks, bool shared)
{
    int32_t ids[LANE_BLOCKS];
    for (int32_t lane = 0; lane < n_lanes; lane++) {
        for (int32_t i = 0; i < n_blocks; i++) {
            const bool common = shared && i < n_blocks - 1;
            if (common) {
                ids[i] = lane / 16 * n_blocks + i;
            } else {
                ids[i] = (lane * n_blocks + i) * 7 % N_BLOCKS;
            }
        }
        TRY(b->ops->lane_blocks(b->be, lane, 0, n_blocks, ids));
    }
    return OK;
}

/* Sets the same parameters for all lanes. */
enum status bench_draw_by(struct bench *b, const struct sampling_params *params)
{
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 0));
    for (int32_t i = 0; i < LANES; i++) {
        TRY(b->ops->lane_params(b->be, i, params));
    }
    TRY(b->ops->step_end(b->be));
    return b->ops->step_wait(b->be, 0, results, 4);
}

/* Makes a pass with the line's rows: one per sequence, or all in one sequence (PREFILL). */
void bench_make_pass(struct bench *b, const struct line *l)
{
    struct pass *p = &b->pass;
    memset(p, 0, sizeof *p);
    p->model = b->next_model++;
    p->kv_set = l->kv_set;
    p->n_rows = l->n_rows;
    p->n_seqs = l->shape == PREFILL ? 1 : l->n_rows;
    for (int32_t i = 0; i < l->n_rows; i++) {
        const int32_t lane = l->shape == PREFILL ? 0 : i;
        const int32_t pos = l->context + (l->shape == PREFILL ? i : 0);
        b->rows[i] = (struct pass_row){lane % LANES, 17 * i % VOCAB, pos, pos};
        if (i < p->n_seqs) {
            b->seqs[i] =
                (struct pass_seq){.lane = lane % LANES,
                                  .first_row = i,
                                  .n_rows = l->shape == PREFILL ? l->n_rows : 1,
                                  .n_past = l->context,
                                  .adapter = l->n_adapters > 0 ? 1 + i % l->n_adapters : 0};
        }
    }
    if (l->shape == SHARED) {
        for (int32_t i = 0; i < l->n_rows; i += 16) {
            b->groups[p->n_groups++] = (struct pass_group){i, 16, l->context / BLOCK};
        }
    }
    p->n_out = p->n_draws = lesser(l->n_rows, OUT_ROWS);
    for (int32_t i = 0; i < p->n_out; i++) {
        b->out_rows[i] = i;
        b->draws[i] =
            (struct pass_draw){.out_row = i, .lane = i, .pos = l->context, .tree_row = -1};
    }
    p->rows = b->rows;
    p->seqs = b->seqs;
    p->groups = b->groups;
    p->out_rows = b->out_rows;
    p->draws = b->draws;
    p->n_pool = l->pools ? p->n_out : 0;
    for (int32_t i = 0; i < p->n_pool; i++) {
        b->pool[i] = (struct pass_pool){
            .lane = i, .first_out = i, .n_out = 1, .start = true, .finish = true};
    }
    p->pool = b->pool;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median time in microseconds of a pass that runs the op n times. */
static enum status time_pass(struct bench *b, const struct line *l, int32_t n, double *us)
{
    double all[REPEATS];
    // The first passes are not captured yet, so they do not count.
    for (int32_t r = -3; r < REPEATS; r++) {
        struct pass_shape shape;
        struct pass_results results[4];
        const int64_t start = clock_now_ns();
        TRY(b->ops->step_begin(b->be, 0));
        TRY(b->ops->pass_begin(b->be, &b->pass, &shape));
        for (int32_t i = 0; shape.issue && i < n; i++) {
            TRY(l->issue(b, l, i));
        }
        TRY(b->ops->pass_end(b->be));
        TRY(b->ops->step_end(b->be));
        TRY(b->ops->step_wait(b->be, 0, results, 4));
        if (r >= 0) {
            all[r] = (double)(clock_now_ns() - start) * 1e-3;
        }
    }
    qsort(all, REPEATS, sizeof all[0], compare_doubles);
    *us = all[REPEATS / 2];
    return OK;
}

/* Runs the line's op many times in one captured pass. The time of an empty pass is subtracted, so
 * that launching the pass itself does not count. */
enum status bench_run_line(struct bench *b, const struct line *l, double *us)
{
    struct pass_results results[4];
    TRY(b->ops->step_begin(b->be, 1));
    const int32_t most_lanes = l->shape == PREFILL ? 1 : LANES;
    const int32_t n_lanes = lesser(l->n_rows, most_lanes);
    const int32_t n_tokens = l->context + (l->shape == PREFILL ? l->n_rows : 1);
    if (n_tokens <= LANE_BLOCKS * BLOCK) {
        TRY(bench_give_blocks(b, n_lanes, (n_tokens + BLOCK - 1) / BLOCK, l->shape == SHARED));
    }
    TRY(b->ops->step_end(b->be));
    TRY(b->ops->step_wait(b->be, 1, results, 4));
    double once, many, empty;
    bench_make_pass(b, l);
    TRY(time_pass(b, l, 0, &empty));
    b->pass.model = b->next_model++;
    TRY(time_pass(b, l, 1, &once));
    const double estimate = once > empty ? once - empty : 1.0;
    int32_t n = (int32_t)(20000.0 / estimate);
    if (n < 4) {
        n = 4;
    } else if (n > 64) {
        n = 64;
    }
    b->pass.model = b->next_model++;
    TRY(time_pass(b, l, n, &many));
    *us = (many - empty) / n;
    return OK;
}

/* `only` selects lines by the text that they would print. */
enum status bench_print_line(struct bench *b, const struct line *l)
{
    char what[80];
    snprintf(what, sizeof what, "%s %d", l->name, l->n_rows);
    if (l->context > 0) {
        snprintf(what, sizeof what, "%s %d at %d", l->name, l->n_rows, l->context);
    }
    if (b->only && !strstr(what, b->only)) {
        return OK;
    }
    double us;
    TRY(bench_run_line(b, l, &us));
    const double bandwidth = l->bytes / us * 1e6, rate = l->operations / us * 1e6;
    const double share_bytes = b->copy_peak > 0 ? bandwidth / b->copy_peak : 0;
    const double share_rate = b->product_peak > 0 ? rate / b->product_peak : 0;
    printf("%-34s %10.2f us %8.0f GB/s %8.1f TFLOP/s %5.0f %%\n", what, us, bandwidth * 1e-9,
           rate * 1e-12, 100 * greater(share_bytes, share_rate));
    fflush(stdout);
    return OK;
}
