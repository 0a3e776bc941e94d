// SPDX-License-Identifier: Apache-2.0
/* Checkpoints: tensors by name from safetensors files or a GGUF file, mapped into memory. All
 * sizes, offsets and names in a file are checked before they are used. */
#include "engine/model/checkpoint.h"

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/json_scan.h"
#include "engine/base/mem.h"
#include "engine/model/checkpoint_gguf.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_HEADER_BYTES = 100 << 20, // safetensors' own limit
    MAX_INDEX_BYTES = 64 << 20,   // chosen: far above the largest index seen
    MAX_SHARDS = 10000,           // chosen: far above the largest number seen
};

struct shard {
    char *path, *name;
    struct file_map map;
};

/* The files stay mapped, and tensors point into them. A hash table of indices finds a tensor by its
 * name. */
struct checkpoint {
    char *dir;
    char *where;       // see checkpoint_where
    struct gguf *gguf; // NULL: safetensors files
    struct shard *shards;
    size_t n_shards;
    struct checkpoint_tensor *tensors;
    size_t n_tensors, cap;
    int32_t *table; // hash table over names, open addressing; -1: empty
    size_t table_size;
};

/* ---- the folder's files ------------------------------------------------------------------- */

/* Adds each file once, although the index names a file for each tensor. A name with a slash is
 * refused, so that a downloaded index cannot open files outside its folder. */
static enum status add_shard(struct checkpoint *ck, const char *dir, const char *name,
                             struct err *err)
{
    for (size_t i = 0; i < ck->n_shards; i++) {
        if (strcmp(ck->shards[i].name, name) == 0) {
            return OK;
        }
    }
    if (ck->n_shards == MAX_SHARDS) {
        return err_set(err, ERR_LIMIT, "%s: more than %d shards", dir, MAX_SHARDS);
    }
    if (strchr(name, '/') || name[0] == '.') {
        return err_set(err, ERR_FORMAT, "%s: the index names a file outside the folder: %s", dir,
                       name);
    }
    ck->shards = xrealloc(ck->shards, (ck->n_shards + 1) * sizeof *ck->shards);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck->shards[ck->n_shards++] =
        (struct shard){.path = xstrdup(path), .name = xstrdup(name), .map = {0}};
    return OK;
}

/* Only file names are taken from the index; each file's header lists its tensors. */
static enum status shards_of_index(struct checkpoint *ck, const char *dir, const char *index,
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
            st = add_shard(ck, dir, file, err);
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

/* If the folder has weights in another format, the error names that format. */
static enum status say_no_weights(const char *dir, const char *other, struct err *err)
{
    if (*other) {
        return err_set(
            err, ERR_IO,
            "%.200s: no weights: there is no *.safetensors file; %.100s is in a "
            "format that is not supported: convert it, or get the model's safetensors files",
            dir, other);
    }
    return err_set(err, ERR_IO,
                   "%.200s: no weights: there is no *.safetensors file; was a download cut "
                   "short? (--load-format dummy uses random weights, to measure speed)",
                   dir);
}

static bool is_other_format(const char *name)
{
    return ends_with(name, ".gguf") || ends_with(name, ".pth") || ends_with(name, ".pt") ||
           (ends_with(name, ".bin") && strstr(name, "model"));
}

/* Files are sorted by name, so that messages and the order of loading do not depend on the file
 * system. */
static enum status shards_of_folder(struct checkpoint *ck, const char *dir, struct err *err)
{
    DIR *d = opendir(dir);
    if (!d) {
        return err_set(err, ERR_IO, "%s: cannot be opened as a folder", dir);
    }
    enum status st = OK;
    char other[NAME_MAX + 1] = "";
    for (struct dirent *e; st == OK && (e = readdir(d)) != NULL;) {
        if (ends_with(e->d_name, ".safetensors") && e->d_name[0] != '.') {
            st = add_shard(ck, dir, e->d_name, err);
        } else if (is_other_format(e->d_name)) {
            snprintf(other, sizeof other, "%s", e->d_name);
        }
    }
    closedir(d);
    if (st == OK && ck->n_shards == 0) {
        st = say_no_weights(dir, other, err);
    }
    if (st == OK) {
        qsort(ck->shards, ck->n_shards, sizeof *ck->shards, by_name);
    }
    return st;
}

/* ---- one file's header -------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t bits;
    bool known;
    enum dtype dtype;
} dtype_rows[] = {
    {"F32", 32, true, DT_F32},     {"BF16", 16, true, DT_BF16},   {"F16", 16, true, DT_F16},
    {"U8", 8, true, DT_U8},        {"I32", 32, true, DT_I32},     {"I64", 64, true, DT_I64},
    {"F64", 64, false, DT_U8},     {"I16", 16, false, DT_U8},     {"I8", 8, true, DT_I8},
    {"BOOL", 8, false, DT_U8},     {"F8_E4M3", 8, true, DT_E4M3}, {"F8_E5M2", 8, false, DT_U8},
    {"U16", 16, false, DT_U8},     {"U32", 32, false, DT_U8},     {"U64", 64, false, DT_U8},
    {"F8_E8M0", 8, true, DT_E8M0},
};

static enum status bad(const struct shard *s, const char *tensor, const char *why, struct err *err)
{
    return err_set(err, ERR_FORMAT, "%s: tensor %s: %s", s->path, tensor, why);
}

/* A tensor's entry in the header of a file, while it is being read. */
struct entry {
    char dtype[16];
    int32_t n_dims;
    int64_t dims[CHECKPOINT_MAX_DIMS];
    int64_t begin, end;
    bool has_dtype, has_shape, has_offsets;
};

/* Reads an array of at most `max` integers >= 0; returns the count, or -1. */
static int32_t read_int_array(struct json_scan *sc, int64_t *v, int32_t max)
{
    if (json_scan_next(sc) != JSON_TOKEN_ARRAY) {
        return -1;
    }
    int32_t n = 0;
    for (;;) {
        enum json_token t = json_scan_next(sc);
        if (t == JSON_TOKEN_ARRAY_END) {
            return n;
        }
        if (t != JSON_TOKEN_NUMBER || n == max || !json_scan_int64(sc, &v[n]) || v[n] < 0) {
            return -1;
        }
        n++;
    }
}

/* Unknown members are skipped, as in the reference implementation. check_entry checks *e against
 * the file afterwards. */
static enum status read_entry(struct json_scan *sc, const struct shard *s, const char *name,
                              struct entry *e, struct err *err)
{
    *e = (struct entry){0};
    if (json_scan_next(sc) != JSON_TOKEN_OBJECT) {
        return bad(s, name, "its entry is not an object", err);
    }
    for (;;) {
        enum json_token t = json_scan_next(sc);
        if (t == JSON_TOKEN_OBJECT_END) {
            break;
        }
        if (t != JSON_TOKEN_KEY) {
            return bad(s, name, "its entry is malformed", err);
        }
        if (json_scan_is(sc, "dtype")) {
            if (json_scan_next(sc) != JSON_TOKEN_STRING || sc->text_bytes >= sizeof e->dtype) {
                return bad(s, name, "its dtype is malformed", err);
            }
            memcpy(e->dtype, sc->text, sc->text_bytes);
            e->has_dtype = true;
        } else if (json_scan_is(sc, "shape")) {
            e->n_dims = read_int_array(sc, e->dims, CHECKPOINT_MAX_DIMS);
            e->has_shape = e->n_dims >= 0;
        } else if (json_scan_is(sc, "data_offsets")) {
            int64_t offsets[2];
            e->has_offsets = read_int_array(sc, offsets, 2) == 2;
            e->begin = offsets[0];
            e->end = offsets[1];
        } else if (!json_scan_skip(sc)) {
            return bad(s, name, "its entry is malformed", err);
        }
    }
    if (!e->has_dtype || !e->has_shape || !e->has_offsets) {
        return bad(s, name, "dtype, shape or data_offsets is missing or malformed", err);
    }
    return OK;
}

/* Checks the bounds, and that the shape matches the number of bytes. */
static enum status check_entry(const struct shard *s, const char *name, const struct entry *e,
                               size_t data_bytes, struct checkpoint_tensor *t, struct err *err)
{
    size_t row = 0, n_rows = sizeof dtype_rows / sizeof dtype_rows[0];
    while (row < n_rows && strcmp(dtype_rows[row].name, e->dtype) != 0) {
        row++;
    }
    if (row == n_rows) {
        return bad(s, name, "its dtype is unknown", err);
    }
    size_t n = 1;
    for (int32_t i = 0; i < e->n_dims; i++) {
        if (!mem_mul(n, (size_t)e->dims[i], &n)) {
            return bad(s, name, "its shape is too large", err);
        }
    }
    size_t n_bytes;
    if (!mem_mul(n, dtype_rows[row].bits / 8, &n_bytes) || e->end < e->begin ||
        (size_t)e->end > data_bytes) {
        return bad(s, name, "its data lies outside the file (is the file cut short?)", err);
    }
    if ((size_t)(e->end - e->begin) != n_bytes) {
        return bad(s, name, "its shape does not agree with its data_offsets", err);
    }
    t->dtype = dtype_rows[row].dtype;
    t->dtype_known = dtype_rows[row].known;
    t->n_bytes = n_bytes;
    return OK;
}

static int by_data(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = a, *y = b;
    return x->data < y->data ? -1 : x->data > y->data;
}

/* Two tensors that share bytes are a sign of a broken or malicious file. */
static enum status check_overlap(const struct checkpoint *ck, size_t first, const struct shard *s,
                                 struct err *err)
{
    if (ck->n_tensors == first) {
        return OK;
    }
    qsort(ck->tensors + first, ck->n_tensors - first, sizeof *ck->tensors, by_data);
    for (size_t i = first + 1; i < ck->n_tensors; i++) {
        const struct checkpoint_tensor *before = &ck->tensors[i - 1], *t = &ck->tensors[i];
        if (before->n_bytes > 0 && t->n_bytes > 0 && before->data + before->n_bytes > t->data) {
            return bad(s, t->name, "its data overlaps another tensor's", err);
        }
    }
    return OK;
}

/* The header is scanned token by token instead of being parsed into a tree, because large
 * checkpoints have headers of several MB. Overlapping tensors are refused at the end. */
static enum status read_tensors(struct checkpoint *ck, const struct shard *s, const char *header,
                                size_t header_bytes, struct err *err)
{
    const unsigned char *data = s->map.data + 8 + header_bytes;
    size_t data_bytes = s->map.n_bytes - 8 - header_bytes, first = ck->n_tensors;
    struct json_scan sc;
    json_scan_init(&sc, header, header_bytes, 16);
    if (json_scan_next(&sc) != JSON_TOKEN_OBJECT) {
        return err_set(err, ERR_FORMAT, "%s: the safetensors header is not a JSON object", s->path);
    }
    for (;;) {
        enum json_token t = json_scan_next(&sc);
        if (t == JSON_TOKEN_OBJECT_END) {
            break;
        }
        if (t != JSON_TOKEN_KEY) {
            json_scan_error(&sc, err);
            return err_prefix(err, ERR_FORMAT, "%s: safetensors header", s->path);
        }
        if (json_scan_is(&sc, "__metadata__")) {
            json_scan_skip(&sc);
            continue;
        }
        struct buf name;
        buf_init(&name, 4096);
        json_scan_unescape(&sc, &name);
        struct entry e;
        struct checkpoint_tensor tensor = {.file = s->path};
        enum status st = name.failed || !name.data
                             ? err_set(err, ERR_FORMAT, "%s: a tensor name is too long", s->path)
                             : read_entry(&sc, s, name.data, &e, err);
        if (st == OK) {
            st = check_entry(s, name.data, &e, data_bytes, &tensor, err);
        }
        if (st != OK) {
            buf_deinit(&name);
            return st;
        }
        tensor.name = name.data; // the tensor owns the name's memory from now on
        tensor.n_dims = e.n_dims;
        memcpy(tensor.dims, e.dims, sizeof tensor.dims);
        memcpy(tensor.dtype_name, e.dtype, sizeof tensor.dtype_name);
        tensor.data = data + e.begin;
        if (ck->n_tensors == ck->cap) {
            ck->cap = ck->cap ? ck->cap * 2 : 256;
            ck->tensors = xrealloc(ck->tensors, ck->cap * sizeof *ck->tensors);
        }
        ck->tensors[ck->n_tensors++] = tensor;
    }
    return check_overlap(ck, first, s, err);
}

/* Every size is compared with the file's before the header is read, because truncated downloads are
 * the most common error. */
static enum status open_shard(struct checkpoint *ck, struct shard *s, struct err *err)
{
    TRY(file_map_open(s->path, &s->map, err));
    uint64_t header_bytes;
    if (s->map.n_bytes > 8 && memcmp(s->map.data, "version ", 8) == 0) {
        return err_set(err, ERR_FORMAT,
                       "%s: a Git LFS pointer and not the weights: run `git lfs pull` "
                       "in that folder",
                       s->path);
    }
    if (s->map.n_bytes < 8) {
        return err_set(err, ERR_FORMAT, "%s: too short for a safetensors file", s->path);
    }
    memcpy(&header_bytes, s->map.data, 8);
    if (header_bytes > MAX_HEADER_BYTES || header_bytes > s->map.n_bytes - 8) {
        return err_set(err, ERR_FORMAT,
                       "%s: not a safetensors file, or cut short (header of %llu "
                       "bytes in a file of %zu)",
                       s->path, (unsigned long long)header_bytes, s->map.n_bytes);
    }
    return read_tensors(ck, s, (const char *)s->map.data + 8, (size_t)header_bytes, err);
}

/* ---- names -------------------------------------------------------------------------------- */

static size_t slot_of(const struct checkpoint *ck, const char *name)
{
    size_t i = hash_bytes(name, strlen(name), 1) & (ck->table_size - 1);
    while (ck->table[i] >= 0 && strcmp(ck->tensors[ck->table[i]].name, name) != 0) {
        i = (i + 1) & (ck->table_size - 1);
    }
    return i;
}

/* An open-addressing table from name to index, at most half full. The same name in two files is an
 * error, because it would be unclear which tensor is meant. */
static enum status index_names(struct checkpoint *ck, struct err *err)
{
    ck->table_size = 64;
    while (ck->table_size < ck->n_tensors * 2) {
        ck->table_size *= 2;
    }
    ck->table = xmalloc(ck->table_size * sizeof *ck->table);
    memset(ck->table, 0xFF, ck->table_size * sizeof *ck->table);
    for (size_t i = 0; i < ck->n_tensors; i++) {
        size_t slot = slot_of(ck, ck->tensors[i].name);
        if (ck->table[slot] >= 0) {
            return err_set(err, ERR_FORMAT, "%s: tensor %s occurs twice", ck->tensors[i].file,
                           ck->tensors[i].name);
        }
        ck->table[slot] = (int32_t)i;
    }
    return OK;
}

/* Finds the files. `index` becomes the path of the index, or "" if it is not used. */
static enum status find_shards(struct checkpoint *ck, const char *dir, char index[PATH_MAX],
                               struct err *err)
{
    char whole[PATH_MAX];
    snprintf(whole, sizeof whole, "%s/model.safetensors", dir);
    snprintf(index, PATH_MAX, "%s/model.safetensors.index.json", dir);
    if (!file_exists(whole) && file_exists(index)) {
        return shards_of_index(ck, dir, index, err);
    }
    index[0] = '\0';
    if (file_exists(whole)) {
        return add_shard(ck, dir, "model.safetensors", err);
    }
    return shards_of_folder(ck, dir, err);
}

/* All files of the index must exist. */
static enum status check_names(const char *dir, struct err *err)
{
    struct checkpoint *ck = xcalloc(1, sizeof *ck);
    char index[PATH_MAX];
    enum status st = find_shards(ck, dir, index, err);
    for (size_t i = 0; i < ck->n_shards && st == OK; i++) {
        if (!file_exists(ck->shards[i].path)) {
            st = err_set(err, ERR_IO,
                         "%.200s: %.100s is missing, although the index names it; was a "
                         "download cut short?",
                         dir, ck->shards[i].name);
        }
    }
    checkpoint_close(ck);
    return st;
}

enum status checkpoint_check(const char *dir, struct err *err)
{
    struct checkpoint *ck;
    bool is_gguf;
    TRY(gguf_is(dir, &is_gguf, err));
    if (!is_gguf) {
        TRY(check_names(dir, err));
    }
    TRY(checkpoint_open(dir, &ck, err));
    checkpoint_close(ck);
    return OK;
}

/* file: the only one to open; NULL: all that the folder's model consists of. */
static enum status open_folder(struct checkpoint *ck, const char *dir, const char *file,
                               struct err *err)
{
    char index[PATH_MAX] = "";
    enum status st = file ? add_shard(ck, dir, file, err) : find_shards(ck, dir, index, err);
    for (size_t i = 0; i < ck->n_shards && st == OK; i++) {
        st = open_shard(ck, &ck->shards[i], err);
    }
    const char *files = ck->n_shards == 1 ? ck->shards[0].path : dir;
    ck->where = xstrdup(st == OK && index[0] ? index : files);
    return st;
}

static enum status open_gguf(struct checkpoint *ck, const char *path, struct err *err)
{
    ck->where = xstrdup(path);
    TRY(gguf_open(path, &ck->gguf, err));
    return checkpoint_gguf_read(ck->gguf, &ck->tensors, &ck->n_tensors, err);
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

enum status checkpoint_open(const char *dir, struct checkpoint **out, struct err *err)
{
    return open_any(dir, NULL, out, err);
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
    for (size_t i = 0; i < ck->n_tensors; i++) {
        free((char *)ck->tensors[i].name);
    }
    for (size_t i = 0; i < ck->n_shards; i++) {
        file_unmap(&ck->shards[i].map);
        free(ck->shards[i].path);
        free(ck->shards[i].name);
    }
    gguf_close(ck->gguf);
    free(ck->dir);
    free(ck->where);
    free(ck->tensors);
    free(ck->shards);
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
    *n = ck->n_tensors;
    return ck->tensors;
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *ck, const char *name)
{
    int32_t i = ck->table[slot_of(ck, name)];
    return i >= 0 ? &ck->tensors[i] : NULL;
}

bool checkpoint_file(const struct checkpoint *ck, size_t i, struct checkpoint_file *out)
{
    struct file_map map;
    if (ck->gguf && i < gguf_n_files(ck->gguf)) {
        const char *path = gguf_file(ck->gguf, i, &map), *slash = strrchr(path, '/');
        *out = (struct checkpoint_file){slash ? slash + 1 : path, map.data, map.n_bytes};
        return true;
    }
    if (i >= ck->n_shards) {
        return false;
    }
    const struct shard *s = &ck->shards[i];
    *out = (struct checkpoint_file){s->name, s->map.data, s->map.n_bytes};
    return true;
}
