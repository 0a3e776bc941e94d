// SPDX-License-Identifier: Apache-2.0
/* The files of a quantised folder other than weights. */
#include "engine/model/quantise_files.h"
#include "engine/base/optional.h"

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/model/config.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG_BYTES = 64 << 20, COPY_BYTES = 1 << 16 };

enum status quantise_path(char *path, size_t n_bytes, const char *dir, const char *name,
                          struct err *err)
{
    const int n = snprintf(path, n_bytes, "%s/%s", dir, name);
    if (n > 0 && (size_t)n < n_bytes) {
        return OK;
    }
    return err_set(err, ERR_INVALID, "%.200s: the path is too long", dir);
}

enum status quantise_write_text(const char *out, const char *name, const struct buf *text,
                                struct err *err)
{
    char path[PATH_MAX];
    TRY(quantise_path(path, sizeof path, out, name, err));
    if (text->failed) {
        return err_set(err, ERR_LIMIT, "%.300s would be too large", path);
    }
    FILE *f = fopen(path, "wb");
    bool good = f && fwrite(text->data, 1, text->n_bytes, f) == text->n_bytes;
    good = f && fclose(f) == 0 && good;
    if (!good) {
        return err_set(err, ERR_IO, "%.300s: %s", path, strerror(errno));
    }
    return OK;
}

/* The folder must be new or empty, so that nothing is overwritten. */
enum status quantise_make_folder(const char *out, struct err *err)
{
    if (mkdir(out, 0777) == 0) {
        return OK;
    }
    if (errno != EEXIST) {
        return err_set(err, ERR_IO, "%.300s: cannot be created: %s", out, strerror(errno));
    }
    DIR *d = opendir(out);
    if (!d) {
        return err_set(err, ERR_IO, "%.300s: cannot be opened as a folder", out);
    }
    bool is_empty = true;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        is_empty = is_empty && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0);
    }
    closedir(d);
    if (!is_empty) {
        return err_set(err, ERR_INVALID, "%.300s: exists and is not empty", out);
    }
    return OK;
}

/* ---- copies ------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Weights are written anew and the config is changed; all other files are copied. */
static bool is_copied(const char *name)
{
    static const char *const weights[] = {".safetensors", ".safetensors.index.json",
                                          ".bin",         ".bin.index.json",
                                          ".pt",          ".pth",
                                          ".gguf",        ".h5",
                                          ".msgpack",     ".onnx"};
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        if (ends_with(name, weights[i])) {
            return false;
        }
    }
    return strcmp(name, "config.json") != 0;
}

static enum status copy_file(const char *from, const char *to, struct err *err)
{
    FILE *in = fopen(from, "rb"), *out = in ? fopen(to, "wb") : NULL;
    static _Thread_local char bytes[COPY_BYTES];
    bool good = out != NULL;
    for (size_t n; good && (n = fread(bytes, 1, sizeof bytes, in)) > 0;) {
        good = fwrite(bytes, 1, n, out) == n;
    }
    good = good && !ferror(in);
    if (in) {
        fclose(in);
    }
    good = out && fclose(out) == 0 && good;
    if (!good) {
        return err_set(err, ERR_IO, "%.200s: cannot be copied to %.200s: %s", from, to,
                       strerror(errno));
    }
    return OK;
}

enum status quantise_copy_rest(const char *dir, const char *out, struct err *err)
{
    DIR *d = opendir(dir);
    if (!d) {
        return err_set(err, ERR_IO, "%.300s: cannot be opened as a folder", dir);
    }
    enum status st = OK;
    for (struct dirent *e; st == OK && (e = readdir(d)) != NULL;) {
        char from[PATH_MAX], to[PATH_MAX];
        struct stat facts;
        if (!is_copied(e->d_name)) {
            continue;
        }
        st = quantise_path(from, sizeof from, dir, e->d_name, err);
        if (st == OK) {
            st = quantise_path(to, sizeof to, out, e->d_name, err);
        }
        if (st == OK && stat(from, &facts) == 0 && S_ISREG(facts.st_mode)) {
            st = copy_file(from, to, err);
        }
    }
    closedir(d);
    return st;
}

/* ---- config.json -------------------------------------------------------------------------- */

static void put_names(struct buf *b, const struct quantise_module *modules, size_t n, bool stays,
                      int64_t group, bool first)
{
    for (size_t i = 0; i < n; i++) {
        const struct quantise_module *m = &modules[i];
        if (m->stays == stays && (stays || m->group == group)) {
            if (!first) {
                buf_puts(b, ", ");
            }
            buf_put_json(b, m->name, (size_t)m->n_name);
            first = false;
        }
    }
}

static void put_weights(struct buf *b, const struct quantise_form *f, int64_t group)
{
    buf_printf(b,
               "\"weights\": {\"num_bits\": %d, \"type\": \"%s\", \"symmetric\": true, "
               "\"dynamic\": false, ",
               f->bits, f->type);
    if (f->blocks) {
        buf_puts(b, "\"strategy\": \"block\", \"block_structure\": [128, 128], "
                    "\"group_size\": null}");
    } else if (group > 0) {
        buf_printf(b, "\"strategy\": \"group\", \"group_size\": %d}", (int)group);
    } else {
        buf_puts(b, "\"strategy\": \"channel\", \"group_size\": null}");
    }
}

static bool has_group(const struct quantise_module *modules, size_t n, int64_t group)
{
    for (size_t i = 0; i < n; i++) {
        if (!modules[i].stays && modules[i].group == group) {
            return true;
        }
    }
    return false;
}

/* One group per group size. The first group is for all linear modules; the others name their
 * modules, and readers check names before classes. */
static void put_groups(struct buf *b, const struct quantise_form *f,
                       const struct quantise_module *modules, size_t n)
{
    static const int64_t sizes[] = {128, 32, 0};
    int32_t n_groups = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (!has_group(modules, n, sizes[i])) {
            continue;
        }
        buf_printf(b, "%s\"group_%d\": {\"targets\": [", text_if(n_groups, ", "), n_groups);
        if (n_groups++ == 0) {
            buf_puts(b, "\"Linear\"");
        } else {
            put_names(b, modules, n, false, sizes[i], true);
        }
        buf_puts(b, "], ");
        put_weights(b, f, sizes[i]);
        buf_printf(b,
                   ", \"input_activations\": %s, \"output_activations\": null, "
                   "\"format\": \"%s\"}",
                   f->inputs, f->format);
    }
}

/* The text is unchanged except for one member, appended after the last one. */
enum status quantise_write_config(const char *dir, const char *out, const struct quantise_form *f,
                                  const struct quantise_module *modules, size_t n, struct err *err)
{
    char path[PATH_MAX], *text;
    size_t n_bytes;
    struct json *root;
    TRY(quantise_path(path, sizeof path, dir, "config.json", err));
    TRY(model_config_parse(path, &root, err));
    const bool is_object = json_is(root, JSON_OBJECT) && json_first(root);
    json_free(root);
    if (!is_object) {
        return err_set(err, ERR_FORMAT, "%.300s: not an object with members", path);
    }
    TRY(file_read(path, MAX_CONFIG_BYTES, &text, &n_bytes, err));
    while (n_bytes > 0 && text[n_bytes - 1] != '}') {
        n_bytes--;
    }
    n_bytes -= n_bytes > 0;
    while (n_bytes > 0 && strchr(" \t\r\n", text[n_bytes - 1])) {
        n_bytes--;
    }
    struct buf b;
    buf_init(&b, 4 * (size_t)MAX_CONFIG_BYTES);
    buf_put(&b, text, n_bytes);
    buf_printf(&b,
               ",\n  \"quantization_config\": {\n"
               "    \"quant_method\": \"compressed-tensors\",\n"
               "    \"format\": \"%s\",\n    \"quantization_status\": \"compressed\",\n"
               "    \"global_compression_ratio\": null,\n    \"kv_cache_scheme\": null,\n"
               "    \"config_groups\": {",
               f->format);
    put_groups(&b, f, modules, n);
    buf_puts(&b, "},\n    \"ignore\": [\"lm_head\"");
    put_names(&b, modules, n, true, 0, false);
    buf_puts(&b, "]\n  }\n}\n");
    const enum status st = quantise_write_text(out, "config.json", &b, err);
    buf_deinit(&b);
    free(text);
    return st;
}
