// SPDX-License-Identifier: Apache-2.0
/* Shared by the files of families: the names that most checkpoints use, and readers of keys that
 * several families have. Private to families_*.c. */
#ifndef SLUICE_ENGINE_MODEL_FAMILY_PARTS_H
#define SLUICE_ENGINE_MODEL_FAMILY_PARTS_H

#include "engine/model/config.h"

#define BASE_NAMES                                                                                 \
    .embed = "model.embed_tokens", .final_norm = "model.norm", .head = "lm_head",                  \
    .o = "self_attn.o_proj", .ffn_norm = "post_attention_layernorm",                               \
    .attn_norm = "input_layernorm"
#define QKV_NAMES .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj"
#define FFN_NAMES .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"
#define QK_NORM_NAMES .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"
#define EACH_EXPERT_NAMES                                                                          \
    .expert_gate = "mlp.experts.%d.gate_proj", .expert_up = "mlp.experts.%d.up_proj",              \
    .expert_down = "mlp.experts.%d.down_proj", .experts_gate_up = "mlp.experts.gate_up_proj",      \
    .experts_down = "mlp.experts.down_proj"
#define EXPERT_NAMES .router = "mlp.gate", EACH_EXPERT_NAMES
#define SHARED_NAMES                                                                               \
    .shared_gate = "mlp.shared_experts.gate_proj", .shared_up = "mlp.shared_experts.up_proj",      \
    .shared_down = "mlp.shared_experts.down_proj"
#define SHARED_EXPERT_NAMES                                                                        \
    .shared_gate = "mlp.shared_expert.gate_proj", .shared_up = "mlp.shared_expert.up_proj",        \
    .shared_down = "mlp.shared_expert.down_proj", .shared_router = "mlp.shared_expert_gate"
#define SHARED_MLP_NAMES                                                                           \
    .shared_gate = "mlp.shared_mlp.gate_proj", .shared_up = "mlp.shared_mlp.up_proj",              \
    .shared_down = "mlp.shared_mlp.down_proj"

#define OLMO2_NAMES                                                                                \
    QKV_NAMES, QK_NORM_NAMES, .embed = "model.embed_tokens", .final_norm = "model.norm",           \
        .head = "lm_head", .o = "self_attn.o_proj", .attn_post_norm = "post_attention_layernorm",  \
        .ffn_post_norm = "post_feedforward_layernorm"
#define GRANITE_MOE_NAMES                                                                          \
    .router = "block_sparse_moe.router.layer",                                                     \
    .experts_gate_up = "block_sparse_moe.input_linear.weight",                                     \
    .experts_down = "block_sparse_moe.output_linear.weight", .experts_form = EXPERTS_ROWS,         \
    .shared_gate_up = "shared_mlp.input_linear",                                                   \
    .shared_down = "shared_mlp.output_linear", /* Only GGUF files use these names. */              \
        .shared_gate = "shared_mlp.gate_proj", .shared_up = "shared_mlp.up_proj",                  \
    .expert_gate = "block_sparse_moe.experts.%d.gate_proj",                                        \
    .expert_up = "block_sparse_moe.experts.%d.up_proj",                                            \
    .expert_down = "block_sparse_moe.experts.%d.down_proj"

/* Ling's names, which Sarvam has, too. */
#define LING_NAMES                                                                                 \
    FFN_NAMES, EXPERT_NAMES, SHARED_NAMES, .embed = "model.word_embeddings",                       \
        .final_norm = "model.norm", .head = "lm_head", .attn_norm = "input_layernorm",             \
        .ffn_norm = "post_attention_layernorm", .o = "attention.dense",                            \
        .correction = "mlp.gate.expert_bias"

extern const struct tensor_names llama_names;

struct family_table {
    const struct family *rows;
    size_t n;
};
extern const struct family_table families_dense, families_plain, families_gemma, families_moe,
    families_sigmoid, families_mla, families_recurrent, families_mamba, families_step;
extern const struct family_table families_classic, families_minimax, families_longcat,
    families_encoder, families_ernie_vl, families_next;

/* The first two apply sliding_window to all layers, or to the even ones. The third removes it again
 * unless use_sliding_window is set. */
void family_window_on_all(const struct json *j, struct model_config *c);
void family_window_on_even(const struct json *j, struct model_config *c);
void family_windows_if_used(const struct json *j, struct model_config *c);
/* sliding_window on all layers except every n-th. */
void family_window_but_every(const struct json *j, int64_t n, struct model_config *c);

/* Hunyuan's attention: a norm per head, after the rope. */
enum status family_hunyuan_attention(const struct json *j, struct model_config *c, struct err *err);
/* EXAONE's attention: a norm per head. If there are sliding layers, only they have positions.
 * sliding_window_pattern selects them: all but every n-th layer, or by letters. */
enum status family_exaone_attention(const struct json *j, struct model_config *c, struct err *err);
/* Reads no_rope_layers, where 1 means that a layer has positions. If it is empty or absent, every
 * no_rope_layer_interval-th (4) layer has none. */
enum status family_no_rope_layers(const struct json *j, struct model_config *c, struct err *err);

/* Reads layer_rope_theta, the base of each layer; 0: the layer has no positions. All other layers
 * must have the same base. */
enum status family_layer_bases(const struct json *j, struct model_config *c, struct err *err);

/* Refuses clip_qkv, which would limit the values of q, k and v. */
enum status family_no_clips(const struct json *j, struct err *err);

/* Checks that v is from 1 to max; the error names the key. */
enum status family_positive(const char *key, int64_t v, int64_t max, struct err *err);

/* The same for a required key. */
enum status family_size(const struct json *j, const char *key, int64_t max, int32_t *out,
                        struct err *err);
/* Sets the MLP width of all layers. */
void family_ffn(struct model_config *c, int32_t ffn);

/* Gives every layer experts. count_key is the key of their number (or num_local_experts, which
 * transformers 5 writes for all families), ffn_key the key of their width. Callers then remove the
 * experts of some layers. */
enum status family_experts(const struct json *j, const char *count_key, const char *ffn_key,
                           struct model_config *c, struct err *err);
/* The same, with the numbers already read; the keys are used in messages. */
struct experts_numbers {
    const char *count_key, *pick_key, *ffn_key;
    int64_t n, k, ffn;
};
enum status family_set_experts(const struct experts_numbers *s, struct model_config *c,
                               struct err *err);
/* Shared experts, whose number is at `key`. They are treated as one expert of their total width. */
enum status family_shared_experts(const struct json *j, const char *key, struct model_config *c,
                                  struct err *err);
/* The keys of DeepSeek's router: n_group, topk_group, routed_scaling_factor. */
enum status family_routing(const struct json *j, struct model_config *c, struct err *err);
/* DeepSeek V3's router: sigmoid scores, and a correction that affects only the picks. */
enum status family_routing_v3(const struct json *j, struct model_config *c, struct err *err);
/* Removes experts from the first first_k_dense_replace layers, and from all but every
 * moe_layer_freq-th. */
enum status family_every_freq(const struct json *j, struct model_config *c, struct err *err);
/* Removes experts from the layers that mlp_layer_types calls dense; without that key, from the
 * first n_dense layers. */
enum status family_dense_layers(const struct json *j, int64_t n_dense, struct model_config *c,
                                struct err *err);

/* Reads an integer, or a list with the same integer for each layer. *out is 0 if it is neither. */
enum status family_same_of_layers(const struct json *j, const char *key, int32_t n_layers,
                                  int64_t *out, struct err *err);
/* The number of query heads of each layer, if the key has a list. */
enum status family_heads_of_layers(const struct json *j, const char *key, struct model_config *c,
                                   struct err *err);
/* Checks that a switch has `value`, the only supported one. */
enum status family_must_be(const struct json *j, const char *key, bool value, struct err *err);
/* Experts that are picked before the softmax, with the shared one of shared_intermediate_size, if
 * it is not 0. */
enum status family_granite_experts(const struct json *j, struct model_config *c, struct err *err);
/* Granite's factors of embeddings, branches, scores and logits. */
enum status family_granite(const struct json *j, struct model_config *c, struct err *err);
/* The same with sinks, and full attention in every fourth layer, beginning with the first.
 * layer_rope_theta selects the layers with positions. */
enum status family_granite_swa(const struct json *j, struct model_config *c, struct err *err);
/* Cohere's attention: interleaved pairs; both sub-layers read the same norm. */
enum status family_cohere(const struct json *j, struct model_config *c, struct err *err);
/* OLMo 2's norms: over the whole width of q and k, and of the results of sub-layers only. */
enum status family_olmo2(const struct json *j, struct model_config *c, struct err *err);
/* Multi-head latent attention. */
enum status family_mla(const struct json *j, struct model_config *c, struct err *err);
/* The same for a family without positions, whose heads need not have a part for them. */
enum status family_mla_without_positions(const struct json *j, struct model_config *c,
                                         struct err *err);
/* DeepSeek V3.2's indexers, and which layers have one. */
enum status family_indexer(const struct json *j, struct model_config *c, struct err *err);
/* Several streams as the residual: their number and epsilon. */
enum status family_hyper(const struct json *j, struct model_config *c, struct err *err);
/* Kimi's delta attention, when the number and size of its heads are set. */
void family_kda(struct model_config *c);
/* llama_4_scaling_beta of the rope parameters: the queries of all layers are scaled by position. */
enum status family_query_growth(const struct json *j, struct model_config *c, struct err *err);

/* How the file stores the decays of recurrent layers. */
void family_decay_sign(const struct json *j, struct model_config *c);

/* Qwen's rule: every decoder_sparse_step-th layer has experts, except those in mlp_only_layers. */
void family_sparse_steps(const struct json *j, struct model_config *c);

#endif
