// SPDX-License-Identifier: Apache-2.0
/* The configuration of `sluice serve`. One table of options (config_table.c) defines the flags, the
 * keys of `--config FILE`, the SLUICE_* environment variables, --help and the printed effective
 * configuration. Flags override the environment, which overrides the file, which overrides
 * defaults. VLLM_API_KEY is used if neither a flag nor SLUICE_API_KEY is given. Options are named
 * as in vLLM if it has them; other spellings are aliases of the same row. vLLM flags that are not
 * options here are in vllm_flags.c.
 * Thread: main, before the loop runs. */
#ifndef SLUICE_SERVER_CLI_CONFIG_LOAD_H
#define SLUICE_SERVER_CLI_CONFIG_LOAD_H

#include "engine/base/buf.h"
#include "engine/base/status.h"
#include "server/config/config.h"

/* Reads flags (argv[0] is skipped), then `env` ("NAME=value", NULL-terminated; may be NULL), then
 * the file that either of them named. On error *c is empty. Call config_deinit at the end. */
enum status config_load(struct config *c, int argc, char **argv, char **env, struct err *err);
void config_deinit(struct config *c); // accepts a zeroed struct

/* Sets the log level. quiet: "info" becomes "warn", for commands whose output is not a log. */
void config_set_log_level(const struct config *c, bool quiet);

/* Writes all flags, one per line, with their defaults. */
void config_help(struct buf *out);

/* Prints `key: value` lines that --config can read back, each with the value's origin as a comment,
 * and without secrets. With `only_set`, options at their default are omitted. */
void config_print(const struct config *c, bool only_set, struct buf *out);

#endif
