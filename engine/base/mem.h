// SPDX-License-Identifier: Apache-2.0
/* Allocation of small objects: never returns NULL, but aborts with a message. Sizes that come from
 * outside go through mem_try_*, and their caller turns a failure into a status.
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

/* The reserve: memory that the small allocations above use before they abort. A server fills it at
 * the start and then from time to time. While it is not full, the server is short of memory and
 * should accept no new work. mem_reserve_fill returns true if the reserve is full. */
bool mem_reserve_fill(void);
void mem_reserve_free(void);
bool mem_is_short(void);

/* Zeroed. NULL if unavailable or if n * size overflows. */
void *mem_try_calloc(size_t n, size_t size);

/* False on overflow, with *out unchanged. */
bool mem_mul(size_t a, size_t b, size_t *out);

#endif
