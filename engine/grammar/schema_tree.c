// SPDX-License-Identifier: Apache-2.0
/* A schema as a tree that keeps the text of numbers and the order of members, and is limited in
 * size. */
#include "engine/grammar/schema_tree.h"

#include "engine/base/json_scan.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/grammar/decimal.h"

#include <stdio.h>
#include <string.h>

enum { ARENA_BYTES = 64 << 20 };

/* Nodes are numbered. NULL: the limit is reached. */
struct tree_value *tree_new(struct tree *t, enum json_type type, const struct tree_value *where)
{
    struct tree_value *v =
        t->n_values < t->max_values ? arena_alloc(&t->arena, 1, sizeof *v) : NULL;
    if (v) {
        v->type = type;
        v->number = t->n_values++;
        v->parent = (struct tree_value *)where;
    }
    return v;
}

static void link_child(struct tree_value *parent, struct tree_value *v)
{
    v->parent = parent;
    *(parent->last ? &parent->last->next : &parent->first) = v;
    parent->last = v;
    parent->n++;
}

/* Puts a copy of v under a parent, with a key. */
struct tree_value *tree_put(struct tree *t, struct tree_value *to, const char *key, size_t n_key,
                            const struct tree_value *v)
{
    struct tree_value *copy = to && v ? tree_new(t, v->type, to) : NULL;
    if (copy) {
        uint32_t number = copy->number;
        *copy = *v;
        copy->number = number;
        copy->next = NULL;
        copy->key = key;
        copy->n_key = n_key;
        link_child(to, copy);
    }
    return copy;
}

/* ---- reading ---- */

/* U+0000 is allowed. An unpaired surrogate is an error, because no text could match it. */
static enum status read_string(struct tree *t, const struct json_scan *sc, const char **text,
                               size_t *n, struct err *err)
{
    if (!sc->escaped) {
        *text = arena_strndup(&t->arena, sc->text, sc->text_bytes);
        *n = sc->text_bytes;
        if (*text) {
            return OK;
        }
        return err_set(err, ERR_LIMIT, "the schema is too large");
    }
    if (json_scan_unpaired(sc)) {
        return err_set(err, ERR_INVALID, "a string of the schema contains an unpaired surrogate");
    }
    struct buf b;
    buf_init(&b, sc->text_bytes + 1);
    json_scan_unescape(sc, &b);
    *text = arena_strndup(&t->arena, or_empty(b.data), b.n_bytes);
    *n = b.n_bytes;
    bool bad = b.failed || !*text;
    buf_deinit(&b);
    if (bad) {
        return err_set(err, ERR_LIMIT, "the schema is too large");
    }
    return OK;
}

static enum status read_value(struct tree *t, struct json_scan *sc, enum json_token token,
                              struct tree_value *v, struct err *err)
{
    switch (token) {
    case JSON_TOKEN_OBJECT: v->type = JSON_OBJECT; break;
    case JSON_TOKEN_ARRAY: v->type = JSON_ARRAY; break;
    case JSON_TOKEN_STRING:
        v->type = JSON_STRING;
        return read_string(t, sc, &v->text, &v->n_text, err);
    case JSON_TOKEN_NUMBER:
        v->type = JSON_NUMBER;
        v->text = arena_strndup(&t->arena, sc->text, sc->text_bytes);
        v->n_text = sc->text_bytes;
        if (!v->text) {
            return err_set(err, ERR_LIMIT, "the schema is too large");
        }
        return OK;
    case JSON_TOKEN_TRUE:
    case JSON_TOKEN_FALSE:
        v->type = JSON_BOOL;
        v->truth = token == JSON_TOKEN_TRUE;
        break;
    default: v->type = JSON_NULL; break;
    }
    return OK;
}

/* Reads the tree in a loop, so only the scanner limits the depth. */
enum status tree_read(struct tree *t, const char *text, size_t n, int max_depth,
                      uint32_t max_values, struct err *err)
{
    struct json_scan sc;
    struct tree_value *open = NULL;
    const char *key = NULL;
    size_t n_key = 0;
    *t = (struct tree){.max_values = max_values};
    arena_init(&t->arena, ARENA_BYTES);
    json_scan_init(&sc, text, n, lesser(max_depth, JSON_SCAN_MAX_DEPTH));
    for (enum json_token token; (token = json_scan_next(&sc)) != JSON_TOKEN_END;) {
        if (token == JSON_TOKEN_ERROR) {
            enum status st = json_scan_error(&sc, err);
            return err_prefix(err, st == ERR_LIMIT ? st : ERR_INVALID, "the schema is not JSON");
        }
        if (token == JSON_TOKEN_KEY) {
            TRY(read_string(t, &sc, &key, &n_key, err));
            continue;
        }
        if (token == JSON_TOKEN_OBJECT_END || token == JSON_TOKEN_ARRAY_END) {
            open = open->parent;
            continue;
        }
        struct tree_value *v = tree_new(t, JSON_NULL, open);
        if (!v) {
            return err_set(err, ERR_LIMIT, "the schema has more than %u values", max_values);
        }
        v->key = key;
        v->n_key = n_key;
        key = NULL;
        if (open) {
            link_child(open, v);
        }
        if (!t->root) {
            t->root = v;
        }
        TRY(read_value(t, &sc, token, v, err));
        if (v->type == JSON_OBJECT || v->type == JSON_ARRAY) {
            open = v;
        }
    }
    return OK;
}

void tree_deinit(struct tree *t)
{
    arena_deinit(&t->arena);
}

/* ---- access ---- */

/* If keys are equal, the last one counts, as in Python. */
const struct tree_value *tree_get_n(const struct tree_value *object, const char *key, size_t n)
{
    const struct tree_value *found = NULL;
    for (const struct tree_value *v = object && object->type == JSON_OBJECT ? object->first : NULL;
         v; v = v->next) {
        if (v->n_key == n && memcmp(v->key, key, n) == 0) {
            found = v;
        }
    }
    return found;
}

const struct tree_value *tree_get(const struct tree_value *object, const char *key)
{
    return tree_get_n(object, key, strlen(key));
}

bool tree_is_string(const struct tree_value *v, const char *s)
{
    return v && v->type == JSON_STRING && v->n_text == strlen(s) &&
           memcmp(v->text, s, v->n_text) == 0;
}

static bool equal_numbers(const struct tree_value *a, const struct tree_value *b)
{
    struct decimal p, q;
    if (decimal_read(&p, a->text, a->n_text) && decimal_read(&q, b->text, b->n_text)) {
        return decimal_compare(&p, &q) == 0;
    }
    return a->n_text == b->n_text && memcmp(a->text, b->text, a->n_text) == 0;
}

/* Equality of JSON values: numbers by value, objects in any order. */
bool tree_equal(const struct tree_value *a, const struct tree_value *b)
{
    if (a->type != b->type || a->n != b->n) {
        return false;
    }
    switch (a->type) {
    case JSON_NULL: return true;
    case JSON_BOOL: return a->truth == b->truth;
    case JSON_NUMBER: return equal_numbers(a, b);
    case JSON_STRING: return a->n_text == b->n_text && memcmp(a->text, b->text, a->n_text) == 0;
    case JSON_ARRAY:
        for (const struct tree_value *p = a->first, *q = b->first; p; p = p->next, q = q->next) {
            if (!tree_equal(p, q)) {
                return false;
            }
        }
        return true;
    case JSON_OBJECT: break;
    }
    for (const struct tree_value *p = a->first; p; p = p->next) {
        const struct tree_value *q = tree_get_n(b, p->key, p->n_key);
        if (!q || !tree_equal(p, q)) {
            return false;
        }
    }
    return true;
}

/* Writes the path from the root. If it is too long, it is cut on the left. */
void tree_path(const struct tree_value *v, char *out, size_t n_bytes)
{
    char text[256];
    size_t at = sizeof text - 1;
    text[at] = 0;
    for (; v && v->parent; v = v->parent) {
        char number[16];
        const char *name = v->key;
        size_t n = v->n_key;
        if (!name) {
            unsigned i = 0;
            for (const struct tree_value *p = v->parent->first; p && p != v; p = p->next) {
                i++;
            }
            n = (size_t)snprintf(number, sizeof number, "%u", i);
            name = number;
        }
        if (n + 1 > at) {
            break;
        }
        at -= n;
        memcpy(text + at, name, n);
        text[--at] = '/';
    }
    snprintf(out, n_bytes, "#%s%s", text_if(v && v->parent, "..."), text + at);
}
