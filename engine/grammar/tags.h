// SPDX-License-Identifier: Apache-2.0
/* The internal interface of the parser of structural tags. Thread: one owner. */
#ifndef SLUICE_ENGINE_GRAMMAR_TAGS_H
#define SLUICE_ENGINE_GRAMMAR_TAGS_H

#include "engine/grammar/parsers.h"
#include "engine/grammar/schema_tree.h"
#include "engine/grammar/vocab.h"

enum { TAGS_DEFINITIONS = 16 };

struct tags {
    struct compile *c;
    struct exprs *x;
    struct tree *tree;
    uint32_t rule[TAGS_DEFINITIONS]; // index: definition of the root; its rule plus 1
};
struct bars;

/* Writes "#/path: sentence"; returns the status. */
enum status tags_fail(struct tags *t, enum status st, const struct tree_value *at, const char *fmt,
                      ...) PRINTF_LIKE(4, 5);

/* Adds the path to an error message that has none. */
enum status tags_placed(struct tags *t, enum status st, const struct tree_value *at);

/* Reads a required member, which must have this type. */
enum status tags_member(struct tags *t, const struct tree_value *node, const char *key,
                        enum json_type type, const struct tree_value **v);

/* True if the member exists and is true. */
bool tags_flag(const struct tree_value *node, const char *key);

/* What a format of free text consists of: characters, or also parts of them. */
uint32_t tags_any(struct tags *t, const struct tree_value *node);

/* Members whose keys are not in `known` are errors, because they may request something. */
enum status tags_check_keys(struct tags *t, const struct tree_value *node, const char *known);

/* A string of the tree, in which the names of special tokens mean those tokens. */
enum status tags_text(struct tags *t, const struct tree_value *v, uint32_t *e);

/* The texts of a format. Free text in them contains none of the words in `bars`. */
enum status tags_format(struct tags *t, const struct tree_value *node, const struct bars *bars,
                        uint32_t *e);

/* Formats that are grammars of another kind. */
enum status tags_regex(struct tags *t, const struct tree_value *node, const struct bars *bars,
                       uint32_t *e);
enum status tags_grammar(struct tags *t, const struct tree_value *node, const struct bars *bars,
                         uint32_t *e);
enum status tags_schema(struct tags *t, const struct tree_value *node, const struct bars *bars,
                        uint32_t *e);

/* The style that a node names; JSON's if the node names none. */
enum status tags_style(struct tags *t, const struct tree_value *node, const struct style **style);

#endif
