// SPDX-License-Identifier: Apache-2.0
/* The products of moe/few.cu for 2 to 8 rows, as in verifying drafts: one block per multiprocessor,
 * whose warps take one feature of a row's pick after another. So a block makes the picks of all
 * rows only once, with one warp per row. Each warp has a ring for its weights (cp.async), so that
 * the next features' weights are in flight while it multiplies. A lane reads only what it has
 * copied itself, so the ring needs no barrier.
 *
 *   up      a feature: gate and up rows and the activation
 *   down    an output feature: the row's picks and its shared expert, weighted
 *
 * `down` makes its picks and fills its rings before its wait (pdl_wait), beside the last blocks of
 * `up`. A multiprocessor's shared memory holds one block of each kernel, but not two of `up`, which
 * would leave another multiprocessor without one. `down` sums in another order than few.cu.
 * Bound by reading the weights of the picks. */
#include "cuda/kernels/moe/few.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, LEAST_ROWS = 2, MOST_ROWS = 8 };
enum { PIECE = 2 * STEP }; // elements of a weight row that a warp loads at once
enum { UP_STAGES = 3, DOWN_STAGES = 4 };
enum { UP_RING = UP_STAGES * 2 * PIECE, DOWN_RING = DOWN_STAGES * PIECE }; // elements per warp
enum { UP_LEAST_BYTES = 116 << 10, MOST_BYTES = 220 << 10 };

/* Copies the lane's part of a piece of a row of n elements: runs that are STEP elements apart. */
template <typename T>
__device__ __forceinline__ void copy_piece(T *to, const T *row, int32_t at, int32_t n)
{
#pragma unroll
    for (int i = 0; i < PIECE / STEP; i++) {
        if (at + i * STEP < n) {
            cp_async_16((uint32_t)__cvta_generic_to_shared(to + i * STEP), row + at + i * STEP);
        }
    }
}

/* Copies n elements, a multiple of RUN, from memory that another kernel has written. */
template <typename T>
__device__ __forceinline__ void copy_all(T *to, const T *from, int32_t n, int32_t thread)
{
#pragma unroll 5
    for (int32_t i = thread * RUN; i < n; i += THREADS * RUN) {
        vec<T> v;
        v.load(from + i);
        v.store(to + i);
    }
}

/* ---- up -------------------------------------------------------------------------------------- */

/* A feature of a row's pick (slot < k) or of its shared expert. */
template <typename T> struct up_unit {
    int32_t row, feature;
    const T *gate, *up;
    const float *bias; // of gate; that of up is `width` after it
    int32_t width;
};

template <typename T>
__device__ __forceinline__ struct up_unit<T>
up_unit_of(const struct few_params &p, const int32_t (*picks)[MOE_MAX_K], int32_t u)
{
    struct up_unit<T> w;
    w.row = u / p.n_acts;
    w.feature = u - w.row * p.n_acts;
    const bool routed = w.feature < p.route.k * p.ffn;
    const int32_t slot = routed ? w.feature / p.ffn : p.route.k, j = w.feature - slot * p.ffn;
    w.width = routed ? p.ffn : p.shared_ffn;
    const int64_t first = (routed ? (int64_t)picks[w.row][slot] * 2 * w.width : 0) + j;
    w.gate = (const T *)(routed ? p.gate_up : p.shared_gate_up) + first * p.hidden;
    w.up = w.gate + (int64_t)w.width * p.hidden;
    w.bias = routed && p.up_bias ? p.up_bias + first : NULL;
    return w;
}

/* What a warp loads next: the piece of a unit that starts at element `at`. */
template <typename T> struct up_loader {
    int32_t unit, at, slot;
    const T *gate, *up;

    __device__ __forceinline__ void next(const struct few_params &p,
                                         const int32_t (*picks)[MOE_MAX_K], int32_t n, T *ring)
    {
        const int32_t lane = threadIdx.x & 31;
        if (unit < n) {
            if (at == 0) {
                const struct up_unit<T> w = up_unit_of<T>(p, picks, unit);
                gate = w.gate;
                up = w.up;
            }
            T *to = ring + slot * 2 * PIECE + lane * RUN;
            copy_piece(to, gate, at + lane * RUN, p.hidden);
            copy_piece(to + PIECE, up, at + lane * RUN, p.hidden);
            at += PIECE;
            if (at >= p.hidden) {
                at = 0;
                unit += (int32_t)gridDim.x * WARPS;
            }
        }
        cp_async_commit();
        slot = slot + 1 == UP_STAGES ? 0 : slot + 1;
    }
};

template <typename T, int KIND>
__device__ __forceinline__ void up_features(const struct few_params &p,
                                            const int32_t (*picks)[MOE_MAX_K], const T *x, T *ring)
{
    const int32_t lane = threadIdx.x & 31, n = n_real(p) * p.n_acts;
    const int32_t first = (int32_t)blockIdx.x * WARPS + (int32_t)(threadIdx.x >> 5);
    struct up_loader<T> load = {
        first, 0, 0, NULL, NULL
    };
    int32_t slot = 0;
    for (int i = 0; i < UP_STAGES - 1; i++) {
        load.next(p, picks, n, ring);
    }
#pragma unroll 1
    for (int32_t unit = first; unit < n; unit += (int32_t)gridDim.x * WARPS) {
        const struct up_unit<T> w = up_unit_of<T>(p, picks, unit);
        const T *row = x + w.row * p.hidden;
        float gate = 0.0f, up = 0.0f;
#pragma unroll 1
        for (int32_t at = lane * RUN; at < p.hidden + lane * RUN; at += PIECE) {
            load.next(p, picks, n, ring);
            wait_copies<UP_STAGES - 1>();
            const T *from = ring + slot * 2 * PIECE + lane * RUN;
#pragma unroll
            for (int i = 0; i < PIECE / STEP; i++) {
                if (at + i * STEP < p.hidden) {
                    vec<T> v, g, u;
                    v.load(row + at + i * STEP);
                    g.load(from + i * STEP);
                    u.load(from + PIECE + i * STEP);
                    gate = dot_run(v, g, gate);
                    up = dot_run(v, u, up);
                }
            }
            slot = slot + 1 == UP_STAGES ? 0 : slot + 1;
        }
        gate = warp_sum(gate);
        up = warp_sum(up);
        if (lane == 0) {
            if (w.bias) {
                gate += w.bias[0];
                up += w.bias[w.width];
            }
            ((T *)p.act)[(int64_t)w.row * p.n_acts + w.feature] =
                from_float<T>(act_gated<KIND>(gate, up, p.shape));
        }
    }
}

/* Before the wait, picks are made once from stale scores, only to load the code into the cache. */
template <typename T, int KIND, int EACH>
__global__ void __launch_bounds__(THREADS, 1) some_up_kernel(struct few_params p)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ int32_t picks[MOST_ROWS][MOE_MAX_K];
    T *x = (T *)memory, *ring = x + p.route.n_rows * p.hidden;
    const int32_t lane = threadIdx.x & 31, row = (int32_t)threadIdx.x >> 5, k = p.route.k;
    const int32_t n_rows = n_real(p);
    T *mine = ring + row * UP_RING;
#pragma unroll 1
    for (int round = 0; round < 2; round++) {
        if (round == 1) {
            pdl_wait();
            pdl_trigger();
        }
        if (row < n_rows) {
            const struct pick pick = pick_row<EACH>(p.logits + row * p.n_scores, p.correction,
                                                    p.expert_scale, p.route, (float *)mine);
            if (round == 1 && lane < k) {
                picks[row][lane] = pick.id;
                if (blockIdx.x == 0) {
                    p.ids[row * k + lane] = pick.id;
                    p.weights[row * k + lane] = pick.weight;
                }
            }
        } else if (round == 1) {
            for (int32_t r = 0; r < n_rows; r++) {
                const int32_t thread = (int32_t)threadIdx.x - n_rows * 32;
#pragma unroll 1
                for (int32_t i = thread * RUN; i < p.hidden; i += (THREADS - n_rows * 32) * RUN) {
                    vec<T> v;
                    v.load((const T *)p.x + r * p.x_stride + i);
                    v.store(x + r * p.hidden + i);
                }
            }
        }
    }
    __syncthreads();
    if (blockIdx.x < n_rows) {
        store_added<T>(p, (int32_t)blockIdx.x);
    }
    up_features<T, KIND>(p, picks, x, mine);
}

/* ---- down ------------------------------------------------------------------------------------ */

/* The experts of a row: its picks and, last, the shared expert. */
template <typename T> struct down_picks {
    const T *weights[MOE_MAX_K + 1];
    float weight[MOE_MAX_K + 1];
    int32_t id[MOE_MAX_K];
};

/* A piece of an output feature's weights: elements from `at` on in the row's pick number `slot`.
 * It only moves to the next piece: divisions would take longer than the rest of a step. */
struct down_place {
    int32_t row, feature, slot, at, width;

    __device__ __forceinline__ void set_feature(const struct few_params &p, int32_t n)
    {
        for (feature = n; feature >= p.hidden; feature -= p.hidden) {
            row++;
        }
        slot = at = 0;
        width = p.ffn;
    }
    __device__ __forceinline__ void next(const struct few_params &p)
    {
        at += PIECE;
        if (at >= width) {
            at = 0;
            slot++;
            width = slot < p.route.k ? p.ffn : p.shared_ffn;
            if (slot > p.route.k || width == 0) {
                set_feature(p, feature + (int32_t)gridDim.x * WARPS);
            }
        }
    }
};

template <typename T> struct down_loader {
    struct down_place place;
    int32_t stage;

    __device__ __forceinline__ void next(const struct few_params &p,
                                         const struct down_picks<T> *picks, int32_t n_rows, T *ring)
    {
        const int32_t lane = threadIdx.x & 31;
        if (place.row < n_rows) {
            const T *from =
                picks[place.row].weights[place.slot] + (int64_t)place.feature * place.width;
            copy_piece(ring + stage * PIECE + lane * RUN, from, place.at + lane * RUN, place.width);
            place.next(p);
        }
        cp_async_commit();
        stage = stage + 1 == DOWN_STAGES ? 0 : stage + 1;
    }
};

/* Computes a warp's features. Before the call, the loader has filled all ring slots but one. */
template <typename T>
__device__ __forceinline__ void
down_features(const struct few_params &p, const struct down_picks<T> *picks, int32_t n_rows,
              struct down_place place, struct down_loader<T> &load, const T *act, T *ring)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    int32_t stage = 0;
    float sum = 0.0f, dot = 0.0f;
#pragma unroll 1
    while (place.row < n_rows) {
        const struct down_place now = place;
        const T *a = act + now.row * p.n_acts + now.slot * p.ffn;
        load.next(p, picks, n_rows, ring);
        wait_copies<DOWN_STAGES - 1>();
        const T *from = ring + stage * PIECE + lane * RUN;
#pragma unroll
        for (int i = 0; i < PIECE / STEP; i++) {
            const int32_t at = now.at + lane * RUN + i * STEP;
            if (at < now.width) {
                vec<T> v, w;
                v.load(a + at);
                w.load(from + i * STEP);
                dot = dot_run(v, w, dot);
            }
        }
        stage = stage + 1 == DOWN_STAGES ? 0 : stage + 1;
        place.next(p);
        if (place.at == 0) { // the pick's last piece
            sum = fmaf(picks[now.row].weight[now.slot], dot, sum);
            dot = 0.0f;
        }
        if (place.at == 0 && place.slot == 0) { // the feature's last piece
            sum = warp_sum(sum);
            if (lane == 0) {
                for (int32_t i = 0; p.down_bias && i < k; i++) {
                    const int64_t row = (int64_t)picks[now.row].id[i] * p.hidden;
                    sum = fmaf(picks[now.row].weight[i], p.down_bias[row + now.feature], sum);
                }
                ((T *)p.y)[now.row * p.y_stride + now.feature] = from_float<T>(sum);
            }
            sum = 0.0f;
        }
    }
}

/* Makes the row's picks. Called by the row's warp. */
template <typename T, int EACH>
__device__ __forceinline__ void pick_down(const struct few_params &p, int32_t row,
                                          struct down_picks<T> &picks, float *shared)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    const float *logits = p.logits + row * p.n_scores;
    const struct pick mine = pick_row<EACH>(logits, p.correction, p.expert_scale, p.route, shared);
    if (lane < k) {
        picks.weights[lane] = (const T *)p.down + (int64_t)mine.id * p.hidden * p.ffn;
        picks.weight[lane] = mine.weight;
        picks.id[lane] = mine.id;
    }
    if (lane == 0) {
        picks.weights[k] = (const T *)p.shared_down;
        picks.weight[k] = p.gate ? 1.0f / (1.0f + expf(-logits[p.n_scores - 1])) : 1.0f;
    }
}

/* The scores are complete before the wait, because `up` triggers only after its own wait. */
template <typename T, int EACH>
__global__ void __launch_bounds__(THREADS, 1) some_down_kernel(struct few_params p)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ struct down_picks<T> picks[MOST_ROWS];
    T *ring = (T *)memory, *act = ring + WARPS * DOWN_RING;
    const int32_t warp = (int32_t)threadIdx.x >> 5, n_rows = n_real(p);
    if (warp < n_rows) {
        pick_down<T, EACH>(p, warp, picks[warp], (float *)memory + warp * pick_floats(p.route));
    }
    __syncthreads();
    ring += warp * DOWN_RING;
    struct down_place first = {};
    first.set_feature(p, (int32_t)blockIdx.x * WARPS + warp);
    struct down_loader<T> load = {first, 0};
    for (int i = 0; i < DOWN_STAGES - 1; i++) {
        load.next(p, picks, n_rows, ring);
    }
    pdl_wait();
    pdl_trigger();
    copy_all(act, (const T *)p.act, n_rows * p.n_acts, (int32_t)threadIdx.x);
    __syncthreads();
    down_features<T>(p, picks, n_rows, first, load, act, ring);
}

/* ---- launches -------------------------------------------------------------------------------- */

static size_t up_bytes(const struct few_params &p)
{
    const size_t n = (size_t)(p.route.n_rows * p.hidden + WARPS * UP_RING) * sizeof(uint16_t);
    return n > UP_LEAST_BYTES ? n : (size_t)UP_LEAST_BYTES;
}

/* The rings, whose memory the picks use until the rings are filled, and the inputs. */
static size_t down_bytes(const struct few_params &p)
{
    return (size_t)(WARPS * DOWN_RING + p.route.n_rows * p.n_acts) * sizeof(uint16_t);
}

bool k_moe_some_takes(const struct few_params &p)
{
    const size_t of_pick = (size_t)pick_floats(p.route) * sizeof(float);
    return launch_sm() >= 90 && p.route.n_rows >= LEAST_ROWS && p.route.n_rows <= MOST_ROWS &&
           up_bytes(p) <= MOST_BYTES && down_bytes(p) <= MOST_BYTES &&
           of_pick <= UP_RING * sizeof(uint16_t) &&
           of_pick * MOST_ROWS <= WARPS * DOWN_RING * sizeof(uint16_t);
}

template <typename T, int EACH>
static cudaError_t up(cudaStream_t stream, const struct few_params &p, enum activation kind)
{
    BY_ACTIVATION(kind, KIND, {
        const cudaError_t e = allow_shared(some_up_kernel<T, KIND, EACH>, MOST_BYTES);
        return e != cudaSuccess ? e
                                : launch(some_up_kernel<T, KIND, EACH>, dim3(n_multiprocessors()),
                                         dim3(THREADS), up_bytes(p), stream, p);
    });
    return cudaErrorInvalidValue;
}

template <typename T, int EACH>
static cudaError_t some(cudaStream_t stream, const struct few_params &p, enum activation kind)
{
    cudaError_t e = up<T, EACH>(stream, p, kind);
    e = e != cudaSuccess ? e : allow_shared(some_down_kernel<T, EACH>, MOST_BYTES);
    return e != cudaSuccess ? e
                            : launch(some_down_kernel<T, EACH>, dim3(n_multiprocessors()),
                                     dim3(THREADS), down_bytes(p), stream, p);
}

cudaError_t k_moe_some(cudaStream_t stream, const struct few_params &p, enum dtype dtype,
                       enum activation kind)
{
    const bool many = p.route.n_experts > 256;
    if (dtype == DT_BF16) {
        return many ? some<bf16_t, 16>(stream, p, kind) : some<bf16_t, 8>(stream, p, kind);
    }
    return many ? some<f16_t, 16>(stream, p, kind) : some<f16_t, 8>(stream, p, kind);
}
