// SPDX-License-Identifier: Apache-2.0
/* Sparse attention by blocks: keys and queries are normed and stored for the index, each KV head of
 * a row picks blocks of keys, and its query heads attend to them. Compared with the scalar backend,
 * on inputs whose scores are exact, so that both pick the same blocks. */
#include "engine/base/minmax.h"
#include "test/cuda/cuda_layers.h"

enum { ATTENTION_LAYER = 0, INDEX_LAYER = 1, MOST_LANES = 10 };

struct block_shape {
    int32_t n_heads, n_kv_heads, head_dim, index_dim;
    int32_t block, top_k, n_local, block_tokens;
};

/* LEVELS: the keys of a block have one score, which no other block has, so that codes of the pages
 * may round it. TIES: scores are small integers, many of them equal. */
enum inputs { LEVELS, TIES };

struct bed {
    struct pair p;
    struct block_shape s;
    enum inputs inputs;
    enum kv_format format;
    struct pair_weight norm, q_norm;
    struct test_pass t;
};

/* A vector of zeros, or of zeros and ones. */
static struct pair_weight bits_make(struct pair *p, int32_t n, bool ones)
{
    float *values = xcalloc((size_t)n, sizeof *values);
    for (int32_t i = 0; i < n && ones; i++) {
        values[i] = (float)(rng_bits(p->seed, i, RNG_TEST, 2) % 2);
    }
    p->seed++;
    struct pair_weight w = {{NULL, NULL}};
    for (int b = FIRST; b <= GPU; b++) {
        w.w[b] = vector_of(p, b, values, n);
    }
    free(values);
    return w;
}

static bool bed_open(struct bed *t, enum dtype dtype, bool deterministic,
                     const struct block_shape *s, enum inputs inputs, struct stored stored,
                     int32_t longest, int32_t max_len)
{
    struct pair *p = &t->p;
    struct backend_limits limits = pair_limits();
    const int32_t per_lane = (longest + MAX_TREE_NODES) / s->block_tokens + 1;
    limits.max_rows = MAX_TEST_ROWS;
    limits.block_tokens = s->block_tokens;
    limits.max_len = max_len;
    limits.max_blocks_per_lane = (max_len + MAX_TREE_NODES) / s->block_tokens + 1;
    limits.n_blocks = MOST_LANES * per_lane;
    limits.max_tree_nodes = deterministic ? 100 : 0;
    if (!pair_open(p, dtype, deterministic, &limits)) {
        return false;
    }
    t->s = *s;
    t->inputs = inputs;
    t->format = stored.format;
    t->norm = bits_make(p, s->index_dim, inputs == TIES);
    t->q_norm = bits_make(p, s->index_dim, inputs == TIES);
    const struct kv_layer layers[] = {[ATTENTION_LAYER] = {.n_heads = s->n_heads,
                                                           .n_kv_heads = s->n_kv_heads,
                                                           .head_dim_k = s->head_dim,
                                                           .head_dim_v = s->head_dim,
                                                           .k_scale = stored.k_scale,
                                                           .v_scale = stored.v_scale},
                                      [INDEX_LAYER] = {.n_heads = s->n_kv_heads,
                                                       .n_kv_heads = 1,
                                                       .head_dim_k = s->index_dim,
                                                       .head_dim_v = s->index_dim,
                                                       .v_in_k = true,
                                                       .index = true,
                                                       .pick_block = s->block}};
    const struct kv_set_desc set = {
        .n_layers = 2, .layers = layers, .dtype = dtype, .format = stored.format};
    for (int b = 0; b < 2; b++) {
        struct err err = {""};
        if (p->be[b]->ops->kv_open(p->be[b], 0, &set, &err) != OK) {
            printf("%s\n", err.text);
            return false;
        }
    }
    step_begin(p);
    give_blocks(p, MOST_LANES, per_lane);
    step_end(p, NULL);
    return true;
}

/* ---- inputs -------------------------------------------------------------------------------- */

/* Element i of a row's key: 1 or -1. The norm leaves both as they are. */
static float key_of(const struct bed *t, const struct pass_row *row, int32_t i)
{
    if (t->inputs == TIES) {
        const int32_t at = row->slot_pos * 512 + i;
        return rng_bits(77, at, RNG_TEST, (uint32_t)row->lane) % 2 != 0 ? 1.0f : -1.0f;
    }
    const int32_t n_levels = t->s.index_dim + 1, block = row->pos / t->s.block;
    return i < (block * 37 + row->lane * 11) % n_levels ? 1.0f : -1.0f;
}

static float query_of(const struct bed *t, const struct pass_row *row, int32_t head, int32_t i)
{
    if (t->inputs == TIES) {
        const int32_t at = (row->slot_pos * 16 + head) * 512 + i;
        return rng_bits(78, at, RNG_TEST, (uint32_t)row->lane) % 2 != 0 ? 1.0f : -1.0f;
    }
    return head % 2 != 0 ? -1.0f : 1.0f; // odd heads prefer low levels
}

/* The index's operands of a pass; with n_heads 0 its keys. */
static struct pair_tensor index_make(struct bed *t, int32_t n_heads)
{
    const int32_t n = t->t.pass.n_rows, d = t->s.index_dim;
    const int32_t width = d * greater(n_heads, 1), stride = width + 8;
    struct pair_tensor x = tensor_make(&t->p, n, stride, t->p.dtype);
    float *values = xcalloc((size_t)n * (size_t)stride + 4, sizeof *values);
    for (int32_t r = 0; COMPARED && r < n; r++) {
        const struct pass_row *row = &t->t.rows[r];
        for (int32_t i = 0; i < stride; i++) {
            float value = NAN;
            if (i < width) {
                value = n_heads > 0 ? query_of(t, row, i / d, i % d) : key_of(t, row, i);
            }
            values[(size_t)r * (size_t)stride + (size_t)i] = value;
        }
    }
    tensor_put(&t->p, &x, values);
    free(values);
    return x;
}

/* ---- the ops ------------------------------------------------------------------------------- */

static struct index_store_args store_args(const struct bed *t, int32_t n_rows, int b)
{
    return (struct index_store_args){.n_rows = n_rows,
                                     .layer = INDEX_LAYER,
                                     .n_heads = t->s.n_kv_heads,
                                     .head_dim = t->s.index_dim,
                                     .norm = t->norm.w[b],
                                     .q_norm = t->q_norm.w[b],
                                     .norm_kind = NORM_RMS,
                                     .norm_offset = 1.0f};
}

static struct index_pick_args pick_args(const struct bed *t, int32_t n_rows)
{
    return (struct index_pick_args){.n_rows = n_rows,
                                    .layer = INDEX_LAYER,
                                    .n_heads = t->s.n_kv_heads,
                                    .head_dim = t->s.index_dim,
                                    .top_k = t->s.top_k,
                                    .block = t->s.block,
                                    .n_local = t->s.n_local};
}

/* All ops of a layer over the rows of t->t. */
static void run_rows(struct bed *t, const char *what)
{
    struct pair *p = &t->p;
    const struct block_shape *s = &t->s;
    const int32_t n = t->t.pass.n_rows, d = s->head_dim, out_width = s->n_heads * d;
    const int32_t width = (s->n_heads + 2 * s->n_kv_heads) * d;
    struct pair_tensor q = index_make(t, s->n_kv_heads), k = index_make(t, 0);
    struct pair_tensor qkv = tensor_random(p, n, width, width + 8, 1.0f);
    struct pair_tensor out = tensor_poisoned(p, n, out_width + 8, p->dtype);
    struct key_picks picks[2] = {{.top_k = 0}};
    struct index_store_args store;
    struct index_pick_args pick;
    const struct rope_store_args rope = {.n_rows = n,
                                         .layer = ATTENTION_LAYER,
                                         .n_heads = s->n_heads,
                                         .n_kv_heads = s->n_kv_heads,
                                         .head_dim = d};
    const struct attention_args attention = {.n_rows = n,
                                             .layer = ATTENTION_LAYER,
                                             .n_heads = s->n_heads,
                                             .n_kv_heads = s->n_kv_heads,
                                             .head_dim_k = d,
                                             .head_dim_v = d,
                                             .scale = 1.0f / sqrtf((float)d)};
    step_begin(p);
    pass_begin(p, &t->t);
    BOTH(p, index_store, store, store = store_args(t, n, b); store.q = q.t[b]; store.k = k.t[b]);
    BOTH(p, index_pick, pick, pick = pick_args(t, n); pick.q = q.t[b]; pick.picks = &picks[b]);
    for (int b = FIRST; b <= GPU; b++) {
        struct rope_store_args r = rope;
        struct attention_args a = attention;
        r.qkv = a.q = qkv.t[b];
        a.out = out.t[b];
        a.picks = &picks[b];
        CHECK_EQ(ops_rope_attention(p->be[b], &r, &a, NULL), OK);
    }
    pass_end(p);
    step_end(p, NULL);
    check_tensor(p, what, &q, s->n_kv_heads * s->index_dim, 0.0);
    check_tensor(p, what, &out, out_width, stored_tolerance(p, t->format));
}

/* ---- cases --------------------------------------------------------------------------------- */

static struct bed bed;

struct block_case {
    enum dtype dtype;
    bool deterministic;
    const struct block_shape *shape;
    enum inputs inputs;
    struct stored stored; // zeroed: plain numbers
    const struct seq_spec *specs;
    int32_t n_specs, max_len;
};

/* The pasts of the sequences, in chunks, and then their new rows. */
static void run_case(const struct block_case *c)
{
    enum { CHUNK = 512 };
    const struct block_shape *s = c->shape;
    char what[160];
    snprintf(what, sizeof what,
             "dtype %d format %d: %d / %d heads of %d, index of %d, %d blocks of %d, %d local",
             c->dtype, c->stored.format, s->n_heads, s->n_kv_heads, s->head_dim, s->index_dim,
             s->top_k, s->block, s->n_local);
    int32_t longest = 0;
    for (int32_t i = 0; i < c->n_specs; i++) {
        longest = greater(longest, c->specs[i].n_past + c->specs[i].n_new);
    }
    REQUIRE(
        bed_open(&bed, c->dtype, c->deterministic, s, c->inputs, c->stored, longest, c->max_len));
    for (int32_t lane = 0; lane < c->n_specs; lane++) {
        for (int32_t first = 0; first < c->specs[lane].n_past; first += CHUNK) {
            struct seq_spec one[MOST_LANES] = {{0}};
            const int32_t left = c->specs[lane].n_past - first;
            one[lane] = (struct seq_spec){first, lesser(left, (int32_t)CHUNK), false};
            pass_of(&bed.t, one, c->n_specs, false, 3);
            run_rows(&bed, what);
        }
    }
    pass_of(&bed.t, c->specs, c->n_specs, false, 9);
    run_rows(&bed, what);
    pair_close(&bed.p);
}

/* Prompts, decoding rows and trees, with fewer keys than picks and with more. */
static const struct seq_spec mixed[] = {
    {0, 40, false},  {300, 1, false},  {0, 1, false},  {177, 16, false}, {133, 20, true},
    {260, 50, true}, {330, 65, false}, {95, 1, false}, {15, 3, false},   {126, 90, true},
};

static const struct block_shape shapes[] = {
    {8, 2, 64, 64, 32, 2, 1, 16},
    {64, 4, 128, 128, 128, 2, 1, 32}, // MiniMax M3's heads
    {16, 1, 128, 32, 64, 3, 2, 64},
    {6, 3, 16, 24, 4, 5, 2, 16}, // blocks that are no whole grains
    {4, 4, 40, 32, 32, 3, 0, 16},
    {40, 2, 256, 64, 96, 1, 1, 16}, // more than 16 heads have a list
    {3, 1, 20, 20, 5, 3, 1, 4},     // no whole vectors
};

TEST(picks_and_attention_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            const struct block_case c = {.dtype = pair_dtypes[d],
                                         .deterministic = (d + i) % 2 == 0,
                                         .shape = &shapes[i],
                                         .inputs = TIES,
                                         .specs = mixed,
                                         .n_specs = COUNT(mixed),
                                         .max_len = 512};
            run_case(&c);
        }
    }
}

TEST(pages_of_codes_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < 4 * COUNT(stored_codes); i++) {
            const struct block_case c = {.dtype = pair_dtypes[d],
                                         .deterministic = i % 2 == 0,
                                         .shape = &shapes[i / COUNT(stored_codes)],
                                         .inputs = LEVELS,
                                         .stored = stored_codes[i % COUNT(stored_codes)],
                                         .specs = mixed,
                                         .n_specs = COUNT(mixed),
                                         .max_len = 512};
            run_case(&c);
        }
    }
}

/* More blocks than a block of threads keeps; a table so long that the scores of a few rows fill
 * their memory; a long pass, which is never captured, whose rows see no more keys than they may
 * pick. */
TEST(long_lists_and_tables_agree)
{
    NEED_GPU();
    static const struct block_shape single = {2, 1, 16, 16, 1, 8, 1, 16};
    static const struct block_shape small = {8, 2, 64, 64, 32, 4, 1, 16};
    static const struct block_shape wide = {8, 2, 64, 64, 32, 30, 1, 16};
    static const struct seq_spec longest[] = {{4500, 3, false}, {4400, 9, true}};
    static const struct seq_spec chunk[] = {{70, 600, false}};
    const struct block_case cases[] = {
        {.dtype = DT_BF16,
         .shape = &single,
         .inputs = TIES,
         .specs = longest,
         .n_specs = 2,
         .max_len = 5000},
        {.dtype = DT_BF16,
         .shape = &small,
         .inputs = TIES,
         .specs = longest,
         .n_specs = 2,
         .max_len = 5000},
        {.dtype = DT_F32,
         .shape = &single,
         .inputs = TIES,
         .specs = mixed,
         .n_specs = COUNT(mixed),
         .max_len = 1 << 18},
        {.dtype = DT_F16,
         .shape = &wide,
         .inputs = TIES,
         .specs = chunk,
         .n_specs = 1,
         .max_len = 2000},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        run_case(&cases[i]);
    }
}

/* Norms and rotation of the queries. */
TEST(queries_are_normed_and_rotated)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct pair *p = &bed.p;
        const int32_t dim = 64, n_pairs = 16 + d, width = 2 * dim;
        float inv_freq[32];
        struct rope_table *rope[2] = {NULL, NULL};
        REQUIRE(bed_open(&bed, pair_dtypes[d], false, &shapes[0], LEVELS,
                         (struct stored){.format = KV_PLAIN}, 512, 512));
        for (int32_t i = 0; i < n_pairs; i++) {
            inv_freq[i] = powf(10000.0f, -(float)i / (float)n_pairs);
        }
        const struct rope_desc desc = {n_pairs, inv_freq, 1.0f, d == 1, 512};
        struct pair_weight norm = vector_make(p, dim, 0.3f);
        pass_of(&bed.t, mixed, COUNT(mixed), false, 5);
        const int32_t n = bed.t.pass.n_rows;
        struct pair_tensor q = tensor_random(p, n, width, width + 8, 2.0f);
        struct pair_tensor k = tensor_random(p, n, dim, dim + 8, 2.0f);
        struct index_store_args a;
        for (int b = 0; b < 2; b++) {
            CHECK_EQ(p->be[b]->ops->rope_open(p->be[b], &desc, &rope[b]), OK);
        }
        step_begin(p);
        pass_begin(p, &bed.t);
        BOTH(p, index_store, a, a = store_args(&bed, n, b); a.q = q.t[b]; a.k = k.t[b];
             a.rope = rope[b]; a.norm = a.q_norm = norm.w[b]; a.eps = 1e-6f);
        pass_end(p);
        step_end(p, NULL);
        check_tensor(p, "index queries", &q, width, pair_tolerance(p));
        pair_close(p);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
