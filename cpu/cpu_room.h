// SPDX-License-Identifier: Apache-2.0
/* How much memory this process may still take: what the machine has, within the limits of its
 * control groups (of both versions, at the process's own path and above it) and of its address
 * space. Cached files, such as the checkpoint, give way and count as free. Thread: any. */
#ifndef SLUICE_CPU_ROOM_H
#define SLUICE_CPU_ROOM_H

#include <stddef.h>

/* `root` stands before /proc and /sys: "" but for tests. SIZE_MAX: nobody knows. */
size_t cpu_room(const char *root);

/* Bytes of memory of our own that lie in RAM. */
size_t cpu_resident(const char *root);

#endif
