/* Optional fused ops: a backend's own where it has one, else composed from basic ops.
 * Thread: the rank's owner. */
#ifndef SLUICE_ENGINE_DEVICE_OPS_DEFAULT_H
#define SLUICE_ENGINE_DEVICE_OPS_DEFAULT_H

#include "engine/device/ops.h"

static inline enum status ops_linear_act(struct backend *be, const struct linear_args *linear,
                                         const struct activation_args *act)
{
    if (be->ops->linear_act) {
        return be->ops->linear_act(be, linear, act);
    }
    TRY(be->ops->linear(be, linear));
    return be->ops->activation(be, act);
}

static inline enum status ops_mlp(struct backend *be, const struct linear_args *up,
                                  const struct activation_args *act, const struct linear_args *down)
{
    if (be->ops->mlp) {
        return be->ops->mlp(be, up, act, down);
    }
    TRY(ops_linear_act(be, up, act));
    return be->ops->linear(be, down);
}

/* act and down: both or neither. */
static inline enum status ops_norm_linear(struct backend *be, const struct norm_args *norm,
                                          const struct linear_args *linear,
                                          const struct activation_args *act,
                                          const struct linear_args *down)
{
    if (be->ops->norm_linear) {
        return be->ops->norm_linear(be, norm, linear, act, down);
    }
    TRY(be->ops->norm(be, norm));
    return down ? ops_mlp(be, linear, act, down) : be->ops->linear(be, linear);
}

static inline enum status ops_reduce_norm(struct backend *be, const struct reduce_args *reduce,
                                          const struct norm_args *norm)
{
    if (be->ops->reduce_norm) {
        return be->ops->reduce_norm(be, reduce, norm);
    }
    TRY(be->ops->reduce(be, reduce));
    return be->ops->norm(be, norm);
}

#endif
