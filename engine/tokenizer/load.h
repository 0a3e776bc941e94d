// SPDX-License-Identifier: Apache-2.0
/* The reader of tokenizer.json, shared by load.c and load_vocab.c. Private to this folder.
 * Thread: the one that loads. */
#ifndef SLUICE_ENGINE_TOKENIZER_LOAD_H
#define SLUICE_ENGINE_TOKENIZER_LOAD_H

#include "engine/tokenizer/impl.h"

#include "engine/base/json_scan.h"

struct section {
    const char *text; // NULL: absent
    size_t n_bytes;
};

struct loader {
    struct tokenizer *tok;
    struct err *err;
    struct json_scan scan;
    struct buf a; // an unescaped string
    struct section added_tokens, normalizer, pre_tokenizer, post_processor, decoder;
    struct json_scan merges; // where the merges are, if the vocabulary comes after them
    bool has_merges, merges_wait, has_vocab, vocab_is_list;
    char type[32];
    char *unk_token;
    double dropout;
    int64_t unk_id, max_chars;
};

/* Sets the error for an invalid file: the reason why the scan stopped, or `what` and the
 * position. */
enum status loader_error(struct loader *l, const char *what);
/* The last key or string: where it lies if possible, otherwise unescaped into b. */
const char *loader_text(const struct json_scan *sc, struct buf *b, size_t *n);

/* load_vocab reads the model's vocabulary, an object of ids or a list of pieces with scores.
 * load_merges reads the merges, once the vocabulary is known. The scan must be just before the
 * value. */
enum status load_vocab(struct loader *l);
enum status load_merges(struct loader *l);

/* load_pair.c: makes the texts of tokenizer.json and special_tokens_map.json from GPT-2's
 * vocab.json and merges.txt. */
enum status pair_make(const char *dir, struct buf *json, struct buf *map, struct err *err);

#endif
