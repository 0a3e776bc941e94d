// SPDX-License-Identifier: Apache-2.0
/* Writes the answers of `sluice generate`. */
#include "server/cli/generate_job.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "server/cli/generate_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ERROR_BYTES = 1 << 16 };

static struct generate_job *of(const struct call *c)
{
    return (struct generate_job *)c;
}

static const char *id(struct call *c, const char *asked)
{
    (void)c;
    return or_empty(asked);
}

static void keep_unknown(struct generate_job *job)
{
    const char *key = job->call.request.unknown;
    snprintf(job->unknown, sizeof job->unknown, "%s", or_empty(key));
}

static void refuse(struct generate_job *job, const char *text)
{
    job->failed = true;
    buf_init(&job->answer, MAX_ERROR_BYTES);
    generate_line_put_error(&job->answer, text);
}

/* Keeps the answer until it is printed, in the order of the lines. */
static void whole(struct call *c, struct buf *json)
{
    keep_unknown(of(c));
    if (json->failed) {
        buf_deinit(json);
        refuse(of(c), "the answer is too large");
    } else {
        of(c)->answer = *json;
    }
    *json = (struct buf){0};
}

static void error(struct call *c, const struct call_error *e)
{
    // the error line has no "param" member, so the message must name the parameter
    bool named = e->param[0] == '\0' || strstr(e->message, e->param);
    char text[sizeof e->param + sizeof e->message + 2];
    snprintf(text, sizeof text, "%s%s%s", named ? "" : e->param, named ? "" : ": ", e->message);
    keep_unknown(of(c));
    refuse(of(c), text);
}

static void drop(struct call *c)
{
    (void)c; // never called: there is no client that could leave
}

static void over(struct call *c)
{
    of(c)->over = true;
}

static const struct call_sink line_sink = {
    .id = id, .whole = whole, .error = error, .drop = drop, .over = over};

static void begin(struct call *c)
{
    (void)c; // text for a person has no header
}

static void show(struct call *c, const char *name, const char *text, size_t n_bytes)
{
    (void)name;
    of(c)->has_begun = true;
    fwrite(or_empty(text), 1, n_bytes, stdout);
    fflush(stdout);
}

static bool is_full(const struct call *c)
{
    (void)c;
    return false;
}

static bool is_begun(const struct call *c)
{
    return of(c)->has_begun;
}

static void end_text(struct call *c, bool done)
{
    (void)c;
    (void)done;
}

static void tell(struct call *c, const struct call_error *e)
{
    of(c)->failed = true;
    fprintf(stderr, "%ssluice: %s\n", text_if(of(c)->has_begun, "\n"), e->message);
}

/* For output to a person: text as it is generated, errors on standard error. */
static const struct call_sink person_sink = {
    .id = id,
    .begin = begin,
    .event = show,
    .is_full = is_full,
    .is_begun = is_begun,
    .end = end_text,
    .whole = whole,
    .error = tell,
    .drop = drop,
    .over = over,
};

/* Copies the line, since it is parsed in place. */
void generate_job_start(struct generate_job *job, struct call_server *s, const char *line,
                        size_t n_bytes, bool to_person)
{
    char *text = xstrndup(line, n_bytes); // will be modified
    job->call.sink = to_person ? &person_sink : &line_sink;
    job->call.format = &generate_line_format;
    job->call.offline = true;
    job->call.request.kind = KIND_GENERATE;
    job->call.request.text = text;
    job->call.request.n_bytes = n_bytes;
    job->call.t_arrived_ns = clock_now_ns();
    call_start(s, &job->call);
    free(text); // the request has been prepared by now, since the host has no pool
}
