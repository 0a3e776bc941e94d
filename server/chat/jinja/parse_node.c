// SPDX-License-Identifier: Apache-2.0
/* Shared by the parser's files: inspecting tokens, creating nodes. */
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/parse.h"

#include <string.h>

bool jp_is_op(const struct jparser *p, int op)
{
    return jp_token(p)->kind == T_OP && jp_token(p)->op == op;
}

bool jp_token_is(const struct jtoken *t, const char *name)
{
    return t->kind == T_NAME && t->n_bytes == strlen(name) && memcmp(t->s, name, t->n_bytes) == 0;
}

bool jp_is_name(const struct jparser *p, const char *name)
{
    return jp_token_is(jp_token(p), name);
}

bool jp_skip_op(struct jparser *p, int op)
{
    if (!jp_is_op(p, op)) {
        return false;
    }
    jp_next(p);
    return true;
}

bool jp_skip_name(struct jparser *p, const char *name)
{
    if (!jp_is_name(p, name)) {
        return false;
    }
    jp_next(p);
    return true;
}

/* Fails with Jinja2's message, which names the token found and the one expected. */
bool jp_unexpected(struct jparser *p, const char *wanted)
{
    const struct jtoken *t = jp_token(p);
    int n = t->n_bytes < 60 ? (int)t->n_bytes : 60;
    if (t->kind == T_EOF) {
        return jinja_syntax(p->rt, t->line, "unexpected end of template, expected %s", wanted);
    }
    return jinja_syntax(p->rt, t->line, "expected %s, got '%.*s'", wanted, n, t->s);
}

bool jp_expect_op(struct jparser *p, int op)
{
    char name[] = {'\'', (char)op, '\'', '\0'};
    return jp_skip_op(p, op) || jp_unexpected(p, name);
}

const struct jtoken *jp_expect_name(struct jparser *p)
{
    if (jp_token(p)->kind != T_NAME) {
        jp_unexpected(p, "a name");
        return NULL;
    }
    return jp_next(p);
}

/* The line is kept for errors while the template runs. */
struct jnode *jp_node(struct jparser *p, enum jnode_kind kind)
{
    struct jnode *n = jrt_alloc(p->rt, 1, sizeof *n);
    if (n) {
        n->kind = (uint8_t)kind;
        n->line = jp_token(p)->line;
        n->sym = -1;
    }
    return n;
}

/* Appends a node. If the array grows, the old one stays in the arena, which is freed as a whole. */
bool jp_push(struct jparser *p, struct jnodes *l, struct jnode *n)
{
    if (!n) {
        return false;
    }
    if (l->n == l->cap) {
        int cap = l->cap ? l->cap * 2 : 4;
        struct jnode **wider = jrt_alloc(p->rt, (size_t)cap, sizeof(struct jnode *));
        if (!wider) {
            return false;
        }
        if (l->n > 0) {
            memcpy(wider, l->v, (size_t)l->n * sizeof(struct jnode *));
        }
        l->v = wider;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return true;
}

struct jnode *jp_with_kids(struct jparser *p, enum jnode_kind kind, const struct jnodes *l)
{
    struct jnode *n = jp_node(p, kind);
    if (n) {
        n->kids = l->v;
        n->n_kids = l->n;
    }
    return n;
}

struct jnode *jp_two(struct jparser *p, enum jnode_kind kind, struct jnode *a, struct jnode *b)
{
    struct jnode *n = a && b ? jp_node(p, kind) : NULL;
    if (n) {
        n->a = a;
        n->b = b;
    }
    return n;
}

struct jnode *jp_one(struct jparser *p, enum jnode_kind kind, struct jnode *a)
{
    struct jnode *n = a ? jp_node(p, kind) : NULL;
    if (n) {
        n->a = a;
    }
    return n;
}

struct jnode *jp_constant(struct jparser *p, struct jv v)
{
    struct jnode *n = jp_node(p, N_CONST);
    if (n) {
        n->value = v;
    }
    return n;
}

/* Renders share constants, so everything that strings compute lazily is computed now. */
struct jstr *jp_settled(struct jstr *s)
{
    if (s) {
        js_chars(s);
    }
    return s;
}

struct jstr *jp_text(struct jparser *p, const struct jtoken *t)
{
    return jp_settled(js_new(p->rt, t->s, t->n_bytes, PROV_TEMPLATE));
}

int jinja_find_symbol(const struct jinja_template *t, const char *name, size_t n_bytes)
{
    for (int i = 0; i < t->names.n; i++) {
        const struct jstr *s = t->names.names[i];
        if (s->n_bytes == n_bytes && memcmp(s->s, name, n_bytes) == 0) {
            return i;
        }
    }
    return -1;
}

/* Names become numbers when the template is compiled, so that variables are found by
 * index. */
int jinja_symbol(struct jinja_template *t, const char *name, size_t n_bytes)
{
    int sym = jinja_find_symbol(t, name, n_bytes);
    if (sym >= 0) {
        return sym;
    }
    struct jname_table *tab = &t->names;
    if (tab->n == tab->cap) {
        int cap = tab->cap ? tab->cap * 2 : 64;
        struct jstr **wider = jrt_alloc(&t->rt, (size_t)cap, sizeof(struct jstr *));
        if (!wider) {
            return -1;
        }
        if (tab->n > 0) {
            memcpy(wider, tab->names, (size_t)tab->n * sizeof(struct jstr *));
        }
        tab->names = wider;
        tab->cap = cap;
    }
    struct jstr *s = js_copy(&t->rt, name, n_bytes, PROV_TEMPLATE);
    if (!s || !jrt_charge(&t->rt, (size_t)tab->n / 16)) {
        return -1;
    }
    js_chars(s);
    tab->names[tab->n] = s;
    return tab->n++;
}
