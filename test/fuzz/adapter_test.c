// SPDX-License-Identifier: Apache-2.0
/* Arbitrary folders of low-rank adapters: a folder is read or refused, and the modules that are
 * read can be found by their names. The input is adapter_config.json, a NUL byte, and the header
 * and the data of adapter_model.safetensors with a NUL byte between them; the header's length is
 * added. */
#include "engine/model/adapter.h"
#include "engine/model/checkpoint.h"
#include "test/fuzz/fuzz.h"
#include "test/fuzz/fuzz_folder.h"

static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors", NULL};

/* Every number that a product reads is inside its tensor. */
static void use_module(const struct adapter_module *m)
{
    const struct checkpoint_tensor *const both[] = {m->down, m->up};
    for (int i = 0; i < 2; i++) {
        const struct checkpoint_tensor *t = both[i];
        const int64_t n = t->dims[0] * t->dims[1];
        if (t->n_dims != 2 || (size_t)n * dtype_bytes(t->dtype) != t->n_bytes) {
            abort();
        }
    }
    if (m->down->dims[0] != m->rank || m->up->dims[1] != m->rank || !(m->scale > 0.0f)) {
        abort();
    }
}

static void use(const struct adapters *a)
{
    static const char *const names[] = {"layers.0.self_attn.q_proj", "layers.0.mlp.up_proj",
                                        "lm_head"};
    const int32_t n = adapters_n_modules(a);
    bool *used = xcalloc((size_t)n, sizeof *used);
    struct err err = {""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int32_t number = -1;
        const struct adapter_module *m = adapters_find(a, 0, names[i], &number);
        if (m && (number < 0 || number >= n || strcmp(m->name, names[i]) != 0)) {
            abort();
        }
        if (m) {
            used[number] = true;
            use_module(m);
        }
    }
    if (adapters_check_used(a, used, &err) != OK && !*err.text) {
        abort();
    }
    free(used);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *const name = "it";
    const char *const folder = fuzz_folder_open("adapter", files);
    const size_t n_config = fuzz_text_bytes(data, n);
    struct adapters *a = NULL;
    struct err err = {""};
    fuzz_folder_put(files[0], data, n_config);
    data += lesser(n_config + 1, n);
    n -= lesser(n_config + 1, n);
    fuzz_folder_put_safetensors(files[1], data, n);
    if (adapters_open(folder, &name, &folder, 1, &a, &err) == OK) {
        use(a);
        adapters_close(a);
    } else if (!*err.text || a) {
        abort();
    }
    return 0;
}

FUZZ_MAIN("adapter")
