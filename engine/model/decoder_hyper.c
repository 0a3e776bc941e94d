// SPDX-License-Identifier: Apache-2.0
/* Hyper-connections: the residual is several streams. The op between two sub-layers adds the result
 * of one to every stream, and makes the input of the next. */
#include "engine/base/assert.h"
#include "engine/model/decoder.h"

/* Only plain blocks have them. */
static bool fits(const struct model_config *c)
{
    return c->norm_place == NORM_PRE && !c->norms_replace && c->norm_kind == NORM_RMS &&
           !c->parallel_residual && !c->norm_bias && !c->scaled_layers && c->layer_input == 0 &&
           !c->experts_beside;
}

void flow_start_streams(struct flow *f)
{
    struct model *m = f->m;
    if (m->config->hyper.n > 0) {
        ASSERT(fits(m->config));
        f->streams = m->streams;
        f->gates = m->gates;
        f->begins = true;
    }
}

/* Norms that have been left to this one come first. */
static enum status finish_result(struct flow *f)
{
    const int32_t n = f->n_before;
    if (f->partial) {
        TRY(f->ops->reduce(f->be, &f->reduce));
    }
    f->partial = false;
    f->n_before = 0;
    return ops_norms(f->be, f->before, n);
}

/* The result of the sub-layer before, or at first the embeddings, is added. x, the mixture itself,
 * is stored if it is read: at the end, and where hidden states are requested. */
enum status flow_join_streams(struct flow *f, const struct weight *norm, struct tensor *input)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const struct hyper_weights *w = f->hyper;
    struct hyper_args a = {.streams = f->streams,
                           .delta = f->begins ? f->x : no_tensor,
                           .x = !norm || f->hidden.n > 0 ? f->x : no_tensor,
                           .out = norm ? f->h : no_tensor,
                           .gates = f->gates,
                           .fn = w->fn,
                           .base = w->base,
                           .scale = w->scale,
                           .norm = norm,
                           .n_rows = f->n_rows,
                           .width = c->hidden,
                           .n = c->hyper.n,
                           .n_sinkhorn = c->hyper.n_sinkhorn,
                           .begins = f->begins,
                           .ends = w == &m->end_hyper,
                           .norm_eps = c->norm_eps,
                           .eps = c->hyper.eps,
                           .magnitude = c->hyper.magnitude,
                           .after_eps = c->hyper.after_eps};
    ASSERT(f->n_after == 0 && f->delta_sums.n == 0 && f->pending != f->begins);
    *input = norm ? f->h : f->x;
    if (f->pending) {
        TRY(finish_result(f));
        a.delta = m->delta;
    }
    f->pending = f->begins = false;
    return f->ops->hyper(f->be, &a);
}

/* The out rows of the streams and of their gates; no op reads x again before it is the mixture at
 * the end. */
enum status flow_narrow_streams(struct flow *f)
{
    struct model *m = f->m;
    const int32_t n = m->config->hyper.n;
    const struct gather_args streams = {
        .x = f->streams, .out = m->out_streams, .n_out = f->n_out, .width = n * m->config->hidden};
    const struct gather_args gates = {
        .x = f->gates, .out = m->out_gates, .n_out = f->n_out, .width = HYPER_GATES(n)};
    f->streams = m->out_streams;
    f->gates = m->out_gates;
    f->x = f->out_x;
    TRY(f->ops->gather(f->be, &streams));
    return f->ops->gather(f->be, &gates);
}
