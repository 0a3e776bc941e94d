// SPDX-License-Identifier: Apache-2.0
/* y = x W^T with a weight of 4-bit codes (cuda/coded.h) and 17 to 32 rows, on Hopper, for formats
 * that four_exact.cu does not support. Codes are converted on their way into the tensor cores.
 *
 * D[features, rows] = W x^T by wgmma: 64 features of W are the register operand, x the
 * shared-memory operand. A block has a multiprocessor to itself and processes items in turn: a tile
 * of rows of x, a band of up to 16 tile rows of the weight, and a range of K. A warp converts one
 * tile row of 16 features, exactly; the four warps of a warpgroup form one operand. Sums over a
 * group are scaled in fp32 and accumulated. One warp loads codes, scales and zeros by bulk copies,
 * and one thread loads x through a tensor map, into a ring that fills shared memory. A copy costs
 * about 60 ns whatever its size, so a stage holds several chunks of 128 inputs. If there are fewer
 * bands than multiprocessors, K is split, and the partial sums stay in fp32 for the kernel that
 * reads the product.
 *
 * If gated, a band has equally many tile rows of both halves of the weight, and a warp takes 8 gate
 * features and the 8 matching up features, so that a thread has both factors of each output.
 *
 * Bound by the chain of conversion and products in a warpgroup, although four warpgroups take
 * turns. With programmatic dependent launch the ring is filled with weights before the wait for the
 * preceding kernel. */
#include "cuda/kernels/device/codes.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/four.cuh"

enum {
    CHUNK = 128, // inputs
    BOX = 64,    // inputs in a box of x
    MAX_STAGES = 4,
    RING_BYTES = 221 * 1024, // the rest lets small kernels run beside it
    MAX_RUNS = 8,
};

struct four_params {
    struct coded_matrix m;
    void *y;
    const float *bias;
    int32_t n_rows, n_out; // size of y
    int64_t y_stride, part_stride;
    int32_t tiles, n_bands, n_runs, n_row_tiles, n_items; // tiles: tile rows per band
    // n_groups: computing warpgroups with work
    int32_t n_stages, n_groups;
    bool accumulate, gated;
    bool is_full; // the grid fills most of the machine
};

/* PER_GROUP: words of a lane that share a scale: 4, or 1 for groups of 32 and 64. N: rows of x.
 * GROUPS: computing warpgroups. */
template <enum coded_code CODE, int PER_GROUP, int N, int GROUPS> struct four_shape {
    static constexpr int TILES = GROUPS * 4;
    static constexpr int FEW_ROWS = PER_GROUP == 4 ? 32 : 16;
    static constexpr int CHUNKS = N <= FEW_ROWS ? 4 : 2;  // per stage
    static constexpr int SCALES = PER_GROUP == 4 ? 1 : 4; // the most scales of a feature in a stage
    static constexpr int SCALE_BYTES = CODED_ROWS * SCALES * code_of<CODE>::SCALE_BYTES;
    static constexpr int ZERO_BYTES = code_of<CODE>::HAS_ZEROS ? CODED_ROWS * SCALES : 0;
    static constexpr int X_BYTES = N * CHUNK * 2, CODES = CHUNKS * X_BYTES;
    static constexpr int ROW_BYTES = CHUNKS * CODED_TILE_BYTES;   // per tile row
    static constexpr int BOXES_BYTES = CODES + TILES * ROW_BYTES; // a multiple of 1,024
    static constexpr int SMALL_BYTES = TILES * CHUNKS * (SCALE_BYTES + ZERO_BYTES);
    static constexpr int FIT = (RING_BYTES - 1024) / (BOXES_BYTES + SMALL_BYTES);
    static constexpr int STAGES = FIT < MAX_STAGES ? FIT : MAX_STAGES;
    static constexpr int SMEM = STAGES * (BOXES_BYTES + SMALL_BYTES) + 1024;
    static constexpr int THREADS = GROUPS * 128 + 64;
};

/* A block's position: item after item, stage after stage. */
struct four_walk {
    int32_t item, chunk, end;
    int32_t stage;
    uint32_t parity;

    __device__ __forceinline__ void enter(const struct four_params &p, int32_t which)
    {
        item = which;
        const int32_t run = which / p.n_row_tiles / p.n_bands;
        chunk = (int32_t)((int64_t)run * p.m.n_chunks / p.n_runs);
        end = (int32_t)((int64_t)(run + 1) * p.m.n_chunks / p.n_runs);
    }
    __device__ __forceinline__ explicit four_walk(const struct four_params &p) : stage(0), parity(0)
    {
        enter(p, (int32_t)blockIdx.x);
    }
    __device__ __forceinline__ void next_stage(const struct four_params &p)
    {
        if (++stage == p.n_stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ int32_t first_row(const struct four_params &p, int32_t n) const
    {
        return item % p.n_row_tiles * n;
    }
    __device__ __forceinline__ int32_t band(const struct four_params &p) const
    {
        return item / p.n_row_tiles % p.n_bands;
    }
};

/* The weight's tile row in slot `slot` of a band; -1: none. If gated, even slots belong to the
 * gate. */
__device__ __forceinline__ int32_t tile_at(const struct four_params &p, int32_t band, int32_t slot)
{
    if (slot >= p.tiles) {
        return -1;
    }
    if (p.gated) {
        const int32_t half = p.m.n_tiles / 2, tile = (band * p.tiles + slot) / 2;
        return tile < half ? tile + slot % 2 * half : -1;
    }
    const int32_t tile = band * p.tiles + slot;
    return tile < p.m.n_tiles ? tile : -1;
}

#if HAVE_SM90A

struct four_ring {
    uint64_t full_w[MAX_STAGES], full_x[MAX_STAGES], empty[MAX_STAGES];
};

/* ---- loading --------------------------------------------------------------------------------- */

template <typename S, typename F>
__device__ __forceinline__ void for_stages(const struct four_params &p, struct four_ring *ring,
                                           F load)
{
    int fresh = p.n_stages; // stages not yet used, which need no wait
    struct four_walk at(p);
#pragma unroll 1
    for (; at.item < p.n_items; at.enter(p, at.item + (int32_t)gridDim.x)) {
#pragma unroll 1
        for (; at.chunk < at.end; at.chunk += S::CHUNKS) {
            if (fresh > 0) {
                fresh--;
            } else {
                barrier_wait(&ring->empty[at.stage], at.parity ^ 1);
            }
            load(at, min(S::CHUNKS, at.end - at.chunk));
            at.next_stage(p);
        }
    }
}

/* A warp: lanes 0 to 15 each copy the codes of one tile row, the others scales and zeros. */
template <typename S>
__device__ __forceinline__ void load_weights(const struct four_params &p, char *boxes, char *small,
                                             struct four_ring *ring)
{
    const int lane = threadIdx.x & 31, slot = lane & 15;
    const uint64_t policy = p.n_row_tiles > 1 ? policy_normal() : policy_evict_first();
    const int32_t n_scales = p.m.record_bytes, n_zeros = CODED_ROWS * p.m.record_groups;
    const bool has_zeros = S::ZERO_BYTES > 0 && p.m.zeros;
    int32_t tile = -1, item = -1, n_tiles = 0;
    for_stages<S>(p, ring, [&](const struct four_walk &at, int32_t n_chunks) {
        if (at.item != item) {
            item = at.item;
            tile = tile_at(p, at.band(p), slot);
            n_tiles = __popc(__ballot_sync(0xffffffffu, tile >= 0) & 0xffff);
        }
        uint64_t *full = &ring->full_w[at.stage];
        const int32_t first = at.chunk >> p.m.record_shift;
        const int32_t n = ((at.chunk + n_chunks - 1) >> p.m.record_shift) - first + 1; // records
        if (lane == 0) {
            barrier_expect(full, (uint32_t)(n_tiles * (n_chunks * CODED_TILE_BYTES + n * n_scales +
                                                       (has_zeros ? n * n_zeros : 0))));
        }
        __syncwarp();
        if (tile < 0) {
            return;
        }
        if (lane < 16) {
            const uint8_t *from =
                p.m.tiles + ((int64_t)tile * p.m.n_chunks + at.chunk) * CODED_TILE_BYTES;
            bulk_load(boxes + at.stage * S::BOXES_BYTES + S::CODES + slot * S::ROW_BYTES, from,
                      (uint32_t)n_chunks * CODED_TILE_BYTES, full, policy);
            return;
        }
        char *to = small + at.stage * S::SMALL_BYTES;
        const int64_t record = (int64_t)tile * p.m.n_records + first;
        bulk_load(to + slot * S::CHUNKS * S::SCALE_BYTES, p.m.scales + record * n_scales,
                  (uint32_t)(n * n_scales), full, policy);
        if (has_zeros) {
            bulk_load(to + S::CHUNKS * (S::TILES * S::SCALE_BYTES + slot * S::ZERO_BYTES),
                      p.m.zeros + record * n_zeros, (uint32_t)(n * n_zeros), full, policy);
        }
    });
}

template <typename S, int N>
__device__ __forceinline__ void load_x(const struct four_params &p, const CUtensorMap *map,
                                       char *boxes, struct four_ring *ring)
{
    const uint64_t policy = policy_evict_last();
    for_stages<S>(p, ring, [&](const struct four_walk &at, int32_t n_chunks) {
        (void)n_chunks; // loads past the range are not used, and loads past the end of K give zero
        uint64_t *full = &ring->full_x[at.stage];
        barrier_expect(full, S::CHUNKS * S::X_BYTES);
        tensor_load_3d(boxes + at.stage * S::BOXES_BYTES, map, full, 0, at.first_row(p, N),
                       at.chunk * (CHUNK / BOX), policy);
    });
}

/* ---- computing ------------------------------------------------------------------------------- */

/* A thread's part of a stage's weight: the words, scales and zeros of two features. */
template <typename T, enum coded_code CODE, int PER_GROUP, typename S> struct four_codes {
    static constexpr int N_SCALES = CODED_WORDS / PER_GROUP;
    uint32_t words[2][CODED_WORDS];
    float scale[N_SCALES][2];
    uint32_t zero[N_SCALES][2];

    /* places: tile rows of the two features in the band. halves: the upper or lower eight features
     * of each tile row. chunk: index in the stage, which selects the record. */
    __device__ __forceinline__ void read(const struct four_params &p, const char *codes,
                                         const char *small, const int (&places)[2],
                                         const int (&halves)[2], int chunk, int record)
    {
        const int lane = threadIdx.x & 31, g = lane >> 2, groups = p.m.record_groups;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 v =
                *(const uint4 *)(codes + places[h] * S::ROW_BYTES + chunk * CODED_TILE_BYTES +
                                 halves[h] * 512 + lane * 16);
            words[h][0] = v.x, words[h][1] = v.y, words[h][2] = v.z, words[h][3] = v.w;
            const char *scales =
                small + places[h] * S::CHUNKS * S::SCALE_BYTES + record * p.m.record_bytes;
            const uint8_t *zeros =
                (const uint8_t *)small +
                S::CHUNKS * (S::TILES * S::SCALE_BYTES + places[h] * S::ZERO_BYTES) +
                record * CODED_ROWS * groups;
#pragma unroll
            for (int i = 0; i < N_SCALES; i++) {
                const int at = PER_GROUP == 4 ? halves[h] * 8 + g
                                              : (halves[h] * 8 + g) * groups + i * groups / 4;
                scale[i][h] = scale_at<CODE>(scales, at);
                if (code_of<CODE>::HAS_ZEROS) {
                    zero[i][h] = zero_pair<T>(p.m.zeros ? zeros[at] : p.m.zero);
                }
            }
        }
    }

    /* The operand of step i of the chunk's eight steps. */
    __device__ __forceinline__ void make(int i, uint32_t (&a)[4]) const
    {
        const int word = i / 2, group = word / PER_GROUP;
#pragma unroll
        for (int k = 0; k < 2; k++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[2 * k + h] = pair_of<T, CODE>(words[h][word], i % 2 * 2 + k,
                                                code_of<CODE>::HAS_ZEROS ? zero[group][h] : 0);
            }
        }
    }
};

/* Multiplies a chunk with x at an address of shared memory, converting the next words while the
 * tensor cores work on the previous ones. */
template <typename T, enum coded_code CODE, int PER_GROUP, int N, typename C>
__device__ __forceinline__ void add_chunk(const C &codes, uint32_t x, float (&sums)[N / 2])
{
    constexpr int BOX_BYTES = N * BOX * 2;
    float d[N / 2];
    uint32_t a[2 * CODED_WORDS][4];
#pragma unroll
    for (int word = 0; word < CODED_WORDS; word++) {
        codes.make(2 * word, a[2 * word]);
        codes.make(2 * word + 1, a[2 * word + 1]);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int step = 2 * word + i;
            wgmma<T, N>::rk(d, a[step], wgmma_operand(x + step / 4 * BOX_BYTES + step % 4 * 32, 0),
                            word % PER_GROUP > 0 || i > 0);
        }
        wgmma_commit();
        if ((word + 1) % PER_GROUP > 0) {
            continue;
        }
        wgmma_wait<0>();
        wgmma_settle(d);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            sums[i] = fmaf(d[i], codes.scale[word / PER_GROUP][i / 2 % 2], sums[i]);
        }
    }
}

/* Converts one element of D to the type of y. */
template <typename T>
__device__ __forceinline__ void put(const struct four_params &p, void *y, bool is_float, int64_t at,
                                    float v)
{
    if (is_float) {
        float *to = (float *)y + at;
        *to = p.accumulate ? *to + v : v;
    } else {
        T *to = (T *)y + at;
        *to = from_float<T>(p.accumulate ? to_float(*to) + v : v);
    }
}

/* d[4 j + 2 h + e]: feature h of the thread's two features, row 8 j + 2 t + e. */
template <typename T, int N>
__device__ __forceinline__ void store(const struct four_params &p, bool is_float,
                                      const float (&d)[N / 2], int32_t first_row, int64_t part,
                                      const int32_t (&feature)[2])
{
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (feature[h] < 0 || feature[h] >= p.n_out || (p.gated && h == 1)) {
            continue;
        }
        const float bias = p.bias ? p.bias[feature[h]] : 0.0f;
        const float up_bias = p.bias && p.gated ? p.bias[feature[1]] : 0.0f;
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const int32_t row = first_row + i / 2 * 8 + 2 * t + i % 2;
            float v = d[i / 2 * 4 + 2 * h + i % 2] + bias;
            if (p.gated) { // rounded before the activation, as in two ops
                const float up = d[i / 2 * 4 + 2 + i % 2] + up_bias;
                v = silu_gated(to_float(from_float<T>(v)), to_float(from_float<T>(up)));
            }
            if (row < p.n_rows) {
                put<T>(p, p.y, is_float, part + row * p.y_stride + feature[h], v);
            }
        }
    }
}

template <typename T, enum coded_code CODE, int PER_GROUP, int N, int GROUPS, bool IS_FLOAT>
__device__ __forceinline__ void compute(const struct four_params &p, char *boxes, char *small,
                                        struct four_ring *ring)
{
    using S = four_shape<CODE, PER_GROUP, N, GROUPS>;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2;
    const int places[2] = {p.gated ? warp & ~1 : warp, p.gated ? warp | 1 : warp};
    const int halves[2] = {p.gated ? warp & 1 : 0, p.gated ? warp & 1 : 1};
    struct four_walk at(p);
#pragma unroll 1
    for (; at.item < p.n_items; at.enter(p, at.item + (int32_t)gridDim.x)) {
        four_codes<T, CODE, PER_GROUP, S> codes;
        float sums[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            sums[i] = 0.0f;
        }
#pragma unroll 1
        for (; at.chunk < at.end; at.chunk += S::CHUNKS, at.next_stage(p)) {
            const char *from = boxes + at.stage * S::BOXES_BYTES;
            const int32_t n = min(S::CHUNKS, at.end - at.chunk);
            const int32_t record = at.chunk >> p.m.record_shift;
            barrier_wait(&ring->full_w[at.stage], at.parity);
            barrier_wait(&ring->full_x[at.stage], at.parity);
#pragma unroll 1
            for (int32_t c = 0; c < n; c++) {
                codes.read(p, from + S::CODES, small + at.stage * S::SMALL_BYTES, places, halves, c,
                           ((at.chunk + c) >> p.m.record_shift) - record);
                add_chunk<T, CODE, PER_GROUP, N>(codes, smem_address(from) + c * S::X_BYTES, sums);
            }
            if (lane == 0) {
                barrier_arrive(&ring->empty[at.stage]);
            }
        }
        int32_t feature[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t tile = tile_at(p, at.band(p), places[h]);
            feature[h] = tile < 0 ? -1 : tile * CODED_ROWS + halves[h] * 8 + g;
        }
        store<T, N>(p, IS_FLOAT, sums, at.first_row(p, N),
                    at.item / p.n_row_tiles / p.n_bands * p.part_stride, feature);
    }
}

#endif // HAVE_SM90A

template <typename T, enum coded_code CODE, int PER_GROUP, int N, int GROUPS>
__global__ void __launch_bounds__(GROUPS * 128 + 64, 1)
    gemm_four_some_kernel(const __grid_constant__ struct four_params p,
                          const __grid_constant__ CUtensorMap x_map, bool is_float)
{
#if HAVE_SM90A
    using S = four_shape<CODE, PER_GROUP, N, GROUPS>;
    extern __shared__ char smem_raw[];
    __shared__ struct four_ring ring;
    char *boxes = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    char *small = boxes + S::STAGES * S::BOXES_BYTES;
    const int warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < p.n_stages; i++) {
            barrier_init(&ring.full_w[i], 1);
            barrier_init(&ring.full_x[i], 1);
            barrier_init(&ring.empty[i], p.n_groups * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (warp == GROUPS * 4) {
        load_weights<S>(p, boxes, small, &ring);
    } else if (threadIdx.x == GROUPS * 128 + 32) {
        pdl_wait();
        load_x<S, N>(p, &x_map, boxes, &ring);
    }
    if (warp >= p.n_groups * 4) {
        pdl_wait();
        return;
    }
    /* Triggers before the wait only if blocks of two products do not fit side by side: otherwise
     * the product after the next one would start too early. */
    if (p.is_full) {
        pdl_trigger();
    }
    pdl_wait(); // preceding kernels may use y until then
    if (!p.is_full) {
        pdl_trigger();
    }
    if (is_float) {
        compute<T, CODE, PER_GROUP, N, GROUPS, true>(p, boxes, small, &ring);
    } else {
        compute<T, CODE, PER_GROUP, N, GROUPS, false>(p, boxes, small, &ring);
    }
#endif
}

/* ---- host ------------------------------------------------------------------------------------ */

static int32_t up(int64_t a, int64_t b)
{
    return (int32_t)((a + b - 1) / b);
}

/* Chooses the band and the split of K with the shortest schedule. The cost is what the busiest
 * multiprocessor reads (x comes from the L2 cache at a third of the price) plus the start and end
 * of each item. */
static void choose(const struct coded_matrix *m, const struct coded_args *a, int32_t n_sms,
                   size_t sums_bytes, struct four_params *p)
{
    const int32_t n = FOUR_SOME_ROWS, most = 16;
    const int32_t n_row_tiles = up(a->n_rows, n), step = a->gated ? 2 : 1;
    const int64_t one = (int64_t)a->n_rows * m->n_out * (int64_t)sizeof(float);
    const bool may_cut = sums_bytes > 0 && !a->gated && !a->accumulate && a->y_dtype != DT_F32;
    int64_t best = INT64_MAX;
    for (int32_t runs = 1; runs <= (may_cut ? (int32_t)MAX_RUNS : 1); runs++) {
        if (runs > m->n_chunks || (runs > 1 && runs * one > (int64_t)sums_bytes)) {
            break;
        }
        for (int32_t tiles = step; tiles <= most; tiles += step) {
            const int32_t n_bands = up(m->n_tiles, tiles);
            const int64_t n_items = (int64_t)n_bands * runs * n_row_tiles;
            const int64_t stage = tiles * 1100 + n * 256 / 3 + 600;
            const int64_t sums = runs > 1 ? runs * one * 2 / n_sms : 0;
            const int64_t cost =
                up(n_items, n_sms) * (up(m->n_chunks, runs) * stage + 16384) + sums;
            if (cost < best) {
                best = cost;
                p->tiles = tiles;
                p->n_bands = n_bands;
                p->n_runs = runs;
            }
        }
    }
    p->n_row_tiles = n_row_tiles;
    p->n_items = p->n_bands * p->n_runs * n_row_tiles;
    p->n_groups = up(p->tiles, 4);
}

template <typename T, enum coded_code CODE, int PER_GROUP, int N>
static cudaError_t launch_four(cudaStream_t stream, struct four_params p,
                               const struct coded_args *a, int32_t n_sms)
{
    constexpr int GROUPS = 4;
    using S = four_shape<CODE, PER_GROUP, N, GROUPS>;
    static_assert(S::STAGES >= 2 && S::BOXES_BYTES % 1024 == 0, "");
    const auto kernel = gemm_four_some_kernel<T, CODE, PER_GROUP, N, GROUPS>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         S::SMEM); // set at every launch, because each
                                                   // rank has its own device
    CUtensorMap x_map;
    if (e == cudaSuccess) {
        const cuuint64_t dims[3] = {BOX, (cuuint64_t)a->n_rows, (cuuint64_t)(p.m.n_in / BOX)};
        const cuuint64_t strides[2] = {(cuuint64_t)a->x_stride * 2, BOX * 2};
        const cuuint32_t box[3] = {BOX, N, S::CHUNKS * (CHUNK / BOX)};
        e = tensor_map(&x_map, a->x, a->x_dtype == DT_BF16, 3, dims, strides, box);
    }
    if (e != cudaSuccess) {
        return e;
    }
    p.n_stages = S::STAGES;
    p.is_full = p.n_items * 3 > n_sms * 2;
    const bool is_float = p.n_runs > 1 || a->y_dtype == DT_F32;
    return launch(kernel, dim3((unsigned)(p.n_items < n_sms ? p.n_items : n_sms)), dim3(S::THREADS),
                  S::SMEM, stream, p, x_map, is_float);
}

template <typename T>
static cudaError_t by_code(cudaStream_t stream, const struct four_params &p,
                           const struct coded_args *a, int32_t n_sms)
{
    switch (p.m.code) {
    case CODED_E2M1: return launch_four<T, CODED_E2M1, 1, FOUR_SOME_ROWS>(stream, p, a, n_sms);
    case CODED_U4:
        return p.m.record_groups == 1
                   ? launch_four<T, CODED_U4, 4, FOUR_SOME_ROWS>(stream, p, a, n_sms)
                   : launch_four<T, CODED_U4, 1, FOUR_SOME_ROWS>(stream, p, a, n_sms);
    case CODED_E4M3: break; // gemm_four_takes rejects it
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t gemm_four_some(cudaStream_t stream, const struct coded_matrix *m,
                                      const struct coded_args *a, int32_t n_sms, size_t sums_bytes,
                                      struct sum_parts *sums)
{
    struct four_params p = {};
    choose(m, a, n_sms, sums_bytes, &p);
    four_output(&p, m, a, p.n_runs, sums);
    return a->x_dtype == DT_BF16 ? by_code<bf16_t>(stream, p, a, n_sms)
                                 : by_code<f16_t>(stream, p, a, n_sms);
}
