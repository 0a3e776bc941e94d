// SPDX-License-Identifier: Apache-2.0
/* A cache of a model's compiled grammars, by their source, so that a schema is compiled once for
 * all requests with it.
 * Thread: any; the engine thread uses a grammar through the requests that hold it. */
#ifndef SLUICE_SERVER_CALL_GRAMMARS_H
#define SLUICE_SERVER_CALL_GRAMMARS_H

#include "engine/grammar/grammar.h"

struct engine_info;
struct grammars;

/* A grammar in use. */
struct kept_grammar {
    struct grammar *grammar;
};

struct grammars *grammars_open(void);
void grammars_close(struct grammars *g); // no grammar may be in use; accepts NULL

/* Compiles the grammar unless it is cached. The first call builds the vocabulary (60 ms with
 * 128,256 tokens). Errors are those of grammar_compile. */
enum status grammars_take(struct grammars *g, const struct tokenizer *tok,
                          const struct engine_info *info, const struct grammar_source *source,
                          struct kept_grammar **out, struct err *err);
/* The vocabulary itself, valid until grammars_close. */
enum status grammars_vocabulary(struct grammars *g, const struct tokenizer *tok,
                                const struct engine_info *info, const struct grammar_vocab **out,
                                struct err *err);
/* Releases a grammar. The engine must no longer have a request that uses it. Accepts NULL. */
void grammars_give(struct grammars *g, struct kept_grammar *k);

#endif
