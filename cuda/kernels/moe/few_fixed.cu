// SPDX-License-Identifier: Apache-2.0
/* The experts of few rows in deterministic mode, in two launches after the router's scores instead
 * of four:
 *
 *   up      each block makes its row's picks; then its warps take groups of eight features of a
 *           pick in turn: the products with gate and up rows, and the activation
 *   down    a block has some groups of eight output features, and its warps take a pick's part of a
 *           group in turn. The picks are added in order of expert id.
 *
 * Bits are those of moe.cu: K is summed in ascending order in one accumulator of the tensor cores
 * (device/mma_tile.cuh), of whose sixteen rows only the first is used. Weights arrive in a ring of
 * each warp (cp.async), so no block barrier is needed. There is one block of `up` and one of `down`
 * per multiprocessor, side by side, and the groups are divided evenly among the blocks. `down`
 * makes its picks and fills its rings before its wait, while `up` runs. The scores that it reads
 * there are complete, because `up` triggers only after its own wait. Bound by reading the weights
 * of the picks. */
#include "cuda/kernels/moe/few.cuh"
#include "cuda/kernels/moe/gated.cuh"
#include "cuda/kernels/moe/sm90.cuh"
#include "cuda/moe_fixed.h"

enum { MOST_ROWS = 4, MOST_EXPERTS = 512 };
enum { FEATURES = 8, DEPTH = 64, STAGE = FEATURES * DEPTH }; // weight rows and elements of each
enum { LEAST_UP_WARPS = 2, MOST_UP_WARPS = 8 };              // one warp picks, the others copy x
enum { WARPS = 16, THREADS = 32 * WARPS, MOST_GROUPS = 4 };  // of a block of `down`
enum { UP_STAGES = 7, DOWN_STAGES = 5 };
enum { UP_RING = UP_STAGES * 2 * STAGE, DOWN_RING = DOWN_STAGES * STAGE }; // elements per warp
enum { MOST_BYTES = 220 << 10 };
enum { LEAST_UP_BYTES = 116 << 10 }; // so that no two blocks of `up` share a multiprocessor

/* ---- eight rows of a weight and one row of inputs -------------------------------------------- */

/* The place of eight elements in a stage; in this order ldmatrix has no bank conflicts. */
__device__ __forceinline__ int place_of(int row, int chunk)
{
    return row * DEPTH + (chunk ^ row) * RUN;
}

/* Starts to load elements [k, k + DEPTH) of eight rows of n; zeros past their end. */
template <typename T>
__device__ __forceinline__ void load_rows(T *stage, const T *w, int32_t k, int32_t n)
{
    const int lane = threadIdx.x & 31, chunk = lane & 7, at = k + chunk * RUN;
    const bool is = at < n;
#pragma unroll
    for (int i = 0; i < FEATURES / 4; i++) {
        const int row = (lane >> 3) + 4 * i;
        cp_async_16(stage + place_of(row, chunk), w + (int64_t)row * n + (is ? at : 0), is);
    }
}

/* Adds the products of DEPTH inputs with the rows of a stage, or of two. */
template <typename T, int KINDS>
__device__ __forceinline__ void multiply(float (&acc)[KINDS][4], const T *x, const T *stage)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t a[4] = {0, 0, 0, 0}, b0, b1;
        if (lane < 4) { // these lanes hold the first row of a
            a[0] = *(const uint32_t *)(x + k + lane * 2);
            a[2] = *(const uint32_t *)(x + k + 8 + lane * 2);
        }
#pragma unroll
        for (int i = 0; i < KINDS; i++) {
            ldmatrix_x2(b0, b1, stage + i * STAGE + place_of(lane & 7, k / RUN + (lane >> 3 & 1)));
            mma_16x8x16(acc[i], a, b0, b1, T());
        }
    }
}

__host__ __device__ static inline int32_t padded(int32_t n)
{
    return (n + DEPTH - 1) / DEPTH * DEPTH;
}

/* Copies a run of a row of n elements, or zeros past its end. */
template <typename T>
__device__ __forceinline__ void copy_run(T *to, const T *row, int32_t at, int32_t n)
{
    vec<T> v;
    *(uint4 *)v.v = uint4{0, 0, 0, 0};
    if (at < n) {
        v.load(row + at);
    }
    v.store(to);
}

/* A warp's position in its ring: the stage to multiply next, and the stage before that one. */
template <int STAGES> struct ring_place {
    int at = 0;

    __device__ __forceinline__ int before() const
    {
        return at == 0 ? STAGES - 1 : at - 1;
    }
    __device__ __forceinline__ void next()
    {
        at = at + 1 == STAGES ? 0 : at + 1;
    }
    /* Waits until the stage at this place has been loaded by all lanes. */
    __device__ __forceinline__ void wait() const
    {
        cp_async_wait<STAGES - 2>();
        __syncwarp();
    }
};

/* ---- up -------------------------------------------------------------------------------------- */

/* What a warp loads next: the elements from k on of its unit, which is eight features of a pick. */
template <typename T> struct up_loader {
    int32_t unit, k;
    const T *gate;

    __device__ __forceinline__ void next(const struct few_params &p, const int32_t *picks,
                                         int32_t n, int32_t step, T *stage)
    {
        if (unit < n) {
            if (k == 0) {
                const int32_t slot = unit * FEATURES / p.ffn, j = unit * FEATURES - slot * p.ffn;
                gate = (const T *)p.gate_up +
                       ((int64_t)picks[slot] * 2 * p.ffn + j) * (int64_t)p.hidden;
            }
            load_rows(stage, gate, k, p.hidden);
            load_rows(stage + STAGE, gate + (int64_t)p.ffn * p.hidden, k, p.hidden);
            k += DEPTH;
            if (k >= p.hidden) {
                k = 0;
                unit += step;
            }
        }
        cp_async_commit();
    }
};

/* Each of the first four lanes has the results of two neighbouring features. */
template <typename T, int KIND>
__device__ __forceinline__ void store_up(const struct few_params &p, const int32_t *picks,
                                         int32_t row, int32_t unit, const float (&acc)[2][4])
{
    const int32_t lane = threadIdx.x & 31, slot = unit * FEATURES / p.ffn;
    const int32_t j = unit * FEATURES - slot * p.ffn + lane * 2;
    if (lane >= 4) {
        return;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float gate = rounded<T>(acc[0][e]), up = rounded<T>(acc[1][e]);
        if (p.up_bias) {
            const float *bias = p.up_bias + (int64_t)picks[slot] * 2 * p.ffn + j + e;
            gate += bias[0];
            up += bias[p.ffn];
        }
        ((T *)p.act)[((int64_t)row * p.route.k + slot) * p.ffn + j + e] =
            from_float<T>(gated<KIND>(gate, up, p.shape));
    }
}

/* Called by all warps but the first: copies the row's x. One block also stores the sum that the
 * norm was applied to. */
template <typename T>
__device__ __forceinline__ void copy_x(const struct few_params &p, int32_t row, T *to)
{
    const T *x = (const T *)p.x + row * p.x_stride;
    const bool stores = blockIdx.x == gridDim.x - 1 && p.norm.delta;
#pragma unroll 2
    for (int32_t at = ((int32_t)threadIdx.x - 32) * RUN; at < padded(p.hidden);
         at += ((int32_t)blockDim.x - 32) * RUN) {
        copy_run(to + at, x, at, p.hidden);
        if (stores && at < p.hidden) {
            added<T>(p.norm, row, at).store((T *)p.norm.x + row * p.norm.x_stride + at);
        }
    }
}

/* After the wait the block's first warp makes the row's picks, and the others copy its x. The picks
 * are also made once before the wait, from stale scores, only to load the code into the cache. */
template <typename T, int EACH>
__device__ __forceinline__ void pick_for_up(const struct few_params &p, int32_t row, float *shared,
                                            int32_t *picks, T *x)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    struct pick mine = {0, 0.0f};
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        if (round == 1) {
            pdl_wait();
            pdl_trigger();
        }
        if (threadIdx.x < 32) {
            mine = pick_row<EACH>(p.logits + (int64_t)row * p.n_scores, p.correction,
                                  p.expert_scale, p.route, shared);
        }
    }
    if (threadIdx.x >= 32) {
        copy_x(p, row, x);
    } else if (lane < k) {
        picks[lane] = mine.id;
        if (blockIdx.x == 0 && row < n_real(p)) {
            p.ids[row * k + lane] = mine.id;
            p.weights[row * k + lane] = mine.weight;
        }
    }
    __syncthreads();
}

template <typename T, int KIND, int EACH>
__global__ void __launch_bounds__(32 * MOST_UP_WARPS) fixed_up_kernel(struct few_params p)
{
    extern __shared__ __align__(128) char memory[];
    __shared__ int32_t picks[MOE_MAX_K];
    const int32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const int32_t row = blockIdx.y, n = p.n_acts / FEATURES, step = gridDim.x * warps;
    T *rings = (T *)memory, *ring = rings + warp * UP_RING, *x = rings + warps * UP_RING;
    pick_for_up<T, EACH>(p, row, (float *)memory, picks, x);
    if (row >= n_real(p)) {
        return;
    }
    struct up_loader<T> load = {
        (int32_t)(warp * gridDim.x + blockIdx.x), 0, NULL
    };
    const int32_t first = load.unit;
    struct ring_place<UP_STAGES> place;
#pragma unroll 1
    for (int i = 0; i < UP_STAGES - 1; i++) {
        load.next(p, picks, n, step, ring + i * 2 * STAGE);
    }
#pragma unroll 1
    for (int32_t unit = first; unit < n; unit += step) {
        float acc[2][4] = {};
#pragma unroll 1
        for (int32_t k = 0; k < p.hidden; k += DEPTH) {
            place.wait();
            load.next(p, picks, n, step, ring + place.before() * 2 * STAGE);
            multiply<T, 2>(acc, x + k, ring + place.at * 2 * STAGE);
            place.next();
        }
        store_up<T, KIND>(p, picks, row, unit, acc);
    }
    cp_async_wait<0>();
}

/* ---- down ------------------------------------------------------------------------------------ */

/* A row's picks in order of expert id, and where the router has put them. */
struct ordered_picks {
    struct pick pick[MOE_MAX_K];
    int32_t slot[MOE_MAX_K];
};

/* The block's first warp makes the picks and sorts them by expert id. */
template <int EACH>
__device__ __forceinline__ void pick_for_down(const struct few_params &p, int32_t row,
                                              float *shared, struct ordered_picks &picks)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    if (threadIdx.x < 32) {
        const struct pick mine = pick_row<EACH>(p.logits + (int64_t)row * p.n_scores, p.correction,
                                                p.expert_scale, p.route, shared);
        int32_t place = 0;
        for (int32_t j = 0; j < k; j++) {
            const int32_t other = __shfl_sync(0xffffffffu, mine.id, j);
            place += other < mine.id || (other == mine.id && j < lane);
        }
        if (lane < k) {
            picks.pick[place] = mine;
            picks.slot[place] = lane;
        }
    }
    __syncthreads();
}

/* A block's groups of features. A unit is the part of a pick in a group. */
struct down_share {
    int32_t first, n_groups, n_units;

    __device__ __forceinline__ down_share(const struct few_params &p, int32_t groups)
        : first(blockIdx.x * groups), n_groups(min(groups, p.hidden / FEATURES - first)),
          n_units(n_groups * p.route.k)
    {
    }
    /* The first of a unit's rows of the weight. */
    __device__ __forceinline__ int64_t row_of(const struct few_params &p,
                                              const struct ordered_picks &picks, int32_t unit) const
    {
        const int32_t group = unit / p.route.k, pick = unit - group * p.route.k;
        return (int64_t)picks.pick[pick].id * p.hidden + (first + group) * FEATURES;
    }
};

/* What a warp loads next: a unit's rows from element k on. It takes every WARPS-th unit. */
template <typename T> struct down_loader {
    int32_t unit, k;
    const T *w;

    __device__ __forceinline__ void next(const struct few_params &p, const struct down_share &share,
                                         const struct ordered_picks &picks, T *stage)
    {
        if (unit < share.n_units) {
            if (k == 0) {
                w = (const T *)p.down + share.row_of(p, picks, unit) * p.ffn;
            }
            load_rows(stage, w, k, p.ffn);
            k += DEPTH;
            if (k >= p.ffn) {
                k = 0;
                unit += WARPS;
            }
        }
        cp_async_commit();
    }
};

/* Copies the inputs of all picks, in order of expert id. */
template <typename T>
__device__ __forceinline__ void copy_acts(const struct few_params &p,
                                          const struct ordered_picks &picks, int32_t row, T *to)
{
    const int32_t each = padded(p.ffn) / RUN;
#pragma unroll 2
    for (int32_t i = threadIdx.x; i < p.route.k * each; i += THREADS) {
        const int32_t pick = i / each;
        const T *act = (const T *)p.act + ((int64_t)row * p.route.k + picks.slot[pick]) * p.ffn;
        copy_run(to + i * RUN, act, (i - pick * each) * RUN, p.ffn);
    }
    __syncthreads();
}

/* The dot products of a warp's units. */
template <typename T>
__device__ __forceinline__ void
down_dots(const struct few_params &p, const struct down_share &share,
          const struct ordered_picks &picks, struct down_loader<T> &load, const T *act, T *ring,
          float (*dots)[FEATURES])
{
    const int32_t lane = threadIdx.x & 31;
    struct ring_place<DOWN_STAGES> place;
#pragma unroll 1
    for (int32_t i = threadIdx.x >> 5; i < share.n_units; i += WARPS) {
        const T *x = act + i % p.route.k * padded(p.ffn);
        float acc[1][4] = {};
#pragma unroll 1
        for (int32_t k = 0; k < p.ffn; k += DEPTH) {
            place.wait();
            load.next(p, share, picks, ring + place.before() * STAGE);
            multiply<T, 1>(acc, x + k, ring + place.at * STAGE);
            place.next();
        }
        const float *bias = p.down_bias ? p.down_bias + share.row_of(p, picks, i) : NULL;
        for (int e = 0; lane < 4 && e < 2; e++) {
            dots[i][lane * 2 + e] = rounded_out<T>(acc[0][e], bias ? bias + lane * 2 + e : NULL);
        }
    }
}

template <typename T, int EACH>
__global__ void __launch_bounds__(THREADS, 2)
    fixed_down_kernel(struct few_params p, int32_t groups, bool accumulate)
{
    extern __shared__ __align__(128) char memory[];
    __shared__ struct ordered_picks picks;
    __shared__ float dots[MOST_GROUPS * MOE_MAX_K][FEATURES]; // by unit
    const struct down_share share(p, groups);
    const int32_t warp = threadIdx.x >> 5, row = blockIdx.y, k = p.route.k;
    T *rings = (T *)memory, *ring = rings + warp * DOWN_RING, *act = rings + WARPS * DOWN_RING;
    if (row >= n_real(p)) {
        pdl_wait();
        return;
    }
    pick_for_down<EACH>(p, row, (float *)memory, picks);
    struct down_loader<T> load = {
        warp, 0, NULL
    };
#pragma unroll 1
    for (int i = 0; i < DOWN_STAGES - 1; i++) {
        load.next(p, share, picks, ring + i * STAGE);
    }
    pdl_wait();
    pdl_trigger();
    copy_acts(p, picks, row, act);
    down_dots<T>(p, share, picks, load, act, ring, dots);
    cp_async_wait<0>();
    __syncthreads();
    if (threadIdx.x < share.n_groups * FEATURES) {
        const int32_t group = threadIdx.x / FEATURES, feature = threadIdx.x % FEATURES;
        T *to = (T *)p.y + row * p.y_stride + share.first * FEATURES + threadIdx.x;
        float sum = 0.0f;
        for (int32_t i = 0; i < k; i++) {
            sum = fmaf(picks.pick[i].weight, dots[group * k + i][feature], sum);
        }
        *to = from_float<T>(accumulate ? to_float(*to) + sum : sum);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static size_t up_bytes(int32_t warps, int32_t hidden)
{
    const size_t needed = (size_t)(warps * UP_RING + padded(hidden)) * sizeof(uint16_t);
    return needed > LEAST_UP_BYTES ? needed : (size_t)LEAST_UP_BYTES;
}

static size_t down_bytes(int32_t k, int32_t ffn)
{
    return (size_t)(WARPS * DOWN_RING + k * padded(ffn)) * sizeof(uint16_t);
}

bool moe_few_fixed_takes(const struct moe_ffn_args *a, const struct moe_weights *w)
{
    return launch_sm() >= 90 && a->n_rows <= MOST_ROWS && a->n_experts <= MOST_EXPERTS &&
           moe_rounds(a, w) && up_bytes(MOST_UP_WARPS, w->hidden) <= MOST_BYTES &&
           down_bytes(a->k, a->ffn) <= MOST_BYTES;
}

static inline int32_t up_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

/* The number of a row's units in each block, so that all rows' blocks run at once. */
static int32_t units_per_block(const struct few_params &p, int32_t units)
{
    const int32_t blocks = n_multiprocessors() / p.route.n_rows;
    return up_div(units, blocks > 0 ? blocks : 1);
}

/* A block has only as many warps as divide its units evenly. */
template <typename T, int EACH>
static cudaError_t up(cudaStream_t stream, const struct few_params &p, enum activation kind)
{
    const int32_t units = p.n_acts / FEATURES, each = units_per_block(p, units);
    const int32_t even = up_div(each, up_div(each, MOST_UP_WARPS));
    const int32_t warps = even > LEAST_UP_WARPS ? even : (int32_t)LEAST_UP_WARPS;
    const dim3 grid(up_div(units, each), p.route.n_rows);
    BY_ACTIVATION(kind, KIND, {
        const auto kernel = fixed_up_kernel<T, KIND, EACH>;
        const cudaError_t e = allow_shared(kernel, MOST_BYTES);
        return e != cudaSuccess
                   ? e
                   : launch(kernel, grid, dim3(32 * warps), up_bytes(warps, p.hidden), stream, p);
    });
    return cudaErrorInvalidValue;
}

template <typename T, int EACH>
static cudaError_t down(cudaStream_t stream, const struct few_params &p, bool accumulate)
{
    const auto kernel = fixed_down_kernel<T, EACH>;
    const int32_t all = p.hidden / FEATURES, even = units_per_block(p, all);
    const int32_t groups = even < MOST_GROUPS ? even : (int32_t)MOST_GROUPS;
    const cudaError_t e = allow_shared(kernel, MOST_BYTES);
    return e != cudaSuccess
               ? e
               : launch(kernel, dim3(up_div(all, groups), p.route.n_rows), dim3(THREADS),
                        down_bytes(p.route.k, p.ffn), stream, p, groups, accumulate);
}

template <typename T, int EACH>
static cudaError_t both(cudaStream_t stream, const struct few_params &p, enum activation kind,
                        bool accumulate)
{
    const cudaError_t e = up<T, EACH>(stream, p, kind);
    return e != cudaSuccess ? e : down<T, EACH>(stream, p, accumulate);
}

cudaError_t moe_few_fixed(cudaStream_t stream, const struct moe_ffn_args *a,
                          const struct moe_weights *w, void *act, const int32_t *real,
                          const struct moe_picks *picks, const struct norm_args *norm)
{
    struct few_params p = {};
    p.norm = few_norm_of(norm, NULL);
    p.route = route_params_of(picks->route);
    p.correction = picks->correction;
    p.expert_scale = picks->expert_scale;
    p.up_bias = w->gate_up_bias;
    p.down_bias = a->partial ? NULL : w->down_bias;
    p.real = real;
    p.logits = (float *)picks->logits;
    p.ids = (int32_t *)a->ids.p;
    p.weights = (float *)a->weights.p;
    p.x = a->x.mem.p;
    p.x_stride = a->x.stride;
    p.gate_up = w->gate_up;
    p.down = w->down;
    p.act = act;
    p.y = a->y.mem.p;
    p.y_stride = a->y.stride;
    p.hidden = w->hidden;
    p.ffn = a->ffn;
    p.n_scores = a->n_experts;
    p.n_acts = a->k * a->ffn;
    p.shape = a->shape;
    if (a->x.dtype == DT_BF16) {
        return a->n_experts <= 256 ? both<bf16_t, 8>(stream, p, a->kind, a->accumulate)
                                   : both<bf16_t, 16>(stream, p, a->kind, a->accumulate);
    }
    return a->n_experts <= 256 ? both<f16_t, 8>(stream, p, a->kind, a->accumulate)
                               : both<f16_t, 16>(stream, p, a->kind, a->accumulate);
}
