// SPDX-License-Identifier: Apache-2.0
/* kernels/moe/shared.cu: the shared expert of some hundred rows with SiLU, beside the router and
 * the sort of the picks; never in deterministic mode.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_MOE_SHARED_H
#define SLUICE_CUDA_MOE_SHARED_H

#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct moe_shared {
    const struct moe_route_args *route;
    const float *router, *router_bias;
    const void *gate_up, *down; // bf16
    float *logits;              // as for k_moe_route
    struct tensor act, y;       // [n_rows, ffn], [n_rows, hidden]
    int32_t hidden, ffn;
};

bool moe_shared_takes(const struct moe_shared *m, int32_t sm, int32_t n_sms);

/* Computes the logits, and `act` from the router's x. */
cudaError_t moe_shared_up(cudaStream_t stream, const struct moe_shared *m);

/* Computes y from `act`. It does not wait for the kernel before it, so that one must trigger after
 * its own wait, and another one must lie between it and moe_shared_up. */
cudaError_t moe_shared_down(cudaStream_t stream, const struct moe_shared *m,
                            const struct moe_ffn_args *a, const void *gate_up);

/* kernels/moe/sm90.cu: k_moe_ffn_sm90 with moe_shared_down after its sort. shared: NULL: none. */
cudaError_t moe_ffn_beside(cudaStream_t stream, const struct moe_ffn_args *a,
                           const struct moe_weights *w, const float *gate,
                           const struct moe_shared *shared, void *scratch, const int32_t *real,
                           int32_t row_offset, int32_t n_sms);

#ifdef __cplusplus
}
#endif

#endif
