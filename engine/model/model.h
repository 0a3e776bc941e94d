// SPDX-License-Identifier: Apache-2.0
/* A model on one rank: its weights, in the form in which the backend holds them, and its forward
 * pass. The decoder is one straight list of ops for every family; all differences are in
 * model_config.
 * Thread: the rank's owner. */
#ifndef SLUICE_ENGINE_MODEL_MODEL_H
#define SLUICE_ENGINE_MODEL_MODEL_H

#include "engine/device/ops.h"
#include "engine/model/checkpoint.h"
#include "engine/model/config.h"
#include "engine/model/requantise.h"

/* Maximum number of draft models that feed one token tree. */
enum { MAX_DRAFT_MODELS = MAX_KV_SETS - 1 };

/* An activation with its parameters. */
struct layer_act {
    enum activation kind;
    struct act_shape shape;
};

/* Hyper-connections before a sub-layer, or before the final norm. */
struct hyper_weights {
    const struct weight *fn, *base, *scale;
};

/* The gate of a norm: y = norm(x), then y * sigmoid(out silu(in y)). */
struct norm_gate {
    const struct weight *in, *out; // NULL: the norm has no gate
};

/* Weights of one layer. NULL: the family has no such weight. */
struct layer_weights {
    const struct weight *attn_norm, *attn_norm_bias, *attn_post_norm;
    const struct weight *ffn_norm, *ffn_norm_bias, *ffn_post_norm;
    struct norm_gate attn_norm_gate, ffn_norm_gate;
    const struct weight *qkv, *o, *q_norm, *k_norm, *sinks;
    const struct weight *o_norm, *down_norm; // of the inputs of o and down
    const struct weight *gate_up, *down;
    const struct weight *router, *correction, *experts_gate_up, *experts_down;
    const struct weight *shared_gate_up, *shared_down, *shared_router, *latent_in, *latent_out;
    const struct weight *router_norm, *expert_scale;
    // for layers that have experts beside an MLP
    const struct weight *experts_norm, *experts_post_norm, *mlp_post_norm;
    const struct weight *input_gate, *input_up, *input_post_norm; // for the per-layer input
    // for several streams
    const struct weight *stream_router, *stream_router_norm, *stream_before, *stream_after,
        *stream_scale;
    const struct weight *branch_down, *branch_up, *branch_norm; // beside attention
    float x_scale;                         // factor of the layer's output; 0: none
    struct layer_act mlp_act, experts_act; // mlp_act: also of shared experts
    // MLA: low is q_a, if there is one, above kv_a and the gates; qkv is q_b or q, above the
    // indexer's, or the gates if there is no q_a
    const struct weight *low, *q_a_norm, *kv_a_norm, *w_uk, *w_uv;
    struct head_growth growth; // of this rank's heads
    // of the layer's indexer. index_q: its queries' own product; NULL: they are the last outputs of
    // qkv. index_in_norm: a norm of that product's input; index_q_norm: of its queries' heads
    const struct weight *index_q_norm, *index_k, *index_k_norm, *index_k_norm_bias, *index_weights;
    const struct weight *index_q, *index_in_norm, *index_in_norm_bias;
    const struct weight *index_gates, *index_places; // as in index_store_args
    struct head_growth index_growth;
    struct hyper_weights attn_hyper, ffn_hyper;
    struct state_weights state;
    float k_scale, v_scale; // the checkpoint's scales for an FP8 cache; 0: it has none
};

/* Weights of a draft head other than its layer, embedding and output head. */
struct head_weights {
    const struct weight *embed_norm, *hidden_norm; // EAGLE-3: embed_norm is the layer's attn_norm
    const struct weight *fc; // MTP: applied to embedding and hidden state, concatenated
    const struct weight *fed[MAX_HIDDEN_LAYERS]; // EAGLE-3: the part of fc for each of the target's
                                                 // layers; it runs in the target's passes
    int32_t *ids; // EAGLE-3: [head.n_ids], the target's ids that the head knows; NULL: it knows all
};

/* This rank's share of each dimension. */
struct model_shard {
    int32_t rank, n_ranks;
    int32_t moe_ffn, shared_ffn, vocab;
    bool head_sharded; // false: every rank computes all logits
    struct state_shard state;
};

/* This rank's share of dimensions that differ between layers. */
struct layer_share {
    int32_t n_heads, first_head;
    int32_t n_kv_heads, first_kv_head; // valid even for a layer that stores no keys and values
    /* A norm over the whole width of q and k, or of all heads' outputs, cannot be split by heads.
     * Then every rank has all heads, and only the output product is split: heads first_o_head .. +
     * n_o_heads. */
    int32_t first_o_head, n_o_heads;
    int32_t ffn;
    int32_t gates; // equal to ffn, or the width of the whole MLP if its gates are compared with
                   // each other, or its outputs normed; the first one of this rank's part is then
                   // first_gate
    int32_t first_gate;
    int32_t ups; // equal to ffn, or to gates if the outputs are normed
};
static inline struct layer_share model_layer_share(const struct model_config *c,
                                                   const struct model_shard *s, int32_t layer)
{
    const struct layer_config *l = &c->layers[layer];
    const int32_t n = l->n_kv_heads, n_ranks = s->n_ranks, n_o = l->n_heads / n_ranks;
    struct layer_share out = {.n_heads = l->n_heads,
                              .n_kv_heads = n,
                              .first_o_head = s->rank * n_o,
                              .n_o_heads = n_o,
                              .ffn = l->ffn / n_ranks,
                              .gates = l->ffn / n_ranks,
                              .ups = l->ffn / n_ranks};
    if (l->cutoff.is_on || c->names->down_norm) {
        out.gates = l->ffn;
        out.first_gate = s->rank * out.ffn;
        out.ups = c->names->down_norm ? l->ffn : out.ffn;
    }
    if (c->qk_norm != QK_NORM_WIDTH && !c->names->o_norm) { // if not, every rank has all heads
        out.n_heads = n_o;
        out.first_head = s->rank * n_o;
        out.n_kv_heads = n < n_ranks ? 1 : n / n_ranks;
        if (n < n_ranks) {
            out.first_kv_head = s->rank / (n_ranks / n);
        } else {
            out.first_kv_head = s->rank * (n / n_ranks);
        }
    }
    return out;
}

/* The heads of an indexer that this rank has: all that pick together, but of those that pick for
 * one KV head each only those of its own KV heads. */
struct head_range {
    int32_t first, n;
};
static inline struct head_range model_index_share(const struct model_config *c,
                                                  const struct layer_share *share)
{
    return c->index.block > 0 ? (struct head_range){share->first_kv_head, share->n_kv_heads}
                              : (struct head_range){0, c->index.n_heads};
}

/* A weight that adapters change. */
struct adapted_weight {
    const struct weight *of;
    struct adapter_pair pair;
    struct adapter_layout *layout; // adapter_fill.h
};

struct model {
    const struct model_config *config;
    struct backend *be;
    struct model_shard shard;
    int32_t index, kv_set; // as in struct pass
    enum dtype act, residual;
    bool exact_ranks; // see struct backend_facts
    float embed_scale, inputs_scale;
    const struct weight *embed, *final_norm, *final_norm_bias;
    struct pooling pooling;                            // loaded on rank 0
    const struct weight *embed_norm, *embed_norm_bias; // NULL: the embedding is not normed
    const struct weight *positions;                    // NULL: the model has no learned positions
    const struct weight *token_types;                  // NULL: the model has no token types
    const struct weight *head; // NULL: the checkpoint has none, and logits must not be requested
    const struct weight *inputs_embed, *inputs_proj, *inputs_norm; // per-layer inputs
    // to and from each stream but the first, before and after all layers
    const struct weight *stream_in[MAX_STREAMS - 1], *stream_out[MAX_STREAMS - 1];
    struct hyper_weights end_hyper;
    struct rope_table *ropes[2];
    float *rope_factors;            // [pairs of MLA's rope], of its frequencies; NULL: none
    struct layer_weights *layers;   // [n_layers]
    struct adapted_weight *adapted; // [n_adapted], sorted by address
    int32_t n_adapted;
    size_t weight_bytes;
    int64_t n_parameters;
    char kv_cache[64]; // the KV format that the checkpoint requests (quant_kv_cache); "": it
                       // requests none

    /* Activations, allocated by model_setup for passes of this many rows, including padding. */
    int32_t max_rows, max_out;
    struct tensor x, h, qkv, q_abs, attn, attn_v, delta, routed, experts_in, ff_in, ff, low, out_x,
        out_h, out_attn, mlp_in, index_k, index_weights, mix, mix_conv, mix_decay, mix_gate, latent,
        latent_y, late;
    // per-layer inputs; out_input: the last layer's, for the out rows
    struct tensor inputs, inputs_proj_out, out_input;
    struct tensor streams, out_streams; // [rows, streams, hidden]
    struct tensor branch;
    struct tensor gates, out_gates;     // of hyper-connections
    struct tensor logits, logits_local; // logits is shared by all models of a rank
    struct logit_bests bests;           // best logits of the last forward pass, for its draws
    /* Hidden states of the last forward pass, for its out rows: [max_hidden, hidden]. The i-th
     * requested layer starts at i * hidden in a row. A later op of the backend reads them. */
    int32_t max_hidden; // the maximum number of layers that may be requested; set before
                        // model_setup; 0: none
    struct tensor hidden;
    struct dmem route_ids, route_weights;

    /* For a target: the head for which its passes store hidden states. For a head: its own
     * buffers. */
    const struct model *drafter; // NULL: none
    struct head_weights draft;
    struct tensor wide;       // [rows, 2 hidden]: normed embedding and hidden state
    struct tensor fed;        // EAGLE-3: sum of the projected states of the target's layers
    struct tensor own_logits; // logits of the ids that the head knows
    struct dmem ids;
};

struct model_load_options {
    const struct model_config *config;
    const struct checkpoint *checkpoint; // NULL: dummy weights
    const char *dummy_dir; // the config in this folder decides how dummy weights are quantised;
                           // NULL: they are not
    enum dtype dtype;
    enum requantise_kind requantise; // applied to plain weights if the checkpoint is not quantised
    bool inputs_as_they_are; // do not round the inputs of products, even if formats require it;
                             // with F32 they are never rounded
    const struct adapters *adapters; // low-rank adapters (adapter.h); NULL: none
    int32_t n_adapters;   // these, and those that may be loaded later (model_set_adapter)
    int32_t adapter_rank; // the largest rank of the latter
    // For a head: the model whose embedding and output head it may share.
    const struct model *target;
    int32_t rank, n_ranks, index;
    void (*on_progress)(double share, void *arg);
    void *progress_arg;
};

/* Checks that the ranks divide the model. Call it before reading weights. */
enum status model_shard_of(const struct model_config *c, int32_t rank, int32_t n_ranks,
                           struct model_shard *out, struct err *err);

/* For a checkpoint whose config.json names no dtype: the dtype of its embedding. */
enum dtype model_stored_dtype(const struct model_config *c, const struct checkpoint *checkpoint);

/* Passes every weight and rope table to the backend. `err` names file and tensor. */
enum status model_load(const struct model_load_options *options, struct backend *be,
                       struct model *out, struct err *err);
/* Opens the rope tables again, after the config was fitted to another length. Call it before
 * model_setup. */
enum status model_open_ropes(struct model *m, struct err *err);
void model_deinit(struct model *m); // frees host memory; the backend frees its own

/* The geometry of this rank's share of the layers of the KV set (n_kv_layers of them) and of
 * the layers with recurrent state (n_state_layers). The caller provides the arrays. */
void model_kv_layers(const struct model *m, struct kv_layer *layers);
void model_state_layers(const struct model *m, struct state_layer *layers);
enum { STATE_BLOCK = 64 }; // positions from one boundary to the next

/* Allocates activation buffers (buffers.c). `logits` is the rank's common [max_out, vocab]
 * buffer. */
enum status model_setup(struct model *m, int32_t max_rows, int32_t max_out, struct tensor logits,
                        struct tensor logits_local);
size_t model_setup_bytes(const struct model *m, int32_t max_rows, int32_t max_out);

struct model_outputs {
    bool logits, pooled; // outputs for the pass's out rows
    bool adapted;        // some sequence of the pass has an adapter
    bool all_logits;     // compute all logits, even those that no draw reads, and no best logits
    struct hidden_layers hidden; // the pass's own list; these states, too, are those of the out
                                 // rows, and go to model.hidden; `pooled` then pools those of the
                                 // first of these layers
};

/* Call it between pass_begin and pass_end. Runs the whole forward pass, and computes the logits of
 * its out rows, or adds their normed hidden states to the pass's pool list, or both. ERR_INVALID if
 * hidden states are requested of layers that do not exist, or of more layers than were set up. */
enum status model_forward(struct model *m, const struct pass_shape *shape,
                          struct model_outputs want);

/* Replaces adapter `index` by the only one of the list, while no step is in flight and no sequence
 * has it. The list must have been checked: model_check_adapter may be called at any time, on any
 * thread. An error of model_set_adapter is one of the device. */
enum status model_check_adapter(const struct model *m, const struct adapters *adapters,
                                struct err *err);
enum status model_set_adapter(const struct model *m, const struct adapters *adapters,
                              int32_t index);
/* The adapters of a weight; NULL: it has none. */
const struct adapter_pair *model_adapter_of(const struct model *m, const struct weight *w);

/* recurrent_pass.c: computes the outputs of the layer's heads into m->attn from the layer's normed
 * input. `stores`: only updates the state, which is enough in the last layer of a pass without out
 * rows. `adapted`: as in model_outputs. */
enum status recurrent_forward(struct model *m, int32_t layer, struct tensor in, int32_t n_rows,
                              bool stores, bool adapted);

#endif
