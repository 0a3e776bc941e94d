// SPDX-License-Identifier: Apache-2.0
/* Loads the weights of a recurrent layer. Checkpoints store them in many forms, which are brought
 * into one order: the convolution's channels (queries, keys, values), gates, strengths, decays. */
#include "engine/model/part.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The convolution's channels come first, then gates, decays and strengths. Values per head come
 * last, because the others must be aligned. */
static void place_parts(const struct model_config *c, struct state_shard *s)
{
    const struct state_layer *g = &s->layer;
    const bool low = c->state.low_rank > 0, delta = g->kind == STATE_DELTA;
    int32_t at = g->conv_width;
    s->in_gate_at = -1;
    s->gate_at = low ? -1 : at;
    if (!low) {
        at += s->out_width;
    }
    s->low_at = low ? at : -1;
    at += 2 * c->state.low_rank;
    const bool decays = !low && !c->state.fixed_decays;
    s->decay_at = decays ? at : -1;
    if (decays) {
        at += g->n_heads * (g->per_channel ? g->key_dim : 1);
    }
    s->beta_at = delta ? at : -1;
    s->width = at + (delta ? g->n_heads : 0);
}

bool state_shard_of(const struct model_config *c, int32_t rank, int32_t n_ranks,
                    struct state_shard *out)
{
    const struct state_layer *all = &c->state.layer;
    *out = (struct state_shard){.layer = *all};
    if (c->n_state_layers == 0) {
        return true;
    }
    struct state_layer *g = &out->layer;
    if (all->kind == STATE_CONV) {
        g->conv_width = all->conv_width / n_ranks;
        out->first_channel = rank * g->conv_width;
        out->first_o = out->first_head = rank;
        out->n_o = 1;
        out->o_width = out->out_width = g->conv_width;
        out->beta_at = out->decay_at = out->low_at = -1;
        out->in_gate_at = g->conv_width;
        out->gate_at = 2 * g->conv_width;
        out->width = 3 * g->conv_width;
        return all->conv_width % n_ranks == 0;
    }
    // if not, every rank has all heads
    const int32_t values = all->n_heads * all->value_dim, group = greater(c->state.norm_group, 1);
    bool cut = all->n_key_heads % n_ranks == 0 && values / n_ranks % group == 0;
    int32_t parts = cut ? n_ranks : 1, part = cut ? rank : 0;
    g->n_key_heads = all->n_key_heads / parts;
    g->n_heads = all->n_heads / parts;
    g->conv_width = 2 * g->n_key_heads * g->key_dim + g->n_heads * g->value_dim;
    out->first_key_head = part * g->n_key_heads;
    out->first_head = part * g->n_heads;
    out->n_o = all->n_heads / n_ranks;
    out->first_o = rank * out->n_o;
    out->o_width = g->value_dim;
    out->k_at = g->n_key_heads * g->key_dim;
    out->v_at = 2 * out->k_at;
    out->out_width = g->n_heads * g->value_dim;
    place_parts(c, out);
    return all->n_heads % n_ranks == 0;
}

/* ---- the first product -------------------------------------------------------------------- */

/* Names and pieces of a stacked matrix, in order. */
struct pieces {
    char names[8][NAME_BYTES];
    struct piece *list;
    int32_t n_names, n;
};

static const char *name_of(struct pieces *p, const char *base, int32_t layer)
{
    ASSERT(p->n_names < 8);
    part_layer_name(base, layer, p->names[p->n_names]);
    return p->names[p->n_names++];
}

static void add(struct pieces *p, const char *name, int64_t total, int64_t first, int64_t n)
{
    p->list[p->n++] = (struct piece){name, total, first, n};
}

/* Decays, then strengths, from a tensor whose rows are grouped by key head. */
static void add_grouped_strengths(struct loader *l, int32_t layer, struct pieces *p)
{
    const struct state_layer *all = &l->c->state.layer;
    const struct state_shard *s = &l->m->shard.state;
    const char *ba = name_of(p, l->c->names->state->ba, layer);
    const int64_t r = all->n_heads / all->n_key_heads;
    for (int32_t part = 1; part >= 0; part--) {
        for (int32_t h = 0; h < s->layer.n_key_heads; h++) {
            add(p, ba, 2 * all->n_heads, (s->first_key_head + h) * 2 * r + part * r, r);
        }
    }
}

/* Rows grouped by key head: its queries, keys, values and gates, then those of the next key
 * head. */
static void grouped_pieces(struct loader *l, int32_t layer, struct pieces *p)
{
    const struct state_layer *all = &l->c->state.layer;
    const struct state_shard *s = &l->m->shard.state;
    const struct state_names *names = l->c->names->state;
    int64_t dk = all->key_dim, r = all->n_heads / all->n_key_heads, v = r * all->value_dim;
    int64_t group = 2 * dk + 2 * v, total = all->n_key_heads * group;
    const char *qkvz = name_of(p, names->qkvz, layer);
    const int64_t at[] = {0, dk, 2 * dk, 2 * dk + v}, n[] = {dk, dk, v, v};
    for (int32_t part = 0; part < 4; part++) {
        for (int32_t h = 0; h < s->layer.n_key_heads; h++) {
            add(p, qkvz, total, (s->first_key_head + h) * group + at[part], n[part]);
        }
    }
    add_grouped_strengths(l, layer, p);
}

/* Where the checkpoint has a value head. */
static int64_t stored_head(const struct loader *l, int64_t head)
{
    const struct state_layer *all = &l->c->state.layer;
    const int64_t each = all->n_heads / all->n_key_heads;
    return l->c->state.heads_are_tiled ? head % each * all->n_key_heads + head / each : head;
}

/* Adds the rows of this rank's heads. The tensor has `size` rows per head, starting at row `at`. */
static void add_heads(struct loader *l, struct pieces *p, const char *name, int64_t total,
                      int64_t at, int64_t size)
{
    const struct state_shard *s = &l->m->shard.state;
    if (!l->c->state.heads_are_tiled) {
        add(p, name, total, at + s->first_head * size, s->layer.n_heads * size);
        return;
    }
    for (int64_t h = 0; h < s->layer.n_heads; h++) {
        add(p, name, total, at + stored_head(l, s->first_head + h) * size, size);
    }
}

static void add_key_heads(struct loader *l, struct pieces *p, const char *name, int64_t total,
                          int64_t at)
{
    const struct state_shard *s = &l->m->shard.state;
    int64_t dk = s->layer.key_dim;
    add(p, name, total, at + s->first_key_head * dk, s->layer.n_key_heads * dk);
}

static void separate_pieces(struct loader *l, int32_t layer, struct pieces *p)
{
    const struct state_layer *all = &l->c->state.layer;
    const struct state_names *names = l->c->names->state;
    int64_t keys = (int64_t)all->n_key_heads * all->key_dim;
    int64_t values = (int64_t)all->n_heads * all->value_dim, total = 2 * keys + values;
    if (names->qkv) {
        const char *qkv = name_of(p, names->qkv, layer);
        add_key_heads(l, p, qkv, total, 0);
        add_key_heads(l, p, qkv, total, keys);
        add_heads(l, p, qkv, total, 2 * keys, all->value_dim);
    } else {
        add_key_heads(l, p, name_of(p, names->q, layer), keys, 0);
        add_key_heads(l, p, name_of(p, names->k, layer), keys, 0);
        add_heads(l, p, name_of(p, names->v, layer), values, 0, all->value_dim);
    }
    add_heads(l, p, name_of(p, names->z, layer), values, 0, all->value_dim);
    if (names->ba) {
        add_grouped_strengths(l, layer, p);
        return;
    }
    add_heads(l, p, name_of(p, names->a, layer), all->n_heads, 0, 1);
    add_heads(l, p, name_of(p, names->b, layer), all->n_heads, 0, 1);
}

/* Whether queries, keys and values are in a tensor without the gates, for a family whose own files
 * have them together. */
static bool is_split(const struct loader *l, int32_t layer)
{
    char name[NAME_BYTES];
    part_layer_name(or_empty(l->c->names->state->qkv), layer, name);
    return l->c->names->state->qkv && part_exists(l, name);
}

/* Queries, keys and values of each head follow one another. */
static void headwise_pieces(struct loader *l, int32_t layer, struct pieces *p)
{
    const struct state_layer *all = &l->c->state.layer;
    const struct state_shard *s = &l->m->shard.state;
    const struct state_names *names = l->c->names->state;
    const int64_t size = all->key_dim, total = 3 * size * all->n_heads;
    const char *heads = name_of(p, names->heads, layer);
    for (int32_t part = 0; part < 3; part++) {
        for (int32_t h = 0; h < s->layer.n_heads; h++) {
            add(p, heads, total, ((s->first_head + h) * 3 + part) * size, size);
        }
    }
    add_heads(l, p, name_of(p, names->z, layer), all->n_heads * size, 0, size);
}

/* Gates and decays have separate products, of full or low rank. */
static void projected_pieces(struct loader *l, int32_t layer, struct pieces *p)
{
    const struct state_layer *all = &l->c->state.layer;
    const struct state_names *names = l->c->names->state;
    int64_t keys = (int64_t)all->n_key_heads * all->key_dim, low = l->c->state.low_rank;
    int64_t values = (int64_t)all->n_heads * all->value_dim;
    int64_t decays = (int64_t)all->n_heads * all->key_dim;
    add_key_heads(l, p, name_of(p, names->q, layer), keys, 0);
    add_key_heads(l, p, name_of(p, names->k, layer), keys, 0);
    add_heads(l, p, name_of(p, names->v, layer), values, 0, all->value_dim);
    if (low > 0) {
        add(p, name_of(p, names->f_a, layer), low, 0, low);
        add(p, name_of(p, names->g_a, layer), low, 0, low);
    } else {
        add_heads(l, p, name_of(p, names->g, layer), values, 0, all->value_dim);
        add_heads(l, p, name_of(p, names->f, layer), decays, 0, all->key_dim);
    }
    add_heads(l, p, name_of(p, names->b, layer), all->n_heads, 0, 1);
}

/* Mamba-2 stores z, x, B, C, dt: in this program's terms gates, values, keys, queries, decays. */
static void mamba_pieces(struct loader *l, int32_t layer, struct pieces *p)
{
    const struct state_layer *all = &l->c->state.layer;
    int64_t keys = (int64_t)all->n_key_heads * all->key_dim;
    int64_t values = (int64_t)all->n_heads * all->value_dim;
    int64_t total = 2 * values + 2 * keys + all->n_heads;
    const char *in = name_of(p, l->c->names->state->in, layer);
    add_key_heads(l, p, in, total, 2 * values + keys);
    add_key_heads(l, p, in, total, 2 * values);
    add_heads(l, p, in, total, values, all->value_dim);
    add_heads(l, p, in, total, 0, all->value_dim);
    add_heads(l, p, in, total, 2 * values + 2 * keys, 1);
}

/* For a layer that is only a convolution: the gate before it, the gate after it, and its values. */
static void conv_pieces(struct loader *l, int32_t layer, struct pieces *p)
{
    const struct state_shard *s = &l->m->shard.state;
    int64_t n = l->c->state.layer.conv_width, mine = s->layer.conv_width;
    const char *in = name_of(p, l->c->names->state->in, layer);
    add(p, in, 3 * n, 2 * n + s->first_channel, mine);
    add(p, in, 3 * n, s->first_channel, mine);
    add(p, in, 3 * n, n + s->first_channel, mine);
}

/* The second factor of a low-rank product. */
static enum status load_low(struct loader *l, int32_t layer, const char *base, int64_t size,
                            const struct weight **out)
{
    const struct state_shard *s = &l->m->shard.state;
    char name[NAME_BYTES];
    part_layer_name(base, layer, name);
    struct stack st = {.pieces = {{name, l->c->state.layer.n_heads * size, s->first_head * size,
                                   s->layer.n_heads * size}},
                       .n = 1,
                       .n_in = l->c->state.low_rank,
                       .n_cols = l->c->state.low_rank,
                       .adapts = true};
    return part_linear(l, &st, l->options->dtype, out);
}

/* Loads all projections of the layer's input as one product. Families store them in six
 * layouts. */
static enum status load_in(struct loader *l, int32_t layer, struct state_weights *w)
{
    const struct state_names *names = l->c->names->state;
    const struct state_layer *g = &l->m->shard.state.layer;
    const size_t most = 8 + 6 * (size_t)g->n_key_heads + 4 * (size_t)g->n_heads;
    struct pieces p = {.list = xcalloc(most, sizeof *p.list)};
    if (l->c->state.layer.kind == STATE_CONV) {
        conv_pieces(l, layer, &p);
    } else if (names->heads) {
        headwise_pieces(l, layer, &p);
    } else if (names->in) {
        mamba_pieces(l, layer, &p);
    } else if (names->qkvz && !is_split(l, layer)) {
        grouped_pieces(l, layer, &p);
    } else if (names->z) {
        separate_pieces(l, layer, &p);
    } else {
        projected_pieces(l, layer, &p);
    }
    struct stack st = {.list = p.list,
                       .n = p.n,
                       .n_in = l->c->hidden,
                       .n_cols = l->c->hidden,
                       .bias = l->c->state.in_bias,
                       .adapts = true};
    enum status status = part_linear(l, &st, l->options->dtype, &w->in);
    free(p.list);
    if (status != OK || l->c->state.low_rank == 0) {
        return status;
    }
    TRY(load_low(l, layer, names->f_b, l->c->state.layer.key_dim, &w->f_b));
    return load_low(l, layer, names->g_b, l->c->state.layer.value_dim, &w->g_b);
}

/* ---- vectors ------------------------------------------------------------------------------ */

/* A range of this rank's channels in a convolution's tensor that has `total` channels. */
struct conv_run {
    const char *base;
    int64_t total, first, n;
    float scale;     // factor of the inputs, folded into the weights
    int64_t head_at; // the channel at which value heads begin, if these are tiled; 0: they are not
};

/* Whether one tensor has the channels of queries, keys and values. */
static bool has_conv(const struct loader *l, int32_t layer)
{
    char base[NAME_BYTES], name[NAME_BYTES];
    const char *conv = l->c->names->state->conv;
    part_layer_name(or_empty(conv), layer, base);
    snprintf(name, sizeof name, "%.240s.weight", base);
    return conv && part_has(l, name);
}

/* Where the checkpoint has channel c of a range. */
static int64_t stored_channel(const struct loader *l, const struct conv_run *r, int64_t c)
{
    if (r->head_at == 0) {
        return r->first + c;
    }
    const int64_t size = l->c->state.layer.value_dim, at = r->first + c - r->head_at;
    return r->head_at + stored_head(l, at / size) * size + at % size;
}

/* The ranges of the checkpoint's channels that this rank has, in this program's order (queries,
 * keys, values). Mamba-2 stores values first. */
static int32_t conv_runs(const struct loader *l, int32_t layer, struct conv_run out[3])
{
    const struct state_config *c = &l->c->state;
    const struct state_layer *all = &c->layer;
    const struct state_shard *s = &l->m->shard.state;
    const struct state_names *names = l->c->names->state;
    int64_t total = all->conv_width;
    if (all->kind == STATE_CONV) {
        out[0] =
            (struct conv_run){names->conv, total, s->first_channel, s->layer.conv_width, 1.0f, 0};
        return 1;
    }
    int64_t keys = (int64_t)all->n_key_heads * all->key_dim;
    int64_t values = (int64_t)all->n_heads * all->value_dim;
    int64_t key = (int64_t)s->first_key_head * all->key_dim;
    int64_t value = (int64_t)s->first_head * all->value_dim;
    if (names->conv_q && !has_conv(l, layer)) {
        out[0] = (struct conv_run){names->conv_q, keys, key, s->k_at, 1.0f, 0};
        out[1] = (struct conv_run){names->conv_k, keys, key, s->k_at, 1.0f, 0};
        out[2] = (struct conv_run){names->conv_v, values, value, s->out_width, 1.0f, 0};
        return 3;
    }
    const bool values_first = all->kind == STATE_DECAY; // the stored order is values, keys, queries
    int64_t q = values_first ? values + keys : 0, k = values_first ? values : keys;
    out[0] = (struct conv_run){names->conv, total, q + key, s->k_at, c->q_scale, 0};
    out[1] = (struct conv_run){names->conv, total, k + key, s->k_at, c->k_scale, 0};
    out[2] = (struct conv_run){names->conv,  total,      (values_first ? 0 : 2 * keys) + value,
                               s->out_width, c->v_scale, c->heads_are_tiled ? 2 * keys : 0};
    return 3;
}

/* Reads [kernel, channels] from a tensor [channels, 1, kernel], starting at channel `at`, and the
 * biases. */
static enum status read_conv(struct loader *l, int32_t layer, const struct conv_run *r,
                             int64_t width, float *weights, float *biases)
{
    int64_t kernel = l->c->state.layer.conv_kernel;
    char base[NAME_BYTES], name[NAME_BYTES];
    struct weight_part p;
    part_layer_name(r->base, layer, base);
    snprintf(name, sizeof name, "%.240s.weight", base);
    TRY(part_of(l, name, (int64_t[]){r->total, 1, kernel}, 3, &p));
    const bool dummy = weight_part_is_dummy(&p);
    for (int64_t c = 0; c < r->n; c++) {
        for (int64_t i = 0; i < kernel; i++) {
            float w = dummy ? 0.5f : weight_part_get(&p, stored_channel(l, r, c), i);
            weights[i * width + c] = w * (r->scale > 0.0f ? r->scale : 1.0f);
        }
    }
    if (!l->c->state.conv_bias) {
        return OK;
    }
    snprintf(name, sizeof name, "%.240s.bias", base);
    TRY(part_of(l, name, &r->total, 1, &p));
    for (int64_t c = 0; c < r->n; c++) {
        biases[c] = weight_part_get(&p, 0, r->first + c);
    }
    return OK;
}

/* The kernel is stored by tap, then by channel, the order in which the op reads it. */
static enum status load_conv(struct loader *l, int32_t layer, struct state_weights *w)
{
    const struct state_layer *g = &l->m->shard.state.layer;
    int64_t kernel = g->conv_kernel, width = g->conv_width, at = 0;
    float *weights = xcalloc((size_t)((kernel + 1) * width), sizeof *weights);
    float *biases = weights + kernel * width;
    struct conv_run runs[3];
    const bool stored = l->c->names->state->conv || l->c->names->state->conv_q;
    int32_t n = stored ? conv_runs(l, layer, runs) : 0;
    enum status st = OK;
    for (int64_t c = 0; !stored && c < kernel * width; c++) {
        weights[c] = 1.0f;
    }
    for (int32_t i = 0; i < n && st == OK; i++) {
        st = read_conv(l, layer, &runs[i], width, weights + at, biases + at);
        at += runs[i].n;
    }
    struct weight_part all = weight_part_plain(weights, DT_F32, 1, kernel * width, kernel * width);
    struct weight_part bias = weight_part_plain(biases, DT_F32, 1, width, width);
    if (st == OK) {
        st = part_open_vector(l, "the convolution", &all, &w->conv);
    }
    if (st == OK && l->c->state.conv_bias) {
        st = part_open_vector(l, "the convolution's bias", &bias, &w->conv_bias);
    }
    free(weights);
    return st;
}

/* One number for each of this rank's value heads, from a GGUF file. */
static enum status gguf_vector(struct loader *l, const char *name, const struct weight_part *p,
                               bool is_decay, const struct weight **out)
{
    const struct state_shard *s = &l->m->shard.state;
    const int64_t n = s->layer.n_heads;
    float *values = xmalloc((size_t)n * sizeof *values);
    const float sign = (float)l->c->state.decay_sign;
    bool good = true;
    for (int64_t h = 0; h < n; h++) {
        values[h] = weight_part_get(p, 0, stored_head(l, s->first_head + h));
        good = good && (!is_decay || sign * values[h] >= 0.0f);
        values[h] = is_decay ? logf(sign * values[h]) : values[h];
    }
    const struct weight_part all = weight_part_plain(values, DT_F32, 1, n, n);
    enum status st = part_open_vector(l, name, &all, out);
    free(values);
    if (!good) {
        return err_set(l->err, ERR_FORMAT, "%s: tensor %s has a decay with the wrong sign",
                       checkpoint_where(l->options->checkpoint), name);
    }
    return st;
}

/* Loads this rank's part of a vector with `size` elements per head. */
static enum status head_vector(struct loader *l, int32_t layer, const char *base, int64_t size,
                               bool deep, const struct weight **out)
{
    const struct state_layer *all = &l->c->state.layer;
    const struct state_shard *s = &l->m->shard.state;
    char name[NAME_BYTES];
    int64_t n = all->n_heads * size, dims[] = {1, 1, n, 1};
    struct weight_part p;
    const bool of_gguf = l->c->state.decay_sign != 0;
    deep = deep && !of_gguf; // such files differ in the number of dimensions
    part_layer_name(base, layer, name);
    TRY(part_of(l, name, deep ? dims : &n, deep ? 4 : 1, &p));
    if (!weight_part_is_dummy(&p) && of_gguf && size == 1) {
        const bool is_decay = strcmp(base, l->c->names->state->a_log) == 0;
        return gguf_vector(l, name, &p, is_decay, out);
    }
    if (!weight_part_is_dummy(&p)) {
        p = weight_part_plain(p.codec.values.data, p.codec.values.dtype, 1, n, n);
    } else {
        p.n_rows = 1;
        p.n_cols = n;
        part_dummy_vector(l, &p, false);
    }
    p = weight_part_slice(p, 0, 1, s->first_head * size, s->layer.n_heads * size);
    return part_open_vector(l, name, &p, out);
}

/* A vector with a number for each of this rank's heads. */
static enum status open_heads(struct loader *l, const char *what, const float *values,
                              const struct weight **out)
{
    const int64_t n = l->m->shard.state.layer.n_heads;
    const struct weight_part p = weight_part_plain(values, DT_F32, 1, n, n);
    return part_open_vector(l, what, &p, out);
}

/* Decays that are not in the checkpoint: with these vectors steps are 1. */
static enum status load_fixed_decays(struct loader *l, int32_t layer, struct state_weights *w)
{
    const struct state_shard *s = &l->m->shard.state;
    const double all = l->c->state.layer.n_heads, last = l->c->n_layers - 1;
    const double share = 1.0 - layer / (last + 1e-5) + 1e-5;
    float *values = xmalloc((size_t)s->layer.n_heads * sizeof *values);
    for (int32_t h = 0; h < s->layer.n_heads; h++) {
        values[h] = (float)(-8.0 * (s->first_head + h + 1) / all * log(2.0) + log(share));
    }
    enum status st = open_heads(l, "the decays", values, &w->a_log);
    for (int32_t h = 0; h < s->layer.n_heads; h++) {
        values[h] = (float)log(expm1(1.0));
    }
    if (st == OK) {
        st = open_heads(l, "the steps", values, &w->dt_bias);
    }
    free(values);
    return st;
}

static enum status load_norm(struct loader *l, int32_t layer, struct state_weights *w)
{
    const struct state_config *c = &l->c->state;
    char name[NAME_BYTES];
    if (!c->normed) {
        return OK;
    }
    if (c->norm_is_wide) {
        char base[NAME_BYTES];
        snprintf(base, sizeof base, "%.240s.weight", l->c->names->state->norm);
        return head_vector(l, layer, base, c->layer.value_dim, false, &w->norm);
    }
    part_layer_name(l->c->names->state->norm, layer, name);
    return part_vector(l, name, ".weight", c->norm_group, &w->norm);
}

static enum status load_out(struct loader *l, int32_t layer, struct state_weights *w)
{
    const struct state_shard *s = &l->m->shard.state;
    char name[NAME_BYTES];
    part_layer_name(l->c->names->state->out, layer, name);
    int64_t width = s->o_width;
    const struct state_layer *all = &l->c->state.layer;
    const bool conv = all->kind == STATE_CONV;
    struct stack st = {.pieces = {{name, l->c->hidden, 0, l->c->hidden}},
                       .n = 1,
                       .n_in = width * s->n_o * l->m->shard.n_ranks,
                       .first_col = s->first_o * width,
                       .n_cols = s->n_o * width,
                       .bias = l->c->state.out_bias,
                       .adapts = true,
                       .k_segments = part_segments(l, conv ? width : s->n_o)};
    if (l->c->state.heads_are_tiled) {
        st.runs = (struct column_runs){width, all->n_heads / all->n_key_heads, all->n_key_heads};
    }
    return part_linear(l, &st, l->options->dtype, &w->out);
}

enum status load_recurrent(struct loader *l, int32_t layer, struct layer_weights *lw)
{
    const struct state_layer *g = &l->c->state.layer;
    const struct state_names *names = l->c->names->state;
    struct state_weights *w = &lw->state;
    if (l->c->layers[layer].state < 0) {
        return OK;
    }
    TRY(load_in(l, layer, w));
    TRY(load_conv(l, layer, w));
    if (g->kind == STATE_CONV) {
        return load_out(l, layer, w);
    }
    int64_t decays = g->per_channel ? g->key_dim : 1;
    if (l->c->state.fixed_decays) {
        TRY(load_fixed_decays(l, layer, w));
    } else {
        TRY(head_vector(l, layer, names->a_log, 1, names->a_log_is_deep, &w->a_log));
        TRY(head_vector(l, layer, names->dt_bias, decays, false, &w->dt_bias));
    }
    if (names->skip) {
        TRY(head_vector(l, layer, names->skip, 1, false, &w->skip));
    }
    TRY(load_norm(l, layer, w));
    return load_out(l, layer, w);
}
