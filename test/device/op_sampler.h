// SPDX-License-Identifier: Apache-2.0
/* A backend with one row of logits, from which tests draw. Thread: the test's. */
#ifndef SLUICE_TEST_OP_SAMPLER_H
#define SLUICE_TEST_OP_SAMPLER_H

#include "test/device/op_harness.h"

struct sampler {
    struct op_rig rig;
    struct op_pass pass;
    struct pass_draw draws[64];
    int32_t out_rows[64];
    struct tensor logits;
    int32_t vocab;
};

static inline void open_sampler(struct sampler *s, const char *backend, const float *logits,
                                int32_t vocab)
{
    struct backend_limits limits = op_limits();
    memset(s, 0, sizeof *s);
    limits.vocab = vocab;
    limits.max_laws = 64;
    limits.max_masks = 4;
    s->rig = op_open(backend, DT_BF16, &limits);
    s->logits = op_tensor(&s->rig, logits, 1, vocab, vocab + 3);
    s->vocab = vocab;
}

static inline void add_draw(struct sampler *s, struct pass_draw d)
{
    s->draws[s->pass.pass.n_draws++] = d;
}

/* Runs the draws over one row of logits; the results stay valid until the next run. */
static inline const struct draw_result *run_draws(struct sampler *s)
{
    static struct pass_results results[4];
    if (s->pass.pass.n_seqs == 0) {
        op_add_seq(&s->pass, 7, 0, 1);
    }
    s->pass.pass.n_out = 1;
    s->pass.pass.out_rows = s->out_rows;
    s->pass.pass.draws = s->draws;
    op_begin(&s->rig, &s->pass);
    struct sample_args a = {
        .logits = s->logits, .n_out = 1, .n_draws = s->pass.pass.n_draws, .n_vocab_used = s->vocab};
    CHECK_EQ(s->rig.ops->sample(s->rig.be, &a), OK);
    op_end(&s->rig);
    CHECK_EQ(s->rig.ops->step_wait(s->rig.be, 0, results, 4), OK);
    CHECK_EQ(results[0].n_draws, s->pass.pass.n_draws);
    s->pass.pass.n_draws = 0;
    return results[0].draws;
}

#endif
