// SPDX-License-Identifier: Apache-2.0
/* $ref within one document. Nothing is fetched. */
#include "engine/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

static int hex(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 32);
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return -1;
}

/* Decodes %XX, ~0 and ~1 in one part of a pointer, in place. */
static size_t unescape(char *s, size_t n)
{
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '%' && i + 2 < n && hex(s[i + 1]) >= 0 && hex(s[i + 2]) >= 0) {
            s[out++] = (char)(hex(s[i + 1]) * 16 + hex(s[i + 2]));
            i += 2;
        } else {
            s[out++] = s[i];
        }
    }
    n = out;
    out = 0;
    for (size_t i = 0; i < n; i++) {
        bool escaped = s[i] == '~' && i + 1 < n && (s[i + 1] == '0' || s[i + 1] == '1');
        s[out++] = escaped ? (s[i + 1] == '0' ? '~' : '/') : s[i];
        i += escaped;
    }
    return out;
}

/* The child of an object or array that a part of a pointer names. */
static const struct tree_value *child(const struct tree_value *v, const char *part, size_t n)
{
    if (v->type == JSON_OBJECT) {
        return tree_get_n(v, part, n);
    }
    if (v->type != JSON_ARRAY || n == 0 || n > 9) {
        return NULL;
    }
    unsigned long index = 0;
    for (size_t i = 0; i < n; i++) {
        if (part[i] < '0' || part[i] > '9') {
            return NULL;
        }
        index = index * 10 + (unsigned long)(part[i] - '0');
    }
    const struct tree_value *c = v->first;
    for (; c && index > 0; index--) {
        c = c->next;
    }
    return c;
}

/* Follows a JSON pointer. ~0, ~1 and percent escapes are decoded in place. */
static const struct tree_value *follow_pointer(const struct tree_value *v, char *pointer, size_t n)
{
    size_t at = 0;
    while (v && at < n) {
        size_t end = ++at; // skips the slash
        while (end < n && pointer[end] != '/') {
            end++;
        }
        size_t len = unescape(pointer + at, end - at);
        v = child(v, pointer + at, len);
        at = end;
    }
    return v;
}

static bool text_is(const struct tree_value *v, const char *s, size_t n)
{
    return v && v->type == JSON_STRING && v->n_text == n && memcmp(v->text, s, n) == 0;
}

static const struct tree_value *id_of(const struct tree_value *v)
{
    const struct tree_value *id = tree_get(v, "$id");
    if (id) {
        return id;
    }
    return tree_get(v, "id");
}

/* Whether the value is the anchor that a name after '#' refers to: $anchor, or "$id": "#name" as in
 * older drafts. */
static bool is_anchor(const struct tree_value *v, const char *s, size_t n)
{
    const struct tree_value *id = id_of(v);
    bool old = id && id->type == JSON_STRING && id->n_text == n + 1 && id->text[0] == '#' &&
               memcmp(id->text + 1, s, n) == 0;
    return old || text_is(tree_get(v, "$anchor"), s, n);
}

/* Whether the value's identifier is exactly this one. */
static bool is_id(const struct tree_value *v, const char *s, size_t n)
{
    const struct tree_value *id = id_of(v);
    if (!id || id->type != JSON_STRING) {
        return false;
    }
    size_t len = id->n_text - (id->n_text > 0 && id->text[id->n_text - 1] == '#');
    return len == n && memcmp(id->text, s, n) == 0;
}

/* Whether the last part of the value's identifier is this one. A relative reference names only that
 * part. */
static bool ends_id(const struct tree_value *v, const char *s, size_t n)
{
    const struct tree_value *id = id_of(v);
    if (!id || id->type != JSON_STRING) {
        return false;
    }
    size_t len = id->n_text - (id->n_text > 0 && id->text[id->n_text - 1] == '#');
    return len >= n && memcmp(id->text + len - n, s, n) == 0 &&
           (len == n || id->text[len - n - 1] == '/');
}

/* Whether a value has an identifier. If so, the anchors inside the value belong to that identifier.
 */
static bool is_resource(const struct tree_value *v)
{
    const struct tree_value *id = v->type == JSON_OBJECT ? id_of(v) : NULL;
    return id && id->type == JSON_STRING && id->text[0] != '#';
}

struct search {
    const char *name;
    size_t n;
    bool (*is)(const struct tree_value *, const char *, size_t);
    bool inside; // do not search schemas that have an identifier of their own
    const struct tree_value *found;
    uint32_t count;
};

static bool key_is_one_of(const struct tree_value *v, const char *const *keys)
{
    for (; *keys; keys++) {
        if (v->key && v->n_key == strlen(*keys) && memcmp(v->key, *keys, v->n_key) == 0) {
            return true;
        }
    }
    return false;
}

/* Finds and counts the schemas below `v` that satisfy the search. Data in a schema are not schemas:
 * for instance, an "$id" in an enum identifies nothing. `named`: the members of v are names of
 * properties or definitions, so none of them is a keyword. */
static void find(struct schema *s, const struct tree_value *v, bool named, struct search *to)
{
    static const char *const data[] = {"enum", "const", "default", "examples", NULL};
    static const char *const names[] = {"properties",  "patternProperties", "$defs",
                                        "definitions", "dependentSchemas",  "dependencies",
                                        NULL};
    s->x->work++;
    if (!named && to->is(v, to->name, to->n)) {
        if (!to->found) {
            to->found = v;
        }
        to->count++;
    }
    for (const struct tree_value *c = v->first; c; c = c->next) {
        bool keyword = v->type == JSON_OBJECT && !named;
        if (!(keyword && key_is_one_of(c, data)) && !(to->inside && is_resource(c))) {
            find(s, c, keyword && key_is_one_of(c, names), to);
        }
    }
}

/* The schema that a reference (without its fragment) names, by its whole identifier or by the last
 * part of it. NULL: there is none, or there are several, so that only the full rules of URIs
 * could decide. */
static const struct tree_value *find_id(struct schema *s, const char *name, size_t n)
{
    struct search full = {.name = name, .n = n, .is = is_id};
    struct search part = {.name = name, .n = n, .is = ends_id};
    find(s, s->root, false, &part);
    if (part.count < 2) {
        return part.found;
    }
    find(s, s->root, false, &full);
    return memchr(name, ':', n) && full.count == 1 ? full.found : NULL;
}

/* Finds an anchor in the schema with the applicable identifier, and otherwise in the document. */
static const struct tree_value *find_anchor(struct schema *s, const struct tree_value *base,
                                            const char *name, size_t n)
{
    struct search own = {.name = name, .n = n, .is = is_anchor, .inside = true};
    struct search any = {.name = name, .n = n, .is = is_anchor};
    find(s, base, false, &own);
    if (!own.found) {
        find(s, s->root, false, &any);
    }
    return own.found ? own.found : any.found;
}

/* The innermost enclosing value that has an identifier, possibly v itself. */
static const struct tree_value *base_of(const struct schema *s, const struct tree_value *v)
{
    for (; v && v != s->root; v = v->parent) {
        if (is_resource(v)) {
            return v;
        }
    }
    return s->root;
}

/* Resolves a reference within the document, by pointer, anchor or $id. */
enum status schema_resolve(struct schema *s, const struct tree_value *ref,
                           const struct tree_value **to)
{
    if (ref->type != JSON_STRING) {
        return schema_fail(s, ERR_INVALID, ref->parent, "\"$ref\" must be a string");
    }
    const char *hash = memchr(ref->text, '#', ref->n_text);
    size_t n_base = hash ? (size_t)(hash - ref->text) : ref->n_text;
    const struct tree_value *v = base_of(s, ref->parent);
    if (n_base > 0) {
        v = find_id(s, ref->text, n_base);
        if (!v) {
            return schema_fail(s, ERR_UNSUPPORTED, ref->parent,
                               "\"$ref\": \"%.60s\" names another document (none is ever "
                               "fetched), or one of several schemas here",
                               ref->text);
        }
    }
    const struct tree_value *base = v;
    char *fragment =
        arena_strndup(&s->tree->arena, hash ? hash + 1 : "", hash ? ref->n_text - n_base - 1 : 0);
    size_t n = hash ? ref->n_text - n_base - 1 : 0;
    if (!fragment) {
        return schema_fail(s, ERR_LIMIT, ref->parent, "the schema is too large");
    }
    if (n > 0 && fragment[0] == '/') {
        v = follow_pointer(v, fragment, n);
        // Many schemas use pointers relative to the document's root, although the standard says
        // otherwise.
        if (!v && base != s->root) {
            memcpy(fragment, hash + 1, n);
            v = follow_pointer(s->root, fragment, n);
        }
    } else if (n > 0) {
        v = find_anchor(s, base, fragment, n);
    }
    *to = v;
    if (!v || !schema_is(v)) {
        return schema_fail(s, ERR_INVALID, ref->parent,
                           "\"$ref\": \"%.100s\" does not refer to a schema", ref->text);
    }
    return OK;
}
