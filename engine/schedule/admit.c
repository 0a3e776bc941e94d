// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/admit.h"

#include "engine/base/assert.h"

/* ---- preemption --------------------------------------------------------------------------- */

/* A sequence that is already in the current plan cannot be preempted. */
static bool can_preempt(const struct scheduler *s, const struct sequence *seq)
{
    return seq->state == SEQ_RUNNING && seq->planned_in != s->n_plans;
}

static void preempt(struct scheduler *s, struct plan *p, struct sequence *other)
{
    ASSERT(other->state == SEQ_RUNNING);
    plan_drop_grants(p, other);
    holdings_settle(&s->holdings, other, sequence_sure(other), STATE_PAUSE);
    holdings_leave(&s->holdings, other);
    other->state = SEQ_WAITING;
    other->n_computed = 0;
    other->proposal.n_drafts = 0;
    other->request->n_preemptions++;
    s->n_running--;
    s->n_waiting++;
    s->waiting_tokens += other->n_prompt;
    s->n_preemptions++;
}

/* The next candidate for preemption in favour of seq, after candidate `v`. Candidates are visited
 * from the end of the order upwards; with v = &s->order the search starts at the end. NULL: there
 * is none. */
static struct sequence *next_victim(const struct scheduler *s, const struct sequence *seq,
                                    const struct sequence *v)
{
    struct sequence *before = v->prev;
    while (before != seq && !can_preempt(s, before)) {
        before = before->prev;
    }
    return before != seq ? before : NULL;
}

/* Makes this much available to seq, preempting later sequences if necessary. Preempts nothing if
 * even that would not suffice. */
static bool make_room(struct scheduler *s, struct plan *p, const struct sequence *seq,
                      struct room need)
{
    struct holdings *h = &s->holdings;
    int32_t n_victims = 0;
    if (room_covers(holdings_available(h), need)) {
        return true;
    }
    for (struct sequence *v = &s->order; (v = next_victim(s, seq, v)) != NULL;) {
        s->victims[n_victims++] = v;
    }
    struct room all = holdings_available(h);
    const struct room more = holdings_reclaimable(h, s->victims, n_victims);
    all.blocks += more.blocks;
    all.pages += more.pages;
    if (!room_covers(all, need)) {
        return false;
    }
    for (int32_t i = 0; i < n_victims && !room_covers(holdings_available(h), need); i++) {
        preempt(s, p, s->victims[i]);
    }
    return room_covers(holdings_available(h), need);
}

static bool has_lane(const struct scheduler *s, const struct sequence *seq)
{
    return s->holdings.n_free_lanes > 0 || next_victim(s, seq, &s->order) != NULL;
}

/* Takes a free lane, or preempts a sequence for its lane. The caller has made sure that one of the
 * two is possible. */
static void make_lane(struct scheduler *s, struct plan *p, const struct sequence *seq)
{
    struct sequence *last;
    if (s->holdings.n_free_lanes > 0) {
        last = NULL;
    } else {
        last = next_victim(s, seq, &s->order);
    }
    if (last) {
        preempt(s, p, last);
    }
}

bool scheduler_grow(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n_tokens)
{
    if (!make_room(s, p, seq, holdings_missing(&s->holdings, seq, n_tokens))) {
        return false;
    }
    holdings_grow(&s->holdings, p, seq, n_tokens);
    return true;
}

/* ---- admission ---------------------------------------------------------------------------- */

static void count_running(struct scheduler *s, struct sequence *seq)
{
    fronts_remove(&s->fronts, seq);
    seq->state = SEQ_RUNNING;
    s->n_running++;
    s->n_waiting--;
    s->waiting_tokens -= seq->n_prompt;
}

/* Counts cache hits at the first admission only. */
static void count_hits(struct scheduler *s, struct sequence *seq, int32_t n_again)
{
    if (seq->was_admitted) {
        return;
    }
    seq->was_admitted = true;
    s->prefix_queries += seq->n_prompt;
    s->prefix_hits += seq->n_computed;
    s->prefix_again += n_again;
    if (seq->sample == 0) {
        seq->request->n_cached = seq->n_computed;
        if (s->limits.state_block > 0 || s->limits.n_pages > 0) {
            seq->request->n_recomputed = n_again;
        } else {
            seq->request->n_recomputed = -1;
        }
    }
}

enum admission scheduler_admit(struct scheduler *s, struct plan *p, struct sequence *seq)
{
    struct holdings *h = &s->holdings;
    if (seq->n_inflight > 0) {
        return DEFERRED; // one of its tokens is still in flight
    }
    if (!has_lane(s, seq)) {
        return NO_ROOM;
    }
    struct cached_front front = holdings_find(h, seq);
    struct sequence *producer = front.producer >= 0 ? &s->sequences[front.producer] : NULL;
    if (producer && !(sequence_comes_before(seq, producer) && can_preempt(s, producer))) {
        return DEFERRED;
    }
    holdings_keep_front(h, &front);
    const struct room need = holdings_need(h, seq, &front);
    holdings_spare_part(h, &front, need);
    if (!make_room(s, p, seq, need)) {
        holdings_drop_front(h, &front);
        return NO_ROOM;
    }
    if (producer && producer->state == SEQ_RUNNING) {
        // The producer may not run for a long time: it is made to wait, and this sequence computes
        // the block.
        preempt(s, p, producer);
    }
    make_lane(s, p, seq);
    holdings_begin(h, p, seq, &front);
    seq->n_computed = front.n_blocks * s->limits.block_tokens + front.n_part;
    count_running(s, seq);
    count_hits(s, seq, (front.n_matched - front.n_blocks) * s->limits.block_tokens);
    return ADMITTED;
}

/* ---- n > 1 -------------------------------------------------------------------------------- */

static bool can_be_forked(const struct sequence *seq)
{
    return seq->state == SEQ_WAITING && !seq->was_admitted && seq->n_known == seq->n_prompt &&
           sequence_wants_token(seq);
}

void scheduler_fork(struct scheduler *s, struct plan *p, int32_t entry)
{
    struct sequence *leader = p->entries[entry].seq;
    for (struct sequence *c = leader->next; c != &s->order && c->request == leader->request;
         c = c->next) {
        if (!can_be_forked(c)) {
            continue;
        }
        if (!holdings_can_fork(&s->holdings, leader) || p->n_draws >= s->limits.max_draws) {
            // The remaining siblings are admitted later as separate sequences, and find the prompt
            // in the cache.
            return;
        }
        holdings_fork(&s->holdings, p, c, leader);
        c->n_computed = c->n_prompt;
        c->n_flight = 1;
        c->n_inflight = 1;
        c->planned_in = s->n_plans;
        c->was_admitted = true;
        count_running(s, c);
        s->prefix_queries += c->n_prompt;
        s->prefix_hits += c->n_prompt;
        p->forks[p->n_forks++] = (struct plan_fork){c, entry};
        p->n_draws++;
    }
}
