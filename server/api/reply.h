// SPDX-License-Identifier: Apache-2.0
/* Responses in the API's format: errors, JSON bodies, and the framing of server-sent events.
 * Formats bytes and passes them to http.h.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_REPLY_H
#define SLUICE_SERVER_API_REPLY_H

#include "engine/base/buf.h"
#include "server/call/error.h"
#include "server/http/http.h"

/* Reserves memory in each request for its log data, and sets the functions that write log lines and
 * the errors that the front end generates. */
void reply_set_options(struct http_options *o);

/* The error format of a route. Anthropic's clients also expect the request id under another name:
 * call reply_note_route before the first reply; reply_tell_id adds the header. */
enum reply_form {
    REPLY_OPENAI,
    REPLY_ANTHROPIC,
    REPLY_OLLAMA,
    REPLY_VLLM,
    REPLY_LLAMA,
    REPLY_COHERE
};
enum reply_form reply_form_of(const struct http_route *route);
void reply_note_route(struct http_request *req, const struct http_route *route);
void reply_tell_id(struct http_request *req); // no effect on other routes

/* Terminal. */
void reply_error(struct http_request *req, const struct call_error *e);
void reply_errorf(struct http_request *req, int status, const char *code, const char *param,
                  const char *fmt, ...) PRINTF_LIKE(5, 6);
/* Terminal. application/json; takes ownership of the buffer. */
void reply_json(struct http_request *req, int status, struct buf *body);
void reply_text(struct http_request *req, int status, const char *json_text);

/* A time as a JSON string, in RFC 3339's form. */
void put_rfc3339(struct buf *b, int64_t seconds);

/* "data: " + json + "\n\n". The text must be a single line. */
void reply_event(struct http_request *req, const char *json, size_t n_bytes);
/* json + "\n" */
void reply_line(struct http_request *req, const char *json, size_t n_bytes);
/* "event: name\ndata: " + json + "\n\n". */
void reply_named_event(struct http_request *req, const char *name, const char *json,
                       size_t n_bytes);
/* Terminal. Ends the stream: with `e` after an error event (or, if the head has not been sent yet,
 * with the error as the whole reply); with `done` after "data: [DONE]". */
void reply_stream_end(struct http_request *req, const struct call_error *e, bool done);

#endif
