// SPDX-License-Identifier: Apache-2.0
/* Architectures before Llama. The converter sorts the rows of q, k and v by their kind, and stores
 * GPT-2's matrices like those of others. */
#include "engine/gguf/maker.h"

static const struct rename layer_norm[] = {
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", NUMBER},
    {NULL, NULL, INTEGER},
};
static const struct rename gptneox[] = {
    {"use_parallel_residual", "use_parallel_residual", FLAG},
    {NULL, NULL, INTEGER},
};

static enum status more_gptneox(const struct maker *m)
{
    double heads, width, rotated;
    TRY(maker_need_number(m, "attention.head_count", &heads));
    TRY(maker_need_number(m, "embedding_length", &width));
    TRY(maker_need_number(m, "rope.dimension_count", &rotated));
    maker_put_number(m, "rotary_pct", maker_share(rotated, width / heads));
    return OK;
}

/* Falcon 7B is like the larger ones, with one key head and one norm. */
static enum status more_falcon(const struct maker *m)
{
    const bool two = maker_has_tensor(m, "blk.0.attn_norm_2.weight");
    maker_put_number(m, "num_kv_heads", maker_number_or(m, "attention.head_count_kv", 1));
    maker_put_number(m, "num_ln_in_parallel_attn", two ? 2 : 1);
    return OK;
}

static enum status more_starcoder(const struct maker *m)
{
    const double keys = maker_number_or(m, "attention.head_count_kv", 1);
    if (keys != 1) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "starcoder.attention.head_count_kv is %g, which is not supported", keys);
    }
    return OK;
}

static const struct arch rows[] = {
    {.name = "gpt2",
     .model_type = "gpt2",
     .renames = layer_norm,
     .constants = "\"matrices_by_output\":true,"},
    {.name = "gptneox",
     .model_type = "gpt_neox",
     .renames = gptneox,
     .constants = "\"qkv_by_kind\":true,",
     .more = more_gptneox},
    {.name = "falcon",
     .model_type = "falcon",
     .renames = layer_norm,
     .constants = "\"qkv_by_kind\":true,\"new_decoder_architecture\":true,",
     .more = more_falcon},
    {.name = "starcoder",
     .model_type = "gpt_bigcode",
     .renames = layer_norm,
     .more = more_starcoder},
};
const struct arch_table archs_classic = {rows, sizeof rows / sizeof rows[0]};
