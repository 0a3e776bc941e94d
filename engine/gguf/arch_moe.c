// SPDX-License-Identifier: Apache-2.0
/* Architectures with plain attention and experts. */
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

#include <math.h>

static const struct rename qwen_moe[] = {
    {"expert_count", "num_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename few_experts[] = {
    {"expert_count", "num_local_experts", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename glm4_moe[] = {
    {"expert_count", "n_routed_experts", INTEGER},
    {"expert_shared_count", "n_shared_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_weights_scale", "routed_scaling_factor", NUMBER},
    {"expert_group_count", "n_group", INTEGER},
    {"expert_group_used_count", "topk_group", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename llama4[] = {
    {"expert_count", "num_local_experts", INTEGER},
    {"feed_forward_length", "intermediate_size_mlp", INTEGER},
    {"interleave_moe_layer_step", "interleave_moe_layer_step", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename ernie_moe[] = {
    {"expert_count", "moe_num_experts", INTEGER},
    {"expert_used_count", "moe_k", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"interleave_moe_layer_step", "moe_layer_interval", INTEGER},
    {"leading_dense_block_count", "moe_layer_start_index", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename hunyuan_moe[] = {
    {"expert_count", "num_experts", INTEGER},
    {"expert_used_count", "moe_topk", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename hy_v3[] = {
    {"expert_count", "num_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_weights_scale", "router_scaling_factor", NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename exaone_moe[] = {
    {"expert_count", "num_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_weights_scale", "routed_scaling_factor", NUMBER},
    {"expert_group_count", "n_group", INTEGER},
    {"expert_group_used_count", "topk_group", INTEGER},
    {NULL, NULL, INTEGER},
};

static const struct rename afmoe[] = {
    {"expert_count", "num_experts", INTEGER},
    {"expert_shared_count", "num_shared_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_weights_scale", "route_scale", NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename olmoe[] = {
    {"expert_count", "num_experts", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename cohere2_moe[] = {
    {"expert_count", "num_experts", INTEGER},
    {"feed_forward_length", "prefix_dense_intermediate_size", INTEGER},
    {"logit_scale", "logit_scale", NUMBER},
    {"attention.layer_norm_rms_epsilon", NULL, NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename granite_moe[] = {
    {"embedding_scale", "embedding_multiplier", NUMBER},
    {"residual_scale", "residual_multiplier", NUMBER},
    {"attention.scale", "attention_multiplier", NUMBER},
    {"logit_scale", "logits_scaling", NUMBER},
    {"expert_count", "num_local_experts", INTEGER},
    {"expert_shared_feed_forward_length", "shared_intermediate_size", INTEGER},
    {NULL, NULL, INTEGER},
};

/* The number of shared experts: the width of all of them together, over that of an expert. */
static enum status put_n_shared(const struct maker *m, const char *name, double otherwise)
{
    double width, each;
    TRY(maker_need_number(m, "expert_feed_forward_length", &each));
    width = maker_number_or(m, "expert_shared_feed_forward_length", otherwise * each);
    if (!(each >= 1) || fmod(width, each) != 0) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s.expert_shared_feed_forward_length is %g, with experts of %g, which is "
                       "not supported",
                       m->arch->name, width, each);
    }
    maker_put_number(m, name, floor(width / each));
    return OK;
}

/* Solar Open is written as GLM, without norms of q and k. */
static enum status more_glm4_moe(const struct maker *m)
{
    maker_put_flag(m, "use_qk_norm", maker_has_tensor(m, "blk.0.attn_q_norm.weight"));
    TRY(maker_put_switch(m, "expert_weights_norm", "norm_topk_prob"));
    return maker_put_experts(m);
}

/* Every fourth layer has no positions, whatever the file says of chunks; then it must say the
 * same. */
static enum status check_chunks(const struct maker *m)
{
    enum { EVERY = 4 };
    int32_t layers, drafts;
    bool same = maker_number_or(m, "attention.sliding_window", 1) > 0;
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    for (int32_t i = 0; i < layers && same; i++) {
        bool chunked;
        TRY(maker_has_window(m, (size_t)i, EVERY, &chunked));
        same = chunked == ((i + 1) % EVERY != 0);
    }
    return same ? OK
                : err_set(m->err, ERR_UNSUPPORTED,
                          "llama4.attention.sliding_window of 0, or a sliding_window_pattern other "
                          "than 4, is not supported");
}

/* Constants for which only Ollama's files have keys, if any. */
static enum status more_llama4(const struct maker *m)
{
    double experts;
    TRY(maker_need_number(m, "expert_count", &experts));
    bool normed = experts != 128; // one size has no norms
    gguf_get_bool(m->g, "llama4.use_qk_norm", &normed);
    TRY(check_chunks(m));
    maker_put_flag(m, "use_qk_norm", normed);
    maker_put_number(m, "attention_chunk_size", maker_number_or(m, "attention.chunk_size", 8192));
    maker_put_number(m, "no_rope_layer_interval", 4);
    maker_put_flag(m, "attn_temperature_tuning", true);
    maker_put_number(m, "floor_scale", 8192);
    maker_put_number(m, "attn_scale", 0.1);
    return OK;
}

static enum status more_ernie_moe(const struct maker *m)
{
    maker_put_flag(m, "use_bias", maker_has_tensor(m, "blk.0.attn_q.bias"));
    return put_n_shared(m, "moe_num_shared_experts", maker_number_or(m, "expert_shared_count", 0));
}

static enum status more_hunyuan_moe(const struct maker *m)
{
    return put_n_shared(m, "num_shared_expert", 1);
}

static enum status more_hy_v3(const struct maker *m)
{
    TRY(maker_need_normed(m));
    TRY(maker_put_experts(m));
    return put_n_shared(m, "num_shared_experts", 1);
}

static enum status more_exaone_moe(const struct maker *m)
{
    TRY(maker_put_switch(m, "expert_weights_norm", "norm_topk_prob"));
    TRY(maker_put_experts(m));
    TRY(maker_put_windows(m, 4));
    return put_n_shared(m, "num_shared_experts", maker_number_or(m, "expert_shared_count", 0));
}

/* The width of experts follows from their tensors if no key states it. */
static enum status more_gptoss(const struct maker *m)
{
    double ffn;
    bool found;
    const struct gguf_tensor *gate = gguf_find_tensor(m->g, "blk.0.ffn_gate_exps.weight");
    TRY(maker_get_number(m, "feed_forward_length", &ffn, &found));
    if (!found && gate && gate->n_dims == 3) {
        maker_put_number(m, "intermediate_size", (double)gate->dims[1]);
    }
    return OK;
}

/* Layers without positions are every fourth, whichever have a window. */
static enum status more_afmoe(const struct maker *m)
{
    TRY(maker_need_normed(m));
    TRY(maker_need_windows(m, 4));
    return maker_put_experts(m);
}

static enum status more_dots1(const struct maker *m)
{
    TRY(maker_put_switch(m, "expert_weights_norm", "norm_topk_prob"));
    return maker_put_experts(m);
}

/* Norms subtract the mean unless the file has the other epsilon. */
static enum status more_cohere2_moe(const struct maker *m)
{
    double window, scale;
    TRY(maker_need_number(m, "attention.sliding_window", &window));
    TRY(maker_need_number(m, "logit_scale", &scale));
    const double epsilon = maker_number_or(m, "attention.layer_norm_rms_epsilon", 0);
    if (epsilon != 0) {
        maker_put_number(m, "rms_norm_eps", epsilon);
    }
    TRY(maker_put_switch(m, "expert_weights_norm", "norm_topk_prob"));
    TRY(maker_put_experts(m));
    TRY(maker_put_windows(m, 4));
    return put_n_shared(m, "num_shared_experts", maker_number_or(m, "expert_shared_count", 0));
}

static enum status more_granite_moe(const struct maker *m)
{
    TRY(maker_need_positions(m));
    return maker_put_granite_scale(m);
}

static bool has_experts(const struct gguf *g)
{
    double experts = 0;
    gguf_get_number(g, "llama.expert_count", &experts);
    return experts > 0;
}

static const struct arch rows[] = {
    {.name = "llama",
     .is = has_experts,
     .model_type = "mixtral",
     .pairs_together = true,
     .renames = few_experts},
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .renames = qwen_moe,
     .constants = "\"norm_topk_prob\":false,"},
    {.name = "qwen3moe",
     .model_type = "qwen3_moe",
     .renames = qwen_moe,
     .constants = "\"norm_topk_prob\":true,"},
    {.name = "qwen3vlmoe",
     .model_type = "qwen3_moe",
     .renames = qwen_moe,
     .constants = "\"norm_topk_prob\":true,"},
    {.name = "gpt-oss",
     .model_type = "gpt_oss",
     .renames = few_experts,
     .ffn = "expert_feed_forward_length"},
    {.name = "gptoss", // Ollama's
     .model_type = "gpt_oss",
     .renames = few_experts,
     .scaling = "yarn",
     .pre = "gpt-4o",
     .more = more_gptoss},
    {.name = "glm4moe",
     .model_type = "glm4_moe",
     .renames = glm4_moe,
     .gating = GATING_SIGMOID,
     .more = more_glm4_moe},
    {.name = "llama4",
     .model_type = "llama4_text",
     .renames = llama4,
     .ffn = "expert_feed_forward_length",
     .gating = GATING_SIGMOID,
     .more = more_llama4},
    {.name = "minimax-m2",
     .model_type = "minimax_m2",
     .renames = few_experts,
     .ffn = "expert_feed_forward_length",
     .gating = GATING_SIGMOID},
    {.name = "ernie4_5-moe",
     .model_type = "ernie4_5_moe",
     .renames = ernie_moe,
     .gating = GATING_SOFTMAX,
     .more = more_ernie_moe},
    {.name = "hunyuan-moe",
     .model_type = "hunyuan_v1_moe",
     .renames = hunyuan_moe,
     .ffn = "expert_feed_forward_length",
     .gating = GATING_SOFTMAX,
     .more = more_hunyuan_moe},
    {.name = "hy_v3",
     .model_type = "hy_v3",
     .renames = hy_v3,
     .gating = GATING_SIGMOID,
     .more = more_hy_v3},
    {.name = "exaone-moe",
     .model_type = "exaone_moe",
     .renames = exaone_moe,
     .gating = GATING_SIGMOID,
     .more = more_exaone_moe},
    {.name = "afmoe",
     .model_type = "afmoe",
     .renames = afmoe,
     .gating = GATING_SIGMOID,
     .constants = "\"mup_enabled\":true,",
     .more = more_afmoe},
    {.name = "dots1",
     .model_type = "dots1",
     .renames = glm4_moe,
     .gating = GATING_SIGMOID,
     .constants = "\"max_window_layers\":1024,", // no layer has a window
     .more = more_dots1},
    {.name = "olmoe",
     .model_type = "olmoe",
     .renames = olmoe,
     .gating = GATING_SOFTMAX,
     .constants = "\"norm_topk_prob\":false,"},
    {.name = "cohere2moe",
     .model_type = "cohere2_moe",
     .renames = cohere2_moe,
     .ffn = "expert_feed_forward_length",
     .gating = GATING_SIGMOID,
     .full_first = true,
     .constants = "\"expert_selection_fn\":\"sigmoid\",",
     .more = more_cohere2_moe},
    {.name = "granitemoe",
     .model_type = "granitemoe",
     .pairs_together = true,
     .renames = granite_moe,
     .gating = GATING_SOFTMAX,
     .more = more_granite_moe},
};
const struct arch_table archs_moe = {rows, sizeof rows / sizeof rows[0]};
