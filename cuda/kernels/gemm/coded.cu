// SPDX-License-Identifier: Apache-2.0
/* y = x W^T for few rows, with a weight that stays quantised (cuda/coded.h), also for experts' rows
 * from a work list. Also coded_expand, which dequantises a weight for products of many rows.
 *
 * A block owns two tile rows of 16 outputs (one per half of W if gated) and up to 32 rows of x. Its
 * 8 warps take the chunks of K in turn, each with its own ring in shared memory for weights, the
 * matching part of x, scales and zeros. A thread reads back what it copied itself, except scales,
 * so a warp only ever waits for its own copies. Codes are converted exactly to bf16 or fp16 in
 * registers and form the 16-row operand of mma.sync; the sum over a group is scaled in fp32 and
 * accumulated. The warps' sums are added in order at the end.
 *
 * The bits of an element thus depend only on its row and the weight, and deterministic mode uses
 * this kernel for any number of rows. With up to 8 rows it is bound by reading the weight and, for
 * 4 bits, by the conversion instructions; from 16 rows on by copying x, which every block does for
 * itself. With programmatic dependent launch the ring is filled with weights before the wait for
 * the preceding kernel, except for experts: a block learns its expert only after the wait. */
#include "cuda/coded.h"
#include "cuda/kernels/device/activation.cuh"
#include "cuda/kernels/device/codes.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, TILES = 2, MAX_NT = 4 };
// SMEM_ONE_BLOCK is the maximum on sm_80.
enum { SMEM_TWO_BLOCKS = 108 * 1024, SMEM_ONE_BLOCK = 163 * 1024 };

struct coded_params {
    struct coded_matrix m;
    struct coded_args a;
};

/* WORDS: words of a lane that share a scale; 0: a row has one scale. NT: groups of eight rows. */
template <enum coded_code CODE, int WORDS, int NT> struct stage_of {
    static constexpr int GROUPS = WORDS == 0 ? 0 : CODED_WORDS / WORDS;
    static constexpr int PIECES = code_of<CODE>::BITS == 8 ? 2 : 4; // 16-byte pieces of x per lane
    static constexpr int X = TILES * CODED_TILE_BYTES, SCALES = X + NT * PIECES * 512;
    static constexpr int SCALE_BYTES = CODED_ROWS * GROUPS * code_of<CODE>::SCALE_BYTES; // at most
    static constexpr int ZEROS = SCALES + TILES * SCALE_BYTES;
    static constexpr int BYTES =
        ZEROS + (code_of<CODE>::HAS_ZEROS ? TILES * CODED_ROWS * GROUPS : 0);
    static constexpr int ROOM = (NT == 1 ? SMEM_TWO_BLOCKS : SMEM_ONE_BLOCK) / (WARPS * BYTES);
    static constexpr int N = ROOM > 6 ? 6 : ROOM;
    static constexpr int SMEM = WARPS * BYTES * N;
    static_assert(N >= 2 && BYTES % 16 == 0 && SMEM >= WARPS * TILES * NT * 512, "");
};

__device__ __forceinline__ void cp_async_4(void *shared, const void *from)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}

/* The block's rows of x, [first, last), and its tile rows; the second one may not exist. */
struct coded_work {
    int32_t expert, first, last;
    int32_t tile[TILES];
};

__device__ __forceinline__ struct coded_work work_of(const struct coded_params &p, int nt)
{
    struct coded_work w;
    const int b = blockIdx.x;
    w.tile[0] = p.a.gated ? b : b * 2;
    w.tile[1] = p.a.gated ? b + p.m.n_tiles / 2 : b * 2 + 1;
    w.expert = 0;
    w.first = blockIdx.y * nt * 8;
    w.last = min(w.first + nt * 8, p.a.n_rows);
    if (p.a.n_list) { // all threads have read the previous one
        const int i = blockIdx.y;
        w.expert = p.a.tile_expert[i];
        w.first = p.a.tile_first[i];
        w.last = min(w.first + p.a.tile_rows, p.a.first[w.expert + 1]);
    }
    return w;
}

template <typename T, enum coded_code CODE, int WORDS, int NT> struct coded_ring {
    using S = stage_of<CODE, WORDS, NT>;
    const struct coded_params &p;
    const struct coded_work &w;
    char *ring;     // this warp's
    const T *x[NT]; // this lane's rows and position in them; NULL: no row
    const uint8_t *tiles[TILES], *scales[TILES], *zeros[TILES]; // the same for the weight
    int chunk_step, second; // bytes from a lane's piece to the one of the next chunk, and to
                            // the one of output g + 8
    int place;              // where a lane's pieces go in shared memory
    int x_place;            // the same for x
    int lane;

    __device__ __forceinline__ coded_ring(const struct coded_params &p, const struct coded_work &w,
                                          char *ring)
        : p(p), w(w), ring(ring), lane(threadIdx.x & 31)
    {
        constexpr bool IS_8 = code_of<CODE>::BITS == 8;
        const int64_t row_bytes = (int64_t)p.m.n_chunks * 64;
        const int64_t mine = IS_8 ? (lane >> 2) * row_bytes + (lane & 3) * 16 : lane * 16;
        place = IS_8 ? (lane * 16) ^ (lane & 8) << 2 : lane * 16;
        x_place = IS_8 ? lane * 16 : (lane * 16) ^ (lane >> 3 & 3) << 4;
        chunk_step = IS_8 ? 64 : CODED_TILE_BYTES;
        second = IS_8 ? (int)row_bytes * 8 : 512;
#pragma unroll
        for (int f = 0; f < TILES; f++) { // a tile row that does not exist is computed but not
                                          // stored
            const int tile = w.tile[f] < p.m.n_tiles ? w.tile[f] : 0;
            const int64_t row = (int64_t)w.expert * p.m.n_tiles + tile;
            const int64_t record = row * p.m.n_records;
            tiles[f] = p.m.tiles + row * p.m.n_chunks * CODED_TILE_BYTES + mine;
            scales[f] = p.m.scales + record * S::SCALE_BYTES + lane * 4;
            zeros[f] = p.m.zeros + record * (CODED_ROWS * S::GROUPS) + lane * 4;
        }
    }

    __device__ __forceinline__ void find_rows()
    {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const int place = w.first + n * 8 + (lane >> 2);
            int64_t row = place;
            if (place < w.last && p.a.x_is_sorted) {
                row = p.a.sorted[place] / p.a.k;
            }
            x[n] = place < w.last ? (const T *)p.a.x + row * p.a.x_stride + (lane & 3) * 8
                                  : (const T *)0;
        }
    }

    __device__ __forceinline__ void fetch_w(int slot, int chunk)
    {
        if (chunk >= p.m.n_chunks) {
            return;
        }
        char *to = ring + slot * S::BYTES;
        const int record = chunk >> p.m.record_shift;
#pragma unroll
        for (int f = 0; f < TILES; f++) {
            const uint8_t *from = tiles[f] + (size_t)(uint32_t)chunk * chunk_step;
            cp_async_16(to + f * CODED_TILE_BYTES + place, from, true);
            cp_async_16(to + f * CODED_TILE_BYTES + 512 + place, from + second, true);
            if constexpr (WORDS > 0) {
                char *scale = to + S::SCALES + f * S::SCALE_BYTES + lane * 4;
#pragma unroll
                for (int i = 0; i < S::SCALE_BYTES; i += 128) {
                    if (i + lane * 4 < S::SCALE_BYTES) {
                        cp_async_4(scale + i, scales[f] + record * S::SCALE_BYTES + i);
                    }
                }
                constexpr int N_ZEROS = CODED_ROWS * S::GROUPS;
                if (code_of<CODE>::HAS_ZEROS && p.m.zeros && lane * 4 < N_ZEROS) {
                    cp_async_4(to + S::ZEROS + f * N_ZEROS + lane * 4, zeros[f] + record * N_ZEROS);
                }
            }
        }
    }

    __device__ __forceinline__ void fetch_x(int slot, int chunk)
    {
        if (chunk >= p.m.n_chunks) {
            return;
        }
        constexpr int CHUNK = code_of<CODE>::CHUNK;
        char *to = ring + slot * S::BYTES + S::X + x_place;
        const int k = chunk * CHUNK, left = p.m.n_in - k - (lane & 3) * 8;
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < S::PIECES; i++) {
                const bool valid = x[n] && 32 * i < left;
                cp_async_16(to + (n * S::PIECES + i) * 512,
                            valid ? (const void *)(x[n] + k + 32 * i) : p.a.x, valid);
            }
        }
    }

    /* A lane's four words of one output. With 8-bit codes, 8 bytes of them are in each half of the
     * chunk; the halves are swapped for every second pair of outputs, so that a half warp has
     * no bank conflicts. */
    __device__ __forceinline__ void read_words(const char *from, uint32_t (&words)[4]) const
    {
        if constexpr (code_of<CODE>::BITS == 8) {
            const int at = (lane >> 2) * 64 + (lane & 3) * 8, other = (lane & 8) << 2;
            const uint2 low = *(const uint2 *)(from + (at ^ other));
            const uint2 high = *(const uint2 *)(from + ((at + 32) ^ other));
            words[0] = low.x, words[1] = low.y, words[2] = high.x, words[3] = high.y;
        } else {
            const uint4 v = *(const uint4 *)(from + lane * 16);
            words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
        }
    }

    /* A lane's pairs of x for one mma. For 4 bits, a row has 64 bytes in four pieces of 16. Each
     * piece has some of the lane's pairs, and the order of the pieces differs by row to avoid bank
     * conflicts. */
    template <enum coded_code OF>
    __device__ __forceinline__ uint2 read_x(const char *piece, int half) const
    {
        if constexpr (code_of<OF>::BITS == 8) { // a pair of codes is every second byte
            const uint2 b = *(const uint2 *)(piece + lane * 16 + half * 8);
            return make_uint2(__byte_perm(b.x, b.y, 0x5410), __byte_perm(b.x, b.y, 0x7632));
        } else {
            const char *row = piece + (lane >> 2) * 64 + (lane & 3) * 4;
            const int moved = (lane >> 3 & 3) << 4, at = half * 32;
            return make_uint2(*(const uint32_t *)(row + (at ^ moved)),
                              *(const uint32_t *)(row + ((at + 16) ^ moved)));
        }
    }

    /* acc += the sums of a group, scaled. */
    __device__ __forceinline__ void add_group(const char *from, int group,
                                              const float (&sum)[TILES][NT][4],
                                              float (&acc)[TILES][NT][4]) const
    {
        const int g = lane >> 2;
#pragma unroll
        for (int f = 0; f < TILES; f++) {
            const char *scales = from + S::SCALES + f * S::SCALE_BYTES;
            const float low = scale_at<CODE>(scales, g * S::GROUPS + group);
            const float high = scale_at<CODE>(scales, (g + 8) * S::GROUPS + group);
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    acc[f][n][e] = fmaf(sum[f][n][e], e < 2 ? low : high, acc[f][n][e]);
                }
            }
        }
    }

    __device__ __forceinline__ void compute(int slot, float (&acc)[TILES][NT][4]) const
    {
        const char *from = ring + slot * S::BYTES;
        const int g = lane >> 2;
        uint32_t words[TILES][2][4];
#pragma unroll
        for (int f = 0; f < TILES; f++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                read_words(from + f * CODED_TILE_BYTES + h * 512, words[f][h]);
            }
        }
        float sum[TILES][NT][4];
        uint32_t zero[TILES][2] = {};
#pragma unroll
        for (int j = 0; j < CODED_WORDS; j++) {
            const bool begins = WORDS > 0 && j % (WORDS > 0 ? WORDS : 1) == 0;
            const bool ends = WORDS > 0 && (j + 1) % (WORDS > 0 ? WORDS : 1) == 0;
            const int group = WORDS > 0 ? j / (WORDS > 0 ? WORDS : 1) : 0;
            if (begins) {
#pragma unroll
                for (int f = 0; f < TILES; f++) {
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        sum[f][n][0] = sum[f][n][1] = sum[f][n][2] = sum[f][n][3] = 0.0f;
                    }
#pragma unroll
                    for (int h = 0; h < 2 && code_of<CODE>::HAS_ZEROS; h++) {
                        const uint8_t *zeros =
                            (const uint8_t *)from + S::ZEROS + f * CODED_ROWS * S::GROUPS;
                        zero[f][h] = zero_pair<T>(p.m.zeros ? zeros[(g + 8 * h) * S::GROUPS + group]
                                                            : p.m.zero);
                    }
                }
            }
            constexpr int STEPS = code_of<CODE>::BITS == 8 ? 1 : 2;
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                uint32_t a[TILES][4];
#pragma unroll
                for (int f = 0; f < TILES; f++) {
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        a[f][h] = pair_of<T, CODE>(words[f][h][j], 2 * step, zero[f][h]);
                        a[f][h + 2] = pair_of<T, CODE>(words[f][h][j], 2 * step + 1, zero[f][h]);
                    }
                }
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const int piece = code_of<CODE>::BITS == 8 ? j / 2 : j;
                    const int half = code_of<CODE>::BITS == 8 ? j % 2 : step;
                    const uint2 b = read_x<CODE>(from + S::X + (n * S::PIECES + piece) * 512, half);
#pragma unroll
                    for (int f = 0; f < TILES; f++) {
                        mma_16x8x16(WORDS > 0 ? sum[f][n] : acc[f][n], a[f], b.x, b.y, T());
                    }
                }
            }
            if (ends) {
                add_group(from, group, sum, acc);
            }
        }
    }
};

/* ---- the end -------------------------------------------------------------------------------- */

/* Output `feature` of tile row f for row r of the block: adds up the warps' sums in order and
 * adds the bias; scaled here if the whole row shares one scale. */
template <int WORDS, int NT>
__device__ __forceinline__ float finish(const struct coded_params &p, const struct coded_work &w,
                                        const float *sums, int f, int feature, int r)
{
    const int lane = feature % 8 * 4 + r % 8 / 2, e = feature / 8 * 2 + r % 2;
    const float *from = sums + ((f * NT + r / 8) * 4 + e) * 32 + lane;
    const int tile = f == 0 ? w.tile[0] : w.tile[1]; // a run-time index would move the array to
                                                     // local memory
    float v = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
        v += from[warp * TILES * NT * 128];
    }
    if (WORDS == 0) {
        const int64_t record = (int64_t)w.expert * p.m.n_tiles + tile;
        v *= ((const float *)p.m.scales)[record * CODED_ROWS + feature];
    }
    if (p.a.bias) {
        v += p.a.bias[(int64_t)w.expert * p.m.n_out + tile * CODED_ROWS + feature];
    }
    return v;
}

template <typename T, int WORDS, int NT>
__device__ __forceinline__ void store(const struct coded_params &p, const struct coded_work &w,
                                      const float *sums)
{
    const int width = p.a.gated ? CODED_ROWS : TILES * CODED_ROWS;
    const int n_out = p.a.gated ? p.m.n_out / 2 : p.m.n_out;
    for (int i = threadIdx.x; i < width * NT * 8; i += THREADS) {
        const int r = i / width, place = w.first + r, column = i % width;
        const int feature = column % CODED_ROWS, f = column / CODED_ROWS;
        const int out = (f == 0 ? w.tile[0] : w.tile[1]) * CODED_ROWS + feature;
        if (place >= w.last || out >= n_out) {
            continue;
        }
        float v = finish<WORDS, NT>(p, w, sums, f, feature, r);
        if (p.a.gated) {
            float up = finish<WORDS, NT>(p, w, sums, 1, feature, r);
            if (!p.a.n_list) { // rounded before the activation, as in two ops
                v = to_float(from_float<T>(v));
                up = to_float(from_float<T>(up));
            } else if (p.a.weights) {
                v *= p.a.weights[p.a.sorted[place]];
                up *= p.a.weights[p.a.sorted[place]];
            }
            v = act_gated_of(p.a.activation, v, up, {p.a.limit, p.a.alpha, 0.0f, 0.0f, 0.0f});
        }
        const int64_t row = p.a.y_is_sorted ? p.a.sorted[place] : place;
        const int64_t at = row * p.a.y_stride + out;
        if (p.a.y_dtype == DT_F32) {
            float *to = (float *)p.a.y + at;
            *to = p.a.accumulate ? *to + v : v;
        } else {
            T *to = (T *)p.a.y + at;
            *to = from_float<T>(p.a.accumulate ? to_float(*to) + v : v);
        }
    }
}

template <typename T, enum coded_code CODE, int WORDS, int NT>
__global__ void __launch_bounds__(THREADS, NT == 1 ? 2 : 1)
    gemm_coded_kernel(const __grid_constant__ struct coded_params p)
{
    using S = stage_of<CODE, WORDS, NT>;
    extern __shared__ __align__(16) char smem[];
    const int warp = threadIdx.x >> 5;
    const bool is_listed = p.a.n_list;
    if (is_listed) {
        pdl_wait();
        pdl_trigger();
        if ((int)blockIdx.y >= *p.a.n_list) {
            return;
        }
    }
    const struct coded_work w = work_of(p, NT);
    coded_ring<T, CODE, WORDS, NT> ring(p, w, smem + warp * S::BYTES * S::N);
#pragma unroll
    for (int s = 0; s < S::N - 1; s++) {
        ring.fetch_w(s, warp + s * WARPS);
    }
    if (!is_listed) {
        pdl_wait();
        pdl_trigger();
    }
    ring.find_rows();
#pragma unroll
    for (int s = 0; s < S::N - 1; s++) {
        ring.fetch_x(s, warp + s * WARPS);
        cp_async_commit();
    }
    float acc[TILES][NT][4] = {};
    int slot = 0;
    for (int chunk = warp; chunk < p.m.n_chunks; chunk += WARPS) {
        cp_async_wait<S::N - 2>();
        __syncwarp(); // makes the scales that other lanes copied visible; all lanes have now
                      // read the slot that is refilled next
        const int next = slot == 0 ? S::N - 1 : slot - 1, ahead = chunk + (S::N - 1) * WARPS;
        ring.fetch_w(next, ahead);
        ring.fetch_x(next, ahead);
        cp_async_commit();
        ring.compute(slot, acc);
        slot = slot + 1 == S::N ? 0 : slot + 1;
    }
    cp_async_wait<0>();
    __syncthreads();
    float *sums = (float *)smem;
#pragma unroll
    for (int i = 0; i < TILES * NT * 4; i++) {
        sums[(warp * TILES * NT * 4 + i) * 32 + (threadIdx.x & 31)] =
            acc[i / (NT * 4)][i / 4 % NT][i % 4];
    }
    __syncthreads();
    store<T, WORDS, NT>(p, w, sums);
}

/* ---- dequantising for products of many rows -------------------------------------------------- */

/* Exchanges pairs among four lanes: each gets pair t of every lane, which are 8 consecutive
 * inputs. */
__device__ __forceinline__ void exchange_pairs(uint32_t (&pairs)[4], int t)
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) {
                continue;
            }
            const bool is_upper = t & bit;
            const uint32_t mine = is_upper ? pairs[i] : pairs[i | bit];
            const uint32_t other = __shfl_xor_sync(0xffffffffu, mine, bit);
            if (is_upper) {
                pairs[i] = other;
            } else {
                pairs[i | bit] = other;
            }
        }
    }
}

/* One warp per tile; each value is rounded as an upload would round it. */
template <typename T, enum coded_code CODE>
__global__ void coded_expand_kernel(const __grid_constant__ struct coded_matrix m,
                                    int32_t first_row, int32_t n_rows, T *to)
{
    pdl_wait();
    pdl_trigger();
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int chunk = blockIdx.x * WARPS + (threadIdx.x >> 5);
    const int64_t tile = first_row / CODED_ROWS + blockIdx.y;
    if (chunk >= m.n_chunks) {
        return;
    }
    constexpr bool IS_8 = code_of<CODE>::BITS == 8;
    const int64_t row_bytes = (int64_t)m.n_chunks * 64;
    const uint8_t *from = m.tiles + tile * m.n_chunks * CODED_TILE_BYTES;
    from += IS_8 ? g * row_bytes + chunk * 64 + t * 16 : chunk * CODED_TILE_BYTES + lane * 16;
    const int64_t record = tile * m.n_records + (chunk >> m.record_shift);
    const int groups = m.record_groups;
    const uint8_t *scales = m.scales + record * m.record_bytes;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = g + 8 * h;
        const int64_t row = (int64_t)blockIdx.y * CODED_ROWS + r;
        const uint4 words = *(const uint4 *)(from + h * (IS_8 ? row_bytes * 8 : 512));
        const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int piece = 0; piece < (IS_8 ? 2 : 4); piece++) {
            const int k = IS_8 ? chunk * 64 + 16 * t + 8 * piece : chunk * 128 + 32 * piece + 8 * t;
            const int group = IS_8 ? 0 : piece * groups / 4;
            const float scale = scale_at<CODE>(scales, r * groups + group);
            uint32_t zero = 0;
            if (code_of<CODE>::HAS_ZEROS) {
                zero = zero_pair<T>(m.zeros ? m.zeros[(record * CODED_ROWS + r) * groups + group]
                                            : m.zero);
            }
            uint32_t pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                pairs[i] = IS_8 ? pair_of<T, CODE>(word[piece * 2 + i / 2], i % 2, 0)
                                : pair_of<T, CODE>(word[piece], i, zero);
            }
            if (!IS_8) {
                exchange_pairs(pairs, t);
            }
            vec<T> v;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int first = IS_8 ? i / 2 * 4 + i % 2 : 2 * i, next = IS_8 ? 2 : 1;
                T two[2];
                memcpy(two, &pairs[i], sizeof two);
                v.v[first] = from_float<T>(to_float(two[0]) * scale);
                v.v[first + next] = from_float<T>(to_float(two[1]) * scale);
            }
            if (row < n_rows && k < m.n_in) {
                v.store(to + row * m.n_in + k);
            }
        }
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

extern "C" bool gemm_coded_takes(const struct coded_matrix *m, const struct coded_args *a)
{
    return (a->x_dtype == DT_BF16 || a->x_dtype == DT_F16) &&
           (a->y_dtype == a->x_dtype || a->y_dtype == DT_F32) && (uintptr_t)a->x % 16 == 0 &&
           a->x_stride % 8 == 0 && (!a->gated || m->n_out % (2 * CODED_ROWS) == 0);
}

template <typename T, enum coded_code CODE, int WORDS, int NT>
static cudaError_t launch_coded(cudaStream_t stream, const struct coded_params &p)
{
    using S = stage_of<CODE, WORDS, NT>;
    const auto kernel = gemm_coded_kernel<T, CODE, WORDS, NT>;
    const cudaError_t e = // set at every launch, because each rank has its own device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SMEM);
    if (e != cudaSuccess) {
        return e;
    }
    const int blocks = p.a.gated ? p.m.n_tiles / 2 : (p.m.n_tiles + 1) / 2;
    const int slices = p.a.n_list ? p.a.n_places : (p.a.n_rows + NT * 8 - 1) / (NT * 8);
    return launch(kernel, dim3((unsigned)blocks, (unsigned)slices), dim3(THREADS), S::SMEM, stream,
                  p);
}

template <typename T, enum coded_code CODE, int WORDS>
static cudaError_t launch_by_rows(cudaStream_t stream, const struct coded_params &p)
{
    const int rows = p.a.n_list ? p.a.tile_rows : p.a.n_rows;
    if (rows <= 8) {
        return launch_coded<T, CODE, WORDS, 1>(stream, p);
    }
    if constexpr (CODE == CODED_U4 && WORDS < CODED_WORDS) { // at most 16 rows: see coded_most_rows
        return launch_coded<T, CODE, WORDS, 2>(stream, p);
    } else {
        return rows <= 16 ? launch_coded<T, CODE, WORDS, 2>(stream, p)
                          : launch_coded<T, CODE, WORDS, MAX_NT>(stream, p);
    }
}

/* For integer codes, whose groups may be smaller than a chunk. */
template <typename T, enum coded_code CODE>
static cudaError_t launch_by_words(cudaStream_t stream, const struct coded_params &p)
{
    switch (CODED_WORDS / p.m.record_groups) {
    case 1: return launch_by_rows<T, CODE, 1>(stream, p);
    case 2: return launch_by_rows<T, CODE, 2>(stream, p);
    default: return launch_by_rows<T, CODE, 4>(stream, p);
    }
}

template <typename T>
static cudaError_t launch_by_code(cudaStream_t stream, const struct coded_params &p)
{
    switch (p.m.code) {
    case CODED_E4M3:
        return p.m.n_records == 1 ? launch_by_rows<T, CODED_E4M3, 0>(stream, p)
                                  : launch_by_rows<T, CODED_E4M3, 4>(stream, p);
    case CODED_E2M1: return launch_by_rows<T, CODED_E2M1, 1>(stream, p);
    case CODED_U4: return launch_by_words<T, CODED_U4>(stream, p);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t gemm_coded(cudaStream_t stream, const struct coded_matrix *m,
                                  const struct coded_args *a)
{
    const struct coded_params p = {*m, *a};
    return a->x_dtype == DT_BF16 ? launch_by_code<bf16_t>(stream, p)
                                 : launch_by_code<f16_t>(stream, p);
}

template <typename T>
static cudaError_t expand(cudaStream_t stream, const struct coded_matrix *m, int32_t first_row,
                          int32_t n_rows, T *to)
{
    const dim3 grid((unsigned)((m->n_chunks + WARPS - 1) / WARPS),
                    (unsigned)((n_rows + CODED_ROWS - 1) / CODED_ROWS));
    switch (m->code) {
    case CODED_E4M3:
        return launch(coded_expand_kernel<T, CODED_E4M3>, grid, dim3(THREADS), 0, stream, *m,
                      first_row, n_rows, to);
    case CODED_E2M1:
        return launch(coded_expand_kernel<T, CODED_E2M1>, grid, dim3(THREADS), 0, stream, *m,
                      first_row, n_rows, to);
    case CODED_U4:
        return launch(coded_expand_kernel<T, CODED_U4>, grid, dim3(THREADS), 0, stream, *m,
                      first_row, n_rows, to);
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t coded_expand(cudaStream_t stream, const struct coded_matrix *m,
                                    int32_t first_row, int32_t n_rows, void *to, enum dtype dtype)
{
    return dtype == DT_BF16 ? expand(stream, m, first_row, n_rows, (bf16_t *)to)
                            : expand(stream, m, first_row, n_rows, (f16_t *)to);
}
