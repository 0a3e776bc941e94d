// SPDX-License-Identifier: Apache-2.0
/* The settings of speculation: --speculative-config, a JSON object in vLLM's format, completed with
 * values from the models that it names.
 * Thread: constant once the engine is open. */
#ifndef SLUICE_ENGINE_SPECULATE_OPTIONS_H
#define SLUICE_ENGINE_SPECULATE_OPTIONS_H

#include "engine/model/model.h"
#include "engine/schedule/request.h"

struct json;

/* How drafts are verified. SYNTHETIC accepts at random, whatever was sampled. The text is then
 * meaningless, which is fine for measuring speed with dummy weights. */
enum spec_rejection { REJECT_MATCH, REJECT_PROBABILISTIC, REJECT_SYNTHETIC };

struct spec_options {
    // HEAD_NONE, or the kind of head (model/head.h) that the one draft model is.
    enum head_kind head;
    int32_t n_models;
    char models[MAX_DRAFT_MODELS][4096]; // folders of the draft models
    int32_t k;                           // maximum number of drafts per step; for a tree, its depth
    int32_t min_n, max_n;                // shortest and longest suffix that n-gram lookup matches
    int32_t max_batch;                   // no proposals while more sequences than this are running
    int32_t draft_max_len; // longest text that the draft models support; set when they are opened
    int32_t draft_ranks;   // 1: every rank holds complete draft models; 0 or the number of ranks:
                           // they are sharded over all ranks
    enum requantise_kind quantization; // of the draft models, while they are loaded
    char kv_cache_dtype[32];           // KV format of the draft models; "": the target's
    bool fixed;                        // always k drafts: for tests and experiments
    enum spec_rejection rejection;
    float synthetic_rate; // probability that a draft is accepted
    bool no_bonus;        // synthetic only: no bonus token after the last draft

    /* Trees. If n_expansion is not 0, each node of depth d has expansion[d] children. Otherwise the
     * `width` best nodes of a level have children, and the `budget` best nodes of a step are
     * verified. */
    int32_t n_expansion, expansion[MAX_DRAFTS];
    int32_t width, budget;
    bool lookup; // n-gram lookup also adds nodes to the tree
};

/* The number of models that run in each draft pass: for a tree all draft models; for heads one,
 * because each pass runs the next module. */
static inline int32_t spec_models_per_pass(const struct spec_options *o)
{
    return o->head != HEAD_NONE ? 1 : o->n_models;
}
/* The number of passes that feed known tokens: one, or for a head one per module. */
static inline int32_t spec_feeding_passes(const struct spec_options *o)
{
    return o->head != HEAD_NONE ? o->n_models : 1;
}

/* Rejects misspelt keys and values of the wrong type, instead of ignoring them silently. */
enum status spec_options_check(const struct json *j, struct err *err);

/* spec_options_read reads the options that all proposers share. The other functions are called by
 * the proposers that need them: for draft models ("model": a folder, or, with `most` above 1, a
 * list of folders), for trees, and for the method of verification, which must suit both. */
enum status spec_options_read(struct spec_options *o, const struct json *j, struct err *err);
enum status spec_options_read_models(struct spec_options *o, const struct json *j, int32_t most,
                                     struct err *err);
enum status spec_options_read_tree(struct spec_options *o, const struct json *j, struct err *err);
enum status spec_options_read_rejection(struct spec_options *o, const struct json *j, bool trees,
                                        struct err *err);

#endif
