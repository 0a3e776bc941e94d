// SPDX-License-Identifier: Apache-2.0
/* JSON lines for tests of grammars. Members are slices of the text, so that a schema reaches the
 * compiler exactly as written.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_GRAMMAR_ROWS_H
#define SLUICE_TEST_GRAMMAR_ROWS_H

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/json_scan.h"
#include "engine/base/optional.h"
#include "engine/grammar/grammar.h"
#include "test/check.h"

struct slice {
    const char *s;
    size_t n;
};

/* A member's value as it stands in the line; s NULL if it is not there. */
static inline struct slice row_get(struct slice line, const char *name)
{
    struct json_scan sc;
    json_scan_init(&sc, line.s, line.n, 400);
    json_scan_next(&sc);
    while (json_scan_next(&sc) == JSON_TOKEN_KEY) {
        bool is = json_scan_is(&sc, name);
        size_t from = sc.at;
        json_scan_skip(&sc);
        if (is) {
            while (line.s[from] == ':' || line.s[from] == ' ') {
                from++;
            }
            return (struct slice){line.s + from, sc.at - from};
        }
    }
    return (struct slice){0};
}

/* The text of a JSON string; "" for anything else. */
static inline void row_text(struct slice value, struct buf *out)
{
    struct json_scan sc;
    buf_clear(out);
    json_scan_init(&sc, value.s, value.n, 400);
    if (value.s && json_scan_next(&sc) == JSON_TOKEN_STRING) {
        json_scan_unescape(&sc, out);
    }
    buf_put(out, "", 0);
}

/* Whether a member is this word. */
static inline bool row_is(struct slice line, const char *name, const char *word)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    row_text(row_get(line, name), &b);
    bool is = b.data && strcmp(b.data, word) == 0;
    buf_deinit(&b);
    return is;
}

/* Calls `visit` for each string of a JSON array. */
static inline void row_each(struct slice list, void (*visit)(void *arg, const char *s, size_t n),
                            void *arg)
{
    struct json_scan sc;
    struct buf b;
    if (!list.s) {
        return;
    }
    buf_init(&b, 1 << 24);
    json_scan_init(&sc, list.s, list.n, 400);
    json_scan_next(&sc);
    while (json_scan_next(&sc) == JSON_TOKEN_STRING) {
        buf_clear(&b);
        json_scan_unescape(&sc, &b);
        visit(arg, or_empty(b.data), b.n_bytes);
    }
    buf_deinit(&b);
}

/* Calls `visit` for each line of a file of the shared folder. False if there is no such file. */
static inline bool rows_each(const char *name, void (*visit)(struct slice line))
{
    const char *dir = check_shared();
    char path[4096], *data;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", or_empty(dir), name);
    if (!dir || file_read(path, 1 << 26, &data, &n, NULL) != OK) {
        return false;
    }
    for (size_t at = 0; at < n;) {
        size_t end = at;
        while (end < n && data[end] != '\n') {
            end++;
        }
        if (end > at) {
            visit((struct slice){data + at, end - at});
        }
        at = end + 1;
    }
    free(data);
    return true;
}

/* Whether the language contains the text. False with a reason in `st` if a limit was reached. */
static inline bool accepts(struct grammar *g, const char *s, size_t n, enum status *st)
{
    struct grammar_state state = grammar_start(g);
    *st = grammar_advance(g, &state, s, n);
    return *st == OK && grammar_may_end(g, state);
}

#endif
