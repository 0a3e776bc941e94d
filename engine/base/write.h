// SPDX-License-Identifier: Apache-2.0
/* Writes a whole text to a descriptor: without a time limit, for threads that may wait, and with
 * one.
 * Thread: any. */
#ifndef SLUICE_BASE_WRITE_H
#define SLUICE_BASE_WRITE_H

#include <stddef.h>

/* Writes the text, however long that takes; returns the number of bytes that could not be
 * written. */
size_t write_all(int fd, const char *text, size_t n_bytes);

/* The same with a limit on each wait; the rest is then dropped. Safe in a signal handler. */
void write_bounded(int fd, const char *text, size_t n_bytes, int patience_ms);

/* Writes the message that says why the process ends to standard error, immediately and ahead of
 * queued log lines. Gives up after half a second if nobody reads. Safe in a signal handler. */
void write_last(const char *text);

#endif
