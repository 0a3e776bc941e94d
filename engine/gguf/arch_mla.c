// SPDX-License-Identifier: Apache-2.0
/* Architectures with multi-head latent attention: DeepSeek, its successors that are written under
 * its name, and those that have recurrent layers besides. */
#include "engine/base/optional.h"
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

#include <math.h>
#include <string.h>

#define MLA_KEYS                                                                                   \
    {"attention.q_lora_rank", "q_lora_rank", INTEGER},                                             \
        {"attention.kv_lora_rank", "kv_lora_rank", INTEGER},                                       \
        {"rope.dimension_count", "qk_rope_head_dim", INTEGER},                                     \
        {"leading_dense_block_count", "first_k_dense_replace", INTEGER},                           \
        {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},                          \
        {"expert_group_count", NULL, INTEGER},                                                     \
    {                                                                                              \
        "expert_weights_scale", "routed_scaling_factor", NUMBER                                    \
    }

static const struct rename deepseek2[] = {
    MLA_KEYS,
    {"expert_count", "n_routed_experts", INTEGER},
    {"expert_shared_count", "n_shared_experts", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename sparse[] = {
    MLA_KEYS,
    {"expert_count", "n_routed_experts", INTEGER},
    {"expert_shared_count", "n_shared_experts", INTEGER},
    {"attention.indexer.head_count", "index_n_heads", INTEGER},
    {"attention.indexer.key_length", "index_head_dim", INTEGER},
    {"attention.indexer.top_k", "index_topk", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename mistral4[] = {
    MLA_KEYS,
    {"expert_count", "n_routed_experts", INTEGER},
    {"expert_shared_count", "n_shared_experts", INTEGER},
    {"attention.temperature_scale", NULL, NUMBER},
    {"attention.temperature_length", NULL, NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename minicpm3[] = {
    {"attention.q_lora_rank", "q_lora_rank", INTEGER},
    {"attention.kv_lora_rank", "kv_lora_rank", INTEGER},
    {"rope.dimension_count", "qk_rope_head_dim", INTEGER},
    {"attention.value_length", "v_head_dim", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename kimi_linear[] = {
    MLA_KEYS,
    {"expert_count", "num_experts", INTEGER},
    {"expert_shared_count", "num_shared_experts", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename bailing3[] = {
    MLA_KEYS,
    {"expert_count", "num_experts", INTEGER},
    {"expert_shared_count", "num_shared_experts", INTEGER},
    {"ssm.conv_kernel", "short_conv_kernel_size", INTEGER},
    {"kda.head_dim", "head_dim", INTEGER},
    {"kda.safe_gate", "kda_safe_gate", FLAG},
    {"kda.gate_lower_bound", "kda_lower_bound", NUMBER},
    {NULL, NULL, INTEGER},
};

/* The sizes of heads. Files that keep the compressed keys have these under keys of their own. */
static enum status put_heads(const struct maker *m)
{
    double rope, key, value;
    TRY(maker_need_number(m, "rope.dimension_count", &rope));
    TRY(maker_need_number(m, "attention.key_length", &key));
    TRY(maker_need_number(m, "attention.value_length", &value));
    maker_put_number(m, "qk_nope_head_dim",
                     maker_number_or(m, "attention.key_length_mla", key) - rope);
    maker_put_number(m, "v_head_dim", maker_number_or(m, "attention.value_length_mla", value));
    return OK;
}

static double put_groups(const struct maker *m)
{
    const double groups = maker_number_or(m, "expert_group_count", 1);
    maker_put_number(m, "n_group", groups > 0 ? groups : 1);
    maker_put_number(m, "topk_group",
                     groups > 0 ? maker_number_or(m, "expert_group_used_count", 1) : 1);
    return groups;
}

static enum status more_deepseek2(const struct maker *m)
{
    TRY(put_heads(m));
    TRY(maker_put_switch(m, "expert_weights_norm", "norm_topk_prob"));
    const bool limited = put_groups(m) > 1;
    buf_printf(m->out, "\"topk_method\":\"%s\",", limited ? "group_limited_greedy" : "greedy");
    return OK;
}

/* Rows attend to the keys that an indexer picks. */
static enum status more_deepseek32(const struct maker *m)
{
    double v;
    TRY(maker_need_number(m, "attention.q_lora_rank", &v));
    TRY(maker_need_number(m, "attention.indexer.head_count", &v));
    TRY(maker_need_number(m, "attention.indexer.key_length", &v));
    TRY(maker_need_number(m, "attention.indexer.top_k", &v));
    TRY(put_heads(m));
    TRY(maker_put_switch(m, "expert_weights_norm", "norm_topk_prob"));
    put_groups(m);
    return OK;
}

/* Which layers have an indexer: all, in older files. Without the list newer files of llama.cpp have
 * those of one release, by which another could not be told from it. */
static enum status more_glm_dsa(const struct maker *m)
{
    static const char key[] = "attention.indexer.types";
    const bool is_listed = maker_has_key(m, key);
    int32_t layers, drafts;
    if (!is_listed && !(maker_number_or(m, "context_length", 0) < 1048576)) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "the key glm-dsa.%s is missing, which is only supported with shorter "
                       "contexts",
                       key);
    }
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    buf_puts(m->out, "\"indexer_types\":[");
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        double is_full = 1;
        if (is_listed && !maker_number_at(m, key, (size_t)i, &is_full)) {
            return err_set(m->err, ERR_FORMAT, "glm-dsa.%s has no number for layer %d", key, i);
        }
        buf_printf(m->out, "%s\"%s\"", text_if(i > 0, ","), is_full != 0 ? "full" : "shared");
    }
    buf_puts(m->out, "],");
    return more_deepseek32(m);
}

/* Ollama's files of GLM-4.7-Flash, whose sizes of heads are those of other architectures. */
static enum status more_glm4_lite(const struct maker *m)
{
    double rope, key, value;
    TRY(maker_need_number(m, "rope.dimension_count", &rope));
    TRY(maker_need_number(m, "attention.key_length", &key));
    TRY(maker_need_number(m, "attention.value_length", &value));
    maker_put_number(m, "qk_nope_head_dim", key - rope);
    maker_put_number(m, "v_head_dim", value);
    TRY(maker_put_switch(m, "expert_weights_norm", "norm_topk_prob"));
    put_groups(m);
    return OK;
}

/* Queries are scaled by position in steps of the original length. */
static enum status more_mistral4(const struct maker *m)
{
    const double original = maker_number_or(m, "rope.scaling.original_context_length", 0);
    const double step = maker_number_or(m, "attention.temperature_length", original);
    if (step != original) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s.attention.temperature_length is %g, but the original context %g, which "
                       "is not supported",
                       m->arch->name, step, original);
    }
    return more_deepseek2(m);
}

/* Its factors of embeddings, residuals and logits have no keys: all files have those of the
 * released model, which are the family's defaults. */
static enum status more_minicpm3(const struct maker *m)
{
    double rope, key, rank;
    TRY(maker_need_number(m, "rope.dimension_count", &rope));
    TRY(maker_need_number(m, "attention.key_length", &key));
    TRY(maker_need_number(m, "attention.kv_lora_rank", &rank));
    TRY(maker_need_number(m, "attention.q_lora_rank", &rank));
    maker_put_number(m, "qk_nope_head_dim", key - rope);
    return OK;
}

/* Layers without key/value heads have a state. */
static bool has_attention(const struct maker *m, int32_t layer)
{
    double heads = 0;
    return maker_number_at(m, "attention.head_count_kv", (size_t)layer, &heads) && heads != 0;
}

/* Layers are numbered from 1 in the list. */
static enum status more_kimi_linear(const struct maker *m)
{
    double heads, size, kernel;
    int32_t layers, drafts;
    TRY(put_heads(m));
    TRY(maker_need_number(m, "attention.head_count", &heads));
    TRY(maker_need_number(m, "kda.head_dim", &size));
    TRY(maker_need_number(m, "ssm.conv_kernel", &kernel));
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    put_groups(m);
    buf_puts(m->out, "\"linear_attn_config\":{\"full_attn_layers\":[");
    bool first = true;
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        if (has_attention(m, i)) {
            buf_printf(m->out, "%s%d", text_if(!first, ","), i + 1);
            first = false;
        }
    }
    buf_puts(m->out, "],");
    maker_put_number(m, "num_heads", heads);
    maker_put_number(m, "head_dim", size);
    buf_puts(m->out, "\"short_conv_kernel_size\":");
    buf_put_double(m->out, kernel);
    buf_puts(m->out, "},");
    return OK;
}

static enum status more_bailing3(const struct maker *m)
{
    int32_t layers, drafts;
    double sections = 0;
    maker_number_at(m, "rope.dimension_sections", 0, &sections);
    if (sections > 0) {
        return err_set(m->err, ERR_UNSUPPORTED, "%s.rope.dimension_sections is not supported",
                       m->arch->name);
    }
    TRY(put_heads(m));
    TRY(maker_put_switch(m, "expert_weights_norm", "norm_topk_prob"));
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    put_groups(m);
    maker_put_number(m, "layer_group_size", layers); // layer_types decides
    buf_puts(m->out, "\"layer_types\":[");
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        buf_printf(m->out, "%s\"%s_attention\"", text_if(i > 0, ","),
                   has_attention(m, i) ? "full" : "linear");
    }
    buf_puts(m->out, "],");
    return OK;
}

/* Files that do not tell how the router scores experts have sigmoids if they have corrections. */
static bool is_sigmoid(const struct gguf *g)
{
    double gating = 0;
    gguf_get_number(g, "deepseek2.expert_gating_func", &gating);
    for (size_t i = 0; i < gguf_n_tensors(g) && gating == 0; i++) {
        if (strstr(gguf_tensor_at(g, i)->name, ".exp_probs_b")) {
            gating = GATING_SIGMOID;
        }
    }
    return gating == GATING_SIGMOID;
}

/* Mistral's models under DeepSeek's name. */
static bool is_normed_softmax(const struct gguf *g)
{
    bool normed = false;
    gguf_get_bool(g, "deepseek2.expert_weights_norm", &normed);
    return normed && !is_sigmoid(g);
}

static const struct arch rows[] = {
    {.name = "deepseek2",
     .is = is_sigmoid,
     .model_type = "deepseek_v3",
     .renames = deepseek2,
     .more = more_deepseek2},
    {.name = "deepseek2",
     .is = is_normed_softmax,
     .model_type = "mistral4",
     .renames = mistral4,
     .gating = GATING_SOFTMAX,
     .more = more_mistral4},
    {.name = "deepseek2",
     .model_type = "deepseek_v2",
     .renames = deepseek2,
     .gating = GATING_SOFTMAX,
     .more = more_deepseek2},
    {.name = "glm4moelite",
     .model_type = "deepseek_v3",
     .renames = deepseek2,
     .gating = GATING_SIGMOID,
     .pre = "glm4",
     .more = more_glm4_lite},
    {.name = "mistral4",
     .model_type = "mistral4",
     .renames = mistral4,
     .gating = GATING_SOFTMAX,
     .more = more_mistral4},
    {.name = "deepseek32",
     .model_type = "deepseek_v32",
     .renames = sparse,
     .gating = GATING_SIGMOID,
     .more = more_deepseek32},
    {.name = "glm-dsa",
     .model_type = "glm_moe_dsa",
     .renames = sparse,
     .gating = GATING_SIGMOID,
     .more = more_glm_dsa},
    {.name = "minicpm3",
     .model_type = "minicpm3",
     .renames = minicpm3,
     .constants = "\"scale_emb\":12,\"scale_depth\":1.4,\"dim_model_base\":256,",
     .more = more_minicpm3},
    {.name = "kimi-linear",
     .model_type = "kimi_linear",
     .is_hybrid = true,
     .renames = kimi_linear,
     .gating = GATING_SIGMOID,
     .constants = "\"decays_are_negative\":true,\"mla_use_nope\":true,\"moe_renormalize\":true,",
     .more = more_kimi_linear},
    {.name = "bailingmoe3",
     .model_type = "bailing_hybrid",
     .is_hybrid = true,
     .renames = bailing3,
     .gating = GATING_SIGMOID,
     .constants = "\"decays_are_positive\":true,",
     .more = more_bailing3},
};
const struct arch_table archs_mla = {rows, sizeof rows / sizeof rows[0]};
