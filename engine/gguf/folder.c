// SPDX-License-Identifier: Apache-2.0
/* Reads a model's files by name, from a folder or generated from the metadata of a GGUF file, so
 * that readers need not know the difference. */
#include "engine/gguf/folder.h"

#include "engine/base/file.h"
#include "engine/gguf/make.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct row {
    const char *name;
    enum status (*make)(const struct gguf *g, struct buf *out, struct err *err);
} rows[] = {
    {"config.json", gguf_make_config},
    {"generation_config.json", gguf_make_generation},
    {"tokenizer.json", gguf_make_tokenizer},
    {"tokenizer_config.json", gguf_make_tokenizer_config},
};

static const struct row *find_row(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

enum status folder_is_file(const char *model, bool *is, struct err *err)
{
    return gguf_is(model, is, err);
}

/* Generates the text of one file. *out stays empty if the GGUF file has nothing for it. */
static enum status make(const char *model, const struct row *row, size_t max_bytes, struct buf *out,
                        struct err *err)
{
    struct gguf *g;
    const uint64_t n_lost = buf_n_lost();
    buf_init(out, max_bytes);
    TRY(gguf_open(model, &g, err));
    enum status st = row->make(g, out, err);
    gguf_close(g);
    if (st != OK) {
        return err_prefix(err, st, "%.200s", model);
    }
    if (buf_n_lost() != n_lost) {
        return err_set(err, ERR_NOMEM, "%.200s: no memory for its metadata", model);
    }
    if (out->failed) {
        return err_set(err, ERR_LIMIT, "%.200s: its metadata is too long", model);
    }
    return OK;
}

/* A generation config exists only if the GGUF file has something to put into it. */
bool folder_has(const char *model, const char *name)
{
    char path[PATH_MAX];
    bool is_gguf;
    if (gguf_is(model, &is_gguf, NULL) != OK) {
        return true; // reading the file reports why the model cannot be read
    }
    if (!is_gguf) {
        int n = snprintf(path, sizeof path, "%s/%s", model, name);
        return n > 0 && n < (int)sizeof path && !file_is_absent(path);
    }
    const struct row *row = find_row(name);
    struct buf out = {0};
    bool has = row && (row->make != gguf_make_generation ||
                       make(model, row, 1 << 20, &out, NULL) != OK || out.n_bytes > 0);
    buf_deinit(&out);
    return has;
}

/* The caller frees *data. */
enum status folder_read(const char *model, const char *name, size_t max_bytes, char **data,
                        size_t *n_bytes, struct err *err)
{
    char path[PATH_MAX];
    const struct row *row = find_row(name);
    bool is_gguf;
    TRY(gguf_is(model, &is_gguf, err));
    if (!is_gguf) {
        snprintf(path, sizeof path, "%s/%s", model, name);
        return file_read(path, max_bytes, data, n_bytes, err);
    }
    if (!row) {
        return err_set(err, ERR_IO, "%.200s: a GGUF file has no %s", model, name);
    }
    struct buf out;
    enum status st = make(model, row, max_bytes, &out, err);
    if (st != OK) {
        buf_deinit(&out);
        return st;
    }
    buf_putc(&out, '\0'); // forces an allocation and NUL-terminates
    *n_bytes = out.n_bytes - 1;
    *data = out.data;
    return OK;
}

enum status folder_json(const char *model, const char *name, size_t max_bytes, struct json **root,
                        struct err *err)
{
    char path[PATH_MAX], *text;
    size_t n_bytes;
    bool is_gguf;
    TRY(gguf_is(model, &is_gguf, err));
    if (!is_gguf) {
        snprintf(path, sizeof path, "%s/%s", model, name);
        return json_parse_file(path, max_bytes, root, err);
    }
    TRY(folder_read(model, name, max_bytes, &text, &n_bytes, err));
    enum status st = json_parse(text, n_bytes, NULL, root, err);
    free(text);
    if (st != OK) {
        return err_prefix(err, st, "%.200s", model);
    }
    return OK;
}
