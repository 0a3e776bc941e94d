// SPDX-License-Identifier: Apache-2.0
/* Helpers for strings that may be absent (NULL), and JSON's words for booleans. Thread: any. */
#ifndef SLUICE_BASE_OPTIONAL_H
#define SLUICE_BASE_OPTIONAL_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* For printf and copies, which do not accept NULL. */
static inline const char *or_empty(const char *s)
{
    return s ? s : "";
}

static inline size_t length_or_0(const char *s)
{
    return s ? strlen(s) : 0;
}

static inline const char *bool_word(bool b)
{
    return b ? "true" : "false";
}

#endif
