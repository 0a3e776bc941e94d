// SPDX-License-Identifier: Apache-2.0
/* Recurrent layers: convolution and recurrence compared with plain token-by-token formulas
 * in double precision. The bits are the same for any division of the rows: in one pass or many,
 * after rejected drafts, in trees, from snapshots and forks. */
#include "test/device/op_harness.h"

#include "cpu/cpu_state.h"
#include "engine/base/minmax.h"

/* MOST inputs of the text, SPARE inputs of drafts. */
enum { MOST = 160, SPARE = 40, LANES = 4, SNAPSHOTS = 3 };

/* One layer, its inputs for each token, and the pass that is being built. */
struct layer {
    struct op_rig rig;
    struct state_layer g;
    enum dtype dtype;
    int32_t block, max_ahead, decays;
    float bound, scale, beta_scale;
    float *raw, *decay, *beta; // [MOST + SPARE] rows
    float *kernel, *bias, *a_log, *dt_bias, *skip;
    struct weight *w_kernel, *w_bias, *w_a_log, *w_dt_bias, *w_skip;
    struct tensor x, conv, d, b, out;
    struct op_pass pass;
};

static int32_t width_of(const struct layer *l)
{
    return l->g.n_heads * l->g.value_dim;
}

static void open_layer(struct layer *l, const char *backend)
{
    struct backend_limits limits = op_limits();
    struct err err = {""};
    limits.max_lanes = LANES;
    limits.max_tree_nodes = 32;
    *l = (struct layer){.dtype = op_int(0, 1) ? DT_F32 : DT_BF16, .block = 16 * op_int(1, 4)};
    l->rig = op_open(backend, l->dtype, &limits);
    l->max_ahead = op_int(0, 1) ? op_int(1, 15) : 0;
    struct state_layer *g = &l->g;
    g->kind = op_int(0, 2) ? STATE_DELTA : STATE_DECAY;
    g->n_key_heads = op_int(1, 3);
    g->n_heads = g->n_key_heads * op_int(1, 3);
    g->key_dim = op_int(1, 40);
    g->value_dim = op_int(1, 40);
    g->per_channel = g->kind == STATE_DELTA && op_int(0, 1);
    g->conv_kernel = op_int(2, 5);
    g->conv_width = 2 * g->n_key_heads * g->key_dim + width_of(l);
    l->decays = g->n_heads * (g->per_channel ? g->key_dim : 1);
    l->bound = g->kind == STATE_DELTA && op_int(0, 1) ? -2.0f : 0.0f;
    l->scale = 0.7f;
    l->beta_scale = g->n_heads % 2 ? 1.0f : 1.7f;
    const struct state_set_desc d = {1, g, l->dtype, l->block, l->max_ahead};
    CHECK_EQ(l->rig.ops->state_open(l->rig.be, 0, &d, SNAPSHOTS, &err), OK);
    size_t rows = MOST + SPARE;
    l->raw = op_random(rows * (size_t)g->conv_width, 1.0f);
    l->decay = op_random(rows * (size_t)l->decays, 1.5f);
    l->beta = op_random(rows * (size_t)g->n_heads, 2.0f);
    l->kernel = op_random((size_t)(g->conv_kernel * g->conv_width), 0.5f);
    l->bias = op_random((size_t)g->conv_width, 0.2f);
    l->a_log = op_random((size_t)g->n_heads, 0.7f);
    l->dt_bias = op_random((size_t)l->decays, 0.7f);
    l->skip = op_random((size_t)g->n_heads, 0.7f);
    l->w_kernel = op_vector(&l->rig, l->kernel, g->conv_kernel * g->conv_width);
    l->w_bias = op_vector(&l->rig, l->bias, g->conv_width);
    l->w_a_log = op_vector(&l->rig, l->a_log, g->n_heads);
    l->w_dt_bias = op_vector(&l->rig, l->dt_bias, l->decays);
    l->w_skip = op_vector(&l->rig, l->skip, g->n_heads);
    int32_t most = 2 * MOST;
    l->x = op_tensor(&l->rig, NULL, most, g->conv_width, g->conv_width + 1);
    l->conv = op_tensor(&l->rig, NULL, most, g->conv_width, g->conv_width + 2);
    l->d = op_tensor(&l->rig, NULL, most, l->decays, l->decays + 3);
    l->b = op_tensor(&l->rig, NULL, most, g->n_heads, g->n_heads + 1);
    l->out = op_tensor(&l->rig, NULL, most, width_of(l), width_of(l) + 1);
}

static void close_layer(struct layer *l)
{
    float *all[] = {l->raw, l->decay, l->beta, l->kernel, l->bias, l->a_log, l->dt_bias, l->skip};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    op_close(&l->rig);
}

/* ---- running rows ---------------------------------------------------------------------------- */

/* Begins a pass, adds sequences whose row r has input `inputs[r]`, and runs it: out [rows][width].
 */
static void begin(struct layer *l)
{
    l->pass.pass = (struct pass){.n_rows = 0};
    memset(l->pass.mask, 0, sizeof l->pass.mask);
}

static void put_row(struct layer *l, int32_t row, int32_t input)
{
    struct {
        const float *from;
        struct tensor *to;
        int32_t n;
    } parts[] = {{l->raw, &l->x, l->g.conv_width},
                 {l->decay, &l->d, l->decays},
                 {l->beta, &l->b, l->g.n_heads}};
    for (int32_t i = 0; i < 3; i++) {
        size_t at = (size_t)row * (size_t)parts[i].to->stride * sizeof(float);
        l->rig.ops->write(l->rig.be, dmem_at(parts[i].to->mem, at),
                          parts[i].from + (size_t)input * (size_t)parts[i].n,
                          (size_t)parts[i].n * sizeof(float));
    }
}

static void add(struct layer *l, int32_t lane, int32_t n_past, const int32_t *inputs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        put_row(l, l->pass.pass.n_rows + i, inputs[i]);
    }
    op_add_seq(&l->pass, lane, n_past, n);
}

static float *run(struct layer *l)
{
    const struct state_layer *g = &l->g;
    int32_t n = l->pass.pass.n_rows, keys = g->n_key_heads * g->key_dim;
    struct short_conv_args conv = {.x = l->x,
                                   .out = l->conv,
                                   .weight = l->w_kernel,
                                   .bias = l->w_bias,
                                   .n_rows = n,
                                   .width = g->conv_width,
                                   .kernel = g->conv_kernel,
                                   .silu = true};
    struct recurrence_args a = {.x = l->conv,
                                .k_at = keys,
                                .v_at = 2 * keys,
                                .decay = l->d,
                                .beta = l->b,
                                .out = l->out,
                                .a_log = l->w_a_log,
                                .dt_bias = l->w_dt_bias,
                                .skip = l->w_skip,
                                .n_rows = n,
                                .decay_scale = l->scale,
                                .beta_scale = l->beta_scale,
                                .decay_bound = l->bound};
    op_begin(&l->rig, &l->pass);
    CHECK_EQ(l->rig.ops->short_conv(l->rig.be, &conv), OK);
    CHECK_EQ(l->rig.ops->recurrence(l->rig.be, &a), OK);
    op_end(&l->rig);
    return op_fetch(&l->rig, l->out, n, width_of(l));
}

/* Rows [from, to) of the text in one pass; out gets them at their positions. */
static void feed(struct layer *l, int32_t lane, int32_t from, int32_t to, float *out)
{
    int32_t inputs[MOST];
    for (int32_t i = from; i < to; i++) {
        inputs[i - from] = i;
    }
    begin(l);
    add(l, lane, from, inputs, to - from);
    float *rows = run(l);
    size_t width = (size_t)width_of(l);
    memcpy(out + (size_t)from * width, rows, (size_t)(to - from) * width * sizeof *rows);
    free(rows);
}

/* ---- against the formulas ----------------------------------------------------------------- */

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double convolved(const struct layer *l, int32_t t, int32_t c)
{
    double sum = (double)l->bias[c];
    for (int32_t i = 0; i < l->g.conv_kernel; i++) {
        int32_t from = t - (l->g.conv_kernel - 1 - i);
        if (from >= 0) {
            float x = op_rounded(l->dtype, l->raw[(size_t)from * l->g.conv_width + c]);
            sum += (double)x * (double)l->kernel[(size_t)i * l->g.conv_width + c];
        }
    }
    return silu(sum);
}

static void unit(double *x, int32_t n, double scale)
{
    double square = 0.0;
    for (int32_t i = 0; i < n; i++) {
        square += x[i] * x[i];
    }
    for (int32_t i = 0; i < n; i++) {
        x[i] *= scale / sqrt(square + 1e-6);
    }
}

/* One head's step: s [key_dim][value_dim] in place. */
static void step_ref(const struct layer *l, int32_t t, int32_t h, double *s, double *out)
{
    const struct state_layer *g = &l->g;
    int32_t dk = g->key_dim, dv = g->value_dim, kh = h / (g->n_heads / g->n_key_heads);
    double q[64], k[64], v[64], known[64];
    for (int32_t d = 0; d < dk; d++) {
        q[d] = convolved(l, t, kh * dk + d);
        k[d] = convolved(l, t, (g->n_key_heads + kh) * dk + d);
    }
    for (int32_t d = 0; d < dv; d++) {
        v[d] = convolved(l, t, 2 * g->n_key_heads * dk + h * dv + d);
    }
    if (g->kind == STATE_DELTA) {
        unit(q, dk, 1.0 / sqrt(dk));
        unit(k, dk, 1.0);
    }
    double strength = exp((double)l->a_log[h]), dt = 0.0;
    for (int32_t d = 0; d < dk; d++) {
        int32_t at = g->per_channel ? h * dk + d : h;
        double a = (double)l->scale * (double)l->decay[(size_t)t * l->decays + at] +
                   (double)l->dt_bias[at];
        dt = log1p(exp(a));
        double by =
            exp(l->bound < 0.0f ? (double)l->bound / (1.0 + exp(-strength * a)) : -strength * dt);
        for (int32_t i = 0; i < dv; i++) {
            s[d * dv + i] *= by;
        }
    }
    double beta = (double)l->beta_scale / (1.0 + exp(-(double)l->beta[(size_t)t * g->n_heads + h]));
    for (int32_t i = 0; i < dv; i++) {
        known[i] = 0.0;
        for (int32_t d = 0; d < dk; d++) {
            known[i] += k[d] * s[d * dv + i];
        }
        double u = g->kind == STATE_DELTA ? beta * (v[i] - known[i]) : dt * v[i];
        for (int32_t d = 0; d < dk; d++) {
            s[d * dv + i] += k[d] * u;
        }
        out[i] = (double)l->skip[h] * v[i];
        for (int32_t d = 0; d < dk; d++) {
            out[i] += q[d] * s[d * dv + i];
        }
    }
}

static void try_formulas(const char *backend)
{
    struct layer l;
    open_layer(&l, backend);
    const struct state_layer *g = &l.g;
    int32_t n = op_int(1, MOST), width = width_of(&l);
    float *out = xcalloc((size_t)(n * width), sizeof *out);
    double *wanted = xcalloc((size_t)(n * width), sizeof *wanted);
    feed(&l, op_int(0, LANES - 1), 0, n, out);
    for (int32_t h = 0; h < g->n_heads; h++) {
        double s[64 * 64] = {0};
        for (int32_t t = 0; t < n; t++) {
            step_ref(&l, t, h, s, wanted + (size_t)t * width + (size_t)h * g->value_dim);
        }
    }
    double off = op_distance(out, wanted, (size_t)n * width);
    if (off > (l.dtype == DT_F32 ? 5e-5 : 0.1)) {
        CHECK_FAIL("off by %g: kind %d, keys %d x %d, values %d x %d, %d tokens, block %d", off,
                   g->kind, g->n_key_heads, g->key_dim, g->n_heads, g->value_dim, n, l.block);
    }
    free(out);
    free(wanted);
    close_layer(&l);
}

OP_TEST(the_recurrence_equals_single_steps)
{
    for (int32_t i = 0; i < 24; i++) {
        try_formulas(backend);
    }
}

/* ---- the same bits ------------------------------------------------------------------------ */

static bool same(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (a[i] != b[i]) {
            return false;
        }
    }
    return true;
}

/* Drafts after `known` that are rejected: the row at `known` has the text's token, the others do
 * not. */
static void draft(struct layer *l, int32_t lane, int32_t known, float *out)
{
    int32_t inputs[32], n = 1 + op_int(0, l->max_ahead);
    inputs[0] = known;
    for (int32_t i = 1; i < n; i++) {
        inputs[i] = MOST + op_int(0, SPARE - 1);
    }
    begin(l);
    add(l, lane, known, inputs, n);
    float *rows = run(l);
    memcpy(out + (size_t)known * width_of(l), rows, (size_t)width_of(l) * sizeof *rows);
    free(rows);
}

static void try_splits(const char *backend)
{
    struct layer l;
    open_layer(&l, backend);
    int32_t n = op_int(2, MOST), width = width_of(&l);
    float *whole = xcalloc((size_t)(n * width), sizeof *whole);
    float *cut = xcalloc((size_t)(n * width), sizeof *cut);
    feed(&l, 0, 0, n, whole);
    for (int32_t at = 0; at < n;) {
        if (l.max_ahead > 0 && op_int(0, 2) == 0) {
            draft(&l, 1, at++, cut);
            continue;
        }
        int32_t step = op_int(0, 2) ? op_int(1, 5) : op_int(1, 90);
        int32_t end = lesser(at + step, n);
        feed(&l, 1, at, end, cut);
        at = end;
    }
    if (!same(whole, cut, (int64_t)n * width)) {
        CHECK_FAIL("other bits in pieces: %d tokens, block %d, ahead %d", n, l.block, l.max_ahead);
    }
    free(whole);
    free(cut);
    close_layer(&l);
}

OP_TEST(chunks_and_rejected_drafts_change_no_bits)
{
    for (int32_t i = 0; i < 30; i++) {
        try_splits(backend);
    }
}

/* Several sequences in one pass. */
OP_TEST(other_sequences_in_the_pass_change_no_bits)
{
    for (int32_t i = 0; i < 8; i++) {
        struct layer l;
        open_layer(&l, backend);
        int32_t width = width_of(&l), n = op_int(2, 70), half = op_int(1, n - 1), inputs[MOST];
        float *whole = xcalloc((size_t)(n * width), sizeof *whole);
        feed(&l, 0, 0, n, whole);
        feed(&l, 1, 0, half, whole);
        for (int32_t j = 0; j < n; j++) {
            inputs[j] = j;
        }
        begin(&l);
        add(&l, 2, 0, inputs, n);
        add(&l, 1, half, inputs + half, n - half);
        float *rows = run(&l);
        CHECK(same(rows, whole, (int64_t)n * width));
        CHECK(same(rows + (size_t)n * width, whole + (size_t)half * width,
                   (int64_t)(n - half) * width));
        free(rows);
        free(whole);
        close_layer(&l);
    }
}

/* ---- trees -------------------------------------------------------------------------------- */

static void see(struct layer *l, int32_t row, int32_t parent)
{
    for (int32_t w = 0; parent >= 0 && w < TREE_MASK_WORDS; w++) {
        l->pass.mask[row * TREE_MASK_WORDS + w] |= l->pass.mask[parent * TREE_MASK_WORDS + w];
    }
    l->pass.mask[row * TREE_MASK_WORDS + row / 64] |= 1ull << (row % 64);
}

/* A tree below the text's token `known` that contains the text as a path of `depth` nodes; that
 * path is accepted. The rows' outputs are stored at their positions. */
static void grow(struct layer *l, int32_t lane, int32_t known, int32_t depth, float *out)
{
    int32_t inputs[64], parent[64], pos[64], path[64], n = 1, last = 0;
    inputs[0] = known;
    parent[0] = -1;
    pos[0] = known;
    path[0] = 0;
    for (int32_t d = 1; d <= depth; d++) { // the remaining nodes of the path still fit
        int32_t room = l->max_ahead - (n - 1) - (depth - d + 1), others = op_int(0, 2);
        others = lesser(others, room);
        int32_t nth = op_int(0, others), under = last;
        for (int32_t i = 0; i <= others; i++, n++) {
            if (i == nth) {
                inputs[n] = known + d;
            } else {
                inputs[n] = MOST + op_int(0, SPARE - 1);
            }
            parent[n] = under;
            pos[n] = known + d;
            if (i == nth) {
                last = n;
            }
        }
        path[d] = last;
    }
    begin(l);
    add(l, lane, known, inputs, n);
    l->pass.seqs[0].tree = true;
    l->pass.pass.tree_mask = l->pass.mask;
    for (int32_t i = 0; i < n; i++) {
        l->pass.rows[i].pos = pos[i];
        see(l, i, parent[i]);
    }
    float *rows = run(l);
    size_t width = (size_t)width_of(l);
    struct slot_move moves[64];
    for (int32_t d = 0; d <= depth; d++) {
        memcpy(out + (size_t)(known + d) * width, rows + (size_t)path[d] * width,
               width * sizeof *rows);
        moves[d] = (struct slot_move){lane, known + path[d], known + d};
    }
    cpu_state_move_slots((struct cpu_backend *)l->rig.be, depth + 1, moves, 0);
    free(rows);
}

static void try_tree(const char *backend)
{
    struct layer l;
    do {
        open_layer(&l, backend);
    } while (l.max_ahead < 4 && (close_layer(&l), true));
    int32_t n = op_int(20, MOST), width = width_of(&l);
    float *whole = xcalloc((size_t)(n * width), sizeof *whole);
    float *grown = xcalloc((size_t)(n * width), sizeof *grown);
    feed(&l, 0, 0, n, whole);
    for (int32_t at = 0; at < n;) {
        int32_t room = l.block - 2 - at % l.block; // only the root may end a block
        room = lesser(room, n - 1 - at);
        int32_t depth = op_int(0, 3);
        depth = lesser(depth, room);
        if (room < 0 || op_int(0, 3) == 0) {
            feed(&l, 1, at, at + 1, grown);
            at++;
            continue;
        }
        grow(&l, 1, at, depth, grown);
        at += depth + 1;
    }
    if (!same(whole, grown, (int64_t)n * width)) {
        CHECK_FAIL("other bits in trees: %d tokens, block %d, ahead %d", n, l.block, l.max_ahead);
    }
    free(whole);
    free(grown);
    close_layer(&l);
}

OP_TEST(paths_of_trees_have_the_bits_of_chains)
{
    for (int32_t i = 0; i < 20; i++) {
        try_tree(backend);
    }
}

/* ---- snapshots and forks ------------------------------------------------------------------ */

static void copy(struct layer *l, int32_t from, int32_t to, int32_t pos)
{
    const struct state_copy c = {from, to, pos};
    CHECK_EQ(l->rig.ops->copy_states(l->rig.be, 0, 1, &c), OK);
}

OP_TEST(snapshots_and_forks_resume_with_the_same_bits)
{
    for (int32_t i = 0; i < 20; i++) {
        struct layer l;
        open_layer(&l, backend);
        int32_t n = l.block + op_int(1, MOST - l.block - 1), width = width_of(&l);
        int32_t known = l.block + op_int(0, n - l.block), mark = known / l.block * l.block;
        float *whole = xcalloc((size_t)(MOST * width), sizeof *whole);
        float *again = xcalloc((size_t)(MOST * width), sizeof *again);
        feed(&l, 0, 0, known, whole);
        if (l.max_ahead > 0 && known < MOST) {
            draft(&l, 0, known, whole);
        }
        copy(&l, 0, LANES + 1, mark);
        copy(&l, 0, 3, known);
        feed(&l, 0, known, MOST, whole);
        feed(&l, 2, 0, op_int(1, MOST), again); // after another text in the same lane
        copy(&l, LANES + 1, 2, mark);
        for (int32_t at = mark; at < MOST;) {
            int32_t end = lesser(at + op_int(1, 40), MOST);
            end = lesser(end, MOST);
            feed(&l, 2, at, end, again);
            at = end;
        }
        size_t from = (size_t)mark * width;
        CHECK(same(whole + from, again + from, (int64_t)(MOST - mark) * width));
        feed(&l, 3, known, MOST, again);
        from = (size_t)known * width;
        CHECK(same(whole + from, again + from, (int64_t)(MOST - known) * width));
        free(whole);
        free(again);
        close_layer(&l);
    }
}

OP_TEST(invalid_state_sets_are_refused)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_F32, &limits);
    const struct state_layer good = {.kind = STATE_DELTA,
                                     .n_heads = 4,
                                     .n_key_heads = 2,
                                     .key_dim = 8,
                                     .value_dim = 8,
                                     .conv_width = 64,
                                     .conv_kernel = 4};
    struct state_sizes sizes;
    for (int32_t i = 0; i < 7; i++) {
        struct state_layer g = good;
        struct state_set_desc d = {1, &g, DT_F32, 64, 3};
        if (i == 1) {
            g.n_key_heads = 3;
        }
        if (i == 2) {
            g.key_dim = 0;
        }
        if (i == 3) {
            g.conv_kernel = 0;
        }
        if (i == 4) {
            d.block = 24;
        }
        if (i == 5) {
            d.dtype = DT_U8;
        }
        if (i == 6) {
            d.max_ahead = -1;
        }
        CHECK_EQ(rig.ops->state_bytes(rig.be, &d, &sizes), i == 0 ? OK : ERR_INVALID);
    }
    op_close(&rig);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
