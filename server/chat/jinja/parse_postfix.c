// SPDX-License-Identifier: Apache-2.0
/* What may follow a value in an expression: calls, subscripts, filters, tests. */
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"
#include "server/chat/jinja/parse.h"

#include <string.h>

/* ---- calls, subscripts, filters, tests ---- */

/* name=value; a name that appears twice is an error at compile time. */
static bool parse_keyword(struct jparser *p, struct jcall_node *call, int *cap)
{
    if (call->n_kw == *cap) {
        *cap = *cap ? *cap * 2 : 4;
        struct jkeyword_node *wider = jrt_alloc(p->rt, (size_t)*cap, sizeof *wider);
        if (!wider) {
            return false;
        }
        if (call->n_kw > 0) {
            memcpy(wider, call->kw, (size_t)call->n_kw * sizeof *wider);
        }
        call->kw = wider;
    }
    struct jkeyword_node *kw = &call->kw[call->n_kw++];
    kw->name = jp_text(p, jp_next(p));
    jp_next(p); // '='
    kw->value = jp_expression(p, true);
    for (int i = 0; kw->value && i < call->n_kw - 1; i++) {
        if (call->kw[i].name->n_bytes == kw->name->n_bytes &&
            memcmp(call->kw[i].name->s, kw->name->s, kw->name->n_bytes) == 0) {
            return jinja_syntax(p->rt, jp_token(p)->line, "keyword argument repeated: %.*s",
                                (int)kw->name->n_bytes, kw->name->s);
        }
    }
    return kw->value != NULL;
}

static bool bad_call(struct jparser *p)
{
    return jinja_syntax(p->rt, jp_token(p)->line, "invalid syntax for function call expression");
}

/* Parses one argument. As in Python, no positional argument may follow * or **, and no * may follow
 * **. */
static bool parse_argument(struct jparser *p, struct jcall_node *call, struct jnodes *pos, int *cap)
{
    if (jp_is_op(p, '*')) {
        jp_next(p);
        if ((!call->star && !call->star2) || bad_call(p)) {
            return (call->star = jp_expression(p, true)) != NULL;
        }
        return false;
    }
    if (jp_is_op(p, JOPCODE('*', '*'))) {
        jp_next(p);
        return (!call->star2 || bad_call(p)) && (call->star2 = jp_expression(p, true)) != NULL;
    }
    const struct jtoken *t = jp_token(p);
    if (t->kind == T_NAME && t[1].kind == T_OP && t[1].op == '=') {
        return (!call->star2 || bad_call(p)) && parse_keyword(p, call, cap);
    }
    if (call->star || call->star2 || call->n_kw > 0) {
        return bad_call(p);
    }
    return jp_push(p, pos, jp_expression(p, true));
}

static struct jcall_node *call_args(struct jparser *p)
{
    struct jcall_node *call = jrt_alloc(p->rt, 1, sizeof *call);
    struct jnodes pos = {0};
    int cap = 0;
    if (!call || !jp_expect_op(p, '(')) {
        return NULL;
    }
    for (bool first = true; !jp_is_op(p, ')'); first = false) {
        if (!first && !jp_expect_op(p, ',')) {
            return NULL;
        }
        if (!first && jp_is_op(p, ')')) {
            break;
        }
        if (!parse_argument(p, call, &pos, &cap)) {
            return NULL;
        }
    }
    call->pos = pos.v;
    call->n_pos = pos.n;
    return jp_expect_op(p, ')') ? call : NULL;
}

static struct jnode *call_expr(struct jparser *p, struct jnode *on)
{
    struct jnode *n = jp_one(p, N_CALL, on);
    if (n) {
        n->call = call_args(p);
    }
    if (n && n->call) {
        return n;
    }
    return NULL;
}

/* One index, or a slice (whose absent parts are NULL). */
static struct jnode *subscribed(struct jparser *p)
{
    struct jnode *part[3] = {NULL, NULL, NULL};
    if (!jp_is_op(p, ':')) {
        part[0] = jp_expression(p, true);
        if (!part[0] || !jp_is_op(p, ':')) {
            return part[0];
        }
    }
    for (int i = 1; i < 3 && jp_skip_op(p, ':'); i++) {
        if (!jp_is_op(p, ':') && !jp_is_op(p, ']') && !jp_is_op(p, ',')) {
            part[i] = jp_expression(p, true);
            if (!part[i]) {
                return NULL;
            }
        }
    }
    struct jnode *n = jp_node(p, N_SLICE);
    struct jnode **kids = jrt_alloc(p->rt, 3, sizeof(struct jnode *));
    if (!n || !kids) {
        return NULL;
    }
    memcpy(kids, part, sizeof part);
    n->kids = kids;
    n->n_kids = 3;
    return n;
}

/* .name, .0 (an item), [index] and [start:stop:step]. Methods of the name are looked up
 * now, once for all renders. */
static struct jnode *subscript(struct jparser *p, struct jnode *on)
{
    if (jp_skip_op(p, '.')) {
        const struct jtoken *t = jp_next(p);
        if (t->kind == T_INT) {
            p->at--;
            return jp_two(p, N_ITEM, on, jp_number(p));
        }
        if (t->kind != T_NAME) {
            jinja_syntax(p->rt, t->line, "expected name or number");
            return NULL;
        }
        struct jnode *n = jp_one(p, N_ATTR, on);
        struct jstr *name = n ? jp_text(p, t) : NULL;
        if (!name) {
            return NULL;
        }
        n->value = jv_str(name);
        n->methods = jinja_methods_find(p->rt, t->s, t->n_bytes);
        return n;
    }
    struct jnodes l = {0};
    jp_next(p);
    while (!jp_is_op(p, ']')) {
        if (l.n > 0 && !jp_expect_op(p, ',')) {
            return NULL;
        }
        if (!jp_push(p, &l, subscribed(p))) {
            return NULL;
        }
    }
    if (!jp_expect_op(p, ']')) {
        return NULL;
    }
    for (int i = 0; l.n > 1 && i < l.n; i++) {
        if (l.v[i]->kind == N_SLICE && !l.v[i]->a) {
            jinja_syntax(p->rt, jp_token(p)->line, "invalid syntax: a slice among indices");
            return NULL;
        }
    }
    struct jnode *index = l.n == 1 ? l.v[0] : jp_with_kids(p, N_TUPLE, &l);
    if (index && index->kind == N_SLICE && !index->a) { // a slice such as [1:2], rather than an
                                                        // index whose value was sliced
        index->a = on;
        return index;
    }
    struct jnode *n = jp_two(p, N_ITEM, on, index);
    if (n && index->kind == N_CONST && index->value.type == JV_STR) {
        n->methods = jinja_methods_find(p->rt, index->value.u.s->s, index->value.u.s->n_bytes);
    }
    return n;
}

struct jnode *jp_postfix(struct jparser *p, struct jnode *n)
{
    while (n) {
        if (jp_is_op(p, '.') || jp_is_op(p, '[')) {
            n = subscript(p, n);
        } else if (jp_is_op(p, '(')) {
            n = call_expr(p, n);
        } else {
            break;
        }
    }
    return n;
}

/* A name, possibly dotted, of a filter or test. */
static struct jstr *dotted_name(struct jparser *p)
{
    struct jsb b;
    jsb_init(&b, p->rt);
    do {
        const struct jtoken *t = jp_expect_name(p);
        if (!t) {
            return NULL;
        }
        if (b.n_bytes > 0) {
            jsb_putc(&b, '.', false);
        }
        jsb_put(&b, t->s, t->n_bytes, false);
    } while (jp_skip_op(p, '.'));
    return jp_settled(jsb_done(&b));
}

/* x|f|g(1): each filter's node has the previous one as its operand. start_inline: the
 * first name has no bar, as in a filter block. An unknown filter is kept as NULL, since it
 * may be in a branch that never runs. */
struct jnode *jp_filters(struct jparser *p, struct jnode *on, bool start_inline)
{
    for (; start_inline || jp_is_op(p, '|'); start_inline = false) {
        if (!start_inline) {
            jp_next(p);
        }
        struct jnode *n = jp_node(p, N_FILTER);
        struct jstr *name = n ? dotted_name(p) : NULL;
        if (!name) {
            return NULL;
        }
        n->a = on;
        n->value = jv_str(name);
        n->filter = jinja_filter_find(p->rt, name->s, name->n_bytes);
        if (jp_is_op(p, '(')) {
            n->call = call_args(p);
        } else {
            n->call = jrt_alloc(p->rt, 1, sizeof *n->call);
        }
        if (!n->call) {
            return NULL;
        }
        on = n;
    }
    return on;
}

/* The argument of a test may be given without parentheses. */
static struct jcall_node *test_args(struct jparser *p)
{
    struct jcall_node *call = jrt_alloc(p->rt, 1, sizeof *call);
    const struct jtoken *t = jp_token(p);
    bool starts = t->kind == T_STRING || t->kind == T_INT || t->kind == T_FLOAT ||
                  jp_is_op(p, '[') || jp_is_op(p, '{') ||
                  (t->kind == T_NAME && !jp_is_name(p, "else") && !jp_is_name(p, "or") &&
                   !jp_is_name(p, "and"));
    if (!call || !starts) {
        return call;
    }
    if (jp_is_name(p, "is")) {
        jinja_syntax(p->rt, t->line, "You cannot chain multiple tests with is");
        return NULL;
    }
    struct jnodes pos = {0};
    struct jnode *n = jp_primary(p, false);
    if (!jp_push(p, &pos, n ? jp_postfix(p, n) : NULL)) {
        return NULL;
    }
    call->pos = pos.v;
    call->n_pos = 1;
    return call;
}

/* x is [not] test, with arguments in parentheses or, for one argument, without. */
static struct jnode *test_expr(struct jparser *p, struct jnode *on)
{
    jp_next(p); // is
    bool negated = jp_skip_name(p, "not");
    struct jnode *n = jp_one(p, N_TEST, on);
    struct jstr *name = n ? dotted_name(p) : NULL;
    if (!name) {
        return NULL;
    }
    n->value = jv_str(name);
    n->test = jinja_test_find(p->rt, name->s, name->n_bytes);
    n->call = jp_is_op(p, '(') ? call_args(p) : test_args(p);
    if (!n->call) {
        return NULL;
    }
    if (negated) {
        return jp_one(p, N_NOT, n);
    }
    return n;
}

/* After a filter or test, further ones and calls may follow. */
struct jnode *jp_filter_expr(struct jparser *p, struct jnode *n)
{
    while (n) {
        if (jp_is_op(p, '|')) {
            n = jp_filters(p, n, false);
        } else if (jp_is_name(p, "is")) {
            n = test_expr(p, n);
        } else if (jp_is_op(p, '(')) {
            n = call_expr(p, n);
        } else {
            break;
        }
    }
    return n;
}
