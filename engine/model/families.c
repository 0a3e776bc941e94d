/* One row per model family: the names of its tensors, and what it does differently from plain
 * Llama (pre-norm RMSNorm, SwiGLU, no biases, rope on whole heads). A new family is a row here. */
#include "engine/base/json.h"
#include "engine/model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BASE_NAMES                                                                                 \
    .embed = "model.embed_tokens", .final_norm = "model.norm", .head = "lm_head",                  \
    .o = "self_attn.o_proj", .ffn_norm = "post_attention_layernorm",                               \
    .attn_norm = "input_layernorm"
#define QKV_NAMES .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj"
#define FFN_NAMES .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"
#define QK_NORM_NAMES .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"
#define EXPERT_NAMES                                                                               \
    .router = "mlp.gate", .expert_gate = "mlp.experts.%d.gate_proj",                               \
    .expert_up = "mlp.experts.%d.up_proj", .expert_down = "mlp.experts.%d.down_proj"

static const struct tensor_names llama_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES};

static const struct tensor_names mixtral_names = {
    BASE_NAMES, QKV_NAMES, .router = "block_sparse_moe.gate",
    .expert_gate = "block_sparse_moe.experts.%d.w1", .expert_up = "block_sparse_moe.experts.%d.w3",
    .expert_down = "block_sparse_moe.experts.%d.w2"};

static const struct tensor_names qwen2_moe_names = {
    BASE_NAMES, QKV_NAMES, FFN_NAMES, EXPERT_NAMES,
    .shared_gate = "mlp.shared_expert.gate_proj", .shared_up = "mlp.shared_expert.up_proj",
    .shared_down = "mlp.shared_expert.down_proj", .shared_router = "mlp.shared_expert_gate"};

static const struct tensor_names qwen3_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES, QK_NORM_NAMES};

static const struct tensor_names qwen3_moe_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES,
                                                    QK_NORM_NAMES, EXPERT_NAMES};

#define GEMMA_BASE                                                                                 \
    .embed = "model.embed_tokens", .final_norm = "model.norm", .head = "lm_head",                  \
    .o = "self_attn.o_proj", .attn_norm = "input_layernorm",                                       \
    .attn_post_norm = "post_attention_layernorm", .ffn_norm = "pre_feedforward_layernorm",         \
    .ffn_post_norm = "post_feedforward_layernorm"
static const struct tensor_names gemma2_names = {GEMMA_BASE, QKV_NAMES, FFN_NAMES};
static const struct tensor_names gemma3_names = {GEMMA_BASE, QKV_NAMES, FFN_NAMES, QK_NORM_NAMES};

static const struct tensor_names phi3_names = {BASE_NAMES, .qkv = "self_attn.qkv_proj",
                                               .gate_up = "mlp.gate_up_proj",
                                               .down = "mlp.down_proj"};

static const struct tensor_names olmo2_names = {
    QKV_NAMES, FFN_NAMES, QK_NORM_NAMES, .embed = "model.embed_tokens",
    .final_norm = "model.norm", .head = "lm_head", .o = "self_attn.o_proj",
    .attn_post_norm = "post_attention_layernorm", .ffn_post_norm = "post_feedforward_layernorm"};

static const struct tensor_names gpt_oss_names = {
    BASE_NAMES, QKV_NAMES, .sinks = "self_attn.sinks", .router = "mlp.router",
    .experts_gate_up = "mlp.experts.gate_up_proj", .experts_down = "mlp.experts.down_proj",
    .experts_interleaved = true};

static const struct tensor_names deepseek_names = {
    BASE_NAMES, FFN_NAMES, EXPERT_NAMES, .q = "self_attn.q_proj",
    .correction = "mlp.gate.e_score_correction_bias", .q_a = "self_attn.q_a_proj",
    .q_a_norm = "self_attn.q_a_layernorm", .q_b = "self_attn.q_b_proj",
    .kv_a = "self_attn.kv_a_proj_with_mqa", .kv_a_norm = "self_attn.kv_a_layernorm",
    .kv_b = "self_attn.kv_b_proj", .shared_gate = "mlp.shared_experts.gate_proj",
    .shared_up = "mlp.shared_experts.up_proj", .shared_down = "mlp.shared_experts.down_proj"};

static const struct tensor_names starcoder2_names = {BASE_NAMES, QKV_NAMES, .up = "mlp.c_fc",
                                                     .down = "mlp.c_proj"};

static const struct tensor_names stablelm_names = {
    BASE_NAMES, QKV_NAMES, FFN_NAMES, .q_norm = "self_attn.q_layernorm.norms.%d",
    .k_norm = "self_attn.k_layernorm.norms.%d"};

static const struct tensor_names glm4_names = {
    QKV_NAMES, .embed = "model.embed_tokens", .final_norm = "model.norm", .head = "lm_head",
    .o = "self_attn.o_proj", .attn_norm = "input_layernorm",
    .attn_post_norm = "post_self_attn_layernorm", .ffn_norm = "post_attention_layernorm",
    .ffn_post_norm = "post_mlp_layernorm", .gate_up = "mlp.gate_up_proj", .down = "mlp.down_proj"};

/* GLM before the sandwich norms (model_type "glm"). */
static const struct tensor_names glm_names = {BASE_NAMES, QKV_NAMES, .gate_up = "mlp.gate_up_proj",
                                              .down = "mlp.down_proj"};

/* ---- parts that several families share ---------------------------------------------------- */

static void window_on_all(const struct json *j, struct model_config *c)
{
    int32_t window = (int32_t)json_get_int(j, "sliding_window", 0);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].window = window > 0 ? window : 0;
    }
}

static void window_on_even(const struct json *j, struct model_config *c)
{
    window_on_all(j, c);
    for (int32_t i = 1; i < c->n_layers; i += 2) {
        c->layers[i].window = 0;
    }
}

static enum status positive(const char *key, int64_t v, int64_t max, struct err *err)
{
    if (v < 1 || v > max) {
        return err_set(err, ERR_FORMAT, "config.json: %s must be from 1 to %lld", key,
                       (long long)max);
    }
    return OK;
}

/* Experts on every layer; callers then take some back. */
static enum status experts(const struct json *j, const char *count_key, const char *ffn_key,
                           struct model_config *c, struct err *err)
{
    int64_t n = json_get_int(j, count_key, 0), k = json_get_int(j, "num_experts_per_tok", 0);
    if (n == 0) { // transformers 5 writes one name for all
        n = json_get_int(j, "num_local_experts", 0);
    }
    int64_t ffn = json_get_int(j, ffn_key, 0);
    TRY(positive(count_key, n, MAX_EXPERTS, err));
    TRY(positive("num_experts_per_tok", k, n < MAX_PICKS ? n : MAX_PICKS, err));
    TRY(positive(ffn_key, ffn, 1 << 22, err));
    c->n_experts = (int32_t)n;
    c->experts_per_token = (int32_t)k;
    c->moe_ffn = (int32_t)ffn;
    c->n_group = c->topk_group = 1;
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = true;
    }
    return OK;
}

/* Qwen's: sparse unless listed, and only every decoder_sparse_step-th. */
static void qwen_dense_layers(const struct json *j, struct model_config *c)
{
    int64_t step = json_get_int(j, "decoder_sparse_step", 1);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = step > 0 && (i + 1) % step == 0;
    }
    const struct json *dense = json_get(j, "mlp_only_layers");
    for (const struct json *d = json_first(dense); d; d = json_next(d)) {
        int64_t i;
        if (json_int64(d, &i) && i >= 0 && i < c->n_layers) {
            c->layers[i].moe = false;
        }
    }
}

/* Takes the windows back unless they are asked for. */
static void windows_if_used(const struct json *j, struct model_config *c)
{
    for (int32_t i = 0; i < c->n_layers && !json_get_bool(j, "use_sliding_window", false); i++) {
        c->layers[i].window = 0;
    }
}

/* Layers from max_window_layers on see the window. */
static void qwen_windows(const struct json *j, struct model_config *c)
{
    window_on_all(j, c);
    windows_if_used(j, c);
    int64_t full = json_get_int(j, "max_window_layers", 28);
    for (int32_t i = 0; i < c->n_layers && i < full; i++) {
        c->layers[i].window = 0;
    }
}

/* ---- the families ------------------------------------------------------------------------- */

static enum status read_llama(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    return OK;
}

static enum status read_mistral(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    window_on_all(j, c);
    return OK;
}

static enum status read_mixtral(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(experts(j, "num_local_experts", "intermediate_size", c, err));
    window_on_all(j, c);
    c->scoring = MOE_SOFTMAX_TOPK;
    c->renormalise = true;
    return OK;
}

static enum status read_qwen2(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = true;
    qwen_windows(j, c);
    return OK;
}

static enum status read_qwen2_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(experts(j, "num_experts", "moe_intermediate_size", c, err));
    int64_t shared = json_get_int(j, "shared_expert_intermediate_size", 0);
    TRY(positive("shared_expert_intermediate_size", shared, 1 << 22, err));
    c->shared_ffn = (int32_t)shared;
    c->shared_gate = true;
    c->q_bias = json_get_bool(j, "qkv_bias", true);
    c->renormalise = json_get_bool(j, "norm_topk_prob", false);
    qwen_dense_layers(j, c);
    window_on_all(j, c);
    windows_if_used(j, c);
    int64_t windows = json_get_int(j, "max_window_layers", 28); // here every other one before it
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].window = i % 2 == 0 && i < windows ? c->layers[i].window : 0;
    }
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

static enum status read_qwen3_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_qwen3(j, c, err));
    window_on_all(j, c);
    windows_if_used(j, c);
    TRY(experts(j, "num_experts", "moe_intermediate_size", c, err));
    c->renormalise = json_get_bool(j, "norm_topk_prob", false);
    qwen_dense_layers(j, c);
    return OK;
}

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
    window_on_even(j, c);
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
    window_on_all(j, c);
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].window = (i + 1) % pattern ? c->layers[i].window : 0;
    }
    return OK;
}

static enum status read_phi3(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    window_on_all(j, c);
    return OK;
}

static enum status read_olmo2(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->norm_place = NORM_POST;
    c->qk_norm = QK_NORM_WIDTH;
    return OK;
}

static enum status read_granite(const struct json *j, struct model_config *c, struct err *err)
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

static enum status read_gpt_oss(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(experts(j, "num_local_experts", "intermediate_size", c, err));
    c->scoring = MOE_TOPK_SOFTMAX;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", true);
    c->router_bias = c->experts_biased = c->sinks = true;
    c->act = ACT_GPT_OSS;
    c->act_shape = (struct act_shape){
        .limit = (float)json_get_number(j, "swiglu_limit", (double)ACT_SHAPE_PUBLISHED.limit),
        .alpha = (float)json_get_number(j, "swiglu_alpha", (double)ACT_SHAPE_PUBLISHED.alpha)};
    window_on_even(j, c);
    return OK;
}

static enum status read_mla(const struct json *j, struct model_config *c, struct err *err)
{
    int64_t kv_lora = json_get_int(j, "kv_lora_rank", 0), q_lora = json_get_int(j, "q_lora_rank", 0);
    int64_t nope = json_get_int(j, "qk_nope_head_dim", 0);
    int64_t rope = json_get_int(j, "qk_rope_head_dim", 0);
    int64_t v = json_get_int(j, "v_head_dim", 0);
    TRY(positive("kv_lora_rank", kv_lora, 8192, err));
    TRY(positive("qk_nope_head_dim", nope, 4096, err));
    TRY(positive("qk_rope_head_dim", rope, 2 * MAX_ROPE_PAIRS, err));
    TRY(positive("v_head_dim", v, 4096, err));
    if (q_lora != 0) {
        TRY(positive("q_lora_rank", q_lora, 1 << 16, err));
    }
    c->kv_lora = (int32_t)kv_lora;
    c->q_lora = (int32_t)q_lora;
    c->nope_dim = (int32_t)nope;
    c->rope_dim = (int32_t)rope;
    c->v_dim = (int32_t)v;
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

static enum status read_deepseek(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_mla(j, c, err));
    if (json_get_int(j, "n_routed_experts", 0) == 0) {
        return OK;
    }
    TRY(experts(j, "n_routed_experts", "moe_intermediate_size", c, err));
    int64_t dense = json_get_int(j, "first_k_dense_replace", 0);
    int64_t freq = json_get_int(j, "moe_layer_freq", 1);
    TRY(positive("moe_layer_freq", freq, MAX_LAYERS, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].moe = i >= dense && i % freq == 0;
    }
    int64_t shared = json_get_int(j, "n_shared_experts", 0);
    if (shared < 0 || shared > 64) {
        return err_set(err, ERR_FORMAT, "config.json: n_shared_experts must be from 0 to 64");
    }
    c->shared_ffn = (int32_t)shared * c->moe_ffn;
    c->routed_scale = (float)json_get_number(j, "routed_scaling_factor", 1.0);
    c->n_group = (int32_t)json_get_int(j, "n_group", 1);
    c->topk_group = (int32_t)json_get_int(j, "topk_group", 1);
    if (c->n_group < 1 || c->n_experts % c->n_group || c->topk_group < 1 ||
        c->topk_group > c->n_group) {
        return err_set(err, ERR_FORMAT, "config.json: n_group and topk_group do not fit %d experts",
                       c->n_experts);
    }
    return OK;
}

static enum status read_deepseek_v2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek(j, c, err));
    c->mlp_bias = json_get_bool(j, "mlp_bias", false);
    const char *method = json_get_string(j, "topk_method");
    if (!method || strcmp(method, "greedy") == 0) {
        c->n_group = c->topk_group = 1;
    } else if (strcmp(method, "group_limited_greedy") != 0) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: topk_method '%s' is not known", method);
    }
    c->scoring = MOE_SOFTMAX_TOPK; // transformers never renormalises here
    return OK;
}

static enum status read_deepseek_v3(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_deepseek(j, c, err));
    c->scoring = MOE_SIGMOID;
    c->renormalise = json_get_bool(j, "norm_topk_prob", true);
    c->correction = true;
    return OK;
}

static enum status read_smollm3(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_llama(j, c, err));
    c->tied = true;
    window_on_all(j, c);
    windows_if_used(j, c);
    const struct json *list = json_get(j, "no_rope_layers");
    if (json_is(list, JSON_ARRAY) && json_count(list) < (size_t)c->n_layers) {
        return err_set(err, ERR_FORMAT,
                       "config.json: no_rope_layers has fewer entries than layers");
    }
    int64_t every = json_get_int(j, "no_rope_layer_interval", 4);
    const struct json *item = json_first(list);
    for (int32_t i = 0; i < c->n_layers; i++) {
        int64_t has_rope = every < 1 || (i + 1) % every != 0;
        if (item) { // 1 means that the layer uses rope: the name is inverted
            json_int64(item, &has_rope);
            item = json_next(item);
        }
        c->layers[i].rope = has_rope ? 0 : -1;
        c->layers[i].window = has_rope ? 0 : c->layers[i].window;
    }
    return OK;
}

static enum status read_starcoder2(const struct json *j, struct model_config *c, struct err *err)
{
    (void)err;
    c->norm_kind = NORM_LAYER;
    c->norm_bias = true;
    c->norm_eps = (float)json_get_number(j, "norm_epsilon", 1e-5);
    c->q_bias = c->o_bias = c->mlp_bias = json_get_bool(j, "use_bias", true);
    c->gated = false;
    c->tied = true;
    window_on_all(j, c);
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

static enum status read_glm4(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_glm(j, c, err));
    c->norm_place = NORM_SANDWICH;
    return OK;
}

/* Gemma 3's wrappers leave out nearly everything. */
#define GEMMA_DEFAULTS "\"head_dim\":256,\"hidden_activation\":\"gelu_pytorch_tanh\""
#define GEMMA3_DEFAULTS                                                                            \
    "{\"eos_token_id\":1,"                                                                         \
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"vocab_size\":262208,"                   \
    "\"max_position_embeddings\":131072,\"rope_theta\":1000000,\"query_pre_attn_scalar\":256,"     \
    "\"sliding_window\":4096," GEMMA_DEFAULTS "}"
#define GLM_DEFAULTS                                                                               \
    "{\"eos_token_id\":[151329,151336,151338],"                                                    \
    "\"num_key_value_heads\":2,\"head_dim\":128,\"max_position_embeddings\":131072,"               \
    "\"rms_norm_eps\":1.5625e-7,\"attention_bias\":true}"

static const struct family families[] = {
    {"llama", &llama_names, "{\"eos_token_id\":2}", read_llama},
    {"mistral", &llama_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"sliding_window\":4096}",
     read_mistral},
    {"mixtral", &mixtral_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,"
     "\"rope_theta\":1000000,\"num_local_experts\":8,\"num_experts_per_tok\":2}",
     read_mixtral},
    {"qwen2", &llama_names, "{\"max_position_embeddings\":32768,\"sliding_window\":4096}",
     read_qwen2},
    {"qwen2_moe", &qwen2_moe_names,
     "{\"max_position_embeddings\":32768,\"sliding_window\":4096,\"num_experts_per_tok\":4}",
     read_qwen2_moe},
    {"qwen3", &qwen3_names,
     "{\"head_dim\":128,\"max_position_embeddings\":32768,\"sliding_window\":4096}", read_qwen3},
    {"qwen3_moe", &qwen3_moe_names,
     "{\"num_key_value_heads\":4,\"max_position_embeddings\":32768,\"sliding_window\":4096,"
     "\"num_experts_per_tok\":8}",
     read_qwen3_moe},
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
    {"phi3", &phi3_names,
     "{\"eos_token_id\":32000,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"
     "\"original_max_position_embeddings\":4096}",
     read_phi3},
    {"olmo2", &olmo2_names, "{\"eos_token_id\":50279,\"rms_norm_eps\":1e-5}", read_olmo2},
    {"granite", &llama_names, "{\"eos_token_id\":2,\"attention_multiplier\":1}", read_granite},
    {"gpt_oss", &gpt_oss_names,
     "{\"num_key_value_heads\":8,\"head_dim\":64,\"max_position_embeddings\":131072,"
     "\"rms_norm_eps\":1e-5,\"rope_theta\":150000,\"sliding_window\":128,\"num_experts_per_tok\":4,"
     "\"rope_of_class\":{\"rope_type\":\"yarn\",\"factor\":32,\"truncate\":false,"
     "\"original_max_position_embeddings\":4096}}",
     read_gpt_oss},
    {"deepseek_v2", &deepseek_names,
     "{\"eos_token_id\":2,\"n_shared_experts\":2}", read_deepseek_v2},
    {"deepseek_v3", &deepseek_names,
     "{\"eos_token_id\":1,"
     "\"n_shared_experts\":1,\"first_k_dense_replace\":3,\"n_group\":8,\"topk_group\":4,"
     "\"num_experts_per_tok\":8,\"routed_scaling_factor\":2.5,\"max_position_embeddings\":4096}",
     read_deepseek_v3},
    {"smollm3", &llama_names,
     "{\"eos_token_id\":128001,"
     "\"num_key_value_heads\":4,\"max_position_embeddings\":32768,\"rope_theta\":2000000}",
     read_smollm3},
    {"starcoder2", &starcoder2_names,
     "{\"eos_token_id\":50256,\"num_key_value_heads\":2,\"max_position_embeddings\":4096,"
     "\"hidden_act\":\"gelu_pytorch_tanh\"}",
     read_starcoder2},
    {"stablelm", &stablelm_names,
     "{\"eos_token_id\":0,\"max_position_embeddings\":4096}", read_stablelm},
    {"glm", &glm_names, GLM_DEFAULTS, read_glm},
    {"glm4", &glm4_names, GLM_DEFAULTS, read_glm4},
};

const struct family *family_find(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].model_type, model_type) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

void family_list(char *out, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < sizeof families / sizeof families[0] && n < n_bytes; i++) {
        n += (size_t)snprintf(out + n, n_bytes - n, "%s%s", i > 0 ? ", " : "",
                              families[i].model_type);
    }
}
