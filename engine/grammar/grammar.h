// SPDX-License-Identifier: Apache-2.0
/* Grammars for output: a JSON schema, a regular expression, a context-free grammar (GBNF, Lark), or
 * tags that embed these in free text. A compiled grammar says which tokens may come next.
 *
 * A text is a string of bytes; how it is split into tokens does not matter. A token is allowed
 * after a text if and only if the text followed by the token's bytes is a prefix of some text of
 * the language. Special tokens have no bytes: they are allowed where a grammar of tags names them,
 * and the end ids of the vocabulary exactly where the text may end.
 *
 * A state is a small value that depends only on the bytes so far: it can be copied, stored with
 * each draft, and dropped. There is no undo. States refer to tables inside the grammar, which are
 * limited in size: when they are full they are cleared, and older states become stale. A call with
 * a stale state returns ERR_BUSY and has no effect; the caller then recomputes the state with
 * grammar_fold from the text. (If the fold itself fails, the text exceeds the limits.)
 *
 * Thread: any for compiling and freeing; a vocabulary may be read concurrently; a compiled grammar
 * has no locks and is used by one thread at a time. */
#ifndef SLUICE_ENGINE_GRAMMAR_GRAMMAR_H
#define SLUICE_ENGINE_GRAMMAR_GRAMMAR_H

#include "engine/base/status.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the vocabulary ---- */

/* All tokens as bytes, in a trie. Immutable. */
struct grammar_vocab;

/* The vocabulary of a tokenizer, which must outlive it, for ids below n_ids (the model may have
 * more logits than the tokenizer has ids). Added tokens that are not special count as their text.
 * Special tokens have names, by which grammars of tags refer to them. */
enum status grammar_vocab_open(const struct tokenizer *tok, int32_t n_ids, const int32_t *end_ids,
                               size_t n_end_ids, struct grammar_vocab **out, struct err *err);

/* A vocabulary made from a list. Tokens without bytes are never allowed, and neither are tokens
 * that contain the byte 0xff, which UTF-8 never contains. The bytes are copied. */
struct grammar_token {
    const char *bytes;
    size_t n_bytes;
    bool special; // the bytes are its name
};
enum status grammar_vocab_make(const struct grammar_token *tokens, int32_t n_ids,
                               const int32_t *end_ids, size_t n_end_ids, struct grammar_vocab **out,
                               struct err *err);
/* Accepts NULL; call it after the grammars that use it are freed. */
void grammar_vocab_free(struct grammar_vocab *v);

/* ---- compiling ---- */

enum grammar_kind {
    GRAMMAR_SCHEMA,
    GRAMMAR_REGEX,
    GRAMMAR_GBNF,
    GRAMMAR_LARK,
    GRAMMAR_TAGS, // JSON: free text with embedded grammars (README.md)
    GRAMMAR_N_KINDS,
};
extern const char *const grammar_kind_names[GRAMMAR_N_KINDS]; // "schema", "regex" etc.
bool grammar_is_json(enum grammar_kind kind);                 // whether its text is JSON

struct grammar_source {
    enum grammar_kind kind;
    const char *text; // UTF-8
    size_t n_bytes;
    // For schemas only.
    bool disable_any_whitespace; // no white space between JSON tokens
    bool open_objects; // objects whose properties are listed may have other properties too, unless
                       // the schema forbids them
    // A regular expression for the white space; NULL: at most 24 characters.
    const char *whitespace_pattern;
};

/* Limits; 0 selects the default, given in parentheses. Work is counted in units that do not depend
 * on the machine. */
struct grammar_limits {
    size_t max_text_bytes;     // size of the source (1 MB for a schema, otherwise 256 KB)
    int max_depth;             // nesting of JSON, groups and rules (128; groups 200)
    uint32_t max_repeat;       // counts in {m,n} and similar (1,000,000)
    uint32_t max_nodes;        // JSON values in a schema (100,000)
    uint64_t max_compile_work; // (3,000,000, about 250 ms)
    uint64_t max_step_work;    // of one mask or one advance (400,000, about 40 ms)
    uint32_t max_items;        // number of simultaneous parses of a text (2,000)
    size_t max_compile_bytes;  // memory during compilation (64 MB)
    size_t max_table_bytes;    // memory for states, and for expressions derived for them (16 MB)
    size_t max_mask_bytes;     // memory for cached masks (4 MB)
};

struct grammar;

/* ERR_INVALID: the grammar is malformed, or nothing matches it; ERR_UNSUPPORTED: it uses an
 * unsupported feature, which the message names; ERR_LIMIT. For schemas the message contains the
 * keyword and the path ("#/properties/a: ..."). `limits` and `vocab` may be NULL; masks require a
 * vocabulary. */
enum status grammar_compile(const struct grammar_source *source,
                            const struct grammar_limits *limits, const struct grammar_vocab *vocab,
                            struct grammar **out, struct err *err);
void grammar_free(struct grammar *g); // accepts NULL

/* Writes the grammar as a format of structural tags, for use inside a larger grammar. A JSON text
 * must be valid. open_objects is left out. */
struct buf;
void grammar_put_tag(const struct grammar_source *source, struct buf *out);

/* ---- states ---- */

struct grammar_state {
    uint32_t id, epoch;
};

struct grammar_state grammar_start(struct grammar *g); // for the empty text

/* OK; ERR_INVALID: no text of the language begins like this; ERR_LIMIT: too much work or memory;
 * ERR_BUSY: the state is stale. On errors *state is unchanged. */
enum status grammar_advance(struct grammar *g, struct grammar_state *state, const char *bytes,
                            size_t n_bytes);
enum status grammar_advance_token(struct grammar *g, struct grammar_state *state, int32_t id);

/* Computes the state of a whole text, and clears the tables if necessary. */
enum status grammar_fold(struct grammar *g, const char *bytes, size_t n_bytes,
                         struct grammar_state *state);

/* The same for a text given as tokens. */
enum status grammar_fold_tokens(struct grammar *g, const int32_t *ids, size_t n_ids,
                                struct grammar_state *state);

/* grammar_vocabulary: the grammar's vocabulary, or NULL. grammar_token_bytes: the bytes of a token,
 * or NULL if it has none. grammar_is_end: whether the id is one of the vocabulary's end ids. */
const struct grammar_vocab *grammar_vocabulary(const struct grammar *g);
const char *grammar_token_bytes(const struct grammar_vocab *v, int32_t id, size_t *n_bytes);
bool grammar_is_end(const struct grammar *g, int32_t id);

/* All ids except the end ids. */
void grammar_mask_text(const struct grammar_vocab *v, uint32_t *words);

/* Whether the text may end here. False for a stale state. */
bool grammar_may_end(struct grammar *g, struct grammar_state state);

/* Bit i % 32 of words[i / 32] is 1 if id i is allowed; bits from n_ids on are 0. Returns OK,
 * ERR_LIMIT or ERR_BUSY; on errors all words are 0. */
size_t grammar_mask_words(const struct grammar_vocab *v);
enum status grammar_mask(struct grammar *g, struct grammar_state state, uint32_t *words);

/* Checks a single id without computing a mask, for drafts. */
enum status grammar_allows(struct grammar *g, struct grammar_state state, int32_t id,
                           bool *allowed);

/* Writes the bytes that must follow, at most `max`, and returns their number. Stops where there is
 * a choice, and where the text may end. */
size_t grammar_forced(struct grammar *g, struct grammar_state state, char *bytes, size_t max);

/* The bytes that must follow, as tokens, split by the vocabulary's tokenizer: at most the first
 * `max`, and none if fewer than min_bytes bytes must follow. Only a guess, because the model may
 * split the text differently. */
size_t grammar_forced_tokens(struct grammar *g, struct grammar_state state, size_t min_bytes,
                             int32_t *ids, size_t max);

struct grammar_stats {
    // In units; most_step_work is the maximum over masks and advances.
    uint64_t compile_work, most_step_work;
    size_t bytes; // of all tables and masks
    size_t n_states, n_masks, n_expressions, n_rules;
};
void grammar_stats(const struct grammar *g, struct grammar_stats *stats);

#endif
