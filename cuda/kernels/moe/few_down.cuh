// SPDX-License-Identifier: Apache-2.0
/* The last kernel of few.cu: the `down` product of all picks and of the shared expert. A warp reads
 * the rows of two output features one after another through a ring of its own, which it fills
 * before the wait. The inputs are first multiplied by the weights of their picks, so each feature
 * is one long dot product. Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_MOE_FEW_DOWN_CUH
#define SLUICE_CUDA_KERNELS_MOE_FEW_DOWN_CUH

#include "cuda/kernels/moe/few.cuh"

enum { LEAST_DOWN_WARPS = 8, MOST_DOWN_WARPS = 16, MOST_PIECES = 128 };
enum { FEATURES = 2 }; // that a warp computes at once
enum { STAGE_STEPS = 2, STAGE_BYTES = STAGE_STEPS * FEATURES * STEP * 2 };

/* An output feature has a weight row in each pick and one in the shared expert. A piece is the part
 * of such a row that a warp loads at once. */
struct down_piece {
    const char *from;     // the piece of feature 0
    int32_t row_bytes, n; // row_bytes: between features; n: elements (zeros follow)
    int32_t act;          // the first of the inputs that the piece is multiplied by
    float weight;         // the router's weight of the pick
};

static __host__ __device__ int32_t pieces_of(const struct few_params &p)
{
    return p.route.k * ((p.ffn + STEP - 1) / STEP) + (p.shared_ffn + STEP - 1) / STEP;
}

/* Lists all pieces. Called by all threads of the block. */
template <typename T>
__device__ __forceinline__ void list_pieces(const struct few_params &p, const struct pick *picks,
                                            struct down_piece *pieces)
{
    const int32_t each = (p.ffn + STEP - 1) / STEP, n = pieces_of(p), n_routed = p.route.k * each;
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += (int32_t)blockDim.x) {
        const bool routed = i < n_routed;
        const int32_t slot = routed ? i / each : p.route.k, at = (i - slot * each) * STEP;
        const int32_t width = routed ? p.ffn : p.shared_ffn;
        const T *w = routed ? (const T *)p.down + (int64_t)picks[slot].id * p.hidden * width
                            : (const T *)p.shared_down;
        pieces[i] = {(const char *)(w + at), width * (int32_t)sizeof(T), min(width - at, (int)STEP),
                     slot * p.ffn + at, picks[slot].weight};
    }
    __syncthreads();
}

/* A warp's place in the weights: it takes every n-th group of its block's features. */
struct down_place {
    int32_t feature, end, piece;

    /* Moves to the next piece. True if that is the first piece of other features. */
    __device__ __forceinline__ bool next(int32_t n_pieces)
    {
        if (++piece < n_pieces) {
            return false;
        }
        piece = 0;
        feature += FEATURES * (int32_t)(blockDim.x >> 5);
        return true;
    }
};

/* Starts to load a stage of a warp's ring. Each lane will read only what it has copied itself. */
template <typename T>
__device__ __forceinline__ void load_stage(const struct down_piece *pieces, int32_t n_pieces,
                                           struct down_place &from, T *stage)
{
    const int32_t lane = threadIdx.x & 31;
#pragma unroll 2
    for (int i = 0; i < STAGE_STEPS; i++) {
        if (from.feature < from.end) {
            const struct down_piece &piece = pieces[from.piece];
            const bool is = lane * RUN < piece.n;
#pragma unroll
            for (int f = 0; f < FEATURES; f++) {
                cp_async_16(stage + (i * FEATURES + f) * STEP + lane * RUN,
                            piece.from + (int64_t)(from.feature + f) * piece.row_bytes +
                                (is ? lane * 16 : 0),
                            is);
            }
            from.next(n_pieces);
        }
    }
    cp_async_commit();
}

/* Stores a feature's sum, `own` if it is that of the shared expert alone. */
template <typename T>
__device__ __forceinline__ void store_feature(const struct few_params &p, const struct pick *picks,
                                              int32_t feature, float sum, bool own)
{
    const int32_t lane = threadIdx.x & 31;
    if (p.down_bias && lane < p.route.k && !own) { // the bias of each pick is weighted as well
        sum = fmaf(picks[lane].weight, p.down_bias[(int64_t)picks[lane].id * p.hidden + feature],
                   sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        T *y = own ? (T *)p.own_y : (T *)p.y + blockIdx.y * p.y_stride;
        y[feature] = from_float<T>(sum);
    }
}

/* Adds a stage's products. If the shared expert has an output of its own, a feature's sum is stored
 * before its pieces, too. The first four and the last four of a lane's inputs of a piece are kept
 * apart, so that neither load has bank conflicts. */
template <typename T>
__device__ __forceinline__ void add_stage(const struct few_params &p, const struct pick *picks,
                                          int32_t n_pieces, struct down_place &at, const float *act,
                                          const T *stage, float (&sum)[FEATURES][2])
{
    const int32_t lane = threadIdx.x & 31;
#pragma unroll 2
    for (int i = 0; i < STAGE_STEPS; i++) {
        if (at.feature >= at.end) {
            continue;
        }
        const float *x = act + at.piece * STEP + lane * 4;
        const float4 a = *(const float4 *)x, b = *(const float4 *)(x + STEP / 2);
#pragma unroll
        for (int f = 0; f < FEATURES; f++) {
            vec<T> w;
            w.load(stage + (i * FEATURES + f) * STEP + lane * RUN);
            sum[f][0] = fmaf(to_float(w.v[0]), a.x, sum[f][0]);
            sum[f][1] = fmaf(to_float(w.v[4]), b.x, sum[f][1]);
            sum[f][0] = fmaf(to_float(w.v[1]), a.y, sum[f][0]);
            sum[f][1] = fmaf(to_float(w.v[5]), b.y, sum[f][1]);
            sum[f][0] = fmaf(to_float(w.v[2]), a.z, sum[f][0]);
            sum[f][1] = fmaf(to_float(w.v[6]), b.z, sum[f][1]);
            sum[f][0] = fmaf(to_float(w.v[3]), a.w, sum[f][0]);
            sum[f][1] = fmaf(to_float(w.v[7]), b.w, sum[f][1]);
        }
        const int32_t feature = at.feature;
        const bool last = at.next(n_pieces);
        if (last || at.piece == p.own_piece) {
#pragma unroll
            for (int f = 0; f < FEATURES; f++) {
                store_feature<T>(p, picks, feature + f, sum[f][0] + sum[f][1], last && p.own_y);
                sum[f][0] = sum[f][1] = 0.0f;
            }
        }
    }
}

/* Before the wait, the first warp makes the picks. `scores` has ended, but `up` may still run. */
template <int EACH>
__device__ __forceinline__ void pick_again(const struct few_params &p, int32_t row, float *shared,
                                           struct pick *picks)
{
    const int32_t lane = threadIdx.x & 31, k = p.route.k;
    if (threadIdx.x < 32) {
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
}

/* Bytes of a block's inputs, as floats. Until these are copied, the picks use the same memory. */
__host__ __device__ static inline int32_t act_bytes(const struct few_params &p)
{
    const int32_t picks = (pick_floats(p.route) + 3) / 4 * 4, acts = pieces_of(p) * STEP;
    return (picks > acts ? picks : acts) * (int32_t)sizeof(float);
}

/* Copies the inputs, multiplied by the weights of their picks, and pads each piece with zeros. A
 * lane loads several runs before it stores the first. */
template <typename T>
__device__ __forceinline__ void copy_act(const struct few_params &p,
                                         const struct down_piece *pieces, int32_t n_pieces,
                                         int32_t row, float *to)
{
    enum { AT_ONCE = 4 };
    const int32_t lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    const T *act = (const T *)p.act + (int64_t)row * p.n_acts + lane * RUN;
#pragma unroll 1
    for (int32_t first = (int32_t)threadIdx.x >> 5; first < n_pieces; first += AT_ONCE * warps) {
        vec<T> v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int32_t i = first + j * warps;
            *(uint4 *)v[j].v = uint4{0, 0, 0, 0};
            if (i < n_pieces && lane * RUN < pieces[i].n) {
                v[j].load(act + pieces[i].act);
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int32_t i = first + j * warps;
            if (i < n_pieces) {
                const float weight = pieces[i].weight;
                float x[RUN], *here = to + i * STEP + lane * 4;
#pragma unroll
                for (int e = 0; e < RUN; e++) {
                    x[e] = to_float(v[j].v[e]) * weight;
                }
                *(float4 *)here = make_float4(x[0], x[1], x[2], x[3]);
                *(float4 *)(here + STEP / 2) = make_float4(x[4], x[5], x[6], x[7]);
            }
        }
    }
    __syncthreads();
}

/* One block per multiprocessor, beside one of `up`; each block has a range of features. */
template <typename T, int EACH, int STAGES>
__global__ void __launch_bounds__(32 * MOST_DOWN_WARPS, 2) few_down_kernel(struct few_params p)
{
    extern __shared__ __align__(16) float shared[]; // inputs, then the warps' rings
    __shared__ struct pick picks[MOE_MAX_K + 1];
    __shared__ struct down_piece pieces[MOST_PIECES];
    const int32_t warp = threadIdx.x >> 5, row = blockIdx.y, n = pieces_of(p);
    const int32_t groups = p.hidden / FEATURES, block = (int32_t)blockIdx.x;
    if (row >= n_real(p)) {
        pdl_wait();
        return;
    }
    pick_again<EACH>(p, row, shared, picks);
    list_pieces<T>(p, picks, pieces);
    T *ring = (T *)((char *)shared + act_bytes(p)) + warp * STAGES * STAGE_STEPS * FEATURES * STEP;
    struct down_place at = {FEATURES * (groups * block / (int32_t)gridDim.x + warp),
                            FEATURES * (groups * (block + 1) / (int32_t)gridDim.x), 0};
    struct down_place ahead = at;
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) {
        load_stage(pieces, n, ahead, ring + i * STAGE_STEPS * FEATURES * STEP);
    }
    pdl_wait();
    pdl_trigger();
    copy_act<T>(p, pieces, n, row, shared);
    float sum[FEATURES][2] = {};
#pragma unroll 1
    for (int stage = 0; at.feature < at.end; stage = stage + 1 < STAGES ? stage + 1 : 0) {
        T *here = ring + stage * STAGE_STEPS * FEATURES * STEP;
        wait_copies<STAGES - 1>();
        add_stage(p, picks, n, at, shared, here, sum);
        load_stage(pieces, n, ahead, here);
    }
    cp_async_wait<0>();
}

#endif
