// SPDX-License-Identifier: Apache-2.0
#include "engine/torch/pickle.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_BYTES = 8 << 20,   // chosen: a tensor takes some 150
    MAX_GLOBAL_BYTES = 80, // chosen: of a module and of a name
    MAX_PROTOCOL = 5,
    NONE_REF = 0,
};

/* The machine: a stack of nodes, marks in it, and a memo. */
struct machine {
    const unsigned char *data;
    size_t n_bytes, at;
    const char *path;
    struct err *err;
    pickle_find_global *find;
    struct pickle *p;
    pickle_ref *stack;
    size_t n_stack, cap_stack;
    size_t *marks; // the height of the stack at each mark
    size_t n_marks, cap_marks;
    pickle_ref *memo;
    size_t n_memo, cap_memo;
};

/* ---- nodes -------------------------------------------------------------------------------- */

/* Room for one more element. All of them grow with the bytes that were read. */
static void *grow(void *v, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) {
        return v;
    }
    *cap = *cap ? *cap * 2 : 64;
    return xrealloc(v, *cap * size);
}

static pickle_ref add_node(struct pickle *p, struct pickle_node node)
{
    p->nodes = grow(p->nodes, p->n_nodes, &p->cap_nodes, sizeof *p->nodes);
    p->nodes[p->n_nodes] = node;
    return (pickle_ref)p->n_nodes++;
}

static void add_item(struct pickle *p, pickle_ref to, pickle_ref key, pickle_ref value)
{
    p->items = grow(p->items, p->n_items, &p->cap_items, sizeof *p->items);
    const uint32_t item = (uint32_t)p->n_items++;
    p->items[item] = (struct pickle_item){.key = key, .value = value};
    struct pickle_node *node = &p->nodes[to];
    if (node->n == 0) {
        node->first = item;
    } else {
        p->items[node->last].next = item;
    }
    node->last = item;
    node->n++;
}

pickle_ref pickle_item_at(const struct pickle *p, pickle_ref tuple, uint32_t i)
{
    const struct pickle_node *node = &p->nodes[tuple];
    if (node->kind != PICKLE_TUPLE || i >= node->n) {
        return NONE_REF;
    }
    uint32_t item = node->first;
    while (i-- > 0) {
        item = p->items[item].next;
    }
    return p->items[item].value;
}

/* ---- the stack ---------------------------------------------------------------------------- */

static enum status bad(const struct machine *m, const char *why)
{
    return err_set(m->err, ERR_FORMAT, "%.300s: its pickle %s, at byte %zu", m->path, why, m->at);
}

static void push(struct machine *m, pickle_ref ref)
{
    m->stack = grow(m->stack, m->n_stack, &m->cap_stack, sizeof *m->stack);
    m->stack[m->n_stack++] = ref;
}

static void push_node(struct machine *m, struct pickle_node node)
{
    push(m, add_node(m->p, node));
}

/* The lowest element that may be removed: those below the last mark belong to an outer value. */
static size_t floor_of(const struct machine *m)
{
    return m->n_marks > 0 ? m->marks[m->n_marks - 1] : 0;
}

static bool has(const struct machine *m, size_t n)
{
    return m->n_stack - floor_of(m) >= n;
}

/* Removes the last mark; the elements above it begin at *from. */
static enum status pop_mark(struct machine *m, size_t *from)
{
    *from = 0;
    if (m->n_marks == 0) {
        return bad(m, "lacks a mark");
    }
    *from = m->marks[--m->n_marks];
    return OK;
}

static enum status make_tuple(struct machine *m, size_t from)
{
    const pickle_ref tuple = add_node(m->p, (struct pickle_node){.kind = PICKLE_TUPLE});
    for (size_t i = from; i < m->n_stack; i++) {
        add_item(m->p, tuple, NONE_REF, m->stack[i]);
    }
    m->n_stack = from;
    push(m, tuple);
    return OK;
}

/* Moves the elements from `from` on into the list below them. */
static enum status append(struct machine *m, size_t from)
{
    if (from <= floor_of(m) || from > m->n_stack) {
        return bad(m, "appends to nothing");
    }
    const pickle_ref list = m->stack[from - 1];
    if (m->p->nodes[list].kind != PICKLE_LIST) {
        return bad(m, "appends to something that is not a list");
    }
    for (size_t i = from; i < m->n_stack; i++) {
        add_item(m->p, list, NONE_REF, m->stack[i]);
    }
    m->n_stack = from;
    return OK;
}

/* Moves the pairs from `from` on into the dict below them. A dict may be the result of a call. */
static enum status set_items(struct machine *m, size_t from)
{
    if (from <= floor_of(m) || from > m->n_stack || (m->n_stack - from) % 2 != 0) {
        return bad(m, "sets items of nothing");
    }
    const pickle_ref dict = m->stack[from - 1];
    const enum pickle_kind kind = m->p->nodes[dict].kind;
    if (kind != PICKLE_DICT && kind != PICKLE_CALL) {
        return bad(m, "sets items of something that is not a dict");
    }
    for (size_t i = from; i < m->n_stack; i += 2) {
        add_item(m->p, dict, m->stack[i], m->stack[i + 1]);
    }
    m->n_stack = from;
    return OK;
}

/* ---- calls -------------------------------------------------------------------------------- */

static bool is_plain(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] <= ' ' || s[i] > '~') {
            return false;
        }
    }
    return n > 0 && n <= MAX_GLOBAL_BYTES;
}

static enum status push_global(struct machine *m, const char *module, size_t n_module,
                               const char *name, size_t n_name)
{
    char a[MAX_GLOBAL_BYTES + 1] = "", b[MAX_GLOBAL_BYTES + 1] = "";
    if (!is_plain(module, n_module) || !is_plain(name, n_name)) {
        return bad(m, "has the name of a global that is empty, too long or not text");
    }
    memcpy(a, module, n_module);
    memcpy(b, name, n_name);
    const int32_t found = m->find(a, b);
    if (found < 0) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%.300s uses the pickled global %s.%s, which sluice does not execute: only "
                       "plain tensors are read",
                       m->path, a, b);
    }
    push_node(m, (struct pickle_node){.kind = PICKLE_GLOBAL, .number = found});
    return OK;
}

static enum status push_call(struct machine *m)
{
    if (!has(m, 2)) {
        return bad(m, "calls nothing");
    }
    const pickle_ref args = m->stack[m->n_stack - 1], function = m->stack[m->n_stack - 2];
    if (m->p->nodes[function].kind != PICKLE_GLOBAL || m->p->nodes[args].kind != PICKLE_TUPLE) {
        return bad(m, "calls something that is not a global");
    }
    m->n_stack -= 2;
    push_node(m, (struct pickle_node){.kind = PICKLE_CALL, .function = function, .args = args});
    return OK;
}

/* ---- arguments of opcodes ----------------------------------------------------------------- */

static const unsigned char *take(struct machine *m, size_t n)
{
    if (n > m->n_bytes - m->at) {
        return NULL;
    }
    m->at += n;
    return m->data + m->at - n;
}

/* A little-endian number of at most 8 bytes. */
static bool take_number(struct machine *m, size_t n, uint64_t *v)
{
    const unsigned char *p = take(m, n);
    *v = 0;
    for (size_t i = n; p && i-- > 0;) {
        *v = *v << 8 | p[i];
    }
    return p != NULL;
}

static bool take_line(struct machine *m, const char **text, size_t *n)
{
    const unsigned char *p = m->data + m->at;
    const unsigned char *end = memchr(p, '\n', m->n_bytes - m->at);
    if (!end) {
        return false;
    }
    *text = (const char *)p;
    *n = (size_t)(end - p);
    m->at += *n + 1;
    return true;
}

static enum status cut(const struct machine *m)
{
    return bad(m, "is cut short");
}

/* A length of n_length bytes, then as many bytes of text. */
static enum status push_text(struct machine *m, size_t n_length)
{
    uint64_t n;
    const unsigned char *p = take_number(m, n_length, &n) ? take(m, n) : NULL;
    if (!p) {
        return cut(m);
    }
    push_node(m, (struct pickle_node){.kind = PICKLE_TEXT, .text = (const char *)p, .n_bytes = n});
    return OK;
}

/* An unsigned number, or a signed one of 4 bytes. */
static enum status push_int(struct machine *m, size_t n)
{
    uint64_t v;
    if (!take_number(m, n, &v)) {
        return cut(m);
    }
    const int64_t value = n == 4 ? (int32_t)(uint32_t)v : (int64_t)v;
    push_node(m, (struct pickle_node){.kind = PICKLE_INT, .number = value});
    return OK;
}

/* An integer of any length, in two's complement. */
static enum status push_long(struct machine *m)
{
    uint64_t n, v;
    if (!take_number(m, 1, &n)) {
        return cut(m);
    }
    if (n > 8) {
        return bad(m, "has an integer of more than 64 bits");
    }
    if (!take_number(m, n, &v)) {
        return cut(m);
    }
    if (n > 0 && n < 8 && v >> (8 * n - 1) != 0) {
        v |= ~UINT64_C(0) << 8 * n;
    }
    push_node(m, (struct pickle_node){.kind = PICKLE_INT, .number = (int64_t)v});
    return OK;
}

/* ---- the memo ----------------------------------------------------------------------------- */

static enum status memoize(struct machine *m, uint64_t at)
{
    if (!has(m, 1) || at > m->n_bytes) { // each entry takes a byte at least
        return bad(m, "has a malformed memo");
    }
    while (m->n_memo <= at) {
        m->memo = grow(m->memo, m->n_memo, &m->cap_memo, sizeof *m->memo);
        m->memo[m->n_memo++] = NONE_REF;
    }
    m->memo[at] = m->stack[m->n_stack - 1];
    return OK;
}

static enum status put_memo(struct machine *m, size_t n_bytes)
{
    uint64_t at;
    return take_number(m, n_bytes, &at) ? memoize(m, at) : cut(m);
}

static enum status get_memo(struct machine *m, size_t n_bytes)
{
    uint64_t at;
    if (!take_number(m, n_bytes, &at)) {
        return cut(m);
    }
    if (at >= m->n_memo || m->memo[at] == NONE_REF) {
        return bad(m, "names a value that it does not have");
    }
    push(m, m->memo[at]);
    return OK;
}

/* ---- the opcodes -------------------------------------------------------------------------- */

static enum status read_protocol(struct machine *m)
{
    uint64_t v;
    if (!take_number(m, 1, &v)) {
        return cut(m);
    }
    return v <= MAX_PROTOCOL ? OK : bad(m, "has an unknown protocol");
}

static enum status skip(struct machine *m, size_t n)
{
    return take(m, n) ? OK : cut(m);
}

static enum status push_float(struct machine *m)
{
    TRY(skip(m, 8));
    push_node(m, (struct pickle_node){.kind = PICKLE_FLOAT});
    return OK;
}

static enum status push_kind(struct machine *m, enum pickle_kind kind, int64_t number)
{
    push_node(m, (struct pickle_node){.kind = kind, .number = number});
    return OK;
}

static enum status push_mark(struct machine *m)
{
    m->marks = grow(m->marks, m->n_marks, &m->cap_marks, sizeof *m->marks);
    m->marks[m->n_marks++] = m->n_stack;
    return OK;
}

static enum status tuple_of(struct machine *m, size_t n)
{
    return has(m, n) ? make_tuple(m, m->n_stack - n) : bad(m, "makes a tuple of nothing");
}

static enum status tuple_of_mark(struct machine *m)
{
    size_t from;
    TRY(pop_mark(m, &from));
    return make_tuple(m, from);
}

static enum status append_one(struct machine *m)
{
    return has(m, 2) ? append(m, m->n_stack - 1) : bad(m, "appends to nothing");
}

static enum status append_mark(struct machine *m)
{
    size_t from;
    TRY(pop_mark(m, &from));
    return append(m, from);
}

static enum status set_one(struct machine *m)
{
    return has(m, 3) ? set_items(m, m->n_stack - 2) : bad(m, "sets items of nothing");
}

static enum status set_mark(struct machine *m)
{
    size_t from;
    TRY(pop_mark(m, &from));
    return set_items(m, from);
}

static enum status read_global(struct machine *m)
{
    const char *module, *name;
    size_t n_module, n_name;
    if (!take_line(m, &module, &n_module) || !take_line(m, &name, &n_name)) {
        return cut(m);
    }
    return push_global(m, module, n_module, name, n_name);
}

static enum status global_of_stack(struct machine *m)
{
    if (!has(m, 2)) {
        return bad(m, "names a global of nothing");
    }
    const struct pickle_node name = m->p->nodes[m->stack[m->n_stack - 1]];
    const struct pickle_node module = m->p->nodes[m->stack[m->n_stack - 2]];
    m->n_stack -= 2;
    if (name.kind != PICKLE_TEXT || module.kind != PICKLE_TEXT) {
        return bad(m, "names a global by something that is not text");
    }
    return push_global(m, module.text, module.n_bytes, name.text, name.n_bytes);
}

static enum status persistent(struct machine *m)
{
    if (!has(m, 1)) {
        return bad(m, "has an empty persistent id");
    }
    const pickle_ref id = m->stack[--m->n_stack];
    push_node(m, (struct pickle_node){.kind = PICKLE_PERSISTENT, .args = id});
    return OK;
}

/* The state of an object, such as the attributes of a dict, is not kept; but the node says that
 * there was one. */
static enum status set_state(struct machine *m)
{
    if (!has(m, 2)) {
        return bad(m, "sets the state of nothing");
    }
    m->n_stack--;
    m->p->nodes[m->stack[m->n_stack - 1]].has_state = true;
    return OK;
}

static enum status run_one(struct machine *m, unsigned char op)
{
    switch (op) {
    case 0x80: return read_protocol(m);
    case 0x95: return skip(m, 8); // the length of a frame
    case 'N': return push_kind(m, PICKLE_NONE, 0);
    case 0x88: return push_kind(m, PICKLE_BOOL, 1);
    case 0x89: return push_kind(m, PICKLE_BOOL, 0);
    case 'K': return push_int(m, 1);
    case 'M': return push_int(m, 2);
    case 'J': return push_int(m, 4);
    case 0x8a: return push_long(m);
    case 'G': return push_float(m);
    case 0x8c: // text, Python 2's text, bytes
    case 'U':
    case 'C': return push_text(m, 1);
    case 'X':
    case 'T':
    case 'B': return push_text(m, 4);
    case 0x8d: return push_text(m, 8);
    case '(': return push_mark(m);
    case ')': return push_kind(m, PICKLE_TUPLE, 0);
    case 0x85: return tuple_of(m, 1);
    case 0x86: return tuple_of(m, 2);
    case 0x87: return tuple_of(m, 3);
    case 't': return tuple_of_mark(m);
    case ']': return push_kind(m, PICKLE_LIST, 0);
    case 'a': return append_one(m);
    case 'e': return append_mark(m);
    case '}': return push_kind(m, PICKLE_DICT, 0);
    case 's': return set_one(m);
    case 'u': return set_mark(m);
    case 'c': return read_global(m);
    case 0x93: return global_of_stack(m);
    case 'R':                       // a call
    case 0x81: return push_call(m); // a new object of a class
    case 'b': return set_state(m);
    case 'Q': return persistent(m);
    case 'q': return put_memo(m, 1);
    case 'r': return put_memo(m, 4);
    case 0x94: return memoize(m, m->n_memo);
    case 'h': return get_memo(m, 1);
    case 'j': return get_memo(m, 4);
    default: break;
    }
    return err_set(m->err, ERR_UNSUPPORTED,
                   "%.300s: its pickle has the opcode 0x%02x, which state dicts do not need",
                   m->path, op);
}

static enum status run(struct machine *m)
{
    for (;;) {
        const unsigned char *op = take(m, 1);
        if (!op) {
            return cut(m);
        }
        if (*op == '.') {
            break;
        }
        TRY(run_one(m, *op));
    }
    if (m->n_stack != 1 || m->n_marks != 0) {
        return bad(m, "does not end with one value");
    }
    m->p->root = m->stack[0];
    return OK;
}

enum status pickle_open(const unsigned char *data, size_t n_bytes, const char *path,
                        pickle_find_global *find, struct pickle *out, struct err *err)
{
    struct machine m = {
        .data = data, .n_bytes = n_bytes, .path = path, .err = err, .find = find, .p = out};
    *out = (struct pickle){0};
    if (n_bytes > MAX_BYTES) {
        return err_set(err, ERR_LIMIT, "%.300s: its pickle has more than %d bytes", path,
                       MAX_BYTES);
    }
    add_node(out, (struct pickle_node){.kind = PICKLE_NONE});
    const enum status st = run(&m);
    free(m.stack);
    free(m.marks);
    free(m.memo);
    return st;
}

void pickle_close(struct pickle *p)
{
    free(p->nodes);
    free(p->items);
    *p = (struct pickle){0};
}
