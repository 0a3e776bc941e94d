// SPDX-License-Identifier: Apache-2.0
/* Whole files and read-only maps.
 * Thread: any. */
#ifndef SLUICE_BASE_FILE_H
#define SLUICE_BASE_FILE_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Reads a file of at most max_bytes; *data is the caller's to free and has a NUL behind it. */
enum status file_read(const char *path, size_t max_bytes, char **data, size_t *n_bytes,
                      struct err *err);

bool file_exists(const char *path);

struct file_map {
    const unsigned char *data;
    size_t n_bytes;
};

/* Maps a file for reading. The map stays valid until file_unmap. */
enum status file_map_open(const char *path, struct file_map *map, struct err *err);
void file_unmap(struct file_map *map); // accepts a zeroed struct

/* From here on a program whose mapped file is cut under it ends with a sentence that names the
 * file, and 1, instead of with a signal: nothing below main may exit but this handler, which has no
 * caller. By a program's main, before any map. */
void file_maps_explain(void);

#endif
