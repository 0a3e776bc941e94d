// SPDX-License-Identifier: Apache-2.0
/* Costs of passes: curves measured at startup on the loaded models. Speculation chooses its depth
 * by them.
 * Thread: constant once the engine is open. */
#ifndef SLUICE_ENGINE_SPECULATE_COSTS_H
#define SLUICE_ENGINE_SPECULATE_COSTS_H

#include <stdbool.h>
#include <stdint.h>

enum { SPEC_COST_POINTS = 8 }; // the times of passes with 1, 2, 4, ... 128 rows

struct spec_costs {
    // seconds; draft: of all draft models together
    float target[SPEC_COST_POINTS], draft[SPEC_COST_POINTS];
    float round_trip; // seconds in which the host reads a pass's draws and submits the next pass
    float top_ids;    // additional seconds of a draft pass whose draws return the most likely ids
};

/* Measured times of steps with draft passes. */
struct spec_timed_steps {
    float chain; // seconds of n_passes of one row each, one after the other
    int32_t n_passes;
    float with_top_ids; // seconds of one pass whose draws return the most likely ids
};

static inline bool spec_costs_known(const struct spec_costs *c)
{
    return c->target[0] > 0.0f;
}

/* The seconds that a pass of n rows takes, interpolated between the measured points. */
float spec_cost(const float *cost, int32_t n);

/* Builds the curves from the measured points (0: not measured), such that more rows never cost
 * less. Every measured step contains a round trip to the host, which is subtracted from the draft
 * models' passes. */
void spec_costs_settle(struct spec_costs *c, const struct spec_timed_steps *t, int32_t n_models);

#endif
