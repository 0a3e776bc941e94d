// SPDX-License-Identifier: Apache-2.0
/* The tokens of a vocabulary that may occur inside a JSON string, computed once for all grammars:
 * tokens that stay inside, by their number of characters, and tokens that close the string, by the
 * text after the quote. */
#include "engine/grammar/vocab_text.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/text.h"

#include <stdlib.h>
#include <string.h>

enum { MANY = 1 << 30 };

/* Walks the trie with one language and reports the tokens that it finds. */
struct walk {
    const struct grammar_vocab *v;
    struct automaton a;
    uint32_t *state;   // by depth: the automaton's state
    uint32_t *chars;   // by depth: number of characters that have begun
    bool *escape;      // by depth: within an escape
    uint32_t *escaped; // by depth: number of bytes of the escape so far
    uint32_t *other;   // by depth: states of a second language
    uint32_t *before;  // by depth: characters before the end of the second language's text
};

/* Allocates the walk's values for each depth of the trie. */
static void walk_init(struct walk *w, const struct grammar_vocab *v, struct exprs *x,
                      struct rules *rules)
{
    size_t n = v->max_depth + 1;
    *w = (struct walk){.v = v};
    automaton_init(&w->a, x, rules, UINT32_MAX, SIZE_MAX);
    w->state = xcalloc(n, sizeof *w->state);
    w->chars = xcalloc(n, sizeof *w->chars);
    w->escape = xcalloc(n, sizeof *w->escape);
    w->escaped = xcalloc(n, sizeof *w->escaped);
    w->other = xcalloc(n, sizeof *w->other);
    w->before = xcalloc(n, sizeof *w->before);
}

static void walk_deinit(struct walk *w)
{
    free(w->state);
    free(w->chars);
    free(w->escape);
    free(w->escaped);
    free(w->other);
    free(w->before);
    automaton_deinit(&w->a);
}

/* The number of characters that a byte begins. An escape counts as one character; bytes that
 * continue a character count as none. */
static void count(struct walk *w, const struct vocab_node *node)
{
    uint32_t d = node->depth;
    bool in_escape = w->escape[d - 1];
    w->chars[d] = w->chars[d - 1];
    w->escaped[d] = w->escaped[d - 1] + 1;
    w->escape[d] = in_escape;
    if (!in_escape) {
        w->escape[d] = node->byte == '\\';
        w->escaped[d] = 0;
        w->chars[d] += (node->byte & 0xc0) != 0x80 && node->byte != '"';
    } else if (w->escaped[d] == 1 ? node->byte != 'u' : w->escaped[d] == 5) {
        w->escape[d] = false;
    }
}

static void put(struct text_token **list, uint32_t *n, uint32_t *cap, uint32_t chars, int32_t id)
{
    GROW(*list, *n, *cap);
    (*list)[(*n)++] = (struct text_token){chars, id};
}

/* ---- tokens that close the string ---- */

/* A token that closes the string. */
struct closing {
    const char *tail;
    uint32_t n, chars;
    int32_t id;
};

struct closings {
    struct closing *v;
    uint32_t n, cap;
};

/* Adds all tokens at and below a node at which a string has just been closed. */
static void put_closing(const struct grammar_vocab *v, uint32_t at, uint32_t chars,
                        struct closings *out)
{
    for (uint32_t i = v->first[at]; i < v->first[v->v[at].end]; i++) {
        int32_t id = v->order[i];
        GROW(out->v, out->n, out->cap);
        out->v[out->n++] = (struct closing){v->text + v->text_at[id] + v->v[at].depth,
                                            v->text_n[id] - v->v[at].depth, chars, id};
    }
}

/* Sorts tokens with equal tails next to each other. */
static int by_tail(const void *p, const void *q)
{
    const struct closing *a = p, *b = q;
    int c = memcmp(a->tail, b->tail, lesser(a->n, b->n));
    if (c == 0) {
        c = (a->n > b->n) - (a->n < b->n);
    }
    return c != 0 ? c : (a->id > b->id) - (a->id < b->id);
}

/* Stores tails as a trie in pre-order, with the tokens of each tail. */
static void make_tails(struct text_tails *t, uint32_t max_depth, struct closings *c)
{
    uint32_t *open = xcalloc(max_depth + 1, sizeof *open), depth = 0, cap = 0;
    if (c->n > 1) {
        qsort(c->v, c->n, sizeof *c->v, by_tail);
    }
    t->tokens = xcalloc(c->n + 1, sizeof *t->tokens);
    GROW(t->v, t->n, cap);
    t->v[t->n++] = (struct text_tail){0};
    for (uint32_t i = 0; i < c->n; i++) {
        const struct closing *p = &c->v[i];
        uint32_t common = 0;
        while (common < depth && common < p->n &&
               t->v[open[common + 1]].byte == (uint8_t)p->tail[common]) {
            common++;
        }
        for (; depth > common; depth--) {
            t->v[open[depth]].end = t->n;
        }
        for (; depth < p->n; depth++) {
            GROW(t->v, t->n, cap);
            t->v[t->n] = (struct text_tail){
                .first = i, .depth = (uint16_t)(depth + 1), .byte = (uint8_t)p->tail[depth]};
            open[depth + 1] = t->n++;
        }
        t->v[open[depth]].n++;
        t->tokens[t->n_tokens++] = (struct text_token){p->chars, p->id};
        t->max_chars = greater(p->chars, t->max_chars);
    }
    for (; depth > 0; depth--) {
        t->v[open[depth]].end = t->n;
    }
    t->v[0].end = t->n;
    free(open);
}

/* Languages for which tokens are collected. */
enum language {
    FREE,
    COUNTED,
    LATE, // as FREE, but has a \uXXXX that counted text does not allow: its characters cannot be
          // counted
};

/* The number of characters that begin in a token up to a node. For LATE, only those before the
 * escape that counted text does not allow. */
static uint32_t chars_at(struct walk *w, enum language which, const struct vocab_node *node)
{
    uint32_t d = node->depth;
    if (which != LATE) {
        return w->chars[d];
    }
    w->other[d] = w->other[d - 1];
    w->before[d] = w->before[d - 1];
    if (w->other[d] != STATE_DEAD) {
        w->other[d] = automaton_step(&w->a, w->other[d], node->byte);
        w->before[d] = w->chars[d] - 1;
    }
    return w->before[d];
}

/* *inside: the tokens that leave the string open; *tails: those that close it. */
static void collect(const struct grammar_vocab *v, enum language which, struct text_token **inside,
                    uint32_t *n_inside, struct text_tails *tails)
{
    struct exprs x;
    struct rules rules = {0};
    struct closings closings = {0};
    uint32_t cap_inside = 0, cap_ends = 0;
    exprs_init(&x, SIZE_MAX, UINT64_MAX);
    uint32_t free_text = text_make(&x, x.any_text);
    uint32_t counted = text_make(&x, expr_rep(&x, x.any_char, 0, MANY));
    exprs_classify(&x);
    x.classes_final = true;
    struct walk w;
    walk_init(&w, v, &x, &rules);
    struct item it = {which == COUNTED ? counted : free_text, STACK_ROOT};
    w.state[0] = automaton_state(&w.a, &it, 1);
    w.other[0] = automaton_state(&w.a, &(struct item){counted, STACK_ROOT}, 1);
    for (uint32_t i = 1; i < v->n;) {
        const struct vocab_node *node = &v->v[i];
        uint32_t d = node->depth, to = automaton_step(&w.a, w.state[d - 1], node->byte);
        if (to == STATE_DEAD) {
            i = node->end;
            continue;
        }
        w.state[d] = to;
        count(&w, node);
        uint32_t chars = chars_at(&w, which, node);
        bool wanted = which != LATE || w.other[d] == STATE_DEAD;
        if (automaton_may_end(&w.a, to)) {
            if (wanted) {
                put_closing(v, i, chars, &closings);
            }
            if (wanted && node->end > i + 1) {
                GROW(tails->ends, tails->n_ends, cap_ends);
                tails->ends[tails->n_ends++] = (struct text_end){chars, i};
            }
            i = node->end; // what follows belongs to another token
            continue;
        }
        for (uint32_t k = v->first[i]; wanted && k < v->first[i + 1]; k++) {
            put(inside, n_inside, &cap_inside, chars, v->order[k]);
        }
        i++;
    }
    make_tails(tails, v->max_depth, &closings);
    free(closings.v);
    walk_deinit(&w);
    exprs_deinit(&x);
}

static int by_chars(const void *p, const void *q)
{
    const struct text_token *a = p, *b = q;
    return (a->chars > b->chars) - (a->chars < b->chars);
}

static void set_bit(uint32_t *words, int32_t id)
{
    words[id >> 5] |= 1u << (id & 31);
}

static uint32_t *words_of(const struct grammar_vocab *v, const struct text_token *list, uint32_t n)
{
    uint32_t *words = xcalloc(v->n_words + 1, sizeof *words);
    for (uint32_t i = 0; i < n; i++) {
        set_bit(words, list[i].id);
    }
    return words;
}

/* Makes the masks of each small limit from the sorted lists. */
struct vocab_text *vocab_text_make(const struct grammar_vocab *v)
{
    struct vocab_text *t = xcalloc(1, sizeof *t);
    struct text_token *inside = NULL, *list = NULL;
    uint32_t n_inside = 0, n = 0, cap = 0;
    collect(v, FREE, &inside, &n_inside, &t->free_tails);
    collect(v, COUNTED, &list, &n, &t->tails);
    collect(v, LATE, &t->late, &t->n_late, &t->late_tails);
    t->free_words = words_of(v, inside, n_inside);
    for (uint32_t i = 0; i < t->free_tails.v[0].n; i++) {
        set_bit(t->free_words, t->free_tails.tokens[i].id);
    }
    t->closing = words_of(v, t->tails.tokens, t->tails.v[0].n);
    for (uint32_t k = 0; k < TEXT_STEPS; k++) {
        t->words[k] = words_of(v, NULL, 0);
        for (uint32_t i = 0; i < n; i++) {
            if (list[i].chars <= k || k == TEXT_STEPS - 1) {
                set_bit(t->words[k], list[i].id);
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (list[i].chars >= TEXT_STEPS - 1) {
            put(&t->inside, &t->n_inside, &cap, list[i].chars, list[i].id);
        }
    }
    if (t->n_inside > 1) {
        qsort(t->inside, t->n_inside, sizeof *t->inside, by_chars);
    }
    free(inside);
    free(list);
    return t;
}

static void free_tails(struct text_tails *t)
{
    free(t->v);
    free(t->tokens);
    free(t->ends);
}

void vocab_text_free(struct vocab_text *t)
{
    if (!t) {
        return;
    }
    free(t->free_words);
    for (int k = 0; k < TEXT_STEPS; k++) {
        free(t->words[k]);
    }
    free(t->inside);
    free(t->closing);
    free_tails(&t->tails);
    free_tails(&t->free_tails);
    free(t->late);
    free_tails(&t->late_tails);
    free(t);
}
