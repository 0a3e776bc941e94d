// SPDX-License-Identifier: Apache-2.0
/* Which files of a folder are the model's weights, and the tensors of each kind of file. Private to
 * engine/model/checkpoint*.c.
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_MODEL_CHECKPOINT_FILES_H
#define SLUICE_ENGINE_MODEL_CHECKPOINT_FILES_H

#include "engine/base/file.h"
#include "engine/model/checkpoint.h"
#include "engine/torch/torch.h"

#include <limits.h>

struct checkpoint_list {
    struct checkpoint_tensor *v;
    size_t n, cap;
};

/* The list owns the name's memory from now on. */
void checkpoint_list_add(struct checkpoint_list *list, const struct checkpoint_tensor *t);
void checkpoint_list_free(struct checkpoint_list *list);

/* Sets dtype, dtype_known and dtype_name by a name of safetensors' types; *bits is the size of an
 * element. False if there is no such type. */
bool checkpoint_set_dtype(struct checkpoint_tensor *t, const char *name, size_t *bits);

struct shard {
    char *path, *name;
    struct file_map map;
    struct torch_file *torch; // NULL: a safetensors file
};

struct shards {
    struct shard *v;
    size_t n;
};

/* Names the files of a folder; `index` becomes the path of the index, or "" if none is used.
 * Safetensors come first; where there are none, PyTorch's files. */
enum status shards_find(struct shards *s, const char *dir, char index[PATH_MAX], struct err *err);
enum status shards_add(struct shards *s, const char *dir, const char *name, struct err *err);
void shards_free(struct shards *s);
/* Logs which files are used, where that is not obvious. */
void shards_log(const struct shards *s, const char *dir);

/* Maps the file and adds its tensors to the list. */
enum status shard_open(struct shard *s, struct checkpoint_list *list, struct err *err);

/* For files of the two kinds; the first is mapped. */
enum status checkpoint_safetensors_read(const struct shard *s, struct checkpoint_list *list,
                                        struct err *err);
enum status checkpoint_torch_read(struct shard *s, struct checkpoint_list *list, struct err *err);

#endif
