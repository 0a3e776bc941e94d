// SPDX-License-Identifier: Apache-2.0
/* Products of deterministic mode on Hopper: chooses a kernel by the number of rows, such that a
 * row's bits do not depend on that number; and products of other modes by the same kernels.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_FIXED_H
#define SLUICE_CUDA_CUDA_FIXED_H

#include "cuda/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True if this product is supported for every number of rows. The answer depends on the weight, the
 * device and the kind of call, never on the number of rows. */
bool fixed_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
/* Computes the product. If may_split allows it and it is faster, the product is left as sums->n
 * partial sums; the caller has set the other fields of *sums, for sums_bytes of memory. */
cudaError_t fixed_product(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                          size_t sums_bytes, struct sum_parts *sums);

/* In every mode: true if these rows, some hundred, fill nearly all rounds of the kernel that sums
 * all of K in one part. It then takes as long as cuBLASLt, but overlaps its neighbours. */
bool fixed_fills(const struct gemm_args *a, int32_t sm, int32_t n_sms);
cudaError_t fixed_whole(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms);

#ifdef __cplusplus
}
#endif
#endif
