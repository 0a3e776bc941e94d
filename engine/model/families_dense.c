// SPDX-License-Identifier: Apache-2.0
/* Families with plain attention and one MLP per layer. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

#include <math.h>

static const struct tensor_names qwen3_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES, QK_NORM_NAMES};

static const struct tensor_names phi3_names = {BASE_NAMES, .qkv = "self_attn.qkv_proj",
                                               .gate_up = "mlp.gate_up_proj",
                                               .down = "mlp.down_proj"};

static const struct tensor_names olmo2_names = {OLMO2_NAMES, FFN_NAMES};

static const struct tensor_names starcoder2_names = {BASE_NAMES, QKV_NAMES, .up = "mlp.c_fc",
                                                     .down = "mlp.c_proj"};

static const struct tensor_names stablelm_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES,
                                                   .q_norm = "self_attn.q_layernorm.norms.%d",
                                                   .k_norm = "self_attn.k_layernorm.norms.%d"};

static const struct tensor_names glm4_names = {QKV_NAMES,
                                               .embed = "model.embed_tokens",
                                               .final_norm = "model.norm",
                                               .head = "lm_head",
                                               .o = "self_attn.o_proj",
                                               .attn_norm = "input_layernorm",
                                               .attn_post_norm = "post_self_attn_layernorm",
                                               .ffn_norm = "post_attention_layernorm",
                                               .ffn_post_norm = "post_mlp_layernorm",
                                               .gate_up = "mlp.gate_up_proj",
                                               .down = "mlp.down_proj"};

static const struct tensor_names hunyuan_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES,
                                                  .q_norm = "self_attn.query_layernorm",
                                                  .k_norm = "self_attn.key_layernorm"};

static const struct tensor_names hyperclovax_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES,
                                                      .attn_post_norm = "post_norm1",
                                                      .ffn_post_norm = "post_norm2"};

static const struct tensor_names sinks_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES,
                                                .sinks = "self_attn.sinks"};

static const struct tensor_names bitnet_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES,
                                                 .o_norm = "self_attn.attn_sub_norm",
                                                 .down_norm = "mlp.ffn_sub_norm"};

/* EXAONE 3 has GPT-2's names of Llama's modules. */
static const struct tensor_names exaone_names = {.layers = "h.",
                                                 .embed = "model.wte",
                                                 .final_norm = "model.ln_f",
                                                 .head = "lm_head",
                                                 .attn_norm = "ln_1",
                                                 .ffn_norm = "ln_2",
                                                 .q = "attn.attention.q_proj",
                                                 .k = "attn.attention.k_proj",
                                                 .v = "attn.attention.v_proj",
                                                 .o = "attn.attention.out_proj",
                                                 .gate = "mlp.c_fc_0",
                                                 .up = "mlp.c_fc_1",
                                                 .down = "mlp.c_proj"};

/* GLM as it was before it got sandwich norms (model_type "glm"). */
static const struct tensor_names glm_names = {BASE_NAMES, QKV_NAMES, .gate_up = "mlp.gate_up_proj",
                                              .down = "mlp.down_proj"};

static enum status read_llama(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    return OK;
}

static enum status read_bitnet(const struct json *j, struct model_config *c, struct err *err)
{
    if (c->n_heads * c->head_dim != c->hidden) {
        return err_set(err, ERR_FORMAT,
                       "config.json: %d heads of %d (head_dim) are not the hidden size, %d, which "
                       "this family requires",
                       c->n_heads, c->head_dim, c->hidden);
    }
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    return OK;
}

static enum status read_mistral(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    family_window_on_all(j, c);
    return OK;
}

static enum status read_ministral3(const struct json *j, struct model_config *c, struct err *err)
{
    family_window_on_all(j, c);
    return family_query_growth(j, c, err);
}

static enum status read_seed_oss(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = json_get_bool(j, "attention_bias", true);
    c->o_bias = json_get_bool(j, "attention_out_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    return OK;
}

static enum status read_ernie(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = c->o_bias = c->mlp_bias = json_get_bool(j, "use_bias", false);
    c->rope[0].desc.interleaved = true;
    c->tied = true;
    return OK;
}

static enum status read_exaone4(const struct json *j, struct model_config *c, struct err *err)
{
    c->norm_place = NORM_POST;
    return family_exaone_attention(j, c, err);
}

/* Layers from max_window_layers on use the window. */
static void qwen_windows(const struct json *j, struct model_config *c)
{
    family_window_on_all(j, c);
    family_windows_if_used(j, c);
    int64_t full = json_get_int(j, "max_window_layers", 28);
    for (int32_t i = 0; i < c->n_layers && i < full; i++) {
        c->layers[i].window = 0;
    }
}

static enum status read_qwen2(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = true;
    qwen_windows(j, c);
    return OK;
}

static enum status read_qwen3(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    qwen_windows(j, c);
    return OK;
}

/* Layers with attention to an image do nothing in a text without images. */
static enum status read_mllama(const struct json *j, struct model_config *c, struct err *err)
{
    static const char key[] = "cross_attention_layers";
    for (const struct json *v = json_first(json_get(j, key)); v; v = json_next(v)) {
        int64_t layer;
        if (json_int64(v, &layer) && layer < c->n_layers) {
            c->layers[layer].kv = -1;
            c->layers[layer].no_ffn = true;
        }
    }
    while (c->n_layers > 0 && c->layers[c->n_layers - 1].no_ffn) {
        c->n_layers--;
    }
    if (c->n_layers == 0) {
        return err_set(err, ERR_FORMAT, "config.json: %s has all layers", key);
    }
    c->n_other_embeds = 8; // for images
    return OK;
}

static enum status read_phi3(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    family_window_on_all(j, c);
    return OK;
}

enum status family_olmo2(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->norm_place = NORM_POST;
    c->qk_norm = QK_NORM_WIDTH;
    return OK;
}

static enum status read_olmo3(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_olmo2(j, c, err));
    c->n_ropes = 2; // a scaling applies to the full-attention layers only
    family_window_but_every(j, 4, c);
    return OK;
}

/* Both sub-layers read the same norm. */
enum status family_cohere(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->norm_kind = NORM_LAYER;
    c->norm_eps = (float)json_get_number(j, "layer_norm_eps", 1e-5);
    c->parallel_residual = true;
    c->rope[0].desc.interleaved = true;
    c->logit_scale = (float)json_get_number(j, "logit_scale", 0.0625);
    c->tied = true;
    if (json_get_bool(j, "use_qk_norm", false)) {
        c->qk_norm = QK_NORM_HEAD;
        c->qk_norm_kind = NORM_LAYER;
    }
    return OK;
}

/* Only sliding layers have positions. */
static enum status read_cohere2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_cohere(j, c, err));
    c->qk_norm = QK_NORM_NONE;
    c->full_without_rope = true;
    family_window_but_every(j, json_get_int(j, "sliding_window_pattern", 4), c);
    return OK;
}

/* Pairs are halves apart, and all layers have positions. */
static enum status read_cohere_compass(const struct json *j, struct model_config *c,
                                       struct err *err)
{
    TRY(family_cohere(j, c, err));
    c->qk_norm = QK_NORM_NONE;
    c->rope[0].desc.interleaved = false;
    c->logit_scale = (float)json_get_number(j, "logit_scale", 1.0);
    return OK;
}

/* Norms without weights. */
static enum status read_olmo(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_no_clips(j, err));
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->norm_kind = NORM_LAYER;
    c->norm_eps = 1e-5f;
    c->bare_norms = true;
    return OK;
}

static enum status read_internlm3(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = json_get_bool(j, "attention_bias", false);
    c->o_bias = c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    return OK;
}

static enum status read_iquestcoder(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_no_clips(j, err));
    TRY(family_must_be(j, "use_sliding_window", false, err));
    return read_llama(j, c, err);
}

static enum status read_helium(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_llama(j, c, err));
    c->o_bias = false;
    c->rope[0].desc.interleaved = true;
    return OK;
}

/* Every n-th layer, from the first on, has no window. */
static void window_but_first_of(const struct json *j, int32_t n, struct model_config *c)
{
    family_window_on_all(j, c);
    for (int32_t i = 0; i < c->n_layers; i += n) {
        c->layers[i].window = 0;
    }
}

static enum status read_cwm(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    window_but_first_of(j, 4, c);
    return OK;
}

/* Granite multiplies embeddings, residuals, attention scores and logits by constants from the
 * config. */
enum status family_granite(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_llama(j, c, err));
    c->embed_scale = (float)json_get_number(j, "embedding_multiplier", 1.0);
    c->residual_scale = (float)json_get_number(j, "residual_multiplier", 1.0);
    c->attn_scale = (float)json_get_number(j, "attention_multiplier", (double)c->attn_scale);
    double scaling = json_get_number(j, "logits_scaling", 1.0);
    if (!(fabs(scaling) > 0.0)) {
        return err_set(err, ERR_FORMAT, "config.json: logits_scaling is 0");
    }
    c->logit_scale = (float)(1.0 / scaling);
    return OK;
}

/* Granite's factors, but logits are multiplied and not divided; norms around each sub-layer. */
static enum status read_hyperclovax(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_granite(j, c, err));
    c->logit_scale = (float)json_get_number(j, "logits_scaling", 1.0);
    c->norm_place = NORM_SANDWICH;
    if (!json_get_bool(j, "use_post_norm", true)) {
        c->names = &llama_names;
        c->norm_place = NORM_PRE;
    }
    return OK;
}

/* Granite with windows, sinks, and layers without positions. */
enum status family_granite_swa(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_granite(j, c, err));
    c->sinks = true;
    window_but_first_of(j, 4, c);
    return family_layer_bases(j, c, err);
}

static enum status read_granite_swa(const struct json *j, struct model_config *c, struct err *err)
{
    c->tied = true;
    return family_granite_swa(j, c, err);
}

/* Layers without rope may have a window; the others see the whole context. */
static enum status read_smollm3(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_llama(j, c, err));
    c->tied = true;
    family_window_on_all(j, c);
    family_windows_if_used(j, c);
    TRY(family_no_rope_layers(j, c, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i].rope >= 0) {
            c->layers[i].window = 0;
        }
    }
    return OK;
}

/* LayerNorm with biases, and an MLP without a gate. */
static enum status read_starcoder2(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->norm_kind = NORM_LAYER;
    c->norm_bias = true;
    c->norm_eps = (float)json_get_number(j, "norm_epsilon", 1e-5);
    c->q_bias = c->o_bias = c->mlp_bias = json_get_bool(j, "use_bias", true);
    c->gated = false;
    c->tied = true;
    family_window_on_all(j, c);
    return OK;
}

static enum status read_stablelm(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->norm_kind = NORM_LAYER;
    c->norm_bias = true;
    c->norm_eps = (float)json_get_number(j, "layer_norm_eps", 1e-5);
    c->partial_rotary = 0.25f;
    c->q_bias = json_get_bool(j, "use_qkv_bias", false);
    c->parallel_residual = json_get_bool(j, "use_parallel_residual", false);
    if (json_get_bool(j, "qk_layernorm", false)) {
        c->qk_norm = QK_NORM_HEAD;
        c->qk_norm_kind = NORM_LAYER;
    }
    return OK;
}

static enum status read_glm(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = json_get_bool(j, "attention_bias", false);
    c->rope[0].desc.interleaved = true;
    c->partial_rotary = 0.5f;
    return OK;
}

/* The language part of GLM-4V; GLM-OCR's has no biases. */
static enum status read_glm_ocr(const struct json *j, struct model_config *c, struct err *err)
{
    (void)j;
    (void)err;
    c->rope[0].desc.interleaved = true;
    c->norm_place = NORM_SANDWICH;
    return OK;
}

static enum status read_glm4v(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = true;
    return read_glm_ocr(j, c, err);
}

static enum status read_glm4(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_glm(j, c, err));
    c->norm_place = NORM_SANDWICH;
    return OK;
}

#define GLM_DEFAULTS                                                                               \
    "{\"eos_token_id\":[151329,151336,151338],"                                                    \
    "\"num_key_value_heads\":2,\"head_dim\":128,\"max_position_embeddings\":131072,"               \
    "\"rms_norm_eps\":1.5625e-7,\"attention_bias\":true}"

/* The language parts. Positions of text are the same in all sections of their ropes. */
#define QWEN2_VL                                                                                   \
    "{\"eos_token_id\":151645,\"num_key_value_heads\":8,\"max_position_embeddings\":32768,"        \
    "\"rms_norm_eps\":1e-5,\"rope_theta\":1000000,\"sliding_window\":4096,"                        \
    "\"max_window_layers\":80}"
#define QWEN3_VL "{\"head_dim\":128,\"max_position_embeddings\":128000,\"rope_theta\":500000}"

static const struct family rows[] = {
    {"llama", &llama_names, "{\"eos_token_id\":2}", read_llama},
    {"mistral", &llama_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"sliding_window\":4096}",
     read_mistral},
    {"ministral", &llama_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"sliding_window\":4096}",
     read_mistral},
    {"mistral3", &llama_names,
     "{\"eos_token_id\":2,\"num_key_value_heads\":8,\"max_position_embeddings\":131072}",
     read_mistral},
    {"ministral3", &llama_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":262144,"
     "\"rms_norm_eps\":1e-5,"
     "\"rope_of_class\":{\"rope_type\":\"yarn\",\"rope_theta\":1000000,\"factor\":16,"
     "\"original_max_position_embeddings\":16384,\"mscale\":1,\"mscale_all_dim\":1,"
     "\"llama_4_scaling_beta\":0.1}}",
     read_ministral3},
    {"bitnet", &bitnet_names,
     "{\"eos_token_id\":128001,\"rms_norm_eps\":1e-5,\"hidden_act\":\"relu2\",\"rope_theta\":"
     "500000,"
     "\"num_key_value_heads\":5}",
     read_bitnet},
    {"exaone", &exaone_names,
     "{\"eos_token_id\":361,\"rms_norm_eps\":1e-5,\"num_key_value_heads\":8,\"rope_theta\":500000,"
     "\"max_position_embeddings\":4096,\"other_keys\":{\"num_layers\":\"num_hidden_layers\","
     "\"layer_norm_epsilon\":\"rms_norm_eps\",\"activation_function\":\"hidden_act\"}}",
     read_llama},
    {"mllama_text_model", &llama_names,
     "{\"eos_token_id\":128001,\"rms_norm_eps\":1e-5,\"num_key_value_heads\":8,"
     "\"rope_theta\":500000,\"max_position_embeddings\":131072,"
     "\"cross_attention_layers\":[3,8,13,18,23,28,33,38]}",
     read_mllama},
    {"seed_oss", &llama_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":8,\"head_dim\":128,\"max_position_embeddings\":524288}",
     read_seed_oss},
    {"ernie4_5", &llama_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":2,\"head_dim\":128,\"max_position_embeddings\":131072,"
     "\"rms_norm_eps\":1e-5,\"rope_theta\":500000}",
     read_ernie},
    {"hunyuan_v1_dense", &hunyuan_names,
     "{\"eos_token_id\":2,\"rms_norm_eps\":1e-5,\"rope_alpha_of_class\":true}",
     family_hunyuan_attention},
    {"hunyuan_vl_text", &hunyuan_names,
     "{\"eos_token_id\":2,\"rms_norm_eps\":1e-5,\"rope_alpha_of_class\":true,"
     "\"tie_word_embeddings\":true}",
     family_hunyuan_attention},
    {"exaone4", &olmo2_names, "{\"eos_token_id\":2,\"rms_norm_eps\":1e-5,\"sliding_window\":4096}",
     read_exaone4},
    {"qwen2", &llama_names, "{\"max_position_embeddings\":32768,\"sliding_window\":4096}",
     read_qwen2},
    {"qwen3", &qwen3_names,
     "{\"head_dim\":128,\"max_position_embeddings\":32768,\"sliding_window\":4096}", read_qwen3},
    {"qwen2_vl_text", &llama_names, QWEN2_VL, read_qwen2},
    {"qwen2_vl", &llama_names, QWEN2_VL, read_qwen2},
    {"qwen2_5_vl_text", &llama_names, QWEN2_VL, read_qwen2},
    {"qwen2_5_vl", &llama_names, QWEN2_VL, read_qwen2},
    {"qwen2_5_omni_text", &llama_names,
     "{\"num_key_value_heads\":4,\"max_position_embeddings\":32768,\"rope_theta\":1000000,"
     "\"sliding_window\":32768}",
     read_qwen2},
    {"qwen3_vl_text", &qwen3_names, QWEN3_VL, read_qwen3},
    {"qwen3_vl", &qwen3_names, QWEN3_VL, read_qwen3},
    {"phi3", &phi3_names,
     "{\"eos_token_id\":32000,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"
     "\"original_max_position_embeddings\":4096}",
     read_phi3},
    {"phi4_multimodal", &phi3_names,
     "{\"eos_token_id\":[199999,200020],\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,"
     "\"num_key_value_heads\":8,\"original_max_position_embeddings\":4096}",
     read_phi3},
    {"olmo2", &olmo2_names, "{\"eos_token_id\":50279,\"rms_norm_eps\":1e-5}", family_olmo2},
    {"olmo3", &olmo2_names,
     "{\"eos_token_id\":50279,\"rms_norm_eps\":1e-5,\"rope_theta\":500000,"
     "\"rope_local_base_freq\":500000,\"sliding_window\":4096}",
     read_olmo3},
    {"cohere2", &llama_names,
     "{\"eos_token_id\":255001,\"max_position_embeddings\":8192,\"sliding_window\":4096}",
     read_cohere2},
    {"cohere_compass_text", &llama_names,
     "{\"eos_token_id\":255001,\"max_position_embeddings\":8192,\"sliding_window\":4096}",
     read_cohere_compass},
    {"cohere", &qwen3_names,
     "{\"eos_token_id\":255001,\"max_position_embeddings\":8192,\"rope_theta\":500000}",
     family_cohere},
    {"olmo", &llama_names, "{\"eos_token_id\":50279}", read_olmo},
    {"internlm3", &llama_names,
     "{\"eos_token_id\":2,\"num_key_value_heads\":2,\"head_dim\":128,\"rms_norm_eps\":1e-5,"
     "\"max_position_embeddings\":32768,"
     "\"other_keys\":{\"qkv_bias\":\"attention_bias\",\"bias\":\"mlp_bias\"}}",
     read_internlm3},
    {"iquestcoder", &llama_names,
     "{\"eos_token_id\":2,\"num_key_value_heads\":8,\"head_dim\":128,\"rms_norm_eps\":1e-5,"
     "\"max_position_embeddings\":131072}",
     read_iquestcoder},
    {"helium", &llama_names,
     "{\"eos_token_id\":2,\"num_key_value_heads\":20,\"head_dim\":128,\"rms_norm_eps\":1e-8,"
     "\"max_position_embeddings\":4096,\"rope_theta\":100000}",
     read_helium},
    {"cwm", &llama_names,
     "{\"eos_token_id\":[128001,128008,128009],\"num_key_value_heads\":8,\"head_dim\":128,"
     "\"rms_norm_eps\":1e-5,\"max_position_embeddings\":131072,\"sliding_window\":8192,"
     "\"rope_theta\":1000000,"
     "\"rope_of_class\":{\"rope_type\":\"llama3\",\"rope_theta\":1000000,\"factor\":16,"
     "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
     read_cwm},
    {"hyperclovax", &hyperclovax_names, "{\"eos_token_id\":2}", read_hyperclovax},
    {"granite_swa", &sinks_names,
     "{\"eos_token_id\":100257,\"num_key_value_heads\":4,\"max_position_embeddings\":8192,"
     "\"rms_norm_eps\":1e-5,\"attention_multiplier\":1,\"sliding_window\":128}",
     read_granite_swa},
    {"granite", &llama_names, "{\"eos_token_id\":2,\"attention_multiplier\":1}", family_granite},
    {"smollm3", &llama_names,
     "{\"eos_token_id\":128001,"
     "\"num_key_value_heads\":4,\"max_position_embeddings\":32768,\"rope_theta\":2000000}",
     read_smollm3},
    {"starcoder2", &starcoder2_names,
     "{\"eos_token_id\":50256,\"num_key_value_heads\":2,\"max_position_embeddings\":4096,"
     "\"hidden_act\":\"gelu_pytorch_tanh\"}",
     read_starcoder2},
    {"stablelm", &stablelm_names, "{\"eos_token_id\":0,\"max_position_embeddings\":4096}",
     read_stablelm},
    {"glm", &glm_names, GLM_DEFAULTS, read_glm},
    {"glm4", &glm4_names, GLM_DEFAULTS, read_glm4},
    {"glm4v_text", &glm4_names,
     "{\"num_key_value_heads\":2,\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-5}",
     read_glm4v},
    {"glm_ocr_text", &glm4_names,
     "{\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5}",
     read_glm_ocr},
};
const struct family_table families_dense = {rows, sizeof rows / sizeof rows[0]};
