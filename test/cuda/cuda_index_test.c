// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: keys are stored for the index, each row picks keys by their scores, and attends
 * to its picks. Compared with the definitions of these ops in double precision. */
#include "test/cuda/cuda_index.h"

static const struct stored plain_numbers = {.format = KV_PLAIN};

/* ---- picks --------------------------------------------------------------------------------- */

static double length_of(const float *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += (double)x[i] * x[i];
    }
    return sqrt(sum);
}

/* The score of each slot. *most: a bound of what a score can be. */
static void score_slots(const struct index_bed *t, const struct index_result *res, int32_t r,
                        const int32_t *slots, int32_t n, double *scores, double *most)
{
    const struct pass_row *row = &t->t.rows[r];
    const int32_t d = t->s.index_dim;
    const float *q = res->index_q + (size_t)r * (size_t)res->q_stride;
    double longest = 0, queries = 0;
    for (int32_t h = 0; h < t->s.index_heads; h++) {
        const float w = input_of(t, INPUT_INDEX_W, row->lane, row->slot_pos, h);
        queries += fabs((double)w) * length_of(q + h * d, d);
    }
    for (int32_t j = 0; j < n; j++) {
        const float *k = t->index_keys[row->lane] + (size_t)slots[j] * (size_t)d;
        const double length = length_of(k, d);
        longest = greater(longest, length);
        scores[j] = 0;
        for (int32_t h = 0; h < t->s.index_heads; h++) {
            double dot = 0;
            for (int32_t i = 0; i < d; i++) {
                dot += (double)q[h * d + i] * k[i];
            }
            const float w = input_of(t, INPUT_INDEX_W, row->lane, row->slot_pos, h);
            scores[j] += dot > 0 ? w * dot : 0;
        }
    }
    *most = queries * longest;
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The error of a score, as a share of its bound: that of sums in fp32, or of a stored element that
 * was rounded to the other side. */
static double score_error(const struct index_bed *t)
{
    if (t->exact) {
        return 0;
    }
    if (t->stored.format != KV_PLAIN) {
        return 4e-3;
    }
    return t->p.dtype == DT_F32 ? 3e-6 : 5e-4;
}

/* The list of row r must have the highest scores, and exactly those slots if scores are exact. */
static void check_list(const struct index_bed *t, const struct index_result *res, int32_t r,
                       const char *what)
{
    static int32_t slots[MOST_LEN + MAX_TREE_NODES];
    static double scores[MOST_LEN + MAX_TREE_NODES], sorted[MOST_LEN + MAX_TREE_NODES];
    const int32_t top_k = t->s.top_k, n = slots_seen(t, r, slots);
    const int32_t *list = res->lists + (size_t)r * (size_t)(top_k + 1);
    double most = 0;
    if (list[0] != lesser(n, top_k)) {
        CHECK_FAIL("%s: row %d has %d picks of %d keys", what, r, list[0], n);
        return;
    }
    score_slots(t, res, r, slots, n, scores, &most);
    memcpy(sorted, scores, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, descending);
    const double last = sorted[list[0] - 1], error = score_error(t) * most;
    int32_t n_higher = 0, at = 0;
    for (int32_t j = 0; j < n; j++) {
        n_higher += scores[j] > last;
    }
    int32_t n_equal = list[0] - n_higher;
    for (int32_t j = 0; j < n; j++) {
        const bool picked = at < list[0] && list[1 + at] == slots[j];
        bool is_wrong = picked ? scores[j] < last - error : scores[j] > last + error;
        if (t->exact) {
            is_wrong = picked != (scores[j] > last || (scores[j] == last && n_equal-- > 0));
        }
        if (is_wrong) {
            CHECK_FAIL("%s: row %d %s slot %d with %g, the last pick has %g", what, r,
                       picked ? "picks" : "leaves out", slots[j], scores[j], last);
            return;
        }
        at += picked;
    }
    if (at != list[0]) {
        CHECK_FAIL("%s: entry %d of row %d, slot %d, is not in order or not visible", what, at, r,
                   list[1 + at]);
    }
}

/* ---- attention ----------------------------------------------------------------------------- */

/* Attention of a row over its list. */
static void attend_row(const struct index_bed *t, const struct index_result *res, int32_t r,
                       float *out)
{
    static double weights[MOST_LEN];
    const struct pass_row *row = &t->t.rows[r];
    const int32_t dk = key_dim(t), dv = t->s.lora;
    const int32_t *list = res->lists + (size_t)r * (size_t)(t->s.top_k + 1);
    for (int32_t h = 0; h < t->s.heads; h++) {
        double sum = 0, q[MOST_DIM], values[MOST_DIM] = {0}, top = -INFINITY;
        for (int32_t i = 0; i < dk; i++) {
            q[i] = input_of(t, INPUT_QUERY, row->lane, row->slot_pos, h * dk + i);
        }
        for (int32_t j = 0; j < list[0]; j++) {
            const float *k = t->keys[row->lane] + (size_t)list[1 + j] * (size_t)dk;
            double dot = 0;
            for (int32_t i = 0; i < dk; i++) {
                dot += q[i] * k[i];
            }
            weights[j] = dot * (double)0.07f;
            top = greater(top, weights[j]);
        }
        if (t->s.has_sinks) { // a key without a value
            top = greater(top, (double)t->sinks[h]);
            sum = exp((double)t->sinks[h] - top);
        }
        for (int32_t j = 0; j < list[0]; j++) {
            const float *k = t->keys[row->lane] + (size_t)list[1 + j] * (size_t)dk;
            const double e = exp(weights[j] - top);
            sum += e;
            for (int32_t i = 0; i < dv; i++) {
                values[i] += e * k[i];
            }
        }
        for (int32_t i = 0; i < dv; i++) {
            out[h * dv + i] = (float)(values[i] / sum);
        }
    }
}

/* Rotated queries of the index, by row. */
static void check_queries(const struct index_bed *t, const struct index_result *res,
                          const char *what)
{
    const int32_t n = t->t.pass.n_rows, d = t->s.index_dim, width = t->s.index_heads * d;
    float *want = xcalloc((size_t)n * (size_t)res->q_stride, sizeof *want);
    for (int32_t r = 0; r < n; r++) {
        const struct pass_row *row = &t->t.rows[r];
        float *q = want + (size_t)r * (size_t)res->q_stride;
        for (int32_t i = 0; i < width; i++) {
            q[i] = input_of(t, INPUT_INDEX_Q, row->lane, row->slot_pos, i);
        }
        for (int32_t h = 0; h < t->s.index_heads; h++) {
            rotate(t, row->pos, q + h * d);
        }
    }
    check_near(what, want, res->index_q, n, width, res->q_stride, pair_tolerance(&t->p));
    free(want);
}

/* Checks every step-th row. */
static void check_result(const struct index_bed *t, const struct index_result *res, int32_t step,
                         const char *what)
{
    const int32_t n = t->t.pass.n_rows, width = t->s.heads * t->s.lora;
    float *want = xcalloc((size_t)n * (size_t)width, sizeof *want);
    float *got = xcalloc((size_t)n * (size_t)width, sizeof *got);
    int32_t n_checked = 0;
    check_queries(t, res, what);
    for (int32_t r = n - 1; r >= 0; r -= step, n_checked++) {
        check_list(t, res, r, what);
        attend_row(t, res, r, want + (size_t)n_checked * (size_t)width);
        memcpy(got + (size_t)n_checked * (size_t)width,
               res->out + (size_t)r * (size_t)res->out_stride, (size_t)width * sizeof *got);
    }
    check_near(what, want, got, n_checked, width, width, stored_tolerance(&t->p, t->stored.format));
    for (int32_t r = 0; r < n; r++) {
        for (int32_t i = width; i < res->out_stride; i++) {
            CHECK(isnan(res->out[(size_t)r * (size_t)res->out_stride + (size_t)i]));
        }
    }
    free(want);
    free(got);
}

/* ---- cases --------------------------------------------------------------------------------- */

static struct index_bed bed;

struct index_case {
    enum dtype dtype;
    bool deterministic, exact;
    const struct index_shape *shape;
    struct stored stored; // zeroed: plain numbers
    const struct seq_spec *specs;
    int32_t n_specs;
    int32_t step;    // every step-th row is checked
    int32_t max_len; // of the backend; 0: that of the longest sequence
};

static bool open_case(const struct index_case *c)
{
    int32_t longest = 0;
    for (int32_t i = 0; i < c->n_specs; i++) {
        longest = greater(longest, c->specs[i].n_past + c->specs[i].n_new);
    }
    if (!bed_open(&bed, c->dtype, c->deterministic, c->exact, c->shape, c->stored, longest,
                  greater(longest, c->max_len))) {
        return false;
    }
    store_pasts(&bed, c->specs, c->n_specs);
    pass_of(&bed.t, c->specs, c->n_specs, false, 9);
    return true;
}

static void run_case(const struct index_case *c)
{
    const struct index_shape *s = c->shape;
    char what[160];
    snprintf(what, sizeof what,
             "dtype %d format %d: %d heads of %d + %d, index %d of %d, %d pairs, top %d%s",
             c->dtype, c->stored.format, s->heads, s->lora, s->rope, s->index_heads, s->index_dim,
             s->n_pairs, s->top_k, c->exact ? ", exact" : "");
    REQUIRE(open_case(c));
    struct index_result res = run_rows(&bed);
    if (COMPARED) {
        check_result(&bed, &res, c->step, what);
    }
    result_free(&res);
    bed_close(&bed);
}

/* Prompts, decoding rows and trees, with fewer keys than picks and with more. */
static const struct seq_spec mixed[] = {
    {0, 40, false}, {100, 1, false}, {0, 1, false},   {77, 16, false}, {33, 20, true},
    {5, 9, true},   {63, 65, false}, {300, 1, false}, {15, 3, false},  {90, 50, true},
};

static const struct index_shape small_shapes[] = {
    {2, 16, 8, 2, 16, 4, false, 8, 16, 0, false},
    {8, 64, 16, 8, 64, 8, true, 40, 64, 0, false},
    {4, 32, 8, 3, 24, 12, false, 17, 24, 0, false},
    {20, 512, 64, 16, 128, 32, false, 64, 16, 0, false},
    {3, 20, 10, 5, 36, 9, true, 12, 4, 0, false}, // no whole vectors
    {6, 64, 16, 2, 40, 8, false, 17, 16, 24, true},
    {20, 512, 64, 16, 128, 16, true, 700, 16, 96, true}, // all keys
};

TEST(picks_and_attention_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(small_shapes); i++) {
            const struct index_case c = {.dtype = pair_dtypes[d],
                                         .deterministic = i % 2 == 0,
                                         .shape = &small_shapes[i],
                                         .specs = mixed,
                                         .n_specs = COUNT(mixed),
                                         .step = 3};
            run_case(&c);
        }
    }
}

TEST(pages_of_codes_agree)
{
    NEED_GPU();
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(small_shapes) * COUNT(stored_codes); i++) {
            const struct index_case c = {.dtype = pair_dtypes[d],
                                         .deterministic = i % 2 == 0,
                                         .shape = &small_shapes[i / COUNT(stored_codes)],
                                         .stored = stored_codes[i % COUNT(stored_codes)],
                                         .specs = mixed,
                                         .n_specs = COUNT(mixed),
                                         .step = 7};
            run_case(&c);
        }
    }
}

/* Scores are small integers, so many are equal at the end of a list. */
TEST(ties_go_to_earlier_keys)
{
    NEED_GPU();
    static const struct index_shape shapes[] = {
        {2, 16, 8, 2, 16, 0, false, 8, 16, 0, false},
        {2, 16, 8, 8, 64, 0, false, 40, 16, 0, false},
        {2, 16, 8, 1, 36, 0, false, 33, 16, 0, false},
        {2, 16, 8, 80, 64, 0, false, 64, 64, 0, false},
        {2, 16, 8, 64, 128, 0, false, 97, 16, 0, false},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            const struct index_case c = {.dtype = pair_dtypes[d],
                                         .exact = true,
                                         .shape = &shapes[i],
                                         .specs = mixed,
                                         .n_specs = COUNT(mixed),
                                         .step = 1};
            run_case(&c);
        }
    }
}

/* DeepSeek V3.2 with 8 ranks and with one, GLM-5, and more heads per block. */
static const struct index_shape deepseek = {16, 512, 64, 64, 128, 32, false, 2048, 64, 0, false},
                                deepseek_whole = {128,   512,  64, 64, 128,  32,
                                                  false, 2048, 64, 0,  false},
                                glm = {8, 512, 64, 32, 128, 32, true, 2048, 64, 0, false},
                                wide_group = {64, 512, 64, 32, 128, 32, true, 256, 64, 0, false},
                                hy = {32, 512, 64, 16, 128, 32, false, 2048, 64, 64, true};

TEST(published_shapes_agree)
{
    NEED_GPU();
    static const struct seq_spec few[] = {{5000, 1, false}, {2100, 4, false}, {3000, 12, true}};
    static const struct seq_spec chunk[] = {{4000, 100, false}}, one[] = {{2900, 1, false}},
                                 several[] = {{2900, 20, false}};
    static const struct seq_spec rows[] = {{700, 3, false}, {0, 40, false}, {255, 30, true}};
    static const struct seq_spec more[] = {{700, 103, false}, {0, 300, false}, {255, 30, true}};
    static const struct index_shape some_heads = {40, 512, 64, 32, 128, 32, true, 200, 16, 0, true};
    const struct index_case cases[] = {
        {DT_BF16, false, false, &deepseek, plain_numbers, few, COUNT(few), 3, 0},
        {DT_BF16, true, true, &deepseek, plain_numbers, few, COUNT(few), 4, 0},
        {DT_BF16, false, false, &deepseek, plain_numbers, chunk, COUNT(chunk), 20, 0},
        {DT_F16, false, false, &glm, plain_numbers, few, COUNT(few), 6, 0},
        {DT_BF16, false, false, &deepseek_whole, plain_numbers, one, COUNT(one), 1, 0},
        {DT_BF16, true, false, &deepseek_whole, plain_numbers, several, COUNT(several), 19, 0},
        {DT_BF16, false, false, &wide_group, plain_numbers, rows, COUNT(rows), 9, 0},
        {DT_BF16, true, false, &wide_group, stored_codes[1], rows, COUNT(rows), 9, 0},
        {DT_BF16, false, false, &wide_group, plain_numbers, more, COUNT(more), 31, 0},
        {DT_F16, false, false, &some_heads, plain_numbers, more, COUNT(more), 29, 0},
        {DT_BF16, false, false, &deepseek_whole, plain_numbers, chunk, COUNT(chunk), 37, 0},
        {DT_F32, false, false, &glm, plain_numbers, one, COUNT(one), 1, 0},
        {DT_BF16, false, false, &hy, plain_numbers, few, COUNT(few), 5, 0},
        {DT_BF16, false, false, &hy, plain_numbers, rows, COUNT(rows), 7, 0},
        {DT_BF16, true, false, &hy, stored_codes[1], chunk, COUNT(chunk), 20, 0},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        run_case(&cases[i]);
    }
}

/* Long passes are never captured, so their scores take only the memory that they need; if no row
 * has more keys than picks, there are no lists. With a large limit of lengths, the scores of a few
 * rows fill the memory, and rows are processed in groups. */
TEST(long_passes_and_long_tables_agree)
{
    NEED_GPU();
    static const struct index_shape all = {4, 32, 8, 3, 24, 12, false, 700, 16, 0, false};
    static const struct seq_spec chunk[] = {{70, 600, false}}, longest[] = {{45000, 1, false}};
    const struct index_case cases[] = {
        {DT_BF16, false, false, &small_shapes[1], plain_numbers, chunk, 1, 50, 0},
        {DT_F32, true, false, &small_shapes[4], plain_numbers, chunk, 1, 50, 0},
        {DT_BF16, false, false, &all, plain_numbers, chunk, 1, 50, 1000},
        {DT_BF16, false, true, &small_shapes[0], plain_numbers, mixed, COUNT(mixed), 1, 1 << 20},
        {DT_F32, false, true, &small_shapes[0], plain_numbers, mixed, COUNT(mixed), 1, 1 << 20},
        {DT_BF16, false, true, &small_shapes[1], plain_numbers, longest, 1, 1, 0},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        run_case(&cases[i]);
    }
}

/* ---- other rows ---------------------------------------------------------------------------- */

/* Row `row` of the pass `all` must be the same as in a pass of its own. */
static void compare_alone(const struct index_result *all, const struct seq_spec *specs,
                          int32_t n_specs, int32_t lane, int32_t in_seq, int32_t row,
                          bool same_bits)
{
    struct seq_spec one[MOST_LANES] = {{0}};
    const struct index_shape *s = &bed.s;
    one[lane] = (struct seq_spec){specs[lane].n_past + in_seq, 1, false};
    pass_of(&bed.t, one, n_specs, false, 9);
    struct index_result res = run_rows(&bed);
    const size_t list = (size_t)(s->top_k + 1);
    if (COMPARED && memcmp(res.lists, all->lists + (size_t)row * list,
                           (size_t)(res.lists[0] + 1) * sizeof *res.lists) != 0) {
        CHECK_FAIL("dtype %d format %d: row %d of lane %d picks other keys if alone", bed.p.dtype,
                   bed.stored.format, in_seq, lane);
    }
    if (COMPARED && same_bits &&
        memcmp(res.out, all->out + (size_t)row * (size_t)all->out_stride,
               (size_t)(s->heads * s->lora) * sizeof *res.out) != 0) {
        CHECK_FAIL("dtype %d format %d: row %d of lane %d has other bits if alone", bed.p.dtype,
                   bed.stored.format, in_seq, lane);
    }
    result_free(&res);
}

static void alone_case(const struct index_case *c)
{
    int32_t row = 0;
    REQUIRE(open_case(c));
    struct index_result all = run_rows(&bed);
    for (int32_t lane = 0; lane < c->n_specs; lane++) {
        for (int32_t r = 0; r < c->specs[lane].n_new && !c->specs[lane].tree; r += 13) {
            compare_alone(&all, c->specs, c->n_specs, lane, r, row + r, c->deterministic);
        }
        row += c->specs[lane].n_new;
    }
    result_free(&all);
    bed_close(&bed);
}

TEST(a_row_does_not_depend_on_others)
{
    NEED_GPU();
    static const struct seq_spec longer[] = {
        {2000, 120, false}, {2500, 1, false}, {2047, 3, false}};
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(small_shapes); i++) {
            const struct index_case c = {.dtype = pair_dtypes[d],
                                         .deterministic = i != 1,
                                         .shape = &small_shapes[i],
                                         .specs = mixed,
                                         .n_specs = COUNT(mixed)};
            alone_case(&c);
        }
    }
    const struct index_case cases[] = {
        {DT_BF16, true, false, &small_shapes[3], stored_codes[1], mixed, COUNT(mixed), 0, 0},
        {DT_BF16, true, false, &deepseek, plain_numbers, longer, COUNT(longer), 0, 0},
        {DT_BF16, true, false, &wide_group, plain_numbers, mixed, COUNT(mixed), 0, 0},
    };
    for (int32_t i = 0; i < COUNT(cases); i++) {
        alone_case(&cases[i]);
    }
}

/* ---- graphs and the fused op --------------------------------------------------------------- */

/* Passes of one key: the first is launched, the second captured, later ones replayed, with other
 * lengths and a padding row. */
static void replay_case(bool deterministic)
{
    enum { PASSES = 5, ROOM = 8, STEP = 29 };
    struct seq_spec specs[] = {
        {30, 1, false}, {3, 1, false}, {200, 1, false}, {77, 1, false}, {150, 1, false}};
    const struct index_case c = {.dtype = DT_BF16,
                                 .deterministic = deterministic,
                                 .shape = &small_shapes[3],
                                 .specs = specs,
                                 .n_specs = COUNT(specs),
                                 .max_len = 1000};
    REQUIRE(open_case(&c));
    struct operands o = operands_make(&bed, ROOM, bed.s.index_heads);
    struct key_picks picks = {.top_k = 0};
    for (int32_t i = 0; i < PASSES; i++) {
        char what[64];
        snprintf(what, sizeof what, "pass %d of the same key", i);
        pass_of(&bed.t, specs, COUNT(specs), false, 9);
        bed.t.pass.model = 1;
        run_pass(&bed, &o, &picks);
        struct index_result res = result_of(&bed, &o, &picks);
        if (COMPARED) {
            check_result(&bed, &res, 1, what);
        }
        result_free(&res);
        for (int32_t k = 0; k < COUNT(specs); k++) {
            specs[k].n_past++;
        }
    }
    bed_close(&bed);
}

TEST(replayed_passes_read_their_own_lengths)
{
    NEED_GPU();
    replay_case(false);
    replay_case(true);
}

/* Outputs of MLA's ops over picks, as one op or one by one. */
static float *mla_outputs(const struct operands *o, const struct key_picks *picks,
                          const struct pair_weight *absorb, const struct pair_weight *expand,
                          bool fused)
{
    enum { NOPE = 64, V_DIM = 64 };
    struct pair *p = &bed.p;
    struct backend *be = p->be[GPU];
    const struct index_shape *s = &bed.s;
    const int32_t n = bed.t.pass.n_rows, q_head = NOPE + s->rope, key = key_dim(&bed);
    p->seed = 90;
    struct pair_tensor q = tensor_random(p, n, s->heads * q_head, s->heads * q_head, 1.0f);
    struct pair_tensor out = tensor_poisoned(p, n, s->heads * V_DIM, p->dtype);
    const struct mla_store_args store = {.q = q.t[GPU],
                                         .kv = o->key.t[GPU],
                                         .q_out = o->query.t[GPU],
                                         .n_rows = n,
                                         .layer = ATTENTION_LAYER,
                                         .n_heads = s->heads,
                                         .q_head = q_head,
                                         .q_rope_offset = NOPE,
                                         .rope_dim = s->rope,
                                         .kv_lora = s->lora,
                                         .q_out_head = key,
                                         .q_out_offset = s->lora,
                                         .kv_norm = bed.kv_norm_w,
                                         .eps = 1e-6f};
    const struct linear_heads_args into = {.weight = absorb->w[GPU],
                                           .x = q.t[GPU],
                                           .y = o->query.t[GPU],
                                           .n_rows = n,
                                           .x_head = q_head,
                                           .y_head = key};
    const struct linear_heads_args from = {.weight = expand->w[GPU],
                                           .x = o->out.t[GPU],
                                           .y = out.t[GPU],
                                           .n_rows = n,
                                           .x_head = s->lora,
                                           .y_head = V_DIM};
    const struct attention_args attention = picked_attention(&bed, o, n, picks);
    if (fused) {
        CHECK_EQ(be->ops->mla(be, &store, &into, &attention, &from), OK);
    } else {
        CHECK_EQ(be->ops->mla_store(be, &store), OK);
        CHECK_EQ(be->ops->linear_heads(be, &into), OK);
        CHECK_EQ(be->ops->attention(be, &attention), OK);
        CHECK_EQ(be->ops->linear_heads(be, &from), OK);
    }
    return tensor_get(p, &out, GPU);
}

TEST(the_fused_op_has_picks)
{
    NEED_GPU();
    static const struct seq_spec specs[] = {{150, 1, false}, {20, 1, false}, {99, 1, false}};
    const struct index_case c = {
        .dtype = DT_BF16, .shape = &small_shapes[3], .specs = specs, .n_specs = COUNT(specs)};
    REQUIRE(open_case(&c));
    struct pair *p = &bed.p;
    struct backend *be = p->be[GPU];
    const struct index_shape *s = &bed.s;
    const struct pair_weight absorb =
        weight_make(p, WEIGHT_HEADS, DT_BF16, s->heads, s->lora, 64, false, 0.1f);
    const struct pair_weight expand =
        weight_make(p, WEIGHT_HEADS, DT_BF16, s->heads, 64, s->lora, false, 0.1f);
    struct operands o = operands_make(&bed, COUNT(specs), s->index_heads);
    struct key_picks picks = {.top_k = 0};
    struct pass_results none[8];
    struct pass_shape shape;
    operands_fill(&bed, &o);
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    CHECK_EQ(be->ops->pass_begin(be, &bed.t.pass, &shape), OK);
    issue_stores(&bed, &o, COUNT(specs));
    issue_pick(&bed, &o, COUNT(specs), &picks);
    float *apart = mla_outputs(&o, &picks, &absorb, &expand, false);
    float *fused = mla_outputs(&o, &picks, &absorb, &expand, true);
    CHECK_EQ(be->ops->pass_end(be), OK);
    CHECK_EQ(be->ops->step_end(be), OK);
    CHECK_EQ(be->ops->step_wait(be, 0, none, 8), OK);
    const size_t n = (size_t)COUNT(specs) * (size_t)s->heads * 64;
    for (size_t i = 0; COMPARED && i < n; i++) {
        CHECK(!isnan(apart[i]));
    }
    CHECK(!COMPARED || memcmp(apart, fused, n * sizeof *apart) == 0);
    free(apart);
    free(fused);
    bed_close(&bed);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
