// SPDX-License-Identifier: Apache-2.0
/* A mixture of few rows in deterministic mode: the router's scores with the norm before them, and
 * the experts. The results have the same bits as those of norm.cu, k_moe_scores_fixed and moe.cu.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_MOE_FIXED_H
#define SLUICE_CUDA_MOE_FIXED_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* kernels/moe/few_fixed.cu: the experts, once the scores have been computed. The arguments must be
 * ones that k_moe_ffn_picks accepts. norm: the one that k_moe_scores_norm has applied; NULL:
 * none. */
bool moe_few_fixed_takes(const struct moe_ffn_args *a, const struct moe_weights *w);
cudaError_t moe_few_fixed(cudaStream_t stream, const struct moe_ffn_args *a,
                          const struct moe_weights *w, void *act, const int32_t *real,
                          const struct moe_picks *picks, const struct norm_args *norm);
/* kernels/moe/scores.cu: the norm that makes the router's x, and the scores. moe_few_fixed then
 * stores the sum that the norm was applied to. The norm must be one that k_moe_few_takes_norm
 * accepts. */
bool k_moe_scores_norm_takes(const struct moe_route_args *a, enum dtype router_dtype,
                             int32_t hidden);
cudaError_t k_moe_scores_norm(cudaStream_t stream, const struct moe_route_args *a,
                              const struct norm_args *norm, const float *norm_weight,
                              const float *router, const float *bias, int32_t hidden,
                              float *logits);

#ifdef __cplusplus
}
#endif

#endif
