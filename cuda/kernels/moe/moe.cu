// SPDX-License-Identifier: Apache-2.0
/* Mixture-of-experts layers: rows, sorted by expert, go through two grouped products, the first one
 * fused with the activation. Then each row's results are added in expert order. The work list is
 * built on the device, so one captured graph serves every routing. route.cu makes the picks. A
 * block computes one output tile of one expert. Bound by reading the experts' weights while each
 * has few rows, by the tensor cores otherwise. */
#include "cuda/coded.h"
#include "cuda/experts.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/moe/gated.cuh"
#include "cuda/kernels/moe/plan.cuh"
#include "cuda/kernels/moe/sm90.cuh"
#include "cuda/moe_fixed.h"

/* ---- grouped products on the tensor cores -------------------------------------------------- */

/* The parameters that are the same for all experts. */
struct group_params {
    int32_t k, ffn, hidden; // k: picks that share a row of x
    int64_t x_stride;
    struct act_shape shape;
    const float *weights; // by pick, multiplied into the experts' inputs; NULL: none
    int32_t kind;         // activation of experts without a gate
    bool rounds;          // rounds as moe/sm90.cu does
};

enum { NO_GATE = -1 }; // template value that replaces an activation kind

/* Activations of experts that have no gate. */
__device__ static float act_of(int32_t kind, float x)
{
    switch (kind) {
    case ACT_SILU: return act_plain<ACT_SILU>(x);
    case ACT_GELU_TANH: return act_plain<ACT_GELU_TANH>(x);
    case ACT_GELU: return act_plain<ACT_GELU>(x);
    case ACT_RELU2: return act_plain<ACT_RELU2>(x);
    default: return act_plain<ACT_RELU>(x);
    }
}

/* Rows of an expert's first matrix. */
template <int KIND> __device__ __forceinline__ int64_t first_rows(const struct group_params &p)
{
    return KIND == NO_GATE ? p.ffn : 2 * (int64_t)p.ffn;
}

/* The test of KIND is resolved at compile time. */
template <int KIND>
__device__ __forceinline__ float expert_act(const struct group_params &p, float gate, float up)
{
    if constexpr (KIND == NO_GATE) {
        return act_of(p.kind, gate);
    } else {
        return p.rounds ? gated<KIND>(gate, up, p.shape) : act_gated<KIND>(gate, up, p.shape);
    }
}

/* act[place] = act(x[row of place] gate_up^T): fragments of gate and up rows alternate, so that a
 * thread holds both halves of each pair. With NO_GATE all rows are of one kind. */
template <typename T, int KIND, int BM, int BN, int BK, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM *WN * 32)
    moe_gate_up_kernel(const T *x, const T *gate_up, const float *bias, struct group_params p,
                       struct moe_scratch s)
{
    extern __shared__ __align__(16) unsigned char smem[];
    mma_tile<T, BM, BN, BK, WM, WN, STAGES, true> tile;
    pdl_wait();
    pdl_trigger();
    if ((int)blockIdx.y >= *s.n_tiles) {
        return;
    }
    const int expert = s.tile_expert[blockIdx.y], first = s.tile_first[blockIdx.y];
    constexpr bool GATED = KIND != NO_GATE;
    const int64_t first_row = expert * first_rows<KIND>(p);
    const int last = s.first[expert + 1], n0 = blockIdx.x * (GATED ? BN / 2 : BN);
    const T *w = gate_up + first_row * p.hidden;
    auto weight_row = [&](int j) { // weight row of tile column j; -1: none
        if (!GATED) {
            return n0 + j < p.ffn ? n0 + j : -1;
        }
        const int n = n0 + (j >> 4) * 8 + (j & 7);
        if (n >= p.ffn) {
            return -1;
        }
        return j & 8 ? p.ffn + n : n;
    };
    tile.run((T *)smem, p.hidden,
             [&](int i) {
                 return first + i < last ? x + s.sorted[first + i] / p.k * p.x_stride
                                         : (const T *)0;
             },
             [&](int j) {
                 const int row = weight_row(j);
                 return row >= 0 ? w + (int64_t)row * p.hidden : (const T *)0;
             });
    T *act = (T *)s.act;
#pragma unroll
    for (int mf = 0; mf < tile.MF; mf++) {
#pragma unroll
        for (int nf = 0; nf < tile.NF; nf += GATED ? 2 : 1) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int place = first + tile.row(mf, e >> 1), j = tile.col(nf) + (e & 1);
                const int row = weight_row(j);
                if (place < last && row >= 0) {
                    float g = tile.acc[mf][nf][e], u = GATED ? tile.acc[mf][nf + GATED][e] : 0.0f;
                    if (p.rounds) {
                        g = rounded<T>(g);
                        u = rounded<T>(u);
                    }
                    if (bias) {
                        g += bias[first_row + row];
                        u += GATED ? bias[first_row + p.ffn + row] : 0.0f;
                    }
                    if (p.weights) { // the product is linear, so weighting its output equals
                                     // weighting its input
                        g *= p.weights[s.sorted[place]];
                        u *= p.weights[s.sorted[place]];
                    }
                    act[(int64_t)place * p.ffn + row] = from_float<T>(expert_act<KIND>(p, g, u));
                }
            }
        }
    }
}

/* out[pick] = act[place] down^T (+ bias): out is indexed by pick, not by place. */
template <typename T, int BM, int BN, int BK, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM *WN * 32)
    moe_down_kernel(const T *down, const float *bias, struct group_params p, struct moe_scratch s)
{
    extern __shared__ __align__(16) unsigned char smem[];
    mma_tile<T, BM, BN, BK, WM, WN, STAGES, true> tile;
    pdl_wait();
    pdl_trigger();
    if ((int)blockIdx.y >= *s.n_tiles) {
        return;
    }
    const int expert = s.tile_expert[blockIdx.y], first = s.tile_first[blockIdx.y];
    const int last = s.first[expert + 1], n0 = blockIdx.x * BN;
    const T *w = down + (int64_t)expert * p.hidden * p.ffn;
    const T *act = (const T *)s.act;
    tile.run((T *)smem, p.ffn,
             [&](int i) { return first + i < last ? act + (int64_t)(first + i) * p.ffn : NULL; },
             [&](int j) { return n0 + j < p.hidden ? w + (int64_t)(n0 + j) * p.ffn : NULL; });
#pragma unroll
    for (int mf = 0; mf < tile.MF; mf++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int place = first + tile.row(mf, half);
            if (place >= last) {
                continue;
            }
            float *to = s.out + (int64_t)s.sorted[place] * p.hidden;
#pragma unroll
            for (int nf = 0; nf < tile.NF; nf++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int n = n0 + tile.col(nf) + e;
                    if (n < p.hidden) {
                        const float sum = tile.acc[mf][nf][half * 2 + e];
                        const float *b = bias ? bias + (int64_t)expert * p.hidden + n : NULL;
                        to[n] = p.rounds ? rounded_out<T>(sum, b) : sum + (b ? *b : 0.0f);
                    }
                }
            }
        }
    }
}

/* ---- plain products: any dtype and alignment, a warp per element --------------------------- */

template <typename T, typename W> __device__ float warp_dot(const T *x, const W *w, int n)
{
    float sum = 0.0f;
    for (int i = threadIdx.x & 31; i < n; i += 32) {
        sum = fmaf(to_float(x[i]), to_float(w[i]), sum);
    }
    return warp_sum(sum);
}

/* One warp per pick and feature: for types and widths that tensor cores do not support. */
template <typename T, typename W, int KIND>
__global__ void moe_gate_up_plain_kernel(const T *x, const W *gate_up, const float *bias,
                                         const int32_t *ids, struct group_params p, T *act)
{
    pdl_wait();
    const int64_t pick = blockIdx.x;
    const int j = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5), expert = ids[pick];
    if (j >= p.ffn) {
        return;
    }
    constexpr bool GATED = KIND != NO_GATE;
    const int64_t first_row = expert * first_rows<KIND>(p);
    const W *w = gate_up + first_row * p.hidden;
    const T *row = x + pick / p.k * p.x_stride;
    float g = warp_dot(row, w + (int64_t)j * p.hidden, p.hidden);
    float u = GATED ? warp_dot(row, w + (int64_t)(p.ffn + j) * p.hidden, p.hidden) : 0.0f;
    if (bias) {
        g += bias[first_row + j];
        u += GATED ? bias[first_row + p.ffn + j] : 0.0f;
    }
    if (p.weights) {
        g *= p.weights[pick];
        u *= p.weights[pick];
    }
    if ((threadIdx.x & 31) == 0) {
        act[pick * p.ffn + j] = from_float<T>(expert_act<KIND>(p, g, u));
    }
}

/* Applies the activation in place, after a product of quantised experts without a gate. */
template <typename T>
__global__ void moe_act_kernel(T *act, int64_t n, struct group_params p, struct moe_scratch s,
                               int32_t n_experts)
{
    pdl_wait();
    pdl_trigger();
    n = min(n, s.first[n_experts] * (int64_t)p.ffn);
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        act[i] = from_float<T>(act_of(p.kind, to_float(act[i])));
    }
}

/* The second product. It writes one fp32 row per pick. */
template <typename T, typename W>
__global__ void moe_down_plain_kernel(const T *act, const W *down, const float *bias,
                                      const int32_t *ids, struct group_params p, float *out)
{
    pdl_wait();
    const int64_t pick = blockIdx.x;
    const int n = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5), expert = ids[pick];
    if (n >= p.hidden) {
        return;
    }
    const float y =
        warp_dot(act + pick * p.ffn, down + ((int64_t)expert * p.hidden + n) * p.ffn, p.ffn);
    if ((threadIdx.x & 31) == 0) {
        out[pick * p.hidden + n] = y + (bias ? bias[(int64_t)expert * p.hidden + n] : 0.0f);
    }
}

/* ---- the sum over a row's picks ------------------------------------------------------------ */

/* One block per row. Picks are added in order of expert id, so that the sum does not
 * depend on the router's order. */
template <typename T>
__global__ void moe_combine_kernel(T *y, int64_t y_stride, const float *out, const int32_t *ids,
                                   const float *weights, int32_t k, int32_t hidden, bool accumulate,
                                   const int32_t *real, int32_t row_offset)
{
    __shared__ int32_t order[MOE_MAX_K];
    __shared__ float weight[MOE_MAX_K];
    pdl_wait();
    pdl_trigger();
    const int64_t row = blockIdx.x;
    if (real && row + row_offset >= *real) {
        return;
    }
    if ((int)threadIdx.x < k) {
        const int32_t id = ids[row * k + threadIdx.x];
        int place = 0;
        for (int j = 0; j < k; j++) {
            const int32_t other = ids[row * k + j];
            place += other < id || (other == id && j < (int)threadIdx.x);
        }
        order[place] = (int32_t)threadIdx.x;
        weight[place] = weights ? weights[row * k + threadIdx.x] : 1.0f;
    }
    __syncthreads();
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < hidden; i += gridDim.y * blockDim.x) {
        float sum = 0.0f;
        for (int j = 0; j < k; j++) {
            sum = fmaf(weight[j], out[(row * k + order[j]) * hidden + i], sum);
        }
        T *to = y + row * y_stride + i;
        *to = from_float<T>(accumulate ? to_float(*to) + sum : sum);
    }
}

/* The maximum number of tiles in the work list: at most one tile per expert is partly filled. */
static int max_tiles(const struct moe_ffn_args *a, int tile)
{
    const int n_picks = a->n_rows * a->k;
    const int full = n_picks / tile + (n_picks < a->n_experts ? n_picks : a->n_experts);
    return full < n_picks ? full : n_picks;
}

/* The arguments of a product with quantised experts, which uses the work list. */
static struct coded_args coded_of(const struct moe_ffn_args *a, const struct moe_scratch *s,
                                  int tile)
{
    struct coded_args c = {};
    c.x_dtype = a->x.dtype;
    c.sorted = s->sorted;
    c.first = s->first;
    c.tile_expert = s->tile_expert;
    c.tile_first = s->tile_first;
    c.n_list = s->n_tiles;
    c.n_places = max_tiles(a, tile);
    c.tile_rows = tile;
    return c;
}

/* The first product with quantised experts, over rows sorted by expert. */
template <typename T>
static cudaError_t coded_gate_up(cudaStream_t stream, const struct moe_ffn_args *a,
                                 const struct moe_weights *w, const struct moe_scratch *s,
                                 const struct group_params &p, int tile)
{
    enum { MOST_BLOCKS = 2048, THREADS = 256 };
    struct coded_args c = coded_of(a, s, tile);
    c.x = a->x.mem.p;
    c.x_stride = a->x.stride;
    c.x_is_sorted = true;
    c.k = p.k;
    c.y = s->act;
    c.y_stride = a->ffn;
    c.y_dtype = a->x.dtype;
    c.bias = w->gate_up_bias;
    c.gated = !a->plain;
    c.weights = a->weigh_inputs ? (const float *)a->weights.p : NULL;
    c.activation = a->kind;
    c.limit = a->shape.limit;
    c.alpha = a->shape.alpha;
    const cudaError_t e = gemm_coded(stream, w->gate_up_coded, &c);
    if (e != cudaSuccess || !a->plain) {
        return e;
    }
    const int64_t n = (int64_t)a->n_rows * a->k * a->ffn, blocks = (n + THREADS - 1) / THREADS;
    return launch(moe_act_kernel<T>, dim3(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS),
                  dim3(THREADS), 0, stream, (T *)s->act, n, p, *s, a->n_experts);
}

/* The second product with quantised experts. It writes its rows in the order of picks. */
static cudaError_t coded_down(cudaStream_t stream, const struct moe_ffn_args *a,
                              const struct moe_weights *w, const struct moe_scratch *s, int tile)
{
    struct coded_args c = coded_of(a, s, tile);
    c.x = s->act;
    c.x_stride = a->ffn;
    c.y = s->out;
    c.y_stride = w->hidden;
    c.y_is_sorted = true;
    c.y_dtype = DT_F32;
    c.bias = a->partial ? (const float *)0 : w->down_bias;
    return gemm_coded(stream, w->down_coded, &c);
}

/* Rounds what the first product has written, if the second one's inputs are rounded. */
static cudaError_t round_act(cudaStream_t stream, const struct moe_ffn_args *a,
                             const struct moe_rounding *r, const struct moe_scratch *s)
{
    return r && r->down.rule ? moe_round_act(stream, a, r, s) : cudaSuccess;
}

/* Both products on tensor cores; the tile's sizes are template arguments. */
template <typename T, int KIND, int BM, int BN, int BK, int WM, int WN, int STAGES>
static cudaError_t grouped(cudaStream_t stream, const struct moe_ffn_args *a,
                           const struct moe_weights *w, const struct moe_rounding *r,
                           const struct moe_scratch *s, const struct group_params &p)
{
    constexpr int WIDTH = KIND == NO_GATE ? BN : BN / 2;
    typedef mma_tile<T, BM, BN, BK, WM, WN, STAGES, true> tile;
    auto gate_up = moe_gate_up_kernel<T, KIND, BM, BN, BK, WM, WN, STAGES>;
    auto down = moe_down_kernel<T, BM, BN, BK, WM, WN, STAGES>;
    const cudaError_t allowed[] = {
        // The attribute is per device, and ranks have one device each.
        cudaFuncSetAttribute(gate_up, cudaFuncAttributeMaxDynamicSharedMemorySize, tile::SMEM),
        cudaFuncSetAttribute(down, cudaFuncAttributeMaxDynamicSharedMemorySize, tile::SMEM)};
    if (allowed[0] != cudaSuccess || allowed[1] != cudaSuccess) {
        return cudaErrorInvalidValue;
    }
    const unsigned n_tiles = (unsigned)max_tiles(a, BM);
    const dim3 block(tile::THREADS);
    cudaError_t e = w->gate_up_coded ? coded_gate_up<T>(stream, a, w, s, p, BM)
                                     : launch(gate_up, dim3((a->ffn + WIDTH - 1) / WIDTH, n_tiles),
                                              block, tile::SMEM, stream, (const T *)a->x.mem.p,
                                              (const T *)w->gate_up, w->gate_up_bias, p, *s);
    if (e == cudaSuccess) {
        e = round_act(stream, a, r, s);
    }
    if (e != cudaSuccess) {
        return e;
    }
    return w->down_coded
               ? coded_down(stream, a, w, s, BM)
               : launch(down, dim3((w->hidden + BN - 1) / BN, n_tiles), block, tile::SMEM, stream,
                        (const T *)w->down, a->partial ? (const float *)0 : w->down_bias, p, *s);
}

/* Both products without tensor cores. */
template <typename T, typename W, int KIND>
static cudaError_t plain(cudaStream_t stream, const struct moe_ffn_args *a,
                         const struct moe_weights *w, const struct moe_scratch *s,
                         const struct group_params &p)
{
    const int n_picks = a->n_rows * a->k, warps = 8;
    const cudaError_t e =
        launch(moe_gate_up_plain_kernel<T, W, KIND>, dim3(n_picks, (a->ffn + warps - 1) / warps),
               dim3(32 * warps), 0, stream, (const T *)a->x.mem.p, (const W *)w->gate_up,
               w->gate_up_bias, (const int32_t *)a->ids.p, p, (T *)s->act);
    if (e != cudaSuccess) {
        return e;
    }
    return launch(moe_down_plain_kernel<T, W>, dim3(n_picks, (w->hidden + warps - 1) / warps),
                  dim3(32 * warps), 0, stream, (const T *)s->act, (const W *)w->down,
                  a->partial ? (const float *)0 : w->down_bias, (const int32_t *)a->ids.p, p,
                  s->out);
}

enum { SMALL_TILE = 16, CODED_TILE = 32, LARGE_TILE = 128 };

/* Rows per tile. Quantised experts: as many rows as their kernel supports, so that weights are read
 * fewer times. */
static int tile_of(const struct moe_ffn_args *a, const struct moe_weights *w)
{
    const bool few = (int64_t)a->n_rows * a->k < (int64_t)a->n_experts * 48;
    if (!w->gate_up_coded && !w->down_coded) {
        return few ? SMALL_TILE : LARGE_TILE;
    }
    const bool fit = w->gate_up_coded && coded_most_rows(w->gate_up_coded) == CODED_TILE &&
                     w->down_coded && coded_most_rows(w->down_coded) == CODED_TILE;
    return few || !fit ? SMALL_TILE : CODED_TILE;
}

/* Chooses the kernel by the weights' format and the number of rows per expert. */
template <typename T, int KIND>
static cudaError_t products(cudaStream_t stream, const struct moe_ffn_args *a,
                            const struct moe_weights *w, const struct moe_rounding *r,
                            const struct moe_scratch *s, const struct group_params &p,
                            bool on_tensor_cores)
{
    const int tile = tile_of(a, w);
    if (tile == CODED_TILE) {
        cudaError_t e = coded_gate_up<T>(stream, a, w, s, p, tile);
        if (e == cudaSuccess) {
            e = round_act(stream, a, r, s);
        }
        return e == cudaSuccess ? coded_down(stream, a, w, s, tile) : e;
    }
    if constexpr (sizeof(T) == 2) {
        if (on_tensor_cores) {
            return tile == SMALL_TILE
                       ? grouped<T, KIND, SMALL_TILE, 64, 64, 1, 4, 5>(stream, a, w, r, s, p)
                       : grouped<T, KIND, LARGE_TILE, 128, 32, 2, 4, 4>(stream, a, w, r, s, p);
        }
    }
    BY_DTYPE(w->dtype, W, return plain<T, W, KIND>(stream, a, w, s, p));
    return cudaErrorInvalidValue;
}

/* True if the products run on tensor cores, and so from a work list. */
extern "C" bool k_moe_ffn_picks(const struct moe_ffn_args *a, const struct moe_weights *w)
{
    return a->x.dtype != DT_F32 && w->dtype == a->x.dtype && w->hidden % 8 == 0 &&
           a->ffn % 8 == 0 && vec_ok(a->x.mem.p, a->x.stride, w->hidden, sizeof(uint16_t));
}

static cudaError_t pick_and_plan(cudaStream_t stream, const struct moe_ffn_args *a,
                                 const struct plan_params &plan, const struct moe_scratch &s,
                                 const int32_t *real, const struct moe_picks &picks)
{
    const struct route_params route = route_params_of(picks.route);
    return launch(a->n_experts <= 256 ? moe_pick_plan_kernel<8> : moe_pick_plan_kernel<32>,
                  dim3(a->n_experts), dim3(a->n_rows <= 4 ? 128 : 32 * MOE_PLAN_ROWS),
                  a->n_rows * pick_floats(route) * sizeof(float), stream, picks.logits,
                  picks.correction, picks.expert_scale, route, (int32_t *)a->ids.p,
                  (float *)a->weights.p, plan, s, real);
}

/* r: how inputs are rounded, which the caller has done with those of the first product; NULL: they
 * are not. picks: what to make the picks from; NULL if they have already been made. */
template <typename T>
static cudaError_t moe_ffn(cudaStream_t stream, const struct moe_ffn_args *a,
                           const struct moe_weights *w, const struct moe_rounding *r,
                           const struct moe_scratch *s, const int32_t *real, int32_t row_offset,
                           const struct moe_picks *picks)
{
    const float *weights = (const float *)a->weights.p;
    const struct group_params p = {.k = r && r->up.scales ? 1 : a->k,
                                   .ffn = a->ffn,
                                   .hidden = w->hidden,
                                   .x_stride = a->x.stride,
                                   .shape = a->shape,
                                   .weights = a->weigh_inputs ? weights : NULL,
                                   .kind = a->kind,
                                   .rounds = moe_rounds(a, w)};
    const bool on_tensor_cores = k_moe_ffn_picks(a, w);
    cudaError_t e = cudaSuccess;
    const bool coded = w->gate_up_coded || w->down_coded;
    if ((coded && (!on_tensor_cores || (a->plain && a->weigh_inputs))) ||
        (picks && (!on_tensor_cores || a->n_rows > MOE_PLAN_ROWS))) {
        return cudaErrorInvalidValue;
    }
    if (on_tensor_cores) {
        const struct plan_params plan = {a->n_rows, a->n_experts, a->k, tile_of(a, w)};
        e = picks ? pick_and_plan(stream, a, plan, *s, real, *picks)
                  : launch(moe_plan_kernel, dim3(a->n_experts),
                           dim3(a->n_rows * a->k > 512 ? 512 : 128), 0, stream,
                           (const int32_t *)a->ids.p, plan, *s, real, row_offset);
    }
    if (e == cudaSuccess) {
        e = cudaErrorInvalidValue;
        if (a->plain) {
            e = products<T, NO_GATE>(stream, a, w, r, s, p, on_tensor_cores);
        } else {
            BY_ACTIVATION(a->kind, KIND,
                          e = products<T, KIND>(stream, a, w, r, s, p, on_tensor_cores));
        }
    }
    if (e != cudaSuccess) {
        return e;
    }
    return launch(moe_combine_kernel<T>,
                  dim3(a->n_rows, a->n_rows < 64 ? (w->hidden + 255) / 256 : 1), dim3(256), 0,
                  stream, (T *)a->y.mem.p, (int64_t)a->y.stride, (const float *)s->out,
                  (const int32_t *)a->ids.p, a->weigh_inputs ? (const float *)NULL : weights, a->k,
                  w->hidden, a->accumulate, real, row_offset);
}

extern "C" cudaError_t k_moe_ffn(cudaStream_t stream, const struct moe_ffn_args *a,
                                 const struct moe_weights *w, const struct moe_scratch *scratch,
                                 const int32_t *real, int32_t row_offset)
{
    if (a->k > MOE_MAX_K || a->n_experts > MOE_MAX_EXPERTS) {
        return cudaErrorInvalidValue;
    }
    BY_DTYPE(a->x.dtype, T, return moe_ffn<T>(stream, a, w, NULL, scratch, real, row_offset, NULL));
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t k_moe_ffn_rounded(cudaStream_t stream, const struct moe_ffn_args *a,
                                         const struct moe_weights *w, const struct moe_rounding *r,
                                         const struct moe_scratch *scratch, const int32_t *real,
                                         int32_t row_offset)
{
    struct moe_ffn_args own = *a;
    if (a->k > MOE_MAX_K || a->n_experts > MOE_MAX_EXPERTS || !k_moe_ffn_picks(a, w)) {
        return cudaErrorInvalidValue;
    }
    if (r->up.rule) {
        const cudaError_t e = moe_round_x(stream, a, r, w->hidden);
        if (e != cudaSuccess) {
            return e;
        }
        own.x.mem.p = r->x;
        own.x.stride = w->hidden;
    }
    return a->x.dtype == DT_BF16
               ? moe_ffn<bf16_t>(stream, &own, w, r, scratch, real, row_offset, NULL)
               : moe_ffn<f16_t>(stream, &own, w, r, scratch, real, row_offset, NULL);
}

extern "C" cudaError_t k_moe_ffn_of_scores(cudaStream_t stream, const struct moe_ffn_args *a,
                                           const struct moe_weights *w,
                                           const struct moe_scratch *scratch, const int32_t *real,
                                           const struct moe_picks *picks)
{
    if (moe_few_fixed_takes(a, w)) {
        return moe_few_fixed(stream, a, w, scratch->act, real, picks, NULL);
    }
    BY_DTYPE(a->x.dtype, T, return moe_ffn<T>(stream, a, w, NULL, scratch, real, 0, picks));
    return cudaErrorInvalidValue;
}

/* y[row] += sum over picks of weight * bias of the expert's down product. */
template <typename T>
__global__ void moe_bias_kernel(T *y, int64_t stride, const int32_t *ids, const float *weights,
                                int32_t k, const float *bias, int32_t width)
{
    pdl_wait();
    const int64_t row = blockIdx.x;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0.0f;
        for (int j = 0; j < k; j++) {
            sum = fmaf(weights[row * k + j], bias[(int64_t)ids[row * k + j] * width + i], sum);
        }
        y[row * stride + i] = from_float<T>(to_float(y[row * stride + i]) + sum);
    }
}

extern "C" cudaError_t k_moe_bias(cudaStream_t stream, struct tensor y, int32_t n_rows,
                                  int32_t width, const struct moe_ffn_args *moe,
                                  const float *down_bias)
{
    BY_DTYPE(y.dtype, T,
             return launch(moe_bias_kernel<T>, dim3(n_rows), dim3(256), 0, stream, (T *)y.mem.p,
                           (int64_t)y.stride, (const int32_t *)moe->ids.p,
                           (const float *)moe->weights.p, moe->k, down_bias, width));
    return cudaErrorInvalidValue;
}
