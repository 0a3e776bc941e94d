// SPDX-License-Identifier: Apache-2.0
/* Measurements of draws, alone and after the output head. */
#include "bench/ops/cuda_timing.h"

static enum status issue_sample(struct bench *b, const struct line *l, int32_t i)
{
    (void)i;
    const struct sample_args a = {
        .logits = b->logits, .n_out = l->n_rows, .n_draws = l->n_rows, .n_vocab_used = VOCAB};
    return b->ops->sample(b->be, &a);
}

/* Times the choice of a token: arg max, temperature alone, and top-k with top-p. */
enum status bench_draw_lines(struct bench *b)
{
    static const int32_t rows[] = {1, 8, 64, 256};
    static const char *const names[] = {"sample greedy", "sample temperature",
                                        "sample top-k and top-p"};
    for (int32_t kind = 0; kind < 3; kind++) {
        struct sampling_params p = sampling_params_default();
        p.temperature = kind == 0 ? 0.0f : 0.8f;
        p.top_p = kind == 2 ? 0.95f : 1.0f;
        p.top_k = kind == 2 ? 50 : 0;
        TRY(bench_draw_by(b, &p));
        for (size_t r = 0; r < 4; r++) {
            const struct line l = {.name = names[kind],
                                   .issue = issue_sample,
                                   .n_rows = rows[r],
                                   .bytes = 4.0 * VOCAB * rows[r]};
            TRY(bench_print_line(b, &l));
        }
    }
    return OK;
}

/* Issues the head as in a greedy pass, followed by the draws. */
static enum status issue_drawn_head(struct bench *b, const struct line *l, int32_t i)
{
    struct logit_bests bests = {.n_bands = 0};
    const struct linear_args a = {.weight = b->w_head,
                                  .x = b->h,
                                  .y = b->logits,
                                  .n_rows = l->n_rows,
                                  .head = true,
                                  .n_drawn = VOCAB,
                                  .bests = &bests};
    (void)i;
    TRY(b->ops->linear(b->be, &a));
    const struct sample_args draw = {.logits = b->logits,
                                     .n_out = l->n_rows,
                                     .n_draws = l->n_rows,
                                     .n_vocab_used = VOCAB,
                                     .bests = bests};
    return b->ops->sample(b->be, &draw);
}

/* Times the head with the draw after it, which end a decoding step. */
enum status bench_head_lines(struct bench *b, double element)
{
    static const int32_t rows[] = {1, 64, 256};
    const double head = (double)VOCAB * HIDDEN;
    struct sampling_params greedy = sampling_params_default();
    greedy.temperature = 0.0f;
    TRY(bench_draw_by(b, &greedy));
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const struct line l = {.name = "head and greedy draws",
                               .issue = issue_drawn_head,
                               .n_rows = rows[r],
                               .bytes = element * head,
                               .operations = 2.0 * head * rows[r]};
        TRY(bench_print_line(b, &l));
    }
    return OK;
}
