// SPDX-License-Identifier: Apache-2.0
/* Generates config.json and generation_config.json. */
#include "engine/base/optional.h"
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

#include "engine/base/minmax.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- keys of all architectures ------------------------------------------------------------ */

static const struct rename common[] = {
    {"embedding_length", "hidden_size", INTEGER},
    {"context_length", "max_position_embeddings", INTEGER},
    {"attention.head_count", "num_attention_heads", INTEGER},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", NUMBER},
    {"attention.layer_norm_epsilon", "layer_norm_eps", NUMBER},
    {"attention.layer_norm_epsilon", "norm_epsilon", NUMBER},
    {"attention.sliding_window", "sliding_window", INTEGER},
    {"expert_used_count", "num_experts_per_tok", INTEGER},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", INTEGER},
    {NULL, NULL, INTEGER},
};

/* The architecture's row of a key; NULL: it has none. */
static const struct rename *own_row(const struct maker *m, const char *key)
{
    const struct rename *r = m->arch->renames;
    while (r && r->key && strcmp(r->key, key) != 0) {
        r++;
    }
    return r && r->key ? r : NULL;
}

static bool is_renamed(const struct maker *m, const char *key)
{
    return own_row(m, key) != NULL;
}

static enum status put_common(const struct maker *m)
{
    for (size_t i = 0; common[i].key; i++) {
        const struct rename *own = own_row(m, common[i].key);
        if (!own || own->as) { // otherwise the architecture reads the key elsewhere
            TRY(maker_put_renamed(m, &common[i]));
        }
    }
    return OK;
}

/* Layers with a window have the sizes and the base of the others, unless the architecture reads
 * these keys. */
static enum status check_windowed(const struct maker *m)
{
    static const struct {
        const char *key, *of_others;
        double otherwise; // 0: without the second key the first one does not matter
    } rows[] = {
        {"rope.freq_base_swa", "rope.freq_base", 10000},
        {"rope.dimension_count_swa", "rope.dimension_count", 0},
        {"attention.key_length_swa", "attention.key_length", 0},
        {"attention.value_length_swa", "attention.value_length", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !m->arch->by_layer; i++) {
        const double others = maker_number_or(m, rows[i].of_others, rows[i].otherwise);
        const double v = maker_number_or(m, rows[i].key, others);
        if (v != others && others > 0 && !is_renamed(m, rows[i].key)) {
            return err_set(m->err, ERR_UNSUPPORTED,
                           "%s.%s is %g, unlike that of other layers, which is not supported",
                           m->arch->name, rows[i].key, v);
        }
    }
    return OK;
}

/* Keys that change the model's results but are not supported. Only values without an effect are
 * accepted. */
static enum status check_unread(const struct maker *m)
{
    static const struct {
        const char *key;
        double harmless, also;
    } rows[] = {
        {"attention.max_alibi_bias", 0, 0},
        {"attention.clamp_kqv", 0, 0},
        {"router_logit_softcapping", 0, 0},
        {"attention.shared_kv_layers", 0, 0},
        {"embedding_length_per_layer_input", 0, 0},
        {"full_attention_interval", 0, 0},
        {"attention.output_scale", 1, 1},
        {"attention.temperature_length", 0, 0},
        {"attention.temperature_scale", 0, 0},
        {"moe_every_n_layers", 0, 0},
        {"interleave_moe_layer_step", 0, 1},
        {"expert_weights_scale", 0, 1}, // 0 means none
        {"expert_group_count", 0, 1},
        {"swiglu_clamp_exp", 0, 0},
        {"swiglu_clamp_shexp", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double v;
        for (size_t at = 0; maker_number_at(m, rows[i].key, at, &v) && at < MOST_LAYERS; at++) {
            const bool harmless = v == rows[i].harmless || v == rows[i].also;
            if (!harmless && !is_renamed(m, rows[i].key)) {
                return err_set(m->err, ERR_UNSUPPORTED, "%s.%s is %g, which is not supported",
                               m->arch->name, rows[i].key, v);
            }
        }
    }
    TRY(check_windowed(m));
    const double gating = maker_number_or(m, "expert_gating_func", 0);
    if (m->arch->gating != GATING_ANY && gating != 0 && gating != (double)m->arch->gating) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s.expert_gating_func is %g, which is not supported", m->arch->name,
                       gating);
    }
    char full[96];
    bool causal = true;
    maker_full_key(m, "attention.causal", full);
    gguf_get_bool(m->g, full, &causal);
    if (!causal) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s is false: attention to later tokens is "
                       "not supported",
                       full);
    }
    return OK;
}

/* The dtype of most of the matrix bytes. NULL: most are block-quantised, and bf16 is used for
 * computing. */
static const char *dtype_of(const struct gguf *g)
{
    static const struct {
        const char *type, *name;
    } rows[] = {{"F32", "float32"}, {"F16", "float16"}, {"BF16", "bfloat16"}};
    double bytes[4] = {0};
    size_t most = 2;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        size_t row = 0;
        while (row < 3 && strcmp(rows[row].type, t->type_name) != 0) {
            row++;
        }
        bytes[row] += t->n_dims > 1 ? (double)t->n_bytes : 0.0;
    }
    for (size_t i = 0; i < 4; i++) {
        if (bytes[i] > bytes[most]) {
            most = i;
        }
    }
    return most < 3 ? rows[most].name : NULL;
}

/* Sizes that a config.json states. Some have no key in GGUF files: the vocabulary follows from
 * the shape of the embedding, and the size of a head, if it has no key, from width and number of
 * heads. */
static enum status put_sizes(const struct maker *m)
{
    double heads, width, kv = 0, key = 0, value = 0, ffn = 0;
    bool has_kv, has_key, has_value, has_ffn;
    const char *ffn_key = or_text(m->arch->ffn, "feed_forward_length");
    const struct gguf_tensor *embed = gguf_find_tensor(m->g, "token_embd.weight");
    TRY(maker_need_number(m, "attention.head_count", &heads));
    TRY(maker_need_number(m, "embedding_length", &width));
    TRY(maker_need_number(m, "block_count", &key));
    if (m->arch->is_hybrid) {
        TRY(maker_of_some_layers(m, "attention.head_count_kv", &kv));
        has_kv = kv > 0;
    } else {
        TRY(maker_get_number(m, "attention.head_count_kv", &kv, &has_kv));
    }
    TRY(maker_get_number(m, "attention.key_length", &key, &has_key));
    TRY(maker_get_number(m, "attention.value_length", &value, &has_value));
    if (m->arch->is_hybrid) {
        TRY(maker_of_some_layers(m, ffn_key, &ffn));
        has_ffn = ffn > 0;
    } else {
        TRY(maker_get_number(m, ffn_key, &ffn, &has_ffn));
    }
    if (!embed || embed->n_dims != 2) {
        return err_set(m->err, ERR_FORMAT, "there is no tensor token_embd.weight");
    }
    if (!(heads >= 1)) {
        return err_set(m->err, ERR_FORMAT, "%s.attention.head_count is %g", m->arch->name, heads);
    }
    bool mla = maker_number_or(m, "attention.kv_lora_rank", 0) > 0;
    if (!has_key) {
        key = floor(width / heads);
    }
    if (!mla && has_value && value != key) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "values of %g dimensions with keys of %g are not "
                       "supported",
                       value, key);
    }
    maker_put_number(m, "vocab_size", (double)embed->dims[0]);
    maker_put_number(m, "num_key_value_heads", has_kv && !mla ? kv : heads);
    if (!mla) {
        maker_put_number(m, "head_dim", key);
        double rotated = maker_number_or(m, "rope.dimension_count", key);
        maker_put_number(m, "partial_rotary_factor", maker_share(rotated, key));
    }
    if (has_ffn) {
        maker_put_number(m, "intermediate_size", ffn);
    }
    return OK;
}

/* Layers that only draft are not layers of the model. */
static enum status put_layers(const struct maker *m)
{
    int32_t layers, drafts;
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    maker_put_number(m, "num_hidden_layers", layers);
    return OK;
}

static void put_facts(const struct maker *m)
{
    maker_put_flag(m, "tie_word_embeddings", !maker_has_tensor(m, "output.weight"));
    const bool qkv_bias =
        maker_has_tensor(m, "blk.0.attn_q.bias") || maker_has_tensor(m, "blk.0.attn_qkv.bias");
    maker_put_flag(m, "attention_bias", qkv_bias);
    maker_put_flag(m, "use_qkv_bias", qkv_bias);
    maker_put_flag(m, "attention_out_bias", maker_has_tensor(m, "blk.0.attn_output.bias"));
    maker_put_flag(m, "mlp_bias", maker_has_tensor(m, "blk.0.ffn_down.bias"));
    const char *dtype = dtype_of(m->g);
    buf_printf(m->out, "\"dtype\":\"%s\",", or_text(dtype, "bfloat16"));
    if (!dtype) { // most of the bytes are block-quantised
        buf_puts(m->out, "\"quantization_config\":{\"quant_method\":\"gguf\"},");
    }
    if (m->arch->pairs_together) {
        maker_put_flag(m, "rope_pairs_together", true);
    }
    if (m->arch->norms_plus_one) {
        maker_put_flag(m, "norms_plus_one", true);
    }
}

static enum status put_ends(const struct maker *m)
{
    enum { MAX_ENDS = 16 };
    struct gguf_vocab v;
    int64_t ids[MAX_ENDS];
    if (!gguf_get(m->g, "tokenizer.ggml.tokens")) {
        return OK; // the tokenizer may come from another folder
    }
    TRY(gguf_vocab_open(m->g, &v, m->err));
    size_t n = gguf_end_ids(m->g, &v, ids, MAX_ENDS);
    gguf_vocab_close(&v);
    if (n > 0) {
        buf_puts(m->out, "\"eos_token_id\":[");
        for (size_t i = 0; i < n; i++) {
            buf_printf(m->out, "%s%lld", text_if(i, ","), (long long)ids[i]);
        }
        buf_puts(m->out, "],");
    }
    return OK;
}

enum status gguf_make_config(const struct gguf *g, struct buf *out, struct err *err)
{
    struct maker m = {.g = g, .out = out, .err = err};
    TRY(maker_find_arch(g, &m.arch, err));
    buf_putc(out, '{');
    TRY(m.arch->by_layer ? m.arch->by_layer(&m) : put_sizes(&m));
    TRY(put_common(&m));
    TRY(put_layers(&m));
    TRY(maker_put_all(&m, m.arch->renames));
    TRY(check_unread(&m));
    put_facts(&m);
    if (!m.arch->by_layer) {
        TRY(maker_put_rope(&m));
    }
    TRY(put_ends(&m));
    if (m.arch->constants) {
        buf_puts(out, m.arch->constants);
    }
    if (m.arch->more) {
        TRY(m.arch->more(&m));
    }
    buf_printf(out, "\"model_type\":\"%s\"}", m.arch->model_type);
    return OK;
}

enum status gguf_make_generation(const struct gguf *g, struct buf *out, struct err *err)
{
    static const struct {
        const char *key, *as;
    } rows[] = {
        {"general.sampling.temp", "temperature"},
        {"general.sampling.top_k", "top_k"},
        {"general.sampling.top_p", "top_p"},
        {"general.sampling.min_p", "min_p"},
        {"general.sampling.penalty_repeat", "repetition_penalty"},
    };
    (void)err;
    bool any = false;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double v;
        if (gguf_get_number(g, rows[i].key, &v)) {
            buf_printf(out, "%s\"%s\":", any ? "," : "{", rows[i].as);
            buf_put_double(out, v);
            any = true;
        }
    }
    if (any) {
        buf_puts(out, "}");
    }
    return OK;
}
