// SPDX-License-Identifier: Apache-2.0
/* A mixture of experts for few rows in one launch: the norm before it, the router, the picked
 * experts, and the shared expert beside them.
 *
 * There is one block to a multiprocessor, and all of them run at once, because they wait for each
 * other twice. (So nothing else may hold multiprocessors and wait for this kernel: a device runs
 * one stream.)
 *
 *   scores  each block norms all rows itself, and computes the scores of its share of the experts.
 *           They travel through memory; a word that is not there yet is 0, which no score is.
 *   up      each block makes all picks itself, which takes less time than another exchange, and
 *           computes its share of the features of gate and up of every expert that a row picked. A
 *           barrier of all blocks follows.
 *   down    each block computes its share of the output features: the sum over the picked experts
 *           in order of their ids, then the shared one. So nothing is left to join.
 *
 * A feature belongs to a warp, and all weights that a warp reads form one stream of rows. Each lane
 * copies its part of a row to a ring in shared memory, up to DEPTH steps before it reads it there,
 * and across the barrier. So memory is read without a pause from the picks to the end, and the
 * weights of the shared expert even before the preceding kernel has ended. Bound by reading the
 * weights: those of an expert once for all rows that picked it. A row's bits do not depend on the
 * other rows, but differ from those of moe.cu. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/moe/once.cuh"
#include "cuda/kernels/moe/once_picks.cuh"

/* ---- products ---------------------------------------------------------------------------------
 */

/* sum[r] += the products of a step of a weight's row with the same elements of the vectors of the
 * rows in `rows`. of(r, i): the vector of row r, which is number i of them. */
template <typename T, int R, typename F>
__device__ __forceinline__ void add_step(const vec<T> (&w)[2], int32_t at, int32_t n, uint32_t rows,
                                         float (&sum)[R], F of)
{
    int32_t i = 0;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (R == 1 || (rows >> r & 1)) {
            const T *v = of(r, i++);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (at + half * HALF < n) {
                    vec<T> x;
                    x.load(v + at + half * HALF);
#pragma unroll
                    for (int e = 0; e < RUN; e++) {
                        sum[r] = fmaf(to_float(x.v[e]), to_float(w[half].v[e]), sum[r]);
                    }
                }
            }
        }
    }
}

/* The sums of one row of a weight. */
template <typename T, int R, int DEPTH, typename F>
__device__ __forceinline__ void add_row(const struct once_params &p, const struct once_room<R> &room,
                                        const struct once_work &w, struct stream<T, DEPTH> &s,
                                        int32_t n, uint32_t rows, float (&sum)[R], F of)
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        sum[r] = 0.0f;
    }
#pragma unroll 1
    for (int32_t at = (threadIdx.x & 31) * RUN, first = 0; first < n; first += STEP, at += STEP) {
        vec<T> step[2];
        s.take(step);
        s.fetch(p, room, w);
        add_step(step, at, n, rows, sum, of);
    }
}

/* A feature of an expert's activations for the rows that picked it, from the sums of gate and up.
 */
template <typename T, int R>
__device__ __forceinline__ void
store_acts(const struct once_params &p, const struct once_room<R> &room, int32_t place,
           int32_t feature, uint32_t rows, const float (&gate)[R], const float (&up)[R])
{
    const bool routed = place >= 0;
    const int32_t width = routed ? p.ffn : p.shared_ffn;
    const int64_t bias = routed ? (int64_t)room.expert[place] * 2 * p.ffn + feature : 0;
    T *to = (T *)p.act + (routed ? room.start[place] : room.n_slots) * p.ffn + feature;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (rows >> r & 1) {
            float g = warp_sum(gate[r]), u = warp_sum(up[r]);
            if (routed && p.up_bias) {
                g += p.up_bias[bias];
                u += p.up_bias[bias + p.ffn];
            }
            if ((threadIdx.x & 31) == 0) {
                *to = from_float<T>(activated(p.kind, g, u, p.shape));
            }
            to += width;
        }
    }
}

/* Copies all activations to shared memory. */
template <typename T, int R>
__device__ __forceinline__ void load_acts(const struct once_params &p,
                                          const struct once_room<R> &room, int32_t n_rows, T *act)
{
    const int32_t n = room.n_slots * p.ffn + n_rows * p.shared_ffn;
#pragma unroll 2
    for (int32_t at = threadIdx.x * RUN; at < n; at += THREADS * RUN) {
        *(uint4 *)(act + at) = __ldcg((const uint4 *)((const T *)p.act + at));
    }
}

/* A feature of y. */
template <typename T, int R>
__device__ __forceinline__ void store_y(const struct once_params &p, const struct once_room<R> &room,
                                        int32_t feature, int32_t n_rows, const float (&y)[R])
{
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (r < n_rows) {
            float sum = warp_sum(y[r]);
#pragma unroll 1
            for (int32_t j = 0; p.down_bias && j < p.route.k; j++) {
                sum = fmaf(room.picked[r][j],
                           p.down_bias[(int64_t)room.ids[r][j] * p.hidden + feature], sum);
            }
            if ((threadIdx.x & 31) == 0) {
                ((T *)p.y)[r * p.y_stride + feature] = from_float<T>(sum);
            }
        }
    }
}

/* The warp's features, of the activations or (`down`) of y. One function for both, because each
 * launch fetches its code again. vectors: x, or all activations. */
template <typename T, int R, int DEPTH>
__device__ __forceinline__ void
make_features(const struct once_params &p, const struct once_room<R> &room, const struct once_work &w,
              struct stream<T, DEPTH> &s, int32_t n_rows, const T *vectors, bool down)
{
    const uint32_t all = (1u << n_rows) - 1;
    const int32_t n_items = down ? w.n_out : w.n_shared + w.n_up;
    const int32_t n_parts = down ? room.n_experts + (p.shared_ffn > 0) : 2;
#pragma unroll 1
    for (int32_t i = threadIdx.x >> 5; i < n_items; i += WARPS) {
        const int32_t flat = w.up + i - w.n_shared, of_up = i < w.n_shared ? -1 : flat / p.ffn;
        float y[R] = {}, sum[R] = {};
#pragma unroll 1
        for (int32_t part = 0; part < n_parts; part++) {
            const int32_t of_down = part < room.n_experts ? part : -1;
            const int32_t place = down ? of_down : of_up; // -1: the shared expert
            const uint32_t rows = place >= 0 ? room.rows[place] : all;
            const int32_t slot = place >= 0 ? room.start[place] : room.n_slots;
            const int32_t width = place >= 0 ? p.ffn : p.shared_ffn, n = down ? width : p.hidden;
            const T *first = vectors + (down ? slot * p.ffn : 0);
#pragma unroll
            for (int r = 0; r < R; r++) {
                y[r] = down ? y[r] : sum[r];
            }
            add_row(p, room, w, s, n, rows, sum,
                    [&](int r, int32_t nth) { return first + (down ? nth : r) * n; });
            int32_t nth = 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (down && (rows >> r & 1)) {
                    y[r] = fmaf(place >= 0 ? room.weight[slot + nth] : room.open[r], sum[r], y[r]);
                    nth++;
                }
            }
        }
        if (down) {
            store_y<T>(p, room, w.out + i, n_rows, y);
        } else {
            store_acts<T>(p, room, of_up, of_up >= 0 ? flat - of_up * p.ffn : w.shared + i,
                          of_up >= 0 ? room.rows[of_up] : all, y, sum);
        }
    }
}

/* ---- the kernel -------------------------------------------------------------------------------
 */

template <typename T, int R, int DEPTH>
__global__ void __maxnreg__(MOST_REGISTERS) moe_once_kernel(struct once_params p)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ struct once_room<R> room;
    T *x = (T *)(memory + ring_bytes(DEPTH)); // later the activations
    float *scores = (float *)(memory + ring_bytes(DEPTH) + rows_bytes(p));
    float *router = scores + p.route.n_rows * pick_floats(p.route);
    const int32_t n_rows = n_real(p);
    const int32_t first = first_of(p.of_scores), n_own = number_of(p.of_scores);
    struct once_work w = work_of(p);
    struct stream<T, DEPTH> s((T *)memory);
    copy_router(p, first, n_own, router);
    float norm_weights[RUN];
    if (p.norm.is) {
        load_norm_weights(p, threadIdx.x * RUN, norm_weights);
    }
    for (int32_t i = threadIdx.x; R > 1 && i < p.route.n_experts; i += THREADS) {
        room.rows_of[i] = 0;
    }
    if (threadIdx.x < R) {
        room.open[threadIdx.x] = 1.0f;
    }
    int32_t n_ahead = 0;
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
        /* The shared expert's weights need no picks. */
#pragma unroll 1
        for (; n_ahead < DEPTH && (w.is_picked || s.is_shared(w)); n_ahead++) {
            s.fetch(p, room, w);
        }
        if (turn > 0) {
            break;
        }
        pdl_wait();
        pdl_trigger();
        if (p.norm.is) {
            norm_rows<T, R>(p, n_rows, x, norm_weights, room.moments);
        } else {
            load_rows(p, n_rows, x);
            __syncthreads();
        }
        copies_await<0>(); // the router's
        make_scores<T, R>(p, first, n_own, n_rows, x, router, room.partial);
        take_scores(p, n_rows, room, scores);
        __syncthreads();
        make_picks(p, n_rows, room, scores);
        w.is_picked = true;
        const struct once_shares of_up = shares_of(room.n_experts * p.ffn, gridDim.x);
        w.up = first_of(of_up);
        w.n_up = number_of(of_up);
    }
#pragma unroll 1
    for (int down = 0; down < 2; down++) {
        if (down) {
            await_all(p.arrived);
            if (own_score() < n_own && own_row() < n_rows) { // for the next launch
                p.logits[own_row() * p.n_scores + first + own_score()] = 0.0f;
            }
            store_residual<T>(p, n_rows);
            load_acts(p, room, n_rows, x);
            __syncthreads();
        }
        make_features(p, room, w, s, n_rows, x, down > 0);
    }
}

/* ---- launches ---------------------------------------------------------------------------------
 */

/* Shared memory of a block on this device. */
static int32_t most_shared()
{
    static const int32_t most = [] {
        int device = 0, n = 0;
        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&n, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
                cudaSuccess) {
            return 0;
        }
        return n;
    }();
    return most;
}

size_t k_moe_once_lasting(void)
{
    return sizeof(uint32_t) * (4 + MOST_ROWS * (MOST_EXPERTS + 1));
}

static size_t acts_bytes(const struct moe_few *m)
{
    const size_t n = (size_t)m->ffn->n_rows;
    return n * ((size_t)m->ffn->k * (size_t)m->ffn->ffn + (size_t)m->shared_ffn) * sizeof(uint16_t);
}

/* The activations, then the rows that store_residual stores. */
size_t k_moe_once_scratch(const struct moe_few *m)
{
    return acts_bytes(m) + (size_t)m->ffn->n_rows * (size_t)m->weights.hidden * sizeof(uint16_t);
}

static struct once_params params_of(const struct moe_few *m, int32_t n_sms, void *scratch,
                                   void *lasting)
{
    const struct moe_ffn_args *a = m->ffn;
    const struct norm_args *norm = m->norm;
    struct once_params p = {};
    p.route = route_params_of(m->route);
    p.router = m->router;
    p.router_bias = m->router_bias;
    p.correction = m->correction;
    p.expert_scale = m->expert_scale;
    p.up_bias = m->weights.gate_up_bias;
    p.down_bias = a->partial ? NULL : m->weights.down_bias;
    p.real = m->real;
    p.shared_gate = m->shared_gate;
    p.n_scores = a->n_experts + (m->shared_gate != NULL);
    p.arrived = (uint32_t *)lasting;
    p.logits = (float *)lasting + 4;
    p.act = scratch;
    p.ids = (int32_t *)a->ids.p;
    p.weights = (float *)a->weights.p;
    p.x = norm ? norm->x.mem.p : a->x.mem.p;
    p.x_stride = norm ? norm->x.stride : a->x.stride;
    p.y = a->y.mem.p;
    p.y_stride = a->y.stride;
    p.gate_up = m->weights.gate_up;
    p.down = m->weights.down;
    p.shared_gate_up = m->shared_gate_up;
    p.shared_down = m->shared_down;
    p.hidden = m->weights.hidden;
    p.ffn = a->ffn;
    p.shared_ffn = m->shared_ffn;
    p.kind = a->kind;
    p.shape = a->shape;
    p.of_scores = shares_of(p.n_scores, n_sms);
    p.of_shared = shares_of(p.shared_ffn, n_sms);
    p.of_hidden = shares_of(p.hidden, n_sms);
    if (norm) {
        p.norm = {true,
                  norm->eps,
                  norm->weight_offset,
                  norm->delta_scale,
                  norm->x_scale != 0.0f ? norm->x_scale : 1.0f,
                  m->norm_weight,
                  norm->delta.mem.p,
                  (char *)scratch + acts_bytes(m),
                  norm->delta.stride};
    }
    return p;
}

template <typename T, int R, int DEPTH>
static bool fits(const struct moe_few *m, int32_t n_sms, int32_t *n_bytes)
{
    const struct once_params p = params_of(m, n_sms, NULL, NULL);
    const size_t picks = (size_t)m->route->n_rows * (size_t)pick_floats(p.route) * sizeof(float);
    const size_t own = (size_t)((p.n_scores + n_sms - 1) / n_sms);
    const size_t router = own * (size_t)p.hidden * sizeof(float);
    const size_t before = (size_t)rows_bytes(p) + picks + router, after = acts_bytes(m);
    const size_t all = (size_t)ring_bytes(DEPTH) + (before > after ? before : after);
    *n_bytes = (int32_t)all;
    return m->route->n_rows <= R &&
           all + sizeof(struct once_room<R>) + 1024 <= (size_t)most_shared();
}

/* A kernel for the number of rows, if what it keeps fits shared memory; otherwise the last one,
 * whose ring is short. */
template <typename T>
static bool choose(const struct moe_few *m, int32_t n_sms, void (**kernel)(struct once_params),
                   int32_t *n_bytes)
{
    if (fits<T, 1, 10>(m, n_sms, n_bytes)) {
        *kernel = moe_once_kernel<T, 1, 10>;
    } else if (fits<T, 4, 10>(m, n_sms, n_bytes)) {
        *kernel = moe_once_kernel<T, 4, 10>;
    } else {
        *kernel = moe_once_kernel<T, MOST_ROWS, 4>;
        return fits<T, MOST_ROWS, 4>(m, n_sms, n_bytes);
    }
    return true;
}

static bool chosen(const struct moe_few *m, int32_t n_sms, void (**kernel)(struct once_params),
                   int32_t *n_bytes)
{
    return m->ffn->x.dtype == DT_BF16 ? choose<bf16_t>(m, n_sms, kernel, n_bytes)
                                      : choose<f16_t>(m, n_sms, kernel, n_bytes);
}

/* The norm is RMS, of vectors, and its out is what the router and the experts read. */
static bool takes_norm(const struct moe_few *m)
{
    const struct norm_args *n = m->norm;
    const struct moe_ffn_args *a = m->ffn;
    const int32_t hidden = m->weights.hidden;
    return n->kind == NORM_RMS && m->norm_weight && !n->bias && n->delta_sums.n == 0 &&
           n->width == hidden && n->n_rows == a->n_rows && n->out.mem.p == a->x.mem.p &&
           n->x.mem.p != a->x.mem.p && n->x.dtype == a->x.dtype &&
           (!n->delta.mem.p || n->delta.dtype == a->x.dtype) &&
           vec_ok(n->x.mem.p, n->x.stride, hidden, 2) &&
           (!n->delta.mem.p || vec_ok(n->delta.mem.p, n->delta.stride, hidden, 2));
}

bool k_moe_once_takes(const struct moe_few *m, int32_t n_sms)
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
    void (*kernel)(struct once_params);
    int32_t n_bytes = 0;
    return a->x.dtype != DT_F32 && a->n_rows <= MOST_ROWS && a->n_experts <= MOST_EXPERTS &&
           a->n_experts < MOST_OWN * n_sms && a->k <= a->n_experts && a->k <= MOE_MAX_K &&
           r->n_group <= 64 && same && plain && runs && (!m->norm || takes_norm(m)) &&
           n_sms >= MOST_ROWS && chosen(m, n_sms, &kernel, &n_bytes);
}

cudaError_t k_moe_once(cudaStream_t stream, const struct moe_few *m, int32_t n_sms, void *scratch,
                      void *lasting)
{
    void (*kernel)(struct once_params) = NULL;
    int32_t n_bytes = 0;
    if (!chosen(m, n_sms, &kernel, &n_bytes)) {
        return cudaErrorInvalidValue;
    }
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)n_sms), dim3(THREADS), (size_t)n_bytes,
                                     stream, params_of(m, n_sms, scratch, lasting));
}
