// SPDX-License-Identifier: Apache-2.0
#include "engine/constraint.h"

#include <string.h>

void constraint_begin(struct constraint *c)
{
    *c = (struct constraint){.n_tokens = -1, .first = -1};
}

/* ---- where the grammar begins --------------------------------------------------------------- */

/* Searches for the end of the marker in one more token. False: the marker ends inside the token. */
static bool search(struct constraint *c, const struct engine_request *r, int32_t token)
{
    const struct text_marker m = {r->grammar_after, r->grammar_after_id};
    enum marker_found found =
        marker_search(&m, grammar_vocabulary(r->grammar), &c->n_matched, token);
    c->n_searched++;
    if (found != MARKER_NONE) {
        c->first = c->n_searched;
    }
    return found != MARKER_WITHIN;
}

/* True if the marker after which the grammar starts has not been generated yet. */
static bool is_ahead(struct constraint *c, const struct sequence *seq)
{
    if (!seq->request->grammar_after) {
        c->first = 0;
    }
    while (c->first < 0 && c->n_searched < sequence_generated(seq)) {
        search(c, seq->request, seq->output->tokens[c->n_searched]);
    }
    return c->first < 0;
}

/* ---- the limit of reasoning ------------------------------------------------------------------ */

/* The state after the known tokens and some more. */
static struct thinking thinking_after(struct constraint *c, const struct sequence *seq,
                                      const int32_t *more, int32_t n_more)
{
    const struct thinking_limit *l = seq->request->thinking;
    int32_t n = sequence_generated(seq);
    if (c->thinking.n_seen == 0 || c->thinking.n_seen > n) {
        c->thinking = thinking_start(l);
    }
    while (c->thinking.n_seen < n) {
        thinking_take(l, &c->thinking, seq->output->tokens[c->thinking.n_seen]);
    }
    struct thinking t = c->thinking;
    for (int32_t i = 0; i < n_more; i++) {
        thinking_take(l, &t, more[i]);
    }
    return t;
}

/* The only token that may follow these; -1: the limit allows any. */
static int32_t forced_after(struct constraint *c, const struct sequence *seq, const int32_t *more,
                            int32_t n_more)
{
    const struct thinking_limit *l = seq->request->thinking;
    if (!l) {
        return -1;
    }
    struct thinking t = thinking_after(c, seq, more, n_more);
    return thinking_forced(l, &t);
}

bool constraint_is_free(struct constraint *c, const struct sequence *seq, int32_t n_more)
{
    if (seq->request->grammar) {
        return false;
    }
    struct thinking t = thinking_after(c, seq, NULL, 0);
    return thinking_is_free(seq->request->thinking, &t, n_more + 1);
}

/* ---- where the text is ---------------------------------------------------------------------- */

/* Advances the state to the end of the known tokens. */
static enum status reach(struct constraint *c, const struct sequence *seq)
{
    struct grammar *g = seq->request->grammar;
    if (is_ahead(c, seq)) {
        return ERR_INVALID; // the state at the beginning of the grammar's text is unknown
    }
    const int32_t *tokens = seq->output->tokens + c->first, n = sequence_generated(seq) - c->first;
    enum status st = c->n_tokens >= 0 && c->n_tokens <= n ? OK : ERR_BUSY;
    while (st == OK && c->n_tokens < n) {
        st = grammar_advance_token(g, &c->state, tokens[c->n_tokens]);
        c->n_tokens += st == OK;
    }
    if (st == ERR_BUSY) {
        st = grammar_fold_tokens(g, tokens, (size_t)n, &c->state);
        c->n_tokens = st == OK ? n : -1;
    }
    return st;
}

/* Looks for the end of the marker in tokens that are not known yet. *n_before: how many of them
 * precede the grammar's text; all of them if it does not start there. ERR_INVALID: the marker ends
 * inside a token. */
static enum status look_ahead(const struct constraint *c, const struct sequence *seq,
                              const int32_t *more, int32_t n_more, int32_t *n_before, bool *ahead)
{
    struct constraint probe = *c;
    *n_before = 0;
    while (*n_before < n_more && probe.first < 0) {
        if (!search(&probe, seq->request, more[(*n_before)++])) {
            return ERR_INVALID;
        }
    }
    *ahead = probe.first < 0;
    return OK;
}

/* The state after the known tokens and some more. *ahead: the grammar has not started even after
 * these, so there is no state. Each call may clear the tables that hold states. A state that was
 * just computed is then lost, and is computed again with empty tables. */
static enum status state_after(struct constraint *c, const struct sequence *seq,
                               const int32_t *more, int32_t n_more, struct grammar_state *out,
                               bool *ahead)
{
    struct grammar *g = seq->request->grammar;
    bool begins = is_ahead(c, seq);
    int32_t first = 0;
    enum status st = ERR_BUSY;
    *ahead = begins;
    if (begins) {
        TRY(look_ahead(c, seq, more, n_more, &first, ahead));
        if (*ahead) {
            st = OK;
        }
    }
    for (int tries = 0; tries < 2 && st == ERR_BUSY; tries++) {
        st = begins ? OK : reach(c, seq);
        *out = begins ? grammar_start(g) : c->state;
        for (int32_t i = first; st == OK && i < n_more; i++) {
            st = grammar_advance_token(g, out, more[i]);
        }
        if (st == ERR_BUSY) {
            c->n_tokens = -1;
        }
    }
    return st == ERR_BUSY ? ERR_LIMIT : st;
}

/* The mask of the grammar alone. Before the grammar has started only the answer's end is forbidden.
 * A stale state is rebuilt once from the beginning; if that does not help, the text exceeds the
 * grammar's limits. */
static enum status grammar_part(struct constraint *c, const struct sequence *seq,
                                const int32_t *drafts, int32_t n_drafts, uint32_t *words)
{
    struct grammar *g = seq->request->grammar;
    size_t n_words = grammar_mask_words(grammar_vocabulary(g));
    enum status st = ERR_BUSY;
    for (int tries = 0; tries < 2 && st == ERR_BUSY; tries++) {
        struct grammar_state s;
        bool ahead;
        st = state_after(c, seq, drafts, n_drafts, &s, &ahead);
        if (st == OK && ahead) {
            grammar_mask_text(grammar_vocabulary(g), words);
            return OK;
        }
        if (st == OK) {
            st = grammar_mask(g, s, words);
        }
        if (st == ERR_BUSY) {
            c->n_tokens = -1;
        }
    }
    uint32_t any = 0;
    for (size_t i = 0; i < n_words; i++) {
        if (st != OK) {
            words[i] = 0;
        }
        any |= words[i];
    }
    if (st == OK && any == 0) {
        st = ERR_INVALID; // the grammar does not allow these tokens
    }
    return st == ERR_BUSY ? ERR_LIMIT : st;
}

/* A forced end of reasoning is not checked against the grammar here; constraint_take does that. */
enum status constraint_mask(struct constraint *c, const struct sequence *seq, const int32_t *drafts,
                            int32_t n_drafts, uint32_t *words)
{
    int32_t forced = forced_after(c, seq, drafts, n_drafts);
    if (forced < 0 && seq->request->grammar) {
        return grammar_part(c, seq, drafts, n_drafts, words);
    }
    const struct grammar_vocab *v;
    if (seq->request->grammar) {
        v = grammar_vocabulary(seq->request->grammar);
    } else {
        v = seq->request->thinking->vocab;
    }
    memset(words, forced < 0 ? 0xff : 0, grammar_mask_words(v) * sizeof *words);
    if (forced >= 0) {
        words[forced / 32] |= 1u << (forced % 32);
    }
    return OK;
}

enum status constraint_take(struct constraint *c, const struct sequence *seq, int32_t token)
{
    struct grammar *g = seq->request->grammar;
    struct grammar_state s;
    bool ahead;
    int32_t forced = forced_after(c, seq, NULL, 0);
    if (forced >= 0 && token != forced) {
        return ERR_INVALID;
    }
    if (!g) {
        return OK;
    }
    if (is_ahead(c, seq)) {
        if (!search(c, seq->request, token)) {
            return ERR_INVALID;
        }
        return OK;
    }
    bool end = grammar_is_end(g, token);
    enum status st = state_after(c, seq, &token, !end, &s, &ahead);
    if (st == OK && end) {
        return grammar_may_end(g, s) ? OK : ERR_INVALID;
    }
    if (st == OK) {
        c->state = s;
        c->n_tokens = sequence_generated(seq) + 1 - c->first;
    }
    return st;
}

bool constraint_ends(const struct constraint *c, const struct sequence *seq, int32_t token)
{
    return seq->request->grammar && c->first >= 0 && c->first <= sequence_generated(seq) &&
           grammar_is_end(seq->request->grammar, token);
}

/* Whether the grammar allows the last of these drafts. *ends: nothing may follow it. */
static bool allows_last(struct constraint *c, const struct sequence *seq, const int32_t *drafts,
                        int32_t n, bool *ends)
{
    struct grammar *g = seq->request->grammar;
    struct grammar_state s;
    bool ahead, allowed = state_after(c, seq, drafts, n - 1, &s, &ahead) == OK;
    *ends = grammar_is_end(g, drafts[n - 1]);
    if (allowed && ahead) { // unless the grammar starts within this token
        return !*ends && state_after(c, seq, drafts, n, &s, &ahead) == OK;
    }
    return allowed && grammar_allows(g, s, drafts[n - 1], &allowed) == OK && allowed;
}

void constraint_cut(struct constraint *c, const struct sequence *seq, struct proposal *p)
{
    int32_t n = 0;
    bool allowed = true, ends = false;
    while (allowed && !ends && n < p->n_drafts) {
        int32_t forced = forced_after(c, seq, p->drafts, n);
        allowed = forced < 0 || forced == p->drafts[n];
        if (allowed && seq->request->grammar) {
            allowed = allows_last(c, seq, p->drafts, n + 1, &ends);
        }
        n += allowed;
    }
    p->n_drafts = n;
}

/* The rest of the forced end of reasoning. */
static int32_t forced_end(struct constraint *c, const struct sequence *seq, int32_t *ids,
                          int32_t max)
{
    int32_t n = 0, id;
    while (n < max && (id = forced_after(c, seq, ids, n)) >= 0) {
        ids[n++] = id;
    }
    return n;
}

int32_t constraint_forced(struct constraint *c, const struct sequence *seq, int32_t *ids,
                          int32_t max)
{
    // Chosen: a shorter text is only a token or two, which ordinary drafts predict anyway.
    enum { LEAST_BYTES = 4 };
    int32_t n = forced_end(c, seq, ids, max);
    if (n > 0 || !seq->request->grammar) {
        return n;
    }
    if (max <= 0 || is_ahead(c, seq) || reach(c, seq) != OK) {
        return 0;
    }
    return (int32_t)grammar_forced_tokens(seq->request->grammar, c->state, LEAST_BYTES, ids,
                                          (size_t)max);
}

const char *constraint_failure(const struct constraint *c)
{
    if (c->failure == ERR_LIMIT) {
        return "computing what the constraint allows next exceeds the limit of work";
    }
    return "the constraint allows no token here that this model could draw";
}
