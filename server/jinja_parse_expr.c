#include "engine/base/utf8.h"
#include "server/jinja_eval.h"
#include "server/jinja_num.h"
#include "server/jinja_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool jp_is_op(const struct jparser *p, int op)
{
    return jp_token(p)->kind == T_OP && jp_token(p)->op == op;
}

static bool token_is(const struct jtoken *t, const char *name)
{
    return t->kind == T_NAME && t->n_bytes == strlen(name) && memcmp(t->s, name, t->n_bytes) == 0;
}

bool jp_is_name(const struct jparser *p, const char *name)
{
    return token_is(jp_token(p), name);
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

static struct jnode *with_kids(struct jparser *p, enum jnode_kind kind, const struct jnodes *l)
{
    struct jnode *n = jp_node(p, kind);
    if (n) {
        n->kids = l->v;
        n->n_kids = l->n;
    }
    return n;
}

static struct jnode *two(struct jparser *p, enum jnode_kind kind, struct jnode *a, struct jnode *b)
{
    struct jnode *n = a && b ? jp_node(p, kind) : NULL;
    if (n) {
        n->a = a;
        n->b = b;
    }
    return n;
}

static struct jnode *one(struct jparser *p, enum jnode_kind kind, struct jnode *a)
{
    struct jnode *n = a ? jp_node(p, kind) : NULL;
    if (n) {
        n->a = a;
    }
    return n;
}

static struct jnode *constant(struct jparser *p, struct jv v)
{
    struct jnode *n = jp_node(p, N_CONST);
    if (n) {
        n->value = v;
    }
    return n;
}

/* Renders share constants, so everything that is found out lazily is found out now. */
static struct jstr *settled(struct jstr *s)
{
    if (s) {
        js_chars(s);
    }
    return s;
}

struct jstr *jp_text(struct jparser *p, const struct jtoken *t)
{
    return settled(js_new(p->rt, t->s, t->n_bytes, PROV_TEMPLATE));
}

/* ---- literals ---- */

static int hex_digits(const char *s, size_t n_bytes, size_t want, uint32_t *cp)
{
    if (n_bytes < want) {
        return -1;
    }
    *cp = 0;
    for (size_t i = 0; i < want; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) {
            return -1;
        }
        *cp = *cp * 16 + (uint32_t)d;
    }
    return *cp <= 0x10FFFF ? (int)want : -1;
}

static void put_scalar(struct jsb *b, uint32_t cp)
{
    jsb_put_cp(b, cp >= 0xD800 && cp < 0xE000 ? 0xFFFD : cp, false);
}

/* The escape behind a backslash; returns the bytes it takes, -1 if it is malformed. */
static int put_escape(struct jsb *b, const char *s, size_t n_bytes)
{
    static const char plain[] = "\\'\"abfnrtv", value[] = "\\'\"\a\b\f\n\r\t\v";
    const char *at = strchr(plain, s[0]);
    uint32_t cp = 0;
    if (s[0] == '\n') {
        return 1;
    }
    if (s[0] && at) {
        jsb_putc(b, value[at - plain], false);
        return 1;
    }
    if (s[0] >= '0' && s[0] <= '7') {
        int n = 0;
        while (n < 3 && (size_t)n < n_bytes && s[n] >= '0' && s[n] <= '7') {
            cp = cp * 8 + (uint32_t)(s[n++] - '0');
        }
        put_scalar(b, cp);
        return n;
    }
    if (s[0] == 'x' || s[0] == 'u' || s[0] == 'U') {
        size_t want = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : 8;
        if (hex_digits(s + 1, n_bytes - 1, want, &cp) < 0) {
            return -1;
        }
        put_scalar(b, cp);
        return (int)want + 1;
    }
    if (s[0] == 'N') {
        return -1; // names of characters: not supported
    }
    jsb_putc(b, '\\', false);
    if ((unsigned char)s[0] < 0x80) {
        jsb_putc(b, s[0], false);
        return 1;
    }
    /* Jinja2 writes other characters as escapes first; a backslash before one hits that text. */
    char text[12];
    int n = (int)utf8_decode(s, n_bytes, &cp);
    snprintf(text, sizeof text, cp < 0x100 ? "x%02x" : cp < 0x10000 ? "u%04x" : "U%08x", cp);
    jsb_puts(b, text);
    return n;
}

static bool put_literal(struct jparser *p, struct jsb *b, const struct jtoken *t)
{
    const char *s = t->s + 1;
    size_t n = t->n_bytes - 2;
    for (size_t i = 0; i < n;) {
        size_t run = i;
        while (run < n && s[run] != '\\') {
            run++;
        }
        jsb_put(b, s + i, run - i, false);
        i = run;
        if (i < n) {
            int took = put_escape(b, s + i + 1, n - i - 1);
            if (took < 0) {
                return jinja_syntax(p->rt, t->line, "a malformed escape in a string");
            }
            i += 1 + (size_t)took;
        }
    }
    return !b->failed;
}

static struct jnode *string_literal(struct jparser *p)
{
    struct jsb b;
    jsb_init(&b, p->rt);
    while (jp_token(p)->kind == T_STRING) {
        if (!put_literal(p, &b, jp_next(p))) {
            return NULL;
        }
    }
    struct jstr *s = settled(jsb_done(&b));
    return s ? constant(p, jv_str(s)) : NULL;
}

static struct jnode *number_literal(struct jparser *p)
{
    const struct jtoken *t = jp_next(p);
    struct jv v;
    bool ok = true;
    if (t->kind == T_INT) {
        if (!jnum_parse_int(p->rt, t->s, t->n_bytes, 0, &v, &ok)) {
            return NULL;
        }
        if (!ok) { // 00 is fine, and longer ones than int() takes are not
            jinja_syntax(p->rt, t->line, "a number is too long");
            return NULL;
        }
        return constant(p, v);
    }
    double f;
    if (!jnum_parse_float(t->s, t->n_bytes, &f)) {
        jinja_syntax(p->rt, t->line, "a number is too long");
        return NULL;
    }
    return constant(p, jv_float(f));
}

static struct jnode *list_literal(struct jparser *p)
{
    struct jnodes l = {0};
    jp_next(p);
    while (!jp_is_op(p, ']')) {
        if (l.n > 0 && !jp_expect_op(p, ',')) {
            return NULL;
        }
        if (jp_is_op(p, ']')) {
            break;
        }
        if (!jp_push(p, &l, jp_expression(p, true))) {
            return NULL;
        }
    }
    return jp_expect_op(p, ']') ? with_kids(p, N_LIST, &l) : NULL;
}

static struct jnode *dict_literal(struct jparser *p)
{
    struct jnodes l = {0};
    jp_next(p);
    while (!jp_is_op(p, '}')) {
        if (l.n > 0 && !jp_expect_op(p, ',')) {
            return NULL;
        }
        if (jp_is_op(p, '}')) {
            break;
        }
        if (!jp_push(p, &l, jp_expression(p, true)) || !jp_expect_op(p, ':') ||
            !jp_push(p, &l, jp_expression(p, true))) {
            return NULL;
        }
    }
    return jp_expect_op(p, '}') ? with_kids(p, N_DICT, &l) : NULL;
}

static struct jnode *name_expr(struct jparser *p, bool with_namespace)
{
    const struct jtoken *t = jp_next(p);
    if (token_is(t, "true") || token_is(t, "True")) {
        return constant(p, jv_bool(true));
    }
    if (token_is(t, "false") || token_is(t, "False")) {
        return constant(p, jv_bool(false));
    }
    if (token_is(t, "none") || token_is(t, "None")) {
        return constant(p, jv_none());
    }
    struct jnode *n = jp_node(p, N_NAME);
    if (!n) {
        return NULL;
    }
    n->sym = jinja_symbol(p->t, t->s, t->n_bytes);
    n->value = jv_str(p->t->names.names[n->sym < 0 ? 0 : n->sym]);
    if (with_namespace && jp_skip_op(p, '.')) {
        const struct jtoken *attr = jp_expect_name(p);
        struct jstr *s = attr ? jp_text(p, attr) : NULL;
        if (!s) {
            return NULL;
        }
        n->kind = N_NSREF;
        n->value = jv_str(s);
    }
    return n->sym >= 0 ? n : NULL;
}

static struct jnode *primary(struct jparser *p, bool with_namespace)
{
    const struct jtoken *t = jp_token(p);
    switch (t->kind) {
    case T_NAME: return name_expr(p, with_namespace);
    case T_STRING: return string_literal(p);
    case T_INT:
    case T_FLOAT: return number_literal(p);
    default: break;
    }
    if (jp_is_op(p, '[')) {
        return list_literal(p);
    }
    if (jp_is_op(p, '{')) {
        return dict_literal(p);
    }
    if (jp_skip_op(p, '(')) {
        struct jnode *n = jp_tuple(p, true, true);
        return n && jp_expect_op(p, ')') ? n : NULL;
    }
    jp_unexpected(p, "an expression");
    return NULL;
}

/* ---- calls, subscripts, filters, tests ---- */

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

static bool parse_argument(struct jparser *p, struct jcall_node *call, struct jnodes *pos, int *cap)
{
    if (jp_is_op(p, '*')) {
        jp_next(p);
        return (!call->star && !call->star2) || bad_call(p)
                   ? (call->star = jp_expression(p, true)) != NULL
                   : false;
    }
    if (jp_is_op(p, JOPCODE('*', '*'))) {
        jp_next(p);
        return !call->star2 || bad_call(p) ? (call->star2 = jp_expression(p, true)) != NULL : false;
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
    struct jnode *n = one(p, N_CALL, on);
    if (n) {
        n->call = call_args(p);
    }
    return n && n->call ? n : NULL;
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

static struct jnode *subscript(struct jparser *p, struct jnode *on)
{
    if (jp_skip_op(p, '.')) {
        const struct jtoken *t = jp_next(p);
        if (t->kind == T_INT) {
            p->at--;
            return two(p, N_ITEM, on, number_literal(p));
        }
        if (t->kind != T_NAME) {
            jinja_syntax(p->rt, t->line, "expected name or number");
            return NULL;
        }
        struct jnode *n = one(p, N_ATTR, on);
        struct jstr *name = n ? jp_text(p, t) : NULL;
        if (!name) {
            return NULL;
        }
        n->value = jv_str(name);
        n->methods = jinja_methods_find(t->s, t->n_bytes);
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
    struct jnode *index = l.n == 1 ? l.v[0] : with_kids(p, N_TUPLE, &l);
    if (index && index->kind == N_SLICE && !index->a) { // not the value of another slice
        index->a = on;
        return index;
    }
    struct jnode *n = two(p, N_ITEM, on, index);
    if (n && index->kind == N_CONST && index->value.type == JV_STR) {
        n->methods = jinja_methods_find(index->value.u.s->s, index->value.u.s->n_bytes);
    }
    return n;
}

static struct jnode *postfix(struct jparser *p, struct jnode *n)
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

/* A name, perhaps with dots, as filters and tests have it. */
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
    return settled(jsb_done(&b));
}

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
        n->filter = jinja_filter_find(name->s, name->n_bytes);
        n->call = jp_is_op(p, '(') ? call_args(p) : jrt_alloc(p->rt, 1, sizeof *n->call);
        if (!n->call) {
            return NULL;
        }
        on = n;
    }
    return on;
}

/* The argument of a test may stand without parentheses. */
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
    struct jnode *n = primary(p, false);
    if (!jp_push(p, &pos, n ? postfix(p, n) : NULL)) {
        return NULL;
    }
    call->pos = pos.v;
    call->n_pos = 1;
    return call;
}

static struct jnode *test_expr(struct jparser *p, struct jnode *on)
{
    jp_next(p); // is
    bool negated = jp_skip_name(p, "not");
    struct jnode *n = one(p, N_TEST, on);
    struct jstr *name = n ? dotted_name(p) : NULL;
    if (!name) {
        return NULL;
    }
    n->value = jv_str(name);
    n->test = jinja_test_find(name->s, name->n_bytes);
    n->call = jp_is_op(p, '(') ? call_args(p) : test_args(p);
    if (!n->call) {
        return NULL;
    }
    return negated ? one(p, N_NOT, n) : n;
}

static struct jnode *filter_expr(struct jparser *p, struct jnode *n)
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

/* ---- operators, loosest last ---- */

static struct jnode *unary(struct jparser *p, bool with_filter)
{
    struct jnode *n;
    if (jp_is_op(p, '-') || jp_is_op(p, '+')) {
        enum jnode_kind kind = jp_next(p)->op == '-' ? N_NEG : N_POS;
        if (++p->nest > JINJA_MAX_NEST) {
            jinja_syntax(p->rt, jp_token(p)->line, "nested too deeply");
            return NULL;
        }
        n = one(p, kind, unary(p, false));
        p->nest--;
    } else {
        n = primary(p, false);
    }
    n = postfix(p, n);
    return with_filter ? filter_expr(p, n) : n;
}

static struct jnode *binary(struct jparser *p, enum jop op, struct jnode *a, struct jnode *b)
{
    struct jnode *n = two(p, N_BINARY, a, b);
    if (n) {
        n->op = (uint8_t)op;
    }
    return n;
}

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
    return l.n == 1 ? l.v[0] : with_kids(p, N_CONCAT, &l);
}

static struct jnode *sum(struct jparser *p)
{
    struct jnode *left = concat(p);
    while (left && (jp_is_op(p, '+') || jp_is_op(p, '-'))) {
        enum jop op = jp_next(p)->op == '+' ? JOP_ADD : JOP_SUB;
        left = binary(p, op, left, concat(p));
    }
    return left;
}

static int compare_op(struct jparser *p)
{
    static const struct {
        int op, compare;
    } ops[] = {{JOPCODE('=', '='), JC_EQ}, {JOPCODE('!', '='), JC_NE}, {'<', JC_LT},
               {JOPCODE('<', '='), JC_LE}, {'>', JC_GT},               {JOPCODE('>', '='), JC_GE}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (jp_skip_op(p, ops[i].op)) {
            return ops[i].compare;
        }
    }
    if (jp_skip_name(p, "in")) {
        return JC_IN;
    }
    if (jp_is_name(p, "not") && token_is(jp_token(p) + 1, "in")) {
        p->at += 2;
        return JC_NOT_IN;
    }
    return -1;
}

static struct jnode *comparison(struct jparser *p)
{
    struct jnode *first = sum(p);
    struct jnodes l = {0};
    int op;
    while (first && (op = compare_op(p)) >= 0) {
        struct jnode *n = one(p, N_OPERAND, sum(p));
        if (!jp_push(p, &l, n)) {
            return NULL;
        }
        n->op = (uint8_t)op;
    }
    if (!first || l.n == 0) {
        return first;
    }
    struct jnode *n = with_kids(p, N_COMPARE, &l);
    if (n) {
        n->a = first;
    }
    return n;
}

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
        n = one(p, N_NOT, n);
    }
    return n;
}

static struct jnode *conjunction(struct jparser *p)
{
    struct jnode *left = negation(p);
    while (left && jp_skip_name(p, "and")) {
        left = two(p, N_AND, left, negation(p));
    }
    return left;
}

static struct jnode *disjunction(struct jparser *p)
{
    struct jnode *left = conjunction(p);
    while (left && jp_skip_name(p, "or")) {
        left = two(p, N_OR, left, conjunction(p));
    }
    return left;
}

struct jnode *jp_expression(struct jparser *p, bool with_cond)
{
    if (++p->nest > JINJA_MAX_NEST) {
        jinja_syntax(p->rt, jp_token(p)->line, "nested too deeply");
        return NULL;
    }
    struct jnode *n = disjunction(p);
    while (n && with_cond && jp_skip_name(p, "if")) {
        struct jnode *cond = two(p, N_COND, n, disjunction(p));
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
    return with_kids(p, N_TUPLE, &l);
}

struct jnode *jp_tuple(struct jparser *p, bool with_cond, bool in_parentheses)
{
    return tuple(p, jp_expression, with_cond, in_parentheses, false);
}

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

struct jnode *jp_target(struct jparser *p, bool with_namespace, bool stop_at_in)
{
    struct jnode *n = tuple(p, primary, with_namespace, false, stop_at_in);
    if (n && !assignable(n)) {
        jinja_syntax(p->rt, n->line, "can't assign to this expression");
        return NULL;
    }
    return n;
}
