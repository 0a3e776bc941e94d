// SPDX-License-Identifier: Apache-2.0
/* The state of what constrains one sequence's text: a grammar, a limit of its reasoning, or both.
 * It is a function of the known tokens; the stored state is only a cache, advanced when needed and
 * rebuilt when stale, so preemption, siblings and the prefix cache need no special handling.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_CONSTRAINT_H
#define SLUICE_ENGINE_CONSTRAINT_H

#include "engine/grammar/grammar.h"
#include "engine/schedule/sequence.h"
#include "engine/thinking.h"

struct constraint {
    struct grammar_state state;
    int32_t n_tokens;   // generated tokens that the state covers; -1: unknown
    int32_t first;      // index of the generated token where the grammar's text starts; -1: not
                        // yet
    int32_t n_searched; // generated tokens already searched for that start
    size_t n_matched;   // length of the marker prefix that they end with
    struct thinking thinking;
    enum status failure; // why the request must end
};

void constraint_begin(struct constraint *c); // for a new sequence

/* False: the request has no constraint, and the functions below must not be called. */
static inline bool constraint_exists(const struct engine_request *r)
{
    return r->grammar || r->thinking;
}

/* True if the draw after the known tokens and any n_more further tokens is unconstrained: there is
 * no grammar, and by then the reasoning has not reached its limit. */
bool constraint_is_free(struct constraint *c, const struct sequence *seq, int32_t n_more);

/* The mask of the draw that follows the known tokens and these drafts. Before the marker after
 * which the grammar starts, only the answer's end is forbidden. On failure all words are 0. */
enum status constraint_mask(struct constraint *c, const struct sequence *seq, const int32_t *drafts,
                            int32_t n_drafts, uint32_t *words);

/* Advances by a token that was just drawn and is not among the known tokens yet. Fails if the
 * grammar does not allow the token. */
enum status constraint_take(struct constraint *c, const struct sequence *seq, int32_t token);

/* True if the token just taken completes the text. */
bool constraint_ends(const struct constraint *c, const struct sequence *seq, int32_t token);

/* Removes the first draft that is not allowed and all drafts after it. */
void constraint_cut(struct constraint *c, const struct sequence *seq, struct proposal *p);

/* If only one text can follow, writes its first tokens, at most `max`, to be used as drafts.
 * Returns their number; 0 if the text is too short to be worth it. */
int32_t constraint_forced(struct constraint *c, const struct sequence *seq, int32_t *ids,
                          int32_t max);

/* A sentence for the client. */
const char *constraint_failure(const struct constraint *c);

#endif
