// SPDX-License-Identifier: Apache-2.0
/* The engine thread: inbox -> plan -> submit -> commit -> outbox. Step N + 1 is planned and
 * submitted before step N's results are read (unless scheduler_plans_late); masks that depend on
 * those results are sent once they are known. */
#include "engine/engine_state.h"

#include "engine/cluster/step_run.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/thread.h"

#include <stdlib.h>
#include <string.h>

/* ---- submit ------------------------------------------------------------------------------- */

static enum status execute_on_rank(struct rank *r, void *arg)
{
    const struct engine *e = arg;
    return step_execute(&e->steps[e->next_slot].step, r, e->n_vocab_used);
}

static enum status execute_draws_on_rank(struct rank *r, void *arg)
{
    const struct engine *e = arg;
    return step_execute_draws(r, e->n_vocab_used);
}

static void fail_closed(struct engine *e, const struct planned_step *ps)
{
    for (int32_t i = 0; i < ps->n_closed; i++) { // by now the step has read their parameters
        engine_fail_constrained(e, ps->closed[i]);
    }
}

/* For a step whose forward pass is running: sends its masks and draws once the preceding tokens are
 * known. */
static void submit_draws(struct engine *e)
{
    struct planned_step *ps = e->draws_wait;
    e->draws_wait = NULL;
    if (!ps || e->failed != OK) {
        return;
    }
    step_fill_masks(ps);
    enum status status = engine_send_draws(e, &ps->step);
    if (status == OK) {
        status = ranks_run(&e->ranks, execute_draws_on_rank, e);
    }
    if (status != OK) {
        engine_fail(e, status, "the device failed while draws were submitted");
    }
    fail_closed(e, ps);
}

/* Plans and submits one step; false if there is nothing to run. */
static bool submit_step(struct engine *e)
{
    struct planned_step *ps = &e->steps[e->next_slot];
    bool planned = scheduler_plan(&e->scheduler, &ps->plan);
    for (int32_t i = 0; i < ps->plan.n_failed; i++) {
        requests_fail(e, ps->plan.failed[i]->request, ERR_NOMEM,
                      "the request needs more KV blocks than the pool has");
    }
    if (!planned) {
        return false;
    }
    int64_t now = clock_now_ns();
    for (int32_t i = 0; i < ps->plan.n_entries; i++) {
        struct engine_request *r = ps->plan.entries[i].seq->request;
        if (r->t_scheduled_ns == 0) {
            r->t_scheduled_ns = now;
        }
    }
    const struct step_site site = {&e->ranks, e->n_vocab_used, engine_send_level, e};
    step_build_lanes(ps, &e->scheduler.holdings);
    step_build_draft(ps, &e->scheduler.holdings, &e->spec);
    enum status status = step_grow_trees(ps, &e->scheduler.limits, &e->spec, &site);
    if (status == OK) {
        status = step_draft_masked(ps, &site);
    }
    step_build(ps, &e->scheduler.holdings);
    ps->n_closed = 0;
    if (step_reserve_masks(ps)) {
        e->draws_wait = ps;
    } else {
        step_fill_masks(ps);
    }
    if (status == OK) {
        status = engine_send_step(e, &ps->step, NULL);
    }
    if (status == OK) {
        status = ranks_run(&e->ranks, execute_on_rank, e);
    }
    tree_moves_clear(&e->moves);
    e->next_slot = (e->next_slot + 1) % N_STEPS;
    e->n_inflight++;
    if (status != OK) {
        engine_fail(e, status, "the device failed while a step was submitted");
    }
    fail_closed(e, ps);
    return true;
}

/* ---- the thread --------------------------------------------------------------------------- */

_Static_assert(MAX_ADAPTERS <= 64, "engine_stats has a bit for each adapter");

static void note_adapters(const struct engine *e, struct engine_stats *o)
{
    const struct sequence *first = &e->scheduler.order;
    o->adapters_running = o->adapters_waiting = 0;
    for (const struct sequence *s = first->next; e->info.n_adapters > 0 && s != first;
         s = s->next) {
        const int32_t adapter = s->request->adapter;
        const uint64_t bit = adapter > 0 ? (uint64_t)1 << (adapter - 1) : 0;
        o->adapters_running |= s->state == SEQ_RUNNING ? bit : 0;
        o->adapters_waiting |= s->state == SEQ_WAITING ? bit : 0;
    }
}

/* Copies the counters, which only this thread changes, to the snapshot that other threads read. */
static void publish_stats(struct engine *e)
{
    const struct scheduler *s = &e->scheduler;
    const struct spec_learnt *l = &e->spec.learnt;
    pthread_mutex_lock(&e->stats_lock);
    struct engine_stats *o = &e->stats;
    o->n_submitted -= e->n_accepted; // n_submitted no longer includes these; the counts below do
    o->submitted_tokens -= e->accepted_tokens;
    e->n_accepted = 0;
    e->accepted_tokens = 0;
    o->n_running = s->n_running;
    o->n_waiting = s->n_waiting;
    o->waiting_tokens = s->waiting_tokens;
    o->n_blocks = s->limits.n_blocks;
    o->n_blocks_held = s->limits.n_blocks - holdings_available(&s->holdings).blocks;
    o->n_blocks_idle = s->holdings.pool.idle.n;
    o->n_blocks_kept = s->holdings.retention.n_kept;
    o->n_pages = s->limits.n_pages;
    o->n_pages_reserved = s->holdings.windows.n_reserved;
    o->n_steps = e->n_steps;
    o->n_rows = e->n_rows;
    o->step_tokens = e->step_tokens;
    o->step_seqs = e->step_seqs;
    memcpy(o->step_sizes, e->step_sizes, sizeof o->step_sizes);
    o->prompt_tokens = e->prompt_tokens;
    o->generated_tokens = e->generated_tokens;
    o->preemptions = s->n_preemptions;
    o->prefix_queries = s->prefix_queries;
    o->prefix_hits = s->prefix_hits;
    o->prefix_recomputed = s->prefix_again;
    o->n_snapshots_taken = states_taken(&s->holdings.states.snapshots);
    o->n_corrupted = e->n_corrupted;
    memcpy(o->n_finished, e->n_finished, sizeof o->n_finished);
    o->spec_drafts = l->n_drafts;
    o->spec_draft_tokens = l->n_draft_tokens;
    o->spec_accepted_tokens = l->n_accepted;
    memcpy(o->spec_accepted_per_pos, l->accepted_per_pos, sizeof o->spec_accepted_per_pos);
    o->n_nodes_alive = engine_nodes_alive(e);
    note_adapters(e, o);
    pthread_mutex_unlock(&e->stats_lock);
}

enum {
    // Poll interval while nothing can run until something changes; short compared with a step.
    NAP_NS = 1000000,
    IDLE_NS = 1000000000, // chosen: the time within which a lost node or device is noticed
};

/* How long the thread may wait for messages: until the next deadline at most. */
static int64_t idle_timeout(const struct engine *e)
{
    int64_t left = IDLE_NS;
    if (e->next_deadline_ns != INT64_MAX) {
        left = e->next_deadline_ns - clock_now_ns();
    }
    left = lesser(left, IDLE_NS);
    return greater(NAP_NS, left);
}

void engine_turn(struct engine *e)
{
    bool busy = e->n_inflight > 0 || e->scheduler.n_running + e->scheduler.n_waiting > 0;
    int64_t patience = e->options.no_thread ? 0 : idle_timeout(e);
    bool late = scheduler_plans_late(&e->scheduler) || e->broken.careful_turns > 0;
    if (e->n_inflight > 0 && late) {
        engine_commit_step(e);
    }
    while (e->broken.waits && e->n_inflight > 0) {
        engine_commit_step(e);
    }
    engine_explain_broken(e);
    engine_change_adapter(e);
    if (!busy) {
        requests_deliver(e);
    }
    requests_take(e, busy ? 0 : patience);
    int64_t now = clock_now_ns();
    requests_expire(e, now);
    retention_tick(&e->scheduler.holdings.retention, now);
    if (!busy) { // while idle there is no step that would report a lost node
        ranks_check(&e->ranks);
    }
    if (e->failed == OK && (engine_set_lost(e, NULL) || atomic_load(&e->ranks.aborted))) {
        engine_fail(e, ERR_DEVICE, "the device failed");
    }
    engine_propose(e);
    bool submitted = e->failed == OK && submit_step(e);
    requests_deliver(e);
    if (e->n_inflight == N_STEPS || (e->n_inflight > 0 && !submitted)) {
        engine_commit_step(e);
        if (e->n_inflight > 0) { // otherwise the device is idle, and its next step comes first
            requests_deliver(e);
        }
    } else if (!submitted && busy) {
        // Nothing fits until some sequence ends, so wait briefly instead of spinning.
        requests_take(e, lesser(patience, NAP_NS));
    }
    submit_draws(e);
    publish_stats(e);
}

void *engine_main(void *arg)
{
    struct engine *e = arg;
    thread_name("engine");
    while (atomic_load(&e->state) != ENGINE_CLOSING) {
        engine_turn(e);
    }
    return NULL;
}

static void drain_steps(struct engine *e)
{
    while (e->n_inflight > 0) {
        engine_commit_step(e);
    }
}

/* ---- open and close ------------------------------------------------------------------------ */

enum status engine_open(const struct engine_options *options, struct engine **out, struct err *err)
{
    struct engine *e = xcalloc(1, sizeof *e);
    e->options = *options;
    e->next_deadline_ns = INT64_MAX;
    buf_init(&e->wire, (size_t)1 << 30);
    queue_init(&e->inbox);
    queue_init(&e->outbox);
    pthread_mutex_init(&e->message_lock, NULL);
    pthread_cond_init(&e->adapter_changed, NULL);
    pthread_mutex_init(&e->stats_lock, NULL);
    enum status st = engine_load(e, err);
    bool follows = options->nodes && nodes_rank(options->nodes) > 0;
    if (st == OK) {
        publish_stats(e);
        atomic_store(&e->state, ENGINE_READY);
        bool thread = !options->no_thread && !follows;
        e->thread_runs = thread && pthread_create(&e->thread, NULL, engine_main, e) == 0;
        if (thread && !e->thread_runs) {
            st = err_set(err, ERR_NOMEM, "no thread for the engine");
        }
    }
    if (st != OK) {
        engine_close(e);
        return st;
    }
    *out = e;
    return OK;
}

void engine_stop_all(struct engine *e)
{
    atomic_store(&e->state, ENGINE_CLOSING);
    if (e->thread_runs) {
        queue_wake(&e->inbox);
        pthread_join(e->thread, NULL);
        e->thread_runs = false;
    }
    engine_fix_adapters(e);
    if (!e->live) {
        return; // opening failed half-way
    }
    drain_steps(e);
    engine_explain_broken(e);
    requests_take(e, 0);
    struct engine_request *r;
    while ((r = requests_any(e)) != NULL) {
        requests_end(e, r, -1, FINISH_CANCELLED);
    }
    requests_deliver(e);
    publish_stats(e);
}

void engine_close(struct engine *e)
{
    if (!e) {
        return;
    }
    engine_stop_all(e);
    engine_unwatch_nodes(e);
    engine_unload(e);
    buf_deinit(&e->wire);
    queue_deinit(&e->inbox);
    queue_deinit(&e->outbox);
    pthread_mutex_destroy(&e->message_lock);
    pthread_cond_destroy(&e->adapter_changed);
    pthread_mutex_destroy(&e->stats_lock);
    free(e->messages);
    free(e->taking);
    free(e);
}
