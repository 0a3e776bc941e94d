// SPDX-License-Identifier: Apache-2.0
/* y = x W^T for 1 to 64 rows on Hopper, for 16-bit operands. It reads each weight once; bound by
 * memory bandwidth.
 *
 * A block owns a band of N features and all of K, so no sum crosses blocks and a row's bits do not
 * depend on the number of rows; for deterministic mode K can be summed in parts. N is chosen per
 * matrix so that the bands divide evenly among the multiprocessors: 6144 features are 128 bands of
 * 48. A block has one warpgroup that computes D[64, N] with wgmma (x is the 64-row operand; missing
 * rows cost only tensor-core time, of which there is plenty) and one warp that loads through a ring
 * of stages in shared memory: N features and the rows of x, for a range of K.
 *
 * If gated, a band has N / 2 features of each half of the weight, so that a thread holds a
 * feature's gate and its other factor and stores the result of the activation.
 *
 * x in a stage is groups of 8 rows (1,024 bytes). With up to 8 rows all eight groups of the operand
 * are the same group; with more, groups past the last row hold unrelated data, and those rows of D
 * are not used.
 *
 * With programmatic dependent launch the ring is filled with weights, which no kernel writes,
 * before the wait for the preceding kernel. A block takes more than half of a multiprocessor's
 * shared memory, so that no two share one: a product's blocks start where those of the previous
 * product have left, and begin to load at once if the norm between the two has triggered. */
#include "cuda/gemm.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/wgmma.cuh"

enum {
    BOX_BYTES = 128, // bytes of a row in a box, along K
    DEPTH = 64,      // the same as a number of inputs
    COMPUTERS = 128,
    THREADS = 160,
    STAGE_BYTES = 16 * 1024,  // bytes of weights, roughly: a stage has several boxes
    SMEM_FEW = 220 * 1024,    // per block for up to 8 rows; measured
    SMEM_MORE = 150 * 1024,   // per block for more rows; measured
    SMEM_BESIDE = 114 * 1024, // per block for up to 8 rows of a wide product with a bias; measured
};

struct small_params {
    void *y;
    const float *bias;
    int32_t n_rows, n_boxes; // boxes along K
    int32_t n_out, up_row;   // size of y; first row of the weight's second half, if gated
    int32_t y_stride;
    int32_t x_rows;     // rows per box: 8, 16, 32 or 64
    int32_t n_stages;   // stages in the ring
    int32_t n_prefetch; // further stages prefetched into the L2 cache
    bool accumulate;
    const float *part_bias; // the bias of a product in parts, which then has no `bias`
    int32_t part_boxes;     // boxes of such a part
    bool plain;             // no accumulation, and pairs of features are aligned
};

template <int N> struct stage_of {
    static constexpr int W_BOX = N * BOX_BYTES;
    static constexpr int BOXES = STAGE_BYTES / W_BOX < 1 ? 1 : STAGE_BYTES / W_BOX;
    static __host__ __device__ int bytes(int x_rows)
    {
        return BOXES * (W_BOX + x_rows * BOX_BYTES);
    }
};

#if HAVE_SM90A

template <typename T, int N, bool GATED>
__device__ __forceinline__ void load_stages(const struct small_params &p, const CUtensorMap *w_map,
                                            const CUtensorMap *x_map, char *smem, uint64_t *full,
                                            uint64_t *empty)
{
    using S = stage_of<N>;
    const int bytes = S::bytes(p.x_rows), x_box = p.x_rows * BOX_BYTES;
    const int per_band = (p.n_boxes + S::BOXES - 1) / S::BOXES;
    constexpr int STEP = GATED ? N / 2 : N;
    const int n_bands = (p.n_out + STEP - 1) / STEP;
    const int n = (n_bands - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * per_band;
    const uint64_t once = policy_evict_first(), often = policy_evict_last();
    auto load_w = [&](int i, int stage) {
        const int band = blockIdx.x + i / per_band * gridDim.x, k = i % per_band * S::BOXES;
        barrier_expect(&full[stage], bytes);
        for (int b = 0; b < S::BOXES; b++) { // reads past the end of K give zero
            char *to = smem + stage * bytes + b * S::W_BOX;
            tensor_load(to, w_map, &full[stage], (k + b) * DEPTH, band * STEP, once);
            if (GATED) {
                tensor_load(to + S::W_BOX / 2, w_map, &full[stage], (k + b) * DEPTH,
                            p.up_row + band * STEP, once);
            }
        }
    };
    auto load_x = [&](int i, int stage) {
        const int k = i % per_band * S::BOXES;
        for (int b = 0; b < S::BOXES; b++) {
            tensor_load(smem + stage * bytes + S::BOXES * S::W_BOX + b * x_box, x_map, &full[stage],
                        (k + b) * DEPTH, 0, often);
        }
    };
    const int ahead = min(p.n_stages, n);
    for (int i = 0; i < ahead; i++) {
        load_w(i, i);
    }
    for (int i = ahead; i < min(ahead + p.n_prefetch, n); i++) {
        const int band = blockIdx.x + i / per_band * gridDim.x, k = i % per_band * S::BOXES;
        for (int b = 0; b < S::BOXES; b++) {
            tensor_prefetch(w_map, (k + b) * DEPTH, band * STEP);
            if (GATED) {
                tensor_prefetch(w_map, (k + b) * DEPTH, p.up_row + band * STEP);
            }
        }
    }
    pdl_wait();
    for (int i = 0; i < ahead; i++) {
        load_x(i, i);
    }
    int stage = 0;
    uint32_t parity = 0;
    for (int i = ahead; i < n; i++) {
        barrier_wait(&empty[stage], parity);
        load_w(i, stage);
        load_x(i, stage);
        if (++stage == p.n_stages) {
            stage = 0;
            parity ^= 1;
        }
    }
}

/* ---- a band's product ------------------------------------------------------------------------ */

/* The ring position a warpgroup waits for next. */
struct ring_place {
    int stage;
    uint32_t parity;

    __device__ __forceinline__ void next(int n_stages)
    {
        if (++stage == n_stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* Issues the wgmmas of one box. */
template <typename T, int N>
__device__ __forceinline__ void multiply_box(float (&d)[N / 2], uint32_t x, uint32_t w,
                                             uint32_t groups, bool add)
{
#pragma unroll
    for (int i = 0; i < BOX_BYTES / 32; i++) {
        wgmma<T, N>::ss(d, wgmma_operand(x + i * 32, 0, groups), wgmma_operand(w + i * 32, 0),
                        add || i > 0);
    }
}

/* Adds the next stage's products to d, or sets it, and gives the stage back. */
template <typename T, int N>
__device__ __forceinline__ void multiply_stage(const struct small_params &p, char *smem,
                                               uint64_t *full, uint64_t *empty,
                                               struct ring_place &at, float (&d)[N / 2], bool add)
{
    using S = stage_of<N>;
    const uint32_t groups = p.x_rows > 8 ? 1024 : 0;
    const int bytes = S::bytes(p.x_rows), x_box = p.x_rows * BOX_BYTES;
    barrier_wait(&full[at.stage], at.parity);
    const uint32_t w = smem_address(smem + at.stage * bytes), x = w + S::BOXES * S::W_BOX;
    wgmma_fence();
#pragma unroll
    for (int b = 0; b < S::BOXES; b++) {
        multiply_box<T, N>(d, x + b * x_box, w + b * S::W_BOX, groups, add || b > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(); // short compared with loading the stage
    if ((threadIdx.x & 31) == 0) {
        barrier_arrive(&empty[at.stage]);
    }
    at.next(p.n_stages);
}

/* Computes a band's product in parts of K, each in an accumulator of its own, added to the bias in
 * order. A part has whole stages. */
template <typename T, int N>
__device__ __forceinline__ void
make_of_parts(const struct small_params &p, char *smem, uint64_t *full, uint64_t *empty,
              struct ring_place &at, int band, float (&total)[N / 2])
{
    using S = stage_of<N>;
    const int feature = band * N + (threadIdx.x & 3) * 2;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int f = feature + (i >> 2) * 8 + (i & 1);
        total[i] = p.part_bias != nullptr && f < p.n_out ? p.part_bias[f] : 0.0f;
    }
    for (int first = 0; first < p.n_boxes; first += p.part_boxes) {
        float d[N / 2];
        for (int box = 0; box < p.part_boxes; box += S::BOXES) {
            multiply_stage<T, N>(p, smem, full, empty, at, d, box > 0);
        }
        wgmma_settle(d);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            total[i] += d[i];
        }
    }
}

/* Computes a band's product into d. */
template <typename T, int N>
__device__ __forceinline__ void make_at_once(const struct small_params &p, char *smem,
                                             uint64_t *full, uint64_t *empty, struct ring_place &at,
                                             float (&d)[N / 2])
{
    using S = stage_of<N>;
    for (int box = 0; box < p.n_boxes; box += S::BOXES) {
        multiply_stage<T, N>(p, smem, full, empty, at, d, box > 0);
    }
    wgmma_settle(d);
}

template <typename Y> struct alignas(2 * sizeof(Y)) two_of {
    Y v[2];
};

/* The biases of the features that this thread stores, loaded before the product: otherwise it would
 * end with their latency. */
template <int N>
__device__ __forceinline__ void load_bias(const struct small_params &p, int band,
                                          float (&bias)[N / 4])
{
    const int feature = band * N + (threadIdx.x & 3) * 2;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const int f = feature + (i >> 1) * 8 + (i & 1);
        bias[i] = p.bias != nullptr && f < p.n_out ? p.bias[f] : 0.0f;
    }
}

/* Stores a row of the band in pairs, without branches between the stores. As in two separate ops,
 * the product is rounded before the activation. */
template <typename Y, int N, bool GATED>
__device__ __forceinline__ void store_plain(const struct small_params &p, const float (&d)[N / 2],
                                            const float (&bias)[N / 4], int r, Y *to, int feature)
{
    constexpr int TILES = (GATED ? N / 2 : N) / 8;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        struct two_of<Y> two;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float v = d[j * 4 + 2 * r + e];
            if constexpr (GATED) {
                const float up = d[(j + TILES) * 4 + 2 * r + e];
                v = silu_gated(to_float(from_float<Y>(v)), to_float(from_float<Y>(up)));
            } else {
                v = p.bias != nullptr ? v + bias[j * 2 + e] : v;
            }
            two.v[e] = from_float<Y>(v);
        }
        if (feature + j * 8 < p.n_out) {
            *(struct two_of<Y> *)(to + feature + j * 8) = two;
        }
    }
}

template <typename Y, int N, bool GATED>
__device__ __forceinline__ void store_band(const struct small_params &p, const float (&d)[N / 2],
                                           const float (&bias)[N / 4], int band)
{
    const int tid = threadIdx.x, row0 = (tid >> 5) * 16 + (tid >> 2 & 7);
    const int feature = band * (GATED ? N / 2 : N) + (tid & 3) * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row0 + 8 * r;
        if (row >= p.n_rows) {
            continue;
        }
        if (GATED || p.plain) {
            store_plain<Y, N, GATED>(p, d, bias, r, (Y *)p.y + (int64_t)row * p.y_stride, feature);
            continue;
        }
        Y *to = (Y *)p.y + (int64_t)row * p.y_stride;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const int f = feature + (i >> 1) * 8 + (i & 1);
            if (f < p.n_out) {
                float v = d[(i >> 1) * 4 + 2 * r + (i & 1)];
                v += p.bias != nullptr ? bias[i] : 0.0f;
                v += p.accumulate ? to_float(to[f]) : 0.0f;
                to[f] = from_float<Y>(v);
            }
        }
    }
}

#endif // HAVE_SM90A

template <typename T, typename Y, int N, bool GATED, bool PARTS>
__global__ void __launch_bounds__(THREADS, 2)
    gemm_small_kernel(const __grid_constant__ struct small_params p,
                      const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    using S = stage_of<N>;
    const int bytes = S::bytes(p.x_rows);
    extern __shared__ char smem_raw[];
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    uint64_t *full = (uint64_t *)(smem + p.n_stages * bytes), *empty = full + p.n_stages;
    const int tid = threadIdx.x;
    if (tid == 0) {
        for (int i = 0; i < p.n_stages; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], COMPUTERS / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (tid >= COMPUTERS) {
        if (tid == COMPUTERS) {
            load_stages<T, N, GATED>(p, &w_map, &x_map, smem, full, empty);
        }
        pdl_trigger();
        pdl_wait();
        return;
    }
    pdl_trigger();
    pdl_wait(); // preceding kernels may use y until then
    constexpr int STEP = GATED ? N / 2 : N;
    const int n_bands = (p.n_out + STEP - 1) / STEP;
    struct ring_place at = {0, 0};
    for (int band = blockIdx.x; band < n_bands; band += gridDim.x) {
        float d[N / 2], bias[N / 4];
        if constexpr (!GATED) { // a gated product has no bias
            load_bias<N>(p, band, bias);
        }
        if constexpr (PARTS) {
            make_of_parts<T, N>(p, smem, full, empty, at, band, d);
        } else {
            make_at_once<T, N>(p, smem, full, empty, at, d);
        }
        store_band<Y, N, GATED>(p, d, bias, band);
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

static inline cudaError_t small_maps(const struct gemm_args *a, uint32_t w_rows, uint32_t x_rows,
                                     CUtensorMap *w, CUtensorMap *x)
{
    const uint64_t n_in = (uint64_t)a->n_in, stride = (uint64_t)a->x_stride;
    const uint64_t w_stride = a->w_stride ? (uint64_t)a->w_stride : n_in;
    const bool bf16 = a->w_dtype == DT_BF16;
    const cudaError_t e =
        tensor_map_2d(w, a->weight, bf16, n_in, (uint64_t)a->n_out, w_stride * 2, w_rows);
    return e != cudaSuccess
               ? e
               : tensor_map_2d(x, a->x, bf16, n_in, (uint64_t)a->n_rows, stride * 2, x_rows);
}

template <typename T, typename Y, int N, bool GATED, bool PARTS = false>
static cudaError_t launch_small(cudaStream_t stream, const struct gemm_args *a, int n_sms,
                                struct small_params p)
{
    const auto kernel = gemm_small_kernel<T, Y, N, GATED, PARTS>;
    cudaError_t ready = // set at every launch, because each rank has its own device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_FEW);
    if (ready == cudaSuccess) { // prefer shared memory, so that small kernels fit beside a block of
                                // any size
        ready = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared);
    }
    if (ready != cudaSuccess) {
        return ready;
    }
    constexpr int STEP = GATED ? N / 2 : N;
    CUtensorMap w_map, x_map;
    const cudaError_t e = small_maps(a, STEP, (uint32_t)p.x_rows, &w_map, &x_map);
    if (e != cudaSuccess) {
        return e;
    }
    /* The operand's 64 rows may extend past a stage's x by up to 64 rows of 128 bytes. */
    const int spare = p.x_rows == 16 || p.x_rows == 32 ? 1024 + 8192 : 1024,
              bytes = stage_of<N>::bytes(p.x_rows);
    /* q, k and v with biases, as in GPT-OSS: with a shorter ring a block fits beside one of
     * moe/few_single.cu. */
    const bool beside = !GATED && a->bias != nullptr && a->n_out > a->n_in;
    const int smem_few = beside ? SMEM_BESIDE : SMEM_FEW;
    const int smem = p.x_rows > 8 ? SMEM_MORE : smem_few;
    p.n_stages = (smem - spare - 256) / (bytes + 16);
    p.n_prefetch = p.x_rows > 8 ? p.n_stages : 0; // measured: slower with fewer rows
    const int n_bands = (p.n_out + STEP - 1) / STEP;
    const dim3 grid((unsigned)(n_bands < n_sms ? n_bands : n_sms)), block(THREADS);
    return launch(kernel, grid, block, (size_t)smem, stream, p, w_map, x_map);
}

static int x_rows_of(int n_rows)
{
    int rows = 8;
    while (rows < n_rows && rows < 64) {
        rows *= 2;
    }
    return rows;
}

/* The band with the shortest schedule (rounds times band); among equals the widest, which reads x
 * the fewest times. */
static int band_of(int n_out, int n_sms)
{
    static const int bands[] = {128, 112, 96, 64, 48, 32};
    int best = 0;
    int64_t best_cost = INT64_MAX;
    for (int n : bands) {
        const int64_t n_bands = (n_out + n - 1) / n, rounds = (n_bands + n_sms - 1) / n_sms;
        const int64_t cost = rounds * (n + 4); // 4: the start and end of a band
        if (cost < best_cost) {
            best = n;
            best_cost = cost;
        }
    }
    return best;
}

extern "C" bool gemm_small_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    /* Every band reads x. If that is as much as the weights, cuBLASLt is faster (measured). */
    if (a->n_rows > 32 && band_of(a->n_out, n_sms) < 96) {
        return false;
    }
    if (a->gated &&
        (a->n_rows > 32 || a->n_out % 16 != 0 || a->accumulate || a->bias ||
         a->y_dtype != a->x_dtype || a->y_stride % 2 != 0 || (uintptr_t)a->y % 4 != 0)) {
        return false;
    }
    const bool is_16 = (a->w_dtype == DT_BF16 || a->w_dtype == DT_F16) &&
                       (a->y_dtype == a->x_dtype || a->y_dtype == DT_F32);
    return sm == 90 && a->n_batch <= 1 && a->n_rows >= 1 && a->n_rows <= 64 && is_16 &&
           a->x_dtype == a->w_dtype && a->n_in % 8 == 0 && a->x_stride % 8 == 0 &&
           ((uintptr_t)a->x | (uintptr_t)a->weight) % 16 == 0;
}

template <typename T, typename Y, bool GATED, bool PARTS = false>
static cudaError_t launch_by_band(cudaStream_t stream, const struct gemm_args *a, int n_sms,
                                  const struct small_params &p)
{
    switch (band_of(a->n_out, n_sms)) {
    case 32: return launch_small<T, Y, 32, GATED, PARTS>(stream, a, n_sms, p);
    case 48: return launch_small<T, Y, 48, GATED, PARTS>(stream, a, n_sms, p);
    case 64: return launch_small<T, Y, 64, GATED, PARTS>(stream, a, n_sms, p);
    case 96: return launch_small<T, Y, 96, GATED, PARTS>(stream, a, n_sms, p);
    case 112: return launch_small<T, Y, 112, GATED, PARTS>(stream, a, n_sms, p);
    case 128: return launch_small<T, Y, 128, GATED, PARTS>(stream, a, n_sms, p);
    default: return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t gemm_small(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    struct small_params p = {};
    p.y = a->y;
    p.bias = a->bias;
    p.n_rows = a->n_rows;
    p.n_out = p.up_row = a->gated ? a->n_out / 2 : a->n_out;
    p.n_boxes = (a->n_in + DEPTH - 1) / DEPTH;
    p.y_stride = a->y_stride;
    p.x_rows = x_rows_of(a->n_rows);
    p.accumulate = a->accumulate;
    p.plain = !p.accumulate && p.n_out % 2 == 0 && p.y_stride % 2 == 0 && (uintptr_t)p.y % 8 == 0;
    const bool bf16 = a->w_dtype == DT_BF16;
    if (a->n_parts > 1) {
        p.part_bias = p.bias;
        p.bias = nullptr;
        p.part_boxes = p.n_boxes / a->n_parts;
        p.plain = p.n_out % 2 == 0 && p.y_stride % 2 == 0 && (uintptr_t)p.y % 8 == 0;
        return bf16 ? launch_by_band<bf16_t, bf16_t, false, true>(stream, a, n_sms, p)
                    : launch_by_band<f16_t, f16_t, false, true>(stream, a, n_sms, p);
    }
    if (a->gated) {
        return bf16 ? launch_by_band<bf16_t, bf16_t, true>(stream, a, n_sms, p)
                    : launch_by_band<f16_t, f16_t, true>(stream, a, n_sms, p);
    }
    if (a->y_dtype == DT_F32) {
        return bf16 ? launch_by_band<bf16_t, float, false>(stream, a, n_sms, p)
                    : launch_by_band<f16_t, float, false>(stream, a, n_sms, p);
    }
    return bf16 ? launch_by_band<bf16_t, bf16_t, false>(stream, a, n_sms, p)
                : launch_by_band<f16_t, f16_t, false>(stream, a, n_sms, p);
}
