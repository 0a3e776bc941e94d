// SPDX-License-Identifier: Apache-2.0
/* Lines for the operator on standard error: "2026-01-02T03:04:05.678Z level message".
 *
 * A program that serves calls log_open: from then on a thread of the log's own writes, and no other
 * thread ever waits for whoever reads the lines. They wait in memory, up to a bound; what does not
 * fit, or cannot be written because a disk is full, is counted, and the count is said as soon as
 * lines can be written again. Without log_open each line is written at once by its caller.
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

/* Drops the calling thread's lines until it says false: for a trial whose real run says them again.
 */
void log_mute(bool mute);

/* Starts the writer. Without a thread to be had, lines go on being written by their callers. */
void log_open(void);
/* Ends it after all lines are out, or after timeout_ms; what is left then is lost. Lines that come
 * later are written by their callers, with a bound on the wait. */
void log_close(int timeout_ms);
/* Lines lost so far. */
uint64_t log_lost(void);

#endif
