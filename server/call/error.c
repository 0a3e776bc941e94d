// SPDX-License-Identifier: Apache-2.0
/* Errors of the API: set once, then written in the words of OpenAI, vLLM, Anthropic or
 * Ollama. */
#include "server/call/error.h"
#include "engine/base/optional.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Sets the error, unless there is one: later errors follow from the first. */
bool call_error_set(struct call_error *e, int status, const char *code, const char *param,
                    const char *fmt, ...)
{
    if (e->status != 0) {
        return false;
    }
    e->status = status;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", or_empty(param));
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    return false;
}

/* The client may retry, since other requests will free memory. */
bool call_error_no_memory(struct call_error *e)
{
    e->type = "server_error";
    e->retry_after_s = 5;
    return call_error_set(
        e, 503, "out_of_memory", NULL,
        "The server does not have enough memory for the answers of this request at the moment.");
}

bool call_error_answer_too_large(struct call_error *e)
{
    return call_error_set(e, 400, "invalid_value", "max_tokens",
                          "The answers that this request asks for would not fit in memory; ask for "
                          "fewer or shorter ones, or for fewer logprobs.");
}

bool call_error_missing(struct call_error *e, const char *param)
{
    return call_error_set(e, 400, "missing_required_parameter", param,
                          "Missing required parameter: '%s'.", param);
}

bool call_error_text_only(struct call_error *e, const char *param, const char *what,
                          const char *type)
{
    return call_error_set(e, 400, "unsupported_value", param,
                          "Unsupported value: %s of type '%.40s' are not supported: the server "
                          "accepts only text for this model.",
                          what, type);
}

bool call_error_empty(struct call_error *e, const char *param)
{
    return call_error_set(e, 400, "empty_array", param,
                          "Invalid '%s': empty array. Expected an array with minimum length 1.",
                          param);
}

bool call_error_unsupported(struct call_error *e, const char *param)
{
    return call_error_set(e, 400, "unsupported_parameter", param,
                          "Unsupported parameter: '%s' is not supported by this server.", param);
}

/* Clients recognise this error by its wording; OpenAI's and vLLM's by its beginning. */
static bool context_exceeded(struct call_error *e, const char *param, int64_t context,
                             const char *bound, int64_t n_prompt, int64_t n_completion)
{
    char advice[64];
    if (n_completion > 0) {
        snprintf(advice, sizeof advice, "the %s or completion", param);
    } else if (strcmp(param, "messages") == 0) {
        snprintf(advice, sizeof advice, "the input messages");
    } else if (strcmp(param, "input") == 0) { // clients of llama.cpp's embeddings match the end
        snprintf(advice, sizeof advice, "the input prompt: it is too large");
    } else {
        snprintf(advice, sizeof advice, "the input prompt");
    }
    return call_error_set(e, 400, "context_length_exceeded", param,
                          "This model's maximum context length is %" PRId64
                          " tokens. However, you requested %s%" PRId64 " tokens (%s%" PRId64
                          " in the %s, %" PRId64 " in the completion). Please reduce the length of "
                          "%s.",
                          context, bound, n_prompt + n_completion, bound, n_prompt, param,
                          n_completion, advice);
}

bool call_error_context_exceeded(struct call_error *e, const char *param, int64_t context,
                                 int64_t n_prompt, int64_t n_completion)
{
    if (e->status == 0) {
        e->n_prompt = n_prompt;
        e->n_context = context;
    }
    return context_exceeded(e, param, context, "", n_prompt, n_completion);
}

bool call_error_context_hopeless(struct call_error *e, const char *param, int64_t context,
                                 int64_t n_prompt, int64_t n_completion)
{
    if (e->status == 0) {
        e->n_prompt_least = n_prompt;
        e->n_context = context;
    }
    return context_exceeded(e, param, context, "at least ", n_prompt, n_completion);
}

static void put_string_or_null(struct buf *b, const char *s)
{
    if (s) {
        buf_put_json(b, s, strlen(s));
    } else {
        buf_puts(b, "null");
    }
}

/* The "type" that clients of an API expect for a status; NULL: OpenAI's. */
static const char *name_of(int status, enum call_error_names names)
{
    static const struct {
        int status;
        const char *names[CALL_ERROR_N_NAMES];
    } rows[] = {
        {400, {[CALL_ERROR_VLLM] = "BadRequestError"}},
        {401,
         {[CALL_ERROR_ANTHROPIC] = "authentication_error",
          [CALL_ERROR_VLLM] = "AuthenticationError",
          [CALL_ERROR_LLAMA] = "authentication_error"}},
        {403,
         {[CALL_ERROR_ANTHROPIC] = "permission_error",
          [CALL_ERROR_VLLM] = "PermissionDeniedError",
          [CALL_ERROR_LLAMA] = "permission_error"}},
        {404,
         {[CALL_ERROR_ANTHROPIC] = "not_found_error",
          [CALL_ERROR_VLLM] = "NotFoundError",
          [CALL_ERROR_LLAMA] = "not_found_error"}},
        {413, {[CALL_ERROR_ANTHROPIC] = "request_too_large"}},
        {422, {[CALL_ERROR_VLLM] = "UnprocessableEntityError"}},
        {429, {[CALL_ERROR_ANTHROPIC] = "rate_limit_error", [CALL_ERROR_VLLM] = "RateLimitError"}},
        {503,
         {[CALL_ERROR_ANTHROPIC] = "overloaded_error", [CALL_ERROR_LLAMA] = "unavailable_error"}},
        {504, {[CALL_ERROR_ANTHROPIC] = "timeout_error"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].status == status) {
            return rows[i].names[names];
        }
    }
    return NULL;
}

/* Each API has its own names for errors of the client and of the server. */
static const char *type_of(const struct call_error *e, enum call_error_names names)
{
    static const char *const below_500[CALL_ERROR_N_NAMES] = {
        "invalid_request_error", "invalid_request_error", "BadRequestError",
        "invalid_request_error"};
    static const char *const others[CALL_ERROR_N_NAMES] = {"server_error", "api_error",
                                                           "InternalServerError", "server_error"};
    const char *name = name_of(e->status, names);
    if (names == CALL_ERROR_OPENAI && e->type) {
        return e->type;
    }
    if (names == CALL_ERROR_LLAMA && e->n_context > 0) {
        return "exceed_context_size_error";
    }
    if (name) {
        return name;
    }
    return e->status < 500 ? below_500[names] : others[names];
}

/* Writes OpenAI's object. For a prompt that is too long it has the prompt's length and the
 * context's. */
void call_error_put(struct buf *b, const struct call_error *e, enum call_error_names names)
{
    buf_puts(b, "{\"error\":{\"message\":");
    buf_put_json(b, e->message, strlen(e->message));
    buf_printf(b, ",\"type\":\"%s\",\"param\":", type_of(e, names));
    put_string_or_null(b, e->param[0] ? e->param : NULL);
    buf_puts(b, ",\"code\":");
    put_string_or_null(b, e->code);
    int64_t n_prompt = e->n_prompt;
    if (n_prompt == 0 && names == CALL_ERROR_LLAMA) {
        n_prompt = e->n_prompt_least; // llama.cpp's clients expect a number
    }
    if (n_prompt > 0) {
        buf_printf(b, ",\"n_prompt_tokens\":%" PRId64, n_prompt);
    }
    if (e->n_context > 0) {
        buf_printf(b, ",\"n_ctx\":%" PRId64, e->n_context);
    }
    buf_puts(b, "}}");
}

/* Coding agents recognise the beginning of this message, and shorten the conversation. */
static void put_too_long(struct buf *b, const struct call_error *e)
{
    char text[160];
    int64_t most = e->n_context - 1; // at least one token is left for the answer
    if (e->n_prompt > 0) {
        snprintf(text, sizeof text, "prompt is too long: %" PRId64 " tokens > %" PRId64 " maximum",
                 e->n_prompt, most);
    } else {
        snprintf(text, sizeof text,
                 "prompt is too long: more than the maximum of %" PRId64 " tokens", most);
    }
    buf_put_json(b, text, strlen(text));
}

/* Anthropic's object. */
void call_error_put_typed(struct buf *b, const struct call_error *e, const char *request_id)
{
    buf_printf(b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
               type_of(e, CALL_ERROR_ANTHROPIC));
    if (e->n_context > 0) {
        put_too_long(b, e);
    } else {
        buf_put_json(b, e->message, strlen(e->message));
    }
    if (e->code) {
        buf_printf(b, ",\"details\":{\"error_code\":\"%s\"}", e->code);
    }
    buf_puts(b, "},\"request_id\":");
    put_string_or_null(b, request_id);
    buf_putc(b, '}');
}

void call_error_put_message(struct buf *b, const struct call_error *e, const char *id)
{
    buf_puts(b, "{\"message\":");
    buf_put_json(b, e->message, strlen(e->message));
    buf_puts(b, ",\"id\":");
    buf_put_json(b, id, strlen(id));
    buf_putc(b, '}');
}

void call_error_put_plain(struct buf *b, const struct call_error *e)
{
    buf_puts(b, "{\"error\":");
    buf_put_json(b, e->message, strlen(e->message));
    buf_putc(b, '}');
}
