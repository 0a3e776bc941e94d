// SPDX-License-Identifier: Apache-2.0
/* Fill-in-the-middle: builds the prompt for a text with a gap. The model must have tokens for this.
 * Thread: any, once the model is open. */
#ifndef SLUICE_SERVER_CALL_FIM_H
#define SLUICE_SERVER_CALL_FIM_H

#include "engine/tokenizer/tokenizer.h"

enum { FIM_MAX_ENDS = 4 };

struct fim {
    bool there;                     // true if the tokenizer has the tokens
    bool suffix_first;              // the text after the gap comes before the text before it
    int32_t prefix, suffix, middle; // middle: -1 if there is none
    int32_t repository, file; // tokens before the repository's name and before other files; -1:
                              // none
    int32_t n_ends;
    int32_t ends[FIM_MAX_ENDS]; // stop tokens, in addition to the model's own
};

/* tok may be NULL: then there are no tokens. */
void fim_open(struct fim *f, const struct tokenizer *tok);

#endif
