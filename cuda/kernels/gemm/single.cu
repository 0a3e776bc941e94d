// SPDX-License-Identifier: Apache-2.0
/* y = x W^T for a single row of 16 bits and a weight of few features, without bias, and the norm of
 * x if there is one, which every block computes. A block has a multiprocessor, of which the bands
 * of small.cu would leave many idle, and a range of the features. Its warps take one feature after
 * another, each through a ring of its own (cp.async), which it fills before the wait; a lane reads
 * only what it has copied itself. Bound by reading W, and by latency if the rings hold all of it.
 * It leaves registers for the blocks of the next kernels, which start beside its own.
 *
 * If gated, a block's rows of W alternate between the two halves of W, so that a feature's gate and
 * its factor are computed by neighbouring warps, and the block applies the activation at the end.
 */
#include "cuda/gemm.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/norm.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"

#include <algorithm>

enum { WARPS = 16, THREADS = 32 * WARPS };
enum { RUN = 8, STEP = 32 * RUN, STEPS = 4, STAGE = STEPS * STEP }; // elements: of a lane, a warp
enum { STAGES = 3 };                                      // of a warp's ring; more are no faster
enum { LEAST_IN = 512, MOST_IN = 12288, MOST_EACH = 40 }; // MOST_EACH: features per multiprocessor
enum { MOST_GATED = STAGES * WARPS };                     // rows of W per block, if gated
/* Of a block's shared memory: no two share a multiprocessor, but one fits beside a block of
 * attention/mla_few.cu, and beside one that takes only what it needs. */
enum { LEAST_BYTES = 114 << 10 };

struct single_params {
    const void *x, *w;
    void *y;
    int32_t n_out, n_in, n_stages; // n_out: elements of y; n_stages: of a warp's ring
    int32_t stage;                 // elements of a stage
};

static_assert((int)WARPS == (int)INPUT_NORM_READERS, "");

/* The rows of W that a block multiplies: n of them, for features from `first` on. */
template <bool GATED> struct single_rows {
    int32_t first, n;

    __device__ __forceinline__ single_rows(const struct single_params &p)
    {
        const int64_t n_out = p.n_out, block = blockIdx.x;
        first = (int32_t)(n_out * block / gridDim.x);
        const int32_t features = (int32_t)(n_out * (block + 1) / gridDim.x) - first;
        n = GATED ? 2 * features : features;
    }
    __device__ __forceinline__ int64_t of_weight(const struct single_params &p, int32_t row) const
    {
        return GATED ? (int64_t)(row & 1) * p.n_out + first + (row >> 1) : first + row;
    }
};

/* A warp's next stage to load. */
template <typename T, bool GATED> struct single_ring {
    const struct single_rows<GATED> &rows;
    T *ring;
    int32_t row, at, slot;

    __device__ __forceinline__ void next(const struct single_params &p)
    {
        if (row < rows.n) {
            const int32_t mine = (threadIdx.x & 31) * RUN;
            const T *from = (const T *)p.w + rows.of_weight(p, row) * p.n_in;
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const int32_t e = at + i * STEP + mine;
                if (e < p.n_in) {
                    cp_async_16(
                        (uint32_t)__cvta_generic_to_shared(ring + slot * p.stage + i * STEP + mine),
                        from + e);
                }
            }
            at += STAGE;
            if (at >= p.n_in) {
                at = 0;
                row += WARPS;
            }
            slot = slot + 1 == p.n_stages ? 0 : slot + 1;
        }
        cp_async_commit();
    }
};

/* Adds the products of a stage. */
template <typename T>
__device__ __forceinline__ void add_stage(const T *x, const T *w, int32_t left, float (&sum)[2])
{
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        if (i * STEP < left) {
            vec<T> a, b;
            a.load(x + i * STEP);
            b.load(w + i * STEP);
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                sum[e & 1] = fmaf(to_float(a.v[e]), to_float(b.v[e]), sum[e & 1]);
            }
        }
    }
}

/* The norm of x, of which a thread has one run. */
template <typename T> struct single_norm {
    const struct input_norm &n;
    T *x;
    int32_t at, n_in;
    float weights[RUN];
    vec<T> sum;          // x plus its delta
    uint32_t before = 0; // the number of blocks whose threads of this warp had read x and its delta

    __device__ __forceinline__ void load_weights()
    {
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            weights[e] = at < n_in ? n.weight[at + e] + n.offset : 0.0f;
        }
    }

    __device__ __forceinline__ void load()
    {
        *(uint4 *)sum.v = uint4{0, 0, 0, 0};
        if (at < n_in) {
            sum.load(x + at);
        }
        if (at < n_in && n.delta) {
            vec<T> d;
            d.load((const T *)n.delta + at);
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                const float f = to_float(sum.v[e]) + n.delta_scale * to_float(d.v[e]);
                sum.v[e] = from_float<T>(f * n.x_scale);
            }
        }
    }

    /* Called by all threads of the block. */
    __device__ __forceinline__ void compute(T *to)
    {
        __shared__ float shared[32];
        float squares = 0.0f;
        load();
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            squares = moment_add(squares, to_float(sum.v[e]), false);
        }
        const float scale = 1.0f / sqrtf(block_sum(squares, shared) / (float)n_in + n.eps);
        if (n.delta && threadIdx.x % 32 == 0) {
            before = atomicInc(n.readers + threadIdx.x / 32, gridDim.x - 1);
        }
        if (at < n_in) {
            vec<T> v;
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                v.v[e] = from_float<T>(normed(to_float(sum.v[e]), weights[e], 0.0f, 0.0f, scale));
            }
            v.store(to + at);
        }
    }

    /* Stores the sum if no other block still reads the old values, all of which had been used when
     * they were counted. Called by whole warps. */
    __device__ __forceinline__ void store_sum() const
    {
        if (n.delta && __shfl_sync(0xffffffffu, before, 0) == gridDim.x - 1 && at < n_in) {
            sum.store(x + at);
        }
    }
};

/* Of each feature, its gate and its factor, both rounded as if stored. */
template <typename T>
__device__ __forceinline__ void store_gated(T *y, const float (&both)[MOST_GATED], int32_t n)
{
    __syncthreads();
    const int32_t i = (int32_t)threadIdx.x;
    if (2 * i < n) {
        y[i] = from_float<T>(silu_gated(both[2 * i], both[2 * i + 1]));
    }
}

template <typename T, typename Y, bool NORM, bool GATED>
__global__ void __launch_bounds__(THREADS, 2)
    gemm_single_kernel(struct single_params p, struct input_norm norm)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ float both[GATED ? MOST_GATED : 1];
    const int32_t warp = (int32_t)threadIdx.x >> 5, mine = (threadIdx.x & 31) * RUN;
    const struct single_rows<GATED> rows(p);
    T *x = (T *)memory, *ring = x + p.n_in + warp * p.n_stages * p.stage;
    struct single_ring<T, GATED> load = {rows, ring, warp, 0, 0};
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) {
        load.next(p);
    }
    const int32_t run = (int32_t)threadIdx.x * RUN;
    struct single_norm<T> normed_x = {
        norm, (T *)p.x, run, p.n_in
    };
    if (NORM) {
        normed_x.load_weights();
    }
    pdl_trigger(); // before the wait: see device/launch.cuh
    pdl_wait();
    if (NORM) {
        normed_x.compute(x);
    }
    for (int32_t i = run; !NORM && i < p.n_in; i += THREADS * RUN) {
        vec<T> v;
        v.load((const T *)p.x + i);
        v.store(x + i);
    }
    __syncthreads();
    int32_t slot = 0;
#pragma unroll 1
    for (int32_t r = warp; r < rows.n; r += WARPS) {
        float sum[2] = {0.0f, 0.0f};
#pragma unroll 1
        for (int32_t at = mine; at < p.n_in + mine; at += STAGE) {
            cp_async_wait<STAGES - 1>();
            asm volatile("" ::: "memory");
            add_stage(x + at, ring + slot * p.stage + mine, p.n_in - at, sum);
            load.next(p);
            slot = slot + 1 == p.n_stages ? 0 : slot + 1;
        }
        const float all = warp_sum(sum[0] + sum[1]);
        if (GATED && mine == 0) {
            both[r] = to_float(from_float<T>(all));
        } else if (mine == 0) {
            ((Y *)p.y)[rows.first + r] = from_float<Y>(all);
        }
    }
    if constexpr (GATED) {
        store_gated((T *)p.y + rows.first, both, rows.n);
    }
    if (NORM) {
        normed_x.store_sum();
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

/* How the product is divided: n_out elements of y among the blocks, and the stages of W that the
 * busiest warp multiplies. */
struct single_plan {
    int32_t n_out, blocks, stages;
};

static single_plan plan_of(const struct gemm_args *a, int32_t n_sms)
{
    const int32_t n_out = a->gated ? a->n_out / 2 : a->n_out;
    const int32_t blocks = std::min(n_out, n_sms);
    const int32_t rows = (n_out + blocks - 1) / blocks * (a->gated ? 2 : 1); // of W, at most
    return {n_out, blocks, (rows + WARPS - 1) / WARPS * ((a->n_in + STAGE - 1) / STAGE)};
}

/* Shorter rows of W leave lanes idle; with more features small.cu is as fast. A gated product is
 * faster only if the rings hold all of its weights and it saves the norm's launch. */
static bool has_good_size(const struct gemm_args *a, int32_t n_sms)
{
    if (a->n_in < LEAST_IN || a->n_in > MOST_IN || a->n_in % RUN != 0) {
        return false;
    }
    if (a->gated) {
        return a->norm && a->n_out % 2 == 0 && a->y_dtype == a->x_dtype &&
               plan_of(a, n_sms).stages <= STAGES;
    }
    return a->n_out <= MOST_EACH * n_sms;
}

extern "C" bool gemm_single_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    const bool is_16 = (a->w_dtype == DT_BF16 || a->w_dtype == DT_F16) &&
                       (a->y_dtype == a->x_dtype || a->y_dtype == DT_F32);
    return sm == 90 && a->weight && a->n_rows == 1 && a->n_batch <= 1 && is_16 &&
           has_good_size(a, n_sms) && a->x_dtype == a->w_dtype && !a->accumulate && !a->bias &&
           a->w_stride == 0 && a->n_parts <= 1 &&
           ((uintptr_t)a->x | (uintptr_t)a->weight) % 16 == 0 &&
           (!a->norm || (a->n_in <= THREADS * RUN && (uintptr_t)a->norm->delta % 16 == 0));
}

template <typename T, typename Y, bool NORM, bool GATED>
static cudaError_t launch_single(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    const single_plan plan = plan_of(a, n_sms);
    const int32_t row = (a->n_in + STEP - 1) / STEP * STEP;
    const struct single_params p = {a->x,
                                    a->weight,
                                    a->y,
                                    plan.n_out,
                                    a->n_in,
                                    std::min(plan.stages, (int32_t)STAGES),
                                    std::min(row, (int32_t)STAGE)};
    const int32_t needed = (a->n_in + WARPS * p.n_stages * p.stage) * (int32_t)sizeof(T);
    // Without the norm's own launch there is less time to fill the rings. So blocks whose rings
    // hold all of their weights may start beside those of the preceding product.
    const bool is_beside = NORM && plan.stages <= STAGES;
    const int32_t bytes = needed > LEAST_BYTES || is_beside ? needed : (int32_t)LEAST_BYTES;
    const auto kernel = gemm_single_kernel<T, Y, NORM, GATED>;
    cudaError_t e = // set at every launch, because each rank has its own device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == cudaSuccess) {
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    }
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)plan.blocks), dim3(THREADS),
                                     (size_t)bytes, stream, p, NORM ? *a->norm : input_norm{});
}

template <typename T, typename Y>
static cudaError_t single(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    return a->norm ? launch_single<T, Y, true, false>(stream, a, n_sms)
                   : launch_single<T, Y, false, false>(stream, a, n_sms);
}

extern "C" cudaError_t gemm_single(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    const bool bf16 = a->w_dtype == DT_BF16;
    if (a->gated) {
        return bf16 ? launch_single<bf16_t, bf16_t, true, true>(stream, a, n_sms)
                    : launch_single<f16_t, f16_t, true, true>(stream, a, n_sms);
    }
    if (a->y_dtype == DT_F32) {
        return bf16 ? single<bf16_t, float>(stream, a, n_sms)
                    : single<f16_t, float>(stream, a, n_sms);
    }
    return bf16 ? single<bf16_t, bf16_t>(stream, a, n_sms) : single<f16_t, f16_t>(stream, a, n_sms);
}
