// SPDX-License-Identifier: Apache-2.0
/* The JSON log line of a request: data from HTTP, and from the API. The latter is stored in the
 * request's own memory (http_room).
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_LOG_REQUEST_H
#define SLUICE_SERVER_API_LOG_REQUEST_H

#include "server/call/call.h"
#include "server/http/http.h"

struct api_log {
    bool known; // `call` is set; otherwise it is zeroed
    struct call_record call;
    char model[96];        // truncated if longer
    char key_name[48];     // the API key's name, never the key
    struct tenant *tenant; // the key's tenant, held until the request is over; or NULL
    char owner[40];        // owner id derived from the key, for files and batches; "" without keys
    const char *error;     // the code of the error reply, static text; or NULL
    unsigned retry_count;  // from the header x-stainless-retry-count
    /* Private to reply.c, not logged. */
    unsigned char form; // the format of errors, an enum reply_form
    bool told_id;
};

/* The request's log data, initially zero. */
struct api_log *api_log(struct http_request *req);

/* For http_options.on_head: data that is logged even if the request is rejected. */
void log_request_head(struct http_request *req, void *arg);

/* Writes one line with its newline, for http_options.put_line: `room` is a struct api_log. External
 * text is escaped; a long path is truncated. */
void log_request_format(struct buf *b, const struct http_record *record, const void *room,
                        int64_t wall_ns);

#endif
