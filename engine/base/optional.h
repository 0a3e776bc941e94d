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

/* The text, or what stands for it if it is absent. */
static inline const char *or_text(const char *s, const char *absent)
{
    return s ? s : absent;
}

/* A part of a message or list that is only there if the condition holds: a separator, a suffix. */
static inline const char *text_if(bool condition, const char *text)
{
    return condition ? text : "";
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
