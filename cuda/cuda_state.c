// SPDX-License-Identifier: Apache-2.0
/* State sets: the layout of slots, and how data moves in them between passes. */
#include "cuda/cuda_state.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STATE_HEADS = 1 << 16, MAX_CONV_WIDTH = 1 << 24, MAX_CONV_KERNEL = 16 };

/* True for layers that the kernels can process. */
static bool usable(const struct state_layer *g)
{
    const bool conv = g->conv_width >= 0 && g->conv_width < MAX_CONV_WIDTH && g->conv_kernel >= 0 &&
                      g->conv_kernel <= MAX_CONV_KERNEL &&
                      (g->conv_width == 0) == (g->conv_kernel == 0);
    if (g->kind == STATE_CONV) {
        return conv && g->conv_kernel > 0;
    }
    return conv && g->n_key_heads > 0 && g->n_heads >= g->n_key_heads &&
           g->n_heads <= MAX_STATE_HEADS && g->n_heads % g->n_key_heads == 0 && g->key_dim > 0 &&
           g->key_dim <= 1024 && g->value_dim > 0 && g->value_dim <= 1024;
}

static int64_t align16(int64_t n)
{
    return (n + 15) / 16 * 16;
}

/* The offsets in a lane's memory: records; then keys, values and decays of the rows since the last
 * record, and inputs of the convolution. */
static struct state_view lay_out(const struct state_set_desc *d, int32_t layer)
{
    const struct state_layer *g = &d->layers[layer];
    const int64_t size = (int64_t)dtype_bytes(d->dtype), heads = g->n_heads;
    struct state_view v = {.geometry = *g, .dtype = d->dtype, .block = d->block};
    /* There is one page more than max_ahead rows need, because the rows of one window may span two
     * blocks. */
    v.slots = (2 + (d->max_ahead + d->block - 1) / d->block) * d->block;
    v.n_records = d->max_ahead > 0 ? 2 : 1;
    const int32_t ahead = greater(d->max_ahead, STATE_WINDOW);
    v.conv_ring = g->conv_kernel > 0 ? g->conv_kernel + ahead : 0;
    v.decays = g->per_channel ? g->key_dim : 1;
    const bool conv_alone = g->kind == STATE_CONV;
    if (conv_alone) {
        v.s_bytes = 0;
    } else {
        v.s_bytes = align16(heads * g->key_dim * g->value_dim * 4);
    }
    const int64_t row = (int64_t)g->conv_width * size;
    v.record_bytes = align16(v.s_bytes + (g->conv_kernel > 0 ? (g->conv_kernel - 1) * row : 0));
    const int64_t slots = conv_alone ? 0 : v.slots;
    v.k_at = v.n_records * v.record_bytes;
    v.u_at = align16(v.k_at + slots * g->n_key_heads * g->key_dim * size);
    v.g_at = align16(v.u_at + slots * heads * g->value_dim * size);
    v.conv_at = align16(v.g_at + slots * heads * v.decays * 4);
    v.lane_bytes = align16(v.conv_at + v.conv_ring * row);
    return v;
}

/* A block of the state must hold at least one window of the kernels. */
static enum status check(const struct state_set_desc *d)
{
    bool ok = d->n_layers > 0 && d->block >= STATE_WINDOW && d->block % 16 == 0 &&
              d->block <= 1024 && d->max_ahead >= 0 && d->max_ahead < 1 << 16 &&
              (d->dtype == DT_F32 || d->dtype == DT_BF16 || d->dtype == DT_F16);
    for (int32_t i = 0; ok && i < d->n_layers; i++) {
        ok = usable(&d->layers[i]);
    }
    return ok ? OK : ERR_INVALID;
}

/* The bytes per lane and per snapshot, over all layers. */
enum status cuda_state_bytes(struct backend *base, const struct state_set_desc *desc,
                             struct state_sizes *out)
{
    (void)base;
    TRY(check(desc));
    *out = (struct state_sizes){0, 0};
    for (int32_t i = 0; i < desc->n_layers; i++) {
        const struct state_view v = lay_out(desc, i);
        out->lane += (size_t)v.lane_bytes;
        out->snapshot += (size_t)v.record_bytes;
    }
    return OK;
}

/* Allocates the lanes and snapshots of a layer together, so that one slot number addresses either.
 */
static enum status take_layer(struct state_sets *s, struct state_view *v, int32_t n_snapshots)
{
    size_t lanes, snapshots;
    if (!mem_mul((size_t)v->lane_bytes, (size_t)s->max_lanes, &lanes) ||
        !mem_mul((size_t)v->record_bytes, (size_t)n_snapshots, &snapshots) ||
        lanes + snapshots < lanes) {
        return ERR_NOMEM;
    }
    void *memory = NULL;
    TRY(cuda_alloc(s->device, lanes + snapshots, &memory));
    v->lanes = memory;
    v->snapshots = v->lanes + lanes;
    v->max_lanes = s->max_lanes;
    return OK;
}

/* The views of the layers are also sent to the device, because one kernel copies all of them. */
enum status states_open(struct state_sets *s, int32_t index, const struct state_set_desc *desc,
                        int32_t n_snapshots, struct err *err)
{
    struct cuda *be = s->device;
    if (index < 0 || index >= CUDA_MAX_SETS || s->all[index].n_layers > 0 || n_snapshots < 0 ||
        n_snapshots > INT32_MAX - s->max_lanes || check(desc) != OK) {
        return err_set(err, ERR_INVALID, "state set %d cannot be opened", index);
    }
    struct state_set *set = &s->all[index];
    set->layers = xcalloc((size_t)desc->n_layers, sizeof *set->layers);
    for (int32_t i = 0; i < desc->n_layers; i++) {
        set->layers[i] = lay_out(desc, i);
        if (set->layers[i].geometry.kind != STATE_CONV && !k_state_rows_takes(&set->layers[i])) {
            return err_set(err, ERR_UNSUPPORTED,
                           "recurrent layers of %d x %d numbers per head do "
                           "not fit this device",
                           desc->layers[i].key_dim, desc->layers[i].value_dim);
        }
        const enum status st = take_layer(s, &set->layers[i], n_snapshots);
        if (st != OK) {
            return err_set(err, st,
                           "no device memory is left for the recurrent state of %d "
                           "sequences and %d snapshots",
                           s->max_lanes, n_snapshots);
        }
    }
    const size_t n_bytes = (size_t)desc->n_layers * sizeof *set->layers;
    TRY(cuda_alloc(be, n_bytes, (void **)&set->views));
    TRY(cuda_check(
        be, cudaMemcpyAsync(set->views, set->layers, n_bytes, cudaMemcpyHostToDevice, be->stream),
        "state layers"));
    CUDA_TRY(be, cudaStreamSynchronize(be->stream));
    set->n_layers = desc->n_layers;
    set->n_slots = s->max_lanes + n_snapshots;
    return OK;
}

void states_close(struct state_sets *s)
{
    for (int32_t i = 0; i < CUDA_MAX_SETS; i++) {
        free(s->all[i].layers);
    }
}

const struct state_view *states_layer(const struct state_sets *s, int32_t set, int32_t layer)
{
    if (layer >= 0 && layer < s->all[set].n_layers) {
        return &s->all[set].layers[layer];
    }
    return NULL;
}

/* 0: lane to snapshot, 1: lane to lane, 2: snapshot to lane. */
static int kind_of(const struct state_sets *s, const struct state_copy *c)
{
    if (c->to >= s->max_lanes) {
        return 0;
    }
    return c->from < s->max_lanes ? 1 : 2;
}

/* One side of a copy must be a lane. Copies between a lane and a snapshot must be at a boundary. */
static bool copy_ok(const struct state_sets *s, const struct state_set *set,
                    const struct state_copy *c)
{
    const bool slots = c->from >= 0 && c->to >= 0 && c->from < set->n_slots &&
                       c->to < set->n_slots && c->from != c->to;
    const bool a_lane = c->from < s->max_lanes || c->to < s->max_lanes;
    const bool boundary = c->pos > 0 && c->pos % set->layers[0].block == 0;
    return slots && a_lane && (boundary || kind_of(s, c) == 1);
}

/* Consecutive copies of the same kind share a launch, so the order is kept. */
enum status states_copy(struct state_sets *s, struct lanes *lanes, int32_t set, int32_t n,
                        const struct state_copy *copies)
{
    struct cuda *be = s->device;
    if (set < 0 || set >= CUDA_MAX_SETS || n < 0 || s->all[set].n_layers == 0) {
        return ERR_INVALID;
    }
    const struct state_set *all = &s->all[set];
    for (int32_t i = 0; i < n; i++) {
        if (!copy_ok(s, all, &copies[i])) {
            return ERR_INVALID;
        }
    }
    for (int32_t first = 0, end; first < n; first = end) { // groups copies of the same kind
        const int kind = kind_of(s, &copies[first]);
        for (end = first; end < n && kind_of(s, &copies[end]) == kind; end++) {
        }
        void *list = NULL;
        TRY(lanes_send(lanes, copies + first, (size_t)(end - first) * sizeof *copies, &list));
        CUDA_TRY(be, k_copy_states(be->stream, all->views, all->n_layers, list, end - first));
    }
    return OK;
}

/* The list is sent to the device with the updates of the step. */
enum status states_move(struct state_sets *s, struct lanes *lanes, int32_t set, int32_t n,
                        const struct slot_move *moves)
{
    struct cuda *be = s->device;
    if (set < 0 || set >= CUDA_MAX_SETS || n < 0) {
        return ERR_INVALID;
    }
    const struct state_set *all = &s->all[set];
    if (all->n_layers == 0 || n == 0) {
        return OK;
    }
    for (int32_t i = 0; i < n; i++) {
        if (moves[i].lane < 0 || moves[i].lane >= s->max_lanes || moves[i].from < 0 ||
            moves[i].to < 0) {
            return ERR_INVALID;
        }
    }
    void *list = NULL;
    TRY(lanes_send(lanes, moves, (size_t)n * sizeof *moves, &list));
    CUDA_TRY(be, k_move_states(be->stream, all->views, all->n_layers, list, n));
    return OK;
}
