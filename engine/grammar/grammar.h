// SPDX-License-Identifier: Apache-2.0
/* Grammars that a text has to follow: a JSON schema, a regular expression, a context-free grammar
 * (GBNF, Lark), tags that hold these between free text; and which tokens may come next.
 *
 * A text is a string of bytes; how it was cut into tokens does not matter. A token is allowed after
 * a text if and only if the text with the token's bytes behind it is the beginning of some text of
 * the language. Special tokens stand for no bytes: they are allowed where a grammar of tags names
 * them, and the end ids of the vocabulary exactly where the text may end.
 *
 * A state is a small value, and a function of the bytes so far: copy it, keep it beside each draft,
 * drop it. Nothing is ever undone. States live in tables inside the grammar, which are bounded:
 * when they are full they are emptied, and states from before are stale. A call with a stale state
 * says ERR_BUSY and does nothing; the caller then gets the state anew with grammar_fold from the
 * text that it knows. (If the fold itself fails, the text is beyond the limits.)
 *
 * Thread: compiling and freeing any, and a vocabulary may be read by many at once; a compiled
 * grammar is used by one thread at a time (nothing in it is locked). */
#ifndef SLUICE_ENGINE_GRAMMAR_GRAMMAR_H
#define SLUICE_ENGINE_GRAMMAR_GRAMMAR_H

#include "engine/base/status.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the vocabulary ---- */

/* All tokens as bytes, in a trie. Does not change. */
struct grammar_vocab;

/* Of a tokenizer, which must live as long, for ids below n_ids (the model's logits may be more than
 * the tokenizer's ids). Added tokens that are not special count as their text; special ones have
 * names, by which a grammar of tags asks for them. */
enum status grammar_vocab_open(const struct tokenizer *tok, int32_t n_ids, const int32_t *end_ids,
                               size_t n_end_ids, struct grammar_vocab **out, struct err *err);

/* The same from a list; a token without bytes is never allowed, nor is one with the byte 0xff,
 * which no text has. The bytes are copied. */
struct grammar_token {
    const char *bytes;
    size_t n_bytes;
    bool special; // the bytes are its name
};
enum status grammar_vocab_make(const struct grammar_token *tokens, int32_t n_ids,
                               const int32_t *end_ids, size_t n_end_ids, struct grammar_vocab **out,
                               struct err *err);
void grammar_vocab_free(struct grammar_vocab *v); // accepts NULL; after the grammars that use it

/* ---- compiling ---- */

enum grammar_kind {
    GRAMMAR_SCHEMA,
    GRAMMAR_REGEX,
    GRAMMAR_GBNF,
    GRAMMAR_LARK,
    GRAMMAR_TAGS, // JSON: free text and the others together (README.md)
    GRAMMAR_N_KINDS,
};
extern const char *const grammar_kind_names[GRAMMAR_N_KINDS]; // "schema", "regex" and so on

struct grammar_source {
    enum grammar_kind kind;
    const char *text; // UTF-8
    size_t n_bytes;
    // Of a schema alone:
    bool disable_any_whitespace; // nothing between the tokens of JSON
    bool open_objects; // objects that name properties may have others where the schema says nothing
                       // of them
    const char *whitespace_pattern; // a regular expression for what may be between them; NULL: up
                                    // to 24 blanks
};

/* Bounds; 0 takes the default. Work is counted in units that are the same on every machine. */
struct grammar_limits {
    size_t max_text_bytes;     // of a source (1 MB for a schema, else 256 KB)
    int max_depth;             // of JSON, groups, rules in each other (128; groups 200)
    uint32_t max_repeat;       // of {m,n} and the like (1,000,000)
    uint32_t max_nodes;        // JSON values in a schema (100,000)
    uint64_t max_compile_work; // about 250 ms (3,000,000)
    uint64_t max_step_work;    // of one mask, or one advance: about 40 ms (400,000)
    uint32_t max_items;        // ways to read a text at the same time (2,000)
    size_t max_compile_bytes;  // while it is compiled (64 MB)
    size_t max_table_bytes;    // of states, expressions made from states (16 MB)
    size_t max_mask_bytes;     // of masks that are kept (4 MB)
};

struct grammar;

/* ERR_INVALID: the text is no such grammar, or nothing matches it; ERR_UNSUPPORTED: what we do not
 * do, by its name; ERR_LIMIT. The sentence names the keyword and the path in a schema
 * ("#/properties/a: ..."). `limits` and `vocab` may be NULL; without a vocabulary there are no
 * masks. */
enum status grammar_compile(const struct grammar_source *source,
                            const struct grammar_limits *limits, const struct grammar_vocab *vocab,
                            struct grammar **out, struct err *err);
void grammar_free(struct grammar *g); // accepts NULL

/* ---- states ---- */

struct grammar_state {
    uint32_t id, epoch;
};

struct grammar_state grammar_start(struct grammar *g); // of the empty text

/* OK; ERR_INVALID: no text of the language begins so; ERR_LIMIT: too much work or memory; ERR_BUSY:
 * stale. Where it is not OK, *state is as before. */
enum status grammar_advance(struct grammar *g, struct grammar_state *state, const char *bytes,
                            size_t n_bytes);
enum status grammar_advance_token(struct grammar *g, struct grammar_state *state, int32_t id);

/* The state of a whole text, with emptied tables if need be. */
enum status grammar_fold(struct grammar *g, const char *bytes, size_t n_bytes,
                         struct grammar_state *state);

/* The same of a text that is known as tokens. */
enum status grammar_fold_tokens(struct grammar *g, const int32_t *ids, size_t n_ids,
                                struct grammar_state *state);

/* The vocabulary that it was compiled with, or NULL; a token's bytes in it, NULL where it stands
 * for none; whether an id is one of its end ids. */
const struct grammar_vocab *grammar_vocabulary(const struct grammar *g);
const char *grammar_token_bytes(const struct grammar_vocab *v, int32_t id, size_t *n_bytes);
bool grammar_is_end(const struct grammar *g, int32_t id);

/* Whether the text may end here. False for a stale state. */
bool grammar_may_end(struct grammar *g, struct grammar_state state);

/* Bit i of words[i / 32] says whether id i is allowed. Bits beyond n_ids are 0. OK, ERR_LIMIT or
 * ERR_BUSY; where it is not OK, words are all 0. */
size_t grammar_mask_words(const struct grammar_vocab *v);
enum status grammar_mask(struct grammar *g, struct grammar_state state, uint32_t *words);

/* The same for one id, without a mask: for drafts. */
enum status grammar_allows(struct grammar *g, struct grammar_state state, int32_t id,
                           bool *allowed);

/* Writes the bytes that must follow, at most `max`, and says how many. It stops where there is a
 * choice, or where the text may end. */
size_t grammar_forced(struct grammar *g, struct grammar_state state, char *bytes, size_t max);

/* The same as tokens, as the tokenizer of the vocabulary splits it, if it is at least min_bytes
 * long: the first of them, at most max. A guess like others: the text may be split otherwise. */
size_t grammar_forced_tokens(struct grammar *g, struct grammar_state state, size_t min_bytes,
                             int32_t *ids, size_t max);

struct grammar_stats {
    uint64_t compile_work, most_step_work; // units; the second of one mask or advance
    size_t bytes;                          // of all tables and masks
    size_t n_states, n_masks, n_expressions, n_rules;
};
void grammar_stats(const struct grammar *g, struct grammar_stats *stats);

#endif
