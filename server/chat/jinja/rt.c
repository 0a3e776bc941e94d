// SPDX-License-Identifier: Apache-2.0
/* The runtime's errors, limits and memory. After the first error nothing is allocated, so
 * callers may check late. */
#include "server/chat/jinja/rt.h"

#include "engine/base/minmax.h"
#include "engine/base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool jrt_fail(struct jrt *rt, const char *kind, const char *fmt, ...)
{
    if (rt->st != OK) {
        return false;
    }
    rt->st = ERR_INVALID;
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    err_set(&rt->err, ERR_INVALID, "template failed: %s: %s", kind, text);
    return false;
}

bool jrt_limit(struct jrt *rt, const char *what)
{
    if (rt->st == OK) {
        rt->st = err_set(&rt->err, ERR_LIMIT, "template failed: %s", what);
    }
    return false;
}

/* Fails with the message of raise_exception, which is cut at the end of a character if it is too
 * long. */
bool jrt_raise(struct jrt *rt, const char *message, size_t n_bytes)
{
    if (rt->st != OK) {
        return false;
    }
    rt->st = ERR_INVALID;
    size_t n = lesser(n_bytes, sizeof rt->err.text - 1);
    while (n > 0 && n < n_bytes && ((unsigned char)message[n] & 0xC0) == 0x80) {
        n--; // do not cut inside a character
    }
    if (n > 0) {
        memcpy(rt->err.text, message, n);
    }
    rt->err.text[n] = '\0';
    return false;
}

bool jrt_charge(struct jrt *rt, size_t steps)
{
    if (rt->steps_left < 0 || steps > (size_t)rt->steps_left) {
        rt->steps_left = -1;
        return jrt_limit(rt, "it needs too many steps");
    }
    rt->steps_left -= (int64_t)steps;
    return true;
}

/* Memory comes from the arena and is zeroed. Blocks beyond 256 bytes cost steps, since
 * zeroing and filling them takes time. */
void *jrt_alloc(struct jrt *rt, size_t n, size_t size)
{
    if (rt->st != OK) {
        return NULL;
    }
    void *p = arena_alloc(&rt->arena, n ? n : 1, size);
    if (!p && rt->arena.no_memory) {
        rt->st = err_set(&rt->err, ERR_NOMEM, "template failed: out of memory");
        return NULL;
    }
    if (!p) {
        jrt_limit(rt, "it needs too much memory");
        return NULL;
    }
    if (n > 256 / size && !jrt_charge(rt, n * size >> 8)) {
        return NULL;
    }
    return p;
}
