// SPDX-License-Identifier: Apache-2.0
/* The ops that treat rows one by one, against naive formulas in double precision. */
#include "engine/base/minmax.h"
#include "test/device/op_harness.h"

/* The norm of a row in double precision, computed in two passes. */
static double norm_ref(enum norm_kind kind, const float *x, int32_t n, double eps, double *mean)
{
    double m = 0.0, square = 0.0;
    for (int32_t i = 0; i < n && kind == NORM_LAYER; i++) {
        m += (double)x[i] / n;
    }
    for (int32_t i = 0; i < n; i++) {
        square += ((double)x[i] - m) * ((double)x[i] - m);
    }
    *mean = m;
    return 1.0 / sqrt(square / n + eps);
}

/* Norms of the sum of x and delta, which is also written back to x. */
static void try_norm(const char *backend, enum norm_kind kind, int32_t rows, int32_t width,
                     bool delta, bool bias, float offset)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    size_t n = (size_t)rows * width;
    float *x = op_random(n, 2.0f), *d = op_random(n, 1.0f), *w = op_random(width, 1.0f);
    float *b = op_random(width, 1.0f);
    struct norm_args a = {
        .x = op_tensor(&rig, x, rows, width, width + 1),
        .out = op_tensor(&rig, NULL, rows, width, width + 2),
        .weight = op_vector(&rig, w, width),
        .bias = bias ? op_vector(&rig, b, width) : NULL,
        .n_rows = rows,
        .width = width,
        .kind = kind,
        .eps = 1e-5f,
        .weight_offset = offset,
        .delta_scale = 0.5f,
        .x_scale = rows % 2 ? 0.7f : 0.0f,
    };
    const float x_scale = rows % 2 ? 0.7f : 1.0f;
    if (delta) {
        a.delta = op_tensor(&rig, d, rows, width, width);
    }
    CHECK_EQ(rig.ops->norm(rig.be, &a), OK);
    float *out = op_fetch(&rig, a.out, rows, width), *after = op_fetch(&rig, a.x, rows, width);
    double *wanted = xcalloc(n, sizeof *wanted), mean;
    for (size_t i = 0; i < n; i++) {
        if (delta) {
            x[i] = (x[i] + 0.5f * d[i]) * x_scale;
        }
        CHECK_NEAR(after[i], x[i], 1e-6);
    }
    for (int32_t r = 0; r < rows; r++) {
        double s = norm_ref(kind, x + (size_t)r * width, width, 1e-5, &mean);
        for (int32_t i = 0; i < width; i++) {
            wanted[(size_t)r * width + i] =
                ((double)x[(size_t)r * width + i] - mean) * s * ((double)w[i] + (double)offset) +
                (bias ? (double)b[i] : 0.0);
        }
    }
    CHECK(op_distance(out, wanted, n) < 1e-5);
    a.out = a.x; // in place
    a.delta.mem.p = NULL;
    CHECK_EQ(rig.ops->norm(rig.be, &a), OK);
    free(out);
    out = op_fetch(&rig, a.x, rows, width);
    CHECK(op_distance(out, wanted, n) < 1e-5);
    free(out);
    free(after);
    free(wanted);
    free(x);
    free(d);
    free(w);
    free(b);
    op_close(&rig);
}

OP_TEST(norm_adds_scales_and_normalises)
{
    for (int32_t i = 0; i < 24; i++) {
        try_norm(backend, i % 2 ? NORM_LAYER : NORM_RMS, op_int(1, 9), op_int(1, 300),
                 op_int(0, 1) == 1, op_int(0, 1) == 1, i % 3 == 0 ? 1.0f : 0.0f);
    }
}

/* The activations' definitions. */
static double act_ref(enum activation kind, struct act_shape s, double g, double u)
{
    switch (kind) {
    case ACT_SILU: return g / (1.0 + exp(-g)) * u;
    case ACT_GELU: return 0.5 * g * (1.0 + erf(g / sqrt(2.0))) * u;
    case ACT_GELU_TANH:
        return 0.5 * g * (1.0 + tanh(sqrt(2.0 / 3.14159265358979) * (g + 0.044715 * g * g * g))) *
               u;
    case ACT_RELU: return fmax(g, 0.0) * u;
    case ACT_RELU2: return fmax(g, 0.0) * fmax(g, 0.0) * u;
    case ACT_SILU_CLAMPED:
        u = fmax(fmin(u, (double)s.limit), -(double)s.limit);
        return fmin(g / (1.0 + exp(-g)), (double)s.alpha) * u;
    case ACT_GPT_OSS:
        g = fmin(g, (double)s.limit);
        u = fmax(fmin(u, (double)s.limit), -(double)s.limit);
        return g / (1.0 + exp(-(double)s.alpha * g)) * (u + 1.0);
    case ACT_XIELU:
        if (g > 0.0) {
            return (double)s.rise * g * g + (double)s.slope * g;
        }
        return (double)s.fall * (expm1(g) - g) + (double)s.slope * g;
    }
    return NAN;
}

/* Includes large inputs, where exp would overflow. */
OP_TEST(activations_follow_their_formulas)
{
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_BF16, &limits);
    const struct act_shape other = {2.5f, 0.9f, 0.3f, 1.7f, 0.8f};
    for (int32_t i = 0; i < 48; i++) {
        struct activation_args a = {.n_rows = op_int(1, 5), .width = op_int(1, 150), .kind = i % 8};
        a.shape = i % 10 < 5 ? ACT_SHAPE_PUBLISHED : other;
        a.gated = a.kind == ACT_GPT_OSS || a.kind == ACT_SILU_CLAMPED ||
                  (a.kind != ACT_XIELU && i % 2 == 0);
        const bool apart = a.gated && i % 3 == 0;
        int32_t in = a.gated && !apart ? 2 * a.width : a.width;
        float *ups = op_random((size_t)a.n_rows * a.width, 3.0f);
        float *x = op_random((size_t)a.n_rows * in, i % 4 == 0 ? 40.0f : 3.0f);
        double *wanted = xcalloc((size_t)a.n_rows * a.width, sizeof *wanted);
        for (int32_t j = 0; j < a.n_rows * a.width; j++) {
            const float *row = x + (size_t)(j / a.width) * in;
            double u;
            if (a.gated) {
                u = (double)(apart ? ups[j] : row[a.width + j % a.width]);
            } else {
                u = 1.0;
            }
            wanted[j] = act_ref(a.kind, a.shape, (double)row[j % a.width], u);
        }
        a.x = op_tensor(&rig, x, a.n_rows, in, in + 3);
        if (apart) {
            a.up = op_tensor(&rig, ups, a.n_rows, a.width, a.width + 4);
        }
        a.out = op_tensor(&rig, NULL, a.n_rows, a.width, a.width + 1);
        CHECK_EQ(rig.ops->activation(rig.be, &a), OK);
        float *out = op_fetch(&rig, a.out, a.n_rows, a.width);
        CHECK(op_distance(out, wanted, (size_t)a.n_rows * a.width) < 3e-6);
        free(out);
        free(wanted);
        free(x);
        free(ups);
    }
    op_close(&rig);
}

/* ---- rope --------------------------------------------------------------------------------- */

/* The steps between the product of qkv and the cache in which models differ. */
struct rope_case {
    int32_t n_heads, n_kv_heads, dim, n_pairs;
    bool interleaved;
    enum qk_norm norm;
    enum norm_kind kind;
    bool per_head; // HEAD: a weight of its own for each head
    bool norm_after;
    struct query_growth growth; // how queries grow with the position
    bool v_norm;
};

static double growth_ref(const struct query_growth *g, int32_t pos)
{
    if (g->every) {
        return 1.0 + (double)g->beta * log(1.0 + floor((pos + g->offset) / (double)g->every));
    }
    return 1.0;
}

/* Rotates pairs of numbers in either order: neighbours, or halves of the head. */
static void rotate_ref(const struct rope_case *c, const float *inv, int32_t pos, double *x)
{
    for (int32_t i = 0; i < c->n_pairs; i++) {
        int32_t a = c->interleaved ? 2 * i : i, b = c->interleaved ? 2 * i + 1 : i + c->n_pairs;
        double angle = (double)((float)pos * inv[i]), u = x[a], v = x[b];
        x[a] = 1.5 * (u * cos(angle) - v * sin(angle));
        x[b] = 1.5 * (v * cos(angle) + u * sin(angle));
    }
}

/* A norm over all heads together, as some models have it. */
static void norm_all_ref(const struct rope_case *c, const float *w, int32_t width, double *x)
{
    double mean = 0.0, sum = 0.0;
    for (int32_t i = 0; i < width && c->kind == NORM_LAYER; i++) {
        mean += x[i] / width;
    }
    for (int32_t i = 0; i < width; i++) {
        sum += (x[i] - mean) * (x[i] - mean);
    }
    for (int32_t i = 0; i < width; i++) {
        x[i] = (x[i] - mean) / sqrt(sum / width + 1e-6) * ((double)w[i] + 1.0);
    }
}

/* Norm, rotation and growth in the order that the case says. */
static void qk_ref(const struct rope_case *c, const float *x, const float *w, int32_t n_heads,
                   const float *inv, int32_t pos, double *out)
{
    for (int32_t i = 0; i < n_heads * c->dim; i++) {
        out[i] = (double)x[i];
    }
    if (c->norm == QK_NORM_WIDTH) {
        norm_all_ref(c, w, n_heads * c->dim, out);
    }
    for (int32_t h = 0; h < n_heads; h++) {
        double *head = out + h * c->dim;
        const float *of_head = w + (c->per_head ? h * c->dim : 0);
        if (c->norm == QK_NORM_HEAD && !c->norm_after) {
            norm_all_ref(c, of_head, c->dim, head);
        }
        rotate_ref(c, inv, pos, head);
        if (c->norm == QK_NORM_HEAD && c->norm_after) {
            norm_all_ref(c, of_head, c->dim, head);
        }
    }
}

enum { ROPE_ROWS = 5, ROPE_PAST = 1000, ROPE_LANE = 3, ROPE_BLOCKS = 70 };

/* Compares a row with the reference: its queries in `q_out`, and its K and V in the pages. x: the
 * row before the op; qw, kw: the weights of the norms. */
static void check_rope_row(struct op_rig *rig, const struct rope_case *c, const float *inv,
                           const float *x, const float *qw, const float *kw, int32_t pos,
                           const float *q_out)
{
    int32_t q_width = c->n_heads * c->dim, k_width = c->n_kv_heads * c->dim;
    double *q = xcalloc(q_width, sizeof *q), *k = xcalloc(k_width, sizeof *k);
    qk_ref(c, x, qw, c->n_heads, inv, pos, q);
    for (int32_t i = 0; i < q_width; i++) {
        q[i] *= growth_ref(&c->growth, pos);
    }
    qk_ref(c, x + q_width, kw, c->n_kv_heads, inv, pos, k);
    CHECK(op_distance(q_out, q, q_width) < 1e-5);
    const struct kv_pages *pages = cpu_kv_layer((struct cpu_backend *)rig->be, 0);
    struct kv_slot slot = cpu_kv_slot((struct cpu_backend *)rig->be, pages, ROPE_LANE, pos);
    const float *values = x + q_width + k_width;
    for (int32_t i = 0; i < k_width; i++) {
        double mean, by = 1.0;
        if (c->v_norm) {
            by = norm_ref(NORM_RMS, values + i / c->dim * c->dim, c->dim, 1e-6, &mean);
        }
        const float *page = (const float *)(slot.block + i / c->dim * pages->head_bytes);
        CHECK_NEAR(page[i % c->dim * 16 + slot.token], k[i], 2e-5);
        const float *v = (const float *)((const char *)page + pages->v.at);
        CHECK_NEAR(v[slot.token * pages->v_stride + i % c->dim], (double)values[i] * by,
                   c->v_norm ? 1e-5 : 0.0);
    }
    free(q);
    free(k);
}

/* A layer that reads another layer's keys: its queries are the same (`out`, rows of `width`), and
 * nothing is written. `a`: the op that gave `out` from x. */
static void check_rope_alone(struct op_rig *rig, const struct rope_store_args *a, const float *x,
                             int32_t width, const int32_t *table, const float *out)
{
    int32_t q_width = a->n_heads * a->head_dim;
    struct tensor alone = op_tensor(rig, NULL, ROPE_ROWS, q_width, q_width + 1);
    for (int32_t r = 0; r < ROPE_ROWS; r++) {
        rig->ops->write(rig->be, dmem_at(alone.mem, (size_t)r * alone.stride * 4),
                        x + (size_t)r * width, (size_t)q_width * 4);
    }
    struct rope_store_args b = *a;
    b.qkv = alone;
    b.n_kv_heads = 0;
    CHECK_EQ(rig->ops->poison_blocks(rig->be, ROPE_BLOCKS, table), OK);
    CHECK_EQ(rig->ops->rope_store(rig->be, &b), OK);
    float *queries = op_fetch(rig, alone, ROPE_ROWS, q_width);
    const struct kv_pages *pages = cpu_kv_layer((struct cpu_backend *)rig->be, 0);
    for (int32_t r = 0; r < ROPE_ROWS; r++) {
        CHECK_MEM(queries + (size_t)r * q_width, out + (size_t)r * width, (size_t)q_width * 4);
        struct kv_slot slot =
            cpu_kv_slot((struct cpu_backend *)rig->be, pages, ROPE_LANE, ROPE_PAST + r);
        CHECK(isnan(((const float *)slot.block)[slot.token]));
    }
    free(queries);
}

static void try_rope(const char *backend, const struct rope_case *c)
{
    enum { ROWS = ROPE_ROWS };
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_F32, &limits);
    struct err err;
    struct kv_layer layer = {.n_heads = c->n_heads,
                             .n_kv_heads = c->n_kv_heads,
                             .head_dim_k = c->dim,
                             .head_dim_v = c->dim};
    struct kv_set_desc kv = {.n_layers = 1, .layers = &layer, .dtype = DT_F32};
    CHECK_EQ(rig.ops->kv_open(rig.be, 0, &kv, &err), OK);
    int32_t q_width = c->n_heads * c->dim, k_width = c->n_kv_heads * c->dim;
    int32_t width = q_width + 2 * k_width;
    float inv[256];
    for (int32_t i = 0; i < c->n_pairs; i++) {
        inv[i] = powf(10000.0f, -(float)i / (float)c->n_pairs);
    }
    struct rope_table *rope = NULL;
    struct rope_desc desc = {c->n_pairs, inv, 1.5f, c->interleaved, 2000};
    CHECK_EQ(rig.ops->rope_open(rig.be, &desc, &rope), OK);
    float *x = op_random((size_t)ROWS * width, 1.0f);
    float *qw = op_random(q_width, 1.0f), *kw = op_random(k_width, 1.0f);
    bool wide = c->norm == QK_NORM_WIDTH || c->per_head;
    struct tensor qkv = op_tensor(&rig, x, ROWS, width, width + 7);
    struct rope_store_args a = {.qkv = qkv,
                                .rope = rope,
                                .n_rows = ROWS,
                                .n_heads = c->n_heads,
                                .n_kv_heads = c->n_kv_heads,
                                .head_dim = c->dim,
                                .qk_norm = c->norm,
                                .qk_norm_kind = c->kind,
                                .norm_after_rope = c->norm_after,
                                .growth = c->growth,
                                .v_norm = c->v_norm,
                                .q_norm = op_vector(&rig, qw, wide ? q_width : c->dim),
                                .k_norm = op_vector(&rig, kw, wide ? k_width : c->dim),
                                .eps = 1e-6f,
                                .norm_offset = 1.0f};
    struct op_pass *p = xcalloc(1, sizeof *p);
    op_add_seq(p, ROPE_LANE, ROPE_PAST, ROWS);
    CHECK_EQ(rig.ops->step_begin(rig.be, 0), OK);
    rig.in_step = true;
    int32_t table[ROPE_BLOCKS];
    for (int32_t i = 0; i < ROPE_BLOCKS; i++) {
        table[i] = 2 * i;
    }
    CHECK_EQ(rig.ops->lane_blocks(rig.be, ROPE_LANE, 0, ROPE_BLOCKS, table), OK);
    op_begin(&rig, p);
    CHECK_EQ(rig.ops->rope_store(rig.be, &a), OK);
    float *out = op_fetch(&rig, qkv, ROWS, width);
    for (int32_t r = 0; r < ROWS; r++) {
        check_rope_row(&rig, c, inv, x + (size_t)r * width, qw, kw, ROPE_PAST + r,
                       out + (size_t)r * width);
    }
    check_rope_alone(&rig, &a, x, width, table, out);
    op_end(&rig);
    free(out);
    free(x);
    free(qw);
    free(kw);
    free(p);
    op_close(&rig);
}

OP_TEST(rope_store_norms_rotates_and_stores)
{
    static const struct rope_case cases[] = {
        {4, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, false, false, {0.0f, 0, 0}, false},
        {4, 2, 64, 32, true, QK_NORM_HEAD, NORM_RMS, false, false, {0.0f, 0, 0}, false},
        {3, 1, 20, 5, false, QK_NORM_WIDTH, NORM_RMS, false, false, {0.1f, 501, 0}, false},
        {2, 2, 48, 6, false, QK_NORM_HEAD, NORM_LAYER, true, false, {0.0f, 0, 0}, false},
        {2, 1, 128, 64, false, QK_NORM_HEAD, NORM_RMS, false, true, {0.0f, 0, 0}, false},
        {2, 2, 48, 6, true, QK_NORM_HEAD, NORM_LAYER, true, true, {0.3f, 100, 0}, false},
        {2, 1, 16, 0, false, QK_NORM_NONE, NORM_RMS, false, false, {-0.2f, 1003, 1}, false},
        {4, 1, 32, 16, false, QK_NORM_HEAD, NORM_RMS, false, false, {0.0f, 0, 0}, true},
        {2, 1, 512, 256, false, QK_NORM_HEAD, NORM_RMS, false, false, {0.0f, 0, 0}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        try_rope(backend, &cases[i]);
    }
}

/* ---- MLA ---------------------------------------------------------------------------------- */

enum { MLA_ROWS = 40, HEADS = 5, LORA = 48, ROPE = 16, NOPE = 24, VALUE = 20, KEY = LORA + ROPE };

/* Attention of one row's head, the unabsorbed way: keys and values of the head are made from the
 * normed latents c and the rotated parts kr. */
static void mla_head_ref(const struct rope_case *rc, const float *inv, const float *qh, int32_t r,
                         double (*c)[LORA], double (*kr)[ROPE], const float *absorb,
                         const float *expand, double *out)
{
    double qr[ROPE], score[MLA_ROWS], sum = 0.0;
    memset(out, 0, VALUE * sizeof *out);
    for (int32_t i = 0; i < ROPE; i++) {
        qr[i] = (double)qh[NOPE + i];
    }
    rotate_ref(rc, inv, r, qr);
    for (int32_t t = 0; t <= r; t++) {
        score[t] = 0.0;
        for (int32_t n = 0; n < NOPE; n++) {
            for (int32_t i = 0; i < LORA; i++) {
                score[t] += (double)qh[n] * c[t][i] * (double)absorb[(size_t)i * NOPE + n];
            }
        }
        for (int32_t i = 0; i < ROPE; i++) {
            score[t] += qr[i] * kr[t][i];
        }
        score[t] = exp(score[t] * growth_ref(&rc->growth, r) * (double)0.2f);
        sum += score[t];
    }
    for (int32_t t = 0; t <= r; t++) {
        for (int32_t v = 0; v < VALUE; v++) {
            for (int32_t i = 0; i < LORA; i++) {
                out[v] += score[t] / sum * c[t][i] * (double)expand[(size_t)v * LORA + i];
            }
        }
    }
}

/* The distance of the result y from the unabsorbed way. */
static double mla_error(const struct query_growth *growth, const float *inv, const float *q,
                        const float *kv, const float *w, const float *absorb, const float *expand,
                        const float *y)
{
    struct rope_case rc = {.n_pairs = ROPE / 2, .interleaved = true, .growth = *growth};
    static double c[MLA_ROWS][LORA], kr[MLA_ROWS][ROPE];
    for (int32_t r = 0; r < MLA_ROWS; r++) {
        double mean, s = norm_ref(NORM_RMS, kv + r * KEY, LORA, 1e-6, &mean);
        for (int32_t i = 0; i < LORA; i++) {
            c[r][i] = (double)kv[r * KEY + i] * s * (double)w[i];
        }
        for (int32_t i = 0; i < ROPE; i++) {
            kr[r][i] = (double)kv[r * KEY + LORA + i];
        }
        rotate_ref(&rc, inv, r, kr[r]);
    }
    double worst = 0.0;
    for (int32_t r = 0; r < MLA_ROWS; r++) {
        for (int32_t h = 0; h < HEADS; h++) {
            const float *qh = q + ((size_t)r * HEADS + h) * (NOPE + ROPE);
            double out[VALUE];
            mla_head_ref(&rc, inv, qh, r, c, kr, absorb + (size_t)h * LORA * NOPE,
                         expand + (size_t)h * VALUE * LORA, out);
            double d = op_distance(y + ((size_t)r * HEADS + h) * VALUE, out, VALUE);
            worst = greater(d, worst);
        }
    }
    return worst;
}

/* The absorbed form must equal keys and values that are computed for each head. */
OP_TEST(mla_stores_one_key_and_attends_with_absorbed_queries)
{
    enum { ROWS = MLA_ROWS };
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, DT_F32, &limits);
    struct err err;
    struct kv_layer layer = {
        .n_heads = HEADS, .n_kv_heads = 1, .head_dim_k = KEY, .head_dim_v = LORA, .v_in_k = true};
    struct kv_set_desc kv_desc = {.n_layers = 1, .layers = &layer, .dtype = DT_F32};
    CHECK_EQ(rig.ops->kv_open(rig.be, 0, &kv_desc, &err), OK);
    float inv[ROPE / 2], *q = op_random((size_t)ROWS * HEADS * (NOPE + ROPE), 1.0f);
    float *kv = op_random((size_t)ROWS * KEY, 1.0f), *w = op_random(LORA, 1.0f);
    float *absorb = op_random((size_t)HEADS * LORA * NOPE, 0.3f);
    float *expand = op_random((size_t)HEADS * VALUE * LORA, 0.3f);
    for (int32_t i = 0; i < ROPE / 2; i++) {
        inv[i] = 1.0f / (float)(1 + i);
    }
    struct rope_table *rope = NULL;
    struct rope_desc desc = {ROPE / 2, inv, 1.5f, true, 100};
    CHECK_EQ(rig.ops->rope_open(rig.be, &desc, &rope), OK);
    struct tensor tq = op_tensor(&rig, q, ROWS, HEADS * (NOPE + ROPE), HEADS * (NOPE + ROPE));
    struct tensor tkv = op_tensor(&rig, kv, ROWS, KEY, KEY + 1);
    struct tensor tk = op_tensor(&rig, NULL, ROWS, HEADS * KEY, HEADS * KEY);
    struct tensor tout = op_tensor(&rig, NULL, ROWS, HEADS * LORA, HEADS * LORA);
    struct tensor ty = op_tensor(&rig, NULL, ROWS, HEADS * VALUE, HEADS * VALUE);
    struct op_pass *p = xcalloc(1, sizeof *p);
    op_add_seq(p, 0, 0, ROWS);
    CHECK_EQ(rig.ops->step_begin(rig.be, 0), OK);
    rig.in_step = true;
    CHECK_EQ(rig.ops->lane_blocks(rig.be, 0, 0, 3, (int32_t[]){7, 2, 9}), OK);
    op_begin(&rig, p);
    struct mla_store_args store = {.q = tq,
                                   .kv = tkv,
                                   .q_out = tk,
                                   .rope = rope,
                                   .n_rows = ROWS,
                                   .n_heads = HEADS,
                                   .q_head = NOPE + ROPE,
                                   .q_rope_offset = NOPE,
                                   .rope_dim = ROPE,
                                   .kv_lora = LORA,
                                   .q_out_head = KEY,
                                   .q_out_offset = LORA,
                                   .kv_norm = op_vector(&rig, w, LORA),
                                   .eps = 1e-6f,
                                   .growth = {0.2f, 7, 1}};
    CHECK_EQ(rig.ops->mla_store(rig.be, &store), OK);
    struct linear_heads_args up = {
        op_weight(&rig, WEIGHT_HEADS, DT_F32, absorb, HEADS, LORA, NOPE, NULL, 1),
        tq,
        tk,
        ROWS,
        NOPE + ROPE,
        KEY};
    CHECK_EQ(rig.ops->linear_heads(rig.be, &up), OK);
    struct attention_args attn = {.q = tk,
                                  .out = tout,
                                  .n_rows = ROWS,
                                  .n_heads = HEADS,
                                  .n_kv_heads = 1,
                                  .head_dim_k = KEY,
                                  .head_dim_v = LORA,
                                  .scale = 0.2f};
    CHECK_EQ(rig.ops->attention(rig.be, &attn), OK);
    struct linear_heads_args down = {
        op_weight(&rig, WEIGHT_HEADS, DT_F32, expand, HEADS, VALUE, LORA, NULL, 1),
        tout,
        ty,
        ROWS,
        LORA,
        VALUE};
    CHECK_EQ(rig.ops->linear_heads(rig.be, &down), OK);
    op_end(&rig);
    float *y = op_fetch(&rig, ty, ROWS, HEADS * VALUE);

    CHECK(mla_error(&store.growth, inv, q, kv, w, absorb, expand, y) < 2e-5);
    free(y);
    free(p);
    free(q);
    free(kv);
    free(w);
    free(absorb);
    free(expand);
    op_close(&rig);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
