// SPDX-License-Identifier: Apache-2.0
/* LongCat-Flash. A layer of its checkpoints is two of this program: each half has latent attention
 * and an MLP; experts beside the first MLP are added after the second. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

#include <math.h>
#include <string.h>

static const struct tensor_names longcat_names = {
    .paired = true,
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .attn_norm = "input_layernorm.#",
    .ffn_norm = "post_attention_layernorm.#",
    .q_a = "self_attn.#.q_a_proj",
    .q_a_norm = "self_attn.#.q_a_layernorm",
    .q_b = "self_attn.#.q_b_proj",
    .kv_a = "self_attn.#.kv_a_proj_with_mqa",
    .kv_a_norm = "self_attn.#.kv_a_layernorm",
    .kv_b = "self_attn.#.kv_b_proj",
    .o = "self_attn.#.o_proj",
    .gate = "mlps.#.gate_proj",
    .up = "mlps.#.up_proj",
    .down = "mlps.#.down_proj",
    .router = "mlp.router.classifier",
    .correction = "mlp.router.e_score_correction_bias",
    EACH_EXPERT_NAMES,
};

/* Makes two layers of each. The number under the family's own key has become that of the usual one,
 * unless the config has both, of which the class reads its own. */
static enum status double_layers(const struct json *j, struct model_config *c, struct err *err)
{
    const int64_t n = json_get_int(j, "num_layers", c->n_layers);
    TRY(family_positive("num_layers", n, MAX_LAYERS / 2, err));
    c->n_layers = 2 * (int32_t)n;
    for (int32_t i = 1; i < c->n_layers; i++) {
        c->layers[i] = c->layers[0];
        c->layers[i].kv_of = i;
    }
    return OK;
}

/* The first half of a layer has experts. Those after n_routed_experts return their input. */
static enum status read_experts(const struct json *j, struct model_config *c, struct err *err)
{
    const struct experts_numbers s = {.count_key = "n_routed_experts",
                                      .pick_key = "moe_topk",
                                      .ffn_key = "expert_ffn_hidden_size",
                                      .n = json_get_int(j, "n_routed_experts", 0),
                                      .k = json_get_int(j, "moe_topk", 0),
                                      .ffn = json_get_int(j, "expert_ffn_hidden_size", 0)};
    const char *kind = json_get_string(j, "zero_expert_type");
    const int64_t n_identity = json_get_int(j, "zero_expert_num", 0);
    TRY(family_set_experts(&s, c, err));
    if (kind && strcmp(kind, "identity") != 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: zero_expert_type other than identity is not supported");
    }
    if (n_identity > 0) {
        TRY(family_positive("zero_expert_num", n_identity, MAX_EXPERTS - s.n, err));
    }
    TRY(family_must_be(j, "router_bias", false, err));
    TRY(family_must_be(j, "norm_topk_prob", false, err));
    c->n_identity = (int32_t)n_identity;
    c->scoring = MOE_SOFTMAX_TOPK;
    c->correction = c->experts_late = true;
    for (int32_t i = 1; i < c->n_layers; i += 2) {
        c->layers[i].moe = false;
    }
    return family_routing(j, c, err);
}

/* Queries and the normed latent have factors that depend on the ranks of their products. */
static enum status read_longcat_flash(const struct json *j, struct model_config *c, struct err *err)
{
    TRY(double_layers(j, c, err));
    TRY(family_mla(j, c, err));
    TRY(family_positive("q_lora_rank", c->q_lora, 1 << 16, err));
    TRY(family_must_be(j, "mla_scale_q_lora", true, err));
    TRY(family_must_be(j, "mla_scale_kv_lora", true, err));
    c->attn_scale *= sqrtf((float)c->hidden / (float)c->q_lora);
    c->latent_scale = sqrtf((float)c->hidden / (float)c->kv_lora);
    return read_experts(j, c, err);
}

static const struct family rows[] = {
    {"longcat_flash", &longcat_names,
     "{\"eos_token_id\":2,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":131072,"
     "\"rope_theta\":10000000,\"ffn_hidden_size\":12288,\"q_lora_rank\":1536,\"kv_lora_rank\":512,"
     "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"moe_topk\":12,"
     "\"n_routed_experts\":512,\"zero_expert_num\":256,\"expert_ffn_hidden_size\":2048,"
     "\"routed_scaling_factor\":6,\"other_keys\":{\"num_layers\":\"num_hidden_layers\","
     "\"ffn_hidden_size\":\"intermediate_size\",\"num_experts_per_tok\":\"moe_topk\","
     "\"moe_intermediate_size\":\"expert_ffn_hidden_size\"}}",
     read_longcat_flash},
};
const struct family_table families_longcat = {rows, sizeof rows / sizeof rows[0]};
