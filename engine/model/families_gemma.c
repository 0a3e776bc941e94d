/* Gemma: embeddings that are scaled, norms around sub-layers, a soft cap of logits. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

#include <math.h>

#define GEMMA_BASE                                                                                 \
    .embed = "model.embed_tokens", .final_norm = "model.norm", .head = "lm_head",                  \
    .o = "self_attn.o_proj", .attn_norm = "input_layernorm",                                       \
    .attn_post_norm = "post_attention_layernorm", .ffn_norm = "pre_feedforward_layernorm",         \
    .ffn_post_norm = "post_feedforward_layernorm"

static const struct tensor_names gemma2_names = {GEMMA_BASE, QKV_NAMES, FFN_NAMES};

static const struct tensor_names gemma3_names = {GEMMA_BASE, QKV_NAMES, FFN_NAMES, QK_NORM_NAMES};

static enum status read_gemma(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->norm_offset = 1.0f;
    c->tied = true;
    c->norm_place = NORM_SANDWICH;
    c->embed_scale = sqrtf((float)c->hidden);
    c->embed_scale_rounded = true;
    if (json_get_bool(j, "use_bidirectional_attention", false)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: use_bidirectional_attention: this model does not generate");
    }
    double scalar = json_get_number(j, "query_pre_attn_scalar", c->head_dim);
    c->attn_scale = (float)(1.0 / sqrt(scalar));
    c->attn_softcap = (float)json_get_number(j, "attn_logit_softcapping", 0.0);
    c->final_softcap = (float)json_get_number(j, "final_logit_softcapping", 0.0);
    return OK;
}

static enum status read_gemma1(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_gemma(j, c, err));
    c->norm_place = NORM_PRE;
    c->attn_scale = 1.0f / sqrtf((float)c->head_dim);
    c->attn_softcap = c->final_softcap = 0.0f;
    if (c->act == ACT_GELU) {
        c->act = ACT_GELU_TANH; // what "gelu" meant in the first files
    }
    return OK;
}

static enum status read_gemma2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_gemma(j, c, err));
    family_window_on_even(j, c);
    return OK;
}

static enum status read_gemma3(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_gemma(j, c, err));
    c->attn_softcap = 0.0f; // the key is there, and transformers does not use it
    c->qk_norm = QK_NORM_HEAD;
    c->n_ropes = 2;
    int64_t pattern = json_get_int(j, "sliding_window_pattern", 6);
    pattern = json_get_int(j, "_sliding_window_pattern", pattern);
    family_window_but_every(j, pattern, c);
    return OK;
}

/* Gemma 3's wrappers leave out nearly everything. */
#define GEMMA_DEFAULTS "\"head_dim\":256,\"hidden_activation\":\"gelu_pytorch_tanh\""
#define GEMMA3_DEFAULTS                                                                            \
    "{\"eos_token_id\":1,"                                                                         \
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"vocab_size\":262208,"                   \
    "\"max_position_embeddings\":131072,\"rope_theta\":1000000,\"query_pre_attn_scalar\":256,"     \
    "\"sliding_window\":4096," GEMMA_DEFAULTS "}"

static const struct family rows[] = {
    {"gemma", &llama_names,
     "{\"eos_token_id\":1,"
     "\"max_position_embeddings\":8192,\"hidden_act\":\"gelu_pytorch_tanh\",\"head_dim\":256}",
     read_gemma1},
    {"gemma2", &gemma2_names,
     "{\"eos_token_id\":1,"
     "\"num_key_value_heads\":4,\"max_position_embeddings\":8192,\"query_pre_attn_scalar\":256,"
     "\"attn_logit_softcapping\":50,\"final_logit_softcapping\":30,\"sliding_window\":4096,"
     GEMMA_DEFAULTS "}",
     read_gemma2},
    {"gemma3_text", &gemma3_names, GEMMA3_DEFAULTS, read_gemma3},
    {"gemma3", &gemma3_names, GEMMA3_DEFAULTS, read_gemma3},
};
const struct family_table families_gemma = {rows, sizeof rows / sizeof rows[0]};
