// SPDX-License-Identifier: Apache-2.0
/* Recurrent layers compared with the scalar backend: texts in pieces of any length, several in a
 * pass, after rejected drafts, in trees, from snapshots and forks. In deterministic mode the bits
 * do not depend on the division of the text. Each pass has new inputs; outputs and the padding of
 * all tensors are poisoned. */
#include "test/cuda/cuda_pass.h"

#include "engine/base/minmax.h"
#include "engine/device/ops_default.h"

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

enum { LANES = 6, SNAPSHOTS = 3, MOST = 400, DRAFTS = 100000 };

enum way { FUSED, FUSED_WITHOUT_GATE, ONE_BY_ONE };

/* A layer's shape and what varies between families. */
struct state_case {
    struct state_layer g;
    int32_t block, max_ahead;
    float bound;         // decay_bound of the recurrence
    bool bias, skip;     // bias of the convolution; skip connection of values
    int32_t norm_groups; // 0: no norm of the gate; else it has weights for one group, or (-1) for
                         // all
    bool gate_first, per_group;
};

/* One layer on both backends. */
struct scene {
    struct pair p;
    struct state_case c;
    int32_t decays, values; // numbers per row
    enum way way;
    struct pair_weight kernel, bias, a_log, dt_bias, skip, norm;
    struct pair_tensor x, conv, decay, beta, gate, out;
    struct test_pass t;
    int32_t ids[MAX_TEST_ROWS]; // ids of the rows' inputs
};

static int32_t pick(struct scene *s, int32_t low, int32_t high)
{
    return low + (int32_t)(rng_bits(s->p.seed++, 0, RNG_TEST, 3) % (uint32_t)(high - low + 1));
}

/* Both backends with the same weights and inputs. */
static bool open_scene(struct scene *s, enum dtype dtype, bool deterministic,
                       const struct state_case *c, enum way way)
{
    struct backend_limits limits = pair_limits();
    struct state_layer g = c->g;
    g.conv_width = 2 * g.n_key_heads * g.key_dim + g.n_heads * g.value_dim;
    *s = (struct scene){.c = *c, .way = way};
    s->c.g = g;
    limits.max_lanes = LANES;
    limits.max_tree_nodes = 32;
    if (!pair_open(&s->p, dtype, deterministic, &limits)) {
        return false;
    }
    const struct state_set_desc d = {1, &s->c.g, dtype, c->block, c->max_ahead};
    const struct kv_layer kv = {.n_heads = 1,
                                .n_kv_heads = 1,
                                .head_dim_k = 8,
                                .head_dim_v = 8}; // accepted
                                                  // paths are moved in it, too
    const struct kv_set_desc kv_set = {1, &kv, dtype, KV_PLAIN};
    for (int b = 0; b < 2; b++) {
        struct err err = {""};
        CHECK_EQ(s->p.be[b]->ops->state_open(s->p.be[b], 0, &d, SNAPSHOTS, &err), OK);
        CHECK_EQ(s->p.be[b]->ops->kv_open(s->p.be[b], 0, &kv_set, &err), OK);
    }
    struct pair *p = &s->p;
    step_begin(p);
    give_blocks(p, LANES, limits.max_blocks_per_lane);
    step_end(p, NULL);
    s->decays = g.n_heads * (g.per_channel ? g.key_dim : 1);
    s->values = g.n_heads * g.value_dim;
    s->kernel = vector_make(p, g.conv_kernel * g.conv_width, 0.5f);
    s->bias = vector_make(p, g.conv_width, 0.2f);
    s->a_log = vector_make(p, g.n_heads, 0.7f);
    s->dt_bias = vector_make(p, s->decays, 0.7f);
    s->skip = vector_make(p, g.n_heads, 0.7f);
    s->norm = vector_make(p, c->norm_groups < 0 ? s->values : g.value_dim, 1.0f);
    const bool aligned = g.key_dim == 128 && g.value_dim == 128; // as few.cu requires
    s->x = tensor_make(p, MAX_TEST_ROWS, g.conv_width + (aligned ? 4 : 3), dtype);
    s->conv = tensor_make(p, MAX_TEST_ROWS, g.conv_width + 5, dtype);
    s->decay = tensor_make(p, MAX_TEST_ROWS, s->decays + 1, dtype);
    s->beta = tensor_make(p, MAX_TEST_ROWS, g.n_heads + 2, dtype);
    s->gate = tensor_make(p, MAX_TEST_ROWS, s->values + 4, dtype);
    s->out = tensor_make(p, MAX_TEST_ROWS, s->values + (aligned ? 4 : 1), dtype);
    return true;
}

/* ---- passes --------------------------------------------------------------------------------- */

static void begin(struct scene *s)
{
    s->t.pass = (struct pass){
        .model = TEST_MODEL, .rows = s->t.rows, .seqs = s->t.seqs, .tree_mask = s->t.tree_mask};
}

/* Rows of a lane after n_past, with the inputs of ids. */
static void add(struct scene *s, int32_t lane, int32_t n_past, const int32_t *ids, int32_t n)
{
    struct pass *pass = &s->t.pass;
    s->t.seqs[pass->n_seqs++] = (struct pass_seq){lane, pass->n_rows, n, n_past, false, 0, 0};
    for (int32_t i = 0; i < n; i++) {
        s->ids[pass->n_rows + i] = ids[i];
        s->t.rows[pass->n_rows + i] = (struct pass_row){lane, 1, n_past + i, n_past + i};
    }
    pass->n_rows += n;
}

/* Rows [from, to) of a text, whose inputs are functions of their position. */
static void add_text(struct scene *s, int32_t lane, int32_t from, int32_t to)
{
    int32_t ids[MOST];
    for (int32_t i = from; i < to; i++) {
        ids[i - from] = i;
    }
    add(s, lane, from, ids, to - from);
}

/* Writes the rows' own numbers, and NaN in all other places; or NaN everywhere. */
static void put(struct scene *s, struct pair_tensor *t, int32_t width, float scale, uint64_t seed)
{
    const size_t stride = (size_t)t->stride;
    float *values = xmalloc((size_t)t->n_rows * stride * sizeof *values);
    for (size_t i = 0; i < (size_t)t->n_rows * stride; i++) {
        values[i] = NAN;
    }
    for (int32_t r = 0; r < s->t.pass.n_rows; r++) {
        for (int32_t c = 0; c < width; c++) {
            values[(size_t)r * stride + (size_t)c] =
                random_float(seed, (int64_t)s->ids[r] * width + c, scale, s->p.dtype);
        }
    }
    tensor_put(&s->p, t, values);
    free(values);
}

/* Runs the ops as the scene says: separate or fused. */
static void run_ops(struct scene *s, int b)
{
    const struct state_case *c = &s->c;
    const struct state_layer *g = &c->g;
    const int32_t n = s->t.pass.n_rows, keys = g->n_key_heads * g->key_dim;
    struct short_conv_args conv = {.x = s->x.t[b],
                                   .out = s->conv.t[b],
                                   .weight = s->kernel.w[b],
                                   .bias = c->bias ? s->bias.w[b] : NULL,
                                   .n_rows = n,
                                   .width = g->conv_width,
                                   .kernel = g->conv_kernel,
                                   .silu = true};
    struct recurrence_args a = {.x = s->conv.t[b],
                                .k_at = keys,
                                .v_at = 2 * keys,
                                .decay = s->decay.t[b],
                                .beta = s->beta.t[b],
                                .out = s->out.t[b],
                                .a_log = s->a_log.w[b],
                                .dt_bias = s->dt_bias.w[b],
                                .skip = c->skip ? s->skip.w[b] : NULL,
                                .n_rows = n,
                                .decay_scale = 0.7f,
                                .beta_scale = c->bias ? 1.6f : 1.0f,
                                .decay_bound = c->bound,
                                .dt_min = 0.001f,
                                .dt_max = c->skip ? 4.0f : 0.0f};
    struct gate_args gate = {.x = s->out.t[b],
                             .out = s->out.t[b],
                             .gate = s->gate.t[b],
                             .norm = c->norm_groups ? s->norm.w[b] : NULL,
                             .n_rows = n,
                             .width = s->values,
                             .group = g->value_dim,
                             .act = c->gate_first ? GATE_SILU : GATE_SIGMOID,
                             .gate_first = c->gate_first,
                             .per_group = c->per_group,
                             .scale = 0.8f,
                             .eps = 1e-5f};
    struct backend *be = s->p.be[b];
    if (s->way == ONE_BY_ONE) {
        CHECK_EQ(be->ops->short_conv(be, &conv), OK);
        CHECK_EQ(be->ops->recurrence(be, &a), OK);
        CHECK_EQ(be->ops->gate(be, &gate), OK);
        return;
    }
    CHECK_EQ(ops_recurrent(be, &conv, &a, s->way == FUSED ? &gate : NULL), OK);
}

/* Runs what was added on both backends. */
static void run(struct scene *s)
{
    const struct state_layer *g = &s->c.g;
    put(s, &s->x, g->conv_width, 1.0f, 101);
    put(s, &s->decay, s->decays, 1.5f, 102);
    put(s, &s->beta, g->n_heads, 2.0f, 103);
    put(s, &s->gate, s->c.per_group ? g->n_heads : s->values, 1.0f, 104);
    put(s, &s->out, 0, 0.0f, 0);
    put(s, &s->conv, 0, 0.0f, 0);
    step_begin(&s->p);
    pass_begin(&s->p, &s->t);
    for (int b = FIRST; b <= GPU; b++) {
        run_ops(s, b);
    }
    pass_end(&s->p);
    step_end(&s->p, NULL);
}

/* The effect of rounding on S, on 16-bit products with it, and on norms of small rows. */
static double tolerance(const struct scene *s)
{
    return (s->p.dtype == DT_F32 ? 3 : 2.5) * pair_tolerance(&s->p);
}

/* Compares outputs; the text names everything that is needed to repeat the case. */
static void check(struct scene *s, const char *what)
{
    const struct state_layer *g = &s->c.g;
    const int32_t n = s->t.pass.n_rows;
    char text[160];
    snprintf(text, sizeof text,
             "%s: dtype %d, way %d, kind %d%s, %d x %d, %d of %d heads, block %d, %d rows of %d",
             what, s->p.dtype, s->way, g->kind, g->per_channel ? " by channel" : "", g->key_dim,
             g->value_dim, g->n_key_heads, g->n_heads, s->c.block, n, s->t.pass.n_seqs);
    struct pair_tensor rows = s->out;
    rows.n_rows = n;
    check_tensor(&s->p, text, &rows, s->values, tolerance(s));
}

/* One case for each kind of state, with sizes that are not a multiple of a tile. */
static const struct state_case cases[] = {
    {{STATE_DELTA, 4, 2, 24, 40, false, 0, 4}, 32, 0, 0.0f, false, false, 1, false, false},
    {{STATE_DELTA, 3, 1, 17, 33, false, 0, 4}, 16, 5, 0.0f, true, false, 1, false, false},
    {{STATE_DELTA, 2, 2, 33, 24, true, 0, 3}, 48, 9, -2.0f, false, false, 1, false, false},
    {{STATE_DELTA, 2, 1, 64, 64, true, 0, 4}, 64, 15, 0.0f, false, false, 1, false, false},
    {{STATE_DECAY, 6, 2, 20, 12, false, 0, 4}, 32, 7, 0.0f, true, true, -1, true, false},
    {{STATE_DECAY, 3, 3, 16, 65, false, 0, 2}, 64, 0, 0.0f, false, true, 0, false, true},
    {{STATE_DELTA, 4, 2, 128, 128, false, 0, 4}, 64, 0, 0.0f, false, false, 1, false, false},
    {{STATE_DELTA, 2, 1, 128, 128, false, 0, 4}, 64, 4, 0.0f, true, false, 1, false, false},
    {{STATE_DELTA, 2, 1, 128, 128, true, 0, 4}, 64, 4, -2.0f, false, false, 1, false, false},
    {{STATE_DECAY, 4, 1, 128, 64, false, 0, 4}, 64, 3, 0.0f, true, true, 0, true, false},
    {{STATE_DECAY, 2, 2, 256, 64, false, 0, 4}, 64, 0, 0.0f, true, true, -1, true, false},
    {{STATE_DECAY, 20, 2, 128, 80, false, 0, 4}, 64, 0, 0.0f, true, true, -1, true, false},
    {{STATE_DECAY, 3, 1, 256, 128, false, 0, 4}, 64, 3, 0.0f, true, true, 0, true, false},
    {{STATE_DECAY, 11, 1, 128, 64, false, 0, 4}, 64, 0, 0.0f, false, false, 0, false, false},
    {{STATE_DECAY, 4, 4, 128, 128, false, 0, 1}, 64, 3, 0.0f, false, false, 0, false, false},
    {{STATE_DECAY, 3, 3, 40, 40, false, 0, 1}, 64, 0, 0.0f, false, false, 1, false, false},
};

/* One of the three dtypes; heads of 256 x 128 in fp32 exceed a multiprocessor. */
static enum dtype dtype_for(const struct state_case *c, int32_t i)
{
    return c->g.key_dim * c->g.value_dim > 128 * 128 && i % 3 == 0 ? DT_BF16 : pair_dtypes[i % 3];
}

/* Texts in pieces of any length, two or three beside each other. */
static void pieces(struct scene *s)
{
    int32_t at[3] = {0, 0, 0}, end[3] = {pick(s, 200, MOST), pick(s, 1, 90), pick(s, 60, 200)};
    while (at[0] < end[0]) {
        begin(s);
        for (int32_t lane = 0; lane < 3; lane++) {
            const int32_t most = pick(s, 0, 2) ? 150 : 20, n = pick(s, 1, most);
            const int32_t to = lesser(at[lane] + n, end[lane]);
            if (to > at[lane]) {
                add_text(s, lane, at[lane], to);
                at[lane] = to;
            }
        }
        run(s);
        check(s, "pieces");
    }
}

TEST(texts_in_pieces_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(cases); i++) {
            struct scene s;
            REQUIRE(open_scene(&s, dtype_for(&cases[i], d), i % 4 == 1, &cases[i],
                               (enum way)((i + d) % 3)));
            pieces(&s);
            pair_close(&s.p);
        }
    }
}

/* ---- drafts, trees, snapshots ------------------------------------------------------------------
 */

/* Rows of drafts; a test keeps some of them. */
static void draft(struct scene *s, int32_t lane, int32_t known)
{
    int32_t ids[32], n = 1 + pick(s, 0, lesser(s->c.max_ahead, 31));
    ids[0] = known;
    for (int32_t i = 1; i < n; i++) {
        ids[i] = DRAFTS + pick(s, 0, 99);
    }
    begin(s);
    add(s, lane, known, ids, n);
    run(s);
    check(s, "drafts");
}

TEST(rejected_drafts_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(cases); i++) {
        struct scene s;
        if (cases[i].max_ahead == 0) {
            continue;
        }
        REQUIRE(open_scene(&s, dtype_for(&cases[i], i), false, &cases[i], FUSED));
        for (int32_t at = 0; at < 2 * cases[i].block + 5;) {
            draft(&s, 1, at++);
            const int32_t n = pick(&s, 0, 30);
            if (n > 0) {
                begin(&s);
                add_text(&s, 1, at, at + n);
                run(&s);
                check(&s, "after drafts");
                at += n;
            }
        }
        pair_close(&s.p);
    }
}

/* A tree whose root is the text's token `known`; its first children continue the text. */
static void grow(struct scene *s, int32_t lane, int32_t known, int32_t depth)
{
    int32_t ids[64], parents[64], pos[64], path[64], n = 1, last = 0;
    ids[0] = pos[0] = known;
    parents[0] = -1;
    path[0] = 0;
    for (int32_t d = 1; d <= depth; d++) {
        const int32_t room = s->c.max_ahead - (n - 1) - (depth - d + 1);
        const int32_t others = room < 2 ? room : pick(s, 0, 2), nth = pick(s, 0, others);
        const int32_t under = last;
        for (int32_t i = 0; i <= others; i++, n++) {
            ids[n] = i == nth ? known + d : DRAFTS + pick(s, 0, 99);
            parents[n] = under;
            pos[n] = known + d;
            if (i == nth) {
                last = n;
            }
        }
        path[d] = last;
    }
    begin(s);
    add(s, lane, known, ids, n);
    s->t.seqs[0].tree = true;
    memset(s->t.tree_mask, 0, (size_t)n * TREE_MASK_WORDS * sizeof *s->t.tree_mask);
    for (int32_t i = 0; i < n; i++) {
        s->t.rows[i].pos = pos[i];
        for (int32_t j = i; j >= 0; j = parents[j]) {
            s->t.tree_mask[i * TREE_MASK_WORDS + j / 64] |= 1ull << (j % 64);
        }
    }
    run(s);
    check(s, "a tree");
    struct slot_move moves[64];
    for (int32_t d = 0; d <= depth; d++) {
        moves[d] = (struct slot_move){lane, known + path[d], known + d};
    }
    step_begin(&s->p);
    for (int b = 0; b < 2; b++) {
        CHECK_EQ(s->p.be[b]->ops->move_slots(s->p.be[b], depth + 1, moves, 0), OK);
    }
    step_end(&s->p, NULL);
}

/* Each path of a tree has its own state; that of the accepted path is kept. */
TEST(trees_and_their_paths_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(cases); i++) {
        struct scene s;
        if (cases[i].max_ahead < 5) {
            continue;
        }
        REQUIRE(open_scene(&s, dtype_for(&cases[i], i), i % 2 == 0, &cases[i], FUSED));
        for (int32_t at = 0; at < 3 * cases[i].block;) {
            const int32_t room = cases[i].block - 2 - at % cases[i].block;
            int32_t depth = pick(&s, 0, 3);
            depth = lesser(depth, room);
            if (room < 0 || pick(&s, 0, 2) == 0) {
                const int32_t n = pick(&s, 1, 20);
                begin(&s);
                add_text(&s, 2, at, at + n);
                run(&s);
                check(&s, "after trees");
                at += n;
                continue;
            }
            grow(&s, 2, at, depth);
            at += depth + 1;
        }
        pair_close(&s.p);
    }
}

/* Copies a state between lanes and snapshots. */
static void copy(struct scene *s, int32_t from, int32_t to, int32_t pos)
{
    const struct state_copy c = {from, to, pos};
    step_begin(&s->p);
    for (int b = 0; b < 2; b++) {
        CHECK_EQ(s->p.be[b]->ops->copy_states(s->p.be[b], 0, 1, &c), OK);
    }
    step_end(&s->p, NULL);
}

static void feed(struct scene *s, int32_t lane, int32_t from, int32_t to, const char *what)
{
    begin(s);
    add_text(s, lane, from, to);
    run(s);
    check(s, what);
}

/* A boundary inside the pass is kept on the way; the last one is copied. */
TEST(snapshots_and_forks_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(cases); i++) {
        struct scene s;
        REQUIRE(open_scene(&s, dtype_for(&cases[i], i), false, &cases[i], FUSED));
        const int32_t block = cases[i].block, first = pick(&s, 1, block - 1);
        const int32_t known = 3 * block + pick(&s, 0, block - 1);
        const struct state_keep keeps[] = {{0, block, LANES}, {0, 2 * block, LANES + 1}};
        feed(&s, 0, 0, first, "before");
        begin(&s);
        add_text(&s, 0, first, known);
        s.t.pass.keeps = keeps;
        s.t.pass.n_keeps = 2;
        run(&s);
        copy(&s, 0, LANES + 2, 3 * block);
        copy(&s, 0, 4, known);
        feed(&s, 3, 0, pick(&s, 1, 2 * block), "another text");
        for (int32_t j = 1; j <= 3; j++) {
            copy(&s, LANES + j - 1, 3, j * block);
            feed(&s, 3, j * block, j * block + pick(&s, 1, 30), "from a snapshot");
        }
        feed(&s, 4, known, known + pick(&s, 1, 80), "a fork");
        feed(&s, 0, known, known + pick(&s, 1, 80), "what was forked");
        pair_close(&s.p);
    }
}

/* Decoding and short drafts of two sequences through the ends of blocks. One sequence begins inside
 * a block, and one of the boundaries is kept. */
static void few_rows(struct scene *s)
{
    const int32_t block = s->c.block;
    int32_t at[2] = {0, pick(s, 20, 100)};
    feed(s, 4, 0, at[1], "before few rows");
    while (at[0] < 2 * block + 20) {
        const struct state_keep keep = {1, 2 * block, LANES};
        begin(s);
        for (int32_t i = 0; i < 2; i++) {
            const int32_t n = pick(s, 0, 2) ? 1 : pick(s, 1, 9);
            add_text(s, i == 0 ? 1 : 4, at[i], at[i] + n);
            at[i] += n;
        }
        s->t.pass.keeps = &keep;
        s->t.pass.n_keeps = at[0] >= 2 * block && at[0] - s->t.seqs[0].n_rows < 2 * block;
        run(s);
        check(s, "few rows");
    }
    copy(s, LANES, 2, 2 * block);
    feed(s, 2, 2 * block, 2 * block + 3, "few rows from a snapshot");
    feed(s, 1, at[0], at[0] + 70, "more rows after few");
}

/* Passes of a few rows per sequence, for which there is a special kernel if keys have 128 elements.
 */
TEST(few_rows_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(cases); i++) {
        for (int32_t d = 0; d < COUNT(pair_dtypes) && cases[i].g.key_dim >= 128; d++) {
            struct scene s;
            REQUIRE(open_scene(&s, dtype_for(&cases[i], d), false, &cases[i], FUSED));
            few_rows(&s);
            pair_close(&s.p);
        }
    }
}

/* Two to nine rows with each number of them before the end of a block, or at the beginning of a
 * text, and a row after them. */
TEST(rows_on_both_sides_of_a_boundary_agree)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(cases); i++) {
        const struct state_layer *g = &cases[i].g;
        struct scene s;
        if (g->kind != STATE_DELTA || g->per_channel || g->key_dim != 128) {
            continue;
        }
        REQUIRE(open_scene(&s, i % 2 ? DT_F16 : DT_BF16, false, &cases[i], FUSED));
        for (int32_t n = 2; n <= 9; n++) {
            for (int32_t before = 0; before <= n; before++) {
                const int32_t at = before == n ? 0 : cases[i].block - before;
                if (at > 0) {
                    feed(&s, 1, 0, at, "before a boundary");
                }
                feed(&s, 1, at, at + n, "across a boundary");
                feed(&s, 1, at + n, at + n + 1, "after a boundary");
            }
        }
        pair_close(&s.p);
    }
}

/* Single rows of one and two sequences, past the end of a block. How many warps share a head
 * depends on the number of heads. */
TEST(many_heads_agree)
{
    NEED_GPU();
    for (int32_t heads = 400; heads <= 1100; heads += 700) {
        struct scene s;
        const struct state_case c = {
            {STATE_DECAY, heads, 2, 128, 64, false, 0, 4}, 64, 0, 0.0f, true, true, 0, true, false};
        REQUIRE(open_scene(&s, DT_BF16, false, &c, FUSED));
        const int32_t first = pick(&s, 50, 60), other = pick(&s, 1, 60);
        feed(&s, 1, 0, first, "before many heads");
        feed(&s, 4, 0, other, "before many heads");
        for (int32_t i = 0; i < 16; i++) {
            begin(&s);
            add_text(&s, 1, first + i, first + i + 1);
            if (i % 2) {
                add_text(&s, 4, other + i / 2, other + i / 2 + 1);
            }
            run(&s);
            check(&s, "many heads");
        }
        pair_close(&s.p);
    }
}

/* ---- the same bits ----------------------------------------------------------------------------
 */

/* Rows of the GPU's output, to compare bits. */
static void take(struct scene *s, float *to, int32_t first_row, int32_t pos, int32_t n)
{
    float *rows = tensor_get(&s->p, &s->out, GPU);
    for (int32_t r = 0; r < n; r++) {
        memcpy(to + (size_t)(pos + r) * (size_t)s->values,
               rows + (size_t)(first_row + r) * (size_t)s->out.stride,
               (size_t)s->values * sizeof *to);
    }
    free(rows);
}

/* Pieces of random length, with other lanes beside them. */
TEST(deterministic_rows_have_the_same_bits_in_any_pieces)
{
    NEED_GPU();
    for (int32_t i = 0; i < COUNT(cases); i++) {
        struct scene s;
        REQUIRE(open_scene(&s, dtype_for(&cases[i], i), true, &cases[i], (enum way)(i % 2)));
        const int32_t n = pick(&s, 100, 300);
        const size_t n_bytes = (size_t)n * (size_t)s.values * sizeof(float);
        float *whole = xcalloc(1, n_bytes), *cut = xcalloc(1, n_bytes);
        begin(&s);
        add_text(&s, 0, 0, n);
        run(&s);
        take(&s, whole, 0, 0, n);
        for (int32_t at = 0; at < n;) {
            const int32_t most = pick(&s, 0, 1) ? 100 : 5, step = pick(&s, 1, most);
            const int32_t to = lesser(at + step, n), other = pick(&s, 1, 20);
            begin(&s);
            add_text(&s, 2, 0, other);
            add_text(&s, 1, at, to);
            run(&s);
            take(&s, cut, other, at, to - at);
            at = to;
        }
        CHECK(memcmp(whole, cut, n_bytes) == 0);
        free(whole);
        free(cut);
        pair_close(&s.p);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
