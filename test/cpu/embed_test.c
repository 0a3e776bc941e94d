// SPDX-License-Identifier: Apache-2.0
/* The ops around the layers, from the embedding to the logits and pooled vectors, and the
 * exponentials of logits. */
#include "test/device/op_harness.h"

/* Small ops that share one rig. */
OP_TEST(embed_gather_gate_logits_and_pool)
{
    enum { VOCAB = 77, WIDTH = 50, ROWS = 6 };
    struct backend_limits limits = op_limits();
    limits.hidden = WIDTH;
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    float *table = op_random((size_t)VOCAB * WIDTH, 1.0f), *gate = op_random(WIDTH, 0.3f);
    struct weight *embed = op_weight(&rig, WEIGHT_EMBED, DT_BF16, table, 1, VOCAB, WIDTH, NULL, 1);
    struct tensor x = op_tensor(&rig, NULL, ROWS, WIDTH, WIDTH + 1);
    struct tensor out = op_tensor(&rig, NULL, 2, WIDTH, WIDTH);
    struct op_pass *p = xcalloc(1, sizeof *p);
    int32_t out_rows[] = {1, 5}, history[] = {0, 0, 0, 0, 76, 8};
    struct pass_pool pools[] = {{2, 0, 1, true, false}, {2, 1, 1, false, true}};
    op_add_seq(p, 2, 0, ROWS);
    for (int32_t i = 0; i < ROWS; i++) {
        p->rows[i].token = i < 4 ? 10 * i + 3 : -1; // the last two tokens come from the history
    }
    p->pass.n_out = 2;
    p->pass.out_rows = out_rows;
    p->pass.n_pool = 2;
    p->pass.pool = pools;
    CHECK_EQ(rig.ops->step_begin(rig.be, 0), OK);
    rig.in_step = true;
    CHECK_EQ(rig.ops->lane_tokens(rig.be, 2, 0, ROWS, history), OK);
    op_begin(&rig, p);
    CHECK_EQ(rig.ops->embed(rig.be, &(struct embed_args){embed, x, ROWS, .scale = 1.5f}), OK);
    CHECK_EQ(rig.ops->gather(rig.be, &(struct gather_args){x, out, 2, WIDTH}), OK);
    CHECK_EQ(rig.ops->pool(rig.be, &(struct pool_args){out, 2, WIDTH}), OK);
    CHECK_EQ(rig.ops->row_gate(rig.be, &(struct row_gate_args){x, out, op_vector(&rig, gate, WIDTH),
                                                               2, WIDTH, WIDTH}),
             OK);
    CHECK_EQ(
        rig.ops->logits(rig.be, &(struct logits_args){x, x, ROWS, WIDTH, 0.25f, 0.7f, .ids = {0}}),
        OK);
    op_end(&rig);
    struct pass_results results[4];
    CHECK(rig.ops->step_done(rig.be, 0));
    CHECK_EQ(rig.ops->step_wait(rig.be, 0, results, 4), OK);
    static const int32_t tokens[] = {3, 13, 23, 33, 76, 8};
    float *logits = op_fetch(&rig, x, ROWS, WIDTH), *gated = op_fetch(&rig, out, 2, WIDTH);
    for (int32_t i = 0; i < ROWS * WIDTH; i++) {
        double e = 1.5 * (double)table[tokens[i / WIDTH] * WIDTH + i % WIDTH];
        CHECK_NEAR(logits[i], (double)0.7f * tanh(e * 0.25 / (double)0.7f), 2e-6);
    }
    for (int32_t r = 0; r < 2; r++) {
        double z = 0.0;
        for (int32_t i = 0; i < WIDTH; i++) {
            z += 1.5 * (double)table[tokens[r] * WIDTH + i] * (double)gate[i];
        }
        for (int32_t i = 0; i < WIDTH; i++) {
            double e = 1.5 * (double)table[tokens[out_rows[r]] * WIDTH + i];
            CHECK_NEAR(gated[r * WIDTH + i], e / (1.0 + exp(-z)), 1e-5);
        }
    }
    for (int32_t i = 0; i < WIDTH; i++) {
        CHECK_NEAR(results[0].pooled[WIDTH + i],
                   1.5 * ((double)table[13 * WIDTH + i] + (double)table[8 * WIDTH + i]), 1e-5);
    }
    free(logits);
    free(gated);
    free(table);
    free(gate);
    free(p);
    op_close(&rig);
}

/* From the second text of a sequence on, types are 1, if the table has such a row. */
OP_TEST(embed_adds_types)
{
    enum { VOCAB = 40, WIDTH = 36, ROWS = 9, SECOND = 3 };
    for (int32_t n_types = 1; n_types <= 2; n_types++) {
        struct backend_limits limits = op_limits();
        limits.hidden = WIDTH;
        struct op_rig rig = op_open(backend, DT_F32, &limits);
        float *table = op_random((size_t)VOCAB * WIDTH, 1.0f);
        float *types = op_random((size_t)2 * WIDTH, 1.0f);
        const struct embed_args a = {
            .table = op_weight(&rig, WEIGHT_EMBED, DT_F32, table, 1, VOCAB, WIDTH, NULL, 1),
            .x = op_tensor(&rig, NULL, ROWS, WIDTH, WIDTH + 3),
            .n_rows = ROWS,
            .scale = 1.0f,
            .types = op_weight(&rig, WEIGHT_EMBED, DT_F32, types, 1, n_types, WIDTH, NULL, 1)};
        struct op_pass *p = xcalloc(1, sizeof *p);
        op_add_seq(p, 0, 0, 4);
        op_add_seq(p, 1, 0, ROWS - 4);
        p->seqs[1].second = SECOND;
        op_begin(&rig, p);
        CHECK_EQ(rig.ops->embed(rig.be, &a), OK);
        op_end(&rig);
        float *x = op_fetch(&rig, a.x, ROWS, WIDTH);
        for (int32_t i = 0; i < ROWS * WIDTH; i++) {
            const int32_t type = n_types > 1 && i / WIDTH >= 4 + SECOND;
            CHECK_NEAR(x[i], table[WIDTH + i % WIDTH] + types[type * WIDTH + i % WIDTH], 1e-6);
        }
        free(x);
        free(table);
        free(types);
        free(p);
        op_close(&rig);
    }
}

/* Learned positions are added to the scaled embeddings: those of sequences that begin anywhere. */
OP_TEST(embed_adds_positions)
{
    enum { VOCAB = 40, WIDTH = 36, POSITIONS = 23, FIRST = 2, ROWS = 7, PAST = 14 };
    struct backend_limits limits = op_limits();
    limits.hidden = WIDTH;
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    float *table = op_random((size_t)VOCAB * WIDTH, 1.0f);
    float *positions = op_random((size_t)POSITIONS * WIDTH, 1.0f);
    const struct embed_args a = {
        .table = op_weight(&rig, WEIGHT_EMBED, DT_BF16, table, 1, VOCAB, WIDTH, NULL, 1),
        .x = op_tensor(&rig, NULL, ROWS, WIDTH, WIDTH + 3),
        .n_rows = ROWS,
        .scale = 0.5f,
        .positions =
            op_weight(&rig, WEIGHT_EMBED, DT_BF16, positions, 1, POSITIONS, WIDTH, NULL, 1),
        .first_position = FIRST};
    struct op_pass *p = xcalloc(1, sizeof *p);
    op_add_seq(p, 0, 0, 2);
    op_add_seq(p, 1, PAST + 2, ROWS - 2); // its last row has the last position
    for (int32_t i = 0; i < ROWS; i++) {
        p->rows[i].token = (11 * i + 5) % VOCAB;
    }
    op_begin(&rig, p);
    CHECK_EQ(rig.ops->embed(rig.be, &a), OK);
    op_end(&rig);
    float *x = op_fetch(&rig, a.x, ROWS, WIDTH);
    for (int32_t i = 0; i < ROWS * WIDTH; i++) {
        const struct pass_row *row = &p->rows[i / WIDTH];
        const int32_t at = (FIRST + row->pos) * WIDTH + i % WIDTH;
        CHECK_NEAR(x[i],
                   0.5 * (double)table[row->token * WIDTH + i % WIDTH] + (double)positions[at],
                   1e-6);
    }
    free(x);
    free(table);
    free(positions);
    free(p);
    op_close(&rig);
}

/* NaNs with any bits: the bits must not be mistaken for an exponent. */
OP_TEST(the_exponential_of_every_nan_is_nan)
{
    static const uint32_t nans[] = {0x7FC00000, 0x7FC00001, 0x7FFF0000, 0x7FFFFFFF, 0xFFFFFFFF};
    enum { N = 35, N_NANS = sizeof nans / sizeof nans[0] };
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    const struct cpu_kernels *k = cpu_of(rig.be)->kernels;
    for (int32_t i = 0; i < N_NANS * N; i++) {
        float x[N], capped[N];
        for (int32_t j = 0; j < N; j++) {
            x[j] = -0.25f * (float)j;
        }
        memcpy(&x[i % N], &nans[i / N], sizeof *x);
        memcpy(capped, x, sizeof x);
        CHECK(isnan(k->exp_sum(x, N, 0.0f)));
        k->softcap(capped, 30.0f, N);
        for (int32_t j = 0; j < N; j++) {
            CHECK_EQ(isnan(x[j]) != 0, j == i % N);
            CHECK_EQ(isnan(capped[j]) != 0, j == i % N);
        }
    }
    op_close(&rig);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
