// SPDX-License-Identifier: Apache-2.0
/* `sluice render`: renders chat templates on the command line, to compare them with Jinja2. */
#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "server/chat/template.h"
#include "server/cli/commands.h"
#include "server/cli/json_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: sluice render DIR [--template FILE] [--raw] [--spans] [--trust-assistant]\n"
    "\n"
    "Renders chat requests with a model folder's chat template. Reads JSON lines\n"
    "{\"messages\":..., \"tools\":..., \"add_generation_prompt\":..., more template variables}\n"
    "and writes {\"text\":...} or {\"error\":...} for each.\n"
    "\n"
    "  --template FILE    use this template in place of the folder's\n"
    "  --raw              pass all keys unchanged: messages are not converted, the folder's "
    "special\n"
    "                     tokens are not set, and absent keys are undefined\n"
    "  --spans            add \"spans\": [[text, whether it is user input], ...]\n"
    "  --trust-assistant  content of the assistant's messages is not treated as user input\n"
    "\n"
    "The key strftime_now fixes the clock: \"2025-06-15 12:34:56\", or seconds since 1970.\n"
    "The key continue_final_message cuts the text after the last message (not with --raw).\n";

/* The template, or if there is none, the error with which each line is answered. */
struct render {
    struct chat_template *t;
    struct err err; // set if there is no template
    bool raw, spans, trust_assistant;
};

enum { MAX_LINE_DEPTH = 400 };

/* The raw text of one member of a line. */
struct slice {
    const char *s;
    size_t n_bytes;
};

/* The members of a line, as slices of its text; the template's input refers to them. */
struct rendered {
    struct slice messages, tools, clock;
    struct buf kwargs;
    bool add_generation_prompt, continue_final;
};

static bool slice_is(struct slice s, const char *word)
{
    return s.n_bytes == strlen(word) && memcmp(s.s, word, s.n_bytes) == 0;
}

/* Adds a keyword argument of the template. */
static void keep(struct rendered *rq, const char *key, size_t n_key, struct slice value)
{
    if (rq->kwargs.n_bytes > 1) {
        buf_puts(&rq->kwargs, ",\"");
    } else {
        buf_puts(&rq->kwargs, "\"");
    }
    buf_put(&rq->kwargs, key, n_key);
    buf_puts(&rq->kwargs, "\":");
    buf_put(&rq->kwargs, value.s, value.n_bytes);
}

/* Takes a member as part of the conversation or as a keyword argument. --raw leaves the settings of
 * the conversation to the template. */
static void take_member(const struct render *r, struct rendered *rq, const struct json_scan *key,
                        struct slice value)
{
    bool null = slice_is(value, "null");
    if (json_scan_is(key, "messages")) {
        rq->messages = value;
    } else if (json_scan_is(key, "tools")) {
        rq->tools = null ? (struct slice){0} : value;
    } else if (json_scan_is(key, "strftime_now")) {
        rq->clock = value;
    } else if (!r->raw && json_scan_is(key, "add_generation_prompt")) {
        rq->add_generation_prompt = slice_is(value, "true");
    } else if (!r->raw && json_scan_is(key, "continue_final_message")) {
        rq->continue_final = slice_is(value, "true");
    } else {
        keep(rq, key->text, key->text_bytes, value);
    }
}

/* Where a line's members go. */
struct reading {
    const struct render *r;
    struct rendered *rq;
};

/* Takes a member as text. */
static enum status read_member(struct json_scan *sc, void *arg, struct err *err)
{
    const struct reading *to = arg;
    const struct json_scan key = *sc;
    (void)err; // an error is found at the next token
    if (json_scan_skip(sc)) {
        struct slice value = {sc->s + key.at, sc->at - key.at};
        while (value.n_bytes > 0 && strchr(" \t\r\n:", value.s[0])) {
            value.s++;
            value.n_bytes--;
        }
        take_member(to->r, to->rq, &key, value);
    }
    return OK;
}

static enum status read_request(const struct render *r, const char *line, size_t n_bytes,
                                struct rendered *rq, struct err *err)
{
    struct reading to = {r, rq};
    TRY(json_line_read(line, n_bytes, MAX_LINE_DEPTH, read_member, &to, err));
    buf_puts(&rq->kwargs, "}");
    return OK;
}

/* Parses "2025-06-15 12:34:56", where T may replace the space and a fraction may follow, or seconds
 * since 1970. */
static bool parse_clock(struct slice s, int64_t *us)
{
    char text[64];
    struct tm tm = {0};
    double seconds = 0;
    if (s.n_bytes >= sizeof text) {
        return false;
    }
    memcpy(text, s.s, s.n_bytes);
    text[s.n_bytes] = '\0';
    if (text[0] != '"') {
        *us = (int64_t)(strtod(text, NULL) * 1e6);
        return true;
    }
    int n = sscanf(text + 1, "%d-%d-%d%*[T ]%d:%d:%lf", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
                   &tm.tm_hour, &tm.tm_min, &seconds);
    if (n < 3 || seconds < 0 || seconds > 61) {
        return false;
    }
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    *us = (int64_t)timegm(&tm) * 1000000 + (int64_t)(seconds * 1e6 + 0.5);
    return true;
}

/* Writes the result; with --spans also which parts of the text come from the user. */
static void put_result(const struct render *r, const struct chat_output *o, struct buf *out)
{
    buf_puts(out, "{\"text\":");
    buf_put_json(out, o->text, o->n_bytes);
    for (size_t i = 0; r->spans && i < o->n_spans; i++) {
        if (i == 0) {
            buf_puts(out, ",\"spans\":[[");
        } else {
            buf_puts(out, ",[");
        }
        buf_put_json(out, o->spans[i].text, o->spans[i].n_bytes);
        if (o->spans[i].is_input) {
            buf_puts(out, ",true]");
        } else {
            buf_puts(out, ",false]");
        }
    }
    if (r->spans && o->n_spans > 0) {
        buf_puts(out, "]}\n");
    } else {
        buf_puts(out, "}\n");
    }
}

/* Renders a line's request, and adds a line with the result or the error to out. */
static void render_line(const struct render *r, const char *line, size_t n_bytes, struct buf *out)
{
    struct rendered rq = {0};
    struct chat_output o = {0};
    struct err err = r->err;
    buf_init(&rq.kwargs, n_bytes * 2 + 64);
    buf_puts(&rq.kwargs, "{");
    struct chat_input in = {
        .raw = r->raw, .trust_assistant = r->trust_assistant, .local_us = chat_clock_us()};
    enum status st = read_request(r, line, n_bytes, &rq, &err);
    if (st == OK && rq.clock.s && !parse_clock(rq.clock, &in.local_us)) {
        st = err_set(&err, ERR_INVALID, "strftime_now is not a valid time");
    }
    if (st == OK && !r->t) {
        err = r->err;
        st = ERR_FORMAT;
    }
    if (st == OK) {
        in.messages_json = rq.messages.s;
        in.messages_bytes = rq.messages.n_bytes;
        in.tools_json = rq.tools.s;
        in.tools_bytes = rq.tools.n_bytes;
        in.kwargs_json = rq.kwargs.data;
        in.kwargs_bytes = rq.kwargs.n_bytes;
        in.add_generation_prompt = rq.add_generation_prompt;
        in.continue_final_message = rq.continue_final;
        st = chat_template_render(r->t, &in, &o, &err);
    }
    if (st == OK) {
        put_result(r, &o, out);
    } else {
        json_line_put_error(out, err.text);
    }
    chat_output_deinit(&o);
    buf_deinit(&rq.kwargs);
}

/* Renders lines until the end of input. An error is reported as the answer to its line; the exit
 * status only depends on reading and writing. */
static int render_lines(const struct render *r)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    struct buf out;
    buf_init(&out, (size_t)1 << 30);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) {
            n--;
        }
        if (n == 0) {
            continue;
        }
        buf_clear(&out);
        render_line(r, line, (size_t)n, &out);
        if (out.failed) {
            buf_clear(&out);
            json_line_put_error(&out, "the text is too long to print");
        }
        if (fwrite(out.data, 1, out.n_bytes, stdout) != out.n_bytes || fflush(stdout) != 0) {
            break;
        }
    }
    free(line);
    buf_deinit(&out);
    return ferror(stdin) || ferror(stdout);
}

static int usage_error(const char *what)
{
    fprintf(stderr, "sluice render: %s\n\n%s", what, help);
    return 2;
}

/* Loads a template from a file or a model's folder. */
static int load(const char *dir, const char *file, struct render *r)
{
    enum status st;
    if (file) {
        char *text;
        size_t n;
        if (file_read(file, (size_t)4 << 20, &text, &n, &r->err) != OK) {
            fprintf(stderr, "sluice render: %s\n", r->err.text);
            return 1;
        }
        st = chat_template_compile(text, n, r->raw ? NULL : dir, &r->t, &r->err);
        free(text);
        // errors are reported in the output lines
        if (st == OK || st == ERR_FORMAT || st == ERR_LIMIT) {
            return 0;
        }
        return 1;
    }
    st = chat_template_load(dir, &r->t, &r->err);
    if (st == OK && !r->t) {
        st = err_set(&r->err, ERR_FORMAT, "%s has no chat template", dir);
    }
    if (st != OK) {
        fprintf(stderr, "sluice render: %s\n", r->err.text);
    }
    return st != OK;
}

int cmd_render(int argc, char **argv)
{
    struct render r = {0};
    const char *dir = NULL, *file = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--template") == 0 && i + 1 < argc) {
            file = argv[++i];
        } else if (strcmp(argv[i], "--raw") == 0) {
            r.raw = true;
        } else if (strcmp(argv[i], "--spans") == 0) {
            r.spans = true;
        } else if (strcmp(argv[i], "--trust-assistant") == 0) {
            r.trust_assistant = true;
        } else if (argv[i][0] != '-' && !dir) {
            dir = argv[i];
        } else {
            return usage_error("unknown or incomplete option");
        }
    }
    if (!dir) {
        return usage_error("a model folder is required");
    }
    int rc = load(dir, file, &r);
    if (!rc) {
        rc = render_lines(&r);
    }
    chat_template_free(r.t);
    return rc;
}
