// SPDX-License-Identifier: Apache-2.0
/* Hyper-connections: checks, and groups of rows whose sums fit the ops' scratch memory. */
#include "cuda/cuda_ops.h"
#include "cuda/hyper.h"
#include "engine/base/minmax.h"

enum {
    MOST_WIDTH = 24 << 10, // a row in fp32 must fit the shared memory of a block
    GROUP_ROWS = 1 << 15,  // rows of a group, at most
};

static int32_t rows_of_fn(const struct hyper_args *a)
{
    if (!a->fn) {
        return 0;
    }
    const int32_t of_gates = a->n_sinkhorn > 0 ? 1 + a->n : 1;
    return a->n * (a->ends ? 1 : 1 + of_gates);
}

static bool has_dtype(struct tensor t, int32_t width, enum dtype dtype)
{
    return !t.mem.p || (fits(t, width) && t.dtype == dtype);
}

/* Weights have the sizes that the rows of fn need. */
static bool weights_ok(const struct hyper_args *a, int32_t n_fn)
{
    const int32_t n_scales = n_fn > 2 * a->n ? 3 : n_fn / a->n;
    return !a->fn || (vector_length(a->fn) == n_fn * a->n * a->width &&
                      vector_length(a->base) == n_fn && vector_length(a->scale) >= n_scales &&
                      (!a->norm || vector_length(a->norm) == a->width));
}

static enum status hyper_ok(const struct hyper_args *a, int32_t n_fn)
{
    const enum dtype dtype = a->streams.dtype;
    const bool reads = a->delta.mem.p && !a->begins, writes = a->fn && !a->ends;
    const bool sizes = a->n >= 1 && a->n <= MAX_HYPER && a->width > 0 && a->n_sinkhorn >= 0;
    if (!sizes || !fits(a->streams, a->n * a->width) || !has_dtype(a->delta, a->width, dtype) ||
        !has_dtype(a->x, a->width, dtype) || !has_dtype(a->out, a->width, dtype) ||
        !has_dtype(a->gates, HYPER_GATES(a->n), DT_F32) || ((reads || writes) && !a->gates.mem.p) ||
        (a->begins && !a->delta.mem.p) || !weights_ok(a, n_fn)) {
        return ERR_INVALID;
    }
    return a->width <= MOST_WIDTH ? OK : ERR_UNSUPPORTED;
}

/* The memory of the tensor from a row on. */
static void *from_row(struct tensor t, int32_t row)
{
    return t.mem.p ? dmem_at(t.mem, (size_t)row * (size_t)t.stride * dtype_bytes(t.dtype)).p : NULL;
}

static struct hyper_launch rows_of(const struct cuda_backend *be, const struct hyper_args *a,
                                   int32_t first, int32_t n_rows)
{
    return (struct hyper_launch){.streams = from_row(a->streams, first),
                                 .x = from_row(a->x, first),
                                 .out = from_row(a->out, first),
                                 .delta = from_row(a->delta, first),
                                 .gates = from_row(a->gates, first),
                                 .fn = vector(a->fn),
                                 .base = vector(a->base),
                                 .scale = vector(a->scale),
                                 .norm = vector(a->norm),
                                 .sums = be->scratch.memory,
                                 .dtype = a->streams.dtype,
                                 .streams_stride = a->streams.stride,
                                 .delta_stride = a->delta.stride,
                                 .x_stride = a->x.stride,
                                 .out_stride = a->out.stride,
                                 .gates_stride = a->gates.stride,
                                 .n_rows = n_rows,
                                 .width = a->width,
                                 .n = a->n,
                                 .n_fn = rows_of_fn(a),
                                 .n_slices = (a->width + HYPER_SLICE - 1) / HYPER_SLICE,
                                 .n_sinkhorn = a->n_sinkhorn,
                                 .begins = a->begins,
                                 .ends = a->ends,
                                 .norm_eps = a->norm_eps,
                                 .eps = a->eps,
                                 .magnitude = a->magnitude,
                                 .after_eps = a->after_eps};
}

enum status cuda_op_hyper(struct backend *base, const struct hyper_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const int32_t n_fn = rows_of_fn(a);
    TRY(hyper_ok(a, n_fn));
    const size_t n_slices = (size_t)((a->width + HYPER_SLICE - 1) / HYPER_SLICE);
    const size_t room = be->scratch.n_bytes / (n_slices * (size_t)(n_fn + 1) * sizeof(float));
    const int32_t most = (int32_t)lesser(room, (size_t)GROUP_ROWS);
    if (most == 0) {
        return ERR_INVALID;
    }
    for (int32_t row = 0; row < a->n_rows; row += most) {
        const struct hyper_launch l = rows_of(be, a, row, lesser(most, a->n_rows - row));
        CUDA_TRY(&be->device, k_hyper(be->device.stream, &l));
    }
    return OK;
}
