// SPDX-License-Identifier: Apache-2.0
/* One sequence: a sample of a request on its way through the engine. Its known tokens (prompt and
 * generated) are only appended; everything else can be rebuilt from them.
 *
 *     0 ......... n_prompt ........ n_known .... n_known + n_flight
 *     [ prompt   ][ generated      ][ drawn by steps in flight ]
 *     [ n_computed: rows submitted, KV in pages               )
 *
 * Between steps n_computed <= n_known + n_flight; steps let it catch up, and a token is sampled
 * exactly when the two are equal.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_SEQUENCE_H
#define SLUICE_ENGINE_SCHEDULE_SEQUENCE_H

#include "engine/base/minmax.h"
#include "engine/schedule/request.h"

enum sequence_state { SEQ_FREE, SEQ_WAITING, SEQ_RUNNING, SEQ_RETIRING };

/* A proposer's drafts for a sequence's next step. */
struct proposal {
    int32_t n_drafts;
    int32_t drafts[MAX_DRAFTS];
    bool on_device;   // only n_drafts is set; draft models will sample the drafts in the same step
    bool forced;      // the grammar allows no other tokens, so these drafts need not be guessed
    int32_t law;      // 1 + index on the device of the distribution of the first draft; 0: no
                      // distributions are kept
    int32_t depth;    // for a tree: its maximum depth
    int32_t n_beside; // for a comb: the number of siblings among n_drafts
    bool waits_for_token; // the next step cannot be planned before the token in flight is known
};

/* State of speculation for a sequence. */
struct spec_trust {
    int32_t pause; // number of proposal turns to skip
    float doubt; // moving average of the share of rejected drafts; negative: none were verified yet
};

/* The cached front of a waiting sequence: see fronts.h. */
struct sequence_front {
    bool filed;
    int32_t n_blocks;             // blocks with cached keys and values
    uint64_t chain;               // uid of the last of them
    struct sequence *prev, *next; // list of the sequences whose missing blocks have the same hash
    int32_t bucket;               // -1: no block is missing
    int32_t heap_at;
};

struct sequence {
    /* Identity: set by the scheduler when it is added. */
    struct engine_request *request;
    struct engine_output *output; // NULL for pooling
    int32_t sample, index;        // index: in the scheduler's array
    int32_t priority;
    int64_t turn_ns; // arrival time, shifted by its priority (priority_worth_ns)
    uint64_t order;  // rank in arrival, or that of the sequence that it overtook
    // 0; negative for an overtaker, which it orders before the sequence whose rank it took
    int64_t slip;
    int32_t n_prompt;
    int32_t max_tokens; // limited to what fits in max_len

    /* Progress: owned by the scheduler; the engine also updates n_known and n_flight when it
     * appends tokens. */
    struct sequence *prev, *next; // the total order
    enum sequence_state state;
    int32_t n_known, n_flight, n_computed;
    int64_t planned_in; // number of the last plan that contains it
    int32_t n_inflight; // number of submitted, uncommitted steps that contain its rows
    // Drafts in flight; the sequence is not planned again before they are verified.
    int32_t n_verifying;
    bool is_doubted;    // its results are not numbers, perhaps because of a block that it holds
    bool was_admitted;  // makes hit statistics count the first admission only
    int64_t overtakers; // value of scheduler.overtakers when it arrived

    struct sequence_front front; // owned by fronts.c

    /* Resources: owned by the holdings. */
    int32_t lane;      // -1: none
    int32_t n_blocks;  // number of entries in holdings.lane_blocks[lane]
    int32_t n_granted; // number of its blocks that are in the backend's table
    uint64_t root;     // its root in the prefix cache
    uint64_t chain;    // uid of the last block entered, the parent of the next one
    // Full blocks that were entered into the cache, or skipped because it had an equal node.
    int32_t n_entered;
    int32_t n_proven; // full blocks that a result of this sequence has proven
    int32_t n_begun;  // value of n_known when the sequence got its blocks
    int32_t branch;   // a state boundary up to which other sequences had the same tokens; 0: none
    /* Window pages: it sees those of its blocks page_first .. page_end, and has reserved
     * n_reserved. Those of its first n_resumed blocks were, or should have been, found in the
     * cache. */
    int32_t page_first, page_end, n_reserved, n_resumed;
    int32_t draft_computed; // the draft models' KV below this row is that of known tokens
    int32_t draft_marked;   // blocks below this one are marked as having draft KV

    /* Drafts: the proposer writes the proposal; the tree belongs to the step in flight. */
    struct proposal proposal;
    struct spec_trust trust;
    struct spec_tree *tree; // NULL: none, or a chain
};

static inline int32_t sequence_token(const struct sequence *s, int32_t i)
{
    if (i < s->n_prompt) {
        return s->request->prompt[i];
    }
    return s->output->tokens[i - s->n_prompt];
}

static inline int32_t sequence_generated(const struct sequence *s)
{
    return s->n_known - s->n_prompt;
}

/* The effect of a priority in time: a sequence is ordered by its arrival time plus this value,
 * which is negative for priorities below 0. A difference of one counts for up to 27 s, the largest
 * difference for MAX_ADVANTAGE_S. A sequence that arrives more than MAX_ADVANTAGE_S after another
 * therefore never comes before it, whatever their priorities: a stream of urgent requests cannot
 * delay a waiting or running sequence for longer than that. */
enum { MAX_ADVANTAGE_S = 600 };

static inline int64_t priority_worth_ns(int32_t priority)
{
    enum { HALF_AT = 10 }; // the priority that has half of the maximum worth
    double p = priority, size = p < 0 ? -p : p;
    return (int64_t)(MAX_ADVANTAGE_S * 0.5e9 * p / (size + HALF_AT));
}

/* The total order. It does not change while sequences wait, because turn_ns is fixed at arrival. */
static inline bool sequence_comes_before(const struct sequence *a, const struct sequence *b)
{
    if (a->turn_ns != b->turn_ns) {
        return a->turn_ns < b->turn_ns;
    }
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    if (a->order != b->order) {
        return a->order < b->order;
    }
    return a->slip < b->slip;
}

/* The number of known tokens once all steps in flight have finished. */
static inline int32_t sequence_future(const struct sequence *s)
{
    return s->n_known + s->n_flight;
}

/* The number of leading known tokens whose rows have been submitted, not counting drafts. */
static inline int32_t sequence_sure(const struct sequence *s)
{
    int32_t n = s->n_computed - s->n_verifying;
    return lesser(n, s->n_known);
}

/* True if a token in flight must be known before the next draw can be planned, because drafts
 * depend on it. (A grammar's mask may come later: struct pass, draws_wait.) */
static inline bool sequence_waits(const struct sequence *s)
{
    return s->n_flight > 0 && s->proposal.waits_for_token;
}

/* True if one more token may be sampled. */
static inline bool sequence_wants_token(const struct sequence *s)
{
    return sequence_generated(s) + s->n_flight < s->max_tokens;
}

#endif
