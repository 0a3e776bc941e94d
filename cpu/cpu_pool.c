// SPDX-License-Identifier: Apache-2.0
/* Threads that share the items of a job. Between jobs they spin for a while and then sleep in a
 * futex: a step has many short jobs, and waking a thread takes longer than some of them. */
#include "cpu/cpu_pool.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/thread.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* SPIN_TURNS: how often an idle thread spins before it sleeps. It takes about 50 us, longer than
 * the gap between the ops of a decode step. */
enum { SPIN_TURNS = 1500, CACHE_LINE = 64 };

/* A thread's run of items in one word: the number of the job in the high bits, then the end of the
 * run and the next item. The job's number keeps a thread that is late for one job from taking an
 * item of the next. */
enum { ITEM_BITS = 20 };
#define ITEM_MASK ((1u << ITEM_BITS) - 1)
enum { MAX_ITEMS = (1 << ITEM_BITS) - 1 }; // items per job

struct run {
    _Alignas(CACHE_LINE) _Atomic uint64_t word; // job << 40 | end << 20 | next
};

struct worker {
    struct pool *pool;
    int32_t index;
    pthread_t thread;
};

struct pool {
    int32_t n_threads, n_started;
    int32_t spin_turns;
    struct run *runs;       // [n_threads]
    struct worker *workers; // [n_threads]; worker 0 is the owner

    // Number of the current job; changes when a job opens.
    _Alignas(CACHE_LINE) _Atomic uint32_t job;
    _Atomic uint32_t n_asleep;
    _Atomic bool stop;
    // fn and arg of the job; atomic because a late thread may read those of the next job.
    _Atomic uintptr_t fn, arg;
    _Atomic int32_t first; // number of the job's first item

    _Alignas(CACHE_LINE) _Atomic uint32_t n_done;
    // The owner must be woken when n_done reaches this; 0: it is awake.
    _Atomic uint32_t owner_waits_for;
};

typedef void item_fn(void *arg, int32_t item, int32_t thread);

static void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The number of CPUs that the process may use: those of its affinity mask, limited by a cgroup
 * quota if there is one. */
static int32_t available_cpus(void)
{
    cpu_set_t set;
    int32_t n = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        n = CPU_COUNT(&set);
    }
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (f) {
        long quota, period;
        if (fscanf(f, "%ld %ld", &quota, &period) == 2 && quota > 0 && period > 0) {
            long limit = (quota + period - 1) / period;
            if (limit < n) {
                n = (int32_t)limit;
            }
        }
        fclose(f);
    }
    return n > 0 ? n : 1;
}

/* Takes the next item of a run; -1: none is left. */
static int32_t take(struct run *run, uint32_t job)
{
    uint64_t w = atomic_load_explicit(&run->word, memory_order_acquire);
    for (;;) {
        uint32_t next = (uint32_t)w & ITEM_MASK;
        uint32_t end = (uint32_t)(w >> ITEM_BITS) & ITEM_MASK;
        if ((uint32_t)(w >> 2 * ITEM_BITS) != (job & 0xFFFFFF) || next >= end) {
            return -1;
        }
        if (atomic_compare_exchange_weak_explicit(&run->word, &w, w + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            return (int32_t)next;
        }
    }
}

/* Works on a job until no item is left, beginning with the thread's own run. */
static void work(struct pool *pool, uint32_t job, int32_t thread)
{
    item_fn *fn = (item_fn *)atomic_load_explicit(&pool->fn, memory_order_relaxed);
    void *arg = (void *)atomic_load_explicit(&pool->arg, memory_order_relaxed);
    int32_t first = atomic_load_explicit(&pool->first, memory_order_relaxed);
    uint32_t n = 0;
    for (int32_t i = 0; i < pool->n_threads; i++) {
        int32_t owner = thread + i < pool->n_threads ? thread + i : thread + i - pool->n_threads;
        for (int32_t item; (item = take(&pool->runs[owner], job)) >= 0; n++) {
            fn(arg, first + item, thread);
        }
    }
    if (n > 0) {
        uint32_t done = atomic_fetch_add(&pool->n_done, n) + n;
        if (done == atomic_load(&pool->owner_waits_for)) {
            futex_wake(&pool->n_done, 1);
        }
    }
}

/* Takes part in each job whose number it has not seen before. */
static void *worker_main(void *p)
{
    struct worker *w = p;
    struct pool *pool = w->pool;
    uint32_t seen = 0;
    thread_name("cpu");
    while (!atomic_load(&pool->stop)) {
        uint32_t job = atomic_load_explicit(&pool->job, memory_order_acquire);
        for (int32_t i = 0; job == seen && i < pool->spin_turns; i++) {
            relax();
            job = atomic_load_explicit(&pool->job, memory_order_acquire);
        }
        if (job == seen) {
            atomic_fetch_add(&pool->n_asleep, 1);
            futex_wait(&pool->job, seen);
            atomic_fetch_sub(&pool->n_asleep, 1);
            continue;
        }
        seen = job;
        work(pool, job, w->index);
    }
    return NULL;
}

/* If there are fewer processors than threads, threads do not spin, because that would take time
 * from those that work. */
struct pool *pool_create(int32_t n_threads)
{
    int32_t available = available_cpus();
    if (n_threads <= 0) {
        n_threads = available;
    }
    struct pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    struct run *runs = aligned_alloc(CACHE_LINE, (size_t)n_threads * sizeof *runs);
    if (!pool || !runs) {
        free(pool);
        free(runs);
        return NULL;
    }
    *pool = (struct pool){.n_threads = n_threads,
                          .runs = runs,
                          .workers = xcalloc((size_t)n_threads, sizeof *pool->workers),
                          .spin_turns = n_threads <= available ? SPIN_TURNS : 0};
    for (int32_t i = 0; i < n_threads; i++) {
        atomic_init(&runs[i].word, 0);
    }
    for (int32_t i = 1; i < n_threads; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i};
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0) {
            pool_destroy(pool);
            return NULL;
        }
        pool->n_started++;
    }
    return pool;
}

void pool_destroy(struct pool *pool)
{
    if (!pool) {
        return;
    }
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->job, 1);
    futex_wake(&pool->job, pool->n_threads);
    for (int32_t i = 1; i <= pool->n_started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    free(pool->workers);
    free(pool->runs);
    free(pool);
}

int32_t pool_n_threads(const struct pool *pool)
{
    return pool->n_threads;
}

/* The owner also spins before it sleeps. */
static void wait_done(struct pool *pool, uint32_t n_items)
{
    for (int32_t i = 0; i < pool->spin_turns; i++) {
        if (atomic_load(&pool->n_done) == n_items) {
            return;
        }
        relax();
    }
    atomic_store(&pool->owner_waits_for, n_items);
    for (uint32_t done; (done = atomic_load(&pool->n_done)) != n_items;) {
        futex_wait(&pool->n_done, done);
    }
    atomic_store(&pool->owner_waits_for, 0);
}

/* Runs items [first, first + n_items) as one job. */
static void run_job(struct pool *pool, int32_t first, int32_t n_items, item_fn *fn, void *arg)
{
    uint32_t job = atomic_load_explicit(&pool->job, memory_order_relaxed) + 1;
    atomic_store_explicit(&pool->fn, (uintptr_t)fn, memory_order_relaxed);
    atomic_store_explicit(&pool->arg, (uintptr_t)arg, memory_order_relaxed);
    atomic_store_explicit(&pool->first, first, memory_order_relaxed);
    atomic_store(&pool->n_done, 0);
    for (int32_t i = 0; i < pool->n_threads; i++) {
        uint64_t begin = (uint64_t)n_items * i / pool->n_threads;
        uint64_t end = (uint64_t)n_items * (i + 1) / pool->n_threads;
        atomic_store_explicit(&pool->runs[i].word,
                              (uint64_t)(job & 0xFFFFFF) << 2 * ITEM_BITS | end << ITEM_BITS |
                                  begin,
                              memory_order_release);
    }
    atomic_store(&pool->job, job);
    if (atomic_load(&pool->n_asleep) > 0) {
        futex_wake(&pool->job, pool->n_threads);
    }
    work(pool, job, 0);
    wait_done(pool, (uint32_t)n_items);
}

/* The caller works as thread 0 and returns when all items are done. */
void pool_run(struct pool *pool, int32_t n_items, item_fn *fn, void *arg)
{
    if (pool->n_threads == 1 || n_items <= 1) {
        for (int32_t i = 0; i < n_items; i++) {
            fn(arg, i, 0);
        }
        return;
    }
    // There is almost always only one iteration.
    for (int32_t first = 0; first < n_items; first += MAX_ITEMS) {
        int32_t rest = n_items - first;
        run_job(pool, first, lesser(rest, MAX_ITEMS), fn, arg);
    }
}
