// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/mask_walk.h"

#include "engine/grammar/mask_groups.h"

enum { WIDE_DEPTH = 64 }; // chosen: limit of recursion; deeper nodes count as narrow

struct walk {
    struct masks *m;
    struct found *f;
    struct walk_ends *ends;
    uint32_t begin; // the first node whose tokens are allowed but not added yet
    uint32_t seen;
};

/* Records a node below which tokens continue, if it is an end. Returns false if there are too many.
 */
static bool put_end(struct walk *w, uint32_t i, uint32_t state)
{
    struct walk_ends *ends = w->ends;
    if (!automaton_may_end(w->m->a, state)) {
        return true;
    }
    if (ends->n == ends->max) {
        ends->too_many = true;
        return false;
    }
    GROW(ends->v, ends->n, ends->cap);
    ends->v[ends->n++] = i;
    return true;
}

/* Adds the tokens at the nodes that the walk has passed, and continues at the node `next`. The
 * tokens between two dead subtrees are neighbours in the vocabulary's order, so they are added at
 * once. */
static void add_passed(struct walk *w, uint32_t end, uint32_t next)
{
    if (w->begin < end) {
        allow_nodes(w->m->vocab, w->begin, end, w->f);
    }
    w->begin = next;
}

static bool walk_below(struct walk *w, uint32_t from, uint32_t state);

/* Walks the children of a wide node, most of which lead to a dead state. */
static bool walk_kids(struct walk *w, uint32_t from, uint32_t state)
{
    struct masks *m = w->m;
    const struct grammar_vocab *v = m->vocab;
    const uint32_t *row = m->a->v[state].row;
    uint32_t depth = v->v[from].depth, dead = 0; // dead: first dead child since a live one
    for (const struct vocab_kid *kid = v->kids + v->kids_at[from]; kid->node; kid++) {
        uint32_t known = row ? row[m->a->x->class_of[kid->byte]] : 0;
        uint32_t to = known ? known - 1 : automaton_step(m->a, state, kid->byte);
        row = m->a->v[state].row;
        w->seen++;
        if (to == STATE_DEAD) {
            if (!dead) {
                dead = kid->node;
            }
            continue;
        }
        if (dead) {
            add_passed(w, dead, kid->node);
            dead = 0;
        }
        if (kid->is_leaf) {
            continue;
        }
        m->path[depth] = state;
        if (w->ends && !put_end(w, kid->node, to)) {
            return false;
        }
        if (!groups_hold(m, kid->node, to, GROUPS_ALIVE) && !walk_below(w, kid->node, to)) {
            return false;
        }
    }
    if (dead) {
        add_passed(w, dead, v->v[from].end);
    }
    return !m->a->x->failed;
}

/* Walks the trie and the automaton together. `path` holds the state at each depth, so that siblings
 * start from their parent's state. A dead state skips the whole subtree. Returns false if the walk
 * has to be abandoned. */
static bool walk_below(struct walk *w, uint32_t from, uint32_t state)
{
    struct masks *m = w->m;
    const struct grammar_vocab *v = m->vocab;
    uint32_t end = v->v[from].end;
    if (v->v[from].wide && v->v[from].depth < WIDE_DEPTH) {
        return walk_kids(w, from, state);
    }
    m->path[v->v[from].depth] = state;
    for (uint32_t i = from + 1; i < end; w->seen++) {
        const struct vocab_node *node = &v->v[i];
        uint32_t to = step(m->a, m->path[node->depth - 1], node->byte);
        if (to == STATE_DEAD) {
            if (m->a->x->failed) {
                return false;
            }
            add_passed(w, i, node->end);
            i = node->end;
            continue;
        }
        m->path[node->depth] = to;
        if (w->ends && node->end > i + 1 && !put_end(w, i, to)) {
            return false;
        }
        if (node->end - i < GROUPS_MIN) {
            i++;
        } else if (groups_hold(m, i, to, GROUPS_ALIVE)) {
            i = node->end;
        } else if (node->wide && node->depth < WIDE_DEPTH) {
            if (!walk_kids(w, i, to)) {
                return false;
            }
            i = node->end;
        } else {
            i++;
        }
    }
    return !m->a->x->failed;
}

void mask_walk(struct masks *m, uint32_t from, uint32_t state, struct found *f,
               struct walk_ends *ends)
{
    struct walk w = {.m = m, .f = f, .ends = ends, .begin = from + 1};
    if (walk_below(&w, from, state)) {
        add_passed(&w, m->vocab->v[from].end, 0);
    }
    exprs_spend(m->a->x, w.seen / 8);
}
