// SPDX-License-Identifier: Apache-2.0
/* In which order the lines of a job are run, and what each will probably need. The bodies are
 * prepared for their token ids, the ids give the order (prefix_groups.h), and are dropped again: a
 * call prepares its line once more when its turn has come.
 *
 * A file with more tokens than memory should hold is planned in parts, one after the other; prompts
 * of different parts are not brought together.
 * Thread: any, one at a time. job_plan_next uses threads of its own. */
#ifndef SLUICE_SERVER_JOBS_PLAN_H
#define SLUICE_SERVER_JOBS_PLAN_H

#include "server/call/model.h"
#include "server/jobs/lines.h"

#include <stdatomic.h>

enum job_order {
    JOB_ORDER_NONE,   // as the lines come
    JOB_ORDER_SORTED, // by the prompts' tokens
    JOB_ORDER_GROUPS, // groups with a shared prefix, one after the other
    JOB_ORDER_RATIO,  // and those that decode much for their prompts first
    N_JOB_ORDERS,
};
extern const char *const job_order_names[N_JOB_ORDERS];

struct job_member {
    int32_t line;
    int32_t group;    // of this part
    int32_t n_prompt; // tokens, of all its prompts; 0: it will be refused
    int32_t n_shared; // of which the group has these in common; counted once for the group
    int32_t n_samples, max_output;
};

struct job_plan {
    int32_t n_planned; // lines of the file that a part has had
    /* The part: members to run, in their order. */
    struct job_member *members;
    int32_t n_members, n_groups;
    /* Of all parts so far: prompt tokens, and those to compute with every shared prefix once. */
    int64_t logical_tokens, computed_tokens;
};

struct job_plan_options {
    const struct call_model *model;
    int32_t block_tokens; // of the KV cache
    enum job_order order;
    int64_t max_tokens;          // of a part; 0: the default
    int n_threads;               // that prepare; 0: 2
    const atomic_bool *given_up; // once true the part ends early, and is of no use; may be NULL
};

/* The next part, of lines that have no answer. It is empty when there are none. */
enum status job_plan_next(struct job_plan *p, const struct job_plan_options *options,
                          const struct job_input *in, const struct job_lines *lines,
                          struct err *err);
void job_plan_deinit(struct job_plan *p); // accepts a zeroed struct

#endif
