// SPDX-License-Identifier: Apache-2.0
/* Token ids to text, one by one, for a stream: never half a character, and the chunks joined are
 * the whole. Holds back at most three bytes. Text is a continuation: the leading space of the first
 * token stays. To look at the state is to copy the struct: it is plain data.
 * Thread: one owner; the tokenizer behind it is shared. */
#ifndef SLUICE_ENGINE_TOKENIZER_DETOK_H
#define SLUICE_ENGINE_TOKENIZER_DETOK_H

#include "engine/base/buf.h"
#include "engine/tokenizer/tokenizer.h"

struct detok {
    const struct tokenizer *tok;
    unsigned char pending[4]; // the beginning of a character
    uint8_t n_pending;
    bool skip_special;
};

/* The tokenizer must outlive it. Nothing to free. */
void detok_init(struct detok *d, const struct tokenizer *tok, bool skip_special);

/* Appends the text that is now certain. Malformed bytes become U+FFFD. */
void detok_push(struct detok *d, int32_t id, struct buf *out);

/* At the end: a character that was begun becomes U+FFFD. The state is then as after init. */
void detok_flush(struct detok *d, struct buf *out);

#endif
