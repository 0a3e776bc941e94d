// SPDX-License-Identifier: Apache-2.0
/* A compiled template: its syntax tree, its names, and its source tokens. Private to
 * server/chat/jinja/.
 * Thread: written by one compilation, read by all renders. */
#ifndef SLUICE_SERVER_CHAT_JINJA_AST_H
#define SLUICE_SERVER_CHAT_JINJA_AST_H

#include "server/chat/jinja/rt.h"

enum jtoken_kind {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING, // with its quotes
    T_INT,
    T_FLOAT,
    T_OP, // see JOPCODE
};

#define JOPCODE(a, b) ((a) | (b) << 8)

struct jtoken {
    enum jtoken_kind kind;
    int line;
    int op; // T_OP: JOPCODE of the operator's one or two characters
    const char *s;
    size_t n_bytes;
};

/* Splits the source into tokens. Line ends become \n, and one at the end is dropped. */
bool jinja_lex(struct jrt *rt, const char *source, size_t n_bytes, struct jtoken **tokens,
               size_t *n_tokens);

enum jnode_kind {
    /* expressions */
    N_CONST,   // value
    N_NAME,    // sym
    N_TUPLE,   // kids
    N_LIST,    // kids
    N_DICT,    // kids: key, value, key, ...
    N_COND,    // a if b else c (c may be NULL)
    N_AND,     // a, b
    N_OR,      // a, b
    N_NOT,     // a
    N_NEG,     // a
    N_POS,     // a
    N_BINARY,  // a op b (enum jop)
    N_CONCAT,  // kids
    N_COMPARE, // a; kids are N_OPERAND
    N_OPERAND, // op (enum jcompare), a
    N_ATTR,    // a.value
    N_ITEM,    // a[b]
    N_SLICE,   // a[kids[0]:kids[1]:kids[2]], each may be NULL
    N_CALL,    // a(call)
    N_FILTER,  // a (NULL in blocks) | value (call)
    N_TEST,    // a is value (call)
    N_NSREF,   // an assignment's target: sym.value
    /* statements */
    N_DATA,         // value
    N_PRINT,        // a
    N_IF,           // a; kids, more
    N_FOR,          // a in b if c; kids, more; flag: recursive; op: `loop` is used
    N_SET,          // a = b
    N_SET_BLOCK,    // a, filter b (may be NULL); kids
    N_MACRO,        // sym, sig; kids
    N_CALL_BLOCK,   // a: the call, sig; kids
    N_FILTER_BLOCK, // a: the filter; kids
    N_WITH,         // more: target, value, ...; kids
    N_AUTOESCAPE,   // a; kids
    N_BLOCK,        // kids; flag: scoped
    N_GENERATION,   // kids
    N_BREAK,
    N_CONTINUE,
    N_NO_LOADER, // include, import, extends: fails when it is executed
};

enum jcompare { JC_EQ, JC_NE, JC_LT, JC_LE, JC_GT, JC_GE, JC_IN, JC_NOT_IN };

/* Names that a scope assigns before it reads them and that no enclosing scope uses. Until they are
 * assigned they are undefined in the scope, even if the render has a variable of that name. */
struct jhidden {
    int *syms;
    int n, cap;
};

struct jnode {
    uint8_t kind, op;
    bool flag;
    int line, sym;
    struct jnode *a, *b, *c;
    struct jnode **kids, **more;
    int n_kids, n_more;
    struct jv value;
    const struct jinja_filter *filter;  // N_FILTER; NULL if unknown
    const struct jinja_test *test;      // N_TEST; NULL if unknown
    const struct jinja_method *methods; // N_ATTR, N_ITEM of a constant: the first row of that name
    struct jcall_node *call;
    struct jsignature *sig;
    struct jhidden hidden; // names hidden in the scope of the node's body
};

struct jkeyword_node {
    struct jstr *name;
    struct jnode *value;
};

struct jcall_node {
    struct jnode **pos;
    int n_pos;
    struct jkeyword_node *kw;
    int n_kw;
    struct jnode *star, *star2; // *args, **kwargs
};

struct jsignature {
    int *syms;
    struct jstr **names;
    struct jnode **defaults; // [n_params], each NULL if there is no default
    int n;
    bool uses_caller, uses_kwargs, uses_varargs, explicit_caller;
};

struct jname_table {
    struct jstr **names;
    int n, cap;
};

struct jinja_template {
    struct jrt rt; // owns the tree
    struct jnode **body;
    int n_body;
    struct jhidden hidden; // names hidden in the outermost scope
    struct jname_table names;
    int sym_loop, sym_caller, sym_kwargs, sym_varargs;
    char *gist; // the concatenated tokens, which do not include comments; for jinja_mentions
    size_t gist_bytes;
};

bool jinja_parse(struct jinja_template *t, const struct jtoken *tokens, size_t n_tokens);

/* The checks that Jinja2 makes when it generates code: unknown filters and tests, break outside a
 * loop, assignments to `loop`. Also determines which special names macros and loops use. */
bool jinja_check(struct jinja_template *t);

/* Determines which names are hidden in which scope (scope.c). */
bool jinja_scopes(struct jinja_template *t);

int jinja_symbol(struct jinja_template *t, const char *name, size_t n_bytes); // -1 after an error
int jinja_find_symbol(const struct jinja_template *t, const char *name, size_t n_bytes); // -1: none

bool jinja_syntax(struct jrt *rt, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
