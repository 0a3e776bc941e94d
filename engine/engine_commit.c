// SPDX-License-Identifier: Apache-2.0
/* Distributes the results of a step, in the order of its draws: tokens to requests, then scores,
 * pooled vectors and counts. */
#include "engine/engine_state.h"

#include "engine/base/clock.h"
#include "engine/base/minmax.h"
#include "engine/logprobs.h"

/* The logits of a draw's whole row, if it returned them. */
static const float *row_of(const struct planned_step *ps, int32_t draw)
{
    int32_t row = ps->step.draws[draw].logits;
    if (row == 0) {
        return NULL;
    }
    return step_results(ps)->logits + (int64_t)(row - 1) * ps->step.vocab;
}

/* The mask of a draw; NULL: none. */
static const uint32_t *mask_of(const struct planned_step *ps, int32_t draw)
{
    const int32_t mask = ps->step.draws[draw].mask;
    return mask > 0 ? ps->step.masks + (int64_t)(mask - 1) * mask_words(ps->step.vocab) : NULL;
}

static void fill_logprobs(const struct engine *e, const struct planned_step *ps, int32_t draw,
                          struct token_logprobs *out, const struct draw_result *d)
{
    const struct sequence *seq = ps->owners[draw].seq;
    const struct sampling_params *p = &seq->request->params;
    struct logprobs_wanted wanted = {p->top_logprobs, p->logprob_ids};
    if (ps->owners[draw].score) {
        const int32_t row = ps->owners[draw].pos - p->prompt_logprob_start;
        wanted = (struct logprobs_wanted){.n = p->prompt_top_logprobs};
        if (p->prompt_logprob_ids && row >= 0) {
            wanted.ids = p->prompt_logprob_ids + (int64_t)row * wanted.n;
        } else if (p->prompt_logprob_ids) {
            wanted.n = 0;
        }
    } else if (p->processed) {
        const struct drawn_row row = {row_of(ps, draw), ps->step.vocab, e->n_vocab_used,
                                      mask_of(ps, draw), seq};
        logprobs_fill_processed(out, d, &row, &wanted, &e->scratch);
        return;
    }
    logprobs_fill(out, d, row_of(ps, draw), ps->step.vocab, &wanted);
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

/* Appends the token of a draw to its sequence. False if the token ended the sequence. */
static bool append(struct engine *e, const struct planned_step *ps, int32_t draw,
                   const struct draw_result *d)
{
    struct sequence *seq = ps->owners[draw].seq;
    struct engine_request *r = seq->request;
    struct engine_output *out = seq->output;
    int32_t n = sequence_generated(seq);
    out->tokens[n] = d->token;
    if (out->logprobs) {
        fill_logprobs(e, ps, draw, &out->logprobs[n], d);
    }
    if (r->t_first_token_ns == 0) {
        r->t_first_token_ns = clock_now_ns();
    }
    seq->n_known++;
    e->generated_tokens++;
    bool ends = constraint_exists(r) && constraint_ends(&e->constraints[seq->index], seq, d->token);
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

/* The row whose draft equals the token drawn at `row`; -1: no draft equals it. */
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
    if (constraint_exists(seq->request)) {
        c->failure = constraint_take(c, seq, token);
    } else {
        c->failure = OK;
    }
    return c->failure != OK;
}

/* Draws first .. first + n belong to one sequence, in row order. The token drawn at a row counts
 * only if all drafts before it were right. */
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
        int32_t draw = first + row;
        struct draw_result d = step_results(ps)->draws[draw];
        if (row == n_drafts && n_drafts > 0 && e->spec.options.no_bonus) {
            break;
        }
        if (d.broken) {
            engine_fail_broken(e, seq, ps, ps->step.draws[draw].out_row);
            goes_on = false;
            break;
        }
        row = next_row(&e->spec, seq, row, n_drafts, &d);
        path[accepted] = row;
        accepted += row >= 0;
        r->n_accepted += row >= 0; // counted before append, which may end the request
        if (is_refused(e, seq, d.token)) {
            engine_fail_constrained(e, seq);
            goes_on = false;
            break;
        }
        goes_on = append(e, ps, draw, &d);
    }
    if (n_drafts > 0) { // drafts after the end of the text were not tested
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
            engine_fail_broken(e, o->seq, ps, ps->step.draws[i].out_row);
        } else if (r->prompt_logprobs && o->seq->sample == 0) {
            fill_logprobs(e, ps, i, &r->prompt_logprobs[o->pos + 1], d);
        }
    }
}

/* Adds one row's values to a request's result. The backend returns sums: of a mean over the whole
 * prompt, otherwise over one row. `complete`: it was the last. */
static void take_pooled(const struct engine *e, struct engine_request *r, const float *sum,
                        int32_t pos, bool complete)
{
    const int32_t hidden = e->info.hidden;
    const float n = r->pool == POOL_MEAN ? (float)r->n_prompt : 1.0f;
    float *to = r->pooled + (r->pool == POOL_TOKENS ? (size_t)pos * (size_t)hidden : 0);
    const bool grows = r->pool == POOL_MAX && pos > 0;
    for (int32_t k = 0; k < hidden; k++) {
        to[k] = grows ? greater(sum[k], to[k]) : sum[k] / n;
    }
    if (complete && r->pool != POOL_TOKENS) {
        pooling_apply(&e->ranks.rank[0].target.pooling, to, hidden, to);
    }
}

static void commit_pools(struct engine *e, const struct planned_step *ps)
{
    size_t hidden = (size_t)e->info.hidden;
    for (int32_t i = 0; i < ps->step.pass.n_pool; i++) {
        const struct pool_owner *o = &ps->pool_owners[i];
        struct engine_request *r = o->seq->request;
        if (o->seq->state == SEQ_RETIRING || !ps->step.pools[i].finish) {
            continue;
        }
        const struct pass_pool *pool = &ps->step.pools[i];
        const float *sum = step_results(ps)->pooled + (size_t)i * hidden;
        const bool complete = o->pos == o->seq->n_prompt - 1;
        if (!engine_is_finite(sum, e->info.hidden)) {
            engine_fail_broken(e, o->seq, ps, pool->first_out + pool->n_out - 1);
            continue;
        }
        take_pooled(e, r, sum, o->pos, complete);
        if (complete) {
            requests_finish(e, o->seq, FINISH_STOP);
        }
    }
}

/* Reports how much of the prompt is computed. Callers ignore this after the first token. */
static void report_prompt(struct engine *e, const struct plan_entry *entry)
{
    struct engine_request *r = entry->seq->request;
    int32_t n = entry->first + entry->n_rows - entry->n_drafts;
    if (r->tells_prompt && entry->seq->sample == 0 && entry->first < r->n_prompt) {
        atomic_store(&r->n_prefilled, lesser(n, r->n_prompt));
        requests_announce(e, r, false);
    }
}

/* A request that only needs its prompt's log-probabilities ends with the last row of the prompt. */
static void commit_entry(struct engine *e, const struct plan_entry *entry)
{
    struct sequence *seq = entry->seq;
    if (seq->state == SEQ_RETIRING) {
        return;
    }
    scheduler_commit(&e->scheduler, seq);
    report_prompt(e, entry);
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

/* Measures how fast prompts are computed, from steps of which they are at least half. The speed
 * determines how much work may overtake a waiting request. */
static void learn_speed(struct engine *e, const struct plan *p, int32_t n_rows)
{
    enum { PATIENCE_S = 10, KEEP = 7 }; // KEEP: weight, in eighths, of the old estimate
    int64_t now = clock_now_ns(), since = e->last_commit_ns;
    e->last_commit_ns = e->n_inflight > 0 ? now : 0;
    if (since > 0 && now > since && 2 * (p->n_foreground + p->n_background) >= p->max_rows) {
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

/* The number of prompt tokens among the rows of an entry. */
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

void engine_commit_step(struct engine *e)
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
        engine_fail(e, status, "the device failed");
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
    n_tokens += e->generated_tokens + ps->plan.n_hits;
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
    learn_speed(e, &ps->plan, ps->step.pass.n_rows);
}
