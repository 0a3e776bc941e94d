// SPDX-License-Identifier: Apache-2.0
/* A counted item is [before] a{lo,hi} [after], alone or as the text of a JSON string, followed by
 * the rest. Its run is [before] a*: the same without the count and without what follows. This
 * method requires that `before` is not nullable and that all derivatives of the run keep this form.
 * Then each byte leads to one place, and the number of rounds that have begun is a function of the
 * bytes. A token that stays in the run and begins n rounds is allowed if n <= hi, because what
 * follows can always be completed. Between rounds, if lo <= n, the item may also continue with what
 * follows; the nodes of the trie where it can do so are the exits. */
#include "engine/grammar/mask_runs.h"

#include "engine/grammar/mask_groups.h"
#include "engine/grammar/mask_shared.h"
#include "engine/grammar/text.h"

enum {
    // Chosen: a shorter repetition may use the run of a longer one, but no run is made for it.
    COUNT_MIN = 8,
    PARTS_MAX = 8,    // chosen: parts before the repetition
    EXITS_MAX = 6000, // chosen: exits of a run, per set of bytes that may follow
    N_PLACES = 64,    // number of places of a run that are remembered
};

/* ---- the form of an item ---- */

struct counted {
    bool in_text;
    uint32_t lo, hi;
    uint32_t run, loop; // the item's run, and the a* in it
    uint32_t n;         // number of rounds that have begun
    uint32_t rest;      // what follows the run
};

static uint32_t first_of(const struct exprs *x, uint32_t e)
{
    return x->v[e].kind == X_SEQ ? x->v[e].a : e;
}

static uint32_t after_first(const struct exprs *x, uint32_t e)
{
    return x->v[e].kind == X_SEQ ? x->v[e].b : (uint32_t)EXPR_EMPTY;
}

/* The repetition without its count. EXPR_NONE: `e` is not a counted repetition, or contains
 * calls. */
static uint32_t loop_of(struct exprs *x, uint32_t e)
{
    struct expr p = x->v[e];
    bool counts = p.kind == X_REP && (p.c == EXPR_INF ? p.b : p.c) > 1;
    if (!counts || (p.flags & (XF_CALLS | XF_DOUBT | XF_TEXT))) {
        return EXPR_NONE;
    }
    uint32_t loop = expr_rep(x, p.a, 0, EXPR_INF);
    return x->v[loop].kind == X_REP && x->v[loop].a == p.a ? loop : (uint32_t)EXPR_NONE;
}

/* A sequence divided at a counted repetition. */
struct found_rep {
    uint32_t before[PARTS_MAX], n_before;
    uint32_t rep, after;
};

/* Finds the first counted repetition that has at least `from` parts before it. Those parts must not
 * all be nullable. */
static bool find_rep(struct exprs *x, uint32_t e, uint32_t from, struct found_rep *r)
{
    bool nullable = true;
    *r = (struct found_rep){.after = e};
    while (r->after != EXPR_EMPTY) {
        uint32_t part = first_of(x, r->after);
        r->after = after_first(x, r->after);
        bool apart = r->n_before == 0 || !nullable;
        if (r->n_before >= from && apart && loop_of(x, part) != EXPR_NONE) {
            r->rep = part;
            return true;
        }
        if (r->n_before == PARTS_MAX || (x->v[part].flags & (XF_CALLS | XF_DOUBT | XF_TEXT))) {
            return false;
        }
        nullable &= expr_is(x, part, XF_NULLABLE);
        r->before[r->n_before++] = part;
    }
    return false;
}

static uint32_t joined(struct exprs *x, const uint32_t *part, uint32_t n, uint32_t e)
{
    while (n > 0) {
        e = expr_seq(x, part[--n], e);
    }
    return e;
}

static void set_counts(struct exprs *x, const struct found_rep *r, struct counted *c)
{
    c->lo = x->v[r->rep].b;
    c->hi = x->v[r->rep].c;
    c->loop = loop_of(x, r->rep);
    c->run = joined(x, r->before, r->n_before, c->loop);
}

/* Matches an item that is the text of a string; something, such as the quote, may precede the
 * string. */
static bool as_text(struct exprs *x, uint32_t e, uint32_t from, struct counted *c, uint32_t *next)
{
    uint32_t lead[PARTS_MAX], n_lead = 0;
    bool nullable = true;
    struct found_rep r;
    for (; x->v[first_of(x, e)].kind != X_TEXT; e = after_first(x, e)) {
        uint32_t part = first_of(x, e);
        if (e == EXPR_EMPTY || n_lead == PARTS_MAX || expr_is(x, part, XF_CALLS)) {
            return false;
        }
        nullable &= expr_is(x, part, XF_NULLABLE);
        lead[n_lead++] = part;
    }
    uint32_t text = first_of(x, e);
    if ((n_lead > 0 && nullable) || !find_rep(x, x->v[text].a, from, &r)) {
        return false;
    }
    *next = r.n_before + 1;
    set_counts(x, &r, c);
    bool plain = text_is_plain(x, text), between = r.n_before == 0;
    if (c->loop == x->any_text || (!plain && between && r.after != EXPR_EMPTY)) {
        return false; // the escapes differ, or the escape may belong to what follows
    }
    c->in_text = true;
    c->n = !plain && between;
    c->run = joined(x, lead, n_lead, text_alike(x, text, c->run));
    c->rest = expr_seq(x, text_make(x, r.after), after_first(x, e));
    return true;
}

/* Finds the first repetition of an item that has at least `from` parts before it. */
static bool as_counted(struct exprs *x, uint32_t e, uint32_t from, struct counted *c,
                       uint32_t *next)
{
    struct found_rep r;
    *c = (struct counted){.in_text = false};
    if (!find_rep(x, e, from, &r)) {
        return as_text(x, e, from, c, next);
    }
    *next = r.n_before + 1;
    set_counts(x, &r, c);
    c->rest = r.after;
    return true;
}

/* ---- the walk ---- */

/* Where a state is in relation to the run. */
enum place { UNFIT, OUTSIDE, INSIDE, BETWEEN /* rounds */ };

static enum place place_of_parts(const struct exprs *x, uint32_t e, uint32_t last)
{
    bool nullable = true, first = true;
    for (; e != last; e = x->v[e].b, first = false) {
        if (x->v[e].kind != X_SEQ) {
            return UNFIT;
        }
        nullable &= expr_is(x, x->v[e].a, XF_NULLABLE);
    }
    if (first) {
        return BETWEEN;
    }
    return nullable ? UNFIT : INSIDE;
}

static enum place place_of(const struct exprs *x, const struct counted *c, uint32_t e)
{
    if (e == EXPR_EMPTY) {
        return OUTSIDE;
    }
    if (!c->in_text) {
        return place_of_parts(x, e, c->loop);
    }
    uint32_t text = e;
    while (x->v[text].kind == X_SEQ) {
        text = x->v[text].b;
    }
    if (x->v[text].kind != X_TEXT) {
        return UNFIT;
    }
    enum place lead = place_of_parts(x, e, text);
    enum place place = place_of_parts(x, x->v[text].a, c->loop);
    if (lead == UNFIT || place == UNFIT) {
        return UNFIT;
    }
    return lead == BETWEEN && text_is_plain(x, text) ? place : INSIDE;
}

struct walk {
    struct masks *m;
    const struct counted *c;
    struct mask_run *run;
    struct run_exits *exits;
    uint64_t exit_groups; // groups of characters that begin with a byte of exits->first
    uint32_t *n;          // number of rounds that have begun, by depth
    enum place *place;    // by depth
    struct known_place {
        uint32_t state; // state + 1
        enum place place;
    } known[N_PLACES];
};

static enum place place_of_state(struct walk *w, uint32_t state)
{
    struct known_place *k = &w->known[state % N_PLACES];
    if (k->state != state + 1) {
        size_t n;
        const struct item *items = automaton_items(w->m->a, state, &n);
        *k = (struct known_place){state + 1, UNFIT};
        if (n == 1) {
            k->place = place_of(w->m->a->x, w->c, items[0].e);
        }
    }
    return k->place;
}

static void put_exit(struct walk *w, uint32_t node, uint32_t n)
{
    struct run_exits *to = w->exits;
    to->too_many |= to->n == EXITS_MAX;
    if (!to->too_many) {
        GROW(to->v, to->n, to->cap);
        to->v[to->n++] = (struct run_exit){node, n};
    }
}

static void put_tokens(struct walk *w, uint32_t node)
{
    const struct grammar_vocab *v = w->m->vocab;
    for (uint32_t k = v->first[node]; !w->run->has_tokens && k < v->first[node + 1]; k++) {
        counts_put(&w->run->tokens, v, w->n[v->v[node].depth], v->order[k]);
    }
}

/* Collects the tokens below a node where each byte is one round, without stepping. */
static void put_below(struct walk *w, uint32_t node)
{
    const struct grammar_vocab *v = w->m->vocab;
    uint32_t end = v->first[v->v[node].end], depth = v->v[node].depth;
    for (uint32_t k = v->first[node + 1]; k < end && !w->run->has_tokens; k++) {
        int32_t id = v->order[k];
        counts_put(&w->run->tokens, v, w->n[depth] + v->text_n[id] - depth, id);
    }
}

/* Whether each byte of the tokens below a node is one round, and none is an exit. */
static bool is_plain_below(struct walk *w, uint32_t node, uint32_t state)
{
    return !(w->m->vocab->below[node] & w->exit_groups) &&
           groups_hold(w->m, node, state, GROUPS_SAME);
}

/* Collects the tokens of the run, and its exits. Returns false if the run turns out to be unfit. If
 * there are too many exits, the walk is abandoned. */
static bool walk_run(struct walk *w, uint32_t state)
{
    struct masks *m = w->m;
    const struct grammar_vocab *v = m->vocab;
    m->path[0] = state;
    w->n[0] = w->c->n;
    w->place[0] = place_of_state(w, state);
    for (uint32_t i = 1; i < v->n && !m->a->x->failed && !w->exits->too_many;) {
        const struct vocab_node *node = &v->v[i];
        uint32_t d = node->depth, from = m->path[d - 1];
        bool begins = w->place[d - 1] == BETWEEN;
        if (begins && byte_set_has(&w->exits->first, m->a->x->class_of[node->byte])) {
            put_exit(w, i, w->n[d - 1]);
        }
        uint32_t to = step(m->a, from, node->byte);
        enum place place = w->place[d - 1]; // most often the state is the same as before
        if (to != from) {
            place = to == STATE_DEAD ? OUTSIDE : place_of_state(w, to);
        }
        if (place == UNFIT) {
            return false;
        }
        if (place == OUTSIDE) {
            i = node->end;
            continue;
        }
        m->path[d] = to;
        w->place[d] = place;
        w->n[d] = w->n[d - 1] + begins;
        put_tokens(w, i);
        if (place == BETWEEN && is_plain_below(w, i, to)) {
            put_below(w, i);
            i = node->end;
        } else {
            i++;
        }
    }
    exprs_spend(m->a->x, v->n / 64);
    return w->place[0] != UNFIT && w->place[0] != OUTSIDE;
}

/* ---- runs that are kept ---- */

static struct mask_run *find_run(struct masks *m, uint32_t e)
{
    for (uint32_t i = 0; i < m->n_runs; i++) {
        if (m->runs[i].e == e) {
            return &m->runs[i];
        }
    }
    return NULL;
}

static struct run_exits *find_exits(struct mask_run *r, const struct byte_set *first)
{
    for (uint32_t i = 0; i < r->n_exits; i++) {
        if (memcmp(&r->exits[i].first, first, sizeof *first) == 0) {
            return &r->exits[i];
        }
    }
    return NULL;
}

/* Walks the vocabulary for a new run, or for new exits of an existing one. False: the run is unfit,
 * or a limit was exceeded. */
static bool fill_run(struct masks *m, const struct counted *c, struct mask_run *r,
                     struct run_exits *exits)
{
    struct walk w = {.m = m, .c = c, .run = r, .exits = exits};
    w.exit_groups = groups_of(m, &exits->first);
    struct item it = {c->run, STACK_ROOT};
    uint32_t state = automaton_state(m->a, &it, 1);
    w.n = xcalloc(m->vocab->max_depth + 1, sizeof *w.n);
    w.place = xcalloc(m->vocab->max_depth + 1, sizeof *w.place);
    if (!r->has_tokens) {
        counts_begin(&r->tokens, m->vocab);
    }
    bool fits = walk_run(&w, state), ok = fits && !m->a->x->failed;
    bool whole = ok && !exits->too_many;
    free(w.n);
    free(w.place);
    r->unfit = !fits && !m->a->x->failed;
    if (!r->has_tokens && whole) {
        counts_end(&r->tokens, m->vocab);
    } else if (!r->has_tokens) {
        counts_free(&r->tokens);
    }
    r->has_tokens |= whole;
    return ok;
}

static struct mask_run *new_run(struct masks *m, uint32_t e)
{
    GROW(m->runs, m->n_runs, m->cap_runs);
    m->runs[m->n_runs] = (struct mask_run){.e = e};
    return &m->runs[m->n_runs++];
}

/* The exits of an item's run, if the text after the run begins with a byte in `first`. They are
 * computed if they are new. When the cache is full, all runs and heads are dropped. NULL: the run
 * is unfit, or a limit was exceeded. */
static const struct run_exits *get_exits(struct masks *m, const struct counted *c,
                                         const struct byte_set *first, struct mask_run **run)
{
    struct mask_run *r = find_run(m, c->run);
    struct run_exits *known = r ? find_exits(r, first) : NULL;
    if (!known && m->bytes > m->max_bytes) {
        mask_shared_drop(m);
        r = NULL;
    }
    *run = r ? r : new_run(m, c->run);
    if (known) {
        return known;
    }
    r = *run;
    struct run_exits made = {.first = *first};
    m->bytes -= run_bytes(m, r);
    if (fill_run(m, c, r, &made)) {
        GROW(r->exits, r->n_exits, r->cap_exits);
        r->exits[r->n_exits] = made;
        known = &r->exits[r->n_exits++];
    } else {
        free(made.v);
    }
    m->bytes += run_bytes(m, r);
    return known;
}

/* Whether an item's run exists or should be made. */
static bool has_run(struct masks *m, const struct counted *c)
{
    const struct mask_run *r = find_run(m, c->run);
    if (r) {
        return !r->unfit;
    }
    return (c->hi == EXPR_INF ? c->lo : c->hi) >= COUNT_MIN;
}

/* ---- an item's tokens ---- */

/* The classes of bytes that lead from the state to a state other than STATE_DEAD. */
static struct byte_set first_classes(struct automaton *a, uint32_t state)
{
    struct byte_set first = {{0}};
    for (int c = 0; c < a->x->n_classes; c++) {
        if (step(a, state, a->x->class_byte[c]) != STATE_DEAD) {
            byte_set_add(&first, (unsigned)c);
        }
    }
    return first;
}

static void walk_exits(struct masks *m, const struct counted *c, const struct run_exits *exits,
                       uint32_t state, struct found *f)
{
    const struct vocab_node *nodes = m->vocab->v;
    for (uint32_t i = 0; i < exits->n && !m->a->x->failed; i++) {
        const struct run_exit *exit = &exits->v[i];
        if (exit->n < c->lo || exit->n > c->hi) {
            continue;
        }
        uint32_t to = step(m->a, state, nodes[exit->node].byte);
        if (to != STATE_DEAD) {
            allow_nodes(m->vocab, exit->node, exit->node + 1, f);
            mask_walk(m, exit->node, to, f, NULL);
        }
    }
}

static bool add_counted(struct masks *m, const struct counted *c, uint32_t stack, struct found *f)
{
    if (!has_run(m, c)) {
        return false;
    }
    struct item it = {c->rest, stack};
    uint32_t state = automaton_state(m->a, &it, 1);
    struct byte_set first = first_classes(m->a, state);
    struct mask_run *run;
    const struct run_exits *exits = get_exits(m, c, &first, &run);
    if (!exits || exits->too_many) {
        return false;
    }
    counts_allow(&run->tokens, m, c->hi, f);
    walk_exits(m, c, exits, state, f);
    return true;
}

bool runs_add(struct masks *m, uint32_t e, uint32_t stack, struct found *f)
{
    struct counted c;
    for (uint32_t from = 0; as_counted(m->a->x, e, from, &c, &from) && !m->a->x->failed;) {
        if (add_counted(m, &c, stack, f)) {
            return true;
        }
    }
    return false;
}
