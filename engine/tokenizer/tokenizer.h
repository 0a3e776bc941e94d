// SPDX-License-Identifier: Apache-2.0
/* Text to token ids and back, exactly as Hugging Face `tokenizers` does for the same
 * tokenizer.json: BPE (byte level or with byte fallback) and Unigram, and all normalizers,
 * pre-tokenizers, post-processors and decoders that language models use. An unsupported feature in
 * a file is an error at load, never a silent difference. Time is linear in the length of the text.
 *
 * A tokenizer does not change after tokenizer_load. Pointers to token text live as long as the
 * tokenizer.
 *
 * Special tokens are strings such as "<|im_end|>" that user text must never turn into: see
 * tokenizer_encode.
 * Thread: any; one tokenizer may serve many threads at once. */
#ifndef SLUICE_ENGINE_TOKENIZER_TOKENIZER_H
#define SLUICE_ENGINE_TOKENIZER_TOKENIZER_H

#include "engine/base/buf.h"
#include "engine/base/status.h"
#include "engine/base/text_span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* A growable list of token ids with a maximum length. `v` is NULL until the first id. */
struct ids {
    int32_t *v;
    size_t n, cap, max;
};

void ids_init(struct ids *ids, size_t max);
void ids_deinit(struct ids *ids);          // accepts a zeroed struct
bool ids_put(struct ids *ids, int32_t id); // false: over the maximum, or out of memory

struct tokenizer_flags {
    bool add_special;   // add what the model expects around a prompt (such as BOS)
    bool parse_special; // recognise special tokens in text that is not user input
};

/* Reads a model folder (tokenizer.json, or GPT-2's vocab.json and merges.txt, and if they exist
 * tokenizer_config.json and special_tokens_map.json) or a single tokenizer.json. The caller frees
 * *out with tokenizer_free. tokenizer_is_in: whether the folder, or GGUF file, has a tokenizer. */
bool tokenizer_is_in(const char *dir);
enum status tokenizer_load(const char *dir_or_file, struct tokenizer **out, struct err *err);

/* Reads the files from memory; `config` and `map` (the two other files) may be NULL. */
struct tokenizer_files {
    const char *json, *config, *map;
    size_t json_bytes, config_bytes, map_bytes;
};
enum status tokenizer_load_memory(const struct tokenizer_files *files, struct tokenizer **out,
                                  struct err *err);
void tokenizer_free(struct tokenizer *tok); // accepts NULL

/* Appends the ids of the joined text of all spans. Because the normal pipeline runs on the joined
 * text, span borders change nothing for harmless input. An added token is not recognised if any of
 * its bytes is user input (`is_input`) and it is special or looks like control markup
 * ("<tool_call>"); with parse_special false, special tokens are recognised nowhere. Plain text is
 * one span that is not input. Malformed UTF-8 is read as U+FFFD. Returns ERR_LIMIT if `out` would
 * exceed its maximum; `out` then holds the first ids. */
enum status tokenizer_encode(const struct tokenizer *tok, const struct text_span *spans,
                             size_t n_spans, struct tokenizer_flags flags, struct ids *out,
                             struct err *err);

/* Appends the ids of two texts that a model reads together, with what it expects around and between
 * them. *parts: the numbers of ids that each part has. If the tokens of the second text have
 * another type, type_at is the index of the first of them in the whole, otherwise 0.
 * ERR_UNSUPPORTED: the tokenizer's template for pairs is not supported. */
struct tokenizer_pair {
    size_t before, first, between, second, after;
    size_t type_at;
};
enum status tokenizer_encode_pair(const struct tokenizer *tok, const struct text_span texts[2],
                                  bool parse_special, struct ids *out, struct tokenizer_pair *parts,
                                  struct err *err);

/* Appends the text of the list like Hugging Face's decode() (a leading space may be dropped).
 * Unknown ids contribute nothing. To decode a stream, see detok.h. */
void tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n_ids,
                      bool skip_special, struct buf *out);

int32_t tokenizer_vocab_size(const struct tokenizer *tok); // highest id + 1

/* The bytes that a token stands for in the middle of a stream: byte-level symbols decoded, the
 * SentencePiece space as ' ', "<0xE2>" as one byte. It may be part of a character. NULL and 0 for
 * ids that do not exist. */
const char *tokenizer_piece(const struct tokenizer *tok, int32_t id, size_t *n_bytes);

/* The spelling in tokenizer.json ("Ġhello"), NUL-terminated; NULL for an id that does not exist. */
const char *tokenizer_token_text(const struct tokenizer *tok, int32_t id, size_t *n_bytes);

/* The id with this spelling in tokenizer.json; -1 if there is none. */
int32_t tokenizer_find(const struct tokenizer *tok, const char *text, size_t n_bytes);

/* If special, decoding may skip it. */
bool tokenizer_is_special(const struct tokenizer *tok, int32_t id);

/* Added tokens in file order, which a client may want to list, ban or search for. */
struct tokenizer_added {
    const char *text;
    size_t n_bytes;
    int32_t id;
    bool special;
};
size_t tokenizer_n_added(const struct tokenizer *tok);
struct tokenizer_added tokenizer_added_at(const struct tokenizer *tok, size_t i);

/* -1 if the folder names no such token. */
int32_t tokenizer_bos(const struct tokenizer *tok);
int32_t tokenizer_eos(const struct tokenizer *tok);

/* The numbers of ids that add_special puts before and after a text. */
void tokenizer_n_around(const struct tokenizer *tok, size_t *n_before, size_t *n_after);

/* The length of the longest token's piece, at least 1. A text of n bytes has at least n / this many
 * tokens, so prompts that cannot fit are rejected before any work is done. */
size_t tokenizer_longest_piece(const struct tokenizer *tok);

#endif
