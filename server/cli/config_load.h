// SPDX-License-Identifier: Apache-2.0
/* The configuration of `sluice serve`: one table of options (config_table.c) gives the flags, the
 * keys of `--config FILE`, the SLUICE_* environment, --help and the printed effective
 * configuration. A flag wins over the environment, that over the file, that over the default.
 * VLLM_API_KEY is taken where neither a flag nor SLUICE_API_KEY says otherwise.
 * Names follow vLLM where it has one; other spellings are aliases of the same row; flags of vLLM
 * that are no options here are in vllm_flags.c. Thread: main, before the loop runs. */
#ifndef SLUICE_SERVER_CLI_CONFIG_LOAD_H
#define SLUICE_SERVER_CLI_CONFIG_LOAD_H

#include "engine/base/buf.h"
#include "engine/base/status.h"
#include "server/config/config.h"

/* Reads flags (argv[0] is skipped), then `env` ("NAME=value", NULL-terminated; may be NULL), then
 * the file that either named. On error *c is empty again. The caller ends with config_deinit. */
enum status config_load(struct config *c, int argc, char **argv, char **env, struct err *err);
void config_deinit(struct config *c); // accepts a zeroed struct

/* Sets what is logged. quiet: a command whose output is something else, where "info" is "warn". */
void config_set_log_level(const struct config *c, bool quiet);

/* The flags, one per line, with defaults. */
void config_help(struct buf *out);

/* `key: value` lines that --config reads back, each with where the value came from as a comment;
 * secrets are left out. With `only_set`, options at their default are left out too. */
void config_print(const struct config *c, bool only_set, struct buf *out);

#endif
