// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/vocab_text.h"

#include "engine/base/mem.h"
#include "engine/grammar/automaton.h"
#include "engine/grammar/text.h"

#include <stdlib.h>
#include <string.h>

enum { MANY = 1 << 30 };

/* Walks the trie with one language, and hands out what it finds. */
struct walk {
    const struct grammar_vocab *v;
    struct automaton a;
    uint32_t *state;   // by depth
    uint32_t *chars;   // characters begun, by depth
    bool *escape;      // by depth: within an escape
    uint32_t *escaped; // by depth: bytes of it so far
};

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

static void put(struct text_token **list, uint32_t *n, uint32_t *cap, uint32_t chars, uint32_t at)
{
    GROW(*list, *n, *cap);
    (*list)[(*n)++] = (struct text_token){chars, at};
}

/* *inside: tokens that leave the string open; *ends: nodes that close it. */
static void collect(const struct grammar_vocab *v, bool is_free, struct text_token **inside,
                    uint32_t *n_inside, struct text_token **ends, uint32_t *n_ends)
{
    struct exprs x;
    struct rules rules = {0};
    uint32_t cap_inside = 0, cap_ends = 0;
    exprs_init(&x, SIZE_MAX, UINT64_MAX);
    uint32_t many = expr_rep(&x, x.any_char, 0, MANY);
    uint32_t text = text_make(&x, is_free ? x.any_text : many);
    exprs_classify(&x);
    x.classes_final = true;
    struct walk w = {.v = v};
    automaton_init(&w.a, &x, &rules, UINT32_MAX, SIZE_MAX);
    w.state = xcalloc(v->max_depth + 1, sizeof *w.state);
    w.chars = xcalloc(v->max_depth + 1, sizeof *w.chars);
    w.escape = xcalloc(v->max_depth + 1, sizeof *w.escape);
    w.escaped = xcalloc(v->max_depth + 1, sizeof *w.escaped);
    w.state[0] = automaton_state(&w.a, &(struct item){text, STACK_ROOT}, 1);
    for (uint32_t i = 1; i < v->n;) {
        const struct vocab_node *node = &v->v[i];
        uint32_t d = node->depth, to = automaton_step(&w.a, w.state[d - 1], node->byte);
        if (to == STATE_DEAD) {
            i = node->end;
            continue;
        }
        w.state[d] = to;
        count(&w, node);
        if (automaton_may_end(&w.a, to)) {
            put(ends, n_ends, &cap_ends, w.chars[d], i);
            i = node->end; // what follows is another's
            continue;
        }
        for (int32_t id = node->id; id >= 0; id = v->same[id]) {
            put(inside, n_inside, &cap_inside, w.chars[d], (uint32_t)id);
        }
        i++;
    }
    free(w.state);
    free(w.chars);
    free(w.escape);
    free(w.escaped);
    automaton_deinit(&w.a);
    exprs_deinit(&x);
}

static int by_chars(const void *p, const void *q)
{
    const struct text_token *a = p, *b = q;
    return (a->chars > b->chars) - (a->chars < b->chars);
}

struct vocab_text *vocab_text_make(const struct grammar_vocab *v)
{
    struct vocab_text *t = xcalloc(1, sizeof *t);
    struct text_token *inside = NULL, *list = NULL;
    uint32_t n_inside = 0, n = 0;
    collect(v, true, &inside, &n_inside, &t->free_ends, &t->n_free_ends);
    collect(v, false, &list, &n, &t->ends, &t->n_ends);
    t->free_words = xcalloc(v->n_words + 1, 4);
    for (uint32_t i = 0; i < n_inside; i++) {
        t->free_words[inside[i].at >> 5] |= 1u << (inside[i].at & 31);
    }
    for (uint32_t k = 0; k < TEXT_STEPS; k++) {
        t->words[k] = xcalloc(v->n_words + 1, 4);
        for (uint32_t i = 0; i < n; i++) {
            if (list[i].chars <= k || k == TEXT_STEPS - 1) {
                t->words[k][list[i].at >> 5] |= 1u << (list[i].at & 31);
            }
        }
    }
    uint32_t cap = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (list[i].chars >= TEXT_STEPS - 1) {
            put(&t->inside, &t->n_inside, &cap, list[i].chars, list[i].at);
        }
    }
    if (t->n_inside > 1) {
        qsort(t->inside, t->n_inside, sizeof *t->inside, by_chars);
    }
    free(inside);
    free(list);
    return t;
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
    free(t->ends);
    free(t->free_ends);
    free(t);
}
