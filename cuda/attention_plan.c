// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention_planner.h"

#include <string.h>

enum { MAX_FRACTION = 64, N_CLASSES = 1024 };

/* The fixed cost of an item (loading its queries and storing its result), in units of the cost of
 * one key. Empirical, like ATTENTION_SLOT_COST; if either is changed by a factor of two, splits
 * change only a little. */
enum { ITEM_COST = 48 };

/* ---- splits -------------------------------------------------------------------------------- */

/* The size of equal pieces of n keys, each with at most `split` keys. `split` is at least a
 * tile. */
static int32_t piece_of(int32_t n, int32_t split)
{
    const int32_t piece = ceil_div(n, ceil_div(n, split));
    return ceil_div(piece, ATTENTION_KV_TILE) * ATTENTION_KV_TILE;
}

/* How a tile is split: the size and the number of its pieces, and the slot of the first piece. */
struct cut {
    int32_t piece, n, first_slot;
};

static struct cut cut_of(const struct planner *p, const struct attention_item *t, int32_t split)
{
    struct cut c = {0};
    const int32_t n_keys = t->kv_end - t->kv_begin;
    if (p->limits->deterministic) {
        /* If there is not enough memory to process a row's fixed runs in parallel, one item
         * processes them in order. */
        if (split > 0 || t->fold) {
            c.piece = ATTENTION_FIXED_SPLIT;
        } else {
            c.piece = n_keys;
        }
        c.first_slot = t->kv_begin / ATTENTION_FIXED_SPLIT;
    } else {
        c.piece = piece_of(n_keys, split);
        if (t->kv_begin > 0) {
            c.first_slot = ceil_div(t->kv_begin, piece_of(t->kv_begin, split));
        } else {
            c.first_slot = 0;
        }
    }
    c.n = ceil_div(n_keys, c.piece);
    return c;
}

/* The number of blocks that process items at the same time. */
static int64_t blocks_of(const struct planner *p)
{
    return (int64_t)at_least_1(p->limits->n_sms) * at_least_1(p->shape.blocks_per_sm);
}

struct estimate {
    int64_t cost;  // cost of the busiest block, in keys
    int64_t level; // what the cost would be with perfect balance
    int64_t n_items, n_slots;
};

static struct estimate estimate(const struct planner *p, int32_t split)
{
    struct estimate e = {0};
    int64_t work = 0, n_big = 0, big_work = 0;
    int32_t largest = 0;
    for (int32_t i = 0; i < p->n_tiles; i++) {
        const struct cut c = cut_of(p, &p->tiles[i], split);
        largest = greater(c.piece, largest);
    }
    for (int32_t i = 0; i < p->n_tiles; i++) {
        const struct attention_item *t = &p->tiles[i];
        const struct cut c = cut_of(p, t, split);
        const int32_t slots = c.first_slot + c.n;
        const int64_t cost = (int64_t)(t->kv_end - t->kv_begin) + (int64_t)c.n * ITEM_COST +
                             (slots > 1 ? c.n * ATTENTION_SLOT_COST : 0);
        work += cost;
        if (c.piece > largest / 2) {
            n_big += c.n;
            big_work += cost;
        }
        e.n_items += c.n;
        /* The last tile of a row counts the row's slots. A prefix's tile leaves that to the rows'
         * own tiles. */
        if (slots > 1 && t->mask != ATTENTION_ALL) {
            e.n_slots += (int64_t)slots * t->n_rows;
        }
    }
    const int64_t n_blocks = blocks_of(p), heads = at_least_1(p->shape.n_kv_heads);
    const int64_t rounds = (n_big * heads + n_blocks - 1) / n_blocks;
    const int64_t by_rounds = n_big > 0 ? rounds * (big_work / n_big) : 0;
    e.level = work * heads / n_blocks;
    e.cost = greater(e.level, by_rounds);
    return e;
}

static bool fits(const struct planner *p, const struct estimate *e)
{
    return e->n_items <= p->max_items && e->n_slots <= p->max_slots;
}

/* Chooses the split. 0: no split (deterministic mode only); -1: not even the coarsest plan fits. */
static int32_t choose_split(const struct planner *p)
{
    int32_t longest = ATTENTION_KV_TILE;
    for (int32_t i = 0; i < p->n_tiles; i++) {
        const int32_t n = p->tiles[i].kv_end - p->tiles[i].kv_begin;
        longest = greater(n, longest);
    }
    if (p->limits->deterministic) {
        const struct estimate apart = estimate(p, 1), whole = estimate(p, 0);
        const int64_t units = whole.n_items * at_least_1(p->shape.n_kv_heads);
        if (fits(p, &apart) && units < 2 * blocks_of(p)) {
            return 1;
        }
        return fits(p, &whole) ? 0 : -1;
    }
    int32_t best = -1;
    int64_t best_cost = INT64_MAX;
    for (int32_t k = 1; k <= MAX_FRACTION; k += 1 + k / 4) {
        const int32_t split = piece_of(longest, ceil_div(longest, k));
        const struct estimate e = estimate(p, split);
        if (fits(p, &e) && e.cost < best_cost) {
            best = split;
            best_cost = e.cost;
        }
        if (split <= ATTENTION_KV_TILE || (k == 1 && best >= 0 && e.cost * 32 <= e.level * 33)) {
            break;
        }
    }
    return best;
}

/* ---- the plan ------------------------------------------------------------------------------ */

/* The sort class of an item with n_keys keys; items with more keys come first. Classes are a
 * quarter of a tile wide, because the units of a prompt differ in length by such steps; sorted that
 * finely, long and short units add up to equal work. Only very long items have wider classes, of
 * two tiles. */
static int32_t class_of(int32_t n_keys)
{
    const int32_t fine = ATTENTION_KV_TILE / 4, coarse = 2 * ATTENTION_KV_TILE;
    const int32_t half = N_CLASSES / 2, more = n_keys - half * fine;
    int32_t c;
    if (more < 0) {
        c = n_keys / fine;
    } else {
        c = half + lesser(more / coarse, half - 1);
    }
    return N_CLASSES - 1 - c;
}

/* Whether a tile has so many rows that arithmetic bounds it, as in prompts. With few rows, as in
 * decoding, reading the keys does. */
static bool multiplies(const struct planner *p, const struct attention_item *t)
{
    const int32_t group = at_least_1(p->shape.n_heads) / at_least_1(p->shape.n_kv_heads);
    return t->n_rows * group > ATTENTION_TILE_ROWS / 2;
}

/* Whether both kinds of tiles have at least an eighth of the work. */
static bool is_mixed(const struct planner *p)
{
    int64_t work[2] = {0, 0};
    for (int32_t i = 0; i < p->n_tiles; i++) {
        const struct attention_item *t = &p->tiles[i];
        work[multiplies(p, t)] += t->kv_end - t->kv_begin;
    }
    return 8 * lesser(work[0], work[1]) >= work[0] + work[1];
}

static void give_slots(struct planner *p, int32_t split)
{
    int32_t n_slots = 0;
    memset(p->rows, 0, (size_t)p->n_rows * sizeof *p->rows);
    for (int32_t i = 0; i < p->n_tiles; i++) {
        const struct attention_item *t = &p->tiles[i];
        const struct cut c = cut_of(p, t, split);
        const int32_t n = c.first_slot + c.n;
        if (t->mask == ATTENTION_ALL || n == 1) {
            continue;
        }
        for (int32_t r = t->first_row; r < t->first_row + t->n_rows; r++, n_slots += n) {
            p->rows[r] = (struct attention_row){n_slots, n};
        }
    }
    p->head->n_slots = n_slots;
}

/* Splits the tiles, and orders the items from longest to shortest, so that the short ones even out
 * the end. In a mixed plan the items that read come before those that multiply; as every second
 * block goes backwards, both kinds are then processed at the same time. */
static void place_items(struct planner *p, int32_t split)
{
    int32_t next[2 * N_CLASSES + 1] = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < p->n_tiles; i++) {
            const struct attention_item *t = &p->tiles[i];
            const struct cut c = cut_of(p, t, split);
            for (int32_t k = 0; k < c.n; k++) {
                struct attention_item item = *t;
                item.kv_begin = t->kv_begin + k * c.piece;
                item.kv_end = lesser(t->kv_end, item.kv_begin + c.piece);
                const bool later = p->head->both_ways && multiplies(p, t);
                const int32_t size =
                    class_of(item.kv_end - item.kv_begin) + (later ? N_CLASSES : 0);
                if (pass == 0) {
                    next[size + 1]++;
                    continue;
                }
                if (t->fold || c.n > 1) {
                    item.split = c.first_slot + k;
                } else {
                    item.split = -1;
                }
                item.fold =
                    p->limits->deterministic && item.kv_end - item.kv_begin > ATTENTION_FIXED_SPLIT;
                p->items[next[size]++] = item;
            }
        }
        for (int i = 0; pass == 0 && i < 2 * N_CLASSES; i++) {
            next[i + 1] += next[i];
        }
    }
    p->head->n_items = next[2 * N_CLASSES - 1];
}

enum status attention_plan(const struct attention_limits *limits, const struct pass *pass,
                           int32_t n_rows, void *out, size_t *used)
{
    if (pass->n_rows > n_rows) {
        return ERR_LIMIT;
    }
    const struct attention_shape shape = pass->kv_set >= 0 && pass->kv_set < MAX_KV_SETS
                                             ? limits->shapes[pass->kv_set]
                                             : (struct attention_shape){0};
    const int32_t group = at_least_1(shape.n_heads) / at_least_1(shape.n_kv_heads);
    struct planner p = {
        .limits = limits,
        .shape = shape,
        .pass = pass,
        .n_rows = n_rows,
        .max_tiles = attention_max_tiles(n_rows),
        .max_items = attention_max_items(limits, n_rows),
        .max_slots = attention_max_slots(limits, &shape),
        .tile_rows = at_least_1(ATTENTION_TILE_ROWS / at_least_1(group)),
        .head = out,
    };
    p.rows = (struct attention_row *)(p.head + 1);
    p.paths = (struct attention_path *)((char *)out + attention_paths_offset(n_rows));
    p.runs = (struct attention_run *)((char *)out + attention_runs_offset(limits, n_rows));
    p.items = (struct attention_item *)((char *)out + attention_items_offset(limits, n_rows));
    p.tiles = p.items + p.max_items;
    attention_make_tiles(&p, true);
    int32_t split = choose_split(&p);
    // There are not enough slots. If no prefix is shared, no tile needs to be split.
    if (split < 0) {
        attention_make_tiles(&p, false);
        split = choose_split(&p);
    }
    if (split < 0) {
        return ERR_LIMIT;
    }
    *p.head = (struct attention_plan_head){
        .tile_rows = p.most_rows,
        .items_offset = (int32_t)attention_items_offset(limits, n_rows),
        .n_paths = p.n_paths,
        .paths_offset = (int32_t)attention_paths_offset(n_rows),
        .n_runs = p.n_runs,
        .runs_offset = (int32_t)attention_runs_offset(limits, n_rows),
    };
    p.head->both_ways = is_mixed(&p);
    give_slots(&p, split);
    place_items(&p, split);
    int64_t n_keys = 0;
    for (int32_t i = 0; i < p.n_tiles; i++) {
        n_keys += p.tiles[i].kv_end - p.tiles[i].kv_begin;
        p.head->n_others += p.tiles[i].lane <= limits->max_lanes;
    }
    p.head->mean_keys = (int32_t)(n_keys / at_least_1(p.head->n_items));
    *used = attention_items_offset(limits, n_rows) +
            (size_t)p.head->n_items * sizeof(struct attention_item);
    return OK;
}

struct attention_plan_facts attention_plan_facts(const void *plan)
{
    const struct attention_plan_head *head = plan;
    return (struct attention_plan_facts){head->n_slots, head->n_runs, head->n_others > 0};
}
