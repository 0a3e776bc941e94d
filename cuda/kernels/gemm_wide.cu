/* y = x W^T for 33 to 64 rows, on Hopper, where W has many features: gate_up and the head.
 *
 * A block has a multiprocessor to itself: a warp loads boxes of W and x through a ring of stages that
 * fills the shared memory, and a warpgroup computes D[64 rows, N features] with wgmma, x and W from
 * shared memory. Beside gemm_small.cu: a ring of twice the size, and nothing that a second block on
 * the multiprocessor could take.
 *
 * With programmatic dependent launch the ring is filled with weights, which no kernel writes, before
 * the wait for the kernel before.
 *
 * A plan may also cut K into equal runs, whose sums are then written as they are, in fp32, one after
 * the other; and put blocks into clusters, each of which loads its share of x and sends it to all.
 * No product is made so today: RESULTS.md has what both gave. */
#include "cuda/gemm.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/wgmma.cuh"

enum {
    DEPTH = 64, // of K in a stage
    SMEM_BUDGET = 223 * 1024,
    MAX_STAGES = 12,
};

struct wide_params {
    void *y;
    const float *bias;
    int32_t n_rows, n_out, n_boxes; // boxes of DEPTH along K
    int32_t y_stride, n_splits;
    int64_t part_stride; // of y, in elements, from one run of K to the next
    int32_t cluster, n_stages;
    bool accumulate;
};

/* The work of a cluster: item after item, an item's run of K box after box. */
struct wide_cursor {
    int32_t item, n_items, step, n_groups, box, end;

    __device__ __forceinline__ void enter(const struct wide_params &p)
    {
        const int32_t split = item / n_groups;
        box = (int32_t)((int64_t)split * p.n_boxes / p.n_splits);
        end = (int32_t)((int64_t)(split + 1) * p.n_boxes / p.n_splits);
    }
    __device__ __forceinline__ bool done() const
    {
        return item >= n_items;
    }
    __device__ __forceinline__ void next(const struct wide_params &p)
    {
        if (++box == end) {
            item += step;
            enter(p);
        }
    }
};

template <int N>
__device__ __forceinline__ struct wide_cursor wide_begin(const struct wide_params &p)
{
    struct wide_cursor c;
    const int32_t n_bands = (p.n_out + N - 1) / N;
    c.n_groups = (n_bands + p.cluster - 1) / p.cluster;
    c.n_items = c.n_groups * p.n_splits;
    c.item = (int32_t)blockIdx.x / p.cluster;
    c.step = (int32_t)gridDim.x / p.cluster;
    c.enter(p);
    return c;
}

#if HAVE_SM90A

/* The loads of a block, by one thread. */
template <int N, int G> struct wide_loader {
    static constexpr int W_BYTES = N * DEPTH * 2, BYTES = W_BYTES + G * 64 * DEPTH * 2;
    const struct wide_params &p;
    const CUtensorMap *w_map, *x_map;
    char *smem;
    uint64_t *full, *empty;
    int32_t rank;
    uint64_t once, often;
    struct wide_cursor w;

    __device__ __forceinline__ void load_w(const struct wide_cursor &c, int stage)
    {
        const int32_t band = c.item % c.n_groups * p.cluster + rank;
        barrier_expect(&full[stage], BYTES);
        tensor_load(smem + stage * BYTES, w_map, &full[stage], c.box * DEPTH, band * N, once);
    }

    __device__ __forceinline__ void load_x(const struct wide_cursor &c, int stage)
    {
        const int32_t share = G * 64 / p.cluster;
        char *to = smem + stage * BYTES + W_BYTES + rank * share * DEPTH * 2;
        if (p.cluster > 1) {
            tensor_load_multicast(to, x_map, &full[stage], c.box * DEPTH, rank * share,
                                  (uint16_t)((1 << p.cluster) - 1), often);
        } else {
            tensor_load(to, x_map, &full[stage], c.box * DEPTH, 0, often);
        }
    }

    /* The ring full of weights. */
    __device__ __forceinline__ void begin()
    {
        rank = (int32_t)blockIdx.x % p.cluster;
        once = policy_evict_first();
        often = policy_evict_last();
        w = wide_begin<N>(p);
        for (int i = 0; i < p.n_stages && !w.done(); i++, w.next(p)) {
            load_w(w, i);
        }
    }

    /* Once x is there, and every block of the cluster. */
    __device__ __forceinline__ void go_on()
    {
        struct wide_cursor x = wide_begin<N>(p);
        for (int i = 0; i < p.n_stages && !x.done(); i++, x.next(p)) {
            load_x(x, i);
        }
        int stage = 0;
        uint32_t parity = 0;
        for (; !w.done(); w.next(p)) {
            barrier_wait(&empty[stage], parity);
            load_w(w, stage);
            load_x(w, stage);
            if (++stage == p.n_stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
};

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

template <typename Y, int N>
__device__ __forceinline__ void wide_store(const struct wide_params &p, const float (&d)[N / 2],
                                           int32_t band, int32_t split)
{
    const int tid = threadIdx.x, row0 = (tid >> 5) * 16 + (tid >> 2 & 7);
    const int feature = band * N + (tid & 3) * 2;
    const bool pairs = (p.y_stride & 1) == 0 && !p.accumulate;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row0 + 8 * r;
        if (row >= p.n_rows) {
            continue;
        }
        Y *to = (Y *)p.y + split * p.part_stride + (int64_t)row * p.y_stride;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int f = feature + j * 8;
            float v[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                v[e] = d[j * 4 + 2 * r + e];
                v[e] += p.bias != nullptr && f + e < p.n_out ? p.bias[f + e] : 0.0f;
            }
            if (pairs && f + 1 < p.n_out) {
                typename pair_of<Y>::type both;
                both.x = from_float<Y>(v[0]);
                both.y = from_float<Y>(v[1]);
                *(typename pair_of<Y>::type *)(to + f) = both;
                continue;
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (f + e < p.n_out) {
                    v[e] += p.accumulate ? to_float(to[f + e]) : 0.0f;
                    to[f + e] = from_float<Y>(v[e]);
                }
            }
        }
    }
}

#endif // HAVE_SM90A

template <typename T, typename Y, int N, int G>
__global__ void __launch_bounds__(G * 128 + 32, 1)
    gemm_wide_kernel(const __grid_constant__ struct wide_params p,
                     const __grid_constant__ CUtensorMap w_map,
                     const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    constexpr int W_BYTES = N * DEPTH * 2, BYTES = W_BYTES + G * 64 * DEPTH * 2;
    extern __shared__ char smem_raw[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    char *smem = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    const int tid = threadIdx.x;
    if (tid == 0) {
        for (int i = 0; i < p.n_stages; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], G * 4 * p.cluster);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (p.cluster > 1) {
        cluster_arrive(); // its barriers are there: x may be sent
    }
    if (tid >= G * 128) {
        struct wide_loader<N, G> loader = {p, &w_map, &x_map, smem, full, empty};
        if (tid == G * 128) {
            loader.begin();
        }
        __syncwarp();
        if (p.cluster > 1) {
            cluster_wait();
        }
        if (tid == G * 128) {
            pdl_wait();
            loader.go_on();
        }
        __syncwarp();
        pdl_trigger(); // counts once all threads of the block have come by or left
        pdl_wait();
    } else {
        if (p.cluster > 1) {
            cluster_wait();
        }
        pdl_trigger();
        pdl_wait(); // y may be another kernel's until then
        const uint32_t group = tid / 128, lane = tid & 31;
        auto release = [&](int stage) {
            if (lane < (uint32_t)p.cluster) {
                barrier_arrive_at(&empty[stage], lane);
            }
        };
        int stage = 0, before = -1;
        uint32_t parity = 0;
        const int32_t rank = (int32_t)blockIdx.x % p.cluster;
        for (struct wide_cursor c = wide_begin<N>(p); !c.done();) {
            float d[N / 2];
            const int32_t band = c.item % c.n_groups * p.cluster + rank, split = c.item / c.n_groups;
            const int32_t first = c.box;
            for (; c.box < c.end; c.box++) {
                barrier_wait(&full[stage], parity);
                const uint32_t w = smem_address(smem + stage * BYTES);
                const uint32_t x = w + W_BYTES + group * 64 * DEPTH * 2;
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < DEPTH / 16; i++) {
                    wgmma<T, N>::ss(d, wgmma_operand(x + i * 32, 0), wgmma_operand(w + i * 32, 0),
                                    c.box > first || i > 0);
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (before >= 0) {
                    release(before);
                }
                before = stage;
                if (++stage == p.n_stages) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            wgmma_wait<0>();
            release(before);
            before = -1;
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                asm volatile("" : "+f"(d[i])::"memory");
            }
            wide_store<Y, N>(p, d, band, split);
            c.item += c.step;
            c.enter(p);
        }
    }
    if (p.cluster > 1) { // nor leave while the others arrive at its barriers
        __syncwarp();
        cluster_arrive();
        cluster_wait();
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

template <typename T, typename Y, int N>
static cudaError_t launch_wide(cudaStream_t stream, const struct gemm_args *a,
                               struct wide_params p, int n_blocks)
{
    constexpr int BYTES = N * DEPTH * 2 + 64 * DEPTH * 2;
    p.n_stages = (SMEM_BUDGET - 2048) / BYTES;
    p.n_stages = p.n_stages < MAX_STAGES ? p.n_stages : MAX_STAGES;
    const size_t smem = (size_t)p.n_stages * BYTES + 1024;
    const auto kernel = gemm_wide_kernel<T, Y, N, 1>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)smem); // of this device: ranks have one each
    if (e != cudaSuccess) {
        return e;
    }
    CUtensorMap w_map, x_map;
    const bool bf16 = a->w_dtype == DT_BF16;
    e = tensor_map_2d(&w_map, a->weight, bf16, (uint64_t)a->n_in, (uint64_t)a->n_out,
                      (uint64_t)a->n_in * 2, N);
    if (e == cudaSuccess) {
        e = tensor_map_2d(&x_map, a->x, bf16, (uint64_t)a->n_in, (uint64_t)a->n_rows,
                          (uint64_t)a->x_stride * 2, (uint32_t)(64 / p.cluster));
    }
    if (e != cudaSuccess) {
        return e;
    }
    return launch_clusters((unsigned)p.cluster, kernel, dim3((unsigned)n_blocks), dim3(128 + 32),
                           smem, stream, p, w_map, x_map);
}

template <typename T, typename Y>
static cudaError_t wide_by_band(cudaStream_t stream, const struct gemm_args *a,
                                const struct wide_params &p, int band, int n_blocks)
{
    switch (band) {
    case 112: return launch_wide<T, Y, 112>(stream, a, p, n_blocks);
    case 128: return launch_wide<T, Y, 128>(stream, a, p, n_blocks);
    default: return cudaErrorInvalidValue;
    }
}

extern "C" bool gemm_wide_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms,
                                struct wide_plan *plan)
{
    if (sm != 90 || a->n_batch > 1 || a->n_rows < 33 || a->n_rows > 64 ||
        (a->w_dtype != DT_BF16 && a->w_dtype != DT_F16) || a->x_dtype != a->w_dtype ||
        (a->y_dtype != a->x_dtype && a->y_dtype != DT_F32) || a->n_in % 8 != 0 ||
        a->x_stride % 8 != 0 ||
        ((uintptr_t)a->x | (uintptr_t)a->weight | (uintptr_t)a->y) % 16 != 0) {
        return false;
    }
    int64_t best = INT64_MAX, width = 0;
    for (int32_t band : {112, 128}) { // of equals the wider, which reads x less often
        const int64_t n_bands = (a->n_out + band - 1) / band;
        const int64_t rounds = (n_bands + n_sms - 1) / n_sms;
        const int64_t cost = rounds * (band + 16); // 16: a band's beginning and end
        if (cost <= best) {
            best = cost;
            width = rounds * band * n_sms;
            *plan = {band, 1, 1, n_sms};
        }
    }
    return a->n_out * 10ll >= width * 9; // else too many multiprocessors are idle at the end
}

extern "C" cudaError_t gemm_wide(cudaStream_t stream, const struct gemm_args *a,
                                 const struct wide_plan *plan, float *sums)
{
    struct wide_params p = {};
    const bool split = plan->n_splits > 1;
    p.y = split ? sums : a->y;
    p.bias = split ? nullptr : a->bias;
    p.n_rows = a->n_rows;
    p.n_out = a->n_out;
    p.n_boxes = (a->n_in + DEPTH - 1) / DEPTH;
    p.y_stride = split ? a->n_out : a->y_stride;
    p.part_stride = split ? (int64_t)a->n_rows * a->n_out : 0;
    p.n_splits = plan->n_splits;
    p.cluster = plan->cluster;
    p.accumulate = !split && a->accumulate;
    const int n_bands = (a->n_out + plan->band - 1) / plan->band;
    const int n_items = (n_bands + p.cluster - 1) / p.cluster * p.n_splits;
    const int most = plan->n_blocks / p.cluster;
    const int n_blocks = (n_items < most ? n_items : most) * p.cluster;
    const bool bf16 = a->w_dtype == DT_BF16;
    if (split || a->y_dtype == DT_F32) {
        return bf16 ? wide_by_band<bf16_t, float>(stream, a, p, plan->band, n_blocks)
                    : wide_by_band<f16_t, float>(stream, a, p, plan->band, n_blocks);
    }
    return bf16 ? wide_by_band<bf16_t, bf16_t>(stream, a, p, plan->band, n_blocks)
                : wide_by_band<f16_t, f16_t>(stream, a, p, plan->band, n_blocks);
}
