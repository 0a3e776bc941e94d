// SPDX-License-Identifier: Apache-2.0
/* A call is the processing of one request, from the text of its body to its answer. It does not
 * depend on who sends the request or where the answer goes.
 *
 *     call_start -> prepare -> submit -> call_on_wake: tokens -> text -> events, or the whole
 * answer
 *
 * The code that starts calls (their owner) provides two tables of functions: a host (struct
 * call_host) with timers and threads, and for each call a sink (struct call_sink) that receives its
 * answer. A call lives from call_start until the sink has received the answer and the engine has
 * released every request; then `over` is called. Thread: one for all calls of a server, the one
 * that drains the engine. */
#ifndef SLUICE_SERVER_CALL_CALL_H
#define SLUICE_SERVER_CALL_CALL_H

#include "engine/base/buf.h"
#include "engine/schedule/request.h"
#include "server/call/error.h"
#include "server/call/model.h"
#include "server/call/prepare.h"
#include "server/call/request.h"
#include "server/chat/output.h"

#include <stdbool.h>
#include <stdint.h>

struct call;
struct engine;
struct engine_stats;
struct call_server;
struct beams;       // server/call/beams.h
struct shifts;      // server/call/shifts.h
struct call_format; // server/call/format.h
struct tenant;      // server/call/tenant.h

/* ---- measurements ---------------------------------------------------------------------------
 */

enum call_measure {
    MEASURE_TTFT, // per call; all others are per engine request
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

/* The limit that a request exceeded when the queue was full. */
enum call_overload { OVERLOAD_REQUESTS, OVERLOAD_TOKENS, N_OVERLOADS };

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
    uint64_t overloaded[N_OVERLOADS];
    uint64_t n_unknown_keys;
    int32_t longest_context; // the largest number of tokens of a prompt and its answer
};

/* ---- the owner of calls ----------------------------------------------------------------------
 */

/* What the owner supplies for all calls. Each function may be NULL. */
struct call_host {
    /* Runs work(arg) on a thread of a pool, then done(arg) on the thread of the calls. NULL: both
     * run immediately on the thread of the calls. */
    void (*run)(struct call_server *s, void (*work)(void *arg), void (*done)(void *arg), void *arg);
    /* Calls call_on_deadline once, after this delay. Replaces an earlier deadline; -1 cancels it.
     * NULL: calls have no deadlines. */
    void (*set_deadline)(struct call *c, int64_t delay_ms);
    void (*observe)(struct call_server *s, enum call_measure what, double v);
};

struct call_server {
    const struct call_host *host;
    const struct config *config;
    struct engine *engine; // NULL until loaded
    struct store *store;   // where responses are stored, or NULL; not owned
    struct call_model model;
    /* Offline calls that are waiting because the engine's queue is full. While this is not NULL, no
     * more offline calls should be started. */
    struct call *queue, **queue_tail;
    /* Prepared calls whose chat template was sent by the client: they render it one after the
     * other, and so hold one thread of the pool at most. */
    struct call *template_queue, **template_tail;
    bool template_is_taken;
    struct call *calls;            // list of all calls in progress
    int64_t n_calls, n_beam_calls; // n_beam_calls: calls with beam search
    int64_t n_shift_calls;         // those whose contexts may shift
    struct call_counts counts;
    uint64_t next_seed;
    bool told_stripped; // the log already says that lines are removed from prompts
    bool in_drain; // the engine or one call is being drained: calls that end are freed afterwards
    struct call *dead;     // calls that ended during the drain, by next_dead
    struct buf scratch;    // used by one callback at a time
    size_t max_part_bytes; // of a part of a choice (its text, its logprobs, ...) that is collected
    uint64_t n_lost; // buf_n_lost when the callback began; if it grew, an answer is incomplete
};

/* Receives a call's answer. Exactly one of the four functions that end an answer (end, whole,
 * error, drop) is called, and after it only `over`. A function may be NULL where its comment says
 * so. */
struct call_sink {
    /* Returns the id from which the answer's id is derived. `asked` is the id that the body asks
     * for, or NULL. The result is copied. */
    const char *(*id)(struct call *c, const char *asked);
    void (*prepared)(struct call *c); // the body's text is no longer needed; may be NULL
    /* May be NULL. Called when the engine reports on the call for the first time; no part of the
     * answer has been written yet. */
    void (*first_news)(struct call *c, int64_t now_ns);

    /* Called when the beginning of a background response is stored: it will be completed even if
     * its client leaves, so the client may now get its id. A stream of events may follow, or have
     * begun already. NULL: the sink gets no such requests. */
    void (*kept)(struct call *c);

    /* A stream: events until `end`. If `begin` is NULL, every answer is sent as a whole, even if
     * the request asked for a stream. */
    void (*begin)(struct call *c);
    void (*event)(struct call *c, const char *name, const char *json,
                  size_t n_bytes);          // name may be NULL
    bool (*is_full)(const struct call *c);  // true: the sink takes no more until call_on_room
    bool (*is_begun)(const struct call *c); // true: part of the answer has been sent
    void (*end)(struct call *c, bool done); // ends the stream; done: with "[DONE]"

    void (*whole)(struct call *c, struct buf *json); // the complete answer; takes the buffer's
                                                     // memory
    void (*error)(struct call *c, const struct call_error *error); // ends the answer or the stream
                                                                   // with an error
    void (*drop)(struct call *c); // ends the answer after call_gone
    void (*over)(struct call *c); // the call has ended: its owner may free it
};

/* What a log line may contain about a call. */
struct call_record {
    const char
        *finish;       // static text: "stop", "length", "tool_calls", "error", "cancelled"; or NULL
    const char *error; // the error's code, static text; or NULL
    int64_t n_prompt_tokens, n_cached_tokens, n_output_tokens; // -1: not known
    int64_t queued_ns, first_token_ns; // durations from arrival; -1: not known
};
#define CALL_RECORD_NONE ((struct call_record){NULL, NULL, -1, -1, -1, -1, -1})

/* ---- a call ---------------------------------------------------------------------------------- */

/* How a background response (call.kept) ended. */
enum call_ending { CALL_ANSWERED, CALL_FAILED, CALL_CANCELLED };

/* The kind of a sample's output that has not been passed to the format yet. It is passed on before
 * output of another kind begins, so that the order is kept. */
enum call_pending { PENDING_NONE, PENDING_TEXT, PENDING_REASONING, PENDING_ARGUMENTS };

struct call_choice {
    struct call *call;
    int32_t index;
    struct engine_request *request;
    int32_t sample;
    struct output output;
    int32_t n_taken;               // tokens that the output has processed
    size_t n_chars;                // characters of text before the next token (text_offset)
    const char *finish;            // the finish reason, set when the sample has ended
    const struct json *stop_given; // derender: the stop_reason that the ids came with; NULL: none
    int32_t stop_id; // the stop token that ended the sample, unless it is one of the model's own;
                     // -1: none
    /* The whole output so far, or in a stream the part that was not sent yet. */
    struct buf content, reasoning, arguments, logprobs, ids;
    struct buf custom;   // the arguments of a custom tool's call, until it ends
    struct buf calls;    // non-stream chat: the finished tool calls
    struct buf lists[3]; // completions: lists of logprobs other than the tokens, with an entry per
                         // token
    enum call_pending pending;
    bool started, has_content, has_reasoning, has_call, skip_call;
    bool is_custom; // the current tool call is one of a custom tool: its `arguments` are a text
    bool shifted;   // the context was full, so tokens were dropped
    bool sent_prompt_text, sent_prompt_ids; // completions send these once
    bool told_prompt;                       // return_progress: progress was reported at least once
    int32_t n_prefilled;                    // return_progress: the last value reported
    int32_t n_calls, n_lines; // calls begun; for llama.cpp: pieces of text with a line end
    int64_t t_last_ns;
};

/* The first member of the struct that the owner allocates for a call. */
struct call {
    /* Set by the owner before call_start, with request.kind, .text and .n_bytes; the rest is
     * zero. */
    struct call_server *server;
    const struct call_sink *sink;
    struct request request;
    int64_t t_arrived_ns; // clock_now_ns when the request arrived
    char owner[40];       // owner of the responses that it may read; "": no key
    double patience_s;    // how long its client waits for a first token; 0: not known
    /* No client waits for the answer: if the engine's queue is full the call waits instead of being
     * refused, it has no deadlines, and the latencies in the metrics do not include it. */
    bool offline;
    const struct call_format *format; // NULL: the kind's own
    struct tenant *tenant;            // the client's tenant, already entered; NULL: no limits

    struct call_record record;
    enum request_kind kind;          // as given to call_start; request.kind may change
    struct engine_request *requests; // one per prompt
    void *memory;                    // one block for the outputs of all requests
    struct shifts *shifts;           // pieces of the answers; NULL: answers are not divided
    struct beams *beams;             // searches that produce the answers; NULL: no beam search
    char *salt;                      // the requests' cache_salt, if it is not the one in the body
    size_t n_requests, n_submitted, n_done; // with beams, the last two count one step's requests
    struct call_choice *choices;
    size_t n_choices, n_finished;
    int64_t n_waiting;        // the call's part of tenant.n_waiting
    bool answered;            // one of the sink's four functions that end an answer was called
    bool saving;              // the answer is being stored or written, on the pool
    bool closed;              // the answer is complete
    bool cut;                 // an event was too large, and was not sent
    bool kept;                // request.detached: its beginning is stored, and its end will be
    enum call_ending ending;  // if not CALL_ANSWERED: how the call must end, as soon as it can
    char *not_kept, *why;     // error messages of the store and of a failed call; NULL: none
    enum prepare_stage stage; // while `preparing`
    bool renders;             // it occupies the thread that renders clients' templates
    bool preparing, queued, streaming, untimed, gone, dead, first_token, deadline_is_queue,
        has_news;
    struct call *next, **link, *next_queued, *next_dead;
    char id[144]; // id of the answer: "chatcmpl-..."
    int64_t created;
    struct buf chunk_head; // the beginning of every chunk of a stream
    struct buf written;    // a whole answer, if the format has `write`
    void *extra;           // state of the format
    int64_t t_start_ns;
    uint64_t next_id; // counter for the ids of tool calls
};

void call_server_init(struct call_server *s, const struct config *config,
                      const struct call_host *host);
void call_server_deinit(struct call_server *s); // no calls may be left; does not close the model

void call_start(struct call_server *s, struct call *c);

/* Called after the engine's wake: takes new output, and submits calls that had to wait. True: more
 * output is there, so it must be called again soon; meanwhile its thread may do other things. */
bool call_on_wake(struct call_server *s);
void call_on_deadline(struct call *c);
void call_on_room(struct call *c); // a sink that was full has room again
/* The client has left. The sink's `drop` is called, now or when the pool no longer uses the
 * call. */
void call_gone(struct call *c, enum call_abort why);
/* Cancels a background response (call.kept). Its sink gets the end of the stream once the response
 * is stored. */
void call_cancel(struct call *c);
/* Ends all calls, except those that are being prepared. */
void call_abort_all(struct call_server *s, const struct call_error *e);

/* ---- used between files (server.c, choice.c, submit.c) --------------------------------------- */

void call_observe(struct call *c, enum call_measure what, double v);

void call_choice_init(struct call_choice *ch, struct call *c, int32_t index,
                      struct engine_request *r, int32_t sample);
void call_choice_deinit(struct call_choice *ch);
bool call_choice_is_cut(struct call_choice *ch); // a part has reached its limit
/* Takes new tokens; in a stream as many as the sink has room for, and the rest in a later call of
 * this function. True if the choice has ended. */
bool call_choice_progress(struct call_choice *ch, int64_t now_ns);

/* Sequences that will not begin in the engine's next step, as admission counts them. The engine is
 * loaded. */
int64_t call_queue_length(const struct call_server *s, const struct engine_stats *stats);
/* Checks whether the call is admitted, and allocates its requests of the engine with their outputs.
 * False: *e is set. */
bool call_make_requests(struct call *c, struct call_error *e);
/* Submits the call's requests to the engine. ERR_BUSY: the engine is full; the call is refused if
 * *e is set, otherwise the rest must wait. After other errors *e is set too. Requests already
 * submitted continue unless the call fails. */
enum status call_submit(struct call *c, struct call_error *e);

#endif
