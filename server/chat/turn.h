// SPDX-License-Identifier: Apache-2.0
/* What the whole output of a model looks like where its answer or its calls are constrained: what
 * it thinks first, the markers around an answer, text, calls. One structural tag
 * (engine/grammar/README.md), as JSON text; output.h reads what follows it.
 * Thread: any. */
#ifndef SLUICE_SERVER_CHAT_TURN_H
#define SLUICE_SERVER_CHAT_TURN_H

#include "engine/tokenizer/tokenizer.h"
#include "server/chat/reasoning.h"

struct turn {
    enum reasoning_kind reasoning;
    bool opened;                    // the prompt ends in opened reasoning
    bool may_think;                 // else the model may open it
    bool behind;                    // it begins behind the reasoning: blank lines may come first
    const struct tool_calls *calls; // NULL: none
    bool must_call;
    const char *const *enders; // words that end reasoning which nobody closed; may be NULL
    const char *answer;        // the format of the text; NULL: any text
    size_t answer_bytes;
};

/* How calls are written with this vocabulary. */
const struct tool_writing *turn_writing(const struct tool_parser *parser,
                                        const struct tokenizer *tok);

void turn_put(struct buf *out, const struct turn *t);

#endif
