// SPDX-License-Identifier: Apache-2.0
/* vLLM's /derender: token ids that another server generated become an answer of chat or
 * completions, or a chunk of its stream. Thread: the request's owner. */
#ifndef SLUICE_SERVER_CALL_DERENDER_H
#define SLUICE_SERVER_CALL_DERENDER_H

#include "server/call/call.h"

struct derendered_choice {
    int32_t *ids; // all ids of the answer so far
    int32_t n;
    int32_t n_before; // of these, those of earlier chunks
    int32_t index;
    const char *finish;          // "stop", "length", ...; NULL: not given, or not finished
    const struct json *stop;     // the stop_reason; NULL: none
    const struct json *logprobs; // its "content"; NULL: none
};

/* One answer of /inference/v1/generate: all choices of a prompt. */
struct derendered {
    struct derendered_choice *choices;
    size_t n_choices;
    int64_t n_prompt;              // tokens of its prompt, according to the client
    const struct json *prompt_ids; // those given with the answer; NULL: none
};

struct derender {
    struct body outer; // the nodes belong to it
    struct derendered *answers;
    size_t n_answers;
    const char *id;
    /* Passed on unchanged; NULL: none. */
    const struct json *prompt_logprobs, *transfer, *metrics;
    const char *of; // the request that the ids answer, as JSON text; NULL: not given
    size_t of_bytes;
    bool has_logprobs, returns_ids; // returns_ids: the request asks for the ids
    int64_t n_top; // number of alternatives that the request asks for; -1: all that are given
    /* A chunk: */
    bool streams, role_sent, has_usage, has_n_prompt;
    int64_t n_usage_prompt, n_usage_answer;
};

/* Allocates outputs as the engine would have filled them; at first they contain no token. False: no
 * memory. */
bool derender_open(struct call *c);
/* Processes the first n ids of a choice, which ends there if `ends`. */
void derender_take(struct call_choice *ch, int32_t n, bool ends);
const struct derendered_choice *derender_source(const struct call_choice *ch);
/* Log-probabilities in the form of chats, and of completions, whose first token begins after
 * `offset` characters. */
void derender_chat_logprobs(struct call_choice *ch);
void derender_list_logprobs(struct call_choice *ch, size_t offset);
/* Answer with all outputs at once. */
void derender_chat_whole(struct call *c);
void derender_text_whole(struct call *c);

#endif
