// SPDX-License-Identifier: Apache-2.0
/* Loads what the embedding of a row consists of: the tables of tokens, positions and types of
 * tokens, and the norm of their sum. */
#include "engine/model/part.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>

/* Positions that are not learned: sines of angles that grow with the position, at frequencies from
 * 1 to 1/10000, then their cosines; computed in the steps of transformers' class. */
static enum status make_positions(struct loader *l)
{
    const struct model_config *c = l->c;
    const int64_t n = (int64_t)c->first_position + c->n_positions, width = c->hidden;
    const int64_t half = width / 2;
    const float per = -(float)(log(10000.0) / (double)(half - 1));
    float *table = mem_try_calloc((size_t)(n * width), sizeof *table);
    if (!table) {
        return err_set(l->err, ERR_NOMEM, "no memory for the vectors of positions");
    }
    for (int64_t p = 0; p < n; p++) {
        for (int64_t i = 0; i < half; i++) {
            const float angle = (float)p * expf((float)i * per);
            table[p * width + i] = sinf(angle);
            table[p * width + half + i] = cosf(angle);
        }
    }
    struct weight_part part = weight_part_plain(table, DT_F32, n, width, width);
    struct weight_desc d = {.name = "positions",
                            .kind = WEIGHT_EMBED,
                            .dtype = l->options->dtype,
                            .n_out = n,
                            .n_in = width,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = &part,
                            .k_segments = 1};
    const enum status st = part_open(l, &d, &l->m->positions);
    free(table);
    return st;
}

enum status load_embedding(struct loader *l)
{
    const struct model_config *c = l->c;
    struct model *m = l->m;
    const int64_t n_embeds = (int64_t)c->vocab + c->n_other_embeds;
    TRY(part_table(l, part_embed_name(l), n_embeds, c->hidden, &m->embed));
    if (c->n_positions > 0) {
        const int64_t n = (int64_t)c->first_position + c->n_positions;
        TRY(c->names->positions ? part_table(l, c->names->positions, n, c->hidden, &m->positions)
                                : make_positions(l));
    }
    if (c->n_token_types > 0) {
        TRY(part_table(l, c->names->token_types, c->n_token_types, c->hidden, &m->token_types));
    }
    if (!c->names->embed_norm) {
        return OK;
    }
    TRY(part_norm(l, c->names->embed_norm, false, &m->embed_norm));
    return c->norm_bias
               ? part_vector(l, c->names->embed_norm, ".bias", c->hidden, &m->embed_norm_bias)
               : OK;
}
