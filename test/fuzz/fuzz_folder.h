// SPDX-License-Identifier: Apache-2.0
/* A temporary folder of files that are made from a fuzzer's input, for readers of folders.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_FUZZ_FOLDER_H
#define SLUICE_TEST_FUZZ_FOLDER_H

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char fuzz_folder[PATH_MAX / 2];
static const char *const *fuzz_folder_names; // of the files that it may contain, then NULL

static inline void fuzz_folder_path(const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s", fuzz_folder, name);
}

static inline void fuzz_folder_empty(void)
{
    char path[PATH_MAX];
    for (const char *const *name = fuzz_folder_names; *name; name++) {
        fuzz_folder_path(*name, path);
        unlink(path);
    }
}

static inline void fuzz_folder_remove(void)
{
    fuzz_folder_empty();
    rmdir(fuzz_folder);
}

/* Makes the folder in the first call; it is removed at exit. */
static inline const char *fuzz_folder_open(const char *prefix, const char *const *names)
{
    if (!*fuzz_folder) {
        const char *dir = getenv("TMPDIR");
        snprintf(fuzz_folder, sizeof fuzz_folder, "%s/%s-XXXXXX", dir ? dir : "/tmp", prefix);
        if (!mkdtemp(fuzz_folder)) {
            abort();
        }
        fuzz_folder_names = names;
        atexit(fuzz_folder_remove);
    }
    return fuzz_folder;
}

static inline void fuzz_folder_put(const char *name, const void *data, size_t n)
{
    char path[PATH_MAX];
    fuzz_folder_path(name, path);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
        abort();
    }
}

/* The number of bytes before the next NUL. */
static inline size_t fuzz_text_bytes(const uint8_t *data, size_t n)
{
    const uint8_t *end = n > 0 ? memchr(data, 0, n) : NULL;
    return end ? (size_t)(end - data) : n;
}

/* Writes a safetensors file. The input is its header, a NUL byte, and its data; the header's length
 * is added. If there is no header, the data are the whole file. */
static inline void fuzz_folder_put_safetensors(const char *name, const uint8_t *data, size_t n)
{
    const uint64_t n_header = fuzz_text_bytes(data, n);
    uint8_t *file = xmalloc(8 + n + 1);
    size_t n_file = 0;
    if (n_header > 0) {
        memcpy(file, &n_header, 8); // safetensors and this machine are little-endian
        memcpy(file + 8, data, n_header);
        n_file = 8 + n_header;
    }
    data += lesser(n_header + 1, n);
    n -= lesser(n_header + 1, n);
    if (n > 0) {
        memcpy(file + n_file, data, n);
    }
    fuzz_folder_put(name, file, n_file + n);
    free(file);
}

#endif
