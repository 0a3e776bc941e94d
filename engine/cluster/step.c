// SPDX-License-Identifier: Apache-2.0
/* A step's memory, allocated once for the largest step that the limits allow. */
#include "engine/cluster/step.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

static void init_pass(struct draft_pass *d, size_t rows, size_t lanes, size_t out)
{
    d->rows = xcalloc(rows, sizeof *d->rows);
    d->seqs = xcalloc(lanes, sizeof *d->seqs);
    d->out_rows = xcalloc(out, sizeof *d->out_rows);
    d->draws = xcalloc(out, sizeof *d->draws);
}

static void deinit_pass(struct draft_pass *d)
{
    free(d->rows);
    free(d->seqs);
    free(d->out_rows);
    free(d->draws);
}

void step_init(struct step *st, int32_t slot, const struct step_sizes *sizes)
{
    const struct scheduler_limits *l = sizes->limits;
    size_t lanes = (size_t)l->max_lanes, rows = (size_t)l->max_rows, out = (size_t)l->max_out;
    *st =
        (struct step){.slot = slot, .n_draft_models = sizes->n_draft_models, .vocab = sizes->vocab};
    st->lanes = xcalloc(2 * lanes, sizeof *st->lanes);
    st->copies = xcalloc(lanes, sizeof *st->copies);
    st->state_copies = xcalloc((size_t)max_state_copies(l), sizeof *st->state_copies);
    st->page_updates = xcalloc((size_t)max_page_grants(l), sizeof *st->page_updates);
    st->page_copies = xcalloc((size_t)max_page_copies(l), sizeof *st->page_copies);
    for (int32_t i = 0; i < sizes->n_draft_passes; i++) {
        init_pass(&st->draft[i], i < sizes->n_feeding_passes ? rows : lanes, lanes, lanes);
    }
    if (sizes->n_draft_passes > 0) {
        init_pass(&st->level, rows, lanes, out);
    }
    st->rows = xcalloc(rows, sizeof *st->rows);
    st->seqs = xcalloc(lanes, sizeof *st->seqs);
    st->groups = xcalloc(lanes, sizeof *st->groups);
    st->out_rows = xcalloc(out, sizeof *st->out_rows);
    st->draws = xcalloc((size_t)l->max_draws, sizeof *st->draws);
    st->pools = xcalloc(max_pools(l), sizeof *st->pools);
    st->keeps = xcalloc((size_t)max_keeps(l), sizeof *st->keeps);
    size_t words = (size_t)mask_words(sizes->vocab);
    st->masks = xcalloc((size_t)sizes->max_masks * words, sizeof *st->masks);
}

void step_deinit(struct step *st)
{
    free(st->lanes);
    free(st->copies);
    free(st->state_copies);
    free(st->page_updates);
    free(st->page_copies);
    for (int32_t i = 0; i < MAX_DRAFTS; i++) {
        deinit_pass(&st->draft[i]);
    }
    deinit_pass(&st->level);
    free(st->rows);
    free(st->seqs);
    free(st->groups);
    free(st->out_rows);
    free(st->draws);
    free(st->pools);
    free(st->keeps);
    free(st->masks);
    *st = (struct step){0};
}

/* ---- accepted paths ----------------------------------------------------------------------- */

void tree_moves_init(struct tree_moves *m, const struct scheduler_limits *limits)
{
    size_t lanes = (size_t)limits->max_lanes;
    m->paths = xcalloc(lanes, sizeof *m->paths);
    for (int32_t set = 0; set <= MAX_DRAFT_MODELS; set++) {
        m->moves[set] = xcalloc(lanes * MAX_DRAFTS, sizeof *m->moves[set]);
    }
}

void tree_moves_deinit(struct tree_moves *m)
{
    free(m->paths);
    for (int32_t set = 0; set <= MAX_DRAFT_MODELS; set++) {
        free(m->moves[set]);
    }
    *m = (struct tree_moves){0};
}

void tree_moves_clear(struct tree_moves *m)
{
    m->n_paths = 0;
    memset(m->n_moves, 0, sizeof m->n_moves);
}
