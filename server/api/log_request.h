/* What is known about one request when it ends, and its JSON line in the log. The front end fills
 * the HTTP part, the handler what it knows of the rest.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_LOG_REQUEST_H
#define SLUICE_SERVER_API_LOG_REQUEST_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct request_log {
    /* The front end's. Borrowed text, valid during on_done. */
    const char *request_id, *peer, *method, *path;
    const char *route;      // the pattern; NULL if none matched
    const char *user_agent; // NULL if none
    char trace_id[33];      // of a traceparent header; "" if none
    int status;             // 499: the client left before the head went out
    int gone;               // enum http_gone, 0: served whole
    bool streamed;
    int64_t arrived_ns, head_ns, end_ns; // head_ns: when the reply began, 0: never
    uint64_t body_bytes, sent_bytes;     // received and sent, without heads

    /* The handler's. Static or interned text, or NULL. */
    char model[96];       // cut if longer
    char key_name[48];    // which API key; never the key
    const char *finish;   // "stop", "length", "tool_calls", "error", "cancelled"
    const char *error;    // the error's code
    int64_t n_prompt_tokens, n_cached_tokens, n_output_tokens; // -1: not known
    int64_t queued_ns, first_token_ns; // durations from arrival; -1: not known
    unsigned retry_count;              // x-stainless-retry-count
};

/* One line with its newline. Text from outside is escaped; a long path is cut. */
void log_request_format(struct buf *b, const struct request_log *log, int64_t wall_ns);

#endif
