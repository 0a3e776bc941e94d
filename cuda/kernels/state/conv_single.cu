// SPDX-License-Identifier: Apache-2.0
/* The short convolution, with its gates, of passes in which every sequence has one row. A thread
 * has two channels of a row. Taps, the inputs of earlier passes and where they are do not depend on
 * the preceding product and are loaded before the wait, so only one load follows it. Gives the same
 * bits as conv.cu. Bound by latency. */
#include "cuda/conv_single.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/state/conv.cuh"

template <typename T> struct alignas(2 * sizeof(T)) two {
    T v[2];
};

template <typename T>
__device__ __forceinline__ struct two<T> two_at(const void *rows, int64_t stride, int32_t row,
                                                int32_t channel)
{
    return *(const struct two<T> *)((const T *)rows + row * stride + channel);
}

/* The channels' inputs, oldest first. */
template <typename T, int K> struct single_inputs {
    struct two<T> in[K];

    /* Those of earlier passes; zeros before the sequence's start. */
    __device__ __forceinline__ void load(const struct conv_params &p, int32_t lane, int32_t pos,
                                         int32_t channel)
    {
#pragma unroll
        for (int j = 0; j < K - 1; j++) {
            const int32_t from = pos - (K - 1 - j);
            in[j] = {from_float<T>(0.0f), from_float<T>(0.0f)};
            if (from >= 0) {
                in[j] = *(const struct two<T> *)(inputs_at<T>(p.state, lane, from) + channel);
            }
        }
    }
    /* The inputs before a boundary are part of its record. Single rows keep no snapshot (struct
     * state_keep). */
    __device__ __forceinline__ void keep(const struct conv_params &p, int32_t lane,
                                         int32_t boundary, int32_t channel) const
    {
        const struct state_view &s = p.state;
        T *tail = (T *)(record_of(s, lane, boundary) + s.s_bytes) + channel;
#pragma unroll
        for (int j = 1; j < K; j++) {
            *(struct two<T> *)(tail + (int64_t)(j - 1) * s.geometry.conv_width) = in[j];
        }
    }
};

template <typename T, int K>
__global__ void __launch_bounds__(CHANNELS)
    conv_single_kernel(const __grid_constant__ struct conv_params p)
{
    const int32_t width = p.state.geometry.conv_width, s = (int32_t)blockIdx.y;
    const int32_t channel = 2 * (int32_t)(blockIdx.x * CHANNELS + threadIdx.x);
    const bool has = channel < width && s < p.pass.counts->n_seqs;
    struct single_inputs<T, K> x = {
    };
    float2 taps[K] = {}, sum = {};
    struct pass_row row = {};
    int32_t at = 0;
    if (has) {
#pragma unroll
        for (int j = 0; j < K; j++) {
            taps[j] = *(const float2 *)(p.kernel + (int64_t)j * width + channel);
        }
        sum = p.bias ? *(const float2 *)(p.bias + channel) : sum;
        at = p.pass.seqs[s].first_row;
        row = p.pass.rows[at];
        x.load(p, row.lane, row.pos, channel);
    }
    pdl_wait();
    pdl_trigger();
    if (!has) {
        return;
    }
    x.in[K - 1] = two_at<T>(p.x, p.x_stride, at, channel);
    struct two<T> before = {}, after = {}, out;
    if (p.before) {
        before = two_at<T>(p.before, p.before_stride, at, channel);
    }
    if (p.after) {
        after = two_at<T>(p.after, p.after_stride, at, channel);
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float f = c == 0 ? sum.x : sum.y;
        if (p.before) {
            x.in[K - 1].v[c] =
                from_float<T>(times<T>(to_float(x.in[K - 1].v[c]), before.v[c], p.before_scale));
        }
#pragma unroll
        for (int j = 0; j < K; j++) {
            f = fmaf(to_float(x.in[j].v[c]), c == 0 ? taps[j].x : taps[j].y, f);
        }
        out.v[c] = from_float<T>(activated(p, f));
        if (p.after) {
            out.v[c] = from_float<T>(times<T>(to_float(out.v[c]), after.v[c], p.after_scale));
        }
    }
    *(struct two<T> *)((T *)p.out + at * p.out_stride + channel) = out;
    *(struct two<T> *)(inputs_at<T>(p.state, row.lane, row.slot_pos) + channel) = x.in[K - 1];
    if ((row.pos + 1) % p.state.block == 0) {
        x.keep(p, row.lane, row.pos + 1, channel);
    }
}

/* True if rows of T can be read two elements at a time. */
static bool are_twos(const void *p, int64_t stride)
{
    return ((uintptr_t)p | (uintptr_t)(stride * 2)) % 4 == 0;
}

extern "C" bool k_conv_single_takes(const struct state_rows_launch *l)
{
    const struct conv_params p = conv_params_of(l);
    const struct state_layer &g = l->state.geometry;
    return (l->state.dtype == DT_BF16 || l->state.dtype == DT_F16) &&
           (g.conv_kernel == 3 || g.conv_kernel == 4) && g.conv_width % 2 == 0 &&
           are_twos(p.x, p.x_stride) && are_twos(p.out, p.out_stride) &&
           are_twos(p.before, p.before_stride) && are_twos(p.after, p.after_stride) &&
           ((uintptr_t)p.kernel | (uintptr_t)p.bias) % 8 == 0 && l->state.conv_at % 4 == 0 &&
           l->state.lane_bytes % 4 == 0 && l->state.record_bytes % 4 == 0;
}

template <typename T>
static cudaError_t conv_single(cudaStream_t stream, const struct state_rows_launch *l,
                               const struct conv_params &p)
{
    const struct state_layer &g = l->state.geometry;
    const dim3 grid((g.conv_width / 2 + CHANNELS - 1) / CHANNELS, l->n_seqs), block(CHANNELS);
    return g.conv_kernel == 3 ? launch(conv_single_kernel<T, 3>, grid, block, 0, stream, p)
                              : launch(conv_single_kernel<T, 4>, grid, block, 0, stream, p);
}

extern "C" cudaError_t k_conv_single(cudaStream_t stream, const struct state_rows_launch *l)
{
    const struct conv_params p = conv_params_of(l);
    return l->state.dtype == DT_BF16 ? conv_single<bf16_t>(stream, l, p)
                                     : conv_single<f16_t>(stream, l, p);
}
