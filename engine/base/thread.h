// SPDX-License-Identifier: Apache-2.0
/* Thread names, shown by top -H, gdb and perf. The main thread, which runs the server's loop, keeps
 * the program's name.
 * Thread: any. */
#ifndef SLUICE_BASE_THREAD_H
#define SLUICE_BASE_THREAD_H

#include "engine/base/status.h"

/* Names the calling thread; the system cuts names after 15 bytes. */
void thread_name(const char *fmt, ...) PRINTF_LIKE(1, 2);

#endif
