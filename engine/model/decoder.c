// SPDX-License-Identifier: Apache-2.0
/* The forward pass of every family: one straight list of ops over one batch of rows.
 * Shapes: T rows, D hidden, H query heads, K key/value heads, d head size, F feed-forward width (of
 * this rank). x is the residual stream; a sub-layer's output `delta` joins it in the next norm. */
#include "engine/base/assert.h"
#include "engine/device/ops_default.h"
#include "engine/model/model.h"

#include <math.h>

/* What the layers hand on: the residual stream, and the output that has yet to join it. */
struct flow {
    struct model *m;
    const struct backend_ops *ops;
    struct backend *be;
    int32_t n_rows, n_out;
    struct tensor x, h, attn;    // the model's, or from `narrow` on those of the out rows
    struct tensor out_x;         // what `narrow` makes x
    struct hidden_layers hidden; // whose states are asked for
    struct tensor input;         // of all layers' inputs; from `narrow` on the last layer's alone
    bool pending;                // delta waits to be added to x
    float delta_scale;           // times this
    float x_scale;               // what x is multiplied by then; 0: nothing
    bool partial;                // and, before that, to be reduced
    struct product_sums delta_sums; // what delta is left as, where its product is
    struct reduce_args reduce;
    struct moe_ffn_args moe; // what reduce.moe points to
    bool norm_waits;         // the next op, which alone reads what it makes, takes it along
    struct norm_args norm;
};

static const struct tensor none = {{NULL}, DT_F32, 0};

/* x += pending delta; out = norm(x). Without weights only the addition, and the input is x. `once`:
 * one product alone reads the input, so that both may be one op. */
static enum status join_norm(struct flow *f, const struct weight *weight, const struct weight *bias,
                             bool once, struct tensor *input)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    *input = weight ? f->h : f->x;
    if (!weight && !f->pending) {
        return OK;
    }
    struct norm_args a = {.x = f->x,
                          .delta = f->pending ? m->delta : none,
                          .out = weight ? f->h : none,
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
    bool partial = f->partial && f->delta_sums.n == 0; // of what is left as sums nothing is reduced
    bool waits = once && weight && f->ops->norm_linear;
    bool joins = partial && f->ops->reduce_norm && !(waits && f->reduce.whole);
    f->pending = f->partial = false;
    f->x_scale = 0.0f;
    f->delta_sums = (struct product_sums){.n = 0};
    if (!waits || joins) {
        return partial ? ops_reduce_norm(f->be, &f->reduce, &a) : f->ops->norm(f->be, &a);
    }
    f->norm_waits = true;
    f->norm = a;
    return partial ? f->ops->reduce(f->be, &f->reduce) : OK;
}

/* out = norm(in) of a sub-layer's own. */
static enum status own_norm(struct flow *f, struct tensor in, const struct weight *weight,
                            struct tensor out)
{
    const struct model_config *c = f->m->config;
    struct norm_args a = {.x = in,
                          .delta = none,
                          .out = out,
                          .weight = weight,
                          .n_rows = f->n_rows,
                          .width = c->hidden,
                          .kind = c->norm_kind,
                          .eps = c->norm_eps,
                          .weight_offset = c->norm_offset};
    return f->ops->norm(f->be, &a);
}

/* Ranks' partial sums of delta become whole (unless they are: reduce NULL), and a norm of the
 * sub-layer's own follows; without one the sum is left to the next norm, which may be one op with
 * it. */
static enum status finish_delta(struct flow *f, const struct reduce_args *reduce,
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
    return own_norm(f, m->delta, post_norm, m->delta);
}

/* Where the product that makes delta may leave it as sums: with the join_norm that is to come,
 * where no norm of the sub-layer's own reads it before. NULL: it may not. */
static struct product_sums *sums_for_norm(struct flow *f, const struct weight *post_norm)
{
    struct model *m = f->m;
    struct norm_args next = {.x = f->x,
                             .delta = m->delta,
                             .out = f->h,
                             .n_rows = f->n_rows,
                             .width = m->config->hidden,
                             .kind = m->config->norm_kind};
    return !post_norm && ops_norm_adds_sums(f->be, &next) ? &f->delta_sums : NULL;
}

/* sums: where y may be left as sums, NULL: it may not. */
static enum status linear(struct flow *f, const struct weight *w, struct tensor x, struct tensor y,
                          struct product_sums *sums)
{
    struct linear_args a = {.weight = w, .x = x, .y = y, .n_rows = f->n_rows, .sums = sums};
    if (f->norm_waits) {
        f->norm_waits = false;
        return ops_norm_linear(f->be, &f->norm, &a, NULL, NULL);
    }
    return f->ops->linear(f->be, &a);
}

/* The pass ends with this layer's keys and values: no row is asked of, and what comes behind only
 * reads. */
static bool stores_only(const struct flow *f, int32_t layer)
{
    return f->n_out == 0 && layer == f->m->config->last_store;
}

/* The heads' outputs, `width` elements each, times what lies in qkv behind `n_heads` of `head`. */
static enum status gate_heads(struct flow *f, int32_t n_heads, int32_t head, int32_t width)
{
    struct model *m = f->m;
    if (m->config->attn_gate == ATTN_GATE_NONE) {
        return OK;
    }
    struct gate_args a = {.x = m->attn,
                          .out = m->attn,
                          .gate = m->qkv,
                          .n_rows = f->n_rows,
                          .width = m->shard.n_heads * width,
                          .group = width,
                          .act = GATE_SIGMOID,
                          .per_group = m->config->attn_gate == ATTN_GATE_HEADS,
                          .scale = 1.0f};
    size_t at = (size_t)n_heads * (size_t)head;
    a.gate.mem = dmem_at(m->qkv.mem, at * dtype_bytes(m->qkv.dtype));
    return f->ops->gate(f->be, &a);
}

/* x[T, D] -> qkv[T, (H + 2K) d] -> attn[T, H d] */
static enum status attention(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const struct layer_weights *w = &m->layers[layer];
    const struct layer_config *lc = &c->layers[layer];
    const int32_t n_kv_heads = model_layer_share(c, &m->shard, layer).n_kv_heads;
    struct rope_store_args store = {
        .qkv = m->qkv,
        .rope = lc->rope >= 0 ? m->ropes[lc->rope] : NULL,
        .n_rows = f->n_rows,
        .layer = lc->kv,
        .n_heads = m->shard.n_heads,
        .n_kv_heads = lc->kv_of == layer ? n_kv_heads : 0, // else what it reads is stored
        .head_dim = lc->head_dim,
        .qk_norm = lc->plain_qk ? QK_NORM_NONE : c->qk_norm,
        .qk_norm_kind = c->qk_norm_kind,
        .norm_after_rope = c->qk_norm_after_rope,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .v_norm = c->v_norm,
        .eps = c->norm_eps,
        .norm_offset = c->norm_offset,
        .growth = lc->growth};
    bool left = c->attn_gate == ATTN_GATE_NONE && ops_rope_store_adds_sums(f->be, &store);
    struct product_sums *sums = left ? &store.sums : NULL;
    TRY(linear(f, w->qkv, in, m->qkv, sums));
    if (stores_only(f, layer)) {
        return f->ops->rope_store(f->be, &store);
    }
    struct attention_args a = {.q = m->qkv,
                               .out = m->attn,
                               .n_rows = f->n_rows,
                               .layer = lc->kv,
                               .n_heads = m->shard.n_heads,
                               .n_kv_heads = n_kv_heads,
                               .head_dim_k = lc->head_dim,
                               .head_dim_v = lc->head_dim,
                               .scale = c->attn_scale,
                               .window = lc->window,
                               .chunk = lc->chunk,
                               .softcap = c->attn_softcap,
                               .sinks = w->sinks};
    TRY(ops_rope_attention(f->be, &store, &a));
    return gate_heads(f, m->shard.n_heads + 2 * n_kv_heads, lc->head_dim, lc->head_dim);
}

/* MLA with the key and value products absorbed into q and the output: one shared key head of
 * kv_lora + rope_dim, whose first kv_lora elements are also the value. */
static enum status mla_attention(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const struct layer_weights *w = &m->layers[layer];
    int32_t q_head = c->nope_dim + c->rope_dim, key = c->kv_lora + c->rope_dim;
    struct tensor q_in = in;
    if (w->q_a) { // [T, D] -> [T, q_lora]
        TRY(linear(f, w->q_a, in, m->low, NULL));
        struct norm_args norm = {.x = m->low,
                                 .delta = none,
                                 .out = m->low,
                                 .weight = w->q_a_norm,
                                 .n_rows = f->n_rows,
                                 .width = c->q_lora,
                                 .eps = c->mla_norm_eps};
        TRY(f->ops->norm(f->be, &norm));
        q_in = m->low;
    }
    TRY(linear(f, w->qkv, q_in, m->qkv, NULL)); // [T, H (nope + rope)]
    TRY(linear(f, w->kv_a, in, m->low, NULL));  // [T, kv_lora + rope]
    struct mla_store_args store = {.q = m->qkv,
                                   .kv = m->low,
                                   .q_out = m->q_abs,
                                   .rope = c->layers[layer].rope >= 0 ? m->ropes[0] : NULL,
                                   .n_rows = f->n_rows,
                                   .layer = c->layers[layer].kv,
                                   .n_heads = m->shard.n_heads,
                                   .q_head = q_head,
                                   .q_rope_offset = c->nope_dim,
                                   .rope_dim = c->rope_dim,
                                   .kv_lora = c->kv_lora,
                                   .q_out_head = key,
                                   .q_out_offset = c->kv_lora,
                                   .kv_norm = w->kv_a_norm,
                                   .eps = c->mla_norm_eps,
                                   .growth = c->layers[layer].growth};
    TRY(f->ops->mla_store(f->be, &store));
    if (stores_only(f, layer)) {
        return OK;
    }
    struct linear_heads_args absorb = {.weight = w->w_uk,
                                       .x = m->qkv,
                                       .y = m->q_abs,
                                       .n_rows = f->n_rows,
                                       .x_head = q_head,
                                       .y_head = key};
    TRY(f->ops->linear_heads(f->be, &absorb)); // [T, H, nope] -> [T, H, kv_lora]
    struct attention_args a = {.q = m->q_abs,
                               .out = m->attn_v,
                               .n_rows = f->n_rows,
                               .layer = c->layers[layer].kv,
                               .n_heads = m->shard.n_heads,
                               .n_kv_heads = 1,
                               .head_dim_k = key,
                               .head_dim_v = c->kv_lora,
                               .scale = c->attn_scale,
                               .window = c->layers[layer].window,
                               .softcap = c->attn_softcap};
    TRY(f->ops->attention(f->be, &a));
    struct linear_heads_args expand = {.weight = w->w_uv,
                                       .x = m->attn_v,
                                       .y = m->attn,
                                       .n_rows = f->n_rows,
                                       .x_head = c->kv_lora,
                                       .y_head = c->v_dim};
    TRY(f->ops->linear_heads(f->be, &expand)); // [T, H, kv_lora] -> [T, H, v]
    return gate_heads(f, m->shard.n_heads, q_head, c->v_dim);
}

/* The layer's part of all layers' inputs. */
static struct tensor input_of(const struct flow *f, int32_t layer)
{
    struct tensor part = f->input;
    const size_t first = (size_t)layer * (size_t)f->m->config->layer_input;
    if (part.mem.p != f->m->out_input.mem.p) {
        part.mem = dmem_at(part.mem, first * dtype_bytes(part.dtype));
    }
    return part;
}

static enum status gather(struct flow *f, struct tensor *x, struct tensor out, int32_t width)
{
    struct gather_args a = {.x = *x, .out = out, .n_out = f->n_out, .width = width};
    *x = out;
    return f->ops->gather(f->be, &a);
}

/* Whether the hidden states behind `layer` are asked for, and their part of the output. */
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

/* The hidden states behind the layer before this one: by now its output has joined x. Those of the
 * last layer need no copy: from `narrow` on x lies in the output itself. */
static enum status take_hidden(struct flow *f, int32_t layer)
{
    struct tensor x = f->x, out;
    return wants_hidden(f, layer - 1, &out) ? gather(f, &x, out, f->m->config->hidden) : OK;
}

/* Other rows than the out rows are read no more once the last layer's attention has seen their keys
 * and values: they end here. `in`: the layer's input, NULL if it is not read again. x comes first:
 * the next norm may read it before all that stands in front of it has ended (cuda/README.md). */
static enum status narrow(struct flow *f, int32_t layer, struct tensor *in)
{
    struct model *m = f->m;
    const int32_t hidden = m->config->hidden;
    if (layer < m->config->n_layers - 1 || f->n_out == f->n_rows) {
        return OK;
    }
    TRY(gather(f, &f->x, f->out_x, hidden));
    if (in) {
        TRY(gather(f, in, m->out_h, hidden));
    }
    if (m->config->layer_input > 0) {
        f->input = input_of(f, layer);
        TRY(gather(f, &f->input, m->out_input, m->config->layer_input));
    }
    f->h = m->out_h;
    f->n_rows = f->n_out;
    return gather(f, &f->attn, m->out_attn, m->attn.stride);
}

/* The heads' outputs through this rank's part of the output product, into delta. `skipped`: what
 * lies before the heads that it takes. */
static enum status heads_output(struct flow *f, const struct weight *weight, int32_t skipped,
                                const struct weight *post_norm)
{
    struct model *m = f->m;
    struct tensor heads = f->attn;
    heads.mem = dmem_at(heads.mem, (size_t)skipped * dtype_bytes(heads.dtype));
    struct linear_args o = {.weight = weight,
                            .x = heads,
                            .y = m->delta,
                            .n_rows = f->n_rows,
                            .partial = true,
                            .sums = sums_for_norm(f, post_norm)};
    TRY(f->ops->linear(f->be, &o));
    struct reduce_args reduce = {.y = m->delta,
                                 .n_rows = f->n_rows,
                                 .width = m->config->hidden,
                                 .whole = m->shard.n_ranks == 1,
                                 .linear = weight};
    return finish_delta(f, &reduce, post_norm);
}

static void scale_delta(struct flow *f, float scale)
{
    f->delta_scale = scale != 0.0f ? scale : f->delta_scale;
}

static enum status attention_output(struct flow *f, int32_t layer)
{
    const struct model_shard *s = &f->m->shard;
    const struct layer_weights *w = &f->m->layers[layer];
    int32_t skipped = (s->first_o_head - s->first_head) * f->m->config->layers[layer].head_dim;
    TRY(heads_output(f, w->o, skipped, w->attn_post_norm));
    scale_delta(f, f->m->config->attn_out_scale);
    return OK;
}

static enum status state_output(struct flow *f, int32_t layer)
{
    const struct state_shard *s = &f->m->shard.state;
    const struct layer_weights *w = &f->m->layers[layer];
    int32_t skipped = (s->first_o - s->first_head) * s->o_width;
    TRY(heads_output(f, w->state.out, skipped, w->attn_post_norm));
    scale_delta(f, f->m->config->state_out_scale);
    return OK;
}

/* An MLP whose gates have a factor. */
static enum status scaled_mlp(struct flow *f, const struct linear_args *up,
                              const struct activation_args *act, const struct linear_args *down)
{
    struct gate_args gate = {.x = act->x,
                             .gate = act->x,
                             .out = act->out,
                             .n_rows = act->n_rows,
                             .width = act->width,
                             .group = act->width,
                             .act = GATE_SILU,
                             .scale = f->m->config->ffn_gate_scale};
    gate.x.mem = dmem_at(act->x.mem, (size_t)act->width * dtype_bytes(act->x.dtype));
    TRY(linear(f, up->weight, up->x, up->y, NULL));
    TRY(f->ops->gate(f->be, &gate));
    return f->ops->linear(f->be, down);
}

/* down(act(gate_up(in))) into delta, as this rank's partial sum. sums: as linear's. */
static enum status mlp(struct flow *f, const struct weight *gate_up, const struct weight *down,
                       int32_t width, struct tensor in, struct product_sums *sums)
{
    struct model *m = f->m;
    struct linear_args up = {.weight = gate_up, .x = in, .y = m->ff_in, .n_rows = f->n_rows};
    struct activation_args act = {.x = m->ff_in,
                                  .out = m->ff,
                                  .n_rows = f->n_rows,
                                  .width = width,
                                  .kind = m->config->act,
                                  .gated = m->config->gated,
                                  .shape = m->config->act_shape};
    struct linear_args a = {.weight = down,
                            .x = m->ff,
                            .y = m->delta,
                            .n_rows = f->n_rows,
                            .partial = true,
                            .sums = sums};
    if (m->config->ffn_gate_scale != 0.0f) {
        return scaled_mlp(f, &up, &act, &a);
    }
    if (f->norm_waits) {
        f->norm_waits = false;
        return ops_norm_linear(f->be, &f->norm, &up, &act, &a);
    }
    return ops_mlp(f->be, &up, &act, &a);
}

/* The shared experts, into delta: as this rank's partial sum, or whole. */
static enum status shared_experts(struct flow *f, const struct layer_weights *w, struct tensor in,
                                  bool whole)
{
    struct model *m = f->m;
    TRY(mlp(f, w->shared_gate_up, w->shared_down, m->shard.shared_ffn, in, NULL));
    struct reduce_args reduce = {.y = m->delta,
                                 .n_rows = f->n_rows,
                                 .width = m->config->hidden,
                                 .whole = m->shard.n_ranks == 1,
                                 .linear = w->shared_down};
    if (whole) {
        TRY(f->ops->reduce(f->be, &reduce));
    }
    if (!w->shared_router) {
        return OK;
    }
    struct row_gate_args gate = {.x = in,
                                 .y = m->delta,
                                 .weight = w->shared_router,
                                 .n_rows = f->n_rows,
                                 .x_width = m->config->hidden,
                                 .y_width = m->config->hidden};
    return f->ops->row_gate(f->be, &gate);
}

/* delta += routed, both whole. */
static enum status join_routed(struct flow *f)
{
    struct model *m = f->m;
    struct norm_args add = {.x = m->delta,
                            .delta = m->routed,
                            .out = none,
                            .n_rows = f->n_rows,
                            .width = m->config->hidden,
                            .delta_scale = 1.0f};
    return f->ops->norm(f->be, &add);
}

static enum status route(struct flow *f, const struct layer_weights *w, struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    struct moe_route_args a = {.router = w->router,
                               .correction = w->correction,
                               .expert_scale = w->expert_scale,
                               .x = in,
                               .ids = m->route_ids,
                               .weights = m->route_weights,
                               .n_rows = f->n_rows,
                               .n_experts = c->n_experts,
                               .k = c->experts_per_token,
                               .scoring = c->scoring,
                               .renormalise = c->renormalise,
                               .scale = c->routed_scale,
                               .n_group = c->n_group,
                               .topk_group = c->topk_group};
    return f->ops->moe_route(f->be, &a);
}

static struct moe_ffn_args experts_of(const struct flow *f, const struct layer_weights *w,
                                      struct tensor in, struct tensor y)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    return (struct moe_ffn_args){.gate_up = w->experts_gate_up,
                                 .down = w->experts_down,
                                 .x = in,
                                 .y = y,
                                 .ids = m->route_ids,
                                 .weights = m->route_weights,
                                 .n_rows = f->n_rows,
                                 .n_experts = c->n_experts,
                                 .k = c->experts_per_token,
                                 .ffn = m->shard.moe_ffn,
                                 .kind = c->act,
                                 .partial = true,
                                 .weigh_inputs = c->weigh_inputs,
                                 .plain = !c->gated,
                                 .shape = c->act_shape};
}

/* The experts between two products: their whole sum, brought back to the hidden width, into y. */
static enum status latent_experts(struct flow *f, const struct layer_weights *w, struct tensor in,
                                  struct tensor y)
{
    struct model *m = f->m;
    TRY(linear(f, w->latent_in, in, m->latent, NULL));
    struct moe_ffn_args ffn = experts_of(f, w, m->latent, m->latent_y);
    TRY(f->ops->moe_ffn(f->be, &ffn));
    struct reduce_args reduce = {.y = m->latent_y,
                                 .n_rows = f->n_rows,
                                 .width = m->config->moe_latent,
                                 .whole = m->shard.n_ranks == 1,
                                 .moe = &ffn};
    TRY(f->ops->reduce(f->be, &reduce));
    return linear(f, w->latent_out, m->latent_y, y, NULL);
}

static enum status moe(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const struct layer_weights *w = &m->layers[layer];
    const bool shared = w->shared_gate_up != NULL, latent = w->latent_in != NULL;
    const bool apart = latent || (shared && m->exact_ranks);
    if (shared) {
        TRY(shared_experts(f, w, in, apart));
    }
    TRY(route(f, w, in));
    if (latent) {
        TRY(latent_experts(f, w, in, shared ? m->routed : m->delta));
        TRY(shared ? join_routed(f) : OK);
        return finish_delta(f, NULL, w->ffn_post_norm);
    }
    struct moe_ffn_args ffn = experts_of(f, w, in, apart ? m->routed : m->delta);
    ffn.accumulate = shared && !apart;
    TRY(f->ops->moe_ffn(f->be, &ffn));
    struct reduce_args reduce = {.y = ffn.y,
                                 .n_rows = f->n_rows,
                                 .width = c->hidden,
                                 .whole = m->shard.n_ranks == 1,
                                 .moe = &ffn};
    if (!apart) {
        reduce.linear = w->shared_down; // in y too; where it is gated it has no bias
        return finish_delta(f, &reduce, w->ffn_post_norm);
    }
    TRY(f->ops->reduce(f->be, &reduce));
    TRY(join_routed(f));
    return finish_delta(f, NULL, w->ffn_post_norm);
}

/* An MLP on `in` and experts beside it, with norms of their own in front and behind: router and
 * experts read x. */
static enum status mlp_and_experts(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const struct layer_weights *w = &m->layers[layer];
    const bool whole = m->shard.n_ranks == 1;
    const int32_t ffn = model_layer_share(c, &m->shard, layer).ffn;
    TRY(mlp(f, w->gate_up, w->down, ffn, in, NULL));
    struct reduce_args reduce = {
        .y = m->delta, .n_rows = f->n_rows, .width = c->hidden, .whole = whole, .linear = w->down};
    TRY(f->ops->reduce(f->be, &reduce));
    TRY(own_norm(f, m->delta, w->mlp_post_norm, m->delta));
    TRY(own_norm(f, f->x, w->router_norm, f->h));
    TRY(route(f, w, f->h));
    TRY(own_norm(f, f->x, w->experts_norm, f->h));
    struct moe_ffn_args experts = experts_of(f, w, f->h, m->routed);
    TRY(f->ops->moe_ffn(f->be, &experts));
    reduce = (struct reduce_args){
        .y = m->routed, .n_rows = f->n_rows, .width = c->hidden, .whole = whole, .moe = &experts};
    TRY(f->ops->reduce(f->be, &reduce));
    TRY(own_norm(f, m->routed, w->experts_post_norm, m->routed));
    TRY(join_routed(f));
    return finish_delta(f, NULL, w->ffn_post_norm);
}

static enum status ffn_layer(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct layer_weights *w = &m->layers[layer];
    if (m->config->layers[layer].moe) {
        return w->experts_norm ? mlp_and_experts(f, layer, in) : moe(f, layer, in);
    }
    const int32_t ffn = model_layer_share(m->config, &m->shard, layer).ffn;
    TRY(mlp(f, w->gate_up, w->down, ffn, in, sums_for_norm(f, w->ffn_post_norm)));
    struct reduce_args reduce = {.y = m->delta,
                                 .n_rows = f->n_rows,
                                 .width = m->config->hidden,
                                 .whole = m->shard.n_ranks == 1,
                                 .linear = w->down};
    return finish_delta(f, &reduce, w->ffn_post_norm);
}

/* A further sub-layer, which joins the layer's own input: delta = up(act(gate(x)) * input). */
static enum status layer_input(struct flow *f, int32_t layer)
{
    struct model *m = f->m;
    const struct layer_weights *w = &m->layers[layer];
    struct tensor x;
    TRY(join_norm(f, NULL, NULL, false, &x));
    TRY(linear(f, w->input_gate, x, m->ff_in, NULL));
    struct activation_args act = {.x = m->ff_in,
                                  .out = m->ff,
                                  .up = input_of(f, layer),
                                  .n_rows = f->n_rows,
                                  .width = m->config->layer_input,
                                  .kind = m->config->act,
                                  .gated = true};
    TRY(f->ops->activation(f->be, &act));
    TRY(linear(f, w->input_up, m->ff, m->delta, NULL));
    return finish_delta(f, NULL, w->input_post_norm);
}

/* What the layer's rows take from those before them, into f->attn, and from there into delta. With
 * attention and a state both read the same input. False in *more: the pass ends here. */
static enum status mix(struct flow *f, int32_t layer, struct tensor *in, bool *more)
{
    const struct model_config *c = f->m->config;
    const struct layer_config *lc = &c->layers[layer];
    const struct layer_weights *w = &f->m->layers[layer];
    const bool both = lc->kv >= 0 && lc->state >= 0, stores = stores_only(f, layer);
    const bool once = !c->parallel_residual && c->kv_lora == 0 && lc->state < 0;
    struct tensor unused;
    *more = !stores;
    TRY(join_norm(f, w->attn_norm, w->attn_norm_bias, once, in));
    if (lc->kv >= 0) {
        TRY(c->kv_lora ? mla_attention(f, layer, *in) : attention(f, layer, *in));
    }
    if (both && !stores) {
        TRY(take_hidden(f, layer));
        TRY(attention_output(f, layer));
        TRY(join_norm(f, NULL, NULL, false, &unused));
    }
    if (lc->state >= 0) {
        TRY(recurrent_forward(f->m, layer, *in, f->n_rows, stores));
    }
    if (stores) {
        return OK;
    }
    TRY(both ? OK : take_hidden(f, layer));
    TRY(narrow(f, layer, c->parallel_residual ? in : NULL));
    return lc->state >= 0 ? state_output(f, layer) : attention_output(f, layer);
}

static enum status layer_forward(struct flow *f, int32_t layer)
{
    const struct model_config *c = f->m->config;
    const struct layer_config *lc = &c->layers[layer];
    const struct layer_weights *w = &f->m->layers[layer];
    const bool parallel = c->parallel_residual; // both sub-layers read the same normed input
    const bool mixes = lc->kv >= 0 || lc->state >= 0;
    struct tensor in, unused;
    bool more = true;
    if (mixes) {
        TRY(mix(f, layer, &in, &more));
    }
    if (!more || lc->no_ffn) {
        return OK;
    }
    if (!mixes) {
        TRY(join_norm(f, NULL, NULL, false, &unused));
        TRY(take_hidden(f, layer));
        TRY(narrow(f, layer, NULL));
    }
    if (parallel) { // it is kept while attention's output joins x
        TRY(join_norm(f, NULL, NULL, false, &unused));
    } else {
        TRY(join_norm(f, w->ffn_norm, w->ffn_norm_bias, !lc->moe, &in));
    }
    TRY(ffn_layer(f, layer, in));
    scale_delta(f, c->ffn_out_scale);
    if (w->input_gate) {
        TRY(layer_input(f, layer));
    }
    f->x_scale = w->x_scale;
    return OK;
}

/* The final norm of the out rows, and the head over them. */
static enum status ends(struct flow *f, struct model_outputs want)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const int32_t n_out = f->n_out;
    struct tensor unused;
    TRY(join_norm(f, NULL, NULL, false, &unused));
    if (f->x.mem.p != f->out_x.mem.p) { // all rows came here, in an order of their own
        TRY(gather(f, &f->x, f->out_x, c->hidden));
    }
    struct norm_args norm = {.x = f->out_x,
                             .delta = none,
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
        struct pool_args pool = {.hidden = m->out_h, .n_out = n_out, .width = c->hidden};
        TRY(f->ops->pool(f->be, &pool));
    }
    if (!want.logits) {
        return OK;
    }
    struct tensor y = m->shard.head_sharded ? m->logits_local : m->logits;
    const bool as_is = !m->shard.head_sharded && c->logit_scale == 1.0f && c->final_softcap <= 0.0f;
    struct linear_args head = {.weight = m->head,
                               .x = m->out_h,
                               .y = y,
                               .n_rows = n_out,
                               .head = true,
                               .n_drawn = as_is ? c->vocab : 0,
                               .bests = as_is ? &m->bests : NULL};
    m->bests = (struct logit_bests){.n_bands = 0};
    TRY(f->ops->linear(f->be, &head));
    struct logits_args logits = {.local = y,
                                 .logits = m->logits,
                                 .n_out = n_out,
                                 .vocab = c->vocab,
                                 .scale = c->logit_scale,
                                 .softcap = c->final_softcap};
    return f->ops->logits(f->be, &logits);
}

static bool hidden_ok(const struct model *m, const struct hidden_layers *h)
{
    bool ok = h->n >= 0 && h->n <= m->max_hidden;
    for (int32_t i = 0; ok && i < h->n; i++) {
        ok = h->ids[i] > (i > 0 ? h->ids[i - 1] : -1) && h->ids[i] < m->config->n_layers;
    }
    return ok;
}

/* The inputs of single layers, side by side: (table + norm(proj x / sqrt(D))) / sqrt(2). The norm
 * takes the division as an eps of more. */
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
    TRY(linear(f, m->inputs_proj, f->x, m->inputs_proj_out, NULL));
    struct tensor x = m->inputs, proj = m->inputs_proj_out; // a row for each row and layer
    x.stride = proj.stride = c->layer_input;
    struct norm_args norm = {.x = proj,
                             .delta = none,
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
                             .out = none,
                             .n_rows = norm.n_rows,
                             .width = c->layer_input,
                             .delta_scale = 1.0f,
                             .x_scale = sqrtf(0.5f)};
    f->input = m->inputs;
    return f->ops->norm(f->be, &join);
}

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
                     .hidden = want.hidden};
    ASSERT(shape->n_rows <= m->max_rows && shape->n_out <= m->max_out);
    if (!hidden_ok(m, &want.hidden)) {
        return ERR_INVALID;
    }
    wants_hidden(&f, c->n_layers - 1, &f.out_x);
    struct embed_args embed = {
        .table = m->embed, .x = m->x, .n_rows = f.n_rows, .scale = m->embed_scale};
    TRY(f.ops->embed(f.be, &embed));
    TRY(make_inputs(&f));
    const int32_t n_layers = f.n_out > 0 ? c->n_layers : c->last_store + 1;
    for (int32_t i = 0; i < n_layers; i++) {
        TRY(layer_forward(&f, i));
    }
    return f.n_out > 0 ? ends(&f, want) : OK;
}
