// SPDX-License-Identifier: Apache-2.0
/* A bump allocator with a hard cap; one call frees everything. It holds data that lives as long as
 * one request or one load. Memory is zeroed and 16-byte aligned.
 * Thread: one owner at a time. */
#ifndef SLUICE_BASE_ARENA_H
#define SLUICE_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *head;
    size_t used_bytes; // handed out, including alignment padding
    size_t max_bytes;  // an allocation that would exceed this returns NULL
    bool no_memory;    // an allocation within the cap returned NULL
};

void arena_init(struct arena *a, size_t max_bytes);
void arena_deinit(struct arena *a); // accepts a zeroed struct

/* NULL if it would exceed the cap, or there is no memory. */
void *arena_alloc(struct arena *a, size_t n, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n_bytes);

#endif
