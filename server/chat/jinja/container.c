/* Lists that share what they grew from, and dictionaries in order of insertion. Neither changes
 * what an earlier value can see. */
#include "engine/base/hash.h"
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"

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
