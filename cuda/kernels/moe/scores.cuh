// SPDX-License-Identifier: Apache-2.0
/* Shared by scores.cu and scores_some.cu: a router's product, and its weights as sums of bf16
 * numbers. Thread: device code; the launcher the rank's owner. */
#ifndef SLUICE_CUDA_MOE_SCORES_CUH
#define SLUICE_CUDA_MOE_SCORES_CUH

#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/round_pair.cuh"

struct scores_params {
    const bf16_t *x;
    const float *router, *bias;
    float *logits;
    int64_t x_stride;
    int32_t n_rows, n_experts, hidden;
};

/* Returns the next term of the split of both elements (the largest left) and subtracts it. */
__device__ __forceinline__ uint32_t next_term(float2 &left)
{
    const uint32_t term = round_pair(left.x, left.y, bf16_t());
    const float2 taken = unpack_pair<bf16_t>(term);
    left.x -= taken.x;
    left.y -= taken.y;
    return term;
}

/* scores_some.cu: the scores of some hundred rows, not in deterministic mode. */
cudaError_t k_moe_scores_some(cudaStream_t stream, const struct scores_params &p);

#endif
