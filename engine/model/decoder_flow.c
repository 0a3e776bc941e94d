// SPDX-License-Identifier: Apache-2.0
/* What a pass carries from one sub-layer to the next: x, and a delta that has not been added to it
 * yet. */
#include "engine/base/assert.h"
#include "engine/model/decoder.h"

/* The norms that have been left to this one, in their order. */
static enum status join_norms(struct flow *f, const struct norm_args *join)
{
    struct norm_args all[2 * FLOW_NORMS + 1];
    int32_t n = 0;
    for (int32_t i = 0; i < f->n_before; i++) {
        all[n++] = f->before[i];
    }
    all[n++] = *join;
    for (int32_t i = 0; i < f->n_after; i++) {
        all[n++] = f->after[i];
    }
    f->n_before = f->n_after = 0;
    return ops_norms(f->be, all, n);
}

/* Where norms of x go: they replace x itself if they are the residual. */
static struct tensor norm_output(const struct flow *f)
{
    return f->m->config->norms_replace ? f->x : f->h;
}

/* Adds the pending delta to x and norms the sum, in one op. Without a norm the input is x
 * itself. */
enum status flow_join_norm(struct flow *f, const struct weight *weight, const struct weight *bias,
                           bool once, struct tensor *input)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    if (c->hyper.n > 0) {
        return flow_join_streams(f, weight, input);
    }
    *input = weight ? norm_output(f) : f->x;
    if (!weight && !f->pending) {
        return OK;
    }
    struct norm_args a = {.x = f->x,
                          .delta = f->pending ? m->delta : no_tensor,
                          .out = weight ? *input : no_tensor,
                          .weight = weight,
                          .bias = bias,
                          .n_rows = f->n_rows,
                          .width = c->hidden,
                          .kind = c->norm_kind,
                          .eps = c->norm_eps,
                          .weight_offset = c->norm_offset,
                          .delta_scale = f->delta_scale,
                          .x_scale = f->x_scale,
                          .delta_sums = f->delta_sums};
    // A product left as partial sums needs no reduction over ranks.
    bool partial = f->partial && f->delta_sums.n == 0;
    bool waits = once && weight && !c->norms_replace && f->ops->norm_linear;
    bool joins = partial && f->ops->reduce_norm && !(waits && f->reduce.whole);
    f->pending = f->partial = false;
    f->x_scale = 0.0f;
    f->delta_sums = (struct product_sums){.n = 0};
    if (f->n_before + f->n_after > 0) {
        TRY(partial ? f->ops->reduce(f->be, &f->reduce) : OK);
        return join_norms(f, &a);
    }
    if (!waits || joins) {
        if (partial) {
            return ops_reduce_norm(f->be, &f->reduce, &a);
        }
        return f->ops->norm(f->be, &a);
    }
    f->norm_waits = true;
    f->norm = a;
    if (partial) {
        return f->ops->reduce(f->be, &f->reduce);
    }
    return OK;
}

/* The gate's products use buffers of the feed-forward part and of deltas, which are free here. */
enum status flow_join_gated_norm(struct flow *f, const struct weight *weight,
                                 const struct weight *bias, const struct norm_gate *gate, bool once,
                                 struct tensor *input)
{
    struct model *m = f->m;
    TRY(flow_join_norm(f, weight, bias, once && !gate->in, input));
    if (!gate->in) {
        return OK;
    }
    const struct activation_args act = {.x = m->ff_in,
                                        .out = m->ff,
                                        .n_rows = f->n_rows,
                                        .width = m->config->norm_gate_rank,
                                        .kind = ACT_SILU};
    const struct gate_args sigmoid = {.x = *input,
                                      .out = *input,
                                      .gate = m->delta,
                                      .n_rows = f->n_rows,
                                      .width = m->config->hidden,
                                      .group = m->config->hidden,
                                      .act = GATE_SIGMOID,
                                      .scale = 1.0f};
    TRY(flow_linear(f, gate->in, *input, m->ff_in, NULL));
    TRY(f->ops->activation(f->be, &act));
    TRY(flow_linear(f, gate->out, m->ff, m->delta, NULL));
    return f->ops->gate(f->be, &sigmoid);
}

struct norm_args flow_own_norm_args(const struct flow *f, struct tensor in,
                                    const struct weight *weight, struct tensor out)
{
    const struct model_config *c = f->m->config;
    return (struct norm_args){.x = in,
                              .delta = no_tensor,
                              .out = out,
                              .weight = weight,
                              .n_rows = f->n_rows,
                              .width = c->hidden,
                              .kind = c->norm_kind,
                              .eps = c->norm_eps,
                              .weight_offset = c->norm_offset};
}

enum status flow_own_norm(struct flow *f, struct tensor in, const struct weight *weight,
                          struct tensor out)
{
    const struct norm_args a = flow_own_norm_args(f, in, weight, out);
    return f->ops->norm(f->be, &a);
}

enum status flow_take_delta(struct flow *f, const struct norm_args *then, int32_t n)
{
    struct norm_args all[FLOW_NORMS + MAX_STREAMS];
    int32_t n_all = 0;
    ASSERT(f->pending && !f->partial && n <= MAX_STREAMS);
    for (int32_t i = 0; i < f->n_before; i++) {
        all[n_all++] = f->before[i];
    }
    for (int32_t i = 0; i < n; i++) {
        all[n_all++] = then[i];
    }
    f->n_before = 0;
    f->pending = false;
    return ops_norms(f->be, all, n_all);
}

void flow_norm_before(struct flow *f, const struct norm_args *a)
{
    ASSERT(f->n_before < FLOW_NORMS);
    f->before[f->n_before++] = *a;
}

void flow_norm_after(struct flow *f, const struct weight *weight, const struct weight *bias,
                     struct tensor out)
{
    ASSERT(f->n_after < FLOW_NORMS);
    struct norm_args *a = &f->after[f->n_after++];
    *a = flow_own_norm_args(f, f->x, weight, out);
    a->bias = bias;
}

/* Leaves a sub-layer's result pending. Partial results of the ranks are reduced here only if the
 * sub-layer has its own norm, which needs the sum at once. */
enum status flow_finish_delta(struct flow *f, const struct reduce_args *reduce,
                              const struct weight *post_norm)
{
    struct model *m = f->m;
    f->pending = true;
    f->delta_scale = m->config->residual_scale;
    if (reduce && !post_norm) {
        f->partial = true;
        f->reduce = *reduce;
        if (reduce->moe) {
            f->moe = *reduce->moe;
            f->reduce.moe = &f->moe;
        }
        return OK;
    }
    if (reduce) {
        TRY(f->ops->reduce(f->be, reduce));
    }
    if (!post_norm) {
        return OK;
    }
    struct norm_args own = flow_own_norm_args(f, m->delta, post_norm, m->delta);
    if (m->config->post_norm_eps > 0.0f) {
        own.eps = m->config->post_norm_eps;
    }
    flow_norm_before(f, &own);
    return OK;
}

/* The place for partial sums if the next norm can add them up. NULL: the product must add them up
 * itself. */
struct product_sums *flow_sums_for_norm(struct flow *f, const struct weight *post_norm)
{
    struct model *m = f->m;
    struct norm_args next = {.x = f->x,
                             .delta = m->delta,
                             .out = norm_output(f),
                             .n_rows = f->n_rows,
                             .width = m->config->hidden,
                             .kind = m->config->norm_kind};
    const bool is_norm = m->config->hyper.n == 0;
    if (is_norm && !post_norm && ops_norm_adds_sums(f->be, &next)) {
        return &f->delta_sums;
    }
    return NULL;
}

enum status flow_attend(struct flow *f)
{
    if (!f->attention_waits) {
        return OK;
    }
    f->attention_waits = false;
    return ops_rope_attention(f->be, &f->store, &f->attention, NULL);
}

/* What an adapter adds needs a complete y. */
struct linear_args flow_product(const struct flow *f, const struct weight *w, struct tensor x,
                                struct tensor y, struct product_sums *sums)
{
    const struct adapter_pair *adapter = f->adapted ? model_adapter_of(f->m, w) : NULL;
    return (struct linear_args){.weight = w,
                                .x = x,
                                .y = y,
                                .n_rows = f->n_rows,
                                .sums = adapter ? NULL : sums,
                                .adapter = adapter,
                                .out_rows = f->narrowed};
}

enum status flow_linear(struct flow *f, const struct weight *w, struct tensor x, struct tensor y,
                        struct product_sums *sums)
{
    const struct linear_args a = flow_product(f, w, x, y, sums);
    if (f->norm_waits) {
        f->norm_waits = false;
        return ops_norm_linear(f->be, &f->norm, &a, NULL, NULL);
    }
    return ops_linear(f->be, &a);
}

enum status flow_gather(struct flow *f, struct tensor *x, struct tensor out, int32_t width)
{
    struct gather_args a = {.x = *x, .out = out, .n_out = f->n_out, .width = width};
    *x = out;
    return f->ops->gather(f->be, &a);
}

bool flow_stores_only(const struct flow *f, int32_t layer)
{
    return f->n_out == 0 && f->n_unfed == 0 && layer == f->m->config->last_store;
}
