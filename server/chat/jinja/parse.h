// SPDX-License-Identifier: Apache-2.0
/* Shared by the files of the parser. Thread: one compilation. */
#ifndef SLUICE_SERVER_CHAT_JINJA_PARSE_H
#define SLUICE_SERVER_CHAT_JINJA_PARSE_H

#include "server/chat/jinja/ast.h"

struct jparser {
    struct jrt *rt;
    struct jinja_template *t;
    const struct jtoken *tokens;
    size_t at;
    int nest;
};

/* A list of nodes that grows while it is parsed. */
struct jnodes {
    struct jnode **v;
    int n, cap;
};

static inline const struct jtoken *jp_token(const struct jparser *p)
{
    return &p->tokens[p->at];
}

static inline const struct jtoken *jp_next(struct jparser *p)
{
    const struct jtoken *t = &p->tokens[p->at];
    p->at += t->kind != T_EOF;
    return t;
}

bool jp_token_is(const struct jtoken *t, const char *name); // a name token
bool jp_is_op(const struct jparser *p, int op);
bool jp_is_name(const struct jparser *p, const char *name);
bool jp_skip_op(struct jparser *p, int op);
bool jp_skip_name(struct jparser *p, const char *name);
bool jp_expect_op(struct jparser *p, int op);
const struct jtoken *jp_expect_name(struct jparser *p); // NULL after an error
bool jp_unexpected(struct jparser *p, const char *wanted);

struct jnode *jp_node(struct jparser *p, enum jnode_kind kind);
bool jp_push(struct jparser *p, struct jnodes *l, struct jnode *n);

/* All return NULL after an error, and if a part is NULL. */
struct jnode *jp_one(struct jparser *p, enum jnode_kind kind, struct jnode *a);
struct jnode *jp_two(struct jparser *p, enum jnode_kind kind, struct jnode *a, struct jnode *b);
struct jnode *jp_with_kids(struct jparser *p, enum jnode_kind kind, const struct jnodes *l);
struct jnode *jp_constant(struct jparser *p, struct jv v);
struct jstr *jp_settled(struct jstr *s); // counts the characters now, because renders share the
                                         // string

/* A literal, a name, or brackets; its postfix operators; its filters and tests. */
struct jnode *jp_number(struct jparser *p);
struct jnode *jp_primary(struct jparser *p, bool with_namespace);
struct jnode *jp_postfix(struct jparser *p, struct jnode *n);
struct jnode *jp_filter_expr(struct jparser *p, struct jnode *n);
struct jnode *jp_expression(struct jparser *p, bool with_cond);
struct jnode *jp_tuple(struct jparser *p, bool with_cond, bool in_parentheses);
struct jnode *jp_target(struct jparser *p, bool with_namespace, bool stop_at_in);
struct jnode *jp_filters(struct jparser *p, struct jnode *on, bool start_inline);
struct jstr *jp_text(struct jparser *p, const struct jtoken *t);

#endif
