// SPDX-License-Identifier: Apache-2.0
/* The description of a model, read from its config.json and generation_config.json and checked. It
 * is plain data, and the same for every family. Names of dimensions abbreviate Hugging Face's.
 * Thread: plain data, constant after model_config_load. */
#ifndef SLUICE_ENGINE_MODEL_CONFIG_H
#define SLUICE_ENGINE_MODEL_CONFIG_H

#include "engine/model/pooling.h"
#include "engine/model/recurrent.h"

enum {
    MAX_LAYERS = 512,               // chosen: four times the deepest checkpoint known
    MAX_KV_LAYERS = 3 * MAX_LAYERS, // a layer may have an indexer, with pooled keys and others
    MAX_ROPE_PAIRS = 256,           // chosen: for heads of up to 512
    MAX_POSITIONS = 1 << 30,        // chosen: the sum of a few lengths still fits an int32_t
};

struct json;
struct tensor_names;

enum rope_growth { ROPE_FIXED, ROPE_DYNAMIC, ROPE_LONG };

struct rope_config {
    struct rope_desc desc; // inv_freq points to the array below; rope_fit sets max_pos
    float inv_freq[MAX_ROPE_PAIRS];
    /* How rope_fit computes frequencies that depend on the served length. */
    enum rope_growth growth;
    double theta, factor; // for ROPE_DYNAMIC
    double trained_len;   // frequencies change for texts longer than this
    float short_freq[MAX_ROPE_PAIRS], long_freq[MAX_ROPE_PAIRS]; // for ROPE_LONG
};

struct layer_config {
    // equal to the model's sizes unless the layer has its own
    int32_t n_heads, n_kv_heads, head_dim, ffn;
    int32_t window; // 0: full attention
    int32_t chunk;  // 0: none
    bool plain_qk;  // q and k are not normed, whatever other layers do
    int32_t rope;   // index in model_config.rope; -1: none
    int32_t kv;     // index among the layers of the KV set; -1: the layer has no attention
    int32_t index;  // the same for the keys of its indexer; -1: it has none. What it pools follows
    int32_t kv_of;  // the layer whose keys and values it reads: itself, or an earlier one
    bool v_is_k;    // the layer's values are its keys before norm and rotation
    int32_t state;  // index among the layers with a recurrent state; -1: the layer has none
    struct query_growth growth;
    bool latent_only; // MLA: keys are the latent alone, and whole heads of q are compared with it
    bool moe;
    float ffn_out_scale; // as attn_out_scale
    // A limit above 0 makes the activation ACT_SILU_CLAMPED. mlp_limit: also of shared experts.
    // See limit_before_act.
    float experts_limit, mlp_limit;
    // Of the MLP's gates only those are open that exceed their mean by this many standard
    // deviations.
    struct {
        bool is_on;
        float deviations;
    } cutoff;
    // xIELU's parameters as checkpoints store them, if the config has them.
    struct {
        bool is_known;
        float positive, negative, slope;
    } xielu;
    bool no_ffn; // the layer has only attention or a state; a layer with neither has only a
                 // feed-forward part
};

/* Hyper-connections (struct hyper_args): several streams are the residual. */
struct hyper_config {
    int32_t n;          // streams; 0: the model has none
    int32_t n_sinkhorn; // 0: streams are not mixed among themselves
    float eps, magnitude, after_eps;
};

/* Sparse attention: an indexer picks the keys that the rows of a layer attend to. With latent
 * attention its heads pick together, and a layer without an indexer has the picks of the last layer
 * before it that has one. With plain attention each head picks blocks of keys for one KV head, and
 * a layer without an indexer attends to all keys. */
struct index_config {
    int32_t top_k; // 0: the model has no indexers
    int32_t n_heads, head_dim;
    int32_t block, n_local; // as in index_pick_args
    int32_t pool;           // the same
    int32_t rope_at;        // first rotated element of its heads
    bool interleaved;       // the pairs of its rope, which has the frequencies of rope 0
    int32_t rope;           // index in model_config.rope
    enum norm_kind norm_kind;
    float norm_eps, norm_offset; // of keys, and of queries or their input if that has a norm
};

/* Where the norms around a sub-layer f are: x + f(norm(x)), x + norm(f(norm(x))), x + norm(f(x)),
 * or norm(x + f(x)). */
enum norm_place { NORM_PRE, NORM_SANDWICH, NORM_POST, NORM_SUM };

/* Gates of the heads' outputs. WIDE: a gate for each element, in a separate tensor or, if
 * it has no name, in q's after the queries of each head. HEADS: a gate for each head, in a separate
 * tensor. */
enum attn_gate { ATTN_GATE_NONE, ATTN_GATE_WIDE, ATTN_GATE_HEADS };

/* A head drafts from the hidden states of another model, the target (head.h). */
enum head_kind { HEAD_NONE, HEAD_MTP, HEAD_EAGLE3 };
struct head_config {
    enum head_kind kind;   // HEAD_NONE: this is not a draft head
    int32_t index;         // MTP: index of the module, if several modules draft one after another
    int32_t module;        // MTP: its layer number in the checkpoint
    int32_t target_hidden; // width of the target's hidden states
    int32_t n_ids;         // EAGLE-3: size of its own vocabulary
    bool norm_before_residual;
    /* What other files need to know about a kind of head, so that they need not test which kind it
     * is. */
    struct hidden_layers fed; // the head reads the states after these layers of the target; none:
                              // the output of the target's final norm
    int32_t input_width;      // of its layer's q, k and v
    bool state_is_normed; // the states that its later drafts read are those after its final norm,
                          // not those before it
    bool in_target;       // its weights are in the target's checkpoint
    bool may_lack_embed;  // its checkpoint may have no embedding
};

struct model_config {
    char model_type[32];
    const struct tensor_names *names;
    enum dtype dtype;  // the checkpoint's dtype
    bool dtype_is_set; // false: config.json does not name one; model_stored_dtype then takes the
                       // checkpoint's

    /* The rows of a sequence attend to each other, also to later ones (struct pass): the model is
     * an encoder, which gives vectors but no tokens. */
    bool bidirectional;

    int32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab, max_pos;
    int32_t n_draft_layers; // number of draft modules after the last layer; they are not part of
                            // this model
    struct layer_config layers[MAX_LAYERS];
    /* NULL, or set by the family while it reads the config. Called once layer_types is known, to
     * set what depends on it. */
    enum status (*read_layers)(const struct json *j, struct model_config *c, struct err *err);
    int32_t n_kv_layers, n_state_layers; // n_kv_layers: of the KV set, indexers included
    int32_t last_store;   // index of the last layer that stores keys and values, or a state
    bool widths_by_layer; // intermediate_size may be a list, which layers[] then has
    bool tied, untied;    // untied: config.json says that the head is a separate matrix

    enum norm_kind norm_kind;
    enum norm_place norm_place;
    bool norm_bias, parallel_residual;
    bool parallel_norms;        // with parallel_residual: the MLP's input has a norm of its own
    bool mlp_without_post_norm; // only layers with experts have ffn_post_norm
    bool norms_replace; // the residual becomes the normed input of each sub-layer, as with NORM_SUM
    bool bare_norms;    // norms have no weights, except those of heads
    bool layer_norms_less_one; // the layers' norms are stored minus one, unlike the final one
    float post_norm_eps;       // of norms after sub-layers; 0: norm_eps
    float norm_eps, norm_offset;
    /* The normed inputs of attention and of experts are multiplied by gates made from them at this
     * rank; 0: they are not. */
    int32_t norm_gate_rank;

    bool q_bias, o_bias, mlp_bias, router_bias, head_bias, sinks;
    bool down_bias; // of MLPs' last product, even without mlp_bias
    bool up_first;  // a fused tensor of gates and ups has the ups first
    enum attn_gate attn_gate;
    bool attn_gate_softplus; // the gates are softplus instead of sigmoid
    enum qk_norm qk_norm;
    enum norm_kind qk_norm_kind;
    bool qk_norm_after_rope;
    float attn_scale, attn_softcap;
    /* The width of the values' heads in the checkpoint, if it is smaller than head_dim; 0: it is
     * not. In memory they are as wide as the keys' heads, and their other elements are zero. */
    int32_t v_head;

    /* A fused tensor of q, k and v consists of this many groups, each with its share of the heads:
     * queries, keys, values, or with qkv_v_first queries, values, keys. 0: as 1. */
    int32_t qkv_groups;
    bool qkv_v_first;
    bool turned; // the matrices of layers are stored as [in, out], unless they are quantised

    /* Positions that have a learned vector, which is added to the embedding; 0: none have one. The
     * table has first_position other rows before them. */
    int32_t n_positions, first_position;
    /* Rows of the table of token types, which is added, too: texts have type 0, and the second text
     * of a pair has type 1, or 0 if there is only one. 0: there is no table. */
    int32_t n_token_types;

    int32_t n_other_embeds; // rows of the embedding's table that no id of a text has
    float embed_scale, residual_scale, logit_scale, final_softcap;
    // Each overrides residual_scale; 0: does not.
    float attn_out_scale, state_out_scale;
    // Factors of the residual after the outputs of attention, states and feed-forward parts have
    // been added; 0: none.
    float attn_x_scale, state_x_scale, ffn_x_scale;
    float ffn_gate_scale;     // multiplies an MLP's gates before the activation; 0: none
    bool embed_scale_rounded; // embed_scale is rounded to the dtype that the model runs in
    bool embed_normed;        // embeddings are RMS-normed, without weights

    enum activation act;
    struct act_shape act_shape;
    bool gated;
    bool limit_before_act; // layers' limits are those of the activation's input, not of its result
    bool v_norm, scaled_layers; // scaled_layers: each layer's result is multiplied by a factor
    int32_t layer_input;        // width of the per-layer inputs; 0: none
    int32_t inputs_vocab;       // rows of their table; other ids have its first row

    /* Several residual streams; n 0: only one. */
    struct {
        int32_t n, active; // active: the one that passes through the layers
        bool scaled;       // it is scaled before the per-layer input is added to the others
    } streams;
    /* A low-rank product of a layer's input, normed, and the input itself are added to what
     * attention adds; rank 0: they are not. The sum is multiplied by branch_scale. */
    int32_t branch_rank;
    float branch_scale;

    bool full_without_rope, full_without_sinks; // layers with full attention have none
    int32_t n_ropes;
    // of the ropes; they take precedence over those in the config; 0: the family does not set them
    double rope_theta[2], rope_share[2];
    float partial_rotary; // rotated share of each head; a value in the config takes precedence
    bool rope_backwards;  // angles are negative
    float rope_attention; // multiplies cos and sin; 0: by the type of the rope's scaling
    struct rope_config rope[2]; // 0: global, 1: for sliding layers, or for indexers

    /* Mixture of experts; n_experts 0: none. */
    int32_t n_experts, experts_per_token, moe_ffn, shared_ffn;
    int32_t moe_latent; // width of the experts' inputs and outputs; 0: hidden
    enum moe_scoring scoring;
    bool renormalise, shared_gate, correction, experts_biased;
    bool correction_may_lack; // a checkpoint without the correction has none
    bool weigh_inputs;        // routing weights multiply the experts' inputs, not their outputs
    bool experts_beside;      // a layer with experts also has an MLP, with norms for both
    bool experts_late;        // the same without these norms; the end of the next layer, which has
                              // none, adds the result of the experts
    bool router_turned;       // the router's matrix is stored as [in, out]
    int32_t n_other_experts; // experts after the others that no token of a text has; the correction
                             // has a second row for them
    int32_t n_identity;      // experts after the others that return their input
    float routed_scale;
    float routed_spread; // for MOE_MIXER
    int32_t n_group, topk_group;

    /* The checkpoint is a classifier of texts with n classes; 0: it is not. Its head reads the
     * first row, or with `mean` the mean of all. */
    struct {
        int32_t n;
        bool mean;
        enum pool_act act;
    } labels;

    struct state_config state; // describes the layers with a recurrent state, if there are any
    struct head_config head;

    /* Multi-head latent attention; kv_lora 0: none. */
    int32_t q_lora, kv_lora, nope_dim, rope_dim, v_dim;
    float mla_norm_eps; // epsilon of the norms inside MLA
    float latent_scale; // factor of the normed latent; 0: none
    bool q_twice;       // the product of the low-rank query reads it both normed and as it was
    bool heads_grow;    // queries are scaled by position, with weights for each head
    struct index_config index;
    struct hyper_config hyper;

    int32_t n_eos;
    int32_t eos[MAX_EOS];
    bool eos_is_usual; // the ids are the family's defaults, because config.json has none
    // From generation_config.json, without values that are out of range.
    struct sampling_params defaults;
};

/* The elements of a layer's keys in MLA that are beside the latent, and of each head of q that are
 * compared with the latent. */
static inline int32_t model_rope_dim(const struct model_config *c, int32_t layer)
{
    return c->layers[layer].latent_only ? 0 : c->rope_dim;
}
static inline int32_t model_nope_dim(const struct model_config *c, int32_t layer)
{
    return c->nope_dim + c->rope_dim - model_rope_dim(c, layer);
}

/* Parses a config.json without interpreting it. The caller frees *root. */
enum status model_config_parse(const char *path, struct json **root, struct err *err);
/* Reads and checks the config. Call model_config_fit afterwards, before the model is loaded. */
enum status model_config_load(const char *dir, struct model_config *c, struct err *err);
/* The same, but members of the JSON object `overrides` replace those of the file; NULL: none. */
enum status model_config_load_over(const char *dir, const char *overrides, struct model_config *c,
                                   struct err *err);
/* Fixes the ropes for texts of at most max_len: scalings that depend on the served length (dynamic,
 * longrope) have different frequencies for each length. True if any frequency changed. */
bool model_config_fit(struct model_config *c, int32_t max_len);

/* One row per family: see families_*.c. */
struct family {
    const char *model_type;
    const struct tensor_names *names;
    /* A JSON object with values for missing keys, for those whose default in transformers' class
     * for this family differs from the one in config.c; and "other_keys", alternative names of
     * keys. */
    const char *defaults;
    /* Sets what differs from plain Llama. `j` is the (text) config. When it is called, the
     * dimensions (hidden to max_pos), dtype, rms_norm_eps and the activation have been read,
     * Llama's scales and one rope are set, all else is 0, and no layer has a state. Afterwards
     * these are read: layer_types, which replaces layers[] (read_layers is called then);
     * tie_word_embeddings, which replaces tied; and the ropes, for which n_ropes, partial_rotary,
     * rope_dim and rope[0].desc.interleaved must be set. */
    enum status (*read)(const struct json *j, struct model_config *c, struct err *err);
};
const struct family *family_find(const char *model_type);
/* The model_types of all families, for messages; cut off where `out` is full. */
void family_list(char *out, size_t n_bytes);

/* The layout of a tensor that holds all experts, except for GPT-OSS's own `_blocks`: these are
 * [E, out, in]. E: number of experts; D: hidden; F: the experts' width. */
enum experts_form {
    EXPERTS_ROWS,      // [E, 2F, D], gate rows first; down [E, D, F]
    EXPERTS_COLUMNS,   // [E, D, 2F], gate columns first; down [E, F, D]. Or rows: see ffn.c
    EXPERTS_ALTERNATE, // [E, D, 2F], gate and up columns alternating; down [E, F, D]
};

/* Names of tensors, without ".weight". NULL: the family has no such tensor. "%d" stands for the
 * expert, or in q_norm and k_norm for the head. A layer's norms may have several names, with bars
 * between them. Names of a layer's tensors follow
 * "model.layers.N.". */
struct tensor_names {
    const char *embed, *final_norm, *head;
    const char *positions;   // the table of learned positions; NULL: sines and cosines
    const char *token_types; // the table of token types
    /* The norm of the embedding, which becomes the residual. The first layer then has no attn_norm;
     * and with NORM_SUM, attn_norm is that after a layer. */
    const char *embed_norm;
    const char *label_dense, *label_norm, *labels; // a classifier's head: see labels.c
    const char *layers;                            // replaces "layers."; NULL: it stays
    /* Layers 2 n and 2 n + 1 are one in checkpoints. In names of layers '#' stands for which of the
     * two it is. */
    bool paired;
    const char *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm;
    const char *q, *k, *v, *qkv, *o, *q_norm, *k_norm, *sinks, *attn_gate;
    const char *gate, *up, *gate_up, *down;
    const char *o_norm, *down_norm; // norms of the whole inputs of o and down
    const char *act;                // the module of an activation that has weights
    const char *router, *correction;
    const char *expert_gate, *expert_up, *expert_down;
    /* Complete names of tensors that hold all experts, for files without a tensor per expert. */
    const char *experts_gate_up, *experts_down;
    /* For files with three such tensors, in the form EXPERTS_ROWS. */
    const char *experts_gate, *experts_up;
    enum experts_form experts_form;
    const char *shared_gate, *shared_up, *shared_gate_up, *shared_down, *shared_router;
    const char *latent_in, *latent_out;
    /* For layers with both experts and an MLP: the norms of the inputs of the router and of the
     * experts, and of the outputs of the experts and of the MLP. router_norm and expert_scale are
     * complete names, to which no suffix is added. */
    const char *router_norm, *expert_scale, *experts_norm, *experts_post_norm, *mlp_post_norm;
    const char *layer_scale; // a complete name, to which no suffix is added
    /* Per-layer inputs: their table, the projection of the embedding that is added to the table's
     * row, and the tensors of each layer. */
    const char *inputs_embed, *inputs_proj, *inputs_norm;
    const char *input_gate, *input_up, *input_post_norm;
    /* Several streams: "%d" is the stream, counted without the first one. stream_scale is a
     * complete name. */
    const char *stream_in, *stream_out;
    const char *stream_router, *stream_router_norm, *stream_before, *stream_after, *stream_scale;
    const char *branch_down, *branch_up, *branch_norm;
    const char *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *kv_b;
    const char *index_q, *index_q_norm, *index_k, *index_k_norm, *index_weights;
    /* Complete names: the matrix of gates and the table of places of an indexer that pools. */
    const char *index_gates, *index_places;
    /* Hyper-connections of both sub-layers, and the complete name of those at the end, where
     * without a name the streams' mean is taken. "fn", "base" and "scale" follow. */
    const char *hyper_attn, *hyper_ffn, *hyper_end;
    /* A LayerNorm of the layer's input, which the indexer's queries are then made from. NULL: they
     * are made from what q is made from. */
    const char *index_in_norm;
    /* The modules whose vectors scale the queries of heads by position; complete names, to which no
     * suffix is added. */
    const char *growth_scale, *growth_bias, *index_growth_scale, *index_growth_bias;
    const char
        *rope_alpha; // a complete name outside layers: logarithms of the frequencies' factors
    const char *attn_norm_gate, *ffn_norm_gate; // modules with W_down and W_up
    /* The two parts of kv_b as GGUF files have them: [heads, kv_lora, nope] and
     * [heads, v, kv_lora]. */
    const char *k_b, *v_b;
    const struct state_names *state;
};

/* True if MLA's gates of the heads are outputs of the product of the layer's input, after the
 * compressed key; otherwise they follow the queries. */
static inline bool model_gates_in_low(const struct model_config *c)
{
    return c->q_lora > 0 && c->attn_gate != ATTN_GATE_NONE && c->names->attn_gate;
}

/* keys.c. Check the value of every key that is read; the error names the key. model_keys_check also
 * logs keys of a RoPE scaling that are not read. */
enum status model_keys_check(const struct json *config, struct err *err);
enum status model_keys_check_generation(const struct json *generation, struct err *err);

/* rope.c. rope_params: the rope's parameters in a config, by transformers' rules: rope_scaling
 * unless it is empty, else rope_parameters, else those of the family ("rope_of_class" of the
 * defaults). rope_fit: model_config_fit for one rope. */
const struct json *rope_params(const struct json *config);
const char *rope_type(const struct json *params);
double rope_alpha(const struct json *config); // alpha of a dynamic scaling; 0: none
bool rope_fit(struct rope_config *rope, int32_t max_len);
/* Reads the model's ropes and assigns them to the layers. */
enum status ropes_read(const struct json *j, struct model_config *c, struct err *err);

#endif
