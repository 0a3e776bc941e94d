// SPDX-License-Identifier: Apache-2.0
/* The header of a safetensors file. All sizes, offsets and names in it are checked. */
#include "engine/base/json_scan.h"
#include "engine/base/mem.h"
#include "engine/model/checkpoint_files.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER_BYTES = 100 << 20 }; // safetensors' own limit

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
    size_t bits;
    if (!checkpoint_set_dtype(t, e->dtype, &bits)) {
        return bad(s, name, "its dtype is unknown", err);
    }
    size_t n = 1;
    for (int32_t i = 0; i < e->n_dims; i++) {
        if (!mem_mul(n, (size_t)e->dims[i], &n)) {
            return bad(s, name, "its shape is too large", err);
        }
    }
    size_t n_bytes;
    if (!mem_mul(n, bits / 8, &n_bytes) || e->end < e->begin || (size_t)e->end > data_bytes) {
        return bad(s, name, "its data lies outside the file (is the file cut short?)", err);
    }
    if ((size_t)(e->end - e->begin) != n_bytes) {
        return bad(s, name, "its shape does not agree with its data_offsets", err);
    }
    t->n_bytes = n_bytes;
    return OK;
}

static int by_data(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = a, *y = b;
    return x->data < y->data ? -1 : x->data > y->data;
}

/* Two tensors that share bytes are a sign of a broken or malicious file. */
static enum status check_overlap(const struct checkpoint_list *list, size_t first,
                                 const struct shard *s, struct err *err)
{
    if (list->n == first) {
        return OK;
    }
    qsort(list->v + first, list->n - first, sizeof *list->v, by_data);
    for (size_t i = first + 1; i < list->n; i++) {
        const struct checkpoint_tensor *before = &list->v[i - 1], *t = &list->v[i];
        if (before->n_bytes > 0 && t->n_bytes > 0 && before->data + before->n_bytes > t->data) {
            return bad(s, t->name, "its data overlaps another tensor's", err);
        }
    }
    return OK;
}

/* The header is scanned token by token instead of being parsed into a tree, because large
 * checkpoints have headers of several MB. Overlapping tensors are refused at the end. */
static enum status read_tensors(struct checkpoint_list *list, const struct shard *s,
                                const char *header, size_t header_bytes, struct err *err)
{
    const unsigned char *data = s->map.data + 8 + header_bytes;
    size_t data_bytes = s->map.n_bytes - 8 - header_bytes, first = list->n;
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
        tensor.data = data + e.begin;
        checkpoint_list_add(list, &tensor);
    }
    return check_overlap(list, first, s, err);
}

/* Every size is compared with the file's before the header is read, because truncated downloads are
 * the most common error. */
enum status checkpoint_safetensors_read(const struct shard *s, struct checkpoint_list *list,
                                        struct err *err)
{
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
    return read_tensors(list, s, (const char *)s->map.data + 8, (size_t)header_bytes, err);
}
