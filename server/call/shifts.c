// SPDX-License-Identifier: Apache-2.0
#include "server/call/shifts.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_LEFT = 4 }; // at least this many tokens of the context are not kept, as in llama.cpp

/* The current piece of one sample. */
struct piece {
    struct engine_request request; // must be first: the engine returns it
    struct engine_output output;
    struct engine_request *whole;
    struct call_choice *choice;
    int32_t *ids; // [context]
    int32_t n_before, n_pieces;
    bool ready, runs;
};

struct shifts {
    size_t n;
    struct piece pieces[];
};

/* ---- whether a context may shift ------------------------------------------------------------- */

/* Settings that depend on the whole answer would start again with each piece, so they exclude
 * shifts. */
bool shifts_may(const struct request *r)
{
    return r->model->config->context_shift && r->generates && r->has_max_tokens && !r->beams &&
           !r->params.prompt_logprobs && !r->params.allowed_each && !r->constraint_param &&
           r->tool_mode == TOOLS_OFF && !r->thinking_param &&
           r->model->config->reasoning_budget < 0;
}

static int32_t n_kept(const struct request *r, int32_t n_prompt)
{
    int64_t context = r->model->info->max_model_len;
    int64_t keep = r->n_keep < 0 ? n_prompt : lesser(r->n_keep, (int64_t)n_prompt);
    return (int32_t)lesser(keep, context - LEAST_LEFT);
}

/* Drops blocks of tokens after the kept ones until the prompt fits; a block is half of the space
 * that the kept tokens leave in the context, as in llama.cpp. */
bool shifts_cut_prompt(struct request *r, struct request_prompt *p)
{
    int32_t context = r->model->info->max_model_len, keep = n_kept(r, p->n);
    int32_t block = greater((context - keep) / 2, 1);
    int32_t drop = (p->n - keep - block) / block * block;
    int32_t *ids = arena_alloc(&r->arena, (size_t)p->n, sizeof *ids);
    if (!ids) {
        return request_too_large(r);
    }
    memcpy(ids, p->ids, (size_t)keep * sizeof *ids);
    memcpy(ids + keep, p->ids + keep + drop, (size_t)(p->n - keep - drop) * sizeof *ids);
    p->ids = ids;
    p->n -= drop;
    p->text = NULL; // the text stands for more tokens than remain
    r->prompt_cut = true;
    return true;
}

/* ---- pieces -------------------------------------------------------------------------------------
 */

/* The request of the next piece, whose prompt is in `ids`. Each piece has its own noise, because
 * positions repeat. */
static void make(struct piece *p, int32_t n_prompt)
{
    struct engine_request *q = &p->request;
    const struct engine_output *to = &p->whole->outputs[p->choice->sample];
    const int32_t context = p->choice->call->request.model->info->max_model_len;
    const int32_t left = p->whole->params.max_tokens - p->n_before;
    *q = *p->whole;
    q->prompt = p->ids;
    q->n_prompt = n_prompt;
    q->n = 1;
    q->outputs = &p->output;
    q->tells_prompt = false;
    q->params.seed += (uint64_t)p->choice->sample + (uint64_t)p->n_pieces * 0x9E3779B97F4A7C15ULL;
    q->params.max_tokens = lesser(left, context - n_prompt);
    q->params.min_tokens =
        lesser(greater(q->params.min_tokens - p->n_before, 0), q->params.max_tokens);
    p->output = (struct engine_output){.tokens = to->tokens + p->n_before, .stop_id = -1};
    if (to->logprobs) {
        p->output.logprobs = to->logprobs + p->n_before;
    }
    p->n_pieces++;
    p->ready = true;
}

bool shifts_open(struct call *c, struct call_error *e)
{
    const size_t context = (size_t)c->request.model->info->max_model_len;
    c->shifts = mem_try_calloc(1, sizeof *c->shifts + c->n_choices * sizeof(struct piece));
    if (!c->shifts) {
        return call_error_no_memory(e);
    }
    c->server->n_shift_calls++;
    for (size_t i = 0; i < c->n_choices; i++) {
        struct piece *p = &c->shifts->pieces[c->shifts->n++];
        p->choice = &c->choices[i];
        p->whole = c->choices[i].request;
        p->ids = mem_try_calloc(context, sizeof *p->ids);
        if (!p->ids) {
            return call_error_no_memory(e);
        }
        memcpy(p->ids, p->whole->prompt, (size_t)p->whole->n_prompt * sizeof *p->ids);
        make(p, p->whole->n_prompt);
    }
    return true;
}

void shifts_close(struct call *c)
{
    if (!c->shifts) {
        return;
    }
    for (size_t i = 0; i < c->shifts->n; i++) {
        free(c->shifts->pieces[i].ids);
    }
    c->server->n_shift_calls--;
    free(c->shifts);
    c->shifts = NULL;
}

enum status shifts_submit(struct call *c, struct err *err)
{
    for (size_t i = 0; i < c->shifts->n; i++) {
        struct piece *p = &c->shifts->pieces[i];
        if (p->ready) {
            TRY(engine_submit(c->server->engine, &p->request, err));
            p->ready = false;
            p->runs = true;
            c->n_submitted++;
        }
    }
    return OK;
}

void shifts_cancel(struct call *c)
{
    for (size_t i = 0; i < c->shifts->n; i++) {
        if (c->shifts->pieces[i].runs) {
            engine_cancel(c->server->engine, &c->shifts->pieces[i].request);
        }
    }
}

bool shifts_are_ready(const struct call *c)
{
    for (size_t i = 0; i < c->shifts->n; i++) {
        if (c->shifts->pieces[i].ready) {
            return true;
        }
    }
    return false;
}

/* ---- the engine's output --------------------------------------------------------------------- */

/* Clients see the times and cache counts of the first piece, and the sums of the other counts. */
static void copy_facts(struct piece *p)
{
    struct engine_request *to = p->whole;
    const struct engine_request *from = &p->request;
    if (p->n_pieces == 1) {
        to->t_submit_ns = from->t_submit_ns;
        to->t_scheduled_ns = from->t_scheduled_ns;
        to->t_first_token_ns = from->t_first_token_ns;
        to->n_recomputed = from->n_recomputed;
        atomic_store(&to->n_cached, atomic_load(&from->n_cached));
    }
    if (from->done) {
        to->t_done_ns = from->t_done_ns;
        to->n_preemptions += from->n_preemptions;
        atomic_fetch_add(&to->n_drafts, atomic_load(&from->n_drafts));
        atomic_fetch_add(&to->n_accepted, atomic_load(&from->n_accepted));
    }
}

/* Drops half of the tokens after the kept ones; the answer's last tokens stay. */
static void shift(struct piece *p)
{
    const struct request *r = &p->choice->call->request;
    const int32_t n_new = atomic_load(&p->output.n_tokens);
    const int32_t n = p->request.n_prompt + n_new, keep = n_kept(r, p->whole->n_prompt);
    int64_t drop = r->n_discard > 0 ? r->n_discard : (n - keep) / 2;
    drop = greater(lesser(drop, (int64_t)(n - keep - 1)), (int64_t)1);
    memcpy(p->ids + p->request.n_prompt, p->output.tokens, (size_t)n_new * sizeof *p->ids);
    memmove(p->ids + keep, p->ids + keep + drop, (size_t)(n - keep - drop) * sizeof *p->ids);
    p->n_before += n_new;
    p->choice->shifted = true;
    make(p, n - (int32_t)drop);
}

/* Copies the piece's progress to the output of the whole answer. If the context is full and the
 * answer may become longer, drops tokens and starts the next piece. */
struct engine_request *shifts_take(struct call *c, struct engine_request *r)
{
    struct piece *p = (struct piece *)r;
    struct engine_output *to = &p->whole->outputs[p->choice->sample];
    const bool done = r->done;
    const int32_t finish = atomic_load(&p->output.finish);
    const int32_t n = p->n_before + atomic_load(&p->output.n_tokens);
    (void)c;
    copy_facts(p);
    if (done) {
        p->runs = false;
    }
    bool goes_on = done && r->error == OK && finish == FINISH_LENGTH && !p->choice->finish &&
                   n < p->whole->params.max_tokens;
    to->stop_id = p->output.stop_id;
    atomic_store(&to->n_tokens, n);
    if (goes_on) {
        shift(p);
    } else if (done) {
        atomic_store(&to->finish, finish);
    }
    return p->whole;
}
