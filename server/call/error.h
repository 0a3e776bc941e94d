// SPDX-License-Identifier: Apache-2.0
/* An error as the API reports it: plain data that can be set on any thread. The first error is
 * kept, because later ones are its consequences.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_CALL_ERROR_H
#define SLUICE_SERVER_CALL_ERROR_H

#include "engine/base/buf.h"
#include "engine/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct call_error {
    int status;       // HTTP status; 0: no error
    const char *type; // NULL: by status ("invalid_request_error" below 500, else "server_error")
    const char *code; // static text
    char param[96];   // the invalid member; "" is written as null
    char message[640];
    int retry_after_s;
    int64_t n_prompt, n_context; // for context_length_exceeded, as members of the error; 0: not
                                 // known
    int64_t n_prompt_least;      // if n_prompt is not known: a lower bound for it
};

/* All return false, so that `return call_error_set(...)` reads well. */
bool call_error_set(struct call_error *e, int status, const char *code, const char *param,
                    const char *fmt, ...) PRINTF_LIKE(5, 6);
bool call_error_no_memory(struct call_error *e);        // 503 out_of_memory
bool call_error_answer_too_large(struct call_error *e); // 400, found before or while it is made
bool call_error_missing(struct call_error *e, const char *param);
bool call_error_empty(struct call_error *e, const char *param); // 400 empty_array
/* 400 unsupported_value: `what`, such as "content parts", has another type than text, such as an
 * image, audio or a file. Multimodal checkpoints are served, but without their encoders. */
bool call_error_text_only(struct call_error *e, const char *param, const char *what,
                          const char *type);
bool call_error_unsupported(struct call_error *e, const char *param); // 400 unsupported_parameter
bool call_error_context_exceeded(struct call_error *e, const char *param, int64_t context,
                                 int64_t n_prompt, int64_t n_completion);
/* The same for a prompt that was not counted, but is known to have at least n_prompt tokens. */
bool call_error_context_hopeless(struct call_error *e, const char *param, int64_t context,
                                 int64_t n_prompt, int64_t n_completion);

/* The API whose words are written as "type". Codes are the same for all. */
enum call_error_names {
    CALL_ERROR_OPENAI,
    CALL_ERROR_ANTHROPIC,
    CALL_ERROR_VLLM,
    CALL_ERROR_LLAMA,
    CALL_ERROR_N_NAMES
};

/* The object that OpenAI's clients read, {"error":{"message","type","param","code"}}, all four
 * keys. */
void call_error_put(struct buf *b, const struct call_error *e, enum call_error_names names);
/* The object that Anthropic's clients read, {"type":"error","error":{"type","message","details"},
 * "request_id"}: `type` depends on the status, and `details` has the code. */
void call_error_put_typed(struct buf *b, const struct call_error *e, const char *request_id);

/* The object that Cohere's clients read, {"message": .., "id": ..}; `id` of the request. */
void call_error_put_message(struct buf *b, const struct call_error *e, const char *id);
/* The object that Ollama's clients read, {"error": "message"}. */
void call_error_put_plain(struct buf *b, const struct call_error *e);

#endif
