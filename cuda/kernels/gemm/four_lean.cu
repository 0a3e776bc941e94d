// SPDX-License-Identifier: Apache-2.0
/* y = x W^T with a weight of 4-bit codes (cuda/coded.h) and up to 8 rows, on Hopper, with as little
 * code as possible: every launch fetches its code again, at about 0.5 us per KiB, and that is a
 * large part of the time of a product of few rows.
 *
 * A block has a multiprocessor to itself and one item: a band of pairs of tile rows (two that
 * follow each other or, if gated, one of each half of the weight) and a range of K. A warp has one
 * pair; if n warps share a pair, each takes every n-th chunk. A warp copies codes, scales and
 * zeros into a ring of its own (cp.async), so that no warp waits for another. All rows of x of the
 * range, or of a part of it if they do not fit, are in shared memory; when all warps are done with
 * a part, the next one replaces it. The warps' sums are added in order at the end. With
 * programmatic dependent launch the rings are filled with weights before the wait for the preceding
 * kernel. Bound by reading the weight, and by the work done once per launch.
 *
 * A 16-bit half with a nibble in its lowest eight bits, read as bf16 or fp16, is subnormal or among
 * the smallest normal numbers, which have the same spacing. A float code also becomes a small
 * number, if its last exponent bit is shifted to the last exponent bit of the half. The tensor
 * cores multiply such numbers exactly, so a pair of codes takes one instruction. Products with bf16
 * would be too small for fp32, so x is scaled by 2^64 as it is copied, or by 2^60 where the codes
 * are sixteen times too large. A group's sums start from minus the zero point times the sum of x
 * over the group, which the tensor cores compute when x is copied. */
#include "cuda/kernels/device/codes.cuh"
#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/device/kept.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/gemm/four.cuh"
#include "cuda/kernels/gemm/items.cuh"

#include <type_traits>

enum {
    CHUNK = 128, // inputs
    ROWS = 8,    // at most
    WARPS = 16,
    RECORD = 64,                   // bytes of the scales of a tile row's chunk
    SCALES = 2 * CODED_TILE_BYTES, // in a slot of the ring
    ZEROS = SCALES + 2 * RECORD,
    SLOT = ZEROS + 2 * CODED_ROWS,
    SLOTS = 4,
    RING = SLOTS * SLOT,      // of a warp
    SUMS = 36,                // floats from a row's sums to the next; avoids bank conflicts
    BLOCK_BYTES = 221 * 1024, // of shared memory; the rest lets small kernels run beside it
    MAX_RUNS = 8,
};

struct lean_params {
    const uint8_t *tiles, *scales, *zeros;
    const void *x;
    const float *bias;
    void *y;
    int32_t x_stride, y_stride, part_stride;
    int32_t n_in, n_rows, n_out;           // n_out: of y
    int32_t n_tiles, n_features, n_chunks; // of the weight
    int32_t n_pairs, all_pairs;            // of a band, and of the weight
    int32_t n_slices, inverse;             // warps per pair, and 2^16 / n_pairs
    int32_t run_chunks, part_chunks;       // of a range of K, and of a part of x
    int32_t other;                         // the second tile row of a pair, minus the first
    int32_t row_bits;                      // n_rows is at most 2^row_bits
    int32_t x_pitch;                       // bytes from a row of x to the next in shared memory
    float zero;
    bool gated;
    bool is_float; // y points to fp32 partial sums
    bool is_full;  // the grid fills most of the machine
};

#if HAVE_SM90A

/* How a word of codes becomes pairs of T, nibbles i and i + 4. The integers of pairs 1 and 3 come
 * out sixteen times too large. For bf16 the inputs there are scaled down to compensate. fp16 lacks
 * the exponent range for that, so these pairs have separate sums (CHAINS). */
template <typename T, enum coded_code CODE> struct lean_codes {
    static constexpr bool IS_BF16 = std::is_same<T, bf16_t>::value, IS_INT = CODE == CODED_U4;
    static constexpr uint32_t UP = 0x5f805f80u, UP_ODD = IS_INT ? 0x5d805d80u : UP;  // 2^64, 2^60
    static constexpr uint32_t ONE = 0x00010001u, ONE_ODD = IS_BF16 ? ONE << 4 : ONE; // codes 1
    static constexpr int CHAINS = IS_INT && !IS_BF16 ? 2 : 1;

    /* The factor that the sums must be multiplied by. */
    static __device__ __forceinline__ float unit()
    {
        constexpr int BF16 = (IS_INT ? 133 : 126) - 64, F16 = IS_INT ? 24 : 14;
        return __uint_as_float((uint32_t)(127 + (IS_BF16 ? BF16 : F16)) << 23);
    }

    static __device__ __forceinline__ void make(uint32_t word, uint32_t (&pairs)[4])
    {
        constexpr int UP_BITS = code_constants<T>::E2M1_UP;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (IS_INT) {
                pairs[i] = (i < 2 ? word : word >> 8) & (i % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
            } else {
                const uint32_t size = shifted(word, UP_BITS - 4 * i) & (0x00070007u << UP_BITS);
                pairs[i] = and_or(shifted(word, 12 - 4 * i), 0x80008000u, size);
            }
        }
    }
};

/* The copies of a warp's chunks into its ring, one after another. */
struct lean_copies {
    const uint8_t *codes[2], *small; // what this lane copies next
    int32_t step, small_step;        // bytes from there to the chunk after it
    int32_t chunk, end_chunk, slices;
    uint32_t to, end; // addresses of shared memory
    int32_t has_small;

    __device__ __forceinline__ lean_copies(const struct lean_params &p, int32_t pair, int32_t chunk,
                                           int32_t end_chunk, const char *ring)
        : chunk(chunk), end_chunk(end_chunk), slices(p.n_slices)
    {
        const int lane = threadIdx.x & 31;
        const int32_t tile = p.gated ? pair : 2 * pair;
        /* A second tile row that does not exist is computed but not stored. */
        const int32_t to_other = tile + p.other < p.n_tiles ? p.other : 0;
        const int64_t at = (int64_t)tile * p.n_chunks + chunk;
        const int64_t other = (int64_t)to_other * p.n_chunks;
        codes[0] = p.tiles + at * CODED_TILE_BYTES + lane * 16;
        codes[1] = codes[0] + other * CODED_TILE_BYTES;
        step = kept(p.n_slices * CODED_TILE_BYTES);
        /* Four lanes copy the scales of a tile row, and one its zeros. */
        const bool is_scale = lane < 8, is_second = is_scale ? lane >= 4 : lane == 9;
        const int64_t record = at + (is_second ? other : 0);
        small =
            is_scale ? p.scales + record * RECORD + lane % 4 * 16 : p.zeros + record * CODED_ROWS;
        small_step = kept(p.n_slices * (is_scale ? (int)RECORD : (int)CODED_ROWS));
        has_small = kept((int32_t)(is_scale || (p.zeros && lane < 10)));
        to = kept(smem_address(ring) + lane * 16);
        end = kept(to + RING);
    }

    __device__ __forceinline__ void fetch()
    {
        if (chunk < end_chunk) {
            cp_async_16(to, codes[0]);
            cp_async_16(to + 512, codes[0] + 512);
            cp_async_16(to + CODED_TILE_BYTES, codes[1]);
            cp_async_16(to + CODED_TILE_BYTES + 512, codes[1] + 512);
            if (has_small) { // scales and zeros follow the codes
                cp_async_16(to + SCALES, small);
            }
            codes[0] += step;
            codes[1] += step;
            small += small_step;
            chunk += slices;
            to += SLOT;
            to = to == end ? end - RING : to;
        }
        cp_async_commit();
    }
};

/* A part of x in shared memory: rows, and their sums over each chunk. */
struct lean_x {
    char *rows;  // [n_rows, x_pitch bytes]
    float *sums; // [chunks, ROWS], in units of a code
};

/* Copies a part of x: a warp copies one row, or a share of it, eight inputs per lane.
 * Inputs past the end of K are zeros. */
template <typename T, typename L>
__device__ __forceinline__ void stage_x(const struct lean_params &p, const struct lean_x &x,
                                        int32_t first, int32_t end)
{
    constexpr int PIECES = 4; // of x, in flight at the same time
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int bits = p.row_bits, row = warp & ((1 << bits) - 1), step = kept(WARPS * 32 >> bits);
    const int n = kept((end - first) * (CHUNK / 8));
    const int n_valid = kept(min(n, (p.n_in - first * CHUNK) / 8) - lane);
    const uint32_t up = lane % 2 ? L::UP_ODD : L::UP, one = lane % 2 ? L::ONE_ODD : L::ONE;
    if (row >= p.n_rows) {
        return;
    }
    const uint4 *from =
        kept((const uint4 *)((const T *)p.x + (int64_t)row * p.x_stride + first * CHUNK) + lane);
    char *to = x.rows + kept(row * p.x_pitch + lane * 16);
    float *to_sum = x.sums + kept(lane / 2 * ROWS + row);
#pragma unroll 1
    for (int i = (warp >> bits) * 32; i < n; i += PIECES * step) {
        uint4 v[PIECES];
#pragma unroll
        for (int j = 0, at = i; j < PIECES; j++, at += step) {
            v[j] = make_uint4(0, 0, 0, 0);
            if (at < n_valid) {
                v[j] = from[at];
            }
        }
#pragma unroll 1 // a single copy of the code, which works on v[0]
        for (int j = 0, at = i; j < PIECES && at < n; j++, at += step) {
            if (L::IS_BF16) {
                v[0].x = pair_times<T>(v[0].x, up);
                v[0].y = pair_times<T>(v[0].y, up);
                v[0].z = pair_times<T>(v[0].z, up);
                v[0].w = pair_times<T>(v[0].w, up);
            }
            if (at + lane < n) {
                *(uint4 *)(to + at * 16) = v[0];
            }
            if (L::IS_INT) {
                /* A product with ones adds up x. Four lanes hold a column of the operand, and
                 * lane t gets the sums of two columns: those of lanes 8 t to 8 t + 7. Half a warp
                 * holds a chunk. */
                float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                const uint32_t ones[4] = {one, one, one, one};
                mma_16x8x16(sum, ones, v[0].x, v[0].y, T());
                mma_16x8x16(sum, ones, v[0].z, v[0].w, T());
                const float eight = sum[0] + sum[1];
                const float all = eight + __shfl_xor_sync(0xffffffffu, eight, 1);
                if (lane < 4 && lane % 2 == 0 && at + lane * 8 < n) {
                    to_sum[at * ROWS / 16] = all; // `at` is a multiple of 32
                }
            }
#pragma unroll
            for (int k = 0; k + 1 < PIECES; k++) {
                v[k] = v[k + 1];
            }
        }
    }
}

/* Adds a chunk. from: a slot of the ring. x: the address of this lane's row of the chunk, as
 * ldmatrix needs it. x_sums: the chunk's sums of x. */
template <typename T, enum coded_code CODE>
__device__ __forceinline__ void add_chunk(const struct lean_params &p, const char *from,
                                          const char *x, const float *x_sums, float (&acc)[2][4])
{
    using L = lean_codes<T, CODE>;
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float sums[L::CHAINS][2][4], scale[4]; // of tile row i / 2, feature g or g + 8
#pragma unroll
    for (int i = 0; i < L::CHAINS * 8; i++) {
        sums[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }
    if (L::IS_INT) {
        const float2 of_x = *(const float2 *)(x_sums + 2 * t);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            scale[i] = scale_at<CODE>(from + SCALES, i * 8 + g);
            const float zero = p.zeros ? (float)((const uint8_t *)from)[ZEROS + i * 8 + g] : p.zero;
            sums[0][i / 2][i % 2 * 2] = -zero * of_x.x;
            sums[0][i / 2][i % 2 * 2 + 1] = -zero * of_x.y;
        }
    }
    /* Adds the sums over a group, scaled, and begins the next ones. A group is a chunk for
     * integers, and 32 inputs for float codes. */
    auto add_group = [&]() {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int f = i / 4, e = i % 4;
            float v = sums[0][f][e];
            if (L::CHAINS == 2) {
                v = fmaf(sums[L::CHAINS - 1][f][e], 1.0f / 16, v);
            }
            acc[f][e] = fmaf(v, scale[2 * f + e / 2], acc[f][e]);
            sums[0][f][e] = 0.0f;
        }
    };
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        uint2 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = *(const uint2 *)(from + i * 512 + lane * 16 + half * 8);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t b[4], pairs[4][4];
            ldmatrix_x4(b, x + half * 128 + j * 64);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                L::make(j == 0 ? words[i].x : words[i].y, pairs[i]);
            }
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    const uint32_t a[4] = {pairs[2 * f][odd], pairs[2 * f + 1][odd],
                                           pairs[2 * f][odd + 2], pairs[2 * f + 1][odd + 2]};
                    mma_16x8x16(sums[odd % L::CHAINS][f], a, b[2 * odd], b[2 * odd + 1], T());
                }
            }
            if (!L::IS_INT) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    scale[i] = scale_at<CODE>(from + SCALES, (i * 8 + g) * 4 + half * 2 + j);
                }
                add_group();
            }
        }
    }
    if (L::IS_INT) {
        add_group();
    }
}

/* Leaves a warp's sums in its ring, [rows, SUMS]: 16 features of each tile row. */
__device__ __forceinline__ void leave(float *to, const float (&acc)[2][4])
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int f = i / 4, e = i % 4;
        to[(2 * t + e % 2) * SUMS + f * 16 + e / 2 * 8 + g] = acc[f][e];
    }
}

/* Adds the warps' sums in order and stores them. A warp handles one row of a pair at a time, and
 * each lane one feature. */
template <typename T, typename L>
__device__ __forceinline__ void store(const struct lean_params &p, const float *sums)
{
    const int lane = threadIdx.x & 31, n = p.n_pairs << p.row_bits;
    const int step = p.n_pairs * (RING / 4);
    const int32_t part = blockIdx.y * p.part_stride;
#pragma unroll 1
    for (int i = threadIdx.x >> 5; i < n; i += WARPS) {
        const int row = i & ((1 << p.row_bits) - 1), pair = i >> p.row_bits;
        const float *from = sums + pair * (RING / 4) + row * SUMS + lane;
        float v = 0.0f;
#pragma unroll 1
        for (int k = 0; k < p.n_slices; k += 4) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v += k + j < p.n_slices ? from[(k + j) * step] : 0.0f;
            }
        }
        v *= L::unit();
        const int32_t all = blockIdx.x * p.n_pairs + pair;
        int32_t out = all * 32 + lane, feature = out;
        if (p.gated) {
            out = lane < 16 ? all * 16 + lane : p.n_out;
            feature = all * 16 + lane + (lane < 16 ? 0 : p.n_out - 16);
        }
        if (p.bias && all < p.all_pairs && feature < p.n_features) {
            v += p.bias[feature];
        }
        if (p.gated) { // rounded before the activation, as in two ops
            const float up = __shfl_down_sync(0xffffffffu, v, 16);
            v = silu_gated(to_float(from_float<T>(v)), to_float(from_float<T>(up)));
        }
        if (row < p.n_rows && out < p.n_out) {
            const int32_t at = part + row * p.y_stride + out;
            if (p.is_float) {
                ((float *)p.y)[at] = v;
            } else {
                ((T *)p.y)[at] = from_float<T>(v);
            }
        }
    }
}

#endif // HAVE_SM90A

template <typename T, enum coded_code CODE>
__global__ void __launch_bounds__(WARPS * 32, 1)
    gemm_four_lean_kernel(const __grid_constant__ struct lean_params p)
{
#if HAVE_SM90A
    extern __shared__ __align__(16) char smem[];
    using L = lean_codes<T, CODE>;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    char *ring = smem + warp * RING, *xs = smem + WARPS * RING;
    const struct lean_x staged = {xs, (float *)(xs + p.n_rows * p.x_pitch)};
    const int slice = warp * p.inverse >> 16;
    const int32_t pair = blockIdx.x * p.n_pairs + warp - slice * p.n_pairs;
    const int32_t first = blockIdx.y * p.run_chunks;
    const int32_t end = min(first + p.run_chunks, p.n_chunks);
    int32_t chunk = slice < p.n_slices && pair < p.all_pairs ? first + slice : end;
    lean_copies copies(p, min(pair, p.all_pairs - 1), chunk, end, ring);
#pragma unroll 1
    for (int i = 0; i < SLOTS - 1; i++) {
        copies.fetch();
    }
    /* For ldmatrix a lane gives the address of a row of one of four matrices: inputs 0 to 7, 16 to
     * 23, 8 to 15, 24 to 31, so that the operands of even and of odd pairs are adjacent. */
    const int matrix = (lane >> 4) + (lane >> 3 & 1) * 2;
    const char *x = xs + min(lane & 7, p.n_rows - 1) * p.x_pitch + matrix * 16;
    float acc[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        acc[i / 4][i % 4] = 0.0f;
    }
    if (p.is_full) {
        pdl_trigger();
    }
    pdl_wait(); // preceding kernels may use x and y until then
    if (!p.is_full) {
        pdl_trigger();
    }
    int at = 0; // in the ring
#pragma unroll 1
    for (int32_t part = first; part < end; part += p.part_chunks) {
        const int32_t part_end = kept(min(part + p.part_chunks, end));
        if (part > first) {
            __syncthreads(); // all warps are done with the previous part
        }
        stage_x<T, L>(p, staged, part, part_end);
        __syncthreads();
#pragma unroll 1
        for (; chunk < part_end; chunk += p.n_slices) {
            cp_async_wait<SLOTS - 2>();
            __syncwarp(); // makes the scales that other lanes copied visible; all lanes have now
                          // read the slot that is refilled next
            copies.fetch();
            const int in_part = chunk - part;
            add_chunk<T, CODE>(p, ring + at, x + in_part * (CHUNK * 2),
                               staged.sums + in_part * ROWS, acc);
            at = at + SLOT == RING ? 0 : at + SLOT;
        }
    }
    __syncwarp();
    leave((float *)ring, acc);
    __syncthreads();
    store<T, L>(p, (const float *)smem);
#endif
}

/* ---- host ------------------------------------------------------------------------------------ */

struct lean_plan {
    int32_t n_pairs, all_pairs, n_bands; // pairs per band, all pairs, bands
    int32_t n_runs, run_chunks;          // ranges of K
    int32_t part_chunks;                 // of x that is in shared memory at once
};

/* The chunks of x for which a block has room, spread evenly over the parts of a range. */
static int32_t part_of(int32_t run_chunks, int32_t n_rows)
{
    const int32_t room = BLOCK_BYTES - WARPS * RING - n_rows * 16; // a row has padding
    const int32_t most = room / (n_rows * CHUNK * 2 + ROWS * (int32_t)sizeof(float));
    return items_up(run_chunks, items_up(run_chunks, most));
}

/* Chooses the bands and the cuts of K for which the busiest block loads the fewest bytes, with at
 * most one block per multiprocessor. Other work is counted as the bytes that could be loaded in the
 * same time: 12 KiB per part of x (its copies and two barriers), 4 KiB per chunk of the busiest
 * warp, and 4 KiB per range of K (the next kernel reads its sums). False: no plan fits. */
static bool plan_of(const struct coded_matrix *m, const struct coded_args *a, int32_t n_sms,
                    size_t sums_bytes, struct lean_plan *best)
{
    enum { PART_BYTES = 12 << 10, CHUNK_BYTES = 4 << 10, RUN_BYTES = 4 << 10 };
    const int64_t one = (int64_t)a->n_rows * m->n_out * (int64_t)sizeof(float);
    const bool may_cut = sums_bytes > 0 && !a->gated;
    int64_t least = INT64_MAX;
    struct lean_plan p;
    p.all_pairs = a->gated ? m->n_tiles / 2 : items_up(m->n_tiles, 2);
    for (int32_t runs = 1; runs <= (may_cut ? (int32_t)MAX_RUNS : 1); runs++) {
        if (runs > m->n_chunks || (runs > 1 && runs * one > (int64_t)sums_bytes)) {
            break;
        }
        p.run_chunks = items_up(m->n_chunks, runs);
        p.n_runs = items_up(m->n_chunks, p.run_chunks);
        p.part_chunks = part_of(p.run_chunks, a->n_rows);
        for (p.n_pairs = 1; p.n_pairs <= WARPS; p.n_pairs++) {
            p.n_bands = items_up(p.all_pairs, p.n_pairs);
            const int64_t chunks = items_up(p.run_chunks, WARPS / p.n_pairs); // of a warp
            const int64_t x = (int64_t)p.run_chunks * a->n_rows * CHUNK * 2 / 3 +
                              (int64_t)items_up(p.run_chunks, p.part_chunks) * PART_BYTES;
            const int64_t sums = p.n_runs > 1 ? p.n_runs * (one * 2 / n_sms + RUN_BYTES) : 0;
            const int64_t cost =
                (int64_t)p.n_pairs * p.run_chunks * SLOT + chunks * CHUNK_BYTES + x + sums;
            if (p.n_bands * p.n_runs <= n_sms && cost < least) {
                least = cost;
                *best = p;
            }
        }
    }
    return least < INT64_MAX;
}

template <typename T, enum coded_code CODE>
static cudaError_t launch_lean(cudaStream_t stream, const struct lean_params &p, dim3 grid)
{
    const auto kernel = gemm_four_lean_kernel<T, CODE>;
    const int32_t bytes =
        WARPS * RING + p.x_pitch * p.n_rows + p.part_chunks * ROWS * (int32_t)sizeof(float);
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             BLOCK_BYTES); // set at every launch: each rank has its own device
    return e == cudaSuccess ? launch(kernel, grid, dim3(WARPS * 32), (size_t)bytes, stream, p) : e;
}

template <typename T>
static cudaError_t by_code(cudaStream_t stream, const struct lean_params &p, enum coded_code code,
                           dim3 grid)
{
    switch (code) {
    case CODED_U4: return launch_lean<T, CODED_U4>(stream, p, grid);
    case CODED_E2M1: return launch_lean<T, CODED_E2M1>(stream, p, grid);
    case CODED_E4M3: break; // gemm_four_takes rejects it
    }
    return cudaErrorInvalidValue;
}

/* True if the kernel supports this product: a chunk has one scale of four bytes per output, or four
 * of one byte, and y has 16 bits. */
static bool takes(const struct coded_matrix *m, const struct coded_args *a)
{
    return a->n_rows <= ROWS && m->record_bytes == RECORD && m->record_shift == 0 &&
           !a->accumulate && a->y_dtype != DT_F32 && a->x_stride <= 1 << 24 &&
           a->y_stride <= 1 << 24;
}

extern "C" bool gemm_four_lean(cudaStream_t stream, const struct coded_matrix *m,
                               const struct coded_args *a, int32_t n_sms, size_t sums_bytes,
                               struct sum_parts *sums, cudaError_t *e)
{
    struct lean_plan plan = {};
    if (!takes(m, a) || !plan_of(m, a, n_sms, sums_bytes, &plan)) {
        return false;
    }
    const bool cut = plan.n_runs > 1;
    struct lean_params p = {};
    p.tiles = m->tiles;
    p.scales = m->scales;
    p.zeros = m->zeros;
    p.x = a->x;
    p.bias = cut ? nullptr : a->bias; // the reader of partial sums adds it
    p.y = cut ? (void *)(uintptr_t)sums->first : a->y;
    p.x_stride = (int32_t)a->x_stride;
    p.y_stride = cut ? sums->width : (int32_t)a->y_stride;
    p.part_stride = cut ? (int32_t)sums->stride : 0;
    p.n_in = m->n_in;
    p.n_rows = a->n_rows;
    p.n_out = a->gated ? m->n_out / 2 : m->n_out;
    p.n_tiles = m->n_tiles;
    p.n_features = m->n_out;
    p.n_chunks = m->n_chunks;
    p.n_pairs = plan.n_pairs;
    p.all_pairs = plan.all_pairs;
    p.n_slices = WARPS / plan.n_pairs;
    p.inverse = (1 << 16) / plan.n_pairs + 1;
    p.run_chunks = plan.run_chunks;
    p.part_chunks = plan.part_chunks;
    p.other = a->gated ? m->n_tiles / 2 : 1;
    while (1 << p.row_bits < a->n_rows) {
        p.row_bits++;
    }
    p.x_pitch = plan.part_chunks * CHUNK * 2 + 16;
    p.zero = (float)m->zero;
    p.gated = a->gated;
    p.is_float = cut;
    p.is_full = plan.n_bands * plan.n_runs * 3 > n_sms * 2;
    if (sums) {
        sums->n = cut ? plan.n_runs : 0;
    }
    const dim3 grid((unsigned)plan.n_bands, (unsigned)plan.n_runs);
    *e = a->x_dtype == DT_BF16 ? by_code<bf16_t>(stream, p, m->code, grid)
                               : by_code<f16_t>(stream, p, m->code, grid);
    return true;
}
