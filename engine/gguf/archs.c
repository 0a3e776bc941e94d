// SPDX-License-Identifier: Apache-2.0
/* One table row per architecture: its name in Hugging Face's configs, and the mapping of its keys.
 * To add an architecture, add a row; engine/model/checkpoint_gguf.c maps its tensor names. */
#include "engine/base/optional.h"
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct rename qwen_moe[] = {
    {"expert_count", "num_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename granite[] = {
    {"embedding_scale", "embedding_multiplier", NUMBER},
    {"residual_scale", "residual_multiplier", NUMBER},
    {"attention.scale", "attention_multiplier", NUMBER},
    {"logit_scale", "logits_scaling", NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename gemma2[] = {
    {"attn_logit_softcapping", "attn_logit_softcapping", NUMBER},
    {"final_logit_softcapping", "final_logit_softcapping", NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename lfm2[] = {
    {"shortconv.l_cache", "conv_L_cache", INTEGER},
    {"expert_count", "num_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"leading_dense_block_count", "num_dense_layers", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename granite_hybrid[] = {
    {"embedding_scale", "embedding_multiplier", NUMBER},
    {"residual_scale", "residual_multiplier", NUMBER},
    {"attention.scale", "attention_multiplier", NUMBER},
    {"logit_scale", "logits_scaling", NUMBER},
    {"expert_count", "num_local_experts", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename nemotron_h[] = {
    {"ssm.conv_kernel", "conv_kernel", INTEGER},
    {"ssm.state_size", "ssm_state_size", INTEGER},
    {"ssm.group_count", "n_groups", INTEGER},
    {"ssm.time_step_rank", "mamba_num_heads", INTEGER},
    {"expert_count", "n_routed_experts", INTEGER},
    {"expert_shared_count", "n_shared_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size", INTEGER},
    {"expert_weights_norm", "norm_topk_prob", FLAG},
    {"expert_weights_scale", "routed_scaling_factor", NUMBER},
    {"expert_group_count", "n_group", INTEGER},
    {"expert_group_used_count", "topk_group", INTEGER},
    {"moe_latent_size", "moe_latent_size", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename gemma4[] = {
    {"final_logit_softcapping", "final_logit_softcapping", NUMBER},
    {"attention.shared_kv_layers", "num_kv_shared_layers", INTEGER},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", INTEGER},
    {"expert_count", "num_experts", INTEGER},
    {"expert_used_count", "top_k_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename stablelm[] = {
    {"use_parallel_residual", "use_parallel_residual", FLAG},
    {NULL, NULL, INTEGER},
};
static const struct rename gpt_oss[] = {
    {"expert_count", "num_local_experts", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename mixtral[] = {
    {"expert_count", "num_local_experts", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename deepseek2[] = {
    {"attention.q_lora_rank", "q_lora_rank", INTEGER},
    {"attention.kv_lora_rank", "kv_lora_rank", INTEGER},
    {"rope.dimension_count", "qk_rope_head_dim", INTEGER},
    {"expert_count", "n_routed_experts", INTEGER},
    {"expert_shared_count", "n_shared_experts", INTEGER},
    {"leading_dense_block_count", "first_k_dense_replace", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_weights_scale", "routed_scaling_factor", NUMBER},
    {"expert_weights_norm", "norm_topk_prob", FLAG},
    {NULL, NULL, INTEGER},
};

static const struct rename delta_net[] = {
    {"expert_count", "num_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"full_attention_interval", "full_attention_interval", INTEGER},
    {"ssm.conv_kernel", "linear_conv_kernel_dim", INTEGER},
    {"ssm.state_size", "linear_key_head_dim", INTEGER},
    {"ssm.group_count", "linear_num_key_heads", INTEGER},
    {"ssm.time_step_rank", "linear_num_value_heads", INTEGER},
    {NULL, NULL, INTEGER},
};

static enum status more_delta_net(const struct maker *m)
{
    double width, heads;
    TRY(maker_need_number(m, "ssm.inner_size", &width));
    TRY(maker_need_number(m, "ssm.time_step_rank", &heads));
    if (!(heads >= 1)) {
        return err_set(m->err, ERR_FORMAT, "%s.ssm.time_step_rank is %g", m->arch->name, heads);
    }
    maker_put_number(m, "linear_value_head_dim", floor(width / heads));
    return OK;
}

/* One model size, recognised by its number of layers, scales queries by hidden / heads instead of
 * the head size. */
static enum status more_gemma(const struct maker *m, double widest_layers)
{
    double layers, heads, width, key;
    bool found;
    TRY(maker_need_number(m, "block_count", &layers));
    TRY(maker_need_number(m, "attention.head_count", &heads));
    TRY(maker_need_number(m, "embedding_length", &width));
    TRY(maker_get_number(m, "attention.key_length", &key, &found));
    if (!found) {
        key = width / heads;
    }
    maker_put_number(m, "query_pre_attn_scalar", layers == widest_layers ? width / heads : key);
    return OK;
}

static enum status more_gemma2(const struct maker *m)
{
    return more_gemma(m, 46);
}

static enum status more_gemma3(const struct maker *m)
{
    double pattern = maker_number_or(m, "attention.sliding_window_pattern", 6);
    maker_put_number(m, "sliding_window_pattern", pattern);
    maker_put_number(m, "rope_local_base_freq", maker_number_or(m, "rope.freq_base_swa", 10000));
    return more_gemma(m, 62);
}

/* Per-head norms are one tensor in GGUF, but one tensor per head in Hugging Face's files. */
static enum status more_stablelm(const struct maker *m)
{
    if (maker_has_tensor(m, "blk.0.attn_q_norm.weight")) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "a StableLM with norms of q and k is not supported");
    }
    return OK;
}

static enum status more_gpt_oss(const struct maker *m)
{
    double ffn;
    TRY(maker_need_number(m, "expert_feed_forward_length", &ffn));
    maker_put_number(m, "intermediate_size", ffn);
    return OK;
}

static bool is_sigmoid(const struct gguf *g)
{
    double gating = 0;
    gguf_get_number(g, "deepseek2.expert_gating_func", &gating);
    return gating == 2;
}

static enum status more_deepseek2(const struct maker *m)
{
    double rope, key, value;
    TRY(maker_need_number(m, "rope.dimension_count", &rope));
    TRY(maker_need_number(m, "attention.key_length", &key));
    TRY(maker_need_number(m, "attention.value_length", &value));
    maker_put_number(m, "qk_nope_head_dim",
                     maker_number_or(m, "attention.key_length_mla", key) - rope);
    maker_put_number(m, "v_head_dim", maker_number_or(m, "attention.value_length_mla", value));
    double groups = maker_number_or(m, "expert_group_count", 1);
    maker_put_number(m, "n_group", groups);
    maker_put_number(m, "topk_group", maker_number_or(m, "expert_group_used_count", 1));
    if (groups > 1) {
        buf_puts(m->out, "\"topk_method\":\"group_limited_greedy\",");
    } else {
        buf_puts(m->out, "\"topk_method\":\"greedy\",");
    }
    return OK;
}

static const struct arch archs[] = {
    {.name = "llama", .model_type = "llama", .pairs_together = true},
    {.name = "qwen2", .model_type = "qwen2"},
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .renames = qwen_moe,
     .constants = "\"norm_topk_prob\":false,"},
    {.name = "qwen3", .model_type = "qwen3"},
    {.name = "qwen3moe",
     .model_type = "qwen3_moe",
     .renames = qwen_moe,
     .constants = "\"norm_topk_prob\":true,"},
    {.name = "qwen2vl", .model_type = "qwen2"},
    {.name = "qwen3vl", .model_type = "qwen3"},
    {.name = "qwen3vlmoe",
     .model_type = "qwen3_moe",
     .renames = qwen_moe,
     .constants = "\"norm_topk_prob\":true,"},
    {.name = "qwen3next",
     .model_type = "qwen3_next",
     .norms_plus_one = true,
     .renames = delta_net,
     .constants = "\"norm_topk_prob\":true,\"decays_are_negative\":true,",
     .more = more_delta_net},
    {.name = "qwen35",
     .model_type = "qwen3_5_text",
     .norms_plus_one = true,
     .renames = delta_net,
     .constants = "\"decays_are_negative\":true,\"state_heads_are_tiled\":true,",
     .more = more_delta_net},
    {.name = "qwen35moe",
     .model_type = "qwen3_5_moe_text",
     .norms_plus_one = true,
     .renames = delta_net,
     .constants = "\"decays_are_negative\":true,\"state_heads_are_tiled\":true,",
     .more = more_delta_net},
    {.name = "gemma", .model_type = "gemma", .norms_plus_one = true},
    {.name = "gemma2",
     .model_type = "gemma2",
     .norms_plus_one = true,
     .renames = gemma2,
     .more = more_gemma2},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .norms_plus_one = true,
     .renames = gemma2,
     .more = more_gemma3},
    {.name = "gemma4",
     .model_type = "gemma4_text",
     .renames = gemma4,
     .by_layer = maker_put_gemma4},
    {.name = "phi3", .model_type = "phi3"},
    {.name = "olmo2", .model_type = "olmo2"},
    {.name = "granite", .model_type = "granite", .pairs_together = true, .renames = granite},
    {.name = "granitehybrid",
     .model_type = "granitemoehybrid",
     .pairs_together = true,
     .is_hybrid = true,
     .renames = granite_hybrid,
     .constants = "\"decays_are_negative\":true,",
     .more = maker_more_granite_hybrid},
    {.name = "falcon-h1",
     .model_type = "falcon_h1",
     .constants = "\"decays_are_negative\":true,\"mamba_norm_before_gate\":false,",
     .more = maker_more_falcon_h1},
    {.name = "nemotron_h",
     .model_type = "nemotron_h",
     .is_hybrid = true,
     .renames = nemotron_h,
     .constants = "\"decays_are_negative\":true,\"time_step_limit\":[0,null],",
     .more = maker_more_nemotron_h},
    {.name = "nemotron_h_moe",
     .model_type = "nemotron_h",
     .is_hybrid = true,
     .renames = nemotron_h,
     .constants = "\"decays_are_negative\":true,\"time_step_limit\":[0,null],",
     .more = maker_more_nemotron_h},
    {.name = "lfm2",
     .model_type = "lfm2",
     .is_hybrid = true,
     .renames = lfm2,
     .constants = "\"block_auto_adjust_ff_dim\":false,",
     .more = maker_more_lfm2},
    {.name = "lfm2moe",
     .model_type = "lfm2_moe",
     .is_hybrid = true,
     .renames = lfm2,
     .constants = "\"use_expert_bias\":true,\"norm_topk_prob\":true,",
     .more = maker_more_lfm2},
    {.name = "smollm3", .model_type = "smollm3", .pairs_together = true},
    {.name = "starcoder2", .model_type = "starcoder2"},
    {.name = "stablelm", .model_type = "stablelm", .renames = stablelm, .more = more_stablelm},
    {.name = "glm4", .model_type = "glm4"},
    {.name = "gpt-oss", .model_type = "gpt_oss", .renames = gpt_oss, .more = more_gpt_oss},
    {.name = "deepseek2",
     .model_type = "deepseek_v2",
     .renames = deepseek2,
     .more = more_deepseek2},
};

enum { N_ARCHS = sizeof archs / sizeof archs[0] };

/* GGUF uses the name "llama" for two families. */
static const struct arch mixtral_arch = {
    .name = "llama", .model_type = "mixtral", .pairs_together = true, .renames = mixtral};
static const struct arch deepseek3_arch = {
    .name = "deepseek2", .model_type = "deepseek_v3", .renames = deepseek2, .more = more_deepseek2};

static enum status unknown_arch(const char *name, struct err *err)
{
    char known[600] = "";
    for (size_t i = 0; i < N_ARCHS; i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", text_if(i, ", "), archs[i].name);
    }
    return err_set(err, ERR_UNSUPPORTED, "general.architecture: '%.40s' is not one of %s", name,
                   known);
}

enum status maker_find_arch(const struct gguf *g, const struct arch **out, struct err *err)
{
    char name[GGUF_ARCH_BYTES];
    double experts = 0;
    TRY(gguf_architecture(g, name, err));
    gguf_get_number(g, "llama.expert_count", &experts);
    for (size_t i = 0; i < N_ARCHS; i++) {
        if (strcmp(archs[i].name, name) == 0) {
            *out = &archs[i];
            if (strcmp(name, "llama") == 0 && experts > 0) {
                *out = &mixtral_arch;
            } else if (strcmp(name, "deepseek2") == 0 && is_sigmoid(g)) {
                *out = &deepseek3_arch;
            }
            return OK;
        }
    }
    return unknown_arch(name, err);
}

enum status gguf_model_type(const struct gguf *g, const char **out, struct err *err)
{
    const struct arch *arch = NULL;
    TRY(maker_find_arch(g, &arch, err));
    *out = arch->model_type;
    return OK;
}
