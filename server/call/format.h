// SPDX-License-Identifier: Apache-2.0
/* How the answers of each endpoint are written, and the pieces of JSON that they share. A format
 * only writes JSON, which it passes to the call's sink. Thread: the calls' own. */
#ifndef SLUICE_SERVER_CALL_FORMAT_H
#define SLUICE_SERVER_CALL_FORMAT_H

#include "server/call/call.h"

/* The functions of one format. Formats without streams have no `finish`. Formats that do not need
 * the engine only have `reply`, which all others lack. */
struct call_format {
    const char *id_prefix;         // prefix of the answer's id
    const char *call_prefix;       // prefix of a tool call's id; NULL: "call_"
    void (*reply)(struct call *c); // called once the prompts are prepared; ends the answer
    void (*begin)(struct call *c); // at the start of a stream: makes chunk_head; may be NULL
    /* Reports the progress of the prompt (ch->n_prefilled) if the request asks for it. Called
     * before `start`. NULL: the format has no progress reports. */
    void (*prompt)(struct call_choice *ch);
    void (*start)(struct call_choice *ch);   // before the first token; may be NULL
    void (*pending)(struct call_choice *ch); // writes pending output; called in streams, and if
                                             // `in_order`
    /* Each run of output of one kind becomes an item of the answer, whether it is streamed or not.
     * A token's log-probability is then passed together with its text, so that both are in the same
     * item. */
    bool in_order;
    void (*call)(struct call_choice *ch, const char *name, const char *id); // a tool call begins
    void (*call_end)(struct call_choice *ch); // a tool call ends; may be NULL
    void (*logprob)(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                    size_t n_chars_before); // may be NULL
    void (*finish)(struct call_choice *ch); // writes a choice's last chunk of a stream
    /* Called when all choices have ended, if the answer is to be stored (request.stores): `close`
     * builds the whole answer, and `save` stores it, on the pool, before the client learns that it
     * has ended. Both NULL: answers of this format are never stored. */
    void (*close)(struct call *c);
    void (*save)(struct call *c);
    /* Stores the beginning of an answer that continues without its client (request.detached), on
     * the pool. `close` and `save` are then also called if it fails or is cancelled
     * (call.ending). */
    enum status (*record)(struct call *c, struct err *err);
    void (*end)(struct call *c); // ends the answer
    /* Instead of `end`: writes a whole answer that may have millions of numbers, on the pool. */
    void (*write)(struct call *c, struct buf *body);
    /* Reports an error in a stream that has already begun, for APIs with their own error event; may
     * be NULL. */
    void (*error)(struct call *c, const struct call_error *e);
    void (*forget)(struct call *c); // frees the memory that `extra` owns; may be NULL
};

extern const struct call_format call_derender_chat_format, call_derender_format;
extern const struct call_format call_systemone_format, call_decisions_format;
extern const struct call_format call_cohere_chat_format, call_compact_format;
extern const struct call_format call_chat_format, call_completion_format, call_response_format,
    call_message_format, call_count_format, call_embedding_format, call_input_tokens_format,
    call_tokens_format, call_text_format, call_score_format, call_rerank_format, call_ollama_format,
    call_ollama_load_format, call_ollama_embed_format, call_ollama_old_embed_format,
    call_native_format, call_native_embed_format, call_labels_format, call_classify_format,
    call_pooling_format, call_cohere_format, call_apply_format, call_token_format,
    call_render_format, call_render_chat_format, call_render_response_format;

/* NULL only for KIND_GENERATE, whose caller has the format (request_test checks it). */
const struct call_format *call_format_of(enum request_kind kind); // call.c

/* ---- shared pieces of JSON (format.c) -----------------------------------------------------------
 */

struct call_usage {
    int64_t prompt, cached, completion, reasoning, drafts, accepted;
    int64_t recomputed; // -1 unless the model has recurrent state, or pages of windows
};
struct call_usage call_usage_of(const struct call *c);
/* ,"recomputed_tokens":N for such a model; else nothing. */
void call_put_recomputed(struct buf *b, const struct call_usage *u);
/* ,"usage":{...} */
void call_put_usage(struct buf *b, const struct call *c);
/* The number of characters that a token adds to the text that the client sees. */
size_t call_token_characters(const struct call *c, int32_t token);
/* The text of a token as completions show it. A token that is only a part of a character is written
 * as its bytes, as OpenAI does (bytes:\xe6\x97), so that different tokens have different keys in
 * top_logprobs. */
void call_put_token_text(struct buf *b, const struct call *c, int32_t token);
/* "token":..,"logprob":..,"bytes":[..] of a chat's log-probabilities. */
void call_put_token(struct buf *b, const struct call *c, int32_t token, float logprob);
void call_put_logprob(struct buf *b, float logprob); // minus infinity is written as -9999.0
void call_chat_logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                       size_t n_chars_before);
/* The same with the token's id, as llama.cpp writes it. */
void call_native_logprob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp);
/* The same for the distribution after the samplers (post_sampling.h): "prob" and "top_probs". */
void call_native_prob(struct call_choice *ch, int32_t token, const struct token_logprobs *lp);
/* llama.cpp's {"prompt_n":..,"predicted_ms":..} of a request of the engine (format_native.c). */
void call_put_timings(struct buf *b, const struct call *c, const struct engine_request *q);
void call_put_asked_timings(struct buf *b, const struct call *c); // ,"timings":{...} if asked for
/* ,"metrics":{...}: the times that vLLM reports with --enable-per-request-metrics, for an answer
 * with one choice. The token rate includes the time of the prompt. */
void call_put_metrics(struct buf *b, const struct call *c);
/* llama.cpp's ,"prompt_progress":{"total":..,"cache":..,"processed":..,"time_ms":..} */
void call_put_progress(struct buf *b, const struct call_choice *ch);
/* llama.cpp's own answer for a choice that has ended (format_native.c). With `verbose` it is a
 * member of another answer. */
void call_put_native(struct buf *b, struct call_choice *ch);
void call_put_verbose(struct buf *b, struct call *c);
/* ,"kv_transfer_params" and ,"metrics" of an answer that is derendered. */
void call_put_transfer(struct buf *b, const struct call *c);
/* "reasoning_content":..,"reasoning":.. of a chat, in both names. */
void call_put_reasoning(struct buf *b, const struct buf *text);
/* The lists of completions; null if there are none. */
void call_put_list_logprobs(struct buf *b, struct call_choice *ch);
void call_put_message(struct buf *b, struct call_choice *ch); // the message of a whole chat
void call_put_node(struct buf *b, const struct json *node);   // writes a tree as text
/* ,"stop_reason": the stop string, the id of the stop token, or null; for a choice that has
 * ended */
void call_put_stop_reason(struct buf *b, const struct call_choice *ch);
/* The beginning of objects and chunks with choices, including "choices": */
void call_put_head(struct buf *b, const struct call *c, const char *object);
/* ,"token_ids":[...] with the new tokens, and ,"prompt_token_ids":[...]. If the client did not ask
 * for them, a stream has neither and a whole answer has null, as in vLLM (which treats
 * prompt_logprobs in the same way). */
void call_put_token_ids(struct buf *b, struct call_choice *ch);
void call_put_prompt_ids(struct buf *b, const struct call *c, const struct engine_request *r);
/* Pass JSON to the sink, unless part of it was lost because memory ran out. In that case an event
 * is left out, since an error follows, and a whole answer or the end of a stream becomes an
 * error. */
void call_event(struct call *c, const char *name, const struct buf *json);
void call_whole(struct call *c, struct buf *json);
void call_end_stream(struct call *c, bool done);
/* Ends a chunk after its choices and sends it; includes usage if the client wants it in each
 * chunk. */
void call_send_chunk(struct call *c, struct buf *b);
/* Sends the chunk that has usage and no choice, if the client asked for it. `tail` closes the list
 * that chunk_head opened. */
void call_send_usage(struct call *c, const char *tail);
/* The embedding of an input, as numbers or as base64, depending on the request; with a pooling that
 * gives each token a vector, their list, or all of them in base64. Call it once per input. */
void call_put_vector(struct buf *b, struct call *c, size_t input);
size_t call_n_vectors(const struct call *c);
void call_put_ids(struct buf *b, const int32_t *ids, int32_t n); // [1,2,3]
/* ,"prompt_logprobs":[null,{"5":{"logprob":..,"rank":..,"decoded_token":".."}},...] */
void call_put_prompt_logprobs(struct buf *b, const struct call *c, const struct engine_request *r);
/* For requests that only want the probabilities of given tokens, such as yes and no
 * (format_score.c). The first function records the log probability of an answer; the second returns
 * the score of a prompt that was answered with yes or no: P(yes), or the difference of the two log
 * probabilities. */
void call_note_answer(struct call_choice *ch, int32_t token, const struct token_logprobs *lp,
                      size_t n_chars_before);
double call_judged(const struct call *c, size_t pair);
/* Of each class; called once for each prompt. */
const float *call_class_scores(struct call *c, size_t prompt);
/* {"id":..,"object":"list","created":..,"model":.. of a list */
void call_put_list_head(struct buf *b, const struct call *c);
/* The response in its present state; once it is closed, with its items (response_object.c). */
void call_put_response(struct buf *b, struct call *c);
/* The events of a background response so far, framed as in a stream. They are numbered from 0. The
 * last event is added when the response is stored. */
const char *call_response_events(struct call *c, size_t *n_bytes);
/* "call_" and 16 hexadecimal digits. */
void call_make_id(struct call *c, const char *prefix, char out[40]);

#endif
