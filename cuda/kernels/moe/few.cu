// SPDX-License-Identifier: Apache-2.0
/* A mixture of experts for few rows, with the norm before it, its router and the shared expert
 * beside it, in three launches instead of up to eleven:
 *
 *   scores  every block normalises the rows itself, which takes less time than a launch; then one
 *           or two warps compute the score of an expert, or the shared expert's gate
 *   up      each block makes the picks (the experts chosen for a row) from the scores itself, which
 *           takes less time than a launch. A warp computes a feature of a pick or of the shared
 *           expert: the product with its weight row (or gate and up rows), and the activation
 *   down    a warp computes two output features as weighted sums over all of a row's picks, so
 *           nothing needs to be sorted or joined
 *
 * All blocks of `up` and of `down` fit the device at once, side by side, and their warps take one
 * feature after another, so a block makes its picks only once. A warp's weights pass through a ring
 * of its own in shared memory. Bound by reading the weights of the picks; rows that pick the same
 * expert share it in the L2 cache. Before its wait (pdl_wait), `scores` loads the router, `up` the
 * first of the shared expert's weights, and `down` as many weights as its rings hold. The scores
 * that `down` reads before its wait are complete, because `up` triggers only after its own wait. A
 * row's bits do not depend on the number of rows, but differ from those of moe.cu. On Hopper
 * some.cu computes the products of 2 to 8 rows; its bits differ from both. few_coded.cu computes
 * those of experts whose weights stay quantised. With a single row, an MLP beside the experts,
 * whose input and output are its own, takes the shared expert's place. */
#include "cuda/kernels/moe/few_down.cuh"
#include "cuda/kernels/moe/few_scores.cuh"
#include "cuda/kernels/moe/few_up.cuh"

enum { MOST_ROWS = 16, MOST_EXPERTS = 512 };
enum { MOST_HIDDEN = 16384 }; // a row fits a block's shared memory
/* Limits on dynamic shared memory: of a block of `up` plus one of `down`, which share a
 * multiprocessor; and of any one block. */
enum { PAIR_BYTES = 222 << 10, MOST_BYTES = 216 << 10 };

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
    const int32_t pieces = a->k * ((a->ffn + STEP - 1) / STEP) + (m->shared_ffn + STEP - 1) / STEP;
    const bool plain = w->dtype == a->x.dtype && !w->gate_up_coded && !w->down_coded &&
                       (!a->plain || a->kind == ACT_RELU2) && !a->weigh_inputs &&
                       a->accumulate == (m->shared_ffn > 0 && !m->own_y) && pieces <= MOST_PIECES;
    const bool runs = w->hidden % RUN == 0 && a->ffn % RUN == 0 && m->shared_ffn % RUN == 0 &&
                      vec_ok(a->x.mem.p, a->x.stride, w->hidden, 2) &&
                      vec_ok(r->x.mem.p, r->x.stride, w->hidden, 2) &&
                      vec_ok(m->own_x, w->hidden, w->hidden, 2);
    return a->x.dtype != DT_F32 && a->n_rows <= MOST_ROWS && a->n_experts <= MOST_EXPERTS &&
           a->k <= a->n_experts && a->k <= MOE_MAX_K && r->n_group <= 64 && same && runs &&
           w->hidden <= MOST_HIDDEN && (plain || k_moe_few_coded_takes(m));
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

static struct few_params params_of(const struct moe_few *m, void *scratch)
{
    const struct moe_ffn_args *a = m->ffn;
    struct few_params p = {};
    p.norm = few_norm_of(m->norm, m->norm_weight);
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
    p.own_x = m->own_x;
    p.own_y = m->own_y;
    p.own_piece = m->own_y ? a->k * ((a->ffn + STEP - 1) / STEP) : 0;
    p.shared_gate_up = m->shared_gate_up;
    p.shared_down = m->shared_down;
    p.hidden = m->weights.hidden;
    p.ffn = a->ffn;
    p.shared_ffn = m->shared_ffn;
    p.shape = a->shape;
    return p;
}

/* The number of blocks per row, if a block computes `each` units at once; all rows run together. */
static unsigned blocks_of_row(const struct few_params &p, int32_t units, int32_t each,
                              int32_t n_sms)
{
    const int32_t needed = (units + each - 1) / each, fit = n_sms / p.route.n_rows;
    return (unsigned)(needed < fit || fit < 1 ? needed : fit);
}

/* The number of warps per block that divides the units most evenly among all warps. */
static int32_t even_warps(const struct few_params &p, int32_t units, int32_t n_sms, int32_t from,
                          int32_t to)
{
    int32_t best = to, least = INT32_MAX;
    const int32_t blocks = n_sms / p.route.n_rows > 0 ? n_sms / p.route.n_rows : 1;
    for (int32_t w = to; w >= from; w--) {
        const int32_t rounds = (units + w * blocks - 1) / (w * blocks);
        if (rounds * w < least) { // the units that a block could compute in these rounds
            least = rounds * w;
            best = w;
        }
    }
    return best;
}

static int32_t up_warps(const struct few_params &p, int32_t n_sms)
{
    return even_warps(p, p.n_acts, n_sms, LEAST_UP_WARPS, MOST_UP_WARPS);
}

template <typename T, int KIND, int EACH, bool GATED>
static cudaError_t launch_up(cudaStream_t stream, const struct few_params &p, int32_t n_sms)
{
    const int32_t warps = up_warps(p, n_sms), bytes = up_bytes(p, warps);
    const auto kernel = few_up_kernel<T, KIND, EACH, GATED>;
    const cudaError_t e = allow_shared(kernel, bytes);
    return e != cudaSuccess
               ? e
               : launch(kernel, dim3(blocks_of_row(p, p.n_acts, warps, n_sms), p.route.n_rows),
                        dim3(32 * warps), (size_t)bytes, stream, p);
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

template <typename T, int EACH, int STAGES>
static cudaError_t launch_down(cudaStream_t stream, const struct few_params &p, int32_t warps,
                               int32_t n_sms)
{
    const auto kernel = few_down_kernel<T, EACH, STAGES>;
    const int32_t bytes = act_bytes(p) + warps * STAGES * STAGE_BYTES;
    const cudaError_t e = allow_shared(kernel, bytes);
    return e != cudaSuccess
               ? e
               : launch(kernel,
                        dim3(blocks_of_row(p, p.hidden / FEATURES, warps, n_sms), p.route.n_rows),
                        dim3(32 * warps), (size_t)bytes, stream, p);
}

/* A block of `down` fits beside one of `up` unless its rings would be too short. */
template <typename T, int EACH>
static cudaError_t down(cudaStream_t stream, const struct few_params &p, int32_t n_sms)
{
    const int32_t warps =
        even_warps(p, p.hidden / FEATURES, n_sms, LEAST_DOWN_WARPS, MOST_DOWN_WARPS);
    const int32_t act = act_bytes(p), each = warps * STAGE_BYTES;
    int32_t stages = (PAIR_BYTES - up_bytes(p, up_warps(p, n_sms)) - act) / each;
    stages = stages < 2 ? (MOST_BYTES - act) / each : stages;
    switch (stages) {
    case 0:
    case 1: return cudaErrorInvalidValue;
    case 2: return launch_down<T, EACH, 2>(stream, p, warps, n_sms);
    case 3: return launch_down<T, EACH, 3>(stream, p, warps, n_sms);
    case 4:
    case 5: return launch_down<T, EACH, 4>(stream, p, warps, n_sms);
    case 6:
    case 7: return launch_down<T, EACH, 6>(stream, p, warps, n_sms);
    default: return launch_down<T, EACH, 8>(stream, p, warps, n_sms);
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
    if (e == cudaSuccess && m->weights.gate_up_coded) {
        return k_moe_few_coded(stream, p, m);
    }
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
