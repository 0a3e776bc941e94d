// SPDX-License-Identifier: Apache-2.0
/* Attention of a layer, from its normed input to the heads' outputs. */
#include "engine/model/decoder.h"

static struct tensor from_column(struct tensor t, int32_t column)
{
    t.mem = dmem_at(t.mem, (size_t)column * dtype_bytes(t.dtype));
    return t;
}

/* Multiplies the outputs of the heads, `width` elements each, by the gates, which are in `gates`
 * after the first `at` elements. */
static enum status gate_heads(struct flow *f, int32_t n_heads, int32_t width, struct tensor gates,
                              int32_t at)
{
    struct model *m = f->m;
    if (m->config->attn_gate == ATTN_GATE_NONE) {
        return OK;
    }
    const struct gate_args a = {.x = m->attn,
                                .out = m->attn,
                                .gate = from_column(gates, at),
                                .n_rows = f->n_rows,
                                .width = n_heads * width,
                                .group = width,
                                .act = m->config->attn_gate_softplus ? GATE_SOFTPLUS : GATE_SIGMOID,
                                .per_group = m->config->attn_gate == ATTN_GATE_HEADS,
                                .scale = 1.0f};
    return f->ops->gate(f->be, &a);
}

/* The product of an indexer's queries if they have their own. Its input is the layer's, normed once
 * more, or the low-rank query. */
static enum status index_queries(struct flow *f, int32_t layer, struct tensor in, struct tensor q)
{
    struct model *m = f->m;
    const struct layer_weights *w = &m->layers[layer];
    if (!w->index_q) {
        return OK;
    }
    if (!w->index_in_norm) {
        return flow_linear(f, w->index_q, m->low, q, NULL);
    }
    const struct norm_args norm = {.x = in,
                                   .delta = no_tensor,
                                   .out = m->delta, // it has been added to x
                                   .weight = w->index_in_norm,
                                   .bias = w->index_in_norm_bias,
                                   .n_rows = f->n_rows,
                                   .width = m->config->hidden,
                                   .kind = NORM_LAYER,
                                   .eps = m->config->index.norm_eps};
    TRY(f->ops->norm(f->be, &norm));
    return flow_linear(f, w->index_q, m->delta, q, NULL);
}

/* A layer's indexer stores the keys of its rows, and picks the keys that they attend to, unless the
 * pass only stores. Its queries are in q, or q has room for them. */
static enum status run_indexer(struct flow *f, int32_t layer, struct tensor in, struct tensor q)
{
    struct model *m = f->m;
    const struct index_config *c = &m->config->index;
    const struct layer_weights *w = &m->layers[layer];
    const struct layer_config *lc = &m->config->layers[layer];
    const struct layer_share share = model_layer_share(m->config, &m->shard, layer);
    const int32_t n_heads = model_index_share(m->config, &share).n;
    TRY(index_queries(f, layer, in, q));
    struct index_store_args store = {.q = q,
                                     .k = m->index_k,
                                     .rope = lc->rope >= 0 ? m->ropes[c->rope] : NULL,
                                     .n_rows = f->n_rows,
                                     .layer = lc->index,
                                     .n_heads = n_heads,
                                     .head_dim = c->head_dim,
                                     .rope_at = c->rope_at,
                                     .norm = w->index_k_norm,
                                     .norm_bias = w->index_k_norm_bias,
                                     .q_norm = w->index_q_norm,
                                     .norm_kind = c->norm_kind,
                                     .eps = c->norm_eps,
                                     .norm_offset = c->norm_offset,
                                     .growth = w->index_growth,
                                     .pool = c->pool,
                                     .raw_layer = lc->index + 1,
                                     .places = w->index_places};
    struct index_pick_args pick = {.q = q,
                                   .weights = m->index_weights,
                                   .n_rows = f->n_rows,
                                   .layer = store.layer,
                                   .n_heads = n_heads,
                                   .head_dim = c->head_dim,
                                   .top_k = c->top_k,
                                   .block = c->block,
                                   .n_local = c->n_local,
                                   .pool = c->pool,
                                   .picks = &f->picks};
    TRY(flow_linear(f, w->index_k, in, m->index_k, NULL));
    if (w->index_gates) {
        TRY(flow_linear(f, w->index_gates, in, from_column(m->index_k, c->head_dim), NULL));
    }
    TRY(f->ops->index_store(f->be, &store));
    if (flow_stores_only(f, layer)) {
        return OK;
    }
    if (w->index_weights) {
        TRY(flow_linear(f, w->index_weights, in, m->index_weights, NULL));
    }
    return f->ops->index_pick(f->be, &pick);
}

/* x[T, D] -> qkv[T, (H + 2K) d] -> attn[T, H d] */
enum status decoder_attention(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const struct layer_weights *w = &m->layers[layer];
    const struct layer_config *lc = &c->layers[layer];
    const struct layer_share share = model_layer_share(c, &m->shard, layer);
    const int32_t n_heads = share.n_heads, n_kv_heads = share.n_kv_heads;
    struct rope_store_args store = {.qkv = m->qkv,
                                    .rope = lc->rope >= 0 ? m->ropes[lc->rope] : NULL,
                                    .n_rows = f->n_rows,
                                    .layer = lc->kv,
                                    .n_heads = n_heads,
                                    // if not, the layer reads another layer's keys and values
                                    .n_kv_heads = lc->kv_of == layer ? n_kv_heads : 0,
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
    const int32_t width = (n_heads + 2 * n_kv_heads) * lc->head_dim;
    bool left =
        c->attn_gate == ATTN_GATE_NONE && lc->index < 0 && ops_rope_store_adds_sums(f->be, &store);
    struct product_sums *sums = left ? &store.sums : NULL;
    TRY(flow_linear(f, w->qkv, in, m->qkv, sums));
    if (lc->index >= 0) {
        TRY(run_indexer(f, layer, in, from_column(m->qkv, width)));
    }
    if (flow_stores_only(f, layer)) {
        return f->ops->rope_store(f->be, &store);
    }
    struct attention_args a = {.q = m->qkv,
                               .out = m->attn,
                               .n_rows = f->n_rows,
                               .layer = lc->kv,
                               .n_heads = n_heads,
                               .n_kv_heads = n_kv_heads,
                               .head_dim_k = lc->head_dim,
                               .head_dim_v = lc->head_dim,
                               .scale = c->attn_scale,
                               .window = lc->window,
                               .chunk = lc->chunk,
                               .softcap = c->attn_softcap,
                               .sinks = w->sinks,
                               .picks = lc->index >= 0 ? &f->picks : NULL};
    f->attention_waits = true;
    f->store = store;
    f->attention = a;
    if (c->attn_gate == ATTN_GATE_NONE) {
        return OK;
    }
    TRY(flow_attend(f));
    return gate_heads(f, n_heads, lc->head_dim, m->qkv, width);
}

/* Norms the low-rank query. A query that is read in both forms has the normed one before the other;
 * then, or if an indexer reads it, too, the norm cannot be a part of a product. */
static enum status norm_query(struct flow *f, int32_t layer, struct tensor low)
{
    struct model *m = f->m;
    const struct layer_weights *w = &m->layers[layer];
    const struct norm_args norm = {.x = low,
                                   .delta = no_tensor,
                                   .out = m->low,
                                   .weight = w->q_a_norm,
                                   .n_rows = f->n_rows,
                                   .width = m->config->q_lora,
                                   .eps = m->config->mla_norm_eps};
    if (m->config->q_twice || w->index_q) {
        return f->ops->norm(f->be, &norm);
    }
    f->norm = norm;
    f->norm_waits = true; // the next product is the only reader
    return OK;
}

/* Computes the queries into m->qkv, the compressed key (*kv) unless the layer has another's, and
 * the picks of the layer's indexer if it has one. */
static enum status mla_inputs(struct flow *f, int32_t layer, struct tensor in, struct tensor *kv)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const struct layer_weights *w = &m->layers[layer];
    const struct tensor low = from_column(m->low, c->q_twice ? c->q_lora : 0);
    const bool stores = c->layers[layer].kv_of == layer;
    *kv = stores ? from_column(low, c->q_lora) : no_tensor;
    if (w->low) {
        TRY(flow_linear(f, w->low, in, low, NULL)); // [T, D] -> [T, q_lora + kv_lora + rope]
    }
    if (c->q_lora) {
        TRY(norm_query(f, layer, low));
    }
    // [T, H (nope + rope)], then gates or the indexer's queries
    TRY(flow_linear(f, w->qkv, c->q_lora ? m->low : in, m->qkv, NULL));
    if (c->layers[layer].index < 0) {
        return OK;
    }
    const int32_t n_heads = model_layer_share(c, &m->shard, layer).n_heads;
    const int32_t gates[] = {0, n_heads * c->v_dim, n_heads}; // by enum attn_gate
    const int32_t others = model_gates_in_low(c) ? 0 : gates[c->attn_gate];
    return run_indexer(f, layer, in,
                       from_column(m->qkv, n_heads * (c->nope_dim + c->rope_dim) + others));
}

/* MLA, with the key and value products absorbed into q and into the output. There is one shared key
 * head of kv_lora + rope elements, and its first kv_lora elements are also the value. */
enum status decoder_mla(struct flow *f, int32_t layer, struct tensor in)
{
    struct model *m = f->m;
    const struct model_config *c = m->config;
    const struct layer_weights *w = &m->layers[layer];
    const int32_t n_heads = model_layer_share(c, &m->shard, layer).n_heads;
    const int32_t nope = model_nope_dim(c, layer), rope = model_rope_dim(c, layer);
    const int32_t q_head = nope + rope, key = c->kv_lora + rope;
    struct tensor kv;
    TRY(mla_inputs(f, layer, in, &kv));
    struct mla_store_args store = {.q = m->qkv,
                                   .kv = kv,
                                   .q_out = m->q_abs,
                                   .rope = c->layers[layer].rope >= 0 ? m->ropes[0] : NULL,
                                   .n_rows = f->n_rows,
                                   .layer = c->layers[layer].kv,
                                   .n_heads = n_heads,
                                   .q_head = q_head,
                                   .q_rope_offset = nope,
                                   .rope_dim = rope,
                                   .kv_lora = c->kv_lora,
                                   .q_out_head = key,
                                   .q_out_offset = c->kv_lora,
                                   .kv_norm = w->kv_a_norm,
                                   .eps = c->mla_norm_eps,
                                   .growth = c->layers[layer].growth,
                                   .head_growth = w->growth};
    if (flow_stores_only(f, layer)) {
        return f->ops->mla_store(f->be, &store);
    }
    // [T, H, nope] -> [T, H, kv_lora]
    struct linear_heads_args absorb = {.weight = w->w_uk,
                                       .x = m->qkv,
                                       .y = m->q_abs,
                                       .n_rows = f->n_rows,
                                       .x_head = q_head,
                                       .y_head = key};
    struct attention_args a = {.q = m->q_abs,
                               .out = m->attn_v,
                               .n_rows = f->n_rows,
                               .layer = c->layers[layer].kv,
                               .n_heads = n_heads,
                               .n_kv_heads = 1,
                               .head_dim_k = key,
                               .head_dim_v = c->kv_lora,
                               .scale = c->attn_scale,
                               .window = c->layers[layer].window,
                               .softcap = c->attn_softcap,
                               .sinks = w->sinks,
                               .picks = c->index.top_k > 0 ? &f->picks : NULL};
    // [T, H, kv_lora] -> [T, H, v]
    struct linear_heads_args expand = {.weight = w->w_uv,
                                       .x = m->attn_v,
                                       .y = m->attn,
                                       .n_rows = f->n_rows,
                                       .x_head = c->kv_lora,
                                       .y_head = c->v_dim};
    TRY(ops_mla(f->be, &store, &absorb, &a, &expand));
    return model_gates_in_low(c) ? gate_heads(f, n_heads, c->v_dim, m->low, c->q_lora + key)
                                 : gate_heads(f, n_heads, c->v_dim, m->qkv, n_heads * q_head);
}
