// SPDX-License-Identifier: Apache-2.0
/* Masks of states, in a cache from which the least recently used are dropped. */
#include "engine/grammar/masks.h"

#include "engine/grammar/mask_groups.h"
#include "engine/grammar/mask_heads.h"
#include "engine/grammar/mask_inside.h"
#include "engine/grammar/mask_runs.h"
#include "engine/grammar/mask_shared.h"
#include "engine/grammar/object.h"
#include "engine/grammar/rules.h"

enum {
    LEAD_MAX = 4,   // chosen: number of parts before the long one in a head
    REPEAT_MIN = 8, // chosen: for a shorter repetition a head is not worth it
};

void masks_init(struct masks *m, const struct grammar_vocab *vocab, struct automaton *a,
                size_t max_bytes)
{
    *m = (struct masks){.vocab = vocab, .a = a, .max_bytes = max_bytes};
    m->path = xcalloc(vocab->max_depth + 1, sizeof *m->path);
    m->now.max_ids = m->head.max_ids = (uint32_t)vocab->n_words / 2;
    m->now.ids = xcalloc(m->now.max_ids + 1, sizeof *m->now.ids);
    m->head.ids = xcalloc(m->head.max_ids + 1, sizeof *m->head.ids);
}

void masks_reset(struct masks *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        free(m->v[i].words);
        free(m->v[i].ids);
    }
    m->n = m->newest = m->oldest = m->free = 0;
    heads_free(m);
    runs_free(m);
    groups_reset(m);
    m->bytes = 0;
}

void masks_deinit(struct masks *m)
{
    masks_reset(m);
    free(m->v);
    free(m->heads);
    free(m->runs);
    groups_free(m);
    free(m->path);
    free(m->now.ids);
    free(m->head.ids);
    *m = (struct masks){0};
}

size_t masks_bytes(const struct masks *m)
{
    return m->bytes + groups_bytes(m) + m->cap * sizeof *m->v + m->cap_heads * sizeof *m->heads +
           (m->now.max_ids + m->head.max_ids) * sizeof *m->now.ids;
}

/* ---- a state's mask ---- */

/* Divides an expression into its head, if it has one, and the rest. A single byte after a
 * repetition belongs to the head: few tokens contain a closing quote, so the head then has few
 * ends. */
static bool split_head(struct exprs *x, uint32_t e, uint32_t *head, uint32_t *rest)
{
    uint32_t part[LEAD_MAX + 2], n = 0;
    bool found = false;
    *rest = e;
    while (n < LEAD_MAX + 1 && !found && *rest != EXPR_EMPTY) {
        const struct expr *p = &x->v[*rest];
        uint32_t first = p->kind == X_SEQ ? p->a : *rest;
        const struct expr *q = &x->v[first];
        if (q->flags & XF_CALLS) {
            return false;
        }
        found = q->kind == X_TEXT || (q->kind == X_REP && q->c >= REPEAT_MIN);
        part[n++] = first;
        *rest = p->kind == X_SEQ ? p->b : (uint32_t)EXPR_EMPTY;
    }
    if (!found) {
        return false;
    }
    const struct expr *p = &x->v[*rest];
    uint32_t first = p->kind == X_SEQ ? p->a : *rest;
    if (x->v[part[n - 1]].kind == X_REP && x->v[first].kind == X_BYTES) {
        part[n++] = first;
        *rest = p->kind == X_SEQ ? p->b : (uint32_t)EXPR_EMPTY;
    }
    *head = EXPR_EMPTY;
    while (n > 0) {
        *head = expr_seq(x, part[--n], *head);
    }
    return true;
}

struct plain {
    struct item *v; // items without a head
    size_t n, cap;
};

/* Replaces an object by its expansion, so that white space at its beginning is seen. */
static uint32_t expand(struct exprs *x, uint32_t e)
{
    uint32_t first = x->v[e].kind == X_SEQ ? x->v[e].a : e;
    if (x->v[first].kind != X_OBJECT) {
        return e;
    }
    uint32_t rest = x->v[e].kind == X_SEQ ? x->v[e].b : (uint32_t)EXPR_EMPTY;
    return expr_seq(x, object_expand(x, first), rest);
}

/* Adds the tokens that an item allows by means of the mask of its first part, which many states
 * share. Returns false if the whole vocabulary must be walked for this item. */
static bool add_by_head(struct masks *m, uint32_t e, uint32_t stack, struct found *f)
{
    uint32_t head, rest;
    if (runs_add(m, e, stack, f)) {
        return true;
    }
    if (m->a->x->failed || !split_head(m->a->x, e, &head, &rest)) {
        return false;
    }
    if (inside_add(m, head, rest, stack, f)) {
        return true;
    }
    const struct head *h = heads_get(m, head);
    if (!h || h->whole) {
        return false;
    }
    if (h->words) {
        allow_words(m, h->words, f);
    }
    for (uint32_t i = 0; i < h->n_ids; i++) {
        allow_id(f, h->ids[i]);
    }
    struct item it = {rest, stack};
    uint32_t state = automaton_state(m->a, &it, 1);
    for (uint32_t i = 0; i < h->n_ends && !m->a->x->failed; i++) {
        mask_walk(m, h->ends[i], state, f, NULL);
    }
    return true;
}

static void put_plain(struct plain *plain, uint32_t e, uint32_t stack)
{
    if (e != EXPR_NONE) {
        GROW(plain->v, plain->n, plain->cap);
        plain->v[plain->n++] = (struct item){e, stack};
    }
}

/* Handles items that begin with alternatives. Each alternative may have a different head, although
 * the same expression follows all of them. */
static void add_branches(struct masks *m, uint32_t e, uint32_t stack, struct found *f,
                         struct plain *plain)
{
    struct exprs *x = m->a->x;
    uint32_t rest = x->v[e].kind == X_SEQ ? x->v[e].b : (uint32_t)EXPR_EMPTY;
    struct expr alt = x->v[x->v[e].kind == X_SEQ ? x->v[e].a : e];
    uint32_t *left = xmalloc((alt.b + 1) * sizeof *left);
    size_t n = 0;
    for (uint32_t i = 0; i < alt.b && !x->failed; i++) {
        uint32_t branch = expand(x, x->list[alt.a + i]);
        if (!add_by_head(m, expr_seq(x, branch, rest), stack, f)) {
            left[n++] = branch;
        }
    }
    if (n > 0) {
        put_plain(plain, expr_seq(x, expr_alt(x, left, n), rest), stack);
    }
    free(left);
}

/* Adds the tokens of one item. Heads and strings have shortcuts; the other items need a walk
 * (`plain`). */
static void add_item(struct masks *m, struct item it, struct found *f, struct plain *plain)
{
    struct exprs *x = m->a->x;
    uint32_t e = it.e;
    if (expr_is(x, e, XF_CALL_FIRST)) { // the rules that it calls have separate items
        e = rules_without_calls(x, e);
    }
    e = expand(x, e);
    uint32_t first = x->v[e].kind == X_SEQ ? x->v[e].a : e;
    if (x->v[first].kind == X_ALT && (first == e || expr_is(x, first, XF_TEXT))) {
        add_branches(m, e, it.stack, f, plain);
    } else if (!add_by_head(m, e, it.stack, f)) {
        put_plain(plain, e, it.stack);
    }
}

/* The items are copied, because the array that automaton_items returns moves when the automaton
 * grows. Items without a known head are walked together, in one pass. */
static void compute(struct masks *m, uint32_t state, struct found *f)
{
    size_t n;
    const struct item *items = automaton_items(m->a, state, &n);
    struct item *copy = xmalloc((n + 1) * sizeof *copy);
    memcpy(copy, items, n * sizeof *copy);
    struct plain plain = {0};
    for (size_t i = 0; i < n && !m->a->x->failed; i++) {
        add_item(m, copy[i], f, &plain);
    }
    if (plain.n > 0 && !m->a->x->failed) {
        mask_walk(m, 0, automaton_state(m->a, plain.v, plain.n), f, NULL);
    }
    free(plain.v);
    free(copy);
}

/* ---- the cache of masks ---- */

static void unlink_slot(struct masks *m, uint32_t s)
{
    struct mask_slot *p = &m->v[s];
    *(p->newer ? &m->v[p->newer - 1].older : &m->newest) = p->older;
    *(p->older ? &m->v[p->older - 1].newer : &m->oldest) = p->newer;
}

static void link_newest(struct masks *m, uint32_t s)
{
    struct mask_slot *p = &m->v[s];
    p->newer = 0;
    p->older = m->newest;
    *(m->newest ? &m->v[m->newest - 1].newer : &m->oldest) = s + 1;
    m->newest = s + 1;
}

static size_t slot_bytes(const struct masks *m, const struct mask_slot *p)
{
    if (p->words) {
        return m->vocab->n_words * 4;
    }
    return p->n_ids * sizeof *p->ids;
}

/* Drops the least recently used mask; its state forgets the slot, which becomes free. */
static void drop_oldest(struct masks *m)
{
    uint32_t s = m->oldest - 1;
    struct mask_slot *p = &m->v[s];
    m->bytes -= slot_bytes(m, p);
    m->a->v[p->state].mask = 0;
    unlink_slot(m, s);
    free(p->words);
    free(p->ids);
    *p = (struct mask_slot){.older = m->free};
    m->free = s + 1;
}

/* Masks with few tokens, and masks that differ little from their bases, are stored as lists. The
 * least recently used masks are dropped until the memory suffices. */
static void keep(struct masks *m, uint32_t state, const struct found *f)
{
    size_t n_words = m->vocab->n_words;
    struct mask_slot slot = {.state = state};
    if (is_list(f)) {
        slot.bases = f->bases;
        slot.ids = copy_ids(f);
        slot.n_ids = f->n_ids;
    } else {
        slot.words = xmalloc(n_words * 4);
        memcpy(slot.words, f->words, n_words * 4);
    }
    m->bytes += slot_bytes(m, &slot);
    while (m->oldest && m->bytes > m->max_bytes) {
        drop_oldest(m);
    }
    uint32_t s = m->free;
    if (s) {
        m->free = m->v[s - 1].older;
    } else {
        GROW(m->v, m->n, m->cap);
        s = ++m->n;
    }
    m->v[s - 1] = slot;
    link_newest(m, s - 1);
    m->a->v[state].mask = s;
}

/* A slot holds a whole mask, or up to two shared masks and a list of ids. */
static void write_slot(const struct mask_slot *p, uint32_t *words, size_t n_words)
{
    const uint32_t *first = p->words ? p->words : p->bases.words[0];
    if (first) {
        memcpy(words, first, n_words * 4);
    } else {
        memset(words, 0, n_words * 4);
    }
    for (uint32_t i = 1; i < p->bases.n; i++) {
        or_words(words, p->bases.words[i], n_words);
    }
    for (uint32_t i = 0; i < p->n_ids; i++) {
        words[p->ids[i] >> 5] |= 1u << (p->ids[i] & 31);
    }
}

/* The mask is computed into the caller's words, and then stored in the shorter of the two forms. */
void masks_get(struct masks *m, uint32_t state, uint32_t *words)
{
    size_t n_words = m->vocab->n_words;
    uint32_t s = m->a->v[state].mask;
    if (s) {
        write_slot(&m->v[s - 1], words, n_words);
        unlink_slot(m, s - 1);
        link_newest(m, s - 1);
        return;
    }
    memset(words, 0, n_words * 4);
    m->now.words = words;
    m->now.n_ids = 0;
    m->now.bases = (struct mask_bases){0};
    compute(m, state, &m->now);
    // These masks may have been made from heads and runs that were dropped.
    while (m->shared_dropped && m->oldest) {
        drop_oldest(m);
    }
    m->shared_dropped = false;
    if (!m->a->x->failed) {
        keep(m, state, &m->now);
    }
}
