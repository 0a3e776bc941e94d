// SPDX-License-Identifier: Apache-2.0
/* The plan of one pass's attention, as the device reads it: a list of items, each a tile of query
 * rows against a run of one lane's keys, and for each row the places of its partial results.
 *
 *   struct attention_plan_head | struct attention_row [bucket's rows]
 *       | struct attention_path [max_paths] | struct attention_run [max_runs]
 *       | struct attention_item [n]
 *
 * An item is worked off once per KV head, its rows times the heads of the group packed into one
 * tile. A row whose keys are one item is written to the output by that item; otherwise each item
 * leaves (unnormalised output, maximum, sum) in the row's slot `split`, and a second kernel joins
 * slots 0, 1, ... in that order. A prefix that several sequences share is items whose rows belong
 * to several sequences and whose keys are read through the first one's block table.
 *
 * Deterministic, a row of a tree must get the bits of a plain run over its ancestors, so its keys
 * must lie where they would lie then. The rows whose ancestors do (those of the first path) are
 * causal items. The others' paths are laid out anew before every layer's attention: in pages of
 * their own behind the trash page, through block tables of their own behind the null lane's, and
 * their rows are causal items of those lanes. The kernels that compute need not know.
 *
 * Where pages hold codes, not deterministic, and in passes that are never captured, keys that many
 * rows read are expanded before every layer's attention, likewise (expand.cu): their items are
 * those of lanes behind the null lane's, whose tables name pages of numbers.
 * Compiles as C11 and C++17. Thread: plain data. */
#ifndef SLUICE_CUDA_ATTENTION_PLAN_H
#define SLUICE_CUDA_ATTENTION_PLAN_H

#include "cuda/attention.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ATTENTION_KV_TILE = 128,     // splits are multiples of it; kernels' key tiles divide it
    ATTENTION_FIXED_SPLIT = 512, // deterministic mode: keys are summed in runs of this many,
                                 // counted from 0, and the runs joined in order
    ATTENTION_TILE_ROWS = 128,   // packed rows (rows times heads of a group) of a tile, at most
    ATTENTION_MAX_DIM = 512,     // of a value
    ATTENTION_MAX_RUNS = 64,     // of a pass
    ATTENTION_RUN_ROWS = 64,     // that read a run, at least
    ATTENTION_CODE_BLOCKS = 2,   // blocks to a multiprocessor of the kernel that reads codes
};

enum attention_mask {
    ATTENTION_ALL,    // every key of the run is older than every row
    ATTENTION_CAUSAL, // row i of the sequence sees slots up to n_past + i
    ATTENTION_TREE,   // slots from n_past on are seen where the row's tree mask says so
};

struct attention_item {
    int32_t first_row;
    uint16_t n_rows;
    uint8_t mask; // enum attention_mask
    uint8_t fold; // deterministic: covers several fixed splits, joined in order by the item
    int32_t lane;
    int32_t kv_begin, kv_end; // slots; begin is a multiple of the page size
    int32_t split;            // the row's slot that takes the result; -1: it goes to the output
    int32_t n_past, seq_row;  // of the rows' sequence: its past, and its first row in the pass
};

struct attention_row {
    int32_t first_slot, n_slots; // n_slots 0: nothing to join
};

/* Path i of the plan has lane max_lanes + 1 + i: the lane's past from its last page on, and the
 * ancestors of pass row `row` and itself, in order. */
struct attention_path {
    int32_t row, seq_row; // seq_row: the sequence's first row
    int32_t lane, n_past;
};

/* Keys [begin, end) of a lane, expanded; run i of the plan has lane max_lanes + 1 + i. */
struct attention_run {
    int32_t lane, begin, end;
    int32_t first_page; // of begin's block
    int32_t low_pos;    // of the rows that read it
};

struct attention_plan_head {
    int32_t n_items, tile_rows; // tile_rows: rows of the largest item
    int32_t n_slots;            // 0: nothing to join
    int32_t items_offset;       // bytes from the head
    int32_t mean_keys;          // of an item
    int32_t n_paths, paths_offset;
    int32_t n_runs, runs_offset;
    int32_t n_others; // items of other lanes than runs'
    int32_t reserved[6];
};

/* The workspace: scratch of the folding items, then slots. A slot holds, for each head, head_dim_v
 * values, the maximum (as a power of two), the sum, and two words of padding. */
size_t attention_scratch_bytes(const struct attention_limits *limits);

static inline size_t attention_slot_floats(int32_t n_heads, int32_t head_dim_v)
{
    return (size_t)n_heads * ((size_t)head_dim_v + 4);
}

#ifdef __cplusplus
}
#endif

#endif
