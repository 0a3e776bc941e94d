// SPDX-License-Identifier: Apache-2.0
/* The runtime of one render (or one compilation): its arena, limits, error, scopes and output.
 * Private to server/chat/jinja/.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_CHAT_JINJA_RT_H
#define SLUICE_SERVER_CHAT_JINJA_RT_H

#include "engine/base/arena.h"
#include "engine/base/status.h"
#include "server/chat/jinja/value.h"

/* Limits. A step is one node evaluated, one item iterated or 256 bytes moved. One level of nesting
 * takes at most about 500 bytes of C stack in a release build; libuv's pool threads have 8 MiB (2
 * MiB if the system sets no limit). */
enum {
#ifdef SLUICE_FUZZER // fuzzing reaches small limits sooner
    JINJA_MAX_STEPS = 100 * 1000,
    JINJA_MAX_OUTPUT = 1 << 20,
    JINJA_MAX_MEMORY = 16 << 20,
#else
    JINJA_MAX_STEPS = 10 * 1000 * 1000,
    JINJA_MAX_OUTPUT = 64 << 20,
    JINJA_MAX_MEMORY = 256 << 20,
#endif
    JINJA_SLICE = 1 << 14,   // steps after which the clock is read
    JINJA_MAX_CALLS = 200,   // macros, callers and recursive loops
    JINJA_MAX_DEPTH = 2000,  // recursive C calls of the evaluator, within all nested calls together
    JINJA_MAX_NEST = 200,    // nesting of the source, and of a value that is printed, compared or
                             // hashed
    JINJA_MAX_RANGE = 100000 // Jinja2's own limit
};

struct jbinding {
    int sym;
    struct jv value;
};

struct jframe {
    struct jframe *parent; // the enclosing scope; NULL: the render's variables
    struct jbinding *b;
    int n, cap;
};

struct jrt {
    struct arena arena;
    enum status st;
    struct err err;
    int64_t steps_left, steps_beyond; // steps left in this slice, and after it; see rt.c
    int depth, calls;
    struct jsb *out;
    bool autoescape;
    struct jframe *frame;
    struct jv *vars; // the render's variables, indexed by symbol
    int n_vars;
    const struct jinja_template *t;
    const struct jinja_tables *tables; // the available filters, tests, methods and functions
    int64_t local_us;
    struct jstr *ascii[2][128];  // cached one-character strings, by [input][character]
    struct jundef *last_missing; // the last missing attribute
};

/* Records an error and returns false; the first error is kept. `kind` is the Python exception. */
bool jrt_fail(struct jrt *rt, const char *kind, const char *fmt, ...) PRINTF_LIKE(3, 4);
bool jrt_limit(struct jrt *rt, const char *what);
bool jrt_raise(struct jrt *rt, const char *message, size_t n_bytes); // raise_exception

void *jrt_alloc(struct jrt *rt, size_t n, size_t size); // zeroed; NULL after recording an error
bool jrt_charge(struct jrt *rt, size_t steps);
bool jrt_go_on(struct jrt *rt); // takes a step when the slice has none left

static inline bool jrt_step(struct jrt *rt)
{
    return rt->steps_left-- > 0 || jrt_go_on(rt);
}

/* The CPU time after which everything that this thread compiles and renders fails; 0: no limit. */
void jrt_set_cpu_ms(int64_t ms);

/* Enters one more level of C calls; inline, because every node uses it. */
static inline bool jinja_enter(struct jrt *rt)
{
    if (++rt->depth > JINJA_MAX_DEPTH) {
        rt->depth--;
        return jrt_limit(rt, "it nests too deeply");
    }
    return jrt_step(rt) || (rt->depth--, false);
}

static inline void jinja_leave(struct jrt *rt)
{
    rt->depth--;
}

#endif
