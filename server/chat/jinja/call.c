// SPDX-License-Identifier: Apache-2.0
/* Calls: evaluates arguments (including * and **) and calls any callable. bind.c binds the
 * arguments of filters, tests and methods. */
#include "server/chat/jinja/eval.h"

#include <string.h>

/* Adds the items of a ** argument to the named ones; a name that is given twice is an error. */
static bool spread_mapping(struct jrt *rt, struct jv v, struct jkwarg *kw, size_t *n)
{
    const struct jdict *d = v.u.dict;
    for (size_t i = 0; i < d->n; i++) {
        if (d->e[i].key.type != JV_STR) {
            return jrt_fail(rt, "TypeError", "keywords must be strings");
        }
        for (size_t k = 0; k < *n; k++) {
            bool same;
            if (!js_flat(rt, d->e[i].key.u.s) ||
                !jv_equal(rt, d->e[i].key, jv_str(kw[k].name), &same)) {
                return false;
            }
            if (same) {
                return jrt_fail(rt, "TypeError", "got multiple values for keyword argument");
            }
        }
        kw[(*n)++] = (struct jkwarg){.name = d->e[i].key.u.s, .value = d->e[i].value};
    }
    return true;
}

/* Evaluates the operands of * and **, each once. */
static bool eval_stars(struct jrt *rt, const struct jcall_node *call, struct jlist **star,
                       struct jv *star2)
{
    struct jv v;
    if (call->star) {
        if (!jinja_eval(rt, call->star, &v)) {
            return false;
        }
        if (!jv_is_iterable(v)) {
            return jrt_fail(rt, "TypeError", "argument after * must be an iterable, not %s",
                            jv_type_name(v));
        }
        if (!jv_collect(rt, v, star)) {
            return false;
        }
    }
    *star2 = jv_none();
    if (call->star2) {
        if (!jinja_eval(rt, call->star2, star2)) {
            return false;
        }
        if (star2->type != JV_DICT) {
            if (star2->type == JV_UNDEFINED) {
                return jv_fail_undefined(rt, *star2);
            }
            return jrt_fail(rt, "TypeError", "argument after ** must be a mapping, not %s",
                            jv_type_name(*star2));
        }
    }
    return true;
}

/* Evaluates arguments in the order of the source. Calls without arguments, the common case,
 * allocate nothing. */
bool jinja_eval_args(struct jrt *rt, const struct jcall_node *call, struct jargs *args)
{
    *args = (struct jargs){0};
    struct jlist *star = NULL;
    struct jv star2 = jv_none();
    size_t n_pos = (size_t)call->n_pos, n_kw = (size_t)call->n_kw;
    if (n_pos + n_kw == 0 && !call->star && !call->star2) {
        return true;
    }
    struct jv *pos = n_pos > 0 ? jrt_alloc(rt, n_pos, sizeof *pos) : NULL;
    for (size_t i = 0; i < n_pos; i++) {
        if (!pos || !jinja_eval(rt, call->pos[i], &pos[i])) {
            return false;
        }
    }
    struct jkwarg *kw = n_kw > 0 ? jrt_alloc(rt, n_kw, sizeof *kw) : NULL;
    for (size_t i = 0; i < n_kw; i++) {
        if (!kw || !jinja_eval(rt, call->kw[i].value, &kw[i].value)) {
            return false;
        }
        kw[i].name = call->kw[i].name;
    }
    if (!eval_stars(rt, call, &star, &star2)) {
        return false;
    }
    if (star) {
        struct jlist *l = jlist_new(rt, n_pos + star->n);
        if (!l) {
            return false;
        }
        memcpy(l->items, pos ? pos : star->items, n_pos * sizeof *pos);
        memcpy(l->items + n_pos, star->items ? star->items : l->items, star->n * sizeof *pos);
        pos = l->items;
        n_pos += star->n;
    }
    if (star2.type == JV_DICT && star2.u.dict->n > 0) {
        struct jkwarg *wider = jrt_alloc(rt, n_kw + star2.u.dict->n, sizeof *wider);
        if (!wider) {
            return false;
        }
        if (n_kw > 0) {
            memcpy(wider, kw, n_kw * sizeof *kw);
        }
        kw = wider;
        if (!spread_mapping(rt, star2, kw, &n_kw)) {
            return false;
        }
    }
    *args = (struct jargs){.pos = pos, .n_pos = n_pos, .kw = kw, .n_kw = n_kw};
    return true;
}

static bool joiner_call(struct jrt *rt, struct jjoiner *j, const struct jargs *args, struct jv *out)
{
    if (args->n_pos + args->n_kw > 0) {
        return jrt_fail(rt, "TypeError", "Joiner takes no arguments");
    }
    *out = j->used ? j->sep : jv_str(js_lit(rt, ""));
    j->used = true;
    return rt->st == OK;
}

bool jinja_call(struct jrt *rt, struct jv callee, const struct jargs *args, struct jv *out)
{
    switch (callee.type) {
    case JV_MACRO: return jmacro_call(rt, callee.u.macro, args, out);
    case JV_FUNC: return callee.u.func->run(rt, args, out);
    case JV_METHOD:
        return jinja_run_method(rt, callee.u.method->m, callee.u.method->self, args, out);
    case JV_JOINER: return joiner_call(rt, callee.u.joiner, args, out);
    case JV_LOOP: return jinja_loop_call(rt, callee.u.loop, args, out);
    case JV_UNDEFINED: return jv_fail_undefined(rt, callee);
    default: return jrt_fail(rt, "TypeError", "'%s' object is not callable", jv_type_name(callee));
    }
}
