// SPDX-License-Identifier: Apache-2.0
/* vLLM's /derender: token ids that another server generated become an answer of chat or
 * completions. Thread: the request's owner. */
#ifndef SLUICE_SERVER_CALL_DERENDER_H
#define SLUICE_SERVER_CALL_DERENDER_H

#include "server/call/body.h"

struct derendered_choice {
    const int32_t *ids;
    int32_t n;
    const char *finish;          // "stop", "length", ...
    const struct json *logprobs; // its "content"; NULL: none
};

/* One answer of /inference/v1/generate: all choices of a prompt. */
struct derendered {
    struct derendered_choice *choices;
    size_t n_choices;
    int64_t n_prompt; // number of tokens of its prompt, as stated by the client
};

struct derender {
    struct body outer; // the nodes below belong to it
    struct derendered *answers;
    size_t n_answers;
    const char *id;
    const struct json *prompt_logprobs, *transfer; // passed on as they are; NULL: none
    const char *chat; // the chat that the ids answer, as JSON text; NULL: not given
    size_t chat_bytes;
    bool has_logprobs;
};

#endif
