// SPDX-License-Identifier: Apache-2.0
/* Passes that attention/few.cu and its relatives may compute, and the launcher for several rows per
 * sequence.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_FEW_H
#define SLUICE_CUDA_FEW_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What these kernels know of a pass: the number of sequences, and an upper bound of the rows of
 * each. seq_rows 1: each row is a separate sequence; 0: the pass is not for these kernels. All
 * passes that replay a graph have the same. */
enum { FEW_SEQS = 8, FEW_SEQ_ROWS = 8 };
struct few_pass {
    int32_t n_seqs, seq_rows, has_trees;
};

/* attention/few_several.cu: rope_store and attention in one kernel for few sequences of several
 * rows each, without a soft cap; windows only if the pass has no trees. qkv must be complete. */
bool k_attention_several_takes(const struct rope_store_args *a, const struct rope_view *rope,
                               int32_t q_norm_n, int32_t k_norm_n, const struct kv_view *kv,
                               const struct attention_limits *limits, const struct few_pass *few);
cudaError_t k_attention_several(cudaStream_t stream, const struct rope_store_args *r,
                                const struct rope_view *rope, const float *q_norm,
                                const float *k_norm, const struct attention_launch *a,
                                const struct few_pass *few);

#ifdef __cplusplus
}
#endif
#endif
