// SPDX-License-Identifier: Apache-2.0
/* The format of a model's whole output when its answer or its calls are constrained: leading
 * reasoning, the markers around an answer, text, calls. It is one structural tag
 * (engine/grammar/README.md), as JSON text; output.h parses matching output.
 * Thread: any. */
#ifndef SLUICE_SERVER_CHAT_TURN_H
#define SLUICE_SERVER_CHAT_TURN_H

#include "engine/tokenizer/tokenizer.h"
#include "server/chat/reasoning.h"

struct turn {
    enum reasoning_kind reasoning;
    bool opened;          // the prompt ends inside reasoning
    bool may_think;       // reasoning is allowed
    bool after_reasoning; // the format only covers the output after reasoning, whose end the engine
                          // detects; blank lines may come first
    const struct tool_calls *calls; // NULL: none
    bool must_call;
    const char *const *enders; // words that end unclosed reasoning; may be NULL
    const char *answer;        // JSON of the answer's format, answer_bytes long; NULL: any text
    size_t answer_bytes;
    const struct tokenizer *tok; // of the model, with the ids that end its text; may be NULL
    const int32_t *end_ids;
    int32_t n_end_ids;
};

/* The way in which this parser's calls are written with this vocabulary; NULL: none. */
const struct tool_writing *turn_writing(const struct tool_parser *parser,
                                        const struct tokenizer *tok);

/* False if the parser does not find a call of this tool where it is written in this way: formats
 * differ in the characters and the length of names. */
bool turn_can_call(const struct tool_parser *parser, const struct tool_writing *w,
                   const char *name);

void turn_put(struct buf *out, const struct turn *t);

#endif
