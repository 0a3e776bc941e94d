// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/overtake.h"

/* Chosen: bounds the work of a step if many cached fronts turn out to be shorter than estimated. */
enum { MAX_TRIES = 8 };

/* The number of prompt tokens that admitting this sequence would compute, including those of its
 * siblings, which share all blocks but the last. */
static int64_t cost_of(const struct scheduler *s, const struct sequence *seq,
                       const struct cached_front *front)
{
    int32_t size = s->limits.block_tokens;
    int64_t cost = seq->n_known - front->n_blocks * size;
    for (const struct sequence *q = seq->next; q != &s->order && q->request == seq->request;
         q = q->next) {
        cost += size;
    }
    return cost;
}

/* Since a waiting sequence arrived, overtakers may compute at most overtake_tokens tokens. It is
 * enough to check the first sequence in the order, because it arrived first. */
static bool may_overtake(const struct scheduler *s, const struct sequence *head, int64_t cost)
{
    return s->overtakers - head->overtakers + cost <= s->overtake_tokens;
}

static void move_before(struct scheduler *s, struct sequence *seq, struct sequence *head)
{
    const struct engine_request *r = seq->request;
    while (seq != &s->order && seq->request == r) {
        struct sequence *next = seq->next;
        seq->prev->next = seq->next;
        seq->next->prev = seq->prev;
        // The same turn as `head` but a lower slip puts it just before `head` in the order, and so
        // before every sequence that it overtook.
        seq->turn_ns = head->turn_ns;
        seq->order = head->order;
        seq->slip = s->next_slip++;
        seq->prev = head->prev;
        seq->next = head;
        head->prev->next = seq;
        head->prev = seq;
        fronts_reorder(&s->fronts, seq);
        seq = next;
    }
}

/* The best waiting sequence, provided that its front is as long as estimated and that no other
 * sequence is computing the next block (otherwise it is better to wait for that block). */
static struct sequence *find_best(struct scheduler *s, struct cached_front *front)
{
    for (int k = 0; k < MAX_TRIES; k++) {
        struct sequence *best = fronts_best(&s->fronts);
        if (!best) {
            return NULL;
        }
        *front = holdings_find(&s->holdings, best);
        if (front->n_matched >= best->front.n_blocks) {
            return front->producer < 0 ? best : NULL;
        }
        fronts_correct(&s->fronts, best, front);
    }
    return NULL;
}

struct sequence *scheduler_let_pass(struct scheduler *s, struct sequence *head, int32_t rows)
{
    struct holdings *h = &s->holdings;
    struct cached_front front;
    // `head` has run before, or has itself overtaken others.
    bool settled = head->was_admitted || head->slip != 0;
    if (s->overtake_tokens <= 0 || settled || h->n_free_lanes == 0) {
        return head;
    }
    struct sequence *best = find_best(s, &front);
    if (!best || best == head || best->priority != head->priority || best->n_inflight > 0 ||
        best->request == head->request || front.n_matched <= head->front.n_blocks) {
        return head;
    }
    int64_t cost = cost_of(s, best, &front);
    struct room have = holdings_available(h);
    have.blocks -= holdings_idle_among(h, &front);
    bool fits =
        room_covers(have, holdings_need(h, best, &front)) &&
        (s->limits.chunked || best->n_known - front.n_blocks * s->limits.block_tokens <= rows);
    if (!fits || !may_overtake(s, head, cost)) {
        return head;
    }
    s->overtakers += cost;
    move_before(s, best, head);
    return best;
}
