/* Optional fused ops: a backend's own where it has one, else composed from basic ops.
 * Thread: the rank's owner. */
#ifndef SLUICE_ENGINE_OPS_DEFAULT_H
#define SLUICE_ENGINE_OPS_DEFAULT_H

#include "engine/ops.h"

static inline enum status ops_linear_act(struct backend *be, const struct linear_args *linear,
                                         const struct activation_args *act)
{
    if (be->ops->linear_act) {
        return be->ops->linear_act(be, linear, act);
    }
    TRY(be->ops->linear(be, linear));
    return be->ops->activation(be, act);
}

#endif
