// SPDX-License-Identifier: Apache-2.0
/* What the metadata of a GGUF file say, as the files that a model's folder would have: texts of
 * JSON, so that one set of readers, with all its checks, serves both.
 * Thread: any. */
#ifndef SLUICE_ENGINE_GGUF_MAKE_H
#define SLUICE_ENGINE_GGUF_MAKE_H

#include "engine/base/buf.h"
#include "engine/gguf/gguf.h"

/* Each appends one file's text. An error says which key is missing, or not supported. */
enum status gguf_make_config(const struct gguf *g, struct buf *out, struct err *err);
enum status gguf_make_tokenizer(const struct gguf *g, struct buf *out, struct err *err);
enum status gguf_make_tokenizer_config(const struct gguf *g, struct buf *out, struct err *err);
/* Nothing is appended where the file recommends no sampling. */
enum status gguf_make_generation(const struct gguf *g, struct buf *out, struct err *err);

/* What Hugging Face calls the family (config.json's model_type). */
enum status gguf_model_type(const struct gguf *g, const char **out, struct err *err);

/* ---- for the files of engine/gguf alone ---- */

/* How a text is cut before its pieces are merged, by the name that files give it (pre.c). */
struct gguf_pre;
/* ERR_UNSUPPORTED names it, and NULL is what files without a name mean. */
enum status gguf_find_pre(const char *name, size_t n_bytes, const struct gguf_pre **out,
                          struct err *err);
/* "normalizer": ..., "pre_tokenizer": ...; */
void gguf_put_pre(const struct gguf_pre *p, struct buf *out);
bool gguf_pre_ignores_merges(const struct gguf_pre *p);
bool gguf_pre_adds_bos(const struct gguf_pre *p); // where the file does not say it

/* The tokens' list: their texts and kinds. */
enum gguf_token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE
};
struct gguf_token {
    const char *text; // not terminated
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
/* Whether the token ends what a model says, by its text. */
bool gguf_ends_turn(const struct gguf_token *t);
/* Ids that end a text: those that keys name, then those whose text tells it. At most `max`. */
size_t gguf_end_ids(const struct gguf *g, const struct gguf_vocab *v, int64_t *out, size_t max);

#endif
