// SPDX-License-Identifier: Apache-2.0
/* A checkpoint, mapped: safetensors files of a Hugging Face folder, or a GGUF file, whose tensors
 * have the names here that such a folder's would have. Every offset, shape and size is checked when
 * it is opened; tensors point into the maps and live until checkpoint_close. Thread: open and close
 * one owner; lookups any. */
#ifndef SLUICE_ENGINE_MODEL_CHECKPOINT_H
#define SLUICE_ENGINE_MODEL_CHECKPOINT_H

#include "engine/device/backend.h"

enum { CHECKPOINT_MAX_DIMS = 8 };

struct checkpoint_tensor {
    const char *name;
    const char *file;    // for messages
    char dtype_name[16]; // as the file has it
    bool dtype_known;    // false: a kind that we cannot compute with
    enum dtype dtype;
    const struct block_format *blocks; // NULL: it is not stored in blocks; else dtype says nothing
    int32_t n_dims;
    int64_t dims[CHECKPOINT_MAX_DIMS];
    const unsigned char *data;
    size_t n_bytes;
};

struct checkpoint;

/* Whether the files are there that checkpoint_open would open; they are not read. */
enum status checkpoint_check(const char *dir, struct err *err);

/* A GGUF file, or of a folder model.safetensors, whatever lies beside it; without that
 * model.safetensors.index.json's shards; without an index every *.safetensors. */
enum status checkpoint_open(const char *dir, struct checkpoint **out, struct err *err);
void checkpoint_close(struct checkpoint *ck); // accepts NULL

/* The index, the only file, or the folder: where a tensor should be, for messages. */
const char *checkpoint_where(const struct checkpoint *ck);

const char *checkpoint_dir(const struct checkpoint *ck);

const struct checkpoint_tensor *checkpoint_tensors(const struct checkpoint *ck, size_t *n); // all

/* Its files one after the other, mapped whole; false behind the last. */
struct checkpoint_file {
    const char *name; // without the folder
    const unsigned char *data;
    size_t n_bytes;
};
bool checkpoint_file(const struct checkpoint *ck, size_t i, struct checkpoint_file *out);

/* Whether it is of a part that sees images or hears sound, by its name: nothing reads it. */
bool checkpoint_is_tower(const char *name);

/* NULL if there is none. */
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *ck, const char *name);

#endif
