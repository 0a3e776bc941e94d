// SPDX-License-Identifier: Apache-2.0
/* One sequence: a sample of a request on its way through the engine. Its known tokens (prompt and
 * generated) only grow; all else can be rebuilt from them.
 *
 *     0 ......... n_prompt ........ n_known .... n_known + n_flight
 *     [ prompt   ][ generated      ][ drawn by steps in flight ]
 *     [ n_computed: rows submitted, KV in pages               )
 *
 * Between steps n_computed <= n_known + n_flight; a step lets it catch up, and a token is drawn
 * exactly when they meet.
 * Thread: engine. */
#ifndef SLUICE_ENGINE_SCHEDULE_SEQUENCE_H
#define SLUICE_ENGINE_SCHEDULE_SEQUENCE_H

#include "engine/schedule/request.h"

enum sequence_state { SEQ_FREE, SEQ_WAITING, SEQ_RUNNING, SEQ_RETIRING };

/* What a proposer says of a sequence's next step. */
struct proposal {
    int32_t n_drafts;
    int32_t drafts[MAX_DRAFTS];
    bool on_device;       // n_drafts is a count only: draft models draw them in the same step
    bool forced;          // they are no guess: a grammar has nothing else
    int32_t law;          // 1 + the first of its drafts' laws on the device; 0: none are kept
    int32_t depth;        // of a tree: levels that it may have
    int32_t n_beside;     // of them, n_drafts has so many beside the spine, if it is a comb
    bool waits_for_token; // the token in flight is needed before the next step
};

/* What speculation remembers of a sequence. */
struct spec_trust {
    int32_t pause; // turns without proposals
    float doubt;   // running share of rejected drafts; negative: none were judged yet
};

/* What the cache has of a sequence that waits: see fronts.h. */
struct sequence_front {
    bool filed;
    int32_t n_blocks;             // whose keys and values are there
    uint64_t chain;               // uid of the last of them
    struct sequence *prev, *next; // of those that lack a block with the same hash
    int32_t bucket;               // -1: it lacks none
    int32_t heap_at;
};

struct sequence {
    /* What it is: the scheduler's, when it is added. */
    struct engine_request *request;
    struct engine_output *output; // NULL for pooling
    int32_t sample, index;        // index: in the scheduler's array
    int32_t priority;
    int64_t turn_ns; // when it came, sooner or later by what its priority is worth
    uint64_t order;  // of arrival, or of the sequence that it has overtaken
    int64_t slip;    // 0, or where it stands before the one it has overtaken: below 0
    int32_t n_prompt;
    int32_t max_tokens; // clipped to what fits in max_len

    /* How far it is: the scheduler's; n_known and n_flight also the engine's, which appends. */
    struct sequence *prev, *next; // the total order
    enum sequence_state state;
    int32_t n_known, n_flight, n_computed;
    int64_t planned_in;  // number of the last plan that had it
    int32_t n_inflight;  // steps submitted and not yet committed that have its rows
    int32_t n_verifying; // drafts in flight: not planned again before they are judged
    bool was_admitted;   // hit statistics count the first admission only
    int64_t overtakers;  // scheduler.overtakers when it arrived

    struct sequence_front front; // the fronts'

    /* What it holds: the holdings'. */
    int32_t lane;           // -1: none
    int32_t n_blocks;       // of holdings.lane_blocks[lane]
    int32_t n_granted;      // blocks that the backend's table has
    uint64_t root;          // of the prefix cache
    uint64_t chain;         // uid of the last entered block, the parent of the next
    int32_t n_entered;      // full blocks walked into the cache (or past, where an equal node was)
    int32_t branch;         // a boundary of state up to which others had the same tokens; 0: none
    int32_t draft_computed; // rows of the draft models: their KV below this is that of known tokens
    int32_t draft_marked;   // blocks below it are marked as having draft KV

    /* What is guessed of it: the proposers'; the tree the step's that is in flight. */
    struct proposal proposal;
    struct spec_trust trust;
    struct spec_tree *tree; // NULL: none, or a chain
};

static inline int32_t sequence_token(const struct sequence *s, int32_t i)
{
    return i < s->n_prompt ? s->request->prompt[i] : s->output->tokens[i - s->n_prompt];
}

static inline int32_t sequence_generated(const struct sequence *s)
{
    return s->n_known - s->n_prompt;
}

/* What a priority is worth: so much later than its arrival a sequence's turn comes, or sooner below
 * 0. One more counts as having come up to 27 s later, and all that there are as 5 minutes. So who
 * comes MAX_ADVANTAGE_S after another is never before it, whatever the two priorities: a stream of
 * better ones puts nobody off for longer, neither one that waits nor one that runs already. */
enum { MAX_ADVANTAGE_S = 600 };

static inline int64_t priority_worth_ns(int32_t priority)
{
    enum { HALF_AT = 10 }; // the priority that is worth half of all
    double p = priority, size = p < 0 ? -p : p;
    return (int64_t)(MAX_ADVANTAGE_S / 2 * 1e9 * p / (size + HALF_AT));
}

/* The total order. It never changes while they wait, since turns are fixed at the arrival. */
static inline bool sequence_comes_before(const struct sequence *a, const struct sequence *b)
{
    if (a->turn_ns != b->turn_ns) {
        return a->turn_ns < b->turn_ns;
    }
    if (a->priority != b->priority) {
        return a->priority < b->priority;
    }
    return a->order != b->order ? a->order < b->order : a->slip < b->slip;
}

/* Tokens there will be when the steps in flight are done. */
static inline int32_t sequence_future(const struct sequence *s)
{
    return s->n_known + s->n_flight;
}

/* Known tokens from the first on whose rows are submitted, drafts aside. */
static inline int32_t sequence_sure(const struct sequence *s)
{
    int32_t n = s->n_computed - s->n_verifying;
    return n < s->n_known ? n : s->n_known;
}

/* True if a token in flight must be known before the next draw can be planned: drafts are guessed
 * from it. (What a grammar allows next may come later: struct pass, draws_wait.) */
static inline bool sequence_waits(const struct sequence *s)
{
    return s->n_flight > 0 && s->proposal.waits_for_token;
}

/* True if one more token may be drawn. */
static inline bool sequence_wants_token(const struct sequence *s)
{
    return sequence_generated(s) + s->n_flight < s->max_tokens;
}

#endif
