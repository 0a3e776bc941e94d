// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention_plan.h"
#include "engine/base/minmax.h"

#include <string.h>

/* Items beyond one per tile: enough to give every multiprocessor eight more. */
enum { EXTRA_ITEMS_PER_SM = 8, MAX_FRACTION = 64, N_CLASSES = 1024 };

/* Costs in units of one key: the fixed cost of an item (loading its queries, storing its result),
 * and of joining one more slot. The values are empirical. Splits change little when either is off
 * by a factor of two, but with a SLOT_COST of 32 or less a group of 16 sequences is cut so finely
 * that it takes 25 % longer. */
enum { ITEM_COST = 48, SLOT_COST = 48 };

struct planner {
    const struct attention_limits *limits;
    struct attention_shape shape;
    const struct pass *pass;
    int32_t n_rows, max_tiles, max_items, max_slots;
    int32_t tile_rows; // rows in a tile
    struct attention_plan_head *head;
    struct attention_row *rows;
    struct attention_item *items;
    /* Tiles before they are split. `fold` marks rows that a shared prefix also serves; such a tile
     * either starts at the prefix's end or is the prefix itself. */
    struct attention_item *tiles;
    int32_t n_tiles, most_rows; // most_rows: the largest n_rows of any tile
    struct attention_path *paths;
    int32_t n_paths;
    struct attention_run *runs;
    int32_t n_runs, n_run_pages;
};

static int32_t min_i32(int32_t a, int32_t b)
{
    return lesser(a, b);
}

static int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

static size_t align16(size_t n)
{
    return (n + 15) / 16 * 16;
}

static int32_t at_least_1(int32_t n)
{
    return greater(1, n);
}

/* ---- sizes --------------------------------------------------------------------------------- */

static int32_t max_tiles_of(int32_t n_rows)
{
    return 2 * n_rows; // each row is in one tile of its own and one of a shared prefix
}

static int32_t max_items_of(const struct attention_limits *limits, int32_t n_rows)
{
    return max_tiles_of(n_rows) + EXTRA_ITEMS_PER_SM * at_least_1(limits->n_sms);
}

static size_t paths_offset(int32_t n_rows)
{
    return align16(sizeof(struct attention_plan_head) +
                   (size_t)n_rows * sizeof(struct attention_row));
}

static size_t runs_offset(const struct attention_limits *limits, int32_t n_rows)
{
    return align16(paths_offset(n_rows) +
                   (size_t)limits->max_paths * sizeof(struct attention_path));
}

static size_t items_offset(const struct attention_limits *limits, int32_t n_rows)
{
    return align16(runs_offset(limits, n_rows) +
                   (size_t)limits->max_runs * sizeof(struct attention_run));
}

size_t attention_plan_bytes(const struct attention_limits *limits, int32_t n_rows)
{
    return items_offset(limits, n_rows) +
           (size_t)(max_items_of(limits, n_rows) + max_tiles_of(n_rows)) *
               sizeof(struct attention_item);
}

size_t attention_scratch_bytes(const struct attention_limits *limits)
{
    if (limits->deterministic) {
        return (size_t)at_least_1(limits->n_sms) * ATTENTION_TILE_ROWS * ATTENTION_MAX_DIM *
               sizeof(float);
    }
    return 0;
}

/* Slot memory: two slots for each row of a large model, within bounds. */
static size_t slots_bytes(const struct attention_limits *limits)
{
    const size_t wanted = (size_t)limits->max_rows * ((size_t)64 << 10);
    const size_t least = (size_t)16 << 20, most = (size_t)128 << 20;
    if (wanted < least) {
        return least;
    }
    return lesser(most, wanted);
}

size_t attention_workspace_bytes(const struct attention_limits *limits)
{
    return attention_scratch_bytes(limits) + slots_bytes(limits);
}

static int32_t max_slots_of(const struct attention_limits *limits,
                            const struct attention_shape *shape)
{
    if (shape->n_heads <= 0 || shape->head_dim_v <= 0) {
        return 0;
    }
    return (int32_t)(slots_bytes(limits) /
                     (attention_slot_floats(shape->n_heads, shape->head_dim_v) * sizeof(float)));
}

/* Pages available for expanding this layer's codes; 0 if they cannot be expanded for the kernels
 * that read floating-point pages. */
static int32_t run_pages(const struct attention_limits *limits, const struct kv_view *kv)
{
    const int32_t d = kv->head_dim_k, bt = kv->block_tokens;
    if (limits->max_runs == 0 || kv->codes.format == KV_PLAIN || kv->codes.tokens != 16 ||
        kv->v_offset == 0 || d != kv->head_dim_v || d % 8 != 0 || d > 256 ||
        (bt != 16 && bt != 32 && bt != 64) || (kv->dtype != DT_BF16 && kv->dtype != DT_F16)) {
        return 0;
    }
    return (int32_t)(limits->run_bytes / ((size_t)kv->n_kv_heads * 2 * (size_t)d * (size_t)bt * 2));
}

void attention_learn(struct attention_limits *limits, int32_t kv_set, int32_t n_heads,
                     const struct kv_view *kv)
{
    if (kv_set < 0 || kv_set >= MAX_KV_SETS) {
        return;
    }
    struct attention_shape *s = &limits->shapes[kv_set];
    const int32_t pages = run_pages(limits, kv);
    if (s->n_heads == 0 || pages < s->run_pages) {
        s->run_pages = pages;
    }
    if (n_heads > s->n_heads) {
        s->n_heads = n_heads;
        s->n_kv_heads = kv->n_kv_heads;
    }
    s->head_dim_v = greater(kv->head_dim_v, s->head_dim_v);
    if (kv->codes.format == KV_PLAIN) {
        s->blocks_per_sm = 1;
    } else {
        s->blocks_per_sm = ATTENTION_CODE_BLOCKS;
    }
}

/* ---- tiles --------------------------------------------------------------------------------- */

static void add_tiles(struct planner *p, struct attention_item tile, int32_t first_row,
                      int32_t n_rows)
{
    for (int32_t r = 0; r < n_rows; r += p->tile_rows) {
        struct attention_item *t = &p->tiles[p->n_tiles++];
        *t = tile;
        t->first_row = first_row + r;
        t->n_rows = (uint16_t)min_i32(p->tile_rows, n_rows - r);
        p->most_rows = greater(t->n_rows, p->most_rows);
        if (tile.mask == ATTENTION_CAUSAL) {
            t->kv_end = tile.n_past + (t->first_row - tile.seq_row) + t->n_rows;
        }
    }
}

/* The lane through whose table the rows read those keys: an expanded run's lane if enough rows read
 * codes and there is memory for it. */
static int32_t lane_of_keys(struct planner *p, struct attention_run run, int32_t n_rows)
{
    const int32_t bt = p->limits->block_tokens;
    const int32_t n_pages = ceil_div(run.end, bt) - run.begin / bt;
    if (p->n_rows <= ATTENTION_CAPTURED_ROWS || n_rows < ATTENTION_RUN_ROWS ||
        p->n_runs == p->limits->max_runs || p->n_run_pages + n_pages > p->shape.run_pages) {
        return run.lane;
    }
    run.first_page = p->n_run_pages;
    p->n_run_pages += n_pages;
    p->runs[p->n_runs] = run;
    return p->limits->max_lanes + 1 + p->n_runs++;
}

/* The number of leading keys that every row of the group reads as its past; 0 if sharing does not
 * pay. */
static int32_t shared_keys(const struct planner *p, const struct pass_group *g)
{
    const struct pass *pass = p->pass;
    if (g->first_seq < 0 || g->n_seqs < 2 || g->n_seqs > pass->n_seqs - g->first_seq) {
        return 0;
    }
    const int32_t bt = p->limits->block_tokens;
    int64_t keys = (int64_t)g->n_blocks * bt;
    int32_t n_rows = 0, alone = 0, next = pass->seqs[g->first_seq].first_row;
    for (int32_t i = 0; i < g->n_seqs; i++) {
        const struct pass_seq *s = &pass->seqs[g->first_seq + i];
        if (s->first_row != next) {
            return 0;
        }
        next += s->n_rows;
        n_rows += s->n_rows;
        alone += ceil_div(s->n_rows, p->tile_rows);
        keys = lesser(keys, s->n_past);
    }
    const int32_t unit = p->limits->deterministic ? ATTENTION_FIXED_SPLIT : bt;
    keys = keys / unit * unit;
    const int64_t saved = (int64_t)(alone - ceil_div(n_rows, p->tile_rows)) * keys;
    if (saved > 2 * SLOT_COST * (int64_t)n_rows) {
        return (int32_t)keys;
    }
    return 0;
}

/* ---- trees, laid out anew ------------------------------------------------------------------- */

static bool has_bit(const uint64_t *mask, int32_t i)
{
    return mask[i / 64] >> (i % 64) & 1;
}

/* The rows of one tree: how many ancestors each has, and which path holds it (-1: it is already in
 * place). */
struct tree_rows {
    int32_t n_in_place;
    int32_t depth[MAX_TREE_NODES], path[MAX_TREE_NODES];
};

/* Assigns paths to the rows that need one; false if there are not enough paths. */
static bool find_paths(struct planner *p, const struct pass_seq *s, struct tree_rows *t)
{
    const uint64_t *masks = p->pass->tree_mask + (int64_t)s->first_row * TREE_MASK_WORDS;
    t->n_in_place = 0;
    for (int32_t r = 0; r < s->n_rows; r++) {
        t->depth[r] = -1;
        t->path[r] = -1;
        for (int32_t i = 0; i <= r; i++) {
            t->depth[r] += has_bit(masks + r * TREE_MASK_WORDS, i);
        }
        t->n_in_place += t->n_in_place == r && t->depth[r] == r;
    }
    for (int32_t r = s->n_rows - 1; r >= t->n_in_place; r--) { // from the leaves
        if (t->path[r] >= 0) {
            continue;
        }
        if (p->n_paths == p->limits->max_paths || t->depth[r] >= MAX_TREE_PATH) {
            return false;
        }
        for (int32_t i = t->n_in_place; i <= r; i++) {
            if (t->path[i] < 0 && has_bit(masks + r * TREE_MASK_WORDS, i)) {
                t->path[i] = p->n_paths;
            }
        }
        p->paths[p->n_paths++] =
            (struct attention_path){s->first_row + r, s->first_row, s->lane, s->n_past};
    }
    return true;
}

/* False: the tree keeps its own layout. */
static bool tile_tree(struct planner *p, const struct pass_seq *s, int32_t shared)
{
    struct tree_rows t;
    const int32_t n_paths = p->n_paths;
    if (p->limits->max_paths == 0 || p->pass->kv_set != 0 || s->n_rows > MAX_TREE_NODES) {
        return false;
    }
    if (!find_paths(p, s, &t)) {
        p->n_paths = n_paths;
        return false;
    }
    struct attention_item tile = {
        .mask = ATTENTION_CAUSAL,
        .fold = shared > 0,
        .lane = s->lane,
        .kv_begin = shared,
        .n_past = s->n_past,
        .seq_row = s->first_row,
    };
    add_tiles(p, tile, s->first_row, t.n_in_place);
    for (int32_t r = t.n_in_place, n; r < s->n_rows; r += n) {
        for (n = 1;
             r + n < s->n_rows && t.path[r + n] == t.path[r] && t.depth[r + n] == t.depth[r] + n;
             n++) {
        }
        tile.lane = p->limits->max_lanes + 1 + t.path[r];
        tile.seq_row = s->first_row + r - t.depth[r];
        add_tiles(p, tile, s->first_row + r, n);
    }
    return true;
}

/* ---- tiles of a pass ------------------------------------------------------------------------- */

static void tile_seq(struct planner *p, const struct pass_seq *s, int32_t shared)
{
    if (s->tree && tile_tree(p, s, shared)) {
        return;
    }
    const struct attention_run run = {
        .lane = s->lane, .begin = shared, .end = s->n_past + s->n_rows, .low_pos = s->n_past};
    const struct attention_item tile = {
        .mask = s->tree ? ATTENTION_TREE : ATTENTION_CAUSAL,
        .fold = shared > 0,
        .lane = lane_of_keys(p, run, s->n_rows),
        .kv_begin = shared,
        .kv_end = s->n_past + s->n_rows,
        .n_past = s->n_past,
        .seq_row = s->first_row,
    };
    add_tiles(p, tile, s->first_row, s->n_rows);
}

static void make_tiles(struct planner *p, bool with_groups)
{
    const struct pass *pass = p->pass;
    int32_t s = 0;
    p->n_tiles = p->n_paths = p->n_runs = p->n_run_pages = 0;
    for (int32_t g = 0; with_groups && g < pass->n_groups; g++) {
        const struct pass_group *group = &pass->groups[g];
        const int32_t shared = group->first_seq >= s ? shared_keys(p, group) : 0;
        if (shared == 0) {
            continue;
        }
        for (; s < group->first_seq; s++) {
            tile_seq(p, &pass->seqs[s], 0);
        }
        const struct pass_seq *first = &pass->seqs[s];
        const struct pass_seq *last = &pass->seqs[s + group->n_seqs - 1];
        const int32_t n_rows = last->first_row + last->n_rows - first->first_row;
        /* The prefix lies before every row's position. */
        const struct attention_run run = {.lane = first->lane, .end = shared, .low_pos = shared};
        const struct attention_item prefix = {
            .mask = ATTENTION_ALL,
            .fold = 1,
            .lane = lane_of_keys(p, run, n_rows),
            .kv_end = shared,
            .n_past = shared,
            .seq_row = first->first_row,
        };
        add_tiles(p, prefix, first->first_row, n_rows);
        for (int32_t i = 0; i < group->n_seqs; i++, s++) {
            tile_seq(p, &pass->seqs[s], shared);
        }
    }
    for (; s < pass->n_seqs; s++) {
        tile_seq(p, &pass->seqs[s], 0);
    }
}

/* ---- splits -------------------------------------------------------------------------------- */

/* Cuts n keys into equal pieces of at most `split` (which is at least a tile). */
static int32_t piece_of(int32_t n, int32_t split)
{
    const int32_t piece = ceil_div(n, ceil_div(n, split));
    return ceil_div(piece, ATTENTION_KV_TILE) * ATTENTION_KV_TILE;
}

/* How one tile is split: the size and number of its pieces, and the slot of the first. */
struct cut {
    int32_t piece, n, first_slot;
};

static struct cut cut_of(const struct planner *p, const struct attention_item *t, int32_t split)
{
    struct cut c = {0};
    const int32_t n_keys = t->kv_end - t->kv_begin;
    if (p->limits->deterministic) {
        /* Without memory to process a row's fixed runs in parallel, one item processes them in
         * order. */
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

/* Blocks that process items at the same time. */
static int64_t blocks_of(const struct planner *p)
{
    return (int64_t)at_least_1(p->limits->n_sms) * at_least_1(p->shape.blocks_per_sm);
}

struct estimate {
    int64_t cost;  // of the busiest block, in keys
    int64_t level; // the same under a perfect balance
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
                             (slots > 1 ? c.n * SLOT_COST : 0);
        work += cost;
        if (c.piece > largest / 2) {
            n_big += c.n;
            big_work += cost;
        }
        e.n_items += c.n;
        /* The last tile of a row counts its slots; a prefix's tile leaves that to the rows' own
         * tiles. */
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

/* The split to use: 0 for no split (deterministic mode only), -1 if even the coarsest plan does not
 * fit. */
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

/* Sort class of an item with n_keys keys; longer items come first. Short items are classed by
 * quarters of a tile, so that the units of a prompt, whose lengths grow in such steps, pair up to
 * equal sums; very long ones by two tiles. */
static int32_t class_of(int32_t n_keys)
{
    const int32_t fine = ATTENTION_KV_TILE / 4, coarse = 2 * ATTENTION_KV_TILE;
    const int32_t half = N_CLASSES / 2, more = n_keys - half * fine;
    int32_t c;
    if (more < 0) {
        c = n_keys / fine;
    } else {
        c = half + min_i32(more / coarse, half - 1);
    }
    return N_CLASSES - 1 - c;
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

/* Splits the tiles and orders the items longest first, so that the short ones even out the end. */
static void place_items(struct planner *p, int32_t split)
{
    int32_t next[N_CLASSES + 1] = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < p->n_tiles; i++) {
            const struct attention_item *t = &p->tiles[i];
            const struct cut c = cut_of(p, t, split);
            for (int32_t k = 0; k < c.n; k++) {
                struct attention_item item = *t;
                item.kv_begin = t->kv_begin + k * c.piece;
                item.kv_end = min_i32(t->kv_end, item.kv_begin + c.piece);
                const int32_t size = class_of(item.kv_end - item.kv_begin);
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
        for (int i = 0; pass == 0 && i < N_CLASSES; i++) {
            next[i + 1] += next[i];
        }
    }
    p->head->n_items = next[N_CLASSES - 1];
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
        .max_tiles = max_tiles_of(n_rows),
        .max_items = max_items_of(limits, n_rows),
        .max_slots = max_slots_of(limits, &shape),
        .tile_rows = at_least_1(ATTENTION_TILE_ROWS / at_least_1(group)),
        .head = out,
    };
    p.rows = (struct attention_row *)(p.head + 1);
    p.paths = (struct attention_path *)((char *)out + paths_offset(n_rows));
    p.runs = (struct attention_run *)((char *)out + runs_offset(limits, n_rows));
    p.items = (struct attention_item *)((char *)out + items_offset(limits, n_rows));
    p.tiles = p.items + p.max_items;
    make_tiles(&p, true);
    int32_t split = choose_split(&p);
    if (split < 0) { // not enough slots: nothing is shared, and then nothing needs to be split
        make_tiles(&p, false);
        split = choose_split(&p);
    }
    if (split < 0) {
        return ERR_LIMIT;
    }
    *p.head = (struct attention_plan_head){
        .tile_rows = p.most_rows,
        .items_offset = (int32_t)items_offset(limits, n_rows),
        .n_paths = p.n_paths,
        .paths_offset = (int32_t)paths_offset(n_rows),
        .n_runs = p.n_runs,
        .runs_offset = (int32_t)runs_offset(limits, n_rows),
    };
    give_slots(&p, split);
    place_items(&p, split);
    int64_t n_keys = 0;
    for (int32_t i = 0; i < p.n_tiles; i++) {
        n_keys += p.tiles[i].kv_end - p.tiles[i].kv_begin;
        p.head->n_others += p.tiles[i].lane <= limits->max_lanes;
    }
    p.head->mean_keys = (int32_t)(n_keys / at_least_1(p.head->n_items));
    *used = items_offset(limits, n_rows) + (size_t)p.head->n_items * sizeof(struct attention_item);
    return OK;
}

struct attention_plan_facts attention_plan_facts(const void *plan)
{
    const struct attention_plan_head *head = plan;
    return (struct attention_plan_facts){head->n_slots, head->n_runs, head->n_others > 0};
}
