// SPDX-License-Identifier: Apache-2.0
/* Macros: binding arguments to parameters, and the call. */
#include "server/chat/jinja/eval.h"

#include <stdio.h>
#include <string.h>

/* Counts nested calls of macros, callers and recursive loops; the caller of this function
 * decrements `calls`. */
bool jcall_enter(struct jrt *rt)
{
    if (++rt->calls > JINJA_MAX_CALLS) {
        return jrt_limit(rt, "it recurses too deeply");
    }
    return true;
}

/* Binds positional arguments and named parameters. Other names are put into `rest`, and `caller`
 * into *caller. */
static bool bind_given(struct jrt *rt, const struct jmacro *m, const struct jargs *args,
                       struct jframe *frame, bool *given, struct jdict *rest, struct jv *caller)
{
    const struct jsignature *sig = m->sig;
    size_t n = (size_t)sig->n;
    for (size_t i = 0; i < n; i++) { // in order, so that defaults can use earlier parameters
        struct jv v = jv_missing();
        given[i] = i < args->n_pos;
        if (given[i]) {
            v = args->pos[i];
        } else if (!jv_undefined_hint(rt, "a parameter was not provided", &v)) {
            return false;
        }
        if (!jframe_set(rt, frame, sig->syms[i], v)) {
            return false;
        }
    }
    for (size_t k = 0; k < args->n_kw; k++) {
        const struct jkwarg *kw = &args->kw[k];
        size_t i = args->n_pos;
        while (i < n && !(sig->names[i]->n_bytes == kw->name->n_bytes &&
                          memcmp(sig->names[i]->s, kw->name->s, kw->name->n_bytes) == 0)) {
            i++;
        }
        if (i < n) {
            given[i] = true;
            if (!jframe_set(rt, frame, sig->syms[i], kw->value)) {
                return false;
            }
        } else if (sig->uses_caller && js_is(kw->name, "caller")) {
            *caller = kw->value;
        } else if (!jd_set(rt, rest, jv_str(kw->name), kw->value)) {
            return false;
        }
    }
    return true;
}

/* caller, kwargs and varargs exist in macros that mention them; in others, such arguments are an
 * error. */
static bool bind_special(struct jrt *rt, const struct jmacro *m, const struct jargs *args,
                         struct jframe *frame, struct jdict *rest, struct jv caller)
{
    const struct jsignature *sig = m->sig;
    size_t n = (size_t)sig->n;
    if (sig->uses_caller) {
        bool none = !jv_is_given(caller) || caller.type == JV_NONE;
        if ((none && !jv_undefined_hint(rt, "No caller defined", &caller)) ||
            !jframe_set(rt, frame, m->t->sym_caller, caller)) {
            return false;
        }
    }
    if (sig->uses_kwargs) {
        if (!jframe_set(rt, frame, m->t->sym_kwargs, jv_dict(rest))) {
            return false;
        }
    } else if (rest->n > 0) {
        const struct jstr *name = rest->e[0].key.u.s;
        return jrt_fail(rt, "TypeError", "macro takes no keyword argument '%.*s'",
                        name->n_bytes < 100 ? (int)name->n_bytes : 100, name->s);
    }
    if (!sig->uses_varargs) {
        return args->n_pos <= n ||
               jrt_fail(rt, "TypeError", "macro '%.*s' takes not more than %zu argument(s)",
                        m->name ? (int)m->name->n_bytes : 6, m->name ? m->name->s : "caller", n);
    }
    struct jlist *l = jlist_new(rt, 0);
    if (l && args->n_pos > n) {
        *l = (struct jlist){.items = (struct jv *)args->pos + n, .n = args->n_pos - n};
    }
    return l && jframe_set(rt, frame, m->t->sym_varargs, jv_tuple(l));
}

/* Defaults are evaluated in the macro's frame, after all given arguments are bound. */
static bool bind_defaults(struct jrt *rt, const struct jsignature *sig, struct jframe *frame,
                          const bool *given)
{
    for (int i = 0; i < sig->n; i++) {
        struct jv v;
        if (given[i]) {
            continue;
        }
        if (sig->defaults[i] ? !jinja_eval(rt, sig->defaults[i], &v)
                             : !jv_undefined(rt, jv_missing(), jv_str(sig->names[i]), &v)) {
            return false;
        }
        if (!jframe_set(rt, frame, sig->syms[i], v)) {
            return false;
        }
    }
    return true;
}

/* Binds in Jinja2's order: arguments, then caller, kwargs and varargs, then defaults. */
static bool bind_macro(struct jrt *rt, const struct jmacro *m, const struct jargs *args,
                       struct jframe *frame)
{
    struct jv caller = jv_missing();
    struct jdict *rest = jd_new(rt);
    bool *given = jrt_alloc(rt, (size_t)m->sig->n + 1, sizeof *given);
    return rest && given && bind_given(rt, m, args, frame, given, rest, &caller) &&
           bind_special(rt, m, args, frame, rest, caller) &&
           bind_defaults(rt, m->sig, frame, given);
}

/* A macro writes to an output of its own, which is its result. Its frame is nested in the scope
 * where it was defined. */
bool jmacro_call(struct jrt *rt, const struct jmacro *m, const struct jargs *args, struct jv *out)
{
    struct jframe *frame = jframe_new(rt, m->closure), *outer_frame = rt->frame;
    if (!frame || !jinja_enter(rt)) {
        return false;
    }
    struct jsb b, *outer = rt->out;
    bool ok = jcall_enter(rt);
    jsb_init(&b, rt);
    rt->out = &b;
    rt->frame = frame;
    ok = ok && bind_macro(rt, m, args, frame) && jframe_hide(rt, frame, &m->node->hidden) &&
         jinja_exec(rt, m->node->kids, m->node->n_kids) != FLOW_FAIL;
    rt->out = outer;
    rt->frame = outer_frame;
    rt->calls--;
    jinja_leave(rt);
    struct jstr *s = ok ? jsb_done(&b) : NULL;
    *out = jv_str(s);
    out->flag = rt->autoescape ? JV_MARKUP : 0;
    return s != NULL;
}

/* name NULL: the body of a call block. */
bool jmacro_make(struct jrt *rt, const struct jnode *n, struct jstr *name, struct jv *out)
{
    struct jmacro *m = jrt_alloc(rt, 1, sizeof *m);
    if (m) {
        *m = (struct jmacro){.t = rt->t,
                             .node = n,
                             .sig = n->sig,
                             .name = name,
                             .closure = rt->frame,
                             .autoescape = rt->autoescape};
    }
    *out = (struct jv){.type = JV_MACRO, .u.macro = m};
    return m != NULL;
}
