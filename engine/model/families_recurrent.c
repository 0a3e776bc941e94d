/* Families of attention beside gated delta nets: Qwen3-Next, Qwen3.5. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

#define SHARED_EXPERT_NAMES                                                                        \
    .shared_gate = "mlp.shared_expert.gate_proj", .shared_up = "mlp.shared_expert.up_proj",        \
    .shared_down = "mlp.shared_expert.down_proj", .shared_router = "mlp.shared_expert_gate"
#define DELTA_NET_NAMES                                                                            \
    .conv = "linear_attn.conv1d", .a_log = "linear_attn.A_log",                                    \
    .dt_bias = "linear_attn.dt_bias", .norm = "linear_attn.norm", .out = "linear_attn.out_proj"

static const struct state_names grouped_names = {
    DELTA_NET_NAMES, .qkvz = "linear_attn.in_proj_qkvz", .ba = "linear_attn.in_proj_ba"};

static const struct state_names separate_names = {
    DELTA_NET_NAMES, .qkv = "linear_attn.in_proj_qkv", .z = "linear_attn.in_proj_z",
    .b = "linear_attn.in_proj_b", .a = "linear_attn.in_proj_a"};

static const struct tensor_names qwen3_next_names = {
    BASE_NAMES, QKV_NAMES, FFN_NAMES, QK_NORM_NAMES, EXPERT_NAMES, SHARED_EXPERT_NAMES,
    .state = &grouped_names};

static const struct tensor_names qwen3_5_names = {
    BASE_NAMES, QKV_NAMES, FFN_NAMES, QK_NORM_NAMES, EXPERT_NAMES, SHARED_EXPERT_NAMES,
    .state = &separate_names};

/* An integer that the recurrent layers cannot do without. */
static enum status size_of(const struct json *j, const char *key, int64_t max, int32_t *out,
                           struct err *err)
{
    int64_t v = json_get_int(j, key, 0);
    TRY(family_positive(key, v, max, err));
    *out = (int32_t)v;
    return OK;
}

static enum status read_delta_net(const struct json *j, struct model_config *c, struct err *err)
{
    struct state_layer *g = &c->state.layer;
    TRY(size_of(j, "linear_num_key_heads", 4096, &g->n_key_heads, err));
    TRY(size_of(j, "linear_num_value_heads", 4096, &g->n_heads, err));
    TRY(size_of(j, "linear_key_head_dim", 1024, &g->key_dim, err));
    TRY(size_of(j, "linear_value_head_dim", 1024, &g->value_dim, err));
    TRY(size_of(j, "linear_conv_kernel_dim", 16, &g->conv_kernel, err));
    if (g->n_heads % g->n_key_heads) {
        return err_set(err, ERR_FORMAT, "config.json: %d linear_num_value_heads cannot share %d "
                       "linear_num_key_heads", g->n_heads, g->n_key_heads);
    }
    g->kind = STATE_DELTA;
    g->conv_width = 2 * g->n_key_heads * g->key_dim + g->n_heads * g->value_dim;
    c->state.conv_silu = true;
    c->state.gate = GATE_SILU;
    c->state.normed = true;
    c->state.norm_group = g->value_dim;
    c->state.norm_eps = c->norm_eps;
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
    c->attn_gate = true;
    return OK;
}

static enum status read_shared_expert(const struct json *j, struct model_config *c,
                                      struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    TRY(size_of(j, "shared_expert_intermediate_size", 1 << 22, &c->shared_ffn, err));
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
};
const struct family_table families_recurrent = {rows, sizeof rows / sizeof rows[0]};
