// SPDX-License-Identifier: Apache-2.0
/* Encoders: every row attends to all rows of its text. They serve as embedding models, rerankers
 * and classifiers, and have no output head. */
#include "engine/base/json.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/model/family_parts.h"

#include <string.h>

#define BERT_NAMES                                                                                 \
    .layers = "encoder.layer.", .embed = "model.embeddings.word_embeddings",                       \
    .positions = "model.embeddings.position_embeddings",                                           \
    .token_types = "model.embeddings.token_type_embeddings",                                       \
    .embed_norm = "model.embeddings.LayerNorm", .q = "attention.self.query",                       \
    .k = "attention.self.key", .v = "attention.self.value", .o = "attention.output.dense",         \
    .ffn_norm = "attention.output.LayerNorm", .up = "intermediate.dense", .down = "output.dense",  \
    .attn_norm = "output.LayerNorm"

#define POOLER_LABELS .label_dense = "model.pooler.dense", .labels = "classifier"

static const struct tensor_names bert_names = {BERT_NAMES, POOLER_LABELS};

static const struct tensor_names roberta_names = {BERT_NAMES, .label_dense = "classifier.dense",
                                                  .labels = "classifier.out_proj"};

static const struct tensor_names distilbert_names = {.layers = "transformer.layer.",
                                                     .embed = "model.embeddings.word_embeddings",
                                                     .positions =
                                                         "model.embeddings.position_embeddings",
                                                     .embed_norm = "model.embeddings.LayerNorm",
                                                     .q = "attention.q_lin",
                                                     .k = "attention.k_lin",
                                                     .v = "attention.v_lin",
                                                     .o = "attention.out_lin",
                                                     .ffn_norm = "sa_layer_norm",
                                                     .up = "ffn.lin1",
                                                     .down = "ffn.lin2",
                                                     .attn_norm = "output_layer_norm",
                                                     .label_dense = "pre_classifier",
                                                     .labels = "classifier"};

static const struct tensor_names nomic_names = {.layers = "encoder.layers.",
                                                .embed = "model.embeddings.word_embeddings",
                                                .token_types =
                                                    "model.embeddings.token_type_embeddings",
                                                .embed_norm = "model.emb_ln",
                                                .qkv = "attn.Wqkv",
                                                .o = "attn.out_proj",
                                                .ffn_norm = "norm1",
                                                .gate = "mlp.fc12",
                                                .up = "mlp.fc11",
                                                .down = "mlp.fc2",
                                                .attn_norm = "norm2",
                                                POOLER_LABELS};

static const struct tensor_names gte_names = {.layers = "encoder.layer.",
                                              .embed = "model.embeddings.word_embeddings",
                                              .token_types =
                                                  "model.embeddings.token_type_embeddings",
                                              .embed_norm = "model.embeddings.LayerNorm",
                                              .qkv = "attention.qkv_proj",
                                              .o = "attention.o_proj",
                                              .ffn_norm = "attn_ln",
                                              .gate_up = "mlp.up_gate_proj",
                                              .down = "mlp.down_proj",
                                              .attn_norm = "mlp_ln",
                                              POOLER_LABELS};

static const struct tensor_names modernbert_names = {.embed = "model.embeddings.tok_embeddings",
                                                     .embed_norm = "model.embeddings.norm",
                                                     .final_norm = "model.final_norm",
                                                     .attn_norm = "attn_norm",
                                                     .ffn_norm = "mlp_norm",
                                                     .qkv = "attn.Wqkv",
                                                     .o = "attn.Wo",
                                                     .gate_up = "mlp.Wi",
                                                     .down = "mlp.Wo",
                                                     .label_dense = "head.dense",
                                                     .label_norm = "head.norm",
                                                     .labels = "classifier"};

static const struct tensor_names eurobert_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES,
                                                   .label_dense = "dense", .labels = "classifier"};

/* The number of classes of a classifier; 0: the checkpoint is none. */
static int32_t n_labels(const struct json *j)
{
    const char *class = or_empty(json_string(json_first(json_get(j, "architectures"))));
    const struct json *names = json_get(j, "id2label");
    const int64_t n =
        json_is(names, JSON_OBJECT) ? (int64_t)json_count(names) : json_get_int(j, "num_labels", 2);
    return strstr(class, "ForSequenceClassification") ? (int32_t)n : 0;
}

/* What all of them share. Heads have keys of their own and fill the hidden size. */
static enum status read_encoder(const struct json *j, const char *eps_key, double eps,
                                struct model_config *c, struct err *err)
{
    TRY(family_must_be(j, "is_decoder", false, err));
    TRY(family_must_be(j, "add_cross_attention", false, err));
    if (c->hidden % c->n_heads || c->head_dim != c->hidden / c->n_heads) {
        return err_set(err, ERR_FORMAT,
                       "config.json: %d heads of %d (head_dim) are not the hidden size, %d, which "
                       "this family requires",
                       c->n_heads, c->head_dim, c->hidden);
    }
    c->bidirectional = true;
    c->labels.n = n_labels(j);
    c->labels.act = POOL_ACT_TANH;
    c->n_kv_heads = c->n_heads;
    c->norm_kind = NORM_LAYER;
    c->norm_eps = (float)json_get_number(j, eps_key, eps);
    return OK;
}

/* Norms follow the sums, and have biases. */
static enum status read_post_norms(const struct json *j, double eps, struct model_config *c,
                                   struct err *err)
{
    TRY(read_encoder(j, "layer_norm_eps", eps, c, err));
    c->norm_place = NORM_SUM;
    c->norms_replace = true;
    c->norm_bias = true;
    return OK;
}

static enum status token_types(const struct json *j, int64_t usual, struct model_config *c,
                               struct err *err)
{
    const int64_t n = json_get_int(j, "type_vocab_size", usual);
    TRY(family_positive("type_vocab_size", n, 1 << 16, err));
    c->n_token_types = (int32_t)n;
    return OK;
}

/* `first`: rows of the table of positions that no token has, before the others. */
static enum status learned_positions(const struct json *j, int64_t first, struct model_config *c,
                                     struct err *err)
{
    const char *kind = or_text(json_get_string(j, "position_embedding_type"), "absolute");
    if (strcmp(kind, "absolute") != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: the position_embedding_type '%.40s' is not supported", kind);
    }
    if (first < 0 || first >= c->max_pos) {
        return err_set(err, ERR_FORMAT,
                       "config.json: a pad_token_id of %lld leaves none of %d positions",
                       (long long)first - 1, c->max_pos);
    }
    c->first_position = (int32_t)first;
    c->n_positions = c->max_pos - c->first_position;
    c->full_without_rope = true;
    return OK;
}

static enum status read_bert_layers(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_post_norms(j, 1e-12, c, err));
    c->gated = false;
    c->q_bias = c->o_bias = c->mlp_bias = true;
    return token_types(j, 2, c, err);
}

static enum status read_bert(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_bert_layers(j, c, err));
    return learned_positions(j, 0, c, err);
}

/* Positions are counted from the one after that of padding. */
static enum status read_roberta(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_bert_layers(j, c, err));
    return learned_positions(j, json_get_int(j, "pad_token_id", 1) + 1, c, err);
}

static enum status read_distilbert(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_post_norms(j, 1e-12, c, err));
    c->norm_eps = 1e-12f;
    c->labels.act = POOL_ACT_RELU;
    c->gated = false;
    c->q_bias = c->o_bias = c->mlp_bias = true;
    return learned_positions(j, 0, c, err);
}

/* The switches of released configs, which describe many other models, too. */
static enum status check_released_nomic(const struct json *j, struct err *err)
{
    static const char *const off[] = {
        "prenorm",      "parallel_block", "qkv_proj_bias",          "mlp_fc1_bias",
        "mlp_fc2_bias", "use_rms_norm",   "rotary_emb_interleaved", "causal"};
    const char *act = or_text(json_get_string(j, "activation_function"), "swiglu");
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        TRY(family_must_be(j, off[i], false, err));
    }
    if (strcmp(act, "swiglu") != 0 || json_get_number(j, "rotary_emb_fraction", 1.0) < 1.0 ||
        json_type(json_get(j, "rotary_scaling_factor")) != JSON_NULL ||
        json_get_int(j, "moe_every_n_layers", 0) > 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: an activation_function other than swiglu, a "
                       "rotary_emb_fraction below 1, a rotary_scaling_factor and "
                       "moe_every_n_layers are not supported");
    }
    return OK;
}

/* Ropes, gated MLPs and no biases, but for those of norms. Released configs have other names, and
 * more positions than the model was trained for. */
static enum status read_nomic(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t trained = json_get_int(j, "max_trained_positions", c->max_pos);
    TRY(check_released_nomic(j, err));
    TRY(read_post_norms(j, 1e-12, c, err));
    TRY(family_positive("max_trained_positions", trained, MAX_POSITIONS, err));
    c->max_pos = lesser((int32_t)trained, c->max_pos);
    if (json_get(j, "rotary_emb_base")) {
        c->rope_theta[0] = json_get_number(j, "rotary_emb_base", 1000.0);
    }
    return token_types(j, 2, c, err);
}

/* The same with biases, except those of gates. */
static enum status read_gte(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_post_norms(j, 1e-12, c, err));
    c->q_bias = c->o_bias = c->down_bias = c->up_first = true;
    return json_get_int(j, "type_vocab_size", 1) == 0 ? OK : token_types(j, 1, c, err);
}

/* The window is that of one direction, beside the row itself. */
static enum status modernbert_windows(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t both = json_get_int(j, "local_attention", 128);
    (void)err;
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (c->layers[i].window > 0) {
            c->layers[i].window = (int32_t)(both / 2) + 1;
        }
    }
    return OK;
}

/* The bases of the two ropes are in rope_parameters, or in older files keys of their own. */
static void modernbert_ropes(const struct json *j, struct model_config *c)
{
    static const struct {
        const char *layers, *key;
        double usual;
    } rows[] = {{"full_attention", "global_rope_theta", 160000.0},
                {"sliding_attention", "local_rope_theta", 10000.0}};
    c->n_ropes = 2;
    for (int i = 0; i < 2; i++) {
        const struct json *params = json_get(rope_params(j), rows[i].layers);
        const double base = json_get_number(j, rows[i].key, rows[i].usual);
        c->rope_theta[i] = json_get_number(params, "rope_theta", base);
    }
}

static enum status modernbert_labels(const struct json *j, struct model_config *c, struct err *err)
{
    const char *act = or_text(json_get_string(j, "classifier_activation"), "gelu");
    const char *pooling = or_text(json_get_string(j, "classifier_pooling"), "cls");
    c->labels.mean = strcmp(pooling, "mean") == 0;
    if (!pool_act_named(act, &c->labels.act) || (!c->labels.mean && strcmp(pooling, "cls") != 0)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: the classifier_activation '%.40s' or the classifier_pooling "
                       "'%.40s' is not supported",
                       act, pooling);
    }
    return OK;
}

/* Norms come before sub-layers. Most layers see only rows nearby, with a rope of their own. */
static enum status read_modernbert(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t every = json_get_int(j, "global_attn_every_n_layers", 3);
    TRY(read_encoder(j, "norm_eps", 1e-5, c, err));
    TRY(modernbert_labels(j, c, err));
    c->norm_bias = json_get_bool(j, "norm_bias", false);
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].window = i % every != 0;
    }
    modernbert_ropes(j, c);
    c->read_layers = modernbert_windows;
    return OK;
}

/* Llama's layers in both directions. A head whose logits are themselves pooled is another one. */
static enum status read_eurobert(const struct json *j, struct model_config *c, struct err *err)
{
    const char *pooling = or_text(json_get_string(j, "classifier_pooling"), "late");
    c->bidirectional = true;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    c->labels.n = n_labels(j);
    c->labels.act = POOL_ACT_GELU;
    c->labels.mean = strcmp(pooling, "mean") == 0;
    if (c->labels.n > 0 && !c->labels.mean && strcmp(pooling, "bos") != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: the classifier_pooling '%.40s' is not supported", pooling);
    }
    return OK;
}

#define BERT_DEFAULTS "\"hidden_act\":\"gelu\",\"max_position_embeddings\":512"
#define ROBERTA_DEFAULTS "{\"pad_token_id\":1," BERT_DEFAULTS "}"

static const struct family rows[] = {
    {"bert", &bert_names, "{" BERT_DEFAULTS "}", read_bert},
    {"roberta", &roberta_names, ROBERTA_DEFAULTS, read_roberta},
    {"xlm-roberta", &roberta_names, ROBERTA_DEFAULTS, read_roberta},
    {"camembert", &roberta_names, ROBERTA_DEFAULTS, read_roberta},
    {"distilbert", &distilbert_names,
     "{\"max_position_embeddings\":512,\"activation\":\"gelu\",\"other_keys\":{\"dim\":\"hidden_"
     "size\",\"n_layers\":\"num_hidden_layers\",\"n_heads\":\"num_attention_heads\",\"hidden_dim\":"
     "\"intermediate_size\",\"activation\":\"hidden_act\"}}",
     read_distilbert},
    {"nomic_bert", &nomic_names,
     "{\"hidden_act\":\"silu\",\"max_position_embeddings\":2048,\"rope_theta\":1000,\"other_keys\":"
     "{"
     "\"n_embd\":\"hidden_size\",\"n_head\":\"num_attention_heads\",\"n_layer\":\"num_hidden_"
     "layers\","
     "\"n_inner\":\"intermediate_size\",\"n_positions\":\"max_position_embeddings\","
     "\"layer_norm_epsilon\":\"layer_norm_eps\"}}",
     read_nomic},
    {"gte", &gte_names,
     "{\"hidden_act\":\"gelu\",\"max_position_embeddings\":8192,\"rope_theta\":160000}", read_gte},
    {"eurobert", &eurobert_names,
     "{\"rms_norm_eps\":1e-5,\"max_position_embeddings\":8192,\"intermediate_size\":3072}",
     read_eurobert},
    {"modernbert", &modernbert_names,
     "{\"hidden_activation\":\"gelu\",\"max_position_embeddings\":8192,\"intermediate_size\":1152,"
     "\"sliding_window\":64}",
     read_modernbert},
};
const struct family_table families_encoder = {rows, sizeof rows / sizeof rows[0]};
