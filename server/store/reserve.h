// SPDX-License-Identifier: Apache-2.0
/* A file that reserves disk space for when the disk is full. Thread: one at a time. */
#ifndef SLUICE_SERVER_STORE_RESERVE_H
#define SLUICE_SERVER_STORE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

struct reserve {
    char *path;
    int64_t bytes, held_bytes; // the file's full and current size
};

void reserve_init(struct reserve *r, const char *path, int64_t bytes);
void reserve_deinit(struct reserve *r); // the file stays

/* Allocates as much as the disk allows; never shrinks the file. Returns whether it has its full
 * size. */
bool reserve_take(struct reserve *r);
void reserve_give(struct reserve *r);

#endif
