// SPDX-License-Identifier: Apache-2.0
/* | The order in which the lines of a job are run, and the estimated needs of each. The bodies are
 * tokenized, the ids determine the order (prefix_groups.h) and are then discarded: a call prepares
 * its line again when its turn comes.
 *
 * A file with more tokens than should be in memory is planned in parts, one after the other;
 * prompts of different parts are not grouped.
 * Thread: any, one at a time. job_plan_next starts its own threads. */
#ifndef SLUICE_SERVER_JOBS_PLAN_H
#define SLUICE_SERVER_JOBS_PLAN_H

#include "server/call/model.h"
#include "server/jobs/lines.h"

#include <stdatomic.h>

enum job_order {
    JOB_ORDER_NONE,   // as in the input
    JOB_ORDER_SORTED, // sorted by the prompts' tokens
    JOB_ORDER_GROUPS, // groups with a shared prefix, one after the other
    JOB_ORDER_RATIO,  // like GROUPS; groups with many output tokens per prompt token come first
    N_JOB_ORDERS,
};
extern const char *const job_order_names[N_JOB_ORDERS];

struct job_member {
    int32_t line;
    int32_t group;    // index among the part's groups; -1: none
    int32_t n_prompt; // tokens of all its prompts; 0: the line will be rejected
    int32_t n_shared; // tokens shared by the whole group; counted once per group
    int32_t n_samples, max_output;
};

struct job_plan {
    int32_t n_planned; // lines of the input that have been planned: the next part begins there
    /* The part: members to run, in order. */
    struct job_member *members;
    int32_t n_members, n_groups;
    /* Totals of all parts so far: prompt tokens, and those that remain to be computed if every
     * shared prefix is computed once. */
    int64_t logical_tokens, computed_tokens;
};

struct job_plan_options {
    const struct call_model *model;
    int32_t match_unit; // prefixes are shared in multiples of this many tokens
    enum job_order order;
    int64_t max_tokens;          // maximum number of prompt tokens in a part; 0: the default
    int n_threads;               // number of threads that tokenize; 0: 2
    const atomic_bool *given_up; // once true, job_plan_next returns early and the part must not be
                                 // used; may be NULL
};

/* Plans the next part from the unanswered lines. The part is empty if there are none. */
enum status job_plan_next(struct job_plan *p, const struct job_plan_options *options,
                          const struct job_input *in, const struct job_lines *lines,
                          struct err *err);
void job_plan_deinit(struct job_plan *p); // accepts a zeroed struct

#endif
