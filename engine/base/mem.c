// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "engine/base/write.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the reserve --------------------------------------------------------------------------- */

/* Chunks are smaller than what malloc maps and unmaps by itself, so that a freed one can be used
 * again. */
enum { N_CHUNKS = 64, CHUNK_BYTES = 64 << 10, SMALL_BYTES = CHUNK_BYTES / 2 };

static pthread_mutex_t reserve_lock = PTHREAD_MUTEX_INITIALIZER;
static void *reserve[N_CHUNKS];
static int n_reserved;
static atomic_bool is_short;

bool mem_reserve_fill(void)
{
    pthread_mutex_lock(&reserve_lock);
    while (n_reserved < N_CHUNKS && (reserve[n_reserved] = malloc(CHUNK_BYTES)) != NULL) {
        memset(reserve[n_reserved], 1, CHUNK_BYTES); // writing to the pages commits them
        n_reserved++;
    }
    bool whole = n_reserved == N_CHUNKS;
    if (whole) {
        atomic_store(&is_short, false);
    }
    pthread_mutex_unlock(&reserve_lock);
    return whole;
}

void mem_reserve_free(void)
{
    pthread_mutex_lock(&reserve_lock);
    while (n_reserved > 0) {
        free(reserve[--n_reserved]);
    }
    pthread_mutex_unlock(&reserve_lock);
}

bool mem_is_short(void)
{
    return atomic_load(&is_short);
}

/* Frees chunks of the reserve. True if the allocation is worth another try. */
static bool release(size_t n_bytes)
{
    if (n_bytes == 0 || n_bytes > SMALL_BYTES) {
        return false;
    }
    pthread_mutex_lock(&reserve_lock);
    bool any = n_reserved > 0;
    if (any) {
        free(reserve[--n_reserved]);
        atomic_store(&is_short, true);
    }
    pthread_mutex_unlock(&reserve_lock);
    return any;
}

/* ---- allocation ---------------------------------------------------------------------------- */

static void *must(void *p, size_t n_bytes)
{
    if (!p && n_bytes > 0) {
        char text[64];
        snprintf(text, sizeof text, "sluice: out of memory (%zu bytes)\n", n_bytes);
        write_last(text);
        abort();
    }
    return p;
}

void *xmalloc(size_t n_bytes)
{
    void *p = malloc(n_bytes);
    while (!p && release(n_bytes)) {
        p = malloc(n_bytes);
    }
    return must(p, n_bytes);
}

void *xcalloc(size_t n, size_t size)
{
    size_t n_bytes = SIZE_MAX;
    mem_mul(n, size, &n_bytes);
    void *p = calloc(n, size);
    while (!p && release(n_bytes)) {
        p = calloc(n, size);
    }
    return must(p, n_bytes);
}

void *xrealloc(void *p, size_t n_bytes)
{
    void *grown = realloc(p, n_bytes);
    while (!grown && release(n_bytes)) {
        grown = realloc(p, n_bytes);
    }
    return must(grown, n_bytes);
}

char *xstrndup(const char *s, size_t n_bytes)
{
    char *copy = xmalloc(n_bytes + 1);
    memcpy(copy, s, n_bytes);
    copy[n_bytes] = '\0';
    return copy;
}

char *xstrdup(const char *s)
{
    return xstrndup(s, strlen(s));
}

void *mem_try_calloc(size_t n, size_t size)
{
    return calloc(n, size);
}

bool mem_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}
