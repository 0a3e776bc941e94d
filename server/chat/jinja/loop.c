// SPDX-License-Identifier: Apache-2.0
/* The `loop` variable as a template sees it: its attributes, methods and text. len() is here
 * because it applies to a loop, too. exec.c runs the loop. */
#include "server/chat/jinja/eval.h"

#include <stdio.h>
#include <string.h>

/* The next item, which may have been read in advance. */
int jloop_pull(struct jrt *rt, struct jloop *l, struct jv *out)
{
    if (l->peeked) {
        l->peeked = false;
        *out = l->after;
        return jv_is_given(l->after);
    }
    return jwalk_next(rt, &l->walk, out);
}

/* Reads the next item in advance. Only loop.last and loop.nextitem do so, because it makes a
 * generator compute the item early. */
static bool loop_peek(struct jrt *rt, struct jloop *l, struct jv *out)
{
    if (!l->peeked) {
        int more = jwalk_next(rt, &l->walk, &l->after);
        if (more < 0) {
            return false;
        }
        if (more == 0) {
            l->after = jv_missing();
        }
        l->peeked = true;
    }
    *out = l->after;
    return true;
}

/* The number of items. If the sequence has no length, the remaining items are read and counted. */
static bool loop_length(struct jrt *rt, struct jloop *l, int64_t *out)
{
    if (l->length < 0) {
        size_t n;
        if (l->over.type != JV_ITER) {
            if (!jv_len(rt, l->over, &n)) {
                return false;
            }
            l->length = (int64_t)n;
        } else {
            struct jlist *rest = jlist_new(rt, 0);
            struct jv v;
            int more = 0;
            while (rest && (more = jwalk_next(rt, &l->walk, &v)) > 0) {
                if (!jlist_push(rt, rest, v)) {
                    return false;
                }
            }
            if (!rest || more < 0 || !jwalk_init(rt, jv_list(rest), &l->walk)) {
                return false;
            }
            l->length = (int64_t)rest->n + l->index0 + 1 + (l->peeked && jv_is_given(l->after));
        }
    }
    *out = l->length;
    return true;
}

/* Generators have no length, as in Python. */
bool jv_len(struct jrt *rt, struct jv v, size_t *n)
{
    switch (v.type) {
    case JV_UNDEFINED: *n = 0; return true;
    case JV_STR:
        if (!js_flat(rt, v.u.s)) {
            return false;
        }
        *n = js_chars(v.u.s);
        return true;
    case JV_BYTES: *n = v.u.s->n_bytes; return true;
    case JV_LIST:
    case JV_TUPLE: *n = v.u.list->n; return true;
    case JV_DICT: *n = v.u.dict->n; return true;
    case JV_RANGE: *n = (size_t)v.u.range->n; return true;
    case JV_VIEW: *n = v.u.view->dict->n; return true;
    case JV_LOOP: {
        int64_t length;
        if (!loop_length(rt, v.u.loop, &length)) {
            return false;
        }
        *n = (size_t)length;
        return true;
    }
    default: return jrt_fail(rt, "TypeError", "object of type '%s' has no len()", jv_type_name(v));
    }
}

static bool no_item(struct jrt *rt, const char *which, struct jv *out)
{
    return jv_undefined_hint(rt, which, out);
}

/* Attributes that need the length fail for generators. */
bool jloop_attr(struct jrt *rt, struct jv self, struct jstr *name, bool *found, struct jv *out)
{
    struct jloop *l = self.u.loop;
    int64_t n;
    *found = true;
    if (js_is(name, "index0")) {
        *out = jv_int(l->index0);
    } else if (js_is(name, "index")) {
        *out = jv_int(l->index0 + 1);
    } else if (js_is(name, "first")) {
        *out = jv_bool(l->index0 == 0);
    } else if (js_is(name, "last") || js_is(name, "nextitem")) {
        struct jv next;
        if (!loop_peek(rt, l, &next)) {
            return false;
        }
        if (js_is(name, "last")) {
            *out = jv_bool(!jv_is_given(next));
        } else if (jv_is_given(next)) {
            *out = next;
        } else {
            return no_item(rt, "there is no next item", out);
        }
    } else if (js_is(name, "previtem")) {
        *out = l->before;
        return l->index0 > 0 || no_item(rt, "there is no previous item", out);
    } else if (js_is(name, "depth")) {
        *out = jv_int(l->depth0 + 1);
    } else if (js_is(name, "depth0")) {
        *out = jv_int(l->depth0);
    } else if (js_is(name, "length")) {
        if (!loop_length(rt, l, &n)) {
            return false;
        }
        *out = jv_int(n);
    } else if (js_is(name, "revindex") || js_is(name, "revindex0")) {
        if (!loop_length(rt, l, &n)) {
            return false;
        }
        *out = jv_int(n - l->index0 - js_is(name, "revindex0"));
    } else {
        *found = false;
    }
    return true;
}

bool jloop_cycle(struct jrt *rt, struct jv self, const struct jargs *args, struct jv *out)
{
    if (args->n_pos == 0) {
        return jrt_fail(rt, "TypeError", "no items for cycling given");
    }
    *out = args->pos[(size_t)self.u.loop->index0 % args->n_pos];
    return true;
}

/* Compares with the values of the last call; True at the first one. */
bool jloop_changed(struct jrt *rt, struct jv self, const struct jargs *args, struct jv *out)
{
    struct jloop *l = self.u.loop;
    struct jlist *now = jlist_new(rt, args->n_pos);
    if (!now) {
        return false;
    }
    if (args->n_pos > 0) {
        memcpy(now->items, args->pos, args->n_pos * sizeof now->items[0]);
    }
    bool same = false;
    if (jv_is_given(l->changed) && !jv_equal(rt, l->changed, jv_tuple(now), &same)) {
        return false;
    }
    l->changed = jv_tuple(now);
    *out = jv_bool(!same);
    return true;
}

/* As Jinja2 prints it. */
bool jloop_repr(struct jsb *b, struct jv self)
{
    int64_t n;
    char text[64];
    if (!loop_length(b->rt, self.u.loop, &n)) {
        return false;
    }
    snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)self.u.loop->index0 + 1,
             (long long)n);
    jsb_puts(b, text);
    return !b->failed;
}
