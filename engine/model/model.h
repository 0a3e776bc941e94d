// SPDX-License-Identifier: Apache-2.0
/* A model on one rank: its weights, as the backend holds them, and its forward pass. The decoder is
 * one straight list of ops for every family; all differences are in model_config.
 * Thread: the rank's owner. */
#ifndef SLUICE_ENGINE_MODEL_MODEL_H
#define SLUICE_ENGINE_MODEL_MODEL_H

#include "engine/model/checkpoint.h"
#include "engine/model/config.h"
#include "engine/model/requantise.h"

enum { MAX_DRAFT_MODELS = MAX_KV_SETS - 1 }; // draft models that may feed one token tree

/* Weights of one layer; NULL where the family has none. */
struct layer_weights {
    const struct weight *attn_norm, *attn_norm_bias, *attn_post_norm;
    const struct weight *ffn_norm, *ffn_norm_bias, *ffn_post_norm;
    const struct weight *qkv, *o, *q_norm, *k_norm, *sinks;
    const struct weight *gate_up, *down;
    const struct weight *router, *correction, *experts_gate_up, *experts_down;
    const struct weight *shared_gate_up, *shared_down, *shared_router, *latent_in, *latent_out;
    const struct weight *router_norm, *expert_scale;
    // for experts beside an MLP
    const struct weight *experts_norm, *experts_post_norm, *mlp_post_norm;
    const struct weight *input_gate, *input_up, *input_post_norm; // for the per-layer input
    float x_scale; // factor of the layer's output; 0: none
    const struct weight *q_a, *q_a_norm, *kv_a, *kv_a_norm, *w_uk, *w_uv; // MLA; q_b is qkv
    struct state_weights state;
    float k_scale, v_scale; // the checkpoint's scales for an FP8 cache; 0: none
};

/* Weights of a draft head besides its layer, embedding and output head. */
struct head_weights {
    const struct weight *embed_norm, *hidden_norm; // EAGLE-3: embed_norm is the layer's attn_norm
    const struct weight *fc;                       // MTP: applied to both, concatenated
    const struct weight *fed[MAX_HIDDEN_LAYERS];   // EAGLE-3: fc's part for each of the target's
                                                   // layers, run in the target's passes
    int32_t *ids; // EAGLE-3: [head.n_ids], the target's ids that the head knows; NULL: all
};

/* This rank's share of each dimension. */
struct model_shard {
    int32_t rank, n_ranks;
    int32_t n_heads, first_head;
    int32_t moe_ffn, shared_ffn, vocab;
    bool head_sharded; // otherwise every rank computes all logits
    /* A norm over the whole width of q and k cannot be split by heads. Then every rank has all
     * heads, and only the output product is split: heads first_o_head .. + n_o_heads. */
    int32_t first_o_head, n_o_heads;
    struct state_shard state;
};

/* This rank's share of dimensions that differ between layers. */
struct layer_share {
    int32_t n_kv_heads, first_kv_head; // also for layers that store no keys and values
    int32_t ffn;
};
static inline struct layer_share model_layer_share(const struct model_config *c,
                                                   const struct model_shard *s, int32_t layer)
{
    const struct layer_config *l = &c->layers[layer];
    const int32_t n = l->n_kv_heads, n_ranks = s->n_ranks;
    struct layer_share out = {.ffn = l->ffn / n_ranks, .n_kv_heads = n};
    if (c->qk_norm != QK_NORM_WIDTH) { // otherwise every rank has all heads
        out.n_kv_heads = n < n_ranks ? 1 : n / n_ranks;
        if (n < n_ranks) {
            out.first_kv_head = s->rank / (n_ranks / n);
        } else {
            out.first_kv_head = s->rank * (n / n_ranks);
        }
    }
    return out;
}

struct model {
    const struct model_config *config;
    struct backend *be;
    struct model_shard shard;
    int32_t index, kv_set; // as in struct pass
    enum dtype act, residual;
    bool exact_ranks; // see struct backend_facts
    float embed_scale, inputs_scale;
    const struct weight *embed, *final_norm, *final_norm_bias;
    const struct weight *head; // NULL: the checkpoint has none, and logits must not be requested
    const struct weight *inputs_embed, *inputs_proj, *inputs_norm; // per-layer inputs
    struct rope_table *ropes[2];
    struct layer_weights *layers; // [n_layers]
    size_t weight_bytes;
    int64_t n_parameters;
    char kv_cache[64]; // the KV format that the checkpoint requests (quant_kv_cache); "": none

    /* Activations, allocated by model_setup for passes of this many rows, padding included. */
    int32_t max_rows, max_out;
    struct tensor x, h, qkv, q_abs, attn, attn_v, delta, routed, ff_in, ff, low, out_x, out_h,
        out_attn, mix, mix_conv, mix_decay, mix_gate, latent, latent_y;
    struct tensor inputs, inputs_proj_out, out_input; // per-layer inputs; out_input: the last
                                                      // layer's, for out rows
    struct tensor logits, logits_local;               // all models of a rank share logits
    struct logit_bests bests;                         // of the last forward's logits, for its draws
    /* Hidden states of the last forward, out rows of [max_hidden, hidden]: the i-th requested layer
     * starts at i * hidden in a row. A later op of the backend reads them. */
    int32_t max_hidden; // the most layers that may be requested; set before model_setup; 0: none
    struct tensor hidden;
    struct dmem route_ids, route_weights;

    /* Of a target: the head for which its passes store hidden states. Of a head: its own
     * buffers. */
    const struct model *drafter; // NULL: none
    struct head_weights draft;
    struct tensor wide;       // [rows, 2 hidden]: normed embedding and hidden state
    struct tensor fed;        // EAGLE-3: sum over the target's layers
    struct tensor own_logits; // for the ids that the head knows
    struct dmem ids;
};

struct model_load_options {
    const struct model_config *config;
    const struct checkpoint *checkpoint; // NULL: dummy weights
    const char *dummy_dir; // its config decides how dummy weights are quantised; NULL: not at all
    enum dtype dtype;
    enum requantise_kind requantise; // applied if the checkpoint is not quantised
    bool inputs_as_they_are;    // do not round inputs, even if formats require it; F32 never does
    const struct model *target; // of a head: the model whose embedding and lm_head it may share
    int32_t rank, n_ranks, index;
    void (*on_progress)(double share, void *arg);
    void *progress_arg;
};

/* Checks that the ranks divide the model. Call it before reading weights. */
enum status model_shard_of(const struct model_config *c, int32_t rank, int32_t n_ranks,
                           struct model_shard *out, struct err *err);

/* The dtype of a checkpoint whose config.json gives none: that of its embedding. */
enum dtype model_stored_dtype(const struct model_config *c, const struct checkpoint *checkpoint);

/* Passes every weight and rope table to the backend. `err` names file and tensor. */
enum status model_load(const struct model_load_options *options, struct backend *be,
                       struct model *out, struct err *err);
/* Opens the rope tables again after the config was fitted to another length; before model_setup. */
enum status model_open_ropes(struct model *m, struct err *err);
void model_deinit(struct model *m); // frees host memory; the backend frees its own

/* The geometry of this rank's shard of the config's n_kv_layers layers with keys and values, and of
 * its n_state_layers layers with recurrent state. The caller provides the arrays. */
void model_kv_layers(const struct model *m, struct kv_layer *layers);
void model_state_layers(const struct model *m, struct state_layer *layers);
enum { STATE_BLOCK = 64 }; // positions from one boundary to the next

/* Allocates activation buffers (buffers.c). `logits` is the rank's common [max_out, vocab]
 * buffer. */
enum status model_setup(struct model *m, int32_t max_rows, int32_t max_out, struct tensor logits,
                        struct tensor logits_local);
size_t model_setup_bytes(const struct model *m, int32_t max_rows, int32_t max_out);

struct model_outputs {
    bool logits, pooled;         // of the pass's out rows
    bool all_logits;             // also logits that no draw will read; bests are not computed
    struct hidden_layers hidden; // the pass's own list: also of the out rows, into model.hidden
};

/* Between pass_begin and pass_end: the whole forward pass, then the logits of its out rows, or
 * their normed hidden states into the pass's pool list, or both. ERR_INVALID if hidden states are
 * requested of layers that do not exist, or of more layers than were set up. */
enum status model_forward(struct model *m, const struct pass_shape *shape,
                          struct model_outputs want);

/* recurrent_pass.c: writes the outputs of the layer's heads to m->attn, given its normed input.
 * `stores`: only update the state, for the last layer of a pass without out rows. */
enum status recurrent_forward(struct model *m, int32_t layer, struct tensor in, int32_t n_rows,
                              bool stores);

#endif
