// SPDX-License-Identifier: Apache-2.0
/* A plan: what the next step does, as decided by the scheduler. Its arrays have room for the
 * largest step, so that planning never allocates. */
#include "engine/schedule/plan.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"

#include <stdlib.h>

void plan_init(struct plan *p, const struct scheduler_limits *limits)
{
    size_t lanes = (size_t)limits->max_lanes;
    *p = (struct plan){0};
    p->entries = xcalloc(lanes, sizeof *p->entries);
    p->forks = xcalloc(lanes, sizeof *p->forks);
    p->grants = xcalloc(2 * lanes, sizeof *p->grants);
    p->copies = xcalloc(lanes, sizeof *p->copies);
    p->failed = xcalloc(lanes, sizeof *p->failed);
    p->state_copies = xcalloc((size_t)max_state_copies(limits), sizeof *p->state_copies);
    p->keeps = xcalloc((size_t)max_keeps(limits), sizeof *p->keeps);
    p->pages = xcalloc((size_t)max_page_grants(limits), sizeof *p->pages);
    p->page_copies = xcalloc((size_t)max_page_copies(limits), sizeof *p->page_copies);
}

void plan_deinit(struct plan *p)
{
    free(p->entries);
    free(p->forks);
    free(p->grants);
    free(p->copies);
    free(p->failed);
    free(p->state_copies);
    free(p->keeps);
    free(p->pages);
    free(p->page_copies);
    *p = (struct plan){0};
}

void plan_clear(struct plan *p)
{
    p->n_rows = p->max_rows = p->n_out = p->n_draws = p->n_background = p->n_foreground = 0;
    p->n_hits = 0;
    p->n_entries = p->n_forks = p->n_grants = p->n_copies = p->n_failed = 0;
    p->n_state_copies = p->n_keeps = p->n_pages = p->n_page_copies = 0;
}

/* Drafts may be dropped after planning, for instance by a grammar. All sums that include them are
 * corrected. */
void plan_trim(struct plan *p, struct plan_entry *entry, int32_t n_drafts)
{
    int32_t n = entry->n_drafts - n_drafts;
    ASSERT(n >= 0 && n_drafts >= 0);
    entry->n_drafts -= n;
    entry->n_rows -= n;
    entry->seq->n_computed -= n;
    entry->seq->n_verifying -= n;
    p->n_rows -= n;
    p->n_out -= n;
    p->n_draws -= n;
}

/* Called when a sequence that got blocks in this plan is preempted. */
void plan_drop_grants(struct plan *p, const struct sequence *seq)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_grants; i++) {
        if (p->grants[i].seq != seq) {
            p->grants[n++] = p->grants[i];
        }
    }
    p->n_grants = n;
    n = 0;
    for (int32_t i = 0; i < p->n_pages; i++) {
        if (p->pages[i].seq != seq) {
            p->pages[n++] = p->pages[i];
        }
    }
    p->n_pages = n;
}

bool plan_forks(const struct plan *p, const struct sequence *seq)
{
    for (int32_t i = 0; i < p->n_forks; i++) {
        if (p->forks[i].seq == seq) {
            return true;
        }
    }
    return false;
}
