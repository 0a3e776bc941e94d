/* Products of many rows with bf16 weights, by blocks (struct block_unit). An item is a panel of
 * rows times some tiles of the weight. The panel's part of K stays in the second cache while the
 * tiles pass; a block's sums stay in registers through the whole of the part. Rows are packed in
 * the order in which they are read. What is made of a block's sums (bias, activation, the way to
 * memory) is done while the next block's products run. Sums are those of cpu_gemm_tile to the bit:
 * one chain over K per segment, and the same tree over segments. */
#include "cpu/cpu_internal.h"

#include <string.h>

/* Inputs of one part, and tiles of rows of one panel: 768 KiB of the second cache, beside 256 KiB
 * of a tile of weights and what comes of the next. Weight tiles of one item at most. */
enum { PART_K = 2048, PANEL_TILES = 12, ITEM_TILES = 4 };

/* With fewer rows 16 threads were quicker by cpu_gemm_tile. */
enum { LEAST_ROWS = 128 };

struct blocks_job {
    const struct cpu_backend *cpu;
    const struct linear_args *a;
    const struct activation_args *act; // NULL: y is stored; else what this makes of it
    bool gated;
    int64_t n_out; // outputs that are stored
    int64_t k;     // of all segments
    int32_t first_row, n_rows, row_tiles;
    int32_t panel_tiles;           // row tiles of one panel
    int32_t units, units_per_item; // weight tiles; with a gated activation pairs of them
};

/* A block whose sums are there: its results are still to be stored. */
struct results {
    const struct blocks_job *job;
    const float *c, *up; // up: NULL or the gate's counterpart
    int32_t row, n_rows, n_tiles;
    int64_t out;
};

struct blocks_item {
    const struct blocks_job *job;
    int32_t first_unit, n_units;
    int32_t first_tile, n_tiles; // of rows
    int64_t level_floats;
    float *c;               // sums: [levels][slots][BLOCK_FLOATS]
    struct results pending; // n_rows 0: none
};

/* Blocks of tiles of rows times tiles of weights, at most. */
static int64_t slots(int32_t row_tiles, int32_t tiles, int32_t pairs)
{
    return (row_tiles / BLOCK_TILES + 2) * (int64_t)tiles * pairs;
}

bool cpu_in_blocks(const struct cpu_backend *cpu, const struct weight *w, int32_t n_rows)
{
    return cpu->kernels->blocks && w->dtype == DT_BF16 && w->panels >= 2 && n_rows >= LEAST_ROWS;
}

size_t cpu_blocks_scratch(const struct cpu_backend *cpu, const struct weight *w)
{
    size_t one =
        (size_t)slots(PANEL_TILES, ITEM_TILES, MAX_PANELS / 2) * BLOCK_FLOATS * sizeof(float);
    return cpu_in_blocks(cpu, w, LEAST_ROWS) ? (size_t)cpu_tree_levels(w) * one : 0;
}

static int32_t lower(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- rows --------------------------------------------------------------------------------- */

/* Of the part of K that begins at `base`: its inputs, and where those from k on lie of the i-th row
 * tile. */
static int64_t part_inputs(const struct blocks_job *job, int64_t base)
{
    return job->k - base < PART_K ? job->k - base : PART_K;
}

static char *rows_at(const struct blocks_job *job, int32_t i, int64_t base, int64_t k)
{
    int64_t n = part_inputs(job, base);
    return job->cpu->packed_rows + (base * job->row_tiles + i * n + k - base) * ROW_TILE * 2;
}

/* Packs the item-th tile of rows: [part][tile][k / 32][ROW_TILE][32]. The last one's rows that are
 * not there keep what they had, and nobody reads their sums. */
static void pack_tile_rows(void *arg, int32_t item, int32_t thread)
{
    const struct blocks_job *job = arg;
    int32_t first = item * ROW_TILE, n_rows = lower(ROW_TILE, job->n_rows - first);
    char *packed = job->cpu->scratch[thread].p;
    for (int32_t i = 0; i < n_rows; i++) {
        const char *from = packed;
        cpu_pack_row(job->cpu, job->a->weight, tensor_row(&job->a->x, job->first_row + first + i),
                     packed);
        for (int64_t base = 0; base < job->k; base += PART_K) {
            char *to = rows_at(job, item, base, base) + i * K_UNIT * 2;
            for (int64_t k = 0; k < part_inputs(job, base); k += K_UNIT, from += K_UNIT * 2) {
                memcpy(to + k * ROW_TILE * 2, from, K_UNIT * 2);
            }
        }
    }
}

/* ---- results ------------------------------------------------------------------------------ */

/* PANEL sums of a row, with what belongs to them, to y; n of them are outputs. */
static void put(const struct blocks_job *job, const float *c, int64_t out, float *y, int64_t n)
{
    const struct linear_args *a = job->a;
    const float *bias = a->partial || !a->weight->bias ? NULL : a->weight->bias + out;
    if (n >= PANEL && !bias && !a->accumulate) {
        job->cpu->kernels->blocks->put(c, y, PANEL);
        return;
    }
    for (int64_t j = 0; j < PANEL && j < n; j++) {
        float v = bias ? c[j] + bias[j] : c[j];
        y[j] = a->accumulate ? y[j] + v : v;
    }
}

/* Row i of a block. */
static void put_row(void *arg, int32_t i)
{
    const struct results *r = arg;
    const struct blocks_job *job = r->job;
    const struct activation_args *act = job->act;
    float *y = tensor_row(act ? &act->out : &job->a->y, r->row + i) + r->out;
    for (int32_t p = 0; p < 2; p++) {
        int64_t at = (int64_t)(p * r->n_tiles * ROW_TILE + i) * PANEL, left = job->n_out - r->out;
        const float *c = r->c + at;
        float made[PANEL];
        if (act) {
            job->cpu->kernels->activate(act->kind, c, r->up ? r->up + at : NULL, made, PANEL);
            c = made;
        }
        if (left > p * PANEL) {
            put(job, c, r->out + p * PANEL, y + p * PANEL, left - p * PANEL);
        }
    }
}

static void finish(struct results *r)
{
    for (int32_t i = 0; i < r->n_rows; i++) {
        put_row(r, i);
    }
    r->n_rows = 0;
}

/* ---- sums --------------------------------------------------------------------------------- */

/* The weight's tile of unit u; `up`: of the counterparts of the gates. */
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

/* Where the block's sums over one part of K begin, and what is asked for meanwhile. */
struct block {
    const char *w;
    int32_t tile, n_tiles; // of rows
    float *c;
    const char *next;
    int64_t next_bytes;
};

/* Inputs [base, end) of a block: those of each segment are one chain; when a segment is complete,
 * as many pairs are joined as its number, from 1 on, has zeros at the end. */
static void part_sums(struct blocks_item *item, const struct block *b, int64_t base)
{
    const struct blocks_job *job = item->job;
    const struct weight *w = job->a->weight;
    int64_t end = base + part_inputs(job, base), n;
    for (int64_t k = base; k < end; k += n) {
        int32_t s = (int32_t)(k / w->segment_padded), level = ones(s);
        int64_t stop = (s + 1) * w->segment_padded;
        stop = stop < end ? stop : end;
        n = stop - k;
        struct results *r = &item->pending;
        struct block_product p = {
            .a = rows_at(job, b->tile, base, k),
            .w = b->w + (size_t)((k - base) * w->panels * PANEL) * 2,
            .a_tile = (end - base) * ROW_TILE * 2,
            .w_line = w->panels * PANEL * 4,
            .k = n,
            .n_tiles = b->n_tiles,
            .c = b->c + level * item->level_floats,
            .first = k % w->segment_padded == 0,
            .next = b->next + (k - base) * b->next_bytes / (end - base),
            .next_bytes = n * b->next_bytes / (end - base),
            .aside = put_row,
            .arg = r,
            .n_aside = r->n_rows,
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

/* Tiles of rows of the next block: threes, and rather two twos than a three and a one. */
static int32_t next_tiles(int32_t left)
{
    return left == 2 || left == 4 ? 2 : lower(left, BLOCK_TILES);
}

/* One unit's part of K for all rows of the item. Slots: with a single part sums need not last
 * longer than until they are stored. */
static void unit_part(struct blocks_item *item, int32_t u, int64_t base, int64_t *slot)
{
    const struct blocks_job *job = item->job;
    const struct weight *w = job->a->weight;
    int32_t pairs = w->panels / 2, both = job->gated ? 2 : 1;
    int64_t inputs = part_inputs(job, base), tile_bytes = inputs * w->panels * PANEL * 2;
    int64_t share = tile_bytes * BLOCK_TILES / item->n_tiles / pairs + 64, asked = 0;
    for (int32_t i = 0, n; i < item->n_tiles; i += n) {
        n = next_tiles(item->n_tiles - i);
        for (int32_t pair = 0; pair < pairs; pair++) {
            const float *gate = NULL;
            for (int32_t up = 0; up < both; up++, ++*slot) {
                int64_t at = inputs < job->k ? *slot : *slot % (2 * both);
                struct block b = {
                    .w = weights_at(job, u, up, base) + pair * 4 * PANEL * 2,
                    .tile = item->first_tile + i,
                    .n_tiles = n,
                    .c = item->c + at * BLOCK_FLOATS,
                };
                if (u + 1 < job->units && asked < tile_bytes) {
                    b.next = weights_at(job, u + 1, up, base) + asked;
                    b.next_bytes = tile_bytes - asked < share ? tile_bytes - asked : share;
                }
                part_sums(item, &b, base);
                gate = up ? gate : b.c;
                if (base + inputs == job->k && up == both - 1) {
                    int32_t row = (item->first_tile + i) * ROW_TILE;
                    item->pending = (struct results){
                        .job = job,
                        .c = gate,
                        .up = up ? b.c : NULL,
                        .row = job->first_row + row,
                        .n_rows = lower(n * ROW_TILE, job->n_rows - row),
                        .n_tiles = n,
                        .out = ((int64_t)u * pairs + pair) * BLOCK_N,
                    };
                }
            }
            asked += share;
        }
    }
}

/* A thread's items follow each other by weights, so that their rows stay near. */
static void blocks_run(void *arg, int32_t index, int32_t thread)
{
    const struct blocks_job *job = arg;
    const struct block_unit *unit = job->cpu->kernels->blocks;
    int32_t n_groups = (job->units + job->units_per_item - 1) / job->units_per_item;
    struct blocks_item item = {.job = job,
                               .first_unit = index % n_groups * job->units_per_item,
                               .first_tile = index / n_groups * job->panel_tiles,
                               .c = (float *)job->cpu->scratch[thread].p};
    item.n_units = lower(job->units_per_item, job->units - item.first_unit);
    item.n_tiles = lower(job->panel_tiles, job->row_tiles - item.first_tile);
    item.level_floats = BLOCK_FLOATS * slots(item.n_tiles, item.n_units * (job->gated ? 2 : 1),
                                             job->a->weight->panels / 2);
    unit->begin();
    for (int64_t base = 0; base < job->k; base += PART_K) {
        int64_t slot = 0;
        for (int32_t u = item.first_unit; u < item.first_unit + item.n_units; u++) {
            unit_part(&item, u, base, &slot);
        }
    }
    finish(&item.pending);
    unit->end();
}

void cpu_linear_blocks(struct cpu_backend *cpu, const struct linear_args *a,
                       const struct activation_args *act, int32_t first, int32_t n_rows)
{
    const struct weight *w = a->weight;
    struct blocks_job job = {.cpu = cpu,
                             .a = a,
                             .act = act,
                             .gated = act && act->gated,
                             .n_out = act ? act->width : w->n_out,
                             .k = w->segment_padded * w->k_segments,
                             .first_row = first,
                             .n_rows = n_rows,
                             .row_tiles = (n_rows + ROW_TILE - 1) / ROW_TILE};
    int32_t n_panels = (job.row_tiles + PANEL_TILES - 1) / PANEL_TILES;
    job.panel_tiles = (job.row_tiles + n_panels - 1) / n_panels; // about as many in each
    n_panels = (job.row_tiles + job.panel_tiles - 1) / job.panel_tiles;
    job.units = (int32_t)(job.gated ? w->n_tiles / 2 : w->n_tiles);
    job.units_per_item = job.gated ? ITEM_TILES / 2 : ITEM_TILES;
    while (job.units_per_item > 1 &&
           n_panels * (job.units / job.units_per_item) < 4 * cpu->n_scratch) {
        job.units_per_item /= 2;
    }
    int32_t n_groups = (job.units + job.units_per_item - 1) / job.units_per_item;
    pool_run(cpu->pool, job.row_tiles, pack_tile_rows, &job);
    pool_run(cpu->pool, n_groups * n_panels, blocks_run, &job);
}
