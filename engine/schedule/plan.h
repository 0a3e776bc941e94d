// SPDX-License-Identifier: Apache-2.0
/* The plan of a step, i.e. which sequences feed which rows, and its limits. The scheduler and the
 * holdings write it; the code that builds the step reads it.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_SCHEDULE_PLAN_H
#define SLUICE_ENGINE_SCHEDULE_PLAN_H

#include "engine/base/minmax.h"
#include "engine/device/backend.h"
#include "engine/schedule/sequence.h"

/* Chosen: four times the largest block size that a backend prefers. It is the size of an array on
 * the stack. */
enum { MAX_BLOCK_TOKENS = 256 };

struct scheduler_limits {
    int32_t max_rows, max_out, max_draws, max_lanes, max_sequences;
    int32_t mixed_rows; // rows of a step that also decodes (scheduler.c); 0: max_rows
    int32_t max_len, n_blocks, block_tokens, max_blocks_per_lane;
    int32_t match_unit; // a cached prefix ends with a block, or this many tokens (or a multiple)
                        // later; block_tokens: only with a block
    bool prefix_cache, chunked;
    uint64_t hash_key;

    /* For layers that see only the last `window` positions, or those of their own row's chunk of
     * `window_chunk` positions (0: there are no such layers), and whose pages are counted
     * separately. n_pages 0: all layers keep all positions. window_rows: see
     * windows_least_rows. */
    int32_t n_pages, window, window_chunk, window_rows;

    /* For models with recurrent state (backend.h). state_block: positions between boundaries (0: no
     * state); state_ahead: the state set's max_ahead; state_interval: tokens between periodic
     * snapshots, a multiple of state_block. */
    int32_t state_block, state_ahead, n_snapshots, state_interval;
};

/* Rows first .. first + n_rows of a sequence; the last n_drafts of them are drafts. */
/* The maximum number of pooling results in a step: one per request, or one per row with hidden
 * states.
 */
static inline size_t max_pools(const struct scheduler_limits *l)
{
    return (size_t)l->max_out + (size_t)l->max_lanes;
}

struct plan_entry {
    struct sequence *seq;
    int32_t first, n_rows, n_drafts;
    bool draws; // the rows reach the end of the known tokens, so a token is sampled (or a vector
                // pooled)
};

/* A sibling whose first token is sampled from the last row of an entry. */
struct plan_fork {
    struct sequence *seq;
    int32_t entry;
};

/* New blocks of a lane for the backend's table. fresh: a new sequence starts in the lane. */
struct plan_grant {
    struct sequence *seq;
    int32_t first, n;
    bool fresh;
};

/* New entries of a lane's table of window pages. */
struct plan_pages {
    struct sequence *seq;
    int32_t first, n;
};

struct plan {
    int32_t n_rows, n_out, n_draws;
    int32_t max_rows;                   // of this step
    int32_t n_background, n_foreground; // prompt rows of background requests, and of the others
    int64_t n_hits; // prompt tokens of newly admitted sequences that were in the cache
    int32_t n_entries, n_forks, n_grants, n_copies, n_failed;
    int32_t n_state_copies, n_keeps, n_pages, n_page_copies;
    struct plan_entry *entries;      // [max_lanes]
    struct plan_fork *forks;         // [max_lanes]
    struct plan_grant *grants;       // [2 max_lanes]
    struct block_copy *copies;       // [max_lanes]
    struct plan_pages *pages;        // [max_page_grants]
    struct block_copy *page_copies;  // [max_page_copies], of window pages
    struct state_copy *state_copies; // [max_state_copies]
    struct state_keep *keeps; // [max_keeps], states at boundaries that the entries' rows cross
    struct sequence **failed; // [max_lanes], sequences that can never run
};

/* The maximum number of copies of states in a step. For each lane there are at most two out of it,
 * for the sequence that leaves and the one that begins, and one into it, from a snapshot or another
 * lane. */
static inline int32_t max_state_copies(const struct scheduler_limits *l)
{
    return l->state_block > 0 ? 4 * l->max_lanes : 0;
}

/* The maximum numbers of changes of tables of window pages in a step, at most two for a sequence,
 * and of copies of such pages. */
static inline int32_t max_page_grants(const struct scheduler_limits *l)
{
    return l->n_pages > 0 ? 2 * l->max_lanes : 0;
}

static inline int32_t max_page_copies(const struct scheduler_limits *l)
{
    return l->n_pages > 0 ? l->max_lanes : 0;
}

static inline int32_t max_keeps(const struct scheduler_limits *l)
{
    int32_t rows = l->state_block > 0 ? l->max_rows / l->state_block : 0;
    return lesser(rows, l->n_snapshots);
}

/* ---- window pages ------------------------------------------------------------------------- */

/* The first position that a row at `pos` sees in any of these layers. */
static inline int32_t windows_first(const struct scheduler_limits *l, int32_t pos)
{
    int32_t first = pos;
    if (l->window > 0) {
        first = pos - l->window + 1;
    }
    if (l->window_chunk > 0) {
        first = lesser(first, pos / l->window_chunk * l->window_chunk);
    }
    return greater(first, 0);
}

/* The rows for which a sequence always has pages. A prompt gets pages for larger chunks while there
 * are any; without chunked prefill it needs them all at once. */
static inline int32_t windows_least_rows(const struct scheduler_limits *l)
{
    return l->chunked ? lesser(l->max_rows, l->window_rows) : l->max_rows;
}

/* The pages that n_rows rows can see and write at a time. */
static inline int32_t windows_span(const struct scheduler_limits *l, int32_t n_rows)
{
    const int32_t seen = greater(l->window, l->window_chunk);
    return (seen + n_rows - 2 + l->block_tokens - 1) / l->block_tokens + 1;
}

/* The pages that a sequence of n_tokens tokens can need at a time, in steps with n_rows of its rows
 * (0: windows_least_rows). */
static inline int32_t windows_pages(const struct scheduler_limits *l, int32_t n_tokens,
                                    int32_t n_rows)
{
    if (l->n_pages == 0) {
        return 0;
    }
    const int32_t all = (n_tokens + l->block_tokens - 1) / l->block_tokens;
    return lesser(all, windows_span(l, n_rows > 0 ? n_rows : windows_least_rows(l)));
}

/* With fewer pages than this some sequences could never run. One is for a copy. */
static inline int32_t windows_least_pages(const struct scheduler_limits *l)
{
    return windows_span(l, windows_least_rows(l)) + 1;
}

void plan_init(struct plan *p, const struct scheduler_limits *limits);
void plan_deinit(struct plan *p);
void plan_clear(struct plan *p);

/* Reduces the number of drafts of an entry after planning, before the plan is submitted. */
void plan_trim(struct plan *p, struct plan_entry *entry, int32_t n_drafts);

/* Drops the blocks granted in this plan to a sequence that is then preempted. */
void plan_drop_grants(struct plan *p, const struct sequence *seq);

/* Whether the plan forks this sequence from its leader. */
bool plan_forks(const struct plan *p, const struct sequence *seq);

#endif
