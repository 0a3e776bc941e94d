// SPDX-License-Identifier: Apache-2.0
/* Arbitrary safetensors folders: a folder is read or refused, and all tensors that are read lie in
 * its files. The input is an index, or nothing, then the header and the data of a file, with NUL
 * bytes between them. The header's length is added, so that most inputs get that far; if there is
 * no header, the data are the whole file. */
#include "engine/model/checkpoint.h"
#include "engine/model/wrappers.h"
#include "test/fuzz/fuzz.h"
#include "test/fuzz/fuzz_folder.h"

static const char *const names[] = {"model.safetensors.index.json", "model.safetensors",
                                    "a.safetensors", NULL};
enum { INDEX, WHOLE, SHARD };

/* Leaves an index and a shard, or a single file. */
static void write_folder(const uint8_t *data, size_t n)
{
    const size_t n_index = fuzz_text_bytes(data, n);
    const int name = n_index > 0 ? SHARD : WHOLE;
    fuzz_folder_empty();
    if (n_index > 0) {
        fuzz_folder_put(names[INDEX], data, n_index);
    }
    data += lesser(n_index + 1, n);
    n -= lesser(n_index + 1, n);
    fuzz_folder_put_safetensors(names[name], data, n);
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
        wrapper_is_tower(t->name);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct checkpoint *ck;
    struct err err = {""};
    const char *folder = fuzz_folder_open("safetensors", names);
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
