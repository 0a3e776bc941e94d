// SPDX-License-Identifier: Apache-2.0
/* The ops that process each row independently, compared with the scalar backend. */
#include "engine/device/ops_default.h"
#include "test/cuda/cuda_pass.h"

static const int32_t odd_widths[] = {1, 7, 40, 96, 257, 1000, 4096, 5000};
#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

/* With and without a delta, an output of its own, a bias and padding between rows. */
static void norm_case(struct pair *p, int32_t n_rows, int32_t width, int32_t pad,
                      enum norm_kind kind, bool delta, bool out, bool bias)
{
    struct pair_tensor x = tensor_random(p, n_rows, width, width + pad, 2.0f);
    struct pair_tensor d = tensor_random(p, n_rows, width, width + pad, 1.0f);
    struct pair_tensor y = tensor_poisoned(p, n_rows, width + pad, p->dtype);
    struct pair_weight w = vector_make(p, width, 1.0f), v = vector_make(p, width, 1.0f);
    struct norm_args a = {.n_rows = n_rows,
                          .width = width,
                          .kind = kind,
                          .eps = 1e-5f,
                          .weight_offset = bias ? 1.0f : 0.0f,
                          .delta_scale = 0.5f,
                          .x_scale = n_rows == 2 ? -0.3f : 0.0f};
    BOTH(p, norm, a, a.x = x.t[b]; if (delta) a.delta = d.t[b]; if (out) a.out = y.t[b];
         a.weight = w.w[b]; a.bias = bias ? v.w[b] : NULL);
    char what[96];
    snprintf(what, sizeof what, "norm %d x %d dtype %d kind %d delta %d", n_rows, width, p->dtype,
             kind, delta);
    check_tensor(p, what, &x, width, pair_tolerance(p));
    if (out) {
        check_tensor(p, what, &y, width, pair_tolerance(p));
    }
}

/* Odd widths do not fill the last vector of loads. */
/* The norm of a sum takes the place of the residual, as in encoders. */
static void norm_in_place(struct pair *p, int32_t n_rows, int32_t width)
{
    struct pair_tensor x = tensor_random(p, n_rows, width, width + 8, 2.0f);
    struct pair_tensor d = tensor_random(p, n_rows, width, width + 8, 1.0f);
    struct pair_weight w = vector_make(p, width, 1.0f), v = vector_make(p, width, 1.0f);
    struct norm_args a = {
        .n_rows = n_rows, .width = width, .kind = NORM_LAYER, .eps = 1e-12f, .delta_scale = 1.0f};
    BOTH(p, norm, a, a.x = a.out = x.t[b]; a.delta = d.t[b]; a.weight = w.w[b]; a.bias = v.w[b]);
    check_tensor(p, "a norm in place", &x, width, pair_tolerance(p));
}

TEST(norms_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        for (int32_t i = 0; i < COUNT(odd_widths); i++) {
            norm_case(&p, 5, odd_widths[i], 0, NORM_RMS, true, true, false);
            norm_case(&p, 3, odd_widths[i], 3, NORM_LAYER, false, true, true);
            norm_case(&p, 2, odd_widths[i], 8, NORM_LAYER, true, true, true);
            norm_case(&p, 2, odd_widths[i], 0, NORM_RMS, true, false, false);
            norm_in_place(&p, 3, odd_widths[i]);
        }
        norm_in_place(&p, 1100, 384);
        norm_in_place(&p, 1100, 1024);
        norm_case(&p, 3, 16384, 0, NORM_RMS, true, true, false);
        norm_case(&p, 1100, 256, 8, NORM_RMS, true, true, false);
        norm_case(&p, 1100, 2048, 8, NORM_RMS, true, true, false); // more rows than blocks
        norm_case(&p, 1100, 2048, 0, NORM_LAYER, false, true, true);
        pair_close(&p);
    }
}

/* The sum of x and delta, normed in its own place. */
TEST(norms_in_place_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < 24; i++) {
        struct pair p;
        const struct backend_limits limits = pair_limits();
        REQUIRE(pair_open(&p, pair_dtypes[i % 3], i % 2 == 1, &limits));
        const int32_t width = odd_widths[i / 3], n_rows = i % 5 == 4 ? 1100 : 1 + i % 5;
        struct pair_tensor x = tensor_random(&p, n_rows, width, width + i % 2 * 8, 2.0f);
        struct pair_tensor d = tensor_random(&p, n_rows, width, width, 1.0f);
        struct pair_weight w = vector_make(&p, width, 1.0f);
        struct norm_args a = {.n_rows = n_rows,
                              .width = width,
                              .kind = NORM_RMS,
                              .eps = 1e-5f,
                              .delta_scale = 0.5f,
                              .x_scale = 3.5f};
        BOTH(&p, norm, a, a.x = x.t[b]; a.out = x.t[b]; a.delta = d.t[b]; a.weight = w.w[b]);
        check_tensor(&p, "a norm in place", &x, width, 2.0 * pair_tolerance(&p));
        pair_close(&p);
    }
}

/* In deterministic mode a row's norm has the same bits for every number of rows, even if there are
 * more rows than blocks. */
TEST(a_row_of_a_norm_does_not_depend_on_the_others_in_deterministic_mode)
{
    NEED_GPU();
    enum { ROWS = 2048 };
    static const int32_t rows[] = {1, 2, 7, 16, 33, 64, 129, 256, 512}, widths[] = {67, 1096, 4096};
    for (int32_t i = 0; i < COUNT(pair_dtypes) * COUNT(widths); i++) {
        const int32_t width = widths[i % COUNT(widths)];
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[i / COUNT(widths)], true, NULL));
        struct backend *be = p.be[GPU];
        struct pair_tensor x = tensor_random(&p, ROWS, width, width, 2.0f);
        struct pair_tensor y = tensor_poisoned(&p, ROWS, width, p.dtype);
        struct pair_weight w = vector_make(&p, width, 1.0f);
        struct norm_args a = {.x = x.t[GPU],
                              .out = y.t[GPU],
                              .weight = w.w[GPU],
                              .width = width,
                              .kind = i % 2 ? NORM_RMS : NORM_LAYER,
                              .eps = 1e-5f};
        float *all = NULL;
        for (int32_t k = COUNT(rows); k >= 0; k--) {
            a.n_rows = k < COUNT(rows) ? rows[k] : ROWS;
            CHECK_EQ(be->ops->norm(be, &a), OK);
            float *got = tensor_get(&p, &y, GPU);
            if (all && memcmp(got, all, (size_t)a.n_rows * (size_t)width * sizeof *got) != 0) {
                CHECK_FAIL("dtype %d, width %d: %d rows have different bits", p.dtype, width,
                           a.n_rows);
            }
            if (all) {
                free(got);
            } else {
                all = got;
            }
        }
        free(all);
        pair_close(&p);
    }
}

/* A list of norms as in a layer with experts beside an MLP: later norms read what earlier ones
 * store. */
static void norm_list_case(enum dtype dtype, int32_t n_rows, int32_t width, int32_t pad)
{
    enum { NORMS = 6 };
    struct pair p;
    REQUIRE(pair_open(&p, dtype, false, NULL));
    struct pair_tensor x = tensor_random(&p, n_rows, width, width + pad, 1.0f);
    struct pair_tensor d = tensor_random(&p, n_rows, width, width + 2 * pad, 1.0f);
    struct pair_tensor e = tensor_random(&p, n_rows, width, width + pad, 1.0f);
    struct pair_tensor y = tensor_poisoned(&p, n_rows, width + pad, p.dtype);
    struct pair_tensor z = tensor_poisoned(&p, n_rows, width + pad, p.dtype);
    struct pair_weight w[NORMS];
    for (int32_t i = 0; i < NORMS; i++) {
        w[i] = vector_make(&p, width, 1.0f);
    }
    for (int b = FIRST; b <= GPU; b++) {
        struct norm_args a[NORMS] = {
            {.x = d.t[b], .out = d.t[b], .weight = w[0].w[b]},
            {.x = e.t[b], .out = e.t[b], .weight = w[1].w[b], .weight_offset = 1.0f},
            {.x = d.t[b], .delta = e.t[b], .delta_scale = 1.0f},
            {.x = d.t[b], .out = d.t[b]},
            {.x = x.t[b],
             .delta = d.t[b],
             .out = y.t[b],
             .weight = w[4].w[b],
             .delta_scale = 0.7f,
             .x_scale = 0.5f},
            {.x = x.t[b], .out = z.t[b], .weight = w[5].w[b]},
        };
        for (int32_t i = 0; i < NORMS; i++) {
            a[i].n_rows = n_rows;
            a[i].width = width;
            a[i].eps = 1e-5f;
        }
        CHECK_EQ(ops_norms(p.be[b], a, NORMS), OK);
    }
    check_rows(&p, "x of a list of norms", &x, width, pair_tolerance(&p));
    check_tensor(&p, "a list's norm of x and delta", &y, width, 2.0 * pair_tolerance(&p));
    check_tensor(&p, "a list's last norm", &z, width, 2.0 * pair_tolerance(&p));
    pair_close(&p);
}

TEST(lists_of_norms_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < 3; d++) {
        norm_list_case(pair_dtypes[d], 1, 2816, 8);
        norm_list_case(pair_dtypes[d], 3, 328, 16);
        norm_list_case(pair_dtypes[d], 16, 8192, 8);
        norm_list_case(pair_dtypes[d], 2, 8200, 8); // more than one kernel from here on
        norm_list_case(pair_dtypes[d], 2, 65, 3);
        norm_list_case(pair_dtypes[d], 17, 264, 8);
    }
}

/* Gated and not, in rows with padding. */
TEST(activations_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        REQUIRE(pair_open(&p, pair_dtypes[d], false, NULL));
        for (int32_t i = 0; i < COUNT(odd_widths); i++) {
            for (int32_t kind = ACT_SILU; kind <= ACT_XIELU; kind++) {
                const bool always = kind == ACT_GPT_OSS || kind == ACT_SILU_CLAMPED;
                for (int gated = always; gated < (kind == ACT_XIELU ? 1 : 2); gated++) {
                    const int32_t width = odd_widths[i], in = gated ? 2 * width : width;
                    struct pair_tensor x = tensor_random(&p, 3, in, in + 5, 4.0f);
                    struct pair_tensor y = tensor_poisoned(&p, 3, width + 3, p.dtype);
                    struct activation_args a = {.n_rows = 3,
                                                .width = width,
                                                .kind = (enum activation)kind,
                                                .gated = gated,
                                                .shape = {2.5f, 0.9f, 0.3f, 1.7f, 0.8f}};
                    BOTH(&p, activation, a, a.x = x.t[b]; a.out = y.t[b]);
                    check_tensor(&p, "activation", &y, width, pair_tolerance(&p));
                    if (gated) { // the two tensors are side by side
                        struct pair_tensor up = tensor_random(&p, 3, width, width + 8, 4.0f);
                        BOTH(&p, activation, a, a.x = x.t[b]; a.up = up.t[b]; a.out = y.t[b]);
                        check_tensor(&p, "activation and up", &y, width, pair_tolerance(&p));
                    }
                }
            }
        }
        pair_close(&p);
    }
}

/* Small ops that share one rig. */
TEST(row_gate_reduce_and_logits_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        const struct backend_limits limits = pair_limits();
        REQUIRE(pair_open(&p, pair_dtypes[d], false, &limits));
        struct pair_tensor x = tensor_random(&p, 9, 77, 80, 1.0f);
        struct pair_tensor y = tensor_random(&p, 9, 101, 104, 1.0f);
        struct pair_weight w = vector_make(&p, 77, 0.2f);
        struct row_gate_args g = {.n_rows = 9, .x_width = 77, .y_width = 101};
        BOTH(&p, row_gate, g, g.x = x.t[b]; g.y = y.t[b]; g.weight = w.w[b]);
        check_tensor(&p, "row_gate", &y, 101, pair_tolerance(&p));

        struct pair_weight l = weight_make(&p, WEIGHT_LINEAR, p.dtype, 1, 101, 16, true, 1.0f);
        struct pair_tensor in = tensor_random(&p, 9, 16, 16, 1.0f);
        struct linear_args product = {.n_rows = 9, .partial = true};
        struct reduce_args r = {.n_rows = 9, .width = 101}; // either of the two adds the bias
        BOTH(&p, linear, product, product.x = in.t[b]; product.y = y.t[b]; product.weight = l.w[b]);
        BOTH(&p, reduce, r, r.y = y.t[b]; r.linear = l.w[b]);
        check_tensor(&p, "a partial product and reduce", &y, 101, pair_tolerance(&p));

        struct pair_tensor local = tensor_make(&p, 6, 1003, DT_F32);
        float *values = xmalloc(6 * 1003 * sizeof(float));
        for (int32_t i = 0; i < 6 * 1003; i++) {
            values[i] = random_float(99, i, 8.0f, DT_F32);
        }
        tensor_put(&p, &local, values);
        struct pair_tensor other = tensor_poisoned(&p, 6, 1010, DT_F32);
        struct logits_args a = {.n_out = 6, .vocab = 1003, .scale = 0.7f, .softcap = 30.0f};
        BOTH(&p, logits, a, a.local = local.t[b]; a.logits = other.t[b]);
        check_tensor(&p, "logits", &other, 1003, 1e-5);
        a = (struct logits_args){.n_out = 6, .vocab = 1003, .scale = 0.25f};
        BOTH(&p, logits, a, a.local = local.t[b]; a.logits = local.t[b]);
        check_tensor(&p, "logits in place", &local, 1003, 1e-6);
        const int32_t ids[] = {1002, 4, 0, 77, 500};
        struct pair_tensor ids_of = tensor_make(&p, 1, COUNT(ids), DT_F32); // the size of ids
        struct pair_tensor spread = tensor_poisoned(&p, 6, 1003, DT_F32);
        for (int b = 0; b < 2; b++) {
            CHECK_EQ(p.be[b]->ops->write(p.be[b], ids_of.t[b].mem, ids, sizeof ids), OK);
        }
        a = (struct logits_args){.n_out = 6, .vocab = 1003, .scale = 0.5f, .n_ids = COUNT(ids)};
        BOTH(&p, logits, a, a.local = local.t[b]; a.logits = spread.t[b]; a.ids = ids_of.t[b].mem);
        float *both[] = {tensor_get(&p, &spread, CPU), tensor_get(&p, &spread, GPU)};
        CHECK(memcmp(both[CPU], both[GPU], 6 * 1003 * sizeof(float)) == 0);
        CHECK(isfinite(both[GPU][5 * 1003 + 77]) && isinf(both[GPU][5 * 1003 + 78]));
        free(both[CPU]);
        free(both[GPU]);
        free(values);
        pair_close(&p);
    }
}

/* Ids that repeat, rows that are not in order, and pools over several passes. */
TEST(embed_gather_and_pool_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        const struct backend_limits limits = pair_limits();
        REQUIRE(pair_open(&p, pair_dtypes[d], false, &limits));
        static struct test_pass t;
        const struct seq_spec specs[] = {{0, 5, false}, {0, 1, false}, {0, 30, false}};
        pass_of(&t, specs, 3, false, 5);
        const int32_t history[] = {3, 1002, 0, 77, 12};
        const int32_t out[] = {0, 4, 5, 17, 35};
        memcpy(t.out_rows, out, sizeof out);
        t.pass.n_out = COUNT(out);
        for (int32_t i = 0; i < 5; i++) {
            t.rows[i].token = -1; // read from the history
        }
        t.pool[0] = (struct pass_pool){0, 0, 2, true, false};
        t.pool[1] = (struct pass_pool){2, 3, 2, true, true};
        t.pool[2] = (struct pass_pool){0, 1, 1, false, true};
        t.pass.n_pool = 3;
        struct pair_weight w =
            weight_make(&p, WEIGHT_EMBED, p.dtype, 1, limits.vocab, limits.hidden, false, 1.0f);
        struct pair_tensor x = tensor_poisoned(&p, 36, limits.hidden + 4, p.dtype);
        struct pair_tensor y = tensor_poisoned(&p, COUNT(out), limits.hidden, p.dtype);
        step_begin(&p);
        for (int b = 0; b < 2; b++) {
            CHECK_EQ(p.be[b]->ops->lane_tokens(p.be[b], 0, 0, 5, history), OK);
        }
        pass_begin(&p, &t);
        struct embed_args e = {.n_rows = 36, .scale = 1.5f};
        BOTH(&p, embed, e, e.table = w.w[b]; e.x = x.t[b]);
        struct gather_args g = {.n_out = COUNT(out), .width = limits.hidden};
        BOTH(&p, gather, g, g.x = x.t[b]; g.out = y.t[b]);
        struct pool_args pool = {.n_out = COUNT(out), .width = limits.hidden};
        BOTH(&p, pool, pool, pool.hidden = y.t[b]);
        pass_end(&p);
        struct pass_results results[2];
        step_end(&p, results);
        check_tensor(&p, "embed", &x, limits.hidden, pair_tolerance(&p));
        check_tensor(&p, "gather", &y, limits.hidden, pair_tolerance(&p));
        for (int32_t i = 1; i < 3; i++) {
            check_near("pool", results[CPU].pooled + i * limits.hidden,
                       results[GPU].pooled + i * limits.hidden, 1, limits.hidden, limits.hidden,
                       pair_tolerance(&p));
        }
        pair_close(&p);
    }
}

/* Learned positions, of chains and of a tree, whose nodes' positions are not those of their slots.
 */
/* Also with types, which change in the middle of a sequence, if the table has more than one. */
static void check_types(enum dtype dtype, int32_t n_types)
{
    struct pair p;
    const struct backend_limits limits = pair_limits();
    REQUIRE(pair_open(&p, dtype, false, &limits));
    static struct test_pass t;
    const struct seq_spec specs[] = {{0, 5, false}, {0, 33, false}, {0, 12, false}};
    pass_of(&t, specs, 3, false, 9);
    t.seqs[1].second = 7;
    t.seqs[2].second = 11;
    struct pair_weight w =
        weight_make(&p, WEIGHT_EMBED, p.dtype, 1, limits.vocab, limits.hidden, false, 1.0f);
    struct pair_weight types =
        weight_make(&p, WEIGHT_EMBED, p.dtype, 1, n_types, limits.hidden, false, 1.0f);
    struct pair_tensor x = tensor_poisoned(&p, t.pass.n_rows, limits.hidden + 4, p.dtype);
    step_begin(&p);
    pass_begin(&p, &t);
    struct embed_args e = {.n_rows = t.pass.n_rows, .scale = 1.5f};
    BOTH(&p, embed, e, e.table = w.w[b]; e.x = x.t[b]; e.types = types.w[b]);
    pass_end(&p);
    step_end(&p, NULL);
    check_tensor(&p, "embed with types", &x, limits.hidden, pair_tolerance(&p));
    pair_close(&p);
}

TEST(embed_with_types_agrees)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        check_types(pair_dtypes[d], 1);
        check_types(pair_dtypes[d], 2);
    }
}

TEST(embed_with_positions_agrees)
{
    enum { POSITIONS = 90, BEFORE = 2 };
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair p;
        const struct backend_limits limits = pair_limits();
        REQUIRE(pair_open(&p, pair_dtypes[d], false, &limits));
        static struct test_pass t;
        const struct seq_spec specs[] = {{0, 5, false}, {80, 3, false}, {31, 12, true}};
        pass_of(&t, specs, 3, false, 9);
        struct pair_weight w =
            weight_make(&p, WEIGHT_EMBED, p.dtype, 1, limits.vocab, limits.hidden, false, 1.0f);
        struct pair_weight positions =
            weight_make(&p, WEIGHT_EMBED, p.dtype, 1, POSITIONS, limits.hidden, false, 1.0f);
        const int32_t n_rows = t.pass.n_rows;
        struct pair_tensor x = tensor_poisoned(&p, n_rows, limits.hidden + 4, p.dtype);
        step_begin(&p);
        pass_begin(&p, &t);
        struct embed_args e = {.n_rows = n_rows, .scale = 1.5f, .first_position = BEFORE};
        BOTH(&p, embed, e, e.table = w.w[b]; e.x = x.t[b]; e.positions = positions.w[b]);
        pass_end(&p);
        step_end(&p, NULL);
        check_tensor(&p, "embed", &x, limits.hidden, pair_tolerance(&p));
        pair_close(&p);
    }
}

/* States are stored in one pass and loaded in the next, for chains and for trees. */
TEST(hidden_states_by_slot_agree)
{
    NEED_GPU();
    for (int32_t width = 92; width <= 96; width += 4) { // a multiple of 16 bytes, and not
        for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
            struct pair p;
            const struct backend_limits limits = pair_limits();
            REQUIRE(pair_open(&p, pair_dtypes[d], false, &limits));
            for (int b = 0; b < 2; b++) {
                struct err err;
                CHECK_EQ(p.be[b]->ops->hidden_open(p.be[b], width, p.dtype, &err), OK);
            }
            static struct test_pass first, next;
            const struct seq_spec all[] = {
                {0, 60, false}, {0, 60, false}, {0, 60, false}, {0, 60, false}};
            const struct seq_spec some[] = {
                {0, 3, false}, {31, 1, false}, {17, 20, true}, {40, 9, true}};
            pass_of(&first, all, 4, false, 5);
            pass_of(&next, some, 4, false, 6);
            const int32_t out[] = {2, 3, 30};
            memcpy(next.out_rows, out, sizeof out);
            next.pass.n_out = COUNT(out);
            struct pair_tensor x = tensor_random(&p, 240, width, width + 8, 1.0f);
            struct pair_tensor y = tensor_poisoned(&p, 33, width + 8, p.dtype);
            struct pair_tensor z = tensor_poisoned(&p, 33, width + 8, p.dtype);
            struct hidden_args a = {.n_rows = 240, .width = width};
            step_begin(&p);
            give_blocks(&p, 4, 8);
            pass_begin(&p, &first);
            BOTH(&p, hidden_store, a, a.x = x.t[b]);
            pass_end(&p);
            pass_begin(&p, &next);
            a.n_rows = 33;
            BOTH(&p, hidden_load, a, a.x = y.t[b]);
            struct hidden_args s = {.n_rows = COUNT(out), .width = width, .out_rows = true};
            BOTH(&p, hidden_store, s, s.x = x.t[b]);
            BOTH(&p, hidden_load, a, a.x = z.t[b]);
            pass_end(&p);
            step_end(&p, NULL);
            check_tensor(&p, "hidden states", &y, width, 0.0);
            check_tensor(&p, "hidden states of out rows", &z, width, 0.0);
            pair_close(&p);
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
