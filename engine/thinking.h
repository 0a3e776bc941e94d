// SPDX-License-Identifier: Apache-2.0
/* The limit of an answer's reasoning: where the reasoning begins and ends, and the tokens that are
 * forced once it is long enough. A function of the answer's tokens alone; the stored state is a
 * cache of it. Thread: the engine's. */
#ifndef SLUICE_ENGINE_THINKING_H
#define SLUICE_ENGINE_THINKING_H

#include "engine/marker.h"

enum thinking_phase {
    THINKING_BEFORE, // only white space, or the beginning of a marker that opens reasoning; with
                     // `channel` everything that is not reasoning
    THINKING_INSIDE,
    THINKING_ENDING, // the end of reasoning is being forced
    THINKING_OVER,   // closed, or the answer has no reasoning
};

struct thinking {
    int32_t n_seen; // tokens of the answer that the state covers
    enum thinking_phase phase;
    int32_t n;         // tokens so far of reasoning, or of the end that is forced
    int32_t n_ends;    // how often the end was forced
    int32_t n_spent;   // with `channel`: tokens of reasoning that has ended
    int32_t n_channel; // with `channel`: how many tokens of its marker came last
    size_t n_opened[MAX_THINKING_MARKS], n_closed[MAX_THINKING_MARKS]; // matched bytes
};

/* The state of an empty answer. */
struct thinking thinking_start(const struct thinking_limit *l);
void thinking_take(const struct thinking_limit *l, struct thinking *t, int32_t token);
/* The token that must follow; -1: any may. */
int32_t thinking_forced(const struct thinking_limit *l, const struct thinking *t);
/* True if none of the next n tokens can be forced, whatever they are. */
bool thinking_is_free(const struct thinking_limit *l, const struct thinking *t, int32_t n);

#endif
