// SPDX-License-Identifier: Apache-2.0
/* The feed-forward half of a layer: an MLP, experts, shared experts, or several of these. */
#include "engine/model/decoder.h"

/* An MLP whose gates are scaled. */
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
    TRY(flow_linear(f, up->weight, up->x, up->y, NULL));
    TRY(f->ops->gate(f->be, &gate));
    return ops_linear(f->be, down);
}

static struct row_gate_args shared_gate_of(const struct flow *f, const struct layer_weights *w,
                                           struct tensor in)
{
    const int32_t hidden = f->m->config->hidden;
    return (struct row_gate_args){.x = in,
                                  .y = f->m->delta,
                                  .weight = w->shared_router,
                                  .n_rows = f->n_rows,
                                  .x_width = hidden,
                                  .y_width = hidden};
}

/* Computes down(act(gate_up(in))) into delta, as this rank's partial sum. sums: as for
 * flow_linear. */
struct mlp_args {
    struct linear_args up, down;
    struct activation_args act;
};

static struct mlp_args mlp_of(const struct flow *f, const struct layer_weights *w,
                              const struct weight *gate_up, const struct weight *down,
                              int32_t width, struct tensor in, struct product_sums *sums)
{
    struct model *m = f->m;
    struct mlp_args a = {
        .up = flow_product(f, gate_up, in, m->ff_in, NULL),
        .down = flow_product(f, down, m->ff, m->delta, sums),
        .act = {.x = m->ff_in,
                .out = m->ff,
                .n_rows = f->n_rows,
                .width = width,
                .kind = w->mlp_act.kind,
                .gated = m->config->gated,
                .shape = w->mlp_act.shape},
    };
    a.down.partial = true;
    return a;
}

/* An MLP of which only the gates that stand out are open. Every rank computes all gates, because
 * they are compared with each other, and then multiplies its part of them. */
static enum status sparse_mlp(struct flow *f, int32_t layer, const struct mlp_args *a)
{
    const struct model *m = f->m;
    const struct layer_share s = model_layer_share(m->config, &m->shard, layer);
    const size_t bytes = dtype_bytes(m->ff_in.dtype);
    const struct cutoff_args cutoff = {.x = m->ff_in,
                                       .n_rows = f->n_rows,
                                       .width = s.gates,
                                       .deviations = m->config->layers[layer].cutoff.deviations};
    struct activation_args act = a->act;
    act.up = m->ff_in;
    act.up.mem = dmem_at(m->ff_in.mem, (size_t)s.gates * bytes);
    act.x.mem = dmem_at(m->ff_in.mem, (size_t)s.first_gate * bytes);
    TRY(flow_linear(f, a->up.weight, a->up.x, a->up.y, NULL));
    TRY(f->ops->cutoff(f->be, &cutoff));
    TRY(f->ops->activation(f->be, &act));
    return ops_linear(f->be, &a->down);
}

/* An MLP with a norm before its last product. Every rank computes all of what is normed, and then
 * multiplies its part. */
static enum status normed_mlp(struct flow *f, int32_t layer, const struct mlp_args *a)
{
    const struct model *m = f->m;
    const struct layer_share s = model_layer_share(m->config, &m->shard, layer);
    const struct weight *weight = m->layers[layer].down_norm;
    struct norm_args norm = flow_own_norm_args(f, a->act.out, weight, a->act.out);
    struct activation_args act = a->act;
    struct linear_args down = a->down;
    norm.width = act.width = s.gates;
    down.x.mem = dmem_at(m->ff.mem, (size_t)s.first_gate * dtype_bytes(m->ff.dtype));
    TRY(flow_linear(f, a->up.weight, a->up.x, a->up.y, NULL));
    TRY(f->ops->activation(f->be, &act));
    TRY(f->ops->norm(f->be, &norm));
    return ops_linear(f->be, &down);
}

/* Fuses a pending norm with the first product. */
static enum status mlp(struct flow *f, const struct mlp_args *a)
{
    if (f->m->config->ffn_gate_scale != 0.0f) {
        return scaled_mlp(f, &a->up, &a->act, &a->down);
    }
    if (f->norm_waits) {
        f->norm_waits = false;
        return ops_norm_linear(f->be, &f->norm, &a->up, &a->act, &a->down);
    }
    return ops_mlp(f->be, &a->up, &a->act, &a->down);
}

/* Computes the shared experts into delta, reduced over the ranks. */
static enum status shared_experts(struct flow *f, const struct layer_weights *w, struct tensor in)
{
    struct model *m = f->m;
    const struct mlp_args a =
        mlp_of(f, w, w->shared_gate_up, w->shared_down, m->shard.shared_ffn, in, NULL);
    TRY(mlp(f, &a));
    struct reduce_args reduce = {.y = m->delta,
                                 .n_rows = f->n_rows,
                                 .width = m->config->hidden,
                                 .whole = m->shard.n_ranks == 1,
                                 .linear = w->shared_down};
    TRY(f->ops->reduce(f->be, &reduce));
    if (!w->shared_router) {
        return OK;
    }
    const struct row_gate_args gate = shared_gate_of(f, w, in);
    return f->ops->row_gate(f->be, &gate);
}

/* delta += routed; both are reduced already. */
static void join_routed(struct flow *f)
{
    struct model *m = f->m;
    const struct norm_args add = {.x = m->delta,
                                  .delta = m->routed,
                                  .out = no_tensor,
                                  .n_rows = f->n_rows,
                                  .width = m->config->hidden,
                                  .delta_scale = 1.0f};
    flow_norm_before(f, &add);
}

static struct moe_route_args route_of(const struct flow *f, const struct layer_weights *w,
                                      struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    return (struct moe_route_args){.router = w->router,
                                   .correction = w->correction,
                                   .expert_scale = w->expert_scale,
                                   .x = in,
                                   .ids = m->route_ids,
                                   .weights = m->route_weights,
                                   .n_rows = f->n_rows,
                                   .n_experts = c->n_experts + c->n_identity,
                                   .k = c->experts_per_token,
                                   .scoring = c->scoring,
                                   .renormalise = c->renormalise,
                                   .scale = c->routed_scale,
                                   .spread = c->routed_spread,
                                   .n_group = c->n_group,
                                   .topk_group = c->topk_group};
}

static enum status route(struct flow *f, const struct layer_weights *w, struct tensor in)
{
    const struct moe_route_args a = route_of(f, w, in);
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
                                 .kind = w->experts_act.kind,
                                 .partial = true,
                                 .weigh_inputs = c->weigh_inputs,
                                 .plain = !c->gated,
                                 .shape = w->experts_act.shape};
}

/* Experts at a latent width: projects their reduced sum back to the hidden width, into y. */
static enum status latent_experts(struct flow *f, const struct layer_weights *w, struct tensor in,
                                  struct tensor y)
{
    struct model *m = f->m;
    TRY(flow_linear(f, w->latent_in, in, m->latent, NULL));
    struct moe_ffn_args ffn = experts_of(f, w, m->latent, m->latent_y);
    TRY(f->ops->moe_ffn(f->be, &ffn));
    struct reduce_args reduce = {.y = m->latent_y,
                                 .n_rows = f->n_rows,
                                 .width = m->config->moe_latent,
                                 .whole = m->shard.n_ranks == 1,
                                 .moe = &ffn};
    TRY(f->ops->reduce(f->be, &reduce));
    return flow_linear(f, w->latent_out, m->latent_y, y, NULL);
}

/* The shared and the routed experts, each reduced separately before they are added. */
static enum status apart(struct flow *f, const struct layer_weights *w, struct tensor in)
{
    struct model *m = f->m;
    const bool shared = w->shared_gate_up != NULL;
    const struct tensor y = shared ? m->routed : m->delta;
    TRY(shared ? shared_experts(f, w, in) : OK);
    TRY(route(f, w, in));
    if (w->latent_in) {
        TRY(latent_experts(f, w, in, y));
    } else {
        struct moe_ffn_args ffn = experts_of(f, w, in, y);
        TRY(f->ops->moe_ffn(f->be, &ffn));
        struct reduce_args reduce = {.y = y,
                                     .n_rows = f->n_rows,
                                     .width = m->config->hidden,
                                     .whole = m->shard.n_ranks == 1,
                                     .moe = &ffn};
        TRY(f->ops->reduce(f->be, &reduce));
    }
    if (shared) {
        join_routed(f);
    }
    return flow_finish_delta(f, NULL, w->ffn_post_norm);
}

/* The routed experts, added to the shared ones if there are any, and reduced together with them. */
static enum status together(struct flow *f, const struct layer_weights *w, struct tensor in)
{
    struct model *m = f->m;
    const bool shared = w->shared_gate_up != NULL;
    const struct moe_route_args picks = route_of(f, w, in);
    struct moe_ffn_args ffn = experts_of(f, w, in, m->delta);
    ffn.accumulate = shared;
    const struct mlp_args a =
        mlp_of(f, w, w->shared_gate_up, w->shared_down, m->shard.shared_ffn, in, NULL);
    const struct row_gate_args gate = shared_gate_of(f, w, in);
    const struct shared_expert_args beside = {
        .up = a.up, .act = a.act, .down = a.down, .gate = w->shared_router ? &gate : NULL};
    const struct norm_args *norm = f->norm_waits ? &f->norm : NULL;
    f->norm_waits = false;
    TRY(ops_moe(f->be, norm, shared ? &beside : NULL, &picks, &ffn));
    struct reduce_args reduce = {.y = m->delta,
                                 .n_rows = f->n_rows,
                                 .width = m->config->hidden,
                                 .whole = m->shard.n_ranks == 1,
                                 // Shared experts with a gate have no bias.
                                 .linear = w->shared_down,
                                 .moe = &ffn};
    return flow_finish_delta(f, &reduce, w->ffn_post_norm);
}

static bool are_apart(const struct flow *f, const struct layer_weights *w)
{
    return w->latent_in || (w->shared_gate_up && f->m->exact_ranks);
}

static enum status moe(struct flow *f, const struct layer_weights *w, struct tensor in)
{
    return are_apart(f, w) ? apart(f, w, in) : together(f, w, in);
}

bool decoder_ffn_is_one_op(const struct flow *f, int32_t layer)
{
    const struct layer_weights *w = &f->m->layers[layer];
    const bool late = f->m->config->experts_late;
    return !f->m->config->layers[layer].moe || (!late && !w->experts_norm && !are_apart(f, w));
}

/* An MLP that reads `in`, plus experts with separate norms before and after them: the layer has
 * left the normed inputs of the router and of the experts in m->routed and m->experts_in. */
static enum status mlp_and_experts(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const struct layer_weights *w = &m->layers[layer];
    const bool whole = m->shard.n_ranks == 1;
    const int32_t ffn = model_layer_share(c, &m->shard, layer).ffn;
    const struct mlp_args a = mlp_of(f, w, w->gate_up, w->down, ffn, in, NULL);
    const struct shared_expert_args beside = {.up = a.up, .act = a.act, .down = a.down};
    const struct moe_route_args picks = route_of(f, w, m->routed);
    struct moe_ffn_args experts = experts_of(f, w, m->experts_in, m->routed);
    TRY(ops_moe(f->be, NULL, &beside, &picks, &experts));
    struct reduce_args reduce = {
        .y = m->delta, .n_rows = f->n_rows, .width = c->hidden, .whole = whole, .linear = w->down};
    TRY(f->ops->reduce(f->be, &reduce));
    reduce = (struct reduce_args){
        .y = m->routed, .n_rows = f->n_rows, .width = c->hidden, .whole = whole, .moe = &experts};
    TRY(f->ops->reduce(f->be, &reduce));
    const struct norm_args posts[2] = {
        flow_own_norm_args(f, m->delta, w->mlp_post_norm, m->delta),
        flow_own_norm_args(f, m->routed, w->experts_post_norm, m->routed)};
    flow_norm_before(f, &posts[0]);
    flow_norm_before(f, &posts[1]);
    join_routed(f);
    return flow_finish_delta(f, NULL, w->ffn_post_norm);
}

/* The experts' result, into m->late; those that return their input are not reduced over ranks. */
static enum status late_experts(struct flow *f, const struct layer_weights *w, struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const bool some_return = c->n_identity > 0;
    const struct moe_identity_args identity = {.x = in,
                                               .y = m->late,
                                               .ids = m->route_ids,
                                               .weights = m->route_weights,
                                               .n_rows = f->n_rows,
                                               .width = c->hidden,
                                               .n_experts = c->n_experts,
                                               .k = c->experts_per_token};
    struct moe_ffn_args experts = experts_of(f, w, in, some_return ? m->routed : m->late);
    const struct reduce_args reduce = {.y = experts.y,
                                       .n_rows = f->n_rows,
                                       .width = c->hidden,
                                       .whole = m->shard.n_ranks == 1,
                                       .moe = &experts};
    const struct norm_args add = {.x = m->late,
                                  .delta = m->routed,
                                  .out = no_tensor,
                                  .n_rows = f->n_rows,
                                  .width = c->hidden,
                                  .delta_scale = 1.0f};
    TRY(route(f, w, in));
    TRY(some_return ? f->ops->moe_identity(f->be, &identity) : OK);
    TRY(f->ops->moe_ffn(f->be, &experts));
    TRY(f->ops->reduce(f->be, &reduce));
    return some_return ? f->ops->norm(f->be, &add) : OK;
}

/* delta += the result of the experts of the layer before this one. */
static enum status add_late(struct flow *f)
{
    struct model *m = f->m;
    struct tensor late = m->late;
    if (f->narrowed) {
        TRY(flow_gather(f, &late, m->routed, m->config->hidden));
    }
    const struct norm_args add = {.x = m->delta,
                                  .delta = late,
                                  .out = no_tensor,
                                  .n_rows = f->n_rows,
                                  .width = m->config->hidden,
                                  .delta_scale = 1.0f};
    flow_norm_before(f, &add);
    return OK;
}

/* An MLP, experts, or both. The result stays pending in delta. */
enum status decoder_ffn(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct layer_weights *w = &m->layers[layer];
    const bool moes = m->config->layers[layer].moe, late = m->config->experts_late;
    if (moes && !late) {
        return w->experts_norm ? mlp_and_experts(f, layer, in) : moe(f, w, in);
    }
    TRY(moes ? late_experts(f, w, in) : OK);
    const bool adds = late && !moes;
    const int32_t ffn = model_layer_share(m->config, &m->shard, layer).ffn;
    const struct mlp_args a = mlp_of(f, w, w->gate_up, w->down, ffn, in,
                                     adds ? NULL : flow_sums_for_norm(f, w->ffn_post_norm));
    if (w->down_norm) {
        TRY(normed_mlp(f, layer, &a));
    } else {
        TRY(m->config->layers[layer].cutoff.is_on ? sparse_mlp(f, layer, &a) : mlp(f, &a));
    }
    struct reduce_args reduce = {.y = m->delta,
                                 .n_rows = f->n_rows,
                                 .width = m->config->hidden,
                                 .whole = m->shard.n_ranks == 1,
                                 .linear = w->down};
    TRY(flow_finish_delta(f, &reduce, w->ffn_post_norm));
    return adds ? add_late(f) : OK;
}
