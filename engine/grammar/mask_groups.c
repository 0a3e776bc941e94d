// SPDX-License-Identifier: Apache-2.0
/* For a state and a rule (enum groups_rule), collects groups of characters such that every state
 * reached by characters of these groups obeys the rule. Groups are tried one after the other: a
 * group joins if the states that it adds also obey the rule for all groups that have joined. So in
 * a text that may contain anything until a pattern has occurred, all letters join, although some of
 * them change the state.
 */
#include "engine/grammar/mask_groups.h"

enum {
    STATES_MAX = 8, // chosen: states that the characters of the groups lead to
    INNER_MAX = 8,  // chosen: states within a character
    // Chosen: once this many groups have led to too many states, no more groups are tried.
    OVERFLOWS_MAX = 3,
    VISITS = 8,    // chosen: occurrences of a state before its groups are found
    N_KNOWN = 256, // states that are remembered
};

struct reach {
    struct masks *m;
    enum groups_rule rule;
    uint32_t v[STATES_MAX], n; // v[0]: the state from which the groups start
    int overflows;
};

static bool put(uint32_t *list, uint32_t *n, uint32_t max, uint32_t state)
{
    for (uint32_t i = 0; i < *n; i++) {
        if (list[i] == state) {
            return true;
        }
    }
    if (*n == max) {
        return false;
    }
    list[(*n)++] = state;
    return true;
}

/* Adds the state after a whole character. */
static bool put_after(struct reach *r, uint32_t to)
{
    if (to == STATE_DEAD || (r->rule == GROUPS_SAME && to != r->v[0])) {
        return false;
    }
    bool fits = put(r->v, &r->n, STATES_MAX, to);
    r->overflows += !fits;
    return fits;
}

/* True if a byte and the one before it are in one range (lo to hi) and in one class. */
static bool is_again(const struct automaton *a, int byte, int lo)
{
    return byte > lo && a->x->class_of[byte] == a->x->class_of[byte - 1];
}

/* Follows the bytes after the first one of a character; `to` is the state after the first one.
 * Returns false if the rule does not hold. */
static bool follow(struct reach *r, uint32_t to, struct utf8_lead lead)
{
    struct automaton *a = r->m->a;
    uint32_t now[INNER_MAX] = {to}, n = 1;
    for (int left = lead.n - 1; left > 0; left--) {
        uint32_t next[INNER_MAX], n_next = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (now[i] == STATE_DEAD || r->rule == GROUPS_SAME) {
                return false;
            }
            for (int b = lead.lo; b <= lead.hi; b++) {
                if (is_again(a, b, lead.lo)) {
                    continue;
                }
                uint32_t after = step(a, now[i], (uint8_t)b);
                bool fits = left == 1 ? put_after(r, after) : put(next, &n_next, INNER_MAX, after);
                if (!fits) {
                    return false;
                }
            }
        }
        memcpy(now, next, n_next * sizeof *now);
        n = n_next;
        lead = (struct utf8_lead){0, 0x80, 0xbf};
    }
    return true;
}

/* Whether all characters of a group obey the rule in a state. Adds the states that they lead to. */
static bool try_state(struct reach *r, uint32_t state, int group)
{
    struct automaton *a = r->m->a;
    struct vocab_group g = vocab_groups[group];
    for (int b = g.lo; b <= g.hi; b++) {
        if (is_again(a, b, g.lo)) {
            continue;
        }
        uint32_t to = step(a, state, (uint8_t)b);
        bool fits = g.lo < 0x80 ? put_after(r, to) : follow(r, to, vocab_lead((uint8_t)b));
        if (!fits || a->x->failed) {
            return false;
        }
    }
    return true;
}

/* Adds a group to those that have joined (bits). If the group does not obey the rule, the states
 * that it added are removed. */
static bool try_group(struct reach *r, uint64_t joined, int group)
{
    uint32_t before = r->n;
    for (uint32_t i = 0; i < r->n; i++) {
        uint64_t todo = 1ull << group | (i < before ? 0 : joined);
        for (; todo; todo &= todo - 1) {
            if (!try_state(r, r->v[i], __builtin_ctzll(todo))) {
                r->n = before;
                return false;
            }
        }
    }
    return true;
}

/* The work is limited to a part of the work that the mask may still do. */
static uint64_t collect(struct masks *m, uint32_t state, enum groups_rule rule)
{
    struct exprs *x = m->a->x;
    struct reach r = {.m = m, .rule = rule, .v = {state}, .n = 1};
    uint64_t joined = 0, enough = x->work + (x->max_work - x->work) / 8;
    for (int g = 0; g < VOCAB_N_GROUPS && r.overflows < OVERFLOWS_MAX && x->work < enough; g++) {
        if (try_group(&r, joined, g)) {
            joined |= 1ull << g;
        }
    }
    exprs_spend(x, VOCAB_N_GROUPS / 8);
    return x->failed || !joined ? UINT64_MAX : ~joined;
}

uint64_t groups_of(const struct masks *m, const struct byte_set *classes)
{
    uint64_t groups = 0;
    for (int g = 0; g < VOCAB_N_GROUPS; g++) {
        for (int b = vocab_groups[g].lo; b <= vocab_groups[g].hi; b++) {
            groups |= (uint64_t)byte_set_has(classes, m->a->x->class_of[b]) << g;
        }
    }
    return groups;
}

/* ---- known groups ---- */

/* Each state has one place per rule. A later state with the same place takes it over. */
struct mask_groups {
    uint32_t state; // state + 1; 0: none
    uint16_t rule, visits;
    uint64_t against;
};

uint64_t groups_against(struct masks *m, uint32_t state, enum groups_rule rule, bool loops)
{
    if (!m->groups) {
        m->groups = xcalloc(N_KNOWN, sizeof *m->groups);
    }
    struct mask_groups *k = &m->groups[(state * GROUPS_N_RULES + rule) % N_KNOWN];
    if (k->state != state + 1 || k->rule != rule) {
        if (!loops) {
            return UINT64_MAX;
        }
        *k = (struct mask_groups){state + 1, (uint16_t)rule, 0, UINT64_MAX};
    }
    if (loops && k->visits < VISITS && ++k->visits == VISITS) {
        k->against = collect(m, state, rule);
    }
    return k->against;
}

void groups_reset(struct masks *m)
{
    if (m->groups) {
        memset(m->groups, 0, N_KNOWN * sizeof *m->groups);
    }
}

void groups_free(struct masks *m)
{
    free(m->groups);
    m->groups = NULL;
}

size_t groups_bytes(const struct masks *m)
{
    return m->groups ? N_KNOWN * sizeof *m->groups : 0;
}
