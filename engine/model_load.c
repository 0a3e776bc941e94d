/* Reads a checkpoint by the names of its family's row and hands each weight to the backend, whole
 * or this rank's slice of it. */
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 256, TP_SEGMENTS = 4 };

struct loader {
    const struct model_load_options *options;
    const struct model_config *c;
    struct model *m;
    struct backend *be;
    struct err *err;
    const char *prefix; // what stands before "model." in this checkpoint, or in its place
    float *ones, *zeros;
    size_t n_const;
    uint64_t seed;
};

/* ---- names -------------------------------------------------------------------------------- */

/* Wrappers of several modalities keep the language part under a prefix. */
static const char *const prefixes[] = {"", "language_model.", "model.language_model."};

static void full_name(const struct loader *l, const char *name, char out[NAME_BYTES])
{
    const char *rest = name;
    if (strcmp(l->prefix, "model.language_model.") == 0 && strncmp(name, "model.", 6) == 0) {
        rest = name + 6;
    } else if (strcmp(l->prefix, "model.language_model.") == 0) {
        snprintf(out, NAME_BYTES, "%s", name); // lm_head stays at the top
        return;
    }
    snprintf(out, NAME_BYTES, "%s%s", l->prefix, rest);
}

static const struct checkpoint_tensor *find(const struct loader *l, const char *name)
{
    char full[NAME_BYTES];
    full_name(l, name, full);
    return l->options->checkpoint ? checkpoint_find(l->options->checkpoint, full) : NULL;
}

static bool has(const struct loader *l, const char *base)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", base);
    return find(l, name) != NULL;
}

static void find_prefix(struct loader *l)
{
    l->prefix = "";
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        l->prefix = prefixes[i];
        if (has(l, l->c->names->embed)) {
            return;
        }
    }
    l->prefix = "";
}

static void layer_name(const char *base, int32_t layer, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "model.layers.%d.%s", layer, base);
}

/* The weight of the e-th of several like things: "%d" in the pattern becomes e. */
static void numbered_name(const char *pattern, int32_t e, char out[NAME_BYTES])
{
    const char *mark = strstr(pattern, "%d");
    snprintf(out, NAME_BYTES, "%.*s%d%s.weight", (int)(mark - pattern), pattern, e, mark + 2);
}

/* ---- parts -------------------------------------------------------------------------------- */

static enum status shape_error(const struct loader *l, const struct checkpoint_tensor *t,
                               const int64_t *dims, int32_t n)
{
    char want[128] = "", have[128] = "";
    for (int32_t i = 0; i < n; i++) {
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s%lld", i ? ", " : "",
                 (long long)dims[i]);
    }
    for (int32_t i = 0; i < t->n_dims; i++) {
        snprintf(have + strlen(have), sizeof have - strlen(have), "%s%lld", i ? ", " : "",
                 (long long)t->dims[i]);
    }
    return err_set(l->err, ERR_FORMAT, "%s: tensor %s has shape [%s], but config.json asks for [%s]",
                   t->file, t->name, have, want);
}

/* The tensor `name`, checked against dims; *out describes it whole as rows of `cols`. */
static enum status part_of(struct loader *l, const char *name, const int64_t *dims, int32_t n_dims,
                           struct weight_part *out)
{
    int64_t rows = n_dims > 1 ? dims[0] : 1, cols = dims[n_dims - 1];
    for (int32_t i = 1; i < n_dims - 1; i++) {
        rows *= dims[i];
    }
    l->m->n_parameters += rows * cols;
    *out = (struct weight_part){.n_rows = rows, .n_cols = cols, .row_stride = cols,
                                .col_stride = 1, .dtype = l->options->dtype};
    if (!l->options->checkpoint) {
        return OK;
    }
    const struct checkpoint_tensor *t = find(l, name);
    char full[NAME_BYTES];
    full_name(l, name, full);
    if (!t) {
        return err_set(l->err, ERR_FORMAT, "the checkpoint has no tensor %s", full);
    }
    if (!t->dtype_known || (t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16)) {
        return err_set(l->err, ERR_UNSUPPORTED, "%s: tensor %s is %s, which is not supported",
                       t->file, t->name, t->dtype_name);
    }
    bool same = t->n_dims == n_dims && memcmp(t->dims, dims, sizeof *dims * (size_t)n_dims) == 0;
    if (!same) {
        return shape_error(l, t, dims, n_dims);
    }
    out->data = t->data;
    out->dtype = t->dtype;
    return OK;
}

static struct weight_part slice(struct weight_part p, int64_t first_row, int64_t n_rows,
                                int64_t first_col, int64_t n_cols)
{
    if (p.data) {
        p.data = (const char *)p.data + (size_t)(first_row * p.row_stride +
                                                 first_col * p.col_stride) * dtype_bytes(p.dtype);
    }
    p.n_rows = n_rows;
    p.n_cols = n_cols;
    return p;
}

static enum status open_weight(struct loader *l, struct weight_desc *d, const struct weight **out)
{
    struct weight *w;
    d->dummy_seed = hash_mix(++l->seed);
    d->dummy_scale = 0.02f;
    size_t n = (size_t)(d->n_out * d->n_in) * (size_t)(d->n_experts ? d->n_experts : 1);
    l->m->weight_bytes += n * dtype_bytes(d->kind == WEIGHT_VECTOR ? DT_F32 : d->dtype);
    TRY(l->be->ops->weight_open(l->be, d, &w, l->err));
    *out = w;
    return OK;
}

/* A constant vector in the place of one that a dummy model does not have. */
static void dummy_vector(struct loader *l, struct weight_part *p, bool one)
{
    size_t n = (size_t)(p->n_rows * p->n_cols);
    if (!p->data && n <= l->n_const) {
        p->data = one ? l->ones : l->zeros;
        p->dtype = DT_F32;
    }
}

static enum status open_vector(struct loader *l, const char *name, const struct weight_part *p,
                               const struct weight **out)
{
    struct weight_part whole = *p;
    dummy_vector(l, &whole, strstr(name, "norm") != NULL);
    struct weight_desc d = {.name = name, .kind = WEIGHT_VECTOR, .dtype = DT_F32, .n_out = 1,
                            .n_in = p->n_rows * p->n_cols, .n_experts = 1, .n_parts = 1,
                            .parts = &whole, .k_segments = 1};
    return open_weight(l, &d, out);
}

/* A whole vector named `base` + suffix of n elements. */
static enum status vector(struct loader *l, const char *base, const char *suffix, int64_t n,
                          const struct weight **out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    struct weight_part p;
    TRY(part_of(l, name, &n, 1, &p));
    return open_vector(l, name, &p, out);
}

/* ---- matrices ----------------------------------------------------------------------------- */

enum { MAX_STACK = 3 };

/* Rows [first, first + n) of one tensor, as a piece of a stacked matrix. */
struct piece {
    const char *base; // without ".weight"
    int64_t total_rows, first, n;
};

struct stack {
    struct piece pieces[MAX_STACK];
    int32_t n;
    int64_t n_in, first_col, n_cols; // columns taken; n_in is the tensor's
    bool bias;
    bool bias_everywhere; // a row-sharded product's bias is whole on every rank
    int32_t k_segments;
};

static enum status linear(struct loader *l, const struct stack *s, enum dtype dtype,
                          const struct weight **out)
{
    struct weight_part parts[MAX_STACK], bias_parts[MAX_STACK], bias;
    float *joined = NULL;
    int64_t n_out = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const struct piece *p = &s->pieces[i];
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s.weight", p->base);
        TRY(part_of(l, name, (int64_t[]){p->total_rows, s->n_in}, 2, &parts[i]));
        parts[i] = slice(parts[i], p->first, p->n, s->first_col, s->n_cols);
        if (s->bias) {
            snprintf(name, sizeof name, "%s.bias", p->base);
            TRY(part_of(l, name, &p->total_rows, 1, &bias_parts[i]));
            dummy_vector(l, &bias_parts[i], false);
            bias_parts[i] = slice(bias_parts[i], 0, 1, p->first, p->n);
        }
        n_out += p->n;
    }
    if (s->bias) { // one fp32 vector of all pieces
        joined = xmalloc((size_t)n_out * sizeof *joined);
        int64_t at = 0;
        for (int32_t i = 0; i < s->n; i++) {
            for (int64_t j = 0; j < bias_parts[i].n_cols; j++) {
                joined[at++] = weight_part_get(&bias_parts[i], 0, j);
            }
        }
        bias = (struct weight_part){.data = joined, .dtype = DT_F32, .n_rows = 1, .n_cols = n_out,
                                    .row_stride = n_out, .col_stride = 1};
    }
    struct weight_desc d = {.name = s->pieces[0].base, .kind = WEIGHT_LINEAR, .dtype = dtype,
                            .n_out = n_out, .n_in = s->n_cols, .n_experts = 1, .n_parts = s->n,
                            .parts = parts, .bias = s->bias ? &bias : NULL,
                            .k_segments = s->k_segments ? s->k_segments : 1};
    enum status st = open_weight(l, &d, out);
    free(joined);
    return st;
}

/* K is cut into the largest number of equal segments, up to TP_SEGMENTS, that divides all units of
 * all ranks: the cuts, and so the sums, are the same however many ranks share them. */
static int32_t segments(const struct loader *l, int64_t units_of_rank)
{
    int32_t n_ranks = l->m->shard.n_ranks, n = TP_SEGMENTS;
    while (n > 1 && units_of_rank * n_ranks % n) {
        n /= 2;
    }
    return n > n_ranks ? n / n_ranks : 1;
}

/* ---- attention ---------------------------------------------------------------------------- */

static enum status load_qkv(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct model_shard *s = &l->m->shard;
    const struct tensor_names *names = c->names;
    int64_t hd = c->head_dim, q_all = c->n_heads * hd, kv_all = c->n_kv_heads * hd;
    int64_t q_first = s->first_head * hd, q_n = s->n_heads * hd;
    int64_t kv_first = s->first_kv_head * hd, kv_n = s->n_kv_heads * hd;
    char q[NAME_BYTES], k[NAME_BYTES], v[NAME_BYTES];
    struct stack st = {.n = 3, .n_in = c->hidden, .n_cols = c->hidden, .bias = c->q_bias};
    if (names->qkv) {
        layer_name(names->qkv, layer, q);
        int64_t all = q_all + 2 * kv_all;
        st.pieces[0] = (struct piece){q, all, q_first, q_n};
        st.pieces[1] = (struct piece){q, all, q_all + kv_first, kv_n};
        st.pieces[2] = (struct piece){q, all, q_all + kv_all + kv_first, kv_n};
    } else {
        layer_name(names->q, layer, q);
        layer_name(names->k, layer, k);
        layer_name(names->v, layer, v);
        st.pieces[0] = (struct piece){q, q_all, q_first, q_n};
        st.pieces[1] = (struct piece){k, kv_all, kv_first, kv_n};
        st.pieces[2] = (struct piece){v, kv_all, kv_first, kv_n};
    }
    return linear(l, &st, l->options->dtype, &w->qkv);
}

/* StableLM keeps one norm per head, each a tensor of its own. */
static enum status per_head_norms(struct loader *l, const char *pattern, int32_t first, int32_t n,
                                  const char *what, const struct weight **out)
{
    int64_t hd = l->c->head_dim;
    float *joined = xmalloc((size_t)(n * hd) * sizeof *joined);
    enum status st = OK;
    for (int32_t h = 0; h < n && st == OK; h++) {
        char name[NAME_BYTES];
        numbered_name(pattern, first + h, name);
        struct weight_part p;
        st = part_of(l, name, &hd, 1, &p);
        dummy_vector(l, &p, true);
        for (int64_t i = 0; i < hd && st == OK; i++) {
            joined[h * hd + i] = weight_part_get(&p, 0, i);
        }
    }
    struct weight_part all = {.data = joined, .dtype = DT_F32, .n_rows = 1, .n_cols = n * hd,
                              .row_stride = n * hd, .col_stride = 1};
    if (st == OK) {
        st = open_vector(l, what, &all, out);
    }
    free(joined);
    return st;
}

static enum status load_qk_norms(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct model_shard *s = &l->m->shard;
    char q[NAME_BYTES], k[NAME_BYTES];
    if (c->qk_norm == QK_NORM_NONE) {
        return OK;
    }
    layer_name(c->names->q_norm, layer, q);
    layer_name(c->names->k_norm, layer, k);
    if (c->qk_norm_kind == NORM_LAYER) {
        TRY(per_head_norms(l, q, s->first_head, s->n_heads, "q_norm", &w->q_norm));
        return per_head_norms(l, k, s->first_kv_head, s->n_kv_heads, "k_norm", &w->k_norm);
    }
    if (c->qk_norm == QK_NORM_HEAD) {
        TRY(vector(l, q, ".weight", c->head_dim, &w->q_norm));
        return vector(l, k, ".weight", c->head_dim, &w->k_norm);
    }
    TRY(vector(l, q, ".weight", (int64_t)c->n_heads * c->head_dim, &w->q_norm));
    return vector(l, k, ".weight", (int64_t)c->n_kv_heads * c->head_dim, &w->k_norm);
}

static enum status load_o(struct loader *l, int32_t layer, int64_t head_out,
                          struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct model_shard *s = &l->m->shard;
    char o[NAME_BYTES];
    layer_name(c->names->o, layer, o);
    struct stack st = {.pieces = {{o, c->hidden, 0, c->hidden}},
                       .n = 1,
                       .n_in = c->n_heads * head_out,
                       .first_col = s->first_o_head * head_out,
                       .n_cols = s->n_o_heads * head_out,
                       .bias = c->o_bias,
                       .k_segments = segments(l, s->n_o_heads)};
    return linear(l, &st, l->options->dtype, &w->o);
}

static enum status load_sinks(struct loader *l, int32_t layer, struct layer_weights *w)
{
    if (!l->c->sinks) {
        return OK;
    }
    char name[NAME_BYTES];
    layer_name(l->c->names->sinks, layer, name);
    int64_t n = l->c->n_heads;
    struct weight_part p;
    TRY(part_of(l, name, &n, 1, &p));
    dummy_vector(l, &p, false);
    p = slice(p, 0, 1, l->m->shard.first_head, l->m->shard.n_heads);
    return open_vector(l, name, &p, &w->sinks);
}

/* kv_b is split by head into the two products that MLA absorbs: keys into q, values behind. */
static enum status load_mla_heads(struct loader *l, int32_t layer, bool value,
                                  const struct weight **out)
{
    const struct model_config *c = l->c;
    const struct model_shard *s = &l->m->shard;
    char base[NAME_BYTES], name[NAME_BYTES];
    layer_name(c->names->kv_b, layer, base);
    snprintf(name, sizeof name, "%.240s.weight", base);
    int64_t per_head = c->nope_dim + c->v_dim;
    struct weight_part whole;
    TRY(part_of(l, name, (int64_t[]){c->n_heads * per_head, c->kv_lora}, 2, &whole));
    struct weight_part *parts = xcalloc((size_t)s->n_heads, sizeof *parts);
    for (int32_t h = 0; h < s->n_heads; h++) {
        int64_t first = (s->first_head + h) * per_head + (value ? c->nope_dim : 0);
        parts[h] = slice(whole, first, value ? c->v_dim : c->nope_dim, 0, c->kv_lora);
        if (!value) { // transposed: [kv_lora, nope]
            parts[h].n_rows = c->kv_lora;
            parts[h].n_cols = c->nope_dim;
            parts[h].row_stride = 1;
            parts[h].col_stride = c->kv_lora;
        }
    }
    struct weight_desc d = {.name = name, .kind = WEIGHT_HEADS, .dtype = l->options->dtype,
                            .n_out = value ? c->v_dim : c->kv_lora,
                            .n_in = value ? c->kv_lora : c->nope_dim,
                            .n_experts = s->n_heads, .n_parts = s->n_heads, .parts = parts,
                            .k_segments = 1};
    enum status st = open_weight(l, &d, out);
    free(parts);
    return st;
}

static enum status load_mla(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct model_shard *s = &l->m->shard;
    char name[NAME_BYTES];
    int64_t q_head = c->nope_dim + c->rope_dim;
    struct stack q = {.n = 1, .n_in = c->q_lora ? c->q_lora : c->hidden};
    q.n_cols = q.n_in;
    if (c->q_lora) {
        layer_name(c->names->q_a, layer, name);
        struct stack a = {.pieces = {{name, c->q_lora, 0, c->q_lora}}, .n = 1, .n_in = c->hidden,
                          .n_cols = c->hidden, .bias = c->o_bias};
        TRY(linear(l, &a, l->options->dtype, &w->q_a));
        layer_name(c->names->q_a_norm, layer, name);
        TRY(vector(l, name, ".weight", c->q_lora, &w->q_a_norm));
    }
    layer_name(c->q_lora ? c->names->q_b : c->names->q, layer, name);
    q.pieces[0] = (struct piece){name, c->n_heads * q_head, s->first_head * q_head,
                                 s->n_heads * q_head};
    TRY(linear(l, &q, l->options->dtype, &w->qkv));
    int64_t kv = c->kv_lora + c->rope_dim;
    layer_name(c->names->kv_a, layer, name);
    struct stack a = {.pieces = {{name, kv, 0, kv}}, .n = 1, .n_in = c->hidden,
                      .n_cols = c->hidden, .bias = c->o_bias};
    TRY(linear(l, &a, l->options->dtype, &w->kv_a));
    layer_name(c->names->kv_a_norm, layer, name);
    TRY(vector(l, name, ".weight", c->kv_lora, &w->kv_a_norm));
    TRY(load_mla_heads(l, layer, false, &w->w_uk));
    TRY(load_mla_heads(l, layer, true, &w->w_uv));
    return load_o(l, layer, c->v_dim, w);
}

/* ---- feed forward ------------------------------------------------------------------------- */

static enum status load_mlp(struct loader *l, const char *gate, const char *up, const char *fused,
                            const char *down, int32_t layer, int32_t ffn, int32_t ffn_shard,
                            bool bias, const struct weight **gate_up_out,
                            const struct weight **down_out)
{
    const struct model_config *c = l->c;
    int64_t first = (int64_t)l->m->shard.rank * ffn_shard;
    char a[NAME_BYTES], b[NAME_BYTES];
    struct stack st = {.n_in = c->hidden, .n_cols = c->hidden, .bias = bias};
    if (!c->gated) {
        layer_name(up, layer, a);
        st.pieces[st.n++] = (struct piece){a, ffn, first, ffn_shard};
    } else if (fused) {
        layer_name(fused, layer, a);
        st.pieces[st.n++] = (struct piece){a, 2 * ffn, first, ffn_shard};
        st.pieces[st.n++] = (struct piece){a, 2 * ffn, ffn + first, ffn_shard};
    } else {
        layer_name(gate, layer, a);
        layer_name(up, layer, b);
        st.pieces[st.n++] = (struct piece){a, ffn, first, ffn_shard};
        st.pieces[st.n++] = (struct piece){b, ffn, first, ffn_shard};
    }
    TRY(linear(l, &st, l->options->dtype, gate_up_out));
    layer_name(down, layer, a);
    struct stack d = {.pieces = {{a, c->hidden, 0, c->hidden}}, .n = 1, .n_in = ffn,
                      .first_col = first, .n_cols = ffn_shard, .bias = bias,
                      .k_segments = segments(l, ffn_shard)};
    return linear(l, &d, l->options->dtype, down_out);
}

/* Parts of expert e: its gate and up rows (or its down), this rank's share. */
static enum status expert_parts(struct loader *l, int32_t layer, int32_t e,
                                struct weight_part gate_up[2], struct weight_part *down)
{
    const struct model_config *c = l->c;
    int64_t ffn = c->moe_ffn, n = l->m->shard.moe_ffn, first = l->m->shard.rank * n;
    int64_t hidden = c->hidden;
    const char *bases[3] = {c->names->expert_gate, c->names->expert_up, c->names->expert_down};
    struct weight_part *outs[3] = {&gate_up[0], &gate_up[1], down};
    for (int32_t i = 0; i < 3; i++) {
        char pattern[NAME_BYTES], name[NAME_BYTES];
        layer_name(bases[i], layer, pattern);
        numbered_name(pattern, e, name);
        bool is_down = i == 2;
        TRY(part_of(l, name, is_down ? (int64_t[]){hidden, ffn} : (int64_t[]){ffn, hidden}, 2,
                    outs[i]));
        *outs[i] = is_down ? slice(*outs[i], 0, hidden, first, n)
                           : slice(*outs[i], first, n, 0, hidden);
    }
    return OK;
}

/* The same from tensors that stack all experts: gate_up [E, hidden, 2 ffn] with gate and up
 * alternating, down [E, ffn, hidden]. */
static enum status stacked_parts(struct loader *l, int32_t layer, struct weight_part *gate_up,
                                 struct weight_part *down)
{
    const struct model_config *c = l->c;
    int64_t n_experts = c->n_experts, hidden = c->hidden, ffn = c->moe_ffn;
    int64_t n = l->m->shard.moe_ffn, first = l->m->shard.rank * n;
    char name[NAME_BYTES];
    struct weight_part all;
    layer_name(c->names->experts_gate_up, layer, name);
    TRY(part_of(l, name, (int64_t[]){n_experts, hidden, 2 * ffn}, 3, &all));
    for (int64_t e = 0; e < n_experts; e++) {
        for (int64_t half = 0; half < 2; half++) {
            struct weight_part p = all;
            p.row_stride = 2;
            p.col_stride = 2 * ffn;
            int64_t at = e * hidden * 2 * ffn + 2 * first + half;
            p.data = p.data ? (const char *)p.data + (size_t)at * dtype_bytes(p.dtype) : NULL;
            p.n_rows = n;
            p.n_cols = hidden;
            gate_up[2 * e + half] = p;
        }
    }
    layer_name(c->names->experts_down, layer, name);
    TRY(part_of(l, name, (int64_t[]){n_experts, ffn, hidden}, 3, &all));
    for (int64_t e = 0; e < n_experts; e++) {
        struct weight_part p = all;
        p.row_stride = 1;
        p.col_stride = hidden;
        int64_t at = e * ffn * hidden + first * hidden;
        p.data = p.data ? (const char *)p.data + (size_t)at * dtype_bytes(p.dtype) : NULL;
        p.n_rows = hidden;
        p.n_cols = n;
        down[e] = p;
    }
    return OK;
}

/* Biases of stacked experts, as [n_experts] parts of gate rows then up rows, in fp32. */
static enum status expert_biases(struct loader *l, int32_t layer, float *gate_up,
                                 float *down, struct weight_part *gate_up_parts,
                                 struct weight_part *down_parts)
{
    const struct model_config *c = l->c;
    int64_t ffn = c->moe_ffn, n = l->m->shard.moe_ffn, first = l->m->shard.rank * n;
    int64_t hidden = c->hidden;
    char base[NAME_BYTES], name[NAME_BYTES];
    struct weight_part gu, dn;
    layer_name(c->names->experts_gate_up, layer, base);
    snprintf(name, sizeof name, "%.240s_bias", base);
    TRY(part_of(l, name, (int64_t[]){c->n_experts, 2 * ffn}, 2, &gu));
    layer_name(c->names->experts_down, layer, base);
    snprintf(name, sizeof name, "%.240s_bias", base);
    TRY(part_of(l, name, (int64_t[]){c->n_experts, hidden}, 2, &dn));
    for (int64_t e = 0; e < c->n_experts; e++) {
        for (int64_t i = 0; i < n && gu.data; i++) {
            gate_up[e * 2 * n + i] = weight_part_get(&gu, e, 2 * (first + i));
            gate_up[e * 2 * n + n + i] = weight_part_get(&gu, e, 2 * (first + i) + 1);
        }
        for (int64_t i = 0; i < hidden && dn.data; i++) {
            down[e * hidden + i] = weight_part_get(&dn, e, i);
        }
        gate_up_parts[e] = (struct weight_part){.data = gate_up + e * 2 * n, .dtype = DT_F32,
                                                .n_rows = 1, .n_cols = 2 * n,
                                                .row_stride = 2 * n, .col_stride = 1};
        down_parts[e] = (struct weight_part){.data = down + e * hidden, .dtype = DT_F32,
                                             .n_rows = 1, .n_cols = hidden,
                                             .row_stride = hidden, .col_stride = 1};
    }
    return OK;
}

static enum status load_experts(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    size_t n = (size_t)c->n_experts;
    int64_t ffn = l->m->shard.moe_ffn;
    struct weight_part *gate_up = xcalloc(2 * n, sizeof *gate_up);
    struct weight_part *down = xcalloc(n, sizeof *down), *gu_bias = NULL, *dn_bias = NULL;
    float *gu_values = NULL, *dn_values = NULL;
    enum status st = OK;
    if (c->names->experts_gate_up) {
        st = stacked_parts(l, layer, gate_up, down);
    }
    for (int32_t e = 0; e < c->n_experts && !c->names->experts_gate_up && st == OK; e++) {
        st = expert_parts(l, layer, e, &gate_up[2 * e], &down[e]);
    }
    if (st == OK && c->experts_biased) {
        gu_bias = xcalloc(n, sizeof *gu_bias);
        dn_bias = xcalloc(n, sizeof *dn_bias);
        gu_values = xcalloc(n * 2 * (size_t)ffn, sizeof *gu_values);
        dn_values = xcalloc(n * (size_t)c->hidden, sizeof *dn_values);
        st = expert_biases(l, layer, gu_values, dn_values, gu_bias, dn_bias);
    }
    if (st == OK) {
        struct weight_desc d = {.name = "experts' gate_up", .kind = WEIGHT_EXPERTS,
                                .dtype = l->options->dtype, .n_out = 2 * ffn, .n_in = c->hidden,
                                .n_experts = c->n_experts, .n_parts = (int32_t)(2 * n),
                                .parts = gate_up, .bias = gu_bias, .k_segments = 1};
        st = open_weight(l, &d, &w->experts_gate_up);
    }
    if (st == OK) {
        struct weight_desc d = {.name = "experts' down", .kind = WEIGHT_EXPERTS,
                                .dtype = l->options->dtype, .n_out = c->hidden, .n_in = ffn,
                                .n_experts = c->n_experts, .n_parts = (int32_t)n, .parts = down,
                                .bias = dn_bias, .k_segments = segments(l, ffn)};
        st = open_weight(l, &d, &w->experts_down);
    }
    free(gate_up);
    free(down);
    free(gu_bias);
    free(dn_bias);
    free(gu_values);
    free(dn_values);
    return st;
}

static enum status load_moe(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    char name[NAME_BYTES];
    layer_name(names->router, layer, name);
    struct stack router = {.pieces = {{name, c->n_experts, 0, c->n_experts}}, .n = 1,
                           .n_in = c->hidden, .n_cols = c->hidden, .bias = c->router_bias};
    TRY(linear(l, &router, DT_F32, &w->router));
    if (c->correction) {
        layer_name(names->correction, layer, name);
        TRY(vector(l, name, "", c->n_experts, &w->correction));
    }
    TRY(load_experts(l, layer, w));
    if (c->shared_ffn > 0) {
        TRY(load_mlp(l, names->shared_gate, names->shared_up, NULL, names->shared_down, layer,
                     c->shared_ffn, l->m->shard.shared_ffn, false, &w->shared_gate_up,
                     &w->shared_down));
    }
    if (c->shared_gate) {
        layer_name(names->shared_router, layer, name);
        struct weight_part p;
        char full[NAME_BYTES];
        snprintf(full, sizeof full, "%.240s.weight", name);
        TRY(part_of(l, full, (int64_t[]){1, c->hidden}, 2, &p));
        TRY(open_vector(l, full, &p, &w->shared_router));
    }
    return OK;
}

/* ---- layers and the model ----------------------------------------------------------------- */

static enum status layer_norm(struct loader *l, const char *base, int32_t layer, bool bias,
                              const struct weight **weight, const struct weight **bias_out)
{
    if (!base) {
        return OK;
    }
    char name[NAME_BYTES];
    layer_name(base, layer, name);
    TRY(vector(l, name, ".weight", l->c->hidden, weight));
    return bias ? vector(l, name, ".bias", l->c->hidden, bias_out) : OK;
}

static enum status load_layer(struct loader *l, int32_t layer, struct layer_weights *w)
{
    const struct model_config *c = l->c;
    const struct tensor_names *names = c->names;
    TRY(layer_norm(l, names->attn_norm, layer, c->norm_bias, &w->attn_norm, &w->attn_norm_bias));
    TRY(layer_norm(l, names->attn_post_norm, layer, false, &w->attn_post_norm, NULL));
    if (!c->parallel_residual) {
        TRY(layer_norm(l, names->ffn_norm, layer, c->norm_bias, &w->ffn_norm, &w->ffn_norm_bias));
    }
    TRY(layer_norm(l, names->ffn_post_norm, layer, false, &w->ffn_post_norm, NULL));
    if (c->kv_lora) {
        TRY(load_mla(l, layer, w));
    } else {
        TRY(load_qkv(l, layer, w));
        TRY(load_qk_norms(l, layer, w));
        TRY(load_o(l, layer, c->head_dim, w));
        TRY(load_sinks(l, layer, w));
    }
    if (c->layers[layer].moe) {
        return load_moe(l, layer, w);
    }
    return load_mlp(l, names->gate, names->up, names->gate_up, names->down, layer, c->ffn,
                    l->m->shard.ffn, c->mlp_bias, &w->gate_up, &w->down);
}

static enum status load_ends(struct loader *l)
{
    const struct model_config *c = l->c;
    struct model *m = l->m;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", c->names->embed);
    struct weight_part table;
    TRY(part_of(l, name, (int64_t[]){c->vocab, c->hidden}, 2, &table));
    struct weight_desc d = {.name = c->names->embed, .kind = WEIGHT_EMBED,
                            .dtype = l->options->dtype, .n_out = c->vocab, .n_in = c->hidden,
                            .n_experts = 1, .n_parts = 1, .parts = &table, .k_segments = 1};
    TRY(open_weight(l, &d, &m->embed));
    TRY(vector(l, c->names->final_norm, ".weight", c->hidden, &m->final_norm));
    if (c->norm_bias) {
        TRY(vector(l, c->names->final_norm, ".bias", c->hidden, &m->final_norm_bias));
    }
    bool tied = c->tied || (l->options->checkpoint && !has(l, c->names->head));
    if (tied && !m->shard.head_sharded) {
        m->head = m->embed;
        return OK;
    }
    const char *base = tied ? c->names->embed : c->names->head;
    int64_t first = m->shard.head_sharded ? (int64_t)m->shard.rank * m->shard.vocab : 0;
    struct stack head = {.pieces = {{base, c->vocab, first, m->shard.vocab}},
                         .n = 1, .n_in = c->hidden, .n_cols = c->hidden};
    return linear(l, &head, l->options->dtype, &m->head);
}

static enum status load_ropes(struct loader *l)
{
    for (int32_t i = 0; i < l->c->n_ropes; i++) {
        struct rope_desc d = l->c->rope[i].desc;
        d.inv_freq = l->c->rope[i].inv_freq;
        enum status st = l->be->ops->rope_open(l->be, &d, &l->m->ropes[i]);
        if (st != OK) {
            return err_set(l->err, st, "the rope tables do not fit the device");
        }
    }
    return OK;
}

enum status model_shard_of(const struct model_config *c, int32_t rank, int32_t n_ranks,
                           struct model_shard *out, struct err *err)
{
    bool shared_kv = c->n_kv_heads < n_ranks; // replicated
    bool fits = c->n_heads % n_ranks == 0 && c->ffn % n_ranks == 0 &&
                c->moe_ffn % n_ranks == 0 && c->shared_ffn % n_ranks == 0 &&
                (c->kv_lora > 0 || (shared_kv ? n_ranks % c->n_kv_heads == 0
                                              : c->n_kv_heads % n_ranks == 0));
    bool whole = c->qk_norm == QK_NORM_WIDTH; // every rank has all heads
    if (!fits) {
        return err_set(err, ERR_UNSUPPORTED, "tensor parallel over %d ranks does not divide this "
                       "model (%d heads, %d key/value heads, ffn %d)", n_ranks, c->n_heads,
                       c->n_kv_heads, c->ffn);
    }
    *out = (struct model_shard){
        .rank = rank,
        .n_ranks = n_ranks,
        .first_head = whole ? 0 : rank * (c->n_heads / n_ranks),
        .n_heads = whole ? c->n_heads : c->n_heads / n_ranks,
        .n_kv_heads = whole ? c->n_kv_heads : shared_kv ? 1 : c->n_kv_heads / n_ranks,
        .first_kv_head = whole       ? 0
                         : shared_kv ? rank / (n_ranks / c->n_kv_heads)
                                     : rank * (c->n_kv_heads / n_ranks),
        .first_o_head = rank * (c->n_heads / n_ranks),
        .n_o_heads = c->n_heads / n_ranks,
        .ffn = c->ffn / n_ranks,
        .moe_ffn = c->moe_ffn / n_ranks,
        .shared_ffn = c->shared_ffn / n_ranks,
        .head_sharded = n_ranks > 1 && c->vocab % n_ranks == 0,
    };
    out->vocab = out->head_sharded ? c->vocab / n_ranks : c->vocab;
    return OK;
}

/* Some families keep the factor of their embeddings in the dtype that they run in. */
static float embed_scale(const struct model_config *c, enum dtype dtype)
{
    int bits = dtype == DT_BF16 ? 8 : dtype == DT_F16 ? 11 : 0;
    if (!c->embed_scale_rounded || bits == 0) {
        return c->embed_scale;
    }
    int exponent;
    float mantissa = frexpf(c->embed_scale, &exponent);
    return ldexpf(rintf(ldexpf(mantissa, bits)), exponent - bits);
}

enum status model_load(const struct model_load_options *options, struct backend *be,
                       struct model *out, struct err *err)
{
    const struct model_config *c = options->config;
    *out = (struct model){.config = c, .be = be, .index = options->index,
                          .kv_set = options->index};
    TRY(model_shard_of(c, options->rank, options->n_ranks, &out->shard, err));
    struct backend_facts facts;
    TRY(be->ops->facts(be, &facts));
    out->act = facts.act;
    out->residual = facts.residual;
    out->exact_ranks = facts.exact_ranks;
    out->embed_scale = embed_scale(c, options->dtype);
    out->layers = xcalloc((size_t)c->n_layers, sizeof *out->layers);
    size_t widest = (size_t)c->ffn * 2 + (size_t)c->hidden + (size_t)c->n_heads * (size_t)c->head_dim * 3;
    struct loader l = {.options = options, .c = c, .m = out, .be = be, .err = err,
                       .n_const = widest, .seed = (uint64_t)options->index << 32};
    l.ones = xmalloc(widest * sizeof *l.ones);
    l.zeros = xcalloc(widest, sizeof *l.zeros);
    for (size_t i = 0; i < widest; i++) {
        l.ones[i] = 1.0f;
    }
    find_prefix(&l);
    enum status st = load_ends(&l);
    for (int32_t i = 0; i < c->n_layers && st == OK; i++) {
        st = load_layer(&l, i, &out->layers[i]);
        if (options->on_progress && st == OK) {
            options->on_progress((i + 1.0) / c->n_layers, options->progress_arg);
        }
    }
    if (st == OK) {
        st = load_ropes(&l);
    }
    free(l.ones);
    free(l.zeros);
    return st;
}

void model_deinit(struct model *m)
{
    free(m->layers);
    m->layers = NULL;
}
