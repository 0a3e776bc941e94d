// SPDX-License-Identifier: Apache-2.0
/* Allocation for small things: never returns NULL, aborts with a line instead. Sizes that come
 * from outside go through mem_try_* and become a status.
 * Thread: any. */
#ifndef SLUICE_BASE_MEM_H
#define SLUICE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

void *xmalloc(size_t n_bytes);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n_bytes);
char *xstrdup(const char *s);
char *xstrndup(const char *s, size_t n_bytes);

/* NULL when it cannot be had or when n * size overflows. Zeroed. */
void *mem_try_calloc(size_t n, size_t size);

/* False on overflow; *out is then unchanged. */
bool mem_mul(size_t a, size_t b, size_t *out);

#endif
