// SPDX-License-Identifier: Apache-2.0
/* y = x W^T with a weight of 4-bit codes (cuda/coded.h) and up to 16 rows, on Hopper, unless
 * four_lean.cu takes it.
 *
 * A block has a multiprocessor to itself and processes items in turn (items.cuh): a band of tile
 * rows, a range of K and a tile of rows of x. Tile rows come in pairs: two that follow each other
 * or, if gated, one of each half of the weight, so that the same threads have both factors of an
 * output. A warp has one pair; if n warps share a pair, each takes every n-th chunk. A warp copies
 * codes, scales and zeros into a ring of its own (cp.async), so no warp waits for another. It
 * converts the codes exactly to bf16 or fp16 in registers, as the 16-row operand of mma.sync, and
 * scales the sums over a group in fp32. One thread loads x through a tensor map into a ring that
 * all warps share. The warps' sums are added in order at the end. Bound by the instructions that
 * convert codes, and by the work done once per launch.
 *
 * With programmatic dependent launch the rings are filled with weights before the wait for the
 * preceding kernel. */
#include "cuda/gemm.h"
#include "cuda/kernels/device/codes.cuh"
#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/device/kept.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/gemm/four.cuh"
#include "cuda/kernels/gemm/items.cuh"
#include "cuda/kernels/gemm/x_ring.cuh"

enum {
    CHUNK = 128, // inputs
    BOX = 64,    // inputs in a box of x
    MAX_SLOTS = 8,
    RING_BYTES = 221 * 1024, // the rest lets small kernels run beside it
    MAX_RUNS = 8,
    MOST_NT = 2, // groups of eight rows
    WARPS = 16,
};

struct few_params {
    struct coded_matrix m;
    struct item_plan plan; // of pairs
    void *y;
    const float *bias;
    int32_t n_rows, n_out; // size of y
    int64_t y_stride, part_stride;
    int32_t slices[2], inverse[2]; // warps per pair, and 2^16 / pairs, for both band sizes
    int32_t row_bits;              // n_rows is at most 2^row_bits
    bool accumulate, gated;
    bool is_float; // y points to fp32
    bool is_full;  // the grid fills most of the machine
};

/* PER_GROUP: words of a lane that share a scale: 4, or 1 for groups of 32 and 64. NT: groups of
 * eight rows. */
template <enum coded_code CODE, int PER_GROUP, int NT> struct few_shape {
    static constexpr int ROWS = NT * 8, CHUNK_X = ROWS * CHUNK * 2;
    static constexpr int X_SLOT = 16 * 1024, X_CHUNKS = X_SLOT / CHUNK_X; // in a slot
    static constexpr int X_BOXES = X_CHUNKS * (CHUNK / BOX);
    static constexpr int X_SLOTS = 4;
    static constexpr int X_LAG = 1;
    static constexpr int GROUPS = CODED_WORDS / PER_GROUP;
    static constexpr int SCALE_BYTES = CODED_ROWS * GROUPS * code_of<CODE>::SCALE_BYTES;
    static constexpr int ZERO_BYTES = code_of<CODE>::HAS_ZEROS ? CODED_ROWS * GROUPS : 0;
    static constexpr int SCALES = 2 * CODED_TILE_BYTES, ZEROS = SCALES + 2 * SCALE_BYTES;
    static constexpr int SLOT = ZEROS + 2 * ZERO_BYTES;
    static constexpr int FIT = (RING_BYTES - 1024 - X_SLOTS * X_SLOT) / (WARPS * SLOT);
    static constexpr int SLOTS = FIT < MAX_SLOTS ? FIT : MAX_SLOTS;
    static constexpr int RING = SLOTS * SLOT; // of a warp
    static constexpr int SMEM = 1024 + X_SLOTS * X_SLOT + WARPS * RING;
    static_assert(SLOTS >= 3 && SLOT % 16 == 0 && RING >= NT * 1024, "");
};

#if HAVE_SM90A

/* A warp's share of an item. */
struct few_share {
    int32_t n_pairs, n_slices; // the block's pairs, and the warps per pair
    int32_t pair, slice;       // this warp's; slice >= n_slices: it has none

    __device__ __forceinline__ few_share(const struct few_params &p, const struct item &it)
    {
        const int32_t warp = threadIdx.x >> 5;
        n_pairs = it.end_tile - it.first_tile;
        const bool is_larger = n_pairs > p.plan.bands.size;
        n_slices = is_larger ? p.slices[1] : p.slices[0];
        slice = warp * (is_larger ? p.inverse[1] : p.inverse[0]) >> 16;
        pair = warp - slice * n_pairs;
    }
};

/* The tile row of half f of a pair; the second one may not exist. */
__device__ __forceinline__ int32_t tile_of(const struct few_params &p, int32_t pair, int f)
{
    return p.gated ? pair + f * (p.m.n_tiles / 2) : 2 * pair + f;
}

/* The copies of a warp's chunks into its ring, one after another. */
template <typename S> struct few_copies {
    const uint8_t *codes[2], *scales, *zeros;    // what this lane copies next
    int32_t next_codes, next_scales, next_zeros; // bytes from there to the chunk after it
    int32_t chunk, end_chunk, slices;
    uint32_t to, end;           // this lane's addresses in shared memory
    uint32_t to_scale, to_zero; // distances from `to`
    int32_t has_scales, has_zeros;

    __device__ __forceinline__ few_copies(const struct few_params &p, const struct item &it,
                                          const struct few_share &share, const char *ring)
        : chunk(share.slice < share.n_slices ? it.first_chunk + share.slice : it.end_chunk),
          end_chunk(it.end_chunk), slices(share.n_slices)
    {
        const int lane = threadIdx.x & 31, half = lane >> 4, piece = lane & 15;
        const uint32_t n_zeros = CODED_ROWS * p.m.record_groups; // bytes of a record
        uint32_t at[2];
#pragma unroll
        for (int f = 0; f < 2; f++) { // a tile that does not exist is computed but not stored
            const int32_t t = tile_of(p, it.first_tile + share.pair, f);
            at[f] = (uint32_t)((t < p.m.n_tiles ? t : 0) * p.m.n_chunks + chunk);
            codes[f] = p.m.tiles + (uint64_t)at[f] * CODED_TILE_BYTES + lane * 16;
        }
        const uint32_t mine = half ? at[1] : at[0];
        scales = p.m.scales + (uint64_t)mine * (uint32_t)p.m.record_bytes + piece * 16;
        zeros = p.m.zeros + (uint64_t)mine * n_zeros + piece * 16;
        next_codes = kept(share.n_slices * CODED_TILE_BYTES);
        next_scales = kept(share.n_slices * p.m.record_bytes);
        next_zeros = kept((int32_t)(share.n_slices * n_zeros));
        has_scales = kept((int32_t)(piece * 16 < p.m.record_bytes));
        has_zeros = kept((int32_t)(S::ZERO_BYTES > 0 && p.m.zeros && piece * 16u < n_zeros));
        to = kept(smem_address(ring) + lane * 16);
        end = kept(to + S::RING);
        to_scale = kept((uint32_t)(S::SCALES + half * (S::SCALE_BYTES - 256)));
        to_zero = kept((uint32_t)(S::ZEROS + half * (S::ZERO_BYTES - 256)));
    }

    __device__ __forceinline__ void fetch()
    {
        if (chunk < end_chunk) {
            chunk += slices;
#pragma unroll
            for (int f = 0; f < 2; f++) {
                cp_async_16(to + f * CODED_TILE_BYTES, codes[f]);
                cp_async_16(to + f * CODED_TILE_BYTES + 512, codes[f] + 512);
                codes[f] += next_codes;
            }
            if (has_scales) {
                cp_async_16(to + to_scale, scales);
            }
            scales += next_scales;
            if (has_zeros) {
                cp_async_16(to + to_zero, zeros);
            }
            zeros += next_zeros;
            to += S::SLOT;
            to = to == end ? end - S::RING : to;
        }
        cp_async_commit();
    }
};

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
template <typename T, enum coded_code CODE> struct few_lane {
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
        scales = kept(g * p.m.record_groups);
        eight = kept(8 * p.m.record_groups);
        zero = kept(code_of<CODE>::HAS_ZEROS ? word_codes<T, CODE>::zero(p.m.zero) : 0);
    }
};

/* Adds a chunk: `from` is a slot of the warp's ring, x the chunk's rows. The sums come out
 * multiplied by word_codes::FACTOR. With up to eight rows the loop is short, since fetching code
 * takes longer than running it. */
template <typename T, enum coded_code CODE, int PER_GROUP, int NT>
__device__ __forceinline__ void add_chunk(const struct few_params &p,
                                          const struct few_lane<T, CODE> &mine, const char *from,
                                          const char *x, float (&acc)[2][NT][4])
{
    using S = few_shape<CODE, PER_GROUP, NT>;
    using W = word_codes<T, CODE>;
    constexpr bool IS_WHOLE = PER_GROUP == CODED_WORDS; // the chunk is a group
    float sum[2][NT][4];
    uint32_t zero[2][2];
    auto read_zeros = [&](int at) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            zero[i / 2][i % 2] = mine.zero;
        }
        if (code_of<CODE>::HAS_ZEROS && p.m.zeros) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint8_t *zeros = (const uint8_t *)from + S::ZEROS + i / 2 * S::ZERO_BYTES;
                zero[i / 2][i % 2] = W::zero(zeros[at + i % 2 * mine.eight]);
            }
        }
    };
    if (IS_WHOLE) {
        clear(sum);
        read_zeros(mine.scales);
    }
#pragma unroll(NT == 1 ? 1 : 2)
    for (int half = 0; half < 2; half++) {
        uint2 words[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i / 2][i % 2] = *(const uint2 *)(from + mine.codes + i * 512 + half * 8);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int at =
                mine.scales + (IS_WHOLE ? 0 : (half * 2 + j) * p.m.record_groups / CODED_WORDS);
            if (!IS_WHOLE) {
                clear(sum);
                read_zeros(at);
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
                    W::make(j == 0 ? words[f][h].x : words[f][h].y, zero[f][h], pairs);
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

/* Stores an item's outputs. sums: [WARPS, S::RING / 4], each warp's sums are in its ring. */
template <typename T, enum coded_code CODE, typename S, int NT>
__device__ __forceinline__ void store(const struct few_params &p, const struct item &it,
                                      const struct few_share &share, const float *sums)
{
    const int n = (p.gated ? share.n_pairs : 2 * share.n_pairs) * CODED_ROWS << p.row_bits;
    const int step = share.n_pairs * (S::RING / 4);
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += WARPS * 32) {
        /* The rows of a group of eight in an order that avoids bank conflicts. */
        const int feature = i % 16, tile = i / 16 >> p.row_bits;
        int r = i / 16 & ((1 << p.row_bits) - 1);
        if (p.row_bits >= 3) {
            r = (r & ~7) | (r & 3) << 1 | (r >> 2 & 1);
        }
        const int pair = p.gated ? tile : tile / 2, f = p.gated ? 0 : tile % 2;
        const int32_t row = it.row_tile * S::ROWS + r;
        const int32_t out = tile_of(p, it.first_tile + pair, f) * CODED_ROWS + feature;
        if (row >= p.n_rows || out >= p.n_out) {
            continue;
        }
        const int lane = feature % 8 * 4 + r % 8 / 2, e = feature / 8 * 2 + r % 2;
        const float *from = sums + pair * (S::RING / 4) + ((f * NT + r / 8) * 4 + e) * 32 + lane;
        float v = 0.0f, up = 0.0f; // `up` is not used unless gated
#pragma unroll 4
        for (int k = 0; k < share.n_slices; k++) {
            v += from[k * step];
            up += from[k * step + (p.gated ? NT * 128 : 0)];
        }
        v *= 1.0f / word_codes<T, CODE>::FACTOR;
        v += p.bias ? p.bias[out] : 0.0f;
        if (p.gated) { // rounded before the activation, as in two ops
            up *= 1.0f / word_codes<T, CODE>::FACTOR;
            up += p.bias ? p.bias[p.n_out + out] : 0.0f;
            v = silu_gated(to_float(from_float<T>(v)), to_float(from_float<T>(up)));
        }
        put<T>(p, it.run * p.part_stride + row * p.y_stride + out, v);
    }
}

/* Called once per block, after its first loads of weights. Triggers before the wait only if blocks
 * of two products do not fit side by side; else the product after the next one starts too early. */
__device__ __forceinline__ void start_block(const struct few_params &p, struct x_ring *ring)
{
    if (p.is_full) {
        pdl_trigger();
    }
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < x_ring::MOST; i++) {
            barrier_init(&ring->full[i], 1);
            barrier_init(&ring->empty[i], (int)blockDim.x / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    pdl_wait(); // preceding kernels may use y until then
    if (!p.is_full) {
        pdl_trigger();
    }
}

template <typename T, enum coded_code CODE, int PER_GROUP, int NT>
__device__ __forceinline__ void compute(const struct few_params &p, const CUtensorMap *x_map,
                                        char *xs, char *rings, struct x_ring *x_ring)
{
    using S = few_shape<CODE, PER_GROUP, NT>;
    const int lane = threadIdx.x & 31;
    char *ring = rings + (threadIdx.x >> 5) * S::RING;
    x_walk<S> x(x_map, xs, x_ring);
    const few_lane<T, CODE> mine(p);
    bool is_first = true;
#pragma unroll 1
    for (int32_t which = (int32_t)blockIdx.x; which < p.plan.n_items; which += (int32_t)gridDim.x) {
        const struct item it = item_at(p.plan, which);
        const struct few_share share(p, it);
        few_copies<S> copies(p, it, share, ring);
#pragma unroll 1
        for (int s = 0; s < S::SLOTS - 1; s++) {
            copies.fetch();
        }
        float acc[2][NT][4];
        clear(acc);
        if (is_first) {
            start_block(p, x_ring);
        }
        is_first = false;
        x.begin(it);
        const int32_t n_chunks = it.end_chunk - it.first_chunk;
        /* If nothing more is loaded into the slots of x, no warp needs to release them. */
        const bool keeps_x = x.n_slots <= S::X_SLOTS && p.plan.n_items <= (int32_t)gridDim.x;
        int slot = 0, chunk = share.slice < share.n_slices ? share.slice : n_chunks;
#pragma unroll 1
        while (chunk < n_chunks || !keeps_x) {
            cp_async_wait<S::SLOTS - 2>();
            __syncwarp(); // makes the scales that other lanes copied visible; all lanes have now
                          // read the slot that is refilled next
            copies.fetch();
            const char *rows = x.go_to(chunk < n_chunks ? chunk : x.n_slots * S::X_CHUNKS);
            if (chunk >= n_chunks) {
                break;
            }
            add_chunk<T, CODE, PER_GROUP, NT>(p, mine, ring + slot, rows, acc);
            slot = slot + S::SLOT == S::RING ? 0 : slot + S::SLOT;
            chunk += share.n_slices;
        }
        cp_async_wait<0>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2 * NT * 4; i++) {
            ((float *)ring)[i * 32 + lane] = acc[i / (NT * 4)][i / 4 % NT][i % 4];
        }
        __syncthreads();
        store<T, CODE, S, NT>(p, it, share, (const float *)rings);
        __syncthreads(); // before the rings are filled again
    }
}

#endif // HAVE_SM90A

template <typename T, enum coded_code CODE, int PER_GROUP, int NT>
__global__ void __launch_bounds__(WARPS * 32, 1)
    gemm_four_kernel(const __grid_constant__ struct few_params p,
                     const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    using S = few_shape<CODE, PER_GROUP, NT>;
    extern __shared__ char smem_raw[];
    __shared__ struct x_ring ring;
    char *xs = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    compute<T, CODE, PER_GROUP, NT>(p, &x_map, xs, xs + S::X_SLOTS * S::X_SLOT, &ring);
#endif
}

/* ---- host ------------------------------------------------------------------------------------ */

template <typename T, enum coded_code CODE, int PER_GROUP, int NT>
static cudaError_t launch_few(cudaStream_t stream, const struct few_params &p,
                              const struct coded_args *a, int32_t n_sms)
{
    using S = few_shape<CODE, PER_GROUP, NT>;
    const auto kernel = gemm_four_kernel<T, CODE, PER_GROUP, NT>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         S::SMEM); // set at every launch, because each
                                                   // rank has its own device
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
    const int32_t n_items = p.plan.n_items;
    return launch(kernel, dim3((unsigned)(n_items < n_sms ? n_items : n_sms)), dim3(WARPS * 32),
                  S::SMEM, stream, p, x_map);
}

template <typename T, enum coded_code CODE, int PER_GROUP>
static cudaError_t by_rows(cudaStream_t stream, const struct few_params &p,
                           const struct coded_args *a, int32_t n_sms)
{
    return a->n_rows <= 8 ? launch_few<T, CODE, PER_GROUP, 1>(stream, p, a, n_sms)
                          : launch_few<T, CODE, PER_GROUP, MOST_NT>(stream, p, a, n_sms);
}

template <typename T>
static cudaError_t by_code(cudaStream_t stream, const struct few_params &p,
                           const struct coded_args *a, int32_t n_sms)
{
    switch (p.m.code) {
    case CODED_E2M1: return by_rows<T, CODED_E2M1, 1>(stream, p, a, n_sms);
    case CODED_U4:
        return p.m.record_groups == 1 ? by_rows<T, CODED_U4, 4>(stream, p, a, n_sms)
                                      : by_rows<T, CODED_U4, 1>(stream, p, a, n_sms);
    case CODED_E4M3: break; // gemm_four_takes rejects it
    }
    return cudaErrorInvalidValue;
}

static struct item_plan plan_of(const struct coded_matrix *m, const struct coded_args *a,
                                int32_t n_sms, size_t sums_bytes)
{

    const bool may_cut = sums_bytes > 0 && !a->gated && !a->accumulate && a->y_dtype != DT_F32;
    struct item_costs c = {};
    c.n_tiles = items_up(m->n_tiles, 2); // pairs
    c.n_chunks = m->n_chunks;
    c.n_row_tiles = 1;
    c.most_tiles = WARPS;
    c.most_runs = may_cut ? (int32_t)MAX_RUNS : 1;
    c.tile_bytes = 2 * (CODED_TILE_BYTES + m->record_bytes);
    c.x_bytes = a->n_rows * CHUNK * 2;
    c.sums_bytes = (int64_t)a->n_rows * m->n_out * (int64_t)sizeof(float);
    c.most_sums_bytes = (int64_t)sums_bytes;
    c.n_sms = n_sms;
    return plan_items(c);
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
    cudaError_t e;
    if (gemm_four_lean(stream, m, a, n_sms, sums_bytes, sums, &e)) {
        return e;
    }
    struct few_params p = {};
    p.plan = plan_of(m, a, n_sms, sums_bytes);
    const bool cut = four_output(&p, m, a, p.plan.runs.n_parts, sums);
    for (int i = 0; i < 2; i++) {
        const int32_t n_pairs = p.plan.bands.size + i > 0 ? p.plan.bands.size + i : 1;
        p.slices[i] = (int32_t)WARPS / n_pairs;
        p.inverse[i] = (1 << 16) / n_pairs + 1;
    }
    while (1 << p.row_bits < a->n_rows) {
        p.row_bits++;
    }
    p.is_float = cut || a->y_dtype == DT_F32;
    p.is_full = p.plan.n_items * 3 > n_sms * 2;
    return a->x_dtype == DT_BF16 ? by_code<bf16_t>(stream, p, a, n_sms)
                                 : by_code<f16_t>(stream, p, a, n_sms);
}
