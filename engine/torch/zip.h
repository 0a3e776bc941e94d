// SPDX-License-Identifier: Apache-2.0
/* The directory of a zip archive in memory (zip64 too). Its files must be stored, not compressed,
 * so that they can be used where they are. Every size and offset is checked at open.
 * Thread: open and close one owner; lookups any. */
#ifndef SLUICE_ENGINE_TORCH_ZIP_H
#define SLUICE_ENGINE_TORCH_ZIP_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct zip_file {
    const char *name; // not NUL-terminated
    size_t name_bytes;
    const unsigned char *data;
    size_t n_bytes;
};

/* In the order of their names. Names and data point into the archive. */
struct zip {
    struct zip_file *files;
    size_t n_files;
};

/* True if the bytes start like an archive. */
bool zip_is(const unsigned char *data, size_t n_bytes);

/* `path` is for messages. zip_close also after a failure. */
enum status zip_open(const unsigned char *data, size_t n_bytes, const char *path, struct zip *out,
                     struct err *err);
void zip_close(struct zip *z);

/* NULL if there is none. */
const struct zip_file *zip_find(const struct zip *z, const char *name, size_t name_bytes);

#endif
