// SPDX-License-Identifier: Apache-2.0
/* Submits a prepared call to the engine: admission, memory for the outputs, and one engine request
 * per prompt. */
#include "engine/engine.h"
#include "server/call/call.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "server/call/beams.h"
#include "server/call/shifts.h"
#include "server/call/tenant.h"

#include <stdlib.h>

enum { OUTPUT_MAX_BYTES = 1 << 30 };

/* One block for the outputs of all samples: tokens, then logprobs with their lists. */
static bool make_outputs(struct call *c, struct call_error *e)
{
    const struct request *r = &c->request;
    size_t per = sizeof(int32_t), n_top = (size_t)r->params.top_logprobs, total = 0;
    if (r->params.logprobs) {
        per += sizeof(struct token_logprobs) + n_top * (sizeof(int32_t) + sizeof(float));
    }
    size_t n = (size_t)r->n;
    for (size_t i = 0; i < r->n_prompts; i++) {
        size_t room = ((size_t)r->prompts[i].max_tokens + 2) & ~(size_t)1;
        total += n * (room * per + sizeof(struct engine_output) + 64);
        if (total > OUTPUT_MAX_BYTES) {
            return call_error_answer_too_large(e);
        }
    }
    c->memory = calloc(1, total);
    c->requests = calloc(r->n_prompts, sizeof c->requests[0]);
    c->choices = calloc(r->n_prompts * n, sizeof c->choices[0]);
    if (!c->memory || !c->requests || !c->choices) {
        return call_error_no_memory(e);
    }
    c->n_requests = r->n_prompts;
    char *at = c->memory;
    for (size_t i = 0; i < r->n_prompts; i++) {
        size_t room = ((size_t)r->prompts[i].max_tokens + 2) & ~(size_t)1;
        c->requests[i].outputs = (struct engine_output *)at;
        at += n * sizeof(struct engine_output);
        for (size_t k = 0; k < n; k++) {
            struct engine_output *o = &c->requests[i].outputs[k];
            o->stop_id = -1;
            if (r->params.logprobs) {
                o->logprobs = (struct token_logprobs *)at;
                at += room * sizeof o->logprobs[0];
                for (size_t t = 0; t < room; t++) {
                    o->logprobs[t].top_ids = (int32_t *)at;
                    at += n_top * sizeof(int32_t);
                    o->logprobs[t].top_logprobs = (float *)at;
                    at += n_top * sizeof(float);
                }
            }
            o->tokens = (int32_t *)at;
            at += room * sizeof(int32_t);
        }
        at += (16 - ((uintptr_t)at & 15)) & 15;
    }
    return true;
}

/* Lists for the prompt's own log-probabilities. */
static bool make_prompt_logprobs(struct call *c, struct engine_request *r, struct call_error *e)
{
    size_t n_top = (size_t)c->request.params.prompt_top_logprobs, n = (size_t)r->n_prompt;
    size_t per = sizeof(struct token_logprobs) + n_top * (sizeof(int32_t) + sizeof(float));
    if (per > OUTPUT_MAX_BYTES / n) {
        return call_error_set(e, 400, "invalid_value", "prompt_logprobs",
                              "The log probabilities that this request asks for would not fit in "
                              "memory; ask for fewer, or for those of a shorter prompt.");
    }
    char *at = mem_try_calloc(n, per);
    if (!at) {
        return call_error_no_memory(e);
    }
    r->prompt_logprobs = (struct token_logprobs *)at;
    at += n * sizeof(struct token_logprobs);
    for (size_t i = 0; i < n; i++) {
        r->prompt_logprobs[i].top_ids = (int32_t *)at;
        at += n_top * sizeof(int32_t);
        r->prompt_logprobs[i].top_logprobs = (float *)at;
        at += n_top * sizeof(float);
    }
    return true;
}

/* One engine request per prompt, all with the same parameters. */
static bool make_requests(struct call *c, struct call_error *e)
{
    const struct request *r = &c->request;
    if (!make_outputs(c, e)) {
        return false;
    }
    size_t total = 0;
    const char *salt = tenant_cache_salt(c->tenant, r->cache_salt, &c->salt);
    for (size_t i = 0; i < c->n_requests; i++) {
        struct engine_request *q = &c->requests[i];
        q->prompt = r->prompts[i].ids;
        q->n_prompt = r->prompts[i].n;
        q->params = r->params;
        q->params.max_tokens = r->prompts[i].max_tokens;
        q->n = r->n;
        q->grammar = r->grammar ? r->grammar->grammar : NULL;
        q->grammar_after = r->constraint_after;
        q->grammar_after_id = r->constraint_after_id;
        q->thinking = r->thinking ? &r->thinking[i] : NULL;
        q->priority = r->priority;
        q->background = r->background;
        q->tells_prompt = r->tells_prompt && r->stream;
        q->cache_salt = salt;
        q->adapter = r->adapter;
        q->hints = r->hints;
        q->n_hints = r->n_hints;
        q->owner = c->tenant ? c->tenant->id : 0;
        q->cache_share = c->tenant ? c->tenant->limits.cache_share : 1;
        q->user = c;
        if (r->pools) {
            q->pool = r->pooling;
            q->second = r->prompts[i].second_at;
            const struct engine_info *info = r->model->info;
            const bool each = r->pooling == POOL_TOKENS;
            const int32_t width = each ? info->hidden : greater(info->hidden, info->pooled_width);
            size_t n_vectors = each ? (size_t)q->n_prompt : 1;
            size_t bytes = n_vectors * (size_t)width * sizeof(float);
            total += bytes;
            if (total > OUTPUT_MAX_BYTES) {
                return call_error_answer_too_large(e);
            }
            q->pooled = mem_try_calloc(1, bytes);
            if (!q->pooled) {
                return call_error_no_memory(e);
            }
        }
        if (r->params.prompt_logprobs && !make_prompt_logprobs(c, q, e)) {
            return false;
        }
        for (int32_t k = 0; k < r->n; k++) {
            size_t index = i * (size_t)r->n + (size_t)k;
            call_choice_init(&c->choices[index], c, (int32_t)index, q, k);
            c->n_choices++;
        }
    }
    return true;
}

static int retry_after(const struct engine_stats *s)
{
    int32_t lanes = s->n_running > 0 ? s->n_running : 1;
    int32_t wait = 1 + engine_stats_queued(s) / lanes;
    return lesser(30, wait);
}

/* Free lanes count only if nothing was waiting in the engine's last step; otherwise KV blocks are
 * short, and a free lane does not help. */
int64_t call_queue_length(const struct call_server *s, const struct engine_stats *stats)
{
    int32_t lanes = 0;
    if (stats->n_waiting == 0) {
        lanes = s->model.info->max_num_seqs - stats->n_running;
    }
    int64_t queued = engine_stats_queued(stats) - greater(lanes, 0);
    return greater(queued, 0);
}

/* Admission: limits the number of waiting sequences and of waiting prompt tokens. */
static bool admit(struct call *c, struct call_error *e)
{
    struct engine_stats s;
    const struct config *config = c->server->config;
    engine_stats(c->server->engine, &s);
    int64_t tokens = 0, sequences = (int64_t)c->request.n_prompts * c->request.n;
    for (size_t i = 0; i < c->request.n_prompts; i++) {
        tokens += c->request.prompts[i].n;
    }
    int32_t most = c->request.model->info->max_sequences;
    if (sequences > most) {
        return call_error_set(e, 400, "invalid_value", NULL,
                              "This request asks for %lld samples of all prompts together; at most "
                              "%d may wait and run at once on this server.",
                              (long long)sequences, most);
    }
    if (c->offline) {
        return true;
    }
    int64_t queued = call_queue_length(c->server, &s), now_ns = clock_now_ns();
    if (c->tenant && !(tenant_check_priority(c->tenant, &c->request.priority, e) &&
                       tenant_admits(c->tenant, tokens, sequences, queued,
                                     config->max_num_queued_reqs, now_ns, e))) {
        c->server->counts.rejected[REJECT_RATE_LIMIT] += e->status == 429;
        return false;
    }
    int64_t waiting = s.waiting_tokens + s.submitted_tokens;
    bool waits = queued > 0; // if nothing waits, a request of any size is admitted
    bool full = queued + sequences > config->max_num_queued_reqs && waits;
    bool heavy = waiting + tokens > config->max_num_queued_tokens && waits;
    if (!full && !heavy) {
        if (c->tenant) {
            tenant_charge(c->tenant, tokens, now_ns);
        }
        return true;
    }
    e->retry_after_s = retry_after(&s);
    c->server->counts.rejected[REJECT_QUEUE_FULL]++;
    c->server->counts.overloaded[full ? OVERLOAD_REQUESTS : OVERLOAD_TOKENS]++;
    e->type = "server_error";
    return call_error_set(e, (int)config->overload_status, "server_overloaded", NULL,
                          "The server is overloaded: too many requests are waiting.");
}

bool call_make_requests(struct call *c, struct call_error *e)
{
    return admit(c, e) && make_requests(c, e) && (!c->request.beams || beams_open(c, e)) &&
           (!c->request.shifts || shifts_open(c, e));
}

/* Sets the error for a request that the engine refused. */
static enum status refused(struct call *c, enum status st, const struct err *why,
                           struct call_error *e)
{
    struct call_server *s = c->server;
    struct engine_stats stats;
    if (st == ERR_BUSY && !c->offline) {
        engine_stats(s->engine, &stats);
        e->retry_after_s = retry_after(&stats);
        e->type = "server_error";
        s->counts.rejected[REJECT_QUEUE_FULL]++;
        s->counts.overloaded[OVERLOAD_REQUESTS]++;
        call_error_set(e, (int)s->config->overload_status, "server_overloaded", NULL,
                       "The server is overloaded: its queue is full.");
    } else if (st == ERR_INVALID) {
        call_error_set(e, 400, "invalid_value", NULL, "%s", why->text);
    } else if (st != ERR_BUSY) {
        s->counts.rejected[REJECT_DEAD]++;
        call_error_set(e, 503, "engine_dead", NULL, "The engine does not accept requests.");
    }
    return st;
}

/* If the engine becomes full, the rest of the call is submitted later. */
enum status call_submit(struct call *c, struct call_error *e)
{
    if (c->beams) {
        enum status st = beams_submit(c, e);
        return st == ERR_BUSY ? refused(c, st, NULL, e) : st;
    }
    if (c->shifts) {
        struct err err = {""};
        enum status st = shifts_submit(c, &err);
        return st == OK ? OK : refused(c, st, &err, e);
    }
    while (c->n_submitted < c->n_requests) {
        struct err err = {""};
        enum status st = engine_submit(c->server->engine, &c->requests[c->n_submitted], &err);
        if (st != OK) {
            return refused(c, st, &err, e);
        }
        c->n_submitted++;
    }
    return OK;
}
