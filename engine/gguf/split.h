// SPDX-License-Identifier: Apache-2.0
/* The files of one model: a single one, or NAME-00001-of-00005.gguf and those that follow it.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GGUF_SPLIT_H
#define SLUICE_ENGINE_GGUF_SPLIT_H

#include "engine/base/file.h"

struct split_file {
    char *path;
    struct file_map map;
    bool borrowed; // the map is another's
};

/* *files gets *n_files of them, mapped; both are set when it fails, too. ERR_INVALID names the
 * first file if `path` is another one. */
enum status split_open(const char *path, struct split_file **files, size_t *n_files,
                       struct err *err);
void split_close(struct split_file *files, size_t n_files);

#endif
