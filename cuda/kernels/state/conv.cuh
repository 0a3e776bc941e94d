// SPDX-License-Identifier: Apache-2.0
/* What the kernels of the short convolution share: their arguments, and how a gate rounds.
 * Thread: device code; conv_params_of: the rank's owner. */
#ifndef SLUICE_CUDA_STATE_CONV_CUH
#define SLUICE_CUDA_STATE_CONV_CUH

#include "cuda/kernels/state/state.cuh"

enum { CHANNELS = 128 }; // threads of a block

/* Args of the kernel in one struct, since all instances share them. */
struct conv_params {
    struct state_view state;
    struct pass_view pass;
    const float *kernel, *bias;
    const void *x;
    void *out;
    int64_t x_stride, out_stride;
    const void *before, *after; // gates of x and of out; NULL: none
    int64_t before_stride, after_stride;
    float before_scale, after_scale;
    bool silu;
};

/* A value times its gate, rounded as the gate alone would store it. */
template <typename T> __device__ __forceinline__ float times(float x, T gate, float scale)
{
    return to_float(from_float<T>(x * (scale * to_float(gate))));
}

__device__ __forceinline__ float activated(const struct conv_params &p, float sum)
{
    return p.silu ? sum / (1.0f + expf(-sum)) : sum;
}

static inline struct conv_params conv_params_of(const struct state_rows_launch *l)
{
    struct conv_params p = {};
    const struct short_conv_args *a = l->conv;
    p.state = l->state;
    p.pass = l->pass;
    p.kernel = l->vectors.kernel;
    p.bias = l->vectors.bias;
    p.x = a->x.mem.p;
    p.x_stride = a->x.stride;
    p.out = a->out.mem.p;
    p.out_stride = a->out.stride;
    p.silu = a->silu;
    if (l->before) {
        p.before = l->before->gate.mem.p;
        p.before_stride = l->before->gate.stride;
        p.before_scale = l->before->scale;
    }
    if (l->gate) {
        p.after = l->gate->gate.mem.p;
        p.after_stride = l->gate->gate.stride;
        p.after_scale = l->gate->scale;
    }
    return p;
}

#endif
