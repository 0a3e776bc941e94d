// SPDX-License-Identifier: Apache-2.0
/* Generates the small files of a model folder, as JSON text, from the metadata of a GGUF file. So
 * the same readers, with all their checks, serve folders and GGUF files.
 * Thread: any. */
#ifndef SLUICE_ENGINE_GGUF_MAKE_H
#define SLUICE_ENGINE_GGUF_MAKE_H

#include "engine/base/buf.h"
#include "engine/gguf/gguf.h"

/* Each appends one file's text. An error names the key that is missing or not supported. */
enum status gguf_make_config(const struct gguf *g, struct buf *out, struct err *err);
enum status gguf_make_tokenizer(const struct gguf *g, struct buf *out, struct err *err);
enum status gguf_make_tokenizer_config(const struct gguf *g, struct buf *out, struct err *err);
/* Appends nothing if the file recommends no sampling parameters. */
enum status gguf_make_generation(const struct gguf *g, struct buf *out, struct err *err);

/* Hugging Face's name of the family (config.json's model_type). */
enum status gguf_model_type(const struct gguf *g, const char **out, struct err *err);
/* The number of layers of the model, and of those after them, which only draft. */
enum status gguf_count_layers(const struct gguf *g, int32_t *layers, int32_t *drafts,
                              struct err *err);

/* ---- private to engine/gguf ---- */

/* How text is split before merging, looked up by the splitter's name in the file (pre.c). */
struct gguf_pre;
/* ERR_UNSUPPORTED names the unknown splitter; NULL means the default of files without a name. */
enum status gguf_find_pre(const char *name, size_t n_bytes, const struct gguf_pre **out,
                          struct err *err);
/* Writes "normalizer": ..., "pre_tokenizer": ...; */
void gguf_put_pre(const struct gguf_pre *p, struct buf *out);
bool gguf_pre_ignores_merges(const struct gguf_pre *p);
bool gguf_pre_adds_bos(const struct gguf_pre *p); // the default for files that do not say

/* The vocabulary: texts and kinds of tokens. */
enum gguf_token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE
};
struct gguf_token {
    const char *text; // not NUL-terminated
    size_t n_bytes;
    enum gguf_token_kind kind;
    double score;
};
struct gguf_vocab {
    struct gguf_token *tokens;
    size_t n;
    bool has_scores;
};
enum status gguf_vocab_open(const struct gguf *g, struct gguf_vocab *out, struct err *err);
void gguf_vocab_close(struct gguf_vocab *v);
/* True if the token ends the model's turn, judging by its text. */
bool gguf_ends_turn(const struct gguf_token *t);
/* End-of-text ids, at most `max`: those named by keys, then those recognised by their text. */
size_t gguf_end_ids(const struct gguf *g, const struct gguf_vocab *v, int64_t *out, size_t max);

#endif
