// SPDX-License-Identifier: Apache-2.0
/* Greedy draws from whole rows, with ties and values that are not numbers: the GPU draws, reports
 * and keeps what the CPU does. */
#include "engine/base/minmax.h"
#include "test/cuda/cuda_draws.h"

enum { N_FAULTS = 9 };

/* Makes ties, NaN, infinity and rows of -infinity, at the ends of the row and within it. */
static void spoil_row(float *row, int32_t kind, int32_t used)
{
    const int32_t middle = used / 2 + 1;
    for (int32_t i = 0; i < used; i++) {
        row[i] = kind == 1 || (kind == 2 && i != middle) ? -INFINITY : row[i];
        row[i] = kind == 3 ? -fabsf(row[i]) - 1.0f : row[i];
    }
    if (kind == 3) { // zeros of both signs are equal
        row[middle] = -0.0f;
        row[used - 1] = 0.0f;
    } else if (kind == 4) {
        row[used / 3] = row[middle] = row[used - 1] = 50.0f;
    } else if (kind == 5) {
        row[used - 1] = NAN;
    } else if (kind == 6) {
        row[0] = INFINITY;
        row[middle] = -NAN;
    } else if (kind == 7) {
        row[middle] = INFINITY;
    }
}

static struct pair_tensor spoilt_logits(struct pair *p, int32_t n_rows, int32_t used, int32_t vocab,
                                        int32_t fault)
{
    struct pair_tensor t = tensor_random(p, n_rows, vocab, vocab, 3.0f);
    float *values = tensor_get(p, &t, CPU);
    for (int32_t r = 0; r < n_rows; r++) {
        float *row = values + (size_t)r * (size_t)vocab;
        spoil_row(row, (r + fault) % N_FAULTS, used);
        for (int32_t i = used; i < vocab; i++) {
            row[i] = NAN; // must not be read
        }
    }
    tensor_put(p, &t, values);
    free(values);
    return t;
}

/* Draws that are kept; one of eight is a draft with a law, and with `mixed` others are not greedy.
 * Beyond N_LANES draws, lanes have several; then each second draw of a lane scores the token that
 * was there before. */
static void kept_draws(struct test_pass *t, int32_t n, bool mixed)
{
    struct seq_spec specs[N_LANES] = {{0}};
    for (int32_t i = 0; i < n; i++) {
        specs[i % N_LANES].n_past = 20;
        specs[i % N_LANES].n_new++;
    }
    pass_of(t, specs, lesser(n, N_LANES), false, 91);
    for (int32_t i = 0; i < n; i++) {
        const int32_t lane = i % N_LANES, turn = i / N_LANES;
        const bool score = turn % 2 == 1, draft = !score && i % 8 == 5;
        t->out_rows[i] = i;
        t->draws[i] = (struct pass_draw){.out_row = i,
                                         .lane = lane,
                                         .pos = 20 + turn / 2,
                                         .n_prompt = 10,
                                         .kind = draft ? DRAW_DRAFT : DRAW_SAMPLE,
                                         .keep = !score,
                                         .logprobs = score || (mixed && i % 5 == 3),
                                         .tree_row = -1,
                                         .law = draft};
        if (score) {
            t->draws[i].kind = DRAW_SCORE;
        }
    }
    t->pass.n_out = t->pass.n_draws = n;
}

static void compare_kept(struct pair *p, const struct test_pass *t, const struct pair_tensor *x,
                         int32_t used)
{
    struct pass_results r[2];
    const int32_t n = t->pass.n_draws;
    step_begin(p);
    pass_begin(p, t);
    struct sample_args a = {.n_out = n, .n_draws = n, .n_vocab_used = used};
    BOTH(p, sample, a, a.logits = x->t[b]);
    pass_end(p);
    step_end(p, r);
    for (int32_t i = 0; i < n; i++) {
        const struct draw_result *want = &r[CPU].draws[i], *got = &r[GPU].draws[i];
        if (want->token != got->token || want->broken != got->broken) {
            CHECK_FAIL("%d draws of %d: draw %d is %d (broken: %d), not %d (%d)", n, used, i,
                       got->token, got->broken, want->token, want->broken);
        }
        CHECK_EQ(want->n_top, got->n_top);
        CHECK(want->logprob == got->logprob || fabsf(want->logprob - got->logprob) < 2e-4f);
    }
}

/* All lanes draw greedily; with `mixed` some of them have penalties. */
static void begin_lanes(struct pair *p, int32_t used, bool mixed)
{
    int32_t history[64];
    struct sampling_params s = sampling_params_default();
    s.temperature = 0.0f;
    step_begin(p);
    for (int32_t i = 0; i < N_LANES; i++) {
        for (int32_t j = 0; j < COUNT(history); j++) {
            history[j] = (7 * i + j) % used;
        }
        for (int b = 0; b < 2; b++) {
            CHECK_EQ(p->be[b]->ops->lane_tokens(p->be[b], i, 0, COUNT(history), history), OK);
        }
        s.repetition_penalty = mixed && i % 4 == 3 ? 1.5f : 1.0f;
        set_params(p, i, &s);
    }
    step_end(p, NULL);
}

static void kept_case(struct pair *p, int32_t n, int32_t vocab, int32_t used, int32_t fault,
                      bool mixed)
{
    static struct test_pass t;
    begin_lanes(p, used, mixed);
    struct pair_tensor spoilt = spoilt_logits(p, n, used, vocab, fault);
    struct pair_tensor sound = tensor_random(p, n, vocab, vocab, 3.0f);
    kept_draws(&t, n, mixed);
    compare_kept(p, &t, &spoilt, used);
    for (int32_t i = 0; i < n; i++) { // the histories are those of the CPU
        t.draws[i].kind = DRAW_SCORE;
        t.draws[i].keep = false;
    }
    compare_kept(p, &t, &sound, used);
}

/* Passes in which each lane has one draw, and others; teams of one to eight blocks. */
static void kept_cases(int32_t vocab, int32_t used, const int32_t *draws, int32_t n_draws)
{
    struct pair p;
    struct backend_limits limits = pair_limits();
    limits.vocab = vocab;
    limits.max_laws = 1;
    REQUIRE(pair_open(&p, DT_F32, false, &limits));
    for (int32_t i = 0; i < n_draws; i++) {
        kept_case(&p, draws[i], vocab, used, i, false);
        kept_case(&p, draws[i], vocab, used, i + 4, true);
    }
    for (int32_t fault = 0; fault < N_FAULTS; fault++) {
        kept_case(&p, 1, vocab, used, fault, false);
    }
    pair_close(&p);
}

TEST(greedy_draws_take_and_keep_the_best)
{
    NEED_GPU();
    static const int32_t draws[] = {2, 3, 9, 24, 25, 140, 300};
    kept_cases(1003, 1001, draws, COUNT(draws));
    kept_cases(33000, 33000, draws, 5);
    kept_cases(248320, 248319, draws, 1);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
