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
 * kernel. Bound by reading the weight, and by the work done once per launch. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/gemm/four.cuh"
#include "cuda/kernels/gemm/four_lean.cuh"
#include "cuda/kernels/gemm/items.cuh"

enum {
    SCALES = 2 * CODED_TILE_BYTES, // in a slot of a warp's ring
    ZEROS = SCALES + 2 * RECORD,
    SLOT = ZEROS + 2 * CODED_ROWS,
    SLOTS = 4,
    RING = SLOTS * SLOT, // of a warp
    SUMS = 36,           // floats from a row's sums to the next; avoids bank conflicts
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
            const char *slot = ring + at;
            add_chunk<T, CODE, 1, 1>(p, slot, slot + SCALES, slot + ZEROS,
                                     x + in_part * (CHUNK * 2), staged.sums + in_part * ROWS, acc);
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
