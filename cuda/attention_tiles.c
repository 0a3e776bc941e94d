// SPDX-License-Identifier: Apache-2.0
/* Divides the rows of a pass into tiles. Each tile reads one range of keys: a sequence's own keys,
 * the prefix that a group shares, or a path of a tree. */
#include "cuda/attention_planner.h"

static void add_tiles(struct planner *p, struct attention_item tile, int32_t first_row,
                      int32_t n_rows)
{
    for (int32_t r = 0; r < n_rows; r += p->tile_rows) {
        struct attention_item *t = &p->tiles[p->n_tiles++];
        *t = tile;
        t->first_row = first_row + r;
        t->n_rows = (uint16_t)lesser(p->tile_rows, n_rows - r);
        p->most_rows = greater(t->n_rows, p->most_rows);
        if (tile.mask == ATTENTION_CAUSAL) {
            t->kv_end = tile.n_past + (t->first_row - tile.seq_row) + t->n_rows;
        }
    }
}

/* The lane through whose table the rows read the keys of `run`. It is the lane of an expanded run
 * if enough rows read codes and there is memory for it. */
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

/* The number of leading keys that are in the past of every row of the group; 0 if sharing does not
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
    if (saved > 2 * ATTENTION_SLOT_COST * (int64_t)n_rows) {
        return (int32_t)keys;
    }
    return 0;
}

/* ---- trees whose paths are copied ----------------------------------------------------------- */

static bool has_bit(const uint64_t *mask, int32_t i)
{
    return mask[i / 64] >> (i % 64) & 1;
}

/* For the rows of one tree: the number of ancestors of each, and the path that contains it (-1: its
 * keys are already in place). */
struct tree_rows {
    int32_t n_in_place;
    int32_t depth[MAX_TREE_NODES], path[MAX_TREE_NODES];
};

/* Assigns paths to the rows that need one. False: there are not enough paths. */
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
    for (int32_t r = s->n_rows - 1; r >= t->n_in_place; r--) { // begins at the leaves
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

/* Divides a tree into causal items, whose keys are in place or in a path. Returns false if that is
 * not possible; the rows then use their masks. */
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
    enum attention_mask mask = s->tree ? ATTENTION_TREE : ATTENTION_CAUSAL;
    if (p->pass->bidirectional) {
        mask = ATTENTION_BOTH;
    }
    const struct attention_item tile = {
        .mask = (uint8_t)mask,
        .fold = shared > 0,
        .lane = lane_of_keys(p, run, s->n_rows),
        .kv_begin = shared,
        .kv_end = s->n_past + s->n_rows,
        .n_past = s->n_past,
        .seq_row = s->first_row,
    };
    add_tiles(p, tile, s->first_row, s->n_rows);
}

void attention_make_tiles(struct planner *p, bool with_groups)
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
        /* Every row's position is after the prefix. */
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
