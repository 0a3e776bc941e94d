// SPDX-License-Identifier: Apache-2.0
/* Families with plain attention and an MLP without a gate. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

#include <string.h>

static const struct tensor_names plain_names = {BASE_NAMES, QKV_NAMES, .up = "mlp.up_proj",
                                                .down = "mlp.down_proj"};

static const struct tensor_names apertus_names = {QKV_NAMES,
                                                  QK_NORM_NAMES,
                                                  .embed = "model.embed_tokens",
                                                  .final_norm = "model.norm",
                                                  .head = "lm_head",
                                                  .o = "self_attn.o_proj",
                                                  .attn_norm = "attention_layernorm",
                                                  .ffn_norm = "feedforward_layernorm",
                                                  .up = "mlp.up_proj",
                                                  .down = "mlp.down_proj",
                                                  .act = "mlp.act_fn"};

static const struct tensor_names nanochat_names = {BASE_NAMES, QKV_NAMES, .up = "mlp.fc1",
                                                   .down = "mlp.fc2"};

static const struct tensor_names phi_names = {QKV_NAMES,
                                              .embed = "model.embed_tokens",
                                              .final_norm = "model.final_layernorm",
                                              .head = "lm_head",
                                              .o = "self_attn.dense",
                                              .attn_norm = "input_layernorm",
                                              .up = "mlp.fc1",
                                              .down = "mlp.fc2"};

/* Llama's biases. */
static enum status read_arcee(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->gated = false;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    return OK;
}

/* The activation's parameters in GGUF files. */
static enum status listed_xielu(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *positive = json_get(j, "xielu_alpha_p");
    const struct json *negative = json_get(j, "xielu_alpha_n");
    const struct json *slope = json_get(j, "xielu_beta");
    const size_t n = (size_t)c->n_layers;
    if (!positive && !negative && !slope) {
        return OK;
    }
    if (json_count(positive) < n || json_count(negative) < n || json_count(slope) < n) {
        return err_set(err, ERR_FORMAT,
                       "config.json: xielu_alpha_p, xielu_alpha_n or xielu_beta has fewer entries "
                       "than layers");
    }
    positive = json_first(positive);
    negative = json_first(negative);
    slope = json_first(slope);
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        l->xielu.is_known = true;
        l->xielu.positive = (float)json_number(positive, 0.0);
        l->xielu.negative = (float)json_number(negative, 0.0);
        l->xielu.slope = (float)json_number(slope, 0.0);
        positive = json_next(positive);
        negative = json_next(negative);
        slope = json_next(slope);
    }
    return OK;
}

/* Norms of heads, and an activation whose parameters are learned in each layer. */
static enum status read_apertus(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "qk_norm", true, err));
    TRY(family_must_be(j, "post_norm", false, err));
    TRY(listed_xielu(j, c, err));
    TRY(read_arcee(j, c, err));
    c->qk_norm = QK_NORM_HEAD;
    c->mlp_bias = false; // whatever the config says
    return OK;
}

/* Ids of images have embeddings, but no logits. */
static enum status read_apertus15(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t n = json_get_int(j, "output_vocab_size", c->vocab);
    TRY(family_positive("output_vocab_size", n, c->vocab, err));
    c->n_other_embeds = c->vocab - (int32_t)n;
    c->vocab = (int32_t)n;
    return read_apertus(j, c, err);
}

/* LayerNorm, whose weights are stored minus one. */
static enum status read_nemotron(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_arcee(j, c, err));
    c->norm_kind = NORM_LAYER;
    c->norm_bias = true;
    c->norm_offset = 1.0f;
    c->norm_eps = (float)json_get_number(j, "norm_eps", 1e-5);
    c->partial_rotary = 0.5f;
    return OK;
}

static enum status read_jais2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_arcee(j, c, err));
    c->norm_kind = NORM_LAYER;
    c->norm_bias = true;
    c->norm_eps = (float)json_get_number(j, "layer_norm_eps", 1e-5);
    return OK;
}

/* No norm has weights, embeddings are normed, heads are normed after a rope that turns backwards.
 */
static enum status read_nanochat(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_arcee(j, c, err));
    c->mlp_bias = false;
    c->bare_norms = c->embed_normed = c->rope_backwards = true;
    c->qk_norm = QK_NORM_HEAD;
    c->qk_norm_after_rope = true;
    c->final_softcap = (float)json_get_number(j, "final_logit_softcapping", 0.0);
    const char *type = rope_type(rope_params(j));
    if (strcmp(type, "dynamic") == 0 || strcmp(type, "longrope") == 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: a RoPE scaling of type '%s' is not supported in this family",
                       type);
    }
    return OK;
}

/* Phi 1 and 2: both sub-layers read the same norm, and everything has a bias. */
static enum status read_phi(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "qk_layernorm", false, err));
    TRY(family_must_be(j, "tie_word_embeddings", false, err)); // the head has a bias of its own
    c->gated = false;
    c->q_bias = c->o_bias = c->mlp_bias = c->head_bias = true;
    c->norm_kind = NORM_LAYER;
    c->norm_bias = true;
    c->norm_eps = (float)json_get_number(j, "layer_norm_eps", 1e-5);
    c->parallel_residual = true;
    c->partial_rotary = 0.5f;
    return OK;
}

#define APERTUS_DEFAULTS                                                                           \
    "{\"eos_token_id\":2,\"hidden_act\":\"xielu\",\"max_position_embeddings\":65536,"              \
    "\"rms_norm_eps\":1e-5,\"rope_theta\":12000000,"                                               \
    "\"rope_of_class\":{\"rope_type\":\"llama3\",\"rope_theta\":12000000,\"factor\":8,"            \
    "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}"

static const struct family rows[] = {
    {"apertus", &apertus_names, APERTUS_DEFAULTS, read_apertus},
    {"apertus1p5_text", &apertus_names, APERTUS_DEFAULTS, read_apertus15},
    {"arcee", &plain_names,
     "{\"eos_token_id\":128001,\"hidden_act\":\"relu2\",\"max_position_embeddings\":4096,"
     "\"rms_norm_eps\":1e-5}",
     read_arcee},
    {"nemotron", &plain_names,
     "{\"eos_token_id\":3,\"hidden_act\":\"relu2\",\"max_position_embeddings\":4096}",
     read_nemotron},
    {"nanochat", &nanochat_names,
     "{\"eos_token_id\":1,\"hidden_act\":\"relu2\",\"final_logit_softcapping\":15}", read_nanochat},
    {"phi", &phi_names, "{\"eos_token_id\":2,\"hidden_act\":\"gelu_new\"}", read_phi},
    {"jais2", &plain_names,
     "{\"eos_token_id\":150024,\"hidden_act\":\"relu2\",\"max_position_embeddings\":8192,"
     "\"attention_bias\":true,\"mlp_bias\":true}",
     read_jais2},
};
const struct family_table families_plain = {rows, sizeof rows / sizeof rows[0]};
