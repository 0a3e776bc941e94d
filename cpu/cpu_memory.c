/* A rank's memory: what lives until close, and what ops share. */
#include "cpu/cpu_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    HUGE_PAGE = 2 << 20,
    SURELY_THERE = 64 << 20, // chosen: allocations below it are not worth the question
};

static size_t read_number(const char *path, const char *key)
{
    char line[256];
    size_t value = 0, key_bytes = strlen(key);
    FILE *f = fopen(path, "r");
    while (f && value == 0 && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, key_bytes) == 0) {
            value = (size_t)strtoull(line + key_bytes, NULL, 10);
        }
    }
    if (f) {
        fclose(f);
    }
    return value;
}

size_t cpu_free_bytes(void)
{
    size_t n_bytes = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    if (n_bytes == 0) { // no /proc here: nobody knows
        n_bytes = SIZE_MAX;
    }
    size_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    size_t used = read_number("/sys/fs/cgroup/memory.current", "");
    size_t cached = read_number("/sys/fs/cgroup/memory.stat", "active_file ") +
                    read_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
    used = used > cached ? used - cached : 0;
    size_t left = limit > used ? limit - used : 0;
    return limit > 0 && left < n_bytes ? left : n_bytes;
}

/* The system would promise any amount, and kill the process that uses it. */
static bool is_there(size_t n_bytes)
{
    return n_bytes < SURELY_THERE || n_bytes <= cpu_free_bytes();
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
    return p;
}

void cpu_memory_free(struct cpu_backend *cpu, void *p)
{
    for (struct memory **at = &cpu->memories; p && *at; at = &(*at)->next) {
        struct memory *m = *at;
        if (m->p == p) {
            *at = m->next;
            munmap(m->p, m->n_bytes);
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
    n_bytes *= cpu->kernels->blocks ? 2 : 1; // what mlp makes lies behind what it is made of
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
