// SPDX-License-Identifier: Apache-2.0
/* ERNIE 4.5 VL, whose mixtures have other experts for the tokens of images. They follow those of
 * texts, and are left out here, like the rows of their correction. */
#include "engine/base/json.h"
#include "engine/model/family_parts.h"

static const struct tensor_names ernie_vl_names = {
    BASE_NAMES,   QKV_NAMES,    FFN_NAMES,
    EXPERT_NAMES, SHARED_NAMES, .correction = "mlp.moe_statics.e_score_correction_bias"};

/* A number, or a list with that of texts first. */
static int64_t of_texts(const struct json *j, const char *key)
{
    int64_t n = json_get_int(j, key, 0);
    const struct json *first = json_first(json_get(j, key));
    if (first) {
        json_int64(first, &n);
    }
    return n;
}

static enum status read_ernie_vl(const struct json *j, struct model_config *c, struct err *err)
{
    const struct experts_numbers s = {.count_key = "moe_num_experts",
                                      .pick_key = "moe_k",
                                      .ffn_key = "moe_intermediate_size",
                                      .n = of_texts(j, "moe_num_experts"),
                                      .k = json_get_int(j, "moe_k", 0),
                                      .ffn = of_texts(j, "moe_intermediate_size")};
    TRY(family_set_experts(&s, c, err));
    TRY(family_shared_experts(j, "moe_num_shared_experts", c, err));
    if (json_get_number(j, "moe_norm_min", 0.0) > 1e-6) { // any real sum of weights is far larger
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: moe_norm_min above 1e-6 is not supported");
    }
    c->q_bias = c->o_bias = c->mlp_bias = json_get_bool(j, "use_bias", false);
    c->rope[0].desc.interleaved = true;
    c->tied = true;
    c->scoring = MOE_SOFTMAX_TOPK;
    c->renormalise = c->correction = c->router_turned = true;
    c->n_other_experts = c->n_experts;
    return family_dense_layers(j, 1, c, err);
}

static const struct family rows[] = {
    {"ernie4_5_vl_moe_text", &ernie_vl_names,
     "{\"eos_token_id\":2,\"num_key_value_heads\":4,\"max_position_embeddings\":131072,"
     "\"rms_norm_eps\":1e-5,\"rope_theta\":500000,\"moe_intermediate_size\":[1536,512],\"moe_k\":6,"
     "\"moe_num_experts\":64,\"moe_num_shared_experts\":2}",
     read_ernie_vl},
};
const struct family_table families_ernie_vl = {rows, sizeof rows / sizeof rows[0]};
