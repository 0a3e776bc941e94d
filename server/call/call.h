// SPDX-License-Identifier: Apache-2.0
/* A call: what a request does, from the text of its body to its answer, whoever asks and wherever
 * the answer goes.
 *
 *     call_start -> prepare -> submit -> call_on_wake: tokens -> text -> events, or the whole
 * answer
 *
 * Whoever starts calls gives two tables: a host (struct call_host), where time and threads come
 * from, and for each call a sink (struct call_sink), where its answer goes. A call lives from
 * call_start until its sink has had the answer and the engine has let go of every request; then
 * `over` is called. Thread: one for all calls of a server, the one that drains the engine. */
#ifndef SLUICE_SERVER_CALL_CALL_H
#define SLUICE_SERVER_CALL_CALL_H

#include "engine/base/buf.h"
#include "engine/schedule/request.h"
#include "server/call/error.h"
#include "server/call/model.h"
#include "server/call/request.h"
#include "server/chat/output.h"

#include <stdbool.h>
#include <stdint.h>

struct call;
struct engine;
struct engine_stats;
struct call_server;
struct beams;       // server/call/beams.h
struct call_format; // server/call/format.h
struct tenant;      // server/call/tenant.h

/* ---- what is counted ---------------------------------------------------------------------------
 */

enum call_measure {
    MEASURE_TTFT, // of a call; what follows is of each request of the engine
    MEASURE_ITL,
    MEASURE_TPOT,
    MEASURE_E2E,
    MEASURE_QUEUE,
    MEASURE_INFERENCE,
    MEASURE_PREFILL,
    MEASURE_DECODE,
    MEASURE_PROMPT_TOKENS,
    MEASURE_GENERATION_TOKENS,
    MEASURE_MAX_GENERATION_TOKENS,
    MEASURE_MAX_TOKENS,
    MEASURE_N,
    MEASURE_PREFILL_COMPUTED,
    MEASURE_PREEMPTIONS,
    N_CALL_MEASURES,
};

enum call_reject {
    REJECT_QUEUE_FULL,
    REJECT_DEADLINE,
    REJECT_DRAINING,
    REJECT_LOADING,
    REJECT_DEAD,
    REJECT_TOO_LARGE,
    REJECT_RATE_LIMIT,
    N_REJECTS,
};

enum call_abort {
    ABORT_DISCONNECT,
    ABORT_DEADLINE,
    ABORT_SLOW_READER,
    ABORT_SHUTDOWN,
    N_ABORTS,
};

struct call_counts {
    uint64_t finished[N_FINISH_REASONS]; // samples, by enum finish_reason
    uint64_t rejected[N_REJECTS], aborted[N_ABORTS];
    uint64_t n_unknown_keys;
    int32_t longest_context; // the most tokens that a prompt and its answer had together
};

/* ---- whoever starts calls ----------------------------------------------------------------------
 */

/* Each may be NULL. */
struct call_host {
    /* Runs work(arg) on a thread of a pool, then done(arg) on the calls' own. NULL: at once. */
    void (*run)(struct call_server *s, void (*work)(void *arg), void (*done)(void *arg), void *arg);
    /* Calls call_on_deadline after this time, once, in place of what was set before; -1: not at
     * all. NULL: calls have no deadlines. */
    void (*set_deadline)(struct call *c, int64_t delay_ms);
    void (*observe)(struct call_server *s, enum call_measure what, double v);
};

struct call_server {
    const struct call_host *host;
    const struct config *config;
    struct engine *engine; // NULL until loaded
    struct store *store;   // of responses; NULL: none are kept. Its owner's
    struct call_model model;
    /* Offline calls that found the engine's queue full. While it is not NULL no more of them should
     * be started. */
    struct call *queue, **queue_tail;
    struct call *calls;            // all that live
    int64_t n_calls, n_beam_calls; // the latter: that search with beams
    struct call_counts counts;
    uint64_t next_seed;
    bool told_stripped; // that lines are taken out of prompts
    bool in_drain;      // of the engine, or of one call: those that end wait for its end
    int64_t n_dead;     // of those
    struct buf scratch; // for one callback at a time
    uint64_t n_lost;    // buf_n_lost when the callback began: what lacks memory is no answer
};

/* Where a call's answer goes. One of the four that end an answer is called, once, and after it
 * nothing but `over`. Those that are marked may be NULL. */
struct call_sink {
    /* The id that the answer's own is made of; `asked` is the body's, or NULL. Copied. */
    const char *(*id)(struct call *c, const char *asked);
    void (*prepared)(struct call *c); // may be NULL: the body's text is not read any more
    /* May be NULL: the engine has something to say, for the first time; nothing is written yet. */
    void (*first_news)(struct call *c, int64_t now_ns);

    /* The answer is kept whatever becomes of its client, who may be told so; a stream of events
     * follows, or preceded. NULL: such requests do not come. */
    void (*kept)(struct call *c);

    /* A stream: events until the end. `begin` NULL: whole answers alone, also where a stream was
     * asked for. */
    void (*begin)(struct call *c);
    void (*event)(struct call *c, const char *name, const char *json,
                  size_t n_bytes);          // name: or NULL
    bool (*is_full)(const struct call *c);  // no more until call_on_room
    bool (*is_begun)(const struct call *c); // something has gone out already
    void (*end)(struct call *c, bool done); // ends it; done: with the mark of chat and completions

    void (*whole)(struct call *c, struct buf *json); // ends it; takes the buffer's memory
    void (*error)(struct call *c, const struct call_error *error); // ends it, a stream too
    void (*drop)(struct call *c);                                  // ends it, after call_gone
    void (*over)(struct call *c); // the call is forgotten: its memory is the owner's again
};

/* What a log may say of a call. */
struct call_record {
    const char
        *finish;       // static text: "stop", "length", "tool_calls", "error", "cancelled"; or NULL
    const char *error; // the error's code, static text; or NULL
    int64_t n_prompt_tokens, n_cached_tokens, n_output_tokens; // -1: not known
    int64_t queued_ns, first_token_ns; // durations from arrival; -1: not known
};
#define CALL_RECORD_NONE ((struct call_record){NULL, NULL, -1, -1, -1, -1, -1})

/* ---- a call
 * -------------------------------------------------------------------------------------- */

/* How an answer that is kept has ended. */
enum call_ending { CALL_ANSWERED, CALL_FAILED, CALL_CANCELLED };

/* What a sample has produced, in the order of the sink; one kind at a time. */
enum call_pending { PENDING_NONE, PENDING_TEXT, PENDING_REASONING, PENDING_ARGUMENTS };

struct call_choice {
    struct call *call;
    int32_t index;
    struct engine_request *request;
    int32_t sample;
    struct output output;
    int32_t n_taken;    // tokens that went through the output
    size_t n_chars;     // characters of text before the next token (text_offset)
    const char *finish; // set at the end
    int32_t stop_id;    // that ended it, if not the model's own; -1
    /* Non-stream: the whole; stream: not yet sent. */
    struct buf content, reasoning, arguments, logprobs, ids;
    struct buf custom;   // the arguments of a custom tool's call, until it ends
    struct buf calls;    // non-stream chat: the finished tool calls
    struct buf lists[3]; // completions: what goes with each token of logprobs
    enum call_pending pending;
    bool started, has_content, has_reasoning, has_call, skip_call;
    bool is_custom; // the call is one of a custom tool: its `arguments` are a text
    bool sent_prompt_text, sent_prompt_ids; // completions, once
    bool told_prompt;                       // return_progress: something was told,
    int32_t n_prefilled;                    // and this last
    int32_t n_calls, n_lines; // n_lines: pieces with a line end (llama.cpp's answers alone)
    int64_t t_last_ns;
};

/* The first member of what the sink's owner has for a call. */
struct call {
    /* The owner's, before call_start; the rest is zero. request: kind, text and n_bytes. */
    struct call_server *server;
    const struct call_sink *sink;
    struct request request;
    int64_t t_arrived_ns; // of the request, clock_now_ns
    char owner[40];       // whose responses it may see; "": those of nobody in particular
    double patience_s;    // how long its client waits for a first token; 0: not known
    /* Nobody waits for it: where the engine's queue is full it waits instead of being refused, it
     * has no deadlines, and is not among the measures of what clients see. */
    bool offline;
    const struct call_format *format; // NULL: the kind's own
    struct tenant *tenant;            // who asks, entered already; NULL: without limits

    struct call_record record;
    enum request_kind kind;          // that it was started as
    struct engine_request *requests; // one per prompt
    void *memory;                    // of their outputs
    struct beams *beams; // searches that give the answers of `requests`; NULL: the engine does
    char *salt;          // their cache_salt, where it is not the body's
    size_t n_requests, n_submitted, n_done; // with beams the latter two are of their steps
    struct call_choice *choices;
    size_t n_choices, n_finished;
    int64_t n_waiting;       // sequences that count in the tenant's
    bool answered;           // the sink has had its terminal call
    bool saving;             // on the pool
    bool closed;             // all of the answer is there
    bool kept;               // its beginning is stored, and its end will be (request.detached)
    enum call_ending ending; // not CALL_ANSWERED: it has to end so as soon as it may
    char *not_kept, *why;    // what the store said, and what of a failure; NULL: neither
    bool preparing, queued, streaming, untimed, gone, dead, first_token, deadline_is_queue,
        has_news;
    struct call *next, **link, *next_queued;
    char id[144]; // "chatcmpl-..."
    int64_t created;
    struct buf chunk_head; // what every chunk of a stream begins with
    void *extra;           // the format's own
    int64_t t_start_ns;
    uint64_t next_id; // of tool calls
};

void call_server_init(struct call_server *s, const struct config *config,
                      const struct call_host *host);
void call_server_deinit(struct call_server *s); // no call is left; the model is its owner's

void call_start(struct call_server *s, struct call *c);

/* After the engine's wake: takes all that is new, and submits what had to wait. */
void call_on_wake(struct call_server *s);
void call_on_deadline(struct call *c);
void call_on_room(struct call *c); // a sink that was full has room again
/* Nobody wants the answer any more; `drop` follows, now or when the pool has done. */
void call_gone(struct call *c, enum call_abort why);
/* Ends one that is kept: its sink gets the end of a stream, when it is stored. */
void call_cancel(struct call *c);
/* Ends all that are not being prepared. */
void call_abort_all(struct call_server *s, const struct call_error *e);

/* ---- the parts (server.c, choice.c, submit.c)
 * ------------------------------------------------------------- */

void call_observe(struct call *c, enum call_measure what, double v);

void call_choice_init(struct call_choice *ch, struct call *c, int32_t index,
                      struct engine_request *r, int32_t sample);
void call_choice_deinit(struct call_choice *ch);
/* Takes new tokens; in a stream as many as it has room for, and the rest in a later call. True if
 * the choice has ended. */
bool call_choice_progress(struct call_choice *ch, int64_t now_ns);

/* Sequences that will not begin in the engine's next step, as admission counts them. The engine is
 * loaded. */
int64_t call_queue_length(const struct call_server *s, const struct engine_stats *stats);
/* Whether the call may be taken, and its requests of the engine with their memory. */
bool call_make_requests(struct call *c, struct call_error *e);
/* Hands them to the engine; what was submitted of it runs on until the call fails. ERR_BUSY: the
 * rest has to wait, or *e says that it may not; other errors are in *e. */
enum status call_submit(struct call *c, struct call_error *e);

#endif
