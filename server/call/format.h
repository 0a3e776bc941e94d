// SPDX-License-Identifier: Apache-2.0
/* How the answers of each endpoint are written, and the pieces of JSON that they share. A format
 * writes JSON alone and hands it to the call's sink. Thread: the calls' own. */
#ifndef SLUICE_SERVER_CALL_FORMAT_H
#define SLUICE_SERVER_CALL_FORMAT_H

#include "server/call/call.h"

/* Only chat, completions and responses stream: the others have no `finish`. One that needs no
 * engine has `reply` alone; the others do not have it. */
struct call_format {
    const char *id_prefix;         // of the answer's id
    const char *call_prefix;       // of a tool call's id; NULL: "call_"
    void (*reply)(struct call *c); // prompts are prepared: ends the answer
    void (*begin)(struct call *c); // a stream: makes chunk_head; may be NULL
    /* News of the prompt, where the request wants them: ch->n_prefilled. Before `start`; NULL:
     * there are none. */
    void (*prompt)(struct call_choice *ch);
    void (*start)(struct call_choice *ch);   // before the first token; may be NULL
    void (*pending)(struct call_choice *ch); // takes what is pending: in a stream, or `in_order`
    /* It has an item for each run of one kind, also without a stream. Log probabilities then come
     * with the text of their token, so that they go to its item. */
    bool in_order;
    void (*call)(struct call_choice *ch, const char *name, const char *id); // a tool call begins
    void (*call_end)(struct call_choice *ch);                               // may be NULL
    void (*logprob)(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                    size_t n_chars_before); // may be NULL
    void (*finish)(struct call_choice *ch); // the last chunk of a choice in a stream
    /* All choices ended. Of an answer that may be kept `close` makes the whole, and `save` keeps
     * it, on the pool, before the client is told of its end (request.stores). Both NULL: it never
     * is. */
    void (*close)(struct call *c);
    void (*save)(struct call *c);
    /* Keeps the beginning of one that runs on without its client, on the pool; `close` and `save`
     * then come also for one that failed or was cancelled (call.ending). */
    enum status (*record)(struct call *c, struct err *err);
    void (*end)(struct call *c); // ends the answer
    /* An error in a stream of which something has gone out, where the API has an event of its own
     * for it; may be NULL. */
    void (*error)(struct call *c, const struct call_error *e);
    void (*forget)(struct call *c); // frees what `extra` owns; may be NULL
};

extern const struct call_format call_chat_format, call_completion_format, call_response_format,
    call_message_format, call_count_format, call_embedding_format, call_input_tokens_format,
    call_tokens_format, call_text_format, call_score_format, call_rerank_format, call_ollama_format,
    call_ollama_load_format, call_ollama_embed_format, call_ollama_old_embed_format,
    call_native_format, call_native_embed_format, call_labels_format, call_classify_format,
    call_pooling_format, call_cohere_format, call_apply_format, call_token_format,
    call_render_format, call_render_chat_format;

/* ---- shared pieces of JSON (format.c) -----------------------------------------------------------
 */

struct call_usage {
    int64_t prompt, cached, completion, reasoning, drafts, accepted;
    int64_t recomputed; // of models with recurrent state; else -1
};
struct call_usage call_usage_of(const struct call *c);
/* ,"recomputed_tokens":N of a model with recurrent state; else nothing. */
void call_put_recomputed(struct buf *b, const struct call_usage *u);
/* ,"usage":{...} */
void call_put_usage(struct buf *b, const struct call *c);
/* How many characters a token adds to the text that the client sees. */
size_t call_token_characters(const struct call *c, int32_t token);
/* The text of a token as completions show it; one that is a part of a character, as OpenAI does, by
 * its bytes: bytes:\xe6\x97. Two tokens are then two keys of top_logprobs. */
void call_put_token_text(struct buf *b, const struct call *c, int32_t token);
void call_put_logprob(struct buf *b, float logprob); // -9999.0 for minus infinity
void call_chat_logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                       size_t n_chars_before);
/* The same with the token's id, as llama.cpp has it. */
void call_native_logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp);
/* The same of the distribution after the samplers (post_sampling.h): "prob" and "top_probs". */
void call_native_prob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp);
/* llama.cpp's {"prompt_n":..,"predicted_ms":..} of a request of the engine (format_native.c). */
void call_put_timings(struct buf *b, const struct call *c, const struct engine_request *q);
void call_put_asked_timings(struct buf *b, const struct call *c); // ,"timings":{...} if asked for
/* ,"metrics":{...} of an answer with one choice, with --enable-per-request-metrics: vLLM's times.
 * The rate counts the prompt's time, too. */
void call_put_metrics(struct buf *b, const struct call *c);
/* llama.cpp's ,"prompt_progress":{"total":..,"cache":..,"processed":..,"time_ms":..} */
void call_put_progress(struct buf *b, const struct call_choice *ch);
/* llama.cpp's own answer, of a choice that has ended (format_native.c); with `verbose`, as a member
 * of another answer. */
void call_put_native(struct buf *b, struct call_choice *ch);
void call_put_verbose(struct buf *b, struct call *c);
void call_put_node(struct buf *b, const struct json *node); // a tree as text
/* ,"stop_reason":"..." or the id or null, of a choice that has ended */
void call_put_stop_reason(struct buf *b, const struct call_choice *ch);
/* What objects and chunks with choices begin with, up to and with "choices": */
void call_put_head(struct buf *b, const struct call *c, const char *object);
/* ,"token_ids":[...] of what is new and ,"prompt_token_ids":[...]; where they were not asked for,
 * nothing in a stream and null in a whole, as vLLM has them and prompt_logprobs. */
void call_put_token_ids(struct buf *b, struct call_choice *ch);
void call_put_prompt_ids(struct buf *b, const struct call *c, const struct engine_request *r);
/* To the sink, where nothing of it was lost for want of memory: an event is then left out, since an
 * error follows, and the whole or the end is an error. */
void call_event(struct call *c, const char *name, const struct buf *json);
void call_whole(struct call *c, struct buf *json);
void call_end_stream(struct call *c, bool done);
/* Ends a chunk after its choices, with the usage that the client wants in each, and sends it. */
void call_send_chunk(struct call *c, struct buf *b);
/* If it was asked for: the chunk that has usage and no choice. `tail` ends chunk_head's list. */
void call_send_usage(struct call *c, const char *tail);
/* The embedding of a prompt, as numbers or as base64, as the request wants it. Once for each. */
void call_put_vector(struct buf *b, struct call *c, size_t prompt);
void call_put_ids(struct buf *b, const int32_t *ids, int32_t n); // [1,2,3]
/* ,"prompt_logprobs":[null,{"5":{"logprob":..,"rank":..,"decoded_token":".."}},...] */
void call_put_prompt_logprobs(struct buf *b, const struct call *c, const struct engine_request *r);
/* Of answers that a judge gave (format_score.c): keeps their log probabilities; P(yes) of a prompt,
 * or how much more likely yes is. */
void call_note_answer(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                      size_t n_chars_before);
double call_judged(const struct call *c, size_t pair);
/* {"id":..,"object":"list","created":..,"model":.. of such lists */
void call_put_list_head(struct buf *b, const struct call *c);
/* A response as it is now: with its items when it is closed (response_object.c). */
void call_put_response(struct buf *b, struct call *c);
/* Of one that runs in the background: what it has told so far, framed as a stream has it. They are
 * numbered from 0 on, and the last is there when the response is stored. */
const char *call_response_events(struct call *c, size_t *n_bytes);
/* "call_" and 24 letters. */
void call_make_id(struct call *c, const char *prefix, char out[40]);

#endif
