// SPDX-License-Identifier: Apache-2.0
/* Splits a text into tokens of a vocabulary, as its tokenizer would in the middle of another text.
 * Without a tokenizer, or for parts of characters, the longest match is used. Marks of special
 * tokens (vocab.h) become those tokens.
 * Thread: any. */
#ifndef SLUICE_ENGINE_GRAMMAR_VOCAB_SPLIT_H
#define SLUICE_ENGINE_GRAMMAR_VOCAB_SPLIT_H

#include "engine/grammar/vocab.h"

/* Stores the first ids, at most max, and returns their number. */
size_t vocab_split(const struct grammar_vocab *v, const char *bytes, size_t n, int32_t *ids,
                   size_t max);

#endif
