// SPDX-License-Identifier: Apache-2.0
/* The head of a classifier: a dense layer with an activation and perhaps a norm, then the classes.
 * It belongs to the model's checkpoint, but runs on the host (pooling.h). */
#include "engine/model/part.h"

#include "engine/model/pooling.h"

#include <stdio.h>

/* Reads `base`.weight and, if there is one, its bias. */
static enum status read_linear(struct loader *l, const char *base, int64_t n_out,
                               struct weight_part *matrix, struct weight_part *bias, bool *biased)
{
    char name[NAME_BYTES];
    TRY(part_matrix(l, base, n_out, l->c->hidden, matrix));
    snprintf(name, sizeof name, "%.240s.bias", base);
    *biased = part_has(l, name);
    return *biased ? part_of(l, name, &n_out, 1, bias) : OK;
}

static enum status read_norm(struct loader *l, struct weight_part *norm, struct weight_part *bias)
{
    char name[NAME_BYTES];
    const int64_t n = l->c->hidden;
    snprintf(name, sizeof name, "%.240s.weight", l->c->names->label_norm);
    TRY(part_of(l, name, &n, 1, norm));
    snprintf(name, sizeof name, "%.240s.bias", l->c->names->label_norm);
    return l->c->norm_bias ? part_of(l, name, &n, 1, bias) : OK;
}

/* Tensors that belong to other heads of encoders, and are not needed. */
static void pass_over_heads(struct loader *l)
{
    static const char *const heads[] = {"model.pooler",     "cls",
                                        "lm_head",          "head",
                                        "decoder",          "dense",
                                        "model.head",       "classifier",
                                        "pre_classifier",   "vocab_transform",
                                        "vocab_layer_norm", "vocab_projector"};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0] && l->c->bidirectional; i++) {
        part_pass_over(l, heads[i]);
    }
}

enum status load_labels(struct loader *l)
{
    const struct model_config *c = l->c;
    struct pooling *p = &l->m->pooling;
    struct weight_part dense, dense_bias, norm, norm_bias, labels, labels_bias;
    bool biased;
    if (l->options->rank == 0 && l->options->checkpoint && c->labels.n > 0) {
        TRY(read_linear(l, c->names->label_dense, c->hidden, &dense, &dense_bias, &biased));
        struct pool_parts first = {.matrix = &dense, .bias = biased ? &dense_bias : NULL};
        if (c->names->label_norm) {
            TRY(read_norm(l, &norm, &norm_bias));
            first.norm = &norm;
            first.norm_bias = c->norm_bias ? &norm_bias : NULL;
        }
        TRY(read_linear(l, c->names->labels, c->labels.n, &labels, &labels_bias, &biased));
        const struct pool_parts last = {.matrix = &labels, .bias = biased ? &labels_bias : NULL};
        TRY(pooling_add(p, &first, c->labels.act, c->norm_eps, l->err));
        TRY(pooling_add(p, &last, POOL_ACT_NONE, 0.0f, l->err));
        p->kind = c->labels.mean ? POOL_MEAN : POOL_FIRST;
        p->n_labels = c->labels.n;
    }
    pass_over_heads(l);
    return OK;
}
