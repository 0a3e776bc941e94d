// SPDX-License-Identifier: Apache-2.0
/* A GGUF file (version 2 or 3), or all files of a split model: keys with values, and tensors. Every
 * count, length and offset is checked at open. Names, values and tensors point into the maps and
 * live until gguf_close.
 * Thread: open and close one owner; lookups any. */
#ifndef SLUICE_ENGINE_GGUF_GGUF_H
#define SLUICE_ENGINE_GGUF_GGUF_H

#include "engine/base/file.h"
#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

/* One value, or a list of `n` values of a type other than ARRAY. */
struct gguf_value {
    bool is_list;
    enum gguf_type type; // type of the value, or of each item
    size_t n, n_bytes;
    const unsigned char *data; // unaligned; each string is preceded by its length
};

enum { GGUF_MAX_DIMS = 4 };

struct gguf_tensor {
    const char *name;      // NUL-terminated
    const char *file;      // for messages
    const char *type_name; // "Q4_K"
    int32_t n_dims;
    int64_t dims[GGUF_MAX_DIMS]; // in Hugging Face's order: the last one is contiguous
    const unsigned char *data;
    size_t n_bytes;
};

struct gguf;

/* *is: the path is a file that starts with GGUF's magic. A path that does not exist is not a GGUF
 * file. A file that cannot be read is an error, since it may be one. */
enum status gguf_is(const char *path, bool *is, struct err *err);

/* For a split model (...-00001-of-00005.gguf) pass the first file; all of its files are opened. */
enum status gguf_open(const char *path, struct gguf **out, struct err *err);
/* Reads the bytes of a single file in memory, which must outlive *out; `name` is for messages. */
enum status gguf_open_memory(const void *data, size_t n_bytes, const char *name, struct gguf **out,
                             struct err *err);
void gguf_close(struct gguf *g); // accepts NULL

const char *gguf_path(const struct gguf *g); // the path as it was passed to gguf_open

/* NULL if there is none. */
const struct gguf_value *gguf_get(const struct gguf *g, const char *key);

/* False if the key is absent or of another type. get_int accepts integers of any width, get_number
 * any numeric type. */
bool gguf_get_int(const struct gguf *g, const char *key, int64_t *out);
bool gguf_get_number(const struct gguf *g, const char *key, double *out);
bool gguf_get_bool(const struct gguf *g, const char *key, bool *out);
bool gguf_get_string(const struct gguf *g, const char *key, const char **text, size_t *n_bytes);

/* Iterates over the items of a list. The iteration ends at once if the value is NULL, and at an
 * item that is not of the requested type. */
struct gguf_walk {
    const struct gguf_value *v;
    const unsigned char *at;
    size_t i;
};
struct gguf_walk gguf_walk(const struct gguf_value *list);
bool gguf_next_string(struct gguf_walk *w, const char **text, size_t *n_bytes);
bool gguf_next_number(struct gguf_walk *w, double *out);

/* The architecture, such as "llama", or an error. */
enum { GGUF_ARCH_BYTES = 32 };
enum status gguf_architecture(const struct gguf *g, char out[GGUF_ARCH_BYTES], struct err *err);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name); // linear search

size_t gguf_n_files(const struct gguf *g);
const char *gguf_file(const struct gguf *g, size_t i, struct file_map *map); // returns its path

#endif
