// SPDX-License-Identifier: Apache-2.0
/* Two buffers that change roles: callers fill one while the thread writes the other. */
#include "engine/base/line_writer.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/base/write.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct line_writer {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool stops, ended;
    int fd;
    size_t max_bytes, n_filling;
    char *filling, *writing;
    uint64_t n_lost, n_reported;
    size_t (*format_lost)(uint64_t n_lost, char *line, size_t n_bytes);
};

static uint64_t count_lines(const char *text, size_t n_bytes)
{
    uint64_t n = 0;
    const char *end = text + n_bytes;
    while ((text = memchr(text, '\n', (size_t)(end - text)))) {
        text++;
        n++;
    }
    return n;
}

/* If the message cannot be written, the next attempt reports the larger number. */
static void tell_lost(struct line_writer *w, uint64_t n_lost)
{
    char line[256];
    size_t n = w->format_lost ? w->format_lost(n_lost - w->n_reported, line, sizeof line) : 0;
    if (n == 0 || write_all(w->fd, line, n) == 0) {
        w->n_reported = n_lost;
    }
}

/* Called with the lock held, and returns with it held. */
static void write_batch(struct line_writer *w)
{
    char *full = w->filling;
    size_t n_bytes = w->n_filling;
    w->filling = w->writing;
    w->writing = full;
    w->n_filling = 0;
    pthread_mutex_unlock(&w->lock);
    size_t n_left = write_all(w->fd, full, n_bytes);
    uint64_t n_failed = count_lines(full + n_bytes - n_left, n_left);
    pthread_mutex_lock(&w->lock);
    w->n_lost += n_failed;
    uint64_t n_lost = w->n_lost;
    if (n_failed == 0 && n_lost > w->n_reported) {
        pthread_mutex_unlock(&w->lock);
        tell_lost(w, n_lost);
        pthread_mutex_lock(&w->lock);
    }
}

/* The thread ends once line_writer_close has asked it to and all lines are written. */
static void *writer_main(void *arg)
{
    struct line_writer *w = arg;
    thread_name("log");
    pthread_mutex_lock(&w->lock);
    while (!w->stops || w->n_filling > 0) {
        if (w->n_filling > 0) {
            write_batch(w);
        } else {
            pthread_cond_wait(&w->work, &w->lock);
        }
    }
    w->ended = true;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void release(struct line_writer *w)
{
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->done);
    free(w->filling);
    free(w->writing);
    free(w);
}

/* `format_lost` formats the line that reports lost lines; the writer thread calls it. */
struct line_writer *line_writer_open(int fd, const char *name, size_t max_waiting_bytes,
                                     size_t (*format_lost)(uint64_t n_lost, char *line,
                                                           size_t n_bytes))
{
    struct line_writer *w = xcalloc(1, sizeof *w);
    w->fd = fd;
    w->max_bytes = max_waiting_bytes;
    w->format_lost = format_lost;
    w->filling = xmalloc(max_waiting_bytes);
    w->writing = xmalloc(max_waiting_bytes);
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->work, &monotonic);
    pthread_cond_init(&w->done, &monotonic);
    pthread_condattr_destroy(&monotonic);

    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // other threads handle signals
    pthread_t thread;
    bool runs = pthread_create(&thread, NULL, writer_main, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!runs) {
        release(w);
        return NULL;
    }
    pthread_setname_np(thread, name);
    pthread_detach(thread); // it may be blocked in a write when the process ends
    return w;
}

/* A line that does not fit is dropped whole, and counted. */
void line_writer_put(struct line_writer *w, const char *lines, size_t n_bytes)
{
    pthread_mutex_lock(&w->lock);
    if (n_bytes <= w->max_bytes - w->n_filling) {
        memcpy(w->filling + w->n_filling, lines, n_bytes);
        w->n_filling += n_bytes;
        pthread_cond_signal(&w->work);
    } else {
        w->n_lost += count_lines(lines, n_bytes);
    }
    pthread_mutex_unlock(&w->lock);
}

uint64_t line_writer_lost(struct line_writer *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t n = w->n_lost;
    pthread_mutex_unlock(&w->lock);
    return n;
}

/* Returns false if the thread could not finish in time. The writer then keeps its memory, because
 * the thread may still write. */
bool line_writer_close(struct line_writer *w, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&w->lock);
    w->stops = true;
    pthread_cond_signal(&w->work);
    while (!w->ended && pthread_cond_timedwait(&w->done, &w->lock, &until) == 0) {
    }
    bool ended = w->ended;
    pthread_mutex_unlock(&w->lock);
    if (ended) {
        release(w);
    }
    return ended;
}
