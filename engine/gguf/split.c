// SPDX-License-Identifier: Apache-2.0
/* Models that were split into several GGUF files: NAME-00001-of-00003.gguf. */
#include "engine/gguf/split.h"

#include "engine/base/mem.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 5, MAX_FILES = 10000 };

/* The pattern of "-00001-of-00005.gguf" at the end of a path. */
static const char ending[] = "-#####-of-#####.gguf";

static int number_at(const char *s)
{
    int n = 0;
    for (int i = 0; i < DIGITS; i++) {
        n = n * 10 + (s[i] - '0');
    }
    return n;
}

/* The length of the path before that suffix; 0: the path has no such suffix. */
static size_t parse_name(const char *path, int *no, int *count)
{
    size_t n = strlen(path), m = sizeof ending - 1;
    if (n <= m) {
        return 0;
    }
    const char *at = path + n - m;
    for (size_t i = 0; i < m; i++) {
        bool fits;
        if (ending[i] == '#') {
            fits = isdigit((unsigned char)at[i]) != 0;
        } else {
            fits = at[i] == ending[i];
        }
        if (!fits) {
            return 0;
        }
    }
    *no = number_at(at + 1);
    *count = number_at(at + m - 5 - DIGITS);
    if (*no >= 1 && *count >= 1 && *no <= *count && *count <= MAX_FILES) {
        return n - m;
    }
    return 0;
}

/* Maps all files at once, because each of them may contain tensors. */
static enum status map_all(struct split_file *files, size_t n_files, struct err *err)
{
    for (size_t i = 0; i < n_files; i++) {
        if (n_files > 1 && !file_exists(files[i].path)) {
            return err_set(err, ERR_IO,
                           "%.300s is missing; it is one of %zu files that this model was split "
                           "into; was a download cut short?",
                           files[i].path, n_files);
        }
        TRY(file_map_open(files[i].path, &files[i].map, err));
    }
    return OK;
}

/* `path` must be the first file; the names of the others are derived from it. */
enum status split_open(const char *path, struct split_file **files, size_t *n_files,
                       struct err *err)
{
    int no = 1, count = 1;
    size_t n = parse_name(path, &no, &count);
    *n_files = (size_t)count;
    *files = xcalloc(*n_files, sizeof **files);
    for (int i = 0; i < count; i++) {
        char name[PATH_MAX];
        if (n > 0) {
            snprintf(name, sizeof name, "%.*s-%05d-of-%05d.gguf", (int)n, path, i + 1, count);
        } else {
            snprintf(name, sizeof name, "%s", path);
        }
        (*files)[i].path = xstrdup(name);
    }
    if (no != 1) {
        return err_set(err, ERR_INVALID, "%.200s is file %d of %d: give the first one, %.200s",
                       path, no, count, (*files)[0].path);
    }
    return map_all(*files, *n_files, err);
}

void split_close(struct split_file *files, size_t n_files)
{
    for (size_t i = 0; i < n_files; i++) {
        if (!files[i].borrowed) {
            file_unmap(&files[i].map);
        }
        free(files[i].path);
    }
    free(files);
}
