// SPDX-License-Identifier: Apache-2.0
/* Architectures with plain attention and one MLP per layer, and Gemma. */
#include "engine/base/optional.h"
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

static const struct rename granite[] = {
    {"embedding_scale", "embedding_multiplier", NUMBER},
    {"residual_scale", "residual_multiplier", NUMBER},
    {"attention.scale", "attention_multiplier", NUMBER},
    {"logit_scale", "logits_scaling", NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename granite_experts[] = {
    {"embedding_scale", "embedding_multiplier", NUMBER},
    {"residual_scale", "residual_multiplier", NUMBER},
    {"attention.scale", "attention_multiplier", NUMBER},
    {"logit_scale", "logits_scaling", NUMBER},
    {"expert_count", "num_local_experts", INTEGER},
    {"expert_shared_feed_forward_length", "shared_intermediate_size", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename glimmer[] = {
    {"logit_scale", "output_multiplier", NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename gemma2[] = {
    {"attn_logit_softcapping", "attn_logit_softcapping", NUMBER},
    {"final_logit_softcapping", "final_logit_softcapping", NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename gemma3n[] = {
    {"final_logit_softcapping", "final_logit_softcapping", NUMBER},
    {"attention.shared_kv_layers", "num_kv_shared_layers", INTEGER},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", INTEGER},
    {"altup.active_idx", "altup_active_idx", INTEGER},
    {"altup.num_inputs", "altup_num_inputs", INTEGER},
    {"altup.correct_scale", "altup_correct_scale", FLAG},
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
static const struct rename gemma3[] = {
    {"final_logit_softcapping", "final_logit_softcapping", NUMBER},
    {"attn_logit_softcapping", "attn_logit_softcapping", NUMBER},
    {"rope.freq_base_swa", NULL, NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename olmo3[] = {
    {"rope.freq_base_swa", NULL, NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename stablelm[] = {
    {"use_parallel_residual", "use_parallel_residual", FLAG},
    {NULL, NULL, INTEGER},
};
static const struct rename logit_scale[] = {
    {"logit_scale", "logit_scale", NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename scaled_queries[] = {
    {"attention.temperature_scale", NULL, NUMBER},
    {NULL, NULL, INTEGER},
};

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
    const double local = maker_number_or(m, "rope.local.freq_base", 10000);
    maker_put_number(m, "rope_local_base_freq", maker_number_or(m, "rope.freq_base_swa", local));
    return more_gemma(m, 62);
}

static enum status more_granite(const struct maker *m)
{
    TRY(maker_need_positions(m));
    return maker_put_granite_scale(m);
}

/* Which layers have positions, if the file lists them. */
static enum status put_positions(const struct maker *m)
{
    static const char key[] = "attention.rope_pattern";
    int32_t layers, drafts;
    if (!maker_has_key(m, key)) {
        return OK;
    }
    const double theta = maker_number_or(m, "rope.freq_base", 10000);
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    buf_puts(m->out, "\"layer_rope_theta\":[");
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        double has;
        if (!maker_number_at(m, key, (size_t)i, &has)) {
            return err_set(m->err, ERR_FORMAT, "%s.%s has no number for layer %d", m->arch->name,
                           key, i);
        }
        buf_puts(m->out, text_if(i > 0, ","));
        buf_put_double(m->out, has != 0 ? theta : 0.0);
    }
    buf_puts(m->out, "],");
    return OK;
}

static enum status more_granite_swa(const struct maker *m)
{
    double window;
    TRY(maker_need_number(m, "attention.sliding_window", &window));
    if (!maker_has_key(m, "attention.sliding_window_pattern")) {
        return err_set(m->err, ERR_FORMAT,
                       "the key granite_swa.attention.sliding_window_pattern is missing");
    }
    TRY(maker_put_windows(m, 0));
    TRY(put_positions(m));
    return maker_put_granite_scale(m);
}

/* Only layers with a window have positions. The file's norms of q and k contain the factor of
 * queries. */
static enum status more_glimmer(const struct maker *m)
{
    int32_t layers, drafts;
    double window, scale;
    TRY(maker_need_number(m, "attention.sliding_window", &window));
    TRY(maker_need_number(m, "logit_scale", &scale));
    maker_put_number(m, "final_logit_softcapping",
                     maker_number_or(m, "final_logit_softcapping", 30));
    TRY(maker_put_windows(m, 4));
    const double theta = maker_number_or(m, "rope.freq_base", 10000);
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    buf_puts(m->out, "\"layer_rope_theta\":[");
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        bool has;
        TRY(maker_has_window(m, (size_t)i, 4, &has));
        buf_puts(m->out, text_if(i > 0, ","));
        buf_put_double(m->out, has ? theta : 0.0);
    }
    buf_puts(m->out, "],");
    return OK;
}

static bool has_experts(const struct gguf *g)
{
    double experts = 0;
    gguf_get_number(g, "granite_swa.expert_count", &experts);
    return experts > 0;
}

/* Per-head norms of q and k are one tensor. */
static enum status more_stablelm(const struct maker *m)
{
    maker_put_flag(m, "qk_layernorm", maker_has_tensor(m, "blk.0.attn_q_norm.weight"));
    return OK;
}

/* GLM-4V's rows are in another order, which only its sections of positions tell. */
static enum status more_glm4(const struct maker *m)
{
    double first = 0, second = 0;
    maker_number_at(m, "rope.dimension_sections", 0, &first);
    maker_number_at(m, "rope.dimension_sections", 1, &second);
    if (first > 0 && second > 0) {
        maker_put_flag(m, "rope_pairs_together", false);
    }
    return OK;
}

static enum status more_ernie(const struct maker *m)
{
    maker_put_flag(m, "use_bias", maker_has_tensor(m, "blk.0.attn_q.bias"));
    return OK;
}

static bool has_window(const struct gguf *g)
{
    double window = 0;
    gguf_get_number(g, "olmo2.attention.sliding_window", &window);
    return window > 0;
}

/* Only the layers without a window have scaled positions. */
static enum status more_olmo3(const struct maker *m)
{
    const double theta = maker_number_or(m, "rope.freq_base", 10000);
    maker_put_number(m, "rope_local_base_freq", maker_number_or(m, "rope.freq_base_swa", theta));
    return maker_put_windows(m, 4);
}

/* In the family's configs a missing window means the usual one; in these files it means none. */
static enum status more_exaone4(const struct maker *m)
{
    double layers;
    TRY(maker_need_number(m, "block_count", &layers));
    if (!(maker_number_or(m, "attention.sliding_window", 0) > 0)) {
        buf_puts(m->out, layers == 64 ? "\"sliding_window\":4096," : "\"sliding_window\":null,");
    }
    return maker_put_windows(m, 4);
}

static enum status more_cohere2(const struct maker *m)
{
    double window;
    TRY(maker_need_number(m, "attention.sliding_window", &window));
    return maker_put_windows(m, 4);
}

static const struct arch rows[] = {
    {.name = "llama", .model_type = "llama", .pairs_together = true},
    {.name = "qwen2", .model_type = "qwen2"},
    {.name = "qwen3", .model_type = "qwen3"},
    {.name = "qwen2vl", .model_type = "qwen2"},
    {.name = "qwen25vl", .model_type = "qwen2"},
    {.name = "qwen3vl", .model_type = "qwen3"},
    {.name = "gemma", .model_type = "gemma", .norms_plus_one = true},
    {.name = "gemma2",
     .model_type = "gemma2",
     .norms_plus_one = true,
     .renames = gemma2,
     .more = more_gemma2},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .norms_plus_one = true,
     .renames = gemma3,
     .theta = 1e6,
     .long_factor = 8,
     .more = more_gemma3},
    {.name = "gemma3n",
     .model_type = "gemma3n_text",
     .renames = gemma3n,
     .theta = 1e6,
     .by_layer = maker_put_gemma3n},
    {.name = "gemma4",
     .model_type = "gemma4_text",
     .renames = gemma4,
     .by_layer = maker_put_gemma4},
    {.name = "phi3", .model_type = "phi3"},
    {.name = "olmo2",
     .is = has_window,
     .model_type = "olmo3",
     .renames = olmo3,
     .more = more_olmo3},
    {.name = "olmo2", .model_type = "olmo2"},
    {.name = "olmo3", .model_type = "olmo3", .renames = olmo3, .more = more_olmo3},
    {.name = "granite",
     .model_type = "granite",
     .pairs_together = true,
     .renames = granite,
     .more = more_granite},
    {.name = "granite_swa",
     .is = has_experts,
     .model_type = "granitemoe_swa",
     .pairs_together = true,
     .renames = granite_experts,
     .gating = GATING_SOFTMAX,
     .more = more_granite_swa},
    {.name = "granite_swa",
     .model_type = "granite_swa",
     .pairs_together = true,
     .renames = granite,
     .more = more_granite_swa},
    {.name = "muse-glimmer",
     .model_type = "muse_glimmer_text",
     .pairs_together = true,
     .norms_plus_one = true,
     .renames = glimmer,
     .constants = "\"qk_norm_weights\":true,\"qk_scale_factor\":1,",
     .more = more_glimmer},
    {.name = "smollm3", .model_type = "smollm3", .pairs_together = true},
    {.name = "starcoder2", .model_type = "starcoder2"},
    {.name = "stablelm", .model_type = "stablelm", .renames = stablelm, .more = more_stablelm},
    {.name = "glm4", .model_type = "glm4", .more = more_glm4},
    {.name = "chatglm", .model_type = "glm"},
    {.name = "mistral3",
     .model_type = "ministral3",
     .pairs_together = true,
     .whole_multiplier = true,
     .renames = scaled_queries,
     .pre = "tekken"},
    {.name = "seed_oss", .model_type = "seed_oss"},
    {.name = "ernie4_5", .model_type = "ernie4_5", .more = more_ernie},
    {.name = "hunyuan-dense", .model_type = "hunyuan_v1_dense"},
    {.name = "exaone", .model_type = "exaone"},
    {.name = "exaone4", .model_type = "exaone4", .more = more_exaone4},
    {.name = "cohere2", .model_type = "cohere2", .renames = logit_scale, .more = more_cohere2},
};
const struct arch_table archs_dense = {rows, sizeof rows / sizeof rows[0]};
