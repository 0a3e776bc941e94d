// SPDX-License-Identifier: Apache-2.0
/* State sets: the memory layout of recurrent layers, shared by the file that allocates it
 * (cpu_state.c) and the ops that read and write it (cpu_conv.c, cpu_recurrence.c).
 *
 * A lane's memory for one layer is its records, then its raw rows: pages of `block` slots (slot s
 * is in page s / block % n_pages), and a ring of inputs of the convolution.
 *
 *     record       S [head][key_dim][v_stride] fp32, then inputs [kernel - 1][width] before it
 *     keys         [page][key head][key_dim][block], transposed for scores of many
 *     values (u)   [page][head][block][v_stride]
 *     decays (G)   [page][head][1 or key_dim][block] fp32: running sums of log decays
 *     inputs       [conv_ring][width]
 *
 * Thread: the rank's owner; items of a pool_run touch the heads or rows that they are given. */
#ifndef SLUICE_CPU_STATE_H
#define SLUICE_CPU_STATE_H

#include "cpu/cpu_internal.h"

struct state_pages {
    struct state_layer geometry;
    enum dtype dtype;
    int32_t block, n_pages, n_records, conv_ring;
    int32_t v_stride; // value_dim rounded up to a multiple of PANEL
    int32_t decays;   // number of decays per head and position: 1, or key_dim
    size_t s_bytes, record_bytes;
    // Bytes of one head in one page; conv_bytes: of the inputs of one row.
    size_t k_bytes, u_bytes, g_bytes, conv_bytes;
    // Offsets in a lane's memory, and the size of that memory.
    size_t k_at, u_at, g_at, conv_at, lane_bytes;
    char *lanes, *snapshots;
};

struct state_set {
    int32_t n_layers, n_snapshots;
    struct state_pages *layers;
};

const struct state_pages *cpu_state_layer(const struct cpu_backend *cpu, int32_t layer);
/* Bytes of scratch that an item needs. */
size_t cpu_recurrence_scratch(const struct state_pages *p);
size_t cpu_conv_scratch(const struct state_pages *p);

static inline char *state_lane(const struct state_pages *p, int32_t lane)
{
    return p->lanes + (size_t)lane * p->lane_bytes;
}

/* The record of a boundary, which is a multiple of `block`. */
static inline char *state_record(const struct state_pages *p, int32_t lane, int32_t boundary)
{
    size_t i = (size_t)(boundary / p->block % p->n_records);
    return state_lane(p, lane) + i * p->record_bytes;
}

static inline float *state_of_head(const struct state_pages *p, char *record, int32_t head)
{
    return (float *)record + (size_t)head * (size_t)p->geometry.key_dim * (size_t)p->v_stride;
}

static inline char *state_keys(const struct state_pages *p, int32_t lane, int32_t slot,
                               int32_t key_head)
{
    size_t page = (size_t)(slot / p->block % p->n_pages);
    size_t i = page * (size_t)p->geometry.n_key_heads + (size_t)key_head;
    return state_lane(p, lane) + p->k_at + i * p->k_bytes;
}

static inline char *state_values(const struct state_pages *p, int32_t lane, int32_t slot,
                                 int32_t head)
{
    size_t page = (size_t)(slot / p->block % p->n_pages);
    size_t i = page * (size_t)p->geometry.n_heads + (size_t)head;
    return state_lane(p, lane) + p->u_at + i * p->u_bytes;
}

static inline float *state_decays(const struct state_pages *p, int32_t lane, int32_t slot,
                                  int32_t head)
{
    size_t page = (size_t)(slot / p->block % p->n_pages);
    size_t i = page * (size_t)p->geometry.n_heads + (size_t)head;
    return (float *)(void *)(state_lane(p, lane) + p->g_at + i * p->g_bytes);
}

static inline char *state_inputs(const struct state_pages *p, int32_t lane, int32_t slot)
{
    return state_lane(p, lane) + p->conv_at + (size_t)(slot % p->conv_ring) * p->conv_bytes;
}

/* The snapshot to which the lane's record of that boundary is also written; NULL: none. */
char *cpu_state_kept(const struct cpu_backend *cpu, const struct state_pages *p, int32_t lane,
                     int32_t boundary);

/* Stores n values in the set's dtype. */
void cpu_state_put(enum dtype dtype, void *to, int64_t at, int64_t step, const float *x, int32_t n);
float cpu_state_rounded(enum dtype dtype, float x);

/* The row of this pass that is at position `pos` on the path of `row`; -1: the position is from an
 * earlier pass. */
int32_t cpu_path_row(const struct pass *pass, const struct pass_seq *seq, int32_t row, int32_t pos);

enum status cpu_state_bytes(struct backend *be, const struct state_set_desc *desc,
                            struct state_sizes *out);
enum status cpu_state_open(struct backend *be, int32_t set, const struct state_set_desc *desc,
                           int32_t n_snapshots, struct err *err);
void cpu_states_close(struct cpu_backend *cpu);
enum status cpu_copy_states(struct backend *be, int32_t set, int32_t n,
                            const struct state_copy *copies);
/* The part of move_slots that concerns the set. */
void cpu_state_move_slots(struct cpu_backend *cpu, int32_t n, const struct slot_move *moves,
                          int32_t set);
enum status cpu_short_conv(struct backend *be, const struct short_conv_args *a);
enum status cpu_recurrence(struct backend *be, const struct recurrence_args *a);

#endif
