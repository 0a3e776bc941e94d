// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "engine/base/write.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    return must(malloc(n_bytes), n_bytes);
}

void *xcalloc(size_t n, size_t size)
{
    size_t n_bytes;
    return must(calloc(n, size), mem_mul(n, size, &n_bytes) ? n_bytes : SIZE_MAX);
}

void *xrealloc(void *p, size_t n_bytes)
{
    return must(realloc(p, n_bytes), n_bytes);
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
