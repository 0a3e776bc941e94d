// SPDX-License-Identifier: Apache-2.0
/* Rows of trees in a pass; internal to the step. Thread: the engine's. */
#ifndef SLUICE_ENGINE_STEP_TREE_H
#define SLUICE_ENGINE_STEP_TREE_H

#include "engine/step_build.h"

/* Makes a tree for every entry of the plan that should have one. */
void step_plant_trees(struct planned_step *ps, const struct spec *sp);

/* step_tree_rows: adds the rows of a tree after its root, with their masks. step_tree_pos,
 * step_tree_law: the position and the law of the draw at row `row`. */
void step_tree_rows(struct planned_step *ps, const struct spec_tree *t, int32_t first_row);
int32_t step_tree_pos(const struct spec_tree *t, int32_t row);
int32_t step_tree_law(const struct spec_tree *t, int32_t row);

/* Runs draft passes passes[0 .. n_passes) on all ranks and nodes now. Their results are in
 * ps->results until the next call. */
enum status step_run_drafts(struct planned_step *ps, const struct draft_pass *passes,
                            int32_t n_passes, const struct step_site *site);

/* step_mask.c, except for step_mask_pass. step_mask_pass: the masks of all draws of draft pass j.
 * step_drafts_masked: whether the device draws drafts for a sequence with a grammar.
 * step_mask_draft: the mask of a draw that follows these drafts. step_filter_drafts: removes drawn
 * ids that the mask excludes. */
void step_mask_pass(struct planned_step *ps, int32_t j); // in step_draft.c
bool step_drafts_masked(const struct planned_step *ps);
void step_mask_draft(struct planned_step *ps, struct pass *p, struct pass_draw *draw,
                     const struct sequence *seq, const int32_t *drafts, int32_t n_drafts);
void step_filter_drafts(const struct planned_step *ps, const struct pass *p, int32_t draw,
                        struct draw_result *r);

/* A row's mask is its parent's mask plus the row itself. parent_row -1: the row sees only the
 * past. */
void step_mask(uint64_t *masks, int32_t first_row, int32_t row, int32_t parent_row);

#endif
