// SPDX-License-Identifier: Apache-2.0
/* y = x W^T with a weight of 4-bit codes (cuda/coded.h) and up to 16 rows, on Hopper, unless
 * four_lean.cu or four_head.cu takes it.
 *
 * A block has a multiprocessor to itself and one item: a band of pairs of tile rows (two that
 * follow each other or, if gated, one of each half of the weight, so that the same threads have
 * both factors of an output) and a range of K. A warp has one pair; if n warps share a pair, each
 * takes every n-th chunk. A warp copies codes, scales and zeros into a ring of its own (cp.async),
 * so no warp waits for another. It converts the codes exactly to bf16 or fp16 in registers, as the
 * 16-row operand of mma.sync, and scales the sums over a group in fp32. One thread loads all of the
 * range's x through a tensor map, or a part of it if it does not fit; when all warps are done with
 * a part, the next one replaces it. The warps' sums are added in order at the end. Bound by reading
 * the weight, and by the work done once per launch.
 *
 * With programmatic dependent launch the rings are filled with weights before the wait for the
 * preceding kernel. A block that needs little shared memory may start beside attention. */
#include "cuda/kernels/device/codes.cuh"
#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/device/kept.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/gemm/four.cuh"
#include "cuda/kernels/gemm/four_few.cuh"
#include "cuda/kernels/gemm/items.cuh"

#if HAVE_SM90A

template <int NT> __device__ __forceinline__ void clear(float (&sum)[2][NT][4])
{
#pragma unroll
    for (int i = 0; i < 2 * NT * 4; i++) {
        sum[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f;
    }
}

/* Adds sums over a group, scaled, to acc. */
template <enum coded_code CODE, typename S, int NT>
__device__ __forceinline__ void add_group(const char *from, int at, int at_8,
                                          const float (&sum)[2][NT][4], float (&acc)[2][NT][4])
{
#pragma unroll
    for (int f = 0; f < 2; f++) {
        const char *scales = from + S::SCALES + f * S::SCALE_BYTES;
        const float scale[2] = {scale_at<CODE>(scales, at), scale_at<CODE>(scales, at_8)};
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                acc[f][n][e] = fmaf(sum[f][n][e], scale[e / 2], acc[f][n][e]);
            }
        }
    }
}

/* Byte offsets of what a lane reads. */
template <typename T, enum coded_code CODE, int GROUPS> struct few_lane {
    int codes, scales; // from a slot of the warp's ring
    int x, x_4;        // from a chunk's rows: inputs 0 to 31, and 32 to 63
    int eight;         // from a feature's scale to that of the feature 8 further on
    uint32_t zero;     // the zero of word_codes, if all zero points are equal

    __device__ __forceinline__ explicit few_lane(const struct few_params &p)
    {
        const int lane = threadIdx.x & 31, g = lane >> 2;
        const int column = ((lane >> 3) ^ (lane & 7)) << 4; // in the 128-byte swizzle
        codes = kept(lane * 16);
        x = kept((lane & 7) * 128 + column);
        x_4 = kept((lane & 7) * 128 + (column ^ 64));
        scales = kept(g * (GROUPS == 1 ? 1 : p.m.record_groups));
        eight = 8 * (GROUPS == 1 ? 1 : p.m.record_groups);
        zero = kept(code_of<CODE>::HAS_ZEROS ? word_codes<T, CODE>::zero(p.m.zero) : 0);
    }
};

/* The zero points of a group of a chunk's features; at: the index of the lane's first one. */
template <typename T, enum coded_code CODE, typename S>
__device__ __forceinline__ void read_zeros(const struct few_params &p,
                                           const struct few_lane<T, CODE, S::GROUPS> &mine,
                                           const char *from, int at, uint32_t (&zero)[2][2])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        zero[i / 2][i % 2] = mine.zero;
    }
    if (code_of<CODE>::HAS_ZEROS && p.m.zeros) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint8_t *zeros = (const uint8_t *)from + S::ZEROS + i / 2 * S::ZERO_BYTES;
            zero[i / 2][i % 2] = word_codes<T, CODE>::zero(zeros[at + i % 2 * mine.eight]);
        }
    }
}

/* Adds a chunk: `from` is a slot of the warp's ring, x the chunk's rows. The sums come out
 * multiplied by word_codes::FACTOR. */
template <typename T, enum coded_code CODE, int PER_GROUP, int NT>
__device__ __forceinline__ void
add_chunk(const struct few_params &p, const struct few_lane<T, CODE, CODED_WORDS / PER_GROUP> &mine,
          const char *from, const char *x, float (&acc)[2][NT][4])
{
    using S = few_shape<CODE, PER_GROUP, NT>;
    using W = word_codes<T, CODE>;
    constexpr bool IS_WHOLE = PER_GROUP == CODED_WORDS; // the chunk is a group
    float sum[2][NT][4];
    uint32_t zero[2][2];
    if (IS_WHOLE) {
        clear(sum);
        read_zeros<T, CODE, S>(p, mine, from, mine.scales, zero);
    }
    uint32_t words[2][2][CODED_WORDS];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 v = *(const uint4 *)(from + mine.codes + i * 512);
        uint32_t *to = words[i / 2][i % 2];
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int at =
                mine.scales + (IS_WHOLE ? 0 : (half * 2 + j) * p.m.record_groups / CODED_WORDS);
            if (!IS_WHOLE) {
                clear(sum);
                read_zeros<T, CODE, S>(p, mine, from, at, zero);
            }
            uint32_t b[NT][4];
#pragma unroll
            for (int n = 0; n < NT; n++) {
                ldmatrix_x4(b[n], x + (j == 0 ? mine.x : mine.x_4) + n * 1024);
            }
            uint32_t a[2][2][4];
#pragma unroll
            for (int f = 0; f < 2; f++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t pairs[4];
                    W::make(words[f][h][half * 2 + j], zero[f][h], pairs);
                    a[0][f][h] = pairs[0];
                    a[0][f][h + 2] = pairs[1];
                    a[1][f][h] = pairs[2];
                    a[1][f][h + 2] = pairs[3];
                }
            }
#pragma unroll
            for (int step = 0; step < 2; step++) {
#pragma unroll
                for (int n = 0; n < NT; n++) {
#pragma unroll
                    for (int f = 0; f < 2; f++) {
                        mma_16x8x16(sum[f][n], a[step][f], b[n][2 * step], b[n][2 * step + 1], T());
                    }
                }
            }
            if (!IS_WHOLE) {
                add_group<CODE, S, NT>(from, at, at + mine.eight, sum, acc);
            }
        }
        x += S::CHUNK_X / 2;
    }
    if (IS_WHOLE) {
        add_group<CODE, S, NT>(from, mine.scales, mine.scales + mine.eight, sum, acc);
    }
}

/* Stores one element of the product in the type of y. */
template <typename T>
__device__ __forceinline__ void put(const struct few_params &p, int64_t at, float v)
{
    if (p.is_float) {
        float *to = (float *)p.y + at;
        *to = p.accumulate ? *to + v : v;
    } else {
        T *to = (T *)p.y + at;
        *to = from_float<T>(p.accumulate ? to_float(*to) + v : v);
    }
}

/* Leaves a warp's sums in its ring, [rows, SUMS]: 16 features of each tile row. */
template <int NT> __device__ __forceinline__ void leave(float *to, const float (&acc)[2][NT][4])
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 2 * NT * 4; i++) {
        const int f = i / (NT * 4), n = i / 4 % NT, e = i % 4;
        to[(n * 8 + 2 * t + e % 2) * SUMS + f * 16 + e / 2 * 8 + g] = acc[f][n][e];
    }
}

/* Adds the warps' sums in order and stores them. A warp handles two rows of a pair at a time (four
 * rows apart, which avoids bank conflicts), and each lane a feature of either tile row. */
template <typename T, enum coded_code CODE, int NT>
__device__ __forceinline__ void store(const struct few_params &p, const char *rings)
{
    const int lane = threadIdx.x & 31, f = lane & 15;
    const int32_t step = p.n_pairs * p.ring_bytes;
#pragma unroll 1
    for (int i = threadIdx.x >> 5; i < p.n_pairs * NT * 4; i += (int)blockDim.x >> 5) {
        const int which = i / (NT * 4), row = (i & 3) + (i / 4 % NT) * 8 + (lane >> 4) * 4;
        const struct few_pair pair(p, which);
        const char *from = rings + which * p.ring_bytes + (row * SUMS + f) * 4;
        float v = 0.0f, other = 0.0f;
#pragma unroll 1
        for (int k = 0; k < p.n_slices; k += 2) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float *at = (const float *)(from + (k + j) * step);
                v += k + j < p.n_slices ? at[0] : 0.0f;
                other += k + j < p.n_slices ? at[CODED_ROWS] : 0.0f;
            }
        }
        v *= 1.0f / word_codes<T, CODE>::FACTOR;
        other *= 1.0f / word_codes<T, CODE>::FACTOR;
        int32_t out = pair.tile * CODED_ROWS + f;
        const int32_t end_out = row < p.n_rows && pair.exists ? p.n_out : 0;
        if (p.gated) { // rounded before the activation, as in two ops
            if (p.bias && out < end_out) {
                v += p.bias[out];
                other += p.bias[p.n_out + out];
            }
            v = silu_gated(to_float(from_float<T>(v)), to_float(from_float<T>(other)));
        }
        const int32_t end = out + (pair.other > 0 && !p.gated ? CODED_ROWS + 1 : 1);
#pragma unroll 1
        for (; out < end; out += CODED_ROWS) {
            if (out < end_out) {
                v += p.bias && !p.gated ? p.bias[out] : 0.0f;
                put<T>(p, blockIdx.y * p.part_stride + row * p.y_stride + out, v);
            }
            v = other;
        }
    }
}

/* Waits for the oldest of the ring's chunks. */
__device__ __forceinline__ void wait_for_chunk(const struct few_params &p)
{
    if (p.n_slots == MAX_SLOTS) {
        cp_async_wait<MAX_SLOTS - 1>();
    } else {
        cp_async_wait<MAX_SLOTS - 2>();
    }
    __syncwarp(); // makes what other lanes copied visible
}

/* The end of a block: its warps' sums pass through their rings. */
template <typename T, enum coded_code CODE, int NT>
__device__ __forceinline__ void store_sums(const struct few_params &p, char *ring,
                                           const char *rings, const float (&acc)[2][NT][4])
{
    cp_async_wait<0>();
    __syncwarp();
    leave<NT>((float *)ring, acc);
    __syncthreads();
    store<T, CODE, NT>(p, rings);
}

#endif // HAVE_SM90A

template <typename T, enum coded_code CODE, int PER_GROUP, int NT>
__global__ void __launch_bounds__(WARPS * 32, 1)
    gemm_four_kernel(const __grid_constant__ struct few_params p,
                     const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    using S = few_shape<CODE, PER_GROUP, NT>;
    extern __shared__ __align__(1024) char smem[]; // aligned as the swizzle requires
    const int warp = threadIdx.x >> 5;
    uint64_t *full = (uint64_t *)smem; // followed by the rings, and x at the end
    char *xs = smem + p.x_at, *ring = smem + kept(BARRIERS + warp * p.ring_bytes);
    const int32_t first = blockIdx.y * p.run_chunks;
    const int32_t end = kept(min(first + p.run_chunks, p.m.n_chunks));
    int32_t part = first, part_end = min(first + p.part_chunks, end);
    if (threadIdx.x == 0) {
        begin_x<S>(&x_map, full, first, part_end);
    }
    const int slice = warp * p.inverse >> 16;
    const struct few_pair pair(p, warp - slice * p.n_pairs);
    int32_t chunk = pair.exists ? first + slice : end;
    few_copies<S> copies(p, pair, chunk);
    const uint32_t ring_lane = kept(smem_address(ring) + (threadIdx.x & 31) * 16);
#pragma unroll 1
    for (int i = 0; i < p.n_slots; i++) {
        copies.fetch(p, chunk + i * p.n_slices < end, ring_lane + i * S::SLOT);
    }
    const int32_t ahead = kept(p.n_slots * p.n_slices);
    const few_lane<T, CODE, S::GROUPS> mine(p);
    float acc[2][NT][4];
    clear(acc);
    __syncthreads();
    if (p.is_full) {
        pdl_trigger();
    }
    pdl_wait(); // preceding kernels may use x and y until then
    if (threadIdx.x == 0) {
        load_x<S>(&x_map, xs, full, part, part_end);
    }
    __syncwarp();
    if (!p.is_full) {
        pdl_trigger();
    }
    int at = 0; // in the ring
    uint32_t parity = 0;
#pragma unroll 1
    for (;;) {
#pragma unroll 1
        for (; chunk < part_end; chunk += p.n_slices) {
            wait_for_chunk(p);
            const uint32_t in_part = (uint32_t)(chunk - part);
            barrier_wait(&full[in_part / S::X_CHUNKS], parity);
            add_chunk<T, CODE, PER_GROUP, NT>(p, mine, ring + at, xs + in_part * S::CHUNK_X, acc);
            __syncwarp(); // all lanes have read the slot
            copies.fetch(p, chunk + ahead < end, ring_lane + at);
            at = at + S::SLOT == p.ring_bytes ? 0 : at + S::SLOT;
        }
        if (part_end == end) {
            break;
        }
        __syncthreads(); // all warps are done with this part
        parity ^= 1;
        part = part_end;
        part_end = min(part + p.part_chunks, end);
        if (threadIdx.x == 0) {
            expect_x<S>(full, part, part_end);
            load_x<S>(&x_map, xs, full, part, part_end);
        }
        __syncwarp();
    }
    store_sums<T, CODE, NT>(p, ring, smem + BARRIERS, acc);
#endif
}

/* ---- host ------------------------------------------------------------------------------------ */

struct few_plan {
    int32_t n_pairs, n_slices;   // of a band, and warps per pair
    int32_t band_tiles, n_bands; // first tile rows of a band's pairs
    int32_t n_runs, run_chunks;  // ranges of K
    int32_t part_chunks;         // of x that is in shared memory at once
    int32_t n_slots, bytes;      // of a ring; of shared memory
};

/* The bytes of a slot (few_shape). */
static int32_t slot_of(const struct coded_matrix *m)
{
    const bool is_int = m->code == CODED_U4;
    const int32_t groups = is_int && m->record_groups == 1 ? 1 : (int32_t)CODED_WORDS;
    return 2 * (CODED_TILE_BYTES + CODED_ROWS * groups * (is_int ? 5 : 1));
}

/* Divides shared memory between the rings and x. */
static void lay_out(struct few_plan *p, int32_t slot, int32_t n_rows)
{
    const int32_t chunk_x = n_rows <= 8 ? 8 * CHUNK * 2 : 16 * CHUNK * 2, load = X_LOAD / chunk_x;
    const int32_t need = items_up(p->run_chunks, load) * load; // chunks of x
    const int32_t each = items_up(p->run_chunks, p->n_slices); // chunks of a warp
    int32_t room = 0;
    for (p->n_slots = each < MAX_SLOTS ? 2 : MAX_SLOTS; p->n_slots >= 2; p->n_slots--) {
        const int32_t rings = p->n_pairs * p->n_slices * p->n_slots * slot;
        room = (BLOCK_BYTES - BARRIERS - 1024 - rings) / X_LOAD * load;
        p->bytes = rings;
        if (room >= need || p->n_slots == 2) {
            break;
        }
    }
    room = room < MAX_LOADS * load ? room : MAX_LOADS * load;
    const int32_t n_parts = items_up(need, room);
    p->part_chunks = items_up(items_up(p->run_chunks, n_parts), load) * load;
    p->bytes = items_up(BARRIERS + p->bytes, 1024) * 1024 + p->part_chunks * chunk_x;
}

/* Chooses the bands and the cuts of K for which the busiest multiprocessor loads the fewest bytes.
 * Other work is counted as the bytes that could be loaded in the same time: 16 KiB per round of
 * blocks, 12 KiB per further part of x, 4 KiB per chunk of the busiest warp, and 4 KiB per range of
 * K (the next kernel reads its sums); 32 KiB are saved by blocks that start beside attention. */
static struct few_plan plan_of(const struct coded_matrix *m, const struct coded_args *a,
                               int32_t n_sms, size_t sums_bytes)
{
    enum {
        ROUND = 16 << 10,
        PART = 12 << 10,
        WARP_CHUNK = 4 << 10,
        RUN = 4 << 10,
        SAVED = 32 << 10
    };
    const bool may_cut = sums_bytes > 0 && !a->gated && !a->accumulate && a->y_dtype != DT_F32;
    const int64_t one = (int64_t)a->n_rows * m->n_out * (int64_t)sizeof(float);
    const int32_t slot = slot_of(m);
    int64_t least = INT64_MAX;
    struct few_plan p, best = {};
    const int32_t end_tile = a->gated ? m->n_tiles / 2 : m->n_tiles;
    const int32_t each = a->gated ? 1 : 2; // tile rows of a pair that band_tiles counts
    for (int32_t runs = 1; runs <= (may_cut ? (int32_t)MAX_RUNS : 1); runs++) {
        if (runs > m->n_chunks || (runs > 1 && runs * one > (int64_t)sums_bytes)) {
            break;
        }
        p.run_chunks = items_up(m->n_chunks, runs);
        p.n_runs = items_up(m->n_chunks, p.run_chunks);
        for (p.band_tiles = 1; p.band_tiles <= WARPS * each; p.band_tiles++) {
            p.n_pairs = items_up(p.band_tiles, each);
            p.n_bands = items_up(end_tile, p.band_tiles);
            p.n_slices = WARPS / p.n_pairs;
            lay_out(&p, slot, a->n_rows);
            const int64_t rounds = items_up((int64_t)p.n_bands * p.n_runs, n_sms);
            const int64_t weights = (int64_t)p.band_tiles * p.run_chunks * slot / each +
                                    (int64_t)items_up(p.run_chunks, p.n_slices) * WARP_CHUNK;
            const int64_t x = (int64_t)p.run_chunks * a->n_rows * CHUNK * 2 / 3 +
                              (int64_t)items_up(p.run_chunks, p.part_chunks) * PART;
            const int64_t sums = p.n_runs > 1 ? p.n_runs * (one * 2 / n_sms + RUN) : 0;
            const int64_t saved = rounds == 1 && p.bytes <= BESIDE_ATTENTION ? SAVED : 0;
            const int64_t cost = rounds * (weights + x + ROUND) + sums - saved;
            if (cost < least) {
                least = cost;
                best = p;
            }
        }
    }
    return best;
}

template <typename T, enum coded_code CODE, int PER_GROUP, int NT>
static cudaError_t launch_few(cudaStream_t stream, const struct few_params &p,
                              const struct coded_args *a, const struct few_plan &plan)
{
    using S = few_shape<CODE, PER_GROUP, NT>;
    const auto kernel = gemm_four_kernel<T, CODE, PER_GROUP, NT>;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             BLOCK_BYTES); // set at every launch: each rank has its own device
    CUtensorMap x_map;
    if (e == cudaSuccess) {
        const cuuint64_t dims[3] = {BOX, (cuuint64_t)a->n_rows, (cuuint64_t)(p.m.n_in / BOX)};
        const cuuint64_t strides[2] = {(cuuint64_t)a->x_stride * 2, BOX * 2};
        const cuuint32_t box[3] = {BOX, S::ROWS, S::X_CHUNKS * (CHUNK / BOX)};
        e = tensor_map(&x_map, a->x, a->x_dtype == DT_BF16, 3, dims, strides, box);
    }
    if (e != cudaSuccess) {
        return e;
    }
    /* Two blocks never share a multiprocessor. */
    const int32_t bytes = plan.bytes > BESIDE_ATTENTION ? plan.bytes : (int32_t)BESIDE_ATTENTION;
    return launch(kernel, dim3((unsigned)plan.n_bands, (unsigned)plan.n_runs),
                  dim3((unsigned)(plan.n_pairs * plan.n_slices * 32)), (size_t)bytes, stream, p,
                  x_map);
}

template <typename T, enum coded_code CODE, int PER_GROUP>
static cudaError_t by_rows(cudaStream_t stream, const struct few_params &p,
                           const struct coded_args *a, const struct few_plan &plan)
{
    return a->n_rows <= 8 ? launch_few<T, CODE, PER_GROUP, 1>(stream, p, a, plan)
                          : launch_few<T, CODE, PER_GROUP, MOST_NT>(stream, p, a, plan);
}

template <typename T>
static cudaError_t by_code(cudaStream_t stream, const struct few_params &p,
                           const struct coded_args *a, const struct few_plan &plan)
{
    switch (p.m.code) {
    case CODED_E2M1: return by_rows<T, CODED_E2M1, 1>(stream, p, a, plan);
    case CODED_U4:
        return p.m.record_groups == 1 ? by_rows<T, CODED_U4, 4>(stream, p, a, plan)
                                      : by_rows<T, CODED_U4, 1>(stream, p, a, plan);
    case CODED_E4M3: break; // gemm_four_takes rejects it
    }
    return cudaErrorInvalidValue;
}

extern "C" bool gemm_four_takes(const struct coded_matrix *m, const struct coded_args *a,
                                int32_t sm)
{
    return sm == 90 && gemm_coded_takes(m, a) && coded_bits(m->code) == 4 && m->n_experts == 1 &&
           m->n_in % BOX == 0 && !a->n_list && a->n_rows >= 1 && a->n_rows <= FOUR_MOST_ROWS &&
           (!a->gated || (a->activation == ACT_SILU && a->y_dtype == a->x_dtype));
}

extern "C" cudaError_t gemm_four(cudaStream_t stream, const struct coded_matrix *m,
                                 const struct coded_args *a, int32_t n_sms, size_t sums_bytes,
                                 struct sum_parts *sums)
{
    if (a->n_rows > FOUR_SOME_ROWS || (a->n_rows > MOST_NT * 8 && four_is_exact(m, a->n_rows))) {
        return gemm_four_many(stream, m, a, n_sms, sums_bytes, sums);
    }
    if (a->n_rows > MOST_NT * 8) {
        return gemm_four_some(stream, m, a, n_sms, sums_bytes, sums);
    }
    if (gemm_four_head_takes(m, a, n_sms)) {
        if (sums) {
            sums->n = 0;
        }
        return gemm_four_head(stream, m, a, n_sms, nullptr, nullptr);
    }
    cudaError_t e;
    if (gemm_four_lean(stream, m, a, n_sms, sums_bytes, sums, &e)) {
        return e;
    }
    const struct few_plan plan = plan_of(m, a, n_sms, sums_bytes);
    struct few_params p = {};
    const bool cut = four_output(&p, m, a, plan.n_runs, sums);
    p.n_pairs = plan.n_pairs;
    p.band_tiles = plan.band_tiles;
    p.end_tile = a->gated ? m->n_tiles / 2 : m->n_tiles;
    p.pair_tiles = a->gated ? 1 : 2;
    p.to_other = a->gated ? p.end_tile : 1;
    p.n_slices = plan.n_slices;
    p.inverse = (1 << 16) / plan.n_pairs + 1;
    p.run_chunks = plan.run_chunks;
    p.part_chunks = plan.part_chunks;
    p.n_slots = plan.n_slots;
    p.ring_bytes = plan.n_slots * slot_of(m);
    p.x_at = items_up(BARRIERS + plan.n_pairs * plan.n_slices * p.ring_bytes, 1024) * 1024;
    p.is_float = cut || a->y_dtype == DT_F32;
    p.is_full = plan.n_bands * plan.n_runs * 3 > n_sms * 2;
    return a->x_dtype == DT_BF16 ? by_code<bf16_t>(stream, p, a, plan)
                                 : by_code<f16_t>(stream, p, a, plan);
}
