// SPDX-License-Identifier: Apache-2.0
/* The output head on Hopper: logits = x W^T in fp32 for up to 256 rows, and the best logit of each
 * row in each band of features. Greedy draws take their token from these without reading all the
 * logits again, and rows that only greedy draws read are not even written, which saves most of the
 * time.
 *
 * A block has a multiprocessor to itself, takes 64 or 128 rows (64 per warpgroup), and one band of
 * features after another. Above 128 rows a cluster of two neighbouring blocks shares a band's
 * weights: each loads half for both, because the L2 cache cannot feed this many tiles of this size
 * and reading it costs power. One thread loads W and another x through a ring of stages that
 * fills shared memory; loads of W start before the preceding kernel ends.
 *
 * Bound by reading the weight for few rows, and by the tensor cores and the writes of logits for
 * many. */
#include "cuda/gemm.h"
#include "cuda/kernels/device/bands.cuh"
#include "cuda/kernels/device/greedy.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/maps.cuh"

enum {
    DEPTH = 64,              // inputs of K per stage
    GROUP_ROWS = 64,         // per warpgroup
    RING_BYTES = 220 * 1024, // the rest lets small kernels run beside it
    MIN_ROWS = 16,           // gemm/small.cu is faster with fewer
    MIN_CLUSTER_ROWS = 209,  // cuBLASLt is faster with 129 to 208 rows
    MAX_ROWS = MAX_BEST_ROWS,
};

struct head_params {
    float *y;
    const float *bias;
    struct best_pair *pairs;
    int32_t n_rows, n_out, n_boxes; // boxes of DEPTH along K
    int32_t y_stride, n_bands, pairs_stride;
    bool skip;     // skip rows that only greedy draws read
    bool in_pairs; // rows of y are aligned to two features
};

/* For 128,256 features, 594 bands of 216 are 9 rounds of 66 clusters, and 518 bands of 248 are
 * nearly 4 rounds of 132 blocks. For 65,536, 265 bands of 248 are more than 2 rounds, 256 of 256
 * are not. */
enum { CLUSTER_BAND = 216, BAND = 248, WIDE_BAND = 256 };

template <int CLUSTER_, int GROUPS_, int BAND_> struct head_shape {
    static constexpr int CLUSTER = CLUSTER_, GROUPS = GROUPS_; // blocks; warpgroups per block
    static constexpr int TILE_ROWS = GROUPS * GROUP_ROWS;
    static constexpr int COMPUTERS = GROUPS * 128, THREADS = COMPUTERS + (GROUPS == 1 ? 64 : 128);
    static constexpr int X_BYTES = TILE_ROWS * DEPTH * 2;
    static constexpr int BAND = BAND_;
    static constexpr int BOX_ROWS = CLUSTER == 1 ? BAND : 72; // rows of W per load
    static constexpr int BOXES = BAND / BOX_ROWS;
    static_assert(BAND >= MIN_BEST_BAND && MAX_ROWS <= 2 * 2 * GROUP_ROWS, "room for the pairs");
    static constexpr int W_BYTES = BAND * DEPTH * 2, BYTES = W_BYTES + X_BYTES;
    static constexpr int STAGES = RING_BYTES / BYTES;
    static constexpr int SMEM_BYTES = STAGES * BYTES + 1024;
};

#if HAVE_SM90A

template <typename S> using head_walk = band_walk<S::CLUSTER, S::STAGES>;

template <typename S> struct head_loader {
    const struct head_params &p;
    const CUtensorMap *map;
    char *smem;
    band_ring<S::STAGES> *ring;
    int32_t rank; // rank of the block in its cluster

    template <bool IS_X>
    __device__ __forceinline__ void load(const head_walk<S> &at, uint64_t policy)
    {
        char *to = smem + at.slot * S::BYTES;
        const int32_t column = at.box * DEPTH, feature = at.band * S::BAND;
        if (IS_X) {
            barrier_expect(&ring->full_x[at.slot], S::X_BYTES);
            tensor_load(to + S::W_BYTES, map, &ring->full_x[at.slot], column, rank * S::TILE_ROWS,
                        policy);
        } else if (S::CLUSTER == 1) {
            barrier_expect(&ring->full_w[at.slot], S::W_BYTES);
            tensor_load(to, map, &ring->full_w[at.slot], column, feature, policy);
        } else {
            barrier_expect(&ring->full_w[at.slot], S::W_BYTES);
            // the blocks take the loads in turn
            for (int i = (rank + at.box) % S::CLUSTER; i < S::BOXES; i += S::CLUSTER) {
                tensor_load_multicast(to + i * (S::W_BYTES / S::BOXES), map, &ring->full_w[at.slot],
                                      column, feature + i * S::BOX_ROWS, (1 << S::CLUSTER) - 1,
                                      policy);
            }
        }
    }

    template <bool IS_X> __device__ __forceinline__ void run()
    {
        const uint64_t policy = IS_X ? policy_evict_last() : policy_evict_first();
        load_bands<S::CLUSTER>(ring, p.n_bands, p.n_boxes,
                               [&](const head_walk<S> &at) { load<IS_X>(at, policy); });
    }
};

/* Sets bit r % 32 of wanted[r / 32] if a draw that is not greedy reads row first + r. All computing
 * threads call this, and none returns before all bits are set. */
template <typename S>
__device__ __forceinline__ void want_rows(const struct head_params &p, const struct pass_view &pass,
                                          int32_t first, uint32_t *wanted)
{
    const int32_t n = p.skip ? pass.counts->n_draws : 0;
    for (int32_t i = threadIdx.x; i < n; i += S::COMPUTERS) {
        const struct pass_draw d = pass.draws[i];
        const int32_t r = d.out_row - first;
        if (r >= 0 && r < S::TILE_ROWS && !is_greedy(pass.params[d.lane], d)) {
            atomicOr(&wanted[r / 32], 1u << r % 32);
        }
    }
    constexpr int N = S::COMPUTERS;
    asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory");
}

/* A computing warpgroup. device/wgmma.cuh describes the layout of the accumulators. */
template <typename T, typename S> struct head_computer {
    static constexpr int BLOCKS = S::BAND / 8;
    const struct head_params &p;
    char *smem;
    band_ring<S::STAGES> *ring;
    int row0;     // the first of this thread's two rows
    bool want[2]; // whether their logits must be stored
    head_walk<S> at;
    int32_t to_release; // boxes whose stage will be refilled
    float d[S::BAND / 2];

    /* Tells the cluster's loaders that a stage is free, unless nobody will refill it: an arrival
     * must not reach a block that has exited. */
    __device__ __forceinline__ void release(int slot)
    {
        if (to_release-- > 0 && (threadIdx.x & 31) < S::CLUSTER) {
            if (S::CLUSTER == 1) {
                barrier_arrive(&ring->empty[slot]);
            } else {
                barrier_arrive_at(&ring->empty[slot], threadIdx.x & 31);
            }
        }
    }

    __device__ __forceinline__ void products()
    {
        int last = 0;
#pragma unroll 1
        for (; at.box < p.n_boxes; at.next_box()) {
            barrier_wait(&ring->full_x[at.slot], at.parity);
            barrier_wait(&ring->full_w[at.slot], at.parity);
            const uint32_t w = smem_address(smem + at.slot * S::BYTES);
            const uint32_t x = w + S::W_BYTES + threadIdx.x / 128 * (GROUP_ROWS * DEPTH * 2);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++) {
                wgmma<T, S::BAND>::ss(d, wgmma_operand(x + i * 32, 0), wgmma_operand(w + i * 32, 0),
                                      at.box > 0 || i > 0);
            }
            wgmma_commit();
            if (at.box > 0) {
                wgmma_wait<1>();
                release(last);
            }
            last = at.slot;
        }
        wgmma_wait<0>();
        release(last);
        wgmma_settle(d);
    }

    /* Columns past the last feature can never be the best. */
    __device__ __forceinline__ void finish_band(int32_t feature)
    {
        if (p.bias) {
#pragma unroll
            for (int i = 0; i < S::BAND / 2; i++) {
                const int32_t f = feature + (i >> 2) * 8 + (i & 1);
                d[i] += f < p.n_out ? p.bias[f] : 0.0f;
            }
        }
        if (at.band == p.n_bands - 1) {
#pragma unroll
            for (int i = 0; i < S::BAND / 2; i++) {
                d[i] = feature + (i >> 2) * 8 + (i & 1) < p.n_out ? d[i] : -INFINITY;
            }
        }
    }

    /* A NaN is the best of its band, so that the draw finds it. */
    __device__ __forceinline__ void keep_best(int r, int32_t feature)
    {
        float value = -INFINITY;
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            value = max_or_nan(value, max_or_nan(d[4 * j + 2 * r], d[4 * j + 2 * r + 1]));
        }
        int32_t id = INT32_MAX;
#pragma unroll
        for (int j = BLOCKS - 1; j >= 0; j--) { // of equal logits, the first
            id = d[4 * j + 2 * r + 1] == value ? 8 * j + 1 : id;
            id = d[4 * j + 2 * r] == value ? 8 * j : id;
        }
        id = value > -INFINITY ? id + feature : INT32_MAX;
#pragma unroll
        for (int mask = 1; mask <= 2; mask <<= 1) {
            const float other = __shfl_xor_sync(0xffffffffu, value, mask);
            const int32_t other_id = __shfl_xor_sync(0xffffffffu, id, mask);
            id = other > value || (other == value && other_id < id) ? other_id : id;
            value = max_or_nan(value, other);
        }
        const int row = row0 + 8 * r;
        if ((threadIdx.x & 3) == 0 && row < p.n_rows) {
            const struct best_pair best = {value, id};
            p.pairs[(int64_t)row * p.pairs_stride + at.band] = best;
        }
    }

    __device__ __forceinline__ void store_row(int r, int32_t feature)
    {
        float *to = p.y + (int64_t)(row0 + 8 * r) * p.y_stride + feature;
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            const float2 v = make_float2(d[4 * j + 2 * r], d[4 * j + 2 * r + 1]);
            if (p.in_pairs && feature + 8 * j + 1 < p.n_out) {
                *(float2 *)(to + 8 * j) = v;
            } else if (feature + 8 * j < p.n_out) {
                to[8 * j] = v.x;
                if (feature + 8 * j + 1 < p.n_out) {
                    to[8 * j + 1] = v.y;
                }
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        const int32_t step = (int32_t)gridDim.x / S::CLUSTER;
        to_release = (p.n_bands - at.band + step - 1) / step * p.n_boxes - S::STAGES;
#pragma unroll 1
        for (; at.band < p.n_bands; at.next_band()) {
            products();
            const int32_t feature = at.band * S::BAND + (threadIdx.x & 3) * 2;
            finish_band(feature);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                keep_best(r, feature);
                if (want[r]) {
                    store_row(r, feature);
                }
            }
        }
    }
};

#endif // HAVE_SM90A

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::GROUPS == 1 ? 2 : 1)
    gemm_head_kernel(const __grid_constant__ struct head_params p,
                     const __grid_constant__ struct pass_view pass,
                     const __grid_constant__ CUtensorMap w_map,
                     const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    extern __shared__ char smem_raw[];
    __shared__ band_ring<S::STAGES> ring;
    __shared__ uint32_t wanted[S::TILE_ROWS / 32];
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    const int tid = threadIdx.x, rank = S::CLUSTER == 1 ? 0 : (int)cluster_rank();
    if (tid == 0) {
#pragma unroll 1
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&ring.full_w[i], 1);
            barrier_init(&ring.full_x[i], 1);
            barrier_init(&ring.empty[i], S::CLUSTER * S::GROUPS * 4);
        }
        barrier_init_done();
    }
    if (tid < S::TILE_ROWS / 32) {
        wanted[tid] = 0;
    }
    if (S::CLUSTER == 1) {
        __syncthreads();
    } else {
        cluster_sync();
    }
    if (tid >= S::COMPUTERS) {
        if (S::GROUPS > 1) {
            registers_fewer<40>();
        }
        if (tid == S::COMPUTERS) {
            head_loader<S> l = {p, &w_map, smem, &ring, rank};
            l.template run<false>();
        } else if (tid == S::COMPUTERS + 32) {
            tensor_map_prefetch(&x_map);
            pdl_wait();
            head_loader<S> l = {p, &x_map, smem, &ring, rank};
            l.template run<true>();
        }
        pdl_wait();
    } else {
        if (S::GROUPS > 1) {
            registers_more<232>();
        }
        want_rows<S>(p, pass, rank * S::TILE_ROWS, wanted);
        pdl_wait(); // preceding kernels may use y until then
        pdl_trigger();
        const int in_tile = (tid >> 5) * 16 + (tid >> 2 & 7);
        head_computer<T, S> c = {p, smem, &ring, rank * S::TILE_ROWS + in_tile};
        for (int r = 0; r < 2; r++) {
            const int row = in_tile + 8 * r;
            c.want[r] =
                c.row0 + 8 * r < p.n_rows && (!p.skip || (wanted[row / 32] >> row % 32 & 1) != 0);
        }
        c.run();
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

/* The number of features that the busiest block takes. */
static int share_of(const struct gemm_args *a, int band)
{
    const int n_bands = (a->n_out + band - 1) / band, n_sms = n_multiprocessors();
    return (n_bands + n_sms - 1) / n_sms * band;
}

static int band_of(const struct gemm_args *a)
{
    if (a->n_rows > 2 * GROUP_ROWS) {
        return CLUSTER_BAND;
    }
    return share_of(a, WIDE_BAND) < share_of(a, BAND) ? WIDE_BAND : BAND;
}

extern "C" int32_t gemm_head_bands(const struct gemm_args *a)
{
    return (a->n_out + band_of(a) - 1) / band_of(a);
}

extern "C" bool gemm_head_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    return sm == 90 && n_sms >= 2 && !a->gated && !a->accumulate && a->n_batch <= 1 &&
           a->n_rows >= MIN_ROWS && a->n_rows <= MAX_ROWS &&
           (a->n_rows <= 2 * GROUP_ROWS || a->n_rows >= MIN_CLUSTER_ROWS) && a->n_in % 8 == 0 &&
           (a->w_dtype == DT_BF16 || a->w_dtype == DT_F16) && a->x_dtype == a->w_dtype &&
           a->y_dtype == DT_F32 && a->x_stride % 8 == 0 && a->w_stride == 0 &&
           ((uintptr_t)a->x | (uintptr_t)a->weight) % 16 == 0 &&
           a->n_out > (n_sms - 1) * (a->n_rows <= 2 * GROUP_ROWS ? BAND : CLUSTER_BAND);
}

template <typename T, typename S>
static cudaError_t launch_head(cudaStream_t stream, const struct gemm_args *a,
                               const struct head_params &p, const struct pass_view *pass,
                               int32_t n_sms)
{
    const auto kernel = gemm_head_kernel<T, S>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         S::SMEM_BYTES); // set at every launch, because each
                                                         // rank has its own device
    CUtensorMap w_map, x_map;
    if (e == cudaSuccess) {
        e = product_maps(a, S::BOX_ROWS, S::TILE_ROWS, &w_map, &x_map);
    }
    if (e != cudaSuccess) {
        return e;
    }
    const int32_t at_once = n_sms / S::CLUSTER, rounds = (p.n_bands + at_once - 1) / at_once;
    const int32_t n_clusters = (p.n_bands + rounds - 1) / rounds;
    const struct pass_view none = {};
    return launch_clusters(S::CLUSTER, kernel, dim3((unsigned)(n_clusters * S::CLUSTER)),
                           dim3(S::THREADS), S::SMEM_BYTES, stream, p, pass ? *pass : none, w_map,
                           x_map);
}

template <typename T>
static cudaError_t by_rows(cudaStream_t stream, const struct gemm_args *a,
                           const struct head_params &p, const struct pass_view *pass, int32_t n_sms)
{
    if (a->n_rows > 2 * GROUP_ROWS) {
        return launch_head<T, head_shape<2, 2, CLUSTER_BAND>>(stream, a, p, pass, n_sms);
    }
    const bool wide = band_of(a) == WIDE_BAND;
    if (a->n_rows <= GROUP_ROWS) {
        return wide ? launch_head<T, head_shape<1, 1, WIDE_BAND>>(stream, a, p, pass, n_sms)
                    : launch_head<T, head_shape<1, 1, BAND>>(stream, a, p, pass, n_sms);
    }
    return wide ? launch_head<T, head_shape<1, 2, WIDE_BAND>>(stream, a, p, pass, n_sms)
                : launch_head<T, head_shape<1, 2, BAND>>(stream, a, p, pass, n_sms);
}

extern "C" cudaError_t gemm_head(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                                 const struct row_bests *bests, const struct pass_view *pass)
{
    struct head_params p = {};
    p.y = (float *)a->y;
    p.bias = a->bias;
    p.pairs = bests->pairs;
    p.pairs_stride = bests->stride;
    p.n_rows = a->n_rows;
    p.n_out = a->n_out;
    p.n_boxes = (a->n_in + DEPTH - 1) / DEPTH;
    p.y_stride = a->y_stride;
    p.n_bands = gemm_head_bands(a);
    p.skip = pass != NULL;
    p.in_pairs = a->y_stride % 2 == 0 && (uintptr_t)a->y % 8 == 0;
    return a->w_dtype == DT_BF16 ? by_rows<bf16_t>(stream, a, p, pass, n_sms)
                                 : by_rows<f16_t>(stream, a, p, pass, n_sms);
}
