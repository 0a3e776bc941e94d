// SPDX-License-Identifier: Apache-2.0
/* Arbitrary safetensors folders: a folder is read or refused, and all tensors that are read lie in
 * its files. The input is an index, or nothing, then the header and the data of a file, with NUL
 * bytes between them. The header's length is added, so that most inputs get that far; if there is
 * no header, the data are the whole file. */
#include "engine/base/mem.h"
#include "engine/model/checkpoint.h"
#include "test/fuzz/fuzz.h"

#include <limits.h>

static char folder[PATH_MAX / 2];

static void path_of(const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
}

static const char *const names[] = {"model.safetensors.index.json", "model.safetensors",
                                    "a.safetensors"};
enum { INDEX, WHOLE, SHARD, N_NAMES };

static void clean_up(void)
{
    char path[PATH_MAX];
    for (int i = 0; i < N_NAMES; i++) {
        path_of(names[i], path);
        unlink(path);
    }
    rmdir(folder);
}

static void make_folder(void)
{
    const char *dir = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/safetensors-XXXXXX", dir ? dir : "/tmp");
    if (!mkdtemp(folder)) {
        abort();
    }
    atexit(clean_up);
}

/* Writes a file of two parts. */
static void put(int name, const void *head, size_t n_head, const void *data, size_t n)
{
    char path[PATH_MAX];
    path_of(names[name], path);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(head, 1, n_head, f) != n_head || fwrite(data, 1, n, f) != n ||
        fclose(f) != 0) {
        abort();
    }
}

static void drop(int name)
{
    char path[PATH_MAX];
    path_of(names[name], path);
    unlink(path);
}

/* The number of bytes before the next NUL. */
static size_t text_bytes(const uint8_t *data, size_t n)
{
    const uint8_t *end = n > 0 ? memchr(data, 0, n) : NULL;
    return end ? (size_t)(end - data) : n;
}

/* Leaves an index and a shard, or a single file. */
static void write_folder(const uint8_t *data, size_t n)
{
    const size_t n_index = text_bytes(data, n);
    const int name = n_index > 0 ? SHARD : WHOLE;
    drop(WHOLE);
    drop(SHARD);
    drop(INDEX);
    if (n_index > 0) {
        put(INDEX, "", 0, data, n_index);
    }
    data += lesser(n_index + 1, n);
    n -= lesser(n_index + 1, n);
    const uint64_t n_header = text_bytes(data, n);
    uint8_t *file = xmalloc(8 + n + 1);
    size_t n_file = 0;
    if (n_header > 0) {
        memcpy(file, &n_header, 8); // safetensors and this machine are little-endian
        memcpy(file + 8, data, n_header);
        n_file = 8 + n_header;
    }
    data += lesser(n_header + 1, n);
    n -= lesser(n_header + 1, n);
    put(name, file, n_file, data, n);
    free(file);
}

static bool is_inside(const struct checkpoint *ck, const struct checkpoint_tensor *t)
{
    struct checkpoint_file f;
    for (size_t i = 0; checkpoint_file(ck, i, &f); i++) {
        if (t->data >= f.data && t->data + t->n_bytes <= f.data + f.n_bytes) {
            return true;
        }
    }
    return false;
}

static void use(const struct checkpoint *ck)
{
    size_t n;
    const struct checkpoint_tensor *tensors = checkpoint_tensors(ck, &n);
    for (size_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = &tensors[i];
        size_t n_elements = 1;
        for (int32_t d = 0; d < t->n_dims; d++) {
            n_elements *= (size_t)t->dims[d];
        }
        if (!is_inside(ck, t) || n_elements > t->n_bytes || checkpoint_find(ck, t->name) != t) {
            abort();
        }
        checkpoint_is_tower(t->name);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct checkpoint *ck;
    struct err err = {""};
    if (!*folder) {
        make_folder();
    }
    write_folder(data, n);
    const bool checked = checkpoint_check(folder, &err) == OK;
    if ((checkpoint_open(folder, &ck, &err) == OK) != checked) {
        abort();
    }
    if (checked) {
        use(ck);
        checkpoint_close(ck);
    }
    return 0;
}

FUZZ_MAIN("safetensors")
