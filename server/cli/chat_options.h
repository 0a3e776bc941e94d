// SPDX-License-Identifier: Apache-2.0
/* The options of `sluice chat`, and the sampling settings that can also be changed during the chat.
 * Thread: plain data. */
#ifndef SLUICE_SERVER_CLI_CHAT_OPTIONS_H
#define SLUICE_SERVER_CLI_CHAT_OPTIONS_H

#include "engine/base/buf.h"
#include "engine/base/status.h"

#include <stdbool.h>

enum { N_CHAT_SETTINGS = 6 };

/* One value per table row in chat_options.c; the server chooses those not set. */
struct chat_settings {
    double value[N_CHAT_SETTINGS];
    bool is_set[N_CHAT_SETTINGS];
};

struct chat_options {
    const char *target; // folder, name or URL; NULL: the server on this machine, or the demo model
    const char *model, *api_key, *tools_path;
    char *system; // NULL: none; the caller frees it
    struct chat_settings settings;
    char **rest; // [n_rest] options passed on to `sluice serve`; the caller frees the array
    int n_rest;
    bool help;
};

enum status chat_options_parse(int argc, char **argv, struct chat_options *o, struct err *err);
void chat_options_deinit(struct chat_options *o);
void chat_options_help(void); // prints the help to standard output

/* `name` may be spelled with '-' or '_'. The value "default" unsets it. */
enum status chat_settings_set(struct chat_settings *s, const char *name, const char *value,
                              struct err *err);
/* Prints the settings, such as "temperature 0.7, seed 1", or "none". */
void chat_settings_print(const struct chat_settings *s, struct buf *out);
/* Writes the settings as members of a request, each with a comma before it. */
void chat_settings_put(const struct chat_settings *s, struct buf *out);

#endif
