// SPDX-License-Identifier: Apache-2.0
/* Gemma: scaled embeddings, norms around sub-layers, soft-capped logits. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GEMMA_BASE                                                                                 \
    .embed = "model.embed_tokens", .final_norm = "model.norm", .head = "lm_head",                  \
    .o = "self_attn.o_proj", .attn_norm = "input_layernorm",                                       \
    .attn_post_norm = "post_attention_layernorm", .ffn_norm = "pre_feedforward_layernorm",         \
    .ffn_post_norm = "post_feedforward_layernorm"

static const struct tensor_names gemma2_names = {GEMMA_BASE, QKV_NAMES, FFN_NAMES};

static const struct tensor_names vaultgemma_names = {QKV_NAMES,
                                                     FFN_NAMES,
                                                     .embed = "model.embed_tokens",
                                                     .final_norm = "model.norm",
                                                     .head = "lm_head",
                                                     .o = "self_attn.o_proj",
                                                     .attn_norm = "input_layernorm",
                                                     .ffn_norm = "pre_feedforward_layernorm"};

static const struct tensor_names gemma3_names = {GEMMA_BASE, QKV_NAMES, FFN_NAMES, QK_NORM_NAMES};

static const struct tensor_names glimmer_names = {GEMMA_BASE, QKV_NAMES, FFN_NAMES,
                                                  .attn_gate = "self_attn.gate_proj"};

/* GGUF files store the constant that scales queries as the norms' weights. */
static const struct tensor_names glimmer_gguf_names = {
    GEMMA_BASE, QKV_NAMES, QK_NORM_NAMES, FFN_NAMES, .attn_gate = "self_attn.gate_proj"};

/* Inputs of layers: a table, and what each layer makes of its row. */
#define LAYER_INPUT_NAMES                                                                          \
    .inputs_embed = "model.embed_tokens_per_layer",                                                \
    .inputs_proj = "model.per_layer_model_projection",                                             \
    .inputs_norm = "model.per_layer_projection_norm", .input_gate = "per_layer_input_gate",        \
    .input_up = "per_layer_projection", .input_post_norm = "post_per_layer_input_norm"

static const struct tensor_names gemma3n_names = {GEMMA_BASE,
                                                  QKV_NAMES,
                                                  FFN_NAMES,
                                                  QK_NORM_NAMES,
                                                  LAYER_INPUT_NAMES,
                                                  .stream_in = "model.altup_projections.%d",
                                                  .stream_out =
                                                      "model.altup_unembed_projections.%d",
                                                  .stream_router = "altup.modality_router",
                                                  .stream_router_norm = "altup.router_norm",
                                                  .stream_before = "altup.prediction_coefs",
                                                  .stream_after = "altup.correction_coefs",
                                                  .stream_scale = "altup.correct_output_scale",
                                                  .branch_down = "laurel.linear_left",
                                                  .branch_up = "laurel.linear_right",
                                                  .branch_norm = "laurel.post_laurel_norm"};

static const struct tensor_names gemma4_names = {GEMMA_BASE,
                                                 QKV_NAMES,
                                                 FFN_NAMES,
                                                 QK_NORM_NAMES,
                                                 .layer_scale = "layer_scalar",
                                                 LAYER_INPUT_NAMES,
                                                 .router = "router.proj",
                                                 .router_norm = "router.scale",
                                                 .expert_scale = "router.per_expert_scale",
                                                 .experts_norm = "pre_feedforward_layernorm_2",
                                                 .experts_post_norm =
                                                     "post_feedforward_layernorm_2",
                                                 .mlp_post_norm = "post_feedforward_layernorm_1",
                                                 .expert_gate = "experts.%d.gate_proj",
                                                 .expert_up = "experts.%d.up_proj",
                                                 .expert_down = "experts.%d.down_proj",
                                                 .experts_gate_up = "experts.gate_up_proj",
                                                 .experts_down = "experts.down_proj"};

/* Settings that all Gemmas share: weights of norms are stored minus 1, and embeddings are
 * multiplied by the root of the width, rounded to the model's dtype. Later Gemmas change some of
 * this. */
static void read_gemma(const struct json *j, struct model_config *c)
{
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->norm_offset = 1.0f;
    c->tied = true;
    c->norm_place = NORM_SANDWICH;
    c->embed_scale = sqrtf((float)c->hidden);
    c->embed_scale_rounded = true;
    double scalar = json_get_number(j, "query_pre_attn_scalar", c->head_dim);
    c->attn_scale = (float)(1.0 / sqrt(scalar));
    c->attn_softcap = (float)json_get_number(j, "attn_logit_softcapping", 0.0);
    c->final_softcap = (float)json_get_number(j, "final_logit_softcapping", 0.0);
}

/* "vision" concerns only images, which are unsupported anyway. */
static enum status refuse_two_ways(const struct json *j, struct err *err)
{
    const char *which = json_string(json_get(j, "use_bidirectional_attention"));
    if (json_get_bool(j, "use_bidirectional_attention", false) ||
        (which && strcmp(which, "vision") != 0)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: use_bidirectional_attention: this model does not generate");
    }
    return OK;
}

static enum status read_causal_gemma(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(refuse_two_ways(j, err));
    read_gemma(j, c);
    return OK;
}

/* The first Gemma has norms before sub-layers only, and no soft caps. */
static enum status read_gemma1(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_causal_gemma(j, c, err));
    c->norm_place = NORM_PRE;
    c->attn_scale = 1.0f / sqrtf((float)c->head_dim);
    c->attn_softcap = c->final_softcap = 0.0f;
    if (c->act == ACT_GELU) {
        c->act = ACT_GELU_TANH; // the first files call it "gelu"
    }
    return OK;
}

static enum status read_gemma2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_causal_gemma(j, c, err));
    family_window_on_even(j, c);
    return OK;
}

static enum status read_vaultgemma(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_gemma2(j, c, err));
    c->norm_place = NORM_PRE;
    return OK;
}

/* Muse Glimmer: normed embeddings, gates of the heads' outputs, and heads normed without weights.
 * Every fourth layer, counted from the last one, has neither window nor positions. */
static enum status read_glimmer(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "attention_bias", false, err));
    if (!json_get_bool(j, "qk_norm_weights", false)) {
        c->names = &glimmer_names;
    }
    c->norm_place = NORM_SANDWICH;
    c->layer_norms_less_one = c->embed_normed = true;
    c->post_norm_eps = (float)json_get_number(j, "post_norm_eps", 1e-8);
    c->attn_gate = ATTN_GATE_WIDE;
    c->qk_norm = QK_NORM_HEAD;
    c->attn_scale *= (float)json_get_number(j, "qk_scale_factor", 3.87);
    c->logit_scale = (float)json_get_number(j, "output_multiplier", 0.19611613513818404);
    c->final_softcap = (float)json_get_number(j, "final_logit_softcapping", 20.0);
    family_window_on_all(j, c);
    for (int32_t i = c->n_layers - 1; i >= 0; i -= 4) {
        c->layers[i].window = 0;
        c->layers[i].rope = json_count(json_get(j, "layer_rope_theta")) > 0 ? 0 : -1;
    }
    TRY(family_layer_bases(j, c, err));
    c->rope_theta[0] = 0.0; // the list only tells which layers have positions
    return OK;
}

/* All layers except every sixth have a window and a separate rope. */
/* EmbeddingGemma: the window of both directions together is what the config calls the window. */
static enum status halve_windows(const struct json *j, struct model_config *c, struct err *err)
{
    (void)j;
    (void)err;
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i].window > 0) {
            c->layers[i].window = c->layers[i].window / 2 + 1;
        }
    }
    return OK;
}

static enum status read_gemma3(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    read_gemma(j, c);
    c->attn_softcap = 0.0f; // the key exists, but transformers ignores it
    c->qk_norm = QK_NORM_HEAD;
    c->n_ropes = 2;
    int64_t pattern = json_get_int(j, "sliding_window_pattern", 6);
    pattern = json_get_int(j, "_sliding_window_pattern", pattern);
    family_window_but_every(j, pattern, c);
    c->bidirectional = json_get_bool(j, "use_bidirectional_attention", false);
    if (c->bidirectional) {
        c->read_layers = halve_windows;
    }
    return OK;
}

/* Sizes of individual layers, by layer number, as transformers 5 saves them. */
static enum status layers_own_sizes(const struct json *own, struct model_config *c, struct err *err)
{
    for (const struct json *o = json_first(own); o; o = json_next(o)) {
        char *end;
        const long layer = strtol(json_key(o), &end, 10);
        if (*end || end == json_key(o) || layer < 0 || layer >= c->n_layers) {
            return err_set(err, ERR_FORMAT,
                           "config.json: per_layer_config: there is no layer '%.40s'", json_key(o));
        }
        for (const struct json *v = json_first(o); v; v = json_next(v)) {
            struct layer_config *l = &c->layers[layer];
            int64_t n = 0;
            json_int64(v, &n);
            if (strcmp(json_key(v), "head_dim") == 0) {
                TRY(family_positive("per_layer_config's head_dim", n, 4096, err));
                l->head_dim = (int32_t)n;
            } else if (strcmp(json_key(v), "num_key_value_heads") == 0) {
                TRY(family_positive("per_layer_config's num_key_value_heads", n, c->n_heads, err));
                l->n_kv_heads = (int32_t)n;
            } else {
                return err_set(err, ERR_UNSUPPORTED,
                               "config.json: per_layer_config: %.80s cannot differ by layer",
                               json_key(v));
            }
        }
    }
    return OK;
}

/* Full-attention layers have larger heads, and may use their keys as values. */
static enum status gemma4_sizes(const struct json *j, struct model_config *c, struct err *err)
{
    const bool k_is_v = json_get_bool(j, "attention_k_eq_v", false);
    int64_t head_dim = json_get_int(j, "global_head_dim", 512);
    int64_t kv = json_get_int(j, "num_global_key_value_heads", c->n_kv_heads);
    TRY(family_positive("global_head_dim", head_dim, 4096, err));
    TRY(family_positive("num_global_key_value_heads", kv, c->n_heads, err));
    const struct json *own = json_get(j, "per_layer_config");
    const bool by_layer = json_is(own, JSON_OBJECT);
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        l->v_is_k = k_is_v && l->window == 0;
        if (l->window == 0 && !by_layer) {
            l->head_dim = (int32_t)head_dim;
            l->n_kv_heads = k_is_v ? (int32_t)kv : c->n_kv_heads;
        }
    }
    if (by_layer) {
        TRY(layers_own_sizes(own, c, err));
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        const int32_t n = c->layers[i].n_kv_heads;
        if (n > 0 && c->n_heads % n != 0) {
            return err_set(err, ERR_FORMAT,
                           "config.json: %d heads cannot share the %d key/value heads of layer %d",
                           c->n_heads, n, i);
        }
    }
    return OK;
}

/* The last layers read the keys and values of the last earlier layer of their kind. *first: the
 * first of them. */
static enum status shared_keys(const struct json *j, struct model_config *c, int32_t *first,
                               struct err *err)
{
    const int64_t n = json_get_int(j, "num_kv_shared_layers", 0);
    *first = n < c->n_layers ? c->n_layers - (int32_t)n : 0;
    for (int32_t i = *first; i < c->n_layers; i++) {
        int32_t of = *first - 1;
        while (of >= 0 && (c->layers[of].window > 0) != (c->layers[i].window > 0)) {
            of--;
        }
        if (of < 0 || c->layers[of].head_dim != c->layers[i].head_dim ||
            c->layers[of].n_kv_heads != c->layers[i].n_kv_heads) {
            return err_set(err, ERR_FORMAT,
                           "config.json: num_kv_shared_layers: no layer before layer %d has keys "
                           "that it could read",
                           i);
        }
        c->layers[i].kv_of = of;
    }
    return OK;
}

static enum status gemma4_sharing(const struct json *j, struct model_config *c, struct err *err)
{
    int32_t first;
    TRY(shared_keys(j, c, &first, err));
    for (int32_t i = first; i < c->n_layers && json_get_bool(j, "use_double_wide_mlp", false);
         i++) {
        c->layers[i].ffn = 2 * c->ffn;
    }
    return OK;
}

static enum status gemma4_experts(const struct json *j, struct model_config *c, struct err *err)
{
    const struct experts_numbers numbers = {"num_experts",
                                            "top_k_experts",
                                            "moe_intermediate_size",
                                            json_get_int(j, "num_experts", 0),
                                            json_get_int(j, "top_k_experts", 0),
                                            json_get_int(j, "moe_intermediate_size", 0)};
    if (!json_get_bool(j, "enable_moe_block", false)) {
        return OK;
    }
    c->scoring = MOE_SOFTMAX_TOPK;
    c->renormalise = c->experts_beside = true;
    return family_set_experts(&numbers, c, err);
}

static enum status read_gemma4_layers(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t input = json_get_int(j, "hidden_size_per_layer_input", 0);
    // The last layer has no window, whatever layer_types says.
    c->layers[c->n_layers - 1].window = 0;
    TRY(gemma4_sizes(j, c, err));
    TRY(gemma4_sharing(j, c, err));
    TRY(gemma4_experts(j, c, err));
    if (input > 0 && json_get_int(j, "vocab_size_per_layer_input", c->vocab) != c->vocab) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: vocab_size_per_layer_input must be vocab_size");
    }
    c->layer_input = (int32_t)input;
    c->inputs_vocab = c->vocab;
    return OK;
}

/* Gemma 4 has norms on queries, keys and values, and a scale per layer; sizes may differ
 * between layers. */
static enum status read_gemma4(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_causal_gemma(j, c, err));
    c->norm_offset = 0.0f;
    c->attn_scale = 1.0f;
    c->attn_softcap = 0.0f;
    c->qk_norm = QK_NORM_HEAD;
    c->v_norm = c->scaled_layers = true;
    c->n_ropes = 2;
    family_window_but_every(j, 6, c);
    c->read_layers = read_gemma4_layers;
    return OK;
}

/* The x of which this share of a normal distribution is below. */
static double normal_quantile(double share)
{
    double low = -8.0, high = 8.0;
    for (int32_t i = 0; i < 64; i++) {
        const double middle = 0.5 * (low + high);
        if (0.5 * erfc(-middle * sqrt(0.5)) < share) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return high;
}

/* activation_sparsity_pattern lists the share of each layer's gates that is closed. Without it,
 * most are in the first ten layers of models that have more. */
static enum status gemma3n_sparsity(const struct json *j, struct model_config *c, struct err *err)
{
    enum { SPARSE_LAYERS = 10 };
    const struct json *list = json_get(j, "activation_sparsity_pattern");
    const bool listed = json_is(list, JSON_ARRAY);
    if (listed && json_count(list) != (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT,
                       "config.json: activation_sparsity_pattern needs a number for each of the %d "
                       "layers",
                       c->n_layers);
    }
    const struct json *v = listed ? json_first(list) : NULL;
    for (int32_t i = 0; i < c->n_layers; i++) {
        double share = i < SPARSE_LAYERS && c->n_layers > SPARSE_LAYERS ? 0.95 : 0.0;
        if (v) {
            share = json_number(v, 0.0);
            v = json_next(v);
        }
        if (share > 0.0) {
            c->layers[i].cutoff.is_on = true;
            c->layers[i].cutoff.deviations = (float)normal_quantile(share);
        }
    }
    return OK;
}

static enum status gemma3n_streams(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t n = json_get_int(j, "altup_num_inputs", 4);
    const int64_t active = json_get_int(j, "altup_active_idx", 0);
    if (n < 2 || n > MAX_STREAMS || active >= n) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: altup_num_inputs must be from 2 to %d, and above "
                       "altup_active_idx",
                       MAX_STREAMS);
    }
    c->streams.n = (int32_t)n;
    c->streams.active = (int32_t)active;
    c->streams.scaled = json_get_bool(j, "altup_correct_scale", true);
    return OK;
}

static enum status read_gemma3n_layers(const struct json *j, struct model_config *c,
                                       struct err *err)
{
    int32_t first;
    TRY(shared_keys(j, c, &first, err));
    return gemma3n_sparsity(j, c, err);
}

/* Gemma 3n has several residual streams, a low-rank branch beside attention, inputs for each layer,
 * and first layers in which few gates are open. */
static enum status read_gemma3n(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_causal_gemma(j, c, err));
    c->norm_offset = 0.0f;
    c->attn_scale = 1.0f;
    c->attn_softcap = 0.0f;
    c->qk_norm = QK_NORM_HEAD;
    c->v_norm = c->widths_by_layer = true;
    c->n_ropes = 2;
    family_window_but_every(j, 5, c);
    TRY(family_size(j, "hidden_size_per_layer_input", 1 << 16, &c->layer_input, err));
    TRY(family_size(j, "vocab_size_per_layer_input", 1 << 24, &c->inputs_vocab, err));
    TRY(family_size(j, "laurel_rank", 1 << 20, &c->branch_rank, err));
    c->branch_scale = sqrtf(0.5f);
    c->read_layers = read_gemma3n_layers;
    return gemma3n_streams(j, c, err);
}

/* The configs of Gemma 3's wrappers omit nearly everything. */
#define GEMMA_DEFAULTS "\"head_dim\":256,\"hidden_activation\":\"gelu_pytorch_tanh\""
#define GEMMA3_DEFAULTS                                                                            \
    "{\"eos_token_id\":1,"                                                                         \
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"vocab_size\":262208,"                   \
    "\"max_position_embeddings\":131072,\"rope_theta\":1000000,\"query_pre_attn_scalar\":256,"     \
    "\"sliding_window\":4096," GEMMA_DEFAULTS "}"

#define GEMMA3N_DEFAULTS                                                                           \
    "{\"eos_token_id\":1,\"vocab_size\":262400,\"hidden_size\":2048,"                              \
    "\"intermediate_size\":16384,\"num_hidden_layers\":35,\"num_attention_heads\":8,"              \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":32768,\"rope_theta\":1000000,"          \
    "\"sliding_window\":512,\"final_logit_softcapping\":30,"                                       \
    "\"vocab_size_per_layer_input\":262144,\"hidden_size_per_layer_input\":256,"                   \
    "\"num_kv_shared_layers\":15,\"laurel_rank\":64," GEMMA_DEFAULTS "}"

/* The ropes of both kinds of layers, and the per-layer inputs of the E series, come from these
 * defaults. */
#define GEMMA4_DEFAULTS                                                                            \
    "\"eos_token_id\":1,\"num_key_value_heads\":4,\"max_position_embeddings\":131072,"             \
    "\"rope_of_class\":{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000},"   \
    "\"full_attention\":{\"rope_type\":\"proportional\",\"partial_rotary_factor\":0.25,"           \
    "\"rope_theta\":1000000}}," GEMMA_DEFAULTS
#define GEMMA4_TEXT                                                                                \
    "{\"sliding_window\":512,\"hidden_size_per_layer_input\":256,"                                 \
    "\"vocab_size_per_layer_input\":262144," GEMMA4_DEFAULTS "}"
#define GEMMA4_UNIFIED "{\"sliding_window\":1024," GEMMA4_DEFAULTS "}"

static const struct family rows[] = {
    {"gemma", &llama_names,
     "{\"eos_token_id\":1,"
     "\"max_position_embeddings\":8192,\"hidden_act\":\"gelu_pytorch_tanh\",\"head_dim\":256}",
     read_gemma1},
    {"gemma2", &gemma2_names,
     "{\"eos_token_id\":1,"
     "\"num_key_value_heads\":4,\"max_position_embeddings\":8192,\"query_pre_attn_scalar\":256,"
     "\"attn_logit_softcapping\":50,\"final_logit_softcapping\":30,\"sliding_window\":"
     "4096," GEMMA_DEFAULTS "}",
     read_gemma2},
    {"muse_glimmer_text", &glimmer_gguf_names,
     "{\"eos_token_id\":200001,\"num_key_value_heads\":2,\"head_dim\":128,\"rms_norm_eps\":1e-5,"
     "\"hidden_activation\":\"silu\",\"max_position_embeddings\":131072,\"sliding_window\":2048}",
     read_glimmer},
    {"vaultgemma", &vaultgemma_names,
     "{\"eos_token_id\":1,"
     "\"num_key_value_heads\":4,\"max_position_embeddings\":8192,\"query_pre_attn_scalar\":256,"
     "\"attn_logit_softcapping\":50,\"final_logit_softcapping\":30,\"sliding_window\":"
     "4096," GEMMA_DEFAULTS "}",
     read_vaultgemma},
    {"gemma3_text", &gemma3_names, GEMMA3_DEFAULTS, read_gemma3},
    {"gemma3", &gemma3_names, GEMMA3_DEFAULTS, read_gemma3},
    {"gemma3n_text", &gemma3n_names, GEMMA3N_DEFAULTS, read_gemma3n},
    {"gemma3n", &gemma3n_names, GEMMA3N_DEFAULTS, read_gemma3n},
    {"gemma4_text", &gemma4_names, GEMMA4_TEXT, read_gemma4},
    {"gemma4", &gemma4_names, GEMMA4_TEXT, read_gemma4},
    {"gemma4_unified_text", &gemma4_names, GEMMA4_UNIFIED, read_gemma4},
    {"gemma4_unified", &gemma4_names, GEMMA4_UNIFIED, read_gemma4},
};
const struct family_table families_gemma = {rows, sizeof rows / sizeof rows[0]};
