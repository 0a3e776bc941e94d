// SPDX-License-Identifier: Apache-2.0
/* Patterns for names of tensors and modules, with the semantics of Python's re.match: anchored at
 * the start, not at the end.
 * Thread: a compiled pattern may be shared. */
#ifndef SLUICE_ENGINE_TOKENIZER_NAME_PATTERN_H
#define SLUICE_ENGINE_TOKENIZER_NAME_PATTERN_H

#include "engine/base/status.h"

#include <stdbool.h>

struct name_pattern;

enum status name_pattern_compile(const char *pattern, struct name_pattern **out, struct err *err);
void name_pattern_free(struct name_pattern *p); // accepts NULL

/* A pattern that exceeds the backtracking limit does not match. */
bool name_pattern_matches(const struct name_pattern *p, const char *name);

#endif
