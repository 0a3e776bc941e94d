// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/masks.h"

#include "engine/base/mem.h"
#include "engine/grammar/object.h"
#include "engine/grammar/rules.h"
#include "engine/grammar/vocab_text.h"

#include <stdlib.h>
#include <string.h>

enum {
    ENDS_MAX = 6000,  // of a head
    HEADS_MAX = 4096, // of a grammar; then all are forgotten
    LEAD_MAX = 4,     // parts before the long one in a head
    REPEAT_MIN = 8,   // a shorter repetition is no head
};

void masks_init(struct masks *m, const struct grammar_vocab *vocab, struct automaton *a,
                size_t max_bytes)
{
    *m = (struct masks){.vocab = vocab, .a = a, .max_bytes = max_bytes};
    m->path = xcalloc(vocab->max_depth + 1, sizeof *m->path);
}

static size_t head_bytes(const struct masks *m, const struct head *h)
{
    return (h->words ? m->vocab->n_words * sizeof *h->words : 0) + h->n_ids * sizeof *h->ids +
           h->n_ends * sizeof *h->ends;
}

static void drop_heads(struct masks *m)
{
    for (uint32_t i = 0; i < m->n_heads; i++) {
        m->bytes -= head_bytes(m, &m->heads[i]);
        free(m->heads[i].words);
        free(m->heads[i].ids);
        free(m->heads[i].ends);
    }
    m->n_heads = 0;
}

void masks_reset(struct masks *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        free(m->v[i].words);
        free(m->v[i].ids);
    }
    m->n = m->newest = m->oldest = m->free = 0;
    drop_heads(m);
    m->bytes = 0;
}

void masks_deinit(struct masks *m)
{
    masks_reset(m);
    free(m->v);
    free(m->heads);
    free(m->path);
    *m = (struct masks){0};
}

size_t masks_bytes(const struct masks *m)
{
    return m->bytes + m->cap * sizeof *m->v + m->cap_heads * sizeof *m->heads;
}

/* ---- bits ---- */

/* Bits that `base` (NULL: none) does not have: most words have none. */
static size_t count_bits(const uint32_t *words, const uint32_t *base, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t w = base ? words[i] & ~base[i] : words[i]; w; w &= w - 1) {
            count++;
        }
        if (count > n) {
            break; // as many as matter
        }
    }
    return count;
}

static int32_t *list_bits(const uint32_t *words, const uint32_t *base, size_t n, size_t count)
{
    int32_t *ids = xmalloc((count + 1) * sizeof *ids);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t w = base ? words[i] & ~base[i] : words[i]; w; w &= w - 1) {
            ids[at++] = (int32_t)(i * 32) + __builtin_ctz(w);
        }
    }
    return ids;
}

/* ---- the walk ---- */

static inline void set_bit(uint32_t *words, int32_t id)
{
    words[id >> 5] |= 1u << (id & 31);
}

static inline void allow_node(const struct grammar_vocab *v, const struct vocab_node *node,
                              uint32_t *words)
{
    if (node->id < 0) {
        return;
    }
    set_bit(words, node->id);
    for (int32_t id = node->more ? v->same[node->id] : -1; id >= 0; id = v->same[id]) {
        set_bit(words, id);
    }
}

static inline uint32_t step(struct automaton *a, uint32_t state, uint8_t byte)
{
    const uint32_t *row = a->v[state].row;
    uint32_t to = row ? row[a->x->class_of[byte]] : 0;
    return to ? to - 1 : automaton_step(a, state, byte);
}

/* Allows what is below a node, read from a state. */
static void walk(struct masks *m, uint32_t from, uint32_t state, uint32_t *words)
{
    const struct grammar_vocab *v = m->vocab;
    uint32_t end = v->v[from].end, seen = 0;
    m->path[v->v[from].depth] = state;
    for (uint32_t i = from + 1; i < end;) {
        const struct vocab_node *node = &v->v[i];
        uint32_t to = step(m->a, m->path[node->depth - 1], node->byte);
        seen++;
        if (to == STATE_DEAD) {
            if (m->a->x->failed) {
                return;
            }
            i = node->end;
            continue;
        }
        allow_node(v, node, words);
        m->path[node->depth] = to;
        i++;
    }
    exprs_spend(m->a->x, seen / 8);
}

/* ---- heads ---- */

/* The same walk, which notes where the head may end with more of a token behind it. */
static void fill_head(struct masks *m, struct head *h)
{
    const struct grammar_vocab *v = m->vocab;
    struct item it = {h->e, STACK_ROOT};
    uint32_t cap = 0, state = automaton_state(m->a, &it, 1);
    m->path[0] = state;
    if (automaton_may_end(m->a, state)) {
        GROW(h->ends, h->n_ends, cap);
        h->ends[h->n_ends++] = 0;
    }
    for (uint32_t i = 1; i < v->n && !m->a->x->failed;) {
        const struct vocab_node *node = &v->v[i];
        uint32_t to = step(m->a, m->path[node->depth - 1], node->byte);
        if (to == STATE_DEAD) {
            i = node->end;
            continue;
        }
        allow_node(v, node, h->words);
        m->path[node->depth] = to;
        if (automaton_may_end(m->a, to) && node->end > i + 1) {
            if (h->n_ends == ENDS_MAX) {
                h->whole = true;
                return;
            }
            GROW(h->ends, h->n_ends, cap);
            h->ends[h->n_ends++] = i;
        }
        i++;
    }
    exprs_spend(m->a->x, v->n / 64);
}

static const struct head *head_get(struct masks *m, uint32_t e)
{
    for (uint32_t i = 0; i < m->n_heads; i++) {
        if (m->heads[i].e == e) {
            return &m->heads[i];
        }
    }
    if (m->n_heads == HEADS_MAX || m->bytes > m->max_bytes) {
        drop_heads(m);
    }
    struct head h = {.e = e, .words = xcalloc(m->vocab->n_words + 1, sizeof(uint32_t))};
    fill_head(m, &h);
    size_t count = m->a->x->failed || h.whole ? 0 : count_bits(h.words, NULL, m->vocab->n_words);
    if (m->a->x->failed || h.whole) {
        free(h.ends);
        h.ends = NULL;
        h.n_ends = 0;
    } else if (count < m->vocab->n_words / 2) {
        h.ids = list_bits(h.words, NULL, m->vocab->n_words, count);
        h.n_ids = (uint32_t)count;
    }
    if (m->a->x->failed || h.whole || h.ids) {
        free(h.words);
        h.words = NULL;
    }
    if (m->a->x->failed) {
        return NULL;
    }
    m->bytes += head_bytes(m, &h);
    GROW(m->heads, m->n_heads, m->cap_heads);
    m->heads[m->n_heads] = h;
    return &m->heads[m->n_heads++];
}

/* Cuts an expression into a head and the rest, where it has one. A single byte behind a repetition
 * belongs to the head: what ends at a quote ends in few tokens. */
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

/* ---- a state's mask ---- */

struct plain {
    struct item *v; // what is walked as it is
    size_t n, cap;
};

/* Objects as what they begin with, so that their white space is seen. */
static uint32_t expand(struct exprs *x, uint32_t e)
{
    uint32_t first = x->v[e].kind == X_SEQ ? x->v[e].a : e;
    if (x->v[first].kind != X_OBJECT) {
        return e;
    }
    uint32_t rest = x->v[e].kind == X_SEQ ? x->v[e].b : (uint32_t)EXPR_EMPTY;
    return expr_seq(x, object_expand(x, first), rest);
}

static void add_words(struct masks *m, const uint32_t *more, uint32_t *words)
{
    for (size_t i = 0; i < m->vocab->n_words; i++) {
        words[i] |= more[i];
    }
    m->base = more;
}

/* The inside of a string, free or with a number of characters: what the vocabulary has of it. */
static bool add_text(struct masks *m, uint32_t head, uint32_t rest, uint32_t stack, uint32_t *words)
{
    const struct exprs *x = m->a->x;
    const struct vocab_text *t = m->vocab->in_string;
    const struct expr *p = &x->v[head], *q = &x->v[p->a];
    bool counted = q->kind == X_REP && q->a == x->any_char && p->a != x->any_text;
    if (p->kind != X_TEXT || p->b != 0 || (p->a != x->any_text && !counted)) {
        return false;
    }
    uint32_t lo = counted ? q->b : 0, hi = counted ? q->c : EXPR_INF;
    const struct text_token *ends = counted ? t->ends : t->free_ends;
    uint32_t n = counted ? t->n_ends : t->n_free_ends;
    if (!counted) {
        add_words(m, t->free_words, words);
    } else {
        add_words(m, t->words[hi < TEXT_STEPS - 1 ? hi : TEXT_STEPS - 2], words);
        for (uint32_t i = 0; i < t->n_inside && t->inside[i].chars <= hi; i++) {
            set_bit(words, (int32_t)t->inside[i].at);
        }
    }
    struct item it = {rest, stack};
    uint32_t state = automaton_state(m->a, &it, 1);
    for (uint32_t i = 0; i < n && !m->a->x->failed; i++) {
        if (ends[i].chars >= lo && ends[i].chars <= hi) {
            allow_node(m->vocab, &m->vocab->v[ends[i].at], words);
            walk(m, ends[i].at, state, words);
        }
    }
    return true;
}

static bool add_by_head(struct masks *m, uint32_t e, uint32_t stack, uint32_t *words)
{
    uint32_t head, rest;
    if (!split_head(m->a->x, e, &head, &rest)) {
        return false;
    }
    if (add_text(m, head, rest, stack, words)) {
        return true;
    }
    const struct head *h = head_get(m, head);
    if (!h || h->whole) {
        return false;
    }
    for (size_t i = 0; h->words && i < m->vocab->n_words; i++) {
        words[i] |= h->words[i];
    }
    for (uint32_t i = 0; i < h->n_ids; i++) {
        set_bit(words, h->ids[i]);
    }
    struct item it = {rest, stack};
    uint32_t state = automaton_state(m->a, &it, 1);
    for (uint32_t i = 0; i < h->n_ends && !m->a->x->failed; i++) {
        walk(m, h->ends[i], state, words);
    }
    return true;
}

static void add_item(struct masks *m, struct item it, uint32_t *words, struct plain *plain)
{
    struct exprs *x = m->a->x;
    uint32_t e = it.e;
    if (expr_is(x, e, XF_CALL_FIRST)) { // the rules that it calls have items of their own
        e = rules_without_calls(x, e);
    }
    e = expand(x, e);
    struct expr p = x->v[e];
    uint32_t left = p.kind == X_ALT ? EXPR_NONE : e;
    if (p.kind != X_ALT) {
        left = add_by_head(m, e, it.stack, words) ? (uint32_t)EXPR_NONE : e;
    }
    for (uint32_t i = 0; p.kind == X_ALT && i < p.b && !x->failed; i++) {
        uint32_t branch = expand(x, x->list[p.a + i]);
        if (!add_by_head(m, branch, it.stack, words)) {
            GROW(plain->v, plain->n, plain->cap);
            plain->v[plain->n++] = (struct item){branch, it.stack};
        }
    }
    if (left != EXPR_NONE) {
        GROW(plain->v, plain->n, plain->cap);
        plain->v[plain->n++] = (struct item){left, it.stack};
    }
}

static void compute(struct masks *m, uint32_t state, uint32_t *words)
{
    size_t n;
    const struct item *items = automaton_items(m->a, state, &n);
    struct item *copy = xmalloc((n + 1) * sizeof *copy);
    memcpy(copy, items, n * sizeof *copy);
    struct plain plain = {0};
    for (size_t i = 0; i < n && !m->a->x->failed; i++) {
        add_item(m, copy[i], words, &plain);
    }
    if (plain.n > 0 && !m->a->x->failed) {
        walk(m, 0, automaton_state(m->a, plain.v, plain.n), words);
    }
    free(plain.v);
    free(copy);
}

/* ---- kept masks ---- */

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
    return p->words ? m->vocab->n_words * 4 : p->n_ids * sizeof *p->ids;
}

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

static void keep(struct masks *m, uint32_t state, const uint32_t *words)
{
    size_t n_words = m->vocab->n_words, count = count_bits(words, m->base, n_words);
    struct mask_slot slot = {.state = state};
    if (count < n_words / 2) {
        slot.base = m->base;
        slot.ids = list_bits(words, m->base, n_words, count);
        slot.n_ids = (uint32_t)count;
    } else {
        slot.words = xmalloc(n_words * 4);
        memcpy(slot.words, words, n_words * 4);
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

void masks_get(struct masks *m, uint32_t state, uint32_t *words)
{
    size_t n_words = m->vocab->n_words;
    uint32_t s = m->a->v[state].mask;
    if (s) {
        const struct mask_slot *p = &m->v[s - 1];
        if (p->words) {
            memcpy(words, p->words, n_words * 4);
        } else {
            if (p->base) {
                memcpy(words, p->base, n_words * 4);
            } else {
                memset(words, 0, n_words * 4);
            }
            for (uint32_t i = 0; i < p->n_ids; i++) {
                set_bit(words, p->ids[i]);
            }
        }
        unlink_slot(m, s - 1);
        link_newest(m, s - 1);
        return;
    }
    memset(words, 0, n_words * 4);
    m->base = NULL;
    compute(m, state, words);
    if (!m->a->x->failed) {
        keep(m, state, words);
    }
}
