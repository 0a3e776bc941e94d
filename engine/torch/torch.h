// SPDX-License-Identifier: Apache-2.0
/* A state dict as torch.save writes it: a zip archive with a pickle that describes the tensors, and
 * one file for each storage. The pickle is read as data (pickle.h); nothing in it is executed.
 * Every offset, shape and size is checked at open. Tensors point into the caller's map, except
 * those whose elements do not lie in order, which are copied.
 * Thread: open and close one owner; lookups any. */
#ifndef SLUICE_ENGINE_TORCH_TORCH_H
#define SLUICE_ENGINE_TORCH_TORCH_H

#include "engine/base/file.h"
#include "engine/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { TORCH_MAX_DIMS = 8 };

struct torch_tensor {
    char *name;
    const char *dtype_name; // as in safetensors files: "BF16"
    int32_t n_dims;
    int64_t dims[TORCH_MAX_DIMS];
    const unsigned char *data;
    size_t n_bytes;
};

struct torch_file;

/* `path` is for messages; the map must outlive *out. */
enum status torch_open(const struct file_map *map, const char *path, struct torch_file **out,
                       struct err *err);
void torch_close(struct torch_file *f); // accepts NULL

size_t torch_n_tensors(const struct torch_file *f);
const struct torch_tensor *torch_tensor_at(const struct torch_file *f, size_t i);

#endif
