// SPDX-License-Identifier: Apache-2.0
/* Attention over pages. An item is a tile of query vectors (some rows of one sequence times some
 * heads of one KV head) against all keys they see. Keys are processed in chunks that start at
 * multiples of ATTN_CHUNK. Each chunk has a separate softmax and is then joined to the earlier
 * chunks, so a row's result depends only on the row and its keys. If there are too few items to
 * keep the threads busy, or many keys, any thread computes any chunk; the stored results are then
 * joined in the same order, which gives the same bits. */
#include "cpu/cpu_attention.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

/* RUN_PAGES: maximum number of pages that one kernel call reads, enough for a chunk with pages of
 * one token. RUN_TOKENS: tokens whose values are transposed out of K at a time. */
enum { RUN_PAGES = ATTN_CHUNK + MAX_TREE_NODES + 1, RUN_TOKENS = 64 };

/* The next chunk is prefetched only if it is not larger than this, because the L2 cache must also
 * hold most of the current chunk. */
enum { AHEAD_BYTES = 256 << 10 };

/* Chosen: if there are enough items for all threads, their chunks are computed separately if items
 * have more chunks than this on average. With fewer keys there is little to gain. */
enum { SHORT_CHUNKS = 2 };

/* ---- which keys a row sees ---------------------------------------------------------------- */

static void find_keys(const struct attn_job *job, struct attn_tile *t)
{
    t->first_key = INT32_MAX;
    for (int32_t r = t->row; r < t->row + t->n_rows; r++) {
        int32_t low = attn_first_key(job, job->cpu->pass->rows[r].pos);
        /* The slots of a tree's nodes start at n_past, whatever the positions of the nodes. */
        if (low >= t->seq->n_past && t->seq->tree) {
            low = t->seq->n_past;
        }
        t->first_key = lesser(low, t->first_key);
    }
    if (t->seq->tree) {
        t->end_key = t->seq->n_past + t->seq->n_rows;
    } else {
        t->end_key = attn_end_key(job, t, t->row + t->n_rows - 1);
    }
}

/* ---- one chunk ---------------------------------------------------------------------------- */

/* Computes the scores of the keys of the chunk at `begin` for all vectors, at s[key - begin]. A
 * page that straddles the border of the chunk writes outside the chunk, for which s has margins. */
static void chunk_scores(const struct attn_job *job, struct attn_tile *t, int32_t begin,
                         int32_t first, int32_t end)
{
    const char *pages[RUN_PAGES];
    int32_t tokens = job->cpu->limits.block_tokens, dim = job->a->head_dim_k;
    struct page_run run = {
        .plane = &job->pages->k, .pages = pages, .is_near = t->is_near, .ahead = &t->next};
    for (int32_t key = first / tokens * tokens; key < end; key += run.n_pages * tokens) {
        run.n_pages = attn_pages(job, t, key, end, RUN_PAGES, pages);
        job->cpu->kernels->scores(t->q, dim, t->n_vectors, &run, dim, t->s + (key - begin),
                                  t->s_stride);
    }
}

static void soften(const struct attn_job *job, float *s, int32_t n, float *max, float *sum)
{
    const struct cpu_kernels *k = job->cpu->kernels;
    *max = k->max(s, n);
    // The maximum ignores NaN. If a row sees only NaN, its sum must be NaN as well, since the join
    // skips a chunk whose sum is 0.
    *sum = k->exp_sum(s, n, *max > -INFINITY ? *max : 0.0f);
}

/* Takes the softmax of each vector over the chunk. Entries outside [first, end) become 0. */
static void chunk_softmax(const struct attn_job *job, struct attn_tile *t, int32_t begin,
                          int32_t first, int32_t end, float *max, float *sum)
{
    int32_t n = (int32_t)round_up(end - begin, PANEL);
    for (int32_t i = 0; i < t->n_vectors; i++) {
        float *s = t->s + i * t->s_stride;
        if (job->a->softcap != 0.0f) {
            job->cpu->kernels->softcap(s + (first - begin), job->a->softcap, end - first);
        }
        attn_mask_row(job, t, t->row + i / t->n_heads, s + (first - begin), first, end);
        attn_hide(s, 0, first - begin);
        attn_hide(s, end - begin, n);
        soften(job, s, n, &max[i], &sum[i]);
    }
}

/* The same for a tree. Slots [first, end), at s[slot - base], contain the positions of the past
 * from `begin` on, and all nodes. */
static void tree_softmax(const struct attn_job *job, struct attn_tile *t, int32_t base,
                         int32_t first, int32_t end, int32_t begin, float *max, float *sum)
{
    int32_t n = (int32_t)round_up(t->seq->n_past + t->seq->n_rows - begin, PANEL);
    n = lesser(n, ATTN_CHUNK);
    for (int32_t i = 0; i < t->n_vectors; i++) {
        float *s = t->s + i * t->s_stride;
        int32_t row = t->row + i / t->n_heads;
        if (job->a->softcap != 0.0f) {
            job->cpu->kernels->softcap(s + (first - base), job->a->softcap, end - first);
        }
        attn_tree_path(job, t, row, s, base, begin, n);
        soften(job, t->path, n, &max[i], &sum[i]);
        attn_leave_path(job, t, row, s, base, begin, n, 0.0f);
    }
}

/* For a page whose V lies inside K: transposes its values into rows. If a key's scale is NaN, the
 * rows that see it have a weight of NaN, and the others must not multiply NaN by 0. */
static void turn_values(const struct attn_job *job, struct attn_tile *t, const char *page,
                        float *to)
{
    const struct kv_pages *p = job->pages;
    int32_t tokens = job->cpu->limits.block_tokens, dim = p->geometry.head_dim_v;
    job->cpu->kernels->unpack(&p->k, page, 0, tokens, dim, false, t->k);
    for (int32_t i = 0; i < tokens; i++) {
        for (int32_t d = 0; d < p->v_stride; d++) {
            const float x = d < dim ? t->k[(int64_t)d * tokens + i] : 0.0f;
            to[(int64_t)i * p->v_stride + d] = x == x ? x : 0.0f;
        }
    }
}

/* chunk += probabilities times the values of keys [first, end). */
static void chunk_values(const struct attn_job *job, struct attn_tile *t, int32_t begin,
                         int32_t first, int32_t end)
{
    const char *pages[RUN_PAGES];
    const struct kv_pages *p = job->pages;
    const struct cpu_kernels *kernels = job->cpu->kernels;
    int32_t tokens = job->cpu->limits.block_tokens;
    bool turned = p->geometry.v_in_k;
    int32_t room = turned ? RUN_TOKENS / tokens : RUN_PAGES; // number of pages that fit into t->v
    int32_t most = lesser(room, RUN_PAGES);
    most = greater(1, most);
    const struct kv_plane rows = kv_plane_make(KV_PLAIN, DT_F32, false, tokens, p->v_stride, 0, 0);
    struct page_run run = {
        .plane = turned ? &rows : &p->v, .pages = pages, .is_near = t->is_near, .ahead = &t->next};
    for (int32_t key = first / tokens * tokens; key < end; key += run.n_pages * tokens) {
        run.n_pages = 0;
        while (run.n_pages < most && key + run.n_pages * tokens < end) {
            const char *page = attn_page(job, t, key + run.n_pages * tokens);
            float *as_rows = t->v + (int64_t)run.n_pages * tokens * p->v_stride;
            if (turned) {
                turn_values(job, t, page, as_rows);
            }
            pages[run.n_pages++] = turned ? (const char *)as_rows : page;
        }
        run.first = first > key ? first - key : 0;
        run.end = lesser(end - key, run.n_pages * tokens);
        if (run.plane->format != KV_PLAIN) {
            kernels->fold(t->s + (key - begin), t->s_stride, t->n_vectors, &run);
        }
        kernels->weigh(t->s + (key - begin), t->s_stride, t->n_vectors, &run, t->chunk);
    }
}

/* Joins the chunk to the earlier ones. Each of the two is a sum relative to its own maximum. */
static void join(const struct attn_job *job, struct attn_tile *t, const float *max,
                 const float *sum)
{
    int32_t stride = job->pages->v_stride;
    if (job->unit) {
        attn_unit_join(job, t, max, sum);
        return;
    }
    for (int32_t i = 0; i < t->n_vectors; i++) {
        float *total = t->total + (int64_t)i * stride, *chunk = t->chunk + (int64_t)i * stride;
        if (sum[i] == 0.0f) {
            continue;
        }
        if (t->sum[i] == 0.0f) {
            memcpy(total, chunk, (size_t)stride * sizeof *total);
            t->max[i] = max[i];
            t->sum[i] = sum[i];
            continue;
        }
        float m = greater(max[i], t->max[i]);
        float old = expf(t->max[i] - m), new = expf(max[i] - m);
        job->cpu->kernels->scale(total, old, stride);
        job->cpu->kernels->add_scaled(total, chunk, new, stride);
        t->max[i] = m;
        t->sum[i] = fmaf(t->sum[i], old, sum[i] * new);
    }
}

/* ---- items -------------------------------------------------------------------------------- */

/* Divides a thread's scratch memory among the arrays of a tile. */
static void carve(const struct attn_job *job, struct attn_tile *t, char *scratch)
{
    t->copies = scratch + cpu_attention_scratch(job->cpu, job->pages, false);
    if (job->unit) {
        attn_unit_carve(job, t, scratch);
        return;
    }
    const struct kv_pages *p = job->pages;
    int64_t tokens = round_up(job->cpu->limits.block_tokens, RUN_TOKENS), stride = p->v_stride;
    float *at = (float *)scratch;
    /* Margins on both sides of a chunk's scores, for the parts of its first and last page that are
     * outside the chunk. */
    int64_t margin = round_up(job->cpu->limits.block_tokens, PANEL);
    t->s_stride = ATTN_CHUNK + MAX_TREE_NODES + 2 * margin;
    t->s = at + margin;
    at += t->s_stride * ATTN_TILE;
    t->scales = at + margin;
    t->logs = t->scales + t->s_stride;
    at += 2 * t->s_stride;
    t->path = at;
    at += ATTN_CHUNK;
    t->q = at;
    at += (int64_t)ATTN_TILE * p->geometry.head_dim_k;
    t->chunk = at;
    at += ATTN_TILE * stride;
    t->total = at;
    at += ATTN_TILE * stride;
    t->v = at;
    at += tokens * stride;
    t->k = at;
}

static void load_queries(const struct attn_job *job, struct attn_tile *t)
{
    int32_t dim = job->a->head_dim_k;
    if (job->unit) {
        attn_unit_queries(job, t);
        return;
    }
    for (int32_t i = 0; i < t->n_vectors; i++) {
        float *q = t->q + (int64_t)i * dim;
        int32_t head = t->head + i % t->n_heads;
        memcpy(q, tensor_row(&job->a->q, t->row + i / t->n_heads) + (int64_t)head * dim,
               (size_t)dim * sizeof *q);
        job->cpu->kernels->scale(q, job->a->scale, dim);
    }
}

static void store_outputs(const struct attn_job *job, struct attn_tile *t)
{
    const struct attention_args *a = job->a;
    for (int32_t i = 0; i < t->n_vectors; i++) {
        int32_t head = t->head + i % t->n_heads, dim = a->head_dim_v;
        float *out = tensor_row(&a->out, t->row + i / t->n_heads) + (int64_t)head * dim;
        float factor = 1.0f / t->sum[i];
        if (a->sinks) { // the sink adds one term to the denominator
            float sink = a->sinks->vector[head], m = greater(sink, t->max[i]);
            float old = expf(t->max[i] - m);
            factor = old / fmaf(t->sum[i], old, expf(sink - m));
        }
        const float *total = t->total + (int64_t)i * job->pages->v_stride;
        if (job->unit) {
            job->unit->put(total, factor, dim, out);
            continue;
        }
        memcpy(out, total, (size_t)dim * sizeof *out);
        job->cpu->kernels->scale(out, factor, dim);
    }
}

/* One chunk of a tree: positions [begin, begin + ATTN_CHUNK) of the past and, once the past ends,
 * all nodes. The slots of nodes differ from their positions. */
static void tree_chunk(const struct attn_job *job, struct attn_tile *t, int32_t begin, float *max,
                       float *sum)
{
    int32_t n_past = t->seq->n_past, base = lesser(begin, n_past / PANEL * PANEL);
    int32_t first = greater(lesser(begin, n_past), t->first_key);
    int32_t end = begin + ATTN_CHUNK <= n_past ? begin + ATTN_CHUNK : n_past + t->seq->n_rows;
    chunk_scores(job, t, base, first, end);
    if (job->words) {
        attn_words_chunk(job, t, base, first, end, begin, max, sum);
        return;
    }
    tree_softmax(job, t, base, first, end, begin, max, sum);
    chunk_values(job, t, base, first, end);
}

static void plain_chunk(const struct attn_job *job, struct attn_tile *t, int32_t begin, float *max,
                        float *sum)
{
    int32_t first = greater(begin, t->first_key);
    int32_t end = lesser(begin + ATTN_CHUNK, t->end_key);
    chunk_scores(job, t, begin, first, end);
    if (job->words) {
        attn_words_chunk(job, t, begin, first, end, begin, max, sum);
        return;
    }
    chunk_softmax(job, t, begin, first, end, max, sum);
    chunk_values(job, t, begin, first, end);
}

static void begin_total(const struct attn_job *job, struct attn_tile *t)
{
    memset(t->total, 0, (size_t)t->n_vectors * (size_t)job->pages->v_stride * sizeof(float));
    for (int32_t i = 0; i < t->n_vectors; i++) {
        t->max[i] = -INFINITY;
        t->sum[i] = 0.0f;
    }
}

static int32_t n_chunks(const struct attn_tile *t)
{
    return (t->end_key - 1) / ATTN_CHUNK - t->first_key / ATTN_CHUNK + 1;
}

/* Where chunk number c of the tile's keys begins. */
static int32_t chunk_begin(const struct attn_tile *t, int32_t c)
{
    return (t->first_key / ATTN_CHUNK + c) * ATTN_CHUNK;
}

/* Makes the kernels prefetch K and V of chunk number c of tile `of`, if it has so many, while they
 * compute the chunk of t. Both are read together, because they are adjacent in memory. */
static void announce_chunk(const struct attn_job *job, struct attn_tile *t,
                           const struct attn_tile *of, int32_t c)
{
    int32_t tokens = job->cpu->limits.block_tokens, begin = chunk_begin(of, c);
    int32_t first = greater(begin, of->first_key), end = lesser(begin + ATTN_CHUNK, of->end_key);
    size_t n_bytes = job->pages->head_bytes;
    t->next = (struct page_ahead){.pages = t->next_pages, .n_bytes = n_bytes};
    if (job->unit || of->gathers || n_bytes * ATTN_CHUNK / (size_t)tokens > AHEAD_BYTES) {
        return;
    }
    t->next.n_pages = attn_pages(job, of, first, end, ATTN_CHUNK, t->next_pages);
}

/* Computes chunk number c of the tile's keys; the result goes to t->chunk. */
static void attend_chunk(const struct attn_job *job, struct attn_tile *t, int32_t c, float *max,
                         float *sum)
{
    int32_t begin = chunk_begin(t, c);
    if (t->gathers) {
        index_gather(job->cpu, job->pages, t->row, t->kv_head, begin,
                     lesser(begin + ATTN_CHUNK, t->end_key), t->copies);
        t->first_copy = begin / job->cpu->limits.block_tokens;
        t->is_near = true;
    }
    if (job->unit) {
        attn_unit_chunk(job, t, begin, max, sum);
        return;
    }
    memset(t->chunk, 0, (size_t)t->n_vectors * (size_t)job->pages->v_stride * sizeof(float));
    if (t->seq->tree) {
        tree_chunk(job, t, begin, max, sum);
    } else {
        plain_chunk(job, t, begin, max, sum);
    }
}

/* The last sequence whose `first` is not after x, by binary search. */
static int32_t find_seq(const struct attn_job *job, const int32_t *first, int32_t x)
{
    int32_t low = 0, high = job->cpu->pass->n_seqs - 1;
    while (low < high) {
        int32_t mid = low + (high - low + 1) / 2;
        if (first[mid] <= x) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return low;
}

static int32_t n_row_tiles_of(const struct attn_job *job, const struct pass_seq *seq)
{
    return (seq->n_rows + job->tile_rows - 1) / job->tile_rows;
}

/* The number of keys that a row has picked for a KV head; 0: it attends to all. */
static int32_t picked_by(const struct attn_job *job, int32_t row, int32_t kv_head)
{
    const int32_t n_sets = job->picks ? job->a->picks->n_sets : 0;
    return n_sets > 0 ? job->picks[row * n_sets + kv_head % n_sets] : 0;
}

/* Finds the sequence, the rows and the heads of an item of the pass. */
static void make_tile(const struct attn_job *job, int32_t item, struct attn_tile *t)
{
    const struct cpu_backend *cpu = job->cpu;
    int32_t number = find_seq(job, cpu->seq_items, item);
    const struct pass_seq *seq = &cpu->pass->seqs[number];
    /* Items are ordered by head, and for each head from the last rows to the first: the last rows
     * see the most keys, and the longest items should not be computed last. */
    int32_t local = item - cpu->seq_items[number];
    int32_t n_row_tiles = n_row_tiles_of(job, seq);
    int32_t row = (n_row_tiles - 1 - local % n_row_tiles) * job->tile_rows,
            rest = local / n_row_tiles;
    int32_t head = rest % job->n_head_tiles * job->tile_heads;
    t->seq = seq;
    t->row = seq->first_row + row;
    t->n_rows = lesser(seq->n_rows - row, job->tile_rows);
    t->kv_head = rest / job->n_head_tiles;
    t->n_heads = lesser(job->group - head, job->tile_heads);
    t->head = t->kv_head * job->group + head;
    t->n_vectors = t->n_rows * t->n_heads;
    t->next = (struct page_ahead){0};
    const int32_t n_picked = picked_by(job, t->row, t->kv_head);
    t->gathers = n_picked > 0;
    if (t->gathers) { // to the row, the keys that it has picked are all that there are
        t->own = (struct pass_seq){
            .lane = seq->lane, .first_row = t->row, .n_rows = 1, .n_past = n_picked - 1};
        t->seq = &t->own;
    }
    find_keys(job, t);
}

/* Prefetches the queries of the item that most likely comes next on the same thread. */
static void look_ahead(const struct attn_job *job, int32_t item, struct attn_tile *t)
{
    struct attn_tile next;
    t->ahead = (struct attn_ahead){0};
    if (job->unit && item + 1 < job->n_items) {
        int32_t dim = job->a->head_dim_k;
        make_tile(job, item + 1, &next);
        t->ahead = (struct attn_ahead){.row = next.row,
                                       .end = next.row + next.n_rows,
                                       .first = (int64_t)next.head * dim * 4,
                                       .n_bytes = (int64_t)next.n_heads * dim * 4};
    }
}

static void attn_item(void *arg, int32_t item, int32_t thread)
{
    const struct attn_job *job = arg;
    struct attn_tile t;
    float max[ATTN_MAX_TILE], sum[ATTN_MAX_TILE];
    make_tile(job, item, &t);
    carve(job, &t, job->cpu->scratch[thread].p);
    begin_total(job, &t);
    load_queries(job, &t);
    look_ahead(job, item, &t);
    for (int32_t c = 0; c < n_chunks(&t); c++) {
        t.is_near = c > 0;
        announce_chunk(job, &t, &t, c + 1);
        attend_chunk(job, &t, c, max, sum);
        join(job, &t, max, sum);
    }
    store_outputs(job, &t);
}

/* ---- separate chunks ----------------------------------------------------------------------

 * A sequence's parts are ordered by chunk, then by item. The heads of a page are adjacent in
 * memory, so a page is read as a whole, which is faster than one head of each page at a time. */

/* Where the results of chunk number c of a tile are. */
static float *part_results(const struct attn_job *job, int32_t item, int32_t c)
{
    const int32_t *items = job->cpu->seq_items, seq = find_seq(job, items, item);
    int32_t n_items = items[seq + 1] - items[seq];
    int32_t part = job->part_first[seq] + c * n_items + item - items[seq];
    return job->cpu->attn_parts + part * job->part_floats;
}

/* Finds the item and the chunk of a part; -1 if the item has fewer chunks than others of its
 * sequence. */
static int32_t find_part(const struct attn_job *job, int32_t part, struct attn_tile *t,
                         int32_t *item)
{
    const int32_t *items = job->cpu->seq_items, seq = find_seq(job, job->part_first, part);
    int32_t n_items = items[seq + 1] - items[seq], local = part - job->part_first[seq];
    *item = items[seq] + local % n_items;
    make_tile(job, *item, t);
    return local / n_items < n_chunks(t) ? local / n_items : -1;
}

/* The thread has most likely computed the part before this one. */
static void announce_part(const struct attn_job *job, struct attn_tile *t, int32_t part)
{
    struct attn_tile next;
    int32_t item, chunk = part < job->n_parts ? find_part(job, part, &next, &item) : -1;
    if (chunk >= 0) {
        announce_chunk(job, t, &next, chunk);
    }
}

static void part_item(void *arg, int32_t part, int32_t thread)
{
    const struct attn_job *job = arg;
    struct attn_tile t;
    int32_t item, chunk = find_part(job, part, &t, &item);
    if (chunk < 0) {
        return;
    }
    carve(job, &t, job->cpu->scratch[thread].p);
    load_queries(job, &t);
    t.ahead = (struct attn_ahead){0};
    t.is_near = part > 0;
    announce_part(job, &t, part + 1);
    t.chunk = part_results(job, item, chunk);
    float *max = t.chunk + (int64_t)t.n_vectors * job->pages->v_stride;
    attend_chunk(job, &t, chunk, max, max + t.n_vectors);
}

static void join_item(void *arg, int32_t item, int32_t thread)
{
    const struct attn_job *job = arg;
    struct attn_tile t;
    make_tile(job, item, &t);
    carve(job, &t, job->cpu->scratch[thread].p);
    begin_total(job, &t);
    for (int32_t c = 0; c < n_chunks(&t); c++) {
        t.chunk = part_results(job, item, c);
        const float *max = t.chunk + (int64_t)t.n_vectors * job->pages->v_stride;
        join(job, &t, max, max + t.n_vectors);
    }
    store_outputs(job, &t);
}

/* Numbers the parts. All heads of a tile of rows have the same number of chunks, unless each KV
 * head has picks of its own. */
static void number_parts(struct attn_job *job)
{
    const int32_t *items = job->cpu->seq_items;
    int32_t most = 0;
    job->part_first[0] = 0;
    for (int32_t i = 0; i < job->cpu->pass->n_seqs; i++) {
        int32_t chunks = 0, n_row_tiles = n_row_tiles_of(job, &job->cpu->pass->seqs[i]);
        const int32_t n_items = job->picks ? items[i + 1] - items[i] : n_row_tiles;
        for (int32_t k = 0; k < n_items; k++) {
            struct attn_tile t;
            make_tile(job, items[i] + k, &t);
            chunks = greater(n_chunks(&t), chunks);
            most = greater(t.n_vectors, most);
        }
        job->part_first[i + 1] = job->part_first[i] + chunks * (items[i + 1] - items[i]);
    }
    job->n_parts = job->part_first[job->cpu->pass->n_seqs];
    job->part_floats = round_up(most * ((int64_t)job->pages->v_stride + 2), PANEL);
}

/* True if it is worth computing the chunks separately: if there are few items, or, with vector
 * code, which waits for memory, if there are many keys. */
static bool split(struct attn_job *job)
{
    bool few = job->n_items < 2 * pool_n_threads(job->cpu->pool);
    if (job->n_items > SPLIT_ITEMS || (job->unit && !few)) {
        return false;
    }
    number_parts(job);
    return job->n_parts > job->n_items * (few ? 1 : SHORT_CHUNKS) &&
           job->n_parts * job->part_floats * (int64_t)sizeof(float) <= ATTN_PARTS_BYTES;
}

/* Divides the work into items of up to `tile` vectors. */
static void deal(struct attn_job *job, int32_t tile)
{
    struct cpu_backend *cpu = job->cpu;
    job->tile_heads = lesser(job->group, tile);
    job->tile_rows = job->picks ? 1 : tile / job->tile_heads; // rows pick different keys
    job->n_head_tiles = (job->group + job->tile_heads - 1) / job->tile_heads;
    job->n_items = 0;
    for (int32_t i = 0; i < cpu->pass->n_seqs; i++) {
        cpu->seq_items[i] = job->n_items;
        job->n_items +=
            n_row_tiles_of(job, &cpu->pass->seqs[i]) * job->n_head_tiles * job->a->n_kv_heads;
    }
    cpu->seq_items[cpu->pass->n_seqs] = job->n_items;
}

/* Copies of picked keys follow everything else. */
size_t cpu_attention_scratch(const struct cpu_backend *cpu, const struct kv_pages *p, bool sparse)
{
    const size_t copies = sparse ? index_gather_bytes(cpu, p) : 0;
    if (attn_unit(cpu, p)) {
        return (size_t)round_up((int64_t)attn_unit_scratch(p), 64) + copies;
    }
    size_t k = (size_t)p->geometry.head_dim_k, v = (size_t)p->v_stride;
    size_t tokens = (size_t)round_up(cpu->limits.block_tokens, 64);
    size_t slots = ATTN_CHUNK + MAX_TREE_NODES + 2 * tokens;
    size_t floats =
        ATTN_TILE * (k + 2 * v) + (ATTN_TILE + 2) * slots + ATTN_CHUNK + tokens * (k + v) + 1024;
    return (size_t)round_up((int64_t)(floats * sizeof(float)), 64) + copies;
}

enum status cpu_attention(struct backend *be, const struct attention_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(cpu->pass && a->n_rows <= cpu->pass->n_rows);
    ASSERT(a->n_kv_heads > 0 && a->n_heads % a->n_kv_heads == 0);
    struct attn_job job = {.cpu = cpu, .a = a, .pages = cpu_kv_layer(cpu, a->layer)};
    ASSERT(job.pages->geometry.head_dim_k == a->head_dim_k);
    ASSERT(job.pages->geometry.head_dim_v == a->head_dim_v);
    ASSERT(job.pages->geometry.n_kv_heads == a->n_kv_heads);
    job.picks = a->picks ? a->picks->p.p : NULL;
    ASSERT(!job.picks || (a->window == 0 && a->chunk == 0));
    ASSERT(!job.picks || a->n_kv_heads == a->picks->n_sets);
    job.group = a->n_heads / a->n_kv_heads;
    job.unit = attn_unit(cpu, job.pages);
    job.words = attn_words(cpu, job.pages);
    int32_t tile = job.unit ? attn_unit_tile(job.pages) : ATTN_TILE;
    do {
        deal(&job, tile);
        tile /= 2;
    } while (job.unit && tile >= UNIT_ROWS && job.n_items < 4 * pool_n_threads(cpu->pool));
    if (split(&job)) {
        pool_run(cpu->pool, job.n_parts, part_item, &job);
        pool_run(cpu->pool, job.n_items, join_item, &job);
    } else {
        pool_run(cpu->pool, job.n_items, attn_item, &job);
    }
    return OK;
}
