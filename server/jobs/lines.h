// SPDX-License-Identifier: Apache-2.0
/* The input of a job: lines of {"custom_id", "method", "url", "body"}, read once from start to end
 * and checked, except for the contents of the bodies. Only the position of each body stays in
 * memory.
 * Thread: any, one owner. */
#ifndef SLUICE_SERVER_JOBS_LINES_H
#define SLUICE_SERVER_JOBS_LINES_H

#include "engine/base/buf.h"
#include "engine/base/status.h"
#include "server/call/request.h"

#include <stdbool.h>
#include <stdint.h>

/* The source of the bytes. */
struct job_input {
    /* Appends up to max_bytes bytes from `offset` on; fewer, or none, at the end of the input.
     * Called on any thread, possibly concurrently. */
    enum status (*read)(void *arg, int64_t offset, size_t max_bytes, struct buf *out,
                        struct err *err);
    void *arg;
};

struct job_line {
    int64_t body_at; // offset of the body in the input
    int32_t body_bytes;
    uint32_t id_at; // offset of the custom_id in job_lines.ids
    uint8_t kind;   // enum request_kind
    bool is_answered;
};

struct line_error {
    const char *code; // static text
    char message[256], param[32];
    int64_t line; // from 1; 0: no specific line
};

enum { JOB_MAX_ERRORS = 100 /* that are stored; more are only counted */ };

struct job_lines {
    struct job_line *lines;
    int32_t n, cap;
    struct buf ids;  // the custom_ids, each with its NUL
    char model[256]; // the model that the first line names; "": none
    struct line_error *errors;
    int32_t n_errors, n_more_errors;
};

struct job_lines_limits {
    const char *endpoint;  // the path that every line must have; NULL: any that job_endpoint_kind
                           // accepts
    size_t max_line_bytes; // longer lines are errors
    int32_t max_lines;
};

/* The paths that jobs can use, one by one; NULL past the last. */
const char *job_endpoint(size_t i);
/* The kind of call for a path such as "/v1/chat/completions". False: jobs cannot use this path. */
bool job_endpoint_kind(const char *url, enum request_kind *kind);

/* Returns OK even if lines are invalid: check n_errors. Call job_lines_deinit in any case. */
enum status job_lines_read(const struct job_input *in, const struct job_lines_limits *limits,
                           struct job_lines *out, struct err *err);
void job_lines_deinit(struct job_lines *l); // accepts a zeroed struct

static inline const char *job_line_id(const struct job_lines *l, int32_t line)
{
    return l->ids.data + l->lines[line].id_at;
}

/* The errors in the format of a batch:
 * {"object":"list","data":[{"code","message","param","line"}]}. */
void job_lines_put_errors(const struct job_lines *l, struct buf *out);

#endif
