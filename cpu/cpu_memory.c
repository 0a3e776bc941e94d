// SPDX-License-Identifier: Apache-2.0
/* A rank's memory: allocations that live until close, and scratch memory that ops share. */
#include "cpu/cpu_internal.h"
#include "cpu/cpu_room.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

enum {
    HUGE_PAGE = 2 << 20,
    SURELY_THERE = 64 << 20, // smaller allocations are not checked
};

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 // Linux 5.14
#endif

static _Atomic size_t n_mapped; // bytes, over all ranks of this process

size_t cpu_free_bytes(void)
{
    size_t room = cpu_room(""), mapped = atomic_load(&n_mapped), resident = cpu_resident("");
    size_t promised = mapped > resident ? mapped - resident : 0;
    return room > promised ? room - promised : 0;
}

/* The kernel would grant any amount, and later kill the process that uses it. */
static bool is_there(size_t n_bytes)
{
    return n_bytes < SURELY_THERE || n_bytes <= cpu_free_bytes();
}

/* Commits the memory now if little memory would remain, because later allocations could otherwise
 * make its first use fail. If much remains, it is committed on first use: committing all of a large
 * pool took 1.1 s per GB at startup on a virtual machine (2.2 s with huge pages), which would
 * rarely be worth it. */
static void commit_if_near(void *p, size_t n_bytes)
{
    if (n_bytes < SURELY_THERE || n_bytes < cpu_free_bytes() / 2) {
        return;
    }
    if (madvise(p, n_bytes, MADV_POPULATE_WRITE) != 0) {
        for (size_t i = 0; i < n_bytes; i += 4096) {
            ((volatile char *)p)[i] = 0;
        }
    }
}

/* ASan does not know about mappings, so it is told that the memory after the allocation must not be
 * accessed. */
static void forbid_end(char *p, size_t n_bytes, size_t size)
{
#if defined(__SANITIZE_ADDRESS__)
    ASAN_POISON_MEMORY_REGION(p + n_bytes, size - n_bytes);
#else
    (void)p, (void)n_bytes, (void)size;
#endif
}

static void allow_all(char *p, size_t size)
{
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(p, size);
#else
    (void)p, (void)size;
#endif
}

void *cpu_memory(struct cpu_backend *cpu, size_t n_bytes)
{
    size_t size = n_bytes > HUGE_PAGE ? n_bytes + HUGE_PAGE : n_bytes + 4096;
    if (size < n_bytes || !is_there(n_bytes)) {
        return NULL;
    }
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    if (n_bytes > HUGE_PAGE) {
        madvise(p, size, MADV_HUGEPAGE);
    }
    struct memory *m = xmalloc(sizeof *m);
    *m = (struct memory){.next = cpu->memories, .p = p, .n_bytes = size};
    cpu->memories = m;
    commit_if_near(p, size);
    forbid_end(p, n_bytes, size);
    atomic_fetch_add(&n_mapped, size);
    return p;
}

void cpu_memory_free(struct cpu_backend *cpu, void *p)
{
    for (struct memory **at = &cpu->memories; p && *at; at = &(*at)->next) {
        struct memory *m = *at;
        if (m->p == p) {
            *at = m->next;
            allow_all(m->p, m->n_bytes); // another mapping may take the place
            munmap(m->p, m->n_bytes);
            atomic_fetch_sub(&n_mapped, m->n_bytes);
            free(m);
            return;
        }
    }
}

/* ---- scratch ------------------------------------------------------------------------------ */

enum status cpu_need_scratch(struct cpu_backend *cpu, size_t n_bytes)
{
    for (int32_t i = 0; i < cpu->n_scratch; i++) {
        struct scratch *s = &cpu->scratch[i];
        if (s->n_bytes >= n_bytes) {
            continue;
        }
        char *p = cpu_memory(cpu, n_bytes);
        if (!p) {
            return ERR_NOMEM;
        }
        cpu_memory_free(cpu, s->p);
        *s = (struct scratch){p, n_bytes};
    }
    return OK;
}

enum status cpu_need_rows(struct cpu_backend *cpu)
{
    size_t n_bytes = (size_t)cpu->max_k_bytes * (size_t)cpu_pack_rows(cpu);
    n_bytes *= cpu->kernels->blocks ? 2 : 1; // the result of cpu_mlp is stored after its input
    if (cpu->packed_rows_bytes >= n_bytes) {
        return OK;
    }
    char *p = cpu_memory(cpu, n_bytes);
    if (!p) {
        return ERR_NOMEM;
    }
    cpu_memory_free(cpu, cpu->packed_rows);
    cpu->packed_rows = p;
    cpu->packed_rows_bytes = n_bytes;
    return OK;
}
