// SPDX-License-Identifier: Apache-2.0
/* Keys that are NaN: on the GPU the same outputs of attention are NaN as on the CPU, where a row is
 * NaN if it sees such a key, even if it sees nothing else of a chunk of keys. */
#include "test/cuda/cuda_layers.h"

enum { PAST = 560, FIRST_PART = 512, N_LANES = 4 };

/* Stores rows [from, to) of each lane; in all lanes but the last, keys below FIRST_PART are NaN. */
static void store_part(struct setup *u, struct test_pass *t, int32_t from, int32_t to)
{
    struct pair *p = &u->p;
    for (int32_t lane = 0; lane < N_LANES; lane++) {
        struct seq_spec specs[N_LANES] = {{0}};
        specs[lane] = (struct seq_spec){from, to - from, false};
        pass_of(t, specs, N_LANES, false, 50);
        pass_begin(p, t);
        struct pair_tensor qkv = tensor_random(p, to - from, u->width, u->width + 8, 1.0f);
        float *values = tensor_get(p, &qkv, CPU);
        for (int32_t r = 0; r < to - from && from < FIRST_PART && lane < N_LANES - 1; r++) {
            float *key = values + (size_t)r * (size_t)qkv.stride + u->s.n_heads * u->s.head_dim;
            for (int32_t d = 0; d < u->s.n_kv_heads * u->s.head_dim; d++) {
                key[d] = NAN;
            }
        }
        tensor_put(p, &qkv, values);
        free(values);
        struct rope_store_args a;
        BOTH(p, rope_store, a, a = rope_args(u, 1, to - from, b); a.qkv = qkv.t[b]);
        pass_end(p);
    }
}

static void check_same_nans(struct setup *u, const struct pair_tensor *out, const char *what)
{
    const int32_t width = u->s.n_heads * u->s.head_dim;
    float *cpu = tensor_get(&u->p, out, CPU), *gpu = tensor_get(&u->p, out, GPU);
    for (int32_t r = 0; COMPARED && r < out->n_rows; r++) {
        int32_t n_other = 0;
        for (int32_t i = r * out->stride; i < r * out->stride + width; i++) {
            n_other += isnan(cpu[i]) != isnan(gpu[i]);
        }
        if (n_other > 0) {
            CHECK_FAIL("%s: %d numbers of row %d are NaN on one of the two (CPU %g, GPU %g)", what,
                       n_other, r, (double)cpu[r * out->stride], (double)gpu[r * out->stride]);
        }
    }
    free(cpu);
    free(gpu);
}

/* One pass over new rows of all lanes. */
static void attend_rows(struct setup *u, struct test_pass *t, const struct seq_spec *specs,
                        const char *what)
{
    struct pair *p = &u->p;
    pass_of(t, specs, N_LANES, false, 51);
    pass_begin(p, t);
    struct pair_tensor qkv = store_rows(u, t->pass.n_rows);
    const int32_t width = u->s.n_heads * u->s.head_dim;
    struct pair_tensor out = tensor_poisoned(p, qkv.n_rows, width + 8, p->dtype);
    struct attention_args a;
    BOTH(p, attention, a, a = attention_args(u, qkv.n_rows, b); a.q = qkv.t[b]; a.out = out.t[b]);
    pass_end(p);
    check_same_nans(u, &out, what);
}

static void nan_keys_case(enum dtype dtype, bool deterministic, const struct shape *s,
                          struct stored stored)
{
    static const struct seq_spec decode[] = {
        {PAST, 1, false}, {PAST, 1, false}, {PAST, 1, false}, {PAST, 1, false}};
    static const struct seq_spec mixed[] = {
        {PAST, 40, false}, {PAST, 1, false}, {PAST, 9, true}, {PAST, 70, false}};
    static struct test_pass t;
    struct setup u = {0};
    REQUIRE(open_setup_of(&u, dtype, deterministic, s, stored));
    struct pair *p = &u.p;
    step_begin(p);
    give_blocks(p, N_LANES, 1024 / s->block_tokens);
    store_part(&u, &t, 0, FIRST_PART);
    step_end(p, NULL);
    step_begin(p); // a step has no room for more passes
    store_part(&u, &t, FIRST_PART, PAST);
    step_end(p, NULL);
    step_begin(p);
    char what[128];
    snprintf(what, sizeof what, "dtype %d heads %d/%d of %d window %d format %d deterministic %d",
             dtype, s->n_heads, s->n_kv_heads, s->head_dim, s->window, stored.format,
             deterministic);
    attend_rows(&u, &t, decode, what);
    attend_rows(&u, &t, mixed, what);
    step_end(p, NULL);
    pair_close(p);
}

TEST(nan_keys_reach_the_same_rows)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {4, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 60, 0.0f, true, 64, false, 0, false, 0},
        {4, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 30, 0.0f, false, 16, false, 0, false, 0},
        {3, 3, 36, 8, false, QK_NORM_NONE, NORM_RMS, 0, 30.0f, false, 16, false, 0, false, 0},
    };
    static const struct stored plain = {.format = KV_PLAIN};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < 2 * COUNT(shapes); i++) {
            nan_keys_case(pair_dtypes[d], i % 2, &shapes[i / 2], plain);
            nan_keys_case(pair_dtypes[d], i % 2, &shapes[i / 2],
                          stored_codes[(i + d) % COUNT(stored_codes)]);
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
