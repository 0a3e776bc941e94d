// SPDX-License-Identifier: Apache-2.0
/* Whole files, and read-only maps. Thread: any. */
#ifndef SLUICE_BASE_FILE_H
#define SLUICE_BASE_FILE_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Reads a file of at most max_bytes. *data is NUL-terminated; the caller frees it. */
enum status file_read(const char *path, size_t max_bytes, char **data, size_t *n_bytes,
                      struct err *err);

bool file_exists(const char *path); // true if it exists and can be read

/* True only if the file does not exist: a file that may exist but cannot be read is not absent. */
bool file_is_absent(const char *path);

struct file_map {
    const unsigned char *data;
    size_t n_bytes;
};

/* Maps a file for reading. The map stays valid until file_unmap. */
enum status file_map_open(const char *path, struct file_map *map, struct err *err);
void file_unmap(struct file_map *map); // accepts a zeroed struct

/* After this call, truncating a mapped file ends the program with status 1 and a message that names
 * the file, instead of by a signal. This is the one place below main that exits, because a signal
 * handler has no caller to return an error to. Call it in main, before any map. */
void file_maps_explain(void);

#endif
