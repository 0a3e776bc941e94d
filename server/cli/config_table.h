// SPDX-License-Identifier: Apache-2.0
/* The rows of the option table. To add an option, add a field and a row: the field in struct
 * config, or in a struct that it embeds (struct engine_options, struct backend_options) if the
 * engine or a backend reads it; the row in config_table.c. No other code copies the value.
 * Thread: any; constant. */
#ifndef SLUICE_SERVER_CLI_CONFIG_TABLE_H
#define SLUICE_SERVER_CLI_CONFIG_TABLE_H

#include "server/config/config.h"

enum option_type {
    OPTION_STRING,
    OPTION_LIST,  // strings; the flag may be repeated, or list them with commas
    OPTION_INT,   // 8192, 8k (x1000), 8K (x1024), 1.5m
    OPTION_BYTES, // like OPTION_INT, but may have a unit of bytes: 4GiB, 512MB
    OPTION_REAL,
    OPTION_SECONDS, // 30, 1.5, 500ms, 2m, 1h
    OPTION_BOOL,    // --x, --no-x, --x=false
    OPTION_CHOICE,
    OPTION_JSON, // text of a JSON object
};

struct option_row {
    const char *section; // heading in --help that begins with this row; NULL: none
    const char *name;
    enum option_type type;
    const char *field; // the expression of the field in struct config, as text; its last part is
                       // the option's name
    size_t offset, n_bytes; // position and size of that field; integers have four or eight bytes
    const char *initial;    // default, written as on the command line; NULL: empty
    double min, max;        // bounds of a number, inclusive
    const char *choices;    // "a|b|c" of OPTION_CHOICE
    const char *synonyms;   // "x=a|y=b": synonyms of choices; NULL: none
    bool may_be_object; // an OPTION_STRING whose value may be a JSON object: its members may be set
                        // one by one
    bool secret;        // never printed
    bool same_on_nodes; // all processes that serve one model must agree on it
    bool is_command; // prints something instead of starting a server; not part of the configuration
    const char *help;
};

extern const struct option_row option_rows[];
extern const size_t n_option_rows;

/* Other spellings: short flags, and names from llama.cpp and SGLang. */
struct option_alias {
    const char *alias; // without dashes
    const char *name;
};
extern const struct option_alias option_aliases[];
extern const size_t n_option_aliases;

#endif
