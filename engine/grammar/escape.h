// SPDX-License-Identifier: Apache-2.0
/* Texts of any grammar as the inside of a JSON string. A character is one byte or stays as it is,
 * so that each set of bytes can be written anew where it stands, in rules as well.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_ESCAPE_H
#define SLUICE_ENGINE_GRAMMAR_ESCAPE_H

#include "engine/grammar/rules.h"

/* The texts of `e` with quotes around them and the escapes that a writer of JSON uses. The rules
 * that it calls get a second form. False: it has a part that is JSON already. */
bool escape_json(struct exprs *x, struct rules *rules, uint32_t e, uint32_t *out);

#endif
