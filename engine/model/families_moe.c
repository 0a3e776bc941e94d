/* Families of plain attention and experts. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

static const struct tensor_names mixtral_names = {
    BASE_NAMES, QKV_NAMES, .router = "block_sparse_moe.gate",
    .expert_gate = "block_sparse_moe.experts.%d.w1", .expert_up = "block_sparse_moe.experts.%d.w3",
    .expert_down = "block_sparse_moe.experts.%d.w2"};

static const struct tensor_names qwen2_moe_names = {
    BASE_NAMES, QKV_NAMES, FFN_NAMES, EXPERT_NAMES,
    .shared_gate = "mlp.shared_expert.gate_proj", .shared_up = "mlp.shared_expert.up_proj",
    .shared_down = "mlp.shared_expert.down_proj", .shared_router = "mlp.shared_expert_gate"};

static const struct tensor_names qwen3_moe_names = {BASE_NAMES, QKV_NAMES, FFN_NAMES,
                                                    QK_NORM_NAMES, EXPERT_NAMES};

static const struct tensor_names gpt_oss_names = {
    BASE_NAMES, QKV_NAMES, .sinks = "self_attn.sinks", .router = "mlp.router",
    .experts_gate_up = "mlp.experts.gate_up_proj", .experts_down = "mlp.experts.down_proj",
    .experts_form = EXPERTS_ALTERNATE,
    /* Of GGUF files alone. */
    .expert_gate = "mlp.experts.%d.gate_proj", .expert_up = "mlp.experts.%d.up_proj",
    .expert_down = "mlp.experts.%d.down_proj"};

static const struct tensor_names minimax_m2_names = {
    BASE_NAMES, QKV_NAMES, QK_NORM_NAMES, .router = "block_sparse_moe.gate",
    .correction = "block_sparse_moe.e_score_correction_bias",
    .expert_gate = "block_sparse_moe.experts.%d.w1", .expert_up = "block_sparse_moe.experts.%d.w3",
    .expert_down = "block_sparse_moe.experts.%d.w2"};

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

static enum status read_mixtral(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    family_window_on_all(j, c);
    c->scoring = MOE_SOFTMAX_TOPK;
    c->renormalise = true;
    return OK;
}

static enum status read_qwen2_moe(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    int64_t shared = json_get_int(j, "shared_expert_intermediate_size", 0);
    TRY(family_positive("shared_expert_intermediate_size", shared, 1 << 22, err));
    c->shared_ffn = (int32_t)shared;
    c->shared_gate = true;
    c->q_bias = json_get_bool(j, "qkv_bias", true);
    c->renormalise = json_get_bool(j, "norm_topk_prob", false);
    qwen_dense_layers(j, c);
    family_window_on_all(j, c);
    family_windows_if_used(j, c);
    int64_t windows = json_get_int(j, "max_window_layers", 28); // here every other one before it
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].window = i % 2 == 0 && i < windows ? c->layers[i].window : 0;
    }
    return OK;
}

static enum status read_qwen3_moe(const struct json *j, struct model_config *c, struct err *err)
{
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", false);
    c->qk_norm = QK_NORM_HEAD;
    family_window_on_all(j, c);
    family_windows_if_used(j, c);
    TRY(family_experts(j, "num_experts", "moe_intermediate_size", c, err));
    c->renormalise = json_get_bool(j, "norm_topk_prob", false);
    qwen_dense_layers(j, c);
    return OK;
}

static enum status read_gpt_oss(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    c->scoring = MOE_TOPK_SOFTMAX;
    c->q_bias = c->o_bias = json_get_bool(j, "attention_bias", true);
    c->router_bias = c->experts_biased = c->sinks = true;
    c->act = ACT_GPT_OSS;
    c->act_shape = (struct act_shape){
        .limit = (float)json_get_number(j, "swiglu_limit", (double)ACT_SHAPE_PUBLISHED.limit),
        .alpha = (float)json_get_number(j, "swiglu_alpha", (double)ACT_SHAPE_PUBLISHED.alpha)};
    family_window_on_even(j, c);
    return OK;
}

static enum status read_minimax_m2(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_experts(j, "num_local_experts", "intermediate_size", c, err));
    c->scoring = MOE_SIGMOID;
    c->renormalise = c->correction = true;
    c->qk_norm = QK_NORM_WIDTH;
    int64_t rotated = json_get_int(j, "rotary_dim", c->head_dim);
    TRY(family_positive("rotary_dim", rotated, c->head_dim, err));
    c->partial_rotary = (float)rotated / (float)c->head_dim;
    return OK;
}

static const struct family rows[] = {
    {"mixtral", &mixtral_names,
     "{\"eos_token_id\":2,"
     "\"num_key_value_heads\":8,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,"
     "\"rope_theta\":1000000,\"num_local_experts\":8,\"num_experts_per_tok\":2}",
     read_mixtral},
    {"qwen2_moe", &qwen2_moe_names,
     "{\"max_position_embeddings\":32768,\"sliding_window\":4096,\"num_experts_per_tok\":4}",
     read_qwen2_moe},
    {"qwen3_moe", &qwen3_moe_names,
     "{\"num_key_value_heads\":4,\"max_position_embeddings\":32768,\"sliding_window\":4096,"
     "\"num_experts_per_tok\":8}",
     read_qwen3_moe},
    {"minimax_m2", &minimax_m2_names,
     "{\"eos_token_id\":200020,\"num_key_value_heads\":8,\"head_dim\":128,"
     "\"max_position_embeddings\":196608,\"num_local_experts\":256,\"num_experts_per_tok\":8,"
     "\"rope_theta\":5000000}",
     read_minimax_m2},
    {"gpt_oss", &gpt_oss_names,
     "{\"num_key_value_heads\":8,\"head_dim\":64,\"max_position_embeddings\":131072,"
     "\"rms_norm_eps\":1e-5,\"rope_theta\":150000,\"sliding_window\":128,\"num_experts_per_tok\":4,"
     "\"rope_of_class\":{\"rope_type\":\"yarn\",\"factor\":32,\"truncate\":false,"
     "\"original_max_position_embeddings\":4096}}",
     read_gpt_oss},
};
const struct family_table families_moe = {rows, sizeof rows / sizeof rows[0]};
