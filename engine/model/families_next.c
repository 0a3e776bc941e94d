// SPDX-License-Identifier: Apache-2.0
/* GLM-5-Next: Kimi's delta attention beside sparse latent attention without positions, whose
 * indexer compares with the pooled keys of groups; hyper-connections; experts with limited gates.
 */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

#define ATTN "self_attn."

static const struct state_names glm5_next_state_names = {
    .q = ATTN "q_proj",
    .k = ATTN "k_proj",
    .v = ATTN "v_proj",
    .b = ATTN "b_proj",
    .f_a = ATTN "f_a_proj",
    .f_b = ATTN "f_b_proj",
    .g_a = ATTN "g_a_proj",
    .g_b = ATTN "g_b_proj",
    .conv = ATTN "conv1d", // files of transformers' modules have one tensor
    .conv_q = ATTN "q_conv1d",
    .conv_k = ATTN "k_conv1d",
    .conv_v = ATTN "v_conv1d",
    .a_log = ATTN "A_log",
    .dt_bias = ATTN "dt_bias",
    .norm = ATTN "o_norm",
    .out = ATTN "o_proj"};

static const struct tensor_names glm5_next_names = {
    BASE_NAMES,
    FFN_NAMES,
    EXPERT_NAMES,
    SHARED_NAMES,
    .correction = "mlp.gate.e_score_correction_bias",
    .q_a = ATTN "q_a_proj",
    .q_a_norm = ATTN "q_a_layernorm",
    .q_b = ATTN "q_b_proj",
    .kv_a = ATTN "kv_a_proj_with_mqa",
    .kv_a_norm = ATTN "kv_a_layernorm",
    .kv_b = ATTN "kv_b_proj",
    .index_q = ATTN "indexer.wq_b",
    .index_k = ATTN "indexer.wk",
    .index_k_norm = ATTN "indexer.k_norm",
    .index_weights = ATTN "indexer.weights_proj",
    .index_gates = ATTN "indexer.index_kpool_compress_gate",
    .index_places = ATTN "indexer.index_kpool_compress_ape",
    .hyper_attn = "hc_attn_",
    .hyper_ffn = "hc_ffn_",
    .state = &glm5_next_state_names};

/* The released form of the config has an object, which takes precedence. */
static enum status read_kda(const struct json *j, struct model_config *c, struct err *err)
{
    const struct json *nested = json_get(j, "linear_attn_config");
    struct state_layer *g = &c->state.layer;
    const struct {
        const char *key, *inner;
        int64_t max;
        int32_t *out;
    } sizes[] = {{"linear_head_dim", "head_dim", 1024, &g->key_dim},
                 {"linear_num_heads", "num_heads", 4096, &g->n_heads},
                 {"linear_conv_kernel_dim", "short_conv_kernel_size", 16, &g->conv_kernel}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const bool is_inner = json_type(json_get(nested, sizes[i].inner)) != JSON_NULL;
        TRY(family_size(is_inner ? nested : j, is_inner ? sizes[i].inner : sizes[i].key,
                        sizes[i].max, sizes[i].out, err));
    }
    const struct json *bound = json_get(nested, "gate_lower_bound");
    if (!bound) {
        bound = json_get(j, "linear_lower_bound");
    }
    const bool has_usual =
        !bound || (json_is(nested, JSON_OBJECT) && json_get_bool(nested, "safe_gate", true));
    c->state.decay_bound = (float)json_number(bound, has_usual ? -5.0 : 0.0);
    if (c->state.decay_bound > 0.0f) {
        return err_set(err, ERR_FORMAT, "config.json: the lower bound of decays must be below 0");
    }
    if (c->act != ACT_SILU) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: hidden_act must be silu");
    }
    family_kda(c);
    c->state.low_rank = g->key_dim;
    return OK;
}

static enum status read_pool(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_size(j, "index_kpool", MAX_INDEX_POOL, &c->index.pool, err));
    TRY(family_must_be(j, "index_kpool_always_select_tail", true, err));
    if (2 * c->index.head_dim > MAX_INDEX_DIM) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: index_head_dim above %d is not supported with index_kpool",
                       MAX_INDEX_DIM / 2);
    }
    if (c->index.top_k % c->index.pool != 0) {
        return err_set(err, ERR_FORMAT, "config.json: index_topk is not a multiple of index_kpool");
    }
    return OK;
}

/* Only layers with attention have an indexer or another's picks. The class hands picks from a layer
 * with an indexer to the next layer, and no further. */
static enum status check_sharing(const struct json *j, struct model_config *c, struct err *err)
{
    (void)j;
    for (int32_t i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layers[i];
        if (l->state >= 0) {
            l->index = -1;
            continue;
        }
        if (l->index < 0 && (i == 0 || c->layers[i - 1].index < 0)) {
            return err_set(err, ERR_UNSUPPORTED,
                           "config.json: layer %d shares picks, but the layer before it has no "
                           "indexer, which is not supported",
                           i);
        }
    }
    return OK;
}

static enum status read_limits(const struct json *j, struct model_config *c, struct err *err)
{
    const float limit = (float)json_get_number(j, "swiglu_limit", 0.0);
    if (!(limit > 0.0f)) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: swiglu_limit must be above 0");
    }
    c->limit_before_act = true;
    for (int32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].experts_limit = c->layers[i].mlp_limit = limit;
    }
    return OK;
}

static enum status read_streams(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_hyper(j, c, err));
    TRY(family_size(j, "hc_sinkhorn_iters", 1000, &c->hyper.n_sinkhorn, err));
    c->hyper.magnitude = 2.0f;
    if ((float)c->hyper.n * c->hyper.eps >= 1.0f) {
        return err_set(err, ERR_UNSUPPORTED, "config.json: hc_eps must be below 1 / hc_mult");
    }
    return OK;
}

static enum status read_glm5_next(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(family_mla_without_positions(j, c, err));
    if (c->rope_dim != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: qk_rope_head_dim above 0 is not supported in this family");
    }
    if (c->q_lora == 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: sparse attention without q_lora_rank is not supported in this "
                       "family");
    }
    c->mla_norm_eps = c->norm_eps;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const bool full = i % 4 == 3;
        c->layers[i].kv = full ? 0 : -1;
        c->layers[i].state = full ? -1 : 0;
    }
    TRY(read_kda(j, c, err));
    TRY(family_indexer(j, c, err));
    TRY(read_pool(j, c, err));
    c->read_layers = check_sharing;
    TRY(read_streams(j, c, err));
    TRY(family_experts(j, "n_routed_experts", "moe_intermediate_size", c, err));
    TRY(family_shared_experts(j, "n_shared_experts", c, err));
    TRY(family_routing_v3(j, c, err));
    TRY(read_limits(j, c, err));
    return family_dense_layers(j, 3, c, err);
}

#define GLM5_NEXT_DEFAULTS                                                                         \
    "{\"rms_norm_eps\":1e-5,\"max_position_embeddings\":1048576,\"moe_intermediate_size\":2048,"   \
    "\"n_routed_experts\":288,\"n_shared_experts\":1,\"num_experts_per_tok\":8,"                   \
    "\"routed_scaling_factor\":2.5,\"kv_lora_rank\":512,\"q_lora_rank\":1536,"                     \
    "\"v_head_dim\":256,\"qk_nope_head_dim\":256,\"index_topk\":2048,\"index_head_dim\":128,"      \
    "\"index_n_heads\":32,\"index_kpool\":16,\"linear_head_dim\":128,\"linear_num_heads\":64,"     \
    "\"linear_conv_kernel_dim\":4,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"swiglu_limit\":10,"     \
    "\"other_keys\":{\"num_local_experts\":\"n_routed_experts\"}}"

static const struct family rows[] = {
    {"glm5_next_text", &glm5_next_names, GLM5_NEXT_DEFAULTS, read_glm5_next},
};
const struct family_table families_next = {rows, sizeof rows / sizeof rows[0]};
