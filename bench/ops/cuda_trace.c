// SPDX-License-Identifier: Apache-2.0
/* Shows where a GPU's time goes, for any program. This is a library that the CUDA driver loads:
 *     CUDA_INJECTION64_PATH=build/.../cuda_trace.so program
 * At the end of the program it prints, for each kernel, the time by which it moved the end of the
 * work on: kernels overlap (programmatic dependent launch), and one that starts early and waits for
 * its predecessor is not charged for the wait. The gaps in which nothing ran follow. Only the last
 * SLUICE_TRACE_MS milliseconds of work (default 300) count, which leaves out loading, but for
 * SLUICE_TRACE_SKIP_MS at the very end. SLUICE_TRACE_FILE receives every kernel in order.
 * Thread: CUPTI's and the program's; records are joined at exit. */
#include <cupti.h>

#include "engine/base/minmax.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 8 << 20, MAX_NAMES = 512, GAPS = 6 };

struct record {
    uint64_t start, end;
    const char *name; // owned by CUPTI, which keeps it
};

/* All records of the program; buffers arrive on CUPTI's thread. */
static struct {
    pthread_mutex_t lock;
    struct record *all;
    size_t n, cap;
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *size = BUFFER_BYTES;
    *max_records = 0;
    *buffer = aligned_alloc(8, BUFFER_BYTES);
}

static const char *copy_name(uint8_t kind)
{
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy to the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy from the device";
    default: return "copy";
    }
}

/* If memory runs out, later records are dropped, and the summary covers the earlier ones. */
static void add(uint64_t start, uint64_t end, const char *name)
{
    if (trace.n == trace.cap) {
        const size_t cap = trace.cap ? 2 * trace.cap : 1 << 16;
        struct record *all = realloc(trace.all, cap * sizeof *all);
        if (!all) {
            return;
        }
        trace.all = all;
        trace.cap = cap;
    }
    trace.all[trace.n++] = (struct record){start, end, name};
}

/* CUPTI returns a full buffer, which is freed here. */
static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t valid)
{
    (void)context;
    (void)stream;
    (void)size;
    CUpti_Activity *r = NULL;
    pthread_mutex_lock(&trace.lock);
    while (cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS) {
        if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel10 *k = (const CUpti_ActivityKernel10 *)r;
            add(k->start, k->end, k->name);
        } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy6 *c = (const CUpti_ActivityMemcpy6 *)r;
            add(c->start, c->end, copy_name(c->copyKind));
        }
    }
    pthread_mutex_unlock(&trace.lock);
    free(buffer);
}

/* ---- the summary -------------------------------------------------------------------------- */

struct total {
    const char *name;
    uint64_t n;
    uint64_t ns;     // after the kernels before it had ended
    uint64_t all_ns; // from its start
    uint64_t gap_ns; // before it, while no kernel ran
};

/* Gaps by length, and the time in which something ran. */
struct gaps {
    uint64_t n[GAPS], ns[GAPS], busy;
};

static const uint64_t gap_edges[GAPS] = {1000, 2000, 5000, 20000, 100000, UINT64_MAX};

static int by_start(const void *a, const void *b)
{
    const struct record *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

static int by_time(const void *a, const void *b)
{
    const struct total *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

static struct total *total_of(struct total *totals, size_t *n, const char *name)
{
    for (size_t i = 0; i < *n; i++) {
        if (strcmp(totals[i].name, name) == 0) {
            return &totals[i];
        }
    }
    if (*n == MAX_NAMES) {
        return &totals[MAX_NAMES - 1];
    }
    totals[*n] = (struct total){.name = name};
    return &totals[(*n)++];
}

/* With SLUICE_TRACE_FILE, writes every kernel in order, with times in us. */
static void print_order(const struct record *r, size_t n)
{
    const char *path = getenv("SLUICE_TRACE_FILE");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        fprintf(f, "%.2f %.2f %.90s\n", (double)(r[i].start - r[0].start) * 1e-3,
                (double)(r[i].end - r[i].start) * 1e-3, r[i].name);
    }
    fclose(f);
}

static void add_gap(struct gaps *gaps, uint64_t gap)
{
    int c = 0;
    while (gap >= gap_edges[c]) {
        c++;
    }
    gaps->n[c]++;
    gaps->ns[c] += gap;
}

/* Sums n records, ordered by start, by name. Returns when the last of them ended. */
static uint64_t sum_up(const struct record *r, size_t n, struct total *totals, size_t *n_totals,
                       struct gaps *gaps)
{
    uint64_t end = r[0].start;
    for (size_t i = 0; i < n; i++) {
        struct total *t = total_of(totals, n_totals, r[i].name);
        t->n++;
        t->all_ns += r[i].end - r[i].start;
        if (r[i].start > end) {
            add_gap(gaps, r[i].start - end);
            t->gap_ns += r[i].start - end;
        }
        const uint64_t from = greater(r[i].start, end);
        if (r[i].end > from) {
            t->ns += r[i].end - from;
            gaps->busy += r[i].end - from;
            end = r[i].end;
        }
    }
    return end;
}

static void print_totals(const struct total *totals, size_t n, double wall)
{
    for (size_t i = 0; i < n && i < 40; i++) {
        const struct total *t = &totals[i];
        const double us = 1e-3 / (double)t->n;
        fprintf(stderr,
                "  %6.2f %% %7llu x %9.2f us (%.2f from its start), %5.2f us idle before  %.100s\n",
                100.0 * (double)t->ns / wall, (unsigned long long)t->n, (double)t->ns * us,
                (double)t->all_ns * us, (double)t->gap_ns * us, t->name);
    }
}

static void print_gaps(const struct gaps *gaps, double wall)
{
    fprintf(stderr, "  gaps:");
    for (int i = 0; i < GAPS; i++) {
        fprintf(stderr, " %s%.0f us: %llu, %.2f %%;", i < GAPS - 1 ? "<" : ">",
                (double)gap_edges[i < GAPS - 1 ? i : GAPS - 2] * 1e-3,
                (unsigned long long)gaps->n[i], 100.0 * (double)gaps->ns[i] / wall);
    }
    fprintf(stderr, "\n");
}

/* Leaves the records of the time that counts: `first` becomes the first of them. */
static void cut_window(size_t *first)
{
    const char *ms = getenv("SLUICE_TRACE_MS"), *skip = getenv("SLUICE_TRACE_SKIP_MS");
    const uint64_t window = (uint64_t)((ms ? atof(ms) : 300.0) * 1e6);
    const uint64_t tail = (uint64_t)((skip ? atof(skip) : 0.0) * 1e6);
    uint64_t last = trace.all[trace.n - 1].end;
    if (last > tail) {
        last = last - tail;
    }
    while (trace.n > 1 && trace.all[trace.n - 1].end > last) {
        trace.n--;
    }
    *first = 0;
    while (*first + 1 < trace.n && trace.all[*first].start + window < last) {
        ++*first;
    }
}

/* Prints sums by kernel name, and a histogram of the gaps between kernels. */
static void print_summary(void)
{
    static struct total totals[MAX_NAMES];
    struct gaps gaps = {0};
    size_t n_totals = 0, first = 0;
    cuptiActivityFlushAll(1);
    pthread_mutex_lock(&trace.lock);
    if (trace.n == 0) {
        fprintf(stderr, "trace: nothing ran on the GPU\n");
        pthread_mutex_unlock(&trace.lock);
        return;
    }
    qsort(trace.all, trace.n, sizeof *trace.all, by_start);
    cut_window(&first);
    const struct record *r = trace.all + first;
    const size_t n = trace.n - first;
    const double wall = (double)(sum_up(r, n, totals, &n_totals, &gaps) - r[0].start);
    qsort(totals, n_totals, sizeof totals[0], by_time);
    fprintf(stderr, "trace: %.2f ms, busy %.2f %%, %zu launches\n", wall * 1e-6,
            100.0 * (double)gaps.busy / wall, n);
    print_gaps(&gaps, wall);
    print_totals(totals, n_totals, wall);
    print_order(r, n);
    pthread_mutex_unlock(&trace.lock);
}

int InitializeInjection(void);
/* The driver calls this by name when it loads the library. */
int InitializeInjection(void)
{
    if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) != CUPTI_SUCCESS) {
        fprintf(stderr, "trace: CUPTI refused\n");
        return 0;
    }
    atexit(print_summary);
    return 1;
}
