// SPDX-License-Identifier: Apache-2.0
/* Iteration over anything that Python can iterate over: one walk for loops, filters and methods,
 * and the iterators that yield their items once. */
#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "server/chat/jinja/eval.h"

#include <string.h>

bool jv_is_iterable(struct jv v)
{
    switch (v.type) {
    case JV_UNDEFINED:
    case JV_STR:
    case JV_BYTES:
    case JV_LIST:
    case JV_TUPLE:
    case JV_DICT:
    case JV_RANGE:
    case JV_VIEW:
    case JV_ITER:
    case JV_LOOP: return true;
    default: return false;
    }
}

/* Begins a walk. A lazy string is flattened first, since it is read byte by byte. */
bool jwalk_init(struct jrt *rt, struct jv over, struct jwalk *w)
{
    *w = (struct jwalk){.over = over};
    if (!jv_is_iterable(over)) {
        return jrt_fail(rt, "TypeError", "'%s' object is not iterable", jv_type_name(over));
    }
    return over.type != JV_STR || js_flat(rt, over.u.s);
}

/* The next character of a string. ASCII characters are cached per provenance, since some templates
 * walk over a whole message as if it were a list of parts. */
static int next_char(struct jrt *rt, struct jwalk *w, struct jv *out)
{
    struct jstr *s = w->over.u.s;
    if (w->at >= s->n_bytes) {
        return 0;
    }
    unsigned char c = (unsigned char)s->s[w->at];
    if (c < 0x80 && s->prov != PROV_MIXED) { // most characters: these share cached strings
        struct jstr **one = &rt->ascii[s->prov == PROV_INPUT][c];
        if (!*one) {
            *one = js_sub(rt, s, w->at, 1);
        }
        *out = jv_str(*one);
        w->at++;
        return *one ? 1 : -1;
    }
    size_t n = utf8_valid_length(s->s + w->at, s->n_bytes - w->at);
    *out = jv_str(js_sub(rt, s, w->at, n));
    w->at += n;
    return out->u.s ? 1 : -1;
}

/* The i-th item of a view. Dictionaries do not change while a template runs. */
static int next_of_view(struct jrt *rt, const struct jview *view, size_t i, struct jv *out)
{
    if (i >= view->dict->n) {
        return 0;
    }
    const struct jentry *e = &view->dict->e[i];
    switch (view->kind) {
    case JVIEW_KEYS: *out = e->key; return 1;
    case JVIEW_VALUES: *out = e->value; return 1;
    case JVIEW_ITEMS: return jv_pair(rt, e->key, e->value, out) ? 1 : -1;
    }
    return -1;
}

/* 1: *out is the next item; 0: there is none; -1: failed. Every item costs a step. */
int jwalk_next(struct jrt *rt, struct jwalk *w, struct jv *out)
{
    if (!jrt_step(rt)) {
        return -1;
    }
    struct jv over = w->over;
    switch (over.type) {
    case JV_STR: return next_char(rt, w, out);
    case JV_BYTES:
        if (w->at >= over.u.s->n_bytes) {
            return 0;
        }
        *out = jv_int((unsigned char)over.u.s->s[w->at++]);
        return 1;
    case JV_LIST:
    case JV_TUPLE:
        if (w->at >= over.u.list->n) {
            return 0;
        }
        *out = over.u.list->items[w->at++];
        return 1;
    case JV_DICT:
        if (w->at >= over.u.dict->n) {
            return 0;
        }
        *out = over.u.dict->e[w->at++].key;
        return 1;
    case JV_RANGE:
        if (w->at >= (size_t)over.u.range->n) {
            return 0;
        }
        *out = jv_int(over.u.range->start + (int64_t)w->at++ * over.u.range->step);
        return 1;
    case JV_VIEW: return next_of_view(rt, over.u.view, w->at++, out);
    case JV_ITER: {
        if (!jinja_enter(rt)) { // iterators over iterators recurse
            return -1;
        }
        int more = jiter_next(rt, over.u.iter, out);
        jinja_leave(rt);
        return more;
    }
    case JV_LOOP: jrt_fail(rt, "TypeError", "iterating over `loop` is not supported"); return -1;
    default: return 0; // undefined is empty
    }
}

/* All items as a list, for operations that need their number or a second pass. */
bool jv_collect(struct jrt *rt, struct jv over, struct jlist **out)
{
    struct jwalk w;
    struct jv item;
    int more;
    struct jlist *l = jlist_new(rt, 0);
    if (!l || !jwalk_init(rt, over, &w)) {
        return false;
    }
    while ((more = jwalk_next(rt, &w, &item)) > 0) {
        if (!jlist_push(rt, l, item)) {
            return false;
        }
    }
    *out = l;
    return more == 0;
}

/* Creates an iterator. Like a generator, it does not touch `over` before its first item is
 * requested. */
bool jiter_new(struct jrt *rt, enum jiter_kind kind, struct jv over, struct jv *out)
{
    struct jiter *it = jrt_alloc(rt, 1, sizeof *it);
    if (it) {
        it->kind = kind;
        it->over = over;
        it->fallback = it->fill = jv_missing();
    }
    *out = (struct jv){.type = JV_ITER, .u.iter = it};
    return it != NULL;
}

/* Yields lists of `size` items; the last one may be padded. */
static int next_batch(struct jrt *rt, struct jiter *it, struct jv *out)
{
    struct jlist *l = jlist_new(rt, 0);
    struct jv item;
    int more = 1;
    if (!l) {
        return -1;
    }
    if (it->at > 0 && !jlist_push(rt, l, it->fallback)) { // the previous batch read it in advance
        return -1;
    }
    while (l->n == 0 || (int64_t)l->n != it->size) {
        more = jwalk_next(rt, &it->walk, &item);
        if (more <= 0) {
            break;
        }
        if (!jlist_push(rt, l, item)) {
            return -1;
        }
    }
    if (more < 0 || l->n == 0) {
        return more < 0 ? -1 : 0;
    }
    it->at = 0;
    if (more > 0) { // the batch is full; read in advance whether another item follows
        more = jwalk_next(rt, &it->walk, &it->fallback);
        it->at = more > 0;
        if (more < 0) {
            return -1;
        }
    }
    bool fill = it->at == 0 && it->fill.type != JV_NONE && jv_is_given(it->fill);
    while (fill && (int64_t)l->n < it->size) {
        if (!jlist_push(rt, l, it->fill)) {
            return -1;
        }
    }
    *out = jv_list(l);
    return 1;
}

/* Like Jinja2's slice filter: `size` lists of nearly equal lengths. The first ones may be longer by
 * one; then `fill` pads the others. */
static int next_slice(struct jrt *rt, struct jiter *it, struct jv *out)
{
    if (it->at >= it->size) {
        return 0;
    }
    int64_t n = (int64_t)it->all->n, each = n / it->size, extra = n % it->size, k = it->at++;
    int64_t start = k * each + lesser(k, extra);
    int64_t count = each + (k < extra);
    struct jlist *l = jlist_new(rt, 0);
    for (int64_t i = 0; l && i < count; i++) {
        if (!jlist_push(rt, l, it->all->items[start + i])) {
            return -1;
        }
    }
    bool fill = jv_is_given(it->fill) && it->fill.type != JV_NONE && k >= extra;
    if (!l || (fill && !jlist_push(rt, l, it->fill))) {
        return -1;
    }
    *out = jv_list(l);
    return 1;
}

/* Runs when the first item is requested: generators check their arguments then. */
static bool start(struct jrt *rt, struct jiter *it)
{
    it->started = true;
    if (it->kind == JITER_ITEMS) {
        if (it->over.type == JV_UNDEFINED) {
            it->done = true;
            return true;
        }
        if (it->over.type != JV_DICT) {
            return jrt_fail(rt, "TypeError", "Can only get item pairs from a mapping.");
        }
        struct jview *view = jrt_alloc(rt, 1, sizeof *view);
        if (!view) {
            return false;
        }
        *view = (struct jview){.dict = it->over.u.dict, .kind = JVIEW_ITEMS};
        it->over = (struct jv){.type = JV_VIEW, .u.view = view};
    }
    if ((it->kind == JITER_MAP || it->kind == JITER_SELECT) && !jv_truth(it->over)) {
        it->done = true;
        return true;
    }
    if (it->kind == JITER_SLICE) {
        if (!jv_collect(rt, it->over, &it->all)) {
            return false;
        }
        return it->size != 0 ||
               jrt_fail(rt, "ZeroDivisionError", "integer division or modulo by zero");
    }
    return jwalk_init(rt, it->over, &it->walk);
}

/* Once it has ended or failed, it yields no more items. */
int jiter_next(struct jrt *rt, struct jiter *it, struct jv *out)
{
    if (!it->started && !start(rt, it)) {
        return -1;
    }
    if (it->done) {
        return 0;
    }
    int more = 0;
    switch (it->kind) {
    case JITER_PLAIN:
    case JITER_ITEMS: more = jwalk_next(rt, &it->walk, out); break;
    case JITER_BATCH: more = next_batch(rt, it, out); break;
    case JITER_SLICE: more = next_slice(rt, it, out); break;
    case JITER_MAP:
    case JITER_SELECT:
    case JITER_UNIQUE: more = it->next(rt, it, out); break;
    }
    it->done = more <= 0;
    return more;
}
