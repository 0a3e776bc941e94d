// SPDX-License-Identifier: Apache-2.0
/* Names of threads, for who looks at a process with top -H, gdb or perf. The main thread, which
 * runs the server's loop, keeps the program's. Thread: any. */
#ifndef SLUICE_BASE_THREAD_H
#define SLUICE_BASE_THREAD_H

#include "engine/base/status.h"

/* Names the calling thread; the system cuts the name behind 15 bytes. */
void thread_name(const char *fmt, ...) PRINTF_LIKE(1, 2);

#endif
