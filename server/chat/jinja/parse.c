// SPDX-License-Identifier: Apache-2.0
/* Statements: from tokens to the tree, one function per tag. Expressions are in
 * parse_expr.c. A function that returns NULL has recorded an error in the runtime. */
#include "server/chat/jinja/parse.h"

#include "server/chat/jinja/eval.h"

#include <string.h>

static bool parse_body(struct jparser *p, const char *const *ends, struct jnodes *body);

/* Parses the body up to one of the `ends`, whose name is then the current token. */
static bool body_until(struct jparser *p, const char *const *ends, struct jnode ***kids, int *n)
{
    struct jnodes l = {0};
    jp_skip_op(p, ':'); // Python syntax, which Jinja2 allows
    if (jp_token(p)->kind != T_BLOCK_END) {
        return jp_unexpected(p, "end of statement block");
    }
    jp_next(p);
    if (!parse_body(p, ends, &l)) {
        return false;
    }
    *kids = l.v;
    *n = l.n;
    return true;
}

/* The body of a statement with a single end tag. */
static bool body_to(struct jparser *p, const char *end, struct jnode *n)
{
    const char *const ends[] = {end, NULL};
    if (!body_until(p, ends, &n->kids, &n->n_kids)) {
        return false;
    }
    jp_next(p);
    return true;
}

/* An if statement with its elifs and its else, up to and with endif. */
static struct jnode *parse_if(struct jparser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct jnode *first = NULL, *n = NULL;
    for (;;) { // each elif is the only statement of the preceding else
        struct jnode *cond = jp_node(p, N_IF);
        jp_next(p); // if, elif
        if (!cond || !(cond->a = jp_tuple(p, false, false)) ||
            !body_until(p, ends, &cond->kids, &cond->n_kids)) {
            return NULL;
        }
        if (n) {
            struct jnodes l = {0};
            if (!jp_push(p, &l, cond)) {
                return NULL;
            }
            n->more = l.v;
            n->n_more = 1;
        }
        if (!first) {
            first = cond;
        }
        n = cond;
        if (!jp_is_name(p, "elif")) {
            break;
        }
    }
    if (jp_skip_name(p, "else") && !body_until(p, last, &n->more, &n->n_more)) {
        return NULL;
    }
    jp_next(p); // endif
    return first;
}

/* for TARGET in VALUES [if TEST] [recursive]. VALUES must not be a conditional expression, since
 * `if` begins the test. */
static struct jnode *parse_for(struct jparser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    static const char *const last[] = {"endfor", NULL};
    struct jnode *n = jp_node(p, N_FOR);
    jp_next(p);
    if (!n || !(n->a = jp_target(p, false, true))) {
        return NULL;
    }
    if (!jp_skip_name(p, "in")) {
        jp_unexpected(p, "'in'");
        return NULL;
    }
    n->b = jp_tuple(p, false, false);
    if (n->b && jp_skip_name(p, "if") && !(n->c = jp_expression(p, true))) {
        return NULL;
    }
    n->flag = jp_skip_name(p, "recursive");
    if (!n->b || !body_until(p, ends, &n->kids, &n->n_kids)) {
        return NULL;
    }
    if (jp_next(p)->n_bytes == strlen("else")) {
        if (!body_until(p, last, &n->more, &n->n_more)) {
            return NULL;
        }
        jp_next(p);
    }
    return n;
}

/* set TARGET = VALUE, or a block whose output, optionally filtered, is the value. */
static struct jnode *parse_set(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_SET);
    jp_next(p);
    if (!n || !(n->a = jp_target(p, true, false))) {
        return NULL;
    }
    if (jp_skip_op(p, '=')) {
        n->b = jp_tuple(p, true, false);
        return n->b ? n : NULL;
    }
    n->kind = N_SET_BLOCK;
    n->b = jp_is_op(p, '|') ? jp_filters(p, NULL, false) : NULL;
    if (p->rt->st == OK && body_to(p, "endset", n)) {
        return n;
    }
    return NULL;
}

/* Doubles the three arrays together, which have one entry for each parameter. */
static bool grow_signature(struct jparser *p, struct jsignature *sig, int *cap)
{
    if (sig->n < *cap) {
        return true;
    }
    int wider = *cap ? *cap * 2 : 8;
    int *syms = jrt_alloc(p->rt, (size_t)wider, sizeof *syms);
    struct jstr **names = jrt_alloc(p->rt, (size_t)wider, sizeof(struct jstr *));
    struct jnode **defaults = jrt_alloc(p->rt, (size_t)wider, sizeof(struct jnode *));
    if (!syms || !names || !defaults) {
        return false;
    }
    if (sig->n > 0) {
        memcpy(syms, sig->syms, (size_t)sig->n * sizeof *syms);
        memcpy(names, sig->names, (size_t)sig->n * sizeof(struct jstr *));
        memcpy(defaults, sig->defaults, (size_t)sig->n * sizeof(struct jnode *));
    }
    sig->syms = syms;
    sig->names = names;
    sig->defaults = defaults;
    *cap = wider;
    return true;
}

/* (name, name=default, ...): a parameter without a default may not follow one that has a
 * default. */
static struct jsignature *parse_signature(struct jparser *p)
{
    struct jsignature *sig = jrt_alloc(p->rt, 1, sizeof *sig);
    int cap = 0;
    if (!sig || !jp_expect_op(p, '(')) {
        return NULL;
    }
    bool had_default = false;
    while (!jp_is_op(p, ')')) {
        if (sig->n > 0 && !jp_expect_op(p, ',')) {
            return NULL;
        }
        const struct jtoken *t = jp_expect_name(p);
        if (!t || !grow_signature(p, sig, &cap)) {
            return NULL;
        }
        int i = sig->n++;
        sig->syms[i] = jinja_symbol(p->t, t->s, t->n_bytes);
        sig->names[i] = jp_text(p, t);
        sig->defaults[i] = NULL;
        if (jp_skip_op(p, '=')) {
            had_default = true;
            if (!(sig->defaults[i] = jp_expression(p, true))) {
                return NULL;
            }
        } else if (had_default) {
            jinja_syntax(p->rt, t->line, "non-default argument follows default argument");
            return NULL;
        }
    }
    jp_next(p);
    return p->rt->st == OK ? sig : NULL;
}

/* A macro's name is assigned in the scope that contains it. */
static struct jnode *parse_macro(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_MACRO);
    jp_next(p);
    const struct jtoken *name = n ? jp_expect_name(p) : NULL;
    if (!name) {
        return NULL;
    }
    n->sym = jinja_symbol(p->t, name->s, name->n_bytes);
    struct jstr *s = jp_text(p, name);
    if (!s || n->sym < 0) {
        return NULL;
    }
    n->value = jv_str(s);
    n->sig = parse_signature(p);
    if (n->sig && body_to(p, "endmacro", n)) {
        return n;
    }
    return NULL;
}

/* call(args) expr(...): the expression must be a call, which gets the body as `caller`. */
static struct jnode *parse_call_block(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_CALL_BLOCK);
    jp_next(p);
    if (!n) {
        return NULL;
    }
    if (jp_is_op(p, '(')) {
        n->sig = parse_signature(p);
    } else {
        n->sig = jrt_alloc(p->rt, 1, sizeof *n->sig);
    }
    n->a = n->sig ? jp_expression(p, true) : NULL;
    if (n->a && n->a->kind != N_CALL) {
        jinja_syntax(p->rt, n->line, "expected call");
        return NULL;
    }
    if (n->a && body_to(p, "endcall", n)) {
        return n;
    }
    return NULL;
}

static struct jnode *parse_filter_block(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_FILTER_BLOCK);
    jp_next(p);
    if (!n || !(n->a = jp_filters(p, NULL, true))) {
        return NULL;
    }
    return body_to(p, "endfilter", n) ? n : NULL;
}

/* Targets and values alternate in n->more. */
static struct jnode *parse_with(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_WITH);
    struct jnodes l = {0};
    jp_next(p);
    while (n && jp_token(p)->kind != T_BLOCK_END) {
        if ((l.n > 0 && !jp_expect_op(p, ',')) || !jp_push(p, &l, jp_target(p, false, false)) ||
            !jp_expect_op(p, '=') || !jp_push(p, &l, jp_expression(p, true))) {
            return NULL;
        }
    }
    if (!n) {
        return NULL;
    }
    n->more = l.v;
    n->n_more = l.n;
    return body_to(p, "endwith", n) ? n : NULL;
}

/* endblock may repeat the block's name. */
static struct jnode *parse_block(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_BLOCK);
    jp_next(p);
    const struct jtoken *name = n ? jp_expect_name(p) : NULL;
    if (!name) {
        return NULL;
    }
    n->flag = jp_skip_name(p, "scoped");
    if (!body_to(p, "endblock", n)) {
        return NULL;
    }
    const struct jtoken *again = jp_token(p);
    if (again->kind == T_NAME && again->n_bytes == name->n_bytes &&
        memcmp(again->s, name->s, name->n_bytes) == 0) {
        jp_next(p);
    }
    return n;
}

/* {% autoescape VALUE %} */
static struct jnode *parse_autoescape(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_AUTOESCAPE);
    jp_next(p);
    if (!n || !(n->a = jp_expression(p, true))) {
        return NULL;
    }
    return body_to(p, "endautoescape", n) ? n : NULL;
}

/* {% generation %}, which Hugging Face adds for training: its body is output unchanged. */
static struct jnode *parse_generation(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_GENERATION);
    jp_next(p);
    if (n && body_to(p, "endgeneration", n)) {
        return n;
    }
    return NULL;
}

static struct jnode *parse_word(struct jparser *p, enum jnode_kind kind)
{
    struct jnode *n = jp_node(p, kind);
    jp_next(p);
    return n;
}

static struct jnode *parse_break(struct jparser *p)
{
    return parse_word(p, N_BREAK);
}

static struct jnode *parse_continue(struct jparser *p)
{
    return parse_word(p, N_CONTINUE);
}

/* There is no loader for include or import: the statement fails when it is executed. */
static struct jnode *parse_no_loader(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_NO_LOADER);
    while (jp_token(p)->kind != T_BLOCK_END && jp_token(p)->kind != T_EOF) {
        jp_next(p);
    }
    return n;
}

/* {% print a, b %} */
static struct jnode *parse_print(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_CONCAT);
    struct jnodes l = {0};
    jp_next(p);
    while (jp_token(p)->kind != T_BLOCK_END) {
        if ((l.n > 0 && !jp_expect_op(p, ',')) || !jp_push(p, &l, jp_expression(p, true))) {
            return NULL;
        }
    }
    struct jnode *out = n ? jp_node(p, N_PRINT) : NULL;
    if (!out) {
        return NULL;
    }
    n->kids = l.v;
    n->n_kids = l.n;
    out->a = n;
    return out;
}

static const struct statement {
    const char *name;
    struct jnode *(*parse)(struct jparser *p);
} statements[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"block", parse_block},
    {"autoescape", parse_autoescape},
    {"generation", parse_generation},
    {"break", parse_break},
    {"continue", parse_continue},
    {"print", parse_print},
    {"include", parse_no_loader},
    {"import", parse_no_loader},
    {"from", parse_no_loader},
    {"extends", parse_no_loader},
};

/* The depth of nested statements is limited here, since bodies are parsed recursively. */
static struct jnode *parse_statement(struct jparser *p)
{
    const struct jtoken *t = jp_token(p);
    if (t->kind != T_NAME) {
        jp_unexpected(p, "tag name");
        return NULL;
    }
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (jp_is_name(p, statements[i].name)) {
            if (++p->nest > JINJA_MAX_NEST) {
                jinja_syntax(p->rt, t->line, "nested too deeply");
                return NULL;
            }
            struct jnode *n = statements[i].parse(p);
            p->nest--;
            return n;
        }
    }
    jinja_syntax(p->rt, t->line, "Encountered unknown tag '%.*s'.",
                 t->n_bytes < 60 ? (int)t->n_bytes : 60, t->s);
    return NULL;
}

/* Tags that end the current body. */
static bool is_end(const struct jparser *p, const char *const *ends)
{
    for (; ends && *ends; ends++) {
        if (jp_is_name(p, *ends)) {
            return true;
        }
    }
    return false;
}

/* {{ ... }} */
static struct jnode *parse_print_tag(struct jparser *p)
{
    jp_next(p);
    struct jnode *n = jp_node(p, N_PRINT);
    if (!n || !(n->a = jp_tuple(p, true, false))) {
        return NULL;
    }
    if (jp_token(p)->kind != T_VAR_END) {
        jp_unexpected(p, "end of print statement");
        return NULL;
    }
    jp_next(p);
    return n;
}

/* Text between tags. */
static struct jnode *parse_data(struct jparser *p)
{
    struct jnode *n = jp_node(p, N_DATA);
    struct jstr *s = n ? jp_text(p, jp_next(p)) : NULL;
    if (!s) {
        return NULL;
    }
    n->value = jv_str(s);
    return n;
}

/* Statements up to an end tag (ends NULL: up to the end of the source). */
static bool parse_body(struct jparser *p, const char *const *ends, struct jnodes *body)
{
    for (;;) {
        const struct jtoken *t = jp_token(p);
        struct jnode *n;
        if (t->kind == T_EOF) {
            return !ends || jp_unexpected(p, ends[0]);
        }
        if (t->kind == T_DATA) {
            n = parse_data(p);
        } else if (t->kind == T_VAR_BEGIN) {
            n = parse_print_tag(p);
        } else {
            jp_next(p); // {%
            if (is_end(p, ends)) {
                return true;
            }
            n = parse_statement(p);
            if (n && jp_token(p)->kind != T_BLOCK_END) {
                return jp_unexpected(p, "end of statement block");
            }
            jp_next(p);
        }
        if (!jp_push(p, body, n)) {
            return false;
        }
    }
}

/* Names that the executor looks up itself get fixed symbols, before all others. */
bool jinja_parse(struct jinja_template *t, const struct jtoken *tokens, size_t n_tokens)
{
    (void)n_tokens; // the list ends with T_EOF, which is never skipped
    struct jparser p = {.rt = &t->rt, .t = t, .tokens = tokens};
    t->sym_loop = jinja_symbol(t, "loop", 4);
    t->sym_caller = jinja_symbol(t, "caller", 6);
    t->sym_kwargs = jinja_symbol(t, "kwargs", 6);
    t->sym_varargs = jinja_symbol(t, "varargs", 7);
    struct jnodes body = {0};
    if (t->rt.st != OK || !parse_body(&p, NULL, &body)) {
        return false;
    }
    t->body = body.v;
    t->n_body = body.n;
    return true;
}
