// SPDX-License-Identifier: Apache-2.0
/* Gemma 3n, whose files tell some sizes only by the shapes of tensors. */
#include "engine/base/optional.h"
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

#include <math.h>

/* The number of a matrix's rows, as a member. */
static enum status put_rows(const struct maker *m, const char *tensor, const char *as)
{
    const struct gguf_tensor *t = gguf_find_tensor(m->g, tensor);
    if (!t || t->n_dims != 2) {
        return err_set(m->err, ERR_FORMAT, "there is no tensor %s", tensor);
    }
    maker_put_number(m, as, (double)t->dims[0]);
    return OK;
}

/* All layers have heads of one size. */
static enum status put_heads(const struct maker *m, double *size)
{
    static const char *const keys[] = {"attention.value_length", "attention.key_length_swa",
                                       "attention.value_length_swa"};
    double kv, heads, width;
    TRY(maker_need_number(m, "attention.head_count_kv", &kv));
    TRY(maker_need_number(m, "attention.head_count", &heads));
    TRY(maker_need_number(m, "embedding_length", &width));
    if (!(heads >= 1.0)) {
        return err_set(m->err, ERR_FORMAT, "%s.attention.head_count is %g", m->arch->name, heads);
    }
    const double usual = maker_number_or(m, "head_dim", floor(width / heads)); // Ollama's name
    *size = maker_number_or(m, "attention.key_length", usual);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const double v = maker_number_or(m, keys[i], *size);
        if (v != *size) {
            return err_set(m->err, ERR_UNSUPPORTED, "%s.%s is %g, with keys of %g", m->arch->name,
                           keys[i], v, *size);
        }
    }
    maker_put_number(m, "num_key_value_heads", kv);
    maker_put_number(m, "head_dim", *size);
    return OK;
}

static enum status put_ropes(const struct maker *m, double head)
{
    const double full = maker_number_or(m, "rope.dimension_count", head);
    const double local = maker_number_or(m, "rope.freq_base_local", 10000); // also Ollama's
    const struct two_ropes r = {.head = head,
                                .full = full,
                                .windowed = maker_number_or(m, "rope.dimension_count_swa", full),
                                .windowed_theta = local};
    return maker_put_two_ropes(m, &r);
}

/* The file has the number of standard deviations above which gates are open, instead of the share
 * of those that are not. */
static enum status put_sparsity(const struct maker *m, int32_t n_layers)
{
    static const char key[] = "activation_sparsity_scale";
    if (!maker_has_key(m, key)) {
        return OK;
    }
    buf_puts(m->out, "\"activation_sparsity_pattern\":[");
    for (int32_t i = 0; i < n_layers && i < MOST_LAYERS; i++) {
        double deviations;
        if (!maker_number_at(m, key, (size_t)i, &deviations)) {
            return err_set(m->err, ERR_FORMAT, "%s.%s has no number for layer %d", m->arch->name,
                           key, i);
        }
        if (!(deviations < 4.0)) { // no share that near to 1 can be written as such
            return err_set(m->err, ERR_UNSUPPORTED, "%s.%s is %g, which is not supported",
                           m->arch->name, key, deviations);
        }
        buf_puts(m->out, text_if(i > 0, ","));
        buf_put_double(m->out, 0.5 * erfc(-deviations * sqrt(0.5)));
    }
    buf_puts(m->out, "],");
    return OK;
}

enum status maker_put_gemma3n(const struct maker *m)
{
    int32_t layers, drafts;
    double size = 0.0, unused;
    TRY(put_rows(m, "token_embd.weight", "vocab_size"));
    TRY(put_rows(m, "per_layer_token_embd.weight", "vocab_size_per_layer_input"));
    TRY(put_rows(m, "blk.0.laurel_l.weight", "laurel_rank"));
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    TRY(maker_need_number(m, "attention.shared_kv_layers", &unused));
    TRY(maker_need_number(m, "attention.sliding_window", &unused));
    TRY(put_heads(m, &size));
    TRY(maker_put_list(m, "gemma3n.feed_forward_length", "intermediate_size"));
    TRY(put_sparsity(m, layers));
    TRY(maker_put_windows(m, 5));
    return put_ropes(m, size);
}
