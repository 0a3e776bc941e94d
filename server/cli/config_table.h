// SPDX-License-Identifier: Apache-2.0
/* The rows of the option table and what a row says. Adding an option is a field and a row: the
 * field in struct config, or in what it embeds (struct engine_options, struct backend_options) when
 * the engine or a backend reads it; the row in config_table.c. Nothing is copied on the way.
 * Thread: any; constant. */
#ifndef SLUICE_SERVER_CLI_CONFIG_TABLE_H
#define SLUICE_SERVER_CLI_CONFIG_TABLE_H

#include "server/config/config.h"

enum option_type {
    OPTION_STRING,
    OPTION_LIST,  // repeated, or separated by commas
    OPTION_INT,   // 8192, 8k (x1000), 8K (x1024), 1.5m
    OPTION_BYTES, // as OPTION_INT, also 4GiB, 512MB
    OPTION_REAL,
    OPTION_SECONDS, // 30, 1.5, 500ms, 2m, 1h
    OPTION_BOOL,    // --x, --no-x, --x=false
    OPTION_CHOICE,
    OPTION_JSON, // text of a JSON object
};

struct option_row {
    const char *section; // starts a new group in --help
    const char *name;
    enum option_type type;
    const char *field;      // what of struct config, as text: its last part is the name
    size_t offset, n_bytes; // of that field; whole numbers are of four or of eight bytes
    const char *initial;    // as it would be written; NULL: empty
    double min, max;        // of numbers
    const char *choices;    // "a|b|c" of OPTION_CHOICE
    const char *synonyms;   // "x=a|y=b": other words for these; NULL: none
    bool may_be_object;     // of OPTION_STRING: members may be set one by one, as of OPTION_JSON
    bool secret;            // never printed
    bool same_on_nodes;     // several processes for one model must agree on it
    bool is_command;        // asks for another output than a server: no part of what is in force
    const char *help;
};

extern const struct option_row option_rows[];
extern const size_t n_option_rows;

/* Other spellings: short flags, llama.cpp's and SGLang's names. */
struct option_alias {
    const char *alias; // without dashes
    const char *name;
};
extern const struct option_alias option_aliases[];
extern const size_t n_option_aliases;

#endif
