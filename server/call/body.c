// SPDX-License-Identifier: Apache-2.0
#include "server/call/body.h"

#include "engine/base/json_scan.h"
#include "engine/base/optional.h"
#include "engine/base/words.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 64, MAX_VALUES = 200000 };

static bool not_json(struct call_error *e, const char *why)
{
    return call_error_set(e, 400, "json_parse_error", NULL,
                          "We could not parse the JSON body of your request. (%s)", why);
}

/* A limit of the body's arena was reached, or there is no memory for it. */
static bool no_room(struct body *b)
{
    if (b->arena->no_memory) {
        return call_error_no_memory(b->error);
    }
    return not_json(b->error, "keys too long");
}

static char *key_text(struct body *b, const struct json_scan *sc)
{
    if (!sc->escaped) {
        return arena_strndup(b->arena, sc->text, sc->text_bytes);
    }
    struct buf text;
    buf_init(&text, 1 << 20);
    json_scan_unescape(sc, &text);
    char *key = arena_strndup(b->arena, or_empty(text.data), text.n_bytes);
    buf_deinit(&text);
    return key;
}

/* No reader knows a key that contains U+0000, but as a C string it could look like a known one. */
static void hide_nuls_of_key(char *key, size_t n_bytes)
{
    for (char *end = key + n_bytes; (key = stand_in_find_nul(key, (size_t)(end - key))) != NULL;) {
        memcpy(key, "\\ufffd", 6);
    }
}

/* Doubles the list. The old lists stay in the arena; together they are at most as long as the new
 * one. */
static bool grow_members(struct body *b)
{
    size_t cap = b->cap > 0 ? 2 * b->cap : 16;
    struct body_member *more = arena_alloc(b->arena, cap, sizeof *more);
    if (!more) {
        return no_room(b);
    }
    if (b->n_members > 0) {
        memcpy(more, b->members, b->n_members * sizeof *more);
    }
    b->members = more;
    b->cap = cap;
    return true;
}

static bool add_member(struct body *b, char *key, const char *start, size_t n_bytes)
{
    size_t i = 0;
    while (i < b->n_members && strcmp(b->members[i].key, key) != 0) {
        i++;
    }
    if (i == BODY_MAX_MEMBERS) {
        return not_json(b->error, "more than 256 keys");
    }
    if (i == b->cap && !grow_members(b)) {
        return false;
    }
    b->n_members += i == b->n_members;
    b->members[i] = (struct body_member){.key = key, .start = start, .n_bytes = n_bytes};
    return true;
}

/* Finds where the members are in the text. Of equal keys the last one counts. */
static bool scan_members(struct body *b, char *text, size_t n_bytes)
{
    struct json_scan sc;
    struct err err = {""};
    json_scan_init(&sc, text, n_bytes, MAX_DEPTH);
    enum json_token t = json_scan_next(&sc);
    if (t != JSON_TOKEN_OBJECT) {
        if (t == JSON_TOKEN_ERROR && n_bytes > 0) {
            json_scan_error(&sc, &err);
            return not_json(b->error, err.text);
        }
        return call_error_set(b->error, 400, "json_parse_error", NULL,
                              "Request body must be a JSON object.");
    }
    while ((t = json_scan_next(&sc)) == JSON_TOKEN_KEY) {
        hide_nuls_of_key(text + (sc.text - text), sc.text_bytes);
        char *key = key_text(b, &sc);
        if (!key) {
            return no_room(b);
        }
        size_t from = sc.at;
        if (!json_scan_skip(&sc)) {
            t = JSON_TOKEN_ERROR;
            break;
        }
        while (from < sc.at && (strchr(" \t\r\n:", text[from]) != NULL)) {
            from++;
        }
        if (!add_member(b, key, text + from, sc.at - from)) {
            return false;
        }
    }
    if (t == JSON_TOKEN_OBJECT_END) {
        t = json_scan_next(&sc);
    }
    if (t != JSON_TOKEN_END) {
        json_scan_error(&sc, &err);
        return not_json(b->error, err.text);
    }
    return true;
}

/* True for an array of ids, or of such arrays: "[1, ..." or "[[1, ...". */
static bool is_ids(const struct body_member *m)
{
    const char *p = m->start, *end = m->start + m->n_bytes;
    for (int open = 0; p < end; p++) {
        if (*p == '[' && open < 2) {
            open++;
        } else if (!strchr(" \t\r\n", *p)) {
            return open > 0 && ((*p >= '0' && *p <= '9') || *p == '-');
        }
    }
    return false;
}

bool body_hide_nuls(struct body *b, const char *body_text, size_t body_bytes, char *text,
                    size_t n_bytes)
{
    if (!stand_in_find_nul(text, n_bytes)) {
        return true;
    }
    if (!b->nul.utf8[0]) { // the body has none yet: choose one that neither text contains
        struct buf both;
        buf_init(&both, body_bytes + n_bytes + 1);
        buf_put(&both, body_text, body_bytes);
        buf_put(&both, text, n_bytes);
        bool found = !both.failed && stand_in_choose(&b->nul, both.data, both.n_bytes);
        buf_deinit(&both);
        if (!found) {
            return false;
        }
    } else if (stand_in_occurs(&b->nul, text, n_bytes)) {
        return false;
    }
    stand_in_hide(&b->nul, text, n_bytes);
    return true;
}

void body_put_nuls_back(const struct body *b, struct buf *json)
{
    stand_in_put_back(&b->nul, json);
}

bool body_text_has_nul(const struct body *b, const char *string)
{
    return string && b->nul.utf8[0] && strstr(string, b->nul.utf8);
}

const char *body_text(const struct body *b, const char *string, size_t *n_bytes)
{
    *n_bytes = strlen(string);
    if (!body_text_has_nul(b, string)) {
        return string;
    }
    char *copy = arena_strndup(b->arena, string, *n_bytes), *to = copy;
    for (const char *from = string; copy && *from;) {
        bool nul = strncmp(from, b->nul.utf8, 3) == 0;
        *to++ = nul ? '\0' : *from;
        from += nul ? 3 : 1;
    }
    *n_bytes = copy ? (size_t)(to - copy) : 0;
    return copy;
}

/* Before the tree is built, replaces values that it need not or cannot hold: an array of ids
 * becomes an empty array, because a tree needs 64 bytes per id, and U+0000 becomes the stand-in,
 * because the tree's strings are NUL-terminated. Readers find these values in the original text,
 * which the arena keeps. */
static bool hide_from_tree(struct body *b, struct body_member *m, char *text, size_t n_bytes)
{
    char *at = text + (m->start - text);
    static const char of_ids[] =
        "prompt|prompt_token_ids|token_ids|input|tokens|query|items|label_token_ids";
    bool ids = m->n_bytes > 2 && is_ids(m) && words_find(of_ids, m->key) >= 0;
    const bool nul = !ids && stand_in_find_nul(at, m->n_bytes);
    if (!ids && !nul) {
        return true;
    }
    m->start = arena_strndup(b->arena, at, m->n_bytes);
    m->has_nul = nul;
    if (!m->start && b->arena->no_memory) {
        return call_error_no_memory(b->error);
    }
    if (!m->start) {
        return call_error_set(b->error, 413, "request_too_large", NULL, "Request too large.");
    }
    if (ids) {
        memset(at, ' ', m->n_bytes);
        memcpy(at, "[]", 2);
    }
    if (nul && !b->nul.utf8[0] && !stand_in_choose(&b->nul, text, n_bytes)) {
        return not_json(b->error, "U+0000 together with all of Unicode's noncharacters");
    }
    if (nul) {
        stand_in_hide(&b->nul, at, m->n_bytes);
    }
    return true;
}

bool body_open(struct body *b, char *text, size_t n_bytes, struct arena *arena,
               struct call_error *error)
{
    *b = (struct body){.arena = arena, .error = error};
    struct err err = {""};
    if (!scan_members(b, text, n_bytes)) {
        return false;
    }
    for (size_t i = 0; i < b->n_members; i++) {
        if (!hide_from_tree(b, &b->members[i], text, n_bytes)) {
            return false;
        }
    }
    struct json_limits limits = {MAX_DEPTH, MAX_VALUES};
    enum status st = json_parse(text, n_bytes, &limits, &b->root, &err);
    if (st == ERR_NOMEM) {
        return call_error_no_memory(b->error);
    }
    if (st == ERR_UNSUPPORTED) {
        return call_error_set(error, 400, "invalid_value", NULL, "Invalid request body: %s.",
                              err.text);
    }
    if (st != OK) {
        return not_json(error, err.text);
    }
    for (size_t i = 0; i < b->n_members; i++) {
        struct body_member *m = &b->members[i];
        bool hidden = m->start < text || m->start >= text + n_bytes;
        if (hidden && !m->has_nul) {
            m->node = NULL;
        } else {
            m->node = json_get(b->root, m->key);
        }
    }
    return true;
}

void body_lift(struct body *b, const char *key)
{
    const struct body_member *m = body_get(b, key);
    struct json_scan sc;
    if (!m || !json_is(m->node, JSON_OBJECT)) {
        return;
    }
    const struct json *object = m->node;
    const char *text = m->start;
    json_scan_init(&sc, text, m->n_bytes, MAX_DEPTH);
    json_scan_next(&sc);
    while (json_scan_next(&sc) == JSON_TOKEN_KEY) { // well formed, since the tree was built from it
        char *name = key_text(b, &sc);
        size_t from = sc.at;
        json_scan_skip(&sc);
        while (from < sc.at && strchr(" \t\r\n:", text[from])) {
            from++;
        }
        if (name && !body_get(b, name) && add_member(b, name, text + from, sc.at - from)) {
            for (size_t i = 0; i < b->n_members; i++) { // the list may have moved
                if (b->members[i].key == name) {
                    b->members[i].node = json_get(object, name);
                }
            }
        }
    }
}

void body_close(struct body *b)
{
    json_free(b->root);
    b->root = NULL;
}

const struct body_member *body_get(const struct body *b, const char *key)
{
    for (size_t i = 0; i < b->n_members; i++) {
        const struct body_member *m = &b->members[i];
        if (strcmp(m->key, key) == 0) {
            if (m->node && json_type(m->node) == JSON_NULL) {
                return NULL;
            }
            return m;
        }
    }
    return NULL;
}

bool body_has(const struct body *b, const char *key)
{
    return body_get(b, key) != NULL;
}

void body_rename(struct body *b, const char *from, const char *to)
{
    for (size_t i = 0; i < b->n_members && !body_has(b, to); i++) {
        if (strcmp(b->members[i].key, from) == 0) {
            b->members[i].key = to;
        }
    }
}
