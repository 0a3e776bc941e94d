// SPDX-License-Identifier: Apache-2.0
/* Architectures with an MLP without a gate, or with LayerNorm. */
#include "engine/gguf/maker.h"

#include <math.h>

static const struct rename nemotron[] = {
    {"attention.layer_norm_epsilon", "norm_eps", NUMBER},
    {NULL, NULL, INTEGER},
};

/* Without the factor logits are as they are. */
static enum status more_command_r(const struct maker *m)
{
    const double scale = maker_number_or(m, "logit_scale", 0);
    maker_put_number(m, "logit_scale", scale != 0 ? scale : 1);
    maker_put_flag(m, "use_qk_norm", maker_has_tensor(m, "blk.0.attn_q_norm.weight"));
    return OK;
}

/* The family's norms have no weights, and one epsilon. */
static enum status more_olmo(const struct maker *m)
{
    const double epsilon = maker_number_or(m, "attention.layer_norm_epsilon", 1e-5);
    if (fabs(epsilon - 1e-5) > 1e-9) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "olmo.attention.layer_norm_epsilon is %g, which is not supported", epsilon);
    }
    return OK;
}

/* The activation's parameters are keys without the architecture's name. Its epsilon keeps the
 * argument of an exponential from 0, which has no effect while it is small. */
static enum status more_apertus(const struct maker *m)
{
    double epsilon = 0;
    for (size_t i = 0; maker_number_of(m->g, "xielu.eps", i, &epsilon) && i < MOST_LAYERS; i++) {
        if (!(fabs(epsilon) <= 1e-5)) {
            return err_set(m->err, ERR_UNSUPPORTED, "xielu.eps is %g, which is not supported",
                           epsilon);
        }
    }
    TRY(maker_put_list(m, "xielu.alpha_p", "xielu_alpha_p"));
    TRY(maker_put_list(m, "xielu.alpha_n", "xielu_alpha_n"));
    return maker_put_list(m, "xielu.beta", "xielu_beta");
}

static const struct arch rows[] = {
    {.name = "arcee", .model_type = "arcee", .pairs_together = true},
    {.name = "apertus", .model_type = "apertus", .more = more_apertus},
    {.name = "command-r", .model_type = "cohere", .more = more_command_r},
    {.name = "olmo", .model_type = "olmo", .pairs_together = true, .more = more_olmo},
    {.name = "nemotron", .model_type = "nemotron", .norms_plus_one = true, .renames = nemotron},
    {.name = "jais2", .model_type = "jais2"},
    {.name = "phi2", .model_type = "phi"},
};
const struct arch_table archs_plain = {rows, sizeof rows / sizeof rows[0]};
