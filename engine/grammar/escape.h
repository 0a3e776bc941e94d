// SPDX-License-Identifier: Apache-2.0
/* Turns the texts of any grammar into contents of a JSON string. All characters that need an escape
 * are single bytes, so each set of bytes can be replaced in place, even inside rules.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_ESCAPE_H
#define SLUICE_ENGINE_GRAMMAR_ESCAPE_H

#include "engine/grammar/rules.h"

/* *out becomes the texts of `e` in quotes, with the escapes that a JSON writer uses. The rules that
 * `e` calls get escaped copies. False: a part of `e` is a JSON string already. */
bool escape_json(struct exprs *x, struct rules *rules, uint32_t e, uint32_t *out);

#endif
