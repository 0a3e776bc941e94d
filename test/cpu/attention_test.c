// SPDX-License-Identifier: Apache-2.0
// test/run: long
/* Stores and attention together: K and V are written to pages by each op that stores, and the
 * output of each row equals a naive softmax over the keys that it sees. */
#include "test/cpu/attention_world.h"

/* The rows of a prompt after the first 530: they end beyond every window and chunk. The scalar
 * table, which takes most of the time, gets only as many rows as that needs, except at night. */
static int32_t rest_of_prompt(const char *backend, const struct geometry *g)
{
    if (check_nightly() || strcmp(backend, "scalar") != 0) {
        return 600;
    }
    return g->window > 0 || g->chunk > 0 ? 200 : 20;
}

/* A long prompt, a new lane, decoding rows and trees together. */
static void try_geometry(const char *backend, const struct geometry *g,
                         const struct storage *storage)
{
    const int32_t rest = rest_of_prompt(backend, g);
    struct world *w = xcalloc(1, sizeof *w);
    open_world(w, backend, g, storage);
    op_add_seq(&w->pass, 0, 0, 530); // a prefill over more than one chunk of keys
    op_add_seq(&w->pass, 1, 0, 1);
    op_add_seq(&w->pass, 2, 0, 37);
    check_pass(w, 29);
    op_add_seq(&w->pass, 1, 1, 1); // mixed: a decoding row, a chunk of a prompt, drafts
    op_add_seq(&w->pass, 0, 530, rest);
    op_add_seq(&w->pass, 2, 37, 5);
    check_pass(w, 61);
    op_add_seq(&w->pass, 0, 530 + rest, 1);
    add_tree(w, 2, 42, 90);
    op_add_seq(&w->pass, 1, 2, 1);
    check_pass(w, 7);
    close_world(w);
    free(w);
}

/* Columns: heads, KV heads, width, block, window, soft cap, sinks, dtype, width of MLA's
 * values, steep, chunk. */
OP_TEST(attention_equals_a_naive_softmax)
{
    static const struct geometry cases[] = {
        {8, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
        {4, 4, 32, 16, 0, 0.0f, false, DT_F32, 0, false, 0},
        {6, 2, 80, 16, 100, 0.0f, true, DT_BF16, 0, false, 0},
        {3, 1, 20, 5, 33, 30.0f, false, DT_F32, 0, false, 0},
        {4, 2, 128, 32, 0, 50.0f, true, DT_F16, 0, false, 0},
        {2, 1, 96, 48, 700, 0.0f, true, DT_BF16, 0, false, 0},
        {3, 3, 40, 16, 600, 20.0f, false, DT_BF16, 0, false, 0},
        {1, 1, 7, 1, 3, 0.0f, false, DT_F32, 0, false, 0},
        {18, 1, 72, 16, 0, 0.0f, false, DT_BF16, 56, false, 0},
        {5, 1, 40, 8, 70, 0.0f, true, DT_BF16, 20, false, 0},
        {3, 1, 72, 16, 40, 0.0f, false, DT_F32, 56, false, 0},
        {4, 1, 24, 1, 0, 0.0f, false, DT_F32, 16, false, 0},
        {4, 1, 64, 16, 0, 0.0f, false, DT_BF16, 0, true, 0},
        {4, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 32},
        {3, 1, 20, 5, 0, 30.0f, false, DT_F32, 0, false, 37},
        {4, 2, 64, 16, 50, 0.0f, false, DT_BF16, 0, false, 700},
        {2, 1, 112, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
        {2, 2, 192, 16, 40, 0.0f, false, DT_BF16, 0, false, 0},
        {2, 1, 256, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
        {4, 1, 512, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        try_geometry(backend, &cases[i], &plain);
    }
}

/* The rows of an encoder see later ones, too; its windows reach both ways. */
OP_TEST(rows_of_encoders_see_each_other)
{
    static const struct geometry cases[] = {
        {4, 4, 32, 16, 0, 0.0f, false, DT_F32, 0, false, 0},
        {4, 4, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
        {4, 4, 64, 16, 65, 0.0f, false, DT_BF16, 0, false, 0},
        {8, 2, 80, 16, 9, 0.0f, true, DT_BF16, 0, false, 0},
        {3, 1, 20, 5, 33, 30.0f, false, DT_F32, 0, false, 0},
        {2, 1, 96, 48, 1, 0.0f, false, DT_F16, 0, false, 0},
        {3, 1, 256, 16, 257, 0.0f, false, DT_BF16, 0, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int32_t j = -1; j < N_CODED; j++) {
            struct world *w = xcalloc(1, sizeof *w);
            open_world(w, backend, &cases[i], j < 0 ? &plain : &coded[j]);
            w->pass.pass.bidirectional = true;
            op_add_seq(&w->pass, 0, 0, 1100); // over more than two chunks of keys
            op_add_seq(&w->pass, 1, 0, 1);
            op_add_seq(&w->pass, 2, 0, 37);
            op_add_seq(&w->pass, 3, 0, 64);
            check_pass(w, 31);
            close_world(w);
            free(w);
        }
    }
}

/* The reference uses the decoded numbers, so the tolerance is that of plain numbers. */
OP_TEST(attention_reads_codes_as_they_were_stored)
{
    static const struct geometry cases[] = {
        {8, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
        {6, 2, 80, 16, 100, 0.0f, true, DT_BF16, 0, false, 0},
        {3, 1, 20, 5, 33, 30.0f, false, DT_F32, 0, false, 0},
        {4, 2, 128, 32, 0, 50.0f, true, DT_F16, 0, false, 0},
        {3, 3, 40, 48, 600, 0.0f, true, DT_F32, 0, false, 0},
        {1, 1, 7, 1, 3, 0.0f, false, DT_F32, 0, false, 0},
        {18, 1, 72, 16, 0, 0.0f, false, DT_BF16, 56, false, 0},
        {5, 1, 40, 8, 70, 0.0f, true, DT_F32, 20, false, 0},
        {4, 1, 64, 16, 0, 0.0f, false, DT_BF16, 0, true, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int32_t j = 0; j < N_CODED; j++) {
            if (check_nightly() || (i + (size_t)j) % 3 == 0) {
                try_geometry(backend, &cases[i], &coded[j]);
            }
        }
    }
}

/* A NaN or infinity in a query makes the output of that query NaN and no other, whatever
 * instructions multiply the codes.
 */
static void check_invalid_query(const char *backend, const struct storage *storage, float invalid)
{
    const struct geometry g = {4, 1, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0};
    enum { ROW = 2, HEAD = 1, N = 5 };
    struct world *w = xcalloc(1, sizeof *w);
    open_world(w, backend, &g, storage);
    const size_t width = (size_t)(g.n_heads + 2 * g.n_kv_heads) * (size_t)g.dim;
    const size_t n_out = (size_t)N * (size_t)g.n_heads * (size_t)g.dim;
    op_add_seq(&w->pass, 0, 0, N);
    float *qkv = make_qkv(w), *valid = run_pass(w, qkv);
    qkv[ROW * width + HEAD * (size_t)g.dim + 7] = invalid;
    float *out = run_pass(w, qkv);
    for (size_t i = 0; i < n_out; i++) {
        bool hit = i / (size_t)g.dim == (size_t)(ROW * g.n_heads + HEAD);
        CHECK(hit ? out[i] != out[i] : out[i] == valid[i]);
    }
    free(out);
    free(valid);
    free(qkv);
    close_world(w);
    free(w);
}

OP_TEST(an_invalid_query_is_not_hidden_by_codes)
{
    for (int32_t j = 0; j < N_CODED; j++) {
        check_invalid_query(backend, &coded[j], NAN);
        check_invalid_query(backend, &coded[j], INFINITY);
    }
}

/* Keys [from, to) of lane 0 are NaN. */
struct nan_keys {
    struct geometry g;
    int32_t from, to;
};

/* Whether row r, alone in its sequence, sees a key that is NaN. */
static bool sees_nan(const struct world *w, const struct nan_keys *c, int32_t row)
{
    for (int32_t key = c->from; key < c->to; key++) {
        if (sees(w, &w->pass.seqs[0], row, key)) {
            return true;
        }
    }
    return false;
}

/* The rows that see such a key are NaN, even if they see nothing else of a chunk; the others have
 * the bits of a run without NaN. The last row is also computed alone, its chunks by any thread. */
static void check_nan_keys(const char *backend, const struct nan_keys *c,
                           const struct storage *storage)
{
    enum { N = 1100 };
    const struct geometry *g = &c->g;
    struct world *w = xcalloc(1, sizeof *w);
    open_world(w, backend, g, storage);
    const size_t width = (size_t)(g->n_heads + 2 * g->n_kv_heads) * (size_t)g->dim;
    const size_t out_width = (size_t)g->n_heads * (size_t)value_dim(g);
    op_add_seq(&w->pass, 0, 0, N);
    float *qkv = make_qkv(w), *clean = run_pass(w, qkv);
    for (int32_t key = c->from; key < c->to; key++) {
        for (int32_t d = 0; d < g->n_kv_heads * g->dim; d++) {
            qkv[(size_t)key * width + (size_t)(g->n_heads * g->dim + d)] = NAN;
        }
    }
    float *out = run_pass(w, qkv);
    int32_t n_wrong = 0, n_hit = 0;
    for (int32_t r = 0; r < N; r++) {
        const bool hit = sees_nan(w, c, r);
        n_hit += hit;
        for (size_t i = (size_t)r * out_width; i < (size_t)(r + 1) * out_width; i++) {
            n_wrong += hit ? !isnan(out[i]) : memcmp(&out[i], &clean[i], sizeof *out) != 0;
        }
    }
    const bool last = sees_nan(w, c, N - 1);
    memset(&w->pass, 0, sizeof w->pass);
    op_add_seq(&w->pass, 0, N - 1, 1);
    float *alone = run_pass(w, qkv + (N - 1) * width);
    for (size_t i = 0; i < out_width; i++) {
        const float want = clean[(N - 1) * out_width + i];
        n_wrong += last ? !isnan(alone[i]) : memcmp(&alone[i], &want, sizeof want) != 0;
    }
    if (n_wrong > 0 || n_hit == 0) {
        CHECK_FAIL("keys %d to %d, window %d, format %d: %d numbers are wrong", c->from, c->to,
                   g->window, storage->format, n_wrong);
    }
    free(alone);
    free(out);
    free(clean);
    free(qkv);
    close_world(w);
    free(w);
}

/* The keys that are NaN: a whole chunk of 512 keys; with a window, all keys of a chunk that the
 * rows still see, or all that they see of a matrix unit's first run of 128; a single key. */
OP_TEST(a_nan_key_reaches_all_rows_that_see_it)
{
    static const struct nan_keys cases[] = {
        {{4, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0}, 512, 1024},
        {{3, 1, 20, 5, 0, 30.0f, true, DT_F32, 0, false, 0}, 0, 512},
        {{4, 1, 64, 16, 400, 0.0f, false, DT_BF16, 0, false, 0}, 700, 1024},
        {{4, 2, 64, 16, 100, 0.0f, true, DT_BF16, 0, false, 0}, 600, 640},
        {{4, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 700}, 700, 768},
        {{4, 2, 64, 16, 0, 0.0f, false, DT_F16, 0, false, 0}, 511, 512},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_nan_keys(backend, &cases[i], &plain);
        check_nan_keys(backend, &cases[i], &coded[i % N_CODED]);
    }
}

/* Two elements of row ROW's value are set to these numbers, which pages cannot hold. Rows that see
 * this value must be NaN, even in pages of codes, where the scale would not be a number. Earlier
 * rows of the same tile must have the bits of a run without these numbers. */
static void check_broken_value(const char *backend, const struct geometry *g,
                               const struct storage *storage, float one, float two)
{
    enum { N = 40, ROW = 21 };
    struct world *w = xcalloc(1, sizeof *w);
    open_world(w, backend, g, storage);
    const size_t width = (size_t)(g->n_heads + 2 * g->n_kv_heads) * (size_t)g->dim;
    const size_t out_width = (size_t)g->n_heads * (size_t)value_dim(g);
    const int32_t head = g->n_heads + (g->dim_v > 0 ? 0 : g->n_kv_heads); // of the value
    op_add_seq(&w->pass, 0, 0, N);
    float *qkv = make_qkv(w), *clean = run_pass(w, qkv);
    float *value = qkv + (size_t)ROW * width + (size_t)(head * g->dim);
    value[3] = one;
    value[4] = two;
    float *out = run_pass(w, qkv);
    int32_t n_wrong = 0;
    const int32_t group = g->n_heads / g->n_kv_heads, of_head = group * value_dim(g);
    for (size_t i = 0; i < N * out_width; i++) { // of the first KV head
        const bool hit = i / out_width >= ROW && (int32_t)(i % out_width) < of_head;
        n_wrong += hit ? !isnan(out[i]) : memcmp(&out[i], &clean[i], sizeof *out) != 0;
    }
    if (n_wrong > 0) {
        CHECK_FAIL("values %g and %g, format %d, dtype %d: %d numbers are wrong", (double)one,
                   (double)two, storage->format, g->dtype, n_wrong);
    }
    free(out);
    free(clean);
    free(qkv);
    close_world(w);
    free(w);
}

OP_TEST(a_value_that_is_no_number_spoils_only_rows_that_see_it)
{
    static const struct geometry cases[] = {
        {4, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
        {3, 1, 20, 5, 0, 0.0f, false, DT_F32, 0, false, 0},
        {4, 2, 64, 16, 0, 0.0f, false, DT_F16, 0, false, 0},
        {18, 1, 72, 16, 0, 0.0f, false, DT_BF16, 56, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_broken_value(backend, &cases[i], &plain, NAN, 1.0f);
        check_broken_value(backend, &cases[i], &plain, 1.0f, -INFINITY);
        for (int32_t j = 0; j < N_CODED; j++) {
            check_broken_value(backend, &cases[i], &coded[j], NAN, 1.0f);
            check_broken_value(backend, &cases[i], &coded[j], 3e38f, -3e38f);
        }
    }
}

/* After blocks were copied and slots moved, each lane reads the expected tokens. */
OP_TEST(copied_blocks_and_moved_slots_read_the_same)
{
    static const struct geometry cases[] = {{4, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
                                            {3, 1, 20, 5, 0, 0.0f, false, DT_F32, 0, false, 0},
                                            {2, 2, 24, 8, 0, 0.0f, false, DT_F16, 0, false, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0] * (1 + N_CODED); c++) {
        const struct geometry *g = &cases[c % 3];
        struct world *w = xcalloc(1, sizeof *w);
        open_world(w, backend, g, c < 3 ? &plain : &coded[c / 3 - 1]);
        const struct backend_ops *ops = w->rig.ops;
        size_t kv = (size_t)g->n_kv_heads * g->dim;
        op_add_seq(&w->pass, 0, 0, 60);
        op_add_seq(&w->pass, 1, 0, 40);
        check_pass(w, 1);
        /* The moves close gaps between slots in rising order, as after a tree. One slot stays, one
         * moves to another block. */
        const struct slot_move moves[] = {{0, 50, 47}, {0, 52, 48}, {0, 55, 49}, {0, 57, 57},
                                          {1, 33, 30}, {1, 34, 33}, {1, 39, 1}};
        CHECK_EQ(ops->move_slots(w->rig.be, sizeof moves / sizeof moves[0], moves, 0), OK);
        for (size_t i = 0; i < sizeof moves / sizeof moves[0]; i++) {
            const struct slot_move *m = &moves[i];
            memmove(w->k[m->lane] + m->to * kv, w->k[m->lane] + m->from * kv, kv * sizeof(float));
            memmove(w->v[m->lane] + m->to * kv, w->v[m->lane] + m->from * kv, kv * sizeof(float));
        }
        op_add_seq(&w->pass, 0, 59, 1);
        op_add_seq(&w->pass, 1, 39, 1);
        check_pass(w, 1);
        /* Lane 2 gets copies of lane 0's first blocks, except one. Then lane 0's own blocks are
         * overwritten, so that a table that still points to them would be noticed. */
        int32_t spare = w->n_blocks - 3, n = 32 / g->block_tokens;
        for (int32_t i = 0; i < n; i++) {
            int32_t from = w->blocks[0][i], to = w->blocks[2][i];
            const struct block_copy there[] = {{from, spare}}, back[] = {{spare, to}};
            CHECK_EQ(ops->copy_blocks(w->rig.be, 1, there), OK);
            CHECK_EQ(ops->poison_blocks(w->rig.be, 1, &from), OK);
            CHECK_EQ(ops->copy_blocks(w->rig.be, 1, back), OK);
        }
        int32_t known = n * g->block_tokens;
        memcpy(w->k[2], w->k[0], known * kv * sizeof(float));
        memcpy(w->v[2], w->v[0], known * kv * sizeof(float));
        op_add_seq(&w->pass, 2, known, 3);
        check_pass(w, 1);
        close_world(w);
        free(w);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
