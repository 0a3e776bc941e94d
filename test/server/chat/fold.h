// SPDX-License-Identifier: Apache-2.0
/* Shared by the tests of the output parsers: a sample folded into strings, text fed with all
 * possible cuts, and macros for long markers. */
#ifndef SLUICE_TEST_SERVER_CHAT_FOLD_H
#define SLUICE_TEST_SERVER_CHAT_FOLD_H

#include "server/chat/output.h"

#include "engine/base/minmax.h"
#include "test/check.h"

struct fold {
    struct buf content, reasoning, calls, arguments;
    int n_calls;
    bool in_call; // nothing but arguments has followed the last call
};

static inline void on_text(void *arg, const char *s, size_t n)
{
    struct fold *f = arg;
    f->in_call = false;
    buf_put(&f->content, s, n);
}

static inline void on_reasoning(void *arg, const char *s, size_t n)
{
    struct fold *f = arg;
    f->in_call = false;
    buf_put(&f->reasoning, s, n);
}

static inline void on_call(void *arg, const char *name, const char *id)
{
    struct fold *f = arg;
    f->n_calls++;
    f->in_call = true;
    buf_printf(&f->calls, "|%s#%s:", name, id);
}

static inline void on_arguments(void *arg, const char *s, size_t n)
{
    struct fold *f = arg;
    CHECK(f->in_call); // text after a call has ended it
    buf_put(&f->calls, s, n);
}

/* Everything a parser reports goes into strings: calls as "|name#id:arguments". */
static const struct tool_sink SINK = {on_text, on_reasoning, on_call, on_arguments, NULL};

static inline void fold_init(struct fold *f)
{
    *f = (struct fold){.n_calls = 0};
    buf_init(&f->content, 4 << 20);
    buf_init(&f->reasoning, 4 << 20);
    buf_init(&f->calls, 4 << 20);
    buf_puts(&f->content, "");
    buf_puts(&f->reasoning, "");
    buf_puts(&f->calls, "");
}

static inline void fold_deinit(struct fold *f)
{
    buf_deinit(&f->content);
    buf_deinit(&f->reasoning);
    buf_deinit(&f->calls);
}

/* xorshift64 with a fixed seed, so failures repeat. */
static uint64_t rng = 88172645463325252ULL;
static inline size_t below(size_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return n ? (size_t)(rng % n) : 0;
}

/* Text for an exact parser: each of its markers becomes one byte. */
static inline char *with_marks(const struct tool_parser *parser, const char *text)
{
    char *out = malloc(strlen(text) + 1), *to = out;
    while (*text) {
        int found = -1;
        for (int i = 0; parser->exact && parser->markers[i]; i++) {
            if (strncmp(text, parser->markers[i], strlen(parser->markers[i])) == 0) {
                found = i;
            }
        }
        *to++ = found >= 0 ? (char)(TOOL_MARK + found) : *text;
        text += found >= 0 ? strlen(parser->markers[found]) : 1;
    }
    *to = '\0';
    return out;
}

/* Feeds the text in pieces: whole, one byte each, cut at `cut`, or random. */
static inline void run(const struct output_options *opt, const char *text, size_t n, size_t most,
                       size_t cut, struct fold *f)
{
    fold_init(f);
    struct tool_sink sink = SINK;
    sink.arg = f;
    struct output o;
    output_init(&o, opt, &sink);
    for (size_t i = 0; i < n;) {
        size_t piece = 1;
        if (cut) {
            piece = i < cut ? cut - i : n - i;
        } else if (most > 1) {
            piece = 1 + below(most);
        }
        piece = lesser(piece, n - i);
        char *copy = malloc(piece); // of the exact size, so that ASan sees an overrun
        memcpy(copy, text + i, piece);
        output_text(&o, copy, piece);
        free(copy);
        i += piece;
    }
    output_finish(&o);
    output_deinit(&o);
}

/* True if all bytes are equal; the numbers of callbacks may differ. */
static inline bool same(const struct fold *a, const struct fold *b)
{
    return strcmp(a->content.data, b->content.data) == 0 &&
           strcmp(a->reasoning.data, b->reasoning.data) == 0 &&
           strcmp(a->calls.data, b->calls.data) == 0;
}

/* The result must not depend on the cuts; returns the folded result of the whole text. */
static inline void check_cuts(const struct output_options *opt, const char *text,
                              struct fold *whole)
{
    size_t n = strlen(text);
    run(opt, text, n, n ? n : 1, n, whole);
    for (size_t i = 0; i < n + 20; i++) {
        struct fold f;
        // First cut in two at each place, then single bytes, then random pieces.
        if (i < n) {
            run(opt, text, n, n, i, &f);
        } else {
            run(opt, text, n, i == n ? 1 : 7, 0, &f);
        }
        if (!same(&f, whole)) {
            CHECK_FAIL("cut %zu of \"%s\": [%s] [%s] [%s] instead of [%s] [%s] [%s]", i, text,
                       f.content.data, f.reasoning.data, f.calls.data, whole->content.data,
                       whole->reasoning.data, whole->calls.data);
            i = n + 20;
        }
        fold_deinit(&f);
    }
}

static inline struct json *tools_of(const char *text)
{
    struct json *root;
    struct err err = {""};
    if (json_parse(text, strlen(text), NULL, &root, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    return root;
}

/* Checks that the parser reports this content and these calls for the text, however it is
 * divided. */
#define PARSES(kind, text, content_, calls_)                                                       \
    do {                                                                                           \
        struct json *tools = tools_of(TOOLS);                                                      \
        struct output_options opt = {.parser = tool_parser_find(kind), .tools = tools};            \
        struct fold f;                                                                             \
        check_cuts(&opt, text, &f);                                                                \
        CHECK_STR(f.content.data, content_);                                                       \
        CHECK_STR(f.calls.data, calls_);                                                           \
        fold_deinit(&f);                                                                           \
        json_free(tools);                                                                          \
    } while (0)

#define TOOLS                                                                                      \
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"n\":{\"type\":\"integer\"}," \
    "\"s\":{\"type\":\"string\"},\"o\":{\"type\":\"object\"},\"b\":{\"type\":\"boolean\"},"        \
    "\"u\":{\"type\":[\"string\",\"null\"]}}}}},{\"function\":{\"name\":\"g\"}}]"

/* DeepSeek's tokens have full-width bars, and U+2581 for spaces; Kimi's are long. */
#define DSML                                                                                       \
    "\xEF\xBD\x9C"                                                                                 \
    "DSML\xEF\xBD\x9C"
#define GCML                                                                                       \
    "\xEF\xBD\x9C"                                                                                 \
    "GCML\xEF\xBD\x9C"
#define STEP(words) "<\xEF\xBD\x9C" words "\xEF\xBD\x9C>"
#define SECTION(text) "<|tool_calls_section_begin|>" text "<|tool_calls_section_end|>"
#define MARKER(words) "<\xEF\xBD\x9Ctool\xE2\x96\x81" words "\xEF\xBD\x9C>"
#define CALLS_BEGIN                                                                                \
    MARKER("calls\xE2\x96\x81"                                                                     \
           "begin")
#define CALLS_END                                                                                  \
    MARKER("calls\xE2\x96\x81"                                                                     \
           "end")
#define CALL_BEGIN                                                                                 \
    MARKER("call\xE2\x96\x81"                                                                      \
           "begin")
#define CALL_END                                                                                   \
    MARKER("call\xE2\x96\x81"                                                                      \
           "end")
#define SEPARATOR MARKER("sep")

#endif
