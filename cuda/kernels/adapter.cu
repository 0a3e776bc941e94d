// SPDX-License-Identifier: Apache-2.0
/* Low-rank adapters: y[row] += up_a (down_a x[row]), where a is the adapter of the row's sequence.
 * Rows without an adapter are left as they are.
 *
 * The first kernel computes down_a x. K is cut into parts (adapter_parts), and a part into four
 * runs; a run is summed in one accumulator of mma.sync, the runs of a part are added in order, and
 * so are the parts. The second kernel rounds the result once to the dtype of x, as PEFT and vLLM
 * do, since y itself is rounded to it, multiplies it with up_a, and adds it to y in fp32. Nothing
 * of this depends on the number of rows or on the other rows.
 *
 * A tile of rows computes the products with each of its adapters for all of its rows, and stores
 * only those of the adapter's own rows; nothing is multiplied by zero to mask it. Several blocks
 * share the adapters of a tile, so both a prompt with one adapter and 64 sequences with an adapter
 * each keep the device busy. Up to FEW rows, tiles have 16 rows and the four warps of a block have
 * a run each; the second kernel adds the parts itself. With more rows a tile has 64, so that the
 * matrices are read less often, a warp has all runs of a part, and a third kernel adds the parts.
 *
 * Operands go from memory to registers, 16 bytes to a lane: a lane has 8 consecutive inputs of a
 * row and of a matrix, which are its operands of two steps of mma.sync. (Which of the 16 inputs of
 * a step is which does not matter, as long as both operands agree.)
 *
 * Bound by latency for one row, by reading the matrices for many adapters, and by reading and
 * writing y for prompts. Matrices, and y in the second kernel, are fetched before the wait. */
#include "cuda/adapter.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/reduce.cuh"

/* RUNS: of a part, and warps of a block. CHUNK: inputs of two steps of mma.sync. RANKS and
 * FEATURES: results of a warp in the first and the second kernel. SHARES: the most blocks that
 * divide the adapters of a tile. */
enum { RUNS = 4, THREADS = RUNS * 32, CHUNK = 32, RANKS = 16, FEATURES = 32, TILE = 16 };
enum { FEW = 256, MANY_TILES = 4, SHARES = 8 };

/* The adapter of a row; 0: it has none. The pass's arrays are complete before the wait. */
__device__ __forceinline__ int adapter_of(const struct adapter_args &a, int row)
{
    if (row >= a.n_rows) {
        return 0;
    }
    const int seq = a.row_seq[a.rows ? a.rows[row] : row];
    return seq >= 0 ? a.seqs[seq].adapter : 0;
}

/* The rows of a tile (MT times 16) by adapter. All lanes of a warp call the functions. */
template <int MT> struct tile_adapters {
    int adapter[(MT + 1) / 2]; // of the rows `lane` and `lane` + 32
    uint64_t left;             // rows that have not been taken

    __device__ __forceinline__ uint64_t rows_of(int which) const
    {
        uint64_t rows = __ballot_sync(0xffffffffu, adapter[0] == which);
        if (MT > 2) {
            rows |= (uint64_t)__ballot_sync(0xffffffffu, adapter[MT / 4] == which) << 32;
        }
        return rows;
    }

    /* Takes the next adapter: returns it and its rows. 0: none is left. */
    __device__ __forceinline__ int next(uint64_t &rows)
    {
        if (left == 0) {
            return 0;
        }
        const int first = __ffsll((long long)left) - 1;
        const int mine = first < 32 ? adapter[0] : adapter[MT / 4];
        const int which = __shfl_sync(0xffffffffu, mine, first & 31);
        rows = rows_of(which);
        left &= ~rows;
        return which;
    }

    /* Leaves the rows of every n-th adapter, beginning with number `share`. */
    __device__ __forceinline__ void load(const struct adapter_args &a, int first_row, int share,
                                         int n)
    {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int i = 0; i < (MT + 1) / 2; i++) {
            const int row = i * 32 + lane;
            adapter[i] = row < MT * TILE ? adapter_of(a, first_row + row) : 0;
        }
        left = ~rows_of(0) & (MT > 2 ? ~0ull : 0xffffffffull);
        uint64_t kept = 0, rows;
        for (int i = 0; next(rows) > 0; i++) {
            kept |= i % n == share ? rows : 0;
        }
        left = kept;
    }
};

__device__ __forceinline__ uint32_t word(const uint4 &v, int i)
{
    const uint32_t lower = i == 0 ? v.x : v.y, upper = i == 2 ? v.z : v.w;
    return i < 2 ? lower : upper;
}

/* ---- down, 16 bits --------------------------------------------------------------------------- */

/* A warp's products of MT times 16 rows with 16 ranks; N: chunks that are loaded together. */
template <typename T, int MT, int N> struct down_warp {
    const struct adapter_args &a;
    int first_row, first_rank;
    uint4 w[N][2], x[N][MT][2];
    float acc[MT][2][4];

    __device__ __forceinline__ void load_w(int adapter, int k, int end)
    {
        const int lane = threadIdx.x & 31;
        const T *from =
            (const T *)a.down + ((int64_t)(adapter - 1) * a.rank + first_rank + lane / 4) * a.n_in;
#pragma unroll
        for (int c = 0; c < N; c++) {
            const int at = k + c * CHUNK + lane % 4 * 8;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const T *row = from + (int64_t)j * 8 * a.n_in;
                w[c][j] = at < end ? *(const uint4 *)(row + at) : make_uint4(0, 0, 0, 0);
            }
        }
    }

    __device__ __forceinline__ void load_x(uint64_t rows, int k, int end)
    {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int c = 0; c < N; c++) {
            const int at = k + c * CHUNK + lane % 4 * 8;
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                const int row = i * 8 + lane / 4;
                const T *from = (const T *)a.x + (first_row + row) * a.x_stride;
                x[c][i / 2][i % 2] = at < end && rows >> row & 1 ? *(const uint4 *)(from + at)
                                                                 : make_uint4(0, 0, 0, 0);
            }
        }
    }

    __device__ __forceinline__ void multiply()
    {
#pragma unroll
        for (int c = 0; c < N; c++) {
#pragma unroll
            for (int s = 0; s < 4; s += 2) {
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const uint32_t rows[4] = {word(x[c][m][0], s), word(x[c][m][1], s),
                                              word(x[c][m][0], s + 1), word(x[c][m][1], s + 1)};
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        mma_16x8x16(acc[m][j], rows, word(w[c][j], s), word(w[c][j], s + 1), T());
                    }
                }
            }
        }
    }

    /* Sums a run of inputs; the first chunks of the matrix have been loaded. */
    __device__ __forceinline__ void sum(int adapter, uint64_t rows, int begin, int end)
    {
#pragma unroll
        for (int i = 0; i < MT * 8; i++) {
            acc[i / 8][i / 4 % 2][i % 4] = 0.0f;
        }
        for (int k = begin; k < end; k += N * CHUNK) {
            if (k > begin) {
                load_w(adapter, k, end);
            }
            load_x(rows, k, end);
            multiply();
        }
    }
};

/* The inputs of a run, which are whole chunks; the last runs of a row may have fewer. */
__device__ __forceinline__ int run_inputs(const struct adapter_args &a, int n_parts)
{
    const int n_runs = n_parts * RUNS;
    return ((a.n_in + n_runs - 1) / n_runs + CHUNK - 1) / CHUNK * CHUNK;
}

/* Where a part's sums of a row are. */
__device__ __forceinline__ float *sums_at(const struct adapter_args &a, int n_parts, int row,
                                          int part)
{
    return a.sums + ((int64_t)row * n_parts + part) * a.rank;
}

/* A block has a part, 16 ranks, 16 rows and a share of their adapters; a warp has a run. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    down_few_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    enum { LD = RANKS + 4 };
    __shared__ float runs[2][RUNS][TILE][LD];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int part = blockIdx.x % n_parts, first_row = blockIdx.y * TILE;
    const int length = run_inputs(a, n_parts), begin = (part * RUNS + warp) * length;
    const int end = min(begin + length, a.n_in);
    struct tile_adapters<1> tile;
    struct down_warp<T, 1, 4> d = {
        a, first_row, (int)blockIdx.x / n_parts *RANKS
    };
    uint64_t rows = 0, next_rows = 0;
    tile.load(a, first_row, blockIdx.z, gridDim.z);
    int adapter = tile.next(rows);
    if (adapter > 0) {
        d.load_w(adapter, begin, end);
    }
    pdl_wait();
    pdl_trigger();
    for (int turn = 0; adapter > 0; turn ^= 1) {
        d.sum(adapter, rows, begin, end);
        float *mine = &runs[turn][warp][lane / 4][lane % 4 * 2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            *(float2 *)(mine + i / 2 * 8 * LD + i % 2 * 8) =
                make_float2(d.acc[0][i % 2][i / 2 * 2], d.acc[0][i % 2][i / 2 * 2 + 1]);
        }
        const int next = tile.next(next_rows);
        if (next > 0) {
            d.load_w(next, begin, end);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < TILE * RANKS; i += THREADS) {
            const int row = i / RANKS, rank = i % RANKS;
            if (rows >> row & 1) {
                float sum = runs[turn][0][row][rank];
#pragma unroll
                for (int r = 1; r < RUNS; r++) {
                    sum += runs[turn][r][row][rank];
                }
                sums_at(a, n_parts, first_row + row, part)[d.first_rank + rank] = sum;
            }
        }
        adapter = next;
        rows = next_rows;
    }
}

/* A warp has a part with all of its runs, 16 ranks, MT times 16 rows and a share of their adapters;
 * the warps of a block have the same rows. */
template <typename T, int MT>
__global__ void __launch_bounds__(THREADS)
    down_many_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int part = blockIdx.x % n_parts, first_row = blockIdx.y * MT * TILE;
    const int first_rank = ((int)blockIdx.x / n_parts * (blockDim.x >> 5) + warp) * RANKS;
    const int length = run_inputs(a, n_parts);
    struct tile_adapters<MT> tile;
    struct down_warp<T, MT, 2> d = {
        a, first_row, first_rank
    };
    uint64_t rows;
    tile.load(a, first_row, blockIdx.z, gridDim.z);
    pdl_wait();
    pdl_trigger();
    if (first_rank >= a.rank) {
        return;
    }
    for (int adapter = tile.next(rows); adapter > 0; adapter = tile.next(rows)) {
        float sum[MT * 8];
        for (int r = 0; r < RUNS; r++) {
            const int begin = (part * RUNS + r) * length, end = min(begin + length, a.n_in);
            d.load_w(adapter, begin, end);
            d.sum(adapter, rows, begin, end);
#pragma unroll
            for (int i = 0; i < MT * 8; i++) {
                const float run = d.acc[i / 8][i / 4 % 2][i % 4];
                sum[i] = r == 0 ? run : sum[i] + run;
            }
        }
#pragma unroll
        for (int i = 0; i < MT * 8; i += 2) {
            const int row = i / 8 * TILE + i % 4 / 2 * 8 + lane / 4;
            if (rows >> row & 1) {
                *(float2 *)(sums_at(a, n_parts, first_row + row, part) + first_rank +
                            i / 4 % 2 * 8 + lane % 4 * 2) = make_float2(sum[i], sum[i + 1]);
            }
        }
    }
}

/* ---- the parts ------------------------------------------------------------------------------- */

/* The sum of a row's first n parts, in order, for four ranks. */
__device__ __forceinline__ float4 add_parts(const float *first, int rank, int n)
{
    float4 sum = *(const float4 *)first;
#pragma unroll 8
    for (int p = 1; p < n; p++) {
        const float4 v = *(const float4 *)(first + p * rank);
        sum.x += v.x;
        sum.y += v.y;
        sum.z += v.z;
        sum.w += v.w;
    }
    return sum;
}

/* Stores the sum of a row's parts as its first part. A thread has four ranks. */
__global__ void __launch_bounds__(THREADS)
    join_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    const int row = (int)(i / a.rank);
    const bool has = adapter_of(a, row) > 0;
    pdl_wait();
    pdl_trigger();
    if (has) {
        float *first = sums_at(a, n_parts, row, 0) + i % a.rank;
        *(float4 *)first = add_parts(first, a.rank, n_parts);
    }
}

/* ---- up, 16 bits ----------------------------------------------------------------------------- */

/* The distance between rows of sums in shared memory: a multiple of 32 bytes, by an odd number, so
 * that eight rows are in different banks. */
__host__ __device__ __forceinline__ int sums_stride(int rank)
{
    return rank / TILE % 2 == 0 ? rank + TILE : rank;
}

/* A thread's piece of a row of y. */
template <typename Y> struct alignas(16) y_piece {
    Y v[8];

    __device__ __forceinline__ void load(const Y *p)
    {
#pragma unroll
        for (int i = 0; i < (int)sizeof(Y) / 2; i++) {
            ((uint4 *)v)[i] = ((const uint4 *)p)[i];
        }
    }
    __device__ __forceinline__ void store(Y *p) const
    {
#pragma unroll
        for (int i = 0; i < (int)sizeof(Y) / 2; i++) {
            ((uint4 *)p)[i] = ((const uint4 *)v)[i];
        }
    }
};

/* A warp's products of MT times 16 rows with 32 features; N: steps of 16 ranks that are loaded
 * together. Columns of mma.sync are features in such an order that a lane gets 8 consecutive ones.
 */
template <typename T, typename Y, int MT, int N> struct up_warp {
    const struct adapter_args &a;
    int first_row, feature; // feature: the first of the warp
    uint2 w[N][4];
    struct y_piece<Y> y[MT][2];
    float acc[MT][4][4];

    __device__ __forceinline__ int own_feature() const
    {
        return feature + (threadIdx.x & 3) * 8;
    }

    __device__ __forceinline__ Y *y_at(int i) const
    {
        const int row = first_row + i * 8 + (threadIdx.x & 31) / 4;
        return (Y *)a.y + row * a.y_stride + own_feature();
    }

    __device__ __forceinline__ bool has(uint64_t rows, int i) const
    {
        return own_feature() < a.n_out && rows >> (i * 8 + (threadIdx.x & 31) / 4) & 1;
    }

    __device__ __forceinline__ void load_w(int adapter, int rank)
    {
        const int lane = threadIdx.x & 31, g = lane / 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = min(feature + g / 2 * 8 + j * 2 + g % 2, a.n_out - 1);
            const T *from =
                (const T *)a.up + ((int64_t)(adapter - 1) * a.n_out + row) * a.rank + lane % 4 * 4;
#pragma unroll
            for (int s = 0; s < N; s++) {
                const int at = rank + s * TILE;
                w[s][j] = at < a.rank ? *(const uint2 *)(from + at) : make_uint2(0, 0);
            }
        }
    }

    __device__ __forceinline__ void load_y(uint64_t rows)
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            if (has(rows, i)) {
                y[i / 2][i % 2].load(y_at(i));
            }
        }
    }

    __device__ __forceinline__ void multiply(const T *sums, int rank)
    {
        const int lane = threadIdx.x & 31, ld = sums_stride(a.rank);
        sums += lane / 4 * ld + rank + lane % 4 * 4;
#pragma unroll
        for (int s = 0; s < N; s++) {
            if (rank + s * TILE < a.rank) {
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const T *from = sums + m * TILE * ld + s * TILE;
                    const uint2 low = *(const uint2 *)from, high = *(const uint2 *)(from + 8 * ld);
                    const uint32_t rows[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        mma_16x8x16(acc[m][j], rows, w[s][j].x, w[s][j].y, T());
                    }
                }
            }
        }
    }

    /* The product for all ranks; the first steps of the matrix have been loaded. */
    __device__ __forceinline__ void sum(const T *sums, int adapter)
    {
#pragma unroll
        for (int i = 0; i < MT * 16; i++) {
            acc[i / 16][i / 4 % 4][i % 4] = 0.0f;
        }
        for (int rank = 0; rank < a.rank; rank += N * TILE) {
            if (rank > 0) {
                load_w(adapter, rank);
            }
            multiply(sums, rank);
        }
    }

    __device__ __forceinline__ void store(uint64_t rows)
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            if (has(rows, i)) {
                struct y_piece<Y> &piece = y[i / 2][i % 2];
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    piece.v[e] =
                        from_float<Y>(to_float(piece.v[e]) + acc[i / 2][e / 2][i % 2 * 2 + e % 2]);
                }
                piece.store(y_at(i));
            }
        }
    }
};

/* Puts the sums of the rows into shared memory, rounded. */
template <typename T, int MT>
__device__ __forceinline__ void gather_sums(const struct adapter_args &a, int n_parts, int n_added,
                                            int first_row, uint64_t rows, T *to)
{
    const int per_row = a.rank / 4;
    for (int i = threadIdx.x; i < MT * TILE * per_row; i += THREADS) {
        const int row = i / per_row, rank = i % per_row * 4;
        if (rows >> row & 1) {
            const float *first = sums_at(a, n_parts, first_row + row, 0) + rank;
            const float4 sum = add_parts(first, a.rank, n_added);
            T *at = to + row * sums_stride(a.rank) + rank;
            at[0] = from_float<T>(sum.x);
            at[1] = from_float<T>(sum.y);
            at[2] = from_float<T>(sum.z);
            at[3] = from_float<T>(sum.w);
        }
    }
}

/* A block has MT times 16 rows, a share of their adapters and n_bands bands of 32 features per
 * warp. n_added: the parts to add up, of n_parts that there is room for. */
template <typename T, typename Y, int MT>
__global__ void __launch_bounds__(THREADS)
    up_kernel(const __grid_constant__ struct adapter_args a, int n_parts, int n_added, int n_bands)
{
    extern __shared__ __align__(16) char smem[];
    enum { BAND = THREADS / 32 * FEATURES };
    T *sums = (T *)smem;
    const int first_row = blockIdx.y * MT * TILE;
    struct tile_adapters<MT> tile;
    struct up_warp<T, Y, MT, MT == 1 ? 4 : 2> u = {
        a, first_row, (int)blockIdx.x *n_bands *BAND + (int)(threadIdx.x >> 5) * FEATURES
    };
    uint64_t rows = 0;
    tile.load(a, first_row, blockIdx.z, gridDim.z);
    const uint64_t all = tile.left;
    int adapter = tile.next(rows);
    if (adapter > 0) {
        u.load_w(adapter, 0);
        u.load_y(rows); // complete, because the kernel before waits before it triggers
    }
    pdl_wait();
    pdl_trigger();
    if (all == 0) {
        return;
    }
    gather_sums<T, MT>(a, n_parts, n_added, first_row, all, sums);
    __syncthreads();
    for (int band = 0; band < n_bands;) {
        u.sum(sums, adapter);
        u.store(rows);
        adapter = tile.next(rows);
        if (adapter == 0) {
            band++;
            u.feature += BAND;
            tile.left = all;
            adapter = tile.next(rows);
        }
        if (band < n_bands) {
            u.load_w(adapter, 0);
            u.load_y(rows);
        }
    }
}

/* ---- other dtypes and shapes ----------------------------------------------------------------- */

/* A block has a row and a part, a warp every fourth rank. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    down_plain_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    const int row = blockIdx.x, part = blockIdx.y, lane = threadIdx.x & 31;
    const int adapter = adapter_of(a, row), length = run_inputs(a, n_parts) * RUNS;
    const int end = min((part + 1) * length, a.n_in);
    pdl_wait();
    pdl_trigger();
    if (adapter == 0) {
        return;
    }
    const T *x = (const T *)a.x + row * a.x_stride;
    const T *down = (const T *)a.down + (int64_t)(adapter - 1) * a.rank * a.n_in;
    for (int rank = threadIdx.x >> 5; rank < a.rank; rank += THREADS / 32) {
        float sum = 0.0f;
        for (int k = part * length + lane; k < end; k += 32) {
            sum = fmaf(to_float(down[(int64_t)rank * a.n_in + k]), to_float(x[k]), sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            sums_at(a, n_parts, row, part)[rank] = sum;
        }
    }
}

/* A block has a row and PLAIN_FEATURES features; four lanes have a feature. */
enum { PLAIN_FEATURES = 256 };

template <typename T, typename Y>
__global__ void __launch_bounds__(THREADS)
    up_plain_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    __shared__ float sums[ADAPTER_MAX_RANK];
    const int row = blockIdx.x, lane = threadIdx.x & 3;
    const int adapter = adapter_of(a, row), first = blockIdx.y * PLAIN_FEATURES;
    pdl_wait();
    pdl_trigger();
    if (adapter == 0) {
        return;
    }
    for (int rank = threadIdx.x; rank < a.rank; rank += THREADS) {
        float sum = 0.0f;
        for (int p = 0; p < n_parts; p++) {
            sum += sums_at(a, n_parts, row, p)[rank];
        }
        sums[rank] = to_float(from_float<T>(sum));
    }
    __syncthreads();
    for (int i = threadIdx.x >> 2; i < PLAIN_FEATURES; i += THREADS / 4) {
        const int feature = min(first + i, a.n_out - 1);
        const T *up = (const T *)a.up + ((int64_t)(adapter - 1) * a.n_out + feature) * a.rank;
        float sum = 0.0f;
        for (int rank = lane; rank < a.rank; rank += 4) {
            sum = fmaf(to_float(up[rank]), sums[rank], sum);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane == 0 && first + i < a.n_out) {
            Y *y = (Y *)a.y + row * a.y_stride + feature;
            *y = from_float<Y>(to_float(*y) + sum);
        }
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

static int ceil_div(int n, int by)
{
    return (n + by - 1) / by;
}

/* The blocks that divide the adapters of a tile. */
static int shares_of(const struct adapter_args *a, int n_tiles)
{
    return min(ceil_div(a->max_seqs, n_tiles), (int)SHARES);
}

template <typename T>
static cudaError_t down_tiles(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    const int ranks = a->rank / RANKS;
    if (a->n_rows <= FEW) {
        const int n_tiles = ceil_div(a->n_rows, TILE);
        return launch(down_few_kernel<T>, dim3(ranks * n_parts, n_tiles, shares_of(a, n_tiles)),
                      dim3(THREADS), 0, stream, *a, n_parts);
    }
    const int n_tiles = ceil_div(a->n_rows, MANY_TILES * TILE), warps = min(ranks, THREADS / 32);
    const dim3 grid(ceil_div(ranks, warps) * n_parts, n_tiles, shares_of(a, n_tiles));
    const cudaError_t e =
        launch(down_many_kernel<T, MANY_TILES>, grid, dim3(warps * 32), 0, stream, *a, n_parts);
    if (e != cudaSuccess || n_parts == 1) {
        return e;
    }
    const int64_t n = (int64_t)a->n_rows * a->rank / 4;
    return launch(join_kernel, dim3((unsigned)((n + THREADS - 1) / THREADS)), dim3(THREADS), 0,
                  stream, *a, n_parts);
}

template <typename T, typename Y, int MT>
static cudaError_t up_tiles(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    enum { BLOCKS_PER_SM = 3 };
    const int n_tiles = ceil_div(a->n_rows, MT * TILE), n_shares = shares_of(a, n_tiles);
    const int bands = ceil_div(a->n_out, THREADS / 32 * FEATURES);
    const int most_blocks = BLOCKS_PER_SM * n_multiprocessors();
    const int per_block = MT == 1 ? 1 : ceil_div(bands * n_tiles, most_blocks);
    const int smem = MT * TILE * sums_stride(a->rank) * (int)sizeof(T);
    const auto kernel = up_kernel<T, Y, MT>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return e != cudaSuccess
               ? e
               : launch(kernel, dim3(ceil_div(bands, per_block), n_tiles, n_shares), dim3(THREADS),
                        (size_t)smem, stream, *a, n_parts, MT == 1 ? n_parts : 1, per_block);
}

template <typename T, typename Y>
static cudaError_t adapter_16bit(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    const cudaError_t e = down_tiles<T>(stream, a, n_parts);
    if (e != cudaSuccess) {
        return e;
    }
    return a->n_rows <= FEW ? up_tiles<T, Y, 1>(stream, a, n_parts)
                            : up_tiles<T, Y, MANY_TILES>(stream, a, n_parts);
}

template <typename T, typename Y>
static cudaError_t adapter_plain(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    const cudaError_t e = launch(down_plain_kernel<T>, dim3(a->n_rows, n_parts), dim3(THREADS), 0,
                                 stream, *a, n_parts);
    return e != cudaSuccess
               ? e
               : launch(up_plain_kernel<T, Y>, dim3(a->n_rows, ceil_div(a->n_out, PLAIN_FEATURES)),
                        dim3(THREADS), 0, stream, *a, n_parts);
}

template <typename T, typename Y>
static cudaError_t adapter(cudaStream_t stream, const struct adapter_args *a)
{
    const int n_parts = adapter_parts(a->n_in, a->rank);
    if constexpr (sizeof(T) == 2) {
        if (vec_ok(a->x, a->x_stride, a->n_in, sizeof(T)) &&
            vec_ok(a->y, a->y_stride, a->n_out, sizeof(Y)) && a->n_out % 8 == 0) {
            return adapter_16bit<T, Y>(stream, a, n_parts);
        }
    }
    return adapter_plain<T, Y>(stream, a, n_parts);
}

extern "C" cudaError_t k_adapter(cudaStream_t stream, const struct adapter_args *a)
{
    if (a->y_dtype == DT_F32) {
        BY_DTYPE(a->dtype, T, return adapter<T, float>(stream, a));
    } else if (a->y_dtype == a->dtype) {
        BY_DTYPE(a->dtype, T, return adapter<T, T>(stream, a));
    }
    return cudaErrorInvalidValue;
}
