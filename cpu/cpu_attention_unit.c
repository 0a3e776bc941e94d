// SPDX-License-Identifier: Apache-2.0
/* One chunk of keys on a matrix unit. K and V of the chunk are packed once for all of the item's
 * vectors, which are then processed UNIT_ROWS at a time: scores of all keys, softmax in place,
 * values. Values are summed in steps of 32 positions counted from the start of the chunk. Keys that
 * a row does not see have weight 0, which changes no sum. So a row's bits do not depend on the
 * other rows of the item. */
#include "cpu/cpu_attention.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

/* The slots of a chunk include those that a tree's chunk reads beyond its positions, and padding to
 * whole panels. */
enum { CHUNK_SLOTS = ATTN_CHUNK + MAX_TREE_NODES + 2 * UNIT_K, S_STRIDE = CHUNK_SLOTS + PANEL };

/* RUN_KEYS: length of a run, which is a range of aligned positions in a chunk whose softmax is
 * computed together. A row's probabilities are relative to the maximum of its first run that has a
 * visible key. Higher scores in later runs do no harm unless they are very much higher, which the
 * sum then shows (see end_softening). */
enum { RUN_KEYS = 128, RUN_STRIDE = RUN_KEYS + PANEL };
#define LARGE_SUM 1e18f

/* Cache lines of upcoming queries to prefetch during each run, which itself reads only the L1
 * cache. */
enum { PREFETCH_LINES = 32 };

/* The softmax state of a share. */
struct softened {
    float max[UNIT_ROWS], sum[UNIT_ROWS];
    float sums[UNIT_ROWS][16];
};

/* Bytes of packed keys, or values, that a few vectors process at a time. */
enum { FEW_BYTES = 32 << 10 };

static int32_t down(int32_t n, int32_t unit)
{
    return n / unit * unit;
}

static int32_t up(int32_t n, int32_t unit)
{
    return down(n + unit - 1, unit);
}

/* ---- memory ------------------------------------------------------------------------------- */

static int64_t padded_dim(const struct kv_pages *p)
{
    return round_up(p->geometry.head_dim_k, UNIT_K);
}

/* Bytes of the K, or V, of PANEL tokens as bf16. */
static int64_t image_bytes(const struct kv_pages *p)
{
    int64_t width = greater(padded_dim(p), p->v_stride);
    return p->k.format == KV_PLAIN ? 0 : round_up(width * PANEL * 2, 64);
}

size_t attn_unit_scratch(const struct kv_pages *p)
{
    int64_t k = padded_dim(p), v = p->v_stride;
    int64_t tile = attn_unit_tile(p);
    int64_t floats = UNIT_ROWS * (int64_t)S_STRIDE + ATTN_CHUNK + 2 * tile * v;
    return (size_t)(floats * (int64_t)sizeof(float) + ATTN_CHUNK / UNIT_K * UNIT_STEP +
                    tile * k * 2 + CHUNK_SLOTS * k * 2 + ATTN_CHUNK * v * 2 + image_bytes(p));
}

void attn_unit_carve(const struct attn_job *job, struct attn_tile *t, char *scratch)
{
    int64_t k = padded_dim(job->pages), v = job->pages->v_stride, tile = attn_unit_tile(job->pages);
    t->s = (float *)scratch;
    t->s_stride = S_STRIDE;
    t->path = t->s + UNIT_ROWS * t->s_stride;
    t->chunk = t->path + ATTN_CHUNK;
    t->total = t->chunk + tile * v;
    t->probabilities = (char *)(t->total + tile * v);
    t->operands = t->probabilities + ATTN_CHUNK / UNIT_K * UNIT_STEP;
    t->keys = t->operands + tile * k * 2;
    t->values = t->keys + CHUNK_SLOTS * k * 2;
    t->image = (uint16_t *)(void *)(t->values + ATTN_CHUNK * v * 2);
}

/* The operands of the queries from i on; i is a multiple of UNIT_ROWS. */
static char *queries_at(const struct attn_job *job, const struct attn_tile *t, int32_t i)
{
    return t->operands + i * padded_dim(job->pages) * 2;
}

void attn_unit_queries(const struct attn_job *job, struct attn_tile *t)
{
    int32_t dim = job->a->head_dim_k;
    for (int32_t i = 0; i < t->n_vectors; i++) {
        int32_t head = t->head + i % t->n_heads;
        job->unit->split(tensor_row(&job->a->q, t->row + i / t->n_heads) + (int64_t)head * dim,
                         job->a->scale, dim,
                         queries_at(job, t, down(i, UNIT_ROWS)) + i % UNIT_ROWS * UNIT_LINE);
    }
}

/* ---- packing ------------------------------------------------------------------------------ */

/* K as bf16, [dim][tokens], from `key` to the end of its panel. It is read from the page itself, or
 * decoded from the page's codes. */
struct bf16_keys {
    const uint16_t *at;
    int32_t tokens;
};

static struct bf16_keys keys_at(const struct attn_job *job, const struct attn_tile *t, int32_t key)
{
    const struct kv_plane *p = &job->pages->k;
    const char *page = attn_page(job, t, key);
    int32_t token = key % p->tokens, in_panel = token % PANEL;
    if (p->format == KV_PLAIN) {
        return (struct bf16_keys){(const uint16_t *)(const void *)(page + p->at) + token,
                                  p->tokens};
    }
    job->cpu->kernels->unpack(p, page, token - in_panel, PANEL, p->width, true, t->image);
    return (struct bf16_keys){t->image + in_panel, PANEL};
}

/* Packs the panels of keys [from, end); `from` is a multiple of PANEL. Keys below `first` are
 * skipped, because no row sees them and their pages may have been freed. */
static void pack_keys(const struct attn_job *job, const struct attn_tile *t, int32_t from,
                      int32_t first, int32_t end)
{
    int64_t panel_bytes = padded_dim(job->pages) / UNIT_K * UNIT_BLOCK;
    char *out = t->keys;
    for (int32_t key = from; key < end; key += PANEL, out += panel_bytes) {
        if (key + PANEL <= first) {
            continue;
        }
        struct bf16_keys k = keys_at(job, t, key);
        job->unit->pack_keys(k.at, k.tokens, job->a->head_dim_k, out);
    }
}

/* The same for the V of n tokens, [token][v_stride]. */
static const uint16_t *values_at(const struct attn_job *job, const struct attn_tile *t, int32_t key,
                                 int32_t n)
{
    const struct kv_plane *p = &job->pages->v;
    const char *page = attn_page(job, t, key);
    int32_t token = key % p->tokens;
    if (p->format == KV_PLAIN) {
        return (const uint16_t *)(const void *)(page + p->at) + (int64_t)token * p->width;
    }
    job->cpu->kernels->unpack(p, page, token, n, p->width, true, t->image);
    return t->image;
}

/* Packs the steps of positions [from, to), which are multiples of UNIT_K counted from the start of
 * the chunk. Keys outside [first, end) become zeros, because their memory may never have been
 * written. */
static void pack_values(const struct attn_job *job, const struct attn_tile *t, int32_t begin,
                        int32_t from, int32_t to, int32_t first, int32_t end)
{
    const struct kv_pages *p = job->pages;
    int32_t n_panels = p->v_stride / PANEL;
    for (int32_t i = from; i < to; i += PANEL) {
        int32_t key = begin + i, half = (i - from) / PANEL;
        char *out = t->values + (int64_t)(half / 2 * n_panels * 2 + half % 2) * (UNIT_BLOCK / 2);
        if (key >= end || key + PANEL <= first) {
            for (int32_t panel = 0; panel < n_panels; panel++) {
                memset(out + (int64_t)panel * UNIT_BLOCK, 0, UNIT_BLOCK / 2);
            }
        } else if (p->geometry.v_in_k) {
            struct bf16_keys k = keys_at(job, t, key);
            job->unit->turn_values(k.at, k.tokens, first - key, end - key, p->geometry.head_dim_v,
                                   n_panels, out);
        } else {
            job->unit->pack_values(values_at(job, t, key, PANEL), first - key, end - key, n_panels,
                                   out);
        }
    }
}

/* Packs the value of slot `key` as value number i. */
static void place_value(const struct attn_job *job, const struct attn_tile *t, int32_t i,
                        int32_t key)
{
    const struct kv_pages *p = job->pages;
    bool turned = p->geometry.v_in_k;
    struct bf16_keys k = turned ? keys_at(job, t, key) : (struct bf16_keys){NULL, 1};
    const uint16_t *v = turned ? k.at : values_at(job, t, key, 1);
    int64_t step = k.tokens;
    int64_t block = (int64_t)(i / UNIT_K) * (p->v_stride / PANEL);
    for (int32_t d = 0; d < p->geometry.head_dim_v; d++) {
        char *line = t->values + (block + d / PANEL) * UNIT_BLOCK + i % UNIT_K / 2 * 64;
        memcpy(line + (d % PANEL * 2 + i % 2) * 2, v + d * step, sizeof *v);
    }
}

/* Packs steps [from, to) of the positions that a tree's row sees, wherever their values are. */
static void pack_path(const struct attn_job *job, const struct attn_tile *t, int32_t row,
                      int32_t begin, int32_t from, int32_t to)
{
    const struct pass *pass = job->cpu->pass;
    int64_t step_bytes = (int64_t)(job->pages->v_stride / PANEL) * UNIT_BLOCK;
    int32_t n_past = t->seq->n_past, low = attn_first_key(job, pass->rows[row].pos);
    memset(t->values, 0, (size_t)((to - from) / UNIT_K * step_bytes));
    for (int32_t key = greater(begin + from, low); key < lesser(begin + to, n_past); key++) {
        place_value(job, t, key - begin - from, key);
    }
    for (int32_t node = 0; node < t->seq->n_rows; node++) {
        int32_t pos = pass->rows[t->seq->first_row + node].pos;
        if (pos >= greater(begin + from, low) && pos < begin + to &&
            attn_tree_sees(job, row, node)) {
            place_value(job, t, pos - begin - from, n_past + node);
        }
    }
}

/* ---- products ----------------------------------------------------------------------------- */

static void run_product(const struct attn_job *job, struct unit_product p)
{
    job->unit->product(&p);
}

/* A share of the item's work: vectors [i, i + m), and the positions [from, to) of the chunk that at
 * least one of them sees. The scores from position `from` on are at s, the probabilities at p. */
struct share {
    int32_t i, m, from, to;
    float *s;
    int64_t s_stride;
    char *p;
};

static struct share share_of(const struct attn_tile *t, int32_t i, int32_t m)
{
    return (struct share){
        .i = i, .m = m, .s = t->s, .s_stride = t->s_stride, .p = t->probabilities};
}

static struct unit_product score(const struct attn_job *job, const struct attn_tile *t,
                                 const struct share *v, int32_t panel)
{
    int64_t panel_bytes = padded_dim(job->pages) / UNIT_K * UNIT_BLOCK;
    return (struct unit_product){
        .a = queries_at(job, t, v->i),
        .b = t->keys + panel * panel_bytes,
        .b_step = UNIT_BLOCK,
        .b_panel = panel_bytes,
        .m = v->m,
        .n_steps = (int32_t)padded_dim(job->pages) / UNIT_K,
        .n_panels = (v->to - v->from) / PANEL,
        .c = v->s,
        .c_stride = v->s_stride,
        .first = true,
    };
}

/* The product that adds the values of positions [from, to), weighted by the vectors' probabilities.
 * The packed values start with position `packed`. */
static struct unit_product weigh(const struct attn_job *job, const struct attn_tile *t,
                                 const struct share *v, int32_t packed, int32_t from, int32_t to,
                                 bool first)
{
    int32_t stride = job->pages->v_stride, n_panels = stride / PANEL;
    return (struct unit_product){
        .a = v->p + (from - v->from) / UNIT_K * UNIT_STEP,
        .b = t->values + (int64_t)((from - packed) / UNIT_K) * n_panels * UNIT_BLOCK,
        .b_step = (int64_t)n_panels * UNIT_BLOCK,
        .b_panel = UNIT_BLOCK,
        .m = v->m,
        .n_steps = (to - from) / UNIT_K,
        .n_panels = n_panels,
        .c = t->chunk + (int64_t)v->i * stride,
        .c_stride = stride,
        .first = first,
    };
}

/* ---- chunks ------------------------------------------------------------------------------- */

/* True if every vector of the share sees all of its positions. */
static bool all_seen(const struct attn_job *job, const struct attn_tile *t, int32_t begin,
                     const struct share *v)
{
    int32_t first = t->row + v->i / t->n_heads, last = t->row + (v->i + v->m - 1) / t->n_heads;
    return attn_first_key(job, job->cpu->pass->rows[last].pos) <= begin + v->from &&
           attn_end_key(job, t, first) >= begin + v->to;
}

static void cap(const struct attn_job *job, float *s, int32_t n)
{
    if (job->a->softcap != 0.0f) {
        job->cpu->kernels->softcap(s, job->a->softcap, n);
    }
}

/* Masks the scores that the vectors do not see, in the chunk at `begin`. */
static void mask(const struct attn_job *job, const struct attn_tile *t, int32_t begin,
                 const struct share *v)
{
    if (all_seen(job, t, begin, v) && job->a->softcap == 0.0f) {
        return;
    }
    for (int32_t j = 0; j < v->m; j++) {
        float *s = v->s + j * v->s_stride;
        cap(job, s, v->to - v->from);
        attn_mask_row(job, t, t->row + (v->i + j) / t->n_heads, s, begin + v->from, begin + v->to);
    }
}

/* The run of v that starts at position `from`. */
static struct share run_of(const struct share *v, int32_t from)
{
    struct share run = *v;
    run.from = from;
    run.to = lesser(v->to, up(from + 1, RUN_KEYS));
    run.p = v->p + (from - v->from) / UNIT_K * UNIT_STEP;
    return run;
}

/* Takes the softmax of one run of the share v, whose scores are complete. */
static void soften_run(const struct attn_job *job, const struct share *v, const struct share *run,
                       struct softened *soft)
{
    job->unit->soften(&(struct unit_scores){.s = run->s,
                                            .s_stride = run->s_stride,
                                            .m = run->m,
                                            .n = run->to - run->from,
                                            .p = run->p,
                                            .max = soft->max,
                                            .sums = soft->sums,
                                            .sum = run->to == v->to ? soft->sum : NULL});
}

/* Takes the softmax of all runs of v, relative to the maxima known so far. */
static void soften_runs(const struct attn_job *job, const struct share *v, struct softened *soft)
{
    struct share run;
    memset(soft->sums, 0, sizeof soft->sums);
    for (int32_t from = v->from; from < v->to; from = run.to) {
        run = run_of(v, from);
        run.s = v->s + (from - v->from);
        soften_run(job, v, &run, soft);
    }
}

static void begin_softening(struct softened *soft)
{
    memset(soft->sums, 0, sizeof soft->sums);
    for (int32_t j = 0; j < UNIT_ROWS; j++) {
        soft->max[j] = -INFINITY;
        soft->sum[j] = 0.0f;
    }
}

static bool fits(const struct softened *soft, int32_t j)
{
    return soft->sum[j] < LARGE_SUM;
}

/* Finishes a share. If the assumed maximum of a row was far too low, the softmax of all its scores,
 * at v->s, is computed again. */
static void end_softening(const struct attn_job *job, const struct share *v, struct softened *soft,
                          float *max, float *sum)
{
    for (int32_t j = 0; j < v->m; j++) {
        struct softened one;
        struct share row = *v;
        max[v->i + j] = soft->max[j];
        sum[v->i + j] = soft->sum[j];
        if (fits(soft, j)) {
            continue;
        }
        row.m = 1;
        row.s = v->s + j * v->s_stride;
        row.p = v->p + j * UNIT_LINE;
        max[v->i + j] = one.max[0] = job->cpu->kernels->max(row.s, v->to - v->from);
        soften_runs(job, &row, &one);
        sum[v->i + j] = one.sum[0];
    }
}

/* Computes the scores run by run, so that they are still in the L1 cache when their softmax is
 * taken. */
static void score_and_soften(const struct attn_job *job, struct attn_tile *t, int32_t begin,
                             int32_t packed, const struct share *v, float *max, float *sum)
{
    struct softened soft;
    struct share run, all = *v;
    bool fine = true;
    begin_softening(&soft);
    for (int32_t from = v->from; from < v->to; from = run.to) {
        run = run_of(v, from);
        run.s_stride = RUN_STRIDE;
        run_product(job, score(job, t, &run, (from - packed) / PANEL));
        mask(job, t, begin, &run);
        attn_prefetch(job, t, PREFETCH_LINES);
        soften_run(job, v, &run, &soft);
    }
    for (int32_t j = 0; j < v->m; j++) {
        fine = fine && fits(&soft, j);
    }
    if (!fine) {
        run_product(job, score(job, t, &all, (v->from - packed) / PANEL));
        mask(job, t, begin, &all);
    }
    end_softening(job, &all, &soft, max, sum);
}

/* The keys [first, end) of a chunk are packed once for all vectors, and then processed in shares of
 * UNIT_ROWS. */
static void many_vectors(const struct attn_job *job, struct attn_tile *t, int32_t begin,
                         int32_t first, int32_t end, float *max, float *sum)
{
    int32_t packed = down(first - begin, UNIT_K);
    pack_keys(job, t, begin + packed, first, end);
    pack_values(job, t, begin, packed, up(end - begin, UNIT_K), first, end);
    for (int32_t i = 0; i < t->n_vectors; i += UNIT_ROWS) {
        struct share v = share_of(t, i, lesser(UNIT_ROWS, t->n_vectors - i));
        int32_t row = t->row + i / t->n_heads, last = t->row + (i + v.m - 1) / t->n_heads;
        int32_t low = attn_first_key(job, job->cpu->pass->rows[row].pos);
        int32_t high = lesser(end, attn_end_key(job, t, last));
        v.from = greater(packed, down(greater(low - begin, 0), UNIT_K));
        v.to = up(high - begin, UNIT_K);
        if (v.to > v.from) {
            score_and_soften(job, t, begin, packed, &v, max, sum);
            run_product(job, weigh(job, t, &v, packed, v.from, v.to, true));
            continue;
        }
        for (int32_t j = i; j < i + v.m; j++) { // these vectors see none of the keys
            max[j] = -INFINITY;
            sum[j] = 0.0f;
        }
    }
}

/* The same for a few vectors, which fit into one product. Only a few keys are packed at a time, so
 * that they stay in the L1 cache. */
static void few_vectors(const struct attn_job *job, struct attn_tile *t, int32_t begin,
                        int32_t first, int32_t end, float *max, float *sum)
{
    int32_t some = greater(UNIT_K, down(FEW_BYTES / 2 / (int32_t)padded_dim(job->pages), UNIT_K));
    struct share all = share_of(t, 0, t->n_vectors);
    struct softened soft;
    all.from = down(first - begin, UNIT_K);
    all.to = up(end - begin, UNIT_K);
    for (int32_t i = all.from; i < all.to; i += some) {
        struct share v = all;
        v.from = i;
        v.to = lesser(i + some, all.to);
        v.s = all.s + (i - all.from);
        pack_keys(job, t, begin + v.from, first, lesser(begin + v.to, end));
        run_product(job, score(job, t, &v, 0));
    }
    mask(job, t, begin, &all);
    begin_softening(&soft);
    soften_runs(job, &all, &soft);
    end_softening(job, &all, &soft, max, sum);
    for (int32_t i = all.from; i < all.to; i += some) {
        int32_t to = lesser(i + some, all.to);
        pack_values(job, t, begin, i, to, first, end);
        run_product(job, weigh(job, t, &all, i, i, to, i == all.from));
    }
}

static void plain_chunk(const struct attn_job *job, struct attn_tile *t, int32_t begin, float *max,
                        float *sum)
{
    int32_t first = greater(begin, t->first_key), end = lesser(begin + ATTN_CHUNK, t->end_key);
    if (t->n_vectors <= UNIT_FEW) {
        few_vectors(job, t, begin, first, end, max, sum);
    } else {
        many_vectors(job, t, begin, first, end, max, sum);
    }
}

/* The positions of a chunk of a tree. [from, mid) belong to the past, whose values all vectors
 * share; in [mid, to) each row has different values. `first`: the first visible slot; `base`: the
 * slot of the first packed key. */
struct tree_cut {
    int32_t begin, base, first, n_slots, from, mid, to;
};

/* One chunk of a tree, for some vectors. The values of the past, up to cut->mid, are packed once
 * for all rows; those of nodes for each row, because every row has a path of its own. */
static void tree_share(const struct attn_job *job, struct attn_tile *t, const struct tree_cut *cut,
                       const struct share *v, float *max, float *sum)
{
    run_product(job, score(job, t, v, 0));
    for (int32_t j = 0; j < v->m; j++) {
        float *s = v->s + j * t->s_stride;
        cap(job, s, cut->n_slots);
        attn_tree_path(job, t, t->row + (v->i + j) / t->n_heads, s, cut->base, cut->begin, cut->to);
        memcpy(s, t->path, (size_t)cut->to * sizeof *s);
    }
    struct share path = *v;
    struct softened soft;
    path.to = cut->to;
    begin_softening(&soft);
    soften_runs(job, &path, &soft);
    end_softening(job, &path, &soft, max, sum);
    if (cut->mid > cut->from) {
        pack_values(job, t, cut->begin, cut->from, cut->mid, cut->first, t->seq->n_past);
        run_product(job, weigh(job, t, v, cut->from, cut->from, cut->mid, true));
    }
    for (int32_t j = v->i; j < v->i + v->m && cut->to > cut->mid;) {
        int32_t row = j / t->n_heads, end = lesser((row + 1) * t->n_heads, v->i + v->m);
        struct share own = {.i = j, .m = end - j, .p = v->p + (j - v->i) * UNIT_LINE};
        pack_path(job, t, t->row + row, cut->begin, cut->mid, cut->to);
        run_product(job, weigh(job, t, &own, cut->mid, cut->mid, cut->to, cut->mid <= cut->from));
        j = end;
    }
}

/* One chunk of a tree: positions [begin, begin + ATTN_CHUNK) of the past and, once the past ends,
 * all nodes. The slots of nodes differ from their positions. */
static void tree_chunk(const struct attn_job *job, struct attn_tile *t, int32_t begin, float *max,
                       float *sum)
{
    int32_t n_past = t->seq->n_past, first = greater(lesser(begin, n_past), t->first_key);
    int32_t end = begin + ATTN_CHUNK <= n_past ? begin + ATTN_CHUNK : n_past + t->seq->n_rows;
    struct tree_cut cut = {.begin = begin, .base = down(first, PANEL), .first = first};
    cut.n_slots = up(end - cut.base, PANEL);
    cut.to = lesser(ATTN_CHUNK, up(n_past + t->seq->n_rows - begin, UNIT_K));
    cut.from = lesser(cut.to, down(greater(first - begin, 0), UNIT_K));
    cut.mid = greater(cut.from, lesser(cut.to, down(greater(n_past - begin, 0), UNIT_K)));
    pack_keys(job, t, cut.base, first, end);
    for (int32_t i = 0; i < t->n_vectors; i += UNIT_ROWS) {
        struct share v = share_of(t, i, lesser(UNIT_ROWS, t->n_vectors - i));
        v.to = cut.n_slots;
        tree_share(job, t, &cut, &v, max, sum);
    }
}

void attn_unit_chunk(const struct attn_job *job, struct attn_tile *t, int32_t begin, float *max,
                     float *sum)
{
    job->unit->begin();
    if (t->seq->tree) {
        tree_chunk(job, t, begin, max, sum);
    } else {
        plain_chunk(job, t, begin, max, sum);
    }
    job->unit->end();
}

void attn_unit_join(const struct attn_job *job, struct attn_tile *t, const float *max,
                    const float *sum)
{
    job->unit->join(&(struct unit_join){.total = t->total,
                                        .max = t->max,
                                        .sum = t->sum,
                                        .chunk = t->chunk,
                                        .chunk_max = max,
                                        .chunk_sum = sum,
                                        .n = t->n_vectors,
                                        .stride = job->pages->v_stride});
}
