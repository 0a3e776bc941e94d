// SPDX-License-Identifier: Apache-2.0
/* The layout of a recurrent layer's memory, and the rows on a sequence's own path.
 * Thread: device code. */
#ifndef SLUICE_CUDA_STATE_STATE_CUH
#define SLUICE_CUDA_STATE_STATE_CUH

#include "cuda/kernels/device/types.cuh"
#include "cuda/state.h"

__device__ __forceinline__ char *lane_of(const struct state_view &s, int32_t lane)
{
    return s.lanes + lane * s.lane_bytes;
}

/* The record of a boundary, which is at a multiple of the block size. */
__device__ __forceinline__ char *record_of(const struct state_view &s, int32_t lane,
                                           int32_t boundary)
{
    return lane_of(s, lane) + boundary / s.block % s.n_records * s.record_bytes;
}

/* The snapshot that also receives this boundary's record; NULL: none. */
__device__ __forceinline__ char *kept_of(const struct state_view &s, const struct pass_view &pass,
                                         int32_t lane, int32_t boundary)
{
    for (int32_t i = 0; i < pass.counts->n_keeps; i++) {
        if (pass.keeps[i].lane == lane && pass.keeps[i].pos == boundary) {
            return s.snapshots + (int64_t)(pass.keeps[i].slot - s.max_lanes) * s.record_bytes;
        }
    }
    return NULL;
}

template <typename T>
__device__ __forceinline__ T *keys_at(const struct state_view &s, int32_t lane, int32_t slot,
                                      int32_t key_head)
{
    const struct state_layer &g = s.geometry;
    const int64_t at = (int64_t)(slot % s.slots) * g.n_key_heads + key_head;
    return (T *)(lane_of(s, lane) + s.k_at) + at * g.key_dim;
}

template <typename T>
__device__ __forceinline__ T *values_at(const struct state_view &s, int32_t lane, int32_t slot,
                                        int32_t head)
{
    const struct state_layer &g = s.geometry;
    return (T *)(lane_of(s, lane) + s.u_at) +
           ((int64_t)(slot % s.slots) * g.n_heads + head) * g.value_dim;
}

__device__ __forceinline__ float *decays_at(const struct state_view &s, int32_t lane, int32_t slot,
                                            int32_t head)
{
    return (float *)(lane_of(s, lane) + s.g_at) +
           ((int64_t)(slot % s.slots) * s.geometry.n_heads + head) * s.decays;
}

template <typename T>
__device__ __forceinline__ T *inputs_at(const struct state_view &s, int32_t lane, int32_t slot)
{
    return (T *)(lane_of(s, lane) + s.conv_at) +
           (int64_t)(slot % s.conv_ring) * s.geometry.conv_width;
}

/* The factor of a gate of value x. The caller computes the sigmoid of x, exactly or fast. */
__device__ __forceinline__ float gate_factor(int32_t act, float x, float sigmoid)
{
    if (act == GATE_AS_IS) {
        return x;
    }
    if (act == GATE_SOFTPLUS) { // for large x they are equal in fp32
        return x > 20.0f ? x : log1pf(expf(x));
    }
    return act == GATE_SILU ? x * sigmoid : sigmoid;
}

/* How a layer computes decays from its inputs; beta_scale: of a delta's strengths. */
struct decay_law {
    float scale, bound, dt_min, dt_max, beta_scale;
};

static inline struct decay_law decay_law_of(const struct recurrence_args *a)
{
    struct decay_law law = {};
    law.scale = a->decay_scale;
    law.bound = a->decay_bound;
    law.dt_min = a->dt_min;
    law.dt_max = a->dt_max;
    law.beta_scale = a->beta_scale;
    return law;
}

template <typename T>
__device__ __forceinline__ float decay_input(const struct decay_law &law, T decay, float bias)
{
    return fmaf(law.scale, to_float(decay), bias);
}

/* softplus, clamped to the layer's range */
__device__ __forceinline__ float dt_of(const struct decay_law &law, float x)
{
    const float dt = fmaxf(x > 20.0f ? x : log1pf(expf(x)), law.dt_min);
    return law.dt_max > 0.0f ? fminf(dt, law.dt_max) : dt;
}

/* rate: exp(a_log) of the head */
__device__ __forceinline__ float log_decay(const struct decay_law &law, float rate, float x)
{
    return law.bound < 0.0f ? law.bound / (1.0f + expf(-rate * x)) : -rate * dt_of(law, x);
}

/* The row of this pass at position `pos` on the path of `row`; -1: it is from an earlier pass. */
__device__ __forceinline__ int32_t path_row(const struct pass_view &pass,
                                            const struct pass_seq &seq, int32_t row, int32_t pos)
{
    if (!seq.tree) {
        const int32_t at = seq.first_row + pos - seq.n_past;
        return pos >= seq.n_past ? at : -1;
    }
    const uint64_t *mask = pass.tree_mask + (int64_t)row * TREE_MASK_WORDS;
    for (int32_t node = 0; node < seq.n_rows; node++) {
        const int32_t at = seq.first_row + node;
        if (pass.rows[at].pos == pos && (at == row || (mask[node / 64] >> (node % 64) & 1))) {
            return at;
        }
    }
    return -1;
}

#endif
