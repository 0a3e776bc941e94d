// SPDX-License-Identifier: Apache-2.0
/* The input of a job: lines of {"custom_id", "method", "url", "body"}, read once from end to end
 * and checked, but for what is in the bodies. What stays in memory is where each body lies. Thread:
 * any, one owner. */
#ifndef SLUICE_SERVER_JOBS_LINES_H
#define SLUICE_SERVER_JOBS_LINES_H

#include "engine/base/buf.h"
#include "engine/base/status.h"
#include "server/call/request.h"

#include <stdbool.h>
#include <stdint.h>

/* Where the bytes come from. */
struct job_input {
    /* Appends up to max_bytes from `offset` on, nothing past the end. Any thread, several at once.
     */
    enum status (*read)(void *arg, int64_t offset, size_t max_bytes, struct buf *out,
                        struct err *err);
    void *arg;
};

struct job_line {
    int64_t body_at; // offset of the body in the input
    int32_t body_bytes;
    uint32_t id_at; // of the custom_id, in job_lines.ids
    uint8_t kind;   // enum request_kind
    bool is_answered;
};

struct line_error {
    const char *code; // static text
    char message[256], param[32];
    int64_t line; // from 1; 0: of no line
};

enum { JOB_MAX_ERRORS = 100 /* that are kept; the rest is counted */ };

struct job_lines {
    struct job_line *lines;
    int32_t n, cap;
    struct buf ids;  // custom_ids, each with its NUL
    char model[256]; // that the first line names; ""
    struct line_error *errors;
    int32_t n_errors, n_more_errors;
};

struct job_lines_limits {
    const char *endpoint;  // that every line must name; NULL: any of job_endpoint_kind's
    size_t max_line_bytes; // of a longer line the message says so
    int32_t max_lines;
};

/* The kind of call behind "/v1/chat/completions" and the like; false: no job may ask for it. */
bool job_endpoint_kind(const char *url, enum request_kind *kind);

/* OK also when lines are wrong: look at n_errors. job_lines_deinit in any case. */
enum status job_lines_read(const struct job_input *in, const struct job_lines_limits *limits,
                           struct job_lines *out, struct err *err);
void job_lines_deinit(struct job_lines *l); // accepts a zeroed struct

static inline const char *job_line_id(const struct job_lines *l, int32_t line)
{
    return l->ids.data + l->lines[line].id_at;
}

/* The errors as the list of a batch: {"object":"list","data":[{"code","message","param","line"}]}.
 */
void job_lines_put_errors(const struct job_lines *l, struct buf *out);

#endif
