// SPDX-License-Identifier: Apache-2.0
/* Converts token ids to text, one by one, for streaming. It never returns part of a character, and
 * the chunks concatenate to the whole text. At most three bytes are held back. The text is treated
 * as a continuation, so the leading space of the first token stays. The struct is plain data; copy
 * it to look ahead.
 * Thread: one owner; the tokenizer is shared. */
#ifndef SLUICE_ENGINE_TOKENIZER_DETOK_H
#define SLUICE_ENGINE_TOKENIZER_DETOK_H

#include "engine/base/buf.h"
#include "engine/tokenizer/tokenizer.h"

struct detok {
    const struct tokenizer *tok;
    unsigned char pending[4]; // the start of an incomplete character
    uint8_t n_pending;
    bool skip_special;
};

/* The tokenizer must outlive it. Nothing to free. */
void detok_init(struct detok *d, const struct tokenizer *tok, bool skip_special);

/* Appends the text that can no longer change. Malformed bytes become U+FFFD. */
void detok_push(struct detok *d, int32_t id, struct buf *out);

/* Call this at the end: an incomplete character becomes U+FFFD. The state is then as after
 * detok_init. */
void detok_flush(struct detok *d, struct buf *out);

#endif
