// SPDX-License-Identifier: Apache-2.0
/* One response in the API's words: errors, JSON bodies, and the framing of server-sent events.
 * Formats bytes and hands them to http.h. Thread: the loop. */
#ifndef SLUICE_SERVER_API_REPLY_H
#define SLUICE_SERVER_API_REPLY_H

#include "engine/base/buf.h"
#include "server/call/error.h"
#include "server/http/http.h"

/* What is here needs room in each request, for what the log says of it. Errors that the front end
 * tells by itself, and the log's lines, then have the API's form too. */
void reply_set_options(struct http_options *o);

/* Whose errors a route has. Anthropic's clients also look for their request's id under another
 * name: reply_note_route, before the first reply, and reply_tell_id do what they expect. */
enum reply_form { REPLY_OPENAI, REPLY_ANTHROPIC, REPLY_OLLAMA };
enum reply_form reply_form_of(const struct http_route *route);
void reply_note_route(struct http_request *req, const struct http_route *route);
void reply_tell_id(struct http_request *req); // nothing on other routes

/* Terminal. */
void reply_error(struct http_request *req, const struct call_error *e);
void reply_errorf(struct http_request *req, int status, const char *code, const char *param,
                  const char *fmt, ...) PRINTF_LIKE(5, 6);
/* Terminal. application/json; takes the buffer's memory. */
void reply_json(struct http_request *req, int status, struct buf *body);
void reply_text(struct http_request *req, int status, const char *json_text);

/* "data: " + json + "\n\n". The text must be one line. */
void reply_event(struct http_request *req, const char *json, size_t n_bytes);
/* json + "\n" */
void reply_line(struct http_request *req, const char *json, size_t n_bytes);
/* "event: name\ndata: " + json + "\n\n". */
void reply_named_event(struct http_request *req, const char *name, const char *json,
                       size_t n_bytes);
/* Terminal. The stream's end: with `e` an error event first (or, if the head has not gone out
 * yet, the error as the whole reply); with `done` "data: [DONE]". */
void reply_stream_end(struct http_request *req, const struct call_error *e, bool done);

#endif
