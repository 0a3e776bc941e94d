// SPDX-License-Identifier: Apache-2.0
/* The table of ops. Each op checks what its kernel relies on, and launches it. */
#include "cuda/cuda_backend.h"
#include "cuda/cuda_comm.h"
#include "cuda/cuda_weights.h"

#include <stddef.h>

static bool fits(struct tensor t, int32_t width)
{
    return t.mem.p && t.stride >= width && width > 0;
}

/* The layer's pages; NULL if there is no such layer in the pass. */
static const struct kv_view *layer_kv(const struct cuda_backend *be, int32_t layer)
{
    return be->passes.pass ? kv_layer(&be->kv, be->passes.set, layer) : NULL;
}

static const struct rope_view no_rope = {.max_pos = 1};

static const float *vector(const struct weight *w)
{
    return w ? (const float *)w->data : NULL;
}

static int32_t vector_length(const struct weight *w)
{
    return w ? (int32_t)(w->n_out * w->n_in) : 0;
}

/* Conversions between a product's partial sums and the value that the engine carries. */
static struct product_sums sums_out(const struct sum_parts *s)
{
    return (struct product_sums){.first = {(void *)(uintptr_t)s->first},
                                 .bias = {(void *)(uintptr_t)s->bias},
                                 .stride = s->stride,
                                 .width = s->width,
                                 .n = s->n};
}

static struct sum_parts sums_in(const struct product_sums *s)
{
    return (struct sum_parts){
        .first = s->first.p, .bias = s->bias.p, .stride = s->stride, .width = s->width, .n = s->n};
}

static enum status op_embed(struct backend *base, const struct embed_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct weight *w = a->table;
    if (!be->passes.pass || !w || a->n_rows > be->passes.view.n_rows ||
        !fits(a->x, (int32_t)w->n_in)) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_embed(be->device.stream, a, w->data, w->dtype, w->n_out,
                                  (int32_t)w->n_in, &be->passes.view));
    return OK;
}

static enum status norm_ok(const struct norm_args *a)
{
    const bool short_vector = (a->weight && vector_length(a->weight) < a->width) ||
                              (a->bias && vector_length(a->bias) < a->width);
    const bool mixed = a->delta.mem.p && a->out.mem.p && a->delta.dtype != a->out.dtype;
    return !fits(a->x, a->width) || short_vector || mixed ? ERR_INVALID : OK;
}

/* codes: written instead of `out` unless NULL. */
static enum status norm(struct cuda_backend *be, const struct norm_args *a,
                        const struct round_args *codes)
{
    TRY(norm_ok(a));
    const struct sum_parts sums = sums_in(&a->delta_sums);
    if (sums.n > 0 && (sums.width != a->width || !k_norm_takes_sums(a))) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_norm(be->device.stream, a, vector(a->weight), vector(a->bias),
                                 sums.n > 0 ? &sums : NULL, codes));
    return OK;
}

static enum status op_norm(struct backend *base, const struct norm_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return norm(be, a, NULL);
}

static bool op_norm_adds_sums(struct backend *base, const struct norm_args *a)
{
    (void)base;
    return k_norm_takes_sums(a);
}

/* The operands and size of a product. */
static struct gemm_args product_of(const struct linear_args *a)
{
    const struct weight *w = a->weight;
    return (struct gemm_args){
        .x = a->x.mem.p,
        .weight = w->data,
        .coded = weight_coded(w),
        .inputs = weight_inputs(w),
        .x_dtype = a->x.dtype,
        .w_dtype = w->dtype,
        .n_rows = a->n_rows,
        .n_out = (int32_t)w->n_out,
        .n_in = (int32_t)w->n_in,
        .x_stride = a->x.stride,
        .n_batch = 1,
    };
}

static bool linear_ok(const struct linear_args *a)
{
    const struct weight *w = a->weight;
    return w && fits(a->x, (int32_t)w->n_in) && fits(a->y, (int32_t)w->n_out);
}

/* The product as requested, without an activation. */
static struct gemm_args plain_product_of(const struct cuda_backend *be, const struct linear_args *a)
{
    const struct weight *w = a->weight;
    struct gemm_args g = product_of(a);
    g.y = a->y.mem.p;
    g.y_dtype = a->y.dtype;
    g.y_stride = a->y.stride;
    g.bias = a->partial ? NULL : w->bias;
    g.bias_act = a->partial ? NULL : w->bias_act;
    g.accumulate = a->accumulate;
    /* Partial sums may reach the reader only if no other rank's part and no bias remains to be
     * added. */
    g.may_split = a->sums && (!a->partial || (be->device.options.n_ranks == 1 && !w->bias));
    return g;
}

/* is_rounded: see struct gemm_args. */
static enum status linear(struct cuda_backend *be, const struct linear_args *a, bool is_rounded)
{
    if (!linear_ok(a)) {
        return ERR_INVALID;
    }
    struct gemm_args g = plain_product_of(be, a);
    g.is_rounded = is_rounded;
    enum status st = OK;
    if (a->head && a->bests && be->passes.pass &&
        cuda_gemm_head(&be->gemms, &g, a->n_drawn, &be->passes.view, a->bests, &st)) {
        return st;
    }
    struct sum_parts sums = {.n = 0};
    st = cuda_gemm(&be->gemms, &g, &sums);
    if (a->sums) {
        *a->sums = sums_out(&sums);
    }
    return st;
}

static enum status op_linear(struct backend *base, const struct linear_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return linear(be, a, false);
}

/* True if the product reads FP8 codes; *round tells how to make them from its x. */
static bool wants_codes(struct cuda_backend *be, const struct linear_args *a,
                        struct round_args *codes)
{
    if (!linear_ok(a)) {
        return false;
    }
    const struct gemm_args g = plain_product_of(be, a);
    return cuda_gemm_codes(&be->gemms, &g, codes);
}

static enum status op_linear_heads(struct backend *base, const struct linear_heads_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct weight *w = a->weight;
    if (!w || w->kind != WEIGHT_HEADS || a->x_head < w->n_in || a->y_head < w->n_out ||
        !a->x.mem.p || !a->y.mem.p) {
        return ERR_INVALID;
    }
    const struct gemm_args g = {
        .x = a->x.mem.p,
        .weight = w->data,
        .y = a->y.mem.p,
        .x_dtype = a->x.dtype,
        .w_dtype = w->dtype,
        .y_dtype = a->y.dtype,
        .n_rows = a->n_rows,
        .n_out = (int32_t)w->n_out,
        .n_in = (int32_t)w->n_in,
        .x_stride = a->x.stride,
        .y_stride = a->y.stride,
        .n_batch = w->n_experts,
        .x_batch = a->x_head,
        .w_batch = w->n_out * w->n_in,
        .y_batch = a->y_head,
    };
    return cuda_gemm(&be->gemms, &g, NULL);
}

static const struct rope_view *rope_of(const struct rope_store_args *a)
{
    return a->rope ? &a->rope->view : &no_rope;
}

static bool growth_ok(const struct query_growth *g)
{
    return g->beta == 0.0f || g->every > 0;
}

static enum status rope_ok(const struct cuda_backend *be, const struct rope_store_args *a,
                           const struct kv_view *kv)
{
    const int32_t width = (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    const bool ok = kv && a->n_rows <= be->passes.view.n_rows &&
                    (a->n_kv_heads == 0 || kv->n_kv_heads == a->n_kv_heads) &&
                    kv->head_dim_k == a->head_dim && kv->head_dim_v == a->head_dim &&
                    growth_ok(&a->growth) && fits(a->qkv, width) &&
                    (a->sums.n == 0 || a->sums.width == width) &&
                    (!a->rope || 2 * a->rope->view.n_pairs <= a->head_dim);
    return ok ? OK : ERR_INVALID;
}

static bool rope_adds_sums(const struct rope_store_args *a, const struct kv_view *kv)
{
    return kv &&
           k_rope_takes_sums(a, rope_of(a), vector_length(a->q_norm), vector_length(a->k_norm), kv);
}

static bool op_rope_store_adds_sums(struct backend *base, const struct rope_store_args *a)
{
    return rope_adds_sums(a, layer_kv(cuda_backend_of(base), a->layer));
}

static enum status op_rope_store(struct backend *base, const struct rope_store_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = layer_kv(be, a->layer);
    TRY(rope_ok(be, a, kv));
    const struct sum_parts sums = sums_in(&a->sums);
    if (sums.n > 0 && !rope_adds_sums(a, kv)) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_rope_store(be->device.stream, a, rope_of(a), vector(a->q_norm),
                                       vector_length(a->q_norm), vector(a->k_norm),
                                       vector_length(a->k_norm), kv, &be->passes.view, &sums));
    return OK;
}

static enum status op_mla_store(struct backend *base, const struct mla_store_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = layer_kv(be, a->layer);
    if (!kv || a->n_rows > be->passes.view.n_rows || kv->n_kv_heads != 1 ||
        kv->head_dim_k != a->kv_lora + a->rope_dim || !fits(a->kv, a->kv_lora + a->rope_dim) ||
        !fits(a->q, (a->n_heads - 1) * a->q_head + a->q_rope_offset + a->rope_dim) ||
        !fits(a->q_out, (a->n_heads - 1) * a->q_out_head + a->q_out_offset + a->rope_dim) ||
        a->q.dtype != a->q_out.dtype || a->kv.dtype != a->q.dtype || !growth_ok(&a->growth) ||
        (a->rope && 2 * a->rope->view.n_pairs > a->rope_dim)) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_mla_store(be->device.stream, a, a->rope ? &a->rope->view : &no_rope,
                                      vector(a->kv_norm), kv, &be->passes.view));
    return OK;
}

static enum status attention_ok(const struct cuda_backend *be, const struct attention_args *a,
                                const struct kv_view *kv)
{
    const bool ok = kv && a->n_rows <= be->passes.view.n_rows && kv->n_kv_heads == a->n_kv_heads &&
                    kv->head_dim_k == a->head_dim_k && kv->head_dim_v == a->head_dim_v &&
                    a->n_heads % a->n_kv_heads == 0 && fits(a->q, a->n_heads * a->head_dim_k) &&
                    fits(a->out, a->n_heads * a->head_dim_v) && a->q.dtype == a->out.dtype;
    return ok ? OK : ERR_INVALID;
}

static struct attention_launch launch_of(const struct cuda_backend *be,
                                         const struct attention_args *a, const struct kv_view *kv)
{
    return (struct attention_launch){
        .q = a->q.mem.p,
        .out = a->out.mem.p,
        .q_stride = a->q.stride,
        .out_stride = a->out.stride,
        .dtype = a->q.dtype,
        .kv = *kv,
        .pass = be->passes.view,
        .n_rows = a->n_rows,
        .n_heads = a->n_heads,
        .n_seqs = be->passes.pass ? be->passes.pass->n_seqs : 0,
        .has_no_slots = be->passes.pass && be->passes.plan.n_slots == 0,
        .n_runs = be->passes.pass ? be->passes.plan.n_runs : 0,
        .has_others = be->passes.plan.has_others,
        .run_memory = be->kv.run_memory,
        .scale = a->scale,
        .window = a->window,
        .chunk = a->chunk,
        .softcap = a->softcap,
        .sinks = vector(a->sinks),
        .workspace = be->scratch.attention,
        .workspace_bytes = attention_workspace_bytes(&be->attention),
        .limits = &be->attention,
    };
}

static enum status op_attention(struct backend *base, const struct attention_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = layer_kv(be, a->layer);
    TRY(attention_ok(be, a, kv));
    const struct attention_launch l = launch_of(be, a, kv);
    if (be->attention.max_paths > 0 && be->passes.pass->kv_set == 0) {
        CUDA_TRY(&be->device, attention_paths(be->device.stream, &l));
    }
    CUDA_TRY(&be->device, attention_launch(be->device.stream, &l));
    return OK;
}

/* True if one kernel can do rope, store and attention: each row is a sequence of its own, and
 * attention is plain. */
static bool may_be_few(const struct cuda_backend *be, const struct rope_store_args *r,
                       const struct attention_args *a, const struct kv_view *kv)
{
    return be->passes.is_few && r->n_rows == a->n_rows && r->layer == a->layer &&
           r->n_kv_heads == a->n_kv_heads && a->chunk <= 0 && r->n_heads == a->n_heads &&
           r->qkv.mem.p == a->q.mem.p && r->qkv.dtype == a->q.dtype &&
           r->qkv.stride == a->q.stride && a->scale > 0.0f && a->window <= 0 &&
           a->softcap <= 0.0f && !a->sinks &&
           k_attention_few_takes(r, rope_of(r), vector_length(r->q_norm), vector_length(r->k_norm),
                                 kv, &be->attention);
}

static enum status op_rope_attention(struct backend *base, const struct rope_store_args *r,
                                     const struct attention_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = layer_kv(be, r->layer);
    TRY(rope_ok(be, r, kv));
    if (!may_be_few(be, r, a, kv)) {
        TRY(op_rope_store(base, r));
        return op_attention(base, a);
    }
    TRY(attention_ok(be, a, kv));
    const struct sum_parts sums = sums_in(&r->sums);
    if (sums.n > 0 && !rope_adds_sums(r, kv)) {
        return ERR_INVALID;
    }
    const struct attention_launch l = launch_of(be, a, kv);
    CUDA_TRY(&be->device, k_attention_few(be->device.stream, r, rope_of(r), vector(r->q_norm),
                                          vector(r->k_norm), &l, &sums));
    return OK;
}

static enum status activation_ok(const struct activation_args *a)
{
    const bool gated = a->gated || a->kind == ACT_GPT_OSS, apart = a->up.mem.p;
    if (!fits(a->x, gated && !apart ? 2 * a->width : a->width) || !fits(a->out, a->width) ||
        a->x.dtype != a->out.dtype ||
        (apart && (!gated || !fits(a->up, a->width) || a->up.dtype != a->x.dtype))) {
        return ERR_INVALID;
    }
    return OK;
}

static enum status op_activation(struct backend *base, const struct activation_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    TRY(activation_ok(a));
    CUDA_TRY(&be->device, k_activation(be->device.stream, a));
    return OK;
}

static bool may_be_gated(const struct linear_args *l, const struct activation_args *a)
{
    const struct weight *w = l->weight;
    return w && a->gated && a->kind == ACT_SILU && !a->up.mem.p &&
           w->n_out == 2 * (int64_t)a->width && fits(l->x, (int32_t)w->n_in) &&
           fits(a->out, a->width) && l->y.mem.p == a->x.mem.p && l->n_rows == a->n_rows &&
           a->out.dtype == l->x.dtype && !l->partial && !l->accumulate;
}

/* The product and its activation in one kernel, which does not write the product's own y. False if
 * no kernel supports the shape. */
static bool linear_gated(struct cuda_backend *be, const struct linear_args *l,
                         const struct activation_args *a, bool is_rounded, enum status *st)
{
    if (!may_be_gated(l, a)) {
        return false;
    }
    struct gemm_args g = product_of(l);
    g.y = a->out.mem.p;
    g.y_dtype = a->out.dtype;
    g.y_stride = a->out.stride;
    g.bias = l->weight->bias;
    g.gated = true;
    g.is_rounded = is_rounded;
    return cuda_gemm_gated(&be->gemms, &g, st);
}

static enum status op_linear_act(struct backend *base, const struct linear_args *l,
                                 const struct activation_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    enum status st = OK;
    if (linear_gated(be, l, a, false, &st)) {
        return st;
    }
    TRY(op_linear(base, l));
    return op_activation(base, a);
}

/* The activation writes FP8 codes if the second product reads them and the first one is not fused
 * with it. */
static enum status mlp(struct cuda_backend *be, const struct linear_args *up,
                       const struct activation_args *a, const struct linear_args *down,
                       bool is_rounded)
{
    enum status st = OK;
    struct round_args codes;
    if (linear_gated(be, up, a, is_rounded, &st)) {
        TRY(st);
        return linear(be, down, false);
    }
    TRY(linear(be, up, is_rounded));
    TRY(activation_ok(a));
    if (a->out.mem.p != down->x.mem.p || a->width != (int32_t)down->weight->n_in ||
        a->n_rows != down->n_rows || !k_activation_makes_codes(a) ||
        !wants_codes(be, down, &codes)) {
        TRY(op_activation(&be->device.base, a));
        return linear(be, down, false);
    }
    CUDA_TRY(&be->device, k_activation_codes(be->device.stream, a, &codes));
    return linear(be, down, true);
}

static enum status op_mlp(struct backend *base, const struct linear_args *up,
                          const struct activation_args *a, const struct linear_args *down)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return mlp(be, up, a, down, false);
}

/* The norm writes FP8 codes if the product reads them. */
static enum status op_norm_linear(struct backend *base, const struct norm_args *n,
                                  const struct linear_args *l, const struct activation_args *a,
                                  const struct linear_args *down)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    struct round_args codes;
    const bool are_codes = n->out.mem.p && n->out.mem.p == l->x.mem.p && n->n_rows == l->n_rows &&
                           k_norm_makes_codes(n) && wants_codes(be, l, &codes) &&
                           codes.n_in == n->width;
    TRY(norm(be, n, are_codes ? &codes : NULL));
    return down ? mlp(be, l, a, down, are_codes) : linear(be, l, are_codes);
}

static enum status op_moe_route(struct backend *base, const struct moe_route_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct weight *w = a->router;
    if (!w || w->n_out != a->n_experts || !fits(a->x, (int32_t)w->n_in) || a->k < 1 ||
        (a->n_group > 1 && (a->n_experts % a->n_group != 0 || a->topk_group < 1)) ||
        (a->expert_scale && vector_length(a->expert_scale) < a->n_experts) ||
        (size_t)a->n_rows * (size_t)a->n_experts * sizeof(float) > be->scratch.n_bytes) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device,
             k_moe_route(be->device.stream, a, w->data, w->dtype, w->bias, vector(a->correction),
                         vector(a->expert_scale), (int32_t)w->n_in, be->scratch.memory));
    return OK;
}

/* The scratch bytes that a call with this many picks needs, and the addresses of its parts. */
static size_t moe_layout(char *base, int64_t picks, const struct moe_ffn_args *a, int64_t hidden,
                         struct moe_scratch *s)
{
    size_t at = 0;
    const size_t ints = ((size_t)picks * 4 + 255) / 256 * 256;
    const size_t act = ((size_t)(picks * a->ffn) * dtype_bytes(a->x.dtype) + 255) / 256 * 256;
    s->sorted = (int32_t *)(base + at);
    at += ints;
    s->tile_expert = (int32_t *)(base + at);
    at += ints;
    s->tile_first = (int32_t *)(base + at);
    at += ints;
    s->first = (int32_t *)(base + at);
    at += ((size_t)(a->n_experts + 1) * 4 + 255) / 256 * 256;
    s->n_tiles = (int32_t *)(base + at);
    at += 256;
    s->act = base + at;
    at += act;
    s->out = (float *)(base + at);
    at += (size_t)(picks * hidden) * sizeof(float);
    return at;
}

/* How many of the pass's padded rows, or output rows, are real. On the device, because captured
 * graphs are replayed with other counts. */
static const int32_t *real_rows(const struct cuda_backend *be, int32_t n_rows)
{
    if (!be->passes.pass ||
        (n_rows != be->passes.shape.n_rows && n_rows != be->passes.shape.n_out)) {
        return NULL;
    }
    return n_rows == be->passes.shape.n_rows ? &be->passes.view.counts->n_rows
                                             : &be->passes.view.counts->n_out;
}

static size_t moe_bytes(struct cuda_backend *be, const struct moe_ffn_args *a, bool many,
                        int32_t n_rows, struct moe_scratch *s)
{
    const int64_t hidden = a->down->n_out;
    return many ? k_moe_sm90_scratch(a, (int32_t)hidden, n_rows)
                : moe_layout(be->scratch.memory, (int64_t)n_rows * a->k, a, hidden, s);
}

/* Processes as many rows at a time as the scratch memory holds. */
static enum status op_moe_ffn(struct backend *base, const struct moe_ffn_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct weight *up = a->gate_up, *down = a->down;
    if (!up || !down || up->kind != WEIGHT_EXPERTS || down->kind != WEIGHT_EXPERTS ||
        up->n_experts != a->n_experts || down->n_experts != a->n_experts ||
        up->n_out != (a->plain ? 1 : 2) * (int64_t)a->ffn || down->n_in != a->ffn ||
        up->n_in != down->n_out || up->dtype != down->dtype || (a->weigh_inputs && up->bias) ||
        !fits(a->x, (int32_t)up->n_in) || !fits(a->y, (int32_t)up->n_in) ||
        a->x.dtype != a->y.dtype || a->k < 1) {
        return ERR_INVALID;
    }
    const struct moe_weights w = {
        .gate_up = up->data,
        .down = down->data,
        .gate_up_coded = weight_coded(up),
        .down_coded = weight_coded(down),
        .gate_up_bias = up->bias,
        .down_bias = down->bias,
        .dtype = up->dtype,
        .hidden = (int32_t)up->n_in,
    };
    /* Of the two kernels only k_moe_ffn gives a row the same bits whatever the number of rows. */
    const bool many = !be->device.options.deterministic && !w.gate_up_coded && !w.down_coded &&
                      k_moe_sm90_takes(a, &w, be->device.sm, be->device.n_sms);
    struct moe_scratch s;
    int32_t slice = a->n_rows;
    while (slice > 1 && moe_bytes(be, a, many, slice, &s) > be->scratch.n_bytes) {
        slice = (slice + 1) / 2;
    }
    if (moe_bytes(be, a, many, slice, &s) > be->scratch.n_bytes) {
        return ERR_LIMIT;
    }
    const int32_t *real = real_rows(be, a->n_rows);
    for (int32_t first = 0; first < a->n_rows; first += slice) {
        struct moe_ffn_args part = *a;
        part.n_rows = a->n_rows - first < slice ? a->n_rows - first : slice;
        const size_t element = dtype_bytes(a->x.dtype), picks = (size_t)first * (size_t)a->k;
        part.x.mem = dmem_at(a->x.mem, (size_t)first * (size_t)a->x.stride * element);
        part.y.mem = dmem_at(a->y.mem, (size_t)first * (size_t)a->y.stride * element);
        part.ids = dmem_at(a->ids, picks * sizeof(int32_t));
        part.weights = dmem_at(a->weights, picks * sizeof(float));
        const cudaError_t e = many
                                  ? k_moe_ffn_sm90(be->device.stream, &part, &w, be->scratch.memory,
                                                   real, first, be->device.n_sms)
                                  : k_moe_ffn(be->device.stream, &part, &w, &s, real, first);
        TRY(cuda_check(&be->device, e, "the experts"));
    }
    return OK;
}

static enum status op_row_gate(struct backend *base, const struct row_gate_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!fits(a->x, a->x_width) || !fits(a->y, a->y_width) || a->x.dtype != a->y.dtype ||
        vector_length(a->weight) < a->x_width) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_row_gate(be->device.stream, a, vector(a->weight)));
    return OK;
}

/* ---- recurrent layers ---- */

static enum status conv_ok(const struct state_view *s, const struct short_conv_args *a)
{
    const struct state_layer *g = &s->geometry;
    const bool vectors = vector_length(a->weight) >= a->width * a->kernel &&
                         (!a->bias || vector_length(a->bias) >= a->width);
    return vectors && a->width == g->conv_width && a->kernel == g->conv_kernel &&
                   fits(a->x, a->width) && a->x.dtype == s->dtype
               ? OK
               : ERR_INVALID;
}

static enum status recurrence_ok(const struct state_view *s, const struct recurrence_args *a)
{
    const struct state_layer *g = &s->geometry;
    const int32_t keys = g->n_key_heads * g->key_dim, values = g->n_heads * g->value_dim;
    const bool delta = g->kind == STATE_DELTA, ok = g->kind != STATE_CONV;
    const bool vectors = vector_length(a->a_log) >= g->n_heads &&
                         vector_length(a->dt_bias) >= g->n_heads * s->decays &&
                         (!a->skip || vector_length(a->skip) >= g->n_heads);
    const bool places = a->q_at >= 0 && a->k_at >= 0 && a->v_at >= 0 &&
                        fits(a->x, a->q_at + keys) && fits(a->x, a->k_at + keys) &&
                        fits(a->x, a->v_at + values);
    const bool tensors = fits(a->decay, 1) && (!delta || fits(a->beta, 1)) &&
                         fits(a->out, values) && a->x.dtype == s->dtype &&
                         a->decay.dtype == s->dtype && (!delta || a->beta.dtype == s->dtype) &&
                         a->out.dtype == s->dtype;
    return ok && vectors && places && tensors ? OK : ERR_INVALID;
}

static enum status gate_ok(const struct gate_args *a)
{
    const bool group = a->group > 0 && a->width > 0 && a->width % a->group == 0;
    return group && fits(a->x, a->width) && fits(a->out, a->width) &&
                   fits(a->gate, a->per_group ? a->width / a->group : a->width) &&
                   a->x.dtype == a->out.dtype && a->gate.dtype == a->x.dtype &&
                   (!a->norm || vector_length(a->norm) >= a->group)
               ? OK
               : ERR_INVALID;
}

static const struct state_view *layer_state(const struct cuda_backend *be, int32_t layer,
                                            int32_t n_rows)
{
    const bool pass = be->passes.pass && n_rows == be->passes.view.n_rows;
    return pass ? states_layer(&be->states, be->passes.set, layer) : NULL;
}

static struct state_rows_launch state_launch(const struct cuda_backend *be,
                                             const struct state_view *s,
                                             const struct short_conv_args *conv,
                                             const struct recurrence_args *a)
{
    return (struct state_rows_launch){
        .conv = conv,
        .a = a,
        .vectors = {.kernel = conv ? vector(conv->weight) : NULL,
                    .bias = conv ? vector(conv->bias) : NULL,
                    .a_log = a ? vector(a->a_log) : NULL,
                    .dt_bias = a ? vector(a->dt_bias) : NULL,
                    .skip = a ? vector(a->skip) : NULL},
        .state = *s,
        .pass = be->passes.view,
        .n_seqs = be->passes.view.n_rows,
    };
}

static enum status run_windows(struct cuda_backend *be, struct state_rows_launch *l, int32_t n)
{
    for (l->window = 0; l->window < n; l->window++) {
        CUDA_TRY(&be->device, k_state_rows(be->device.stream, l));
    }
    return OK;
}

/* True if sequences of many rows are processed a block of the state at a time. Not where a row's
 * bits must not depend on how many rows come together. */
static bool in_blocks(const struct cuda_backend *be, const struct state_rows_launch *l)
{
    return be->passes.state_work.n_blocks > 0 && !be->device.options.deterministic &&
           k_state_blocks_takes(l) && k_state_blocks_bytes(&l->state, 1) <= be->scratch.n_bytes;
}

static enum status run_rows(struct cuda_backend *be, struct state_rows_launch *l)
{
    const struct state_work *w = &be->passes.state_work;
    if (!in_blocks(be, l)) {
        return run_windows(be, l, w->all_windows);
    }
    l->few_alone = true;
    l->n_chains = w->n_chains;
    l->n_blocks = w->n_blocks;
    TRY(run_windows(be, l, w->windows));
    CUDA_TRY(&be->device,
             k_state_blocks(be->device.stream, l, be->scratch.memory, be->scratch.n_bytes));
    return OK;
}

static enum status op_short_conv(struct backend *base, const struct short_conv_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct state_view *s = layer_state(be, a->layer, a->n_rows);
    if (!s || conv_ok(s, a) != OK || !fits(a->out, a->width) || a->out.dtype != s->dtype) {
        return ERR_INVALID;
    }
    const struct state_rows_launch l = state_launch(be, s, a, NULL);
    CUDA_TRY(&be->device, k_short_conv(be->device.stream, &l));
    return OK;
}

static enum status op_recurrence(struct backend *base, const struct recurrence_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct state_view *s = layer_state(be, a->layer, a->n_rows);
    if (!s || recurrence_ok(s, a) != OK) {
        return ERR_INVALID;
    }
    struct state_rows_launch l = state_launch(be, s, NULL, a);
    return run_rows(be, &l);
}

static enum status op_gate(struct backend *base, const struct gate_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    TRY(gate_ok(a));
    CUDA_TRY(&be->device, k_gate(be->device.stream, a, vector(a->norm),
                                 a->norm && vector_length(a->norm) > a->group));
    return OK;
}

static enum status op_recurrent(struct backend *base, const struct short_conv_args *conv,
                                const struct recurrence_args *a, const struct gate_args *gate)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct state_view *s = layer_state(be, a->layer, a->n_rows);
    if (!s || conv_ok(s, conv) != OK || recurrence_ok(s, a) != OK ||
        conv->out.mem.p != a->x.mem.p || (gate && gate_ok(gate) != OK)) {
        return ERR_INVALID;
    }
    const struct state_layer *g = &s->geometry;
    struct state_rows_launch l = state_launch(be, s, conv, a);
    if (gate && !in_blocks(be, &l) && (gate->group == g->value_dim || !gate->norm) &&
        gate->x.mem.p == a->out.mem.p && gate->width == g->n_heads * g->value_dim &&
        !gate->per_group) {
        l.gate = gate;
        l.vectors.norm = vector(gate->norm);
        l.vectors.norm_is_wide = gate->norm && vector_length(gate->norm) > gate->group;
        return run_rows(be, &l);
    }
    TRY(run_rows(be, &l));
    return gate ? op_gate(base, gate) : OK;
}

static const float *reduce_bias(const struct reduce_args *a)
{
    return a->linear ? a->linear->bias : NULL;
}

static enum status op_reduce(struct backend *base, const struct reduce_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!fits(a->y, a->width)) {
        return ERR_INVALID;
    }
    enum status st = OK;
    bool has_bias = false;
    if (be->device.options.n_ranks > 1 && !a->whole) {
        has_bias = peers_reduce(&be->peers, a, reduce_bias(a), NULL, NULL, NULL, &st);
        st = has_bias ? st : cuda_comm_all_reduce(&be->device, a->y, a->n_rows, a->width);
        TRY(st);
    }
    if (!has_bias && a->linear && a->linear->bias) {
        CUDA_TRY(&be->device,
                 k_add_bias(be->device.stream, a->y, a->n_rows, a->width, a->linear->bias));
    }
    if (a->moe && a->moe->down->bias) {
        CUDA_TRY(&be->device, k_moe_bias(be->device.stream, a->y, a->n_rows, a->width, a->moe,
                                         a->moe->down->bias));
    }
    return OK;
}

/* One kernel where the ranks can access each other's memory. */
static enum status op_reduce_norm(struct backend *base, const struct reduce_args *r,
                                  const struct norm_args *n)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    TRY(norm_ok(n));
    if (!fits(r->y, r->width)) {
        return ERR_INVALID;
    }
    const bool moe_bias = r->moe && r->moe->down->bias;
    enum status st = OK;
    if (be->device.options.n_ranks > 1 && !r->whole && !moe_bias &&
        peers_reduce(&be->peers, r, reduce_bias(r), n, vector(n->weight), vector(n->bias), &st)) {
        return st;
    }
    TRY(op_reduce(base, r));
    return op_norm(base, n);
}

static enum status op_gather(struct backend *base, const struct gather_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!be->passes.pass || a->n_out > be->passes.shape.n_out || !fits(a->x, a->width) ||
        !fits(a->out, a->width) || a->x.dtype != a->out.dtype) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_gather(be->device.stream, a, &be->passes.view));
    return OK;
}

/* The view of hidden states by slot; NULL if `a` does not match it. */
static const struct kv_view *hidden_view(const struct cuda_backend *be, const struct hidden_args *a)
{
    const struct kv_view *v = kv_layer(&be->kv, HIDDEN_SET, 0);
    const bool ok = be->passes.pass && v && a->width > 0 && v->head_dim_k % a->width == 0 &&
                    a->first >= 0 && a->first % a->width == 0 &&
                    a->first + a->width <= v->head_dim_k && v->dtype == a->x.dtype &&
                    fits(a->x, a->width);
    return ok ? v : NULL;
}

static enum status op_hidden_store(struct backend *base, const struct hidden_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *v = hidden_view(be, a);
    const struct pass_shape *s = &be->passes.shape;
    if (!v || a->n_rows > (a->out_rows ? s->n_out : s->n_rows)) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_hidden_store(be->device.stream, a, v, &be->passes.view));
    return OK;
}

static enum status op_hidden_load(struct backend *base, const struct hidden_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *v = hidden_view(be, a);
    if (!v || a->n_rows > be->passes.shape.n_rows) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_hidden_load(be->device.stream, a, v, &be->passes.view));
    return OK;
}

static enum status op_logits(struct backend *base, const struct logits_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const bool as_is = a->scale == 1.0f && a->softcap <= 0.0f;
    if (!fits(a->logits, a->vocab) || a->logits.dtype != DT_F32) {
        return ERR_INVALID;
    }
    const int32_t n_ranks = be->device.options.n_ranks;
    if (a->ids.p) {
        if (!fits(a->local, a->n_ids) || a->local.dtype != DT_F32) {
            return ERR_INVALID;
        }
        CUDA_TRY(&be->device, k_spread_logits(be->device.stream, a));
    } else if (n_ranks > 1 && a->local.mem.p != a->logits.mem.p) {
        const int32_t width = a->vocab / n_ranks;
        const size_t n = (size_t)a->n_out * (size_t)width;
        if (a->local.stride != width || a->vocab % n_ranks != 0 ||
            n * (size_t)n_ranks > (size_t)be->limits.max_out_rows * (size_t)be->limits.vocab) {
            return ERR_INVALID;
        }
        enum status st = OK;
        if (!peers_join(&be->peers, a, width, &st)) {
            TRY(cuda_comm_all_gather(&be->device, a->local.mem.p, be->scratch.shards, n));
            CUDA_TRY(&be->device,
                     k_join_shards(be->device.stream, be->scratch.shards, a->logits.mem.p,
                                   a->logits.stride, n_ranks, a->n_out, width));
        }
        TRY(st);
    } else if (a->local.mem.p != a->logits.mem.p) {
        CUDA_TRY(&be->device,
                 cudaMemcpy2DAsync(a->logits.mem.p, (size_t)a->logits.stride * 4, a->local.mem.p,
                                   (size_t)a->local.stride * 4, (size_t)a->vocab * 4,
                                   (size_t)a->n_out, cudaMemcpyDeviceToDevice, be->device.stream));
    }
    if (!as_is) {
        CUDA_TRY(&be->device, k_scale_logits(be->device.stream, a));
    }
    return OK;
}

static enum status op_sample(struct backend *base, const struct sample_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!be->passes.pass || a->logits.dtype != DT_F32 || !fits(a->logits, a->n_vocab_used) ||
        a->n_vocab_used > be->limits.vocab || a->n_draws > be->max_draws) {
        return ERR_INVALID;
    }
    if (a->bests.n_bands > 0 &&
        (a->bests.n_drawn != a->n_vocab_used || a->bests.n_rows < a->n_out)) {
        return ERR_INVALID; // the head may have skipped rows
    }
    const struct row_bests bests = {
        .pairs = a->bests.pairs.p, .stride = a->bests.stride, .n_bands = a->bests.n_bands};
    CUDA_TRY(&be->device, k_sample(be->device.stream, a, &be->passes.view, &be->scratch.sample,
                                   &bests, be->passes.results));
    return OK;
}

static enum status op_pool(struct backend *base, const struct pool_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!be->passes.pass || !fits(a->hidden, a->width) || a->width != be->limits.hidden) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_pool(be->device.stream, a, &be->passes.view, be->passes.n_pool,
                                 be->passes.pooled_results));
    return OK;
}

const struct backend_ops cuda_ops = {
    .facts = cuda_facts,
    .alloc = cuda_alloc_op,
    .weight_open = cuda_weight_open,
    .rope_open = cuda_rope_open,
    .kv_bytes = cuda_kv_bytes,
    .setup = cuda_setup,
    .kv_open = cuda_kv_open,
    .close = cuda_close,
    .step_begin = cuda_step_begin,
    .lane_tokens = cuda_lane_tokens,
    .lane_blocks = cuda_lane_blocks,
    .lane_params = cuda_lane_params,
    .copy_blocks = cuda_copy_blocks,
    .move_slots = cuda_move_slots,
    .poison_blocks = cuda_poison_blocks,
    .pass_begin = cuda_pass_begin,
    .pass_draws = cuda_pass_draws,
    .pass_end = cuda_pass_end,
    .step_end = cuda_step_end,
    .step_wait = cuda_step_wait,
    .step_done = cuda_step_done,
    .embed = op_embed,
    .norm = op_norm,
    .linear = op_linear,
    .linear_heads = op_linear_heads,
    .rope_store = op_rope_store,
    .mla_store = op_mla_store,
    .attention = op_attention,
    .activation = op_activation,
    .moe_route = op_moe_route,
    .moe_ffn = op_moe_ffn,
    .row_gate = op_row_gate,
    .reduce = op_reduce,
    .reduce_norm = op_reduce_norm,
    .linear_act = op_linear_act,
    .mlp = op_mlp,
    .norm_linear = op_norm_linear,
    .rope_attention = op_rope_attention,
    .norm_adds_sums = op_norm_adds_sums,
    .rope_store_adds_sums = op_rope_store_adds_sums,
    .state_bytes = cuda_state_bytes,
    .state_open = cuda_state_open,
    .copy_states = cuda_copy_states,
    .short_conv = op_short_conv,
    .recurrence = op_recurrence,
    .gate = op_gate,
    .recurrent = op_recurrent,
    .hidden_open = cuda_hidden_open,
    .hidden_store = op_hidden_store,
    .hidden_load = op_hidden_load,
    .alive = cuda_alive,
    .gather = op_gather,
    .logits = op_logits,
    .sample = op_sample,
    .pool = op_pool,
    .write = cuda_write,
    .read = cuda_read,
};
