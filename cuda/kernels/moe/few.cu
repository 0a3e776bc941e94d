// SPDX-License-Identifier: Apache-2.0
/* A mixture of experts for few rows, with the norm before it, its router and the shared expert
 * beside it, in three launches instead of up to eleven:
 *
 *   scores  a warp or two per expert, and for the shared expert's gate; before that, every block
 *           norms the rows, which takes less time than a launch
 *   up      a warp per feature of a row's pick, or of its shared expert: its row, or its gate and
 * up rows, and the activation. Each block makes the picks itself from the scores, which takes less
 * time than a launch. down    a warp per output feature adds up all of a row's picks, weighted, so
 * nothing needs to be sorted or joined
 *
 * The blocks of `up` and of `down` fit the device at once, and their warps take feature after
 * feature: one block picks once. Each warp reads whole weight rows, 16 bytes a lane. Bound by
 * reading the weights of the picks; two rows that pick one expert share it in the L2 cache. Before
 * their waits, `scores` loads the router, and `down` as many weights as its rings hold, beside
 * `up`. The scores that `down` reads before its wait are complete, because `up` triggers only after
 * its own wait. A row's bits do not depend on the number of rows, but differ from those of moe.cu.
 * The products of 2 to 8 rows are some.cu's, with bits of their own. */
#include "cuda/kernels/moe/few_down.cuh"
#include "cuda/kernels/moe/few_scores.cuh"

enum { MOST_ROWS = 16, MOST_EXPERTS = 512 };
enum { MOST_HIDDEN = 16384 };         // a row fits a block's shared memory
enum { UP_WARPS = 8, UP_BLOCKS = 3 }; // of `up`: blocks on a multiprocessor
/* Shared memory of a block of `down`: so that it fits beside blocks of `up` if it can; at most. */
enum { DOWN_BYTES = 190 << 10, MOST_DOWN_BYTES = 216 << 10 };

/* ---- up -------------------------------------------------------------------------------------- */

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

/* A feature's dot products with its rows of the weight, which are `apart` elements apart: the
 * gate's and the other factor's, or only one. x is in shared memory. */
template <typename T, int ROWS>
__device__ __forceinline__ void dot_up(const T *x, const T *w, int64_t apart, int32_t n,
                                       float (&sum)[2])
{
    enum { STEPS = 8 / ROWS };
#pragma unroll 1
    for (int32_t first = (threadIdx.x & 31) * RUN; first < n; first += STEPS * STEP) {
        vec<T> row[ROWS][STEPS], v;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                load_run(row[r][i], w + r * apart, first + i * STEP, n);
            }
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            load_run(v, x, first + i * STEP, n);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                sum[r] = dot_run(v, row[r][i], sum[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sum[r] = warp_sum(sum[r]);
    }
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

/* After the wait, the block's first warp makes the row's picks, and the others copy its x to shared
 * memory. The picks are also made once before the wait, from old scores, only to fetch the code.
 * The first block of a row stores them. */
template <typename T, int EACH>
__device__ __forceinline__ void pick_experts(const struct few_params &p, int32_t row, float *shared,
                                             int32_t *picks, T *x)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    struct pick mine = {0, 0.0f};
#pragma unroll 1
    for (int32_t round = row == 0 ? 0 : 1; round < 2; round++) { // later rows' blocks start late
        if (round == 1) {
            pdl_wait();
            pdl_trigger();
        }
        if (threadIdx.x < 32) {
            mine = pick_row<EACH>(p.logits + row * p.n_scores, p.correction, p.expert_scale,
                                  p.route, shared);
        }
    }
    if (threadIdx.x < 32 && lane < k) {
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

/* The result of a feature of one pick or of the shared expert. */
template <typename T, int KIND, bool GATED>
__device__ __forceinline__ float up_feature(const struct few_params &p, const T *x,
                                            const int32_t *picks, int32_t feature)
{
    constexpr int ROWS = GATED ? 2 : 1;
    const bool routed = feature < p.route.k * p.ffn;
    const int32_t slot = routed ? feature / p.ffn : p.route.k;
    const int32_t j = feature - slot * p.ffn, width = routed ? p.ffn : p.shared_ffn;
    const int64_t first_row = routed ? (int64_t)picks[slot] * ROWS * width : 0;
    const T *w = (const T *)(routed ? p.gate_up : p.shared_gate_up) + (first_row + j) * p.hidden;
    float sum[2] = {0.0f, 0.0f};
    dot_up<T, ROWS>(x, w, (int64_t)width * p.hidden, p.hidden, sum);
    if (routed && p.up_bias) {
        sum[0] += p.up_bias[first_row + j];
        sum[1] += GATED ? p.up_bias[first_row + width + j] : 0.0f;
    }
    return GATED ? act_gated<KIND>(sum[0], sum[1], p.shape) : act_plain<KIND>(sum[0]);
}

/* The launch fits the device; a warp takes every n-th feature of its block's row. Registers are
 * limited so that a block of `down` fits beside the blocks of this kernel. */
template <typename T, int KIND, int EACH, bool GATED>
__global__ void __launch_bounds__(32 * UP_WARPS, UP_BLOCKS + 1) few_up_kernel(struct few_params p)
{
    extern __shared__ __align__(16) float shared[];
    __shared__ int32_t picks[MOE_MAX_K];
    T *x = (T *)shared;
    const int32_t row = blockIdx.y, step = gridDim.x * UP_WARPS;
    pick_experts<T, EACH>(p, row, (float *)(x + p.hidden), picks, x);
    if (row >= n_real(p)) {
        return;
    }
    if (blockIdx.x == 0) {
        store_added<T>(p, row);
    }
#pragma unroll 1
    for (int32_t f = (threadIdx.x >> 5) * gridDim.x + blockIdx.x; f < p.n_acts; f += step) {
        const float act = up_feature<T, KIND, GATED>(p, x, picks, f);
        if ((threadIdx.x & 31) == 0) {
            ((T *)p.act)[(int64_t)row * p.n_acts + f] = from_float<T>(act);
        }
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

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
                      r->x.dtype == a->x.dtype && (!m->shared_gate || r->x.mem.p == a->x.mem.p);
    const bool plain = w->dtype == a->x.dtype && !w->gate_up_coded && !w->down_coded &&
                       (!a->plain || a->kind == ACT_RELU2) && !a->weigh_inputs &&
                       a->accumulate == (m->shared_ffn > 0);
    const int32_t pieces = a->k * ((a->ffn + STEP - 1) / STEP) + (m->shared_ffn + STEP - 1) / STEP;
    const bool runs = w->hidden % RUN == 0 && a->ffn % RUN == 0 && m->shared_ffn % RUN == 0 &&
                      vec_ok(a->x.mem.p, a->x.stride, w->hidden, 2) &&
                      vec_ok(r->x.mem.p, r->x.stride, w->hidden, 2);
    return a->x.dtype != DT_F32 && a->n_rows <= MOST_ROWS && a->n_experts <= MOST_EXPERTS &&
           a->k <= a->n_experts && a->k <= MOE_MAX_K && r->n_group <= 64 && same && plain && runs &&
           w->hidden <= MOST_HIDDEN && pieces <= MOST_PIECES;
}

bool k_moe_few_takes_norm(const struct moe_few *m, const struct norm_args *norm)
{
    const struct moe_ffn_args *a = m->ffn;
    const int32_t hidden = m->weights.hidden;
    return norm->out.mem.p == a->x.mem.p && m->route->x.mem.p == a->x.mem.p &&
           norm->x.dtype == a->x.dtype && norm->n_rows == a->n_rows && norm->width == hidden &&
           norm->kind == NORM_RMS && !norm->bias && norm->delta_sums.n == 0 &&
           norm->x.mem.p != norm->out.mem.p && vec_ok(norm->x.mem.p, norm->x.stride, hidden, 2) &&
           (!norm->delta.mem.p || vec_ok(norm->delta.mem.p, norm->delta.stride, hidden, 2));
}

static struct few_norm norm_of(const struct moe_few *m)
{
    const struct norm_args *n = m->norm;
    return n ? few_norm{n->x.mem.p,       n->delta.mem.p,  m->norm_weight,
                        n->x.stride,      n->delta.stride, n->eps,
                        n->weight_offset, n->delta_scale,  n->x_scale != 0.0f ? n->x_scale : 1.0f}
             : few_norm{};
}

static struct few_params params_of(const struct moe_few *m, void *scratch)
{
    const struct moe_ffn_args *a = m->ffn;
    struct few_params p = {};
    p.norm = norm_of(m);
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
    p.route_x = m->route->x.mem.p;
    p.route_stride = m->route->x.stride;
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

/* The blocks of a row, if each_sm of them fit a multiprocessor and the rows share the device. */
static unsigned blocks_of_row(const struct few_params &p, int32_t n, int32_t each, int32_t each_sm,
                              int32_t n_sms)
{
    const int32_t needed = (n + each - 1) / each, fit = each_sm * n_sms / p.route.n_rows;
    return (unsigned)(needed < fit || fit < 1 ? needed : fit);
}

template <typename T, int KIND, int EACH, bool GATED>
static cudaError_t launch_up(cudaStream_t stream, const struct few_params &p, int32_t n_sms)
{
    const unsigned n = blocks_of_row(p, p.n_acts, UP_WARPS, UP_BLOCKS, n_sms);
    return launch(few_up_kernel<T, KIND, EACH, GATED>, dim3(n, p.route.n_rows), dim3(32 * UP_WARPS),
                  (size_t)up_bytes(p), stream, p);
}

template <typename T, int EACH>
static cudaError_t up(cudaStream_t stream, const struct few_params &p, const struct moe_few *m)
{
    if (m->ffn->plain) {
        return launch_up<T, ACT_RELU2, EACH, false>(stream, p, m->n_sms);
    }
    BY_ACTIVATION(m->ffn->kind, KIND, return launch_up<T, KIND, EACH, true>(stream, p, m->n_sms));
    return cudaErrorInvalidValue;
}

/* The number of warps with which the features divide most evenly among all warps. */
static int32_t down_warps(const struct few_params &p, int32_t n_sms)
{
    int32_t best = MOST_DOWN_WARPS, least = INT32_MAX;
    const int32_t blocks = n_sms / p.route.n_rows > 0 ? n_sms / p.route.n_rows : 1;
    for (int32_t w = MOST_DOWN_WARPS; w >= LEAST_DOWN_WARPS; w--) {
        const int32_t rounds = (p.hidden + w * blocks - 1) / (w * blocks);
        if (rounds * w < least) { // the features of a block's slots
            least = rounds * w;
            best = w;
        }
    }
    return best;
}

template <typename T, int EACH, int STAGES>
static cudaError_t launch_down(cudaStream_t stream, const struct few_params &p, int32_t warps,
                               int32_t n_sms)
{
    const auto kernel = few_down_kernel<T, EACH, STAGES>;
    const int32_t bytes = act_bytes(p) + warps * STAGES * STAGE_BYTES;
    const cudaError_t e = // the attribute is per device, and each rank has one device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e != cudaSuccess
               ? e
               : launch(kernel, dim3(blocks_of_row(p, p.hidden, warps, 1, n_sms), p.route.n_rows),
                        dim3(32 * warps), (size_t)bytes, stream, p);
}

template <typename T, int EACH>
static cudaError_t down(cudaStream_t stream, const struct few_params &p, int32_t n_sms)
{
    const int32_t warps = down_warps(p, n_sms), act = act_bytes(p), each = warps * STAGE_BYTES;
    int32_t stages = (DOWN_BYTES - act) / each;
    stages = stages < 3 ? (MOST_DOWN_BYTES - act) / each : stages;
    switch (stages) {
    case 0:
    case 1: return cudaErrorInvalidValue;
    case 2: return launch_down<T, EACH, 2>(stream, p, warps, n_sms);
    case 3: return launch_down<T, EACH, 3>(stream, p, warps, n_sms);
    case 4: return launch_down<T, EACH, 4>(stream, p, warps, n_sms);
    default: return launch_down<T, EACH, 5>(stream, p, warps, n_sms);
    }
}

template <typename T, int HALVES, bool NORM>
static cudaError_t launch_scores(cudaStream_t stream, const struct moe_few *m,
                                 const struct few_params &p)
{
    const int32_t warps = NORM ? NORM_WARPS : SCORE_WARPS, each = warps / HALVES;
    return launch(few_scores_kernel<T, HALVES, NORM>,
                  dim3((p.n_scores + each - 1) / each, p.route.n_rows), dim3(32 * warps),
                  NORM ? (size_t)p.hidden * sizeof(T) : 0, stream, p, m->router, m->router_bias,
                  m->shared_gate);
}

template <typename T>
static cudaError_t scores(cudaStream_t stream, const struct moe_few *m, const struct few_params &p)
{
    if (p.hidden > SPAN) {
        return m->norm ? launch_scores<T, 2, true>(stream, m, p)
                       : launch_scores<T, 2, false>(stream, m, p);
    }
    return m->norm ? launch_scores<T, 1, true>(stream, m, p)
                   : launch_scores<T, 1, false>(stream, m, p);
}

template <typename T, int EACH>
static cudaError_t few(cudaStream_t stream, const struct moe_few *m, const struct few_params &p)
{
    cudaError_t e = scores<T>(stream, m, p);
    if (e == cudaSuccess && !m->ffn->plain && k_moe_some_takes(p)) {
        return k_moe_some(stream, p, m->ffn->x.dtype, m->ffn->kind);
    }
    e = e == cudaSuccess ? up<T, EACH>(stream, p, m) : e;
    return e == cudaSuccess ? down<T, EACH>(stream, p, m->n_sms) : e;
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
