// SPDX-License-Identifier: Apache-2.0
/* The router and the experts of a mixture. */
#include "cuda/cuda_ops.h"

enum status cuda_op_moe_route(struct backend *base, const struct moe_route_args *a)
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
enum status cuda_op_moe_ffn(struct backend *base, const struct moe_ffn_args *a)
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
