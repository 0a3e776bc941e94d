// SPDX-License-Identifier: Apache-2.0
/* What was asked of speculation: --speculative-config, a JSON object in vLLM's shape, and what the
 * models it names make of that.
 * Thread: constant once the engine is open. */
#ifndef SLUICE_ENGINE_SPECULATE_OPTIONS_H
#define SLUICE_ENGINE_SPECULATE_OPTIONS_H

#include "engine/model/model.h"
#include "engine/schedule/request.h"

struct json;

/* How drafts are judged. SYNTHETIC accepts by a coin, whatever was drawn: it makes up text, and is
 * for measuring speed with made-up weights. */
enum spec_rejection { REJECT_MATCH, REJECT_PROBABILISTIC, REJECT_SYNTHETIC };

struct spec_options {
    enum head_kind head; // what drafts is a head (model/head.h), the one draft model; or HEAD_NONE
    int32_t n_models;
    char models[MAX_DRAFT_MODELS][4096]; // folders of the draft models
    int32_t k;                           // drafts per step at most; of a tree: its depth
    int32_t min_n, max_n;                // lengths of the suffix that n-gram lookup matches
    int32_t max_batch;                   // more running sequences than this and nothing is proposed
    int32_t draft_max_len;               // longest text of the draft models; set when they are read
    int32_t draft_ranks;     // 1: every rank has the whole draft models; else all share them. 0: a
                             // module of the model is shared as the model is
    char kv_cache_dtype[32]; // of the draft models; "": the target's
    bool fixed;              // always k: for tests and experiments
    enum spec_rejection rejection;
    float synthetic_rate; // probability that a draft is accepted
    bool no_bonus;        // synthetic runs only: nothing is drawn behind the last draft

    /* Trees. With n_expansion each node of depth d has expansion[d] children; else the `width` best
     * nodes of a level have children, and the `budget` best of all nodes of a step are verified. */
    int32_t n_expansion, expansion[MAX_DRAFTS];
    int32_t width, budget;
    bool lookup; // n-gram lookup feeds the tree too
};

/* Models that run each draft pass: all of a tree's; of heads one, the next module in each pass. */
static inline int32_t spec_models_per_pass(const struct spec_options *o)
{
    return o->head != HEAD_NONE ? 1 : o->n_models;
}
/* Passes that feed known tokens: one, or one for each of a model's modules. */
static inline int32_t spec_feeding_passes(const struct spec_options *o)
{
    return o->head != HEAD_NONE ? o->n_models : 1;
}

/* A key misspelt, or a value of another type, must not look as if it had been obeyed. */
enum status spec_options_check(const struct json *j, struct err *err);

/* What every proposer has; then, as far as one asks for it: the draft models ("model": a folder,
 * or, for `most` above 1, a list of them) and trees; and how drafts are judged, which must fit
 * those. */
enum status spec_options_read(struct spec_options *o, const struct json *j, struct err *err);
enum status spec_options_read_models(struct spec_options *o, const struct json *j, int32_t most,
                                     struct err *err);
enum status spec_options_read_tree(struct spec_options *o, const struct json *j, struct err *err);
enum status spec_options_read_rejection(struct spec_options *o, const struct json *j, bool trees,
                                        struct err *err);

#endif
