// SPDX-License-Identifier: Apache-2.0
#include "engine/speculate/costs.h"
#include "engine/base/minmax.h"

float spec_cost(const float *cost, int32_t n)
{
    int32_t i = 0;
    while (i + 1 < SPEC_COST_POINTS && (2 << i) <= n) {
        i++;
    }
    int32_t low = 1 << i;
    if (i + 1 == SPEC_COST_POINTS) {
        return cost[i] * (float)n / (float)low;
    }
    return cost[i] + (cost[i + 1] - cost[i]) * (float)(n - low) / (float)low;
}

/* Fills in the points that were not measured, and removes noise: a pass with more rows never costs
 * less. */
static void mend(float *cost)
{
    for (int32_t i = SPEC_COST_POINTS - 2; i >= 0; i--) {
        if (cost[i + 1] > 0.0f && cost[i] > cost[i + 1]) {
            cost[i] = cost[i + 1];
        }
    }
    for (int32_t i = 1; i < SPEC_COST_POINTS; i++) {
        if (!(cost[i] > 0.0f)) {
            cost[i] = 2.0f * cost[i - 1];
        }
    }
}

/* A step with a single pass takes longer than a further pass of a chain. The difference is a round
 * trip: the host reads the results of a pass before it submits the next one. */
static void set_round_trip(struct spec_costs *c, const struct spec_timed_steps *t)
{
    float one = c->draft[0], each = (t->chain - one) / (float)(t->n_passes - 1);
    if (!(each > 0.0f && each < one)) {
        each = one;
    }
    c->round_trip = one - each;
    c->top_ids = t->with_top_ids > one ? t->with_top_ids - one : 0.0f;
    for (int32_t i = 0; i < SPEC_COST_POINTS; i++) {
        c->draft[i] -= c->round_trip;
    }
}

void spec_costs_settle(struct spec_costs *c, const struct spec_timed_steps *t, int32_t n_models)
{
    mend(c->target);
    mend(c->draft);
    if (n_models > 0) {
        set_round_trip(c, t);
    }
    // The draft models are assumed to cost the same, since they feed the same rows.
    for (int32_t i = 0; i < SPEC_COST_POINTS; i++) {
        c->draft[i] *= (float)n_models;
    }
}
