// SPDX-License-Identifier: Apache-2.0
/* Parses and prints one value of the option table. Thread: main. */
#ifndef SLUICE_SERVER_CLI_CONFIG_VALUE_H
#define SLUICE_SERVER_CLI_CONFIG_VALUE_H

#include "engine/base/buf.h"
#include "engine/base/status.h"
#include "server/cli/config_table.h"

/* Parses `text` and sets the row's field; if that is a list, the items are appended. The error
 * names the option and the expected value. */
enum status config_value_set(struct config *c, const struct option_row *row, const char *text,
                             struct err *err);

/* Adds a member to the object of an OPTION_JSON; "a.b" is member b of member a. Text that is not
 * JSON becomes a string. */
enum status config_value_set_member(struct config *c, const struct option_row *row, const char *key,
                                    const char *text, struct err *err);

/* Frees and zeroes the field. */
void config_value_clear(struct config *c, const struct option_row *row);

/* Appends the value in the form that config_value_set reads, quoted where YAML needs it; appends
 * nothing if the value is empty. */
void config_value_print(const struct config *c, const struct option_row *row, struct buf *out);

#endif
