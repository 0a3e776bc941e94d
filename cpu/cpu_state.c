// SPDX-License-Identifier: Apache-2.0
/* State sets: their memory, and how data moves in it between passes. */
#include "cpu/cpu_state.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CONV_KERNEL = 16, MAX_STATE_DIM = 4096, MAX_STATE_HEADS = 1 << 16 };

static size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* True for layers that the kernels can process. */
static bool usable(const struct state_layer *g)
{
    bool conv = g->conv_width >= 0 && g->conv_width < 1 << 24 && g->conv_kernel >= 0 &&
                g->conv_kernel <= MAX_CONV_KERNEL && (g->conv_width == 0) == (g->conv_kernel == 0);
    if (g->kind == STATE_CONV) {
        return conv && g->conv_kernel > 0;
    }
    return conv && g->n_key_heads > 0 && g->n_heads >= g->n_key_heads &&
           g->n_heads <= MAX_STATE_HEADS && g->n_heads % g->n_key_heads == 0 && g->key_dim > 0 &&
           g->key_dim <= MAX_STATE_DIM && g->value_dim > 0 && g->value_dim <= MAX_STATE_DIM;
}

/* A block must be a multiple of a panel, because products over it process whole panels. */
static enum status check_desc(const struct state_set_desc *d)
{
    bool known = d->dtype == DT_F32 || d->dtype == DT_BF16 || d->dtype == DT_F16;
    bool ok = known && d->n_layers > 0 && d->block >= PANEL && d->block % PANEL == 0 &&
              d->max_ahead >= 0 && d->max_ahead < 1 << 16;
    for (int32_t i = 0; ok && i < d->n_layers; i++) {
        ok = usable(&d->layers[i]);
    }
    return ok ? OK : ERR_INVALID;
}

/* The offsets in a lane's memory: records of the state at boundaries; and the keys, values, decays
 * and inputs of the rows since then. A snapshot is one record. */
static struct state_pages lay_out(const struct state_set_desc *d, int32_t layer)
{
    const struct state_layer *g = &d->layers[layer];
    struct state_pages p = {.geometry = *g, .dtype = d->dtype, .block = d->block};
    size_t size = dtype_bytes(d->dtype), block = (size_t)d->block, heads = (size_t)g->n_heads;
    p.n_pages = 1 + (d->max_ahead + d->block - 1) / d->block;
    p.n_records = d->max_ahead > 0 ? 2 : 1;
    p.conv_ring = g->conv_kernel > 0 ? g->conv_kernel + d->max_ahead : 0;
    p.v_stride = (int32_t)round_up(g->value_dim, PANEL);
    p.decays = g->per_channel ? g->key_dim : 1;
    p.s_bytes = heads * (size_t)g->key_dim * (size_t)p.v_stride * sizeof(float);
    p.conv_bytes = (size_t)g->conv_width * size;
    size_t tail = g->conv_kernel > 0 ? (size_t)(g->conv_kernel - 1) * p.conv_bytes : 0;
    p.record_bytes = align64(p.s_bytes + tail);
    p.k_bytes = align64((size_t)g->key_dim * block * size);
    p.u_bytes = align64((size_t)p.v_stride * block * size);
    p.g_bytes = align64((size_t)p.decays * block * sizeof(float));
    size_t pages = g->kind == STATE_CONV ? 0 : (size_t)p.n_pages;
    p.k_at = (size_t)p.n_records * p.record_bytes;
    p.u_at = p.k_at + pages * (size_t)g->n_key_heads * p.k_bytes;
    p.g_at = p.u_at + pages * heads * p.u_bytes;
    p.conv_at = p.g_at + pages * heads * p.g_bytes;
    p.lane_bytes = align64(p.conv_at + (size_t)p.conv_ring * p.conv_bytes);
    return p;
}

/* Bytes per lane and per snapshot, over all layers. */
enum status cpu_state_bytes(struct backend *be, const struct state_set_desc *desc,
                            struct state_sizes *out)
{
    (void)be;
    TRY(check_desc(desc));
    *out = (struct state_sizes){0, 0};
    for (int32_t i = 0; i < desc->n_layers; i++) {
        struct state_pages p = lay_out(desc, i);
        out->lane += p.lane_bytes;
        out->snapshot += p.record_bytes;
    }
    return OK;
}

/* The lanes and snapshots of a layer share one allocation. */
static bool take(struct cpu_backend *cpu, struct state_pages *p, int32_t n_snapshots)
{
    size_t lanes, snapshots, all;
    if (!mem_mul(p->lane_bytes, (size_t)cpu->limits.max_lanes, &lanes) ||
        !mem_mul(p->record_bytes, (size_t)n_snapshots, &snapshots)) {
        return false;
    }
    all = lanes + snapshots;
    p->lanes = all >= lanes ? cpu_memory(cpu, all) : NULL;
    p->snapshots = p->lanes ? p->lanes + lanes : NULL;
    return p->lanes != NULL;
}

enum status cpu_state_open(struct backend *be, int32_t set, const struct state_set_desc *desc,
                           int32_t n_snapshots, struct err *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(cpu->is_set_up && set >= 0 && set < MAX_KV_SETS && !cpu->states[set]);
    if (check_desc(desc) != OK || n_snapshots < 0) {
        return err_set(err, ERR_INVALID, "the recurrent state's geometry is not usable");
    }
    struct state_set *s = xcalloc(1, sizeof *s);
    cpu->states[set] = s;
    s->n_layers = desc->n_layers;
    s->n_snapshots = n_snapshots;
    s->layers = xcalloc((size_t)desc->n_layers, sizeof *s->layers);
    for (int32_t i = 0; i < desc->n_layers; i++) {
        struct state_pages *p = &s->layers[i];
        *p = lay_out(desc, i);
        if (!take(cpu, p, n_snapshots)) {
            return err_set(err, ERR_NOMEM,
                           "not enough memory for the recurrent state of %d "
                           "sequences and %d snapshots",
                           cpu->limits.max_lanes, n_snapshots);
        }
    }
    return OK;
}

void cpu_states_close(struct cpu_backend *cpu)
{
    for (int32_t i = 0; i < MAX_KV_SETS; i++) {
        if (cpu->states[i]) {
            free(cpu->states[i]->layers);
            free(cpu->states[i]);
        }
    }
}

const struct state_pages *cpu_state_layer(const struct cpu_backend *cpu, int32_t layer)
{
    const struct state_set *s = cpu->states[cpu->pass->kv_set];
    ASSERT(s && layer >= 0 && layer < s->n_layers);
    return &s->layers[layer];
}

/* ---- copies ------------------------------------------------------------------------------- */

/* Copies the convolution's inputs at positions [pos - (kernel - 1), pos) from the record to the
 * ring. */
static void inputs_from_record(const struct state_pages *p, int32_t lane, int32_t pos)
{
    const char *tail = state_record(p, lane, pos) + p->s_bytes;
    for (int32_t i = 0; i < p->geometry.conv_kernel - 1; i++) {
        int32_t slot = pos - (p->geometry.conv_kernel - 1) + i;
        memcpy(state_inputs(p, lane, slot), tail + (size_t)i * p->conv_bytes, p->conv_bytes);
    }
}

/* Between a lane and a snapshot, one record is copied; from lane to lane, everything. */
static void copy_state(const struct state_pages *p, int32_t n_lanes, const struct state_copy *c)
{
    bool from_lane = c->from < n_lanes, to_lane = c->to < n_lanes;
    if (from_lane && to_lane) {
        memmove(state_lane(p, c->to), state_lane(p, c->from), p->lane_bytes);
        return;
    }
    ASSERT((from_lane || to_lane) && c->pos > 0 && c->pos % p->block == 0);
    int32_t lane = from_lane ? c->from : c->to, other = from_lane ? c->to : c->from;
    char *record = state_record(p, lane, c->pos);
    char *snapshot = p->snapshots + (size_t)(other - n_lanes) * p->record_bytes;
    memcpy(to_lane ? record : snapshot, to_lane ? snapshot : record, p->record_bytes);
    if (to_lane) {
        inputs_from_record(p, lane, c->pos);
    }
}

/* Copies in the order of the list, in which a slot may occur twice. */
enum status cpu_copy_states(struct backend *be, int32_t set, int32_t n,
                            const struct state_copy *copies)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(set >= 0 && set < MAX_KV_SETS && cpu->states[set]);
    const struct state_set *s = cpu->states[set];
    int32_t n_slots = cpu->limits.max_lanes + s->n_snapshots;
    for (int32_t i = 0; i < n; i++) {
        ASSERT(copies[i].from >= 0 && copies[i].from < n_slots);
        ASSERT(copies[i].to >= 0 && copies[i].to < n_slots);
        for (int32_t l = 0; l < s->n_layers && copies[i].from != copies[i].to; l++) {
            copy_state(&s->layers[l], cpu->limits.max_lanes, &copies[i]);
        }
    }
    return OK;
}

/* Copies a column, whose elements are `step` bytes apart, of a transposed page. Both columns may be
 * in the same page. */
static void move_column(char *to, const char *from, size_t size, int32_t n, int32_t block,
                        int32_t to_slot, int32_t from_slot)
{
    for (int32_t d = 0; d < n; d++) {
        size_t row = (size_t)d * (size_t)block;
        memmove(to + (row + (size_t)(to_slot % block)) * size,
                from + (row + (size_t)(from_slot % block)) * size, size);
    }
}

/* Moves a row of an accepted draft to its final position: its inputs, key and value. */
static void move_row(const struct state_pages *p, const struct slot_move *m)
{
    const struct state_layer *g = &p->geometry;
    size_t size = dtype_bytes(p->dtype), u = (size_t)p->v_stride * size;
    if (g->conv_kernel > 0) {
        memmove(state_inputs(p, m->lane, m->to), state_inputs(p, m->lane, m->from), p->conv_bytes);
    }
    for (int32_t h = 0; g->kind != STATE_CONV && h < g->n_key_heads; h++) {
        move_column(state_keys(p, m->lane, m->to, h), state_keys(p, m->lane, m->from, h), size,
                    g->key_dim, p->block, m->to, m->from);
    }
    for (int32_t h = 0; g->kind != STATE_CONV && h < g->n_heads; h++) {
        memmove(state_values(p, m->lane, m->to, h) + (size_t)(m->to % p->block) * u,
                state_values(p, m->lane, m->from, h) + (size_t)(m->from % p->block) * u, u);
        move_column((char *)state_decays(p, m->lane, m->to, h),
                    (const char *)state_decays(p, m->lane, m->from, h), sizeof(float), p->decays,
                    p->block, m->to, m->from);
    }
}

void cpu_state_move_slots(struct cpu_backend *cpu, int32_t n, const struct slot_move *moves,
                          int32_t set)
{
    const struct state_set *s = cpu->states[set];
    for (int32_t i = 0; s && i < n; i++) {
        for (int32_t l = 0; l < s->n_layers && moves[i].from != moves[i].to; l++) {
            move_row(&s->layers[l], &moves[i]);
        }
    }
}

/* ---- what the ops share ------------------------------------------------------------------- */

/* The snapshot in which the pass stores the state at this boundary; NULL: none. */
char *cpu_state_kept(const struct cpu_backend *cpu, const struct state_pages *p, int32_t lane,
                     int32_t boundary)
{
    const struct pass *pass = cpu->pass;
    for (int32_t i = 0; i < pass->n_keeps; i++) {
        const struct state_keep *k = &pass->keeps[i];
        if (k->lane == lane && k->pos == boundary) {
            return p->snapshots + (size_t)(k->slot - cpu->limits.max_lanes) * p->record_bytes;
        }
    }
    return NULL;
}

void cpu_state_put(enum dtype dtype, void *to, int64_t at, int64_t step, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        switch (dtype) {
        case DT_BF16: ((uint16_t *)to)[at + i * step] = bf16_of(x[i]); break;
        case DT_F16: ((uint16_t *)to)[at + i * step] = f16_of(x[i]); break;
        default: ((float *)to)[at + i * step] = x[i]; break;
        }
    }
}

float cpu_state_rounded(enum dtype dtype, float x)
{
    if (dtype == DT_BF16) {
        return bf16_to_f32(bf16_of(x));
    }
    return dtype == DT_F16 ? f16_to_f32(f16_of(x)) : x;
}

/* The row of the pass that is at this position on the row's path; -1 if the position is in the
 * past. In a tree, the mask defines the path. */
int32_t cpu_path_row(const struct pass *pass, const struct pass_seq *seq, int32_t row, int32_t pos)
{
    if (!seq->tree) {
        int32_t at = seq->first_row + pos - seq->n_past;
        return at >= seq->first_row ? at : -1;
    }
    const uint64_t *mask = pass->tree_mask + (int64_t)row * TREE_MASK_WORDS;
    for (int32_t node = 0; node < seq->n_rows; node++) {
        int32_t at = seq->first_row + node;
        bool sees = (mask[node / 64] >> (node % 64) & 1) != 0;
        if (pass->rows[at].pos == pos && (at == row || sees)) {
            return at;
        }
    }
    return -1;
}
