// SPDX-License-Identifier: Apache-2.0
/* y = x W^T for many rows with bf16 weights, by blocks (struct block_unit), with the same bits as
 * cpu_gemm_tile: one chain of sums over K per segment, and the same tree over segments.
 *
 * Names of the loops, from the outside in:
 *
 *   item    a panel of row tiles times a few weight units: the work of one thread at a time
 *   part    PART_K inputs of K; an item finishes one part before it starts the next
 *   unit    one tile of the weight (with a gated activation, a gate tile and its up tile)
 *   block   up to BLOCK_TILES row tiles times BLOCK_N outputs: one call of the kernel, whose sums
 *           stay in registers for the whole part
 *
 *                     one part of K
 *               +--------------------+
 *     row tiles |  x  (packed rows)  |          units of W (columns: outputs)
 *     of a      |....................|        +-------+-------+-------+
 *     panel     |  block's rows      |   x    |       | block |       |   =   sums [rows][outputs]
 *               |....................|        |       | cols  |       |
 *               +--------------------+        +-------+-------+-------+
 *
 * For each part one operand stays in the L2 cache while the other streams past it:
 *   rows stay   (unit_part) if there are at most STAY_TILES row tiles, so no weight is read twice;
 *   units stay  (rows_part) otherwise: all threads read the same rows, which fit the L3 cache.
 * Rows are packed in the order in which they are read. What follows a block's sums (bias,
 * activation, store) runs as side work of the next block's products. */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"

#include <string.h>

/* PART_K: number of inputs in a part. STAY_TILES: maximum number of row tiles that stay; they take
 * 768 KiB of L2, beside 256 KiB for a weight tile and a part of the next. ITEM_TILES: maximum
 * number of weight tiles in an item; 1 MiB if they stay. PASS_TILES: maximum number of row tiles of
 * an item that stream past; their sums wait for the next part. */
enum { PART_K = 2048, STAY_TILES = 12, ITEM_TILES = 4, PASS_TILES = 64 };

/* Number of items per thread if there are enough rows, so that all threads end at about the same
 * time. */
enum { THREAD_ITEMS = 8 };

/* Number of rows of a block that one call of put_rows finishes. */
enum { ROWS_ASIDE = 4 };

/* With fewer rows, cpu_gemm_tile was faster on 16 threads. */
enum { LEAST_ROWS = 128 };

struct blocks_job {
    const struct cpu_backend *cpu;
    const struct linear_args *a;
    const struct norm_args *norm;      // computes the operand; NULL: a->x is the operand
    const struct activation_args *act; // applied to y before it is stored; NULL: none
    char *rows;                        // packed rows; see rows_at
    // The product that reads this product's result as its packed rows; NULL: none.
    const struct blocks_job *next;
    bool gated;
    int64_t n_out; // number of outputs that are stored
    int64_t k;     // number of inputs in all segments, with padding
    int32_t first_row, n_rows, row_tiles;
    bool rows_pass;
    int32_t n_panels, panel_tiles; // number of panels; row tiles per panel
    // Number of weight tiles; with a gated activation, number of pairs of them.
    int32_t units, units_per_item;
};

/* A block whose sums are complete but whose results have not been stored yet. */
struct results {
    const struct blocks_job *job;
    const float *c, *up; // up: the sums of the matching up tile, or NULL
    int32_t row, n_rows, n_tiles;
    int64_t out;
};

struct blocks_item {
    const struct blocks_job *job;
    int32_t first_unit, n_units;
    int32_t first_tile, n_tiles; // range of row tiles
    int64_t level_floats;
    float *c;               // sums: [levels][slots][BLOCK_FLOATS]
    struct results pending; // n_rows 0: nothing is pending
};

/* The number of buffers for the sums of blocks: row tiles times weight tiles. If K has a single
 * part, sums live only until they are stored, so four buffers suffice: for a block and its up
 * block, and for the pending block and its up block. */
static int64_t slots(int64_t k, int32_t row_tiles, int32_t tiles, int32_t pairs)
{
    return k <= PART_K ? 4 : (row_tiles / BLOCK_TILES + 2) * (int64_t)tiles * pairs;
}

bool cpu_in_blocks(const struct cpu_backend *cpu, const struct weight *w, int32_t n_rows)
{
    return cpu->kernels->blocks && w->dtype == DT_BF16 && !w->coded && !w->shared_ranges &&
           w->panels >= 2 && n_rows >= LEAST_ROWS;
}

size_t cpu_blocks_scratch(const struct cpu_backend *cpu, const struct weight *w)
{
    int64_t k = w->segment_padded * w->k_segments;
    size_t one = (size_t)slots(k, PASS_TILES, ITEM_TILES, MAX_PANELS / 2) * BLOCK_FLOATS;
    size_t sums = (size_t)cpu_tree_levels(w) * one * sizeof(float);
    size_t row = (size_t)cpu_row_bytes(cpu, w) + (size_t)w->n_in * sizeof(float);
    if (!cpu_in_blocks(cpu, w, LEAST_ROWS)) {
        return 0;
    }
    return greater(sums, row);
}

/* ---- rows --------------------------------------------------------------------------------- */

/* The number of inputs in the part of K that starts at `base`. */
static int64_t part_inputs(const struct blocks_job *job, int64_t base)
{
    return lesser(job->k - base, PART_K);
}

/* The address of the inputs from k on, in that part, of row tile number i. */
static char *rows_at(const struct blocks_job *job, int32_t i, int64_t base, int64_t k)
{
    int64_t n = part_inputs(job, base);
    return job->rows + (base * job->row_tiles + i * n + k - base) * ROW_TILE * 2;
}

/* Packs row tile number `item`: [part][tile][k / 32][ROW_TILE][32]. Missing rows of the last tile
 * keep their old contents; nothing reads their sums. */
static void pack_tile_rows(void *arg, int32_t item, int32_t thread)
{
    const struct blocks_job *job = arg;
    int32_t first = item * ROW_TILE, n_rows = lesser(ROW_TILE, job->n_rows - first);
    char *packed = job->cpu->scratch[thread].p;
    float *normed = (float *)(packed + cpu_row_bytes(job->cpu, job->a->weight));
    for (int32_t i = 0; i < n_rows; i++) {
        const char *from = packed;
        const float *x = tensor_row(&job->a->x, job->first_row + first + i);
        if (job->norm) {
            cpu_norm_row(job->cpu->kernels, job->norm, job->first_row + first + i, normed);
            x = normed;
        }
        cpu_pack_row(job->cpu, job->a->weight, 0, x, NULL, packed);
        for (int64_t base = 0; base < job->k; base += PART_K) {
            char *to = rows_at(job, item, base, base) + i * K_UNIT * 2;
            for (int64_t k = 0; k < part_inputs(job, base); k += K_UNIT, from += K_UNIT * 2) {
                memcpy(to + k * ROW_TILE * 2, from, K_UNIT * 2);
            }
        }
    }
}

/* ---- results ------------------------------------------------------------------------------ */

/* Stores PANEL sums of a row, but at most n, to y, with bias or accumulation. */
static void put_some(const struct blocks_job *job, const float *c, int64_t out, float *y, int64_t n)
{
    const struct linear_args *a = job->a;
    const float *bias = a->partial || !a->weight->bias ? NULL : a->weight->bias + out;
    for (int64_t j = 0; j < PANEL && j < n; j++) {
        float v = bias ? c[j] + bias[j] : c[j];
        y[j] = a->accumulate ? y[j] + v : v;
    }
}

/* Stores the results of row i of a block: PANEL values at a, and PANEL values at b. */
static void put_row(const struct results *r, int32_t i, const float *a, const float *b)
{
    const struct blocks_job *job = r->job;
    const struct block_unit *unit = job->cpu->kernels->blocks;
    if (job->next) { // y is the packed input of the next product
        int32_t row = r->row - job->first_row + i;
        char *to = rows_at(job->next, row / ROW_TILE, r->out / PART_K * PART_K, r->out);
        unit->put_rounded(a, b, to + row % ROW_TILE * K_UNIT * 2);
        return;
    }
    float *y = tensor_row(job->act ? &job->act->out : &job->a->y, r->row + i) + r->out;
    int64_t left = job->n_out - r->out;
    if (left >= BLOCK_N && !job->a->weight->bias && !job->a->accumulate) {
        unit->put(a, b, y);
        return;
    }
    put_some(job, a, r->out, y, left);
    put_some(job, b, r->out + PANEL, y + PANEL, left - PANEL);
}

/* Finishes group number i of ROWS_ASIDE rows of a block. */
static void put_rows(void *arg, int32_t i)
{
    const struct results *r = arg;
    const struct blocks_job *job = r->job;
    int32_t first = i * ROWS_ASIDE, n = lesser(ROWS_ASIDE, r->n_rows - first);
    float made[2][ROWS_ASIDE * PANEL];
    const float *c[2];
    for (int32_t p = 0; p < 2; p++) {
        int64_t at = (int64_t)(p * r->n_tiles * ROW_TILE + first) * PANEL;
        c[p] = r->c + at;
        if (job->act) {
            job->cpu->kernels->activate(job->act->kind, job->act->shape, c[p],
                                        r->up ? r->up + at : NULL, made[p], n * PANEL);
            c[p] = made[p];
        }
    }
    for (int32_t j = 0; j < n; j++) {
        put_row(r, first + j, c[0] + j * PANEL, c[1] + j * PANEL);
    }
}

/* The number of calls of put_rows that cover all rows. */
static int32_t n_puts(const struct results *r)
{
    return (r->n_rows + ROWS_ASIDE - 1) / ROWS_ASIDE;
}

static void finish(struct results *r)
{
    for (int32_t i = 0; i < n_puts(r); i++) {
        put_rows(r, i);
    }
    r->n_rows = 0;
}

/* ---- sums --------------------------------------------------------------------------------- */

/* The weight tile of unit u; with `up`, the up tile that belongs to its gate tile. */
static const char *weights_at(const struct blocks_job *job, int32_t u, bool up, int64_t k)
{
    const struct weight *w = job->a->weight;
    int64_t tile = up ? u + job->units : u;
    return w->packed + (size_t)tile * w->tile_bytes + (size_t)(k * w->panels * PANEL) * 2;
}

static int32_t ones(int32_t n)
{
    int32_t count = 0;
    for (; n > 0; n &= n - 1) {
        count++;
    }
    return count;
}

/* One block for one part of K: its operands and sums, and what to prefetch during the
 * computation. */
struct block {
    const char *w;
    int32_t tile, n_tiles; // range of row tiles
    float *c;
    const char *next;
    int64_t next_bytes;
};

/* Adds the part of K at `base` to a block. The inputs of a segment form one chain of sums. When
 * segment s (counted from 1) is complete, ctz(s) levels of the tree of sums are merged. */
static void part_sums(struct blocks_item *item, const struct block *b, int64_t base)
{
    const struct blocks_job *job = item->job;
    const struct weight *w = job->a->weight;
    int64_t end = base + part_inputs(job, base), n;
    for (int64_t k = base; k < end; k += n) {
        int32_t s = (int32_t)(k / w->segment_padded), level = ones(s);
        int64_t stop = (s + 1) * w->segment_padded;
        stop = lesser(stop, end);
        n = stop - k;
        struct results *r = &item->pending;
        struct block_product p = {
            .a = rows_at(job, b->tile, base, k),
            .w = b->w + (size_t)((k - base) * w->panels * PANEL) * 2,
            .a_tile = (end - base) * ROW_TILE * 2,
            .w_step = w->panels * PANEL_BYTES,
            .k = n,
            .n_tiles = b->n_tiles,
            .c = b->c + level * item->level_floats,
            .first = k % w->segment_padded == 0,
            .next = b->next + (k - base) * b->next_bytes / (end - base),
            .next_bytes = n * b->next_bytes / (end - base),
            .aside = put_rows,
            .arg = r,
            .n_aside = n_puts(r),
        };
        job->cpu->kernels->blocks->product(&p);
        r->n_rows = 0;
        for (int32_t bits = s + 1; stop % w->segment_padded == 0 && bits % 2 == 0; bits /= 2) {
            float *c = b->c + (level - 1) * item->level_floats;
            job->cpu->kernels->add_scaled(c, c + item->level_floats, 1.0f,
                                          b->n_tiles * ROW_TILE * BLOCK_N);
            level--;
        }
    }
}

/* The number of row tiles of the next block: three, but four tiles are divided into two and two. */
static int32_t next_tiles(int32_t left)
{
    if (left == 2 || left == 4) {
        return 2;
    }
    return lesser(left, BLOCK_TILES);
}

/* Memory to prefetch while blocks are computed; each block prefetches an equal share. */
struct ahead {
    const char *p;
    int64_t left, share;
};

static struct ahead ahead_of(const char *p, int64_t n_bytes, int32_t n_blocks)
{
    return (struct ahead){p, n_bytes, n_bytes / n_blocks + 64};
}

static void ask(struct ahead *a, struct block *b)
{
    b->next = a->p;
    b->next_bytes = lesser(a->left, a->share);
    a->p += b->next_bytes;
    a->left -= b->next_bytes;
}

/* The position of a block: row tiles [tile, tile + n_tiles), one pair of the unit's panels, and the
 * part of K at `base`. */
struct place {
    int32_t tile, n_tiles, unit, pair;
    int64_t base;
};

/* Computes one part of a block, and of its up block if gated. `ahead`: what to prefetch during each
 * of the two. */
static void block_part(struct blocks_item *item, const struct place *at, int64_t *slot,
                       struct ahead *ahead[2])
{
    const struct blocks_job *job = item->job;
    int64_t inputs = part_inputs(job, at->base);
    int32_t both = job->gated ? 2 : 1, pairs = job->a->weight->panels / 2;
    float *gate = NULL;
    for (int32_t up = 0; up < both; up++, ++*slot) {
        int64_t s = inputs < job->k ? *slot : *slot % (2 * both);
        struct block b = {
            .w = weights_at(job, at->unit, up, at->base) + at->pair * 2 * PANEL_BYTES,
            .tile = at->tile,
            .n_tiles = at->n_tiles,
            .c = item->c + s * BLOCK_FLOATS,
        };
        ask(ahead[up], &b);
        part_sums(item, &b, at->base);
        if (!up) {
            gate = b.c;
        }
        if (at->base + inputs == job->k && up == both - 1) {
            int32_t row = at->tile * ROW_TILE;
            item->pending = (struct results){
                .job = job,
                .c = gate,
                .up = up ? b.c : NULL,
                .row = job->first_row + row,
                .n_rows = lesser(at->n_tiles * ROW_TILE, job->n_rows - row),
                .n_tiles = at->n_tiles,
                .out = ((int64_t)at->unit * pairs + at->pair) * BLOCK_N,
            };
        }
    }
}

/* Rows stay: one unit's part of K, for all rows of the item. Prefetches the weights of the next
 * unit. */
static void unit_part(struct blocks_item *item, int32_t u, int64_t base, int64_t *slot)
{
    const struct blocks_job *job = item->job;
    const struct weight *w = job->a->weight;
    int32_t pairs = w->panels / 2;
    int32_t n_blocks = (item->n_tiles + BLOCK_TILES - 1) / BLOCK_TILES * pairs;
    int64_t n_bytes = part_inputs(job, base) * w->panels * PANEL * 2;
    struct ahead next[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
    for (int32_t up = 0; up < 2 && u + 1 < job->units; up++) {
        next[up] = ahead_of(weights_at(job, u + 1, up && job->gated, base), n_bytes, n_blocks);
    }
    struct place at = {.unit = u, .base = base, .tile = item->first_tile};
    for (int32_t left = item->n_tiles; left > 0; left -= at.n_tiles, at.tile += at.n_tiles) {
        at.n_tiles = next_tiles(left);
        for (at.pair = 0; at.pair < pairs; at.pair++) {
            block_part(item, &at, slot, (struct ahead *[]){&next[0], &next[1]});
        }
    }
}

/* What to prefetch: the rows after the item's first `done` tiles of a part. They may be in the same
 * part, in the next part, or in the next item. */
static struct ahead rows_ahead(const struct blocks_item *item, int32_t done, int64_t base,
                               int32_t n_blocks)
{
    const struct blocks_job *job = item->job;
    int32_t tile = item->first_tile + done, end = item->first_tile + item->n_tiles;
    if (tile == end) {
        base += PART_K;
        if (base < job->k) {
            tile = item->first_tile;
        } else { // the next item begins
            tile = end % job->row_tiles;
            end = job->row_tiles;
            base = 0;
        }
    }
    int64_t n_bytes = next_tiles(end - tile) * part_inputs(job, base) * ROW_TILE * 2;
    return ahead_of(rows_at(job, tile, base, base), n_bytes, n_blocks);
}

/* Units stay: one part of K of the item's weights, past which the item's rows stream. */
static void rows_part(struct blocks_item *item, int64_t base, int64_t *slot)
{
    const struct blocks_job *job = item->job;
    int32_t pairs = job->a->weight->panels / 2, end = item->first_unit + item->n_units;
    int32_t n_blocks = item->n_units * pairs * (job->gated ? 2 : 1);
    struct place at = {.base = base};
    for (int32_t i = 0; i < item->n_tiles; i += at.n_tiles) {
        at.tile = item->first_tile + i;
        at.n_tiles = next_tiles(item->n_tiles - i);
        struct ahead next = rows_ahead(item, i + at.n_tiles, base, n_blocks);
        for (at.unit = item->first_unit; at.unit < end; at.unit++) {
            for (at.pair = 0; at.pair < pairs; at.pair++) {
                block_part(item, &at, slot, (struct ahead *[]){&next, &next});
            }
        }
    }
}

/* Consecutive items of a thread differ in their rows, so that their weights stay in the cache. */
static void blocks_run(void *arg, int32_t index, int32_t thread)
{
    const struct blocks_job *job = arg;
    const struct block_unit *unit = job->cpu->kernels->blocks;
    struct blocks_item item = {.job = job,
                               .first_unit = index / job->n_panels * job->units_per_item,
                               .first_tile = index % job->n_panels * job->panel_tiles,
                               .c = (float *)job->cpu->scratch[thread].p};
    item.n_units = lesser(job->units_per_item, job->units - item.first_unit);
    item.n_tiles = lesser(job->panel_tiles, job->row_tiles - item.first_tile);
    item.level_floats =
        BLOCK_FLOATS * slots(job->k, item.n_tiles, item.n_units * (job->gated ? 2 : 1),
                             job->a->weight->panels / 2);
    unit->begin();
    for (int64_t base = 0; base < job->k; base += PART_K) {
        int64_t slot = 0;
        if (job->rows_pass) {
            rows_part(&item, base, &slot);
            continue;
        }
        for (int32_t u = item.first_unit; u < item.first_unit + item.n_units; u++) {
            unit_part(&item, u, base, &slot);
        }
    }
    finish(&item.pending);
    unit->end();
}

/* ---- products ----------------------------------------------------------------------------- */

static int32_t n_items(const struct blocks_job *job)
{
    return (job->units + job->units_per_item - 1) / job->units_per_item * job->n_panels;
}

/* Divides a product into items. */
static void cut(struct blocks_job *job)
{
    int32_t n_threads = job->cpu->n_scratch;
    job->rows_pass = job->row_tiles > STAY_TILES;
    job->n_panels = (job->row_tiles + PASS_TILES - 1) / PASS_TILES;
    job->units_per_item = job->gated ? ITEM_TILES / 2 : ITEM_TILES;
    while (n_items(job) < THREAD_ITEMS * n_threads &&
           job->row_tiles / (job->n_panels + 1) >= STAY_TILES) {
        job->n_panels++;
    }
    while (n_items(job) < 4 * n_threads && job->units_per_item > 1) {
        job->units_per_item /= 2;
    }
    job->panel_tiles = (job->row_tiles + job->n_panels - 1) / job->n_panels;
    job->n_panels = (job->row_tiles + job->panel_tiles - 1) / job->panel_tiles;
}

static struct blocks_job make_job(const struct cpu_backend *cpu, const struct linear_args *a,
                                  const struct activation_args *act, int32_t first, int32_t n_rows)
{
    const struct weight *w = a->weight;
    bool gated = act && act->gated;
    struct blocks_job job = {.cpu = cpu,
                             .a = a,
                             .act = act,
                             .rows = cpu->packed_rows,
                             .gated = gated,
                             .n_out = act ? act->width : w->n_out,
                             .k = w->segment_padded * w->k_segments,
                             .first_row = first,
                             .n_rows = n_rows,
                             .row_tiles = (n_rows + ROW_TILE - 1) / ROW_TILE,
                             .units = (int32_t)(gated ? w->n_tiles / 2 : w->n_tiles)};
    cut(&job);
    return job;
}

void cpu_linear_blocks(struct cpu_backend *cpu, const struct blocks_args *a, int32_t first,
                       int32_t n_rows)
{
    struct blocks_job job = make_job(cpu, a->linear, a->act, first, n_rows), second;
    job.norm = a->norm;
    if (a->down) {
        second = make_job(cpu, a->down, NULL, first, n_rows);
        second.rows = cpu->packed_rows + cpu->packed_rows_bytes / 2;
        job.next = &second;
    }
    pool_run(cpu->pool, job.row_tiles, pack_tile_rows, &job);
    pool_run(cpu->pool, n_items(&job), blocks_run, &job);
    if (a->down) {
        pool_run(cpu->pool, n_items(&second), blocks_run, &second);
    }
}
