// SPDX-License-Identifier: Apache-2.0
/* The families before Llama: LayerNorm with biases, an MLP without a gate, and either learned
 * positions or a rope on part of each head. */
#include "engine/base/json.h"
#include "engine/base/optional.h"
#include "engine/model/family_parts.h"

#include <math.h>
#include <string.h>

#define GPT2_NAMES                                                                                 \
    .layers = "h.", .embed = "model.wte", .final_norm = "model.ln_f", .head = "lm_head",           \
    .attn_norm = "ln_1"

static const struct tensor_names gpt2_names = {
    GPT2_NAMES,         .positions = "model.wpe", .ffn_norm = "ln_2",  .qkv = "attn.c_attn",
    .o = "attn.c_proj", .up = "mlp.c_fc",         .down = "mlp.c_proj"};

static const struct tensor_names gpt_neo_names = {GPT2_NAMES,
                                                  .positions = "model.wpe",
                                                  .ffn_norm = "ln_2",
                                                  .q = "attn.attention.q_proj",
                                                  .k = "attn.attention.k_proj",
                                                  .v = "attn.attention.v_proj",
                                                  .o = "attn.attention.out_proj",
                                                  .up = "mlp.c_fc",
                                                  .down = "mlp.c_proj"};

static const struct tensor_names gptj_names = {
    GPT2_NAMES,           .q = "attn.q_proj", .k = "attn.k_proj",  .v = "attn.v_proj",
    .o = "attn.out_proj", .up = "mlp.fc_in",  .down = "mlp.fc_out"};

static const struct tensor_names codegen_names = {GPT2_NAMES, .qkv = "attn.qkv_proj",
                                                  .o = "attn.out_proj", .up = "mlp.fc_in",
                                                  .down = "mlp.fc_out"};

/* The names of fairseq's layers. */
#define FAIRSEQ_NAMES                                                                              \
    QKV_NAMES, .embed = "model.embed_tokens", .attn_norm = "self_attn_layer_norm",                 \
        .ffn_norm = "final_layer_norm", .o = "self_attn.out_proj", .up = "fc1", .down = "fc2"

static const struct tensor_names opt_names = {FAIRSEQ_NAMES, .positions = "model.embed_positions",
                                              .final_norm = "model.final_layer_norm",
                                              .head = "lm_head"};

static const struct tensor_names biogpt_names = {
    FAIRSEQ_NAMES, .positions = "model.embed_positions", .final_norm = "model.layer_norm",
    .head = "output_projection"};

static const struct tensor_names xglm_names = {FAIRSEQ_NAMES, .final_norm = "model.layer_norm",
                                               .head = "lm_head"};

static const struct tensor_names neox_names = {.embed = "model.embed_in",
                                               .final_norm = "model.final_layer_norm",
                                               .head = "embed_out",
                                               .attn_norm = "input_layernorm",
                                               .ffn_norm = "post_attention_layernorm",
                                               .qkv = "attention.query_key_value",
                                               .o = "attention.dense",
                                               .up = "mlp.dense_h_to_4h",
                                               .down = "mlp.dense_4h_to_h"};

static const struct tensor_names falcon_names = {.layers = "h.",
                                                 .embed = "model.word_embeddings",
                                                 .final_norm = "model.ln_f",
                                                 .head = "lm_head",
                                                 .attn_norm = "ln_attn|input_layernorm",
                                                 .ffn_norm = "ln_mlp|post_attention_layernorm",
                                                 .qkv = "self_attention.query_key_value",
                                                 .o = "self_attention.dense",
                                                 .up = "mlp.dense_h_to_4h",
                                                 .down = "mlp.dense_4h_to_h"};

/* The MLP's width has a name of its own in some classes. It has become intermediate_size by now,
 * unless the config has both, of which the class reads its own. */
static enum status own_width(const struct json *j, const char *key, struct model_config *c,
                             struct err *err)
{
    const struct json *node = json_get(j, key);
    if (!node) {
        return OK;
    }
    if (json_type(node) == JSON_NULL) {
        c->ffn = 4 * c->hidden;
        return OK;
    }
    return family_size(j, key, 1 << 22, &c->ffn, err);
}

/* What all of them share. In their classes the heads fill the hidden size exactly, and unless the
 * family says otherwise each has keys of its own, whatever other keys of the config say. */
static enum status classic(const struct json *j, const char *eps_key, bool biased,
                           struct model_config *c, struct err *err)
{
    if (c->hidden % c->n_heads || c->head_dim != c->hidden / c->n_heads) {
        return err_set(err, ERR_FORMAT,
                       "config.json: %d heads of %d (head_dim) are not the hidden size, %d, which "
                       "this family requires",
                       c->n_heads, c->head_dim, c->hidden);
    }
    c->n_kv_heads = c->n_heads;
    c->norm_kind = NORM_LAYER;
    c->norm_bias = true;
    c->norm_eps = (float)json_get_number(j, eps_key, 1e-5);
    c->gated = false;
    c->q_bias = c->o_bias = c->mlp_bias = biased;
    return OK;
}

static void learned_positions(struct model_config *c, int32_t first)
{
    c->n_positions = c->max_pos;
    c->first_position = first;
    c->full_without_rope = true;
}

/* What GPT-2's config has in common with StarCoder's. */
static enum status read_gpt(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "add_cross_attention", false, err));
    TRY(classic(j, "layer_norm_epsilon", true, c, err));
    TRY(own_width(j, "n_inner", c, err));
    learned_positions(c, 0);
    if (!json_get_bool(j, "scale_attn_weights", true)) {
        c->attn_scale = 1.0f;
    }
    return OK;
}

/* The matrices of layers are those of a convolution of width 1, which are stored transposed. */
static enum status read_gpt2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "scale_attn_by_inverse_layer_idx", false, err));
    c->turned = !json_get_bool(j, "matrices_by_output", false);
    return read_gpt(j, c, err);
}

/* The layers' kinds, in runs: a list of kinds, and how often it is repeated. */
static enum status read_attention_types(const struct json *j, int32_t window,
                                        struct model_config *c, struct err *err)
{
    int32_t at = 0;
    for (const struct json *run = json_first(json_get(j, "attention_types")); run;
         run = json_next(run)) {
        const struct json *kinds = json_first(run);
        int64_t times = 0;
        json_int64(kinds ? json_next(kinds) : NULL, &times);
        for (int64_t i = 0; i < times && at <= c->n_layers; i++) {
            for (const struct json *kind = json_first(kinds); kind; kind = json_next(kind), at++) {
                const bool local = strcmp(or_empty(json_string(kind)), "local") == 0;
                if (at < c->n_layers) {
                    c->layers[at].window = local ? window : 0;
                    c->layers[at].rope = -1;
                }
            }
        }
    }
    if (at != c->n_layers) {
        return err_set(err, ERR_FORMAT, "config.json: attention_types does not describe %d layers",
                       c->n_layers);
    }
    return OK;
}

/* Scores are not divided, and layers with local attention have a window. */
static enum status read_gpt_neo(const struct json *j, struct model_config *c, struct err *err)
{
    int32_t window = 0;
    TRY(classic(j, "layer_norm_epsilon", true, c, err));
    TRY(family_size(j, "window_size", MAX_POSITIONS, &window, err));
    learned_positions(c, 0);
    c->q_bias = false;
    c->attn_scale = 1.0f;
    return read_attention_types(j, window, c, err);
}

/* OPT's layers with scaled embeddings. */
static enum status read_biogpt(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(classic(j, "layer_norm_eps", true, c, err));
    c->norm_eps = 1e-5f; // whatever the config says
    c->embed_scale = json_get_bool(j, "scale_embedding", true) ? sqrtf((float)c->hidden) : 1.0f;
    c->tied = true;
    learned_positions(c, 2);
    return OK;
}

/* The same with positions that are not learned. */
static enum status read_xglm(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "add_cross_attention", false, err));
    TRY(read_biogpt(j, c, err));
    TRY(own_width(j, "ffn_dim", c, err));
    if (c->hidden < 4) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: d_model below 4 is not supported");
    }
    return OK;
}

/* All heads share one key head, or each has its own, beside its queries in the fused tensor. */
static enum status read_gpt_bigcode(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_gpt(j, c, err));
    if (json_get_bool(j, "multi_query", true)) {
        c->n_kv_heads = 1;
    } else {
        c->qkv_groups = c->n_heads;
    }
    return OK;
}

/* The table of positions begins with two rows that no token has. opt-350m differs in the first two
 * keys. */
static enum status read_opt(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "do_layer_norm_before", true, err));
    if (json_get_int(j, "word_embed_proj_dim", c->hidden) != c->hidden) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: word_embed_proj_dim other than hidden_size is not supported");
    }
    TRY(family_must_be(j, "_remove_final_layer_norm", false, err));
    TRY(classic(j, "layer_norm_eps", json_get_bool(j, "enable_bias", true), c, err));
    TRY(own_width(j, "ffn_dim", c, err));
    c->norm_eps = 1e-5f; // whatever the config says
    if (!json_get_bool(j, "layer_norm_elementwise_affine", true)) {
        c->bare_norms = true;
        c->norm_bias = false;
    }
    learned_positions(c, 2);
    return OK;
}

/* Each head's queries, keys and values are adjacent in the fused tensor. The base and the rotated
 * share have names of their own, and other families' names of them are not read. */
static enum status read_gpt_neox(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(classic(j, "layer_norm_eps", json_get_bool(j, "attention_bias", true), c, err));
    c->mlp_bias = true;
    c->qkv_groups = json_get_bool(j, "qkv_by_kind", false) ? 1 : c->n_heads;
    c->parallel_residual = c->parallel_norms = json_get_bool(j, "use_parallel_residual", true);
    const struct json *rope = rope_params(j);
    const double base = json_get_number(j, "rotary_emb_base", 10000.0);
    const double share = json_get_number(j, "rotary_pct", 0.25);
    c->rope_theta[0] = json_get_number(rope, "rope_theta", base);
    c->rope_share[0] = json_get_number(rope, "partial_rotary_factor", share);
    return OK;
}

/* Falcon 40B, 180B and 11B: grouped keys, and always parallel sub-layers. */
static enum status read_new_falcon(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t n_norms = json_get_int(j, "num_ln_in_parallel_attn", 2);
    const int64_t n = json_get_int(j, "num_kv_heads", c->n_heads);
    TRY(family_must_be(j, "parallel_attn", true, err));
    TRY(family_positive("num_ln_in_parallel_attn", n_norms, 2, err));
    TRY(family_positive("num_kv_heads", n, c->n_heads, err));
    if (c->n_heads % n) {
        return err_set(err, ERR_FORMAT, "config.json: %d heads cannot share %lld key/value heads",
                       c->n_heads, (long long)n);
    }
    c->n_kv_heads = (int32_t)n;
    c->parallel_residual = true;
    c->parallel_norms = n_norms == 2;
    return OK;
}

static enum status read_falcon(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "alibi", false, err));
    TRY(classic(j, "layer_norm_epsilon", json_get_bool(j, "bias", false), c, err));
    TRY(own_width(j, "ffn_hidden_size", c, err));
    if (json_get_bool(j, "new_decoder_architecture", false)) {
        TRY(read_new_falcon(j, c, err));
    } else {
        c->n_kv_heads = json_get_bool(j, "multi_query", true) ? 1 : c->n_heads;
        c->parallel_residual = json_get_bool(j, "parallel_attn", true);
        if (c->parallel_residual && json_get_int(j, "num_ln_in_parallel_attn", 1) != 1) {
            return err_set(err, ERR_UNSUPPORTED,
                           "config.json: num_ln_in_parallel_attn other than 1 is supported only "
                           "with new_decoder_architecture");
        }
    }
    c->qkv_groups = json_get_bool(j, "qkv_by_kind", false) ? 1 : c->n_kv_heads;
    return OK;
}

/* Both sub-layers read the same norm, and adjacent elements are rotated. */
static enum status read_gptj(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t rotated = json_get_int(j, "rotary_dim", 64);
    const char *type = rope_type(rope_params(j));
    TRY(family_must_be(j, "tie_word_embeddings", false, err)); // the head has a bias of its own
    TRY(classic(j, "layer_norm_epsilon", false, c, err));
    TRY(own_width(j, "n_inner", c, err));
    TRY(family_positive("rotary_dim", rotated, c->head_dim, err));
    if (strcmp(type, "default") != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: a RoPE scaling of type '%s' is not supported in this family",
                       type);
    }
    c->mlp_bias = c->head_bias = c->parallel_residual = true;
    c->rope[0].desc.interleaved = true;
    c->rope_theta[0] = 10000.0;
    c->rope_share[0] = ((double)rotated + 0.5) / c->head_dim; // the share is rounded down
    return OK;
}

/* The fused tensor consists of the parts of the four devices on which the model was trained. */
static enum status read_codegen(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_gptj(j, c, err));
    c->qkv_groups = 4;
    c->qkv_v_first = true;
    if (c->n_heads % c->qkv_groups) {
        return err_set(err, ERR_FORMAT, "config.json: %d heads are not a multiple of %d",
                       c->n_heads, c->qkv_groups);
    }
    return OK;
}

#define GPT2_KEYS                                                                                  \
    "\"other_keys\":{\"n_embd\":\"hidden_size\",\"n_layer\":\"num_hidden_layers\","                \
    "\"n_head\":\"num_attention_heads\",\"n_positions\":\"max_position_embeddings\","              \
    "\"n_inner\":\"intermediate_size\",\"activation_function\":\"hidden_act\"}"

static const struct family rows[] = {
    {"gpt2", &gpt2_names,
     "{\"eos_token_id\":50256,\"hidden_act\":\"gelu_new\",\"max_position_embeddings\":1024,"
     "\"tie_word_embeddings\":true," GPT2_KEYS "}",
     read_gpt2},
    {"gpt_bigcode", &gpt2_names,
     "{\"eos_token_id\":50256,\"hidden_act\":\"gelu_pytorch_tanh\","
     "\"max_position_embeddings\":1024,\"tie_word_embeddings\":true," GPT2_KEYS "}",
     read_gpt_bigcode},
    {"gpt_neo", &gpt_neo_names,
     "{\"eos_token_id\":50256,\"hidden_act\":\"gelu_new\",\"max_position_embeddings\":2048,"
     "\"tie_word_embeddings\":true,\"window_size\":256,"
     "\"attention_types\":[[[\"global\",\"local\"],12]],"
     "\"other_keys\":{\"num_layers\":\"num_hidden_layers\",\"num_heads\":\"num_attention_heads\","
     "\"activation_function\":\"hidden_act\"}}",
     read_gpt_neo},
    {"biogpt", &biogpt_names,
     "{\"eos_token_id\":2,\"hidden_act\":\"gelu\",\"max_position_embeddings\":1024,"
     "\"tie_word_embeddings\":true}",
     read_biogpt},
    {"xglm", &xglm_names,
     "{\"eos_token_id\":2,\"hidden_act\":\"gelu\",\"max_position_embeddings\":2048,"
     "\"tie_word_embeddings\":true,\"other_keys\":{\"d_model\":\"hidden_size\","
     "\"ffn_dim\":\"intermediate_size\",\"num_layers\":\"num_hidden_layers\","
     "\"attention_heads\":\"num_attention_heads\",\"activation_function\":\"hidden_act\"}}",
     read_xglm},
    {"opt", &opt_names,
     "{\"eos_token_id\":2,\"hidden_act\":\"relu\",\"tie_word_embeddings\":true,"
     "\"other_keys\":{\"ffn_dim\":\"intermediate_size\",\"activation_function\":\"hidden_act\"}}",
     read_opt},
    {"gpt_neox", &neox_names, "{\"eos_token_id\":2,\"hidden_act\":\"gelu\"}", read_gpt_neox},
    {"falcon", &falcon_names,
     "{\"eos_token_id\":11,\"hidden_act\":\"gelu\",\"tie_word_embeddings\":true,\"other_keys\":{"
     "\"n_embed\":\"hidden_size\",\"ffn_hidden_size\":\"intermediate_size\","
     "\"activation\":\"hidden_act\"}}",
     read_falcon},
    {"gptj", &gptj_names, "{\"eos_token_id\":50256,\"hidden_act\":\"gelu_new\"," GPT2_KEYS "}",
     read_gptj},
    {"codegen", &codegen_names,
     "{\"eos_token_id\":50256,\"hidden_act\":\"gelu_new\"," GPT2_KEYS "}", read_codegen},
};
const struct family_table families_classic = {rows, sizeof rows / sizeof rows[0]};
