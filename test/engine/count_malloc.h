// SPDX-License-Identifier: Apache-2.0
/* Counts the allocations of threads whose `counts` is set. Include it in one file of a test: it
 * defines malloc and its relatives. Sanitizers define their own, and then counts_allocations is
 * false.
 * Thread: each thread has its own `counts`; one thread at a time may count. */
#ifndef SLUICE_TEST_ENGINE_COUNT_MALLOC_H
#define SLUICE_TEST_ENGINE_COUNT_MALLOC_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool counts_allocations = false;
#else
static const bool counts_allocations = true;
#endif

/* volatile, because the compiler knows malloc and assumes that it does not access these. */
static _Thread_local volatile bool counts;
static volatile int32_t n_allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t n_bytes);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n_bytes);
void *__libc_memalign(size_t alignment, size_t n_bytes);

void *malloc(size_t n_bytes)
{
    n_allocations += counts;
    return __libc_malloc(n_bytes);
}

void *calloc(size_t n, size_t size)
{
    n_allocations += counts;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n_bytes)
{
    n_allocations += counts;
    return __libc_realloc(p, n_bytes);
}

void *aligned_alloc(size_t alignment, size_t n_bytes)
{
    n_allocations += counts;
    return __libc_memalign(alignment, n_bytes);
}
#endif

#endif
