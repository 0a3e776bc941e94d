// SPDX-License-Identifier: Apache-2.0
/* A pass over the tree that rejects what Jinja2 rejects during code generation, after parsing. */
#include "server/chat/jinja/eval.h"

#include <string.h>

/* Deeper trees are rejected, because later passes descend recursively. */
enum { MAX_TREE = 1500 };

struct check {
    struct jinja_template *t;
    int depth;
};

/* The context of a node. */
struct place {
    bool soft;           // inside an if of the same scope: unknown filters only fail when evaluated
    bool in_loop;        // break and continue have a target
    bool no_loop_target; // in the target of a for: `loop` must not be assigned
};

/* Mutually recursive with the functions below; depth is limited by MAX_TREE. */
static bool check_node(struct check *c, const struct jnode *n, struct place at);

static bool check_list(struct check *c, struct jnode *const *v, int n, struct place at)
{
    for (int i = 0; i < n; i++) {
        if (v[i] && !check_node(c, v[i], at)) {
            return false;
        }
    }
    return true;
}

static bool check_call(struct check *c, const struct jcall_node *call, struct place at)
{
    if (!call) {
        return true;
    }
    for (int i = 0; i < call->n_kw; i++) {
        if (!check_node(c, call->kw[i].value, at)) {
            return false;
        }
    }
    return check_list(c, call->pos, call->n_pos, at) &&
           (!call->star || check_node(c, call->star, at)) &&
           (!call->star2 || check_node(c, call->star2, at));
}

/* A loop's target may not be named `loop`, directly or in a tuple. */
static bool check_target(struct check *c, const struct jnode *n, struct place at)
{
    if (n->kind == N_TUPLE) {
        for (int i = 0; i < n->n_kids; i++) {
            if (!check_target(c, n->kids[i], at)) {
                return false;
            }
        }
    }
    if (n->kind == N_NAME && n->sym == c->t->sym_loop && at.no_loop_target) {
        return jinja_syntax(&c->t->rt, n->line,
                            "Can't assign to special loop variable in for-loop target");
    }
    return true;
}

/* ---- which special names a body reads ---- */

/* A search of a body for special names. */
struct wanted {
    const int *syms; // names to look for
    bool *found;     // [names] true if it was read
    bool *stored;    // [names] true if it was assigned before any read, so that it is an ordinary
                     // variable
    int n, depth;
};

/* Follows the order of evaluation closely enough to decide whether a name is read before
 * it is assigned. */
static void scan(const struct jnode *n, struct wanted *w);

static void scan_list(struct jnode *const *v, int n, struct wanted *w)
{
    for (int i = 0; i < n; i++) {
        if (v[i]) {
            scan(v[i], w);
        }
    }
}

static void scan_target(const struct jnode *n, struct wanted *w)
{
    if (n->kind == N_TUPLE) {
        for (int i = 0; i < n->n_kids; i++) {
            scan_target(n->kids[i], w);
        }
    }
    for (int i = 0; n->kind == N_NAME && i < w->n; i++) {
        w->stored[i] |= w->syms[i] == n->sym && !w->found[i];
    }
}

static void scan_call(const struct jcall_node *call, struct wanted *w)
{
    if (call) {
        scan_list(call->pos, call->n_pos, w);
        for (int i = 0; i < call->n_kw; i++) {
            scan(call->kw[i].value, w);
        }
        if (call->star) {
            scan(call->star, w);
        }
        if (call->star2) {
            scan(call->star2, w);
        }
    }
}

/* The targets of assignments are written, not read; `with` alternates targets and values. */
static void scan_inner(const struct jnode *n, struct wanted *w)
{
    bool target = n->kind == N_SET || n->kind == N_SET_BLOCK || n->kind == N_FOR;
    for (int i = 0; n->kind == N_NAME && i < w->n; i++) {
        w->found[i] |= w->syms[i] == n->sym && !w->stored[i];
    }
    if (target) {
        scan_target(n->a, w);
    } else if (n->a) {
        scan(n->a, w);
    }
    if (n->b) {
        scan(n->b, w);
    }
    if (n->c) {
        scan(n->c, w);
    }
    scan_call(n->call, w);
    if (n->sig) {
        scan_list(n->sig->defaults, n->sig->n, w);
    }
    if (n->kind == N_WITH) {
        for (int i = 0; i + 1 < n->n_more; i += 2) {
            scan_target(n->more[i], w);
            scan(n->more[i + 1], w);
        }
        scan_list(n->kids, n->n_kids, w);
        return;
    }
    scan_list(n->kids, n->n_kids, w);
    scan_list(n->more, n->n_more, w);
}

static void scan(const struct jnode *n, struct wanted *w)
{
    if (++w->depth <= MAX_TREE) { // check_node rejects deeper trees
        scan_inner(n, w);
    }
    w->depth--;
}

/* True if the loop's body reads `loop`: only then is the object created. */
static bool uses_loop(const struct check *c, const struct jnode *n)
{
    bool found = false, stored = false;
    struct wanted w = {&c->t->sym_loop, &found, &stored, 1, 0};
    scan_list(n->kids, n->n_kids, &w);
    return found;
}

/* Sets in the signature which special arguments the macro accepts: those that its body reads. */
static void find_specials(const struct check *c, const struct jnode *n)
{
    const int syms[] = {c->t->sym_caller, c->t->sym_kwargs, c->t->sym_varargs};
    bool found[3] = {false, false, false}, stored[3] = {false, false, false};
    struct wanted w = {syms, found, stored, 3, 0};
    scan_list(n->kids, n->n_kids, &w);
    struct jsignature *sig = n->sig;
    sig->uses_caller = found[0];
    sig->uses_kwargs = found[1];
    sig->uses_varargs = found[2];
    for (int i = 0; i < sig->n; i++) {
        sig->explicit_caller |= sig->syms[i] == syms[0];
        sig->uses_kwargs &= sig->syms[i] != syms[1];
        sig->uses_varargs &= sig->syms[i] != syms[2];
    }
    sig->uses_caller &= !sig->explicit_caller;
}

/* A parameter named `caller` needs a default, because call blocks pass it by name. */
static bool check_macro(struct check *c, const struct jnode *n, struct place at)
{
    find_specials(c, n);
    for (int i = 0; i < n->sig->n; i++) {
        if (n->sig->syms[i] == c->t->sym_caller && !n->sig->defaults[i]) {
            return jinja_syntax(&c->t->rt, n->line,
                                "When defining macros or call blocks the "
                                "special \"caller\" argument must be omitted or be given a "
                                "default.");
        }
    }
    struct place inner = {.no_loop_target = at.no_loop_target};
    return check_list(c, n->sig->defaults, n->sig->n, inner) &&
           check_list(c, n->kids, n->n_kids, inner);
}

/* The test of a loop and its else are outside of its body: break is not allowed, and other rules
 * apply to `loop`. */
static bool check_for(struct check *c, struct jnode *n, struct place at)
{
    struct place body = {.in_loop = true, .no_loop_target = true};
    struct place other = {.in_loop = at.in_loop, .no_loop_target = true};
    n->op = n->flag || uses_loop(c, n);
    return check_target(c, n->a, body) && check_node(c, n->b, at) &&
           (!n->c || check_node(c, n->c, (struct place){0})) &&
           check_list(c, n->kids, n->n_kids, body) && check_list(c, n->more, n->n_more, other);
}

/* Checks a statement and the nodes below it. As in Jinja2, unknown filters within an `if` fail when
 * they run, not at load. */
static bool check_statement(struct check *c, const struct jnode *n, struct place at)
{
    struct place inner = {.in_loop = at.in_loop, .no_loop_target = at.no_loop_target};
    switch (n->kind) {
    case N_IF:
        at.soft = true;
        return check_node(c, n->a, at) && check_list(c, n->kids, n->n_kids, at) &&
               check_list(c, n->more, n->n_more, at);
    case N_FOR: return check_for(c, (struct jnode *)n, at);
    case N_SET: return check_target(c, n->a, at) && check_node(c, n->b, at);
    case N_SET_BLOCK:
        return check_target(c, n->a, at) && (!n->b || check_node(c, n->b, inner)) &&
               check_list(c, n->kids, n->n_kids, inner);
    case N_MACRO: return check_macro(c, n, at);
    case N_CALL_BLOCK: return check_node(c, n->a, at) && check_macro(c, n, at);
    case N_FILTER_BLOCK:
    case N_AUTOESCAPE:
        return check_node(c, n->a, inner) && check_list(c, n->kids, n->n_kids, inner);
    case N_WITH:
        for (int i = 0; i + 1 < n->n_more; i += 2) {
            if (!check_target(c, n->more[i], at) || !check_node(c, n->more[i + 1], at)) {
                return false;
            }
        }
        return check_list(c, n->kids, n->n_kids, inner);
    case N_BLOCK:
    case N_GENERATION: return check_list(c, n->kids, n->n_kids, (struct place){0});
    case N_BREAK:
    case N_CONTINUE:
        return at.in_loop || jinja_syntax(&c->t->rt, n->line, "'%s' outside loop",
                                          n->kind == N_BREAK ? "break" : "continue");
    default: return true;
    }
}

/* An unknown filter or test is an error, unless Jinja2 too reports it only when it is evaluated
 * (at.soft). */
static bool check_inner(struct check *c, const struct jnode *n, struct place at)
{
    bool known;
    if (n->kind == N_FILTER) {
        known = n->filter != NULL;
    } else {
        known = n->kind != N_TEST || n->test != NULL;
    }
    if (!known && !at.soft) {
        return jinja_syntax(&c->t->rt, n->line, "No %s named '%.*s'.",
                            n->kind == N_FILTER ? "filter" : "test", (int)n->value.u.s->n_bytes,
                            n->value.u.s->s);
    }
    if (n->kind >= N_DATA && n->kind != N_PRINT) {
        return check_statement(c, n, at);
    }
    if (n->kind == N_COND) {
        at.soft = true;
    }
    return (!n->a || check_node(c, n->a, at)) && (!n->b || check_node(c, n->b, at)) &&
           (!n->c || check_node(c, n->c, at)) && check_list(c, n->kids, n->n_kids, at) &&
           check_call(c, n->call, at);
}

static bool check_node(struct check *c, const struct jnode *n, struct place at)
{
    if (++c->depth > MAX_TREE) {
        return jinja_syntax(&c->t->rt, n->line, "nested too deeply");
    }
    bool ok = check_inner(c, n, at);
    c->depth--;
    return ok;
}

/* Checks the depth of the tree before anything else descends it. The parser bounds nesting, but
 * chains such as a + b + c + ... grow to the left without nesting. */
bool jinja_check(struct jinja_template *t)
{
    struct check c = {.t = t};
    return check_list(&c, t->body, t->n_body, (struct place){0});
}
