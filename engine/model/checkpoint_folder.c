// SPDX-License-Identifier: Apache-2.0
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/model/checkpoint_files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_INDEX_BYTES = 64 << 20, // chosen: far above the largest index seen
    MAX_SHARDS = 10000,         // chosen: far above the largest number seen
};

/* The preferred kind comes first, as in transformers. */
enum { SAFETENSORS, TORCH, N_KINDS };

static const struct kind {
    const char *whole, *index; // the names of a single file, and of an index
    const char *begin, *end;   // without either, all files whose names begin and end so
} kinds[N_KINDS] = {
    [SAFETENSORS] = {"model.safetensors", "model.safetensors.index.json", "", ".safetensors"},
    [TORCH] = {"pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model", ".bin"},
};

/* Adds each file once, although the index names a file for each tensor. A name with a slash is
 * refused, so that a downloaded index cannot open files outside its folder. */
enum status shards_add(struct shards *s, const char *dir, const char *name, struct err *err)
{
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->v[i].name, name) == 0) {
            return OK;
        }
    }
    if (s->n == MAX_SHARDS) {
        return err_set(err, ERR_LIMIT, "%s: more than %d shards", dir, MAX_SHARDS);
    }
    if (strchr(name, '/') || name[0] == '.') {
        return err_set(err, ERR_FORMAT, "%s: the index names a file outside the folder: %s", dir,
                       name);
    }
    s->v = xrealloc(s->v, (s->n + 1) * sizeof *s->v);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    s->v[s->n++] = (struct shard){.path = xstrdup(path), .name = xstrdup(name)};
    return OK;
}

/* Only file names are taken from the index; each file's header lists its tensors. */
static enum status shards_of_index(struct shards *s, const char *dir, const char *index,
                                   struct err *err)
{
    struct json *root;
    TRY(json_parse_file(index, MAX_INDEX_BYTES, &root, err));
    const struct json *map = json_get(root, "weight_map");
    enum status st = OK;
    if (!json_is(map, JSON_OBJECT)) {
        st = err_set(err, ERR_FORMAT, "%s: no weight_map", index);
    }
    for (const struct json *c = json_first(map); c && st == OK; c = json_next(c)) {
        const char *file = json_string(c);
        if (file) {
            st = shards_add(s, dir, file, err);
        } else {
            st = err_set(err, ERR_FORMAT, "%s: the file name given for %s is not a string", index,
                         json_key(c));
        }
    }
    json_free(root);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->name, ((const struct shard *)b)->name);
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static bool begins_with(const char *name, const char *begin)
{
    return strncmp(name, begin, strlen(begin)) == 0;
}

/* Files are sorted by name, so that messages and the order of loading do not depend on the file
 * system. */
static enum status shards_of_folder(struct shards *s, const char *dir, const struct kind *kind,
                                    struct err *err)
{
    DIR *d = opendir(dir);
    if (!d) {
        return err_set(err, ERR_IO, "%s: cannot be opened as a folder", dir);
    }
    enum status st = OK;
    for (struct dirent *e; st == OK && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.' && begins_with(e->d_name, kind->begin) &&
            ends_with(e->d_name, kind->end)) {
            st = shards_add(s, dir, e->d_name, err);
        }
    }
    closedir(d);
    if (s->n > 0) {
        qsort(s->v, s->n, sizeof *s->v, by_name);
    }
    return st;
}

static bool folder_has(const char *dir, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
    return file_exists(path);
}

static enum status shards_of_kind(struct shards *s, const char *dir, const struct kind *kind,
                                  char index[PATH_MAX], struct err *err)
{
    char whole[PATH_MAX];
    const bool has_whole = folder_has(dir, kind->whole, whole);
    if (!has_whole && folder_has(dir, kind->index, index)) {
        return shards_of_index(s, dir, index, err);
    }
    index[0] = '\0';
    return has_whole ? shards_add(s, dir, kind->whole, err) : shards_of_folder(s, dir, kind, err);
}

static bool is_other_format(const char *name)
{
    return ends_with(name, ".gguf") || ends_with(name, ".pth") || ends_with(name, ".pt") ||
           (ends_with(name, ".bin") && strstr(name, "model"));
}

/* If the folder has weights in another format, the error names that format. */
static enum status say_no_weights(const char *dir, struct err *err)
{
    char other[NAME_MAX + 1] = "";
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (is_other_format(e->d_name)) {
            snprintf(other, sizeof other, "%s", e->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
    if (*other) {
        return err_set(err, ERR_IO,
                       "%.200s: no weights: there is no *.safetensors and no pytorch_model*.bin "
                       "file; %.100s is in a format that is not supported: convert it, or get the "
                       "model's safetensors files",
                       dir, other);
    }
    return err_set(err, ERR_IO,
                   "%.200s: no weights: there is no *.safetensors file; was a download cut "
                   "short? (--load-format dummy uses random weights, to measure speed)",
                   dir);
}

enum status shards_find(struct shards *s, const char *dir, char index[PATH_MAX], struct err *err)
{
    for (int i = 0; i < N_KINDS; i++) {
        TRY(shards_of_kind(s, dir, &kinds[i], index, err));
        if (s->n > 0 || index[0]) {
            return OK;
        }
    }
    return say_no_weights(dir, err);
}

void shards_log(const struct shards *s, const char *dir)
{
    char path[PATH_MAX];
    const struct kind *torch = &kinds[TORCH];
    if (s->n == 0) {
        return;
    }
    if (ends_with(s->v[0].name, torch->end)) {
        log_info("weights are read from PyTorch's files: %s%s", s->v[0].name,
                 s->n > 1 ? " and others" : "");
    } else if (folder_has(dir, torch->whole, path) || folder_has(dir, torch->index, path)) {
        log_info("weights are read from safetensors files; PyTorch's files in the same folder are "
                 "not used");
    }
}

enum status shard_open(struct shard *s, struct checkpoint_list *list, struct err *err)
{
    TRY(file_map_open(s->path, &s->map, err));
    if (ends_with(s->name, kinds[TORCH].end)) {
        return checkpoint_torch_read(s, list, err);
    }
    return checkpoint_safetensors_read(s, list, err);
}

void shards_free(struct shards *s)
{
    for (size_t i = 0; i < s->n; i++) {
        torch_close(s->v[i].torch);
        file_unmap(&s->v[i].map);
        free(s->v[i].path);
        free(s->v[i].name);
    }
    free(s->v);
    *s = (struct shards){0};
}
