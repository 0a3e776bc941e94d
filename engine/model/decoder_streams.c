// SPDX-License-Identifier: Apache-2.0
/* Several residual streams (AltUp): all are mixed before a layer, one of them passes through it,
 * and the others follow what the layer has changed. Also the low-rank branch beside attention
 * (Laurel), which adds to what the layer adds. */
#include "engine/model/decoder.h"

/* A row's mean square below this counts as this. */
#define RMS_FLOOR 1e-5f

static bool are_several(const struct flow *f)
{
    return f->m->config->streams.n > 0;
}

static struct tensor stream_of(const struct flow *f, int32_t i)
{
    struct tensor s = f->streams;
    const size_t first = (size_t)i * (size_t)f->m->config->hidden;
    s.mem = dmem_at(s.mem, first * dtype_bytes(s.dtype));
    return s;
}

void flow_streams_begin(struct flow *f)
{
    if (are_several(f)) {
        f->streams = f->m->streams;
        f->x = stream_of(f, 0);
    }
}

/* out = weight x, with the size of `like`. */
static enum status sized_product(struct flow *f, const struct weight *weight, struct tensor x,
                                 struct tensor like, struct tensor out)
{
    const struct rms_match_args match = {.x = f->m->delta,
                                         .like = like,
                                         .out = out,
                                         .n_rows = f->n_rows,
                                         .width = f->m->config->hidden,
                                         .floor = RMS_FLOOR};
    TRY(flow_linear(f, weight, x, f->m->delta, NULL));
    return f->ops->rms_match(f->be, &match);
}

enum status flow_streams_open(struct flow *f)
{
    struct model *m = f->m;
    for (int32_t i = 1; i < m->config->streams.n; i++) {
        TRY(sized_product(f, m->stream_in[i - 1], f->x, f->x, stream_of(f, i)));
    }
    f->x = m->x;
    return OK;
}

static struct streams_args streams_of(const struct flow *f, int32_t layer, struct tensor in)
{
    const struct model_config *c = f->m->config;
    return (struct streams_args){.streams = f->streams,
                                 .x = f->x,
                                 .in = in,
                                 .router = f->m->layers[layer].stream_router,
                                 .n_rows = f->n_rows,
                                 .width = c->hidden,
                                 .n = c->streams.n,
                                 .active = c->streams.active,
                                 .router_scale = 1.0f / (float)c->hidden};
}

enum status flow_streams_before(struct flow *f, int32_t layer)
{
    const struct layer_weights *w = &f->m->layers[layer];
    if (!are_several(f)) {
        return OK;
    }
    const struct tensor active = stream_of(f, f->m->config->streams.active);
    TRY(flow_own_norm(f, active, w->stream_router_norm, f->h));
    struct streams_args a = streams_of(f, layer, f->h);
    a.coefs = w->stream_before;
    return f->ops->streams(f->be, &a);
}

enum status flow_streams_after(struct flow *f, int32_t layer)
{
    const struct layer_weights *w = &f->m->layers[layer];
    struct tensor in;
    if (!are_several(f)) {
        return OK;
    }
    TRY(flow_join_norm(f, w->stream_router_norm, NULL, false, &in));
    struct streams_args a = streams_of(f, layer, in);
    a.coefs = w->stream_after;
    a.scale = w->stream_scale;
    a.after = true;
    return f->ops->streams(f->be, &a);
}

static struct norm_args addition(const struct flow *f, struct tensor x, struct tensor delta)
{
    return (struct norm_args){.x = x,
                              .delta = delta,
                              .out = no_tensor,
                              .n_rows = f->n_rows,
                              .width = f->m->config->hidden,
                              .delta_scale = 1.0f};
}

/* x = the mean of the first stream and the products of the others. */
static enum status join(struct flow *f)
{
    struct model *m = f->m;
    const int32_t n = m->config->streams.n;
    const struct tensor first = stream_of(f, 0);
    for (int32_t i = 1; i < n; i++) {
        struct norm_args sum = addition(f, f->x, i == 1 ? first : m->delta);
        sum.x_scale = i == n - 1 ? 1.0f / (float)n : 0.0f;
        TRY(sized_product(f, m->stream_out[i - 1], stream_of(f, i), first,
                          i == 1 ? f->x : m->delta));
        TRY(f->ops->norm(f->be, &sum));
    }
    return OK;
}

enum status flow_streams_spread(struct flow *f, int32_t layer)
{
    const struct model_config *c = f->m->config;
    struct norm_args sums[MAX_STREAMS];
    if (!are_several(f)) {
        return OK;
    }
    for (int32_t i = 1; i < c->streams.n; i++) {
        sums[i - 1] = addition(f, stream_of(f, i), f->m->delta);
    }
    TRY(flow_take_delta(f, sums, c->streams.n - 1));
    return layer == c->n_layers - 1 ? join(f) : OK;
}

enum status flow_streams_narrow(struct flow *f)
{
    const struct model_config *c = f->m->config;
    return are_several(f) ? flow_gather(f, &f->streams, f->m->out_streams, c->streams.n * c->hidden)
                          : OK;
}

enum status decoder_branch(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct layer_weights *w = &m->layers[layer];
    if (!w->branch_down) {
        return OK;
    }
    TRY(flow_linear(f, w->branch_down, in, m->ff_in, NULL));
    TRY(flow_linear(f, w->branch_up, m->ff_in, m->branch, NULL));
    const struct norm_args norm = flow_own_norm_args(f, m->branch, w->branch_norm, m->branch);
    const struct norm_args with_input = addition(f, m->branch, in);
    const struct norm_args with_delta = addition(f, m->delta, m->branch);
    flow_norm_before(f, &norm);
    flow_norm_before(f, &with_input);
    flow_norm_before(f, &with_delta);
    f->x_scale = m->config->branch_scale;
    return OK;
}
