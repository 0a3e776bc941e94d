// SPDX-License-Identifier: Apache-2.0
/* A mapped checkpoint: safetensors files of a Hugging Face folder, PyTorch's files where there are
 * none, or a GGUF file, whose tensors appear under the names that such a folder would use. Every
 * offset, shape and size is checked at open; tensors point into the maps, or to copies, and live
 * until checkpoint_close.
 * Thread: open and close one owner; lookups any. */
#ifndef SLUICE_ENGINE_MODEL_CHECKPOINT_H
#define SLUICE_ENGINE_MODEL_CHECKPOINT_H

#include "engine/device/backend.h"

enum { CHECKPOINT_MAX_DIMS = 8 };

struct checkpoint_tensor {
    const char *name;
    const char *file;    // for messages
    char dtype_name[16]; // as written in the file
    bool dtype_known;    // false: the dtype is unsupported
    enum dtype dtype;
    // NULL: not quantised in blocks; otherwise dtype has no meaning.
    const struct block_format *blocks;
    int32_t n_dims;
    int64_t dims[CHECKPOINT_MAX_DIMS];
    const unsigned char *data;
    size_t n_bytes;
};

struct checkpoint;

/* Checks that the files exist and that checkpoint_open accepts them. It reads their headers only,
 * so it is quick enough to be done before a server listens. */
enum status checkpoint_check(const char *dir, struct err *err);

/* Opens a GGUF file, or a folder: model.safetensors if there is one; otherwise the shards of
 * model.safetensors.index.json; without an index, every *.safetensors; without these,
 * pytorch_model.bin, its shards, or every pytorch_model*.bin. */
enum status checkpoint_open(const char *dir, struct checkpoint **out, struct err *err);
/* Opens only this file of the folder. */
enum status checkpoint_open_file(const char *dir, const char *name, struct checkpoint **out,
                                 struct err *err);
void checkpoint_close(struct checkpoint *ck); // accepts NULL

/* Where a tensor should be, for messages: the path of the index, of the only file, or of the
 * folder. */
const char *checkpoint_where(const struct checkpoint *ck);

const char *checkpoint_dir(const struct checkpoint *ck);

const struct checkpoint_tensor *checkpoint_tensors(const struct checkpoint *ck, size_t *n);

/* Iterates over the checkpoint's files, each mapped as a whole; false after the last one. */
struct checkpoint_file {
    const char *name; // without the folder
    const unsigned char *data;
    size_t n_bytes;
};
bool checkpoint_file(const struct checkpoint *ck, size_t i, struct checkpoint_file *out);

/* NULL if there is none. */
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *ck, const char *name);

#endif
