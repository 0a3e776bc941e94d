/* The parsers of the kinds of sources: each makes an expression over rules.
 *
 * Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_PARSERS_H
#define SLUICE_ENGINE_GRAMMAR_PARSERS_H

#include "engine/grammar/grammar.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/rules.h"

/* What is being compiled; limits without zeros. */
struct compile {
    struct exprs *x;
    struct rules *rules;
    const struct grammar_source *source;
    const struct grammar_limits *limits;
    struct err *err;
};

enum status schema_parse(struct compile *c, uint32_t *start);
enum status gbnf_parse(struct compile *c, uint32_t *start);
enum status lark_parse(struct compile *c, uint32_t *start);

static inline struct regex_limits regex_limits_of(const struct grammar_limits *l)
{
    return (struct regex_limits){.max_depth = l->max_depth, .max_repeat = l->max_repeat};
}

#endif
