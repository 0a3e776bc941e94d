// SPDX-License-Identifier: Apache-2.0
/* Reads the biases of experts, which checkpoints have in a tensor for each or in one for all. */
#include "engine/model/part.h"

#include <stdio.h>

/* Reads elements [first, first + n) of an expert's bias; the expert's matrix has n_all rows. */
static enum status expert_bias(struct loader *l, int32_t layer, const char *pattern, int32_t e,
                               int64_t n_all, int64_t first, int64_t n, float *out)
{
    char base[NAME_BYTES], numbered[NAME_BYTES], name[NAME_BYTES];
    struct weight_part p;
    part_layer_name(pattern, layer, base);
    part_numbered_name(base, e, numbered);
    snprintf(name, sizeof name, "%.240s.bias", numbered);
    TRY(part_of(l, name, &n_all, 1, &p));
    weight_part_read(&p, 0, first, n, out);
    return OK;
}

/* Biases that are stored per expert: this rank's gate rows, then its up rows. */
static enum status single_biases(struct loader *l, int32_t layer, float *gate_up, float *down)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    int64_t ffn = c->moe_ffn, n = l->m->shard.moe_ffn, first = l->m->shard.rank * n;
    for (int32_t e = 0; e < c->n_experts; e++) {
        float *to = gate_up + e * 2 * n;
        TRY(expert_bias(l, layer, names->expert_gate, e, ffn, first, n, to));
        TRY(expert_bias(l, layer, names->expert_up, e, ffn, first, n, to + n));
        TRY(expert_bias(l, layer, names->expert_down, e, c->hidden, 0, c->hidden,
                        down + e * c->hidden));
    }
    return OK;
}

/* The same, from biases of all experts in one tensor, in which gate and up alternate. */
static enum status stacked_biases(struct loader *l, int32_t layer, float *gate_up, float *down)
{
    const struct model_config *c = l->c;
    int64_t ffn = c->moe_ffn, n = l->m->shard.moe_ffn, first = l->m->shard.rank * n;
    int64_t hidden = part_experts_width(c);
    char base[NAME_BYTES], name[NAME_BYTES];
    struct weight_part gu, dn;
    part_layer_name(c->names->experts_gate_up, layer, base);
    snprintf(name, sizeof name, "%.240s_bias", base);
    TRY(part_of(l, name, (int64_t[]){c->n_experts, 2 * ffn}, 2, &gu));
    part_layer_name(c->names->experts_down, layer, base);
    snprintf(name, sizeof name, "%.240s_bias", base);
    TRY(part_of(l, name, (int64_t[]){c->n_experts, hidden}, 2, &dn));
    for (int64_t e = 0; e < c->n_experts; e++) {
        for (int64_t i = 0; i < n; i++) {
            gate_up[e * 2 * n + i] = weight_part_get(&gu, e, 2 * (first + i));
            gate_up[e * 2 * n + n + i] = weight_part_get(&gu, e, 2 * (first + i) + 1);
        }
        for (int64_t i = 0; i < hidden; i++) {
            down[e * hidden + i] = weight_part_get(&dn, e, i);
        }
    }
    return OK;
}

enum status load_expert_biases(struct loader *l, int32_t layer, bool stacked, float *gate_up,
                               float *down, struct weight_part *gate_up_parts,
                               struct weight_part *down_parts)
{
    const int64_t n = l->m->shard.moe_ffn, hidden = l->c->hidden;
    char base[NAME_BYTES], name[NAME_BYTES];
    if (!stacked && l->c->names->experts_gate_up) {
        part_layer_name(l->c->names->experts_gate_up, layer, base);
        snprintf(name, sizeof name, "%.240s_bias", base);
        stacked = part_has(l, name);
    }
    TRY(stacked ? stacked_biases(l, layer, gate_up, down) : single_biases(l, layer, gate_up, down));
    for (int64_t e = 0; e < l->c->n_experts; e++) {
        gate_up_parts[e] = weight_part_plain(gate_up + e * 2 * n, DT_F32, 1, 2 * n, 2 * n);
        down_parts[e] = weight_part_plain(down + e * hidden, DT_F32, 1, hidden, hidden);
    }
    return OK;
}
