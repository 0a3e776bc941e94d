// SPDX-License-Identifier: Apache-2.0
/* How much more memory this process may use: the machine's free memory, within the limits of its
 * cgroups (both versions, its own and their parents) and of its address space. Cached files, such
 * as the checkpoint, can be evicted and count as free.
 * Thread: any. */
#ifndef SLUICE_CPU_ROOM_H
#define SLUICE_CPU_ROOM_H

#include <stddef.h>

/* `root` is prepended to /proc and /sys: "" except in tests. SIZE_MAX: unknown. */
size_t cpu_room(const char *root);

/* Resident bytes that are not backed by files. */
size_t cpu_resident(const char *root);

#endif
