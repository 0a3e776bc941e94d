// SPDX-License-Identifier: Apache-2.0
/* Evaluates expressions, and manages the scopes in which names are found. Operators: ops.c; calls:
 * call.c. */
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"

#include <string.h>

/* ---- scopes ---- */

/* A frame binds the names of one scope: the body of a loop, a macro, a block. Frames have
 * few bindings, so a search from the innermost frame outwards is faster than a table, and
 * names are compared by symbol. */
struct jframe *jframe_new(struct jrt *rt, struct jframe *parent)
{
    struct jframe *f = jrt_alloc(rt, 1, sizeof *f);
    if (f) {
        f->parent = parent;
    }
    return f;
}

/* Binds a name in a frame; f NULL: in the render's variables, which have one slot for each
 * symbol. */
bool jframe_set(struct jrt *rt, struct jframe *f, int sym, struct jv v)
{
    if (!f) {
        rt->vars[sym] = v;
        return true;
    }
    for (int i = 0; i < f->n; i++) {
        if (f->b[i].sym == sym) {
            f->b[i].value = v;
            return true;
        }
    }
    if (f->n == f->cap) {
        int cap = f->cap ? f->cap * 2 : 4;
        struct jbinding *wider = jrt_alloc(rt, (size_t)cap, sizeof *wider);
        if (!wider) {
            return false;
        }
        if (f->n > 0) {
            memcpy(wider, f->b, (size_t)f->n * sizeof *wider);
        }
        f->b = wider;
        f->cap = cap;
    }
    f->b[f->n++] = (struct jbinding){.sym = sym, .value = v};
    return true;
}

/* Binds to undefined values the names that scope.c found to be hidden, so that a lookup does not
 * continue in outer scopes. */
bool jframe_hide(struct jrt *rt, struct jframe *f, const struct jhidden *hidden)
{
    for (int i = 0; i < hidden->n; i++) {
        struct jv v, name = jv_str(rt->t->names.names[hidden->syms[i]]);
        bool unbound = f || jv_is_given(rt->vars[hidden->syms[i]]);
        if (unbound &&
            (!jv_undefined(rt, jv_missing(), name, &v) || !jframe_set(rt, f, hidden->syms[i], v))) {
            return false;
        }
    }
    return true;
}

/* Finds a name, from the innermost frame outwards. A binding to MISSING is ignored. */
struct jv jscope_get(const struct jrt *rt, int sym)
{
    for (const struct jframe *f = rt->frame; f; f = f->parent) {
        for (int i = 0; i < f->n; i++) {
            if (f->b[i].sym == sym && jv_is_given(f->b[i].value)) {
                return f->b[i].value;
            }
        }
    }
    return rt->vars[sym];
}

/* ---- expressions ---- */

/* A name without a value evaluates to undefined, which is an error only when it is used, as in
 * Jinja2. */
static bool eval_name(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    *out = jscope_get(rt, n->sym);
    return jv_is_given(*out) || jv_undefined(rt, jv_missing(), n->value, out);
}

static bool eval_list(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jlist *l = jlist_new(rt, (size_t)n->n_kids);
    if (!l) {
        return false;
    }
    for (int i = 0; i < n->n_kids; i++) {
        if (!jinja_eval(rt, n->kids[i], &l->items[i])) {
            return false;
        }
    }
    *out = n->kind == N_LIST ? jv_list(l) : jv_tuple(l);
    return true;
}

static bool eval_dict(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jdict *d = jd_new(rt);
    if (!d) {
        return false;
    }
    for (int i = 0; i + 1 < n->n_kids; i += 2) {
        struct jv key, value;
        if (!jinja_eval(rt, n->kids[i], &key) || !jinja_eval(rt, n->kids[i + 1], &value) ||
            !jd_set(rt, d, key, value)) {
            return false;
        }
    }
    *out = jv_dict(d);
    return true;
}

/* a if b else c. If the else is missing, its value is an undefined whose message says so. */
static bool eval_cond(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jv test;
    if (!jinja_eval(rt, n->b, &test)) {
        return false;
    }
    if (jv_truth(test)) {
        return jinja_eval(rt, n->a, out);
    }
    if (n->c) {
        return jinja_eval(rt, n->c, out);
    }
    return jv_undefined_hint(rt,
                             "the inline if-expression evaluated to false and no else section "
                             "was defined.",
                             out);
}

/* The ~ operator over all its operands. With autoescape the result is Markup, and operands that are
 * not Markup are escaped. */
static bool eval_concat(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jstr *s = NULL;
    bool markup = false;
    for (int i = 0; i < n->n_kids; i++) {
        struct jv v;
        if (!jinja_eval(rt, n->kids[i], &v)) {
            return false;
        }
        if (rt->autoescape) {
            if (!jinja_escape(rt, v, &v)) {
                return false;
            }
            markup = true;
        }
        struct jstr *part;
        if (v.type == JV_STR) {
            part = v.u.s; // lazy concatenations stay lazy
        } else if (!jv_to_str(rt, v, &part)) {
            return false;
        }
        s = s ? js_concat(rt, s, part) : part;
        if (!s) {
            return false;
        }
    }
    *out = s ? jv_str(s) : jv_str(js_lit(rt, ""));
    out->flag = markup ? JV_MARKUP : 0;
    return out->u.s != NULL;
}

static bool compare_once(struct jrt *rt, int op, struct jv a, struct jv b, bool *out)
{
    switch (op) {
    case JC_EQ:
    case JC_NE:
        if (!jv_equal(rt, a, b, out)) {
            return false;
        }
        *out = *out == (op == JC_EQ);
        return true;
    case JC_LT: return jv_compare(rt, a, b, JV_LT, out);
    case JC_LE: return jv_compare(rt, a, b, JV_LE, out);
    case JC_GT: return jv_compare(rt, a, b, JV_GT, out);
    case JC_GE: return jv_compare(rt, a, b, JV_GE, out);
    default:
        if (!jv_contains(rt, b, a, out)) {
            return false;
        }
        *out = *out == (op == JC_IN);
        return true;
    }
}

/* Fast path for the most common comparisons: a string with a short string, or with a value that is
 * not a string. False if the general code must decide. */
static bool compare_text(struct jv a, struct jv b, bool *equal)
{
    if (a.type != JV_STR || b.type != JV_STR) {
        *equal = false;
        return a.type == JV_STR || b.type == JV_STR;
    }
    const struct jstr *x = a.u.s, *y = b.u.s;
    *equal = x->n_bytes == y->n_bytes && x->s && y->s && memcmp(x->s, y->s, x->n_bytes) == 0;
    return x->n_bytes != y->n_bytes || (x->s && y->s && x->n_bytes < 256);
}

/* A chain such as a < b < c evaluates each operand once and stops at the first false
 * comparison. */
static bool eval_compare(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jv left, right;
    if (!jinja_eval(rt, n->a, &left)) {
        return false;
    }
    bool ok = true;
    if (n->n_kids == 1 && n->kids[0]->op <= JC_NE && n->kids[0]->a->kind == N_CONST &&
        compare_text(left, n->kids[0]->a->value, &ok)) {
        *out = jv_bool(ok == (n->kids[0]->op == JC_EQ));
        return jrt_step(rt);
    }
    ok = true;
    for (int i = 0; ok && i < n->n_kids; i++) {
        if (!jinja_eval(rt, n->kids[i]->a, &right) ||
            !compare_once(rt, n->kids[i]->op, left, right, &ok)) {
            return false;
        }
        left = right;
    }
    *out = jv_bool(ok);
    return true;
}

static bool eval_sign(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jv v;
    if (!jinja_eval(rt, n->a, &v)) {
        return false;
    }
    if (v.type == JV_UNDEFINED) {
        return jv_fail_undefined(rt, v);
    }
    if (!jv_is_integer(v) && v.type != JV_FLOAT) {
        return jrt_fail(rt, "TypeError", "bad operand type for unary %c: '%s'",
                        n->kind == N_NEG ? '-' : '+', jv_type_name(v));
    }
    if (n->kind == N_NEG) {
        return jnum_negate(rt, v, out);
    }
    *out = v.type == JV_BOOL ? jv_int(v.u.b) : v;
    return true;
}

/* n's kids are start, stop and step; NULL if left out. */
static bool eval_slice(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jv obj, part[3];
    if (!jinja_eval(rt, n->a, &obj)) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        part[i] = jv_missing();
        if (n->kids[i] && !jinja_eval(rt, n->kids[i], &part[i])) {
            return false;
        }
    }
    return jinja_slice(rt, obj, part, out);
}

/* ---- calls (call.c), filters, tests ---- */

/* obj.method(args) is looked up and called directly, without a bound method in between.
 * Methods that would change their object are forbidden: jinja_attr gives an error that says so. */
static bool eval_call(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jargs args;
    struct jv callee;
    const struct jnode *on = n->a;
    if (on->kind == N_ATTR && on->methods) { // avoids creating a bound method
        struct jv self;
        if (!jinja_eval(rt, on->a, &self)) {
            return false;
        }
        const struct jinja_method *m;
        if (self.type == JV_NAMESPACE || self.type == JV_UNDEFINED) {
            m = NULL;
        } else {
            m = jinja_method_for(on->methods, self);
        }
        const struct jstr *name = on->value.u.s;
        if (m && !jinja_is_mutator(self, name->s, name->n_bytes)) {
            return jinja_eval_args(rt, n->call, &args) && jinja_run_method(rt, m, self, &args, out);
        }
        if (!jinja_attr(rt, self, on->value.u.s, on->methods, &callee)) {
            return false;
        }
    } else if (!jinja_eval(rt, on, &callee)) {
        return false;
    }
    return jinja_eval_args(rt, n->call, &args) && jinja_call(rt, callee, &args, out);
}

static bool unknown(struct jrt *rt, const char *what, const struct jnode *n)
{
    return jrt_fail(rt, "TemplateRuntimeError", "No %s named '%.*s' found.", what,
                    (int)n->value.u.s->n_bytes, n->value.u.s->s);
}

static bool eval_filter(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jv v;
    struct jargs args;
    if (!n->filter) {
        return unknown(rt, "filter", n);
    }
    return jinja_eval(rt, n->a, &v) && jinja_eval_args(rt, n->call, &args) &&
           jinja_run_filter(rt, n->filter, v, &args, out);
}

static bool eval_test(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jv v;
    struct jargs args;
    bool yes = false;
    if (!n->test) {
        return unknown(rt, "test", n);
    }
    if (!jinja_eval(rt, n->a, &v) || !jinja_eval_args(rt, n->call, &args) ||
        !jinja_run_test(rt, n->test, v, &args, &yes)) {
        return false;
    }
    *out = jv_bool(yes);
    return true;
}

/* `and` and `or` give an operand, not a bool. */
static bool eval_logic(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    if (!jinja_eval(rt, n->a, out)) {
        return false;
    }
    if (jv_truth(*out) == (n->kind == N_OR)) {
        return true;
    }
    return jinja_eval(rt, n->b, out);
}

/* Evaluates one node; jinja_eval has counted its depth. */
static bool eval_inner(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    struct jv a, b;
    switch (n->kind) {
    case N_TUPLE:
    case N_LIST: return eval_list(rt, n, out);
    case N_DICT: return eval_dict(rt, n, out);
    case N_COND: return eval_cond(rt, n, out);
    case N_AND:
    case N_OR: return eval_logic(rt, n, out);
    case N_NOT:
        if (!jinja_eval(rt, n->a, &a)) {
            return false;
        }
        *out = jv_bool(!jv_truth(a));
        return true;
    case N_NEG:
    case N_POS: return eval_sign(rt, n, out);
    case N_BINARY:
        return jinja_eval(rt, n->a, &a) && jinja_eval(rt, n->b, &b) &&
               jinja_binary(rt, n->op, a, b, out);
    case N_CONCAT: return eval_concat(rt, n, out);
    case N_COMPARE: return eval_compare(rt, n, out);
    case N_ATTR:
        return jinja_eval(rt, n->a, &a) && jinja_attr(rt, a, n->value.u.s, n->methods, out);
    case N_ITEM:
        if (n->b->kind == N_CONST) {
            return jinja_eval(rt, n->a, &a) &&
                   jinja_item_known(rt, a, n->b->value, n->methods, out);
        }
        return jinja_eval(rt, n->a, &a) && jinja_eval(rt, n->b, &b) && jinja_item(rt, a, b, out);
    case N_SLICE: return eval_slice(rt, n, out);
    case N_CALL: return eval_call(rt, n, out);
    case N_FILTER: return eval_filter(rt, n, out);
    case N_TEST: return eval_test(rt, n, out);
    default: return jrt_fail(rt, "TemplateRuntimeError", "not an expression");
    }
}

/* Evaluates a node, which costs a step. Constants and names are leaves, so their depth is not
 * counted. */
bool jinja_eval(struct jrt *rt, const struct jnode *n, struct jv *out)
{
    if (n->kind == N_CONST) {
        *out = n->value;
        return jrt_step(rt);
    }
    if (n->kind == N_NAME) {
        return jrt_step(rt) && eval_name(rt, n, out);
    }
    if (!jinja_enter(rt)) {
        return false;
    }
    bool ok = eval_inner(rt, n, out);
    jinja_leave(rt);
    return ok;
}
