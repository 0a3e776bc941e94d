// SPDX-License-Identifier: Apache-2.0
/* Tokens inside JSON strings whose text is free, or limited only in its length. The vocabulary has
 * them ready. */
#include "engine/grammar/mask_inside.h"

/* Whether an expression is such a string, and the limits for its number of characters. */
bool inside_is(const struct masks *m, uint32_t e, struct inside *in)
{
    const struct exprs *x = m->a->x;
    const struct expr *p = &x->v[e], *q = &x->v[p->a];
    bool is_free = p->a == x->any_text, counted = q->kind == X_REP && q->a == x->any_char;
    if (p->kind != X_TEXT || p->b != 0 || (!is_free && !counted)) {
        return false;
    }
    *in = (struct inside){&m->vocab->in_string->free_tails, true, 0, EXPR_INF};
    if (!is_free) {
        *in = (struct inside){&m->vocab->in_string->tails, false, q->b, q->c};
    }
    return true;
}

static void allow_counted(const struct text_token *v, uint32_t n, const struct inside *in,
                          struct found *f)
{
    for (uint32_t i = 0; i < n; i++) {
        if (v[i].chars >= in->lo && v[i].chars <= in->hi) {
            allow_id(f, v[i].id);
        }
    }
}

/* Each small limit has a mask. For larger limits, long tokens are checked one by one. */
void inside_allow(struct masks *m, const struct inside *in, struct found *f)
{
    const struct vocab_text *t = m->vocab->in_string;
    const struct text_tails *tails = in->tails;
    if (in->is_free) {
        allow_words(m, t->free_words, f);
        return;
    }
    if (in->hi < TEXT_STEPS - 1) {
        allow_words(m, t->words[in->hi], f);
    } else if (t->n_inside == 0 || in->hi >= t->inside[t->n_inside - 1].chars) {
        allow_words(m, t->words[TEXT_STEPS - 1], f);
    } else {
        allow_words(m, t->words[TEXT_STEPS - 2], f);
        for (uint32_t i = 0; i < t->n_inside && t->inside[i].chars <= in->hi; i++) {
            allow_id(f, t->inside[i].id);
        }
    }
    if (in->lo == 0 && in->hi >= tails->max_chars) {
        allow_words(m, t->closing, f);
    } else {
        allow_counted(tails->tokens, tails->v[0].n, in, f);
    }
    if (in->hi == EXPR_INF) {
        allow_counted(t->late, t->n_late, in, f);
        allow_counted(t->late_tails.tokens, t->late_tails.v[0].n, in, f);
    }
}

/* Allows tokens that close the string and continue: the bytes after the quote are checked, starting
 * from a state. */
static void walk_tails(struct masks *m, const struct text_tails *t, const struct inside *in,
                       uint32_t state, struct found *f)
{
    m->path[0] = state;
    for (uint32_t i = 1; i < t->n;) {
        const struct text_tail *tail = &t->v[i];
        uint32_t to = step(m->a, m->path[tail->depth - 1], tail->byte);
        if (to == STATE_DEAD) {
            i = tail->end;
            continue;
        }
        m->path[tail->depth] = to;
        allow_counted(t->tokens + tail->first, tail->n, in, f);
        i++;
    }
    exprs_spend(m->a->x, t->n / 64);
}

/* Allows the tokens inside the string, and those that close it and continue with what follows the
 * string. */
bool inside_add(struct masks *m, uint32_t e, uint32_t rest, uint32_t stack, struct found *f)
{
    struct inside in;
    if (!inside_is(m, e, &in)) {
        return false;
    }
    inside_allow(m, &in, f);
    uint32_t state = automaton_state(m->a, &(struct item){rest, stack}, 1);
    walk_tails(m, in.tails, &in, state, f);
    if (!in.is_free && in.hi == EXPR_INF) {
        walk_tails(m, &m->vocab->in_string->late_tails, &in, state, f);
    }
    return true;
}
