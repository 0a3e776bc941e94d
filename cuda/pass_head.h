// SPDX-License-Identifier: Apache-2.0
/* The start of a pass's metadata, and the kernel that begins a small pass. Compiles as C11 and
 * C++17.
 * Thread: plain data; launcher: the rank's owner. */
#ifndef SLUICE_CUDA_PASS_HEAD_H
#define SLUICE_CUDA_PASS_HEAD_H

#include "cuda/layout.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* pass_view.counts points to the counts of one of these. */
struct pass_head {
    struct pass_counts counts;
    struct draw_result *results; // [n_draws] of the draws, in the step's pinned memory
    /* A lane has several draws, and a draw's token is kept: as draws read histories, these are
     * written once all draws are done. */
    bool keeps_later;
};

/* The same as k_pass_begin, but first copies n_bytes (a multiple of 16) of metadata from pinned
 * memory. For few bytes this is faster than the copy engine. */
cudaError_t k_pass_begin_small(cudaStream_t stream, const struct pass_view *pass, const void *image,
                               void *meta, size_t n_bytes);

#ifdef __cplusplus
}
#endif
#endif
