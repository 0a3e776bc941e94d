// SPDX-License-Identifier: Apache-2.0
/* Generates config.json and generation_config.json. One table row per architecture: its name in
 * Hugging Face's configs, and the mapping of its keys. To add an architecture, add a row;
 * engine/model/checkpoint_gguf.c maps its tensor names. */
#include "engine/gguf/make.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys --------------------------------------------------------------------------------- */

struct maker {
    const struct gguf *g;
    const struct arch *arch;
    struct buf *out;
    struct err *err;
};

enum kind { INTEGER, NUMBER, FLAG };

/* A key after the architecture's prefix, and the config member that it becomes. */
struct rename {
    const char *key, *as;
    enum kind kind;
};

struct arch {
    const char *name, *model_type;
    const struct rename *renames; // in addition to the common ones; NULL-terminated
    /* Rotated pairs are adjacent: the converter has permuted the rows of q and k. */
    bool pairs_together;
    bool norms_plus_one;   // stored norm weights include the 1 that the family adds
    const char *constants; // members that no key provides, each followed by a comma
    enum status (*more)(const struct maker *m);
};

static void full_key(const struct maker *m, const char *key, char out[96])
{
    snprintf(out, 96, "%s.%s", m->arch->name, key);
}

/* A number, or a list that repeats one number. */
static enum status get_number(const struct maker *m, const char *key, double *out, bool *found)
{
    char full[96];
    full_key(m, key, full);
    const struct gguf_value *v = gguf_get(m->g, full);
    *found = v != NULL;
    if (!v || gguf_get_number(m->g, full, out)) {
        return OK;
    }
    struct gguf_walk w = gguf_walk(v);
    double next;
    if (!gguf_next_number(&w, out)) {
        return err_set(m->err, ERR_FORMAT, "%s is not a number", full);
    }
    while (gguf_next_number(&w, &next)) {
        if (next != *out) {
            return err_set(m->err, ERR_UNSUPPORTED,
                           "%s differs from layer to layer, which is not "
                           "supported",
                           full);
        }
    }
    return OK;
}

static double number_or(const struct maker *m, const char *key, double otherwise)
{
    char full[96];
    double v = otherwise;
    full_key(m, key, full);
    gguf_get_number(m->g, full, &v);
    return v;
}

static enum status need_number(const struct maker *m, const char *key, double *out)
{
    bool found;
    TRY(get_number(m, key, out, &found));
    if (!found) {
        return err_set(m->err, ERR_FORMAT, "the key %s.%s is missing", m->arch->name, key);
    }
    return OK;
}

static void put_number(const struct maker *m, const char *name, double v)
{
    buf_printf(m->out, "\"%s\":", name);
    buf_put_double(m->out, v);
    buf_putc(m->out, ',');
}

static void put_flag(const struct maker *m, const char *name, bool v)
{
    buf_printf(m->out, "\"%s\":%s,", name, bool_word(v));
}

static enum status put_renamed(const struct maker *m, const struct rename *r)
{
    char full[96];
    bool found, flag;
    double v;
    full_key(m, r->key, full);
    if (r->kind == FLAG) {
        if (gguf_get_bool(m->g, full, &flag)) {
            put_flag(m, r->as, flag);
            return OK;
        }
        if (gguf_get(m->g, full)) {
            return err_set(m->err, ERR_FORMAT, "%s is not a boolean", full);
        }
        return OK;
    }
    TRY(get_number(m, r->key, &v, &found));
    if (found && r->kind == INTEGER && (v != floor(v) || fabs(v) > 1e15)) {
        return err_set(m->err, ERR_FORMAT, "%s is not an integer", full);
    }
    if (found) {
        put_number(m, r->as, v);
    }
    return OK;
}

static enum status put_all(const struct maker *m, const struct rename *rows)
{
    for (; rows && rows->key; rows++) {
        TRY(put_renamed(m, rows));
    }
    return OK;
}

static bool has_tensor(const struct maker *m, const char *name)
{
    return gguf_find_tensor(m->g, name) != NULL;
}

/* ---- what all architectures say ----------------------------------------------------------- */

static const struct rename common[] = {
    {"embedding_length", "hidden_size", INTEGER},
    {"block_count", "num_hidden_layers", INTEGER},
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

/* Keys that change the model's results but are not supported: only neutral values are accepted. */
static enum status check_unread(const struct maker *m)
{
    static const struct {
        const char *key;
        double harmless;
    } rows[] = {
        {"attention.max_alibi_bias", 0},
        {"attention.clamp_kqv", 0},
        {"router_logit_softcapping", 0},
        {"attention.shared_kv_layers", 0},
        {"embedding_length_per_layer_input", 0},
        {"full_attention_interval", 0},
        {"attention.output_scale", 1},
        {"attention.temperature_length", 0},
        {"moe_every_n_layers", 0},
        {"interleave_moe_layer_step", 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double v = number_or(m, rows[i].key, rows[i].harmless);
        if (v != rows[i].harmless) {
            return err_set(m->err, ERR_UNSUPPORTED, "%s.%s is %g, which is not supported",
                           m->arch->name, rows[i].key, v);
        }
    }
    char full[96];
    bool causal = true;
    full_key(m, "attention.causal", full);
    gguf_get_bool(m->g, full, &causal);
    if (!causal) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s is false: attention to later tokens is "
                       "not supported",
                       full);
    }
    return OK;
}

/* The dtype of most of the matrix bytes; NULL: they are block-quantised, and bf16 is used for
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

static enum status put_sizes(const struct maker *m)
{
    double heads, width, kv = 0, key = 0, value = 0, ffn = 0;
    bool has_kv, has_key, has_value, has_ffn;
    const struct gguf_tensor *embed = gguf_find_tensor(m->g, "token_embd.weight");
    TRY(need_number(m, "attention.head_count", &heads));
    TRY(need_number(m, "embedding_length", &width));
    TRY(need_number(m, "block_count", &key));
    TRY(get_number(m, "attention.head_count_kv", &kv, &has_kv));
    TRY(get_number(m, "attention.key_length", &key, &has_key));
    TRY(get_number(m, "attention.value_length", &value, &has_value));
    TRY(get_number(m, "feed_forward_length", &ffn, &has_ffn));
    if (!embed || embed->n_dims != 2) {
        return err_set(m->err, ERR_FORMAT, "there is no tensor token_embd.weight");
    }
    if (!(heads >= 1)) {
        return err_set(m->err, ERR_FORMAT, "%s.attention.head_count is %g", m->arch->name, heads);
    }
    bool mla = number_or(m, "attention.kv_lora_rank", 0) > 0;
    if (!has_key) {
        key = floor(width / heads);
    }
    if (!mla && has_value && value != key) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "values of %g dimensions beside keys of %g are not "
                       "supported",
                       value, key);
    }
    put_number(m, "vocab_size", (double)embed->dims[0]);
    put_number(m, "num_key_value_heads", has_kv && !mla ? kv : heads);
    if (!mla) {
        put_number(m, "head_dim", key);
        double rotated = number_or(m, "rope.dimension_count", key);
        /* The loader truncates share * dimensions, so make the share slightly larger than the
         * quotient. */
        put_number(m, "partial_rotary_factor", rotated < key ? (rotated + 0.25) / key : 1.0);
    }
    if (has_ffn) {
        put_number(m, "intermediate_size", ffn);
    }
    return OK;
}

static void put_facts(const struct maker *m)
{
    put_flag(m, "tie_word_embeddings", !has_tensor(m, "output.weight"));
    put_flag(m, "attention_bias", has_tensor(m, "blk.0.attn_q.bias"));
    put_flag(m, "use_qkv_bias", has_tensor(m, "blk.0.attn_q.bias"));
    put_flag(m, "mlp_bias", has_tensor(m, "blk.0.ffn_down.bias"));
    const char *dtype = dtype_of(m->g);
    buf_printf(m->out, "\"dtype\":\"%s\",", dtype ? dtype : "bfloat16");
    if (!dtype) { // most of it is block-quantised
        buf_puts(m->out, "\"quantization_config\":{\"quant_method\":\"gguf\"},");
    }
    if (m->arch->pairs_together) {
        put_flag(m, "rope_pairs_together", true);
    }
    if (m->arch->norms_plus_one) {
        put_flag(m, "norms_plus_one", true);
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
            buf_printf(m->out, "%s%lld", i ? "," : "", (long long)ids[i]);
        }
        buf_puts(m->out, "],");
    }
    return OK;
}

/* ---- positions ---------------------------------------------------------------------------- */

/* A tensor of frequency divisors, as a list. */
static enum status put_factors(const struct maker *m, const char *name, const char *as)
{
    const struct gguf_tensor *t = gguf_find_tensor(m->g, name);
    if (!t || t->n_dims != 1 || strcmp(t->type_name, "F32") != 0) {
        return err_set(m->err, ERR_FORMAT, "the tensor %s is missing, or no row of F32", name);
    }
    buf_printf(m->out, "\"%s\":[", as);
    for (int64_t i = 0; i < t->dims[0]; i++) {
        float f;
        memcpy(&f, t->data + (size_t)i * sizeof f, sizeof f);
        if (i) {
            buf_puts(m->out, ",");
        }
        buf_put_double(m->out, (double)f);
    }
    buf_puts(m->out, "],");
    return OK;
}

/* Llama 3's rope scaling is stored as the resulting divisors, the same for every length. */
static enum status put_divisors(const struct maker *m, const char *shorter, const char *longer)
{
    buf_puts(m->out, "\"rope_type\":\"longrope\",");
    TRY(put_factors(m, shorter, "short_factor"));
    return put_factors(m, longer, "long_factor");
}

static enum status put_yarn(const struct maker *m)
{
    static const struct rename rows[] = {
        {"rope.scaling.factor", "factor", NUMBER},
        {"rope.scaling.yarn_beta_fast", "beta_fast", NUMBER},
        {"rope.scaling.yarn_beta_slow", "beta_slow", NUMBER},
        {NULL, NULL, NUMBER},
    };
    buf_puts(m->out, "\"rope_type\":\"yarn\",");
    double log_multiplier = number_or(m, "rope.scaling.yarn_log_multiplier", 0);
    if (log_multiplier > 0) { // DeepSeek's multiplier is stored divided by ten
        put_number(m, "mscale", log_multiplier * 10);
        put_number(m, "mscale_all_dim", log_multiplier * 10);
    }
    return put_all(m, rows);
}

static enum status put_scaling(const struct maker *m, const char *type)
{
    double factor = number_or(m, "rope.scaling.factor", number_or(m, "rope.scale_linear", 1));
    if (has_tensor(m, "rope_freqs.weight")) {
        TRY(put_divisors(m, "rope_freqs.weight", "rope_freqs.weight"));
        put_number(m, "attention_factor", 1);
    } else if (has_tensor(m, "rope_factors_long.weight")) {
        TRY(put_divisors(m, "rope_factors_short.weight", "rope_factors_long.weight"));
        double attention = number_or(m, "rope.scaling.attn_factor", 0);
        if (attention > 0) {
            put_number(m, "attention_factor", attention);
        }
    } else if (strcmp(type, "yarn") == 0) {
        TRY(put_yarn(m));
        put_flag(m, "truncate", strcmp(m->arch->name, "gpt-oss") != 0);
    } else if (strcmp(type, "linear") == 0 || (strcmp(type, "none") == 0 && factor != 1)) {
        buf_puts(m->out, "\"rope_type\":\"linear\",");
        put_number(m, "factor", factor);
    } else if (strcmp(type, "none") == 0) {
        buf_puts(m->out, "\"rope_type\":\"default\",");
    } else {
        return err_set(m->err, ERR_UNSUPPORTED, "%s.rope.scaling.type: '%.30s' is not supported",
                       m->arch->name, type);
    }
    return OK;
}

static enum status put_rope(const struct maker *m)
{
    char full[96], type[32] = "none";
    const char *said;
    size_t n;
    full_key(m, "rope.scaling.type", full);
    if (gguf_get_string(m->g, full, &said, &n)) {
        snprintf(type, sizeof type, "%.*s", (int)lesser(n, 31), said);
    }
    put_number(m, "rope_theta", number_or(m, "rope.freq_base", 10000));
    double original = number_or(m, "rope.scaling.original_context_length", 0);
    if (original > 0) {
        put_number(m, "original_max_position_embeddings", original);
    }
    buf_puts(m->out, "\"rope_scaling\":{");
    TRY(put_scaling(m, type));
    buf_puts(m->out, "\"rope_theta\":");
    buf_put_double(m->out, number_or(m, "rope.freq_base", 10000));
    buf_puts(m->out, "},");
    return OK;
}

/* ---- architectures ------------------------------------------------------------------------ */

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

/* One size scales its heads by the model's width. */
static enum status more_gemma(const struct maker *m, double widest_layers)
{
    double layers, heads, width, key;
    bool found;
    TRY(need_number(m, "block_count", &layers));
    TRY(need_number(m, "attention.head_count", &heads));
    TRY(need_number(m, "embedding_length", &width));
    TRY(get_number(m, "attention.key_length", &key, &found));
    if (!found) {
        key = width / heads;
    }
    put_number(m, "query_pre_attn_scalar", layers == widest_layers ? width / heads : key);
    return OK;
}

static enum status more_gemma2(const struct maker *m)
{
    return more_gemma(m, 46);
}

static enum status more_gemma3(const struct maker *m)
{
    double pattern = number_or(m, "attention.sliding_window_pattern", 6);
    put_number(m, "sliding_window_pattern", pattern);
    put_number(m, "rope_local_base_freq", number_or(m, "rope.freq_base_swa", 10000));
    return more_gemma(m, 62);
}

/* Per-head norms are one tensor in GGUF, and one tensor per head here. */
static enum status more_stablelm(const struct maker *m)
{
    if (has_tensor(m, "blk.0.attn_q_norm.weight")) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "a StableLM with norms of q and k is not supported");
    }
    return OK;
}

static enum status more_gpt_oss(const struct maker *m)
{
    double ffn;
    TRY(need_number(m, "expert_feed_forward_length", &ffn));
    put_number(m, "intermediate_size", ffn);
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
    TRY(need_number(m, "rope.dimension_count", &rope));
    TRY(need_number(m, "attention.key_length", &key));
    TRY(need_number(m, "attention.value_length", &value));
    put_number(m, "qk_nope_head_dim", number_or(m, "attention.key_length_mla", key) - rope);
    put_number(m, "v_head_dim", number_or(m, "attention.value_length_mla", value));
    double groups = number_or(m, "expert_group_count", 1);
    put_number(m, "n_group", groups);
    put_number(m, "topk_group", number_or(m, "expert_group_used_count", 1));
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
    {.name = "phi3", .model_type = "phi3"},
    {.name = "olmo2", .model_type = "olmo2"},
    {.name = "granite", .model_type = "granite", .pairs_together = true, .renames = granite},
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

/* One name for two families. */
static const struct arch mixtral_arch = {
    .name = "llama", .model_type = "mixtral", .pairs_together = true, .renames = mixtral};
static const struct arch deepseek3_arch = {
    .name = "deepseek2", .model_type = "deepseek_v3", .renames = deepseek2, .more = more_deepseek2};

static enum status unknown_arch(const char *name, struct err *err)
{
    char known[400] = "";
    for (size_t i = 0; i < N_ARCHS; i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", archs[i].name);
    }
    return err_set(err, ERR_UNSUPPORTED, "general.architecture: '%s' is not one of %s", name,
                   known);
}

static enum status find_arch(const struct gguf *g, const struct arch **out, struct err *err)
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
    TRY(find_arch(g, &arch, err));
    *out = arch->model_type;
    return OK;
}

enum status gguf_make_config(const struct gguf *g, struct buf *out, struct err *err)
{
    struct maker m = {.g = g, .out = out, .err = err};
    TRY(find_arch(g, &m.arch, err));
    buf_putc(out, '{');
    TRY(put_sizes(&m));
    TRY(put_all(&m, common));
    TRY(put_all(&m, m.arch->renames));
    TRY(check_unread(&m));
    put_facts(&m);
    TRY(put_rope(&m));
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
