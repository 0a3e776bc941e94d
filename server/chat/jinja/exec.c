// SPDX-License-Identifier: Apache-2.0
/* Executes statements: assignment, loops, output, blocks. Expressions: eval.c; macros: macro.c. */
#include "server/chat/jinja/eval.h"

#include <string.h>

static enum jflow exec_one(struct jrt *rt, const struct jnode *n);

/* Runs statements until one breaks out of the loop, continues it, or fails. */
enum jflow jinja_exec(struct jrt *rt, struct jnode *const *body, int n)
{
    for (int i = 0; i < n; i++) {
        enum jflow flow = exec_one(rt, body[i]);
        if (flow != FLOW_NEXT) {
            return flow;
        }
    }
    return FLOW_NEXT;
}

static enum jflow next_if(bool ok)
{
    return ok ? FLOW_NEXT : FLOW_FAIL;
}

/* ---- assignment ---- */

static bool assign(struct jrt *rt, struct jframe *frame, const struct jnode *target, struct jv v);

/* Unpacks like Python: the number of items must match exactly. */
static bool assign_tuple(struct jrt *rt, struct jframe *frame, const struct jnode *target,
                         struct jv v)
{
    if (!jv_is_iterable(v)) {
        return jrt_fail(rt, "TypeError", "cannot unpack non-iterable %s object", jv_type_name(v));
    }
    struct jlist *l;
    if (v.type == JV_TUPLE || v.type == JV_LIST) {
        l = v.u.list;
    } else if (!jv_collect(rt, v, &l)) {
        return false;
    }
    if (l->n != (size_t)target->n_kids) {
        if (l->n > (size_t)target->n_kids) {
            return jrt_fail(rt, "ValueError", "too many values to unpack (expected %d)",
                            target->n_kids);
        }
        return jrt_fail(rt, "ValueError", "not enough values to unpack (expected %d, got %zu)",
                        target->n_kids, l->n);
    }
    for (int i = 0; i < target->n_kids; i++) {
        if (!assign(rt, frame, target->kids[i], l->items[i])) {
            return false;
        }
    }
    return true;
}

/* target: a name, a tuple of targets, or an attribute of a namespace, the only object that
 * assignment may change. */
static bool assign(struct jrt *rt, struct jframe *frame, const struct jnode *target, struct jv v)
{
    if (target->kind == N_NAME) {
        return jframe_set(rt, frame, target->sym, v);
    }
    if (target->kind == N_TUPLE) {
        if (!jinja_enter(rt)) {
            return false;
        }
        bool ok = assign_tuple(rt, frame, target, v);
        jinja_leave(rt);
        return ok;
    }
    struct jv ns = jscope_get(rt, target->sym);
    if (ns.type != JV_NAMESPACE) {
        return jrt_fail(rt, "TemplateRuntimeError",
                        "cannot assign attribute on non-namespace object");
    }
    return jd_set(rt, ns.u.dict, target->value, v);
}

/* ---- loops ---- */

/* `for x in over if test`: collects the items that pass the test, like a generator would. */
static bool filter_items(struct jrt *rt, const struct jnode *n, struct jv over, struct jv *out)
{
    struct jwalk w;
    struct jlist *kept = jlist_new(rt, 0);
    struct jframe *frame = kept ? jframe_new(rt, rt->frame) : NULL;
    struct jv item, yes;
    if (!frame || !jwalk_init(rt, over, &w)) {
        return false;
    }
    struct jframe *outer = rt->frame;
    int more;
    bool ok = true;
    while (ok && (more = jwalk_next(rt, &w, &item)) > 0) {
        frame->n = 0;
        ok = assign(rt, frame, n->a, item);
        rt->frame = frame;
        ok = ok && jinja_eval(rt, n->c, &yes) && (!jv_truth(yes) || jlist_push(rt, kept, item));
        rt->frame = outer;
    }
    *out = jv_list(kept);
    return ok && more >= 0;
}

/* Assigns an item to the loop's target, usually a single name, in its empty frame. */
static bool set_item(struct jrt *rt, struct jframe *frame, const struct jnode *target, struct jv v)
{
    if (target->kind != N_NAME || frame->cap == 0) {
        return assign(rt, frame, target, v);
    }
    frame->b[0] = (struct jbinding){.sym = target->sym, .value = v};
    frame->n = 1;
    return true;
}

/* Each iteration begins with an empty frame, so assignments in the body do not survive it, as in
 * Jinja2. `loop` is bound only if the body uses it (n->op). `else` runs if no iteration ran to its
 * end, for example because the first one had a break. */
static enum jflow run_loop(struct jrt *rt, const struct jnode *n, struct jloop *l)
{
    struct jframe *outer = rt->frame;
    struct jframe *frame = jframe_new(rt, outer);
    bool any = false; // an iteration ran to its end, so `else` does not run
    if (!frame || !jwalk_init(rt, l->over, &l->walk)) {
        return FLOW_FAIL;
    }
    enum jflow flow = FLOW_NEXT;
    struct jv item;
    int more;
    while (flow == FLOW_NEXT && (more = jloop_pull(rt, l, &item)) != 0) {
        if (more < 0 || !jrt_step(rt)) {
            return FLOW_FAIL;
        }
        l->index0++;
        l->before = l->current;
        l->current = item;
        frame->n = 0;
        if (!set_item(rt, frame, n->a, item) || !jframe_hide(rt, frame, &n->hidden) ||
            (n->op &&
             !jframe_set(rt, frame, rt->t->sym_loop, (struct jv){.type = JV_LOOP, .u.loop = l}))) {
            return FLOW_FAIL;
        }
        rt->frame = frame;
        flow = jinja_exec(rt, n->kids, n->n_kids);
        rt->frame = outer;
        any |= flow == FLOW_NEXT;
        if (flow == FLOW_CONTINUE) {
            flow = FLOW_NEXT;
        }
    }
    if (flow == FLOW_FAIL) {
        return FLOW_FAIL;
    }
    if (any || n->n_more == 0) {
        return FLOW_NEXT;
    }
    rt->frame = jframe_new(rt, outer);
    flow = rt->frame ? jinja_exec(rt, n->more, n->n_more) : FLOW_FAIL;
    rt->frame = outer;
    return flow;
}

/* depth0: the number of enclosing calls of a recursive loop. */
static bool start_loop(struct jrt *rt, const struct jnode *n, struct jv over, int64_t depth0,
                       struct jloop **out)
{
    if (!jv_is_iterable(over)) {
        return jrt_fail(rt, "TypeError", "'%s' object is not iterable", jv_type_name(over));
    }
    struct jloop *l = jrt_alloc(rt, 1, sizeof *l);
    if (!l || (n->c && !filter_items(rt, n, over, &over))) {
        return false;
    }
    *l = (struct jloop){.over = over,
                        .index0 = -1,
                        .length = -1,
                        .depth0 = depth0,
                        .recursive = n->flag ? n : NULL,
                        .frame = rt->frame};
    *out = l;
    return true;
}

static enum jflow exec_for(struct jrt *rt, const struct jnode *n)
{
    struct jv over;
    struct jloop *l;
    if (!jinja_eval(rt, n->b, &over) || !start_loop(rt, n, over, 0, &l)) {
        return FLOW_FAIL;
    }
    return run_loop(rt, n, l);
}

/* loop(items) in a recursive loop: runs the body again and returns its output as a string. */
bool jinja_loop_call(struct jrt *rt, struct jloop *loop, const struct jargs *args, struct jv *out)
{
    if (!loop->recursive) {
        return jrt_fail(rt, "TypeError",
                        "The loop must have the 'recursive' marker to be called "
                        "recursively.");
    }
    struct jv over;
    struct jloop *inner;
    if (!jargs_bind(rt, "loop", args, "iterable", 1, &over) || !jcall_enter(rt)) {
        return false;
    }
    struct jframe *frame = rt->frame;
    struct jsb b, *outer = rt->out;
    jsb_init(&b, rt);
    rt->out = &b;
    rt->frame = loop->frame;
    bool ok = start_loop(rt, loop->recursive, over, loop->depth0 + 1, &inner) &&
              run_loop(rt, loop->recursive, inner) != FLOW_FAIL;
    rt->frame = frame;
    rt->out = outer;
    rt->calls--;
    struct jstr *s = ok ? jsb_done(&b) : NULL;
    *out = jv_str(s);
    out->flag = rt->autoescape ? JV_MARKUP : 0;
    return s != NULL;
}

/* ---- macros (macro.c) and output ---- */

static enum jflow exec_macro(struct jrt *rt, const struct jnode *n)
{
    struct jv m;
    return next_if(jmacro_make(rt, n, n->value.u.s, &m) && jframe_set(rt, rt->frame, n->sym, m));
}

static bool print_value(struct jrt *rt, struct jv v)
{
    // With autoescape on, output is escaped.
    if (rt->autoescape && !jinja_escape(rt, v, &v)) {
        return false;
    }
    return jv_put_str(rt->out, v);
}

/* {% call f(args) %}: the body becomes a macro, which is passed to f as the argument `caller`. */
static enum jflow exec_call_block(struct jrt *rt, const struct jnode *n)
{
    struct jv caller, callee, result;
    struct jargs args;
    if (!jinja_eval(rt, n->a->a, &callee) || !jinja_eval_args(rt, n->a->call, &args) ||
        !jmacro_make(rt, n, NULL, &caller)) {
        return FLOW_FAIL;
    }
    struct jkwarg *kw = jrt_alloc(rt, args.n_kw + 1, sizeof *kw);
    struct jstr *name = js_lit(rt, "caller");
    if (!kw || !name) {
        return FLOW_FAIL;
    }
    if (args.n_kw > 0) {
        memcpy(kw, args.kw, args.n_kw * sizeof *kw);
    }
    kw[args.n_kw++] = (struct jkwarg){.name = name, .value = caller};
    args.kw = kw;
    return next_if(jinja_call(rt, callee, &args, &result) && print_value(rt, result));
}

/* ---- blocks ---- */

/* Runs a node's body in the frame just created for it (NULL if that failed). */
static enum jflow run_inner(struct jrt *rt, const struct jnode *n)
{
    if (rt->frame && jframe_hide(rt, rt->frame, &n->hidden)) {
        return jinja_exec(rt, n->kids, n->n_kids);
    }
    return FLOW_FAIL;
}

/* The output of a node's body as a value, in its own scope. */
static enum jflow capture(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jsb b, *outer = rt->out;
    struct jframe *outer_frame = rt->frame;
    rt->frame = jframe_new(rt, outer_frame);
    jsb_init(&b, rt);
    rt->out = &b;
    enum jflow flow = run_inner(rt, n);
    rt->out = outer;
    rt->frame = outer_frame;
    if (flow != FLOW_NEXT) {
        return flow; // after a break the text so far is kept, as in Python
    }
    struct jstr *s = jsb_done(&b);
    *out = jv_str(s);
    out->flag = rt->autoescape ? JV_MARKUP : 0;
    return next_if(s != NULL);
}

/* Applies a block's filters, innermost first, starting with `v`. */
static bool apply_filters(struct jrt *rt, const struct jnode *filter, struct jv v, struct jv *out)
{
    if (filter->a && filter->a->kind == N_FILTER) {
        if (!jinja_enter(rt)) {
            return false;
        }
        bool ok = apply_filters(rt, filter->a, v, &v);
        jinja_leave(rt);
        if (!ok) {
            return false;
        }
    }
    struct jargs args;
    if (!filter->filter) {
        return jrt_fail(rt, "TemplateRuntimeError", "No filter named '%.*s' found.",
                        (int)filter->value.u.s->n_bytes, filter->value.u.s->s);
    }
    return jinja_eval_args(rt, filter->call, &args) &&
           jinja_run_filter(rt, filter->filter, v, &args, out);
}

static enum jflow exec_filter_block(struct jrt *rt, const struct jnode *n)
{
    struct jv v;
    enum jflow flow = capture(rt, n, &v);
    if (flow != FLOW_NEXT) {
        return flow;
    }
    return next_if(apply_filters(rt, n->a, v, &v) && print_value(rt, v));
}

static enum jflow exec_set_block(struct jrt *rt, const struct jnode *n)
{
    struct jv v;
    enum jflow flow = capture(rt, n, &v);
    if (flow != FLOW_NEXT) {
        return flow;
    }
    return next_if((!n->b || apply_filters(rt, n->b, v, &v)) && assign(rt, rt->frame, n->a, v));
}

/* {% with a = 1, b = a %}: here b gets the value of the outer a. */
static enum jflow exec_with(struct jrt *rt, const struct jnode *n)
{
    struct jframe *outer = rt->frame, *frame = jframe_new(rt, outer);
    if (!frame) {
        return FLOW_FAIL;
    }
    for (int i = 0; i + 1 < n->n_more; i += 2) { // values are evaluated outside the new scope
        struct jv v;
        if (!jinja_eval(rt, n->more[i + 1], &v) || !assign(rt, frame, n->more[i], v)) {
            return FLOW_FAIL;
        }
    }
    rt->frame = frame;
    enum jflow flow = run_inner(rt, n);
    rt->frame = outer;
    return flow;
}

/* The setting applies while the body runs, including to macros called in it. */
static enum jflow exec_autoescape(struct jrt *rt, const struct jnode *n)
{
    struct jv v;
    struct jframe *outer = rt->frame;
    if (!jinja_eval(rt, n->a, &v) || !(rt->frame = jframe_new(rt, outer))) {
        return FLOW_FAIL;
    }
    bool before = rt->autoescape;
    rt->autoescape = jv_truth(v);
    enum jflow flow = run_inner(rt, n);
    rt->autoescape = before;
    rt->frame = outer;
    return flow;
}

/* A block sees only the render's variables, or if it is `scoped` also its enclosing scope. */
static enum jflow exec_block(struct jrt *rt, const struct jnode *n)
{
    struct jframe *outer = rt->frame;
    rt->frame = jframe_new(rt, n->flag ? outer : NULL);
    enum jflow flow = run_inner(rt, n);
    rt->frame = outer;
    return flow;
}

/* {% generation %} marks assistant text for training; here it is printed unchanged. */
static enum jflow exec_generation(struct jrt *rt, const struct jnode *n)
{
    struct jv v;
    enum jflow flow = capture(rt, n, &v);
    if (flow == FLOW_NEXT) {
        return next_if(print_value(rt, v));
    }
    return flow;
}

/* An elif is the only statement of the preceding else, so no recursion is needed for it. */
static enum jflow exec_if(struct jrt *rt, const struct jnode *n)
{
    for (;;) {
        struct jv test;
        if (!jinja_eval(rt, n->a, &test)) {
            return FLOW_FAIL;
        }
        if (jv_truth(test)) {
            return jinja_exec(rt, n->kids, n->n_kids);
        }
        if (n->n_more != 1 || n->more[0]->kind != N_IF) {
            return jinja_exec(rt, n->more, n->n_more);
        }
        n = n->more[0];
        if (!jrt_step(rt)) {
            return FLOW_FAIL;
        }
    }
}

/* Executes one statement; exec_one has counted its depth. Statements that need a loader fail
 * here. */
static enum jflow exec_inner(struct jrt *rt, const struct jnode *n)
{
    struct jv v;
    switch (n->kind) {
    case N_PRINT: return next_if(jinja_eval(rt, n->a, &v) && print_value(rt, v));
    case N_IF: return exec_if(rt, n);
    case N_FOR: return exec_for(rt, n);
    case N_SET: return next_if(jinja_eval(rt, n->b, &v) && assign(rt, rt->frame, n->a, v));
    case N_SET_BLOCK: return exec_set_block(rt, n);
    case N_MACRO: return exec_macro(rt, n);
    case N_CALL_BLOCK: return exec_call_block(rt, n);
    case N_FILTER_BLOCK: return exec_filter_block(rt, n);
    case N_WITH: return exec_with(rt, n);
    case N_AUTOESCAPE: return exec_autoescape(rt, n);
    case N_BLOCK: return exec_block(rt, n);
    case N_GENERATION: return exec_generation(rt, n);
    case N_BREAK: return FLOW_BREAK;
    case N_CONTINUE: return FLOW_CONTINUE;
    default: return next_if(jrt_fail(rt, "TypeError", "no loader for this environment specified"));
    }
}

static enum jflow exec_one(struct jrt *rt, const struct jnode *n)
{
    if (n->kind == N_DATA) {
        jsb_put(rt->out, n->value.u.s->s, n->value.u.s->n_bytes, false);
        return next_if(!rt->out->failed && jrt_step(rt));
    }
    if (!jinja_enter(rt)) {
        return FLOW_FAIL;
    }
    enum jflow flow = exec_inner(rt, n);
    jinja_leave(rt);
    return flow;
}
