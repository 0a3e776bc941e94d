// SPDX-License-Identifier: Apache-2.0
/* A file that holds room on the disk for when nothing else is left.
 * Thread: one at a time. */
#ifndef SLUICE_SERVER_STORE_RESERVE_H
#define SLUICE_SERVER_STORE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

struct reserve {
    char *path;
    int64_t bytes, held_bytes; // what it is to hold, and holds
};

void reserve_init(struct reserve *r, const char *path, int64_t bytes);
void reserve_deinit(struct reserve *r); // the file stays

/* Takes as much as there is room for, and never less than it has. Whether it holds all. */
bool reserve_take(struct reserve *r);
void reserve_give(struct reserve *r);

#endif
