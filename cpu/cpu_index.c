// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: stores the keys of indexers, picks the keys that each row attends to, and
 * copies them for attention. The scores of some rows are computed first, in items of one row and
 * some pages, so that a single row occupies all threads, too. Then each row picks. A score depends
 * only on its row and key, so a row's picks do not depend on the batch. */
#include "cpu/cpu_index.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

/* SCORE_HEADS: heads whose scores are computed together. SCORE_BYTES: memory for the scores of the
 * rows that pick at the same time. */
enum { SCORE_HEADS = 32, SCORE_KEYS = 512, SCORE_BYTES = 64 << 20 };

/* Pages that an item reads. */
static int32_t pages_of_item(const struct cpu_backend *cpu)
{
    return greater(1, SCORE_KEYS / cpu->limits.block_tokens);
}

static int64_t item_keys(const struct cpu_backend *cpu)
{
    return round_up((int64_t)pages_of_item(cpu) * cpu->limits.block_tokens, PANEL);
}

enum status cpu_index_need(struct cpu_backend *cpu)
{
    struct index_room *room = &cpu->index;
    const struct backend_limits *l = &cpu->limits;
    if (room->bits) {
        return OK;
    }
    const int64_t slots = (int64_t)l->max_blocks_per_lane * l->block_tokens;
    room->n_words = (int32_t)(round_up(slots, 64) / 64);
    room->stride = round_up(slots, PANEL);
    const int64_t most = SCORE_BYTES / (int64_t)sizeof(float) / room->stride;
    room->n_rows = (int32_t)lesser(greater(most, 1), l->max_rows);
    room->n_picked = cpu_memory(cpu, (size_t)l->max_rows * sizeof(int32_t));
    room->bits = cpu_memory(cpu, (size_t)l->max_rows * (size_t)room->n_words * sizeof(uint64_t));
    room->scores = cpu_memory(cpu, (size_t)room->n_rows * (size_t)room->stride * sizeof(float));
    if (!room->n_picked || !room->bits || !room->scores) {
        return ERR_NOMEM;
    }
    const size_t of_heads = SCORE_HEADS * (size_t)item_keys(cpu) * sizeof(float);
    TRY(cpu_need_scratch(cpu, of_heads));
    return cpu_need_scratch(cpu, (size_t)room->stride * sizeof(uint32_t));
}

/* ---- the store ---------------------------------------------------------------------------- */

struct store_job {
    const struct cpu_backend *cpu;
    const struct index_store_args *a;
    const struct kv_pages *pages;
};

static void store_item(void *arg, int32_t row, int32_t thread)
{
    const struct store_job *job = arg;
    const struct index_store_args *a = job->a;
    const struct pass_row *p = &job->cpu->pass->rows[row];
    float *k = tensor_row(&a->k, row), *q = tensor_row(&a->q, row);
    (void)thread;
    job->cpu->kernels->norm(NORM_LAYER, k, a->norm ? a->norm->vector : NULL, 0.0f,
                            a->norm_bias ? a->norm_bias->vector : NULL, a->eps, a->head_dim, k);
    cpu_rotate(job->cpu, a->rope, p->pos, k + a->rope_at);
    cpu_kv_store_key(job->cpu, job->pages, cpu_kv_slot(job->cpu, job->pages, p->lane, p->slot_pos),
                     k);
    for (int32_t h = 0; h < a->n_heads; h++) {
        float *head = q + (int64_t)h * a->head_dim;
        cpu_rotate(job->cpu, a->rope, p->pos, head + a->rope_at);
        cpu_grow(head, a->head_dim, cpu_head_growth(&a->growth, h, p->pos));
    }
}

enum status cpu_index_store(struct backend *be, const struct index_store_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct store_job job = {cpu, a, cpu_kv_layer(cpu, a->layer)};
    ASSERT(cpu->pass && a->n_rows <= cpu->pass->n_rows);
    ASSERT(job.pages->geometry.index && job.pages->geometry.head_dim_k == a->head_dim);
    pool_run(cpu->pool, a->n_rows, store_item, &job);
    return OK;
}

/* ---- which keys a row sees ---------------------------------------------------------------- */

static const struct pass_seq *seq_of(const struct cpu_backend *cpu, int32_t row)
{
    return &cpu->pass->seqs[cpu->row_seq[row]];
}

/* The slots [0, end) contain all keys that the row sees. Only in a tree it does not see all. */
static int32_t end_of(const struct cpu_backend *cpu, int32_t row)
{
    const struct pass_seq *seq = seq_of(cpu, row);
    return seq->n_past + (seq->tree ? seq->n_rows : row - seq->first_row + 1);
}

static bool sees(const struct cpu_backend *cpu, int32_t row, int32_t slot)
{
    const struct pass_seq *seq = seq_of(cpu, row);
    const int32_t node = slot - seq->n_past;
    if (!seq->tree || node < 0) {
        return true;
    }
    const uint64_t *mask = cpu->pass->tree_mask + (int64_t)row * TREE_MASK_WORDS;
    return (mask[node / 64] >> (node % 64) & 1) != 0;
}

static int32_t n_seen(const struct cpu_backend *cpu, int32_t row)
{
    const struct pass_seq *seq = seq_of(cpu, row);
    const int32_t end = end_of(cpu, row);
    int32_t n = seq->tree ? seq->n_past : end;
    for (int32_t slot = n; slot < end; slot++) {
        n += sees(cpu, row, slot);
    }
    return n;
}

/* ---- scores ------------------------------------------------------------------------------- */

struct pick_job {
    struct cpu_backend *cpu;
    const struct index_pick_args *a;
    const struct kv_pages *pages;
    int32_t first_row, n_rows; // the rows that pick now
};

static float *scores_of(const struct pick_job *job, int32_t row)
{
    return job->cpu->index.scores + (row - job->first_row) * job->cpu->index.stride;
}

/* Adds the scores of one head, in the order of heads. NaN stays NaN. */
static void add_head(float *to, const float *s, float weight, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        to[i] += weight * (s[i] < 0.0f ? 0.0f : s[i]);
    }
}

/* The pages of the slots [begin, end) of a lane; returns how many. */
static int32_t find_pages(const struct pick_job *job, int32_t lane, int32_t begin, int32_t end,
                          const char **pages)
{
    const int32_t tokens = job->cpu->limits.block_tokens;
    int32_t n = 0;
    for (int32_t slot = begin; slot < end; slot += tokens) {
        pages[n++] = cpu_kv_slot(job->cpu, job->pages, lane, slot).block;
    }
    return n;
}

/* Scores one row's keys of some pages. */
static void score_item(void *arg, int32_t item, int32_t thread)
{
    const struct pick_job *job = arg;
    const struct cpu_backend *cpu = job->cpu;
    const struct index_pick_args *a = job->a;
    const char *pages[SCORE_KEYS];
    const int32_t row = job->first_row + item % job->n_rows;
    const int32_t keys = pages_of_item(cpu) * cpu->limits.block_tokens;
    const int32_t begin = item / job->n_rows * keys, end = lesser(begin + keys, end_of(cpu, row));
    if (begin >= end || n_seen(cpu, row) <= a->top_k) {
        return;
    }
    struct page_run run = {.plane = &job->pages->k, .pages = pages};
    run.n_pages = find_pages(job, seq_of(cpu, row)->lane, begin, end, pages);
    const int64_t stride = item_keys(cpu);
    const float *q = tensor_row(&a->q, row), *weights = tensor_row(&a->weights, row);
    float *s = (float *)cpu->scratch[thread].p, *to = scores_of(job, row) + begin;
    memset(to, 0, (size_t)(end - begin) * sizeof *to);
    for (int32_t h = 0; h < a->n_heads; h += SCORE_HEADS) {
        const int32_t n = lesser(SCORE_HEADS, a->n_heads - h);
        cpu->kernels->scores(q + (int64_t)h * a->head_dim, a->head_dim, n, &run, a->head_dim, s,
                             stride);
        for (int32_t i = 0; i < n; i++) {
            add_head(to, s + i * stride, weights[h + i], end - begin);
        }
    }
}

/* ---- picks -------------------------------------------------------------------------------- */

/* Higher scores have higher ranks. NaN has the highest: a row that sees a broken key attends to it,
 * so that it is found. 0 is left for keys that the row does not see. */
static uint32_t rank_of(float score)
{
    union {
        float f;
        uint32_t u;
    } v = {score + 0.0f}; // without a sign of 0
    if (score != score) {
        return UINT32_MAX;
    }
    return v.u & 0x80000000u ? ~v.u : v.u | 0x80000000u;
}

/* The k-th highest of n ranks, found byte by byte. *k becomes the number of keys of this very rank
 * among the first k. */
static uint32_t find_rank(const uint32_t *ranks, int32_t n, int32_t *k)
{
    uint32_t found = 0, mask = 0;
    for (int32_t shift = 24; shift >= 0; shift -= 8) {
        int32_t counts[256] = {0};
        uint32_t byte = 255;
        for (int32_t i = 0; i < n; i++) {
            counts[ranks[i] >> shift & 255] += (ranks[i] & mask) == found;
        }
        while (counts[byte] < *k) {
            *k -= counts[byte--];
        }
        found |= byte << shift;
        mask |= 255u << shift;
    }
    return found;
}

/* Of equal scores the first slots win. They are those of the earlier positions, since the slots of
 * a tree's path are in the order of its positions. */
static void pick_best(const struct pick_job *job, int32_t row, uint32_t *ranks, uint64_t *bits)
{
    const int32_t n = end_of(job->cpu, row);
    const float *scores = scores_of(job, row);
    for (int32_t i = 0; i < n; i++) {
        ranks[i] = sees(job->cpu, row, i) ? rank_of(scores[i]) : 0;
    }
    int32_t left = job->a->top_k;
    const uint32_t last = find_rank(ranks, n, &left);
    for (int32_t i = 0; i < n; i++) {
        const bool picked = ranks[i] > last || (ranks[i] == last && left-- > 0);
        bits[i / 64] |= (uint64_t)picked << (i % 64);
    }
}

static void pick_item(void *arg, int32_t item, int32_t thread)
{
    const struct pick_job *job = arg;
    struct cpu_backend *cpu = job->cpu;
    const int32_t row = job->first_row + item;
    uint64_t *bits = cpu->index.bits + (int64_t)row * cpu->index.n_words;
    const bool picks = n_seen(cpu, row) > job->a->top_k;
    cpu->index.n_picked[row] = picks ? job->a->top_k : 0;
    if (picks) {
        memset(bits, 0, (size_t)(end_of(cpu, row) + 63) / 64 * sizeof *bits);
        pick_best(job, row, (uint32_t *)(void *)cpu->scratch[thread].p, bits);
    }
}

/* Without a row that sees more than top_k keys there is nothing to pick. */
static bool any_picks(const struct cpu_backend *cpu, const struct index_pick_args *a)
{
    for (int32_t row = 0; row < a->n_rows; row++) {
        if (n_seen(cpu, row) > a->top_k) {
            return true;
        }
    }
    return false;
}

enum status cpu_index_pick(struct backend *be, const struct index_pick_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct pick_job job = {.cpu = cpu, .a = a, .pages = cpu_kv_layer(cpu, a->layer)};
    ASSERT(cpu->pass && a->n_rows <= cpu->pass->n_rows && a->top_k > 0);
    ASSERT(job.pages->geometry.index && job.pages->geometry.head_dim_k == a->head_dim);
    *a->picks = (struct key_picks){.top_k = a->top_k};
    if (!any_picks(cpu, a)) {
        return OK;
    }
    const int32_t keys = pages_of_item(cpu) * cpu->limits.block_tokens;
    for (int32_t row = 0; row < a->n_rows; row += job.n_rows) {
        int32_t end = 0;
        job.first_row = row;
        job.n_rows = lesser(cpu->index.n_rows, a->n_rows - row);
        for (int32_t i = 0; i < job.n_rows; i++) {
            end = greater(end, end_of(cpu, row + i));
        }
        pool_run(cpu->pool, (end + keys - 1) / keys * job.n_rows, score_item, &job);
        pool_run(cpu->pool, job.n_rows, pick_item, &job);
    }
    a->picks->p.p = cpu->index.n_picked;
    return OK;
}

/* ---- copies of picked keys ---------------------------------------------------------------- */

/* Stores the slots of a row's picks, numbers [first, end) of them. */
static void find_slots(const struct cpu_backend *cpu, int32_t row, int32_t first, int32_t end,
                       int32_t *slots)
{
    const uint64_t *bits = cpu->index.bits + (int64_t)row * cpu->index.n_words;
    for (int32_t word = 0, n = 0; n < end; word++) {
        const int32_t of_word = __builtin_popcountll(bits[word]);
        if (n + of_word <= first) {
            n += of_word;
            continue;
        }
        for (uint64_t left = bits[word]; left && n < end; left &= left - 1, n++) {
            if (n >= first) {
                slots[n - first] = word * 64 + __builtin_ctzll(left);
            }
        }
    }
}

/* A token's key in a plane of K: a column of units, each an element or a pair of codes. */
struct column {
    int32_t n_units, unit; // unit: bytes of one
    int64_t stride;
};

static struct column column_of(const struct kv_plane *p)
{
    const bool pairs = p->format != KV_PLAIN && p->format != KV_FP8;
    struct column c = {.n_units = pairs ? (p->width + 1) / 2 : p->width, .unit = 1};
    if (p->format == KV_PLAIN) {
        c.unit = (int32_t)dtype_bytes(p->dtype);
    } else if (pairs && p->format != KV_INT4) {
        c.unit = 2;
    }
    c.stride = (int64_t)c.unit * p->tokens;
    return c;
}

/* Copies m columns of a page together, because they share its cache lines. */
static void copy_columns(struct column c, const char *const *from, char *const *to, int32_t m)
{
    for (int64_t i = 0, at = 0; i < c.n_units; i++, at += c.stride) {
        for (int32_t j = 0; j < m; j++) {
            switch (c.unit) {
            case 1: to[j][at] = from[j][at]; break;
            case 2: memcpy(to[j] + at, from[j] + at, 2); break;
            default: memcpy(to[j] + at, from[j] + at, 4); break;
            }
        }
    }
}

size_t index_gather_bytes(const struct cpu_backend *cpu, const struct kv_pages *pages)
{
    return (size_t)(ATTN_CHUNK / cpu->limits.block_tokens + 2) * pages->block_bytes;
}

/* The tokens beside [first, end) in the first and the last page become zeros, since kernels may
 * multiply them by 0. */
void index_gather(const struct cpu_backend *cpu, const struct kv_pages *pages, int32_t row,
                  int32_t first, int32_t end, char *to)
{
    const struct kv_plane *p = &pages->k;
    const int32_t tokens = cpu->limits.block_tokens, lane = seq_of(cpu, row)->lane;
    const int32_t first_page = first / tokens, n_pages = (end - 1) / tokens - first_page + 1;
    const struct column c = column_of(p);
    int32_t slots[ATTN_CHUNK];
    const char *from[ATTN_CHUNK];
    char *copies[ATTN_CHUNK];
    ASSERT(first < end && end - first <= ATTN_CHUNK);
    find_slots(cpu, row, first, end, slots);
    memset(to, 0, pages->block_bytes);
    memset(to + (size_t)(n_pages - 1) * pages->block_bytes, 0, pages->block_bytes);
    for (int32_t i = 0, m; i < end - first; i += m) {
        const char *page = cpu_kv_slot(cpu, pages, lane, slots[i]).block;
        for (m = 0; i + m < end - first && slots[i + m] / tokens == slots[i] / tokens; m++) {
            const int32_t token = slots[i + m] % tokens, number = first + i + m;
            char *copy = to + (size_t)(number / tokens - first_page) * pages->block_bytes;
            from[m] = page + p->at + (int64_t)token * c.unit;
            copies[m] = copy + p->at + (int64_t)(number % tokens) * c.unit;
            if (p->has_scales) {
                kv_scale_put(p, copy, number % tokens, kv_scale_get(p, page, token));
            }
        }
        copy_columns(c, from, copies, m);
    }
}
