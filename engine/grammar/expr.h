// SPDX-License-Identifier: Apache-2.0
/* Expressions over bytes and rules. Every kind of grammar compiles to them, and states are made of
 * them. Equal expressions have equal ids (they are interned), so that a state of the automaton is
 * an id. What may follow after a byte is another expression, the derivative. Constructors keep a
 * normal form: no branch that is obviously dead, sequences nested to the right, alternatives
 * sorted, merged and factored by their first part.
 *
 * Three kinds are not operators of regular expressions but compact forms of large expressions:
 *   TEXT      a language over UTF-8 text, written as the inside of a JSON string, with its closing
 *             quote
 *   MULTIPLE  digits of a number that must be a multiple of another; the state is a remainder
 *   OBJECT    the rest of a JSON object whose properties come in order (object.h)
 *
 * Work is counted in units, one for each step of a constructor or a derivative, so that a limit
 * means the same on every machine. When a limit is exceeded, `failed` is set for good: expressions
 * built since then are meaningless.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_EXPR_H
#define SLUICE_ENGINE_GRAMMAR_EXPR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum expr_kind {
    X_NONE,     // matches nothing
    X_EMPTY,    // the empty text
    X_BYTES,    // a: a set of bytes
    X_SEQ,      // a, then b; a is not an X_SEQ
    X_ALT,      // b children at list[a]
    X_AND,      // as X_ALT
    X_NOT,      // a: every byte string that a does not match; under X_AND only
    X_REP,      // a, at least b and at most c times
    X_CALL,     // a: a rule
    X_TEXT,     // a: the language of the text; b: position within an escape (text.h)
    X_MULTIPLE, // a: modulus; b: remainder so far; c: a decimal point among the digits is skipped
    X_OBJECT,   // a: object; b: next property; c: number of pairs so far; see object.h
    X_KEY,      // a, b, c as X_OBJECT; d: node in the trie of names
};

enum expr_flag {
    XF_NULLABLE = 1,   // matches the empty text
    XF_CALLS = 2,      // contains an X_CALL
    XF_CALL_FIRST = 4, // may begin with an X_CALL
    XF_DOUBT = 8,      // contains an X_AND or X_NOT, so it may match nothing without being X_NONE
    XF_TEXT = 16,      // contains an X_TEXT
};

enum { EXPR_NONE = 0, EXPR_EMPTY = 1 };
#define EXPR_INF UINT32_MAX

/* The count of a repetition less `by`, but at least 0. EXPR_INF, which means no bound, stays. */
static inline uint32_t expr_less(uint32_t count, uint32_t by)
{
    if (count == EXPR_INF) {
        return EXPR_INF;
    }
    return count > by ? count - by : 0;
}

struct expr {
    uint8_t kind, flags;
    uint32_t hash, next; // next: in the same chain of the table
    uint32_t a, b, c, d;
    uint32_t clean; // id of the expression without dead branches, plus 1; 0: not computed yet
};

struct byte_set {
    uint64_t w[4];
};

struct expr_object; // object.h

struct exprs {
    struct expr *v;
    uint32_t n, cap;
    uint32_t *list; // children of X_ALT and X_AND
    uint32_t n_list, cap_list;
    struct byte_set *sets;
    uint32_t n_sets, cap_sets;
    uint32_t *table; // ids by hash, chained through expr.next
    uint32_t table_size;
    struct derived {
        uint64_t key;
        uint32_t to;
    } *memo; // derivatives, open addressing
    uint32_t n_memo, memo_size;

    struct expr_object **objects; // not owned
    uint32_t n_objects, cap_objects;

    uint64_t work, max_work; // units of work in this call so far, and their limit
    size_t max_bytes;
    bool failed;
    int depth; // current depth of recursive constructors

    uint32_t byte[256]; // by byte: the expression of this one byte; 0: not made yet
    uint32_t any_char;  // exactly one character of UTF-8
    uint32_t any_text;  // any number of characters

    // Bytes that no expression distinguishes are in one class.
    uint8_t class_of[256];
    uint8_t class_byte[256]; // one member of each class
    int n_classes;
    uint64_t classed; // number of sets, has_text and has_digits at the time when the classes were
                      // computed
    bool has_text, has_digits; // there is an X_TEXT; there is an X_MULTIPLE
    bool classes_final;
    struct byte_set own_class; // bytes that are distinguished by something other than a set:
                               // escapes, names of properties
};

enum { EXPRS_FIRST_TABLE = 256 }; // initial number of chains of the table

void exprs_init(struct exprs *x, size_t max_bytes, uint64_t max_work);
void exprs_deinit(struct exprs *x);
size_t exprs_bytes(const struct exprs *x);
bool exprs_spend(struct exprs *x, uint64_t units); // false: over the limit

/* Forgets everything made after the mark. */
struct exprs_mark {
    uint32_t n, n_list, n_sets;
};
struct exprs_mark exprs_mark(const struct exprs *x);
void exprs_reset(struct exprs *x, struct exprs_mark mark);

static inline bool expr_is(const struct exprs *x, uint32_t e, enum expr_flag flag)
{
    return (x->v[e].flags & flag) != 0;
}

uint32_t expr_bytes(struct exprs *x, const struct byte_set *set);
uint32_t expr_byte(struct exprs *x, uint8_t byte);
uint32_t expr_byte_range(struct exprs *x, int lo, int hi);
uint32_t expr_seq(struct exprs *x, uint32_t a, uint32_t b);
uint32_t expr_seq3(struct exprs *x, uint32_t a, uint32_t b, uint32_t c);
uint32_t expr_alt(struct exprs *x, const uint32_t *e, size_t n);
uint32_t expr_alt2(struct exprs *x, uint32_t a, uint32_t b);
uint32_t expr_and(struct exprs *x, const uint32_t *e, size_t n);
uint32_t expr_and2(struct exprs *x, uint32_t a, uint32_t b);
uint32_t expr_not(struct exprs *x, uint32_t a);
uint32_t expr_rep(struct exprs *x, uint32_t a, uint32_t lo, uint32_t hi);
uint32_t expr_optional(struct exprs *x, uint32_t a);
uint32_t expr_call(struct exprs *x, uint32_t rule);
uint32_t expr_literal(struct exprs *x, const char *s, size_t n); // exactly these bytes
uint32_t expr_make(struct exprs *x, struct expr e); // interns e unchanged, including its flags

/* The derivative: what may follow `byte` in a text of `e`. If `e` has no dead branches, neither has
 * the derivative. */
uint32_t expr_derive(struct exprs *x, uint32_t e, uint8_t byte);

/* Adds all bytes that a text of `e` may begin with, and possibly some others. */
void expr_first_bytes(struct exprs *x, uint32_t e, struct byte_set *out);

/* `id` without branches that match nothing; EXPR_NONE if no branch is left. To decide whether an
 * X_AND matches anything, it explores derivatives. */
uint32_t expr_clean(struct exprs *x, uint32_t id);

/* The number of characters of some text of `e` that consists of ASCII; EXPR_INF: no such text was
 * found, although there may be one. */
uint32_t expr_shortest(struct exprs *x, uint32_t e);

/* Appends the calls that an expression may begin with: the rule called, and the expression that
 * follows the call. */
struct expr_calls {
    struct expr_first {
        uint32_t rule, rest;
    } *v;
    size_t n, cap;
};
void expr_first_calls(struct exprs *x, uint32_t id, struct expr_calls *out);

/* Updates class_of for the sets that exist now. */
void exprs_classify(struct exprs *x);

static inline void byte_set_add(struct byte_set *s, unsigned byte)
{
    s->w[byte >> 6] |= 1ull << (byte & 63);
}
static inline bool byte_set_has(const struct byte_set *s, unsigned byte)
{
    return s->w[byte >> 6] >> (byte & 63) & 1;
}

/* Grows an array so that it can hold one more element; aborts like xrealloc if there is no
 * memory. */
#define GROW(v, n, cap)                                                                            \
    do {                                                                                           \
        if ((n) == (cap)) {                                                                        \
            (cap) = (cap) ? (cap) * 2 : 16;                                                        \
            (v) = xrealloc((v), (size_t)(cap) * sizeof *(v));                                      \
        }                                                                                          \
    } while (0)

#endif
