// SPDX-License-Identifier: Apache-2.0
/* Calls in an assistant's message, for templates that print only its content: they are appended to
 * the content as the model itself writes them. */
#include "server/chat/messages.h"

#include "engine/base/optional.h"
#include "server/chat/jinja/json.h"
#include "server/chat/tools/writing.h"

#include <string.h>

static const struct jv *member(struct jrt *rt, struct jv object, const char *key)
{
    const struct jentry *e = NULL;
    if (object.type == JV_DICT) {
        e = jd_find_text(rt, object.u.dict, key, strlen(key));
    }
    return e ? &e->value : NULL;
}

static bool is_python(const struct tool_writing *w)
{
    return w->style && strcmp(w->style, "python") == 0;
}

bool chat_can_write_calls(const struct tool_writing *w)
{
    return w && (!w->style || is_python(w)) && !strstr(w->call, "%d") && !strstr(w->name_end, "%d");
}

static bool put_json(struct jsb *b, struct jrt *rt, struct jv v)
{
    struct jjson_style style = {.comma = js_lit(rt, ", "), .colon = js_lit(rt, ": ")};
    struct jstr *s;
    if (rt->st != OK || !jinja_tojson(rt, v, &style, &s)) {
        return false;
    }
    jsb_put_str(b, s);
    return true;
}

/* A value in Python's notation, which differs from JSON's in three words. */
static bool put_python(struct jsb *b, struct jrt *rt, struct jv v, int nest)
{
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(rt, "a value is nested too deeply");
    }
    if (v.type == JV_NONE || v.type == JV_BOOL) {
        const char *word = v.type == JV_BOOL && v.u.b ? "True" : "False";
        jsb_puts(b, v.type == JV_NONE ? "None" : word);
        return true;
    }
    if (v.type != JV_LIST && v.type != JV_DICT) {
        return put_json(b, rt, v);
    }
    const bool keys = v.type == JV_DICT;
    const size_t n = keys ? v.u.dict->n : v.u.list->n;
    jsb_puts(b, keys ? "{" : "[");
    for (size_t i = 0; i < n; i++) {
        jsb_puts(b, i ? ", " : "");
        if (keys && !put_json(b, rt, v.u.dict->e[i].key)) {
            return false;
        }
        jsb_puts(b, keys ? ": " : "");
        if (!put_python(b, rt, keys ? v.u.dict->e[i].value : v.u.list->items[i], nest + 1)) {
            return false;
        }
    }
    jsb_puts(b, keys ? "}" : "]");
    return true;
}

/* name=value, ... */
static bool put_keywords(struct jsb *b, struct jrt *rt, const struct jdict *arguments)
{
    for (size_t i = 0; i < arguments->n; i++) {
        jsb_puts(b, i ? ", " : "");
        jsb_put_str(b, arguments->e[i].key.u.s);
        jsb_puts(b, "=");
        if (!put_python(b, rt, arguments->e[i].value, 0)) {
            return false;
        }
    }
    return true;
}

static bool put_call(struct jsb *b, struct jrt *rt, const struct tool_writing *w, struct jv call)
{
    const struct jv *function = member(rt, call, "function");
    const struct jv *name = function ? member(rt, *function, "name") : NULL;
    const struct jv *arguments = function ? member(rt, *function, "arguments") : NULL;
    if (!name || name->type != JV_STR) {
        return true;
    }
    jsb_puts(b, w->call);
    jsb_put_str(b, name->u.s);
    jsb_puts(b, w->name_end);
    if (arguments && arguments->type == JV_STR) { // text that is not JSON
        jsb_put_str(b, arguments->u.s);
    } else if (arguments && arguments->type == JV_DICT && is_python(w)) {
        if (!put_keywords(b, rt, arguments->u.dict)) {
            return false;
        }
    } else if (arguments && !put_json(b, rt, *arguments)) {
        return false;
    }
    jsb_puts(b, or_empty(w->call_end));
    return true;
}

static bool put_calls(struct jsb *b, struct jrt *rt, const struct tool_writing *w,
                      const struct jlist *calls, bool after_text)
{
    const bool apart = after_text && w->open_after;
    jsb_puts(b, or_empty(apart ? w->open_after : w->open));
    for (size_t i = 0; i < calls->n; i++) {
        jsb_puts(b, i ? or_empty(w->between) : "");
        if (!put_call(b, rt, w, calls->items[i])) {
            return false;
        }
    }
    jsb_puts(b, or_empty(apart ? w->close_after : w->close));
    return true;
}

/* A last part with text, for a list that does not end with one. */
static bool add_part(struct jrt *rt, struct jlist *parts, struct jstr *text)
{
    struct jdict *part = jd_new(rt);
    struct jstr *kind = js_lit(rt, "text");
    return part && kind && jd_set_lit(rt, part, "type", jv_str(kind)) &&
           jd_set_lit(rt, part, "text", jv_str(text)) && jlist_push(rt, parts, jv_dict(part));
}

bool chat_write_calls(struct jrt *rt, struct jv message, const struct tool_writing *w)
{
    const struct jv *calls = member(rt, message, "tool_calls");
    const struct jv *content = member(rt, message, "content");
    struct jlist *parts = content && content->type == JV_LIST ? content->u.list : NULL;
    if (!calls || calls->type != JV_LIST || calls->u.list->n == 0 ||
        (content && content->type != JV_NONE && content->type != JV_STR && !parts)) {
        return rt->st == OK;
    }
    const bool has_parts = parts && parts->n > 0;
    const struct jv last = has_parts ? parts->items[parts->n - 1] : message;
    const struct jv *text = has_parts ? member(rt, last, "text") : content;
    const bool has_text = text && text->type == JV_STR;
    struct jsb b;
    jsb_init(&b, rt);
    if (has_text) {
        jsb_put_str(&b, text->u.s);
    }
    if (!put_calls(&b, rt, w, calls->u.list, has_parts || (has_text && text->u.s->n_bytes > 0))) {
        return false;
    }
    struct jstr *all = jsb_done(&b);
    if (all && parts && !has_text) {
        return add_part(rt, parts, all);
    }
    return all && jd_set_lit(rt, last.u.dict, has_parts ? "text" : "content", jv_str(all));
}
