// SPDX-License-Identifier: Apache-2.0
/* Loads the weights of a layer's attention: stored separately or fused, with norms of heads, with
 * sinks, or MLA. */
#include "engine/model/part.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With gates in q's tensor, it holds the queries of a head, then its gates, then those of the next
 * head. The gates are moved after the values. */
static enum status load_gated_qkv(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct layer_config *lc = &c->layers[layer];
    const struct layer_share share = model_layer_share(c, &l->m->shard, layer);
    int64_t hd = lc->head_dim, q_all = 2 * lc->n_heads * hd, kv_all = lc->n_kv_heads * hd;
    int64_t kv_first = share.first_kv_head * hd, kv_n = share.n_kv_heads * hd;
    char q[NAME_BYTES], k[NAME_BYTES], v[NAME_BYTES];
    part_layer_name(c->names->q, layer, q);
    part_layer_name(c->names->k, layer, k);
    part_layer_name(c->names->v, layer, v);
    int32_t n = share.n_heads;
    struct piece *list = xcalloc(2 * (size_t)n + 2, sizeof *list);
    for (int32_t h = 0; h < n; h++) {
        int64_t first = (share.first_head + h) * 2 * hd;
        list[h] = (struct piece){q, q_all, first, hd};
        list[n + 2 + h] = (struct piece){q, q_all, first + hd, hd};
    }
    list[n] = (struct piece){k, kv_all, kv_first, kv_n};
    list[n + 1] = (struct piece){v, kv_all, kv_first, kv_n};
    struct stack st = {.list = list,
                       .n = 2 * n + 2,
                       .n_in = c->hidden,
                       .n_cols = c->hidden,
                       .bias = c->q_bias,
                       .adapts = true};
    enum status status = part_linear(l, &st, l->options->dtype, &w->qkv);
    free(list);
    return status;
}

/* The input width of q, k and v. In some heads the embedding lies beside the hidden state. */
static int64_t input_width(const struct model_config *c)
{
    return c->head.kind == HEAD_NONE ? c->hidden : c->head.input_width;
}

/* Appends this rank's heads to the pieces: heads [first, first + n) of n_all, which the groups of a
 * fused tensor share. In each group, which has `width` heads, they follow `at` others. */
struct fused_heads {
    int64_t n_all, first, n, at;
};
static int32_t add_fused(const struct fused_heads *h, int64_t n_groups, int64_t width, int64_t hd,
                         const char *base, struct piece *list)
{
    const int64_t each = h->n_all / n_groups;
    for (int64_t i = 0; i < h->n; i++) {
        const int64_t group = (h->first + i) / each, within = (h->first + i) % each;
        list[i] =
            (struct piece){base, n_groups * width * hd, (group * width + h->at + within) * hd, hd};
    }
    return (int32_t)h->n;
}

/* The tensor has the heads in groups, so that each head is a piece. */
static enum status load_grouped_qkv(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct layer_config *lc = &c->layers[layer];
    const struct layer_share s = model_layer_share(c, &l->m->shard, layer);
    const int64_t groups = c->qkv_groups, q = lc->n_heads / groups, kv = lc->n_kv_heads / groups;
    const int64_t hd = lc->head_dim, width = q + 2 * kv;
    char base[NAME_BYTES];
    part_layer_name(c->names->qkv, layer, base);
    const struct fused_heads queries = {lc->n_heads, s.first_head, s.n_heads, 0};
    const struct fused_heads keys = {lc->n_kv_heads, s.first_kv_head, s.n_kv_heads,
                                     c->qkv_v_first ? q + kv : q};
    const struct fused_heads values = {lc->n_kv_heads, s.first_kv_head, s.n_kv_heads,
                                       c->qkv_v_first ? q : q + kv};
    struct piece *list = xcalloc((size_t)(s.n_heads + 2 * s.n_kv_heads), sizeof *list);
    struct stack st = {.list = list,
                       .n_in = c->hidden,
                       .n_cols = c->hidden,
                       .bias = c->q_bias,
                       .turned = c->turned,
                       .adapts = true};
    st.n += add_fused(&queries, groups, width, hd, base, list + st.n);
    st.n += add_fused(&keys, groups, width, hd, base, list + st.n);
    st.n += add_fused(&values, groups, width, hd, base, list + st.n);
    const enum status status = part_linear(l, &st, l->options->dtype, &w->qkv);
    free(list);
    return status;
}

/* Queries, keys and values are stacked into one product, with this rank's heads of each. A file
 * stores them separately or fused. A layer that reads another layer's keys has only queries. Gates
 * with a tensor of their own follow the values, and so do the queries of an indexer. */
static enum status load_qkv(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    const struct layer_config *lc = &c->layers[layer];
    const struct layer_share share = model_layer_share(c, &l->m->shard, layer);
    int64_t hd = lc->head_dim, q_all = lc->n_heads * hd, kv_all = lc->n_kv_heads * hd;
    int64_t q_first = share.first_head * hd, q_n = share.n_heads * hd;
    int64_t kv_first = share.first_kv_head * hd, kv_n = share.n_kv_heads * hd;
    char q[NAME_BYTES], k[NAME_BYTES], v[NAME_BYTES], gate[NAME_BYTES], index[NAME_BYTES];
    const int64_t n_in = input_width(c);
    struct stack st = {.n = 3,
                       .n_in = n_in,
                       .n_cols = n_in,
                       .bias = c->q_bias,
                       .turned = c->turned,
                       .adapts = true};
    if (c->qkv_groups > 1) {
        return load_grouped_qkv(l, layer, w);
    }
    if (names->qkv) {
        part_layer_name(names->qkv, layer, q);
        int64_t all = q_all + 2 * kv_all;
        st.pieces[0] = (struct piece){q, all, q_first, q_n};
        st.pieces[1] = (struct piece){q, all, q_all + kv_first, kv_n};
        st.pieces[2] = (struct piece){q, all, q_all + kv_all + kv_first, kv_n};
    } else {
        part_layer_name(names->q, layer, q);
        part_layer_name(names->k, layer, k);
        part_layer_name(lc->v_is_k ? names->k : names->v, layer, v);
        st.pieces[0] = (struct piece){q, q_all, q_first, q_n};
        st.pieces[1] = (struct piece){k, kv_all, kv_first, kv_n};
        st.pieces[2] = (struct piece){v, kv_all, kv_first, kv_n};
    }
    if (c->v_head > 0) {
        st.values = (struct head_room){c->v_head, hd};
        st.adapts = false;
    }
    if (c->attn_gate != ATTN_GATE_NONE) {
        const int64_t width = c->attn_gate == ATTN_GATE_HEADS ? 1 : hd;
        ASSERT(lc->kv_of == layer);
        part_layer_name(names->attn_gate, layer, gate);
        st.pieces[st.n++] = (struct piece){gate, lc->n_heads * width, share.first_head * width,
                                           share.n_heads * width};
        st.n_unbiased = 1;
    }
    if (lc->index >= 0) {
        ASSERT(c->attn_gate == ATTN_GATE_NONE && lc->kv_of == layer);
        part_layer_name(names->index_q, layer, index);
        st.pieces[st.n++] = indexer_queries(c, &share, index);
        st.n_unbiased = 1;
        TRY(load_indexer(l, layer, w));
    }
    if (lc->kv_of != layer) { // some files contain a k and a v that no layer reads
        st.n = 1;
        part_pass_over(l, k);
        part_pass_over(l, v);
    }
    return part_linear(l, &st, l->options->dtype, &w->qkv);
}

/* The weights of n heads from the first on; StableLM stores a tensor for each head, Cohere one for
 * all. */
static enum status per_head_norms(struct loader *l, const char *pattern, int64_t hd,
                                  int32_t n_heads, int32_t first, int32_t n, const char *what,
                                  const struct weight **out)
{
    float *joined = xmalloc((size_t)(n * hd) * sizeof *joined);
    const bool apart = strstr(pattern, "%d") != NULL;
    enum status st = OK;
    for (int32_t h = 0; h < n && st == OK; h++) {
        char base[NAME_BYTES], name[NAME_BYTES];
        struct weight_part p;
        if (apart) {
            part_numbered_name(pattern, first + h, base);
            snprintf(name, sizeof name, "%.240s.weight", base);
            st = part_of(l, name, &hd, 1, &p);
        } else {
            snprintf(name, sizeof name, "%.240s.weight", pattern);
            st = part_of(l, name, (int64_t[]){n_heads, hd}, 2, &p);
            if (st == OK && !weight_part_is_dummy(&p)) {
                p = weight_part_slice(p, first + h, 1, 0, hd);
            }
        }
        if (st != OK) {
            break;
        }
        part_dummy_vector(l, &p, true);
        for (int64_t i = 0; i < hd; i++) {
            joined[h * hd + i] = weight_part_get(&p, 0, i);
        }
    }
    struct weight_part all = weight_part_plain(joined, DT_F32, 1, n * hd, n * hd);
    if (st == OK) {
        st = part_open_vector(l, what, &all, out);
    }
    free(joined);
    return st;
}

/* A norm over whole rows has one weight per element of all heads. A norm per head has head_dim
 * weights, shared by all heads; a LayerNorm has separate weights for each head. */
static enum status load_qk_norms(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct layer_config *lc = &c->layers[layer];
    const struct layer_share share = model_layer_share(c, &l->m->shard, layer);
    const int64_t hd = lc->head_dim;
    char q[NAME_BYTES], k[NAME_BYTES];
    if (c->qk_norm == QK_NORM_NONE || !c->names->q_norm) { // there is no norm, or it has no weights
        return OK;
    }
    part_layer_name(c->names->q_norm, layer, q);
    part_layer_name(c->names->k_norm, layer, k);
    if (c->qk_norm_kind == NORM_LAYER) {
        TRY(per_head_norms(l, q, hd, lc->n_heads, share.first_head, share.n_heads, "q_norm",
                           &w->q_norm));
        return per_head_norms(l, k, hd, lc->n_kv_heads, share.first_kv_head, share.n_kv_heads,
                              "k_norm", &w->k_norm);
    }
    const bool each = c->qk_norm == QK_NORM_HEAD;
    TRY(part_vector(l, q, ".weight", each ? hd : lc->n_heads * hd, &w->q_norm));
    if (lc->kv_of != layer) {
        part_pass_over(l, k);
        return OK;
    }
    return part_vector(l, k, ".weight", each ? hd : lc->n_kv_heads * hd, &w->k_norm);
}

/* The output projection is cut by columns: each rank takes the inputs that its heads produce, and
 * the ranks add up their results. */
static enum status load_o(struct loader *l, int32_t layer, int64_t head_out,
                          struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct layer_share share = model_layer_share(c, &l->m->shard, layer);
    char o[NAME_BYTES];
    part_layer_name(c->names->o, layer, o);
    struct stack st = {.pieces = {{o, c->hidden, 0, c->hidden}},
                       .n = 1,
                       .n_in = c->layers[layer].n_heads * head_out,
                       .first_col = share.first_o_head * head_out,
                       .n_cols = share.n_o_heads * head_out,
                       .bias = c->o_bias,
                       .turned = c->turned,
                       .adapts = c->v_head == 0,
                       .k_segments = part_segments(l, share.n_o_heads)};
    if (c->v_head > 0) {
        st.cols = (struct head_room){c->v_head, head_out};
    }
    return part_linear(l, &st, l->options->dtype, &w->o);
}

/* A vector with an element for each of n_heads heads, of which the rank has n from the first on.
 * one: elements of dummy weights are 1 instead of 0. */
static enum status of_heads(struct loader *l, const char *base, int32_t layer, bool one,
                            int64_t n_heads, int32_t first, int32_t n, const struct weight **out)
{
    char name[NAME_BYTES];
    part_layer_name(base, layer, name);
    struct weight_part p;
    TRY(part_of(l, name, &n_heads, 1, &p));
    part_dummy_vector(l, &p, one);
    p = weight_part_slice(p, 0, 1, first, n);
    return part_open_vector(l, name, &p, out);
}

/* Each rank has the sinks of its own heads. Some layers have none. */
static enum status load_sinks(struct loader *l, int32_t layer, struct layer_weights *w)
{
    if (!l->c->sinks || (l->c->full_without_sinks && l->c->layers[layer].window == 0)) {
        return OK;
    }
    const struct layer_share share = model_layer_share(l->c, &l->m->shard, layer);
    return of_heads(l, l->c->names->sinks, layer, false, l->c->layers[layer].n_heads,
                    share.first_head, share.n_heads, &w->sinks);
}

/* Cuts kv_b into the matrices of this rank's heads. */
static enum status cut_kv_b(struct loader *l, int32_t layer, bool value, struct weight_part *parts)
{
    const struct model_config *c = l->c;
    const struct layer_share s = model_layer_share(c, &l->m->shard, layer);
    char name[NAME_BYTES];
    part_layer_name(c->names->kv_b, layer, name);
    const int64_t nope = model_nope_dim(c, layer), per_head = nope + c->v_dim;
    struct weight_part whole;
    TRY(part_matrix(l, name, c->n_heads * per_head, c->kv_lora, &whole));
    for (int32_t h = 0; h < s.n_heads; h++) {
        int64_t first = (s.first_head + h) * per_head + (value ? nope : 0);
        parts[h] = weight_part_slice(whole, first, value ? c->v_dim : nope, 0, c->kv_lora);
        if (!value) { // [kv_lora, nope]
            parts[h] = weight_part_transpose(parts[h]);
        }
    }
    return OK;
}

/* The two products that MLA absorbs, by head: keys into q, values into the output. A file has them
 * together as kv_b, or separately in the form that is used here. */
static enum status load_mla_heads(struct loader *l, int32_t layer, bool value,
                                  const struct weight **out)
{
    const struct model_config *c = l->c;
    const struct layer_share s = model_layer_share(c, &l->m->shard, layer);
    const int64_t n_out = value ? c->v_dim : c->kv_lora;
    const int64_t n_in = value ? c->kv_lora : model_nope_dim(c, layer);
    char base[NAME_BYTES], name[NAME_BYTES];
    part_layer_name(or_empty(value ? c->names->v_b : c->names->k_b), layer, base);
    snprintf(name, sizeof name, "%.240s.weight", base);
    struct weight_part whole, *parts = xcalloc((size_t)s.n_heads, sizeof *parts);
    enum status st;
    if (part_has(l, name)) {
        st = part_of(l, name, (int64_t[]){c->n_heads, n_out, n_in}, 3, &whole);
        for (int32_t h = 0; h < s.n_heads && st == OK; h++) {
            parts[h] = weight_part_slice(whole, (s.first_head + h) * n_out, n_out, 0, n_in);
        }
    } else {
        st = cut_kv_b(l, layer, value, parts);
    }
    struct weight_desc d = {.name = base,
                            .kind = WEIGHT_HEADS,
                            .dtype = l->options->dtype,
                            .n_out = n_out,
                            .n_in = n_in,
                            .n_experts = s.n_heads,
                            .n_parts = s.n_heads,
                            .parts = parts,
                            .k_segments = 1};
    if (st == OK) {
        st = part_open(l, &d, out);
    }
    free(parts);
    return st;
}

/* Appends this rank's gates of the heads, if MLA has them, to the product of the layer's input. */
static void add_gates(const struct loader *l, int32_t layer, char name[NAME_BYTES],
                      struct stack *st)
{
    const struct model_config *c = l->c;
    const struct layer_share s = model_layer_share(c, &l->m->shard, layer);
    const int64_t width = c->attn_gate == ATTN_GATE_HEADS ? 1 : c->v_dim;
    if (c->attn_gate != ATTN_GATE_NONE) {
        part_layer_name(c->names->attn_gate, layer, name);
        st->pieces[st->n++] =
            (struct piece){name, c->n_heads * width, s.first_head * width, s.n_heads * width};
        st->n_unbiased = 1;
    }
}

/* The norm of the latent, with its factor. */
static enum status load_latent_norm(struct loader *l, const char *base, struct layer_weights *w)
{
    const int64_t n = l->c->kv_lora;
    const float scale = l->c->latent_scale;
    if (!(scale > 0.0f)) {
        return part_vector(l, base, ".weight", n, &w->kv_a_norm);
    }
    char name[NAME_BYTES];
    struct weight_part p;
    snprintf(name, sizeof name, "%.240s.weight", base);
    TRY(part_of(l, name, &n, 1, &p));
    part_dummy_vector(l, &p, true);
    float *scaled = xmalloc((size_t)n * sizeof *scaled);
    for (int64_t i = 0; i < n; i++) {
        scaled[i] = scale * weight_part_get(&p, 0, i);
    }
    p = weight_part_plain(scaled, DT_F32, 1, n, n);
    const enum status st = part_open_vector(l, name, &p, &w->kv_a_norm);
    free(scaled);
    return st;
}

/* One product in place of those that read the layer's input: the key's, unless the layer reads
 * another layer's, and, if queries have a product of their own, that product and the gates. */
static enum status load_mla_low(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const int64_t kv = c->kv_lora + model_rope_dim(c, layer);
    const bool shares = c->layers[layer].kv_of != layer;
    char q_name[NAME_BYTES], kv_name[NAME_BYTES], gate[NAME_BYTES], norm[NAME_BYTES];
    struct stack low = {.n_in = c->hidden, .n_cols = c->hidden, .bias = c->o_bias, .adapts = true};
    if (c->q_lora) {
        part_layer_name(c->names->q_a, layer, q_name);
        low.pieces[low.n++] = (struct piece){q_name, c->q_lora, 0, c->q_lora};
        part_layer_name(c->names->q_a_norm, layer, norm);
        TRY(part_vector(l, norm, ".weight", c->q_lora, &w->q_a_norm));
    }
    part_layer_name(c->names->kv_a, layer, kv_name);
    if (shares) {
        part_pass_over(l, kv_name);
    } else {
        low.pieces[low.n++] = (struct piece){kv_name, kv, 0, kv};
    }
    if (model_gates_in_low(c)) {
        add_gates(l, layer, gate, &low);
    }
    if (low.n > 0) {
        TRY(part_linear(l, &low, l->options->dtype, &w->low));
    }
    part_layer_name(c->names->kv_a_norm, layer, norm);
    if (shares) {
        part_pass_over(l, norm);
        return OK;
    }
    return load_latent_norm(l, norm, w);
}

/* Scales of queries by position, with weights for each head. */
static enum status load_growth(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    const struct layer_share s = model_layer_share(c, &l->m->shard, layer);
    const int32_t all = c->layers[layer].n_heads, of_index = c->index.n_heads;
    if (!c->heads_grow) {
        return OK;
    }
    TRY(of_heads(l, names->growth_scale, layer, false, all, s.first_head, s.n_heads,
                 &w->growth.scale));
    TRY(of_heads(l, names->growth_bias, layer, true, all, s.first_head, s.n_heads,
                 &w->growth.bias));
    if (c->layers[layer].index < 0) {
        return OK;
    }
    TRY(of_heads(l, names->index_growth_scale, layer, false, of_index, 0, of_index,
                 &w->index_growth.scale));
    return of_heads(l, names->index_growth_bias, layer, true, of_index, 0, of_index,
                    &w->index_growth.bias);
}

/* A tensor with the query of a head, then its gates, then those of the next head. The gates are
 * moved after the queries. */
static enum status load_mla_gated_q(struct loader *l, int32_t layer, const char *name,
                                    struct stack *q, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct layer_share s = model_layer_share(c, &l->m->shard, layer);
    const int64_t q_head = c->nope_dim + c->rope_dim, head = q_head + c->v_dim;
    const int32_t n = s.n_heads;
    struct piece *list = xcalloc(2 * (size_t)n, sizeof *list);
    for (int32_t h = 0; h < n; h++) {
        const int64_t first = (s.first_head + h) * head;
        list[h] = (struct piece){name, c->n_heads * head, first, q_head};
        list[n + h] = (struct piece){name, c->n_heads * head, first + q_head, c->v_dim};
    }
    q->list = list;
    q->n = 2 * n;
    const enum status st = part_linear(l, q, l->options->dtype, &w->qkv);
    free(list);
    return st;
}

/* The product of the queries, with those of the indexer if they have the same input. */
static enum status load_mla_q(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct layer_share s = model_layer_share(c, &l->m->shard, layer);
    char name[NAME_BYTES], gate[NAME_BYTES], index[NAME_BYTES];
    int64_t q_head = c->nope_dim + c->rope_dim;
    struct stack q = {.n = 1, .n_in = c->q_lora ? c->q_lora : c->hidden, .adapts = true};
    q.n_in *= c->q_twice ? 2 : 1;
    q.n_cols = q.n_in;
    part_layer_name(c->q_lora ? c->names->q_b : c->names->q, layer, name);
    if (c->attn_gate == ATTN_GATE_WIDE && !c->names->attn_gate) {
        ASSERT(c->layers[layer].index < 0 || indexer_q_is_apart(c));
        return load_mla_gated_q(l, layer, name, &q, w);
    }
    q.pieces[0] =
        (struct piece){name, c->n_heads * q_head, s.first_head * q_head, s.n_heads * q_head};
    if (c->q_lora == 0) {
        add_gates(l, layer, gate, &q);
    }
    if (c->layers[layer].index >= 0 && !indexer_q_is_apart(c)) {
        ASSERT(q.n == 1); // the indexer's queries follow those of the heads
        part_layer_name(c->names->index_q, layer, index);
        q.pieces[q.n++] = indexer_queries(c, &s, index);
    }
    return part_linear(l, &q, l->options->dtype, &w->qkv);
}

/* The head-wise parts of kv_b become w_uk and w_uv, so that attention can work on the compressed
 * keys (absorbed queries). */
static enum status load_mla(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    if (c->layers[layer].index >= 0) {
        TRY(load_indexer(l, layer, w));
    } else if (c->index.top_k > 0) {
        indexer_pass_over(l, layer);
    }
    TRY(load_mla_q(l, layer, w));
    TRY(load_growth(l, layer, w));
    TRY(load_mla_low(l, layer, w));
    TRY(load_mla_heads(l, layer, false, &w->w_uk));
    TRY(load_mla_heads(l, layer, true, &w->w_uv));
    TRY(load_sinks(l, layer, w));
    return load_o(l, layer, c->v_dim, w);
}

/* Reads the scales of a quantised cache, under the names that different programs write, beside the
 * output's projection. 0: there is none, or one per head. */
static enum status load_kv_scales(struct loader *l, int32_t layer, struct layer_weights *w)
{
    static const struct {
        const char *name;
        bool k, v;
    } rows[] = {
        {"k_scale", true, false},
        {"v_scale", false, true},
        {"k_proj.k_scale", true, false},
        {"v_proj.v_scale", false, true},
        {"qkv_proj.k_scale", true, false},
        {"qkv_proj.v_scale", false, true},
        {"k_proj.output_scale", true, false},
        {"v_proj.output_scale", false, true},
        {"kv_scale", true, true},
    };
    const char *o = l->c->names->o;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char part[NAME_BYTES], name[NAME_BYTES];
        float scale;
        snprintf(part, sizeof part, "%.*s%s", (int)strcspn(o, ".") + 1, o, rows[i].name);
        part_layer_name(part, layer, name);
        TRY(part_number(l, name, &scale));
        if (rows[i].k && scale > 0.0f) {
            w->k_scale = scale;
        }
        if (rows[i].v && scale > 0.0f) {
            w->v_scale = scale;
        }
    }
    if (!(w->k_scale > 0.0f)) {
        w->k_scale = w->v_scale;
    } // a single scale serves both K and V
    if (!(w->v_scale > 0.0f)) {
        w->v_scale = w->k_scale;
    }
    return OK;
}

/* Layers without a KV cache of their own (kv < 0) have no attention here. */
enum status load_attention(struct loader *l, int32_t layer, struct layer_weights *w)
{
    if (l->c->layers[layer].kv < 0) {
        return OK;
    }
    TRY(load_kv_scales(l, layer, w));
    if (l->c->kv_lora) {
        return load_mla(l, layer, w);
    }
    const bool within_q = l->c->attn_gate == ATTN_GATE_WIDE && !l->c->names->attn_gate;
    TRY(within_q ? load_gated_qkv(l, layer, w) : load_qkv(l, layer, w));
    TRY(load_qk_norms(l, layer, w));
    TRY(load_o(l, layer, l->c->layers[layer].head_dim, w));
    return load_sinks(l, layer, w);
}
