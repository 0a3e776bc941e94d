// SPDX-License-Identifier: Apache-2.0
/* Defines which draws take the highest raw logit, and so need only the best logits of a row. The
 * sampler and the product that writes those logits must agree on this.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_GREEDY_CUH
#define SLUICE_CUDA_DEVICE_GREEDY_CUH

#include "cuda/layout.h"

__device__ __forceinline__ bool has_changes(const struct lane_params &p)
{
    return p.n_bias > 0 || p.repetition_penalty != 1.0f || p.frequency_penalty != 0.0f ||
           p.presence_penalty != 0.0f;
}

__device__ __forceinline__ bool has_bans(const struct lane_params &p, const struct pass_draw &d)
{
    return p.n_allowed > 0 || p.n_bad_words > 0 ||
           (p.n_stop_ids > 0 && d.pos + 1 - d.n_prompt < p.min_tokens);
}

__device__ __forceinline__ bool is_modified(const struct lane_params &p, const struct pass_draw &d)
{
    return d.mask > 0 || has_changes(p) || has_bans(p, d);
}

__device__ __forceinline__ float temperature_of(const struct lane_params &p,
                                                const struct pass_draw &d)
{
    return d.kind == DRAW_DRAFT && !d.noise ? 0.0f : p.temperature;
}

__device__ __forceinline__ bool is_greedy(const struct lane_params &p, const struct pass_draw &d)
{
    return d.kind != DRAW_SCORE && !d.logprobs && !(d.kind == DRAW_DRAFT && d.more > 0) &&
           temperature_of(p, d) == 0.0f && !is_modified(p, d);
}

#endif
