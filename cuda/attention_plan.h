// SPDX-License-Identifier: Apache-2.0
/* The attention plan of one pass as the device reads it: a list of items, each a tile of query rows
 * against a range of one lane's keys, and for each row the location of its partial results.
 *
 *   struct attention_plan_head | struct attention_row [bucket's rows]
 *       | struct attention_path [max_paths] | struct attention_run [max_runs]
 *       | struct attention_item [n]
 *
 * An item is processed once per KV head. A tile then has one packed row for each pair of a query
 * row and a query head that uses this KV head. If one item covers all keys of a row, it writes the
 * output directly. Otherwise each item leaves (unnormalised output, maximum, sum) in the row's slot
 * `split`, and a second kernel joins slots 0, 1, ... in that order. A prefix shared by several
 * sequences becomes items whose rows belong to several sequences and whose keys are read through
 * the first one's block table.
 *
 * In deterministic mode a tree row must get the same bits as a plain run over its ancestors, so its
 * keys must be where they would be in that run. If the keys of a row's ancestors already are there
 * (the rows of the first path), the row becomes a causal item. The other paths are copied before
 * every layer's attention into separate pages, which follow the trash page. Their rows become
 * causal items of extra lanes, which follow the null lane and whose block tables name these pages.
 * The kernels that compute attention need no special case.
 *
 * Keys that many rows read are treated in the same way if pages hold codes, the mode is not
 * deterministic, and the pass is never captured: before every layer's attention they are expanded
 * to floating point (attention/expand.cu). The items that read them belong to extra lanes after the
 * null lane, whose block tables name the expanded pages. Compiles as C11 and C++17.
 * Thread: plain data. */
#ifndef SLUICE_CUDA_ATTENTION_PLAN_H
#define SLUICE_CUDA_ATTENTION_PLAN_H

#include "cuda/attention.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ATTENTION_KV_TILE = 128, // splits are multiples of this, and the kernels' key tiles divide it
    // Deterministic mode: keys are summed in runs of this length, counted from 0, and the runs are
    // joined in order.
    ATTENTION_FIXED_SPLIT = 512,
    // Maximum number of packed rows (rows times heads of a group) in a tile.
    ATTENTION_TILE_ROWS = 128,
    ATTENTION_MAX_DIM = 512, // maximum width of a value vector
    ATTENTION_MAX_RUNS = 64, // per pass
    ATTENTION_RUN_ROWS = 64, // number of rows from which expanding a run is worthwhile
    // Resident blocks per multiprocessor, for the kernel that reads codes.
    ATTENTION_CODE_BLOCKS = 2,
};

enum attention_mask {
    ATTENTION_ALL,    // every key of the range is older than every row
    ATTENTION_CAUSAL, // row i of the sequence sees slots up to n_past + i
    ATTENTION_TREE,   // of the slots from n_past on, a row sees those in its tree mask
    ATTENTION_BOTH, // every row sees every key of the range, although the pass stores some of them
};

struct attention_item {
    int32_t first_row;
    uint16_t n_rows;
    uint8_t mask; // enum attention_mask
    // Deterministic mode: the item covers several fixed splits and joins them in order.
    uint8_t fold;
    int32_t lane;
    int32_t kv_begin, kv_end; // range of slots; kv_begin is a multiple of the page size
    int32_t split;            // the row's slot for the result; -1: the result is the output
    int32_t n_past, seq_row; // of the rows' sequence: its number of tokens before the pass, and its
                             // first row in the pass
};

struct attention_row {
    int32_t first_slot, n_slots; // n_slots 0: there is nothing to join
};

/* Path i of the plan uses lane max_lanes + 1 + i. It consists of the past tokens in the lane's last
 * page, then the ancestors of pass row `row` in order, and then that row. */
struct attention_path {
    int32_t row, seq_row; // seq_row: the sequence's first row
    int32_t lane, n_past;
};

/* Keys [begin, end) of a lane, which are expanded to floating point. Run i of the plan uses lane
 * max_lanes + 1 + i. */
struct attention_run {
    int32_t lane, begin, end;
    int32_t first_page; // first expanded page: it holds the page that contains `begin`
    int32_t low_pos;    // lowest position among the rows that read the run
};

struct attention_plan_head {
    int32_t n_items, tile_rows; // tile_rows: number of rows in the largest item
    int32_t n_slots;            // 0: there is nothing to join
    int32_t items_offset;       // bytes from the head
    int32_t mean_keys;          // average number of keys per item
    int32_t n_paths, paths_offset;
    int32_t n_runs, runs_offset;
    int32_t n_others; // number of tiles that read keys outside the expanded runs
    // Both prompts and decoding rows have much work: every second block begins with its last unit.
    int32_t both_ways;
    int32_t reserved[5];
};

/* The workspace: scratch memory for folding items, then the slots. For each head, a slot has
 * head_dim_v values, the maximum (as a power of two), the sum, and two words of padding. */
size_t attention_scratch_bytes(const struct attention_limits *limits);

static inline size_t attention_slot_floats(int32_t n_heads, int32_t head_dim_v)
{
    return (size_t)n_heads * ((size_t)head_dim_v + 4);
}

#ifdef __cplusplus
}
#endif

#endif
