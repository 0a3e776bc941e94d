// SPDX-License-Identifier: Apache-2.0
/* Products by cuBLASLt. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_GEMM_PLANS_H
#define SLUICE_CUDA_GEMM_PLANS_H

#include "cuda/cuda_gemm.h"

enum status gemm_plans_open(struct gemms *g);
void gemm_plans_close(struct gemms *g); // may be called even if it was never opened

/* True if cuBLASLt has a kernel for the product. */
bool gemm_plans_take(struct gemms *g, const struct gemm_args *a);
/* Returns false if cuBLASLt has no kernel for the product. Otherwise *e is the result of the
 * launch. */
bool gemm_on_cublas(struct gemms *g, const struct gemm_args *a, cudaError_t *e);

#endif
