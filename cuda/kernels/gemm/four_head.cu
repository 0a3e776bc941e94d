// SPDX-License-Identifier: Apache-2.0
/* The output head with a weight of 4-bit codes (cuda/coded.h) and up to 8 rows, on Hopper: logits
 * in fp32, and each row's best logit among the features of a block, from which greedy draws take
 * their token. Rows that only greedy draws read are not stored.
 *
 * A block has a multiprocessor to itself and an equal share of the pairs of tile rows. The chunks
 * of these pairs, one pair after another, are divided evenly among its warps, so all warps end at
 * the same time. A warp begins and ends in the middle of a pair: it keeps its sums of the first
 * pair until the end, when the warp that began this pair adds them to its own. A warp copies codes,
 * scales and zeros into a ring of its own (cp.async), which it fills without a pause across the
 * ends of pairs, and before the wait for the preceding kernel. It copies the scales of several
 * chunks at a time: pieces of 64 bytes would slow the memory down. All of x is in shared memory.
 * Bound by reading the weight. */
#include "cuda/kernels/device/greedy.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/gemm/four.cuh"
#include "cuda/kernels/gemm/four_lean.cuh"
#include "cuda/kernels/gemm/items.cuh"

enum {
    SLOTS = 4,
    SLOT = 2 * CODED_TILE_BYTES,
    TOGETHER = 4, // chunks whose scales and zeros are copied together: 256 bytes of a tile row
    SCALES = SLOTS * SLOT,
    ZEROS = 2 * TOGETHER * RECORD, // after the scales
    GROUP = ZEROS + 2 * TOGETHER * CODED_ROWS,
    RING = SCALES + 2 * GROUP, // of a warp
    PAIR = 2 * CODED_ROWS,
};

struct four_head_params {
    const uint8_t *tiles, *scales, *zeros;
    const void *x;
    const float *bias;
    float *y;
    struct best_pair *bests; // NULL: none are stored
    int64_t y_stride;
    struct item_cut blocks; // the pairs of each block
    int32_t x_stride, bests_stride;
    int32_t n_in, n_rows, n_out, n_chunks;
    int32_t row_bits; // n_rows is at most 2^row_bits
    int32_t x_pitch;  // bytes from a row of x to the next in shared memory
    float zero;
    bool skip; // skip rows that only greedy draws read
};

#if HAVE_SM90A

/* To be evicted first from the L2 cache, which the weight does not fit. */
__device__ __forceinline__ void copy_16(uint32_t to, const void *from, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(policy)
                 : "memory");
}

/* The copies of a warp's chunks into its ring, one after another. */
struct head_copies {
    const struct four_head_params &p;
    const uint8_t *codes;    // what this lane copies next
    int32_t row, chunk;      // the first tile row of the pair, and the chunk
    int32_t left, until;     // chunks, and those until the next scales
    uint32_t to, end, small; // addresses of shared memory
    uint64_t policy;

    /* Begins with a chunk of a pair and copies n chunks. */
    __device__ __forceinline__ head_copies(const struct four_head_params &p, int32_t pair,
                                           int32_t chunk, int32_t n, const char *ring)
        : p(p), row(2 * pair), chunk(chunk), left(n), until(0)
    {
        const int lane = threadIdx.x & 31;
        policy = policy_evict_first();
        codes = p.tiles + ((int64_t)row * p.n_chunks + chunk) * CODED_TILE_BYTES + lane * 16;
        to = kept(smem_address(ring) + lane * 16);
        end = kept(to + SCALES);
        small = end;
    }

    /* The scales and zeros of several chunks. Half a warp copies the scales of a tile row, and four
     * lanes its zeros. */
    __device__ __forceinline__ void fetch_small()
    {
        const int lane = threadIdx.x & 31, first = chunk & -TOGETHER;
        const int64_t record = (row + (lane >> 4)) * p.n_chunks + first;
        copy_16(small, p.scales + record * RECORD + (lane & 15) * 16, policy);
        if (p.zeros && lane < 8) {
            const int64_t of_zeros = (row + (lane >> 2)) * p.n_chunks + first + (lane & 3);
            copy_16(small + ZEROS, p.zeros + of_zeros * CODED_ROWS, policy);
        }
        small = small == end ? end + GROUP : end;
        until = first + TOGETHER - chunk;
    }

    __device__ __forceinline__ void fetch()
    {
        if (left > 0) {
            const uint8_t *second = codes + p.n_chunks * CODED_TILE_BYTES;
            copy_16(to, codes, policy);
            copy_16(to + 512, codes + 512, policy);
            copy_16(to + CODED_TILE_BYTES, second, policy);
            copy_16(to + CODED_TILE_BYTES + 512, second + 512, policy);
            if (until == 0) {
                fetch_small();
            }
            left--;
            until--;
            chunk++;
            codes += CODED_TILE_BYTES;
            if (chunk == p.n_chunks) { // the next pair follows the second tile row
                chunk = 0;
                row += 2;
                codes += p.n_chunks * CODED_TILE_BYTES;
            }
            to = to + SLOT == end ? end - SCALES : to + SLOT;
        }
        cp_async_commit();
    }
};

/* Where a warp reads its ring. */
struct head_reader {
    const char *ring, *slot, *group;

    __device__ __forceinline__ explicit head_reader(const char *ring)
        : ring(ring), slot(ring), group(ring + SCALES)
    {
    }

    /* x, x_sums: as for add_chunk, of the whole of K. */
    template <enum coded_code CODE>
    __device__ __forceinline__ void add(const struct four_head_params &p, int32_t chunk,
                                        const char *x, const float *x_sums, float (&acc)[2][4])
    {
        const int in_group = chunk & (TOGETHER - 1);
        add_chunk<bf16_t, CODE, 2, TOGETHER>(p, slot, group + in_group * RECORD,
                                             group + ZEROS + in_group * CODED_ROWS,
                                             x + chunk * (CHUNK * 2), x_sums + chunk * ROWS, acc);
        slot = slot + SLOT == ring + SCALES ? ring : slot + SLOT;
        if (in_group == TOGETHER - 1) {
            group = group == ring + SCALES ? group + GROUP : ring + SCALES;
        }
    }
};

/* Leaves the sums of a pair that the preceding warp began, and adds those that the next warp
 * leaves, if it has the rest of this warp's pair. All threads of the block call it. */
__device__ __forceinline__ void join_pairs(char *ring, const float (&left)[2][4], bool has_rest,
                                           float (&acc)[2][4])
{
    float *mine = (float *)ring + (threadIdx.x & 31);
    __syncwarp(); // all lanes have read the ring
#pragma unroll
    for (int i = 0; i < 8; i++) {
        mine[i * 32] = left[i / 4][i % 4];
    }
    __syncthreads();
    if (has_rest) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            acc[i / 4][i % 4] += mine[RING / 4 + i * 32];
        }
    }
}

/* The chunk at which a block's first n / WARPS pairs end. */
__device__ __forceinline__ int32_t chunk_of(const struct four_head_params &p, uint32_t n)
{
    return (int32_t)(n % WARPS * (uint32_t)p.n_chunks / WARPS);
}

/* Bit r is set if a draw that is not greedy reads row r. */
__device__ __forceinline__ uint32_t rows_to_store(const struct four_head_params &p,
                                                  const struct pass_view &pass)
{
    uint32_t bits = p.skip ? 0 : ~0u;
    const int32_t n = p.skip ? pass.counts->n_draws : 0;
#pragma unroll 1
    for (int32_t i = threadIdx.x & 31; i < n; i += 32) {
        const struct pass_draw d = pass.draws[i];
        if (!is_greedy(pass.params[d.lane], d)) {
            bits |= 1u << d.out_row;
        }
    }
    return __reduce_or_sync(0xffffffffu, bits);
}

/* What a lane does with its sums: rows 2 t and 2 t + 1 of features g, g + 8, g + 16 and g + 24 of
 * each pair. */
template <typename L> struct head_output {
    const struct four_head_params &p;
    int32_t row;  // the first
    bool want[2]; // whether a row must be stored
    struct best_pair best[2];

    __device__ __forceinline__ head_output(const struct four_head_params &p, uint32_t rows)
        : p(p), row((threadIdx.x & 3) * 2)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            want[r] = row + r < p.n_rows && (rows >> (row + r) & 1) != 0;
            best[r].value = -INFINITY;
            best[r].id = INT32_MAX;
        }
    }

    __device__ __forceinline__ void pair(int32_t which, float (&acc)[2][4])
    {
        const int32_t first = which * PAIR + (threadIdx.x >> 2 & 7);
        const int32_t left = kept(p.n_out - first); // features
        float *to = p.y + row * p.y_stride + first;
        if (p.bias) {
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                const float bias = i * 4 < left ? p.bias[first + i * 4] / L::unit() : 0.0f;
                acc[i / 4][i % 4] += bias;
                acc[i / 4][i % 4 + 1] += bias;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int32_t n_stored = kept(want[r] ? left : 0);
            to = kept(to);
#pragma unroll
            for (int i = 0; i < 4; i++) { // features ascend, so the first of equal logits stays
                const float v = i * 8 < left ? acc[i / 2][i % 2 * 2 + r] * L::unit() : -INFINITY;
                best[r].id = v > best[r].value ? first + i * 8 : best[r].id;
                best[r].value = max_or_nan(best[r].value, v); // so that a draw finds a NaN
                if (i * 8 < n_stored) {
                    to[i * 8] = v;
                }
            }
            to += p.y_stride;
        }
    }

    /* The better one of two lanes' bests, each `mask` lanes apart. */
    static __device__ __forceinline__ void join(struct best_pair &b, int mask)
    {
        const float value = __shfl_xor_sync(0xffffffffu, b.value, mask);
        const int32_t id = __shfl_xor_sync(0xffffffffu, b.id, mask);
        b.id = value > b.value || (value == b.value && id < b.id) ? id : b.id;
        b.value = max_or_nan(b.value, value);
    }

    /* All threads of the block call it. */
    __device__ __forceinline__ void store_bests()
    {
        __shared__ struct best_pair all[WARPS][ROWS];
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int mask = 4; mask < 32; mask <<= 1) {
                join(best[r], mask);
            }
            if (lane < 4) {
                all[warp][row + r] = best[r];
            }
        }
        __syncthreads();
        if (warp < p.n_rows) {
            struct best_pair b = all[lane % WARPS][warp];
#pragma unroll
            for (int mask = 1; mask < WARPS; mask <<= 1) {
                join(b, mask);
            }
            if (lane == 0) {
                p.bests[(int64_t)warp * p.bests_stride + blockIdx.x] = b;
            }
        }
    }
};

#endif // HAVE_SM90A

template <enum coded_code CODE>
__global__ void __launch_bounds__(WARPS * 32, 1)
    gemm_four_head_kernel(const __grid_constant__ struct four_head_params p,
                          const __grid_constant__ struct pass_view pass)
{
#if HAVE_SM90A
    extern __shared__ __align__(16) char smem[];
    using L = lean_codes<bf16_t, CODE>;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    char *ring = smem + warp * RING, *xs = smem + WARPS * RING;
    const struct lean_x staged = {xs, (float *)(xs + p.n_rows * p.x_pitch)};
    const int32_t first_pair = item_part(p.blocks, blockIdx.x);
    const uint32_t n_pairs = (uint32_t)(item_part(p.blocks, blockIdx.x + 1) - first_pair);
    const uint32_t from = warp * n_pairs, to = from + n_pairs; // in pairs / WARPS
    int32_t pair = kept(first_pair + (int32_t)(from / WARPS)), chunk = chunk_of(p, from);
    int32_t left = (to / WARPS - from / WARPS) * p.n_chunks - chunk + chunk_of(p, to);
    head_copies copies(p, pair, chunk, left, ring);
#pragma unroll 1
    for (int i = 0; i < SLOTS - 1; i++) {
        copies.fetch();
    }
    pdl_trigger();
    head_output<L> output(p, rows_to_store(p, pass));
    /* For ldmatrix a lane gives the address of a row of one of four matrices: inputs 0 to 7, 16 to
     * 23, 8 to 15, 24 to 31, so that the operands of even and of odd pairs are adjacent. */
    const int matrix = (lane >> 4) + (lane >> 3 & 1) * 2;
    const char *x = xs + min(lane & 7, p.n_rows - 1) * p.x_pitch + matrix * 16;
    pdl_wait(); // preceding kernels may use x and y until then
    stage_x<bf16_t, L>(p, staged, 0, p.n_chunks);
    __syncthreads();
    head_reader reader(ring);
    float acc[2][4], rest[2][4] = {};
#pragma unroll 1
    for (;; pair++, chunk = 0) {
        const bool is_rest = chunk > 0; // of a pair that another warp began
        const int32_t end = kept(min(p.n_chunks, chunk + left));
        left -= end - chunk;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            acc[i / 4][i % 4] = 0.0f;
        }
#pragma unroll 1
        for (; chunk < end; chunk++) {
            cp_async_wait<SLOTS - 2>();
            __syncwarp(); // makes the scales that other lanes copied visible; all lanes have now
                          // read the slot that is refilled next
            copies.fetch();
            reader.add<CODE>(p, chunk, x, staged.sums, acc);
        }
        if (left == 0) {
            join_pairs(ring, rest, chunk < p.n_chunks, acc);
        }
        if (is_rest) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                rest[i / 4][i % 4] = acc[i / 4][i % 4];
            }
        } else {
            output.pair(pair, acc);
        }
        if (left == 0) {
            break;
        }
    }
    if (p.bests) {
        output.store_bests();
    }
#endif
}

/* ---- host ------------------------------------------------------------------------------------ */

/* Bytes from a row of x to the next in shared memory; 16 of them avoid bank conflicts. */
static int32_t pitch_of(const struct coded_matrix *m)
{
    return m->n_chunks * CHUNK * 2 + 16;
}

static int32_t bytes_of(const struct coded_matrix *m, const struct coded_args *a)
{
    return WARPS * RING + pitch_of(m) * a->n_rows + m->n_chunks * ROWS * (int32_t)sizeof(float);
}

/* With a pair for each warp of each block, no pair has parts in more than two warps. Products of
 * fp16 with subnormal numbers would not be exact enough for fp32 (a distance of up to 2e-5). */
extern "C" bool gemm_four_head_takes(const struct coded_matrix *m, const struct coded_args *a,
                                     int32_t n_sms)
{
    return a->n_rows <= ROWS && a->x_dtype == DT_BF16 && a->y_dtype == DT_F32 && !a->accumulate &&
           !a->gated && m->record_bytes == RECORD && m->record_shift == 0 && m->n_tiles % 2 == 0 &&
           m->n_chunks % TOGETHER == 0 && m->n_tiles / 2 >= WARPS * n_sms &&
           m->n_chunks <= 1 << 10 && bytes_of(m, a) <= BLOCK_BYTES && a->x_stride <= 1 << 24;
}

template <enum coded_code CODE>
static cudaError_t launch_head(cudaStream_t stream, const struct four_head_params &p, int32_t bytes,
                               const struct pass_view &pass)
{
    const auto kernel = gemm_four_head_kernel<CODE>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             BLOCK_BYTES); // set at every launch: each rank has its own device
    return e == cudaSuccess ? launch(kernel, dim3((unsigned)p.blocks.n_parts), dim3(WARPS * 32),
                                     (size_t)bytes, stream, p, pass)
                            : e;
}

extern "C" cudaError_t gemm_four_head(cudaStream_t stream, const struct coded_matrix *m,
                                      const struct coded_args *a, int32_t n_sms,
                                      const struct row_bests *bests, const struct pass_view *pass)
{
    struct four_head_params p = {};
    p.tiles = m->tiles;
    p.scales = m->scales;
    p.zeros = m->zeros;
    p.x = a->x;
    p.bias = a->bias;
    p.y = (float *)a->y;
    p.y_stride = a->y_stride;
    p.blocks = item_cut_of(m->n_tiles / 2, n_sms);
    p.x_stride = (int32_t)a->x_stride;
    p.n_in = m->n_in;
    p.n_rows = a->n_rows;
    p.n_out = m->n_out;
    p.n_chunks = m->n_chunks;
    p.x_pitch = pitch_of(m);
    p.zero = (float)m->zero;
    while (1 << p.row_bits < a->n_rows) {
        p.row_bits++;
    }
    if (bests) {
        p.bests = bests->pairs;
        p.bests_stride = bests->stride;
    }
    p.skip = bests && pass;
    const struct pass_view none = {};
    const struct pass_view &view = pass ? *pass : none;
    return m->code == CODED_U4 ? launch_head<CODED_U4>(stream, p, bytes_of(m, a), view)
                               : launch_head<CODED_E2M1>(stream, p, bytes_of(m, a), view);
}
