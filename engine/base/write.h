// SPDX-License-Identifier: Apache-2.0
/* Writing to a descriptor whole: without a bound on time, for threads that may wait, and with one.
 * Thread: any. */
#ifndef SLUICE_BASE_WRITE_H
#define SLUICE_BASE_WRITE_H

#include <stddef.h>

/* Writes the text, however long that takes; returns how many bytes could not be written. */
size_t write_all(int fd, const char *text, size_t n_bytes);

/* The same with a bound on each wait; what is left then is dropped. Safe in a signal handler. */
void write_bounded(int fd, const char *text, size_t n_bytes, int patience_ms);

/* For what must be seen: why the process ends. Writes to standard error now, past log lines that
 * wait, and gives up after half a second if nobody reads. Safe in a signal handler. */
void write_last(const char *text);

#endif
