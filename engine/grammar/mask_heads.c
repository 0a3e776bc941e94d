// SPDX-License-Identifier: Apache-2.0
/* The tokens that the head of an item allows, computed once for all items that begin with this
 * head: strings, repetitions and the like. */
#include "engine/grammar/mask_heads.h"

#include "engine/grammar/mask_inside.h"
#include "engine/grammar/mask_shared.h"
#include "engine/grammar/text.h"

enum {
    ENDS_MAX = 6000,  // chosen: ends per head
    HEADS_MAX = 4096, // chosen: heads per grammar; beyond that all are dropped
};

/* ---- any head ---- */

/* The usual walk. It also records where the head may end while more of the token follows. */
static void fill_head(struct masks *m, struct head *h)
{
    struct item it = {h->e, STACK_ROOT};
    struct walk_ends ends = {.max = ENDS_MAX};
    uint32_t state = automaton_state(m->a, &it, 1);
    if (automaton_may_end(m->a, state)) {
        GROW(ends.v, ends.n, ends.cap);
        ends.v[ends.n++] = 0;
    }
    mask_walk(m, 0, state, &m->head, &ends);
    h->ends = ends.v;
    h->n_ends = ends.n;
    h->whole = ends.too_many;
}

/* ---- heads that are soon plain text ---- */

/* A text that must differ from some names, or must begin in a certain way, soon becomes
 * unconstrained. From then on it allows the same tokens as any plain string, which the vocabulary
 * already lists. The trie is walked with both texts at once; where both reach the same state, they
 * allow the same tokens from there on. */
struct beside {
    struct masks *m;
    struct head *h;
    const struct inside *in;
    uint32_t *path;   // states of the plain text, by depth
    uint32_t at, cap; // at: position in the plain text's ends; cap: capacity of h->ends
};

static void put_end(struct beside *b, uint32_t at)
{
    GROW(b->h->ends, b->h->n_ends, b->cap);
    b->h->ends[b->h->n_ends++] = at;
}

/* Adds those ends of the plain text, starting with index `from`, that lie before a node. They are
 * ends of the head, too. */
static void take_ends(struct beside *b, uint32_t from, uint32_t before)
{
    const struct text_tails *t = b->in->tails;
    for (; b->at < t->n_ends && t->ends[b->at].at < before; b->at++) {
        const struct text_end *end = &t->ends[b->at];
        if (end->at >= from && end->chars >= b->in->lo && end->chars <= b->in->hi) {
            put_end(b, end->at);
        }
    }
}

/* Forbids the tokens in a subtree of the trie. */
static void forbid_below(struct beside *b, uint32_t at)
{
    const struct grammar_vocab *v = b->m->vocab;
    for (uint32_t i = v->first[at]; i < v->first[v->v[at].end]; i++) {
        b->m->head.words[v->order[i] >> 5] &= ~(1u << (v->order[i] & 31));
    }
}

/* Walks the vocabulary in two states at once. Where both lead to the same state, the tokens below
 * are the same; only differences are recorded. */
static void walk_beside(struct beside *b, uint32_t state, uint32_t plain)
{
    struct masks *m = b->m;
    const struct grammar_vocab *v = m->vocab;
    uint32_t seen = 0;
    m->path[0] = state;
    b->path[0] = plain;
    for (uint32_t i = 1; i < v->n && !m->a->x->failed; seen++) {
        const struct vocab_node *node = &v->v[i];
        uint32_t to = step(m->a, m->path[node->depth - 1], node->byte);
        uint32_t other = step(m->a, b->path[node->depth - 1], node->byte);
        if (to == other || to == STATE_DEAD) {
            if (to != other) {
                forbid_below(b, i);
            }
            take_ends(b, to == other ? i : v->n, node->end);
            i = node->end;
            continue;
        }
        allow_nodes(v, i, i + 1, &m->head);
        if (automaton_may_end(m->a, to) && node->end > i + 1) {
            put_end(b, i);
        }
        m->path[node->depth] = to;
        b->path[node->depth] = other;
        i++;
        take_ends(b, v->n, i);
    }
    exprs_spend(m->a->x, seen / 8);
}

/* If the derivative of a text by a letter is plain, returns the plain text that has this
 * derivative. Several letters are tried, because one of them may be the beginning of a name. */
static uint32_t soon(struct masks *m, uint32_t e)
{
    struct exprs *x = m->a->x;
    struct inside in;
    bool found = false;
    for (const char *c = "eqZ0"; *c && !found && x->v[e].kind == X_TEXT; c++) {
        found = inside_is(m, expr_derive(x, e, (uint8_t)*c), &in);
    }
    if (!found) {
        return EXPR_NONE;
    }
    if (in.is_free) {
        return text_make(x, x->any_text);
    }
    uint32_t hi = in.hi == EXPR_INF ? EXPR_INF : in.hi + 1;
    return text_make(x, expr_rep(x, x->any_char, in.lo > 0 ? in.lo + 1 : 0, hi));
}

/* Whether the first byte of most tokens leads to the same state from both states. */
static bool are_alike(struct masks *m, uint32_t state, uint32_t other)
{
    const struct grammar_vocab *v = m->vocab;
    uint32_t same = 0, others = 0;
    for (uint32_t i = 1; i < v->n; i = v->v[i].end) {
        uint32_t n = v->first[v->v[i].end] - v->first[i];
        uint32_t to = step(m->a, other, v->v[i].byte);
        bool equal = step(m->a, state, v->v[i].byte) == to;
        same += to != STATE_DEAD && equal ? n : 0;
        others += to != STATE_DEAD && !equal ? n : 0;
    }
    return same > others;
}

/* Returns false if `e` is not a text, or not one that soon becomes plain. */
static bool fill_beside(struct masks *m, struct head *h)
{
    struct item it = {h->e, STACK_ROOT}, other = {soon(m, h->e), STACK_ROOT};
    struct inside in;
    if (other.e == EXPR_NONE || !inside_is(m, other.e, &in)) {
        return false;
    }
    if (!in.is_free && in.hi == EXPR_INF) {
        return false; // its ends are in two lists
    }
    uint32_t state = automaton_state(m->a, &it, 1), plain = automaton_state(m->a, &other, 1);
    if (!are_alike(m, state, plain)) {
        return false;
    }
    struct beside b = {.m = m, .h = h, .in = &in};
    b.path = xmalloc((m->vocab->max_depth + 1) * sizeof *b.path);
    inside_allow(m, &in, &m->head);
    m->head.n_ids = m->head.max_ids + 1; // too many for a list
    walk_beside(&b, state, plain);
    free(b.path);
    return true;
}

/* The tokens of a head, from the cache if they are there. When the cache is full all heads are
 * dropped, because few grammars have many. */
const struct head *heads_get(struct masks *m, uint32_t e)
{
    for (uint32_t i = 0; i < m->n_heads; i++) {
        if (m->heads[i].e == e) {
            return &m->heads[i];
        }
    }
    if (m->n_heads == HEADS_MAX || m->bytes > m->max_bytes) {
        mask_shared_drop(m);
    }
    struct head h = {.e = e};
    m->head.words = xcalloc(m->vocab->n_words + 1, sizeof(uint32_t));
    m->head.n_ids = 0;
    m->head.bases.n = 0;
    if (!fill_beside(m, &h)) {
        fill_head(m, &h);
    }
    bool failed = m->a->x->failed;
    if (failed || h.whole) {
        free(h.ends);
        h.ends = NULL;
        h.n_ends = 0;
    } else if (is_list(&m->head)) {
        h.ids = copy_ids(&m->head);
        h.n_ids = m->head.n_ids;
    } else {
        h.words = m->head.words;
        m->head.words = NULL;
    }
    free(m->head.words);
    m->head.words = NULL;
    if (failed) {
        return NULL;
    }
    m->bytes += head_bytes(m, &h);
    GROW(m->heads, m->n_heads, m->cap_heads);
    m->heads[m->n_heads] = h;
    return &m->heads[m->n_heads++];
}
