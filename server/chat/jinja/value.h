// SPDX-License-Identifier: Apache-2.0
/* The values of a template, which behave like Python's as far as a template can tell. A value is 16
 * bytes and is copied freely. What it points to lives in the arena of the render (or, for
 * constants, of the compiled template) and is immutable once visible, except for the few objects
 * that Python templates also mutate (namespace, loop, cycler, joiner, iterators).
 *
 * Prefixes: jv_ for values, js_ for strings, jsb_ for the string builder, jd_ for dictionaries. A
 * function that returns bool returns false after recording an error in the runtime; one that
 * returns a pointer then returns NULL.
 * Thread: one owner; constants of a compiled template are read by all. */
#ifndef SLUICE_SERVER_CHAT_JINJA_VALUE_H
#define SLUICE_SERVER_CHAT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jrt;

enum jv_type {
    JV_MISSING, // no value: an argument that was not given, or an unbound name; never visible to
                // templates
    JV_UNDEFINED,
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_BIG, // an integer beyond 64 bits
    JV_FLOAT,
    JV_STR,
    JV_BYTES,
    JV_LIST,
    JV_TUPLE,
    JV_DICT,
    JV_RANGE,
    JV_VIEW, // keys, values or items of a dictionary
    JV_ITER, // yields its items once
    JV_NAMESPACE,
    JV_MACRO,
    JV_LOOP,
    JV_CYCLER,
    JV_JOINER,
    JV_FUNC,   // a global function or class
    JV_METHOD, // bound to its object
};

/* Flags of a value. */
enum { JV_MARKUP = 1 /* JV_STR: Markup */, JV_GROUP = 1 /* JV_TUPLE: (grouper, list) */ };

struct jv {
    uint8_t type, flag;
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr *s;
        struct jlist *list; // JV_LIST, JV_TUPLE
        struct jdict *dict; // JV_DICT, JV_NAMESPACE
        struct jbig *big;
        struct jundef *undef;
        struct jrange *range;
        struct jview *view;
        struct jiter *iter;
        struct jmacro *macro;
        struct jloop *loop;
        struct jcycler *cycler;
        struct jjoiner *joiner;
        struct jmethod *method;
        const struct jinja_func *func;
    } u;
};

/* ---- strings: UTF-8, with the provenance of each byte ---- */

struct jrun {
    size_t end; // end of this run, in bytes from the start of the string
    bool input;
};

enum jprov { PROV_TEMPLATE, PROV_INPUT, PROV_MIXED };

struct jstr {
    const char *s; // NULL: a lazy concatenation; see js_flat
    size_t n_bytes;
    size_t n_chars; // SIZE_MAX: not counted yet
    enum jprov prov;
    const struct jrun *runs; // if prov is PROV_MIXED
    size_t n_runs;
    struct jstr *left, *right; // operands of a lazy concatenation
};

struct jstr *js_new(struct jrt *rt, const char *s, size_t n_bytes, enum jprov prov); // borrows s
struct jstr *js_copy(struct jrt *rt, const char *s, size_t n_bytes, enum jprov prov);
struct jstr *js_lit(struct jrt *rt, const char *s); // borrows; text of the template itself
bool js_flat(struct jrt *rt, struct jstr *s);       // sets s->s, if s is a lazy concatenation
size_t js_chars(struct jstr *s);                    // number of characters of a flat string
size_t js_offset(struct jstr *s, size_t at_char);   // byte offset of a character, of a flat string
struct jstr *js_sub(struct jrt *rt, struct jstr *s, size_t at, size_t n_bytes);
struct jstr *js_concat(struct jrt *rt, struct jstr *a, struct jstr *b);
bool js_is(const struct jstr *s, const char *text); // whether flat s equals text
bool js_input_at(const struct jstr *s, size_t at);  // the provenance of one byte

/* Builds a string. Once a limit of the render is exceeded the runtime has failed, and appends do
 * nothing. */
struct jsb {
    struct jrt *rt;
    char *s;
    size_t n_bytes, cap;
    struct jrun *runs;
    size_t n_runs, cap_runs;
    bool failed;
};

void jsb_init(struct jsb *b, struct jrt *rt);
void jsb_put(struct jsb *b, const char *s, size_t n_bytes, bool input);
void jsb_puts(struct jsb *b, const char *s); // text of the template itself
void jsb_putc(struct jsb *b, char c, bool input);
void jsb_put_cp(struct jsb *b, uint32_t cp, bool input);
void jsb_put_str(struct jsb *b, struct jstr *s);
void jsb_put_range(struct jsb *b, struct jstr *s, size_t at, size_t n_bytes); // s is flat
void jsb_fill(struct jsb *b, struct jstr *s, size_t times);
struct jstr *jsb_done(struct jsb *b); // NULL if the runtime has failed

/* ---- containers ---- */

struct jlist {
    struct jv *items;
    size_t n;
    struct jlist_store *store; // shared by lists that grow from one another; may be NULL
};

struct jentry {
    struct jv key, value;
    uint64_t hash; // valid only while there is an index
};

struct jdict {
    struct jentry *e; // in order of insertion
    size_t n, cap;
    uint32_t *index; // for dictionaries of more than 8 entries: 0 is free, otherwise entry + 1
    size_t n_slots;
};

struct jrange {
    int64_t start, stop, step, n;
};

enum jview_kind { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS };
struct jview {
    struct jdict *dict;
    enum jview_kind kind;
};

struct jcycler {
    struct jlist *items;
    size_t at;
};

struct jjoiner {
    struct jv sep;
    bool used;
};

struct jmethod {
    struct jv self;
    const struct jinja_method *m;
};

/* Why a value is undefined, for the error message. */
struct jundef {
    const char *hint; // the whole message, or NULL
    struct jv obj;    // JV_MISSING: a plain name
    struct jv name;
    bool unsafe; // a SecurityError rather than an UndefinedError
};

struct jlist *jlist_new(struct jrt *rt, size_t n); // n items, all MISSING
struct jlist *jlist_join(struct jrt *rt, const struct jlist *a, const struct jlist *b);
bool jlist_push(struct jrt *rt, struct jlist *l, struct jv v); // only until others can see the list

struct jdict *jd_new(struct jrt *rt);
bool jd_set(struct jrt *rt, struct jdict *d, struct jv key, struct jv value);
bool jd_set_lit(struct jrt *rt, struct jdict *d, const char *key, struct jv value);
/* Finds an entry; NULL if there is none. *hashable is false if the key cannot be hashed, which is
 * not recorded as an error. */
struct jentry *jd_find(struct jrt *rt, const struct jdict *d, struct jv key, bool *hashable);
struct jentry *jd_find_text(struct jrt *rt, const struct jdict *d, const char *s, size_t n_bytes);

/* ---- values ---- */

static inline struct jv jv_none(void)
{
    return (struct jv){.type = JV_NONE};
}
static inline struct jv jv_missing(void)
{
    return (struct jv){.type = JV_MISSING};
}
static inline struct jv jv_bool(bool b)
{
    return (struct jv){.type = JV_BOOL, .u.b = b};
}
static inline struct jv jv_int(int64_t i)
{
    return (struct jv){.type = JV_INT, .u.i = i};
}
static inline struct jv jv_float(double f)
{
    return (struct jv){.type = JV_FLOAT, .u.f = f};
}
static inline struct jv jv_str(struct jstr *s)
{
    return (struct jv){.type = JV_STR, .u.s = s};
}
static inline struct jv jv_list(struct jlist *l)
{
    return (struct jv){.type = JV_LIST, .u.list = l};
}
static inline struct jv jv_tuple(struct jlist *l)
{
    return (struct jv){.type = JV_TUPLE, .u.list = l};
}
static inline struct jv jv_dict(struct jdict *d)
{
    return (struct jv){.type = JV_DICT, .u.dict = d};
}
static inline bool jv_is_given(struct jv v)
{
    return v.type != JV_MISSING;
}

bool jv_undefined(struct jrt *rt, struct jv obj, struct jv name, struct jv *out);
bool jv_undefined_hint(struct jrt *rt, const char *hint, struct jv *out);
bool jv_pair(struct jrt *rt, struct jv a, struct jv b, struct jv *out); // a tuple
bool jv_fail_undefined(struct jrt *rt, struct jv undefined); // records its error and returns false

const char *jv_type_name(struct jv v); // as Python's type(v).__name__
bool jv_truth(struct jv v);
bool jv_hash(struct jrt *rt, struct jv v, uint64_t *hash); // false: not hashable; no error recorded
bool jv_equal(struct jrt *rt, struct jv a, struct jv b, bool *equal);
/* jv_equal for items nested at this depth in a comparison. */
bool jv_equal_nested(struct jrt *rt, struct jv a, struct jv b, int nest, bool *equal);
bool jv_same(struct jv a, struct jv b); // Python's `is`

enum jv_order { JV_LT, JV_LE, JV_GT, JV_GE };
bool jv_compare(struct jrt *rt, struct jv a, struct jv b, enum jv_order op, bool *out);

bool jv_len(struct jrt *rt, struct jv v, size_t *n); // TypeError if v has no len()
bool jv_contains(struct jrt *rt, struct jv container, struct jv v, bool *out);
bool jv_is_callable(struct jv v);

/* True if v is a bool, int or float; *f is its value. Big integers are not included. */
bool jv_small_number(struct jv v, double *f);
bool jv_is_integer(struct jv v); // bool, int or big
static inline bool jv_is_number(struct jv v)
{
    return jv_is_integer(v) || v.type == JV_FLOAT;
}

/* An index: bool or int (big integers are clamped). A TypeError otherwise. */
bool jv_as_index(struct jrt *rt, struct jv v, int64_t *i);
/* The same for an argument that may be absent. */
static inline bool jv_int_or(struct jrt *rt, struct jv v, int64_t otherwise, int64_t *i)
{
    *i = otherwise;
    return !jv_is_given(v) || jv_as_index(rt, v, i);
}

#endif
