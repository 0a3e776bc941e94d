// SPDX-License-Identifier: Apache-2.0
/* Plans steps: which sequences run, with how many rows each. One total order over all sequences
 * decides who gets rows, blocks and lanes, and who is preempted, so that some sequence always makes
 * progress. */
#include "engine/schedule/scheduler.h"

#include "engine/schedule/admit.h"
#include "engine/schedule/hints.h"
#include "engine/schedule/overtake.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>

/* ---- memory ------------------------------------------------------------------------------- */

void scheduler_init(struct scheduler *s, const struct scheduler_limits *limits)
{
    *s = (struct scheduler){.limits = *limits};
    size_t n = (size_t)limits->max_sequences;
    holdings_init(&s->holdings, &s->limits);
    fronts_init(&s->fronts, &s->holdings, limits->max_sequences);
    s->next_slip = INT64_MIN;
    s->foreground = s->background = -1;
    s->sequences = xcalloc(n, sizeof *s->sequences);
    s->free_sequences = xcalloc(n, sizeof *s->free_sequences);
    for (size_t i = 0; i < n; i++) {
        s->sequences[i].index = (int32_t)i;
        s->free_sequences[n - 1 - i] = &s->sequences[i];
    }
    s->n_free_sequences = limits->max_sequences;
    s->order.prev = s->order.next = &s->order;
    s->victims = xcalloc((size_t)limits->max_lanes, sizeof *s->victims);
}

void scheduler_deinit(struct scheduler *s)
{
    fronts_deinit(&s->fronts);
    holdings_deinit(&s->holdings);
    free(s->sequences);
    free(s->free_sequences);
    free(s->victims);
    *s = (struct scheduler){0};
}

/* ---- arrival ------------------------------------------------------------------------------ */

/* Inserts into the list, which is in the total order. The search starts at the end, because a new
 * sequence usually comes last. */
static void order_insert(struct scheduler *s, struct sequence *seq)
{
    struct sequence *at = s->order.prev;
    while (at != &s->order && sequence_comes_before(seq, at)) {
        at = at->prev;
    }
    seq->prev = at;
    seq->next = at->next;
    at->next->prev = seq;
    at->next = seq;
}

/* Adds one sample's sequence. NULL if the maximum number of sequences is reached. */
struct sequence *scheduler_add(struct scheduler *s, struct engine_request *r, int32_t sample)
{
    if (s->n_free_sequences == 0) {
        return NULL;
    }
    struct sequence *seq = s->free_sequences[--s->n_free_sequences];
    int32_t index = seq->index, room = s->limits.max_len - r->n_prompt;
    const uint64_t adapter = (uint64_t)r->adapter_version << 32 | (uint32_t)r->adapter;
    *seq = (struct sequence){.request = r,
                             .output = r->outputs ? &r->outputs[sample] : NULL,
                             .sample = sample,
                             .index = index,
                             .state = SEQ_WAITING,
                             .priority = r->priority,
                             .turn_ns = r->t_submit_ns + priority_worth_ns(r->priority),
                             .order = (r->order << 8) + (uint64_t)sample,
                             .n_prompt = r->n_prompt,
                             .n_known = r->n_prompt,
                             .lane = -1,
                             .trust.doubt = -1.0f,
                             .overtakers = s->overtakers,
                             .max_tokens = lesser(r->params.max_tokens, room),
                             .root = prefix_cache_root(&s->holdings.cache, r->cache_salt, adapter)};
    if (r->pool != POOL_NONE) {
        seq->max_tokens = 0;
    }
    if (!r->background) {
        s->foreground = s->n_plans;
    }
    order_insert(s, seq);
    fronts_add(&s->fronts, seq);
    s->n_waiting++;
    s->waiting_tokens += r->n_prompt;
    return seq;
}

/* ---- the plan ----------------------------------------------------------------------------- */

/* The number of rows with logits among `n_rows` new rows of the sequence, given whether they reach
 * the end. */
static int32_t out_rows(const struct sequence *seq, int32_t n_rows, int32_t n_drafts, bool draws)
{
    const struct engine_request *r = seq->request;
    if (r->pool == POOL_MEAN || r->pool == POOL_TOKENS || r->pool == POOL_MAX ||
        (r->params.prompt_logprobs && seq->n_computed < seq->n_prompt)) {
        return n_rows;
    }
    return draws ? 1 + n_drafts : 0;
}

/* Adds a sequence with its rows, drafts and draws to this plan, and updates the plan's sums. */
static void add_entry(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n_rows,
                      int32_t n_drafts)
{
    bool reaches = seq->n_computed + n_rows - n_drafts == sequence_future(seq);
    bool draws = reaches && (sequence_wants_token(seq) || seq->request->pool != POOL_NONE);
    int32_t n_out = out_rows(seq, n_rows, n_drafts, draws);
    int32_t entry = p->n_entries++;
    holdings_plan_rows(&s->holdings, p, seq, n_rows);
    p->entries[entry] = (struct plan_entry){seq, seq->n_computed, n_rows, n_drafts, draws};
    p->n_rows += n_rows;
    p->n_out += n_out;
    p->n_draws += n_out;
    bool ends_prompt = reaches && seq->n_known == seq->n_prompt && seq->n_flight == 0;
    seq->n_computed += n_rows;
    seq->n_inflight++;
    seq->planned_in = s->n_plans;
    if (seq->request->background) {
        s->background = s->n_plans;
    }
    seq->n_verifying = n_drafts;
    if (draws && seq->request->pool == POOL_NONE) {
        seq->n_flight++;
    }
    if (ends_prompt && seq->request->n > 1 && seq->request->pool == POOL_NONE &&
        s->limits.prefix_cache) {
        scheduler_fork(s, p, entry);
    }
}

/* True if only the row of the last known token is missing, and that token comes after the
 * prompt. */
static bool is_decoding(const struct sequence *seq)
{
    return seq->state == SEQ_RUNNING && seq->n_verifying == 0 && seq->n_computed >= seq->n_prompt &&
           sequence_future(seq) - seq->n_computed == 1 && !sequence_waits(seq);
}

/* The rows that a prompt, or a preempted sequence, still needs. Without chunked prefill they must
 * be computed in one step, unless no step is large enough. */
static int32_t rows_owed(const struct scheduler *s, const struct sequence *seq)
{
    int32_t need = sequence_future(seq) - seq->n_computed, most = s->limits.max_rows;
    bool ready = seq->state == SEQ_RUNNING && seq->n_verifying == 0;
    if (!ready || need < 1 || (need == 1 && seq->n_computed >= seq->n_prompt)) {
        return 0;
    }
    if (out_rows(seq, need, 0, false) > 0) {
        most = lesser(s->limits.max_out, most);
    }
    if (need <= most) {
        return need;
    }
    return s->limits.chunked ? most : s->limits.max_rows;
}

/* Plans the decode rows of all running sequences. Drafts do not use rows that a later sequence
 * needs to decode or an earlier prompt needs. Without chunked prefill, enough rows for a prompt are
 * left, too. */
static void plan_decodes(struct scheduler *s, struct plan *p)
{
    int32_t n_owed = 0, n_later = 0;
    for (const struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        n_later += is_decoding(seq);
    }
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (!is_decoding(seq)) {
            int32_t owed = rows_owed(s, seq), left = s->limits.max_rows - p->n_rows - n_owed;
            if (owed > left) {
                owed = s->limits.chunked && left > 0 ? left : 0;
            }
            n_owed += owed;
            continue;
        }
        n_later--;
        bool yields = !s->limits.chunked && p->n_rows + n_owed >= s->limits.max_rows;
        if (!sequence_wants_token(seq) || yields || p->n_rows >= s->limits.max_rows ||
            p->n_out >= s->limits.max_out || p->n_draws >= s->limits.max_draws) {
            continue;
        }
        int32_t room = s->limits.max_rows - p->n_rows - 1 - n_owed - n_later;
        int32_t out_room = s->limits.max_out - p->n_out - 1 - n_later;
        int32_t drafts = seq->proposal.n_drafts;
        room = lesser(room, out_room);
        room = greater(room, 0);
        drafts = lesser(drafts, room);
        int32_t end = sequence_future(seq);
        if (drafts > 0 && !room_covers(holdings_available(&s->holdings),
                                       holdings_missing(&s->holdings, seq, end + drafts))) {
            drafts = 0; // if blocks are short, drafts are given up first
        }
        if (scheduler_grow(s, p, seq, end + drafts)) {
            add_entry(s, p, seq, 1 + drafts, drafts);
        }
        seq->proposal.n_drafts = 0;
    }
}

/* The number of rows of this step, whose decode rows have been planned. While answers are being
 * decoded, a step must not take long, or their readers would see pauses; where the device computes
 * short passes as fast as long ones, several short steps cost the prompts nothing. Many decode rows
 * can fill such a step, so prompts always get half of its rows. */
static int32_t rows_of_step(const struct scheduler *s, const struct plan *p)
{
    const int32_t most = s->limits.max_rows, mixed = s->limits.mixed_rows;
    bool decoding = false;
    for (const struct sequence *seq = s->order.next; seq != &s->order && !decoding;
         seq = seq->next) {
        decoding = seq->state == SEQ_RUNNING && seq->n_computed >= seq->n_prompt &&
                   sequence_wants_token(seq);
    }
    if (!decoding || mixed < 1 || !s->limits.chunked) {
        return most;
    }
    const int32_t rows = greater(mixed, p->n_rows + (mixed + 1) / 2);
    return lesser(rows, most);
}

enum { RECENT_PLANS = 256 }; // chosen: these take some seconds

static bool is_recent(const struct scheduler *s, int64_t plan)
{
    return plan >= 0 && s->n_plans - plan <= RECENT_PLANS;
}

/* The number of rows in a step available to prompts of background requests. A foreground request
 * waits for the step in flight. So after one has arrived, steps are kept short for some time, and
 * shorter still while its own prompt is in the step. */
static int32_t background_rows(const struct scheduler *s, const struct plan *p)
{
    enum { ROWS = 512, ROWS_BESIDE_PROMPT = 256 }; // chosen: fewer leave a GPU's units idle
    if (!is_recent(s, s->foreground) || !s->limits.chunked) {
        return s->limits.max_rows;
    }
    int32_t most = p->n_foreground > 0 ? ROWS_BESIDE_PROMPT : ROWS;
    return most - p->n_background;
}

bool scheduler_plans_late(const struct scheduler *s)
{
    return is_recent(s, s->foreground) && is_recent(s, s->background);
}

/* The largest chunk that the budgets allow for a sequence that needs `need` rows; 0: none. */
static int32_t chunk_of(const struct scheduler *s, const struct plan *p, const struct sequence *seq,
                        int32_t need)
{
    int32_t rows = p->max_rows - p->n_rows;
    int32_t outs = s->limits.max_out - p->n_out;
    int32_t draws = s->limits.max_draws - p->n_draws;
    if (seq->request->background) {
        int32_t most = background_rows(s, p);
        rows = lesser(rows, most);
    }
    int32_t n = lesser(need, rows);
    if (outs < 1 || draws < 1 || n < 1) {
        return 0;
    }
    outs = lesser(outs, draws);
    if (out_rows(seq, need, 0, false) > 0 && n > outs) {
        n = outs;
    }
    if (!s->limits.chunked && n < need && p->n_rows > 0) {
        return 0; // whole prompts only, unless one is larger than any step
    }
    return n;
}

static void count_prompt_rows(struct plan *p, const struct sequence *seq, int32_t n_rows)
{
    if (seq->request->background) {
        p->n_background += n_rows;
    } else {
        p->n_foreground += n_rows;
    }
}

/* Plans prompt chunks, restores preempted sequences and admits new ones, in the total order. */
static void plan_chunks(struct scheduler *s, struct plan *p)
{
    enum { MAX_REFUSED = 16 }; // chosen: bounds the work of a step if nothing fits
    int32_t n_refused = 0;
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (p->n_rows >= p->max_rows || n_refused >= MAX_REFUSED) {
            return;
        }
        if (seq->state == SEQ_WAITING && n_refused == 0) {
            seq = scheduler_let_pass(s, seq, p->max_rows - p->n_rows);
        }
        bool waited = seq->state == SEQ_WAITING;
        if (waited) {
            bool fits = chunk_of(s, p, seq, seq->n_known) > 0;
            enum admission a = fits ? scheduler_admit(s, p, seq) : NO_ROOM;
            n_refused += a == NO_ROOM;
            if (!fits && !s->limits.chunked) {
                // Otherwise later sequences would fill every step, and this one would wait for
                // ever.
                return;
            }
            if (a != ADMITTED) {
                continue;
            }
        }
        if (seq->state != SEQ_RUNNING || seq->n_verifying > 0) {
            continue;
        }
        int32_t need = sequence_future(seq) - seq->n_computed;
        bool decoding = need == 1 && seq->n_computed >= seq->n_prompt;
        if (need < 1 || (decoding && !waited)) {
            continue;
        }
        int32_t n = chunk_of(s, p, seq, need);
        if (n > 0) {
            n = holdings_fit_rows(&s->holdings, seq, n);
            add_entry(s, p, seq, n, 0);
            count_prompt_rows(p, seq, n);
        } else if (!s->limits.chunked) {
            return;
        }
    }
}

/* Admits waiting sequences that come before running ones in the order. Decode rows are planned
 * first, and planned sequences are not preempted. So these sequences must get their blocks before
 * that, or a stream of small requests would starve a large one. */
static void admit_overtaken(struct scheduler *s, struct plan *p)
{
    int32_t n_later = s->n_running, rows = s->limits.max_rows - s->n_running;
    for (struct sequence *seq = s->order.next; seq != &s->order && n_later > 0 && rows > 0;
         seq = seq->next) {
        if (seq->lane >= 0) {
            n_later--;
        }
        if (seq->state != SEQ_WAITING) {
            continue;
        }
        int32_t n_running = s->n_running;
        enum admission a = scheduler_admit(s, p, seq);
        if (a == NO_ROOM) {
            return;
        }
        if (a == ADMITTED) {
            n_later -= n_running + 1 - s->n_running; // running sequences preempted for this one
            rows -= sequence_future(seq) - seq->n_computed;
        }
    }
}

/* If nothing could be planned and nothing is in flight, the first sequence in the order can never
 * run, so it fails. */
static void fail_head(struct scheduler *s, struct plan *p)
{
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (seq->n_inflight > 0) {
            return;
        }
    }
    struct sequence *head = s->order.next;
    if (head != &s->order && head->state != SEQ_RETIRING) {
        p->failed[p->n_failed++] = head;
    }
}

static void narrow_all(struct scheduler *s)
{
    for (struct sequence *seq = s->order.next; seq != &s->order && s->limits.n_pages > 0;
         seq = seq->next) {
        if (seq->state == SEQ_RUNNING) {
            holdings_narrow(&s->holdings, seq);
        }
    }
}

/* Decode rows are planned first, because users are reading their text; the rest of the budget goes
 * to prompts. False: nothing can run. */
bool scheduler_plan(struct scheduler *s, struct plan *p)
{
    const int64_t hits_before = s->prefix_hits;
    plan_clear(p);
    s->n_plans++;
    narrow_all(s);
    admit_overtaken(s, p);
    plan_decodes(s, p);
    p->max_rows = rows_of_step(s, p);
    plan_chunks(s, p);
    if (p->n_entries == 0) {
        fail_head(s, p);
        return false;
    }
    holdings_plan_copies(&s->holdings, p);
    holdings_publish(&s->holdings, p);
    p->n_hits = s->prefix_hits - hits_before;
    return true;
}

/* ---- results ------------------------------------------------------------------------------ */

/* Called when the results of a step are known. Rows of rejected drafts count as not computed. */
void scheduler_commit(struct scheduler *s, struct sequence *seq)
{
    bool verified = seq->n_verifying > 0;
    seq->n_verifying = 0;
    if (seq->state != SEQ_RUNNING) {
        return;
    }
    if (verified) { // the next step overwrites rows of rejected drafts
        seq->n_computed = seq->n_known - 1;
    }
    holdings_reached(&s->holdings, seq, sequence_sure(seq));
    holdings_prove(&s->holdings, seq);
}

void scheduler_doubt(struct scheduler *s, const struct engine_request *r)
{
    for (struct sequence *q = s->order.next; q != &s->order; q = q->next) {
        if (q->state == SEQ_RUNNING && q->request == r) {
            q->is_doubted = true;
            holdings_doubt(&s->holdings, q, s->n_plans);
        }
    }
}

/* Releases everything that the sequence holds. */
static void free_sequence(struct scheduler *s, struct sequence *seq)
{
    if (seq->lane >= 0) {
        holdings_leave(&s->holdings, seq);
        s->n_running--;
    }
    seq->prev->next = seq->next;
    seq->next->prev = seq->prev;
    seq->state = SEQ_FREE;
    seq->request = NULL;
    seq->output = NULL;
    s->free_sequences[s->n_free_sequences++] = seq;
}

/* A sequence that is in a running step is freed when that step ends. True: it was freed
 * immediately. */
bool scheduler_retire(struct scheduler *s, struct sequence *seq)
{
    ASSERT(seq->state == SEQ_WAITING || seq->state == SEQ_RUNNING);
    if (seq->state == SEQ_WAITING) {
        fronts_remove(&s->fronts, seq);
        s->n_waiting--;
        s->waiting_tokens -= seq->n_prompt;
    } else if (!seq->is_doubted) { // these arrays will soon belong to the caller again
        holdings_settle(&s->holdings, seq, sequence_sure(seq), STATE_END);
        holdings_prove(&s->holdings, seq);
        hints_apply(&s->holdings, seq, sequence_sure(seq));
    }
    seq->state = SEQ_RETIRING;
    if (seq->n_inflight > 0) {
        return false;
    }
    free_sequence(s, seq);
    return true;
}

/* Returns true if this was the last step with rows of the sequence, which is then freed. */
bool scheduler_step_over(struct scheduler *s, struct sequence *seq)
{
    ASSERT(seq->n_inflight > 0);
    seq->n_inflight--;
    if (seq->state != SEQ_RETIRING || seq->n_inflight > 0) {
        return false;
    }
    free_sequence(s, seq);
    return true;
}

/* ---- checks ------------------------------------------------------------------------------- */

/* For tests and the simulation: verifies that lists, counts and states agree. */
void scheduler_check(const struct scheduler *s)
{
    int32_t n_running = 0, n_waiting = 0, n_live = 0, n_new = 0;
    int64_t waiting_tokens = 0;
    for (const struct sequence *q = s->order.next; q != &s->order; q = q->next) {
        ASSERT(q->next->prev == q);
        ASSERT(q->next == &s->order || sequence_comes_before(q, q->next));
        n_live++;
        n_running += q->state == SEQ_RUNNING || (q->state == SEQ_RETIRING && q->lane >= 0);
        n_waiting += q->state == SEQ_WAITING;
        if (q->state == SEQ_WAITING) {
            waiting_tokens += q->n_prompt;
        }
        n_new += q->state == SEQ_WAITING && !q->was_admitted;
        ASSERT(q->front.filed == (q->state == SEQ_WAITING && !q->was_admitted));
        ASSERT(q->n_computed <= sequence_future(q) + q->n_verifying);
        ASSERT(q->state != SEQ_RUNNING || q->n_blocks * s->limits.block_tokens >= q->n_computed);
    }
    ASSERT(n_running == s->n_running && n_waiting == s->n_waiting);
    ASSERT(waiting_tokens == s->waiting_tokens && n_new == s->fronts.n_heap);
    ASSERT(n_live + s->n_free_sequences == s->limits.max_sequences);
    holdings_check(&s->holdings, &s->order);
}
