// SPDX-License-Identifier: Apache-2.0
/* Models with several residual streams, and MLPs of which few gates are open. */
#include "cuda/cuda_ops.h"

static enum status streams_ok(const struct streams_args *a)
{
    const bool numbers = a->n > 0 && a->n <= MAX_STREAMS && a->active >= 0 && a->active < a->n &&
                         a->width > 0 && a->width <= INT32_MAX / MAX_STREAMS;
    if (!numbers) {
        return ERR_INVALID;
    }
    const int32_t n_coefs = a->after ? a->n : a->n * a->n;
    const bool tensors = fits(a->streams, a->n * a->width) && fits(a->x, a->width) &&
                         fits(a->in, a->width) && a->streams.dtype == a->x.dtype &&
                         a->in.dtype == a->x.dtype;
    const bool vectors = vector_length(a->router) >= a->n * a->width &&
                         vector_length(a->coefs) >= n_coefs * a->n &&
                         (!a->scale || vector_length(a->scale) >= a->width);
    return tensors && vectors ? OK : ERR_INVALID;
}

enum status cuda_op_streams(struct backend *base, const struct streams_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    TRY(streams_ok(a));
    CUDA_TRY(&be->device, k_streams(be->device.stream, a, vector(a->router), vector(a->coefs),
                                    vector(a->scale)));
    return OK;
}

enum status cuda_op_rms_match(struct backend *base, const struct rms_match_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!fits(a->x, a->width) || !fits(a->like, a->width) || !fits(a->out, a->width) ||
        a->like.dtype != a->x.dtype || a->out.dtype != a->x.dtype) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_rms_match(be->device.stream, a));
    return OK;
}

enum status cuda_op_cutoff(struct backend *base, const struct cutoff_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!fits(a->x, a->width)) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_cutoff(be->device.stream, a));
    return OK;
}
