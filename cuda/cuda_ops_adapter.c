// SPDX-License-Identifier: Apache-2.0
/* Low-rank adapters. */
#include "cuda/adapter.h"
#include "cuda/cuda_ops.h"

/* Runs are in order, and their ranks exist. */
static bool runs_ok(const struct adapter_pair *p)
{
    bool ok = p->n_runs > 0 && p->n_runs <= MAX_ADAPTER_RUNS && p->runs[0].first_out == 0;
    for (int32_t i = 0; ok && i < p->n_runs; i++) {
        const struct adapter_run *r = &p->runs[i];
        ok = (i == 0 || r->first_out > p->runs[i - 1].first_out) && r->first_out < p->up->n_out &&
             r->first_rank >= 0 && r->first_rank % ADAPTER_RANK_STEP == 0 &&
             r->first_rank + p->up->n_in <= p->down->n_out;
    }
    return ok;
}

/* True if both matrices belong to the product, which linear has computed from the same x and y. */
static bool pair_ok(const struct linear_args *a)
{
    const struct weight *w = a->weight, *down = a->adapter->down, *up = a->adapter->up;
    return w && down && up && down->kind == WEIGHT_ADAPTER && up->kind == WEIGHT_ADAPTER &&
           down->n_experts == up->n_experts && down->n_in == w->n_in && up->n_out == w->n_out &&
           up->n_in % ADAPTER_RANK_STEP == 0 && down->n_out % ADAPTER_RANK_STEP == 0 &&
           down->n_out <= ADAPTER_MAX_RANKS && runs_ok(a->adapter) &&
           fits(a->x, (int32_t)w->n_in) && fits(a->y, (int32_t)w->n_out) &&
           down->dtype == a->x.dtype && up->dtype == a->x.dtype &&
           (a->y.dtype == a->x.dtype || a->y.dtype == DT_F32);
}

/* The pass's adapters were checked when it began. */
enum status cuda_op_linear_adapter(struct backend *base, const struct linear_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct passes *p = &be->passes;
    if (!p->pass || !a->adapter || !pair_ok(a) ||
        a->n_rows != (a->out_rows ? p->shape.n_out : p->shape.n_rows)) {
        return ERR_INVALID; // the list is that of all rows
    }
    const struct weight *down = a->adapter->down;
    struct adapter_args args = {
        .x = a->x.mem.p,
        .down = down->data,
        .up = a->adapter->up->data,
        .y = a->y.mem.p,
        .sums = be->scratch.adapter_sums,
        .list = a->out_rows ? p->adapted_out : p->adapted,
        .x_stride = a->x.stride,
        .y_stride = a->y.stride,
        .n_in = (int32_t)down->n_in,
        .n_out = (int32_t)a->adapter->up->n_out,
        .ranks = (int32_t)down->n_out,
        .rank = (int32_t)a->adapter->up->n_in,
        .n_runs = a->adapter->n_runs,
        .dtype = a->x.dtype,
        .y_dtype = a->y.dtype,
    };
    for (int32_t i = 0; i < args.n_runs; i++) {
        args.first_out[i] = a->adapter->runs[i].first_out;
        args.first_rank[i] = a->adapter->runs[i].first_rank;
    }
    CUDA_TRY(&be->device, k_adapter(be->device.stream, &args));
    return OK;
}
