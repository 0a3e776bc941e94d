// SPDX-License-Identifier: Apache-2.0
/* Loads the weights of hyper-connections. All ranks have all of them, because every rank has the
 * whole streams. */
#include "engine/model/part.h"

#include <stdio.h>

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

enum status load_end_hyper(struct loader *l)
{
    const int32_t n = l->c->hyper.n;
    return n > 0 ? load_gates(l, l->c->names->hyper_end, n, 1, &l->m->end_hyper) : OK;
}
