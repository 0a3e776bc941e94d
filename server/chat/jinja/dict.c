// SPDX-License-Identifier: Apache-2.0
/* Equality, hashes and dictionaries, which depend on each other: a lookup compares keys, and two
 * dictionaries are equal if each contains the other's keys. Dictionaries keep insertion order. */
#include "engine/base/hash.h"
#include "server/chat/jinja/num.h"

#include <string.h>

enum { SMALL_DICT = 8 }; // largest size with a linear search

/* ---- equality ---- */

/* Python's `is`: true for the same object, and for equal numbers and strings, which have no
 * identity here. */
bool jv_same(struct jv a, struct jv b)
{
    if (a.type != b.type) {
        return false;
    }
    switch (a.type) {
    case JV_NONE: return true;
    case JV_BOOL: return a.u.b == b.u.b;
    case JV_INT: return a.u.i == b.u.i;
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): as keys, numbers are their bits
    case JV_FLOAT: return memcmp(&a.u.f, &b.u.f, sizeof a.u.f) == 0;
    case JV_STR:
        return a.u.s == b.u.s ||
               (a.flag == b.flag && a.u.s->s && a.u.s->n_bytes == b.u.s->n_bytes && b.u.s->s &&
                memcmp(a.u.s->s, b.u.s->s, a.u.s->n_bytes) == 0);
    default: return a.u.list == b.u.list;
    }
}

static bool equal_lists(struct jrt *rt, const struct jlist *a, const struct jlist *b, int nest,
                        bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++) {
        if (!jv_equal_nested(rt, a->items[i], b->items[i], nest + 1, equal)) {
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
        if (e && !jv_equal_nested(rt, a->e[i].value, e->value, nest + 1, equal)) {
            return false;
        }
    }
    return rt->st == OK;
}

static bool equal_ranges(const struct jrange *a, const struct jrange *b)
{
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
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

/* Numbers of all types compare with each other. In a container a NaN equals itself, since Python
 * checks identity first there. */
bool jv_equal_nested(struct jrt *rt, struct jv a, struct jv b, int nest, bool *equal)
{
    if (nest > JINJA_MAX_NEST) {
        return jrt_limit(rt, "a value is nested too deeply");
    }
    if (!jrt_step(rt)) {
        return false;
    }
    if (jv_is_number(a) && jv_is_number(b)) {
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
    return jv_equal_nested(rt, a, b, 0, equal);
}

/* ---- hashes ---- */

/* Numbers are hashed as doubles, so that equal numbers of different types have equal hashes.
 * hash_process_key makes the order of slots unpredictable to clients. */
static uint64_t hash_number(double f)
{
    uint64_t bits;
    if (f == 0) {
        f = 0; // -0.0 equals 0
    }
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

/* False without an error: the value has no hash, like a list in Python. */
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
        return v.u.view->kind == JVIEW_VALUES; // the other views are like sets, which have no hash
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

/* ---- dictionaries ---- */

struct jdict *jd_new(struct jrt *rt)
{
    return jrt_alloc(rt, 1, sizeof(struct jdict));
}

/* Linear probing; the table always has a free slot. */
static void put_slot(struct jdict *d, size_t entry)
{
    size_t slot = d->e[entry].hash & (d->n_slots - 1);
    while (d->index[slot]) {
        slot = (slot + 1) & (d->n_slots - 1);
    }
    d->index[slot] = (uint32_t)entry + 1;
}

/* Creates or grows the index so that it is at most half full. */
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

/* True if two keys are the same: strings are compared by bytes, other keys by identity or
 * equality. */
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

/* Small dictionaries with string keys are searched without hashing. */
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

/* An existing key keeps its position and gets the new value. With the ninth entry an index is
 * created. */
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
