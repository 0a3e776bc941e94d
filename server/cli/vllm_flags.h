// SPDX-License-Identifier: Apache-2.0
/* Flags of vLLM's `serve`, and a few of others, that are no options here: a command line that was
 * written for vLLM runs unchanged, or says why not. Those that have a meaning here are rows of
 * config_table.c.
 * Thread: any; constant. */
#ifndef SLUICE_SERVER_CLI_VLLM_FLAGS_H
#define SLUICE_SERVER_CLI_VLLM_FLAGS_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum vllm_takes {
    TAKES_NOTHING, // --x, --no-x, --x=false
    TAKES_VALUE,
    TAKES_MAYBE, // a value, if the next word is none of the flags
    TAKES_WORDS, // all words up to the next flag
};

struct vllm_flag {
    const char *name;
    const char *alias; // the short one; NULL: none
    enum vllm_takes takes;
    /* NULL: the flag is accepted and has no effect. Else it would change answers, or what is served
     * to whom, and is refused, but for these values "a|b", for none, and for a negation. */
    const char *harmless;
    const char *becomes; // what is set in its place: "no-OPTION", or "OPTION.KEY" of an object
    const char *why;     // it has no effect, or is refused
};

extern const struct vllm_flag vllm_flags[];
extern const size_t n_vllm_flags;

/* OK: the value changes nothing. Else the reason, for whoever reads it. `value` is "true" for a
 * flag alone and "false" for its negation. */
enum status vllm_flag_check(const struct vllm_flag *flag, const char *value, struct err *err);

#endif
