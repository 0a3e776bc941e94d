// SPDX-License-Identifier: Apache-2.0
/* The kinds of grammars. */
#include "engine/grammar/grammar.h"

const char *const grammar_kind_names[GRAMMAR_N_KINDS] = {
    [GRAMMAR_SCHEMA] = "schema", [GRAMMAR_REGEX] = "regex", [GRAMMAR_GBNF] = "gbnf",
    [GRAMMAR_LARK] = "lark",     [GRAMMAR_TAGS] = "tags",
};

bool grammar_is_json(enum grammar_kind kind)
{
    return kind == GRAMMAR_SCHEMA || kind == GRAMMAR_TAGS;
}
