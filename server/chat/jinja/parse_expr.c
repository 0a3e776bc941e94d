// SPDX-License-Identifier: Apache-2.0
/* Operators, from the highest precedence to the lowest; tuples and assignment targets. */
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"
#include "server/chat/jinja/parse.h"

/* ---- operators, from the highest precedence to the lowest ---- */

/* Signs bind less tightly than postfix operators. Filters apply to the whole signed value,
 * so -1|abs is 1. */
static struct jnode *unary(struct jparser *p, bool with_filter)
{
    struct jnode *n;
    if (jp_is_op(p, '-') || jp_is_op(p, '+')) {
        enum jnode_kind kind = jp_next(p)->op == '-' ? N_NEG : N_POS;
        if (++p->nest > JINJA_MAX_NEST) {
            jinja_syntax(p->rt, jp_token(p)->line, "nested too deeply");
            return NULL;
        }
        n = jp_one(p, kind, unary(p, false));
        p->nest--;
    } else {
        n = jp_primary(p, false);
    }
    n = jp_postfix(p, n);
    if (with_filter) {
        return jp_filter_expr(p, n);
    }
    return n;
}

static struct jnode *binary(struct jparser *p, enum jop op, struct jnode *a, struct jnode *b)
{
    struct jnode *n = jp_two(p, N_BINARY, a, b);
    if (n) {
        n->op = (uint8_t)op;
    }
    return n;
}

/* Associates to the left, as in Jinja2 but unlike in Python. */
static struct jnode *power(struct jparser *p)
{
    struct jnode *left = unary(p, true);
    while (left && jp_skip_op(p, JOPCODE('*', '*'))) {
        left = binary(p, JOP_POW, left, unary(p, true));
    }
    return left;
}

static struct jnode *product(struct jparser *p)
{
    struct jnode *left = power(p);
    while (left) {
        enum jop op;
        if (jp_is_op(p, '*')) {
            op = JOP_MUL;
        } else if (jp_is_op(p, '/')) {
            op = JOP_DIV;
        } else if (jp_is_op(p, JOPCODE('/', '/'))) {
            op = JOP_FLOORDIV;
        } else if (jp_is_op(p, '%')) {
            op = JOP_MOD;
        } else {
            break;
        }
        jp_next(p);
        left = binary(p, op, left, power(p));
    }
    return left;
}

static struct jnode *concat(struct jparser *p)
{
    struct jnodes l = {0};
    do {
        if (!jp_push(p, &l, product(p))) {
            return NULL;
        }
    } while (jp_skip_op(p, '~'));
    if (l.n == 1) {
        return l.v[0];
    }
    return jp_with_kids(p, N_CONCAT, &l);
}

/* In Jinja2's grammar + and - have a lower precedence than ~. */
static struct jnode *sum(struct jparser *p)
{
    struct jnode *left = concat(p);
    while (left && (jp_is_op(p, '+') || jp_is_op(p, '-'))) {
        enum jop op = jp_next(p)->op == '+' ? JOP_ADD : JOP_SUB;
        left = binary(p, op, left, concat(p));
    }
    return left;
}

/* Consumes a comparison operator and returns it; -1 if there is none. */
static int compare_op(struct jparser *p)
{
    static const struct {
        int op, compare;
    } ops[] = {{JOPCODE('=', '='), JC_EQ},
               {JOPCODE('!', '='), JC_NE},
               {'<', JC_LT},
               {JOPCODE('<', '='), JC_LE},
               {'>', JC_GT},
               {JOPCODE('>', '='), JC_GE}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (jp_skip_op(p, ops[i].op)) {
            return ops[i].compare;
        }
    }
    if (jp_skip_name(p, "in")) {
        return JC_IN;
    }
    if (jp_is_name(p, "not") && jp_token_is(jp_token(p) + 1, "in")) {
        p->at += 2;
        return JC_NOT_IN;
    }
    return -1;
}

/* All comparisons of a chain are children of one node. */
static struct jnode *comparison(struct jparser *p)
{
    struct jnode *first = sum(p);
    struct jnodes l = {0};
    int op;
    while (first && (op = compare_op(p)) >= 0) {
        struct jnode *n = jp_one(p, N_OPERAND, sum(p));
        if (!jp_push(p, &l, n)) {
            return NULL;
        }
        n->op = (uint8_t)op;
    }
    if (!first || l.n == 0) {
        return first;
    }
    struct jnode *n = jp_with_kids(p, N_COMPARE, &l);
    if (n) {
        n->a = first;
    }
    return n;
}

/* `not not x` is a loop rather than a recursion. */
static struct jnode *negation(struct jparser *p)
{
    int nots = 0;
    while (jp_skip_name(p, "not")) {
        if (++nots > JINJA_MAX_NEST) {
            jinja_syntax(p->rt, jp_token(p)->line, "nested too deeply");
            return NULL;
        }
    }
    struct jnode *n = comparison(p);
    for (; n && nots > 0; nots--) {
        n = jp_one(p, N_NOT, n);
    }
    return n;
}

static struct jnode *conjunction(struct jparser *p)
{
    struct jnode *left = negation(p);
    while (left && jp_skip_name(p, "and")) {
        left = jp_two(p, N_AND, left, negation(p));
    }
    return left;
}

static struct jnode *disjunction(struct jparser *p)
{
    struct jnode *left = conjunction(p);
    while (left && jp_skip_name(p, "or")) {
        left = jp_two(p, N_OR, left, conjunction(p));
    }
    return left;
}

/* a if cond else b; chains associate to the right by recursion, which `nest` limits. */
struct jnode *jp_expression(struct jparser *p, bool with_cond)
{
    if (++p->nest > JINJA_MAX_NEST) {
        jinja_syntax(p->rt, jp_token(p)->line, "nested too deeply");
        return NULL;
    }
    struct jnode *n = disjunction(p);
    while (n && with_cond && jp_skip_name(p, "if")) {
        struct jnode *cond = jp_two(p, N_COND, n, disjunction(p));
        if (cond && jp_skip_name(p, "else")) {
            cond->c = jp_expression(p, true);
            if (!cond->c) {
                return NULL;
            }
        }
        n = cond;
    }
    p->nest--;
    return n;
}

static bool tuple_ends(const struct jparser *p, bool stop_at_in)
{
    enum jtoken_kind k = jp_token(p)->kind;
    return k == T_VAR_END || k == T_BLOCK_END || jp_is_op(p, ')') ||
           (stop_at_in && jp_is_name(p, "in"));
}

/* Expressions with commas between them make a tuple. */
static struct jnode *tuple(struct jparser *p, struct jnode *(*item)(struct jparser *, bool),
                           bool item_arg, bool in_parentheses, bool stop_at_in)
{
    struct jnodes l = {0};
    bool is_tuple = false;
    while (!tuple_ends(p, stop_at_in)) {
        if (!jp_push(p, &l, item(p, item_arg))) {
            return NULL;
        }
        if (!jp_skip_op(p, ',')) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && l.n > 0) {
        return l.v[0];
    }
    if (!is_tuple && !in_parentheses) {
        jp_unexpected(p, "an expression");
        return NULL;
    }
    return jp_with_kids(p, N_TUPLE, &l);
}

struct jnode *jp_tuple(struct jparser *p, bool with_cond, bool in_parentheses)
{
    return tuple(p, jp_expression, with_cond, in_parentheses, false);
}

/* True for names, attributes of namespaces, and tuples of both. */
static bool assignable(const struct jnode *n)
{
    if (n->kind == N_TUPLE) {
        for (int i = 0; i < n->n_kids; i++) {
            if (!assignable(n->kids[i])) {
                return false;
            }
        }
        return true;
    }
    return n->kind == N_NAME || n->kind == N_NSREF;
}

/* stop_at_in: the `in` of a for ends the target instead of beginning a comparison. */
struct jnode *jp_target(struct jparser *p, bool with_namespace, bool stop_at_in)
{
    struct jnode *n = tuple(p, jp_primary, with_namespace, false, stop_at_in);
    if (n && !assignable(n)) {
        jinja_syntax(p->rt, n->line, "can't assign to this expression");
        return NULL;
    }
    return n;
}
