// SPDX-License-Identifier: Apache-2.0
/* A list of chunks; each new chunk is twice as large as the last, up to a limit. */
#include "engine/base/arena.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Each chunk is twice as large as the previous one: a small request (there may be thousands at a
 * time) needs only one small chunk, and a large one needs few allocations. */
enum { MIN_CHUNK_BYTES = 1024, MAX_CHUNK_BYTES = 16384, ALIGN = 16 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap;
    _Alignas(ALIGN) unsigned char data[];
};

void arena_init(struct arena *a, size_t max_bytes)
{
    *a = (struct arena){.max_bytes = max_bytes};
}

void arena_deinit(struct arena *a)
{
    while (a->head) {
        struct arena_chunk *next = a->head->next;
        free(a->head);
        a->head = next;
    }
    a->used_bytes = 0;
}

/* The cap counts the bytes handed out, so it does not depend on how well chunks happen to be
 * filled. */
void *arena_alloc(struct arena *a, size_t n, size_t size)
{
    size_t bytes;
    if (!mem_mul(n, size, &bytes) || bytes > a->max_bytes) {
        return NULL;
    }
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (bytes > a->max_bytes - a->used_bytes) {
        return NULL;
    }
    struct arena_chunk *c = a->head;
    if (!c || c->cap - c->used < bytes) {
        size_t twice = c ? 2 * c->cap : MIN_CHUNK_BYTES;
        size_t cap = lesser(twice, MAX_CHUNK_BYTES);
        cap = greater(bytes, cap);
        c = mem_try_calloc(1, sizeof *c + cap);
        if (!c) {
            a->no_memory = true;
            return NULL;
        }
        c->cap = cap;
        c->next = a->head;
        a->head = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    a->used_bytes += bytes;
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n_bytes)
{
    char *copy = n_bytes < SIZE_MAX ? arena_alloc(a, n_bytes + 1, 1) : NULL;
    if (copy) {
        memcpy(copy, s, n_bytes);
    }
    return copy;
}
