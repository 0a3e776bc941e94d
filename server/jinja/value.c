#include "engine/base/hash.h"
#include "server/jinja/eval.h"
#include "server/jinja/num.h"

#include <math.h>
#include <string.h>

enum { SMALL_DICT = 8 }; // entries that are searched one by one

/* ---- lists ---- */

/* Lists that grow from one another (ns.list + [x], in a loop) share one store: the items behind
 * the end of a list are nobody's until a longer list claims them. */
struct jlist_store {
    struct jv *items;
    size_t n, cap;
};

struct jlist *jlist_new(struct jrt *rt, size_t n)
{
    struct jlist *l = jrt_alloc(rt, 1, sizeof *l);
    if (l && n > 0) {
        l->items = jrt_alloc(rt, n, sizeof l->items[0]);
        l->n = n;
    }
    return l && (n == 0 || l->items) ? l : NULL;
}

static bool grow(struct jrt *rt, struct jlist *l, size_t more)
{
    struct jlist_store *st = l->store;
    if (st && st->items + st->n == l->items + l->n && st->cap - st->n >= more) {
        return true;
    }
    size_t cap = (l->n + more) * 2;
    struct jlist_store *wider = jrt_alloc(rt, 1, sizeof *wider);
    struct jv *items = jrt_alloc(rt, cap, sizeof *items);
    if (!wider || !items) {
        return false;
    }
    if (l->n > 0) {
        memcpy(items, l->items, l->n * sizeof *items);
    }
    *wider = (struct jlist_store){.items = items, .n = l->n, .cap = cap};
    l->store = wider;
    l->items = items;
    return true;
}

struct jlist *jlist_join(struct jrt *rt, const struct jlist *a, const struct jlist *b)
{
    struct jlist *l = jrt_alloc(rt, 1, sizeof *l);
    if (!l || !jrt_charge(rt, b->n)) {
        return NULL;
    }
    *l = *a;
    if (b->n == 0) {
        return l;
    }
    if (!grow(rt, l, b->n)) {
        return NULL;
    }
    memcpy(l->items + l->n, b->items, b->n * sizeof b->items[0]);
    l->n += b->n;
    l->store->n += b->n;
    return l;
}

bool jlist_push(struct jrt *rt, struct jlist *l, struct jv v)
{
    if (!jrt_step(rt) || !grow(rt, l, 1)) {
        return false;
    }
    l->items[l->n++] = v;
    l->store->n++;
    return true;
}

/* ---- dictionaries ---- */

static uint64_t hash_number(double f)
{
    uint64_t bits;
    f = f == 0 ? 0 : f; // -0.0 equals 0
    memcpy(&bits, &f, sizeof bits);
    return hash_mix(bits ^ hash_process_key());
}

static bool hash_nested(struct jrt *rt, struct jv v, int nest, uint64_t *hash);

static bool hash_tuple(struct jrt *rt, const struct jlist *l, int nest, uint64_t *hash)
{
    uint64_t h = l->n;
    for (size_t i = 0; i < l->n; i++) {
        uint64_t one;
        if (!hash_nested(rt, l->items[i], nest + 1, &one)) {
            return false;
        }
        h = hash_mix(h * 31 + one);
    }
    *hash = h;
    return true;
}

static bool hash_nested(struct jrt *rt, struct jv v, int nest, uint64_t *hash)
{
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(rt, "a value is nested too deeply");
    }
    double f;
    switch (v.type) {
    case JV_LIST:
    case JV_DICT: return false;
    case JV_VIEW:
        *hash = hash_mix((uint64_t)(uintptr_t)v.u.view);
        return v.u.view->kind == JVIEW_VALUES; // the others are like sets
    case JV_TUPLE: return hash_tuple(rt, v.u.list, nest, hash);
    case JV_STR:
        if (!js_flat(rt, v.u.s)) {
            return false;
        }
        *hash = hash_bytes(v.u.s->s, v.u.s->n_bytes, hash_process_key());
        return true;
    case JV_BIG: *hash = hash_number(jbig_double(v.u.big)); return true;
    case JV_NONE:
    case JV_UNDEFINED: *hash = v.type; return true;
    default:
        if (jv_small_number(v, &f)) {
            *hash = hash_number(f);
            return true;
        }
        *hash = hash_mix((uint64_t)(uintptr_t)v.u.list);
        return true;
    }
}

bool jv_hash(struct jrt *rt, struct jv v, uint64_t *hash)
{
    return hash_nested(rt, v, 0, hash);
}

struct jdict *jd_new(struct jrt *rt)
{
    return jrt_alloc(rt, 1, sizeof(struct jdict));
}

static void put_slot(struct jdict *d, size_t entry)
{
    size_t slot = d->e[entry].hash & (d->n_slots - 1);
    while (d->index[slot]) {
        slot = (slot + 1) & (d->n_slots - 1);
    }
    d->index[slot] = (uint32_t)entry + 1;
}

/* Makes or widens the index so that it is at most half full. */
static bool reindex(struct jrt *rt, struct jdict *d)
{
    bool fresh = !d->index;
    d->n_slots = 32;
    while (d->n_slots < d->cap * 2) {
        d->n_slots *= 2;
    }
    d->index = jrt_alloc(rt, d->n_slots, sizeof d->index[0]);
    if (!d->index) {
        return false;
    }
    for (size_t i = 0; i < d->n; i++) {
        if (fresh && !jv_hash(rt, d->e[i].key, &d->e[i].hash)) {
            return false;
        }
        put_slot(d, i);
    }
    return true;
}

static bool same_key(struct jrt *rt, struct jv a, struct jv b)
{
    if (a.type == JV_STR && b.type == JV_STR) {
        return a.u.s->n_bytes == b.u.s->n_bytes && js_flat(rt, a.u.s) && js_flat(rt, b.u.s) &&
               memcmp(a.u.s->s, b.u.s->s, a.u.s->n_bytes) == 0;
    }
    bool equal;
    return a.type != JV_STR && b.type != JV_STR &&
           (jv_same(a, b) || (jv_equal(rt, a, b, &equal) && equal));
}

static struct jentry *find_hashed(struct jrt *rt, const struct jdict *d, struct jv key,
                                  uint64_t hash)
{
    for (size_t slot = hash & (d->n_slots - 1); d->index[slot];
         slot = (slot + 1) & (d->n_slots - 1)) {
        struct jentry *e = &d->e[d->index[slot] - 1];
        if (e->hash == hash && same_key(rt, e->key, key)) {
            return e;
        }
    }
    return NULL;
}

struct jentry *jd_find(struct jrt *rt, const struct jdict *d, struct jv key, bool *hashable)
{
    uint64_t hash = 0;
    *hashable = true;
    if (d->index || key.type != JV_STR) {
        *hashable = jv_hash(rt, key, &hash);
        if (!*hashable) {
            return NULL;
        }
    }
    if (d->index) {
        return find_hashed(rt, d, key, hash);
    }
    for (size_t i = 0; i < d->n; i++) {
        if (same_key(rt, d->e[i].key, key)) {
            return &d->e[i];
        }
    }
    return NULL;
}

struct jentry *jd_find_text(struct jrt *rt, const struct jdict *d, const char *s, size_t n_bytes)
{
    struct jstr key = {.s = s, .n_bytes = n_bytes, .n_chars = SIZE_MAX};
    bool hashable;
    return jd_find(rt, d, jv_str(&key), &hashable);
}

bool jd_set(struct jrt *rt, struct jdict *d, struct jv key, struct jv value)
{
    bool hashable;
    struct jentry *e = jd_find(rt, d, key, &hashable);
    if (e) {
        e->value = value;
        return rt->st == OK;
    }
    if (rt->st != OK) {
        return false;
    }
    if (!hashable) {
        return jrt_fail(rt, "TypeError", "unhashable type: '%s'", jv_type_name(key));
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        struct jentry *wider = jrt_alloc(rt, cap, sizeof *wider);
        if (!wider) {
            return false;
        }
        if (d->n > 0) {
            memcpy(wider, d->e, d->n * sizeof *wider);
        }
        d->e = wider;
        d->cap = cap;
        if (d->index && !reindex(rt, d)) {
            return false;
        }
    }
    d->e[d->n] = (struct jentry){.key = key, .value = value};
    d->n++;
    if (!d->index) {
        return d->n <= SMALL_DICT || reindex(rt, d);
    }
    if (!jv_hash(rt, key, &d->e[d->n - 1].hash)) {
        return false;
    }
    put_slot(d, d->n - 1);
    return true;
}

bool jd_set_lit(struct jrt *rt, struct jdict *d, const char *key, struct jv value)
{
    struct jstr *k = js_lit(rt, key);
    return k && jd_set(rt, d, jv_str(k), value);
}

/* ---- values ---- */

bool jv_undefined(struct jrt *rt, struct jv obj, struct jv name, struct jv *out)
{
    /* Only the type of the object is ever told, so loops that ask for the same thing again and
     * again can share one. */
    struct jundef *u = rt->last_missing;
    bool simple = name.type == JV_STR && (obj.type == JV_STR || obj.type == JV_DICT);
    bool again = u && simple && u->name.u.s == name.u.s && u->obj.type == obj.type &&
                 u->obj.flag == obj.flag && !u->unsafe;
    if (!again) {
        u = jrt_alloc(rt, 1, sizeof *u);
        if (!u) {
            return false;
        }
        *u = (struct jundef){.obj = obj, .name = name};
        rt->last_missing = simple ? u : rt->last_missing;
    }
    *out = (struct jv){.type = JV_UNDEFINED, .u.undef = u};
    return true;
}

bool jv_undefined_hint(struct jrt *rt, const char *hint, struct jv *out)
{
    if (!jv_undefined(rt, jv_missing(), jv_missing(), out)) {
        return false;
    }
    out->u.undef->hint = hint;
    return true;
}

bool jv_pair(struct jrt *rt, struct jv a, struct jv b, struct jv *out)
{
    struct jlist *l = jlist_new(rt, 2);
    if (!l) {
        return false;
    }
    l->items[0] = a;
    l->items[1] = b;
    *out = jv_tuple(l);
    return true;
}

/* How Undefined names the object: "None" for none, else "<type> object". */
static bool describe(struct jrt *rt, struct jv v, const char **text)
{
    if (v.type == JV_NONE) {
        *text = "None";
        return true;
    }
    struct jsb b;
    jsb_init(&b, rt);
    jsb_puts(&b, v.type == JV_NAMESPACE ? "jinja2.utils.Namespace" : jv_type_name(v));
    jsb_puts(&b, " object");
    jsb_putc(&b, '\0', false);
    *text = b.s;
    return !b.failed;
}

bool jv_fail_undefined(struct jrt *rt, struct jv undefined)
{
    const struct jundef *u = undefined.u.undef;
    const char *kind = u->unsafe ? "SecurityError" : "UndefinedError";
    if (u->hint) {
        return jrt_fail(rt, kind, "%s", u->hint);
    }
    struct jstr *name;
    const char *object;
    if (!jv_repr(rt, u->name, &name) || !js_flat(rt, name)) {
        return false;
    }
    int n = name->n_bytes < 200 ? (int)name->n_bytes : 200;
    if (!jv_is_given(u->obj)) {
        return jrt_fail(rt, kind, "%.*s is undefined", n, name->s);
    }
    if (!describe(rt, u->obj, &object)) {
        return false;
    }
    if (u->unsafe) {
        return jrt_fail(rt, kind, "access to attribute %.*s of '%s' object is unsafe.", n, name->s,
                        jv_type_name(u->obj));
    }
    return u->name.type == JV_STR
               ? jrt_fail(rt, kind, "'%s' has no attribute %.*s", object, n, name->s)
               : jrt_fail(rt, kind, "%s has no element %.*s", object, n, name->s);
}

const char *jv_type_name(struct jv v)
{
    switch (v.type) {
    case JV_MISSING: return "missing";
    case JV_UNDEFINED: return "Undefined";
    case JV_NONE: return "NoneType";
    case JV_BOOL: return "bool";
    case JV_INT:
    case JV_BIG: return "int";
    case JV_FLOAT: return "float";
    case JV_STR: return v.flag & JV_MARKUP ? "Markup" : "str";
    case JV_BYTES: return "bytes";
    case JV_LIST: return "list";
    case JV_TUPLE: return v.flag & JV_GROUP ? "_GroupTuple" : "tuple";
    case JV_DICT: return "dict";
    case JV_RANGE: return "range";
    case JV_VIEW:
        return v.u.view->kind == JVIEW_KEYS     ? "dict_keys"
               : v.u.view->kind == JVIEW_VALUES ? "dict_values"
                                                : "dict_items";
    case JV_ITER: return "generator";
    case JV_NAMESPACE: return "Namespace";
    case JV_MACRO: return "Macro";
    case JV_LOOP: return "LoopContext";
    case JV_CYCLER: return "Cycler";
    case JV_JOINER: return "Joiner";
    case JV_FUNC: return v.u.func->is_class ? "type" : "function";
    case JV_METHOD: return "builtin_function_or_method";
    default: return "object";
    }
}

bool jv_truth(struct jv v)
{
    switch (v.type) {
    case JV_MISSING:
    case JV_UNDEFINED:
    case JV_NONE: return false;
    case JV_BOOL: return v.u.b;
    case JV_INT: return v.u.i != 0;
    case JV_FLOAT: return v.u.f != 0;
    case JV_STR:
    case JV_BYTES: return v.u.s->n_bytes > 0;
    case JV_LIST:
    case JV_TUPLE: return v.u.list->n > 0;
    case JV_DICT: return v.u.dict->n > 0;
    case JV_RANGE: return v.u.range->n > 0;
    case JV_VIEW: return v.u.view->dict->n > 0;
    default: return true;
    }
}

bool jv_small_number(struct jv v, double *f)
{
    switch (v.type) {
    case JV_BOOL: *f = v.u.b; return true;
    case JV_INT: *f = (double)v.u.i; return true;
    case JV_FLOAT: *f = v.u.f; return true;
    default: return false;
    }
}

bool jv_is_integer(struct jv v)
{
    return v.type == JV_BOOL || v.type == JV_INT || v.type == JV_BIG;
}

static bool is_number(struct jv v)
{
    return jv_is_integer(v) || v.type == JV_FLOAT;
}

bool jv_as_index(struct jrt *rt, struct jv v, int64_t *i)
{
    if (v.type == JV_BIG) {
        *i = v.u.big->negative ? INT64_MIN / 2 : INT64_MAX / 2;
        return true;
    }
    if (!jv_is_integer(v)) {
        if (v.type == JV_UNDEFINED) {
            return jv_fail_undefined(rt, v);
        }
        return jrt_fail(rt, "TypeError", "'%s' object cannot be interpreted as an integer",
                        jv_type_name(v));
    }
    *i = v.type == JV_BOOL ? v.u.b : v.u.i;
    return true;
}

bool jv_is_callable(struct jv v)
{
    return v.type == JV_MACRO || v.type == JV_FUNC || v.type == JV_METHOD || v.type == JV_JOINER ||
           v.type == JV_LOOP || v.type == JV_UNDEFINED; // Undefined has a __call__ (that raises)
}

bool jv_same(struct jv a, struct jv b)
{
    if (a.type != b.type) {
        return false;
    }
    switch (a.type) {
    case JV_NONE: return true;
    case JV_BOOL: return a.u.b == b.u.b;
    case JV_INT: return a.u.i == b.u.i;
    case JV_FLOAT: return memcmp(&a.u.f, &b.u.f, sizeof a.u.f) == 0;
    case JV_STR:
        return a.u.s == b.u.s || (a.flag == b.flag && a.u.s->s && a.u.s->n_bytes == b.u.s->n_bytes &&
                                  b.u.s->s && memcmp(a.u.s->s, b.u.s->s, a.u.s->n_bytes) == 0);
    default: return a.u.list == b.u.list;
    }
}

static bool equal_nested(struct jrt *rt, struct jv a, struct jv b, int nest, bool *equal);

static bool equal_lists(struct jrt *rt, const struct jlist *a, const struct jlist *b, int nest,
                        bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++) {
        if (!equal_nested(rt, a->items[i], b->items[i], nest + 1, equal)) {
            return false;
        }
    }
    return true;
}

static bool equal_dicts(struct jrt *rt, const struct jdict *a, const struct jdict *b, int nest,
                        bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++) {
        bool hashable;
        const struct jentry *e = jd_find(rt, b, a->e[i].key, &hashable);
        *equal = e != NULL;
        if (e && !equal_nested(rt, a->e[i].value, e->value, nest + 1, equal)) {
            return false;
        }
    }
    return rt->st == OK;
}

static bool equal_ranges(const struct jrange *a, const struct jrange *b)
{
    return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

/* Key and item views compare as sets. */
static bool equal_views(struct jrt *rt, const struct jview *a, const struct jview *b, int nest,
                        bool *equal)
{
    *equal = a == b;
    if (a->kind == JVIEW_VALUES || b->kind != a->kind) {
        return true;
    }
    if (a->kind == JVIEW_ITEMS) {
        return equal_dicts(rt, a->dict, b->dict, nest, equal);
    }
    *equal = a->dict->n == b->dict->n;
    for (size_t i = 0; *equal && i < a->dict->n; i++) {
        bool hashable;
        *equal = jd_find(rt, b->dict, a->dict->e[i].key, &hashable) != NULL;
    }
    return rt->st == OK;
}

static bool equal_nested(struct jrt *rt, struct jv a, struct jv b, int nest, bool *equal)
{
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(rt, "a value is nested too deeply");
    }
    if (!jrt_step(rt)) {
        return false;
    }
    if (is_number(a) && is_number(b)) {
        *equal = jnum_compare(a, b) == 0 || (nest > 0 && jv_same(a, b) && a.type == JV_FLOAT);
        return true;
    }
    if (a.type != b.type) {
        *equal = false;
        return true;
    }
    switch (a.type) {
    case JV_UNDEFINED:
    case JV_NONE: *equal = true; return true;
    case JV_STR:
    case JV_BYTES:
        *equal = a.u.s->n_bytes == b.u.s->n_bytes;
        if (!*equal) {
            return true;
        }
        if (!js_flat(rt, a.u.s) || !js_flat(rt, b.u.s) || !jrt_charge(rt, a.u.s->n_bytes >> 8)) {
            return false;
        }
        *equal = memcmp(a.u.s->s, b.u.s->s, a.u.s->n_bytes) == 0;
        return true;
    case JV_LIST:
    case JV_TUPLE: return equal_lists(rt, a.u.list, b.u.list, nest, equal);
    case JV_DICT: return equal_dicts(rt, a.u.dict, b.u.dict, nest, equal);
    case JV_RANGE: *equal = equal_ranges(a.u.range, b.u.range); return true;
    case JV_VIEW: return equal_views(rt, a.u.view, b.u.view, nest, equal);
    case JV_METHOD:
        *equal = a.u.method == b.u.method ||
                 (a.u.method->m == b.u.method->m && jv_same(a.u.method->self, b.u.method->self));
        return true;
    default: *equal = jv_same(a, b); return true;
    }
}

bool jv_equal(struct jrt *rt, struct jv a, struct jv b, bool *equal)
{
    *equal = false;
    return equal_nested(rt, a, b, 0, equal);
}

static bool apply_order(int c, enum jv_order op)
{
    switch (op) {
    case JV_LT: return c == -1;
    case JV_LE: return c == -1 || c == 0;
    case JV_GT: return c == 1;
    case JV_GE: return c == 1 || c == 0;
    }
    return false;
}

static int compare_bytes(const struct jstr *a, const struct jstr *b)
{
    size_t n = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    int c = n > 0 ? memcmp(a->s, b->s, n) : 0;
    if (c == 0) {
        return a->n_bytes < b->n_bytes ? -1 : a->n_bytes > b->n_bytes;
    }
    return c < 0 ? -1 : 1;
}

static bool compare_nested(struct jrt *rt, struct jv a, struct jv b, enum jv_order op, int nest,
                           bool *out);

/* The first items that differ decide; without one, the lengths. */
static bool compare_lists(struct jrt *rt, const struct jlist *a, const struct jlist *b,
                          enum jv_order op, int nest, bool *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool equal = false;
        if (!equal_nested(rt, a->items[i], b->items[i], nest + 1, &equal)) {
            return false;
        }
        if (!equal) {
            return compare_nested(rt, a->items[i], b->items[i], op, nest + 1, out);
        }
    }
    *out = apply_order(a->n < b->n ? -1 : a->n > b->n, op);
    return true;
}

static bool compare_nested(struct jrt *rt, struct jv a, struct jv b, enum jv_order op, int nest,
                           bool *out)
{
    static const char *const signs[] = {"<", "<=", ">", ">="};
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(rt, "a value is nested too deeply");
    }
    if (!jrt_step(rt)) {
        return false;
    }
    if (is_number(a) && is_number(b)) {
        *out = apply_order(jnum_compare(a, b), op);
        return true;
    }
    if (a.type == JV_UNDEFINED || b.type == JV_UNDEFINED) {
        return jv_fail_undefined(rt, a.type == JV_UNDEFINED ? a : b);
    }
    if (a.type == b.type && (a.type == JV_STR || a.type == JV_BYTES)) {
        if (!js_flat(rt, a.u.s) || !js_flat(rt, b.u.s)) {
            return false;
        }
        *out = apply_order(compare_bytes(a.u.s, b.u.s), op);
        return true;
    }
    if (a.type == b.type && (a.type == JV_LIST || a.type == JV_TUPLE)) {
        return compare_lists(rt, a.u.list, b.u.list, op, nest, out);
    }
    return jrt_fail(rt, "TypeError", "'%s' not supported between instances of '%s' and '%s'",
                    signs[op], jv_type_name(a), jv_type_name(b));
}

bool jv_compare(struct jrt *rt, struct jv a, struct jv b, enum jv_order op, bool *out)
{
    *out = false;
    return compare_nested(rt, a, b, op, 0, out);
}
