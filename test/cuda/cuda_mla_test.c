// SPDX-License-Identifier: Apache-2.0
/* MLA as one op, from the products before it to the heads' outputs, compared with separate ops of
 * the scalar backend: of decoding rows, where later steps read the keys that earlier ones have
 * stored, and of prompts, decoding rows and trees in one pass. */
#include "engine/device/ops_default.h"
#include "test/cuda/cuda_pass.h"

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

enum { ROPE = 64, MOST_SEQS = 8 };

struct mla_shape {
    int32_t heads, lora, nope, v_dim, block_tokens;
    bool rotated, interleaved;
    float growth;
    int32_t gates; // columns of the query's product after the heads
};

struct mla_bed {
    struct pair p;
    struct mla_shape s;
    struct rope_table *rope[2];
    struct pair_weight norm, absorb, expand;
};

static bool open_bed(struct mla_bed *t, enum dtype dtype, bool deterministic,
                     const struct mla_shape *s)
{
    struct backend_limits limits = pair_limits();
    limits.block_tokens = s->block_tokens;
    if (!pair_open(&t->p, dtype, deterministic, &limits)) {
        return false;
    }
    t->s = *s;
    float inv_freq[ROPE / 2];
    for (int32_t i = 0; i < ROPE / 2; i++) {
        inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)ROPE);
    }
    const struct rope_desc rope = {ROPE / 2, inv_freq, 1.0f, s->interleaved, 1024};
    const struct kv_layer layer = {.n_heads = s->heads,
                                   .n_kv_heads = 1,
                                   .head_dim_k = s->lora + ROPE,
                                   .head_dim_v = s->lora,
                                   .v_in_k = true};
    const struct kv_set_desc set = {
        .n_layers = 1, .layers = &layer, .dtype = t->p.dtype, .format = KV_PLAIN};
    for (int b = 0; b < 2; b++) {
        struct err err;
        struct backend *be = t->p.be[b];
        CHECK_EQ(be->ops->rope_open(be, &rope, &t->rope[b]), OK);
        CHECK_EQ(be->ops->kv_open(be, 0, &set, &err), OK);
    }
    t->norm = vector_make(&t->p, s->lora, 1.0f);
    t->absorb = weight_make(&t->p, WEIGHT_HEADS, dtype, s->heads, s->lora, s->nope, false,
                            1.0f / sqrtf((float)s->nope));
    t->expand = weight_make(&t->p, WEIGHT_HEADS, dtype, s->heads, s->v_dim, s->lora, false,
                            1.0f / sqrtf((float)s->lora));
    return true;
}

static struct mla_store_args store_args(const struct mla_bed *t, int32_t n, int b)
{
    const struct mla_shape *s = &t->s;
    return (struct mla_store_args){.rope = s->rotated ? t->rope[b] : NULL,
                                   .n_rows = n,
                                   .n_heads = s->heads,
                                   .q_head = s->nope + ROPE,
                                   .q_rope_offset = s->nope,
                                   .rope_dim = ROPE,
                                   .q_out_head = s->lora + ROPE,
                                   .q_out_offset = s->lora,
                                   .kv_lora = s->lora,
                                   .kv_norm = t->norm.w[b],
                                   .eps = 1e-6f,
                                   .growth = {s->growth, 11, 0}};
}

/* The keys of the past, by the op for any number of rows. */
static void store_keys(struct mla_bed *t, struct test_pass *pass)
{
    struct pair *p = &t->p;
    const struct mla_shape *s = &t->s;
    const int32_t n = pass->pass.n_rows, key = s->lora + ROPE;
    struct pair_tensor q =
        tensor_random(p, n, s->heads * (s->nope + ROPE), s->heads * (s->nope + ROPE), 1.0f);
    struct pair_tensor kv = tensor_random(p, n, key, key + 8, 1.0f);
    struct pair_tensor q_out = tensor_poisoned(p, n, s->heads * key, p->dtype);
    for (int b = FIRST; b <= GPU; b++) {
        struct mla_store_args a = store_args(t, n, b);
        a.q = q.t[b];
        a.kv = kv.t[b];
        a.q_out = q_out.t[b];
        CHECK_EQ(p->be[b]->ops->mla_store(p->be[b], &a), OK);
    }
}

static void compute_rows(struct mla_bed *t, struct test_pass *pass, const char *what)
{
    struct pair *p = &t->p;
    const struct mla_shape *s = &t->s;
    const int32_t n = pass->pass.n_rows, key = s->lora + ROPE, q_head = s->nope + ROPE;
    const int32_t q_width = s->heads * q_head + s->gates, out_width = s->heads * s->v_dim;
    struct pair_tensor q = tensor_random(p, n, q_width, q_width + 8, 1.0f);
    struct pair_tensor kv = tensor_random(p, n, key, key + 8, 1.0f);
    struct pair_tensor q_out = tensor_poisoned(p, n, s->heads * key, p->dtype);
    struct pair_tensor mid = tensor_poisoned(p, n, s->heads * s->lora, p->dtype);
    struct pair_tensor out = tensor_poisoned(p, n, out_width + 8, p->dtype);
    for (int b = FIRST; b <= GPU; b++) {
        struct mla_store_args store = store_args(t, n, b);
        store.q = q.t[b];
        store.kv = kv.t[b];
        store.q_out = q_out.t[b];
        const struct linear_heads_args absorb = {.weight = t->absorb.w[b],
                                                 .x = q.t[b],
                                                 .y = q_out.t[b],
                                                 .n_rows = n,
                                                 .x_head = q_head,
                                                 .y_head = key};
        const struct attention_args attention = {.q = q_out.t[b],
                                                 .out = mid.t[b],
                                                 .n_rows = n,
                                                 .n_heads = s->heads,
                                                 .n_kv_heads = 1,
                                                 .head_dim_k = key,
                                                 .head_dim_v = s->lora,
                                                 .scale = 0.07f};
        const struct linear_heads_args expand = {.weight = t->expand.w[b],
                                                 .x = mid.t[b],
                                                 .y = out.t[b],
                                                 .n_rows = n,
                                                 .x_head = s->lora,
                                                 .y_head = s->v_dim};
        CHECK_EQ(ops_mla(p->be[b], &store, &absorb, &attention, &expand), OK);
    }
    check_tensor(p, what, &out, out_width, 2.0 * pair_tolerance(p));
}

/* n_steps above 1: of decoding rows. */
static void mla_steps(enum dtype dtype, bool deterministic, const struct mla_shape *s,
                      const struct seq_spec *given, int32_t n_seqs, int32_t n_steps)
{
    struct seq_spec specs[MOST_SEQS];
    static struct test_pass pass;
    struct mla_bed t = {0};
    struct pair *p = &t.p;
    REQUIRE(n_seqs <= MOST_SEQS && open_bed(&t, dtype, deterministic, s));
    memcpy(specs, given, (size_t)n_seqs * sizeof *specs);
    step_begin(p);
    give_blocks(p, n_seqs, 600 / s->block_tokens);
    pass_of(&pass, specs, n_seqs, true, 21);
    if (pass.pass.n_rows > 0) {
        pass_begin(p, &pass);
        store_keys(&t, &pass);
        pass_end(p);
    }
    step_end(p, NULL);
    for (int32_t step = 0; step < n_steps; step++) {
        char what[160];
        snprintf(what, sizeof what,
                 "mla: dtype %d heads %d of %d + %d to %d, %d sequences, step %d", dtype, s->heads,
                 s->lora, s->nope, s->v_dim, n_seqs, step);
        step_begin(p);
        pass_of(&pass, specs, n_seqs, false, 50 + (uint64_t)step);
        pass_begin(p, &pass);
        compute_rows(&t, &pass, what);
        pass_end(p);
        step_end(p, NULL);
        for (int32_t i = 0; i < n_seqs; i++) {
            specs[i].n_past++;
        }
    }
    pair_close(p);
}

static const struct mla_shape shapes[] = {
    {20, 512, 128, 64, 16, true, true, 0.0f, 0}, // clusters of 8 and of 2 blocks
    {12, 256, 64, 128, 64, true, false, 0.2f, 0},
    {5, 512, 192, 256, 32, false, false, 0.0f, 8},
    {3, 512, 96, 128, 16, true, true, 0.0f, 0}, // the kernel for few rows does not support this
};
static const struct seq_spec one[] = {{301, 1, false}}, first[] = {{0, 1, false}},
                             several[] = {
                                 {0, 1, false}, {3, 1, false}, {64, 1, false}, {141, 1, false}};

TEST(mla_of_decoding_rows_agrees)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            mla_steps(pair_dtypes[d], false, &shapes[i], one, COUNT(one), 3);
            mla_steps(pair_dtypes[d], false, &shapes[i], first, COUNT(first), 3);
            mla_steps(pair_dtypes[d], false, &shapes[i], several, COUNT(several), 3);
        }
    }
}

/* Tiles of packed rows that end within a row's heads, within a sequence and beyond the last row;
 * keys that only some rows of a tile see. */
TEST(mla_of_any_rows_agrees)
{
    NEED_GPU();
    static const struct mla_shape any[] = {
        {20, 512, 64, 32, 64, true, true, 0.0f, 0},
        {128, 512, 32, 16, 16, true, false, 0.0f, 0},
        {5, 512, 96, 128, 32, false, false, 0.0f, 8},
    };
    static const struct seq_spec mixed[] = {{0, 40, false}, {100, 1, false}, {77, 16, false},
                                            {33, 20, true}, {190, 1, false}, {63, 65, false},
                                            {41, 3, true},  {0, 1, false}},
                                 prompt[] = {{130, 200, false}}, whole[] = {{0, 256, false}};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(any); i++) {
            mla_steps(pair_dtypes[d], false, &any[i], mixed, COUNT(mixed), 1);
            mla_steps(pair_dtypes[d], i == 0, &any[i], prompt, COUNT(prompt), 1);
        }
        mla_steps(pair_dtypes[d], false, &any[0], whole, COUNT(whole), 1);
    }
}

TEST(deterministic_mla_agrees)
{
    NEED_GPU();
    mla_steps(DT_BF16, true, &shapes[0], several, COUNT(several), 3);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
