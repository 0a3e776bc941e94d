// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/gguf.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/gguf/split.h"
#include "engine/gguf/value.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_KEYS = 4096,         // chosen: 40 times what real files have
    MAX_TENSORS = 1 << 20,   // chosen: 40 times what real files have
    MAX_NAME_BYTES = 240,    // a tensor's name; ggml's own limit is 64
    MAX_KEY_BYTES = 65535,   // the format's limit
    MAX_ALIGNMENT = 1 << 20, // chosen
    DEFAULT_ALIGNMENT = 32,  // the format's default
    HEAD_BYTES = 24,
};

struct key {
    const char *name; // not NUL-terminated
    size_t n_bytes;
    struct gguf_value value;
};

struct gguf {
    char *path;
    struct split_file *files;
    size_t n_files, n_keys, n_tensors, cap_tensors;
    struct key *keys; // keys of the first file
    struct gguf_tensor *tensors;
};

/* ---- types of tensors --------------------------------------------------------------------- */

/* All types that exist, so that error messages can name unsupported ones. */
static const struct tensor_type {
    const char *name; // NULL: there is no such type
    uint8_t n;        // elements of a block, minus one
    uint16_t n_bytes; // bytes of a block
} tensor_types[] = {
    [0] = {"F32", 0, 4},         [1] = {"F16", 0, 2},         [2] = {"Q4_0", 31, 18},
    [3] = {"Q4_1", 31, 20},      [6] = {"Q5_0", 31, 22},      [7] = {"Q5_1", 31, 24},
    [8] = {"Q8_0", 31, 34},      [9] = {"Q8_1", 31, 40},      [10] = {"Q2_K", 255, 84},
    [11] = {"Q3_K", 255, 110},   [12] = {"Q4_K", 255, 144},   [13] = {"Q5_K", 255, 176},
    [14] = {"Q6_K", 255, 210},   [15] = {"Q8_K", 255, 292},   [16] = {"IQ2_XXS", 255, 66},
    [17] = {"IQ2_XS", 255, 74},  [18] = {"IQ3_XXS", 255, 98}, [19] = {"IQ1_S", 255, 50},
    [20] = {"IQ4_NL", 31, 18},   [21] = {"IQ3_S", 255, 110},  [22] = {"IQ2_S", 255, 82},
    [23] = {"IQ4_XS", 255, 136}, [24] = {"I8", 0, 1},         [25] = {"I16", 0, 2},
    [26] = {"I32", 0, 4},        [27] = {"I64", 0, 8},        [28] = {"F64", 0, 8},
    [29] = {"IQ1_M", 255, 56},   [30] = {"BF16", 0, 2},       [34] = {"TQ1_0", 255, 54},
    [35] = {"TQ2_0", 255, 66},   [39] = {"MXFP4", 31, 17},    [40] = {"NVFP4", 63, 36},
    [41] = {"Q1_0", 127, 18},
};

enum { N_TENSOR_TYPES = sizeof tensor_types / sizeof tensor_types[0] };

/* ---- reading bytes ------------------------------------------------------------------------ */

/* A position in one file. A read past the end sets `cut`, and all later reads return nothing. */
struct reader {
    const char *file;
    const unsigned char *data;
    size_t n_bytes, at;
    bool cut;
};

static const unsigned char *take(struct reader *r, size_t n)
{
    if (r->cut || n > r->n_bytes - r->at) {
        r->cut = true;
        return NULL;
    }
    r->at += n;
    return r->data + r->at - n;
}

static uint32_t take_u32(struct reader *r)
{
    uint32_t v = 0;
    const unsigned char *p = take(r, sizeof v);
    memcpy(&v, p ? p : (const unsigned char *)&v, sizeof v);
    return v;
}

static uint64_t take_u64(struct reader *r)
{
    uint64_t v = 0;
    const unsigned char *p = take(r, sizeof v);
    memcpy(&v, p ? p : (const unsigned char *)&v, sizeof v);
    return v;
}

static const char *take_string(struct reader *r, size_t *n_bytes)
{
    uint64_t n = take_u64(r);
    const unsigned char *p = n <= r->n_bytes ? take(r, (size_t)n) : NULL;
    r->cut = r->cut || !p;
    *n_bytes = p ? (size_t)n : 0;
    return (const char *)p;
}

static enum status bad(const struct reader *r, const char *why, struct err *err)
{
    if (r->cut) {
        return err_set(err, ERR_FORMAT,
                       "%s: cut short, or not a GGUF file: its header continues past its end",
                       r->file);
    }
    return err_set(err, ERR_FORMAT, "%s: %s", r->file, why);
}

/* ---- keys --------------------------------------------------------------------------------- */
static enum status take_items(struct reader *r, struct gguf_value *v, struct err *err)
{
    size_t start = r->at, each = gguf_value_bytes(v->type), n_bytes;
    if (v->type == GGUF_ARRAY || v->type > GGUF_F64) {
        return bad(r, "a list of lists, or a value of an unknown type", err);
    }
    if (each > 0 && mem_mul(v->n, each, &n_bytes)) {
        take(r, n_bytes);
    } else {
        r->cut = r->cut || each > 0;
        for (size_t i = 0; i < v->n && !r->cut; i++) {
            take_string(r, &n_bytes);
        }
    }
    v->data = r->data + start;
    v->n_bytes = r->at - start;
    if (r->cut) {
        return bad(r, "", err);
    }
    return OK;
}

static enum status take_value(struct reader *r, struct gguf_value *v, struct err *err)
{
    v->type = (enum gguf_type)take_u32(r);
    v->n = 1;
    if (v->type == GGUF_ARRAY) {
        v->is_list = true;
        v->type = (enum gguf_type)take_u32(r);
        uint64_t n = take_u64(r);
        r->cut = r->cut || n > r->n_bytes; // each item takes at least one byte
        v->n = r->cut ? 0 : (size_t)n;
    }
    if (r->cut) {
        return bad(r, "", err);
    }
    return take_items(r, v, err);
}

static enum status take_keys(struct reader *r, size_t n, struct key *keys, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        struct key *k = &keys[i];
        k->name = take_string(r, &k->n_bytes);
        if (r->cut || k->n_bytes > MAX_KEY_BYTES) {
            return bad(r, "a key is too long", err);
        }
        enum status st = take_value(r, &k->value, err);
        if (st != OK) {
            return st;
        }
        for (size_t j = 0; j < i; j++) {
            if (keys[j].n_bytes == k->n_bytes && memcmp(keys[j].name, k->name, k->n_bytes) == 0) {
                return err_set(err, ERR_FORMAT, "%s: the key %.*s occurs twice", r->file,
                               (int)lesser(k->n_bytes, 100), k->name);
            }
        }
    }
    return OK;
}

static const struct gguf_value *find_key(const struct key *keys, size_t n, const char *name)
{
    size_t n_bytes = strlen(name);
    for (size_t i = 0; i < n; i++) {
        if (keys[i].n_bytes == n_bytes && memcmp(keys[i].name, name, n_bytes) == 0) {
            return &keys[i].value;
        }
    }
    return NULL;
}

const struct gguf_value *gguf_get(const struct gguf *g, const char *key)
{
    return find_key(g->keys, g->n_keys, key);
}

bool gguf_get_int(const struct gguf *g, const char *key, int64_t *out)
{
    return gguf_value_int(gguf_get(g, key), out);
}

bool gguf_get_number(const struct gguf *g, const char *key, double *out)
{
    return gguf_value_number(gguf_get(g, key), out);
}

bool gguf_get_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct gguf_value *v = gguf_get(g, key);
    bool found = v && !v->is_list && v->type == GGUF_BOOL;
    if (found) {
        *out = v->data[0] != 0;
    }
    return found;
}

bool gguf_get_string(const struct gguf *g, const char *key, const char **text, size_t *n_bytes)
{
    const struct gguf_value *v = gguf_get(g, key);
    if (!v || v->is_list || v->type != GGUF_STRING) {
        return false;
    }
    *text = (const char *)v->data + 8;
    *n_bytes = v->n_bytes - 8;
    return true;
}

/* ---- tensors ------------------------------------------------------------------------------ */

static enum status bad_tensor(const struct reader *r, const char *name, const char *why,
                              struct err *err)
{
    return err_set(err, ERR_FORMAT, "%s: tensor %s: %s", r->file, name, why);
}

/* Reads the dimensions (the first is contiguous) and computes the size in bytes. */
static enum status take_shape(struct reader *r, struct gguf_tensor *t, struct err *err)
{
    uint32_t n = take_u32(r);
    uint64_t dims[GGUF_MAX_DIMS];
    if (r->cut || n < 1 || n > GGUF_MAX_DIMS) {
        if (r->cut) {
            return bad(r, "", err);
        }
        return bad_tensor(r, t->name, "it does not have one to four dimensions", err);
    }
    size_t all = 1;
    for (uint32_t i = 0; i < n; i++) {
        dims[i] = take_u64(r);
        if (dims[i] < 1 || dims[i] > INT64_MAX || !mem_mul(all, (size_t)dims[i], &all)) {
            if (r->cut) {
                return bad(r, "", err);
            }
            return bad_tensor(r, t->name, "its shape is invalid", err);
        }
        t->dims[n - 1 - i] = (int64_t)dims[i];
    }
    uint32_t type = take_u32(r);
    if (r->cut) {
        return bad(r, "", err);
    }
    if (type >= N_TENSOR_TYPES || !tensor_types[type].name) {
        return err_set(err, ERR_UNSUPPORTED, "%s: tensor %s is of the unknown type %u", r->file,
                       t->name, (unsigned)type);
    }
    const struct tensor_type *row = &tensor_types[type];
    if (dims[0] % (row->n + 1u) != 0) {
        return bad_tensor(r, t->name, "its rows do not consist of whole blocks", err);
    }
    t->n_dims = (int32_t)n;
    t->type_name = row->name;
    if (!mem_mul(all / (row->n + 1u), row->n_bytes, &t->n_bytes)) {
        return bad_tensor(r, t->name, "its shape is invalid", err);
    }
    return OK;
}

static enum status take_tensor(struct reader *r, struct gguf_tensor *t, uint64_t *offset,
                               struct err *err)
{
    size_t n_name;
    const char *name = take_string(r, &n_name);
    if (r->cut || n_name < 1 || n_name > MAX_NAME_BYTES || memchr(name, 0, n_name)) {
        return bad(r, "a tensor's name is empty, too long or not text", err);
    }
    t->name = xstrndup(name, n_name);
    t->file = r->file;
    TRY(take_shape(r, t, err));
    *offset = take_u64(r);
    if (r->cut) {
        return bad(r, "", err);
    }
    return OK;
}

/* Data starts after the list of tensors; offsets are relative to that. */
static enum status place_data(const struct reader *r, struct gguf_tensor *t, size_t n,
                              const uint64_t *offsets, size_t alignment, struct err *err)
{
    size_t begin = (r->at + alignment - 1) / alignment * alignment;
    size_t room = begin < r->n_bytes ? r->n_bytes - begin : 0, end = 0;
    for (size_t i = 0; i < n; i++) {
        if (offsets[i] % alignment != 0) {
            return bad_tensor(r, t[i].name, "its data is not aligned", err);
        }
        if (offsets[i] > room || t[i].n_bytes > room - offsets[i]) {
            return bad_tensor(r, t[i].name,
                              "its data lies outside the file (is the file cut short?)", err);
        }
        if (offsets[i] < end) {
            return bad_tensor(r, t[i].name, "its data overlaps another tensor's", err);
        }
        end = (size_t)offsets[i] + t[i].n_bytes;
        t[i].data = r->data + begin + offsets[i];
    }
    return OK;
}

static enum status take_tensors(struct gguf *g, struct reader *r, size_t n, size_t alignment,
                                struct err *err)
{
    size_t first = g->n_tensors;
    if (n > MAX_TENSORS - first) {
        return bad(r, "it has too many tensors", err);
    }
    g->tensors = xrealloc(g->tensors, (first + n + 1) * sizeof *g->tensors);
    uint64_t *offsets = xcalloc(n + 1, sizeof *offsets);
    enum status st = OK;
    for (size_t i = 0; i < n && st == OK; i++) {
        g->tensors[g->n_tensors++] = (struct gguf_tensor){0};
        st = take_tensor(r, &g->tensors[first + i], &offsets[i], err);
    }
    if (st == OK) {
        st = place_data(r, g->tensors + first, n, offsets, alignment, err);
    }
    free(offsets);
    return st;
}

/* ---- files -------------------------------------------------------------------------------- */

static enum status take_head(struct reader *r, size_t *n_tensors, size_t *n_keys, struct err *err)
{
    const unsigned char *magic = take(r, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0) {
        return err_set(err, ERR_FORMAT, "%s: not a GGUF file", r->file);
    }
    uint32_t version = take_u32(r);
    if (!r->cut && (version & 0xFFFFu) == 0) {
        return err_set(err, ERR_UNSUPPORTED, "%s: a GGUF file for big-endian machines", r->file);
    }
    if (!r->cut && version != 2 && version != 3) {
        return err_set(err, ERR_UNSUPPORTED, "%s: version %u of GGUF is not supported", r->file,
                       (unsigned)version);
    }
    uint64_t tensors = take_u64(r), keys = take_u64(r);
    if (r->cut || tensors > MAX_TENSORS || keys > MAX_KEYS) {
        return bad(r, "it has too many keys or tensors", err);
    }
    *n_tensors = (size_t)tensors;
    *n_keys = (size_t)keys;
    return OK;
}

static enum status alignment_of(const struct reader *r, const struct key *keys, size_t n,
                                size_t *out, struct err *err)
{
    int64_t v = DEFAULT_ALIGNMENT;
    const struct gguf_value *value = find_key(keys, n, "general.alignment");
    if (value && (!gguf_value_int(value, &v) || v < 1 || v > MAX_ALIGNMENT)) {
        return bad(r, "general.alignment is invalid", err);
    }
    *out = (size_t)v;
    return OK;
}

/* Reads from the keys which part of a split model this file is; a file without these keys is 1 of
 * 1. */
static enum status check_split(const struct reader *r, const struct key *keys, size_t n, size_t i,
                               size_t n_files, struct err *err)
{
    int64_t no = 0, count = 1;
    gguf_value_int(find_key(keys, n, "split.no"), &no);
    gguf_value_int(find_key(keys, n, "split.count"), &count);
    count = greater(1, count);
    if (no == (int64_t)i && count == (int64_t)n_files) {
        return OK;
    }
    return err_set(err, ERR_FORMAT,
                   "%s: its keys say that it is file %lld of %lld, its name that it "
                   "is %zu of %zu",
                   r->file, (long long)no + 1, (long long)count, i + 1, n_files);
}

static enum status read_file(struct gguf *g, size_t i, struct err *err)
{
    struct reader r = {g->files[i].path, g->files[i].map.data, g->files[i].map.n_bytes, 0, false};
    size_t n_tensors = 0, n_keys = 0, alignment = DEFAULT_ALIGNMENT;
    TRY(take_head(&r, &n_tensors, &n_keys, err));
    struct key *keys = xcalloc(n_keys + 1, sizeof *keys);
    enum status st = take_keys(&r, n_keys, keys, err);
    if (st == OK) {
        st = check_split(&r, keys, n_keys, i, g->n_files, err);
    }
    if (st == OK) {
        st = alignment_of(&r, keys, n_keys, &alignment, err);
    }
    if (st == OK) {
        st = take_tensors(g, &r, n_tensors, alignment, err);
    }
    if (i == 0 && st == OK) {
        g->keys = keys;
        g->n_keys = n_keys;
    } else {
        free(keys);
    }
    return st;
}

static enum status read_files(struct gguf *g, struct err *err)
{
    for (size_t i = 0; i < g->n_files; i++) {
        TRY(read_file(g, i, err));
    }
    return OK;
}

/* True if errno says that no file can be at the path. */
static bool is_no_file(void)
{
    return errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == EISDIR;
}

enum status gguf_is(const char *path, bool *is, struct err *err)
{
    char head[4] = "";
    *is = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return is_no_file() ? OK : err_set(err, ERR_IO, "%.300s: %s", path, strerror(errno));
    }
    const ssize_t n = read(fd, head, 4); // fails with EISDIR for a folder
    const enum status st =
        n >= 0 || is_no_file() ? OK : err_set(err, ERR_IO, "%.300s: %s", path, strerror(errno));
    *is = n == 4 && memcmp(head, "GGUF", 4) == 0;
    close(fd);
    return st;
}

static enum status finish(struct gguf *g, enum status st, struct gguf **out)
{
    if (st != OK) {
        gguf_close(g);
        return st;
    }
    *out = g;
    return OK;
}

enum status gguf_open(const char *path, struct gguf **out, struct err *err)
{
    struct gguf *g = xcalloc(1, sizeof *g);
    g->path = xstrdup(path);
    enum status st = split_open(path, &g->files, &g->n_files, err);
    return finish(g, st == OK ? read_files(g, err) : st, out);
}

enum status gguf_open_memory(const void *data, size_t n_bytes, const char *name, struct gguf **out,
                             struct err *err)
{
    struct gguf *g = xcalloc(1, sizeof *g);
    g->path = xstrdup(name);
    g->files = xcalloc(1, sizeof *g->files);
    g->files[0] = (struct split_file){xstrdup(name), {data, n_bytes}, true};
    g->n_files = 1;
    return finish(g, read_files(g, err), out);
}

void gguf_close(struct gguf *g)
{
    if (!g) {
        return;
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        free((char *)g->tensors[i].name);
    }
    split_close(g->files, g->n_files);
    free(g->tensors);
    free(g->keys);
    free(g->path);
    free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

enum status gguf_architecture(const struct gguf *g, char out[GGUF_ARCH_BYTES], struct err *err)
{
    const char *name;
    size_t n;
    if (!gguf_get_string(g, "general.architecture", &name, &n) || n == 0) {
        return err_set(err, ERR_FORMAT, "the key general.architecture is missing");
    }
    snprintf(out, GGUF_ARCH_BYTES, "%.*s", (int)lesser(n, (size_t)GGUF_ARCH_BYTES - 1), name);
    return OK;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        if (strcmp(g->tensors[i].name, name) == 0) {
            return &g->tensors[i];
        }
    }
    return NULL;
}

size_t gguf_n_files(const struct gguf *g)
{
    return g->n_files;
}

const char *gguf_file(const struct gguf *g, size_t i, struct file_map *map)
{
    *map = g->files[i].map;
    return g->files[i].path;
}
