// SPDX-License-Identifier: Apache-2.0
/* Optional fused ops: each function calls the backend's own op if it has one, and otherwise the
 * basic ops. Products with adapters are not fused, because fused ops need not store what
 * linear_adapter reads.
 * Thread: the rank's owner. */
#ifndef SLUICE_ENGINE_DEVICE_OPS_DEFAULT_H
#define SLUICE_ENGINE_DEVICE_OPS_DEFAULT_H

#include "engine/device/ops.h"

static inline enum status ops_norms(struct backend *be, const struct norm_args *a, int32_t n)
{
    if (n > 1 && be->ops->norms) {
        return be->ops->norms(be, a, n);
    }
    for (int32_t i = 0; i < n; i++) {
        TRY(be->ops->norm(be, &a[i]));
    }
    return OK;
}

static inline enum status ops_linear(struct backend *be, const struct linear_args *linear)
{
    TRY(be->ops->linear(be, linear));
    return linear->adapter ? be->ops->linear_adapter(be, linear) : OK;
}

static inline enum status ops_linear_act(struct backend *be, const struct linear_args *linear,
                                         const struct activation_args *act)
{
    if (be->ops->linear_act && !linear->adapter) {
        return be->ops->linear_act(be, linear, act);
    }
    TRY(ops_linear(be, linear));
    return be->ops->activation(be, act);
}

static inline enum status ops_mlp(struct backend *be, const struct linear_args *up,
                                  const struct activation_args *act, const struct linear_args *down)
{
    if (be->ops->mlp && !up->adapter && !down->adapter) {
        return be->ops->mlp(be, up, act, down);
    }
    TRY(ops_linear_act(be, up, act));
    return ops_linear(be, down);
}

/* act and down are both given or both NULL. */
static inline enum status ops_norm_linear(struct backend *be, const struct norm_args *norm,
                                          const struct linear_args *linear,
                                          const struct activation_args *act,
                                          const struct linear_args *down)
{
    if (be->ops->norm_linear && !linear->adapter && !(down && down->adapter)) {
        return be->ops->norm_linear(be, norm, linear, act, down);
    }
    TRY(be->ops->norm(be, norm));
    if (down) {
        return ops_mlp(be, linear, act, down);
    }
    return ops_linear(be, linear);
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

static inline enum status ops_moe(struct backend *be, const struct norm_args *norm,
                                  const struct shared_expert_args *shared,
                                  const struct moe_route_args *route,
                                  const struct moe_ffn_args *ffn)
{
    const bool adapted = shared && (shared->up.adapter || shared->down.adapter);
    if (be->ops->moe && !adapted) {
        return be->ops->moe(be, norm, shared, route, ffn);
    }
    TRY(norm ? be->ops->norm(be, norm) : OK);
    if (shared) {
        TRY(ops_mlp(be, &shared->up, &shared->act, &shared->down));
        TRY(shared->gate ? be->ops->row_gate(be, shared->gate) : OK);
    }
    TRY(be->ops->moe_route(be, route));
    return be->ops->moe_ffn(be, ffn);
}

/* linear may be NULL. */
static inline enum status ops_rope_attention(struct backend *be, const struct rope_store_args *rope,
                                             const struct attention_args *attention,
                                             const struct linear_args *linear)
{
    if (be->ops->rope_attention) {
        const bool adapted = linear && linear->adapter;
        TRY(be->ops->rope_attention(be, rope, attention, adapted ? NULL : linear));
        return adapted ? ops_linear(be, linear) : OK;
    }
    TRY(be->ops->rope_store(be, rope));
    TRY(be->ops->attention(be, attention));
    return linear ? ops_linear(be, linear) : OK;
}

static inline enum status ops_mla(struct backend *be, const struct mla_store_args *store,
                                  const struct linear_heads_args *absorb,
                                  const struct attention_args *attention,
                                  const struct linear_heads_args *expand)
{
    if (be->ops->mla) {
        return be->ops->mla(be, store, absorb, attention, expand);
    }
    TRY(be->ops->mla_store(be, store));
    TRY(be->ops->linear_heads(be, absorb));
    TRY(be->ops->attention(be, attention));
    return be->ops->linear_heads(be, expand);
}

static inline enum status ops_recurrent(struct backend *be, const struct short_conv_args *conv,
                                        const struct recurrence_args *a,
                                        const struct gate_args *gate)
{
    if (be->ops->recurrent) {
        return be->ops->recurrent(be, conv, a, gate);
    }
    TRY(be->ops->short_conv(be, conv));
    TRY(be->ops->recurrence(be, a));
    if (gate) {
        return be->ops->gate(be, gate);
    }
    return OK;
}

static inline enum status ops_gated_conv(struct backend *be, const struct gate_args *before,
                                         const struct short_conv_args *conv,
                                         const struct gate_args *after)
{
    if (be->ops->gated_conv) {
        return be->ops->gated_conv(be, before, conv, after);
    }
    TRY(be->ops->gate(be, before));
    TRY(be->ops->short_conv(be, conv));
    return after ? be->ops->gate(be, after) : OK;
}

/* True if the next op, given these args, accepts a product left as partial sums. */
static inline bool ops_norm_adds_sums(struct backend *be, const struct norm_args *a)
{
    return be->ops->norm_adds_sums && be->ops->norm_adds_sums(be, a);
}

static inline bool ops_rope_store_adds_sums(struct backend *be, const struct rope_store_args *a)
{
    return be->ops->rope_store_adds_sums && be->ops->rope_store_adds_sums(be, a);
}

#endif
