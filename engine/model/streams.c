// SPDX-License-Identifier: Apache-2.0
/* Loads the weights of models with several residual streams, and of the low-rank branch beside
 * attention. Every rank has all of them. */
#include "engine/model/part.h"

#include "engine/base/mem.h"

#include <stdlib.h>

/* A matrix, quantised or not, as a vector: its rows, one after the other. */
static enum status small_matrix(struct loader *l, const char *base, int32_t layer, int64_t n_out,
                                int64_t n_in, const struct weight **out)
{
    char name[NAME_BYTES];
    struct weight_part p;
    part_layer_name(base, layer, name);
    TRY(part_matrix(l, name, n_out, n_in, &p));
    float *values = xmalloc((size_t)(n_out * n_in) * sizeof *values);
    for (int64_t i = 0; i < n_out * n_in; i++) {
        values[i] = weight_part_get(&p, i / n_in, i % n_in);
    }
    p = weight_part_plain(values, DT_F32, 1, n_out * n_in, n_out * n_in);
    const enum status st = part_open_vector(l, name, &p, out);
    free(values);
    return st;
}

static enum status product(struct loader *l, char *name, int64_t n_out, int64_t n_in, bool adapts,
                           const struct weight **out)
{
    const struct stack s = {.pieces = {{name, n_out, 0, n_out}},
                            .n = 1,
                            .n_in = n_in,
                            .n_cols = n_in,
                            .adapts = adapts};
    return part_linear(l, &s, l->options->dtype, out);
}

static enum status load_branch(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    char name[NAME_BYTES];
    if (c->branch_rank == 0) {
        return OK;
    }
    part_layer_name(c->names->branch_down, layer, name);
    TRY(product(l, name, c->branch_rank, c->hidden, true, &w->branch_down));
    part_layer_name(c->names->branch_up, layer, name);
    TRY(product(l, name, c->hidden, c->branch_rank, true, &w->branch_up));
    part_layer_name(c->names->branch_norm, layer, name);
    return part_norm(l, name, false, &w->branch_norm);
}

enum status load_streams(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    const int64_t n = c->streams.n;
    char name[NAME_BYTES];
    TRY(load_branch(l, layer, w));
    if (n == 0) {
        return OK;
    }
    part_layer_name(names->stream_router_norm, layer, name);
    TRY(part_norm(l, name, false, &w->stream_router_norm));
    TRY(small_matrix(l, names->stream_router, layer, n, c->hidden, &w->stream_router));
    TRY(small_matrix(l, names->stream_before, layer, n * n, n, &w->stream_before));
    TRY(small_matrix(l, names->stream_after, layer, n, n, &w->stream_after));
    part_layer_name(names->stream_scale, layer, name);
    if (!c->streams.scaled) {
        part_pass_over(l, name);
        return OK;
    }
    return part_vector(l, name, "", c->hidden, &w->stream_scale);
}

enum status load_stream_ends(struct loader *l)
{
    const struct model_config *c = l->c;
    for (int32_t i = 0; i + 1 < c->streams.n; i++) {
        char name[NAME_BYTES];
        part_numbered_name(c->names->stream_in, i, name);
        TRY(product(l, name, c->hidden, c->hidden, false, &l->m->stream_in[i]));
        part_numbered_name(c->names->stream_out, i, name);
        TRY(product(l, name, c->hidden, c->hidden, false, &l->m->stream_out[i]));
    }
    return OK;
}
