// SPDX-License-Identifier: Apache-2.0
/* The fake backend's memory, for its ops (fake_backend.c) and its draws (fake_draws.c).
 * Thread: as for any backend. */
#ifndef SLUICE_TEST_FAKE_INTERNAL_H
#define SLUICE_TEST_FAKE_INTERNAL_H

#include "engine/base/assert.h"
#include "test/engine/fake_backend.h"

struct slot {
    int32_t token, pos; // token -1: poisoned
    int64_t pass;       // number of the pass that stored it
};

enum { MAX_PASSES = 50, SETS = 4 };

/* Memory as a real backend has it: per KV set, per lane, and per slot of a step. */
struct fake {
    struct backend base;
    struct fake_control *control;
    struct backend_limits l;
    struct slot *slots[SETS];  // by KV set: [n_blocks * block_tokens]
    struct slot *window_slots; // [n_window_pages * block_tokens], of all windowed layers
    int32_t *page_tables;      // [max_lanes, max_blocks_per_lane]
    // The first layers of set 0 of each kind; -1: there is none.
    int32_t first_whole, first_windowed;
    int32_t *history;         // [max_lanes, max_len]
    int32_t *tables;          // [max_lanes, max_blocks_per_lane]
    uint64_t *seeds;          // [max_lanes]
    float *pool_state;        // [max_lanes]
    uint64_t *row_hash;       // [max_rows]
    struct fake_state *state; // recurrent state of set 0; NULL: none
    uint64_t *state_hash;     // [max_rows]
    int32_t *row_token;       // [max_rows]
    const struct pass *pass;
    bool paused, draws_came; // state of a pass whose draws come later
    int32_t slot_now, n_passes;
    int64_t pass_number; // counts all passes
    struct draw_result *results[2][MAX_PASSES];
    float *pooled[2];
    float *logits[2]; // [max_out_rows + max_lanes, vocab]
    int32_t n_draws[2][MAX_PASSES];
    int dummy;
};

static inline struct fake *fake_of(struct backend *be)
{
    return (struct fake *)be;
}

static inline struct slot *slot_in(struct fake *f, int32_t set, int32_t lane, int32_t pos)
{
    int32_t size = f->l.block_tokens;
    int32_t block = f->tables[lane * f->l.max_blocks_per_lane + pos / size];
    ASSERT(block >= 0 && block < f->l.n_blocks);
    return &f->slots[set][block * size + pos % size];
}

/* The slot of a position in the KV set of the pass. */
static inline struct slot *slot_at(struct fake *f, int32_t lane, int32_t pos)
{
    return slot_in(f, f->pass->kv_set, lane, pos);
}

static inline int32_t *history_at(struct fake *f, int32_t lane, int32_t pos)
{
    ASSERT(pos >= 0 && pos < f->l.max_len);
    return f->history + (size_t)lane * (size_t)f->l.max_len + pos;
}

/* True if the row of a tree attends to the node. */
static inline bool sees(const struct fake *f, int32_t row, int32_t node)
{
    return f->pass->tree_mask[row * TREE_MASK_WORDS + node / 64] >> (node % 64) & 1;
}

/* Whether the layer stands for all that keep all tokens, or for all with a window. */
static inline bool is_whole(const struct fake *f, int32_t layer)
{
    return layer == (f->pass->kv_set == 0 ? f->first_whole : 0);
}

static inline bool is_windowed(const struct fake *f, int32_t layer)
{
    return f->pass->kv_set == 0 && layer == f->first_windowed;
}

/* Asserts that no copy writes what another one reads. */
void fake_check_copies(const struct block_copy *copies, int32_t n);

/* ---- fake_windows.c: layers with a window ---- */
void fake_windows_open(struct fake *f);
void fake_windows_close(struct fake *f);
void fake_windows_layers(struct fake *f, int32_t set, const struct kv_set_desc *desc);
enum status fake_lane_pages(struct backend *be, int32_t lane, int32_t first, int32_t n,
                            const int32_t *pages);
enum status fake_copy_pages(struct backend *be, int32_t n, const struct block_copy *copies);
enum status fake_poison_pages(struct backend *be, int32_t n, const int32_t *pages);
void fake_windows_move(struct fake *f, const struct slot_move *m);
/* The pass's rows of such a layer: are stored, and check what they see. */
void fake_windows_store(struct fake *f);
void fake_windows_read(struct fake *f, const struct attention_args *a);

enum status fake_sample(struct backend *be, const struct sample_args *a);

#endif
