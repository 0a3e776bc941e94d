// SPDX-License-Identifier: Apache-2.0
/* Allocation of small objects: never returns NULL, but aborts with a message. Sizes that come from
 * outside go through mem_try_*, whose failure becomes a status.
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

/* Memory that the small allocations above take before they abort. A server fills it when it begins
 * and then from time to time; until that succeeds again it is short of memory, and should take on
 * nothing new. mem_reserve_fill: true if the reserve is whole. */
bool mem_reserve_fill(void);
void mem_reserve_free(void);
bool mem_is_short(void);

/* Zeroed. NULL if unavailable or if n * size overflows. */
void *mem_try_calloc(size_t n, size_t size);

/* False on overflow, with *out unchanged. */
bool mem_mul(size_t a, size_t b, size_t *out);

#endif
