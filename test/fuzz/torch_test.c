// SPDX-License-Identifier: Apache-2.0
/* Arbitrary files of torch.save: a file is read or refused, and all tensors that are read can be
 * used. The input is the length of a pickle in two bytes, the pickle, and the bytes of storage 0,
 * which are put into an archive, so that most inputs get that far; if the length is too large, the
 * bytes after it are the whole file. */
#include "engine/base/mem.h"
#include "engine/torch/torch.h"
#include "test/engine/torch/archive.h"
#include "test/fuzz/fuzz.h"

/* Each tensor has as many bytes as its shape says, all of which can be read. */
static void use(const struct torch_file *f)
{
    volatile unsigned sum = 0;
    for (size_t i = 0; i < torch_n_tensors(f); i++) {
        const struct torch_tensor *t = torch_tensor_at(f, i);
        size_t n = 1;
        for (int32_t d = 0; d < t->n_dims; d++) {
            n *= (size_t)t->dims[d];
        }
        if (n > t->n_bytes || (n == 0) != (t->n_bytes == 0) || !*t->dtype_name) {
            abort();
        }
        for (size_t b = 0; b < t->n_bytes; b++) {
            sum += t->data[b];
        }
    }
}

static void use_file(const void *data, size_t n)
{
    unsigned char *file = xmalloc(n + 1); // at an odd address, and of its exact size
    memcpy(file + 1, data, n);
    const struct file_map map = {file + 1, n};
    struct torch_file *f;
    struct err err = {""};
    if (torch_open(&map, "fuzz", &f, &err) == OK) {
        use(f);
        torch_close(f);
    }
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) {
        return 0;
    }
    const size_t n_pickle = data[0] | (size_t)data[1] << 8;
    data += 2;
    n -= 2;
    if (n_pickle > n) {
        use_file(data, n);
        return 0;
    }
    struct archive a;
    archive_begin(&a);
    archive_add(&a, "m/data.pkl", data, n_pickle);
    archive_add(&a, "m/data/0", data + n_pickle, n - n_pickle);
    archive_end(&a);
    use_file(a.file.data, a.file.n_bytes);
    archive_free(&a);
    return 0;
}

FUZZ_MAIN("torch")
