// SPDX-License-Identifier: Apache-2.0
/* Compiled grammars of one model, kept by the text that they are made of, so that a schema is
 * compiled once for all requests that have it.
 * Thread: any; a grammar that was taken is the engine thread's to use, through its requests. */
#ifndef SLUICE_SERVER_CALL_GRAMMARS_H
#define SLUICE_SERVER_CALL_GRAMMARS_H

#include "engine/engine.h"
#include "engine/grammar/grammar.h"

struct grammars;

/* One that is in use. */
struct kept_grammar {
    struct grammar *grammar;
};

struct grammars *grammars_open(void);
void grammars_close(struct grammars *g); // none is in use; accepts NULL

/* Compiles it, unless it is there. The first call reads the vocabulary (60 ms with 128,256 tokens).
 * The error is that of grammar_compile. */
enum status grammars_take(struct grammars *g, const struct tokenizer *tok,
                          const struct engine_info *info, const struct grammar_source *source,
                          struct kept_grammar **out, struct err *err);
/* No request of the engine has it any more. Accepts NULL. */
void grammars_give(struct grammars *g, struct kept_grammar *k);

#endif
