// SPDX-License-Identifier: Apache-2.0
/* The grammar of one sequence's text, and where in it the text is. The state is a function of the
 * known tokens: what is kept of it is a cache, brought up to them where it is asked for and made
 * anew where it is stale. So preemption, siblings and the prefix cache need nothing.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_CONSTRAINT_H
#define SLUICE_ENGINE_CONSTRAINT_H

#include "engine/grammar/grammar.h"
#include "engine/schedule/sequence.h"

struct constraint {
    struct grammar_state state;
    int32_t n_tokens;    // generated tokens that it has seen; -1: it is not known
    int32_t first;       // the generated token where the grammar's text begins; -1: not yet
    int32_t n_searched;  // generated tokens that were searched for its beginning
    size_t n_matched;    // bytes of the marker that they end with
    enum status failure; // why the request has to end
};

void constraint_begin(struct constraint *c); // of a new sequence

/* Whether the marker that the grammar begins behind is not among the known tokens. Then what is
 * drawn next is free. */
bool constraint_is_ahead(struct constraint *c, const struct sequence *seq);

/* The mask behind the known tokens and these drafts: of everything, where with them the grammar has
 * not begun. OK, or words are all 0. */
enum status constraint_mask(struct constraint *c, const struct sequence *seq, const int32_t *drafts,
                            int32_t n_drafts, uint32_t *words);

/* Takes a token that was drawn, which is not known yet. What is not allowed is refused. */
enum status constraint_take(struct constraint *c, const struct sequence *seq, int32_t token);

/* Whether a token that was taken completes the text. */
bool constraint_ends(const struct constraint *c, const struct sequence *seq, int32_t token);

/* Cuts the drafts before the first that is not allowed. */
void constraint_cut(struct constraint *c, const struct sequence *seq, struct proposal *p);

/* Text that must follow, as drafts, at most max: how many; 0 where it is short. */
int32_t constraint_forced(struct constraint *c, const struct sequence *seq, int32_t *ids,
                          int32_t max);

/* A sentence for the client. */
const char *constraint_failure(const struct constraint *c);

#endif
