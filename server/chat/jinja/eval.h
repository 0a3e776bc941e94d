// SPDX-License-Identifier: Apache-2.0
/* The interfaces between the evaluator's files: expressions, statements, calls, iteration, string
 * conversion, and the tables of filters, tests, methods and globals. Private to server/chat/jinja/.
 * Functions that return bool return false after recording an error in the runtime.
 * Thread: one owner (of the runtime). */
#ifndef SLUICE_SERVER_CHAT_JINJA_EVAL_H
#define SLUICE_SERVER_CHAT_JINJA_EVAL_H

#include "server/chat/jinja/ast.h"

/* ---- calls ---- */

struct jkwarg {
    struct jstr *name;
    struct jv value;
};

struct jargs {
    const struct jv *pos;
    size_t n_pos;
    const struct jkwarg *kw;
    size_t n_kw;
};

/* Binds arguments to parameters ("width,first,blank"); missing ones become MISSING. TypeError for
 * too many, unknown, repeated or missing arguments. */
bool jargs_bind(struct jrt *rt, const char *what, const struct jargs *args, const char *params,
                int n_required, struct jv *out);

enum { JINJA_MAX_PARAMS = 8 };

/* A filter: v is the value left of the bar, a[] the values of its parameters. If params is NULL,
 * the function gets the arguments unbound. */
struct jinja_filter {
    const char *name;
    bool (*run)(struct jrt *rt, struct jv v, const struct jv *a, const struct jargs *args,
                struct jv *out);
    const char *params;
    int n_required;
};

struct jinja_test {
    const char *name;
    bool (*run)(struct jrt *rt, struct jv v, const struct jv *a, bool *out);
    int n_args; // number of arguments, exact
};

/* One row per name and kind of object; rows of the same name are adjacent. */
struct jinja_method {
    const char *name;
    uint32_t types; // types of objects that have this method, as bits 1 << enum jv_type
    bool (*run)(struct jrt *rt, struct jv self, const struct jv *a, const struct jargs *args,
                struct jv *out);
    const char *params; // NULL: the function gets the arguments unbound
    int n_required;
    bool by_position; // takes no keyword arguments
};

struct jinja_func {
    const char *name;
    bool (*run)(struct jrt *rt, const struct jargs *args, struct jv *out);
    bool is_class;
};

/* All methods sorted by name, terminated by a row without a name. */
struct jinja_method_table {
    const struct jinja_method *rows;
    size_t n;
};

/* Everything that a template can refer to by name. Each list ends with a row without a name;
 * jinja.c combines them. */
struct jinja_tables {
    const struct jinja_filter *filters;
    const struct jinja_test *tests;
    const struct jinja_func *funcs;
    const struct jinja_method_table *methods;
};

/* The tables of tests.c and globals.c; the others are in filters.h and methods.h. */
extern const struct jinja_test jinja_tests[];
extern const struct jinja_func jinja_funcs[];

const struct jinja_filter *jinja_filter_find(const struct jrt *rt, const char *name,
                                             size_t n_bytes);
const struct jinja_test *jinja_test_find(const struct jrt *rt, const char *name, size_t n_bytes);
const struct jinja_func *jinja_func_find(const struct jrt *rt, const char *name, size_t n_bytes);
const struct jinja_method *jinja_methods_find(const struct jrt *rt, const char *name,
                                              size_t n_bytes); // the first row of this name
/* The row for this object's type among those of one name; NULL if it has no such method. */
const struct jinja_method *jinja_method_for(const struct jinja_method *first, struct jv self);
/* True for a method that would modify its object: reading it yields an unsafe undefined. */
bool jinja_is_mutator(struct jv self, const char *name, size_t n_bytes);

bool jinja_run_filter(struct jrt *rt, const struct jinja_filter *f, struct jv v,
                      const struct jargs *args, struct jv *out);
bool jinja_run_test(struct jrt *rt, const struct jinja_test *t, struct jv v,
                    const struct jargs *args, bool *out);
bool jinja_run_method(struct jrt *rt, const struct jinja_method *m, struct jv self,
                      const struct jargs *args, struct jv *out);
bool jinja_call(struct jrt *rt, struct jv callee, const struct jargs *args, struct jv *out);

/* An iteration over anything that Python can iterate over. */
struct jwalk {
    struct jv over;
    size_t at;
};

/* ---- expressions and statements ---- */

enum jflow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAIL };

bool jinja_eval(struct jrt *rt, const struct jnode *n, struct jv *out);
enum jflow jinja_exec(struct jrt *rt, struct jnode *const *body, int n);

struct jframe *jframe_new(struct jrt *rt, struct jframe *parent);
bool jframe_set(struct jrt *rt, struct jframe *f, int sym, struct jv v);
/* Makes the names undefined in the frame until they are assigned. */
bool jframe_hide(struct jrt *rt, struct jframe *f, const struct jhidden *hidden);
struct jv jscope_get(const struct jrt *rt, int sym); // MISSING if unbound
bool jinja_eval_args(struct jrt *rt, const struct jcall_node *call, struct jargs *args);

/* A macro, or the body of a call block. */
struct jmacro {
    const struct jinja_template *t;
    const struct jnode *node; // has the body
    const struct jsignature *sig;
    struct jstr *name; // NULL: the body of a call block
    struct jframe *closure;
    bool autoescape;
};

/* Creates a macro from node n, which sees the names of the current frame. name NULL: the body of a
 * call block. */
bool jmacro_make(struct jrt *rt, const struct jnode *n, struct jstr *name, struct jv *out);
bool jmacro_call(struct jrt *rt, const struct jmacro *m, const struct jargs *args, struct jv *out);
bool jcall_enter(struct jrt *rt); // enters a call; false: calls are nested too deeply

bool jinja_attr(struct jrt *rt, struct jv obj, struct jstr *name,
                const struct jinja_method *methods, struct jv *out);
bool jinja_item(struct jrt *rt, struct jv obj, struct jv index, struct jv *out);
/* The same for a constant index, whose methods the parser has already looked up. */
bool jinja_item_known(struct jrt *rt, struct jv obj, struct jv index,
                      const struct jinja_method *methods, struct jv *out);
bool jinja_slice(struct jrt *rt, struct jv obj, const struct jv part[3], struct jv *out);
bool jinja_binary(struct jrt *rt, int op, struct jv a, struct jv b, struct jv *out); // enum jop
bool jinja_repeat(struct jrt *rt, struct jv sequence, struct jv times, struct jv *out);
bool jinja_loop_call(struct jrt *rt, struct jloop *loop, const struct jargs *args, struct jv *out);

/* ---- the `loop` variable: advanced by exec.c, read by others ---- */

/* Reads one item ahead, but only if a template asks for it. */
struct jloop {
    struct jwalk walk;
    struct jv over, current, before, after; // after: MISSING until peeked or at the end
    bool peeked;
    int64_t index0; // -1 before the first item
    int64_t length; // -1: not known yet
    int64_t depth0;
    struct jv changed;             // the arguments of the last loop.changed()
    const struct jnode *recursive; // NULL if the loop cannot be called
    struct jframe *frame;          // the frame that encloses the loop
};

int jloop_pull(struct jrt *rt, struct jloop *l, struct jv *out); // 1; 0 at the end; -1 failed
bool jloop_attr(struct jrt *rt, struct jv self, struct jstr *name, bool *found, struct jv *out);
bool jloop_cycle(struct jrt *rt, struct jv self, const struct jargs *args, struct jv *out);
bool jloop_changed(struct jrt *rt, struct jv self, const struct jargs *args, struct jv *out);
bool jloop_repr(struct jsb *b, struct jv self);

/* ---- iteration ---- */

struct jiter; // an iterator that yields its items once: generators, reversed()

bool jwalk_init(struct jrt *rt, struct jv over, struct jwalk *w); // TypeError if `over` is not
                                                                  // iterable
int jwalk_next(struct jrt *rt, struct jwalk *w, struct jv *out);  // 1; 0 at the end; -1 failed
bool jv_is_iterable(struct jv v);
bool jv_collect(struct jrt *rt, struct jv over, struct jlist **out); // list(over), a new one

enum jiter_kind {
    JITER_PLAIN, // yields the items of `over` unchanged
    JITER_ITEMS, // |items
    JITER_MAP,
    JITER_SELECT, // |select, |reject, |selectattr, |rejectattr
    JITER_UNIQUE,
    JITER_BATCH,
    JITER_SLICE,
};

/* How |map, |select and the like access an item. */
struct jpath {
    struct jv *parts;
    size_t n;
};

struct jiter {
    enum jiter_kind kind;
    /* Yields one more item of JITER_MAP, JITER_SELECT or JITER_UNIQUE; set by the filter that
     * created it. */
    int (*next)(struct jrt *rt, struct jiter *it, struct jv *out);
    bool started, done;
    struct jv over;
    struct jwalk walk;
    struct jargs args; // of |map and |select; like in Python, they are checked when the first item
                       // is requested
    bool by_attribute, negate;
    struct jpath path;
    struct jv fallback; // default=
    const struct jinja_filter *filter;
    const struct jinja_test *test;
    struct jargs rest;  // arguments after the name of the filter or test
    struct jdict *seen; // |unique
    bool fold_case;
    int64_t size, at; // |batch, |slice
    struct jv fill;
    struct jlist *all; // |slice
};
bool jiter_new(struct jrt *rt, enum jiter_kind kind, struct jv over, struct jv *out);
int jiter_next(struct jrt *rt, struct jiter *it, struct jv *out);

/* For a missing or None attribute the path is empty, which means the item itself. */
bool jpath_make(struct jrt *rt, struct jv attribute, struct jpath *path);
bool jpath_get(struct jrt *rt, const struct jpath *path, struct jv item, struct jv fallback,
               struct jv *out);
bool jv_fold(struct jrt *rt, struct jv v, struct jv *out); // a string becomes lower case; other
                                                           // values stay unchanged

/* ---- text ---- */

bool jv_to_str(struct jrt *rt, struct jv v, struct jstr **out); // str(v), as a flat string
bool jv_put_str(struct jsb *b, struct jv v);                    // appends str(v)
bool jv_repr(struct jrt *rt, struct jv v, struct jstr **out);
bool jv_put_repr(struct jsb *b, struct jv v, int nest);
/* Jinja2's soft_str: like str(v), but strings, including Markup, stay unchanged. */
bool jv_soft_str(struct jrt *rt, struct jv v, struct jv *out);
bool jinja_escape(struct jrt *rt, struct jv v, struct jv *out); // HTML-escapes; the result is
                                                                // Markup

/* "%s ..." % args, and str.format; in format.c. */
bool jinja_percent(struct jrt *rt, struct jv format, struct jv args, struct jv *out);
bool jinja_format(struct jrt *rt, struct jv format, const struct jargs *args, struct jv *out);

struct jjson_style {
    bool ascii, sort_keys;
    struct jstr *indent; // NULL: on one line
    struct jstr *comma, *colon;
};
bool jinja_tojson(struct jrt *rt, struct jv v, const struct jjson_style *style, struct jstr **out);

/* String helpers that methods and filters share, in text.c. All strings are flat. */
struct jstr *jt_map_case(struct jrt *rt, struct jstr *s, int how); // enum uni_case
struct jstr *jt_capitalize(struct jrt *rt, struct jstr *s);
struct jstr *jt_title(struct jrt *rt, struct jstr *s);
struct jstr *jt_swapcase(struct jrt *rt, struct jstr *s);
/* sides: 1 left, 2 right; chars NULL: white space */
struct jstr *jt_strip(struct jrt *rt, struct jstr *s, struct jstr *chars, int sides);
bool jt_split(struct jrt *rt, struct jstr *s, struct jstr *sep, int64_t max, bool from_right,
              struct jlist **out);
bool jt_splitlines(struct jrt *rt, struct jstr *s, bool keep_ends, struct jlist **out);
struct jstr *jt_replace(struct jrt *rt, struct jstr *s, struct jstr *old, struct jstr *new_,
                        int64_t max);
// All parts are JV_STR.
struct jstr *jt_join(struct jrt *rt, struct jstr *sep, const struct jlist *parts);
struct jstr *jt_pad(struct jrt *rt, struct jstr *s, size_t left, size_t right, struct jstr *fill);
// Returns SIZE_MAX if the part is not found.
size_t jt_find(const struct jstr *s, const struct jstr *part, size_t from, size_t to);
size_t jt_rfind(const struct jstr *s, const struct jstr *part, size_t from, size_t to);
struct jstr *jt_reverse(struct jrt *rt, struct jstr *s);
struct jstr *jt_chars(struct jrt *rt, struct jstr *s, size_t from, size_t to); // s[from:to]

/* Sorts by keys (stable); in filters_order.c. */
bool jinja_sort(struct jrt *rt, struct jv *items, const struct jv *keys, size_t n, bool reverse);

#endif
