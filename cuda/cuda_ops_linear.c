// SPDX-License-Identifier: Apache-2.0
/* Norms, products, activations and sums over ranks: each op checks what its kernel relies on, and
 * launches it. In fused forms, the kernel that computes a product's input rounds it to FP8. */
#include "cuda/cuda_comm.h"
#include "cuda/cuda_ops.h"

/* Vectors may be longer than the width, but not shorter. */
enum status norm_ok(const struct norm_args *a)
{
    const bool short_vector = (a->weight && vector_length(a->weight) < a->width) ||
                              (a->bias && vector_length(a->bias) < a->width);
    const bool mixed = a->delta.mem.p && a->out.mem.p && a->delta.dtype != a->out.dtype;
    if (!fits(a->x, a->width) || short_vector || mixed) {
        return ERR_INVALID;
    }
    return OK;
}

/* codes: if not NULL, the result is written as these codes instead of to `out`. */
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

enum status cuda_op_norm(struct backend *base, const struct norm_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return norm(be, a, NULL);
}

/* With few rows one kernel computes all norms, but not in deterministic mode, because that kernel
 * sums in another order. */
enum status cuda_op_norms(struct backend *base, const struct norm_args *a, int32_t n)
{
    enum { ROWS = 16 };
    struct cuda_backend *be = cuda_backend_of(base);
    const float *weights[NORM_LIST];
    TRY(be->device.lost);
    bool one = !be->device.options.deterministic && a->n_rows <= ROWS && k_norms_take(a, n);
    for (int32_t i = 0; one && i < n; i++) {
        TRY(norm_ok(&a[i]));
        weights[i] = vector(a[i].weight);
        one = (uintptr_t)weights[i] % 16 == 0;
    }
    for (int32_t i = 0; !one && i < n; i++) {
        TRY(norm(be, &a[i], NULL));
    }
    if (!one) {
        return OK;
    }
    CUDA_TRY(&be->device, k_norms(be->device.stream, a, weights, n));
    return OK;
}

bool cuda_op_norm_adds_sums(struct backend *base, const struct norm_args *a)
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

/* The args of the product as requested, without an activation. */
static struct gemm_args plain_product_of(const struct cuda_backend *be, const struct linear_args *a)
{
    const struct weight *w = a->weight;
    struct gemm_args g = product_of(a);
    g.y = a->y.mem.p;
    g.y_dtype = a->y.dtype;
    g.y_stride = a->y.stride;
    const bool later = a->partial && be->device.options.n_ranks > 1; // cuda_op_reduce adds it
    g.bias = later ? NULL : w->bias;
    g.bias_act = later ? NULL : w->bias_act;
    g.accumulate = a->accumulate;
    /* Partial sums may be left for the reader only if no other rank's part and no bias must still
     * be added. */
    g.may_split = a->sums && (!a->partial || (be->device.options.n_ranks == 1 && !w->bias));
    return g;
}

/* The product, which may be left as partial sums. */
static enum status multiply(struct cuda_backend *be, const struct linear_args *a,
                            const struct gemm_args *g)
{
    struct sum_parts sums = {.n = 0};
    const enum status st = cuda_gemm(&be->gemms, g, &sums);
    if (a->sums) {
        *a->sums = sums_out(&sums);
    }
    return st;
}

/* is_rounded: as in struct gemm_args. */
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
    return multiply(be, a, &g);
}

enum status cuda_op_linear(struct backend *base, const struct linear_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return linear(be, a, false);
}

/* is_after_codes: as in struct gemm_args. */
static bool wants_codes(struct cuda_backend *be, const struct linear_args *a, bool is_after_codes,
                        struct round_args *codes)
{
    if (!linear_ok(a)) {
        return false;
    }
    struct gemm_args g = plain_product_of(be, a);
    g.is_after_codes = is_after_codes;
    return cuda_gemm_codes(&be->gemms, &g, codes);
}

bool linear_wants_codes(struct cuda_backend *be, const struct linear_args *a,
                        struct round_args *codes)
{
    return wants_codes(be, a, false, codes);
}

enum status linear_of_codes(struct cuda_backend *be, const struct linear_args *a)
{
    return linear(be, a, true);
}

enum status cuda_op_linear_heads(struct backend *base, const struct linear_heads_args *a)
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

/* `up` is separate from the gate, or is the second half of the row. */
static enum status activation_ok(const struct activation_args *a)
{
    const bool gated = a->gated || a->kind == ACT_GPT_OSS, apart = a->up.mem.p;
    if (!fits(a->x, gated && !apart ? 2 * a->width : a->width) || !fits(a->out, a->width) ||
        a->x.dtype != a->out.dtype || (gated && a->kind == ACT_XIELU) ||
        (apart && (!gated || !fits(a->up, a->width) || a->up.dtype != a->x.dtype))) {
        return ERR_INVALID;
    }
    return OK;
}

enum status cuda_op_activation(struct backend *base, const struct activation_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    TRY(activation_ok(a));
    CUDA_TRY(&be->device, k_activation(be->device.stream, a));
    return OK;
}

/* True if the fused kernel supports these args. Otherwise two ops are issued. */
static bool may_be_gated(const struct linear_args *l, const struct activation_args *a)
{
    const struct weight *w = l->weight;
    return w && a->gated && a->kind == ACT_SILU && !a->up.mem.p &&
           w->n_out == 2 * (int64_t)a->width && fits(l->x, (int32_t)w->n_in) &&
           fits(a->out, a->width) && l->y.mem.p == a->x.mem.p && l->n_rows == a->n_rows &&
           a->out.dtype == l->x.dtype && !l->partial && !l->accumulate;
}

/* The args of the product with its activation. */
static struct gemm_args gated_product_of(const struct linear_args *l,
                                         const struct activation_args *a)
{
    struct gemm_args g = product_of(l);
    g.y = a->out.mem.p;
    g.y_dtype = a->out.dtype;
    g.y_stride = a->out.stride;
    g.bias = l->weight->bias;
    g.gated = true;
    return g;
}

/* Computes the product and its activation in one kernel, which does not write the product's own y.
 * codes: if not NULL, what to write instead of a->out. False: no kernel supports the shape. */
static bool linear_gated(struct cuda_backend *be, const struct linear_args *l,
                         const struct activation_args *a, bool is_rounded,
                         const struct round_args *codes, enum status *st)
{
    if (!may_be_gated(l, a)) {
        return false;
    }
    struct gemm_args g = gated_product_of(l, a);
    g.is_rounded = is_rounded;
    g.y_codes = codes;
    return cuda_gemm_gated(&be->gemms, &g, st);
}

/* Uses one kernel if one supports both ops. */
enum status cuda_op_linear_act(struct backend *base, const struct linear_args *l,
                               const struct activation_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    enum status st = OK;
    if (linear_gated(be, l, a, false, NULL, &st)) {
        return st;
    }
    TRY(cuda_op_linear(base, l));
    return cuda_op_activation(base, a);
}

/* True if `down` multiplies the whole result of the activation. */
static bool is_followed(const struct activation_args *a, const struct linear_args *down)
{
    return a->out.mem.p == down->x.mem.p && a->width == (int32_t)down->weight->n_in &&
           a->n_rows == down->n_rows;
}

/* Lets the second product of an MLP compute the activation itself, while it reads its input. False
 * if it cannot. */
static bool linear_of_gates(struct cuda_backend *be, const struct activation_args *a,
                            const struct linear_args *down, enum status *st)
{
    if (!linear_ok(down) || !is_followed(a, down) || !a->gated || a->kind != ACT_SILU ||
        a->up.mem.p) {
        return false;
    }
    struct gemm_args g = plain_product_of(be, down);
    g.x = a->x.mem.p;
    g.x_stride = a->x.stride;
    g.x_is_gated = true;
    if (!cuda_gemm_takes_gates(&be->gemms, &g)) {
        return false;
    }
    *st = multiply(be, down, &g);
    return true;
}

/* Computes both products of an MLP if the first one can write the codes that the second one
 * multiplies. False if it cannot. */
static bool gated_to_codes(struct cuda_backend *be, const struct linear_args *up,
                           const struct activation_args *a, const struct linear_args *down,
                           bool is_rounded, enum status *st)
{
    struct round_args codes;
    if (!is_followed(a, down) || !wants_codes(be, down, true, &codes) ||
        !linear_gated(be, up, a, is_rounded, &codes, st)) {
        return false;
    }
    if (*st == OK) {
        struct gemm_args g = plain_product_of(be, down);
        g.is_rounded = true;
        g.is_after_codes = true;
        *st = multiply(be, down, &g);
    }
    return true;
}

/* Unless the activation is fused with the first product, it is computed by the second one, or
 * writes FP8 codes if that one reads them. */
static enum status mlp(struct cuda_backend *be, const struct linear_args *up,
                       const struct activation_args *a, const struct linear_args *down,
                       bool is_rounded)
{
    enum status st = OK;
    struct round_args codes;
    if (gated_to_codes(be, up, a, down, is_rounded, &st)) {
        return st;
    }
    if (linear_gated(be, up, a, is_rounded, NULL, &st)) {
        TRY(st);
        return linear(be, down, false);
    }
    TRY(linear(be, up, is_rounded));
    TRY(activation_ok(a));
    if (linear_of_gates(be, a, down, &st)) {
        return st;
    }
    if (!is_followed(a, down) || !k_activation_makes_codes(a) ||
        !linear_wants_codes(be, down, &codes)) {
        TRY(cuda_op_activation(&be->device.base, a));
        return linear(be, down, false);
    }
    CUDA_TRY(&be->device, k_activation_codes(be->device.stream, a, &codes));
    return linear(be, down, true);
}

enum status cuda_op_mlp(struct backend *base, const struct linear_args *up,
                        const struct activation_args *a, const struct linear_args *down)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    return mlp(be, up, a, down, false);
}

/* Computes the norm of a single row with the product that reads it. g: that product. False if no
 * kernel does. */
static bool norm_in_product(struct cuda_backend *be, const struct norm_args *n,
                            const struct linear_args *l, struct gemm_args g, enum status *st)
{
    const struct input_norm in = {.weight = vector(n->weight),
                                  .delta = n->delta.mem.p,
                                  .readers = be->gemms.readers,
                                  .eps = n->eps,
                                  .offset = n->weight_offset,
                                  .delta_scale = n->delta_scale,
                                  .x_scale = n->x_scale != 0.0f ? n->x_scale : 1.0f};
    if (be->device.options.deterministic || norm_ok(n) != OK || l->head || n->n_rows != 1 ||
        n->kind != NORM_RMS || n->bias || !in.weight || n->delta_sums.n > 0 || !n->out.mem.p ||
        n->out.mem.p != l->x.mem.p || n->width != (int32_t)l->weight->n_in ||
        n->x.dtype != l->x.dtype || (in.delta && n->delta.dtype != l->x.dtype)) {
        return false;
    }
    g.x = n->x.mem.p;
    g.norm = &in;
    if (!gemm_single_takes(&g, be->device.sm, be->device.n_sms)) {
        return false;
    }
    *st = cuda_check(&be->device, gemm_single(be->device.stream, &g, be->device.n_sms),
                     "gemm_single");
    return true;
}

/* The same for a product alone, and for an MLP's first product with its activation. */
static bool norm_in_linear(struct cuda_backend *be, const struct norm_args *n,
                           const struct linear_args *l, enum status *st)
{
    if (!linear_ok(l) || !norm_in_product(be, n, l, plain_product_of(be, l), st)) {
        return false;
    }
    if (l->sums) {
        *l->sums = sums_out(&(struct sum_parts){.n = 0});
    }
    return true;
}

static bool norm_in_gated(struct cuda_backend *be, const struct norm_args *n,
                          const struct linear_args *l, const struct activation_args *a,
                          enum status *st)
{
    return may_be_gated(l, a) && norm_in_product(be, n, l, gated_product_of(l, a), st);
}

/* The norm is a part of the product, or writes FP8 codes if the product reads them. */
enum status cuda_op_norm_linear(struct backend *base, const struct norm_args *n,
                                const struct linear_args *l, const struct activation_args *a,
                                const struct linear_args *down)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    enum status st = OK;
    if (!down && norm_in_linear(be, n, l, &st)) {
        return st;
    }
    if (down && norm_in_gated(be, n, l, a, &st)) {
        TRY(st);
        return linear(be, down, false);
    }
    struct round_args codes;
    const bool are_codes = n->out.mem.p && n->out.mem.p == l->x.mem.p && n->n_rows == l->n_rows &&
                           k_norm_makes_codes(n) && linear_wants_codes(be, l, &codes) &&
                           codes.n_in == n->width;
    TRY(norm(be, n, are_codes ? &codes : NULL));
    if (down) {
        return mlp(be, l, a, down, are_codes);
    }
    return linear(be, l, are_codes);
}

enum status cuda_op_row_gate(struct backend *base, const struct row_gate_args *a)
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

static const float *reduce_bias(const struct reduce_args *a)
{
    return a->linear ? a->linear->bias : NULL;
}

/* Sums over the ranks in the fastest way for the size, and adds biases once. With one rank the
 * products have added theirs. */
enum status cuda_op_reduce(struct backend *base, const struct reduce_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!fits(a->y, a->width)) {
        return ERR_INVALID;
    }
    enum status st = OK;
    bool has_bias = false;
    if (be->device.options.n_ranks == 1) {
        return OK;
    }
    if (!a->whole) {
        has_bias = peers_reduce(&be->peers, a, reduce_bias(a), NULL, NULL, NULL, &st);
        if (!has_bias) {
            st = cuda_comm_all_reduce(&be->device, a->y, a->n_rows, a->width);
        }
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

/* Uses one kernel if the ranks can access each other's memory. */
enum status cuda_op_reduce_norm(struct backend *base, const struct reduce_args *r,
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
    TRY(cuda_op_reduce(base, r));
    return cuda_op_norm(base, n);
}
