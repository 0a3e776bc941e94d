// SPDX-License-Identifier: Apache-2.0
/* The parameters of the kernels for few rows of a sequence: rows.cu, few.cu and
 * single.cu. Thread: device code. */
#ifndef SLUICE_CUDA_STATE_ROWS_CUH
#define SLUICE_CUDA_STATE_ROWS_CUH

#include "cuda/kernels/state/state.cuh"

/* All get the same args; unused ones are 0. */
struct rows_params {
    struct state_view state;
    struct pass_view pass;
    struct state_vectors vectors;
    const void *x, *decay, *beta, *gate;
    void *out;
    int64_t x_stride, decay_stride, beta_stride, gate_stride, out_stride;
    int32_t q_at, k_at, v_at, window;
    struct decay_law law;
    float gate_scale, eps;
    int32_t gate_act;
    bool gate_first, per_group, silu, few_alone, several;
};

/* With a fused convolution rows come from its input, and with a gate they go to its
 * output. */
static inline struct rows_params rows_params_of(const struct state_rows_launch *l)
{
    const struct recurrence_args *a = l->a;
    const struct gate_args *g = l->gate;
    const struct tensor *x = l->conv ? &l->conv->x : &a->x;
    const struct tensor *out = g ? &g->out : &a->out;
    struct rows_params p = {};
    p.state = l->state;
    p.pass = l->pass;
    p.vectors = l->vectors;
    p.x = x->mem.p;
    p.x_stride = x->stride;
    p.decay = a->decay.mem.p;
    p.decay_stride = a->decay.stride;
    p.beta = a->beta.mem.p;
    p.beta_stride = a->beta.stride;
    p.gate = g ? g->gate.mem.p : NULL;
    p.gate_stride = g ? g->gate.stride : 0;
    p.out = out->mem.p;
    p.out_stride = out->stride;
    p.q_at = a->q_at;
    p.k_at = a->k_at;
    p.v_at = a->v_at;
    p.window = l->window;
    p.law = decay_law_of(a);
    p.few_alone = l->few_alone;
    p.several = l->several;
    p.silu = l->conv && l->conv->silu;
    if (g) {
        p.gate_scale = g->scale;
        p.eps = g->eps;
        p.gate_act = g->act;
        p.gate_first = g->gate_first;
        p.per_group = g->per_group;
    }
    return p;
}

/* The convolution's channel for element c of a head's queries, keys and values, which are counted
 * in this order. */
__device__ __forceinline__ int32_t channel_of(const struct rows_params &p, int32_t key_head,
                                              int32_t head, int32_t c)
{
    const int32_t dk = p.state.geometry.key_dim, dv = p.state.geometry.value_dim;
    if (c < dk) {
        return p.q_at + key_head * dk + c;
    }
    if (c < 2 * dk) {
        return p.k_at + key_head * dk + c - dk;
    }
    return p.v_at + head * dv + c - 2 * dk;
}

__device__ __forceinline__ float opened_by(const struct rows_params &p, float gate)
{
    const float x = p.gate_scale * gate;
    return gate_factor(p.gate_act, x, 1.0f / (1.0f + expf(-x)));
}

#endif
