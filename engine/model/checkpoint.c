// SPDX-License-Identifier: Apache-2.0
/* Checkpoints: tensors by name from safetensors files, PyTorch's files or a GGUF file,
 * mapped into memory. All sizes, offsets and names in a file are checked before they are used. */
#include "engine/model/checkpoint.h"

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/model/checkpoint_files.h"
#include "engine/model/checkpoint_gguf.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The files stay mapped, and tensors point into them. A hash table of indices finds a tensor by its
 * name. */
struct checkpoint {
    char *dir;
    char *where;       // see checkpoint_where
    struct gguf *gguf; // NULL: files of a folder
    struct shards shards;
    struct checkpoint_list tensors;
    int32_t *table; // hash table over names, open addressing; -1: empty
    size_t table_size;
};

/* ---- names -------------------------------------------------------------------------------- */

static size_t slot_of(const struct checkpoint *ck, const char *name)
{
    size_t i = hash_bytes(name, strlen(name), 1) & (ck->table_size - 1);
    while (ck->table[i] >= 0 && strcmp(ck->tensors.v[ck->table[i]].name, name) != 0) {
        i = (i + 1) & (ck->table_size - 1);
    }
    return i;
}

/* An open-addressing table from name to index, at most half full. The same name in two files is an
 * error, because it would be unclear which tensor is meant. */
static enum status index_names(struct checkpoint *ck, struct err *err)
{
    ck->table_size = 64;
    while (ck->table_size < ck->tensors.n * 2) {
        ck->table_size *= 2;
    }
    ck->table = xmalloc(ck->table_size * sizeof *ck->table);
    memset(ck->table, 0xFF, ck->table_size * sizeof *ck->table);
    for (size_t i = 0; i < ck->tensors.n; i++) {
        size_t slot = slot_of(ck, ck->tensors.v[i].name);
        if (ck->table[slot] >= 0) {
            return err_set(err, ERR_FORMAT, "%s: tensor %s occurs twice", ck->tensors.v[i].file,
                           ck->tensors.v[i].name);
        }
        ck->table[slot] = (int32_t)i;
    }
    return OK;
}

/* All files of the index must exist. */
static enum status check_names(const char *dir, struct err *err)
{
    struct shards shards = {0};
    char index[PATH_MAX];
    enum status st = shards_find(&shards, dir, index, err);
    for (size_t i = 0; i < shards.n && st == OK; i++) {
        if (!file_exists(shards.v[i].path)) {
            st = err_set(err, ERR_IO,
                         "%.200s: %.100s is missing, although the index names it; was a "
                         "download cut short?",
                         dir, shards.v[i].name);
        }
    }
    shards_free(&shards);
    return st;
}

/* file: the only one to open; NULL: all that the folder's model consists of. */
static enum status open_folder(struct checkpoint *ck, const char *dir, const char *file,
                               struct err *err)
{
    char index[PATH_MAX] = "";
    enum status st =
        file ? shards_add(&ck->shards, dir, file, err) : shards_find(&ck->shards, dir, index, err);
    for (size_t i = 0; i < ck->shards.n && st == OK; i++) {
        st = shard_open(&ck->shards.v[i], &ck->tensors, err);
    }
    const char *files = ck->shards.n == 1 ? ck->shards.v[0].path : dir;
    ck->where = xstrdup(st == OK && index[0] ? index : files);
    return st;
}

static enum status open_gguf(struct checkpoint *ck, const char *path, struct err *err)
{
    ck->where = xstrdup(path);
    TRY(gguf_open(path, &ck->gguf, err));
    return checkpoint_gguf_read(ck->gguf, &ck->tensors.v, &ck->tensors.n, err);
}

/* Opens a folder or a GGUF file; both give the same kind of list of tensors. */
static enum status open_any(const char *dir, const char *file, struct checkpoint **out,
                            struct err *err)
{
    bool is_gguf;
    TRY(gguf_is(dir, &is_gguf, err));
    struct checkpoint *ck = xcalloc(1, sizeof *ck);
    ck->dir = xstrdup(dir);
    enum status st = is_gguf ? open_gguf(ck, dir, err) : open_folder(ck, dir, file, err);
    if (st == OK) {
        st = index_names(ck, err);
    }
    if (st != OK) {
        checkpoint_close(ck);
        return st;
    }
    *out = ck;
    return OK;
}

enum status checkpoint_check(const char *dir, struct err *err)
{
    struct checkpoint *ck;
    bool is_gguf;
    TRY(gguf_is(dir, &is_gguf, err));
    if (!is_gguf) {
        TRY(check_names(dir, err));
    }
    TRY(open_any(dir, NULL, &ck, err));
    checkpoint_close(ck);
    return OK;
}

enum status checkpoint_open(const char *dir, struct checkpoint **out, struct err *err)
{
    TRY(open_any(dir, NULL, out, err));
    shards_log(&(*out)->shards, dir);
    return OK;
}

enum status checkpoint_open_file(const char *dir, const char *name, struct checkpoint **out,
                                 struct err *err)
{
    return open_any(dir, name, out, err);
}

void checkpoint_close(struct checkpoint *ck)
{
    if (!ck) {
        return;
    }
    checkpoint_list_free(&ck->tensors);
    shards_free(&ck->shards);
    gguf_close(ck->gguf);
    free(ck->dir);
    free(ck->where);
    free(ck->table);
    free(ck);
}

const char *checkpoint_where(const struct checkpoint *ck)
{
    return ck->where;
}

const char *checkpoint_dir(const struct checkpoint *ck)
{
    return ck->dir;
}

const struct checkpoint_tensor *checkpoint_tensors(const struct checkpoint *ck, size_t *n)
{
    *n = ck->tensors.n;
    return ck->tensors.v;
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *ck, const char *name)
{
    int32_t i = ck->table[slot_of(ck, name)];
    return i >= 0 ? &ck->tensors.v[i] : NULL;
}

bool checkpoint_file(const struct checkpoint *ck, size_t i, struct checkpoint_file *out)
{
    struct file_map map;
    if (ck->gguf && i < gguf_n_files(ck->gguf)) {
        const char *path = gguf_file(ck->gguf, i, &map), *slash = strrchr(path, '/');
        *out = (struct checkpoint_file){slash ? slash + 1 : path, map.data, map.n_bytes};
        return true;
    }
    if (i >= ck->shards.n) {
        return false;
    }
    const struct shard *s = &ck->shards.v[i];
    *out = (struct checkpoint_file){s->name, s->map.data, s->map.n_bytes};
    return true;
}
