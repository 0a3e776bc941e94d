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
 * All warps share a tile of 16 rows of weights: each has some of its columns, for up to 8 rows of x
 * at once (mma.sync). What a warp reads forms one stream: each lane copies its part to a ring in
 * shared memory, up to DEPTH steps before it reads it there, and across the barrier. So memory is
 * read without a pause from the picks to the end, and the weights of the shared expert even before
 * the preceding kernel has ended. Bound by reading the weights: those of an expert once for all
 * rows that picked it. A row's bits do not depend on the other rows, but differ from those of
 * moe.cu. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/moe/once.cuh"
#include "cuda/kernels/moe/once_picks.cuh"

/* ---- products ---------------------------------------------------------------------------------
 */

/* 16 bytes of a vector in each half of a chunk; zeros where it has none. */
template <typename T>
__device__ __forceinline__ void load_vector(uint4 (&v)[2], const T *vector, int32_t at, int32_t n,
                                            bool is)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t column = at + half * (CHUNK / 2);
        v[half] = make_uint4(0, 0, 0, 0);
        if (is && column < n) {
            v[half] = *(const uint4 *)(vector + column);
        }
    }
}

/* sum += a tile's rows times up to 8 vectors, over a chunk. */
template <typename T>
__device__ __forceinline__ void multiply_step(float (&sum)[4], const uint4 (&w)[4],
                                              const uint4 (&v)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t low[4] = {w[half].x, w[2 + half].x, w[half].y, w[2 + half].y};
        const uint32_t high[4] = {w[half].z, w[2 + half].z, w[half].w, w[2 + half].w};
        mma_16x8x16(sum, low, v[half].x, v[half].y, T());
        mma_16x8x16(sum, high, v[half].z, v[half].w, T());
    }
}

/* A warp's sums of a tile, to shared memory: rows lane / 4 and 8 + lane / 4, vectors lane % 4 * 2
 * and the next one of each 8. */
template <int R, int NB>
__device__ __forceinline__ void put_sums(float (*to)[R], const float (&sum)[NB][4])
{
    const int32_t row = (threadIdx.x & 31) >> 2, column = (threadIdx.x & 3) * 2;
#pragma unroll
    for (int b = 0; b < NB; b++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (b * 8 + column + (i & 1) < R) {
                to[row + (i >> 1) * 8][b * 8 + column + (i & 1)] = sum[b][i];
            }
        }
    }
}

template <int R>
__device__ __forceinline__ float sum_of(const float (*sums)[TILE][R], int32_t n_warps, int32_t row,
                                        int32_t r)
{
    float sum = 0.0f;
#pragma unroll 4
    for (int w = 0; w < n_warps; w++) {
        sum += sums[w][row][r];
    }
    return sum;
}

__device__ __forceinline__ int32_t slot_of(uint32_t rows, int32_t first, int32_t r)
{
    return first + __popc(rows & ((1u << r) - 1));
}

/* A tile's activations, by one warp. */
template <typename T, int R>
__device__ __forceinline__ void
store_acts(const struct once_params &p, const struct once_room<R> &room, const struct once_work &w,
           int32_t tile, int32_t n_rows, const float (*sums)[TILE][R])
{
    const int32_t lane = threadIdx.x & 31, n_warps = min((int32_t)WARPS, w.up_chunks);
    const bool routed = tile >= w.n_shared_tiles;
    const int32_t i = (routed ? tile - w.n_shared_tiles : tile) * 8 + (lane & 7);
    const int32_t place = routed ? (uint32_t)(w.up + i) / (uint32_t)p.ffn : 0;
    const bool is = i < (routed ? w.n_up : w.n_shared);
    const int32_t feature = routed ? w.up + i - place * p.ffn : w.shared + i;
    const uint32_t rows = is && routed ? room.rows[place] : (1u << n_rows) - 1;
    const int32_t width = routed ? p.ffn : p.shared_ffn;
    const int32_t first = is && routed ? room.start[place] : 0;
    T *to = (T *)p.act + (routed ? 0 : room.n_slots * p.ffn) + feature;
#pragma unroll 1
    for (int32_t r = lane >> 3; r < n_rows; r += 4) {
        if (is && (rows >> r & 1)) {
            float gate = sum_of<R>(sums, n_warps, lane & 7, r);
            float up = sum_of<R>(sums, n_warps, 8 + (lane & 7), r);
            if (routed && p.up_bias) {
                const int64_t bias = (int64_t)room.expert[place] * 2 * p.ffn + feature;
                gate += p.up_bias[bias];
                up += p.up_bias[bias + p.ffn];
            }
            to[slot_of(rows, first, r) * width] =
                from_float<T>(activated(p.kind, gate, up, p.shape));
        }
    }
}

/* A tile of y, by one warp. */
template <typename T, int R>
__device__ __forceinline__ void store_y(const struct once_params &p,
                                        const struct once_room<R> &room, const struct once_work &w,
                                        int32_t tile, int32_t n_rows, const float (*sums)[TILE][R])
{
    const int32_t lane = threadIdx.x & 31, n_warps = min((int32_t)WARPS, w.down_chunks);
    const int32_t row = tile * TILE + (lane & 15), feature = w.out + row;
#pragma unroll 1
    for (int32_t r = lane >> 4; r < n_rows && row < w.n_out; r += 2) {
        float sum = sum_of<R>(sums, n_warps, lane & 15, r);
#pragma unroll 1
        for (int32_t j = 0; p.down_bias && j < p.route.k; j++) {
            sum = fmaf(room.picked[r][j], p.down_bias[(int64_t)room.ids[r][j] * p.hidden + feature],
                       sum);
        }
        ((T *)p.y)[r * p.y_stride + feature] = from_float<T>(sum);
    }
}

/* Copies all activations to shared memory: those of each slot and row PAD elements apart. */
template <typename T, int R>
__device__ __forceinline__ void load_acts(const struct once_params &p,
                                          const struct once_room<R> &room, int32_t n_rows, T *act)
{
    const int32_t routed = room.n_slots * p.ffn, n = routed + n_rows * p.shared_ffn;
#pragma unroll 2
    for (int32_t at = threadIdx.x * RUN; at < n; at += THREADS * RUN) {
        const int32_t pads = at < routed
                                 ? (uint32_t)at / (uint32_t)p.ffn
                                 : room.n_slots + (uint32_t)(at - routed) / (uint32_t)p.shared_ffn;
        *(uint4 *)(act + at + pads * PAD) = __ldcg((const uint4 *)((const T *)p.act + at));
    }
}

/* The warp's part of a tile of gate and up. */
template <typename T, int R, int NB, int DEPTH>
__device__ __forceinline__ void add_up(const struct once_params &p, const struct once_room<R> &room,
                                       const struct once_work &w, struct stream<T, DEPTH> &s,
                                       int32_t n_rows, const T *x, float (&sum)[NB][4])
{
    const int32_t mine = (threadIdx.x & 31) >> 2, at = (threadIdx.x & 3) * RUN;
#pragma unroll 1
    for (int32_t chunk = threadIdx.x >> 5; chunk < w.up_chunks; chunk += WARPS) {
        uint4 step[4], v[2];
        s.take(step);
        s.fetch(p, room, w);
#pragma unroll
        for (int b = 0; b < NB; b++) {
            load_vector(v, x + (b * 8 + mine) * (p.hidden + PAD), chunk * CHUNK + at, p.hidden,
                        b * 8 + mine < n_rows);
            multiply_step<T>(sum[b], step, v);
        }
    }
}

/* The warp's part of a tile of `down`: the sums of a chunk are weighted with its expert. */
template <typename T, int R, int NB, int DEPTH>
__device__ __forceinline__ void
add_down(const struct once_params &p, const struct once_room<R> &room, const struct once_work &w,
         struct stream<T, DEPTH> &s, int32_t n_rows, const T *act, float (&sum)[NB][4])
{
    const int32_t mine = (threadIdx.x & 31) >> 2, at = (threadIdx.x & 3) * RUN;
    const uint32_t all = (1u << n_rows) - 1;
#pragma unroll 1
    for (int32_t chunk = threadIdx.x >> 5; chunk < w.down_chunks; chunk += WARPS) {
        const int32_t place = min((uint32_t)chunk / (uint32_t)w.chunks, room.n_experts);
        const bool routed = place < room.n_experts;
        const uint32_t rows = routed ? room.rows[place] : all;
        const int32_t first = routed ? room.start[place] : room.n_slots;
        const int32_t n = routed ? p.ffn : p.shared_ffn;
        const T *vectors = routed ? act : act + room.n_slots * (p.ffn - n);
        uint4 step[4], v[2];
        s.take(step);
        s.fetch(p, room, w);
#pragma unroll
        for (int b = 0; b < NB; b++) {
            float part[4] = {};
            const int32_t r = b * 8 + mine, column = b * 8 + (threadIdx.x & 3) * 2;
            load_vector(v, vectors + slot_of(rows, first, r) * (n + PAD),
                        (chunk - place * w.chunks) * CHUNK + at, n, r < R && (rows >> r & 1));
            multiply_step<T>(part, step, v);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int32_t c = column + i;
                if (c < R && (rows >> c & 1)) {
                    const float weight =
                        routed ? room.weight[slot_of(rows, first, c)] : room.open[c];
                    sum[b][i] = fmaf(weight, part[i], sum[b][i]);
                    sum[b][2 + i] = fmaf(weight, part[2 + i], sum[b][2 + i]);
                }
            }
        }
    }
}

/* The block's features, of the activations or (`down`) of y: a tile is summed by all warps, and
 * stored by one of them while the others go on. vectors: x, or all activations. */
template <typename T, int R, int DEPTH>
__device__ __forceinline__ void
make_features(const struct once_params &p, const struct once_room<R> &room,
              const struct once_work &w, struct stream<T, DEPTH> &s, int32_t n_rows,
              const T *vectors, bool down, float (*sums)[WARPS][TILE][R])
{
    enum { NB = (R + 7) / 8 };
    const int32_t warp = threadIdx.x >> 5;
    const int32_t n_tiles = down ? w.n_down_tiles : w.n_shared_tiles + w.n_up_tiles;
#pragma unroll 1
    for (int32_t tile = 0; tile < n_tiles; tile++) {
        float sum[NB][4] = {};
        if (down) {
            add_down<T, R, NB>(p, room, w, s, n_rows, vectors, sum);
        } else {
            add_up<T, R, NB>(p, room, w, s, n_rows, vectors, sum);
        }
        put_sums<R, NB>(sums[tile & 1][warp], sum);
        __syncthreads();
        if (warp == tile % WARPS && down) {
            store_y<T, R>(p, room, w, tile, n_rows, sums[tile & 1]);
        } else if (warp == tile % WARPS) {
            store_acts<T, R>(p, room, w, tile, n_rows, sums[tile & 1]);
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
    float (*sums)[WARPS][TILE][R] = (float (*)[WARPS][TILE][R])(memory + ring_bytes(DEPTH));
    char *const rest = memory + ring_bytes(DEPTH) + sums_bytes(R);
    T *x = (T *)rest; // later the activations
    float *router = (float *)(rest + rows_bytes(p));
    float *scores = (float *)(rest + rows_bytes(p) + router_bytes(p));
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
        w.n_up_tiles = (w.n_up + 7) / 8;
        w.down_chunks = room.n_experts * w.chunks + (p.shared_ffn + CHUNK - 1) / CHUNK;
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
        make_features(p, room, w, s, n_rows, x, down > 0, sums);
    }
}

/* ---- launches ---------------------------------------------------------------------------------
 */

/* Shared memory that a block may have. */
static int32_t most_shared()
{
    if (launch_sm() >= 90) {
        return 227 << 10;
    }
    return launch_sm() == 80 ? 163 << 10 : 99 << 10;
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
    const size_t vectors = (size_t)m->route->n_rows * (size_t)(m->ffn->k + 1);
    const size_t before = (size_t)rows_bytes(p) + (size_t)router_bytes(p) + picks;
    const size_t after = acts_bytes(m) + vectors * PAD * sizeof(uint16_t);
    const size_t all =
        (size_t)(ring_bytes(DEPTH) + sums_bytes(R)) + (before > after ? before : after);
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
    if (fits<T, 1, 5>(m, n_sms, n_bytes)) {
        *kernel = moe_once_kernel<T, 1, 5>;
    } else if (fits<T, 8, 4>(m, n_sms, n_bytes)) {
        *kernel = moe_once_kernel<T, 8, 4>;
    } else {
        *kernel = moe_once_kernel<T, MOST_ROWS, 2>;
        return fits<T, MOST_ROWS, 2>(m, n_sms, n_bytes);
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
