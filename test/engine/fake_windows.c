// SPDX-License-Identifier: Apache-2.0
/* The fake backend's layers with a window, and their pages. All of these layers have the same
 * content, so it is stored once. */
#include "test/engine/fake_internal.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

void fake_windows_open(struct fake *f)
{
    const struct backend_limits *l = &f->l;
    const size_t n = (size_t)l->n_window_pages * (size_t)l->block_tokens;
    const size_t entries = (size_t)l->max_lanes * (size_t)l->max_blocks_per_lane;
    f->window_slots = xcalloc(n, sizeof *f->window_slots);
    for (size_t i = 0; i < n; i++) {
        f->window_slots[i].token = -1;
    }
    f->page_tables = xcalloc(entries, sizeof *f->page_tables);
    f->first_windowed = -1;
}

void fake_windows_close(struct fake *f)
{
    free(f->window_slots);
    free(f->page_tables);
}

void fake_windows_layers(struct fake *f, int32_t set, const struct kv_set_desc *desc)
{
    for (int32_t i = desc->n_layers - 1; set == 0 && i >= 0; i--) {
        *(desc->layers[i].windowed ? &f->first_windowed : &f->first_whole) = i;
        ASSERT(!desc->layers[i].windowed || f->l.n_window_pages > 0);
    }
}

/* The slot of a position among the pages of windowed layers. */
static struct slot *window_slot(struct fake *f, int32_t lane, int32_t pos)
{
    int32_t size = f->l.block_tokens;
    int32_t page = f->page_tables[lane * f->l.max_blocks_per_lane + pos / size];
    ASSERT(page >= 0 && page < f->l.n_window_pages);
    return &f->window_slots[page * size + pos % size];
}

enum status fake_lane_pages(struct backend *be, int32_t lane, int32_t first, int32_t n,
                            const int32_t *pages)
{
    struct fake *f = fake_of(be);
    ASSERT(first + n <= f->l.max_blocks_per_lane && f->l.n_window_pages > 0);
    memcpy(f->page_tables + (size_t)lane * (size_t)f->l.max_blocks_per_lane + first, pages,
           (size_t)n * sizeof *pages);
    return OK;
}

enum status fake_copy_pages(struct backend *be, int32_t n, const struct block_copy *copies)
{
    struct fake *f = fake_of(be);
    size_t size = (size_t)f->l.block_tokens;
    fake_check_copies(copies, n);
    for (int32_t i = 0; i < n; i++) {
        ASSERT(copies[i].from >= 0 && copies[i].from < f->l.n_window_pages);
        ASSERT(copies[i].to >= 0 && copies[i].to < f->l.n_window_pages);
        memcpy(f->window_slots + (size_t)copies[i].to * size,
               f->window_slots + (size_t)copies[i].from * size, size * sizeof *f->window_slots);
    }
    return OK;
}

enum status fake_poison_pages(struct backend *be, int32_t n, const int32_t *pages)
{
    struct fake *f = fake_of(be);
    int32_t size = f->l.block_tokens;
    for (int32_t i = 0; i < n * size; i++) {
        f->window_slots[pages[i / size] * size + i % size].token = -1;
    }
    return OK;
}

void fake_windows_move(struct fake *f, const struct slot_move *m)
{
    if (f->first_windowed >= 0) {
        *window_slot(f, m->lane, m->to) = *window_slot(f, m->lane, m->from);
    }
}

void fake_windows_store(struct fake *f)
{
    for (int32_t i = 0; i < f->pass->n_rows; i++) {
        const struct pass_row *r = &f->pass->rows[i];
        int32_t token = r->token >= 0 ? r->token : *history_at(f, r->lane, r->slot_pos);
        struct slot *slot = window_slot(f, r->lane, r->slot_pos);
        f->control->n_wrong += slot->pass == f->pass_number;
        *slot = (struct slot){token, r->pos, f->pass_number};
    }
}

/* Where two members of a group see a block of their common prefix, their tables name one page. */
static void check_group_pages(const struct fake *f, const struct pass_group *g, int32_t window)
{
    const int32_t stride = f->l.max_blocks_per_lane, size = f->l.block_tokens;
    const int32_t *first = f->page_tables + f->pass->seqs[g->first_seq].lane * stride;
    for (int32_t s = g->first_seq; s < g->first_seq + g->n_seqs; s++) {
        const struct pass_seq *q = &f->pass->seqs[s];
        const int32_t seen = q->n_past - window + 1;
        for (int32_t b = greater(seen, 0) / size; b < g->n_blocks; b++) {
            ASSERT(f->page_tables[q->lane * stride + b] == first[b]);
        }
    }
}

/* Whether slot k of the sequence holds what a row of the pass must see there. */
static bool is_right(struct fake *f, const struct pass_seq *q, int32_t k)
{
    const struct slot *slot = window_slot(f, q->lane, k);
    if (k < q->n_past) {
        return slot->token >= 0 && slot->pos == k && slot->token == *history_at(f, q->lane, k);
    }
    const struct pass_row *r = &f->pass->rows[q->first_row + k - q->n_past];
    return slot->token >= 0 && slot->pass == f->pass_number && slot->pos == r->pos;
}

/* Checks all that the rows of a layer with a window see. */
void fake_windows_read(struct fake *f, const struct attention_args *a)
{
    for (int32_t g = 0; g < f->pass->n_groups && a->window > 0; g++) {
        check_group_pages(f, &f->pass->groups[g], a->window);
    }
    for (int32_t s = 0; s < f->pass->n_seqs; s++) {
        const struct pass_seq *q = &f->pass->seqs[s];
        for (int32_t i = 0; i < q->n_rows; i++) {
            const int32_t row = q->first_row + i, pos = f->pass->rows[row].pos;
            const int32_t from = a->window > 0 ? pos - a->window + 1 : pos / a->chunk * a->chunk;
            for (int32_t k = greater(from, 0); k <= q->n_past + i; k++) {
                const bool seen = !q->tree || k < q->n_past || sees(f, row, k - q->n_past);
                f->control->n_wrong += seen && !is_right(f, q, k);
            }
        }
    }
    f->control->n_windows++;
}
