// SPDX-License-Identifier: Apache-2.0
/* The short convolution of layers that have no other state; with few rows it also applies the gates
 * of its input and output. Also a kernel for gates alone.
 *
 * One thread per channel of a sequence processes its rows in order: only it reads and writes the
 * channel's inputs, so no synchronisation is needed. Bound by latency for long prompts (the loads
 * of a row are independent, and eight rows are in flight), by the launch for a decoding row. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/state/conv.cuh"

enum { MOST_TAPS = 16 };

template <typename T>
__device__ __forceinline__ float gated(float x, const void *gate, int64_t stride, float scale,
                                       int32_t row, int32_t channel)
{
    return gate ? times<T>(x, ((const T *)gate + row * stride)[channel], scale) : x;
}

/* The convolution's input at a row of the pass. */
template <typename T>
__device__ __forceinline__ float input_of(const struct conv_params &p, int32_t row, int32_t channel)
{
    return gated<T>(to_float(((const T *)p.x + row * p.x_stride)[channel]), p.before,
                    p.before_stride, p.before_scale, row, channel);
}

/* The inputs at positions pos - (kernel - 1) to pos on the row's path. */
template <typename T>
__device__ static void gather_inputs(const struct conv_params &p, const struct pass_seq &seq,
                                     int32_t row, int32_t channel, float *in)
{
    const int32_t kernel = p.state.geometry.conv_kernel, pos = p.pass.rows[row].pos;
    for (int32_t i = 0; i < kernel; i++) {
        const int32_t from = pos - (kernel - 1 - i), at = path_row(p.pass, seq, row, from);
        in[i] = 0.0f;
        if (at >= 0) {
            in[i] = input_of<T>(p, at, channel);
        } else if (from >= 0) {
            in[i] = to_float(inputs_at<T>(p.state, seq.lane, from)[channel]);
        }
    }
}

/* The inputs before a boundary are part of the record, so that a sequence can continue from
 * there. */
template <typename T>
__device__ static void keep_tail(const struct conv_params &p, const struct pass_seq &seq,
                                 int32_t boundary, int32_t channel, const float *in)
{
    const struct state_view &s = p.state;
    char *const records[2] = {record_of(s, seq.lane, boundary),
                              kept_of(s, p.pass, seq.lane, boundary)};
    for (int32_t j = 0; j < 2; j++) {
        for (int32_t i = 1; records[j] && i < s.geometry.conv_kernel; i++) {
            T *tail = (T *)(records[j] + s.s_bytes) + (int64_t)(i - 1) * s.geometry.conv_width;
            tail[channel] = from_float<T>(in[i]);
        }
    }
}

/* One thread per channel; blockIdx.y takes sequences in turn. The last inputs are kept in
 * registers. */
template <typename T> __global__ void short_conv_kernel(struct conv_params p)
{
    const struct state_layer &g = p.state.geometry;
    const int32_t channel = blockIdx.x * CHANNELS + threadIdx.x;
    float in[MOST_TAPS];
    pdl_wait();
    pdl_trigger();
    for (int32_t s = blockIdx.y; channel < g.conv_width && s < p.pass.counts->n_seqs;
         s += gridDim.y) {
        const struct pass_seq seq = p.pass.seqs[s];
        for (int32_t i = 0; i < seq.n_rows; i++) {
            const int32_t row = seq.first_row + i;
            if (i == 0 || seq.tree) {
                gather_inputs<T>(p, seq, row, channel, in);
            } else {
                for (int32_t j = 1; j < g.conv_kernel; j++) {
                    in[j - 1] = in[j];
                }
                in[g.conv_kernel - 1] = input_of<T>(p, row, channel);
            }
            float sum = p.bias ? p.bias[channel] : 0.0f;
            for (int32_t j = 0; j < g.conv_kernel; j++) {
                sum = fmaf(in[j], p.kernel[(int64_t)j * g.conv_width + channel], sum);
            }
            sum = to_float(from_float<T>(activated(p, sum)));
            ((T *)p.out + row * p.out_stride)[channel] =
                from_float<T>(gated<T>(sum, p.after, p.after_stride, p.after_scale, row, channel));
            inputs_at<T>(p.state, seq.lane, p.pass.rows[row].slot_pos)[channel] =
                from_float<T>(in[g.conv_kernel - 1]);
            if ((p.pass.rows[row].pos + 1) % p.state.block == 0) {
                keep_tail<T>(p, seq, p.pass.rows[row].pos + 1, channel, in);
            }
        }
    }
}

extern "C" bool k_short_conv_takes_gate(const struct gate_args *a)
{
    return !a->norm && !a->per_group && a->act == GATE_AS_IS;
}

extern "C" cudaError_t k_short_conv(cudaStream_t stream, const struct state_rows_launch *l)
{
    enum { BLOCKS = 2048 };
    const int32_t columns = (l->state.geometry.conv_width + CHANNELS - 1) / CHANNELS;
    const int32_t most = columns < BLOCKS ? BLOCKS / columns : 1;
    const struct conv_params p = conv_params_of(l);
    BY_DTYPE(l->state.dtype, T,
             return launch(short_conv_kernel<T>, dim3(columns, l->n_seqs < most ? l->n_seqs : most),
                           dim3(CHANNELS), 0, stream, p));
    return cudaErrorInvalidValue;
}

/* ---- gates: a block is one group of a row -----------------------------------------------------
 */

/* Args of the gate kernels in one struct, as for conv_params. */
struct gate_params {
    const void *x, *gate;
    void *out;
    int64_t x_stride, gate_stride, out_stride;
    const float *norm;
    int32_t group, act;
    bool gate_first, per_group, wide;
    float scale, eps;
};

__device__ __forceinline__ float opened(const struct gate_params &p, float gate)
{
    const float x = p.scale * gate;
    return gate_factor(p.act, x, 1.0f / (1.0f + expf(-x)));
}

template <typename T>
__device__ __forceinline__ float opened_by(const struct gate_params &p, int32_t i)
{
    const T *gate = (const T *)p.gate + blockIdx.x * p.gate_stride;
    return opened(p, to_float(gate[p.per_group ? blockIdx.y : blockIdx.y * p.group + i]));
}

/* One block per row and group: the norm needs the group's sum of squares. */
template <typename T> __global__ void gate_kernel(struct gate_params p)
{
    extern __shared__ __align__(16) char memory[];
    float *shared = (float *)memory;
    pdl_wait();
    pdl_trigger();
    const int64_t first = (int64_t)blockIdx.y * p.group;
    const T *x = (const T *)p.x + blockIdx.x * p.x_stride + first;
    T *out = (T *)p.out + blockIdx.x * p.out_stride + first;
    float scale = 1.0f;
    if (p.norm) {
        float square = 0.0f;
        for (int32_t i = threadIdx.x; i < p.group; i += blockDim.x) {
            const float y = to_float(x[i]) * (p.gate_first ? opened_by<T>(p, i) : 1.0f);
            square = fmaf(y, y, square);
        }
        scale = 1.0f / sqrtf(block_sum(square, shared) / (float)p.group + p.eps);
    }
    for (int32_t i = threadIdx.x; i < p.group; i += blockDim.x) {
        const float weight = p.norm ? p.norm[p.wide ? first + i : i] : 1.0f;
        out[i] = from_float<T>(to_float(x[i]) * scale * weight * opened_by<T>(p, i));
    }
}

/* Uses few instructions, because with many rows the arithmetic takes as long as the memory
 * accesses. */
__device__ __forceinline__ float opened_fast(const struct gate_params &p, float gate)
{
    const float x = p.scale * gate;
    float e, open;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(open) : "f"(1.0f + e));
    return gate_factor(p.act, x, open);
}

/* Several groups per warp: LANES lanes have one, and each has 16 bytes of it. For groups of 64, 128
 * and 256; n: the number of runs of 16 bytes of all rows, of which a row has per_row. */
enum { GATE_THREADS = 256, RUN = 8 };

template <typename T, int LANES>
__global__ void __launch_bounds__(GATE_THREADS)
    gate_groups_kernel(struct gate_params p, uint32_t n, uint32_t per_row)
{
    const uint32_t item = blockIdx.x * GATE_THREADS + threadIdx.x;
    const uint32_t row = item / per_row, first = (item - row * per_row) * RUN;
    alignas(16) float weight[RUN] = {};
    if (p.norm) { // no kernel writes it
        const float *from = p.norm + (p.wide ? first : first % (LANES * RUN));
        *(float4 *)weight = *(const float4 *)from;
        *(float4 *)(weight + 4) = *(const float4 *)(from + 4);
    }
    pdl_wait();
    pdl_trigger();
    const bool is = item < n; // lanes without a run join the sums of their warp
    const T *gate = (const T *)p.gate + row * p.gate_stride;
    vec<T> x = {}, gates = {};
    if (is) {
        x.load((const T *)p.x + row * p.x_stride + first);
    }
    if (is && !p.per_group) {
        gates.load(gate + first);
    }
    const float of_group = is && p.per_group ? to_float(gate[first / (LANES * RUN)]) : 0.0f;
    float open[RUN], square = 0.0f;
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        open[i] = opened_fast(p, p.per_group ? of_group : to_float(gates.v[i]));
        const float y = to_float(x.v[i]) * (p.gate_first ? open[i] : 1.0f);
        square = fmaf(y, y, square);
    }
    if (p.norm) {
#pragma unroll
        for (int mask = LANES / 2; mask > 0; mask /= 2) {
            square += __shfl_xor_sync(0xffffffffu, square, mask);
        }
        const float scale = rsqrtf(square * (1.0f / (LANES * RUN)) + p.eps);
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            open[i] *= scale * weight[i];
        }
    }
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        x.v[i] = from_float<T>(to_float(x.v[i]) * open[i]);
    }
    if (is) {
        x.store((T *)p.out + row * p.out_stride + first);
    }
}

/* One block per row and group, 16 bytes per thread: for wider groups, which a block reads once. */
template <typename T> __global__ void __launch_bounds__(1024) gate_wide_kernel(struct gate_params p)
{
    constexpr int N = vec<T>::N;
    __shared__ float shared[32];
    const int32_t i = (int32_t)threadIdx.x * N;
    const int64_t first = (int64_t)blockIdx.y * p.group + i;
    const bool has = i < p.group;
    float weight[N];
#pragma unroll
    for (int j = 0; j < N && has; j += 4) {
        *(float4 *)(weight + j) = *(const float4 *)(p.norm + (p.wide ? first : i) + j);
    }
    pdl_wait();
    pdl_trigger();
    vec<T> x, gate;
    float y[N], square = 0.0f;
    if (has) {
        x.load((const T *)p.x + blockIdx.x * p.x_stride + first);
        gate.load((const T *)p.gate + blockIdx.x * p.gate_stride + first);
    }
#pragma unroll
    for (int j = 0; j < N && has; j++) {
        const float open = opened_fast(p, to_float(gate.v[j]));
        y[j] = to_float(x.v[j]) * (p.gate_first ? open : 1.0f);
        square = fmaf(y[j], y[j], square);
        weight[j] *= p.gate_first ? 1.0f : open;
    }
    const float scale = 1.0f / sqrtf(block_sum(square, shared) / (float)p.group + p.eps);
    if (has) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            x.v[j] = from_float<T>(y[j] * scale * weight[j]);
        }
        x.store((T *)p.out + blockIdx.x * p.out_stride + first);
    }
}

/* True if the groups are 16-bit and fit a block; this does not depend on the rows. */
static bool in_blocks(const struct gate_args *a, const float *norm)
{
    enum { MOST = 1024 * 8 };
    return norm && (uintptr_t)norm % 16 == 0 && !a->per_group && a->x.dtype != DT_F32 &&
           a->group % 8 == 0 && a->group <= MOST &&
           vec_ok(a->gate.mem.p, a->gate.stride, a->width, 2) &&
           vec_ok(a->x.mem.p, a->x.stride, a->width, 2) &&
           vec_ok(a->out.mem.p, a->out.stride, a->width, 2);
}

template <typename T>
static cudaError_t gate_wide(cudaStream_t stream, const struct gate_params &p,
                             const struct gate_args *a)
{
    const int32_t threads = (a->group / vec<T>::N + 31) / 32 * 32;
    return launch(gate_wide_kernel<T>, dim3(a->n_rows, a->width / a->group), dim3(threads), 0,
                  stream, p);
}

template <typename T, int LANES>
static cudaError_t gate_groups(cudaStream_t stream, const struct gate_params &p, int32_t n_rows,
                               int32_t width)
{
    const uint32_t per_row = (uint32_t)width / RUN, n = (uint32_t)n_rows * per_row;
    return launch(gate_groups_kernel<T, LANES>, dim3((n + GATE_THREADS - 1) / GATE_THREADS),
                  dim3(GATE_THREADS), 0, stream, p, n, per_row);
}

/* True if groups are 16-bit and fit a warp; this does not depend on the rows. */
static bool in_groups(const struct gate_args *a, int32_t group)
{
    const bool gates = a->per_group || vec_ok(a->gate.mem.p, a->gate.stride, a->width, 2);
    return a->x.dtype != DT_F32 && (group == 64 || group == 128 || group == 256) && gates &&
           vec_ok(a->x.mem.p, a->x.stride, a->width, 2) &&
           vec_ok(a->out.mem.p, a->out.stride, a->width, 2);
}

template <typename T>
static cudaError_t gate_by_group(cudaStream_t stream, const struct gate_params &p,
                                 const struct gate_args *a)
{
    switch (p.group) {
    case 64: return gate_groups<T, 8>(stream, p, a->n_rows, a->width);
    case 128: return gate_groups<T, 16>(stream, p, a->n_rows, a->width);
    default: return gate_groups<T, 32>(stream, p, a->n_rows, a->width);
    }
}

extern "C" cudaError_t k_gate(cudaStream_t stream, const struct gate_args *a, const float *norm,
                              bool wide)
{
    /* Without a norm, groups only define the gates, so wider groups serve as well. */
    const bool any = !norm && !a->per_group && a->width % 1024 == 0;
    const int32_t in_warps = any ? 256 : a->group;
    struct gate_params p = {};
    p.x = a->x.mem.p;
    p.gate = a->gate.mem.p;
    p.out = a->out.mem.p;
    p.x_stride = a->x.stride;
    p.gate_stride = a->gate.stride;
    p.out_stride = a->out.stride;
    p.norm = norm;
    p.group = any ? 1024 : a->group;
    p.act = a->act;
    p.gate_first = a->gate_first;
    p.per_group = a->per_group;
    p.wide = wide;
    p.scale = a->scale;
    p.eps = a->eps;
    if (in_groups(a, in_warps) && (uintptr_t)norm % 16 == 0) {
        p.group = in_warps;
        return a->x.dtype == DT_BF16 ? gate_by_group<bf16_t>(stream, p, a)
                                     : gate_by_group<f16_t>(stream, p, a);
    }
    if (in_blocks(a, norm)) {
        return a->x.dtype == DT_BF16 ? gate_wide<bf16_t>(stream, p, a)
                                     : gate_wide<f16_t>(stream, p, a);
    }
    const int32_t threads = p.group >= 256 ? 256 : (p.group + 31) / 32 * 32;
    BY_DTYPE(a->x.dtype, T,
             return launch(gate_kernel<T>, dim3(a->n_rows, a->width / p.group), dim3(threads),
                           32 * sizeof(float), stream, p));
    return cudaErrorInvalidValue;
}
