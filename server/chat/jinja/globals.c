// SPDX-License-Identifier: Apache-2.0
/* The functions available in every template. */
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define GLOBAL(name) static bool name(struct jrt *rt, const struct jargs *args, struct jv *out)

/* At most 100,000 items, like in Jinja2's sandbox. The span is computed as unsigned, so that it
 * cannot overflow. */
GLOBAL(global_range)
{
    int64_t v[3] = {0, 0, 1};
    if (args->n_kw > 0 || args->n_pos == 0 || args->n_pos > 3) {
        return jrt_fail(rt, "TypeError", "range expected 1 to 3 arguments, got %zu", args->n_pos);
    }
    for (size_t i = 0; i < args->n_pos; i++) {
        if (!jv_as_index(rt, args->pos[i], &v[args->n_pos == 1 ? 1 : i])) {
            return false;
        }
    }
    if (v[2] == 0) {
        return jrt_fail(rt, "ValueError", "range() arg 3 must not be zero");
    }
    bool down = v[2] < 0;
    uint64_t span;
    if (down) {
        span = (uint64_t)v[0] - (uint64_t)v[1];
    } else {
        span = (uint64_t)v[1] - (uint64_t)v[0];
    }
    uint64_t step = down ? 0 - (uint64_t)v[2] : (uint64_t)v[2];
    bool is_empty = down ? v[0] <= v[1] : v[1] <= v[0];
    uint64_t n = is_empty ? 0 : (span - 1) / step + 1;
    if (n > JINJA_MAX_RANGE) {
        return jrt_fail(rt, "OverflowError",
                        "Range too big. The sandbox blocks ranges larger than "
                        "MAX_RANGE (%d).",
                        JINJA_MAX_RANGE);
    }
    struct jrange *r = jrt_alloc(rt, 1, sizeof *r);
    if (r) {
        *r = (struct jrange){.start = v[0], .stop = v[1], .step = v[2], .n = (int64_t)n};
    }
    *out = (struct jv){.type = JV_RANGE, .u.range = r};
    return r != NULL;
}

/* dict(mapping or pairs, name=value, ...) */
static bool build_dict(struct jrt *rt, const struct jargs *args, struct jdict **out)
{
    struct jdict *d = jd_new(rt);
    *out = d;
    if (!d || args->n_pos > 1) {
        return jrt_fail(rt, "TypeError", "dict expected at most 1 argument, got %zu", args->n_pos);
    }
    if (args->n_pos == 1 && args->pos[0].type == JV_DICT) {
        const struct jdict *from = args->pos[0].u.dict;
        for (size_t i = 0; i < from->n; i++) {
            if (!jd_set(rt, d, from->e[i].key, from->e[i].value)) {
                return false;
            }
        }
    } else if (args->n_pos == 1) {
        struct jwalk w;
        struct jv pair;
        int more;
        if (!jwalk_init(rt, args->pos[0], &w)) {
            return false;
        }
        while ((more = jwalk_next(rt, &w, &pair)) > 0) {
            struct jlist *two;
            if (!jv_is_iterable(pair)) {
                return jrt_fail(rt, "TypeError", "cannot convert dictionary update sequence");
            }
            if (!jv_collect(rt, pair, &two)) {
                return false;
            }
            if (two->n != 2) {
                return jrt_fail(rt, "ValueError",
                                "dictionary update sequence element has length "
                                "%zu; 2 is required",
                                two->n);
            }
            if (!jd_set(rt, d, two->items[0], two->items[1])) {
                return false;
            }
        }
        if (more < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        if (!jd_set(rt, d, jv_str(args->kw[i].name), args->kw[i].value)) {
            return false;
        }
    }
    return true;
}

GLOBAL(global_dict)
{
    struct jdict *d;
    if (!build_dict(rt, args, &d)) {
        return false;
    }
    *out = jv_dict(d);
    return true;
}

/* The only object whose attributes a template can set. */
GLOBAL(global_namespace)
{
    struct jdict *d;
    if (!build_dict(rt, args, &d)) {
        return false;
    }
    *out = (struct jv){.type = JV_NAMESPACE, .u.dict = d};
    return true;
}

/* After the last item next() returns the first one again. */
GLOBAL(global_cycler)
{
    struct jcycler *c = jrt_alloc(rt, 1, sizeof *c);
    if (args->n_pos == 0 || args->n_kw > 0) {
        return jrt_fail(rt, "RuntimeError", "at least one item has to be provided");
    }
    struct jlist *l = c ? jlist_new(rt, args->n_pos) : NULL;
    if (!l) {
        return false;
    }
    memcpy(l->items, args->pos, args->n_pos * sizeof l->items[0]);
    c->items = l;
    *out = (struct jv){.type = JV_CYCLER, .u.cycler = c};
    return true;
}

/* The first call returns an empty string, later ones the separator. */
GLOBAL(global_joiner)
{
    struct jv sep;
    struct jjoiner *j = jrt_alloc(rt, 1, sizeof *j);
    if (!j || !jargs_bind(rt, "joiner", args, "sep", 0, &sep)) {
        return false;
    }
    j->sep = jv_is_given(sep) ? sep : jv_str(js_lit(rt, ", "));
    *out = (struct jv){.type = JV_JOINER, .u.joiner = j};
    return rt->st == OK;
}

/* The message is passed on unchanged, since templates use it to speak to the user. */
GLOBAL(global_raise)
{
    struct jv message;
    struct jstr *s;
    (void)out;
    return jargs_bind(rt, "raise_exception", args, "message", 1, &message) &&
           jv_to_str(rt, message, &s) && jrt_raise(rt, s->s, s->n_bytes);
}

/* One directive of strftime; Python handles %f, %z and %Z itself (the time here has no zone). */
static void put_time(struct jsb *b, const struct tm *tm, int microseconds, char flag, char code)
{
    char text[128];
    if (code == 'f') {
        snprintf(text, sizeof text, "%06d", microseconds);
    } else if (code == 'z' || code == 'Z') {
        text[0] = '\0';
    } else {
        char fmt[8] = {'%', code, '\0'};
        if (flag) {
            snprintf(fmt, sizeof fmt, "%%%c%c", flag, code);
        }
        text[0] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        strftime(text, sizeof text, fmt, tm);
#pragma GCC diagnostic pop
    }
    jsb_puts(b, text);
}

/* The time is that of the render, so all calls in one render return the same time. */
GLOBAL(global_strftime_now)
{
    struct jv format;
    if (!jargs_bind(rt, "strftime_now", args, "format", 1, &format)) {
        return false;
    }
    if (format.type != JV_STR || !js_flat(rt, format.u.s)) {
        return jrt_fail(rt, "TypeError", "strftime() argument 1 must be str, not %s",
                        jv_type_name(format));
    }
    int64_t sec = rt->local_us / 1000000, us = rt->local_us % 1000000;
    if (us < 0) {
        us += 1000000;
        sec--;
    }
    time_t at = (time_t)sec;
    struct tm tm;
    if (!gmtime_r(&at, &tm)) {
        return jrt_fail(rt, "ValueError", "year is out of range");
    }
    struct jstr *f = format.u.s;
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t i = 0; i < f->n_bytes && !b.failed; i++) {
        if (f->s[i] != '%' || i + 1 >= f->n_bytes) {
            jsb_put_range(&b, f, i, 1);
            continue;
        }
        char flag = 0, code = f->s[++i];
        if (strchr("-_0^#EO", code) && code && i + 1 < f->n_bytes) {
            flag = code;
            code = f->s[++i];
        }
        if (code > ' ' && code < 0x7F) {
            put_time(&b, &tm, (int)us, flag, code);
        } else {
            jsb_put_range(&b, f, i - 1, 2);
        }
    }
    *out = jv_str(jsb_done(&b));
    return out->u.s != NULL;
}

GLOBAL(global_lipsum)
{
    (void)args, (void)out;
    return jrt_fail(rt, "TemplateRuntimeError", "lipsum is not supported");
}

const struct jinja_func jinja_funcs[] = {
    {"range", global_range, false},
    {"dict", global_dict, true},
    {"namespace", global_namespace, true},
    {"cycler", global_cycler, true},
    {"joiner", global_joiner, true},
    {"lipsum", global_lipsum, false},
    {"raise_exception", global_raise, false},
    {"strftime_now", global_strftime_now, false},
    {NULL},
};
