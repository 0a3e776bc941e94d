// SPDX-License-Identifier: Apache-2.0
/* The parsers of all kinds of grammars. Each builds an expression over rules.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_PARSERS_H
#define SLUICE_ENGINE_GRAMMAR_PARSERS_H

#include "engine/grammar/grammar.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/rules.h"
#include "engine/grammar/style.h"

struct compile;
typedef enum status grammar_parser(struct compile *c, uint32_t *start);

/* The current compilation. No limit in `limits` is 0. */
struct compile {
    struct exprs *x;
    struct rules *rules;
    const struct grammar_source *source;
    const struct grammar_limits *limits;
    grammar_parser *const *parsers;    // indexed by kind, for grammars inside this one
    const struct grammar_vocab *vocab; // grammars may name its special tokens; may be NULL
    const struct style *style;         // for a schema; NULL: JSON's style
    bool only_object;                  // for a schema: only objects are allowed
    bool skip_names; // for a schema: leave out members whose names its style cannot write
    struct err *err;
};

enum status schema_parse(struct compile *c, uint32_t *start);
/* Parses a schema that is part of a larger tree. */
struct tree;
struct tree_value;
enum status schema_parse_at(struct compile *c, struct tree *tree, const struct tree_value *root,
                            uint32_t *start);
enum status tags_parse(struct compile *c, uint32_t *start);
enum status gbnf_parse(struct compile *c, uint32_t *start);
enum status lark_parse(struct compile *c, uint32_t *start);

static inline struct regex_limits regex_limits_of(const struct grammar_limits *l)
{
    return (struct regex_limits){.max_depth = l->max_depth, .max_repeat = l->max_repeat};
}

#endif
