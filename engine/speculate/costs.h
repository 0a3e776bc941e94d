// SPDX-License-Identifier: Apache-2.0
/* Costs of passes: curves measured at startup on the loaded models. The depth of speculation is
 * chosen from them.
 * Thread: constant once the engine is open. */
#ifndef SLUICE_ENGINE_SPECULATE_COSTS_H
#define SLUICE_ENGINE_SPECULATE_COSTS_H

#include <stdbool.h>
#include <stdint.h>

enum { SPEC_COST_POINTS = 8 }; // times of 1, 2, 4, ... 128 rows

struct spec_costs {
    float target[SPEC_COST_POINTS], draft[SPEC_COST_POINTS]; // seconds; draft: of all models
    float look; // for the host to read a pass's draws before submitting the next pass
    float tell; // of a draft pass whose draws also return the most likely ids
};

/* Measured times of steps with draft passes. */
struct spec_timed_steps {
    float chain; // n_passes of one row, one after the other
    int32_t n_passes;
    float telling; // one whose draws return the most likely ids
};

static inline bool spec_costs_known(const struct spec_costs *c)
{
    return c->target[0] > 0.0f;
}

/* Seconds of a pass of n rows, interpolated between the measured points. */
float spec_cost(const float *cost, int32_t n);

/* Builds the curves from the measured points, 0 for those not measured: more rows never cost less.
 * The host's round trip, which every measured step contains, is subtracted from the draft models'
 * passes. */
void spec_costs_settle(struct spec_costs *c, const struct spec_timed_steps *t, int32_t n_models);

#endif
