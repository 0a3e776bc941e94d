// SPDX-License-Identifier: Apache-2.0
/* A text as tokens of a vocabulary, as its tokenizer would have it in the middle of another;
 * without a tokenizer, or where a part of a character is in the way, the longest first. Marks of
 * special tokens (vocab.h) are these tokens. Thread: any. */
#ifndef SLUICE_ENGINE_GRAMMAR_VOCAB_SPLIT_H
#define SLUICE_ENGINE_GRAMMAR_VOCAB_SPLIT_H

#include "engine/grammar/vocab.h"

/* The first ids, at most max: how many. */
size_t vocab_split(const struct grammar_vocab *v, const char *bytes, size_t n, int32_t *ids,
                   size_t max);

#endif
