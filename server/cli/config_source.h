// SPDX-License-Identifier: Apache-2.0
/* While a configuration is loaded: where each value came from, and the ways in which the flags
 * (config_flags.c), the file (config_file.c) and the environment (config_load.c) set values.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_CONFIG_SOURCE_H
#define SLUICE_SERVER_CLI_CONFIG_SOURCE_H

#include "engine/base/status.h"
#include "server/cli/config_table.h"
#include "server/cli/vllm_flags.h"

/* Where a value came from, the weakest first: a source never overwrites a stronger one. */
enum source { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_VLLM_ENV, SOURCE_ENV, SOURCE_FLAG };

struct loading {
    struct config *config;
    char *file;
    /* Parallel to option_rows. */
    unsigned char *source;
    bool *in_file; // rows that the file has named
    /* What "- item" lines of the file belong to: one of them, or none. */
    const struct option_row *list;
    const struct vllm_flag *flag_list;
};

/* Keys compare with '_' as '-'. */
bool loading_is_name(const char *name, const char *key, size_t n_bytes);

/* The row of a name or of an alias; the flag of vLLM's that is no row. NULL: there is none. */
const struct option_row *loading_find_row(const char *key, size_t n_bytes);
const struct vllm_flag *loading_find_flag(const char *key, size_t n_bytes);

/* "option.key", as vLLM writes members of an object: the row of the option, or NULL. */
const struct option_row *loading_find_member(const char *key, size_t n_bytes, const char **member);

/* The error for a name that is neither, with the nearest that is one. */
enum status loading_unknown(const char *key, size_t n_bytes, struct err *err);

/* Each sets a value unless a stronger source has. */
enum status loading_set(struct loading *l, const struct option_row *row, const char *value,
                        enum source source, struct err *err);
enum status loading_set_member(struct loading *l, const struct option_row *row, const char *member,
                               size_t n_bytes, const char *value, enum source source,
                               struct err *err);
/* Notes a flag that has no effect, refuses one that would have, or sets what it becomes. */
enum status loading_take_flag(struct loading *l, const struct vllm_flag *flag, const char *value,
                              enum source source, struct err *err);

enum status loading_read_flags(struct loading *l, int argc, char **argv, struct err *err);
enum status loading_read_file(struct loading *l, struct err *err); // l->file

#endif
