// SPDX-License-Identifier: Apache-2.0
/* Writes lines to a descriptor from a thread of its own, so that no other thread waits for a slow
 * reader. Lines are queued in memory up to a limit; lines that do not fit, or cannot be written
 * because a disk is full, are counted as lost.
 * Thread: any, unless stated otherwise. */
#ifndef SLUICE_BASE_LINE_WRITER_H
#define SLUICE_BASE_LINE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct line_writer;

/* name: the thread's name, at most 15 bytes. format_lost: formats the line that reports how many
 * lines were lost since the last report; that line is written as soon as writing works again. If
 * format_lost is NULL, losses are not reported. Returns NULL if no thread can be created. */
struct line_writer *line_writer_open(int fd, const char *name, size_t max_waiting_bytes,
                                     size_t (*format_lost)(uint64_t n_lost, char *line,
                                                           size_t n_bytes));

/* Queues whole lines. Never waits. */
void line_writer_put(struct line_writer *w, const char *lines, size_t n_bytes);

/* Lines lost so far. */
uint64_t line_writer_lost(struct line_writer *w);

/* Waits until everything is written, for at most timeout_ms; true if it is. Call it after the last
 * put. A writer that is stuck keeps its memory. */
bool line_writer_close(struct line_writer *w, int timeout_ms);

#endif
