// SPDX-License-Identifier: Apache-2.0
/* The recurrence of Mamba-2 layers for sequences with one row in the pass, as in decoding: heads of
 * the shapes listed in `launch_single`, in 16 bits, from the convolution to the output gate.
 *
 * With many sequences it is bound by reading S. So a warp reads S and the values of its head
 * straight into registers, without barriers. The products of the row's query with the block's keys
 * are the same for all heads of a key head, so a thread block computes them once for its heads.
 *
 * With few sequences there are too few heads to occupy the device, so several warps share one: each
 * has a part of its rows, and their sums are joined in the end. The order of the sums depends on
 * the number of parts, and differs from that of rows.cu. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/state/single_end.cuh"

/* ---- the past ---------------------------------------------------------------------------------
 */

template <int DV>
__device__ __forceinline__ void load_s(const float *from, float4 (&s)[walk<DV>::LOADS])
{
#pragma unroll
    for (int i = 0; i < walk<DV>::LOADS; i++) {
        s[i] = __ldcs((const float4 *)from + i * 32 + (threadIdx.x & 31));
    }
}

/* Loads the values of those of the block's rows [t, t + U_ROWS) that are before `end`. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void load_values(const struct mine<T, DK, DV> &h, int32_t t, int32_t end,
                                            uint2 (&u)[walk<DV>::U_LOADS])
{
    using of = walk<DV>;
#pragma unroll
    for (int i = 0; i < of::U_LOADS; i++) {
        const int32_t row = t + of::row(i);
        u[i] = uint2{0, 0};
        if (row < end) {
            u[i] = __ldcs((const uint2 *)(h.values + row * h.stride + of::column(i)));
        }
    }
}

/* Prefetches what the warp will read into the L2 cache. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void prefetch(const struct mine<T, DK, DV> &h, int32_t t, int32_t end)
{
    constexpr int LINE = 128, VALUES = DV * (int)sizeof(T);
    const int32_t lane = threadIdx.x & 31;
    const char *s = (const char *)h.s;
    for (int32_t i = lane * LINE; s && i < h.n * DV * (int32_t)sizeof(float); i += 32 * LINE) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(s + i));
    }
    for (int32_t i = t + lane; i < end; i += 32) {
        const char *values = (const char *)(h.values + i * h.stride);
        for (int32_t j = 0; j < VALUES; j += LINE) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(values + j));
        }
    }
}

/* Sums the products with the warp's rows of S and with values [t, end), for each lane's columns. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void
add_past(const struct single_work &w, const struct mine<T, DK, DV> &h,
         struct single_room<T, DK, DV> &m, float decayed, int32_t t, int32_t end)
{
    using of = walk<DV>;
    const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float sum[of::GROUPS][EACH];
#pragma unroll
    for (int j = 0; j < of::GROUPS * EACH; j++) {
        sum[j / EACH][j % EACH] = 0.0f;
    }
#pragma unroll 1
    for (int32_t d = 0; h.s && d < h.n; d += of::ROWS) {
        float4 s[of::LOADS];
        load_s<DV>(h.s + d * DV, s);
#pragma unroll
        for (int i = 0; i < of::LOADS; i++) {
            const float q = m.q[h.first + d + of::row(i)];
            float *to = sum[i % of::GROUPS];
            to[0] = fmaf(q, s[i].x, to[0]);
            to[1] = fmaf(q, s[i].y, to[1]);
            to[2] = fmaf(q, s[i].z, to[2]);
            to[3] = fmaf(q, s[i].w, to[3]);
        }
    }
#pragma unroll
    for (int j = 0; j < of::GROUPS * EACH; j++) {
        sum[j / EACH][j % EACH] *= decayed;
    }
#pragma unroll 1
    for (int32_t first = t; first < end; first += of::U_ROWS) {
        uint2 u[of::U_LOADS];
        load_values(h, first, end, u);
#pragma unroll
        for (int i = 0; i < of::U_LOADS; i++) {
            const float weight = m.weight[warp][first + of::row(i)];
            const struct four<T> x = *(const struct four<T> *)&u[i];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                float *to = sum[i % of::GROUPS];
                to[e] = fmaf(weight, to_float(x.v[e]), to[e]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < of::GROUPS; j++) {
        *(float4 *)&m.sum[warp][(j * 32 + lane) * EACH] = *(const float4 *)sum[j];
    }
}

/* ---- the row ----------------------------------------------------------------------------------
 */

/* The warp's inputs of the row from the preceding product. */
struct fresh {
    float x; // of the decay
    uint2 gates;
};

template <typename T, int DK, int DV>
__device__ __forceinline__ struct fresh load_fresh(const struct rows_params &p,
                                                   const struct single_work &w,
                                                   const struct mine<T, DK, DV> &h)
{
    const int32_t row = w.seq.first_row, lane = threadIdx.x & 31;
    struct fresh in = {0.0f, {0, 0}};
    if (w.nth >= w.n_heads) {
        return in;
    }
    in.x = decay_input(p.law, ((const T *)p.decay + row * p.decay_stride)[w.head], h.dt_bias);
    if (p.gate && w.part == 0 && lane < walk<DV>::RUNS) {
        const T *gate = (const T *)p.gate + row * p.gate_stride + w.head * DV;
        in.gates = ((const uint2 *)gate)[lane];
    }
    return in;
}

/* Stores the row's G, and weighs the scores of earlier rows by their decays. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void weigh(const struct rows_params &p, const struct single_work &w,
                                      const struct mine<T, DK, DV> &h,
                                      struct single_room<T, DK, DV> &m, float g)
{
    const int32_t lane = threadIdx.x & 31;
    float *weight = m.weight[threadIdx.x >> 5];
    if (w.part == 0 && lane == 0) {
        *decays_at(p.state, w.seq.lane, w.pos, w.head) = g;
    }
    weight[lane] = lane < w.at ? m.score[lane] * __expf(g - h.g_past[0]) : 0.0f;
    weight[lane + 32] = lane + 32 < w.at ? m.score[lane + 32] * __expf(g - h.g_past[1]) : 0.0f;
}

/* Adds the sums of all the head's warps, for the lane's four columns, and finishes the row. */
template <typename T, int DK, int DV>
__device__ __forceinline__ void
finish_head(const struct rows_params &p, const struct single_work &w,
            const struct mine<T, DK, DV> &h, const struct single_room<T, DK, DV> &m, float dt,
            uint2 gates)
{
    if ((int32_t)(threadIdx.x & 31) >= walk<DV>::RUNS) {
        return;
    }
    float y[EACH] = {};
    for (int32_t part = 0; part < w.parts; part++) {
        add_sums<DV>(m.sum[(threadIdx.x >> 5) + part], walk<DV>::PERIOD, y);
    }
    finish_row<T, DK, DV>(p, w, h, m, dt, gates, y);
}

template <typename T, int DK, int DV>
__device__ __forceinline__ void run_single(const struct rows_params &p, const struct single_work &w,
                                           struct single_room<T, DK, DV> &m, bool waits)
{
    const bool idle = w.nth >= w.n_heads;
    const int32_t n = BLOCK / w.parts, t = w.part * n, end = min(w.at, t + n);
    load_keys(p, w, m);
    struct mine<T, DK, DV> h = {
    };
    if (!idle) {
        h = find_mine<T, DK, DV>(p, w);
        if (w.parts > 1) { // with one part, blocks might read more than the cache holds
            prefetch(h, t, end);
        }
    }
    struct channels<DK, DV> c;
    convolve_past<T>(p, w, c);
    if (waits) {
        pdl_wait();
        pdl_trigger();
    }
    const struct fresh in = load_fresh(p, w, h);
    convolve_row(p, w, c, m);
    cp_async_wait<0>();
    __syncthreads();
    make_scores(w, m);
    const float dt = dt_of(p.law, in.x), g = h.g_before + log_decay(p.law, h.rate, in.x);
    __syncthreads();
    if (!idle) {
        weigh(p, w, h, m, g);
        __syncwarp();
        add_past(w, h, m, __expf(g), t, end);
    }
    if (w.parts > 1) {
        __syncthreads();
    }
    __syncwarp();
    if (!idle && w.part == 0) {
        finish_head(p, w, h, m, dt, in.gates);
    }
    if (w.at == BLOCK - 1) {
        end_block(p, w, h, m, g, dt);
    }
}

template <typename T, int DK, int DV>
__global__ void __launch_bounds__(THREADS, DV == 80 ? 2 : 3)
    state_single_kernel(const __grid_constant__ struct rows_params p, int32_t parts)
{
    extern __shared__ __align__(16) char memory[];
    struct single_room<T, DK, DV> &m = *(struct single_room<T, DK, DV> *)memory;
    const struct state_layer &g = p.state.geometry;
    const int32_t per_key = g.n_heads / g.n_key_heads, per_block = WARPS / parts;
    const int32_t blocks = (per_key + per_block - 1) / per_block;
    const int32_t key_head = blockIdx.x / blocks, first = blockIdx.x % blocks * per_block;
    const int32_t warp = threadIdx.x >> 5, nth = warp / parts;
    bool waits = true;
    for (int32_t i = blockIdx.y; i < p.pass.counts->n_seqs; i += gridDim.y) {
        const struct pass_seq seq = p.pass.seqs[i];
        if (seq.n_rows != 1 || seq.tree) {
            continue;
        }
        const int32_t at = seq.n_past % BLOCK, n_heads = min(per_block, per_key - first);
        const struct single_work w = {seq,     key_head,       key_head * per_key + first + nth,
                                      nth,     warp % parts,   parts,
                                      n_heads, first == 0,     seq.n_past,
                                      at,      seq.n_past - at};
        if (!waits) {
            __syncthreads(); // all threads have read the previous sequence's data
        }
        run_single(p, w, m, waits);
        waits = false;
    }
    if (waits) {
        pdl_wait();
        pdl_trigger();
    }
}

/* The number of warps per head: enough to occupy the device. */
static int32_t parts_for(const struct state_rows_launch *l)
{
    enum { ENOUGH = 132 * 8 };
    const int64_t heads = (int64_t)l->n_seqs * l->state.geometry.n_heads;
    int32_t parts = 1;
    while (parts < WARPS && heads * parts < ENOUGH) {
        parts *= 2;
    }
    return parts;
}

template <typename T, int DK, int DV>
static cudaError_t launch_shape(cudaStream_t stream, const struct state_rows_launch *l)
{
    enum { MOST_BLOCKS = 1 << 15 }; // with more sequences the blocks loop
    const struct state_layer *g = &l->state.geometry;
    const int32_t parts = parts_for(l), per_block = WARPS / parts;
    const int32_t per_key = g->n_heads / g->n_key_heads;
    const int32_t columns = g->n_key_heads * ((per_key + per_block - 1) / per_block);
    const int32_t most = columns < MOST_BLOCKS ? MOST_BLOCKS / columns : 1;
    const size_t n_bytes = sizeof(struct single_room<T, DK, DV>);
    const cudaError_t e = cudaFuncSetAttribute(
        state_single_kernel<T, DK, DV>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    if (e != cudaSuccess) {
        return e;
    }
    return launch(state_single_kernel<T, DK, DV>,
                  dim3(columns, l->n_seqs < most ? l->n_seqs : most), dim3(THREADS), n_bytes,
                  stream, rows_params_of(l), parts);
}

/* True if the kernel has heads of this shape. */
static bool has_shape(int32_t dk, int32_t dv)
{
    return (dk == 128 && (dv == 64 || dv == 80)) || (dk == 256 && dv == 128);
}

template <typename T>
static cudaError_t launch_single(cudaStream_t stream, const struct state_rows_launch *l)
{
    switch (l->state.geometry.value_dim) {
    case 64: return launch_shape<T, 128, 64>(stream, l);
    case 80: return launch_shape<T, 128, 80>(stream, l);
    case 128: return launch_shape<T, 256, 128>(stream, l);
    default: return cudaErrorInvalidValue;
    }
}

/* True if runs of four elements in the tensor's rows are aligned. */
static bool in_fours(const struct tensor *t)
{
    return t->stride % EACH == 0 && (uintptr_t)t->mem.p % (EACH * 2) == 0;
}

extern "C" bool k_state_single_takes(const struct state_rows_launch *l)
{
    const struct state_layer *g = &l->state.geometry;
    const struct gate_args *gate = l->gate;
    const bool shape = g->kind == STATE_DECAY && !g->per_channel && g->conv_kernel == TAPS &&
                       l->state.block == BLOCK && has_shape(g->key_dim, g->value_dim);
    const bool ops = l->conv && (!gate || (!l->vectors.norm && !gate->per_group));
    return shape && ops && l->state.dtype != DT_F32 && (!gate || in_fours(&gate->gate)) &&
           in_fours(gate ? &gate->out : &l->a->out);
}

extern "C" cudaError_t k_state_single(cudaStream_t stream, const struct state_rows_launch *l)
{
    return l->state.dtype == DT_BF16 ? launch_single<bf16_t>(stream, l)
                                     : launch_single<f16_t>(stream, l);
}
