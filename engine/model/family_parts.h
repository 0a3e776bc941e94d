/* What the files of families share: the names that most checkpoints use, and readers of keys that
 * several families have. For families_*.c, not for others. */
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
#define EXPERT_NAMES                                                                               \
    .router = "mlp.gate", .expert_gate = "mlp.experts.%d.gate_proj",                               \
    .expert_up = "mlp.experts.%d.up_proj", .expert_down = "mlp.experts.%d.down_proj",              \
    .experts_gate_up = "mlp.experts.gate_up_proj", .experts_down = "mlp.experts.down_proj"

extern const struct tensor_names llama_names;

/* The rows of one file. */
struct family_table {
    const struct family *rows;
    size_t n;
};
extern const struct family_table families_dense, families_gemma, families_moe, families_mla;

/* sliding_window on all layers, on the even ones; taken back unless use_sliding_window. */
void family_window_on_all(const struct json *j, struct model_config *c);
void family_window_on_even(const struct json *j, struct model_config *c);
void family_windows_if_used(const struct json *j, struct model_config *c);
/* sliding_window on all layers but every n-th. */
void family_window_but_every(const struct json *j, int64_t n, struct model_config *c);

/* An integer from 1 to max, or the sentence that names the key. */
enum status family_positive(const char *key, int64_t v, int64_t max, struct err *err);

/* Experts on every layer, as many as count_key says (or, as transformers 5 writes it for all,
 * num_local_experts) of the width of ffn_key; callers then take some layers back. */
enum status family_experts(const struct json *j, const char *count_key, const char *ffn_key,
                           struct model_config *c, struct err *err);

#endif
