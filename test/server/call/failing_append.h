// SPDX-License-Identifier: Apache-2.0
/* Makes an append fail for lack of memory. Include it in one file of a program only. */
#ifndef SLUICE_TEST_SERVER_CALL_FAILING_APPEND_H
#define SLUICE_TEST_SERVER_CALL_FAILING_APPEND_H

#include "engine/base/mem.h"

#include <stdbool.h>
#include <stdint.h>

/* The fails_in-th append from now fails for lack of memory. Allocations by xrealloc do not count,
 * because they abort on failure. */
static int fails_in, pending_fails; // pending_fails: the value for the next call

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool can_fail = false;
#else
static const bool can_fail = true;
void *__libc_realloc(void *p, size_t n_bytes);

void *realloc(void *p, size_t n_bytes)
{
    enum { CODE_BYTES = 64 }; // more than xrealloc's machine code has
    uintptr_t from = (uintptr_t)__builtin_return_address(0);
    bool aborts = from - (uintptr_t)xrealloc < CODE_BYTES;
    if (!aborts && fails_in > 0 && --fails_in == 0) {
        return NULL;
    }
    return __libc_realloc(p, n_bytes);
}
#endif

#endif
