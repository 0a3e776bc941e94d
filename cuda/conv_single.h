// SPDX-License-Identifier: Apache-2.0
/* The launcher of kernels/state/conv_single.cu. Compiles as C11 and C++17.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CONV_SINGLE_H
#define SLUICE_CUDA_CONV_SINGLE_H

#include "cuda/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* k_short_conv, with the same bits, for passes in which every sequence has one row and none is a
 * tree; for 16-bit layers of three or four taps. */
bool k_conv_single_takes(const struct state_rows_launch *l);
cudaError_t k_conv_single(cudaStream_t stream, const struct state_rows_launch *l);

#ifdef __cplusplus
}
#endif
#endif
