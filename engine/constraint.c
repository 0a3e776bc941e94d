// SPDX-License-Identifier: Apache-2.0
#include "engine/constraint.h"

#include <string.h>

void constraint_begin(struct constraint *c)
{
    *c = (struct constraint){.n_tokens = -1, .first = -1};
}

/* ---- where the grammar begins --------------------------------------------------------------- */

/* Extends a match by one byte. n_matched: length of the longest prefix of the marker that the text
 * ended with before this byte. Returns that length for the text with this byte. */
static size_t match(const char *marker, size_t n_matched, char byte)
{
    char tail[GRAMMAR_AFTER_MAX + 1];
    memcpy(tail, marker, n_matched);
    tail[n_matched++] = byte;
    size_t skip = 0;
    while (memcmp(tail + skip, marker, n_matched - skip) != 0) {
        skip++;
    }
    return n_matched - skip;
}

/* Searches for the end of the marker in one more token. False: the marker ends inside the token. */
static bool search(struct constraint *c, const struct engine_request *r, int32_t token)
{
    size_t length = strlen(r->grammar_after), n_bytes = 0, at = 0;
    const char *bytes = grammar_token_bytes(grammar_vocabulary(r->grammar), token, &n_bytes);
    bool whole = token == r->grammar_after_id;
    for (; !whole && at < n_bytes && c->n_matched < length; at++) {
        c->n_matched = match(r->grammar_after, c->n_matched, bytes[at]);
    }
    if (!whole && n_bytes == 0) {
        c->n_matched = 0; // a special token has no text
    }
    c->n_searched++;
    if (whole || c->n_matched == length) {
        c->first = c->n_searched;
        return whole || at == n_bytes;
    }
    return true;
}

bool constraint_is_ahead(struct constraint *c, const struct sequence *seq)
{
    if (!seq->request->grammar_after) {
        c->first = 0;
    }
    while (c->first < 0 && c->n_searched < sequence_generated(seq)) {
        search(c, seq->request, seq->output->tokens[c->n_searched]);
    }
    return c->first < 0;
}

/* ---- where the text is ---------------------------------------------------------------------- */

/* Advances the state to the end of the known tokens. */
static enum status reach(struct constraint *c, const struct sequence *seq)
{
    struct grammar *g = seq->request->grammar;
    if (constraint_is_ahead(c, seq)) {
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
 * these, so there is no state. Each call may clear the tables that hold states, including the one
 * just computed; it is then computed again with empty tables. */
static enum status state_after(struct constraint *c, const struct sequence *seq,
                               const int32_t *more, int32_t n_more, struct grammar_state *out,
                               bool *ahead)
{
    struct grammar *g = seq->request->grammar;
    bool begins = constraint_is_ahead(c, seq);
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

enum status constraint_mask(struct constraint *c, const struct sequence *seq, const int32_t *drafts,
                            int32_t n_drafts, uint32_t *words)
{
    struct grammar *g = seq->request->grammar;
    size_t n_words = grammar_mask_words(grammar_vocabulary(g));
    enum status st = ERR_BUSY;
    for (int tries = 0; tries < 2 && st == ERR_BUSY; tries++) {
        struct grammar_state s;
        bool ahead;
        st = state_after(c, seq, drafts, n_drafts, &s, &ahead);
        if (st == OK && ahead) {
            memset(words, 0xff, n_words * sizeof *words);
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

enum status constraint_take(struct constraint *c, const struct sequence *seq, int32_t token)
{
    struct grammar *g = seq->request->grammar;
    struct grammar_state s;
    bool ahead;
    if (constraint_is_ahead(c, seq)) {
        if (!search(c, seq->request, token)) {
            return ERR_INVALID;
        }
        return OK;
    }
    bool end = grammar_is_end(g, token);
    enum status st = state_after(c, seq, &token, end ? 0 : 1, &s, &ahead);
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
    return c->first >= 0 && c->first <= sequence_generated(seq) &&
           grammar_is_end(seq->request->grammar, token);
}

void constraint_cut(struct constraint *c, const struct sequence *seq, struct proposal *p)
{
    struct grammar *g = seq->request->grammar;
    int32_t n = 0;
    bool allowed = true;
    while (allowed && n < p->n_drafts) {
        struct grammar_state s;
        bool ahead;
        allowed = state_after(c, seq, p->drafts, n, &s, &ahead) == OK;
        if (allowed && ahead) { // no constraint yet, unless the grammar starts within this token
            allowed = state_after(c, seq, p->drafts, n + 1, &s, &ahead) == OK;
        } else if (allowed) {
            allowed = grammar_allows(g, s, p->drafts[n], &allowed) == OK && allowed;
        }
        n += allowed;
        if (allowed && !ahead && grammar_is_end(g, p->drafts[n - 1])) {
            break; // the text is complete
        }
    }
    p->n_drafts = n;
}

int32_t constraint_forced(struct constraint *c, const struct sequence *seq, int32_t *ids,
                          int32_t max)
{
    // Chosen: a shorter text is only a token or two, which ordinary drafts predict anyway.
    enum { LEAST_BYTES = 4 };
    if (max <= 0 || constraint_is_ahead(c, seq) || reach(c, seq) != OK) {
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
