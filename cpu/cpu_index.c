// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: stores the keys of indexers, and picks the keys that each row attends to. The
 * scores of some rows are computed first, in items of one row and some pages, so that a single row
 * occupies all threads, too. Then each row picks, one by one or, for each head, by blocks. A score
 * depends only on its row and key, so a row's picks do not depend on the batch. */
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

static int32_t sets_of(int32_t block, int32_t n_heads)
{
    return block > 0 ? n_heads : 1;
}

/* Words of a set's bits: one bit for each slot, or for each block. */
static int32_t words_of(const struct cpu_backend *cpu, int32_t block)
{
    const struct backend_limits *l = &cpu->limits;
    const int64_t slots = (int64_t)l->max_blocks_per_lane * l->block_tokens;
    const int64_t n_bits = block > 0 ? (slots + block - 1) / block : slots;
    return (int32_t)(round_up(n_bits, 64) / 64);
}

/* Larger memory replaces what another layer needed. */
enum status cpu_index_need(struct cpu_backend *cpu, const struct kv_layer *layer)
{
    struct index_room *room = &cpu->index;
    const struct backend_limits *l = &cpu->limits;
    const int32_t n_sets = sets_of(layer->pick_block, layer->n_heads);
    const int64_t words = (int64_t)n_sets * words_of(cpu, layer->pick_block);
    if (words <= room->most_words && n_sets <= room->most_sets) {
        return OK;
    }
    room->most_words = greater(words, room->most_words);
    room->most_sets = greater(n_sets, room->most_sets);
    room->stride = round_up((int64_t)l->max_blocks_per_lane * l->block_tokens, PANEL);
    const int64_t most = SCORE_BYTES / (int64_t)sizeof(float) / room->stride;
    room->n_scores = lesser(most, (int64_t)l->max_rows * room->most_sets);
    room->n_scores = greater(room->n_scores, room->most_sets);
    cpu_memory_free(cpu, room->n_picked);
    cpu_memory_free(cpu, room->bits);
    cpu_memory_free(cpu, room->scores);
    const size_t rows = (size_t)l->max_rows;
    room->n_picked = cpu_memory(cpu, rows * (size_t)room->most_sets * sizeof(int32_t));
    room->bits = cpu_memory(cpu, rows * (size_t)room->most_words * sizeof(uint64_t));
    room->scores = cpu_memory(cpu, (size_t)room->n_scores * (size_t)room->stride * sizeof(float));
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
    const struct kv_pages *pages, *raw; // raw: of what is pooled
};

static void norm_key(const struct store_job *job, float *k)
{
    const struct index_store_args *a = job->a;
    job->cpu->kernels->norm(a->norm_kind, k, a->norm ? a->norm->vector : NULL, a->norm_offset,
                            a->norm_bias ? a->norm_bias->vector : NULL, a->eps, a->head_dim, k);
}

static void store_item(void *arg, int32_t row, int32_t thread)
{
    const struct store_job *job = arg;
    const struct index_store_args *a = job->a;
    const struct pass_row *p = &job->cpu->pass->rows[row];
    float *k = tensor_row(&a->k, row), *q = tensor_row(&a->q, row);
    (void)thread;
    norm_key(job, k);
    cpu_rotate(job->cpu, a->rope, p->pos, k + a->rope_at);
    cpu_kv_store_key(job->cpu, job->pages, cpu_kv_slot(job->cpu, job->pages, p->lane, p->slot_pos),
                     k);
    for (int32_t h = 0; h < a->n_heads; h++, q += a->head_dim) {
        if (a->q_norm) {
            job->cpu->kernels->norm(a->norm_kind, q, a->q_norm->vector, a->norm_offset, NULL,
                                    a->eps, a->head_dim, q);
        }
        cpu_rotate(job->cpu, a->rope, p->pos, q + a->rope_at);
        cpu_grow(q, a->head_dim, cpu_head_growth(&a->growth, h, p->pos));
    }
}

/* A key, normed, and its gates. */
static void store_raw_item(void *arg, int32_t row, int32_t thread)
{
    const struct store_job *job = arg;
    const struct pass_row *p = &job->cpu->pass->rows[row];
    float *k = tensor_row(&job->a->k, row);
    (void)thread;
    norm_key(job, k);
    cpu_kv_store_key(job->cpu, job->raw, cpu_kv_slot(job->cpu, job->raw, p->lane, p->slot_pos), k);
}

/* The slots of the group that a row completes, which lie on the row's path. */
static void find_group(const struct store_job *job, int32_t row, struct kv_slot *group)
{
    const struct pass_row *p = &job->cpu->pass->rows[row];
    int32_t slot = p->slot_pos;
    for (int32_t i = job->a->pool - 1; i >= 0; slot--) {
        if (index_sees(job->cpu, row, slot)) {
            group[i--] = cpu_kv_slot(job->cpu, job->raw, p->lane, slot);
        }
    }
}

/* What was stored is read again, even that of this pass, so that the key does not depend on how
 * the group was divided among passes. */
static void store_group_item(void *arg, int32_t row, int32_t thread)
{
    const struct store_job *job = arg;
    const struct index_store_args *a = job->a;
    const struct pass_row *p = &job->cpu->pass->rows[row];
    const struct kv_plane *from = &job->raw->k;
    struct kv_slot group[MAX_INDEX_POOL];
    float key[MAX_INDEX_DIM], gates[MAX_INDEX_POOL];
    (void)thread;
    if ((p->pos + 1) % a->pool != 0) {
        return;
    }
    find_group(job, row, group);
    for (int32_t d = 0; d < a->head_dim; d++) {
        float most = -INFINITY, all = 0.0f, sum = 0.0f;
        for (int32_t i = 0; i < a->pool; i++) {
            gates[i] = kv_get(from, group[i].block, group[i].token, a->head_dim + d) +
                       a->places->vector[i * a->head_dim + d];
            most = gates[i] > most ? gates[i] : most;
        }
        for (int32_t i = 0; i < a->pool; i++) {
            const float weight = expf(gates[i] - most);
            all += weight;
            sum += weight * kv_get(from, group[i].block, group[i].token, d);
        }
        key[d] = sum / all;
    }
    cpu_kv_store_key(job->cpu, job->pages, cpu_kv_slot(job->cpu, job->pages, p->lane, p->slot_pos),
                     key);
}

enum status cpu_index_store(struct backend *be, const struct index_store_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct store_job job = {.cpu = cpu, .a = a, .pages = cpu_kv_layer(cpu, a->layer)};
    ASSERT(cpu->pass && a->n_rows <= cpu->pass->n_rows);
    ASSERT(job.pages->geometry.index && job.pages->geometry.head_dim_k == a->head_dim);
    if (a->pool == 0) {
        pool_run(cpu->pool, a->n_rows, store_item, &job);
        return OK;
    }
    ASSERT(!a->rope && !a->q_norm && !a->growth.scale && a->pool <= MAX_INDEX_POOL);
    job.raw = cpu_kv_layer(cpu, a->raw_layer);
    ASSERT(job.raw->geometry.index && job.raw->geometry.head_dim_k == 2 * a->head_dim);
    pool_run(cpu->pool, a->n_rows, store_raw_item, &job);
    pool_run(cpu->pool, a->n_rows, store_group_item, &job);
    return OK;
}

/* ---- which keys a row sees ---------------------------------------------------------------- */

static int32_t n_seen(const struct cpu_backend *cpu, int32_t row)
{
    const struct pass_seq *seq = index_seq(cpu, row);
    const int32_t end = index_end(cpu, row);
    int32_t n = seq->tree ? seq->n_past : end;
    for (int32_t slot = n; slot < end; slot++) {
        n += index_sees(cpu, row, slot);
    }
    return n;
}

/* True if the row sees more keys than it may pick. */
static bool must_pick(const struct cpu_backend *cpu, const struct index_pick_args *a, int32_t row)
{
    return n_seen(cpu, row) > index_most_keys(index_most_picks(a), a->block);
}

/* ---- scores ------------------------------------------------------------------------------- */

struct pick_job {
    struct cpu_backend *cpu;
    const struct index_pick_args *a;
    const struct kv_pages *pages;
    int32_t first_row, n_rows; // the rows that pick now
};

static float *scores_of(const struct pick_job *job, int32_t row, int32_t set)
{
    const struct index_room *room = &job->cpu->index;
    return room->scores + ((row - job->first_row) * (int64_t)room->n_sets + set) * room->stride;
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
    const int32_t begin = item / job->n_rows * keys,
                  end = lesser(begin + keys, index_end(cpu, row));
    if (begin >= end || !must_pick(cpu, a, row)) {
        return;
    }
    struct page_run run = {.plane = &job->pages->k, .pages = pages};
    run.n_pages = find_pages(job, index_seq(cpu, row)->lane, begin, end, pages);
    const int64_t stride = item_keys(cpu);
    const float *q = tensor_row(&a->q, row);
    const float *weights = a->block > 0 ? NULL : tensor_row(&a->weights, row);
    float *s = (float *)cpu->scratch[thread].p, *to = scores_of(job, row, 0) + begin;
    const size_t n_bytes = (size_t)(end - begin) * sizeof *to;
    memset(to, 0, n_bytes);
    for (int32_t h = 0; h < a->n_heads; h += SCORE_HEADS) {
        const int32_t n = lesser(SCORE_HEADS, a->n_heads - h);
        cpu->kernels->scores(q + (int64_t)h * a->head_dim, a->head_dim, n, &run, a->head_dim, s,
                             stride);
        for (int32_t i = 0; i < n; i++) {
            if (weights) {
                add_head(to, s + i * stride, weights[h + i], end - begin);
            } else {
                memcpy(scores_of(job, row, h + i) + begin, s + i * stride, n_bytes);
            }
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

/* Sets the bits of the top_k highest of n ranks. Of equal ones the first win. */
static void pick_best(const uint32_t *ranks, int32_t n, int32_t top_k, uint64_t *bits)
{
    int32_t left = top_k;
    const uint32_t last = find_rank(ranks, n, &left);
    memset(bits, 0, (size_t)(n + 63) / 64 * sizeof *bits);
    for (int32_t i = 0; i < n; i++) {
        const bool picked = ranks[i] > last || (ranks[i] == last && left-- > 0);
        bits[i / 64] |= (uint64_t)picked << (i % 64);
    }
}

/* Single keys. The first slots are those of the earlier positions, since the slots of a tree's path
 * are in the order of its positions. Returns the number of picks. */
static int32_t pick_keys(const struct pick_job *job, int32_t row, uint32_t *ranks, uint64_t *bits)
{
    const int32_t n = index_end(job->cpu, row);
    const float *scores = scores_of(job, row, 0);
    for (int32_t i = 0; i < n; i++) {
        ranks[i] = index_sees(job->cpu, row, i) ? rank_of(scores[i]) : 0;
    }
    pick_best(ranks, n, job->a->top_k, bits);
    return job->a->top_k;
}

/* Groups, whose keys are at their last positions. From the end, the picked ones and the rest become
 * runs of slots that the row sees. */
static int32_t pick_groups(const struct pick_job *job, int32_t row, uint32_t *ranks, uint64_t *bits)
{
    const struct index_pick_args *a = job->a;
    const int32_t end = index_end(job->cpu, row);
    const float *scores = scores_of(job, row, 0);
    int32_t n = 0;
    for (int32_t slot = 0; slot < end; slot++) {
        const bool sees = index_sees(job->cpu, row, slot);
        n += sees;
        ranks[slot] = sees && n % a->pool == 0 ? rank_of(scores[slot]) : 0;
    }
    pick_best(ranks, end, a->top_k / a->pool, bits);
    const int32_t rest = n % a->pool;
    for (int32_t slot = end - 1, run = rest; slot >= 0; slot--) {
        const uint64_t bit = (uint64_t)1 << (slot % 64);
        if (!index_sees(job->cpu, row, slot)) {
            continue;
        }
        run = (bits[slot / 64] & bit) != 0 ? a->pool : run;
        bits[slot / 64] |= run > 0 ? bit : 0;
        run -= run > 0;
    }
    return a->top_k + rest;
}

/* Blocks, whose ranks are the highest of their keys. Returns the number of keys in those picked;
 * only the last block may have fewer than others. */
static int32_t pick_blocks(const struct pick_job *job, int32_t row, int32_t set, uint32_t *ranks,
                           uint64_t *bits)
{
    const struct index_pick_args *a = job->a;
    const float *scores = scores_of(job, row, set);
    const int32_t end = index_end(job->cpu, row);
    int32_t pos = 0;
    for (int32_t slot = 0; slot < end; slot++) {
        if (!index_sees(job->cpu, row, slot)) {
            continue;
        }
        const uint32_t rank = rank_of(scores[slot]),
                       before = pos % a->block ? ranks[pos / a->block] : 0;
        ranks[pos++ / a->block] = greater(rank, before);
    }
    const int32_t n = (pos - 1) / a->block + 1;
    for (int32_t i = greater(n - a->n_local, 0); i < n; i++) {
        ranks[i] = greater(ranks[i], rank_of(INFINITY));
    }
    pick_best(ranks, n, a->top_k, bits);
    const bool has_last = (bits[(n - 1) / 64] >> ((n - 1) % 64) & 1) != 0;
    return a->top_k * a->block - (has_last ? n * a->block - pos : 0);
}

static int32_t pick(const struct pick_job *job, int32_t row, int32_t set, uint32_t *ranks,
                    uint64_t *bits)
{
    if (job->a->pool > 0) {
        return pick_groups(job, row, ranks, bits);
    }
    return job->a->block > 0 ? pick_blocks(job, row, set, ranks, bits)
                             : pick_keys(job, row, ranks, bits);
}

static void pick_item(void *arg, int32_t item, int32_t thread)
{
    const struct pick_job *job = arg;
    struct cpu_backend *cpu = job->cpu;
    struct index_room *room = &cpu->index;
    const int32_t set = item % room->n_sets, row = job->first_row + item / room->n_sets;
    const int64_t at = (int64_t)row * room->n_sets + set;
    uint64_t *bits = room->bits + at * room->n_words;
    uint32_t *ranks = (uint32_t *)(void *)cpu->scratch[thread].p;
    room->n_picked[at] = 0;
    if (must_pick(cpu, job->a, row)) {
        room->n_picked[at] = pick(job, row, set, ranks, bits);
    }
}

/* If all rows see fewer keys there is nothing to pick. */
static bool any_picks(const struct cpu_backend *cpu, const struct index_pick_args *a)
{
    for (int32_t row = 0; row < a->n_rows; row++) {
        if (must_pick(cpu, a, row)) {
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
    struct index_room *room = &cpu->index;
    room->block = a->block;
    room->n_sets = sets_of(a->block, a->n_heads);
    room->n_words = words_of(cpu, a->block);
    ASSERT(room->n_sets <= room->most_sets);
    ASSERT((int64_t)room->n_sets * room->n_words <= room->most_words);
    *a->picks =
        (struct key_picks){.top_k = index_most_picks(a), .block = a->block, .n_sets = room->n_sets};
    if (!any_picks(cpu, a)) {
        return OK;
    }
    const int32_t keys = pages_of_item(cpu) * cpu->limits.block_tokens;
    for (int32_t row = 0; row < a->n_rows; row += job.n_rows) {
        int32_t end = 0;
        job.first_row = row;
        job.n_rows = (int32_t)lesser(room->n_scores / room->n_sets, (int64_t)a->n_rows - row);
        for (int32_t i = 0; i < job.n_rows; i++) {
            end = greater(end, index_end(cpu, row + i));
        }
        pool_run(cpu->pool, (end + keys - 1) / keys * job.n_rows, score_item, &job);
        pool_run(cpu->pool, job.n_rows * room->n_sets, pick_item, &job);
    }
    a->picks->p.p = room->n_picked;
    return OK;
}
