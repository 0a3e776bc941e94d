// SPDX-License-Identifier: Apache-2.0
/* The runtime's errors, limits and memory. After the first error nothing is allocated, so
 * callers may check late. */
#include "server/chat/jinja/rt.h"

#include "engine/base/minmax.h"
#include "engine/base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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

/* The limit of steps is the same on every machine, so what renders here renders anywhere; but a
 * step of an unusual template may take a microsecond. Where that matters, time is limited too. */
static _Thread_local int64_t cpu_end_ns; // 0: no limit

static int64_t cpu_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void jrt_set_cpu_ms(int64_t ms)
{
    cpu_end_ns = ms > 0 ? cpu_now_ns() + ms * 1000000 : 0;
}

bool jrt_charge(struct jrt *rt, size_t steps)
{
    if (rt->steps_left >= 0 && steps <= (size_t)rt->steps_left) {
        rt->steps_left -= (int64_t)steps;
        return true;
    }
    size_t more = steps - (size_t)greater(rt->steps_left, 0);
    rt->steps_left = -1;
    if (rt->steps_beyond < 0 || more > (size_t)rt->steps_beyond) {
        rt->steps_beyond = -1;
        return jrt_limit(rt, "it takes too many steps");
    }
    if (cpu_end_ns > 0 && cpu_now_ns() > cpu_end_ns) {
        rt->steps_beyond = -1;
        return jrt_limit(rt, "it takes too long");
    }
    rt->steps_beyond -= (int64_t)more;
    rt->steps_left = lesser(rt->steps_beyond, JINJA_SLICE);
    rt->steps_beyond -= rt->steps_left;
    return true;
}

bool jrt_go_on(struct jrt *rt)
{
    rt->steps_left = 0;
    return jrt_charge(rt, 1);
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
