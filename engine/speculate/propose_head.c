// SPDX-License-Identifier: Apache-2.0
/* Draft heads: a module of the model's own checkpoint (MTP), or an EAGLE-3 head in its own folder.
 * Proposers treat a head like a draft model; its drafts may be chains or trees. */
#include "engine/speculate/proposer.h"

#include "engine/base/json.h"

static enum status read_mtp(struct spec_options *o, const struct json *j, struct err *err)
{
    if (json_get(j, "model")) {
        return err_set(err, ERR_INVALID,
                       "speculative-config: the module of method 'mtp' is in the model's own "
                       "checkpoint: 'model' must not be given");
    }
    o->head = HEAD_MTP;
    o->n_models = 1;
    if (!json_get(j, "draft_tensor_parallel_size")) {
        o->draft_ranks = 0;
    }
    return OK;
}

static enum status read_eagle3(struct spec_options *o, const struct json *j, struct err *err)
{
    o->head = HEAD_EAGLE3;
    return spec_options_read_models(o, j, 1, err);
}

static enum status read_mtp_tree(struct spec_options *o, const struct json *j, struct err *err)
{
    TRY(read_mtp(o, j, err));
    return spec_options_read_tree(o, j, err);
}

static enum status read_eagle3_tree(struct spec_options *o, const struct json *j, struct err *err)
{
    TRY(read_eagle3(o, j, err));
    return spec_options_read_tree(o, j, err);
}

#define TREES                                                                                      \
    .trees = true, .open = ngram_open, .close = ngram_close, .propose = tree_propose,              \
    .passes = tree_passes, .observe = tree_observe
#define CHAINS .propose = chain_propose, .passes = chain_passes, .observe = chain_observe

static const struct proposer mtp_tree = {.name = "mtp", .read = read_mtp_tree, TREES};
static const struct proposer eagle3_tree = {.name = "eagle3", .read = read_eagle3_tree, TREES};

/* vLLM's names for the families supported here, one per family. */
static const char *const mtp_names[] = {"deepseek_mtp",   "glm4_moe_mtp", "glm4_moe_lite_mtp",
                                        "qwen3_next_mtp", "qwen3_5_mtp",  NULL};

const struct proposer proposer_mtp = {
    .name = "mtp", .others = mtp_names, .with_trees = &mtp_tree, .read = read_mtp, CHAINS};
const struct proposer proposer_eagle3 = {
    .name = "eagle3", .with_trees = &eagle3_tree, .read = read_eagle3, CHAINS};
