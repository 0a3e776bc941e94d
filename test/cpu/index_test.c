// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: the keys that an indexer stores and picks, compared with naive scores, and
 * attention over the picked keys. */
#include "test/cpu/attention_world.h"

static double dot_of(const struct world *w, const float *k, int32_t row, int32_t head)
{
    const struct indexer *x = &w->index;
    const float *q = w->index_q + ((size_t)row * (size_t)x->heads + (size_t)head) * (size_t)x->dim;
    double dot = 0.0;
    for (int32_t d = 0; d < x->dim; d++) {
        dot += (double)q[d] * (double)k[d];
    }
    return dot;
}

static double score_of(const struct world *w, const struct pass_seq *s, int32_t row, int32_t slot)
{
    const struct indexer *x = &w->index;
    const float *k = w->index_k[s->lane] + (size_t)slot * (size_t)x->dim;
    double score = 0.0;
    for (int32_t h = 0; h < x->heads; h++) {
        const double dot = dot_of(w, k, row, h);
        score += (double)w->index_weights[row * x->heads + h] * greater(dot, 0.0);
    }
    return score;
}

/* The number of keys that come before `slot` in a row's order of scores; of equal ones those of
 * earlier positions come first. */
static int32_t n_before(const struct world *w, const struct pass_seq *s, int32_t row, int32_t slot,
                        const double *scores)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_past + s->n_rows; i++) {
        const bool first = scores[i] > scores[slot] || (!(scores[i] < scores[slot]) && i < slot);
        n += first && sees(w, s, row, i);
    }
    return n;
}

/* The picks of one row. Exact scores decide for each key; others may be wrong about keys whose
 * scores are closer to the last pick's than the rounding. */
static void check_row(const struct world *w, const struct pass_seq *s, int32_t row, bool exact)
{
    const int32_t n = s->n_past + s->n_rows;
    int32_t n_picked = 0, n_seen = 0, n_wrong = 0;
    double *scores = xcalloc((size_t)n, sizeof *scores), size = 0.0, least = INFINITY,
           most = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        scores[i] = score_of(w, s, row, i);
        if (!sees(w, s, row, i)) {
            continue;
        }
        n_seen++;
        size = greater(size, fabs(scores[i]));
        if (*picked_at(w, row, i)) {
            n_picked++;
            least = lesser(least, scores[i]);
        } else {
            most = greater(most, scores[i]);
        }
    }
    for (int32_t i = 0; i < n && exact; i++) {
        const bool best = sees(w, s, row, i) && n_before(w, s, row, i, scores) < w->index.top_k;
        n_wrong += best != *picked_at(w, row, i);
    }
    const double rounding = exact ? 0.0 : size * (rounds_queries(w) ? 2e-3 : 1e-5);
    if (n_picked != lesser(n_seen, w->index.top_k) || n_wrong > 0 || most > least + rounding) {
        CHECK_FAIL("row %d of lane %d sees %d keys, has picked %d, %d of them wrong: %g, not %g",
                   row, s->lane, n_seen, n_picked, n_wrong, least, most);
    }
    free(scores);
}

/* The highest score of each block that a row sees, for one head; returns how many there are. */
static int32_t score_blocks(const struct world *w, const struct pass_seq *s, int32_t row,
                            int32_t head, double *scores)
{
    const struct indexer *x = &w->index;
    int32_t n = 0;
    for (int32_t slot = 0; slot < s->n_past + s->n_rows; slot++) {
        if (!sees(w, s, row, slot)) {
            continue;
        }
        const int32_t block = pos_of(w, s, slot) / x->block;
        const float *k = w->index_k[s->lane] + (size_t)slot * (size_t)x->dim;
        const double dot = dot_of(w, k, row, head);
        for (; n <= block; n++) {
            scores[n] = -INFINITY;
        }
        scores[block] = greater(scores[block], dot);
    }
    for (int32_t b = greater(n - x->n_local, 0); b < n; b++) {
        scores[b] = INFINITY;
    }
    return n;
}

/* Whether the row has picked block b, of which it sees at least one key. All keys of a block are
 * picked, or none. */
static bool picked_block(const struct world *w, const struct pass_seq *s, int32_t row, int32_t head,
                         int32_t b)
{
    int32_t n_picked = 0, n = 0;
    for (int32_t slot = 0; slot < s->n_past + s->n_rows; slot++) {
        if (sees(w, s, row, slot) && pos_of(w, s, slot) / w->index.block == b) {
            n++;
            n_picked += *picked_in(w, row, head, slot);
        }
    }
    CHECK(n_picked == 0 || n_picked == n);
    return n_picked > 0;
}

/* The blocks of one row and head; of equal scores the earlier blocks win. Scores that are not exact
 * may be wrong about blocks that are as close as the rounding. */
static void check_blocks(const struct world *w, const struct pass_seq *s, int32_t row, int32_t head,
                         bool exact)
{
    double *scores = xcalloc((size_t)(s->n_past + s->n_rows), sizeof *scores);
    const int32_t n = score_blocks(w, s, row, head, scores);
    int32_t n_picked = 0, n_wrong = 0;
    for (int32_t b = 0; b < n; b++) {
        const bool picked = picked_block(w, s, row, head, b);
        const double slack = exact ? 0.0 : (rounds_queries(w) ? 0.2 : 1e-3);
        int32_t first = 0, last = 0; // the blocks that surely, and perhaps, come before b
        for (int32_t i = 0; i < n; i++) {
            first += scores[i] > scores[b] + slack || (!(scores[i] < scores[b]) && exact && i < b);
            last += scores[i] > scores[b] - slack && i != b;
        }
        last = exact ? first : last;
        n_wrong += picked ? first >= w->index.top_k : last < w->index.top_k;
        n_picked += picked;
    }
    if (n_wrong > 0 || n_picked != lesser(n, w->index.top_k)) {
        CHECK_FAIL("row %d, head %d: %d of %d blocks are picked, %d of them wrong", row, head,
                   n_picked, n, n_wrong);
    }
    free(scores);
}

/* Checks every `every`-th row's picks, then attention over them. Returns whether there are any. */
static bool check_picks(struct world *w, int32_t every, bool whole)
{
    struct key_picks picks = {.top_k = 0};
    make_index(w, whole);
    op_begin(&w->rig, &w->pass);
    run_index(w, &picks);
    op_end(&w->rig);
    const bool any = w->picked != NULL;
    for (int32_t i = 0; i < w->pass.pass.n_seqs && any; i++) {
        const struct pass_seq *s = &w->pass.seqs[i];
        for (int32_t r = s->first_row; r < s->first_row + s->n_rows; r++) {
            for (int32_t h = 0; h < w->index.heads && w->index.block > 0; h++) {
                if (r % every == 0 || s->n_rows < 8) {
                    check_blocks(w, s, r, h, whole);
                }
            }
            if ((r % every == 0 || s->n_rows < 8) && w->index.block == 0) {
                check_row(w, s, r, whole);
            }
        }
    }
    check_pass(w, every);
    return any;
}

struct layer_case {
    struct geometry g;
    struct indexer index;
};

static void try_index(const char *backend, const struct layer_case *c,
                      const struct storage *storage, bool whole)
{
    const int32_t first = strcmp(backend, "scalar") == 0 && !check_nightly() ? 130 : 530;
    struct world *w = xcalloc(1, sizeof *w);
    open_sparse_world(w, backend, &c->g, storage, &c->index);
    op_add_seq(&w->pass, 0, 0, first);
    op_add_seq(&w->pass, 1, 0, 1);
    op_add_seq(&w->pass, 2, 0, 37);
    CHECK(check_picks(w, 29, whole));
    op_add_seq(&w->pass, 1, 1, 1);
    op_add_seq(&w->pass, 0, first, 60);
    op_add_seq(&w->pass, 2, 37, 5);
    CHECK(check_picks(w, 13, whole));
    op_add_seq(&w->pass, 0, first + 60, 1);
    add_tree(w, 2, 42, 90);
    op_add_seq(&w->pass, 1, 2, 1);
    CHECK(check_picks(w, 7, whole));
    add_tree(w, 0, first + 61, 20);
    CHECK(check_picks(w, 3, whole));
    op_add_seq(&w->pass, 1, 3, 1); // sees fewer keys than it may pick
    CHECK(!check_picks(w, 1, whole));
    close_world(w);
    free(w);
}

/* Columns: heads, KV heads, width, block, window, soft cap, sinks, dtype, width of MLA's values,
 * steep, chunk; the indexer's heads, width, number of picks, block, own blocks and pool. */
static const struct layer_case cases[] = {
    {{18, 1, 72, 16, 0, 0.0f, false, DT_BF16, 56, false, 0}, {16, 32, 40, 0, 0, 0}},
    {{4, 1, 40, 16, 0, 0.0f, false, DT_F32, 20, false, 0}, {64, 128, 7, 0, 0, 0}},
    {{5, 1, 40, 8, 0, 0.0f, false, DT_BF16, 20, false, 0}, {3, 24, 20, 0, 0, 0}},
    {{3, 1, 72, 48, 0, 30.0f, false, DT_F16, 56, false, 0}, {33, 40, 100, 0, 0, 0}},
    {{4, 1, 24, 1, 0, 0.0f, false, DT_F32, 16, false, 0}, {5, 7, 5, 0, 0, 0}},
    {{2, 1, 20, 5, 0, 0.0f, false, DT_F32, 16, false, 0}, {1, 20, 11, 0, 0, 0}},
    /* Blocks, for each KV head. */
    {{8, 2, 64, 16, 0, 0.0f, false, DT_BF16, 0, false, 0}, {2, 32, 3, 16, 1, 0}},
    {{6, 3, 40, 16, 0, 0.0f, false, DT_F32, 0, false, 0}, {3, 24, 4, 7, 0, 0}},
    {{4, 4, 24, 8, 0, 0.0f, false, DT_F16, 0, false, 0}, {4, 20, 5, 3, 2, 0}},
    {{18, 1, 72, 16, 0, 0.0f, false, DT_BF16, 0, false, 0}, {1, 40, 2, 24, 1, 0}},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

OP_TEST(the_best_keys_are_picked_and_attended_to)
{
    for (size_t i = 0; i < N_CASES; i++) {
        try_index(backend, &cases[i], &plain, false);
    }
}

OP_TEST(picks_compare_with_keys_as_they_were_stored)
{
    for (size_t i = 0; i < N_CASES; i++) {
        for (int32_t j = 0; j < N_CODED; j++) {
            // An indexer's keys have no scales of their own.
            if (!(coded[j].k_scale > 0.0f) && (check_nightly() || (i + (size_t)j) % 3 == 0)) {
                try_index(backend, &cases[i], &coded[j], false);
            }
        }
    }
}

/* Few heads and whole numbers: most rows have many keys with the score of their last pick. */
OP_TEST(of_equal_scores_the_earlier_positions_win)
{
    for (size_t i = 0; i < N_CASES; i++) {
        struct layer_case c = cases[i];
        c.index.heads = c.index.block > 0 ? c.index.heads : 1 + (int32_t)i % 3;
        c.index.dim = lesser(c.index.dim, 24);
        try_index(backend, &c, &plain, true);
    }
}

/* Rows of a pass with other sequences, or in other chunks, have the same bits, also where another
 * sequence makes the pass sparse. */
OP_TEST(picks_and_sums_of_a_row_do_not_depend_on_other_rows)
{
    for (size_t c = 0; c < N_CASES; c++) {
        const struct geometry *g = &cases[c].g;
        const struct indexer *x = &cases[c].index;
        const int32_t n = 150, k = (int32_t)index_most_keys(x->top_k, x->block) - 1;
        const size_t width = (size_t)(g->n_heads + 2 * g->n_kv_heads) * (size_t)g->dim;
        const size_t out_width = (size_t)g->n_heads * (size_t)value_dim(g);
        const size_t q = (size_t)x->heads * (size_t)x->dim;
        struct world *w = xcalloc(1, sizeof *w);
        open_sparse_world(w, backend, g, &plain, x);
        op_add_seq(&w->pass, 0, 0, n);
        op_add_seq(&w->pass, 1, 0, k); // sees too few keys to pick
        make_index(w, false);
        float *qkv = make_qkv(w), *together = run_pass(w, qkv);
        float *index_q = w->index_q, *weights = w->index_weights;
        CHECK(w->picked != NULL);
        const struct {
            int32_t lane, first, n, row;
        } parts[] = {{0, 0, n, 0}, {0, n - 1, 1, n - 1}, {0, 70, 41, 70}, {1, 0, k, n}};
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            const size_t row = (size_t)parts[i].row;
            memset(&w->pass, 0, sizeof w->pass);
            op_add_seq(&w->pass, parts[i].lane, parts[i].first, parts[i].n);
            w->index_q = index_q + row * q;
            w->index_weights = weights + row * (size_t)x->heads;
            float *apart = run_pass(w, qkv + row * width);
            CHECK((w->picked != NULL) == (parts[i].lane == 0));
            CHECK_MEM(apart, together + row * out_width,
                      (size_t)parts[i].n * out_width * sizeof *apart);
            free(apart);
        }
        w->index_q = index_q;
        w->index_weights = weights;
        free(together);
        free(qkv);
        close_world(w);
        free(w);
    }
}

/* A broken key is attended to by all rows that see it, so that it cannot stay unnoticed. */
OP_TEST(a_key_that_is_no_number_is_picked)
{
    enum { N = 90, KEY = 31 };
    for (size_t c = 0; c < N_CASES; c++) {
        for (int32_t j = -1; j < N_CODED; j += 2) {
            const struct indexer *x = &cases[c].index;
            struct world *w = xcalloc(1, sizeof *w);
            struct key_picks picks = {.top_k = 0};
            open_sparse_world(w, backend, &cases[c].g, j < 0 ? &plain : &coded[j], x);
            const struct cpu_backend *cpu = cpu_of(w->rig.be);
            const struct kv_pages *pages = &cpu->kv_sets[0].layers[2];
            float *key = op_random((size_t)x->dim, 1.0f);
            op_add_seq(&w->pass, 0, 0, N);
            make_index(w, false);
            key[x->dim / 2] = c % 2 ? NAN : INFINITY;
            cpu_kv_store_key(cpu, pages, cpu_kv_slot(cpu, pages, 0, KEY), key);
            op_begin(&w->rig, &w->pass);
            run_index(w, &picks);
            op_end(&w->rig);
            const int32_t first = (int32_t)index_most_keys(x->top_k, x->block);
            for (int32_t row = first; row < N && w->picked; row++) {
                for (int32_t set = 0; set < n_sets(w); set++) {
                    CHECK_EQ(*picked_in(w, row, set, KEY), row >= KEY);
                }
            }
            free(key);
            close_world(w);
            free(w);
        }
    }
}

/* ---- the store ---------------------------------------------------------------------------- */

enum { HEADS = 3, DIM = 24, PAIRS = 4, ROWS = 21 };

static void rotated(const float *inv, bool interleaved, int32_t pos, double *x)
{
    for (int32_t i = 0; i < PAIRS; i++) {
        const int32_t a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : i + PAIRS;
        const double angle = (double)((float)pos * inv[i]), u = x[a], v = x[b];
        x[a] = 1.5 * (u * cos(angle) - v * sin(angle));
        x[b] = 1.5 * (v * cos(angle) + u * sin(angle));
    }
}

static void normed(const float *x, const float *weight, const float *bias, double *out)
{
    double mean = 0.0, square = 0.0;
    for (int32_t i = 0; i < DIM; i++) {
        mean += (double)x[i] / DIM;
    }
    for (int32_t i = 0; i < DIM; i++) {
        square += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    for (int32_t i = 0; i < DIM; i++) {
        out[i] =
            ((double)x[i] - mean) / sqrt(square / DIM + 1e-6) * (double)weight[i] + (double)bias[i];
    }
}

static void try_store(const char *backend, bool interleaved, bool grows)
{
    const struct geometry g = {
        .n_heads = 2, .n_kv_heads = 1, .dim = 16, .dim_v = 8, .block_tokens = 16, .dtype = DT_F32};
    const struct indexer index = {.heads = HEADS, .dim = DIM, .top_k = 5};
    struct world *w = xcalloc(1, sizeof *w);
    open_sparse_world(w, backend, &g, &plain, &index);
    float inv[PAIRS] = {1.0f, 0.5f, 0.1f, 0.01f};
    struct rope_desc desc = {PAIRS, inv, 1.5f, interleaved, LEN};
    struct rope_table *rope = NULL;
    CHECK_EQ(w->rig.ops->rope_open(w->rig.be, &desc, &rope), OK);
    float *q = op_random(ROWS * HEADS * DIM, 1.0f), *k = op_random(ROWS * DIM, 2.0f);
    float *weight = op_random(DIM, 1.0f), *bias = op_random(DIM, 1.0f);
    float *rise = op_random(HEADS, 1.0f), *base = op_random(HEADS, 1.0f);
    struct index_store_args a = {.q = op_tensor(&w->rig, q, ROWS, HEADS * DIM, HEADS * DIM + 5),
                                 .k = op_tensor(&w->rig, k, ROWS, DIM, DIM + 1),
                                 .rope = rope,
                                 .n_rows = ROWS,
                                 .layer = 2,
                                 .n_heads = HEADS,
                                 .head_dim = DIM,
                                 .norm = op_vector(&w->rig, weight, DIM),
                                 .norm_bias = op_vector(&w->rig, bias, DIM),
                                 .norm_kind = NORM_LAYER,
                                 .eps = 1e-6f};
    if (grows) {
        a.growth =
            (struct head_growth){op_vector(&w->rig, rise, HEADS), op_vector(&w->rig, base, HEADS)};
    }
    op_add_seq(&w->pass, 1, 40, ROWS);
    op_begin(&w->rig, &w->pass);
    CHECK_EQ(w->rig.ops->index_store(w->rig.be, &a), OK);
    op_end(&w->rig);
    float *after = op_fetch(&w->rig, a.q, ROWS, HEADS * DIM);
    const struct kv_pages *pages = &cpu_of(w->rig.be)->kv_sets[0].layers[2];
    for (int32_t r = 0; r < ROWS; r++) {
        double wanted[DIM];
        float have[DIM];
        const struct kv_slot slot = cpu_kv_slot(cpu_of(w->rig.be), pages, 1, 40 + r);
        for (int32_t d = 0; d < DIM; d++) {
            have[d] = kv_get(&pages->k, slot.block, slot.token, d);
        }
        normed(k + r * DIM, weight, bias, wanted);
        rotated(inv, interleaved, 40 + r, wanted);
        CHECK(op_distance(have, wanted, DIM) < 2e-5);
        for (int32_t h = 0; h < HEADS; h++) {
            for (int32_t d = 0; d < DIM; d++) {
                wanted[d] = (double)q[(r * HEADS + h) * DIM + d];
            }
            rotated(inv, interleaved, 40 + r, wanted);
            for (int32_t d = 0; grows && d < DIM; d++) {
                wanted[d] *= (double)rise[h] * log(41.0 + r) + (double)base[h];
            }
            CHECK(op_distance(after + (r * HEADS + h) * DIM, wanted, DIM) < 2e-5);
        }
    }
    free(after);
    free(q);
    free(k);
    free(weight);
    free(bias);
    free(rise);
    free(base);
    close_world(w);
    free(w);
}

OP_TEST(keys_are_stored_normed_and_rotated)
{
    try_store(backend, false, false);
    try_store(backend, true, false);
}

OP_TEST(queries_of_indexers_grow)
{
    try_store(backend, true, true);
}

enum { POOL = 4 };

/* The key of the group that ends at position `end`, of rows of normed keys and their gates. */
static void pooled(const float *rows, const float *weight, const float *bias, const float *places,
                   int32_t end, double *out)
{
    double all[DIM] = {0.0};
    memset(out, 0, DIM * sizeof *out);
    for (int32_t i = 0; i < POOL; i++) {
        const float *row = rows + (end - POOL + 1 + i) * 2 * DIM;
        double key[DIM];
        normed(row, weight, bias, key);
        for (int32_t d = 0; d < DIM; d++) {
            const double part = exp((double)row[DIM + d] + (double)places[i * DIM + d]);
            out[d] += part * key[d];
            all[d] += part;
        }
    }
    for (int32_t d = 0; d < DIM; d++) {
        out[d] /= all[d];
    }
}

/* A group's key is the same whichever passes its positions came in. */
OP_TEST(groups_of_positions_have_one_key)
{
    const struct geometry g = {
        .n_heads = 2, .n_kv_heads = 1, .dim = 16, .dim_v = 8, .block_tokens = 16, .dtype = DT_F32};
    const struct indexer index = {.heads = HEADS, .dim = DIM, .top_k = 8, .pool = POOL};
    static const int32_t passes[] = {1, 5, 2, ROWS - 8};
    struct world *w = xcalloc(1, sizeof *w);
    open_sparse_world(w, backend, &g, &plain, &index);
    float *k = op_random(ROWS * 2 * DIM, 2.0f), *q = op_random(ROWS * HEADS * DIM, 1.0f);
    float *weight = op_random(DIM, 1.0f), *bias = op_random(DIM, 1.0f);
    float *places = op_random(POOL * DIM, 1.0f);
    struct index_store_args a = {.layer = 2,
                                 .n_heads = HEADS,
                                 .head_dim = DIM,
                                 .norm = op_vector(&w->rig, weight, DIM),
                                 .norm_bias = op_vector(&w->rig, bias, DIM),
                                 .norm_kind = NORM_LAYER,
                                 .eps = 1e-6f,
                                 .pool = POOL,
                                 .raw_layer = 3,
                                 .places = op_vector(&w->rig, places, POOL * DIM)};
    for (int32_t i = 0, first = 0; first < ROWS; first += passes[i++]) {
        a.n_rows = passes[i];
        a.q = op_tensor(&w->rig, q, a.n_rows, HEADS * DIM, HEADS * DIM);
        a.k = op_tensor(&w->rig, k + first * 2 * DIM, a.n_rows, 2 * DIM, 2 * DIM + 1);
        memset(&w->pass, 0, sizeof w->pass);
        op_add_seq(&w->pass, 1, first, a.n_rows);
        op_begin(&w->rig, &w->pass);
        CHECK_EQ(w->rig.ops->index_store(w->rig.be, &a), OK);
        op_end(&w->rig);
    }
    const struct kv_pages *pages = &cpu_of(w->rig.be)->kv_sets[0].layers[2];
    for (int32_t end = POOL - 1; end < ROWS; end += POOL) {
        double wanted[DIM];
        float have[DIM];
        const struct kv_slot slot = cpu_kv_slot(cpu_of(w->rig.be), pages, 1, end);
        for (int32_t d = 0; d < DIM; d++) {
            have[d] = kv_get(&pages->k, slot.block, slot.token, d);
        }
        pooled(k, weight, bias, places, end, wanted);
        CHECK(op_distance(have, wanted, DIM) < 2e-5);
    }
    free(k);
    free(q);
    free(weight);
    free(bias);
    free(places);
    close_world(w);
    free(w);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
