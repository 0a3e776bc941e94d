// SPDX-License-Identifier: Apache-2.0
/* Gemma 4, whose layers differ in their sizes and ropes. */
#include "engine/base/optional.h"
#include "engine/gguf/maker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A number of a layer, which must be there. */
static enum status need_at(const struct maker *m, const char *key, size_t layer, double *out)
{
    if (!maker_number_at(m, key, layer, out)) {
        return err_set(m->err, ERR_FORMAT, "%s.%s has no number for layer %zu", m->arch->name, key,
                       layer);
    }
    return OK;
}

/* The first layer with a window, and the first without one. */
struct kinds {
    size_t n_layers, windowed, full;
};

static enum status read_kinds(const struct maker *m, struct kinds *out)
{
    double n, has_window;
    TRY(maker_need_number(m, "block_count", &n));
    if (!(n >= 1 && n <= MOST_LAYERS)) {
        return err_set(m->err, ERR_FORMAT, "%s.block_count is %g", m->arch->name, n);
    }
    *out = (struct kinds){(size_t)n, (size_t)n, (size_t)n};
    buf_puts(m->out, "\"layer_types\":[");
    for (size_t i = 0; i < out->n_layers; i++) {
        TRY(need_at(m, "attention.sliding_window_pattern", i, &has_window));
        size_t *first = has_window != 0.0 ? &out->windowed : &out->full;
        *first = *first == out->n_layers ? i : *first;
        buf_printf(m->out, "%s\"%s_attention\"", text_if(i > 0, ","),
                   has_window != 0.0 ? "sliding" : "full");
    }
    buf_puts(m->out, "],");
    if (out->full == out->n_layers) {
        return err_set(m->err, ERR_UNSUPPORTED, "%s: no layer has full attention", m->arch->name);
    }
    if (out->windowed == out->n_layers) {
        out->windowed = out->full;
    }
    return OK;
}

/* The last layers' MLPs may be twice as wide as the others'. */
static enum status put_widths(const struct maker *m, const struct kinds *k)
{
    double first, ffn;
    TRY(need_at(m, "feed_forward_length", 0, &first));
    const double n_shared = maker_number_or(m, "attention.shared_kv_layers", 0);
    if (!(n_shared >= 0.0 && n_shared <= (double)k->n_layers)) {
        return err_set(m->err, ERR_FORMAT, "attention.shared_kv_layers must be from 0 to %zu",
                       k->n_layers);
    }
    const size_t shared = (size_t)n_shared;
    bool doubled = false;
    for (size_t i = 0; i < k->n_layers; i++) {
        TRY(need_at(m, "feed_forward_length", i, &ffn));
        doubled = doubled || ffn != first;
        const bool is_shared = i + shared >= k->n_layers;
        if (ffn != (doubled && is_shared ? 2 * first : first)) {
            return err_set(m->err, ERR_UNSUPPORTED,
                           "%s.feed_forward_length is %g in layer %zu, which is not supported",
                           m->arch->name, ffn, i);
        }
    }
    maker_put_number(m, "intermediate_size", first);
    maker_put_flag(m, "use_double_wide_mlp", doubled);
    return OK;
}

/* Layers without values use their keys as such. */
static enum status put_heads(const struct maker *m, const struct kinds *k)
{
    double size, size_windowed, kv, kv_windowed;
    char name[64];
    TRY(maker_need_number(m, "attention.key_length", &size));
    TRY(maker_need_number(m, "attention.key_length_swa", &size_windowed));
    TRY(need_at(m, "attention.head_count_kv", k->full, &kv));
    TRY(need_at(m, "attention.head_count_kv", k->windowed, &kv_windowed));
    snprintf(name, sizeof name, "blk.%zu.attn_v.weight", k->full);
    const bool k_is_v = !maker_has_tensor(m, name);
    if (!k_is_v && kv != kv_windowed) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s.attention.head_count_kv differs between layers that have values",
                       m->arch->name);
    }
    if (maker_number_or(m, "rope.dimension_count_swa", size_windowed) != size_windowed) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s.rope.dimension_count_swa: rotating a part of a head is not supported",
                       m->arch->name);
    }
    maker_put_number(m, "head_dim", size_windowed);
    maker_put_number(m, "global_head_dim", size);
    maker_put_number(m, "num_key_value_heads", kv_windowed);
    maker_put_number(m, "num_global_key_value_heads", kv);
    maker_put_flag(m, "attention_k_eq_v", k_is_v);
    return OK;
}

/* In layers with full attention the first pairs are rotated: their divisors are 1, and those of the
 * others so large that their angles are 0. */
static enum status put_ropes(const struct maker *m)
{
    const float none = 1e29f;
    const struct gguf_tensor *t = gguf_find_tensor(m->g, "rope_freqs.weight");
    if (!t || t->n_dims != 1 || t->dims[0] < 1 || strcmp(t->type_name, "F32") != 0) {
        return err_set(m->err, ERR_FORMAT,
                       "the tensor rope_freqs.weight is missing, or not a row of F32");
    }
    const double width = maker_number_or(m, "attention.key_length", 0.0);
    if (2.0 * (double)t->dims[0] != width) {
        return err_set(m->err, ERR_FORMAT, "rope_freqs.weight has %lld pairs, heads %g elements",
                       (long long)t->dims[0], width);
    }
    int64_t rotated = 0;
    for (int64_t i = 0; i < t->dims[0]; i++) {
        float f;
        memcpy(&f, t->data + (size_t)i * sizeof f, sizeof f);
        if (f != 1.0f && !(f >= none)) {
            return err_set(m->err, ERR_UNSUPPORTED, "rope_freqs.weight: %g is neither 1 nor 1e30",
                           (double)f);
        }
        if (f == 1.0f && i > rotated) {
            return err_set(m->err, ERR_UNSUPPORTED,
                           "rope_freqs.weight: the rotated pairs are not the first ones");
        }
        rotated += f == 1.0f;
    }
    buf_puts(m->out, "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",");
    maker_put_number(m, "partial_rotary_factor", (double)rotated / (double)t->dims[0]);
    buf_puts(m->out, "\"rope_theta\":");
    buf_put_double(m->out, maker_number_or(m, "rope.freq_base", 1000000));
    buf_puts(m->out, "},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":");
    buf_put_double(m->out, maker_number_or(m, "rope.freq_base_swa", 10000));
    buf_puts(m->out, "}},");
    return OK;
}

enum status maker_put_gemma4(const struct maker *m)
{
    struct kinds k;
    const struct gguf_tensor *embed = gguf_find_tensor(m->g, "token_embd.weight");
    if (!embed || embed->n_dims != 2) {
        return err_set(m->err, ERR_FORMAT, "there is no tensor token_embd.weight");
    }
    maker_put_number(m, "vocab_size", (double)embed->dims[0]);
    maker_put_number(m, "vocab_size_per_layer_input", (double)embed->dims[0]);
    maker_put_flag(m, "enable_moe_block", maker_number_or(m, "expert_count", 0) > 0);
    TRY(read_kinds(m, &k));
    TRY(put_widths(m, &k));
    TRY(put_heads(m, &k));
    return put_ropes(m);
}
