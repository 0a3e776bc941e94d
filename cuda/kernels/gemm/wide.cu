// SPDX-License-Identifier: Apache-2.0
/* y = x W^T for 33 to 128 rows on Hopper. It reads each weight once; bound by memory bandwidth.
 *
 * A block has a multiprocessor to itself, and takes a band of N features and a range of K. Two
 * warps load boxes of W and x through a ring of stages that fills shared memory, and one warpgroup
 * per 64 rows computes D[64, N] with wgmma. If there are fewer bands than multiprocessors, K is
 * split evenly and the partial sums are left in fp32; the kernel that reads the product adds them
 * in order, which costs less than a separate kernel. With an activation (SiLU) a band is N / 2
 * gate features and the N / 2 matching up features, and the activation is applied before the store.
 *
 * With programmatic dependent launch the ring is filled with weights, which no kernel writes,
 * before the wait for the preceding kernel: about 20 MB in all, while a norm runs or attention
 * ends. No other work overlaps the end of a block, so its stores have no branches (store_plain). */
#include "cuda/gemm.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/maps.cuh"

enum {
    DEPTH = 64,              // inputs of K per stage
    RING_BYTES = 221 * 1024, // the rest lets small kernels run beside it
    MAX_STAGES = 12,
    MIN_ROWS = 33,
    MAX_ROWS = 128,
    MANY_BAND = 224, // with an activation and more than 64 rows
    MAX_SPLITS = 8,
    MOST_BANDS = 5,
};

struct wide_params {
    void *y;
    const float *bias;
    int32_t n_rows, n_out, n_boxes; // size of y; boxes of DEPTH along K
    int32_t y_stride, n_splits, n_bands, n_stages;
    int64_t part_stride; // elements from one range of K to the next
    bool accumulate;
    bool plain; // no bias, no accumulation, stored in pairs
};

/* A block's position in its work: item after item (a band and a range of K), box after box. */
struct wide_cursor {
    int32_t item, box, end;

    __device__ __forceinline__ void enter(const struct wide_params &p, int32_t which)
    {
        const int32_t split = which / p.n_bands;
        item = which;
        box = (int32_t)((int64_t)split * p.n_boxes / p.n_splits);
        end = (int32_t)((int64_t)(split + 1) * p.n_boxes / p.n_splits);
    }
    __device__ __forceinline__ bool is_done(const struct wide_params &p) const
    {
        return item >= p.n_bands * p.n_splits;
    }
    __device__ __forceinline__ void advance(const struct wide_params &p)
    {
        if (++box == end) {
            enter(p, item + (int32_t)gridDim.x);
        }
    }
};

#if HAVE_SM90A

/* A block's barriers. A stage is full when both its W and its x have arrived. */
struct wide_ring {
    uint64_t full_w[MAX_STAGES], full_x[MAX_STAGES], empty[MAX_STAGES];
};

/* One thread loads W and another x, because loads of x wait for the preceding kernel and would
 * otherwise queue behind a whole ring of W. */
template <int N, int G, bool GATED> struct wide_loader {
    static constexpr int W_BYTES = N * DEPTH * 2, X_BYTES = G * 64 * DEPTH * 2;
    static constexpr int BYTES = W_BYTES + X_BYTES;
    const struct wide_params &p;
    const CUtensorMap *map;
    char *smem;
    struct wide_ring *ring;

    __device__ __forceinline__ void load_w(const struct wide_cursor &c, int stage, uint64_t policy)
    {
        constexpr int ROWS = GATED ? N / 2 : N;
        const int32_t feature = c.item % p.n_bands * ROWS;
        char *to = smem + stage * BYTES;
        barrier_expect(&ring->full_w[stage], W_BYTES);
        tensor_load(to, map, &ring->full_w[stage], c.box * DEPTH, feature, policy);
        if (GATED) {
            tensor_load(to + W_BYTES / 2, map, &ring->full_w[stage], c.box * DEPTH,
                        p.n_out + feature, policy);
        }
    }

    __device__ __forceinline__ void load_x(const struct wide_cursor &c, int stage, uint64_t policy)
    {
        barrier_expect(&ring->full_x[stage], X_BYTES);
        tensor_load(smem + stage * BYTES + W_BYTES, map, &ring->full_x[stage], c.box * DEPTH, 0,
                    policy);
    }

    template <bool IS_X> __device__ __forceinline__ void run()
    {
        const uint64_t policy = IS_X ? policy_evict_last() : policy_evict_first();
        struct wide_cursor c;
        c.enter(p, (int32_t)blockIdx.x);
        for (int i = 0; i < p.n_stages && !c.is_done(p); i++, c.advance(p)) {
            if (IS_X) {
                load_x(c, i, policy);
            } else {
                load_w(c, i, policy);
            }
        }
        int stage = 0;
        uint32_t parity = 0;
        for (; !c.is_done(p); c.advance(p)) {
            barrier_wait(&ring->empty[stage], parity);
            if (IS_X) {
                load_x(c, stage, policy);
            } else {
                load_w(c, stage, policy);
            }
            if (++stage == p.n_stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
};

/* ---- storing results; accumulators: see device/wgmma.cuh ------------------------------------- */

template <typename Y> struct pair_of;
template <> struct pair_of<float> {
    typedef float2 type;
};
template <> struct pair_of<bf16_t> {
    typedef __nv_bfloat162 type;
};
template <> struct pair_of<f16_t> {
    typedef __half2 type;
};

template <typename Y> __device__ __forceinline__ typename pair_of<Y>::type pair(const float (&v)[2])
{
    typename pair_of<Y>::type both;
    both.x = from_float<Y>(v[0]);
    both.y = from_float<Y>(v[1]);
    return both;
}

/* Stores D of one item: its first N features, or N / 2 with an activation. */
template <typename T, int N, bool GATED> struct wide_output {
    static constexpr int BLOCKS = GATED ? N / 16 : N / 8;

    /* Features j * 8 + 2 t and the next one of the accumulator's row r. As in two separate ops, the
     * product is rounded before the activation. */
    static __device__ __forceinline__ void get(const float (&d)[N / 2], int j, int r, float (&v)[2])
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            v[e] = d[j * 4 + 2 * r + e];
            if (GATED) {
                const float up = d[(j + BLOCKS) * 4 + 2 * r + e];
                v[e] = silu_gated(to_float(from_float<T>(v[e])), to_float(from_float<T>(up)));
            }
        }
    }
};

/* Stores the whole band without a bias, and so without branches between the stores. */
template <typename T, typename Y, int N, bool GATED>
__device__ __forceinline__ void store_plain(const struct wide_params &p, const float (&d)[N / 2],
                                            int row0, int64_t first)
{
    using out = wide_output<T, N, GATED>;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row0 + 8 * r;
        typename pair_of<Y>::type *to =
            (typename pair_of<Y>::type *)((Y *)p.y + first + (int64_t)row * p.y_stride);
        if (row < p.n_rows) {
#pragma unroll
            for (int j = 0; j < out::BLOCKS; j++) {
                float v[2];
                out::get(d, j, r, v);
                to[j * 4] = pair<Y>(v);
            }
        }
    }
}

template <typename T, typename Y, int N, bool GATED>
__device__ __forceinline__ void store_any(const struct wide_params &p, const float (&d)[N / 2],
                                          int row0, int32_t first_f, int64_t part)
{
    using out = wide_output<T, N, GATED>;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row0 + 8 * r;
        if (row >= p.n_rows) {
            continue;
        }
        Y *to = (Y *)p.y + part + (int64_t)row * p.y_stride;
#pragma unroll
        for (int j = 0; j < out::BLOCKS; j++) {
            float v[2];
            const int32_t f = first_f + j * 8;
            out::get(d, j, r, v);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (f + e < p.n_out) {
                    v[e] += p.bias ? p.bias[f + e] : 0.0f;
                    v[e] += p.accumulate ? to_float(to[f + e]) : 0.0f;
                    to[f + e] = from_float<Y>(v[e]);
                }
            }
        }
    }
}

template <typename T, typename Y, int N, bool GATED>
__device__ __forceinline__ void wide_store(const struct wide_params &p, const float (&d)[N / 2],
                                           int32_t item)
{
    constexpr int WIDTH = wide_output<T, N, GATED>::BLOCKS * 8;
    const int tid = threadIdx.x, row0 = (tid >> 5) * 16 + (tid >> 2 & 7);
    const int32_t band = item % p.n_bands * WIDTH, f = band + (tid & 3) * 2;
    const int64_t part = item / p.n_bands * p.part_stride;
    if (p.plain && band + WIDTH <= p.n_out) {
        store_plain<T, Y, N, GATED>(p, d, row0, part + f);
    } else {
        store_any<T, Y, N, GATED>(p, d, row0, f, part);
    }
}

/* What the two loading warps do. */
template <int N, int G, bool GATED>
__device__ __forceinline__ void wide_load(const struct wide_params &p, const CUtensorMap &w_map,
                                          const CUtensorMap &x_map, char *smem,
                                          struct wide_ring *ring)
{
    using loader = wide_loader<N, G, GATED>;
    const int tid = threadIdx.x;
    if (tid == G * 128) {
        loader l = {p, &w_map, smem, ring};
        l.template run<false>();
    } else if (tid == G * 128 + 32) {
        pdl_wait();
        loader l = {p, &x_map, smem, ring};
        l.template run<true>();
    }
    pdl_trigger(); // without effect: the computing threads have triggered already
    pdl_wait();
}

#endif // HAVE_SM90A

template <typename T, typename Y, int N, int G, bool GATED>
__global__ void __launch_bounds__(G * 128 + 64, 1)
    gemm_wide_kernel(const __grid_constant__ struct wide_params p,
                     const __grid_constant__ CUtensorMap w_map,
                     const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    using loader = wide_loader<N, G, GATED>;
    extern __shared__ char smem_raw[];
    __shared__ struct wide_ring ring;
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    const int tid = threadIdx.x;
    if (tid == 0) {
        for (int i = 0; i < p.n_stages; i++) {
            barrier_init(&ring.full_w[i], 1);
            barrier_init(&ring.full_x[i], 1);
            barrier_init(&ring.empty[i], G * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (tid >= G * 128) {
        wide_load<N, G, GATED>(p, w_map, x_map, smem, &ring);
        return;
    }
    pdl_trigger();
    pdl_wait(); // preceding kernels may use y until then
    int stage = 0;
    uint32_t parity = 0;
    struct wide_cursor c;
    c.enter(p, (int32_t)blockIdx.x);
    for (; !c.is_done(p); c.enter(p, c.item + (int32_t)gridDim.x)) {
        float d[N / 2];
        const int32_t first = c.box;
        int before = 0;
        for (; c.box < c.end; c.box++) {
            barrier_wait(&ring.full_x[stage], parity);
            barrier_wait(&ring.full_w[stage], parity);
            const uint32_t w = smem_address(smem + stage * loader::BYTES);
            const uint32_t x = w + loader::W_BYTES + tid / 128 * 64 * DEPTH * 2;
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++) {
                wgmma<T, N>::ss(d, wgmma_operand(x + i * 32, 0), wgmma_operand(w + i * 32, 0),
                                c.box > first || i > 0);
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (c.box > first && (tid & 31) == 0) {
                barrier_arrive(&ring.empty[before]);
            }
            before = stage;
            if (++stage == p.n_stages) {
                stage = 0;
                parity ^= 1;
            }
        }
        wgmma_wait<0>();
        if ((tid & 31) == 0) {
            barrier_arrive(&ring.empty[before]);
        }
        wgmma_settle(d);
        wide_store<T, Y, N, GATED>(p, d, c.item);
    }
#endif
}

/* y = the partial sums added up (+ bias), for readers that cannot add them. */
template <typename Y>
__global__ void join_sums_kernel(struct sum_parts sums, Y *y, int64_t y_stride)
{
    pdl_wait();
    pdl_trigger();
    const int32_t row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= sums.width) {
        return;
    }
    float sum = sums.bias ? sums.bias[i] : 0.0f;
#pragma unroll 4
    for (int32_t k = 0; k < sums.n; k++) {
        sum += sums.first[k * sums.stride + (int64_t)row * sums.width + i];
    }
    y[row * y_stride + i] = from_float<Y>(sum);
}

/* ---- host ---------------------------------------------------------------------------------- */

/* Bands have 128 features or this many. Up to 64 rows, and in deterministic mode, which divides K
 * into fewer parts, they may also be narrower (list_bands). */
static constexpr int other_band(size_t y_bytes)
{
    return y_bytes == sizeof(float) ? 192 : 112;
}

template <typename T, typename Y, int N, int G, bool GATED>
static cudaError_t launch_wide(cudaStream_t stream, const struct gemm_args *a, struct wide_params p,
                               int32_t n_sms)
{
    constexpr int BYTES = (N + G * 64) * DEPTH * 2, FIT = RING_BYTES / BYTES;
    p.n_stages = FIT < MAX_STAGES ? FIT : MAX_STAGES;
    const size_t smem = (size_t)p.n_stages * BYTES + 1024;
    const auto kernel = gemm_wide_kernel<T, Y, N, G, GATED>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)smem); // set at every launch, because each
                                                     // rank has its own device
    CUtensorMap w_map, x_map;
    if (e == cudaSuccess) {
        e = product_maps(a, GATED ? N / 2 : N, G * 64, &w_map, &x_map);
    }
    if (e != cudaSuccess) {
        return e;
    }
    const int32_t n_items = p.n_bands * p.n_splits;
    return launch(kernel, dim3((unsigned)(n_items < n_sms ? n_items : n_sms)), dim3(G * 128 + 64),
                  smem, stream, p, w_map, x_map);
}

template <typename T, typename Y, bool GATED>
static cudaError_t by_band(cudaStream_t stream, const struct gemm_args *a,
                           const struct wide_params &p, int32_t band, int32_t n_sms)
{
    constexpr int OTHER = other_band(sizeof(Y));
    const bool many = a->n_rows > 64;
    if constexpr (GATED) {
        if (many) {
            return band == MANY_BAND ? launch_wide<T, Y, MANY_BAND, 2, true>(stream, a, p, n_sms)
                                     : cudaErrorInvalidValue;
        }
    } else if constexpr (sizeof(Y) == sizeof(float)) {
        if (many && band == 128) {
            return launch_wide<T, Y, 128, 2, false>(stream, a, p, n_sms);
        }
        if (many && band == OTHER) {
            return launch_wide<T, Y, OTHER, 2, false>(stream, a, p, n_sms);
        }
        if (band == 64) {
            return many ? launch_wide<T, Y, 64, 2, false>(stream, a, p, n_sms)
                        : launch_wide<T, Y, 64, 1, false>(stream, a, p, n_sms);
        }
        if (band == 96) {
            return many ? launch_wide<T, Y, 96, 2, false>(stream, a, p, n_sms)
                        : launch_wide<T, Y, 96, 1, false>(stream, a, p, n_sms);
        }
    }
    if (!many && band == 128) {
        return launch_wide<T, Y, 128, 1, GATED>(stream, a, p, n_sms);
    }
    if (!many && band == OTHER) {
        return launch_wide<T, Y, OTHER, 1, GATED>(stream, a, p, n_sms);
    }
    if constexpr (sizeof(Y) < sizeof(float)) {
        switch (many ? 0 : band) {
        case 96: return launch_wide<T, Y, 96, 1, GATED>(stream, a, p, n_sms);
        case 64: return launch_wide<T, Y, 64, 1, GATED>(stream, a, p, n_sms);
        case 48: return launch_wide<T, Y, 48, 1, GATED>(stream, a, p, n_sms);
        default: break;
        }
    }
    return cudaErrorInvalidValue;
}

/* The cost of a plan: the bytes that the busiest multiprocessor reads, times the number of
 * multiprocessors. It counts the weights, x from the L2 cache at a quarter of the price, and
 * writing and reading the partial sums. */
static int64_t cost_of(const struct gemm_args *a, const struct wide_plan *p, int32_t n_sms)
{
    const int64_t n_bands = (a->n_out + p->band - 1) / p->band;
    const int64_t n_boxes = (a->n_in + DEPTH - 1) / DEPTH;
    const int64_t rounds = (n_bands * p->n_splits + n_sms - 1) / n_sms;
    const int64_t boxes = (n_boxes + p->n_splits - 1) / p->n_splits;
    const int64_t sums = p->n_splits > 1 ? (int64_t)p->n_splits * a->n_rows * a->n_out * 8 : 0;
    return n_sms * rounds * boxes * DEPTH * 2 * (p->band + (a->n_rows + 63) / 64 * 16) + sums;
}

/* Lists the band sizes, and returns their number. cut: of partial sums. */
static int32_t list_bands(const struct gemm_args *a, bool cut, int32_t (&bands)[MOST_BANDS])
{
    const size_t y_bytes = cut ? sizeof(float) : dtype_bytes(a->y_dtype);
    if (a->gated && a->n_rows > 64) {
        bands[0] = MANY_BAND;
        return 1;
    }
    bands[0] = 128;
    bands[1] = other_band(y_bytes);
    bands[2] = 96;
    bands[3] = 64;
    bands[4] = 48;
    return y_bytes == sizeof(float) ? 4 : 5;
}

/* True if the product may be computed with K cut into ranges, or uncut. */
static bool may_be(const struct gemm_args *a, bool cut)
{
    return cut ? a->may_split && !a->gated && !a->accumulate : a->n_rows <= 64 || a->gated;
}

extern "C" bool gemm_wide_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms,
                                size_t sums_bytes, struct wide_plan *plan)
{
    if (sm != 90 || a->n_batch > 1 || a->n_rows < MIN_ROWS || a->n_rows > MAX_ROWS ||
        (a->w_dtype != DT_BF16 && a->w_dtype != DT_F16) || a->x_dtype != a->w_dtype ||
        (a->y_dtype != a->x_dtype && (a->y_dtype != DT_F32 || a->gated)) || a->n_in % 8 != 0 ||
        a->x_stride % 8 != 0 ||
        ((uintptr_t)a->x | (uintptr_t)a->weight | (uintptr_t)a->y) % 16 != 0 ||
        (a->gated && (a->n_out % 2 != 0 || a->accumulate || a->bias))) {
        return false;
    }
    const int64_t one = (int64_t)a->n_rows * a->n_out * (int64_t)sizeof(float);
    const int64_t weight = (int64_t)a->n_out * a->n_in * 2;
    int64_t best = INT64_MAX / 2;
    for (int32_t n = 1; n <= MAX_SPLITS && (n == 1 || n * DEPTH <= a->n_in); n++) {
        if (!may_be(a, n > 1) || (n > 1 && n * one > (int64_t)sums_bytes)) {
            continue;
        }
        int32_t bands[MOST_BANDS];
        const int32_t listed = list_bands(a, n > 1, bands);
        const int32_t n_bands = a->n_rows > 64 && listed > 2 ? 2 : listed;
        for (int32_t i = 0; i < n_bands; i++) {
            const struct wide_plan p = {bands[i], n};
            const int64_t cost = cost_of(a, &p, n_sms);
            if (cost < best) {
                best = cost;
                *plan = p;
            }
        }
    }
    /* If no plan keeps the multiprocessors busy, cuBLASLt with its finer tiles is faster, although
     * it fetches no weights before the preceding kernel has ended, which costs more if there are
     * few rows. */
    if (a->gated) {
        return 2 * best < 3 * weight;
    }
    return best < (a->n_rows <= 64 ? 3 : 2) * weight;
}

extern "C" struct wide_plan gemm_wide_plan(const struct gemm_args *a, int32_t n_sms,
                                           int32_t n_splits)
{
    int32_t bands[MOST_BANDS];
    const int32_t n_bands = list_bands(a, n_splits > 1, bands);
    struct wide_plan best = {bands[0], n_splits};
    for (int32_t i = 1; i < n_bands; i++) {
        const struct wide_plan p = {bands[i], n_splits};
        if (cost_of(a, &p, n_sms) < cost_of(a, &best, n_sms)) {
            best = p;
        }
    }
    return best;
}

extern "C" cudaError_t gemm_wide(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                                 const struct wide_plan *plan, const struct sum_parts *sums)
{
    struct wide_params p = {};
    const bool split = plan->n_splits > 1;
    const int32_t step = a->gated ? plan->band / 2 : plan->band;
    p.y = split ? (void *)sums->first : a->y;
    p.bias = split ? nullptr : a->bias;
    p.n_rows = a->n_rows;
    p.n_out = a->gated ? a->n_out / 2 : a->n_out;
    p.n_boxes = (a->n_in + DEPTH - 1) / DEPTH;
    p.y_stride = split ? a->n_out : a->y_stride;
    p.n_splits = plan->n_splits;
    p.n_bands = (p.n_out + step - 1) / step;
    p.part_stride = split ? sums->stride : 0;
    p.accumulate = !split && a->accumulate;
    p.plain = !p.accumulate && !p.bias && p.y_stride % 2 == 0 && (uintptr_t)p.y % 8 == 0;
    const bool bf16 = a->w_dtype == DT_BF16;
    if (a->gated) {
        return bf16 ? by_band<bf16_t, bf16_t, true>(stream, a, p, plan->band, n_sms)
                    : by_band<f16_t, f16_t, true>(stream, a, p, plan->band, n_sms);
    }
    if (split || a->y_dtype == DT_F32) {
        return bf16 ? by_band<bf16_t, float, false>(stream, a, p, plan->band, n_sms)
                    : by_band<f16_t, float, false>(stream, a, p, plan->band, n_sms);
    }
    return bf16 ? by_band<bf16_t, bf16_t, false>(stream, a, p, plan->band, n_sms)
                : by_band<f16_t, f16_t, false>(stream, a, p, plan->band, n_sms);
}

extern "C" cudaError_t gemm_join(cudaStream_t stream, const struct gemm_args *a,
                                 const struct sum_parts *sums)
{
    const dim3 grid((unsigned)a->n_rows, (unsigned)((sums->width + 255) / 256)), block(256);
    BY_DTYPE(a->y_dtype, Y,
             return launch(join_sums_kernel<Y>, grid, block, 0, stream, *sums, (Y *)a->y,
                           (int64_t)a->y_stride));
    return cudaErrorInvalidValue;
}
