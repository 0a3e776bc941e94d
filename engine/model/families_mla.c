// SPDX-License-Identifier: Apache-2.0
/* Families with multi-head latent attention: DeepSeek and its successors. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

#include <math.h>
#include <string.h>

#define MLA_NAMES                                                                                  \
    .q = "self_attn.q_proj", .correction = "mlp.gate.e_score_correction_bias",                     \
    .q_a = "self_attn.q_a_proj", .q_a_norm = "self_attn.q_a_layernorm",                            \
    .q_b = "self_attn.q_b_proj", .kv_a = "self_attn.kv_a_proj_with_mqa",                           \
    .kv_a_norm = "self_attn.kv_a_layernorm", .kv_b = "self_attn.kv_b_proj",                        \
    .k_b = "self_attn.k_b_proj", .v_b = "self_attn.v_b_proj", .index_q = "self_attn.indexer.wq_b", \
    .index_k = "self_attn.indexer.wk", .index_k_norm = "self_attn.indexer.k_norm",                 \
    .index_weights = "self_attn.indexer.weights_proj"

static const struct tensor_names deepseek_names = {BASE_NAMES, FFN_NAMES, EXPERT_NAMES,
                                                   SHARED_NAMES, MLA_NAMES};

static const struct tensor_names axk1_names = {BASE_NAMES,   FFN_NAMES,
                                               EXPERT_NAMES, SHARED_NAMES,
                                               MLA_NAMES,    .ffn_post_norm = "post_mlp_layernorm"};

static const struct tensor_names hy_v4_names = {BASE_NAMES,
                                                FFN_NAMES,
                                                EXPERT_NAMES,
                                                SHARED_NAMES,
                                                MLA_NAMES,
                                                .sinks = "self_attn.sinks",
                                                .attn_gate = "self_attn.gate_proj",
                                                .hyper_attn = "attn_hc.",
                                                .hyper_ffn = "ffn_hc.",
                                                .hyper_end = "model.hc_head.hc_"};

/* A.X K2 has the gates of attention in the tensor of q, and gates of norms. */
static const struct tensor_names axk2_names = {
    FFN_NAMES,
    EXPERT_NAMES,
    SHARED_NAMES,
    MLA_NAMES,
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .o = "self_attn.o_proj",
    .attn_norm = "input_layernorm.norm",
    .attn_norm_gate = "input_layernorm",
    .ffn_norm = "post_attention_layernorm.norm|post_attention_layernorm",
    .ffn_norm_gate = "post_attention_layernorm",
};

/* Mistral's own names, which transformers saves, too. */
static const struct tensor_names mistral_large_names = {
    .embed = "model.tok_embeddings",
    .final_norm = "model.norm",
    .head = "output",
    .attn_norm = "attention_norm",
    .ffn_norm = "ffn_norm",
    .q = "attention.wq",
    .kv_a = "attention.wkv_a_with_mqa",
    .kv_a_norm = "attention.kv_a_norm",
    .kv_b = "attention.wkv_b",
    .o = "attention.wo",
    .growth_scale = "attention.ssmax_scaling.s",
    .growth_bias = "attention.ssmax_scaling.b",
    .index_q = "attention.indexer.wq_b",
    .index_in_norm = "attention.indexer.q_input_norm",
    .index_k = "attention.indexer.wk",
    .index_k_norm = "attention.indexer.k_norm",
    .index_weights = "attention.indexer.weights_proj",
    .index_growth_scale = "attention.indexer.ssmax_scaling.s",
    .index_growth_bias = "attention.indexer.ssmax_scaling.b",
    .rope_alpha = "model.lerope.alpha",
    .gate = "feed_forward.w1",
    .up = "feed_forward.w3",
    .down = "feed_forward.w2",
    .router = "gate",
    .expert_gate = "experts.%d.w1",
    .expert_up = "experts.%d.w3",
    .expert_down = "experts.%d.w2",
    .shared_gate = "shared_experts.w1",
    .shared_up = "shared_experts.w3",
    .shared_down = "shared_experts.w2",
};

/* Latent attention: the ranks of the
 * projections, and the parts of a head with and without
 * positions. YaRN's temperature applies to both q and k, so its square goes into attn_scale.
 * usual_v: the size of values if the config has none; 0: it must. without_rope: heads may have no
 * part with positions. */
static enum status read_mla(const struct json *j, int64_t usual_v, bool without_rope,
                            struct model_config *c, struct err *err)
{
    int64_t kv_lora = json_get_int(j, "kv_lora_rank", 0);
    int64_t q_lora = json_get_int(j, "q_lora_rank", 0);
    int64_t nope = json_get_int(j, "qk_nope_head_dim", 0);
    int64_t rope = json_get_int(j, "qk_rope_head_dim", 0);
    int64_t v = json_get_int(j, "v_head_dim", usual_v);
    TRY(family_positive("kv_lora_rank", kv_lora, 8192, err));
    TRY(family_positive("qk_nope_head_dim", nope, 4096, err));
    if (rope != 0 || !without_rope) {
        TRY(family_positive("qk_rope_head_dim", rope, 2 * MAX_ROPE_PAIRS, err));
    }
    TRY(family_positive("v_head_dim", v, 4096, err));
    if (q_lora != 0) {
        TRY(family_positive("q_lora_rank", q_lora, 1 << 16, err));
    }
    c->kv_lora = (int32_t)kv_lora;
    c->q_lora = (int32_t)q_lora;
    c->nope_dim = (int32_t)nope;
    c->rope_dim = (int32_t)rope;
    c->v_dim = (int32_t)v;
    c->mla_norm_eps = 1e-6f; // does not depend on rms_norm_eps
    c->o_bias = json_get_bool(j, "attention_bias", false);
    c->rope[0].desc.interleaved = json_get_bool(j, "rope_interleave", true);
    c->attn_scale = (float)(1.0 / sqrt((double)(nope + rope)));
    const struct json *scaling = rope_params(j);
    double all = json_get_number(scaling, "mscale_all_dim", 0.0);
    double factor = json_get_number(scaling, "factor", 1.0);
    if (all != 0.0 && factor > 1.0 && strcmp(rope_type(scaling), "default") != 0) {
        double m = 0.1 * all * log(factor) + 1.0;
        c->attn_scale *= (float)(m * m);
    }
    return OK;
}

enum status family_mla(const struct json *j, struct model_config *c, struct err *err)
{
    return read_mla(j, 0, false, c, err);
}

enum status family_mla_without_positions(const struct json *j, struct model_config *c,
                                         struct err *err)
{
    TRY(read_mla(j, 0, true, c, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].rope = -1;
    }
    return OK;
}

static enum status read_deepseek(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_mla(j, c, err));
    if (json_get_int(j, "n_routed_experts", 0) == 0) {
        return OK;
    }
    TRY(family_experts(j, "n_routed_experts", "moe_intermediate_size", c, err));
    TRY(family_every_freq(j, c, err));
    TRY(family_shared_experts(j, "n_shared_experts", c, err));
    return family_routing(j, c, err);
}

static enum status read_deepseek_v2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek(j, c, err));
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    const char *method = json_get_string(j, "topk_method");
    if (!method || strcmp(method, "greedy") == 0) {
        c->n_group = c->topk_group = 1;
    } else if (strcmp(method, "group_limited_greedy") != 0) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: unknown topk_method '%s'", method);
    }
    c->scoring = MOE_SOFTMAX_TOPK; // transformers never renormalises in this case
    return OK;
}

static enum status read_deepseek_v3(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek(j, c, err));
    if (c->n_experts > 0) {
        return family_routing_v3(j, c, err);
    }
    return OK;
}

static enum status read_glm4_moe_lite(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek_v3(j, c, err));
    return family_dense_layers(j, json_get_int(j, "first_k_dense_replace", 1), c, err);
}

/* The layers that have an indexer, by index_topk_freq: all, or every freq-th after the first ones.
 */
static void index_by_freq(const struct json *j, struct model_config *c)
{
    const int64_t freq = json_get_int(j, "index_topk_freq", 1);
    const int64_t offset = json_get_int(j, "index_skip_topk_offset", 2);
    for (int32_t i = 0; i < c->n_layers; i++) {
        const bool full = freq < 2 || i < offset || (i - offset + 1) % freq == 0;
        c->layers[i].index = full ? 0 : -1;
    }
}

/* A list of words: "full" layers have an indexer. */
static enum status index_by_words(const struct json *list, const char *key, struct model_config *c,
                                  struct err *err)
{
    const struct json *v = json_first(list);
    for (int32_t i = 0; i < c->n_layers; i++, v = json_next(v)) {
        const char *word = json_string(v);
        const bool full = word && strcmp(word, "full") == 0;
        if (!full && (!word || strcmp(word, "shared") != 0)) {
            return err_set(err, ERR_FORMAT,
                           "config.json: %s must be \"full\" or \"shared\" for each layer", key);
        }
        c->layers[i].index = full ? 0 : -1;
    }
    return OK;
}

/* The same as letters, F and S. */
static enum status index_by_letters(const char *letters, struct model_config *c, struct err *err)
{
    const size_t n = strspn(letters, "FS");
    if (letters[n] || n < (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT,
                       "config.json: index_topk_pattern must have an F or an S for each layer");
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].index = letters[i] == 'F' ? 0 : -1;
    }
    return OK;
}

static enum status read_index_layers(const struct json *j, struct model_config *c, struct err *err)
{
    static const char pattern[] = "index_topk_pattern", types[] = "indexer_types";
    const char *letters = json_get_string(j, pattern);
    if (json_is(json_get(j, types), JSON_ARRAY)) {
        TRY(index_by_words(json_get(j, types), types, c, err));
    } else if (json_is(json_get(j, pattern), JSON_ARRAY)) {
        TRY(index_by_words(json_get(j, pattern), pattern, c, err));
    } else if (letters) {
        TRY(index_by_letters(letters, c, err));
    } else {
        index_by_freq(j, c);
    }
    return OK;
}

static enum status first_is_full(const struct model_config *c, struct err *err)
{
    if (c->layers[0].index < 0) {
        return err_set(err, ERR_FORMAT,
                       "config.json: the first layer shares the keys that an earlier layer picks");
    }
    return OK;
}

/* DeepSeek V3.2's indexers. Constant factors of their scores have no effect, so they are left
 * out. */
enum status family_indexer(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_size(j, "index_topk", MAX_INDEX_PICKS, &c->index.top_k, err));
    TRY(family_size(j, "index_n_heads", 1024, &c->index.n_heads, err));
    TRY(family_size(j, "index_head_dim", MAX_INDEX_DIM, &c->index.head_dim, err));
    if (c->index.head_dim < c->rope_dim) {
        return err_set(err, ERR_FORMAT,
                       "config.json: index_head_dim is less than qk_rope_head_dim");
    }
    c->index.norm_kind = NORM_LAYER;
    c->index.norm_eps = 1e-6f; // does not depend on rms_norm_eps
    c->index.interleaved = json_get_bool(j, "indexer_rope_interleave", false);
    return read_index_layers(j, c, err);
}

static enum status read_indexer(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_indexer(j, c, err));
    return first_is_full(c, err);
}

static enum status need_q_lora(const struct model_config *c, struct err *err)
{
    if (c->q_lora == 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: sparse attention without q_lora_rank is not supported in this "
                       "family");
    }
    return OK;
}

/* DeepSeek V3.2 and GLM-5. */
static enum status read_sparse(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek_v3(j, c, err));
    TRY(need_q_lora(c, err));
    TRY(read_indexer(j, c, err));
    if (json_get_int(j, "moe_layer_freq", 1) != 1) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: moe_layer_freq other than 1 is not supported");
    }
    return family_dense_layers(j, json_get_int(j, "first_k_dense_replace", 3), c, err);
}

/* Several streams as the residual, by one form of hyper-connections for both sub-layers. */
enum status family_hyper(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_size(j, "hc_mult", MAX_HYPER, &c->hyper.n, err));
    c->hyper.eps = (float)json_get_number(j, "hc_eps", 1e-6);
    return OK;
}

/* GLM-5's attention with sinks, gates and rotated halves, the last ones of an index head; experts
 * with limited gates. */
static enum status read_hy_v4(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek_v3(j, c, err));
    TRY(need_q_lora(c, err));
    TRY(read_indexer(j, c, err));
    TRY(family_hyper(j, c, err));
    c->hyper.magnitude = (float)json_get_number(j, "hc_magnitude", 2.0);
    c->hyper.after_eps = c->hyper.eps;
    c->rope[0].desc.interleaved = c->index.interleaved = false;
    c->index.rope_at = c->index.head_dim - c->rope_dim;
    c->index.norm_eps = c->norm_eps;
    c->sinks = true;
    c->attn_gate = ATTN_GATE_WIDE;
    const float limit = (float)json_get_number(j, "swiglu_limit", 0.0);
    if (!(limit > 0.0f)) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: swiglu_limit must be above 0");
    }
    c->limit_before_act = true;
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].experts_limit = limit;
    }
    return family_dense_layers(j, 1, c, err);
}

/* The language part of its wrapper has one epsilon for all norms, and neighbours as pairs. */
static enum status read_hy_v4_vl(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_hy_v4(j, c, err));
    c->mla_norm_eps = c->norm_eps;
    c->rope[0].desc.interleaved = c->index.interleaved = true;
    return OK;
}

/* Layers with experts have a norm of their result. mlp_layer_types takes precedence over the
 * older keys. */
static enum status read_axk1(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek_v3(j, c, err));
    c->mlp_without_post_norm = c->correction_may_lack = true;
    if (json_is(json_get(j, "mlp_layer_types"), JSON_ARRAY)) {
        return family_dense_layers(j, 0, c, err);
    }
    return OK;
}

/* DeepSeek V3.2's attention with a gate for each output of a head, and gates of norms. The product
 * of the queries and the gates reads the low-rank query both normed and as it was. */
static enum status read_axk2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek_v3(j, c, err));
    TRY(need_q_lora(c, err));
    TRY(read_indexer(j, c, err));
    TRY(family_size(j, "gated_norm_rank", 1 << 16, &c->norm_gate_rank, err));
    c->attn_gate = ATTN_GATE_WIDE;
    c->q_twice = true;
    if (json_is(json_get(j, "mlp_layer_types"), JSON_ARRAY)) {
        return family_dense_layers(j, 0, c, err);
    }
    return OK;
}

/* Mistral's router: a softmax, whose picks are renormalised. */
static enum status mistral_routing(bool renormalise, struct model_config *c, struct err *err)
{
    c->scoring = MOE_SOFTMAX_TOPK;
    c->renormalise = renormalise;
    if (c->n_group > 1) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: n_group above 1 is not supported");
    }
    return OK;
}

/* DeepSeek's attention with queries scaled by position, and with a different router. */
static enum status read_mistral4(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek(j, c, err));
    TRY(family_query_growth(j, c, err));
    return mistral_routing(json_get_bool(j, "norm_topk_prob", true), c, err);
}

/* The last layer before `layer`, with positions if it has, whose keys other layers read; -1: none.
 */
static int32_t last_source(const struct model_config *c, const bool *is_source, int32_t layer)
{
    int32_t i = layer - 1;
    while (i >= 0 && !(is_source[i] && c->layers[i].rope == c->layers[layer].rope)) {
        i--;
    }
    return i;
}

/* The layers whose keys others read. transformers keeps the keys that were last stored for layers
 * with positions, and those for layers without, so it cannot read those of any other layer. */
static enum status read_sources(const struct json *j, struct model_config *c, struct err *err)
{
    static const char key[] = "kv_source_layers";
    const struct json *list = json_get(j, key), *item = json_first(list);
    bool is_source[MAX_LAYERS] = {false};
    if (item && json_count(list) != (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT, "config.json: %s must have an entry for each layer", key);
    }
    for (int32_t i = 0; item && i < c->n_layers; i++, item = json_next(item)) {
        int64_t of = i;
        json_int64(item, &of);
        if (of > i || c->layers[of].kv_of != of) {
            return err_set(
                err, ERR_FORMAT,
                "config.json: %s: layer %d must read its own keys or those of an earlier "
                "layer that does",
                key, i);
        }
        c->layers[i].kv_of = (int32_t)of;
        is_source[of] = is_source[of] || of != i;
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        const int32_t of = c->layers[i].kv_of;
        if (of != i && of != last_source(c, is_source, i)) {
            return err_set(
                err, ERR_UNSUPPORTED,
                "config.json: %s: layer %d must read the keys of the last layer before it "
                "whose keys others read and which has positions if it has",
                key, i);
        }
    }
    return OK;
}

/* GLM-5's sparse attention without low-rank queries. Queries are scaled by position, with weights
 * for each head; some layers have no positions, and some read the keys of another. */
static enum status read_mistral_large4(const struct json *j, struct model_config *c,
                                       struct err *err)
{
    TRY(read_deepseek(j, c, err));
    TRY(mistral_routing(true, c, err));
    TRY(read_indexer(j, c, err));
    TRY(family_must_be(j, "norm_topk_prob", true, err));
    if (c->q_lora != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: q_lora_rank is not supported in this family");
    }
    if (json_get_int(j, "moe_layer_freq", 1) != 1) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: moe_layer_freq other than 1 is not supported");
    }
    c->mla_norm_eps = c->norm_eps;
    c->final_softcap = (float)json_get_number(j, "final_logit_softcapping", 30.0);
    c->heads_grow = true;
    TRY(family_no_rope_layers(j, c, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].latent_only = c->layers[i].rope < 0;
    }
    TRY(read_sources(j, c, err));
    return family_dense_layers(j, json_get_int(j, "first_k_dense_replace", 1), c, err);
}

/* DeepSeek V3's attention with dense layers. */
static enum status read_youtu(const struct json *j, struct model_config *c, struct err *err)
{
    c->tied = true;
    return family_mla(j, c, err);
}

/* The same with scaled embeddings, residuals and logits, and rotated pairs that are halves apart.
 */
static enum status read_minicpm3(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_mla(j, c->hidden / c->n_heads, false, c, err));
    c->rope[0].desc.interleaved = false;
    c->tied = true;
    c->embed_scale = (float)json_get_number(j, "scale_emb", 12.0);
    c->embed_scale_rounded = true;
    const double depth = sqrt(c->n_layers);
    c->residual_scale = (float)(json_get_number(j, "scale_depth", depth) / depth);
    c->logit_scale = (float)(json_get_number(j, "dim_model_base", c->hidden) / c->hidden);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    return OK;
}

#define V3_DEFAULTS                                                                                \
    "{\"eos_token_id\":1,"                                                                         \
    "\"n_shared_experts\":1,\"first_k_dense_replace\":3,\"n_group\":8,\"topk_group\":4,"           \
    "\"num_experts_per_tok\":8,\"routed_scaling_factor\":2.5,\"max_position_embeddings\":4096}"

#define SPARSE_DEFAULTS                                                                            \
    "\"kv_lora_rank\":512,\"qk_rope_head_dim\":64,\"n_routed_experts\":256,\"n_shared_experts\":"  \
    "1,"                                                                                           \
    "\"num_experts_per_tok\":8,\"moe_intermediate_size\":2048,\"routed_scaling_factor\":2.5,"      \
    "\"first_k_dense_replace\":3,\"index_topk\":2048,\"index_head_dim\":128,"

#define HY_V4_DEFAULTS                                                                             \
    "\"rms_norm_eps\":1e-5,\"max_position_embeddings\":262144,\"kv_lora_rank\":512,"               \
    "\"qk_rope_head_dim\":64,\"qk_nope_head_dim\":192,\"v_head_dim\":256,"                         \
    "\"n_routed_experts\":256,\"n_shared_experts\":1,\"num_experts_per_tok\":8,"                   \
    "\"routed_scaling_factor\":2.827,\"index_topk\":2048,\"index_head_dim\":128,"                  \
    "\"index_topk_freq\":4,\"hc_mult\":4,\"swiglu_limit\":10,"                                     \
    "\"other_keys\":{\"num_local_experts\":\"n_routed_experts\"},"

#define LARGE4_DEFAULTS                                                                            \
    "{\"eos_token_id\":2,\"rms_norm_eps\":1e-5,\"moe_intermediate_size\":6144,"                    \
    "\"n_shared_experts\":1,\"n_routed_experts\":128,\"num_experts_per_tok\":4,"                   \
    "\"kv_lora_rank\":512,\"qk_rope_head_dim\":64,\"qk_nope_head_dim\":64,\"v_head_dim\":128,"     \
    "\"max_position_embeddings\":1048576,\"index_topk\":2048,\"index_head_dim\":128,"              \
    "\"index_n_heads\":32,\"indexer_rope_interleave\":true,\"first_k_dense_replace\":1,"           \
    "\"rope_of_class\":{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"factor\":2048,"              \
    "\"original_max_position_embeddings\":512,\"attention_factor\":1}}"

static const struct family rows[] = {
    {"deepseek_v2", &deepseek_names, "{\"eos_token_id\":2,\"n_shared_experts\":2}",
     read_deepseek_v2},
    {"deepseek_v3", &deepseek_names, V3_DEFAULTS, read_deepseek_v3},
    {"kimi_k2", &deepseek_names, V3_DEFAULTS, read_deepseek_v3},
    {"kimi_k25", &deepseek_names, V3_DEFAULTS, read_deepseek_v3},
    {"deepseek_v32", &deepseek_names,
     "{\"eos_token_id\":1," SPARSE_DEFAULTS "\"n_group\":8,\"topk_group\":4,"
     "\"max_position_embeddings\":163840,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,"
     "\"v_head_dim\":128,\"index_n_heads\":64}",
     read_sparse},
    {"glm_moe_dsa", &deepseek_names,
     "{\"eos_token_id\":1," SPARSE_DEFAULTS "\"rms_norm_eps\":1e-5,"
     "\"max_position_embeddings\":202752,\"q_lora_rank\":2048,\"qk_nope_head_dim\":192,"
     "\"v_head_dim\":256,\"index_n_heads\":32,\"indexer_rope_interleave\":true}",
     read_sparse},
    {"hy_v4", &hy_v4_names,
     "{\"eos_token_id\":120025," HY_V4_DEFAULTS "\"q_lora_rank\":1536,\"index_n_heads\":16}",
     read_hy_v4},
    {"hy_v4_vl_text", &hy_v4_names,
     "{\"eos_token_id\":120025," HY_V4_DEFAULTS "\"q_lora_rank\":2048,\"index_n_heads\":32}",
     read_hy_v4_vl},
    {"sarvam_mla", &deepseek_names,
     "{\"eos_token_id\":1,\"max_position_embeddings\":4096,\"kv_lora_rank\":512,"
     "\"qk_rope_head_dim\":64,\"qk_nope_head_dim\":128,\"v_head_dim\":128,"
     "\"n_routed_experts\":128,\"n_shared_experts\":1,\"first_k_dense_replace\":1,"
     "\"num_experts_per_tok\":8,\"moe_intermediate_size\":2048,\"routed_scaling_factor\":2.5,"
     "\"other_keys\":{\"num_experts\":\"n_routed_experts\","
     "\"num_local_experts\":\"n_routed_experts\","
     "\"num_shared_experts\":\"n_shared_experts\"}}",
     read_deepseek_v3},
    {"axk1", &axk1_names,
     "{\"eos_token_id\":163691,\"max_position_embeddings\":32768,\"kv_lora_rank\":512,"
     "\"q_lora_rank\":1536,\"qk_rope_head_dim\":64,\"qk_nope_head_dim\":128,\"v_head_dim\":128,"
     "\"n_routed_experts\":192,\"n_shared_experts\":1,\"first_k_dense_replace\":1,\"n_group\":"
     "8,"
     "\"topk_group\":4,\"num_experts_per_tok\":8,\"moe_intermediate_size\":2048,"
     "\"routed_scaling_factor\":2.5}",
     read_axk1},
    {"glm4_moe_lite", &deepseek_names,
     "{\"eos_token_id\":1,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":202752,"
     "\"kv_lora_rank\":512,\"q_lora_rank\":768,\"qk_rope_head_dim\":64,\"qk_nope_head_dim\":"
     "192,"
     "\"v_head_dim\":256,\"n_routed_experts\":64,\"n_shared_experts\":1,\"num_experts_per_"
     "tok\":4,"
     "\"moe_intermediate_size\":1536,\"routed_scaling_factor\":1.8,\"num_nextn_predict_"
     "layers\":1}",
     read_glm4_moe_lite},
    {"youtu", &deepseek_names,
     "{\"eos_token_id\":128001,\"num_key_value_heads\":16,\"max_position_embeddings\":131072,"
     "\"kv_lora_rank\":512,\"q_lora_rank\":1536,\"qk_rope_head_dim\":64,\"qk_nope_head_dim\":128,"
     "\"v_head_dim\":128}",
     read_youtu},
    {"minicpm3", &deepseek_names,
     "{\"eos_token_id\":2,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":32768,"
     "\"kv_lora_rank\":256,\"q_lora_rank\":768,\"qk_rope_head_dim\":32,\"qk_nope_head_dim\":64,"
     "\"scale_emb\":12,\"scale_depth\":1.4,\"dim_model_base\":256}",
     read_minicpm3},
    {"mistral4", &deepseek_names,
     "{\"eos_token_id\":2,"
     "\"moe_intermediate_size\":2048,\"n_shared_experts\":1,\"n_routed_experts\":128,"
     "\"num_experts_per_tok\":4,"
     "\"kv_lora_rank\":256,\"q_lora_rank\":1024,\"qk_rope_head_dim\":64,\"qk_nope_head_dim\":"
     "64,"
     "\"v_head_dim\":128,\"max_position_embeddings\":1048576,"
     "\"rope_of_class\":{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"factor\":128,"
     "\"original_max_position_embeddings\":8192,\"mscale\":1,\"mscale_all_dim\":1,"
     "\"llama_4_scaling_beta\":0.1}}",
     read_mistral4},
    {"mistral_large4_text", &mistral_large_names, LARGE4_DEFAULTS, read_mistral_large4},
    {"axk2", &axk2_names,
     "{\"eos_token_id\":163691,\"max_position_embeddings\":131072,\"kv_lora_rank\":128,"
     "\"q_lora_rank\":384,\"qk_rope_head_dim\":32,\"qk_nope_head_dim\":64,\"v_head_dim\":64,"
     "\"n_routed_experts\":128,\"n_shared_experts\":1,\"first_k_dense_replace\":1,"
     "\"num_experts_per_tok\":8,\"moe_intermediate_size\":512,\"routed_scaling_factor\":2.5,"
     "\"index_topk\":2048,\"index_head_dim\":128,\"index_n_heads\":16,\"gated_norm_rank\":16}",
     read_axk2},
};
const struct family_table families_mla = {rows, sizeof rows / sizeof rows[0]};
