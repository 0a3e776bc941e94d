// SPDX-License-Identifier: Apache-2.0
/* A mixture of experts for few rows, with its router and the shared expert beside it, in three
 * launches instead of up to ten:
 *
 *   scores  a warp per expert and one for the shared expert's gate
 *   up      a warp per feature of a row's pick, or of its shared expert: gate and up rows and the
 *           activation. Each block makes the picks itself from the scores, which takes less time
 *           than a launch.
 *   down    a warp per output feature adds up all of a row's picks, weighted, so nothing needs to
 * be sorted or joined
 *
 * Each warp reads whole weight rows, 16 bytes a lane. Bound by reading the weights of the picks;
 * two rows that pick one expert share it in the L2 cache. Before their waits, `scores` loads the
 * router, and `down` the weights of all picks. The scores that `down` reads before its wait are
 * complete, because `up` triggers only after its own wait. A row's bits do not depend on the number
 * of rows, but differ from those of moe.cu. The products of 2 to 8 rows are some.cu's, whose blocks
 * pick once and not in each of several waves. */
#include "cuda/kernels/moe/few.cuh"

enum { MOST_ROWS = 16, MOST_EXPERTS = 512, SCORE_WARPS = 2, UP_WARPS = 8, MOST_DOWN_WARPS = 8 };
enum { DOWN_BYTES = 100 << 10 }; // shared memory of a block of `down`: two fit a multiprocessor
enum { MOST_HIDDEN = 16384 };    // a row fits a block's shared memory

/* ---- scores ---------------------------------------------------------------------------------- */

/* The sums are those of route_scores_kernel. */
template <typename T>
__global__ void __launch_bounds__(32 * SCORE_WARPS)
    few_scores_kernel(struct few_params p, const float *router, const float *bias,
                      const float *gate)
{
    enum { AHEAD = 16, LANE = 4, WARP = 32 * LANE };
    const int lane = threadIdx.x & 31, e = blockIdx.x * SCORE_WARPS + (threadIdx.x >> 5);
    pdl_trigger(); // `up` fetches its code meanwhile, and waits for all of this kernel
    const bool is_gate = e == p.route.n_experts;
    const float *w = is_gate ? gate : router + (int64_t)e * p.hidden;
    float4 ahead[AHEAD];
    if (e < p.n_scores) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = i * WARP + lane * LANE;
            ahead[i] = at < p.hidden ? *(const float4 *)(w + at) : float4{0.0f, 0.0f, 0.0f, 0.0f};
        }
    }
    pdl_wait();
    if (e >= p.n_scores) {
        return;
    }
    const int32_t n_rows = n_real(p);
    for (int32_t row = blockIdx.y; row < n_rows; row += gridDim.y) {
        const T *x = (const T *)p.x + row * p.x_stride;
        float sum = 0.0f, xs[LANE], ws[LANE];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = i * WARP + lane * LANE;
            if (at < p.hidden) {
                load_4<true>(x, at, p.hidden, xs);
                sum = fmaf(xs[0], ahead[i].x, sum);
                sum = fmaf(xs[1], ahead[i].y, sum);
                sum = fmaf(xs[2], ahead[i].z, sum);
                sum = fmaf(xs[3], ahead[i].w, sum);
            }
        }
        for (int at = AHEAD * WARP + lane * LANE; at < p.hidden; at += WARP) {
            load_4<true>(x, at, p.hidden, xs);
            load_4<true>(w, at, p.hidden, ws);
#pragma unroll
            for (int j = 0; j < LANE; j++) {
                sum = fmaf(xs[j], ws[j], sum);
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            p.logits[row * p.n_scores + e] = sum + (bias && !is_gate ? bias[e] : 0.0f);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Elements [at, at + RUN) of a row of n; zeros past its end. */
template <typename T>
__device__ __forceinline__ void load_run(vec<T> &v, const T *row, int32_t at, int32_t n)
{
    if (at < n) {
        v.load(row + at);
    } else {
        *(uint4 *)v.v = uint4{0, 0, 0, 0};
    }
}

/* A feature's dot products with its gate and up rows; x is in shared memory. */
template <typename T>
__device__ __forceinline__ void dot_up(const T *x, const T *gate, const T *up, int32_t n,
                                       float *sum)
{
    enum { STEPS = 2 };
#pragma unroll 1
    for (int32_t first = (threadIdx.x & 31) * RUN; first < n; first += STEPS * STEP) {
        vec<T> g[STEPS], u[STEPS], v;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            load_run(g[i], gate, first + i * STEP, n);
            load_run(u[i], up, first + i * STEP, n);
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            load_run(v, x, first + i * STEP, n);
            sum[0] = dot_run(v, g[i], sum[0]);
            sum[1] = dot_run(v, u[i], sum[1]);
        }
    }
    sum[0] = warp_sum(sum[0]);
    sum[1] = warp_sum(sum[1]);
}

/* Copies a row of x, by all warps but the first. */
template <typename T>
__device__ __forceinline__ void copy_x(const struct few_params &p, int32_t row, T *to)
{
    const T *x = (const T *)p.x + row * p.x_stride;
    for (int32_t at = ((int32_t)threadIdx.x - 32) * RUN; at >= 0 && at < p.hidden;
         at += (UP_WARPS - 1) * STEP) {
        vec<T> v;
        v.load(x + at);
        v.store(to + at);
    }
}

/* After the wait, the block's first warp makes the row's picks and copies its x to shared memory.
 * The picks are also made once before the wait, from old scores, only to fetch the code. The first
 * block of a row stores them. */
template <typename T, int EACH>
__device__ __forceinline__ void pick_experts(const struct few_params &p, int32_t row, bool is,
                                             float *shared, int32_t *picks, T *x)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    struct pick mine = {0, 0.0f};
#pragma unroll 1
    for (int32_t round = row == 0 ? 0 : 1; round < 2; round++) { // later rows' blocks start late
        if (round == 1) {
            pdl_wait();
            pdl_trigger();
        }
        if (threadIdx.x < 32 && is) {
            mine = pick_row<EACH>(p.logits + row * p.n_scores, p.correction, p.expert_scale,
                                  p.route, shared);
        }
    }
    if (threadIdx.x < 32 && is && lane < k) {
        picks[lane] = mine.id;
        if (blockIdx.x == 0 && row < n_real(p)) {
            p.ids[row * k + lane] = mine.id;
            p.weights[row * k + lane] = mine.weight;
        }
    }
    copy_x(p, row, x);
    __syncthreads();
}

/* A block's shared memory: a row of x, then what the picks need. */
__host__ __device__ static inline int32_t up_bytes(const struct few_params &p)
{
    return p.hidden * (int32_t)sizeof(uint16_t) + pick_floats(p.route) * (int32_t)sizeof(float);
}

/* A block computes UP_WARPS features of one pick of a row, or of its shared expert. */
template <typename T, int KIND, int EACH>
__global__ void __launch_bounds__(32 * UP_WARPS, 6) few_up_kernel(struct few_params p)
{
    extern __shared__ __align__(16) float shared[];
    __shared__ int32_t picks[MOE_MAX_K];
    T *x = (T *)shared;
    const int32_t row = blockIdx.y, n_routed = p.route.k * p.ffn;
    const int32_t feature = blockIdx.x * UP_WARPS + (threadIdx.x >> 5);
    pick_experts<T, EACH>(p, row, (int32_t)blockIdx.x * UP_WARPS < n_routed,
                          (float *)(x + p.hidden), picks, x);
    if (row >= n_real(p) || feature >= p.n_acts) {
        return;
    }
    const bool routed = feature < n_routed;
    const int32_t slot = routed ? feature / p.ffn : p.route.k;
    const int32_t j = feature - slot * p.ffn, width = routed ? p.ffn : p.shared_ffn;
    const int64_t first_row = routed ? (int64_t)picks[slot] * 2 * width : 0;
    const T *gate = (const T *)(routed ? p.gate_up : p.shared_gate_up) + (first_row + j) * p.hidden;
    float sum[2] = {0.0f, 0.0f};
    dot_up(x, gate, gate + (int64_t)width * p.hidden, p.hidden, sum);
    if ((threadIdx.x & 31) == 0) {
        if (routed && p.up_bias) {
            sum[0] += p.up_bias[first_row + j];
            sum[1] += p.up_bias[first_row + width + j];
        }
        ((T *)p.act)[(int64_t)row * p.n_acts + feature] =
            from_float<T>(act_gated<KIND>(sum[0], sum[1], p.shape));
    }
}

/* A warp's output feature: its row of the `down` weight of each pick, then of the shared expert.
 * They arrive in shared memory, where each lane reads what it has copied. */
template <typename T>
__device__ __forceinline__ void copy_rows(const struct few_params &p, const struct pick *picks,
                                          int32_t feature, T *to)
{
#pragma unroll 1
    for (int32_t slot = 0; slot <= p.route.k; slot++) {
        const bool routed = slot < p.route.k;
        const int32_t width = routed ? p.ffn : p.shared_ffn;
        const int64_t row = (routed ? (int64_t)picks[slot].id * p.hidden : 0) + feature;
        const T *from = (const T *)(routed ? p.down : p.shared_down) + row * width;
#pragma unroll 2
        for (int32_t at = (threadIdx.x & 31) * RUN; at < width; at += STEP) {
            cp_async_16(to + slot * p.ffn + at, from + at, true);
        }
    }
}

template <typename T>
__device__ __forceinline__ float dot_down(const struct few_params &p, const struct pick *picks,
                                          const T *act, const T *rows)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int32_t slot = 0; slot <= p.route.k; slot++) {
        const int32_t width = slot < p.route.k ? p.ffn : p.shared_ffn;
        float dot = 0.0f;
#pragma unroll 2
        for (int32_t at = (threadIdx.x & 31) * RUN; at < width; at += STEP) {
            vec<T> a, w;
            a.load(act + slot * p.ffn + at);
            w.load(rows + slot * p.ffn + at);
            dot = dot_run(a, w, dot);
        }
        sum = fmaf(picks[slot].weight, dot, sum);
    }
    return warp_sum(sum);
}

template <typename T, int EACH>
__global__ void __launch_bounds__(32 * MOST_DOWN_WARPS, 2) few_down_kernel(struct few_params p)
{
    extern __shared__ __align__(16) float shared[]; // the rows of all warps; first, the scores
    __shared__ struct pick picks[MOE_MAX_K + 1];
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.y;
    const int32_t feature = blockIdx.x * (blockDim.x >> 5) + warp, k = p.route.k;
    const bool real = row < n_real(p), is = real && feature < p.hidden;
    if (warp == 0 && real) {
        const float *logits = p.logits + row * p.n_scores;
        const struct pick mine =
            pick_row<EACH>(logits, p.correction, p.expert_scale, p.route, shared);
        if (lane < k) {
            picks[lane] = mine;
        }
        if (lane == 0) {
            picks[k].weight = p.gate ? 1.0f / (1.0f + expf(-logits[p.n_scores - 1])) : 1.0f;
        }
    }
    __syncthreads();
    T *rows = (T *)shared + warp * p.n_acts;
    if (is) {
        copy_rows(p, picks, feature, rows);
    }
    cp_async_commit();
    pdl_wait();
    pdl_trigger();
    cp_async_wait<0>();
    if (!is) {
        return;
    }
    float sum = dot_down(p, picks, (const T *)p.act + (int64_t)row * p.n_acts, rows);
    if (lane == 0) {
        for (int32_t i = 0; p.down_bias && i < k; i++) {
            sum =
                fmaf(picks[i].weight, p.down_bias[(int64_t)picks[i].id * p.hidden + feature], sum);
        }
        ((T *)p.y)[row * p.y_stride + feature] = from_float<T>(sum);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

/* The rows of one output feature. */
static int32_t row_bytes(const struct moe_few *m)
{
    return (m->ffn->k * m->ffn->ffn + m->shared_ffn) * (int32_t)sizeof(uint16_t);
}

size_t k_moe_few_scratch(const struct moe_few *m)
{
    const size_t n = (size_t)m->ffn->n_rows;
    const size_t scores = n * (size_t)(m->ffn->n_experts + 1) * sizeof(float);
    const size_t acts = n * ((size_t)m->ffn->k * (size_t)m->ffn->ffn + (size_t)m->shared_ffn);
    return (scores + 15) / 16 * 16 + acts * dtype_bytes(m->ffn->x.dtype);
}

bool k_moe_few_takes(const struct moe_few *m)
{
    const struct moe_route_args *r = m->route;
    const struct moe_ffn_args *a = m->ffn;
    const struct moe_weights *w = &m->weights;
    const bool same = r->n_rows == a->n_rows && r->n_experts == a->n_experts && r->k == a->k &&
                      r->ids.p == a->ids.p && r->weights.p == a->weights.p &&
                      r->x.mem.p == a->x.mem.p && r->x.stride == a->x.stride;
    const bool plain = w->dtype == a->x.dtype && !w->gate_up_coded && !w->down_coded && !a->plain &&
                       !a->weigh_inputs && a->accumulate == (m->shared_ffn > 0);
    const bool runs = w->hidden % RUN == 0 && a->ffn % RUN == 0 && m->shared_ffn % RUN == 0 &&
                      vec_ok(a->x.mem.p, a->x.stride, w->hidden, 2);
    return a->x.dtype != DT_F32 && a->n_rows <= MOST_ROWS && a->n_experts <= MOST_EXPERTS &&
           a->k <= a->n_experts && a->k <= MOE_MAX_K && r->n_group <= 64 && same && plain && runs &&
           w->hidden <= MOST_HIDDEN && row_bytes(m) <= DOWN_BYTES;
}

static struct few_params params_of(const struct moe_few *m, void *scratch)
{
    const struct moe_ffn_args *a = m->ffn;
    struct few_params p = {};
    p.route = route_params_of(m->route);
    p.correction = m->correction;
    p.expert_scale = m->expert_scale;
    p.up_bias = m->weights.gate_up_bias;
    p.down_bias = a->partial ? NULL : m->weights.down_bias;
    p.real = m->real;
    p.gate = m->shared_gate != NULL;
    p.n_scores = a->n_experts + p.gate;
    p.n_acts = a->k * a->ffn + m->shared_ffn;
    p.logits = (float *)scratch;
    p.act = (char *)scratch +
            ((size_t)a->n_rows * (size_t)(a->n_experts + 1) * sizeof(float) + 15) / 16 * 16;
    p.ids = (int32_t *)a->ids.p;
    p.weights = (float *)a->weights.p;
    p.x = a->x.mem.p;
    p.x_stride = a->x.stride;
    p.y = a->y.mem.p;
    p.y_stride = a->y.stride;
    p.gate_up = m->weights.gate_up;
    p.down = m->weights.down;
    p.shared_gate_up = m->shared_gate_up;
    p.shared_down = m->shared_down;
    p.hidden = m->weights.hidden;
    p.ffn = a->ffn;
    p.shared_ffn = m->shared_ffn;
    p.shape = a->shape;
    return p;
}

static unsigned blocks(int32_t n, int32_t each)
{
    return (unsigned)((n + each - 1) / each);
}

template <typename T, int EACH>
static cudaError_t up(cudaStream_t stream, const struct few_params &p, enum activation kind)
{
    BY_ACTIVATION(kind, KIND,
                  return launch(few_up_kernel<T, KIND, EACH>,
                                dim3(blocks(p.n_acts, UP_WARPS), p.route.n_rows),
                                dim3(32 * UP_WARPS), (size_t)up_bytes(p), stream, p));
    return cudaErrorInvalidValue;
}

template <typename T, int EACH>
static cudaError_t down(cudaStream_t stream, const struct few_params &p, int32_t of_row)
{
    const int32_t most = of_row > 0 ? DOWN_BYTES / of_row : 1;
    const int32_t warps = most < MOST_DOWN_WARPS ? most : (int32_t)MOST_DOWN_WARPS;
    const int32_t picks = pick_floats(p.route) * (int32_t)sizeof(float), rows = warps * of_row;
    const cudaError_t e = cudaFuncSetAttribute(
        few_down_kernel<T, EACH>, cudaFuncAttributeMaxDynamicSharedMemorySize, DOWN_BYTES);
    return e != cudaSuccess
               ? e
               : launch(few_down_kernel<T, EACH>, dim3(blocks(p.hidden, warps), p.route.n_rows),
                        dim3(32 * warps), picks > rows ? picks : rows, stream, p);
}

template <typename T, int EACH>
static cudaError_t few(cudaStream_t stream, const struct moe_few *m, const struct few_params &p)
{
    cudaError_t e =
        launch(few_scores_kernel<T>, dim3(blocks(p.n_scores, SCORE_WARPS), p.route.n_rows),
               dim3(32 * SCORE_WARPS), 0, stream, p, m->router, m->router_bias, m->shared_gate);
    if (e == cudaSuccess && k_moe_some_takes(p)) {
        return k_moe_some(stream, p, m->ffn->x.dtype, m->ffn->kind);
    }
    e = e == cudaSuccess ? up<T, EACH>(stream, p, m->ffn->kind) : e;
    return e == cudaSuccess ? down<T, EACH>(stream, p, row_bytes(m)) : e;
}

template <typename T>
static cudaError_t few_by_experts(cudaStream_t stream, const struct moe_few *m,
                                  const struct few_params &p)
{
    return p.route.n_experts <= 256 ? few<T, 8>(stream, m, p) : few<T, 16>(stream, m, p);
}

cudaError_t k_moe_few(cudaStream_t stream, const struct moe_few *m, void *scratch)
{
    const struct few_params p = params_of(m, scratch);
    return m->ffn->x.dtype == DT_BF16 ? few_by_experts<bf16_t>(stream, m, p)
                                      : few_by_experts<f16_t>(stream, m, p);
}
