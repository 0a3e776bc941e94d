// SPDX-License-Identifier: Apache-2.0
/* The request side of the engine: the functions that callers use (any thread), the inbox, live
 * requests by order number, how requests end, and the outbox. */
#include "engine/engine_state.h"

#include "engine/base/assert.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- live requests by their order number --------------------------------------------------- */

static uint32_t live_slot(const struct engine *e, uint64_t order)
{
    uint32_t i = (uint32_t)order & e->live_mask;
    while (e->live[i] && e->live[i]->order != order) {
        i = (i + 1) & e->live_mask;
    }
    return i;
}

static void live_remove(struct engine *e, uint64_t order)
{
    uint32_t hole = live_slot(e, order);
    e->live[hole] = NULL;
    for (uint32_t i = (hole + 1) & e->live_mask; e->live[i]; i = (i + 1) & e->live_mask) {
        uint32_t home = (uint32_t)e->live[i]->order & e->live_mask;
        if (((i - home) & e->live_mask) >= ((i - hole) & e->live_mask)) {
            e->live[hole] = e->live[i]; // the probe sequence of this entry passes over the hole
            e->live[i] = NULL;
            hole = i;
        }
    }
}

struct engine_request *requests_any(const struct engine *e)
{
    for (uint32_t i = 0; i <= e->live_mask; i++) {
        if (e->live[i]) {
            return e->live[i];
        }
    }
    return NULL;
}

/* ---- the outbox --------------------------------------------------------------------------- */

/* Adds the request to the list of requests with news. After `ended` has been announced, the engine
 * must not access the request. */
void requests_announce(struct engine *e, struct engine_request *r, bool ended)
{
    pthread_mutex_lock(&e->outbox.lock);
    r->ended = r->ended || ended;
    bool push = !r->listed, was_empty = e->outbox.head == NULL;
    if (push) {
        r->listed = true;
        r->link.next = NULL;
        *e->outbox.tail = &r->link;
        e->outbox.tail = &r->link.next;
    }
    pthread_mutex_unlock(&e->outbox.lock);
    e->has_news |= push && was_empty;
}

void requests_deliver(struct engine *e)
{
    if (e->has_news && e->options.wake) {
        e->options.wake(e->options.callback_arg);
    }
    e->has_news = false;
}

void engine_drain(struct engine *e, void (*on_event)(struct engine_request *r, void *arg),
                  void *arg)
{
    engine_drain_some(e, INT_MAX, on_event, arg);
}

bool engine_drain_some(struct engine *e, int max,
                       void (*on_event)(struct engine_request *r, void *arg), void *arg)
{
    struct engine_request *first = NULL, **end = &first;
    pthread_mutex_lock(&e->outbox.lock);
    struct queue_link *l = e->outbox.head;
    /* Once `listed` is false, the engine may add the request to the outbox again, so the drained
     * list needs separate links. */
    for (int n = 0; l && n < max; n++, l = l->next) {
        struct engine_request *r = (struct engine_request *)l; // link is the first member
        r->listed = false;
        r->done = r->ended;
        *end = r;
        end = &r->next_event;
    }
    *end = NULL;
    const bool more = l != NULL;
    e->outbox.head = l;
    if (!more) {
        e->outbox.tail = &e->outbox.head;
    }
    pthread_mutex_unlock(&e->outbox.lock);
    while (first) {
        struct engine_request *r = first;
        first = r->next_event;
        on_event(r, arg);
    }
    return more;
}

/* ---- ends --------------------------------------------------------------------------------- */

void requests_freed(struct engine *e)
{
    atomic_fetch_sub_explicit(&e->n_reserved, 1, memory_order_relaxed);
}

void requests_finish(struct engine *e, struct sequence *seq, enum finish_reason reason)
{
    struct engine_request *r = seq->request;
    e->n_finished[reason]++;
    if (seq->output) {
        atomic_store_explicit(&seq->output->finish, (int32_t)reason, memory_order_release);
    }
    if (scheduler_retire(&e->scheduler, seq)) {
        requests_freed(e);
    }
    if (--r->n_live == 0) {
        r->t_done_ns = clock_now_ns();
        live_remove(e, r->order);
        requests_announce(e, r, true);
    } else {
        requests_announce(e, r, false);
    }
}

/* Ends the live sequences of a request; `sample` -1: all of them. */
void requests_end(struct engine *e, struct engine_request *r, int32_t sample,
                  enum finish_reason reason)
{
    int32_t left = sample < 0 ? r->n_live : 1;
    struct sequence *next;
    for (struct sequence *s = e->scheduler.order.next; s != &e->scheduler.order && left > 0;
         s = next) {
        next = s->next;
        bool live = s->state == SEQ_WAITING || s->state == SEQ_RUNNING;
        if (live && s->request == r && (sample < 0 || s->sample == sample)) {
            left--;
            requests_finish(e, s, reason);
        }
    }
}

void requests_fail(struct engine *e, struct engine_request *r, enum status st, const char *text)
{
    r->error = st;
    snprintf(r->error_text, sizeof r->error_text, "%s", text);
    requests_end(e, r, -1, FINISH_ERROR);
}

/* ---- the inbox ---------------------------------------------------------------------------- */

static void accept_request(struct engine *e, struct engine_request *r)
{
    e->live[live_slot(e, r->order)] = r;
    r->n_live = r->n;
    r->adapter_version = e->adapter_versions[r->adapter];
    e->n_accepted += r->n;
    // Counted in the same way as scheduler.waiting_tokens.
    e->accepted_tokens += (int64_t)r->n * r->n_prompt;
    e->prompt_tokens += r->n_prompt;
    for (int32_t i = 0; i < r->n; i++) {
        struct sequence *seq = scheduler_add(&e->scheduler, r, i);
        ASSERT(seq); // engine_submit has reserved the sequences
        constraint_begin(&e->constraints[seq->index]);
    }
    if (r->deadline_ns > 0 && r->deadline_ns < e->next_deadline_ns) {
        e->next_deadline_ns = r->deadline_ns;
    }
    if (e->failed != OK) {
        requests_fail(e, r, e->failed, "the device was lost");
    }
}

static void accept_all(struct engine *e, struct queue_link *list)
{
    while (list) {
        struct engine_request *r = (struct engine_request *)list;
        list = list->next;
        accept_request(e, r);
    }
}

/* Moves the pending messages from e->messages to e->taking. */
static size_t take_messages(struct engine *e)
{
    pthread_mutex_lock(&e->message_lock);
    struct message *list = e->messages;
    size_t n = e->n_messages, cap = e->message_cap;
    e->messages = e->taking;
    e->message_cap = e->taking_cap;
    e->n_messages = 0;
    e->taking = list;
    e->taking_cap = cap;
    pthread_mutex_unlock(&e->message_lock);
    return n;
}

static void obey(struct engine *e, const struct message *m)
{
    if (m->kind == MESSAGE_RESET_CACHE) {
        holdings_forget_idle(&e->scheduler.holdings);
        return;
    }
    struct engine_request *r = e->live[live_slot(e, m->order)];
    if (r) { // if NULL, it has ended in the meantime
        requests_end(e, r, m->sample, m->kind == MESSAGE_STOP ? FINISH_STOP : FINISH_CANCELLED);
    }
}

void requests_take(struct engine *e, int64_t timeout_ns)
{
    accept_all(e,
               timeout_ns == 0 ? queue_take_all(&e->inbox) : queue_wait_all(&e->inbox, timeout_ns));
    size_t n = take_messages(e);
    if (n > 0) { // a message may concern a request that has arrived since
        accept_all(e, queue_take_all(&e->inbox));
    }
    for (size_t i = 0; i < n; i++) {
        obey(e, &e->taking[i]);
    }
}

void requests_expire(struct engine *e, int64_t now_ns)
{
    if (now_ns < e->next_deadline_ns) {
        return;
    }
    struct engine_request *late;
    do {
        late = NULL;
        e->next_deadline_ns = INT64_MAX;
        for (uint32_t i = 0; i <= e->live_mask; i++) {
            struct engine_request *r = e->live[i];
            if (r && r->deadline_ns > 0 && r->deadline_ns <= now_ns) {
                late = r;
            } else if (r && r->deadline_ns > 0 && r->deadline_ns < e->next_deadline_ns) {
                e->next_deadline_ns = r->deadline_ns;
            }
        }
        if (late) {
            requests_fail(e, late, ERR_TIMEOUT, "the deadline has passed");
        }
    } while (late);
}

/* ---- callers' side ------------------------------------------------------------------------ */

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

void engine_add_eos(struct engine *e, int32_t id)
{
    struct engine_info *info = &e->info;
    for (int32_t i = 0; i < info->n_eos; i++) {
        if (info->eos[i] == id) {
            return;
        }
    }
    if (id >= 0 && id < info->vocab && info->n_eos < MAX_EOS) {
        info->eos[info->n_eos++] = id;
    }
}

/* Checks whether the request can ever run. */
static enum status check_request(const struct engine *e, const struct engine_request *r,
                                 struct err *err)
{
    const struct engine_info *info = &e->info;
    bool draws = r->pool == POOL_NONE && r->params.max_tokens > 0;
    int32_t most = lesser(info->max_sequences, MAX_SAMPLES);
    if (info->headless && r->pool == POOL_NONE) {
        return err_set(err, ERR_INVALID,
                       "this model has no lm_head.weight: it gives embeddings, "
                       "but neither tokens nor their log-probabilities");
    }
    if (r->n_prompt < 1) {
        return err_set(err, ERR_INVALID, "the prompt is empty");
    }
    if (r->n < 1 || r->n > most) {
        return err_set(err, ERR_INVALID, "n is %d; it must be from 1 to %d", r->n, most);
    }
    if (r->adapter < 0 || r->adapter > e->info.n_adapters) {
        return err_set(err, ERR_INVALID, "there is no adapter %d", r->adapter);
    }
    if (r->params.allowed_each && r->params.n_allowed < r->n) {
        return err_set(err, ERR_INVALID, "allowed_token_ids: one is needed for each of %d samples",
                       r->n);
    }
    if (r->n_prompt + draws > info->max_model_len) {
        return err_set(err, ERR_INVALID,
                       "the prompt has %d tokens; this model's maximum context "
                       "length is %d tokens",
                       r->n_prompt, info->max_model_len);
    }
    for (int32_t i = 0; i < r->n_prompt; i++) {
        if (r->prompt[i] < 0 || r->prompt[i] >= info->vocab) {
            return err_set(err, ERR_INVALID, "prompt: %d is not a token id of this model",
                           r->prompt[i]);
        }
    }
    const struct grammar_vocab *v = NULL;
    if (r->grammar) {
        v = grammar_vocabulary(r->grammar);
    }
    if (r->grammar && (!v || grammar_mask_words(v) != (size_t)mask_words(info->vocab))) {
        return err_set(err, ERR_INVALID, "the grammar was compiled for another vocabulary");
    }
    size_t n_after = 1;
    if (r->grammar && r->grammar_after) {
        n_after = strlen(r->grammar_after);
    }
    if (n_after < 1 || n_after > GRAMMAR_AFTER_MAX) {
        return err_set(err, ERR_INVALID, "the marker before the grammar must be 1 to %d bytes",
                       GRAMMAR_AFTER_MAX);
    }
    return sampling_params_check(&r->params, info->vocab, err);
}

enum status engine_submit(struct engine *e, struct engine_request *r, struct err *err)
{
    if (atomic_load(&e->state) != ENGINE_READY) {
        return err_set(err, ERR_DEVICE, "the engine is not running");
    }
    TRY(check_request(e, r, err));
    if (atomic_fetch_add(&e->n_reserved, r->n) + r->n > e->info.max_sequences) {
        atomic_fetch_sub(&e->n_reserved, r->n);
        return err_set(err, ERR_BUSY, "the queue is full");
    }
    if (r->params.temperature < MIN_TEMPERATURE) {
        r->params.temperature = 0.0f; // from here on, only exactly 0 means greedy
    }
    r->order = atomic_fetch_add(&e->next_order, 1) + 1;
    r->t_submit_ns = clock_now_ns();
    r->t_scheduled_ns = r->t_first_token_ns = r->t_done_ns = 0;
    r->n_recomputed = e->states.block > 0 || e->windows.n_pages > 0 ? 0 : -1;
    atomic_store(&r->n_cached, 0);
    atomic_store(&r->n_prefilled, 0);
    r->n_preemptions = 0;
    r->n_drafts = 0;
    r->n_accepted = 0;
    r->error = OK;
    r->done = r->listed = r->ended = false;
    for (int32_t i = 0; r->outputs && i < r->n; i++) {
        atomic_store(&r->outputs[i].n_tokens, 0);
        atomic_store(&r->outputs[i].finish, FINISH_NONE);
        r->outputs[i].stop_id = -1;
    }
    // Before the push, because the engine subtracts it again afterwards.
    pthread_mutex_lock(&e->stats_lock);
    e->stats.n_submitted += r->n;
    e->stats.submitted_tokens += (int64_t)r->n * r->n_prompt;
    pthread_mutex_unlock(&e->stats_lock);
    queue_push(&e->inbox, &r->link);
    return OK;
}

static void send(struct engine *e, struct message m)
{
    pthread_mutex_lock(&e->message_lock);
    if (e->n_messages == e->message_cap) {
        e->message_cap = e->message_cap ? e->message_cap * 2 : 64;
        e->messages = xrealloc(e->messages, e->message_cap * sizeof *e->messages);
    }
    e->messages[e->n_messages++] = m;
    pthread_mutex_unlock(&e->message_lock);
    queue_wake(&e->inbox);
}

void engine_cancel(struct engine *e, struct engine_request *r)
{
    send(e, (struct message){MESSAGE_CANCEL, r->order, -1});
}

void engine_stop(struct engine *e, struct engine_request *r, int32_t sample)
{
    send(e, (struct message){MESSAGE_STOP, r->order, sample});
}

void engine_reset_prefix_cache(struct engine *e)
{
    send(e, (struct message){MESSAGE_RESET_CACHE, 0, -1});
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    enum engine_state state = (enum engine_state)atomic_load(&e->state);
    // Taken after the state was read: by then a failed engine has stored the cause.
    pthread_mutex_lock(&e->stats_lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->stats_lock);
    out->state = state;
}
