// SPDX-License-Identifier: Apache-2.0
#include "server/jobs/lines.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    READ_BYTES = 1 << 20,
    MAX_IDS_BYTES = 1 << 30,
    MAX_ID_BYTES = 512,
    LINE_ARENA_BYTES = 1 << 26,
};

/* The endpoints that a batch may use. */
static const struct {
    const char *url;
    enum request_kind kind;
} endpoints[] = {
    {"/v1/chat/completions", KIND_CHAT},
    {"/v1/completions", KIND_COMPLETIONS},
    {"/v1/embeddings", KIND_EMBEDDINGS},
    {"/v1/responses", KIND_RESPONSES},
};

const char *job_endpoint(size_t i)
{
    return i < sizeof endpoints / sizeof endpoints[0] ? endpoints[i].url : NULL;
}

bool job_endpoint_kind(const char *url, enum request_kind *kind)
{
    for (size_t i = 0; i < sizeof endpoints / sizeof endpoints[0]; i++) {
        if (strcmp(endpoints[i].url, url) == 0) {
            *kind = endpoints[i].kind;
            return true;
        }
    }
    return false;
}

/* ---- unique custom_ids ----------------------------------------------------------------------- */

/* A hash table of the custom_ids, with open addressing. A slot holds a line's index plus 1; 0:
 * empty. */
struct id_table {
    uint32_t *slots;
    size_t n_slots; // a power of two
};

/* The slot of this id, or the empty slot where it belongs. */
static uint32_t *find_slot(const struct id_table *t, const struct job_lines *l, const char *id)
{
    size_t at = hash_bytes(id, strlen(id), hash_process_key()) & (t->n_slots - 1);
    while (t->slots[at] && strcmp(job_line_id(l, (int32_t)t->slots[at] - 1), id) != 0) {
        at = (at + 1) & (t->n_slots - 1);
    }
    return &t->slots[at];
}

/* Doubles the table when it is half full. Slots are computed again from the lines. */
static void grow_table(struct id_table *t, const struct job_lines *l)
{
    if ((size_t)l->n * 2 < t->n_slots) {
        return;
    }
    t->n_slots = t->n_slots ? t->n_slots * 2 : 1024;
    free(t->slots);
    t->slots = xcalloc(t->n_slots, sizeof *t->slots);
    for (int32_t i = 0; i < l->n; i++) {
        *find_slot(t, l, job_line_id(l, i)) = (uint32_t)i + 1;
    }
}

/* ---- a line ---------------------------------------------------------------------------------- */

/* The state of one pass over the file. */
struct reader {
    const struct job_lines_limits *limits;
    struct job_lines *out;
    struct id_table table;
    int64_t number; // number of the current line, from 1; blank lines count
};

/* Records an error. Only the first JOB_MAX_ERRORS are stored, so that a file full of errors does
 * not fill memory; later ones are counted. */
static void PRINTF_LIKE(4, 5)
    refuse(struct reader *r, const char *code, const char *param, const char *fmt, ...)
{
    struct job_lines *l = r->out;
    if (l->n_errors == JOB_MAX_ERRORS) {
        l->n_more_errors++;
        return;
    }
    l->errors = xrealloc(l->errors, (size_t)(l->n_errors + 1) * sizeof *l->errors);
    struct line_error *e = &l->errors[l->n_errors++];
    *e = (struct line_error){.code = code, .line = r->number};
    snprintf(e->param, sizeof e->param, "%s", or_empty(param));
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
}

/* The value of a required string member. NULL: it is missing, and the error has been recorded. */
static const char *string_of(struct reader *r, const struct body *b, const char *key)
{
    const struct body_member *m = body_get(b, key);
    const char *v = m ? json_string(m->node) : NULL;
    if (!m) {
        refuse(r, "missing_required_parameter", key, "Missing required parameter: '%s'.", key);
    } else if (!v) {
        refuse(r, "invalid_type", key, "Invalid type for '%s': expected a string.", key);
    }
    return v;
}

/* All lines of a batch must use the batch's endpoint. */
static bool check_url(struct reader *r, const char *url, enum request_kind *kind)
{
    const char *endpoint = r->limits->endpoint;
    if (endpoint && strcmp(url, endpoint) != 0) {
        refuse(r, "invalid_url", "url", "The url '%.100s' is not the endpoint of the batch, '%s'.",
               url, endpoint);
        return false;
    }
    if (!job_endpoint_kind(url, kind)) {
        refuse(r, "invalid_url", "url", "The url '%.100s' is not available to batches.", url);
        return false;
    }
    return true;
}

static const struct body_member *check_body(struct reader *r, const struct body *b)
{
    const struct body_member *m = body_get(b, "body");
    if (!m) {
        refuse(r, "missing_required_parameter", "body", "Missing required parameter: 'body'.");
        return NULL;
    }
    if (!json_is(m->node, JSON_OBJECT)) {
        refuse(r, "invalid_type", "body", "Invalid type for 'body': expected an object.");
        return NULL;
    }
    if (json_get_bool(m->node, "stream", false)) {
        refuse(r, "unsupported_parameter", "body.stream",
               "Answers of a batch cannot be streamed; leave 'stream' out.");
        return NULL;
    }
    return m;
}

/* Ids tell which line an answer belongs to, so they must be unique. */
static bool check_id(struct reader *r, const struct body *b, const char *id)
{
    size_t n = strlen(id);
    if (body_get(b, "custom_id")->has_nul) {
        refuse(r, "invalid_value", "custom_id", "The custom_id contains the character U+0000.");
        return false;
    }
    if (n == 0 || n > MAX_ID_BYTES) {
        refuse(r, "invalid_value", "custom_id", "The custom_id must have 1 to %d bytes.",
               MAX_ID_BYTES);
        return false;
    }
    grow_table(&r->table, r->out);
    if (*find_slot(&r->table, r->out, id)) {
        refuse(r, "duplicate_custom_id", "custom_id",
               "The custom_id '%.100s' was used by an earlier line; each must be unique.", id);
        return false;
    }
    return true;
}

/* Adds a line. Only the position of its body is kept; the body is read again when its turn comes.
 */
static void add(struct reader *r, const char *id, int64_t body_at, int32_t body_bytes,
                enum request_kind kind)
{
    struct job_lines *l = r->out;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 256;
        l->lines = xrealloc(l->lines, (size_t)l->cap * sizeof *l->lines);
    }
    uint32_t id_at = (uint32_t)l->ids.n_bytes;
    buf_put(&l->ids, id, strlen(id) + 1);
    l->lines[l->n] = (struct job_line){body_at, body_bytes, id_at, (uint8_t)kind, false};
    *find_slot(&r->table, l, id) = (uint32_t)l->n + 1;
    l->n++;
}

/* Stops at a line's first error. */
static void check_line(struct reader *r, const struct body *b, const char *text, int64_t at)
{
    enum request_kind kind = KIND_CHAT;
    const char *id = string_of(r, b, "custom_id");
    const char *method = id ? string_of(r, b, "method") : NULL;
    const char *url = method ? string_of(r, b, "url") : NULL;
    if (!url) {
        return;
    }
    if (strcmp(method, "POST") != 0) {
        refuse(r, "invalid_method", "method", "The method '%.20s' is not POST.", method);
        return;
    }
    const struct body_member *body = NULL;
    if (check_url(r, url, &kind)) {
        body = check_body(r, b);
    }
    if (!body || !check_id(r, b, id)) {
        return;
    }
    const char *model = json_get_string(body->node, "model");
    if (model && !r->out->model[0]) {
        snprintf(r->out->model, sizeof r->out->model, "%s", model);
    }
    add(r, id, at + (body->start - text), (int32_t)body->n_bytes, kind);
}

static void refuse_length(struct reader *r, const char *more)
{
    refuse(r, "request_too_large", NULL, "The line is longer than %zu bytes%s.",
           r->limits->max_line_bytes, more);
}

/* Modifies `text`. */
static void take_line(struct reader *r, char *text, size_t n_bytes, int64_t at)
{
    struct call_error why = {0};
    struct body b = {0};
    struct arena arena;
    if (n_bytes > r->limits->max_line_bytes) {
        refuse_length(r, "");
        return;
    }
    if (strspn(text, " \t\r") >= n_bytes) {
        return; // blank
    }
    if (r->out->n == r->limits->max_lines) {
        r->out->n_more_errors++; // a single message about the limit is added at the end
        return;
    }
    arena_init(&arena, LINE_ARENA_BYTES);
    if (body_open(&b, text, n_bytes, &arena, &why)) {
        check_line(r, &b, text, at);
    } else {
        refuse(r, "invalid_json_line", NULL, "The line is not a JSON object: %.180s", why.message);
    }
    body_close(&b);
    arena_deinit(&arena);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Processes the complete lines of `text`, which is at offset `at` of the input; returns their
 * number of bytes. */
static size_t take_lines(struct reader *r, struct buf *text, int64_t at, bool ended)
{
    size_t from = 0;
    while (from < text->n_bytes) {
        char *line = text->data + from;
        char *end = memchr(line, '\n', text->n_bytes - from);
        if (!end && !ended) {
            break;
        }
        size_t n = end ? (size_t)(end - line) : text->n_bytes - from;
        line[n] = '\0'; // overwrites the newline, or the NUL after the content
        r->number++;
        take_line(r, line, n, at + (int64_t)from);
        from += n + (end != NULL);
    }
    return from;
}

/* Reads the input in large pieces; an incomplete line stays in the buffer for the next one. */
static enum status read_all(struct reader *r, const struct job_input *in, struct err *err)
{
    struct buf text;
    int64_t at = 0; // offset of the text's first byte in the input
    enum status st = OK;
    buf_init(&text, r->limits->max_line_bytes + READ_BYTES + 1);
    for (bool ended = false; st == OK && !ended;) {
        size_t n_old = text.n_bytes;
        st = in->read(in->arg, at + (int64_t)n_old, READ_BYTES, &text, err);
        ended = text.n_bytes == n_old;
        size_t n = st == OK ? take_lines(r, &text, at, ended) : 0;
        at += (int64_t)n;
        if (n > 0) {
            buf_consume(&text, n);
        }
        if (text.n_bytes > r->limits->max_line_bytes) { // a line that is too long and has not ended
                                                        // yet
            r->number++;
            refuse_length(r, "; what follows was not read");
            break;
        }
    }
    buf_deinit(&text);
    return st;
}

enum status job_lines_read(const struct job_input *in, const struct job_lines_limits *limits,
                           struct job_lines *out, struct err *err)
{
    struct reader r = {.limits = limits, .out = out};
    *out = (struct job_lines){0};
    buf_init(&out->ids, MAX_IDS_BYTES);
    grow_table(&r.table, out);
    enum status st = read_all(&r, in, err);
    free(r.table.slots);
    if (st == OK && out->ids.failed) {
        st = err_set(err, ERR_LIMIT, "the custom_ids take more than %d bytes", MAX_IDS_BYTES);
    }
    r.number = 0;
    if (out->n == limits->max_lines && out->n_more_errors > 0 && out->n_errors < JOB_MAX_ERRORS) {
        refuse(&r, "too_many_requests", NULL, "The file has more than %d requests.",
               limits->max_lines);
    } else if (out->n == 0 && out->n_errors == 0) {
        refuse(&r, "empty_file", NULL, "The file has no requests.");
    }
    return st;
}

void job_lines_deinit(struct job_lines *l)
{
    free(l->lines);
    free(l->errors);
    buf_deinit(&l->ids);
    *l = (struct job_lines){0};
}

/* In the format of "errors" in OpenAI's batches. */
void job_lines_put_errors(const struct job_lines *l, struct buf *out)
{
    buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (int32_t i = 0; i < l->n_errors; i++) {
        const struct line_error *e = &l->errors[i];
        buf_printf(out, "%s{\"code\":\"%s\",\"message\":", text_if(i, ","), e->code);
        buf_put_json(out, e->message, strlen(e->message));
        buf_puts(out, ",\"param\":");
        if (e->param[0]) {
            buf_put_json(out, e->param, strlen(e->param));
        } else {
            buf_puts(out, "null");
        }
        if (e->line > 0) {
            buf_printf(out, ",\"line\":%lld}", (long long)e->line);
        } else {
            buf_puts(out, ",\"line\":null}");
        }
    }
    buf_puts(out, "]}");
}
