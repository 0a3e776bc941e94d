#include "engine/constraint.h"

void constraint_begin(struct constraint *c)
{
    *c = (struct constraint){.n_tokens = -1};
}

/* Brings the state up to the known tokens. */
static enum status reach(struct constraint *c, const struct sequence *seq)
{
    struct grammar *g = seq->request->grammar;
    const int32_t *tokens = seq->output->tokens, n = sequence_generated(seq);
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

/* The state behind the known tokens and some more. Each call may empty the tables that states lie
 * in, and with them what the one before gave: then once more, with room. */
static enum status state_behind(struct constraint *c, const struct sequence *seq,
                                const int32_t *more, int32_t n_more, struct grammar_state *out)
{
    enum status st = ERR_BUSY;
    for (int tries = 0; tries < 2 && st == ERR_BUSY; tries++) {
        st = reach(c, seq);
        *out = c->state;
        for (int32_t i = 0; st == OK && i < n_more; i++) {
            st = grammar_advance_token(seq->request->grammar, out, more[i]);
        }
        c->n_tokens = st == ERR_BUSY ? -1 : c->n_tokens;
    }
    return st == ERR_BUSY ? ERR_LIMIT : st;
}

enum status constraint_mask(struct constraint *c, const struct sequence *seq,
                            const int32_t *drafts, int32_t n_drafts, uint32_t *words)
{
    struct grammar *g = seq->request->grammar;
    size_t n_words = grammar_mask_words(grammar_vocabulary(g));
    enum status st = ERR_BUSY;
    for (int tries = 0; tries < 2 && st == ERR_BUSY; tries++) {
        struct grammar_state s;
        st = state_behind(c, seq, drafts, n_drafts, &s);
        st = st == OK ? grammar_mask(g, s, words) : st;
        c->n_tokens = st == ERR_BUSY ? -1 : c->n_tokens;
    }
    uint32_t any = 0;
    for (size_t i = 0; i < n_words; i++) {
        words[i] = st == OK ? words[i] : 0;
        any |= words[i];
    }
    if (st == OK && any == 0) {
        st = ERR_INVALID; // what must follow cannot be written with these tokens
    }
    return st == ERR_BUSY ? ERR_LIMIT : st;
}

enum status constraint_take(struct constraint *c, const struct sequence *seq, int32_t token)
{
    struct grammar *g = seq->request->grammar;
    struct grammar_state s;
    bool end = grammar_is_end(g, token);
    enum status st = state_behind(c, seq, &token, end ? 0 : 1, &s);
    if (st == OK && end) {
        return grammar_may_end(g, s) ? OK : ERR_INVALID;
    }
    if (st == OK) {
        c->state = s;
        c->n_tokens = sequence_generated(seq) + 1;
    }
    return st;
}

void constraint_cut(struct constraint *c, const struct sequence *seq, struct proposal *p)
{
    struct grammar *g = seq->request->grammar;
    int32_t n = 0;
    bool allowed = true;
    while (allowed && n < p->n_drafts) {
        struct grammar_state s;
        allowed = state_behind(c, seq, p->drafts, n, &s) == OK &&
                  grammar_allows(g, s, p->drafts[n], &allowed) == OK && allowed;
        n += allowed;
        if (allowed && grammar_is_end(g, p->drafts[n - 1])) {
            break; // nothing follows
        }
    }
    p->n_drafts = n;
}

const char *constraint_failure(const struct constraint *c)
{
    return c->failure == ERR_LIMIT
               ? "what the constraint allows next is too much work to find out"
               : "the constraint allows no token here that this model could draw";
}
