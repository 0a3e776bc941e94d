// SPDX-License-Identifier: Apache-2.0
/* Low-rank adapters on the GPU: beside sums in double precision; a row has the same bits alone and
 * among others; rows without an adapter are not touched. */
#include "test/cuda/cuda_pass.h"

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

enum { MOST_ROWS = 320, N_LANES = 8 };

/* A product with its adapters, whose elements are kept here as well. */
struct adapters {
    struct pair p;
    int32_t n, n_in, n_out, rank, x_stride, y_stride;
    int32_t n_modules; // 0: one
    enum dtype y_dtype;
    float *down, *up;
    struct weight *w;
    struct adapter_pair pair;
};

/* A row of a pass: its adapter and its input, which is row `id` of all inputs. adapter -1: the row
 * belongs to no sequence. */
struct row_spec {
    int32_t id, adapter;
};

static struct weight *open_weight(struct adapters *a, enum weight_kind kind, const float *data,
                                  int32_t n, int32_t n_out, int32_t n_in)
{
    struct weight_part part = weight_part_plain(data, DT_F32, (int64_t)n * n_out, n_in, n_in);
    const struct weight_desc desc = {.name = "test",
                                     .kind = kind,
                                     .dtype = a->p.dtype,
                                     .n_out = n_out,
                                     .n_in = n_in,
                                     .n_experts = n,
                                     .n_parts = 1,
                                     .parts = &part,
                                     .k_segments = 1};
    struct backend *be = a->p.be[GPU];
    struct weight *w = NULL;
    struct err err = {""};
    if (be->ops->weight_open(be, &desc, &w, &err) != OK) {
        CHECK_FAIL("weight_open: %s", err.text);
    }
    return w;
}

static float *random_array(struct adapters *a, int64_t n, float scale)
{
    float *v = xmalloc((size_t)n * sizeof *v);
    const uint64_t seed = a->p.seed++;
    for (int64_t i = 0; i < n; i++) {
        v[i] = random_float(seed, i, scale, a->p.dtype);
    }
    return v;
}

static int32_t ranks_of(const struct adapters *a)
{
    return a->rank * (a->n_modules > 0 ? a->n_modules : 1);
}

/* Several modules have runs whose borders are no multiples of anything; the first one has two. */
static void make_runs(struct adapters *a)
{
    struct adapter_pair *p = &a->pair;
    p->n_runs = 1;
    p->runs[0].first_out = p->runs[0].first_rank = 0;
    for (int32_t i = 1; i < a->n_modules; i++) {
        p->runs[i].first_out = a->n_out / 2 + 3 + 9 * (i - 1);
        p->runs[i].first_rank = (a->n_modules - i) * a->rank;
        p->n_runs++;
    }
    if (a->n_modules > 1) {
        p->runs[p->n_runs].first_out = a->n_out - 5;
        p->runs[p->n_runs++].first_rank = 0;
    }
}

static int32_t first_rank(const struct adapters *a, int32_t feature)
{
    int32_t run = 0;
    while (run + 1 < a->pair.n_runs && feature >= a->pair.runs[run + 1].first_out) {
        run++;
    }
    return a->pair.runs[run].first_rank;
}

static bool adapters_open(struct adapters *a, enum dtype dtype)
{
    if (!pair_open(&a->p, dtype, false, NULL)) {
        return false;
    }
    float *w = xcalloc((size_t)a->n_out * (size_t)a->n_in, sizeof *w);
    a->down = random_array(a, (int64_t)a->n * ranks_of(a) * a->n_in, 1.0f / sqrtf((float)a->n_in));
    a->up = random_array(a, (int64_t)a->n * a->n_out * a->rank, 1.0f / sqrtf((float)a->rank));
    a->w = open_weight(a, WEIGHT_LINEAR, w, 1, a->n_out, a->n_in);
    a->pair.down = open_weight(a, WEIGHT_ADAPTER, a->down, a->n, ranks_of(a), a->n_in);
    a->pair.up = open_weight(a, WEIGHT_ADAPTER, a->up, a->n, a->n_out, a->rank);
    free(w);
    make_runs(a);
    a->p.limits = pair_limits();
    a->p.limits.max_out_rows = MOST_ROWS;
    a->p.limits.max_lanes = N_LANES;
    struct err err = {""};
    struct backend *be = a->p.be[GPU];
    return be->ops->setup(be, &a->p.limits, &err) == OK;
}

static void adapters_close(struct adapters *a)
{
    pair_close(&a->p);
    free(a->down);
    free(a->up);
}

/* Rows of one adapter that follow one another are a sequence, of up to `longest` rows. */
static void pass_of_rows(struct test_pass *t, const struct row_spec *rows, int32_t n,
                         int32_t longest)
{
    memset(&t->pass, 0, sizeof t->pass);
    int32_t n_seqs = 0;
    for (int32_t i = 0; i < n; i++) {
        struct pass_seq *last = n_seqs > 0 ? &t->seqs[n_seqs - 1] : NULL;
        t->rows[i] = (struct pass_row){.token = 1};
        if (rows[i].adapter < 0) {
            continue;
        }
        if (last && last->first_row + last->n_rows == i && last->adapter == rows[i].adapter &&
            last->n_rows < longest) {
            last->n_rows++;
            continue;
        }
        t->seqs[n_seqs] = (struct pass_seq){
            .lane = n_seqs % N_LANES, .first_row = i, .n_rows = 1, .adapter = rows[i].adapter};
        n_seqs++;
    }
    t->pass.model = TEST_MODEL;
    t->pass.n_rows = n;
    t->pass.rows = t->rows;
    t->pass.n_seqs = n_seqs;
    t->pass.seqs = t->seqs;
    t->pass.out_rows = t->out_rows;
}

static void end_step(struct backend *be)
{
    struct pass_results results[8];
    CHECK_EQ(be->ops->pass_end(be), OK);
    CHECK_EQ(be->ops->step_end(be), OK);
    CHECK_EQ(be->ops->step_wait(be, 0, results, 8), OK);
}

/* The rows of a tensor; x: the inputs, otherwise what the product left in y. */
static struct pair_tensor rows_of(struct adapters *a, const float *all, bool x,
                                  const struct row_spec *rows, int32_t n)
{
    const int32_t width = x ? a->n_in : a->n_out, stride = x ? a->x_stride : a->y_stride;
    struct pair_tensor t = tensor_make(&a->p, n, stride, x ? a->p.dtype : a->y_dtype);
    float *v = xmalloc((size_t)n * (size_t)stride * sizeof *v);
    for (int32_t r = 0; r < n; r++) {
        for (int32_t c = 0; c < stride; c++) {
            v[(size_t)r * (size_t)stride + (size_t)c] =
                c < width ? all[(size_t)rows[r].id * (size_t)width + (size_t)c] : NAN;
        }
    }
    tensor_put(&a->p, &t, v);
    free(v);
    return t;
}

/* Runs the op over the rows; with `out_rows` they are the out rows of a pass that has their reverse
 * order, with one more row in front. The caller frees the result, [n, y_stride]. */
static float *run(struct adapters *a, const float *x, const float *y, const struct row_spec *rows,
                  int32_t n, int32_t longest, bool out_rows)
{
    static struct test_pass t;
    struct backend *be = a->p.be[GPU];
    struct pair_tensor tx = rows_of(a, x, true, rows, n), ty = rows_of(a, y, false, rows, n);
    if (out_rows) {
        struct row_spec reversed[MOST_ROWS + 1] = {{0, 1}};
        for (int32_t i = 0; i < n; i++) {
            reversed[1 + i] = rows[n - 1 - i];
        }
        pass_of_rows(&t, reversed, n + 1, longest);
        t.pass.n_out = n;
        for (int32_t i = 0; i < n; i++) {
            t.out_rows[i] = n - i;
        }
    } else {
        pass_of_rows(&t, rows, n, longest);
    }
    const struct linear_args args = {.weight = a->w,
                                     .x = tx.t[GPU],
                                     .y = ty.t[GPU],
                                     .n_rows = n,
                                     .adapter = &a->pair,
                                     .out_rows = out_rows};
    struct pass_shape shape;
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), OK);
    CHECK_EQ(be->ops->linear_adapter(be, &args), OK);
    end_step(be);
    return tensor_get(&a->p, &ty, GPU);
}

static const float *matrix(const float *all, int32_t adapter, int64_t n)
{
    return all + (adapter - 1) * n;
}

/* What the row should be, in double precision. */
static void reference(const struct adapters *a, const float *x, int32_t adapter, double *y)
{
    const float *down = matrix(a->down, adapter, (int64_t)ranks_of(a) * a->n_in);
    const float *up = matrix(a->up, adapter, (int64_t)a->n_out * a->rank);
    double *sums = xcalloc((size_t)ranks_of(a), sizeof *sums);
    for (int32_t r = 0; r < ranks_of(a); r++) {
        for (int32_t k = 0; k < a->n_in; k++) {
            sums[r] += (double)down[(int64_t)r * a->n_in + k] * (double)x[k];
        }
    }
    for (int32_t o = 0; o < a->n_out; o++) {
        for (int32_t r = 0; r < a->rank; r++) {
            y[o] += (double)up[(int64_t)o * a->rank + r] * sums[first_rank(a, o) + r];
        }
    }
    free(sums);
}

static void check_result(struct adapters *a, const char *what, const float *x, const float *y,
                         const float *got, const struct row_spec *rows, int32_t n)
{
    const size_t width = (size_t)a->n_out;
    float *want = xcalloc((size_t)n * (size_t)a->y_stride, sizeof *want);
    double *sum = xmalloc(width * sizeof *sum);
    bool same = true, kept = true;
    for (int32_t r = 0; COMPARED && r < n; r++) {
        const float *before = y + (size_t)rows[r].id * width;
        const float *now = got + (size_t)r * (size_t)a->y_stride;
        for (size_t c = 0; c < width; c++) {
            sum[c] = (double)before[c];
        }
        if (rows[r].adapter > 0) {
            reference(a, x + (size_t)rows[r].id * (size_t)a->n_in, rows[r].adapter, sum);
        } else {
            same = same && memcmp(now, before, width * sizeof *now) == 0;
        }
        for (size_t c = 0; c < width; c++) {
            want[(size_t)r * (size_t)a->y_stride + c] = (float)sum[c];
        }
        for (int32_t c = a->n_out; c < a->y_stride; c++) {
            kept = kept && isnan(now[c]);
        }
    }
    check_near(what, want, got, n, a->n_out, a->y_stride, pair_tolerance(&a->p));
    if (!same || !kept) {
        CHECK_FAIL("%s: %s", what, same ? "padding was written" : "other rows were written");
    }
    free(want);
    free(sum);
}

/* Adapters in no order, with rows that have none and rows of no sequence. */
static void mixed_rows(struct row_spec *rows, int32_t n, int32_t n_adapters, int32_t each)
{
    for (int32_t i = 0; i < n; i++) {
        rows[i].id = i;
        rows[i].adapter = (i / each * 7 + 3) % (n_adapters + 2) - 1;
    }
    if (n == 1) {
        rows[0].adapter = n_adapters;
    }
}

static void reference_case(enum dtype dtype, struct adapters a)
{
    static const struct {
        int32_t n, each;
        bool out_rows;
    } passes[] = {{1, 1, false},  {1, 1, true},     {2, 1, false},  {15, 4, true},
                  {16, 1, false}, {33, 5, false},   {64, 64, true}, {77, 1, false},
                  {300, 9, true}, {300, 120, false}};
    struct row_spec rows[MOST_ROWS];
    REQUIRE(adapters_open(&a, dtype));
    float *x = random_array(&a, (int64_t)MOST_ROWS * a.n_in, 1.0f);
    float *y = random_array(&a, (int64_t)MOST_ROWS * a.n_out, 1.0f);
    for (int32_t i = 0; i < COUNT(passes); i++) {
        const int32_t n = passes[i].n;
        char what[120];
        snprintf(what, sizeof what, "dtype %d, %d to %d, rank %d, %d adapters, %d rows, %d each",
                 dtype, a.n_in, a.n_out, a.rank, a.n, n, passes[i].each);
        for (int32_t f = 0; f < 2; f++) { // y in the dtype of x and in fp32
            a.y_dtype = f == 0 ? dtype : DT_F32;
            mixed_rows(rows, n, a.n, passes[i].each);
            float *got = run(&a, x, y, rows, n, 50, passes[i].out_rows);
            check_result(&a, what, x, y, got, rows, n);
            free(got);
        }
    }
    free(x);
    free(y);
    adapters_close(&a);
}

TEST(adapters_match_sums_in_double_precision)
{
    NEED_GPU();
    static const struct adapters shapes[] = {
        {.n = 5, .n_in = 256, .n_out = 200, .rank = 16, .x_stride = 264, .y_stride = 216},
        {.n = 19, .n_in = 2056, .n_out = 264, .rank = 48, .x_stride = 2056, .y_stride = 264},
        {.n = 3, .n_in = 1096, .n_out = 128, .rank = 64, .x_stride = 1096, .y_stride = 144},
        {.n = 2, .n_in = 520, .n_out = 136, .rank = 256, .x_stride = 520, .y_stride = 136},
        {.n = 2, .n_in = 64, .n_out = 72, .rank = 1024, .x_stride = 64, .y_stride = 72},
        {.n = 1, .n_in = 40, .n_out = 8, .rank = 32, .x_stride = 40, .y_stride = 8},
        {.n = 3, .n_in = 1101, .n_out = 77, .rank = 32, .x_stride = 1103, .y_stride = 79},
        {.n = 3,
         .n_in = 1101,
         .n_out = 77,
         .rank = 32,
         .x_stride = 1103,
         .y_stride = 79,
         .n_modules = 3},
        {.n = 4,
         .n_in = 512,
         .n_out = 328,
         .rank = 16,
         .x_stride = 512,
         .y_stride = 328,
         .n_modules = 2},
        {.n = 2,
         .n_in = 520,
         .n_out = 200,
         .rank = 80,
         .x_stride = 520,
         .y_stride = 200,
         .n_modules = 6},
        {.n = 3, .n_in = 100, .n_out = 300, .rank = 16, .x_stride = 100, .y_stride = 300},
        {.n = 3, .n_in = 96, .n_out = 104, .rank = 16, .x_stride = 101, .y_stride = 104},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            reference_case(pair_dtypes[d], shapes[i]);
        }
    }
}

/* Compares rows of `got`, in any order, with those of `all`, by their ids. */
static void check_bits(const struct adapters *a, const float *all, const float *got,
                       const struct row_spec *rows, int32_t n, const char *what)
{
    for (int32_t r = 0; COMPARED && r < n; r++) {
        const size_t width = (size_t)a->n_out, stride = (size_t)a->y_stride;
        if (memcmp(all + (size_t)rows[r].id * stride, got + (size_t)r * stride,
                   width * sizeof *got) != 0) {
            CHECK_FAIL("dtype %d, %d to %d, rank %d: row %d differs %s", a->p.dtype, a->n_in,
                       a->n_out, a->rank, rows[r].id, what);
            return;
        }
    }
}

/* Rows have the bits that they have in a pass of 300 rows. */
static void bits_case(enum dtype dtype, struct adapters a)
{
    enum { ALL = 300 };
    static const int32_t counts[] = {1, 2, 3, 15, 16, 17, 64, 65, 200, 257, ALL};
    struct row_spec rows[ALL], some[ALL];
    REQUIRE(adapters_open(&a, dtype));
    a.y_dtype = dtype;
    float *x = random_array(&a, (int64_t)ALL * a.n_in, 1.0f);
    float *y = random_array(&a, (int64_t)ALL * a.n_out, 1.0f);
    mixed_rows(rows, ALL, a.n, 3);
    float *all = run(&a, x, y, rows, ALL, 1, false);
    for (int32_t i = 0; i < COUNT(counts); i++) {
        const int32_t n = counts[i];
        for (int32_t first = 0; first + n <= ALL && first < 4 * n; first += n) {
            for (int32_t r = 0; r < n; r++) {
                some[r] = rows[first + n - 1 - r]; // in the opposite order
            }
            float *got = run(&a, x, y, some, n, n, first % 2 == 1);
            check_bits(&a, all, got, some, n, n == 1 ? "alone" : "among others");
            free(got);
        }
    }
    free(all);
    free(x);
    free(y);
    adapters_close(&a);
}

TEST(a_row_has_the_same_bits_alone_and_among_others)
{
    NEED_GPU();
    static const struct adapters shapes[] = {
        {.n = 7, .n_in = 4096, .n_out = 512, .rank = 48, .x_stride = 4096, .y_stride = 512},
        {.n = 40, .n_in = 1544, .n_out = 160, .rank = 16, .x_stride = 1552, .y_stride = 168},
        {.n = 2, .n_in = 2048, .n_out = 96, .rank = 192, .x_stride = 2048, .y_stride = 96},
        {.n = 3,
         .n_in = 768,
         .n_out = 264,
         .rank = 80,
         .x_stride = 768,
         .y_stride = 264,
         .n_modules = 3},
        {.n = 3, .n_in = 1027, .n_out = 99, .rank = 32, .x_stride = 1027, .y_stride = 99},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            bits_case(pair_dtypes[d], shapes[i]);
        }
    }
}

/* A pass without adapters has another graph, and one graph serves all adapters. Its rows are
 * padded.
 */
TEST(captured_passes_serve_all_adapters)
{
    NEED_GPU();
    enum { N = 13, PADDED = 16, PLAIN = 3, TURNS = 8 };
    static struct test_pass t;
    struct adapters a = {
        .n = 5, .n_in = 256, .n_out = 200, .rank = 16, .x_stride = 256, .y_stride = 200};
    struct row_spec rows[PADDED];
    mixed_rows(rows, PADDED, a.n, 1);
    REQUIRE(adapters_open(&a, DT_BF16));
    a.y_dtype = DT_BF16;
    struct backend *be = a.p.be[GPU];
    float *x = random_array(&a, (int64_t)PADDED * a.n_in, 1.0f);
    float *y = random_array(&a, (int64_t)PADDED * a.n_out, 1.0f);
    struct pair_tensor tx = rows_of(&a, x, true, rows, PADDED);
    struct pair_tensor ty = rows_of(&a, y, false, rows, PADDED);
    const struct linear_args l = {
        .weight = a.w, .x = tx.t[GPU], .y = ty.t[GPU], .n_rows = PADDED, .adapter = &a.pair};
    for (int32_t turn = 0; turn < TURNS; turn++) {
        for (int32_t i = 0; i < N; i++) {
            rows[i].adapter = turn < PLAIN ? 0 : (i + turn) % (a.n + 1);
        }
        tensor_put(&a.p, &ty, y);
        pass_of_rows(&t, rows, N, 1);
        t.pass.model = 1;
        struct pass_shape shape;
        CHECK_EQ(be->ops->step_begin(be, 0), OK);
        CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), OK);
        CHECK_EQ(shape.n_rows, PADDED);
        CHECK_EQ(shape.issue, turn < 2 || turn == PLAIN || turn == PLAIN + 1);
        if (shape.issue && turn >= PLAIN) {
            CHECK_EQ(be->ops->linear_adapter(be, &l), OK);
        }
        end_step(be);
        float *got = tensor_get(&a.p, &ty, GPU);
        float *want = run(&a, x, y, rows, N, 1, false);
        CHECK(!COMPARED || memcmp(want, got, N * (size_t)a.n_out * sizeof *got) == 0);
        free(got);
        free(want);
    }
    free(x);
    free(y);
    adapters_close(&a);
}

/* Replaces one of the adapters, also in the arrays of the reference. */
static void replace(struct adapters *a, int32_t adapter)
{
    const int64_t n_down = (int64_t)ranks_of(a) * a->n_in, n_up = (int64_t)a->n_out * a->rank;
    const struct backend_ops *ops = a->p.be[GPU]->ops;
    float *down = random_array(a, n_down, 1.0f), *up = random_array(a, n_up, 1.0f);
    CHECK_EQ(ops->weight_adapter_set(a->p.be[GPU], a->pair.down, adapter - 1, down), OK);
    CHECK_EQ(ops->weight_adapter_set(a->p.be[GPU], a->pair.up, adapter - 1, up), OK);
    memcpy(a->down + (adapter - 1) * n_down, down, (size_t)n_down * sizeof *down);
    memcpy(a->up + (adapter - 1) * n_up, up, (size_t)n_up * sizeof *up);
    free(down);
    free(up);
}

TEST(an_adapter_can_be_replaced)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        struct adapters a = {
            .n = 3, .n_in = 96, .n_out = 104, .rank = 16, .x_stride = 96, .y_stride = 104};
        struct row_spec rows[24];
        REQUIRE(adapters_open(&a, pair_dtypes[d]));
        a.y_dtype = pair_dtypes[d];
        float *x = random_array(&a, (int64_t)MOST_ROWS * a.n_in, 1.0f);
        float *y = random_array(&a, (int64_t)MOST_ROWS * a.n_out, 1.0f);
        mixed_rows(rows, COUNT(rows), a.n, 2);
        for (int32_t adapter = 1; adapter <= a.n; adapter++) {
            replace(&a, adapter);
            float *got = run(&a, x, y, rows, COUNT(rows), 50, false);
            check_result(&a, "replaced", x, y, got, rows, COUNT(rows));
            free(got);
        }
        struct backend *be = a.p.be[GPU];
        CHECK_EQ(be->ops->weight_adapter_set(be, a.pair.up, a.n, a.up), ERR_INVALID);
        CHECK_EQ(be->ops->weight_adapter_set(be, a.pair.up, -1, a.up), ERR_INVALID);
        CHECK_EQ(be->ops->weight_adapter_set(be, a.w, 0, a.up), ERR_INVALID);
        free(x);
        free(y);
        adapters_close(&a);
    }
}

TEST(unknown_adapters_and_other_sizes_are_refused)
{
    NEED_GPU();
    static struct test_pass t;
    struct adapters a = {
        .n = 3, .n_in = 64, .n_out = 32, .rank = 16, .x_stride = 64, .y_stride = 32};
    REQUIRE(adapters_open(&a, DT_BF16));
    a.y_dtype = DT_BF16;
    struct backend *be = a.p.be[GPU];
    struct row_spec row = {0, a.n + 1};
    struct pass_shape shape;
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    pass_of_rows(&t, &row, 1, 1);
    CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), ERR_INVALID);
    t.seqs[0].adapter = -1;
    CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), ERR_INVALID);
    t.seqs[0].adapter = a.n;
    CHECK_EQ(be->ops->pass_begin(be, &t.pass, &shape), OK);
    struct pair_tensor x = tensor_make(&a.p, 2, 64, DT_BF16), y = tensor_make(&a.p, 2, 32, DT_BF16);
    struct adapter_pair swapped = a.pair, beyond = a.pair;
    swapped.up = a.pair.down;
    swapped.down = a.pair.up;
    beyond.runs[0].first_rank = 16;
    struct linear_args l = {
        .weight = a.w, .x = x.t[GPU], .y = y.t[GPU], .n_rows = 1, .adapter = &swapped};
    CHECK_EQ(be->ops->linear_adapter(be, &l), ERR_INVALID);
    l.adapter = &beyond;
    CHECK_EQ(be->ops->linear_adapter(be, &l), ERR_INVALID);
    l.adapter = NULL;
    CHECK_EQ(be->ops->linear_adapter(be, &l), ERR_INVALID);
    l.adapter = &a.pair;
    l.n_rows = 2;
    CHECK_EQ(be->ops->linear_adapter(be, &l), ERR_INVALID);
    l.n_rows = 1;
    l.out_rows = true;
    CHECK_EQ(be->ops->linear_adapter(be, &l), ERR_INVALID);
    l.out_rows = false;
    CHECK_EQ(be->ops->linear_adapter(be, &l), OK);
    end_step(be);
    adapters_close(&a);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
