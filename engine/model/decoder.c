// SPDX-License-Identifier: Apache-2.0
/* The forward pass of every family: a straight list of ops over one batch of rows. This file
 * determines the order within a pass and within a layer; decoder.h has what the layers share. */
#include "engine/model/decoder.h"
#include "engine/base/assert.h"
#include "engine/model/head.h"

#include <math.h>

/* This layer's slice of the per-layer inputs. */
static struct tensor input_of(const struct flow *f, int32_t layer)
{
    struct tensor part = f->input;
    const size_t first = (size_t)layer * (size_t)f->m->config->layer_input;
    if (part.mem.p != f->m->out_input.mem.p) {
        part.mem = dmem_at(part.mem, first * dtype_bytes(part.dtype));
    }
    return part;
}

/* True if the hidden states after `layer` are requested; *out is then the place for them. */
static bool wants_hidden(const struct flow *f, int32_t layer, struct tensor *out)
{
    const struct model *m = f->m;
    for (int32_t i = 0; i < f->hidden.n; i++) {
        if (f->hidden.ids[i] == layer) {
            size_t first = (size_t)i * (size_t)m->config->hidden;
            *out = m->hidden;
            out->mem = dmem_at(m->hidden.mem, first * dtype_bytes(m->hidden.dtype));
            return true;
        }
    }
    return false;
}

/* Stores the hidden states after the previous layer, whose output has been added to x by now. Those
 * after the last layer need no copy, because from `narrow` on x is the output buffer itself. */
static enum status take_hidden(struct flow *f, int32_t layer)
{
    struct tensor x = f->x, out;
    if (f->n_unfed > 0) {
        bool fed;
        TRY(flow_attend(f)); // the head has products of its own
        TRY(head_feed(f->m, layer - 1, f->x, f->n_rows, &fed));
        f->n_unfed -= fed;
    }
    if (wants_hidden(f, layer - 1, &out)) {
        return flow_gather(f, &x, out, f->m->config->hidden);
    }
    return OK;
}

/* Drops all rows except the out rows. Called once the last layer's attention has stored all keys
 * and values, because only the out rows are needed then. `in`: the layer's input; NULL if it is not
 * read again. x must be gathered first: the next norm may read it before all ops queued ahead of
 * that norm have ended (cuda/README.md). */
static enum status narrow(struct flow *f, int32_t layer, struct tensor *in)
{
    struct model *m = f->m;
    const int32_t hidden = m->config->hidden;
    const bool all = f->n_out == f->n_rows || f->n_out == 0 || f->n_unfed > 0;
    if (layer < m->config->n_layers - 1 || all) {
        return OK;
    }
    TRY(flow_attend(f));
    TRY(m->config->hyper.n > 0 ? flow_narrow_streams(f) : flow_gather(f, &f->x, f->out_x, hidden));
    if (in) {
        TRY(flow_gather(f, in, m->out_h, hidden));
    }
    if (m->config->layer_input > 0) {
        f->input = input_of(f, layer);
        TRY(flow_gather(f, &f->input, m->out_input, m->config->layer_input));
    }
    TRY(flow_streams_narrow(f));
    f->h = m->out_h;
    f->n_rows = f->n_out;
    f->narrowed = true;
    return flow_gather(f, &f->attn, m->out_attn, m->attn.stride);
}

/* Norms the outputs of the heads in place. */
static enum status norm_heads(struct flow *f, const struct weight *weight, int32_t width)
{
    struct norm_args norm = flow_own_norm_args(f, f->attn, weight, f->attn);
    norm.width = width;
    TRY(flow_attend(f));
    return f->ops->norm(f->be, &norm);
}

/* Multiplies the outputs of the heads by this rank's part of the output weight, into delta.
 * `skipped`: the width of the heads that precede this rank's. */
static enum status heads_output(struct flow *f, const struct weight *weight, int32_t skipped,
                                const struct weight *post_norm)
{
    struct model *m = f->m;
    struct tensor heads = f->attn;
    heads.mem = dmem_at(heads.mem, (size_t)skipped * dtype_bytes(heads.dtype));
    struct linear_args o =
        flow_product(f, weight, heads, m->delta, flow_sums_for_norm(f, post_norm));
    o.partial = true;
    if (f->attention_waits) {
        f->attention_waits = false;
        TRY(ops_rope_attention(f->be, &f->store, &f->attention, &o));
    } else {
        TRY(ops_linear(f->be, &o));
    }
    struct reduce_args reduce = {.y = m->delta,
                                 .n_rows = f->n_rows,
                                 .width = m->config->hidden,
                                 .whole = m->shard.n_ranks == 1,
                                 .linear = weight};
    return flow_finish_delta(f, &reduce, post_norm);
}

static void scale_delta(struct flow *f, float scale)
{
    if (scale != 0.0f) {
        f->delta_scale = scale;
    }
}

static enum status attention_output(struct flow *f, int32_t layer)
{
    const struct model_config *c = f->m->config;
    const struct layer_share s = model_layer_share(c, &f->m->shard, layer);
    const struct layer_weights *w = &f->m->layers[layer];
    int32_t skipped = (s.first_o_head - s.first_head) * c->layers[layer].head_dim;
    const int32_t width = s.n_heads * c->layers[layer].head_dim;
    TRY(w->o_norm ? norm_heads(f, w->o_norm, width) : OK);
    TRY(heads_output(f, w->o, skipped, w->attn_post_norm));
    scale_delta(f, c->attn_out_scale);
    f->x_scale = c->attn_x_scale;
    return OK;
}

static enum status state_output(struct flow *f, int32_t layer)
{
    const struct state_shard *s = &f->m->shard.state;
    const struct layer_weights *w = &f->m->layers[layer];
    int32_t skipped = (s->first_o - s->first_head) * s->o_width;
    TRY(heads_output(f, w->state.out, skipped, w->attn_post_norm));
    scale_delta(f, f->m->config->state_out_scale);
    f->x_scale = f->m->config->state_x_scale;
    return OK;
}

/* The sub-layer that adds the per-layer input: delta = up(act(gate(x)) * input). */
static enum status layer_input(struct flow *f, int32_t layer)
{
    struct model *m = f->m;
    const struct layer_weights *w = &m->layers[layer];
    struct tensor x;
    TRY(flow_join_norm(f, NULL, NULL, false, &x));
    TRY(flow_linear(f, w->input_gate, x, m->ff_in, NULL));
    struct activation_args act = {.x = m->ff_in,
                                  .out = m->ff,
                                  .up = input_of(f, layer),
                                  .n_rows = f->n_rows,
                                  .width = m->config->layer_input,
                                  .kind = m->config->act,
                                  .gated = true};
    TRY(f->ops->activation(f->be, &act));
    TRY(flow_linear(f, w->input_up, m->ff, m->delta, NULL));
    return flow_finish_delta(f, NULL, w->input_post_norm);
}

/* Token mixing: computes f->attn from a layer's rows and those before them, and delta from f->attn.
 * If the layer has both attention and a state, both read the same input. *in is then the input of
 * an MLP beside it. *more becomes false if the pass ends here. */
static enum status mix(struct flow *f, int32_t layer, struct tensor *in, bool *more)
{
    const struct model_config *c = f->m->config;
    const struct layer_config *lc = &c->layers[layer];
    const struct layer_weights *w = &f->m->layers[layer];
    const bool both = lc->kv >= 0 && lc->state >= 0, stores = flow_stores_only(f, layer);
    // MLA with a low-rank query has one product of its input, other MLA has two, and an indexer has
    // more.
    const bool single = lc->index < 0 && (c->kv_lora == 0 || c->q_lora > 0);
    const bool twice = c->parallel_residual || w->branch_down; // other readers follow
    const bool once = !twice && single && lc->state < 0;
    struct tensor unused;
    *more = !stores;
    f->hyper = &w->attn_hyper;
    if (layer == 0 && f->first_input.mem.p) {
        *in = f->first_input;
    } else {
        if (c->parallel_norms) {
            flow_norm_after(f, w->ffn_norm, w->ffn_norm_bias, f->m->mlp_in);
        }
        TRY(flow_join_gated_norm(f, w->attn_norm, w->attn_norm_bias, &w->attn_norm_gate, once, in));
    }
    if (lc->kv >= 0) {
        TRY(c->kv_lora ? decoder_mla(f, layer, *in) : decoder_attention(f, layer, *in));
    }
    if (both && !stores) {
        TRY(take_hidden(f, layer));
        TRY(attention_output(f, layer));
        TRY(flow_join_norm(f, NULL, NULL, false, &unused));
    }
    if (lc->state >= 0) {
        TRY(recurrent_forward(f->m, layer, *in, f->n_rows, stores, f->adapted));
    }
    if (stores) {
        return OK;
    }
    if (!both) {
        TRY(take_hidden(f, layer));
    }
    if (c->parallel_norms) {
        *in = f->m->mlp_in;
    }
    TRY(narrow(f, layer, twice ? in : NULL));
    if (lc->state >= 0) {
        return state_output(f, layer);
    }
    TRY(attention_output(f, layer));
    return decoder_branch(f, layer, *in);
}

/* One layer: a mixer (attention or recurrence), then the feed-forward part; either may be missing.
 * A result is added to the residual stream only by the next norm, so that both are one op. */
static enum status layer_forward(struct flow *f, int32_t layer)
{
    const struct model_config *c = f->m->config;
    const struct layer_config *lc = &c->layers[layer];
    const struct layer_weights *w = &f->m->layers[layer];
    const bool parallel = c->parallel_residual; // both sub-layers read the same normed input
    const bool mixes = lc->kv >= 0 || lc->state >= 0;
    struct tensor in, unused;
    bool more = true;
    TRY(flow_streams_before(f, layer));
    if (mixes) {
        TRY(mix(f, layer, &in, &more));
    }
    if (!more || lc->no_ffn) {
        return OK;
    }
    if (!mixes) {
        TRY(flow_join_norm(f, NULL, NULL, false, &unused));
        TRY(take_hidden(f, layer));
        TRY(narrow(f, layer, NULL));
    }
    if (w->experts_norm) {
        flow_norm_after(f, w->router_norm, NULL, f->m->routed);
        flow_norm_after(f, w->experts_norm, NULL, f->m->experts_in);
    }
    f->hyper = &w->ffn_hyper;
    // attention's output is added to x, while `in` stays the input of both sub-layers
    if (parallel) {
        TRY(flow_join_norm(f, NULL, NULL, false, &unused));
    } else {
        TRY(flow_join_gated_norm(f, w->ffn_norm, w->ffn_norm_bias, &w->ffn_norm_gate,
                                 decoder_ffn_is_one_op(f, layer), &in));
    }
    TRY(decoder_ffn(f, layer, in));
    scale_delta(f, lc->ffn_out_scale);
    TRY(flow_streams_after(f, layer));
    if (w->input_gate) {
        TRY(layer_input(f, layer));
    }
    f->x_scale = w->x_scale;
    return flow_streams_spread(f, layer);
}

/* Stores what the draft head reads after the last layer, for all rows. */
static enum status feed_last(struct flow *f)
{
    struct model *m = f->m;
    struct tensor unused;
    if (f->n_unfed == 0) {
        return OK;
    }
    TRY(flow_join_norm(f, NULL, NULL, false, &unused));
    TRY(take_hidden(f, m->config->n_layers));
    if (f->n_unfed == 0) {
        return OK;
    }
    TRY(flow_own_norm(f, f->x, m->final_norm, m->h));
    f->n_unfed = 0;
    return head_feed_normed(m, m->h, f->n_rows);
}

/* If the head knows only some ids, spreads their logits over the whole vocabulary. */
static enum status logits_of(struct flow *f, bool all)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const bool few = m->ids.p != NULL;
    struct tensor y = m->shard.head_sharded ? m->logits_local : m->logits;
    const bool as_is = !all && !few && !m->shard.head_sharded && c->logit_scale == 1.0f &&
                       c->final_softcap <= 0.0f && !c->head_bias;
    struct linear_args head = {.weight = m->head,
                               .x = m->out_h,
                               .y = few ? m->own_logits : y,
                               .n_rows = f->n_out,
                               .head = true,
                               .n_drawn = as_is ? c->vocab : 0,
                               .bests = as_is ? &m->bests : NULL};
    m->bests = (struct logit_bests){.n_bands = 0};
    TRY(f->ops->linear(f->be, &head));
    struct logits_args logits = {.local = head.y,
                                 .logits = m->logits,
                                 .n_out = f->n_out,
                                 .vocab = c->vocab,
                                 .scale = c->logit_scale,
                                 .softcap = c->final_softcap,
                                 .ids = m->ids,
                                 .n_ids = few ? c->head.n_ids : 0};
    return f->ops->logits(f->be, &logits);
}

/* The final norm of the out rows, then the output head. */
static enum status ends(struct flow *f, struct model_outputs want)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const int32_t n_out = f->n_out;
    struct tensor unused;
    f->hyper = &m->end_hyper;
    TRY(flow_join_norm(f, NULL, NULL, false, &unused));
    if (f->x.mem.p != f->out_x.mem.p) { // narrow() has kept all rows
        TRY(flow_gather(f, &f->x, f->out_x, c->hidden));
    }
    struct norm_args norm = {.x = f->out_x,
                             .delta = no_tensor,
                             .out = m->out_h,
                             .weight = m->final_norm,
                             .bias = m->final_norm_bias,
                             .n_rows = n_out,
                             .width = c->hidden,
                             .kind = c->norm_kind,
                             .eps = c->norm_eps,
                             .weight_offset = c->norm_offset};
    TRY(f->ops->norm(f->be, &norm));
    if (want.pooled) {
        struct pool_args pool = {
            .hidden = want.hidden.n > 0 ? m->hidden : m->out_h, .n_out = n_out, .width = c->hidden};
        TRY(f->ops->pool(f->be, &pool));
    }
    if (c->head.kind != HEAD_NONE) {
        TRY(head_leave(m, f->out_x, m->out_h, n_out));
    }
    if (want.logits) {
        return logits_of(f, want.all_logits);
    }
    return OK;
}

static bool hidden_ok(const struct model *m, const struct hidden_layers *h)
{
    bool ok = h->n >= 0 && h->n <= m->max_hidden;
    for (int32_t i = 0; ok && i < h->n; i++) {
        ok = h->ids[i] > (i > 0 ? h->ids[i - 1] : -1) && h->ids[i] < m->config->n_layers;
    }
    return ok;
}

/* Computes the per-layer inputs of all layers side by side: (table + norm(proj x / sqrt(D))) /
 * sqrt(2). The division by sqrt(D) is folded into the norm's eps. */
static enum status make_inputs(struct flow *f)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    if (c->layer_input == 0) {
        return OK;
    }
    struct embed_args embed = {
        .table = m->inputs_embed, .x = m->inputs, .n_rows = f->n_rows, .scale = m->inputs_scale};
    TRY(f->ops->embed(f->be, &embed));
    TRY(flow_linear(f, m->inputs_proj, f->x, m->inputs_proj_out, NULL));
    struct tensor x = m->inputs, proj = m->inputs_proj_out; // a row per token and layer
    x.stride = proj.stride = c->layer_input;
    struct norm_args norm = {.x = proj,
                             .delta = no_tensor,
                             .out = proj,
                             .weight = m->inputs_norm,
                             .n_rows = f->n_rows * c->n_layers,
                             .width = c->layer_input,
                             .kind = c->norm_kind,
                             .eps = c->norm_eps * (float)c->hidden,
                             .weight_offset = c->norm_offset};
    TRY(f->ops->norm(f->be, &norm));
    struct norm_args join = {.x = x,
                             .delta = proj,
                             .out = no_tensor,
                             .n_rows = norm.n_rows,
                             .width = c->layer_input,
                             .delta_scale = 1.0f,
                             .x_scale = sqrtf(0.5f)};
    f->input = m->inputs;
    return f->ops->norm(f->be, &join);
}

/* The embeddings of the rows, in the flow's x. */
static enum status embed_rows(struct flow *f)
{
    struct model *m = f->m;
    const struct embed_args embed = {.table = m->embed,
                                     .x = f->x,
                                     .n_rows = f->n_rows,
                                     .scale = m->embed_scale,
                                     .positions = m->positions,
                                     .first_position = m->config->first_position,
                                     .types = m->token_types};
    TRY(f->ops->embed(f->be, &embed));
    if (!m->config->embed_normed && !m->embed_norm) {
        return OK;
    }
    const struct norm_args norm = {.x = f->x,
                                   .delta = no_tensor,
                                   .out = f->x,
                                   .weight = m->embed_norm,
                                   .bias = m->embed_norm_bias,
                                   .n_rows = f->n_rows,
                                   .width = m->config->hidden,
                                   .kind = m->embed_norm ? m->config->norm_kind : NORM_RMS,
                                   .eps = m->config->norm_eps};
    return f->ops->norm(f->be, &norm);
}

/* One pass. The flow holds what is pending between sub-layers, so that a norm, an addition and a
 * reduction can be one op. */
enum status model_forward(struct model *m, const struct pass_shape *shape,
                          struct model_outputs want)
{
    const struct model_config *c = m->config;
    struct flow f = {.m = m,
                     .ops = m->be->ops,
                     .be = m->be,
                     .n_rows = shape->n_rows,
                     .n_out = shape->n_out,
                     .x = m->x,
                     .h = m->h,
                     .attn = m->attn,
                     .out_x = m->out_x,
                     .hidden = want.hidden,
                     .adapted = want.adapted,
                     .n_unfed = head_feeds(m)};
    ASSERT(shape->n_rows <= m->max_rows && shape->n_out <= m->max_out);
    if (!hidden_ok(m, &want.hidden)) {
        return ERR_INVALID;
    }
    wants_hidden(&f, c->n_layers - 1, &f.out_x);
    flow_streams_begin(&f);
    TRY(embed_rows(&f));
    TRY(make_inputs(&f));
    TRY(flow_streams_open(&f));
    flow_start_streams(&f);
    if (c->head.kind != HEAD_NONE) {
        TRY(head_enter(m, f.n_rows, &f.first_input));
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (f.n_out == 0 && f.n_unfed == 0 && i > c->last_store) {
            break;
        }
        TRY(layer_forward(&f, i));
    }
    TRY(feed_last(&f));
    if (f.n_out > 0) {
        return ends(&f, want);
    }
    return OK;
}
