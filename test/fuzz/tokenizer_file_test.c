// SPDX-License-Identifier: Apache-2.0
/* Arbitrary tokenizer.json files: a file loads or is refused, and what loads can be used. */
#include "engine/tokenizer/detok.h"
#include "engine/tokenizer/tokenizer.h"
#include "test/fuzz/fuzz.h"

/* Half of the text is user input, and half is not. */
static void use(const struct tokenizer *tok)
{
    static const char text[] = "Hello  world's <s>\n\tx=1234; \xC3\xA9\xE4\xB8\xAD\xE6\x96\x87 "
                               "\xF0\x9F\x98\x80 \xCC\x81 aaaaaaaaaaaaaaaaaaaaaaaa";
    struct text_span spans[2] = {{text, 20, false}, {text + 20, sizeof text - 21, true}};
    struct tokenizer_flags flags = {true, true};
    struct ids ids;
    struct buf out;
    struct detok d;
    ids_init(&ids, 10000);
    buf_init(&out, 1 << 22);
    tokenizer_encode(tok, spans, 2, flags, &ids, NULL);
    tokenizer_decode(tok, ids.v, ids.n, false, &out);
    tokenizer_decode(tok, ids.v, ids.n, true, &out);
    detok_init(&d, tok, false);
    for (size_t i = 0; i < ids.n; i++) {
        detok_push(&d, ids.v[i], &out);
    }
    detok_flush(&d, &out);
    for (size_t i = 0; i < tokenizer_n_added(tok); i++) {
        struct tokenizer_added a = tokenizer_added_at(tok, i);
        tokenizer_find(tok, a.text, a.n_bytes);
    }
    buf_deinit(&out);
    ids_deinit(&ids);
}

/* The file alone, then as all three files that a tokenizer may have. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tokenizer_files files = {.json = (const char *)data, .json_bytes = n};
    struct tokenizer *tok;
    struct err err = {0};
    if (tokenizer_load_memory(&files, &tok, &err) == OK) {
        use(tok);
        tokenizer_free(tok);
    }
    // The same bytes in place of the two other files.
    files = (struct tokenizer_files){
        .json = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"<s>\":1},\"merges\":[]}}",
        .config = (const char *)data,
        .config_bytes = n,
        .map = (const char *)data,
        .map_bytes = n};
    files.json_bytes = strlen(files.json);
    if (tokenizer_load_memory(&files, &tok, &err) == OK) {
        use(tok);
        tokenizer_free(tok);
    }
    return 0;
}

FUZZ_MAIN("tokenizer_file")
