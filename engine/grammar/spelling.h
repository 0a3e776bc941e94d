// SPDX-License-Identifier: Apache-2.0
/* Converts text of formats (start and end of tags, text around values) to bytes. The name of a
 * special token in such a text means that token.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_SPELLING_H
#define SLUICE_ENGINE_GRAMMAR_SPELLING_H

#include "engine/base/buf.h"
#include "engine/grammar/parsers.h"

/* Appends the bytes of the text. The name of an end id is an error, because end ids have no bytes;
 * the message names it. */
enum status spell(const struct compile *c, const char *s, size_t n, struct buf *out);
/* The same, as an expression. */
enum status spell_expr(const struct compile *c, const char *s, size_t n, uint32_t *e);

#endif
