/* The OpenAI API on http.h and engine.h: the server's state, the routes, and the life of a request
 *
 *     handler -> prepare (pool) -> engine_submit -> drain: tokens -> text -> chunks -> end
 *
 * A call (struct api_call) lives from its handler until both sides have let go: the HTTP request
 * has had its terminal call, and every engine request of it is done.
 * Thread: the loop, unless said otherwise. */
#ifndef SLUICE_SERVER_API_API_H
#define SLUICE_SERVER_API_API_H

#include "server/call/model.h"
#include "server/call/request.h"
#include "server/http/http.h"
#include "server/api/metrics.h"
#include "server/api/reply.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct keys;

enum { SCOPE_INFERENCE = 1, SCOPE_ADMIN = 2, SCOPE_METRICS = 4 };

enum api_health { HEALTH_OK, HEALTH_LOADING, HEALTH_DRAINING, HEALTH_STALLED, HEALTH_DEAD };
extern const char *const api_health_names[]; // "ok", "loading", ...

struct api {
    const struct config *config;
    const char *config_text; // all of it as --print-config has it, without secrets; borrowed
    struct http_server *http;
    struct engine *engine; // NULL until loaded
    struct api_model model;
    struct keys *keys;
    struct metrics metrics;
    struct api_call *calls; // all that live
    int64_t n_calls;
    bool ready, load_failed, draining;
    atomic_int load_permille; // written by the loading thread
    int64_t started_ns, ready_ns;
    /* The watchdog's view of the engine: the step it saw last, and when that changed. */
    int64_t seen_steps, seen_step_ns, longest_step_ns, dead_ms;
    bool was_idle;
    enum api_health health;
    struct http_timer tick;
    uint64_t next_seed;
    bool in_drain;      // of the engine: calls that end wait for its end
    int64_t n_dead;     // of those
    struct buf scratch; // for one callback at a time
};

/* What a sample has produced, in the order of the sink; one kind at a time. */
enum api_pending { PENDING_NONE, PENDING_TEXT, PENDING_REASONING, PENDING_ARGUMENTS };

struct api_choice {
    struct api_call *call;
    int32_t index;
    struct engine_request *request;
    int32_t sample;
    struct output output;
    int32_t n_taken; // tokens that went through the output
    size_t n_chars;  // characters of text before the next token (text_offset)
    const char *finish; // set at the end
    int32_t stop_id;    // that ended it, if not the model's own; -1
    /* Non-stream: the whole; stream: not yet sent. */
    struct buf content, reasoning, arguments, logprobs, ids;
    struct buf calls;    // non-stream chat: the finished tool calls
    struct buf lists[3]; // completions: what goes with each token of logprobs
    enum api_pending pending;
    bool started, has_content, has_reasoning, has_call, skip_call;
    bool sent_prompt_text, sent_prompt_ids; // completions, once
    int32_t n_calls;
    int64_t t_last_ns;
};

/* How an endpoint writes. Only chat, completions and responses stream. One that needs no engine has
 * `reply` alone; the others do not have it. */
struct api_format {
    void (*reply)(struct api_call *c);          // prompts are prepared: the terminal call
    void (*begin)(struct api_call *c);          // a stream: makes chunk_head; may be NULL
    void (*start)(struct api_choice *ch);       // before the first token; may be NULL
    void (*pending)(struct api_choice *ch);     // takes what is pending: in a stream, or `in_order`
    /* It has an item for each run of one kind, also without a stream. Log probabilities then come
     * with the text of their token, so that they go to its item. */
    bool in_order;
    void (*call)(struct api_choice *ch, const char *name, const char *id); // a tool call begins
    void (*call_end)(struct api_choice *ch);    // may be NULL
    void (*logprob)(struct api_choice *ch, int32_t token, const struct token_logprobs *lp,
                    size_t n_chars_before);
    void (*finish)(struct api_choice *ch);      // the last chunk of a choice in a stream
    void (*end)(struct api_call *c);            // all choices ended: the terminal call
    /* An error in a stream whose head is out, where the API has an event of its own for it; may be
     * NULL. */
    void (*error)(struct http_request *req, const struct reply_error *e);
    void (*forget)(struct api_call *c);         // frees what `extra` owns; may be NULL
};

struct api_call {
    struct api *api;
    struct http_request *req; // NULL after the terminal call
    const struct api_format *format;
    struct api_request request;
    struct engine_request *requests; // one per prompt
    void *memory;                    // of their outputs
    size_t n_requests, n_submitted, n_done;
    struct api_choice *choices;
    size_t n_choices, n_finished;
    bool preparing, streaming, gone, dead, first_token, deadline_is_queue;
    bool has_head_lines;
    struct http_timer deadline;
    struct api_call *next, **link;
    const char *id_prefix;
    char id[144]; // "chatcmpl-..."
    int64_t created;
    struct buf chunk_head; // what every chunk of a stream begins with
    void *extra;           // the format's own
    int64_t t_start_ns;
    uint64_t next_id; // of tool calls
};

/* ---- the server (api.c) ----------------------------------------------------------------------- */

extern const struct http_route api_routes[];

void api_init(struct api *a, const struct config *config, const char *config_text);
/* The model is loaded: a->engine and a->model are set. */
void api_set_ready(struct api *a);
void api_deinit(struct api *a); // after the loop

bool api_authorize(struct http_request *req, const struct http_route *route, void *arg);
void api_on_wake(void *arg);
void api_on_drain(void *arg);
void api_on_drain_deadline(void *arg);
void api_on_reload(void *arg);
void api_on_report(void *arg); // the scheduler's state and the table of requests, to the log
void api_on_done(const struct request_log *log, void *arg);

/* Starts the watchdog's timer. */
void api_watch(struct api *a);
enum api_health api_check_health(struct api *a, int64_t now_ns);

/* ---- calls (api_call.c) ----------------------------------------------------------------------- */

/* From a handler: takes the request. */
void api_start(struct api *a, struct http_request *req, enum api_kind kind,
               const struct api_format *format, const char *id_prefix);

void api_abort_all(struct api *a, const struct api_error *e);

void reply_api_error(struct http_request *req, const struct api_error *e);

/* Hands the prepared call to the engine. False: *e says why; what was submitted of it runs on until
 * the call fails (api_submit.c). */
bool api_submit(struct api_call *c, struct api_error *e);

/* ---- choices (api_choice.c) ------------------------------------------------------------------- */

void api_choice_init(struct api_choice *ch, struct api_call *c, int32_t index,
                     struct engine_request *r, int32_t sample);
void api_choice_deinit(struct api_choice *ch);
/* Takes new tokens; in a stream as many as it has room for, and the rest in a later call. True if the
 * choice has ended. */
bool api_choice_progress(struct api_choice *ch, int64_t now_ns);

/* ---- shared pieces of JSON (api_json.c) ------------------------------------------------------- */

struct api_usage {
    int64_t prompt, cached, completion, reasoning, drafts, accepted;
};
struct api_usage api_usage_of(const struct api_call *c);
/* ,"usage":{...} */
void api_put_usage(struct buf *b, const struct api_call *c);
/* How many characters a token adds to the text that the client sees. */
size_t api_token_characters(const struct api_call *c, int32_t token);
/* The text of a token as completions show it; one that is a part of a character, as OpenAI does, by
 * its bytes: bytes:\xe6\x97. Two tokens are then two keys of top_logprobs. */
void api_put_token_text(struct buf *b, const struct api_call *c, int32_t token);
void api_put_logprob(struct buf *b, float logprob); // -9999.0 for minus infinity
void api_chat_logprob(struct api_choice *ch, int32_t token, const struct token_logprobs *lp,
                      size_t n_chars_before);
/* ,"stop_reason":"..." or the id or null, of a choice that has ended */
void api_put_stop_reason(struct buf *b, const struct api_choice *ch);
/* What objects and chunks with choices begin with, up to and with "choices": */
void api_put_head(struct buf *b, const struct api_call *c, const char *object);
/* ,"token_ids":[...] of what is new and ,"prompt_token_ids":[...], where they were asked for. */
void api_put_token_ids(struct buf *b, struct api_choice *ch);
void api_put_prompt_ids(struct buf *b, const struct api_call *c, const struct engine_request *r);
/* Ends a chunk behind its choices, with the usage that the client wants in each, and sends it. */
void api_send_chunk(struct api_call *c, struct buf *b);
/* If it was asked for: the chunk that has usage and no choice. `tail` ends chunk_head's list. */
void api_send_usage(struct api_call *c, const char *tail);
void api_put_ids(struct buf *b, const int32_t *ids, int32_t n); // [1,2,3]
/* ,"prompt_logprobs":[null,{"5":{"logprob":..,"rank":..,"decoded_token":".."}},...] */
void api_put_prompt_logprobs(struct buf *b, const struct api_call *c,
                             const struct engine_request *r);
/* "call_" and 24 letters. */
void api_make_id(struct api_call *c, const char *prefix, char out[40]);

/* ---- endpoints -------------------------------------------------------------------------------- */

void api_chat(struct http_request *req, void *arg);
void api_completions(struct http_request *req, void *arg);
void api_responses(struct http_request *req, void *arg);
void api_responses_input_tokens(struct http_request *req, void *arg);
void api_responses_get(struct http_request *req, void *arg);
void api_embeddings(struct http_request *req, void *arg);
void api_tokenize(struct http_request *req, void *arg);
void api_detokenize(struct http_request *req, void *arg);
void api_tokenizer_info(struct http_request *req, void *arg);
void api_models(struct http_request *req, void *arg);
void api_model_one(struct http_request *req, void *arg);
void api_get_health(struct http_request *req, void *arg);
void api_get_live(struct http_request *req, void *arg);
void api_get_ready(struct http_request *req, void *arg);
void api_get_load(struct http_request *req, void *arg);
void api_get_version(struct http_request *req, void *arg);
void api_get_metrics(struct http_request *req, void *arg);
void api_get_server_info(struct http_request *req, void *arg);
void api_get_requests(struct http_request *req, void *arg);
void api_reset_prefix_cache(struct http_request *req, void *arg);
void api_drain(struct http_request *req, void *arg);
void api_status_page(struct http_request *req, void *arg);
void api_status_data(struct http_request *req, void *arg);

#endif
