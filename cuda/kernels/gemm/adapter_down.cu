// SPDX-License-Identifier: Apache-2.0
/* down_a x of low-rank adapters (adapter.cuh), 16 bits.
 *
 * Few rows: a block has an item, a part and 16 ranks, and its warps have a run each. Operands go
 * from memory to registers, 16 bytes to a lane: a lane has 8 consecutive inputs of a row and of a
 * matrix, which are its operands of two steps of mma.sync. (Which of the 16 inputs of a step is
 * which does not matter, as long as both operands agree.) The matrix is fetched before the wait.
 *
 * Many rows: a block has an item, a part and up to 64 ranks, and a ring in shared memory, from
 * which lanes read the same operands; a warp has 16 rows. Another kernel adds the parts, because
 * adapter_up.cu reads them several times.
 *
 * Bound by latency for one row, by reading the matrices for many adapters, and by reading x for
 * prompts. */
#include "cuda/kernels/gemm/adapter.cuh"

enum { RANKS = 16 }; // of a block, with few rows

/* Adds the products of two steps: x and w are 8 consecutive inputs of a lane's two rows and of its
 * column. */
template <typename T>
__device__ __forceinline__ void multiply(float (&acc)[4], const uint4 (&x)[2], const uint4 &w)
{
    const uint32_t first[4] = {x[0].x, x[1].x, x[0].y, x[1].y};
    const uint32_t second[4] = {x[0].z, x[1].z, x[0].w, x[1].w};
    mma_16x8x16(acc, first, w.x, w.y, T());
    mma_16x8x16(acc, second, w.z, w.w, T());
}

/* ---- few rows -------------------------------------------------------------------------------- */

/* A warp's products of up to 16 rows with 16 ranks; N: chunks that are loaded together. */
template <typename T, int N> struct down_warp {
    const T *down[2], *x[2]; // x NULL: there is no such row
    uint4 w[N][2];
    float acc[2][4];

    __device__ __forceinline__ void load_w(int k, int end)
    {
#pragma unroll
        for (int c = 0; c < N; c++) {
            const int at = k + c * CHUNK + (threadIdx.x & 3) * 8;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                w[c][j] = at < end ? *(const uint4 *)(down[j] + at) : make_uint4(0, 0, 0, 0);
            }
        }
    }

    /* The first chunks of the matrix have been loaded. */
    __device__ __forceinline__ void sum(int begin, int end)
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            acc[i / 4][i % 4] = 0.0f;
        }
        for (int k = begin; k < end; k += N * CHUNK) {
            if (k > begin) {
                load_w(k, end);
            }
            uint4 rows[N][2];
#pragma unroll
            for (int c = 0; c < N; c++) {
                const int at = k + c * CHUNK + (threadIdx.x & 3) * 8;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    rows[c][i] =
                        at < end && x[i] ? *(const uint4 *)(x[i] + at) : make_uint4(0, 0, 0, 0);
                }
            }
#pragma unroll
            for (int c = 0; c < N; c++) {
                multiply<T>(acc[0], rows[c], w[c][0]);
                multiply<T>(acc[1], rows[c], w[c][1]);
            }
        }
    }
};

/* A block has an item, a part and 16 ranks; a warp has a run. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    down_few_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    enum { LD = RANKS + 4 };
    __shared__ float runs[RUNS][TILE][LD];
    const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) / 4, q = threadIdx.x & 3;
    const int part = blockIdx.x % n_parts, first_rank = (int)blockIdx.x / n_parts * RANKS;
    const int length = run_inputs(a, n_parts), begin = (part * RUNS + warp) * length;
    const int end = min(begin + length, a.n_in);
    pdl_trigger(); // before the wait: adapter_up.cu reads only weights and the pass's list before
                   // its own
    const struct adapter_item item = a.list.items[blockIdx.y];
    if (item.n_rows == 0) {
        pdl_wait();
        return;
    }
    struct down_warp<T, N> d;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = i * 8 + g, rank = first_rank + i * 8 + g;
        d.down[i] = (const T *)a.down + ((int64_t)(item.adapter - 1) * a.ranks + rank) * a.n_in;
        d.x[i] = row < item.n_rows ? (const T *)a.x + row_at(a, item, row) * a.x_stride : nullptr;
    }
    d.load_w(begin, end);
    pdl_wait();
    d.sum(begin, end);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        *(float2 *)&runs[warp][i / 2 * 8 + g][i % 2 * 8 + q * 2] =
            make_float2(d.acc[i % 2][i / 2 * 2], d.acc[i % 2][i / 2 * 2 + 1]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < item.n_rows * RANKS; i += THREADS) {
        const int row = i / RANKS, rank = i % RANKS;
        float sum = runs[0][row][rank];
#pragma unroll
        for (int r = 1; r < RUNS; r++) {
            sum += runs[r][row][rank];
        }
        sums_at(a, n_parts, item, row, part)[first_rank + rank] = sum;
    }
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* A stage of the ring has two chunks of inputs, for all rows and then all ranks (NT times 8).
 * Chunks are 64 bytes of a row, and begin in different halves of the banks. */
template <int NT> struct down_ring {
    enum { STAGES = 4, ROWS = ADAPTER_MANY_TILE + NT * 8, CHUNKS = 2 };
    enum { CHUNK_BYTES = ROWS * 64 + 64, STAGE_BYTES = CHUNKS * CHUNK_BYTES };
    enum { BYTES = STAGES * STAGE_BYTES, LOADS = ROWS * 8 / THREADS };
};

/* A block's products of an item with NT times 8 ranks, for a part. */
template <typename T, int NT> struct down_block {
    using R = down_ring<NT>;
    const struct adapter_args &a;
    const struct adapter_item &item;
    char *ring;
    int begin, n_stages;     // of the part
    const T *from[R::LOADS]; // the rows that the thread loads, 16 bytes at a time; NULL: zeros
    float acc[NT][4], sum[NT][4];

    __device__ __forceinline__ void find_rows(int first_rank)
    {
#pragma unroll
        for (int i = 0; i < R::LOADS; i++) {
            const int row = (threadIdx.x >> 3) + i * TILE;
            const int rank = first_rank + row - ADAPTER_MANY_TILE;
            from[i] = nullptr;
            if (row >= ADAPTER_MANY_TILE && rank < a.ranks) {
                from[i] =
                    (const T *)a.down + ((int64_t)(item.adapter - 1) * a.ranks + rank) * a.n_in;
            } else if (row < item.n_rows) { // of x
                from[i] = (const T *)a.x + row_at(a, item, row) * a.x_stride;
            }
        }
    }

    __device__ __forceinline__ void fetch(int stage)
    {
        const int unit = threadIdx.x & 7;
        if (stage < n_stages) {
            const int k = begin + stage * R::CHUNKS * CHUNK + unit * 8;
            char *to = ring + stage % R::STAGES * R::STAGE_BYTES + unit / 4 * R::CHUNK_BYTES +
                       (threadIdx.x >> 3) * 64 + unit % 4 * 16;
#pragma unroll
            for (int i = 0; i < R::LOADS; i++) {
                const bool valid = from[i] && k < a.n_in;
                cp_async_16(to + i * TILE * 64, valid ? from[i] + k : (const T *)a.down, valid);
            }
        }
        cp_async_commit();
    }

    /* The products of a chunk of inputs, whose rows begin at `at`. */
    __device__ __forceinline__ void add_chunk(const char *at, int first_row)
    {
        at += (threadIdx.x & 31) / 4 * 64 + (threadIdx.x & 3) * 16;
        const uint4 x[2] = {*(const uint4 *)(at + first_row * 64),
                            *(const uint4 *)(at + (first_row + 8) * 64)};
#pragma unroll
        for (int j = 0; j < NT; j++) {
            multiply<T>(acc[j], x, *(const uint4 *)(at + (ADAPTER_MANY_TILE + j * 8) * 64));
        }
    }

    __device__ __forceinline__ void end_run(bool is_first)
    {
#pragma unroll
        for (int i = 0; i < NT * 4; i++) {
            const float run = acc[i / 4][i % 4];
            sum[i / 4][i % 4] = is_first ? run : sum[i / 4][i % 4] + run;
            acc[i / 4][i % 4] = 0.0f;
        }
    }

    __device__ __forceinline__ void store(int n_parts, int part, int first_row,
                                          int first_rank) const
    {
#pragma unroll
        for (int i = 0; i < NT * 2; i++) {
            const int row = first_row + i % 2 * 8 + (threadIdx.x & 31) / 4;
            const int rank = first_rank + i / 2 * 8 + (threadIdx.x & 3) * 2;
            if (row < item.n_rows && rank < a.ranks) {
                *(float2 *)(sums_at(a, n_parts, item, row, part) + rank) =
                    make_float2(sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1]);
            }
        }
    }
};

template <typename T, int NT>
__global__ void __launch_bounds__(THREADS)
    down_many_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    using R = down_ring<NT>;
    extern __shared__ __align__(16) char smem[];
    const int part = blockIdx.x % n_parts, first_rank = (int)blockIdx.x / n_parts * NT * 8;
    const int length = run_inputs(a, n_parts), per_run = length / CHUNK;
    const int first_row = (int)(threadIdx.x >> 5) * TILE;
    const struct adapter_item item = a.list.items[blockIdx.y];
    struct down_block<T, NT> d = {
        a, item, smem, part *RUNS *length, RUNS *length / (CHUNK * R::CHUNKS)
    };
    d.find_rows(first_rank);
    pdl_wait();
    pdl_trigger();
    if (item.n_rows == 0) {
        return;
    }
#pragma unroll
    for (int s = 0; s < R::STAGES - 1; s++) {
        d.fetch(s);
    }
    for (int chunk = 0; chunk < d.n_stages * R::CHUNKS; chunk++) {
        const int stage = chunk / R::CHUNKS;
        if (chunk % R::CHUNKS == 0) {
            cp_async_wait<R::STAGES - 2>();
            __syncthreads();
            d.fetch(stage + R::STAGES - 1);
        }
        if (first_row < item.n_rows) {
            d.add_chunk(smem + stage % R::STAGES * R::STAGE_BYTES +
                            chunk % R::CHUNKS * R::CHUNK_BYTES,
                        first_row);
        }
        if ((chunk + 1) % per_run == 0) {
            d.end_run(chunk < per_run);
        }
    }
    d.store(n_parts, part, first_row, first_rank);
}

/* Stores the sum of a row's parts as its first part. The blocks of an item have four ranks per
 * thread. */
__global__ void __launch_bounds__(THREADS)
    join_kernel(const __grid_constant__ struct adapter_args a, int n_parts)
{
    const struct adapter_item item = a.list.items[blockIdx.x];
    pdl_wait();
    pdl_trigger();
    const int i = (blockIdx.y * THREADS + threadIdx.x) * 4, row = i / a.ranks;
    if (row < item.n_rows) {
        float *first = sums_at(a, n_parts, item, row, 0) + i % a.ranks;
        float4 sum = *(const float4 *)first;
#pragma unroll 8
        for (int p = 1; p < n_parts; p++) {
            add_part(sum, *(const float4 *)(first + p * a.ranks));
        }
        *(float4 *)first = sum;
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

template <typename T>
static cudaError_t down_few(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    const dim3 grid(a->ranks / RANKS * n_parts, a->list.n_items);
    const bool is_short = run_inputs(*a, n_parts) <= 4 * CHUNK;
    return launch(is_short ? down_few_kernel<T, 4> : down_few_kernel<T, 8>, grid, dim3(THREADS), 0,
                  stream, *a, n_parts);
}

template <typename T, int NT>
static cudaError_t down_many(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    const auto kernel = down_many_kernel<T, NT>;
    const int smem = down_ring<NT>::BYTES;
    const dim3 grid(ceil_div(a->ranks, NT * 8) * n_parts, a->list.n_items);
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return e != cudaSuccess
               ? e
               : launch(kernel, grid, dim3(THREADS), (size_t)smem, stream, *a, n_parts);
}

static cudaError_t join(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    const dim3 grid(a->list.n_items, ceil_div(a->list.tile * a->ranks / 4, THREADS));
    return launch(join_kernel, grid, dim3(THREADS), 0, stream, *a, n_parts);
}

template <typename T>
static cudaError_t down(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    if (a->list.tile == ADAPTER_FEW_TILE) {
        return down_few<T>(stream, a, n_parts);
    }
    const cudaError_t e =
        a->ranks <= 16 ? down_many<T, 2>(stream, a, n_parts) : down_many<T, 8>(stream, a, n_parts);
    return e != cudaSuccess || n_parts == 1 ? e : join(stream, a, n_parts);
}

cudaError_t adapter_down(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    return a->dtype == DT_BF16 ? down<bf16_t>(stream, a, n_parts) : down<f16_t>(stream, a, n_parts);
}
