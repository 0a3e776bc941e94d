// SPDX-License-Identifier: Apache-2.0
/* Queries whose heads are scaled by position, each with weights of its own, compared with the
 * scalar backend: in MLA, also without a rotated part and over keys of another layer, and in
 * indexers. */
#include "test/cuda/cuda_pass.h"

enum { HEADS = 5, LORA = 64, NOPE = 24, MOST_ROPE = 16, INDEX_DIM = 40 };

struct growth_bed {
    struct pair p;
    struct rope_table *rope[2];
    struct pair_weight scale, bias, kv_norm, index_norm, index_bias;
    int32_t rope_dim; // of MLA's keys; 0: none
    bool indexed;     // the only layer is that of an indexer
};

static void open_bed(struct growth_bed *t, enum dtype dtype, int32_t rope_dim, bool indexed)
{
    const struct backend_limits limits = pair_limits();
    REQUIRE(pair_open(&t->p, dtype, false, &limits));
    t->rope_dim = rope_dim;
    t->indexed = indexed;
    float inv_freq[MOST_ROPE / 2];
    for (int32_t i = 0; i < MOST_ROPE / 2; i++) {
        inv_freq[i] = powf(10000.0f, -(float)i / (float)(MOST_ROPE / 2));
    }
    const struct rope_desc rope = {MOST_ROPE / 2, inv_freq, 1.0f, true, 1024};
    const struct kv_layer latent = {.n_heads = HEADS,
                                    .n_kv_heads = 1,
                                    .head_dim_k = LORA + rope_dim,
                                    .head_dim_v = LORA,
                                    .v_in_k = true};
    const struct kv_layer index = {.n_heads = HEADS,
                                   .n_kv_heads = 1,
                                   .head_dim_k = INDEX_DIM,
                                   .head_dim_v = INDEX_DIM,
                                   .v_in_k = true,
                                   .index = true};
    const struct kv_set_desc set = {.n_layers = 1,
                                    .layers = indexed ? &index : &latent,
                                    .dtype = t->p.dtype,
                                    .format = KV_PLAIN};
    for (int b = 0; b < 2; b++) {
        struct err err;
        CHECK_EQ(t->p.be[b]->ops->rope_open(t->p.be[b], &rope, &t->rope[b]), OK);
        CHECK_EQ(t->p.be[b]->ops->kv_open(t->p.be[b], 0, &set, &err), OK);
    }
    t->scale = vector_make(&t->p, HEADS, 0.5f);
    t->bias = vector_make(&t->p, HEADS, 1.0f);
    t->kv_norm = vector_make(&t->p, LORA, 1.0f);
    t->index_norm = vector_make(&t->p, INDEX_DIM, 1.0f);
    t->index_bias = vector_make(&t->p, INDEX_DIM, 0.1f);
}

/* Scales and, unless the layer has another's keys, stores; then attends. */
static void mla_layer(struct growth_bed *t, int32_t n, bool stores)
{
    struct pair *p = &t->p;
    const int32_t key = LORA + t->rope_dim, q_head = NOPE + t->rope_dim;
    struct pair_tensor raw = tensor_random(p, n, HEADS * q_head, HEADS * q_head, 1.0f);
    struct pair_tensor q = tensor_random(p, n, HEADS * key, HEADS * key, 1.0f);
    struct pair_tensor kv = tensor_random(p, n, key, key + 8, 1.0f);
    struct pair_tensor out = tensor_poisoned(p, n, HEADS * LORA, p->dtype);
    struct mla_store_args a = {.n_rows = n,
                               .n_heads = HEADS,
                               .q_head = q_head,
                               .q_rope_offset = NOPE,
                               .rope_dim = t->rope_dim,
                               .q_out_head = key,
                               .q_out_offset = LORA,
                               .kv_lora = LORA,
                               .eps = 1e-6f};
    struct attention_args at = {.n_rows = n,
                                .n_heads = HEADS,
                                .n_kv_heads = 1,
                                .head_dim_k = key,
                                .head_dim_v = LORA,
                                .scale = 0.1f};
    BOTH(
        p, mla_store, a, a.q = raw.t[b]; a.q_out = q.t[b]; a.kv_norm = t->kv_norm.w[b];
        a.rope = t->rope_dim > 0 ? t->rope[b] : NULL; a.head_growth.scale = t->scale.w[b];
        a.head_growth.bias = t->bias.w[b]; if (stores) { a.kv = kv.t[b]; });
    check_tensor(p, "mla queries", &q, HEADS * key, pair_tolerance(p));
    check_rows(p, "their part that is not rotated", &raw, HEADS * q_head, pair_tolerance(p));
    BOTH(p, attention, at, at.q = q.t[b]; at.out = out.t[b]);
    check_tensor(p, "mla attention", &out, HEADS * LORA, pair_tolerance(p));
}

static void index_layer(struct growth_bed *t, int32_t n, bool rotated)
{
    struct pair *p = &t->p;
    struct pair_tensor q = tensor_random(p, n, HEADS * INDEX_DIM, HEADS * INDEX_DIM + 8, 1.0f);
    struct pair_tensor k = tensor_random(p, n, INDEX_DIM, INDEX_DIM, 1.0f);
    struct index_store_args a = {
        .n_rows = n, .n_heads = HEADS, .head_dim = INDEX_DIM, .eps = 1e-6f};
    BOTH(p, index_store, a, a.q = q.t[b]; a.k = k.t[b]; a.rope = rotated ? t->rope[b] : NULL;
         a.norm = t->index_norm.w[b]; a.norm_bias = t->index_bias.w[b];
         a.growth.scale = t->scale.w[b]; a.growth.bias = t->bias.w[b]);
    check_rows(p, "queries of an indexer", &q, HEADS * INDEX_DIM, pair_tolerance(p));
}

static void growth_case(enum dtype dtype, int32_t rope_dim, bool indexed)
{
    static struct test_pass pass;
    static const struct seq_spec specs[] = {{0, 30, false}, {50, 1, false}, {20, 12, true}};
    struct growth_bed t = {.rope_dim = 0};
    open_bed(&t, dtype, rope_dim, indexed);
    step_begin(&t.p);
    give_blocks(&t.p, 3, 8);
    for (int past = 1; past >= 0; past--) {
        pass_of(&pass, specs, 3, past, 23);
        pass_begin(&t.p, &pass);
        const int32_t n = pass.pass.n_rows;
        for (int second = 0; second < 2; second++) {
            if (indexed) {
                index_layer(&t, n, second == 0);
            } else {
                mla_layer(&t, n, second == 0);
            }
        }
        pass_end(&t.p);
    }
    step_end(&t.p, NULL);
    pair_close(&t.p);
}

TEST(heads_of_mla_grow)
{
    NEED_GPU();
    for (int32_t i = 0; i < 3; i++) {
        growth_case(pair_dtypes[i], MOST_ROPE, false);
        growth_case(pair_dtypes[i], 0, false);
    }
}

TEST(heads_of_indexers_grow)
{
    NEED_GPU();
    for (int32_t i = 0; i < 3; i++) {
        growth_case(pair_dtypes[i], 0, true);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
