// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: the lists of keys that rows attend to, and the launchers that make them. A list
 * is that of one row: the number of its keys, then the keys as slots of the row's lane, ascending.
 * In a tree these are only slots that the row sees. If blocks of keys are picked, each KV head of a
 * row has a list: the number of keys, then the blocks' numbers, ascending; only the last block of
 * the row may be incomplete. Padding rows have empty lists. All layers of all sets use one array of
 * lists, as each index_pick replaces the one before it.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_INDEX_H
#define SLUICE_CUDA_INDEX_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    INDEX_TILE = 256, // rows of scores are a multiple of this long
    INDEX_GRAIN = 32, // slots for which a score of blocks stands, with tensor cores
};

/* Words from one list to the next. */
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
    /* For blocks; `weights` is unused. scores: [end_row - first_row, n_heads, scores_stride], of
     * every `grain` slots the highest score. The scores of a tree's nodes are not among them; they
     * are at the row's end, from scores_stride - MAX_TREE_NODES on. */
    int32_t block, n_local, grain;
};

/* attention/index_store.cu. The weights of index_store_args; NULL: none. */
struct index_norms {
    const float *k, *k_bias, *q;
};
cudaError_t k_index_store(cudaStream_t stream, const struct index_store_args *a,
                          const struct rope_view *rope, const struct index_norms *norms,
                          const struct head_factors *growth, const struct kv_view *kv,
                          const struct pass_view *pass);
/* attention/index_scores.cu: the scores of all slots up to the row's own (in a tree up to that of
 * the last node), for the rows that see more than top_k keys. */
cudaError_t k_index_scores(cudaStream_t stream, const struct index_launch *a);
/* attention/index_select.cu: the lists, from these scores. */
cudaError_t k_index_select(cudaStream_t stream, const struct index_launch *a);
/* attention/block_scores.cu and block_select.cu: the same for blocks. k_block_grain: the grain that
 * the first of them needs; the other fields of the launch are set. */
int32_t k_block_grain(const struct index_launch *a);
cudaError_t k_block_scores(cudaStream_t stream, const struct index_launch *a);
cudaError_t k_block_select(cudaStream_t stream, const struct index_launch *a);

#ifdef __cplusplus
}
#endif
#endif
