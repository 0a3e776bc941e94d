/* A recurrent layer's part of the forward pass: T rows, of this rank's heads. */
#include "engine/model/model.h"

static struct tensor part_of_row(struct tensor t, int32_t at)
{
    t.mem = dmem_at(t.mem, (size_t)at * dtype_bytes(t.dtype));
    return t;
}

enum status recurrent_forward(struct model *m, int32_t layer, struct tensor in, int32_t n_rows,
                              bool stores)
{
    const struct backend_ops *ops = m->be->ops;
    const struct state_config *c = &m->config->state;
    const struct state_shard *s = &m->shard.state;
    const struct state_weights *w = &m->layers[layer].state;
    int32_t index = m->config->layers[layer].state;
    struct linear_args first = {.weight = w->in, .x = in, .y = m->mix, .n_rows = n_rows};
    TRY(ops->linear(m->be, &first)); // [T, D] -> [T, channels, gates, strengths, decays]
    struct short_conv_args conv = {
        .x = m->mix, .out = m->mix_conv, .weight = w->conv, .bias = w->conv_bias, .n_rows = n_rows,
        .layer = index, .width = s->layer.conv_width, .kernel = s->layer.conv_kernel,
        .silu = c->conv_silu};
    TRY(ops->short_conv(m->be, &conv));
    struct recurrence_args a = {
        .x = m->mix_conv, .q_at = s->q_at, .k_at = s->k_at, .v_at = s->v_at,
        .decay = part_of_row(m->mix, s->decay_at), .out = m->attn, .a_log = w->a_log,
        .dt_bias = w->dt_bias, .skip = w->skip, .n_rows = n_rows, .layer = index,
        .decay_bound = c->decay_bound};
    if (s->beta_at >= 0) {
        a.beta = part_of_row(m->mix, s->beta_at);
    }
    TRY(ops->recurrence(m->be, &a)); // [T, H, v]
    if (stores) {
        return OK;
    }
    struct gate_args gate = {
        .x = m->attn, .out = m->attn, .gate = part_of_row(m->mix, s->gate_at), .norm = w->norm,
        .n_rows = n_rows, .width = s->out_width, .group = c->norm_group, .act = c->gate,
        .gate_first = c->gate_first, .eps = c->norm_eps};
    return ops->gate(m->be, &gate);
}
