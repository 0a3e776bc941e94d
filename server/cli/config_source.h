// SPDX-License-Identifier: Apache-2.0
/* State while a configuration is loaded: the origin of each value, and how flags (config_flags.c),
 * the file (config_file.c) and the environment (config_load.c) set values.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_CONFIG_SOURCE_H
#define SLUICE_SERVER_CLI_CONFIG_SOURCE_H

#include "engine/base/status.h"
#include "server/cli/config_table.h"
#include "server/cli/vllm_flags.h"

/* The origin of a value. Each source takes precedence over those before it in this list. */
enum source { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_VLLM_ENV, SOURCE_ENV, SOURCE_FLAG };

struct loading {
    struct config *config;
    char *file;
    /* Parallel to option_rows. */
    unsigned char *source;
    bool *in_file; // rows that the file has set
    /* The list that "- item" lines of the file extend: at most one of the two is set. */
    const struct option_row *list;
    const struct vllm_flag *flag_list;
    /* The command line has a name that only llama.cpp's server knows; it has --served-model-name.
     */
    bool is_llama, has_names;
    /* It has llama.cpp's --ctx-size, --parallel, --kv-unified; --metrics or its negation. */
    bool has_ctx_size, has_parallel, is_unified, has_metrics;
};

/* Compares keys, treating '_' like '-'. */
bool loading_is_name(const char *name, const char *key, size_t n_bytes);

/* Remembers which server's name was used for an option or a flag of the command line. */
void loading_note_name(struct loading *l, const char *key, size_t n_bytes);

/* Find the option with this name or alias, or the flag of vLLM that is not an option here. NULL:
 * not found. */
const struct option_row *loading_find_row(const char *key, size_t n_bytes);
const struct vllm_flag *loading_find_flag(const char *key, size_t n_bytes);

/* For "option.key", vLLM's notation for members of an object: the row of the option, or NULL. */
const struct option_row *loading_find_member(const char *key, size_t n_bytes, const char **member);

/* The error for an unknown name, with the nearest known one. */
enum status loading_unknown(const char *key, size_t n_bytes, struct err *err);

/* These set a value, unless a source of higher precedence has set it. */
enum status loading_set(struct loading *l, const struct option_row *row, const char *value,
                        enum source source, struct err *err);
enum status loading_set_member(struct loading *l, const struct option_row *row, const char *member,
                               size_t n_bytes, const char *value, enum source source,
                               struct err *err);
/* Handles a vLLM flag: logs one without effect, refuses one that would change answers, or sets the
 * option that replaces it. */
enum status loading_take_flag(struct loading *l, const struct vllm_flag *flag, const char *value,
                              enum source source, struct err *err);

enum status loading_read_flags(struct loading *l, int argc, char **argv, struct err *err);
enum status loading_read_file(struct loading *l, struct err *err); // l->file

#endif
