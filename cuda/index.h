// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: the lists of keys that rows attend to, and the launchers that make them. A list
 * is that of one row: the number of its keys, then the keys as slots of the row's lane, ascending.
 * In a tree these are only slots that the row sees. Padding rows have empty lists. All layers of
 * all sets use one array of lists, as each index_pick replaces the one before it.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_INDEX_H
#define SLUICE_CUDA_INDEX_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { INDEX_TILE = 256 }; // rows of scores are a multiple of this long

/* Words from one row's list to the next. */
#define PICK_STRIDE(top_k) ((top_k) + 1)

/* Scores and picks of rows [first_row, end_row) of the pass. */
struct index_launch {
    const void *q, *weights;
    int32_t q_stride, weights_stride; // in elements
    enum dtype dtype;                 // of q, of weights and of the pages' elements
    int32_t first_row, end_row, n_heads, head_dim, top_k;
    struct kv_view kv;
    struct pass_view pass;
    float *scores;         // [end_row - first_row, scores_stride], by slot
    int64_t scores_stride; // at least the number of slots of any row, rounded up to INDEX_TILE
    int32_t *lists;        // that of row 0
    int32_t sm, n_sms;
};

/* attention/index_store.cu */
cudaError_t k_index_store(cudaStream_t stream, const struct index_store_args *a,
                          const struct rope_view *rope, const float *norm, const float *norm_bias,
                          const struct head_factors *growth, const struct kv_view *kv,
                          const struct pass_view *pass);
/* attention/index_scores.cu: the scores of all slots up to the row's own (in a tree up to that of
 * the last node), for the rows that see more than top_k keys. */
cudaError_t k_index_scores(cudaStream_t stream, const struct index_launch *a);
/* attention/index_select.cu: the lists, from these scores. */
cudaError_t k_index_select(cudaStream_t stream, const struct index_launch *a);

#ifdef __cplusplus
}
#endif
#endif
