// SPDX-License-Identifier: Apache-2.0
/* Rows whose keys or values have NaN or infinity, stored in one pass with the other rows of their
 * tile. On both backends the outputs of the rows that see them are NaN, and all others are right.
 * */
#include "test/cuda/cuda_layers.h"

enum { PAST = 200, N_LANES = 4 };

/* What is broken in a row: all of it, or the value or key of the last KV head. */
enum broken { ALL, VALUE_NAN, VALUE_INFINITE, KEY };

struct broken_row {
    int32_t row;
    enum broken what;
};

static void break_row(const struct setup *u, float *qkv, enum broken what)
{
    const struct shape *s = &u->s;
    float *key = qkv + (s->n_heads + s->n_kv_heads - 1) * s->head_dim;
    float *value = key + s->n_kv_heads * s->head_dim;
    for (int32_t i = 0; what == ALL && i < u->width; i++) {
        qkv[i] = NAN;
    }
    if (what == KEY) {
        key[s->head_dim / 2] = NAN;
    } else if (what != ALL) {
        value[s->head_dim - 3] = what == VALUE_NAN ? NAN : -INFINITY;
    }
}

static struct pair_tensor rows_with(struct setup *u, int32_t n_rows,
                                    const struct broken_row *broken, int32_t n_broken)
{
    struct pair_tensor qkv = tensor_random(&u->p, n_rows, u->width, u->width + 8, 1.0f);
    float *values = tensor_get(&u->p, &qkv, CPU);
    for (int32_t i = 0; COMPARED && i < n_broken; i++) {
        break_row(u, values + (size_t)broken[i].row * (size_t)qkv.stride, broken[i].what);
    }
    tensor_put(&u->p, &qkv, values);
    free(values);
    return qkv;
}

/* Returns how many outputs are NaN. */
static int32_t check_outputs(struct pair *p, const char *what, const struct pair_tensor *out,
                             int32_t width, double tolerance)
{
    float *cpu = tensor_get(p, out, CPU), *gpu = tensor_get(p, out, GPU);
    int32_t n_nan = 0;
    for (int32_t r = 0; COMPARED && r < out->n_rows; r++) {
        for (int32_t c = 0; c < width; c++) {
            float *a = cpu + (size_t)r * (size_t)out->stride + c;
            float *b = gpu + (size_t)r * (size_t)out->stride + c;
            if (isnan(*a) != isnan(*b)) {
                CHECK_FAIL("%s: row %d, output %d is %g, not %g", what, r, c, (double)*b,
                           (double)*a);
                break;
            }
            if (isnan(*a)) {
                n_nan++;
                *a = *b = 0.0f;
            }
        }
    }
    check_near(what, cpu, gpu, out->n_rows, width, out->stride, tolerance);
    free(cpu);
    free(gpu);
    return n_nan;
}

static void attend_rows(struct setup *u, struct test_pass *t, const struct seq_spec *specs,
                        const struct broken_row *broken, int32_t n_broken, const char *what)
{
    struct pair *p = &u->p;
    const int32_t width = u->s.n_heads * u->s.head_dim;
    pass_of(t, specs, N_LANES, false, 60);
    pass_begin(p, t);
    struct pair_tensor qkv = rows_with(u, t->pass.n_rows, broken, n_broken);
    struct pair_tensor out = tensor_poisoned(p, qkv.n_rows, width + 8, p->dtype);
    for (int b = FIRST; b <= GPU; b++) {
        struct rope_store_args r = rope_args(u, 1, qkv.n_rows, b);
        struct attention_args a = attention_args(u, qkv.n_rows, b);
        r.qkv = a.q = qkv.t[b];
        a.out = out.t[b];
        CHECK_EQ(ops_rope_attention(p->be[b], &r, &a, NULL), OK);
    }
    pass_end(p);
    const int32_t n_nan = check_outputs(p, what, &out, width, u->tolerance);
    CHECK(!COMPARED || (n_nan > 0 && n_nan < qkv.n_rows * width));
}

static void nan_rows_case(enum dtype dtype, bool deterministic, const struct shape *s,
                          struct stored stored)
{
    static const struct seq_spec past[] = {
        {0, PAST, false}, {0, PAST, false}, {0, 40, false}, {0, PAST, false}};
    static const struct seq_spec decode[] = {
        {PAST, 1, false}, {PAST, 1, false}, {40, 1, false}, {PAST, 1, false}};
    static const struct broken_row one[] = {{1, VALUE_INFINITE}};
    /* Drafts to verify: rows 0 to 3, 4 to 6, 7 to 11 and 12 to 15. */
    static const struct seq_spec drafts[] = {
        {PAST + 1, 4, false}, {PAST + 1, 3, false}, {41, 5, true}, {PAST + 1, 4, false}};
    static const struct broken_row some[] = {
        {1, VALUE_NAN}, {5, KEY}, {9, ALL}, {14, VALUE_INFINITE}};
    /* Rows 0 to 39, 40 to 109, 110 to 118 and 119 to 138. */
    static const struct seq_spec mixed[] = {
        {PAST + 1, 40, false}, {PAST + 1, 70, false}, {41, 9, true}, {PAST + 1, 20, false}};
    static const struct broken_row several[] = {
        {21, VALUE_NAN}, {90, KEY}, {113, ALL}, {136, VALUE_INFINITE}, {137, ALL}};
    static struct test_pass t;
    struct setup u = {0};
    REQUIRE(open_setup_of(&u, dtype, deterministic, s, stored));
    struct pair *p = &u.p;
    char what[128];
    snprintf(what, sizeof what, "dtype %d heads %d/%d of %d window %d format %d deterministic %d",
             dtype, s->n_heads, s->n_kv_heads, s->head_dim, s->window, stored.format,
             deterministic);
    step_begin(p);
    give_blocks(p, N_LANES, 512 / s->block_tokens);
    for (int32_t lane = 0; lane < N_LANES; lane++) {
        struct seq_spec alone[N_LANES] = {{0}};
        alone[lane] = past[lane];
        pass_of(&t, alone, N_LANES, false, 61);
        pass_begin(p, &t);
        struct pair_tensor qkv = rows_with(&u, t.pass.n_rows, NULL, 0);
        struct rope_store_args a;
        BOTH(p, rope_store, a, a = rope_args(&u, 1, qkv.n_rows, b); a.qkv = qkv.t[b]);
        pass_end(p);
    }
    step_end(p, NULL);
    step_begin(p);
    attend_rows(&u, &t, decode, one, COUNT(one), what);
    attend_rows(&u, &t, drafts, some, COUNT(some), what);
    attend_rows(&u, &t, mixed, several, COUNT(several), what);
    step_end(p, NULL);
    pair_close(p);
}

TEST(rows_of_nan_spoil_only_rows_that_see_them)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {4, 2, 64, 32, false, QK_NORM_HEAD, NORM_RMS, 30, 0.0f, true, 64, false, 0, false, 0},
        {4, 2, 256, 128, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 32, true, 0, true, 0},
        {4, 2, 256, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 32, false, 0, true, 0},
        {8, 2, 128, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {3, 3, 36, 8, true, QK_NORM_NONE, NORM_RMS, 0, 30.0f, false, 16, false, 0, true, 0},
    };
    static const struct stored plain = {.format = KV_PLAIN};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < 2 * COUNT(shapes); i++) {
            nan_rows_case(pair_dtypes[d], i % 2, &shapes[i / 2], plain);
            nan_rows_case(pair_dtypes[d], i % 2, &shapes[i / 2],
                          stored_codes[(i + d) % COUNT(stored_codes)]);
        }
    }
}

/* ---- MLA: the value is a part of the key ---- */

enum { HEADS = 4, LORA = 64, ROPE = 16, KEY_DIM = LORA + ROPE };

struct mla_layer {
    struct pair p;
    struct rope_table *rope[2];
    struct pair_weight norm;
};

static bool open_mla(struct mla_layer *m, enum dtype dtype, struct stored stored)
{
    const struct backend_limits limits = pair_limits();
    if (!pair_open(&m->p, dtype, false, &limits)) {
        return false;
    }
    float inv_freq[ROPE / 2];
    for (int32_t i = 0; i < ROPE / 2; i++) {
        inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)ROPE);
    }
    const struct rope_desc rope = {ROPE / 2, inv_freq, 1.0f, true, 1024};
    const struct kv_layer layer = {.n_heads = HEADS,
                                   .n_kv_heads = 1,
                                   .head_dim_k = KEY_DIM,
                                   .head_dim_v = LORA,
                                   .v_in_k = true,
                                   .k_scale = stored.k_scale,
                                   .v_scale = stored.v_scale};
    const struct kv_set_desc set = {
        .n_layers = 1, .layers = &layer, .dtype = dtype, .format = stored.format};
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(m->p.be[b]->ops->rope_open(m->p.be[b], &rope, &m->rope[b]), OK);
        CHECK_EQ(m->p.be[b]->ops->kv_open(m->p.be[b], 0, &set, &err), OK);
    }
    m->norm = vector_make(&m->p, LORA, 1.0f);
    return true;
}

/* A latent of NaN in the middle of a prompt, and of a tree. */
static void mla_case(enum dtype dtype, struct stored stored)
{
    static const struct seq_spec specs[] = {{0, 40, false}, {0, 1, false}, {0, 12, true}};
    static const int32_t broken[] = {25, 46};
    static struct test_pass t;
    struct mla_layer m;
    REQUIRE(open_mla(&m, dtype, stored));
    struct pair *p = &m.p;
    step_begin(p);
    give_blocks(p, COUNT(specs), 8);
    pass_of(&t, specs, COUNT(specs), false, 62);
    pass_begin(p, &t);
    const int32_t n = t.pass.n_rows;
    struct pair_tensor q = tensor_random(p, n, HEADS * KEY_DIM, HEADS * KEY_DIM, 1.0f);
    struct pair_tensor raw = tensor_random(p, n, HEADS * 40, HEADS * 40, 1.0f);
    struct pair_tensor kv = tensor_random(p, n, KEY_DIM, KEY_DIM + 8, 1.0f);
    float *values = tensor_get(p, &kv, CPU);
    for (int32_t i = 0; COMPARED && i < COUNT(broken); i++) {
        values[broken[i] * kv.stride + 7] = NAN;
    }
    tensor_put(p, &kv, values);
    free(values);
    struct mla_store_args a = {.n_rows = n,
                               .n_heads = HEADS,
                               .q_head = 40,
                               .q_rope_offset = 24,
                               .rope_dim = ROPE,
                               .q_out_head = KEY_DIM,
                               .q_out_offset = LORA,
                               .kv_lora = LORA,
                               .eps = 1e-6f};
    BOTH(p, mla_store, a, a.q = raw.t[b]; a.q_out = q.t[b]; a.kv = kv.t[b]; a.rope = m.rope[b];
         a.kv_norm = m.norm.w[b]);
    struct pair_tensor out = tensor_poisoned(p, n, HEADS * LORA, p->dtype);
    struct attention_args at = {.n_rows = n,
                                .n_heads = HEADS,
                                .n_kv_heads = 1,
                                .head_dim_k = KEY_DIM,
                                .head_dim_v = LORA,
                                .scale = 0.1f};
    BOTH(p, attention, at, at.q = q.t[b]; at.out = out.t[b]);
    char what[64];
    snprintf(what, sizeof what, "mla: dtype %d format %d", dtype, stored.format);
    const int32_t n_nan =
        check_outputs(p, what, &out, HEADS * LORA, stored_tolerance(p, stored.format));
    CHECK(!COMPARED || (n_nan > 0 && n_nan < n * HEADS * LORA));
    pass_end(p);
    step_end(p, NULL);
    pair_close(p);
}

TEST(latents_of_nan_spoil_only_rows_that_see_them)
{
    NEED_GPU();
    static const struct stored plain = {.format = KV_PLAIN};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        mla_case(pair_dtypes[d], plain);
        for (int32_t i = 0; i < COUNT(stored_codes); i++) {
            mla_case(pair_dtypes[d], stored_codes[i]);
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
