// SPDX-License-Identifier: Apache-2.0
/* Jinja2 decides at compile time where a name comes from. Run-time lookups (jscope_get) give the
 * same result, except for one rule that this pass handles: a name that is first used in a scope by
 * assignment, and that no outer scope mentions, is undefined before that assignment, even inside
 * earlier loops and macros, and even if the render has a variable of that name. A name assigned
 * only in a branch of an `if` is not hidden: Jinja2 looks it up there. */
#include "server/chat/jinja/ast.h"

#include <string.h>

/* Whether a scope has read or assigned a name so far; 0: neither. */
enum { KNOWN = 1, STORED = 2 };

/* One scope during the pass. `seen` is indexed by symbol, so that deep templates stay
 * linear. */
struct scope {
    const struct scope *outer;
    unsigned char *seen; // KNOWN and STORED bits, indexed by symbol
};

/* All functions return false if memory ran out. */
struct pass {
    struct jinja_template *t;
    int n_syms;
};

static bool open_scope(struct pass *ps, struct scope *sc, const struct scope *outer)
{
    sc->outer = outer;
    sc->seen = jrt_alloc(&ps->t->rt, (size_t)ps->n_syms, 1);
    return sc->seen != NULL;
}

static bool is_known(const struct scope *sc, int sym)
{
    for (; sc; sc = sc->outer) {
        if (sc->seen[sym]) {
            return true;
        }
    }
    return false;
}

/* A read: the name is looked up at run time, and a later assignment in this scope does not
 * hide it. */
static void load(struct scope *sc, int sym)
{
    if (!is_known(sc, sym)) {
        sc->seen[sym] = KNOWN;
    }
}

/* Adds a name to those that the scope's frame binds to undefined when it begins. */
static bool hide(struct pass *ps, struct jhidden *h, int sym)
{
    if (h->n == h->cap) {
        int cap = h->cap ? h->cap * 2 : 4;
        int *wider = jrt_alloc(&ps->t->rt, (size_t)cap, sizeof *wider);
        if (!wider) {
            return false;
        }
        if (h->n > 0) {
            memcpy(wider, h->syms, (size_t)h->n * sizeof *wider);
        }
        h->syms = wider;
        h->cap = cap;
    }
    h->syms[h->n++] = sym;
    return true;
}

/* An assignment. It hides the name if nothing mentioned it before, unless it is in a
 * branch of an if, which may not run. */
static bool store(struct pass *ps, struct scope *sc, int sym, bool in_branch, struct jhidden *h)
{
    bool first = !is_known(sc, sym);
    sc->seen[sym] |= KNOWN | STORED;
    return !first || in_branch || hide(ps, h, sym);
}

/* Records the names that an expression reads. Their order does not matter. */
static void load_expr(struct scope *sc, const struct jnode *n);

static void load_call(struct scope *sc, const struct jcall_node *call)
{
    for (int i = 0; call && i < call->n_pos; i++) {
        load_expr(sc, call->pos[i]);
    }
    for (int i = 0; call && i < call->n_kw; i++) {
        load_expr(sc, call->kw[i].value);
    }
    if (call && call->star) {
        load_expr(sc, call->star);
    }
    if (call && call->star2) {
        load_expr(sc, call->star2);
    }
}

static void load_expr(struct scope *sc, const struct jnode *n)
{
    if (!n) {
        return;
    }
    if (n->kind == N_NAME) {
        load(sc, n->sym);
    }
    load_expr(sc, n->a);
    load_expr(sc, n->b);
    load_expr(sc, n->c);
    for (int i = 0; i < n->n_kids; i++) {
        load_expr(sc, n->kids[i]);
    }
    load_call(sc, n->call);
}

/* Records the targets of an assignment. An assignment to ns.attribute reads ns. */
static bool store_target(struct pass *ps, struct scope *sc, const struct jnode *n, bool in_branch,
                         struct jhidden *h)
{
    if (n->kind == N_NSREF) {
        load(sc, n->sym);
        return true;
    }
    if (n->kind == N_NAME) {
        return store(ps, sc, n->sym, in_branch, h);
    }
    for (int i = 0; i < n->n_kids; i++) {
        if (!store_target(ps, sc, n->kids[i], in_branch, h)) {
            return false;
        }
    }
    return true;
}

/* Parameters and loop variables belong to the scope from its start. */
static void declare_target(struct scope *sc, const struct jnode *n)
{
    if (n->kind == N_NAME) {
        sc->seen[n->sym] = KNOWN | STORED;
    }
    for (int i = 0; i < n->n_kids; i++) {
        declare_target(sc, n->kids[i]);
    }
}

/* The effect of a statement on its scope. */
static bool visit(struct pass *ps, struct scope *sc, const struct jnode *n, bool in_branch,
                  struct jhidden *h)
{
    switch (n->kind) {
    case N_PRINT: load_expr(sc, n->a); return true;
    case N_SET: load_expr(sc, n->b); return store_target(ps, sc, n->a, in_branch, h);
    case N_SET_BLOCK: return store_target(ps, sc, n->a, in_branch, h);
    case N_MACRO: return store(ps, sc, n->sym, in_branch, h);
    case N_FOR: load_expr(sc, n->b); return true;
    case N_CALL_BLOCK:
    case N_FILTER_BLOCK: load_expr(sc, n->a); return true;
    case N_WITH:
        for (int i = 1; i < n->n_more; i += 2) {
            load_expr(sc, n->more[i]);
        }
        return true;
    case N_IF:
        load_expr(sc, n->a);
        for (int i = 0; i < n->n_kids + n->n_more; i++) {
            if (!visit(ps, sc, i < n->n_kids ? n->kids[i] : n->more[i - n->n_kids], true, h)) {
                return false;
            }
        }
        return true;
    default: return true;
    }
}

/* Visits the scopes inside of a list of statements. */
static bool enter(struct pass *ps, const struct scope *sc, struct jnode *const *body, int n);

/* Visits a body with its own scope: as in Jinja2, first the statements of this scope, then nested
 * scopes. */
static bool body_scope(struct pass *ps, struct scope *sc, struct jnode *const *body, int n,
                       struct jhidden *h)
{
    for (int i = 0; i < n; i++) {
        if (!visit(ps, sc, body[i], false, h)) {
            return false;
        }
    }
    return enter(ps, sc, body, n);
}

/* Parameters, and the special names that the macro uses, belong to its scope. */
static void declare_signature(struct pass *ps, struct scope *sc, const struct jsignature *sig)
{
    const struct jinja_template *t = ps->t;
    const int special[] = {t->sym_caller, t->sym_kwargs, t->sym_varargs};
    const bool used[] = {sig->uses_caller, sig->uses_kwargs, sig->uses_varargs};
    for (int i = 0; i < sig->n; i++) {
        sc->seen[sig->syms[i]] = KNOWN | STORED;
    }
    for (int i = 0; i < 3; i++) {
        if (used[i]) {
            sc->seen[special[i]] = KNOWN | STORED;
        }
    }
    for (int i = 0; i < sig->n; i++) {
        load_expr(sc, sig->defaults[i]);
    }
}

/* Opens the scope of a statement that has one. A block that is not `scoped` begins at the
 * render's variables. */
static bool nested_scope(struct pass *ps, const struct scope *outer, struct jnode *n)
{
    struct scope sc, other;
    if (n->kind == N_IF) {
        return enter(ps, outer, n->kids, n->n_kids) && enter(ps, outer, n->more, n->n_more);
    }
    if (n->kind == N_BLOCK && !n->flag) {
        outer = NULL; // sees only the render's variables
    }
    if (n->n_kids == 0 && n->n_more == 0) {
        return true;
    }
    if (!open_scope(ps, &sc, outer)) {
        return false;
    }
    switch (n->kind) {
    case N_FOR:
        declare_target(&sc, n->a);
        if (n->op) {
            sc.seen[ps->t->sym_loop] = KNOWN | STORED;
        }
        if (n->n_more > 0) {
            struct jhidden unused = {0}; // the else of a loop: too rare to handle
            if (!open_scope(ps, &other, outer) ||
                !body_scope(ps, &other, n->more, n->n_more, &unused)) {
                return false;
            }
        }
        break;
    case N_MACRO:
    case N_CALL_BLOCK: declare_signature(ps, &sc, n->sig); break;
    case N_WITH:
        for (int i = 0; i < n->n_more; i += 2) {
            declare_target(&sc, n->more[i]);
        }
        break;
    case N_SET_BLOCK:
    case N_FILTER_BLOCK:
    case N_AUTOESCAPE:
    case N_GENERATION:
    case N_BLOCK: break;
    default: return true;
    }
    return body_scope(ps, &sc, n->kids, n->n_kids, &n->hidden);
}

static bool enter(struct pass *ps, const struct scope *sc, struct jnode *const *body, int n)
{
    for (int i = 0; i < n; i++) {
        if (!nested_scope(ps, sc, body[i])) {
            return false;
        }
    }
    return true;
}

/* The whole template is a scope of its own. */
bool jinja_scopes(struct jinja_template *t)
{
    struct pass ps = {.t = t, .n_syms = t->names.n};
    struct scope sc;
    return open_scope(&ps, &sc, NULL) && body_scope(&ps, &sc, t->body, t->n_body, &t->hidden);
}
