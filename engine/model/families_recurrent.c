// SPDX-License-Identifier: Apache-2.0
/* Families with attention and delta nets: one decay per head in Qwen3-Next, Qwen3.5 and OLMo
 * Hybrid, one per channel in Kimi-Linear and Ling 3. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

#define DELTA_NET_NAMES                                                                            \
    .conv = "linear_attn.conv1d", .a_log = "linear_attn.A_log", .dt_bias = "linear_attn.dt_bias",  \
    .norm = "linear_attn.norm", .out = "linear_attn.out_proj"

static const struct state_names grouped_names = {
    DELTA_NET_NAMES, .qkvz = "linear_attn.in_proj_qkvz", .ba = "linear_attn.in_proj_ba",
    /* Only GGUF files use these names. */
    .qkv = "linear_attn.in_proj_qkv", .z = "linear_attn.in_proj_z"};

static const struct state_names separate_names = {
    DELTA_NET_NAMES, .qkv = "linear_attn.in_proj_qkv", .z = "linear_attn.in_proj_z",
    .b = "linear_attn.in_proj_b", .a = "linear_attn.in_proj_a"};

static const struct tensor_names qwen3_next_names = {BASE_NAMES,
                                                     QKV_NAMES,
                                                     FFN_NAMES,
                                                     QK_NORM_NAMES,
                                                     EXPERT_NAMES,
                                                     SHARED_EXPERT_NAMES,
                                                     .state = &grouped_names};

static const struct tensor_names qwen3_5_names = {BASE_NAMES,
                                                  QKV_NAMES,
                                                  FFN_NAMES,
                                                  QK_NORM_NAMES,
                                                  EXPERT_NAMES,
                                                  SHARED_EXPERT_NAMES,
                                                  .state = &separate_names};

/* In files that transformers saves, the first norm after a sub-layer is called like the second one
 * before. */
static const struct state_names olmo_state_names = {
    .q = "linear_attn.q_proj",
    .k = "linear_attn.k_proj",
    .v = "linear_attn.v_proj",
    .z = "linear_attn.g_proj",
    .b = "linear_attn.b_proj",
    .a = "linear_attn.a_proj",
    .conv = "linear_attn.conv1d",
    .conv_q = "linear_attn.q_conv1d",
    .conv_k = "linear_attn.k_conv1d",
    .conv_v = "linear_attn.v_conv1d",
    .a_log = "linear_attn.A_log",
    .dt_bias = "linear_attn.dt_bias",
    .norm = "linear_attn.o_norm",
    .out = "linear_attn.o_proj",
    .attn_norm = "attention_layer_norm|input_layernorm",
    .ffn_norm = "feedforward_layer_norm|post_attention_layernorm"};

static const struct tensor_names olmo_names = {
    QKV_NAMES,
    FFN_NAMES,
    QK_NORM_NAMES,
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .o = "self_attn.o_proj",
    .attn_post_norm = "post_attention_layernorm|feedforward_layer_norm",
    .ffn_post_norm = "post_feedforward_layernorm",
    .state = &olmo_state_names};

#define KDA_NAMES(in)                                                                              \
    .q = in ".q_proj", .k = in ".k_proj", .v = in ".v_proj", .b = in ".b_proj",                    \
    .conv_q = in ".q_conv1d", .conv_k = in ".k_conv1d", .conv_v = in ".v_conv1d",                  \
    .a_log = in ".A_log", .dt_bias = in ".dt_bias", .norm = in ".o_norm"

static const struct state_names kimi_state_names = {
    KDA_NAMES("self_attn"),      .out = "self_attn.o_proj",   .f_a = "self_attn.f_a_proj",
    .f_b = "self_attn.f_b_proj", .g_a = "self_attn.g_a_proj", .g_b = "self_attn.g_b_proj",
    .conv = "self_attn.conv1d", // only modelopt's files have one tensor
    .a_log_is_deep = true};

static const struct tensor_names kimi_linear_names = {
    BASE_NAMES,
    FFN_NAMES,
    .q = "self_attn.q_proj",
    .kv_a = "self_attn.kv_a_proj_with_mqa",
    .kv_a_norm = "self_attn.kv_a_layernorm",
    .kv_b = "self_attn.kv_b_proj",
    .k_b = "self_attn.k_b_proj",
    .v_b = "self_attn.v_b_proj",
    .router = "block_sparse_moe.gate",
    .correction = "block_sparse_moe.gate.e_score_correction_bias",
    .expert_gate = "block_sparse_moe.experts.%d.w1",
    .expert_up = "block_sparse_moe.experts.%d.w3",
    .expert_down = "block_sparse_moe.experts.%d.w2",
    .shared_gate = "block_sparse_moe.shared_experts.gate_proj",
    .shared_up = "block_sparse_moe.shared_experts.up_proj",
    .shared_down = "block_sparse_moe.shared_experts.down_proj",
    .state = &kimi_state_names};

static const struct state_names ling_state_names = {
    KDA_NAMES("attention"), .out = "attention.dense", .f = "attention.f_proj",
    .g = "attention.g_proj"};

static const struct tensor_names ling_names = {LING_NAMES,
                                               .q = "attention.q_proj",
                                               .attn_gate = "attention.g_proj",
                                               .kv_a = "attention.kv_a_proj_with_mqa",
                                               .kv_a_norm = "attention.kv_a_layernorm",
                                               .kv_b = "attention.kv_b_proj",
                                               .k_b = "attention.k_b_proj",
                                               .v_b = "attention.v_b_proj",
                                               .state = &ling_state_names};

/* What follows from the sizes of a gated delta net's heads. */
static enum status set_delta_net(struct model_config *c, struct err *err)
{
    struct state_layer *g = &c->state.layer;
    if (g->n_heads % g->n_key_heads) {
        return err_set(err, ERR_FORMAT,
                       "config.json: %d linear_num_value_heads cannot share %d "
                       "linear_num_key_heads",
                       g->n_heads, g->n_key_heads);
    }
    g->kind = STATE_DELTA;
    g->conv_width = 2 * g->n_key_heads * g->key_dim + g->n_heads * g->value_dim;
    c->state.conv_silu = true;
    c->state.gate = GATE_SILU;
    c->state.normed = true;
    c->state.norm_group = g->value_dim;
    c->state.norm_eps = c->norm_eps;
    return OK;
}

/* Gated DeltaNet. Every full_attention_interval-th layer has attention; the others have a recurrent
 * state. */
static enum status read_delta_net(const struct json *j, struct model_config *c, struct err *err)
{
    struct state_layer *g = &c->state.layer;
    TRY(family_size(j, "linear_num_key_heads", 4096, &g->n_key_heads, err));
    TRY(family_size(j, "linear_num_value_heads", 4096, &g->n_heads, err));
    TRY(family_size(j, "linear_key_head_dim", 1024, &g->key_dim, err));
    TRY(family_size(j, "linear_value_head_dim", 1024, &g->value_dim, err));
    TRY(family_size(j, "linear_conv_kernel_dim", 16, &g->conv_kernel, err));
    TRY(set_delta_net(c, err));
    family_decay_sign(j, c);
    c->state.heads_are_tiled = json_get_bool(j, "state_heads_are_tiled", false);
    int64_t every = json_get_int(j, "full_attention_interval", 4);
    for (int32_t i = 0; i < c->n_layers; i++) {
        bool full = every > 0 && (i + 1) % every == 0;
        c->layers[i].kv = full ? 0 : -1;
        c->layers[i].state = full ? -1 : 0;
    }
    return OK;
}

static enum status read_qwen3_5(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_delta_net(j, c, err));
    c->norm_offset = 1.0f;
    c->partial_rotary = 0.25f;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    c->attn_gate = ATTN_GATE_WIDE;
    return OK;
}

static enum status read_shared_expert(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(family_size(j, "shared_expert_intermediate_size", 1 << 22, &c->shared_ffn, err));
    c->shared_gate = true;
    c->renormalise = true;
    return OK;
}

static enum status read_qwen3_5_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_qwen3_5(j, c, err));
    return read_shared_expert(j, c, err);
}

static enum status read_qwen3_next(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(read_qwen3_5(j, c, err));
    TRY(read_shared_expert(j, c, err));
    c->renormalise = json_get_bool(j, "norm_topk_prob", true);
    family_sparse_steps(j, c);
    return OK;
}

static enum status delta_size(const struct json *j, const char *key, int64_t max, int64_t usual,
                              int32_t *out, struct err *err)
{
    const int64_t v = json_get_int(j, key, usual);
    TRY(family_positive(key, v, max, err));
    *out = (int32_t)v;
    return OK;
}

/* True if the base of positions is null, in either form of its key: then there are no positions. */
static bool has_no_base(const struct json *j)
{
    const struct json *base = json_get(rope_params(j), "rope_theta");
    if (!base) {
        base = json_get(j, "rope_theta");
    }
    return base && json_type(base) == JSON_NULL;
}

/* Delta nets with norms before both sub-layers beside OLMo's attention, which has them after. If
 * layer_types is absent, every fourth layer has attention, and at least the last one. */
static enum status read_olmo_hybrid(const struct json *j, struct model_config *c, struct err *err)
{
    struct state_layer *g = &c->state.layer;
    TRY(delta_size(j, "linear_num_key_heads", 4096, c->n_heads, &g->n_key_heads, err));
    TRY(delta_size(j, "linear_num_value_heads", 4096, c->n_heads, &g->n_heads, err));
    const int64_t key_dim = (int64_t)(0.75 * c->hidden / g->n_key_heads);
    TRY(delta_size(j, "linear_key_head_dim", 1024, key_dim, &g->key_dim, err));
    TRY(delta_size(j, "linear_value_head_dim", 1024, 2 * (int64_t)g->key_dim, &g->value_dim, err));
    TRY(delta_size(j, "linear_conv_kernel_dim", 16, 4, &g->conv_kernel, err));
    TRY(set_delta_net(c, err));
    if (c->act != ACT_SILU) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: hidden_act must be silu");
    }
    c->state.norm_eps = 1e-5f; // does not depend on rms_norm_eps
    if (json_get_bool(j, "linear_allow_neg_eigval", true)) {
        c->state.beta_scale = 2.0f;
    }
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->norm_place = NORM_POST;
    c->qk_norm = QK_NORM_WIDTH;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const bool full = i % 4 == 3 || (c->n_layers < 4 && i == c->n_layers - 1);
        c->layers[i].kv = full ? 0 : -1;
        c->layers[i].state = full ? -1 : 0;
        c->layers[i].rope = has_no_base(j) ? -1 : 0;
    }
    return OK;
}

/* Kimi's delta attention: keys and values of equal size, a decay per channel. */
void family_kda(struct model_config *c)
{
    struct state_layer *g = &c->state.layer;
    g->kind = STATE_DELTA;
    g->per_channel = true;
    g->n_key_heads = g->n_heads;
    g->value_dim = g->key_dim;
    g->conv_width = 3 * g->n_heads * g->key_dim;
    c->state.conv_silu = true;
    c->state.gate = GATE_SIGMOID;
    c->state.normed = true;
    c->state.norm_group = g->value_dim;
    c->state.norm_eps = c->norm_eps;
}

/* The lists number layers from 1. If there is no list, transformers' class gives full attention to
 * every fourth layer after the first. */
static enum status read_kimi_layers(const struct json *linear, struct model_config *c,
                                    struct err *err)
{
    const struct json *full = json_get(linear, "full_attn_layers");
    for (int32_t i = 0; i < c->n_layers; i++) {
        const bool usual = !full && i > 0 && i % 4 == 0;
        c->layers[i].kv = usual ? 0 : -1;
        c->layers[i].state = usual ? -1 : 0;
        c->layers[i].rope = -1;
    }
    for (const struct json *v = json_first(full); v; v = json_next(v)) {
        int64_t i;
        if (!json_int64(v, &i) || i < 1 || i > c->n_layers) {
            return err_set(err, ERR_FORMAT,
                           "config.json: linear_attn_config.full_attn_layers must "
                           "be integers from 1 to %d",
                           c->n_layers);
        }
        c->layers[i - 1].kv = 0;
        c->layers[i - 1].state = -1;
    }
    return OK;
}

/* All layers but the first ones have experts. LATE_KEYS maps the key names of both families to the
 * names read here. */
static enum status read_late_experts(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(family_every_freq(j, c, err));
    if (json_is(json_get(j, "mlp_layer_types"), JSON_ARRAY)) {
        TRY(family_dense_layers(j, 0, c, err));
    }
    TRY(family_shared_experts(j, "num_shared_experts", c, err));
    return family_routing_v3(j, c, err);
}

/* Kimi Delta Attention beside MLA without positions. Reads both the released form of the config and
 * the form that transformers saves. */
static enum status read_kimi_linear(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_mla(j, c, err));
    TRY(family_must_be(j, "mla_use_nope", true, err));
    const struct json *linear = json_get(j, "linear_attn_config");
    struct state_layer *g = &c->state.layer;
    // The released form; transformers 5 saves another.
    const bool nested = json_is(linear, JSON_OBJECT);
    const struct json *from = nested ? linear : j;
    const char *kernel;
    if (nested) {
        kernel = "short_conv_kernel_size";
    } else {
        kernel = "linear_conv_kernel_dim";
    }
    TRY(family_size(from, nested ? "num_heads" : "linear_num_heads", 4096, &g->n_heads, err));
    TRY(family_size(from, nested ? "head_dim" : "linear_head_dim", 1024, &g->key_dim, err));
    TRY(family_size(from, kernel, 16, &g->conv_kernel, err));
    family_kda(c);
    family_decay_sign(j, c);
    c->state.low_rank = c->state.layer.key_dim;
    TRY(read_kimi_layers(linear, c, err));
    return read_late_experts(j, c, err);
}

/* Kimi Delta Attention beside MLA with a gate per head. The last layer of each group has
 * attention. */
static enum status read_ling(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_mla(j, c, err));
    if (c->q_lora > 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: q_lora_rank is not supported beside "
                       "gates of heads");
    }
    c->attn_gate = ATTN_GATE_HEADS;
    c->state.layer.n_heads = c->n_heads;
    c->state.layer.key_dim = c->head_dim;
    TRY(family_size(j, "short_conv_kernel_size", 16, &c->state.layer.conv_kernel, err));
    family_kda(c);
    family_decay_sign(j, c);
    if (json_get_bool(j, "kda_safe_gate", true)) {
        c->state.decay_bound = (float)json_get_number(j, "kda_lower_bound", -5.0);
    }
    int64_t every = json_get_int(j, "layer_group_size", 0);
    TRY(family_positive("layer_group_size", every, MAX_LAYERS, err));
    for (int32_t i = 0; i < c->n_layers; i++) {
        bool full = (i + 1) % every == 0;
        c->layers[i].kv = full ? 0 : -1;
        c->layers[i].state = full ? -1 : 0;
    }
    return read_late_experts(j, c, err);
}

#define LATE_KEYS                                                                                  \
    "\"other_keys\":{\"num_experts_per_token\":\"num_experts_per_tok\",\"num_expert_group\":\"n_"  \
    "group\","                                                                                     \
    "\"moe_renormalize\":\"norm_topk_prob\",\"model_max_length\":\"max_position_embeddings\","     \
    "\"num_local_experts\":\"num_experts\",\"n_shared_experts\":\"num_shared_experts\"}"

#define DELTA_NET_DEFAULTS                                                                         \
    "\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,"      \
    "\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"head_dim\":256,"                  \
    "\"max_position_embeddings\":32768,\"num_key_value_heads\":"
#define QWEN3_5_DEFAULTS "{" DELTA_NET_DEFAULTS "4,\"num_attention_heads\":16}"
#define QWEN3_5_MOE_DEFAULTS                                                                       \
    "{" DELTA_NET_DEFAULTS "2,\"num_attention_heads\":16,\"num_experts\":256,"                     \
    "\"num_experts_per_tok\":8,\"moe_intermediate_size\":512,"                                     \
    "\"shared_expert_intermediate_size\":512}"

static const struct family rows[] = {
    {"qwen3_next", &qwen3_next_names,
     "{" DELTA_NET_DEFAULTS "2,\"num_attention_heads\":16,\"num_experts\":512,"
     "\"num_experts_per_tok\":10,\"moe_intermediate_size\":512,"
     "\"shared_expert_intermediate_size\":512}",
     read_qwen3_next},
    {"qwen3_5_text", &qwen3_5_names, QWEN3_5_DEFAULTS, read_qwen3_5},
    {"qwen3_5", &qwen3_5_names, QWEN3_5_DEFAULTS, read_qwen3_5},
    {"qwen3_5_moe_text", &qwen3_5_names, QWEN3_5_MOE_DEFAULTS, read_qwen3_5_moe},
    {"qwen3_5_moe", &qwen3_5_names, QWEN3_5_MOE_DEFAULTS, read_qwen3_5_moe},
    {"olmo_hybrid", &olmo_names, "{\"eos_token_id\":100257,\"max_position_embeddings\":65536}",
     read_olmo_hybrid},
    {"kimi_linear", &kimi_linear_names,
     "{\"rms_norm_eps\":1e-5,\"max_position_embeddings\":1048576,\"first_k_dense_replace\":1,"
     "\"num_experts\":256,\"num_experts_per_tok\":8,\"moe_intermediate_size\":1024,"
     "\"routed_scaling_factor\":2.446,\"num_shared_experts\":1,\"linear_head_dim\":128,"
     "\"linear_num_heads\":32,\"linear_conv_kernel_dim\":4," LATE_KEYS "}",
     read_kimi_linear},
    {"bailing_hybrid", &ling_names,
     "{\"max_position_embeddings\":262144,\"rope_theta\":6000000,\"head_dim\":128,"
     "\"short_conv_kernel_size\":4,\"first_k_dense_replace\":2,\"layer_group_size\":6,"
     "\"num_experts\":512,\"num_experts_per_tok\":8,\"moe_intermediate_size\":768,"
     "\"n_group\":8,\"topk_group\":4,\"routed_scaling_factor\":2.5,\"num_shared_experts\":"
     "1," LATE_KEYS "}",
     read_ling},
};
const struct family_table families_recurrent = {rows, sizeof rows / sizeof rows[0]};
