// SPDX-License-Identifier: Apache-2.0
/* The terminals of Lark's library `common`.
 * Thread: any. */
#ifndef SLUICE_ENGINE_GRAMMAR_LARK_COMMON_H
#define SLUICE_ENGINE_GRAMMAR_LARK_COMMON_H

#include <stddef.h>

/* A regular expression for the terminal; NULL: unknown name. */
const char *lark_common(const char *name, size_t n);

#endif
