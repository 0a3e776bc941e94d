// SPDX-License-Identifier: Apache-2.0
/* Which prompts of a job begin alike, and in which order to run them. Pure functions over token
 * ids.
 *
 * The prompts, sorted, are the leaves of a compact prefix tree: an inner node is a run of tokens
 * that all prompts below it share. The prefix cache makes use of every level of that tree.
 * Attention over shared blocks has one level, so each prompt is also given one group: the prompts
 * under one first-level node after "enlargement", which moves a subtree to the first level where
 * computing its parent's tokens once more costs less than sharing its own saves.
 *
 * Sharing happens in whole KV blocks, so all lengths here are rounded down to blocks; a prompt's
 * last token is never shared, since its row has to be computed for the first draw. Thread: one
 * owner. */
#ifndef SLUICE_SERVER_JOBS_PREFIX_GROUPS_H
#define SLUICE_SERVER_JOBS_PREFIX_GROUPS_H

#include <stddef.h>
#include <stdint.h>

struct group_prompt {
    const int32_t *ids;
    int32_t n;
    uint64_t space;     // prompts of different spaces (a cache salt's hash) never share
    int32_t est_output; // tokens that will probably be generated
};

struct prefix_group {
    int32_t first, n;   // members: order[first .. first + n)
    int32_t prefix_len; // tokens that all members share; 0: a member alone
    double ratio;       // estimated output tokens per prompt token to compute
};

struct prefix_groups {
    int32_t n_prompts, n_groups;
    int32_t *order;              // [n_prompts] indices of prompts, in the order to submit them
    struct prefix_group *groups; // [n_groups], in that order
    int64_t logical_tokens;      // of all prompts
    int64_t computed_tokens;     // with every level of the tree shared
    int64_t grouped_tokens;      // with one level shared, as the groups have it
};

enum group_order {
    GROUP_ORDER_TREE,  // neighbours in the tree are neighbours in time
    GROUP_ORDER_RATIO, // and groups that decode much for their prompts come first, so that their
                       // decode rows fill the steps of later groups' prompts
};

/* block_tokens: 1 or more. */
void prefix_groups_make(const struct group_prompt *prompts, int32_t n, int32_t block_tokens,
                        enum group_order order, struct prefix_groups *out);
void prefix_groups_free(struct prefix_groups *g);

#endif
