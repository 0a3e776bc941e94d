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

/* A row's mask: its parent's and the row itself; parent_row -1: the past alone. */
void step_mask(uint64_t *masks, int32_t first_row, int32_t row, int32_t parent_row);

#endif
