// SPDX-License-Identifier: Apache-2.0
/* A request's JSON line in the log: what HTTP knows of it, and what the API adds. The latter lies
 * in the request's room. Thread: the loop. */
#ifndef SLUICE_SERVER_API_LOG_REQUEST_H
#define SLUICE_SERVER_API_LOG_REQUEST_H

#include "server/call/call.h"
#include "server/http/http.h"

struct api_log {
    bool known; // `call` is set; else all of it is 0
    struct call_record call;
    char model[96];        // cut if longer
    char key_name[48];     // which API key; never the key
    struct tenant *tenant; // whose it is, held until the request is over; or NULL
    char owner[40];        // of files and batches: made of the key; "" without keys
    const char *error;     // the code of an error that was replied, static text; or NULL
    unsigned retry_count;  // x-stainless-retry-count
    unsigned char
        form;     // of errors, an enum reply_form; this and told_id are reply.c's, and no part
    bool told_id; // of the line
};

/* The request's own, with nothing known at first. */
struct api_log *api_log(struct http_request *req);

/* For http_options.on_head: what the line says also of a request that is refused. */
void log_request_head(struct http_request *req, void *arg);

/* One line with its newline, for http_options.put_line: `room` is a struct api_log. Text from
 * outside is escaped; a long path is cut. */
void log_request_format(struct buf *b, const struct http_record *record, const void *room,
                        int64_t wall_ns);

#endif
