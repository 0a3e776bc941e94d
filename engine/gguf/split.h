// SPDX-License-Identifier: Apache-2.0
/* The files of one model: a single file, or NAME-00001-of-00005.gguf and its successors.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GGUF_SPLIT_H
#define SLUICE_ENGINE_GGUF_SPLIT_H

#include "engine/base/file.h"

struct split_file {
    char *path;
    struct file_map map;
    bool borrowed; // the caller owns the map
};

/* Maps *n_files files into *files; both are set even on failure. ERR_INVALID if `path` is not the
 * first file, which the message names. */
enum status split_open(const char *path, struct split_file **files, size_t *n_files,
                       struct err *err);
void split_close(struct split_file *files, size_t n_files);

#endif
