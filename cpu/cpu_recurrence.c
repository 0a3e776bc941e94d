// SPDX-License-Identifier: Apache-2.0
/* The recurrence of ops.h, in the form in which it is defined: a row reads S at the start of its
 * block and the rows of its block before it, and S advances when a block is full.
 *
 * Blocks are processed in order, and all sequences side by side. First come the rows' queries and
 * keys (an item is a row), then the rest (an item is one head of a sequence). Every sum is one
 * chain in the order of positions, or of a key's elements, whatever the number of rows. Products
 * with S and with the keys of the block cover all rows at once; sums over values are done one row
 * at a time. A row of a tree takes the same steps, over a page into which its path has been
 * gathered. */
#include "cpu/cpu_state.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

struct recurrence_job {
    struct cpu_backend *cpu;
    const struct recurrence_args *a;
    const struct state_pages *pages;
    int32_t round; // index of the current block within each sequence
};

/* One head's rows in one block: rows [row, row + n) of the pass, which are at offsets [at, at + n)
 * of the block at `begin`. Raw rows are in pages, by offset. */
struct run {
    int32_t lane, head, row, n, at, begin;
    const char *k;
    char *u;
    float *g;
};

struct space {
    float *rows, *scaled; // [2 block][key_dim]. rows: keys and queries; scaled: the same,
                          // multiplied by their decay since S
    float *from_s;        // [2 block][v_stride]: products of `scaled` with S
    float *scores;        // [2 block][block]
    float *page;          // [key_dim][block]
    float *sum;           // [v_stride]
    char *k, *u;          // k and u of a tree's path
    float *g;
};

static size_t carve(const struct state_pages *p, float *at, struct space *s)
{
    size_t block = (size_t)p->block, dk = (size_t)p->geometry.key_dim, v = (size_t)p->v_stride;
    float *first = at;
    size_t decays = (size_t)p->decays * block;
    s->rows = at;
    s->scaled = s->rows + 2 * block * dk;
    s->from_s = s->scaled + 2 * block * dk;
    s->scores = s->from_s + 2 * block * v;
    s->page = s->scores + 2 * block * block;
    s->sum = s->page + dk * block;
    s->g = s->sum + v;
    s->k = (char *)(s->g + decays);
    s->u = s->k + dk * block * sizeof(float);
    return (size_t)(s->u + v * block * sizeof(float) - (char *)first);
}

size_t cpu_recurrence_scratch(const struct state_pages *p)
{
    struct space s;
    static float base;
    return p->geometry.kind == STATE_CONV ? 0 : carve(p, &base, &s);
}

/* ---- rows --------------------------------------------------------------------------------- */

/* The rows of a sequence that are in this round's block. False: there are none. */
static bool rows_of_round(const struct recurrence_job *job, const struct pass_seq *seq,
                          int32_t *first, int32_t *n)
{
    int32_t block = job->pages->block, last = seq->n_past + seq->n_rows;
    if (seq->tree) { // all rows of a tree are in one block
        *first = seq->first_row;
        *n = seq->n_rows;
        return job->round == 0;
    }
    int32_t begin = (seq->n_past / block + job->round) * block;
    int32_t from = greater(begin, seq->n_past);
    int32_t end = lesser(begin + block, last);
    *first = seq->first_row + from - seq->n_past;
    *n = end - from;
    return from < end;
}

static void divide_by_length(float *x, int32_t n, float scale)
{
    float square = 0.0f;
    for (int32_t i = 0; i < n; i++) {
        square += x[i] * x[i];
    }
    float by = scale / sqrtf(square + 1e-6f);
    for (int32_t i = 0; i < n; i++) {
        x[i] *= by;
    }
}

/* Scales a row's queries and keys, and stores the keys in their slots. */
static void keys_item(void *arg, int32_t item, int32_t thread)
{
    const struct recurrence_job *job = arg;
    const struct state_pages *p = job->pages;
    const struct state_layer *g = &p->geometry;
    const struct pass *pass = job->cpu->pass;
    const struct pass_seq *seq = &pass->seqs[job->cpu->row_seq[item]];
    int32_t first, n;
    (void)thread;
    if (!rows_of_round(job, seq, &first, &n) || item < first || item >= first + n) {
        return;
    }
    float *x = tensor_row(&job->a->x, item);
    int32_t slot = pass->rows[item].slot_pos;
    for (int32_t h = 0; h < g->n_key_heads; h++) {
        float *q = x + job->a->q_at + (int64_t)h * g->key_dim;
        float *k = x + job->a->k_at + (int64_t)h * g->key_dim;
        if (g->kind == STATE_DELTA) {
            divide_by_length(q, g->key_dim, 1.0f / sqrtf((float)g->key_dim));
            divide_by_length(k, g->key_dim, 1.0f);
        }
        for (int32_t d = 0; d < g->key_dim; d++) {
            k[d] = cpu_state_rounded(p->dtype, k[d]);
        }
        cpu_state_put(p->dtype, state_keys(p, seq->lane, slot, h), slot % p->block, p->block, k,
                      g->key_dim);
    }
}

/* ---- decays ------------------------------------------------------------------------------- */

/* softplus, clamped to the allowed range */
static float dt_of(const struct recurrence_args *a, float x)
{
    float dt = x > 20.0f ? x : log1pf(expf(x));
    dt = greater(dt, a->dt_min);
    if (a->dt_max > 0.0f && dt > a->dt_max) {
        return a->dt_max;
    }
    return dt;
}

static float step_of(const struct recurrence_args *a, int32_t row, int64_t i)
{
    return a->decay_scale * tensor_row(&a->decay, row)[i] + a->dt_bias->vector[i];
}

/* Sums up the run's log decays, continuing from the row before it. */
static void sum_decays(const struct recurrence_job *job, const struct run *r)
{
    const struct recurrence_args *a = job->a;
    int32_t block = job->pages->block, n = job->pages->decays;
    float strength = expf(a->a_log->vector[r->head]);
    for (int32_t t = r->at; t < r->at + r->n; t++) {
        for (int32_t d = 0; d < n; d++) {
            float x = step_of(a, r->row + t - r->at, (int64_t)r->head * n + d), g;
            if (a->decay_bound < 0.0f) {
                g = a->decay_bound / (1.0f + expf(-strength * x));
            } else {
                g = -strength * dt_of(a, x);
            }
            float *sums = r->g + (int64_t)d * block;
            sums[t] = t > 0 ? sums[t - 1] + g : g;
        }
    }
}

/* out[j] = exp(G_t - G_j) for offsets up to t, and 0 for later ones. */
static void decays_to(const struct recurrence_job *job, const float *g, int32_t t, float *out)
{
    for (int32_t j = 0; j < job->pages->block; j++) {
        out[j] = j <= t ? g[t] - g[j] : -INFINITY;
    }
}

/* page = the block's keys, decayed to offset t. */
static void decayed_keys(const struct recurrence_job *job, const struct run *r, int32_t t,
                         float *page, float *keys)
{
    const struct cpu_kernels *kernels = job->cpu->kernels;
    int32_t block = job->pages->block, dk = job->pages->geometry.key_dim;
    int64_t n = (int64_t)dk * block;
    bool each = job->pages->decays > 1;
    for (int32_t d = 0; d < (each ? dk : 1); d++) {
        decays_to(job, r->g + (int64_t)d * block, t, page + (int64_t)d * block);
    }
    kernels->exp_sum(page, each ? n : block, 0.0f);
    for (int32_t d = 1; !each && d < dk; d++) {
        memcpy(page + (int64_t)d * block, page, (size_t)block * sizeof *page);
    }
    kernels->widen(job->pages->dtype, r->k, keys, n);
    for (int32_t d = 0; d < dk; d++) {
        for (int32_t j = 0; j <= t; j++) {
            page[(int64_t)d * block + j] *= keys[(int64_t)d * block + j];
        }
    }
}

/* ---- one head of one block ---------------------------------------------------------------- */

/* The number of vectors per row to multiply: the query, and with the delta rule also the key. */
static int32_t per_row(const struct recurrence_job *job)
{
    return job->pages->geometry.kind == STATE_DELTA ? 2 : 1;
}

/* Describes a page of plain values in the form that the attention kernels read. */
static struct kv_plane plain(enum dtype dtype, bool by_dim, int32_t tokens, int32_t width)
{
    return kv_plane_make(KV_PLAIN, dtype, by_dim, tokens, width, 0.0f, 0);
}

/* Computes the rows, the same rows decayed since the block's start, and their products with S. */
static void products_with_state(const struct recurrence_job *job, const struct run *r,
                                struct space *s)
{
    const struct state_pages *p = job->pages;
    const struct state_layer *g = &p->geometry;
    int32_t dk = g->key_dim, per = per_row(job), key_head = r->head / (g->n_heads / g->n_key_heads);
    for (int32_t i = 0; i < r->n; i++) {
        const float *x = tensor_row(&job->a->x, r->row + i) + (int64_t)key_head * dk;
        float *to = s->rows + (int64_t)i * per * dk, *scaled = s->scaled + (int64_t)i * per * dk;
        if (per == 2) {
            memcpy(to, x + job->a->k_at, (size_t)dk * sizeof *to);
        }
        memcpy(to + (int64_t)(per - 1) * dk, x + job->a->q_at, (size_t)dk * sizeof *to);
        for (int32_t d = 0; d < dk; d++) {
            float e = expf(r->g[(int64_t)(p->decays > 1 ? d : 0) * p->block + r->at + i]);
            for (int32_t j = 0; j < per; j++) {
                scaled[(int64_t)j * dk + d] = e * to[(int64_t)j * dk + d];
            }
        }
    }
    memset(s->from_s, 0, (size_t)r->n * (size_t)per * (size_t)p->v_stride * sizeof *s->from_s);
    if (r->begin > 0) {
        const char *state =
            (const char *)state_of_head(p, state_record(p, r->lane, r->begin), r->head);
        const struct kv_plane plane = plain(DT_F32, false, dk, p->v_stride);
        struct page_run run = {.plane = &plane, .n_pages = 1, .end = dk, .pages = &state};
        job->cpu->kernels->weigh(s->scaled, dk, r->n * per, &run, s->from_s);
    }
}

/* Products of the run's decayed rows with the keys of the block. They are valid only up to each
 * row's own offset. */
static void products_with_keys(const struct recurrence_job *job, const struct run *r,
                               struct space *s)
{
    const struct state_pages *p = job->pages;
    const struct cpu_kernels *kernels = job->cpu->kernels;
    int32_t block = p->block, dk = p->geometry.key_dim, per = per_row(job);
    const char *page = (const char *)s->page;
    const struct kv_plane keys = plain(p->dtype, true, block, dk);
    const struct kv_plane decayed = plain(DT_F32, true, block, dk);
    struct page_run run = {.plane = &keys, .n_pages = 1, .end = block, .pages = &r->k};
    if (p->decays == 1) {
        kernels->scores(s->rows, dk, r->n * per, &run, dk, s->scores, block);
    }
    for (int32_t i = 0; i < r->n; i++) {
        float *of_row = s->scores + (int64_t)i * per * block;
        if (p->decays > 1) {
            decayed_keys(job, r, r->at + i, s->page, s->scaled);
            run = (struct page_run){.plane = &decayed, .n_pages = 1, .end = block, .pages = &page};
            kernels->scores(s->rows + (int64_t)i * per * dk, dk, per, &run, dk, of_row, block);
            continue;
        }
        decays_to(job, r->g, r->at + i, s->page);
        kernels->exp_sum(s->page, block, 0.0f);
        for (int32_t j = 0; j < per * block; j++) {
            of_row[j] *= s->page[j % block];
        }
    }
}

/* sum += the values at offsets below `end`, each multiplied by its score. */
static void add_values(const struct recurrence_job *job, const struct run *r, const float *scores,
                       int32_t end, float *sum)
{
    const struct state_pages *p = job->pages;
    const char *u = r->u;
    const struct kv_plane values = plain(p->dtype, false, p->block, p->v_stride);
    struct page_run run = {.plane = &values, .n_pages = 1, .end = end, .pages = &u};
    job->cpu->kernels->weigh(scores, p->block, 1, &run, sum);
}

/* Computes the value that the row leaves for later rows. */
static void make_value(const struct recurrence_job *job, const struct run *r, int32_t i,
                       struct space *s)
{
    const struct recurrence_args *a = job->a;
    const struct state_pages *p = job->pages;
    const struct state_layer *g = &p->geometry;
    int32_t t = r->at + i;
    const float *v = tensor_row(&a->x, r->row + i) + a->v_at + (int64_t)r->head * g->value_dim;
    memset(s->sum, 0, (size_t)p->v_stride * sizeof *s->sum);
    if (g->kind == STATE_DELTA) {
        float *known = s->from_s + 2 * (int64_t)i * p->v_stride;
        add_values(job, r, s->scores + 2 * (int64_t)i * p->block, t, known);
        float beta = a->beta_scale / (1.0f + expf(-tensor_row(&a->beta, r->row + i)[r->head]));
        for (int32_t d = 0; d < g->value_dim; d++) {
            s->sum[d] = beta * (v[d] - known[d]);
        }
    } else {
        float dt = dt_of(a, step_of(a, r->row + i, r->head));
        for (int32_t d = 0; d < g->value_dim; d++) {
            s->sum[d] = dt * v[d];
        }
    }
    cpu_state_put(p->dtype, r->u, (int64_t)t * p->v_stride, 1, s->sum, p->v_stride);
}

static void make_output(const struct recurrence_job *job, const struct run *r, int32_t i,
                        struct space *s)
{
    const struct recurrence_args *a = job->a;
    const struct state_pages *p = job->pages;
    const struct state_layer *g = &p->geometry;
    int64_t query = (int64_t)i * per_row(job) + per_row(job) - 1;
    float *sum = s->from_s + query * p->v_stride;
    add_values(job, r, s->scores + query * p->block, r->at + i + 1, sum);
    float *out = tensor_row(&a->out, r->row + i) + (int64_t)r->head * g->value_dim;
    memcpy(out, sum, (size_t)g->value_dim * sizeof *out);
    if (a->skip) {
        const float *v = tensor_row(&a->x, r->row + i) + a->v_at + (int64_t)r->head * g->value_dim;
        job->cpu->kernels->add_scaled(out, v, a->skip->vector[r->head], g->value_dim);
    }
}

/* Computes S at the next boundary, once the block is full. */
static void move_on(const struct recurrence_job *job, const struct run *r, struct space *s)
{
    const struct state_pages *p = job->pages;
    int32_t block = p->block, dk = p->geometry.key_dim, v = p->v_stride;
    const float *from = state_of_head(p, state_record(p, r->lane, r->begin), r->head);
    float *to = state_of_head(p, state_record(p, r->lane, r->begin + block), r->head);
    for (int32_t d = 0; d < dk; d++) {
        float e = expf(r->g[(int64_t)(p->decays > 1 ? d : 0) * block + block - 1]);
        for (int32_t i = 0; i < v; i++) {
            int64_t at = (int64_t)d * v + i;
            to[at] = r->begin > 0 ? e * from[at] : 0.0f;
        }
    }
    decayed_keys(job, r, block - 1, s->page, s->rows);
    const char *u = r->u;
    const struct kv_plane values = plain(p->dtype, false, block, v);
    struct page_run run = {.plane = &values, .n_pages = 1, .end = block, .pages = &u};
    job->cpu->kernels->weigh(s->page, block, dk, &run, to);
    char *kept = cpu_state_kept(job->cpu, p, r->lane, r->begin + block);
    if (kept) {
        memcpy(state_of_head(p, kept, r->head), to, (size_t)dk * (size_t)v * sizeof *to);
    }
}

static void run_rows(const struct recurrence_job *job, const struct run *r, struct space *s)
{
    sum_decays(job, r);
    products_with_state(job, r, s);
    products_with_keys(job, r, s);
    for (int32_t i = 0; i < r->n; i++) {
        make_value(job, r, i, s);
        make_output(job, r, i, s);
    }
    if (r->at + r->n == job->pages->block) {
        move_on(job, r, s);
    }
}

/* ---- trees -------------------------------------------------------------------------------- */

static void copy_column(char *to, const char *from, size_t size, int32_t n, int32_t block,
                        int32_t to_at, int32_t from_at)
{
    for (int32_t d = 0; d < n; d++) {
        size_t row = (size_t)d * (size_t)block;
        memcpy(to + (row + (size_t)to_at) * size, from + (row + (size_t)from_at) * size, size);
    }
}

/* Copies a slot to offset t of the run's pages. */
static void gather_slot(const struct recurrence_job *job, const struct run *r, int32_t slot,
                        int32_t t, struct space *s)
{
    const struct state_pages *p = job->pages;
    const struct state_layer *g = &p->geometry;
    int32_t in_page = slot % p->block, key_head = r->head / (g->n_heads / g->n_key_heads);
    size_t size = dtype_bytes(p->dtype), u = (size_t)p->v_stride * size;
    copy_column(s->k, state_keys(p, r->lane, slot, key_head), size, g->key_dim, p->block, t,
                in_page);
    memcpy(s->u + (size_t)t * u, state_values(p, r->lane, slot, r->head) + (size_t)in_page * u, u);
    copy_column((char *)s->g, (const char *)state_decays(p, r->lane, slot, r->head), sizeof(float),
                p->decays, p->block, t, in_page);
}

/* A row of a tree: gathers the rows of its path into one run, processes the row, and stores its
 * value and decay in its slot. */
static void tree_row(const struct recurrence_job *job, const struct pass_seq *seq, int32_t row,
                     int32_t head, struct space *s)
{
    const struct state_pages *p = job->pages;
    const struct pass *pass = job->cpu->pass;
    int32_t pos = pass->rows[row].pos, slot = pass->rows[row].slot_pos, at = pos % p->block;
    struct run r = {.lane = seq->lane,
                    .head = head,
                    .row = row,
                    .n = 1,
                    .at = at,
                    .begin = pos - at,
                    .k = s->k,
                    .u = s->u,
                    .g = s->g};
    ASSERT(pos / p->block == seq->n_past / p->block);
    ASSERT(row == seq->first_row || at < p->block - 1);
    for (int32_t t = 0; t <= at; t++) {
        int32_t of = cpu_path_row(pass, seq, row, r.begin + t);
        gather_slot(job, &r, of >= 0 ? pass->rows[of].slot_pos : r.begin + t, t, s);
    }
    run_rows(job, &r, s);
    size_t u = (size_t)p->v_stride * dtype_bytes(p->dtype);
    memcpy(state_values(p, r.lane, slot, head) + (size_t)(slot % p->block) * u,
           s->u + (size_t)at * u, u);
    copy_column((char *)state_decays(p, r.lane, slot, head), (const char *)s->g, sizeof(float),
                p->decays, p->block, slot % p->block, at);
}

/* ---- the op ------------------------------------------------------------------------------- */

/* One head of one sequence. Rows of a chain are a run in the pages themselves; those of a tree
 * are processed one by one. */
static void heads_item(void *arg, int32_t item, int32_t thread)
{
    const struct recurrence_job *job = arg;
    const struct state_pages *p = job->pages;
    const struct state_layer *g = &p->geometry;
    const struct pass_seq *seq = &job->cpu->pass->seqs[item / g->n_heads];
    int32_t head = item % g->n_heads, first, n;
    struct space s;
    if (!rows_of_round(job, seq, &first, &n)) {
        return;
    }
    carve(p, (float *)(void *)job->cpu->scratch[thread].p, &s);
    if (seq->tree) {
        for (int32_t row = first; row < first + n; row++) {
            tree_row(job, seq, row, head, &s);
        }
        return;
    }
    int32_t pos = job->cpu->pass->rows[first].pos;
    struct run r = {.lane = seq->lane, .head = head, .row = first, .n = n, .at = pos % p->block};
    r.begin = pos - r.at;
    r.k = state_keys(p, seq->lane, pos, head / (g->n_heads / g->n_key_heads));
    r.u = state_values(p, seq->lane, pos, head);
    r.g = state_decays(p, seq->lane, pos, head);
    run_rows(job, &r, &s);
}

static int32_t count_rounds(const struct cpu_backend *cpu, int32_t block)
{
    int32_t most = 0;
    for (int32_t i = 0; i < cpu->pass->n_seqs; i++) {
        const struct pass_seq *s = &cpu->pass->seqs[i];
        int32_t n = s->tree ? 1 : (s->n_past + s->n_rows - 1) / block - s->n_past / block + 1;
        most = greater(n, most);
    }
    return most;
}

enum status cpu_recurrence(struct backend *be, const struct recurrence_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct recurrence_job job = {cpu, a, cpu_state_layer(cpu, a->layer), 0};
    const struct state_layer *g = &job.pages->geometry;
    ASSERT(cpu->pass && a->n_rows == cpu->pass->n_rows && g->kind != STATE_CONV);
    int32_t n = count_rounds(cpu, job.pages->block);
    for (; job.round < n; job.round++) {
        pool_run(cpu->pool, a->n_rows, keys_item, &job);
        pool_run(cpu->pool, cpu->pass->n_seqs * g->n_heads, heads_item, &job);
    }
    return OK;
}
