// SPDX-License-Identifier: Apache-2.0
/* | Which prompts of a job have common prefixes, and the order in which to run them. Pure functions
 * over token ids.
 *
 * The prompts, sorted, are the leaves of a compact prefix tree: an inner node is a run of tokens
 * that all prompts below it share. The prefix cache uses every level of that tree. Attention over
 * shared blocks uses only one level, so each prompt is also in one group: all prompts under a node
 * of the first level. Before that, "enlargement" moves a subtree to the first level if recomputing
 * its parent's tokens costs less than sharing its own tokens saves.
 *
 * The cache shares prefixes in units of several tokens, so all lengths here are rounded down to
 * units; a prompt's last token is never shared, since its row must be computed for the first
 * sample. A unit inside a block is shared only if an earlier prompt or its answer fills the block,
 * which is not known here: the tokens to compute are the fewest possible.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_JOBS_PREFIX_GROUPS_H
#define SLUICE_SERVER_JOBS_PREFIX_GROUPS_H

#include <stddef.h>
#include <stdint.h>

struct group_prompt {
    const int32_t *ids;
    int32_t n;
    uint64_t space;     // prompts of different spaces (of cache salts and adapters) never share
    int32_t est_output; // estimated number of generated tokens
};

struct prefix_group {
    int32_t first, n;   // members: order[first .. first + n)
    int32_t prefix_len; // tokens that all members share; 0 if there is only one member
    double ratio;       // estimated output tokens per prompt token to compute
};

struct prefix_groups {
    int32_t n_prompts, n_groups;
    int32_t *order;              // [n_prompts] indices of prompts, in submission order
    struct prefix_group *groups; // [n_groups], in that order
    int64_t logical_tokens;      // prompt tokens of all prompts
    int64_t computed_tokens;     // tokens to compute if every level of the tree is shared
    int64_t grouped_tokens;      // tokens to compute if only the groups' prefixes are shared
};

enum group_order {
    GROUP_ORDER_TREE,  // prompts that are neighbours in the tree run one after the other
    GROUP_ORDER_RATIO, // the same, but groups with many output tokens per prompt token come first:
                       // their decode rows share steps with the prompts of later groups
};

/* match_unit: 1 or more. */
void prefix_groups_make(const struct group_prompt *prompts, int32_t n, int32_t match_unit,
                        enum group_order order, struct prefix_groups *out);
void prefix_groups_free(struct prefix_groups *g);

#endif
