// SPDX-License-Identifier: Apache-2.0
/* The engine thread: inbox -> plan -> submit -> commit -> outbox. Step N + 1 is planned and
 * submitted before step N's results are read; masks that depend on those results are sent after
 * them. */
#include "engine/engine_state.h"

#include "engine/cluster/step_run.h"

#include "engine/base/assert.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/thread.h"

#include <stdio.h>
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

static void fail_all(struct engine *e, enum status st, const char *text)
{
    if (e->failed == OK) {
        log_error("the engine has failed: %s", text);
        e->failed = st;
        engine_note_failure(e, text);
        ranks_abort(&e->ranks);
        if (e->options.nodes) {
            nodes_fail(e->options.nodes, text);
        }
    }
    struct engine_request *r;
    while ((r = requests_any(e)) != NULL) {
        requests_fail(e, r, st, text);
    }
}

/* If a node is lost the devices fail too; report the node, which is the cause. */
static void fail_with_cause(struct engine *e, enum status st, const char *text)
{
    struct err why;
    bool lost = engine_await_cause(e, &why);
    fail_all(e, lost ? ERR_DEVICE : st, lost ? why.text : text);
}

/* If a grammar allows no token, or cannot decide within its limits, the request ends: a token that
 * is not allowed is never drawn instead. */
static void fail_constrained(struct engine *e, struct sequence *seq)
{
    if (seq->state != SEQ_RETIRING) {
        requests_fail(e, seq->request, ERR_LIMIT, constraint_failure(&e->constraints[seq->index]));
    }
}

static void fail_closed(struct engine *e, const struct planned_step *ps)
{
    for (int32_t i = 0; i < ps->n_closed; i++) { // the step has read their parameters by now
        fail_constrained(e, ps->closed[i]);
    }
}

/* Sends masks and draws of a step whose forward pass is running, once the preceding tokens are
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
        fail_with_cause(e, status, "the device failed while draws were submitted");
    }
    fail_closed(e, ps);
}

/* Plans and submits one step; true if there was one. */
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
        fail_with_cause(e, status, "the device failed while a step was submitted");
    }
    fail_closed(e, ps);
    return true;
}

/* ---- commit ------------------------------------------------------------------------------- */

static void fill_logprobs(struct token_logprobs *out, const struct draw_result *d)
{
    out->logprob = d->logprob;
    out->n_top = d->n_top;
    for (int32_t i = 0; i < d->n_top && out->top_ids; i++) {
        out->top_ids[i] = d->top_ids[i];
        out->top_logprobs[i] = d->top_logprobs[i];
    }
}

static bool is_stop(const struct engine_request *r, int32_t token)
{
    for (int32_t i = 0; i < r->params.n_stop_ids; i++) {
        if (r->params.stop_ids[i] == token) {
            return true;
        }
    }
    return false;
}

/* Appends a drawn token to the sequence. False if that ended it. */
static bool append(struct engine *e, struct sequence *seq, const struct draw_result *d)
{
    struct engine_request *r = seq->request;
    struct engine_output *out = seq->output;
    int32_t n = sequence_generated(seq);
    out->tokens[n] = d->token;
    if (out->logprobs) {
        fill_logprobs(&out->logprobs[n], d);
    }
    if (r->t_first_token_ns == 0) {
        r->t_first_token_ns = clock_now_ns();
    }
    seq->n_known++;
    e->generated_tokens++;
    bool ends = r->grammar && constraint_ends(&e->constraints[seq->index], seq, d->token);
    bool stop = ends || (n + 1 >= r->params.min_tokens && is_stop(r, d->token));
    out->stop_id = stop ? d->token : -1;
    atomic_store_explicit(&out->n_tokens, n + 1, memory_order_release);
    if (stop || n + 1 >= seq->max_tokens) {
        requests_finish(e, seq, stop ? FINISH_STOP : FINISH_LENGTH);
        return false;
    }
    requests_announce(e, r, false);
    return true;
}

/* The logits contain NaN or infinity, so no drawn token is a valid answer. */
static void fail_broken(struct engine *e, struct engine_request *r)
{
    if (e->n_corrupted++ == 0) { // log once: it may repeat in every step
        log_error("%s: the model's logits hold NaN or infinities, or nothing but -infinity: its "
                  "weights are broken, or its activations too large for the dtype. Such requests "
                  "fail; --check-weights full looks for the former",
                  e->model_dir);
    }
    requests_fail(e, r, ERR_NAN, "the model's logits are not numbers");
}

/* The row whose draft equals the token drawn at `row`; -1: no draft does. */
static int32_t next_row(const struct spec *sp, const struct sequence *seq, int32_t row,
                        int32_t n_drafts, struct draw_result *d)
{
    if (seq->tree) {
        return tree_next(seq->tree, row, d->token);
    }
    if (row >= n_drafts || !spec_stands(sp, seq, seq->proposal.drafts[row], d->token)) {
        return -1;
    }
    d->token = seq->proposal.drafts[row];
    return row + 1;
}

/* True if the grammar rejects the drawn token: its mask was empty, or there is a bug. */
static bool is_refused(struct engine *e, const struct sequence *seq, int32_t token)
{
    struct constraint *c = &e->constraints[seq->index];
    if (seq->request->grammar) {
        c->failure = constraint_take(c, seq, token);
    } else {
        c->failure = OK;
    }
    return c->failure != OK;
}

/* Draws first .. first + n belong to one sequence, in row order. A row's token counts only if the
 * drafts before it were all correct. */
static void commit_draws(struct engine *e, const struct planned_step *ps, int32_t first, int32_t n)
{
    struct sequence *seq = ps->owners[first].seq;
    if (seq->state == SEQ_RETIRING) {
        return;
    }
    seq->n_flight--;
    struct engine_request *r = seq->request;
    struct spec_tree *tree = seq->tree;
    int32_t n_drafts = n - 1, accepted = 0, path[MAX_DRAFTS];
    bool goes_on = true;
    r->n_drafts += n_drafts;
    int32_t row = 0;
    while (row >= 0 && goes_on) {
        struct draw_result d = step_results(ps)->draws[first + row];
        if (row == n_drafts && n_drafts > 0 && e->spec.options.no_bonus) {
            break;
        }
        if (d.broken) {
            fail_broken(e, r);
            goes_on = false;
            break;
        }
        row = next_row(&e->spec, seq, row, n_drafts, &d);
        path[accepted] = row;
        accepted += row >= 0;
        r->n_accepted += row >= 0; // before append, which may end the request
        if (is_refused(e, seq, d.token)) {
            fail_constrained(e, seq);
            goes_on = false;
            break;
        }
        goes_on = append(e, seq, &d);
    }
    if (n_drafts > 0) { // drafts after the end were not tested
        bool cut = row >= 0 && !goes_on;
        const struct spec_trial trial = {.trust = &seq->trust,
                                         .seq = seq,
                                         .tree = tree,
                                         .n_drafts = n_drafts,
                                         .path = path,
                                         .n_right = accepted,
                                         .cut = cut};
        spec_observe(&e->spec, &trial);
    }
    if (tree && seq->state == SEQ_RUNNING) {
        tree_moves_add(&e->moves, ps, seq, path, accepted);
    }
    seq->tree = NULL;
}

static void commit_scores(struct engine *e, const struct planned_step *ps)
{
    for (int32_t i = 0; i < ps->step.pass.n_draws; i++) {
        const struct draw_owner *o = &ps->owners[i];
        const struct draw_result *d = &step_results(ps)->draws[i];
        if (!o->score || o->seq->state == SEQ_RETIRING) {
            continue;
        }
        struct engine_request *r = o->seq->request;
        if (d->broken) {
            fail_broken(e, r);
        } else if (r->prompt_logprobs && o->seq->sample == 0) {
            fill_logprobs(&r->prompt_logprobs[o->pos + 1], d);
        }
    }
}

static void commit_pools(struct engine *e, const struct planned_step *ps)
{
    size_t hidden = (size_t)e->info.hidden;
    for (int32_t i = 0; i < ps->step.pass.n_pool; i++) {
        struct sequence *seq = ps->pool_owners[i];
        if (seq->state != SEQ_RETIRING && ps->step.pools[i].finish) {
            // The backend returns a sum: a mean is over the whole prompt, "last" over one row.
            float n;
            if (seq->request->pool == POOL_MEAN) {
                n = (float)seq->n_prompt;
            } else {
                n = 1.0f;
            }
            const float *sum = step_results(ps)->pooled + (size_t)i * hidden;
            for (size_t k = 0; k < hidden; k++) {
                seq->request->pooled[k] = sum[k] / n;
            }
            requests_finish(e, seq, FINISH_STOP);
        }
    }
}

/* Reports how much of the prompt is computed. Ignored by the caller after the first token. */
static void tell_prompt(struct engine *e, const struct plan_entry *entry)
{
    struct engine_request *r = entry->seq->request;
    int32_t n = entry->first + entry->n_rows - entry->n_drafts;
    if (r->tells_prompt && entry->seq->sample == 0 && entry->first < r->n_prompt) {
        atomic_store(&r->n_prefilled, lesser(n, r->n_prompt));
        requests_announce(e, r, false);
    }
}

/* A request that only wants its prompt's log-probabilities ends with its last row. */
static void commit_entry(struct engine *e, const struct plan_entry *entry)
{
    struct sequence *seq = entry->seq;
    if (seq->state == SEQ_RETIRING) {
        return;
    }
    scheduler_commit(&e->scheduler, seq);
    tell_prompt(e, entry);
    if (seq->state == SEQ_RUNNING && seq->max_tokens == 0 &&
        entry->first + entry->n_rows == seq->n_known) {
        requests_finish(e, seq, FINISH_LENGTH);
    }
}

static void step_over(struct engine *e, struct sequence *seq)
{
    if (scheduler_step_over(&e->scheduler, seq)) {
        requests_freed(e);
    }
}

/* Measures how fast prompts are computed, from steps that are at least half full. It determines how
 * much work may overtake a waiting request. */
static void learn_speed(struct engine *e, int32_t n_rows)
{
    enum { PATIENCE_S = 10, KEEP = 7 }; // weight, in eighths, of the old estimate
    int64_t now = clock_now_ns(), since = e->last_commit_ns;
    e->last_commit_ns = e->n_inflight > 0 ? now : 0;
    if (since > 0 && now > since && 2 * n_rows >= e->scheduler.limits.max_rows) {
        double rows_per_s = n_rows * 1e9 / (double)(now - since);
        if (e->rows_per_s > 0) {
            e->rows_per_s = (KEEP * e->rows_per_s + rows_per_s) / (KEEP + 1);
        } else {
            e->rows_per_s = rows_per_s;
        }
    }
    if (e->options.prefix_overtake_tokens < 0 && e->rows_per_s > 0) {
        e->scheduler.overtake_tokens = (int64_t)(PATIENCE_S * e->rows_per_s);
    }
}

/* Prompt tokens among the rows of an entry. */
static int32_t prompt_rows(const struct plan_entry *entry)
{
    int32_t left = entry->seq->n_prompt - entry->first;
    left = greater(left, 0);
    return lesser(left, entry->n_rows);
}

static void count_step(struct engine *e, int32_t n_rows, int64_t n_tokens)
{
    int32_t i = 0;
    while (i < N_STEP_SIZES - 1 && n_tokens > engine_step_bound(i)) {
        i++;
    }
    e->step_sizes[i]++;
    e->n_steps++;
    e->n_rows += n_rows;
    e->step_tokens += n_tokens;
}

static void commit_step(struct engine *e)
{
    int32_t slot = (e->next_slot + N_STEPS - e->n_inflight) % N_STEPS;
    struct planned_step *ps = &e->steps[slot];
    struct backend *be = e->ranks.rank[0].be;
    enum status status = e->failed;
    int64_t n_tokens = -e->generated_tokens;
    if (status == OK) {
        status = be->ops->step_wait(be, slot, ps->results, step_n_passes(&ps->step));
    }
    e->n_inflight--;
    if (status != OK) {
        fail_with_cause(e, status, "the device failed");
    } else {
        step_commit_draft_ids(ps);
        commit_scores(e, ps);
        commit_pools(e, ps);
        for (int32_t i = 0; i < ps->step.pass.n_draws;) {
            int32_t n = 1;
            while (i + n < ps->step.pass.n_draws && ps->owners[i].verify &&
                   ps->owners[i + n].verify && ps->owners[i + n].seq == ps->owners[i].seq) {
                n++;
            }
            if (!ps->owners[i].score) {
                commit_draws(e, ps, i, n);
            }
            i += n;
        }
    }
    if (status == OK) {
        step_commit_draft_kv(ps, &e->scheduler.holdings);
    }
    n_tokens += e->generated_tokens;
    for (int32_t i = 0; i < ps->plan.n_entries; i++) {
        n_tokens += prompt_rows(&ps->plan.entries[i]);
        commit_entry(e, &ps->plan.entries[i]);
        step_over(e, ps->plan.entries[i].seq);
    }
    for (int32_t i = 0; i < ps->plan.n_forks; i++) {
        scheduler_commit(&e->scheduler, ps->plan.forks[i].seq);
        step_over(e, ps->plan.forks[i].seq);
    }
    count_step(e, ps->step.pass.n_rows, n_tokens);
    e->step_seqs += ps->plan.n_entries;
    learn_speed(e, ps->step.pass.n_rows);
}

/* ---- the thread --------------------------------------------------------------------------- */

static void publish_stats(struct engine *e)
{
    const struct scheduler *s = &e->scheduler;
    const struct spec_learnt *l = &e->spec.learnt;
    pthread_mutex_lock(&e->stats_lock);
    struct engine_stats *o = &e->stats;
    o->n_submitted -= e->n_accepted; // they are counted in the fields below
    o->submitted_tokens -= e->accepted_tokens;
    e->n_accepted = 0;
    e->accepted_tokens = 0;
    o->n_running = s->n_running;
    o->n_waiting = s->n_waiting;
    o->waiting_tokens = s->waiting_tokens;
    o->n_blocks = s->limits.n_blocks;
    o->n_blocks_held = s->limits.n_blocks - holdings_available(&s->holdings);
    o->n_blocks_idle = s->holdings.pool.idle.n;
    o->n_blocks_kept = s->holdings.retention.n_kept;
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
    pthread_mutex_unlock(&e->stats_lock);
}

enum {
    NAP_NS = 1000000,     // poll interval when nothing can run until something changes: short
                          // compared with a step
    IDLE_NS = 1000000000, // chosen: the time in which a lost node or device is noticed
};

/* How long the thread may wait for messages: at most until the next deadline. */
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
    requests_take(e, busy ? 0 : patience);
    int64_t now = clock_now_ns();
    requests_expire(e, now);
    retention_tick(&e->scheduler.holdings.retention, now);
    if (!busy) { // no step would report a lost node
        ranks_check(&e->ranks);
    }
    if (e->failed == OK && (engine_set_lost(e, NULL) || atomic_load(&e->ranks.aborted))) {
        fail_with_cause(e, ERR_DEVICE, "the device failed");
    }
    engine_propose(e);
    bool submitted = e->failed == OK && submit_step(e);
    if (e->n_inflight == N_STEPS || (e->n_inflight > 0 && !submitted)) {
        commit_step(e);
    } else if (!submitted && busy) {
        // Nothing fits until something ends; do not spin.
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
        commit_step(e);
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
    if (!e->live) {
        return; // half-open
    }
    drain_steps(e);
    requests_take(e, 0);
    struct engine_request *r;
    while ((r = requests_any(e)) != NULL) {
        requests_end(e, r, -1, FINISH_CANCELLED);
    }
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
    pthread_mutex_destroy(&e->stats_lock);
    free(e->messages);
    free(e->taking);
    free(e);
}
