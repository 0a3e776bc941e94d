// SPDX-License-Identifier: Apache-2.0
/* Log lines for the operator on standard error: "2026-01-02T03:04:05.678Z level message".
 *
 * A server calls log_open. From then on the log's own thread writes, and no other thread waits for
 * a slow reader. Lines are queued in memory up to a limit; lines that do not fit, or cannot be
 * written because a disk is full, are counted, and the count is logged as soon as writing works
 * again. Without log_open each caller writes its line immediately.
 * Thread: any. */
#ifndef SLUICE_BASE_LOG_H
#define SLUICE_BASE_LOG_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_set_level(enum log_level level);
enum log_level log_get_level(void);

void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

/* Drops the calling thread's lines while `mute` is set. Used for a dry run, because the real run
 * will log the same lines. */
void log_mute(bool mute);

/* Starts the writer thread. If none can be created, callers keep writing their own lines. */
void log_open(void);
/* Stops the writer once all lines are written, but after timeout_ms at the latest; lines that are
 * still queued then are lost. Later lines are written by their callers, with a bounded wait. */
void log_close(int timeout_ms);
/* Lines lost so far. */
uint64_t log_lost(void);

#endif
