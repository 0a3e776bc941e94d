// SPDX-License-Identifier: Apache-2.0
/* Architectures with experts, whose layers with a window have other heads and ropes than those
 * without. */
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

static const struct rename mimo2[] = {
    {"attention.head_count_kv", NULL, INTEGER},
    {"expert_count", "n_routed_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_group_count", "n_group", INTEGER},
    {"expert_group_used_count", "topk_group", INTEGER},
    {NULL, NULL, INTEGER},
};
static const struct rename step35[] = {
    {"attention.head_count", NULL, INTEGER},
    {"expert_count", "n_routed_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_shared_feed_forward_length", "share_expert_dim", INTEGER},
    {"expert_weights_scale", "moe_router_scaling_factor", NUMBER},
    {"moe_every_n_layers", NULL, INTEGER}, // routers tell which layers have experts
    {"swiglu_clamp_exp", NULL, NUMBER},
    {"swiglu_clamp_shexp", NULL, NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename laguna[] = {
    {"attention.head_count", NULL, INTEGER},
    {"expert_count", "num_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {"expert_weights_scale", "moe_routed_scaling_factor", NUMBER},
    {NULL, NULL, INTEGER},
};

static const struct rename mellum[] = {
    {"expert_count", "num_local_experts", INTEGER},
    {"expert_feed_forward_length", "moe_intermediate_size", INTEGER},
    {NULL, NULL, INTEGER},
};

enum kind { FULL, WINDOWED, N_KINDS };

/* The number that all layers of a kind have. A kind without layers has that of the other one. */
static enum status by_kind(const struct maker *m, const char *key, double every,
                           double out[N_KINDS])
{
    int32_t layers, drafts;
    bool found[N_KINDS] = {false, false};
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        double here;
        bool window;
        TRY(maker_has_window(m, (size_t)i, every, &window));
        if (!maker_number_at(m, key, (size_t)i, &here)) {
            return err_set(m->err, ERR_FORMAT, "%s.%s has no number for layer %d", m->arch->name,
                           key, i);
        }
        const enum kind kind = window ? WINDOWED : FULL;
        if (found[kind] && here != out[kind]) {
            return err_set(m->err, ERR_UNSUPPORTED,
                           "%s.%s differs among layers with a window, or among those without one, "
                           "which is not supported",
                           m->arch->name, key);
        }
        out[kind] = here;
        found[kind] = true;
    }
    for (int i = 0; i < N_KINDS; i++) {
        out[i] = found[i] ? out[i] : out[!i];
    }
    return OK;
}

/* Sizes that are the same in all layers. */
static enum status put_same_sizes(const struct maker *m, double *head)
{
    double ffn, value;
    const struct gguf_tensor *embed = gguf_find_tensor(m->g, "token_embd.weight");
    if (!embed || embed->n_dims != 2) {
        return err_set(m->err, ERR_FORMAT, "there is no tensor token_embd.weight");
    }
    TRY(maker_need_number(m, "attention.key_length", head));
    TRY(maker_need_number(m, "feed_forward_length", &ffn));
    value = maker_number_or(m, "attention.value_length", *head);
    if (maker_number_or(m, "attention.key_length_swa", *head) != *head ||
        maker_number_or(m, "attention.value_length_swa", value) != value) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s.attention.key_length_swa or value_length_swa unlike those of other "
                       "layers is not supported",
                       m->arch->name);
    }
    maker_put_number(m, "vocab_size", (double)embed->dims[0]);
    maker_put_number(m, "head_dim", *head);
    maker_put_number(m, "v_head_dim", value);
    maker_put_number(m, "intermediate_size", ffn);
    return OK;
}

static enum status need_value_size(const struct maker *m, double head)
{
    const double value = maker_number_or(m, "attention.value_length", head);
    if (value != head) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "values of %g dimensions with keys of %g are not supported", value, head);
    }
    return OK;
}

/* These architectures have no rule for which layers have the window. */
static enum status put_listed_windows(const struct maker *m)
{
    double window;
    TRY(maker_need_number(m, "attention.sliding_window", &window));
    if (!maker_has_key(m, "attention.sliding_window_pattern") || !(window > 0)) {
        return err_set(m->err, ERR_FORMAT,
                       "%s.attention.sliding_window_pattern is missing, or the window is 0",
                       m->arch->name);
    }
    return maker_put_windows(m, 0);
}

/* ---- MiMo-V2-Flash ------------------------------------------------------------------------ */

static enum status put_mimo2(const struct maker *m)
{
    double head, kv[N_KINDS];
    TRY(put_listed_windows(m));
    TRY(put_same_sizes(m, &head));
    TRY(by_kind(m, "attention.head_count_kv", 0, kv));
    maker_put_number(m, "num_key_value_heads", kv[FULL]);
    maker_put_number(m, "swa_num_key_value_heads", kv[WINDOWED]);
    const double rotated = maker_number_or(m, "rope.dimension_count", head);
    if (maker_number_or(m, "rope.dimension_count_swa", rotated) != rotated) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "mimo2.rope.dimension_count_swa unlike that of other layers is not "
                       "supported");
    }
    const double scale = maker_number_or(m, "attention.value_scale", 0);
    maker_put_number(m, "attention_value_scale", scale != 0 ? scale : 1);
    TRY(maker_need_unscaled(m));
    return maker_put_two_ropes(m, &(struct two_ropes){head, rotated, rotated, 10000});
}

/* ---- Step 3.5 ----------------------------------------------------------------------------- */

/* Limits of activations in each layer; 0: none. */
static enum status put_limits(const struct maker *m, const char *key, const char *as)
{
    char full[96];
    maker_full_key(m, key, full);
    return maker_has_key(m, key) ? maker_put_list(m, full, as) : OK;
}

/* Layers without a window rotate half of what the file's key says. */
static enum status put_step35(const struct maker *m)
{
    double head, kv, heads[N_KINDS];
    TRY(put_listed_windows(m));
    TRY(put_same_sizes(m, &head));
    TRY(need_value_size(m, head));
    TRY(by_kind(m, "attention.head_count", 0, heads));
    TRY(maker_need_number(m, "attention.head_count_kv", &kv));
    maker_put_number(m, "num_attention_heads", heads[FULL]);
    maker_put_number(m, "num_sliding_attention_heads", heads[WINDOWED]);
    maker_put_number(m, "num_key_value_heads", kv);
    const double rotated = maker_number_or(m, "rope.dimension_count", head);
    const double windowed = maker_number_or(m, "rope.dimension_count_swa", rotated);
    TRY(maker_need_unscaled(m));
    return maker_put_two_ropes(m, &(struct two_ropes){head, rotated / 2, windowed, 10000});
}

static enum status more_step35(const struct maker *m)
{
    TRY(maker_need_normed(m));
    TRY(put_limits(m, "swiglu_clamp_exp", "swiglu_limits"));
    TRY(put_limits(m, "swiglu_clamp_shexp", "swiglu_limits_shared"));
    return maker_put_experts(m);
}

/* ---- Laguna ------------------------------------------------------------------------------- */

/* Gates of heads have a row for each. */
static enum status put_gating(const struct maker *m, double heads)
{
    const struct gguf_tensor *gate = gguf_find_tensor(m->g, "blk.0.attn_gate.weight");
    if (!gate || gate->n_dims != 2) {
        return err_set(m->err, ERR_FORMAT, "there is no tensor blk.0.attn_gate.weight");
    }
    buf_printf(m->out, "\"gating\":\"%s\",",
               (double)gate->dims[0] == heads ? "per-head" : "per-element");
    return OK;
}

static enum status put_laguna(const struct maker *m)
{
    double head, kv, heads = 0, shared;
    TRY(maker_put_windows(m, 4));
    TRY(put_same_sizes(m, &head));
    TRY(need_value_size(m, head));
    TRY(maker_need_number(m, "attention.head_count_kv", &kv));
    TRY(maker_need_number(m, "expert_shared_feed_forward_length", &shared));
    maker_put_number(m, "num_key_value_heads", kv);
    TRY(maker_put_list(m, "laguna.attention.head_count", "num_attention_heads_per_layer"));
    maker_number_at(m, "attention.head_count", 0, &heads);
    maker_put_number(m, "num_attention_heads", heads);
    TRY(put_gating(m, heads));
    const double rotated = maker_number_or(m, "rope.dimension_count", head);
    const double windowed = maker_number_or(m, "rope.dimension_count_swa", rotated);
    return maker_put_two_ropes(m, &(struct two_ropes){head, rotated, windowed, 0});
}

static enum status more_laguna(const struct maker *m)
{
    TRY(maker_need_normed(m));
    return maker_put_experts(m);
}

/* ---- Mellum 2 ----------------------------------------------------------------------------- */

/* llama.cpp rotates all layers with one base, and scales positions only in those without a
 * window. */
static enum status put_mellum(const struct maker *m)
{
    double head, kv;
    TRY(put_same_sizes(m, &head));
    TRY(need_value_size(m, head));
    TRY(maker_need_number(m, "attention.head_count_kv", &kv));
    maker_put_number(m, "num_key_value_heads", kv);
    const double theta = maker_number_or(m, "rope.freq_base", 10000);
    const double rotated = maker_number_or(m, "rope.dimension_count", head);
    if (maker_number_or(m, "rope.freq_base_swa", theta) != theta ||
        maker_number_or(m, "rope.dimension_count_swa", rotated) != rotated) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "mellum.rope.freq_base_swa or dimension_count_swa unlike those of other "
                       "layers is not supported");
    }
    if (!(maker_number_or(m, "attention.sliding_window", 0) > 0)) {
        return maker_put_rope(m);
    }
    TRY(maker_put_windows(m, 4));
    return maker_put_two_ropes(m, &(struct two_ropes){head, rotated, rotated, theta});
}

static const struct arch rows[] = {
    {.name = "mimo2",
     .model_type = "mimo_v2_flash",
     .renames = mimo2,
     .gating = GATING_SIGMOID,
     .by_layer = put_mimo2,
     .more = maker_put_experts},
    {.name = "step35",
     .model_type = "step3p5",
     .norms_plus_one = true,
     .renames = step35,
     .gating = GATING_SIGMOID,
     .by_layer = put_step35,
     .more = more_step35},
    {.name = "laguna",
     .model_type = "laguna",
     .full_first = true,
     .renames = laguna,
     .gating = GATING_SIGMOID,
     .by_layer = put_laguna,
     .more = more_laguna},
    {.name = "mellum",
     .model_type = "mellum",
     .renames = mellum,
     .gating = GATING_SOFTMAX,
     .constants = "\"norm_topk_prob\":true,",
     .by_layer = put_mellum,
     .more = maker_put_experts},
};
const struct arch_table archs_layers = {rows, sizeof rows / sizeof rows[0]};
