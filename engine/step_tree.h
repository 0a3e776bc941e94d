// SPDX-License-Identifier: Apache-2.0
/* Rows of trees in a pass. Inside of the step.
 * Thread: the engine's. */
#ifndef SLUICE_ENGINE_STEP_TREE_H
#define SLUICE_ENGINE_STEP_TREE_H

#include "engine/step_build.h"

/* A tree for every entry of the plan that is to have one. */
void step_plant_trees(struct planned_step *ps, const struct spec *sp);

/* The rows of a tree behind its root, with their masks; position and law of the draw that belongs
 * to row `row`. */
void step_tree_rows(struct planned_step *ps, const struct spec_tree *t, int32_t first_row);
int32_t step_tree_pos(const struct spec_tree *t, int32_t row);
int32_t step_tree_law(const struct spec_tree *t, int32_t row);

/* The draft models' passes [passes, + n_passes), run on all ranks and nodes now; their results are
 * ps->results until the next call. */
enum status step_run_drafts(struct planned_step *ps, const struct draft_pass *passes,
                            int32_t n_passes, const struct step_site *site);

/* step_mask.c. Whether a sequence with a grammar has drafts that are drawn on the device; the mask
 * of a draft's draw behind other drafts; and of what the draw told, what the mask allows. */
void step_mask_pass(struct planned_step *ps, int32_t j); // step_draft.c: all of draft pass j
bool step_drafts_masked(const struct planned_step *ps);
void step_mask_draft(struct planned_step *ps, struct pass *p, struct pass_draw *draw,
                     const struct sequence *seq, const int32_t *drafts, int32_t n_drafts);
void step_filter_drafts(const struct planned_step *ps, const struct pass *p, int32_t draw,
                        struct draw_result *r);

/* A row's mask: its parent's and the row itself; parent_row -1: the past alone. */
void step_mask(uint64_t *masks, int32_t first_row, int32_t row, int32_t parent_row);

#endif
