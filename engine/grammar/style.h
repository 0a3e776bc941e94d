// SPDX-License-Identifier: Apache-2.0
/* Notations for the values of a schema. One of them is JSON. The others are those that models use
 * for the arguments of a call: the parameters of the outermost object between tags, with unquoted
 * strings; or literals similar to JSON. The parsers are in server/chat/tools.
 * Thread: any; the table is constant. */
#ifndef SLUICE_ENGINE_GRAMMAR_STYLE_H
#define SLUICE_ENGINE_GRAMMAR_STYLE_H

#include <stdbool.h>
#include <stddef.h>

/* The type of a value, for styles that write it before the value. */
enum style_type {
    STYLE_STRING,
    STYLE_NUMBER,
    STYLE_BOOL,
    STYLE_NULL,
    STYLE_OBJECT,
    STYLE_ARRAY,
    N_STYLE_TYPES,
};

enum { STYLE_NAME_MAX_BYTES = 255 };

struct style {
    const char *name;
    const char *words[3]; // null, true, false
    const char *quote;    // what is on both sides of a string, which then has no escapes; NULL:
                          // strings are as in JSON
    bool bare_names;      // names in objects have no quotes

    /* Names without quotes have at most STYLE_NAME_MAX_BYTES and no control characters. */
    const char *name_bars;  // characters that such names must not contain
    const char *name_edges; // characters with which they must not begin or end
    bool word_names;        // they are identifiers, in which "." and "-" may occur as well

    bool compact; // no white space between tokens

    /* The outermost object: `open` KEY `colon` VALUE `comma` KEY... `close`. */
    bool has_outer; // false: it is written like any other object
    const char *open, *close, *key, *colon, *comma;
    const char *value_end;
    const char *bar; // text that strings in the outermost object must not contain; NULL: none
    bool is_bare; // strings in the outermost object are unquoted; the schema decides which values
                  // are strings
    const char *types[N_STYLE_TYPES]; // what precedes a value, by its type; NULL: nothing
    /* All objects and arrays are written like the outermost object: the names of members are also
     * part of value_end, and items have a fixed name. Members with undeclared names cannot be
     * written. */
    bool elements;
};

/* Whether the parser of this style reads the name of a member where it is written without
 * quotes. */
bool style_reads_name(const struct style *s, const char *name, size_t n);

const struct style *style_json(void);
const struct style *style_find(const char *name, size_t n); // NULL: unknown

#endif
