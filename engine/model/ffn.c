// SPDX-License-Identifier: Apache-2.0
/* Loads the weights of a layer's feed-forward half: an MLP, or experts with their router. */
#include "engine/model/part.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The width of an MLP, of this rank's part, and of the gates and the factors that it computes: its
 * part of them, or all. */
struct mlp_size {
    int32_t ffn, shard, gates, ups;
};

/* Gate and up are stacked into one product. Each rank has some of their rows and the corresponding
 * columns of down, so only the result of down has to be summed over ranks. */
static enum status load_mlp(struct loader *l, const char *gate, const char *up, const char *fused,
                            const char *down, int32_t layer, const struct mlp_size *size, bool bias,
                            const struct weight **gate_up_out, const struct weight **down_out)
{
    const struct model_config *c = l->c;
    const int32_t ffn = size->ffn, ffn_shard = size->shard;
    int64_t first = (int64_t)l->m->shard.rank * ffn_shard;
    const int64_t first_gate = size->gates == ffn ? 0 : first;
    const int64_t first_up = size->ups == ffn ? 0 : first;
    char a[NAME_BYTES], b[NAME_BYTES];
    part_layer_name(or_empty(up), layer, a);
    if (up && fused && part_exists(l, a)) {
        fused = NULL; // the family's own files have both in one tensor
    }
    struct stack st = {
        .n_in = c->hidden, .n_cols = c->hidden, .bias = bias, .turned = c->turned, .adapts = true};
    if (!c->gated) {
        part_layer_name(up, layer, a);
        st.pieces[st.n++] = (struct piece){a, ffn, first_up, size->ups};
    } else if (fused) {
        part_layer_name(fused, layer, a);
        const int64_t gates_at = c->up_first ? ffn : 0, ups_at = ffn - gates_at;
        st.pieces[st.n++] = (struct piece){a, 2 * ffn, gates_at + first_gate, size->gates};
        st.pieces[st.n++] = (struct piece){a, 2 * ffn, ups_at + first_up, size->ups};
    } else {
        part_layer_name(gate, layer, a);
        part_layer_name(up, layer, b);
        st.pieces[st.n++] = (struct piece){a, ffn, first_gate, size->gates};
        st.pieces[st.n++] = (struct piece){b, ffn, first_up, size->ups};
    }
    TRY(part_linear(l, &st, l->options->dtype, gate_up_out));
    part_layer_name(down, layer, a);
    struct stack d = {.pieces = {{a, c->hidden, 0, c->hidden}},
                      .n = 1,
                      .n_in = ffn,
                      .first_col = first,
                      .n_cols = ffn_shard,
                      .bias = bias || c->down_bias,
                      .turned = c->turned,
                      .adapts = true,
                      .k_segments = part_segments(l, ffn_shard)};
    return part_linear(l, &d, l->options->dtype, down_out);
}

/* The name of a matrix within the module that contains the router, if the checkpoint has it there:
 * llm-compressor splits and names the experts of all families alike, and transformers 5 saves the
 * dense layers of Kimi-Linear so. Otherwise the family's own name. */
static const char *name_in_mixture(const struct loader *l, int32_t layer, const char *usual,
                                   const char *own, char room[NAME_BYTES])
{
    const char *router = l->c->names->router;
    char pattern[NAME_BYTES], name[NAME_BYTES];
    if (!router) {
        snprintf(room, NAME_BYTES, "%s", usual);
        return own;
    }
    snprintf(room, NAME_BYTES, "%.*s.%s", (int)strcspn(router, "."), router, usual);
    part_layer_name(room, layer, pattern);
    if (strstr(usual, "%d")) {
        part_numbered_name(pattern, 0, name);
    } else {
        snprintf(name, sizeof name, "%s", pattern);
    }
    return part_exists(l, name) ? room : own;
}

static const char *const expert_matrices[] = {"experts.%d.gate_proj", "experts.%d.up_proj",
                                              "experts.%d.down_proj"};

/* The name, without suffixes, of the tensor with this matrix of all experts, if it or each expert's
 * matrix has its scales in such a tensor. NULL: there is none. */
static const char *stack_with_scales(const struct loader *l, int32_t layer, const char *usual,
                                     const char *own, char room[NAME_BYTES])
{
    static const char *const suffixes[] = {"_scale_inv", "_weight_scale", "_scale"};
    const char *router = l->c->names->router;
    char pattern[NAME_BYTES], name[NAME_BYTES];
    for (int i = 0; i < 2 && l->quant; i++) {
        snprintf(pattern, sizeof pattern, "%.*s.%s", (int)strcspn(or_empty(router), "."),
                 or_empty(router), usual);
        part_layer_name(i == 0 && own ? own : pattern, layer, room);
        for (size_t k = 0; k < sizeof suffixes / sizeof suffixes[0]; k++) {
            snprintf(name, sizeof name, "%.240s%s", room, suffixes[k]);
            if (part_has(l, name)) {
                return room;
            }
        }
    }
    return NULL;
}

/* Whether the tensors of all experts are transposed. That is the family's choice, except that
 * transformers 5 does not save Qwen3-VL as released. Gate and up together, or down, may be square
 * as they are stored, where inputs may be packed, but not both; the other one tells. NULL: no such
 * tensor. */
static bool are_turned(const struct loader *l, const char *gate_up, const char *down)
{
    const enum experts_form form = l->c->names->experts_form;
    const int64_t hidden = part_experts_width(l->c), ffn = l->c->moe_ffn;
    const struct checkpoint_tensor *t = gate_up ? part_raw(l, gate_up) : NULL;
    const bool by_down = !t || (t->n_dims == 3 && t->dims[1] == t->dims[2]);
    if (by_down) {
        t = down ? part_raw(l, down) : NULL;
    }
    if (form != EXPERTS_COLUMNS || !t || t->n_dims != 3) {
        return form != EXPERTS_ROWS;
    }
    return t->dims[1] != (by_down ? hidden : 2 * ffn);
}

/* This rank's parts of expert e: its gate rows, if there are any, its up rows, and its part of the
 * down matrix. */
static enum status expert_parts(struct loader *l, int32_t layer, int32_t e,
                                struct weight_part *gate_up, struct weight_part *down)
{
    const struct model_config *c = l->c;
    int64_t ffn = c->moe_ffn, n = l->m->shard.moe_ffn, first = l->m->shard.rank * n;
    int64_t hidden = part_experts_width(c);
    const char *bases[3] = {c->names->expert_gate, c->names->expert_up, c->names->expert_down};
    struct weight_part *outs[3] = {&gate_up[0], &gate_up[c->gated], down};
    char stacks[2][NAME_BYTES];
    const char *both =
        stack_with_scales(l, layer, "experts.gate_up_proj", c->names->experts_gate_up, stacks[0]);
    const char *out =
        stack_with_scales(l, layer, "experts.down_proj", c->names->experts_down, stacks[1]);
    const bool turned = are_turned(l, both, out);
    const bool alternate = c->names->experts_form == EXPERTS_ALTERNATE;
    const int64_t first_up = alternate ? 1 : ffn, step = alternate ? 2 : 1;
    const struct expert_place places[3] = {{both, e, c->n_experts, 0, step, 2 * ffn, turned},
                                           {both, e, c->n_experts, first_up, step, 2 * ffn, turned},
                                           {out, e, c->n_experts, 0, 1, hidden, turned}};
    for (int32_t i = !c->gated; i < 3; i++) {
        char room[NAME_BYTES], pattern[NAME_BYTES], name[NAME_BYTES];
        const char *base = name_in_mixture(l, layer, expert_matrices[i], bases[i], room);
        if (!base) { // a family without names of its own for single experts
            base = room;
        }
        part_layer_name(base, layer, pattern);
        part_numbered_name(pattern, e, name);
        bool is_down = i == 2;
        TRY(part_expert(l, name, places[i].stack ? &places[i] : NULL, is_down ? hidden : ffn,
                        is_down ? ffn : hidden, outs[i]));
        part_requantise(l, outs[i]);
        if (is_down) {
            *outs[i] = weight_part_slice(*outs[i], 0, hidden, first, n);
        } else {
            *outs[i] = weight_part_slice(*outs[i], first, n, 0, hidden);
        }
    }
    return OK;
}

/* All experts in one tensor: each is [n_out][n_in], or transposed. */
struct experts {
    struct weight_part all;
    bool turned;
    int64_t n_out, n_in;
};

/* Opens experts that are stored as one quantised tensor or as one plain tensor, which some
 * checkpoints store transposed. */
static enum status open_experts(struct loader *l, const char *base, int64_t n_out, int64_t n_in,
                                bool turned, struct experts *out)
{
    int64_t n = l->c->n_experts;
    bool found;
    *out = (struct experts){.n_out = n_out, .n_in = n_in};
    TRY(part_quantised_experts(l, base, n, n_out, n_in, &out->all, &found));
    out->turned = !found && turned;
    if (!found && !out->turned) {
        return part_of(l, base, (int64_t[]){n, n_out, n_in}, 3, &out->all);
    }
    return found ? OK : part_of(l, base, (int64_t[]){n, n_in, n_out}, 3, &out->all);
}

static struct weight_part expert_of(const struct experts *s, int64_t e)
{
    if (s->turned) {
        return weight_part_transpose(weight_part_slice(s->all, e * s->n_in, s->n_in, 0, s->n_out));
    }
    return weight_part_slice(s->all, e * s->n_out, s->n_out, 0, s->n_in);
}

/* One expert's matrix, from a quantised tensor that holds that of all experts. */
static enum status scaled_expert(struct loader *l, int32_t layer, int32_t matrix,
                                 const struct expert_place *place, const struct experts *all,
                                 struct weight_part *out)
{
    char room[NAME_BYTES], pattern[NAME_BYTES], name[NAME_BYTES];
    name_in_mixture(l, layer, expert_matrices[matrix], NULL, room);
    part_layer_name(room, layer, pattern);
    part_numbered_name(pattern, (int32_t)place->expert, name);
    return part_expert(l, name, place, all->n_out, all->n_in, out);
}

/* Like stacked_parts, from three tensors that have one matrix of each expert. */
static enum status three_stacks(struct loader *l, int32_t layer, struct weight_part *gate_up,
                                struct weight_part *down)
{
    const struct model_config *c = l->c;
    const int64_t n = l->m->shard.moe_ffn, first = l->m->shard.rank * n;
    const int64_t hidden = part_experts_width(c), ffn = c->moe_ffn;
    const char *const names[3] = {c->names->experts_gate, c->names->experts_up,
                                  c->names->experts_down};
    for (int32_t i = 0; i < 3; i++) {
        char name[NAME_BYTES], room[NAME_BYTES];
        const bool is_down = i == 2;
        struct experts all = {.n_out = is_down ? hidden : ffn, .n_in = is_down ? ffn : hidden};
        const bool scaled = stack_with_scales(l, layer, names[i], names[i], room) != NULL;
        part_layer_name(names[i], layer, name);
        if (!scaled) {
            TRY(part_of(l, name, (int64_t[]){c->n_experts, all.n_out, all.n_in}, 3, &all.all));
        }
        for (int32_t e = 0; e < c->n_experts; e++) {
            struct weight_part p;
            if (scaled) {
                const struct expert_place place = {name, e, c->n_experts, 0, 1, all.n_out, false};
                TRY(scaled_expert(l, layer, i, &place, &all, &p));
            } else {
                p = expert_of(&all, e);
            }
            part_requantise(l, &p);
            if (is_down) {
                down[e] = weight_part_slice(p, 0, hidden, first, n);
            } else {
                gate_up[2 * e + i] = weight_part_slice(p, first, n, 0, hidden);
            }
        }
    }
    return OK;
}

/* Like expert_parts, but from tensors that hold all experts. */
static enum status stacked_parts(struct loader *l, int32_t layer, struct weight_part *gate_up,
                                 struct weight_part *down)
{
    const struct model_config *c = l->c;
    int64_t n_experts = c->n_experts, hidden = part_experts_width(c), ffn = c->moe_ffn;
    int64_t n = l->m->shard.moe_ffn, first = l->m->shard.rank * n;
    char gate_up_name[NAME_BYTES], down_name[NAME_BYTES];
    struct experts stacked;
    ASSERT(c->gated);
    if (c->names->experts_gate) {
        return three_stacks(l, layer, gate_up, down);
    }
    part_layer_name(c->names->experts_gate_up, layer, gate_up_name);
    part_layer_name(c->names->experts_down, layer, down_name);
    const bool turned = are_turned(l, gate_up_name, down_name);
    TRY(open_experts(l, gate_up_name, 2 * ffn, hidden, turned, &stacked));
    for (int64_t e = 0; e < n_experts; e++) {
        struct weight_part p = expert_of(&stacked, e);
        part_requantise(l, &p);
        for (int64_t half = 0; half < 2; half++) {
            if (c->names->experts_form == EXPERTS_ALTERNATE) {
                gate_up[2 * e + half] = weight_part_every(p, 2 * first + half, 2, n);
            } else {
                gate_up[2 * e + half] = weight_part_slice(p, half * ffn + first, n, 0, hidden);
            }
        }
    }
    TRY(open_experts(l, down_name, hidden, ffn, turned, &stacked));
    for (int64_t e = 0; e < n_experts; e++) {
        struct weight_part p = expert_of(&stacked, e);
        part_requantise(l, &p);
        down[e] = weight_part_slice(p, 0, hidden, first, n);
    }
    return OK;
}

/* Some families exist in both forms; experts in separate tensors are preferred if present. */
static bool experts_are_stacked(const struct loader *l, int32_t layer)
{
    const struct tensor_names *names = l->c->names;
    char room[NAME_BYTES], name[NAME_BYTES], first[NAME_BYTES];
    const char *up = name_in_mixture(l, layer, expert_matrices[1], names->expert_up, room);
    if (up) {
        part_layer_name(up, layer, name);
        part_numbered_name(name, 0, first);
        if (part_exists(l, first)) {
            return false;
        }
    }
    if (names->experts_gate) {
        return true;
    }
    if (!up || !names->experts_gate_up) {
        return names->experts_gate_up != NULL;
    }
    part_layer_name(names->experts_gate_up, layer, name);
    return (part_has(l, name) || part_exists(l, name)) &&
           !stack_with_scales(l, layer, "experts.gate_up_proj", names->experts_gate_up, room);
}

/* All experts of a layer form one weight. Its parts point into the mapped files; only biases are
 * copied, because they must be contiguous floats. */
static enum status load_experts(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    size_t n = (size_t)c->n_experts;
    const size_t per = c->gated ? 2 : 1; // number of matrices in an expert's first product
    int64_t ffn = l->m->shard.moe_ffn;
    struct weight_part *gate_up = xcalloc(per * n, sizeof *gate_up);
    struct weight_part *down = xcalloc(n, sizeof *down), *gu_bias = NULL, *dn_bias = NULL;
    float *gu_values = NULL, *dn_values = NULL;
    enum status st = OK;
    const bool stacked = experts_are_stacked(l, layer);
    if (stacked) {
        st = stacked_parts(l, layer, gate_up, down);
    }
    for (int32_t e = 0; e < c->n_experts && !stacked && st == OK; e++) {
        st = expert_parts(l, layer, e, &gate_up[per * (size_t)e], &down[e]);
    }
    if (st == OK && c->experts_biased) {
        gu_bias = xcalloc(n, sizeof *gu_bias);
        dn_bias = xcalloc(n, sizeof *dn_bias);
        gu_values = xcalloc(n * 2 * (size_t)ffn, sizeof *gu_values);
        dn_values = xcalloc(n * (size_t)c->hidden, sizeof *dn_values);
        st = load_expert_biases(l, layer, stacked, gu_values, dn_values, gu_bias, dn_bias);
    }
    if (st == OK) {
        struct weight_desc d = {.name = "experts' gate_up",
                                .kind = WEIGHT_EXPERTS,
                                .dtype = l->options->dtype,
                                .n_out = (int64_t)per * ffn,
                                .n_in = part_experts_width(c),
                                .n_experts = c->n_experts,
                                .n_parts = (int32_t)(per * n),
                                .parts = gate_up,
                                .bias = gu_bias,
                                .k_segments = 1};
        st = part_open(l, &d, &w->experts_gate_up);
    }
    if (st == OK) {
        struct weight_desc d = {.name = "experts' down",
                                .kind = WEIGHT_EXPERTS,
                                .dtype = l->options->dtype,
                                .n_out = part_experts_width(c),
                                .n_in = ffn,
                                .n_experts = c->n_experts,
                                .n_parts = (int32_t)n,
                                .parts = down,
                                .bias = dn_bias,
                                .k_segments = part_segments(l, ffn)};
        st = part_open(l, &d, &w->experts_down);
    }
    requantise_clear(&l->requantise);
    free(gate_up);
    free(down);
    free(gu_bias);
    free(dn_bias);
    free(gu_values);
    free(dn_values);
    return st;
}

/* Loads the additional weights of layers that have experts beside an MLP. */
static enum status load_beside(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct tensor_names *names = l->c->names;
    const int64_t hidden = l->c->hidden;
    const struct {
        const char *name;
        const struct weight **out;
    } norms[] = {{names->experts_norm, &w->experts_norm},
                 {names->experts_post_norm, &w->experts_post_norm},
                 {names->mlp_post_norm, &w->mlp_post_norm}};
    char name[NAME_BYTES];
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++) {
        part_layer_name(norms[i].name, layer, name);
        TRY(part_vector(l, name, ".weight", hidden, norms[i].out));
    }
    part_layer_name(names->expert_scale, layer, name);
    TRY(part_vector(l, name, "", l->c->n_experts, &w->expert_scale));
    struct weight_part scale;
    part_layer_name(names->router_norm, layer, name);
    TRY(part_of(l, name, &hidden, 1, &scale));
    part_dummy_vector(l, &scale, true);
    float *root = xmalloc((size_t)hidden * sizeof *root); // a further factor of the router's input
    for (int64_t i = 0; i < hidden; i++) {
        root[i] = weight_part_get(&scale, 0, i) / sqrtf((float)hidden);
    }
    struct weight_part p = weight_part_plain(root, DT_F32, 1, hidden, hidden);
    enum status st = part_open_vector(l, name, &p, &w->router_norm);
    free(root);
    return st;
}

/* Loads the projections before and after the experts. */
static enum status load_latent(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const int64_t hidden = c->hidden, latent = c->moe_latent;
    char in[NAME_BYTES], out[NAME_BYTES];
    if (latent == 0) {
        return OK;
    }
    part_layer_name(c->names->latent_in, layer, in);
    part_layer_name(c->names->latent_out, layer, out);
    struct stack down = {.pieces = {{in, latent, 0, latent}},
                         .n = 1,
                         .n_in = hidden,
                         .n_cols = hidden,
                         .bias = c->mlp_bias,
                         .adapts = true};
    struct stack up = {.pieces = {{out, hidden, 0, hidden}},
                       .n = 1,
                       .n_in = latent,
                       .n_cols = latent,
                       .bias = c->mlp_bias,
                       .adapts = true};
    TRY(part_linear(l, &down, l->options->dtype, &w->latent_in));
    return part_linear(l, &up, l->options->dtype, &w->latent_out);
}

/* The tensor that corrects the picks; some files have it in the router's module. */
static void name_correction(const struct loader *l, int32_t layer, char name[NAME_BYTES])
{
    char router[NAME_BYTES];
    part_layer_name(l->c->names->router, layer, router);
    snprintf(name, NAME_BYTES, "%.220s.e_score_correction_bias", router);
    if (!part_has(l, name)) {
        part_layer_name(or_empty(l->c->names->correction), layer, name);
    }
}

/* Experts that are not loaded: those that return their input, of which transformers saves matrices
 * that nothing reads, and those of images. */
static void pass_over_experts(struct loader *l, int32_t layer)
{
    const struct model_config *c = l->c;
    for (int32_t e = 0; e < c->n_identity + c->n_other_experts; e++) {
        char pattern[NAME_BYTES], name[NAME_BYTES];
        part_layer_name(or_empty(c->names->expert_up), layer, pattern);
        part_numbered_name(pattern, c->n_experts + e, name);
        *strrchr(name, '.') = '\0';
        part_pass_over(l, name);
    }
}

/* The correction of the picks of n experts. */
static enum status load_correction(struct loader *l, const char *name, int64_t n,
                                   struct layer_weights *w)
{
    if (l->c->n_other_experts == 0) {
        return part_vector(l, name, "", n, &w->correction);
    }
    struct weight_part both;
    TRY(part_of(l, name, (int64_t[]){2, n}, 2, &both));
    const struct weight_part own = weight_part_slice(both, 0, 1, 0, n);
    return part_open_vector(l, name, &own, &w->correction);
}

/* The router stays in fp32, because rounding it would change which experts are picked. */
static enum status load_moe(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    char name[NAME_BYTES];
    part_layer_name(names->router, layer, name);
    const int64_t n_all = c->n_experts + c->n_identity;
    struct stack router = {.pieces = {{name, n_all, 0, n_all}},
                           .n = 1,
                           .n_in = c->hidden,
                           .n_cols = c->hidden,
                           .bias = c->router_bias,
                           .turned = c->router_turned,
                           .stays_plain = true};
    TRY(part_linear(l, &router, DT_F32, &w->router));
    name_correction(l, layer, name);
    if (c->correction && !(c->correction_may_lack && !part_has(l, name))) {
        TRY(load_correction(l, name, n_all, w));
    }
    TRY(load_experts(l, layer, w));
    pass_over_experts(l, layer);
    TRY(load_latent(l, layer, w));
    if (c->shared_ffn > 0) {
        const int32_t shard = l->m->shard.shared_ffn;
        const struct mlp_size size = {c->shared_ffn, shard, shard, shard};
        TRY(load_mlp(l, names->shared_gate, names->shared_up, names->shared_gate_up,
                     names->shared_down, layer, &size, c->mlp_bias, &w->shared_gate_up,
                     &w->shared_down));
    }
    if (c->shared_gate) {
        part_layer_name(names->shared_router, layer, name);
        struct weight_part p;
        char full[NAME_BYTES];
        snprintf(full, sizeof full, "%.240s.weight", name);
        TRY(part_of(l, full, (int64_t[]){1, c->hidden}, 2, &p));
        TRY(part_open_vector(l, full, &p, &w->shared_router));
    }
    return OK;
}

/* A layer without a feed-forward half has none of its weights. */
enum status load_ffn(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    if (c->layers[layer].no_ffn) {
        return OK;
    }
    TRY(load_acts(l, layer, w));
    if (c->layers[layer].moe) {
        TRY(load_moe(l, layer, w));
        if (!c->experts_beside && !c->experts_late) {
            return OK;
        }
        TRY(c->experts_beside ? load_beside(l, layer, w) : OK);
    }
    const struct layer_share share = model_layer_share(c, &l->m->shard, layer);
    const struct mlp_size size = {c->layers[layer].ffn, share.ffn, share.gates, share.ups};
    char rooms[3][NAME_BYTES];
    return load_mlp(l, name_in_mixture(l, layer, "gate_proj", names->gate, rooms[0]),
                    name_in_mixture(l, layer, "up_proj", names->up, rooms[1]), names->gate_up,
                    name_in_mixture(l, layer, "down_proj", names->down, rooms[2]), layer, &size,
                    c->mlp_bias, &w->gate_up, &w->down);
}
