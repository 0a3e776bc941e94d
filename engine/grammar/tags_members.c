// SPDX-License-Identifier: Apache-2.0
/* Errors of structural tags, and access to the members of their JSON. */
#include "engine/grammar/tags.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status tags_fail(struct tags *t, enum status st, const struct tree_value *at, const char *fmt,
                      ...)
{
    char text[300], path[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    tree_path(at, path, sizeof path);
    return err_set(t->c->err, st, "%s: %s", path, text);
}

enum status tags_placed(struct tags *t, enum status st, const struct tree_value *at)
{
    char path[200];
    if (st == OK || t->c->err->text[0] == '#') {
        return st;
    }
    tree_path(at, path, sizeof path);
    return err_prefix(t->c->err, st, "%s", path);
}

enum status tags_member(struct tags *t, const struct tree_value *node, const char *key,
                        enum json_type type, const struct tree_value **v)
{
    *v = tree_get(node, key);
    if (!*v) {
        return tags_fail(t, ERR_INVALID, node, "\"%s\" is missing", key);
    }
    if ((*v)->type != type) {
        return tags_fail(t, ERR_INVALID, *v, "\"%s\" must be of type %s", key,
                         json_type_name(type));
    }
    return OK;
}

bool tags_flag(const struct tree_value *node, const char *key)
{
    const struct tree_value *v = tree_get(node, key);
    return v && v->type == JSON_BOOL && v->truth;
}

uint32_t tags_any(struct tags *t, const struct tree_value *node)
{
    if (tags_flag(node, "any_bytes")) { // that can occur in characters
        return expr_rep(t->x, expr_byte_range(t->x, 0, 0xf4), 0, EXPR_INF);
    }
    return t->x->any_text;
}

static bool is_word_of(const char *words, const char *key, size_t n_key)
{
    for (const char *at = words; *at;) {
        size_t n = strcspn(at, " ");
        if (n == n_key && memcmp(at, key, n) == 0) {
            return true;
        }
        at += n + strspn(at + n, " ");
    }
    return false;
}

enum status tags_check_keys(struct tags *t, const struct tree_value *node, const char *known)
{
    for (const struct tree_value *v = node->first; v; v = v->next) {
        bool asks = v->type != JSON_NULL && !(v->type == JSON_BOOL && !v->truth) &&
                    !(v->type == JSON_ARRAY && v->n == 0);
        if (asks && !is_word_of(known, v->key, v->n_key)) {
            return tags_fail(t, ERR_UNSUPPORTED, node, "\"%.60s\" is not supported here", v->key);
        }
    }
    return OK;
}
