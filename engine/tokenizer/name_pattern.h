// SPDX-License-Identifier: Apache-2.0
/* Patterns on names of tensors and modules, as Python's re.match takes them: they have to match
 * from the first character on, and need not match the last. Thread: a compiled pattern may be
 * shared. */
#ifndef SLUICE_ENGINE_TOKENIZER_NAME_PATTERN_H
#define SLUICE_ENGINE_TOKENIZER_NAME_PATTERN_H

#include "engine/base/status.h"

#include <stdbool.h>

struct name_pattern;

enum status name_pattern_compile(const char *pattern, struct name_pattern **out, struct err *err);
void name_pattern_free(struct name_pattern *p); // accepts NULL

/* A pattern that backtracks without end does not match. */
bool name_pattern_matches(const struct name_pattern *p, const char *name);

#endif
