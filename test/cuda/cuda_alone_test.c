// SPDX-License-Identifier: Apache-2.0
/* Deterministic mode: a row of attention has the bits that it has in a prompt, however many rows
 * decode beside it and however many rows its own sequence has. */
#include "test/cuda/cuda_layers.h"

enum { LONGEST = 600, N_LANES = 257, CHUNK_ROWS = 512 };

/* A prompt in lane 0, whose rows are the reference. Lane i > 0 has the first past_of(i) tokens of
 * it: whole blocks are lane 0's own, the last one is a copy. */
struct alone {
    struct setup u;
    struct test_pass t;
    int32_t width, out_width;
    float *qkv, *want; // [LONGEST, width], [LONGEST, out_width]
};

/* The edges of chunks, tiles and runs of keys, and others. The second half of the lanes has pasts
 * of a single run, because another kernel computes passes with one long row among short ones. */
static int32_t past_of(int32_t lane)
{
    static const int32_t edges[] = {0,   1,   15,  16,  17,  31,  63,  64,  127, 128,
                                    129, 255, 256, 300, 511, 512, 513, 528, 575, LONGEST - 1};
    return lane <= COUNT(edges) ? edges[lane - 1]
                                : lane * 97 % (lane < N_LANES / 2 ? LONGEST - 1 : 511);
}

static void step_close(struct backend *be)
{
    struct pass_results results[8];
    CHECK_EQ(be->ops->step_end(be), OK);
    CHECK_EQ(be->ops->step_wait(be, 0, results, 8), OK);
}

/* Runs the ops over the pass's rows, whose qkv are `rows`; fused: as one op if there is one. The
 * caller frees the outputs. */
static float *outputs_of(struct alone *a, const float *rows, bool fused)
{
    struct pair *p = &a->u.p;
    struct backend *be = p->be[GPU];
    const int32_t n = a->t.pass.n_rows;
    struct pair_tensor x = tensor_make(p, n, a->width, p->dtype);
    struct pair_tensor out = tensor_poisoned(p, n, a->out_width, p->dtype);
    tensor_put(p, &x, rows);
    struct pass_shape shape;
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    CHECK_EQ(be->ops->pass_begin(be, &a->t.pass, &shape), OK);
    struct rope_store_args r = rope_args(&a->u, 1, n, GPU);
    struct attention_args at = attention_args(&a->u, n, GPU);
    r.qkv = at.q = x.t[GPU];
    at.out = out.t[GPU];
    if (fused) {
        CHECK_EQ(ops_rope_attention(be, &r, &at, NULL), OK);
    } else {
        CHECK_EQ(be->ops->rope_store(be, &r), OK);
        CHECK_EQ(be->ops->attention(be, &at), OK);
    }
    CHECK_EQ(be->ops->pass_end(be), OK);
    step_close(be);
    return tensor_get(p, &out, GPU);
}

/* Fills lane 0 in two chunks and keeps the outputs of all its rows. */
static void run_prompt(struct alone *a)
{
    for (int32_t first = 0; first < LONGEST; first += CHUNK_ROWS) {
        const int32_t n = lesser(LONGEST - first, (int32_t)CHUNK_ROWS);
        const struct seq_spec spec = {first, n, false};
        pass_of(&a->t, &spec, 1, false, 5);
        float *out = outputs_of(a, a->qkv + (size_t)first * (size_t)a->width, false);
        memcpy(a->want + (size_t)first * (size_t)a->out_width, out,
               (size_t)n * (size_t)a->out_width * sizeof *out);
        free(out);
    }
}

static void share_blocks(struct alone *a)
{
    struct backend *be = a->u.p.be[GPU];
    const int32_t bt = a->u.s.block_tokens, per_lane = (LONGEST + bt - 1) / bt;
    int32_t ids[LONGEST / 16 + 1];
    for (int32_t lane = 1; lane < N_LANES; lane++) {
        const int32_t last = past_of(lane) / bt;
        for (int32_t k = 0; k <= last; k++) {
            ids[k] = k;
        }
        ids[last] = per_lane + lane;
        const struct block_copy copy = {last, ids[last]};
        CHECK_EQ(be->ops->step_begin(be, 0), OK);
        CHECK_EQ(be->ops->copy_blocks(be, 1, &copy), OK);
        CHECK_EQ(be->ops->lane_blocks(be, lane, 0, last + 1, ids), OK);
        step_close(be);
    }
}

static bool open_alone(struct alone *a, enum dtype dtype, const struct shape *s)
{
    struct backend_limits limits = pair_limits();
    limits.block_tokens = s->block_tokens;
    limits.max_lanes = N_LANES;
    limits.n_blocks = LONGEST / s->block_tokens + 1 + N_LANES;
    memset(a, 0, sizeof *a);
    if (!pair_open(&a->u.p, dtype, true, &limits) ||
        !open_layers(&a->u, s, (struct stored){.format = KV_PLAIN})) {
        return false;
    }
    a->width = a->u.width;
    a->out_width = s->n_heads * s->head_dim;
    const size_t n = (size_t)LONGEST * (size_t)a->width;
    a->qkv = xmalloc(n * sizeof *a->qkv);
    a->want = xmalloc((size_t)LONGEST * (size_t)a->out_width * sizeof *a->want);
    for (size_t i = 0; i < n; i++) {
        a->qkv[i] = random_float(17, (int64_t)i, 1.0f, dtype);
    }
    struct backend *be = a->u.p.be[GPU];
    int32_t ids[LONGEST / 16 + 1];
    const int32_t n_blocks = (LONGEST + s->block_tokens - 1) / s->block_tokens;
    for (int32_t k = 0; k < n_blocks; k++) {
        ids[k] = k;
    }
    CHECK_EQ(be->ops->step_begin(be, 0), OK);
    CHECK_EQ(be->ops->lane_blocks(be, 0, 0, n_blocks, ids), OK);
    step_close(be);
    return true;
}

/* Runs the last n_each rows of `n` lanes from `first` on and compares them with the prompt's. */
static void compare(struct alone *a, int32_t first, int32_t n, int32_t n_each)
{
    static struct seq_spec specs[N_LANES];
    memset(specs, 0, sizeof specs);
    const int32_t bt = a->u.s.block_tokens;
    int32_t n_rows = 0;
    for (int32_t lane = first; lane < first + n; lane++) {
        // A lane writes to its last block only.
        const int32_t rows = lesser(n_each, past_of(lane) % bt + 1);
        specs[lane] = (struct seq_spec){past_of(lane) + 1 - rows, rows, false};
        n_rows += rows;
    }
    pass_of(&a->t, specs, first + n, false, 6);
    CHECK_EQ(a->t.pass.n_rows, n_rows);
    float *rows = xmalloc((size_t)n_rows * (size_t)a->width * sizeof *rows);
    for (int32_t r = 0; r < n_rows; r++) {
        memcpy(rows + (size_t)r * (size_t)a->width,
               a->qkv + (size_t)a->t.rows[r].pos * (size_t)a->width,
               (size_t)a->width * sizeof *rows);
    }
    float *got = outputs_of(a, rows, true);
    for (int32_t r = 0; COMPARED && r < n_rows; r++) {
        const float *want = a->want + (size_t)a->t.rows[r].pos * (size_t)a->out_width;
        const float *row = got + (size_t)r * (size_t)a->out_width;
        CHECK(!isnan(row[0]));
        if (memcmp(row, want, (size_t)a->out_width * sizeof *row) != 0) {
            CHECK_FAIL("dtype %d, heads %d/%d of %d, norm %d, blocks of %d: %d sequences of up to "
                       "%d rows, the row at %d differs from the prompt's",
                       a->u.p.dtype, a->u.s.n_heads, a->u.s.n_kv_heads, a->u.s.head_dim,
                       a->u.s.qk_norm, bt, n, n_each, a->t.rows[r].pos);
            break;
        }
    }
    free(got);
    free(rows);
}

static void alone_case(enum dtype dtype, const struct shape *s)
{
    static const int32_t counts[] = {2, 7, 16, 17, 32, 33, 64, 129, 256};
    static struct alone a;
    REQUIRE(open_alone(&a, dtype, s));
    run_prompt(&a);
    share_blocks(&a);
    for (int32_t lane = 1; lane <= 20; lane++) {
        compare(&a, lane, 1, 1);
    }
    for (int32_t i = 0; i < COUNT(counts); i++) {
        compare(&a, 1, counts[i], 1);
        compare(&a, N_LANES / 2, lesser(counts[i], (int32_t)N_LANES / 2), 1);
    }
    compare(&a, 1, 1, 2);
    compare(&a, 5, 20, 5);
    compare(&a, 1, 100, 4);
    free(a.qkv);
    free(a.want);
    pair_close(&a.u.p);
}

TEST(a_row_of_attention_does_not_depend_on_the_others_in_deterministic_mode)
{
    NEED_GPU();
    static const struct shape shapes[] = {
        {8, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {8, 1, 128, 64, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 64, false, 0, false, 0},
        {14, 2, 64, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 32, false, 8, false, 0},
        {4, 4, 64, 32, false, QK_NORM_HEAD, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {8, 2, 128, 32, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {4, 2, 128, 64, false, QK_NORM_NONE, NORM_RMS, 100, 20.0f, true, 16, false, 0, false, 0},
        {6, 2, 80, 40, true, QK_NORM_WIDTH, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
        {4, 2, 256, 128, false, QK_NORM_NONE, NORM_RMS, 0, 0.0f, false, 16, false, 0, false, 0},
    };
    for (int32_t d = 0; d < COUNT(pair_dtypes); d++) {
        for (int32_t i = 0; i < COUNT(shapes); i++) {
            alone_case(pair_dtypes[d], &shapes[i]);
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
