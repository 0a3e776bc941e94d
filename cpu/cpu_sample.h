// SPDX-License-Identifier: Apache-2.0
/* The parts of a draw. cpu_sample.c combines them. Thread: any, each with its own scratchpad. */
#ifndef SLUICE_CPU_CPU_SAMPLE_H
#define SLUICE_CPU_CPU_SAMPLE_H

#include "cpu/cpu_internal.h"
#include "engine/device/scores.h"

/* The tokens that are known at a draw: the history and, in a tree, the path to the row. */
struct known {
    const int32_t *history;
    int32_t n_history;
    int32_t n_path;
    int32_t path[MAX_TREE_NODES];
};

struct scratchpad {
    float *scores;   // [vocab]
    float *shares;   // [vocab] exact_exp(score - max)
    uint32_t *count; // [vocab] number of occurrences; all zero between uses
    uint64_t *mass;  // [SELECT_BINS]
};

static inline uint64_t mass_of(float share)
{
    return (uint64_t)(int64_t)(share * 1099511627776.0f);
}

/* cpu_sample_scores.c. cpu_mask_of: the draw's own mask, or NULL. cpu_is_plain: the scores are
 * equal to the logits. */
void cpu_find_known(const struct cpu_backend *cpu, const struct pass_draw *d, struct known *k);
void cpu_make_scores(const struct lane *lane, const struct pass_draw *d, const struct known *k,
                     const float *logits, int32_t n_vocab, const uint32_t *mask, enum bans bans,
                     const struct scratchpad *pad);
bool cpu_is_plain(const struct sampling_params *p, const struct pass_draw *d);
const uint32_t *cpu_mask_of(const struct cpu_backend *cpu, const struct pass_draw *d);

/* cpu_sample_drafts.c. cpu_make_law: the shares of the tokens that are kept, and the sum of their
 * masses. cpu_test_drafts: returns the accepted draft, or another token, given the scores after
 * top-k, top-p and min-p. */
uint64_t cpu_make_law(const struct cpu_backend *cpu, const float *s, int32_t n, float max,
                      float *shares);
int32_t cpu_test_drafts(const struct cpu_backend *cpu, const struct pass_draw *d, int32_t n,
                        float max, const struct scratchpad *pad);

#endif
