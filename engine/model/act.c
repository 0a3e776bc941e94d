// SPDX-License-Identifier: Apache-2.0
/* The activations of a layer's feed-forward part, with the parameters that it has for itself. */
#include "engine/model/part.h"

#include "engine/base/minmax.h"

#include <math.h>
#include <stdio.h>

/* Reads a parameter of an activation; dummy weights and files without the tensor have `usual`. */
static enum status act_parameter(struct loader *l, int32_t layer, const char *name, bool needed,
                                 float usual, float *out)
{
    struct weight_part p;
    char base[NAME_BYTES], full[NAME_BYTES];
    *out = usual;
    part_layer_name(l->c->names->act, layer, base);
    snprintf(full, sizeof full, "%.240s.%s", base, name);
    if (!needed && !part_has(l, full)) {
        return OK;
    }
    TRY(part_of(l, full, (int64_t[]){1}, 1, &p));
    if (!weight_part_is_dummy(&p)) {
        *out = weight_part_get(&p, 0, 0);
    }
    if (!isfinite(*out)) {
        return err_set(l->err, ERR_FORMAT, "%s: tensor %s is %g",
                       checkpoint_where(l->options->checkpoint), full, (double)*out);
    }
    return OK;
}

/* ln(1 + e^x) */
static float softplus(float x)
{
    return greater(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

/* xIELU has learned parameters in each layer, which are stored as the inverse of a softplus. */
static enum status learned_shape(struct loader *l, int32_t layer, struct act_shape *out)
{
    float positive, negative;
    const struct layer_config *c = &l->c->layers[layer];
    if (c->xielu.is_known) {
        positive = c->xielu.positive;
        negative = c->xielu.negative;
        out->slope = c->xielu.slope;
    } else {
        char base[NAME_BYTES];
        TRY(act_parameter(l, layer, "alpha_p", true, 0.2f, &positive));
        TRY(act_parameter(l, layer, "alpha_n", true, -1.05f, &negative));
        TRY(act_parameter(l, layer, "beta", false, 0.5f, &out->slope));
        part_layer_name(l->c->names->act, layer, base);
        part_pass_over(l, base); // the rest of the module changes nothing
    }
    out->rise = softplus(positive);
    out->fall = out->slope + softplus(negative);
    return OK;
}

/* As SiLU rises where it is positive, a limit of its input is one of its result. */
static struct layer_act act_with_limit(const struct model_config *c, float limit)
{
    if (limit > 0.0f) {
        const float most = c->limit_before_act ? limit / (1.0f + expf(-limit)) : limit;
        return (struct layer_act){ACT_SILU_CLAMPED, {.limit = limit, .alpha = most}};
    }
    return (struct layer_act){c->act, c->act_shape};
}

enum status load_acts(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    w->mlp_act = act_with_limit(c, c->layers[layer].mlp_limit);
    w->experts_act = act_with_limit(c, c->layers[layer].experts_limit);
    return c->act == ACT_XIELU ? learned_shape(l, layer, &w->mlp_act.shape) : OK;
}
