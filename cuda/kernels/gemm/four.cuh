// SPDX-License-Identifier: Apache-2.0
/* The kernels that gemm_four (cuda/gemm.h) chooses from, besides its own for few rows.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_GEMM_FOUR_CUH
#define SLUICE_CUDA_GEMM_FOUR_CUH

#include "cuda/gemm.h"

enum { FOUR_SOME_ROWS = 32, FOUR_MOST_ROWS = 256 }; // maximum rows of the next two

extern "C" {
cudaError_t gemm_four_some(cudaStream_t stream, const struct coded_matrix *m,
                           const struct coded_args *a, int32_t n_sms, size_t sums_bytes,
                           struct sum_parts *sums);
cudaError_t gemm_four_many(cudaStream_t stream, const struct coded_matrix *m,
                           const struct coded_args *a, int32_t n_sms, size_t sums_bytes,
                           struct sum_parts *sums);
/* False if it leaves the product to gemm_four; otherwise *e is the launch's error. */
bool gemm_four_lean(cudaStream_t stream, const struct coded_matrix *m, const struct coded_args *a,
                    int32_t n_sms, size_t sums_bytes, struct sum_parts *sums, cudaError_t *e);
/* True if gemm_four_many sums each group separately and then scales the sums; false if it scales
 * the codes.
 */
bool four_is_exact(const struct coded_matrix *m, int32_t n_rows);
}

/* Fills in what the parameters of all these kernels have in common. If K is cut into several parts,
 * the product goes to `sums`, which gets their number; otherwise it goes to y. Returns whether K is
 * cut. */
template <typename P>
static inline bool four_output(P *p, const struct coded_matrix *m, const struct coded_args *a,
                               int32_t n_parts, struct sum_parts *sums)
{
    const bool cut = n_parts > 1;
    p->m = *m;
    p->y = cut ? (void *)(uintptr_t)sums->first : a->y;
    p->bias = cut ? nullptr : a->bias;
    p->n_rows = a->n_rows;
    p->n_out = a->gated ? m->n_out / 2 : m->n_out;
    p->y_stride = cut ? sums->width : a->y_stride;
    p->part_stride = cut ? sums->stride : 0;
    p->accumulate = a->accumulate;
    p->gated = a->gated;
    if (sums) {
        sums->n = cut ? n_parts : 0;
    }
    return cut;
}

#endif
