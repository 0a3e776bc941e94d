// SPDX-License-Identifier: Apache-2.0
/* Responses' namespaces of tools. To templates and parsers a tool `f` of the namespace `n` is the
 * function n__f, as in vLLM; calls are reported with the tool's own name and its namespace. */
#include "engine/base/optional.h"
#include "server/call/convert.h"
#include "server/call/readers.h"

#include <stdio.h>
#include <string.h>

#define BETWEEN "__"
enum { MAX_BYTES = 64 << 20 };

/* The list of tools, with each namespace replaced by its tools. */
struct flat {
    struct request *r;
    struct buf out;
    struct request_namespaced *spaced; // [n_spaced]
    size_t n, n_spaced;
};

static bool is_namespace(const struct json *tool)
{
    const char *type = json_get_string(tool, "type");
    return type && strcmp(type, "namespace") == 0;
}

const char *request_flat_name(struct request *r, const char *space, const char *name)
{
    const size_t n = strlen(space) + strlen(BETWEEN) + strlen(name);
    char *flat = arena_alloc(&r->arena, n + 1, 1);
    if (flat) {
        snprintf(flat, n + 1, "%s" BETWEEN "%s", space, name);
    }
    return flat;
}

/* A tool under its flat name. */
static bool put_inner(struct flat *f, const struct json *tool, const char *space, const char *where)
{
    char place[96];
    const char *name = json_get_string(tool, "name");
    if (!json_is(tool, JSON_OBJECT)) {
        return body_wrong_type(&f->r->error, where, "an object", tool);
    }
    if (!name || !*name) {
        snprintf(place, sizeof place, "%s.name", where);
        return call_error_missing(&f->r->error, place);
    }
    const char *flat = request_flat_name(f->r, space, name);
    struct request_namespaced *to = &f->spaced[f->n_spaced++];
    *to = (struct request_namespaced){flat, arena_strndup(&f->r->arena, space, strlen(space)),
                                      arena_strndup(&f->r->arena, name, strlen(name))};
    if (!to->flat || !to->space || !to->name) {
        return request_too_large(f->r);
    }
    buf_puts(&f->out, f->n++ ? ",{\"name\":" : "{\"name\":");
    convert_text(&f->out, flat);
    for (const struct json *m = json_first(tool); m; m = json_next(m)) {
        if (strcmp(json_key(m), "name") != 0) {
            buf_putc(&f->out, ',');
            convert_text(&f->out, json_key(m));
            buf_putc(&f->out, ':');
            convert_node(&f->out, m);
        }
    }
    buf_putc(&f->out, '}');
    return true;
}

static bool put_namespace(struct flat *f, const struct json *tool, size_t index)
{
    char where[64];
    const char *space = json_get_string(tool, "name");
    const struct json *inner = json_get(tool, "tools");
    if (!space || !*space) {
        snprintf(where, sizeof where, "tools[%zu].name", index);
        return call_error_missing(&f->r->error, where);
    }
    if (!json_is(inner, JSON_ARRAY)) {
        snprintf(where, sizeof where, "tools[%zu].tools", index);
        return inner ? body_wrong_type(&f->r->error, where, "an array", inner)
                     : call_error_missing(&f->r->error, where);
    }
    size_t k = 0;
    for (const struct json *t = json_first(inner); t; t = json_next(t), k++) {
        snprintf(where, sizeof where, "tools[%zu].tools[%zu]", index, k);
        if (!put_inner(f, t, space, where)) {
            return false;
        }
    }
    return true;
}

static bool put_all(struct flat *f, const struct json *list)
{
    size_t index = 0;
    for (const struct json *t = json_first(list); t; t = json_next(t), index++) {
        if (is_namespace(t)) {
            if (!put_namespace(f, t, index)) {
                return false;
            }
        } else {
            buf_puts(&f->out, text_if(f->n++, ","));
            convert_node(&f->out, t);
        }
    }
    return true;
}

bool request_flatten_tools(struct request *r, const struct json **list, const char **text,
                           size_t *n_bytes)
{
    size_t n_inner = 0;
    for (const struct json *t = json_first(*list); t; t = json_next(t)) {
        n_inner += is_namespace(t) ? json_count(json_get(t, "tools")) + 1 : 0;
    }
    if (n_inner == 0) {
        return true;
    }
    struct flat f = {.r = r, .spaced = arena_alloc(&r->arena, n_inner, sizeof *f.spaced)};
    if (!f.spaced) {
        return request_too_large(r);
    }
    buf_init(&f.out, MAX_BYTES);
    buf_putc(&f.out, '[');
    bool good = put_all(&f, *list);
    buf_putc(&f.out, ']');
    if (good) {
        good = !f.out.failed &&
               json_parse(f.out.data, f.out.n_bytes, NULL, &r->flat_tools, NULL) == OK;
        body_put_nuls_back(&r->body, &f.out);
        *text = f.out.failed ? NULL : arena_strndup(&r->arena, f.out.data, f.out.n_bytes);
        *n_bytes = f.out.n_bytes;
        *list = r->flat_tools;
        r->namespaced = f.spaced;
        r->n_namespaced = f.n_spaced;
        good = (good && *text) || request_too_large(r);
    }
    buf_deinit(&f.out);
    return good;
}

const struct request_namespaced *request_namespaced(const struct request *r, const char *flat)
{
    for (size_t i = 0; i < r->n_namespaced; i++) {
        if (strcmp(r->namespaced[i].flat, flat) == 0) {
            return &r->namespaced[i];
        }
    }
    return NULL;
}
