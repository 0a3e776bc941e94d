// SPDX-License-Identifier: Apache-2.0
/* Shared by the files that make an attention plan: attention_sizes.c (how much memory it may take),
 * attention_tiles.c (its tiles, before they are split) and attention_plan.c (splits and items). For
 * these files only.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_ATTENTION_PLANNER_H
#define SLUICE_CUDA_ATTENTION_PLANNER_H

#include "cuda/attention_plan.h"
#include "engine/base/minmax.h"

/* The cost of joining one more slot, in units of the cost of one key. Empirical: with 32 or less, a
 * group of 16 sequences is divided into so many items that it takes 25 % longer. */
enum { ATTENTION_SLOT_COST = 48 };

struct planner {
    const struct attention_limits *limits;
    struct attention_shape shape;
    const struct pass *pass;
    int32_t n_rows, max_tiles, max_items, max_slots;
    int32_t tile_rows; // number of rows in a tile
    struct attention_plan_head *head;
    struct attention_row *rows;
    struct attention_item *items;
    /* The tiles before they are split. `fold` is set if the tile's rows read a shared prefix: in
     * the tile of the prefix itself, and in the tiles of these rows' remaining keys, which start
     * where the prefix ends. */
    struct attention_item *tiles;
    int32_t n_tiles, most_rows; // most_rows: the largest n_rows of any tile
    struct attention_path *paths;
    int32_t n_paths;
    struct attention_run *runs;
    int32_t n_runs, n_run_pages;
};

static inline int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

static inline int32_t at_least_1(int32_t n)
{
    return greater(1, n);
}

/* The maximum numbers of tiles and items in a plan of n_rows rows, and of slots in the
 * workspace. */
int32_t attention_max_tiles(int32_t n_rows);
int32_t attention_max_items(const struct attention_limits *limits, int32_t n_rows);
int32_t attention_max_slots(const struct attention_limits *limits,
                            const struct attention_shape *shape);

/* Where the parts of a plan begin, in bytes from the plan's head. */
size_t attention_paths_offset(int32_t n_rows);
size_t attention_runs_offset(const struct attention_limits *limits, int32_t n_rows);
size_t attention_items_offset(const struct attention_limits *limits, int32_t n_rows);

/* Fills p->tiles, paths and runs from the pass. Without with_groups, no prefix is shared. */
void attention_make_tiles(struct planner *p, bool with_groups);

#endif
