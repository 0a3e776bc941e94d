// SPDX-License-Identifier: Apache-2.0
/* What passes take: curves measured at the start on the real models, since speculation pays by
 * them.
 * Thread: constant once the engine is open. */
#ifndef SLUICE_ENGINE_SPECULATE_COSTS_H
#define SLUICE_ENGINE_SPECULATE_COSTS_H

#include <stdbool.h>
#include <stdint.h>

enum { SPEC_COST_POINTS = 8 }; // times of 1, 2, 4, ... 128 rows

struct spec_costs {
    float target[SPEC_COST_POINTS], draft[SPEC_COST_POINTS]; // seconds; draft: of all models
    float look; // of the host's reading a pass's draws before the next is submitted
    float tell; // of a pass whose draws tell the likeliest ids too
};

/* Steps of draft passes, as they were timed. */
struct spec_timed_steps {
    float chain; // n_passes of one row, one behind the other
    int32_t n_passes;
    float telling; // one whose draws tell the likeliest ids
};

static inline bool spec_costs_known(const struct spec_costs *c)
{
    return c->target[0] > 0.0f;
}

/* Seconds of a pass of n rows, between the measured points. */
float spec_cost(const float *cost, int32_t n);

/* Makes curves of the points that were timed, 0 where one was not: more rows never cost less, and
 * the host's look, which each timed step has, is taken off the draft models' passes. */
void spec_costs_settle(struct spec_costs *c, const struct spec_timed_steps *t, int32_t n_models);

#endif
