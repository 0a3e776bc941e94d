// SPDX-License-Identifier: Apache-2.0
/* What a model is, read from its config.json and generation_config.json and checked: plain data,
 * the same for every family. Names of dimensions are Hugging Face's, in short.
 * Thread: plain data, constant after model_config_load. */
#ifndef SLUICE_ENGINE_MODEL_CONFIG_H
#define SLUICE_ENGINE_MODEL_CONFIG_H

#include "engine/model/recurrent.h"

enum {
    MAX_LAYERS = 512,        // chosen: four times the deepest checkpoint known
    MAX_ROPE_PAIRS = 256,    // chosen: heads of 512
    MAX_POSITIONS = 1 << 30, // chosen: so that sums of a few lengths are an int32_t
};

struct json;
struct tensor_names;

enum rope_growth { ROPE_FIXED, ROPE_DYNAMIC, ROPE_LONG };

struct rope_config {
    struct rope_desc desc; // inv_freq points at the array below; max_pos is rope_fit's
    float inv_freq[MAX_ROPE_PAIRS];
    /* What rope_fit makes the frequencies of, unless they are the same for every length. */
    enum rope_growth growth;
    double theta, factor;                                        // dynamic
    double trained_len;                                          // beyond it they are others
    float short_freq[MAX_ROPE_PAIRS], long_freq[MAX_ROPE_PAIRS]; // longrope
};

struct layer_config {
    int32_t n_kv_heads, head_dim, ffn; // the model's, unless the layer has sizes of its own
    int32_t window;                    // 0: full attention
    int32_t chunk;                     // 0: none
    bool plain_qk;                     // no norms of q and k, whatever other layers have
    int32_t rope;                      // index in model_config.rope; -1: none
    int32_t kv;    // index among the layers with keys and values; -1: no attention
    int32_t kv_of; // the layer whose keys and values it reads: itself, or an earlier one
    bool v_is_k;   // its values are its keys, as they are before their norm and rotation
    int32_t state; // index among the layers with a recurrent state; -1: none
    struct query_growth growth;
    bool moe;
    bool no_ffn; // the layer is a mixer alone; one without attention and state is a feed-forward
                 // alone
};

/* Where norms stand around a sub-layer: f(norm(x)), norm(f(norm(x))), norm(f(x)). */
enum norm_place { NORM_PRE, NORM_SANDWICH, NORM_POST };

/* Sigmoid gates of the heads' outputs: for each element, in q's tensor after each head's queries,
 * or one for each head, a tensor of its own (MLA without q_lora). */
enum attn_gate { ATTN_GATE_NONE, ATTN_GATE_WIDE, ATTN_GATE_HEADS };

/* A head drafts from the hidden states of another model, the target (head.h). */
enum head_kind { HEAD_NONE, HEAD_MTP, HEAD_EAGLE3 };
struct head_config {
    enum head_kind kind;      // HEAD_NONE: this is a model of its own
    int32_t index;            // MTP: which of the modules that draft one after the other
    int32_t module;           // MTP: the layer that a checkpoint counts it as
    struct hidden_layers fed; // EAGLE-3: the target's layers after which states are taken
    int32_t target_hidden;    // width of those
    int32_t n_ids;            // EAGLE-3: ids that it knows, of the target's
    bool norm_before_residual;
};

struct model_config {
    char model_type[32];
    const struct tensor_names *names;
    enum dtype dtype;  // the checkpoint's
    bool dtype_is_set; // else config.json does not say it, and model_stored_dtype does

    int32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab, max_pos;
    int32_t n_draft_layers; // that a checkpoint has after its last layer, for drafts: not loaded
    struct layer_config layers[MAX_LAYERS];
    /* While it is read: the family's, called after layer_types is read, for what follows from them;
     * or NULL. */
    enum status (*read_layers)(const struct json *j, struct model_config *c, struct err *err);
    int32_t n_kv_layers, n_state_layers;
    int32_t last_store; // the last layer that has keys and values, or a state, of its own
    bool tied, untied;  // untied: config.json says that the head is a matrix of its own

    enum norm_kind norm_kind;
    enum norm_place norm_place;
    bool norm_bias, parallel_residual;
    float norm_eps, norm_offset;

    bool q_bias, o_bias, mlp_bias, router_bias, sinks;
    enum attn_gate attn_gate;
    enum qk_norm qk_norm;
    enum norm_kind qk_norm_kind;
    bool qk_norm_after_rope;
    float attn_scale, attn_softcap;

    float embed_scale, residual_scale, logit_scale, final_softcap;
    float attn_out_scale, state_out_scale, ffn_out_scale; // instead of residual_scale; 0: that
    float ffn_gate_scale;     // of an MLP's gates, before the activation; 0: none
    bool embed_scale_rounded; // to the dtype that the model runs in

    enum activation act;
    struct act_shape act_shape;
    bool gated;
    bool v_norm, scaled_layers; // a layer's result is multiplied by a number of its own
    int32_t layer_input;        // width of the inputs of single layers; 0: there are none

    bool full_without_rope; // layers that see everything have no positions
    int32_t n_ropes;
    float partial_rotary;       // share of each head that rotates, unless the config says
    struct rope_config rope[2]; // 0: global, 1: sliding layers' own

    /* Mixture of experts; n_experts 0: none. */
    int32_t n_experts, experts_per_token, moe_ffn, shared_ffn;
    int32_t moe_latent; // width that experts work at, between two products; 0: hidden
    enum moe_scoring scoring;
    bool renormalise, shared_gate, correction, experts_biased;
    bool weigh_inputs;   // of experts, in the place of their outputs
    bool experts_beside; // a layer with experts has an MLP, too, and norms for both
    float routed_scale;
    int32_t n_group, topk_group;

    struct state_config state; // of layers with a recurrent state, if there are any
    struct head_config head;

    /* Multi-head latent attention; kv_lora 0: none. */
    int32_t q_lora, kv_lora, nope_dim, rope_dim, v_dim;
    float mla_norm_eps; // of the norms inside

    int32_t n_eos;
    int32_t eos[MAX_EOS];
    bool
        eos_is_usual; // config.json says none: those of its class, if generation_config.json agrees
    struct sampling_params defaults; // of generation_config.json, as far as they are in range
};

/* A config.json as it is; the caller frees *root. */
enum status model_config_parse(const char *path, struct json **root, struct err *err);
/* model_config_fit comes next, before a model is loaded. */
enum status model_config_load(const char *dir, struct model_config *c, struct err *err);
/* The same with members of a JSON object in place of the file's; NULL for none. */
enum status model_config_load_over(const char *dir, const char *overrides, struct model_config *c,
                                   struct err *err);
/* Fixes the ropes for texts of at most max_len: scalings that depend on the served length (dynamic,
 * longrope) have other frequencies for another. True if that changed any. */
bool model_config_fit(struct model_config *c, int32_t max_len);

/* One row per family: see families_*.c. */
struct family {
    const char *model_type;
    const struct tensor_names *names;
    /* A JSON object: what transformers takes for keys that config.json leaves out, where that is
     * not what the readers take anyway; and "other_keys", under which files may have what is read
     * under the name beside them. */
    const char *defaults;
    /* Sets what differs from plain Llama. `j` is the (text) config. Read before it: the dimensions
     * (hidden to max_pos), dtype, rms_norm_eps, the activation; Llama's scales and one rope are
     * set, all else is 0, and no layer has a state. Read after it: layer_types (over layers[]),
     * what read_layers makes of them, tie_word_embeddings (over tied), and the ropes, from n_ropes,
     * partial_rotary, rope_dim and rope[0].desc.interleaved. */
    enum status (*read)(const struct json *j, struct model_config *c, struct err *err);
};
const struct family *family_find(const char *model_type);
/* Their model_types, for messages: as many as there is room for. */
void family_list(char *out, size_t n_bytes);

/* How a tensor of all experts lies, unless it is quantised, which is [E, out, in]. E experts, D
 * hidden, F the experts' width. */
enum experts_form {
    EXPERTS_ROWS,      // [E, 2F, D], gate rows first; down [E, D, F]
    EXPERTS_COLUMNS,   // [E, D, 2F], gate columns first; down [E, F, D]
    EXPERTS_ALTERNATE, // [E, D, 2F], gate and up columns in turn; down [E, F, D]
};

/* A name without ".weight"; NULL: the family has no such tensor. "%d" is the expert, or in
 * q_norm and k_norm the head; layer names follow "model.layers.N.". */
struct tensor_names {
    const char *embed, *final_norm, *head;
    const char *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm;
    const char *q, *k, *v, *qkv, *o, *q_norm, *k_norm, *sinks, *attn_gate;
    const char *gate, *up, *gate_up, *down;
    const char *router, *correction;
    const char *expert_gate, *expert_up, *expert_down;
    /* All experts in one tensor each, with names as they are: for files that have no tensors of the
     * single experts. */
    const char *experts_gate_up, *experts_down;
    enum experts_form experts_form;
    const char *shared_gate, *shared_up, *shared_gate_up, *shared_down, *shared_router;
    const char *latent_in, *latent_out;
    /* Experts beside an MLP: norms of what goes into the router and the experts, and of what comes
     * out of the experts and the MLP. router_norm and expert_scale are names as they are. */
    const char *router_norm, *expert_scale, *experts_norm, *experts_post_norm, *mlp_post_norm;
    const char *layer_scale; // a name as it is
    /* Inputs of single layers: their table, what the embedding adds to it, and in each layer. */
    const char *inputs_embed, *inputs_proj, *inputs_norm;
    const char *input_gate, *input_up, *input_post_norm;
    const char *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *kv_b;
    const struct state_names *state;
};

/* model_keys.c: every key that is read holds what it may, or the sentence says which does not. A
 * key of a scaling of positions that is not read is told. */
enum status model_keys_check(const struct json *config, struct err *err);
enum status model_keys_check_generation(const struct json *generation, struct err *err);

/* rope.c: what a config says of positions, as transformers takes it: rope_scaling unless that is
 * empty, else rope_parameters, else what the family's class has ("rope_of_class" of the defaults).
 * rope_read makes a rope of it, or of its part for one kind of layers; rope_fit is model_config_fit
 * for one rope. */
struct rope_share { // of heads of head_dim this part rotates
    int32_t head_dim;
    double partial;
};
const struct json *rope_params(const struct json *config);
const char *rope_type(const struct json *params);
double rope_alpha(const struct json *config); // of a dynamic scaling; 0: none
enum status rope_read(const struct json *params, double theta, struct rope_share share,
                      const struct json *config, struct rope_config *out, struct err *err);
bool rope_fit(struct rope_config *rope, int32_t max_len);

#endif
