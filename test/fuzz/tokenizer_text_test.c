// SPDX-License-Identifier: Apache-2.0
/* Any text with each kind of tokenizer. The first byte selects the tokenizer and its flags; the
 * rest is the text. Encoding ends, cutting into spans changes nothing unless a token is a control
 * token, and byte-level models return every byte. */
#include "engine/base/buf.h"
#include "engine/base/optional.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/detok.h"
#include "engine/tokenizer/tokenizer.h"
#include "test/fuzz/fuzz.h"

#define CHECK_FUZZ(x)                                                                              \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "not true: %s (%s:%d)\n", #x, __FILE__, __LINE__);                     \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static const struct {
    const char *name;
    bool lossless; // byte level without normalisation: detokenizing gives the text back
} kinds[] = {
    {"gpt2", true},       {"llama3", true},    {"qwen2", false},    {"o200k", true},
    {"deepseek", true},   {"falcon", true},    {"llama2", false},   {"phi3", false},
    {"gemma", false},     {"mistral", false},  {"unigram", false},  {"unigram-bytes", false},
    {"wordpiece", false}, {"han-apart", true}, {"starcoder", true}, {"qwen35", false}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* Loaded once per process. */
static const struct tokenizer *load(size_t i)
{
    static struct tokenizer *loaded[N_KINDS];
    if (!loaded[i]) {
        char path[256];
        struct err err = {0};
        snprintf(path, sizeof path, "test/tokenizers/%s.json", kinds[i].name);
        if (tokenizer_load(path, &loaded[i], &err) != OK) {
            fprintf(stderr, "%s\n", err.text);
            abort();
        }
    }
    return loaded[i];
}

/* The text as a tokenizer gives it back: invalid parts as U+FFFD. */
static void put_repaired(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t k = utf8_valid_length(s + i, n - i);
        buf_put(out, k ? s + i : "\xEF\xBF\xBD", k ? k : 3);
        i += k ? k : utf8_maximal_subpart(s + i, n - i);
    }
}

/* Token by token, and as a stream: both must give the text. */
static void check_back(const struct tokenizer *tok, const struct ids *ids, const char *s, size_t n,
                       bool lossless)
{
    struct buf text, stream, whole;
    struct detok d;
    buf_init(&text, 1 << 24);
    buf_init(&stream, 1 << 24);
    buf_init(&whole, 1 << 24);
    put_repaired(&text, s, n);
    detok_init(&d, tok, false);
    for (size_t i = 0; i < ids->n; i++) {
        detok_push(&d, ids->v[i], &stream);
        CHECK_FUZZ(utf8_check(or_empty(stream.data), stream.n_bytes) == stream.n_bytes);
    }
    detok_flush(&d, &stream);
    tokenizer_decode(tok, ids->v, ids->n, false, &whole);
    CHECK_FUZZ(utf8_check(or_empty(whole.data), whole.n_bytes) == whole.n_bytes);
    if (lossless) {
        CHECK_FUZZ(stream.n_bytes == text.n_bytes && whole.n_bytes == text.n_bytes);
        CHECK_FUZZ(text.n_bytes == 0 || memcmp(stream.data, text.data, text.n_bytes) == 0);
        CHECK_FUZZ(text.n_bytes == 0 || memcmp(whole.data, text.data, text.n_bytes) == 0);
    }
    buf_deinit(&text);
    buf_deinit(&stream);
    buf_deinit(&whole);
}

/* The same text as one span and in several. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) {
        return 0;
    }
    size_t kind = data[0] % N_KINDS;
    const struct tokenizer *tok = load(kind);
    struct tokenizer_flags flags = {false, (data[0] & 0x40) == 0};
    const char *s = (const char *)data + 1;
    n--;
    struct text_span span = {s, n, false};
    struct ids ids, parts;
    struct err err = {0};
    ids_init(&ids, 1 << 22);
    ids_init(&parts, 1 << 22);
    CHECK_FUZZ(tokenizer_encode(tok, &span, 1, flags, &ids, &err) == OK);
    check_back(tok, &ids, s, n, kinds[kind].lossless);

    // If it is cut into spans that are not input, the ids are the same.
    struct text_span spans[3] = {
        {s, n / 3, false}, {s + n / 3, n / 2 - n / 3, false}, {s + n / 2, n - n / 2, false}};
    CHECK_FUZZ(tokenizer_encode(tok, spans, 3, flags, &parts, &err) == OK);
    CHECK_FUZZ(parts.n == ids.n && (ids.n == 0 || memcmp(parts.v, ids.v, 4 * ids.n) == 0));

    // If all of it is input, no special token comes out.
    parts.n = 0;
    span.is_input = true;
    CHECK_FUZZ(tokenizer_encode(tok, &span, 1, flags, &parts, &err) == OK);
    for (size_t i = 0; i < parts.n; i++) {
        // (except the unknown token, which stands for unknown input)
        size_t k;
        const char *text = tokenizer_token_text(tok, parts.v[i], &k);
        CHECK_FUZZ(!tokenizer_is_special(tok, parts.v[i]) || strcmp(text, "<unk>") == 0 ||
                   strcmp(text, "[UNK]") == 0);
    }
    ids_deinit(&ids);
    ids_deinit(&parts);
    return 0;
}

FUZZ_MAIN("tokenizer_text")
