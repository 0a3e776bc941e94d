// SPDX-License-Identifier: Apache-2.0
/* Loads the weights of hyper-connections. All ranks have all of them, because every rank has the
 * whole streams. */
#include "engine/model/part.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A matrix that is kept in fp32, as vectors are. */
static enum status load_fn(struct loader *l, const char *prefix, int64_t n_rows,
                           const struct weight **out)
{
    const int64_t n_in = (int64_t)l->c->hyper.n * l->c->hidden;
    char name[NAME_BYTES];
    struct weight_part p;
    snprintf(name, sizeof name, "%.240sfn", prefix);
    TRY(part_of(l, name, (int64_t[]){n_rows, n_in}, 2, &p));
    struct weight_desc d = {.name = name,
                            .kind = WEIGHT_VECTOR,
                            .dtype = DT_F32,
                            .n_out = n_rows,
                            .n_in = n_in,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = &p,
                            .k_segments = 1};
    return part_open(l, &d, out);
}

/* n_rows: gates of a row; n_scales: kinds of gates. */
static enum status load_gates(struct loader *l, const char *prefix, int64_t n_rows,
                              int64_t n_scales, struct hyper_weights *out)
{
    TRY(load_fn(l, prefix, n_rows, &out->fn));
    TRY(part_vector(l, prefix, "base", n_rows, &out->base));
    return part_vector(l, prefix, "scale", n_scales, &out->scale);
}

enum status load_hyper(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct hyper_config *c = &l->c->hyper;
    const int64_t n_rows = c->n_sinkhorn > 0 ? c->n * (2 + c->n) : 2 * c->n;
    const int64_t n_scales = c->n_sinkhorn > 0 ? 3 : 2;
    char name[NAME_BYTES];
    if (c->n == 0) {
        return OK;
    }
    part_layer_name(l->c->names->hyper_attn, layer, name);
    TRY(load_gates(l, name, n_rows, n_scales, &w->attn_hyper));
    part_layer_name(l->c->names->hyper_ffn, layer, name);
    return load_gates(l, name, n_rows, n_scales, &w->ffn_hyper);
}

/* A vector of n equal elements. */
static enum status equal_vector(struct loader *l, const char *name, float value, int64_t n,
                                const struct weight **out)
{
    float *all = xmalloc((size_t)n * sizeof *all);
    for (int64_t i = 0; i < n; i++) {
        all[i] = value;
    }
    const struct weight_part p = weight_part_plain(all, DT_F32, 1, n, n);
    const enum status st = part_open_vector(l, name, &p, out);
    free(all);
    return st;
}

/* The mean of the streams: gates that do not depend on them, sigmoid(base) + eps = 1 / n. With one
 * stream, the sigmoid of a large number is 1. */
static enum status open_mean(struct loader *l, struct hyper_weights *out)
{
    const int32_t n = l->c->hyper.n;
    const float open = 1.0f / (float)n - l->c->hyper.eps;
    const float base = n > 1 ? logf(open / (1.0f - open)) : 100.0f;
    TRY(equal_vector(l, "the streams' mean", 0.0f, (int64_t)n * n * l->c->hidden, &out->fn));
    TRY(equal_vector(l, "the streams' mean", base, n, &out->base));
    return equal_vector(l, "the streams' mean", 0.0f, 1, &out->scale);
}

enum status load_end_hyper(struct loader *l)
{
    const int32_t n = l->c->hyper.n;
    if (n == 0) {
        return OK;
    }
    return l->c->names->hyper_end ? load_gates(l, l->c->names->hyper_end, n, 1, &l->m->end_hyper)
                                  : open_mean(l, &l->m->end_hyper);
}
