// SPDX-License-Identifier: Apache-2.0
/* All of a mixture in one op: a row's bits do not depend on the number of rows, nor on whether the
 * pass is launched or replayed. */
#include "test/cuda/cuda_mixture.h"
#include "test/cuda/cuda_pass.h"

/* The first rows alone have the same bits as among all rows, even if launches of different sizes
 * follow one another. */
static void rows_of_a_mixture_in(enum dtype dtype, bool deterministic, struct mixture_case c,
                                 const int32_t *rows, int32_t n_rows)
{
    struct pair p;
    struct mixture m;
    REQUIRE(pair_open(&p, dtype, deterministic, NULL));
    make_mixture(&p, &c, NULL, &m);
    struct backend *be = p.be[GPU];
    const size_t row = (size_t)m.y.t[GPU].stride * dtype_bytes(dtype);
    char *all = xmalloc(row * (size_t)c.n_rows), *some = xmalloc(row * (size_t)c.n_rows);
    const struct shared_expert_args *shared = c.shared > 0 ? &m.shared[GPU] : NULL;
    CHECK_EQ(ops_moe(be, NULL, shared, &m.route[GPU], &m.ffn[GPU]), OK);
    CHECK_EQ(be->ops->read(be, all, m.y.t[GPU].mem, row * (size_t)c.n_rows), OK);
    for (int32_t i = 0; i < n_rows; i++) {
        const int32_t n = rows[i];
        m.route[GPU].n_rows = m.ffn[GPU].n_rows = m.gate[GPU].n_rows = n;
        m.shared[GPU].up.n_rows = m.shared[GPU].down.n_rows = m.shared[GPU].act.n_rows = n;
        memset(some, 0xff, row * (size_t)n);
        CHECK_EQ(be->ops->write(be, m.y.t[GPU].mem, some, row * (size_t)n), OK);
        CHECK_EQ(ops_moe(be, NULL, shared, &m.route[GPU], &m.ffn[GPU]), OK);
        CHECK_EQ(be->ops->read(be, some, m.y.t[GPU].mem, row * (size_t)n), OK);
        if (memcmp(all, some, row * (size_t)n) != 0) {
            CHECK_FAIL("%d of %d rows have different bits alone", n, c.n_rows);
        }
    }
    free(all);
    free(some);
    pair_close(&p);
}

static void rows_of_a_mixture(bool deterministic, struct mixture_case c, const int32_t *rows,
                              int32_t n_rows)
{
    rows_of_a_mixture_in(DT_BF16, deterministic, c, rows, n_rows);
}

TEST(a_row_of_a_mixture_does_not_depend_on_the_others)
{
    NEED_GPU();
    struct mixture_case c = {16, 24, 4,        520,   72,    40,   true, false, MOE_SOFTMAX_TOPK,
                             1,  1,  ACT_SILU, false, false, false};
    static const int32_t few[] = {1, 16, 9, 1, 1, 16}, some[] = {8, 2, 4, 2, 3, 7};
    static const int32_t any[] = {1, 2, 7, 8, 9, 16, 1, 33, 5, 64, 129, 256, 512};
    rows_of_a_mixture(false, c, few, COUNT(few));
    c.n_rows = 8;
    rows_of_a_mixture(false, c, some, COUNT(some));
    c.n_rows = 512;
    rows_of_a_mixture(true, c, any, COUNT(any));
}

/* More picks than warps, inputs longer than a ring, more than 256 experts. */
TEST(few_rows_of_a_deterministic_mixture_have_the_bits_of_many)
{
    NEED_GPU();
    static const struct mixture_case cases[] = {
        {40, 24, 10, 1096, 200, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false,
         false},
        {40, 16, 8, 2048, 1032, 0, false, false, MOE_SIGMOID, 8, 4, ACT_SILU, false, false, false},
        {40, 300, 3, 264, 72, 40, false, false, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false,
         false},
    };
    static const int32_t rows[] = {1, 2, 3, 4, 1, 5, 40};
    for (int32_t i = 0; i < COUNT(cases); i++) {
        rows_of_a_mixture(true, cases[i], rows, COUNT(rows));
    }
}

/* What a norm and the mixture after it write: y, which holds the norm's delta before, the sum that
 * the norm is applied to, and the norm's result. */
enum { WRITTEN = 3, NORM_ROWS = 40 };

struct written {
    char *rows[WRITTEN];
};

static const struct tensor *written_tensor(const struct mixture *m, int i)
{
    const struct tensor *const t[WRITTEN] = {&m->y.t[GPU], &m->residual.t[GPU], &m->x.t[GPU]};
    return t[i];
}

static size_t written_bytes(const struct mixture *m, int i, int32_t n_rows)
{
    return (size_t)written_tensor(m, i)->stride * sizeof(uint16_t) * (size_t)n_rows;
}

static struct written read_written(struct pair *p, const struct mixture *m, int32_t n_rows)
{
    struct written w;
    for (int i = 0; i < WRITTEN; i++) {
        const size_t n = written_bytes(m, i, n_rows);
        w.rows[i] = xmalloc(n);
        CHECK_EQ(p->be[GPU]->ops->read(p->be[GPU], w.rows[i], written_tensor(m, i)->mem, n), OK);
    }
    return w;
}

static void free_written(struct written *w)
{
    for (int i = 0; i < WRITTEN; i++) {
        free(w->rows[i]);
    }
}

/* Computes the first n rows, starting from what `before` holds. */
static struct written rows_of_norm_and_mixture(struct pair *p, struct mixture *m,
                                               const struct written *before, int32_t n)
{
    struct backend *be = p->be[GPU];
    m->route[GPU].n_rows = m->ffn[GPU].n_rows = m->norm[GPU].n_rows = n;
    for (int i = 0; i < WRITTEN; i++) {
        CHECK_EQ(be->ops->write(be, written_tensor(m, i)->mem, before->rows[i],
                                written_bytes(m, i, NORM_ROWS)),
                 OK);
    }
    CHECK_EQ(ops_moe(be, &m->norm[GPU], NULL, &m->route[GPU], &m->ffn[GPU]), OK);
    return read_written(p, m, n);
}

/* Up to four rows of at most 4,096 elements are normalised by the kernel of the router's scores. */
TEST(few_rows_of_a_norm_and_a_deterministic_mixture_have_the_bits_of_many)
{
    NEED_GPU();
    static const struct mixture_case cases[] = {
        {NORM_ROWS, 24, 10, 1096, 200, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false,
         false, true},
        {NORM_ROWS, 128, 8, 2048, 72, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false,
         false, true},
        {NORM_ROWS, 12, 4, 4096, 136, 0, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false,
         true},
        {NORM_ROWS, 12, 4, 4104, 136, 0, false, false, MOE_SIGMOID, 1, 1, ACT_SILU, false, false,
         true},
    };
    static const int32_t rows[] = {1, 2, 3, 4, 1, 5, NORM_ROWS};
    for (int32_t c = 0; c < COUNT(cases); c++) {
        struct pair p;
        struct mixture m;
        REQUIRE(pair_open(&p, DT_BF16, true, NULL));
        make_mixture(&p, &cases[c], NULL, &m);
        struct written before = read_written(&p, &m, NORM_ROWS);
        struct written all = rows_of_norm_and_mixture(&p, &m, &before, NORM_ROWS);
        for (int32_t r = 0; r < COUNT(rows); r++) {
            struct written some = rows_of_norm_and_mixture(&p, &m, &before, rows[r]);
            for (int i = 0; i < WRITTEN; i++) {
                if (memcmp(all.rows[i], some.rows[i], written_bytes(&m, i, rows[r])) != 0) {
                    CHECK_FAIL("case %d, tensor %d: %d of %d rows have different bits", c, i,
                               rows[r], NORM_ROWS);
                }
            }
            free_written(&some);
        }
        free_written(&all);
        free_written(&before);
        pair_close(&p);
    }
}

/* From 32 rows per expert on, the GPU uses another kernel. The cases have a shared expert with its
 * gate, biases, every activation, and sizes that are not multiples of the tiles of that kernel. */
TEST(any_number_of_rows_of_a_deterministic_mixture_has_the_same_bits)
{
    NEED_GPU();
    static const struct mixture_case cases[] = {
        {4096, 16, 4, 520, 264, 72, true, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false,
         false},
        {4096, 32, 4, 1096, 200, 0, false, true, MOE_TOPK_SOFTMAX, 1, 1, ACT_GPT_OSS, false, false,
         false},
        {2048, 8, 2, 328, 72, 40, true, true, MOE_SIGMOID, 1, 1, ACT_GELU_TANH, false, false,
         false},
        {513, 8, 3, 264, 136, 0, false, false, MOE_SIGMOID, 1, 1, ACT_GELU, false, true, false},
        {513, 8, 3, 264, 136, 0, false, true, MOE_SIGMOID, 1, 1, ACT_RELU2, false, false, false},
    };
    static const int32_t rows[] = {1, 2, 7, 16, 33, 64, 129, 256, 512, 2048, 4096};
    for (int32_t i = 0; i < COUNT(cases); i++) {
        int32_t n = 0;
        while (n < COUNT(rows) && rows[n] <= cases[i].n_rows) {
            n++;
        }
        rows_of_a_mixture_in(DT_BF16, true, cases[i], rows, n);
        rows_of_a_mixture_in(DT_F16, true, cases[i], rows, n);
    }
}

/* Qwen3-30B-A3B's sizes with fewer experts, and its number of experts with smaller ones. */
TEST(any_number_of_rows_of_many_deterministic_experts_has_the_same_bits)
{
    NEED_GPU();
    static const struct mixture_case cases[] = {
        {4096, 16, 8, 2048, 768, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false,
         false},
        {4096, 128, 8, 264, 72, 0, false, false, MOE_SOFTMAX_TOPK, 1, 1, ACT_SILU, false, false,
         false},
    };
    static const int32_t rows[] = {1, 2, 7, 16, 33, 64, 129, 256, 512, 2048, 4096};
    for (int32_t i = 0; i < COUNT(cases); i++) {
        rows_of_a_mixture(true, cases[i], rows, COUNT(rows));
    }
}

/* A pass of one sequence. */
static struct pass *pass_of_rows(struct test_pass *t, int32_t n)
{
    const struct seq_spec spec = {0, n, false};
    pass_of(t, &spec, 1, false, 1);
    t->pass.model = 3;
    t->pass.n_out = 0;
    return &t->pass;
}

/* A mixture of few rows in passes that are launched, captured and replayed. format: as for
 * make_mixture. */
static void replay_mixture(int32_t n, const struct format *format)
{
    enum { PASSES = 6, MOST = 16 };
    static const struct mixture_case plain = {
        MOST, 24, 4,        520,   72,    40,   true, false, MOE_SOFTMAX_TOPK,
        1,    1,  ACT_SILU, false, false, false};
    static const struct mixture_case coded = {
        MOST, 24, 4,        544,   80,    0,    false, true, MOE_SOFTMAX_TOPK,
        1,    1,  ACT_SILU, false, false, false};
    const struct mixture_case c = format ? coded : plain;
    const bool shared = c.shared > 0;
    struct pair p;
    struct mixture m;
    REQUIRE(pair_open(&p, DT_BF16, false, NULL));
    make_mixture(&p, &c, format, &m);
    struct backend *be = p.be[GPU];
    const size_t row = (size_t)m.y.t[GPU].stride * dtype_bytes(DT_BF16), all = row * MOST;
    char *before = xmalloc(all), *first = xmalloc(all), *out = xmalloc(all);
    CHECK_EQ(be->ops->read(be, before, m.y.t[GPU].mem, all), OK);
    for (int32_t i = 0; i < PASSES; i++) {
        static struct test_pass t;
        struct pass_shape shape;
        struct pass_results results[8];
        CHECK_EQ(be->ops->write(be, m.y.t[GPU].mem, before, all), OK);
        CHECK_EQ(be->ops->step_begin(be, 0), OK);
        CHECK_EQ(be->ops->pass_begin(be, pass_of_rows(&t, n), &shape), OK);
        REQUIRE(shape.n_rows >= n && shape.n_rows <= MOST);
        m.route[GPU].n_rows = m.ffn[GPU].n_rows = m.gate[GPU].n_rows = shape.n_rows;
        m.shared[GPU].up.n_rows = m.shared[GPU].down.n_rows = shape.n_rows;
        m.shared[GPU].act.n_rows = shape.n_rows;
        if (shape.issue) {
            CHECK_EQ(ops_moe(be, NULL, shared ? &m.shared[GPU] : NULL, &m.route[GPU], &m.ffn[GPU]),
                     OK);
        }
        CHECK_EQ(be->ops->pass_end(be), OK);
        CHECK_EQ(be->ops->step_end(be), OK);
        CHECK_EQ(be->ops->step_wait(be, 0, results, 8), OK);
        CHECK_EQ(be->ops->read(be, out, m.y.t[GPU].mem, all), OK);
        if (i == 0) {
            memcpy(first, out, all);
            CHECK(memcmp(out, before, row) != 0);
        }
        if (memcmp(out, first, all) != 0) {
            CHECK_FAIL("pass %d of %d rows has different bits than the first", i, n);
        }
        CHECK_EQ(memcmp(out + n * row, before + n * row, all - n * row), 0);
    }
    free(before);
    free(first);
    free(out);
    pair_close(&p);
}

TEST(a_captured_mixture_leaves_padding_rows_alone)
{
    NEED_GPU();
    static const int32_t rows[] = {1, 3, 5, 11};
    for (int32_t i = 0; i < COUNT(rows); i++) {
        replay_mixture(rows[i], NULL);
        replay_mixture(rows[i], format_named("mxfp4"));
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
