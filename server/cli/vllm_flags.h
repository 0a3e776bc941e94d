// SPDX-License-Identifier: Apache-2.0
/* Flags of vLLM's `serve` and of llama.cpp's llama-server that are not options here: a command line
 * written for these either runs unchanged, or the error says why not. Flags with a meaning here are
 * rows of config_table.c.
 * Thread: any; constant. */
#ifndef SLUICE_SERVER_CLI_VLLM_FLAGS_H
#define SLUICE_SERVER_CLI_VLLM_FLAGS_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum vllm_takes {
    TAKES_NOTHING, // --x, --no-x, --x=false
    TAKES_VALUE,
    TAKES_MAYBE, // takes the next word as its value unless that is a flag
    TAKES_WORDS, // takes all words up to the next flag
};

struct vllm_flag {
    const char *name;
    const char *alias; // short form; NULL: none
    enum vllm_takes takes;
    /* The accepted values, as in "a|b"; an empty value and the flag's negation are accepted as
     * well. Others are refused, because they would change answers or access. NULL: all are
     * accepted, without effect. */
    const char *harmless;
    const char *becomes; // the option that replaces it: "no-OPTION", or "OPTION.KEY" of an object;
                         // NULL: none
    const char *closes;  // the route that the flag's negation disables; NULL: none
    const char *why;     // why it has no effect, or is refused
};

extern const struct vllm_flag vllm_flags[];
extern const size_t n_vllm_flags;
extern const struct vllm_flag llama_flags[];
extern const size_t n_llama_flags;
extern const struct vllm_flag llama_draft_flags[];
extern const size_t n_llama_draft_flags;

/* OK if the value changes nothing; otherwise an error with the reason. `value` is "true" for a bare
 * flag and "false" for its negation. */
enum status vllm_flag_check(const struct vllm_flag *flag, const char *value, struct err *err);

#endif
