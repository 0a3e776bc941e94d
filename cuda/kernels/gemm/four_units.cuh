// SPDX-License-Identifier: Apache-2.0
/* Shared by the products of 4-bit weights on wgmma (four_many.cu, four_exact.cu,
 * moe/coded_many.cu).
 *
 * D[features, rows] = W x^T by wgmma: 64 features of W are the register operand, x the
 * shared-memory operand. A block has a multiprocessor to itself and processes items in turn
 * (items.cuh). A warp has one or two units of 16 features, and the four warps of a warpgroup form
 * one operand. A unit is a tile row of the weight or, if gated, half a tile row of each half of the
 * weight, so that a thread has both factors of an output. A warp copies its codes, scales and zeros
 * into a ring of its own (cp.async), and one thread loads x through a tensor map.
 *
 * With programmatic dependent launch the rings are filled with weights before the wait for the
 * preceding kernel. Thread: device code; the host half: the rank's owner. */
#ifndef SLUICE_CUDA_GEMM_FOUR_UNITS_CUH
#define SLUICE_CUDA_GEMM_FOUR_UNITS_CUH

#include "cuda/kernels/device/codes.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/four.cuh"
#include "cuda/kernels/gemm/items.cuh"
#include "cuda/kernels/gemm/x_ring.cuh"

#include <type_traits>

enum {
    CHUNK = 128,      // inputs that are loaded together
    BOX = 64,         // inputs in a box of x
    BLOCK_ROWS = 128, // rows of x in one wgmma
    WARPS = 8,
    THREADS = WARPS * 32 + 128, // the last 128 load x
    MAX_SLOTS = 8,
    RING_BYTES = 221 * 1024, // the rest lets small kernels run beside it
    MAX_RUNS = 8,
    HALF_TILE = CODED_TILE_BYTES / 2, // the codes of eight features
};

struct many_params {
    struct coded_matrix m;
    struct item_plan plan; // of tile rows or, if gated, of pairs of them
    void *y;
    const float *bias;
    int32_t n_rows, n_out; // size of y
    int32_t n_units;       // of a warp
    int64_t y_stride, part_stride;
    bool accumulate, gated;
    bool is_float;   // y points to fp32
    bool is_aligned; // eight features can be stored at once
    bool is_full;    // the grid fills most of the machine
};

/* PER_GROUP: words of a lane that share a scale: 4, or 1 for groups of 32 and 64. A warp has
 * N_UNITS * N_BLOCKS accumulators (at most two): one per unit and block of rows. */
template <enum coded_code CODE, int PER_GROUP, int N_UNITS, int N_BLOCKS, int N = BLOCK_ROWS>
struct many_shape {
    static constexpr int UNITS = N_UNITS, BLOCKS = N_BLOCKS;
    static constexpr int ROWS = BLOCKS * N;
    static constexpr int X_SLOT = ROWS * BOX * 2, X_SLOTS = BLOCKS == 2 ? 4 : 6;
    static constexpr int GROUPS = CODED_WORDS / PER_GROUP;
    static constexpr int SCALE_BYTES = 8 * GROUPS * code_of<CODE>::SCALE_BYTES; // of eight features
    static constexpr int ZERO_BYTES = code_of<CODE>::HAS_ZEROS ? 8 * GROUPS : 0;
    static constexpr int SCALES = UNITS * 2 * HALF_TILE;
    static constexpr int ZEROS = SCALES + UNITS * 2 * SCALE_BYTES;
    static constexpr int SLOT = ZEROS + UNITS * 2 * ZERO_BYTES;
    static constexpr int FIT = (RING_BYTES - 1024 - X_SLOTS * X_SLOT) / (WARPS * SLOT);
    static constexpr int SLOTS = FIT < MAX_SLOTS ? FIT : MAX_SLOTS;
    static constexpr int RING = SLOTS * SLOT; // of a warp
    static constexpr int SMEM = 1024 + X_SLOTS * X_SLOT + WARPS * RING;
    static_assert(SLOTS >= 3 && SLOT % 16 == 0 && RING >= CODED_ROWS * (N + 8) * 4, "");
};

/* Eight features of the weight. */
struct half_tile {
    int32_t tile, half; // tile < 0: none
};

/* Half h of a unit: eight features of its tile row or, if gated, of half h of the weight. */
__device__ __forceinline__ struct half_tile half_of(const struct many_params &p,
                                                    const struct item &it, int unit, int h)
{
    const int32_t at = it.first_tile + (p.gated ? unit / 2 : unit);
    struct half_tile t;
    t.tile = p.gated ? at + h * (p.m.n_tiles / 2) : at;
    t.half = p.gated ? unit % 2 : h;
    if (at >= it.end_tile) {
        t.tile = -1;
    }
    return t;
}

#if HAVE_SM90A

template <typename S>
__device__ __forceinline__ void load_x(const struct many_params &p, const CUtensorMap *map,
                                       char *xs, struct x_ring *ring)
{
    const uint64_t policy = policy_evict_last();
    int fresh = S::X_SLOTS; // slots not yet used, which need no wait
    x_place<S::X_SLOTS> at;
#pragma unroll 1
    for (int32_t which = (int32_t)blockIdx.x; which < p.plan.n_items; which += (int32_t)gridDim.x) {
        const struct item it = item_at(p.plan, which);
#pragma unroll 1
        for (int32_t box = it.first_chunk * 2; box < it.end_chunk * 2; box++) {
            if (fresh > 0) {
                fresh--;
            } else {
                barrier_wait(&ring->empty[at.slot], at.parity ^ 1);
            }
            barrier_expect(&ring->full[at.slot], S::X_SLOT); // loads past the end of K give zero
            tensor_load(xs + at.slot * S::X_SLOT, map, &ring->full[at.slot], box * BOX,
                        it.row_tile * S::ROWS, policy);
            at.next();
        }
    }
}

/* The copies of a warp's chunks into its ring, one after another. */
template <typename S> struct many_copies {
    static constexpr int HALVES = S::UNITS * 2, LANES = 32 / HALVES; // for scales, zeros of a half
    const uint8_t *codes[HALVES], *scales, *zeros; // this lane's sources in the next chunk
    int32_t chunk, left;
    int to; // offset in the ring

    __device__ __forceinline__ many_copies(const struct many_params &p, const struct item &it)
    {
        const int lane = threadIdx.x & 31, unit = (threadIdx.x >> 5) * S::UNITS;
        chunk = it.first_chunk;
        left = it.end_chunk - it.first_chunk;
        to = 0;
#pragma unroll
        for (int i = 0; i < HALVES; i++) { // one that does not exist is computed but not stored
            const struct half_tile t = half_of(p, it, unit + i / 2, i % 2);
            codes[i] = p.m.tiles +
                       ((int64_t)max(t.tile, 0) * p.m.n_chunks + chunk) * CODED_TILE_BYTES +
                       t.half * HALF_TILE + lane * 16;
        }
        const int i = lane / LANES;
        const struct half_tile t = half_of(p, it, unit + i / 2, i % 2);
        const int64_t record = (int64_t)max(t.tile, 0) * p.m.n_records;
        scales = p.m.scales + record * p.m.record_bytes + t.half * (p.m.record_bytes / 2) +
                 lane % LANES * 16;
        zeros = p.m.zeros + record * (CODED_ROWS * p.m.record_groups) +
                t.half * (CODED_ROWS / 2 * p.m.record_groups) + lane % LANES * 4;
    }

    __device__ __forceinline__ void fetch(const struct many_params &p, char *ring)
    {
        if (left-- > 0) {
            const int lane = threadIdx.x & 31, half = lane / LANES, piece = lane % LANES;
            const int32_t record = chunk >> p.m.record_shift;
            char *slot = ring + to;
#pragma unroll
            for (int i = 0; i < HALVES; i++) {
                cp_async_16(slot + i * HALF_TILE + lane * 16, codes[i], true);
                codes[i] += CODED_TILE_BYTES;
            }
            if (piece * 32 < p.m.record_bytes) {
                cp_async_16(slot + S::SCALES + half * S::SCALE_BYTES + piece * 16,
                            scales + record * p.m.record_bytes, true);
            }
            if (S::ZERO_BYTES > 0 && p.m.zeros && piece < 2 * p.m.record_groups) {
                copy_4(slot + S::ZEROS + half * S::ZERO_BYTES + piece * 4,
                       zeros + record * (CODED_ROWS * p.m.record_groups));
            }
            chunk++;
            to = to + S::SLOT == S::RING ? 0 : to + S::SLOT;
        }
        cp_async_commit();
    }

    /* Fetches as many chunks as the ring holds beside the one that is read. */
    __device__ __forceinline__ void begin(const struct many_params &p, char *ring)
    {
#pragma unroll 1
        for (int s = 0; s < S::SLOTS - 1; s++) {
            fetch(p, ring);
        }
    }

    /* Waits for the next chunk, and fetches one into the slot of the chunk before it. */
    __device__ __forceinline__ void next(const struct many_params &p, char *ring)
    {
        cp_async_wait<S::SLOTS - 2>();
        __syncwarp(); // makes the scales that other lanes copied visible; all lanes have now read
                      // the slot that is refilled
        fetch(p, ring);
    }

    static __device__ __forceinline__ void copy_4(void *to, const void *from)
    {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_address(to)), "l"(from)
                     : "memory");
    }
};

/* Both values times the scale, rounded once. */
__device__ __forceinline__ uint32_t scaled(uint32_t pair, float scale, bf16_t)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(__uint_as_float(pair << 16) * scale,
                                                   __uint_as_float(pair & 0xffff0000u) * scale);
    return *(const uint32_t *)&v;
}

__device__ __forceinline__ uint32_t scaled(uint32_t pair, float scale, f16_t)
{
    const float2 f = __half22float2(*(const __half2 *)&pair);
    const __half2 v = __floats2half2_rn(f.x * scale, f.y * scale);
    return *(const uint32_t *)&v;
}

/* The same with a scale of the code's format. If all scales are powers of two, bf16 holds them, and
 * the product needs no wider type. */
template <typename T, enum coded_code CODE>
__device__ __forceinline__ uint32_t scaled_code(uint32_t pair, float scale)
{
    if constexpr (std::is_same<T, bf16_t>::value && code_of<CODE>::SCALE_BYTES == 1) {
        return pair_times<T>(pair, __byte_perm(__float_as_uint(scale), 0, 0x3232));
    } else {
        return scaled(pair, scale, T());
    }
}

/* A thread's part of a chunk of a warp's units. */
template <typename T, enum coded_code CODE, int PER_GROUP, typename S> struct many_codes {
    using W = word_codes<T, CODE>;
    static constexpr int HALVES = S::UNITS * 2;
    uint32_t words[HALVES][CODED_WORDS];
    float scale[HALVES][S::GROUPS];
    uint32_t zero[HALVES][S::GROUPS];

    __device__ __forceinline__ void read(const struct many_params &p, const char *slot)
    {
        const int lane = threadIdx.x & 31, g = lane >> 2, groups = p.m.record_groups;
#pragma unroll
        for (int i = 0; i < HALVES; i++) {
            const uint4 v = *(const uint4 *)(slot + i * HALF_TILE + lane * 16);
            words[i][0] = v.x, words[i][1] = v.y, words[i][2] = v.z, words[i][3] = v.w;
#pragma unroll
            for (int k = 0; k < S::GROUPS; k++) {
                const int at = S::GROUPS == 1 ? g : g * groups + k * groups / S::GROUPS;
                scale[i][k] =
                    scale_at<CODE>(slot + S::SCALES + i * S::SCALE_BYTES, at) * (1.0f / W::FACTOR);
                if (code_of<CODE>::HAS_ZEROS) {
                    const uint8_t *zeros = (const uint8_t *)slot + S::ZEROS + i * S::ZERO_BYTES;
                    zero[i][k] = W::zero(p.m.zeros ? zeros[at] : p.m.zero);
                }
            }
        }
    }

    /* The operands of a unit for the four steps of half a chunk, not scaled. */
    __device__ __forceinline__ void make_exact(int unit, int half, uint32_t (&a)[4][4]) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = unit * 2 + h;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t pairs[4];
                W::make(words[i][half * 2 + j], code_of<CODE>::HAS_ZEROS ? zero[i][0] : 0, pairs);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    a[j * 2 + k / 2][k % 2 * 2 + h] = pairs[k];
                }
            }
        }
    }

    /* The same, scaled. */
    __device__ __forceinline__ void make(int unit, int half, uint32_t (&a)[4][4]) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = unit * 2 + h;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int word = half * 2 + j, group = word / PER_GROUP;
                uint32_t pairs[4];
                W::make(words[i][word], code_of<CODE>::HAS_ZEROS ? zero[i][group] : 0, pairs);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    a[j * 2 + k / 2][k % 2 * 2 + h] =
                        scaled_code<T, CODE>(pairs[k], scale[i][group]);
                }
            }
        }
    }
};

/* Stores one element of the product in the type of y. */
template <typename T>
__device__ __forceinline__ void put(const struct many_params &p, int64_t at, float v)
{
    if (p.is_float) {
        float *to = (float *)p.y + at;
        *to = p.accumulate ? *to + v : v;
    } else {
        T *to = (T *)p.y + at;
        *to = from_float<T>(p.accumulate ? to_float(*to) + v : v);
    }
}

/* Stores four features of a row. */
template <typename T>
__device__ __forceinline__ void put_four(const struct many_params &p, int64_t at,
                                         const float (&v)[4])
{
    if (p.is_float) {
        *(float4 *)((float *)p.y + at) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        *(uint2 *)((T *)p.y + at) = make_uint2(pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]));
    }
}

/* Stores a unit's sums for a block of rows. d[4 j + 2 h + e]: feature h of the thread's two
 * features, row 8 j + 2 t + e. The sums pass through the warp's ring, [16 features, LD]: code that
 * stores from registers would be long, and fetching it takes longer than running it. */
template <typename T, int N>
__device__ __forceinline__ void store(const struct many_params &p, const struct item &it, int unit,
                                      int32_t first_row, float *stage, const float (&d)[N / 2])
{
    constexpr int LD = N + 8; // avoids bank conflicts
    const int lane = threadIdx.x & 31, t = lane & 3, g = lane >> 2;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const int h = i % 2, j = i / 2;
        *(float2 *)(stage + (h * 8 + g) * LD + j * 8 + 2 * t) =
            make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
    }
    __syncwarp();
    const int32_t n_rows = min((int32_t)N, p.n_rows - first_row);
    const int quarter = lane & (p.gated ? 1 : 3), shift = p.gated ? 1 : 2; // four features
    const struct half_tile tile = half_of(p, it, unit, quarter >> 1);
    const int32_t feature = tile.tile * CODED_ROWS + tile.half * 8 + (quarter & 1) * 4;
    if (tile.tile < 0 || feature >= p.n_out) { // the weight may end in the middle of a tile row
        return;
    }
    const int64_t at = it.run * p.part_stride + first_row * p.y_stride + feature;
#pragma unroll 1
    for (int32_t r = lane >> shift; r < n_rows; r += 32 >> shift) {
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const bool has_bias = p.bias && feature + k < p.n_out;
            v[k] = stage[(quarter * 4 + k) * LD + r] + (has_bias ? p.bias[feature + k] : 0.0f);
            if (p.gated) { // rounded before the activation, as in two ops
                const float up = stage[(quarter * 4 + k + 8) * LD + r] +
                                 (has_bias ? p.bias[p.n_out + feature + k] : 0.0f);
                v[k] = silu_gated(to_float(from_float<T>(v[k])), to_float(from_float<T>(up)));
            }
        }
        if (p.is_aligned) {
            put_four<T>(p, at + r * p.y_stride, v);
            continue;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (feature + k < p.n_out) {
                put<T>(p, at + r * p.y_stride + k, v[k]);
            }
        }
    }
}

/* Triggers before the wait only if blocks of two products do not fit side by side; otherwise the
 * product after the next one would start too early. */
__device__ __forceinline__ void wait_for_previous(const struct many_params &p)
{
    if (p.is_full) {
        pdl_trigger();
    }
    pdl_wait(); // preceding kernels may use y until then
    if (!p.is_full) {
        pdl_trigger();
    }
}
/* The whole of a block's work; compute(xs, rings, ring) is called by the warps that have units. */
template <typename S, typename F>
__device__ __forceinline__ void run_block(const struct many_params &p, const CUtensorMap *x_map,
                                          F compute)
{
    extern __shared__ char smem_raw[];
    __shared__ struct x_ring ring;
    char *xs = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < S::X_SLOTS; i++) {
            barrier_init(&ring.full[i], 1);
            barrier_init(&ring.empty[i], WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x >= WARPS * 32) {
        registers_fewer<40>();
        pdl_wait();
        if (threadIdx.x == WARPS * 32) {
            load_x<S>(p, x_map, xs, &ring);
        }
    } else {
        registers_more<232>();
        compute(xs, xs + S::X_SLOTS * S::X_SLOT, &ring);
    }
}

#endif // HAVE_SM90A

template <typename S, typename K>
static cudaError_t launch_units(cudaStream_t stream, K kernel, const struct many_params &p,
                                const struct coded_args *a, int32_t n_sms)
{
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         S::SMEM); // set at every launch, because each
                                                   // rank has its own device
    CUtensorMap x_map;
    if (e == cudaSuccess) {
        e = tensor_map_2d(&x_map, a->x, a->x_dtype == DT_BF16, (uint64_t)p.m.n_in,
                          (uint64_t)a->n_rows, (uint64_t)a->x_stride * 2, S::ROWS);
    }
    if (e != cudaSuccess) {
        return e;
    }
    const int32_t n_items = p.plan.n_items;
    return launch(kernel, dim3((unsigned)(n_items < n_sms ? n_items : n_sms)), dim3(THREADS),
                  S::SMEM, stream, p, x_map);
}

/* gemm_four_exact (four_exact.cu). */
cudaError_t launch_exact(cudaStream_t stream, const struct many_params &p,
                         const struct coded_args *a, int32_t n_sms);

#endif
