// SPDX-License-Identifier: Apache-2.0
/* Filling in the middle: the prompt of a text with a hole, for models that have tokens for it.
 * Thread: any, once the model is open. */
#ifndef SLUICE_SERVER_CALL_FIM_H
#define SLUICE_SERVER_CALL_FIM_H

#include "engine/tokenizer/tokenizer.h"

enum { FIM_MAX_ENDS = 4 };

struct fim {
    bool there;                     // the tokenizer has tokens for it
    bool suffix_first;              // what is behind the hole comes before what is in front of it
    int32_t prefix, suffix, middle; // middle: -1 where there is none
    int32_t repository, file;       // in front of further files; -1: none
    int32_t n_ends;
    int32_t ends[FIM_MAX_ENDS]; // that end an answer, beside the model's own
};

/* tok may be NULL: there are no tokens. */
void fim_open(struct fim *f, const struct tokenizer *tok);

#endif
