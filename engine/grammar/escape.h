// SPDX-License-Identifier: Apache-2.0
/* The texts of any grammar as contents of a JSON string. All characters with escapes are single
 * bytes, so each set of bytes can be replaced in place, also inside rules.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_ESCAPE_H
#define SLUICE_ENGINE_GRAMMAR_ESCAPE_H

#include "engine/grammar/rules.h"

/* The texts of `e` in quotes, with the escapes of a JSON writer. The rules that it calls get
 * escaped copies. False: a part of it is JSON already. */
bool escape_json(struct exprs *x, struct rules *rules, uint32_t e, uint32_t *out);

#endif
