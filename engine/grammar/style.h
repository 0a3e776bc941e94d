// SPDX-License-Identifier: Apache-2.0
/* How the values of a schema are written. JSON's way is one row; others are those in which models
 * write the arguments of a call: the parameters of the outermost object between tags, where strings
 * are bare text, or literals that are nearly JSON. What reads them is server/chat/tools.
 * Thread: any; the table is constant. */
#ifndef SLUICE_ENGINE_GRAMMAR_STYLE_H
#define SLUICE_ENGINE_GRAMMAR_STYLE_H

#include <stdbool.h>
#include <stddef.h>

/* What a value is, for styles that say it in front of it. */
enum style_type {
    STYLE_STRING,
    STYLE_NUMBER,
    STYLE_BOOL,
    STYLE_NULL,
    STYLE_OBJECT,
    STYLE_ARRAY,
    N_STYLE_TYPES,
};

struct style {
    const char *name;
    const char *words[3]; // null, true, false
    const char *quote;    // on both sides of a string that escapes nothing; NULL: JSON's strings
    bool bare_names;      // names in objects have no quotes
    bool compact;         // no white space between tokens

    /* The outermost object: `open` KEY `colon` VALUE `comma` KEY... `close`. */
    bool has_outer; // false: it is written as all others are
    const char *open, *close, *key, *colon, *comma;
    const char *value_end;
    const char *bar;                  // text that no string in it must have; NULL: none
    bool is_bare;                     // its strings are bare text, and the schema says what is one
    const char *types[N_STYLE_TYPES]; // before a value; NULL: nothing is said
    /* All objects and arrays are written so: the names of their members stand in value_end, too,
     * and items have one of their own. Members of other names cannot be written. */
    bool elements;
};

const struct style *style_json(void);
const struct style *style_find(const char *name, size_t n); // NULL: there is none

#endif
