// SPDX-License-Identifier: Apache-2.0
/* y = x W^T for a single row of 16 bits and a weight of few features, without bias, and the norm of
 * x if there is one, which every block computes. A block has a multiprocessor, of which the bands
 * of small.cu would leave many idle, and a range of the features. Its warps take one feature after
 * another, each through a ring of its own (cp.async), which it fills before the wait; a lane reads
 * only what it has copied itself. Bound by reading W, and by latency if the rings hold all of it.
 * It leaves registers for the blocks of the next kernels, which start beside its own.
 */
#include "cuda/gemm.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/norm.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/types.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS };
enum { RUN = 8, STEP = 32 * RUN, STEPS = 4, STAGE = STEPS * STEP }; // elements: of a lane, a warp
enum { STAGES = 3 };                                      // of a warp's ring; more are no faster
enum { LEAST_IN = 512, MOST_IN = 12288, MOST_EACH = 40 }; // MOST_EACH: features per multiprocessor
/* Of a block's shared memory: no two share a multiprocessor, but one fits beside a block of
 * attention/mla_few.cu, and beside one that takes only what it needs. */
enum { LEAST_BYTES = 114 << 10 };

struct single_params {
    const void *x, *w;
    void *y;
    int32_t n_out, n_in, n_stages; // stages of a warp's ring
    int32_t stage;                 // elements of a stage
};

static_assert((int)WARPS == (int)INPUT_NORM_READERS, "");

/* A warp's next stage to load. */
template <typename T> struct single_ring {
    T *ring;
    int32_t feature, end, at, slot;

    __device__ __forceinline__ void next(const struct single_params &p)
    {
        if (feature < end) {
            const int32_t mine = (threadIdx.x & 31) * RUN;
            const T *from = (const T *)p.w + (int64_t)feature * p.n_in;
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
                feature += WARPS;
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

template <typename T, typename Y, bool NORM>
__global__ void __launch_bounds__(THREADS, 2)
    gemm_single_kernel(struct single_params p, struct input_norm norm)
{
    extern __shared__ __align__(16) char memory[];
    const int32_t warp = (int32_t)threadIdx.x >> 5, mine = (threadIdx.x & 31) * RUN;
    const int32_t block = (int32_t)blockIdx.x, blocks = (int32_t)gridDim.x;
    const int32_t end = (int32_t)((int64_t)p.n_out * (block + 1) / blocks);
    const int32_t first = (int32_t)((int64_t)p.n_out * block / blocks) + warp;
    T *x = (T *)memory, *ring = x + p.n_in + warp * p.n_stages * p.stage;
    struct single_ring<T> load = {ring, first, end, 0, 0};
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
    for (int32_t f = first; f < end; f += WARPS) {
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
        if (mine == 0) {
            ((Y *)p.y)[f] = from_float<Y>(all);
        }
    }
    if (NORM) {
        normed_x.store_sum();
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

extern "C" bool gemm_single_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    const bool is_16 = (a->w_dtype == DT_BF16 || a->w_dtype == DT_F16) &&
                       (a->y_dtype == a->x_dtype || a->y_dtype == DT_F32);
    // Shorter rows of W leave lanes idle; with more features small.cu is as fast.
    const bool is_few = a->n_in >= LEAST_IN && a->n_out <= MOST_EACH * n_sms;
    return sm == 90 && a->weight && a->n_rows == 1 && a->n_batch <= 1 && is_16 && is_few &&
           !a->gated && a->x_dtype == a->w_dtype && a->n_in % RUN == 0 && a->n_in <= MOST_IN &&
           !a->accumulate && !a->bias && a->w_stride == 0 && a->n_parts <= 1 &&
           ((uintptr_t)a->x | (uintptr_t)a->weight) % 16 == 0 &&
           (!a->norm || (a->n_in <= THREADS * RUN && (uintptr_t)a->norm->delta % 16 == 0));
}

template <typename T, typename Y, bool NORM>
static cudaError_t launch_single(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    const int32_t blocks = a->n_out < n_sms ? a->n_out : n_sms;
    const int32_t features = ((a->n_out + blocks - 1) / blocks + WARPS - 1) / WARPS;
    const int32_t stages = features * ((a->n_in + STAGE - 1) / STAGE);
    const int32_t row = (a->n_in + STEP - 1) / STEP * STEP;
    const struct single_params p = {a->x,
                                    a->weight,
                                    a->y,
                                    a->n_out,
                                    a->n_in,
                                    stages < STAGES ? stages : (int32_t)STAGES,
                                    row < STAGE ? row : (int32_t)STAGE};
    const int32_t needed = (a->n_in + WARPS * p.n_stages * p.stage) * (int32_t)sizeof(T);
    // Without the norm's own launch there is less time to fill the rings. So blocks whose rings
    // hold all of their weights may start beside those of the preceding product.
    const bool is_beside = NORM && stages <= STAGES;
    const int32_t bytes = needed > LEAST_BYTES || is_beside ? needed : (int32_t)LEAST_BYTES;
    const auto kernel = gemm_single_kernel<T, Y, NORM>;
    cudaError_t e = // set at every launch, because each rank has its own device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == cudaSuccess) {
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    }
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)blocks), dim3(THREADS), (size_t)bytes,
                                     stream, p, NORM ? *a->norm : input_norm{});
}

template <typename T, typename Y>
static cudaError_t single(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    return a->norm ? launch_single<T, Y, true>(stream, a, n_sms)
                   : launch_single<T, Y, false>(stream, a, n_sms);
}

extern "C" cudaError_t gemm_single(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    const bool bf16 = a->w_dtype == DT_BF16;
    if (a->y_dtype == DT_F32) {
        return bf16 ? single<bf16_t, float>(stream, a, n_sms)
                    : single<f16_t, float>(stream, a, n_sms);
    }
    return bf16 ? single<bf16_t, bf16_t>(stream, a, n_sms) : single<f16_t, f16_t>(stream, a, n_sms);
}
