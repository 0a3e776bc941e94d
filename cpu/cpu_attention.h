// SPDX-License-Identifier: Apache-2.0
/* Attention's items. Shared by the file that creates them (cpu_attention.c), the one that computes
 * their chunks on a matrix unit (cpu_attention_unit.c), and the helpers of both
 * (cpu_attention_rows.c).
 *
 * Thread: an item belongs to one thread; a job is read-only while its items run. */
#ifndef SLUICE_CPU_ATTENTION_H
#define SLUICE_CPU_ATTENTION_H

#include "cpu/cpu_index.h"
#include "engine/base/minmax.h"

#include <math.h>

/* The maximum number of items whose chunks are computed separately. */
enum { SPLIT_ITEMS = 256 };

struct attn_job {
    struct cpu_backend *cpu;
    const struct attention_args *a;
    const struct kv_pages *pages;
    const struct matrix_unit *unit;   // computes the layer's chunks; NULL: vector code does
    const struct word_kernels *words; // multiply the layer's V; NULL: it is multiplied in fp32
    const int32_t *picks; // [n_rows, n_sets]: how many keys a row has picked; 0: it attends to all
                          // that it sees; NULL: all rows do
    int32_t group;        // query heads per KV head
    int32_t tile_heads;   // query heads per item
    int32_t tile_rows;
    int32_t n_head_tiles;
    int32_t n_items;
    /* For chunks that are computed separately: chunk c of item number i of a sequence is its part
     * number c * items + i. The sequence's parts start at part_first. A part's results are at
     * cpu->attn_parts: [n_vectors, v_stride], then the maximum and the sum of each vector. */
    int64_t part_floats;
    int32_t n_parts;
    int32_t part_first[SPLIT_ITEMS + 1];
};

/* The queries that the thread will read next: in each of the rows [row, end), n_bytes from `first`
 * on. A few cache lines of them are prefetched at a time. In row `row`, the bytes before `at` have
 * been prefetched already. */
struct attn_ahead {
    int32_t row, end;
    int64_t first, n_bytes, at;
};

/* One item: rows [row, row + n_rows) of the pass, heads [head, head + n_heads). Vector i is that of
 * row i / n_heads and head i % n_heads. */
struct attn_tile {
    const struct pass_seq *seq;
    /* A row that has picked keys reads copies of them, in their order, as if they were a sequence
     * of its own. `copies` has the pages of one chunk, from page number first_copy on. */
    bool gathers;
    struct pass_seq own;
    char *copies;
    int32_t first_copy;
    int32_t row, n_rows, head, n_heads, kv_head;
    int32_t n_vectors;
    int32_t first_key, end_key; // range of keys that at least one row sees
    float *q;                   // [n_vectors, head_dim_k], scaled
    float *s;                   // [n_vectors, s_stride], for one chunk: scores, then probabilities
    float *chunk;               // [n_vectors, v_stride]
    float *total;               // [n_vectors, v_stride]
    float *k;                   // pages converted to fp32
    float *v;
    float max[ATTN_MAX_TILE], sum[ATTN_MAX_TILE]; // of each vector in `total`
    int64_t s_stride;
    float *path;          // [ATTN_CHUNK], for trees only: a row's scores by position
    float *scales, *logs; // [s_stride], with words only: the scales of V, and their logarithms
    /* The pages of the chunk that the thread most likely reads next. */
    struct page_ahead next;
    const char *next_pages[ATTN_CHUNK];
    bool is_near; // the current chunk's pages have been prefetched
    /* With a matrix unit (s is then [UNIT_ROWS, s_stride]): */
    char *operands;      // q as operands, in groups of UNIT_ROWS vectors
    char *probabilities; // operands for UNIT_ROWS vectors
    char *keys, *values; // packed
    uint16_t *image;     // a panel of codes converted to bf16
    struct attn_ahead ahead;
};

/* The matrix unit that computes a layer's attention; NULL: vector code does. The choice depends
 * only on the machine and the layer, so decode rows and prompts get the same bits. */
static inline const struct matrix_unit *attn_unit(const struct cpu_backend *cpu,
                                                  const struct kv_pages *p)
{
    const struct cpu_kernels *k = cpu->kernels;
    bool fits = p->dtype == DT_BF16 && cpu->limits.block_tokens % PANEL == 0;
    fits = fits && !(k->multiplies_codes && k->multiplies_codes(p));
    return fits ? k->unit : NULL;
}

/* The kernels that multiply a layer's V as integers, or NULL. */
static inline const struct word_kernels *attn_words(const struct cpu_backend *cpu,
                                                    const struct kv_pages *p)
{
    const struct word_kernels *words = cpu->kernels->words;
    return words && !p->geometry.v_in_k && words->fit(&p->v) ? words : NULL;
}

/* The first key that a row at `pos` sees, given the layer's window and chunk. Later rows never see
 * an earlier key. */
static inline int32_t attn_first_key(const struct attn_job *job, int32_t pos)
{
    int32_t first = job->a->window > 0 ? pos - job->a->window + 1 : 0;
    int32_t chunk = job->a->chunk > 0 ? pos / job->a->chunk * job->a->chunk : 0;
    return greater(first, chunk);
}

/* The end of the keys that row `row` of the tile's sequence sees, outside of trees. Later rows
 * never see fewer keys. */
static inline int32_t attn_end_key(const struct attn_job *job, const struct attn_tile *t,
                                   int32_t row)
{
    const int32_t own = t->seq->n_past + row - t->seq->first_row;
    if (!job->cpu->pass->bidirectional) {
        return own + 1;
    }
    const int32_t all = t->seq->n_past + t->seq->n_rows;
    return job->a->window > 0 && job->a->window < all - own ? own + job->a->window : all;
}

/* The page that contains `key`, from the start of the item's KV head on. */
static inline const char *attn_page(const struct attn_job *job, const struct attn_tile *t,
                                    int32_t key)
{
    if (t->gathers) {
        const int32_t page = key / job->cpu->limits.block_tokens - t->first_copy;
        return t->copies + (size_t)page * job->pages->head_bytes;
    }
    return cpu_kv_slot(job->cpu, job->pages, t->seq->lane, key).block +
           (size_t)t->kv_head * job->pages->head_bytes;
}

/* Stores up to `most` pages that contain the keys [first, end), from the KV head's part on; returns
 * how many.
 */
int32_t attn_pages(const struct attn_job *job, const struct attn_tile *t, int32_t first,
                   int32_t end, int32_t most, const char **pages);

static inline void attn_hide(float *s, int32_t from, int32_t to)
{
    for (int32_t i = from; i < to; i++) {
        s[i] = -INFINITY;
    }
}

/* Prefetches up to n cache lines of t->ahead. */
void attn_prefetch(const struct attn_job *job, struct attn_tile *t, int32_t n);
bool attn_tree_sees(const struct attn_job *job, int32_t row, int32_t node);
/* s has the scores of keys [begin, end). Sets those that the row does not see to -infinity. */
void attn_mask_row(const struct attn_job *job, const struct attn_tile *t, int32_t row, float *s,
                   int32_t begin, int32_t end);
/* Copies the scores that a row of a tree sees at positions [begin, begin + n) from
 * s[slot - base] to t->path: first those of the past, then those of its ancestors. Each is at the
 * place that it would have without a tree, so that sums are formed in the same order. */
void attn_tree_path(const struct attn_job *job, struct attn_tile *t, int32_t row, const float *s,
                    int32_t base, int32_t begin, int32_t n);

/* The inverse, for `end - base` slots: copies t->path back to the slots in s. All other slots
 * become `other`. */
void attn_leave_path(const struct attn_job *job, const struct attn_tile *t, int32_t row, float *s,
                     int32_t base, int32_t begin, int32_t n, float other);

/* ---- with words (cpu_attention_words.c) */

/* t->s has the scores of keys [first, end), at s[key - base]. Adds their values to t->chunk, and
 * stores the maximum and the sum of each vector. `begin`: where the chunk begins; it differs from
 * `base` if a tree's chunk lies beyond the past. */
void attn_words_chunk(const struct attn_job *job, struct attn_tile *t, int32_t base, int32_t first,
                      int32_t end, int32_t begin, float *max, float *sum);

/* ---- on a matrix unit (cpu_attention_unit.c) */

/* UNIT_SUMS limits the number of vectors of an item. Wide values allow fewer vectors, so that the
 * sums of an item stay in the cache. */
enum { UNIT_SUMS = 256 * 256 };

static inline int32_t attn_unit_tile(const struct kv_pages *p)
{
    int32_t tile = UNIT_TILE;
    while (tile > UNIT_ROWS && tile * p->v_stride > UNIT_SUMS) {
        tile /= 2;
    }
    return tile;
}

/* Bytes of scratch that one item needs. */
size_t attn_unit_scratch(const struct kv_pages *p);
void attn_unit_carve(const struct attn_job *job, struct attn_tile *t, char *scratch);
void attn_unit_queries(const struct attn_job *job, struct attn_tile *t);
/* Computes the chunk at `begin`: t->chunk, and the maximum and the sum of each vector. */
void attn_unit_chunk(const struct attn_job *job, struct attn_tile *t, int32_t begin, float *max,
                     float *sum);
/* Joins the chunk to t->total. */
void attn_unit_join(const struct attn_job *job, struct attn_tile *t, const float *max,
                    const float *sum);

#endif
