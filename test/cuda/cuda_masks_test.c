// SPDX-License-Identifier: Apache-2.0
/* Masked draws over many passes give the CPU's tokens, with and without the other parameters that
 * change a draw's scores. Masks of earlier passes come again at other indices and beside new masks,
 * always at the same address. */
#include "test/cuda/cuda_pass.h"

enum { N_LANES = 24, N_MASKS = 9, TURNS = 8 };

/* Mask k of a vocabulary: the larger k, the fewer ids. */
static void write_mask(int32_t k, int32_t vocab, uint32_t *words)
{
    memset(words, 0, (size_t)mask_words(vocab) * sizeof *words);
    for (int32_t i = 0; i < vocab; i++) {
        const bool in = rng_bits(5, i, RNG_TEST, (uint32_t)k) % (1u << 2 * k) == 0;
        words[i / 32] |= (uint32_t)in << (i % 32);
    }
    words[vocab / 3 / 32] |= 1u << (vocab / 3 % 32); // at least one id
}

/* A third of the lanes has only a mask; the others also have bias and penalties, or bans. */
static void set_params(struct pair *p, int32_t lane)
{
    static const struct logit_bias bias[] = {{3, 2.5f}, {20, -1.5f}, {3, 1.0f}, {40, 8.0f}};
    static const int32_t ids[] = {7, 21, 33, 55};
    struct sampling_params s = sampling_params_default();
    s.seed = 77 * (uint64_t)(lane + 1);
    s.temperature = lane % 4 == 0 ? 0.0f : 0.8f;
    s.top_p = lane % 5 == 2 ? 0.7f : 1.0f;
    if (lane % 3 == 1) {
        s.n_bias = 4;
        s.bias = bias;
        s.repetition_penalty = lane % 2 ? 1.2f : 1.0f;
        s.frequency_penalty = lane % 2 ? 0.0f : 0.4f;
    }
    if (lane % 3 == 2) {
        s.n_stop_ids = lane % 2 ? 4 : 0;
        s.stop_ids = ids;
        s.min_tokens = 1000;
        s.n_allowed = lane % 4 == 0 ? 4 : 0;
        s.allowed = ids;
    }
    for (int b = 0; b < 2; b++) {
        CHECK_EQ(p->be[b]->ops->lane_params(p->be[b], lane, &s), OK);
    }
}

/* Every lane has a row and a draw, most draws a mask; two draws may share one. */
static void choose_masks(struct test_pass *t, int32_t turn, int32_t vocab, uint32_t *words)
{
    t->pass.n_masks = 1 + (turn * 5) % N_MASKS;
    for (int32_t i = 0; i < t->pass.n_masks; i++) {
        write_mask((i + turn) % N_MASKS, vocab, words + (size_t)i * (size_t)mask_words(vocab));
    }
    for (int32_t i = 0; i < N_LANES; i++) {
        t->draws[i].mask = (i + turn) % (t->pass.n_masks + 1);
    }
}

static void compare(const struct test_pass *t, const struct pass_results *r, int32_t turn,
                    const uint32_t *words, int32_t vocab)
{
    for (int32_t i = 0; i < N_LANES; i++) {
        const int32_t token = r[GPU].draws[i].token, index = t->draws[i].mask - 1;
        CHECK_EQ(r[CPU].draws[i].token, token);
        if (token < 0 || token >= vocab) {
            CHECK_FAIL("turn %d: draw %d is %d", turn, i, token);
        } else if (index >= 0) {
            const uint32_t *mask = words + (size_t)index * (size_t)mask_words(vocab);
            CHECK(mask[token / 32] >> (token % 32) & 1);
        }
    }
}

static void run_turns(int32_t vocab)
{
    static struct test_pass t;
    struct pair p;
    struct backend_limits limits = pair_limits();
    limits.vocab = vocab;
    limits.max_masks = N_MASKS;
    REQUIRE(pair_open(&p, DT_F32, false, &limits));
    struct seq_spec specs[N_LANES];
    for (int32_t i = 0; i < N_LANES; i++) {
        specs[i] = (struct seq_spec){60, 1, false};
    }
    pass_of(&t, specs, N_LANES, false, 77);
    for (int32_t i = 0; i < N_LANES; i++) {
        t.rows[i].token %= 60;
        t.out_rows[i] = i;
        t.draws[i] = (struct pass_draw){.out_row = i,
                                        .lane = i,
                                        .pos = 60,
                                        .n_prompt = 30,
                                        .kind = DRAW_SAMPLE,
                                        .tree_row = -1};
    }
    t.pass.n_out = t.pass.n_draws = N_LANES;
    uint32_t *words = xcalloc(N_MASKS * (size_t)mask_words(vocab), sizeof *words);
    float *values = xmalloc((size_t)N_LANES * (size_t)vocab * sizeof *values);
    struct pair_tensor logits = tensor_make(&p, N_LANES, vocab, DT_F32);
    t.pass.masks = words;
    for (int32_t turn = 0; turn < TURNS; turn++) {
        struct pass_results r[2];
        for (int32_t i = 0; i < N_LANES * vocab; i++) {
            values[i] = random_float((uint64_t)turn, i, 2.0f, DT_F32);
        }
        tensor_put(&p, &logits, values);
        choose_masks(&t, turn, vocab, words);
        step_begin(&p);
        for (int32_t i = 0; i < N_LANES && turn == 0; i++) {
            int32_t history[60];
            for (int32_t j = 0; j < 60; j++) {
                history[j] = (int32_t)(rng_bits(3, j, RNG_TEST, (uint32_t)i) % 60);
            }
            set_params(&p, i);
            for (int b = 0; b < 2; b++) {
                CHECK_EQ(p.be[b]->ops->lane_tokens(p.be[b], i, 0, 60, history), OK);
            }
        }
        pass_begin(&p, &t);
        struct sample_args a = {.n_out = N_LANES, .n_draws = N_LANES, .n_vocab_used = vocab};
        BOTH(&p, sample, a, a.logits = logits.t[b]);
        pass_end(&p);
        step_end(&p, r);
        compare(&t, r, turn, words, vocab);
    }
    free(words);
    free(values);
    pair_close(&p);
}

TEST(masks_of_earlier_passes_agree)
{
    NEED_GPU();
    run_turns(1003);
    run_turns(32000);
    run_turns(128256);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
