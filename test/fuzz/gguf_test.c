// SPDX-License-Identifier: Apache-2.0
/* Arbitrary GGUF files: a file is read or refused, and what is read can be used: its keys, the
 * files of a model folder made of them, the numbers of its tensors, and its tokenizer. */
#include "engine/device/codec.h"
#include "engine/gguf/make.h"
#include "engine/model/checkpoint_gguf.h"
#include "engine/tokenizer/tokenizer.h"
#include "test/fuzz/fuzz.h"

/* A tokenizer that was made from the file must encode any text without a sanitizer error. */
static void use_tokenizer(const struct buf *json, const struct buf *config)
{
    static const char text[] = "Hello  world's <s>\n\tx=1234; \xC3\xA9\xE4\xB8\xAD aaaaaaaaaaaa";
    struct tokenizer_files files = {.json = json->data,
                                    .json_bytes = json->n_bytes,
                                    .config = config->data,
                                    .config_bytes = config->n_bytes};
    struct tokenizer *tok;
    struct err err = {""};
    if (tokenizer_load_memory(&files, &tok, &err) != OK) {
        return;
    }
    struct text_span span = {text, sizeof text - 1, true};
    struct ids ids;
    struct buf out;
    ids_init(&ids, 10000);
    buf_init(&out, 1 << 22);
    tokenizer_encode(tok, &span, 1, (struct tokenizer_flags){true, true}, &ids, NULL);
    tokenizer_decode(tok, ids.v, ids.n, false, &out);
    buf_deinit(&out);
    ids_deinit(&ids);
    tokenizer_free(tok);
}

/* Files of a model folder, made from the file's keys as the server makes them. */
static void use_words(const struct gguf *g)
{
    struct err err = {""};
    struct buf config, generation, tokenizer, beside;
    buf_init(&config, 1 << 22);
    buf_init(&generation, 1 << 22);
    buf_init(&tokenizer, 1 << 24);
    buf_init(&beside, 1 << 24);
    gguf_make_config(g, &config, &err);
    gguf_make_generation(g, &generation, &err);
    if (gguf_make_tokenizer(g, &tokenizer, &err) == OK &&
        gguf_make_tokenizer_config(g, &beside, &err) == OK && !tokenizer.failed && !beside.failed) {
        use_tokenizer(&tokenizer, &beside);
    }
    buf_deinit(&config);
    buf_deinit(&generation);
    buf_deinit(&tokenizer);
    buf_deinit(&beside);
}

/* Reads the first and the last bytes of each tensor, then the first and the last numbers of each
 * quantised tensor as a model folder has it. */
static float use_tensors(const struct gguf *g)
{
    struct checkpoint_tensor *tensors;
    size_t n;
    float sum = 0.0f;
    struct err err = {""};
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        sum += (float)(t->data[0] + t->data[t->n_bytes - 1]);
    }
    checkpoint_gguf_read(g, &tensors, &n, &err);
    for (size_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = &tensors[i];
        int64_t cols = t->dims[t->n_dims - 1];
        if (t->blocks) {
            int64_t rows = (int64_t)t->n_bytes / t->blocks->n_bytes / (cols / t->blocks->n);
            struct weight_part p = weight_part_blocks(t->data, t->blocks, rows, cols);
            sum += weight_part_get(&p, 0, 0) + weight_part_get(&p, rows - 1, cols - 1);
        }
        free((char *)t->name);
    }
    free(tensors);
    return sum;
}

/* From memory, since a fuzzer has no files. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct gguf *g;
    struct err err = {""};
    if (gguf_open_memory(data, n, "fuzz", &g, &err) != OK) {
        return 0;
    }
    use_words(g);
    volatile float sum = use_tensors(g);
    (void)sum;
    gguf_close(g);
    return 0;
}

FUZZ_MAIN("gguf")
