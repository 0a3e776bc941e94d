// SPDX-License-Identifier: Apache-2.0
/* Log lines. Who writes them changes when the log's thread starts and ends; `owner` says who does,
 * under owner_lock. */
#include "engine/base/log.h"
#include "engine/base/line_writer.h"
#include "engine/base/write.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WAITING_BYTES = 256 << 10, MAX_LINE_BYTES = 2048, LAST_PATIENCE_MS = 500 };

static _Atomic int log_level = LOG_INFO;
static _Thread_local bool muted;

/* Who writes a line: its caller, its caller with a bounded wait, or the writer thread. The lock
 * keeps the writer alive while a line is passed to it; nothing blocks while holding it. */
enum line_owner { CALLERS, CALLERS_BRIEFLY, WRITERS };
static pthread_mutex_t owner_lock = PTHREAD_MUTEX_INITIALIZER;
static enum line_owner owner;
static struct line_writer *writer;
static uint64_t lost_before; // lines lost by writers that have been closed

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load_explicit(&log_level, memory_order_relaxed);
}

void log_mute(bool mute)
{
    muted = mute;
}

/* Time in UTC with milliseconds, then the level. */
static size_t begin_line(char line[MAX_LINE_BYTES], enum log_level level)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm tm;
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, MAX_LINE_BYTES, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, MAX_LINE_BYTES - n, ".%03ldZ %s ", now.tv_nsec / 1000000,
                          names[level]);
    return n;
}

/* The line that reports how many were lost. */
static size_t lost_line(uint64_t n_lost, char *line, size_t n_bytes)
{
    char text[MAX_LINE_BYTES];
    size_t n = begin_line(text, LOG_WARN);
    n += (size_t)snprintf(text + n, sizeof text - n,
                          "%llu lines of this log were lost: they came "
                          "faster than they could be written\n",
                          (unsigned long long)n_lost);
    if (n > n_bytes) {
        return 0;
    }
    memcpy(line, text, n);
    return n;
}

void log_open(void)
{
    pthread_mutex_lock(&owner_lock);
    if (!writer) {
        writer = line_writer_open(STDERR_FILENO, "log", MAX_WAITING_BYTES, lost_line);
    }
    owner = writer ? WRITERS : CALLERS_BRIEFLY;
    pthread_mutex_unlock(&owner_lock);
}

/* Later lines are written by their callers, who wait only briefly. */
void log_close(int timeout_ms)
{
    pthread_mutex_lock(&owner_lock);
    struct line_writer *w = writer;
    writer = NULL;
    owner = CALLERS_BRIEFLY;
    if (w) {
        lost_before += line_writer_lost(w);
    }
    pthread_mutex_unlock(&owner_lock);
    if (w) {
        line_writer_close(w, timeout_ms);
    }
}

uint64_t log_lost(void)
{
    pthread_mutex_lock(&owner_lock);
    uint64_t n = lost_before + (writer ? line_writer_lost(writer) : 0);
    pthread_mutex_unlock(&owner_lock);
    return n;
}

/* Texts of clients, such as names, must not look like lines of their own or reach a terminal as
 * commands. */
static void blank_controls(char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) {
            text[i] = ' ';
        }
    }
}

/* A line is formatted before the lock is taken. Text that does not fit is cut, but the
 * line end is kept. */
void log_line(enum log_level level, const char *fmt, ...)
{
    if (level < log_get_level() || muted) {
        return;
    }
    char line[MAX_LINE_BYTES];
    size_t n = begin_line(line, level), room = sizeof line - n - 1;
    va_list args;
    va_start(args, fmt);
    int m = vsnprintf(line + n, room, fmt, args);
    va_end(args);
    if (m > 0) {
        size_t n_text = (size_t)m < room ? (size_t)m : room - 1;
        blank_controls(line + n, n_text);
        n += n_text;
    }
    line[n++] = '\n';

    pthread_mutex_lock(&owner_lock);
    enum line_owner whose = owner;
    if (whose == WRITERS) {
        line_writer_put(writer, line, n);
    }
    pthread_mutex_unlock(&owner_lock);
    if (whose == CALLERS) {
        write_all(STDERR_FILENO, line, n);
    } else if (whose == CALLERS_BRIEFLY) {
        write_bounded(STDERR_FILENO, line, n, LAST_PATIENCE_MS);
    }
}
