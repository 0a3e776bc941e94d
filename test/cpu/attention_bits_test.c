// SPDX-License-Identifier: Apache-2.0
// test/run: long
/* A row of attention has the same bits in every batch, in any chunks and in trees. */
#include "test/cpu/attention_world.h"

/* The length of a prompt that ends beyond the window and in a second chunk of keys. The scalar
 * table gets a longer one only at night. */
static int32_t length_of_prompt(const char *backend, const struct geometry *g)
{
    if (check_nightly() || strcmp(backend, "scalar") != 0) {
        return 1100;
    }
    return g->window > 500 ? 760 : 560;
}

/* One prompt computed in one pass, in chunks, together with other lanes, and its last row alone
 * (whose keys are then split over the threads): the bits are the same. */
static void check_invariance(const char *backend, const struct geometry *g,
                             const struct storage *storage)
{
    struct world *w = xcalloc(1, sizeof *w);
    open_world(w, backend, g, storage);
    const int32_t N = length_of_prompt(backend, g);
    const size_t W = (size_t)(g->n_heads + 2 * g->n_kv_heads) * g->dim;
    const size_t OUT = (size_t)g->n_heads * value_dim(g);
    op_add_seq(&w->pass, 0, 0, N);
    float *qkv = make_qkv(w), *all = run_pass(w, qkv);
    for (int32_t at = 0, n; at < N; at += n) {
        n = op_int(1, 300);
        n = lesser(n, N - at);
        memset(&w->pass, 0, sizeof w->pass);
        int32_t before = op_int(0, 3);
        for (int32_t i = 0; i < before; i++) {
            op_add_seq(&w->pass, 1 + i, 3 * i, op_int(1, 20));
        }
        int32_t first = w->pass.pass.n_rows;
        op_add_seq(&w->pass, 0, at, n);
        float *part = op_random((size_t)(first + n) * W, 1.0f);
        memcpy(part + (size_t)first * W, qkv + (size_t)at * W, (size_t)n * W * sizeof *part);
        /* In the other lanes keys before 3 i are NaN; their rows are not compared. */
        float *out = run_pass(w, part);
        CHECK_MEM(out + (size_t)first * OUT, all + (size_t)at * OUT, (size_t)n * OUT * sizeof *out);
        free(out);
        free(part);
    }
    memset(&w->pass, 0, sizeof w->pass);
    op_add_seq(&w->pass, 0, N - 1, 1);
    float *out = run_pass(w, qkv + (size_t)(N - 1) * W);
    CHECK_MEM(out, all + (size_t)(N - 1) * OUT, OUT * sizeof *out);
    free(out);
    free(all);
    free(qkv);
    close_world(w);
    free(w);
}

/* One case for each path: window, MLA, quantised, chunked. */
OP_TEST(attention_has_the_same_bits_in_every_batch)
{
    static const struct geometry cases[] = {
        {8, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
        {3, 1, 20, 16, 700, 30.0f, true, DT_F32, 0, false, 0},
        {5, 1, 72, 32, 300, 30.0f, true, DT_BF16, 0, false, 0},
        {7, 1, 72, 16, 300, 0.0f, false, DT_BF16, 44, false, 0},
        {4, 1, 64, 16, 0, 0.0f, false, DT_BF16, 0, true, 0},
        {4, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 96},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_invariance(backend, &cases[i], &plain);
        check_invariance(backend, &cases[i], &coded[(2 * i + 1) % N_CODED]);
        if (check_nightly()) {
            check_invariance(backend, &cases[i], &coded[(2 * i + 2) % N_CODED]);
        }
    }
}

/* Each path through a tree has the bits of a plain run over its tokens, for any placement of its
 * nodes, even if a chunk of keys ends between them. */
OP_TEST(a_path_of_a_tree_has_the_bits_of_a_chain)
{
    static const struct geometry cases[] = {{8, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
                                            {6, 2, 80, 16, 5, 0.0f, true, DT_BF16, 0, false, 0},
                                            {3, 1, 20, 5, 33, 30.0f, false, DT_F32, 0, false, 0},
                                            {7, 1, 72, 16, 60, 0.0f, false, DT_BF16, 44, false, 0},
                                            {4, 1, 64, 16, 0, 0.0f, false, DT_BF16, 0, true, 0},
                                            {4, 2, 32, 16, 0, 0.0f, false, DT_BF16, 0, false, 7}};
    for (int32_t round = 0; round < 48; round++) {
        const struct geometry *g = &cases[round % 6];
        struct world *w = xcalloc(1, sizeof *w);
        open_world(w, backend, g, round < 24 ? &plain : &coded[round % N_CODED]);
        enum { N = 90 };
        size_t width = (size_t)(g->n_heads + 2 * g->n_kv_heads) * (size_t)g->dim;
        size_t out_width = (size_t)g->n_heads * (size_t)value_dim(g);
        static const int32_t pasts[3][2] = {{430, 512}, {1, 100}, {600, 900}};
        const int32_t *range = pasts[round % 24 / 8], past = op_int(range[0], range[1]);
        op_add_seq(&w->pass, 0, 0, past);
        float *qkv = make_qkv(w);
        free(run_pass(w, qkv));
        free(qkv);
        memset(&w->pass, 0, sizeof w->pass);
        op_add_seq(&w->pass, 0, past, N);
        float *chain = make_qkv(w), *want = run_pass(w, chain), *tree = op_random(N * width, 1.0f);
        memset(&w->pass, 0, sizeof w->pass);
        add_tree(w, 0, past, N);
        const uint64_t *mask = w->pass.mask + (size_t)(N - 1) * TREE_MASK_WORDS; // last node
        for (int32_t i = 0; i < N; i++) {
            if (mask[i / 64] >> (i % 64) & 1) {
                memcpy(tree + (size_t)i * width,
                       chain + (size_t)(w->pass.rows[i].pos - past) * width, width * sizeof *tree);
            }
        }
        float *have = run_pass(w, tree);
        for (int32_t i = 0; i < N; i++) {
            if (mask[i / 64] >> (i % 64) & 1) {
                CHECK_MEM(have + (size_t)i * out_width,
                          want + (size_t)(w->pass.rows[i].pos - past) * out_width,
                          out_width * sizeof *have);
            }
        }
        free(chain);
        free(want);
        free(tree);
        free(have);
        close_world(w);
        free(w);
    }
}

/* The emulation, which other machines test with, sums exactly as the processor does. */
TEST(amx_has_the_bits_of_its_emulation)
{
    static const struct geometry cases[] = {{8, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
                                            {6, 2, 80, 32, 100, 30.0f, true, DT_BF16, 0, false, 0},
                                            {7, 1, 72, 16, 0, 0.0f, false, DT_BF16, 44, false, 0}};
    if (!op_amx_emulated() || !cpu_kernels_best()->unit) {
        SKIP("this machine has no AMX");
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] * (1 + N_CODED); i++) {
        float *out[2];
        const struct geometry *g = &cases[i % 3];
        for (int emulated = 0; emulated < 2; emulated++) {
            struct world *w = xcalloc(1, sizeof *w);
            op_counter = 0;
            open_world(w, emulated ? "amx-emulated" : "cpu", g, i < 3 ? &plain : &coded[i / 3 - 1]);
            op_add_seq(&w->pass, 0, 0, 700);
            op_add_seq(&w->pass, 1, 0, 3);
            float *qkv = make_qkv(w);
            out[emulated] = run_pass(w, qkv);
            free(qkv);
            close_world(w);
            free(w);
        }
        CHECK_MEM(out[0], out[1], (size_t)703 * g->n_heads * value_dim(g) * sizeof *out[0]);
        free(out[0]);
        free(out[1]);
    }
}

/* Integer sums are exact, so tiles of codes give the bits of vector code. */
TEST(codes_in_tiles_have_the_bits_of_vector_code)
{
    static const struct geometry cases[] = {{8, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0},
                                            {6, 2, 80, 48, 100, 30.0f, true, DT_BF16, 0, false, 0},
                                            {9, 1, 40, 32, 0, 0.0f, false, DT_F16, 0, true, 0},
                                            {2, 2, 256, 16, 0, 0.0f, true, DT_BF16, 0, false, 96}};
    static const char *const backends[] = {"avx512bf16", "amx-emulated"};
    if (!op_amx_emulated()) {
        SKIP("this machine has no AVX-512 with bf16");
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] * N_CODED; i++) {
        float *out[2];
        const struct geometry *g = &cases[i / N_CODED];
        const struct storage *storage = &coded[i % N_CODED];
        if (storage->format == KV_FP8) {
            continue;
        }
        for (int b = 0; b < 2; b++) {
            struct world *w = xcalloc(1, sizeof *w);
            op_counter = 0;
            open_world(w, backends[b], g, storage);
            op_add_seq(&w->pass, 0, 0, 700);
            op_add_seq(&w->pass, 1, 0, 3);
            add_tree(w, 2, 0, 90);
            float *qkv = make_qkv(w);
            out[b] = run_pass(w, qkv);
            free(qkv);
            close_world(w);
            free(w);
        }
        CHECK_MEM(out[0], out[1], (size_t)793 * g->n_heads * g->dim * sizeof *out[0]);
        free(out[0]);
        free(out[1]);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
