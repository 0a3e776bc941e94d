// SPDX-License-Identifier: Apache-2.0
/* Architectures some of whose layers have a state instead of attention: these have no key/value
 * heads in the file's list. */
#include "engine/base/optional.h"
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

#include <math.h>
#include <stdio.h>

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

enum status maker_of_some_layers(const struct maker *m, const char *key, double *out)
{
    double layers, here;
    *out = 0;
    if (!maker_has_key(m, key)) {
        return OK;
    }
    TRY(maker_need_number(m, "block_count", &layers));
    for (size_t i = 0; i < MOST_LAYERS && i < (size_t)layers; i++) {
        if (!maker_number_at(m, key, i, &here)) {
            return err_set(m->err, ERR_FORMAT, "%s.%s has no number for layer %zu", m->arch->name,
                           key, i);
        }
        if (here != 0 && *out != 0 && here != *out) {
            return err_set(m->err, ERR_UNSUPPORTED,
                           "%s.%s differs from layer to layer, which is not supported",
                           m->arch->name, key);
        }
        *out = here != 0 ? here : *out;
    }
    return OK;
}

/* Writes layer_types, and sets *first to the first layer with a state. */
static enum status put_kinds(const struct maker *m, const char *state, size_t *first)
{
    double layers, heads = 0;
    bool found = false;
    TRY(maker_need_number(m, "block_count", &layers));
    buf_puts(m->out, "\"layer_types\":[");
    for (size_t i = 0; i < MOST_LAYERS && (double)i < layers; i++) {
        maker_number_at(m, "attention.head_count_kv", i, &heads);
        buf_printf(m->out, "%s\"%s\"", text_if(i > 0, ","), heads != 0 ? "full_attention" : state);
        *first = heads == 0 && !found ? i : *first;
        found = found || heads == 0;
    }
    buf_puts(m->out, "],");
    return OK;
}

static enum status more_lfm2(const struct maker *m)
{
    size_t first = 0;
    maker_put_number(m, "norm_eps", maker_number_or(m, "attention.layer_norm_rms_epsilon", 1e-5));
    maker_put_flag(m, "tie_embedding", !maker_has_tensor(m, "output.weight"));
    return put_kinds(m, "conv", &first);
}

/* Sizes of Mamba-2 layers, of which `layer` is one. */
static enum status put_mamba(const struct maker *m, size_t layer, double *inner)
{
    static const struct rename sizes[] = {
        {"ssm.conv_kernel", "mamba_d_conv", INTEGER},
        {"ssm.state_size", "mamba_d_state", INTEGER},
        {"ssm.group_count", "mamba_n_groups", INTEGER},
        {"ssm.time_step_rank", "mamba_n_heads", INTEGER},
        {NULL, NULL, INTEGER},
    };
    double heads;
    char name[64];
    TRY(maker_put_all(m, sizes));
    TRY(maker_need_number(m, "ssm.inner_size", inner));
    TRY(maker_need_number(m, "ssm.time_step_rank", &heads));
    if (!(heads >= 1)) {
        return err_set(m->err, ERR_FORMAT, "%s.ssm.time_step_rank is %g", m->arch->name, heads);
    }
    maker_put_number(m, "mamba_d_head", floor(*inner / heads));
    snprintf(name, sizeof name, "blk.%zu.ssm_conv1d.bias", layer);
    maker_put_flag(m, "mamba_conv_bias", maker_has_tensor(m, name));
    return OK;
}

/* The factors of Falcon's config are part of the file's weights. */
static enum status more_falcon_h1(const struct maker *m)
{
    double inner;
    TRY(put_mamba(m, 0, &inner));
    maker_put_number(m, "mamba_d_ssm", inner);
    maker_put_flag(m, "mamba_rms_norm", maker_has_tensor(m, "blk.0.ssm_norm.weight"));
    return OK;
}

/* Granite's attention has no positions if the file says that its scaling is not "finetuned". */
static enum status more_granite_hybrid(const struct maker *m)
{
    double inner, width, ffn;
    char full[96];
    bool rotated = true;
    size_t first = 0;
    TRY(maker_need_number(m, "embedding_length", &width));
    TRY(maker_need_number(m, "feed_forward_length", &ffn));
    TRY(maker_put_granite_scale(m));
    TRY(put_kinds(m, "mamba", &first));
    TRY(put_mamba(m, first, &inner));
    if (!(width >= 1)) {
        return err_set(m->err, ERR_FORMAT, "%s.embedding_length is %g", m->arch->name, width);
    }
    maker_put_number(m, "mamba_expand", inner / width);
    maker_put_number(m, "shared_intermediate_size",
                     maker_number_or(m, "expert_shared_feed_forward_length", ffn));
    maker_full_key(m, "rope.scaling.finetuned", full);
    gguf_get_bool(m->g, full, &rotated);
    buf_printf(m->out, "\"position_embedding_type\":\"%s\",", rotated ? "rope" : "nope");
    return OK;
}

/* The letter of a layer in Nemotron's pattern, which its tensors tell; '?': none does. */
static char nemotron_letter(const struct maker *m, size_t layer)
{
    static const struct {
        const char *tensor;
        char letter;
    } rows[] = {{"ssm_in", 'M'}, {"attn_q", '*'}, {"ffn_gate_inp", 'E'}, {"ffn_up", '-'}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%zu.%s.weight", layer, rows[i].tensor);
        if (maker_has_tensor(m, name)) {
            return rows[i].letter;
        }
    }
    return '?';
}

/* Writes the pattern, and the width of MLPs, which files with experts do not state. *first: the
 * first layer with a state. */
static enum status put_pattern(const struct maker *m, size_t *first)
{
    int32_t layers, drafts;
    bool found = false;
    const struct gguf_tensor *up = NULL;
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    buf_puts(m->out, "\"hybrid_override_pattern\":\"");
    for (size_t i = 0; i < MOST_LAYERS && (double)i < layers; i++) {
        const char letter = nemotron_letter(m, i);
        buf_putc(m->out, letter);
        *first = letter == 'M' && !found ? i : *first;
        found = found || letter == 'M';
        if (letter == '-' && !up) {
            char name[64];
            snprintf(name, sizeof name, "blk.%zu.ffn_up.weight", i);
            up = gguf_find_tensor(m->g, name);
        }
    }
    buf_puts(m->out, "\",");
    if (up) {
        maker_put_number(m, "intermediate_size", (double)up->dims[0]);
    }
    return OK;
}

/* Each layer is one of attention, Mamba-2, an MLP or experts. Time steps are not clamped. */
static enum status more_nemotron_h(const struct maker *m)
{
    double inner, heads, eps;
    char name[64];
    size_t first = 0;
    TRY(put_pattern(m, &first));
    TRY(maker_need_number(m, "ssm.inner_size", &inner));
    TRY(maker_need_number(m, "ssm.time_step_rank", &heads));
    TRY(maker_need_number(m, "attention.layer_norm_epsilon", &eps));
    if (!(heads >= 1)) {
        return err_set(m->err, ERR_FORMAT, "%s.ssm.time_step_rank is %g", m->arch->name, heads);
    }
    maker_put_number(m, "mamba_head_dim", floor(inner / heads));
    maker_put_number(m, "layer_norm_epsilon", eps);
    snprintf(name, sizeof name, "blk.%zu.ssm_conv1d.bias", first);
    maker_put_flag(m, "use_conv_bias", maker_has_tensor(m, name));
    snprintf(name, sizeof name, "blk.%zu.ssm_in.bias", first);
    maker_put_flag(m, "use_bias", maker_has_tensor(m, name));
    return OK;
}

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

static const struct arch rows[] = {
    {.name = "qwen3next",
     .model_type = "qwen3_next",
     .is_hybrid = true,
     .norms_plus_one = true,
     .renames = delta_net,
     .constants = "\"norm_topk_prob\":true,\"decays_are_negative\":true,",
     .more = more_delta_net},
    {.name = "qwen35",
     .model_type = "qwen3_5_text",
     .is_hybrid = true,
     .norms_plus_one = true,
     .renames = delta_net,
     .constants = "\"decays_are_negative\":true,\"state_heads_are_tiled\":true,",
     .more = more_delta_net},
    {.name = "qwen35moe",
     .model_type = "qwen3_5_moe_text",
     .is_hybrid = true,
     .norms_plus_one = true,
     .renames = delta_net,
     .constants = "\"decays_are_negative\":true,\"state_heads_are_tiled\":true,",
     .more = more_delta_net},
    {.name = "granitehybrid",
     .model_type = "granitemoehybrid",
     .pairs_together = true,
     .is_hybrid = true,
     .renames = granite_hybrid,
     .constants = "\"decays_are_negative\":true,",
     .more = more_granite_hybrid},
    {.name = "falcon-h1",
     .model_type = "falcon_h1",
     .constants = "\"decays_are_negative\":true,\"mamba_norm_before_gate\":false,",
     .more = more_falcon_h1},
    {.name = "nemotron_h",
     .model_type = "nemotron_h",
     .is_hybrid = true,
     .renames = nemotron_h,
     .constants = "\"decays_are_negative\":true,\"time_step_limit\":[0,null],",
     .more = more_nemotron_h},
    {.name = "nemotron_h_moe",
     .model_type = "nemotron_h",
     .is_hybrid = true,
     .renames = nemotron_h,
     .constants = "\"decays_are_negative\":true,\"time_step_limit\":[0,null],",
     .more = more_nemotron_h},
    {.name = "lfm2",
     .model_type = "lfm2",
     .is_hybrid = true,
     .renames = lfm2,
     .constants = "\"block_auto_adjust_ff_dim\":false,",
     .more = more_lfm2},
    {.name = "lfm2moe",
     .model_type = "lfm2_moe",
     .is_hybrid = true,
     .renames = lfm2,
     .constants = "\"use_expert_bias\":true,\"norm_topk_prob\":true,",
     .more = more_lfm2},
};
const struct arch_table archs_hybrid = {rows, sizeof rows / sizeof rows[0]};
