// SPDX-License-Identifier: Apache-2.0
/* Loads the weights of a layer's indexer, which picks the keys that the layer attends to. */
#include "engine/model/part.h"

struct piece indexer_queries(const struct model_config *c, const struct layer_share *share,
                             const char *name)
{
    const struct head_range heads = model_index_share(c, share);
    const int64_t dim = c->index.head_dim;
    return (struct piece){name, c->index.n_heads * dim, heads.first * dim, heads.n * dim};
}

bool indexer_q_is_apart(const struct model_config *c)
{
    return c->q_twice || c->names->index_in_norm;
}

static enum status load_index_q(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    const struct layer_share share = model_layer_share(c, &l->m->shard, layer);
    const int64_t n_in = names->index_in_norm ? c->hidden : c->q_lora;
    char name[NAME_BYTES];
    if (names->index_in_norm) {
        part_layer_name(names->index_in_norm, layer, name);
        TRY(part_vector(l, name, ".weight", c->hidden, &w->index_in_norm));
        TRY(part_vector(l, name, ".bias", c->hidden, &w->index_in_norm_bias));
    }
    part_layer_name(names->index_q, layer, name);
    struct stack q = {.pieces = {indexer_queries(c, &share, name)},
                      .n = 1,
                      .n_in = n_in,
                      .n_cols = n_in,
                      .adapts = true};
    return part_linear(l, &q, l->options->dtype, &w->index_q);
}

/* Kept as they are, like the weights of heads below. */
static enum status load_pool(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const int64_t dim = c->index.head_dim, n_places = c->index.pool * dim;
    char name[NAME_BYTES];
    struct weight_part p;
    part_layer_name(c->names->index_places, layer, name);
    TRY(part_of(l, name, (int64_t[]){c->index.pool, dim}, 2, &p));
    if (weight_part_is_dummy(&p)) {
        p.n_rows = 1;
        p.n_cols = n_places;
        part_dummy_vector(l, &p, false);
    } else {
        p = weight_part_plain(p.codec.values.data, p.codec.values.dtype, 1, n_places, n_places);
    }
    TRY(part_open_vector(l, name, &p, &w->index_places));
    part_layer_name(c->names->index_gates, layer, name);
    TRY(part_of(l, name, (int64_t[]){dim, c->hidden}, 2, &p));
    struct weight_desc d = {.name = name,
                            .kind = WEIGHT_LINEAR,
                            .dtype = l->options->dtype,
                            .n_out = dim,
                            .n_in = c->hidden,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = &p,
                            .k_segments = 1};
    return part_open(l, &d, &w->index_gates);
}

/* The indexer's keys, norms, and the weights of its heads if they pick together. These weights
 * decide which keys are compared at all, so they stay plain, as in released checkpoints. */
enum status load_indexer(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    const int64_t dim = c->index.head_dim, heads = c->index.n_heads;
    char k[NAME_BYTES], weights[NAME_BYTES], norm[NAME_BYTES];
    part_layer_name(names->index_k, layer, k);
    struct stack keys = {.pieces = {{k, dim, 0, dim}},
                         .n = 1,
                         .n_in = c->hidden,
                         .n_cols = c->hidden,
                         .adapts = true};
    TRY(part_linear(l, &keys, l->options->dtype, &w->index_k));
    if (names->index_weights) {
        part_layer_name(names->index_weights, layer, weights);
        struct stack weigh = {.pieces = {{weights, heads, 0, heads}},
                              .n = 1,
                              .n_in = c->hidden,
                              .n_cols = c->hidden,
                              .stays_plain = true,
                              .adapts = true};
        TRY(part_linear(l, &weigh, l->options->dtype, &w->index_weights));
    }
    if (c->index.pool > 0) {
        TRY(load_pool(l, layer, w));
    }
    if (indexer_q_is_apart(c)) {
        TRY(load_index_q(l, layer, w));
    }
    if (names->index_q_norm) {
        part_layer_name(names->index_q_norm, layer, norm);
        TRY(part_vector(l, norm, ".weight", dim, &w->index_q_norm));
    }
    part_layer_name(names->index_k_norm, layer, norm);
    TRY(part_vector(l, norm, ".weight", dim, &w->index_k_norm));
    return c->index.norm_kind == NORM_LAYER
               ? part_vector(l, norm, ".bias", dim, &w->index_k_norm_bias)
               : OK;
}

void indexer_pass_over(struct loader *l, int32_t layer)
{
    const struct tensor_names *names = l->c->names;
    const char *const each[] = {names->index_q, names->index_k, names->index_k_norm,
                                names->index_weights};
    char name[NAME_BYTES];
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        part_layer_name(each[i], layer, name);
        part_pass_over(l, name);
    }
}
