// SPDX-License-Identifier: Apache-2.0
/* Writes lines to a descriptor from a thread of its own, so that nobody else ever waits for whoever
 * reads them. Lines wait in memory, up to a bound. What does not fit, or cannot be written because
 * a disk is full, is counted as lost.
 * Thread: any, unless said otherwise. */
#ifndef SLUICE_BASE_LINE_WRITER_H
#define SLUICE_BASE_LINE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct line_writer;

/* name: of the thread, at most 15 bytes. told: given how many lines were lost since the last time,
 * it makes the line that says so, which goes out as soon as anything can be written again; NULL:
 * nothing is said. NULL is returned when there is no thread to be had. */
struct line_writer *line_writer_open(int fd, const char *name, size_t max_waiting_bytes,
                                     size_t (*told)(uint64_t n_lost, char *line, size_t n_bytes));

/* Takes whole lines. Never waits. */
void line_writer_put(struct line_writer *w, const char *lines, size_t n_bytes);

/* Lines lost so far. */
uint64_t line_writer_lost(struct line_writer *w);

/* Waits until all is out, or timeout_ms; true if it is. After the last put. A writer that is stuck
 * keeps its memory. */
bool line_writer_close(struct line_writer *w, int timeout_ms);

#endif
