// SPDX-License-Identifier: Apache-2.0
/* Decoding rows and drafts to verify, for which one kernel may do rope, the store into pages and
 * attention, compared with the scalar backend. */
#include "test/cuda/cuda_layers.h"

#ifdef SLUICE_CUDA
#include "cuda/cuda_device.h"

static bool has_few(struct backend *be)
{
    return cuda_of(be)->sm == 90;
}
#else
static bool has_few(struct backend *be)
{
    (void)be;
    return false;
}
#endif

static const struct stored plain_numbers = {.format = KV_PLAIN};

/* Numbers of older keys, around the edges of blocks and chunks; and more keys than the warps of a
 * cluster fetch ahead. */
enum { MOST_SEQS = 6 };
static const struct seq_spec shorts[] = {{100, 1, false}, {0, 1, false},  {14, 1, false},
                                         {64, 1, false},  {47, 1, false}, {150, 1, false}};
static const struct seq_spec longs[] = {{450, 1, false}, {31, 1, false}};

/* Decode steps whose rows read what earlier steps stored: rope, store and attention are one kernel
 * for the shapes that it supports. The second pass of each step attends to nothing, like a pass
 * that ends with its last layer's keys; the keys must be stored all the same. */
static void few_case(enum dtype dtype, const struct shape *s, struct stored stored,
                     const struct seq_spec *first, int32_t n_specs)
{
    struct seq_spec specs[MOST_SEQS];
    memcpy(specs, first, (size_t)n_specs * sizeof *specs);
    static struct test_pass t;
    struct setup u = {0};
    REQUIRE(open_setup_of(&u, dtype, false, s, stored));
    struct pair *p = &u.p;
    step_begin(p);
    store_past(&u, &t, specs, n_specs);
    for (int32_t step = 0; step < 4; step++) {
        pass_of(&t, specs, n_specs, false, 12 + (uint64_t)step);
        pass_begin(p, &t);
        store_rows(&u, t.pass.n_rows);
        char what[160];
        snprintf(what, sizeof what,
                 "few: dtype %d heads %d/%d of %d pairs %d norm %d window %d, format %d of %g, "
                 "%d rows after %d keys, step %d",
                 dtype, s->n_heads, s->n_kv_heads, s->head_dim, s->n_pairs, s->qk_norm, s->window,
                 stored.format, (double)stored.k_scale, specs->n_new, specs->n_past, step);
        store_and_attend(&u, t.pass.n_rows, what);
        pass_end(p);
        for (int32_t i = 0; i < n_specs; i++) {
            specs[i].n_past += specs[i].n_new;
        }
        pass_of(&t, specs, n_specs, false, 32 + (uint64_t)step);
        pass_begin(p, &t);
        store_rows(&u, t.pass.n_rows);
        pass_end(p);
        step_end(p, NULL);
        step_begin(p);
        for (int32_t i = 0; i < n_specs; i++) {
            specs[i].n_past += specs[i].n_new;
        }
    }
    step_end(p, NULL);
    pair_close(p);
}

/* Passes of decoding rows only, few enough for the kernel that cuts keys over many blocks. */
TEST(few_decoding_rows_agree)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {4, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
        {7, 1, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 32, false, 0, false, 0},
        {3, 3, 64, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 20, 0.0f, false, 16, false, 0, false, 0},
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 20.0f, false, 16, false, 0, false, 0},
        {8, 1, 64, 32, false, QK_NORM_NONE, NORM_RMS, 33, 0.0f, true, 16, false, 0, false, 0},
        {16, 8, 64, 32, false, QK_NORM_HEAD, NORM_RMS, 50, 0.0f, true, 32, false, 0, false, 0},
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, true, 16, false, 0, false, 0},
        {8, 1, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        /* Enough units for blocks that work alone, without clusters. */
        {24, 12, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 32, false, 0, false, 0},
        {13, 1, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {4, 2, 64, 16, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {4, 2, 64, 32, true, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {16, 2, 128, 64, true, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 64, false, 9, false, 0},
        {24, 12, 64, 32, true, QK_NORM_NONE, NORM_RMS, 20, 0.0f, true, 32, false, 0, false, 0},
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 20, false, 0},
        {7, 1, 64, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 50, false, 0},
        {8, 2, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, true, 20, false, 0},
        {8, 2, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, true, 0},
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 64},
        /* Heads of 256, rotated whole or in part, and some that the kernel does not compute. */
        {4, 2, 256, 128, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {16, 2, 256, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
        {7, 1, 256, 128, false, QK_NORM_HEAD, NORM_RMS, 20, 0.0f, false, 32, false, 0, true, 0},
        {12, 12, 256, 128, false, QK_NORM_HEAD, NORM_RMS, 33, 0.0f, true, 64, false, 0, true, 0},
        {24, 12, 256, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, true, 64, false, 0, false, 0},
        {14, 2, 256, 128, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 50, true, 0},
        {8, 2, 256, 32, false, QK_NORM_HEAD, NORM_RMS, 50, 0.0f, true, 64, false, 0, true, 0},
        {8, 2, 256, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 64, false, 20, false, 0},
        {8, 2, 256, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
        {8, 2, 256, 128, true, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            few_case(pair_dtypes[d], &shapes[i], plain_numbers, shorts, COUNT(shorts));
            if (shapes[i].n_kv_heads == 12 && shapes[i].block_tokens == 64) {
                few_case(pair_dtypes[d], &shapes[i], plain_numbers, longs, COUNT(longs));
            }
        }
    }
}

/* The same with quantised pages, in which the kernel encodes the new keys and values. */
TEST(few_decoding_rows_of_codes_agree)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
        {8, 1, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 20, false, 0},
        {7, 1, 64, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 32, false, 0, false, 0},
        {3, 3, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes) * COUNT(stored_codes); i++) {
            few_case(pair_dtypes[d], &shapes[i / COUNT(stored_codes)],
                     stored_codes[i % COUNT(stored_codes)], shorts, COUNT(shorts));
        }
    }
}

/* Several rows of few sequences: chains and trees, around the edges of chunks and blocks. */
TEST(several_rows_of_few_sequences_agree)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
        {16, 2, 256, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
        {7, 1, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {3, 3, 64, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 32, false, 0, false, 0},
        {8, 1, 64, 32, false, QK_NORM_NONE, NORM_RMS, 33, 0.0f, true, 16, false, 0, false, 0},
        {16, 1, 128, 64, false, QK_NORM_NONE, NORM_RMS, 20, 0.0f, true, 32, false, 0, false, 0},
        {8, 2, 128, 64, true, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 64, false, 9, false, 0},
        {8, 2, 256, 128, false, QK_NORM_HEAD, NORM_RMS, 50, 0.0f, true, 64, false, 20, true, 0},
        {5, 1, 256, 128, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 50, true, 0},
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 20.0f, false, 16, false, 0, false, 0},
        /* Clusters of two blocks, whose warps have more chunks than they fetch ahead. */
        {24, 12, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
        {12, 12, 256, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
    };
    static const struct seq_spec chains[] = {{61, 4, false}, {0, 8, false}, {14, 4, false}};
    static const struct seq_spec alone[] = {{158, 5, false}};
    static const struct seq_spec mixed[] = {
        {47, 1, false}, {100, 5, true}, {0, 1, false}, {63, 2, false}, {12, 7, false}};
    static const struct seq_spec far[] = {{430, 3, true}, {62, 2, false}};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            few_case(pair_dtypes[d], &shapes[i], plain_numbers, chains, COUNT(chains));
            few_case(pair_dtypes[d], &shapes[i], plain_numbers, alone, COUNT(alone));
            few_case(pair_dtypes[d], &shapes[i], plain_numbers, mixed, COUNT(mixed));
            if (shapes[i].block_tokens == 64) {
                few_case(pair_dtypes[d], &shapes[i], plain_numbers, far, COUNT(far));
            }
        }
    }
}

static void check_wants_sums(const struct shape *s, bool is_taken)
{
    static const struct seq_spec past[] = {{0, 30, false}, {0, 17, false}};
    static const struct seq_spec specs[] = {{30, 1, false}, {17, 1, false}};
    static struct test_pass t;
    struct setup u = {0};
    REQUIRE(open_setup(&u, DT_BF16, false, s));
    struct pair *p = &u.p;
    step_begin(p);
    give_blocks(p, 2, 8);
    for (int32_t i = 0; i < 2; i++) {
        pass_of(&t, i ? specs : past, 2, false, 41);
        pass_begin(p, &t);
        struct rope_store_args a = rope_args(&u, 0, t.pass.n_rows, GPU);
        a.qkv = store_rows(&u, t.pass.n_rows).t[GPU];
        const bool is_few = i == 1 && is_taken && has_few(p->be[GPU]);
        CHECK_EQ(ops_rope_store_adds_sums(p->be[GPU], &a), !is_few);
        pass_end(p);
    }
    step_end(p, NULL);
    pair_close(p);
}

/* Attention of few decoding rows divides a row's keys among blocks only if the product before it is
 * complete. */
TEST(few_decoding_rows_need_a_complete_product)
{
    NEED_GPU();
    static const struct {
        struct shape shape;
        bool is_taken;
    } cases[] = {
        {{.n_heads = 8, .n_kv_heads = 2, .head_dim = 128, .n_pairs = 64}, true},
        {{.n_heads = 8, .n_kv_heads = 2, .head_dim = 256, .n_pairs = 128, .v_norm = true}, true},
        {{.n_heads = 16, .n_kv_heads = 2, .head_dim = 256, .n_pairs = 32, .qk_norm = QK_NORM_HEAD},
         true},
        {{.n_heads = 8, .n_kv_heads = 2, .head_dim = 256, .n_pairs = 32}, false},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        struct shape s = cases[i].shape;
        s.block_tokens = 16;
        check_wants_sums(&s, cases[i].is_taken);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
