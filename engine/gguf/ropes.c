// SPDX-License-Identifier: Apache-2.0
/* Writes how positions are rotated. */
#include "engine/gguf/maker.h"

#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <stdio.h>
#include <string.h>

/* Writes a tensor of frequency divisors as a list; n: that of the rotated pairs, 0: all. Those of
 * other pairs are 1. */
static enum status put_factors(const struct maker *m, const char *name, const char *as, int64_t n)
{
    const struct gguf_tensor *t = gguf_find_tensor(m->g, name);
    if (!t || t->n_dims != 1 || strcmp(t->type_name, "F32") != 0) {
        return err_set(m->err, ERR_FORMAT, "the tensor %s is missing, or not a row of F32", name);
    }
    n = n > 0 ? n : t->dims[0];
    buf_printf(m->out, "\"%s\":[", as);
    for (int64_t i = 0; i < t->dims[0]; i++) {
        float f;
        memcpy(&f, t->data + (size_t)i * sizeof f, sizeof f);
        if (i >= n && f != 1.0f) {
            return err_set(m->err, ERR_UNSUPPORTED,
                           "%s has %g for a pair that is not rotated, which is not supported", name,
                           (double)f);
        }
        if (i >= n) {
            continue;
        }
        if (i) {
            buf_puts(m->out, ",");
        }
        buf_put_double(m->out, (double)f);
    }
    buf_puts(m->out, "],");
    return OK;
}

/* For Llama 3's rope scaling, GGUF stores the resulting divisors, which are the same for every
 * length. */
static enum status put_divisors(const struct maker *m, const char *shorter, const char *longer,
                                int64_t n)
{
    buf_puts(m->out, "\"rope_type\":\"longrope\",");
    TRY(put_factors(m, shorter, "short_factor", n));
    return put_factors(m, longer, "long_factor", n);
}

static enum status put_yarn(const struct maker *m)
{
    static const struct rename rows[] = {
        {"rope.scaling.factor", "factor", NUMBER},
        {"rope.scaling.yarn_attn_factor", "attention_factor", NUMBER},
        {"rope.scaling.original_context_length", "original_max_position_embeddings", INTEGER},
        {NULL, NULL, NUMBER},
    };
    // In older files of Ollama the second key has the number.
    static const struct {
        const char *key, *older, *as;
    } pairs[] = {
        {"rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast", "beta_fast"},
        {"rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow", "beta_slow"},
        {"attention.temperature_scale", "rope.scaling_beta", "llama_4_scaling_beta"},
    };
    buf_puts(m->out, "\"rope_type\":\"yarn\",");
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const double v = maker_number_or(m, pairs[i].key, maker_number_or(m, pairs[i].older, 0));
        if (v != 0) {
            maker_put_number(m, pairs[i].as, v);
        }
    }
    double log_multiplier = maker_number_or(m, "rope.scaling.yarn_log_multiplier",
                                            maker_number_or(m, "rope.scaling.mscale_all_dim", 0));
    if (log_multiplier > 0) { // DeepSeek's multiplier is stored divided by ten
        const bool whole = m->arch->whole_multiplier;
        maker_put_number(m, "mscale", whole ? 1 : log_multiplier * 10);
        maker_put_number(m, "mscale_all_dim", whole ? log_multiplier : log_multiplier * 10);
    }
    return maker_put_all(m, rows);
}

/* Divisors of the frequencies that the file stores as tensors take precedence over its keys
 * about scaling. */
static enum status put_scaling(const struct maker *m, const char *type, int64_t n)
{
    double factor =
        maker_number_or(m, "rope.scaling.factor", maker_number_or(m, "rope.scale_linear", 0));
    if (factor == 0) { // 0 means none, like no key
        const bool long_context = maker_number_or(m, "context_length", 0) >= 131072;
        factor = long_context && m->arch->long_factor > 0 ? m->arch->long_factor : 1;
    }
    const double attention = maker_number_or(m, "rope.scaling.attn_factor", 0);
    if (maker_has_tensor(m, "rope_freqs.weight")) {
        TRY(put_divisors(m, "rope_freqs.weight", "rope_freqs.weight", n));
        maker_put_number(m, "attention_factor", 1);
    } else if (maker_has_tensor(m, "rope_factors_long.weight")) {
        TRY(put_divisors(m, "rope_factors_short.weight", "rope_factors_long.weight", n));
        if (attention > 0) {
            maker_put_number(m, "attention_factor", attention);
        }
        return OK;
    } else if (strcmp(type, "yarn") == 0) {
        TRY(put_yarn(m));
        maker_put_flag(m, "truncate", strcmp(m->arch->model_type, "gpt_oss") != 0);
    } else if (strcmp(type, "linear") == 0 || (strcmp(type, "none") == 0 && factor != 1)) {
        buf_puts(m->out, "\"rope_type\":\"linear\",");
        maker_put_number(m, "factor", factor);
    } else if (strcmp(type, "none") == 0) {
        buf_puts(m->out, "\"rope_type\":\"default\",");
    } else {
        return err_set(m->err, ERR_UNSUPPORTED, "%s.rope.scaling.type: '%.30s' is not supported",
                       m->arch->name, type);
    }
    if (attention > 0 && attention != 1) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s.rope.scaling.attn_factor is %g, which is only supported with factors of "
                       "long and short texts",
                       m->arch->name, attention);
    }
    return OK;
}

/* The kind of scaling; "none" if there is none, whatever the file calls it. */
static void find_scaling(const struct maker *m, char type[32])
{
    char full[96];
    const char *text;
    size_t n;
    maker_full_key(m, "rope.scaling.type", full);
    snprintf(type, 32, "%s", or_text(m->arch->scaling, "none"));
    if (gguf_get_string(m->g, full, &text, &n)) {
        snprintf(type, 32, "%.*s", (int)lesser(n, 31), text);
    }
    if (!type[0] || strcmp(type, "default") == 0) {
        snprintf(type, 32, "none");
    }
}

static double find_theta(const struct maker *m)
{
    const double usual = m->arch->theta > 0 ? m->arch->theta : 10000;
    return maker_number_or(m, "rope.freq_base", maker_number_or(m, "rope.global.freq_base", usual));
}

enum status maker_put_rope(const struct maker *m)
{
    char type[32];
    find_scaling(m, type);
    const double theta = find_theta(m);
    maker_put_number(m, "rope_theta", theta);
    double original = maker_number_or(m, "rope.scaling.original_context_length", 0);
    if (original > 0) {
        maker_put_number(m, "original_max_position_embeddings", original);
    }
    buf_puts(m->out, "\"rope_scaling\":{");
    TRY(put_scaling(m, type, 0));
    buf_puts(m->out, "\"rope_theta\":");
    buf_put_double(m->out, theta);
    buf_puts(m->out, "},");
    return OK;
}

static void put_share(const struct maker *m, double rotated, double head)
{
    maker_put_number(m, "partial_rotary_factor", maker_share(rotated, head));
}

enum status maker_put_two_ropes(const struct maker *m, const struct two_ropes *r)
{
    char type[32];
    if (!(r->full >= 2.0 && r->full <= r->head && r->head <= INT16_MAX)) {
        return err_set(m->err, ERR_FORMAT, "%s: %g of %g dimensions of a head cannot be rotated",
                       m->arch->name, r->full, r->head);
    }
    find_scaling(m, type);
    const double theta = find_theta(m);
    const double otherwise = r->windowed_theta > 0 ? r->windowed_theta : theta;
    buf_puts(m->out, "\"rope_parameters\":{\"full_attention\":{");
    TRY(put_scaling(m, type, (int64_t)(r->full / 2)));
    put_share(m, r->full, r->head);
    buf_puts(m->out, "\"rope_theta\":");
    buf_put_double(m->out, theta);
    buf_puts(m->out, "},\"sliding_attention\":{\"rope_type\":\"default\",");
    put_share(m, r->windowed, r->head);
    buf_puts(m->out, "\"rope_theta\":");
    buf_put_double(m->out, maker_number_or(m, "rope.freq_base_swa", otherwise));
    buf_puts(m->out, "}},");
    return OK;
}

enum status maker_need_unscaled(const struct maker *m)
{
    char type[32];
    find_scaling(m, type);
    const double factor = maker_number_or(m, "rope.scaling.factor", 0);
    if (strcmp(type, "none") != 0 || (factor != 0 && factor != 1)) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s.rope.scaling.type: '%.30s', with a factor of %g, is not supported",
                       m->arch->name, type, factor);
    }
    return OK;
}
