// SPDX-License-Identifier: Apache-2.0
/* The beginning of a call: prepared on the pool, then submitted to the engine, or queued while the
 * engine is full. See call.h. */
#include "server/call/call.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/call/call_private.h"
#include "server/call/format.h"
#include "server/call/prepare.h"
#include "server/call/tenant.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK_MAX_BYTES = 64 << 20 };

static const struct call_format *const formats[N_REQUEST_KINDS] = {
    [KIND_CHAT] = &call_chat_format,
    [KIND_COMPLETIONS] = &call_completion_format,
    [KIND_EMBEDDINGS] = &call_embedding_format,
    [KIND_RESPONSES] = &call_response_format,
    [KIND_RESPONSES_INPUT_TOKENS] = &call_input_tokens_format,
    [KIND_MESSAGES] = &call_message_format,
    [KIND_COUNT_TOKENS] = &call_count_format,
    [KIND_TOKENIZE] = &call_tokens_format,
    [KIND_DETOKENIZE] = &call_text_format,
    [KIND_SCORE] = &call_score_format,
    [KIND_RERANK] = &call_rerank_format,
    [KIND_OLLAMA_CHAT] = &call_ollama_format,
    [KIND_OLLAMA_GENERATE] = &call_ollama_format,
    [KIND_OLLAMA_EMBED] = &call_ollama_embed_format,
    [KIND_OLLAMA_OLD_EMBED] = &call_ollama_old_embed_format,
    [KIND_OLLAMA_LOAD] = &call_ollama_load_format,
    [KIND_CHAT_BATCH] = &call_chat_format,
    [KIND_LABELS] = &call_labels_format,
    [KIND_CLASSIFY] = &call_classify_format,
    [KIND_POOLING] = &call_pooling_format,
    [KIND_COHERE_EMBED] = &call_cohere_format,
    [KIND_NATIVE] = &call_native_format,
    [KIND_INFILL] = &call_native_format,
    [KIND_NATIVE_EMBED] = &call_native_embed_format,
    [KIND_APPLY_TEMPLATE] = &call_apply_format,
    [KIND_TOKENS] = &call_token_format,
    [KIND_DERENDER_CHAT] = &call_derender_chat_format,
    [KIND_DERENDER] = &call_derender_format,
    [KIND_SYSTEMONE] = &call_systemone_format,
    [KIND_DECISIONS] = &call_decisions_format,
    [KIND_RENDER] = &call_render_format,
    [KIND_RENDER_CHAT] = &call_render_chat_format,
    [KIND_RENDER_RESPONSE] = &call_render_response_format,
    [KIND_RENDER_MESSAGE] = &call_render_chat_format,
    [KIND_COMPACT] = &call_compact_format,
    [KIND_COHERE_CHAT] = &call_cohere_chat_format,
    [KIND_RENDER_COHERE] = &call_render_chat_format,
    [KIND_CHAT_INPUT_TOKENS] = &call_input_tokens_format,
    [KIND_INVOCATIONS] = &call_chat_format, // until the request's kind is known
    [KIND_LLAMA_CHAT] = &call_chat_format,
    [KIND_EITHER_EMBED] = &call_embedding_format,
    [KIND_EITHER_COMPLETION] = &call_completion_format,
};

const struct call_format *call_format_of(enum request_kind kind)
{
    return formats[kind];
}

static void start_stream(struct call *c)
{
    c->streaming = true;
    c->sink->begin(c);
    if (c->format->begin) {
        c->format->begin(c);
    }
}

static void record_prompt(struct call *c)
{
    c->record.n_prompt_tokens = 0;
    for (size_t i = 0; i < c->request.n_prompts; i++) {
        c->record.n_prompt_tokens += c->request.prompts[i].n;
    }
}

static void set_id(struct call *c, const char *asked)
{
    snprintf(c->id, sizeof c->id, "%s%s", c->format->id_prefix, c->sink->id(c, asked));
}

static void enqueue(struct call *c)
{
    struct call_server *s = c->server;
    c->queued = true;
    *s->queue_tail = c;
    s->queue_tail = &c->next_queued;
}

/* Runs on the pool: stores the beginning of a background response, before its client gets the
 * id. */
static void record(void *arg)
{
    struct call *c = arg;
    struct err err = {""};
    if (c->format->record(c, &err) != OK) {
        c->not_kept = xstrdup(err.text);
    }
}

/* Back on the loop thread, after `record`. If it failed, so does the call, because nobody could
 * read the response. */
static void on_recorded(void *arg)
{
    struct call *c = arg;
    call_watch_memory(c->server);
    c->saving = false;
    if (c->not_kept) {
        struct call_error e = {0};
        call_error_set(&e, 507, "storage_full", NULL,
                       "The response cannot be stored, so it does not run in the background: %s",
                       c->not_kept);
        c->ending = CALL_ANSWERED;
        call_fail(c, &e);
        return;
    }
    c->kept = true;
    c->sink->kept(c);
    if (c->ending != CALL_ANSWERED) {
        call_end_kept(c);
    } else {
        call_finish_if_complete(c);
    }
}

/* Stores the beginning of a background response: on the pool, since the store blocks, or at once if
 * there is none (tests, jobs). */
static void start_record(struct call *c)
{
    c->saving = true;
    if (c->server->host->run) {
        c->server->host->run(c->server, record, on_recorded, c);
    } else {
        record(c);
        on_recorded(c);
    }
}

/* Submits the call to the engine, or appends it to the queue of waiting calls. False: *e says why
 * not. */
static bool submit(struct call *c, struct call_error *e)
{
    if (!call_make_requests(c, e)) {
        return false;
    }
    enum status st = c->offline && c->server->queue ? ERR_BUSY : call_submit(c, e);
    if (st == ERR_BUSY && e->status == 0) {
        enqueue(c);
        return true;
    }
    return st == OK;
}

/* Calls leave the queue in order, until the engine is full again. A call that has ended meanwhile
 * is only unlinked. */
void call_submit_queued(struct call_server *s)
{
    while (s->queue) {
        struct call *c = s->queue;
        struct call_error e = {0};
        enum status st = c->answered ? OK : call_submit(c, &e);
        if (st == ERR_BUSY && e.status == 0) {
            return;
        }
        s->queue = c->next_queued;
        if (!s->queue) {
            s->queue_tail = &s->queue;
        }
        c->queued = false;
        if (c->answered) {
            call_release(c);
        } else if (st != OK) {
            call_fail(c, &e);
        }
    }
}

/* Continues a prepared call: refuses it, answers it without the engine (counts of tokens), submits
 * it, or queues it. From here on its samples count as waiting. */
static void take_prepared(struct call *c)
{
    struct call_error e = c->request.error;
    if (e.status == 0) {
        record_prompt(c);
        if (c->sink->prepared) {
            c->sink->prepared(c);
        }
        if (c->format->reply) {
            c->format->reply(c);
            call_let_go(c);
            return;
        }
        if (submit(c, &e)) {
            if (c->tenant) {
                c->n_waiting = (int64_t)c->n_requests * c->request.n;
                c->tenant->n_waiting += c->n_waiting;
            }
            call_observe(c, MEASURE_N, c->request.n);
            call_observe(c, MEASURE_MAX_TOKENS, c->requests[0].params.max_tokens);
            call_start_deadline(c);
            if (c->request.stream) {
                start_stream(c);
            }
            if (call_lacks_memory(c)) {
                return;
            }
            if (c->request.detached) {
                start_record(c);
            }
            return;
        }
    }
    call_fail(c, &e);
}

/* Runs on the pool, so it may only use the server's constants and the store. If a buffer has lost
 * bytes, the request fails. */
static void prepare(void *arg)
{
    struct call *c = arg;
    struct request *r = &c->request;
    const uint64_t n_lost = buf_n_lost();
    if (!c->renders) {
        c->stage = prepare_body(r);
    }
    if (c->renders || c->stage == PREPARE_PROMPT) {
        prepare_prompt(r);
        c->stage = PREPARE_DONE;
    }
    if (buf_n_lost() != n_lost) {
        c->stage = PREPARE_DONE;
        r->error = (struct call_error){0};
        call_error_no_memory(&r->error);
    }
}

static void on_prepared(void *arg);

static void start_prepare(struct call *c)
{
    if (c->server->host->run) {
        c->server->host->run(c->server, prepare, on_prepared, c);
    } else {
        prepare(c);
        on_prepared(c);
    }
}

/* Continues with the next call that has a template of its client, unless one is rendered. */
static void render_next(struct call_server *s)
{
    while (s->template_queue && !s->template_is_taken) {
        struct call *c = s->template_queue;
        s->template_queue = c->next_queued;
        if (!s->template_queue) {
            s->template_tail = &s->template_queue;
        }
        if (c->gone) {
            c->preparing = false;
            call_give_back(c);
            continue;
        }
        s->template_is_taken = c->renders = true;
        start_prepare(c);
    }
}

static void enqueue_template(struct call *c)
{
    c->next_queued = NULL;
    *c->server->template_tail = c;
    c->server->template_tail = &c->next_queued;
}

/* Back on the loop thread. The client may have gone while the body was read. */
static void on_prepared(void *arg)
{
    struct call *c = arg;
    call_watch_memory(c->server);
    if (c->stage == PREPARE_TEMPLATE) {
        enqueue_template(c);
        render_next(c->server);
        return;
    }
    if (c->renders) {
        c->renders = c->server->template_is_taken = false;
        render_next(c->server);
    }
    c->preparing = false;
    if (c->request.kind != c->kind) { // the body has decided the kind
        c->format = call_format_of(c->request.kind);
    }
    if (c->gone) {
        call_give_back(c);
        return;
    }
    if (c->request.n_unknown > 0) {
        c->server->counts.n_unknown_keys += (uint64_t)c->request.n_unknown;
        log_debug("%d unknown parameters are ignored, such as '%.60s'", c->request.n_unknown,
                  c->request.unknown);
    }
    if (c->request.n_stripped_lines > 0 && !c->server->told_stripped) {
        c->server->told_stripped = true;
        log_info(
            "lines of system prompts are removed because of --strip-prompt-lines; this is logged "
            "once");
    }
    c->request.stream = c->request.stream && c->format->finish && c->sink->begin;
    set_id(c, c->request.request_id);
    take_prepared(c);
}

/* Requests without a seed get different seeds, so that equal requests can get different answers. */
void call_start(struct call_server *s, struct call *c)
{
    c->server = s;
    c->kind = c->request.kind;
    if (!c->format) {
        c->format = call_format_of(c->kind);
    }
    c->record = CALL_RECORD_NONE;
    c->request.model = &s->model;
    c->request.store = c->offline ? NULL : s->store;
    c->request.owner = c->owner;
    // Knuth's generator, whose period is 2^64: no two requests get the same seed.
    c->request.seed = s->next_seed = s->next_seed * 6364136223846793005ULL + 1442695040888963407ULL;
    c->created = clock_wall_sec();
    c->t_start_ns = clock_now_ns();
    buf_init(&c->chunk_head, CHUNK_MAX_BYTES);
    set_id(c, NULL);
    c->next = s->calls;
    c->link = &s->calls;
    if (c->next) {
        c->next->link = &c->next;
    }
    s->calls = c;
    s->n_calls++;
    c->preparing = true;
    start_prepare(c);
}
