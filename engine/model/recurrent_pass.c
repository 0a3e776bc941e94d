// SPDX-License-Identifier: Apache-2.0
/* A recurrent layer's part of the forward pass, for T rows and this rank's heads. */
#include "engine/device/ops_default.h"
#include "engine/model/model.h"

static struct tensor part_of_row(struct tensor t, int32_t at)
{
    t.mem = dmem_at(t.mem, (size_t)at * dtype_bytes(t.dtype));
    return t;
}

static float scale_or_one(float scale)
{
    return scale != 0.0f ? scale : 1.0f;
}

static struct short_conv_args conv_of(struct model *m, int32_t layer, struct tensor out,
                                      int32_t n_rows)
{
    const struct state_shard *s = &m->shard.state;
    const struct state_weights *w = &m->layers[layer].state;
    return (struct short_conv_args){.x = m->mix,
                                    .out = out,
                                    .weight = w->conv,
                                    .bias = w->conv_bias,
                                    .n_rows = n_rows,
                                    .layer = m->config->layers[layer].state,
                                    .width = s->layer.conv_width,
                                    .kernel = s->layer.conv_kernel,
                                    .silu = m->config->state.conv_silu};
}

/* A convolution between two gates, each [T, C]. */
static enum status gated_conv(struct model *m, int32_t layer, int32_t n_rows, bool stores)
{
    const struct state_shard *s = &m->shard.state;
    struct gate_args a = {.x = m->mix,
                          .out = m->mix,
                          .gate = part_of_row(m->mix, s->in_gate_at),
                          .n_rows = n_rows,
                          .width = s->out_width,
                          .group = s->out_width,
                          .act = m->config->state.gate,
                          .scale = 1.0f};
    const struct short_conv_args conv = conv_of(m, layer, m->attn, n_rows);
    struct gate_args after = a;
    after.x = after.out = m->attn;
    after.gate = part_of_row(m->mix, s->gate_at);
    return ops_gated_conv(m->be, &a, &conv, stores ? NULL : &after);
}

static enum status product(struct model *m, const struct weight *w, struct tensor x,
                           struct tensor y, int32_t n_rows, bool adapted)
{
    struct linear_args a = {.weight = w,
                            .x = x,
                            .y = y,
                            .n_rows = n_rows,
                            .adapter = adapted ? model_adapter_of(m, w) : NULL};
    return ops_linear(m->be, &a);
}

enum status recurrent_forward(struct model *m, int32_t layer, struct tensor in, int32_t n_rows,
                              bool stores, bool adapted)
{
    const struct state_config *c = &m->config->state;
    const struct state_shard *s = &m->shard.state;
    const struct state_weights *w = &m->layers[layer].state;
    // [T, D] -> [T, channels, gates, decays, strengths]
    TRY(product(m, w->in, in, m->mix, n_rows, adapted));
    if (s->layer.kind == STATE_CONV) {
        return gated_conv(m, layer, n_rows, stores);
    }
    struct tensor decay = m->mix_decay, gates = m->mix_gate;
    if (c->low_rank > 0) {
        const struct tensor f_in = part_of_row(m->mix, s->low_at);
        const struct tensor g_in = part_of_row(m->mix, s->low_at + c->low_rank);
        TRY(product(m, w->f_b, f_in, decay, n_rows, adapted));
        TRY(product(m, w->g_b, g_in, gates, n_rows, adapted));
    } else {
        // fixed decays leave mix_decay zero
        decay = s->decay_at >= 0 ? part_of_row(m->mix, s->decay_at) : m->mix_decay;
        gates = part_of_row(m->mix, s->gate_at);
    }
    struct short_conv_args conv = conv_of(m, layer, m->mix_conv, n_rows);
    struct recurrence_args a = {.x = m->mix_conv,
                                .q_at = s->q_at,
                                .k_at = s->k_at,
                                .v_at = s->v_at,
                                .decay = decay,
                                .out = m->attn,
                                .a_log = w->a_log,
                                .dt_bias = w->dt_bias,
                                .skip = w->skip,
                                .n_rows = n_rows,
                                .layer = m->config->layers[layer].state,
                                .decay_scale = scale_or_one(c->decay_scale),
                                .beta_scale = scale_or_one(c->beta_scale),
                                .decay_bound = c->decay_bound,
                                .dt_min = c->dt_min,
                                .dt_max = c->dt_max};
    if (s->beta_at >= 0) {
        a.beta = part_of_row(m->mix, s->beta_at);
    }
    struct gate_args gate = {// [T, H, v]
                             .x = m->attn,
                             .out = m->attn,
                             .gate = gates,
                             .norm = w->norm,
                             .n_rows = n_rows,
                             .width = s->out_width,
                             .group = c->norm_group,
                             .act = c->gate,
                             .gate_first = c->gate_first,
                             .scale = scale_or_one(c->gate_scale),
                             .eps = c->norm_eps};
    return ops_recurrent(m->be, &conv, &a, stores ? NULL : &gate);
}
