// SPDX-License-Identifier: Apache-2.0
/* moe/few_fixed.cu: the experts of few rows in deterministic mode, once the router's scores have
 * been computed. The results have the same bits as those of moe.cu.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_FIXED_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_FIXED_CUH

#include "cuda/kernels/kernels.h"

/* The arguments must be ones that k_moe_ffn_picks accepts. */
bool moe_few_fixed_takes(const struct moe_ffn_args *a, const struct moe_weights *w);
cudaError_t moe_few_fixed(cudaStream_t stream, const struct moe_ffn_args *a,
                          const struct moe_weights *w, void *act, const int32_t *real,
                          const struct moe_picks *picks);

#endif
